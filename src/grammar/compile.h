/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the compilers of this folder: the arena, the first error, the time limit, growing
 * lists.
 *
 * After an error a compilation goes on with harmless values; its loops test compile_ok() or
 * compile_tick(), and grammar_compile() returns `rc` at the end. No function needs an error path of
 * its own. */
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
    int rc; /* the first error; ERR_OK while there is none */
    struct grammar_error *error;
    uint64_t deadline_us;
    uint32_t ticks;
    const char *spacing; /* pattern of white space, with GRAMMAR_SPACED */
    size_t spacing_len;
    const void *at; /* the node of the schema that is being compiled, for error->where */
};

static inline bool compile_ok(const struct compile *compile)
{
    return compile->rc == 0;
}

/* Record an error; only the first one is kept. Returns the rc of the first. */
int compile_fail(struct compile *compile, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Must be called in every loop that may be long. False after an error or when the time is up. */
bool compile_tick(struct compile *compile);

/* Zeroed memory from the arena; NULL, with the error recorded, when its limit is reached. */
void *compile_alloc(struct compile *compile, size_t bytes);

/* Make room for one more element of a list; false when there is none. The outgrown array stays in
 * the arena, so a list takes at most twice its size. */
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
