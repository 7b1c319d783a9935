/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenAI's POST /v1/responses: translated to a chat and answered in items (answer_responses.c). The
 * items of an earlier response are put before the input. */
#include "front/api/api.h"
#include "front/api/api_kept.h"
#include "front/request/translate.h"

void api_responses(struct front *f, struct exchange *x, const struct json *body)
{
    struct translate_responses_in in = {.body = body};
    struct reason reason = {.text = ""};
    struct json earlier, chat;
    int rc;

    x->request = body;
    if (f->kept != NULL) {
        if (!api_kept_before(f, x, body, &earlier) || !api_kept_references(f, x, &earlier, &body))
            return;
        in.earlier = &earlier;
        in.body = body;
    }
    rc = translate_responses(&chat, &x->arena, &in, &reason);
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, reason.text, reason.param, 0);
    else
        api_chat(f, x, &chat);
    if (f->kept != NULL && !x->complete)
        api_keep(f, x, body, &earlier);
}
