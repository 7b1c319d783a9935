/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-rank adapters (LoRA) of a matrix w: for a token with an adapter, a product gives
 *
 *   y = w x + scale * transpose(b) (a x)
 *
 * A matrix of the model may be several tensors of the checkpoint, one below the other (q, k, v),
 * and each of them has an adapter of its own: a run of y's columns.
 *
 * Adapters that tokens may have at a time are numbered; the number is called a slot. Numbers are of
 * the device's type, sums float32. A token's result depends on its own adapter only.
 *
 * Source: LoRA, arXiv 2106.09685; for batches of different adapters S-LoRA, arXiv 2311.03285. */
#ifndef QUIRE_KERNELS_ADAPTER_H
#define QUIRE_KERNELS_ADAPTER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_ADAPTED_MAX 3 /* tensors of one matrix */

struct k_adapter {
    const void *a; /* [rank][n_in] */
    const void *b; /* [rank][n_out]: of the checkpoint's matrix the transpose */
    int rank;      /* 0: the adapter in this slot leaves the tensor as it is */
    float scale;
};

/* The rows of one tensor in the matrix. */
struct k_adapted {
    int first, n_out;        /* columns of y */
    struct k_adapter *slots; /* [number of slots] */
};

struct k_adapters {
    struct k_adapted parts[K_ADAPTED_MAX];
    int n_parts;
    bool of_rows; /* the product is of the step's sampled rows, not of its tokens */
};

/* y [n_out] += scale * transpose(b) t, with t [rank] and b [rank][stride]. The terms of an element
 * are added in the order of t, apart from y, and then to it; so neither the number of elements nor
 * other rows change a bit. float32. */
void ref_adapt_row(float *y, const float *b, const float *t, int rank, float scale, int n_out,
                   int stride);

/* The whole of the above for one row: y [columns of the matrix] of x [n_in], with the adapters in
 * `slot`. t: memory for rank numbers. float32. */
void ref_adapt(float *y, const float *x, const struct k_adapters *adapters, int slot, int n_in,
               float *t);

/* The products of a step on a GPU: y [n][stride] += those of the rows' adapters. */
struct k_adapting {
    struct k_adapters of; /* its slots in device memory */
    void *y;              /* bf16, or float32 */
    bool y_is_float;
    const k_bf16 *x;         /* bf16 [n][n_in] */
    float *t;                /* memory for float32 [n_parts][n][rank_max] */
    const int32_t *adapters; /* int32: the slot of each token, -1: none */
    const int32_t *rows;     /* int32 [n]: tokens of the rows; NULL: they are the tokens */
    int n, n_in, stride, rank_max;
};

/* 0, or -1 if a launch fails. Deterministic; may be captured. */
int k_adapt(const struct k_adapting *a, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
