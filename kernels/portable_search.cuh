/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the portable kernels of logits (portable_sample.cu, portable_logits.cu): reading a row,
 * sums over a block, and thresholds of sort keys. A block has a row. */
#ifndef QUIRE_KERNELS_PORTABLE_SEARCH_CUH
#define QUIRE_KERNELS_PORTABLE_SEARCH_CUH

#include "kernels/sample.cuh"

#define SEARCH_THREADS 1024
#define SEARCH_WARPS   (SEARCH_THREADS / 32)
#define SEARCH_RUN     (4 * SEARCH_THREADS) /* ids of a block at a time, four per thread */
#define SEARCH_CUTS    7                    /* a pass of a search gives three bits of a key */
#define SEARCH_ROOM    2048                 /* candidates */

struct search_shared {
    uint64_t sums[SEARCH_CUTS][SEARCH_WARPS];
    uint64_t reduced[SEARCH_WARPS];
};

/* Four logits of a row from `id` on; NaN after its end. */
static __device__ inline float4 search_load(const float *row, int id, int n_vocab)
{
    float4 x;

    if (id + 3 < n_vocab && (uintptr_t)(row + id) % 16 == 0)
        return *(const float4 *)(row + id);
    x.x = id < n_vocab ? row[id] : NAN;
    x.y = id + 1 < n_vocab ? row[id + 1] : NAN;
    x.z = id + 2 < n_vocab ? row[id + 2] : NAN;
    x.w = id + 3 < n_vocab ? row[id + 3] : NAN;
    return x;
}

/* Sum over the block, returned to all threads. */
static __device__ inline uint64_t search_sum(uint64_t x, struct search_shared *s)
{
    x = sample_warp_sum(x);
    __syncthreads(); /* the earlier content has been read */
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

/* Sum over the threads before this one, and of this one. */
static __device__ inline uint64_t search_sum_upto(uint64_t x, struct search_shared *s)
{
    int lane = threadIdx.x % 32;

    for (int i = 1; i < 32; i *= 2) {
        uint64_t lower = __shfl_up_sync(~0U, x, i);

        x += lane >= i ? lower : 0;
    }
    __syncthreads();
    if (lane == 31)
        s->reduced[threadIdx.x / 32] = x;
    __syncthreads();
    for (int warp = 0; warp < (int)threadIdx.x / 32; warp++)
        x += s->reduced[warp];
    return x;
}

/* The largest key for which the weights of all keys as large reach need; it is in low .. high - 1,
 * no key is at or above high, and low is returned if need is not reached. each(f) calls f(key,
 * weight) for keys of this thread; a search by count has weights of 1. */
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

/* A key that the n largest keys of the row reach: the n-th largest of the threads' largest. high:
 * above all keys. 0 if n is more than the threads. */
static __device__ inline uint32_t search_bound(uint32_t largest, int n, uint32_t high,
                                               struct search_shared *s)
{
    if (n > SEARCH_THREADS)
        return 0;
    return search_key((uint64_t)n, 0, high, [&](auto add) { add(largest, 1); }, s);
}

#endif
