/* SPDX-License-Identifier: Apache-2.0
 *
 * The first byte chooses chat or completion, the format of replies and where they begin; the rest
 * is a request's body, parsed and read as a front does before it renders. What it wants of the
 * output is compiled. */
#include <string.h>
#include <sys/mman.h>

#include "base/must.h"
#include "front/request/fields.h"
#include "grammar/automaton.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Any form that was read is compiled or refused with words, and the image is one. */
static void compile(const struct form *f, uint8_t choice, struct arena *a)
{
    struct form_model m = {.format = (enum reply_format)((choice >> 3) % REPLY_FORMATS),
                           .start = (enum form_start)((choice >> 1) % 3),
                           .reasoning = REPLY_THINK,
                           .chat = (choice & 1) != 0};
    struct compiled *st = NULL;
    struct compiled_cache cache;
    struct reason reason = {.text = ""};
    void *image;
    int rc;

    must(compiled_cache_init(&cache) == ERR_OK);
    rc = form_compile(f, &m, &cache, a, &st, &reason);
    must(rc == ERR_OK || rc == ERR_NO_MEMORY || (reason.text[0] != '\0' && reason.param != NULL));
    if (st != NULL) {
        image = mmap(NULL, st->bytes, PROT_READ, MAP_PRIVATE, st->sealed, 0);
        must(image != MAP_FAILED && automaton_check(image, st->bytes) == ERR_OK);
        (void)munmap(image, st->bytes);
    }
    compiled_unref(st);
    compiled_cache_fini(&cache);
}

static const struct names names = {.at = {"demo"}, .n = 1};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *body = NULL;
    struct exchange x = {0};
    struct defaults defaults;
    struct fields f;
    struct reason reason = {.text = ""};
    char *text;

    if (len == 0 || (text = arena_strndup(&a, (const char *)bytes + 1, len - 1)) == NULL)
        return 0;
    defaults_init(&defaults);
    x.format = (bytes[0] & 1) != 0 ? EXCHANGE_CHAT : EXCHANGE_COMPLETION;
    if (json_parse(&body, &a, text, len - 1, reason.text, sizeof reason.text) == ERR_OK &&
        body->kind == JSON_OBJECT) {
        if (fields_read(&f, &x, body, &defaults, &names, &reason) != ERR_OK) {
            must(reason.text[0] != '\0' && reason.param != NULL);
        } else {
            must(f.n_stops <= DETOK_STOPS_MAX && f.request.generate.n_stop_ids == 0);
            must(x.n >= 1 && x.n <= 128);
            must(!x.max_tokens_given || x.max_tokens >= 1);
            must(f.request.generate.sampling.temperature >= 0.0f &&
                 f.request.generate.sampling.temperature <= 100.0f);
            must(f.request.generate.sampling.top_p > 0.0f &&
                 f.request.generate.sampling.top_p <= 1.0f &&
                 f.request.generate.sampling.top_k >= 0);
            if (form_binds(&f.form))
                compile(&f.form, bytes[0], &a);
        }
    }
    arena_reset(&a);
    return 0;
}
