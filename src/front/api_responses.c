/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenAI's POST /v1/responses: said as a chat, answered in items. Nothing is kept. */
#include "front/api.h"
#include "front/translate.h"

void api_responses(struct front *f, struct exchange *x, const struct json *body)
{
    const char *param = NULL;
    char why[512] = "";
    struct json chat;
    int rc = translate_responses(&chat, &x->arena, body, why, sizeof why, &param);

    x->request = body;
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, why, param, 0);
    else
        api_chat(f, x, &chat);
}

void api_kept_response(struct front *f, struct exchange *x, const struct json *body)
{
    (void)f;
    (void)body;
    fcgi_skip_body(x->fcgi);
    exchange_reply_error(x, ERR_NOT_FOUND, "this server is stateless and keeps no responses",
                         "response_id", 0);
}
