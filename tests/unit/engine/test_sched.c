/* Goal: the scheduler never exceeds a budget, starves nobody, loses no page, and preemption
 * and prefix sharing do not change what a sequence computes. Method: simulation of many
 * thousand steps with random arrivals over a small pool, invariants checked on the way. */
#include "base/mem.h"
#include "engine/sched.h"
#include "kv/prefix.h"
#include "tests/tap.h"

#define BLOCK   4
#define LONGEST 128
#define N_SEQS  40

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
    uint64_t order;
    int n_done;
    int n_named;
    unsigned seed;
    int *waited; /* [N_SEQS] steps since the sequence last got tokens */
    bool ahead;  /* a step begins before the one before has ended */
    struct flight flights[2];
    unsigned n_steps, n_ahead;
};

static void note_named(void *context, int32_t page)
{
    struct world *w = context;

    (void)page;
    w->n_named++;
}

static void world_open(struct world *w, int n_pages, int budget, int max_seqs, unsigned seed)
{
    struct sched_limits limits = {.max_num_seqs = max_seqs,
                                  .max_num_batched_tokens = budget,
                                  .long_prefill_tokens = budget / 2,
                                  .block_tokens = BLOCK,
                                  .prefix_caching = true};

    *w = (struct world){.seed = seed, .waited = mem_zalloc_array(N_SEQS, sizeof(int))};
    must_ok(pages_open(&w->pages, n_pages, BLOCK));
    must_ok(sched_init(&w->sched, &limits, w->pages));
    must_ok(seq_pool_init(&w->pool, N_SEQS, LONGEST, BLOCK, 512));
}

static void world_close(struct world *w)
{
    mem_free(w->sched.running);
    mem_free(w->sched.planned);
    mem_free(w->sched.evictions);
    mem_free(w->pool.seqs);
    mem_free(w->waited);
    pages_close(w->pages);
}

/* A prompt of n tokens; a few families share their beginning. */
static struct seq *world_add(struct world *w, int n, int n_new, int priority, int family)
{
    struct seq *q = seq_claim(&w->pool);

    if (q == NULL)
        return NULL;
    for (int i = 0; i < n; i++)
        q->tokens[i] = i < n / 2 ? family * 1000 + i : (int32_t)(random_next(&w->seed) % 997);
    q->n_tokens = n;
    q->n_prompt = n;
    q->tokens_max = n + n_new;
    q->order = w->order++;
    q->request.priority = priority;
    w->waited[q - w->pool.seqs] = 0;
    sched_add(&w->sched, q);
    return q;
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
        q->tokens[q->n_tokens++] = (int32_t)(random_next(&w->seed) % 997);
        if (q->n_tokens < q->tokens_max && (!w->ahead || random_next(&w->seed) % 32 != 0))
            continue;
        for (int k = 0; k < 2; k++) {
            for (int r = 0; r < w->flights[k].n; r++)
                w->flights[k].seqs[r] = w->flights[k].seqs[r] == q ? NULL : w->flights[k].seqs[r];
        }
        sched_remove(s, q);
        seq_release(&w->pool, q);
        w->n_done++;
    }
    f->n = 0;
}

/* Plan and begin a step, and end one: this one, or with w->ahead the one before, where the
 * scheduler has room for that. False when an invariant broke. */
static bool world_step(struct world *w)
{
    struct sched *s = &w->sched;
    struct flight *f = &w->flights[w->n_steps & 1], *before = &w->flights[~w->n_steps & 1];
    int sum = 0;

    if (before->n > 0 && !sched_has_room(s))
        world_end(w, before);
    w->n_ahead += before->n > 0;
    sched_plan(s);
    s->n_evictions = 0;
    for (int i = 0; i < s->n_planned; i++) {
        struct seq *q = s->planned[i];
        int end = q->n_computed + q->n_ahead + q->n_planned;

        sum += q->n_planned;
        if (q->n_planned < 1 || end > q->n_pages * BLOCK || end > q->n_tokens + q->n_pending)
            return false;
        w->waited[q - w->pool.seqs] = -1;
        f->seqs[i] = q;
        f->counts[i] = q->n_planned;
        f->samples[i] = end == q->n_tokens + q->n_pending;
        q->n_pending += f->samples[i];
    }
    f->n = s->n_planned;
    sched_begin(s);
    if (sum != s->n_planned_tokens || sum > s->limits.max_num_batched_tokens ||
        s->n_planned > s->limits.max_num_seqs)
        return false;
    for (int i = 0; i < N_SEQS; i++)
        w->waited[i]++;
    world_end(w, w->ahead ? before : f);
    w->n_steps++;
    return true;
}

static void test_simulation(int n_pages, int budget, int max_seqs, bool ahead, unsigned seed)
{
    struct world w;
    bool good = true;
    int n_added = 0;
    int longest_wait = 0;

    world_open(&w, n_pages, budget, max_seqs, seed);
    w.ahead = ahead;
    for (int step = 0; step < 20000 && good; step++) {
        if (random_next(&w.seed) % 4 == 0) {
            int n = 1 + (int)(random_next(&w.seed) % (LONGEST - 30));

            n_added += world_add(&w, n, 1 + (int)(random_next(&w.seed) % 28), 0,
                                 (int)(random_next(&w.seed) % 5)) != NULL;
        }
        good = world_step(&w);
        for (int i = 0; i < N_SEQS; i++) {
            if (w.pool.seqs[i].state != SEQ_FREE && w.waited[i] > longest_wait)
                longest_wait = w.waited[i];
        }
        if (step % 50 == 0)
            sched_check(&w.sched);
    }
    for (int step = 0; step < 20000 && good && w.n_done < n_added; step++)
        good = world_step(&w);
    ok(good, "pages %d, budget %d, %d at once%s: every plan kept its bounds", n_pages, budget,
       max_seqs, ahead ? ", ahead" : "");
    ok((w.n_ahead > 0) == ahead, "%u of %u steps began ahead", w.n_ahead, w.n_steps);
    is_int(w.n_done, n_added, "every sequence came to its end");
    is_int(pages_free(w.pages), n_pages, "and all pages came back");
    ok(longest_wait < 3000, "nobody waited longer than 3000 steps (%d)", longest_wait);
    printf("# %d sequences, %llu preemptions, %llu of %llu prompt tokens from the cache\n", n_added,
           (unsigned long long)w.sched.n_preemptions, (unsigned long long)w.sched.n_prefix_hits,
           (unsigned long long)w.sched.n_prefix_queries);
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
    is_int(sched_match(&w.sched, q, &chain), 4, "four pages of the shared half are found");
    (void)world_step(&w);
    is_int(q->n_cached, 16, "and counted as cached");
    for (int i = 0; i < 8; i++)
        (void)world_step(&w);
    q = world_add(&w, 32, 1, 0, 3);
    q->n_tokens = 16;
    is_int(sched_match(&w.sched, q, &chain), 3, "the last token is always computed");
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
    is_int(other->n_planned, 10, "and holds up nobody");
    slow->paused = false;
    sched_plan(&w.sched);
    ok(slow->state == SEQ_RUNNING && slow->n_planned > 0, "until there is room again");
    sched_remove(&w.sched, slow);
    sched_remove(&w.sched, other);
    world_close(&w);
}

int main(void)
{
    unsigned seed = tap_seed(7);

    test_simulation(33, 64, 8, false, seed); /* one sequence of full length: much preemption */
    test_simulation(100, 16, 4, false, seed);
    test_simulation(1000, 256, 32, false, seed);
    test_simulation(60, 32, 8, true, seed); /* some steps find no room to run ahead */
    test_simulation(100, 16, 4, true, seed);
    test_simulation(1000, 256, 32, true, seed);
    test_long_prompt();
    test_priority();
    test_prefix();
    test_paused();
    return tap_done();
}
