/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products on the GPU by cuBLASLt, and the measurements that choose their algorithms. */
#ifndef QUIRE_DEVICE_GEMM_CUDA_H
#define QUIRE_DEVICE_GEMM_CUDA_H

#include <stdbool.h>

#include "base/err.h"
#include "kernels/kernels.h"

struct gemm;

/* Open the library. workspace: device memory that products on the stream may use; gpu: the GPU's
 * name. ERR_GPU (logged). */
int gemm_open(struct gemm **out, void *workspace, size_t workspace_bytes,
              const char *gpu) ERR_CHECKED;
void gemm_close(struct gemm *g); /* NULL is fine */

/* The number of rows that a product of n rows computes: 8, 16, 32, then multiples of 64, from 1024
 * on of 128, from 2048 on of 256. x and y must have room for them; rows beyond n may hold anything.
 * So few shapes occur, and the bits of a row depend on the bucket, not on n. */
int gemm_rows(int n);

/* One product: y [n][n_out] = x [n][n_in] * transpose(w [n_out][n_in]) + bias [n_out]. */
struct gemm_product {
    void *y;            /* bf16, or float32 when y_is_float */
    const void *x;      /* bf16; codes if k_format_reads_codes() of w */
    const k_bf16 *bias; /* NULL: none */
    const struct k_matrix *w;
    const float *x_scales; /* scales of codes as in k_quantised: [gemm_rows(n)], or, if w has
                            * blocks, [ceil(n_in / 128)][gemm_rows(n)]; else NULL */
    int n;
    bool y_is_float;
    int y_stride; /* from a row of y to the next; 0: n_out. Plain w only */
};

/* Enqueue a product. Sums are float32 (of e4m3 without blocks: the tensor cores' own, some 14
 * bits). ERR_GPU (logged with the shape). The first product of a shape looks for its algorithm, in
 * the table or by cuBLASLt's heuristic (some 50 us); later ones find the plan at once. */
int gemm_run(struct gemm *g, const struct gemm_product *p, k_stream stream) ERR_CHECKED;

/* --- the table of measured products ---------------------------------------------------- */

/* Read a table. A missing file is logged if `expected` is set; one that does not fit this machine
 * is logged and ignored. */
void gemm_read(struct gemm *g, const char *path, bool expected);
int gemm_write(const struct gemm *g, const char *path) ERR_CHECKED;

/* The result of a measurement, in microseconds. */
struct gemm_timing {
    float guess_us; /* of cuBLASLt's first candidate */
    float best_us;
    int n_candidates;
    int best; /* index of the best candidate */
};

/* Measure the candidates of a product, store the best in the table, and use it from then on. w's
 * data holds n_copies copies, one after another, which are used in turn, so that weights come from
 * memory and not from a cache. Blocks for some 50 ms; takes CUDA events. ERR_GPU, ERR_LIMIT. */
int gemm_tune(struct gemm *g, const struct gemm_product *p, int n_copies, k_stream stream,
              struct gemm_timing *out) ERR_CHECKED;

/* Microseconds of one product with the algorithm that gemm_run() uses, measured in the same way. */
int gemm_time(struct gemm *g, const struct gemm_product *p, int n_copies, k_stream stream,
              float *us) ERR_CHECKED;

#endif
