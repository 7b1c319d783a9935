/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of the cpu device whose inputs are rounded to 8 bits, for weights of 4 to 8 bits.
 *
 * A row of inputs is divided into blocks of 32. Each has the scale most / 127, where most is its
 * largest magnitude, and codes q = x * (127 / most), rounded to the nearest whole number, ties to
 * the even one. A block below 1e-30 is zero.
 *
 * A result is the sum over the blocks, in their order, of
 *
 *     (scale of the weights * scale of the inputs) * (float)(sum of codes of both) + least * sum
 *
 * where least is what the type adds to all weights of the block, and sum the scale of the inputs
 * times the sum of their codes; types without it add nothing. Blocks of even and of odd number are
 * summed apart, and the two sums are added at the end, then the bias. Sums of codes are exact, all
 * other operations are rounded one by one. So every instruction set gives the same bits, and a row
 * the same alone as in a batch. Q3_K and Q6_K have two scales in a block: the sum of codes is that
 * of the 32 products with the whole number of each. */
#ifndef QUIRE_DEVICE_CPU_ROUND_H
#define QUIRE_DEVICE_CPU_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cpu_math.h"

#define CPU_ROUND_BLOCK 32

/* Bytes of a rounded row, a multiple of 64. n_in: a multiple of 32. */
size_t cpu_round_row_bytes(int n_in);

/* A part of a product, as struct cpu_matmul has it; x of m is not read, but rounded rows: those of
 * all rows of m from row 0 on, aligned to 64 bytes. */
struct cpu_rounded {
    struct cpu_matmul m;
    const uint8_t *rows;
};

struct cpu_round {
    const char *name; /* of the instruction set */
    /* to: n rounded rows of x [n][n_in] */
    void (*rows)(uint8_t *to, const float *x, int n, int n_in);
    void (*matmul)(const struct cpu_rounded *r);
};

/* Types of weights that matmul() reads. n_in is a multiple of the type's block. */
bool cpu_round_reads(enum k_type type);

/* The fastest set that this machine has. */
const struct cpu_round *cpu_round_choose(void);

/* The sets that this machine can run, slowest first; NULL from some n on. 0 is plain C, the
 * specification of the others. For tests. */
const struct cpu_round *cpu_round_at(int n);

#endif
