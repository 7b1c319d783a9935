/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the portable kernels of logits (portable_sample.cu, portable_logits.cu): sums over a
 * block, and thresholds of sort keys. A block has a row, and each pass reads all of it. */
#ifndef QUIRE_KERNELS_PORTABLE_SEARCH_CUH
#define QUIRE_KERNELS_PORTABLE_SEARCH_CUH

#include "kernels/sample.cuh"

#define SEARCH_THREADS 1024
#define SEARCH_WARPS   (SEARCH_THREADS / 32)
#define SEARCH_CUTS    7 /* a pass of a search gives three bits of a key */

struct search_shared {
    uint64_t sums[SEARCH_CUTS][SEARCH_WARPS];
    uint64_t reduced[SEARCH_WARPS];
};

/* Sum over the block, returned to all threads. */
static __device__ inline uint64_t search_sum(uint64_t x, struct search_shared *s)
{
    x = sample_warp_sum(x);
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % 32 == 0)
        s->reduced[threadIdx.x / 32] = x;
    __syncthreads();
    return sample_warp_sum(s->reduced[threadIdx.x % SEARCH_WARPS]);
}

static __device__ inline uint64_t search_max(uint64_t x, struct search_shared *s)
{
    __syncthreads();
    return sample_block_max<SEARCH_WARPS>(x, s->reduced);
}

/* The largest key for which the weights of all keys as large reach need; it is in low .. high - 1,
 * no key is at or above high, and low is returned if need is not reached. each(f) calls f(key,
 * weight) for ids of this thread; a search by count has weights of 1. */
template <class EACH>
static __device__ inline uint32_t search_key(uint64_t need, uint32_t low, uint32_t high, EACH each,
                                             struct search_shared *s)
{
    while (high - low > 1) { /* an eighth is left after each pass, or less than half of a few */
        uint64_t own[SEARCH_CUTS] = {}, above = 0;
        uint32_t cuts[SEARCH_CUTS], from = low;

#pragma unroll
        for (int i = 0; i < SEARCH_CUTS; i++)
            cuts[i] = low + (uint32_t)((uint64_t)(high - low) * (i + 1) / (SEARCH_CUTS + 1));
        each([&](uint32_t key, uint64_t weight) {
            if (key < low || key >= high)
                return;
#pragma unroll
            for (int i = 0; i < SEARCH_CUTS; i++)
                own[i] += key >= cuts[i] ? weight : 0;
        });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SEARCH_CUTS; i++) {
            own[i] = sample_warp_sum(own[i]);
            if (threadIdx.x % 32 == 0)
                s->sums[i][threadIdx.x / 32] = own[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = SEARCH_CUTS - 1; i >= 0; i--) {
            uint64_t sum = sample_warp_sum(s->sums[i][threadIdx.x % SEARCH_WARPS]);

            if (from != low || cuts[i] == low)
                continue;
            if (sum >= need) {
                from = cuts[i];
            } else {
                high = cuts[i];
                above = sum;
            }
        }
        low = from;
        need -= above;
    }
    return low;
}

#endif
