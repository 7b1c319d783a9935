/* SPDX-License-Identifier: Apache-2.0 */
#include "front/exchange.h"

#include <string.h>

#include "base/clock.h"

struct exchange *exchange_new(struct fcgi *f)
{
    struct exchange *x = mem_zalloc(sizeof *x);

    if (x == NULL)
        return NULL;
    x->fcgi = f;
    x->arrival_us = clock_us();
    x->progress_us = x->arrival_us;
    x->said_us = x->arrival_us;
    return x;
}

void exchange_free(struct exchange *x, bool keep_answer)
{
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];

        token_list_fini(&g->tokens);
        detok_fini(&g->detok);
        buf_fini(&g->text);
        buf_fini(&g->told);
        buf_fini(&g->prompt_told);
        if (g->speech != NULL) {
            reply_fini(&g->speech->reply);
            buf_fini(&g->speech->content);
            buf_fini(&g->speech->reasoning);
            buf_fini(&g->speech->calls);
        }
    }
    structure_unref(x->structure);
    buf_fini(&x->out);
    if (keep_answer)
        fcgi_finish(x->fcgi);
    else
        fcgi_abort(x->fcgi);
    arena_reset(&x->arena);
    mem_free(x);
}

bool exchange_name(struct exchange *x, const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len >= sizeof x->request_id ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") != len)
        return false;
    memcpy(x->request_id, name, len + 1);
    return true;
}

static const char *exchange_reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
    }
}

void exchange_reply(struct exchange *x, int status, const char *type, const char *body, size_t len)
{
    buf_printf(&x->out, "Status: %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status,
               exchange_reason(status), type, len);
    buf_add(&x->out, body, len);
    x->head_sent = true;
    x->complete = true;
}

void exchange_add_error(struct buf *b, int err, const char *message, const char *param)
{
    const char *code = err_openai_code(err);

    if (message == NULL)
        message = err_sentence(err);
    buf_add_text(b, "{\"error\":{\"message\":");
    buf_add_json_string(b, message, strlen(message));
    buf_printf(b, ",\"type\":\"%s\",\"param\":", err_openai_type(err));
    if (param == NULL)
        buf_add_text(b, "null");
    else
        buf_add_json_string(b, param, strlen(param));
    if (code[0] == '\0')
        buf_add_text(b, ",\"code\":null}}");
    else
        buf_printf(b, ",\"code\":\"%s\"}}", code);
}

void exchange_reply_error(struct exchange *x, int err, const char *message, const char *param,
                          int retry_after_s)
{
    struct buf body = {0};
    int status = err_http_status(err);

    exchange_add_error(&body, err, message, param);
    buf_printf(&x->out, "Status: %d %s\r\n", status, exchange_reason(status));
    if (retry_after_s > 0)
        buf_printf(&x->out, "Retry-After: %d\r\n", retry_after_s);
    buf_printf(&x->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
    buf_add(&x->out, body.bytes == NULL ? "" : body.bytes, body.len);
    buf_fini(&body);
    x->head_sent = true;
    x->complete = true;
}
