/* SPDX-License-Identifier: Apache-2.0
 *
 * The service manager and signals. This is the only file that includes libsystemd. sd_notify() does
 * nothing when no manager started the process, and that is not an error. */
#include "base/service.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/log.h"

/* All is open: systemd may start units that wait for us. */
void service_ready(void)
{
    (void)sd_notify(0, "READY=1"); /* without a manager nothing happens */
}

/* Stopping has begun. */
void service_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1");
}

/* A line for "systemctl status". */
void service_status(const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)sd_notifyf(0, "STATUS=%s", text);
}

/* The period comes from WatchdogSec= in the unit; 0 means that there is no watchdog. */
void service_watchdog(uint64_t now_us)
{
    static uint64_t period_us = UINT64_MAX;
    static uint64_t last_us;

    if (period_us == UINT64_MAX && sd_watchdog_enabled(0, &period_us) <= 0)
        period_us = 0;
    if (period_us == 0 || now_us - last_us < period_us / 2)
        return;
    last_us = now_us;
    (void)sd_notify(0, "WATCHDOG=1");
}

/* Has the program's file been replaced since this process started, as by an update? */
bool service_was_replaced(void)
{
    static const char gone[] = " (deleted)"; /* the kernel appends it to the path of a removed
                                              * file */
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    size_t len = n < 0 ? 0 : (size_t)n;

    return len >= sizeof gone - 1 &&
           memcmp(path + len - (sizeof gone - 1), gone, sizeof gone - 1) == 0;
}

/* The socket that systemd passed; -1: none. */
int service_listen_fd(void)
{
    if (sd_listen_fds(0) >= 1)
        return SD_LISTEN_FDS_START;
    return -1;
}

/* Stop signals are read from a descriptor in the poll loop. They must be blocked in every thread,
 * or the kernel would deliver them to one that does not block them and end the process. */
static void service_signals(sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGTERM);
    (void)sigaddset(set, SIGINT);
}

/* Call before the first thread starts. SIGPIPE is ignored: writes to closed connections return
 * errors. */
void service_block_signals(void)
{
    sigset_t set;

    service_signals(&set);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* cannot fail */
}

/* A descriptor that becomes readable when a stop signal has come. */
int service_signal_fd(int *fd)
{
    sigset_t set;

    service_signals(&set);
    *fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (*fd == -1) {
        log_error("service: signalfd: %s", strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}
