/* SPDX-License-Identifier: Apache-2.0
 *
 * Launchers of FFNs of experts: routing, both products, and the sum by tokens. The references and
 * the structs of routers and experts are in kernels.h.
 *
 * Threads: as kernels.h says. Errors: -1 if a shape is refused or a launch fails. */
#ifndef QUIRE_KERNELS_MIXING_H
#define QUIRE_KERNELS_MIXING_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The launchers' work memory. k_mixing_place() lays it out in memory of the size that it returns,
 * all 0 before the first launch; base NULL only measures. */
#define K_MIXING_CHUNK 512 /* routes that a block counts */
#define K_MIXING_TILE  256 /* routes of a tile of k_run_experts() */
#define K_MIXING_FEW   64  /* tokens that one launch routes, and whose experts are read once */
#define K_MIXING_WARPS 8   /* tokens of a block of the routing launch */
struct k_mixing_sizes {
    int n_tokens, n_used;     /* the largest step */
    int n_choices, n_experts; /* experts of the router, and those of this rank */
    int ff_dim, dim;
};
struct k_mixing {
    struct k_routes routes;
    struct k_sorted sorted;
    float *logits;    /* float32 [n_tokens][n_choices + 1] */
    int32_t *touched; /* int32 [1 + n_experts]: the number of experts with routes, and which */
    int32_t *chunks;  /* int32 [ceil(routes / K_MIXING_CHUNK)][n_experts]: counts, then places */
    int32_t *tiles;   /* int32 [1 + 2 * tiles]: number of tiles; expert and first place of each */
    float *inverse;   /* float32 [K_MIXING_FEW]: 1 / root of the mean square of a token */
    uint32_t *done;   /* [1 + K_MIXING_FEW / K_MIXING_WARPS]: ended blocks; 0 between launches */
    uint32_t *taken;  /* [2]: tiles that blocks of each product took; any number between launches */
    k_bf16 *ff;       /* bf16 [routes][ff_dim] */
    k_bf16 *y;        /* bf16 [routes][dim] */
};
size_t k_mixing_place(struct k_mixing *m, void *base, const struct k_mixing_sizes *s);

/* A step's tokens and what chooses and multiplies. */
struct k_mixing_input {
    const k_bf16 *router_x; /* bf16 [n][router_dim] */
    const k_bf16 *x;        /* bf16 [n][dim], of the experts */
    const struct k_half_normed *norm;
    const struct k_router *router;
    const struct k_experts *experts;
    const struct k_tokens *tokens; /* or NULL */
    int n, router_dim;
};

/* Choices of n tokens and their order: fills routes, sorted, touched and tiles of m (tiles only
 * from K_MIXING_FEW + 1 tokens on). Tokens whose sequence has kv_len 0 get no experts: ids of -1.
 * One launch for up to K_MIXING_FEW tokens. Logits are float32, in an order of sums that depends on
 * dim alone, so a token's choices depend on nothing else. norm NULL: x is normed; else at most
 * K_MIXING_FEW tokens, and k_run_experts() gets the same. Refused for more than K_EXPERT_GROUPS_MAX
 * groups, or group_best above 2. */
int k_route(const struct k_mixing *m, const struct k_mixing_input *in, k_stream stream);

/* ref_combine() of m's results, out bf16; c's weights and places are m's. residual not NULL: out is
 * only read (if c->adds), and the result goes on as that of K_PRODUCT_RESIDUAL; dim is a multiple
 * of 16 then. */
struct k_mixing_end {
    k_bf16 *out; /* bf16 [n][dim] */
    const struct k_combining *c;
    const struct k_product *residual; /* or NULL */
};
int k_combine(const struct k_mixing *m, const struct k_mixing_end *end, int n, k_stream stream);

/* y of m = the experts' results in the order of routes, after k_route() with the same n; then
 * k_combine(), unless end is NULL. One token has no y with an end, because the second product adds
 * its results up. Matrices are plain, or e4m3 with scales by row or in blocks of 128 x 128, or
 * MXFP4 in the arrangement of mxfp4.h, each expert for itself; x is bf16 [n][dim]. With up to
 * K_MIXING_FEW tokens each expert that has routes is read once. ff is rounded to bfloat16. On
 * Hopper, with more tokens and both matrices e4m3, x and ff are rounded to e4m3 with a scale for
 * each run of 128 elements, as k_quantise() does with a stride. The bits of a route depend on n
 * through this limit only. */
int k_run_experts(const struct k_mixing *m, const struct k_mixing_input *in,
                  const struct k_mixing_end *end, int n_sms, k_stream stream);

/* k_route(), then k_run_experts(), with the same bits. On Hopper the first product of one token
 * chooses, so that one launch less stands between the logits and the weights; starts and routes of
 * m are then not filled. */
int k_mix_experts(const struct k_mixing *m, const struct k_mixing_input *in,
                  const struct k_mixing_end *end, int n_sms, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
