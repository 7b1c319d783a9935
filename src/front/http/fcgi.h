/* One FastCGI request: its parameters, its body, its answer. The only door to libfcgi.
 *
 * Reading blocks (nginx has the whole body before it connects); writing never does. A request
 * belongs to one thread at a time. A request that is closed, or whose process dies, before its
 * answer has ended is an error at nginx (fcgi_in.h), so a client can tell that its answer was cut.
 * */
#ifndef QUIRE_FRONT_HTTP_FCGI_H
#define QUIRE_FRONT_HTTP_FCGI_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

struct fcgi;

/* Prepare the library. SIGTERM must be blocked before: libfcgi would take it over. ERR_IO. */
int fcgi_start(void) ERR_CHECKED;

/* Listen on a unix socket at path, mode 0660. ERR_IO (logged). */
int fcgi_listen(const char *path, int *fd) ERR_CHECKED;

/* Take a connection's request, blocking until its parameters are there, for so long as the peer
 * goes on; fd is taken over, whatever comes. ERR_AGAIN when he spoke no FastCGI, ERR_NO_MEMORY. */
int fcgi_open(struct fcgi **out, int fd) ERR_CHECKED;

/* A parameter as nginx sent it, or "" when there is none. Lives as long as the request. */
const char *fcgi_param(const struct fcgi *f, const char *name);

/* The whole body, NUL-terminated, in the arena. ERR_TOO_LARGE past max_bytes, ERR_CLIENT_GONE
 * when it ends early, ERR_NO_MEMORY. */
int fcgi_read_body(struct fcgi *f, struct arena *arena, size_t max_bytes, const char **bytes,
                   size_t *len) ERR_CHECKED;

/* Read the rest of the body and forget it: a front that closes while nginx still writes makes it
 * answer 502 in our place. Blocks like fcgi_read_body(). */
void fcgi_skip_body(struct fcgi *f);

/* The connection, for epoll: EPOLLRDHUP says that the client went away. */
int fcgi_fd(const struct fcgi *f);

/* Send as much of bytes as the socket takes without blocking. The number sent, 0 .. len, or
 * ERR_CLIENT_GONE. The next call begins with what was not sent: its bytes are promised. */
long fcgi_write(struct fcgi *f, const char *bytes, size_t len);

/* The same with the last of an answer's bytes, or with none: its end follows them, in the same
 * system call if there is room. To be called until fcgi_has_ended(). */
long fcgi_write_last(struct fcgi *f, const char *bytes, size_t len);
bool fcgi_has_ended(const struct fcgi *f);

/* Free the request. nginx gets an error if the answer has not ended. */
void fcgi_close(struct fcgi *f);

#endif
