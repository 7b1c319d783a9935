/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading FastCGI records.
 *
 *   head: version  type  id (2 bytes)  length (2)  padding  0     then content, then padding
 *   a request:     BEGIN_REQUEST  PARAMS ... PARAMS(empty)  STDIN ... STDIN(empty)
 *
 * The body's records are read head by head: the head after the last byte of the body belongs to the
 * empty record that must stay unread, so nothing is ever read ahead. nginx sends the body in
 * records of up to 32 KB, so this costs two system calls per 32 KB. */
#include "front/http/fcgi_in.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/must.h"

#define FCGI_VERSION    1
#define FCGI_ID         1 /* nginx uses one request per connection */
#define FCGI_BEGIN      1
#define FCGI_PARAMS     4
#define FCGI_STDIN      5
#define FCGI_BEGIN_BODY 8
#define FCGI_SKIP_BYTES 8192 /* bytes per read that are dropped */
/* bounds the reading from a peer that sent more than its CONTENT_LENGTH */
#define FCGI_TAIL_READS 64

/* Read exactly len bytes. False at the end of input, at an error or after FCGI_SILENT_S. */
static bool fcgi_in_bytes(int fd, char *dst, size_t len)
{
    size_t got = 0;

    while (got < len) { /* each pass reads at least one byte, or is the last */
        ssize_t n = recv(fd, dst + got, len - got, MSG_WAITALL);

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

/* The length of a record's content, high byte first. */
static size_t fcgi_head_length(const char *head)
{
    const unsigned char *h = (const unsigned char *)head;

    return (size_t)h[4] << 8 | h[5];
}

/* Is this the head of a record of this type, of the only request? */
static bool fcgi_head_is(const char *head, int type)
{
    return head[0] == FCGI_VERSION && head[1] == type && head[2] == 0 && head[3] == FCGI_ID;
}

/* Does every name and value end within the parameters? libfcgi allocates by their lengths, and ends
 * the process when it gets no memory, so a wrong length must not reach it. A pair is two lengths,
 * of one byte below 128 or of four bytes with the top bit set, then the name and the value. */
static bool fcgi_in_pairs_fit(const char *bytes, size_t len)
{
    const unsigned char *b = (const unsigned char *)bytes;
    size_t at = 0;

    while (at < len) { /* each pass takes at least two bytes */
        size_t skip = 0;

        for (int i = 0; i < 2; i++) {
            size_t n = at < len && b[at] >= 0x80 ? 4 : 1;

            if (n > len - at)
                return false;
            if (n == 1)
                skip += b[at];
            else
                skip += (size_t)(b[at] & 0x7f) << 24 | (size_t)b[at + 1] << 16 |
                        (size_t)b[at + 2] << 8 | b[at + 3];
            at += n;
        }
        if (skip > len - at)
            return false;
        at += skip;
    }
    return true;
}

/* Read a record of this type to bytes [room], without head and padding. Returns its length, or
 * -1. */
static long fcgi_in_record(int fd, int type, char *bytes, size_t room)
{
    char head[FCGI_HEAD_BYTES];
    char padding[UINT8_MAX];
    size_t len;

    if (!fcgi_in_bytes(fd, head, sizeof head) || !fcgi_head_is(head, type))
        return -1;
    len = fcgi_head_length(head);
    if (len > room || !fcgi_in_bytes(fd, bytes, len) ||
        !fcgi_in_bytes(fd, padding, (unsigned char)head[6]))
        return -1;
    return (long)len;
}

/* The three records for libfcgi: all parameters are joined in one record, because a length of up to
 * FCGI_PARAMS_BYTES fits the two bytes of a head. */
static void fcgi_in_head(char *dst, int type, size_t len)
{
    const char head[FCGI_HEAD_BYTES] = {
        FCGI_VERSION, (char)type, 0, FCGI_ID, (char)(len >> 8), (char)(len & 0xff), 0, 0,
    };

    must(len <= UINT16_MAX);
    memcpy(dst, head, sizeof head);
}

/* Read all records up to the end of the parameters, into the form in which libfcgi gets them. */
int fcgi_in_params(struct fcgi_in *in, int fd, char *bytes, size_t *len)
{
    const size_t first = 2 * FCGI_HEAD_BYTES + FCGI_BEGIN_BODY; /* offset of the parameters */
    size_t used = first;
    long n = 1;

    *in = (struct fcgi_in){.fd = fd};
    if (fcgi_in_record(fd, FCGI_BEGIN, bytes + FCGI_HEAD_BYTES, FCGI_BEGIN_BODY) != FCGI_BEGIN_BODY)
        return ERR_INVALID;
    while (n > 0) { /* each pass takes at least one byte of FCGI_PARAMS_BYTES, or is the last */
        n = fcgi_in_record(fd, FCGI_PARAMS, bytes + used,
                           FCGI_PARAMS_BYTES - FCGI_HEAD_BYTES - used);
        if (n < 0)
            return ERR_INVALID;
        used += (size_t)n;
    }
    if (!fcgi_in_pairs_fit(bytes + first, used - first))
        return ERR_INVALID;
    fcgi_in_head(bytes, FCGI_BEGIN, FCGI_BEGIN_BODY);
    fcgi_in_head(bytes + FCGI_HEAD_BYTES + FCGI_BEGIN_BODY, FCGI_PARAMS, used - first);
    *len = used;
    if (used > first) { /* else the empty record is already the end */
        fcgi_in_head(bytes + used, FCGI_PARAMS, 0);
        *len += FCGI_HEAD_BYTES;
    }
    return ERR_OK;
}

/* The length of the body, from CONTENT_LENGTH. */
void fcgi_in_expect(struct fcgi_in *in, uint64_t body_bytes)
{
    in->left = body_bytes;
}

/* Read the head of the body's next record. An empty record would be the end, and the body is not
 * complete yet. */
static bool fcgi_in_next(struct fcgi_in *in)
{
    char bytes[UINT8_MAX];

    if (!fcgi_in_bytes(in->fd, bytes, in->pad_left))
        return false;
    in->pad_left = 0;
    if (!fcgi_in_bytes(in->fd, bytes, FCGI_HEAD_BYTES) || !fcgi_head_is(bytes, FCGI_STDIN))
        return false;
    in->record_left = fcgi_head_length(bytes);
    in->pad_left = (unsigned char)bytes[6];
    return in->record_left > 0;
}

/* Read len bytes of the body, across its records. */
int fcgi_in_read(struct fcgi_in *in, char *dst, size_t len)
{
    must(len <= in->left);
    while (len > 0) { /* each pass reads at least one byte, or is the last */
        bool good = in->record_left > 0 || fcgi_in_next(in);
        size_t n = len < in->record_left ? len : in->record_left;

        if (!good || !fcgi_in_bytes(in->fd, dst, n)) {
            in->left = 0; /* another read would wait for a peer that has failed */
            return ERR_CLIENT_GONE;
        }
        in->record_left -= n;
        in->left -= n;
        dst += n;
        len -= n;
    }
    return ERR_OK;
}

/* Drop the rest of the body. */
void fcgi_in_skip(struct fcgi_in *in)
{
    char bytes[FCGI_SKIP_BYTES];

    int rc = ERR_OK;

    while (rc == ERR_OK && in->left > 0) /* bounded by the body's length, which nginx limits */
        rc = fcgi_in_read(in, bytes, in->left < sizeof bytes ? (size_t)in->left : sizeof bytes);
}

/* Read the bytes that are left after the answer: a close() with unread bytes would reset the
 * connection, and nginx could lose the answer's end. */
void fcgi_in_end(struct fcgi_in *in)
{
    char bytes[FCGI_SKIP_BYTES];

    for (int i = 0; i < FCGI_TAIL_READS; i++) {
        if (recv(in->fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
            break;
    }
}
