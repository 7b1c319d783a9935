/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a token's experts from its logits, by a warp (experts_route.cu, experts_few.cu).
 *
 *   logits -> keys in their order, or that of the scores -> n_used times the largest -> weights
 *
 * A lane has up to K_EXPERTS_MAX / 32 experts in registers and knows the best of them. So a slot is
 * two reductions over the warp. */
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
    bool leaves_choice; /* one token: its first product chooses */
    int n_logits;       /* of a token: of its experts, then of r.shared_switch */
    int slice;          /* elements of a slice: whole chunks */
    int high;  /* experts of a tile that are computed, 1 .. TILE: the others are these again */
    uint4 *ff; /* with leaves_choice: memory that is filled with ones for experts_one.cu, or NULL */
    int n_ff;
};

/* experts_route.cu: the arguments of a step's routing; -1 if k_route() refuses it. The logits of
 * one token alone, without a choice. */
int route_prepare(route_args *args, const struct k_mixing *m, const struct k_mixing_input *in);
int route_logits_of_one(route_args *a, k_stream stream);

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
    return route_number_of(__reduce_max_sync(~0U, route_key_of(x)));
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
    uint32_t best;
    int at; /* best is keys[at], the first of its equals */
};

/* The expert with the largest key of the warp; the lowest among equals. */
struct best_choice {
    int expert;
    uint32_t key;
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

/* Take the best expert. */
template <int EACH> static __device__ inline best_choice route_take(warp_choices<EACH> &w)
{
    uint32_t all = __reduce_max_sync(~0U, w.best), own = w.at * 32 + threadIdx.x % 32;
    uint32_t expert = __reduce_min_sync(~0U, w.best == all ? own : ~0U);

#pragma unroll
    for (int i = 0; i < EACH; i++)
        w.keys[i] = i * 32 + threadIdx.x % 32 == expert ? 0 : w.keys[i];
    route_find_best(w);
    return {(int)expert, all};
}

/* A number of an expert's lane. */
template <int EACH>
static __device__ inline float route_number_at(const float (&numbers)[EACH], int expert)
{
    float x = numbers[0];

#pragma unroll
    for (int i = 1; i < EACH; i++)
        x = expert / 32 == i ? numbers[i] : x;
    return __shfl_sync(~0U, x, expert % 32);
}

/* K_SCORE_MIXER: the weight of the largest logit, `top`, which is taken, beside the others. */
template <int EACH>
static __device__ inline float route_mixer_weight(const warp_choices<EACH> &w,
                                                  const float (&logits)[EACH],
                                                  const struct k_router &r, float top)
{
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float x = logits[i], apart = (top - x) / fmaxf(fabsf(x), top);

        if (w.keys[i] != 0 && !(apart > 2.0f * r.spread))
            sum += expf(x - top);
    }
    return 1.0f / (1.0f + route_warp_sum(sum));
}

/* The largest logit and the sum of softmax' exponentials; those past the last one are -infinity. */
template <int EACH> static __device__ inline float2 route_find_softmax(const float (&logits)[EACH])
{
    float top = -INFINITY, sum = 0.0f;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        top = fmaxf(top, logits[i]);
    top = route_warp_max(top);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sum += expf(logits[i] - top);
    return make_float2(top, route_warp_sum(sum));
}

static __device__ inline float route_score_of(float logit, enum k_scoring scoring, float2 softmax)
{
    switch (scoring) {
    case K_SCORE_SOFTMAX: return __fdividef(expf(logit - softmax.x), softmax.y);
    case K_SCORE_SIGMOID: return __fdividef(1.0f, 1.0f + expf(-logit));
    case K_SCORE_TOP:
    case K_SCORE_MIXER: break;
    }
    return logit;
}

/* Scores in place of logits. The cases are outside of the loop: a warp runs this once a layer, and
 * fetches every instruction for it. */
template <int EACH>
static __device__ inline void route_score_all(float (&x)[EACH], enum k_scoring scoring,
                                              float2 softmax)
{
    if (scoring == K_SCORE_SOFTMAX) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i] = route_score_of(x[i], K_SCORE_SOFTMAX, softmax);
    } else if (scoring == K_SCORE_SIGMOID) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            x[i] = route_score_of(x[i], K_SCORE_SIGMOID, softmax);
    }
}

/* Weights from the scores of the chosen experts; lane s has slot s, whose expert is id. shared: of
 * shared ones. */
static __device__ inline float route_weigh(float score, int id, const struct k_router &r,
                                           float shared)
{
    bool mine = (int)(threadIdx.x % 32) < r.n_used - r.n_shared;
    float top;

    if (r.scoring == K_SCORE_TOP) {
        top = route_warp_max(mine ? score : -INFINITY);
        score = expf(score - top);
        score = __fdividef(score, route_warp_sum(mine ? score : 0.0f));
    }
    if (r.renorms)
        score = __fdividef(score, fmaxf(route_warp_sum(mine ? score : 0.0f), r.least));
    score *= r.scale;
    if (!mine)
        return shared;
    return r.scales != NULL ? score * r.scales[id] : score;
}

/* Keys of a step that closes groups; shared: n_experts words of the warp. */
template <int EACH>
static __device__ inline void route_keep_groups(warp_choices<EACH> &w, const struct k_router &r,
                                                uint32_t *shared)
{
    int lane = threadIdx.x % 32;

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

/* Are experts chosen in another order than that of their logits? */
static __device__ inline bool route_needs_scores(const struct k_router &r)
{
    return r.bias != NULL || r.scoring == K_SCORE_MIXER || (r.n_groups > 1 && r.group_best > 1);
}

/* What a lane has chosen for slot `lane`. */
struct route_slot {
    int id; /* -1: padding, or no slot */
    float weight;
};

/* Nothing to do when the experts are known. */
struct route_goes_on {
    __device__ void operator()(int) const
    {
    }
};

/* One token, by a warp. SCORES: route_needs_scores(); else keys are of logits, and only the chosen
 * ones are scored. ready(id) is called by all lanes when the experts are known, before weights. */
template <int EACH, bool SCORES, class F>
static __device__ route_slot route_choose(const route_args &a, int token, bool is_padding,
                                          uint32_t *shared, F ready)
{
    const struct k_router &r = a.r;
    const float *from = a.m.logits + (size_t)token * a.n_logits;
    int lane = threadIdx.x % 32, id = -1, n_chosen = r.n_used - r.n_shared;
    float x[EACH], bias[EACH], score = 0.0f, shared_logit = 0.0f;
    float2 softmax = make_float2(0.0f, 1.0f);
    warp_choices<EACH> w;

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        bool has = i * 32 + lane < r.n_experts;

        x[i] = has ? __ldcg(from + i * 32 + lane) : -INFINITY;
        bias[i] = SCORES && has && r.bias != NULL ? __ldg(r.bias + i * 32 + lane) : 0.0f;
    }
    if (r.shared_switch != NULL)
        shared_logit = __ldcg(from + r.n_experts);
    if (SCORES && r.scoring == K_SCORE_SOFTMAX)
        softmax = route_find_softmax<EACH>(x);
    if (SCORES)
        route_score_all<EACH>(x, r.scoring, softmax);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        w.keys[i] = i * 32 + lane < r.n_experts ? route_key_of(x[i] + bias[i]) : 0;
    if (r.n_groups > 1)
        route_keep_groups<EACH>(w, r, shared);
    route_find_best(w);
#pragma unroll 1
    for (int slot = 0; slot < n_chosen; slot++) {
        const best_choice best = route_take(w);
        float own = SCORES ? route_number_at<EACH>(x, best.expert) : route_number_of(best.key);

        if (SCORES && r.scoring == K_SCORE_MIXER)
            own = route_mixer_weight<EACH>(w, x, r, own);
        id = lane == slot ? best.expert : id;
        score = lane == slot ? own : score;
    }
    if (lane >= n_chosen && lane < r.n_used)
        id = r.n_experts + lane - n_chosen;
    ready(is_padding ? -1 : id);
    if (!SCORES && r.scoring == K_SCORE_SOFTMAX)
        softmax = route_find_softmax<EACH>(x);
    if (!SCORES)
        score = route_score_of(score, r.scoring, softmax);
    score =
        route_weigh(score, id, r,
                    r.shared_switch != NULL ? __fdividef(1.0f, 1.0f + expf(-shared_logit)) : 1.0f);
    return {is_padding ? -1 : id, score};
}

static __device__ inline void route_store(const route_args &a, int token, const route_slot &slot)
{
    int lane = threadIdx.x % 32;

    if (lane >= a.r.n_used)
        return;
    a.m.routes.ids[(size_t)token * a.r.n_used + lane] = slot.id;
    a.m.routes.weights[(size_t)token * a.r.n_used + lane] = slot.weight;
}

/* Tokens of sequences without length are padding. */
static __device__ inline bool route_is_padding(const route_args &a, int token)
{
    return a.seq != NULL && token < a.n && a.kv_len[a.seq[token]] == 0;
}

template <bool SCORES, class F>
static __device__ inline route_slot route_choose_by(const route_args &a, int token, bool is_padding,
                                                    uint32_t *shared, F ready)
{
    int n = a.r.n_experts;

    if (n <= 32)
        return route_choose<1, SCORES, F>(a, token, is_padding, shared, ready);
    if (n <= 128)
        return route_choose<4, SCORES, F>(a, token, is_padding, shared, ready);
    if (n <= 256)
        return route_choose<8, SCORES, F>(a, token, is_padding, shared, ready);
    return n <= 512
               ? route_choose<16, SCORES, F>(a, token, is_padding, shared, ready)
               : route_choose<K_EXPERTS_MAX / 32, SCORES, F>(a, token, is_padding, shared, ready);
}

/* shared: n_experts words for each warp of the block. */
template <class F = route_goes_on>
static __device__ inline route_slot route_choose_in(const route_args &a, int token, bool is_padding,
                                                    uint32_t *shared, F ready = F())
{
    shared += (size_t)(threadIdx.x / 32) * a.r.n_experts;
    return route_needs_scores(a.r) ? route_choose_by<true, F>(a, token, is_padding, shared, ready)
                                   : route_choose_by<false, F>(a, token, is_padding, shared, ready);
}

/* The place of slot `lane` of one token among its experts of this rank, by one warp. */
struct route_place {
    int expert; /* of this rank; n_own: no own one, which is after all others */
    int before; /* slots of lower experts */
    int n;      /* own experts of the token */
    bool has;
};

static __device__ inline route_place route_place_one(const route_args &a, int id)
{
    int lane = threadIdx.x % 32, e = id - a.first;
    bool has = lane < a.r.n_used && id >= 0 && e >= 0 && e < a.n_own;
    route_place p = {has ? e : a.n_own, 0, __popc(__ballot_sync(~0U, has)), has};

    for (int slot = 0; slot < a.r.n_used; slot++)
        p.before += __shfl_sync(~0U, p.expert, slot) < p.expert;
    return p;
}

static __device__ inline void route_store_place(const route_args &a, const route_place &p)
{
    int lane = threadIdx.x % 32;

    if (lane < a.r.n_used)
        a.m.sorted.places[lane] = p.has ? p.before : -1;
    if (p.has)
        a.m.touched[1 + p.before] = p.expert;
    if (lane == 0)
        a.m.touched[0] = p.n;
}

#endif
