/* SPDX-License-Identifier: Apache-2.0
 *
 * The bounds of the sampling parameters (kernels/sampling.def). Fronts check requests against them
 * and name them in error messages; the engine checks again, because it does not trust a front. */
#ifndef QUIRE_IPC_SAMPLING_H
#define QUIRE_IPC_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/range.h"
#include "kernels/sampling.h"

struct sampling_param {
    const char *name;
    size_t offset; /* in struct sampling */
    bool is_count; /* an int32_t, 0: off; otherwise a float */
    struct range range;
};

/* The parameter with this name; NULL when there is none. */
const struct sampling_param *sampling_find(const char *name);

/* Set a parameter to a value that lies in its range. */
void sampling_set(struct sampling *s, const struct sampling_param *p, double value);
double sampling_get(const struct sampling *s, const struct sampling_param *p);

/* True when every parameter is in its range. s may hold arbitrary bytes. */
bool sampling_is_valid(const struct sampling *s);

#endif
