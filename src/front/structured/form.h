/* The form of an output that a request demands: response_format, structured_outputs and the older
 * guided_*, tool_choice and strict tools. Read here from the fields, and compiled into the
 * structure that the engine holds the output to. */
#ifndef QUIRE_FRONT_STRUCTURED_FORM_H
#define QUIRE_FRONT_STRUCTURED_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "front/structured/compiled.h"
#include "text/output/reply.h"

enum form_calls {
    FORM_CALLS_AUTO,     /* as the model likes */
    FORM_CALLS_NONE,     /* tool_choice is none */
    FORM_CALLS_REQUIRED, /* one or more */
    FORM_CALLS_NAMED,    /* of one function */
};

/* What the fields said. Borrowed from the request's body. */
struct form {
    const char *param;      /* the field that gave the content its form; NULL: none did */
    enum grammar_kind kind; /* GRAMMAR_PARTS: a structural tag (tags.h) */
    enum grammar_space space;
    const struct json *spacing; /* a pattern of white space, or NULL */
    bool closed; /* objects of the schema have no additional members unless it says so */
    const struct json *source; /* a schema, or the text of one; a text; a list of choices */
    enum form_calls calls;
    const char *function;       /* with FORM_CALLS_NAMED */
    const struct json *allowed; /* tools by name: only these may be called; NULL: all may */
    const struct json *tools;   /* a list with members, or NULL */
    bool strict;                /* one of them is */
};

/* Where a reply stands when it begins. */
enum form_start {
    FORM_NO_REASONING,
    FORM_MAY_REASON, /* it may begin with a reasoning */
    FORM_REASONS,    /* the prompt ended inside of it */
};

struct form_model {
    char tenant[WIRE_TENANT_BYTES]; /* on whose behalf it is compiled */
    enum reply_format format;
    enum form_start start;
    enum reply_reasoning reasoning;
    bool chat;     /* no completion, which is nothing but content */
    bool one_call; /* parallel_tool_calls is false */
};

/* Read one field; value is not null. On error why is a sentence. ERR_INVALID, ERR_UNSUPPORTED. */
int form_read_response_format(struct form *f, const struct json *value, char *why,
                              size_t cap) ERR_CHECKED;
int form_read_structured(struct form *f, const struct json *value, char *why,
                         size_t cap) ERR_CHECKED;
int form_read_guided(struct form *f, const char *field, const struct json *value, char *why,
                     size_t cap) ERR_CHECKED;
int form_read_tools(struct form *f, const struct json *value, char *why, size_t cap) ERR_CHECKED;
int form_read_tool_choice(struct form *f, const struct json *value, char *why,
                          size_t cap) ERR_CHECKED;

/* All have been read: do they fit together? *param out on error. */
int form_check(const struct form *f, const char **param, char *why, size_t cap) ERR_CHECKED;

/* May the function of this name be called? */
bool form_allows(const struct form *f, const char *name);

/* Must there be a call? */
bool form_forces(const struct form *f);

/* Has the output to be held to something? */
bool form_binds(const struct form *f);

/* The format in which a reply is to be read: of a model that knows no calls, when it must call,
 * that of a JSON list. */
enum reply_format form_reply_format(const struct form *f, enum reply_format of_model);

/* The structure of a form that binds; the caller owns a reference. NULL when it binds nothing of
 * this model's, which knows no calls.
 *
 *   arena   for the parts; nothing in *out points into it
 *   param, why   out on error: the field, and a sentence with the keyword and its place
 *
 * ERR_SYNTAX, ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT, ERR_OVERLOADED, ERR_NO_MEMORY. Any thread;
 * takes as long as compiled_cache_get(). */
int form_compile(const struct form *f, const struct form_model *m, struct compiled_cache *cache,
                 struct arena *arena, struct compiled **out, const char **param, char *why,
                 size_t cap) ERR_CHECKED;

#endif
