/* The bounds of the sampling parameters (kernels/sampling.def): fronts tell clients of them, and
 * the engine refuses a front's request that is outside. */
#ifndef QUIRE_IPC_SAMPLING_H
#define QUIRE_IPC_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>

#include "base/range.h"
#include "kernels/sampling.h"

struct sampling_param {
    const char *name;
    size_t offset; /* in struct sampling */
    bool is_count; /* an int32_t, 0: off; else a float */
    struct range range;
};

/* The parameter of a name; NULL when there is none. */
const struct sampling_param *sampling_find(const char *name);

/* Set it. The value is in its range. */
void sampling_set(struct sampling *s, const struct sampling_param *p, double value);
double sampling_get(const struct sampling *s, const struct sampling_param *p);

/* Whether each is in its range, whatever bytes s has. */
bool sampling_is_valid(const struct sampling *s);

#endif
