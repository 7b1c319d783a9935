/* SPDX-License-Identifier: Apache-2.0
 *
 * Accepting connections, and the pause when descriptors run out. When accept4() fails for want of a
 * descriptor, the connection stays in the backlog and the socket stays readable, so a poll loop
 * would spin; ERR_OVERLOADED makes the caller stop polling for a while. */
#include "base/listener.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"

#define LISTENER_QUIET_US 60000000u /* log again only after this long without a shortage */

/* Log the shortage with its remedy. */
static void listener_complain(const struct listener *d, int error)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail */
    if (error == EMFILE)
        log_warn("%s: all %llu file descriptors are in use: connections wait until one is free; "
                 "raise LimitNOFILE",
                 d->who, (unsigned long long)limit.rlim_cur);
    else
        log_warn("%s: the system has no file descriptor or memory for a connection (%s): it waits; "
                 "raise fs.file-max or free memory",
                 d->who, strerror(error));
}

/* Accept one connection. The socket is non-blocking. */
int listener_accept(struct listener *d, int flags, int *fd)
{
    int fd_new = accept4(d->fd, NULL, NULL, flags);
    int error = errno;
    uint64_t now_us;

    if (fd_new != -1) {
        *fd = fd_new;
        return ERR_OK;
    }
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM)
        return ERR_AGAIN; /* another process took it, or the client left */
    now_us = clock_us();
    if (d->shut_us == 0 || now_us - d->shut_us > LISTENER_QUIET_US)
        listener_complain(d, error);
    d->shut_us = now_us;
    return ERR_OVERLOADED;
}
