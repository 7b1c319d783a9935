/* Replies: what a model says, taken apart while it comes: reasoning, content, tool calls.
 *
 * One machine for all formats; a row of a table (reply.c) says what a format's tags are. Any cut of
 * the text into pushes gives the same events when those of one kind in a row are joined. What is
 * not as the format wants it is content: a model's slip is never an error.
 *
 * Source: the formats as their models' chat templates write them. */
#ifndef QUIRE_TEXT_OUTPUT_REPLY_H
#define QUIRE_TEXT_OUTPUT_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

enum reply_format {
    REPLY_PLAIN,       /* no calls: all is content */
    REPLY_HERMES,      /* <tool_call>{"name": "f", "arguments": {}}</tool_call>: also Qwen 2.5, 3 */
    REPLY_LLAMA3,      /* {"name": "f", "parameters": {}}, at the beginning alone */
    REPLY_MISTRAL,     /* [TOOL_CALLS][{...}], and [TOOL_CALLS]f[ARGS]{} of later models */
    REPLY_QWEN3_CODER, /* <function=f><parameter=k>v</parameter></function>, in a tool_call */
    REPLY_PYTHONIC,    /* [f(a=1, b="x"), g()], at the beginning alone */
    REPLY_DEEPSEEK_V3, /* with ```json fences: also R1 */
    REPLY_DEEPSEEK_V31,
    REPLY_KIMI_K2,
    REPLY_GLM45,   /* <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> */
    REPLY_HARMONY, /* gpt-oss: channels */
    REPLY_LIST, /* [{"name": "f", "parameters": {}}], at the beginning alone: for models that know
                    * no calls, but are made to write one */
    REPLY_FORMATS,
};

enum reply_reasoning {
    REPLY_NO_REASONING,
    REPLY_THINK,          /* <think> ... </think> */
    REPLY_THINK_BRACKETS, /* [THINK] ... [/THINK] */
};

enum reply_kind {
    REPLY_CONTENT,
    REPLY_REASON,
    REPLY_CALL_BEGIN, /* bytes: the function's name */
    REPLY_CALL_ARGS,  /* a piece of the arguments, which are a JSON object when joined */
    REPLY_CALL_END,
};

/* One event; bytes live until the callback returns. */
struct reply_event {
    enum reply_kind kind;
    int call; /* index of the call, from 0 */
    const char *bytes;
    size_t len; /* > 0 for content, reasoning and arguments */
};

typedef void reply_fn(void *arg, const struct reply_event *e);

struct reply_options {
    enum reply_format format;
    enum reply_reasoning reasoning;
    bool begins_inside;       /* the prompt ended inside the reasoning */
    bool only_calls;          /* calls must come, nothing else can: one that is cut is no content */
    const struct json *tools; /* the request's list, or NULL; borrowed until reply_fini() */
};

struct reply {
    struct reply_options o;
    reply_fn *said;
    void *arg;
    int state;         /* enum reply_state of reply.c */
    struct buf in;     /* not taken yet */
    size_t at;         /* of it, what is taken */
    struct buf raw;    /* of a call whose name is not known yet: content, should it be none */
    struct buf name;   /* of the call; a header of harmony */
    struct buf key;    /* of a member or parameter */
    struct buf value;  /* of a parameter; arguments that came before the name */
    struct buf space;  /* white space that is content if content follows */
    int n_calls;       /* begun */
    int depth;         /* of brackets, inside a JSON value */
    bool in_text;      /* inside a JSON text */
    bool escaped;      /* behind a backslash in it */
    bool has_reasoned; /* some reasoning has been said */
    bool has_args;     /* a member has been written */
    bool has_name;     /* the call's name is known */
    bool is_said;      /* the call has begun */
    bool in_list;      /* calls are members of a JSON list */
    bool at_message;   /* nothing of harmony's message has come yet */
    bool any_content;  /* something but white space was said, or a call */
    bool ended;        /* no more will come: what is there is all */
};

/* The format and reasoning that a chat template's text speaks of; plain and none when unknown. */
enum reply_format reply_format_of(const char *source);
enum reply_reasoning reply_reasoning_of(const char *source);

/* By vLLM's name of a tool parser ("hermes", "llama3_json", ...); REPLY_FORMATS if unknown. */
enum reply_format reply_format_named(const char *name);

/* By vLLM's name of a reasoning parser ("qwen3", "deepseek_r1", ...), or none, think, mistral.
 * False if it is unknown. */
bool reply_reasoning_named(const char *name, enum reply_reasoning *out);

/* Does a prompt end inside a reasoning block, so that the reply begins there? */
bool reply_is_inside(enum reply_reasoning r, const char *prompt, size_t len);

/* Does it end behind one, so that there is none in the reply? */
bool reply_is_over(enum reply_reasoning r, const char *prompt, size_t len);

/* The tags that say something in such a reply, all that a tokenizer may have as one token: their
 * number. */
#define REPLY_TAGS_MAX 16
int reply_tags(enum reply_format format, enum reply_reasoning r, const char *tags[REPLY_TAGS_MAX]);

/* The tags of a reasoning; NULL without one. */
const char *reply_reason_open(enum reply_reasoning r);
const char *reply_reason_close(enum reply_reasoning r);

/* Begin a reply; said is called from reply_push() and reply_finish(). Nothing is allocated. */
void reply_init(struct reply *reply, const struct reply_options *options, reply_fn *said,
                void *arg);
void reply_fini(struct reply *reply); /* accepts {0} */

/* Take a piece of text, whole characters. ERR_OK or ERR_NO_MEMORY. Linear in the text. */
int reply_push(struct reply *reply, const char *text, size_t len) ERR_CHECKED;

/* Is what comes next part of the reasoning? */
bool reply_is_reasoning(const struct reply *reply);

/* May what was pushed last, or what comes next, still become content? False inside reasoning and
 * calls, and behind a tag that says nothing itself. */
bool reply_may_be_content(const struct reply *reply);

/* The text has ended, here or in the middle of something. */
int reply_finish(struct reply *reply) ERR_CHECKED;

#endif
