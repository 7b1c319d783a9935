/* Jinja templates as Hugging Face runs them for chats: trim_blocks, lstrip_blocks, break and
 * continue, {% generation %}, tojson, raise_exception(), strftime_now(); values print as Python
 * prints them.
 *
 * A compiled template never changes: any number of threads render it at once, each with its own
 * variables and arena. Templates and values may be hostile: a render is bounded in steps, depth
 * and output, and can reach nothing but its variables. */
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
#define JINJA_OUTPUT_MAX ((size_t)64 << 20) /* bytes of output, also of any one text */
#define JINJA_DEPTH_MAX  100                /* nesting of source; calls inside each other */

struct jinja;
struct jinja_value;

/* Compile a template; the source is not kept.
 *
 * Returns ERR_OK; ERR_SYNTAX with the line and the reason in why; ERR_UNSUPPORTED for a tag that
 * quire does not know; ERR_LIMIT when it nests too deep; ERR_NO_MEMORY. */
int jinja_compile(struct jinja **out, const char *source, size_t len, char *why,
                  size_t why_cap) ERR_CHECKED;
void jinja_close(struct jinja *jinja); /* NULL is fine */

/* The variables of one render. All memory is the arena's; texts, names and JSON nodes are
 * borrowed until the render is over. Of one name the last value counts. */
struct jinja_vars {
    struct arena *arena;
    struct jinja_var *first;
    int64_t now_unix_s; /* what strftime_now() says; 0 stands for the clock */
    bool failed;        /* the arena gave out; jinja_render() then returns ERR_NO_MEMORY */
    struct spans *own;  /* out of jinja_render(): the bytes of the output that the template wrote
                           itself, in the arena; all others came out of values. NULL: not told */
};

void jinja_vars_init(struct jinja_vars *vars, struct arena *arena);
void jinja_vars_json(struct jinja_vars *vars, const char *name,
                     const struct json *node); /* NULL: none */

/* A text that counts as the template's own, such as the name of a special token. */
void jinja_vars_text(struct jinja_vars *vars, const char *name, const char *text, size_t len);

/* In the list of objects `name`, the texts under `member` that are among words (ended by NULL)
 * count as the template's own: templates put a role between the bars of a special token. */
void jinja_vars_trust(struct jinja_vars *vars, const char *name, const char *member,
                      const char *const *words);
void jinja_vars_bool(struct jinja_vars *vars, const char *name, bool flag);
void jinja_vars_int(struct jinja_vars *vars, const char *name, int64_t number);
void jinja_vars_none(struct jinja_vars *vars, const char *name);

/* Render into out (appended).
 *
 * Returns ERR_OK; ERR_INVALID when the template raised or did what Python would not allow (why
 * holds "line N: " and raise_exception's text, or the reason); ERR_LIMIT when a bound was reached;
 * ERR_NO_MEMORY when the arena or out gave out. After an error out holds what came before it. */
int jinja_render(const struct jinja *jinja, const struct jinja_vars *vars, struct arena *arena,
                 struct buf *out, char *why, size_t why_cap) ERR_CHECKED;
#endif
