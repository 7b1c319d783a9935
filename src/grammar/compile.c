/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors, memory and the time limit of a compilation. A client's schema can be made to need any
 * amount of time or memory, so both are bounded here for all compilers. */
#include "grammar/compile.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/must.h"

#define TICKS_A_LOOK 512 /* ticks between two looks at the clock: about 20 us of work */

/* Record an error. Only the first one is kept, because later ones are mostly its consequences. */
int compile_fail(struct compile *compile, int rc, const char *format, ...)
{
    va_list args;

    must(rc < 0);
    if (compile->rc != 0)
        return compile->rc;
    compile->rc = rc;
    if (compile->error == NULL)
        return rc;
    va_start(args, format);
    (void)vsnprintf(compile->error->text, sizeof compile->error->text, format,
                    args); /* cut is fine */
    va_end(args);
    return rc;
}

bool compile_tick(struct compile *compile)
{
    if (++compile->ticks % TICKS_A_LOOK == 0 && clock_cpu_us() > compile->deadline_us)
        compile_fail(compile, ERR_LIMIT, "takes more than %d ms to compile: simplify it",
                     GRAMMAR_COMPILE_US / 1000);
    return compile->rc == 0;
}

void *compile_alloc(struct compile *compile, size_t bytes)
{
    void *p = compile->rc == 0 ? arena_zalloc(&compile->arena, bytes) : NULL;

    if (p == NULL)
        compile_fail(compile, ERR_LIMIT,
                     "needs more memory to compile than is allowed: simplify it");
    return p;
}

/* Make room for one more item. The outgrown array stays in the arena; as capacity doubles, all of
 * them together are smaller than the last. */
bool compile_grow(struct compile *compile, void **items, uint32_t n, uint32_t *cap, size_t bytes)
{
    void *grown;
    uint32_t want;

    /* After an error nothing is allocated any more; callers test compile_ok() at their next
     * loop. */
    if (compile->rc != 0)
        return false;
    must(n <= *cap && bytes > 0);
    if (n < *cap)
        return true;
    /* Doubling keeps the total cost of n additions in proportion to n. */
    want = *cap == 0 ? 8 : *cap * 2;
    grown = compile_alloc(compile, (size_t)want * bytes);
    if (grown == NULL)
        return false;
    if (n > 0)
        memcpy(grown, *items, (size_t)n * bytes);
    *items = grown;
    *cap = want;
    return true;
}
