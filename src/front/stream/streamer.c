/* SPDX-License-Identifier: Apache-2.0
 *
 * The streamer: one thread with one epoll set for all open exchanges of the process. It submits to
 * the lane, reads the engine's records, writes answers as far as sockets accept them, and notices
 * clients and engines that disappear. It never blocks on any of them.
 *
 * One pass of streamer_run():
 *
 *   wait for events -> new exchanges from readers -> attach, resubmit -> read the lane
 *   -> write answers -> timeouts -> free ended exchanges
 *
 * An exchange that ends during a pass is freed at the end of the pass, because events of the same
 * pass may still point to it. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "base/service.h"
#include "front/answer/answer.h"
#include "front/api/health.h"
#include "front/stream/streamer_parts.h"
#include "front/trace/trace.h"

#define STREAMER_EVENTS      256
#define STREAMER_TICK_MS     500 /* ms between checks of timeouts */
#define STREAMER_DETACHED_MS 50  /* without an engine: ms between attempts to attach */

/* --- lists -------------------------------------------------------------------------------- */

/* Add an exchange to the list of the open ones. */
static void streamer_link(struct streamer *s, struct exchange *x)
{
    x->prev = NULL;
    x->next = s->open;
    if (s->open != NULL)
        s->open->prev = x;
    s->open = x;
    s->n_open++;
}

/* Remove it from the list. */
static void streamer_unlink(struct streamer *s, struct exchange *x)
{
    must(s->n_open > 0);
    if (x->prev == NULL)
        s->open = x->next;
    else
        x->prev->next = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    s->n_open--;
}

/* --- ends --------------------------------------------------------------------------------- */

/* End an exchange: its generations are cancelled and its memory is freed at the end of the pass.
 * For clients that are gone, and for answers that were sent completely. */
void streamer_close(struct streamer *s, struct exchange *x)
{
    must(!x->dead);
    streamer_trace_end(s, x);
    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    streamer_unlink(s, x);
    x->dead = true; /* later events of this pass ignore it */
    x->next = s->dead;
    s->dead = x;
}

/* End an exchange with an error. It stays open until the error is sent. */
void streamer_fail(struct streamer *s, struct exchange *x, int err, const char *message,
                   const char *param)
{
    int retry_after_s = 0;

    if (x->span != NULL)
        x->span->error = err;
    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    /* A client may try again: in the time that the engine estimates, or in a second. */
    if (err_http_status(err) == 429 || err_http_status(err) == 503) {
        retry_after_s = x->retry_after_s;
        if (retry_after_s == 0)
            retry_after_s = engines_retry_after(&x->served->engines);
        if (retry_after_s < 1)
            retry_after_s = 1;
    }
    if (x->probe)
        health_failed(s->f, x, err);
    else
        answer_fail(x, err, message, param, retry_after_s);
}

/* --- writing ------------------------------------------------------------------------------ */

/* Ask epoll for writability only while the socket is full, because otherwise every pass would wake
 * at once. */
static void streamer_watch(struct streamer *s, struct exchange *x, bool out)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = x};

    if (x->watching_out == out)
        return;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fcgi_fd(x->fcgi), &ev) == 0)
        x->watching_out = out;
}

/* Send as much of the answer as the socket takes. A complete answer that was sent completely ends
 * the exchange. */
void streamer_flush(struct streamer *s, struct exchange *x)
{
    size_t left = x->out.len - x->out_sent;
    const char *from = left == 0 ? "" : x->out.bytes + x->out_sent;
    long n;

    must(x->out_sent <= x->out.len);
    if (x->dead)
        return;
    /* A part of the answer is missing for lack of memory: cut the connection, so that the client
     * does not take it for complete. */
    if (x->out.failed) {
        streamer_close(s, x);
        return;
    }
    if (left > 0 || x->complete) {
        if (x->complete)
            n = fcgi_write_last(x->fcgi, from, left);
        else
            n = fcgi_write(x->fcgi, from, left);
        /* The client is gone. */
        if (n < 0) {
            streamer_close(s, x);
            return;
        }
        if (n > 0)
            x->progress_us = s->now_us;
        x->out_sent += (size_t)n;
    }
    /* The socket is full: go on when it accepts bytes again. */
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

/* --- hand-over ----------------------------------------------------------------------------
 *
 * Readers push exchanges to a list under a lock. The eventfd is written only if the streamer
 * sleeps, which saves a system call per request on a busy server. */

/* Take an exchange over from a reader: watch its socket, submit it. */
static void streamer_adopt_one(struct streamer *s, struct exchange *x)
{
    struct epoll_event ev = {.events = EPOLLRDHUP, .data.ptr = x};

    streamer_link(s, x);
    streamer_trace_begin(s, x);
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fcgi_fd(x->fcgi), &ev) == -1) {
        log_warn("front: epoll: %s", strerror(errno));
        streamer_close(s, x);
        return;
    }
    /* The engine keeps the choices of an answer in one group. */
    if (x->n_gens > 1)
        x->answer = ++s->n_answers;
    streamer_submit(s, x);
    streamer_flush(s, x);
}

/* Hand an exchange over to the streamer. Called by readers. */
void streamer_adopt(struct front *f, struct exchange *x)
{
    uint64_t one = 1;
    bool sleeps;

    must(x != NULL);
    (void)pthread_mutex_lock(&f->handover_lock);
    x->next = f->handover;
    f->handover = x;
    sleeps = f->handover_sleeps;
    f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&f->handover_lock);
    if (sleeps)
        (void)!write(f->handover_fd, &one, sizeof one); /* cannot fail: the counter is small */
}

/* Before the streamer sleeps: true when the list is empty; from then on an addition wakes it. */
static bool streamer_may_sleep(struct streamer *s)
{
    bool empty;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    empty = s->f->handover == NULL;
    s->f->handover_sleeps = empty;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    return empty;
}

/* Take over all exchanges that readers have handed over. */
static void streamer_adopt_all(struct streamer *s)
{
    struct exchange *list;
    struct exchange *in_order = NULL;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    list = s->f->handover;
    s->f->handover = NULL;
    s->f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    while (list != NULL) { /* newest first: reverse it, so that the oldest is served first */
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

/* Has x's deadline passed without a word from the engine, which normally ends such requests? */
static bool streamer_late(const struct streamer *s, const struct exchange *x)
{
    return x->n_gens > 0 && x->gens[0].request.deadline_us != 0 &&
           s->now_us > x->gens[0].request.deadline_us + STREAMER_TICK_MS * 1000u;
}

/* Has a generation of x been without an engine for too long? While the last engine is draining, it
 * may take its time with the requests it has; the wait begins when it is gone. */
static bool streamer_waited(const struct streamer *s, const struct exchange *x)
{
    uint64_t wait_us = (uint64_t)s->f->settings.engine_wait_ms * 1000u;

    if (x->served->on_demand)
        wait_us = (uint64_t)x->served->settings.wake_timeout_s * 1000000u;
    if (engines_drain(&x->served->engines))
        return false;
    /* Texts of a request that wait for the slots of others. */
    for (int i = 0; i < x->n_gens && x->pooled != NULL; i++) {
        if (x->gens[i].slot >= 0)
            return false;
    }
    for (int i = 0; i < x->n_gens; i++) {
        if (x->gens[i].waiting && s->now_us - x->gens[i].wait_us > wait_us)
            return true;
    }
    return false;
}

/* x is complete except that its response is being stored: end it if that is done or takes too
 * long. */
static void streamer_end_kept(struct streamer *s, struct exchange *x)
{
    if (!blocks_wait(x, s->now_us))
        blocks_kept(x);
}

/* The store has finished some jobs. */
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

/* The timeouts of one exchange. At most one of them applies per tick. */
static void streamer_tick_one(struct streamer *s, struct exchange *x)
{
    const struct settings *settings = &s->f->settings;
    uint64_t stall_us = (uint64_t)settings->client_stall_s * 1000000u;

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
             s->now_us - x->said_us > (uint64_t)settings->keepalive_s * 1000000u) {
        answer_keepalive(x);
        x->said_us = s->now_us;
    }
    streamer_flush(s, x);
}

/* Check the timeouts of all exchanges, every STREAMER_TICK_MS. */
static void streamer_tick(struct streamer *s)
{
    struct exchange *x = s->open;

    if (s->now_us - s->tick_us < STREAMER_TICK_MS * 1000u)
        return;
    s->tick_us = s->now_us;
    streamer_look_around(s);
    while (x != NULL) {
        struct exchange *next = x->next;

        streamer_tick_one(s, x);
        x = next;
    }
    service_watchdog(s->now_us);
}

/* Stop: accept no more requests, and finish those that run, for at most drain_timeout_s. A second
 * signal ends them at once. */
void streamer_drain(struct streamer *s)
{
    uint64_t one = 1;

    service_stopping();
    log_info("front: stopping; %d requests are running", s->n_open);
    s->drain_until_us = s->now_us;
    if (!s->draining) {
        s->drain_us = s->now_us;
        s->drain_until_us += (uint64_t)s->f->settings.drain_timeout_s * 1000000u;
    }
    s->draining = true;
    (void)!write(s->f->stop_fd, &one, sizeof one); /* never read, so it stays readable for all
                                                    * readers */
}

/* --- the loop ----------------------------------------------------------------------------- */

/* Read an eventfd: one read resets its counter. */
static void streamer_take_wake(int fd)
{
    uint64_t n;

    (void)!read(fd, &n, sizeof n); /* non-blocking */
}

/* Read all that there is. */
static void streamer_drain_fd(int fd)
{
    char bytes[512];

    while (read(fd, bytes, sizeof bytes) > 0)
        continue; /* non-blocking */
}

/* An event of an exchange's socket: the client has left, or accepts bytes again. */
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
        /* Records that were left unread while it was full. */
        if (x->gens[i].slot >= 0)
            streamer_slot(s, x->gens[i].link, (uint32_t)x->gens[i].slot);
    }
}

/* The link whose descriptor's variable is at p, or NULL. */
static struct link *streamer_link_at(struct front *f, const void *p)
{
    struct link *link = NULL;

    for (int i = 0; i < f->n_served && link == NULL; i++)
        link = engines_at(&f->served[i].engines, p);
    return link;
}

/* Wait for events, and handle those of sockets and descriptors. The lane is read by the caller
 * after each pass, so an event of it only ends the wait. */
static void streamer_events(struct streamer *s, int timeout_ms)
{
    struct front *f = s->f;
    struct epoll_event ev[STREAMER_EVENTS];
    int n = epoll_wait(s->epoll_fd, ev, STREAMER_EVENTS, timeout_ms);
    bool spells = false; /* the handover eventfd was written: the vocabulary may be ready */

    s->now_us = clock_us();
    for (int i = 0; i < n; i++) {
        void *p = ev[i].data.ptr;
        struct link *link = streamer_link_at(f, p);

        /* The data of a descriptor's event is the address of its variable; all others are
         * exchanges. */
        if (link != NULL && p == &link->calling_fd) {
            continue; /* its welcome: streamer_engine() attaches */
        } else if (link != NULL) {
            if ((ev[i].events & (EPOLLRDHUP | EPOLLHUP)) != 0 ||
                lane_take_wakes(link->control_fd) != ERR_OK)
                streamer_engine_lost(s, link);
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

/* The order matters: after streamer_may_sleep() a reader wakes us, after lane_front_sleep() an
 * engine does; only then may epoll_wait() block. */
static int streamer_timeout_ms(struct streamer *s)
{
    int timeout_ms = s->n_open > 0 ? STREAMER_TICK_MS : 2 * STREAMER_TICK_MS;

    if (!streamer_may_sleep(s))
        return 0;
    for (int i = 0; i < s->f->n_links; i++) {
        struct link *link = s->f->links[i];

        /* One that is started on demand is polled for its welcome. */
        if (link->control_fd == -1 && link->is_patient && link->calling_fd != -1)
            continue;
        if (link->control_fd == -1 && link->is_patient && !s->f->served_of[i]->wanted)
            continue;
        if (link->control_fd == -1)
            timeout_ms = timeout_ms > STREAMER_DETACHED_MS ? STREAMER_DETACHED_MS : timeout_ms;
        else if (!lane_front_sleep(&link->lane))
            timeout_ms = 0;
    }
    return timeout_ms;
}

/* Read the lanes of all engines. */
static void streamer_lanes(struct streamer *s)
{
    for (int i = 0; i < s->f->n_links; i++)
        streamer_lane(s, s->f->links[i]);
}

/* The engines need not wake us for records that are read in this pass. */
static void streamer_awake(struct streamer *s)
{
    for (int i = 0; i < s->f->n_links; i++) {
        if (s->f->links[i]->control_fd != -1)
            lane_front_awake(&s->f->links[i]->lane);
    }
}

/* Free the exchanges that ended in this pass. */
static void streamer_bury(struct streamer *s)
{
    while (s->dead != NULL) {
        struct exchange *x = s->dead;

        s->dead = x->next;
        exchange_free(x);
    }
}

/* Make the epoll set. */
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

/* Is there work left? While draining, a reader may be blocked by a body that never arrives
 * completely: it gets until the end of the drain. The last reader may have handed over an exchange
 * after this pass looked at the list. */
static bool streamer_goes_on(struct streamer *s)
{
    if (!s->draining || s->n_open > 0)
        return true;
    if (atomic_load(&s->f->n_readers) > 0)
        return s->now_us <= s->drain_until_us;
    streamer_adopt_all(s); /* all of it was added before n_readers became 0 */
    return s->n_open > 0 || s->dead != NULL;
}

/* The loop. Its order is that of the head comment. */
int streamer_run(struct front *f)
{
    struct streamer streamer = {.f = f, .epoll_fd = -1, .now_us = clock_us()};
    int rc = streamer_open(&streamer);

    while (rc == ERR_OK && streamer_goes_on(&streamer)) {
        int timeout_ms = streamer_timeout_ms(&streamer);

        streamer_events(&streamer, timeout_ms);
        streamer_awake(&streamer);
        streamer_engine(&streamer);
        streamer_lanes(&streamer);
        streamer_flush_all(&streamer);
        streamer_tick(&streamer);
        streamer_trace_count(&streamer);
        streamer_bury(&streamer);
    }
    return rc;
}
