/* SPDX-License-Identifier: Apache-2.0
 *
 * Time. All durations inside quire are microseconds of CLOCK_MONOTONIC, which all processes of a
 * machine share. The wall clock is only for values that clients see or that are stored. */
#ifndef QUIRE_BASE_CLOCK_H
#define QUIRE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_us(void);     /* monotonic, any thread, about 20 ns */
uint64_t clock_cpu_us(void); /* CPU time of this thread; about 200 ns */
int64_t clock_unix_s(void);  /* seconds since 1970 */
uint64_t clock_boot_s(void); /* seconds since the machine's start */

/* clock_unix_s() in 32 bits, for stored time stamps: 1 when the clock is before 1970 (0 means "no
 * time"), UINT32_MAX when it is after 2106. */
uint32_t clock_stamp_s(void);
void clock_sleep_us(uint64_t us);

#endif
