/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of the reply parser inside JSON: the arguments of a call, and calls that are JSON objects
 * themselves, {"name": "f", "arguments": {...}}. The text is not parsed as JSON but scanned for
 * strings and brackets, so that arguments can be emitted while they come. */
#include <string.h>

#include "text/output/reply_parts.h"

/* --- arguments as JSON -------------------------------------------------------------------- */

/* The number of pending bytes that belong to the JSON value being read; *ends reports whether it
 * ends there. Kinds of brackets are not distinguished: text in which they do not match is no valid
 * JSON in any case, and the client gets it as the model wrote it. */
static size_t reply_scan_value(struct reply *reply, bool *ends)
{
    size_t i;

    *ends = false;
    for (i = 0; i < reply_left(reply) && !*ends; i++) {
        char c = reply_in(reply)[i];

        /* Inside of a string only a quote without a backslash before it matters; brackets do not
         * count. */
        if (reply->in_text) {
            if (reply->escaped)
                reply->escaped = false;
            else if (c == '\\')
                reply->escaped = true;
            else if (c == '"')
                reply->in_text = false;
        } else if (c == '"') {
            reply->in_text = true;
        } else if (c == '{' || c == '[') {
            reply->depth++;
        } else if (c == '}' || c == ']') {
            reply->depth--;
        }
        /* Depth 0 after a bracket or quote closes the value. */
        *ends = !reply->in_text && reply->depth == 0;
    }
    return i;
}

/* Expect a value whose state is kept in depth, in_text and escaped. */
static void reply_begin_value(struct reply *reply, int state)
{
    reply->depth = 0;
    reply->in_text = reply->escaped = false;
    reply->state = state;
}

/* Arguments must be an object; anything else means that this was no call. */
bool reply_step_args_begin(struct reply *reply)
{
    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    if (reply_left(reply) == 0 || *reply_in(reply) != '{') {
        reply_fail_call(reply);
        return true;
    }
    reply_say_call(reply, reply->name.bytes, reply->name.len);
    reply_begin_value(reply, REPLY_IN_ARGS);
    return true;
}

/* Inside arguments: emit them as they come. */
bool reply_step_args(struct reply *reply)
{
    bool is_object = reply_formats[reply->o.format].args == ARGS_OBJECT || reply->in_list, ends;
    size_t n = reply_scan_value(reply, &ends);

    /* Arguments are emitted byte by byte as the model writes them: they are JSON already, so
     * nothing has to be converted, and the client sees them at once. */
    reply_say(reply, REPLY_CALL_ARGS, reply_in(reply), n);
    reply->at += n;
    if (!ends)
        return false;
    reply->has_args = true;
    /* In {"name": ..., "arguments": {...}} the object of the call is still open after its
     * arguments. In other formats the call ends with them. */
    if (is_object)
        reply->state = REPLY_AT_KEY;
    else
        reply_end_call(reply, REPLY_AT_CLOSE);
    return true;
}

/* After the arguments: skip white space, the end of a ```json fence and the closing tag. A missing
 * closing tag is accepted, because models forget it. */
bool reply_step_close(struct reply *reply)
{
    const char *close = reply_formats[reply->o.format].close;
    enum match match;

    while (reply_left(reply) > 0 && (reply_is_space(*reply_in(reply)) || *reply_in(reply) == '`'))
        reply->at++;
    /* At the end of the reply nothing is left to skip, and the call is complete already. */
    if (reply_left(reply) == 0)
        return false;
    if (close == NULL)
        match = MATCH_NO;
    else
        match = reply_match(reply, 0, close);
    if (match == MATCH_MAYBE)
        return false;
    if (match == MATCH_YES)
        reply->at += strlen(close);
    reply->state = REPLY_BETWEEN;
    return true;
}

/* --- a call as a JSON object -------------------------------------------------------------- */

/* At the opening tag: the next character must be the '{' of the call's object. Otherwise the tag
 * was part of the text. */
bool reply_step_object(struct reply *reply)
{
    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    if (reply_left(reply) == 0 || *reply_in(reply) != '{') {
        reply_fail_call(reply);
        return true;
    }
    reply_take(reply, 1);
    reply->state = REPLY_AT_KEY;
    return true;
}

/* Arguments that came as a text, or before the name. */
static void reply_say_early_args(struct reply *reply)
{
    const struct json *value = NULL;
    struct arena arena = {.limit_bytes = (size_t)64 << 20};

    /* Arguments as an object are emitted as they were written. Arguments as a JSON string hold
     * JSON once more, quoted: "{\"city\": \"Oslo\"}", so their quotes are removed. Anything
     * else, as in a call without arguments, becomes the empty object. */
    if (reply->value.len > 0 && reply->value.bytes[0] != '"') {
        reply_say(reply, REPLY_CALL_ARGS, reply->value.bytes, reply->value.len);
    } else if (reply->value.len > 0 && json_parse(&value, &arena, reply->value.bytes,
                                                  reply->value.len, NULL, 0) == ERR_OK) {
        reply_say(reply, REPLY_CALL_ARGS, value->text, value->text_len);
    } else {
        reply_say(reply, REPLY_CALL_ARGS, "{}", 2);
    }
    arena_reset(&arena);
}

static void reply_end_object(struct reply *reply)
{
    reply->at++; /* not reply_take(): the brace must not become a part of raw */
    if (!reply->is_said) {
        reply_say_call(reply, reply->name.bytes, reply->name.len);
        reply_say_early_args(reply);
    }
    reply_end_call(reply, reply->in_list ? REPLY_IN_LIST : REPLY_AT_CLOSE);
}

/* Between members: a comma, the quote of the next name, or the end of the object. Commas are not
 * counted, because models forget or repeat them. An error in a call that was emitted ends it; one
 * that is only suspected becomes content. */
bool reply_step_key(struct reply *reply)
{
    char c;

    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    /* The end of the reply is treated as a NUL, which begins nothing: the call then ends or
     * fails below. */
    if (reply_left(reply) == 0)
        c = '\0';
    else
        c = *reply_in(reply);
    if (c == ',') {
        reply_take(reply, 1);
    } else if (c == '"') {
        reply_take(reply, 1);
        buf_clear(&reply->key);
        reply->state = REPLY_IN_KEY;
    } else if (c == '}' && (reply->is_said || reply->has_name)) {
        /* Only a call with a name can end well. An object without one is content that looks like a
         * call. */
        reply_end_object(reply);
    } else if (reply->is_said) {
        reply_end_call(reply, REPLY_AT_CLOSE);
    } else {
        reply_fail_call(reply);
    }
    return true;
}

static bool reply_is_key(const struct reply *reply, const char *name)
{
    return reply->key.len == strlen(name) && memcmp(reply->key.bytes, name, reply->key.len) == 0;
}

static bool reply_is_args_key(const struct reply *reply)
{
    return reply_is_key(reply, "arguments") || reply_is_key(reply, "parameters");
}

/* A reply in JSON that is no call is content, and is not to be kept back for long. */
static bool reply_is_strange(const struct reply *reply)
{
    return reply->o.format == REPLY_LLAMA3 && !reply_is_key(reply, "name") &&
           !reply_is_args_key(reply) && !reply_is_key(reply, "type") && !reply_is_key(reply, "id");
}

/* The inside of a JSON text, as it is written, up to its quote. */
static bool reply_take_text(struct reply *reply, struct buf *to)
{
    size_t n = 0;
    bool ends = false;

    /* The quote that ends the text may be in a later piece, hence `escaped` is kept in the
     * reply: a piece may end between a backslash and the character after it. */
    for (; n < reply_left(reply) && !ends; n++) {
        char c = reply_in(reply)[n];

        ends = c == '"' && !reply->escaped;
        reply->escaped = c == '\\' && !reply->escaped;
    }
    buf_add(to, reply_in(reply), ends ? n - 1 : n);
    reply_take(reply, n);
    return ends;
}

/* Inside of a member's name. A name that no call has shows that the object is not a call. */
bool reply_step_in_key(struct reply *reply)
{
    if (!reply_take_text(reply, &reply->key)) {
        if (reply->ended && !reply->is_said)
            reply_fail_call(reply);
        return reply->ended && !reply->is_said;
    }
    reply->state = REPLY_AT_COLON;
    if (!reply->is_said && reply_is_strange(reply))
        reply_fail_call(reply);
    return true;
}

bool reply_step_colon(struct reply *reply)
{
    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    if (reply_left(reply) > 0 && *reply_in(reply) == ':')
        reply_take(reply, 1);
    reply->state = REPLY_AT_VALUE;
    return true;
}

/* After the colon. "name" is kept; arguments are emitted as they come if the name is known, and
 * kept until the name follows if not; every other value is skipped. */
bool reply_step_value(struct reply *reply)
{
    char c;

    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    /* As in reply_step_key(), a NUL is the end of the reply. */
    if (reply_left(reply) == 0)
        c = '\0';
    else
        c = *reply_in(reply);
    if (c == '\0' && !reply->is_said) {
        reply_fail_call(reply);
    } else if (reply_is_key(reply, "name") && c == '"' && !reply->is_said) {
        reply_take(reply, 1);
        buf_clear(&reply->name);
        reply->escaped = false;
        reply->state = REPLY_IN_NAMED;
    } else if (reply_is_args_key(reply) && !reply->is_said && (c == '{' || c == '"')) {
        /* Without the name, the call cannot be announced yet, and arguments before it would be
         * of no use to a client: they are collected in `value`. */
        if (c == '{' && reply->has_name)
            reply_say_call(reply, reply->name.bytes, reply->name.len);
        buf_clear(&reply->value);
        reply_begin_value(reply, reply->is_said ? REPLY_IN_ARGS : REPLY_IN_EARLY);
    } else {
        reply_begin_value(reply, REPLY_IN_OTHER);
    }
    return true;
}

/* Inside of the function's name. */
bool reply_step_named(struct reply *reply)
{
    if (!reply_take_text(reply, &reply->name)) {
        if (reply->ended)
            reply_fail_call(reply);
        return reply->ended;
    }
    reply->has_name = reply_is_name(&reply->name);
    reply->state = REPLY_AT_KEY;
    return true;
}

/* Inside of arguments that came before the name. They are kept, because the event that begins a
 * call needs the name. */
bool reply_step_early(struct reply *reply)
{
    bool ends;
    size_t n = reply_scan_value(reply, &ends);

    buf_add(&reply->value, reply_in(reply), n);
    reply_take(reply, n);
    if (ends)
        reply->state = REPLY_AT_KEY;
    else if (reply->ended)
        reply_fail_call(reply);
    return ends || reply->ended;
}

/* Skip the value of a member that is ignored. A number or a word ends before a separator. */
bool reply_step_other(struct reply *reply)
{
    bool ends = false;
    size_t n = 0;

    /* Outside of strings and brackets a value is a word, which a separator ends. */
    while (n < reply_left(reply) && !ends) {
        char c = reply_in(reply)[n];

        if (reply->depth == 0 && !reply->in_text && (c == ',' || c == '}'))
            break;
        if (reply->depth == 0 && !reply->in_text && c != '"' && c != '{' && c != '[') {
            n++;
            continue;
        }
        reply_take(reply, n);
        n = reply_scan_value(reply, &ends);
    }
    reply_take(reply, n);
    if (ends || reply_left(reply) > 0)
        reply->state = REPLY_AT_KEY;
    else if (reply->ended && !reply->is_said)
        reply_fail_call(reply);
    return ends || reply_left(reply) > 0 ||
           (reply->ended && !reply->is_said && reply->state == REPLY_IN_TEXT);
}

/* Between the calls of a list such as [{"name": ...}, {"name": ...}]: the next object, or the
 * end. */
bool reply_step_list(struct reply *reply)
{
    char c;

    while (reply_left(reply) > 0 && (reply_is_space(*reply_in(reply)) || *reply_in(reply) == ','))
        reply_take(reply, 1);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    if (reply_left(reply) == 0)
        c = '\0';
    else
        c = *reply_in(reply);
    /* The first object belongs to the call that the bracket began; a call is begun for each
     * later one. */
    if (c == '{') {
        if (reply->n_calls > 0 && reply->raw.len == 0)
            reply_begin_call(reply, REPLY_AT_OBJECT, 0);
        reply->in_list = true;
        reply->has_name = reply->has_args = false;
        reply->state = REPLY_AT_OBJECT;
    } else if (c == ']' && reply->n_calls > 0) {
        reply->at++;
        reply->state = REPLY_BETWEEN;
    } else if (reply->raw.len > 0) {
        /* Text other than an object: as long as the call is only suspected, the bracket was an
         * ordinary one and all of it is content. */
        reply_fail_call(reply);
    } else {
        reply->state = REPLY_BETWEEN;
    }
    return true;
}
