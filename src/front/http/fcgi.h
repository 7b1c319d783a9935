/* SPDX-License-Identifier: Apache-2.0
 *
 * One FastCGI request: its parameters, its body, its answer. No other file includes libfcgi.
 *
 * Reading blocks (nginx has the whole body before it connects); writing never does. A request
 * belongs to one thread at a time. When it is closed, or the process dies, before its answer has
 * ended, nginx sees an error (fcgi_in.h), so that the client can notice that its answer was cut. */
#ifndef QUIRE_FRONT_HTTP_FCGI_H
#define QUIRE_FRONT_HTTP_FCGI_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

struct fcgi;

/* Prepare the library. SIGTERM must be blocked before, because libfcgi would take it over. ERR_IO
 * (logged). */
int fcgi_start(void) ERR_CHECKED;

/* Listen on a unix socket at path, mode 0660. ERR_IO, ERR_INVALID, ERR_IN_USE (all logged). */
int fcgi_listen(const char *path, int *fd) ERR_CHECKED;

/* Read the request of an accepted connection, blocking until its parameters have arrived. Takes
 * over fd in every case. ERR_AGAIN when the peer did not send valid FastCGI, ERR_NO_MEMORY. */
int fcgi_open(struct fcgi **out, int fd) ERR_CHECKED;

/* A parameter as nginx sent it, or "" when it is missing. Lives as long as the request. */
const char *fcgi_param(const struct fcgi *f, const char *name);

/* Read the whole body into the arena, NUL-terminated. ERR_TOO_LARGE above max_bytes,
 * ERR_CLIENT_GONE when it ends early, ERR_NO_MEMORY. */
int fcgi_read_body(struct fcgi *f, struct arena *arena, size_t max_bytes, const char **bytes,
                   size_t *len) ERR_CHECKED;

/* Read the rest of the body and drop it. If a front closed the connection while nginx still writes,
 * nginx would answer 502 and drop our answer. Blocks like fcgi_read_body(). */
void fcgi_skip_body(struct fcgi *f);

/* The connection, for epoll: EPOLLRDHUP means that the client has gone. */
int fcgi_fd(const struct fcgi *f);

/* Send as many bytes as the socket takes without blocking. Returns the number sent, 0 .. len, or
 * ERR_CLIENT_GONE. The next call must begin with the bytes that were not sent, because a record's
 * head has promised them. */
long fcgi_write(struct fcgi *f, const char *bytes, size_t len);

/* Send the last bytes of an answer, or none, and its end after them, in the same system call if the
 * socket has room. Returns as fcgi_write(). Call it until fcgi_has_ended(). */
long fcgi_write_last(struct fcgi *f, const char *bytes, size_t len);
bool fcgi_has_ended(const struct fcgi *f);

/* Free the request and close its connection. nginx sees an error if the answer has not ended. */
void fcgi_close(struct fcgi *f);

#endif
