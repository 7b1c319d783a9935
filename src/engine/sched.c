/* SPDX-License-Identifier: Apache-2.0
 *
 * See sched.h for the rule. */
#include "engine/sched.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kv/prefix.h"

#define SCHED_TRIES 4 /* sequences without pages that are looked at in a step: each is hashed */

int sched_init(struct sched *s, const struct sched_limits *limits, struct pages *pages)
{
    size_t n = (size_t)limits->max_num_seqs;

    *s = (struct sched){.limits = *limits, .pages = pages, .evictions_cap = pages_count(pages)};
    tenants_init(&s->tenants);
    s->running = mem_zalloc_array(n, sizeof *s->running);
    s->planned = mem_zalloc_array(n, sizeof *s->planned);
    s->evictions = mem_zalloc_array((size_t)s->evictions_cap, sizeof *s->evictions);
    s->copies = mem_zalloc_array(n, sizeof *s->copies);
    return s->running == NULL || s->planned == NULL || s->evictions == NULL || s->copies == NULL
               ? ERR_NO_MEMORY
               : ERR_OK;
}

int sched_n_waiting(const struct sched *s)
{
    return s->tenants.n_waiting;
}

void sched_add(struct sched *s, struct seq *q)
{
    tenants_add(&s->tenants, q);
    q->state = SEQ_WAITING;
    q->chain = q->root;
}

static void sched_run_insert(struct sched *s, struct seq *q)
{
    int i = s->n_running++;

    must(s->n_running <= s->limits.max_num_seqs);
    while (i > 0 && seq_before(q, s->running[i - 1])) {
        s->running[i] = s->running[i - 1];
        i--;
    }
    s->running[i] = q;
    q->state = SEQ_RUNNING;
}

static void sched_run_remove(struct sched *s, const struct seq *q)
{
    int i = 0;

    while (s->running[i] != q) {
        i++;
        must(i < s->n_running);
    }
    tenants_stop(&s->tenants, q);
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, sizeof *s->running * (size_t)(s->n_running - i));
}

/* What is computed of the page behind the named ones may be of use to whoever goes on from there.
 * Steps under way may write behind those tokens still: that harms nobody. A page that the plan is
 * to copy to gets no name: the one that it is copied from has all of its tokens. */
static void sched_keep_part(struct sched *s, const struct seq *q)
{
    int block = s->limits.block_tokens;
    int n = q->n_computed - q->n_named * block;

    if (s->limits.prefix_caching && n > 0 &&
        pages_name_part(s->pages, q->pages[q->n_named], &q->chain,
                        q->tokens + (size_t)q->n_named * (size_t)block, n)) {
        pages_own(s->pages, q->pages[q->n_named], prefix_space(&q->root), (struct retain){0});
        pages_set_maker(s->pages, q->pages[q->n_named], q->maker);
    }
}

/* Give all pages back, the last first, so that the end of a prefix is evicted before its
 * start: a start without its end is still of use. */
static void sched_drop_pages(struct sched *s, struct seq *q)
{
    sched_keep_part(s, q);
    while (q->n_pages > 0)
        pages_unref(s->pages, q->pages[--q->n_pages]);
    q->n_named = 0;
    q->n_computed = 0;
    q->n_ahead = 0;
    q->n_pending = 0;
    q->chain = q->root;
}

void sched_remove(struct sched *s, struct seq *q)
{
    if (q->state == SEQ_WAITING)
        tenants_remove(&s->tenants, q);
    else
        sched_run_remove(s, q);
    sched_drop_pages(s, q);
    q->n_planned = 0;
    q->state = SEQ_FREE;
}

int32_t sched_take_page(struct sched *s)
{
    struct sched_eviction e;
    bool evicted;

    e.page = pages_take(s->pages, &evicted, &e.label);
    /* The log is emptied every step; a page evicted twice within one is not worth saving. */
    if (evicted && s->n_evictions < s->evictions_cap)
        s->evictions[s->n_evictions++] = e;
    return e.page;
}

/* Make room for n_tokens in q's pages; false when the pool is empty. What was taken stays. */
static bool sched_grow(struct sched *s, struct seq *q, int n_tokens)
{
    int need = (n_tokens + s->limits.block_tokens - 1) / s->limits.block_tokens;

    while (q->n_pages < need) {
        int32_t page = sched_take_page(s);

        if (page == -1)
            return false;
        q->pages[q->n_pages++] = page;
    }
    return true;
}

static void sched_preempt(struct sched *s, struct seq *q)
{
    must(q->n_ahead == 0 && q->n_pending == 0);
    sched_run_remove(s, q);
    sched_drop_pages(s, q);
    s->n_planned_tokens -= q->n_planned;
    if (q->n_planned > 0)
        s->n_planned_rows -= seq_tells_prompt(q) ? q->n_planned - 1 : 0;
    q->n_planned = 0;
    q->searched = false; /* a lower tier may have what it loses */
    q->n_asked = 0;
    s->n_preemptions++;
    sched_add(s, q);
}

/* Plan n tokens of a running sequence; preempts others until its pages are there. False when it
 * had to be preempted itself, or has to wait: whoever would have to go has a step under way, and
 * its pages are being written. */
static bool sched_give(struct sched *s, struct seq *q, int n)
{
    while (!sched_grow(s, q, q->n_computed + q->n_ahead + n)) {
        struct seq *victim = s->running[s->n_running - 1];

        if (victim->n_ahead > 0 || victim->n_pending > 0)
            return false;
        sched_preempt(s, victim);
        if (victim == q)
            return false;
    }
    q->n_planned = n;
    s->n_planned_tokens += n;
    s->n_planned_rows += seq_tells_prompt(q) ? n - 1 : 0;
    return true;
}

/* Tokens that q lacks, the one on its way included, unless that is its last. */
static int sched_lacks(const struct seq *q)
{
    if (q->n_pending > 0 && q->n_tokens + q->n_pending >= q->tokens_max)
        return 0;
    return q->n_tokens + q->n_pending - q->n_computed - q->n_ahead;
}

/* How many tokens q may compute now, of the budget that is left. */
static int sched_share(const struct sched *s, const struct seq *q)
{
    int n = sched_lacks(q);
    int left = s->limits.max_num_batched_tokens - s->n_planned_tokens;
    bool alone = s->n_running + sched_n_waiting(s) <= 1;

    if (!alone && n > s->limits.long_prefill_tokens)
        n = s->limits.long_prefill_tokens;
    if (seq_tells_prompt(q)) { /* a row each; every sequence has one anyway, and some may come */
        int rows = 1 + (s->limits.max_num_seqs - s->n_running - s->n_planned_rows) / 2;

        n = n < rows ? n : rows;
        n = n < q->chunk_max ? n : q->chunk_max;
    }
    return n < left ? n : left;
}

static bool sched_is_long(const struct sched *s, const struct seq *q)
{
    return sched_lacks(q) > s->limits.long_prefill_tokens;
}

/* Who is planned in a pass over the running sequences. */
enum sched_pass {
    SCHED_DECODES,
    SCHED_PROMPTS, /* and of the long ones the first */
    SCHED_REST,
};

static bool sched_is_due(const struct sched *s, const struct seq *q, enum sched_pass pass)
{
    if (q->paused || q->is_late || q->n_planned != 0 || sched_lacks(q) == 0)
        return false;
    if (pass == SCHED_PROMPTS && s->long_planned && sched_is_long(s, q))
        return false;
    return (sched_lacks(q) == 1) == (pass == SCHED_DECODES);
}

/* Preemption removes from the end, so that the index stays right for everybody who comes before the
 * victim. */
static void sched_plan_running(struct sched *s, enum sched_pass pass)
{
    for (int i = 0; i < s->n_running; i++) {
        struct seq *q = s->running[i];
        int n;

        if (!sched_is_due(s, q, pass))
            continue;
        n = sched_share(s, q);
        if (n <= 0)
            return;
        s->long_planned = s->long_planned || sched_is_long(s, q);
        if (!sched_give(s, q, n))
            return;
        if (pass == SCHED_DECODES)
            tenants_charge_token(&s->tenants, q);
    }
}

int sched_reusable(const struct seq *q)
{
    return seq_tells_prompt(q) ? q->n_told : q->n_tokens - 1;
}

int sched_match(const struct sched *s, const struct seq *q, struct hash *chain)
{
    int block = s->limits.block_tokens;
    int n = 0;

    *chain = q->root;
    if (!s->limits.prefix_caching)
        return 0;
    while ((n + 1) * block <= sched_reusable(q)) {
        struct hash name = prefix_name(chain, q->tokens + (size_t)n * (size_t)block, block);

        if (!pages_has(s->pages, &name))
            break;
        *chain = name;
        n++;
    }
    return n;
}

/* Reference the cached pages of q's prefix, full ones. */
static void sched_take_prefix(struct sched *s, struct seq *q)
{
    int block = s->limits.block_tokens;
    struct hash chain;
    int n = sched_match(s, q, &chain);

    q->chain = q->root;
    for (int i = 0; i < n; i++) {
        q->chain = prefix_name(&q->chain, q->tokens + (size_t)i * (size_t)block, block);
        q->pages[i] = pages_find(s->pages, &q->chain);
        must(q->pages[i] != -1);
    }
    q->n_pages = n;
    q->n_named = n;
    q->n_computed = n * block;
}

/* The pages that q's known tokens need beside those it has. */
static int sched_needs(const struct sched *s, const struct seq *q)
{
    int block = s->limits.block_tokens;

    return (q->n_tokens + block - 1) / block - q->n_pages;
}

/* The page where q leaves the cached ones begins with some of its tokens: those are computed in a
 * copy of it. q is admitted, and there are pages for all of it. */
static void sched_copy_part(struct sched *s, struct seq *q)
{
    int block = s->limits.block_tokens;
    int n = sched_reusable(q) - q->n_computed;
    int n_same = 0;
    int32_t from;
    int32_t to;

    if (!s->limits.prefix_caching || n <= 0 || s->n_copies == s->limits.max_num_seqs)
        return;
    from = pages_find_part(s->pages, &q->chain, q->tokens + q->n_computed, n < block ? n : block,
                           q->maker, &n_same);
    if (from == -1)
        return;
    /* It was one of the pages that q's need was counted with, and it may be one too few now. */
    to = pages_free(s->pages) < sched_needs(s, q) ? -1 : sched_take_page(s);
    if (to == -1) {
        pages_unref(s->pages, from);
        return;
    }
    s->copies[s->n_copies++] = (struct sched_copy){.from = from, .to = to};
    s->n_copied++;
    q->pages[q->n_pages++] = to;
    q->n_computed += n_same;
}

void sched_copied(struct sched *s)
{
    for (int i = 0; i < s->n_copies; i++)
        pages_unref(s->pages, s->copies[i].from);
    s->n_copies = 0;
}

/* What q says of the cached pages that it uses; without a word they are any others. */
static void sched_retain(struct sched *s, const struct seq *q)
{
    for (int i = 0; i < q->n_pages; i++)
        pages_retain(s->pages, q->pages[i], seq_retain(q, (i + 1) * s->limits.block_tokens));
}

/* Tokens of q's prompt that were found, as far as its tenant may know: what others computed would
 * tell what they asked. What is behind the full pages was copied from a page of its own. */
static int sched_told(const struct sched *s, const struct seq *q)
{
    int n = q->n_cached;

    for (int i = 0; i < q->n_named; i++)
        n -= pages_is_theirs(s->pages, q->pages[i], q->maker) ? 0 : s->limits.block_tokens;
    return n > 0 ? n : 0;
}

/* Move one waiting sequence to the running ones. False when its prompt finds no pages. */
static bool sched_admit(struct sched *s, struct seq *q)
{
    int n;

    sched_take_prefix(s, q);
    if (sched_needs(s, q) > pages_free(s->pages)) {
        sched_drop_pages(s, q);
        return false;
    }
    sched_retain(s, q);
    sched_copy_part(s, q);
    tenants_remove(&s->tenants, q);
    sched_run_insert(s, q);
    /* Who was preempted has paid, if only in the plan that admitted it. */
    tenants_run(&s->tenants, q, q->counted ? 0 : q->n_tokens - q->n_computed);
    if (!q->counted) {
        s->n_prefix_queries += (uint64_t)q->n_tokens;
        s->n_prefix_hits += (uint64_t)q->n_computed;
    }
    if (!q->admitted) {
        q->n_cached = q->n_computed < q->n_prompt ? q->n_computed : q->n_prompt;
        q->n_cached_told = sched_told(s, q);
    }
    q->counted = true;
    n = sched_share(s, q);
    must(n > 0);
    s->long_planned = s->long_planned || sched_is_long(s, q);
    must(sched_give(s, q, n));
    return true;
}

static bool sched_has_place(const struct sched *s)
{
    return s->n_running + s->n_planned_rows < s->limits.max_num_seqs &&
           s->n_planned_tokens < s->limits.max_num_batched_tokens;
}

/* May q be admitted before blocked, which found no pages? */
static bool sched_may_overtake(const struct sched *s, const struct seq *q,
                               const struct seq *blocked)
{
    return blocked == NULL ||
           (!sched_is_long(s, q) && q->request.priority == blocked->request.priority);
}

/* Admit while there is room. True when a long prompt was passed over because another has its chunk,
 * and everybody before it has found pages. */
static bool sched_plan_waiting(struct sched *s)
{
    struct seq *blocked = NULL;
    struct seq *q;
    bool passed = false;
    int n_tries = 0;

    tenants_begin(&s->tenants);
    while (sched_has_place(s) && (q = tenants_next(&s->tenants)) != NULL) {
        if (q->n_loading > 0 || q->paused || !sched_may_overtake(s, q, blocked))
            continue;
        if (s->long_planned && sched_is_long(s, q)) {
            passed = true;
            continue;
        }
        if (sched_admit(s, q)) {
            if (blocked != NULL)
                blocked->n_overtaken++;
        } else {
            blocked = blocked == NULL ? q : blocked;
            n_tries++;
        }
        if (n_tries == SCHED_TRIES ||
            (blocked != NULL && blocked->n_overtaken >= s->limits.max_num_seqs))
            break;
    }
    return passed && blocked == NULL;
}

/* The running sequence that has to give its place to one of higher priority, or NULL. */
static struct seq *sched_displaced(const struct sched *s)
{
    struct seq *last = s->n_running == 0 ? NULL : s->running[s->n_running - 1];
    const struct seq *q;

    if (s->n_running < s->limits.max_num_seqs || sched_n_waiting(s) == 0)
        return NULL;
    q = tenants_urgent(&s->tenants);
    return q->n_loading == 0 && !q->paused && q->request.priority < last->request.priority ? last
                                                                                           : NULL;
}

/* Steps under way are ended first where sched_has_room() was asked; else it waits for them. */
static void sched_displace(struct sched *s)
{
    struct seq *q = sched_displaced(s);

    if (q != NULL && q->n_ahead == 0 && q->n_pending == 0)
        sched_preempt(s, q);
}

void sched_plan(struct sched *s)
{
    uint64_t preempted;
    bool passed;

    for (int i = 0; i < s->n_running; i++)
        s->running[i]->n_planned = 0;
    s->n_planned = 0;
    s->n_planned_tokens = 0;
    s->n_planned_rows = 0;
    s->long_planned = false;
    must(s->n_copies == 0);
    sched_displace(s);
    preempted = s->n_preemptions;
    sched_plan_running(s, SCHED_DECODES);
    sched_plan_running(s, SCHED_PROMPTS);
    passed = s->n_preemptions == preempted && sched_plan_waiting(s);
    sched_plan_running(s, SCHED_REST);
    s->long_planned = false;
    if (passed && s->n_preemptions == preempted)
        (void)sched_plan_waiting(s); /* once more is enough: the budget has two shares */
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i]->n_planned > 0)
            s->planned[s->n_planned++] = s->running[i];
    }
    must(s->n_planned_tokens <= s->limits.max_num_batched_tokens);
}

/* Everybody's next token may need a page, and so may every block of the budget. */
bool sched_has_room(const struct sched *s)
{
    return sched_displaced(s) == NULL &&
           pages_free(s->pages) >
               s->n_running + s->limits.max_num_batched_tokens / s->limits.block_tokens + 1;
}

void sched_begin(struct sched *s)
{
    for (int i = 0; i < s->n_planned; i++)
        s->planned[i]->n_ahead += s->planned[i]->n_planned;
}

void sched_advance(struct sched *s, struct seq *q, int n, sched_named_fn *named, void *context)
{
    int block = s->limits.block_tokens;

    must(n <= q->n_ahead);
    q->n_ahead -= n;
    q->n_computed += n;
    must(q->n_computed <= q->n_tokens);
    while (s->limits.prefix_caching && (q->n_named + 1) * block <= q->n_computed) {
        const int32_t *tokens = q->tokens + (size_t)q->n_named * (size_t)block;
        struct hash name = prefix_name(&q->chain, tokens, block);
        struct retain r = seq_retain(q, (q->n_named + 1) * block);
        int32_t page = q->pages[q->n_named];

        if (pages_name(s->pages, page, &name, &q->chain, tokens)) {
            pages_own(s->pages, page, prefix_space(&q->root), r);
            pages_set_maker(s->pages, page, q->maker);
            named(context, page);
        } else {
            pages_retain(s->pages, pages_look(s->pages, &name), r);
        }
        q->chain = name;
        q->n_named++;
    }
}

void sched_check(const struct sched *s)
{
    tenants_check(&s->tenants);
    for (int i = 0; i < s->n_running; i++) {
        const struct seq *q = s->running[i];

        must(q->state == SEQ_RUNNING);
        must(q->n_computed < q->n_tokens);
        must(q->n_computed + q->n_ahead <= q->n_tokens + q->n_pending);
        must(q->n_pages * s->limits.block_tokens >= q->n_computed + q->n_ahead);
        must(i == 0 || seq_before(s->running[i - 1], q));
    }
    pages_check(s->pages);
}
