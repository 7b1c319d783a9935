/* SPDX-License-Identifier: Apache-2.0
 *
 * One streamed answer on a socket that never blocks, and the times of its parts. Many of them share
 * a thread: the caller waits with epoll and calls stream_ready().
 *
 *   bytes of the socket -> head -> chunks taken off -> lines -> events "data: {...}"
 *
 * An event with choices is a part of the answer, as vLLM's benchmark counts it: the first gives the
 * time to the first token, each later one a gap. Tokens that the server puts into one event have
 * one time. */
#ifndef QUIRE_TOOLS_STREAM_H
#define QUIRE_TOOLS_STREAM_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

/* What came of a request. */
struct stream_result {
    bool succeeded;
    char why[200];                       /* otherwise: the reason */
    uint64_t sent_us, first_us, last_us; /* clock_us(): connecting; the first and last part */
    int n_input, n_output;               /* tokens by the server's usage; -1: it does not say */
    float *gaps_ms;                      /* [n_gaps] between parts; freed by the caller */
    int n_gaps, gaps_cap;
};

enum stream_state {
    STREAM_CLOSED,
    STREAM_SENDING, /* connecting, or the request is not sent whole */
    STREAM_HEAD,
    STREAM_BODY,
};

struct stream {
    enum stream_state state;
    int fd;
    struct stream_result *result; /* borrowed until the state is STREAM_CLOSED */
    struct buf out;               /* the request */
    size_t n_sent;
    struct buf in;       /* bytes that were not taken apart yet */
    struct buf line;     /* of the body, incomplete */
    struct arena parsed; /* of the event at hand */
    int status;
    bool chunked, done; /* done: "data: [DONE]" has come */
    uint64_t left;      /* bytes of the chunk, or of the body; UINT64_MAX: until the end */
};

/* Connect and send head and body, which are copied. The state is STREAM_CLOSED if that failed at
 * once, and the result says why. */
void stream_open(struct stream *s, struct stream_result *result, const struct sockaddr *address,
                 socklen_t address_len, const struct buf *request);

/* The socket is ready: go on. The state is STREAM_CLOSED after the answer's end. */
void stream_ready(struct stream *s);

/* End it, for a reason that the result gets. */
void stream_fail(struct stream *s, const char *why);

/* Free the memory of a closed one. */
void stream_fini(struct stream *s);

#endif
