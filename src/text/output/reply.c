/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine: a state, a run of text that is not taken yet, and a step for each state that takes
 * as much of it as is certain. A step that could go on with more text leaves it and waits; at the
 * end nothing more comes and what is there counts. So the cut of the text into pushes is
 * without consequence. What is inside a long value is moved out of `in` as it comes: the whole is
 * linear. */
#include "text/output/reply.h"

#include <string.h>

#include "text/output/reply_parts.h"

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
    [REPLY_HARMONY] = {.name = "openai"},
    [REPLY_LIST] = {.name = "json_list", .args = ARGS_JSON, .first = '['},
};

static const char *const think_open[] = {NULL, "<think>", "[THINK]"};
static const char *const think_close[] = {NULL, "</think>", "[/THINK]"};

/* --- reading ahead ------------------------------------------------------------------------ */

/* Does what stands `from` behind the taken text begin with tag? */
enum match reply_match(const struct reply *r, size_t from, const char *tag)
{
    size_t n = strlen(tag), left = reply_left(r) - from;
    size_t cmp = n < left ? n : left;

    if (memcmp(reply_in(r) + from, tag, cmp) != 0)
        return MATCH_NO;
    if (cmp == n)
        return MATCH_YES;
    return r->ended ? MATCH_NO : MATCH_MAYBE;
}

/* The first of n tags (NULL: none) in what is left: its number, and in *before what stands in front
 * of it; -1 when there is none, and in *before how much is certain to be in front of any. */
int reply_find(const struct reply *r, const char *const *tags, int n, size_t *before)
{
    size_t left = reply_left(r), i;

    for (i = 0; i < left; i++) {
        for (int t = 0; t < n; t++) {
            enum match m = tags[t] == NULL ? MATCH_NO : reply_match(r, i, tags[t]);

            if (m == MATCH_NO)
                continue;
            *before = i;
            if (m == MATCH_YES)
                return t;
            return -1;
        }
    }
    *before = left;
    return -1;
}

void reply_take(struct reply *r, size_t n)
{
    if (!r->is_said && r->state >= REPLY_AT_HEAD && r->state < REPLY_IN_HEADER)
        buf_add(&r->raw, reply_in(r), n);
    r->at += n;
}

void reply_take_space(struct reply *r)
{
    size_t n = 0;

    while (n < reply_left(r) && reply_is_space(reply_in(r)[n]))
        n++;
    reply_take(r, n);
}

/* --- saying ------------------------------------------------------------------------------- */

void reply_say(struct reply *r, enum reply_kind kind, const char *bytes, size_t len)
{
    struct reply_event e = {.kind = kind, .call = r->n_calls - 1, .bytes = bytes, .len = len};

    if (kind == REPLY_CONTENT && r->o.only_calls)
        return; /* a call that was cut, or white space around one */
    if (len > 0 || kind == REPLY_CALL_BEGIN || kind == REPLY_CALL_END)
        r->said(r->arg, &e);
}

/* White space is kept back: before a call it is nobody's, and so it is behind reasoning. */
void reply_say_content(struct reply *r, const char *bytes, size_t len)
{
    size_t solid = len;

    if (r->o.format == REPLY_PLAIN && r->o.reasoning == REPLY_NO_REASONING) {
        reply_say(r, REPLY_CONTENT, bytes, len);
        return;
    }
    while (solid > 0 && reply_is_space(bytes[solid - 1]))
        solid--;
    if (solid > 0) {
        reply_say(r, REPLY_CONTENT, r->space.bytes, r->space.len);
        buf_clear(&r->space);
        reply_say(r, REPLY_CONTENT, bytes, solid);
        r->any_content = true;
    }
    buf_add(&r->space, bytes + solid, len - solid);
}

void reply_say_reason(struct reply *r, const char *bytes, size_t len)
{
    size_t solid = len, from = 0;

    while (solid > 0 && reply_is_space(bytes[solid - 1]))
        solid--;
    while (!r->has_reasoned && from < solid && reply_is_space(bytes[from]))
        from++;
    if (solid > from) {
        if (r->has_reasoned)
            reply_say(r, REPLY_REASON, r->space.bytes, r->space.len);
        buf_clear(&r->space);
        reply_say(r, REPLY_REASON, bytes + from, solid - from);
        r->has_reasoned = true;
    }
    buf_add(&r->space, bytes + solid, len - solid);
}

void reply_end_reason(struct reply *r)
{
    buf_clear(&r->space);
    r->has_reasoned = false;
}

void reply_say_call(struct reply *r, const char *name, size_t len)
{
    buf_clear(&r->space);
    buf_clear(&r->raw);
    r->n_calls++;
    r->is_said = true;
    r->any_content = true;
    reply_say(r, REPLY_CALL_BEGIN, name, len);
}

void reply_end_call(struct reply *r, int state)
{
    reply_say(r, REPLY_CALL_END, NULL, 0);
    r->is_said = false;
    r->state = state;
}

/* A call begins here: the tag is taken when it turns out to be one. */
void reply_begin_call(struct reply *r, int state, size_t tag)
{
    r->state = state;
    r->is_said = r->has_name = r->has_args = r->in_list = false;
    buf_clear(&r->raw);
    buf_clear(&r->name);
    buf_clear(&r->value);
    reply_take(r, tag);
}

void reply_fail_call(struct reply *r)
{
    struct buf raw = r->raw;

    r->raw = (struct buf){0};
    r->state = REPLY_IN_TEXT;
    r->any_content = true; /* so that the same text is not taken for a call again */
    reply_say_content(r, raw.bytes, raw.len);
    buf_fini(&raw);
}

/* --- reasoning and text ------------------------------------------------------------------- */

static bool step_start(struct reply *r)
{
    const char *open = think_open[r->o.reasoning];
    size_t n = 0;
    enum match m;

    if (r->o.format == REPLY_HARMONY) {
        r->state = REPLY_IN_HEADER;
        return true;
    }
    if (open == NULL || r->o.begins_inside) {
        r->state = open == NULL ? REPLY_IN_TEXT : REPLY_IN_REASON;
        return true;
    }
    while (n < reply_left(r) && reply_is_space(reply_in(r)[n]))
        n++;
    if (n == reply_left(r) && !r->ended)
        return false;
    m = reply_match(r, n, open);
    if (m == MATCH_MAYBE)
        return false;
    if (m == MATCH_YES)
        r->at += n + strlen(open);
    r->state = m == MATCH_YES ? REPLY_IN_REASON : REPLY_IN_TEXT;
    return true;
}

static bool step_reason(struct reply *r)
{
    size_t before;
    int found = reply_find(r, &think_close[r->o.reasoning], 1, &before);

    reply_say_reason(r, reply_in(r), before);
    r->at += before;
    if (found < 0)
        return false;
    r->at += strlen(think_close[r->o.reasoning]);
    reply_end_reason(r);
    r->state = REPLY_BETWEEN;
    return true;
}

/* Formats whose calls have no tag: only a reply that begins like one is looked at. */
static bool begins_bare(struct reply *r, const struct reply_shape *f)
{
    size_t n = 0;

    if (f->first == 0 || r->any_content || r->space.len > 0)
        return false;
    while (n < reply_left(r) && reply_is_space(reply_in(r)[n]))
        n++;
    if (n == reply_left(r) || reply_in(r)[n] != f->first)
        return false;
    reply_begin_call(r,
                     f->first == '{'        ? REPLY_AT_OBJECT
                     : f->args == ARGS_JSON ? REPLY_AT_HEAD
                                            : REPLY_IN_PYTHON,
                     0);
    return true;
}

/* Nothing but white space may be the beginning of a call that has no tag. */
static bool waits_for_bare(const struct reply *r, const struct reply_shape *f)
{
    if (f->first == 0 || r->any_content || r->ended)
        return false;
    for (size_t n = 0; n < reply_left(r); n++) {
        if (!reply_is_space(reply_in(r)[n]))
            return false;
    }
    return true;
}

static void open_call(struct reply *r, const struct reply_shape *f, int which)
{
    int state = f->args == ARGS_OBJECT ? REPLY_AT_OBJECT : REPLY_AT_HEAD;

    if (which >= OPENS) { /* a tag around all calls */
        r->at += strlen(f->section[which - OPENS]);
        r->state = REPLY_BETWEEN;
        return;
    }
    if (r->o.format == REPLY_PYTHONIC)
        state = REPLY_IN_PYTHON;
    if (f->head[which] != NULL && f->head[which][0] == '\0')
        state = REPLY_IN_NAME;
    reply_begin_call(r, state, strlen(f->open[which]));
    if (state == REPLY_IN_PYTHON)
        buf_clear(&r->raw); /* which is to hold nothing but the list */
}

static bool step_text(struct reply *r)
{
    const struct reply_shape *f = &reply_formats[r->o.format];
    const char *tags[] = {f->open[0], f->open[1], f->section[0], f->section[1]};
    size_t before;
    int found;

    if (waits_for_bare(r, f))
        return false;
    if (begins_bare(r, f))
        return true;
    found = reply_find(r, tags, 4, &before);
    reply_say_content(r, reply_in(r), before);
    r->at += before;
    if (found < 0)
        return false;
    open_call(r, f, found);
    return true;
}

/* Behind a call or reasoning: white space and what parts calls mean nothing. */
static bool step_between(struct reply *r)
{
    const struct reply_shape *f = &reply_formats[r->o.format];
    const char *tags[] = {f->open[0], f->open[1], f->section[0], f->section[1]};
    char c;

    while (reply_left(r) > 0 && reply_is_space(*reply_in(r)))
        r->at++;
    if (reply_left(r) == 0)
        return false;
    c = *reply_in(r);
    if (r->o.format == REPLY_LLAMA3 && r->n_calls > 0 && (c == ';' || c == '{')) {
        if (c == ';')
            r->at++;
        else
            reply_begin_call(r, REPLY_AT_OBJECT, 0);
        return true;
    }
    for (int t = 0; t < 4; t++) {
        enum match m = tags[t] == NULL ? MATCH_NO : reply_match(r, 0, tags[t]);

        if (m == MATCH_MAYBE)
            return false;
        if (m == MATCH_NO)
            continue;
        open_call(r, f, t);
        return true;
    }
    r->state = REPLY_IN_TEXT;
    return true;
}

/* --- a call's name ------------------------------------------------------------------------ */

static bool step_head(struct reply *r)
{
    const struct reply_shape *f = &reply_formats[r->o.format];
    enum match m;

    reply_take_space(r);
    if (reply_left(r) == 0 && !r->ended)
        return false;
    if ((r->o.format == REPLY_MISTRAL || r->o.format == REPLY_LIST) && reply_left(r) > 0 &&
        *reply_in(r) == '[') {
        reply_take(r, 1);
        r->in_list = true;
        r->state = REPLY_IN_LIST;
        return true;
    }
    r->state = REPLY_IN_NAME;
    if (f->head[0] == NULL)
        return true;
    m = reply_match(r, 0, f->head[0]);
    if (m == MATCH_YES)
        reply_take(r, strlen(f->head[0]));
    else if (m == MATCH_MAYBE)
        r->state = REPLY_AT_HEAD;
    else
        reply_fail_call(r);
    return m != MATCH_MAYBE;
}

/* White space around a name, and what Kimi K2 puts around it: functions.NAME:INDEX. */
static void trim_name(struct reply *r)
{
    struct buf *b = &r->name;
    size_t from = 0;
    char *colon;

    while (b->len > 0 && reply_is_space(b->bytes[b->len - 1]))
        b->bytes[--b->len] = '\0';
    while (from < b->len && reply_is_space(b->bytes[from]))
        from++;
    if (r->o.format == REPLY_KIMI_K2 && b->len > 0) {
        colon = strrchr(b->bytes, ':');
        if (colon != NULL && strspn(colon + 1, "0123456789") == strlen(colon + 1)) {
            *colon = '\0';
            b->len = (size_t)(colon - b->bytes);
        }
        if (b->len >= from + 10 && memcmp(b->bytes + from, "functions.", 10) == 0)
            from += 10;
    }
    if (b->len > 0) {
        memmove(b->bytes, b->bytes + from, b->len - from + 1);
        b->len -= from;
    }
}

bool reply_is_name(const struct buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        unsigned char c = (unsigned char)b->bytes[i];

        if (c < 0x20 || c == '{' || c == '"' || c == '<')
            return false;
    }
    return b->len > 0 && b->len <= 256;
}

static void begin_args(struct reply *r, enum args_kind args)
{
    if (args == ARGS_JSON) {
        r->state = REPLY_AT_ARGS;
        return;
    }
    reply_say_call(r, r->name.bytes, r->name.len);
    reply_say(r, REPLY_CALL_ARGS, "{", 1);
    r->state = REPLY_AT_PARAM;
}

#define NAME_READ_MAX 512 /* bytes in which a name must have ended */

static bool step_name(struct reply *r)
{
    const struct reply_shape *f = &reply_formats[r->o.format];
    const char *tags[ENDS + 1] = {f->end[0], f->end[1], r->o.format == REPLY_MISTRAL ? "{" : NULL};
    size_t before;
    int found = reply_find(r, tags, ENDS + 1, &before);

    if (!r->has_name) {                                 /* behind [CALL_ID] stands an id */
        if (before > NAME_READ_MAX + 1 - r->name.len) { /* at one place, however it comes */
            before = NAME_READ_MAX + 1 - r->name.len;
            found = -1;
        }
        buf_add(&r->name, reply_in(r), before);
    }
    reply_take(r, before);
    if (found < 0 && !r->ended && r->name.len <= NAME_READ_MAX)
        return false;
    if (!r->has_name)
        trim_name(r);
    r->has_name = reply_is_name(&r->name);
    if (found < 0 || !r->has_name) {
        reply_fail_call(r);
        return true;
    }
    if (found < ENDS && tags[found][0] != '<')
        reply_take(r, strlen(tags[found]));
    if (found == 1 && r->o.format == REPLY_MISTRAL)
        return true; /* the id */
    if (f->end[found < ENDS ? found : 0][0] == '<' && f->args == ARGS_JSON)
        reply_take(r, strlen(tags[found]));
    begin_args(r, f->args);
    return true;
}

/* --- the machine -------------------------------------------------------------------------- */

/* One step; false when more text is needed. */
static bool step(struct reply *r)
{
    switch ((enum reply_state)r->state) {
    case REPLY_AT_START: return step_start(r);
    case REPLY_IN_REASON: return step_reason(r);
    case REPLY_IN_TEXT: return step_text(r);
    case REPLY_BETWEEN: return step_between(r);
    case REPLY_AT_HEAD: return step_head(r);
    case REPLY_IN_NAME: return step_name(r);
    case REPLY_AT_ARGS: return reply_step_args_begin(r);
    case REPLY_IN_ARGS: return reply_step_args(r);
    case REPLY_IN_LIST: return reply_step_list(r);
    case REPLY_AT_OBJECT: return reply_step_object(r);
    case REPLY_AT_KEY: return reply_step_key(r);
    case REPLY_IN_KEY: return reply_step_in_key(r);
    case REPLY_AT_COLON: return reply_step_colon(r);
    case REPLY_AT_VALUE: return reply_step_value(r);
    case REPLY_IN_NAMED: return reply_step_named(r);
    case REPLY_IN_EARLY: return reply_step_early(r);
    case REPLY_IN_OTHER: return reply_step_other(r);
    case REPLY_AT_PARAM: return reply_step_param(r);
    case REPLY_IN_PARAM: return reply_step_in_param(r);
    case REPLY_BEFORE_VALUE: return reply_step_before_value(r);
    case REPLY_IN_VALUE: return reply_step_in_value(r);
    case REPLY_AT_CLOSE: return reply_step_close(r);
    case REPLY_IN_PYTHON: return reply_step_python(r);
    case REPLY_IN_HEADER: return reply_step_header(r);
    case REPLY_IN_MESSAGE_REASON:
    case REPLY_IN_MESSAGE_TEXT:
    case REPLY_IN_MESSAGE_ARGS: return reply_step_message(r);
    }
    return false;
}

static bool has_failed(const struct reply *r)
{
    return r->in.failed || r->raw.failed || r->name.failed || r->key.failed || r->value.failed ||
           r->space.failed;
}

/* Each step takes text or goes on in the format's order, so this ends. */
static int run(struct reply *r)
{
    while (!has_failed(r) && (reply_left(r) > 0 || r->ended) && step(r))
        continue;
    if (r->at == r->in.len) {
        buf_clear(&r->in);
        r->at = 0;
    } else if (r->at > 4096) {
        memmove(r->in.bytes, r->in.bytes + r->at, r->in.len - r->at + 1);
        r->in.len -= r->at;
        r->at = 0;
    }
    return has_failed(r) ? ERR_NO_MEMORY : ERR_OK;
}

void reply_init(struct reply *r, const struct reply_options *o, reply_fn *said, void *arg)
{
    *r = (struct reply){.o = *o, .said = said, .arg = arg, .state = REPLY_AT_START};
}

void reply_fini(struct reply *r)
{
    buf_fini(&r->in);
    buf_fini(&r->raw);
    buf_fini(&r->name);
    buf_fini(&r->key);
    buf_fini(&r->value);
    buf_fini(&r->space);
}

int reply_push(struct reply *r, const char *text, size_t len)
{
    if (len == 0)
        return ERR_OK;
    buf_add(&r->in, text, len);
    return run(r);
}

bool reply_is_reasoning(const struct reply *r)
{
    return r->state == REPLY_IN_REASON || r->state == REPLY_IN_MESSAGE_REASON;
}

bool reply_may_be_content(const struct reply *r)
{
    if (r->state == REPLY_BETWEEN)
        return reply_left(r) > 0; /* the beginning of a tag, or not */
    if (r->state >= REPLY_AT_HEAD && r->state < REPLY_IN_HEADER)
        return !r->is_said; /* what is no call after all is content */
    if (r->state == REPLY_IN_MESSAGE_TEXT)
        return !r->at_message || reply_left(r) > 0;
    return r->state == REPLY_AT_START || r->state == REPLY_IN_TEXT;
}

int reply_finish(struct reply *r)
{
    int rc;

    r->ended = true;
    if (r->in.bytes == NULL)
        buf_add(&r->in, "", 0);
    rc = run(r);
    if (rc != ERR_OK)
        return rc;
    /* A call in the middle of its arguments stays as it is: the client is told why it ended. */
    if (!r->is_said && r->raw.len > 0 && r->state >= REPLY_AT_HEAD && r->state < REPLY_IN_HEADER)
        reply_fail_call(r);
    if (!reply_is_reasoning(r) && r->any_content && r->n_calls == 0)
        reply_say(r, REPLY_CONTENT, r->space.bytes, r->space.len);
    buf_clear(&r->space);
    return has_failed(r) ? ERR_NO_MEMORY : ERR_OK;
}

/* --- which format ------------------------------------------------------------------------- */

enum reply_format reply_format_of(const char *source)
{
    static const struct {
        const char *word;
        enum reply_format format;
    } words[] = {
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

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(source, words[i].word) == NULL)
            continue;
        if (words[i].format == REPLY_DEEPSEEK_V3 && strstr(source, DEEPSEEK_OPEN) == NULL)
            continue;
        if (words[i].format == REPLY_QWEN3_CODER && strstr(source, "<parameter=") == NULL)
            return REPLY_PLAIN; /* functionary's: JSON between the tags, which no row here has */
        return words[i].format;
    }
    return REPLY_PLAIN;
}

enum reply_reasoning reply_reasoning_of(const char *source)
{
    if (strstr(source, "</think>") != NULL)
        return REPLY_THINK;
    return strstr(source, "[/THINK]") != NULL ? REPLY_THINK_BRACKETS : REPLY_NO_REASONING;
}

enum reply_format reply_format_named(const char *name)
{
    /* vLLM has several parsers for one format. */
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
        {"none", REPLY_NO_REASONING}, {"mistral", REPLY_THINK_BRACKETS},
        {"think", REPLY_THINK},       {"qwen3", REPLY_THINK},
        {"deepseek_r1", REPLY_THINK}, {"deepseek_v3", REPLY_THINK},
        {"deepseek_v4", REPLY_THINK}, {"glm45", REPLY_THINK},
        {"glm47", REPLY_THINK},       {"kimi_k2", REPLY_THINK},
        {"mimo", REPLY_THINK},        {"minimax_m2", REPLY_THINK},
        {"nemotron_v3", REPLY_THINK}, {"olmo3", REPLY_THINK},
        {"step3", REPLY_THINK},       {"ernie45", REPLY_THINK},
        {"holo2", REPLY_THINK},       {"openai_gptoss", REPLY_NO_REASONING}, /* channels */
    };

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
    const char *open = think_open[reasoning], *close = think_close[reasoning];

    /* The later of the two tags decides; only the end of a prompt can hold it open. */
    for (size_t i = len; open != NULL && i > 0 && len - i < 4096; i--) {
        size_t left = len - (i - 1);

        if (left >= strlen(close) && memcmp(prompt + i - 1, close, strlen(close)) == 0)
            return false;
        if (left >= strlen(open) && memcmp(prompt + i - 1, open, strlen(open)) == 0) {
            for (size_t k = i - 1 + strlen(open); k < len; k++) {
                if (!reply_is_space(prompt[k]))
                    return false; /* a text about the tag */
            }
            return true;
        }
    }
    return false;
}

bool reply_is_over(enum reply_reasoning reasoning, const char *prompt, size_t len)
{
    const char *close = think_close[reasoning];
    size_t n = close == NULL ? 0 : strlen(close);

    while (len > 0 && reply_is_space(prompt[len - 1]))
        len--;
    return n > 0 && len >= n && memcmp(prompt + len - n, close, n) == 0;
}

const char *reply_reason_open(enum reply_reasoning reasoning)
{
    return think_open[reasoning];
}

const char *reply_reason_close(enum reply_reasoning reasoning)
{
    return think_close[reasoning];
}

int reply_tags(enum reply_format format, enum reply_reasoning reasoning,
               const char *tags[REPLY_TAGS_MAX])
{
    static const char *const harmony[] = {"<|start|>",     "<|channel|>", "<|message|>",
                                          "<|constrain|>", "<|end|>",     "<|call|>",
                                          "<|return|>"};
    static const char *const pairs[] = {"</arg_key>", "<arg_value>", "</arg_value>"};
    static const char *const params[] = {"</function>", "<parameter=", "</parameter>"};
    const struct reply_shape *f = &reply_formats[format];
    const char *const all[] = {f->open[0],
                               f->open[1],
                               f->end[0],
                               f->end[1],
                               f->close,
                               f->section[0],
                               f->section[1],
                               format == REPLY_DEEPSEEK_V3 ? DEEPSEEK_SEP : NULL,
                               think_open[reasoning],
                               think_close[reasoning]};
    int n = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != NULL)
            tags[n++] = all[i];
    }
    for (int i = 0; i < 3 && (f->args == ARGS_PAIRS || f->args == ARGS_TAGS); i++)
        tags[n++] = f->args == ARGS_PAIRS ? pairs[i] : params[i];
    for (size_t i = 0; i < sizeof harmony / sizeof harmony[0] && format == REPLY_HARMONY; i++)
        tags[n++] = harmony[i];
    return n;
}
