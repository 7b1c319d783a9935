/* Guided sampling: what a request allows of each next token, beside what the model thinks.
 *
 *   automata   what a front uploads over its control socket, checked and mapped
 *   walks      each sequence follows its automaton token by token
 *   masks      made by a few threads while the device computes the logits they are for
 *   late ones  what takes longer than a step may wait for is made beside the steps; its sequence
 *              skips them meanwhile
 *
 * How long a step waits: a mask takes GUIDE_MASK_STEPS elementary steps of a walk at most, and none
 * is begun when those of its tenant took GUIDE_TENANT_STEPS, or all of them GUIDE_PASS_STEPS for
 * each thread. Together 1,200,000 steps of some 5 ns for a thread, 6 ms. Of late masks a tenant
 * has at most GUIDE_LATE_TENANT under way, and the tenant goes next for which the fewest steps
 * were made. An automaton that cannot be walked within the bounds of walk.h is refused from then
 * on.
 *
 * Allowed ids and bad words of a request become masks as well. All calls come from the engine's
 * thread; the others work only inside of guide_run(). */
#ifndef QUIRE_ENGINE_GUIDE_H
#define QUIRE_ENGINE_GUIDE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device/pool.h"
#include "engine/seq.h"
#include "grammar/walk.h"
#include "ipc/wire_control.h"
#include "ipc/wire_request.h"
#include "ipc/wire_stats.h"
#include "model/model.h"

#define GUIDE_MASK_STEPS   400000 /* free text with 50,000 tokens takes as many, the first time */
#define GUIDE_TENANT_STEPS 600000
#define GUIDE_PASS_STEPS   800000
#define GUIDE_LATE         8
#define GUIDE_LATE_TENANT  6
#define GUIDE_LATE_THREADS 2

/* A mapped automaton of a front. */
struct guide_automaton {
    const struct automaton *a; /* NULL: a free place */
    size_t bytes;
    const struct token_trie *vocab; /* of the same front */
    struct walk_cache *cache;       /* NULL: without */
    size_t cache_bytes;
    int n_users;  /* sequences */
    bool lost;    /* free, because what was uploaded could not be taken */
    bool refused; /* it cannot be walked within bounds */
};

/* What one front has uploaded. */
struct guide_lane {
    const struct token_trie *vocab; /* NULL: none yet */
    size_t vocab_bytes;
    struct guide_automaton *automata; /* [WIRE_AUTOMATA_MAX] */
};

/* One mask to be made. */
struct guide_job {
    struct seq *q;
    uint32_t *mask;
    int rc; /* ERR_OK, or why the sequence cannot go on */
};

enum guide_late_state { GUIDE_FREE, GUIDE_WAITS, GUIDE_RUNS, GUIDE_DONE };

/* A mask that is made beside the steps (guide_late.c). */
struct guide_late {
    enum guide_late_state state; /* guarded by late_lock; what follows is its holder's */
    struct seq *q;               /* the engine's thread alone looks at it; NULL: it has left */
    struct guide_automaton *p;   /* in use by this; NULL: the place is free */
    int tenant_idx;
    int n_tokens; /* behind which the mask holds */
    struct walk walk;
    struct walk_work *work; /* with GUIDE_RUNS */
    uint32_t *mask;         /* uint32 [n_words] */
    uint32_t steps;         /* that it took */
    int rc;
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
    bool waits; /* no mask is late */

    /* Steps of walks that the masks of this step of the device have taken. */
    atomic_uint pass_steps;
    atomic_uint tenant_steps[WIRE_TENANTS];

    struct guide_late late[GUIDE_LATE];
    uint64_t late_steps[WIRE_TENANTS]; /* since none was late */
    pthread_mutex_t late_lock;
    pthread_cond_t late_came;
    uint64_t n_late; /* masks that were, since the start */
};

struct guide_shape {
    int n_vocab;
    int max_num_seqs;
    int n_eos;
    const int32_t *eos; /* borrowed for good */
    uint32_t *masks;    /* uint32 [max_num_seqs][ceil(n_vocab / 32)], borrowed for good */
    bool waits;         /* no mask is late: steps wait for them */
};

/* Before the memory is sealed; ERR_NO_MEMORY. */
int guide_init(struct guide *g, const struct guide_shape *shape) ERR_CHECKED;
int guide_lane_init(struct guide_lane *l) ERR_CHECKED;

/* Take what a front uploaded; uploaded is closed. ERR_CORRUPT: the front is to be dropped.
 * ERR_NO_MEMORY: there is no room for it, or uploaded is -1; who names it is refused. A vocabulary
 * takes some milliseconds, an automaton 5 ns a state. */
int guide_take_upload(const struct guide *g, struct guide_lane *l, const struct wire_upload *upload,
                      int uploaded) ERR_CHECKED;

/* Forget all that a front uploaded; its sequences are gone. Late masks of theirs are stopped. */
void guide_lane_drop(struct guide *g, struct guide_lane *l);

/* Check what stood behind a request's tokens, int32 [wire_extra()], and attach it to q, whose
 * request and tokens are set. ERR_INVALID, ERR_NO_FORM, ERR_LIMIT; then q has nothing of it. */
int guide_begin(const struct guide *g, struct guide_lane *l, struct seq *q,
                const int32_t *words) ERR_CHECKED;
void guide_end(struct seq *q);

/* Whether the token is masked, or may be, that comes behind q's pending ones. Before it is counted
 * as pending itself. */
bool guide_has_mask(struct seq *q);

/* The masks of a step: guide_clear(), then guide_add() for each sequence that has one, which gives
 * its index in model_masks(), then guide_run() while the device computes, when all tokens before
 * the masked ones are known. A job's rc says when its sequence cannot go on: ERR_NO_TOKEN,
 * ERR_LIMIT; or that it has to skip this step: ERR_AGAIN, and is_late is set. Its mask then allows
 * everything. */
void guide_clear(struct guide *g);
int guide_add(struct guide *g, struct seq *q);
void guide_run(struct guide *g);

/* Once per pass, before the plan: late masks that are there are handed to their sequences, which
 * are late no longer, and others are begun. Waits for nothing. */
void guide_pass(struct guide *g, struct seq *const *running, int n_running);

/* Has the output come to an end that its automaton knows? Called with a token that was just
 * appended to q. */
bool guide_has_ended(const struct guide *g, const struct seq *q, int32_t id);

/* --- between guide.c and guide_late.c --- */

struct walk_work *guide_work(const struct guide *g); /* NULL: no memory */
int guide_late_init(struct guide *g) ERR_CHECKED;
/* Before a lane's automata go: late masks are stopped, which takes some microseconds. */
void guide_late_drop(struct guide *g, const struct guide_lane *l);

#endif
