/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by all kernels: the launch, bfloat16, sums over a block. */
#ifndef QUIRE_KERNELS_COMMON_CUH
#define QUIRE_KERNELS_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/kernels.h"

/* The stream is an argument, not an option, so that a launch on the default stream cannot be
 * written by omission. */
#define K_LAUNCH(kernel, grid, block, smem, stream, ...)         \
    (kernel<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__), \
     cudaPeekAtLastError() == cudaSuccess ? 0 : -1)

/* A launch without shared memory that may begin while the kernel in front of it still runs
 * (wait_for_previous()). */
#define K_LAUNCH_EARLY(kernel, grid, block, stream, ...) \
    launch_early(kernel, dim3(grid), (block), (stream), __VA_ARGS__)

typedef __nv_bfloat16 bf16;

#ifndef gridDim /* else kernels are played on the host */
template <class... P, class... A>
static inline int launch_early(void (*kernel)(P...), dim3 grid, unsigned block, k_stream stream,
                               A... args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = k_is_portable() ? 0 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? 0 : -1;
}
#endif

static __device__ inline const bf16 *as_bf16(const k_bf16 *p)
{
    return (const bf16 *)p;
}

static __device__ inline bf16 *as_bf16(k_bf16 *p)
{
    return (bf16 *)p;
}

static __device__ inline float load_bf16(const k_bf16 *p)
{
    return __bfloat162float(*as_bf16(p));
}

static __device__ inline void store_bf16(k_bf16 *p, float x)
{
    *as_bf16(p) = __float2bfloat16(x);
}

/* Two bfloat16 packed in a word, the first in the lower half. */
static __device__ inline float low_half(uint32_t two)
{
    return __uint_as_float(two << 16);
}

static __device__ inline float high_half(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000U);
}

static __device__ inline uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(low, high);

    return *(uint32_t *)&two;
}

/* Eight consecutive elements, aligned to 16 bytes. */
static __device__ inline void load_eight(float *v, const k_bf16 *from)
{
    uint4 a = *(const uint4 *)from;

    v[0] = low_half(a.x), v[1] = high_half(a.x), v[2] = low_half(a.y), v[3] = high_half(a.y);
    v[4] = low_half(a.z), v[5] = high_half(a.z), v[6] = low_half(a.w), v[7] = high_half(a.w);
}

static __device__ inline void store_eight(k_bf16 *to, const float *v)
{
    *(uint4 *)to = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                              pack_bf16(v[6], v[7]));
}

/* Two float16 packed in a word, clamped to the largest; NaN stays NaN. */
static __device__ inline uint32_t pack_half(float low, float high)
{
#ifdef gridDim
    __half2 pair = __floats2half2_rn(low, high);

    return *(uint32_t *)&pair;
#else
    uint32_t two;

    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
#endif
}

/* Store element `at` of the input of a product; is_half: of a product with e4m3 (K_HALF_AT). */
static __device__ inline void store_x(void *to, size_t at, float x, bool is_half)
{
    if (is_half)
        ((uint16_t *)to)[K_HALF_AT(at)] = (uint16_t)pack_half(x, 0.0f);
    else
        store_bf16((k_bf16 *)to + at, x);
}

/* Store two elements, the first of which has an even index. */
static __device__ inline void store_x_two(void *to, size_t at, float low, float high, bool is_half)
{
    *(uint32_t *)((uint16_t *)to + (is_half ? K_HALF_AT(at) : at)) =
        is_half ? pack_half(low, high) : pack_bf16(low, high);
}

/* On Hopper a launch may begin while the one in front of it still runs (programmatic stream
 * serialization): wait for its end, or let the next one begin. Code for other GPUs has nothing
 * here, and its launches do not overlap. */
static __device__ __forceinline__ void wait_for_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* 2^x within 2 ulp; 0 at -infinity. */
static __device__ inline float exp2_fast(float x)
{
#ifdef gridDim
    return exp2f(x); /* played on the host */
#else
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* cap * tanh(x / cap) of a score x, both in units of log2; cap 0: x. */
static __device__ inline float soft_cap(float x, float cap)
{
    constexpr float TWICE_LOG2_E = 2.88539008f;

    if (cap == 0.0f)
        return x;
    return cap - 2.0f * cap / (exp2_fast(x / cap * TWICE_LOG2_E) + 1.0f);
}

/* Sum over a block of whole warps, returned to all threads, in a fixed order; shared: float
 * [33]. */
static __device__ inline float block_sum(float x, float *shared)
{
    int n_warps = blockDim.x / 32;

    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = (int)threadIdx.x % 32 < n_warps ? shared[threadIdx.x % 32] : 0.0f;
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    return x;
}

#endif
