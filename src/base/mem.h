/* Memory: the only place that calls the allocator.
 *
 * Two disciplines. The engine allocates at start and then seals: mem_alloc() after mem_seal()
 * is a bug and stops the process. A front keeps one arena per request and frees it whole. */
#ifndef QUIRE_BASE_MEM_H
#define QUIRE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* Allocate; NULL when there is none (or a fault point says so). Memory of mem_zalloc() is zero.
 * Freed with mem_free(), which accepts NULL. Any thread. */
void *mem_alloc(size_t bytes);
void *mem_zalloc(size_t bytes);
void *mem_realloc(void *p, size_t bytes);
void mem_free(void *p);

/* n * bytes, zeroed; NULL also when the product overflows. */
void *mem_zalloc_array(size_t n, size_t bytes);

/* Give freed memory back to the system now: after a start that needed much. A few ms. */
void mem_trim(void);

/* From now on a thread of the allocator's gives freed memory back within some 10 s, whoever freed
 * it and however idle they are: for a program that now and then needs much. Best effort. */
void mem_trim_always(void);

/* Bytes that the system could give without swapping; 0 when it does not say. */
size_t mem_available(void);

/* From now on mem_alloc() and its kin are a bug. One way: tests use a process each. */
void mem_seal(void);

/* An arena: many allocations, one end. Not thread-safe; one owner at a time. */
struct arena {
    struct arena_chunk *chunks; /* most recent first; NULL when empty */
    size_t used_bytes;          /* handed out since the last reset */
    size_t limit_bytes;         /* arena_alloc() fails beyond it; 0 means no limit */
    bool limited;               /* it has failed so since the last reset */
};

/* 16-byte aligned, not zeroed; NULL when the limit or the memory is reached. Lives until
 * arena_reset(). */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_zalloc(struct arena *a, size_t bytes);

/* Copy len bytes and add a NUL. NULL as arena_alloc(). */
char *arena_strndup(struct arena *a, const char *text, size_t len);

/* Free everything; the arena is empty and usable again. */
void arena_reset(struct arena *a);

#endif
