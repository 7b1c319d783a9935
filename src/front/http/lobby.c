/* SPDX-License-Identifier: Apache-2.0 */
#include "front/http/lobby.h"

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

#define LOBBY_TICK_MS  1000
#define LOBBY_LEAVE_MS 1000 /* at the end: for those who have come before it */

/* epoll's data: guests add their index and, above 32 bits, their turn. */
enum lobby_source { LOBBY_LISTEN, LOBBY_SHUT, LOBBY_STOP, LOBBY_GUEST };

static int lobby_watch(const struct lobby *l, int how, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event ev = {.events = events, .data.u64 = data};

    return epoll_ctl(l->epoll_fd, how, fd, &ev) == 0 ? ERR_OK : ERR_IO;
}

int lobby_open(struct lobby *l, int listen_fd, int stop_fd)
{
    *l = (struct lobby){.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                        .shut_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
                        .door = {.who = "front", .fd = listen_fd}};
    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return ERR_NO_MEMORY;
    if (l->epoll_fd == -1 || l->shut_fd == -1 ||
        lobby_watch(l, EPOLL_CTL_ADD, listen_fd, EPOLLIN | EPOLLONESHOT, LOBBY_LISTEN) != ERR_OK ||
        lobby_watch(l, EPOLL_CTL_ADD, l->shut_fd, EPOLLONESHOT, LOBBY_SHUT) != ERR_OK ||
        lobby_watch(l, EPOLL_CTL_ADD, stop_fd, EPOLLIN, LOBBY_STOP) != ERR_OK) {
        log_error("front: epoll: %s", strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}

/* The place's connection is the caller's from now on. */
static int lobby_vacate_locked(struct lobby *l, struct lobby_guest *g)
{
    int fd = g->fd;

    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* it is there */
    g->fd = 0;
    atomic_fetch_sub(&l->n_guests, 1);
    return fd;
}

/* A place for one more: a free one, or that of who has been silent for longest. */
static struct lobby_guest *lobby_place_locked(struct lobby *l)
{
    struct lobby_guest *first = &l->guests[0];

    for (int i = 0; i < LOBBY_GUESTS; i++) {
        struct lobby_guest *g = &l->guests[i];

        if (g->fd == 0)
            return g;
        if (g->since_us < first->since_us)
            first = g;
    }
    (void)close(lobby_vacate_locked(l, first));
    return first;
}

static void lobby_admit(struct lobby *l, int fd)
{
    struct lobby_guest *g;
    uint64_t data;

    (void)pthread_mutex_lock(&l->lock);
    g = lobby_place_locked(l);
    *g = (struct lobby_guest){.fd = fd, .turn = ++l->turn, .since_us = clock_us()};
    atomic_fetch_add(&l->n_guests, 1);
    data = (uint64_t)g->turn << 32 | (uint64_t)(LOBBY_GUEST + (g - l->guests));
    if (lobby_watch(l, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, data) != ERR_OK) {
        log_warn("front: epoll: %s", strerror(errno));
        (void)close(lobby_vacate_locked(l, g));
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* The guest that an event is of, or -1 when he was sent away meanwhile. */
static int lobby_call(struct lobby *l, uint64_t data)
{
    struct lobby_guest *g = &l->guests[(data & UINT32_MAX) - LOBBY_GUEST];
    int fd = -1;

    (void)pthread_mutex_lock(&l->lock);
    if (g->fd != 0 && g->turn == data >> 32)
        fd = lobby_vacate_locked(l, g);
    (void)pthread_mutex_unlock(&l->lock);
    return fd;
}

static void lobby_send_away(struct lobby *l)
{
    uint64_t now_us;

    (void)pthread_mutex_lock(&l->lock);
    now_us = clock_us(); /* not before any guest came */
    for (int i = 0; i < LOBBY_GUESTS; i++) {
        struct lobby_guest *g = &l->guests[i];

        if (g->fd != 0 && now_us - g->since_us > LOBBY_SILENT_US)
            (void)close(lobby_vacate_locked(l, g));
    }
    (void)pthread_mutex_unlock(&l->lock);
}

static bool lobby_speaks(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, timeout_ms) == 1;
}

/* Whoever comes to the door next is for any reader. */
static void lobby_open_door(struct lobby *l)
{
    if (lobby_watch(l, EPOLL_CTL_MOD, l->door.fd, EPOLLIN | EPOLLONESHOT, LOBBY_LISTEN) != ERR_OK)
        log_error("front: epoll: %s", strerror(errno));
}

/* Nobody looks at the door until the timer's event, which is for any reader, too. */
static void lobby_shut_door(struct lobby *l)
{
    const struct itimerspec t = {.it_value = {.tv_nsec = DOOR_SHUT_MS * 1000000L}};

    if (timerfd_settime(l->shut_fd, 0, &t, NULL) == -1 ||
        lobby_watch(l, EPOLL_CTL_MOD, l->shut_fd, EPOLLIN | EPOLLONESHOT, LOBBY_SHUT) != ERR_OK)
        log_error("front: timer: %s", strerror(errno));
}

/* Who is at the door. */
static int lobby_accept(struct lobby *l, int *fd)
{
    int k;
    int rc = door_accept(&l->door, SOCK_CLOEXEC, &k);

    if (rc == ERR_OVERLOADED)
        lobby_shut_door(l);
    else
        lobby_open_door(l);
    if (rc != ERR_OK)
        return ERR_AGAIN;
    if (!lobby_speaks(k, 0)) {
        lobby_admit(l, k);
        return ERR_AGAIN;
    }
    *fd = k;
    return ERR_OK;
}

/* One of those who have not spoken when the process stops. */
static int lobby_last(struct lobby *l)
{
    int fd = -1;

    (void)pthread_mutex_lock(&l->lock);
    for (int i = 0; i < LOBBY_GUESTS && fd == -1; i++) {
        struct lobby_guest *g = &l->guests[i];
        uint64_t waited_ms = (clock_us() - g->since_us) / 1000;
        bool late = waited_ms >= LOBBY_LEAVE_MS;

        if (g->fd == 0)
            continue;
        fd = lobby_vacate_locked(l, g);
        if (lobby_speaks(fd, late ? 0 : LOBBY_LEAVE_MS - (int)waited_ms))
            continue;
        (void)close(fd);
        fd = -1;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return fd;
}

int lobby_next(struct lobby *l, int *fd)
{
    struct epoll_event ev;
    int n = epoll_wait(l->epoll_fd, &ev, 1, atomic_load(&l->n_guests) > 0 ? LOBBY_TICK_MS : -1);

    if (atomic_load(&l->n_guests) > 0)
        lobby_send_away(l);
    if (n <= 0)
        return ERR_AGAIN; /* or EINTR */
    if (ev.data.u64 == LOBBY_LISTEN)
        return lobby_accept(l, fd);
    if (ev.data.u64 == LOBBY_SHUT) {
        lobby_open_door(l);
        return ERR_AGAIN;
    }
    if (ev.data.u64 == LOBBY_STOP) {
        *fd = lobby_last(l);
        return ERR_DRAINING;
    }
    *fd = lobby_call(l, ev.data.u64);
    return *fd == -1 ? ERR_AGAIN : ERR_OK;
}
