/* SPDX-License-Identifier: Apache-2.0
 *
 * Endpoints for stored responses: read, delete, replay as a stream, list the input, and continue
 * one with previous_response_id. A response is stored with all items that led to it, including
 * those of the responses before it. So it does not depend on whether those still exist; the price
 * is that each record holds a whole conversation.
 *
 *   GET     /v1/responses/ID               the response; with ?stream=true as a stream
 *   GET     /v1/responses/ID/input_items   its input, in pages
 *   DELETE  /v1/responses/ID
 *   POST    /v1/responses/ID/cancel        always refused */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "front/answer/replay.h"
#include "front/api/api.h"
#include "front/api/api_kept.h"
#include "front/kept/kept.h"

#define KEPT_PATH       "/v1/responses/"
#define KEPT_ITEMS_MAX  100 /* of one list, as in OpenAI's API */
#define KEPT_ITEMS_MOST 20  /* the default */

/* The tenant that nginx found for the request. It is part of a record's name, so a tenant can only
 * find its own responses. */
static const char *kept_tenant(const struct exchange *x)
{
    return fcgi_param(x->fcgi, "QUIRE_TENANT");
}

/* Answer with an error of the store. param is NULL when the response itself was requested. */
static void kept_refuse(struct exchange *x, int rc, const char *id, const char *param)
{
    char why[200];

    if (rc == ERR_NOT_FOUND && param == NULL) {
        (void)snprintf(why, sizeof why, "Response with id '%.100s' not found.", id);
    } else if (rc == ERR_NOT_FOUND) {
        (void)snprintf(why, sizeof why, "Previous response with id '%.100s' not found.", id);
        rc = ERR_NO_PREVIOUS;
    } else {
        (void)snprintf(why, sizeof why, "stored responses cannot be read at present: %s",
                       err_sentence(rc));
    }
    exchange_reply_error(x, rc, why, param, 0);
}

/* --- items -------------------------------------------------------------------------------- */

static const struct {
    const char *type;
    const char *prefix;
    bool has_status;
} kept_types[] = {
    /* The first is the default. */
    {"message", "msg", true},
    {"function_call", "fc", true},
    {"function_call_output", "fco", true},
    {"custom_tool_call", "ctc", true},
    {"custom_tool_call_output", "ctco", true},
    {"reasoning", "rs", true},
};

/* Content that is a text becomes a list of one part. */
static void kept_put_parts(struct json_made *item, const struct json *text, bool is_answer)
{
    struct json_made list = {.arena = item->arena};
    struct json_made none = list;
    struct json_made part = list;

    json_put_text(&part, "type", is_answer ? "output_text" : "input_text");
    json_put(&part, "text", text);
    if (is_answer) {
        json_put_made(&part, "annotations", JSON_LIST, &none);
        json_put_made(&part, "logprobs", JSON_LIST, &none);
    }
    json_put_made(&list, NULL, JSON_OBJECT, &part);
    json_put_made(item, "content", JSON_LIST, &list);
}

/* Append an item in the form in which OpenAI lists it: with type, id, status, and content in parts.
 * The id made here holds the request's id and the item's index (see references.c). */
static void kept_put_item(struct json_made *list, const struct json *item, const char *id)
{
    const struct json *type = json_get_kind(item, "type", JSON_TEXT);
    struct json_made made = {.arena = list->arena};
    const char *prefix = "item";
    bool has_status = false;
    char *name;

    for (size_t i = 0; i < sizeof kept_types / sizeof kept_types[0]; i++)
        if (type == NULL ? i == 0 : json_is_text(type, kept_types[i].type)) {
            prefix = kept_types[i].prefix;
            has_status = kept_types[i].has_status;
        }
    name = arena_alloc(list->arena, 112);
    if (name == NULL) {
        list->failed = true;
        return;
    }
    (void)snprintf(name, 112, "%s_%s_i%u", prefix, id, list->n);
    if (json_get_kind(item, "id", JSON_TEXT) == NULL)
        json_put_text(&made, "id", name);
    if (type == NULL)
        json_put_text(&made, "type", "message");
    if (has_status && json_get_kind(item, "status", JSON_TEXT) == NULL)
        json_put_text(&made, "status", "completed");
    for (uint32_t i = 0; i < item->n; i++) {
        const struct json *member = &item->items[i];

        if (strcmp(member->key, "content") == 0 && member->kind == JSON_TEXT)
            kept_put_parts(&made, member, json_is_text(json_get(item, "role"), "assistant"));
        else if (member->kind != JSON_NULL || strcmp(member->key, "encrypted_content") == 0)
            json_put(&made, member->key, member);
    }
    json_put_made(list, NULL, JSON_OBJECT, &made);
}

/* Append a request's input as items. */
static void kept_put_input(struct json_made *list, const struct json *input, const char *id)
{
    struct json_made message = {.arena = list->arena};
    struct json item;

    if (input->kind == JSON_TEXT) {
        json_put_text(&message, "role", "user");
        json_put(&message, "content", input);
        item = json_made(&message, JSON_OBJECT);
        list->failed = list->failed || message.failed;
        kept_put_item(list, &item, id);
    }
    for (uint32_t i = 0; input->kind == JSON_LIST && i < input->n; i++)
        kept_put_item(list, &input->items[i], id);
}

/* --- storing ------------------------------------------------------------------------------ */

/* Append the conversation that led to the earlier response: first the stored input, which contains
 * all that came before it, then the response's own output. */
bool api_kept_before(struct front *f, struct exchange *x, const struct json *body,
                     struct json *earlier)
{
    const struct json *id = json_get(body, "previous_response_id");
    struct json_made list = {.arena = &x->arena};
    const struct json *input = NULL, *response = NULL, *output;
    struct kept_record record;
    struct hash name;
    int rc = ERR_NOT_FOUND;

    *earlier = json_made(&list, JSON_LIST);
    if (id == NULL || id->kind == JSON_NULL)
        return true;
    if (id->kind != JSON_TEXT) {
        exchange_reply_error(x, ERR_INVALID, "'previous_response_id' must be a string",
                             "previous_response_id", 0);
        return false;
    }
    name = kept_name(kept_tenant(x), id->text);
    /* A text with a NUL would be cut at it, and could find another response. */
    if (!json_has_nul(id))
        rc = kept_read(f->kept, &name, &x->arena, &record);
    if (rc == ERR_OK)
        rc = json_parse(&input, &x->arena, record.input, record.input_len, NULL, 0);
    if (rc == ERR_OK)
        rc = json_parse(&response, &x->arena, record.response, record.response_len, NULL, 0);
    if (rc != ERR_OK) {
        kept_refuse(x, rc, id->text, "previous_response_id");
        return false;
    }
    for (uint32_t i = 0; input->kind == JSON_LIST && i < input->n; i++)
        json_put(&list, NULL, &input->items[i]);
    output = json_get_kind(response, "output", JSON_LIST);
    for (uint32_t i = 0; output != NULL && i < output->n; i++)
        json_put(&list, NULL, &output->items[i]);
    *earlier = json_made(&list, JSON_LIST);
    if (list.failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    return !list.failed;
}

/* Prepare the storing of a response that begins. The record's input is complete before generation
 * starts; the response is added by blocks.c at its end. */
void api_keep(struct front *f, struct exchange *x, const struct json *body,
              const struct json *earlier)
{
    const struct json *input = json_get(body, "input");
    struct keeping *keeping = arena_zalloc(&x->arena, sizeof *keeping);
    struct json_made list = {.arena = &x->arena};
    struct buf buf = {.limit = x->arena.limit_bytes};
    char *text = NULL;
    struct json all;

    must(earlier->kind == JSON_LIST);
    if (!json_get_bool(body, "store", true) || keeping == NULL)
        return;
    /* The earlier items come first, as they did in the prompt. */
    for (uint32_t i = 0; i < earlier->n; i++)
        json_put(&list, NULL, &earlier->items[i]);
    kept_put_input(&list, input, x->request_id);
    all = json_made(&list, JSON_LIST);
    json_write(&buf, &all, JSON_EXACT);
    if (!buf.failed && !list.failed)
        text = arena_strndup(&x->arena, buf.bytes, buf.len);
    *keeping = (struct keeping){
        .kept = f->kept, .tenant = kept_tenant(x), .input = text, .input_len = buf.len};
    buf_fini(&buf);
    if (text != NULL) /* without memory, the answer reports that it was not stored */
        x->keeping = keeping;
}

/* --- endpoints ---------------------------------------------------------------------------- */

/* Split the path after /v1/responses/ into an id and the rest. */
static void kept_path(const struct exchange *x, char *id, size_t cap, const char **rest)
{
    const char *uri = fcgi_param(x->fcgi, "REQUEST_URI") + strlen(KEPT_PATH);
    size_t n = strcspn(uri, "/?");

    (void)snprintf(id, cap, "%.*s", n < cap ? (int)n : 0, uri);
    if (uri[n] == '/')
        *rest = uri + n + 1;
    else
        *rest = "";
}

/* Read a parameter of the query. The values used here need no percent-encoding. False: it is
 * missing. */
static bool kept_query(const struct exchange *x, const char *name, char *out, size_t cap)
{
    const char *at = strchr(fcgi_param(x->fcgi, "REQUEST_URI"), '?');
    size_t len = strlen(name);

    while (at != NULL) {
        at++;
        if (strncmp(at, name, len) == 0 && at[len] == '=') {
            (void)snprintf(out, cap, "%.*s", (int)strcspn(at + len + 1, "&"), at + len + 1);
            return true;
        }
        at = strchr(at, '&');
    }
    return false;
}

/* Does the query have stream=true? */
static bool kept_wants_stream(const struct exchange *x)
{
    char text[8];

    return kept_query(x, "stream", text, sizeof text) && strcmp(text, "true") == 0;
}

/* Send the response as a stream, from its beginning, with the replay's own sequence numbers. */
static void kept_replay(struct exchange *x, const struct kept_record *r)
{
    const struct json *response = NULL;
    struct buf buf = {.limit = x->arena.limit_bytes};
    char after[24];
    int rc;

    if (kept_query(x, "starting_after", after, sizeof after)) {
        exchange_reply_error(
            x, ERR_UNSUPPORTED,
            "'starting_after' is not supported: a stored response is replayed from "
            "its beginning",
            "starting_after", 0);
        return;
    }
    rc = json_parse(&response, &x->arena, r->response, r->response_len, NULL, 0);
    if (rc == ERR_OK)
        replay_write(&buf, response);
    if (rc == ERR_OK && buf.failed)
        rc = ERR_NO_MEMORY;
    if (rc != ERR_OK)
        exchange_reply_error(x, rc, NULL, NULL, 0);
    else
        exchange_reply(x, 200, "text/event-stream; charset=utf-8", buf.bytes, buf.len);
    buf_fini(&buf);
}

/* Delete a response. Answer with OpenAI's object that confirms it. */
static void kept_delete(struct front *f, struct exchange *x, const struct hash *name,
                        const char *id)
{
    struct buf buf = {0};
    int rc = kept_remove(f->kept, name);

    if (rc != ERR_OK) {
        kept_refuse(x, rc, id, NULL);
        return;
    }
    buf_add_text(&buf, "{\"id\":");
    buf_add_json_string(&buf, id, strlen(id));
    buf_add_text(&buf, ",\"object\":\"response\",\"deleted\":true}");
    exchange_reply_json(x, &buf);
}

/* Read limit, order and after of a list. False after an error answer. */
static bool kept_list_query(struct exchange *x, long *limit, bool *rises, char *after, size_t cap)
{
    char text[16] = "";
    char *end = NULL;

    *limit = KEPT_ITEMS_MOST;
    if (kept_query(x, "limit", text, sizeof text))
        *limit = strtol(text, &end, 10);
    if (*limit < 1 || *limit > KEPT_ITEMS_MAX || (end != NULL && (end == text || *end != '\0'))) {
        exchange_reply_error(x, ERR_INVALID, "'limit' must be a whole number from 1 to 100",
                             "limit", 0);
        return false;
    }
    (void)snprintf(text, sizeof text, "desc");
    (void)kept_query(x, "order", text, sizeof text);
    *rises = strcmp(text, "asc") == 0;
    if (!*rises && strcmp(text, "desc") != 0) {
        exchange_reply_error(x, ERR_INVALID, "'order' must be asc or desc", "order", 0);
        return false;
    }
    after[0] = '\0';
    (void)kept_query(x, "after", after, cap);
    return true;
}

/* Item i of a list in ascending or descending order. */
static const struct json *kept_item(const struct json *items, bool rises, uint32_t i)
{
    must(i < items->n);
    return &items->items[rises ? i : items->n - 1 - i];
}

/* Append the id of an item as a member; an empty text if there is no item. */
static void kept_add_id(struct buf *b, const char *name, const struct json *item)
{
    const char *id = json_get_text(item, "id", "");

    buf_printf(b, ",\"%s\":", name);
    buf_add_json_string(b, id, strlen(id));
}

/* Answer with a page of a list. A client fetches the next page with after=ID, the last id of this
 * one. The order is newest first unless the query says order=asc. */
static void kept_list(struct exchange *x, const struct json *items)
{
    struct buf buf = {.limit = x->arena.limit_bytes};
    uint32_t from = 0, to;
    char after[160];
    bool rises;
    long limit;

    if (!kept_list_query(x, &limit, &rises, after, sizeof after))
        return;
    for (uint32_t i = 0; after[0] != '\0' && i < items->n; i++)
        if (json_is_text(json_get(kept_item(items, rises, i), "id"), after))
            from = i + 1;
    /* No item has that id. Starting again at the first would let a client loop forever. */
    if (after[0] != '\0' && from == 0) {
        exchange_reply_error(x, ERR_INVALID, "'after' must be the id of an item of the list",
                             "after", 0);
        return;
    }
    if (items->n - from > (uint32_t)limit)
        to = from + (uint32_t)limit;
    else
        to = items->n;
    buf_add_text(&buf, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = from; i < to; i++) {
        buf_add_comma(&buf, i > from);
        json_write(&buf, kept_item(items, rises, i), JSON_EXACT);
    }
    buf_add_byte(&buf, ']');
    kept_add_id(&buf, "first_id", from < to ? kept_item(items, rises, from) : NULL);
    kept_add_id(&buf, "last_id", from < to ? kept_item(items, rises, to - 1) : NULL);
    buf_printf(&buf, ",\"has_more\":%s}", json_flag_text(to < items->n));
    exchange_reply_json(x, &buf);
}

/* List the input of a stored response. */
static void kept_list_input(struct exchange *x, const struct kept_record *r)
{
    const struct json *items = NULL;
    int rc = json_parse(&items, &x->arena, r->input, r->input_len, NULL, 0);

    if (rc == ERR_OK && items->kind != JSON_LIST)
        rc = ERR_CORRUPT;
    if (rc == ERR_OK)
        kept_list(x, items);
    else
        exchange_reply_error(x, rc, NULL, NULL, 0);
}

/* Answer a request for one stored response: the path and the method choose the operation. */
static void kept_answer(struct front *f, struct exchange *x, const char *method)
{
    const char *rest;
    struct kept_record record;
    struct hash name;
    char id[160];
    int rc;

    kept_path(x, id, sizeof id, &rest);
    name = kept_name(kept_tenant(x), id);
    /* A record is as large as the request that made it; parsing it needs a multiple. */
    x->arena.limit_bytes = f->settings.max_body_bytes * API_KEPT_MEMORY_FACTOR;
    if (strcmp(method, "DELETE") == 0 && rest[0] == '\0') {
        kept_delete(f, x, &name, id);
        return;
    }
    rc = kept_read(f->kept, &name, &x->arena, &record);
    if (rc != ERR_OK)
        kept_refuse(x, rc, id, NULL);
    /* As OpenAI's server answers: background responses do not exist here. */
    else if (strcmp(method, "POST") == 0 && strncmp(rest, "cancel", 6) == 0)
        exchange_reply_error(x, ERR_INVALID,
                             "Only responses created with background=true can be cancelled.",
                             "response_id", 0);
    else if (strcmp(method, "GET") != 0)
        exchange_reply_error(x, ERR_METHOD, NULL, NULL, 0);
    else if (rest[0] == '\0' && kept_wants_stream(x))
        kept_replay(x, &record);
    else if (rest[0] == '\0')
        exchange_reply(x, 200, "application/json", record.response, record.response_len);
    else if (strncmp(rest, "input_items", 11) == 0 && strchr("/?", rest[11]) != NULL)
        kept_list_input(x, &record);
    else
        exchange_reply_error(x, ERR_NOT_FOUND, NULL, NULL, 0);
}

/* All methods of /v1/responses/ID and of the paths below it. A body is read and ignored. */
void api_kept_response(struct front *f, struct exchange *x, const struct json *body)
{
    const char *method = fcgi_param(x->fcgi, "REQUEST_METHOD");

    (void)body;
    fcgi_skip_body(x->fcgi);
    if (f->kept == NULL)
        exchange_reply_error(x, ERR_NOT_FOUND, "this server does not store responses",
                             "response_id", 0);
    else
        kept_answer(f, x, strcmp(method, "HEAD") == 0 ? "GET" : method);
}
