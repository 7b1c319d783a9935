/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler's rule is in sched.h. sched_plan() walks the running sequences three times and the
 * waiting ones up to twice, in the order of that rule; each walk hands out tokens (sched_give())
 * until the budget, the places or the pages are used up. Costs per plan: O(running + waiting looked
 * at), plus one hash per page of each prompt that is admitted or tried. */
#include "engine/sched.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"

#define SCHED_TRIES 4 /* sequences without pages that one plan tries: each try hashes the prompt */
/* The least time of prompts in a step, as a share of that of its decodes. */
#define SCHED_PROMPT_SHARE 0.25
/* While few prompts wait, steps take this share of the target, so that each has some of them... */
#define SCHED_CALM 0.5
/* ...and longer ones if prompts would otherwise wait for more than so many targets. */
#define SCHED_CLEAR 6.0
/* However short the target, so many times the fixed part of a step is left for decodes. */
#define SCHED_DECODE_MIN 2.0
/* The least tokens of a chunk: fewer cost a step's kernels as much. */
#define SCHED_CHUNK_MIN 64

/* Memory for one plan, allocated once. */
int sched_init(struct sched *s, const struct sched_limits *limits, struct pages *pages)
{
    size_t n = (size_t)limits->max_num_seqs;
    const struct tables_limits of_tables = {.n_groups = limits->n_groups,
                                            .groups = limits->groups,
                                            .page_tokens = limits->page_tokens,
                                            .max_num_seqs = limits->max_num_seqs,
                                            .chunk_tokens = limits->max_num_batched_tokens,
                                            .prefix_caching = limits->prefix_caching};

    *s = (struct sched){.limits = *limits};
    if (s->limits.n_stages < 1)
        s->limits.n_stages = 1;
    tenants_init(&s->tenants);
    s->running = mem_zalloc_array(n, sizeof *s->running);
    s->planned = mem_zalloc_array(n, sizeof *s->planned);
    if (s->running == NULL || s->planned == NULL)
        return ERR_NO_MEMORY;
    return tables_init(&s->tables, &of_tables, pages);
}

int sched_n_waiting(const struct sched *s)
{
    return s->tenants.n_waiting;
}

/* The tenant's list decides the place; tenants_next() gives the order across tenants. */
void sched_add(struct sched *s, struct seq *seq)
{
    tenants_add(&s->tenants, seq);
    seq->state = SEQ_WAITING;
    seq->chain = seq->root;
}

/* The running array is sorted by seq_before(), so its last entry is the one to preempt. Its length
 * is at most max_num_seqs, some hundreds: insertion and removal by moving entries are cheap. */
static void sched_run_insert(struct sched *s, struct seq *seq)
{
    int i = s->n_running++;

    must(s->n_running <= s->limits.max_num_seqs);
    while (i > 0 && seq_before(seq, s->running[i - 1])) {
        s->running[i] = s->running[i - 1];
        i--;
    }
    s->running[i] = seq;
    seq->state = SEQ_RUNNING;
}

/* The order of the others does not change. */
static void sched_run_remove(struct sched *s, const struct seq *seq)
{
    int i = 0;

    while (s->running[i] != seq) {
        i++;
        must(i < s->n_running);
    }
    tenants_stop(&s->tenants, seq);
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, sizeof *s->running * (size_t)(s->n_running - i));
}

/* All references to pages go; the tokens stay. The sequence could be admitted again as it is. */
static void sched_drop_pages(struct sched *s, struct seq *seq)
{
    tables_drop(&s->tables, seq);
    seq->n_computed = 0;
    seq->n_ahead = 0;
    seq->n_pending = 0;
    seq->draft.n_ahead = 0;
    seq->draft.is_traced = false;
    seq->n_again = 0;
}

/* Steps in flight may still contain the sequence: retire() removes it from them. */
void sched_remove(struct sched *s, struct seq *seq)
{
    if (seq->state == SEQ_WAITING)
        tenants_remove(&s->tenants, seq);
    else
        sched_run_remove(s, seq);
    sched_drop_pages(s, seq);
    seq->n_planned = 0;
    seq->state = SEQ_FREE;
}

/* Add the plan of a sequence to the step's parts, or take it away. */
static void sched_count(struct sched *s, const struct seq *seq,
                        void count(const struct cost *, struct cost_step *, int, int, int))
{
    int done = seq->n_computed + seq->n_ahead;
    int n_rows = seq_tells_prompt(seq) ? seq->n_planned : 1 + seq->draft.n;

    if (s->limits.cost == NULL)
        return;
    if (!seq_tells_prompt(seq) && done + seq->n_planned < seq->n_tokens + seq->n_pending)
        n_rows = 0; /* not the last chunk */
    count(s->limits.cost, &s->load, done, seq->n_planned, n_rows);
}

/* Take a running sequence's pages and let it wait again. If it is in the plan already, its tokens
 * and rows go back to the budget, for others to take. */
static void sched_preempt(struct sched *s, struct seq *seq)
{
    must(seq->n_ahead == 0 && seq->n_pending == 0);
    if (seq->n_planned > 0) {
        s->n_planned_tokens -= seq->n_planned;
        s->n_planned_rows -= seq_tells_prompt(seq) ? seq->n_planned - 1 : seq->draft.n;
        sched_count(s, seq, cost_take);
    }
    sched_run_remove(s, seq);
    sched_drop_pages(s, seq);
    seq->n_planned = 0;
    seq->draft.n = 0;
    seq->searched = false; /* a lower tier may have the pages that it loses */
    seq->n_asked = 0;
    s->n_preemptions++;
    sched_add(s, seq);
}

/* --- the share of a sequence ------------------------------------------------------------------ */

/* Plan n tokens of a running sequence; preempt others, from the last on, until its pages are found.
 * False when seq itself had to be preempted, or when the victim has a step in flight: its pages are
 * being written, so seq waits for the step's end. */
static bool sched_give(struct sched *s, struct seq *seq, int n)
{
    while (!tables_grow(&s->tables, seq, seq->n_computed + seq->n_ahead + n)) {
        struct seq *victim = s->running[s->n_running - 1];

        if (victim->n_ahead > 0 || victim->n_pending > 0)
            return false;
        sched_preempt(s, victim);
        if (victim == seq)
            return false;
    }
    seq->n_planned = n;
    s->n_planned_tokens += n;
    s->n_planned_rows += seq_tells_prompt(seq) ? n - 1 : seq->draft.n;
    sched_count(s, seq, cost_add);
    return true;
}

/* With stages: true if the token that seq lacks is being sampled by a step that the next one cannot
 * take it from. */
static bool sched_awaits_token(const struct sched *s, const struct seq *seq)
{
    return s->limits.n_stages > 1 && seq->n_pending > 0 &&
           s->n_begun - seq->step_ahead != (unsigned)s->limits.n_stages;
}

/* The tokens that seq lacks, apart from drafts. A token that a step in flight samples counts as
 * lacking, because the next step can take it from the device; unless it is seq's last. */
static int sched_lacks(const struct sched *s, const struct seq *seq)
{
    if (sched_awaits_token(s, seq))
        return 0;
    if (seq->draft.n_ahead > 0 ||
        ((seq->draft.is_on || seq->draft.is_forced) && seq->n_pending > 0))
        return 0; /* the draft's outcome is known only after the step */
    if (seq->n_pending > 0 && seq->n_tokens + seq->n_pending >= seq->tokens_max)
        return 0;
    return seq->n_tokens + seq->n_pending - seq->n_computed - seq->n_ahead;
}

/* Whether a prompt is long depends on the tokens that it lacks, so its last chunk is not. */
static bool sched_is_long(const struct sched *s, const struct seq *seq)
{
    return sched_lacks(s, seq) > s->limits.long_prefill_tokens;
}

/* Has the step time for a chunk of a prompt? The first one always has some. */
static bool sched_has_time(const struct sched *s)
{
    struct cost_step more = s->load;

    if (s->limit_us <= 0.0 || !s->prompt_planned)
        return true;
    cost_add(s->limits.cost, &more, 0, SCHED_CHUNK_MIN, 1);
    return cost_us(s->limits.cost, &more) <= s->limit_us;
}

/* The time that a long prompt leaves to others: what they need, at most half of what there is. */
static double sched_others_us(const struct sched *s, const struct seq *seq)
{
    int64_t n = s->n_todo - sched_lacks(s, seq);
    double us = cost_us(s->limits.cost, &s->load), left_us = fmax(0.0, s->limit_us - us);
    struct cost_step more = s->load;

    if (n <= 0)
        return 0.0;
    if (n > s->limits.max_num_batched_tokens)
        n = s->limits.max_num_batched_tokens;
    cost_add(s->limits.cost, &more, 0, (int)n, 1);
    return fmin(left_us / 2.0, cost_us(s->limits.cost, &more) - us);
}

/* Of n tokens of a prompt, those that the step has time for. */
static int sched_in_time(const struct sched *s, const struct seq *seq, int n)
{
    int done = seq->n_computed + seq->n_ahead, fits;
    double limit_us = s->limit_us;

    if (limit_us <= 0.0 || n <= SCHED_CHUNK_MIN)
        return n;
    if (!s->long_is_last && sched_is_long(s, seq))
        limit_us -= sched_others_us(s, seq);
    fits = cost_fits(s->limits.cost, &s->load, done, n, limit_us);
    return fits < SCHED_CHUNK_MIN ? SCHED_CHUNK_MIN : fits;
}

/* How many tokens seq may compute now: limited by the budget and the time that are left, by the
 * share of a long prompt, and by the rows that are left if the log probabilities of prompt tokens
 * are wanted. */
static int sched_share(struct sched *s, const struct seq *seq)
{
    int n = sched_lacks(s, seq);
    int left = s->limits.max_num_batched_tokens - s->n_planned_tokens;
    bool alone = s->n_running + sched_n_waiting(s) <= 1;

    if (!alone && n > s->limits.long_prefill_tokens)
        n = s->limits.long_prefill_tokens;
    if (n > left)
        n = left;
    if (n > 1) {
        int in_time = sched_in_time(s, seq, n);

        s->is_limited = s->is_limited || in_time < n;
        n = in_time;
    }
    /* One row per token. Each running sequence needs one row anyway, and half of the rest is left
     * for sequences that are admitted later in this plan. */
    if (seq_tells_prompt(seq)) {
        int rows = 1 + (s->limits.max_num_seqs - s->n_running - s->n_planned_rows) / 2;

        if (n > rows)
            n = rows;
        if (n > seq->chunk_max)
            n = seq->chunk_max;
    }
    return tables_clip(&s->tables, seq, n);
}

/* The passes over the running sequences. */
enum sched_pass {
    SCHED_DECODES,
    SCHED_PROMPTS, /* chunks of prompts; of the long ones the first */
    SCHED_REST,
};

/* Each pass plans another kind; a sequence that has its tokens already is skipped. */
static bool sched_is_due(const struct sched *s, const struct seq *seq, enum sched_pass pass)
{
    if (seq->paused || seq->is_late || seq->n_planned != 0 || sched_lacks(s, seq) == 0)
        return false;
    if (pass == SCHED_PROMPTS && s->long_planned && sched_is_long(s, seq))
        return false;
    return seq_decodes(seq, sched_lacks(s, seq)) == (pass == SCHED_DECODES);
}

/* Propose drafts for seq behind n known tokens, as many as there is room for: each needs a row, a
 * token of the budget and room in the output ring, and a state a copy. Returns how many. */
static int sched_drafts(struct sched *s, struct seq *seq, int n)
{
    int rows = (s->limits.max_num_seqs - s->n_running - s->n_planned_rows) / 2;
    int left = s->limits.max_num_batched_tokens - s->n_planned_tokens - n;
    int border = tables_to_border(&s->tables, seq) - n;
    int room = seq->room / seq_token_records(seq);
    int most = seq->tokens_max - seq->n_tokens - 1;

    seq->draft.n = 0;
    /* A sequence that runs ahead gets no drafts: they continue the last token, which is not known
     * yet. */
    if (s->limits.drafts == NULL || seq->n_pending > 0 || seq->n_ahead > 0)
        return 0;
    tables_forget(&s->tables, seq); /* of a plan without a step */
    if (border <= 0)
        return 0;
    if (most > DRAFT_MAX + 1 - n)
        most = DRAFT_MAX + 1 - n;
    if (most > border)
        most = border;
    if (most > rows)
        most = rows;
    if (most > left)
        most = left;
    if (most > room)
        most = room;
    draft_propose(s->limits.drafts, seq, most);
    if (seq->draft.n > 0 && !tables_keep(&s->tables, seq, s->n_running))
        seq->draft.n = 0;
    return seq->draft.n;
}

/* One pass over the running sequences. With stages, decodes are left for the next steps. Preemption
 * removes entries from the end of the array, so the index stays valid for all sequences before the
 * victim. */
static void sched_plan_running(struct sched *s, enum sched_pass pass)
{
    int n_left = s->n_running;

    if (pass == SCHED_DECODES)
        n_left = (s->n_running + s->limits.n_stages - 1) / s->limits.n_stages;
    for (int i = 0; i < s->n_running && n_left > 0; i++) {
        struct seq *seq = s->running[i];
        int n;

        if (!sched_is_due(s, seq, pass))
            continue;
        if (pass != SCHED_DECODES && !sched_has_time(s)) {
            s->is_limited = true;
            return;
        }
        n = sched_share(s, seq);
        /* The budget is used up: the sequences after it get nothing either, or they would
         * overtake. */
        if (n <= 0)
            return;
        s->long_planned = s->long_planned || sched_is_long(s, seq);
        if (pass == SCHED_DECODES)
            n += sched_drafts(s, seq, n);
        if (!sched_give(s, seq, n))
            return;
        s->prompt_planned = s->prompt_planned || pass != SCHED_DECODES;
        n_left--;
        if (pass == SCHED_DECODES)
            tenants_charge_token(&s->tenants, seq);
    }
}

/* What is told of seq's hits. The first tokens of a page that was copied are hits of all groups. */
static void sched_note_hits(struct seq *seq)
{
    seq->n_cached = seq->n_computed < seq->n_prompt ? seq->n_computed : seq->n_prompt;
    seq->n_cached_told = seq->n_cached > seq->n_foreign ? seq->n_cached - seq->n_foreign : 0;
    for (int kind = 0; kind < CACHE_KINDS; kind++) {
        if (seq->n_found[kind] < seq->n_cached)
            seq->n_found[kind] = seq->n_cached;
        if (seq->n_found[kind] > seq->n_prompt)
            seq->n_found[kind] = seq->n_prompt;
    }
}

/* Move a waiting sequence to the running array, and plan its first chunk. False when there are not
 * enough pages for its whole prompt. */
static bool sched_admit(struct sched *s, struct seq *seq)
{
    int n;

    /* First reference the cached prefix: only the rest needs free pages. Pages that are found in
     * the cache may have been free, so pages_free() is asked after that. */
    tables_take_prefix(&s->tables, seq);
    if (tables_lacks(&s->tables, seq) > pages_free(s->tables.pages)) {
        sched_drop_pages(s, seq);
        return false;
    }
    tables_retain(&s->tables, seq);
    tables_begin(&s->tables, seq);
    tenants_remove(&s->tenants, seq);
    sched_run_insert(s, seq);
    /* A preempted sequence was charged for its prompt when it was first admitted: not again. */
    tenants_run(&s->tenants, seq, seq->counted ? 0 : seq->n_tokens - seq->n_computed);
    if (s->limits.cost != NULL)
        cost_add(s->limits.cost, &s->decodes, seq->n_tokens - 1, 1, 1);
    if (!seq->counted) {
        s->n_prefix_queries += (uint64_t)seq->n_tokens;
        s->n_prefix_hits += (uint64_t)seq->n_computed;
    }
    /* The client's usage reports the cache hits of the first admission. Pages that another tenant
     * computed are not reported, because that would reveal that the tenant's prompt exists. */
    if (!seq->admitted) {
        sched_note_hits(seq);
    }
    seq->counted = true;
    n = sched_share(s, seq);
    must(n > 0);
    s->long_planned = s->long_planned || sched_is_long(s, seq);
    must(sched_give(s, seq, n));
    s->prompt_planned = true;
    return true;
}

/* A place is a row of the next step, a token of its budget, and time for a chunk. */
static bool sched_has_place(const struct sched *s)
{
    return s->n_running + s->n_planned_rows < s->limits.max_num_seqs &&
           s->n_planned_tokens < s->limits.max_num_batched_tokens && sched_has_time(s);
}

/* May seq be admitted before `blocked`, which found no pages? Only short ones of equal priority. */
static bool sched_may_overtake(const struct sched *s, const struct seq *seq,
                               const struct seq *blocked)
{
    return blocked == NULL ||
           (!sched_is_long(s, seq) && seq->request.priority == blocked->request.priority);
}

/* How long a step with these decodes may take so that the prompts that are known now are computed
 * within SCHED_CLEAR targets: of each step they take the share that they take of all that time. A
 * step of SCHED_CALM of the target is always allowed, one longer than the target never. */
static double sched_calm_us(const struct sched *s, double decodes_us, double target_us)
{
    struct cost_step more = s->load;
    int64_t n = s->n_todo, most = s->limits.max_num_batched_tokens;
    double clear_us = SCHED_CLEAR * target_us, prompts_us;

    if (n <= 0)
        return target_us;
    cost_add(s->limits.cost, &more, 0, (int)(n < most ? n : most), 1);
    prompts_us = cost_us(s->limits.cost, &more) - decodes_us;
    prompts_us *= fmax(1.0, (double)n / (double)most);
    if (prompts_us >= clear_us)
        return target_us;
    return fmax(SCHED_CALM * target_us,
                fmin(target_us, decodes_us * clear_us / (clear_us - prompts_us)));
}

/* The decodes are planned: what they leave of the target is for prompts, at least their share. */
static void sched_limit(struct sched *s, double target_us)
{
    double decodes_us;

    if (target_us <= 0.0)
        return;
    decodes_us = cost_us(s->limits.cost, &s->load);
    s->limit_us =
        fmax(sched_calm_us(s, decodes_us, target_us), decodes_us * (1.0 + SCHED_PROMPT_SHARE));
    s->decode_max_us = fmax(target_us / (1.0 + SCHED_PROMPT_SHARE),
                            SCHED_DECODE_MIN * cost_us(s->limits.cost, &(struct cost_step){0}));
}

/* May seq run, too? Not if the decodes alone would take so long that prompts beside them break the
 * target: then it waits until others have ended. A sequence with more keys than that runs beside
 * half as many others, and one of higher priority than the last that runs does not wait. */
static bool sched_may_run(const struct sched *s, const struct seq *seq)
{
    struct cost_step more = s->decodes;

    if (s->decode_max_us <= 0.0 || s->n_running == 0 ||
        seq->request.priority < s->running[s->n_running - 1]->request.priority ||
        cost_us(s->limits.cost, &more) <= s->decode_max_us / 2.0)
        return true;
    cost_add(s->limits.cost, &more, seq->n_tokens - 1, 1, 1);
    return cost_us(s->limits.cost, &more) <= s->decode_max_us;
}

/* Admit waiting sequences while there is room. True when a long prompt was skipped because another
 * one has a chunk, and every sequence before it found pages: then sched_plan() admits it with the
 * rest of the budget. */
static bool sched_plan_waiting(struct sched *s)
{
    struct seq *blocked = NULL;
    struct seq *seq;
    bool passed = false;
    int n_tries = 0;

    if (s->holds)
        return false;
    tenants_begin(&s->tenants);
    while (sched_has_place(s) && (seq = tenants_next(&s->tenants)) != NULL) {
        if (seq->n_loading > 0 || seq->awaits_adapter || seq->paused ||
            !sched_may_overtake(s, seq, blocked))
            continue;
        if (s->long_planned && sched_is_long(s, seq)) {
            passed = true;
            continue;
        }
        /* Sequences that fail to find pages are counted, because each failure hashes a prompt. */
        if (sched_may_run(s, seq) && sched_admit(s, seq)) {
            if (blocked != NULL)
                blocked->n_overtaken++;
        } else {
            if (blocked == NULL)
                blocked = seq;
            n_tries++;
        }
        if (n_tries == SCHED_TRIES ||
            (blocked != NULL && blocked->n_overtaken >= s->limits.max_num_seqs))
            break;
    }
    return passed && blocked == NULL;
}

/* The running sequence that must give its place to a waiting one of higher priority, or NULL. */
static struct seq *sched_displaced(const struct sched *s)
{
    const struct seq *seq;
    struct seq *last;

    if (s->n_running < s->limits.max_num_seqs || sched_n_waiting(s) == 0 || s->holds)
        return NULL;
    last = s->running[s->n_running - 1];
    seq = tenants_urgent(&s->tenants);
    if (seq->n_loading > 0 || seq->awaits_adapter || seq->paused ||
        seq->request.priority >= last->request.priority)
        return NULL;
    return last;
}

/* While a step of the displaced sequence is in flight, nothing happens: sched_has_room() is false
 * then, so that the loop ends the step before it plans again. */
static void sched_displace(struct sched *s)
{
    struct seq *seq = sched_displaced(s);

    if (seq != NULL && seq->n_ahead == 0 && seq->n_pending == 0)
        sched_preempt(s, seq);
}

/* Prepare the limit of the plan's time, before anything is planned: what is to be computed of
 * prompts, and the step in which all that runs decodes. A sequence whose token is being sampled
 * decodes, although it may lack none. */
static double sched_target_us(struct sched *s)
{
    const struct cost *cost = s->limits.cost;
    int n_decodes = 0;

    s->n_todo = s->tenants.n_waiting_tokens;
    s->is_limited = s->prompt_planned = false;
    s->limit_us = s->decode_max_us = 0.0;
    s->load = s->decodes = (struct cost_step){0};
    if (cost == NULL)
        return 0.0;
    for (int i = 0; i < s->n_running; i++) {
        const struct seq *seq = s->running[i];
        int n = sched_lacks(s, seq);

        if (seq->paused)
            continue;
        n_decodes += seq->n_pending > 0 || n == 1;
        s->n_todo += n > 1 ? n : 0;
        cost_add(cost, &s->decodes, seq->n_tokens + seq->n_pending - 1, 1, 1);
    }
    if (n_decodes == 0)
        return 0.0;
    return cost_target_us(cost, s->limits.itl_target_ms, s->limits.n_stages);
}

/* The plan starts empty; each walk below adds to it and may preempt. A preemption ends admission
 * for this plan, because the pages that it freed are needed by running sequences. */
void sched_plan(struct sched *s)
{
    uint64_t preempted;
    double target_us;
    bool passed;

    for (int i = 0; i < s->n_running; i++)
        s->running[i]->n_planned = 0;
    s->n_planned = 0;
    s->n_planned_tokens = 0;
    s->n_planned_rows = 0;
    s->long_planned = false;
    s->long_is_last = false;
    target_us = sched_target_us(s);
    must(s->tables.n_copies == 0);
    /* States are copied before any page is given away: a snapshot needs free pages too. */
    for (int i = 0; i < s->n_running; i++)
        tables_snapshot(&s->tables, s->running[i]);
    sched_displace(s);
    preempted = s->n_preemptions;
    sched_plan_running(s, SCHED_DECODES);
    sched_limit(s, target_us);
    sched_plan_running(s, SCHED_PROMPTS);
    passed = s->n_preemptions == preempted && sched_plan_waiting(s);
    s->long_is_last = true;
    sched_plan_running(s, SCHED_REST);
    s->long_planned = false;
    if (passed && s->n_preemptions == preempted)
        /* The budget may hold several more shares of long prompts: long_planned is cleared above,
         * but each admitted long one sets it again, so the second walk admits at least one. */
        (void)sched_plan_waiting(s);
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i]->n_planned > 0)
            s->planned[s->n_planned++] = s->running[i];
    }
    must(s->n_planned_tokens <= s->limits.max_num_batched_tokens);
}

/* False makes the loop end the steps in flight first; then sched_plan() can preempt. */
bool sched_has_room(const struct sched *s)
{
    return sched_displaced(s) == NULL &&
           pages_free(s->tables.pages) > tables_margin(&s->tables, s->n_running);
}

/* From here on the tokens belong to the step, until sched_advance(). */
void sched_begin(struct sched *s)
{
    for (int i = 0; i < s->n_planned; i++) {
        struct seq *seq = s->planned[i];

        seq->n_ahead += seq->n_planned;
        if (seq->n_pending > 0)
            seq->step_ahead = s->n_begun;
    }
    s->n_begun++;
}

/* Pages become full only here, after their tokens were computed, so a name never promises more than
 * there is. */
void sched_advance(struct sched *s, struct seq *seq, int n, tables_named_fn *named, void *context)
{
    must(n <= seq->n_ahead);
    seq->n_ahead -= n;
    seq->n_computed += n;
    must(seq->n_computed <= seq->n_tokens);
    tables_advance(&s->tables, seq, named, context);
}

/* The invariants that seq.h states, for every running sequence; called after each plan in tests. */
void sched_check(const struct sched *s)
{
    tenants_check(&s->tenants);
    for (int i = 0; i < s->n_running; i++) {
        const struct seq *seq = s->running[i];

        must(seq->state == SEQ_RUNNING);
        must(seq->n_computed < seq->n_tokens || (seq_is_pooled(seq) && seq->tells_row));
        must(seq->n_computed + seq->n_ahead <= seq->n_tokens + seq->n_pending);
        tables_check(&s->tables, seq);
        must(i == 0 || seq_before(s->running[i - 1], seq));
    }
    pages_check(s->tables.pages);
}
