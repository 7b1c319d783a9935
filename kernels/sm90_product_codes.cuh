/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes in records (packed.h) as the first operand of sm90_product.cu: stages of strips, and their
 * way through registers, where they become bfloat16.
 *
 * A stage has the block's strips, each [slabs][record]; a slab is a record, 128 columns. The four
 * warps of a warpgroup have a strip each, whose fragments are those of wgmma's first operand. x is
 * bfloat16 in the order of the columns.
 *
 * 128 | code is 128 + code in bfloat16; 128 + zero is subtracted, which is exact, and the
 * difference multiplied by the group's scale. A scale of float16 is the sum of two bfloat16, and
 * its product with a code one fused operation: so the operand is the weight, rounded once. Floats
 * are exact (packed.cuh) but for the scale of their row, which the epilogue applies. */
#ifndef QUIRE_KERNELS_SM90_PRODUCT_CODES_CUH
#define QUIRE_KERNELS_SM90_PRODUCT_CODES_CUH

#include "kernels/packed.cuh"
#include "kernels/sm90_product_end.cuh"

static inline wide_codes codes_of(const struct k_matrix *w)
{
    const struct packed_shape s = packed_shape_of(w);

    return {(const char *)w->data, s.record_bytes, K_PACKED_COLS / s.group, s.has_zeros, s.is_half};
}

/* --- loads ------------------------------------------------------------------------------------ */

/* Load records of a block's strips: by one lane. */
static __device__ inline void codes_load_strips(char *to, const wide_codes &codes, int row,
                                                int slab, const product_cut &c, uint64_t *bar)
{
    int n_slabs = min(c.box, c.n_slabs - slab), n_strips;
    uint32_t bytes = (uint32_t)(n_slabs * codes.record_bytes);
    size_t strip_bytes = (size_t)c.n_slabs * codes.record_bytes;
    const char *from =
        codes.w + (size_t)(row / K_PACKED_ROWS) * strip_bytes + (size_t)(slab * codes.record_bytes);

    n_strips = min(c.block_rows / K_PACKED_ROWS, max(0, c.n_out - row) / K_PACKED_ROWS);
    barrier_expect(bar, bytes * (uint32_t)n_strips);
    for (int i = 0; i < n_strips; i++)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                         shared_addr(to + i * c.box * codes.record_bytes)),
                     "l"(from + (size_t)i * strip_bytes), "r"(bytes), "r"(shared_addr(bar)),
                     "l"(0x12f0000000000000ULL)
                     : "memory");
}

/* --- registers -------------------------------------------------------------------------------- */

/* The numbers of a packed matrix that the mainloop needs. */
struct code_form {
    int groups;
    bool has_zeros, is_half;
};

static __device__ inline code_form codes_form_of(const wide_codes &codes)
{
    return {steady(codes.groups), steady(codes.has_zeros), steady(codes.is_half)};
}

/* The offset in a stage where this lane begins. */
static __device__ inline uint32_t codes_lane_at(const product_cut &c)
{
    return (uint32_t)((int)threadIdx.x % 128 / 32 * c.group_bytes + (int)threadIdx.x % 32 * 16);
}

/* A lane's numbers of a group of columns, for rows g and g + 8 of its strip, each twice in a word:
 * 128 + zero, and the two parts of the scale. */
struct code_numbers {
    uint32_t less[2], high[2], low[2];
};

static __device__ __forceinline__ uint32_t codes_load_shared_16(uint32_t at)
{
    uint16_t value;

    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(at) : "memory");
    return value;
}

static __device__ __forceinline__ uint32_t codes_load_shared_32(uint32_t at)
{
    uint32_t value;

    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

static __device__ __forceinline__ uint32_t codes_load_shared_8(uint32_t at)
{
    uint32_t value;

    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}

/* record: its address in shared memory. Without branches, so that loads are not waited for. */
static __device__ __forceinline__ void codes_load_numbers(code_numbers &numbers, uint32_t record,
                                                          int group, const code_form &form)
{
    int row = threadIdx.x % 32 / 4;
    uint32_t scales = record + PACKED_CODE_BYTES + group * 32 + row * 2;
    uint32_t zeros = record + PACKED_CODE_BYTES + form.groups * 32 + group * 16 + row;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t bits = codes_load_shared_16(scales + i * 16);
        float scale = packed_scale((uint16_t)bits, form.is_half);
        bf16 high = __float2bfloat16(scale), low = __float2bfloat16(scale - __bfloat162float(high));

        numbers.high[i] = __bfloat16_as_ushort(high) * 0x00010001U;
        numbers.low[i] = __bfloat16_as_ushort(low) * 0x00010001U;
        numbers.less[i] = 0x43084308U;
        if (form.has_zeros)
            numbers.less[i] = 0x43004300U + codes_load_shared_8(zeros + i * 8) * 0x00010001U;
    }
}

static __device__ __forceinline__ __nv_bfloat162 codes_pair_of(uint32_t bits)
{
    return *(const __nv_bfloat162 *)&bits;
}

/* Two codes, 16 bits apart, as weights. */
static __device__ __forceinline__ uint32_t codes_widen(uint32_t codes, int row,
                                                       const code_numbers &numbers)
{
    __nv_bfloat162 code =
        __hsub2(codes_pair_of(packed_two(codes)), codes_pair_of(numbers.less[row]));
    __nv_bfloat162 weight = __hfma2(code, codes_pair_of(numbers.high[row]),
                                    __hmul2(code, codes_pair_of(numbers.low[row])));

    return *(const uint32_t *)&weight;
}

static __device__ __forceinline__ uint4 codes_load_words(uint32_t at)
{
    uint4 words;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(at)
                 : "memory");
    return words;
}

/* Widen 64 columns to operands of four products. tile: which of the record's two. */
static __device__ __forceinline__ void codes_widen_slab(uint32_t (&a)[4][4], const uint4 &words,
                                                        code_numbers &numbers, uint32_t record,
                                                        int tile, const code_form &form)
{
    const uint32_t codes[4] = {words.x, words.y, words.z, words.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int quarter = tile * 2 + i / 2;

        if (i == 0 || (i == 2 && form.groups == 4))
            codes_load_numbers(numbers, record, quarter * form.groups / 4, form);
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[i][k] = codes_widen(codes[i] >> 4 * k, k % 2, numbers);
    }
}

/* The same of floats. A lane has the scales of four groups of the tile's columns in two words, or
 * of two groups in one; which bytes of which word, depends on their number alone. */
static __device__ __forceinline__ void codes_widen_floats(uint32_t (&a)[4][4], const uint4 &words,
                                                          uint32_t record, int tile,
                                                          const code_form &form)
{
    const uint32_t codes[4] = {words.x, words.y, words.z, words.w};
    bool has_eight = form.groups == 8;
    uint32_t at =
        record + PACKED_CODE_BYTES + threadIdx.x % 32 / 4 * 2 * form.groups + tile * form.groups;
    uint32_t scales[2] = {codes_load_shared_32(at), codes_load_shared_32(at + (has_eight ? 4 : 0))};
    const uint32_t picks[4] = {FLOAT_PICK(0), has_eight ? FLOAT_PICK(1) : FLOAT_PICK(0),
                               has_eight ? FLOAT_PICK(0) : FLOAT_PICK(1), FLOAT_PICK(1)};

#pragma unroll
    for (int i = 0; i < 4; i++)
        packed_float_operand(a[i], codes[i], packed_float_scales(scales[i / 2], picks[i]));
}

/* --- products --------------------------------------------------------------------------------- */

template <int N>
static __device__ __forceinline__ void codes_multiply_slab(float (&acc)[SUMS(N)][N / 2],
                                                           uint32_t (&a)[4][4], uint32_t x,
                                                           uint32_t x_rows)
{
    keep(a), keep(acc[0]), keep(acc[SUMS(N) - 1]);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        multiply_rows(acc[i % SUMS(N)], a[i], (uint64_t)x_rows << 32 | (x + 2 * i), 1);
    warpgroup_commit();
}

/* Multiply a stage, in two groups of products per slab: one is widened while the other runs. `at`
 * is this lane's address, x is in units of 16 bytes; both move by a slab. */
template <int N, bool IS_FLOAT>
static __device__ __forceinline__ void codes_multiply(float (&acc)[SUMS(N)][N / 2], uint32_t at,
                                                      uint32_t x, int n_slabs, uint32_t slab,
                                                      uint32_t x_slab, uint32_t x_rows,
                                                      const code_form &form)
{
    uint32_t a[2][4][4], record = at - threadIdx.x % 32 * 16;
    uint4 words = codes_load_words(at);
    code_numbers numbers;

#pragma unroll 1
    for (int s = 0; s < n_slabs; s++) {
        if constexpr (IS_FLOAT)
            codes_widen_floats(a[0], words, record, 0, form);
        else
            codes_widen_slab(a[0], words, numbers, record, 0, form);
        words = codes_load_words(at + PACKED_CODE_BYTES / 2);
        codes_multiply_slab<N>(acc, a[0], x, x_rows);
        x += x_slab;
        warpgroup_wait<1>();
        if constexpr (IS_FLOAT)
            codes_widen_floats(a[1], words, record, 1, form);
        else
            codes_widen_slab(a[1], words, numbers, record, 1, form);
        at += slab;
        record += slab;
        if (s + 1 < n_slabs)
            words = codes_load_words(at);
        codes_multiply_slab<N>(acc, a[1], x, x_rows);
        x += x_slab;
        warpgroup_wait<1>();
    }
    warpgroup_wait<0>();
    keep(acc[0]), keep(acc[SUMS(N) - 1]);
}

#endif
