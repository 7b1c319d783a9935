/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: nothing is lost, nothing is seen half, no wake-up is missed, and no content of the
 * shared memory harms the engine. Method: both ends as threads of one process, then as two
 * processes of which one is killed, then with random bytes in the lane. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "ipc/attach.h"
#include "ipc/lane.h"
#include "tests/connect.h"
#include "tests/tap.h"

#define N_SLOTS  70
#define FDS_MOST 8

struct pair {
    struct lane engine;
    struct lane front;
    int fd;
};

static void pair_open(struct pair *p, size_t arena_bytes)
{
    must_ok(lane_create(&p->engine, &p->fd, N_SLOTS, arena_bytes, 1, 2));
    must_ok(lane_attach(&p->front, p->fd, p->engine.lane_bytes));
}

/* Both ends in one mapping: ThreadSanitizer compares addresses, so it sees nothing of what two
 * threads do in two mappings, or two processes. */
static void pair_share(struct pair *p)
{
    (void)munmap(p->front.shared, p->front.lane_bytes);
    p->front.shared = p->engine.shared;
    p->front.queue = p->engine.queue;
    p->front.slots = p->engine.slots;
    p->front.out = p->engine.out;
    p->front.arena = p->engine.arena;
}

static void pair_close(struct pair *p)
{
    if (p->front.shared == p->engine.shared)
        p->front.shared = NULL;
    lane_detach(&p->front);
    lane_detach(&p->engine);
    (void)close(p->fd);
}

/* One request, which the engine may take at once. */
static int submit(struct lane *l, uint32_t slot, struct wire_request r, const int32_t *tokens,
                  const int32_t *extra)
{
    int rc = lane_submit(l, slot, r, tokens, extra);

    lane_publish(l);
    return rc;
}

/* Choices of one answer come together, and a look at a record leaves it there. */
static void test_together(void)
{
    struct wire_request r = {.n_tokens = 1, .generate.answer = 7};
    struct wire_out o;
    struct pair p;
    uint32_t slot;
    int32_t token = 5;
    uint64_t n_tokens;
    uint32_t n_reqs;
    int n = 0;

    pair_open(&p, 4096);
    for (uint32_t i = 0; i < 3; i++)
        must_ok(lane_submit(&p.front, i, r, &token, NULL));
    lane_backlog(&p.front, &n_reqs, &n_tokens);
    ok(n_reqs == 3 && n_tokens >= 3 && !lane_has_work(&p.engine) &&
           lane_take(&p.engine, &slot, &r) == 0,
       "what is not published is not seen");
    lane_publish(&p.front);
    while (lane_take(&p.engine, &slot, &r) == 1)
        n += r.generate.answer == 7;
    is_int(n, 3, "and then all of it");
    ok(!lane_peek(&p.front, 1, &o), "of a slot without a record there is nothing to look at");
    lane_put(&p.engine, 1, (struct wire_out){.kind = WIRE_FINISHED, .value = 9});
    ok(lane_peek(&p.front, 1, &o) && o.value == 9 && lane_peek(&p.front, 1, &o) &&
           lane_record(&p.front, 1, &o) && o.value == 9 && !lane_peek(&p.front, 1, &o),
       "a record that was looked at is still to be taken");
    pair_close(&p);
}

static void test_order(void)
{
    struct pair p;
    int32_t tokens[300];
    int32_t got[300];
    unsigned seed = 3;
    bool good = true;
    int n_full = 0;

    pair_open(&p, 4096);
    for (int i = 0; i < 20000 && good; i++) {
        struct wire_request r = {.n_tokens = 1 + random_next(&seed) % 300,
                                 .generate.sampling.seed = (uint64_t)i};
        uint32_t slot = (uint32_t)i % N_SLOTS;
        uint32_t at = 0;
        struct wire_request copy;

        for (uint32_t t = 0; t < r.n_tokens; t++)
            tokens[t] = (int32_t)(i + (int)t);
        if (submit(&p.front, slot, r, tokens, NULL) == ERR_AGAIN) {
            n_full++;
            i--;
        }
        if (random_next(&seed) % 3 != 0 && n_full % 2 == 0)
            continue; /* let some pile up, but not for ever */
        while (lane_take(&p.engine, &at, &copy) == 1) {
            good = good && lane_tokens(&p.engine, &copy, 1 << 30, got) == ERR_OK &&
                   at == copy.generate.sampling.seed % N_SLOTS;
            for (uint32_t t = 0; t < copy.n_tokens; t++)
                good = good && got[t] == (int32_t)(copy.generate.sampling.seed + t);
        }
        n_full = 0;
        lane_taken(&p.engine);
    }
    ok(good, "20000 prompts through an arena of 4 KiB arrive whole and in order");
    pair_close(&p);
}

/* While an older prompt is still there, one that does not fit before the arena's end begins at its
 * start, and the next one comes after it. */
static void test_wrap(void)
{
    static const uint32_t lengths[] = {750, 125, 250, 150};
    struct wire_request r = {.n_tokens = 0};
    int32_t tokens[750], got[750];
    struct pair p;
    uint32_t slot;
    bool good = true;

    pair_open(&p, 4096);
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t t = 0; t < lengths[i]; t++)
            tokens[t] = (int32_t)(1000 * i + t);
        r.n_tokens = lengths[i];
        must_ok(submit(&p.front, i, r, tokens, NULL));
        if (i != 1)
            continue;
        good = good && lane_take(&p.engine, &slot, &r) == 1;
        lane_taken(&p.engine); /* the first makes room; the second stays */
    }
    for (uint32_t i = 1; i < 4; i++) {
        good = good && lane_take(&p.engine, &slot, &r) == 1 && slot == i &&
               lane_tokens(&p.engine, &r, 1 << 30, got) == ERR_OK && r.n_tokens == lengths[i];
        for (uint32_t t = 0; good && t < lengths[i]; t++)
            good = got[t] == (int32_t)(1000 * i + t);
    }
    ok(good, "prompts that wrap around the arena do not overlap");
    pair_close(&p);
}

/* A prompt of more than half the arena finds the ring's position anywhere. */
static void test_large(void)
{
    struct pair p;
    static int32_t tokens[250];
    struct wire_request copy;
    uint32_t slot;
    int n = 0;

    pair_open(&p, 1024);
    for (uint32_t i = 0; i < 50; i++) {
        struct wire_request r = {.n_tokens = i % 2 == 0 ? 50 : 250};

        n += submit(&p.front, 0, r, tokens, NULL) == ERR_OK;
        while (lane_take(&p.engine, &slot, &copy) == 1)
            continue;
        lane_taken(&p.engine);
    }
    is_int(n, 50, "what fits into an empty arena is taken wherever the last prompt ended");
    pair_close(&p);
}

static void test_full(void)
{
    struct pair p;
    int32_t tokens[64] = {0};
    struct wire_request r = {.n_tokens = 64};
    struct wire_request copy;
    uint32_t slot;
    int n = 0;

    pair_open(&p, 1024);
    while (n < 100 && submit(&p.front, (uint32_t)n % N_SLOTS, r, tokens, NULL) == ERR_OK)
        n++;
    is_int(n, 4, "an arena of 1 KiB holds four prompts of 64 tokens, then says so");
    (void)lane_take(&p.engine, &slot, &copy);
    lane_taken(&p.engine);
    ok(submit(&p.front, 9, r, tokens, NULL) == ERR_OK, "room comes back as prompts are taken");
    for (n = 0; lane_room(&p.engine, 5) > 0; n++)
        lane_put(&p.engine, 5, (struct wire_out){.value = n});
    is_int(n, WIRE_OUT_CAP, "an output ring holds its records");
    ok((lane_ready(&p.front, 0) & 1 << 5) != 0, "and is marked as ready");
    for (int i = 0; i < n; i++) {
        struct wire_out o;

        if (!lane_record(&p.front, 5, &o) || o.value != i) {
            ok(false, "record %d", i);
            break;
        }
    }
    is_int(lane_room(&p.engine, 5), WIRE_OUT_CAP, "all records arrive in order");
    pair_close(&p);
}

/* --- wake-ups: each side sleeps whenever it can --- */

#define WAKE_TOKENS 64

struct wake {
    struct pair p;
    int ends[2]; /* of the control socket: engine, front */
    int rounds;
    atomic_bool late; /* a poll ran into its limit: a wake-up was lost */
};

static void wake_sleep(struct wake *w, int fd, bool may)
{
    struct pollfd f = {.fd = fd, .events = POLLIN};

    if (may && poll(&f, 1, 2000) == 0)
        w->late = true;
    must_ok(lane_take_wakes(fd));
}

static void *wake_engine(void *context)
{
    struct wake *w = context;
    struct lane *l = &w->p.engine;
    int done = 0;

    while (done < w->rounds && !w->late) {
        struct wire_request r;
        uint32_t slot;
        int32_t got[WAKE_TOKENS] = {0};

        while (lane_take(l, &slot, &r) == 1) {
            must_ok(lane_tokens(l, &r, 1 << 30, got));
            (void)lane_cancelled(l, slot);
            lane_put(l, slot, (struct wire_out){.kind = WIRE_TOKEN, .value = got[WAKE_TOKENS - 1]});
            lane_put(
                l, slot,
                (struct wire_out){.kind = WIRE_FINISHED, .value = (int)r.generate.sampling.seed});
            done++;
        }
        lane_taken(l);
        lane_flush(l);
        if (done == w->rounds)
            break;
        lane_sleep_begin(l);
        wake_sleep(w, w->ends[0], !lane_has_work(l));
        lane_sleep_end(l);
    }
    return NULL;
}

/* Wait for a record of a slot; false: a wake-up was lost. */
static bool wake_record(struct wake *w, uint32_t slot, struct wire_out *o)
{
    struct lane *l = &w->p.front;

    while (!lane_record(l, slot, o)) {
        if (w->late)
            return false;
        (void)lane_ready(l, slot / 64);
        if (lane_record(l, slot, o))
            return true;
        wake_sleep(w, w->ends[1], lane_front_sleep(l));
        lane_front_awake(l);
        (void)lane_ready(l, slot / 64);
    }
    return true;
}

static void test_wake(void)
{
    struct wake w = {.rounds = 30000};
    pthread_t thread;
    int32_t tokens[WAKE_TOKENS] = {0};
    int got = 0;
    int rc = ERR_OK;
    bool good = true;

    pair_open(&w.p, 4096);
    pair_share(&w.p);
    must_ok(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, w.ends));
    w.p.engine.wake_fd = w.ends[0];
    w.p.front.wake_fd = w.ends[1];
    (void)pthread_create(&thread, NULL, wake_engine, &w);
    for (int i = 0; i < w.rounds && good && !w.late; i++) {
        struct wire_request r = {.n_tokens = WAKE_TOKENS, .generate.sampling.seed = (uint64_t)i};
        uint32_t slot = (uint32_t)i % N_SLOTS;
        struct wire_out o;

        tokens[WAKE_TOKENS - 1] = i;
        good = submit(&w.p.front, slot, r, tokens, NULL) == ERR_OK;
        if (i % 8 == 0)
            lane_cancel(&w.p.front, slot, WIRE_CLIENT_GONE);
        good = good && wake_record(&w, slot, &o) && o.kind == WIRE_TOKEN && o.value == i;
        good = good && wake_record(&w, slot, &o) && o.kind == WIRE_FINISHED && o.value == i;
        got++;
    }
    (void)pthread_join(thread, NULL);
    ok(good && got == w.rounds && !w.late, "30000 ping-pongs of two sleepers lose no wake-up");
    for (int i = 0; i < 5000; i++) /* a peer that never reads: the sender does not wait */
        lane_cancel(&w.p.front, 0, WIRE_CLIENT_GONE);
    atomic_store(&w.p.front.shared->engine_sleeping, 1);
    for (int i = 0; i < 5000; i++) {
        atomic_store(&w.p.front.shared->engine_sleeping, 1);
        lane_cancel(&w.p.front, 0, WIRE_CLIENT_GONE);
    }
    ok(true, "10000 wake-ups that are not read block no sender");
    must_ok(lane_take_wakes(w.ends[0]));
    (void)close(w.ends[1]);
    for (int i = 0; i < 1000 && rc == ERR_OK; i++)
        rc = lane_take_wakes(w.ends[0]);
    is_int(rc, ERR_CLIENT_GONE, "the end of a peer is seen");
    (void)close(w.ends[0]);
    pair_close(&w.p);
}

/* --- a front that is killed at any instruction --- */

static void kill_child(struct pair *p)
{
    int32_t tokens[256];
    unsigned i = 0;

    for (int t = 0; t < 256; t++)
        tokens[t] = t;
    for (;;) { /* until killed */
        struct wire_request r = {
            .n_tokens = 256, .generate.sampling.seed = 77, .generate.n_prompt = 256};

        (void)!submit(&p->front, i++ % N_SLOTS, r, tokens, NULL);
    }
}

static void test_killed_front(void)
{
    bool good = true;
    uint64_t taken = 0;

    for (int round = 0; round < 30 && good; round++) {
        struct pair p;
        pid_t pid;
        struct wire_request r;
        uint32_t slot;
        int32_t got[256];
        uint64_t until;

        pair_open(&p, 65536);
        pid = fork();
        if (pid == 0)
            kill_child(&p);
        until = clock_us() + 3000 + (uint64_t)round * 131;
        while (clock_us() < until && good) {
            int rc = lane_take(&p.engine, &slot, &r);

            if (rc == 1) {
                good = r.generate.sampling.seed == 77 && r.n_tokens == 256 &&
                       lane_tokens(&p.engine, &r, 256, got) == ERR_OK && got[255] == 255;
                taken++;
            }
            good = good && rc >= 0;
            lane_taken(&p.engine);
        }
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        while (good && lane_take(&p.engine, &slot, &r) == 1)
            good = r.generate.sampling.seed == 77 && lane_tokens(&p.engine, &r, 256, got) == ERR_OK;
        pair_close(&p);
    }
    ok(good, "30 fronts killed while submitting leave only whole entries (%llu seen)",
       (unsigned long long)taken);
}

/* --- hostile content --- */

static void test_hostile(unsigned seed)
{
    struct pair p;
    int n_refused = 0;
    int n_good = 0;

    pair_open(&p, 8192);
    for (int i = 0; i < 100000; i++) {
        char *bytes = (char *)p.engine.shared;
        size_t from = offsetof(struct wire_lane, heartbeat_us);
        struct wire_request r;
        uint32_t slot = 0;
        int32_t got[2048];

        for (int k = 0; k < 8; k++)
            bytes[from + random_next(&seed) % (p.engine.lane_bytes - from)] =
                (char)random_next(&seed);
        atomic_store(&p.engine.shared->queue_tail,
                     p.engine.queue_at + random_next(&seed) % (2 * N_SLOTS));
        p.engine.queue[p.engine.queue_at & (p.engine.queue_cap - 1)] =
            random_next(&seed) % 4 == 0 ? random_next(&seed) : random_next(&seed) % N_SLOTS;
        if (lane_take(&p.engine, &slot, &r) != 1) {
            n_refused++;
            continue;
        }
        if (lane_room(&p.engine, slot) == ERR_CORRUPT)
            n_refused++;
        r.n_tokens = random_next(&seed);
        r.arena_offset = random_next(&seed) % 2 ? random_next(&seed) : (uint64_t)-4;
        if (lane_tokens(&p.engine, &r, 1000, got) != ERR_OK)
            n_refused++;
        else
            n_good++;
        (void)lane_cancelled(&p.engine, slot);
    }
    ok(n_refused > 0, "100000 corruptions: %d refused, %d harmless", n_refused, n_good);
    ok(ftruncate(p.fd, 4096) == -1, "a front cannot shrink the lane under the engine");
    pair_close(&p);
}

/* --- the control socket --- */

static void *attach_front(void *context)
{
    struct wire_welcome w;
    int fds[ATTACH_FDS];
    int fd = -1;
    static int rc;

    rc = attach_connect(context, 2000, &fd, &w, fds);
    if (rc == ERR_OK) {
        struct lane l;

        rc = lane_attach(&l, fds[ATTACH_LANE], w.lane_bytes);
        lane_detach(&l);
        for (int i = 0; i < ATTACH_FDS; i++)
            (void)close(fds[i]);
        (void)close(fd);
    }
    return &rc;
}

/* What stands at a path is only removed when it is a socket without a server. */
static void test_paths(const char *folder)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    int again;

    (void)snprintf(a.sun_path, sizeof a.sun_path, "%.60s/other", folder);
    (void)fclose(fopen(a.sun_path, "w"));
    is_int(attach_listen(a.sun_path, &again), ERR_INVALID, "a file is refused");
    is_int(access(a.sun_path, F_OK), 0, "and still there");
    (void)unlink(a.sun_path);
    must_ok(bind(s, (struct sockaddr *)&a, sizeof a));
    must_ok(listen(s, 1));
    is_int(attach_listen(a.sun_path, &again), ERR_IN_USE, "so is a front's socket");
    is_int(access(a.sun_path, F_OK), 0, "which is still there");
    (void)close(s);
    is_int(attach_clear(a.sun_path), ERR_OK, "a dead one's path is free");
    is_int(access(a.sun_path, F_OK), -1, "and empty");
}

static void test_attach(void)
{
    char path[] = "/tmp/quire-test-XXXXXX";
    char sock[64];
    struct listener listener = {.who = "test"};
    int again;
    int fd = -1;
    pthread_t thread;
    pid_t pid;
    enum wire_visitor visitor;
    uid_t uid;
    void *rc;
    struct lane l;
    struct wire_welcome w = {.magic = WIRE_MAGIC, .layout = wire_layout()};
    int fds[ATTACH_FDS] = {[ATTACH_STATS] = 0};

    (void)!mkdtemp(path);
    (void)snprintf(sock, sizeof sock, "%s/e.sock", path);
    must_ok(attach_listen(sock, &listener.fd));
    log_set_level(0); /* the next calls complain on purpose */
    is_int(attach_listen(sock, &again), ERR_IN_USE, "a second engine is refused");
    while (attach_accept(&listener, &fd, &pid, &uid) == ERR_OK)
        (void)close(fd); /* the probe of the second engine */
    test_paths(path);
    (void)pthread_create(&thread, NULL, attach_front, sock);
    for (int i = 0; i < 2000 && attach_accept(&listener, &fd, &pid, &uid) != ERR_OK; i++)
        clock_sleep_us(1000);
    is_int(pid, getpid(), "the kernel names the process that attaches");
    for (int i = 0; i < 2000 && attach_read_hello(fd, &visitor) == ERR_AGAIN; i++)
        clock_sleep_us(1000);
    must_ok(lane_create(&l, &fds[ATTACH_LANE], N_SLOTS, 4096, 1, (uint32_t)pid));
    w.lane_bytes = l.lane_bytes;
    must_ok(attach_send_welcome(fd, &w, fds));
    (void)pthread_join(thread, &rc);
    is_int(*(int *)rc, ERR_OK, "hello, welcome, lane");
    lane_detach(&l);
    (void)close(fds[ATTACH_LANE]);
    (void)close(fd);

    (void)pthread_create(&thread, NULL, attach_front, sock);
    for (int i = 0; i < 2000 && attach_accept(&listener, &fd, &pid, &uid) != ERR_OK; i++)
        clock_sleep_us(1000);
    w.error = ERR_VERSION;
    must_ok(attach_send_welcome(fd, &w, NULL));
    (void)pthread_join(thread, &rc);
    is_int(*(int *)rc, ERR_VERSION, "a refusal carries its reason");
    (void)close(fd);
    (void)close(listener.fd);
    is_int(*(int *)attach_front(sock), ERR_ENGINE_GONE, "a dead engine's socket is no engine");
    fault_arm(FAULT_lane_create, 1, false);
    is_int(lane_create(&l, &fd, 4, 4096, 1, 1), ERR_NO_MEMORY, "a lane that cannot be made");
    (void)unlink(sock);
    (void)rmdir(path);
}

/* An engine that hangs accepts no connection: fronts must not hang with it. */
static void test_attach_hung(void)
{
    char path[] = "/tmp/quire-test-XXXXXX";
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct wire_welcome w;
    int fds[ATTACH_FDS];
    int fd = -1;
    int rc = ERR_OK;
    int listen_fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    (void)!mkdtemp(path);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s/e.sock", path);
    is_int(bind(listen_fd, (struct sockaddr *)&a, sizeof a), 0, "bind");
    is_int(listen(listen_fd, 1), 0, "a short queue");
    (void)alarm(20);              /* ends the test if a call waits */
    for (int i = 0; i < 4; i++) { /* two fill the queue and stay in it */
        rc = attach_connect(a.sun_path, 10, &fd, &w, fds);
        if (rc != ERR_ENGINE_GONE)
            break;
    }
    is_int(rc, ERR_ENGINE_GONE, "a full queue is an engine that is away");
    is_int(attach_listen(a.sun_path, &fd), ERR_IN_USE, "but one that is there");
    (void)alarm(0);
    (void)close(listen_fd);
    (void)unlink(a.sun_path);
    (void)rmdir(path);
}

static void send_with(int fd, const void *bytes, size_t len, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * FDS_MOST)];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds > 0) {
        struct cmsghdr *c;

        m.msg_control = control.bytes;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n_fds);
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n_fds);
        for (int i = 0; i < n_fds; i++)
            ((int *)CMSG_DATA(c))[i] = STDERR_FILENO;
    }
    must(sendmsg(fd, &m, 0) == (ssize_t)len);
}

/* A message takes no more descriptors than there is room for, and none of a bad one stays open.
 * What is written behind that room a sanitizer sees. */
static void test_first_messages(void)
{
    static const size_t lengths[] = {1, 15, 16, 17, sizeof(struct wire_hello), 512, 513, 4096};
    char bytes[4096] = {0};
    struct wire_upload upload = {0};
    int n_bad = 0, lowest = dup(STDERR_FILENO), uploaded, fds[2], probe;
    enum wire_visitor visitor;

    (void)close(lowest);
    memcpy(bytes, &(struct wire_hello){.magic = WIRE_MAGIC, .layout = wire_layout() + 1}, 16);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int n = 0; n <= FDS_MOST; n++) {
            bool foreign = lengths[i] >= 16 && lengths[i] <= 512 && n <= ATTACH_FDS + 1;

            must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds) == 0);
            send_with(fds[0], bytes, lengths[i], n);
            n_bad += attach_read_hello(fds[1], &visitor) != (foreign ? ERR_VERSION : ERR_CORRUPT);
            send_with(fds[0], &upload, sizeof upload, n);
            if (attach_read_upload(fds[1], &upload, &uploaded) == 1 && n == 1)
                (void)close(uploaded);
            else
                n_bad += n == 1;
            (void)close(fds[0]);
            (void)close(fds[1]);
        }
    }
    is_int(n_bad, 0, "first messages of any length, with any number of descriptors");
    probe = dup(STDERR_FILENO);
    is_int(probe, lowest, "all that came with them are closed");
    (void)close(probe);
}

/* What is uploaded to a process without a descriptor is lost, and told as that; what wakes it then
 * wakes it, and what is uploaded afterwards is taken. */
static void test_lost_upload(void)
{
    struct wire_upload upload = {.kind = WIRE_AUTOMATON, .idx = 7};
    struct rlimit before, none;
    int got[2] = {-2, -2}, rcs[3], fds[2], lowest;

    must(getrlimit(RLIMIT_NOFILE, &before) == 0);
    must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fds) == 0);
    lowest = dup(STDERR_FILENO);
    (void)close(lowest);
    none = (struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
    send_with(fds[0], &upload, sizeof upload, 1);
    send_with(fds[0], "", 1, 0);
    upload.idx = 0;
    must(setrlimit(RLIMIT_NOFILE, &none) == 0);
    rcs[0] = attach_read_upload(fds[1], &upload, &got[0]);
    rcs[1] = attach_read_upload(fds[1], &upload, &got[1]);
    must(setrlimit(RLIMIT_NOFILE, &before) == 0);
    ok(rcs[0] == 1 && got[0] == -1 && upload.idx == 7, "an upload without its descriptor");
    ok(rcs[1] == 0 && got[1] == -2, "what comes behind it is read as ever");
    send_with(fds[0], &upload, sizeof upload, 1);
    rcs[2] = attach_read_upload(fds[1], &upload, &got[1]);
    ok(rcs[2] == 1 && got[1] == lowest, "the next one has its own");
    (void)close(got[1]);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* Each bound of a request that a front may break, at the bound and one beyond it. */
static void test_bounds(void)
{
    struct pair p;
    uint32_t slot = 0;
    struct wire_request r = {.n_tokens = 2};
    int32_t tokens[2] = {7, 999}, got[2];

    pair_open(&p, 8192);
    must_ok(submit(&p.front, 0, r, tokens, NULL));
    is_int(lane_take(&p.engine, &slot, &r), 1, "a request is taken");
    is_int(lane_tokens(&p.engine, &r, 1000, got), ERR_OK, "the last id of a vocabulary is one");
    is_int(lane_tokens(&p.engine, &r, 999, got), ERR_INVALID, "the next is none");
    r.arena_offset = p.engine.arena_bytes - sizeof tokens;
    memset(p.engine.arena + r.arena_offset, 0, sizeof tokens);
    is_int(lane_tokens(&p.engine, &r, 1000, got), ERR_OK, "tokens may end with the arena");
    r.arena_offset += sizeof *tokens;
    is_int(lane_tokens(&p.engine, &r, 1000, got), ERR_INVALID, "and not after it");
    p.engine.queue[p.engine.queue_at & (p.engine.queue_cap - 1)] = N_SLOTS - 1;
    atomic_store(&p.engine.shared->queue_tail, p.engine.queue_at + 1);
    is_int(lane_take(&p.engine, &slot, &r), 1, "the last slot is one");
    p.engine.queue[p.engine.queue_at & (p.engine.queue_cap - 1)] = N_SLOTS;
    atomic_store(&p.engine.shared->queue_tail, p.engine.queue_at + 1);
    is_int(lane_take(&p.engine, &slot, &r), ERR_CORRUPT, "the next is none");
    pair_close(&p);
}

int main(void)
{
    test_bounds();
    test_together();
    test_order();
    test_wrap();
    test_large();
    test_full();
    test_wake();
    test_killed_front();
    test_hostile(tap_seed(5));
    test_attach();
    test_attach_hung();
    test_first_messages();
    test_lost_upload();
    return tap_done();
}
