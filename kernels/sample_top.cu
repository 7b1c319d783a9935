/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling of many rows that need only their largest logits: greedy ones, and those with a small
 * top_k. ref_sample() in kernels.h has the definitions.
 *
 * Split: one block per row, two blocks per multiprocessor, so that up to 264 rows stream at once. A
 * row is read once, in an order that visits all its parts early: load i of a round is in its i-th
 * eighth. The first round, an eighth of the row, gives a bound that is at most the k-th largest
 * logit; logits that reach it are candidates (some 500 for top_k 50 of evenly distributed logits).
 * They are reduced to the top_k by a search over the bits of their keys; the last steps compare all
 * with all.
 *
 * Ids with a penalty or a ban are masked while the row streams, with a bitmap; a hash table by id
 * counts them, and their values join the candidates at the end.
 *
 * A row that this kernel cannot finish (too many equal values, nothing but NaN, too many different
 * ids in its history) is left to the other kernel, and so are rows with other filters.
 *
 * Shared memory of a block: struct state, 21 KB; n_vocab / 8 bytes for the bitmap, 64 KB for the
 * table.
 *
 * H200, us for 128 and 256 rows of 128256 (bench_sample): greedy 30 46, top_k 50 38 57, penalties
 * and greedy 49 61, top_k 50 with top_p and penalties 56 71. Reading takes 28 for 256. */
#include <float.h>

#include "kernels/sample.cuh"

#define THREADS     512
#define WARPS       (THREADS / 32)
#define LOADS       8 /* 16-byte loads of a thread in flight */
#define HALF        (LOADS / 2)
#define QUADS       (THREADS / 4) /* quads of threads, whose largest values give the bound */
#define TOP_K_MAX   64
#define ROOM        2048 /* candidates */
#define EACH        (ROOM / THREADS)
#define KEPT_MAX    256 /* kept by top_k: more than k when keys are equal */
#define TABLE       8192
#define PROBES      64    /* probes before the table counts as full */
#define HISTORY_MAX 16384 /* longer ones take too long for one block */
#define BANNED      INT_MIN

static_assert(TOP_K_MAX <= QUADS && TOP_K_MAX <= KEPT_MAX, "the bound, and room for what is kept");

struct state {
    float value[ROOM]; /* candidates */
    int32_t id[ROOM];
    uint64_t weight[KEPT_MAX]; /* candidates that top_k keeps */
    uint32_t kept_key[KEPT_MAX];
    int32_t kept_id[KEPT_MAX];
    float maxima[QUADS];
    uint64_t reduced[3][WARPS];
    float bound;
    int n_candidates;
    int n_kept;
    int is_full; /* the table is full */
};

/* Ids whose logits are changed before sampling. */
struct touched {
    uint32_t *bits; /* one per id */
    int2 *table;    /* {id + 1, or 0 if free; count as in ref_sample(), or BANNED} */
    int size;       /* of the table, a power of two; 0: no id is changed */
};

/* The thread's search: it collects values from limit on. */
struct seeker {
    float limit; /* greedy: the largest so far */
    bool is_greedy;
    uint64_t best; /* greedy only */
};

/* Greedy rows, and rows with a small top_k, unless their history is long. */
static __device__ inline bool top_takes(const struct k_sample_row *row, int n_vocab)
{
    bool is_greedy = !(row->sampling.temperature > 0.0f);

    return (is_greedy || (row->sampling.top_k > 0 && row->sampling.top_k <= TOP_K_MAX &&
                          row->sampling.top_k < n_vocab)) &&
           row->n_history <= HISTORY_MAX;
}

static __device__ inline float top_pick(const float4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* --- ids with penalties and bans -------------------------------------------------------- */

/* Mark an id in the bitmap, and count it in the table (open addressing). */
static __device__ void top_touch(struct state *s, const struct touched &t, int32_t id, int n_vocab,
                                 int32_t flag)
{
    unsigned int at = (unsigned int)id * 2654435761U;

    if (id < 0 || id >= n_vocab)
        return;
    atomicOr(&t.bits[id / 32], 1U << id % 32);
    at ^= at >> 15;
    for (int i = 0; i < PROBES; i++) {
        int2 *slot = &t.table[(at + i) & (t.size - 1)];
        int was = atomicCAS(&slot->x, 0, id + 1);

        if (was != 0 && was != id + 1)
            continue;
        if (flag == 2)
            atomicAdd(&slot->y, flag);
        else
            atomicOr(&slot->y, flag);
        return;
    }
    s->is_full = 1;
}

/* Clear the bitmap and the table, then enter history and bans. The table is about half full at
 * most. */
static __device__ void top_touch_all(struct state *s, struct touched *t, int n_vocab,
                                     const struct k_sample_row *row, const int32_t *history)
{
    int n_words = (n_vocab + 127) / 128 * 4;

    history += row->history_at;
    t->size = 64;
    while (t->size < TABLE && t->size < 2 * row->n_history)
        t->size *= 2;
    for (int i = threadIdx.x * 4; i < n_words; i += THREADS * 4)
        *(uint4 *)&t->bits[i] = make_uint4(0, 0, 0, 0);
    for (int i = threadIdx.x * 2; i < t->size; i += THREADS * 2)
        *(int4 *)&t->table[i] = make_int4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i < row->n_history; i += THREADS)
        top_touch(s, *t, history[i], n_vocab, i < row->n_prompt ? 1 : 2);
    if ((int)threadIdx.x < row->n_banned)
        top_touch(s, *t, row->banned[threadIdx.x], n_vocab, BANNED);
    __syncthreads();
}

/* --- the stream ------------------------------------------------------------------------- */

/* A greedy search raises its limit; the other one collects every value from its limit on. */
static __device__ inline void top_seek(struct state *s, struct seeker *k, float value, int32_t id)
{
    int n;

    if (!(value >= k->limit))
        return;
    if (k->is_greedy) {
        k->best = max(k->best, sample_best_of(value, id));
        k->limit = value;
        return;
    }
    n = atomicAdd(&s->n_candidates, 1);
    if (n < ROOM) {
        s->value[n] = value;
        s->id[n] = id;
    }
}

/* The four logits at `at`; those of changed ids become NaN, which no search takes. */
static __device__ inline float4 top_untouched(float4 x, int at, int n4, const struct touched &t)
{
    uint32_t four = at < n4 ? t.bits[at / 8] >> at % 8 * 4 & 15 : 0;

    if (four != 0) {
        x.x = (four & 1) != 0 ? NAN : x.x;
        x.y = (four & 2) != 0 ? NAN : x.y;
        x.z = (four & 4) != 0 ? NAN : x.z;
        x.w = (four & 8) != 0 ? NAN : x.w;
    }
    return x;
}

static __device__ inline float top_largest(const float4 &x)
{
    return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
}

/* Four logits at a time: nearly all are below the limit, and one comparison skips them. */
static __device__ inline void top_seek4(struct state *s, struct seeker *k, const float4 &x, int at)
{
    if (!(top_largest(x) >= k->limit))
        return;
#pragma unroll
    for (int j = 0; j < 4; j++)
        top_seek(s, k, top_pick(x, j), at * 4 + j);
}

/* The position of load i of a round. */
static __device__ inline int top_place(int i, int round, int n_rounds)
{
    return (i * n_rounds + round) * THREADS + (int)threadIdx.x;
}

/* __ldcs: each logit is read once, so it should leave the cache first. */
static __device__ inline float4 top_load4(const float *logits, int at, int n4)
{
    float4 four = {NAN, NAN, NAN, NAN};

    return at < n4 ? __ldcs((const float4 *)logits + at) : four;
}

/* A bound that is at most the k-th largest logit: the k-th largest of the quads' maxima, less the
 * difference that division by the temperature can remove. Not -infinity, because such logits have
 * no weight. */
static __device__ float top_find_bound(struct state *s, const float4 x[LOADS], int k,
                                       float temperature)
{
    float own = -INFINITY;
    int n_larger = 0, n_equal = 0;

#pragma unroll
    for (int i = 0; i < LOADS; i++)
        own = fmaxf(own, top_largest(x[i]));
    own = fmaxf(own, __shfl_xor_sync(~0U, own, 1));
    own = fmaxf(own, __shfl_xor_sync(~0U, own, 2));
    if (threadIdx.x % 4 == 0)
        s->maxima[threadIdx.x / 4] = own;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x % 4 * 4; i < QUADS; i += 16) {
        float4 other = *(const float4 *)&s->maxima[i];

        for (int j = 0; j < 4; j++) {
            n_larger += top_pick(other, j) > own;
            n_equal += top_pick(other, j) == own;
        }
    }
    for (int i = 1; i < 4; i *= 2) {
        n_larger += __shfl_xor_sync(~0U, n_larger, i);
        n_equal += __shfl_xor_sync(~0U, n_equal, i);
    }
    /* All threads that come here have the same value. */
    if (n_larger < k && k <= n_larger + n_equal)
        s->bound = own;
    __syncthreads();
    return fmaxf(sample_below_equals(s->bound, temperature), -FLT_MAX);
}

/* Read the whole row. Half of the loads are in flight while the other half is searched. */
static __device__ void top_stream(struct state *s, struct seeker *k, struct touched *t,
                                  const float *logits, int n_vocab, const struct k_sample_row *row,
                                  const int32_t *history)
{
    int n4 = n_vocab / 4, n_rounds = (n4 + THREADS * LOADS - 1) / (THREADS * LOADS);
    float4 fours[LOADS];

#pragma unroll
    for (int i = 0; i < LOADS; i++)
        fours[i] = top_load4(logits, top_place(i, 0, n_rounds), n4);
    if (row->n_history > 0 || row->n_banned > 0)
        top_touch_all(s, t, n_vocab, row, history);
    if (t->size > 0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            fours[i] = top_untouched(fours[i], top_place(i, 0, n_rounds), n4, *t);
    }
    if (!k->is_greedy)
        k->limit = top_find_bound(s, fours, row->sampling.top_k, row->sampling.temperature);
#pragma unroll 1
    for (int round = 0; round < n_rounds; round++) {
#pragma unroll
        for (int half = 0; half < LOADS; half += HALF) {
#pragma unroll
            for (int i = half; i < half + HALF; i++)
                top_seek4(s, k, fours[i], top_place(i, round, n_rounds));
#pragma unroll
            for (int i = half; i < half + HALF; i++) {
                int at = top_place(i, round + 1, n_rounds);

                fours[i] = top_load4(logits, round + 1 < n_rounds ? at : n4, n4);
                if (t->size > 0)
                    fours[i] = top_untouched(fours[i], at, n4, *t);
            }
        }
    }
}

/* Search the changed ids, with their new values. */
static __device__ void top_seek_touched(struct state *s, struct seeker *k, const struct touched &t,
                                        const float *logits, const struct k_sample_row *row)
{
#pragma unroll 2
    for (int i = threadIdx.x; i < t.size; i += THREADS) {
        int2 slot = t.table[i];
        float value = -INFINITY;

        if (slot.x == 0)
            continue;
        if ((slot.y & BANNED) == 0)
            value = k_penalise(logits[slot.x - 1], slot.y, row->sampling.repetition_penalty,
                               row->sampling.frequency_penalty, row->sampling.presence_penalty);
        top_seek(s, k, value, slot.x - 1);
    }
}

/* --- the selection --------------------------------------------------------------------------- */

/* Keep the candidates whose keys are among the k largest, with their weights: find the k-th largest
 * key bit by bit, from the top. */
static __device__ void top_keep_first(struct state *s, const struct k_sample_row *row, float top,
                                      int n)
{
    int n_each = (n + THREADS - 1) / THREADS;
    uint32_t key[EACH], least = 0;
    uint64_t min_weight = k_min_weight(row->sampling.min_p);

#pragma unroll
    for (int nth = 0; nth < EACH; nth++) {
        int i = (int)threadIdx.x + nth * THREADS;

        key[nth] = i < n ? k_sort_key(s->value[i] / row->sampling.temperature) : 0;
    }
#pragma unroll 1
    for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
        int n_above = 0;

#pragma unroll
        for (int nth = 0; nth < EACH; nth++)
            n_above += nth < n_each ? __syncthreads_count(key[nth] >= (least | bit)) : 0;
        least |= n_above >= row->sampling.top_k ? bit : 0;
    }
#pragma unroll
    for (int nth = 0; nth < EACH; nth++) {
        int i = (int)threadIdx.x + nth * THREADS, at;

        if (i >= n || key[nth] < least || (at = atomicAdd(&s->n_kept, 1)) >= KEPT_MAX)
            continue;
        s->kept_key[at] = key[nth];
        s->kept_id[at] = s->id[i];
        s->weight[at] = k_exp_fixed(sample_key_value(key[nth]) - top);
        if (s->weight[at] < min_weight)
            s->weight[at] = 0;
    }
    __syncthreads();
}

/* Apply top_p: keep the largest keys that reach its share of the weight. Returns the weight that is
 * left; 0 when there is none. */
static __device__ uint64_t top_keep_nucleus(struct state *s, float top_p)
{
    uint64_t larger = 0, upto = 0, own = 0, sum, need;
    int idx = threadIdx.x;

    if (idx < s->n_kept) {
        own = s->kept_key[idx];
        for (int i = 0; i < s->n_kept; i++) {
            uint64_t weight = s->weight[i];

            larger += s->kept_key[i] > own ? weight : 0;
            upto += s->kept_key[i] >= own ? weight : 0;
        }
    }
    sum = sample_block_max<WARPS>(upto, s->reduced[1]);
    if (sum == 0 || !(top_p < 1.0f))
        return sum;
    need = k_top_weight(top_p, sum);
    if (idx < s->n_kept && larger >= need) {
        s->weight[idx] = 0;
        upto = 0;
    }
    return sample_block_max<WARPS>(upto, s->reduced[2]);
}

/* The id in whose part of the running sum of weights, in the order of ids, r falls. */
static __device__ void top_draw(int32_t *id, const struct state *s, uint64_t r)
{
    int idx = threadIdx.x;
    uint64_t before = 0;

    if (idx >= s->n_kept)
        return;
    for (int i = 0; i < s->n_kept; i++)
        before += s->kept_id[i] < s->kept_id[idx] ? s->weight[i] : 0;
    if (before <= r && r - before < s->weight[idx])
        *id = s->kept_id[idx];
}

/* Select an id from the candidates; false when this kernel cannot. */
static __device__ bool top_choose(int32_t *id, struct state *s, const struct k_sample_row *row)
{
    int n = s->n_candidates;
    uint64_t best = 0, sum;
    float top;

    if (n == 0 || n > ROOM)
        return false;
    for (int i = threadIdx.x; i < n; i += THREADS)
        best = max(best, sample_best_of(s->value[i], s->id[i]));
    best = sample_block_max<WARPS>(best, s->reduced[0]);
    top = sample_key_value((uint32_t)(best >> 32)) / row->sampling.temperature;
    if (fabsf(top) < INFINITY) {
        top_keep_first(s, row, top, n);
        if (s->n_kept > KEPT_MAX)
            return false;
        sum = top_keep_nucleus(s, row->sampling.top_p);
        if (sum > 0) {
            top_draw(id, s, k_mul_high(k_random(row->sampling.seed, row->position), sum));
            return true;
        }
    }
    if (threadIdx.x == 0)
        *id = sample_best_id(best);
    return true;
}

static __global__ void __launch_bounds__(THREADS, 2)
    sample_top_kernel(int32_t *ids, const float *logits, int n_vocab,
                      const struct k_sample_row *rows, const int32_t *history)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    __shared__ __align__(16) struct state s;
    const struct k_sample_row *row = &rows[blockIdx.x];
    struct touched t = {dynamic, (int2 *)(dynamic + (n_vocab + 127) / 128 * 4), 0};
    struct seeker seeker = {-INFINITY, !(row->sampling.temperature > 0.0f), 0};
    bool is_done;

    asm volatile(
        "griddepcontrol.launch_dependents;"); /* The other kernel waits for the end of this one. */
    ids += blockIdx.x;
    logits += (size_t)blockIdx.x * n_vocab;
    if (threadIdx.x == 0)
        s.n_candidates = s.n_kept = s.is_full = 0;
    is_done = top_takes(row, n_vocab);
    __syncthreads();
    if (is_done) {
        top_stream(&s, &seeker, &t, logits, n_vocab, row, history);
        top_seek_touched(&s, &seeker, t, logits, row);
        __syncthreads();
        is_done = s.is_full == 0;
    }
    if (is_done && seeker.is_greedy) {
        seeker.best = sample_block_max<WARPS>(seeker.best, s.reduced[0]);
        is_done = seeker.best != 0;
        if (is_done && threadIdx.x == 0)
            *ids = sample_best_id(seeker.best);
    } else if (is_done) {
        is_done = top_choose(ids, &s, row);
    }
    if (!is_done && threadIdx.x == 0)
        *ids = SAMPLE_LEFT;
}

/* The table and the bitmap need more shared memory than the default limit. */
int sample_top(int32_t *ids, const float *logits, int n_rows, int n_vocab,
               const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    size_t bytes = (size_t)(n_vocab + 127) / 128 * 16 + TABLE * sizeof(int2);

    if (n_vocab % 4 != 0 || (uintptr_t)logits % 16 != 0)
        return 1;
    if (cudaFuncSetAttribute(sample_top_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH(sample_top_kernel, n_rows, THREADS, bytes, stream, ids, logits, n_vocab, rows,
                    history);
}
