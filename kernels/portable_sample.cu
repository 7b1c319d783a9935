/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling on every GPU from compute capability 8.0 on. ref_sample() in kernels.h has the
 * definitions.
 *
 * One block per row. A first pass finds the largest value, which ends a greedy row, and the largest
 * of each thread. Of rows with a top_k of up to SEARCH_THREADS, or with top_p alone, a second pass
 * collects the values that reach the k-th largest of these: they contain all that can be kept, and
 * the rest looks at them only. Rows with more candidates than room, and others, read the row again:
 * about eleven times for each threshold, once for each sum. All sums are of integers, so their
 * order does not matter.
 *
 * Rows with a history are read in slices of ids, whose counts fit into shared memory; each pass
 * counts the history again for each slice. */
#include <limits.h>

#include "kernels/choice.h"
#include "kernels/portable_search.cuh"

#define THREADS  SEARCH_THREADS
#define RUN      SEARCH_RUN /* also the ids whose counts are in shared memory at a time */
#define RUNS_MAX ((K_SAMPLE_VOCAB_MAX + RUN - 1) / RUN)
#define BATCH    4   /* 16-byte loads of a thread in flight */
#define NUCLEUS  128 /* of the threads' largest values: the bound of candidates for top_p alone */
#define BANNED   INT_MIN /* among counts */

struct pick_shared {
    struct search_shared search;
    union {
        int32_t counts[RUN];
        uint64_t weights[SEARCH_ROOM]; /* of candidates, for the draw */
    };
    uint64_t runs[RUNS_MAX]; /* weights of each RUN ids */
    float z[SEARCH_ROOM];    /* candidates */
    int32_t ids[SEARCH_ROOM];
    int n_candidates;
};

static_assert(RUN * sizeof(int32_t) >= SEARCH_ROOM * sizeof(uint64_t), "they share memory");

/* A row, and the candidates that its filters have kept so far. */
struct pick_row {
    const float *logits;
    const struct k_sample_row *row;
    const int32_t *history;
    struct pick_shared *s;
    int n_vocab;
    int n_candidates; /* -1: all ids are looked at */
    bool is_adjusted;
    float temperature, top; /* top: the largest z */
    uint64_t min_weight;
    uint64_t all; /* the weight of all ids, when candidates are looked at for top_p alone */
    uint32_t least_key;
};

/* Count the history in ids first .. first + RUN - 1, and mark banned ones. */
static __device__ inline void pick_count(const pick_row &p, int first)
{
    int32_t *counts = p.s->counts;

    __syncthreads();
    for (int i = threadIdx.x; i < RUN; i += THREADS)
        counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < p.row->n_history; i += THREADS) {
        int at = p.history[p.row->history_at + i] - first;

        if (at < 0 || at >= RUN)
            continue;
        if (i < p.row->n_prompt)
            atomicOr(&counts[at], 1);
        else
            atomicAdd(&counts[at], 2);
    }
    if ((int)threadIdx.x < p.row->n_banned) {
        int at = p.row->banned[threadIdx.x] - first;

        if (at >= 0 && at < RUN)
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

/* This thread's four logits of the run from `first` on as z; all threads call. */
static __device__ inline float4 pick_scaled(const pick_row &p, float4 x, int first)
{
    const int32_t *counts = &p.s->counts[threadIdx.x * 4];

    if (p.is_adjusted) {
        pick_count(p, first);
        x.x = pick_adjusted(p, x.x, counts[0]);
        x.y = pick_adjusted(p, x.y, counts[1]);
        x.z = pick_adjusted(p, x.z, counts[2]);
        x.w = pick_adjusted(p, x.w, counts[3]);
    }
    return make_float4(x.x / p.temperature, x.y / p.temperature, x.z / p.temperature,
                       x.w / p.temperature);
}

/* Call f(id, z) for this thread's candidates or ids, those past the row's end with NaN; and
 * end(run) after the four ids of a run, by all threads. */
template <class F, class END>
static __device__ inline void pick_each_run(const pick_row &p, F f, END end)
{
    if (p.n_candidates >= 0) {
        for (int i = threadIdx.x; i < p.n_candidates; i += THREADS)
            f(p.s->ids[i], p.s->z[i]);
        return;
    }
#pragma unroll 1
    for (int base = 0; base < p.n_vocab; base += BATCH * RUN) {
        float4 loaded[BATCH];

#pragma unroll
        for (int i = 0; i < BATCH; i++)
            loaded[i] = search_load(p.logits, base + i * RUN + (int)threadIdx.x * 4, p.n_vocab);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int first = base + i * RUN, id = first + (int)threadIdx.x * 4;
            float4 x;

            if (first >= p.n_vocab) /* the same for all threads */
                break;
            x = pick_scaled(p, loaded[i], first);
            f(id, x.x), f(id + 1, x.y), f(id + 2, x.z), f(id + 3, x.w);
            end(first / RUN);
        }
    }
}

template <class F> static __device__ inline void pick_each(const pick_row &p, F f)
{
    pick_each_run(p, f, [](int) {});
}

/* The weight of z, or 0 if a filter has removed it. */
static __device__ inline uint64_t pick_weight(const pick_row &p, float z)
{
    uint64_t weight = k_exp_fixed(z - p.top);

    return weight >= p.min_weight && k_sort_key(z) >= p.least_key ? weight : 0;
}

/* The sum of weights; of all ids also the runs'. */
static __device__ inline uint64_t pick_sum(const pick_row &p)
{
    uint64_t sum = 0, before = 0;

    for (int i = threadIdx.x; i < RUNS_MAX; i += THREADS)
        p.s->runs[i] = 0;
    __syncthreads();
    pick_each_run(
        p, [&](int, float z) { sum += pick_weight(p, z); },
        [&](int run) {
            uint64_t of_warp = sample_warp_sum(sum - before);

            before = sum;
            if (threadIdx.x % 32 == 0 && of_warp != 0)
                atomicAdd((unsigned long long *)&p.s->runs[run], (unsigned long long)of_warp);
        });
    return search_sum(sum, &p.s->search);
}

/* The largest key such that k keys are as large; keys without weight are counted, too. */
static __device__ inline uint32_t pick_key_by_count(const pick_row &p, uint64_t k)
{
    return search_key(
        k, 0, k_sort_key(p.top) + 1,
        [&](auto add) {
            pick_each(p, [&](int id, float z) { add(k_sort_key(z), id < p.n_vocab ? 1 : 0); });
        },
        &p.s->search);
}

static __device__ inline uint32_t pick_key_by_weight(const pick_row &p, uint64_t need)
{
    return search_key(
        need, p.least_key, k_sort_key(p.top) + 1,
        [&](auto add) {
            pick_each(p, [&](int, float z) {
                uint64_t weight = pick_weight(p, z);

                if (weight != 0)
                    add(k_sort_key(z), weight);
            });
        },
        &p.s->search);
}

/* Collect the values whose keys reach the bound; returns the weight of all ids if is_weighed. */
static __device__ inline uint64_t pick_collect(const pick_row &p, uint32_t bound, bool is_weighed)
{
    struct pick_shared *s = p.s;
    uint64_t sum = 0;

    if (threadIdx.x == 0)
        s->n_candidates = 0;
    __syncthreads();
    pick_each(p, [&](int id, float z) {
        if (is_weighed)
            sum += pick_weight(p, z);
        if (id < p.n_vocab && k_sort_key(z) >= bound) {
            int at = atomicAdd(&s->n_candidates, 1);

            if (at < SEARCH_ROOM) {
                s->z[at] = z;
                s->ids[at] = id;
            }
        }
    });
    return search_sum(sum, &s->search); /* which makes the candidates visible */
}

/* Look at candidates from here on, if they contain all that can be kept. largest: the key of this
 * thread's largest value. */
static __device__ inline void pick_narrow(pick_row &p, uint32_t largest, bool has_k)
{
    const struct sampling *how = &p.row->sampling;
    int n = has_k ? how->top_k : NUCLEUS;
    uint64_t all, some;
    uint32_t bound;

    if (n > THREADS || (!has_k && !(how->top_p < 1.0f)))
        return;
    bound = search_bound(largest, n, k_sort_key(p.top) + 1, &p.s->search);
    all = pick_collect(p, bound, !has_k);
    if (p.s->n_candidates > SEARCH_ROOM)
        return;
    p.n_candidates = p.s->n_candidates;
    if (has_k)
        return;
    some = pick_sum(p);
    if (all == 0 || some < k_top_weight(how->top_p, all))
        p.n_candidates = -1;
    else
        p.all = all;
}

/* The id in whose part of the running sum r falls, in the order of ids: the run, then the thread
 * that has it. */
static __device__ inline void pick_draw(int32_t *id, const pick_row &p, uint64_t r)
{
    int n_runs = (p.n_vocab + RUN - 1) / RUN, at = 0;
    uint64_t weight[4], upto, own;
    float4 x;

    while (at < n_runs - 1 && p.s->runs[at] <= r)
        r -= p.s->runs[at++];
    x = search_load(p.logits, at * RUN + (int)threadIdx.x * 4, p.n_vocab);
    x = pick_scaled(p, x, at * RUN);
    weight[0] = pick_weight(p, x.x), weight[1] = pick_weight(p, x.y);
    weight[2] = pick_weight(p, x.z), weight[3] = pick_weight(p, x.w);
    own = weight[0] + weight[1] + weight[2] + weight[3];
    upto = search_sum_upto(own, &p.s->search) - own;
    for (int i = 0; i < 4; i++) {
        if (upto <= r && r - upto < weight[i])
            *id = at * RUN + (int)threadIdx.x * 4 + i;
        upto += weight[i];
    }
}

/* The same among candidates, each of which adds the weights of lower ids. */
static __device__ inline void pick_draw_candidate(int32_t *id, const pick_row &p, uint64_t r)
{
    const struct pick_shared *s = p.s;

    for (int i = threadIdx.x; i < p.n_candidates; i += THREADS)
        p.s->weights[i] = pick_weight(p, s->z[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_candidates; i += THREADS) {
        uint64_t before = 0;

        for (int k = 0; k < p.n_candidates; k++)
            before += s->ids[k] < s->ids[i] ? s->weights[k] : 0;
        if (before <= r && r - before < s->weights[i])
            *id = s->ids[i];
    }
}

/* Filters and draw. best: key and ~id of the largest value. */
static __device__ inline void pick_filtered(int32_t *id, pick_row &p, uint64_t best,
                                            uint32_t largest)
{
    const struct sampling *how = &p.row->sampling;
    bool has_k = how->top_k > 0 && how->top_k < p.n_vocab;
    uint64_t sum, r;

    p.min_weight = k_min_weight(how->min_p);
    pick_narrow(p, largest, has_k);
    if (has_k)
        p.least_key = pick_key_by_count(p, (uint64_t)how->top_k);
    sum = !has_k && p.n_candidates >= 0 ? p.all : pick_sum(p);
    if (sum == 0) {
        if (threadIdx.x == 0)
            *id = sample_best_id(best);
        return;
    }
    if (how->top_p < 1.0f) {
        p.least_key = max(p.least_key, pick_key_by_weight(p, k_top_weight(how->top_p, sum)));
        sum = pick_sum(p);
    }
    r = k_mul_high(k_random(how->seed, p.row->position), sum);
    if (p.n_candidates >= 0)
        pick_draw_candidate(id, p, r);
    else
        pick_draw(id, p, r);
}

static __global__ void __launch_bounds__(THREADS)
    sample_row_kernel(int32_t *ids, const float *logits, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history)
{
    __shared__ struct pick_shared s;
    const struct k_sample_row *row = &rows[blockIdx.x];
    uint64_t own = 0, best;
    float temperature = row->sampling.temperature;
    pick_row p = {};

    p.logits = logits + (size_t)blockIdx.x * n_vocab;
    p.row = row;
    p.history = history;
    p.s = &s;
    p.n_vocab = n_vocab;
    p.n_candidates = -1;
    p.is_adjusted = row->n_history > 0 || row->n_banned > 0;
    p.temperature = 1.0f;
    pick_each(p, [&](int id, float value) {
        if (id < n_vocab)
            own = max(own, sample_best_of(value, id));
    });
    best = search_max(own, &s.search);
    if (!(temperature > 0.0f)) {
        if (threadIdx.x == 0)
            ids[blockIdx.x] = sample_best_id(best);
        return;
    }
    p.temperature = temperature;
    p.top = sample_key_value((uint32_t)(best >> 32)) / temperature;
    pick_filtered(&ids[blockIdx.x], p, best,
                  own == 0 ? 0 : k_sort_key(sample_key_value((uint32_t)(own >> 32)) / temperature));
}

int k_sample_portable(int32_t *ids, const float *logits, int n_rows, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    if (n_vocab > K_SAMPLE_VOCAB_MAX)
        return -1;
    return K_LAUNCH(sample_row_kernel, n_rows, THREADS, 0, stream, ids, logits, n_vocab, rows,
                    history);
}
