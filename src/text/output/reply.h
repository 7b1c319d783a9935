/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses a model's output while it is generated into reasoning, content and tool calls.
 *
 * One state machine serves all formats; a row of a table (reply.c) holds the tags of each. The
 * events do not depend on how the text is split into pushes, once adjacent events of one kind are
 * joined. Text that does not follow the format is emitted as content: a model's mistake is never an
 * error.
 *
 * Source: the formats as the models' chat templates write them. One thread at a time per reply. */
#ifndef QUIRE_TEXT_OUTPUT_REPLY_H
#define QUIRE_TEXT_OUTPUT_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

enum reply_format {
    REPLY_PLAIN,       /* no tool calls: all text is content */
    REPLY_HERMES,      /* <tool_call>{"name": "f", "arguments": {}}</tool_call>: also Qwen 2.5, 3 */
    REPLY_LLAMA3,      /* {"name": "f", "parameters": {}}, only at the beginning */
    REPLY_MISTRAL,     /* [TOOL_CALLS][{...}], and [TOOL_CALLS]f[ARGS]{} of later models */
    REPLY_QWEN3_CODER, /* <function=f><parameter=k>v</parameter></function>, in a tool_call */
    REPLY_PYTHONIC,    /* [f(a=1, b="x"), g()], only at the beginning */
    REPLY_DEEPSEEK_V3, /* with ```json fences: also R1 */
    REPLY_DEEPSEEK_V31,
    REPLY_KIMI_K2,
    REPLY_GLM45,   /* <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> */
    REPLY_GEMMA4,  /* <|tool_call>call:f{k:<|"|>v<|"|>,n:1}<tool_call|> */
    REPLY_HARMONY, /* gpt-oss: channels */
    REPLY_LIST,    /* [{"name": "f", "parameters": {}}], only at the beginning: for models without a
                 * format of their own, which a grammar forces to write calls */
    REPLY_FORMATS,
};

enum reply_reasoning {
    REPLY_NO_REASONING,
    REPLY_THINK,          /* <think> ... </think> */
    REPLY_THINK_BRACKETS, /* [THINK] ... [/THINK] */
    REPLY_THINK_CHANNEL,  /* <|channel>thought ... <channel|> */
    REPLY_REASONINGS,
};

enum reply_kind {
    REPLY_CONTENT,
    REPLY_REASON,
    REPLY_CALL_BEGIN, /* bytes: the function's name */
    REPLY_CALL_ARGS,  /* a piece of the arguments; all pieces joined are a JSON object */
    REPLY_CALL_END,
};

/* One event. The bytes are valid until the callback returns. */
struct reply_event {
    enum reply_kind kind;
    int call; /* index of the call, from 0 */
    const char *bytes;
    size_t len; /* > 0 for content, reasoning and arguments */
};

typedef void reply_fn(void *arg, const struct reply_event *event);

struct reply_options {
    enum reply_format format;
    enum reply_reasoning reasoning;
    bool begins_inside;       /* the prompt ended inside a reasoning block */
    bool only_calls;          /* a grammar allows nothing but calls: drop all content */
    const struct json *tools; /* the request's list, or NULL; borrowed until reply_fini() */
};

struct reply {
    struct reply_options o;
    reply_fn *said;
    void *arg;
    int state;     /* enum reply_state */
    struct buf in; /* text received; bytes before `at` are consumed */
    size_t at;
    struct buf raw;    /* bytes of a call that may turn out to be content */
    struct buf name;   /* of the call; in harmony, a message's header */
    struct buf key;    /* of a member or parameter */
    struct buf value;  /* of a parameter; arguments that came before the name */
    struct buf space;  /* white space at the end, emitted if content follows */
    int n_calls;       /* calls begun */
    int depth;         /* open brackets of a JSON value */
    bool in_text;      /* inside a JSON string */
    bool escaped;      /* after a backslash in it */
    bool in_mark;      /* inside a string of Gemma 4 */
    bool has_reasoned; /* some reasoning was emitted */
    bool has_args;     /* a member of the arguments was emitted */
    bool has_name;     /* the call's name is known */
    bool is_said;      /* the begin of the call was emitted */
    bool in_list;      /* calls are elements of a JSON list */
    bool at_message;   /* a harmony message has begun and is empty so far */
    bool any_content;  /* a call, or content other than white space, was emitted */
    bool ended;        /* reply_finish() was called: no text will follow */
};

/* The format and the reasoning tags that a chat template's source mentions; plain and none when
 * it mentions no known ones. */
enum reply_format reply_format_of(const char *source);
enum reply_reasoning reply_reasoning_of(const char *source);

/* The format by vLLM's name of a tool parser ("hermes", "llama3_json", ...); REPLY_FORMATS when the
 * name is unknown. */
enum reply_format reply_format_named(const char *name);

/* The reasoning tags by vLLM's name of a reasoning parser ("qwen3", "deepseek_r1", ...), or "none",
 * "think", "mistral". False when the name is unknown. */
bool reply_reasoning_named(const char *name, enum reply_reasoning *out);

/* Does a prompt end inside a reasoning block, so that the reply begins inside? */
bool reply_is_inside(enum reply_reasoning reasoning, const char *prompt, size_t len);

/* Does a prompt end after a complete reasoning block, so that the reply has none? */
bool reply_is_over(enum reply_reasoning reasoning, const char *prompt, size_t len);

/* Collect the tags with a meaning in such a reply, which a tokenizer may have as single tokens.
 * Returns their number. */
#define REPLY_TAGS_MAX 16
int reply_tags(enum reply_format format, enum reply_reasoning reasoning,
               const char *tags[REPLY_TAGS_MAX]);

/* The opening and closing tags of a reasoning block; NULL for REPLY_NO_REASONING. */
const char *reply_reason_open(enum reply_reasoning reasoning);
const char *reply_reason_close(enum reply_reasoning reasoning);

/* Begin a reply. `said` is called with arg from reply_push() and reply_finish(). Allocates
 * nothing. */
void reply_init(struct reply *reply, const struct reply_options *options, reply_fn *said,
                void *arg);
void reply_fini(struct reply *reply); /* accepts {0} */

/* Parse a piece of text, which holds whole characters. ERR_OK or ERR_NO_MEMORY. The time for all
 * pieces is linear in their length. */
int reply_push(struct reply *reply, const char *text, size_t len) ERR_CHECKED;

/* Is the parser inside reasoning? */
bool reply_is_reasoning(const struct reply *reply);

/* Can the text pushed last, or the text that comes next, still become content? False inside
 * reasoning and calls, and after a tag that has no text of its own. */
bool reply_may_be_content(const struct reply *reply);

/* The text has ended, possibly in the middle of a call: decide all that was held back. ERR_OK or
 * ERR_NO_MEMORY. */
int reply_finish(struct reply *reply) ERR_CHECKED;

#endif
