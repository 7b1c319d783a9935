/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities on every GPU from compute capability 8.0 on. ref_logprobs() in kernels.h has
 * the definitions.
 *
 * One block per row: a pass for the largest logit, one for the sum and the number of logits above
 * the target's. For the n most probable ids some eleven more find the key that n logits reach; the
 * logits above it are collected in one, and those that equal it are taken from the lowest id on,
 * a pass for each. Sums are in a fixed order: a thread's ids, then warps by halves. */
#include "kernels/choice.h"
#include "kernels/logits.cuh"
#include "kernels/portable_search.cuh"

#define THREADS SEARCH_THREADS
#define LOG2_E  1.44269504f

struct rank_shared {
    struct search_shared search;
    float sums[33];
    uint64_t best[K_LOGPROBS_MAX];
    int n_best;
};

struct rank_row {
    const float *logits;
    int n_vocab;
    struct rank_shared *s;
};

/* Call f(id, logit) for this thread's ids. */
template <class F> static __device__ inline void rank_each(const rank_row &r, F f)
{
#pragma unroll 4
    for (int id = threadIdx.x; id < r.n_vocab; id += THREADS)
        f(id, logits_tame(r.logits[id]));
}

/* Key and ~id of the largest logit that is below `last`. */
static __device__ inline uint64_t rank_next(const rank_row &r, uint64_t last)
{
    uint64_t best = 0;

    rank_each(r, [&](int id, float logit) {
        uint64_t own = sample_best_of(logit, id);

        best = own < last ? max(best, own) : best;
    });
    return search_max(best, &r.s->search);
}

/* The n best of the row in s->best, in any order. */
static __device__ inline void rank_collect(const rank_row &r, uint64_t best, int n)
{
    struct rank_shared *s = r.s;
    uint32_t least = search_key(
        (uint64_t)n, 0, (uint32_t)(best >> 32) + 1,
        [&](auto add) { rank_each(r, [&](int, float logit) { add(k_sort_key(logit), 1); }); },
        &s->search);
    uint64_t last = (uint64_t)(least + 1) << 32;

    if (threadIdx.x == 0)
        s->n_best = 0;
    __syncthreads();
    rank_each(r, [&](int id, float logit) {
        if (k_sort_key(logit) > least)
            s->best[atomicAdd(&s->n_best, 1)] = sample_best_of(logit, id);
    });
    __syncthreads();
    for (int i = s->n_best; i < n; i++) { /* the same for all threads, which only read it */
        last = rank_next(r, last);
        if (threadIdx.x == 0)
            s->best[i] = last;
    }
    __syncthreads();
}

static __device__ inline void rank_write(struct k_logprob_row *out, const struct rank_shared *s,
                                         int n)
{
    int i = threadIdx.x, n_better = 0;
    uint64_t own;

    if (i >= n)
        return;
    own = s->best[i];
    for (int k = 0; k < n; k++)
        n_better += s->best[k] > own;
    out->ids[n_better] = sample_best_id(own);
    out->top[n_better] = sample_key_value((uint32_t)(own >> 32));
}

/* The sum of e^(logit - top), and how many logits are above the target; returned to all. */
static __device__ inline float rank_sum(const rank_row &r, float top, float target,
                                        uint64_t *n_larger)
{
    float sum = 0.0f;
    uint64_t larger = 0;

    rank_each(r, [&](int, float logit) {
        sum += exp2_fast((logit - top) * LOG2_E);
        larger += logit > target;
    });
    *n_larger = search_sum(larger, &r.s->search);
    return block_sum(sum, r.s->sums);
}

static __global__ void __launch_bounds__(THREADS)
    logprobs_row_kernel(struct k_logprob_row *out, const float *logits, int n_vocab,
                        const struct k_logits_row *rows)
{
    __shared__ struct rank_shared s;
    const struct k_logits_row row = rows[blockIdx.x];
    bool has_target = row.target != K_SAMPLED;
    int n = min(row.n_top, n_vocab);
    rank_row r = {logits + (size_t)row.row * n_vocab, n_vocab, &s};
    float target, top, sum, log_sum;
    uint64_t best, n_larger;

    if (n < 0)
        return;
    out += blockIdx.x;
    target = has_target ? logits_tame(r.logits[row.target]) : INFINITY;
    best = rank_next(r, ~0ULL);
    top = sample_key_value((uint32_t)(best >> 32));
    top = fmaxf(top, -FLT_MAX); /* of a row of -infinity: its sum is 0 */
    sum = rank_sum(r, top, target, &n_larger);
    log_sum = sum > 0.0f ? top + logf(sum) : 0.0f;
    if (threadIdx.x == 0) {
        out->log_sum = log_sum;
        out->n_top = n;
        out->rank = has_target ? 1 + (int)n_larger : 0;
        if (has_target)
            out->chosen = target - log_sum;
    }
    if (n == 0)
        return;
    rank_collect(r, best, n);
    rank_write(out, &s, n);
}

int k_logprobs_portable(struct k_logprob_row *out, const float *logits, int n_vocab,
                        const struct k_logits_row *rows, int n, k_stream stream)
{
    return K_LAUNCH(logprobs_row_kernel, n, THREADS, 0, stream, out, logits, n_vocab, rows);
}
