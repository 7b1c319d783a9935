/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the cpu device that can be given back and taken again at the same addresses.
 *
 * Two runs of addresses, reserved at once and given memory as they grow: constant and scratch. The
 * constant part is copied to a memfd, which is not mapped: that is what "the host" is here, so that
 * the whole way of a sleep can be tried without a GPU. device.h says what the functions do. */
#ifndef QUIRE_DEVICE_CPU_SLEEP_H
#define QUIRE_DEVICE_CPU_SLEEP_H

#include "device/device.h"

struct cpu_region {
    char *base;       /* NULL: not reserved */
    size_t cap, used; /* bytes; memory stands behind the first `used`, rounded up to pages */
};

struct cpu_sleep {
    struct cpu_region constant, scratch;
    int fd;          /* the copy; -1 */
    size_t n_copied; /* bytes, out while it falls asleep, in while it wakes */
    bool is_asleep;  /* from the end of sleep() to that of wake() */
    bool has_memory; /* and wake() has taken it again */
};

int cpu_sleep_init(struct cpu_sleep *s) ERR_CHECKED;
void cpu_sleep_fini(struct cpu_sleep *s); /* of one that is zero but for fd -1: nothing */

/* 64-byte aligned, zero; NULL when there is none (logged). */
void *cpu_sleep_alloc(struct cpu_region *r, size_t bytes);

int cpu_sleep_out(struct cpu_sleep *s) ERR_CHECKED; /* sleep() */
int cpu_sleep_in(struct cpu_sleep *s) ERR_CHECKED;  /* wake() */

#endif
