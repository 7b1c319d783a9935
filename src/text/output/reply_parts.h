/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the reply*.c files: the states of the parser, the table of formats, and the functions
 * that look ahead in the text and emit events. */
#ifndef QUIRE_TEXT_OUTPUT_REPLY_PARTS_H
#define QUIRE_TEXT_OUTPUT_REPLY_PARTS_H

#include "text/output/reply.h"

/* States of the parser. States from REPLY_AT_HEAD up to REPLY_IN_HEADER are inside a call. "AT" is
 * a place where something must begin, "IN" is inside of it. */
enum reply_state {
    REPLY_AT_START, /* where reasoning may begin */
    REPLY_IN_REASON,
    REPLY_IN_TEXT,
    REPLY_BETWEEN, /* after a call or reasoning */
    REPLY_AT_HEAD, /* after a call's opening tag */
    REPLY_IN_NAME,
    REPLY_AT_ARGS,   /* where arguments as JSON begin */
    REPLY_IN_ARGS,   /* inside them */
    REPLY_IN_LIST,   /* where an element of a list of calls begins */
    REPLY_AT_OBJECT, /* where a call as a JSON object begins */
    REPLY_AT_KEY,    /* inside it, where a member begins or it ends */
    REPLY_IN_KEY,
    REPLY_AT_COLON, /* after a key */
    REPLY_AT_VALUE,
    REPLY_IN_NAMED, /* inside the string that is the function's name */
    REPLY_IN_EARLY, /* inside arguments that came before the name, or that are a string */
    REPLY_IN_OTHER, /* inside a value of a member that is ignored */
    REPLY_AT_PARAM, /* where a parameter begins or the call ends */
    REPLY_IN_PARAM, /* inside its name */
    REPLY_BEFORE_VALUE,
    REPLY_IN_VALUE,
    REPLY_IN_MARKED, /* inside the arguments of a call of Gemma 4 */
    REPLY_AT_CLOSE,  /* where a call's closing tag is expected */
    REPLY_IN_PYTHON, /* inside a list of calls in Python */
    REPLY_IN_HEADER, /* of a harmony message */
    REPLY_IN_MESSAGE_REASON,
    REPLY_IN_MESSAGE_TEXT,
    REPLY_IN_MESSAGE_ARGS,
};

/* The pending text: received, not consumed. */
static inline const char *reply_in(const struct reply *reply)
{
    return reply->in.bytes + reply->at;
}

static inline size_t reply_left(const struct reply *reply)
{
    return reply->in.len - reply->at;
}

static inline bool reply_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* How a format writes the arguments of a call. */
enum args_kind { ARGS_NONE, ARGS_OBJECT, ARGS_JSON, ARGS_TAGS, ARGS_PAIRS, ARGS_MARKED };

#define OPENS 2
#define ENDS  2

/* One row per format; see reply.c. */
struct reply_shape {
    const char *name;        /* vLLM's name of the format */
    const char *open[OPENS]; /* tags that begin a call */
    const char *head[OPENS]; /* text between such a tag and the name; "": nothing */
    const char *end[ENDS];   /* ends the name; a tag that begins with '<' starts the arguments */
    const char *close;       /* tag that ends a call */
    const char *section[2];  /* tags around all calls, without meaning of their own */
    enum args_kind args;
    char first; /* first character of a call without a tag, at the start of a reply; 0: none */
};

extern const struct reply_shape reply_formats[REPLY_FORMATS];

/* --- reading ahead, in reply.c --- */

enum match { MATCH_NO, MATCH_YES, MATCH_MAYBE };

/* Does the pending text, from offset `from` on, begin with tag? MATCH_MAYBE: it ends inside it. */
enum match reply_match(const struct reply *reply, size_t from, const char *tag);

/* Find the first of n tags (a NULL matches nothing) in the pending text. Returns its index, and in
 * *before the number of bytes before it. Returns -1 when there is none; *before is then the number
 * of bytes that are certainly not part of a tag. */
int reply_find(const struct reply *reply, const char *const *tags, int n, size_t *before);

/* Consume n bytes. While a call is not certain its bytes are kept in reply->raw. */
void reply_take(struct reply *reply, size_t n);
void reply_take_space(struct reply *reply);

/* Is it acceptable as a function's name? */
bool reply_is_name(const struct buf *buf);

/* --- emitting events, in reply.c --- */

/* Emit an event; empty content, reasoning and arguments are dropped. */
void reply_say(struct reply *reply, enum reply_kind kind, const char *bytes, size_t len);

/* Emit content or reasoning; white space at the end is held until more text follows. */
void reply_say_content(struct reply *reply, const char *bytes, size_t len);
void reply_say_reason(struct reply *reply, const char *bytes, size_t len);
void reply_end_reason(struct reply *reply);

/* Emit the begin of a call; from then on its text is certain to be a call. */
void reply_say_call(struct reply *reply, const char *name, size_t len);

/* reply_begin_call() consumes a call's opening tag of `tag` bytes; reply_end_call() emits its end.
 * Both continue in the given state. */
void reply_begin_call(struct reply *reply, int state, size_t tag);
void reply_end_call(struct reply *reply, int state);

/* The text was not a call after all: emit the bytes consumed for it as content. */
void reply_fail_call(struct reply *reply);

/* --- steps, in reply_json.c, _tags.c and _marked.c: false when more text is needed --- */

bool reply_step_args_begin(struct reply *reply);
bool reply_step_args(struct reply *reply);
bool reply_step_close(struct reply *reply);
bool reply_step_object(struct reply *reply);
bool reply_step_key(struct reply *reply);
bool reply_step_in_key(struct reply *reply);
bool reply_step_colon(struct reply *reply);
bool reply_step_value(struct reply *reply);
bool reply_step_named(struct reply *reply);
bool reply_step_early(struct reply *reply);
bool reply_step_other(struct reply *reply);
bool reply_step_list(struct reply *reply);
bool reply_step_param(struct reply *reply);
bool reply_step_in_param(struct reply *reply);
bool reply_step_before_value(struct reply *reply);
bool reply_step_in_value(struct reply *reply);
bool reply_step_marked(struct reply *reply);
bool reply_step_python(struct reply *reply);
bool reply_step_header(struct reply *reply);
bool reply_step_message(struct reply *reply);

/* --- reply_value.c: parameter values that are not written as JSON --- */

/* Append a parameter's value as JSON, of the type that the tool's schema gives. Without a type the
 * value is a string or, with guess, any JSON that it parses as. */
void reply_add_value(struct buf *out, const struct json *tools, const struct buf *name,
                     const struct buf *key, const struct buf *value, bool guess);

/* Append text if it parses as JSON (and is no string when no_text is set); else return false. */
bool reply_add_json(struct buf *out, const char *text, size_t len, bool no_text);

/* Append a Python literal as JSON. False when text is no literal; out may then have grown. */
bool reply_add_python(struct buf *out, const char *text, size_t len);

/* Emit the calls of a Python list, `[f(a=1), g()]`. False, with nothing emitted, when text is
 * anything else. */
bool reply_say_python(struct reply *reply, const char *text, size_t len);

/* Can text be the beginning of such a list? */
bool reply_may_be_python(const char *text, size_t len);

#endif
