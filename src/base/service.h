/* The service manager's side: readiness, watchdog, sockets passed at start, signals.
 *
 * All of it does nothing, successfully, when the process was not started by systemd. */
#ifndef QUIRE_BASE_SERVICE_H
#define QUIRE_BASE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

void service_ready(void);    /* READY=1: start is over */
void service_stopping(void); /* STOPPING=1 */
void service_status(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Tell the watchdog that work goes on. Called by the loop after real progress, never by a
 * thread of its own: a loop that hangs must be noticed. Sends at most every half period. */
void service_watchdog(uint64_t now_us);

/* Has the program's file been replaced since it was started? Then a restart is an upgrade. */
bool service_was_replaced(void);

/* The one listening socket that systemd passed, or -1. */
int service_listen_fd(void);

/* Block SIGTERM and SIGINT in this thread and those made later; SIGPIPE is ignored. The first thing
 * in main(): a stop that comes while the program starts is then one as any other. */
void service_block_signals(void);

/* A descriptor that becomes readable when one of these arrives, or has before. ERR_IO (logged) when
 * there is none. */
int service_signal_fd(int *fd) ERR_CHECKED;

#endif
