/* Fault points: named places where a test makes an error happen.
 *
 *   if (FAULT_HIT(store_write)) { rc = ERR_IO; goto out; }
 *
 * Costs one predictable branch when no fault is armed. Armed by the environment variable
 * QUIRE_FAULT=name:n or name:n+ (fault.def), several separated by commas. */
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

/* Read QUIRE_FAULT; call first in main(). Unknown names are logged and ignored. */
void fault_init(void);

/* Arm one point from a test: it fails at pass n (1 = next); every later one too if forever. */
void fault_arm(enum fault f, int n, bool forever);

/* Count a pass; true when this pass is to fail. */
bool fault_hit(enum fault f);

/* How often a point has failed since it was armed. */
int fault_fired(enum fault f);

#define FAULT_HIT(name) (__builtin_expect(fault_armed, 0) && fault_hit(FAULT_##name))

#endif
