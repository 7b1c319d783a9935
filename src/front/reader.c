/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader threads: accept, read the body, route, hand over. nginx has buffered the whole request
 * before it connects, so no slow client holds a reader.
 *
 * Each waits in an epoll of its own, with EPOLLEXCLUSIVE: a connection wakes one reader that
 * sleeps, not all of them to find that another was faster. One that comes while all are busy is
 * found by the first that is not.
 *
 * An answer that is whole when its request has been read goes out at once, as far as the socket
 * takes it: the streamer would have to wake for it, and on a busy machine to find a core. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "front/front.h"

#define READER_STACK_BYTES ((size_t)8 << 20) /* templates and grammars recurse, boundedly */

struct reader {
    struct front *f;
    int epoll_fd;
};

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

static void reader_take(struct front *f)
{
    struct fcgi *request = NULL;
    struct exchange *x;

    if (fcgi_accept(&request, f->listen_fd) != ERR_OK)
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

static void reader_close(struct reader *r)
{
    if (r->epoll_fd != -1)
        (void)close(r->epoll_fd);
    mem_free(r);
}

/* Accept until stop_fd is readable. */
static void *reader_run(void *reader)
{
    struct reader *r = reader;
    struct front *f = r->f;
    uint64_t one = 1;

    for (;;) { /* until stop_fd is readable */
        struct epoll_event ev[2];
        int n = epoll_wait(r->epoll_fd, ev, 2, -1);

        if (n <= 0)
            continue; /* EINTR */
        if (ev[0].data.fd == f->stop_fd || (n == 2 && ev[1].data.fd == f->stop_fd))
            break;
        reader_take(f);
    }
    reader_close(r);
    atomic_fetch_sub(&f->n_readers, 1);
    (void)!write(f->handover_fd, &one, sizeof one); /* the streamer may wait for the last one */
    return NULL;
}

static int reader_open(struct reader **out, struct front *f)
{
    struct epoll_event listen = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = f->listen_fd};
    struct epoll_event stop = {.events = EPOLLIN, .data.fd = f->stop_fd};
    struct reader *r = mem_zalloc(sizeof *r);

    if (r == NULL)
        return ERR_NO_MEMORY;
    *r = (struct reader){.f = f, .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    if (r->epoll_fd == -1 || epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, f->listen_fd, &listen) == -1 ||
        epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, f->stop_fd, &stop) == -1) {
        log_error("front: epoll: %s", strerror(errno));
        reader_close(r);
        return ERR_IO;
    }
    *out = r;
    return ERR_OK;
}

int reader_start(struct front *f)
{
    struct reader *r = NULL;
    pthread_attr_t attr;
    pthread_t thread;
    int rc = reader_open(&r, f);

    if (rc != ERR_OK)
        return rc;
    atomic_fetch_add(&f->n_readers, 1);
    if (pthread_attr_init(&attr) == 0 &&
        pthread_attr_setstacksize(&attr, READER_STACK_BYTES) == 0 &&
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
        pthread_create(&thread, &attr, reader_run, r) == 0)
        return ERR_OK;
    log_error("front: a thread cannot be made: %s", strerror(errno));
    atomic_fetch_sub(&f->n_readers, 1);
    reader_close(r);
    return ERR_NO_MEMORY;
}
