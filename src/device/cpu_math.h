/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu device's inner loops, built for several instruction sets and chosen at start.
 *
 * Sums run over 16 lanes, lane i adding the elements i, i + 16, ... in their order; the lanes are
 * folded in halves at the end. So every result depends on its inputs alone: neither the number of
 * rows nor the division of work among threads changes a bit. Between instruction sets results may
 * differ in the last bit (fused or separate multiply and add). */
#ifndef QUIRE_DEVICE_CPU_MATH_H
#define QUIRE_DEVICE_CPU_MATH_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

/* Scales of the rows of a matrix whose type has them beside it (cpu_math_scales()), and zero points
 * in the same arrangement: those of row i of w begin at (first + i) / high * a_row. */
struct cpu_scales {
    const float *at;
    const float *zeros; /* NULL: all are the middle of the type, 8 or 128 */
    int high, wide;     /* rows and columns that share one; wide 0: a whole row. A multiple of 16 */
    int a_row;          /* in a row of them */
    int first;          /* row 0 of w as a row of the matrix */
};

/* A part of y [.][n_out] = x [.][n_in] * transpose(w [n_out][n_in]) + bias [n_out]:
 * rows row_first .. row_last - 1, outputs out_first .. out_last - 1. bias may be NULL.
 *
 * w is of a type that matmul() multiplies with (cpu_math_multiplies()) or expand() reads, in rows
 * of w_bytes bytes. Its elements are made float32 as they are read, so the result has the bits that
 * float32 weights of the same values give. */
struct cpu_matmul {
    float *y;
    const float *x;
    const void *w;
    enum k_type type;
    size_t w_bytes;
    struct cpu_scales scales; /* of scaled types */
    const float *bias;
    int n_in, n_out;
    int row_first, row_last;
    int out_first, out_last;
};

/* Queries of attention that keys and values are read for at once, at most. */
#define CPU_QUERIES 4

struct cpu_math {
    const char *name; /* of the instruction set */
    void (*matmul)(const struct cpu_matmul *m);
    /* out [n][n_in] = rows of m->w from out_first on, as float32, up to out_last. */
    void (*expand)(float *out, const struct cpu_matmul *m);
    /* scores [n_q][row_len], the first n of each row: keys [n][dim] . q [n_q][dim], not scaled. */
    void (*scores)(float *scores, size_t row_len, const float *const *q, int n_q, const float *keys,
                   int n, int dim);
    /* scores [n] *= scale; returns their maximum, -INFINITY of none. */
    float (*scale)(float *scores, int n, float scale);
    /* scores [n] = exp(scores - top); returns their sum. Writes up to the next multiple of 16. */
    float (*weights)(float *scores, int n, float top);
    /* out [n_q][dim] += sum of weights [n_q][row_len], the first n of each row, * values
     * [n][stride], the first dim of each row. */
    void (*mix)(float *const *out, int n_q, const float *weights, size_t row_len,
                const float *values, int n, int dim, int stride);
    /* out [n] = silu(gate [n]) * up [n] */
    void (*silu_mul)(float *out, const float *gate, const float *up, int n);
};

/* Types of weights that expand() reads, those of them that matmul() multiplies with, and those that
 * have scales beside them. n_in is a multiple of the type's block. */
bool cpu_math_reads(enum k_type type);
bool cpu_math_multiplies(enum k_type type);
bool cpu_math_scales(enum k_type type);

/* The widest instruction set that this machine has. */
const struct cpu_math *cpu_math_choose(void);

/* The sets that this machine can run, slowest first; NULL from some n on. For tests. */
const struct cpu_math *cpu_math_at(int n);

#endif
