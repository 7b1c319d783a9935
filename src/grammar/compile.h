/* What the compilers of this folder share: one arena, one first error, one clock, growing lists.
 *
 * A compilation goes on after an error with harmless values and looks at compile_ok() in its
 * loops; whoever starts it looks at `rc` at the end. */
#ifndef QUIRE_GRAMMAR_COMPILE_H
#define QUIRE_GRAMMAR_COMPILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "grammar/grammar.h"

#define NONE UINT32_MAX

struct compile {
    struct arena arena;
    int rc; /* of the first error */
    struct grammar_error *error;
    uint64_t deadline_us;
    uint32_t ticks;
    const char *spacing; /* pattern of white space, with GRAMMAR_SPACED */
    size_t spacing_len;
    const void *at; /* what is being compiled: a node of the schema, for `where` */
};

static inline bool compile_ok(const struct compile *compile)
{
    return compile->rc == 0;
}

/* Note the first error; later ones are dropped. Returns rc of the first. */
int compile_fail(struct compile *compile, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Called in every loop that may be long: false when the time is up or an error was noted. */
bool compile_tick(struct compile *compile);

/* Zeroed memory of the compilation; NULL (and the error noted) when its bound is reached. */
void *compile_alloc(struct compile *compile, size_t bytes);

/* Room for one more element of a list; false when there is none. The old array stays in the
 * arena, so a list costs at most twice its size. */
bool compile_grow(struct compile *compile, void **items, uint32_t n, uint32_t *cap, size_t bytes);

/* A list: LIST(type) x = {0}; if (LIST_ADD(c, &x)) x.items[x.n - 1] = ...; */
#define LIST(type)       \
    struct {             \
        type *items;     \
        uint32_t n, cap; \
    }
#define LIST_ADD(c, list)                                                                       \
    (compile_grow((c), (void **)&(list)->items, (list)->n, &(list)->cap, sizeof *(list)->items) \
         ? ((list)->n++, true)                                                                  \
         : false)

#endif
