/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader threads: accept a connection, read the body, route it, hand it over to the streamer.
 *
 * nginx has buffered the whole request before it connects, so a slow client cannot hold a reader;
 * a silent peer cannot either (idle_pool.h). A connection wakes one sleeping reader; one that comes
 * while all are busy is found by the first that becomes free.
 *
 * A reader that must wait for the compilation of a form lets another reader take its place. So
 * front_threads readers look for requests and read them, and some more may wait for compilers. The
 * additional threads are started when they are needed for the first time, and stay.
 *
 * An answer that is complete when its request has been read is sent at once, as far as the socket
 * takes it, because waking the streamer for it would cost time, and on a busy machine a core. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "front/front.h"

/* for templates and grammars, whose recursion is deep but bounded */
#define READER_STACK_BYTES ((size_t)8 << 20)

/* Send a complete answer. True when nothing is left to do for x: all bytes were sent, or the client
 * has gone. Otherwise the streamer sends the rest. */
static bool reader_answer(struct exchange *x)
{
    long n;

    if (!x->complete || x->out.failed)
        return false;
    n = fcgi_write_last(x->fcgi, x->out.bytes, x->out.len);
    if (n < 0)
        return true;
    x->out_sent = (size_t)n;
    return fcgi_has_ended(x->fcgi);
}

/* Read one request from its first byte on, and answer it or hand it over. */
static void reader_take(struct front *f, int fd)
{
    struct fcgi *request = NULL;
    struct exchange *x;

    if (fcgi_open(&request, fd) != ERR_OK)
        return;
    if (FAULT_HIT(front_accept))
        x = NULL;
    else
        x = exchange_new(request);
    if (x == NULL) {
        fcgi_close(request);
        return;
    }
    route_exchange(f, x);
    if (reader_answer(x))
        exchange_free(x);
    else
        streamer_adopt(f, x);
}

/* Wait as a spare reader until fewer than front_threads readers look for requests. */
static void reader_wait_place(struct front *f)
{
    (void)atomic_fetch_add(&f->n_spare, 1);
    while (sem_wait(&f->reading) != 0) /* a signal came */
        continue;
    (void)atomic_fetch_sub(&f->n_spare, 1);
}

/* True when one reader too many looks for requests and the caller is the one to stop. */
static bool reader_is_surplus(struct front *f)
{
    int n = atomic_load(&f->n_surplus);

    while (n > 0)
        if (atomic_compare_exchange_weak(&f->n_surplus, &n, n - 1))
            return true;
    return false;
}

void reader_step_back(void *front)
{
    struct front *f = front;

    if (sem_trywait(&f->reading) != 0) /* all places are taken: one of the readers must wait after
                                        * its request */
        (void)atomic_fetch_add(&f->n_surplus, 1);
}

void reader_step_aside(void *front)
{
    struct front *f = front;

    int rc = atomic_load(&f->n_spare) == 0 ? reader_start(f) : ERR_OK;

    (void)rc; /* logged; then the place stays free until this reader takes it back */
    (void)sem_post(&f->reading);
}

/* A reader's thread: requests until stop_fd is readable, then the connections accepted before. */
static void *reader_run(void *front)
{
    struct front *f = front;
    uint64_t one = 1;
    int rc, fd;

    reader_wait_place(f);
    do {
        if (reader_is_surplus(f))
            reader_wait_place(f);
        fd = -1;
        rc = idle_pool_next(&f->idle_pool, &fd);
        if (fd != -1)
            reader_take(f, fd);
    } while (rc != ERR_DRAINING || fd != -1);
    (void)sem_post(&f->reading); /* let a spare reader end as well */
    hash_end_thread();
    atomic_fetch_sub(&f->n_readers, 1);
    (void)!write(f->handover_fd, &one, sizeof one); /* the streamer may be waiting for the last
                                                     * reader */
    return NULL;
}

int reader_start(struct front *f)
{
    pthread_attr_t attr;
    pthread_t thread;

    atomic_fetch_add(&f->n_readers, 1);
    if (pthread_attr_init(&attr) == 0 &&
        pthread_attr_setstacksize(&attr, READER_STACK_BYTES) == 0 &&
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
        pthread_create(&thread, &attr, reader_run, f) == 0)
        return ERR_OK;
    log_error("front: cannot start a thread: %s; raise TasksMax or free memory", strerror(errno));
    atomic_fetch_sub(&f->n_readers, 1);
    return ERR_NO_MEMORY;
}
