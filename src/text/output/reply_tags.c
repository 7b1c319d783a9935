/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of the reply parser inside tags: the parameters of a call, a list of calls in Python, and
 * the messages of harmony (the format of gpt-oss). */
#include <string.h>

#include "text/output/reply_parts.h"

/* --- parameters in tags ------------------------------------------------------------------- */

/* Two formats write each parameter in tags:
 *
 *     Qwen3-Coder  <function=f><parameter=k>v</parameter></function></tool_call>
 *     GLM 4.5      <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>
 *
 * Each parameter becomes a member of the JSON object of arguments when its closing tag has come:
 * before that its type cannot be decided. */
static const char *reply_param_open(const struct reply *reply)
{
    if (reply->o.format == REPLY_GLM45)
        return "<arg_key>";
    return "<parameter=";
}

static const char *reply_param_name_end(const struct reply *reply)
{
    if (reply->o.format == REPLY_GLM45)
        return "</arg_key>";
    return ">";
}

static const char *reply_value_end(const struct reply *reply)
{
    if (reply->o.format == REPLY_GLM45)
        return "</arg_value>";
    return "</parameter>";
}

/* Between parameters: the next one, or the end of the call. */
bool reply_step_param(struct reply *reply)
{
    const char *call_end = reply->o.format == REPLY_GLM45 ? "</tool_call>" : "</function>";
    enum match match;

    reply_take_space(reply);
    if (reply_left(reply) == 0)
        return false;
    match = reply_match(reply, 0, reply_param_open(reply));
    if (match == MATCH_YES) {
        reply_take(reply, strlen(reply_param_open(reply)));
        buf_clear(&reply->key);
        reply->state = REPLY_IN_PARAM;
        return true;
    }
    if (match == MATCH_NO)
        match = reply_match(reply, 0, call_end);
    if (match == MATCH_MAYBE)
        return false;
    /* GLM's closing tag is that of the call, which the next state consumes. */
    if (match == MATCH_YES && reply->o.format != REPLY_GLM45)
        reply_take(reply, strlen(call_end));
    reply_say(reply, REPLY_CALL_ARGS, "}", 1);
    reply_end_call(reply, REPLY_AT_CLOSE);
    return true;
}

/* Inside a parameter's name. */
bool reply_step_in_param(struct reply *reply)
{
    const char *end = reply_param_name_end(reply);
    size_t before;
    int found = reply_find(reply, &end, 1, &before);

    /* The name may come in several pieces; `key` collects them up to the end of the tag. */
    buf_add(&reply->key, reply_in(reply), before);
    reply_take(reply, before);
    if (found < 0)
        return false;
    reply_take(reply, strlen(end));
    buf_clear(&reply->value);
    /* GLM writes <arg_key>name</arg_key><arg_value>value</arg_value>; the other formats write
     * the value directly after the name. */
    if (reply->o.format == REPLY_GLM45)
        reply->state = REPLY_BEFORE_VALUE;
    else
        reply->state = REPLY_IN_VALUE;
    return true;
}

/* GLM: between the name's closing tag and the value's opening tag. */
bool reply_step_before_value(struct reply *reply)
{
    enum match match;

    reply_take_space(reply);
    if (reply_left(reply) == 0)
        return false;
    match = reply_match(reply, 0, "<arg_value>");
    if (match == MATCH_MAYBE)
        return false;
    /* Without the opening tag the parameter has no value and is skipped; the next one may be
     * good. */
    if (match == MATCH_YES)
        reply_take(reply, strlen("<arg_value>"));
    if (match == MATCH_YES)
        reply->state = REPLY_IN_VALUE;
    else
        reply->state = REPLY_AT_PARAM;
    return true;
}

/* Inside a value: collect it, and emit the member when it is complete. */
bool reply_step_in_value(struct reply *reply)
{
    const char *end = reply_value_end(reply);
    struct buf member = {0};
    size_t before;
    int found = reply_find(reply, &end, 1, &before);

    buf_add(&reply->value, reply_in(reply), before);
    reply_take(reply, before);
    if (found < 0)
        return false;
    reply_take(reply, strlen(end));
    /* The member is emitted whole, because its type is only known when its value is complete. */
    buf_add_text(&member, reply->has_args ? ", " : "");
    buf_add_json_string(&member, reply->key.len == 0 ? "" : reply->key.bytes, reply->key.len);
    buf_add_text(&member, ": ");
    reply_add_value(&member, reply->o.tools, &reply->name, &reply->key, &reply->value,
                    reply->o.format == REPLY_GLM45);
    reply_say(reply, REPLY_CALL_ARGS, member.bytes, member.len);
    reply->in.failed = reply->in.failed || member.failed;
    reply->has_args = true;
    reply->state = REPLY_AT_PARAM;
    buf_fini(&member);
    return true;
}

/* --- calls in Python ---------------------------------------------------------------------- */

/* The list is parsed only when it is complete, because Python cannot be translated piece by piece.
 * While its beginning is read, text that cannot be a list of calls is given up early. */
bool reply_step_python(struct reply *reply)
{
    const char *end = "<|python_end|>";
    size_t before;
    int found;

    /* Checked byte by byte up to the first '(', so that the split into pushes has no influence. */
    while (!reply->has_name && reply_left(reply) > 0) {
        reply->has_name = *reply_in(reply) == '(';
        reply_take(reply, 1);
        if (!reply_may_be_python(reply->raw.bytes, reply->raw.len)) {
            reply_fail_call(reply);
            return true;
        }
    }
    found = reply_find(reply, &end, 1, &before);
    reply_take(reply, before);
    if (found < 0 && !reply->ended)
        return false;
    if (found == 0)
        reply->at += strlen(end);
    if (!reply_say_python(reply, reply->raw.len == 0 ? "" : reply->raw.bytes, reply->raw.len)) {
        reply_fail_call(reply);
        return true;
    }
    reply->state = REPLY_BETWEEN;
    return true;
}

/* A harmony reply is a sequence of messages, each with a header that names a channel and possibly a
 * recipient:
 *
 *     <|channel|>analysis<|message|>reasoning<|end|>
 *     <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"k": 1}<|call|>
 *     <|channel|>final<|message|>content<|return|> */
/* --- harmony ------------------------------------------------------------------------------ */

/* The word after a mark in a header, up to white space or the next tag. Returns its length. */
static size_t reply_header_word(const struct buf *header, const char *mark, const char **word)
{
    const char *at = header->len == 0 ? NULL : strstr(header->bytes, mark);
    size_t n;

    if (at == NULL)
        return 0;
    at += strlen(mark);
    n = strcspn(at, " \t\r\n<");
    *word = at;
    return n;
}

/* The length of the text before a header's first tag that is not the header's: a model that leaves
 * the format says it outside of all messages. The prompt's end has opened the first header, so that
 * a recipient, or the role once more, may come before any tag. */
static size_t reply_stray(const struct buf *header)
{
    static const char *const own[] = {"assistant", "to="};
    const char *tag = header->len == 0 ? NULL : strstr(header->bytes, "<|");
    size_t n = header->len, space;

    if (tag != NULL)
        n = (size_t)(tag - header->bytes);
    if (n == 0)
        return 0;
    space = strspn(header->bytes, " \t\r\n");
    if (space >= n)
        return 0;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strncmp(header->bytes + space, own[i], strlen(own[i])) == 0)
            return 0;
    }
    return n;
}

/* Collect a header up to <|message|>, then choose the kind of message. The recipient may precede or
 * follow the channel. */
bool reply_step_header(struct reply *reply)
{
    const char *end = "<|message|>", *word = "";
    size_t before, n;
    int found = reply_find(reply, &end, 1, &before);

    buf_add(&reply->name, reply_in(reply), before);
    reply->at += before;
    if (found < 0 && reply->ended && reply->name.len > 0) {
        reply_say_content(reply, reply->name.bytes, reply->name.len); /* no message at all */
        buf_clear(&reply->name);
    }
    if (found < 0)
        return false;
    reply->at += strlen(end);
    n = reply_stray(&reply->name);
    if (n > 0)
        reply_say_content(reply, reply->name.bytes, n);
    reply->is_said = false;
    reply->at_message = true;
    n = reply_header_word(&reply->name, "to=functions.", &word);
    if (n > 0) {
        reply_say_call(reply, word, n);
        reply->state = REPLY_IN_MESSAGE_ARGS;
    } else {
        n = reply_header_word(&reply->name, "<|channel|>", &word);
        if (n == 8 && memcmp(word, "analysis", 8) == 0)
            reply->state = REPLY_IN_MESSAGE_REASON;
        else
            reply->state = REPLY_IN_MESSAGE_TEXT;
    }
    buf_clear(&reply->name);
    return true;
}

/* Inside a message: emit its text up to a tag that ends it. <|start|> and <|channel|> belong to the
 * next header, so they are not consumed. */
bool reply_step_message(struct reply *reply)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>",
                                       "<|channel|>"};
    size_t before;
    int found = reply_find(reply, ends, 5, &before);

    if (reply->state == REPLY_IN_MESSAGE_REASON)
        reply_say_reason(reply, reply_in(reply), before);
    else if (reply->state == REPLY_IN_MESSAGE_TEXT)
        reply_say_content(reply, reply_in(reply), before);
    else
        reply_say(reply, REPLY_CALL_ARGS, reply_in(reply), before);
    reply->at += before;
    reply->at_message = reply->at_message && before == 0;
    if (found < 0)
        return false;
    /* The first three tags end the message and belong to it. */
    if (found < 3)
        reply->at += strlen(ends[found]);
    if (reply->state == REPLY_IN_MESSAGE_REASON)
        reply_end_reason(reply);
    if (reply->state == REPLY_IN_MESSAGE_ARGS)
        reply_end_call(reply, REPLY_IN_HEADER);
    reply->state = REPLY_IN_HEADER;
    return true;
}
