/* Structures: compiled grammars, kept for those who ask for the same again.
 *
 * Readers compile, the streamer offers them to the engine; a structure lives as long as somebody
 * holds it. What it is compiled from names it (SHA-256 of kind, options and sources), so equal
 * requests share one, and one offer. */
#ifndef QUIRE_FRONT_STRUCTURE_H
#define QUIRE_FRONT_STRUCTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "grammar/grammar.h"

#define STRUCTURES_MAX       128                /* kept though nobody uses them */
#define STRUCTURES_BYTES_MAX ((size_t)64 << 20) /* of their images */

struct structure {
    _Atomic int n_refs;
    struct hash name;
    int sealed; /* a memfd for attach_offer(), which this owns */
    size_t bytes;
};

/* The cache. The lock guards what follows and is never held while something is compiled. */
struct structures {
    pthread_mutex_t lock;
    struct structure *kept[STRUCTURES_MAX]; /* the one asked for last first; a reference each */
    size_t n_kept;
    size_t bytes; /* of all that are kept */
};

int structures_init(struct structures *s) ERR_CHECKED;
void structures_fini(struct structures *s);

/* The structure of a request: one that is kept, or a new one. The caller owns a reference.
 * Errors are grammar_compile()'s, with its words in *error; ERR_NO_MEMORY. Any thread; takes up to
 * GRAMMAR_COMPILE_US. */
int structures_get(struct structures *s, const struct grammar_request *request,
                   struct structure **out, struct grammar_error *error) ERR_CHECKED;

struct structure *structure_ref(struct structure *st);
void structure_unref(struct structure *st); /* NULL is fine */

#endif
