/* SPDX-License-Identifier: Apache-2.0
 *
 * References of adapter.h; the cpu device calls ref_adapt_row() itself. */
#include "kernels/adapter.h"

#define BLOCK 64 /* sums of a row that stay in registers or in the L1 cache */

void ref_adapt_row(float *y, const float *b, const float *t, int rank, float scale, int n_out,
                   int stride)
{
    for (int at = 0; at < n_out; at += BLOCK) {
        int n = n_out - at < BLOCK ? n_out - at : BLOCK;
        float sums[BLOCK] = {0.0f};

        for (int k = 0; k < rank; k++) {
            const float *row = b + (long)k * stride + at;

            for (int i = 0; i < n; i++)
                sums[i] += t[k] * row[i];
        }
        for (int i = 0; i < n; i++)
            y[at + i] += scale * sums[i];
    }
}

void ref_adapt(float *y, const float *x, const struct k_adapters *adapters, int slot, int n_in,
               float *t)
{
    for (int p = 0; p < adapters->n_parts; p++) {
        const struct k_adapted *part = &adapters->parts[p];
        const struct k_adapter *one = &part->slots[slot];
        const float *a = one->a;

        for (int k = 0; k < one->rank; k++) {
            t[k] = 0.0f;
            for (int i = 0; i < n_in; i++)
                t[k] += a[(long)k * n_in + i] * x[i];
        }
        ref_adapt_row(y + part->first, one->b, t, one->rank, one->scale, part->n_out, part->n_out);
    }
}
