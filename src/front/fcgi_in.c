/* SPDX-License-Identifier: Apache-2.0
 *
 * A record is a head of eight bytes {version, type, id (2), length (2), padding, 0}, its content
 * and its padding. The body's records are read head by head: the head after the last byte of the
 * body belongs to the empty record that must stay, so nothing is ever read ahead. nginx sends the
 * body in records of up to 32 KB, so this costs two system calls for each of them. */
#include "front/fcgi_in.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define FCGI_VERSION    1
#define FCGI_ID         1 /* nginx has one request on a connection */
#define FCGI_BEGIN      1
#define FCGI_PARAMS     4
#define FCGI_STDIN      5
#define FCGI_BEGIN_BODY 8
#define FCGI_SKIP_BYTES 8192 /* dropped per read */
#define FCGI_TAIL_READS 64   /* for a peer that sent more than its CONTENT_LENGTH */

/* Read exactly len bytes. False at an end, an error or a silence. */
static bool fcgi_in_bytes(int fd, char *dst, size_t len)
{
    size_t got = 0;

    while (got < len) { /* a pass reads at least a byte, or is the last */
        ssize_t n = recv(fd, dst + got, len - got, MSG_WAITALL);

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static size_t fcgi_head_length(const char *head)
{
    const unsigned char *h = (const unsigned char *)head;

    return (size_t)h[4] << 8 | h[5];
}

static bool fcgi_head_is(const char *head, int type)
{
    return head[0] == FCGI_VERSION && head[1] == type && head[2] == 0 && head[3] == FCGI_ID;
}

int fcgi_in_params(struct fcgi_in *in, int fd, char *bytes, size_t *len)
{
    int type = FCGI_BEGIN;
    size_t used = 0;

    *in = (struct fcgi_in){.fd = fd};
    while (true) { /* a pass takes eight bytes of FCGI_PARAMS_BYTES or more */
        const char *head = bytes + used;
        size_t content, padding;

        if (FCGI_PARAMS_BYTES - used < FCGI_HEAD_BYTES ||
            !fcgi_in_bytes(fd, bytes + used, FCGI_HEAD_BYTES) || !fcgi_head_is(head, type))
            return ERR_INVALID;
        content = fcgi_head_length(head);
        padding = (unsigned char)head[6];
        used += FCGI_HEAD_BYTES;
        if ((type == FCGI_BEGIN && content != FCGI_BEGIN_BODY) ||
            content + padding > FCGI_PARAMS_BYTES - used ||
            !fcgi_in_bytes(fd, bytes + used, content + padding))
            return ERR_INVALID;
        used += content + padding;
        if (type == FCGI_PARAMS && content == 0)
            break;
        type = FCGI_PARAMS;
    }
    *len = used;
    return ERR_OK;
}

void fcgi_in_expect(struct fcgi_in *in, uint64_t body_bytes)
{
    in->left = body_bytes;
}

/* Go on to the body's next record. An empty one would be the end, which has not come yet. */
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

int fcgi_in_read(struct fcgi_in *in, char *dst, size_t len)
{
    while (len > 0) { /* a pass reads at least a byte, or is the last */
        bool good = in->record_left > 0 || fcgi_in_next(in);
        size_t n = len < in->record_left ? len : in->record_left;

        if (!good || !fcgi_in_bytes(in->fd, dst, n)) {
            in->left = 0; /* a second read would wait for a peer that has nothing more to say */
            return ERR_CLIENT_GONE;
        }
        in->record_left -= n;
        in->left -= n;
        dst += n;
        len -= n;
    }
    return ERR_OK;
}

void fcgi_in_skip(struct fcgi_in *in)
{
    char bytes[FCGI_SKIP_BYTES];

    int rc = ERR_OK;

    while (rc == ERR_OK && in->left > 0) /* ends with the body, whose length nginx has limited */
        rc = fcgi_in_read(in, bytes, in->left < sizeof bytes ? (size_t)in->left : sizeof bytes);
}

void fcgi_in_end(struct fcgi_in *in)
{
    char bytes[FCGI_SKIP_BYTES];

    for (int i = 0; i < FCGI_TAIL_READS; i++) {
        if (recv(in->fd, bytes, sizeof bytes, MSG_DONTWAIT) <= 0)
            break;
    }
}
