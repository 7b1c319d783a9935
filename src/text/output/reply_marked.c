/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of the reply parser inside the arguments of a call of Gemma 4. They are written like JSON,
 * but keys stand without quotes, and a string stands between marks, without escapes:
 *
 *     {city:<|"|>Oslo<|"|>,days:3,tags:[<|"|>a<|"|>,true],at:{x:1.5}}
 *
 * Strings of JSON are read, too: models write them, and so do grammars of nested values. A member
 * is emitted when it is complete. */
#include <string.h>

#include "base/must.h"
#include "text/output/reply_parts.h"

#define MARK             "<|\"|>"
#define MARKED_DEPTH_MAX 64 /* of brackets inside a value */

/* --- from values to JSON ------------------------------------------------------------------ */

struct marked {
    const char *at, *end;
};

static void reply_marked_space(struct marked *m)
{
    while (m->at < m->end && reply_is_space(*m->at))
        m->at++;
}

static bool reply_marked_at(const struct marked *m, const char *tag)
{
    size_t n = strlen(tag);

    return (size_t)(m->end - m->at) >= n && memcmp(m->at, tag, n) == 0;
}

/* Append a string between marks. */
static bool reply_marked_text(struct marked *m, struct buf *out)
{
    const char *from = m->at += strlen(MARK);

    while (m->at < m->end && !reply_marked_at(m, MARK))
        m->at++;
    if (m->at == m->end)
        return false;
    buf_add_json_string(out, from, (size_t)(m->at - from));
    m->at += strlen(MARK);
    return true;
}

/* Append a string of JSON. */
static bool reply_marked_json(struct marked *m, struct buf *out)
{
    const char *from = m->at++;

    while (m->at < m->end && *m->at != '"')
        m->at += *m->at == '\\' && m->end - m->at > 1 ? 2 : 1;
    if (m->at == m->end)
        return false;
    m->at++;
    return reply_add_json(out, from, (size_t)(m->at - from), false);
}

/* Append a key, or a value without brackets, that ends before one of these characters. A key is a
 * string; without quotes a value is what JSON reads in it, or else a string. */
static bool reply_marked_word(struct marked *m, struct buf *out, const char *ends, bool is_key)
{
    const char *from = m->at;
    size_t n;

    if (reply_marked_at(m, MARK))
        return reply_marked_text(m, out);
    if (m->at < m->end && *m->at == '"')
        return reply_marked_json(m, out);
    while (m->at < m->end && strchr(ends, *m->at) == NULL)
        m->at++;
    n = (size_t)(m->at - from);
    while (n > 0 && reply_is_space(from[n - 1]))
        n--;
    if (n == 0)
        return false;
    if (!is_key && n == 4 && memcmp(from, "None", 4) == 0) /* templates print it so */
        buf_add_text(out, "null");
    else if (is_key || !reply_add_json(out, from, n, true))
        buf_add_json_string(out, from, n);
    return true;
}

/* Append a key and its colon. */
static bool reply_marked_key(struct marked *m, struct buf *out)
{
    if (!reply_marked_word(m, out, ":,{}[]", true))
        return false;
    reply_marked_space(m);
    if (m->at == m->end || *m->at++ != ':')
        return false;
    buf_add_text(out, ": ");
    return true;
}

/* Where a value is read: after an opening bracket or before everything, after a comma, after a
 * value. */
enum marked_state { MARKED_FIRST, MARKED_NEXT, MARKED_AFTER };

/* Append a value's opening bracket, or all of a value without brackets; in an object its key comes
 * first. */
static bool reply_marked_begin(struct marked *m, struct buf *out, char *stack, int *depth,
                               enum marked_state *state)
{
    if (*depth > 0 && stack[*depth - 1] == '}' && !reply_marked_key(m, out))
        return false;
    reply_marked_space(m);
    *state = MARKED_AFTER;
    if (m->at == m->end || (*m->at != '{' && *m->at != '['))
        return reply_marked_word(m, out, ",{}[]", false);
    if (*depth == MARKED_DEPTH_MAX)
        return false;
    buf_add_byte(out, *m->at);
    stack[(*depth)++] = *m->at++ == '{' ? '}' : ']';
    *state = MARKED_FIRST;
    return true;
}

/* Append one value without recursion; stack has the closing bracket of each open level. */
static bool reply_marked_value(struct marked *m, struct buf *out)
{
    char stack[MARKED_DEPTH_MAX];
    enum marked_state state = MARKED_FIRST;
    int depth = 0;

    do { /* each pass takes a byte or ends */
        bool closes;

        reply_marked_space(m);
        closes = depth > 0 && m->at < m->end && *m->at == stack[depth - 1];
        if (closes && state != MARKED_NEXT) {
            buf_add_byte(out, *m->at++);
            depth--;
            state = MARKED_AFTER;
        } else if (state != MARKED_AFTER) {
            if (!reply_marked_begin(m, out, stack, &depth, &state))
                return false;
        } else {
            if (m->at == m->end || *m->at++ != ',')
                return false;
            buf_add_text(out, ", ");
            state = MARKED_NEXT;
        }
    } while (depth > 0 || state != MARKED_AFTER);
    return true;
}

/* Append a member, "key: value". A value that cannot be read is a string. False when there is no
 * key. */
static bool reply_add_marked(struct buf *out, const char *text, size_t len)
{
    struct marked m = {text, text + len};
    size_t from;

    reply_marked_space(&m);
    if (!reply_marked_key(&m, out))
        return false;
    reply_marked_space(&m);
    text = m.at;
    from = out->len;
    if (reply_marked_value(&m, out)) {
        reply_marked_space(&m);
        if (m.at == m.end)
            return true;
    }
    out->len = from;
    buf_add_json_string(out, text, (size_t)(m.end - text));
    return true;
}

/* --- the step ----------------------------------------------------------------------------- */

/* Emit the member in reply->value. Text without a key is dropped: white space before the end, or a
 * comma too many. */
static void reply_say_member(struct reply *reply)
{
    struct buf member = {0};

    buf_add_text(&member, reply->has_args ? ", " : "");
    if (reply->value.len > 0 && reply_add_marked(&member, reply->value.bytes, reply->value.len)) {
        reply_say(reply, REPLY_CALL_ARGS, member.bytes, member.len);
        reply->has_args = true;
    }
    reply->in.failed = reply->in.failed || member.failed;
    buf_fini(&member);
    buf_clear(&reply->value);
}

/* The last character that is not white space of the member so far; ',' when there is none. */
static char reply_marked_last(const struct reply *reply)
{
    size_t n = reply->value.len;

    while (n > 0 && reply_is_space(reply->value.bytes[n - 1]))
        n--;
    return n == 0 ? ',' : reply->value.bytes[n - 1];
}

/* Take a character outside of strings. True when the arguments end with it. */
static bool reply_take_marked(struct reply *reply)
{
    char c = *reply_in(reply);

    reply_take(reply, 1);
    if (reply->depth == 0 && (c == ',' || c == '}')) {
        reply_say_member(reply);
        return c == '}';
    }
    if (c == '{' || c == '[')
        reply->depth++;
    else if (c == '}' || c == ']')
        reply->depth--;
    else if (c == '"' && strchr(":,{[", reply_marked_last(reply)) != NULL)
        reply->in_text = true;
    if (reply->depth < 0)
        reply->depth = 0;
    buf_add(&reply->value, &c, 1);
    return false;
}

/* Take a character inside a string of JSON. */
static void reply_take_quoted(struct reply *reply)
{
    char c = *reply_in(reply);

    reply_take(reply, 1);
    buf_add(&reply->value, &c, 1);
    if (reply->escaped)
        reply->escaped = false;
    else if (c == '\\')
        reply->escaped = true;
    else if (c == '"')
        reply->in_text = false;
}

/* Inside a string between marks: take text up to the second one. */
static bool reply_take_mark(struct reply *reply)
{
    static const char *const mark = MARK;
    size_t before;
    int found = reply_find(reply, &mark, 1, &before);

    if (found == 0)
        before += strlen(MARK);
    buf_add(&reply->value, reply_in(reply), before);
    reply_take(reply, before);
    reply->in_mark = found < 0;
    return found == 0;
}

/* Collect members up to the bracket that ends them. The closing tag of the call ends them, too,
 * because models forget the bracket. */
bool reply_step_marked(struct reply *reply)
{
    const char *close = reply_formats[reply->o.format].close;
    bool ends = false;

    while (!ends && reply_left(reply) > 0) {
        enum match mark, end;

        if (reply->in_text) {
            reply_take_quoted(reply);
            continue;
        }
        if (reply->in_mark) {
            if (!reply_take_mark(reply))
                return false;
            continue;
        }
        mark = reply_match(reply, 0, MARK);
        end = reply_match(reply, 0, close);
        if (mark == MATCH_MAYBE || end == MATCH_MAYBE)
            return false;
        if (mark == MATCH_YES) {
            buf_add(&reply->value, MARK, strlen(MARK));
            reply_take(reply, strlen(MARK));
            reply->in_mark = true;
        } else if (end == MATCH_YES) {
            reply_say_member(reply);
            ends = true;
        } else {
            ends = reply_take_marked(reply);
        }
    }
    if (!ends)
        return false;
    reply_say(reply, REPLY_CALL_ARGS, "}", 1);
    reply_end_call(reply, REPLY_AT_CLOSE);
    return true;
}
