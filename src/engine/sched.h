/* The scheduler: which sequences compute how many tokens in the next step.
 *
 * A function of queues and budgets: no clock, no device, no I/O, so that it can be simulated.
 * There is no prefill phase and no decode phase. A sequence has n_tokens known tokens of which
 * n_computed are computed; steps that are under way have n_ahead more in hand and will give
 * n_pending tokens. A step hands out max_num_batched_tokens among all:
 *
 *   1. sequences that lack one token (decodes), oldest first;
 *   2. running sequences that lack more (chunks of prompts), of the long ones only the first;
 *   3. waiting sequences, by priority and turn of their tenants (tenants.h), as long as their whole
 *      prompt finds pages; a long one only if none had its chunk;
 *   4. what is left goes to the other long ones, those that run and then those that wait.
 *
 * A prompt is long while it lacks more than long_prefill_tokens, and gets no more than that in a
 * step that others share. So however many long prompts there are, the rest of each step is for
 * those that are soon done.
 *
 * The plan's pages, evictions and copies are those of tables.h. Cached pages serve to the token: of
 * the page at which a sequence leaves what is cached, its first tokens are taken over in a copy.
 *
 * One that finds no pages is overtaken by those that lack little, at most by max_num_seqs of them:
 * what ran when it came has ended by then, and nobody else takes its pages.
 *
 * Out of pages in 1, 2 or 4: the running sequence of lowest priority and latest arrival loses its
 * pages and waits again (its tokens are kept and computed anew); then nobody is admitted in
 * this step. The same happens to it when all places are taken and one of higher priority waits. */
#ifndef QUIRE_ENGINE_SCHED_H
#define QUIRE_ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/seq.h"
#include "engine/tables.h"
#include "engine/tenants.h"

struct sched_limits {
    int max_num_seqs;           /* running at once */
    int max_num_batched_tokens; /* in a step */
    int long_prefill_tokens;    /* of one sequence in a step that others share */
    int page_tokens;
    bool prefix_caching;
    int n_groups; /* of the cache (tables.h) */
    const struct cache_group *groups;
    const struct draft_options *drafts; /* NULL: none are made */
};

struct sched {
    struct sched_limits limits;
    struct tables tables;
    struct seq **running; /* [max_num_seqs], by priority and arrival */
    int n_running;
    struct tenants tenants; /* with all that wait */

    /* The plan, until the next one. */
    struct seq **planned; /* [max_num_seqs]; n_planned of each is set */
    int n_planned;
    int n_planned_tokens;
    int n_planned_rows; /* that tell of prompt tokens, beside one a sequence */
    bool long_planned;  /* a long prompt has its chunk */

    /* Counters, only growing. */
    uint64_t n_preemptions;
    uint64_t n_prefix_queries; /* tokens */
    uint64_t n_prefix_hits;    /* tokens */
};

int sched_init(struct sched *s, const struct sched_limits *limits, struct pages *pages) ERR_CHECKED;

/* Queue a new sequence; its root, tokens, n_tokens, tenant_idx, request.priority and
 * order are set. */
void sched_add(struct sched *s, struct seq *q);

/* Take a sequence out, whatever its state; its pages are unreferenced, last first. */
void sched_remove(struct sched *s, struct seq *q);

/* The sequences that wait. */
int sched_n_waiting(const struct sched *s);

/* Make the plan. Sequences that are paused, load or wait for their mask are passed over, and
 * those that end with the token that is on its way. Nobody whose step is under way is preempted:
 * where that would be needed, who lacks pages waits for the step's end. */
void sched_plan(struct sched *s);

/* Whether the next plan will hardly lack pages; without steps under way it may be made anyhow. Who
 * is admitted in it may take more than this foresees. */
bool sched_has_room(const struct sched *s);

/* When a step begins: its plan's tokens are in hand. */
void sched_begin(struct sched *s);

/* After a step: n tokens of q that were in hand are computed; pages get their names. Calls named()
 * for each that is worth saving. */
void sched_advance(struct sched *s, struct seq *q, int n, tables_named_fn *named, void *context);

/* Prove that lists, states and pages agree. must() on failure. */
void sched_check(const struct sched *s);

#endif
