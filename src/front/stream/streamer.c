/* SPDX-License-Identifier: Apache-2.0
 *
 * The streamer: one thread, one epoll, every open exchange of the process. It submits to the
 * lane, reads what the engine says, writes answers as far as sockets take them, and notices
 * clients and engines that go away. It never blocks on any of them.
 *
 * An exchange that ends during a pass is freed at the end of the pass, because events of the
 * same pass may still name it; its connection leaves epoll when it is closed then. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/service.h"
#include "front/answer/answer.h"
#include "front/api/health.h"
#include "front/stream/streamer_parts.h"

#define STREAMER_EVENTS      256
#define STREAMER_TICK_MS     500 /* timeouts are looked at this often */
#define STREAMER_DETACHED_MS 50  /* without an engine: how often to try to attach */

/* --- lists -------------------------------------------------------------------------------- */

static void streamer_link(struct streamer *s, struct exchange *x)
{
    x->prev = NULL;
    x->next = s->open;
    if (s->open != NULL)
        s->open->prev = x;
    s->open = x;
    s->n_open++;
}

static void streamer_unlink(struct streamer *s, struct exchange *x)
{
    if (x->prev == NULL)
        s->open = x->next;
    else
        x->prev->next = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    s->n_open--;
}

/* --- ends --------------------------------------------------------------------------------- */

void streamer_close(struct streamer *s, struct exchange *x)
{
    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    streamer_unlink(s, x);
    x->dead = true; /* later events of this pass pass over it */
    x->next = s->dead;
    s->dead = x;
}

void streamer_fail(struct streamer *s, struct exchange *x, int err, const char *message,
                   const char *param)
{
    int retry_after_s = 0;

    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    if (err_http_status(err) == 429 || err_http_status(err) == 503) {
        struct link *l = &s->f->link;

        retry_after_s = x->retry_after_s;
        if (retry_after_s == 0 && l->control_fd != -1)
            retry_after_s = (int)atomic_load(&l->lane.shared->retry_after_s);
        if (retry_after_s < 1)
            retry_after_s = 1;
    }
    if (x->probe)
        health_failed(s->f, x, err);
    else
        answer_fail(x, err, message, param, retry_after_s);
}

/* --- writing ------------------------------------------------------------------------------ */

static void streamer_watch(struct streamer *s, struct exchange *x, bool out)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = x};

    if (x->watching_out == out)
        return;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fcgi_fd(x->fcgi), &ev) == 0)
        x->watching_out = out;
}

void streamer_flush(struct streamer *s, struct exchange *x)
{
    size_t left = x->out.len - x->out_sent;
    const char *from = left == 0 ? "" : x->out.bytes + x->out_sent;
    long n;

    if (x->dead)
        return;
    if (x->out.failed) {
        streamer_close(s, x);
        return;
    }
    if (left > 0 || x->complete) {
        n = x->complete ? fcgi_write_last(x->fcgi, from, left) : fcgi_write(x->fcgi, from, left);
        if (n < 0) {
            streamer_close(s, x);
            return;
        }
        if (n > 0)
            x->progress_us = s->now_us;
        x->out_sent += (size_t)n;
    }
    if (x->out_sent < x->out.len || (x->complete && !fcgi_has_ended(x->fcgi))) {
        streamer_watch(s, x, true);
        return;
    }
    buf_clear(&x->out);
    x->out_sent = 0;
    x->progress_us = s->now_us;
    if (x->complete)
        streamer_close(s, x);
    else
        streamer_watch(s, x, false);
}

/* --- hand-over ---------------------------------------------------------------------------- */

static void streamer_adopt_one(struct streamer *s, struct exchange *x)
{
    struct epoll_event ev = {.events = EPOLLRDHUP, .data.ptr = x};

    streamer_link(s, x);
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fcgi_fd(x->fcgi), &ev) == -1) {
        log_warn("front: epoll: %s", strerror(errno));
        streamer_close(s, x);
        return;
    }
    if (x->n_gens > 1)
        x->answer = ++s->n_answers;
    streamer_submit(s, x);
    streamer_flush(s, x);
}

void streamer_adopt(struct front *f, struct exchange *x)
{
    uint64_t one = 1;
    bool sleeps;

    (void)pthread_mutex_lock(&f->handover_lock);
    x->next = f->handover;
    f->handover = x;
    sleeps = f->handover_sleeps;
    f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&f->handover_lock);
    if (sleeps)
        (void)!write(f->handover_fd, &one, sizeof one); /* cannot fail: the counter is small */
}

/* Before the streamer sleeps: true when nothing was handed over; what is from now on wakes it. */
static bool streamer_may_sleep(struct streamer *s)
{
    bool empty;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    empty = s->f->handover == NULL;
    s->f->handover_sleeps = empty;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    return empty;
}

static void streamer_adopt_all(struct streamer *s)
{
    struct exchange *list;
    struct exchange *in_order = NULL;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    list = s->f->handover;
    s->f->handover = NULL;
    s->f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    while (list != NULL) { /* newest first; serve the oldest first */
        struct exchange *next = list->next;

        list->next = in_order;
        in_order = list;
        list = next;
    }
    while (in_order != NULL) {
        struct exchange *next = in_order->next;

        streamer_adopt_one(s, in_order);
        in_order = next;
    }
}

/* --- time --------------------------------------------------------------------------------- */

/* Its time is over, and the engine, which should have said so, does not. */
static bool streamer_late(const struct streamer *s, const struct exchange *x)
{
    return x->n_gens > 0 && x->gens[0].request.deadline_us != 0 &&
           s->now_us > x->gens[0].request.deadline_us + STREAMER_TICK_MS * 1000u;
}

/* Has one of x's generations been without an engine for too long? One that is leaving may take its
 * time with what it has; the wait for the next begins when it is gone. */
static bool streamer_waited(const struct streamer *s, const struct exchange *x)
{
    uint64_t wait_us = (uint64_t)s->f->settings.engine_wait_ms * 1000u;
    const struct link *l = &s->f->link;

    if (l->control_fd != -1 && atomic_load(&l->lane.shared->engine_state) == WIRE_DRAINING)
        return false;

    for (int i = 0; i < x->n_gens; i++) {
        if (x->gens[i].waiting && s->now_us - x->gens[i].wait_us > wait_us)
            return true;
    }
    return false;
}

/* Complete but for the store's word, which comes, or does not. */
static void streamer_end_kept(struct streamer *s, struct exchange *x)
{
    if (!blocks_wait(x, s->now_us))
        blocks_kept(x);
}

/* The store has written, or could not. */
static void streamer_kept(struct streamer *s)
{
    for (struct exchange *x = s->open, *next; x != NULL; x = next) {
        next = x->next;
        if (!streamer_keeps(x))
            continue;
        streamer_end_kept(s, x);
        streamer_flush(s, x);
    }
}

static void streamer_tick_one(struct streamer *s, struct exchange *x)
{
    const struct settings *c = &s->f->settings;
    uint64_t stall_us = (uint64_t)c->client_stall_s * 1000000u;

    if ((x->out_sent < x->out.len || x->complete) && s->now_us - x->progress_us > stall_us) {
        streamer_close(s, x);
        return;
    }
    if (streamer_keeps(x))
        streamer_end_kept(s, x);
    else if (!x->complete && streamer_late(s, x))
        streamer_fail(s, x, ERR_DEADLINE, NULL, NULL);
    else if (!x->complete && streamer_waited(s, x))
        streamer_fail(s, x, ERR_ENGINE_GONE, NULL, NULL);
    else if (!x->complete && s->draining && s->now_us > s->drain_until_us)
        streamer_fail(s, x, ERR_DRAINING, NULL, NULL);
    else if (!x->complete && x->stream && x->head_sent && x->out.len == 0 &&
             s->now_us - x->said_us > (uint64_t)c->keepalive_s * 1000000u) {
        answer_keepalive(x);
        x->said_us = s->now_us;
    }
    streamer_flush(s, x);
}

static void streamer_tick(struct streamer *s)
{
    struct exchange *x = s->open;

    if (s->now_us - s->tick_us < STREAMER_TICK_MS * 1000u)
        return;
    s->tick_us = s->now_us;
    while (x != NULL) {
        struct exchange *next = x->next;

        streamer_tick_one(s, x);
        x = next;
    }
    service_watchdog(s->now_us);
}

void streamer_drain(struct streamer *s)
{
    uint64_t one = 1;

    service_stopping();
    log_info("front: stopping; %d requests under way", s->n_open);
    s->drain_until_us = s->now_us;
    if (!s->draining) {
        s->drain_us = s->now_us;
        s->drain_until_us += (uint64_t)s->f->settings.drain_timeout_s * 1000000u;
    }
    s->draining = true;
    (void)!write(s->f->stop_fd, &one, sizeof one); /* never read: it stays readable */
}

/* --- the loop ----------------------------------------------------------------------------- */

/* An eventfd: one read takes all that was written. */
static void streamer_take_wake(int fd)
{
    uint64_t n;

    (void)!read(fd, &n, sizeof n); /* non-blocking */
}

static void streamer_drain_fd(int fd)
{
    char bytes[512];

    while (read(fd, bytes, sizeof bytes) > 0)
        continue; /* non-blocking */
}

/* An exchange's socket: the client left, or takes bytes again. */
static void streamer_client(struct streamer *s, struct exchange *x, uint32_t events)
{
    if (x->dead)
        return;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        streamer_close(s, x);
        return;
    }
    streamer_flush(s, x);
    for (int i = 0; i < x->n_gens && !x->dead; i++) {
        if (x->gens[i].slot >= 0)
            streamer_slot(s, (uint32_t)x->gens[i].slot); /* records that were left waiting */
    }
}

static void streamer_events(struct streamer *s, int timeout_ms)
{
    struct front *f = s->f;
    struct epoll_event ev[STREAMER_EVENTS];
    int n = epoll_wait(s->epoll_fd, ev, STREAMER_EVENTS, timeout_ms);
    bool spells = false; /* the vocabulary may be there */

    s->now_us = clock_us();
    for (int i = 0; i < n; i++) {
        void *p = ev[i].data.ptr;

        if (p == &f->link.control_fd) {
            if ((ev[i].events & (EPOLLRDHUP | EPOLLHUP)) != 0 ||
                lane_take_wakes(f->link.control_fd) != ERR_OK)
                streamer_engine_lost(s);
        } else if (p == &f->signal_fd) {
            streamer_drain_fd(f->signal_fd);
            streamer_drain(s);
        } else if (p == &f->handover_fd) {
            streamer_take_wake(f->handover_fd);
            spells = true;
        } else {
            streamer_client(s, p, ev[i].events);
        }
    }
    streamer_adopt_all(s);
    if (spells && s->f->kept != NULL && kept_has_news(s->f->kept))
        streamer_kept(s);
    if (spells)
        streamer_spell(s);
}

static int streamer_timeout_ms(struct streamer *s)
{
    struct link *l = &s->f->link;

    if (!streamer_may_sleep(s))
        return 0;
    if (l->control_fd == -1)
        return STREAMER_DETACHED_MS;
    if (!lane_front_sleep(&l->lane))
        return 0;
    return s->n_open > 0 ? STREAMER_TICK_MS : 2 * STREAMER_TICK_MS;
}

static void streamer_bury(struct streamer *s)
{
    while (s->dead != NULL) {
        struct exchange *x = s->dead;

        s->dead = x->next;
        exchange_free(x);
    }
}

static int streamer_open(struct streamer *s)
{
    struct front *f = s->f;
    int *fds[] = {&f->signal_fd, &f->handover_fd};

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = fds[i]};

        if (s->epoll_fd == -1 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, *fds[i], &ev) == -1) {
            log_error("front: epoll: %s", strerror(errno));
            return ERR_IO;
        }
    }
    return ERR_OK;
}

/* A reader may be held by a body that never comes whole: its time ends with the drain. The last
 * reader may have handed something over since this pass looked. */
static bool streamer_goes_on(struct streamer *s)
{
    if (!s->draining || s->n_open > 0)
        return true;
    if (atomic_load(&s->f->n_readers) > 0)
        return s->now_us <= s->drain_until_us;
    streamer_adopt_all(s); /* before n_readers became 0: all of it is in the list */
    return s->n_open > 0 || s->dead != NULL;
}

int streamer_run(struct front *f)
{
    struct streamer s = {.f = f, .epoll_fd = -1, .now_us = clock_us()};
    int rc = streamer_open(&s);

    while (rc == ERR_OK && streamer_goes_on(&s)) {
        int timeout_ms = streamer_timeout_ms(&s);

        streamer_events(&s, timeout_ms);
        if (f->link.control_fd != -1)
            lane_front_awake(&f->link.lane);
        streamer_engine(&s);
        streamer_lane(&s);
        streamer_flush_all(&s);
        streamer_tick(&s);
        streamer_bury(&s);
    }
    return rc;
}
