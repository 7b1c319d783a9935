/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling. ref_sample() in kernels.h has the definitions. Many rows that need only their largest
 * logits are sampled by sample_top.cu; this comment is about all others.
 *
 * Split: a cluster of RANKS blocks of WARPS warps per row. Warp g of a row's ALL_WARPS owns the ids
 * g * run_len .. (g + 1) * run_len - 1 in all passes. Device memory is read once: a row's adjusted
 * logits stay in the shared memory of its cluster. The count of an id in the history is first in
 * the slot that its value takes later, so there is no array of n_vocab counts.
 *
 * Shared memory of a block: its slice of the values, WARPS * run_len * 4 bytes (64 KB at 128256,
 * three blocks per SM), and struct shared_state, 10 KB. Blocks exchange results by writing to each
 * other's shared memory before a cluster barrier; no block reads remotely, so each may end whatever
 * the others do.
 *
 * Paths of a row after its largest value is known (one barrier):
 *   greedy     done.
 *   narrow     top_k <= ALL_WARPS, or top_p alone: the k-th largest of the warps' maxima is at
 *              most the k-th largest value, so the values that reach it contain all that can be
 *              kept: some 60 for top_k 50 of evenly distributed logits. The first block gets them
 *              (one barrier) and finishes alone, comparing all with all.
 *   wide       the others, and rows with more candidates than there is room for: thresholds by
 *              search, each step counting or weighing above CUTS cuts in all blocks (one
 *              barrier), then a sum and the draw.
 * All sums are of integers, so the result equals the reference's whatever the order of addition.
 *
 * H200, us for 1, 8, 64 and 256 rows of 128256 (bench_sample): temperature 22 25 51 146, top_k 500
 * 63 65 178 571, top_p 25 26 59 183 (1140 when nearly all ids are kept); top_k 50 16 16 34, and
 * with top_p and penalties 20 21 43; greedy 9 10 21: 256 rows of these are sampled by
 * sample_top.cu. One block per row that reads about ten times took 3 to 4 ms for each but the
 * greedy. */
#include <cooperative_groups.h>
#include <limits.h>

#include "kernels/choice.h"
#include "kernels/sample.cuh"

namespace cg = cooperative_groups;

#define RANKS     8
#define THREADS   512
#define WARPS     (THREADS / 32)
#define ALL_WARPS (RANKS * WARPS)
#define ROOM      128 /* candidates per block */
#define CUTS      3
#define BATCH     4 /* 16-byte loads of a thread in flight */
/* Of the warps' largest values: the bound of candidates for top_p alone. */
#define NUCLEUS 96
#define LINEAR  10      /* steps of a search that cut evenly by value; later ones cut by key */
#define BANNED  INT_MIN /* in a slot that counts */
/* From this many rows on one block per row is faster, for the rows that it supports. */
#define TOP_ROWS 96

static_assert(RANKS * ROOM <= 2 * THREADS, "two candidates a thread");
static_assert(ALL_WARPS <= THREADS && ALL_WARPS % 32 == 0, "warps are looked at one a thread");

struct candidate {
    float value;
    int32_t id;
};

/* The result of a block for its ids. */
struct share {
    uint64_t weight; /* of all its ids */
    uint64_t upper;  /* of ids that are certainly larger than all that are not candidates */
    int32_t n_candidates;
};

struct shared_state {
    union {
        struct candidate candidates[RANKS][ROOM]; /* sent to the first block */
        uint64_t sums[2][CUTS][ALL_WARPS];        /* sent to all, alternately */
    };
    uint64_t best[ALL_WARPS];   /* sent to all: key and ~id of a warp's largest value */
    struct share shares[RANKS]; /* sent to all */
    struct share own;
    uint64_t reduced[2][WARPS];
    float bound;
};

/* Most of the first block's slice, when it finishes a narrow row. */
struct finalists {
    uint64_t weight[RANKS * ROOM];
    uint32_t key[RANKS * ROOM];
    int32_t id[RANKS * ROOM];
};

/* A warp's view of its row. */
struct view {
    float *run;    /* its run of values, in shared memory */
    int first;     /* id of run[0] */
    int run_len;   /* a multiple of 4 */
    float divisor; /* temperature; 1 when the run holds z */
    float top;     /* the largest z */
    float low;     /* values below have no weight */
    uint64_t min_weight;
    float least; /* z that the filters have kept so far */
};

static __device__ inline float4 sample_get4(const float *p)
{
    return *(const float4 *)p;
}

static __device__ inline float sample_pick(const float4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

/* The weight of a value, or 0 if a filter has removed it. v.low saves the exponential for values
 * that weigh nothing. */
static __device__ inline uint64_t sample_weight_of(const struct view &v, float value)
{
    float scaled;
    uint64_t weight;

    if (!(value >= v.low))
        return 0;
    scaled = value / v.divisor;
    weight = k_exp_fixed(scaled - v.top);
    return weight >= v.min_weight && scaled >= v.least ? weight : 0;
}

/* --- values --------------------------------------------------------------------------------- */

/* Four logits; NaN, which is never kept, after the end. */
static __device__ inline float4 sample_load4(const float *logits, int id, int n_vocab,
                                             bool is_aligned)
{
    float4 four;

    if (is_aligned && id < n_vocab)
        return __ldcs((const float4 *)(logits + id));
    four.x = id < n_vocab ? logits[id] : NAN;
    four.y = id + 1 < n_vocab ? logits[id + 1] : NAN;
    four.z = id + 2 < n_vocab ? logits[id + 2] : NAN;
    four.w = id + 3 < n_vocab ? logits[id + 3] : NAN;
    return four;
}

/* Count the history, and mark banned ids, in this block's slice. */
static __device__ void sample_count_history(int32_t *slots, int first, int n_slots,
                                            const struct k_sample_row *row, const int32_t *history)
{
    for (int i = threadIdx.x * 4; i < n_slots; i += THREADS * 4)
        *(int4 *)&slots[i] = make_int4(0, 0, 0, 0);
    __syncthreads();
    for (int i = threadIdx.x; i < row->n_history; i += THREADS) {
        int at = history[row->history_at + i] - first;

        if (at >= 0 && at < n_slots) {
            if (i < row->n_prompt)
                atomicOr(&slots[at], 1);
            else
                atomicAdd(&slots[at], 2);
        }
    }
    if ((int)threadIdx.x < row->n_banned) {
        int at = row->banned[threadIdx.x] - first;

        if (at >= 0 && at < n_slots)
            atomicOr(&slots[at], BANNED);
    }
    __syncthreads();
}

/* The logit after penalties; a banned id gets -infinity. */
static __device__ inline float sample_adjusted(float logit, int32_t count,
                                               const struct k_sample_row *row)
{
    if (count == 0)
        return logit;
    if ((count & BANNED) != 0)
        return -INFINITY;
    return k_penalise(logit, count, row->sampling.repetition_penalty,
                      row->sampling.frequency_penalty, row->sampling.presence_penalty);
}

/* Rarely needed: kept out of the loop that loads. */
static __device__ __noinline__ float4 sample_adjusted4(float4 x, int4 count,
                                                       const struct k_sample_row *row)
{
    x.x = sample_adjusted(x.x, count.x, row);
    x.y = sample_adjusted(x.y, count.y, row);
    x.z = sample_adjusted(x.z, count.z, row);
    x.w = sample_adjusted(x.w, count.w, row);
    return x;
}

/* The largest of a warp's ids: its key, and ~id so that the lowest id wins. */
static __device__ uint64_t sample_warp_best(const struct view &v, float largest, int at)
{
    uint64_t best = 0;

    if (largest == -INFINITY) { /* Or nothing but NaN: look at each. */
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
    return sample_warp_max(best);
}

/* Load the warp's run, with BATCH loads in flight; returns its largest value. */
static __device__ uint64_t sample_load_run(const struct view &v, const float *logits, int n_vocab,
                                           const struct k_sample_row *row, bool is_adjusted)
{
    bool is_aligned = n_vocab % 4 == 0 && (uintptr_t)logits % 16 == 0;
    float largest = -INFINITY;
    int start = threadIdx.x % 32 * 4, at = start;

#pragma unroll 1
    for (int base = start; base < v.run_len; base += 128 * BATCH) {
        float4 fours[BATCH];

#pragma unroll
        for (int load_idx = 0; load_idx < BATCH; load_idx++)
            fours[load_idx] = sample_load4(
                logits,
                base + load_idx * 128 < v.run_len ? v.first + base + load_idx * 128 : n_vocab,
                n_vocab, is_aligned);
#pragma unroll
        for (int load_idx = 0; load_idx < BATCH; load_idx++) {
            int i = base + load_idx * 128;
            float most;

            if (i >= v.run_len)
                break;
            if (is_adjusted) {
                int4 count = *(const int4 *)&v.run[i];

                if ((count.x | count.y | count.z | count.w) != 0)
                    fours[load_idx] = sample_adjusted4(fours[load_idx], count, row);
            }
            *(float4 *)&v.run[i] = fours[load_idx];
            most = fmaxf(fmaxf(fours[load_idx].x, fours[load_idx].y),
                         fmaxf(fours[load_idx].z, fours[load_idx].w));
            if (most > largest) {
                largest = most;
                at = i;
            }
        }
    }
    __syncwarp();
    return sample_warp_best(v, largest, at);
}

/* --- narrow rows ------------------------------------------------------------------------------ */

/* The k-th largest of the warps' maxima, less the difference that division by the temperature can
 * remove: two values whose quotients are equal differ by less than two units in the last place. */
static __device__ float sample_find_bound(struct shared_state *s, int k, float temperature)
{
    float bound;

    if (threadIdx.x < ALL_WARPS) {
        uint32_t own = (uint32_t)(s->best[threadIdx.x] >> 32);
        int n_larger = 0, n_equal = 0;

        for (int i = 0; i < ALL_WARPS; i++) {
            uint32_t key = (uint32_t)(s->best[i] >> 32);

            n_larger += key > own;
            n_equal += key == own;
        }
        /* All threads that come here have the same key. */
        if (n_larger < k && k <= n_larger + n_equal)
            s->bound = own == 0 ? -INFINITY : sample_key_value(own);
    }
    __syncthreads();
    bound = sample_below_equals(s->bound, temperature);
    return bound == bound ? bound : -INFINITY;
}

/* Send this block's candidates to the first block, and its share to all. is_weighed: top_p needs
 * the weight of all ids. */
static __device__ void sample_gather(struct shared_state *s, const struct view &v, float bound,
                                     bool is_weighed)
{
    cg::cluster_group cluster = cg::this_cluster();
    struct shared_state *front = cluster.map_shared_rank(s, 0);
    int rank = (int)cluster.block_rank();
    float cut = fmaxf(bound, v.low), sure = bound > v.low ? bound / v.divisor : -INFINITY;
    uint64_t weight = 0, upper = 0;

    for (int i = threadIdx.x % 32 * 4; i < v.run_len; i += 128) {
        float4 four = sample_get4(&v.run[i]);

        if (!is_weighed && !(fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) >= cut))
            continue;
        for (int j = 0; j < 4; j++) {
            float value = sample_pick(four, j);
            uint64_t own_weight = is_weighed ? sample_weight_of(v, value) : 0;

            weight += own_weight;
            if (value >= cut) {
                int n = atomicAdd(&s->own.n_candidates, 1);

                upper += value / v.divisor > sure ? own_weight : 0;
                if (n < ROOM)
                    front->candidates[rank][n] = {value, v.first + i + j};
            }
        }
    }
    __syncwarp();
    if (is_weighed) {
        weight = sample_warp_sum(weight);
        upper = sample_warp_sum(upper);
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

/* Do the candidates contain all ids that can be kept? *sum: the weight of all ids. */
static __device__ bool sample_suffice(const struct shared_state *s, const struct k_sample_row *row,
                                      bool is_weighed, uint64_t *sum)
{
    uint64_t upper = 0;
    bool fit = true;

    *sum = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        fit = fit && s->shares[rank].n_candidates <= ROOM;
        *sum += s->shares[rank].weight;
        upper += s->shares[rank].upper;
    }
    return fit && (!is_weighed || upper >= k_top_weight(row->sampling.top_p, *sum));
}

/* Copy the candidates into one list, over the slice, which is not read any more; returns how
 * many. */
static __device__ int sample_line_up(struct finalists *f, const struct shared_state *s,
                                     const struct view &v)
{
    int n = 0;

    for (int rank = 0; rank < RANKS; rank++) {
        int n_here = s->shares[rank].n_candidates;

        if ((int)threadIdx.x < n_here) {
            struct candidate candidate = s->candidates[rank][threadIdx.x];
            float scaled = candidate.value / v.divisor;

            f->key[n + threadIdx.x] = k_sort_key(scaled);
            f->id[n + threadIdx.x] = candidate.id;
            f->weight[n + threadIdx.x] = sample_weight_of(v, candidate.value);
        }
        n += n_here;
    }
    __syncthreads();
    return n;
}

/* Select the id of a narrow row, or `best` if nothing has weight; by the whole first block. larger:
 * the weight of larger candidates, upto: of those not smaller. Candidates with equal keys are kept
 * together, so the kept weight is the greatest upto of those kept. sum: the weight of which top_p
 * is a fraction, 0: that of the top_k. */
static __device__ void sample_finish(int32_t *id, struct finalists *f, struct shared_state *s,
                                     const struct view &v, const struct k_sample_row *row,
                                     uint64_t sum, int32_t best)
{
    int n = sample_line_up(f, s, v), k = sum == 0 ? row->sampling.top_k : INT_MAX;
    uint64_t larger[2] = {0, 0}, upto[2] = {0, 0}, kept = 0, r, need;
    bool keep[2];

    for (int nth = 0; nth < 2; nth++) {
        int idx = (int)threadIdx.x + nth * THREADS, n_larger = 0;
        uint32_t own = idx < n ? f->key[idx] : 0;

        for (int i = 0; i < n && idx < n; i++) {
            n_larger += f->key[i] > own;
            larger[nth] += f->key[i] > own ? f->weight[i] : 0;
            upto[nth] += f->key[i] >= own ? f->weight[i] : 0;
        }
        keep[nth] = idx < n && n_larger < k;
        kept = max(kept, keep[nth] ? upto[nth] : 0);
    }
    kept = sample_block_max<WARPS>(kept,
                                   s->reduced[0]); /* and a barrier: all weights have been read */
    sum = sum == 0 ? kept : sum;
    if (sum == 0) {
        if (threadIdx.x == 0)
            *id = best;
        return;
    }
    need = row->sampling.top_p < 1.0f ? k_top_weight(row->sampling.top_p, sum) : ~(uint64_t)0;
    kept = 0;
    for (int nth = 0; nth < 2; nth++) {
        int idx = (int)threadIdx.x + nth * THREADS;

        keep[nth] = keep[nth] && larger[nth] < need;
        kept = max(kept, keep[nth] ? upto[nth] : 0);
        if (idx < n && !keep[nth])
            f->weight[idx] = 0;
    }
    kept = sample_block_max<WARPS>(kept, s->reduced[1]);
    r = k_mul_high(k_random(row->sampling.seed, row->position), kept);
    for (int nth = 0; nth < 2; nth++) {
        int idx = (int)threadIdx.x + nth * THREADS;
        uint64_t before = 0;

        if (!keep[nth] || f->weight[idx] == 0)
            continue;
        for (int i = 0; i < n; i++)
            before += f->id[i] < f->id[idx] ? f->weight[i] : 0;
        if (before <= r && r - before < f->weight[idx])
            *id = f->id[idx];
    }
}

/* --- wide rows ------------------------------------------------------------------------------ */

/* Send each warp's sums to all blocks: sums[turn][cut][warp]. A block may send for its next turn
 * while another still reads this one, but not for the turn after it: hence two. */
static __device__ void sample_push_sums(struct shared_state *s, const uint64_t own[CUTS], int turn)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp_idx = (int)cluster.block_rank() * WARPS + threadIdx.x / 32;

    if (lane < RANKS) {
        uint64_t *to = cluster.map_shared_rank(&s->sums[turn][0][warp_idx], lane);

        for (int idx = 0; idx < CUTS; idx++)
            to[idx * ALL_WARPS] = own[idx];
    }
    __syncwarp();
    cluster.sync();
}

/* The sum over warps below g. */
static __device__ uint64_t sample_sum_below(const uint64_t sums[ALL_WARPS], int g)
{
    uint64_t x = 0;

    for (int i = threadIdx.x % 32; i < g; i += 32)
        x += sums[i];
    __syncwarp();
    return sample_warp_sum(x);
}

/* Replace values by z. */
static __device__ void sample_divide_run(struct view *v)
{
    for (int i = threadIdx.x % 32; i < v->run_len; i += 32)
        v->run[i] = v->run[i] / v->divisor;
    __syncwarp();
    v->divisor = 1.0f;
    v->low = v->top - 23.0f - fabsf(v->top) * 0x1p-20f;
}

/* Place the cuts between keys low and high: evenly by value, or by key. */
static __device__ void sample_place_cuts(uint32_t cuts[CUTS], uint32_t low, uint32_t high, int step)
{
    float from = sample_key_value(low), to = sample_key_value(high);
    uint32_t least = low + 1;

    for (int idx = 0; idx < CUTS; idx++) {
        uint32_t key = low + (uint32_t)((uint64_t)(high - low) * (idx + 1) / (CUTS + 1));

        if (step < LINEAR)
            key = k_sort_key(from + (to - from) * (float)(idx + 1) / (float)(CUTS + 1));
        cuts[idx] = least = min(max(key, least), high - 1);
    }
}

/* This warp's count or weight of z from each cut up to high. */
static __device__ void sample_weigh_cuts(uint64_t own[CUTS], const struct view &v,
                                         const uint32_t cuts[CUTS], uint32_t high, bool is_count)
{
    float from[CUTS], end = sample_key_value(high);

    for (int idx = 0; idx < CUTS; idx++) {
        from[idx] = sample_key_value(cuts[idx]);
        own[idx] = 0;
    }
    for (int i = threadIdx.x % 32; i < v.run_len; i += 32) {
        float scaled = v.run[i];
        uint64_t weight;

        if (!(scaled >= from[0] && scaled < end))
            continue;
        weight = is_count ? 1 : sample_weight_of(v, scaled);
        own[0] += weight;
        for (int idx = 1; idx < CUTS; idx++)
            own[idx] += scaled >= from[idx] ? weight : 0;
    }
    __syncwarp();
    for (int idx = 0; idx < CUTS; idx++)
        own[idx] = sample_warp_sum(own[idx]);
}

/* The largest z such that the count, or the weight, of all that are as large reaches need; the
 * least z that has weight when none does. v holds z. The interval of keys low .. high - 1 contains
 * the threshold; need is the part that the interval must give. */
static __device__ float sample_search(struct shared_state *s, const struct view &v, uint64_t need,
                                      bool is_count, int *turn)
{
    uint32_t low = k_sort_key(fmaxf(v.low, v.least)), high = k_sort_key(v.top) + 1;

    for (int step = 0; high - low > 1; step++) { /* at most LINEAR + 16 steps */
        uint32_t cuts[CUTS], from = low;
        uint64_t own[CUTS], above = 0;

        sample_place_cuts(cuts, low, high, step);
        sample_weigh_cuts(own, v, cuts, high, is_count);
        sample_push_sums(s, own, *turn);
        for (int idx = CUTS - 1; idx >= 0 && from == low; idx--) {
            uint64_t sum = sample_sum_below(s->sums[*turn][idx], ALL_WARPS);

            if (sum >= need) {
                from = cuts[idx];
            } else {
                high = cuts[idx];
                above = sum;
            }
        }
        low = from;
        need -= above;
        *turn ^= 1;
    }
    return sample_key_value(low);
}

/* The weight of this warp's ids; *before: of the ids before, *sum: of all. */
static __device__ uint64_t sample_weigh(struct shared_state *s, const struct view &v, int *turn,
                                        uint64_t *before, uint64_t *sum)
{
    int warp_idx = (int)cg::this_cluster().block_rank() * WARPS + threadIdx.x / 32;
    uint64_t own[CUTS] = {0};

    for (int i = threadIdx.x % 32 * 4; i < v.run_len; i += 128) {
        float4 four = sample_get4(&v.run[i]);

        own[0] += sample_weight_of(v, four.x) + sample_weight_of(v, four.y);
        own[0] += sample_weight_of(v, four.z) + sample_weight_of(v, four.w);
    }
    __syncwarp();
    own[0] = sample_warp_sum(own[0]);
    sample_push_sums(s, own, *turn);
    *before = sample_sum_below(s->sums[*turn][0], warp_idx);
    *sum = sample_sum_below(s->sums[*turn][0], ALL_WARPS);
    *turn ^= 1;
    return own[0];
}

/* The first id at which the running sum of weights exceeds r, by the warp that has it. */
static __device__ void sample_locate(int32_t *id, const struct view &v, uint64_t before, uint64_t r)
{
    int lane = threadIdx.x % 32;

    for (int base = 0; base < v.run_len; base += 32) {
        uint64_t own = base + lane < v.run_len ? sample_weight_of(v, v.run[base + lane]) : 0,
                 upto = own;
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

/* Thresholds of top_k, then of top_p, then the draw. Every warp of the cluster comes to the same
 * threshold, because all have the same sums. */
static __device__ void sample_wide(int32_t *id, struct shared_state *s, struct view *v,
                                   const struct k_sample_row *row, int n_vocab, int32_t best)
{
    bool has_k = row->sampling.top_k > 0 && row->sampling.top_k < n_vocab;
    uint64_t before, sum, own, r;
    int turn = 0;

    if (has_k || row->sampling.top_p < 1.0f)
        sample_divide_run(v);
    if (has_k)
        v->least = sample_search(s, *v, row->sampling.top_k, true, &turn);
    own = sample_weigh(s, *v, &turn, &before, &sum);
    if (sum != 0 && row->sampling.top_p < 1.0f) {
        v->least = sample_search(s, *v, k_top_weight(row->sampling.top_p, sum), false, &turn);
        own = sample_weigh(s, *v, &turn, &before, &sum);
    }
    if (sum == 0) {
        if (cg::this_cluster().block_rank() == 0 && threadIdx.x == 0)
            *id = best;
        return;
    }
    r = k_mul_high(k_random(row->sampling.seed, row->position), sum);
    if (before <= r && r - before < own) /* true for one warp */
        sample_locate(id, *v, before, r);
}

/* --- a row ---------------------------------------------------------------------------------- */

/* Send every warp's largest value to all blocks; returns the row's. */
static __device__ uint64_t sample_share_best(struct shared_state *s, uint64_t own)
{
    cg::cluster_group cluster = cg::this_cluster();
    int lane = threadIdx.x % 32, warp_idx = (int)cluster.block_rank() * WARPS + threadIdx.x / 32;
    uint64_t best = 0;

    if (lane < RANKS)
        *cluster.map_shared_rank(&s->best[warp_idx], lane) = own;
    __syncwarp();
    cluster.sync();
    for (int i = lane; i < ALL_WARPS; i += 32)
        best = max(best, s->best[i]);
    return sample_warp_max(best);
}

/* only_left: the previous kernel has sampled the rows that it supports. */
static __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 3)
    sample_kernel(int32_t *ids, const float *logits, int n_vocab, int run_len,
                  const struct k_sample_row *rows, const int32_t *history, bool only_left)
{
    extern __shared__ __align__(16) float slice[];
    __shared__ struct shared_state s;
    cg::cluster_group cluster = cg::this_cluster();
    int at = blockIdx.x / RANKS, rank = (int)cluster.block_rank(), warp = threadIdx.x / 32;
    const struct k_sample_row *row = &rows[at];
    bool is_adjusted, is_weighed;
    struct view view = {slice + warp * run_len, (rank * WARPS + warp) * run_len, run_len};
    uint64_t best, sum;
    int top_k;

    if (only_left) {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        if (ids[at] != SAMPLE_LEFT)
            return;
    }
    is_adjusted = row->n_history > 0 || row->n_banned > 0;
    if (threadIdx.x == 0)
        s.own = {0, 0, 0};
    __syncwarp();
    cluster.barrier_arrive(); /* nothing is sent before all blocks have begun */
    if (is_adjusted)
        sample_count_history((int32_t *)slice, rank * WARPS * run_len, WARPS * run_len, row,
                             history);
    best = sample_load_run(view, logits + (size_t)at * n_vocab, n_vocab, row, is_adjusted);
    cluster.barrier_wait();
    best = sample_share_best(&s, best);
    view.divisor = row->sampling.temperature;
    view.top = sample_key_value((uint32_t)(best >> 32)) / view.divisor;
    if (!(view.divisor > 0.0f) || !(fabsf(view.top) < INFINITY)) { /* greedy, or no weight at all */
        if (rank == 0 && threadIdx.x == 0)
            ids[at] = sample_best_id(best);
        return;
    }
    view.low = (view.top - 23.0f - fabsf(view.top) * 0x1p-18f) * view.divisor;
    if (!(view.divisor > 1e-20f && view.divisor < 1e20f))
        view.low = -INFINITY;
    view.min_weight = k_min_weight(row->sampling.min_p);
    view.least = -INFINITY;
    is_weighed = row->sampling.top_k <= 0 || row->sampling.top_k >= n_vocab;
    top_k = is_weighed ? NUCLEUS : row->sampling.top_k;
    if (top_k <= ALL_WARPS && (!is_weighed || row->sampling.top_p < 1.0f)) {
        sample_gather(&s, view, sample_find_bound(&s, top_k, view.divisor), is_weighed);
        if (sample_suffice(&s, row, is_weighed, &sum)) {
            if (rank == 0)
                sample_finish(&ids[at], (struct finalists *)slice, &s, view, row, sum,
                              sample_best_id(best));
            return;
        }
    }
    sample_wide(&ids[at], &s, &view, row, n_vocab, sample_best_id(best));
}

/* With many rows, sample_top() goes first and marks the rows that it leaves; this kernel is
 * launched in any case, since the host does not know whether any are left. */
int k_sample_sm90(int32_t *ids, const float *logits, int n_rows, int n_vocab,
                  const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    int run_len = (n_vocab + 4 * ALL_WARPS - 1) / (4 * ALL_WARPS) * 4, left = 1;
    size_t bytes = (size_t)WARPS * run_len * sizeof(float);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;

    if (n_vocab > K_SAMPLE_VOCAB_MAX)
        return -1;
    bytes = bytes > sizeof(struct finalists) ? bytes : sizeof(struct finalists);
    if (cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    if (n_rows >= TOP_ROWS)
        left = sample_top(ids, logits, n_rows, n_vocab, rows, history, stream);
    if (left < 0)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = n_rows * RANKS;
    config.blockDim = THREADS;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = left == 0;
    return cudaLaunchKernelEx(&config, sample_kernel, ids, logits, n_vocab, run_len, rows, history,
                              left == 0) == cudaSuccess
               ? 0
               : -1;
}
