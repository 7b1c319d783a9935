/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: one table of bounds holds for clients and for what a front submits. Method: each parameter
 * at the ends of its range, beyond them, and as a number that is none. */
#include <float.h>
#include <math.h>

#include "ipc/sampling.h"
#include "tests/tap.h"

static const char *const names[] = {
#define SAMPLING_REAL(name, bounds, preset) #name,
#define SAMPLING_COUNT(name, most)          #name,
#include "kernels/sampling.def"
};

static bool takes(const struct sampling_param *p, double value)
{
    struct sampling s = sampling_presets();

    sampling_set(&s, p, value);
    return sampling_is_valid(&s);
}

static void check(const char *name)
{
    const struct sampling_param *p = sampling_find(name);
    double low, high, beyond;

    ok(p != NULL, "%s is known", name);
    if (p == NULL)
        return;
    low = p->range.low;
    high = p->range.high;
    beyond = (double)nextafterf((float)low, -FLT_MAX);
    ok(takes(p, low) == !p->range.low_open, "%s: its least value", name);
    ok(takes(p, high), "%s: its greatest", name);
    if (p->is_count) {
        ok(!takes(p, -1.0) && !takes(p, INT32_MIN), "%s: none below", name);
        return;
    }
    ok(!takes(p, beyond) && !takes(p, (double)nextafterf((float)high, FLT_MAX)),
       "%s: none beside them", name);
    ok(takes(p, (double)nextafterf((float)low, FLT_MAX)), "%s: the next to the least", name);
    ok(!takes(p, (double)NAN) && !takes(p, (double)INFINITY) && !takes(p, -(double)INFINITY),
       "%s: numbers only", name);
}

int main(void)
{
    struct sampling s = sampling_presets(), g = sampling_greedy();

    ok(sampling_is_valid(&s) && sampling_is_valid(&g), "presets are in their ranges");
    ok(!sampling_has_penalty(&s) && s.temperature == 1.0f && g.temperature == 0.0f &&
           s.top_p == 1.0f && s.top_k == 0,
       "and ask for nothing");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        check(names[i]);
    ok(sampling_find("seed") == NULL && sampling_find("") == NULL, "others are not known");
    return tap_done();
}
