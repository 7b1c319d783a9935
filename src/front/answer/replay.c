/* SPDX-License-Identifier: Apache-2.0
 *
 * The replay of a stored response as a stream: the events that a stream would have had, each text
 * in one delta. A member that was different at the beginning (a status, an empty output) is
 * replaced by its early value, or left out. */
#include "front/answer/replay.h"

#include <string.h>

struct replay {
    struct buf *b;
    uint32_t n_events;
    const struct json *item; /* the current item */
    uint32_t item_idx, part_idx;
};

/* Begin an event; each has the next sequence number. */
static void replay_begin(struct replay *r, const char *name)
{
    buf_printf(r->b, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%u", name, name,
               r->n_events++);
}

/* End the event. */
static void replay_end(struct replay *r)
{
    buf_add_text(r->b, "}\n\n");
}

/* Append a member, after a comma. A missing value becomes null. */
static void replay_member(struct buf *b, const char *name, const struct json *v)
{
    buf_printf(b, ",\"%s\":", name);
    if (v == NULL)
        buf_add_text(b, "null");
    else
        json_write(b, v, JSON_EXACT);
}

/* The value of a member before the rest of its object existed: JSON; "": the member was missing;
 * NULL: as in the complete object. */
struct replay_early {
    const char *name, *text;
};

/* Write an object as it was when it began. */
static void replay_early(struct buf *b, const struct json *object, const struct replay_early *early,
                         size_t n_early)
{
    const char *comma = "";

    buf_add_byte(b, '{');
    for (uint32_t i = 0; i < object->n; i++) {
        const struct json *member = &object->items[i];
        const char *text = NULL;

        for (size_t k = 0; k < n_early; k++)
            if (strcmp(early[k].name, member->key) == 0)
                text = early[k].text;
        if (text != NULL && text[0] == '\0')
            continue;
        buf_add_text(b, comma);
        buf_add_json_string(b, member->key, strlen(member->key));
        buf_add_byte(b, ':');
        if (text != NULL)
            buf_add_text(b, text);
        else
            json_write(b, member, JSON_EXACT);
        comma = ",";
    }
    buf_add_byte(b, '}');
}

/* An event with the whole response. created and in_progress show it before it had any output; the
 * last event shows it as it is stored. */
static void replay_response(struct replay *r, const char *event, const struct json *response)
{
    static const struct replay_early early[] = {{"status", "\"in_progress\""},
                                                {"output", "[]"},
                                                {"incomplete_details", "null"},
                                                {"completed_at", ""},
                                                {"usage", ""}};
    bool ends =
        strcmp(event, "response.created") != 0 && strcmp(event, "response.in_progress") != 0;

    replay_begin(r, event);
    buf_add_text(r->b, ",\"response\":");
    replay_early(r->b, response, early, ends ? 0 : sizeof early / sizeof early[0]);
    replay_end(r);
}

/* An event with the whole item: empty when it is added, complete when it is done. */
static void replay_item_event(struct replay *r, const char *event, bool ends)
{
    static const struct replay_early early[] = {
        {"status", "\"in_progress\""}, {"content", "[]"}, {"arguments", "\"\""}, {"input", "\"\""}};

    replay_begin(r, event);
    buf_printf(r->b, ",\"output_index\":%u,\"item\":", r->item_idx);
    replay_early(r->b, r->item, early, ends ? 0 : sizeof early / sizeof early[0]);
    replay_end(r);
}

/* The members with which an event refers to an item and its part. */
static void replay_place(struct replay *r, bool has_part)
{
    replay_member(r->b, "item_id", json_get(r->item, "id"));
    buf_printf(r->b, ",\"output_index\":%u", r->item_idx);
    if (has_part)
        buf_printf(r->b, ",\"content_index\":%u", r->part_idx);
}

/* An event with a part of a message or a reasoning item. */
static void replay_part_event(struct replay *r, const struct json *part, const char *event,
                              bool ends)
{
    static const struct replay_early early[] = {{"text", "\"\""}, {"logprobs", "[]"}};

    replay_begin(r, event);
    replay_place(r, true);
    buf_add_text(r->b, ",\"part\":");
    replay_early(r->b, part, early, ends ? 0 : sizeof early / sizeof early[0]);
    replay_end(r);
}

/* A text of a part or of a call. name is the member that holds it in the event. */
static void replay_text(struct replay *r, const char *event, const char *name,
                        const struct json *text, const struct json *logprobs)
{
    replay_begin(r, event);
    replay_place(r, strcmp(name, "text") == 0 || strcmp(name, "part_delta") == 0);
    if (strcmp(name, "arguments") == 0)
        replay_member(r->b, "name", json_get(r->item, "name"));
    replay_member(r->b, strcmp(name, "part_delta") == 0 ? "delta" : name, text);
    if (logprobs != NULL)
        replay_member(r->b, "logprobs", logprobs);
    replay_end(r);
}

/* The four events of a part: added, its text as one delta, the text's end, done. */
static void replay_part(struct replay *r, const struct json *part)
{
    bool reasons = json_is_text(json_get(part, "type"), "reasoning_text");
    const struct json *text = json_get(part, "text");
    const struct json *logprobs = json_get_kind(part, "logprobs", JSON_LIST);

    replay_part_event(r, part, "response.content_part.added", false);
    replay_text(r, reasons ? "response.reasoning_text.delta" : "response.output_text.delta",
                "part_delta", text, logprobs);
    replay_text(r, reasons ? "response.reasoning_text.done" : "response.output_text.done", "text",
                text, logprobs);
    replay_part_event(r, part, "response.content_part.done", true);
}

/* The events of one item: of its parts, or of a call's arguments. Empty arguments have no delta, as
 * in a stream. */
static void replay_item(struct replay *r)
{
    const struct json *content = json_get_kind(r->item, "content", JSON_LIST);
    const struct json *arguments = json_get_kind(r->item, "arguments", JSON_TEXT);
    const struct json *input = json_get_kind(r->item, "input", JSON_TEXT);

    replay_item_event(r, "response.output_item.added", false);
    for (r->part_idx = 0; content != NULL && r->part_idx < content->n; r->part_idx++)
        replay_part(r, &content->items[r->part_idx]);
    if (arguments != NULL) {
        if (arguments->text_len > 0)
            replay_text(r, "response.function_call_arguments.delta", "delta", arguments, NULL);
        replay_text(r, "response.function_call_arguments.done", "arguments", arguments, NULL);
    } else if (input != NULL) {
        replay_text(r, "response.custom_tool_call_input.delta", "delta", input, NULL);
        replay_text(r, "response.custom_tool_call_input.done", "input", input, NULL);
    }
    replay_item_event(r, "response.output_item.done", true);
}

/* The item and part indices are members, so that every event finds them. */
void replay_write(struct buf *b, const struct json *response)
{
    const struct json *output = json_get_kind(response, "output", JSON_LIST);
    struct replay replay = {.b = b};

    replay_response(&replay, "response.created", response);
    replay_response(&replay, "response.in_progress", response);
    for (replay.item_idx = 0; output != NULL && replay.item_idx < output->n; replay.item_idx++) {
        replay.item = &output->items[replay.item_idx];
        replay_item(&replay);
    }
    replay_response(&replay,
                    json_is_text(json_get(response, "status"), "incomplete") ? "response.incomplete"
                                                                             : "response.completed",
                    response);
}
