/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that treat each row by itself: one block per row, elements distributed over its
 * threads. They are bound by memory; kernels.h has their contracts. */
#include "kernels/common.cuh"
#include "kernels/e4m3.h"
#include "kernels/rng.h"

#define ROW_THREADS 512 /* 8 elements a thread at dim 4096 */

/* One row per block; a negative id is read from the previous step's result. */
static __global__ void embed_kernel(float *x, const k_bf16 *table, const int32_t *ids,
                                    const int32_t *sampled, int dim)
{
    int32_t id = ids[blockIdx.x];
    const k_bf16 *from = table + (size_t)(id < 0 ? sampled[-1 - id] : id) * dim;
    float *to = x + (size_t)blockIdx.x * dim;

    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        to[d] = load_bf16(from + d);
}

int k_embed(float *x, const k_bf16 *table, const int32_t *ids, const int32_t *sampled, int n,
            int dim, k_stream stream)
{
    return K_LAUNCH(embed_kernel, n, ROW_THREADS, 0, stream, x, table, ids, sampled, dim);
}

/* Only the rows that have logits leave the last layer. */
static __global__ void gather_add_kernel(float *out, const float *x, const k_bf16 *delta,
                                         float scale, const int32_t *token_idx, int dim)
{
    size_t at = (size_t)token_idx[blockIdx.x] * dim;

    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        out[(size_t)blockIdx.x * dim + d] = x[at + d] + scale * load_bf16(delta + at + d);
}

int k_gather_add(float *out, const float *x, const k_bf16 *delta, float scale,
                 const int32_t *token_idx, int n_rows, int dim, k_stream stream)
{
    return K_LAUNCH(gather_add_kernel, n_rows, ROW_THREADS, 0, stream, out, x, delta, scale,
                    token_idx, dim);
}

/* Weights for tests and dummy models: a function of (seed, index), so the same on every run. */
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

static __global__ void fill_random_e4m3_kernel(k_e4m3 *out, size_t n, float deviation,
                                               uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = k_e4m3_round(k_noise(seed, i) * deviation);
}

int k_fill_random_e4m3(k_e4m3 *out, size_t n, float deviation, uint64_t seed, k_stream stream)
{
    return K_LAUNCH(fill_random_e4m3_kernel, 4096, 256, 0, stream, out, n, deviation, seed);
}

/* --- the begin of a decode -------------------------------------------------------------------- */

/* One element per thread; 16 lanes add the squares of a part. */
static __global__ void embed_normed_kernel(float *x, void *normed, bool is_half, float *sums_out,
                                           const k_bf16 *table, const int32_t *ids,
                                           const int32_t *sampled, const k_bf16 *norm, int dim)
{
    int d = blockIdx.x * blockDim.x + threadIdx.x, col = blockIdx.y;
    int32_t id = ids[col];
    float value = 0.0f, square;

    let_next_begin();
    if (d < dim) {
        value = load_bf16(table + (size_t)(id < 0 ? sampled[-1 - id] : id) * dim + d);
        x[(size_t)col * dim + d] = value;
        store_x(normed, (size_t)col * dim + d, value * load_bf16(norm + d), is_half);
    }
    square = value * value;
    for (int apart = 8; apart > 0; apart /= 2)
        square += __shfl_xor_sync(~0U, square, apart);
    if (d < dim && d % 16 == 0)
        sums_out[(size_t)col * (dim / 16) + d / 16] = square;
}

int k_embed_normed(float *x, void *normed, bool normed_is_half, float *sums_out,
                   const k_bf16 *table, const int32_t *ids, const int32_t *sampled,
                   const k_bf16 *norm, int n, int dim, k_stream stream)
{
    return K_LAUNCH(embed_normed_kernel, dim3((dim + 255) / 256, n), 256, 0, stream, x, normed,
                    normed_is_half, sums_out, table, ids, sampled, norm, dim);
}
