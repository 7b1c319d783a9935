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
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_ADAPTED_MAX        3 /* tensors of one matrix */
#define K_ADAPT_STRIDE(rank) (((rank) + 15) / 16 * 16)

struct k_adapter {
    const void *a; /* [rank][n_in] */
    const void *b; /* [rank][n_out], the transpose of the checkpoint's matrix; on a GPU
                    * [n_out][K_ADAPT_STRIDE(rank)], zeros behind each row's ranks */
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
    int n_parts, n_in;
    bool of_rows; /* the product is of the step's sampled rows, not of its tokens */
    const struct k_adapters
        *next; /* of the matrix that is probably used next, in host memory; NULL */
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

/* --- on a GPU ------------------------------------------------------------------------------ */

/* The rows of a product in the order of their adapters. A segment is some rows, at most
 * K_ADAPT_ROWS, of one slot or without adapter; each row is in one segment. */
#define K_ADAPT_ROWS 8
struct k_adapt_rows {
    int32_t *order;  /* int32 [n]: the segments' rows */
    int32_t *starts; /* int32 [n + 1]: of the segments in order, and the end */
    int32_t *slots;  /* int32 [n]: of the segments; -1: none */
    int32_t *count;  /* int32 [2]: segments; of these, without adapter, which come first */
    int32_t *of;     /* int32 [n]: the rows' slots, -1: none */
};

/* Make the segments of n rows: slots_of int32 [n], each -1 .. n_slots - 1. On the host. work: int32
 * [n_slots + 2]. */
void k_adapt_sort(const struct k_adapt_rows *to, const int32_t *slots_of, int n, int n_slots,
                  int32_t *work);

/* A row of t has K_ADAPT_STRIDE(rank_max) numbers; the most sums that they are split into. */
#define K_ADAPT_SPLITS 4

/* A product whose rows may have adapters, in three steps: k_adapt_in(), then the product itself,
 * then k_adapt_out(), which does what p says with the sum of both (struct k_product):
 *
 *   K_PRODUCT_PLAIN, _FLOAT      y has the product and gets the sum
 *   K_PRODUCT_GATED, _RESIDUAL   plain has the product, bias included; norm and sums as there
 *
 * Of p, w and bias are not read. sums_in completes the norm of x. */
struct k_adapting {
    struct k_adapters of;     /* its slots in device memory */
    struct k_adapters next;   /* comes to the L2 cache meanwhile; n_parts 0: nothing */
    struct k_adapt_rows rows; /* likewise */
    struct k_product p;
    bool x_is_half;      /* x is as K_HALF_AT; n_in is a multiple of 16 */
    const k_bf16 *plain; /* bf16 [n][n_out] */
    float *t;            /* memory for k_adapt_t_len() numbers */
    uint32_t *meet;      /* [2], zeros between launches; NULL: k_adapt_joins() says no */
    int n, n_in, n_out, rank_max, n_sms;
};

/* Numbers of t for n rows of a matrix with K_ADAPTED_MAX parts. */
size_t k_adapt_t_len(int n, int n_in, int rank_max);

/* Can k_adapt_out() do more than K_PRODUCT_PLAIN and _FLOAT with this matrix? Runs of columns must
 * be multiples of 8. */
bool k_adapt_fuses(const struct k_adapters *of, int n_out);

/* A product that adds its adapters in the same launch: y or residual get the whole of p, which is
 * as for k_multiply(). Joins: is there one, for this format, these sizes and ranks? If not, the
 * three steps. 0, or -1 if the launch fails. As below, but for the bits, which differ from those of
 * the three steps. */
bool k_adapt_joins(const struct k_adapting *a);
int k_adapt_join(const struct k_adapting *a, k_stream stream);

/* 0, or -1 if a launch fails. Deterministic; a row's result does not depend on the others; may be
 * captured, then for segments that change. Adapters' memory is aligned to 16 bytes. The kernels may
 * begin before the previous one has ended. */
int k_adapt_in(const struct k_adapting *a, k_stream stream);
int k_adapt_out(const struct k_adapting *a, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
