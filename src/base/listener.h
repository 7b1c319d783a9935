/* SPDX-License-Identifier: Apache-2.0
 *
 * A listening socket, and its behaviour when no descriptor is left for a connection.
 *
 * The socket then stays readable although nothing can be accepted, so polling it would waste a
 * core. The caller stops polling it for LISTENER_SHUT_MS; connections wait in the backlog meanwhile
 * and are accepted when descriptors are free again. One thread at a time. */
#ifndef QUIRE_BASE_LISTENER_H
#define QUIRE_BASE_LISTENER_H

#include <stdint.h>

#include "base/err.h"

#define LISTENER_SHUT_MS 100 /* short compared with the wait for a free descriptor */

struct listener {
    const char *who;  /* name of the listener, for log lines */
    int fd;           /* listening, non-blocking; borrowed */
    uint64_t shut_us; /* clock_us() of the last shortage; 0: never */
};

/* Accept one connection, with flags of accept4(). ERR_AGAIN: none is waiting. ERR_OVERLOADED: no
 * descriptor or no memory; logged unless there was a shortage within the last minute. Do not call
 * it again for LISTENER_SHUT_MS. */
int listener_accept(struct listener *d, int flags, int *fd) ERR_CHECKED;

#endif
