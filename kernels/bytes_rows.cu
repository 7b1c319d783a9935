/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of bfloat16 rounded to 8-bit whole numbers (bytes.h). */
#include "kernels/bytes.h"
#include "kernels/common.cuh"
#include "kernels/rng.h"

#define THREADS 256

/* Two of bfloat16 as whole numbers, in the lower bytes of a word. */
static __device__ inline uint32_t bytes_round_two(uint32_t two, float inverse)
{
    int low = __float2int_rn(low_half(two) * inverse);
    int high = __float2int_rn(high_half(two) * inverse);

    return __byte_perm((uint32_t)low, (uint32_t)high, 0x0040);
}

/* Elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16. */
static __device__ inline uint32_t bytes_round_four(uint32_t two, uint32_t next, float inverse)
{
    return __byte_perm(bytes_round_two(two, inverse), bytes_round_two(next, inverse), 0x5410);
}

/* The largest of the block's halves of words; shared: [THREADS / 32]. */
static __device__ inline uint32_t bytes_block_max(uint32_t most, uint32_t *shared)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        most = __vmaxu2(most, __shfl_xor_sync(~0U, most, i));
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++)
        most = __vmaxu2(most, shared[i]);
    return max(most >> 16, most & 0xffffU);
}

/* A block per row; it is read twice, the second time from the cache. */
static __global__ void __launch_bounds__(THREADS)
    round_bytes_kernel(int8_t *out, float *scales, const k_bf16 *x, int dim)
{
    __shared__ uint32_t most_of[THREADS / 32];
    const uint4 *from = (const uint4 *)(x + (size_t)blockIdx.x * dim);
    uint4 *to = (uint4 *)(out + (size_t)blockIdx.x * dim);
    uint32_t most = 0;
    float largest, inverse;

#pragma unroll 4
    for (int i = threadIdx.x; i < dim / 8; i += THREADS) {
        uint4 a = from[i];

        most = __vmaxu2(most, __vmaxu2(__vmaxu2(a.x & 0x7fff7fffU, a.y & 0x7fff7fffU),
                                       __vmaxu2(a.z & 0x7fff7fffU, a.w & 0x7fff7fffU)));
    }
    largest = __uint_as_float(bytes_block_max(most, most_of) << 16);
    inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
#pragma unroll 2
    for (int i = threadIdx.x; i < dim / 16; i += THREADS) {
        uint4 a = from[2 * i], b = from[2 * i + 1];

        to[i] =
            make_uint4(bytes_round_four(a.x, b.x, inverse), bytes_round_four(a.y, b.y, inverse),
                       bytes_round_four(a.z, b.z, inverse), bytes_round_four(a.w, b.w, inverse));
    }
    if (threadIdx.x == 0)
        scales[blockIdx.x] = largest / 127.0f;
}

static __global__ void fill_random_bytes_kernel(int8_t *out, size_t n, float deviation,
                                                uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = (int8_t)min(max(__float2int_rn(k_noise(seed, i) * deviation), -127), 127);
}

int k_fill_random_bytes(int8_t *out, size_t n, float deviation, uint64_t seed, k_stream stream)
{
    return K_LAUNCH(fill_random_bytes_kernel, 4096, THREADS, 0, stream, out, n, deviation, seed);
}

int k_round_bytes(const struct k_bytes *out, const k_bf16 *x, int n, int dim, k_stream stream)
{
    return K_LAUNCH(round_bytes_kernel, n, THREADS, 0, stream, out->data, out->scales, x, dim);
}
