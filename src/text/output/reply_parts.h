/* What the files of reply.c share: its words for reading ahead and for saying things. */
#ifndef QUIRE_TEXT_OUTPUT_REPLY_PARTS_H
#define QUIRE_TEXT_OUTPUT_REPLY_PARTS_H

#include "text/output/reply.h"

enum reply_state {
    REPLY_AT_START, /* where reasoning may begin */
    REPLY_IN_REASON,
    REPLY_IN_TEXT,
    REPLY_BETWEEN, /* behind a call */
    REPLY_AT_HEAD, /* behind a call's opening tag */
    REPLY_IN_NAME,
    REPLY_AT_ARGS,   /* where arguments as JSON begin */
    REPLY_IN_ARGS,   /* inside them */
    REPLY_IN_LIST,   /* where an element of a list of calls begins */
    REPLY_AT_OBJECT, /* where a call as a JSON object begins */
    REPLY_AT_KEY,    /* inside it, where a member begins or it ends */
    REPLY_IN_KEY,
    REPLY_AT_COLON, /* behind a key */
    REPLY_AT_VALUE,
    REPLY_IN_NAMED, /* inside the text that is the name */
    REPLY_IN_EARLY, /* inside arguments that came before the name, or that are a text */
    REPLY_IN_OTHER, /* inside a value that means nothing here */
    REPLY_AT_PARAM, /* where a parameter begins or the call ends */
    REPLY_IN_PARAM, /* inside its name */
    REPLY_BEFORE_VALUE,
    REPLY_IN_VALUE,
    REPLY_AT_CLOSE,  /* where a call's closing tag is due */
    REPLY_IN_PYTHON, /* inside a list of calls in Python */
    REPLY_IN_HEADER, /* of a message of harmony */
    REPLY_IN_MESSAGE_REASON,
    REPLY_IN_MESSAGE_TEXT,
    REPLY_IN_MESSAGE_ARGS,
};

/* What is not taken yet. */
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

/* What a format's calls look like. */
enum args_kind { ARGS_NONE, ARGS_OBJECT, ARGS_JSON, ARGS_TAGS, ARGS_PAIRS };

#define OPENS 2
#define ENDS  2

struct reply_shape {
    const char *name;        /* vLLM's */
    const char *open[OPENS]; /* a call begins */
    const char *head[OPENS]; /* follows it, before the name; "": nothing */
    const char *end[ENDS];   /* behind the name; what begins with "<arg" or "</" is not taken */
    const char *close;       /* a call ends */
    const char *section[2];  /* tags around all calls, which say nothing */
    enum args_kind args;
    char first; /* with which a call begins at the beginning of a reply; 0: none */
};

extern const struct reply_shape reply_formats[REPLY_FORMATS];

/* --- reading ahead, in reply.c --- */

enum match { MATCH_NO, MATCH_YES, MATCH_MAYBE };

/* Does what stands `from` behind the taken text begin with tag? */
enum match reply_match(const struct reply *reply, size_t from, const char *tag);

/* The first of n tags (NULL: none) in what is left: its number, and in *before what stands in front
 * of it; -1 when there is none, and in *before how much is certain to be in front of any. */
int reply_find(const struct reply *reply, const char *const *tags, int n, size_t *before);

/* Take n bytes; of a call that is not said yet they are remembered. */
void reply_take(struct reply *reply, size_t n);
void reply_take_space(struct reply *reply);

/* Can it be a function's name? */
bool reply_is_name(const struct buf *buf);

/* --- saying, in reply.c --- */

void reply_say(struct reply *reply, enum reply_kind kind, const char *bytes, size_t len);
void reply_say_content(struct reply *reply, const char *bytes, size_t len);
void reply_say_reason(struct reply *reply, const char *bytes, size_t len);
void reply_end_reason(struct reply *reply);
void reply_say_call(struct reply *reply, const char *name, size_t len);

/* A call begins with a tag of so many bytes; it has ended. Both go on in a state. */
void reply_begin_call(struct reply *reply, int state, size_t tag);
void reply_end_call(struct reply *reply, int state);

/* A call that is none: what was taken of it is content. */
void reply_fail_call(struct reply *reply);

/* --- steps, in reply_json.c and reply_tags.c: false when more text is needed --- */

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
bool reply_step_python(struct reply *reply);
bool reply_step_header(struct reply *reply);
bool reply_step_message(struct reply *reply);

/* --- reply_value.c: values of parameters that are not written as JSON --- */

/* Append the JSON of a parameter's value: by the type that the tool's schema gives it; without one
 * a text, or, with guess, what it is as JSON. */
void reply_add_value(struct buf *out, const struct json *tools, const struct buf *name,
                     const struct buf *key, const struct buf *value, bool guess);

/* Append a Python literal as JSON; false when it is none (out may have grown). */
bool reply_add_python(struct buf *out, const char *text, size_t len);

/* Say the calls of a list in Python, `[f(a=1), g()]`; false, with nothing said, when text is
 * something else. */
bool reply_say_python(struct reply *reply, const char *text, size_t len);

/* How much of text can be the beginning of such a list: false when none of it can. */
bool reply_may_be_python(const char *text, size_t len);

#endif
