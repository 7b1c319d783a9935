/* SPDX-License-Identifier: Apache-2.0
 *
 * A private server: `quire serve` below this process, on a unix socket in a folder of mode 0700. It
 * ends when this process dies, however that happens, and all folders are removed. Called by the
 * main thread, because the kernel's signal for that belongs to the thread that forks. */
#ifndef QUIRE_TOOLS_PRIVATE_H
#define QUIRE_TOOLS_PRIVATE_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "tools/http.h"

struct private_server {
    pid_t pid; /* of its keeper (private.c); 0: none */
    char folder[80];
    int lock; /* of the folder; a later server removes a folder without lock */
};

#define PRIVATE_NONE \
    {                \
        .lock = -1   \
    }

/* Start it and wait until it is ready, which takes as long as the model needs. settings are the
 * n_settings further arguments of `quire serve`. False: the reason was printed, with the server's
 * last lines; or *stop was set. The caller ends it in either case. */
bool private_start(struct private_server *p, const char *model, char **settings, int n_settings,
                   const volatile sig_atomic_t *stop, struct http_url *url);

/* Arguments before "--" are the command's own, those behind it settings of the server. Returns the
 * number of the former; *first is the index of the first setting, argc if there is none. */
int private_split(int argc, char **argv, int *first);

void private_end(struct private_server *p); /* accepts one that was not started; blocks */

#endif
