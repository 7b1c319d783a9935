/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of spans and the thread that sends them.
 *
 * A batch is what has come within TRACE_GATHER_MS of its first span. One that a collector cannot
 * take now (429, 502, 503, 504, no connection) is tried again, as OTLP wants it; any other answer
 * but a success drops it. The queue takes spans meanwhile, until it is full. */
#include "front/trace/trace.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define TRACE_QUEUE      2048 /* spans; 2 MB */
#define TRACE_BATCH      256
#define TRACE_GATHER_MS  500
#define TRACE_TRIES      4    /* of a batch */
#define TRACE_AGAIN_MS   1000 /* before the second; each further pause is twice as long */
#define TRACE_TIMEOUT_MS 10000
#define TRACE_END_MS     3000
#define TRACE_TELL_US    60000000u /* between two log lines about a collector that fails */

struct trace {
    struct post_target to;
    pthread_t thread;
    _Atomic uint32_t n_sent, n_dropped;

    pthread_mutex_t lock;     /* guards the members below */
    pthread_cond_t news;      /* a span has come, or the end */
    pthread_cond_t over;      /* the thread has ended */
    struct trace_span *queue; /* [TRACE_QUEUE], a ring */
    int first, n;
    bool ended;
    atomic_bool ends; /* is set under the lock */

    /* The thread's. */
    struct trace_span *batch; /* [TRACE_BATCH] */
    uint64_t told_us;         /* when a failure was logged last; 0: the last batch was taken */
};

/* --- the caller's trace ----------------------------------------------------------------------- */

static int trace_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; /* W3C allows lower case only */
}

/* Read 2 * n digits. False: there are others, or all are 0. */
static bool trace_hex(const char *text, uint8_t *out, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++) {
        int high = trace_digit(text[2 * i]);
        int low = high < 0 ? -1 : trace_digit(text[2 * i + 1]);

        if (low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
        any |= out[i];
    }
    return any != 0;
}

/* "00-" 32 digits "-" 16 digits "-" 2 digits; a later version may have more behind them. */
static bool trace_read_parent(struct trace_span *span, const char *text, bool *is_wanted)
{
    uint8_t version[1] = {0}, flags[1] = {0}, trace_id[16], parent_id[8];
    size_t len = strlen(text);

    if (len < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-')
        return false;
    (void)trace_hex(text, version, 1); /* 0 is a good version */
    if (trace_digit(text[0]) < 0 || trace_digit(text[1]) < 0 || version[0] == 0xff ||
        (version[0] == 0 && len != 55) || (len > 55 && text[55] != '-'))
        return false;
    if (!trace_hex(text + 3, trace_id, 16) || !trace_hex(text + 36, parent_id, 8) ||
        trace_digit(text[53]) < 0 || trace_digit(text[54]) < 0)
        return false;
    (void)trace_hex(text + 53, flags, 1);
    memcpy(span->trace_id, trace_id, sizeof trace_id);
    memcpy(span->parent_id, parent_id, sizeof parent_id);
    *is_wanted = (flags[0] & 1) != 0;
    return true;
}

bool trace_begin(struct trace_span *span, const char *parent, const char *state)
{
    bool is_wanted = true;
    size_t len = strlen(state);

    memset(span, 0, sizeof *span);
    span->start_us = clock_us();
    if (getrandom(span->span_id, sizeof span->span_id, 0) != (ssize_t)sizeof span->span_id)
        return false;
    if (!trace_read_parent(span, parent, &is_wanted))
        return getrandom(span->trace_id, sizeof span->trace_id, 0) ==
               (ssize_t)sizeof span->trace_id;
    if (len < sizeof span->state)
        memcpy(span->state, state, len + 1);
    return is_wanted;
}

/* --- the queue -------------------------------------------------------------------------------- */

void trace_put(struct trace *t, const struct trace_span *span)
{
    bool fits;

    (void)pthread_mutex_lock(&t->lock);
    fits = t->n < TRACE_QUEUE;
    if (fits) {
        t->queue[(t->first + t->n) % TRACE_QUEUE] = *span;
        t->n++;
        if (t->n == 1 || t->n == TRACE_BATCH)
            (void)pthread_cond_signal(&t->news);
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (!fits)
        atomic_fetch_add_explicit(&t->n_dropped, 1, memory_order_relaxed);
}

void trace_count(struct trace *t, uint32_t *n_sent, uint32_t *n_dropped)
{
    *n_sent = atomic_load_explicit(&t->n_sent, memory_order_relaxed);
    *n_dropped = atomic_load_explicit(&t->n_dropped, memory_order_relaxed);
}

/* Wait for a signal, for ms at most. The lock is held. */
static void trace_wait(struct trace *t, pthread_cond_t *what, int ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until); /* cannot fail */
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(what, &t->lock, &until); /* the caller looks again */
}

/* The next batch; 0: the end. */
static int trace_take(struct trace *t)
{
    uint64_t full_us;
    int n;

    (void)pthread_mutex_lock(&t->lock);
    while (t->n == 0 && !t->ends)
        (void)pthread_cond_wait(&t->news, &t->lock);
    full_us = clock_us() + TRACE_GATHER_MS * 1000u;
    while (t->n < TRACE_BATCH && !t->ends && clock_us() < full_us)
        trace_wait(t, &t->news, (int)((full_us - clock_us()) / 1000 + 1));
    n = t->n < TRACE_BATCH ? t->n : TRACE_BATCH;
    for (int i = 0; i < n; i++)
        t->batch[i] = t->queue[(t->first + i) % TRACE_QUEUE];
    t->first = (t->first + n) % TRACE_QUEUE;
    t->n -= n;
    (void)pthread_mutex_unlock(&t->lock);
    return n;
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Pause before the next attempt; false: the front ends, and there is none. */
static bool trace_pause(struct trace *t, int ms)
{
    uint64_t until_us = clock_us() + (uint64_t)ms * 1000u;
    bool ends;

    (void)pthread_mutex_lock(&t->lock);
    while (!t->ends && clock_us() < until_us)
        trace_wait(t, &t->news, (int)((until_us - clock_us()) / 1000 + 1));
    ends = t->ends;
    (void)pthread_mutex_unlock(&t->lock);
    return !ends;
}

static void trace_tell(struct trace *t, int n, int status, const char *why)
{
    uint64_t now_us = clock_us();

    if (t->told_us != 0 && now_us - t->told_us < TRACE_TELL_US)
        return;
    t->told_us = now_us;
    if (status != 0)
        log_warn("front: the collector of otlp_traces_endpoint answers %d: %d spans are dropped, "
                 "requests are served",
                 status, n);
    else
        log_warn("front: the collector of otlp_traces_endpoint: %s: %d spans are dropped, requests "
                 "are served",
                 why, n);
}

static bool trace_may_retry(int rc, int status)
{
    return rc != ERR_OK || status == 429 || (status >= 502 && status <= 504);
}

/* Send the batch, or drop it. */
static void trace_send(struct trace *t, int n)
{
    struct timespec wall = {0};
    struct buf body = {0};
    const char *why = "no memory";
    int rc = ERR_NO_MEMORY, status = 0, pause_ms = TRACE_AGAIN_MS;

    (void)clock_gettime(CLOCK_REALTIME, &wall); /* cannot fail */
    otlp_add(&body, t->batch, n,
             (uint64_t)wall.tv_sec * 1000000u + (uint64_t)wall.tv_nsec / 1000u - clock_us());
    for (int i = 0; i < TRACE_TRIES && !body.failed; i++) {
        if (i > 0 && !trace_pause(t, pause_ms))
            break;
        pause_ms *= i > 0 ? 2 : 1;
        status = 0;
        rc = post_send(&t->to, &body, t->ends ? TRACE_END_MS : TRACE_TIMEOUT_MS, &status, &why);
        if (!trace_may_retry(rc, status))
            break;
    }
    buf_fini(&body);
    if (rc == ERR_OK && status >= 200 && status < 300) {
        if (t->told_us != 0)
            log_info("front: the collector of otlp_traces_endpoint takes spans again");
        t->told_us = 0;
        atomic_fetch_add_explicit(&t->n_sent, (uint32_t)n, memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&t->n_dropped, (uint32_t)n, memory_order_relaxed);
    trace_tell(t, n, status, why);
}

static void *trace_run(void *trace)
{
    struct trace *t = trace;
    int n;

    while ((n = trace_take(t)) > 0) /* until the end */
        trace_send(t, n);
    (void)pthread_mutex_lock(&t->lock);
    t->ended = true;
    (void)pthread_cond_signal(&t->over);
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* --- open and close --------------------------------------------------------------------------- */

static int trace_init(struct trace *t)
{
    pthread_condattr_t attr;

    t->queue = mem_zalloc_array(TRACE_QUEUE, sizeof *t->queue);
    t->batch = mem_zalloc_array(TRACE_BATCH, sizeof *t->batch);
    if (t->queue == NULL || t->batch == NULL)
        return ERR_NO_MEMORY;
    if (pthread_mutex_init(&t->lock, NULL) != 0 || pthread_condattr_init(&attr) != 0 ||
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
        pthread_cond_init(&t->news, &attr) != 0 || pthread_cond_init(&t->over, &attr) != 0)
        return ERR_IO;
    return ERR_OK;
}

int trace_open(struct trace **out, const char *endpoint)
{
    struct trace *t = mem_zalloc(sizeof *t);
    int rc;

    if (t == NULL)
        return ERR_NO_MEMORY;
    rc = post_read(&t->to, endpoint);
    if (rc != ERR_OK)
        log_error("front: otlp_traces_endpoint \"%s\" must be http://host:port/path or "
                  "unix:/path/of/a/socket; nginx/quire-traces.conf leads to a collector with TLS",
                  endpoint);
    else
        rc = trace_init(t);
    if (rc == ERR_OK && pthread_create(&t->thread, NULL, trace_run, t) != 0) {
        log_error("front: cannot start the thread for traces");
        rc = ERR_IO;
    }
    if (rc != ERR_OK) {
        mem_free(t->queue);
        mem_free(t->batch);
        mem_free(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

/* A thread that does not come to its end is left to the end of the process. */
void trace_close(struct trace *t)
{
    uint64_t until_us = clock_us() + TRACE_END_MS * 1000u;
    bool ended;

    if (t == NULL)
        return;
    (void)pthread_mutex_lock(&t->lock);
    t->ends = true;
    (void)pthread_cond_signal(&t->news);
    while (!t->ended && clock_us() < until_us)
        trace_wait(t, &t->over, (int)((until_us - clock_us()) / 1000 + 1));
    ended = t->ended;
    (void)pthread_mutex_unlock(&t->lock);
    if (!ended)
        return;
    (void)pthread_join(t->thread, NULL);
    mem_free(t->queue);
    mem_free(t->batch);
    mem_free(t);
}
