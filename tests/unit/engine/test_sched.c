/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the scheduler never exceeds a budget, starves no sequence, loses no page, and preemption
 * and prefix sharing do not change what a sequence computes. Method: simulation of many
 * thousand steps with random arrivals over a small pool, invariants checked on the way. Pages have
 * contents there: a digest of all tokens up to each place, which a sequence that computes on must
 * find. */
#include <stdio.h>

#include "base/mem.h"
#include "engine/sched.h"
#include "ipc/prefix.h"
#include "tests/tap.h"
#include "tests/unit/engine/contents.h"

#define BLOCK      4
#define LONGEST    128
#define TOKENS_MAX 120000 /* of a world with long prompts */
#define N_SEQS     40
#define STAGES_MAX 4

/* A step under way. */
struct flight {
    struct seq *seqs[N_SEQS]; /* NULL: gone */
    int counts[N_SEQS];
    bool samples[N_SEQS];
    int n;
};

struct world {
    struct seq_pool pool;
    struct pages *pages;
    struct sched sched;
    uint64_t arrival;
    int n_done;
    int n_named;
    unsigned seed;
    int *waited; /* [N_SEQS] steps since the sequence last got tokens */
    bool ahead;  /* a step begins before the one before has ended */
    int n_stages;
    struct flight flights[STAGES_MAX + 1]; /* in a ring */
    unsigned n_steps, n_ended, n_ahead;
    uint32_t *contents; /* [n_pages][BLOCK] */
    struct cost cost;   /* 100 us a token, 5 a key */
    unsigned n_limited; /* steps that had less because of the target */
};

static void note_named(void *context, int32_t page)
{
    struct world *w = context;

    (void)page;
    w->n_named++;
}

/* The sizes of a world. */
struct sizes {
    int n_pages, budget, max_seqs, longest, n_stages;
    int target_ms; /* of steps; 0: none */
};

static void world_open_stages(struct world *w, const struct contents_kind *kind, struct sizes sizes,
                              unsigned seed)
{
    struct sched_limits limits = {.max_num_seqs = sizes.max_seqs,
                                  .max_num_batched_tokens = sizes.budget,
                                  .long_prefill_tokens = sizes.budget / 2,
                                  .page_tokens = BLOCK,
                                  .prefix_caching = true,
                                  .n_groups = kind->n_groups,
                                  .groups = kind->groups,
                                  .n_stages = sizes.n_stages,
                                  .cost = sizes.target_ms != 0 ? &w->cost : NULL,
                                  .itl_target_ms = sizes.target_ms};
    struct seq_pool_limits of_seqs = {.n_seqs = N_SEQS,
                                      .max_model_len = sizes.longest,
                                      .page_tokens = BLOCK,
                                      .n_vocab = 512,
                                      .n_groups = kind->n_groups};

    const struct cost_shape of_steps = {.token_flops = 1e7,
                                        .key_bytes = 1e5,
                                        .pair_flops = 1e4,
                                        .groups = kind->groups,
                                        .n_groups = kind->n_groups};

    *w = (struct world){
        .seed = seed, .n_stages = sizes.n_stages, .waited = mem_zalloc_array(N_SEQS, sizeof(int))};
    w->contents = mem_zalloc_array((size_t)sizes.n_pages * BLOCK, sizeof *w->contents);
    must_ok(pages_open(&w->pages, sizes.n_pages, BLOCK));
    cost_init(&w->cost, &of_steps);
    must_ok(sched_init(&w->sched, &limits, w->pages));
    of_seqs.n_state_pages = w->sched.tables.n_state_pages;
    must_ok(seq_pool_init(&w->pool, &of_seqs));
}

static void world_open_kind(struct world *w, const struct contents_kind *kind, int n_pages,
                            int budget, int max_seqs, int longest, unsigned seed)
{
    world_open_stages(w, kind, (struct sizes){n_pages, budget, max_seqs, longest, 1, 0}, seed);
}

static void world_open_long(struct world *w, int n_pages, int budget, int max_seqs, int longest,
                            unsigned seed)
{
    world_open_kind(w, &contents_kinds[0], n_pages, budget, max_seqs, longest, seed);
}

static void world_open(struct world *w, int n_pages, int budget, int max_seqs, unsigned seed)
{
    world_open_long(w, n_pages, budget, max_seqs, LONGEST, seed);
}

static void world_close(struct world *w)
{
    mem_free(w->sched.running);
    mem_free(w->sched.planned);
    tables_fini(&w->sched.tables);
    mem_free(w->contents);
    mem_free(w->pool.seqs);
    mem_free(w->waited);
    pages_close(w->pages);
}

/* What a sequence may say of its pages. */
static void world_hint(struct world *w, struct seq *q, uint32_t now_s)
{
    if (q == NULL || random_next(&w->seed) % 3 != 0)
        return;
    q->retain = retain_of((int)(random_next(&w->seed) % 101),
                          random_next(&w->seed) % 2 == 0 ? 0 : now_s + 200);
    q->retain_tokens = (int)(random_next(&w->seed) % (unsigned)(q->n_prompt + 1));
}

/* A prompt of n tokens; a few families share their beginning. */
static struct seq *world_ask(struct world *w, int tenant_idx, int n, int n_new, int priority,
                             int family)
{
    struct seq *q = seq_claim(&w->pool);

    if (q == NULL)
        return NULL;
    for (int i = 0; i < n; i++)
        q->tokens[i] = i < n / 2 ? family * 1000 + i : (int32_t)(random_next(&w->seed) % 997);
    q->n_tokens = n;
    q->n_prompt = n;
    q->tokens_max = n + n_new;
    q->arrival = w->arrival++;
    q->tenant_idx = tenant_idx;
    q->request.priority = priority;
    w->waited[q - w->pool.seqs] = 0;
    sched_add(&w->sched, q);
    return q;
}

static struct seq *world_add(struct world *w, int n, int n_new, int priority, int family)
{
    return world_ask(w, 0, n, n_new, priority, family);
}

static int world_tenant(struct world *w, const char *name)
{
    char full[WIRE_TENANT_BYTES] = "";

    (void)snprintf(full, sizeof full, "%s", name);
    return tenants_find(&w->sched.tenants, full);
}

/* The token that a sequence has at a place, also if it is not sampled yet. */
static int32_t token_at(const struct seq *q, int at)
{
    return at < q->n_tokens ? q->tokens[at] : (int32_t)((q->arrival * 31 + (uint64_t)at * 7) % 997);
}

/* Of one group that keeps all tokens: what was evicted is said to hold what it was named for. */
static bool world_evict(struct world *w)
{
    bool good = true;

    for (int i = 0; i < w->sched.tables.n_evictions && w->sched.limits.n_groups == 1 &&
                    w->sched.tables.n_full_groups == 1;
         i++) {
        const struct page_label *l = &w->sched.tables.evictions[i].label;
        struct hash name = prefix_name(&l->parent, l->tokens, BLOCK);

        good = good && memcmp(&name, &l->name, sizeof name) == 0;
    }
    w->sched.tables.n_evictions = 0;
    return good;
}

/* The step's copies and what it writes, in the device's order. False when a sequence goes on from
 * something else than its own tokens. */
static bool world_compute(struct world *w)
{
    struct sched *s = &w->sched;
    bool good = true;

    contents_copy(w->contents, &s->tables);
    for (int i = 0; i < s->n_planned; i++) {
        const struct seq *q = s->planned[i];
        int begin = q->n_computed + q->n_ahead;

        good =
            contents_compute(w->contents, &s->tables, q, begin, begin + q->n_planned, token_at) &&
            good;
    }
    return good;
}

/* A step ends: what it computed counts, and its samples come; now and then one ends its
 * sequence early. False when an invariant broke. */
static void world_end(struct world *w, struct flight *f)
{
    struct sched *s = &w->sched;

    for (int i = f->n - 1; i >= 0; i--) {
        struct seq *q = f->seqs[i];

        if (q == NULL)
            continue;
        sched_advance(s, q, f->counts[i], note_named, w);
        if (!f->samples[i])
            continue;
        q->n_pending--;
        q->tokens[q->n_tokens] = token_at(q, q->n_tokens);
        q->n_tokens++;
        if (q->n_tokens < q->tokens_max && (!w->ahead || random_next(&w->seed) % 32 != 0))
            continue;
        for (int k = 0; k <= STAGES_MAX; k++) {
            for (int r = 0; r < w->flights[k].n; r++)
                w->flights[k].seqs[r] = w->flights[k].seqs[r] == q ? NULL : w->flights[k].seqs[r];
        }
        sched_remove(s, q);
        seq_release(&w->pool, q);
        w->n_done++;
    }
    f->n = 0;
}

/* End the oldest steps until n are in flight. */
static void world_end_steps(struct world *w, unsigned n)
{
    while (w->n_steps - w->n_ended > n)
        world_end(w, &w->flights[w->n_ended++ % (STAGES_MAX + 1)]);
}

/* True if the step that a planned sequence takes its last token from is n_stages before the one
 * that begins. */
static bool world_takes_token(struct world *w, const struct seq *q)
{
    const struct flight *f = &w->flights[(w->n_steps - (unsigned)w->n_stages) % (STAGES_MAX + 1)];

    for (int i = 0; i < f->n; i++) {
        if (f->seqs[i] == q && f->samples[i])
            return true;
    }
    return false;
}

/* The plan's parts are those of its sequences, also after preemptions; and a step with decodes that
 * is longer than its limit has nothing of prompts but the least. */
static bool world_counts(const struct world *w)
{
    const struct sched *s = &w->sched;
    struct cost_step sum = {0};

    if (s->limits.cost == NULL)
        return true;
    for (int i = 0; i < s->n_planned; i++) {
        const struct seq *q = s->planned[i];
        int done = q->n_computed + q->n_ahead;

        cost_add(&w->cost, &sum, done, q->n_planned,
                 done + q->n_planned == q->n_tokens + q->n_pending);
    }
    return sum.n_tokens == s->load.n_tokens && sum.n_rows == s->load.n_rows &&
           sum.n_chunks == s->load.n_chunks &&
           (sum.decode_keys - s->load.decode_keys) * (sum.decode_keys - s->load.decode_keys) <
               1e-6 &&
           (s->limit_us <= 0.0 || s->load.n_chunks <= 1 ||
            cost_us(&w->cost, &sum) < 1.02 * s->limit_us + 64.0 * 100.0);
}

/* Plan and begin a step, and end one: this one, or with w->ahead the n_stages-th before, where the
 * scheduler has room for that. False when an invariant broke. */
static bool world_step(struct world *w)
{
    struct sched *s = &w->sched;
    struct flight *f = &w->flights[w->n_steps % (STAGES_MAX + 1)];
    int sum = 0;

    while (w->n_steps != w->n_ended && !sched_has_room(s))
        world_end_steps(w, w->n_steps - w->n_ended - 1);
    w->n_ahead += w->n_steps != w->n_ended;
    sched_plan(s);
    w->n_limited += s->is_limited;
    if (!world_counts(w))
        return false;
    if (!world_evict(w) || !world_compute(w))
        return false;
    for (int i = 0; i < s->n_planned; i++) {
        struct seq *q = s->planned[i];
        int end = q->n_computed + q->n_ahead + q->n_planned;

        sum += q->n_planned;
        if (q->n_planned < 1 || end > q->n_tokens + q->n_pending)
            return false;
        if (q->n_pending > 0 && !world_takes_token(w, q))
            return false;
        if (s->n_planned > 1 && q->n_planned > s->limits.long_prefill_tokens)
            return false; /* a long prompt beside others */
        w->waited[q - w->pool.seqs] = -1;
        q->admitted = true;
        f->seqs[i] = q;
        f->counts[i] = q->n_planned;
        f->samples[i] = end == q->n_tokens + q->n_pending;
        q->n_pending += f->samples[i];
    }
    f->n = s->n_planned;
    if (s->n_planned > 0)
        sched_begin(s);
    if (sum != s->n_planned_tokens || sum > s->limits.max_num_batched_tokens ||
        s->n_planned > s->limits.max_num_seqs)
        return false;
    for (int i = 0; i < N_SEQS; i++)
        w->waited[i]++;
    if (s->n_planned == 0 && w->n_steps != w->n_ended)
        world_end_steps(w, w->n_steps - w->n_ended - 1);
    w->n_steps += s->n_planned > 0;
    world_end_steps(w, w->ahead ? (unsigned)w->n_stages : 0);
    return true;
}

static unsigned n_limited; /* steps of all simulations */

static void test_simulation(const struct contents_kind *kind, struct sizes sizes, bool ahead,
                            unsigned seed)
{
    struct world w;
    bool good = true;
    int n_added = 0;
    int longest_wait = 0, n_steps = tap_is_long() ? 20000 : 10000;

    world_open_stages(&w, kind, sizes, seed);
    w.ahead = ahead;
    (void)world_tenant(&w, "a"); /* 1, and the next is 2 */
    (void)world_tenant(&w, "b");
    for (int step = 0; step < n_steps && good; step++) {
        if (random_next(&w.seed) % 4 == 0) {
            int n = 1 + (int)(random_next(&w.seed) % (LONGEST - 30));

            struct seq *q =
                world_ask(&w, (int)(random_next(&w.seed) % 3), n,
                          1 + (int)(random_next(&w.seed) % 28), 0, (int)(random_next(&w.seed) % 5));

            n_added += q != NULL;
            world_hint(&w, q, (uint32_t)step);
        }
        pages_tick(w.pages, (uint32_t)step);
        good = world_step(&w);
        for (int i = 0; i < N_SEQS; i++) {
            if (w.pool.seqs[i].state != SEQ_FREE && w.waited[i] > longest_wait)
                longest_wait = w.waited[i];
        }
        if (kind->n_groups > 1 || step % 50 == 0)
            sched_check(&w.sched);
    }
    for (int step = 0; step < 20000 && good && w.n_done < n_added; step++)
        good = world_step(&w);
    ok(good, "%s, pages %d, budget %d, %d at once%s, %d stages: every plan kept its bounds",
       kind->name, sizes.n_pages, sizes.budget, sizes.max_seqs, ahead ? ", ahead" : "",
       sizes.n_stages);
    ok((w.n_ahead > 0) == ahead, "%u of %u steps began ahead", w.n_ahead, w.n_steps);
    is_int(w.n_done, n_added, "every sequence came to its end");
    is_int(pages_free(w.pages), sizes.n_pages, "and all pages came back");
    ok(w.n_limited == 0 || sizes.target_ms != 0, "a target limited %u steps", w.n_limited);
    n_limited += w.n_limited;
    ok(longest_wait < 3000, "no sequence waited longer than 3000 steps (%d)", longest_wait);
    ok(w.sched.tables.n_parts > 0 || w.sched.tables.n_snapshots > 0,
       "pages were copied for their first tokens, or snapshots taken");
    ok(w.sched.n_prefix_hits > 0, "and prompts found some of theirs");
    printf(
        "# %d sequences, %llu preemptions, %llu of %llu prompt tokens from the cache, %llu pages "
        "copied\n",
        n_added, (unsigned long long)w.sched.n_preemptions,
        (unsigned long long)w.sched.n_prefix_hits, (unsigned long long)w.sched.n_prefix_queries,
        (unsigned long long)w.sched.tables.n_parts);
    world_close(&w);
}

/* While a step is under way, the first new ones take the pages that a long prompt counted on. It
 * cannot be preempted then: it waits until the step has ended. */
static void test_under_way(void)
{
    struct world w;
    struct seq *first, *second;
    bool good = true;

    world_open(&w, 36, 64, 32, 1);
    w.ahead = true;
    first = world_add(&w, 100, 4, 0, 1);
    second = world_add(&w, 100, 4, 0, 2);
    good = world_step(&w);
    ok(good && first->n_ahead == 32 && second->n_ahead == 32, "two long prompts are under way");
    for (int i = 0; i < 30; i++)
        (void)world_add(&w, 1, 4, -1, 3 + i);
    ok(sched_has_room(&w.sched), "there is room to run ahead");
    for (int i = 0; i < 1000 && good && w.n_done < 32; i++) {
        good = world_step(&w);
        sched_check(&w.sched);
    }
    ok(good && w.n_done == 32, "small ones that come first take it, and all are served");
    is_int(pages_free(w.pages), 36, "and all pages came back");
    world_close(&w);
}

static void test_long_prompt(void)
{
    struct world w;
    struct seq *large;
    struct seq *small;

    world_open(&w, 200, 16, 8, 1);
    large = world_add(&w, 100, 4, 0, 1);
    small = world_add(&w, 4, 4, 0, 2);
    (void)world_step(&w);
    ok(large->n_computed == 8 && small->n_computed == 4,
       "a long prompt leaves room for a short one in the same step");
    world_close(&w);
}

static void test_priority(void)
{
    struct world w;
    struct seq *low;
    struct seq *high;

    world_open(&w, 8, 64, 8, 1);
    low = world_add(&w, 18, 20, 5, 1);
    (void)world_step(&w);
    high = world_add(&w, 11, 20, 0, 2);
    for (int i = 0; i < 6; i++)
        (void)world_step(&w);
    ok(high->state == SEQ_RUNNING && low->state == SEQ_WAITING,
       "out of pages the sequence of lower priority waits again");
    ok(low->n_tokens >= 20 && low->n_computed == 0, "its tokens are kept");
    world_close(&w);
}

static void test_prefix(void)
{
    struct world w;
    struct seq *q;
    struct hash chain;

    world_open(&w, 64, 64, 8, 1);
    (void)world_add(&w, 32, 1, 0, 3);
    (void)world_step(&w);
    q = world_add(&w, 32, 4, 0, 3); /* shares 16 tokens */
    is_int(tables_match(&w.sched.tables, q, &chain), 4, "four pages of the shared half are found");
    (void)world_step(&w);
    is_int(q->n_cached, 16, "and counted as cached");
    ok(q->n_found[CACHE_FULL] == 16 && q->n_branch == 0,
       "a model without states found no more, and misses no snapshot");
    for (int i = 0; i < 8; i++)
        (void)world_step(&w);
    q = world_add(&w, 32, 1, 0, 3);
    q->n_tokens = 16;
    is_int(tables_match(&w.sched.tables, q, &chain), 3, "the last token is always computed");
    world_close(&w);
}

/* Of the page at which a sequence leaves the cached ones its first tokens serve too: of a full one,
 * and in the last one of a sequence that has ended. */
static void test_part(void)
{
    struct world w;
    const struct seq *q;
    int32_t said[19];
    struct seq *next;

    world_open(&w, 64, 64, 8, 1);
    (void)world_add(&w, 28, 1, 0, 3);
    (void)world_step(&w);
    q = world_add(&w, 28, 1, 0, 3); /* shares 14 tokens */
    (void)world_step(&w);
    ok(q->n_cached == 14 && w.sched.tables.n_parts == 1,
       "of the fourth page two tokens are cached");
    q = world_add(&w, 10, 9, 0, 4);
    while (w.n_done < 3) {
        memcpy(said, q->tokens, sizeof said);
        (void)world_step(&w);
    }
    next = world_add(&w, 30, 3, 0, 5);
    memcpy(next->tokens, said, sizeof said);
    (void)world_step(&w);
    is_int(next->n_cached, 18, "a conversation goes on: only its last token was never computed");
    sched_check(&w.sched);
    world_close(&w);
}

/* Pages of a prompt's start that the cache has. */
static int held(struct world *w, int n, int family)
{
    struct seq *q = world_add(w, n, 1, 0, family);
    struct hash chain;
    int pages = tables_match(&w->sched.tables, q, &chain);

    sched_remove(&w->sched, q);
    seq_release(&w->pool, q);
    return pages;
}

/* What is said of a prompt holds for its start, whether it is computed or found. */
static void test_retained(void)
{
    struct world w;
    struct seq *q;

    world_open(&w, 40, 64, 8, 1);
    pages_tick(w.pages, 1000);
    q = world_add(&w, 32, 1, 0, 3);
    q->retain = retain_of(80, 2000);
    q->retain_tokens = 13; /* three pages, and a bit */
    for (int i = 0; i < 3; i++)
        (void)world_step(&w);
    is_int(held(&w, 32, 3), 4, "all of a prompt is there");
    for (int i = 0; i < 60; i++) {
        (void)world_add(&w, 64, 1, 0, 10 + i);
        for (int k = 0; k < 4; k++)
            (void)world_step(&w);
    }
    is_int(held(&w, 32, 3), 3, "a flood leaves what is retained");
    is_int(pages_kept(w.pages), 3, "and that is all there is of it");
    q = world_add(&w, 32, 1, 0, 3);
    q->retain = retain_of(90, 0);
    q->retain_tokens = 8;
    for (int i = 0; i < 3; i++)
        (void)world_step(&w);
    pages_tick(w.pages, 2000);
    is_int(pages_kept(w.pages), 2, "more may be said of what is found; the rest is over");
    q = world_add(&w, 64, 1, 0, 4);
    q->retain = retain_of(0, 0);
    q->retain_tokens = INT32_MAX;
    for (int i = 0; i < 6; i++)
        (void)world_step(&w);
    (void)world_add(&w, 60, 1, 0, 5);
    for (int i = 0; i < 6; i++)
        (void)world_step(&w);
    (void)world_add(&w, 60, 1, 0, 6);
    for (int i = 0; i < 6; i++)
        (void)world_step(&w);
    ok(held(&w, 64, 4) < held(&w, 60, 5), "what is to go early goes before what came earlier");
    sched_check(&w.sched);
    world_close(&w);
}

/* A preempted sequence waits again, and its ring may be full: a step would overrun it. */
static void test_paused(void)
{
    struct world w;
    struct seq *slow;
    struct seq *other;

    world_open(&w, 64, 32, 8, 6);
    slow = world_add(&w, 10, 20, 0, 1);
    other = world_add(&w, 10, 20, 0, 2);
    slow->paused = true;
    sched_plan(&w.sched);
    ok(slow->state == SEQ_WAITING && slow->n_planned == 0, "a paused sequence is not admitted");
    is_int(other->n_planned, 10, "and holds up no other");
    slow->paused = false;
    sched_plan(&w.sched);
    ok(slow->state == SEQ_RUNNING && slow->n_planned > 0, "until there is room again");
    sched_remove(&w.sched, slow);
    sched_remove(&w.sched, other);
    world_close(&w);
}

/* Steps until q has its first token; -1: it takes more than limit. */
static int steps_to_first(struct world *w, const struct seq *q, int limit)
{
    int n_prompt = q->n_prompt;
    uint64_t order = q->arrival;

    for (int i = 1; i <= limit; i++) {
        if (!world_step(w))
            return -1;
        if (q->arrival != order || q->state == SEQ_FREE || q->n_tokens > n_prompt)
            return i;
    }
    return -1;
}

/* 100,000 tokens, and short prompts that come while they are computed. */
static void test_longest(int n_long, bool ahead)
{
    struct world w;
    struct seq *large[4];
    int worst = 0, n = 0;

    world_open_long(&w, 110000, 2048, 32, TOKENS_MAX, 3);
    w.ahead = ahead;
    for (int i = 0; i < n_long; i++)
        large[i] = world_add(&w, 100000, 1, 0, 10 + i);
    while (large[0]->n_computed < 90000 && worst < 50) {
        const struct seq *small = world_add(&w, 60, 8, 0, n % 5);
        int steps = steps_to_first(&w, small, 50);

        worst = steps < 0 ? 999 : steps > worst ? steps : worst;
        n++;
    }
    /* Alone it would take one step; ahead, its token is told when the next step has begun. */
    ok(worst <= 1 + ahead + 3,
       "%d prompts of 100,000 tokens%s: the first token of others comes within %d steps (%d tried)",
       n_long, ahead ? ", ahead" : "", worst, n);
    ok(w.n_steps < 110u * (unsigned)n_long, "and they go on (%u steps)", w.n_steps);
    world_close(&w);
}

/* A prompt that finds no pages does not hold up those that do, nor do they keep it out. */
static void test_blocked(void)
{
    struct world w;
    struct seq *large, *small;
    int steps = 0, n_before = 0;

    world_open(&w, 40, 64, 8, 4);
    for (int i = 0; i < 3; i++)
        (void)world_add(&w, 20, 60, 0, i); /* each grows to 20 pages: 15 at present */
    (void)world_step(&w);
    large = world_add(&w, 110, 4, 0, 4); /* 28 pages */
    small = world_add(&w, 8, 3, 0, 5);
    is_int(steps_to_first(&w, small, 10), 1, "one that finds no pages is overtaken by a short one");
    ok(large->state == SEQ_WAITING, "and waits");
    while (large->state == SEQ_WAITING && steps < 2000) {
        if (w.sched.n_running < 6) /* there is always another short one */
            n_before += world_add(&w, 8, 12, 0, 5) != NULL;
        (void)world_step(&w);
        steps++;
    }
    ok(large->state == SEQ_RUNNING, "not for ever: %d steps, %d others came meanwhile", steps,
       n_before);
    sched_check(&w.sched);
    world_close(&w);
}

/* Two tenants, one of which always has many more requests waiting. */
static void test_fair(void)
{
    struct world w;
    int served[3] = {0};
    int greedy, modest;
    bool good = true;
    int waiting[3] = {0};

    world_open(&w, 300, 64, 4, 5);
    greedy = world_tenant(&w, "greedy");
    modest = world_tenant(&w, "modest");
    for (int step = 0; step < 4000 && good; step++) {
        for (int i = greedy; i <= modest; i++) {
            const struct tenant *t = &w.sched.tenants.list[i];

            waiting[i] = t->n_waiting + t->n_running;
            for (int k = waiting[i]; k < (i == greedy ? 30 : 4); k++)
                served[i] += world_ask(&w, i, 16, 8, 0, i) != NULL;
        }
        good = world_step(&w);
    }
    ok(good && served[modest] * 10 >= served[greedy] * 9,
       "a tenant with 4 requests at a time gets as much as one with 30 (%d and %d)", served[modest],
       served[greedy]);
    sched_check(&w.sched);
    world_close(&w);
}

/* The same requests cost what they take: long outputs count. */
static void test_fair_tokens(void)
{
    struct world w;
    uint64_t tokens[3] = {0};
    int idx[2];

    world_open(&w, 400, 64, 4, 8);
    idx[0] = world_tenant(&w, "talks");
    idx[1] = world_tenant(&w, "reads");
    for (int step = 0; step < 6000; step++) {
        for (int i = 0; i < 2; i++) {
            while (w.sched.tenants.list[idx[i]].n_waiting < 8) {
                int n = i == 0 ? 4 : 80, n_new = i == 0 ? 40 : 2;

                if (world_ask(&w, idx[i], n, n_new, 0, 100 + (int)w.arrival) == NULL)
                    break;
                tokens[i] += (uint64_t)(n + 4 * n_new);
            }
        }
        (void)world_step(&w);
    }
    ok(tokens[0] * 10 >= tokens[1] * 8 && tokens[1] * 10 >= tokens[0] * 8,
       "of one that decodes and one with prompts each has its share (%llu and %llu)",
       (unsigned long long)tokens[0], (unsigned long long)tokens[1]);
    world_close(&w);
}

/* Always new tenants, each with one request: one that was served a moment ago has its turn, too. */
static void test_newcomers(void)
{
    struct world w;
    const struct seq *q;
    char name[32];
    int own, n = 0, steps = 0;
    uint64_t arrival;

    world_open(&w, 300, 64, 2, 10);
    own = world_tenant(&w, "own");
    for (int i = 0; i < 20; i++) {
        (void)world_ask(&w, own, 20, 4, 0, 1000 + i);
        (void)world_step(&w);
    }
    while (w.sched.tenants.n_waiting > 1)
        (void)world_step(&w);
    q = world_ask(&w, own, 20, 4, 0, 2000);
    arrival = q->arrival;
    while (q->state == SEQ_WAITING && q->arrival == arrival && steps < 2000) {
        while (w.sched.tenants.n_waiting < 6) {
            (void)snprintf(name, sizeof name, "t%d", n++);
            (void)world_ask(&w, world_tenant(&w, name), 20, 4, 0, 3000 + n);
        }
        (void)world_step(&w);
        steps++;
    }
    ok(steps < 200, "%d new ones went before one that had been served much (%d steps)", n, steps);
    world_close(&w);
}

/* Idleness is not saved up, and more tenants than there are places are all served. */
static void test_tenants(void)
{
    struct world w;
    int a, b, n_done;
    char name[32];
    const struct seq *first, *second;

    world_open(&w, 300, 64, 1, 9);
    a = world_tenant(&w, "a");
    for (int i = 0; i < 30; i++) {
        (void)world_ask(&w, a, 20, 4, 0, 1);
        for (int k = 0; k < 6; k++)
            (void)world_step(&w);
    }
    b = world_tenant(&w, "b");
    (void)world_ask(&w, a, 20, 1, 0, 1); /* runs, while these wait: */
    (void)world_step(&w);
    first = world_ask(&w, b, 20, 4, 0, 2);
    (void)world_ask(&w, b, 20, 4, 0, 2);
    (void)world_ask(&w, b, 20, 4, 0, 2);
    second = world_ask(&w, a, 20, 4, 0, 1);
    ok(steps_to_first(&w, first, 50) > 0 && steps_to_first(&w, second, 12) > 0,
       "one that was away does not go first for ever");
    world_close(&w);

    world_open(&w, 300, 64, 4, 9);
    for (int i = 0; i < 3 * WIRE_TENANTS; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        (void)world_ask(&w, world_tenant(&w, name), 8, 2, 0, i % 5);
        (void)world_step(&w);
    }
    for (int i = 0; i < 100; i++)
        (void)world_step(&w);
    n_done = w.n_done;
    is_int(n_done, 3 * WIRE_TENANTS, "three times as many tenants as places are all served");
    sched_check(&w.sched);
    world_close(&w);
}

static void test_bounds(void)
{
    static const struct tenants_bounds bounds = {.n_reqs = 10, .n_tokens = 200, .n_places = 2};
    static struct tenants t;
    struct seq seqs[12] = {0};
    char name[WIRE_TENANT_BYTES] = "b", third[WIRE_TENANT_BYTES] = "c";
    bool good = true;
    int n_reqs, b;
    int64_t n_tokens;

    tenants_init(&t);
    b = tenants_find(&t, name);
    is_int(tenants_refuse(&t, 5000, &bounds), WIRE_NOT_REFUSED,
           "where nothing waits a prompt of any length may");
    for (int i = 0; i < 12; i++) {
        seqs[i] = (struct seq){.n_tokens = 10, .arrival = (uint64_t)i, .state = SEQ_WAITING};
        good = good && tenants_refuse(&t, 10, &bounds) == WIRE_NOT_REFUSED;
        tenants_add(&t, &seqs[i]);
    }
    ok(good, "ten and two wait");
    is_int(tenants_refuse(&t, 10, &bounds), WIRE_REFUSED_REQUESTS, "and no more");
    tenants_ahead(&t, b, 15, &n_reqs, &n_tokens);
    ok(n_reqs == 1 && n_tokens == 15, "before another's no more is served than it brings");
    tenants_ahead(&t, 0, 15, &n_reqs, &n_tokens);
    ok(n_reqs == 12 && n_tokens == 120, "and before the next of the same all that it has");
    ok(tenants_push_out(&t, 0, 10, WIRE_REFUSED_REQUESTS) == NULL,
       "none goes for the tenant's own");
    for (int i = 11; i > 5; i--) {
        struct seq *q = tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS);

        good = good && q == &seqs[i];
        tenants_remove(&t, &seqs[i]);
        seqs[i].tenant_idx = b;
        tenants_add(&t, &seqs[i]);
    }
    ok(good, "for another's the last six go, one by one");
    ok(tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS) == NULL, "then each has as much");
    for (int i = 6; i < 12; i++)
        tenants_remove(&t, &seqs[i]);
    is_int(tenants_refuse(&t, 141, &bounds), WIRE_REFUSED_TOKENS, "tokens are bounded, too");
    is_int(tenants_refuse(&t, 140, &bounds), WIRE_NOT_REFUSED, "at 200");
    ok(tenants_push_out(&t, b, 50, WIRE_REFUSED_TOKENS) == &seqs[5] &&
           tenants_push_out(&t, b, 51, WIRE_REFUSED_TOKENS) == NULL,
       "and so is what goes for another's");
    seqs[5].admitted = true;
    ok(tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS) == &seqs[4], "what had begun stays");
    seqs[3].is_awaited = seqs[4].is_awaited = true;
    ok(tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS) == &seqs[2],
       "and so do the other choices of an answer that had");
    for (int i = 0; i < 3; i++)
        seqs[i].is_awaited = true;
    ok(tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS) == NULL, "though none is left to go");
    for (int i = 6; i < 10; i++) {
        seqs[i].tenant_idx = tenants_find(&t, third);
        tenants_add(&t, &seqs[i]);
    }
    ok(tenants_push_out(&t, b, 10, WIRE_REFUSED_REQUESTS) == &seqs[9],
       "then one goes of the tenant with most of those that may");
    tenants_check(&t);
}

/* All places are taken, and one of higher priority comes. */
static void test_displaced(bool ahead)
{
    struct world w;
    struct seq *low[2], *high;
    int steps;

    world_open(&w, 200, 64, 2, 1);
    w.ahead = ahead;
    low[0] = world_add(&w, 10, 60, 1, 1);
    low[1] = world_add(&w, 10, 60, 2, 2);
    for (int i = 0; i < 4; i++)
        (void)world_step(&w);
    high = world_add(&w, 10, 2, 0, 3);
    steps = steps_to_first(&w, high, 10);
    ok(steps > 0 && steps <= 3, "one of higher priority takes a place (%d steps)%s", steps,
       ahead ? ", ahead" : "");
    ok(low[1]->state == SEQ_WAITING && low[0]->state == SEQ_RUNNING, "the lowest's");
    for (int i = 0; i < 6; i++)
        (void)world_step(&w);
    ok(low[1]->state == SEQ_RUNNING, "which goes on afterwards");
    sched_check(&w.sched);
    world_close(&w);
}

/* One is preempted in the plan that admits it, for a long prompt that is planned after it: it is
 * counted once. It had begun with a copy of a part, which is not named. */
static void test_admitted_twice(void)
{
    struct world w;
    const struct seq *known;
    int32_t tokens[12];
    struct seq *q;
    uint64_t before;
    bool good = true;

    world_open(&w, 21, 16, 4, 1);
    known = world_add(&w, 12, 1, 0, 7);
    memcpy(tokens, known->tokens, sizeof tokens);
    (void)world_step(&w);
    (void)world_add(&w, 64, 1, 0, 1);
    (void)world_add(&w, 64, 1, 0, 2);
    while (pages_free(w.pages) > 5) /* each takes two a step */
        (void)world_step(&w);
    q = world_add(&w, 7, 1, 0, 3);
    memcpy(q->tokens, tokens, 6 * sizeof *tokens); /* a page and a part */
    before = w.sched.n_prefix_queries;
    (void)world_step(&w);
    ok(w.sched.n_prefix_queries == before + 7 && w.sched.tables.n_parts == 1 && !q->admitted &&
           q->state == SEQ_WAITING,
       "one begins with a copy and is preempted in that plan");
    sched_check(&w.sched);
    for (int i = 0; i < 200 && w.n_done < 4 && good; i++)
        good = world_step(&w);
    ok(good && w.n_done == 4, "everybody ends with his own tokens");
    is_int((int)(w.sched.n_prefix_queries - before), 7, "its prompt is counted once");
    sched_check(&w.sched);
    world_close(&w);
}

/* With stages, decodes are spread over as many steps: each takes at most its share, and together
 * they compute nearly all of the sequences, though some end on the way. */
static void test_stages(int n_stages)
{
    struct world w;
    bool good = true;
    int planned = 0, running = 0;

    world_open_stages(&w, &contents_kinds[0], (struct sizes){1000, 256, 32, LONGEST, n_stages, 0},
                      1);
    w.ahead = true;
    for (int i = 0; i < 16; i++)
        (void)world_add(&w, 4, 100, 0, i);
    for (int step = 0; step < 4 * n_stages; step++)
        good = good && world_step(&w);
    for (int step = 0; step < 8 * n_stages; step++) {
        int n = w.sched.n_running;

        good = good && world_step(&w) && w.sched.n_planned <= (n + n_stages - 1) / n_stages;
        planned += w.sched.n_planned * n_stages;
        running += n;
    }
    ok(good && running > 0 && planned * 10 >= running * 8,
       "%d stages: each step decodes its share of the sequences (%d of %d)", n_stages, planned,
       running);
    for (int step = 0; step < 4000 && good && w.sched.n_running > 0; step++)
        good = world_step(&w);
    is_int(w.sched.n_running, 0, "and all come to their end");
    world_close(&w);
}

int main(void)
{
    unsigned seed = tap_seed(7);

    for (int k = 0; k < CONTENTS_KINDS; k++) {
        const struct contents_kind *kind = &contents_kinds[k];
        int n = kind->n_groups + 1; /* pages for about as many sequences */

        n = k == 0 ? 1 : n;
        /* One sequence of full length: much preemption. */
        test_simulation(kind, (struct sizes){33 * n, 64, 8, LONGEST, 1, 0}, false, seed);
        test_simulation(kind, (struct sizes){100 * n, 16, 4, LONGEST, 1, 0}, false, seed);
        test_simulation(kind, (struct sizes){1000, 256, 32, LONGEST, 1, 0}, false, seed);
        /* Some steps find no room to run ahead. */
        test_simulation(kind, (struct sizes){60 * n, 32, 8, LONGEST, 1, 0}, true, seed);
        test_simulation(kind, (struct sizes){100 * n, 16, 4, LONGEST, 1, 0}, true, seed);
        test_simulation(kind, (struct sizes){1000, 256, 32, LONGEST, 1, 0}, true, seed);
        test_simulation(kind, (struct sizes){100 * n, 256, 16, LONGEST, 1, 2}, true, seed);
        test_simulation(kind, (struct sizes){1000, 256, 32, LONGEST, 1, 2}, false, seed);
        for (int n_stages = 2; n_stages <= STAGES_MAX; n_stages++) {
            test_simulation(kind, (struct sizes){60 * n, 32, 8, LONGEST, n_stages, 0}, true, seed);
            test_simulation(kind, (struct sizes){1000, 512, 32, LONGEST, n_stages, 4}, true, seed);
            test_simulation(kind, (struct sizes){1000, 256, 32, LONGEST, n_stages, 0}, true, seed);
        }
    }
    for (int n_stages = 1; n_stages <= STAGES_MAX; n_stages++)
        test_stages(n_stages);
    test_long_prompt();
    test_under_way();
    test_priority();
    test_prefix();
    test_part();
    test_admitted_twice();
    test_retained();
    test_paused();
    test_longest(1, false);
    test_longest(1, true);
    test_longest(3, false);
    test_longest(3, true);
    test_blocked();
    test_fair();
    test_fair_tokens();
    test_tenants();
    test_newcomers();
    test_bounds();
    test_displaced(false);
    test_displaced(true);
    ok(n_limited > 1000, "in all %u steps were limited by a target", n_limited);
    return tap_done();
}
