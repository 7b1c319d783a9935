/* How numbers stand in memory: the types of single numbers, and the format of a matrix of weights.
 *
 * A format is data. Whether a device multiplies with it is asked of the device (takes() of
 * src/device/device.h); everything else that follows from it is a question below, so that a new
 * format is looked into here and not where it is used. For C and CUDA. */
#ifndef QUIRE_KERNELS_FORMAT_H
#define QUIRE_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Small functions that both sides use. */
#ifdef __CUDACC__
#define K_BOTH static __host__ __device__ inline
#else
#define K_BOTH static inline
#endif

enum k_type { K_BF16, K_E4M3, K_F32 };

/* The elements of a matrix [n_out][n_in] and the numbers beside them:
 *
 *   weight = (element - zero) * (scale * global scale)
 *
 * Scales stand as [ceil(n_out / group_rows)][k_format_scale_cols()], zeros likewise. All zeros is
 * the plain format: bf16, nothing beside it. */
struct k_format {
    enum k_type elem;
    enum k_type scale; /* of scales and zeros; unused without scales */
    int group_rows;    /* rows that share a scale; 0: there are no scales */
    int group_cols;    /* columns that share a scale; 0: all of a row */
    bool has_zeros;    /* zero points; else 0 */
    bool has_global;   /* one more scale of the whole matrix; else 1 */
    bool has_x_scale;  /* inputs have a scale that is known beforehand */
};

/* The length of a row of scales: groups of n_in columns, rounded up to a multiple of 4. */
#define K_SCALE_COLS(n_in, group) ((((n_in) + (group)-1) / (group) + 3) / 4 * 4)

/* --- formats ---------------------------------------------------------------------------- */

/* A float32 scale for each row. */
K_BOTH struct k_format k_format_by_row(enum k_type elem)
{
    struct k_format f = {elem, K_F32, 1, 0, false, false, false};

    return f;
}

/* A float32 scale for each group of rows x cols. */
K_BOTH struct k_format k_format_in_groups(enum k_type elem, int rows, int cols)
{
    struct k_format f = {elem, K_F32, rows, cols, false, false, false};

    return f;
}

/* --- questions -------------------------------------------------------------------------- */

K_BOTH int k_type_bits(enum k_type type)
{
    return type == K_F32 ? 32 : type == K_BF16 ? 16 : 8;
}

/* Elements of bf16 that are the weights themselves: every device multiplies with them. */
K_BOTH bool k_format_is_plain(const struct k_format *f)
{
    return f->elem == K_BF16 && f->group_rows == 0 && !f->has_zeros && !f->has_global;
}

K_BOTH bool k_format_has_groups(const struct k_format *f)
{
    return f->group_cols > 0;
}

/* Elements of a type with at most a float32 scale for each row. */
K_BOTH bool k_format_is_by_row(const struct k_format *f, enum k_type elem)
{
    return f->elem == elem && (f->group_rows == 0 || (f->group_rows == 1 && f->scale == K_F32)) &&
           !k_format_has_groups(f) && !f->has_zeros && !f->has_global;
}

/* Elements of a type with a float32 scale for each block of side x side. */
K_BOTH bool k_format_is_in_blocks(const struct k_format *f, enum k_type elem, int side)
{
    return f->elem == elem && f->scale == K_F32 && f->group_rows == side && f->group_cols == side &&
           !f->has_zeros && !f->has_global;
}

/* Products with it read their input rounded to the elements' type (struct k_quantised). */
K_BOTH bool k_format_reads_codes(const struct k_format *f)
{
    return f->elem == K_E4M3;
}

/* Products of few rows with it read their input as float16, in the order of K_HALF_AT. */
K_BOTH bool k_format_reads_half(const struct k_format *f)
{
    return f->elem == K_E4M3;
}

/* Weights of the two can stand in one matrix, the scales of one below those of the other. Scales
 * of inputs do not count. */
K_BOTH bool k_format_is_like(const struct k_format *a, const struct k_format *b)
{
    return a->elem == b->elem && a->group_rows == b->group_rows && a->group_cols == b->group_cols &&
           (a->group_rows == 0 || a->scale == b->scale) && a->has_zeros == b->has_zeros &&
           a->has_global == b->has_global;
}

/* Bytes of n_in elements; the bits are whole bytes. */
K_BOTH size_t k_format_row_bytes(const struct k_format *f, int n_in)
{
    return (size_t)n_in * (size_t)k_type_bits(f->elem) / 8;
}

K_BOTH int k_format_scale_rows(const struct k_format *f, int n_out)
{
    return f->group_rows > 0 ? (n_out + f->group_rows - 1) / f->group_rows : 0;
}

K_BOTH int k_format_scale_cols(const struct k_format *f, int n_in)
{
    return f->group_cols > 0 ? K_SCALE_COLS(n_in, f->group_cols) : 1;
}

/* Scales of a matrix, those included that round its rows up. */
K_BOTH size_t k_format_n_scales(const struct k_format *f, int n_out, int n_in)
{
    return (size_t)k_format_scale_rows(f, n_out) * (size_t)k_format_scale_cols(f, n_in);
}

#endif
