/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows with packed matrices (packed.h), for Hopper. */
#ifndef QUIRE_KERNELS_PACKED_MANY_H
#define QUIRE_KERNELS_PACKED_MANY_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Work memory of k_multiply_many() on a device of so many multiprocessors. Its first
 * K_MANY_COUNTERS bytes are zero before the first product; a product leaves them so. The others may
 * be used between products. */
#define K_MANY_COUNTERS 4096
static inline size_t k_multiply_many_bytes(int n_sms)
{
    return K_MANY_COUNTERS + (size_t)n_sms * (2 * 256 * 128 * sizeof(float));
}

/* Whether k_multiply_many() takes a matrix: packed ones on Hopper, up to 1,024 multiprocessors. */
bool k_multiply_many_takes(const struct k_matrix *w);

/* p: K_PRODUCT_PLAIN or K_PRODUCT_FLOAT without sums_in; any number of rows. A weight is rounded to
 * bfloat16 once, as k_dequantise() does. Sums are float32; their order depends on the shape and on
 * n, not on other rows. Products with the same work memory must not run at the same time. 0, or -1:
 * the launch failed, or the matrix is not taken. */
int k_multiply_many(const struct k_product *p, int n, void *work, int n_sms, k_stream stream);

/* By Hopper's kernel; for choice.c. */
int k_multiply_many_sm90(const struct k_product *p, int n, void *work, int n_sms, k_stream stream);

#ifdef __cplusplus
}
#endif
#endif
