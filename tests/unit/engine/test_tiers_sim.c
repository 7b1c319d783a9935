/* Goal: what the device's cache and the host tier keep is worth keeping. Method: a million pages
 * asked for by agents (conversations of many turns that begin with one of few long prefixes, with
 * time to think between turns), served by the real pages.c and host.c as tiers.c uses them, one
 * turn after the other, and by an oracle of the same room that knows the future (Belady's rule,
 * page by page). The aim is to be within 2% of it where the room holds what users come back to;
 * with less room nobody who does not know who comes back can be that near: the numbers say how
 * near we are, and the bounds that it gets no worse. */
#include <math.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "kv/host.h"
#include "kv/pages.h"
#include "tests/tap.h"

#define N_PREFIXES   12
#define PREFIX_PAGES 24
#define TURN_PAGES   7  /* at most, of a question and its answer */
#define N_TURNS      16 /* of a conversation, on average */
#define CONTEXT      200
#define N_PAGES      1000000
#define N_USERS      250 /* who come back to some 16,000 pages */
#define BLOCK        4
#define PAGE_BYTES   64
#define NEVER        UINT32_MAX

/* --- the trace ------------------------------------------------------------------------------- */

struct trace {
    uint32_t *ids;   /* [n]: pages in the order in which they are asked for */
    uint32_t *turns; /* [n_turns + 1]: where each turn begins */
    uint32_t *first; /* [n_ids]: the page before it in its conversation, NEVER at its start */
    uint32_t n, n_turns, n_ids, n_seen; /* n_seen: asked for before, so an endless cache has it */
};

struct user {
    double next; /* when he asks */
    int n_pages;
    uint32_t pages[CONTEXT];
};

static double chance(unsigned *seed)
{
    return (random_next(seed) + 1.0) / (1 << 24);
}

static uint32_t new_page(struct trace *t, uint32_t before)
{
    t->first[t->n_ids] = before;
    return t->n_ids++;
}

/* A new conversation behind one of the prefixes, the first of which are the most common. */
static void begin_talk(struct user *u, unsigned *seed)
{
    uint32_t prefix = (uint32_t)(N_PREFIXES * chance(seed) * chance(seed)) % N_PREFIXES;

    u->n_pages = PREFIX_PAGES;
    for (uint32_t i = 0; i < PREFIX_PAGES; i++)
        u->pages[i] = prefix * PREFIX_PAGES + i;
}

static void take_turn(struct trace *t, struct user *u, unsigned *seed)
{
    int more = 1 + (int)(random_next(seed) % TURN_PAGES);

    if (random_next(seed) % N_TURNS == 0 || u->n_pages + more > CONTEXT)
        begin_talk(u, seed);
    t->turns[t->n_turns++] = t->n;
    t->n_seen += (uint32_t)u->n_pages;
    for (int i = 0; i < more; i++, u->n_pages++)
        u->pages[u->n_pages] = new_page(t, u->pages[u->n_pages - 1]);
    memcpy(t->ids + t->n, u->pages, sizeof *u->pages * (size_t)u->n_pages);
    t->n += (uint32_t)u->n_pages;
}

static void make_trace(struct trace *t, unsigned *seed)
{
    static struct user users[N_USERS];

    *t = (struct trace){.ids = calloc(N_PAGES + CONTEXT, sizeof *t->ids),
                        .turns = calloc(N_PAGES + 1, sizeof *t->turns),
                        .first = calloc(N_PAGES + CONTEXT, sizeof *t->first)};
    must(t->ids != NULL && t->turns != NULL && t->first != NULL);
    for (uint32_t i = 0; i < N_PREFIXES * PREFIX_PAGES; i++)
        (void)new_page(t, i % PREFIX_PAGES == 0 ? NEVER : i - 1);
    for (uint32_t i = 0; i < N_USERS; i++) {
        users[i].next = -log(chance(seed));
        begin_talk(&users[i], seed);
    }
    while (t->n < N_PAGES) {
        struct user *u = &users[0];

        for (uint32_t i = 1; i < N_USERS; i++)
            u = users[i].next < u->next ? &users[i] : u;
        take_turn(t, u, seed);
        u->next -= log(chance(seed)) * (random_next(seed) % 8 == 0 ? 8.0 : 1.0);
    }
    t->turns[t->n_turns] = t->n;
}

/* --- the oracle ------------------------------------------------------------------------------ */

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
static uint32_t oracle(const struct trace *t, uint32_t room)
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

        n_hits += held;
        n_held += !held;
        at[id] = next[i];
        if (next[i] == NEVER)
            n_held--; /* nobody asks again: it needs no room */
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

/* --- the tiers ------------------------------------------------------------------------------- */

struct tiers {
    const struct trace *t;
    struct pages *pages;
    struct host *host; /* NULL: only the device */
    uint32_t n_device, n_host, n_skipped;
};

static struct hash name_of(uint32_t id)
{
    struct hash name = {{0}};
    uint64_t mixed = (id + 1) * UINT64_C(0x9e3779b97f4a7c15);

    mixed ^= mixed >> 29;
    memcpy(name.bytes, &mixed, sizeof mixed);
    memcpy(name.bytes + sizeof mixed, &id, sizeof id);
    return name;
}

static void settle(struct host *h)
{
    uint64_t ticket;
    bool good;

    while (host_poll(h, &ticket, &good))
        continue;
}

static void to_host(struct tiers *s, const struct page_label *label)
{
    uint64_t until = clock_us() + 10000000;
    struct host_victim victim;
    int32_t slot;

    if (s->host == NULL || host_find(s->host, &label->name, label->tokens) >= 0)
        return;
    settle(s->host);
    while ((slot = host_take(s->host, label, &victim)) < 0 && clock_us() < until) {
        clock_sleep_us(50); /* we are faster than the threads that make the checksums */
        settle(s->host);
    }
    s->n_skipped += slot < 0;
    if (slot < 0)
        return;
    host_fill(s->host, slot, label);
    host_filled(s->host, slot, true);
}

/* A page of the device's to be written; what it held goes down if it is not there. */
static int32_t take(struct tiers *s)
{
    struct page_label label;
    bool evicted;
    int32_t page = pages_take(s->pages, &evicted, &label);

    must(page >= 0);
    if (evicted)
        to_host(s, &label);
    return page;
}

static bool from_host(struct tiers *s, const struct hash *name, const int32_t *tokens)
{
    int32_t slot = s->host == NULL ? -1 : host_find(s->host, name, tokens);

    if (slot < 0)
        return false;
    host_hold(s->host, slot);
    host_use(s->host, slot);
    host_release(s->host, slot);
    return true;
}

static void serve_turn(struct tiers *s, const uint32_t *ids, uint32_t n)
{
    static const int32_t tokens[BLOCK];
    int32_t held[CONTEXT];
    bool misses = false;

    for (uint32_t i = 0; i < n; i++) {
        struct hash root = {{1}}, name = name_of(ids[i]);
        struct page_label label = {.name = name, .tokens = tokens};
        uint32_t before = s->t->first[ids[i]];
        bool comes;

        label.parent = before == NEVER ? root : name_of(before);
        held[i] = misses ? -1 : pages_find(s->pages, &name);
        s->n_device += held[i] >= 0;
        if (held[i] >= 0)
            continue;
        comes = !misses && from_host(s, &name, tokens);
        misses = !comes; /* all that follows is computed */
        s->n_host += comes;
        held[i] = take(s);
        if (pages_name(s->pages, held[i], &name, &label.parent, tokens) && !comes)
            to_host(s, &label);
    }
    while (n > 0)
        pages_unref(s->pages, held[--n]); /* the end goes first, as in sched.c */
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

static void open_host(struct host **h, const char *path, uint32_t n_slots)
{
    struct host_options o = {.path = path,
                             .max_bytes = (size_t)n_slots * HOST_ALIGN,
                             .page_bytes = PAGE_BYTES,
                             .block_tokens = BLOCK,
                             .name = "test",
                             .pin = pin,
                             .unpin = unpin};

    must_ok(host_open(h, &o));
    host_wait(*h, 10000000);
}

/* The share of pages asked for again that was there; the oracle's is above it. */
static void compare(const struct trace *t, uint32_t n_device, uint32_t n_host, double least)
{
    char path[] = "/tmp/quire-sim-XXXXXX";
    struct tiers s = {.t = t};
    double real, best;
    int fd = n_host > 0 ? mkstemp(path) : -1;

    must(n_host == 0 || fd >= 0);
    must_ok(pages_open(&s.pages, (int)n_device, BLOCK));
    if (n_host > 0)
        open_host(&s.host, path, n_host);
    for (uint32_t i = 0; i < t->n_turns; i++) {
        serve_turn(&s, t->ids + t->turns[i], t->turns[i + 1] - t->turns[i]);
        if (i % 1024 != 0)
            continue;
        pages_check(s.pages);
        if (s.host != NULL)
            host_prove(s.host);
    }
    pages_check(s.pages);
    if (s.host != NULL)
        host_prove(s.host);
    host_close(s.host);
    pages_close(s.pages);
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(path);
    }
    real = 100.0 * (s.n_device + s.n_host) / t->n;
    /* What both tiers hold is held twice: the host's room is what there is. */
    best = 100.0 * oracle(t, n_host > n_device ? n_host : n_device) / t->n;
    ok(real <= best && real >= least * best,
       "device %u, host %u pages: %.2f%% hits (%.2f%% on the device), oracle %.2f%%, endless "
       "%.2f%%; %u not kept",
       n_device, n_host, real, 100.0 * s.n_device / t->n, best, 100.0 * t->n_seen / t->n,
       s.n_skipped);
}

int main(void)
{
    unsigned seed = tap_seed(5);
    struct trace t;

    log_set_level(0);
    make_trace(&t, &seed);
    ok(t.n_seen > t.n / 10 * 9, "%u pages in %u turns, %.1f%% of them asked for before", t.n,
       t.n_turns, 100.0 * t.n_seen / t.n);
    compare(&t, 2000, 0, 0.65);
    compare(&t, 2000, 6000, 0.83);
    compare(&t, 2000, 12000, 0.95);
    compare(&t, 2000, 16000, 0.98);
    free(t.ids);
    free(t.turns);
    free(t.first);
    return tap_done();
}
