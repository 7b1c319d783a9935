/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a reply inside tags: parameters of a call, a list of calls in Python, and the messages
 * of harmony. */
#include <string.h>

#include "text/output/reply_parts.h"

/* --- parameters in tags ------------------------------------------------------------------- */

static const char *param_open(const struct reply *r)
{
    return r->o.format == REPLY_GLM45 ? "<arg_key>" : "<parameter=";
}

static const char *param_name_end(const struct reply *r)
{
    return r->o.format == REPLY_GLM45 ? "</arg_key>" : ">";
}

static const char *value_end(const struct reply *r)
{
    return r->o.format == REPLY_GLM45 ? "</arg_value>" : "</parameter>";
}

bool reply_step_param(struct reply *r)
{
    const char *call_end = r->o.format == REPLY_GLM45 ? "</tool_call>" : "</function>";
    enum match m;

    reply_take_space(r);
    if (reply_left(r) == 0)
        return false;
    m = reply_match(r, 0, param_open(r));
    if (m == MATCH_YES) {
        reply_take(r, strlen(param_open(r)));
        buf_clear(&r->key);
        r->state = REPLY_IN_PARAM;
        return true;
    }
    if (m == MATCH_NO)
        m = reply_match(r, 0, call_end);
    if (m == MATCH_MAYBE)
        return false;
    if (m == MATCH_YES && r->o.format != REPLY_GLM45)
        reply_take(r, strlen(call_end));
    reply_say(r, REPLY_CALL_ARGS, "}", 1);
    reply_end_call(r, REPLY_AT_CLOSE);
    return true;
}

bool reply_step_in_param(struct reply *r)
{
    const char *end = param_name_end(r);
    size_t before;
    int found = reply_find(r, &end, 1, &before);

    buf_add(&r->key, reply_in(r), before);
    reply_take(r, before);
    if (found < 0)
        return false;
    reply_take(r, strlen(end));
    buf_clear(&r->value);
    r->state = r->o.format == REPLY_GLM45 ? REPLY_BEFORE_VALUE : REPLY_IN_VALUE;
    return true;
}

bool reply_step_before_value(struct reply *r)
{
    enum match m;

    reply_take_space(r);
    if (reply_left(r) == 0)
        return false;
    m = reply_match(r, 0, "<arg_value>");
    if (m == MATCH_MAYBE)
        return false;
    if (m == MATCH_YES)
        reply_take(r, strlen("<arg_value>"));
    r->state = m == MATCH_YES ? REPLY_IN_VALUE : REPLY_AT_PARAM;
    return true;
}

bool reply_step_in_value(struct reply *r)
{
    const char *end = value_end(r);
    struct buf member = {0};
    size_t before;
    int found = reply_find(r, &end, 1, &before);

    buf_add(&r->value, reply_in(r), before);
    reply_take(r, before);
    if (found < 0)
        return false;
    reply_take(r, strlen(end));
    buf_add_text(&member, r->has_args ? ", " : "");
    buf_add_json_string(&member, r->key.len == 0 ? "" : r->key.bytes, r->key.len);
    buf_add_text(&member, ": ");
    reply_add_value(&member, r->o.tools, &r->name, &r->key, &r->value, r->o.format == REPLY_GLM45);
    reply_say(r, REPLY_CALL_ARGS, member.bytes, member.len);
    r->in.failed = r->in.failed || member.failed;
    r->has_args = true;
    r->state = REPLY_AT_PARAM;
    buf_fini(&member);
    return true;
}

/* --- calls in Python ---------------------------------------------------------------------- */

bool reply_step_python(struct reply *r)
{
    const char *end = "<|python_end|>";
    size_t before;
    int found;

    /* Byte by byte until it is one, so that the cut of the text does not show. */
    while (!r->has_name && reply_left(r) > 0) {
        r->has_name = *reply_in(r) == '(';
        reply_take(r, 1);
        if (!reply_may_be_python(r->raw.bytes, r->raw.len)) {
            reply_fail_call(r);
            return true;
        }
    }
    found = reply_find(r, &end, 1, &before);
    reply_take(r, before);
    if (found < 0 && !r->ended)
        return false;
    if (found == 0)
        r->at += strlen(end);
    if (!reply_say_python(r, r->raw.len == 0 ? "" : r->raw.bytes, r->raw.len)) {
        reply_fail_call(r);
        return true;
    }
    r->state = REPLY_BETWEEN;
    return true;
}

/* --- harmony ------------------------------------------------------------------------------ */

/* The word behind a mark in a header: what stands up to white space or the next tag. */
static size_t header_word(const struct buf *h, const char *mark, const char **word)
{
    const char *at = h->len == 0 ? NULL : strstr(h->bytes, mark);
    size_t n;

    if (at == NULL)
        return 0;
    at += strlen(mark);
    n = strcspn(at, " \t\r\n<");
    *word = at;
    return n;
}

/* `<|channel|>NAME to=functions.F <|constrain|>json<|message|>`; the recipient may stand first. */
bool reply_step_header(struct reply *r)
{
    const char *end = "<|message|>", *word = "";
    size_t before, n;
    int found = reply_find(r, &end, 1, &before);

    buf_add(&r->name, reply_in(r), before);
    r->at += before;
    if (found < 0 && r->ended && r->name.len > 0) {
        reply_say_content(r, r->name.bytes, r->name.len); /* no message at all */
        buf_clear(&r->name);
    }
    if (found < 0)
        return false;
    r->at += strlen(end);
    r->is_said = false;
    r->at_message = true;
    n = header_word(&r->name, "to=functions.", &word);
    if (n > 0) {
        reply_say_call(r, word, n);
        r->state = REPLY_IN_MESSAGE_ARGS;
    } else {
        n = header_word(&r->name, "<|channel|>", &word);
        r->state = n == 8 && memcmp(word, "analysis", 8) == 0 ? REPLY_IN_MESSAGE_REASON
                                                              : REPLY_IN_MESSAGE_TEXT;
    }
    buf_clear(&r->name);
    return true;
}

bool reply_step_message(struct reply *r)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>",
                                       "<|channel|>"};
    size_t before;
    int found = reply_find(r, ends, 5, &before);

    if (r->state == REPLY_IN_MESSAGE_REASON)
        reply_say_reason(r, reply_in(r), before);
    else if (r->state == REPLY_IN_MESSAGE_TEXT)
        reply_say_content(r, reply_in(r), before);
    else
        reply_say(r, REPLY_CALL_ARGS, reply_in(r), before);
    r->at += before;
    r->at_message = r->at_message && before == 0;
    if (found < 0)
        return false;
    if (found < 3)
        r->at += strlen(ends[found]);
    if (r->state == REPLY_IN_MESSAGE_REASON)
        reply_end_reason(r);
    if (r->state == REPLY_IN_MESSAGE_ARGS)
        reply_end_call(r, REPLY_IN_HEADER);
    r->state = REPLY_IN_HEADER;
    return true;
}
