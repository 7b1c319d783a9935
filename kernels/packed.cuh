/* SPDX-License-Identifier: Apache-2.0
 *
 * Records (packed.h) as kernels read them. */
#ifndef QUIRE_KERNELS_PACKED_CUH
#define QUIRE_KERNELS_PACKED_CUH

#include <cuda_fp16.h>

#include "kernels/common.cuh"
#include "kernels/mxfp4.cuh"
#include "kernels/packed.h"

#define PACKED_CODE_BYTES 1024 /* of a record of 4-bit codes; of 8-bit ones twice as many */

/* A matrix of records. */
struct packed_shape {
    int n_in, n_records; /* of a row */
    int record_bytes, group;
    bool has_zeros, is_half; /* scales are float16 */
    bool is_float;           /* codes are e2m1 */
    int code_bytes;          /* of a record */
    int middle;              /* the zero where none is stored */
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
    s.is_float = packing.is_float;
    s.code_bytes = PACKED_CODE_BYTES / 4 * packing.bits;
    s.middle = k_format_middle(&w->format);
    return s;
}

/* Two codes that are 16 bits apart, in the low bits of each half, as 128 + code in bfloat16. One
 * instruction; from plain C the compiler makes two. */
static __device__ __forceinline__ uint32_t packed_two(uint32_t codes)
{
#ifdef gridDim /* played on the host */
    return (codes & 0x000f000fU) | 0x43004300U;
#else
    uint32_t two, magic;

    asm("mov.b32 %0, 0x43004300;" : "=r"(magic));
    asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(two) : "r"(codes), "r"(magic));
    return two;
#endif
}

/* A code in the low four bits of a bfloat16 is code * 2^-133, a subnormal number, which the tensor
 * cores and fused operations take as it is; in the next four bits it is 16 times that. A code of
 * eight bits reaches the lowest bit of the exponent, whose numbers begin at 128 * 2^-133: so it is
 * code * 2^-133, too. */
#define CODE_LOW  0x000f000fU
#define CODE_HIGH 0x00f000f0U

/* The codes of 8 bits of rows g and of rows g + 8 in a word, 16 bits apart. */
static __device__ __forceinline__ uint32_t packed_low_bytes(uint32_t codes)
{
    return __byte_perm(codes, 0, 0x4240);
}

static __device__ __forceinline__ uint32_t packed_high_bytes(uint32_t codes)
{
    return __byte_perm(codes, 0, 0x4341);
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
    const uint16_t *scales = (const uint16_t *)(record + s.code_bytes) + group * 16 + row;
    const uint8_t *zeros =
        (const uint8_t *)record + s.code_bytes + K_PACKED_COLS / s.group * 32 + group * 16 + row;
    float middle = (float)s.middle;
    struct packed_numbers numbers = {
        {packed_scale(scales[0], s.is_half), packed_scale(scales[8], s.is_half)}, {middle, middle}};

    if (s.has_zeros) {
        numbers.zero[0] = (float)zeros[0];
        numbers.zero[1] = (float)zeros[8];
    }
    return numbers;
}

/* --- floats ----------------------------------------------------------------------------------- */

/* The bits of an e2m1 at the sign, the lower exponent bits and the upper mantissa bit of a bfloat16
 * are its value times 2^-126 (mxfp4.cuh). A scale of e5m3 whose bits are shifted and added to
 * exponent FLOAT_SCALE is 2^126 times what it means, so one multiplication makes the weight, which
 * has at most six significant bits: exact. */
#define FLOAT_SCALE 0x6f006f00U /* the exponent 222, twice */

/* The scales of rows g and g + 8, in the halves of a word. bytes: of two groups, as the record has
 * them; pick: the selector of the group's two bytes. */
#define FLOAT_PICK(group) ((group) % 2 == 0 ? 0x4140U : 0x4342U)

static __device__ __forceinline__ uint32_t packed_float_scales(uint32_t bytes, uint32_t pick)
{
    return __byte_perm(bytes, 0, pick) * 16 + FLOAT_SCALE;
}

/* A word of codes as the operand of a product of 16 x 16: register r has row g + 8 (r % 2).
 * scales: of packed_float_scales(); the multiplications read one half twice, which is part of the
 * instruction if it is written like this. */
static __device__ __forceinline__ void packed_float_operand(uint32_t (&a)[4], uint32_t codes,
                                                            uint32_t scales)
{
    uint32_t low = (scales & 0xffffU) * 0x00010001U, high = (scales >> 16) * 0x00010001U;

#if __CUDA_ARCH__ >= 900
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; mov.b32 %0, {l, l}; mov.b32 %1, {h, h}; }"
        : "=r"(low), "=r"(high)
        : "r"(scales));
#endif
    float4_widen(a, codes);
    a[0] = mxfp4_times(a[0], low);
    a[1] = mxfp4_times(a[1], high);
    a[2] = mxfp4_times(a[2], low);
    a[3] = mxfp4_times(a[3], high);
}

#endif
