/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine without a model: it listens, attaches fronts and takes requests as quire-engine does,
 * and answers each with max_tokens words of a given list, one a step, or as many as its ring
 * takes. So the fronts are measured by themselves.
 *
 *   mock_engine SOCKET TIMES-FILE N-VOCAB ID,ID,...
 *
 * A step comes to all slots in the same instant, which is what a batch does. One thread; ends with
 * SIGTERM. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ipc/attach.h"
#include "ipc/lane.h"
#include "ipc/wire_held.h"
#include "tests/bench/mock.h"

#define MOCK_LANES       4
#define MOCK_SLOTS       2048
#define MOCK_ARENA_BYTES ((size_t)16 << 20)
#define MOCK_PROMPT_MAX  65536
#define MOCK_WORDS_MAX   256
#define MOCK_FULL_US     100    /* all rings are full: how soon to look again */
#define MOCK_IDLE_US     500000 /* so often the heartbeat is renewed */

/* A request that is being answered. */
struct play {
    uint32_t slot;
    uint32_t n_said;
    uint32_t max_tokens;
    uint32_t row; /* of the times */
};

struct mock_lane {
    struct lane lane;
    int control_fd; /* -1: free */
    bool open;      /* it has its welcome */
    struct play plays[MOCK_SLOTS];
    uint32_t n_plays;
};

struct mock {
    struct listener listener;
    int stats_fd;
    uint64_t step_us; /* as the load generator wants it */
    uint64_t next_us; /* of the next step */
    uint32_t n_vocab;
    int32_t words[MOCK_WORDS_MAX];
    uint32_t n_words;
    struct mock_times *times;
    struct mock_lane lanes[MOCK_LANES];
    int32_t prompt[MOCK_PROMPT_MAX];
};

/* --- fronts ------------------------------------------------------------------------------- */

static void mock_drop(struct mock_lane *l)
{
    lane_detach(&l->lane);
    (void)close(l->control_fd);
    l->control_fd = -1;
    l->open = false;
    l->n_plays = 0;
}

static void mock_accept(struct mock *m)
{
    int fd;
    pid_t pid;
    uid_t uid;

    while (attach_accept(&m->listener, &fd, &pid, &uid) == ERR_OK) {
        int i = 0;

        while (i < MOCK_LANES && m->lanes[i].control_fd != -1)
            i++;
        if (i == MOCK_LANES)
            (void)close(fd);
        else
            m->lanes[i].control_fd = fd;
    }
}

/* What a front looks at before it says yes: it moves on, and refuses nothing. */
static void mock_tell(struct lane *lane, uint64_t now_us)
{
    struct wire_lane *w = lane->shared;

    atomic_store_explicit(&w->heartbeat_us, now_us, memory_order_relaxed);
    atomic_store_explicit(&w->progress_us, now_us, memory_order_relaxed);
    atomic_store_explicit(&w->room_reqs, MOCK_SLOTS, memory_order_relaxed);
    atomic_store_explicit(&w->room_tokens, UINT32_MAX, memory_order_relaxed);
}

static int mock_welcome(struct mock *m, struct mock_lane *l)
{
    struct wire_welcome w = {.magic = WIRE_MAGIC,
                             .layout = wire_layout(),
                             .epoch = 1,
                             .n_vocab = m->n_vocab,
                             .max_model_len = MOCK_PROMPT_MAX,
                             .page_tokens = 16};
    int fds[ATTACH_FDS] = {[ATTACH_STATS] = m->stats_fd};
    int rc = lane_create(&l->lane, &fds[ATTACH_LANE], MOCK_SLOTS, MOCK_ARENA_BYTES, 1, 0);

    if (rc != ERR_OK)
        return rc;
    l->lane.wake_fd = l->control_fd;
    l->open = true;
    atomic_store(&l->lane.shared->engine_state, WIRE_SERVING);
    atomic_store(&l->lane.shared->room_reqs, UINT32_MAX); /* or fronts would refuse */
    atomic_store(&l->lane.shared->room_tokens, UINT32_MAX);
    w.lane_bytes = l->lane.lane_bytes;
    rc = attach_send_welcome(l->control_fd, &w, fds);
    (void)close(fds[ATTACH_LANE]); /* the mapping stays */
    return rc;
}

static void mock_message(struct mock *m, struct mock_lane *l)
{
    enum wire_visitor visitor = WIRE_FRONT;
    int rc = l->open ? lane_take_wakes(l->control_fd) : attach_read_hello(l->control_fd, &visitor);

    if (rc == ERR_OK && !l->open && visitor == WIRE_FRONT)
        rc = mock_welcome(m, l);
    if ((rc != ERR_OK && rc != ERR_AGAIN) || visitor != WIRE_FRONT)
        mock_drop(l);
}

/* --- requests ----------------------------------------------------------------------------- */

static void mock_put(struct lane *l, uint32_t slot, enum wire_kind kind, int32_t value, int finish)
{
    lane_put(l, slot,
             (struct wire_out){.kind = (uint8_t)kind,
                               .finish = (uint8_t)finish,
                               .value = value,
                               .time_us = clock_us()});
}

static void mock_take(struct mock *m, struct mock_lane *l)
{
    struct wire_request r;
    uint32_t slot;

    while (lane_take(&l->lane, &slot, &r) == 1) { /* at most the ring */
        if (r.n_tokens > MOCK_PROMPT_MAX ||
            lane_tokens(&l->lane, &r, (int32_t)m->n_vocab, m->prompt) != ERR_OK) {
            mock_put(&l->lane, slot, WIRE_FINISHED, ERR_INVALID, WIRE_FIN_ERROR);
            continue;
        }
        mock_put(&l->lane, slot, WIRE_ADMITTED, 0, 0);
        l->plays[l->n_plays++] =
            (struct play){.slot = slot,
                          .max_tokens = r.generate.max_tokens,
                          .row = (uint32_t)(r.generate.sampling.seed % MOCK_ROWS)};
    }
    lane_taken(&l->lane);
}

/* Say n tokens. True when that was the last. */
static bool mock_say(struct mock *m, struct mock_lane *l, struct play *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, p->n_said++) {
        atomic_store_explicit(&m->times->put_us[p->row][p->n_said % MOCK_TOKENS], clock_us(),
                              memory_order_relaxed);
        mock_put(&l->lane, p->slot, WIRE_TOKEN, m->words[(p->row + p->n_said) % m->n_words], 0);
    }
    if (p->n_said < p->max_tokens)
        return false;
    mock_put(&l->lane, p->slot, WIRE_FINISHED, 0, WIRE_FIN_LENGTH);
    return true;
}

/* One step of a lane. The number of tokens. */
static uint32_t mock_step(struct mock *m, struct mock_lane *l)
{
    uint32_t said = 0;

    for (uint32_t i = 0; i < l->n_plays;) {
        struct play *p = &l->plays[i];
        int room = lane_room(&l->lane, p->slot) - 1; /* the end */
        uint32_t n = p->max_tokens - p->n_said;
        bool ended;

        if (room < 0) {
            log_error("mock: a front broke the ring's rules");
            mock_drop(l);
            return 0;
        }
        if (n > (uint32_t)room)
            n = (uint32_t)room;
        if (n > 1 && m->step_us > 0)
            n = 1;
        if (lane_cancelled(&l->lane, p->slot) != WIRE_WANTED) {
            mock_put(&l->lane, p->slot, WIRE_FINISHED, 0, WIRE_FIN_CANCELLED);
            ended = true;
        } else {
            ended = mock_say(m, l, p, n);
            said += n;
        }
        if (ended)
            *p = l->plays[--l->n_plays];
        else
            i++;
    }
    return said;
}

/* --- the loop ----------------------------------------------------------------------------- */

/* Sleep until a front has something to say, or wait_us are over. */
static void mock_sleep(struct mock *m, uint64_t wait_us)
{
    struct pollfd p[1 + MOCK_LANES] = {{.fd = m->listener.fd, .events = POLLIN}};
    struct timespec t = {.tv_sec = (time_t)(wait_us / 1000000u),
                         .tv_nsec = (long)(wait_us % 1000000u) * 1000};

    for (int i = 0; i < MOCK_LANES; i++) {
        struct mock_lane *l = &m->lanes[i];

        p[1 + i] = (struct pollfd){.fd = l->control_fd, .events = POLLIN};
        if (l->open)
            lane_sleep_begin(&l->lane);
    }
    for (int i = 0; i < MOCK_LANES; i++) {
        if (m->lanes[i].open && lane_has_work(&m->lanes[i].lane))
            t = (struct timespec){0};
    }
    (void)ppoll(p, 1 + MOCK_LANES, &t, NULL);
    for (int i = 0; i < MOCK_LANES; i++) {
        if (m->lanes[i].open)
            lane_sleep_end(&m->lanes[i].lane);
        if (p[1 + i].revents != 0)
            mock_message(m, &m->lanes[i]);
    }
    if (p[0].revents != 0)
        mock_accept(m);
}

static void mock_run(struct mock *m)
{
    for (;;) { /* until SIGTERM */
        uint64_t now_us = clock_us();
        uint64_t step_us = atomic_load_explicit(&m->times->step_us, memory_order_relaxed);
        uint64_t wait_us = MOCK_IDLE_US;
        uint32_t n_plays = 0, said = 0;
        bool due;

        if (step_us != m->step_us)
            m->next_us = 0;
        m->step_us = step_us;
        due = m->step_us == 0 || now_us >= m->next_us;
        if (m->step_us > 0 && due)
            m->next_us = (now_us / m->step_us + 1) * m->step_us;
        for (int i = 0; i < MOCK_LANES; i++) {
            struct mock_lane *l = &m->lanes[i];

            if (!l->open)
                continue;
            mock_tell(&l->lane, now_us);
            mock_take(m, l);
            if (due)
                said += mock_step(m, l);
            if (l->open)
                lane_flush(&l->lane);
            n_plays += l->n_plays;
        }
        if (n_plays > 0 && m->step_us == 0)
            wait_us = said > 0 ? 0 : MOCK_FULL_US;
        else if (n_plays > 0)
            wait_us = m->next_us > clock_us() ? m->next_us - clock_us() : 0;
        mock_sleep(m, wait_us);
    }
}

static int mock_open(struct mock *m, char **argv)
{
    struct wire_page *page;
    int fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    m->listener.who = "mock";
    m->n_vocab = (uint32_t)strtoul(argv[3], NULL, 10);
    for (char *at = argv[4]; *at != '\0' && m->n_words < MOCK_WORDS_MAX; at += *at == ',')
        m->words[m->n_words++] = (int32_t)strtol(at, &at, 10);
    for (int i = 0; i < MOCK_LANES; i++)
        m->lanes[i].control_fd = -1;
    m->stats_fd = memfd_create("mock-stats", MFD_CLOEXEC);
    if (fd == -1 || ftruncate(fd, sizeof *m->times) == -1 || m->stats_fd == -1 ||
        ftruncate(m->stats_fd, sizeof *page) == -1 || m->n_words == 0)
        return ERR_IO;
    m->times = mmap(NULL, sizeof *m->times, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, m->stats_fd, 0);
    (void)close(fd);
    if (m->times == MAP_FAILED || page == MAP_FAILED)
        return ERR_NO_MEMORY;
    page->stats.magic = WIRE_MAGIC;
    page->stats.layout = wire_layout();
    return attach_listen(argv[1], &m->listener.fd);
}

int main(int argc, char **argv)
{
    struct mock *m = mem_zalloc(sizeof *m);

    if (argc != 5) {
        (void)fprintf(stderr, "mock_engine SOCKET TIMES-FILE N-VOCAB ID,ID,...\n");
        return 1;
    }
    if (m == NULL || mock_open(m, argv) != ERR_OK) {
        log_error("mock: cannot start");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    mock_run(m);
}
