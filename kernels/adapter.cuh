/* SPDX-License-Identifier: Apache-2.0
 *
 * What all products of adapters on tensor cores share (adapter.cu, sm90_product_adapt.cuh). */
#ifndef QUIRE_KERNELS_ADAPTER_CUH
#define QUIRE_KERNELS_ADAPTER_CUH

#include "kernels/adapter.h"
#include "kernels/common.cuh"

/* Two numbers as N pairs in bfloat16, each the rest that the ones before leave. */
template <int N> static __device__ inline void adapter_divide(uint32_t parts[N], float x, float y)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        parts[i] = pack_bf16(x, y);
        x -= low_half(parts[i]), y -= high_half(parts[i]);
    }
}

/* Elements at .. at + 15 of a row of n; zeros behind its end. */
static __device__ inline void adapter_load_run(uint32_t words[8], const k_bf16 *row, int at, int n)
{
    if (n % 16 == 0) {
        uint4 zero = make_uint4(0, 0, 0, 0);
        uint4 first = at < n ? ((const uint4 *)(row + at))[0] : zero;
        uint4 second = at < n ? ((const uint4 *)(row + at))[1] : zero;

        words[0] = first.x, words[1] = first.y, words[2] = first.z, words[3] = first.w;
        words[4] = second.x, words[5] = second.y, words[6] = second.z, words[7] = second.w;
        return;
    }
    for (int i = 0; i < 8; i++) {
        int k = at + 2 * i;

        words[i] = (k < n ? row[k] : 0U) | (k + 1 < n ? (uint32_t)row[k + 1] << 16 : 0U);
    }
}

static __device__ inline void adapter_fetch_line(const void *p)
{
#ifdef gridDim
    (void)p; /* played on the host */
#else
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

#endif
