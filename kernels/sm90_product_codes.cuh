/* SPDX-License-Identifier: Apache-2.0
 *
 * Codes in records (packed.h) as the first operand of sm90_product.cu: stages of strips, and their
 * way through registers, where they become bfloat16. Up to CODES_FEW rows of x are multiplied by
 * mma.sync, more by wgmma.
 *
 * A stage has the block's strips, each [slabs][record]; a slab is a record, 128 columns. The four
 * warps of a warpgroup have a strip each, whose fragments are those of wgmma's first operand. x is
 * bfloat16 in the order of the columns.
 *
 * An operand of codes is (code - zero) / 64, which is exact (codes_operand()). Products of a
 * group of columns are added up by themselves; its scale times 64 multiplies their sum. Floats are
 * exact (packed.cuh) but for the scale of their row, which the epilogue applies. */
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

/* A lane's numbers of a group of columns, for rows g and g + 8 of its strip: -zero / 64, twice in a
 * word, and 64 times the scale. */
struct code_numbers {
    uint32_t less[2];
    float scale[2];
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
template <int BITS>
static __device__ __forceinline__ void codes_load_numbers(code_numbers &numbers, uint32_t record,
                                                          int group, const code_form &form)
{
    int row = threadIdx.x % 32 / 4;
    uint32_t scales = record + PACKED_CODE_BYTES / 4 * BITS + group * 32 + row * 2;
    uint32_t zeros = record + PACKED_CODE_BYTES / 4 * BITS + form.groups * 32 + group * 16 + row;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t bits = codes_load_shared_16(scales + i * 16);

        numbers.scale[i] = packed_scale((uint16_t)bits, form.is_half) * 64.0f;
        numbers.less[i] = BITS == 8 ? 0xc000c000U : 0xbe00be00U; /* -128 / 64, -8 / 64 */
        if (form.has_zeros) /* a subnormal number times -2^127 */
            numbers.less[i] =
                mxfp4_times(codes_load_shared_8(zeros + i * 8) * 0x00010001U, 0xff00ff00U);
    }
}

static __device__ __forceinline__ uint32_t codes_fused(uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t sum;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
    return sum;
}

/* A word of codes as the operand of a product of 16 x 16, (code - zero) / 64: register r has row
 * g + 8 (r % 2). less: of both rows. */
static __device__ __forceinline__ void codes_operand(uint32_t (&a)[4], uint32_t codes,
                                                     const uint32_t (&less)[2])
{
    const uint32_t low = 0x7f007f00U, high = 0x7d007d00U; /* 2^127, 2^123 */
    uint32_t upper = codes >> 8;

    a[0] = codes_fused(codes & CODE_LOW, low, less[0]);
    a[1] = codes_fused(codes & CODE_HIGH, high, less[1]);
    a[2] = codes_fused(upper & CODE_LOW, low, less[0]);
    a[3] = codes_fused(upper & CODE_HIGH, high, less[1]);
}

/* The same of 8 bits, of which two words have 16 columns. */
static __device__ __forceinline__ void codes_byte_operand(uint32_t (&a)[4], uint32_t low,
                                                          uint32_t high, const uint32_t (&less)[2])
{
    const uint32_t power = 0x7f007f00U; /* 2^127 */

    a[0] = codes_fused(packed_low_bytes(low), power, less[0]);
    a[1] = codes_fused(packed_high_bytes(low), power, less[1]);
    a[2] = codes_fused(packed_low_bytes(high), power, less[0]);
    a[3] = codes_fused(packed_high_bytes(high), power, less[1]);
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

/* A lane's words of 64 columns: with 8 bits two of 16 bytes. */
template <int BITS>
static __device__ __forceinline__ void codes_load_tile(uint4 (&words)[BITS / 4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < BITS / 4; i++)
        words[i] = codes_load_words(at + i * 512);
}

/* Widen 64 columns to operands of four products. tile: which of the record's two; scales: of the
 * groups of its first and its last 32 columns. WHOLE: a record is one group, and its first tile
 * loads the numbers. */
template <bool WHOLE, int BITS>
static __device__ __forceinline__ void codes_widen_slab(uint32_t (&a)[4][4], float (&scales)[2][2],
                                                        code_numbers &numbers,
                                                        const uint4 (&words)[BITS / 4],
                                                        uint32_t record, int tile,
                                                        const code_form &form)
{
    const uint32_t *codes = (const uint32_t *)words;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int quarter = tile * 2 + i / 2;

        if (WHOLE ? i == 0 && tile == 0 : i == 0 || (i == 2 && form.groups == 4))
            codes_load_numbers<BITS>(numbers, record, WHOLE ? 0 : quarter * form.groups / 4, form);
        if constexpr (BITS == 8)
            codes_byte_operand(a[i], codes[2 * i], codes[2 * i + 1], numbers.less);
        else
            codes_operand(a[i], codes[i], numbers.less);
        scales[i / 2][0] = numbers.scale[0], scales[i / 2][1] = numbers.scale[1];
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

/* Multiply a stage of floats, in two groups of products per slab: one is widened while the other
 * runs. `at` is this lane's address, x is in units of 16 bytes; both move by a slab. */
template <int N>
static __device__ __forceinline__ void codes_multiply_floats(float (&acc)[SUMS(N)][N / 2],
                                                             uint32_t at, uint32_t x, int n_slabs,
                                                             uint32_t slab, uint32_t x_slab,
                                                             uint32_t x_rows, const code_form &form)
{
    uint32_t a[2][4][4], record = at - threadIdx.x % 32 * 16;
    uint4 words = codes_load_words(at);

#pragma unroll 1
    for (int s = 0; s < n_slabs; s++) {
        codes_widen_floats(a[0], words, record, 0, form);
        words = codes_load_words(at + PACKED_CODE_BYTES / 2);
        codes_multiply_slab<N>(acc, a[0], x, x_rows);
        x += x_slab;
        warpgroup_wait<1>();
        codes_widen_floats(a[1], words, record, 1, form);
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

/* Begin COUNT products of a slab, from `first` on. begins: they are the first of a group. */
template <int N, int COUNT>
static __device__ __forceinline__ void codes_begin(float (&part)[SUMS(N)][N / 2],
                                                   uint32_t (&a)[4][4], int first, bool begins,
                                                   uint32_t x, uint32_t x_rows)
{
    keep(a), keep(part[0]), keep(part[SUMS(N) - 1]);
    warpgroup_begin();
#pragma unroll
    for (int i = first; i < first + COUNT; i++)
        multiply_rows(part[i % SUMS(N)], a[i], (uint64_t)x_rows << 32 | (x + 2 * i),
                      !begins || i - first >= SUMS(N));
    warpgroup_commit();
}

/* Wait for the sums of a group, and add them times its scales. */
template <int N>
static __device__ __forceinline__ void codes_end_group(float (&acc)[N / 2],
                                                       float (&part)[SUMS(N)][N / 2],
                                                       const float (&scales)[2])
{
    warpgroup_wait<0>();
    keep(part[0]), keep(part[SUMS(N) - 1]);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float sum = SUMS(N) == 1 ? part[0][i] : part[0][i] + part[SUMS(N) - 1][i];

        acc[i] = __fmaf_rn(sum, scales[i / 2 % 2], acc[i]);
    }
}

/* The products of 64 columns: of two groups; or begun, the group's first or not. */
template <int N>
static __device__ __forceinline__ void codes_run_slab(float (&acc)[N / 2],
                                                      float (&part)[SUMS(N)][N / 2],
                                                      uint32_t (&a)[4][4],
                                                      const float (&scales)[2][2], bool begins,
                                                      uint32_t x, uint32_t x_rows, bool has_two)
{
    if (!has_two) {
        codes_begin<N, 4>(part, a, 0, begins, x, x_rows);
        return;
    }
    codes_begin<N, 2>(part, a, 0, true, x, x_rows);
    codes_end_group<N>(acc, part, scales[0]);
    codes_begin<N, 2>(part, a, 2, true, x, x_rows);
}

/* codes_multiply_floats() of codes. The next 64 columns are widened while products run. */
template <int N, bool WHOLE, int BITS>
static __device__ __forceinline__ void codes_multiply(float (&acc)[N / 2], uint32_t at, uint32_t x,
                                                      int n_slabs, uint32_t slab, uint32_t x_slab,
                                                      uint32_t x_rows, const code_form &form)
{
    uint32_t a[2][4][4], record = at - threadIdx.x % 32 * 16;
    float part[SUMS(N)][N / 2], scales[2][2][2];
    bool has_two = !WHOLE && form.groups == 4, ends = !WHOLE && form.groups > 1;
    uint4 words[BITS / 4];
    code_numbers numbers;

    codes_load_tile<BITS>(words, at);
    codes_widen_slab<WHOLE, BITS>(a[0], scales[0], numbers, words, record, 0, form);
#pragma unroll 1
    for (int s = 0; s < n_slabs; s++) {
        codes_load_tile<BITS>(words, at + PACKED_CODE_BYTES / 8 * BITS);
        codes_run_slab<N>(acc, part, a[0], scales[0], true, x, x_rows, has_two);
        codes_widen_slab<WHOLE, BITS>(a[1], scales[1], numbers, words, record, 1, form);
        if (ends)
            codes_end_group<N>(acc, part, scales[0][1]);
        at += slab;
        record += slab;
        codes_run_slab<N>(acc, part, a[1], scales[1], ends, x + x_slab, x_rows, has_two);
        x += 2 * x_slab;
        if (s + 1 < n_slabs) {
            codes_load_tile<BITS>(words, at);
            warpgroup_wait<1>(); /* the products that read a[0] */
            codes_widen_slab<WHOLE, BITS>(a[0], scales[0], numbers, words, record, 0, form);
        }
        codes_end_group<N>(acc, part, scales[1][1]);
    }
}

/* --- up to eight rows ------------------------------------------------------------------------- */

/* The most rows of x for which mma.sync is faster: four warps take 6 cycles for a product of 64 x 8
 * x 16, and wgmma takes 13, as it does for 64 x 16 x 16. */
#define CODES_FEW 8

/* Load 32 columns of N rows of x, operands of two products. at: the lane's address. */
template <int N>
static __device__ __forceinline__ void codes_load_x(uint32_t (&b)[N / 8][4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[i][0]), "=r"(b[i][1]), "=r"(b[i][2]), "=r"(b[i][3])
                     : "r"(at + (uint32_t)(i * 8 * CUT_SLAB))
                     : "memory");
}

/* Multiply 16 columns by N rows of x with mma.sync: the first half of b, or the second. */
template <int N>
static __device__ __forceinline__ void codes_multiply_step(float (&sums)[N / 2],
                                                           const uint32_t (&a)[4],
                                                           const uint32_t (&b)[N / 8][4], int which)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sums[4 * i]), "+f"(sums[4 * i + 1]), "+f"(sums[4 * i + 2]), "+f"(sums[4 * i + 3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][which * 2]),
              "r"(b[i][which * 2 + 1]));
}

/* Add the sums of a group of columns times its scales, and begin them anew. */
template <int N>
static __device__ __forceinline__ void codes_add_group(float (&acc)[N / 2], float (&part)[2][N / 2],
                                                       const float (&scales)[2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        acc[i] = __fmaf_rn(part[0][i] + part[1][i], scales[i / 2 % 2], acc[i]);
        part[0][i] = part[1][i] = 0.0f;
    }
}

/* The lane's address of x: eight lanes give those of a matrix of eight rows and eight columns. */
static __device__ __forceinline__ uint32_t codes_x_at(uint32_t x)
{
    uint32_t lane = threadIdx.x % 32;

    return x * 16 + lane % 8 * CUT_SLAB + (lane / 8 ^ lane % 8) * 16;
}

/* codes_multiply() with mma.sync, a tile of 64 columns at a time. Two sums for a group, so that a
 * product need not wait for the one before. */
template <int N, bool WHOLE, int BITS>
static __device__ __forceinline__ void codes_multiply_few(float (&acc)[N / 2], uint32_t at,
                                                          uint32_t x, int n_slabs, uint32_t slab,
                                                          uint32_t x_slab, const code_form &form)
{
    uint32_t x_at = codes_x_at(x);
    float part[2][N / 2] = {};
    uint4 words[BITS / 4];

    codes_load_tile<BITS>(words, at);
#pragma unroll 2 /* two records have twice as many products that can wait for each other */
    for (int s = 0; s < n_slabs; s++, at += slab) {
        uint32_t record = at - threadIdx.x % 32 * 16;
        code_numbers numbers;

#pragma unroll
        for (int tile = 0; tile < 2; tile++, x_at += x_slab * 16) {
            uint32_t a[4][4], b[2][N / 8][4];
            float scales[2][2];

            codes_load_x<N>(b[0], x_at);
            codes_load_x<N>(b[1], x_at ^ 64);
            codes_widen_slab<WHOLE, BITS>(a, scales, numbers, words, record, tile, form);
            if (tile == 0)
                codes_load_tile<BITS>(words, at + PACKED_CODE_BYTES / 8 * BITS);
            else if (s + 1 < n_slabs)
                codes_load_tile<BITS>(words, at + slab);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                codes_multiply_step<N>(part[i % 2], a[i], b[i / 2], i % 2);
                if (!WHOLE && i == 1 && form.groups == 4)
                    codes_add_group<N>(acc, part, scales[0]);
            }
            if (tile == 1 || (!WHOLE && form.groups > 1))
                codes_add_group<N>(acc, part, scales[1]);
        }
    }
}

/* The same of floats. */
template <int N>
static __device__ __forceinline__ void codes_multiply_few_floats(float (&acc)[2][N / 2],
                                                                 uint32_t at, uint32_t x,
                                                                 int n_slabs, uint32_t slab,
                                                                 uint32_t x_slab,
                                                                 const code_form &form)
{
    uint32_t x_at = codes_x_at(x);
    uint4 words = codes_load_words(at);

#pragma unroll 1
    for (int s = 0; s < n_slabs; s++, at += slab) {
        uint32_t record = at - threadIdx.x % 32 * 16;

#pragma unroll
        for (int tile = 0; tile < 2; tile++, x_at += x_slab * 16) {
            uint32_t a[4][4], b[2][N / 8][4];

            codes_load_x<N>(b[0], x_at);
            codes_load_x<N>(b[1], x_at ^ 64);
            codes_widen_floats(a, words, record, tile, form);
            if (tile == 0)
                words = codes_load_words(at + PACKED_CODE_BYTES / 2);
            else if (s + 1 < n_slabs)
                words = codes_load_words(at + slab);
#pragma unroll
            for (int i = 0; i < 4; i++)
                codes_multiply_step<N>(acc[i % 2], a[i], b[i / 2], i % 2);
        }
    }
}

#endif
