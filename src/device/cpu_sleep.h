/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the cpu device that can be given back and taken again at the same addresses.
 *
 * There are two regions of addresses, reserved at once and given memory as they grow: constant
 * and scratch. The constant part is copied to a memfd, which is not mapped. It plays the part of
 * host memory, so that tests can go through a whole sleep without a GPU. device.h defines the
 * functions. */
#ifndef QUIRE_DEVICE_CPU_SLEEP_H
#define QUIRE_DEVICE_CPU_SLEEP_H

#include "device/device.h"

struct cpu_region {
    char *base;       /* NULL: not reserved */
    size_t cap, used; /* bytes; the first `used`, rounded up to pages, have memory */
};

struct cpu_sleep {
    struct cpu_region constant, scratch;
    int fd;          /* the copy; -1 without */
    size_t n_copied; /* bytes copied so far: out while falling asleep, in while waking */
    bool is_asleep;  /* from the end of sleep() to that of wake() */
    bool has_memory; /* while asleep: wake() has taken the memory again */
};

int cpu_sleep_init(struct cpu_sleep *s) ERR_CHECKED;
void cpu_sleep_fini(struct cpu_sleep *s); /* does nothing if all is zero except fd -1 */

/* Zeroed memory, 64-byte aligned; NULL (logged) if there is none. */
void *cpu_sleep_alloc(struct cpu_region *r, size_t bytes);

/* Ask the system for huge pages where memory, before its first use, has room for them. */
void cpu_sleep_advise(void *memory, size_t bytes);

int cpu_sleep_out(struct cpu_sleep *s) ERR_CHECKED; /* sleep() */
int cpu_sleep_in(struct cpu_sleep *s) ERR_CHECKED;  /* wake() */

#endif
