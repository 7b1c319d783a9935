/* SPDX-License-Identifier: Apache-2.0
 *
 * The types of numbers, and the format of a matrix of weights.
 *
 * A format is data. Whether a device can multiply with it is answered by the device (takes() in
 * src/device/device.h); every other property of a format is a function below, so that a new format
 * is added here and not in each user. For C and CUDA. */
#ifndef QUIRE_KERNELS_FORMAT_H
#define QUIRE_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Small functions for both sides. */
#ifdef __CUDACC__
#define K_BOTH static __host__ __device__ inline
#else
#define K_BOTH static inline
#endif

/* K_BF16_KEPT is bf16 on a device whose plain matrices are float32. K_E8M0 is only a type of
 * scales, an exponent: 2^(e - 127). K_E2M1 is a float of 4 bits, of which a byte has two, the low
 * half first. The types after it are blocks of GGUF files: elements that are stored together with
 * scales of their own (ref_blocks()). Those of 32 elements come first, then those of 256. K_INT4 is
 * codes of 4 bits in records with their scales and zeros (packed.h), K_FLOAT4 e2m1 in records with
 * scales of K_E5M3: a byte without sign, (8 + its lower 3 bits) * 2^(its upper 5 - 34), at most
 * 1.875 and never 0. K_INT8 is bytes with a sign in the order of K_BYTE_AT and a scale for each
 * row, or, in groups, codes of 8 bits in records. K_U4 and K_U8 are codes in the order of a row,
 * for the cpu device, with scales and zeros in arrays; K_U4 has two in a byte, of each 32 the first
 * 16 in the lower halves. */
enum k_type {
    K_BF16,
    K_E4M3,
    K_F32,
    K_BF16_KEPT,
    K_E8M0,
    K_E2M1,
    K_Q4_0,
    K_Q4_1,
    K_Q5_0,
    K_Q5_1,
    K_Q8_0,
    K_IQ4_NL,
    K_MXFP4,
    K_Q2_K,
    K_Q3_K,
    K_Q4_K,
    K_Q5_K,
    K_Q6_K,
    K_IQ4_XS,
    K_F16, /* of scales only */
    K_INT4,
    K_FLOAT4,
    K_E5M3, /* of scales in records only */
    K_INT8,
    K_U4,
    K_U8,
};

/* The elements of a matrix [n_out][n_in] and the numbers that go with them:
 *
 *   weight = (element - zero) * (scale * global scale)
 *
 * Scales have the shape [ceil(n_out / group_rows)][k_format_scale_cols()], and so have zeros. All
 * fields zero is the plain format: bf16 and nothing else. In records scales and zeros have no
 * arrays of their own, group_rows is 0, and a zero that is not stored is the middle, 8 or 128; but
 * with K_FLOAT4 the array of scales has a float32 for each row, by which all of it is multiplied
 * besides, and group_rows is 1. */
struct k_format {
    enum k_type elem;
    enum k_type scale; /* type of scales and zeros; unused without scales */
    int group_rows;    /* rows that share a scale; 0: there are no scales */
    int group_cols;    /* columns that share a scale; 0: a whole row */
    bool has_zeros;    /* zero points; else 0 */
    bool has_global;   /* one scale of the whole matrix; else 1 */
    bool has_x_scale;  /* the scale of inputs is in the checkpoint */
    bool rounds_x;     /* K_INT8 by row, K_INT4: products of many rows may round inputs to 8-bit
                        * whole numbers, with a scale for each row; and weights of K_INT4 too */
};

/* The longest rows of packed matrices: a cluster holds eight rows of x in shared memory. */
#define K_PACKED_IN_MAX 49152

/* The length of a row of scales: groups of n_in columns, rounded up to a multiple of 4. */
#define K_SCALE_COLS(n_in, group) ((((n_in) + (group)-1) / (group) + 3) / 4 * 4)

K_BOTH bool k_format_is_same(const struct k_format *a, const struct k_format *b)
{
    return a->elem == b->elem && a->scale == b->scale && a->group_rows == b->group_rows &&
           a->group_cols == b->group_cols && a->has_zeros == b->has_zeros &&
           a->has_global == b->has_global && a->has_x_scale == b->has_x_scale &&
           a->rounds_x == b->rounds_x;
}

/* --- formats ---------------------------------------------------------------------------- */

/* Elements of a type alone: the plain format, or blocks that have scales of their own. */
K_BOTH struct k_format k_format_bare(enum k_type elem)
{
    struct k_format format = {elem, K_F32, 0, 0, false, false, false, false};

    return format;
}

/* One float32 scale per row. */
K_BOTH struct k_format k_format_by_row(enum k_type elem)
{
    struct k_format format = {elem, K_F32, 1, 0, false, false, false, false};

    return format;
}

/* Codes of 4 bits in records, with a scale of 16 bits (K_BF16 or K_F16), and perhaps a zero point,
 * for each 32, 64 or 128 columns of a row. */
K_BOTH struct k_format k_format_packed(enum k_type scale, int group, bool has_zeros)
{
    struct k_format format = {K_INT4, scale, 0, group, has_zeros, false, false, false};

    return format;
}

/* The same with codes of 8 bits. Without groups it is k_format_by_row(K_INT8). */
K_BOTH struct k_format k_format_int8(enum k_type scale, int group, bool has_zeros)
{
    struct k_format format = {K_INT8, scale, 0, group, has_zeros, false, false, false};

    return format;
}

/* Codes of 4 or 8 bits in the order of a row (K_U4, K_U8), with a float32 scale, and perhaps a zero
 * point of that type, for each 32, 64 or 128 columns. */
K_BOTH struct k_format k_format_coded(enum k_type elem, int group, bool has_zeros)
{
    struct k_format format = {elem, K_F32, 1, group, has_zeros, false, false, false};

    return format;
}

/* Floats of 4 bits in records, with a scale for each 16 or 32 columns of a row, and one a row. */
K_BOTH struct k_format k_format_float4(int group)
{
    struct k_format format = {K_FLOAT4, K_E5M3, 1, group, false, false, false, false};

    return format;
}

/* One float32 scale per group of rows x cols. */
K_BOTH struct k_format k_format_in_groups(enum k_type elem, int rows, int cols)
{
    struct k_format format = {elem, K_F32, rows, cols, false, false, false, false};

    return format;
}

/* Floats of 4 bits with an exponent for each K_MXFP4_GROUP columns. A device that multiplies with
 * it has it in the arrangement of kernels/mxfp4.h, where scales stand beside the elements. */
#define K_MXFP4_GROUP 32

K_BOTH struct k_format k_format_mxfp4(void)
{
    struct k_format format = {K_E2M1, K_E8M0, 1, K_MXFP4_GROUP, false, false, false, false};

    return format;
}

/* --- properties ------------------------------------------------------------------------------ */

/* Of one element of a type without blocks. */
K_BOTH int k_type_bits(enum k_type type)
{
    return type == K_F32 ? 32 : type == K_BF16 || type == K_BF16_KEPT || type == K_F16 ? 16 : 8;
}

/* Elements of a block; 1 for a type without blocks, 2 for one whose elements share a byte. */
K_BOTH int k_type_block(enum k_type type)
{
    if (type == K_E2M1)
        return 2;
    if (type == K_INT4 || type == K_FLOAT4)
        return 128; /* the columns of a record */
    if (type < K_Q4_0 || type == K_F16 || type == K_E5M3 || type == K_INT8 || type == K_U8)
        return 1;
    return type < K_Q2_K || type == K_U4 ? 32 : 256;
}

/* Bytes of a block, with its scales. */
K_BOTH int k_type_block_bytes(enum k_type type)
{
    switch (type) {
    case K_BF16:
    case K_E4M3:
    case K_F32:
    case K_BF16_KEPT:
    case K_E8M0:
    case K_F16:
    case K_E5M3:
    case K_INT8:
    case K_U8: break;
    case K_U4: return 16;
    case K_E2M1: return 1;
    case K_INT4:
    case K_FLOAT4: return 64; /* and scales, which depend on the format */
    case K_Q4_0: return 18;
    case K_Q4_1: return 20;
    case K_Q5_0: return 22;
    case K_Q5_1: return 24;
    case K_Q8_0: return 34;
    case K_IQ4_NL: return 18;
    case K_MXFP4: return 17;
    case K_Q2_K: return 84;
    case K_Q3_K: return 110;
    case K_Q4_K: return 144;
    case K_Q5_K: return 176;
    case K_Q6_K: return 210;
    case K_IQ4_XS: return 136;
    }
    return k_type_bits(type) / 8;
}

/* Elements of bf16 that are the weights: every device can multiply with them. */
K_BOTH bool k_format_is_plain(const struct k_format *f)
{
    return f->elem == K_BF16 && f->group_rows == 0 && !f->has_zeros && !f->has_global;
}

K_BOTH bool k_format_has_groups(const struct k_format *f)
{
    return f->group_cols > 0;
}

/* Elements of a type with at most one float32 scale per row. */
K_BOTH bool k_format_is_by_row(const struct k_format *f, enum k_type elem)
{
    return f->elem == elem && (f->group_rows == 0 || (f->group_rows == 1 && f->scale == K_F32)) &&
           !k_format_has_groups(f) && !f->has_zeros && !f->has_global;
}

/* Elements of a type with one float32 scale per block of side x side. */
K_BOTH bool k_format_is_in_blocks(const struct k_format *f, enum k_type elem, int side)
{
    return f->elem == elem && f->scale == K_F32 && f->group_rows == side && f->group_cols == side &&
           !f->has_zeros && !f->has_global;
}

/* Is it k_format_mxfp4()? */
K_BOTH bool k_format_is_mxfp4(const struct k_format *f)
{
    return f->elem == K_E2M1 && f->scale == K_E8M0 && f->group_rows == 1 &&
           f->group_cols == K_MXFP4_GROUP && !f->has_zeros && !f->has_global;
}

/* The place of element i of a row of bytes (K_INT8 by row): of each 16 the order in which a lane's
 * word is two neighbours and the two 8 further on, as the tensor cores take them. */
#define K_BYTE_AT(i) (((i) & ~(size_t)15) | ((i)&6) << 1 | ((i) >> 2 & 2) | ((i)&1))

/* Codes in records (packed.h), with a scale for each group of a row. */
K_BOTH bool k_format_is_packed(const struct k_format *f)
{
    return f->elem == K_INT4 || f->elem == K_FLOAT4 || (f->elem == K_INT8 && f->group_cols > 0);
}

/* Do rows and columns of a packed matrix fit what kernels take: whole pairs of strips of 16 rows,
 * whole records of 128 columns? */
K_BOTH bool k_format_fits(const struct k_format *f, int n_out, int n_in)
{
    bool has_group =
        f->group_cols == 32 ||
        (f->elem == K_FLOAT4 ? f->group_cols == 16 : f->group_cols == 64 || f->group_cols == 128);

    return has_group && n_out % 32 == 0 && n_in % 128 == 0 && n_in <= K_PACKED_IN_MAX;
}

/* Products with this format read their input rounded to the elements' type (struct k_quantised). */
K_BOTH bool k_format_reads_codes(const struct k_format *f)
{
    return f->elem == K_E4M3;
}

/* Products of few rows with this format read their input as float16, in the order of K_HALF_AT. */
K_BOTH bool k_format_reads_half(const struct k_format *f)
{
    return f->elem == K_E4M3;
}

/* Codes in the order of a row. */
K_BOTH bool k_format_is_coded(const struct k_format *f)
{
    return f->elem == K_U4 || f->elem == K_U8;
}

/* The zero of codes that have none, in records or in the order of a row. */
K_BOTH int k_format_middle(const struct k_format *f)
{
    return f->elem == K_INT8 || f->elem == K_U8 ? 128 : 8;
}

/* Can weights of both formats be rows of one matrix, with the scales of one after those of the
 * other? Scales of inputs do not matter. */
K_BOTH bool k_format_is_like(const struct k_format *a, const struct k_format *b)
{
    return a->elem == b->elem && a->group_rows == b->group_rows && a->group_cols == b->group_cols &&
           (a->group_rows == 0 || a->scale == b->scale) && a->has_zeros == b->has_zeros &&
           a->has_global == b->has_global && a->rounds_x == b->rounds_x;
}

/* Bytes of n_in elements; n_in is a multiple of the block's elements. Of records: a sixteenth of
 * a strip's. */
K_BOTH size_t k_format_row_bytes(const struct k_format *f, int n_in)
{
    int in_records = f->elem == K_FLOAT4 ? 1
                     : f->has_zeros      ? 3
                                         : 2; /* bytes of a group's scale and zero */

    if (k_format_is_packed(f))
        return (size_t)(n_in / 128) *
               (size_t)((f->elem == K_INT8 ? 128 : 64) + 128 / f->group_cols * in_records);
    return (size_t)(n_in / k_type_block(f->elem)) * (size_t)k_type_block_bytes(f->elem);
}

K_BOTH int k_format_scale_rows(const struct k_format *f, int n_out)
{
    return f->group_rows > 0 ? (n_out + f->group_rows - 1) / f->group_rows : 0;
}

K_BOTH int k_format_scale_cols(const struct k_format *f, int n_in)
{
    if (k_format_is_packed(f)) /* the others are in records */
        return 1;
    return f->group_cols > 0 ? K_SCALE_COLS(n_in, f->group_cols) : 1;
}

/* Number of scales of a matrix, including those that pad its rows. */
K_BOTH size_t k_format_n_scales(const struct k_format *f, int n_out, int n_in)
{
    return (size_t)k_format_scale_rows(f, n_out) * (size_t)k_format_scale_cols(f, n_in);
}

#endif
