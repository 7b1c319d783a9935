/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /v1/completions: a text, a list of texts, token ids, or a list of lists of ids. Each prompt
 * gets x->n generations, one per choice. */
#include <stdio.h>

#include "front/api/api.h"
#include "front/request/lax.h"

#define API_MAX_TOKENS_PRESET 16 /* the default of OpenAI and vLLM */

/* Is this a list of token ids? The first element decides; others are checked when they are
 * added. */
static bool api_is_ids(const struct json *v)
{
    return v->kind == JSON_LIST && v->n > 0 && v->items[0].kind == JSON_INT;
}

/* The number of prompts; 0 when the value has none of the four forms. */
static int api_count_prompts(const struct front *f, const struct json *prompt)
{
    if (prompt == NULL)
        return 0;
    if (prompt->kind == JSON_TEXT || api_is_ids(prompt))
        return 1;
    if (prompt->kind != JSON_LIST || prompt->n > (uint32_t)f->settings.max_choices)
        return 0;
    return (int)prompt->n;
}

/* Add one prompt's tokens to its first generation. */
static int api_add_prompt(struct gen *g, const struct json *v, bool add_special, char *why,
                          size_t cap)
{
    int rc = ERR_INVALID;

    if (v->kind == JSON_TEXT)
        return gen_add_text(g, v, add_special, why, cap);
    if (api_is_ids(v))
        rc = gen_add_ids(g, v, why, cap);
    if (rc == ERR_INVALID)
        (void)snprintf(why, cap, "'prompt' must hold only texts or token ids");
    return rc;
}

/* Choices of prompt i are the generations from i * n on; gen_finish_prompts() copies the tokens to
 * all of them. */
void api_completions(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *prompt = json_get(body, "prompt");
    int n = api_count_prompts(f, prompt);
    bool add_special = lax_get_flag(body, "add_special_tokens", true);
    char why[160] = "";

    if (n == 0) {
        (void)snprintf(why, sizeof why,
                       "'prompt' must be a string, token ids, or a list of up to %d of these",
                       (int)f->settings.max_choices);
        exchange_reply_error(x, ERR_INVALID, why, "prompt", 0);
        return;
    }
    if (!gen_prepare(f, x, body, EXCHANGE_COMPLETION, n))
        return;
    if (!x->max_tokens_given) {
        x->max_tokens_given = true;
        x->max_tokens = API_MAX_TOKENS_PRESET;
    }
    for (int i = 0; i < n; i++) {
        bool one = prompt->kind == JSON_TEXT || api_is_ids(prompt);
        int rc = api_add_prompt(&x->gens[i * x->n], one ? prompt : &prompt->items[i], add_special,
                                why, sizeof why);

        if (rc != ERR_OK) {
            exchange_reply_error(x, rc, why, "prompt", 0);
            return;
        }
    }
    if (gen_hold(x, FORM_NO_REASONING))
        (void)gen_finish_prompts(x, "prompt"); /* false: it has answered */
}
