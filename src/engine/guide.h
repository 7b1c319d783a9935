/* SPDX-License-Identifier: Apache-2.0
 *
 * Guided decoding: the constraints of a request on each next token.
 *
 *   automata   uploaded by a front over its control socket, checked and mapped
 *   walks      each sequence follows its automaton token by token
 *   masks      made by a few threads while the device computes the logits that they are for
 *   late       a mask that takes longer than a step may wait for is made beside the steps; its
 *              sequence skips them meanwhile
 *
 * How long a step waits: a mask takes at most GUIDE_MASK_STEPS elementary steps of a walk, and none
 * is begun after those of its tenant have taken GUIDE_TENANT_STEPS, or all masks GUIDE_PASS_STEPS
 * per thread. Together at most 1,200,000 steps of some 5 ns per thread, 6 ms. A tenant has at most
 * GUIDE_LATE_TENANT late masks at a time, and the tenant with the fewest steps spent on it is next.
 * An automaton that cannot be walked within the bounds of walk.h is refused from then on.
 *
 * Each row of a sequence with drafts (draft.h) has a mask of its own, made in the order of the
 * drafts. These masks have half of the bounds above: one that does not fit into them ends the
 * drafts, and the masks of other sequences are not later for it.
 *
 * Allowed ids and bad words of a request become masks as well. All calls come from the engine's
 * thread; other threads work only inside guide_run(), and in guide_late.c. */
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

#define GUIDE_MASK_STEPS 400000 /* free text with 50,000 tokens takes as many, the first time */
/* As many steps of one tenant end its masks of this step; the next limit is for all tenants, per
 * thread. */
#define GUIDE_TENANT_STEPS 600000
#define GUIDE_PASS_STEPS   800000
/* Late masks at a time, of one tenant, and threads that make them on machines of 8 cores or
 * more. */
#define GUIDE_LATE         8
#define GUIDE_LATE_TENANT  6
#define GUIDE_LATE_THREADS 2

/* A mapped automaton of a front, in one of its places. */
struct guide_automaton {
    const struct automaton *a; /* NULL: a free place */
    size_t bytes;
    const struct token_trie *vocab; /* the vocabulary of the same front */
    struct walk_cache *cache;       /* NULL: there is none */
    size_t cache_bytes;
    int n_users;  /* sequences and late masks that use it */
    bool lost;    /* the place is free because its upload was lost for want of memory */
    bool refused; /* it cannot be walked within the bounds */
    bool is_slow; /* a look ahead took too long: its sequences have no drafts (guide_draft()) */
};

/* The uploads of one front. */
struct guide_lane {
    const struct token_trie *vocab; /* NULL: none yet */
    size_t vocab_bytes;
    struct guide_automaton *automata; /* [WIRE_AUTOMATA_MAX] */
};

/* A mask to be made. */
struct guide_job {
    struct seq *q;
    int n_drafts; /* it is for the token after q's known ones and so many of its drafts */
    uint32_t *mask;
    int rc; /* ERR_OK, or the reason why the sequence cannot continue */
};

enum guide_late_state { GUIDE_FREE, GUIDE_WAITS, GUIDE_RUNS, GUIDE_DONE };

/* A mask that is made beside the steps (guide_late.c). */
struct guide_late {
    enum guide_late_state state; /* guarded by late_lock, as is the rest */
    struct seq *q;               /* the engine's thread alone uses it; NULL: the sequence has
                                  * ended */
    struct guide_automaton *p;   /* counted in its n_users; NULL: the place is free */
    int tenant_idx;
    int n_tokens; /* the mask is for the token after this many */
    struct walk walk;
    struct walk_work *work; /* set in GUIDE_RUNS */
    uint32_t *mask;         /* uint32 [n_words] */
    uint32_t steps;         /* steps that it took */
    int rc;
};

struct guide {
    struct pool *pool;
    struct walk_work **works; /* [pool_width()] */
    uint32_t **scratch;       /* [pool_width()]: uint32 [n_words] */
    struct walk **ahead;      /* [pool_width()]: a sequence's walk over its drafts */
    struct guide_job *jobs;   /* [max_num_seqs], those of a sequence one after another */
    int n_jobs;
    int *firsts; /* int [max_num_seqs]: the first job of each sequence */
    int n_seqs;
    uint32_t *masks; /* borrowed from the model */
    int n_words;
    int n_vocab;
    int n_eos;
    const int32_t *eos;
    bool waits; /* no mask is late */

    /* Elementary steps that the masks of this step of the device have taken. */
    atomic_uint pass_steps;
    atomic_uint tenant_steps[WIRE_TENANTS];

    struct guide_late late[GUIDE_LATE];
    uint64_t late_steps[WIRE_TENANTS]; /* steps per tenant since there was no late mask */
    pthread_mutex_t late_lock;
    pthread_cond_t late_came;
    uint64_t n_late; /* late masks since the start */
};

struct guide_shape {
    int n_vocab;
    int max_num_seqs;
    int n_eos;
    const int32_t *eos; /* borrowed, valid for the life of the guide */
    uint32_t *masks;    /* uint32 [max_num_seqs][ceil(n_vocab / 32)], borrowed for the life of the
                         * guide */
    bool waits;         /* steps wait for every mask: none is late */
};

/* Call before memory is sealed. ERR_NO_MEMORY. */
int guide_init(struct guide *g, const struct guide_shape *shape) ERR_CHECKED;
int guide_lane_init(struct guide_lane *l) ERR_CHECKED;

/* Take an upload of a front; the descriptor `uploaded` is closed. ERR_CORRUPT: drop the front.
 * ERR_NO_MEMORY: there is no room for it, or uploaded is -1 because it was lost; requests that name
 * it are refused. A vocabulary takes some milliseconds, an automaton 5 ns per state. */
int guide_take_upload(const struct guide *g, struct guide_lane *l, const struct wire_upload *upload,
                      int uploaded) ERR_CHECKED;

/* Forget all uploads of a front, whose sequences are gone. Late masks that use them are stopped. */
void guide_lane_drop(struct guide *g, struct guide_lane *l);

/* Check the constraints that follow a request's tokens, int32 [wire_extra()], and attach them to
 * seq, whose request and tokens are set. ERR_INVALID, ERR_NO_FORM, ERR_LIMIT; then nothing is
 * attached. */
int guide_begin(const struct guide *g, struct guide_lane *l, struct seq *seq,
                const int32_t *words) ERR_CHECKED;
void guide_end(struct seq *seq);

/* May the token after seq's pending ones be masked? Called before that token itself is pending. */
bool guide_has_mask(struct seq *seq);

/* The masks of a step: guide_clear(), then guide_add() for each row of a masked sequence, one for
 * its next token and one behind each draft; it returns the mask's index in model_masks(). Then
 * guide_run(), when all tokens before the masked ones are known, while the device computes. A job's
 * rc reports that its sequence cannot continue (ERR_NO_TOKEN, ERR_LIMIT), or that it has to skip
 * this step: ERR_AGAIN, and is_late is set. Its mask then allows everything. */
void guide_clear(struct guide *g);
int guide_add(struct guide *g, struct seq *seq);
void guide_run(struct guide *g);

/* Once per pass, before the plan: hand finished late masks to their sequences, which are not late
 * any more, and begin others. Does not wait. */
void guide_pass(struct guide *g, struct seq *const *running, int n_running);

/* Is id, which was just appended to seq, an end of sequence that its automaton has allowed? */
bool guide_has_ended(const struct guide *g, const struct seq *seq, int32_t id);

/* Before a plan, when all tokens of seq are known, with n drafts behind them: the first n_kept may
 * come; behind them, up to n of at most `most`, are tokens of the bytes that the automaton leaves
 * no choice about but white space (walk_likely()), written after the drafts. Which tokens such
 * bytes are cut into is the model's choice: the longest ones are a guess, and certain only if no
 * other token is allowed. */
struct guide_drafts {
    int n_kept, n;
};
struct guide_drafts guide_draft(struct guide *g, struct seq *seq, int n, int most);

/* seq got a token: do at least two such tokens follow it? Then its next step is worth a wait. */
bool guide_is_forced(struct guide *g, struct seq *seq);

/* --- between guide.c and guide_late.c --- */

struct walk_work *guide_work(const struct guide *g); /* NULL: no memory */
int guide_late_init(struct guide *g) ERR_CHECKED;
/* Before a lane's automata are unmapped: stop late masks that use them, which takes some
 * microseconds. */
void guide_late_drop(struct guide *g, const struct guide_lane *l);

#endif
