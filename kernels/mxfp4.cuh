/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of MXFP4 (mxfp4.h) as first operands of products of bfloat16.
 *
 * An e2m1 whose bits are shifted to the sign, the lower exponent bits and the upper mantissa bit of
 * a bfloat16 is the value times 2^-126, also where it is subnormal. One multiplication with a power
 * of two makes it the weight times 2^-MXFP4_SHIFT, which is exact for exponents of 59 .. 192
 * (scales of 2^-68 .. 2^65); larger ones are 192 in a record. Sums are multiplied by 2^MXFP4_SHIFT
 * at the end. Without it scales above 2 would need a power of two that bfloat16 does not have.
 *
 * Products of few rows of x leave that multiplication out, which is four instructions for eight
 * weights: x is multiplied with 2^MXFP4_SHIFT beforehand, and the sum of a run of 32 columns with
 * the scale's power. Elements of x from 2^63 on become infinite there; sums are as exact as those
 * of scaled weights. */
#ifndef QUIRE_KERNELS_MXFP4_CUH
#define QUIRE_KERNELS_MXFP4_CUH

#include "kernels/common.cuh"
#include "kernels/mxfp4.h"

#define MXFP4_SHIFT  64
#define MXFP4_LARGER 0x1p64f /* 2^MXFP4_SHIFT */

/* 2^(e - 1 - MXFP4_SHIFT) in both halves. */
static __device__ __forceinline__ uint32_t mxfp4_power(uint32_t e)
{
    return e * 0x00800080U + (126 - MXFP4_SHIFT) * 0x00800080U;
}

/* Two of bfloat16 times two others. */
static __device__ __forceinline__ uint32_t mxfp4_times(uint32_t x, uint32_t y)
{
#if __CUDA_ARCH__ >= 900
    uint32_t z;

    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
#else
    __nv_bfloat162 product = __hmul2(*(__nv_bfloat162 *)&x, *(__nv_bfloat162 *)&y);

    return *(uint32_t *)&product;
#endif
}

/* A word of codes (k_float4_spread()) as four of bfloat16, times 2^-126: nine instructions for
 * eight weights. */
static __device__ __forceinline__ void float4_widen(uint32_t (&two)[4], uint32_t codes)
{
    const uint32_t mask = 0x81c081c0U;

    two[0] = codes << 6 & mask;
    two[1] = codes << 2 & mask;
    two[2] = __funnelshift_r(codes, codes, 4) & mask;
    two[3] = (codes & 0x81808180U) | (codes >> 8 & 0x00400040U);
}

/* A word of codes as the operand of a product of 16 x 16: register r has row g + 8 (r % 2). */
static __device__ __forceinline__ void mxfp4_operand(uint32_t (&a)[4], uint32_t codes, uint32_t low,
                                                     uint32_t high)
{
    float4_widen(a, codes);
    a[0] = mxfp4_times(a[0], low);
    a[1] = mxfp4_times(a[1], high);
    a[2] = mxfp4_times(a[2], low);
    a[3] = mxfp4_times(a[3], high);
}

/* Eight elements of x times 2^MXFP4_SHIFT, for products with codes that are not scaled. */
static __device__ __forceinline__ uint4 mxfp4_raise(const uint4 &x)
{
    const uint32_t larger = (127 + MXFP4_SHIFT) * 0x00800080U;

    return make_uint4(mxfp4_times(x.x, larger), mxfp4_times(x.y, larger), mxfp4_times(x.z, larger),
                      mxfp4_times(x.w, larger));
}

/* The scale of such sums, but for MXFP4_SUMS_LARGER: 2^(e - 127), which is a shift alone. */
#define MXFP4_SUMS_LARGER 0x1p62f /* 2^(126 - MXFP4_SHIFT) */

static __device__ __forceinline__ float mxfp4_scale(uint32_t e)
{
    return __uint_as_float(e << 23);
}

/* A lane's codes of 64 columns of a record, its first or second part: a word for each 16. */
static __device__ __forceinline__ uint4 mxfp4_codes(const char *record, int part)
{
    return *(const uint4 *)(record + part * (K_MXFP4_CODES / 2) + threadIdx.x % 32 * 16);
}

/* The powers of a lane's rows g and g + 8 for a group of a record. */
static __device__ __forceinline__ uint2 mxfp4_powers(const char *record, int group)
{
    const uint8_t *e = (const uint8_t *)record + K_MXFP4_CODES + group * 16 + threadIdx.x % 32 / 4;

    return make_uint2(mxfp4_power(e[0]), mxfp4_power(e[8]));
}

/* Their scales. */
static __device__ __forceinline__ float2 mxfp4_scales(const char *record, int group)
{
    const uint8_t *e = (const uint8_t *)record + K_MXFP4_CODES + group * 16 + threadIdx.x % 32 / 4;

    return make_float2(mxfp4_scale(e[0]), mxfp4_scale(e[8]));
}

#endif
