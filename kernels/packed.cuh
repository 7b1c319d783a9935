/* SPDX-License-Identifier: Apache-2.0
 *
 * Records (packed.h) as kernels read them. */
#ifndef QUIRE_KERNELS_PACKED_CUH
#define QUIRE_KERNELS_PACKED_CUH

#include <cuda_fp16.h>

#include "kernels/common.cuh"
#include "kernels/packed.h"

#define PACKED_CODE_BYTES 1024 /* of a record of 4-bit codes */

/* A matrix of records. */
struct packed_shape {
    int n_in, n_records; /* of a row */
    int record_bytes, group;
    bool has_zeros, is_half; /* scales are float16 */
};

static inline struct packed_shape packed_shape_of(const struct k_matrix *w)
{
    const struct k_packing packing = k_packing_of(&w->format);
    struct packed_shape s = {};

    s.n_in = w->n_in;
    s.n_records = w->n_in / K_PACKED_COLS;
    s.record_bytes = (int)k_packed_record_bytes(&packing);
    s.group = packing.group;
    s.has_zeros = w->format.has_zeros;
    s.is_half = w->format.scale == K_F16;
    return s;
}

/* Two codes that are 16 bits apart, in the low bits of each half, as 128 + code in bfloat16. One
 * instruction; from plain C the compiler makes two. */
static __device__ __forceinline__ uint32_t packed_two(uint32_t codes)
{
    uint32_t two, magic;

    asm("mov.b32 %0, 0x43004300;" : "=r"(magic));
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(two) : "r"(codes), "r"(magic));
    return two;
}

/* The numbers of a group of columns, for rows g and g + 8 of a strip. */
struct packed_numbers {
    float scale[2], zero[2];
};

static __device__ inline float packed_scale(uint16_t bits, bool is_half)
{
    return is_half ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

static __device__ inline struct packed_numbers packed_numbers_of(const char *record, int group,
                                                                 int row,
                                                                 const struct packed_shape &s)
{
    const uint16_t *scales = (const uint16_t *)(record + PACKED_CODE_BYTES) + group * 16 + row;
    const uint8_t *zeros = (const uint8_t *)record + PACKED_CODE_BYTES +
                           K_PACKED_COLS / s.group * 32 + group * 16 + row;
    struct packed_numbers numbers = {
        {packed_scale(scales[0], s.is_half), packed_scale(scales[8], s.is_half)}, {8.0f, 8.0f}};

    if (s.has_zeros) {
        numbers.zero[0] = (float)zeros[0];
        numbers.zero[1] = (float)zeros[8];
    }
    return numbers;
}

#endif
