/* SPDX-License-Identifier: Apache-2.0
 *
 * Reader threads: accept, read the body, route, hand over. nginx has buffered the whole request
 * before it connects, so no slow client holds a reader. */
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "front/front.h"

static void reader_take(struct front *f)
{
    struct fcgi *request = NULL;
    struct exchange *x;

    if (fcgi_accept(&request, f->listen_fd) != ERR_OK)
        return;
    x = FAULT_HIT(front_accept) ? NULL : exchange_new(request);
    if (x == NULL) {
        fcgi_close(request);
        return;
    }
    route_exchange(f, x);
    streamer_adopt(f, x);
}

void *reader_run(void *front)
{
    struct front *f = front;
    uint64_t one = 1;

    for (;;) { /* until stop_fd is readable */
        struct pollfd p[2] = {{.fd = f->listen_fd, .events = POLLIN},
                              {.fd = f->stop_fd, .events = POLLIN}};

        if (poll(p, 2, -1) <= 0)
            continue; /* EINTR */
        if (p[1].revents != 0)
            break;
        reader_take(f);
    }
    atomic_fetch_sub(&f->n_readers, 1);
    (void)!write(f->handover_fd, &one, sizeof one); /* the streamer may wait for the last one */
    return NULL;
}
