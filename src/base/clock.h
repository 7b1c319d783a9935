/* Time. Everything inside quire is measured in microseconds of CLOCK_MONOTONIC, which all
 * processes of a machine share; the wall clock is for clients' eyes only. */
#ifndef QUIRE_BASE_CLOCK_H
#define QUIRE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_us(void);     /* monotonic, any thread, about 20 ns */
uint64_t clock_cpu_us(void); /* that this thread has computed for; about 200 ns */
int64_t clock_unix_s(void);  /* seconds since 1970 */
uint64_t clock_boot_s(void); /* seconds since the machine's start */

/* The same in 32 bits, for what is kept: 1 where the clock is before 1970 (0 says that there is no
 * time), the highest where it is after 2106. */
uint32_t clock_stamp_s(void);
void clock_sleep_us(uint64_t us);

#endif
