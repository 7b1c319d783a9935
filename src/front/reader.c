/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader threads: accept, read the body, route, hand over. nginx has buffered the whole request
 * before it connects, so no slow client holds a reader; neither does a peer that says nothing
 * (idle_pool.h). A connection wakes one reader that sleeps, not all of them to find that another
 * was faster; one that comes while all are busy is found by the first that is not.
 *
 * A reader that has to wait for a form's compilation lets another have its place: as many as
 * front_threads look for requests and read them, and besides some wait for compilers. Those are
 * started when they are needed for the first time, and stay.
 *
 * An answer that is whole when its request has been read goes out at once, as far as the socket
 * takes it: the streamer would have to wake for it, and on a busy machine to find a core. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "front/front.h"

#define READER_STACK_BYTES ((size_t)8 << 20) /* templates and grammars recurse, boundedly */

/* True when there is nothing left to do for x: its whole answer was taken, or nobody is there. */
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

static void reader_take(struct front *f, int fd)
{
    struct fcgi *request = NULL;
    struct exchange *x;

    if (fcgi_open(&request, fd) != ERR_OK)
        return;
    x = FAULT_HIT(front_accept) ? NULL : exchange_new(request);
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

/* As one of the spare ones, until there is a place. */
static void reader_wait_place(struct front *f)
{
    (void)atomic_fetch_add(&f->n_spare, 1);
    while (sem_wait(&f->reading) != 0) /* a signal came */
        continue;
    (void)atomic_fetch_sub(&f->n_spare, 1);
}

/* One reader too many looks for requests: the caller is it, if so. */
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

    if (sem_trywait(&f->reading) != 0) /* another has it: one of us waits after its request */
        (void)atomic_fetch_add(&f->n_surplus, 1);
}

void reader_step_aside(void *front)
{
    struct front *f = front;

    int rc = atomic_load(&f->n_spare) == 0 ? reader_start(f) : ERR_OK;

    (void)rc; /* logged; then the place is free until it is taken back */
    (void)sem_post(&f->reading);
}

/* Take who speaks until stop_fd is readable, and then those who had come before. */
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
    (void)sem_post(&f->reading); /* the spare ones end as well */
    hash_end_thread();
    atomic_fetch_sub(&f->n_readers, 1);
    (void)!write(f->handover_fd, &one, sizeof one); /* the streamer may wait for the last one */
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
    log_error("front: a thread cannot be made: %s", strerror(errno));
    atomic_fetch_sub(&f->n_readers, 1);
    return ERR_NO_MEMORY;
}
