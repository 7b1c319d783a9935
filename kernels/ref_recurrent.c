/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of the recurrent mixer: one channel after another, token by token. */
#include "config.h"

#include <math.h>

#include "kernels/kernels.h"

/* The address of element i of a sequence's state, which may span several pages. */
static float *state_elem(const struct k_state *state, const struct k_tokens *t, int seq, int i)
{
    size_t at = state->at + (size_t)i;
    int32_t page = t->page_ids[(size_t)seq * t->pages_max + at / state->page_elems];

    return (float *)state->pages + (size_t)page * state->page_elems + at % state->page_elems;
}

/* A sequence whose step begins at position 0 starts with a state of zeros, whatever the page
 * holds. */
void ref_recurrent(float *out, const float *in, const struct k_state *state,
                   const struct k_tokens *t, int width, int seq, int first, int last)
{
    int begin = t->seq_start[seq], end = t->seq_start[seq + 1];

    if (t->kv_len[seq] == 0)
        return;
    for (int channel = first; channel < last; channel++) {
        float *kept = state_elem(state, t, seq, channel);
        float value = t->kv_len[seq] == end - begin ? 0.0f : *kept;

        for (int i = begin; i < end; i++) {
            const float *row = in + (size_t)i * 2 * width;
            float keep = 1.0f / (1.0f + expf(-row[width + channel]));

            value = keep * value + (1.0f - keep) * row[channel];
            out[(size_t)i * width + channel] = value;
        }
        *kept = value;
    }
}
