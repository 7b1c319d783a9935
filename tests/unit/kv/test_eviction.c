/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the page that goes is the one of lowest priority and least recent use, hints end when they
 * say, and those above the default never take more than their share. Method: random calls beside a
 * naive model that searches all pages, eviction_check() on the way; then named cases, and the pool
 * of pages with hints. */
#include "ipc/prefix.h"
#include "kv/eviction.h"
#include "kv/pages.h"
#include "tests/tap.h"

#define N     40
#define SHARE 12
#define BLOCK 4

struct naive {
    bool in[N];
    uint64_t used[N];
    struct retain hint[N];
    unsigned depth[N];
    uint64_t n_used;
    uint32_t now_s;
    int share;
};

static int naive_kept(const struct naive *m)
{
    int n = 0;

    for (int i = 0; i < N; i++)
        n += m->hint[i].rank > 0;
    return n;
}

static bool naive_before(const struct naive *m, int a, int b, bool by_depth)
{
    if (m->hint[a].rank != m->hint[b].rank)
        return m->hint[a].rank < m->hint[b].rank;
    if (by_depth && m->depth[a] != m->depth[b])
        return m->depth[a] > m->depth[b];
    return m->used[a] < m->used[b];
}

/* The least of those that `in` marks (NULL: of those above the default), or -1. */
static int naive_least(const struct naive *m, const bool *in)
{
    int best = -1;

    for (int i = 0; i < N; i++) {
        if (in != NULL ? !in[i] : m->hint[i].rank <= 0)
            continue;
        if (best == -1 || naive_before(m, i, best, in == NULL))
            best = i;
    }
    return best;
}

static void naive_set(struct naive *m, int i, struct retain r)
{
    int least = naive_least(m, NULL);

    if (r.rank > 0 && m->hint[i].rank <= 0 && naive_kept(m) >= m->share) {
        if (m->share > 0 && least != -1 &&
            (m->hint[least].rank < r.rank ||
             (m->hint[least].rank == r.rank && retain_priority(r) < RETAIN_PINNED &&
              m->depth[least] > m->depth[i])))
            m->hint[least] = (struct retain){0};
        else
            r = (struct retain){0};
    }
    m->hint[i] = r;
}

static void naive_tick(struct naive *m, uint32_t now_s)
{
    m->now_s = now_s > m->now_s ? now_s : m->now_s;
    for (int i = 0; i < N; i++)
        m->hint[i] = retain_now(m->hint[i], m->now_s);
}

static struct retain random_hint(unsigned *seed, uint32_t now_s)
{
    static const int priorities[8] = {0, 20, RETAIN_DEFAULT, 36, 60, 60, 99, RETAIN_PINNED};
    uint32_t until = random_next(seed) % 4 == 0 ? 0 : now_s + random_next(seed) % 50;

    return retain_of(priorities[random_next(seed) % 8], until);
}

static void step(struct eviction *o, struct naive *m, unsigned *seed)
{
    int i = (int)(random_next(seed) % N);
    struct retain r = random_hint(seed, m->now_s);

    switch (random_next(seed) % 8) {
    case 0:
    case 1:
        eviction_add(o, i);
        m->in[i] = true;
        break;
    case 2:
        eviction_remove(o, i);
        m->in[i] = false;
        break;
    case 3:
        eviction_use(o, i);
        m->used[i] = ++m->n_used;
        break;
    case 4: {
        int parent = (int)(random_next(seed) % (N + 4));

        parent = parent >= N || parent == i ? -1 : parent;
        eviction_begin(o, i, parent, r);
        m->hint[i] = (struct retain){0};
        m->depth[i] = parent == -1 ? 0 : m->depth[parent] + 1;
        naive_set(m, i, retain_now(r, m->now_s));
        break;
    }
    case 5:
    case 6: {
        struct retain want = retain_join(m->hint[i], r, m->now_s);

        eviction_retain(o, i, r);
        if (want.rank != m->hint[i].rank || want.until != m->hint[i].until)
            naive_set(m, i, want);
        break;
    }
    default: {
        uint32_t now_s = m->now_s + random_next(seed) % 3;

        eviction_tick(o, now_s);
        naive_tick(m, now_s);
        break;
    }
    }
}

static void test_walk(unsigned seed)
{
    struct naive m = {.now_s = 1000, .share = SHARE};
    struct eviction *o;
    bool good = true;
    int most = 0;

    must_ok(eviction_open(&o, N, SHARE));
    eviction_tick(o, m.now_s);
    for (int i = 0; i < N; i++) { /* uses are unique from the start */
        eviction_use(o, i);
        m.used[i] = ++m.n_used;
    }
    for (int n = 0; n < 300000 && good; n++) {
        step(o, &m, &seed);
        good = eviction_first(o) == naive_least(&m, m.in) && eviction_n_kept(o) == naive_kept(&m);
        most = eviction_n_kept(o) > most ? eviction_n_kept(o) : most;
        for (int i = 0; i < N && n % 100 == 0; i++)
            good = good && eviction_retained(o, i).rank == m.hint[i].rank &&
                   eviction_retained(o, i).until == m.hint[i].until;
        if (n % 1000 == 0)
            eviction_check(o);
    }
    eviction_check(o);
    ok(good, "300000 random calls agree with the naive model");
    is_int(most, SHARE, "those above the default take their share and no more");
    eviction_close(o);
}

static void test_join(void)
{
    struct retain none = {0}, low = retain_of(10, 0), a = retain_of(60, 100),
                  b = retain_of(50, 200);
    struct retain r;

    is_int(retain_join(none, low, 1).rank, 0, "a page that others use is not lowered");
    is_int(retain_join(low, none, 1).rank, 0, "one that is used as any other is any other");
    r = retain_join(a, b, 1);
    ok(retain_priority(r) == 60 && r.until == 200, "the higher priority, the later end");
    is_int(retain_join(a, b, 150).rank, b.rank, "what is over counts no longer");
    r = retain_join(a, retain_of(40, 0), 1);
    ok(retain_priority(r) == 60 && r.until == 0, "no end is the latest");
    is_int(retain_join(a, none, 1).rank, a.rank, "a use without a hint ends none");
    ok(retain_covers(retain_of(60, 0), a) && retain_covers(a, a), "no end covers any");
    ok(!retain_covers(b, a) && !retain_covers(a, retain_of(60, 101)) &&
           !retain_covers(a, retain_of(50, 0)),
       "a lower priority or an earlier end covers nothing that has more");
    is_int(retain_now(low, UINT32_MAX).rank, low.rank, "without an end it never ends");
}

static void test_word(void)
{
    bool good = true;

    for (int p = 0; p <= RETAIN_PINNED; p++) {
        struct retain r = retain_of(p, p == RETAIN_DEFAULT ? 0 : UINT32_MAX - (uint32_t)p);
        struct retain back = retain_unpack(retain_pack(r));

        good = good && back.rank == r.rank && back.until == r.until;
    }
    ok(good, "every priority comes back from its word");
    is_int((long)retain_pack((struct retain){0}), 0, "the default is 0");
    is_int(retain_unpack(0).rank, 0, "and 0 the default");
    ok(retain_unpack(102).rank == 0 && retain_unpack(UINT64_MAX).rank == 0 &&
           retain_unpack(UINT64_C(1) << 40 | 90).rank == 0,
       "a word that cannot be is the default");
}

static void test_share(void)
{
    struct eviction *o;

    must_ok(eviction_open(&o, 10, 3));
    for (int i = 0; i < 10; i++) {
        eviction_use(o, i);
        eviction_add(o, i);
        eviction_retain(o, i, retain_of(60, 0));
    }
    is_int(eviction_n_kept(o), 3, "a greedy client gets the share");
    is_int(eviction_first(o), 3, "what had no room in it goes as any other");
    eviction_retain(o, 9, retain_of(RETAIN_PINNED, 0));
    is_int(eviction_n_kept(o), 3, "a pin finds room");
    ok(eviction_retained(o, 9).rank > 0 && eviction_retained(o, 0).rank == 0,
       "in the place of the least of them");
    is_int(eviction_first(o), 0, "which is any other now");
    eviction_bound(o, 0);
    eviction_retain(o, 5, retain_of(99, 0));
    is_int(eviction_retained(o, 5).rank, 0, "where nothing may be kept nothing is");
    eviction_close(o);
}

/* However a share is fought for, of each prefix the start is kept. */
static void test_depth(void)
{
    struct eviction *o;

    must_ok(eviction_open(&o, 12, 6));
    for (int i = 0; i < 6; i++) { /* two prefixes, page by page */
        eviction_begin(o, i, i < 2 ? -1 : i - 2, retain_of(60, 0));
        eviction_use(o, i);
    }
    for (int i = 6; i < 9; i++)
        eviction_begin(o, i, i == 6 ? -1 : i - 1, retain_of(80, 0));
    ok(eviction_retained(o, 0).rank > 0 && eviction_retained(o, 1).rank > 0,
       "both starts are kept");
    ok(eviction_retained(o, 2).rank == 0 && eviction_retained(o, 3).rank > 0,
       "of pages at the same depth that used last");
    ok(eviction_retained(o, 4).rank == 0 && eviction_retained(o, 5).rank == 0, "ends go first");
    eviction_check(o);
    eviction_close(o);
}

/* Prompts that ask for the same share it by their starts, whichever came first; pins do not. */
static void test_halves(int priority, int want_first, int want_second)
{
    struct eviction *o;
    int first = 0, second = 0;

    must_ok(eviction_open(&o, 12, 6));
    for (int i = 0; i < 12; i++) {
        eviction_begin(o, i, i % 6 == 0 ? -1 : i - 1, retain_of(priority, 0));
        eviction_use(o, i);
    }
    for (int i = 0; i < 6; i++) {
        first += eviction_retained(o, i).rank > 0 && i == first;
        second += eviction_retained(o, 6 + i).rank > 0 && i == second;
    }
    ok(first == want_first && second == want_second,
       "two prompts of priority %d have the first %d and %d of their pages", priority, first,
       second);
    is_int(eviction_n_kept(o), 6, "and nothing else");
    eviction_check(o);
    eviction_close(o);
}

/* A pool of pages, all named and cached. */
static struct pages *pool(int n, struct hash *names)
{
    struct pages *p;
    struct page_label label;
    bool evicted;

    must_ok(pages_open(&p, n, BLOCK));
    for (int i = 0; i < n; i++) {
        int32_t tokens[BLOCK] = {i};
        struct hash root = {{0}};
        int32_t page = pages_take(p, &evicted, &label);

        names[i] = prefix_name(&root, tokens, BLOCK);
        (void)pages_name(p, page, &names[i], &root, tokens);
        pages_own(p, page, 7, (struct retain){0});
        pages_unref(p, page);
    }
    return p;
}

static void test_pages(void)
{
    struct hash names[8];
    struct pages *p = pool(8, names);
    struct page_label label;
    bool evicted;
    int32_t held;

    pages_tick(p, 1000);
    pages_retain(p, 0, retain_of(RETAIN_PINNED, 0));
    pages_retain(p, 1, retain_of(60, 1010));
    for (int i = 0; i < 6; i++)
        pages_unref(p, pages_take(p, &evicted, &label));
    pages_check(p);
    ok(pages_has(p, &names[0]) && pages_has(p, &names[1]), "a flood takes all but what is kept");
    is_int(pages_kept(p), 2, "which is two pages");
    held = pages_find(p, &names[0]);
    pages_drop(p, held);
    ok(!pages_has(p, &names[0]), "a page that is dropped while it is used loses its name");
    is_int(pages_free(p), 7, "and stays whose it is");
    pages_unref(p, held);
    is_int(pages_free(p), 8, "until that one lets it go");
    pages_check(p);
    ok(pages_label(p, 1, &label) && label.space == 7 && retain_priority(label.retain) == 60,
       "a page says what it belongs to and what was said of it");
    pages_tick(p, 1010);
    ok(pages_label(p, 1, &label) && label.retain.rank == 0, "until that is over");
    pages_close(p);
}

int main(void)
{
    test_walk(tap_seed(1));
    test_join();
    test_word();
    test_share();
    test_depth();
    test_halves(60, 3, 3);
    test_halves(RETAIN_PINNED, 6, 0);
    test_pages();
    return tap_done();
}
