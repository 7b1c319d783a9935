/* SPDX-License-Identifier: Apache-2.0
 *
 * The input half of a FastCGI connection: records are read from the socket one by one, and the
 * empty FCGI_STDIN record that closes the input is left unread.
 *
 * The reason: when a process dies, the kernel closes its sockets. If unread bytes lie in a unix
 * socket that is closed, the peer gets ECONNRESET; otherwise it sees an ordinary end of the stream.
 * nginx takes an ordinary end for the end of an answer of unknown length, so that a client could
 * not distinguish a cut stream from a complete one. The eight bytes of the last record stay unread
 * until the answer is sent; so the death of a front is an error for nginx, which then breaks the
 * client's connection.
 *
 * Thread: the request's reader. Calls block, at most FCGI_SILENT_S (fcgi.c) per read. */
#ifndef QUIRE_FRONT_HTTP_FCGI_IN_H
#define QUIRE_FRONT_HTTP_FCGI_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define FCGI_HEAD_BYTES 8 /* of the head of a record */
/* maximum bytes of parameters, which must fit in a pipe; nginx sends at most 33 KB */
#define FCGI_PARAMS_BYTES 61440

struct fcgi_in {
    int fd;
    uint64_t left;      /* bytes of the body that were not read yet */
    size_t record_left; /* bytes of the current record that were not read yet */
    size_t pad_left;    /* bytes of padding after them */
};

/* Read FCGI_BEGIN_REQUEST and the parameters' records up to the empty one into bytes
 * [FCGI_PARAMS_BYTES], as three records without padding: the begin, all parameters, the end.
 * ERR_INVALID when the peer sends anything else or more, ends early, or sends a name or value whose
 * length exceeds the record. */
int fcgi_in_params(struct fcgi_in *in, int fd, char *bytes, size_t *len) ERR_CHECKED;

/* Set the length of the body, from CONTENT_LENGTH. Call it before the first read. */
void fcgi_in_expect(struct fcgi_in *in, uint64_t body_bytes);

/* Read len bytes of the body to dst; len is at most in->left. ERR_CLIENT_GONE when the peer ends
 * early, pauses for too long or sends other records than FCGI_STDIN. */
int fcgi_in_read(struct fcgi_in *in, char *dst, size_t len) ERR_CHECKED;

/* Read the rest of the body and drop it. Stops at an error, because nothing can be read after
 * one. */
void fcgi_in_skip(struct fcgi_in *in);

/* Take the last record off the socket, without waiting: the answer is sent, so that closing the
 * connection is an ordinary end from now on. */
void fcgi_in_end(struct fcgi_in *in);

#endif
