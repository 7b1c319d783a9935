/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling on every GPU from compute capability 8.0 on. ref_sample() in kernels.h has the
 * definitions.
 *
 * One block per row, which reads the row again in each pass, from L2: one pass for the largest
 * value, which ends a greedy row; about eleven for each threshold (top_k, top_p); one for each sum;
 * one for the draw. All sums are of integers, so their order does not matter.
 *
 * Rows with a history are read in slices of ids, whose counts fit into shared memory; each pass
 * counts the history again for each slice. */
#include <limits.h>

#include "kernels/choice.h"
#include "kernels/portable_search.cuh"

#define THREADS  SEARCH_THREADS
#define SLICE    (8 * THREADS) /* ids whose counts are in shared memory at a time */
#define RUNS_MAX (K_SAMPLE_VOCAB_MAX / THREADS)
#define BANNED   INT_MIN /* among counts */

struct pick_shared {
    struct search_shared search;
    int32_t counts[SLICE];
    uint64_t runs[RUNS_MAX]; /* weights of each THREADS ids */
};

/* A row, and what its filters have kept so far. */
struct pick_row {
    const float *logits;
    const struct k_sample_row *row;
    const int32_t *history;
    struct pick_shared *s;
    int n_vocab;
    bool is_adjusted;
    float temperature, top; /* top: the largest z */
    uint64_t min_weight;
    uint32_t least_key;
};

/* Count the history in ids first .. first + SLICE - 1, and mark banned ones. */
static __device__ inline void pick_count(const pick_row &p, int first)
{
    int32_t *counts = p.s->counts;

    __syncthreads();
    for (int i = threadIdx.x; i < SLICE; i += THREADS)
        counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < p.row->n_history; i += THREADS) {
        int at = p.history[p.row->history_at + i] - first;

        if (at < 0 || at >= SLICE)
            continue;
        if (i < p.row->n_prompt)
            atomicOr(&counts[at], 1);
        else
            atomicAdd(&counts[at], 2);
    }
    if ((int)threadIdx.x < p.row->n_banned) {
        int at = p.row->banned[threadIdx.x] - first;

        if (at >= 0 && at < SLICE)
            atomicOr(&counts[at], BANNED);
    }
    __syncthreads();
}

/* The logit after penalties; a banned id gets -infinity. */
static __device__ inline float pick_adjusted(const pick_row &p, float logit, int32_t count)
{
    const struct sampling *how = &p.row->sampling;

    if (count == 0)
        return logit;
    if ((count & BANNED) != 0)
        return -INFINITY;
    return k_penalise(logit, count, how->repetition_penalty, how->frequency_penalty,
                      how->presence_penalty);
}

/* The value of one id per thread; the same slice for the whole block. */
static __device__ inline float pick_value(const pick_row &p, int id)
{
    int first = id / SLICE * SLICE;

    if (!p.is_adjusted)
        return p.logits[id];
    pick_count(p, first);
    return pick_adjusted(p, p.logits[id], p.s->counts[id - first]);
}

/* Call f(id, value) for this thread's ids: every THREADS-th. All threads of a warp come to f
 * together, with an id past the end, too, whose value is not a number. */
template <class F> static __device__ inline void pick_each(const pick_row &p, F f)
{
    for (int first = 0; first < p.n_vocab; first += SLICE) {
        if (p.is_adjusted)
            pick_count(p, first);
#pragma unroll 4
        for (int i = threadIdx.x; i < SLICE; i += THREADS) {
            int id = first + i;
            float value = id < p.n_vocab ? p.logits[id] : NAN;

            if (p.is_adjusted && id < p.n_vocab)
                value = pick_adjusted(p, value, p.s->counts[i]);
            f(id, value);
        }
    }
}

/* The weight of z, or 0 if a filter has removed it. */
static __device__ inline uint64_t pick_weight(const pick_row &p, float z)
{
    uint64_t weight = k_exp_fixed(z - p.top);

    return weight >= p.min_weight && k_sort_key(z) >= p.least_key ? weight : 0;
}

/* The key and ~id of the largest value. */
static __device__ inline uint64_t pick_best(const pick_row &p)
{
    uint64_t best = 0;

    pick_each(p, [&](int id, float value) {
        if (id < p.n_vocab)
            best = max(best, sample_best_of(value, id));
    });
    return search_max(best, &p.s->search);
}

static __device__ inline uint64_t pick_sum(const pick_row &p)
{
    uint64_t sum = 0;

    pick_each(p, [&](int, float value) { sum += pick_weight(p, value / p.temperature); });
    return search_sum(sum, &p.s->search);
}

/* The largest key such that k keys are as large; keys below any weight are counted, too. */
static __device__ inline uint32_t pick_key_by_count(const pick_row &p, uint64_t k)
{
    return search_key(
        k, 0, k_sort_key(p.top) + 1,
        [&](auto add) {
            pick_each(p, [&](int id, float value) {
                add(k_sort_key(value / p.temperature), id < p.n_vocab ? 1 : 0);
            });
        },
        &p.s->search);
}

static __device__ inline uint32_t pick_key_by_weight(const pick_row &p, uint64_t need)
{
    return search_key(
        need, p.least_key, k_sort_key(p.top) + 1,
        [&](auto add) {
            pick_each(p, [&](int, float value) {
                float z = value / p.temperature;
                uint64_t weight = pick_weight(p, z);

                if (weight != 0)
                    add(k_sort_key(z), weight);
            });
        },
        &p.s->search);
}

/* Write the id in whose part of the running sum r falls, in the order of ids: first its run of
 * THREADS ids is found, then the thread that has it. */
static __device__ inline void pick_draw(int32_t *id, const pick_row &p, uint64_t r)
{
    struct pick_shared *s = p.s;
    int n_runs = (p.n_vocab + THREADS - 1) / THREADS, at = 0, lane = threadIdx.x % 32;
    uint64_t own = 0, upto;
    float value;

    for (int i = threadIdx.x; i < n_runs; i += THREADS)
        s->runs[i] = 0;
    __syncthreads();
    pick_each(p, [&](int i, float x) {
        uint64_t sum = sample_warp_sum(pick_weight(p, x / p.temperature));

        if (lane == 0 && sum != 0)
            atomicAdd((unsigned long long *)&s->runs[i / THREADS], (unsigned long long)sum);
    });
    __syncthreads();
    while (at < n_runs - 1 && s->runs[at] <= r)
        r -= s->runs[at++];
    value = pick_value(p, min(at * THREADS + (int)threadIdx.x, p.n_vocab - 1));
    if (at * THREADS + (int)threadIdx.x < p.n_vocab)
        own = pick_weight(p, value / p.temperature);
    upto = own;
    for (int i = 1; i < 32; i *= 2) {
        uint64_t lower = __shfl_up_sync(~0U, upto, i);

        upto += lane >= i ? lower : 0;
    }
    __syncthreads();
    if (lane == 31)
        s->search.reduced[threadIdx.x / 32] = upto;
    __syncthreads();
    for (int warp = 0; warp < (int)threadIdx.x / 32; warp++)
        upto += s->search.reduced[warp];
    if (upto - own <= r && r < upto)
        *id = at * THREADS + (int)threadIdx.x;
}

static __device__ inline void pick_id(int32_t *id, pick_row &p)
{
    const struct sampling *how = &p.row->sampling;
    uint64_t best = pick_best(p), sum = 0;

    if (how->temperature > 0.0f) {
        p.temperature = how->temperature;
        p.top = sample_key_value((uint32_t)(best >> 32)) / p.temperature;
        p.min_weight = k_min_weight(how->min_p);
        if (how->top_k > 0 && how->top_k < p.n_vocab)
            p.least_key = pick_key_by_count(p, (uint64_t)how->top_k);
        sum = pick_sum(p);
    }
    if (sum == 0) {
        if (threadIdx.x == 0)
            *id = sample_best_id(best);
        return;
    }
    if (how->top_p < 1.0f) {
        p.least_key = max(p.least_key, pick_key_by_weight(p, k_top_weight(how->top_p, sum)));
        sum = pick_sum(p);
    }
    pick_draw(id, p, k_mul_high(k_random(how->seed, p.row->position), sum));
}

static __global__ void __launch_bounds__(THREADS)
    sample_row_kernel(int32_t *ids, const float *logits, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history)
{
    __shared__ struct pick_shared s;
    const struct k_sample_row *row = &rows[blockIdx.x];
    pick_row p = {};

    p.logits = logits + (size_t)blockIdx.x * n_vocab;
    p.row = row;
    p.history = history;
    p.s = &s;
    p.n_vocab = n_vocab;
    p.is_adjusted = row->n_history > 0 || row->n_banned > 0;
    pick_id(&ids[blockIdx.x], p);
}

int k_sample_portable(int32_t *ids, const float *logits, int n_rows, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    if (n_vocab > K_SAMPLE_VOCAB_MAX)
        return -1;
    return K_LAUNCH(sample_row_kernel, n_rows, THREADS, 0, stream, ids, logits, n_vocab, rows,
                    history);
}
