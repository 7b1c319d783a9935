/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a front that writes anything it likes into its lane harms no other: the engine refuses or
 * drops it, lives, and serves a well-behaved front beside it. Method: a real quire-engine with
 * the demo model; hostile fronts attach one after another and scribble; an honest one asks. */
#include <fcntl.h>
#include <float.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/must.h"
#include "grammar/trie.h"
#include "ipc/attach.h"
#include "ipc/lane.h"
#include "tests/connect.h"
#include "tests/tap.h"

static char dir[64];
static char sock[96];
static pid_t engine;

struct peer {
    struct lane lane;
    struct wire_welcome welcome;
    int control;
    int fds[ATTACH_FDS];
};

static void start_engine(void)
{
    char binary[4096];
    char model[4096];
    const char *builddir = getenv("builddir");

    (void)snprintf(binary, sizeof binary, "%s/quire-engine", builddir == NULL ? "." : builddir);
    (void)snprintf(model, sizeof model, "%s", tap_path("tools/demo-model/model"));
    engine = fork();
    if (engine == 0) {
        int null = open("/dev/null", O_WRONLY);

        (void)dup2(null, 2);
        (void)execl(binary, binary, "--model", model, "--engine-socket", sock, "--device", "cpu",
                    "--lane-slots", "64", "--lane-arena-bytes", "1M", (char *)NULL);
        _exit(127);
    }
}

static int peer_open(struct peer *p)
{
    int rc = ERR_ENGINE_GONE;

    *p = (struct peer){.control = -1};
    for (int i = 0; i < 200 && rc != ERR_OK; i++) {
        rc = attach_connect(sock, 1000, &p->control, &p->welcome, p->fds);
        if (rc != ERR_OK)
            clock_sleep_us(50000);
    }
    if (rc == ERR_OK)
        rc = lane_attach(&p->lane, p->fds[ATTACH_LANE], p->welcome.lane_bytes);
    p->lane.wake_fd = p->control;
    return rc;
}

static void peer_close(struct peer *p)
{
    lane_detach(&p->lane);
    for (int i = 0; i < ATTACH_FDS; i++)
        (void)close(p->fds[i]);
    (void)close(p->control);
}

/* One request, which the engine may take at once. */
static int submit(struct lane *l, uint32_t slot, struct wire_request r, const int32_t *tokens,
                  const int32_t *extra)
{
    int rc = lane_submit(l, slot, r, tokens, extra);

    lane_publish(l);
    return rc;
}

/* Ask for n tokens greedily; the number that came before an honest end, or -1. */
static int peer_ask(struct peer *p, uint32_t slot, int n)
{
    int32_t prompt[4] = {70, 71, 72, 73};
    struct wire_request r = {
        .n_tokens = 4,
        .flags = WIRE_IGNORE_EOS,
        .arrival_us = clock_us(),
        .generate = {.n_prompt = 4, .max_tokens = (uint32_t)n, .sampling = sampling_greedy()}};
    uint64_t until = clock_us() + 20000000u;
    int got = 0;

    if (submit(&p->lane, slot, r, prompt, NULL) != ERR_OK)
        return -1;
    while (clock_us() < until) {
        struct pollfd f = {.fd = p->control, .events = POLLIN};
        struct wire_out o;

        while (lane_record(&p->lane, slot, &o)) {
            got += o.kind == WIRE_TOKEN;
            if (o.kind == WIRE_FINISHED)
                return o.finish == WIRE_FIN_LENGTH ? got : -1;
        }
        (void)lane_ready(&p->lane, slot / 64);
        if (lane_front_sleep(&p->lane))
            (void)poll(&f, 1, 100);
        lane_front_awake(&p->lane);
        if (lane_take_wakes(p->control) != ERR_OK)
            return -1;
    }
    return -1;
}

/* A request in which every field is likely to be wrong. */
static struct wire_request bad_request(unsigned *seed)
{
    struct wire_request r;
    unsigned char *bytes = (unsigned char *)&r;

    for (size_t i = 0; i < sizeof r; i++)
        bytes[i] = (unsigned char)random_next(seed);
    r.task = random_next(seed) % 4 ? WIRE_GENERATE : random_next(seed) % 4;
    if (r.task == WIRE_CACHE)
        r.cache.action = random_next(seed) % 5;
    if (r.task == WIRE_POWER)
        r.power.action = random_next(seed) % 3;
    if (random_next(seed) % 2) {
        r.generate.retain = random_next(seed) % 110;
        r.n_tokens = 1 + random_next(seed) % 64;
        r.generate.n_prompt = r.n_tokens;
        r.generate.max_tokens = 1 + random_next(seed) % 9;
        r.arena_offset = random_next(seed) % 2 ? 0 : (uint64_t)-8;
        r.generate.n_stop_ids = random_next(seed) % 20;
    }
    return r;
}

static void scribble(struct peer *p, unsigned *seed)
{
    char *bytes = (char *)p->lane.shared;
    size_t from = offsetof(struct wire_lane, heartbeat_us);

    for (int i = 0; i < 2000; i++) {
        uint32_t slot = random_next(seed) % p->lane.n_slots;
        uint32_t at = p->lane.queue_at & (p->lane.queue_cap - 1);

        p->lane.slots[slot].request = bad_request(seed);
        p->lane.queue[at] = random_next(seed) % 8 ? slot : random_next(seed);
        p->lane.queue_at += random_next(seed) % 64 ? 1 : random_next(seed);
        atomic_store(&p->lane.shared->queue_tail, p->lane.queue_at);
        if (random_next(seed) % 4 == 0)
            atomic_store(&p->lane.slots[slot].out_head, random_next(seed));
        for (int k = 0; k < 4; k++)
            bytes[from + random_next(seed) % (p->lane.lane_bytes - from)] = (char)random_next(seed);
        (void)!send(p->control, bytes, 1 + random_next(seed) % 64, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (i % 100 == 0)
            clock_sleep_us(500);
    }
}

static void test_malformed(struct peer *honest, unsigned seed)
{
    int alive = 0;

    for (int round = 0; round < 30; round++) {
        struct peer p;

        if (peer_open(&p) != ERR_OK)
            break;
        scribble(&p, &seed);
        peer_close(&p);
        alive += peer_ask(honest, (uint32_t)round, 12) == 12;
    }
    is_int(alive, 30, "30 hostile fronts: the honest one is served after each");
}

/* The error that a request ends with; ERR_OK: it does not, or well. */
static int peer_error(struct peer *p, struct wire_request r, const int32_t *ids)
{
    struct wire_out o = {0};

    must_ok(submit(&p->lane, 0, r, ids, NULL));
    for (int i = 0; i < 200 && o.kind != WIRE_FINISHED; i++) {
        if (!lane_record(&p->lane, 0, &o))
            clock_sleep_us(10000);
    }
    return o.kind == WIRE_FINISHED && o.finish == WIRE_FIN_ERROR ? o.value : ERR_OK;
}

/* Well-formed requests that go beyond the model, or ask for what there is not. */
static void test_beyond(struct peer *honest)
{
    struct peer p;
    int32_t ids[8] = {-1, 1 << 30, INT32_MIN, 5000, 1, 2, 3, 4};
    struct wire_request r = {
        .n_tokens = 8, .generate = {.n_prompt = 8, .max_tokens = 4, .sampling = sampling_greedy()}};
    struct wire_request task = {.n_tokens = 1, .task = WIRE_ADAPTER + 1};
    struct wire_request cache = {
        .n_tokens = 1, .task = WIRE_CACHE, .cache = {.action = WIRE_DROP_ALL + 1}};
    struct wire_request power = {
        .n_tokens = 1, .task = WIRE_POWER, .power = {.action = WIRE_END + 1}};

    struct wire_request adapted = r, pooled = r;
    struct wire_request adapter = {
        .n_tokens = 1, .task = WIRE_ADAPTER, .change = {.action = WIRE_UNLOAD_ADAPTER + 1}};

    must_ok(peer_open(&p));
    is_int(peer_error(&p, adapter, ids), ERR_INVALID, "an action with adapters that there is not");
    adapter.change.action = WIRE_LOAD_ADAPTER;
    memset(adapter.change.name, 'x', sizeof adapter.change.name);
    is_int(peer_error(&p, adapter, ids), ERR_INVALID, "a name without an end");
    is_int(peer_error(&p, r, ids), ERR_INVALID, "token ids outside the vocabulary are refused");
    is_int(peer_error(&p, task, ids), ERR_INVALID, "a task that there is not");
    is_int(peer_error(&p, cache, ids), ERR_INVALID, "an action of the cache that there is not");
    is_int(peer_error(&p, power, ids), ERR_INVALID, "one of the power");
    adapted.n_tokens = adapted.generate.n_prompt = 4;
    memset(adapted.adapter, 7, sizeof adapted.adapter);
    is_int(peer_error(&p, adapted, ids + 4), ERR_NO_ADAPTER, "an adapter that is not loaded");
    pooled.n_tokens = pooled.generate.n_prompt = 4;
    pooled.generate.max_tokens = 1;
    pooled.generate.pooling = WIRE_POOL_MEAN;
    is_int(peer_error(&p, pooled, ids + 4), ERR_INVALID, "a row of a model that generates");
    r.generate.sampling.top_p = 1.5f;
    is_int(peer_error(&p, r, ids + 4), ERR_INVALID, "a sampling parameter outside its range");
    peer_close(&p);
    is_int(peer_ask(honest, 40, 5), 5, "and the honest front goes on");
}

static float extreme(unsigned *seed, float low, float high)
{
    const float values[] = {low, high, 1.0f, FLT_MIN, FLT_TRUE_MIN, FLT_MAX, -FLT_MAX, 0.0f, -0.0f};
    float v = values[random_next(seed) % (sizeof values / sizeof values[0])];

    return v < low ? low : v > high ? high : v;
}

/* Within the engine's bounds, and of no use: what overflows on the way to a token. */
#define EXTRA_MAX 8192 /* words behind a request: biases, then a set of the vocabulary */

static struct wire_request extreme_request(unsigned *seed, uint32_t n_vocab, int32_t *extra)
{
    uint32_t n_stops = random_next(seed) % 2 ? (n_vocab + 31) / 32 : 0;
    struct wire_request r = {
        .n_tokens = 8,
        .priority = random_next(seed) % 2 ? INT32_MIN : INT32_MAX,
        .arrival_us = random_next(seed) % 2 ? UINT64_MAX : 1,
        .flags = random_next(seed) & (WIRE_IGNORE_EOS | WIRE_LOGPROBS | WIRE_PROMPT_LOGPROBS |
                                      WIRE_RESUMED | WIRE_TELL_KEPT),
        .generate = {.n_prompt = 1 + random_next(seed) % 8,
                     .max_tokens = random_next(seed) % 2 ? 12 : UINT32_MAX,
                     .min_tokens = random_next(seed) % 2 ? UINT32_MAX : random_next(seed) % 9,
                     .sampling = {.temperature = extreme(seed, 0.0f, 100.0f),
                                  .top_p = extreme(seed, FLT_TRUE_MIN, 1.0f),
                                  .min_p = extreme(seed, 0.0f, 1.0f),
                                  .top_k = random_next(seed) % 2 ? INT32_MAX
                                                                 : (int32_t)(random_next(seed) % 3),
                                  .presence_penalty = extreme(seed, -2.0f, 2.0f),
                                  .frequency_penalty = extreme(seed, -2.0f, 2.0f),
                                  .repetition_penalty = extreme(seed, FLT_TRUE_MIN, 100.0f)},
                     .n_stop_ids = n_stops == 0 ? WIRE_STOP_IDS : 0,
                     .n_stops = n_stops,
                     .n_biases = random_next(seed) % 3,
                     .n_logprobs = random_next(seed) % 4 == 0
                                       ? n_vocab
                                       : random_next(seed) % (WIRE_LOGPROBS_MAX + 1),
                     .n_prompt_logprobs = random_next(seed) % 4 == 0
                                              ? n_vocab
                                              : random_next(seed) % (WIRE_LOGPROBS_MAX + 1),
                     .retain = random_next(seed) % 102,
                     .retain_s = random_next(seed) % 2 ? UINT32_MAX : 0,
                     .retain_tokens = random_next(seed) % 2 ? UINT32_MAX : 3},
    };

    for (uint32_t i = 0; i < r.generate.n_biases; i++) {
        float v = extreme(seed, -FLT_MAX, FLT_MAX);

        extra[2 * i] = (int32_t)(7 + i);
        memcpy(&extra[2 * i + 1], &v, sizeof v);
    }
    must(2 * r.generate.n_biases + n_stops <= EXTRA_MAX);
    memset(extra + 2 * (size_t)r.generate.n_biases, random_next(seed) % 2 ? 0xff : 0x80,
           n_stops * sizeof *extra);
    return r;
}

/* One request may fail; whose logits are not finite is answered all the same. */
static void test_extremes(struct peer *honest, unsigned seed)
{
    int32_t ids[8] = {70, 71, 72, 73, 70, 71, 72, 73};
    int n_ended = 0;
    struct peer p;

    must_ok(peer_open(&p));
    for (int i = 0; i < 400; i++) {
        int32_t extra[EXTRA_MAX];
        struct wire_request r = extreme_request(&seed, p.welcome.n_vocab, extra);
        uint64_t until = clock_us() + 10000000u;
        uint32_t slot = (uint32_t)i % p.lane.n_slots;
        struct wire_out o = {0};

        if (submit(&p.lane, slot, r, ids, extra) != ERR_OK)
            break;
        for (int n = 0; o.kind != WIRE_FINISHED && clock_us() < until;) {
            if (!lane_record(&p.lane, slot, &o))
                clock_sleep_us(200);
            else if (o.kind == WIRE_TOKEN && ++n == 12)
                lane_cancel(&p.lane, slot, WIRE_CLIENT_GONE);
        }
        if (o.kind != WIRE_FINISHED)
            break;
        n_ended++;
    }
    is_int(n_ended, 400, "400 requests at the ends of what is allowed: each comes to an end");
    peer_close(&p);
    is_int(peer_ask(honest, 43, 5), 5, "and the honest front goes on");
}

/* Connections that say nothing, the wrong thing, or leave at once. */
static void test_strangers(struct peer *honest)
{
    for (int i = 0; i < 40; i++) {
        int fd = -1;
        struct wire_welcome w;
        int fds[ATTACH_FDS];

        /* A front that leaves before its welcome is read. */
        if (attach_connect(sock, i % 3, &fd, &w, fds) == ERR_OK) {
            (void)close(fd);
            for (int k = 0; k < ATTACH_FDS; k++)
                (void)close(fds[k]);
        }
    }
    is_int(peer_ask(honest, 41, 5), 5, "40 fronts that leave at once change nothing");
}

/* A connection that says nothing. */
static int silent_open(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", sock);
    if (fd != -1 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    if (fd != -1)
        (void)close(fd);
    return -1;
}

/* More of them than there are lanes: neither do they keep a front out, nor stay. */
static void test_silent(struct peer *honest)
{
    int fds[40], n_open = 0, n_gone = 0;
    struct peer p = {.control = -1};
    bool attached;

    for (int i = 0; i < 40; i++) {
        fds[i] = silent_open();
        n_open += fds[i] != -1;
        clock_sleep_us(1000); /* the queue of those that connect is bounded as well */
    }
    is_int(n_open, 40, "40 peers that say nothing");
    attached = attach_connect(sock, 1000, &p.control, &p.welcome, p.fds) == ERR_OK &&
               lane_attach(&p.lane, p.fds[ATTACH_LANE], p.welcome.lane_bytes) == ERR_OK;
    ok(attached, "a front attaches beside them at once");
    p.lane.wake_fd = p.control;
    if (attached) {
        is_int(peer_ask(&p, 0, 5), 5, "and is served");
        peer_close(&p);
    }
    for (int i = 0; i < 40; i++) {
        struct pollfd f = {.fd = fds[i], .events = POLLIN};
        char byte;

        n_gone += poll(&f, 1, 5000) == 1 && recv(fds[i], &byte, 1, 0) == 0;
        (void)close(fds[i]);
    }
    is_int(n_gone, 40, "all of them were sent away");
    is_int(peer_ask(honest, 42, 5), 5, "and the honest front goes on");
}

/* A process that uploads its vocabulary again and again, until the engine is gone for it. Its exit
 * status: 0 when it was dropped, 1 when a minute went by. */
static _Noreturn void upload_endlessly(void)
{
    struct trie_token tokens[512];
    struct buf image = {0};
    struct wire_upload upload = {.kind = WIRE_VOCABULARY};
    struct peer p;
    uint64_t until;
    int sealed, rc = ERR_OK;

    for (int i = 0; i < 512; i++)
        tokens[i] = (struct trie_token){.bytes = "abcdefgh" + i % 8, .len = 1};
    must_ok(trie_build(tokens, 512, (const int32_t[]){0}, 1, &image));
    must_ok(attach_seal(image.bytes, image.len, &sealed));
    must_ok(peer_open(&p));
    upload.bytes = image.len;
    until = clock_us() + 60000000u;
    while ((rc == ERR_OK || rc == ERR_AGAIN) && clock_us() < until)
        rc = attach_upload(p.control, &upload, sealed);
    _exit(rc == ERR_OK || rc == ERR_AGAIN ? 1 : 0);
}

/* Uploads without end take no pass of the engine's, and their lane's place is free again. */
static void test_uploads(struct peer *honest)
{
    pid_t pids[4];
    int n_served = 0, n_dropped = 0;

    for (int i = 0; i < 4; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            upload_endlessly();
    }
    for (int i = 0; i < 10; i++)
        n_served += peer_ask(honest, (uint32_t)i, 5) == 5;
    is_int(n_served, 10, "beside four fronts that upload without end an honest one is served");
    for (int i = 0; i < 4; i++) {
        int status = 1;

        (void)waitpid(pids[i], &status, 0);
        n_dropped += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    is_int(n_dropped, 4, "and they are dropped");
}

int main(void)
{
    struct peer honest;
    unsigned seed = tap_seed(21);
    int status = 0;

    (void)snprintf(dir, sizeof dir, "/tmp/quire-hostile-XXXXXX");
    if (mkdtemp(dir) == NULL)
        tap_skip_all("no temporary folder");
    (void)snprintf(sock, sizeof sock, "%s/e.sock", dir);
    start_engine();
    must_ok(peer_open(&honest));
    is_int(peer_ask(&honest, 63, 20), 20, "an honest front is served");
    test_malformed(&honest, seed);
    test_beyond(&honest);
    test_extremes(&honest, seed);
    test_strangers(&honest);
    test_silent(&honest);
    test_uploads(&honest);
    is_int(waitpid(engine, &status, WNOHANG), 0, "the engine lives");
    (void)kill(engine, SIGTERM);
    (void)waitpid(engine, &status, 0);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
       "and proves its invariants and stops cleanly");
    peer_close(&honest);
    (void)rmdir(dir);
    return tap_done();
}
