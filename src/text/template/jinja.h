/* SPDX-License-Identifier: Apache-2.0
 *
 * Jinja templates as Hugging Face runs them for chats: with trim_blocks, lstrip_blocks, break and
 * continue, {% generation %}, tojson, the functions raise_exception and strftime_now; values print
 * as in Python.
 *
 * A compiled template never changes: threads render it at once, each with its own variables and
 * arena. Templates and values may be hostile: a render is bounded in steps, depth and output, and
 * has access to nothing but its variables. */
#ifndef QUIRE_TEXT_TEMPLATE_JINJA_H
#define QUIRE_TEXT_TEMPLATE_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/spans.h"

#define JINJA_STEPS_MAX  10000000           /* statements, expressions and items visited */
#define JINJA_OUTPUT_MAX ((size_t)64 << 20) /* bytes of output, and of any one text */
#define JINJA_DEPTH_MAX  100                /* nesting of blocks, and of calls in progress */

struct jinja;
struct jinja_value;

/* Compile a template. The source is not kept.
 *
 * Returns ERR_OK; ERR_SYNTAX with the line and the reason in why; ERR_UNSUPPORTED for a tag that
 * quire does not implement; ERR_LIMIT when it nests too deep; ERR_NO_MEMORY. */
int jinja_compile(struct jinja **out, const char *source, size_t len, char *why,
                  size_t why_cap) ERR_CHECKED;
void jinja_close(struct jinja *jinja); /* NULL is fine */

/* The variables of one render. All memory comes from the arena; texts, names and JSON nodes are
 * borrowed until the render ends. If a name is given twice, the last value is used. */
struct jinja_vars {
    struct arena *arena;
    struct jinja_var *first;
    int64_t now_unix_s; /* the time for strftime_now; 0: the system clock */
    bool failed;        /* out of memory; jinja_render() then returns ERR_NO_MEMORY */
    struct spans *own; /* out: the bytes of the output that the template wrote itself, in the arena;
                           all other bytes came from values. NULL: not wanted */
};

void jinja_vars_init(struct jinja_vars *vars, struct arena *arena);
void jinja_vars_json(struct jinja_vars *vars, const char *name,
                     const struct json *node); /* NULL: none */

/* A text that counts as written by the template, such as a special token. */
void jinja_vars_text(struct jinja_vars *vars, const char *name, const char *text, size_t len);

/* In the list of objects `name`, mark the texts under `member` that are equal to one of words
 * (ended by NULL) as written by the template: templates put a role inside a special token. */
void jinja_vars_trust(struct jinja_vars *vars, const char *name, const char *member,
                      const char *const *words);
void jinja_vars_bool(struct jinja_vars *vars, const char *name, bool flag);

/* Render into out (appended).
 *
 * Returns ERR_OK; ERR_INVALID when the template raised an exception, or did something that raises
 * one in Python (why gets "line N: " and the reason); ERR_LIMIT when a bound was reached;
 * ERR_NO_MEMORY. After an error out holds the output so far. */
int jinja_render(const struct jinja *jinja, const struct jinja_vars *vars, struct arena *arena,
                 struct buf *out, char *why, size_t why_cap) ERR_CHECKED;
#endif
