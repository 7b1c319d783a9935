/* SPDX-License-Identifier: Apache-2.0
 *
 * A front's way to an engine, in one call that waits. */
#ifndef QUIRE_TESTS_CONNECT_H
#define QUIRE_TESTS_CONNECT_H

#include <unistd.h>

#include "ipc/attach.h"

__attribute__((unused)) static int attach_connect(const char *path, int timeout_ms, int *fd,
                                                  struct wire_welcome *w, int *fds)
{
    int sock;
    int rc = attach_call(path, WIRE_FRONT, &sock);

    if (rc != ERR_OK)
        return rc;
    rc = attach_answer(sock, timeout_ms, w, fds);
    if (rc == ERR_OK)
        *fd = sock;
    else
        (void)close(sock);
    return rc == ERR_AGAIN ? ERR_ENGINE_GONE : rc;
}

#endif
