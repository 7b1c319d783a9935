/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows in which both sides are 8-bit whole numbers: rows of x are rounded with a
 * scale for each, w is records of codes of 8 bits (packed.h) whose rows have one scale
 * (k_format.rounds_x). Sums are exact, in int32. On Hopper. */
#ifndef QUIRE_KERNELS_BYTES_H
#define QUIRE_KERNELS_BYTES_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The place of element i of a row: of each 16 the order in which the tensor cores take the columns
 * of a record. */
#define K_BYTE_AT(i) (((i) & ~(size_t)15) | ((i)&6) << 1 | ((i) >> 2 & 2) | ((i)&1))

/* Rows of x as whole numbers: element = data * scale. */
struct k_bytes {
    int8_t *data;  /* [n][dim], elements as K_BYTE_AT */
    float *scales; /* [n]: largest magnitude / 127; no number if an element is none */
    int32_t *sums; /* [n]: of data */
};

/* Bytes of n rows in one piece, and their arrays in it, which is aligned to 16 bytes. */
static inline size_t k_bytes_size(int n, int dim)
{
    return (size_t)n * ((size_t)dim + sizeof(float) + sizeof(int32_t));
}

static inline struct k_bytes k_bytes_in(void *memory, int n, int dim)
{
    char *rest = (char *)memory + (size_t)n * (size_t)dim;
    struct k_bytes b = {(int8_t *)memory, (float *)rest,
                        (int32_t *)(rest + (size_t)n * sizeof(float))};

    return b;
}

/* Round n rows of x bf16 [n][dim] to even; dim is a multiple of 16. A block per row. */
int k_round_bytes(const struct k_bytes *out, const k_bf16 *x, int n, int dim, k_stream stream);

/* The same of float32, on the host. */
void ref_round_bytes(const struct k_bytes *out, const float *x, int n, int dim);

/* Can rows be multiplied so with w? Only with Hopper's kernels. */
bool k_multiply_bytes_takes(const struct k_matrix *w);

/* y bf16 [n][w->n_out] = x * transpose(w) + bias, n >= 1; bias may be NULL. Tiles of 128 rows of w
 * and 256 rows of x; faster than other ways from about 100 rows on. Same bits whatever other rows
 * there are. */
int k_multiply_bytes(k_bf16 *y, const struct k_bytes *x, const struct k_matrix *w,
                     const k_bf16 *bias, int n, int n_sms, k_stream stream);
bool k_multiply_bytes_takes_sm90(const struct k_matrix *w);
int k_multiply_bytes_sm90(k_bf16 *y, const struct k_bytes *x, const struct k_matrix *w,
                          const k_bf16 *bias, int n, int n_sms, k_stream stream);

#ifdef __cplusplus
}
#endif
#endif
