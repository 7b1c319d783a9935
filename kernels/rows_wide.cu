/* SPDX-License-Identifier: Apache-2.0
 *
 * Row operations that need a sum or a maximum over the row, or move many bytes: RMS norm, silu * up
 * and rounding to e4m3, in one pass that holds a row in registers.
 *
 * One block per row; a thread has CHUNKS chunks of 8 elements; chunk c of thread t is chunk c *
 * threads + t of the row. Sums are taken over 32 consecutive chunks first, then over those sums in
 * order, so that the bits do not depend on how many threads share a row. Rows whose length is not a
 * multiple of 8, or above WIDE_DIM_MAX, are computed by the plain kernels below. */
#include <cuda_fp8.h>

#include "kernels/common.cuh"
#include "kernels/e4m3.h"

#define CHUNK      8
#define CHUNKS_MAX 16
/* With up to 4 chunks; beyond that half as many, so that chunks stay in registers. */
#define THREADS_MAX   1024
#define WIDE_DIM_MAX  (CHUNK * CHUNKS_MAX * THREADS_MAX / 2)
#define PLAIN_THREADS 512 /* per row in the plain kernels */
#define N_PARTS       (CHUNKS_MAX * THREADS_MAX / 2 / 32)
#define FEW_ROWS      256 /* up to here a row gets many threads, because there is room for them */
#define MANY_THREADS  256 /* per row of many: more chunks per thread, so more loads in flight */
/* For silu, which computes more: 4.4 TB/s, against 3.9 with 512 (H200). */
#define MANY_SILU 1024

static_assert(WIDE_DIM_MAX >= K_QUANTISED_DIM_MAX, "e4m3 has no plain kernel");

enum row_source { FROM_X, FROM_SUM, FROM_SILU, FROM_BF16 };
enum row_result { TO_BF16, TO_ROWS, TO_BLOCKS };

struct row_args {
    k_bf16 *out;          /* TO_BF16 */
    struct k_quantised q; /* TO_ROWS, TO_BLOCKS */
    float *x;             /* FROM_X, FROM_SUM; written by the latter */
    const k_bf16 *in;     /* the summand; gate and up; or the row itself */
    const k_bf16 *weight; /* of the norm */
    float eps;
    int dim;
};

/* x * sigmoid(x), with the fast exponential: its error is far below bfloat16's. */
static __device__ inline float rows_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

static __device__ inline void rows_load_chunk(float *v, const float *from)
{
    float4 first = ((const float4 *)from)[0], second = ((const float4 *)from)[1];

    v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
    v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
}

/* Eight consecutive float32. */
static __device__ inline void rows_load_chunk(float *v, const k_bf16 *from)
{
    load_eight(v, from);
}

static __device__ inline void rows_store_chunk(float *to, const float *v)
{
    ((float4 *)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

static __device__ inline void rows_store_chunk(k_bf16 *to, const float *v)
{
    store_eight(to, v);
}

/* Four numbers to one word, saturating at 448. */
static __device__ inline uint32_t rows_pack_e4m3(float a, float b, float c, float d)
{
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);

    return low | high << 16;
}

static __device__ inline void rows_store_chunk(k_e4m3 *to, const float *v, float inverse)
{
    *(uint2 *)to =
        make_uint2(rows_pack_e4m3(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse),
                   rows_pack_e4m3(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse));
}

/* Read one chunk of the row, before any norm. */
template <int SOURCE>
static __device__ inline void rows_read_chunk(float *v, const row_args &a, int d)
{
    size_t at = (size_t)blockIdx.x * a.dim + d;

    if (SOURCE == FROM_X)
        rows_load_chunk(v, a.x + at);
    if (SOURCE == FROM_BF16)
        rows_load_chunk(v, a.in + at);
    if (SOURCE == FROM_SUM) {
        float delta[CHUNK];

        rows_load_chunk(v, a.x + at);
        rows_load_chunk(delta, a.in + at);
        for (int i = 0; i < CHUNK; i++)
            v[i] += delta[i];
        rows_store_chunk(a.x + at, v);
    }
    if (SOURCE == FROM_SILU) {
        const k_bf16 *gate = a.in + 2 * (size_t)blockIdx.x * a.dim + d;
        float up[CHUNK];

        rows_load_chunk(v, gate);
        rows_load_chunk(up, gate + a.dim);
        for (int i = 0; i < CHUNK; i++)
            v[i] = rows_silu(v[i]) * up[i];
    }
}

/* Multiply the row by weight / sqrt(mean(x^2) + eps). parts: float [N_PARTS], shared. */
template <int CHUNKS>
static __device__ inline void rows_norm_row(float v[][CHUNK], const row_args &a, float *parts)
{
    int n_parts = (a.dim + 32 * CHUNK - 1) / (32 * CHUNK), threads = blockDim.x;
    int tid = threadIdx.x, lane = tid % 32;
    float scale, sum;

#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        sum = 0.0f;
        for (int i = 0; i < CHUNK; i++)
            sum += v[chunk][i] * v[chunk][i];
        for (int i = 16; i > 0; i /= 2)
            sum += __shfl_xor_sync(~0U, sum, i);
        if (lane == 0)
            parts[(chunk * threads + tid) / 32] = sum;
    }
    __syncthreads();
    sum = 0.0f;
    for (int i = lane; i < n_parts; i += 32)
        sum += parts[i];
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(~0U, sum, i);
    scale = rsqrtf(sum / a.dim + a.eps);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int d = (chunk * threads + tid) * CHUNK;
        float weight[CHUNK];

        if (d >= a.dim)
            break;
        rows_load_chunk(weight, a.weight + d);
        for (int i = 0; i < CHUNK; i++)
            v[chunk][i] *= scale * weight[i];
    }
}

/* The largest magnitude of a chunk. */
static __device__ inline float rows_chunk_amax(const float *v)
{
    float amax = 0.0f;

    for (int i = 0; i < CHUNK; i++)
        amax = fmaxf(amax, fabsf(v[i]));
    return amax;
}

/* Round with one scale for the row. tops: float [32], shared. */
template <int CHUNKS>
static __device__ inline void rows_round_row(float v[][CHUNK], const row_args &a, float *tops)
{
    int threads = blockDim.x, tid = threadIdx.x, lane = tid % 32;
    float amax = 0.0f, scale;

    if (a.q.x_scale != NULL) {
        scale = *a.q.x_scale;
    } else {
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            amax = fmaxf(amax, rows_chunk_amax(v[chunk]));
        for (int i = 16; i > 0; i /= 2)
            amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, i));
        if (lane == 0)
            tops[tid / 32] = amax;
        __syncthreads();
        amax = lane < threads / 32 ? tops[lane] : 0.0f;
        for (int i = 16; i > 0; i /= 2)
            amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, i));
        scale = k_e4m3_scale(amax);
    }
    if (tid == 0)
        a.q.scales[blockIdx.x] = scale;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int d = (chunk * threads + tid) * CHUNK;

        if (d < a.dim)
            rows_store_chunk(a.q.data + (size_t)blockIdx.x * a.dim + d, v[chunk], 1.0f / scale);
    }
}

/* Round with one scale per run of K_E4M3_BLOCK elements, which 16 lanes hold. */
template <int CHUNKS>
static __device__ inline void rows_round_runs(float v[][CHUNK], const row_args &a)
{
    static_assert(K_E4M3_BLOCK == 16 * CHUNK, "half a warp holds a run");
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int d = (chunk * (int)blockDim.x + (int)threadIdx.x) * CHUNK;
        float amax = rows_chunk_amax(v[chunk]), scale;

        for (int i = 8; i > 0; i /= 2)
            amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, i));
        if (d >= a.dim)
            continue;
        scale = k_e4m3_scale(amax);
        if (d % K_E4M3_BLOCK == 0)
            a.q.scales[(size_t)(d / K_E4M3_BLOCK) * a.q.stride + blockIdx.x] = scale;
        rows_store_chunk(a.q.data + (size_t)blockIdx.x * a.dim + d, v[chunk], 1.0f / scale);
    }
}

template <int SOURCE, int RESULT, int CHUNKS>
static __global__ void __launch_bounds__(CHUNKS <= 4 ? THREADS_MAX : THREADS_MAX / 2)
    row_kernel(const row_args a)
{
    __shared__ float parts[N_PARTS], tops[32];
    float values[CHUNKS][CHUNK];

    wait_for_previous();
    let_next_begin();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int d = (chunk * (int)blockDim.x + (int)threadIdx.x) * CHUNK;

        if (d < a.dim) {
            rows_read_chunk<SOURCE>(values[chunk], a, d);
        } else {
            for (int i = 0; i < CHUNK; i++)
                values[chunk][i] = 0.0f;
        }
    }
    if (SOURCE == FROM_X || SOURCE == FROM_SUM)
        rows_norm_row<CHUNKS>(values, a, parts);
    if (RESULT == TO_ROWS)
        rows_round_row<CHUNKS>(values, a, tops);
    if (RESULT == TO_BLOCKS)
        rows_round_runs<CHUNKS>(values, a);
#pragma unroll
    for (int chunk = 0; RESULT == TO_BF16 && chunk < CHUNKS; chunk++) {
        int d = (chunk * (int)blockDim.x + (int)threadIdx.x) * CHUNK;

        if (d < a.dim)
            rows_store_chunk(a.out + (size_t)blockIdx.x * a.dim + d, values[chunk]);
    }
}

/* The fewest chunks per thread with which the row fits into a block. */
static int rows_chunks_of(int n, int dim, int many_threads)
{
    int n_chunks = (dim + CHUNK - 1) / CHUNK;

    for (int chunk = 1; chunk < CHUNKS_MAX; chunk *= 2) {
        int most = chunk <= 4 ? THREADS_MAX : THREADS_MAX / 2;

        if (n > FEW_ROWS && many_threads < most)
            most = many_threads;
        if ((n_chunks + chunk - 1) / chunk <= most)
            return chunk;
    }
    return CHUNKS_MAX;
}

/* The number of chunks per thread is a template argument, so that chunks stay in registers. */
template <int SOURCE, int RESULT> static int rows_launch(const row_args &a, int n, k_stream stream)
{
    int chunks = rows_chunks_of(n, a.dim, SOURCE == FROM_SILU ? MANY_SILU : MANY_THREADS);
    int per_warp = chunks * CHUNK * 32;
    int threads = (a.dim + per_warp - 1) / per_warp * 32;

    switch (chunks) {
    case 1: return K_LAUNCH_EARLY((row_kernel<SOURCE, RESULT, 1>), n, threads, stream, a);
    case 2: return K_LAUNCH_EARLY((row_kernel<SOURCE, RESULT, 2>), n, threads, stream, a);
    case 4: return K_LAUNCH_EARLY((row_kernel<SOURCE, RESULT, 4>), n, threads, stream, a);
    case 8: return K_LAUNCH_EARLY((row_kernel<SOURCE, RESULT, 8>), n, threads, stream, a);
    default: return K_LAUNCH_EARLY((row_kernel<SOURCE, RESULT, 16>), n, threads, stream, a);
    }
}

/* One scale per row, or one per run of 128 elements if there is a stride. */
template <int SOURCE> static int rows_launch_e4m3(const row_args &a, int n, k_stream stream)
{
    if (a.dim % 16 != 0 || a.dim > K_QUANTISED_DIM_MAX)
        return -1;
    return a.q.stride == 0 ? rows_launch<SOURCE, TO_ROWS>(a, n, stream)
                           : rows_launch<SOURCE, TO_BLOCKS>(a, n, stream);
}

/* Rows that fit into the registers of one block. */
static bool rows_is_wide(int dim)
{
    return dim % CHUNK == 0 && dim <= WIDE_DIM_MAX;
}

/* delta may be NULL; then x is only read. */
static __global__ void rmsnorm_kernel(k_bf16 *out, float *x, const k_bf16 *delta,
                                      const k_bf16 *weight, float eps, int dim)
{
    __shared__ float shared[33];
    size_t at = (size_t)blockIdx.x * dim;
    float sum = 0.0f, scale;

    for (int d = threadIdx.x; d < dim; d += blockDim.x) {
        float value = x[at + d];

        if (delta != NULL) {
            value += load_bf16(delta + at + d);
            x[at + d] = value;
        }
        sum += value * value;
    }
    scale = rsqrtf(block_sum(sum, shared) / dim + eps);
    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        store_bf16(out + at + d, x[at + d] * scale * load_bf16(weight + d));
}

/* The plain form, for rows that are not a multiple of 8. */
static __global__ void silu_mul_kernel(k_bf16 *out, const k_bf16 *in, int ff_dim)
{
    const k_bf16 *gate = in + (size_t)blockIdx.x * 2 * ff_dim;

    for (int d = threadIdx.x; d < ff_dim; d += blockDim.x)
        store_bf16(out + (size_t)blockIdx.x * ff_dim + d,
                   rows_silu(load_bf16(gate + d)) * load_bf16(gate + ff_dim + d));
}

int k_rmsnorm(k_bf16 *out, const float *x, const k_bf16 *weight, float eps, int n, int dim,
              k_stream stream)
{
    row_args args = {};

    args.out = out;
    args.x = (float *)x;
    args.weight = weight;
    args.eps = eps;
    args.dim = dim;
    if (rows_is_wide(dim))
        return rows_launch<FROM_X, TO_BF16>(args, n, stream);
    return K_LAUNCH(rmsnorm_kernel, n, PLAIN_THREADS, 0, stream, out, (float *)x, NULL, weight, eps,
                    dim);
}

int k_add_rmsnorm(k_bf16 *out, float *x, const k_bf16 *delta, const k_bf16 *weight, float eps,
                  int n, int dim, k_stream stream)
{
    row_args args = {};

    args.out = out;
    args.x = x;
    args.in = delta;
    args.weight = weight;
    args.eps = eps;
    args.dim = dim;
    if (rows_is_wide(dim))
        return rows_launch<FROM_SUM, TO_BF16>(args, n, stream);
    return K_LAUNCH(rmsnorm_kernel, n, PLAIN_THREADS, 0, stream, out, x, delta, weight, eps, dim);
}

int k_silu_mul(k_bf16 *out, const k_bf16 *in, int n, int ff_dim, k_stream stream)
{
    row_args args = {};

    args.out = out;
    args.in = in;
    args.dim = ff_dim;
    if (rows_is_wide(ff_dim))
        return rows_launch<FROM_SILU, TO_BF16>(args, n, stream);
    return K_LAUNCH(silu_mul_kernel, n, PLAIN_THREADS, 0, stream, out, in, ff_dim);
}

/* The input is bf16 already; nothing is computed but the scale. */
int k_quantise(const struct k_quantised *out, const k_bf16 *x, int n, int dim, k_stream stream)
{
    row_args args = {};

    args.q = *out;
    args.in = x;
    args.dim = dim;
    return rows_launch_e4m3<FROM_BF16>(args, n, stream);
}

int k_rmsnorm_e4m3(const struct k_quantised *out, const float *x, const k_bf16 *weight, float eps,
                   int n, int dim, k_stream stream)
{
    row_args args = {};

    args.q = *out;
    args.x = (float *)x;
    args.weight = weight;
    args.eps = eps;
    args.dim = dim;
    return rows_launch_e4m3<FROM_X>(args, n, stream);
}

int k_add_rmsnorm_e4m3(const struct k_quantised *out, float *x, const k_bf16 *delta,
                       const k_bf16 *weight, float eps, int n, int dim, k_stream stream)
{
    row_args args = {};

    args.q = *out;
    args.x = x;
    args.in = delta;
    args.weight = weight;
    args.eps = eps;
    args.dim = dim;
    return rows_launch_e4m3<FROM_SUM>(args, n, stream);
}

int k_silu_mul_e4m3(const struct k_quantised *out, const k_bf16 *in, int n, int ff_dim,
                    k_stream stream)
{
    row_args args = {};

    args.q = *out;
    args.in = in;
    args.dim = ff_dim;
    return rows_launch_e4m3<FROM_SILU>(args, n, stream);
}
