/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock is read once for all that one recv() has brought: that is when it was there to be
 * read. */
#include "tools/stream.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hex.h"
#include "base/json.h"

#define STREAM_READ_BYTES 65536
#define STREAM_LINE_MAX   ((size_t)16 << 20)

static void stream_close(struct stream *s)
{
    if (s->fd != -1)
        (void)close(s->fd); /* nothing is left to be written */
    s->fd = -1;
    s->state = STREAM_CLOSED;
}

void stream_fail(struct stream *s, const char *why)
{
    s->result->succeeded = false;
    (void)snprintf(s->result->why, sizeof s->result->why, "%s", why);
    stream_close(s);
}

void stream_fini(struct stream *s)
{
    buf_fini(&s->out);
    buf_fini(&s->in);
    buf_fini(&s->line);
    arena_reset(&s->parsed);
}

/* --- sending ------------------------------------------------------------------------------ */

static void stream_send(struct stream *s)
{
    while (s->n_sent < s->out.len) {
        ssize_t n = send(s->fd, s->out.bytes + s->n_sent, s->out.len - s->n_sent, MSG_NOSIGNAL);

        if (n >= 0) {
            s->n_sent += (size_t)n;
        } else if (errno == EAGAIN || errno == ENOTCONN) {
            return;
        } else if (errno != EINTR) {
            stream_fail(s, strerror(errno));
            return;
        }
    }
    s->state = STREAM_HEAD;
}

/* Connect without waiting. A unix socket has no such way: it is connected at once, or waits until
 * the server's queue has room. */
static bool stream_connect(struct stream *s, const struct sockaddr *address, socklen_t len)
{
    int later = address->sa_family == AF_UNIX ? 0 : SOCK_NONBLOCK;

    s->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | later, 0);
    if (s->fd == -1)
        return false;
    if (connect(s->fd, address, len) == -1 && errno != EINPROGRESS)
        return false;
    return later != 0 || fcntl(s->fd, F_SETFL, O_NONBLOCK) == 0;
}

void stream_open(struct stream *s, struct stream_result *result, const struct sockaddr *address,
                 socklen_t address_len, const struct buf *request)
{
    s->result = result;
    s->n_sent = 0;
    s->status = 0;
    s->chunked = s->done = false;
    s->left = UINT64_MAX;
    buf_clear(&s->out);
    buf_clear(&s->in);
    buf_clear(&s->line);
    buf_add(&s->out, request->bytes, request->len);
    *result = (struct stream_result){.n_input = -1, .n_output = -1, .sent_us = clock_us()};
    s->state = STREAM_SENDING;
    if (s->out.failed)
        stream_fail(s, "no memory");
    else if (!stream_connect(s, address, address_len))
        stream_fail(s, strerror(errno));
    else
        stream_send(s);
}

/* --- events ------------------------------------------------------------------------------- */

/* A part of the answer came. */
static void stream_part(struct stream_result *r, uint64_t now_us)
{
    if (r->first_us == 0) {
        r->first_us = r->last_us = now_us;
        return;
    }
    if (r->n_gaps == r->gaps_cap) {
        int cap = r->gaps_cap > 0 ? 2 * r->gaps_cap : 64;
        float *more = mem_realloc(r->gaps_ms, sizeof *more * (size_t)cap);

        if (more == NULL)
            return; /* the sums of the answer stay right */
        r->gaps_ms = more;
        r->gaps_cap = cap;
    }
    r->gaps_ms[r->n_gaps++] = (float)(now_us - r->last_us) * 1e-3f;
    r->last_us = now_us;
}

/* The sentence of an error in OpenAI's form, in a whole answer or an event. */
static const char *stream_error(const struct json *root)
{
    const struct json *error = json_get(root, "error");

    if (error == NULL)
        return json_get_text(root, "detail", json_get_text(root, "message", ""));
    if (error->kind == JSON_TEXT)
        return error->text;
    return json_get_text(error, "message", "an error without a message");
}

static void stream_event(struct stream *s, const char *text, size_t len, uint64_t now_us)
{
    struct stream_result *r = s->result;
    const struct json *root, *choices, *usage;

    if (len == 6 && memcmp(text, "[DONE]", 6) == 0) {
        s->done = true;
        return;
    }
    arena_reset(&s->parsed);
    if (json_parse(&root, &s->parsed, text, len, NULL, 0) != ERR_OK) {
        stream_fail(s, "an event is not JSON");
        return;
    }
    if (json_get_kind(root, "error", JSON_OBJECT) != NULL) {
        stream_fail(s, stream_error(root));
        return;
    }
    choices = json_get_kind(root, "choices", JSON_LIST);
    usage = json_get_kind(root, "usage", JSON_OBJECT);
    if (choices != NULL && choices->n > 0)
        stream_part(r, now_us);
    if (usage != NULL) {
        r->n_input = (int)json_get_int(usage, "prompt_tokens", -1);
        r->n_output = (int)json_get_int(usage, "completion_tokens", -1);
    }
}

static void stream_line(struct stream *s, const char *text, size_t len, uint64_t now_us)
{
    if (len > 0 && text[len - 1] == '\r')
        len--;
    if (len < 6 || memcmp(text, "data:", 5) != 0)
        return; /* a comment, an empty line, or the name of an event */
    text += 5;
    len -= 5;
    if (*text == ' ') {
        text++;
        len--;
    }
    stream_event(s, text, len, now_us);
}

/* Bytes of the body. An answer with an error is kept whole: it is told at its end. */
static void stream_take(struct stream *s, const char *text, size_t len, uint64_t now_us)
{
    while (len > 0 && s->state == STREAM_BODY && s->status == 200) {
        const char *feed = memchr(text, '\n', len);
        size_t n = feed == NULL ? len : (size_t)(feed - text);

        if (feed == NULL || s->line.len > 0)
            buf_add(&s->line, text, n);
        if (feed == NULL)
            break;
        if (s->line.len > 0)
            stream_line(s, s->line.bytes, s->line.len, now_us);
        else
            stream_line(s, text, n, now_us);
        buf_clear(&s->line);
        text += n + 1;
        len -= n + 1;
    }
    if (s->status != 200)
        buf_add(&s->line, text, len);
    if (s->state != STREAM_CLOSED && (s->line.failed || s->line.len > STREAM_LINE_MAX))
        stream_fail(s, "a line of the answer is too long");
}

/* The whole answer is there, or the server has closed the connection. */
static void stream_end(struct stream *s)
{
    struct stream_result *r = s->result;
    const struct json *root = NULL;
    char why[sizeof r->why];

    if (s->status == 200 && s->done && r->first_us != 0) {
        r->succeeded = true;
        stream_close(s);
    } else if (s->status == 200) {
        stream_fail(s, s->done ? "an answer without a token" : "the stream was cut");
    } else {
        arena_reset(&s->parsed);
        if (json_parse(&root, &s->parsed, buf_text(&s->line), s->line.len, NULL, 0) != ERR_OK)
            root = NULL;
        (void)snprintf(why, sizeof why, "status %d%s%s", s->status, root != NULL ? ": " : "",
                       root != NULL ? stream_error(root) : "");
        stream_fail(s, why);
    }
}

/* --- the form of HTTP --------------------------------------------------------------------- */

static const char *stream_header(const char *line, const char *name)
{
    size_t len = strlen(name);

    if (strncasecmp(line, name, len) != 0 || line[len] != ':')
        return NULL;
    line += len + 1;
    while (*line == ' ')
        line++;
    return line;
}

/* Take a line off the input; NULL: it is not there yet. The line stays valid until more is read. */
static char *stream_head_line(struct stream *s, size_t *at)
{
    char *line = s->in.bytes + *at, *feed;

    if (*at >= s->in.len)
        return NULL;
    feed = memchr(line, '\n', s->in.len - *at);
    if (feed == NULL)
        return NULL;
    *at = (size_t)(feed + 1 - s->in.bytes);
    *feed = '\0';
    if (feed > line && feed[-1] == '\r')
        feed[-1] = '\0';
    return line;
}

/* Read the head if it is whole: returns the bytes of it, 0 if it is not. */
static size_t stream_head(struct stream *s)
{
    size_t at = 0;
    const char *line;

    if (memmem(s->in.bytes, s->in.len, "\r\n\r\n", 4) == NULL)
        return 0;
    line = stream_head_line(s, &at);
    if (line == NULL || strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12) {
        stream_fail(s, "the answer is not HTTP");
        return 0;
    }
    s->status = (int)strtol(line + 9, NULL, 10);
    while ((line = stream_head_line(s, &at)) != NULL && line[0] != '\0') {
        const char *value = stream_header(line, "Transfer-Encoding");

        s->chunked = s->chunked || (value != NULL && strcasecmp(value, "chunked") == 0);
        if ((value = stream_header(line, "Content-Length")) != NULL)
            s->left = strtoull(value, NULL, 10);
    }
    if (s->chunked)
        s->left = 0;
    s->state = STREAM_BODY;
    return at;
}

/* Begin the next chunk: its size is on a line of its own. False: that is not there yet, or it was
 * the last one. A line that was taken stays taken. */
static bool stream_chunk(struct stream *s, size_t *at)
{
    const char *line = stream_head_line(s, at);
    size_t n_digits;

    if (line != NULL && line[0] == '\0') /* the end of the chunk before */
        line = stream_head_line(s, at);
    if (line == NULL)
        return false;
    n_digits = strspn(line, "0123456789abcdefABCDEF");
    if (n_digits == 0 || n_digits > 15) {
        stream_fail(s, "the answer's chunks are malformed");
        return false;
    }
    s->left = (uint64_t)hex_number(line, strlen(line), n_digits);
    if (s->left == 0)
        stream_end(s);
    return s->left > 0;
}

/* Take apart what is in the buffer. */
static void stream_parse(struct stream *s, uint64_t now_us)
{
    size_t at = 0;

    if (s->state == STREAM_HEAD)
        at = stream_head(s);
    while (s->state == STREAM_BODY && at < s->in.len) {
        size_t n = s->in.len - at;

        if (s->left == 0 && !s->chunked)
            break;
        if (s->left == 0) {
            if (!stream_chunk(s, &at))
                break;
            continue;
        }
        if (n > s->left)
            n = (size_t)s->left;
        stream_take(s, s->in.bytes + at, n, now_us);
        at += n;
        if (s->left != UINT64_MAX)
            s->left -= n;
    }
    if (s->state == STREAM_BODY && s->left == 0 && !s->chunked)
        stream_end(s);
    if (s->state == STREAM_CLOSED)
        return;
    memmove(s->in.bytes, s->in.bytes + at, s->in.len - at);
    s->in.len -= at;
}

/* Read all that is there: epoll tells of changes only, and the end of the connection may have come
 * together with the last bytes. */
static void stream_read(struct stream *s)
{
    while (s->state != STREAM_CLOSED) { /* ends by the socket */
        ssize_t n;

        if (!buf_reserve(&s->in, STREAM_READ_BYTES)) {
            stream_fail(s, "no memory");
            return;
        }
        n = recv(s->fd, s->in.bytes + s->in.len, STREAM_READ_BYTES - 1, 0);
        if (n > 0) {
            s->in.len += (size_t)n;
            stream_parse(s, clock_us());
        } else if (n == 0 && s->state == STREAM_BODY && s->left == UINT64_MAX && !s->chunked) {
            stream_end(s);
        } else if (n == 0) {
            stream_fail(s, "the server closed the connection");
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR) {
            stream_fail(s, strerror(errno));
        }
    }
}

void stream_ready(struct stream *s)
{
    int failure = 0;
    socklen_t len = sizeof failure;

    if (s->state == STREAM_SENDING &&
        getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &failure, &len) == 0 && failure != 0)
        stream_fail(s, strerror(failure));
    if (s->state == STREAM_SENDING)
        stream_send(s);
    if (s->state == STREAM_HEAD || s->state == STREAM_BODY)
        stream_read(s);
}
