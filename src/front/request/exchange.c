/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an exchange, and answers that are complete at once: JSON texts and errors. Streams
 * and generated answers are written by answer/. An answer in `out` begins with CGI's "Status:"
 * line, which nginx turns into HTTP's status line.
 *
 *   Status: 200 OK
 *   Content-Type: application/json
 *   Content-Length: 21
 *
 *   {"is_sleeping":false} */
#include "front/request/exchange.h"

#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "front/kept/kept.h"

/* NULL: no memory. The connection is still the caller's then. */
struct exchange *exchange_new(struct fcgi *f)
{
    struct exchange *x = mem_zalloc(sizeof *x);

    must(f != NULL);
    if (x == NULL)
        return NULL;
    x->fcgi = f;
    x->arrival_us = clock_us();
    x->progress_us = x->arrival_us;
    x->said_us = x->arrival_us;
    return x;
}

/* Buffers are freed one by one because they grow with mem_realloc(); all else lies in the arena. */
void exchange_free(struct exchange *x)
{
    for (int i = 0; i < x->n_gens; i++) {
        struct gen *g = &x->gens[i];

        token_list_fini(&g->tokens);
        detok_fini(&g->detok);
        buf_fini(&g->text);
        buf_fini(&g->told);
        buf_fini(&g->row);
        buf_fini(&g->facts);
        buf_fini(&g->prompt_told);
        if (g->speech != NULL) {
            reply_fini(&g->speech->reply);
            buf_fini(&g->speech->content);
            buf_fini(&g->speech->reasoning);
            buf_fini(&g->speech->calls);
            buf_fini(&g->speech->blocks.name);
            buf_fini(&g->speech->blocks.text);
            buf_fini(&g->speech->blocks.told);
            buf_fini(&g->speech->blocks.done);
        }
    }
    /* Memory outside the arena that a feature needed, such as a beam search. */
    if (x->on_free != NULL)
        x->on_free(x);
    if (x->keeping != NULL)
        kept_leave(x->keeping->job);
    compiled_unref(x->compiled);
    buf_fini(&x->out);
    fcgi_close(x->fcgi);
    arena_reset(&x->arena);
    mem_free(x);
}

/* Take the client's name of a request. False: it is empty, too long, or has characters that could
 * break the log or a JSON text. */
bool exchange_name(struct exchange *x, const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len >= sizeof x->request_id ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") != len)
        return false;
    memcpy(x->request_id, name, len + 1);
    return true;
}

/* Reason phrases, of all statuses that err.def and the shapes use. */
static const char *exchange_reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 529: return "Overloaded";
    default: return "Internal Server Error";
    }
}

/* A header for clients, if the request has a part that was ignored. */
void exchange_add_notice(struct exchange *x)
{
    if (x->notice != NULL)
        buf_printf(&x->out, "X-Quire-Notice: %s\r\n", x->notice);
}

/* Write a complete answer with this status, type and body. */
void exchange_reply(struct exchange *x, int status, const char *type, const char *body, size_t len)
{
    buf_printf(&x->out, "Status: %d %s\r\nContent-Type: %s\r\n", status, exchange_reason(status),
               type);
    exchange_add_notice(x);
    buf_printf(&x->out, "Content-Length: %zu\r\n\r\n", len);
    buf_add(&x->out, body, len);
    x->head_sent = true;
    x->complete = true;
}

/* Append OpenAI's error object; param NULL: no field is named. */
void exchange_add_error(struct buf *b, int err, const char *message, const char *param)
{
    const char *code = err_openai_code(err);

    if (message == NULL || message[0] == '\0')
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

/* Anthropic's error type for an HTTP status. */
static const char *exchange_messages_type(int status)
{
    switch (status) {
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

/* Append Anthropic's error object. */
void exchange_add_error_messages(struct buf *b, const struct exchange *x, int err,
                                 const char *message)
{
    if (message == NULL || message[0] == '\0')
        message = err_sentence(err);
    buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
               exchange_messages_type(err_http_status(err)));
    buf_add_json_string(b, message, strlen(message));
    buf_printf(b, "},\"request_id\":\"%s\"}", x->request_id);
}

void exchange_add_error_kserve(struct buf *b, int err, const char *message, const char *param)
{
    struct buf text = {0};

    if (message == NULL || message[0] == '\0')
        message = err_sentence(err);
    if (param != NULL)
        buf_printf(&text, "%s: ", param);
    buf_add_text(&text, message);
    buf_add_text(b, "{\"error\":");
    buf_add_json_string(b, buf_text(&text), text.len);
    buf_add_byte(b, '}');
    b->failed = b->failed || text.failed;
    buf_fini(&text);
}

/* The client's name of a field. /v1/responses is translated to a chat, so an error may carry the
 * chat's name of a field that the client sent under another one. */
static const char *exchange_param(const struct exchange *x, const char *param)
{
    static const struct {
        const char *chat;
        const char *name;
    } rows[] = {{"messages", "input"},
                {"max_completion_tokens", "max_output_tokens"},
                {"response_format", "text"}};

    if (x->shape != SHAPE_RESPONSES || param == NULL)
        return param;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].chat, param) == 0)
            return rows[i].name;
    }
    return param;
}

/* The whole answer is written at once, so an exchange that has sent its head cannot use this; its
 * stream ends with an event instead. */
void exchange_reply_error(struct exchange *x, int err, const char *message, const char *param,
                          int retry_after_s)
{
    struct buf body = {0};
    int status;

    if (err == ERR_NO_MEMORY && x->arena.limited) { /* the request's own limit, not the server's
                                                     * memory */
        err = ERR_TOO_LARGE;
        message = "the request needs more memory than a request may use";
    }
    status = err_http_status(err);
    if (x->shape == SHAPE_MESSAGES) {
        exchange_add_error_messages(&body, x, err, message);
        if (status == 503)
            status = 529; /* Anthropic's status for an overloaded server */
    } else if (x->shape == SHAPE_KSERVE) {
        exchange_add_error_kserve(&body, err, message, param);
    } else {
        exchange_add_error(&body, err, message, exchange_param(x, param));
    }
    buf_printf(&x->out, "Status: %d %s\r\n", status, exchange_reason(status));
    if (retry_after_s > 0)
        buf_printf(&x->out, "Retry-After: %d\r\n", retry_after_s);
    buf_printf(&x->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
    buf_add(&x->out, buf_text(&body), body.len);
    buf_fini(&body);
    x->head_sent = true;
    x->complete = true;
}

/* A text that was cut for lack of memory is never sent. */
void exchange_reply_json(struct exchange *x, struct buf *json)
{
    if (json->failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", json->bytes, json->len);
    buf_fini(json);
}
