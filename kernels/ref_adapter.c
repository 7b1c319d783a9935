/* SPDX-License-Identifier: Apache-2.0
 *
 * References of adapter.h; the cpu device calls ref_adapt_row() itself. And the host's part of the
 * products on a GPU: the order of rows. */
#include "kernels/adapter.h"

#include <string.h>

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

/* Rows of a slot keep their order; those without adapter come first. */
void k_adapt_sort(const struct k_adapt_rows *to, const int32_t *slots_of, int n, int n_slots,
                  int32_t *work)
{
    int n_segments = 0;

    memcpy(to->of, slots_of, (size_t)n * sizeof *to->of);
    memset(work, 0, (size_t)(n_slots + 2) * sizeof *work);
    for (int i = 0; i < n; i++)
        work[slots_of[i] + 2]++; /* of the slots before */
    for (int slot = 0; slot <= n_slots; slot++)
        work[slot + 1] += work[slot];
    for (int i = 0; i < n; i++)
        to->order[work[slots_of[i] + 1]++] = i;
    to->count[1] = 0;
    for (int at = 0, first = 0; at < n; at++) {
        int slot = slots_of[to->order[at]];

        if (at > 0 && slot == slots_of[to->order[at - 1]] && at - first < K_ADAPT_ROWS)
            continue;
        first = at;
        to->starts[n_segments] = at;
        to->slots[n_segments++] = slot;
        to->count[1] += slot < 0;
    }
    to->starts[n_segments] = n;
    to->count[0] = n_segments;
}

size_t k_adapt_t_len(int n, int n_in, int rank_max)
{
    const size_t run = 512; /* elements of a sum, at least */
    size_t few = (size_t)(n < K_PRODUCT_ROWS_MAX ? n : K_PRODUCT_ROWS_MAX);
    size_t joined = few * ((((size_t)n_in + run - 1) / run + 3) / 4 * 4);
    size_t apart = K_ADAPT_SPLITS * (size_t)n;

    return (joined > apart ? joined : apart) * K_ADAPTED_MAX * K_ADAPT_STRIDE((size_t)rank_max);
}

static bool adapt_is_whole(int n)
{
    return n % 8 == 0;
}

bool k_adapt_fuses(const struct k_adapters *of, int n_out)
{
    bool whole = adapt_is_whole(n_out / 2);

    for (int p = 0; p < of->n_parts; p++)
        whole = whole && adapt_is_whole(of->parts[p].first) && adapt_is_whole(of->parts[p].n_out);
    return whole;
}
