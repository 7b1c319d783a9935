/* SPDX-License-Identifier: Apache-2.0
 *
 * See sched.h for the rule. Order everywhere: lower priority number first, then arrival. */
#include "engine/sched.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kv/prefix.h"

int sched_init(struct sched *s, const struct sched_limits *limits, struct pages *pages)
{
    size_t n = (size_t)limits->max_num_seqs;

    *s = (struct sched){.limits = *limits, .pages = pages, .evictions_cap = pages_count(pages)};
    s->running = mem_zalloc_array(n, sizeof *s->running);
    s->planned = mem_zalloc_array(n, sizeof *s->planned);
    s->evictions = mem_zalloc_array((size_t)s->evictions_cap, sizeof *s->evictions);
    return s->running == NULL || s->planned == NULL || s->evictions == NULL ? ERR_NO_MEMORY
                                                                            : ERR_OK;
}

static bool sched_before(const struct seq *a, const struct seq *b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority < b->request.priority;
    return a->order < b->order;
}

void sched_add(struct sched *s, struct seq *q)
{
    struct seq **at = &s->waiting;

    while (*at != NULL && sched_before(*at, q))
        at = &(*at)->next;
    q->next = *at;
    *at = q;
    q->state = SEQ_WAITING;
    q->chain = q->root;
    s->n_waiting++;
}

static void sched_wait_remove(struct sched *s, const struct seq *q)
{
    struct seq **at = &s->waiting;

    while (*at != q) {
        must(*at != NULL);
        at = &(*at)->next;
    }
    *at = q->next;
    s->n_waiting--;
}

static void sched_run_insert(struct sched *s, struct seq *q)
{
    int i = s->n_running++;

    must(s->n_running <= s->limits.max_num_seqs);
    while (i > 0 && sched_before(q, s->running[i - 1])) {
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
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, sizeof *s->running * (size_t)(s->n_running - i));
}

/* Give all pages back, the last first, so that the end of a prefix is evicted before its
 * start: a start without its end is still of use. */
static void sched_drop_pages(struct sched *s, struct seq *q)
{
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
        sched_wait_remove(s, q);
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
    s->n_preemptions++;
    sched_add(s, q);
}

/* Plan n tokens of a running sequence; preempts others until its pages are there. False when
 * it had to be preempted itself. */
static bool sched_give(struct sched *s, struct seq *q, int n)
{
    while (!sched_grow(s, q, q->n_computed + q->n_ahead + n)) {
        struct seq *victim = s->running[s->n_running - 1];

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
    bool alone = s->n_running + s->n_waiting <= 1;

    if (!alone && n > s->limits.long_prefill_tokens)
        n = s->limits.long_prefill_tokens;
    if (seq_tells_prompt(q)) { /* a row each; every sequence has one anyway, and some may come */
        int rows = 1 + (s->limits.max_num_seqs - s->n_running - s->n_planned_rows) / 2;

        n = n < rows ? n : rows;
        n = n < q->chunk_max ? n : q->chunk_max;
    }
    return n < left ? n : left;
}

/* One pass over the running sequences; decodes or chunks. Preemption removes from the end, so
 * that the index stays right for everybody who comes before the victim. */
static void sched_plan_running(struct sched *s, bool decodes)
{
    for (int i = 0; i < s->n_running; i++) {
        struct seq *q = s->running[i];
        int n;

        if (q->paused || q->n_planned != 0 || sched_lacks(q) == 0 ||
            (sched_lacks(q) == 1) != decodes)
            continue;
        n = sched_share(s, q);
        if (n <= 0)
            return;
        if (!sched_give(s, q, n))
            return;
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

/* Reference the cached pages of q's prefix. */
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

/* Move one waiting sequence to the running ones. False when its prompt finds no pages. */
static bool sched_admit(struct sched *s, struct seq *q)
{
    int block = s->limits.block_tokens;
    int need;
    int n;

    sched_take_prefix(s, q);
    need = (q->n_tokens + block - 1) / block - q->n_pages;
    if (need > pages_free(s->pages)) {
        sched_drop_pages(s, q);
        return false;
    }
    sched_wait_remove(s, q);
    sched_run_insert(s, q);
    if (!q->admitted) {
        s->n_prefix_queries += (uint64_t)q->n_tokens;
        s->n_prefix_hits += (uint64_t)q->n_computed;
        q->n_cached = q->n_computed < q->n_prompt ? q->n_computed : q->n_prompt;
    }
    n = sched_share(s, q);
    must(n > 0);
    must(sched_give(s, q, n));
    return true;
}

static void sched_plan_waiting(struct sched *s)
{
    struct seq *q = s->waiting;

    while (q != NULL && s->n_running + s->n_planned_rows < s->limits.max_num_seqs &&
           s->n_planned_tokens < s->limits.max_num_batched_tokens) {
        struct seq *next = q->next;

        if (q->n_loading == 0 && !q->paused && !sched_admit(s, q))
            return; /* nobody overtakes: a large prompt would never find its pages */
        q = next;
    }
}

void sched_plan(struct sched *s)
{
    uint64_t preempted = s->n_preemptions;

    for (int i = 0; i < s->n_running; i++)
        s->running[i]->n_planned = 0;
    s->n_planned = 0;
    s->n_planned_tokens = 0;
    s->n_planned_rows = 0;
    sched_plan_running(s, true);
    sched_plan_running(s, false);
    if (s->n_preemptions == preempted)
        sched_plan_waiting(s);
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i]->n_planned > 0)
            s->planned[s->n_planned++] = s->running[i];
    }
    must(s->n_planned_tokens <= s->limits.max_num_batched_tokens);
}

/* Everybody's next token may need a page, and so may every block of the budget. */
bool sched_has_room(const struct sched *s)
{
    return pages_free(s->pages) >
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

        if (pages_name(s->pages, q->pages[q->n_named], &name, &q->chain, tokens))
            named(context, q->pages[q->n_named]);
        q->chain = name;
        q->n_named++;
    }
}

void sched_check(const struct sched *s)
{
    const struct seq *prev = NULL;
    int n = 0;

    for (const struct seq *q = s->waiting; q != NULL; q = q->next) {
        must(q->state == SEQ_WAITING);
        must(q->n_pages == 0);
        must(prev == NULL || sched_before(prev, q));
        prev = q;
        n++;
    }
    must(n == s->n_waiting);
    for (int i = 0; i < s->n_running; i++) {
        const struct seq *q = s->running[i];

        must(q->state == SEQ_RUNNING);
        must(q->n_computed < q->n_tokens);
        must(q->n_computed + q->n_ahead <= q->n_tokens + q->n_pending);
        must(q->n_pages * s->limits.block_tokens >= q->n_computed + q->n_ahead);
        must(i == 0 || sched_before(s->running[i - 1], q));
    }
    pages_check(s->pages);
}
