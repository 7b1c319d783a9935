/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows in which both sides are 8-bit whole numbers: rows of x are rounded with a
 * scale for each, and so are rows of w, whose format asks for it (k_format.rounds_x). Sums are
 * exact, in int32. On Hopper. Codes of 4 bits become such rows before a product. */
#ifndef QUIRE_KERNELS_BYTES_H
#define QUIRE_KERNELS_BYTES_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of x as whole numbers: element = data * scale. */
struct k_bytes {
    int8_t *data;  /* [n][dim], elements as K_BYTE_AT */
    float *scales; /* [n]: largest magnitude / 127; no number if an element is none */
};

/* Bytes of n rows in one piece, and their arrays in it, which is aligned to 16 bytes. */
static inline size_t k_bytes_size(int n, int dim)
{
    return (size_t)n * ((size_t)dim + sizeof(float));
}

static inline struct k_bytes k_bytes_in(void *memory, int n, int dim)
{
    struct k_bytes b = {(int8_t *)memory, (float *)((char *)memory + (size_t)n * (size_t)dim)};

    return b;
}

/* Round n rows of x bf16 [n][dim] to even; dim is a multiple of 16. A block per row. */
int k_round_bytes(const struct k_bytes *out, const k_bf16 *x, int n, int dim, k_stream stream);

/* The same of float32, on the host. */
void ref_round_bytes(const struct k_bytes *out, const float *x, int n, int dim);

/* Rows first .. first + n - 1 of a matrix of K_INT4 as bytes by row: out [n][n_in], elements as
 * K_BYTE_AT, and scales [n]: the largest magnitude that a group's scale and zero point allow, over
 * 127.
 * A weight is rounded to even; that adds an error of 1/254 of the row's largest to that of 4 bits.
 * first and n are multiples of 16. Reads w once, writes twice as many bytes. */
int k_round_codes(int8_t *out, float *scales, const struct k_matrix *w, int first, int n,
                  k_stream stream);

/* The same on the host; w's data is in records. */
void ref_round_codes(int8_t *out, float *scales, const struct k_matrix *w, int first, int n);

/* n random bytes with a sign, of this standard deviation before they are cut at 127. */
int k_fill_random_bytes(int8_t *out, size_t n, float deviation, uint64_t seed, k_stream stream);

/* Can rows be multiplied so with w? Only with Hopper's kernels. */
bool k_multiply_bytes_takes(const struct k_matrix *w);

/* y bf16 [n][w->n_out] = x * transpose(w) + bias, n >= 1; bias may be NULL. Rows of y are y_stride
 * elements apart, a multiple of 8. Tiles of 128 rows of w and 256 rows of x; faster than other ways
 * from about 100 rows on. Same bits whatever other rows there are. */
int k_multiply_bytes(k_bf16 *y, int y_stride, const struct k_bytes *x, const struct k_matrix *w,
                     const k_bf16 *bias, int n, int n_sms, k_stream stream);
bool k_multiply_bytes_takes_sm90(const struct k_matrix *w);
int k_multiply_bytes_sm90(k_bf16 *y, int y_stride, const struct k_bytes *x,
                          const struct k_matrix *w, const k_bf16 *bias, int n, int n_sms,
                          k_stream stream);

#ifdef __cplusplus
}
#endif
#endif
