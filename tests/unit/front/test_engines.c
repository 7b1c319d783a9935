/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: of several engines a front attaches to those that answer and serve the same model, without
 * waiting for the others, and a request goes to the one where it costs least. Method: the test is
 * the engines: it answers hellos when it likes, and writes lanes and pages by hand. Choices are
 * compared with exact rows; looked-up prefixes, at random, with a list of what each engine has. */
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "front/link/engines.h"
#include "ipc/prefix.h"
#include "tests/tap.h"

#define N           3
#define ARENA_BYTES ((size_t)1 << 20)
#define PAGE_TOKENS 4
#define PLENTY      1000000u
#define NOW_US      100000000u

struct fake {
    char path[64];
    struct listener listener;
    int control_fd; /* the engine's end */
    struct lane lane;
    int page_fd;
    struct wire_page *page;
    uint8_t fingerprint; /* of the next welcome */
};

struct world {
    struct engines engines;
    char dir[40];
    struct fake fakes[N];
};

static void fake_open(struct fake *k, const char *dir, int i)
{
    *k = (struct fake){.control_fd = -1, .listener = {.who = "test", .fd = -1}};
    (void)snprintf(k->path, sizeof k->path, "%s/%d", dir, i);
    k->page_fd = memfd_create("page", MFD_CLOEXEC);
    must_ok(ftruncate(k->page_fd, sizeof *k->page));
    k->page = mmap(NULL, sizeof *k->page, PROT_READ | PROT_WRITE, MAP_SHARED, k->page_fd, 0);
    must_ok(k->page == MAP_FAILED);
    k->page->stats.magic = WIRE_MAGIC;
    k->page->stats.layout = wire_layout();
    must_ok(attach_listen(k->path, &k->listener.fd));
}

/* Answer the hello that waits; which visitor it is from. */
static enum wire_visitor fake_greet(struct fake *k)
{
    struct wire_welcome welcome = {.magic = WIRE_MAGIC,
                                   .layout = wire_layout(),
                                   .n_vocab = 77,
                                   .max_model_len = 512,
                                   .page_tokens = PAGE_TOKENS,
                                   .fingerprint = {k->fingerprint}};
    int fds[ATTACH_FDS] = {[ATTACH_STATS] = k->page_fd};
    enum wire_visitor visitor;
    pid_t pid;
    uid_t uid;

    must_ok(attach_accept(&k->listener, &k->control_fd, &pid, &uid));
    must_ok(attach_read_hello(k->control_fd, &visitor));
    must_ok(lane_create(&k->lane, &fds[ATTACH_LANE], 8, ARENA_BYTES, 1, 0));
    welcome.lane_bytes = k->lane.lane_bytes;
    atomic_store(&k->lane.shared->heartbeat_us, NOW_US);
    atomic_store(&k->lane.shared->progress_us, NOW_US);
    atomic_store(&k->lane.shared->engine_state, WIRE_SERVING);
    atomic_store(&k->lane.shared->room_reqs, PLENTY);
    atomic_store(&k->lane.shared->room_tokens, PLENTY);
    must_ok(attach_send_welcome(k->control_fd, &welcome, fds));
    (void)close(fds[ATTACH_LANE]);
    return visitor;
}

static void fake_die(struct fake *k)
{
    lane_detach(&k->lane);
    if (k->control_fd != -1)
        (void)close(k->control_fd);
    k->control_fd = -1;
}

static void world_open(struct world *w)
{
    char sockets[256];

    memset(w, 0, sizeof *w);
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/quire-engines-XXXXXX");
    must_ok(mkdtemp(w->dir) == NULL);
    for (int i = 0; i < N; i++)
        fake_open(&w->fakes[i], w->dir, i);
    (void)snprintf(sockets, sizeof sockets, "%s, %s,%s", w->fakes[0].path, w->fakes[1].path,
                   w->fakes[2].path);
    must_ok(engines_init(&w->engines, sockets, 1));
}

/* Attach to engine i, in two calls. */
static bool world_attach(struct world *w, int i, uint64_t now_us)
{
    if (engines_try(&w->engines, i, now_us))
        return true;
    (void)fake_greet(&w->fakes[i]);
    return engines_try(&w->engines, i, now_us + 1);
}

static void world_lose(struct world *w, int i)
{
    fake_die(&w->fakes[i]);
    link_lost(&w->engines.links[i], 0);
}

static void world_close(struct world *w)
{
    for (int i = 0; i < N; i++) {
        struct link *link = &w->engines.links[i];

        if (link->control_fd != -1)
            link_lost(link, 0);
        if (link->calling_fd != -1)
            (void)close(link->calling_fd);
        if (link->page != NULL)
            (void)munmap((void *)(uintptr_t)link->page, sizeof *link->page);
        fake_die(&w->fakes[i]);
        (void)munmap(w->fakes[i].page, sizeof *w->fakes[i].page);
        (void)close(w->fakes[i].page_fd);
        (void)close(w->fakes[i].listener.fd);
        (void)unlink(w->fakes[i].path);
    }
    (void)rmdir(w->dir);
}

static void world_open_all(struct world *w)
{
    world_open(w);
    for (int i = 0; i < N; i++)
        must_ok(!world_attach(w, i, 1));
}

/* --- the list --------------------------------------------------------------------------------- */

static void test_list(void)
{
    static struct engines e;
    char many[ENGINES_MAX * 4 + ENGINES_PATH] = "";

    must_ok(engines_init(&e, "/run/a", 1));
    ok(e.n == 1 && strcmp(e.links[0].path, "/run/a") == 0, "one socket");
    ok(e.links[0].patience_ms > 0 && !e.links[0].chooses, "whose engine has nothing to publish");
    must_ok(engines_init(&e, " /run/a,/run/b ,\t/run/c,", 1));
    ok(e.n == 3 && strcmp(e.links[1].path, "/run/b") == 0 && strcmp(e.links[2].path, "/run/c") == 0,
       "a list with commas and blanks");
    ok(e.links[2].patience_ms == 0 && e.links[2].chooses, "whose engines are not waited for");
    is_int(engines_init(&e, "", 1), ERR_INVALID, "none is an error");
    is_int(engines_init(&e, " , ", 1), ERR_INVALID, "so are commas alone");
    is_int(engines_init(&e, "/run/a,/run/b,/run/a", 1), ERR_INVALID, "and one twice");
    for (int i = 0; i <= ENGINES_MAX; i++)
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), "/%02d,", i);
    is_int(engines_init(&e, many, 1), ERR_INVALID, "and one more than %d", ENGINES_MAX);
    many[strlen(many) - 4] = '\0';
    is_int(engines_init(&e, many, 1), ERR_OK, "but not %d", ENGINES_MAX);
    must_ok(engines_init(&e, "/run/quire/engine.sock", 3));
    ok(e.n == 3 && strcmp(e.links[0].path, "/run/quire/0/engine.sock") == 0 &&
           strcmp(e.links[2].path, "/run/quire/2/engine.sock") == 0,
       "with a size each has a folder");
    must_ok(engines_init(&e, "e.sock", 2));
    is_text(e.links[1].path, "1/e.sock", "also below the working directory");
    (void)memset(many, 'x', ENGINES_PATH);
    many[ENGINES_PATH] = '\0';
    is_int(engines_init(&e, many, 1), ERR_INVALID, "a path that is no socket's is refused");
    many[ENGINES_PATH - 1] = '\0';
    is_int(engines_init(&e, many, 1), ERR_OK, "not one byte less");
    is_int(engines_init(&e, many, 2), ERR_INVALID, "but with a folder in it");
    is_int(engines_init(&e, "/run/a,/run/b", 2), ERR_INVALID, "a list and a size are an error");
}

/* --- attaching -------------------------------------------------------------------------------- */

static void test_attach(void)
{
    struct world w;
    struct link *link = &w.engines.links[0];

    world_open(&w);
    ok(!engines_serve(&w.engines) && !engines_drain(&w.engines), "before any engine none serves");
    ok(!engines_try(&w.engines, 0, NOW_US) && link->calling_fd != -1,
       "an engine that does not answer is called, and not waited for");
    ok(world_attach(&w, 1, NOW_US), "meanwhile another is attached");
    ok(engines_serve(&w.engines), "and serves");
    ok(!engines_try(&w.engines, 0, NOW_US + 1999999) && link->calling_fd != -1,
       "the call goes on for two seconds");
    ok(!engines_try(&w.engines, 0, NOW_US + 2000001) && link->calling_fd == -1,
       "then it is given up");
    is_int(link->retry_us, NOW_US + 2000001 + 50000, "and repeated");
    ok(!engines_try(&w.engines, 0, NOW_US + 3000000) && link->calling_fd != -1, "it is");
    {
        int fd;
        pid_t pid;
        uid_t uid;

        /* The first call's connection, which has ended. */
        must_ok(attach_accept(&w.fakes[0].listener, &fd, &pid, &uid));
        (void)close(fd);
    }
    is_int(fake_greet(&w.fakes[0]), WIRE_FRONT_CHOOSES, "the hello asks for what it holds");
    ok(engines_try(&w.engines, 0, NOW_US + 3000001), "now it has answered");
    ok(engines_at(&w.engines, &link->control_fd) == link &&
           engines_at(&w.engines, &w.engines) == NULL,
       "a link is known by the address of its descriptor");
    w.fakes[2].fingerprint = 1;
    ok(!world_attach(&w, 2, NOW_US) && w.engines.links[2].control_fd == -1,
       "one with other pages is refused");
    fake_die(&w.fakes[2]);
    ok(!engines_try(&w.engines, 2, NOW_US + 999999), "for a second");
    world_lose(&w, 0);
    world_lose(&w, 1);
    ok(world_attach(&w, 2, NOW_US + 2000000), "with the others gone it is the model");
    ok(!world_attach(&w, 1, NOW_US + 2000000), "and they are refused");
    world_close(&w);
}

/* --- the choice ------------------------------------------------------------------------------- */

/* The state of an engine, and of a request of 1000 tokens. */
struct load {
    uint32_t n_running, n_waiting, todo, held;
    enum wire_engine_state state;
    uint32_t still_s; /* seconds without a sign of life */
    bool full, away;
};

#define BUSY(n, tokens)                                           \
    {                                                             \
        .n_running = (n), .todo = (tokens), .state = WIRE_SERVING \
    }
#define HAS(n, tokens, h)                                                      \
    {                                                                          \
        .n_running = (n), .todo = (tokens), .held = (h), .state = WIRE_SERVING \
    }

static const struct choice {
    const char *name;
    struct load at[N];
    int want; /* -1: none */
    enum wire_refusal why;
} choices[] = {
    {"the fewest requests", {BUSY(3, 0), BUSY(1, 0), BUSY(2, 0)}, 1, 0},
    {"the fewest tokens", {BUSY(1, 900), BUSY(1, 500), BUSY(1, 400)}, 2, 0},
    {"waiting ones count", {{.n_waiting = 2, .state = WIRE_SERVING}, BUSY(1, 0), BUSY(3, 0)}, 1, 0},
    {"the prefix", {BUSY(0, 0), HAS(0, 0, 800), HAS(0, 0, 400)}, 1, 0},
    {"the prefix, of one with some more work", {BUSY(0, 0), HAS(2, 500, 800), BUSY(0, 0)}, 1, 0},
    {"not the prefix of one with too much", {BUSY(0, 0), HAS(9, 1500, 800), BUSY(1, 0)}, 0, 0},
    {"nor with too many tokens", {BUSY(1, 0), HAS(0, 1900, 800), BUSY(2, 0)}, 0, 0},
    {"not one that sleeps",
     {{.held = 900, .state = WIRE_ASLEEP}, BUSY(9, 5000), BUSY(10, 5000)},
     1,
     0},
    {"nor one that wakes", {{.state = WIRE_WAKING}, BUSY(9, 5000), BUSY(10, 5000)}, 1, 0},
    {"but when the others have much work",
     {{.state = WIRE_ASLEEP}, BUSY(90, 50000), BUSY(99, 50000)},
     0,
     0},
    {"not one that drains",
     {{.held = 900, .state = WIRE_DRAINING}, BUSY(90, 90000), BUSY(91, 90000)},
     1,
     0},
    {"one that drains if all do",
     {{.n_running = 2, .state = WIRE_DRAINING},
      {.n_running = 1, .state = WIRE_DRAINING},
      {.n_running = 2, .state = WIRE_DRAINING}},
     1,
     0},
    {"not one that stands still",
     {{.held = 900, .state = WIRE_SERVING, .still_s = 4}, BUSY(9, 5000), BUSY(10, 5000)},
     1,
     0},
    {"a second is no standstill",
     {{.held = 900, .state = WIRE_SERVING, .still_s = 1}, BUSY(1, 0), BUSY(1, 0)},
     0,
     0},
    {"not one that refuses", {{.held = 900, .full = true}, BUSY(9, 5000), BUSY(10, 5000)}, 1, 0},
    {"if all refuse, the reason",
     {{.full = true, .n_running = 3},
      {.full = true, .n_running = 2},
      {.full = true, .n_running = 4}},
     1,
     WIRE_REFUSED_REQUESTS},
    {"not one that is away", {{.held = 900, .away = true}, BUSY(9, 0), {.away = true}}, 1, 0},
    {"none", {{.away = true}, {.away = true}, {.away = true}}, -1, 0},
};

static void load_set(struct world *w, const struct load *at, uint32_t *held)
{
    for (int i = 0; i < N; i++) {
        struct wire_lane *lane;

        held[i] = at[i].held;
        if (at[i].away) {
            world_lose(w, i);
            continue;
        }
        lane = w->fakes[i].lane.shared;
        atomic_store(&lane->n_running, at[i].n_running);
        atomic_store(&lane->n_waiting, at[i].n_waiting);
        atomic_store(&lane->todo_tokens, at[i].todo);
        atomic_store(&lane->engine_state, at[i].state);
        atomic_store(&lane->heartbeat_us, NOW_US - at[i].still_s * UINT64_C(1000000));
        atomic_store(&lane->room_reqs, at[i].full ? 0 : PLENTY);
    }
}

static void test_choices(void)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct choice *c = &choices[i];
        struct wire_request r = {.n_tokens = 1000};
        enum wire_refusal why;
        struct link *got;
        struct world w;
        uint32_t held[N];

        world_open_all(&w);
        load_set(&w, c->at, held);
        for (w.engines.last = 0; w.engines.last < N - 1; w.engines.last++) {
            int before = w.engines.last;

            got = engines_choose(&w.engines, &r, held, NOW_US, &why);
            is_int(got == NULL ? -1 : got - w.engines.links, c->want, "%s (after %d)", c->name,
                   before);
            is_int(why, c->why, "%s: refused or not", c->name);
            w.engines.last = before;
        }
        world_close(&w);
    }
}

/* Equals take turns; what this front has sent and no engine has taken counts. */
static void test_turns(void)
{
    struct wire_request r = {.n_tokens = 10};
    int32_t tokens[10] = {0};
    enum wire_refusal why;
    int n_of[N] = {0};
    struct world w;
    bool good = true;

    world_open_all(&w);
    for (int k = 0; k < 9; k++)
        n_of[engines_choose(&w.engines, &r, NULL, NOW_US, &why) - w.engines.links]++;
    ok(n_of[0] == 3 && n_of[1] == 3 && n_of[2] == 3, "equals take turns");
    for (int k = 0; k < 9; k++) {
        struct link *link = engines_choose(&w.engines, &r, NULL, NOW_US, &why);
        int64_t slot = link_claim(link, r.tenant);
        uint32_t n[N];

        must_ok(lane_submit(&link->lane, (uint32_t)slot, r, tokens, NULL));
        link->unpublished = true;
        link_publish(link);
        for (int i = 0; i < N; i++) {
            uint64_t n_tokens;

            lane_backlog(&w.engines.links[i].lane, &n[i], &n_tokens);
        }
        for (int i = 0; i < N; i++)
            good = good && n[i] <= n[0] + 1 && n[0] <= n[i] + 1;
    }
    ok(good, "what waits in the lanes is shared out");
    world_close(&w);
}

/* Other fronts send as many as this one between two looks of an engine: of four fronts each closes
 * a quarter of the gap to an engine with less to do. */
static void test_crowd(void)
{
    struct wire_request r = {.n_tokens = 1000};
    int32_t tokens[1000] = {0};
    uint64_t gap = 4 * 4 * (1000 + 64), n_sent = 0;
    enum wire_refusal why;
    struct world w;

    world_open_all(&w);
    for (int i = 0; i < N; i++) {
        struct wire_lane *lane = w.fakes[i].lane.shared;

        atomic_store(&lane->room_reqs, PLENTY);
        atomic_store(&lane->heartbeat_us, NOW_US);
        atomic_store(&lane->n_fronts, 4);
        atomic_store(&lane->todo_tokens, i == 1 ? 0 : (uint32_t)gap);
    }
    for (struct link *link;
         (link = engines_choose(&w.engines, &r, NULL, NOW_US, &why)) == &w.engines.links[1];
         n_sent++) {
        int64_t slot = link_claim(link, r.tenant);

        must_ok(lane_submit(&link->lane, (uint32_t)slot, r, tokens, NULL));
        link->unpublished = true;
        link_publish(link);
    }
    ok(n_sent >= 4 && n_sent <= 5, "of four fronts each closes a quarter of a gap: %llu requests",
       (unsigned long long)n_sent);
    world_close(&w);
}

/* --- what each engine has --------------------------------------------------------------------- */

#define LOOK_TOKENS (PAGE_TOKENS * 150 + 3)

static void hold(struct world *w, int i, const struct hash *name)
{
    struct wire_held *held = &w->fakes[i].page->held;
    _Atomic uint32_t *bucket = held->tags[wire_held_bucket(name->bytes)];
    int k = 0;

    while (atomic_load(&bucket[k]) != 0)
        k++;
    atomic_store(&bucket[k], wire_held_tag(name->bytes));
}

static void test_look(unsigned seed)
{
    int32_t tokens[LOOK_TOKENS];
    uint32_t held[N], n_good = 0, n_far = 0, n_rounds = 300;
    /* Two tenants, and an adapter of the second one. */
    const struct wire_request kinds[3] = {
        {.salt = {0}}, {.salt = {9, 1}}, {.salt = {9, 1}, .adapter = {7}}};
    struct world w;

    world_open(&w);
    for (int i = 0; i < N; i++)
        w.fakes[i].fingerprint = 5;
    (void)memset(held, 0xff, sizeof held);
    engines_look(&w.engines, tokens, LOOK_TOKENS, &kinds[0], held);
    ok(held[0] == 0 && held[2] == 0, "without engines nothing is held");
    must_ok(!world_attach(&w, 0, 1));
    must_ok(!world_attach(&w, 1, 1));
    for (uint32_t round = 0; round < n_rounds; round++) {
        uint32_t want[N] = {0};
        const struct wire_request *kind = &kinds[round % 3];
        struct hash fingerprint = {{5}}, name = prefix_root(&fingerprint, kind->salt);
        uint32_t n_tokens = random_next(&seed) % LOOK_TOKENS + 1;

        if (kind->adapter[0] != 0)
            name = prefix_adapted(&name, kind->adapter);
        for (uint32_t t = 0; t < n_tokens; t++)
            tokens[t] = (int32_t)(random_next(&seed) % 1000);
        for (int i = 0; i < 2; i++)
            want[i] =
                random_next(&seed) % 3 == 0 ? 0 : random_next(&seed) % (n_tokens / PAGE_TOKENS + 1);
        for (uint32_t p = 0; p < n_tokens / PAGE_TOKENS; p++) {
            name = prefix_name(&name, tokens + (size_t)p * PAGE_TOKENS, PAGE_TOKENS);
            /* A gap ends a prefix, whatever comes after it. */
            for (int i = 0; i < 2; i++) {
                if (p < want[i] || p > want[i] + 3)
                    hold(&w, i, &name);
            }
        }
        engines_look(&w.engines, tokens, n_tokens, kind, held);
        n_good +=
            held[0] == want[0] * PAGE_TOKENS && held[1] == want[1] * PAGE_TOKENS && held[2] == 0;
        n_far += want[0] > 40 && want[1] > 40;
        engines_look(&w.engines, tokens, n_tokens, &kinds[(round + 1) % 3], held);
        n_good -= held[0] != 0 || held[1] != 0; /* of another tenant or adapter */
        for (int i = 0; i < 2; i++)
            memset(&w.fakes[i].page->held, 0, sizeof w.fakes[i].page->held);
    }
    ok(n_good == n_rounds && n_far > 20,
       "%u prefixes are found where they are, as far as they go, "
       "and under their salt alone (%u long ones)",
       n_good, n_far);
    world_close(&w);
}

/* --- all engines as one ----------------------------------------------------------------------- */

static void test_state(void)
{
    static const struct {
        enum wire_engine_state at[N];
        bool draining, asleep, waking;
    } rows[] = {
        {{WIRE_SERVING, WIRE_ASLEEP, WIRE_DRAINING}, false, false, false},
        {{WIRE_DRAINING, WIRE_DRAINING, WIRE_DRAINING}, true, false, false},
        {{WIRE_ASLEEP, WIRE_ASLEEP, WIRE_ASLEEP}, false, true, false},
        {{WIRE_ASLEEP, WIRE_WAKING, WIRE_ASLEEP}, false, false, true},
        {{WIRE_WAKING, WIRE_ASLEEP, WIRE_WAKING}, false, false, true},
        {{WIRE_WAKING, WIRE_SERVING, WIRE_ASLEEP}, false, false, false},
        {{WIRE_ASLEEP, WIRE_SERVING, WIRE_WAKING}, false, false, false},
    };
    char tenant[WIRE_TENANT_BYTES] = "";
    struct link_state got;
    struct world w;

    world_open_all(&w);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (int i = 0; i < N; i++) {
            atomic_store(&w.fakes[i].lane.shared->engine_state, rows[r].at[i]);
            atomic_store(&w.fakes[i].lane.shared->n_running, (uint32_t)i + 1);
            atomic_store(&w.fakes[i].lane.shared->heartbeat_us, NOW_US - (uint64_t)i);
        }
        engines_read_state(&w.engines, &got, NOW_US + 10);
        ok(got.attached && got.draining == rows[r].draining && got.asleep == rows[r].asleep &&
               got.waking == rows[r].waking,
           "states %d %d %d are one", (int)rows[r].at[0], (int)rows[r].at[1], (int)rows[r].at[2]);
        is_int(got.n_running, 6, "the load is the sum");
        is_int(got.heartbeat_age_us, 10, "the age is that of the one that lives best");
    }
    for (int i = 0; i < N; i++) {
        atomic_store(&w.fakes[i].lane.shared->retry_after_s, 7 - (uint32_t)i);
        atomic_store(&w.fakes[i].lane.shared->room_reqs, 0);
    }
    is_int(engines_retry_after(&w.engines), 5, "Retry-After is that of the quickest");
    is_int(engines_turns_away(&w.engines, tenant), 5,
           "when all are full, a request is turned away");
    is_int(atomic_load(&w.fakes[2].lane.shared->refused[WIRE_REFUSED_REQUESTS]), 1,
           "and counted once");
    atomic_store(&w.fakes[0].lane.shared->room_reqs, 1);
    is_int(engines_turns_away(&w.engines, tenant), 0, "when one has room it is not");
    w.engines.links[0].drains = true;
    ok(engines_serve(&w.engines) && !engines_drain(&w.engines), "one of three drains");
    for (int i = 0; i < N; i++)
        w.engines.links[i].drains = true;
    ok(!engines_serve(&w.engines) && engines_drain(&w.engines), "all do");
    for (int i = 0; i < N; i++)
        world_lose(&w, i);
    engines_read_state(&w.engines, &got, NOW_US);
    ok(!got.attached && got.max_model_len == 512, "without engines the sizes are still known");
    is_int(engines_turns_away(&w.engines, tenant), 0, "and no request is turned away");
    is_int(engines_retry_after(&w.engines), 0, "there is no Retry-After");
    ok(!engines_drain(&w.engines), "none drains");
    world_close(&w);
}

int main(void)
{
    unsigned seed = tap_seed(5);

    log_set_level(0); /* losses are logged */
    test_list();
    test_attach();
    test_choices();
    test_turns();
    test_crowd();
    test_look(seed);
    test_state();
    return tap_done();
}
