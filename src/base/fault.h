/* SPDX-License-Identifier: Apache-2.0
 *
 * Fault points: named places where a test can make an error happen.
 *
 *    if (FAULT_HIT(store_write)) { rc = ERR_IO; goto out; }
 *
 * The cost is one predictable branch while no fault is armed. The environment variable
 * QUIRE_FAULT=name:n or name:n+ (fault.def) arms one or, separated by commas, several. */
#ifndef QUIRE_BASE_FAULT_H
#define QUIRE_BASE_FAULT_H

#include <stdbool.h>

enum fault {
#define FAULT(name, what) FAULT_##name,
#include "base/fault.def"
#undef FAULT
    FAULT_COUNT
};

extern bool fault_armed; /* written once, by fault_init() */

/* Read QUIRE_FAULT; the first call in main(). Unknown names are logged and ignored. */
void fault_init(void);

/* Arm one point from a test: pass n fails (1: the next one), and with forever all later ones
 * too. */
void fault_arm(enum fault f, int n, bool forever);

/* Count one pass; true when it must fail. */
bool fault_hit(enum fault f);

/* The number of failures of a point since it was armed. */
int fault_fired(enum fault f);

#define FAULT_HIT(name) (__builtin_expect(fault_armed, 0) && fault_hit(FAULT_##name))

#endif
