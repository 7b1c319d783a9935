/* SPDX-License-Identifier: Apache-2.0
 *
 * The counters of fault points. They are atomic, because several threads pass the points of one
 * table: the engine's loop, the store's I/O threads, the readers of a front. */
#include "base/fault.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"

/* The state of one fault point. */
struct fault_point {
    const char *name;
    atomic_int passes_left; /* 0: not armed; n: the n-th pass from here fails */
    atomic_int fired;
    bool forever;
};

bool fault_armed;

/* All points, in the order of enum fault. */
static struct fault_point fault_points[FAULT_COUNT] = {
#define FAULT(id, what) {.name = #id},
#include "base/fault.def"
#undef FAULT
};

/* Arming. QUIRE_FAULT is a list such as "store_write:3,lane_create:1+": from the third pass on one
 * write of the store fails, and no lane can be made at all. Tests link this file and call
 * fault_arm() instead. */
void fault_arm(enum fault f, int n, bool forever)
{
    must(f < FAULT_COUNT);
    must(n >= 0);
    fault_points[f].forever = forever;
    atomic_store(&fault_points[f].fired, 0);
    atomic_store(&fault_points[f].passes_left, n);
    fault_armed = true;
}

/* Arm one point from "name:n" or "name:n+". An unknown one is logged and ignored. */
static void fault_arm_text(const char *text)
{
    char name[64];
    int n = 0;
    char plus = '\0';

    if (sscanf(text, "%63[a-z_]:%d%c", name, &n, &plus) >= 2 && n > 0) {
        for (int i = 0; i < FAULT_COUNT; i++) {
            if (strcmp(fault_points[i].name, name) == 0) {
                fault_arm((enum fault)i, n, plus == '+');
                log_warn("fault: %s is armed", text);
                return;
            }
        }
    }
    log_warn("fault: QUIRE_FAULT: \"%s\" is ignored: it is not name:n or name:n+ of a fault point",
             text);
}

/* Read QUIRE_FAULT. Nothing happens without it. */
void fault_init(void)
{
    const char *env = getenv("QUIRE_FAULT");
    char copy[256];
    char *save = NULL;

    if (env == NULL)
        return;
    (void)snprintf(copy, sizeof copy, "%s", env);
    for (char *p = strtok_r(copy, ",", &save); p != NULL; p = strtok_r(NULL, ",", &save))
        fault_arm_text(p);
}

/* Must this pass of the point fail? */
bool fault_hit(enum fault f)
{
    struct fault_point *point = &fault_points[f];
    int left = atomic_load(&point->passes_left);

    /* Several threads may pass the point at once; exactly one of them takes the last pass. */
    while (left > 1) {
        if (atomic_compare_exchange_weak(&point->passes_left, &left, left - 1))
            return false;
    }
    if (left != 1)
        return false;
    if (!point->forever)
        atomic_store(&point->passes_left, 0);
    atomic_fetch_add(&point->fired, 1);
    return true;
}

/* How often has the point failed? */
int fault_fired(enum fault f)
{
    return atomic_load(&fault_points[f].fired);
}
