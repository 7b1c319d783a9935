/* SPDX-License-Identifier: Apache-2.0
 *
 * Thin wrappers over the allocator (jemalloc, by linking), and the arena.
 *
 * The wrappers add the two rules of mem.h: a fault point, so that tests can make any allocation
 * fail, and the seal. A size of 0 is rounded up to 1, so that NULL always means "no memory". */
#include "base/mem.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/must.h"

#define ARENA_CHUNK_MIN ((size_t)16 << 10) /* most requests fit */
#define ARENA_CHUNK_MAX ((size_t)1 << 20)  /* from here on doubling would only waste */
#define ARENA_ALIGN     ((size_t)16)

/* The head of a chunk; its bytes follow. */
struct arena_chunk {
    struct arena_chunk *next;
    size_t cap;
    size_t used;
    size_t pad; /* keeps the bytes that follow 16-byte aligned */
};

static bool mem_sealed;
static _Thread_local bool mem_exempt;

void mem_exempt_thread(void)
{
    mem_exempt = true;
}

/* Memory with any content; NULL: there is none. */
void *mem_alloc(size_t bytes)
{
    must(!mem_sealed || mem_exempt);
    if (FAULT_HIT(mem_alloc))
        return NULL;
    return malloc(bytes == 0 ? 1 : bytes);
}

/* Memory filled with zeros. */
void *mem_zalloc(size_t bytes)
{
    return mem_zalloc_array(1, bytes == 0 ? 1 : bytes);
}

/* calloc() gets the whole size: fresh pages of the kernel are zero and are not touched. */
void *mem_zalloc_array(size_t n, size_t bytes)
{
    size_t all;

    must(!mem_sealed || mem_exempt);
    if (FAULT_HIT(mem_alloc) || __builtin_mul_overflow(n, bytes, &all))
        return NULL;
    return calloc(all == 0 ? 1 : all, 1);
}

/* Change the size. On NULL the old memory remains. */
void *mem_realloc(void *p, size_t bytes)
{
    must(!mem_sealed || mem_exempt);
    if (FAULT_HIT(mem_alloc))
        return NULL;
    return realloc(p, bytes == 0 ? 1 : bytes);
}

/* MemAvailable is the kernel's own estimate of memory that can be used without swapping. */
size_t mem_available(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");

    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    }
    if (file != NULL)
        (void)fclose(file); /* it was only read from */
    return (size_t)kib * 1024;
}

/* Accepts NULL. */
void mem_free(void *p)
{
    free(p);
}

/* jemalloc's control function; NULL when the C library allocates. */
int mallctl(const char *name, void *old, size_t *old_len, void *value, size_t len)
    __attribute__((weak));

/* Give unused memory back to the kernel now. */
void mem_trim(void)
{
    if (mallctl != NULL)
        (void)mallctl("arena.4096.purge", NULL, NULL, NULL, 0); /* 4096 means all arenas; best
                                                                 * effort */
    else
        (void)malloc_trim(0);
}

/* Give unused memory back from now on, in a thread of jemalloc. */
void mem_trim_always(void)
{
    bool on = true;

    if (mallctl != NULL)
        (void)mallctl("background_thread", NULL, NULL, &on, sizeof on);
}

/* From now on an allocation is a bug (must()). The engine seals before its loop begins. */
void mem_seal(void)
{
    mem_sealed = true;
}

/* --- arena -------------------------------------------------------------------------------------
 *
 * A list of chunks, the most recent first. Only the first one is allocated from; chunks double from
 * 16 KiB to 1 MiB, so that a small request needs one and a large one few. Nothing is freed before
 * arena_reset(). */
static struct arena_chunk *arena_grow(struct arena *a, size_t bytes)
{
    size_t cap = a->chunks == NULL ? ARENA_CHUNK_MIN : a->chunks->cap * 2;
    struct arena_chunk *chunk;

    if (cap > ARENA_CHUNK_MAX)
        cap = ARENA_CHUNK_MAX;
    if (cap < bytes)
        cap = bytes;
    chunk = mem_alloc(sizeof *chunk + cap);
    if (chunk == NULL)
        return NULL;
    *chunk = (struct arena_chunk){.next = a->chunks, .cap = cap};
    a->chunks = chunk;
    return chunk;
}

/* Memory of 16-byte alignment that lives until arena_reset(). A chunk's rest that is too small is
 * wasted. */
void *arena_alloc(struct arena *a, size_t bytes)
{
    struct arena_chunk *chunk = a->chunks;
    void *p;

    /* Larger sizes would overflow in the rounding. */
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
    if (a->limit_bytes != 0 && bytes > a->limit_bytes - a->used_bytes) {
        a->limited = true;
        return NULL;
    }
    if (chunk == NULL || bytes > chunk->cap - chunk->used) {
        chunk = arena_grow(a, bytes);
        if (chunk == NULL)
            return NULL;
    }
    p = (char *)(chunk + 1) + chunk->used;
    chunk->used += bytes;
    a->used_bytes += bytes;
    return p;
}

/* Likewise filled with zeros. */
void *arena_zalloc(struct arena *a, size_t bytes)
{
    void *p = arena_alloc(a, bytes);

    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

/* A copy of a text, with a NUL after it. */
char *arena_strndup(struct arena *a, const char *text, size_t len)
{
    char *copy = len < SIZE_MAX ? arena_alloc(a, len + 1) : NULL;

    if (copy == NULL)
        return NULL;
    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

/* Free everything. The limit remains. */
void arena_reset(struct arena *a)
{
    while (a->chunks != NULL) {
        struct arena_chunk *next = a->chunks->next;

        mem_free(a->chunks);
        a->chunks = next;
    }
    a->used_bytes = 0;
    a->limited = false;
}
