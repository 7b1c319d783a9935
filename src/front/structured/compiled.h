/* Structures: compiled grammars, kept for the next request of the same.
 *
 * The streamer uploads them to the engine; a structure lives as long as it is held. What it
 * is compiled from names it (SHA-256 of kind, options and sources), so equal requests share one,
 * and one upload. What cannot be compiled is remembered as well, with the words of its refusal.
 *
 * Threads of their own compile (compiled_make.c), at a lower priority than those that read. Equal
 * requests that come meanwhile wait for the same compilation. A tenant has one under way at a time,
 * so that one compiler is always left to the others, and of those that wait the tenant goes next
 * whose last turn was longest ago. */
#ifndef QUIRE_FRONT_STRUCTURED_COMPILED_H
#define QUIRE_FRONT_STRUCTURED_COMPILED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "grammar/grammar.h"
#include "ipc/wire.h"

#define COMPILED_MAX        128                /* kept though they are not in use */
#define COMPILED_BYTES_MAX  ((size_t)64 << 20) /* of their images */
#define COMPILED_REFUSALS   256                /* remembered */
#define COMPILED_COMPILERS  2                  /* threads; more than a tenant may use */
#define COMPILED_WAIT_MAX   256                /* threads that wait for a compilation */
#define COMPILED_TENANT_MAX 128                /* of these, with requests of one tenant */
#define COMPILED_TURNS      64                 /* tenants whose last turn is known */

struct compiled {
    _Atomic int n_refs;
    struct hash name;
    int sealed; /* a memfd for attach_upload(), which this owns */
    size_t bytes;
};

/* What cannot be compiled, or could not be walked. */
struct compiled_refusal {
    struct hash name;
    int rc; /* 0: the place is free */
    struct grammar_error error;
};

/* A tenant's last turn. */
struct compiled_turn {
    char tenant[WIRE_TENANT_BYTES];
    uint64_t turn; /* 0: the place is free */
};

struct compiled_making; /* a compilation, in compiled_make.c */

/* The cache. The lock guards what follows and is never held while something is compiled. */
struct compiled_cache {
    pthread_mutex_t lock;
    struct compiled *kept[COMPILED_MAX]; /* the one asked for last first; a reference each */
    size_t n_kept;
    size_t bytes;                     /* of all that are kept */
    struct compiled_refusal *refused; /* [COMPILED_REFUSALS], a ring */
    size_t n_refused;                 /* that were written to it */

    pthread_cond_t changed;         /* a compilation came, or ended, or all is to end */
    struct compiled_making *making; /* what waits or is under way, in the order of arrival */
    struct compiled_turn turns[COMPILED_TURNS];
    pthread_t compilers[COMPILED_COMPILERS];
    int n_compilers; /* that were started: when there was something for them */
    int n_waiting;   /* threads in compiled_cache_get() */
    bool ends;
    uint64_t n_compiled; /* compilations that were begun; for turns and tests */

    /* Called without the lock by a thread that is going to wait, and when it has waited; NULL:
     * nothing is. */
    void (*before_wait)(void *arg);
    void (*after_wait)(void *arg);
    void *wait_arg;
};

int compiled_cache_init(struct compiled_cache *s) ERR_CHECKED;
void compiled_cache_fini(struct compiled_cache *s); /* no thread is in compiled_cache_get() */

/* The structure of a request: one that is kept, or a new one. The caller owns a reference.
 *
 *   tenant   char [WIRE_TENANT_BYTES]: on whose behalf
 *
 * Errors are grammar_compile()'s, with its words in *error, which may be NULL; ERR_OVERLOADED when
 * too many wait already; ERR_NO_MEMORY. Any thread; waits for its turn, then up to
 * GRAMMAR_COMPILE_US of computing time. */
int compiled_cache_get(struct compiled_cache *s, const struct grammar_request *request,
                       const char *tenant, struct compiled **out,
                       struct grammar_error *error) ERR_CHECKED;

/* From now on a structure's request is refused: it was found to cost too much. Any thread. */
void compiled_cache_refuse(struct compiled_cache *s, const struct hash *name, int rc,
                           const char *text);

/* --- compiled_make.c, for compiled.c ---

 * Compile, or wait for the compilation of this name that is under way; then the cache or the
 * refusals have it. With the lock held, which is given up meanwhile. ERR_OK, ERR_OVERLOADED,
 * ERR_NO_MEMORY. */
int compiled_cache_make(struct compiled_cache *s, const struct grammar_request *request,
                        const struct hash *name, const char *tenant) ERR_CHECKED;
void compiled_cache_end_compilers(struct compiled_cache *s);

/* With the lock held: the outcome of a compilation. */
void compiled_cache_keep(struct compiled_cache *s, struct compiled *st);
void compiled_cache_note_refusal(struct compiled_cache *s, const struct hash *name, int rc,
                                 const struct grammar_error *error);

struct compiled *compiled_ref(struct compiled *st);
void compiled_unref(struct compiled *st); /* NULL is fine */

#endif
