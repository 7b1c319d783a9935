/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the kernels before and behind latent attention (latent.h). */
#ifndef QUIRE_KERNELS_LATENT_CUH
#define QUIRE_KERNELS_LATENT_CUH

#include "kernels/latent.h"
#include "kernels/pages.cuh"

struct latent_args {
    void *out;
    const k_bf16 *in;
    struct k_latent l;
    struct k_kv kv;
    struct k_tokens t;
    bool is_half; /* out of keys and values is as K_HALF_AT */
    /* Values of k_latent_attend(): the parts, of a token and a block of heads at most so many, and
     * the factor of their largest scores, times log2(e). */
    const struct latent_few_part *parts;
    int most;
    float scale;
};

static inline latent_args latent_args_of(void *out, const k_bf16 *in, const struct k_latent *l,
                                         const struct k_tokens *t)
{
    latent_args args = {};

    args.out = out;
    args.in = in;
    args.l = *l;
    args.t = *t;
    return args;
}

/* The element of in at which a head's query begins. */
static __device__ __forceinline__ size_t latent_query_at(const struct k_latent_shape &s, int token,
                                                         int head)
{
    return (size_t)token * k_latent_stride(&s) + (size_t)head * k_latent_query(&s);
}

/* The pair i of rope_dim elements, turned, and the places of its two elements. */
struct latent_two {
    float x, y;
    int low, high;
};

static __device__ inline latent_two latent_turned(const k_bf16 *from, const latent_args &a, int pos,
                                                  int i)
{
    int half = a.l.shape.rope_dim / 2;
    latent_two p = {};
    float2 turn = ((const float2 *)a.l.turns)[(size_t)pos * half + i];
    float x, y;

    p.low = a.l.interleaved ? 2 * i : i;
    p.high = a.l.interleaved ? 2 * i + 1 : i + half;
    x = load_bf16(from + p.low);
    y = load_bf16(from + p.high);
    p.x = turn_lower(x, y, turn);
    p.y = turn_upper(y, x, turn);
    return p;
}

static __device__ inline void latent_turn(k_bf16 *to, const k_bf16 *from, const latent_args &a,
                                          int pos, int i)
{
    latent_two p = latent_turned(from, a, pos, i);

    store_bf16(to + p.low, p.x);
    store_bf16(to + p.high, p.y);
}

/* Are the sizes those of whole tiles? Then the products are computed on tensor cores, by the
 * launchers of latent_products.cu. */
static inline bool latent_is_even(const struct k_latent_shape *s)
{
    return s->nope_dim % 16 == 0 && s->rope_dim % 8 == 0 && s->kv_rank % 64 == 0 &&
           s->v_dim % 64 == 0;
}

int k_latent_queries_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                          const struct k_tokens *t, k_stream stream);
int k_latent_values_even(void *out, bool is_half, const k_bf16 *in, const struct k_latent *l,
                         const struct k_tokens *t, k_stream stream);

/* A launch that may begin while the kernel in front of it still runs, as K_LAUNCH_EARLY(), with
 * dynamic shared memory. */
#ifndef gridDim
#define LATENT_LAUNCH(kernel, grid, block, smem, stream, args) \
    latent_launch((kernel), dim3(grid), (block), (smem), (stream), (args))

/* The same; `ranks` neighbours along y are a cluster. */
#define LATENT_LAUNCH_CLUSTER(kernel, grid, block, smem, ranks, stream, args) \
    latent_launch((kernel), dim3(grid), (block), (smem), (stream), (args), (ranks))

template <class A>
static inline int latent_launch(void (*kernel)(A), dim3 grid, unsigned block, size_t smem,
                                k_stream stream, const A &args, unsigned ranks = 1)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    if (smem > 48 * 1024 &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem) !=
            cudaSuccess)
        return -1;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.z = 1;
    attributes[1].val.clusterDim.y = ranks;
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = smem;
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = k_is_portable() ? 0 : ranks > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, args) == cudaSuccess ? 0 : -1;
}
#else /* kernels are played on the host */
#define LATENT_LAUNCH K_LAUNCH
#define LATENT_LAUNCH_CLUSTER(kernel, grid, block, smem, ranks, stream, args) \
    ((void)(ranks), K_LAUNCH(kernel, grid, block, smem, stream, args))
#endif

#endif
