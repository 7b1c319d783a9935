/* SPDX-License-Identifier: Apache-2.0
 *
 * From the rows of a file to the arrangement of mxfp4.h, once, when a model is loaded.
 *
 * Split: a block has a strip, a warp every so-many-th half of a record; a lane makes the 16 bytes
 * that it will read in a product. They are eight codes of two rows at two places, so a lane reads
 * four words. */
#include "kernels/common.cuh"
#include "kernels/mxfp4.h"
#include "kernels/packed.h"
#include "kernels/rng.h"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* Every exponent of a random matrix: weights get a deviation of about 0.02. */
#define RANDOM_EXPONENT 120

/* An expert as it is in the file: codes [n_rows][n_in / 2], exponents [n_rows][n_in / 32]. */
struct arrange_args {
    uint8_t *out;
    const uint8_t *codes, *exponents;
    struct k_mxfp4_rows rows;
    int n_in;
};

/* Four codes of rows g and g + 8, as a word of a fragment whose bits are spread (packed.h). */
static __device__ inline uint32_t mxfp4_weave(uint32_t low, uint32_t high)
{
    uint32_t word = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int to = i % 2 * 16 + i / 2 * 8;

        word |= (low >> 4 * i & 15) << to | (high >> 4 * i & 15) << (to + 4);
    }
    return k_float4_spread(word);
}

/* Eight codes of a row; zeros past its end, and of a row that there is not. */
static __device__ inline uint32_t mxfp4_eight_codes(const arrange_args &a, int row, int col)
{
    if (row < 0 || col >= a.n_in)
        return 0;
    return *(const uint32_t *)(a.codes + (size_t)row * (a.n_in / 2) + col / 2);
}

static __global__ void __launch_bounds__(THREADS) arrange_kernel(arrange_args a)
{
    int n_records = k_mxfp4_records(a.n_in), lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    uint8_t *strip = a.out + (size_t)blockIdx.x * n_records * K_MXFP4_RECORD;
    int low = k_mxfp4_row(&a.rows, blockIdx.x, g), high = k_mxfp4_row(&a.rows, blockIdx.x, g + 8);

    for (int half = threadIdx.x / 32; half < 2 * n_records; half += WARPS) {
        uint32_t word[4];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int col = half * 64 + i * 32 + q * 8;
            uint32_t of_low = mxfp4_eight_codes(a, low, col),
                     of_high = mxfp4_eight_codes(a, high, col);

            word[2 * i] = mxfp4_weave(of_low, of_high);
            word[2 * i + 1] = mxfp4_weave(of_low >> 16, of_high >> 16);
        }
        *(uint4 *)(strip + (size_t)(half / 2) * K_MXFP4_RECORD + half % 2 * (K_MXFP4_CODES / 2) +
                   lane * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    for (int i = threadIdx.x; i < n_records * 64; i += THREADS) {
        int row = k_mxfp4_row(&a.rows, blockIdx.x, i % 16), group = i / 16, n = a.n_in / 32;

        strip[(size_t)(i / 64) * K_MXFP4_RECORD + K_MXFP4_CODES + i % 64] =
            row >= 0 && group < n
                ? min(a.exponents[(size_t)row * n + group], (uint8_t)K_MXFP4_EXPONENT_MAX)
                : 0;
    }
}

int k_mxfp4_arrange(void *out, const void *codes, const void *exponents,
                    const struct k_mxfp4_rows *rows, int n_in, k_stream stream)
{
    arrange_args a = {(uint8_t *)out, (const uint8_t *)codes, (const uint8_t *)exponents, *rows,
                      n_in};

    if (n_in % K_MXFP4_GROUP != 0)
        return -1;
    return K_LAUNCH(arrange_kernel, k_mxfp4_strips(rows->n_rows), THREADS, 0, stream, a);
}

/* A thread has four bytes, which are all codes or all exponents. */
static __global__ void fill_random_mxfp4_kernel(uint32_t *out, size_t n, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = i % (K_MXFP4_RECORD / 4) < K_MXFP4_CODES / 4 ? (uint32_t)k_random(seed, i)
                                                              : RANDOM_EXPONENT * 0x01010101U;
}

int k_fill_random_mxfp4(void *out, size_t bytes, uint64_t seed, k_stream stream)
{
    return K_LAUNCH(fill_random_mxfp4_kernel, 4096, 256, 0, stream, (uint32_t *)out, bytes / 4,
                    seed);
}
