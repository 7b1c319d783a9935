/* The idle pool: connections that were accepted and have not said anything.
 *
 * libfcgi reads a request from its first byte on and blocks meanwhile, so a reader takes a
 * connection only when there is something to read. Who says nothing holds no reader, is sent away
 * after IDLE_POOL_SILENT_US, and when IDLE_POOL_GUESTS are silent the one who came first has to go.
 * No worker of nginx is between connecting and writing with more than one connection. Whoever comes
 * while the process has no descriptor left waits in the backlog (base/listener.h).
 *
 * All functions from any reader thread. */
#ifndef QUIRE_FRONT_HTTP_IDLE_POOL_H
#define QUIRE_FRONT_HTTP_IDLE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/listener.h"

#define IDLE_POOL_GUESTS    64
#define IDLE_POOL_SILENT_US 5000000 /* an nginx that lost its core comes back in this time */

struct idle_pool_guest {
    int fd;        /* 0: the place is free */
    uint32_t turn; /* tells who has it from who had it before */
    uint64_t since_us;
};

struct idle_pool {
    int epoll_fd; /* of all readers; each event is for one of them */
    int shut_fd;  /* a timer: the door, shut for want of descriptors, is opened again */
    struct listener
        listener; /* belongs to the reader who got its event, until he has it watched again */
    pthread_mutex_t lock; /* guards what follows */
    struct idle_pool_guest guests[IDLE_POOL_GUESTS];
    uint32_t turn;
    _Atomic int n_guests;
};

/* listen_fd is non-blocking; stop_fd becomes readable when no more is to be accepted. Both are
 * borrowed. ERR_IO (logged), ERR_NO_MEMORY. */
int idle_pool_open(struct idle_pool *l, int listen_fd, int stop_fd) ERR_CHECKED;

/* Wait for somebody who speaks; *fd is the caller's. ERR_AGAIN: nobody yet. ERR_DRAINING: nobody is
 * to be accepted any more; *fd may be one of those who are here, to be heard if they speak within
 * the time that a call waits, and is -1 when all have left. */
int idle_pool_next(struct idle_pool *l, int *fd) ERR_CHECKED;

#endif
