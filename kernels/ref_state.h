/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts that the references of mixers with states share: copies between a sequence's pages and
 * memory, and two functions of gates. For these references only. */
#ifndef QUIRE_KERNELS_REF_STATE_H
#define QUIRE_KERNELS_REF_STATE_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* Element i of a sequence's state of this layer, and the elements up to the end of its page. */
static inline float *state_at(const struct k_state *state, const struct k_tokens *t, int seq,
                              size_t i, size_t *n)
{
    size_t at = state->at + i;
    int32_t page = t->page_ids[(size_t)seq * (size_t)t->pages_max + at / state->page_elems];

    *n = state->page_elems - at % state->page_elems;
    return state->pages + (size_t)page * state->page_elems + at % state->page_elems;
}

/* to [n] = elements i and on. */
static inline void state_load(const struct k_state *state, const struct k_tokens *t, int seq,
                              float *to, size_t i, size_t n)
{
    while (n > 0) {
        size_t run;
        const float *from = state_at(state, t, seq, i, &run);

        if (run > n)
            run = n;
        memcpy(to, from, run * sizeof *to);
        to += run, i += run, n -= run;
    }
}

/* Elements i and on = from [n]. */
static inline void state_store(const struct k_state *state, const struct k_tokens *t, int seq,
                               const float *from, size_t i, size_t n)
{
    while (n > 0) {
        size_t run;
        float *to = state_at(state, t, seq, i, &run);

        if (run > n)
            run = n;
        memcpy(to, from, run * sizeof *to);
        from += run, i += run, n -= run;
    }
}

static inline float state_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* As transformers': linear where the exponential would not change it. */
static inline float state_softplus(float x)
{
    if (x > 20.0f)
        return x;
    return log1pf(expf(x));
}

#endif
