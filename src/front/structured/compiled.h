/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled output constraints, cached for later requests with the same one.
 *
 * The streamer uploads them to the engine; each lives as long as there are references. Its name is
 * the SHA-256 of kind, options and sources, so equal requests share one compilation and one upload.
 * A constraint that cannot be compiled is remembered too, with its error text.
 *
 * Threads of their own compile (compiled_make.c), with a lower priority than the readers. Requests
 * for a constraint that is being compiled wait for that compilation. A tenant has at most one
 * compilation at a time, so that one compiler is always free for the others; among the waiting
 * ones, the tenant whose last turn is longest ago goes next. */
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

#define COMPILED_MAX        128                /* kept although unused */
#define COMPILED_BYTES_MAX  ((size_t)64 << 20) /* total of their images */
#define COMPILED_REFUSALS   256                /* refusals remembered */
#define COMPILED_COMPILERS  2                  /* threads; more than one tenant may use */
#define COMPILED_WAIT_MAX   256                /* maximum threads that wait for a compilation */
#define COMPILED_TENANT_MAX 128                /* of those, for one tenant's requests */
#define COMPILED_TURNS      64                 /* tenants whose last turn is remembered */

struct compiled {
    _Atomic int n_refs;
    struct hash name;
    int sealed; /* the image in a memfd, for attach_upload(); owned */
    size_t bytes;
};

/* A constraint that cannot be compiled, or that the engine found too expensive. */
struct compiled_refusal {
    struct hash name;
    int rc; /* 0: this element is free */
    struct grammar_error error;
};

/* The number of a tenant's last compilation. */
struct compiled_turn {
    char tenant[WIRE_TENANT_BYTES];
    uint64_t turn; /* 0: this element is free */
};

struct compiled_making; /* a compilation, in compiled_make.c */

/* The cache. The lock guards all members below and is never held during a compilation. */
struct compiled_cache {
    pthread_mutex_t lock;
    struct compiled *kept[COMPILED_MAX]; /* [n_kept], most recently used first; one reference
                                          * each */
    size_t n_kept;
    size_t bytes;                     /* total of kept images */
    struct compiled_refusal *refused; /* [COMPILED_REFUSALS], a ring */
    size_t n_refused;                 /* refusals written so far */

    pthread_cond_t changed;         /* a compilation was added or has ended, or all must end */
    struct compiled_making *making; /* waiting and running compilations, in the order of arrival */
    struct compiled_turn turns[COMPILED_TURNS];
    pthread_t compilers[COMPILED_COMPILERS];
    int n_compilers; /* started so far; each is started when needed */
    int n_waiting;   /* threads in compiled_cache_get() */
    bool ends;
    uint64_t n_compiled; /* number of compilations begun; for turns and tests */

    /* Called, without the lock, by a thread before and after it waits; NULL: not called. */
    void (*before_wait)(void *arg);
    void (*after_wait)(void *arg);
    void *wait_arg;
};

int compiled_cache_init(struct compiled_cache *s) ERR_CHECKED;
void compiled_cache_fini(struct compiled_cache *s); /* no thread may be in compiled_cache_get() */

/* Get the compiled constraint of a request: from the cache, or compiled now. The caller owns a
 * reference.
 *
 *   tenant   char [WIRE_TENANT_BYTES]: the owner of the request
 *
 * Errors are those of grammar_compile(), with its text in *error, which may be NULL; ERR_OVERLOADED
 * when too many threads wait; ERR_NO_MEMORY. Any thread; waits for its turn, then up to
 * GRAMMAR_COMPILE_US of computing time. */
int compiled_cache_get(struct compiled_cache *s, const struct grammar_request *request,
                       const char *tenant, struct compiled **out,
                       struct grammar_error *error) ERR_CHECKED;

/* Refuse requests for this constraint from now on, because it was found too expensive. Any
 * thread. */
void compiled_cache_refuse(struct compiled_cache *s, const struct hash *name, int rc,
                           const char *text);

/* --- compiled_make.c, for compiled.c ---
 *
 * Compile, or wait for the running compilation of this name; its result is then in the cache or
 * among the refusals. Call with the lock held; it is released while waiting. ERR_OK,
 * ERR_OVERLOADED, ERR_NO_MEMORY. */
int compiled_cache_make(struct compiled_cache *s, const struct grammar_request *request,
                        const struct hash *name, const char *tenant) ERR_CHECKED;
void compiled_cache_end_compilers(struct compiled_cache *s);

/* With the lock held: store the result of a compilation. */
void compiled_cache_keep(struct compiled_cache *s, struct compiled *st);
bool compiled_cache_has(const struct compiled_cache *s, const struct hash *name);
void compiled_cache_note_refusal(struct compiled_cache *s, const struct hash *name, int rc,
                                 const struct grammar_error *error);

struct compiled *compiled_ref(struct compiled *st);
void compiled_unref(struct compiled *st); /* accepts NULL */

#endif
