/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a reply inside JSON: the arguments of a call, and a call that is an object itself. */
#include <string.h>

#include "text/output/reply_parts.h"

/* --- arguments as JSON -------------------------------------------------------------------- */

/* How much of what is left belongs to the JSON value that is being read; *ends when it ends there.
 * Brackets are not told apart: who writes the wrong one has written no JSON anyway. */
static size_t scan_value(struct reply *r, bool *ends)
{
    size_t i;

    *ends = false;
    for (i = 0; i < reply_left(r) && !*ends; i++) {
        char c = reply_in(r)[i];

        if (r->in_text) {
            if (r->escaped)
                r->escaped = false;
            else if (c == '\\')
                r->escaped = true;
            else if (c == '"')
                r->in_text = false;
        } else if (c == '"') {
            r->in_text = true;
        } else if (c == '{' || c == '[') {
            r->depth++;
        } else if (c == '}' || c == ']') {
            r->depth--;
        }
        *ends = !r->in_text && r->depth == 0;
    }
    return i;
}

static void begin_value(struct reply *r, int state)
{
    r->depth = 0;
    r->in_text = r->escaped = false;
    r->state = state;
}

bool reply_step_args_begin(struct reply *r)
{
    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    if (reply_left(r) == 0 || *reply_in(r) != '{') {
        reply_fail_call(r);
        return true;
    }
    reply_say_call(r, r->name.bytes, r->name.len);
    begin_value(r, REPLY_IN_ARGS);
    return true;
}

bool reply_step_args(struct reply *r)
{
    bool is_object = reply_formats[r->o.format].args == ARGS_OBJECT || r->in_list, ends;
    size_t n = scan_value(r, &ends);

    reply_say(r, REPLY_CALL_ARGS, reply_in(r), n);
    r->at += n;
    if (!ends)
        return false;
    r->has_args = true;
    if (is_object)
        r->state = REPLY_AT_KEY;
    else
        reply_end_call(r, REPLY_AT_CLOSE);
    return true;
}

bool reply_step_close(struct reply *r)
{
    const char *close = reply_formats[r->o.format].close;
    enum match m;

    while (reply_left(r) > 0 && (reply_is_space(*reply_in(r)) || *reply_in(r) == '`'))
        r->at++;
    if (reply_left(r) == 0)
        return false;
    m = close == NULL ? MATCH_NO : reply_match(r, 0, close);
    if (m == MATCH_MAYBE)
        return false;
    if (m == MATCH_YES)
        r->at += strlen(close);
    r->state = REPLY_BETWEEN;
    return true;
}

/* --- a call as a JSON object -------------------------------------------------------------- */

bool reply_step_object(struct reply *r)
{
    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    if (reply_left(r) == 0 || *reply_in(r) != '{') {
        reply_fail_call(r);
        return true;
    }
    reply_take(r, 1);
    r->state = REPLY_AT_KEY;
    return true;
}

/* Arguments that came as a text, or before the name. */
static void say_early_args(struct reply *r)
{
    const struct json *v = NULL;
    struct arena arena = {.limit_bytes = (size_t)64 << 20};

    if (r->value.len > 0 && r->value.bytes[0] != '"') {
        reply_say(r, REPLY_CALL_ARGS, r->value.bytes, r->value.len);
    } else if (r->value.len > 0 &&
               json_parse(&v, &arena, r->value.bytes, r->value.len, NULL, 0) == ERR_OK) {
        reply_say(r, REPLY_CALL_ARGS, v->text, v->text_len);
    } else {
        reply_say(r, REPLY_CALL_ARGS, "{}", 2);
    }
    arena_reset(&arena);
}

static void end_object(struct reply *r)
{
    r->at++; /* what was taken of a call that is said is not kept */
    if (!r->is_said) {
        reply_say_call(r, r->name.bytes, r->name.len);
        say_early_args(r);
    }
    reply_end_call(r, r->in_list ? REPLY_IN_LIST : REPLY_AT_CLOSE);
}

bool reply_step_key(struct reply *r)
{
    char c;

    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    c = reply_left(r) == 0 ? '\0' : *reply_in(r);
    if (c == ',') {
        reply_take(r, 1);
    } else if (c == '"') {
        reply_take(r, 1);
        buf_clear(&r->key);
        r->state = REPLY_IN_KEY;
    } else if (c == '}' && (r->is_said || r->has_name)) {
        end_object(r);
    } else if (r->is_said) {
        reply_end_call(r, REPLY_AT_CLOSE);
    } else {
        reply_fail_call(r);
    }
    return true;
}

static bool is_key(const struct reply *r, const char *name)
{
    return r->key.len == strlen(name) && memcmp(r->key.bytes, name, r->key.len) == 0;
}

static bool is_args_key(const struct reply *r)
{
    return is_key(r, "arguments") || is_key(r, "parameters");
}

/* A reply in JSON that is no call is content, and is not to be kept back for long. */
static bool is_strange(const struct reply *r)
{
    return r->o.format == REPLY_LLAMA3 && !is_key(r, "name") && !is_args_key(r) &&
           !is_key(r, "type") && !is_key(r, "id");
}

/* The inside of a JSON text, as it is written, up to its quote. */
static bool take_text(struct reply *r, struct buf *to)
{
    size_t n = 0;
    bool ends = false;

    for (; n < reply_left(r) && !ends; n++) {
        char c = reply_in(r)[n];

        ends = c == '"' && !r->escaped;
        r->escaped = c == '\\' && !r->escaped;
    }
    buf_add(to, reply_in(r), ends ? n - 1 : n);
    reply_take(r, n);
    return ends;
}

bool reply_step_in_key(struct reply *r)
{
    if (!take_text(r, &r->key)) {
        if (r->ended && !r->is_said)
            reply_fail_call(r);
        return r->ended && !r->is_said;
    }
    r->state = REPLY_AT_COLON;
    if (!r->is_said && is_strange(r))
        reply_fail_call(r);
    return true;
}

bool reply_step_colon(struct reply *r)
{
    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    if (reply_left(r) > 0 && *reply_in(r) == ':')
        reply_take(r, 1);
    r->state = REPLY_AT_VALUE;
    return true;
}

bool reply_step_value(struct reply *r)
{
    char c;

    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    c = reply_left(r) == 0 ? '\0' : *reply_in(r);
    if (c == '\0' && !r->is_said) {
        reply_fail_call(r);
    } else if (is_key(r, "name") && c == '"' && !r->is_said) {
        reply_take(r, 1);
        buf_clear(&r->name);
        r->escaped = false;
        r->state = REPLY_IN_NAMED;
    } else if (is_args_key(r) && !r->is_said && (c == '{' || c == '"')) {
        if (c == '{' && r->has_name)
            reply_say_call(r, r->name.bytes, r->name.len);
        buf_clear(&r->value);
        begin_value(r, r->is_said ? REPLY_IN_ARGS : REPLY_IN_EARLY);
    } else {
        begin_value(r, REPLY_IN_OTHER);
    }
    return true;
}

bool reply_step_named(struct reply *r)
{
    if (!take_text(r, &r->name)) {
        if (r->ended)
            reply_fail_call(r);
        return r->ended;
    }
    r->has_name = reply_is_name(&r->name);
    r->state = REPLY_AT_KEY;
    return true;
}

bool reply_step_early(struct reply *r)
{
    bool ends;
    size_t n = scan_value(r, &ends);

    buf_add(&r->value, reply_in(r), n);
    reply_take(r, n);
    if (ends)
        r->state = REPLY_AT_KEY;
    else if (r->ended)
        reply_fail_call(r);
    return ends || r->ended;
}

/* A number or a word ends before what parts members. */
bool reply_step_other(struct reply *r)
{
    bool ends = false;
    size_t n = 0;

    while (n < reply_left(r) && !ends) {
        char c = reply_in(r)[n];

        if (r->depth == 0 && !r->in_text && (c == ',' || c == '}'))
            break;
        if (r->depth == 0 && !r->in_text && c != '"' && c != '{' && c != '[') {
            n++;
            continue;
        }
        reply_take(r, n);
        n = scan_value(r, &ends);
    }
    reply_take(r, n);
    if (ends || reply_left(r) > 0)
        r->state = REPLY_AT_KEY;
    else if (r->ended && !r->is_said)
        reply_fail_call(r);
    return ends || reply_left(r) > 0 || (r->ended && !r->is_said && r->state == REPLY_IN_TEXT);
}

bool reply_step_list(struct reply *r)
{
    char c;

    while (reply_left(r) > 0 && (reply_is_space(*reply_in(r)) || *reply_in(r) == ','))
        reply_take(r, 1);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    c = reply_left(r) == 0 ? '\0' : *reply_in(r);
    if (c == '{') {
        if (r->n_calls > 0 && r->raw.len == 0)
            reply_begin_call(r, REPLY_AT_OBJECT, 0);
        r->in_list = true;
        r->has_name = r->has_args = false;
        r->state = REPLY_AT_OBJECT;
    } else if (c == ']' && r->n_calls > 0) {
        r->at++;
        r->state = REPLY_BETWEEN;
    } else if (r->raw.len > 0) {
        reply_fail_call(r);
    } else {
        r->state = REPLY_BETWEEN;
    }
    return true;
}
