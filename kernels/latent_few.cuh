/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by attention of few decodes over latents (attn_latent_few.cu) and the values that are made
 * of it (latent_products.cu): the parts that attention leaves. */
#ifndef QUIRE_KERNELS_LATENT_FEW_CUH
#define QUIRE_KERNELS_LATENT_FEW_CUH

#include "kernels/common.cuh"
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

/* --- blocks of a cluster along y ------------------------------------------------------------- */

/* A block sends 8 bytes to the same place in all of them, and each has a barrier that counts the
 * bytes that it gets. Where kernels are played, and on other GPUs than Hopper, a cluster is a
 * block; there each word is stored by its lane and read after a barrier of the block. */
#if __CUDA_ARCH__ >= 900
static __device__ inline uint32_t latent_few_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ inline uint32_t latent_few_remote(const void *p, int rank)
{
    uint32_t at;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(latent_few_addr(p)), "r"(rank));
    return at;
}

static __device__ inline int latent_few_ranks(void)
{
    int n;

    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(n));
    return n;
}

/* Open the barrier, by the whole block; latent_few_meet() waits until all blocks have. */
static __device__ inline void latent_few_open(uint64_t *bar, int bytes)
{
    if (threadIdx.x == 0)
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], 1;\n"
            "fence.mbarrier_init.release.cluster;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(latent_few_addr(bar)),
            "r"(bytes)
            : "memory");
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ inline void latent_few_meet(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

static __device__ inline void latent_few_send(void *to, uint2 x, int ranks, uint64_t *bar)
{
    for (int i = 0; i < ranks; i++)
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
                "r"(latent_few_remote(to, i)),
            "r"(x.x), "r"(x.y), "r"(latent_few_remote(bar, i))
            : "memory");
}

static __device__ inline void latent_few_wait(uint64_t *bar)
{
    uint32_t done;

    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(latent_few_addr(bar))
                     : "memory");
    } while (!done);
}
#else
static __device__ inline int latent_few_ranks(void)
{
    return 1;
}

static __device__ inline void latent_few_open(uint64_t *bar, int bytes)
{
    (void)bar, (void)bytes;
}

static __device__ inline void latent_few_meet(void)
{
}

static __device__ inline void latent_few_send(void *to, uint2 x, int ranks, uint64_t *bar)
{
    (void)ranks, (void)bar;
    *(uint2 *)to = x;
}

static __device__ inline void latent_few_wait(uint64_t *bar)
{
    (void)bar;
}
#endif

/* The first part of a token and a block of heads in the step's work memory. */
static __host__ __device__ inline size_t latent_few_first(int token, int block, int n_blocks,
                                                          int most)
{
    return ((size_t)token * n_blocks + block) * most;
}

#endif
