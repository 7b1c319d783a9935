/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that treat each row by itself: one block a row, a thread every so many elements.
 * They move bytes and little else; what they move stands in kernels.h. */
#include "kernels/common.cuh"
#include "kernels/draw.h"

#define ROW_THREADS 512 /* 8 elements a thread at dim 4096 */

static __global__ void embed_kernel(float *x, const k_bf16 *table, const int32_t *ids, int dim)
{
    const k_bf16 *from = table + (size_t)ids[blockIdx.x] * dim;
    float *to = x + (size_t)blockIdx.x * dim;

    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        to[d] = load_bf16(from + d);
}

int k_embed(float *x, const k_bf16 *table, const int32_t *ids, int n, int dim, k_stream stream)
{
    return K_LAUNCH(embed_kernel, n, ROW_THREADS, 0, stream, x, table, ids, dim);
}

/* delta may be NULL; then x is only read. */
static __global__ void rmsnorm_kernel(k_bf16 *out, float *x, const k_bf16 *delta,
                                      const k_bf16 *weight, float eps, int dim)
{
    __shared__ float shared[33];
    size_t at = (size_t)blockIdx.x * dim;
    float sum = 0.0f, scale;

    for (int d = threadIdx.x; d < dim; d += blockDim.x) {
        float v = x[at + d];

        if (delta != NULL) {
            v += load_bf16(delta + at + d);
            x[at + d] = v;
        }
        sum += v * v;
    }
    scale = rsqrtf(block_sum(sum, shared) / dim + eps);
    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        store_bf16(out + at + d, x[at + d] * scale * load_bf16(weight + d));
}

int k_rmsnorm(k_bf16 *out, const float *x, const k_bf16 *weight, float eps, int n, int dim,
              k_stream stream)
{
    return K_LAUNCH(rmsnorm_kernel, n, ROW_THREADS, 0, stream, out, (float *)x, NULL, weight, eps,
                    dim);
}

int k_add_rmsnorm(k_bf16 *out, float *x, const k_bf16 *delta, const k_bf16 *weight, float eps,
                  int n, int dim, k_stream stream)
{
    return K_LAUNCH(rmsnorm_kernel, n, ROW_THREADS, 0, stream, out, x, delta, weight, eps, dim);
}

static __global__ void gather_add_kernel(float *out, const float *x, const k_bf16 *delta,
                                         const int32_t *token_idx, int dim)
{
    size_t at = (size_t)token_idx[blockIdx.x] * dim;

    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        out[(size_t)blockIdx.x * dim + d] = x[at + d] + load_bf16(delta + at + d);
}

int k_gather_add(float *out, const float *x, const k_bf16 *delta, const int32_t *token_idx,
                 int n_rows, int dim, k_stream stream)
{
    return K_LAUNCH(gather_add_kernel, n_rows, ROW_THREADS, 0, stream, out, x, delta, token_idx,
                    dim);
}

static __device__ inline float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

static __global__ void silu_mul_kernel(k_bf16 *out, const k_bf16 *in, int ff_dim)
{
    const k_bf16 *gate = in + (size_t)blockIdx.y * 2 * ff_dim;
    int d = blockIdx.x * blockDim.x + threadIdx.x;

    if (d < ff_dim)
        store_bf16(out + (size_t)blockIdx.y * ff_dim + d,
                   silu(load_bf16(gate + d)) * load_bf16(gate + ff_dim + d));
}

/* Eight elements a thread, 16 bytes at a time; ff_dim is a multiple of 8. */
static __global__ void silu_mul_wide_kernel(k_bf16 *out, const k_bf16 *in, int ff_dim)
{
    const k_bf16 *gate = in + (size_t)blockIdx.y * 2 * ff_dim;
    int d = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    uint4 g, u, r;

    if (d >= ff_dim)
        return;
    g = *(const uint4 *)(gate + d);
    u = *(const uint4 *)(gate + ff_dim + d);
    r.x = pack_bf16(silu(low_half(g.x)) * low_half(u.x), silu(high_half(g.x)) * high_half(u.x));
    r.y = pack_bf16(silu(low_half(g.y)) * low_half(u.y), silu(high_half(g.y)) * high_half(u.y));
    r.z = pack_bf16(silu(low_half(g.z)) * low_half(u.z), silu(high_half(g.z)) * high_half(u.z));
    r.w = pack_bf16(silu(low_half(g.w)) * low_half(u.w), silu(high_half(g.w)) * high_half(u.w));
    *(uint4 *)(out + (size_t)blockIdx.y * ff_dim + d) = r;
}

int k_silu_mul(k_bf16 *out, const k_bf16 *in, int n, int ff_dim, k_stream stream)
{
    if (ff_dim % 8 == 0)
        return K_LAUNCH(silu_mul_wide_kernel, dim3((ff_dim / 8 + 127) / 128, n), 128, 0, stream,
                        out, in, ff_dim);
    return K_LAUNCH(silu_mul_kernel, dim3((ff_dim + 255) / 256, n), 256, 0, stream, out, in,
                    ff_dim);
}

static __global__ void fill_random_kernel(k_bf16 *out, size_t n, float deviation, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        store_bf16(out + i, k_noise(seed, i) * deviation);
}

int k_fill_random(k_bf16 *out, size_t n, float deviation, uint64_t seed, k_stream stream)
{
    return K_LAUNCH(fill_random_kernel, 4096, 256, 0, stream, out, n, deviation, seed);
}
