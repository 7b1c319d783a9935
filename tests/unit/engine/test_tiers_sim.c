/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: scheduler and tiers together lose no page that they could keep, and no sequence computes on
 * from a wrong one. Method: agents (conversations of many turns behind a few long prefixes, with
 * time to think) served for STEPS steps (300,000) by the real sched.c, pages.c, tiers.c and
 * host.c. The device is simulated: its pages hold digests of all tokens up to each place, its
 * copies take a step or two. All invariants are proved after every step, and so is what a sequence
 * computes on from. The share of prompts' pages that were found is held against two caches of the
 * same room that are told the same pages: an ideal one of our rule (the least recently used page
 * goes) and an oracle that knows the future. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "engine/engine.h"
#include "tests/tap.h"
#include "tests/unit/engine/contents.h"

#define N_PREFIXES   12
#define PREFIX_PAGES 24
#define N_TURNS      16 /* of a conversation, on average */
#define CONTEXT      200
#define N_USERS      250
#define BLOCK        4
#define PAGE_BYTES   (BLOCK * sizeof(uint32_t))
#define LONGEST      (CONTEXT * BLOCK)
#define THINK_STEPS  1000.0
#define COPY_STEPS   2 /* until a copy is done */
#define COPIES_MAX   4096
#define NEVER        UINT32_MAX

/* --- other caches ---------------------------------------------------------------------------- */

/* Pages in the order in which they are used. */
struct asked {
    uint32_t *ids;
    bool *counts; /* it could have been found */
    uint32_t n, cap, n_ids;
};

static void asked_add(struct asked *a, uint32_t id, bool counts)
{
    if (a->n == a->cap) {
        a->cap = a->cap == 0 ? 1 << 16 : 2 * a->cap;
        a->ids = realloc(a->ids, a->cap * sizeof *a->ids);
        a->counts = realloc(a->counts, a->cap * sizeof *a->counts);
        must(a->ids != NULL && a->counts != NULL);
    }
    a->ids[a->n] = id;
    a->counts[a->n++] = counts;
    a->n_ids = id >= a->n_ids ? id + 1 : a->n_ids;
}

static void asked_fini(struct asked *a)
{
    free(a->ids);
    free(a->counts);
}

/* Hits of a cache of so many pages that drops what was used least recently. Use is a time; what
 * was used after the last `room` different pages is held: a clock hand over the uses finds them. */
static uint32_t asked_lru(const struct asked *a, uint32_t room)
{
    uint32_t *used = calloc(a->n_ids, sizeof *used); /* when, plus 1; 0: not held */
    uint32_t n_held = 0, n_hits = 0, hand = 0;

    must(used != NULL);
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t id = a->ids[i];

        n_hits += used[id] != 0 && a->counts[i];
        n_held += used[id] == 0;
        used[id] = i + 1;
        for (; n_held > room; hand++) { /* stops at i at the latest */
            if (used[a->ids[hand]] == hand + 1) {
                used[a->ids[hand]] = 0;
                n_held--;
            }
        }
    }
    free(used);
    return n_hits;
}

struct ahead {
    uint32_t next, id; /* when the page is asked for again */
};

struct heap {
    struct ahead *a;
    uint32_t n;
};

static void heap_push(struct heap *h, struct ahead x)
{
    uint32_t i = h->n++;

    for (; i > 0 && h->a[(i - 1) / 2].next < x.next; i = (i - 1) / 2)
        h->a[i] = h->a[(i - 1) / 2];
    h->a[i] = x;
}

static struct ahead heap_pop(struct heap *h)
{
    struct ahead top = h->a[0], x = h->a[--h->n];
    uint32_t i = 0;

    for (;;) { /* down to a leaf at most */
        uint32_t child = 2 * i + 1;

        if (child >= h->n)
            break;
        child += child + 1 < h->n && h->a[child + 1].next > h->a[child].next;
        if (h->a[child].next <= x.next)
            break;
        h->a[i] = h->a[child];
        i = child;
    }
    h->a[i] = x;
    return top;
}

/* Hits of a cache of so many pages that always drops what is asked for last of all. */
static uint32_t asked_oracle(const struct asked *t, uint32_t room)
{
    uint32_t *next = calloc(t->n, sizeof *next), *at = calloc(t->n_ids, sizeof *at);
    struct heap h = {.a = calloc((size_t)t->n + 1, sizeof *h.a)};
    uint32_t n_held = 0, n_hits = 0;

    must(next != NULL && at != NULL && h.a != NULL);
    memset(at, 0xff, t->n_ids * sizeof *at); /* NEVER */
    for (uint32_t i = t->n; i-- > 0;) {
        next[i] = at[t->ids[i]];
        at[t->ids[i]] = i;
    }
    memset(at, 0xff, t->n_ids * sizeof *at); /* from here on: next use of what is held, plus 1 */
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t id = t->ids[i];
        bool held = at[id] == i;

        n_hits += held && t->counts[i];
        n_held += !held;
        at[id] = next[i];
        if (next[i] == NEVER)
            n_held--; /* it is not asked for again: it needs no room */
        else
            heap_push(&h, (struct ahead){.next = next[i], .id = id});
        while (n_held > room) {
            struct ahead x = heap_pop(&h);

            if (at[x.id] != x.next)
                continue; /* used since: it stands there once more */
            at[x.id] = NEVER;
            n_held--;
        }
    }
    free(next);
    free(at);
    free(h.a);
    return n_hits;
}

/* --- the device ------------------------------------------------------------------------------ */

struct copy {
    enum model_way way;
    int32_t page;
    void *host;
    uint64_t ticket; /* 0: not marked yet */
    uint64_t step;   /* when it was marked */
};

/* Copies stand in the order in which they were started. */
struct model {
    uint32_t (*pages)[BLOCK];
    struct copy copies[COPIES_MAX];
    int n_copies;
    uint64_t n_in; /* copies */
    uint64_t n_marks, n_done[2], step;
};

static void copy_now(struct model *m, const struct copy *c)
{
    if (c->way == MODEL_IN)
        memcpy(m->pages[c->page], c->host, PAGE_BYTES);
    else
        memcpy(c->host, m->pages[c->page], PAGE_BYTES);
}

/* Do all copies of one way that are due; with fence all that were started. */
static void copies_end(struct model *m, enum model_way way, bool fence)
{
    int n = 0;

    for (int i = 0; i < m->n_copies; i++) {
        const struct copy *c = &m->copies[i];
        bool due = c->way == way && c->ticket > 0 && m->step >= c->step + COPY_STEPS;

        if (!due && !(fence && c->way == way)) {
            m->copies[n++] = *c;
            continue;
        }
        copy_now(m, c);
        if (c->ticket > m->n_done[way])
            m->n_done[way] = c->ticket;
    }
    m->n_copies = n;
}

static int copy_add(struct model *m, enum model_way way, int32_t page, void *host)
{
    must(m->n_copies < COPIES_MAX);
    m->copies[m->n_copies++] = (struct copy){.way = way, .page = page, .host = host};
    return ERR_OK;
}

int model_page_in(struct model *m, int32_t page, const void *host)
{
    m->n_in++;
    return copy_add(m, MODEL_IN, page, (void *)(uintptr_t)host);
}

int model_page_out(struct model *m, int32_t page, void *host)
{
    return copy_add(m, MODEL_OUT, page, host);
}

int model_copy_mark(struct model *m, enum model_way way, uint64_t *ticket)
{
    *ticket = ++m->n_marks;
    for (int i = 0; i < m->n_copies; i++) {
        if (m->copies[i].way == way && m->copies[i].ticket == 0) {
            m->copies[i].ticket = *ticket;
            m->copies[i].step = m->step;
        }
    }
    return ERR_OK;
}

int model_copy_done(struct model *m, enum model_way way, uint64_t ticket)
{
    copies_end(m, way, false);
    return m->n_done[way] >= ticket;
}

int model_copy_fence(struct model *m)
{
    copies_end(m, MODEL_OUT, true);
    return ERR_OK;
}

int model_page_read(struct model *m, int32_t page, void *host)
{
    memcpy(host, m->pages[page], PAGE_BYTES);
    return ERR_OK;
}

/* --- the agents ------------------------------------------------------------------------------ */

struct user {
    uint64_t wakes; /* the step in which he asks */
    struct seq *seq;
    int n_tokens;   /* of the conversation so far */
    uint32_t first; /* the number of its first page that is his alone */
    int32_t tokens[LONGEST];
};

struct world {
    struct model model;
    struct model_shape shape;
    struct engine e;
    struct user users[N_USERS];
    struct asked asked; /* for the other caches */
    uint32_t n_ids;
    uint64_t n_turns, n_pages, n_found; /* of prompts */
    unsigned seed;
    bool good;
};

static double chance(unsigned *seed)
{
    return (random_next(seed) + 1.0) / (1 << 24);
}

static void think(struct world *w, struct user *u)
{
    double steps = -log(chance(&w->seed)) * THINK_STEPS;

    if (random_next(&w->seed) % 8 == 0)
        steps *= 8.0;
    u->wakes = w->model.step + 1 + (uint64_t)steps;
}

/* A new conversation behind one of the prefixes, the first of which are the most common. */
static void begin_talk(struct world *w, struct user *u)
{
    int prefix = (int)(N_PREFIXES * chance(&w->seed) * chance(&w->seed)) % N_PREFIXES;

    u->n_tokens = PREFIX_PAGES * BLOCK;
    for (int i = 0; i < u->n_tokens; i++)
        u->tokens[i] = prefix * 1000 + i;
    u->first = w->n_ids;
    w->n_ids += CONTEXT;
}

/* The number of a page of his conversation; those of prefixes come first of all. */
static uint32_t page_id(const struct user *u, int page)
{
    uint32_t prefix = (uint32_t)u->tokens[0] / 1000;

    return page < PREFIX_PAGES ? prefix * PREFIX_PAGES + (uint32_t)page
                               : u->first + (uint32_t)(page - PREFIX_PAGES);
}

/* For the answer to what he has said. */
static void ask_as_known(struct world *w, struct user *u, int n_new)
{
    struct seq *q = seq_claim(&w->e.pool);

    must(q != NULL);
    memcpy(q->tokens, u->tokens, sizeof *u->tokens * (size_t)u->n_tokens);
    q->n_tokens = q->n_prompt = u->n_tokens;
    q->tokens_max = u->n_tokens + n_new;
    q->arrival = w->e.n_requests++;
    u->seq = q;
    sched_add(&w->e.sched, q);
}

static void ask(struct world *w, struct user *u)
{
    int n = 4 + (int)(random_next(&w->seed) % 16), n_new = 2 + (int)(random_next(&w->seed) % 12);

    if (random_next(&w->seed) % N_TURNS == 0 || u->n_tokens + n + n_new >= LONGEST)
        begin_talk(w, u);
    for (int i = 0; i < n; i++)
        u->tokens[u->n_tokens++] = 20000 + (int32_t)(random_next(&w->seed) % 10000);
    ask_as_known(w, u, n_new);
}

/* The conversation's pages in the order in which they are used: those of the prompt that can be
 * had, which are counted, and those that are made. */
static void tell_others(struct world *w, const struct user *u, const struct seq *q)
{
    int n_asked = (q->n_prompt - 1) / BLOCK, n = (q->tokens_max - 1) / BLOCK;

    for (int i = 0; i < n; i++)
        asked_add(&w->asked, page_id(u, i), i < n_asked);
    w->n_pages += (uint64_t)n_asked;
    w->n_found += (uint64_t)(q->n_cached / BLOCK);
    w->n_turns++;
}

/* --- the loop -------------------------------------------------------------------------------- */

static int32_t token_of(const struct seq *q, int at)
{
    return q->tokens[at];
}

static void end_turn(struct world *w, struct user *u)
{
    struct seq *q = u->seq;

    tell_others(w, u, q);
    u->n_tokens = q->n_tokens;
    memcpy(u->tokens, q->tokens, sizeof *q->tokens * (size_t)q->n_tokens);
    u->seq = NULL;
    sched_remove(&w->e.sched, q);
    seq_release(&w->e.pool, q);
    think(w, u);
}

static void step(struct world *w)
{
    struct engine *e = &w->e;
    struct sched *s = &e->sched;

    tiers_poll(e);
    tiers_prefetch(e);
    sched_plan(s);
    tiers_save_evicted(e);
    contents_copy(w->model.pages[0], &s->tables);
    for (int i = 0; i < s->n_planned; i++) {
        const struct seq *q = s->planned[i];

        w->good = contents_compute(w->model.pages[0], &s->tables, q, q->n_computed,
                                   q->n_computed + q->n_planned, token_of) &&
                  w->good;
    }
    sched_begin(s);
    for (int i = 0; i < s->n_planned; i++) {
        struct seq *q = s->planned[i];

        q->admitted = true;
        sched_advance(s, q, q->n_planned, tiers_note_named, e);
        if (q->n_computed == q->n_tokens) {
            q->tokens[q->n_tokens] = 20000 + (int32_t)(random_next(&w->seed) % 10000);
            q->n_tokens++;
        }
    }
    tiers_write_behind(e, 8);
    sched_check(s);
    w->model.step++;
}

/* Steps take no time here, what threads of the host tier do does: wait for them now and then. */
static void settle(struct world *w)
{
    struct engine *e = &w->e;

    for (int i = 0; i < 200 && e->tiers.dirty_head != e->tiers.dirty_tail; i++) {
        clock_sleep_us(20);
        tiers_poll(e);
        tiers_write_behind(e, 8);
        w->model.step++; /* copies get done */
    }
}

static int pin(void *context, void *memory, size_t bytes)
{
    (void)context, (void)memory, (void)bytes;
    return ERR_OK;
}

static void unpin(void *context, void *memory)
{
    (void)context, (void)memory;
}

static void world_open(struct world *w, const struct contents_kind *kind, int n_device, int n_host,
                       const char *path)
{
    struct engine *e = &w->e;
    struct sched_limits limits = {.max_num_seqs = 64,
                                  .max_num_batched_tokens = 512,
                                  .long_prefill_tokens = 256,
                                  .page_tokens = BLOCK,
                                  .prefix_caching = true,
                                  .n_groups = kind->n_groups,
                                  .groups = kind->groups};
    struct seq_pool_limits of_seqs = {.n_seqs = N_USERS,
                                      .max_model_len = LONGEST,
                                      .page_tokens = BLOCK,
                                      .n_vocab = 512,
                                      .n_groups = kind->n_groups};
    struct host_options o = {.path = path,
                             .max_bytes = (size_t)n_host * HOST_ALIGN,
                             .page_bytes = PAGE_BYTES,
                             .page_tokens = BLOCK,
                             .name = "test",
                             .pin = pin,
                             .unpin = unpin};

    w->model.pages = calloc((size_t)n_device, sizeof *w->model.pages);
    must(w->model.pages != NULL);
    w->shape = (struct model_shape){
        .page_tokens = BLOCK, .page_bytes = PAGE_BYTES, .n_groups = kind->n_groups};
    e->model = &w->model;
    e->shape = &w->shape;
    w->good = true;
    w->n_ids = N_PREFIXES * PREFIX_PAGES;
    must_ok(pages_open(&e->pages, n_device, BLOCK));
    must_ok(sched_init(&e->sched, &limits, e->pages));
    of_seqs.n_state_pages = e->sched.tables.n_state_pages;
    must_ok(seq_pool_init(&e->pool, &of_seqs));
    must_ok(stats_open(&e->stats));
    must_ok(tiers_init(e));
    must_ok(host_open(&e->tiers.host, &o));
    host_wait(e->tiers.host, 10000000);
}

static void world_close(struct world *w)
{
    struct engine *e = &w->e;

    host_close(e->tiers.host);
    pages_close(e->pages);
    for (int i = 0; i < e->tiers.n_loads; i++)
        free(e->tiers.loads[i].tokens_copy);
    asked_fini(&w->asked);
    free(w->model.pages);
    free(w);
}

/* A world in which all users talk, for n_steps steps. */
static struct world *live(const struct contents_kind *kind, int n_device, int n_host,
                          uint64_t n_steps)
{
    char path[] = "/tmp/quire-agents-XXXXXX";
    struct world *w = calloc(1, sizeof *w);
    int fd = mkstemp(path);

    must(w != NULL && fd >= 0);
    w->seed = tap_seed(5);
    world_open(w, kind, n_device, n_host, path);
    w->e.sched.tables.stride = 8 * BLOCK;
    for (int i = 0; i < N_USERS; i++) {
        begin_talk(w, &w->users[i]);
        think(w, &w->users[i]);
    }
    for (uint64_t n = 0; n < n_steps && w->good; n++) {
        for (int i = 0; i < N_USERS; i++) {
            struct user *u = &w->users[i];

            if (u->seq == NULL && u->wakes <= w->model.step)
                ask(w, u);
        }
        step(w);
        for (int i = 0; i < N_USERS; i++) {
            struct user *u = &w->users[i];

            if (u->seq != NULL && u->seq->n_tokens == u->seq->tokens_max)
                end_turn(w, u);
        }
        if (w->e.tiers.dirty_tail - w->e.tiers.dirty_head > 64)
            settle(w);
        if (n % 4096 == 0)
            host_prove(w->e.tiers.host);
    }
    host_prove(w->e.tiers.host);
    ok(w->good, "%s: %llu steps, %llu turns: everybody found his own tokens", kind->name,
       (unsigned long long)n_steps, (unsigned long long)w->n_turns);
    (void)close(fd);
    (void)unlink(path);
    return w;
}

static void simulate(int n_device, int n_host, uint64_t n_steps, double least)
{
    struct world *w = live(&contents_kinds[0], n_device, n_host, n_steps);
    double ours, same, best;

    ours = 100.0 * (double)w->n_found / (double)w->n_pages;
    same = 100.0 * (double)asked_lru(&w->asked, (uint32_t)n_host) / (double)w->n_pages;
    best = 100.0 * (double)asked_oracle(&w->asked, (uint32_t)n_host) / (double)w->n_pages;
    ok(ours >= 0.98 * same,
       "device %d, host %d pages: %.2f%% of %llu pages found, an ideal cache "
       "of the same rule %.2f%%",
       n_device, n_host, ours, (unsigned long long)w->n_pages, same);
    ok(ours >= least * best, "one that knows the future %.2f%%: ours is %.1f%% of it", best,
       100.0 * ours / best);
    world_close(w);
}

/* Groups of all kinds, with room below for what users come back to: least is the share of the
 * prompts' pages that is found. */
static void simulate_groups(uint64_t n_steps)
{
    static const double least[CONTENTS_KINDS] = {90.0, 90.0, 90.0, 80.0, 80.0, 80.0};

    for (int k = 1; k < CONTENTS_KINDS; k++) {
        int n_pages = contents_kinds[k].n_groups * 12000;
        struct world *w = live(&contents_kinds[k], 3000, 2 * n_pages, n_steps);
        double found = 100.0 * (double)w->n_found / (double)w->n_pages;

        ok(found >= least[k], "%s: %.2f%% of the prompts' pages were found", contents_kinds[k].name,
           found);
        ok(w->model.n_in > 0, "%llu of them came from host memory",
           (unsigned long long)w->model.n_in);
        world_close(w);
    }
}

/* All ask at once for what they have; steps until everybody has said his first token. */
static void ask_at_once(struct world *w, int n_users)
{
    int n_running = n_users;

    for (int i = 0; i < n_users; i++)
        ask_as_known(w, &w->users[i], 1);
    for (int n = 0; n < 100000 && n_running > 0; n++) {
        step(w);
        for (int i = 0; i < n_users; i++) {
            struct user *u = &w->users[i];

            if (u->seq == NULL || u->seq->n_tokens < u->seq->tokens_max)
                continue;
            end_turn(w, u);
            n_running--;
        }
    }
    must(n_running == 0);
}

/* The same prompt. */
static void ask_alike(struct world *w, int n_users)
{
    for (int i = 1; i < n_users; i++)
        w->users[i] = w->users[0];
    ask_at_once(w, n_users);
}

static void save_all(struct world *w)
{
    for (int i = 0; i < 100 && tiers_have_work(&w->e); i++) {
        settle(w);
        step(w);
    }
    must(!tiers_have_work(&w->e));
}

/* More pages are asked for at once than there are places for loads: no sequence computes what
 * the host tier has. */
static void test_many_at_once(void)
{
    char path[] = "/tmp/quire-agents-XXXXXX";
    int fd = mkstemp(path);
    int n_users = 8, n_pages = CONTEXT - 10;

    must(fd >= 0);
    for (int life = 0; life < 2; life++) {
        struct world *w = calloc(1, sizeof *w);

        must(w != NULL);
        w->seed = 4;
        world_open(w, &contents_kinds[0], 2000, 3000, path);
        must(n_users * n_pages > w->e.tiers.n_loads);
        for (int i = 0; i < n_users; i++) {
            struct user *u = &w->users[i];

            for (u->n_tokens = 0; u->n_tokens < n_pages * BLOCK; u->n_tokens++)
                u->tokens[u->n_tokens] = 1000 * i + u->n_tokens;
        }
        ask_at_once(w, n_users);
        save_all(w);
        ok(w->good && w->n_turns == (uint64_t)n_users, "%d long prompts at once: all are served",
           n_users);
        ok(life == 0 || w->n_found == w->n_pages,
           "in another life each finds all of its pages: %llu of %llu",
           (unsigned long long)w->n_found, (unsigned long long)w->n_pages);
        host_prove(w->e.tiers.host);
        world_close(w);
    }
    (void)close(fd);
    (void)unlink(path);
}

/* Pages of an earlier life are checked before their first use, by threads that take their time:
 * here several wait for the check of the same page. */
static void test_another_life(void)
{
    char path[] = "/tmp/quire-agents-XXXXXX";
    int fd = mkstemp(path);

    must(fd >= 0);
    for (int life = 0; life < 4; life++) {
        struct world *w = calloc(1, sizeof *w);

        must(w != NULL);
        w->seed = 3;
        world_open(w, &contents_kinds[0], 2000, 2000, path);
        for (int i = 0; i < CONTEXT * BLOCK / 2; i++)
            w->users[0].tokens[w->users[0].n_tokens++] = i;
        ask_alike(w, life == 0 ? 1 : 6);
        save_all(w);
        ok(w->good && w->n_turns == (life == 0 ? 1u : 6u), "life %d: all are served", life);
        ok(life == 0 || w->n_found >= 6u * (CONTEXT / 2 - 1),
           "life %d: from the pages of the one before: %llu of %llu", life,
           (unsigned long long)w->n_found, (unsigned long long)w->n_pages);
        ok(w->model.n_in == (life == 0 ? 0u : (unsigned)w->n_pages / 6),
           "life %d: each is brought once for all (%llu)", life, (unsigned long long)w->model.n_in);
        host_prove(w->e.tiers.host);
        world_close(w);
    }
    (void)close(fd);
    (void)unlink(path);
}

int main(void)
{
    const char *steps = getenv("STEPS");
    uint64_t few = tap_is_long() ? 120000 : 30000;
    uint64_t n = steps == NULL ? few : strtoull(steps, NULL, 10);

    log_set_level(0);
    test_another_life();
    test_many_at_once();
    simulate_groups(n / 5);
    simulate(2000, 24000, n, 0.98); /* room for what users come back to */
    simulate(2000, 12000, n / 4, 0.93);
    simulate(2000, 6000, n / 4, 0.77); /* no rule that does not know the future is much nearer */
    return tap_done();
}
