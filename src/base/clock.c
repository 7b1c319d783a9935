/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks. clock_gettime() of these clocks is served from memory without a system call on Linux
 * (CLOCK_THREAD_CPUTIME_ID excepted), so the loop can afford it several times per step. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

/* Microseconds since some time; never goes back. */
uint64_t clock_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Processor time of this thread. */
uint64_t clock_cpu_us(void)
{
    struct timespec used;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); /* cannot fail for the calling thread */
    return (uint64_t)used.tv_sec * 1000000u + (uint64_t)used.tv_nsec / 1000u;
}

/* Seconds since the machine's start, sleep included. */
uint64_t clock_boot_s(void)
{
    struct timespec timespec;

    (void)clock_gettime(CLOCK_BOOTTIME, &timespec); /* cannot fail */
    return (uint64_t)timespec.tv_sec;
}

/* Seconds since 1970. May jump when the time is set. */
int64_t clock_unix_s(void)
{
    return (int64_t)time(NULL);
}

/* Stamps are stored on disk and in shared memory for years, so the ends of the range saturate. */
uint32_t clock_stamp_s(void)
{
    int64_t now_s = clock_unix_s();

    if (now_s < 1)
        return 1;
    if (now_s > UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)now_s;
}

/* Sleep for the whole time, also when signals arrive. */
void clock_sleep_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000u),
                            .tv_nsec = (long)(us % 1000000u) * 1000};

    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        continue; /* left is the remaining time */
}
