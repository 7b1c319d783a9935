/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP/1.1 client for the commands of quire: one connection per request, blocking, without
 * TLS. Answers may be chunked, have a length, or end with the connection.
 *
 *    struct http h = HTTP_CLOSED;
 *    if (http_ask(&h, &request) == ERR_OK && http_read_all(&h, &body) == ERR_OK) ...
 *    http_close(&h);
 *
 * One thread per struct http. */
#ifndef QUIRE_TOOLS_HTTP_H
#define QUIRE_TOOLS_HTTP_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* The place of a server. */
struct http_url {
    char host[256];   /* name or address, without brackets */
    char port[8];     /* decimal */
    char socket[108]; /* path of a unix socket; "": host and port are used */
    char base[256];   /* path before the API's paths: "" or "/name" */
};

/* Read http://HOST[:PORT][/PATH] or unix:PATH. A /v1 at the end is left out, because the paths of
 * requests begin with it. ERR_INVALID: why says what is wrong, in one sentence. */
int http_url_read(struct http_url *out, const char *text, char *why, size_t why_cap) ERR_CHECKED;

struct http_request {
    const struct http_url *url;
    const char *path;                  /* begins with a slash */
    const char *key;                   /* API key; NULL or "": none */
    const struct buf *body;            /* JSON, sent by POST; NULL: GET */
    int silence_s;                     /* an answer without a byte for so long fails */
    const volatile sig_atomic_t *stop; /* not 0: end the request; NULL: never */
};

struct http {
    int fd;
    int status;        /* of the answer */
    int retry_after_s; /* its Retry-After; -1: it has none */
    char why[512];     /* after an error: the reason, without a full stop */
    /* private */
    const struct http_request *request; /* borrowed until http_close() */
    bool chunked;
    bool ended;     /* the whole body was read */
    uint64_t left;  /* bytes of the body, or of this chunk; UINT64_MAX: until the end */
    size_t at, len; /* in[at .. len) was received and not read */
    char in[16384];
};

#define HTTP_CLOSED \
    {               \
        .fd = -1    \
    }

/* Send a request and read the head of its answer; the body follows by the functions below. The
 * caller closes, also after an error. Errors, each with `why`: ERR_ENGINE_GONE no connection;
 * ERR_IO the connection broke; ERR_DEADLINE silence_s have passed; ERR_SYNTAX the answer is not
 * HTTP; ERR_CLIENT_GONE *stop was set; ERR_NO_MEMORY. */
int http_ask(struct http *h, const struct http_request *request) ERR_CHECKED;

/* Append the whole rest of the body. Errors as above; ERR_TOO_LARGE above 256 MiB. */
int http_read_all(struct http *h, struct buf *out) ERR_CHECKED;

/* Replace `line` by the next line of the body without its end; *ended when there is none. Errors as
 * above. */
int http_read_line(struct http *h, struct buf *line, bool *ended) ERR_CHECKED;

void http_close(struct http *h); /* accepts a closed one */

#endif
