/* SPDX-License-Identifier: Apache-2.0
 *
 * References in the input of POST /v1/responses: {"type": "item_reference", "id": ...} is replaced
 * by an item of a stored response. An item's id contains its response and its index there, so one
 * read of the store finds it. If that response is gone, the item is searched among those of
 * previous_response_id's conversation.
 *
 * For example, msg_abc_1 is item 1 in the output of resp_abc, and msg_abc_i0 item 0 of its
 * input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "front/api/api_kept.h"
#include "front/kept/kept.h"

#define REFERENCES_MAX 256 /* per request: each may read a record, or search all earlier items */

/* The parts of an id: PREFIX_REQUEST_N is item N of the output, PREFIX_REQUEST_iN of the input. */
struct reference {
    char response[API_KEPT_ID_BYTES];
    bool is_input;
    uint32_t idx;
};

/* The lists of the last response read, because consecutive references mostly have the same one. */
struct references {
    struct front *f;
    struct exchange *x;
    const struct json *earlier;
    char response[API_KEPT_ID_BYTES]; /* its id; "": none */
    struct kept_record record;
    const struct json *lists[2]; /* [output, input]; NULL: not parsed yet */
};

/* Is the item a reference? Its type may be missing. */
static bool is_reference(const struct json *item)
{
    const struct json *type = json_get(item, "type");

    if (item->kind != JSON_OBJECT)
        return false;
    if (type != NULL && type->kind != JSON_NULL)
        return json_is_text(type, "item_reference");
    return json_get(item, "id") != NULL && json_get(item, "role") == NULL &&
           json_get(item, "content") == NULL;
}

/* Split an id, from the outside in: the prefix ends at the first '_', the index begins after the
 * last. */
static bool read_reference(const char *id, struct reference *r)
{
    const char *first = strchr(id, '_'), *last = strrchr(id, '_');
    unsigned long idx;
    char *end;

    if (first == NULL || last <= first + 1 ||
        (size_t)(last - first) + sizeof API_KEPT_PREFIX > sizeof r->response)
        return false;
    r->is_input = last[1] == 'i';
    /* Skip the '_', and the letter i of an input's item. */
    last += 1 + r->is_input;
    if (*last < '0' || *last > '9')
        return false;
    idx = strtoul(last, &end, 10);
    if (*end != '\0' || idx >= UINT32_MAX)
        return false;
    r->idx = (uint32_t)idx;
    (void)snprintf(r->response, sizeof r->response, API_KEPT_PREFIX "%.*s",
                   (int)(strrchr(id, '_') - first - 1), first + 1);
    return true;
}

/* Find the list that r points into. ERR_NOT_FOUND, or an error of the store. */
static int open_list(struct references *all, const struct reference *r, const struct json **list)
{
    struct arena *arena = &all->x->arena;
    const struct json *whole = NULL;
    struct hash name;
    int rc = ERR_OK;

    if (strcmp(all->response, r->response) != 0) {
        /* Forget the last response first: reading may fail. */
        all->response[0] = '\0';
        all->lists[0] = all->lists[1] = NULL;
        name = kept_name(fcgi_param(all->x->fcgi, "QUIRE_TENANT"), r->response);
        rc = kept_read(all->f->kept, &name, arena, &all->record);
        if (rc != ERR_OK)
            return rc;
        (void)snprintf(all->response, sizeof all->response, "%s", r->response);
    }
    *list = all->lists[r->is_input];
    if (*list != NULL)
        return ERR_OK;
    if (r->is_input)
        rc = json_parse(list, arena, all->record.input, all->record.input_len, NULL, 0);
    else
        rc = json_parse(&whole, arena, all->record.response, all->record.response_len, NULL, 0);
    if (rc == ERR_OK && !r->is_input)
        *list = json_get_kind(whole, "output", JSON_LIST);
    if (rc == ERR_OK && (*list == NULL || (*list)->kind != JSON_LIST))
        rc = ERR_CORRUPT;
    if (rc == ERR_OK)
        all->lists[r->is_input] = *list;
    return rc;
}

/* Find the item of an id: by the id's parts, otherwise by comparing ids. The second way finds items
 * that have ids of the client's own. */
static int find_item(struct references *all, const struct json *id, const struct json **item)
{
    const struct json *list = NULL;
    struct reference reference;
    int rc = ERR_NOT_FOUND;

    if (id == NULL || id->kind != JSON_TEXT || json_has_nul(id))
        return ERR_NOT_FOUND;
    if (read_reference(id->text, &reference))
        rc = open_list(all, &reference, &list);
    if (rc == ERR_OK && reference.idx < list->n &&
        json_is_text(json_get(&list->items[reference.idx], "id"), id->text)) {
        *item = &list->items[reference.idx];
        return ERR_OK;
    }
    if (rc != ERR_OK && rc != ERR_NOT_FOUND)
        return rc;
    for (uint32_t i = 0; i < all->earlier->n; i++) {
        if (json_is_text(json_get(&all->earlier->items[i], "id"), id->text)) {
            *item = &all->earlier->items[i];
            return ERR_OK;
        }
    }
    return ERR_NOT_FOUND;
}

/* The error for input[at]. A missing item is the client's error, so its status is 400 and not 404:
 * the path exists. */
static void refuse_item(struct exchange *x, int rc, uint32_t at, const struct json *id)
{
    char why[256];

    if (rc == ERR_NOT_FOUND && (id == NULL || id->kind != JSON_TEXT))
        (void)snprintf(why, sizeof why, "'input[%u].id' must be a string: the id of an item", at);
    else if (rc == ERR_NOT_FOUND)
        (void)snprintf(
            why, sizeof why,
            "'input[%u]' refers to the item '%.100s', which is not stored: send the item "
            "itself",
            at, id->text);
    else
        (void)snprintf(why, sizeof why, "the item of 'input[%u]' cannot be read at present: %s", at,
                       err_sentence(rc));
    if (rc == ERR_NOT_FOUND)
        rc = ERR_INVALID;
    else if (rc == ERR_NO_MEMORY)
        rc = ERR_TOO_LARGE;
    exchange_reply_error(x, rc, why, "input", 0);
}

/* Replace *body by a copy with another input. */
static bool put_input(struct exchange *x, const struct json **body, const struct json_made *input)
{
    struct json_made made = {.arena = &x->arena};
    struct json *out = arena_alloc(&x->arena, sizeof *out);

    must((*body)->kind == JSON_OBJECT);
    for (uint32_t i = 0; i < (*body)->n; i++) {
        const struct json *member = &(*body)->items[i];

        if (strcmp(member->key, "input") == 0)
            json_put_made(&made, "input", JSON_LIST, input);
        else
            json_put(&made, member->key, member);
    }
    if (out == NULL || made.failed || input->failed) {
        exchange_reply_error(x, ERR_TOO_LARGE, NULL, "input", 0);
        return false;
    }
    *out = json_made(&made, JSON_OBJECT);
    *body = out;
    return true;
}

/* Replace all references of the input. The common case, an input without any, costs one look at
 * each item and copies nothing. */
bool api_kept_references(struct front *f, struct exchange *x, const struct json *earlier,
                         const struct json **body)
{
    const struct json *input = json_get_kind(*body, "input", JSON_LIST);
    struct references all = {.f = f, .x = x, .earlier = earlier};
    struct json_made made = {.arena = &x->arena};
    uint32_t n = 0;
    char why[128];

    for (uint32_t i = 0; input != NULL && i < input->n; i++)
        n += is_reference(&input->items[i]);
    if (n == 0)
        return true;
    if (n > REFERENCES_MAX) {
        (void)snprintf(why, sizeof why,
                       "'input' has %u references to items; at most %d are allowed", n,
                       REFERENCES_MAX);
        exchange_reply_error(x, ERR_INVALID, why, "input", 0);
        return false;
    }
    for (uint32_t i = 0; i < input->n; i++) {
        const struct json *item = &input->items[i];
        int rc = is_reference(item) ? find_item(&all, json_get(item, "id"), &item) : ERR_OK;

        if (rc != ERR_OK) {
            refuse_item(x, rc, i, json_get(item, "id"));
            return false;
        }
        json_put(&made, NULL, item);
    }
    return put_input(x, body, &made);
}
