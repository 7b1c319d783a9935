/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of sampling: one struct from a request's fields to the kernel. sampling.def has
 * the list of its members. */
#ifndef QUIRE_KERNELS_SAMPLING_H
#define QUIRE_KERNELS_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

struct sampling {
#define SAMPLING_REAL(name, bounds, preset) float name;
#define SAMPLING_COUNT(name, most)          int32_t name;
#include "kernels/sampling.def"
    uint64_t seed; /* seed of the random stream, which is a function of (seed, position) alone */
};

/* The defaults of a request: sample from the softmax of the logits. */
static inline struct sampling sampling_presets(void)
{
    struct sampling sampling;

#define SAMPLING_REAL(name, bounds, preset) sampling.name = (preset);
#define SAMPLING_COUNT(name, most)          sampling.name = 0;
#include "kernels/sampling.def"
    sampling.seed = 0;
    return sampling;
}

/* Take the token with the largest logit. */
static inline struct sampling sampling_greedy(void)
{
    struct sampling sampling = sampling_presets();

    sampling.temperature = 0.0f;
    return sampling;
}

/* Does sampling depend on the tokens before? */
static inline bool sampling_has_penalty(const struct sampling *s)
{
    return s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f ||
           s->repetition_penalty != 1.0f;
}

#endif
