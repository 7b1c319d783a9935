/* Guided sampling: what a request allows of each next token, beside what the model thinks.
 *
 *   automata   what a front offers over its control socket, checked and mapped
 *   walks      each sequence follows its automaton token by token
 *   masks      made by a few threads while the device computes the logits they are for
 *
 * Allowed ids and bad words of a request become masks as well. All calls come from the engine's
 * thread; the others work only inside of guide_run(). */
#ifndef QUIRE_ENGINE_GUIDE_H
#define QUIRE_ENGINE_GUIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/pool.h"
#include "engine/seq.h"
#include "grammar/walk.h"
#include "ipc/wire.h"
#include "model/model.h"

/* A mapped automaton of a front. */
struct guide_automaton {
    const struct automaton *a; /* NULL: a free place */
    size_t bytes;
    const struct vocab *vocab; /* of the same front */
    struct walk_cache *cache;  /* NULL: without */
    size_t cache_bytes;
    int n_users; /* sequences */
    bool lost;   /* free, because what was offered could not be taken */
};

/* What one front has offered. */
struct guide_lane {
    const struct vocab *vocab; /* NULL: none yet */
    size_t vocab_bytes;
    struct guide_automaton *automata; /* [WIRE_AUTOMATA_MAX] */
};

/* One mask to be made. */
struct guide_job {
    struct seq *q;
    uint32_t *mask;
    int rc; /* ERR_OK, or why the sequence cannot go on */
};

struct guide {
    struct pool *pool;
    struct walk_work **works; /* [pool_width()] */
    uint32_t **scratch;       /* [pool_width()]: uint32 [n_words] */
    struct guide_job *jobs;   /* [max_num_seqs] */
    int n_jobs;
    uint32_t *masks; /* of the model's */
    int n_words;
    int n_vocab;
    int n_eos;
    const int32_t *eos;
};

/* Before the memory is sealed; ERR_NO_MEMORY. */
int guide_init(struct guide *g, struct model *m) ERR_CHECKED;
int guide_lane_init(struct guide_lane *l) ERR_CHECKED;

/* Take what a front offered; offered is closed. ERR_CORRUPT: the front is to be dropped.
 * ERR_NO_MEMORY: there is no room for it, or offered is -1; who names it is refused. A vocabulary
 * takes some milliseconds, an automaton 5 ns a state. */
int guide_take_offer(const struct guide *g, struct guide_lane *l, const struct wire_offer *offer,
                     int offered) ERR_CHECKED;

/* Forget all that a front offered; its sequences are gone. */
void guide_lane_drop(struct guide_lane *l);

/* Check what stood behind a request's tokens, int32 [wire_extra()], and attach it to q, whose
 * request and tokens are set. ERR_INVALID, ERR_NO_FORM; then q has nothing of it. */
int guide_begin(const struct guide *g, struct guide_lane *l, struct seq *q,
                const int32_t *words) ERR_CHECKED;
void guide_end(struct seq *q);

/* Whether q's next token is masked. */
bool guide_has_mask(const struct seq *q);

/* The masks of a step: guide_clear(), then guide_add() for each sequence that has one, which gives
 * its index in model_masks(), then guide_run() while the device computes, when all tokens before
 * the masked ones are known. A job's rc says when its sequence cannot go on: ERR_NO_TOKEN,
 * ERR_LIMIT; its mask then allows everything. */
void guide_clear(struct guide *g);
int guide_add(struct guide *g, struct seq *q);
void guide_run(struct guide *g);

/* Has the output come to an end that its automaton knows? Called with a token that was just
 * appended to q. */
bool guide_has_ended(const struct guide *g, const struct seq *q, int32_t id);

#endif
