/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a process that found a bug of its own. It only uses functions that work in a broken
 * process: write(2), backtrace_symbols_fd(3), abort(3). */
#include "base/must.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void must_failed(const char *cond, const char *file, int line)
{
    char text[512];
    void *frames[32];
    int len = snprintf(text, sizeof text, "<2>must(%s) failed at %s:%d\n", cond, file, line);

    if (len > 0)
        (void)!write(STDERR_FILENO, text, (size_t)len < sizeof text ? (size_t)len : sizeof text);
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    abort();
}
