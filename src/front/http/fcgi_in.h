/* The input half of a FastCGI connection: records are read from the socket one by one, and the
 * empty FCGI_STDIN record that closes the input is left unread.
 *
 * Why: when a process dies, the kernel closes its sockets. If a unix socket is closed while bytes
 * lie unread in it, its peer gets ECONNRESET; otherwise the peer sees an ordinary end. nginx takes
 * an ordinary end for the end of an answer whose length it does not know, so a client could not
 * tell a cut stream from a whole one. The eight bytes of the last record stay unread until the
 * answer is sent, so the death of a front is an error at nginx, which then breaks the client's
 * connection.
 *
 * Thread: the request's reader. Calls block, for FCGI_SILENT_S (fcgi.c) per read at most. */
#ifndef QUIRE_FRONT_HTTP_FCGI_IN_H
#define QUIRE_FRONT_HTTP_FCGI_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define FCGI_HEAD_BYTES 8 /* of a record */
#define FCGI_PARAMS_BYTES \
    61440 /* most for the parameters; nginx sends 33 KB at most. Fits a pipe */

struct fcgi_in {
    int fd;
    uint64_t left;      /* bytes of the body that were not read yet */
    size_t record_left; /* bytes of the record under way that were not read yet */
    size_t pad_left;    /* bytes of padding after them */
};

/* Read FCGI_BEGIN_REQUEST and the parameters' records up to the empty one into bytes
 * [FCGI_PARAMS_BYTES], as three records without padding: the begin, all parameters, the end.
 * ERR_INVALID when the peer sends anything else, more, ends early, or has a name or value that is
 * longer than what was sent. */
int fcgi_in_params(struct fcgi_in *in, int fd, char *bytes, size_t *len) ERR_CHECKED;

/* Set the length of the body, from CONTENT_LENGTH. To be called before the first read. */
void fcgi_in_expect(struct fcgi_in *in, uint64_t body_bytes);

/* Read len bytes of the body to dst; len is at most in->left. ERR_CLIENT_GONE when the peer ends
 * early, is silent for too long or sends no FCGI_STDIN records. */
int fcgi_in_read(struct fcgi_in *in, char *dst, size_t len) ERR_CHECKED;

/* Read what is left of the body and drop it. Errors end it: there is nothing more to read then. */
void fcgi_in_skip(struct fcgi_in *in);

/* Take the last record off the socket, without waiting: the answer is sent, and a close is an
 * ordinary end from now on. */
void fcgi_in_end(struct fcgi_in *in);

#endif
