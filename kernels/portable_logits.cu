/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities on every GPU from compute capability 8.0 on. ref_logprobs() in kernels.h has
 * the definitions.
 *
 * One block per row: a pass for the largest logit, also of each thread, and one for the sum and the
 * number of logits above the target's. For the n most probable ids another pass collects the logits
 * that reach the n-th largest of the threads' largest. If there are more of these than room, some
 * eleven passes find the key that n logits reach, one collects those above it, and those that equal
 * it are taken from the lowest id on, a pass for each. Sums are in a fixed order: a thread's ids,
 * then warps by halves. */
#include "kernels/choice.h"
#include "kernels/logits.cuh"
#include "kernels/portable_search.cuh"

#define THREADS SEARCH_THREADS
#define LOG2_E  1.44269504f
#define BATCH   4 /* 16-byte loads of a thread in flight */

struct rank_shared {
    struct search_shared search;
    float sums[33];
    uint64_t best[SEARCH_ROOM]; /* candidates, the n best among them */
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
#pragma unroll 1
    for (int base = threadIdx.x * 4; base < r.n_vocab; base += BATCH * SEARCH_RUN) {
        float4 x[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++)
            x[i] = search_load(r.logits, base + i * SEARCH_RUN, r.n_vocab);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const float four[4] = {x[i].x, x[i].y, x[i].z, x[i].w};

#pragma unroll
            for (int k = 0; k < 4; k++) {
                int id = base + i * SEARCH_RUN + k;

                if (id < r.n_vocab)
                    f(id, logits_tame(four[k]));
            }
        }
    }
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

/* Collect the logits whose keys reach `least`; returns how many there are. */
static __device__ inline int rank_collect(const rank_row &r, uint64_t least)
{
    struct rank_shared *s = r.s;

    __syncthreads();
    if (threadIdx.x == 0)
        s->n_best = 0;
    __syncthreads();
    rank_each(r, [&](int id, float logit) {
        if (k_sort_key(logit) >= least) {
            int at = atomicAdd(&s->n_best, 1);

            if (at < SEARCH_ROOM)
                s->best[at] = sample_best_of(logit, id);
        }
    });
    __syncthreads();
    return s->n_best;
}

/* The n best of the row among s->best, in any order; returns how many there are in it. largest: the
 * key of this thread's largest logit, high: above all keys. */
static __device__ inline int rank_find(const rank_row &r, uint32_t largest, uint32_t high, int n)
{
    struct search_shared *search = &r.s->search;
    int n_found = rank_collect(r, search_bound(largest, n, high, search));
    uint32_t least;
    uint64_t last;

    if (n_found <= SEARCH_ROOM)
        return n_found;
    least = search_key(
        (uint64_t)n, 0, high,
        [&](auto add) { rank_each(r, [&](int, float logit) { add(k_sort_key(logit), 1); }); },
        search);
    n_found = rank_collect(r, (uint64_t)least + 1);
    last = ((uint64_t)least + 1) << 32;
    for (; n_found < n; n_found++) {
        last = rank_next(r, last);
        if (threadIdx.x == 0)
            r.s->best[n_found] = last;
    }
    __syncthreads();
    return n;
}

/* Each of the n best of n_found candidates goes to its place. */
static __device__ inline void rank_write(struct k_logprob_row *out, const struct rank_shared *s,
                                         int n_found, int n)
{
    for (int i = threadIdx.x; i < n_found; i += THREADS) {
        uint64_t own = s->best[i];
        int n_better = 0;

        for (int k = 0; k < n_found; k++)
            n_better += s->best[k] > own;
        if (n_better < n) {
            out->ids[n_better] = sample_best_id(own);
            out->top[n_better] = sample_key_value((uint32_t)(own >> 32));
        }
    }
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
    uint64_t own = 0, best, n_larger;
    int n_found;

    if (n < 0)
        return;
    out += blockIdx.x;
    target = has_target ? logits_tame(r.logits[row.target]) : INFINITY;
    rank_each(r, [&](int id, float logit) { own = max(own, sample_best_of(logit, id)); });
    best = search_max(own, &s.search);
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
    n_found = rank_find(r, (uint32_t)(own >> 32), (uint32_t)(best >> 32) + 1, n);
    rank_write(out, &s, n_found, n);
}

int k_logprobs_portable(struct k_logprob_row *out, const float *logits, int n_vocab,
                        const struct k_logits_row *rows, int n, k_stream stream)
{
    return K_LAUNCH(logprobs_row_kernel, n, THREADS, 0, stream, out, logits, n_vocab, rows);
}
