/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversion of e4m3 in registers: 8-bit floats, which bfloat16 and float16 represent exactly. */
#ifndef QUIRE_KERNELS_E4M3_CUH
#define QUIRE_KERNELS_E4M3_CUH

#include <cuda_fp16.h>

#include "kernels/common.cuh"

/* Two e4m3 as two float16. */
static __device__ __forceinline__ uint32_t half_two(uint32_t two)
{
    uint32_t halves;

    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)two));
    return halves;
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

#endif
