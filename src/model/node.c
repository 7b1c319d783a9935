/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections between two nodes (node.h).
 *
 * Sockets block. On node 0 the engine's thread sends orders, and a thread of its own reads the
 * answers, which are pages; on node 1 one thread reads orders and answers them. Rows are sent and
 * taken by the ranks' workers. On both nodes a further thread sends and awaits beats, because the
 * connections of a process that is stopped stay open. The first thread that sees an end logs it,
 * and shuts all connections down, so that no thread waits any longer. */
#include "config.h"

#include "model/node.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define NODE_MAGIC   0x717569726e6f6465u /* "quirnode" */
#define ASKED_MAX    256                 /* pages that are on their way */
#define WAIT_US      600000000           /* for the other node: it may load a large model */
#define RETRY_MS     200
#define DEAD_S       3       /* probes without an answer until a host counts as dead */
#define BEAT_MS      500     /* between beats */
#define SILENT_US    3500000 /* without one until a node counts as dead */
#define DEAD_SEND_MS 4000    /* bytes without an acknowledgement */

/* The first bytes of a connection. */
struct greeting {
    uint64_t magic;
    int32_t channel; /* 0: control; a part of rows, plus 1; behind the parts: beats */
    int32_t unused;
};

/* Before the rows of a step. */
struct rows_head {
    uint64_t bytes;
};

/* A page, or another answer, that node 1 was asked for. */
struct asked {
    struct node_piece pieces[NODE_PIECES_MAX];
    int n;
};

struct node {
    int rank, n_parts;
    int control_fd;
    int row_fds[NODE_PARTS_MAX];
    int beat_fd;
    char *out[NODE_PARTS_MAX], *in[NODE_PARTS_MAX]; /* host memory for rows on their way */
    size_t row_bytes;
    atomic_bool lost;
    pthread_t reader, beater;
    bool has_reader, has_beater;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t progress;
    struct asked asked[ASKED_MAX]; /* in a ring */
    uint64_t n_asked, n_pages;
};

/* --- bytes -------------------------------------------------------------------------------- */

static void node_shut(struct node *n)
{
    (void)shutdown(n->control_fd, SHUT_RDWR); /* fails on one that is closed: all the same */
    for (int i = 0; i < n->n_parts; i++)
        (void)shutdown(n->row_fds[i], SHUT_RDWR);
    (void)shutdown(n->beat_fd, SHUT_RDWR);
    (void)pthread_mutex_lock(&n->lock);
    (void)pthread_cond_broadcast(&n->progress);
    (void)pthread_mutex_unlock(&n->lock);
}

/* Log the end once, before any thread can see it and end the process. ERR_GPU. */
static int node_lose(struct node *n, int error)
{
    bool is_news;

    (void)pthread_mutex_lock(&n->lock);
    is_news = !atomic_load(&n->lost);
    if (is_news)
        log_error("model: node %d has ended or cannot be reached%s%s; this node ends too, restart "
                  "both",
                  1 - n->rank, error != 0 ? ": " : "", error != 0 ? strerror(error) : "");
    atomic_store(&n->lost, true);
    (void)pthread_mutex_unlock(&n->lock);
    if (is_news)
        node_shut(n);
    return ERR_GPU;
}

bool node_is_lost(const struct node *n)
{
    return atomic_load(&n->lost);
}

const atomic_bool *node_lost_flag(const struct node *n)
{
    return &n->lost;
}

static int node_send(struct node *n, int fd, const void *from, size_t bytes)
{
    const char *at = from;

    while (bytes > 0) { /* ends: each turn sends something, or fails */
        ssize_t some = send(fd, at, bytes, MSG_NOSIGNAL);

        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return node_lose(n, errno);
        at += some;
        bytes -= (size_t)some;
    }
    return ERR_OK;
}

static int node_recv(struct node *n, int fd, void *to, size_t bytes)
{
    char *at = to;

    while (bytes > 0) { /* as above */
        ssize_t some = recv(fd, at, bytes, 0);

        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return node_lose(n, some < 0 ? errno : 0);
        at += some;
        bytes -= (size_t)some;
    }
    return ERR_OK;
}

/* --- opening ------------------------------------------------------------------------------ */

/* Small messages go at once, and a dead host is found within seconds. */
static void node_tune(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},      {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 1},     {IPPROTO_TCP, TCP_KEEPINTVL, 1},
        {IPPROTO_TCP, TCP_KEEPCNT, DEAD_S}, {IPPROTO_TCP, TCP_USER_TIMEOUT, DEAD_SEND_MS}};

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value); /* without them it works more slowly */
}

/* The address of node 0. ERR_INVALID (logged). */
static int node_resolve(const struct node_options *o, struct addrinfo **out)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = o->rank == 0 ? AI_PASSIVE : 0};
    char port[16];
    int error;

    (void)snprintf(port, sizeof port, "%d", o->port);
    if ((error = getaddrinfo(o->addr, port, &hints, out)) == 0)
        return ERR_OK;
    log_error("model: master_addr %s: %s", o->addr, gai_strerror(error));
    return ERR_INVALID;
}

/* The place of a channel's connection. */
static int *node_place_of(struct node *n, int channel)
{
    if (channel == 0)
        return &n->control_fd;
    if (channel <= n->n_parts)
        return &n->row_fds[channel - 1];
    return &n->beat_fd;
}

/* Take a connection for its channel; others than a node's are closed. */
static void node_place(struct node *n, int fd)
{
    const struct timeval patience = {.tv_sec = DEAD_S}, none = {.tv_sec = 0};
    struct greeting hello = {.magic = 0};
    int *place;

    node_tune(fd);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (recv(fd, &hello, sizeof hello, MSG_WAITALL) != (ssize_t)sizeof hello ||
        hello.magic != NODE_MAGIC || hello.channel < 0 || hello.channel > n->n_parts + 1) {
        log_warn("model: a connection that is not of a node of this version and size is closed");
        (void)close(fd);
        return;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    place = node_place_of(n, hello.channel);
    if (*place >= 0)
        (void)close(*place); /* of a life that has ended meanwhile */
    *place = fd;
}

static bool node_is_complete(struct node *n)
{
    for (int channel = 0; channel <= n->n_parts + 1; channel++) {
        if (*node_place_of(n, channel) < 0)
            return false;
    }
    return true;
}

/* Node 0: listen until all connections have come. */
static int node_accept(struct node *n, const struct node_options *o, const struct addrinfo *at)
{
    uint64_t end_us = clock_us() + WAIT_US;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, rc = ERR_AGAIN;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 2 + NODE_PARTS_MAX) != 0) {
        log_error("model: cannot listen on %s, port %d: %s (master_addr, master_port)", o->addr,
                  o->port, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return ERR_IO;
    }
    log_info("model: waiting for node 1 on %s, port %d", o->addr, o->port);
    while (rc == ERR_AGAIN && clock_us() < end_us) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int one;

        if (poll(&ready, 1, RETRY_MS) > 0 && (one = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
            node_place(n, one);
        if (node_is_complete(n))
            rc = ERR_OK;
    }
    (void)close(fd);
    return rc;
}

/* Node 1: one connection; -1: node 0 does not listen yet. */
static int node_connect_one(const struct addrinfo *at, int channel)
{
    const struct greeting hello = {.magic = NODE_MAGIC, .channel = channel};
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == (ssize_t)sizeof hello) {
        node_tune(fd);
        return fd;
    }
    (void)close(fd);
    return -1;
}

static int node_connect(struct node *n, const struct node_options *o, const struct addrinfo *at)
{
    uint64_t end_us = clock_us() + WAIT_US;

    log_info("model: connecting to node 0 at %s, port %d", o->addr, o->port);
    while (clock_us() < end_us) {
        for (int channel = 0; channel <= n->n_parts + 1; channel++) {
            int *place = node_place_of(n, channel);

            if (*place < 0 && (*place = node_connect_one(at, channel)) < 0)
                break; /* node 0 does not listen */
        }
        if (node_is_complete(n))
            return ERR_OK;
        (void)usleep(RETRY_MS * 1000);
    }
    return ERR_AGAIN;
}

static int32_t node_less(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Both send theirs first, and then compare. */
static int node_greet(struct node *n, struct node_hello *own)
{
    struct node_hello other;
    int rc = node_send(n, n->control_fd, own, sizeof *own);

    if (rc == ERR_OK)
        rc = node_recv(n, n->control_fd, &other, sizeof other);
    if (rc != ERR_OK)
        return rc;
    if (memcmp(own, &other, offsetof(struct node_hello, n_pages)) != 0) {
        log_error("model: the nodes differ: they must have the same version of quire, model, "
                  "formats, page_tokens, max_num_seqs, max_num_batched_tokens, "
                  "tensor_parallel_size and pipeline_parallel_size");
        return ERR_INVALID;
    }
    own->n_pages = node_less(own->n_pages, other.n_pages);
    own->max_model_len = node_less(own->max_model_len, other.max_model_len);
    own->fused_max = node_less(own->fused_max, other.fused_max);
    own->sleeps = node_less(own->sleeps, other.sleeps);
    own->links = node_less(own->links, other.links);
    if (n->rank > 0)
        memcpy(own->far_names, other.far_names, sizeof own->far_names);
    return ERR_OK;
}

static int node_alloc(struct node *n, const struct node_options *o)
{
    n->row_bytes = o->row_bytes;
    for (int i = 0; i < n->n_parts; i++) {
        n->out[i] = mem_alloc(o->row_bytes);
        n->in[i] = mem_alloc(o->row_bytes);
        if (n->out[i] == NULL || n->in[i] == NULL)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

static void *node_read_pages(void *arg);
static void *node_beat(void *arg);

static int node_start_threads(struct node *n)
{
    n->has_beater = pthread_create(&n->beater, NULL, node_beat, n) == 0;
    if (n->rank == 0)
        n->has_reader = pthread_create(&n->reader, NULL, node_read_pages, n) == 0;
    return n->has_beater && (n->rank != 0 || n->has_reader) ? ERR_OK : ERR_NO_MEMORY;
}

int node_open(struct node **out, const struct node_options *o, struct node_hello *hello)
{
    struct node *node = mem_zalloc(sizeof *node);
    struct addrinfo *at = NULL;
    int rc;

    must(o->n_parts >= 1 && o->n_parts <= NODE_PARTS_MAX && (o->rank == 0 || o->rank == 1));
    if (node == NULL)
        return ERR_NO_MEMORY;
    node->rank = o->rank;
    node->n_parts = o->n_parts;
    node->control_fd = node->beat_fd = -1;
    memset(node->row_fds, 0xff, sizeof node->row_fds); /* -1 */
    (void)pthread_mutex_init(&node->lock, NULL);       /* cannot fail on Linux */
    (void)pthread_cond_init(&node->progress, NULL);
    rc = node_alloc(node, o);
    if (rc == ERR_OK)
        rc = node_resolve(o, &at);
    if (rc == ERR_OK)
        rc = o->rank == 0 ? node_accept(node, o, at) : node_connect(node, o, at);
    if (rc == ERR_AGAIN)
        log_error("model: node %d did not come within %d s", 1 - o->rank, WAIT_US / 1000000);
    if (rc == ERR_OK)
        rc = node_greet(node, hello);
    if (rc == ERR_OK)
        rc = node_start_threads(node);
    if (at != NULL)
        freeaddrinfo(at);
    if (rc == ERR_OK)
        *out = node;
    else
        node_close(node);
    return rc;
}

void node_close(struct node *n)
{
    if (n == NULL)
        return;
    atomic_store(&n->lost, true); /* an end from here on is no news */
    node_shut(n);
    if (n->has_reader)
        (void)pthread_join(n->reader, NULL);
    if (n->has_beater)
        (void)pthread_join(n->beater, NULL);
    for (int channel = 0; channel <= n->n_parts + 1; channel++) {
        if (*node_place_of(n, channel) >= 0)
            (void)close(*node_place_of(n, channel));
    }
    for (int i = 0; i < n->n_parts; i++) {
        mem_free(n->out[i]);
        mem_free(n->in[i]);
    }
    (void)pthread_cond_destroy(&n->progress);
    (void)pthread_mutex_destroy(&n->lock);
    mem_free(n);
}

/* --- beats -------------------------------------------------------------------------------- */

/* A beat that does not fit into the socket's buffer is left out: the other node has not read for a
 * long time, and is silent as well. */
static bool node_send_beat(const struct node *n)
{
    const char beat = 0;

    return send(n->beat_fd, &beat, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 || errno == EAGAIN ||
           errno == EINTR;
}

/* A thread of its own beats, so that a long step or load is not taken for an end. */
static void *node_beat(void *arg)
{
    struct node *n = arg;
    struct pollfd end = {.fd = n->beat_fd, .events = POLLRDHUP};
    uint64_t heard_us = clock_us();
    ssize_t some = 1;

    while (some != 0 && !node_is_lost(n) && node_send_beat(n)) {
        char beats[64];

        (void)poll(&end, 1, BEAT_MS); /* sleeps, unless the connection ends */
        some = recv(n->beat_fd, beats, sizeof beats, MSG_DONTWAIT);
        if (some > 0)
            heard_us = clock_us();
        if (clock_us() - heard_us > SILENT_US)
            (void)node_lose(n, ETIMEDOUT);
    }
    (void)node_lose(n, 0);
    return NULL;
}

/* --- rows --------------------------------------------------------------------------------- */

int node_send_rows(struct node *n, int part, struct device *d,
                   const struct device_segment *segments, int n_segments)
{
    struct rows_head head = {.bytes = 0};
    int rc = ERR_OK;

    for (int i = 0; i < n_segments && rc == ERR_OK; i++) {
        size_t bytes = (size_t)d->step_tokens * segments[i].row_bytes;

        must(head.bytes + bytes <= n->row_bytes);
        rc = d->ops->download(d, n->out[part] + head.bytes, segments[i].data, bytes);
        head.bytes += bytes;
    }
    if (rc == ERR_OK)
        rc = node_send(n, n->row_fds[part], &head, sizeof head);
    if (rc == ERR_OK)
        rc = node_send(n, n->row_fds[part], n->out[part], head.bytes);
    return rc;
}

int node_take_rows(struct node *n, int part, struct device *d,
                   const struct device_segment *segments, int n_segments)
{
    struct rows_head head;
    size_t at = 0;
    int rc = node_recv(n, n->row_fds[part], &head, sizeof head);

    if (rc == ERR_OK && head.bytes > n->row_bytes)
        return node_lose(n, EPROTO);
    if (rc == ERR_OK)
        rc = node_recv(n, n->row_fds[part], n->in[part], head.bytes);
    for (int i = 0; i < n_segments && rc == ERR_OK; i++) {
        size_t bytes = (size_t)d->step_tokens * segments[i].row_bytes;

        if (at + bytes > head.bytes)
            return node_lose(n, EPROTO);
        rc = d->ops->upload(d, segments[i].data, n->in[part] + at, bytes);
        at += bytes;
    }
    return rc;
}

/* --- orders ------------------------------------------------------------------------------- */

int node_order(struct node *n, struct node_message m, const struct node_piece *pieces, int n_pieces)
{
    int rc;

    for (int i = 0; i < n_pieces; i++)
        m.bytes += pieces[i].bytes;
    rc = node_send(n, n->control_fd, &m, sizeof m);
    for (int i = 0; i < n_pieces && rc == ERR_OK; i++)
        rc = node_send(n, n->control_fd, pieces[i].data, pieces[i].bytes);
    return rc;
}

/* Wait until n_pages have come. */
int node_await_pages(struct node *n, uint64_t n_pages)
{
    (void)pthread_mutex_lock(&n->lock);
    while (n->n_pages < n_pages && !node_is_lost(n))
        (void)pthread_cond_wait(&n->progress, &n->lock);
    (void)pthread_mutex_unlock(&n->lock);
    return node_is_lost(n) ? ERR_GPU : ERR_OK;
}

/* The places are noted before the order goes out, because the answer may come at once. */
static int node_ask_for(struct node *n, struct node_message order, const struct node_piece *pieces,
                        int n_pieces)
{
    struct asked *asked = &n->asked[n->n_asked % ASKED_MAX];
    int rc;

    must(n_pieces <= NODE_PIECES_MAX);
    if (n->n_asked >= ASKED_MAX && (rc = node_await_pages(n, n->n_asked + 1 - ASKED_MAX)) != ERR_OK)
        return rc;
    (void)pthread_mutex_lock(&n->lock);
    memcpy(asked->pieces, pieces, (size_t)n_pieces * sizeof *pieces);
    asked->n = n_pieces;
    n->n_asked++;
    (void)pthread_mutex_unlock(&n->lock);
    return node_order(n, order, NULL, 0);
}

int node_ask_page(struct node *n, int32_t page, const struct node_piece *pieces, int n_pieces)
{
    return node_ask_for(n, (struct node_message){.order = NODE_PAGE_OUT, .page = page}, pieces,
                        n_pieces);
}

int node_ask(struct node *n, enum node_order order, int32_t *answer)
{
    const struct node_piece piece = {answer, sizeof *answer};
    int rc = node_ask_for(n, (struct node_message){.order = (int32_t)order}, &piece, 1);

    if (rc != ERR_OK)
        return rc;
    return node_await_pages(n, n->n_asked);
}

/* Only the caller's thread asks. */
uint64_t node_n_asked(const struct node *n)
{
    return n->n_asked;
}

uint64_t node_n_pages(struct node *n)
{
    uint64_t n_pages;

    (void)pthread_mutex_lock(&n->lock);
    n_pages = n->n_pages;
    (void)pthread_mutex_unlock(&n->lock);
    return n_pages;
}

/* Node 0's reader: answers come in the order of the questions. It also sees the end of node 1 while
 * nothing is asked. A first byte that comes unasked is an error of the other node. */
static void *node_read_pages(void *arg)
{
    struct node *n = arg;
    char first;

    while (recv(n->control_fd, &first, 1, MSG_PEEK | MSG_WAITALL) == 1) { /* until the end */
        struct asked asked;
        int rc = ERR_OK;

        (void)pthread_mutex_lock(&n->lock);
        if (n->n_pages == n->n_asked)
            rc = ERR_GPU;
        asked = n->asked[n->n_pages % ASKED_MAX];
        (void)pthread_mutex_unlock(&n->lock);
        for (int i = 0; i < asked.n && rc == ERR_OK; i++)
            rc = node_recv(n, n->control_fd, asked.pieces[i].data, asked.pieces[i].bytes);
        if (rc != ERR_OK)
            break;
        (void)pthread_mutex_lock(&n->lock);
        n->n_pages++;
        (void)pthread_cond_broadcast(&n->progress);
        (void)pthread_mutex_unlock(&n->lock);
    }
    (void)node_lose(n, 0);
    return NULL;
}

int node_next(struct node *n, int stop_fd, struct node_message *m)
{
    struct pollfd ready[2] = {{.fd = n->control_fd, .events = POLLIN},
                              {.fd = stop_fd, .events = POLLIN}};

    while (poll(ready, 2, -1) < 0) { /* ends: only signals interrupt it */
        if (errno != EINTR)
            return node_lose(n, errno);
    }
    if (ready[1].revents != 0)
        return ERR_DRAINING;
    return node_recv(n, n->control_fd, m, sizeof *m);
}

int node_take_bytes(struct node *n, void *to, size_t bytes)
{
    return node_recv(n, n->control_fd, to, bytes);
}

int node_answer(struct node *n, const void *bytes, size_t n_bytes)
{
    return node_send(n, n->control_fd, bytes, n_bytes);
}
