/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

uint64_t clock_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t clock_cpu_us(void)
{
    struct timespec used;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used); /* cannot fail for one's own */
    return (uint64_t)used.tv_sec * 1000000u + (uint64_t)used.tv_nsec / 1000u;
}

uint64_t clock_boot_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_BOOTTIME, &t); /* cannot fail */
    return (uint64_t)t.tv_sec;
}

int64_t clock_unix_s(void)
{
    return (int64_t)time(NULL);
}

uint32_t clock_stamp_s(void)
{
    int64_t s = clock_unix_s();

    return s < 1 ? 1 : s > UINT32_MAX ? UINT32_MAX : (uint32_t)s;
}

void clock_sleep_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000u),
                            .tv_nsec = (long)(us % 1000000u) * 1000};

    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        continue; /* the rest of the time is in left */
}
