/* A door: a listening socket, and what is done when there is no descriptor for who connects.
 *
 * Such a socket stays readable while nobody can be taken from it: who polled on would use a core
 * for nothing. So it is left alone for LISTENER_SHUT_MS, by who polls it; whoever comes meanwhile
 * stands in its backlog, and is taken when descriptors are free again. One thread at a time. */
#ifndef QUIRE_BASE_LISTENER_H
#define QUIRE_BASE_LISTENER_H

#include <stdint.h>

#include "base/err.h"

#define LISTENER_SHUT_MS 100 /* nobody notices it who has waited for another's end */

struct listener {
    const char *who;  /* speaks in the log */
    int fd;           /* listens, does not block; borrowed */
    uint64_t shut_us; /* when a descriptor was lacking last; 0: never */
};

/* Accept one, with flags of accept4(). ERR_AGAIN: nobody is there. ERR_OVERLOADED: there is no
 * descriptor or no memory for him, which is logged unless it was so within the last minute; look
 * again LISTENER_SHUT_MS later, and not before. */
int listener_accept(struct listener *d, int flags, int *fd) ERR_CHECKED;

#endif
