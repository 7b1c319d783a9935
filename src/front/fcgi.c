/* SPDX-License-Identifier: Apache-2.0
 *
 * libfcgi's habits, and what is done about them: it takes over SIGTERM (blocked by the caller),
 * polls up to two seconds after accept and before close (shortened by its own environment
 * variables; the close is done here), writes blocking (only after POLLOUT, 8 KiB at a time: a
 * unix socket is writable while three quarters of its buffer are free), and crashes nobody but
 * this process on a malformed record (nginx sends none; the socket is for nginx alone). */
#include "front/fcgi.h"

#include <errno.h>
#include <fcgiapp.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

#define FCGI_BACKLOG     4096 /* a full backlog is an immediate 502 at nginx */
#define FCGI_CHUNK_BYTES 8192 /* one record; see the head comment */

struct fcgi {
    FCGX_Request r;
};

int fcgi_start(void)
{
    if (setenv("LIBFCGI_IS_AF_UNIX_KEEPER_POLL_TIMEOUT", "100", 0) == -1 ||
        setenv("LIBFCGI_OS_CLOSE_POLL_TIMEOUT", "10", 0) == -1 || FCGX_Init() != 0) {
        log_error("front: libfcgi does not start");
        return ERR_IO;
    }
    return ERR_OK;
}

int fcgi_listen(const char *path, int *fd)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s;

    if (strlen(path) >= sizeof a.sun_path) {
        log_error("front: the socket path %s is too long", path);
        return ERR_IO;
    }
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    (void)unlink(path); /* a dead front's */
    s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s == -1 || bind(s, (struct sockaddr *)&a, sizeof a) == -1 || chmod(path, 0660) == -1 ||
        listen(s, FCGI_BACKLOG) == -1) {
        log_error("front: cannot listen at %s: %s", path, strerror(errno));
        if (s != -1)
            (void)close(s);
        return ERR_IO;
    }
    *fd = s;
    return ERR_OK;
}

/* Free without libfcgi's lingering close. After an error on the stream libfcgi has closed the
 * descriptor itself and set it to -1. */
static void fcgi_free(struct fcgi *f)
{
    int fd = f->r.ipcFd;

    f->r.keepConnection = 1; /* leaves the descriptor to us */
    FCGX_Finish_r(&f->r);
    if (fd >= 0 && f->r.ipcFd == fd)
        (void)close(fd);
    mem_free(f);
}

int fcgi_accept(struct fcgi **out, int listen_fd)
{
    struct fcgi *f = mem_zalloc(sizeof *f);

    if (f == NULL)
        return ERR_NO_MEMORY;
    if (FCGX_InitRequest(&f->r, listen_fd, 0) != 0 || FCGX_Accept_r(&f->r) != 0) {
        mem_free(f);
        return ERR_AGAIN;
    }
    *out = f;
    return ERR_OK;
}

const char *fcgi_param(const struct fcgi *f, const char *name)
{
    const char *v = f->r.envp == NULL ? NULL : FCGX_GetParam(name, f->r.envp);

    return v == NULL ? "" : v;
}

void fcgi_skip_body(struct fcgi *f)
{
    char bytes[FCGI_CHUNK_BYTES];

    while (FCGX_GetStr(bytes, sizeof bytes, f->r.in) > 0)
        continue; /* ends with the body, whose length nginx has limited */
}

int fcgi_read_body(struct fcgi *f, struct arena *arena, size_t max_bytes, const char **bytes,
                   size_t *len)
{
    const char *text = fcgi_param(f, "CONTENT_LENGTH");
    char *end = NULL;
    unsigned long long want = strtoull(text, &end, 10);
    char *body;
    size_t got = 0;

    if (want > max_bytes)
        return ERR_TOO_LARGE;
    body = arena_alloc(arena, (size_t)want + 1);
    if (body == NULL)
        return ERR_NO_MEMORY;
    while (got < want) { /* each pass reads at least a byte */
        size_t step = (size_t)want - got;
        int n = FCGX_GetStr(body + got, step > 1 << 20 ? 1 << 20 : (int)step, f->r.in);

        if (n <= 0)
            return ERR_CLIENT_GONE;
        got += (size_t)n;
    }
    fcgi_skip_body(f); /* the record that ends it */
    body[got] = '\0';
    *bytes = body;
    *len = got;
    return ERR_OK;
}

int fcgi_fd(const struct fcgi *f)
{
    return f->r.ipcFd;
}

long fcgi_write(struct fcgi *f, const char *bytes, size_t len)
{
    size_t sent = 0;

    while (sent < len) {
        struct pollfd p = {.fd = f->r.ipcFd, .events = POLLOUT};
        size_t n = len - sent < FCGI_CHUNK_BYTES ? len - sent : FCGI_CHUNK_BYTES;

        if (f->r.ipcFd < 0)
            return ERR_CLIENT_GONE;
        if (poll(&p, 1, 0) != 1)
            break;
        if ((p.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0)
            return ERR_CLIENT_GONE;
        if ((p.revents & POLLOUT) == 0)
            break;
        if (FCGX_PutStr(bytes + sent, (int)n, f->r.out) != (int)n || FCGX_FFlush(f->r.out) != 0)
            return ERR_CLIENT_GONE;
        sent += n;
    }
    return (long)sent;
}

void fcgi_finish(struct fcgi *f)
{
    fcgi_free(f);
}

void fcgi_abort(struct fcgi *f)
{
    /* libfcgi would write the end record on finish; a shut socket takes none. */
    if (f->r.ipcFd >= 0)
        (void)shutdown(f->r.ipcFd, SHUT_RDWR);
    fcgi_free(f);
}
