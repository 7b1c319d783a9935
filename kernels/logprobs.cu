/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities, on Hopper. ref_logprobs() in kernels.h has the definitions.
 *
 * Split: a cluster of RANKS blocks per row, a run of ids per block, every
 * THREADS-th four of the run per thread; always the same, because sums of floats depend on their
 * order. A row is read once for the sum, the largest logit of each thread and the number of logits
 * larger than the target. Among the largest logits of four threads each (of each thread, when n_top
 * is above QUADS) the n_top-th largest is a bound that at least n_top of the block's logits reach;
 * the few threads whose largest logit reaches it look at theirs again, which are in the caches. A
 * block sends its best n_top to the shared memory of the first block, which selects among all. If
 * more logits reach the bound than there is room for (many are equal), the best are found one by
 * one, with one pass over the run for each.
 *
 * Shared memory of a block: struct shared_state, 12 KB. Bytes: the logits once.
 *
 * H200, us for 1, 64 and 256 rows of 128256 (bench_logits; a launch alone is 5.8, one read of the
 * logits 6, 12, 35): log probability of the sampled id 8 17 40, with 5 others 10 22 54, with 20 12
 * 26 66. */
#include <cooperative_groups.h>

#include "kernels/choice.h"
#include "kernels/logits.cuh"

namespace cg = cooperative_groups;

#define RANKS   8
#define THREADS 256
#define WARPS   (THREADS / 32)
#define LOADS   8             /* 16-byte loads of a thread in flight */
#define STRIDE  (THREADS * 4) /* ids between two loads of a thread */
#define QUADS   (THREADS / 4)
#define ROOM    THREADS /* candidates per block */
#define LOG2_E  1.44269504f

static_assert(K_LOGPROBS_MAX <= THREADS, "the bound; a candidate a thread");
static_assert(LOADS * 4 == 32, "a bit for each of a thread's logits");

/* Partial result over some of a row's logits. */
struct part {
    float top;        /* sum of e^(logit - top) */
    float sum;        /* logits larger than the target */
    int32_t n_larger; /* than the target */
};

struct shared_state {
    uint64_t best[RANKS * K_LOGPROBS_MAX]; /* sent to the first block, n per block; 0: none */
    struct part ranks[RANKS];              /* sent to the first block */
    struct part warps[WARPS];
    uint64_t candidates[ROOM];
    uint64_t reduced[2][WARPS];
    float maxima[THREADS]; /* largest logits of quads, or of threads (find_bound) */
    float bound;
    int n_candidates;
};

/* The part of a row that a block reads. */
struct run {
    const float *logits; /* of the whole row */
    int first, end;      /* ids */
    bool is_aligned;     /* to 16 bytes */
};

/* A thread's logits of ids first, first + STRIDE, ...; NaN after the end. */
static __device__ inline void logits_load(float4 x[LOADS], const struct run &run, int first)
{
    if (run.is_aligned) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int id = first + i * STRIDE;

            x[i] = make_float4(NAN, NAN, NAN, NAN);
            if (id < run.end)
                x[i] = *(const float4 *)(run.logits + id);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int id = first + i * STRIDE;

        x[i].x = id < run.end ? run.logits[id] : NAN;
        x[i].y = id + 1 < run.end ? run.logits[id + 1] : NAN;
        x[i].z = id + 2 < run.end ? run.logits[id + 2] : NAN;
        x[i].w = id + 3 < run.end ? run.logits[id + 3] : NAN;
    }
}

/* e^(x - top), at most 1. */
static __device__ inline float logits_weight(float x, float top)
{
    return exp2_fast((x - top) * LOG2_E);
}

/* Read the run once; returns the thread's partial result. The maximum is updated once per LOADS
 * loads, so that the sum is rescaled seldom. */
static __device__ struct part logits_stream(const struct run &run, float target)
{
    struct part p = {-FLT_MAX, 0.0f, 0};

#pragma unroll 1
    for (int id = run.first + (int)threadIdx.x * 4; id < run.end; id += LOADS * STRIDE) {
        float4 fours[LOADS];
        float top = p.top;

        logits_load(fours, run, id);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            fours[i] = make_float4(logits_tame(fours[i].x), logits_tame(fours[i].y),
                                   logits_tame(fours[i].z), logits_tame(fours[i].w));
            top = fmaxf(top, fmaxf(fmaxf(fours[i].x, fours[i].y), fmaxf(fours[i].z, fours[i].w)));
        }
        p.sum *= logits_weight(p.top, top);
        p.top = top;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            p.sum += (logits_weight(fours[i].x, top) + logits_weight(fours[i].y, top)) +
                     (logits_weight(fours[i].z, top) + logits_weight(fours[i].w, top));
            p.n_larger += (fours[i].x > target) + (fours[i].y > target) + (fours[i].z > target) +
                          (fours[i].w > target);
        }
    }
    return p;
}

/* Combine the partial results of a warp's threads, and store the largest logit of each four
 * threads, or of each thread when n is large. */
static __device__ void logits_share_parts(struct shared_state *s, const struct part &own, int n)
{
    float top = own.top, sum;
    int n_larger = __reduce_add_sync(~0U, own.n_larger);

    top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
    if (n > QUADS)
        s->maxima[threadIdx.x] = own.top;
    else if (threadIdx.x % 4 == 0)
        s->maxima[threadIdx.x / 4] = top;
    for (int i = 4; i < 32; i *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0U, top, i));
    sum = own.sum * logits_weight(own.top, top);
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(~0U, sum, i);
    if (threadIdx.x % 32 == 0)
        s->warps[threadIdx.x / 32] = {top, sum, n_larger};
}

/* Combine n partial results, in order; each sum is rescaled to the common maximum. */
static __device__ struct part logits_merge(const struct part *parts, int n)
{
    struct part all = {-FLT_MAX, 0.0f, 0};

    for (int i = 0; i < n; i++) {
        all.top = fmaxf(all.top, parts[i].top);
        all.n_larger += parts[i].n_larger;
    }
    for (int i = 0; i < n; i++)
        all.sum += parts[i].sum * logits_weight(parts[i].top, all.top);
    return all;
}

/* --- the most probable ------------------------------------------------------------------------ */

/* logits_find_bound() over the largest logits of all threads, for an n above the number of
 * quads. */
static __device__ __noinline__ void logits_find_bound_of_many(struct shared_state *s, int n)
{
    float own = s->maxima[threadIdx.x];
    int n_larger = 0, n_equal = 0;

#pragma unroll 4
    for (int i = 0; i < THREADS; i++) {
        n_larger += s->maxima[i] > own;
        n_equal += s->maxima[i] == own;
    }
    if (n_larger < n && n <= n_larger + n_equal)
        s->bound = own > -FLT_MAX ? own : -INFINITY;
}

/* A bound that is at most the n-th largest logit of the run: the n-th largest of the quads'
 * maxima. */
static __device__ void logits_find_bound(struct shared_state *s, int n)
{
    float own = s->maxima[threadIdx.x / 4];
    int n_larger = 0, n_equal = 0;

#pragma unroll 4
    for (int i = threadIdx.x % 4; i < QUADS; i += 4) {
        n_larger += s->maxima[i] > own;
        n_equal += s->maxima[i] == own;
    }
    for (int i = 1; i < 4; i *= 2) {
        n_larger += __shfl_xor_sync(~0U, n_larger, i);
        n_equal += __shfl_xor_sync(~0U, n_equal, i);
    }
    /* All threads that come here have the same value. */
    if (n_larger < n && n <= n_larger + n_equal)
        s->bound = own > -FLT_MAX ? own : -INFINITY;
}

/* Collect the thread's logits that reach the bound. */
static __device__ void logits_collect(struct shared_state *s, const struct run &run, float bound)
{
#pragma unroll 1
    for (int first = run.first + (int)threadIdx.x * 4; first < run.end; first += LOADS * STRIDE) {
        float4 fours[LOADS];
        uint32_t hits = 0;

        logits_load(fours, run, first);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            hits |= (uint32_t)(logits_tame(fours[i].x) >= bound) << (i * 4);
            hits |= (uint32_t)(logits_tame(fours[i].y) >= bound) << (i * 4 + 1);
            hits |= (uint32_t)(logits_tame(fours[i].z) >= bound) << (i * 4 + 2);
            hits |= (uint32_t)(logits_tame(fours[i].w) >= bound) << (i * 4 + 3);
        }
        for (; hits != 0; hits &= hits - 1) {
            int i = __ffs((int)hits) - 1, id = first + i / 4 * STRIDE + i % 4, at;

            if (id < run.end && (at = atomicAdd(&s->n_candidates, 1)) < ROOM)
                s->candidates[at] = sample_best_of(logits_tame(run.logits[id]), id);
        }
    }
}

/* Send the best n candidates to the first block, each to the place of its rank. */
static __device__ void logits_push_best(uint64_t *front, const struct shared_state *s, int n)
{
    int n_candidates = s->n_candidates, idx = threadIdx.x, n_better = 0;
    uint64_t own = idx < n_candidates ? s->candidates[idx] : 0;

#pragma unroll 4
    for (int i = 0; i < n_candidates; i++)
        n_better += s->candidates[i] > own;
    if (idx < n_candidates && n_better < n)
        front[n_better] = own;
    else if (idx >= n_candidates && idx < n)
        front[idx] = 0;
}

/* Find and send the best n one by one, whatever the logits are. */
static __device__ __noinline__ void logits_push_one_by_one(uint64_t *front, struct shared_state *s,
                                                           struct run run, int n)
{
    uint64_t last = ~0ULL;

#pragma unroll 1
    for (int i = 0; i < n; i++) {
        uint64_t best = 0;

#pragma unroll 4
        for (int id = run.first + (int)threadIdx.x; id < run.end; id += THREADS) {
            uint64_t other = sample_best_of(logits_tame(run.logits[id]), id);

            best = other < last ? max(best, other) : best;
        }
        last = sample_block_max<WARPS>(best, s->reduced[i % 2]);
        if (threadIdx.x == 0)
            front[i] = last;
    }
}

/* The first block combines the results of all blocks. */
static __device__ void logits_finish(struct k_logprob_row *out, const struct shared_state *s,
                                     float target, bool has_target, int n)
{
    if (threadIdx.x == THREADS - 1) {
        struct part all = logits_merge(s->ranks, RANKS);
        float log_sum = all.sum > 0.0f ? all.top + logf(all.sum) : 0.0f;

        out->log_sum = log_sum;
        out->n_top = n;
        out->rank = has_target ? 1 + all.n_larger : 0;
        if (has_target)
            out->chosen = target - log_sum;
    }
#pragma unroll 1
    for (int idx = threadIdx.x; idx < RANKS * n; idx += THREADS) {
        uint64_t own = s->best[idx];
        int n_better = 0;

#pragma unroll 4
        for (int i = 0; i < RANKS * n; i++)
            n_better += s->best[i] > own;
        if (own != 0 && n_better < n) {
            out->ids[n_better] = sample_best_id(own);
            out->top[n_better] = sample_key_value((uint32_t)(own >> 32));
        }
    }
}

static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 4)
    logprobs_kernel(struct k_logprob_row *out, const float *logits, int n_vocab, int run_len,
                    const struct k_logits_row *rows)
{
    __shared__ struct shared_state s;
    cg::cluster_group cluster = cg::this_cluster();
    struct shared_state *front = cluster.map_shared_rank(&s, 0);
    struct k_logits_row row = rows[blockIdx.y];
    int rank = (int)cluster.block_rank(), n = min(row.n_top, n_vocab);
    bool has_target = row.target != K_SAMPLED;
    struct run run;
    struct part own;
    float target;

    if (n < 0)
        return;
    if (threadIdx.x == 0)
        s.n_candidates = 0;
    __syncwarp();
    cluster.barrier_arrive(); /* nothing is sent before all blocks have begun */
    run.logits = logits + (size_t)row.row * n_vocab;
    run.first = rank * run_len;
    run.end = min(run.first + run_len, n_vocab);
    run.is_aligned = n_vocab % 4 == 0 && (uintptr_t)logits % 16 == 0;
    target = has_target ? logits_tame(run.logits[row.target]) : INFINITY;
    own = logits_stream(run, target);
    logits_share_parts(&s, own, n);
    __syncthreads();
    if (n > 0) {
        if (n > QUADS)
            logits_find_bound_of_many(&s, n);
        else
            logits_find_bound(&s, n);
        __syncthreads();
        if (own.top >= s.bound)
            logits_collect(&s, run, s.bound);
        __syncthreads();
    }
    cluster.barrier_wait();
    if (threadIdx.x == THREADS - 1)
        front->ranks[rank] = logits_merge(s.warps, WARPS);
    if (n > 0 && s.n_candidates <= ROOM)
        logits_push_best(&front->best[rank * n], &s, n);
    else if (n > 0)
        logits_push_one_by_one(&front->best[rank * n], &s, run, n);
    __syncwarp();
    cluster.sync();
    if (rank == 0)
        logits_finish(&out[blockIdx.y], &s, target, has_target, n);
}

/* Runs are multiples of four ids, so that all but the last can be read as float4. */
int k_logprobs_sm90(struct k_logprob_row *out, const float *logits, int n_vocab,
                    const struct k_logits_row *rows, int n, k_stream stream)
{
    int run_len = (n_vocab + 4 * RANKS - 1) / (4 * RANKS) * 4;
    dim3 grid(RANKS, n);

    return K_LAUNCH(logprobs_kernel, grid, THREADS, 0, stream, out, logits, n_vocab, run_len, rows);
}
