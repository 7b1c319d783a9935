/* SPDX-License-Identifier: Apache-2.0
 *
 * The grammar around the arguments of tool calls. A table has a row per model format, for example
 *
 *   hermes   <tool_call>\n{"name": "NAME", "arguments": ARGS}\n</tool_call>
 *   mistral  [TOOL_CALLS][{"name": "NAME", "arguments": ARGS}, ...]
 *   kimi_k2  <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0 ...
 *
 * There are two uses. When a call is forced, the grammar is calls and nothing else. When the model
 * may call, it is free text with triggers: once the text contains the opening tag of a call, the
 * rest of the call is constrained. */
#include "front/structured/calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "front/structured/calls_parts.h"

#define NAME_MAX_LEN   64 /* characters of a function's name, as in OpenAI's API */

#define DEEPSEEK(word) "<\xef\xbd\x9ctool\xe2\x96\x81" word "\xef\xbd\x9c>"
#define DEEPSEEK_LOW   "\xe2\x96\x81" /* the mark between the words of these tags */

/* One format of calls: open, then calls with `between` between them, then close. A call is begin,
 * then the name between head and tail, then the arguments, then end. */
struct calls_shape {
    enum reply_format format;
    const char *open, *begin, *head, *tail, *end, *between, *close;
    bool patterns; /* open and close are patterns, not texts */
};

static const struct calls_shape shapes[] = {
    {REPLY_HERMES, "", "<tool_call>", "\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>",
     "\n", "", false},
    {REPLY_LLAMA3, "(<\\|python_tag\\|>)?", "", "{\"name\": \"", "\", \"parameters\": ", "}", "; ",
     "", true},
    {REPLY_MISTRAL, "\\[TOOL_CALLS\\] ?\\[", "", "{\"name\": \"", "\", \"arguments\": ", "}", ", ",
     "\\]", true},
    {REPLY_MISTRAL, "", "[TOOL_CALLS]", "", "[ARGS]", "", "", "", false},
    {REPLY_QWEN3_CODER, "", "<tool_call>", "\n<function=", ">\n", "</function>\n</tool_call>", "\n",
     "", false},
    {REPLY_PYTHONIC, "(<\\|python_start\\|>)?\\[", "", "", "(", ")", ", ",
     "\\](<\\|python_end\\|>)?", true},
    {REPLY_DEEPSEEK_V3, DEEPSEEK("calls" DEEPSEEK_LOW "begin"),
     DEEPSEEK("call" DEEPSEEK_LOW "begin"), "function" DEEPSEEK("sep"), "\n```json\n",
     "\n```" DEEPSEEK("call" DEEPSEEK_LOW "end"), "\n", DEEPSEEK("calls" DEEPSEEK_LOW "end"),
     false},
    {REPLY_DEEPSEEK_V31, DEEPSEEK("calls" DEEPSEEK_LOW "begin"),
     DEEPSEEK("call" DEEPSEEK_LOW "begin"), "", DEEPSEEK("sep"),
     DEEPSEEK("call" DEEPSEEK_LOW "end"), "", DEEPSEEK("calls" DEEPSEEK_LOW "end"), false},
    {REPLY_KIMI_K2, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.",
     "<|tool_call_argument_begin|>", "<|tool_call_end|>", "", "<|tool_calls_section_end|>", false},
    {REPLY_GLM45, "", "<tool_call>", "", "\n", "</tool_call>", "\n", "", false},
    {REPLY_GEMMA4, "", "<|tool_call>", "call:", "{", "}<tool_call|>", "", "", false},
    {REPLY_LIST, "\\[", "", "{\"name\": \"", "\", \"parameters\": ", "}", ", ", "\\]", true},
};

#define N_SHAPES (sizeof shapes / sizeof shapes[0])

/* --- parts -------------------------------------------------------------------------------- */

/* Note the first error. Later ones are mostly its consequences. */
void calls_fail(struct calls *c, int rc, const char *format, ...)
{
    must(rc != ERR_OK);
    va_list args;

    if (c->rc != ERR_OK)
        return;
    c->rc = rc;
    va_start(args, format);
    (void)vsnprintf(c->why, c->cap, format, args);
    va_end(args);
}

/* Append a part. Lists double in the arena, which wastes the old half but frees nothing. */
void calls_add(struct calls *c, struct part_list *l, struct grammar_part part)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 8 : 2 * l->cap;
        struct grammar_part *items = arena_alloc(c->arena, cap * sizeof *items);

        if (items == NULL) {
            calls_fail(c, ERR_NO_MEMORY, "out of memory");
            return;
        }
        if (l->n > 0)
            memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = part;
}

/* Append a constant text; "" adds nothing. */
void calls_add_text(struct calls *c, struct part_list *l, const char *text)
{
    if (text[0] != '\0')
        calls_add(c, l,
                  (struct grammar_part){.kind = PART_TEXT, .text = text, .len = strlen(text)});
}

/* Append a pattern; "" adds nothing. */
void calls_add_regex(struct calls *c, struct part_list *l, const char *pattern)
{
    if (pattern[0] != '\0')
        calls_add(
            c, l,
            (struct grammar_part){.kind = PART_REGEX, .text = pattern, .len = strlen(pattern)});
}

/* Append a formatted text. NAME_MAX_LEN and KEY_MAX bound its length. */
void calls_add_printf(struct calls *c, struct part_list *l, const char *format, ...)
{
    char text[512]; /* longer than a name and its tags */
    const char *copy;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    copy = arena_strndup(c->arena, text, strlen(text));
    if (copy == NULL)
        calls_fail(c, ERR_NO_MEMORY, "out of memory");
    else
        calls_add_text(c, l, copy);
}

/* All parts of a list, one after the other. */
struct grammar_part calls_sequence(const struct part_list *l)
{
    return (struct grammar_part){.kind = PART_SEQUENCE, .parts = l->items, .n_parts = l->n};
}

/* One part of a list. */
struct grammar_part calls_choice(const struct part_list *l)
{
    return (struct grammar_part){.kind = PART_CHOICE, .parts = l->items, .n_parts = l->n};
}

/* A list's parts, min to max times, with a text between. */
struct grammar_part calls_repeat(const struct part_list *l, uint32_t min, uint32_t max,
                                 const char *between)
{
    return (struct grammar_part){.kind = PART_REPEAT,
                                 .text = between,
                                 .len = strlen(between),
                                 .parts = l->items,
                                 .n_parts = l->n,
                                 .min = min,
                                 .max = max};
}

/* --- tools -------------------------------------------------------------------------------- */

/* Check a function's name, because it is written into JSON, tags and Python without escapes:
 * OpenAI's characters are allowed, and dots. */
static void calls_check_name(struct calls *c, uint32_t tool, const char *name)
{
    static const char *const letters =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    size_t n = strspn(name, letters);
    bool python = c->format == REPLY_PYTHONIC;

    if (name[n] != '\0' || n > NAME_MAX_LEN)
        calls_fail(c, ERR_INVALID,
                   "'tools[%u].function.name' must be of at most %d letters, digits, '_', '-' and "
                   "'.'",
                   tool, NAME_MAX_LEN);
    else if (python && (strchr(name, '-') != NULL || strspn(name, "0123456789.") > 0))
        calls_fail(
            c, ERR_UNSUPPORTED,
            "'tools[%u].function.name' is not a name in Python, the language of this model's "
            "calls",
            tool);
}

/* A call of one tool, after its opening tag. Two formats number their calls or give them ids. */
static struct grammar_part calls_tool(struct calls *c, const struct calls_shape *shape,
                                      const char *name, const struct json *schema)
{
    struct part_list parts = {0};

    calls_add_printf(c, &parts, "%s%s%s", shape->head, name,
                     shape->format == REPLY_KIMI_K2 ? ":" : "");
    if (shape->format == REPLY_KIMI_K2)
        calls_add_regex(c, &parts, "[0-9]{1,3}");
    if (shape->format == REPLY_MISTRAL && shape->open[0] == '\0')
        calls_add_regex(c, &parts, "(\\[CALL_ID\\][0-9A-Za-z]{9})?");
    calls_add_text(c, &parts, shape->tail);
    calls_add_args(c, &parts, name, schema);
    calls_add_text(c, &parts, shape->end);
    return calls_sequence(&parts);
}

/* A call in harmony: "to=functions.NAME" may be before or after the channel. */
static struct grammar_part calls_tool_harmony(struct calls *c, const char *name,
                                              const struct json *schema)
{
    struct part_list parts = {0}, header = {0};

    calls_add_printf(c, &header, "<|channel|>commentary to=functions.%s", name);
    calls_add_printf(c, &header, " to=functions.%s<|channel|>commentary", name);
    calls_add(c, &parts, calls_choice(&header));
    calls_add_regex(c, &parts, "( ?<\\|constrain\\|>json| json)?");
    calls_add_text(c, &parts, "<|message|>");
    calls_add_args(c, &parts, name, schema);
    return calls_sequence(&parts);
}

/* A choice of the tools that may be called. If the model need not call, arguments are constrained
 * only for strict tools. */
static struct grammar_part calls_tools(struct calls *c, const struct form *f,
                                       const struct calls_shape *shape)
{
    struct part_list parts = {0};

    for (uint32_t i = 0; i < f->tools->n; i++) {
        const struct json *function = json_get(&f->tools->items[i], "function");
        const char *name = json_get_text(function, "name", "");
        const struct json *schema = json_get_kind(function, "parameters", JSON_OBJECT);

        if (!form_allows(f, name))
            continue;
        if (f->calls == FORM_CALLS_AUTO && !json_get_bool(function, "strict", false))
            schema = NULL;
        calls_check_name(c, i, name);
        if (c->rc != ERR_OK)
            break;
        calls_add(c, &parts,
                  shape == NULL ? calls_tool_harmony(c, name, schema)
                                : calls_tool(c, shape, name, schema));
    }
    return calls_choice(&parts);
}

/* --- all calls ---------------------------------------------------------------------------- */

/* The text or pattern around all calls. */
static void calls_add_border(struct calls *c, struct part_list *l, const struct calls_shape *shape,
                             const char *text)
{
    if (shape->patterns)
        calls_add_regex(c, l, text);
    else
        calls_add_text(c, l, text);
}

/* Up to max calls after the opening tag of all; open: with that tag. */
static struct grammar_part calls_all(struct calls *c, const struct form *f,
                                     const struct calls_shape *shape, bool open, uint32_t max)
{
    struct part_list parts = {0}, call = {0};

    calls_add_text(c, &call, shape->begin);
    calls_add(c, &call, calls_tools(c, f, shape));
    if (open)
        calls_add_border(c, &parts, shape, shape->open);
    calls_add(c, &parts, calls_repeat(&call, 1, max, shape->between));
    calls_add_border(c, &parts, shape, shape->close);
    return calls_sequence(&parts);
}

/* Calls and nothing else, in any of the format's variants. */
static void calls_add_forced(struct calls *c, const struct form *f, uint32_t max,
                             struct part_list *out)
{
    for (size_t i = 0; i < N_SHAPES; i++) {
        if (shapes[i].format == c->format)
            calls_add(c, out, calls_all(c, f, &shapes[i], true, max));
    }
}

/* --- calls in free text ------------------------------------------------------------------- */

/* In these formats a call may begin with its JSON or Python, without a tag. */
bool calls_may_begin_bare(enum reply_format format)
{
    return format == REPLY_LLAMA3 || format == REPLY_PYTHONIC || format == REPLY_LIST;
}

/* For formats whose calls have no tag: a pattern for texts that are not calls, because they begin
 * with another character and contain no tag. */
static const char *calls_other_text(enum reply_format format)
{
    if (format == REPLY_LLAMA3)
        return "(?![\\s\\S]*<\\|python_tag\\|>)[ \\t\\r\\n]*([^ \\t\\r\\n{][\\s\\S]*)?";
    return "(?![\\s\\S]*<\\|python_start\\|>)[ \\t\\r\\n]*([^ \\t\\r\\n\\[][\\s\\S]*)?";
}

/* A trigger is a text in free text, and the part that must follow it. */
static void calls_add_trigger(struct calls *c, struct part_list *triggers, const char *text,
                              struct grammar_part rest)
{
    struct part_list parts = {0};

    calls_add_text(c, &parts, text);
    calls_add(c, &parts, rest);
    calls_add(c, triggers, calls_sequence(&parts));
}

/* The part after [TOOL_CALLS], in both variants of the format. */
static struct grammar_part calls_mistral_rest(struct calls *c, const struct form *f,
                                              const struct calls_shape *shape, uint32_t max)
{
    struct part_list list = {0}, ways = {0};

    calls_add_regex(c, &list, " ?\\[");
    calls_add(c, &list, calls_all(c, f, shape, false, max));
    calls_add(c, &ways, calls_sequence(&list));
    calls_add(c, &ways, calls_tools(c, f, shape + 1));
    return calls_choice(&ways);
}

/* The texts that begin a call in this format, each with the part that must follow. */
static void calls_add_triggers(struct calls *c, const struct form *f,
                               const struct calls_shape *shape, uint32_t max,
                               struct part_list *triggers)
{
    struct calls_shape inner = *shape;

    if (shape->format == REPLY_MISTRAL) {
        calls_add_trigger(c, triggers, "[TOOL_CALLS]", calls_mistral_rest(c, f, shape, max));
        return;
    }
    if (shape->open[0] != '\0')
        calls_add_trigger(c, triggers, shape->open, calls_all(c, f, shape, false, max));
    calls_add_trigger(c, triggers, shape->begin, calls_tools(c, f, shape));
    if (shape->format == REPLY_QWEN3_CODER) { /* this model may omit the outer tag */
        inner.head = "";
        calls_add_trigger(c, triggers, "<function=", calls_tools(c, f, &inner));
    }
}

/* Free text in which calls may appear. */
static void calls_add_free(struct calls *c, const struct form *f, uint32_t max,
                           struct part_list *out)
{
    struct part_list triggers = {0};

    if (calls_may_begin_bare(c->format)) {
        calls_add_forced(c, f, max, out);
        calls_add_regex(c, out, calls_other_text(c->format));
        return;
    }
    for (size_t i = 0; i < N_SHAPES && triggers.n == 0; i++) {
        if (shapes[i].format == c->format)
            calls_add_triggers(c, f, &shapes[i], max, &triggers);
    }
    if (triggers.n > 0)
        calls_add(
            c, out,
            (struct grammar_part){
                .kind = PART_TRIGGERS, .parts = triggers.items, .n_parts = triggers.n, .max = max});
}

/* --- harmony ------------------------------------------------------------------------------ */

#define HARMONY_TEXT "(?![\\s\\S]*<\\|(end|call|return|start|channel)\\|>)[^\\x00]*"

/* Any number of messages in the channels analysis and commentary, then the final message or a call.
 * With a constraint on the content, commentary is left out, because it is content, too. */
static struct grammar_part calls_harmony(struct calls *c, const struct form *f,
                                         const struct grammar_part *content, bool calls)
{
    bool forced = form_forces(f);
    struct part_list parts = {0}, before = {0}, last = {0}, final = {0};

    calls_add_regex(c, &before,
                    content != NULL ? "<\\|channel\\|>analysis<\\|message\\|>"
                                    : "<\\|channel\\|>(analysis|commentary)<\\|message\\|>");
    calls_add_regex(c, &before, HARMONY_TEXT);
    calls_add_text(c, &before, "<|end|><|start|>assistant");
    calls_add(c, &parts, calls_repeat(&before, 0, UINT32_MAX, ""));
    calls_add_regex(c, &final,
                    "<\\|channel\\|>final( ?<\\|constrain\\|>(json|JSON))?<\\|message\\|>");
    if (content != NULL)
        calls_add(c, &final, *content);
    else
        calls_add_regex(c, &final, HARMONY_TEXT);
    if (!forced)
        calls_add(c, &last, calls_sequence(&final));
    if (calls)
        calls_add(c, &last, calls_tools(c, f, NULL));
    calls_add(c, &parts, calls_choice(&last));
    return calls_sequence(&parts);
}

/* --- public ------------------------------------------------------------------------------- */

/* Texts that begin a call, or end a message, in a reply of each format. */
static const char *const avoided[REPLY_FORMATS][6] = {
    [REPLY_HERMES] = {"<tool_call>"},
    [REPLY_LLAMA3] = {"<|python_tag|>"},
    [REPLY_MISTRAL] = {"[TOOL_CALLS]"},
    [REPLY_QWEN3_CODER] = {"<tool_call>", "<function="},
    [REPLY_PYTHONIC] = {"<|python_start|>"},
    [REPLY_DEEPSEEK_V3] = {"<\xef\xbd\x9ctool" DEEPSEEK_LOW "call"},
    [REPLY_DEEPSEEK_V31] = {"<\xef\xbd\x9ctool" DEEPSEEK_LOW "call"},
    [REPLY_KIMI_K2] = {"<|tool_call"},
    [REPLY_GLM45] = {"<tool_call>"},
    [REPLY_GEMMA4] = {"<|tool_call>"},
    [REPLY_HARMONY] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"},
};

/* Text i that begins a call in this format; NULL after the last one. */
const char *calls_avoided(enum reply_format format, size_t i)
{
    must((size_t)format < REPLY_FORMATS);
    if (i < 6)
        return avoided[format][i];
    return NULL;
}

/* Write a pattern for texts that contain none of these. */
static void calls_write_avoided(enum reply_format format, struct buf *b)
{
    buf_add_text(b, "(?![\\s\\S]*(");
    for (size_t i = 0; calls_avoided(format, i) != NULL; i++) {
        buf_add_text(b, i > 0 ? "|" : "");
        for (const char *p = calls_avoided(format, i); *p != '\0'; p++) {
            if (strchr("|[]", *p) != NULL)
                buf_add_byte(b, '\\');
            buf_add_byte(b, *p);
        }
    }
    buf_add_text(b, "))[^\\x00]*");
}

/* Let a part exclude texts that look like a call. */
int calls_avoid(enum reply_format format, struct arena *arena, struct grammar_part *part)
{
    struct calls calls = {.arena = arena};
    struct part_list parts = {0};
    struct buf buf = {0};
    const char *pattern;

    if (calls_avoided(format, 0) == NULL)
        return ERR_OK;
    if (part->kind == PART_REGEX && calls_may_begin_bare(format))
        buf_add_text(&buf, calls_other_text(format));
    else
        calls_write_avoided(format, &buf);
    if (buf.failed)
        pattern = NULL;
    else
        pattern = arena_strndup(arena, buf.bytes, buf.len);
    buf_fini(&buf);
    if (pattern == NULL)
        return ERR_NO_MEMORY;
    calls_add_regex(&calls, &parts, pattern);
    part->parts = parts.items;
    part->n_parts = parts.n;
    return calls.rc;
}

/* Compose the alternatives of the reply. */
int calls_compose(const struct form *f, const struct form_model *m, struct arena *arena,
                  struct grammar_part *body, size_t *n, struct reason *reason)
{
    enum reply_format format = form_reply_format(f, m->format);
    struct calls calls = {
        .arena = arena, .format = format, .why = reason->text, .cap = sizeof reason->text};
    bool forced = form_forces(f);
    /* A named function is called once, as in OpenAI's API. */
    uint32_t max = m->one_call || f->calls == FORM_CALLS_NAMED ? 1 : UINT32_MAX;
    struct part_list parts = {0};

    must(*n <= 1);
    if (format == REPLY_HARMONY) {
        struct grammar_part all = calls_harmony(&calls, f, *n > 0 ? &body[0] : NULL,
                                                f->tools != NULL && f->calls != FORM_CALLS_NONE);

        if (calls.rc == ERR_OK)
            body[0] = all;
        *n = 1;
        return calls.rc;
    }
    if (forced || *n > 0) /* constrained content is not free text either */
        calls_add_forced(&calls, f, max, &parts);
    else
        calls_add_free(&calls, f, max, &parts);
    if (calls.rc == ERR_OK && parts.n > 0)
        body[(*n)++] = calls_choice(&parts);
    return calls.rc;
}
