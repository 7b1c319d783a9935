/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory. This is the only place that calls the allocator.
 *
 * There are two disciplines. The engine allocates at start and then seals: mem_alloc() after
 * mem_seal() is a bug and stops the process. A front keeps one arena per request and frees it as a
 * whole. */
#ifndef QUIRE_BASE_MEM_H
#define QUIRE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* Allocate; NULL when there is no memory (or a fault point fires). mem_zalloc() returns zeroed
 * memory. Free with mem_free(), which accepts NULL. Any thread. */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_realloc(void *p, size_t bytes);
void mem_free(void *p);

/* n * bytes, zeroed; NULL also when the product overflows. */
void *mem_zalloc_array(size_t n, size_t bytes);

/* Return freed memory to the system now, after a start that needed much. A few ms. */
void mem_trim(void);

/* From now on a thread of the allocator returns freed memory to the system within about 10 s, also
 * when the freeing threads are idle: for a program that needs much memory now and then. Best
 * effort. */
void mem_trim_always(void);

/* Bytes that the system could provide without swapping; 0 when unknown. */
size_t mem_available(void);

/* From now on allocating is a bug. It cannot be undone, so tests use one process each. */
void mem_seal(void);

/* The calling thread may allocate all the same: for one that loads what an operator asks for,
 * beside the threads that serve. */
void mem_exempt_thread(void);

/* An arena: many allocations that are freed together. Not thread-safe; one owner at a time. */
struct arena {
    struct arena_chunk *chunks; /* most recent first; NULL when empty */
    size_t used_bytes;          /* allocated since the last reset */
    size_t limit_bytes;         /* arena_alloc() fails beyond it; 0 means no limit */
    bool limited;               /* an allocation has failed at the limit since the last reset */
};

/* Allocate, aligned to 16 bytes, not zeroed (arena_zalloc(): zeroed); NULL at the limit or when
 * memory is exhausted. Lives until arena_reset(). */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_zalloc(struct arena *a, size_t bytes);

/* Copy len bytes and add a NUL. NULL as arena_alloc(). */
char *arena_strndup(struct arena *a, const char *text, size_t len);

/* Free everything; the arena is empty and usable again. */
void arena_reset(struct arena *a);

#endif
