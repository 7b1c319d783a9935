/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts that the references of mixers with states share: copies between a sequence's pages and
 * memory, and two functions of gates. For these references only. */
#ifndef QUIRE_KERNELS_REF_STATE_H
#define QUIRE_KERNELS_REF_STATE_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/state.h"

/* Where element i of a sequence's state of this layer is in the pages, and the elements up to the
 * end of its page. */
static inline size_t state_place(const struct k_state *state, const struct k_tokens *t, int seq,
                                 size_t i, size_t *n)
{
    size_t at = state->at + i;
    int32_t page = t->page_ids[(size_t)seq * (size_t)t->pages_max + at / state->page_elems];

    *n = state->page_elems - at % state->page_elems;
    return (size_t)page * state->page_elems + at % state->page_elems;
}

static inline float state_widen(k_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float wide;

    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Element i of the sequence's states, when pos tokens are computed. */
static inline k_bf16 state_round(float x, size_t i, int pos)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return k_state_round(bits, k_state_chance_of((uint32_t)i, (uint32_t)pos));
}

/* to [n] = elements i and on. */
static inline void state_load(const struct k_state *state, const struct k_tokens *t, int seq,
                              float *to, size_t i, size_t n)
{
    while (n > 0) {
        size_t run, at = state_place(state, t, seq, i, &run);

        if (run > n)
            run = n;
        if (!state->is_bf16)
            memcpy(to, (const float *)state->pages + at, run * sizeof *to);
        for (size_t e = 0; state->is_bf16 && e < run; e++)
            to[e] = state_widen(((const k_bf16 *)state->pages)[at + e]);
        to += run, i += run, n -= run;
    }
}

/* Elements i and on = from [n], as they are after the step. */
static inline void state_store(const struct k_state *state, const struct k_tokens *t, int seq,
                               const float *from, size_t i, size_t n)
{
    while (n > 0) {
        size_t run, at = state_place(state, t, seq, i, &run);

        if (run > n)
            run = n;
        if (!state->is_bf16)
            memcpy((float *)state->pages + at, from, run * sizeof *from);
        for (size_t e = 0; state->is_bf16 && e < run; e++)
            ((k_bf16 *)state->pages)[at + e] =
                state_round(from[e], state->at + i + e, t->kv_len[seq]);
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
