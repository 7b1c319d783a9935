/* SPDX-License-Identifier: Apache-2.0
 *
 * Anthropic's POST /v1/messages and /v1/messages/count_tokens: translated to a chat and answered in
 * blocks (answer_messages.c). */
#include "front/api/api.h"
#include "front/request/translate.h"

static bool api_translate(struct front *f, struct exchange *x, const struct json *body,
                          bool is_count)
{
    struct reason reason = {.text = ""};
    struct json chat;
    int rc;

    x->max_tokens_bends = true; /* clients of this API send the longest answer they might want */
    rc = translate_messages(&chat, &x->arena, body, is_count, &reason);

    if (rc != ERR_OK)
        exchange_reply_error(x, rc, reason.text, reason.param, 0);
    else
        api_chat(f, x, &chat);
    return !x->complete;
}

void api_messages(struct front *f, struct exchange *x, const struct json *body)
{
    (void)api_translate(f, x, body, false); /* false: it has answered */
}

void api_count_tokens(struct front *f, struct exchange *x, const struct json *body)
{
    struct buf buf = {0};

    if (!api_translate(f, x, body, true))
        return;
    buf_printf(&buf, "{\"input_tokens\":%zu}", x->gens[0].tokens.len);
    exchange_reply_json(x, &buf);
}
