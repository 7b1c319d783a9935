/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of sampling parameters, generated from kernels/sampling.def: a further parameter is one
 * line there. Members are reached by offset, with memcpy(), because a request's bytes may hold any
 * pattern. */
#include "ipc/sampling.h"

#include <string.h>

/* All parameters. A count's range begins at 0, which means off. */
static const struct sampling_param sampling_params[] = {
#define SAMPLING_REAL(member, bounds, preset) \
    {.name = #member, .offset = offsetof(struct sampling, member), .range = bounds},
#define SAMPLING_COUNT(member, most)              \
    {.name = #member,                             \
     .offset = offsetof(struct sampling, member), \
     .is_count = true,                            \
     .range = RANGE_FROM(0, most)},
#include "kernels/sampling.def"
};

#define SAMPLING_PARAMS (sizeof sampling_params / sizeof sampling_params[0])

/* The parameter of this name, or NULL. */
const struct sampling_param *sampling_find(const char *name)
{
    for (size_t i = 0; i < SAMPLING_PARAMS; i++) {
        if (strcmp(sampling_params[i].name, name) == 0)
            return &sampling_params[i];
    }
    return NULL;
}

/* Set a parameter's member; value must be in its range. */
void sampling_set(struct sampling *s, const struct sampling_param *p, double value)
{
    char *member = (char *)s + p->offset;

    if (p->is_count)
        memcpy(member, &(int32_t){(int32_t)value}, sizeof(int32_t));
    else
        memcpy(member, &(float){(float)value}, sizeof(float));
}

/* The value of a parameter's member. */
double sampling_get(const struct sampling *s, const struct sampling_param *p)
{
    const char *member = (const char *)s + p->offset;
    int32_t count;
    float real;

    memcpy(&count, member, sizeof count);
    memcpy(&real, member, sizeof real);
    if (p->is_count)
        return (double)count;
    return (double)real;
}

/* Are all values in their ranges? The engine checks each request with it. */
bool sampling_is_valid(const struct sampling *s)
{
    for (size_t i = 0; i < SAMPLING_PARAMS; i++) {
        if (!range_has(&sampling_params[i].range, sampling_get(s, &sampling_params[i])))
            return false;
    }
    return true;
}
