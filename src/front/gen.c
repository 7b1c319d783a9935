/* SPDX-License-Identifier: Apache-2.0
 *
 * From a checked request to generations that wait for the engine. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "front/api.h"
#include "front/fields.h"

static uint64_t gen_random(void)
{
    uint64_t r = 0;

    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        r = clock_us(); /* a seed and an id need no secrecy */
    return r;
}

static void gen_name(struct exchange *x)
{
    uint64_t r[2] = {gen_random(), gen_random()};
    char hex[2 * sizeof r + 1];

    hash_hex((const uint8_t *)r, sizeof r, hex);
    (void)snprintf(x->id, sizeof x->id, "%s-%s", x->format == EXCHANGE_CHAT ? "chatcmpl" : "cmpl",
                   hex);
    x->created = clock_unix_s();
}

bool gen_prepare(struct front *f, struct exchange *x, const struct json *body,
                 enum exchange_format format, int n_gens)
{
    const char *param = NULL;
    char why[512] = "";
    struct fields fields;
    int rc;

    x->format = format;
    x->model = f->model_name;
    rc = fields_read(&fields, x, body, f->model_name, why, sizeof why, &param);
    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, why, param, 0);
        return false;
    }
    if (x->max_tokens_given && fields.request.min_tokens > x->max_tokens) {
        exchange_reply_error(x, ERR_INVALID, "'min_tokens' must not be above 'max_tokens'",
                             "min_tokens", 0);
        return false;
    }
    gen_name(x);
    x->gens = arena_zalloc(&x->arena, sizeof *x->gens * (size_t)n_gens);
    if (x->gens == NULL) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return false;
    }
    for (int i = 0; i < n_gens; i++) {
        struct gen *g = &x->gens[i];

        *g = (struct gen){
            .exchange = x, .index = i, .slot = -1, .stop_id = -1, .request = fields.request};
        if (!fields.seed_given)
            g->request.seed = gen_random();
        rc = detok_init(&g->detok, f->tokenizer, fields.skip_special, fields.stops,
                        (size_t)fields.n_stops, fields.include_stop);
        if (rc != ERR_OK) {
            exchange_reply_error(x, rc, NULL, "stop", 0);
            return false;
        }
        detok_continue(&g->detok); /* what comes is the rest of a prompt */
        x->n_gens++;
    }
    return true;
}

int gen_add_text(struct front *f, struct gen *g, const char *text, size_t len, bool add_special)
{
    return tokenizer_encode(f->tokenizer, text, len, add_special, &g->tokens);
}

bool gen_finish_prompts(struct exchange *x, const char *param)
{
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];

        if (g->tokens.len == 0 || g->tokens.len > INT32_MAX) {
            exchange_reply_error(x, g->tokens.len == 0 ? ERR_INVALID : ERR_TOO_LONG,
                                 g->tokens.len == 0 ? "the prompt is empty" : NULL, param, 0);
            return false;
        }
        g->n_prompt = (uint32_t)g->tokens.len;
    }
    return true;
}
