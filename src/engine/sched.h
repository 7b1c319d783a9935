/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler: how many tokens of which sequences the next step computes.
 *
 * A function of queues and budgets: no clock, no device, no I/O, so that it can be simulated. There
 * is no prefill phase and no decode phase. A sequence has n_tokens known tokens, of which
 * n_computed are computed; steps in flight compute n_ahead more and will sample n_pending tokens. A
 * step distributes max_num_batched_tokens in this order:
 *
 *   1. running sequences that lack one token (decodes), oldest first;
 *   2. running sequences that lack more (chunks of prompts); of the long ones only the first;
 *   3. waiting sequences, by priority and turn of their tenants (tenants.h), as long as pages are
 *      found for the whole prompt; a long one only if none has a chunk in this step;
 *   4. the rest of the budget goes to the other long ones: the running ones, then the waiting ones.
 *
 * A prompt is long while it lacks more than long_prefill_tokens, and gets at most that many in a
 * step that it shares. So however many long prompts there are, the rest of each step is for
 * sequences that are soon done.
 *
 * A step delays the tokens of all running sequences. So while any of them decodes, prompts get only
 * as many tokens as keep the step within a target (cost.h foretells its time), in the same order:
 * one prompt is finished before the next begins, so that many prompts at once are computed in
 * waves, and the first of them decode meanwhile. However long the decodes take, prompts get a share
 * of time beside them; and no sequence is admitted while the decodes alone would not leave that
 * share within the target. While few prompts wait, a step is as long as it takes to compute them
 * within six targets, half a target at least: the same work, spread evenly. A long prompt leaves
 * others what they need, up to half of a step's time for prompts. While nothing decodes, steps are
 * as long as their tokens allow.
 *
 * The plan's pages, evictions and copies are in tables.h. A cached prefix is used to the token, not
 * to the page: where a prompt diverges inside a cached page, a copy of that page serves its first
 * tokens.
 *
 * A waiting sequence that finds no pages may be overtaken by short ones, at most max_num_seqs
 * times: all that ran when it was first overtaken have ended by then, and nothing else takes its
 * pages.
 *
 * A model of n stages computes n steps at a time, which must be of different sequences: a token is
 * the next one's input. So a step decodes at most one n-th of the running sequences, and a token
 * that is being sampled is taken from the device by the n-th step after it. Chunks of a prompt may
 * follow one another directly, because every stage computes the steps in their order.
 *
 * When pages run out in 1, 2 or 4, the running sequence of lowest priority and latest arrival is
 * preempted: it loses its pages and waits again. Its tokens are kept and computed again. No
 * sequence is admitted in such a step. The last running sequence is also preempted when all places
 * are taken and a sequence of higher priority waits. */
#ifndef QUIRE_ENGINE_SCHED_H
#define QUIRE_ENGINE_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/cost.h"
#include "engine/seq.h"
#include "engine/tables.h"
#include "engine/tenants.h"

struct sched_limits {
    int max_num_seqs;           /* running at once */
    int max_num_batched_tokens; /* per step */
    int long_prefill_tokens;    /* of one sequence in a step that it shares */
    int page_tokens;
    bool prefix_caching;
    int n_groups; /* of the cache (tables.h) */
    const struct cache_group *groups;
    const struct draft_options *drafts; /* NULL: no drafts are made */
    int n_stages;                       /* of the model; 0: one */
    const struct cost *cost;            /* borrowed for good; NULL: steps have no target */
    int itl_target_ms;                  /* as cost_target_us() */
};

struct sched {
    struct sched_limits limits;
    struct tables tables;
    bool holds;           /* no waiting sequence is admitted: the engine is to sleep */
    struct seq **running; /* [max_num_seqs], by priority and arrival */
    int n_running;
    struct tenants tenants; /* all that wait */

    /* The plan, until the next one. */
    struct seq **planned; /* [max_num_seqs]; n_planned is set in each */
    int n_planned;
    int n_planned_tokens;
    int n_planned_rows;       /* rows for prompt tokens and drafts, beyond one per sequence */
    bool long_planned;        /* a long prompt has a chunk in this plan */
    struct cost_step load;    /* the plan's parts, if there is a cost model */
    struct cost_step decodes; /* those of a step in which all that runs decodes */
    double limit_us;          /* prompts must not make the plan longer; 0: no limit */
    double decode_max_us;     /* nor new sequences the decodes; 0: no limit */
    int64_t n_todo;           /* prompt tokens that are to be computed, of those that wait too */
    bool long_is_last;        /* all others have their tokens: long ones may have the rest */
    bool prompt_planned;      /* the plan has tokens of a prompt */
    bool is_limited;          /* a prompt got less because of the limit */

    unsigned n_begun; /* steps; wraps */

    /* Counters, only growing. */
    uint64_t n_preemptions;
    uint64_t n_prefix_queries; /* tokens */
    uint64_t n_prefix_hits;    /* tokens */
};

int sched_init(struct sched *s, const struct sched_limits *limits, struct pages *pages) ERR_CHECKED;

/* Queue a new sequence; its root, tokens, n_tokens, tenant_idx, request.priority and arrival are
 * set. */
void sched_add(struct sched *s, struct seq *seq);

/* Remove a sequence in any state; its pages are unreferenced, last first. */
void sched_remove(struct sched *s, struct seq *seq);

/* Number of waiting sequences. */
int sched_n_waiting(const struct sched *s);

/* Make the plan. Sequences that are paused, load pages or wait for their mask are skipped, and so
 * are those that end with the token that is being sampled. A sequence with a step in flight is
 * never preempted, because its pages are being written: the sequence that needs pages waits for the
 * step's end. */
void sched_plan(struct sched *s);

/* Will the next plan probably find enough pages? If not, steps in flight have to end first.
 * Sequences that are admitted in that plan may take more than this estimate. */
bool sched_has_room(const struct sched *s);

/* The step of the plan begins: its tokens become n_ahead. */
void sched_begin(struct sched *s);

/* After a step: n tokens of seq that were ahead are computed; full pages get their names. Calls
 * named() for each page that is worth saving in a lower tier. */
void sched_advance(struct sched *s, struct seq *seq, int n, tables_named_fn *named, void *context);

/* Prove that lists, states and pages agree. must() on failure. */
void sched_check(const struct sched *s);

#endif
