/* SPDX-License-Identifier: Apache-2.0
 *
 * A POST over HTTP/1.1, one connection each: what a collector needs and no more. The answer's body
 * has no meaning here. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "front/trace/trace.h"

#define POST_PORT       "4318" /* OTLP over HTTP */
#define POST_PATH       "/v1/traces"

#define POST_ANSWER_MAX 65536 /* bytes */

/* --- endpoints -------------------------------------------------------------------------------- */

static bool post_copy(char *out, size_t cap, const char *text, size_t len)
{
    if (len == 0 || len >= cap)
        return false;
    memcpy(out, text, len);
    out[len] = '\0';
    return true;
}

/* Only bytes that cannot break the head of a request. */
static bool post_is_plain(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 0x7f)
            return false;
    }
    return true;
}

int post_read(struct post_target *out, const char *endpoint)
{
    static const char http[] = "http://", local[] = "unix:";
    const char *at = endpoint + strlen(http), *path, *colon;
    bool good;

    memset(out, 0, sizeof *out);
    if (!post_is_plain(endpoint))
        return ERR_INVALID;
    if (strncmp(endpoint, local, strlen(local)) == 0) {
        endpoint += strlen(local);
        (void)snprintf(out->path, sizeof out->path, POST_PATH);
        (void)snprintf(out->host, sizeof out->host, "localhost");
        good = endpoint[0] == '/' &&
               post_copy(out->socket, sizeof out->socket, endpoint, strlen(endpoint));
        return good ? ERR_OK : ERR_INVALID;
    }
    if (strncmp(endpoint, http, strlen(http)) != 0)
        return ERR_INVALID;
    path = at + strcspn(at, "/");
    colon = memchr(at, ':', (size_t)(path - at));
    if (*at == '[') { /* an address of IPv6 */
        const char *end = memchr(at, ']', (size_t)(path - at));

        if (end == NULL || (end + 1 != path && end[1] != ':'))
            return ERR_INVALID;
        colon = end + 1 == path ? NULL : end + 1;
        good = post_copy(out->host, sizeof out->host, at + 1, (size_t)(end - at - 1));
    } else {
        good = post_copy(out->host, sizeof out->host, at,
                         (size_t)((colon == NULL ? path : colon) - at));
    }
    if (colon == NULL)
        (void)snprintf(out->port, sizeof out->port, POST_PORT);
    else
        good =
            good && post_copy(out->port, sizeof out->port, colon + 1, (size_t)(path - colon - 1));
    if (path[0] == '\0' || path[1] == '\0')
        (void)snprintf(out->path, sizeof out->path, POST_PATH);
    else
        good = good && post_copy(out->path, sizeof out->path, path, strlen(path));
    return good && strspn(out->port, "0123456789") == strlen(out->port) ? ERR_OK : ERR_INVALID;
}

/* --- sending ---------------------------------------------------------------------------------- */

/* Wait for the socket; false: the time is over. */
static bool post_wait(int fd, short events, uint64_t until_us)
{
    for (;;) { /* ends with until_us */
        struct pollfd p = {.fd = fd, .events = events};
        uint64_t now_us = clock_us();

        if (now_us >= until_us)
            return false;
        if (poll(&p, 1, (int)((until_us - now_us) / 1000 + 1)) > 0)
            return true;
    }
}

/* Connect a new socket; -1: it cannot be, with the reason. */
static int post_connect_to(const struct sockaddr *at, socklen_t len, uint64_t until_us,
                           const char **why)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof error;

    if (fd == -1) {
        *why = "no socket may be made";
        return -1;
    }
    if (connect(fd, at, len) == 0)
        return fd;
    *why = "it cannot be connected to";
    if (errno == EINPROGRESS && post_wait(fd, POLLOUT, until_us) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static int post_connect(const struct post_target *to, uint64_t until_us, const char **why)
{
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int fd = -1;

    if (to->socket[0] != '\0') {
        memcpy(local.sun_path, to->socket, sizeof local.sun_path);
        return post_connect_to((const struct sockaddr *)&local, sizeof local, until_us, why);
    }
    *why = "its name cannot be resolved";
    if (getaddrinfo(to->host, to->port, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *i = list; i != NULL && fd == -1; i = i->ai_next)
        fd = post_connect_to(i->ai_addr, i->ai_addrlen, until_us, why);
    freeaddrinfo(list);
    return fd;
}

static bool post_write(int fd, const char *bytes, size_t len, uint64_t until_us)
{
    while (len > 0) { /* each pass sends some, or waits */
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (errno != EAGAIN || !post_wait(fd, POLLOUT, until_us)) {
            return false;
        }
    }
    return true;
}

/* Read the first line of the answer. */
static bool post_read_status(int fd, int *status, uint64_t until_us)
{
    char line[32];
    size_t len = 0;

    while (len < 12) { /* "HTTP/1.1 200" */
        ssize_t n = recv(fd, line + len, sizeof line - 1 - len, 0);

        if (n > 0)
            len += (size_t)n;
        else if (n == 0 || errno != EAGAIN || !post_wait(fd, POLLIN, until_us))
            return false;
    }
    line[len] = '\0';
    if (strncmp(line, "HTTP/1.", 7) != 0)
        return false;
    *status = (int)strtol(line + 9, NULL, 10);
    return *status >= 100 && *status <= 599;
}

/* Read the rest of the answer, which is not needed: a collector that cannot write it would log an
 * error. It closes the connection behind it. */
static void post_drain(int fd, uint64_t until_us)
{
    char bytes[1024];

    for (size_t len = 0; len < POST_ANSWER_MAX;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);

        if (n > 0)
            len += (size_t)n;
        else if (n == 0 || errno != EAGAIN || !post_wait(fd, POLLIN, until_us))
            return;
    }
}

int post_send(const struct post_target *to, const struct buf *body, int timeout_ms, int *status,
              const char **why)
{
    uint64_t until_us = clock_us() + (uint64_t)timeout_ms * 1000u;
    int fd = post_connect(to, until_us, why);
    bool is_ipv6 = strchr(to->host, ':') != NULL;
    char head[768];
    int len;

    if (fd == -1)
        return ERR_IO;
    len = snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: %s%s%s\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                   to->path, is_ipv6 ? "[" : "", to->host, is_ipv6 ? "]" : "", body->len);
    *why = "it does not read";
    if (post_write(fd, head, (size_t)len, until_us) &&
        post_write(fd, body->bytes, body->len, until_us)) {
        *why = "no answer came in time";
        if (post_read_status(fd, status, until_us)) {
            *why = NULL;
            post_drain(fd, until_us);
        }
    }
    (void)close(fd);
    return *why == NULL ? ERR_OK : ERR_IO;
}
