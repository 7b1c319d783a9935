/* SPDX-License-Identifier: Apache-2.0
 *
 * The idle pool: accepted connections on which no byte has arrived yet.
 *
 * A reader blocks while it reads a request, so it takes a connection only when there is something
 * to read. A silent connection holds no reader. It is closed after IDLE_POOL_SILENT_US, or earlier,
 * oldest first, when there are IDLE_POOL_GUESTS of them. That does not harm nginx: each of its
 * workers has at most one connection that is open and not yet written to. Connections that come
 * while the process has no free descriptor wait in the backlog (base/listener.h).
 *
 * Any reader thread may call all functions. */
#ifndef QUIRE_FRONT_HTTP_IDLE_POOL_H
#define QUIRE_FRONT_HTTP_IDLE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/listener.h"

#define IDLE_POOL_GUESTS 64
/* us; an nginx that lost its core for a while comes back in this time */
#define IDLE_POOL_SILENT_US 5000000

struct idle_pool_guest {
    int fd;        /* 0: the place is free */
    uint32_t turn; /* distinguishes successive guests of this place */
    /* clock_us() when it was accepted */
    uint64_t since_us;
};

struct idle_pool {
    int epoll_fd; /* shared by all readers; each event wakes one of them */
    int shut_fd;  /* a timer: watch the listening socket again after a shortage of descriptors */
    struct listener
        listener;         /* owned by the reader that got its event, until it is watched again */
    pthread_mutex_t lock; /* guards the members below */
    struct idle_pool_guest guests[IDLE_POOL_GUESTS];
    uint32_t turn;
    _Atomic int n_guests;
};

/* Start watching. listen_fd is non-blocking; stop_fd becomes readable when the process must stop
 * accepting. Both are borrowed. ERR_IO (logged), ERR_NO_MEMORY. */
int idle_pool_open(struct idle_pool *l, int listen_fd, int stop_fd) ERR_CHECKED;

/* Wait for a connection with something to read; *fd is the caller's. ERR_AGAIN: none yet.
 * ERR_DRAINING: the process stops; *fd is a last connection that has sent something, or -1 when
 * none is left. */
int idle_pool_next(struct idle_pool *l, int *fd) ERR_CHECKED;

#endif
