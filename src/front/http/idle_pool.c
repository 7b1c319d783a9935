/* SPDX-License-Identifier: Apache-2.0
 *
 * The idle pool: connections wait in an epoll set until their first byte arrives. All readers wait
 * on the same set. Every descriptor in it is EPOLLONESHOT, so that an event wakes exactly one
 * reader, which then owns the descriptor until it adds it again.
 *
 *   accepted, has bytes    a reader reads it
 *   accepted, silent       becomes a guest
 *   a guest, first byte    one reader wakes and reads it
 *   a guest, silent for IDLE_POOL_SILENT_US, or its place is needed: it is closed */
#include "front/http/idle_pool.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"

#define IDLE_POOL_TICK_MS 1000
/* time that idle connections get for a first byte when the process stops */
#define IDLE_POOL_LEAVE_MS 1000

/* The data of epoll events. For a guest: its index, and above 32 bits its turn. */
enum idle_pool_source { IDLE_POOL_LISTEN, IDLE_POOL_SHUT, IDLE_POOL_STOP, IDLE_POOL_GUEST };

/* Add or change a descriptor in the epoll set; how is EPOLL_CTL_ADD or EPOLL_CTL_MOD. */
static int idle_pool_watch(const struct idle_pool *l, int how, int fd, uint32_t events,
                           uint64_t data)
{
    struct epoll_event ev = {.events = events, .data.u64 = data};

    if (epoll_ctl(l->epoll_fd, how, fd, &ev) == 0)
        return ERR_OK;
    return ERR_IO;
}

/* Make the set, with the listening socket, a timer, and the descriptor that ends the wait. The
 * timer is not set yet. */
int idle_pool_open(struct idle_pool *l, int listen_fd, int stop_fd)
{
    *l = (struct idle_pool){.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                            .shut_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                            .listener = {.who = "front", .fd = listen_fd}};
    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return ERR_NO_MEMORY;
    if (l->epoll_fd == -1 || l->shut_fd == -1 ||
        idle_pool_watch(l, EPOLL_CTL_ADD, listen_fd, EPOLLIN | EPOLLONESHOT, IDLE_POOL_LISTEN) !=
            ERR_OK ||
        idle_pool_watch(l, EPOLL_CTL_ADD, l->shut_fd, EPOLLONESHOT, IDLE_POOL_SHUT) != ERR_OK ||
        idle_pool_watch(l, EPOLL_CTL_ADD, stop_fd, EPOLLIN, IDLE_POOL_STOP) != ERR_OK) {
        log_error("front: epoll: %s", strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}

/* Guests. guests[] holds the silent connections. A place can be freed and given to another
 * connection between an event and the lock, and even the descriptor's number can be the same; the
 * turn in the event's data reveals that. */
/* Free a place; its connection belongs to the caller from now on. */
static int idle_pool_vacate_locked(struct idle_pool *l, struct idle_pool_guest *g)
{
    int fd = g->fd;

    must(g->fd != 0);
    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* cannot fail: it is in the set */
    g->fd = 0;
    atomic_fetch_sub(&l->n_guests, 1);
    return fd;
}

/* A place for another connection: a free one, or that of the longest silent one, which is
 * closed. */
static struct idle_pool_guest *idle_pool_place_locked(struct idle_pool *l)
{
    struct idle_pool_guest *first = &l->guests[0];

    for (int i = 0; i < IDLE_POOL_GUESTS; i++) {
        struct idle_pool_guest *guest = &l->guests[i];

        if (guest->fd == 0)
            return guest;
        if (guest->since_us < first->since_us)
            first = guest;
    }
    (void)close(idle_pool_vacate_locked(l, first));
    return first;
}

/* A connection without a byte becomes a guest. */
static void idle_pool_admit(struct idle_pool *l, int fd)
{
    struct idle_pool_guest *guest;
    uint64_t data;

    (void)pthread_mutex_lock(&l->lock);
    guest = idle_pool_place_locked(l);
    *guest = (struct idle_pool_guest){.fd = fd, .turn = ++l->turn, .since_us = clock_us()};
    atomic_fetch_add(&l->n_guests, 1);
    data = (uint64_t)guest->turn << 32 | (uint64_t)(IDLE_POOL_GUEST + (guest - l->guests));
    if (idle_pool_watch(l, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, data) != ERR_OK) {
        log_warn("front: epoll: %s", strerror(errno));
        (void)close(idle_pool_vacate_locked(l, guest));
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* The connection of a guest's event, or -1 when the guest was closed in the meantime. */
static int idle_pool_call(struct idle_pool *l, uint64_t data)
{
    struct idle_pool_guest *guest = &l->guests[(data & UINT32_MAX) - IDLE_POOL_GUEST];
    int fd = -1;

    must((data & UINT32_MAX) >= IDLE_POOL_GUEST);
    (void)pthread_mutex_lock(&l->lock);
    if (guest->fd != 0 && guest->turn == data >> 32)
        fd = idle_pool_vacate_locked(l, guest);
    (void)pthread_mutex_unlock(&l->lock);
    return fd;
}

/* Close the connections that were silent for too long. */
static void idle_pool_send_away(struct idle_pool *l)
{
    uint64_t now_us;

    (void)pthread_mutex_lock(&l->lock);
    now_us = clock_us(); /* read under the lock, so not before any guest's time */
    for (int i = 0; i < IDLE_POOL_GUESTS; i++) {
        struct idle_pool_guest *guest = &l->guests[i];

        if (guest->fd != 0 && now_us - guest->since_us > IDLE_POOL_SILENT_US)
            (void)close(idle_pool_vacate_locked(l, guest));
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* Has the connection sent a byte, or does it within the time? */
static bool idle_pool_speaks(int fd, int timeout_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    return poll(&poll_fd, 1, timeout_ms) == 1;
}

/* Watch the listening socket again: the next connection is for any reader. */
static void idle_pool_open_door(struct idle_pool *l)
{
    if (idle_pool_watch(l, EPOLL_CTL_MOD, l->listener.fd, EPOLLIN | EPOLLONESHOT,
                        IDLE_POOL_LISTEN) != ERR_OK)
        log_error("front: epoll: %s", strerror(errno));
}

/* Stop watching the listening socket until a timer fires, whose event is for any reader, too. */
static void idle_pool_shut_door(struct idle_pool *l)
{
    const struct itimerspec itimerspec = {.it_value = {.tv_nsec = LISTENER_SHUT_MS * 1000000L}};

    if (timerfd_settime(l->shut_fd, 0, &itimerspec, NULL) == -1 ||
        idle_pool_watch(l, EPOLL_CTL_MOD, l->shut_fd, EPOLLIN | EPOLLONESHOT, IDLE_POOL_SHUT) !=
            ERR_OK)
        log_error("front: timer: %s", strerror(errno));
}

/* Accept a connection. Its reader goes on with it if its first bytes are there, which is the usual
 * case; otherwise it becomes a guest. The socket is watched again before the bytes are read, so
 * that another reader can accept meanwhile. */
static int idle_pool_accept(struct idle_pool *l, int *fd)
{
    int fd_new;
    int rc = listener_accept(&l->listener, SOCK_CLOEXEC, &fd_new);

    if (rc == ERR_OVERLOADED)
        idle_pool_shut_door(l);
    else
        idle_pool_open_door(l);
    if (rc != ERR_OK)
        return ERR_AGAIN;
    if (!idle_pool_speaks(fd_new, 0)) {
        idle_pool_admit(l, fd_new);
        return ERR_AGAIN;
    }
    *fd = fd_new;
    return ERR_OK;
}

/* When the process stops: a guest that has sent something, or does so within its time; -1 when
 * there is none. The others are closed. */
static int idle_pool_last(struct idle_pool *l)
{
    int fd = -1;

    (void)pthread_mutex_lock(&l->lock);
    for (int i = 0; i < IDLE_POOL_GUESTS && fd == -1; i++) {
        struct idle_pool_guest *guest = &l->guests[i];
        uint64_t waited_ms = (clock_us() - guest->since_us) / 1000;
        bool late = waited_ms >= IDLE_POOL_LEAVE_MS;

        if (guest->fd == 0)
            continue;
        fd = idle_pool_vacate_locked(l, guest);
        if (idle_pool_speaks(fd, late ? 0 : (int)(IDLE_POOL_LEAVE_MS - waited_ms)))
            continue;
        (void)close(fd);
        fd = -1;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return fd;
}

/* Wait for a connection that has something to say. ERR_AGAIN: call again; ERR_DRAINING: the process
 * stops, and *fd is a last connection or -1. */
int idle_pool_next(struct idle_pool *l, int *fd)
{
    struct epoll_event ev;
    int n = epoll_wait(l->epoll_fd, &ev, 1, atomic_load(&l->n_guests) > 0 ? IDLE_POOL_TICK_MS : -1);

    if (atomic_load(&l->n_guests) > 0)
        idle_pool_send_away(l);
    if (n <= 0)
        return ERR_AGAIN; /* a timeout, or EINTR */
    if (ev.data.u64 == IDLE_POOL_LISTEN)
        return idle_pool_accept(l, fd);
    if (ev.data.u64 == IDLE_POOL_SHUT) {
        idle_pool_open_door(l);
        return ERR_AGAIN;
    }
    if (ev.data.u64 == IDLE_POOL_STOP) {
        *fd = idle_pool_last(l);
        return ERR_DRAINING;
    }
    *fd = idle_pool_call(l, ev.data.u64);
    if (*fd == -1)
        return ERR_AGAIN;
    return ERR_OK;
}
