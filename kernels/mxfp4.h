/* SPDX-License-Identifier: Apache-2.0
 *
 * The arrangement of the matrices of experts whose elements are floats of 4 bits (e2m1), with an
 * exponent for each 32 columns of a row (k_format_mxfp4()): that of packed.h with 4 bits, groups of
 * 32, scales of one byte and no zeros, whose words of codes are spread as those of floats are.
 *
 *   expert -> strips of 16 rows -> records of 16 rows x 128 columns: 1024 bytes of codes, then
 *   exponents [4 groups][16 rows]
 *
 * A strip of a matrix of gates and ups has 8 gates, then their 8 ups, so that both are in one lane
 * of a product. Rows are filled up with zeros to whole records, and experts to whole strips. For C
 * and CUDA. */
#ifndef QUIRE_KERNELS_MXFP4_H
#define QUIRE_KERNELS_MXFP4_H

#include "kernels/format.h"

#define K_MXFP4_RECORD 1088 /* bytes */
#define K_MXFP4_CODES  1024 /* of them: codes; exponents follow */
#define K_MXFP4_COLS   128  /* of a record */

/* The largest exponent in a record; larger ones of a file become this one (mxfp4.cuh). */
#define K_MXFP4_EXPONENT_MAX 192

/* The rows of the matrices of several experts. */
struct k_mxfp4_rows {
    int n_experts, n_rows; /* n_rows: of one expert; gates and ups together */
    bool is_gated;         /* gates and ups, which share strips */
    bool is_mixed;         /* in the file they are in turns: gate, up, gate, ... ; else all gates
                            * come first */
};

K_BOTH int k_mxfp4_records(int n_in)
{
    return (n_in + K_MXFP4_COLS - 1) / K_MXFP4_COLS;
}

K_BOTH int k_mxfp4_strips(int n_rows)
{
    return (n_rows + 15) / 16;
}

/* Bytes of an expert; at least those of its rows in a file. */
K_BOTH size_t k_mxfp4_bytes(int n_rows, int n_in)
{
    return (size_t)k_mxfp4_strips(n_rows) * (size_t)k_mxfp4_records(n_in) * K_MXFP4_RECORD;
}

/* The row of an expert, as it is in the file, that is row i of a strip; -1: none, it is zeros. */
K_BOTH int k_mxfp4_row(const struct k_mxfp4_rows *r, int strip, int i)
{
    int row = strip * (r->is_gated ? 8 : 16) + (r->is_gated ? i % 8 : i);
    int n = r->is_gated ? r->n_rows / 2 : r->n_rows;

    if (row >= n)
        return -1;
    if (!r->is_gated)
        return row;
    return r->is_mixed ? 2 * row + i / 8 : row + i / 8 * n;
}

#endif
