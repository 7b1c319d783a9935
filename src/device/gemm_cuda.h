/* Matrix products on the GPU, by cuBLASLt. */
#ifndef QUIRE_DEVICE_GEMM_CUDA_H
#define QUIRE_DEVICE_GEMM_CUDA_H

#include <stdbool.h>

#include "base/err.h"
#include "kernels/kernels.h"

struct gemm;

/* workspace: device memory that products on the stream may use. ERR_GPU (logged). */
int gemm_open(struct gemm **out, void *workspace, size_t workspace_bytes) ERR_CHECKED;
void gemm_close(struct gemm *g); /* NULL is fine */

/* The number of rows that a product of n rows really computes: the next of 8, 16, 32, 64, then
 * multiples of 64, from 512 on of 256. x and y must have room for them; what stands in the
 * rows beyond n is of no account. So few shapes occur, and the bits of a row depend on the
 * bucket, not on n. */
int gemm_rows(int n);

/* One product: y [n][n_out] = x [n][n_in] * transpose(w [n_out][n_in]) + bias [n_out]. */
struct gemm_product {
    void *y;                /* bf16, or float32 when y_is_float */
    const k_bf16 *x, *bias; /* bias NULL: none */
    const struct k_matrix *w;
    int n;
    bool y_is_float;
};

/* Enqueue; sums are float32. ERR_GPU (logged with the shape). The first product of a shape asks
 * cuBLASLt for its best algorithm (some 50 us); later ones find it in a table. */
int gemm_run(struct gemm *g, const struct gemm_product *p, k_stream stream) ERR_CHECKED;

#endif
