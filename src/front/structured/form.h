/* SPDX-License-Identifier: Apache-2.0
 *
 * The output constraint of a request ("form"): response_format, structured_outputs and the older
 * guided_*, tool_choice and strict tools. It is read here from the fields, and compiled into the
 * automaton that the engine applies to the output. */
#ifndef QUIRE_FRONT_STRUCTURED_FORM_H
#define QUIRE_FRONT_STRUCTURED_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/reason.h"
#include "front/structured/compiled.h"
#include "text/output/reply.h"

enum form_calls {
    FORM_CALLS_AUTO,     /* the model decides */
    FORM_CALLS_NONE,     /* tool_choice is none */
    FORM_CALLS_REQUIRED, /* at least one */
    FORM_CALLS_NAMED,    /* of one function */
};

/* The values of the fields. They are borrowed from the request's body. */
struct form {
    const char *param;      /* the field with a constraint on the content; NULL: none */
    enum grammar_kind kind; /* GRAMMAR_PARTS: a structural tag (tags.h) */
    enum grammar_space space;
    const struct json *spacing; /* a pattern for white space, or NULL */
    bool closed; /* objects of the schema have no additional members unless it allows them */
    const struct json *source; /* a schema, or the text of one; a text; a list of choices */
    enum form_calls calls;
    const char *function;       /* with FORM_CALLS_NAMED */
    const struct json *allowed; /* tools that may be called, by name; NULL: all */
    const struct json *tools;   /* a list with at least one tool, or NULL */
    bool strict;                /* at least one of them is strict */
};

/* The position of a reply's first token. */
enum form_start {
    FORM_NO_REASONING,
    FORM_MAY_REASON, /* it may begin with a reasoning */
    FORM_REASONS,    /* the prompt ended inside a reasoning */
};

struct form_model {
    char tenant[WIRE_TENANT_BYTES]; /* the owner of the request */
    enum reply_format format;
    enum form_start start;
    enum reply_reasoning reasoning;
    bool chat;     /* false: a completion, which has only content */
    bool one_call; /* parallel_tool_calls is false */
};

/* Read one field; value is not null. On an error why is a sentence. ERR_INVALID,
 * ERR_UNSUPPORTED. */
int form_read_response_format(struct form *f, const struct json *value, char *why,
                              size_t cap) ERR_CHECKED;
int form_read_structured(struct form *f, const struct json *value, char *why,
                         size_t cap) ERR_CHECKED;
int form_read_guided(struct form *f, const char *field, const struct json *value, char *why,
                     size_t cap) ERR_CHECKED;
int form_read_tools(struct form *f, const struct json *value, char *why, size_t cap) ERR_CHECKED;
int form_read_tool_choice(struct form *f, const struct json *value, char *why,
                          size_t cap) ERR_CHECKED;

/* Check that the fields fit together, when all have been read. Sets *param on an error. */
int form_check(const struct form *f, const char **param, char *why, size_t cap) ERR_CHECKED;

/* May the model call this function? */
bool form_allows(const struct form *f, const char *name);

/* Must the model make a call? */
bool form_forces(const struct form *f);

/* Is there any constraint on the output? */
bool form_binds(const struct form *f);

/* The format for parsing a reply. When a model without a format of its own must call, it is that of
 * a JSON list. */
enum reply_format form_reply_format(const struct form *f, enum reply_format of_model);

/* Compile a form with a constraint; the caller owns the reference in *out. NULL when the constraint
 * does not apply to this model, which has no tool calls.
 *
 *   arena   for the parts; nothing in *out points into it
 *   reason  out on error: the field, and a sentence with the keyword and its place
 *
 * ERR_SYNTAX, ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT, ERR_OVERLOADED, ERR_NO_MEMORY. Any thread;
 * takes as long as compiled_cache_get(). */
int form_compile(const struct form *f, const struct form_model *m, struct compiled_cache *cache,
                 struct arena *arena, struct compiled **out, struct reason *reason) ERR_CHECKED;

#endif
