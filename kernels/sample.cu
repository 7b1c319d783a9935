/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling; the rules stand at ref_sample() in kernels.h.
 *
 * Split: a cluster of RANKS blocks of WARPS warps a row. Warp g of a row's ALL_WARPS owns the ids
 * g * run_len .. (g + 1) * run_len - 1 in all passes. Device memory is read once: a row's adjusted
 * logits stay in the shared memory of its cluster. An id's count in the history stands first in
 * the slot which its value then takes, so no array of n_vocab counts exists.
 *
 * Shared memory of a block: its slice of the values, WARPS * run_len * 4 bytes (64 KB at 128256,
 * three blocks an SM), and struct shared_state, 10 KB. What blocks tell each other they push into
 * the other's shared memory before a barrier of the cluster; nobody reads remotely, so a block may
 * end whatever the others do.
 *
 * Ways of a row after its largest value is known (one barrier):
 *   greedy     done.
 *   narrow     top_k <= ALL_WARPS, or top_p alone: the k-th largest of the warps' largest values
 *              is no more than the k-th largest value, so what is not smaller holds all that can
 *              be kept: some 60 for top_k 50 of evenly spread logits. The first block gets them
 *              (one barrier) and finishes alone, comparing each with each.
 *   wide       the others, and rows of which more are not smaller than there is room for:
 *              thresholds by search, each step counting or weighing above CUTS cuts in all
 *              blocks (one barrier), then a sum and the draw.
 * All sums are sums of integers, so the result is the reference's whatever the order of adding. */
#include <cooperative_groups.h>
#include <limits.h>

#include "kernels/common.cuh"
#include "kernels/draw.h"

namespace cg = cooperative_groups;

#define RANKS     8
#define THREADS   512
#define WARPS     (THREADS / 32)
#define ALL_WARPS (RANKS * WARPS)
#define ROOM      128 /* candidates that a block may have */
#define CUTS      3
#define GROUP     8  /* lanes that compare one candidate with the others */
#define BATCH     4  /* 16-byte loads of a thread on their way */
#define NUCLEUS   96 /* of the warps' largest values: the bound of candidates for top_p alone */
#define LINEAR    10 /* steps of a search that cut evenly by value, the later ones by key */
#define BANNED    INT_MIN /* in a slot that counts */

static_assert(ALL_WARPS * 4 == THREADS, "four threads a warp find the bound");

struct candidate {
    float value;
    int32_t id;
};

/* What a block has found among its ids. */
struct share {
    uint64_t weight; /* of all its ids */
    uint64_t upper;  /* of those that are certainly larger than all that are not candidates */
    int32_t n_candidates;
};

struct shared_state {
    union {
        struct candidate candidates[RANKS][ROOM]; /* pushed to the first block */
        uint64_t sums[2][CUTS][ALL_WARPS];        /* pushed to all, in turns */
    };
    uint64_t best[ALL_WARPS];   /* pushed to all: key and ~id of a warp's largest */
    struct share shares[RANKS]; /* pushed to all */
    struct share own;
    uint64_t reduced[2][WARPS];
    float bound;
};

/* The larger part of the first block's slice when it finishes a narrow row. */
struct finalists {
    uint64_t weight[RANKS * ROOM];
    uint64_t larger[RANKS * ROOM];
    uint64_t upto[RANKS * ROOM];
    uint32_t key[RANKS * ROOM];
    int32_t id[RANKS * ROOM];
};

/* A row as a warp sees it. */
struct view {
    float *run;       /* its run of values, in shared memory */
    int first;        /* id of run[0] */
    int run_len;      /* a multiple of 4 */
    float divisor;    /* temperature; 1 when the run holds z */
    float reciprocal; /* of it */
    float small;      /* values below are divided in earnest */
    float top;        /* the largest z */
    float low;        /* values below weigh nothing */
    uint64_t min_weight;
    float least;   /* z that the filters keep so far */
    float largest; /* of the values that the thread loaded, -infinity when they are NaN */
};

static __device__ inline float key_value(uint32_t key)
{
    return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

static __device__ inline uint64_t warp_sum(uint64_t x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    return x;
}

static __device__ inline uint64_t warp_max(uint64_t x)
{
    uint32_t high = __reduce_max_sync(~0U, (uint32_t)(x >> 32));
    uint32_t low = __reduce_max_sync(~0U, (uint32_t)(x >> 32) == high ? (uint32_t)x : 0);

    return (uint64_t)high << 32 | low;
}

/* To all threads; each call of a sequence uses the other half of reduced. */
static __device__ uint64_t block_max(uint64_t x, uint64_t reduced[WARPS])
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0)
        reduced[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(reduced[threadIdx.x % WARPS]);
}

static __device__ inline float4 get4(const float *p)
{
    return *(const float4 *)p;
}

static __device__ inline float pick(const float4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* What quotient() needs. */
static __device__ void set_divisor(struct view *v, float divisor)
{
    bool is_usual = divisor > 0x1p-20f && divisor < 0x1p20f && fabsf(v->top) < 0x1p60f;

    v->divisor = divisor;
    v->reciprocal = 1.0f / divisor;
    v->small = is_usual ? 0x1p-80f : INFINITY;
}

/* value / divisor, rounded as a division is: from the rounded reciprocal, two corrections by exact
 * remainders give that (Markstein 1990) as long as nothing underflows. */
static __device__ inline float quotient(const struct view &v, float value)
{
    float q = value * v.reciprocal;

    if (!(fabsf(value) >= v.small))
        return value / v.divisor;
    q = fmaf(fmaf(-q, v.divisor, value), v.reciprocal, q);
    return fmaf(fmaf(-q, v.divisor, value), v.reciprocal, q);
}

static __device__ inline uint64_t weight_of(const struct view &v, float value)
{
    float z;
    uint64_t w;

    if (!(value >= v.low))
        return 0;
    z = quotient(v, value);
    w = k_exp_fixed(z - v.top);
    return w >= v.min_weight && z >= v.least ? w : 0;
}

/* --- values --------------------------------------------------------------------------------- */

/* Ask the L2 cache for the run, before it is known how it is loaded. */
static __device__ inline void prefetch_run(const struct view &v, const float *logits, int n_vocab)
{
    int n = min(v.run_len, n_vocab - v.first);

    if (threadIdx.x % 32 == 0 && n > 0 && n_vocab % 4 == 0 && (uintptr_t)logits % 16 == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(logits + v.first),
                     "r"(n * 4));
    __syncwarp();
}

/* Four logits; NaN, which never is kept, behind the end. */
static __device__ inline float4 load4(const float *logits, int id, int n_vocab)
{
    float4 x = {NAN, NAN, NAN, NAN};

    if (id < n_vocab)
        x = __ldcs((const float4 *)(logits + id));
    return x;
}

/* The same where rows do not begin at multiples of 16 bytes. */
static __device__ inline float4 load4_any(const float *logits, int id, int n_vocab)
{
    float4 x;

    x.x = id < n_vocab ? logits[id] : NAN;
    x.y = id + 1 < n_vocab ? logits[id + 1] : NAN;
    x.z = id + 2 < n_vocab ? logits[id + 2] : NAN;
    x.w = id + 3 < n_vocab ? logits[id + 3] : NAN;
    return x;
}

/* Count id in its slot, if that is here; whether nobody has before. */
static __device__ inline bool count_id(int32_t *slots, int n_slots, int at, int32_t flag)
{
    if (at < 0 || at >= n_slots)
        return false;
    return (flag == 2 ? atomicAdd(&slots[at], flag) : atomicOr(&slots[at], flag)) == 0;
}

/* A slot's count becomes the value that takes the place of its logit, never all bits 0. */
static __device__ __noinline__ void patch(int32_t *slot, float logit,
                                          const struct k_sample_row *row)
{
    float value = (*slot & BANNED) != 0
                      ? -INFINITY
                      : k_penalise(logit, *slot, row->repetition, row->frequency, row->presence);

    *slot =
        value == 0.0f ? INT_MIN : __float_as_int(value); /* minus zero: zero in all that follows */
}

/* Slots of ids in the history, and of banned ones, become their values, others 0. Who counts an
 * id first computes its value, and remembers that in a bit for each of his tokens; of a history
 * that is too long for that all slots are looked at. */
static __device__ void patch_slots(int32_t *slots, int first, int n_slots, const float *logits,
                                   const struct k_sample_row *row, const int32_t *history)
{
    int n_history = row->n_history, n_prompt = row->n_prompt, n_banned = row->n_banned;
    uint64_t mine = 0, bit = 1;
    bool is_mine = false;

    history += row->history_at;
    for (int i = threadIdx.x * 4; i < n_slots; i += THREADS * 4)
        *(int4 *)&slots[i] = make_int4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i < n_history; i += THREADS, bit <<= 1) {
        if (count_id(slots, n_slots, history[i] - first, i < n_prompt ? 1 : 2))
            mine |= bit;
    }
    if ((int)threadIdx.x < n_banned)
        is_mine = count_id(slots, n_slots, row->banned[threadIdx.x] - first, BANNED);
    __syncthreads();
    if (n_history > 64 * THREADS) {
#pragma unroll 1
        for (int i = threadIdx.x; i < n_slots; i += THREADS) {
            if (slots[i] != 0)
                patch(&slots[i], logits[first + i], row);
        }
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; mine != 0; i += THREADS, mine >>= 1) {
            if ((mine & 1) != 0)
                patch(&slots[history[i] - first], logits[history[i]], row);
        }
        if (is_mine)
            slots[row->banned[threadIdx.x] - first] = __float_as_int(-INFINITY);
    }
    __syncthreads();
}

static __device__ inline float patched(float logit, int32_t slot)
{
    return slot != 0 ? __int_as_float(slot) : logit;
}

/* The largest of a warp's ids: key, and ~id so that the lowest id wins. */
static __device__ uint64_t warp_best(const struct view &v, float largest, int at)
{
    uint64_t best = 0;

    if (largest == -INFINITY) { /* or nothing but NaN: look at each */
#pragma unroll 1
        for (int i = threadIdx.x % 32 * 4; i < v.run_len; i += 128)
            for (int j = 0; j < 4; j++)
                best = max(best, (uint64_t)k_sort_key(v.run[i + j]) << 32 |
                                     (0xffffffffU - (uint32_t)(v.first + i + j)));
    } else {
        int j = 0;

        while (j < 3 && !(v.run[at + j] == largest))
            j++;
        best = (uint64_t)k_sort_key(largest) << 32 | (0xffffffffU - (uint32_t)(v.first + at + j));
    }
    __syncwarp();
    return warp_max(best);
}

/* Fill the warp's run; its largest. BATCH loads are on their way at a time. */
static __device__ uint64_t load_run(struct view *v, const float *logits, int n_vocab,
                                    bool is_patched)
{
    bool is_aligned = n_vocab % 4 == 0 && (uintptr_t)logits % 16 == 0;
    float largest = -INFINITY;
    int start = threadIdx.x % 32 * 4, at = start, run_len = v->run_len, first = v->first;
    float *run = v->run;

#pragma unroll 1
    for (int base = start; base < run_len; base += 128 * BATCH) {
        float4 x[BATCH];

        if (is_aligned) {
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                x[b] = load4(logits, base + b * 128 < run_len ? first + base + b * 128 : n_vocab,
                             n_vocab);
        } else {
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                x[b] = load4_any(
                    logits, base + b * 128 < run_len ? first + base + b * 128 : n_vocab, n_vocab);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = base + b * 128;
            float most;

            if (i >= run_len)
                break;
            if (is_patched) {
                int4 slot = *(const int4 *)&run[i];

                x[b] = {patched(x[b].x, slot.x), patched(x[b].y, slot.y), patched(x[b].z, slot.z),
                        patched(x[b].w, slot.w)};
            }
            *(float4 *)&run[i] = x[b];
            most = fmaxf(fmaxf(x[b].x, x[b].y), fmaxf(x[b].z, x[b].w));
            if (most > largest) {
                largest = most;
                at = i;
            }
        }
    }
    __syncwarp();
    v->largest = largest;
    return warp_best(*v, largest, at);
}

/* --- narrow rows ---------------------------------------------------------------------------- */

/* The k-th largest of the warps' largest values, less what division by the temperature may join:
 * two values whose quotients are equal differ by less than two units in the last place. */
static __device__ float find_bound(struct shared_state *s, int k, float temperature)
{
    uint32_t own = (uint32_t)(s->best[threadIdx.x / 4] >> 32);
    int n_larger = 0, n_equal = 0;
    float bound;

#pragma unroll 8
    for (int i = threadIdx.x % 4; i < ALL_WARPS; i += 4) {
        uint32_t key = (uint32_t)(s->best[i] >> 32);

        n_larger += key > own;
        n_equal += key == own;
    }
    for (int i = 1; i < 4; i *= 2) {
        n_larger += __shfl_xor_sync(~0U, n_larger, i);
        n_equal += __shfl_xor_sync(~0U, n_equal, i);
    }
    if (n_larger < k && k <= n_larger + n_equal) /* all that are here have the same key */
        s->bound = own == 0 ? -INFINITY : key_value(own);
    __syncthreads();
    bound = s->bound;
    bound -= fabsf(bound) * 0x1p-21f + temperature * 0x1p-126f;
    return bound == bound ? bound : -INFINITY;
}

/* Push this block's candidates to the first block and its share to all. is_weighed: top_p wants
 * the weight of all ids. */
static __device__ void gather(struct shared_state *s, const struct view &v, float bound,
                              bool is_weighed)
{
    cg::cluster_group cluster = cg::this_cluster();
    struct shared_state *front = cluster.map_shared_rank(s, 0);
    int rank = (int)cluster.block_rank();
    float cut = fmaxf(bound, v.low), sure = bound > v.low ? bound / v.divisor : -INFINITY;
    uint64_t weight = 0, upper = 0;

#pragma unroll 1
    for (int i = threadIdx.x % 32 * 4; i < v.run_len; i += 128) {
        float4 x;

        if (!is_weighed && !(v.largest >= cut))
            break;
        x = get4(&v.run[i]);
        if (!is_weighed && !(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) >= cut))
            continue;
        for (int j = 0; j < 4; j++) {
            float value = pick(x, j);
            uint64_t w = is_weighed ? weight_of(v, value) : 0;

            weight += w;
            if (value >= cut) {
                int n = atomicAdd(&s->own.n_candidates, 1);

                upper += quotient(v, value) > sure ? w : 0;
                if (n < ROOM)
                    front->candidates[rank][n] = {value, v.first + i + j};
            }
        }
    }
    __syncwarp();
    if (is_weighed) {
        weight = warp_sum(weight);
        upper = warp_sum(upper);
        if (threadIdx.x % 32 == 0) {
            atomicAdd((unsigned long long *)&s->own.weight, (unsigned long long)weight);
            atomicAdd((unsigned long long *)&s->own.upper, (unsigned long long)upper);
        }
    }
    __syncthreads();
    if (threadIdx.x < RANKS)
        *cluster.map_shared_rank(&s->shares[rank], threadIdx.x) = s->own;
    __syncwarp();
    cluster.sync();
}

/* Whether the candidates hold all that can be kept; *sum: the weight of all ids. */
static __device__ bool suffice(const struct shared_state *s, const struct k_sample_row *row,
                               bool is_weighed, uint64_t *sum)
{
    uint64_t upper = 0;
    bool fit = true;

    *sum = 0;
    for (int r = 0; r < RANKS; r++) {
        fit = fit && s->shares[r].n_candidates <= ROOM;
        *sum += s->shares[r].weight;
        upper += s->shares[r].upper;
    }
    return fit && (!is_weighed || upper >= k_top_weight(row->top_p, *sum));
}

/* Candidates beside one another, over the slice, which is no longer read; how many. */
static __device__ int line_up(struct finalists *f, const struct shared_state *s,
                              const struct view &v)
{
    const int each = THREADS / RANKS;
    int own = threadIdx.x / each, at = 0, n = 0;

    for (int r = 0; r < RANKS; r++) {
        at += r < own ? s->shares[r].n_candidates : 0;
        n += s->shares[r].n_candidates;
    }
#pragma unroll 1
    for (int i = threadIdx.x % each; i < s->shares[own].n_candidates; i += each) {
        struct candidate c = s->candidates[own][i];

        f->key[at + i] = k_sort_key(quotient(v, c.value));
        f->id[at + i] = c.id;
        f->weight[at + i] = weight_of(v, c.value);
    }
    __syncthreads();
    return n;
}

static __device__ inline uint64_t group_sum(uint64_t x)
{
    for (int i = GROUP / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    return x;
}

/* For each candidate the weight of the larger ones and of those not smaller; the greatest of the
 * latter. Candidates that top_k drops: all bits 1, and 0. A group of lanes a candidate. */
static __device__ uint64_t rank_all(struct finalists *f, int n, int k)
{
    uint64_t kept = 0;

#pragma unroll 1
    for (int base = 0; base < n; base += THREADS / GROUP) {
        int c = base + threadIdx.x / GROUP;
        uint32_t own = f->key[min(c, n - 1)];
        uint64_t larger = 0, upto = 0, n_larger = 0;

        for (int i = threadIdx.x % GROUP; i < n; i += GROUP) {
            uint32_t key = f->key[i];
            uint64_t w = f->weight[i];

            n_larger += key > own;
            larger += key > own ? w : 0;
            upto += key >= own ? w : 0;
        }
        n_larger = group_sum(n_larger);
        larger = group_sum(larger);
        upto = group_sum(upto);
        if (n_larger >= (uint64_t)k) {
            larger = ~(uint64_t)0;
            upto = 0;
        }
        if (c < n && threadIdx.x % GROUP == 0) {
            f->larger[c] = larger;
            f->upto[c] = upto;
        }
        kept = max(kept, upto);
    }
    return kept;
}

/* The candidate in whose share of the running sum of weights, by id, r falls. */
static __device__ void draw(int32_t *id, const struct finalists *f, int n, uint64_t r)
{
#pragma unroll 1
    for (int base = 0; base < n; base += THREADS / GROUP) {
        int c = base + threadIdx.x / GROUP;
        int32_t own = f->id[min(c, n - 1)];
        uint64_t before = 0;

        for (int i = threadIdx.x % GROUP; i < n; i += GROUP)
            before += f->id[i] < own ? f->weight[i] : 0;
        before = group_sum(before);
        if (c < n && threadIdx.x % GROUP == 0 && before <= r && r - before < f->weight[c])
            *id = own;
    }
}

/* The id of a narrow row, or best: by the whole first block. What is kept is the same for equal
 * keys, so the kept weight is the greatest upto of what is kept. sum: what top_p is a part of; 0:
 * of the top_k. */
static __device__ void finish(int32_t *id, struct finalists *f, struct shared_state *s,
                              const struct view &v, const struct k_sample_row *row, uint64_t sum,
                              int32_t best)
{
    int n = line_up(f, s, v);
    uint64_t kept = rank_all(f, n, sum == 0 ? row->top_k : INT_MAX), need;

    kept = block_max(kept, s->reduced[0]); /* and a barrier: weights have been read */
    sum = sum == 0 ? kept : sum;
    if (sum == 0) {
        if (threadIdx.x == 0)
            *id = best;
        return;
    }
    need = row->top_p < 1.0f ? k_top_weight(row->top_p, sum) : ~(uint64_t)0;
    kept = 0;
    for (int c = threadIdx.x; c < n; c += THREADS) {
        if (f->larger[c] < need)
            kept = max(kept, f->upto[c]);
        else
            f->weight[c] = 0;
    }
    __syncwarp();
    kept = block_max(kept, s->reduced[1]);
    draw(id, f, n, k_mul_high(k_random(row->seed, row->position), kept));
}

/* --- wide rows ------------------------------------------------------------------------------ */

/* Each warp's sums to all blocks: sums[turn][cut][warp]. A block may push for its next turn while
 * another still reads this one, not for the one behind it: hence two. */
static __device__ void push_sums(struct shared_state *s, const uint64_t own[CUTS], int turn)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, g = (int)cluster.block_rank() * WARPS + threadIdx.x / 32;

    if (lane < RANKS) {
        uint64_t *to = cluster.map_shared_rank(&s->sums[turn][0][g], lane);

        for (int c = 0; c < CUTS; c++)
            to[c * ALL_WARPS] = own[c];
    }
    __syncwarp();
    cluster.sync();
}

/* The sum over warps below g. */
static __device__ uint64_t sum_below(const uint64_t sums[ALL_WARPS], int g)
{
    uint64_t x = 0;

#pragma unroll 1
    for (int i = threadIdx.x % 32; i < g; i += 32)
        x += sums[i];
    __syncwarp();
    return warp_sum(x);
}

/* Values become z. */
static __device__ void divide_run(struct view *v)
{
#pragma unroll 2
    for (int i = threadIdx.x % 32; i < v->run_len; i += 32)
        v->run[i] = quotient(*v, v->run[i]);
    __syncwarp();
    set_divisor(v, 1.0f);
    v->low = v->top - 23.0f - fabsf(v->top) * 0x1p-20f;
}

/* Where to cut between keys low and high: evenly by value, or by key. */
static __device__ void place_cuts(uint32_t cuts[CUTS], uint32_t low, uint32_t high, int step)
{
    float from = key_value(low), to = key_value(high);
    uint32_t least = low + 1;

    for (int c = 0; c < CUTS; c++) {
        uint32_t key = low + (uint32_t)((uint64_t)(high - low) * (c + 1) / (CUTS + 1));

        if (step < LINEAR)
            key = k_sort_key(from + (to - from) * (float)(c + 1) / (float)(CUTS + 1));
        cuts[c] = least = min(max(key, least), high - 1);
    }
}

/* This warp's count or weight of z at or above each cut and below high. */
static __device__ void weigh_cuts(uint64_t own[CUTS], const struct view &v,
                                  const uint32_t cuts[CUTS], uint32_t high, bool is_count)
{
    float from[CUTS], end = key_value(high);

    for (int c = 0; c < CUTS; c++) {
        from[c] = key_value(cuts[c]);
        own[c] = 0;
    }
#pragma unroll 2
    for (int i = threadIdx.x % 32; i < v.run_len; i += 32) {
        float z = v.run[i];
        uint64_t w;

        if (!(z >= from[0] && z < end))
            continue;
        w = is_count ? 1 : weight_of(v, z);
        own[0] += w;
        for (int c = 1; c < CUTS; c++)
            own[c] += z >= from[c] ? w : 0;
    }
    __syncwarp();
    for (int c = 0; c < CUTS; c++)
        own[c] = warp_sum(own[c]);
}

/* The largest z such that the count, or the weight, of all as large or larger reaches need; the
 * least z that weighs anything when none does. v holds z. The window of keys low .. high - 1
 * holds the threshold; need is what the window must give. */
static __device__ float search(struct shared_state *s, const struct view &v, uint64_t need,
                               bool is_count, int *turn)
{
    uint32_t low = k_sort_key(fmaxf(v.low, v.least)), high = k_sort_key(v.top) + 1;

    for (int step = 0; high - low > 1; step++) { /* at most LINEAR + 16 */
        uint32_t cuts[CUTS], from = low;
        uint64_t own[CUTS], above = 0;

        place_cuts(cuts, low, high, step);
        weigh_cuts(own, v, cuts, high, is_count);
        push_sums(s, own, *turn);
        for (int c = CUTS - 1; c >= 0 && from == low; c--) {
            uint64_t sum = sum_below(s->sums[*turn][c], ALL_WARPS);

            if (sum >= need) {
                from = cuts[c];
            } else {
                high = cuts[c];
                above = sum;
            }
        }
        low = from;
        need -= above;
        *turn ^= 1;
    }
    return key_value(low);
}

/* The weight of this warp's ids; *before: of the ids before, *sum: of all. */
static __device__ uint64_t weigh(struct shared_state *s, const struct view &v, int *turn,
                                 uint64_t *before, uint64_t *sum)
{
    int g = (int)cg::this_cluster().block_rank() * WARPS + threadIdx.x / 32;
    uint64_t own[CUTS] = {0};

#pragma unroll 1
    for (int i = threadIdx.x % 32 * 4; i < v.run_len; i += 128) {
        float4 x = get4(&v.run[i]);

        own[0] += weight_of(v, x.x) + weight_of(v, x.y);
        own[0] += weight_of(v, x.z) + weight_of(v, x.w);
    }
    __syncwarp();
    own[0] = warp_sum(own[0]);
    push_sums(s, own, *turn);
    *before = sum_below(s->sums[*turn][0], g);
    *sum = sum_below(s->sums[*turn][0], ALL_WARPS);
    *turn ^= 1;
    return own[0];
}

/* The first id at which the running sum of weights exceeds r, by the warp in whose run it is. */
static __device__ void locate(int32_t *id, const struct view &v, uint64_t before, uint64_t r)
{
    int lane = threadIdx.x % 32;

#pragma unroll 1
    for (int base = 0; base < v.run_len; base += 32) {
        uint64_t own = base + lane < v.run_len ? weight_of(v, v.run[base + lane]) : 0, upto = own;
        unsigned int hits;

        __syncwarp();
        for (int i = 1; i < 32; i *= 2) {
            uint64_t lower = __shfl_up_sync(~0U, upto, i);

            upto += lane >= i ? lower : 0;
        }
        hits = __ballot_sync(~0U, before + upto > r);
        if (hits != 0) {
            if (lane == 0)
                *id = v.first + base + __ffs(hits) - 1;
            return;
        }
        before += __shfl_sync(~0U, upto, 31);
    }
}

/* Apart from the others, whose registers it would take. */
static __device__ __noinline__ void sample_wide(int32_t *id, struct shared_state *s, struct view v,
                                                const struct k_sample_row *row, int n_vocab,
                                                int32_t best)
{
    bool has_k = row->top_k > 0 && row->top_k < n_vocab;
    uint64_t before, sum, own, r;
    int turn = 0;

    if (has_k || row->top_p < 1.0f)
        divide_run(&v);
    if (has_k)
        v.least = search(s, v, row->top_k, true, &turn);
    own = weigh(s, v, &turn, &before, &sum);
    if (sum != 0 && row->top_p < 1.0f) {
        v.least = search(s, v, k_top_weight(row->top_p, sum), false, &turn);
        own = weigh(s, v, &turn, &before, &sum);
    }
    if (sum == 0) {
        if (cg::this_cluster().block_rank() == 0 && threadIdx.x == 0)
            *id = best;
        return;
    }
    r = k_mul_high(k_random(row->seed, row->position), sum);
    if (before <= r && r - before < own) /* true for one warp */
        locate(id, v, before, r);
}

/* --- a row ---------------------------------------------------------------------------------- */

/* Every warp's largest to all blocks; then the row's. */
static __device__ uint64_t share_best(struct shared_state *s, uint64_t own)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, g = (int)cluster.block_rank() * WARPS + threadIdx.x / 32;
    uint64_t best = 0;

    if (lane < RANKS)
        *cluster.map_shared_rank(&s->best[g], lane) = own;
    __syncwarp();
    cluster.sync();
    for (int i = lane; i < ALL_WARPS; i += 32)
        best = max(best, s->best[i]);
    return warp_max(best);
}

static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 3)
    sample_kernel(int32_t *ids, const float *logits, int n_vocab, int run_len,
                  const struct k_sample_row *rows, const int32_t *history)
{
    extern __shared__ __align__(16) float slice[];
    __shared__ struct shared_state s;
    cg::cluster_group cluster = cg::this_cluster();
    int at = blockIdx.x / RANKS, rank = (int)cluster.block_rank(), warp = threadIdx.x / 32;
    const struct k_sample_row *row = &rows[at];
    bool is_patched, is_weighed;
    struct view v = {slice + warp * run_len, (rank * WARPS + warp) * run_len, run_len};
    uint64_t best, sum;
    int32_t best_id;
    int k;

    logits += (size_t)at * n_vocab;
    prefetch_run(v, logits, n_vocab);
    is_patched = row->n_history > 0 || row->n_banned > 0;
    if (threadIdx.x == 0)
        s.own = {0, 0, 0};
    __syncwarp();
    cluster.barrier_arrive(); /* nothing is pushed before all blocks have begun */
    if (is_patched)
        patch_slots((int32_t *)slice, rank * WARPS * run_len, WARPS * run_len, logits, row,
                    history);
    best = load_run(&v, logits, n_vocab, is_patched);
    cluster.barrier_wait();
    best = share_best(&s, best);
    best_id = (int32_t)(0xffffffffU - (uint32_t)best);
    v.divisor = row->temperature;
    v.top = key_value((uint32_t)(best >> 32)) / v.divisor;
    if (!(v.divisor > 0.0f) || !(fabsf(v.top) < INFINITY)) { /* greedy, or all weights are 0 */
        if (rank == 0 && threadIdx.x == 0)
            ids[at] = best_id;
        return;
    }
    v.low = (v.top - 23.0f - fabsf(v.top) * 0x1p-18f) * v.divisor;
    if (!(v.divisor > 1e-20f && v.divisor < 1e20f))
        v.low = -INFINITY;
    set_divisor(&v, v.divisor);
    v.min_weight = k_min_weight(row->min_p);
    v.least = -INFINITY;
    is_weighed = row->top_k <= 0 || row->top_k >= n_vocab;
    k = is_weighed ? NUCLEUS : row->top_k;
    if (k <= ALL_WARPS && (!is_weighed || row->top_p < 1.0f)) {
        gather(&s, v, find_bound(&s, k, v.divisor), is_weighed);
        if (suffice(&s, row, is_weighed, &sum)) {
            if (rank == 0)
                finish(&ids[at], (struct finalists *)slice, &s, v, row, sum, best_id);
            return;
        }
    }
    sample_wide(&ids[at], &s, v, row, n_vocab, best_id);
}

int k_sample(int32_t *ids, const float *logits, int n_rows, int n_vocab,
             const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    int run_len = (n_vocab + 4 * ALL_WARPS - 1) / (4 * ALL_WARPS) * 4;
    size_t bytes = (size_t)WARPS * run_len * sizeof(float);

    if (n_vocab > K_SAMPLE_VOCAB_MAX)
        return -1;
    bytes = bytes > sizeof(struct finalists) ? bytes : sizeof(struct finalists);
    if (cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH(sample_kernel, n_rows * RANKS, THREADS, bytes, stream, ids, logits, n_vocab,
                    run_len, rows, history);
}
