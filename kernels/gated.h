/* SPDX-License-Identifier: Apache-2.0
 *
 * The first product of a gated FFN for many rows, with the gate in it. On Hopper. */
#ifndef QUIRE_KERNELS_GATED_H
#define QUIRE_KERNELS_GATED_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Can rows be multiplied so with w? It is plain bf16, the gate's rows before those of up. Only with
 * Hopper's kernels. */
bool k_multiply_gated_takes(const struct k_matrix *w);

/* y bf16 [n][n_out / 2] = silu(x * transpose(gate)) * (x * transpose(up)), x bf16 [n][n_in]; gate
 * and up are the halves of w [n_out][n_in]; n >= 1. Sums and the gate are float32. Tiles of 256
 * rows of x; w is read once for each 2,048 rows. Same bits whatever other rows there are. */
int k_multiply_gated(k_bf16 *y, const k_bf16 *x, const struct k_matrix *w, int n, int n_sms,
                     k_stream stream);
bool k_multiply_gated_takes_sm90(const struct k_matrix *w);
int k_multiply_gated_sm90(k_bf16 *y, const k_bf16 *x, const struct k_matrix *w, int n, int n_sms,
                          k_stream stream);

#ifdef __cplusplus
}
#endif
#endif
