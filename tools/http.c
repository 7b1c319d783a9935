/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP client: connect, send, then read the answer through one buffer.
 *
 *   bytes of the socket -> in[] -> chunks taken off -> lines or the whole body
 *
 * All waits are polls of 100 ms, so that a signal's flag and the time limit are looked at without a
 * race between looking and sleeping. */
#include "tools/http.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hex.h"

#define HTTP_POLL_MS    100
#define HTTP_CONNECT_S  10
#define HTTP_HEAD_LINES 200
#define HTTP_LINE_BYTES ((size_t)64 << 20) /* a line of an answer: one event with its log probs */
#define HTTP_BODY_BYTES ((size_t)256 << 20)

/* The host and port of "host:port", "[address]:port" or "host". False: malformed or too long. */
static bool http_url_host(struct http_url *out, const char *text, size_t len)
{
    const char *colon = memchr(text, ':', len);
    const char *host = text;
    size_t host_len = len;

    if (len > 0 && text[0] == '[') {
        const char *bracket = memchr(text, ']', len);

        if (bracket == NULL)
            return false;
        host = text + 1;
        host_len = (size_t)(bracket - host);
        colon = bracket + 1 < text + len ? bracket + 1 : NULL;
        if (colon != NULL && *colon != ':')
            return false;
    } else if (colon != NULL) {
        host_len = (size_t)(colon - text);
    }
    (void)snprintf(out->port, sizeof out->port, "80");
    if (colon != NULL) {
        size_t port_len = (size_t)(text + len - colon) - 1;

        if (port_len == 0 || port_len > 5 || strspn(colon + 1, "0123456789") < port_len)
            return false;
        (void)snprintf(out->port, sizeof out->port, "%.*s", (int)port_len, colon + 1);
    }
    if (host_len == 0 || host_len >= sizeof out->host)
        return false;
    (void)snprintf(out->host, sizeof out->host, "%.*s", (int)host_len, host);
    return true;
}

int http_url_read(struct http_url *out, const char *text, char *why, size_t why_cap)
{
    static const char plain[] = "http://", local[] = "unix:";
    struct http_url url = {.host = "localhost"};
    size_t host_len, base_len;

    if (strncmp(text, local, strlen(local)) == 0 && strlen(text) > strlen(local) &&
        strlen(text + strlen(local)) < sizeof url.socket) {
        (void)snprintf(url.socket, sizeof url.socket, "%s", text + strlen(local));
        *out = url;
        return ERR_OK;
    }
    if (strncmp(text, "https://", 8) == 0) {
        (void)snprintf(why, why_cap, "%s: only plain http is spoken here, not https", text);
        return ERR_INVALID;
    }
    if (strncmp(text, plain, strlen(plain)) == 0)
        text += strlen(plain);
    host_len = strcspn(text, "/");
    base_len = strlen(text + host_len);
    while (base_len > 0 && text[host_len + base_len - 1] == '/')
        base_len--;
    if (base_len >= 3 && strncmp(text + host_len + base_len - 3, "/v1", 3) == 0)
        base_len -= 3;
    if (!http_url_host(&url, text, host_len) || base_len >= sizeof url.base ||
        strpbrk(text, " \r\n") != NULL) {
        (void)snprintf(why, why_cap, "%s is not an address like http://127.0.0.1:8000", text);
        return ERR_INVALID;
    }
    (void)snprintf(url.base, sizeof url.base, "%.*s", (int)base_len, text + host_len);
    *out = url;
    return ERR_OK;
}

void http_close(struct http *h)
{
    if (h->fd != -1)
        (void)close(h->fd); /* nothing is left to be written */
    h->fd = -1;
}

/* Wait until the socket is ready for `events`. */
static int http_wait(struct http *h, short events, int limit_s)
{
    uint64_t end_us = clock_us() + (uint64_t)limit_s * 1000000u;
    struct pollfd ready = {.fd = h->fd, .events = events};

    for (;;) { /* ends by the time limit */
        int n;

        if (h->request->stop != NULL && *h->request->stop != 0) {
            (void)snprintf(h->why, sizeof h->why, "interrupted");
            return ERR_CLIENT_GONE;
        }
        n = poll(&ready, 1, HTTP_POLL_MS);
        if (n > 0)
            return ERR_OK;
        if (n == -1 && errno != EINTR)
            return ERR_IO;
        if (clock_us() > end_us) {
            (void)snprintf(h->why, sizeof h->why, "no answer for %d s", limit_s);
            return ERR_DEADLINE;
        }
    }
}

/* Connect a non-blocking socket. The reason for a refusal is in errno. */
static int http_connect_to(struct http *h, const struct sockaddr *address, socklen_t len)
{
    int failure = 0;
    socklen_t failure_len = sizeof failure;
    int rc;

    h->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd == -1)
        return ERR_ENGINE_GONE;
    if (connect(h->fd, address, len) == 0)
        return ERR_OK;
    if (errno != EINPROGRESS)
        return ERR_ENGINE_GONE;
    if ((rc = http_wait(h, POLLOUT, HTTP_CONNECT_S)) != ERR_OK)
        return rc;
    if (getsockopt(h->fd, SOL_SOCKET, SO_ERROR, &failure, &failure_len) == 0 && failure == 0)
        return ERR_OK;
    errno = failure;
    return ERR_ENGINE_GONE;
}

/* Connect to the first address of the host that takes the connection. */
static int http_connect(struct http *h)
{
    const struct http_url *url = h->request->url;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc = ERR_ENGINE_GONE;

    if (url->socket[0] != '\0') {
        struct sockaddr_un at = {.sun_family = AF_UNIX};

        memcpy(at.sun_path, url->socket, sizeof at.sun_path);
        rc = http_connect_to(h, (const struct sockaddr *)&at, sizeof at);
        if (rc == ERR_ENGINE_GONE)
            (void)snprintf(h->why, sizeof h->why, "cannot connect to %s: %s", url->socket,
                           strerror(errno));
        return rc;
    }
    rc = getaddrinfo(url->host, url->port, &hints, &list);
    if (rc != 0) {
        (void)snprintf(h->why, sizeof h->why, "%s: %s", url->host, gai_strerror(rc));
        return ERR_ENGINE_GONE;
    }
    rc = ERR_ENGINE_GONE;
    for (struct addrinfo *a = list; a != NULL && rc == ERR_ENGINE_GONE; a = a->ai_next) {
        http_close(h);
        rc = http_connect_to(h, a->ai_addr, a->ai_addrlen);
    }
    freeaddrinfo(list);
    if (rc == ERR_ENGINE_GONE)
        (void)snprintf(h->why, sizeof h->why, "cannot connect to %s port %s: %s", url->host,
                       url->port, strerror(errno));
    return rc;
}

static int http_send(struct http *h, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(h->fd, bytes, len, MSG_NOSIGNAL);

        if (n >= 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            int rc = http_wait(h, POLLOUT, h->request->silence_s);

            if (rc != ERR_OK)
                return rc;
        } else if (errno != EINTR) {
            /* The server may have answered and closed before it read all: an answer counts. */
            return ERR_OK;
        }
    }
    return ERR_OK;
}

/* Have at least one byte in the buffer. *ended: the server has closed the connection. */
static int http_fill(struct http *h, bool *ended)
{
    *ended = false;
    while (h->at == h->len) {
        ssize_t n = recv(h->fd, h->in, sizeof h->in, 0);
        int rc;

        if (n == 0) {
            *ended = true;
            return ERR_OK;
        }
        if (n > 0) {
            h->at = 0;
            h->len = (size_t)n;
            return ERR_OK;
        }
        if (errno != EAGAIN && errno != EINTR) {
            (void)snprintf(h->why, sizeof h->why, "the connection broke: %s", strerror(errno));
            return ERR_IO;
        }
        if ((rc = http_wait(h, POLLIN, h->request->silence_s)) != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* A line of the head, or of the chunked coding, without its end. */
static int http_head_line(struct http *h, char *line, size_t cap)
{
    size_t len = 0;

    for (;;) { /* ends by the server or a full line */
        bool ended;
        int rc = http_fill(h, &ended);
        char byte;

        if (rc != ERR_OK)
            return rc;
        if (ended) {
            (void)snprintf(h->why, sizeof h->why, "the server closed the connection");
            return ERR_IO;
        }
        byte = h->in[h->at++];
        if (byte == '\n')
            break;
        if (len + 1 < cap)
            line[len++] = byte; /* what is longer is of no use to us */
    }
    while (len > 0 && line[len - 1] == '\r')
        len--;
    line[len] = '\0';
    return ERR_OK;
}

/* The value of a header line if it has this name; NULL: another header. */
static const char *http_header(const char *line, const char *name)
{
    size_t len = strlen(name);

    if (strncasecmp(line, name, len) != 0 || line[len] != ':')
        return NULL;
    line += len + 1;
    while (isspace((unsigned char)*line))
        line++;
    return line;
}

static int http_read_head(struct http *h)
{
    char line[1024];
    int rc = http_head_line(h, line, sizeof line);

    if (rc != ERR_OK)
        return rc;
    if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12) {
        (void)snprintf(h->why, sizeof h->why, "the answer is not HTTP: is it the right port?");
        return ERR_SYNTAX;
    }
    h->status = (int)strtol(line + 9, NULL, 10);
    h->left = UINT64_MAX;
    for (int i = 0; i < HTTP_HEAD_LINES; i++) {
        const char *value;

        if ((rc = http_head_line(h, line, sizeof line)) != ERR_OK || line[0] == '\0')
            break;
        if ((value = http_header(line, "Transfer-Encoding")) != NULL)
            h->chunked = strcasecmp(value, "chunked") == 0;
        else if ((value = http_header(line, "Content-Length")) != NULL)
            h->left = strtoull(value, NULL, 10);
        else if ((value = http_header(line, "Retry-After")) != NULL)
            h->retry_after_s = (int)strtol(value, NULL, 10);
    }
    if (h->chunked)
        h->left = 0;
    return rc;
}

int http_ask(struct http *h, const struct http_request *request)
{
    const struct http_url *url = request->url;
    struct buf head = {0};
    int rc;

    *h = (struct http){.fd = -1, .retry_after_s = -1, .request = request};
    buf_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n",
               request->body != NULL ? "POST" : "GET", url->base, request->path, url->host);
    if (request->key != NULL && request->key[0] != '\0')
        buf_printf(&head, "Authorization: Bearer %s\r\n", request->key);
    if (request->body != NULL)
        buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                   request->body->len);
    buf_add_text(&head, "\r\n");
    rc = head.failed ? ERR_NO_MEMORY : http_connect(h);
    if (rc == ERR_OK)
        rc = http_send(h, head.bytes, head.len);
    if (rc == ERR_OK && request->body != NULL)
        rc = http_send(h, request->body->bytes, request->body->len);
    if (rc == ERR_OK)
        rc = http_read_head(h);
    buf_fini(&head);
    return rc;
}

/* Begin the next chunk: its size in hexadecimal digits, after the end of the last one's line. */
static int http_next_chunk(struct http *h)
{
    char line[256];
    size_t n_digits;
    int rc = http_head_line(h, line, sizeof line);

    if (rc == ERR_OK && line[0] == '\0') /* the end of the chunk before */
        rc = http_head_line(h, line, sizeof line);
    if (rc != ERR_OK)
        return rc;
    n_digits = strspn(line, "0123456789abcdefABCDEF");
    if (n_digits == 0 || n_digits > 15) {
        (void)snprintf(h->why, sizeof h->why, "the answer's chunks are malformed");
        return ERR_SYNTAX;
    }
    h->left = (uint64_t)hex_number(line, strlen(line), n_digits);
    h->ended = h->left == 0;
    return ERR_OK;
}

/* Have a part of the body in the buffer: n bytes at in + at, to be taken by the caller. n is 0 at
 * the body's end. */
static int http_part(struct http *h, size_t *n)
{
    bool ended = false;
    int rc;

    *n = 0;
    if (h->chunked && !h->ended && h->left == 0 && (rc = http_next_chunk(h)) != ERR_OK)
        return rc;
    h->ended = h->ended || h->left == 0;
    if (h->ended)
        return ERR_OK;
    if ((rc = http_fill(h, &ended)) != ERR_OK)
        return rc;
    if (ended && h->left != UINT64_MAX) {
        (void)snprintf(h->why, sizeof h->why, "the answer was cut");
        return ERR_IO;
    }
    h->ended = ended;
    *n = h->len - h->at;
    if (*n > h->left)
        *n = (size_t)h->left;
    return ERR_OK;
}

static void http_take(struct http *h, size_t n)
{
    h->at += n;
    if (h->left != UINT64_MAX)
        h->left -= n;
}

int http_read_all(struct http *h, struct buf *out)
{
    size_t n;
    int rc;

    while ((rc = http_part(h, &n)) == ERR_OK && n > 0) {
        buf_add(out, h->in + h->at, n);
        http_take(h, n);
        if (out->failed)
            return ERR_NO_MEMORY;
        if (out->len > HTTP_BODY_BYTES)
            return ERR_TOO_LARGE;
    }
    return rc;
}

int http_read_line(struct http *h, struct buf *line, bool *ended)
{
    size_t n;
    int rc;

    buf_clear(line);
    *ended = false;
    while ((rc = http_part(h, &n)) == ERR_OK && n > 0) {
        const char *from = h->in + h->at;
        const char *feed = memchr(from, '\n', n);
        size_t len = feed == NULL ? n : (size_t)(feed - from);

        buf_add(line, from, len);
        http_take(h, feed == NULL ? len : len + 1);
        if (line->failed)
            return ERR_NO_MEMORY;
        if (line->len > HTTP_LINE_BYTES)
            return ERR_TOO_LARGE;
        if (feed != NULL)
            break;
    }
    *ended = rc == ERR_OK && n == 0 && line->len == 0;
    while (line->len > 0 && line->bytes[line->len - 1] == '\r')
        line->bytes[--line->len] = '\0';
    return rc;
}
