/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by attention of few decodes over latents (attn_latent_few.cu) and the values that are made
 * of it (latent_products.cu): the parts that attention leaves. */
#ifndef QUIRE_KERNELS_LATENT_FEW_CUH
#define QUIRE_KERNELS_LATENT_FEW_CUH

#include "kernels/latent.h"

#define LATENT_FEW_KEYS  32 /* of a tile */
#define LATENT_FEW_HEADS 32 /* of a block */
#define LATENT_FEW_PARTS 64 /* of a token and a block of heads, at most: values read all of them */

/* The sums of a part's keys, not divided yet, their weights' sum, and the largest score. */
struct latent_few_part {
    float acc[LATENT_FEW_HEADS][K_LATENT_RANK_MAX];
    float top[LATENT_FEW_HEADS], sum[LATENT_FEW_HEADS];
};

/* Parts of a decode: `n` of them with keys, and tiles of each but the last one. */
struct latent_few_split {
    int n, tiles;
};

/* len: keys; most: parts at most. */
static __host__ __device__ inline latent_few_split latent_few_split_of(int len, int most)
{
    int tiles = (len + LATENT_FEW_KEYS - 1) / LATENT_FEW_KEYS, each = (tiles + most - 1) / most;

    return {each > 0 ? (tiles + each - 1) / each : 0, each};
}

static __host__ __device__ inline int latent_few_blocks(int n_heads)
{
    return (n_heads + LATENT_FEW_HEADS - 1) / LATENT_FEW_HEADS;
}

/* Parts of each decode for a step of n_decodes: two blocks per multiprocessor, at most. */
static inline int latent_few_parts(int n_decodes, int n_heads)
{
    int n = 264 / (n_decodes * latent_few_blocks(n_heads));

    return n < LATENT_FEW_PARTS ? n : LATENT_FEW_PARTS;
}

/* The first part of a token and a block of heads in the step's work memory. */
static __host__ __device__ inline size_t latent_few_first(int token, int block, int n_blocks,
                                                          int most)
{
    return ((size_t)token * n_blocks + block) * most;
}

#endif
