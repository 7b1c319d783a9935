/* SPDX-License-Identifier: Apache-2.0
 *
 * The service manager: readiness, watchdog, sockets passed at start, and signals.
 *
 * Without systemd all functions do nothing, successfully. */
#ifndef QUIRE_BASE_SERVICE_H
#define QUIRE_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

void service_ready(void);    /* READY=1: the start is complete */
void service_stopping(void); /* STOPPING=1 */
/* The line that `systemctl status` shows. */
void service_status(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Report progress to the watchdog, at most once per half period. The main loop calls it after real
 * progress; never a separate thread, because a hung loop must be noticed. */
void service_watchdog(uint64_t now_us);

/* Has the program's file been replaced since the start? Then a restart is an upgrade. */
bool service_was_replaced(void);

/* The one listening socket that systemd passed, or -1. */
int service_listen_fd(void);

/* Block SIGTERM and SIGINT in this thread and those made later, and ignore SIGPIPE. The first call
 * in main(), so that a stop during the start is handled like any other. */
void service_block_signals(void);

/* A descriptor that becomes readable when SIGTERM or SIGINT arrives, or has arrived since
 * service_block_signals(). ERR_IO (logged). */
int service_signal_fd(int *fd) ERR_CHECKED;

#endif
