/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a token's experts from its logits, by a warp (experts_route.cu).
 *
 *   logits -> scores -> keys in the order of the scores -> n_used times the largest -> weights
 *
 * A lane has up to K_EXPERTS_MAX / 32 experts in registers and knows the best of them. So a slot is
 * two reductions over the warp, and only the lane whose expert is taken looks for its next one. */
#ifndef QUIRE_KERNELS_EXPERTS_CHOOSE_CUH
#define QUIRE_KERNELS_EXPERTS_CHOOSE_CUH

#include "kernels/experts.cuh"

struct route_args {
    struct k_mixing m;
    struct k_router r;
    const k_bf16 *x;
    const int32_t *seq, *kv_len; /* NULL: all tokens are real */
    struct k_half_normed norm;   /* sums NULL: x is normed */
    int n, dim, n_own, first;
    int n_logits; /* of a token: of its experts, then of r.shared_switch */
    int slice;    /* elements of a slice: whole chunks */
    int high;     /* experts of a tile that are computed, 1 .. TILE: the others are these again */
};

/* A number as a key of the same order: NaN is 1, less than all numbers; 0 is free for "taken". */
static __device__ inline uint32_t route_key_of(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 becomes 0 */

    if (x != x)
        return 1;
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/* The number of a key; NaN's is -infinity. */
static __device__ inline float route_number_of(uint32_t key)
{
    if (key <= 1)
        return -INFINITY;
    return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

static __device__ inline float route_warp_sum(float x)
{
    for (int apart = 16; apart > 0; apart /= 2)
        x += __shfl_xor_sync(~0U, x, apart);
    return x;
}

static __device__ inline float route_warp_max(float x)
{
    for (int apart = 16; apart > 0; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0U, x, apart));
    return x;
}

/* Take the experts of groups that do not take part out of the keys. Lane g has group g. */
static __device__ inline void route_close_groups(uint32_t *keys, const struct k_router &r)
{
    int size = r.n_experts / r.n_groups, lane = threadIdx.x % 32;
    uint32_t first = 0, second = 0, open = 0, own = 0;

    if (lane < r.n_groups) {
        for (int i = 0; i < size; i++) {
            uint32_t key = keys[lane * size + i];

            second = key > first ? first : key > second ? key : second;
            first = key > first ? key : first;
        }
        own = route_key_of(r.group_best > 1 && size > 1
                               ? route_number_of(first) + route_number_of(second)
                               : route_number_of(first));
    }
    for (int i = 0; i < r.n_groups_used; i++) {
        uint32_t best = __reduce_max_sync(~0U, (open >> lane & 1) != 0 ? 0 : own);
        uint32_t group = __reduce_min_sync(
            ~0U, own == best && (open >> lane & 1) == 0 && lane < r.n_groups ? lane : 31U);

        open |= 1U << group;
    }
    __syncwarp();
    for (int i = lane; i < r.n_experts; i += 32) {
        if ((open >> (i / size) & 1) == 0)
            keys[i] = 0;
    }
    __syncwarp();
}

/* A token's experts in the registers of a warp: lane l has l, l + 32, ... Keys are 0 where an
 * expert is taken or closed, and past the last one. */
template <int EACH> struct warp_choices {
    uint32_t keys[EACH];
    float scores[EACH];
    uint32_t best;
    int at; /* best is keys[at], the first of its equals */
};

template <int EACH> static __device__ inline void route_find_best(warp_choices<EACH> &w)
{
    w.best = w.keys[0];
    w.at = 0;
#pragma unroll
    for (int i = 1; i < EACH; i++) {
        w.at = w.keys[i] > w.best ? i : w.at;
        w.best = max(w.best, w.keys[i]);
    }
}

/* The expert with the largest key of the warp; the lowest among equals. */
template <int EACH> static __device__ inline int route_warp_best(const warp_choices<EACH> &w)
{
    uint32_t all = __reduce_max_sync(~0U, w.best), own = w.at * 32 + threadIdx.x % 32;

    return (int)__reduce_min_sync(~0U, w.best == all ? own : ~0U);
}

template <int EACH>
static __device__ inline float route_warp_score(const warp_choices<EACH> &w, int expert)
{
    float score = w.scores[0];

#pragma unroll
    for (int i = 1; i < EACH; i++)
        score = expert / 32 == i ? w.scores[i] : score;
    return __shfl_sync(~0U, score, expert % 32);
}

template <int EACH> static __device__ inline void route_take(warp_choices<EACH> &w, int expert)
{
    if ((int)(threadIdx.x % 32) != expert % 32)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        w.keys[i] = expert / 32 == i ? 0 : w.keys[i];
    route_find_best(w);
}

/* K_SCORE_MIXER: the weight of the largest logit that is not taken. Scores are logits. */
template <int EACH>
static __device__ inline float route_mixer_weight(const warp_choices<EACH> &w,
                                                  const struct k_router &r, float top)
{
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float x = w.scores[i], apart = (top - x) / fmaxf(fabsf(x), top);

        if (w.keys[i] != 0 && !(apart > 2.0f * r.spread))
            sum += expf(x - top);
    }
    return 1.0f / route_warp_sum(sum);
}

/* The largest logit and the sum of softmax' exponentials, for K_SCORE_SOFTMAX. */
template <int EACH>
static __device__ inline float2 route_find_softmax(const float (&logits)[EACH], int n)
{
    float top = -INFINITY, sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        top = fmaxf(top, logits[i]);
    top = route_warp_max(top);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * 32 + (int)threadIdx.x % 32 < n)
            sum += expf(logits[i] - top);
    }
    return make_float2(top, route_warp_sum(sum));
}

static __device__ inline float route_score_of(float logit, enum k_scoring scoring, float2 softmax)
{
    switch (scoring) {
    case K_SCORE_SOFTMAX: return expf(logit - softmax.x) / softmax.y;
    case K_SCORE_SIGMOID: return 1.0f / (1.0f + expf(-logit));
    case K_SCORE_TOP:
    case K_SCORE_MIXER: break;
    }
    return logit;
}

/* Weights from the scores of the chosen experts; lane s has slot s, whose expert is id. shared: of
 * shared ones. */
static __device__ inline float route_weigh(float score, int id, const struct k_router &r,
                                           float shared)
{
    bool mine = (int)(threadIdx.x % 32) < r.n_used - r.n_shared;
    float top, sum;

    if (r.scoring == K_SCORE_TOP) {
        top = route_warp_max(mine ? score : -INFINITY);
        score = expf(score - top);
        score /= route_warp_sum(mine ? score : 0.0f);
    }
    sum = route_warp_sum(mine ? score : 0.0f);
    if (r.renorms)
        score /= fmaxf(sum, r.least);
    score *= r.scale;
    if (!mine)
        return shared;
    return r.scales != NULL ? score * r.scales[id] : score;
}

/* The keys and scores of a token. shared: n_experts words of the warp. */
template <int EACH>
static __device__ inline void route_score(warp_choices<EACH> &w, const route_args &a, int token,
                                          uint32_t *shared)
{
    const struct k_router &r = a.r;
    const float *from = a.m.logits + (size_t)token * a.n_logits;
    int lane = threadIdx.x % 32;
    float2 softmax = make_float2(0.0f, 1.0f);
    float bias[EACH], logits[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool has = i * 32 + lane < r.n_experts;

        logits[i] = has ? __ldcg(from + i * 32 + lane) : -INFINITY;
        bias[i] = has && r.bias != NULL ? __ldg(r.bias + i * 32 + lane) : 0.0f;
    }
    if (r.scoring == K_SCORE_SOFTMAX)
        softmax = route_find_softmax<EACH>(logits, r.n_experts);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        w.scores[i] = route_score_of(logits[i], r.scoring, softmax);
        w.keys[i] = i * 32 + lane < r.n_experts ? route_key_of(w.scores[i] + bias[i]) : 0;
    }
    if (r.n_groups <= 1)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * 32 + lane < r.n_experts)
            shared[i * 32 + lane] = w.keys[i];
    }
    __syncwarp();
    route_close_groups(shared, r);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        w.keys[i] = i * 32 + lane < r.n_experts ? shared[i * 32 + lane] : 0;
}

/* Slots of a token from the scores and experts of those that were chosen; lane s has slot s.
 * Returns the expert of slot `lane`, or -1. */
static __device__ inline int route_store_slots(const route_args &a, int token, bool is_padding,
                                               int id, float score, float shared_logit)
{
    const struct k_router &r = a.r;
    int lane = threadIdx.x % 32, n_chosen = r.n_used - r.n_shared;

    if (lane >= n_chosen && lane < r.n_used)
        id = r.n_experts + lane - n_chosen;
    score = route_weigh(score, id, r,
                        r.shared_switch != NULL ? 1.0f / (1.0f + expf(-shared_logit)) : 1.0f);
    if (lane < r.n_used) {
        a.m.routes.ids[(size_t)token * r.n_used + lane] = is_padding ? -1 : id;
        a.m.routes.weights[(size_t)token * r.n_used + lane] = score;
    }
    return is_padding ? -1 : id;
}

/* One token, by a warp; returns the expert of slot `lane`, or -1. */
template <int EACH>
static __device__ int route_choose(const route_args &a, int token, bool is_padding,
                                   uint32_t *shared)
{
    const struct k_router &r = a.r;
    int lane = threadIdx.x % 32, id = -1;
    warp_choices<EACH> w;
    float score = 0.0f, shared_logit = 0.0f;

    if (r.shared_switch != NULL)
        shared_logit = __ldcg(a.m.logits + (size_t)token * a.n_logits + r.n_experts);
    route_score<EACH>(w, a, token, shared);
    route_find_best(w);
#pragma unroll 1
    for (int slot = 0; slot < r.n_used - r.n_shared; slot++) {
        int expert = route_warp_best(w);
        float own = route_warp_score(w, expert);

        if (r.scoring == K_SCORE_MIXER)
            own = route_mixer_weight(w, r, own);
        if (lane == slot) {
            id = expert;
            score = own;
        }
        route_take(w, expert);
        __syncwarp();
    }
    return route_store_slots(a, token, is_padding, id, score, shared_logit);
}

/* Tokens of sequences without length are padding. */
static __device__ inline bool route_is_padding(const route_args &a, int token)
{
    return a.seq != NULL && token < a.n && a.kv_len[a.seq[token]] == 0;
}

/* shared: n_experts words for each warp of the block. */
static __device__ inline int route_choose_in(const route_args &a, int token, bool is_padding,
                                             uint32_t *shared)
{
    int n = a.r.n_experts;

    shared += (size_t)(threadIdx.x / 32) * n;
    if (n <= 32)
        return route_choose<1>(a, token, is_padding, shared);
    if (n <= 128)
        return route_choose<4>(a, token, is_padding, shared);
    if (n <= 256)
        return route_choose<8>(a, token, is_padding, shared);
    return n <= 512 ? route_choose<16>(a, token, is_padding, shared)
                    : route_choose<K_EXPERTS_MAX / 32>(a, token, is_padding, shared);
}

/* --- one token by a block --------------------------------------------------------------------- */

/* One token has all threads of a block, an expert each: one slot after another by a warp takes 9 us
 * with 256 experts. Several tokens one after another are slower than a warp for each. Same bits. */
#define ROUTE_WARPS 16

struct route_desk {
    float exps[ROUTE_WARPS * 32], tops[ROUTE_WARPS];
    /* of each warp its best, then of all */
    uint32_t keys[ROUTE_WARPS * 32];
    int ids[ROUTE_WARPS * 32], chosen[32], own[32];
    float scores[ROUTE_WARPS * 32], chosen_scores[32];
};

static __device__ inline bool route_takes_block(const struct k_router &r)
{
    return r.n_experts <= ROUTE_WARPS * 32 && r.n_groups <= 1 && r.scoring != K_SCORE_MIXER;
}

/* route_find_softmax() of all experts, by all threads, each of which has one; shared memory is in
 * the order that it adds them up in. */
static __device__ inline float2 route_desk_softmax(route_desk &s, float logit, int n)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (n + 31) / 32;
    float top = route_warp_max(logit), sum = 0.0f;

    if (lane == 0)
        s.tops[warp] = top;
    __syncthreads();
    top = route_warp_max(lane < n_warps ? s.tops[lane] : -INFINITY);
    s.exps[threadIdx.x] = (int)threadIdx.x < n ? expf(logit - top) : 0.0f;
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < n_warps; i++)
        sum += s.exps[i * 32 + lane];
    return make_float2(top, route_warp_sum(sum));
}

/* The place of a lane's key among those of its warp: the largest first, the lowest lane among
 * equals. */
static __device__ inline int route_lane_place(uint32_t key)
{
    int place = 0, lane = threadIdx.x % 32;

#pragma unroll 8
    for (int i = 0; i < 32; i++) {
        uint32_t other = __shfl_sync(~0U, key, i);

        place += other > key || (other == key && i < lane);
    }
    return place;
}

/* The n_chosen best experts of all, in their order. key, score: of the thread's expert. */
static __device__ inline void route_desk_choose(route_desk &s, uint32_t key, float score, int n,
                                                int n_chosen)
{
    int warp = threadIdx.x / 32, place = route_lane_place(key), all = (n + 31) / 32 * n_chosen;

    if (place < n_chosen && warp * n_chosen < all) {
        s.keys[warp * n_chosen + place] = key;
        s.ids[warp * n_chosen + place] = threadIdx.x;
        s.scores[warp * n_chosen + place] = score;
    }
    __syncthreads();
    if ((int)threadIdx.x < all) {
        int at = threadIdx.x;

        key = s.keys[at];
        place = 0;
#pragma unroll 8
        for (int i = 0; i < all; i++)
            place += s.keys[i] > key || (s.keys[i] == key && i < at);
        if (place < n_chosen) {
            s.chosen[place] = s.ids[at];
            s.chosen_scores[place] = s.scores[at];
        }
    }
    __syncthreads();
}

/* One token, by all threads of a block; returns the expert of slot `lane` in the first warp. */
static __device__ inline int route_choose_by_all(const route_args &a, int token, route_desk &s)
{
    const struct k_router &r = a.r;
    const float *from = a.m.logits + (size_t)token * a.n_logits;
    int id = threadIdx.x, n_chosen = r.n_used - r.n_shared;
    bool has = id < r.n_experts;
    float logit = has ? __ldcg(from + id) : -INFINITY, shared_logit = 0.0f, score;
    float bias = has && r.bias != NULL ? __ldg(r.bias + id) : 0.0f;
    float2 softmax = make_float2(0.0f, 1.0f);

    if (r.shared_switch != NULL)
        shared_logit = __ldcg(from + r.n_experts);
    if (r.scoring == K_SCORE_SOFTMAX)
        softmax = route_desk_softmax(s, logit, r.n_experts);
    score = r.scoring == K_SCORE_SOFTMAX ? s.exps[id] / softmax.y
                                         : route_score_of(logit, r.scoring, softmax);
    route_desk_choose(s, has ? route_key_of(score + bias) : 0, score, r.n_experts, n_chosen);
    if (id >= 32)
        return -1;
    return route_store_slots(a, token, route_is_padding(a, token),
                             id < n_chosen ? s.chosen[id] : -1,
                             id < n_chosen ? s.chosen_scores[id] : 0.0f, shared_logit);
}

#endif
