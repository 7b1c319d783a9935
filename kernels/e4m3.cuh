/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of e4m3 in registers: 8-bit floats, which bfloat16 and float16 represent exactly. */
#ifndef QUIRE_KERNELS_E4M3_CUH
#define QUIRE_KERNELS_E4M3_CUH

#include <cuda_fp16.h>

#include "kernels/common.cuh"

/* Two e4m3 as two float16; bits above the two do not matter. Without the instruction (it came with
 * 8.9), exponent and fraction are placed in a float16, which then is 2^8 too small, also if it is
 * subnormal; adding 1 to a code without its sign sets bit 7 for NaN alone. */
static __device__ __forceinline__ uint32_t half_two(uint32_t two)
{
#if __CUDA_ARCH__ >= 890
    uint32_t halves;

    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)two));
    return halves;
#else
    uint32_t apart = __byte_perm(two, 0, 0x4140), codes = apart & 0x007f007fU;
    uint32_t nan = ((codes + 0x00010001U) & 0x00800080U) * 0xfcU;
    uint32_t small = codes << 7, larger = 0x5c005c00U; /* 256 */
    __half2 halves = __hmul2(*(__half2 *)&small, *(__half2 *)&larger);

    return *(uint32_t *)&halves | nan | (apart & 0x00800080U) << 8;
#endif
}

/* Two e4m3 as two bfloat16. */
static __device__ __forceinline__ uint32_t widen_two(uint32_t two)
{
    uint32_t halves = half_two(two);
    float2 f = __half22float2(*(__half2 *)&halves);

    return pack_bf16(f.x, f.y);
}

/* Eight e4m3 as eight float16. */
static __device__ __forceinline__ uint4 half_eight(uint2 eight)
{
    return make_uint4(half_two(eight.x), half_two(eight.x >> 16), half_two(eight.y),
                      half_two(eight.y >> 16));
}

/* Eight e4m3 as eight bfloat16. */
static __device__ __forceinline__ uint4 widen_eight(uint2 eight)
{
    return make_uint4(widen_two(eight.x), widen_two(eight.x >> 16), widen_two(eight.y),
                      widen_two(eight.y >> 16));
}

/* Eight e4m3 times a scale as eight bfloat16. */
static __device__ __forceinline__ uint4 scaled_eight(uint2 eight, float scale)
{
    uint4 halves = half_eight(eight);
    uint32_t *two = &halves.x;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = __half22float2(*(__half2 *)&two[i]);

        two[i] = pack_bf16(f.x * scale, f.y * scale);
    }
    return halves;
}

#endif
