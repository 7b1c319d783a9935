/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two kernels of sampling: sample_top.cu for many rows that need only their largest
 * logits, sample.cu for all others. */
#ifndef QUIRE_KERNELS_SAMPLE_CUH
#define QUIRE_KERNELS_SAMPLE_CUH

#include "kernels/common.cuh"
#include "kernels/rng.h"

#define SAMPLE_LEFT (-1) /* as an id: the row is left to the other kernel */

/* Sample the rows that this kernel supports; the ids of the others become SAMPLE_LEFT. 0 when it
 * was launched, 1 when it supports none of them: n_vocab must be a multiple of 4. */
int sample_top(int32_t *ids, const float *logits, int n_rows, int n_vocab,
               const struct k_sample_row *rows, const int32_t *history, k_stream stream);

/* The value of a sort key. */
static __device__ inline float sample_key_value(uint32_t key)
{
    return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

/* A key that sorts by value, and by the lowest id among equals; 0 is less than any. */
static __device__ inline uint64_t sample_best_of(float value, int32_t id)
{
    return (uint64_t)k_sort_key(value) << 32 | (0xffffffffU - (uint32_t)id);
}

static __device__ inline int32_t sample_best_id(uint64_t best)
{
    return (int32_t)(0xffffffffU - (uint32_t)best);
}

static __device__ inline uint64_t sample_warp_sum(uint64_t x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    return x;
}

static __device__ inline uint64_t sample_warp_max(uint64_t x)
{
    uint32_t high = __reduce_max_sync(~0U, (uint32_t)(x >> 32));
    uint32_t low = __reduce_max_sync(~0U, (uint32_t)(x >> 32) == high ? (uint32_t)x : 0);

    return (uint64_t)high << 32 | low;
}

/* Maximum over N_WARPS warps, returned to all threads; consecutive calls need different
 * `reduced`. */
template <int N_WARPS> static __device__ uint64_t sample_block_max(uint64_t x, uint64_t *reduced)
{
    x = sample_warp_max(x);
    if (threadIdx.x % 32 == 0)
        reduced[threadIdx.x / 32] = x;
    __syncthreads();
    return sample_warp_max(reduced[threadIdx.x % N_WARPS]);
}

/* A value below which no quotient with temperature equals that of bound: two values whose quotients
 * are equal differ by less than two units in the last place. */
static __device__ inline float sample_below_equals(float bound, float temperature)
{
    return bound - fabsf(bound) * 0x1p-21f - temperature * 0x1p-126f;
}

#endif
