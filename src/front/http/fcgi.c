/* SPDX-License-Identifier: Apache-2.0
 *
 * One FastCGI request: input through libfcgi, output by ourselves.
 *
 * libfcgi parses the parameters. It takes over SIGTERM (so the caller blocks that), it blocks in
 * accept and in a poll after it, and it reads ahead as far as its buffer goes. Reading ahead would
 * take the record that must stay unread (fcgi_in.h). So libfcgi gets only the records up to the end
 * of the parameters, through a pipe that it takes for a kept connection; fcgi_in.c reads the body.
 *
 * Answers are written here, because libfcgi's writes block, and because it ends an answer with a
 * write of its own: nginx, which by then has all of Content-Length, may have closed the connection,
 * so that this write would fail and the close after it would linger. Here records are sent without
 * waiting, and the end of an answer goes out with its last bytes. When the socket is full in the
 * middle of a record, the record's head has promised bytes: they must be offered again. */
#include "front/http/fcgi.h"

#include <errno.h>
#include <fcgiapp.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"
#include "front/http/fcgi_in.h"
#include "ipc/attach.h"

#define FCGI_BACKLOG 4096 /* a full backlog is an immediate 502 at nginx */
/* bytes of content per record; the largest number that needs no padding */
#define FCGI_RECORD_MAX 65528
#define FCGI_SILENT_S   5 /* longest wait for a byte in the middle of a request */

/* An empty FCGI_STDOUT record, then FCGI_END_REQUEST with status 0 (complete). Both are of request
 * id 1, the only one that nginx uses on a connection. */
static const char fcgi_end[] = {1, 6, 0, 1, 0, 0, 0, 0, 1, 3, 0, 1,
                                0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

/* The state of one request on a connection. */
struct fcgi {
    FCGX_Request r; /* its descriptor is the pipe with the parameters, or -1 */
    struct fcgi_in in;
    char head[FCGI_HEAD_BYTES]; /* of the record being sent */
    size_t head_left;           /* bytes of the head that were not sent yet */
    size_t body_left;           /* bytes of the record's content that were not sent yet */
    size_t end_left;            /* bytes of fcgi_end that were not sent yet */
};

/* Start libfcgi, once per process. */
int fcgi_start(void)
{
    if (FCGX_Init() != 0) {
        log_error("front: libfcgi does not start; check its installation");
        return ERR_IO;
    }
    return ERR_OK;
}

/* Listen at a path. The socket's mode lets its user and group connect; nginx is in the group. */
int fcgi_listen(const char *path, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int rc = attach_clear(path);
    int sock;

    if (rc != ERR_OK)
        return rc;
    /* attach_clear() has checked the length of the path. */
    if (strchr(path, '/') == NULL) {
        log_error("front: listen = \"%s\" must be the path of a socket, with a '/'", path);
        return ERR_INVALID;
    }
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock == -1 || bind(sock, (struct sockaddr *)&address, sizeof address) == -1 ||
        chmod(path, 0660) == -1 || listen(sock, FCGI_BACKLOG) == -1) {
        log_error("front: cannot listen at %s: %s", path, strerror(errno));
        if (sock != -1)
            (void)close(sock);
        return ERR_IO;
    }
    *fd = sock;
    return ERR_OK;
}

/* nginx has buffered the whole request before it connects, so a pause in the middle of one means
 * that the peer is broken. The timeout keeps it from blocking a reader. */
static bool fcgi_bound_silence(int fd)
{
    const struct timeval longest = {.tv_sec = FCGI_SILENT_S};

    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest) == 0;
}

/* Give the parameters' records to libfcgi. False when it rejects them or has no memory. */
static bool fcgi_parse(struct fcgi *f, const char *records, size_t len)
{
    int ends[2];
    bool written;

    if (FCGX_InitRequest(&f->r, -1, 0) != 0 || pipe2(ends, O_CLOEXEC) == -1)
        return false;
    written = write(ends[1], records, len) == (ssize_t)len; /* they fit: the pipe is empty and
                                                             * larger */
    (void)close(ends[1]);
    f->r.ipcFd = ends[0];
    f->r.keepConnection = 1; /* libfcgi must not end the request after the parameters */
    if (written && FCGX_Accept_r(&f->r) != 0) /* it has closed the pipe and freed everything */
        return false;
    (void)close(f->r.ipcFd);
    f->r.ipcFd = -1;
    return written;
}

/* Read the beginning of a request. The descriptor is taken over, also on an error. */
int fcgi_open(struct fcgi **out, int fd)
{
    struct fcgi *fcgi = mem_zalloc(sizeof *fcgi);
    char records[FCGI_PARAMS_BYTES];
    size_t len = 0;
    int rc = ERR_NO_MEMORY;

    if (fcgi == NULL || !fcgi_bound_silence(fd))
        goto out;
    fcgi->end_left = sizeof fcgi_end;
    rc = ERR_AGAIN;
    if (fcgi_in_params(&fcgi->in, fd, records, &len) != ERR_OK || !fcgi_parse(fcgi, records, len))
        goto out;
    fcgi_in_expect(&fcgi->in, strtoull(fcgi_param(fcgi, "CONTENT_LENGTH"), NULL, 10));
    *out = fcgi;
    return ERR_OK;
out:
    mem_free(fcgi);
    (void)close(fd);
    return rc;
}

/* The FastCGI parameters are like CGI variables: REQUEST_METHOD, HTTP_AUTHORIZATION, and so on. */
const char *fcgi_param(const struct fcgi *f, const char *name)
{
    const char *v = f->r.envp == NULL ? NULL : FCGX_GetParam(name, f->r.envp);

    if (v == NULL)
        return "";
    return v;
}

/* Read the body and drop it. */
void fcgi_skip_body(struct fcgi *f)
{
    fcgi_in_skip(&f->in);
}

/* Read the whole body into the arena, with a NUL after it. */
int fcgi_read_body(struct fcgi *f, struct arena *arena, size_t max_bytes, const char **bytes,
                   size_t *len)
{
    uint64_t want = f->in.left;
    char *body;
    int rc;

    if (want > max_bytes)
        return ERR_TOO_LARGE;
    body = arena_alloc(arena, (size_t)want + 1);
    if (body == NULL)
        return ERR_NO_MEMORY;
    rc = fcgi_in_read(&f->in, body, (size_t)want);
    if (rc != ERR_OK)
        return rc;
    body[want] = '\0';
    *bytes = body;
    *len = (size_t)want;
    return ERR_OK;
}

/* For the streamer's epoll set. */
int fcgi_fd(const struct fcgi *f)
{
    return f->in.fd;
}

/* Output. A record is a head of eight bytes and up to FCGI_RECORD_MAX bytes of content. The content
 * is not copied: fcgi_send() gathers the head, the caller's bytes and the end of the answer into
 * one sendmsg(). Three counters hold the parts of the current record that are still to be sent. */
static void fcgi_begin_record(struct fcgi *f, size_t len)
{
    size_t n = len < FCGI_RECORD_MAX ? len : FCGI_RECORD_MAX;
    const char head[FCGI_HEAD_BYTES] = {1, 6, 0, 1, (char)(n >> 8), (char)(n & 0xff), 0, 0};

    must(f->head_left == 0);
    must(len > 0);
    memcpy(f->head, head, sizeof head);
    f->head_left = sizeof head;
    f->body_left = n;
}

/* Reduce *left by up to n sent bytes; returns the rest of n, which belongs to the next part. */
static size_t fcgi_count(size_t n, size_t *left)
{
    size_t part = n < *left ? n : *left;

    *left -= part;
    return n - part;
}

/* Send the rest of the current record, and the end of the answer after it if is_last. Returns the
 * number of content bytes sent, ERR_AGAIN when the socket is full, or ERR_CLIENT_GONE. */
static long fcgi_send(struct fcgi *f, const char *bytes, bool is_last)
{
    struct iovec parts[3] = {
        {.iov_base = f->head + (FCGI_HEAD_BYTES - f->head_left), .iov_len = f->head_left},
        {.iov_len = f->body_left},
        {.iov_len = is_last ? f->end_left : 0},
    };
    const char *end = fcgi_end + (sizeof fcgi_end - f->end_left);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    size_t before = f->body_left;
    size_t n;
    ssize_t went;

    memcpy(&parts[1].iov_base, &bytes, sizeof bytes); /* iovec wants pointers that are not const;
                                                       * sendmsg() only reads */
    memcpy(&parts[2].iov_base, &end, sizeof end);
    do
        went = sendmsg(f->in.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (went == -1 && errno == EINTR);
    if (went == -1)
        return errno == EAGAIN ? ERR_AGAIN : ERR_CLIENT_GONE;
    n = fcgi_count((size_t)went, &f->head_left);
    n = fcgi_count(n, &f->body_left);
    (void)fcgi_count(n, &f->end_left);
    return (long)(before - f->body_left);
}

/* Send as much as the socket takes; the rest must be offered again. */
long fcgi_write(struct fcgi *f, const char *bytes, size_t len)
{
    size_t sent = 0;

    while (sent < len) { /* each pass sends something, or is the last */
        long n;

        if (f->body_left == 0)
            fcgi_begin_record(f, len - sent);
        must(f->body_left <= len - sent);
        n = fcgi_send(f, bytes + sent, false);
        if (n == ERR_AGAIN)
            break;
        if (n < 0)
            return n;
        sent += (size_t)n;
    }
    return (long)sent;
}

/* Likewise, followed by the end of the answer. */
long fcgi_write_last(struct fcgi *f, const char *bytes, size_t len)
{
    size_t sent = 0;

    while (f->end_left > 0) { /* each pass sends something, or is the last */
        long n;

        if (f->body_left == 0 && sent < len)
            fcgi_begin_record(f, len - sent);
        must(f->body_left <= len - sent);
        n = fcgi_send(f, bytes + sent, f->body_left == len - sent);
        if (n == ERR_AGAIN)
            break;
        if (n < 0)
            return n;
        sent += (size_t)n;
    }
    return (long)sent;
}

/* Was the end sent? */
bool fcgi_has_ended(const struct fcgi *f)
{
    return f->end_left == 0;
}

/* Close the connection and free the request. An answer that was sent completely is ended properly;
 * otherwise nginx sees the connection break. */
void fcgi_close(struct fcgi *f)
{
    must(f != NULL);
    if (fcgi_has_ended(f))
        fcgi_in_end(&f->in);
    FCGX_Free(&f->r, 0); /* it writes nothing, because its descriptor is -1 */
    (void)close(f->in.fd);
    mem_free(f);
}
