/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser is a state and a buffer of text that is not consumed yet. Each state has a step that
 * consumes as much as is certain. A step that could decide differently with more text returns false
 * and waits for the next push; after reply_finish() there is no more text, so it must decide. That
 * makes the events independent of the split into pushes.
 *
 * A call begins as a suspicion: the text after an opening tag is kept in `raw` until the
 * function's name is known. Then the call is emitted, or `raw` becomes content. Long values leave
 * the buffer as they come, so the whole is linear. */
#include "text/output/reply.h"

#include <string.h>

#include "base/must.h"
#include "text/output/reply_parts.h"

/* DeepSeek's tags are spelled with U+FF5C and U+2581 in place of '|' and '_'. */
#define DEEPSEEK_OPEN               \
    "<\xef\xbd\x9ctool\xe2\x96\x81" \
    "call\xe2\x96\x81"              \
    "begin\xef\xbd\x9c>"
#define DEEPSEEK_CLOSE              \
    "<\xef\xbd\x9ctool\xe2\x96\x81" \
    "call\xe2\x96\x81"              \
    "end\xef\xbd\x9c>"
#define DEEPSEEK_SEP "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>"
#define DEEPSEEK_SECTION            \
    "<\xef\xbd\x9ctool\xe2\x96\x81" \
    "calls\xe2\x96\x81"             \
    "begin\xef\xbd\x9c>"
#define DEEPSEEK_END                \
    "<\xef\xbd\x9ctool\xe2\x96\x81" \
    "calls\xe2\x96\x81"             \
    "end\xef\xbd\x9c>"

/* A call is written: open, head, name, end, arguments, close. For example, in DeepSeek V3:
 *
 *     <tool_call_begin>function<tool_sep>NAME\n```json\n{"k": 1}\n```<tool_call_end>
 *     open             head              name  end     arguments      close */
const struct reply_shape reply_formats[REPLY_FORMATS] = {
    [REPLY_PLAIN] = {.name = "none"},
    [REPLY_HERMES] = {.name = "hermes",
                      .open = {"<tool_call>"},
                      .close = "</tool_call>",
                      .args = ARGS_OBJECT},
    [REPLY_LLAMA3] = {.name = "llama3_json",
                      .open = {"<|python_tag|>"},
                      .args = ARGS_OBJECT,
                      .first = '{'},
    [REPLY_MISTRAL] = {.name = "mistral",
                       .open = {"[TOOL_CALLS]"},
                       .end = {"[ARGS]", "[CALL_ID]"},
                       .args = ARGS_JSON},
    [REPLY_QWEN3_CODER] = {.name = "qwen3_coder",
                           .open = {"<tool_call>", "<function="},
                           .head = {"<function=", ""},
                           .end = {">"},
                           .close = "</tool_call>",
                           .args = ARGS_TAGS},
    [REPLY_PYTHONIC] = {.name = "pythonic",
                        .open = {"<|python_start|>"},
                        .section = {"<|python_end|>"},
                        .first = '['},
    [REPLY_DEEPSEEK_V3] = {.name = "deepseek_v3",
                           .open = {DEEPSEEK_OPEN},
                           .head = {"function" DEEPSEEK_SEP},
                           .end = {"```json"},
                           .close = DEEPSEEK_CLOSE,
                           .section = {DEEPSEEK_SECTION, DEEPSEEK_END},
                           .args = ARGS_JSON},
    [REPLY_DEEPSEEK_V31] = {.name = "deepseek_v31",
                            .open = {DEEPSEEK_OPEN},
                            .end = {DEEPSEEK_SEP},
                            .close = DEEPSEEK_CLOSE,
                            .section = {DEEPSEEK_SECTION, DEEPSEEK_END},
                            .args = ARGS_JSON},
    [REPLY_KIMI_K2] = {.name = "kimi_k2",
                       .open = {"<|tool_call_begin|>"},
                       .end = {"<|tool_call_argument_begin|>"},
                       .close = "<|tool_call_end|>",
                       .section = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
                       .args = ARGS_JSON},
    [REPLY_GLM45] = {.name = "glm45",
                     .open = {"<tool_call>"},
                     .end = {"<arg_key>", "</tool_call>"},
                     .close = "</tool_call>",
                     .args = ARGS_PAIRS},
    [REPLY_GEMMA4] = {.name = "gemma4",
                      .open = {"<|tool_call>"},
                      .head = {"call:"},
                      .end = {"{"},
                      .close = "<tool_call|>",
                      .section = {"<|tool_response>"}, /* asks for the results */
                      .args = ARGS_MARKED},
    [REPLY_HARMONY] = {.name = "openai"},
    [REPLY_LIST] = {.name = "json_list", .args = ARGS_JSON, .first = '['},
};

static const char *const think_open[] = {NULL, "<think>", "[THINK]", "<|channel>thought"};
static const char *const think_close[] = {NULL, "</think>", "[/THINK]", "<channel|>"};

/* --- looking ahead ------------------------------------------------------------------------ */

/* A tag may be cut by the end of the text received so far: then MATCH_MAYBE makes the step wait. */
enum match reply_match(const struct reply *reply, size_t from, const char *tag)
{
    size_t n = strlen(tag), left = reply_left(reply) - from;
    size_t cmp = n < left ? n : left;

    if (memcmp(reply_in(reply) + from, tag, cmp) != 0)
        return MATCH_NO;
    if (cmp == n)
        return MATCH_YES;
    if (reply->ended)
        return MATCH_NO;
    return MATCH_MAYBE;
}

/* Scan position by position. At the first position where a tag matches or might match, stop: text
 * before it is certain, text after it is not. */
int reply_find(const struct reply *reply, const char *const *tags, int n, size_t *before)
{
    size_t left = reply_left(reply), i;

    must(tags != NULL && before != NULL);
    for (i = 0; i < left; i++) {
        for (int t = 0; t < n; t++) {
            enum match m = tags[t] == NULL ? MATCH_NO : reply_match(reply, i, tags[t]);

            if (m == MATCH_NO)
                continue;
            /* A tag that might match is reported like none, but the text from here on is kept. */
            *before = i;
            if (m == MATCH_YES)
                return t;
            return -1;
        }
    }
    *before = left;
    return -1;
}

/* While the call is only suspected, remember its bytes: they may turn out to be content. */
void reply_take(struct reply *reply, size_t n)
{
    must(n <= reply_left(reply));
    if (!reply->is_said && reply->state >= REPLY_AT_HEAD && reply->state < REPLY_IN_HEADER)
        buf_add(&reply->raw, reply_in(reply), n);
    reply->at += n;
}

void reply_take_space(struct reply *reply)
{
    size_t n = 0;

    while (n < reply_left(reply) && reply_is_space(reply_in(reply)[n]))
        n++;
    reply_take(reply, n);
}

/* --- emitting events ---------------------------------------------------------------------- */

void reply_say(struct reply *reply, enum reply_kind kind, const char *bytes, size_t len)
{
    struct reply_event event = {
        .kind = kind, .call = reply->n_calls - 1, .bytes = bytes, .len = len};

    if (kind == REPLY_CONTENT && reply->o.only_calls)
        return; /* a call that was cut short, or white space around one */
    if (len > 0 || kind == REPLY_CALL_BEGIN || kind == REPLY_CALL_END)
        reply->said(reply->arg, &event);
}

/* White space at the end is held back: before a tool call or after reasoning it belongs to the
 * format and is dropped, and only text that follows makes it content. */
void reply_say_content(struct reply *reply, const char *bytes, size_t len)
{
    size_t solid = len;

    /* Without any format there is nothing that the white space could belong to: all of it is
     * content. */
    if (reply->o.format == REPLY_PLAIN && reply->o.reasoning == REPLY_NO_REASONING) {
        reply_say(reply, REPLY_CONTENT, bytes, len);
        return;
    }
    while (solid > 0 && reply_is_space(bytes[solid - 1]))
        solid--;
    if (solid > 0) {
        /* `space` is the white space that earlier pieces ended in. It comes before this piece
         * and is no longer at the end. */
        reply_say(reply, REPLY_CONTENT, reply->space.bytes, reply->space.len);
        buf_clear(&reply->space);
        reply_say(reply, REPLY_CONTENT, bytes, solid);
        reply->any_content = true;
    }
    buf_add(&reply->space, bytes + solid, len - solid);
}

/* Reasoning loses the white space at both ends, which the templates write around it. */
void reply_say_reason(struct reply *reply, const char *bytes, size_t len)
{
    size_t solid = len, from = 0;

    while (solid > 0 && reply_is_space(bytes[solid - 1]))
        solid--;
    /* Leading white space is dropped until the first character, which may be in a later piece. */
    while (!reply->has_reasoned && from < solid && reply_is_space(bytes[from]))
        from++;
    if (solid > from) {
        if (reply->has_reasoned)
            reply_say(reply, REPLY_REASON, reply->space.bytes, reply->space.len);
        buf_clear(&reply->space);
        reply_say(reply, REPLY_REASON, bytes + from, solid - from);
        reply->has_reasoned = true;
    }
    buf_add(&reply->space, bytes + solid, len - solid);
}

void reply_end_reason(struct reply *reply)
{
    buf_clear(&reply->space);
    reply->has_reasoned = false;
}

void reply_say_call(struct reply *reply, const char *name, size_t len)
{
    must(name != NULL || len == 0);
    buf_clear(&reply->space);
    buf_clear(&reply->raw);
    reply->n_calls++;
    reply->is_said = true;
    reply->any_content = true;
    reply_say(reply, REPLY_CALL_BEGIN, name, len);
}

void reply_end_call(struct reply *reply, int state)
{
    reply_say(reply, REPLY_CALL_END, NULL, 0);
    reply->is_said = false;
    reply->state = state;
}

/* Start to suspect a call. The state that follows emits it once the name is known. */
void reply_begin_call(struct reply *reply, int state, size_t tag)
{
    must(tag <= reply_left(reply));
    reply->state = state;
    reply->is_said = reply->has_name = reply->has_args = reply->in_list = false;
    buf_clear(&reply->raw);
    buf_clear(&reply->name);
    buf_clear(&reply->value);
    reply_take(reply, tag);
}

/* raw is moved out first, because emitting content may append to the buffers of the reply. */
void reply_fail_call(struct reply *reply)
{
    struct buf raw = reply->raw;

    reply->raw = (struct buf){0};
    reply->state = REPLY_IN_TEXT;
    reply->any_content = true; /* do not suspect the same text of being a call again */
    reply_say_content(reply, raw.bytes, raw.len);
    buf_fini(&raw);
}

/* --- reasoning and text ------------------------------------------------------------------- */

/* The first state: skip white space, then decide whether the reply begins with reasoning. */
static bool reply_step_start(struct reply *reply)
{
    const char *open = think_open[reply->o.reasoning];
    size_t n = 0;
    enum match match;

    if (reply->o.format == REPLY_HARMONY) {
        reply->state = REPLY_IN_HEADER;
        return true;
    }
    /* Some templates end the prompt with the opening tag; the reply then begins inside of the
     * reasoning. */
    if (open == NULL || reply->o.begins_inside) {
        if (open == NULL)
            reply->state = REPLY_IN_TEXT;
        else
            reply->state = REPLY_IN_REASON;
        return true;
    }
    while (n < reply_left(reply) && reply_is_space(reply_in(reply)[n]))
        n++;
    if (n == reply_left(reply) && !reply->ended)
        return false;
    match = reply_match(reply, n, open);
    if (match == MATCH_MAYBE)
        return false;
    /* White space before the tag is dropped with it; without a tag it stays and is content. */
    if (match == MATCH_YES)
        reply->at += n + strlen(open);
    if (match == MATCH_YES)
        reply->state = REPLY_IN_REASON;
    else
        reply->state = REPLY_IN_TEXT;
    return true;
}

/* Inside reasoning: emit text up to the closing tag. */
static bool reply_step_reason(struct reply *reply)
{
    size_t before;
    int found = reply_find(reply, &think_close[reply->o.reasoning], 1, &before);

    /* Text before a tag, or before a piece that may become one, is certain to be reasoning. */
    reply_say_reason(reply, reply_in(reply), before);
    reply->at += before;
    if (found < 0)
        return false;
    reply->at += strlen(think_close[reply->o.reasoning]);
    reply_end_reason(reply);
    reply->state = REPLY_BETWEEN;
    return true;
}

/* Formats whose calls have no opening tag: only the first character of a reply can begin one. */
static bool reply_begins_bare(struct reply *reply, const struct reply_shape *shape)
{
    size_t n = 0;

    if (shape->first == 0 || reply->any_content || reply->space.len > 0)
        return false;
    /* White space before the call is skipped here but not consumed: it remains content if no
     * call begins. */
    while (n < reply_left(reply) && reply_is_space(reply_in(reply)[n]))
        n++;
    if (n == reply_left(reply) || reply_in(reply)[n] != shape->first)
        return false;
    /* The next state depends on the format: a JSON object that holds the name as a member, a
     * head, or a list in Python's syntax such as [name(key="value")]. */
    reply_begin_call(reply,
                     shape->first == '{'        ? REPLY_AT_OBJECT
                     : shape->args == ARGS_JSON ? REPLY_AT_HEAD
                                                : REPLY_IN_PYTHON,
                     0);
    return true;
}

/* True while the reply is only white space: the first character of a call may still come. */
static bool reply_waits_for_bare(const struct reply *reply, const struct reply_shape *shape)
{
    if (shape->first == 0 || reply->any_content || reply->ended)
        return false;
    for (size_t n = 0; n < reply_left(reply); n++) {
        if (!reply_is_space(reply_in(reply)[n]))
            return false;
    }
    return true;
}

/* A tag was found: `which` counts the opening tags first, then the tags around all calls. */
static void reply_open_call(struct reply *reply, const struct reply_shape *shape, int which)
{
    int state = shape->args == ARGS_OBJECT ? REPLY_AT_OBJECT : REPLY_AT_HEAD;

    if (which >= OPENS) { /* a tag around all calls */
        reply->at += strlen(shape->section[which - OPENS]);
        reply->state = REPLY_BETWEEN;
        return;
    }
    if (reply->o.format == REPLY_PYTHONIC)
        state = REPLY_IN_PYTHON;
    /* An empty head: the name follows the opening tag directly. */
    if (shape->head[which] != NULL && shape->head[which][0] == '\0')
        state = REPLY_IN_NAME;
    reply_begin_call(reply, state, strlen(shape->open[which]));
    if (state == REPLY_IN_PYTHON)
        buf_clear(&reply->raw); /* it must hold the list alone, for the parser of Python */
}

/* In content: emit text up to the next tag that begins a call. */
static bool reply_step_text(struct reply *reply)
{
    const struct reply_shape *shape = &reply_formats[reply->o.format];
    const char *tags[] = {shape->open[0], shape->open[1], shape->section[0], shape->section[1]};
    size_t before;
    int found;

    if (reply_waits_for_bare(reply, shape))
        return false;
    if (reply_begins_bare(reply, shape))
        return true;
    /* Text before the tag is certain and emitted at once, even if the tag is not complete. */
    found = reply_find(reply, tags, 4, &before);
    reply_say_content(reply, reply_in(reply), before);
    reply->at += before;
    if (found < 0)
        return false;
    reply_open_call(reply, shape, found);
    return true;
}

/* After a call or reasoning: skip white space and the separators between calls. Llama writes
 * several calls as {...}; {...}. Any other text is content. */
static bool reply_step_between(struct reply *reply)
{
    const struct reply_shape *shape = &reply_formats[reply->o.format];
    const char *tags[] = {shape->open[0], shape->open[1], shape->section[0], shape->section[1]};
    char c;

    while (reply_left(reply) > 0 && reply_is_space(*reply_in(reply)))
        reply->at++;
    if (reply_left(reply) == 0)
        return false;
    c = *reply_in(reply);
    /* Only after a first call: a reply that begins with '{' is decided by the step for text. */
    if (reply->o.format == REPLY_LLAMA3 && reply->n_calls > 0 && (c == ';' || c == '{')) {
        if (c == ';')
            reply->at++;
        else
            reply_begin_call(reply, REPLY_AT_OBJECT, 0);
        return true;
    }
    /* All tags are tried at this position. If one may still become complete, the others are not
     * decided before. */
    for (int t = 0; t < 4; t++) {
        enum match m = tags[t] == NULL ? MATCH_NO : reply_match(reply, 0, tags[t]);

        if (m == MATCH_MAYBE)
            return false;
        if (m == MATCH_NO)
            continue;
        reply_open_call(reply, shape, t);
        return true;
    }
    reply->state = REPLY_IN_TEXT;
    return true;
}

/* --- a call's name ------------------------------------------------------------------------ */

/* After an opening tag: a list of calls as JSON, or the text that comes before the name. */
static bool reply_step_head(struct reply *reply)
{
    const struct reply_shape *shape = &reply_formats[reply->o.format];
    enum match match;

    reply_take_space(reply);
    if (reply_left(reply) == 0 && !reply->ended)
        return false;
    /* [TOOL_CALLS][{"name": ...}] is the older form; in newer ones the name follows the tag. */
    if ((reply->o.format == REPLY_MISTRAL || reply->o.format == REPLY_LIST) &&
        reply_left(reply) > 0 && *reply_in(reply) == '[') {
        reply_take(reply, 1);
        reply->in_list = true;
        reply->state = REPLY_IN_LIST;
        return true;
    }
    /* Some formats have a text before the name, such as "<function="; without it the tag was
     * part of the text. */
    reply->state = REPLY_IN_NAME;
    if (shape->head[0] == NULL)
        return true;
    match = reply_match(reply, 0, shape->head[0]);
    if (match == MATCH_YES)
        reply_take(reply, strlen(shape->head[0]));
    else if (match == MATCH_MAYBE)
        reply->state = REPLY_AT_HEAD;
    else
        reply_fail_call(reply);
    return match != MATCH_MAYBE;
}

/* Remove white space around a name, and Kimi K2's decoration: functions.NAME:INDEX. */
static void reply_trim_name(struct reply *reply)
{
    struct buf *buf = &reply->name;
    size_t from = 0;
    char *colon;

    /* Templates and models put line feeds around names. */
    while (buf->len > 0 && reply_is_space(buf->bytes[buf->len - 1]))
        buf->bytes[--buf->len] = '\0';
    while (from < buf->len && reply_is_space(buf->bytes[from]))
        from++;
    /* functions.get_weather:0 is the function get_weather. */
    if (reply->o.format == REPLY_KIMI_K2 && buf->len > 0) {
        colon = strrchr(buf->bytes, ':');
        if (colon != NULL && strspn(colon + 1, "0123456789") == strlen(colon + 1)) {
            *colon = '\0';
            buf->len = (size_t)(colon - buf->bytes);
        }
        if (buf->len >= from + 10 && memcmp(buf->bytes + from, "functions.", 10) == 0)
            from += 10;
    }
    if (buf->len > 0) {
        memmove(buf->bytes, buf->bytes + from, buf->len - from + 1);
        buf->len -= from;
    }
}

/* Names are not checked against the request's tools; this only rejects text that cannot be a name,
 * so that a tag in ordinary prose does not swallow a paragraph. */
bool reply_is_name(const struct buf *buf)
{
    for (size_t i = 0; i < buf->len; i++) {
        unsigned char c = (unsigned char)buf->bytes[i];

        if (c < 0x20 || c == '{' || c == '"' || c == '<')
            return false;
    }
    return buf->len > 0 && buf->len <= 256;
}

/* The name is known. Arguments as JSON are emitted as they come; parameters in tags are translated
 * to a JSON object, which begins here. */
static void reply_begin_args(struct reply *reply, enum args_kind args)
{
    if (args == ARGS_JSON) {
        reply->state = REPLY_AT_ARGS;
        return;
    }
    /* The call is announced before its first parameter, so that a client can show it early. */
    reply_say_call(reply, reply->name.bytes, reply->name.len);
    reply_say(reply, REPLY_CALL_ARGS, "{", 1);
    reply->depth = 0;
    reply->in_text = reply->escaped = reply->in_mark = false;
    reply->state = args == ARGS_MARKED ? REPLY_IN_MARKED : REPLY_AT_PARAM;
}

#define NAME_READ_MAX 512 /* bytes within which a name must have ended */

/* Collect the name up to one of its end tags. In Mistral's format f[CALL_ID]id[ARGS]{...} the text
 * after [CALL_ID] is skipped: this step then runs a second time with has_name set. */
static bool reply_step_name(struct reply *reply)
{
    const struct reply_shape *shape = &reply_formats[reply->o.format];
    const char *tags[ENDS + 1] = {shape->end[0], shape->end[1],
                                  reply->o.format == REPLY_MISTRAL ? "{" : NULL};
    size_t before;
    int found = reply_find(reply, tags, ENDS + 1, &before);

    if (!reply->has_name) {
        /* Cut at a fixed length, so that the split into pushes makes no difference. */
        if (before > NAME_READ_MAX + 1 - reply->name.len) {
            before = NAME_READ_MAX + 1 - reply->name.len;
            found = -1;
        }
        buf_add(&reply->name, reply_in(reply), before);
    }
    reply_take(reply, before);
    /* Wait for the end tag, unless the text is already too long for a name. */
    if (found < 0 && !reply->ended && reply->name.len <= NAME_READ_MAX)
        return false;
    if (!reply->has_name)
        reply_trim_name(reply);
    reply->has_name = reply_is_name(&reply->name);
    /* Without a name in it, the text that looked like a call is content. */
    if (found < 0 || !reply->has_name) {
        reply_fail_call(reply);
        return true;
    }
    if (found < ENDS && tags[found][0] != '<')
        reply_take(reply, strlen(tags[found]));
    if (found == 1 && reply->o.format == REPLY_MISTRAL)
        return true; /* skip the call's id */
    if (shape->end[found < ENDS ? found : 0][0] == '<' && shape->args == ARGS_JSON)
        reply_take(reply, strlen(tags[found]));
    reply_begin_args(reply, shape->args);
    return true;
}

/* --- the machine -------------------------------------------------------------------------- */

/* Run the step of the current state. False when it needs more text. */
static bool reply_step(struct reply *reply)
{
    /* AT: the next character decides. IN: everything up to an end belongs to one thing. The
     * states of one format follow each other in the order of its text; see reply_parts.h. */
    switch ((enum reply_state)reply->state) {
    case REPLY_AT_START: return reply_step_start(reply);
    case REPLY_IN_REASON: return reply_step_reason(reply);
    case REPLY_IN_TEXT: return reply_step_text(reply);
    case REPLY_BETWEEN: return reply_step_between(reply);
    case REPLY_AT_HEAD: return reply_step_head(reply);
    case REPLY_IN_NAME: return reply_step_name(reply);
    case REPLY_AT_ARGS: return reply_step_args_begin(reply);
    case REPLY_IN_ARGS: return reply_step_args(reply);
    case REPLY_IN_LIST: return reply_step_list(reply);
    case REPLY_AT_OBJECT: return reply_step_object(reply);
    case REPLY_AT_KEY: return reply_step_key(reply);
    case REPLY_IN_KEY: return reply_step_in_key(reply);
    case REPLY_AT_COLON: return reply_step_colon(reply);
    case REPLY_AT_VALUE: return reply_step_value(reply);
    case REPLY_IN_NAMED: return reply_step_named(reply);
    case REPLY_IN_EARLY: return reply_step_early(reply);
    case REPLY_IN_OTHER: return reply_step_other(reply);
    case REPLY_AT_PARAM: return reply_step_param(reply);
    case REPLY_IN_PARAM: return reply_step_in_param(reply);
    case REPLY_BEFORE_VALUE: return reply_step_before_value(reply);
    case REPLY_IN_VALUE: return reply_step_in_value(reply);
    case REPLY_IN_MARKED: return reply_step_marked(reply);
    case REPLY_AT_CLOSE: return reply_step_close(reply);
    case REPLY_IN_PYTHON: return reply_step_python(reply);
    case REPLY_IN_HEADER: return reply_step_header(reply);
    case REPLY_IN_MESSAGE_REASON:
    case REPLY_IN_MESSAGE_TEXT:
    case REPLY_IN_MESSAGE_ARGS: return reply_step_message(reply);
    }
    return false;
}

static bool reply_has_failed(const struct reply *reply)
{
    return reply->in.failed || reply->raw.failed || reply->name.failed || reply->key.failed ||
           reply->value.failed || reply->space.failed;
}

/* Run steps until one needs more text. Each step consumes text or moves on in the order of the
 * format, so the loop ends. Consumed text is removed only now and then, to stay linear. */
static int reply_run_step(struct reply *reply)
{
    must(reply->at <= reply->in.len);
    /* At the end of the reply a step runs even without text, so that each state can close its
     * call. */
    while (!reply_has_failed(reply) && (reply_left(reply) > 0 || reply->ended) && reply_step(reply))
        continue;
    /* The usual case: all text was consumed, and nothing has to be moved. */
    if (reply->at == reply->in.len) {
        buf_clear(&reply->in);
        reply->at = 0;
    } else if (reply->at > 4096) {
        memmove(reply->in.bytes, reply->in.bytes + reply->at, reply->in.len - reply->at + 1);
        reply->in.len -= reply->at;
        reply->at = 0;
    }
    if (reply_has_failed(reply))
        return ERR_NO_MEMORY;
    return ERR_OK;
}

void reply_init(struct reply *reply, const struct reply_options *options, reply_fn *said, void *arg)
{
    must(options->format < REPLY_FORMATS && options->reasoning < REPLY_REASONINGS);
    must(said != NULL);
    *reply = (struct reply){.o = *options, .said = said, .arg = arg, .state = REPLY_AT_START};
}

void reply_fini(struct reply *reply)
{
    buf_fini(&reply->in);
    buf_fini(&reply->raw);
    buf_fini(&reply->name);
    buf_fini(&reply->key);
    buf_fini(&reply->value);
    buf_fini(&reply->space);
}

int reply_push(struct reply *reply, const char *text, size_t len)
{
    must(text != NULL || len == 0);
    if (len == 0)
        return ERR_OK;
    buf_add(&reply->in, text, len);
    return reply_run_step(reply);
}

bool reply_is_reasoning(const struct reply *reply)
{
    return reply->state == REPLY_IN_REASON || reply->state == REPLY_IN_MESSAGE_REASON;
}

bool reply_may_be_content(const struct reply *reply)
{
    if (reply->state == REPLY_BETWEEN)
        return reply_left(reply) > 0; /* possibly the beginning of a tag */
    /* The states of a call are contiguous in the enum. */
    if (reply->state >= REPLY_AT_HEAD && reply->state < REPLY_IN_HEADER)
        return !reply->is_said; /* a suspected call may become content */
    if (reply->state == REPLY_IN_MESSAGE_TEXT)
        return !reply->at_message || reply_left(reply) > 0;
    return reply->state == REPLY_AT_START || reply->state == REPLY_IN_TEXT;
}

/* The output has ended: steps must decide with the text that is there, and held text is emitted. */
int reply_finish(struct reply *reply)
{
    int rc;

    reply->ended = true;
    if (reply->in.bytes == NULL)
        buf_add(&reply->in, "", 0);
    rc = reply_run_step(reply);
    if (rc != ERR_OK)
        return rc;
    /* A call that is cut inside its arguments stays a call: the finish reason explains it. */
    if (!reply->is_said && reply->raw.len > 0 && reply->state >= REPLY_AT_HEAD &&
        reply->state < REPLY_IN_HEADER)
        reply_fail_call(reply);
    /* White space at the very end is content only if nothing but content was there. */
    if (!reply_is_reasoning(reply) && reply->any_content && reply->n_calls == 0)
        reply_say(reply, REPLY_CONTENT, reply->space.bytes, reply->space.len);
    buf_clear(&reply->space);
    if (reply_has_failed(reply))
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* --- which format ------------------------------------------------------------------------- */

/* A chat template shows the model how to write calls, so its source names the tags. The order of
 * the rows matters: a template may mention the words of several rows. */
enum reply_format reply_format_of(const char *source)
{
    static const struct {
        const char *word;
        enum reply_format format;
    } words[] = {
        {"<|tool_call>call:", REPLY_GEMMA4},
        {"<|channel|>", REPLY_HARMONY},
        {"<|tool_calls_section_begin|>", REPLY_KIMI_K2},
        {"```json", REPLY_DEEPSEEK_V3},
        {DEEPSEEK_OPEN, REPLY_DEEPSEEK_V31},
        {"<arg_key>", REPLY_GLM45},
        {"<function=", REPLY_QWEN3_CODER},
        {"[TOOL_CALLS]", REPLY_MISTRAL},
        {"<tool_call>", REPLY_HERMES},
        {"[func_name1(", REPLY_PYTHONIC},
        {"<|python_start|>", REPLY_PYTHONIC},
        {"<|python_tag|>", REPLY_LLAMA3},
        {"\"parameters\": dictionary", REPLY_LLAMA3},
        {"{\"name\": function name", REPLY_LLAMA3},
    };

    must(source != NULL);
    /* The first row whose word occurs decides, apart from the two exceptions below. */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(source, words[i].word) == NULL)
            continue;
        if (words[i].format == REPLY_DEEPSEEK_V3 && strstr(source, DEEPSEEK_OPEN) == NULL)
            continue;
        if (words[i].format == REPLY_QWEN3_CODER && strstr(source, "<parameter=") == NULL)
            return REPLY_PLAIN; /* functionary's variant: JSON between the tags; no row has it */
        return words[i].format;
    }
    return REPLY_PLAIN;
}

enum reply_reasoning reply_reasoning_of(const char *source)
{
    must(source != NULL);
    /* The closing tag is the surer sign: templates that remove the reasoning of earlier turns split
     * the text at it, and not all of them write the opening one. */
    if (strstr(source, "</think>") != NULL)
        return REPLY_THINK;
    if (strstr(source, "[/THINK]") != NULL)
        return REPLY_THINK_BRACKETS;
    if (strstr(source, "<channel|>") != NULL)
        return REPLY_THINK_CHANNEL;
    return REPLY_NO_REASONING;
}

enum reply_format reply_format_named(const char *name)
{
    /* vLLM has several parsers for some formats. */
    static const struct {
        const char *name;
        enum reply_format format;
    } others[] = {
        {"qwen3_xml", REPLY_QWEN3_CODER},
        {"llama4_json", REPLY_LLAMA3},
        {"llama4_pythonic", REPLY_PYTHONIC},
        {"deepseek_v32", REPLY_DEEPSEEK_V31},
        {"glm47", REPLY_GLM45},
        {"gpt_oss", REPLY_HARMONY},
        {"qwen3", REPLY_HERMES},
        {"longcat", REPLY_HERMES},
    };

    must(name != NULL);
    for (int i = 0; i < REPLY_FORMATS; i++) {
        if (strcmp(reply_formats[i].name, name) == 0)
            return (enum reply_format)i;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(others[i].name, name) == 0)
            return others[i].format;
    }
    return REPLY_FORMATS;
}

bool reply_reasoning_named(const char *name, enum reply_reasoning *out)
{
    static const struct {
        const char *name;
        enum reply_reasoning reasoning;
    } names[] = {
        {"none", REPLY_NO_REASONING},
        {"mistral", REPLY_THINK_BRACKETS},
        {"think", REPLY_THINK},
        {"qwen3", REPLY_THINK},
        {"deepseek_r1", REPLY_THINK},
        {"deepseek_v3", REPLY_THINK},
        {"deepseek_v4", REPLY_THINK},
        {"glm45", REPLY_THINK},
        {"glm47", REPLY_THINK},
        {"kimi_k2", REPLY_THINK},
        {"mimo", REPLY_THINK},
        {"minimax_m2", REPLY_THINK},
        {"nemotron_v3", REPLY_THINK},
        {"olmo3", REPLY_THINK},
        {"step3", REPLY_THINK},
        {"ernie45", REPLY_THINK},
        {"holo2", REPLY_THINK},
        {"gemma4", REPLY_THINK_CHANNEL},
        {"openai_gptoss", REPLY_NO_REASONING}, /* channels */
    };

    must(name != NULL && out != NULL);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].reasoning;
            return true;
        }
    }
    return false;
}

bool reply_is_inside(enum reply_reasoning reasoning, const char *prompt, size_t len)
{
    const char *open, *close;

    must(reasoning < REPLY_REASONINGS);
    must(prompt != NULL || len == 0);
    open = think_open[reasoning];
    close = think_close[reasoning];
    /* The later of the two tags decides. Only one near the end of the prompt can be open. */
    for (size_t i = len; open != NULL && i > 0 && len - i < 4096; i--) {
        size_t left = len - (i - 1);

        if (left >= strlen(close) && memcmp(prompt + i - 1, close, strlen(close)) == 0)
            return false;
        if (left >= strlen(open) && memcmp(prompt + i - 1, open, strlen(open)) == 0) {
            for (size_t k = i - 1 + strlen(open); k < len; k++) {
                if (!reply_is_space(prompt[k]))
                    return false; /* text that mentions the tag */
            }
            return true;
        }
    }
    return false;
}

bool reply_is_over(enum reply_reasoning reasoning, const char *prompt, size_t len)
{
    const char *close;
    size_t n;

    must(reasoning < REPLY_REASONINGS);
    must(prompt != NULL || len == 0);
    close = think_close[reasoning];
    n = close == NULL ? 0 : strlen(close);
    while (len > 0 && reply_is_space(prompt[len - 1]))
        len--;
    return n > 0 && len >= n && memcmp(prompt + len - n, close, n) == 0;
}

const char *reply_reason_open(enum reply_reasoning reasoning)
{
    must(reasoning < REPLY_REASONINGS);
    return think_open[reasoning];
}

const char *reply_reason_close(enum reply_reasoning reasoning)
{
    must(reasoning < REPLY_REASONINGS);
    return think_close[reasoning];
}

/* Some tags are not columns of the table, because only one format has them. */
int reply_tags(enum reply_format format, enum reply_reasoning reasoning,
               const char *tags[REPLY_TAGS_MAX])
{
    static const char *const harmony[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                          "<|constrain|>", "<|end|>",     "<|call|>",
                                          "<|return|>"};
    static const char *const pairs[] = {"</arg_key>", "<arg_value>", "</arg_value>"};
    static const char *const marked[] = {"<|\"|>", "<|channel>"};
    static const char *const params[] = {"</function>", "<parameter=", "</parameter>"};
    const struct reply_shape *shape = &reply_formats[format];
    const char *const all[] = {
        shape->open[0],        shape->open[1],
        shape->end[0],         shape->end[1],
        shape->close,          shape->section[0],
        shape->section[1],     format == REPLY_DEEPSEEK_V3 ? DEEPSEEK_SEP : NULL,
        think_open[reasoning], think_close[reasoning]};
    int n = 0;

    must(format < REPLY_FORMATS && reasoning < REPLY_REASONINGS);
    /* Columns that a format does not use are NULL. */
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != NULL)
            tags[n++] = all[i];
    }
    for (int i = 0; i < 3 && (shape->args == ARGS_PAIRS || shape->args == ARGS_TAGS); i++)
        tags[n++] = shape->args == ARGS_PAIRS ? pairs[i] : params[i];
    /* The rest of what opens such reasoning is an ordinary token. */
    if (shape->args == ARGS_MARKED)
        tags[n++] = marked[0];
    if (reasoning == REPLY_THINK_CHANNEL)
        tags[n++] = marked[1];
    for (size_t i = 0; i < sizeof harmony / sizeof harmony[0] && format == REPLY_HARMONY; i++)
        tags[n++] = harmony[i];
    return n;
}
