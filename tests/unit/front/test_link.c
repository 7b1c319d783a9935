/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a front gives out its slots as link.h says, refuses what the engine would refuse and
 * nothing else, and finds the next engine when one is gone. Method: the test is the engine: it
 * answers the hello, and writes the lane and the statistics page by hand. Slots of random tenants
 * are claimed and released against a list of owners; refusals are compared with exact rows, and at
 * random with a model that plays the engine's balance request by request. */
#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "front/link/link.h"
#include "front/structured/compiled.h"
#include "tests/tap.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define TENANTS     5  /* of the random tests */
#define TOKENS      16 /* of a request: a cache line of the arena, so that nothing is rounded */
#define PLENTY      1000000u

/* What is wrong with an engine that answers. */
enum flaw { FLAW_NONE, FLAW_FULL, FLAW_FOREIGN, FLAW_STATS, FLAW_SHORT, FLAW_LANE };

struct world {
    struct link link;
    char dir[32], path[64];
    struct listener listener; /* -1: there is no engine */
    uint32_t n_slots;         /* of the next lane */
    enum flaw flaw;           /* of the next welcome */
    int control_fd;           /* the engine's end */
    struct lane lane;         /* of the engine */
    int stats_fd;
    struct wire_page *page;
    struct wire_stats *stats; /* in it */
    int32_t tokens[TOKENS];
};

/* --- the engine's side ------------------------------------------------------------------------ */

static void *engine_greet(void *context)
{
    struct world *w = context;
    struct wire_welcome welcome = {
        .magic = WIRE_MAGIC, .layout = wire_layout(), .n_vocab = 77, .max_model_len = 512};
    int fds[ATTACH_FDS] = {[ATTACH_STATS] = w->stats_fd};
    enum wire_visitor visitor;
    pid_t pid;
    uid_t uid;
    int rc;

    for (int i = 0; i < 2000; i++) {
        rc = attach_accept(&w->listener, &w->control_fd, &pid, &uid);
        if (rc != ERR_AGAIN)
            break;
        (void)usleep(1000);
    }
    must_ok(rc);
    for (int i = 0; i < 2000; i++) { /* the front has connected, but may not have written yet */
        rc = attach_read_hello(w->control_fd, &visitor);
        if (rc != ERR_AGAIN)
            break;
        (void)usleep(1000);
    }
    must_ok(rc);
    if (w->flaw == FLAW_FULL || w->flaw == FLAW_FOREIGN) {
        welcome.error = w->flaw == FLAW_FULL ? ERR_OVERLOADED : ERR_VERSION;
        must_ok(attach_send_welcome(w->control_fd, &welcome, NULL));
        return NULL;
    }
    must_ok(lane_create(&w->lane, &fds[ATTACH_LANE], w->n_slots, ARENA_BYTES, 1, 0));
    welcome.lane_bytes = w->lane.lane_bytes - (w->flaw == FLAW_LANE ? WIRE_LINE : 0);
    w->stats->layout = wire_layout() + (w->flaw == FLAW_STATS);
    must_ok(ftruncate(w->stats_fd,
                      w->flaw == FLAW_SHORT ? (off_t)sizeof *w->stats : (off_t)sizeof *w->page));
    must_ok(attach_send_welcome(w->control_fd, &welcome, fds));
    (void)close(fds[ATTACH_LANE]);
    return NULL;
}

/* The engine's end is gone, as when its process dies. */
static void engine_die(struct world *w)
{
    lane_detach(&w->lane);
    if (w->control_fd != -1)
        (void)close(w->control_fd);
    w->control_fd = -1;
}

/* One attempt of the front while an engine with this flaw waits. */
static bool attempt(struct world *w, uint32_t n_slots, enum flaw flaw, uint64_t now_us)
{
    pthread_t thread;
    bool attached;

    w->n_slots = n_slots;
    w->flaw = flaw;
    must_ok(pthread_create(&thread, NULL, engine_greet, w));
    attached = link_try(&w->link, now_us);
    must_ok(pthread_join(thread, NULL));
    return attached;
}

static void world_listen(struct world *w)
{
    must_ok(attach_listen(w->path, &w->listener.fd));
}

static void world_init(struct world *w)
{
    *w = (struct world){.dir = "/tmp/quire-link-XXXXXX", .control_fd = -1};
    w->listener = (struct listener){.who = "test", .fd = -1};
    must_ok(mkdtemp(w->dir) == NULL);
    (void)snprintf(w->path, sizeof w->path, "%s/engine", w->dir);
    w->stats_fd = memfd_create("stats", MFD_CLOEXEC);
    must_ok(ftruncate(w->stats_fd, sizeof *w->page));
    w->page = mmap(NULL, sizeof *w->page, PROT_READ | PROT_WRITE, MAP_SHARED, w->stats_fd, 0);
    must_ok(w->page == MAP_FAILED);
    w->stats = &w->page->stats;
    w->stats->magic = WIRE_MAGIC;
    w->stats->layout = wire_layout();
    must_ok(link_init(&w->link, w->path));
}

static void world_open(struct world *w, uint32_t n_slots)
{
    world_init(w);
    world_listen(w);
    must_ok(!attempt(w, n_slots, FLAW_NONE, 1));
    atomic_store(&w->lane.shared->room_reqs, PLENTY);
    atomic_store(&w->lane.shared->room_tokens, PLENTY);
}

static void world_close(struct world *w)
{
    if (w->link.control_fd != -1)
        link_lost(&w->link, 0);
    engine_die(w);
    if (w->link.page != NULL)
        (void)munmap((void *)(uintptr_t)w->link.page, sizeof *w->link.page);
    (void)munmap(w->page, sizeof *w->page);
    (void)close(w->stats_fd);
    if (w->listener.fd != -1)
        (void)close(w->listener.fd);
    (void)unlink(w->path);
    (void)rmdir(w->dir);
}

static void engine_room(struct world *w, uint32_t reqs, uint32_t tokens, uint32_t n_waiting)
{
    atomic_store(&w->lane.shared->room_reqs, reqs);
    atomic_store(&w->lane.shared->room_tokens, tokens);
    atomic_store(&w->lane.shared->n_waiting, n_waiting);
}

/* Tenant i is named "t<i>"; the statistics page has n of them, with so many waiting. */
static void engine_waiting(struct world *w, const int *waiting, int n)
{
    for (int i = 0; i < n; i++) {
        struct wire_tenant *t = &w->stats->tenants[i];

        memset(t->name, 0, sizeof t->name);
        (void)snprintf(t->name, sizeof t->name, "t%d", i);
        atomic_store(&t->n_waiting, (uint32_t)waiting[i]);
    }
    atomic_store(&w->stats->n_tenants, (uint32_t)n);
}

/* --- the front's side ------------------------------------------------------------------------- */

static struct wire_request request_of(int tenant)
{
    struct wire_request r = {.n_tokens = TOKENS};

    (void)snprintf(r.tenant, sizeof r.tenant, "t%d", tenant);
    return r;
}

static enum wire_refusal asked(struct world *w, int tenant, uint32_t n_tokens, uint32_t flags)
{
    struct wire_request r = request_of(tenant);

    r.n_tokens = n_tokens;
    r.flags = flags;
    return link_refuses(&w->link, &r);
}

static int64_t claim(struct world *w, int tenant)
{
    return link_claim(&w->link, request_of(tenant).tenant);
}

/* A request that the engine has not taken yet; it has a slot. */
static uint32_t queue(struct world *w, int tenant)
{
    struct wire_request r = request_of(tenant);
    int64_t slot = claim(w, tenant);

    must_ok(slot < 0);
    must_ok(lane_submit(&w->link.lane, (uint32_t)slot, r, w->tokens, NULL));
    lane_publish(&w->link.lane);
    return (uint32_t)slot;
}

static int engine_takes(struct world *w)
{
    struct wire_request r;
    uint32_t slot;
    int n = 0;

    while (lane_take(&w->lane, &slot, &r) == 1)
        n++;
    lane_taken(&w->lane);
    return n;
}

/* --- slots ------------------------------------------------------------------------------------ */

/* The slots that a tenant holds, as the link counts them. */
static uint32_t held_of(const struct link *l, int tenant)
{
    struct wire_request r = request_of(tenant);
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n_tenants; i++) {
        if (memcmp(l->tenants[i].name, r.tenant, sizeof r.tenant) == 0)
            n += l->tenants[i].n_held;
    }
    return n;
}

/* Does the link count what the list of owners says? */
static bool slots_agree(struct world *w, const int *owners, uint32_t n_slots, int n_tenants)
{
    uint32_t n_free = 0;
    bool good = true;

    for (uint32_t i = 0; i < n_slots; i++)
        n_free += owners[i] == -1;
    good = w->link.n_free == n_free && w->link.n_tenants <= n_slots;
    for (int t = 0; t < n_tenants; t++) {
        enum wire_refusal want = WIRE_NOT_REFUSED;
        uint32_t n = 0;

        for (uint32_t i = 0; i < n_slots; i++)
            n += owners[i] == t;
        if (n_free == 0)
            want = WIRE_REFUSED_SLOTS;
        else if (n >= 4 * n_free)
            want = WIRE_REFUSED_TENANT;
        good = good && held_of(&w->link, t) == n && asked(w, t, TOKENS, 0) == want;
    }
    return good;
}

static void test_slots(uint32_t n_slots, int n_tenants, unsigned seed)
{
    int owners[64];
    struct world w;
    int n_rounds = 0, n_full = 0;
    bool good = true;

    world_open(&w, n_slots);
    for (uint32_t i = 0; i < n_slots; i++)
        owners[i] = -1;
    for (; n_rounds < 3000 && good; n_rounds++) {
        /* Long stretches of more claims than releases, and the reverse. */
        bool claims = random_next(&seed) % 8 < (n_rounds / 200 % 2 == 0 ? 5u : 3u);
        uint32_t slot = random_next(&seed) % n_slots;

        if (claims) {
            int tenant = (int)(random_next(&seed) % (unsigned)n_tenants);
            bool full = w.link.n_free == 0;
            int64_t got = claim(&w, tenant);

            n_full += full;
            good = full ? got == -1 : got >= 0 && got < n_slots && owners[got] == -1;
            if (good && !full)
                owners[got] = tenant;
        } else if (owners[slot] != -1) {
            w.link.by_slot[slot] = (struct gen *)&w;
            link_release(&w.link, slot);
            owners[slot] = -1;
            good = w.link.by_slot[slot] == NULL;
        }
        good = good && slots_agree(&w, owners, n_slots, n_tenants);
    }
    ok(good && n_full > 0,
       "%u slots of %d tenants: each is given once, and counted (%d rounds, %d times none left)",
       n_slots, n_tenants, n_rounds, n_full);
    world_close(&w);
}

/* Claim for n tenants in turn until each is refused; how many the first of them holds. */
static uint32_t take_all(struct world *w, int n)
{
    bool any = true;

    for (int round = 0; round < 1000 && any; round++) {
        any = false;
        for (int t = 0; t < n; t++) {
            if (asked(w, t, TOKENS, 0) != WIRE_NOT_REFUSED)
                continue;
            must_ok(claim(w, t) < 0);
            any = true;
        }
    }
    return held_of(&w->link, 0);
}

/* The shares that link.c names: 4/5 of the slots for one, 4/9 for each of two. */
static void test_shares(void)
{
    struct world w;

    world_open(&w, 90);
    is_int(take_all(&w, 1), 72, "one tenant has four fifths of 90 slots");
    is_int(asked(&w, 0, TOKENS, 0), WIRE_REFUSED_TENANT, "and is refused by its share");
    is_int(asked(&w, 0, TOKENS, WIRE_RESUMED), WIRE_NOT_REFUSED, "not what it resumes");
    is_int(asked(&w, 0, TOKENS, WIRE_PROBE), WIRE_NOT_REFUSED, "nor a probe");
    is_int(asked(&w, 1, TOKENS, 0), WIRE_NOT_REFUSED, "nor another tenant");
    world_close(&w);
    world_open(&w, 90);
    is_int(take_all(&w, 2), 40, "of two each has four ninths");
    is_int(held_of(&w.link, 1), 40, "the second, too");
    for (int i = 0; i < 10; i++)
        must_ok(claim(&w, 2) < 0);
    is_int(asked(&w, 3, TOKENS, WIRE_RESUMED), WIRE_REFUSED_SLOTS,
           "without a free slot nothing is resumed");
    is_int(claim(&w, 3), -1, "and nothing claimed");
    world_close(&w);
    world_open(&w, 1);
    is_int(asked(&w, 0, TOKENS, 0), WIRE_NOT_REFUSED, "a single slot may be had");
    world_close(&w);
}

/* --- refusals --------------------------------------------------------------------------------- */

/* One request of t0, while others wait. */
static const struct bound {
    const char *name;
    uint32_t room_reqs, room_tokens, n_waiting;
    int n_queued; /* by this front, and not taken yet */
    uint32_t n_tokens;
    int waiting[3]; /* of t0, t1, t2 */
    enum wire_refusal want;
    int queued_of; /* the tenant of those queued */
} bounds[] = {
    {"there is room", 1, 100, 0, 0, 16, {0, 0, 0}, WIRE_NOT_REFUSED, 0},
    {"the queue is full", 0, 100, 5, 0, 16, {0, 0, 0}, WIRE_REFUSED_REQUESTS, 0},
    {"what is queued takes the room", 2, 100, 0, 2, 16, {0, 0, 0}, WIRE_REFUSED_REQUESTS, 0},
    {"one less is queued", 2, 100, 0, 1, 16, {0, 0, 0}, WIRE_NOT_REFUSED, 0},
    {"too many tokens wait", 9, 100, 1, 0, 101, {0, 0, 0}, WIRE_REFUSED_TOKENS, 0},
    {"as many tokens as there is room", 9, 100, 1, 0, 100, {0, 0, 0}, WIRE_NOT_REFUSED, 0},
    {"tokens that are queued count", 9, 100, 0, 2, 69, {0, 0, 0}, WIRE_REFUSED_TOKENS, 0},
    {"with these there is room", 9, 100, 0, 2, 68, {0, 0, 0}, WIRE_NOT_REFUSED, 0},
    {"an empty queue takes any prompt", 9, 100, 0, 0, 5000, {0, 0, 0}, WIRE_NOT_REFUSED, 0},
    {"another has one more than we would", 0, 100, 2, 0, 16, {0, 2, 0}, WIRE_NOT_REFUSED, 0},
    {"another has as many as we would", 0, 100, 1, 0, 16, {0, 1, 0}, WIRE_REFUSED_REQUESTS, 0},
    {"we have one, another three", 0, 100, 4, 0, 16, {1, 3, 0}, WIRE_NOT_REFUSED, 0},
    {"we have one, another two", 0, 100, 3, 0, 16, {1, 2, 0}, WIRE_REFUSED_REQUESTS, 0},
    {"we have most", 0, 100, 5, 0, 16, {3, 2, 0}, WIRE_REFUSED_REQUESTS, 0},
    {"in doubt the engine decides", 0, 100, 4, 0, 16, {2, 2, 0}, WIRE_NOT_REFUSED, 0},
    {"one pushed out is taken by one queued",
     0,
     100,
     2,
     1,
     16,
     {0, 2, 0},
     WIRE_REFUSED_REQUESTS,
     0},
    {"what we have queued counts as ours", 0, 100, 4, 1, 16, {0, 2, 2}, WIRE_REFUSED_REQUESTS, 0},
    {"two others give to two of us", 0, 100, 6, 1, 16, {0, 3, 3}, WIRE_NOT_REFUSED, 0},
    {"what another queues it may not keep", 0, 100, 7, 30, 16, {1, 6, 0}, WIRE_NOT_REFUSED, 1},
    {"nor what a third takes from it", 0, 100, 6, 1, 16, {0, 6, 0}, WIRE_NOT_REFUSED, 2},
    {"a new one that queues takes its share", 0, 100, 3, 1, 16, {0, 3, 0}, WIRE_NOT_REFUSED, 3},
    {"after which there is none for us", 0, 100, 2, 1, 16, {0, 2, 0}, WIRE_REFUSED_REQUESTS, 3},
    {"room goes to the first in the lane", 1, 100, 6, 1, 16, {2, 1, 0}, WIRE_REFUSED_REQUESTS, 1},
    {"and counts as theirs", 2, 100, 6, 2, 16, {1, 1, 0}, WIRE_NOT_REFUSED, 1},
    {"tokens of another give way", 9, 10, 2, 0, 16, {0, 2, 0}, WIRE_NOT_REFUSED, 0},
    {"not if it has no more than we", 9, 10, 1, 0, 16, {0, 1, 0}, WIRE_REFUSED_TOKENS, 0},
};

static void test_bounds(void)
{
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const struct bound *b = &bounds[i];
        struct world w;

        world_open(&w, 64);
        for (int k = 0; k < b->n_queued; k++)
            (void)queue(&w, b->queued_of);
        engine_room(&w, b->room_reqs, b->room_tokens, b->n_waiting);
        engine_waiting(&w, b->waiting, 3);
        is_int(asked(&w, 0, b->n_tokens, 0), b->want, "%s", b->name);
        if (b->want != WIRE_NOT_REFUSED)
            is_int(asked(&w, 0, b->n_tokens, WIRE_RESUMED), WIRE_NOT_REFUSED,
                   "%s: what is resumed passes", b->name);
        is_int(engine_takes(&w), b->n_queued, "%s: the engine takes the rest", b->name);
        world_close(&w);
    }
}

/* The engine's balance for one request of `tenant`: does another give way? */
static bool model_gives(int *waiting, int tenant)
{
    int most = -1;

    for (int t = 0; t <= TENANTS; t++) {
        if (t != tenant && (most == -1 || waiting[t] > waiting[most]))
            most = t;
    }
    if (waiting[most] - 1 < waiting[tenant] + 1)
        return false;
    waiting[most]--;
    waiting[tenant]++;
    return true;
}

/* Does another give way to `tenant` after n_queued requests of tenant TENANTS, the first `room` of
 * which find places? In doubt (two or more of its own, and another with as many): yes. */
static bool model_pushes(const int *waiting, int tenant, int n_queued, int room)
{
    int left[TENANTS + 1] = {0};

    memcpy(left, waiting, TENANTS * sizeof *left);
    for (int t = 0; t < TENANTS; t++) {
        if (t != tenant && waiting[tenant] >= 2 && waiting[t] >= waiting[tenant])
            return true;
    }
    for (int i = 0; i < n_queued; i++) {
        if (i < room)
            left[TENANTS]++;
        else
            (void)model_gives(left, TENANTS);
    }
    return model_gives(left, tenant);
}

static void test_random_bounds(unsigned seed)
{
    int n_of[WIRE_REFUSALS] = {0}, n_queued = 0, waiting[TENANTS];
    uint32_t slots[8];
    struct world w;
    bool good = true;

    world_open(&w, 200);
    for (int i = 0; i < 20000 && good; i++) {
        uint32_t room = random_next(&seed) % 8, room_tokens = random_next(&seed) % 200;
        uint32_t n_waiting = random_next(&seed) % 3, n_tokens = 1 + random_next(&seed) % 100;
        int tenant = (int)(random_next(&seed) % TENANTS);
        bool pushes;
        enum wire_refusal want = WIRE_NOT_REFUSED, got;

        if (random_next(&seed) % 4 == 0 && n_queued < 8) {
            slots[n_queued++] = queue(&w, TENANTS); /* one that asks for nothing here */
        } else if (n_queued == 8) {
            good = engine_takes(&w) == n_queued;
            while (n_queued > 0)
                link_release(&w.link, slots[--n_queued]);
        }
        for (int t = 0; t < TENANTS; t++)
            waiting[t] = (int)(random_next(&seed) % 5);
        engine_room(&w, room, room_tokens, n_waiting);
        engine_waiting(&w, waiting, TENANTS);
        pushes = model_pushes(waiting, tenant, n_queued, (int)room);
        if (n_queued >= (int)room)
            want = pushes ? WIRE_NOT_REFUSED : WIRE_REFUSED_REQUESTS;
        else if (n_queued + (int)n_waiting > 0 &&
                 (uint32_t)n_queued * TOKENS + n_tokens > room_tokens)
            want = pushes ? WIRE_NOT_REFUSED : WIRE_REFUSED_TOKENS;
        got = asked(&w, tenant, n_tokens, 0);
        n_of[got]++;
        good = good && got == want;
    }
    ok(good, "refusals at random: %d passed, %d for requests, %d for tokens",
       n_of[WIRE_NOT_REFUSED], n_of[WIRE_REFUSED_REQUESTS], n_of[WIRE_REFUSED_TOKENS]);
    world_close(&w);
}

/* Nothing of the page is trusted: not the number of tenants. */
static void test_hostile_page(void)
{
    int waiting[WIRE_TENANTS] = {0};
    struct world w;

    waiting[WIRE_TENANTS - 1] = 2;
    world_open(&w, 8);
    engine_room(&w, 0, 0, 2);
    engine_waiting(&w, waiting, WIRE_TENANTS);
    atomic_store(&w.stats->n_tenants, UINT32_MAX);
    is_int(asked(&w, 0, TOKENS, 0), WIRE_NOT_REFUSED, "the last row of the page counts");
    atomic_store(&w.stats->tenants[WIRE_TENANTS - 1].n_waiting, 1);
    is_int(asked(&w, 0, TOKENS, 0), WIRE_REFUSED_REQUESTS, "and none after it");
    world_close(&w);
}

/* --- before a body is read -------------------------------------------------------------------- */

static void test_turns_away(void)
{
    static const int none[2] = {0, 0}, others[2] = {0, 2}, doubt[2] = {2, 2};
    struct wire_request r = request_of(0);
    struct world w;
    const _Atomic uint32_t *counts;

    world_init(&w);
    is_int(link_turns_away(&w.link, r.tenant), 0, "without an engine none is turned away");
    world_close(&w);
    world_open(&w, 8);
    counts = w.lane.shared->refused;
    engine_waiting(&w, none, 2);
    atomic_store(&w.lane.shared->retry_after_s, 17);
    engine_room(&w, 1, 0, 9);
    is_int(link_turns_away(&w.link, r.tenant), 0, "with room for one none is turned away");
    engine_room(&w, 0, PLENTY, 9);
    is_int(link_turns_away(&w.link, r.tenant), 17, "without it everybody, with the engine's time");
    is_int(atomic_load(&counts[WIRE_REFUSED_REQUESTS]), 1, "and is counted where the engine looks");
    atomic_store(&w.lane.shared->retry_after_s, 0);
    is_int(link_turns_away(&w.link, r.tenant), 1, "the time is never 0");
    engine_waiting(&w, others, 2);
    is_int(link_turns_away(&w.link, r.tenant), 0, "not one for which another gives way");
    engine_waiting(&w, doubt, 2);
    is_int(link_turns_away(&w.link, r.tenant), 0, "nor in doubt");
    link_count_refused(&w.link, WIRE_REFUSED_TENANT);
    for (int i = 0; i < WIRE_REFUSALS; i++)
        is_int(atomic_load(&counts[i]),
               i == WIRE_REFUSED_REQUESTS ? 2
               : i == WIRE_REFUSED_TENANT ? 1
                                          : 0,
               "the count of reason %d", i);
    link_lost(&w.link, 5);
    is_int(link_turns_away(&w.link, r.tenant), 0, "none after the engine is gone");
    world_close(&w);
}

/* --- automata of slots ------------------------------------------------------------------------ */

/* End a request with automaton 3 by record o; was the upload of it lost? */
static bool end_loses(struct world *w, struct wire_out o, bool has_automaton)
{
    static struct compiled st = {.sealed = -1};
    struct upload_place *place = &w->link.uploads.places[3];
    uint32_t slot = (uint32_t)claim(w, 0);

    st.n_refs = 2; /* the test's, and the place's */
    *place = (struct upload_place){.compiled = &st, .n_users = 1};
    w->link.uploads.vocabulary = true;
    w->link.automaton[slot] = has_automaton ? 4 : 0;
    link_end(&w->link, slot, &o);
    is_int(place->n_users, !has_automaton, "a user less of the automaton it named");
    is_int(w->link.automaton[slot], 0, "and none of the slot");
    ok((place->compiled == NULL) == (st.n_refs == 1), "a lost one is not referred to");
    return place->compiled == NULL;
}

static void test_automata(void)
{
    const struct wire_out lost = {.finish = WIRE_FIN_ERROR, .value = ERR_NO_FORM};
    const struct wire_out other = {.finish = WIRE_FIN_ERROR, .value = ERR_OVERLOADED};
    const struct wire_out stop = {.finish = WIRE_FIN_STOP, .value = ERR_NO_FORM};
    struct world w;

    world_open(&w, 8);
    ok(!end_loses(&w, stop, true) && w.link.uploads.vocabulary, "a good end keeps the upload");
    ok(!end_loses(&w, other, true) && w.link.uploads.vocabulary, "another error, too");
    ok(end_loses(&w, lost, true) && !w.link.uploads.vocabulary, "one that the engine lost is sent "
                                                                "again, with the vocabulary");
    ok(!end_loses(&w, lost, false) && !w.link.uploads.vocabulary, "without one the vocabulary is");
    is_int(w.link.n_free, 8, "all slots are back");
    w.link.uploads.places[3].compiled = NULL; /* the test's own */
    world_close(&w);
}

/* --- engines that come and go ----------------------------------------------------------------- */

static int n_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    must_ok(dir == NULL);
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

/* An engine that cannot be used: nothing is kept of it, and it is asked again after a second. */
static void test_unusable(enum flaw flaw, const char *name)
{
    uint64_t now_us = 1000000;
    struct link_state state;
    struct world w;
    int n;

    world_init(&w);
    world_listen(&w);
    n = n_descriptors();
    ok(!attempt(&w, 8, flaw, now_us), "%s: not attached", name);
    engine_die(&w);
    is_int(n_descriptors(), n, "%s: no descriptor is left open", name);
    link_read_state(&w.link, &state, now_us);
    ok(!state.attached && w.link.control_fd == -1 && w.link.by_slot == NULL, "%s: nothing is kept",
       name);
    is_int(w.link.foreign_us, flaw == FLAW_FOREIGN ? now_us : 0, "%s: another build's is noted",
           name);
    ok(!link_try(&w.link, now_us + 999999), "%s: within a second it is not asked", name);
    is_int(w.link.retry_us, now_us + 1000000, "%s: and the pause is not prolonged", name);
    ok(attempt(&w, 8, FLAW_NONE, now_us + 1000000), "%s: then a good one is found", name);
    is_int(w.link.foreign_us, 0, "%s: and nothing of another build", name);
    world_close(&w);
}

static void test_absent(void)
{
    static struct wire_stats stats;
    struct link_state state;
    struct world w;

    world_init(&w);
    ok(!link_try(&w.link, 100), "without a socket nothing is attached");
    is_int(w.link.retry_us, 100 + 50000, "it is looked for again after 50 ms");
    ok(!link_copy_stats(&w.link, &stats), "there are no statistics yet");
    link_read_state(&w.link, &state, 100);
    ok(!state.attached && state.n_vocab == 0 && state.max_model_len == 0, "nor a state");
    world_close(&w);
}

static void test_state(void)
{
    static const struct {
        enum wire_engine_state state;
        bool draining, asleep, waking;
    } rows[] = {{WIRE_SERVING, false, false, false},
                {WIRE_DRAINING, true, false, false},
                {WIRE_ASLEEP, false, true, false},
                {WIRE_WAKING, false, false, true}};
    struct link_state got;
    struct world w;

    world_open(&w, 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        atomic_store(&w.lane.shared->engine_state, rows[i].state);
        link_read_state(&w.link, &got, 0);
        ok(got.attached && got.draining == rows[i].draining && got.asleep == rows[i].asleep &&
               got.waking == rows[i].waking,
           "state %d is seen", (int)rows[i].state);
    }
    atomic_store(&w.lane.shared->heartbeat_us, 700);
    atomic_store(&w.lane.shared->progress_us, 400);
    atomic_store(&w.lane.shared->n_running, 3);
    atomic_store(&w.lane.shared->n_waiting, 5);
    link_read_state(&w.link, &got, 1000);
    ok(got.heartbeat_age_us == 300 && got.progress_age_us == 600, "ages are of the two stamps");
    ok(got.n_running == 3 && got.n_waiting == 5, "and the load is the engine's");
    ok(got.n_vocab == 77 && got.max_model_len == 512, "sizes are the welcome's");
    link_read_state(&w.link, &got, 500);
    ok(got.heartbeat_age_us == 0 && got.progress_age_us == 100, "a stamp of later has no age");
    world_close(&w);
}

static void test_lost(void)
{
    static struct wire_stats stats;
    struct link_state state;
    struct world w;
    int n;

    world_init(&w);
    world_listen(&w);
    n = n_descriptors();
    must_ok(!attempt(&w, 8, FLAW_NONE, 1));
    ok(!link_try(&w.link, 10000000), "one that is attached looks for no other");
    atomic_store(&w.stats->values[METRIC_generation_tokens], 41);
    for (int i = 0; i < 5; i++)
        (void)claim(&w, i % 2);
    engine_die(&w);
    link_lost(&w.link, 5000);
    is_int(n_descriptors(), n, "a lost engine leaves no descriptor");
    ok(w.link.control_fd == -1 && w.link.n_free == 0 && w.link.by_slot == NULL &&
           w.link.lane.shared == NULL,
       "nor a lane, nor slots");
    link_read_state(&w.link, &state, 6000);
    ok(!state.attached && state.max_model_len == 512, "its sizes are still known");
    ok(link_copy_stats(&w.link, &stats) && stats.values[METRIC_generation_tokens] == 41,
       "and its last statistics");
    ok(!link_try(&w.link, 4999), "it is not looked for before the loss");
    ok(attempt(&w, 20, FLAW_NONE, 5000), "the next engine is found at once");
    is_int(w.link.n_free, 20, "with all slots of its lane");
    is_int(held_of(&w.link, 0) + held_of(&w.link, 1), 0, "of which none is held");
    atomic_store(&w.lane.shared->room_reqs, PLENTY);
    atomic_store(&w.lane.shared->room_tokens, PLENTY);
    is_int(take_all(&w, 1), 16, "and the share is of the new number");
    world_close(&w);
}

int main(void)
{
    unsigned seed = tap_seed(11);

    log_set_level(0); /* losses and flaws are logged */
    test_absent();
    test_slots(1, 2, seed);
    test_slots(7, 9, seed);
    test_slots(64, 4, seed);
    test_shares();
    test_bounds();
    test_random_bounds(seed);
    test_hostile_page();
    test_turns_away();
    test_automata();
    test_state();
    test_unusable(FLAW_FULL, "no lane is free");
    test_unusable(FLAW_FOREIGN, "another build");
    test_unusable(FLAW_STATS, "another build's statistics");
    test_unusable(FLAW_SHORT, "a page that ends early");
    test_unusable(FLAW_LANE, "a lane of another size");
    test_lost();
    return tap_done();
}
