/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixers with states beside the gated delta rule: Mamba-2, and short convolutions. Conventions as
 * in kernels.h. */
#ifndef QUIRE_KERNELS_MAMBA_H
#define QUIRE_KERNELS_MAMBA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Mamba-2 ------------------------------------------------------------------------------- */

#define K_MAMBA_HEAD_MAX     128
#define K_MAMBA_STATE_MAX    256
#define K_MAMBA_SHARED_BYTES (95 * 1024) /* of a block of k_mamba_scan() */

/* The sizes of a layer. Heads g * n .. g * n + n - 1 read group g, where n = n_heads / n_groups. */
struct k_mamba_shape {
    int n_heads, head_dim; /* head_dim 1 .. K_MAMBA_HEAD_MAX */
    int n_groups, n_state; /* n_groups divides n_heads; n_state 1 .. K_MAMBA_STATE_MAX */
    int n_taps;            /* of the convolution; 2 .. K_CONV_TAPS_MAX */
};

/* Elements of all heads of a row; of its x, B and C; and of the whole row of inputs. */
K_BOTH int k_mamba_inner(const struct k_mamba_shape *s)
{
    return s->n_heads * s->head_dim;
}
K_BOTH int k_mamba_channels(const struct k_mamba_shape *s)
{
    return k_mamba_inner(s) + 2 * s->n_groups * s->n_state;
}
K_BOTH int k_mamba_row(const struct k_mamba_shape *s)
{
    return k_mamba_inner(s) + k_mamba_channels(s) + s->n_heads;
}

/* Elements of a head's matrix, and of a layer's state: the matrices [n_heads][head_dim][n_state],
 * then the last inputs of the convolution [n_taps][channels], that of position p in row p % n_taps.
 * A step of one token so writes a row that it does not read. A multiple of 4. */
K_BOTH size_t k_mamba_matrix(const struct k_mamba_shape *s)
{
    return (size_t)s->head_dim * (size_t)s->n_state;
}
K_BOTH size_t k_mamba_elems(const struct k_mamba_shape *s)
{
    size_t n =
        (size_t)s->n_heads * k_mamba_matrix(s) + (size_t)s->n_taps * (size_t)k_mamba_channels(s);

    return (n + 3) / 4 * 4;
}

/* Channels of the convolution. `by` multiplies the inputs. */
struct k_mamba_part {
    const float *taps; /* float32 [channels][n_taps], on both sides; the last is the token's own */
    const float *bias; /* float32 [channels] or NULL */
    float by;
};

/* A layer's weights: float32 on both sides, except norm. */
struct k_mamba {
    struct k_mamba_shape shape;
    struct k_mamba_part x, b, c;         /* of n_heads * head_dim, and n_groups * n_state */
    const float *a_log, *dt_bias, *skip; /* [n_heads] */
    const void *norm;                    /* [n_heads * head_dim], bfloat16 for the launcher; NULL:
                                           * results are not normed */
    bool norm_first;                     /* before the gate; else after it */
    float eps;                           /* of norm */
    float least, most;                   /* limits of a step */
    float z_by, dt_by;
    float *rows; /* work memory of the launcher: k_mamba_work() floats for each token */
};

/* Floats of work memory for a token: x, B and C after the convolution, and two of each head. */
K_BOTH size_t k_mamba_work(const struct k_mamba_shape *s)
{
    return (size_t)(k_mamba_channels(s) + 2 * s->n_heads);
}

/* A row of in [n_tokens][k_mamba_row()] is z, x, B, C, dt. x, B and C pass the convolution, each
 * channel over its last n_taps tokens (0 before the text), times `by`, plus its bias, and SiLU.
 * Then for every head, in float32, with B and C of its group:
 *
 *   d = min(max(softplus(dt_by * dt + dt_bias), least), most)
 *   S = exp(-exp(a_log) * d) * S + (d * x) B            [head_dim][n_state]
 *   y = S C + skip * x
 *
 * and for every group g = silu(z_by * z), with the norm over the elements of all of its heads:
 *
 *   out [n_tokens][n_heads * head_dim] = norm(y * g); with norm_first norm(y) * g; without a norm
 *   y * g
 *
 * States are read, written and left as by ref_recurrent(). The references do one head of a sequence
 * (y; matrices are written), then the inputs of a sequence's convolution, after all of its heads,
 * and a token's norm and gate (out is y before). The launcher does all; its in is bfloat16, and so
 * is its out or, with is_half, in the layout of K_HALF_AT. Same bits whatever else is in the batch;
 * sums and states are float32. */
void ref_mamba_scan(float *y, const float *in, const struct k_mamba *m, const struct k_state *state,
                    const struct k_tokens *t, int seq, int head);
void ref_mamba_keep(const float *in, const struct k_mamba *m, const struct k_state *state,
                    const struct k_tokens *t, int seq);
void ref_mamba_gate(float *out, const float *in, const struct k_mamba *m, int token);
int k_mamba_scan(void *out, bool is_half, const k_bf16 *in, const struct k_mamba *m,
                 const struct k_state *state, const struct k_tokens *t, k_stream stream);

/* --- short convolutions -------------------------------------------------------------------- */

/* A layer's weights, float32 on both sides. */
struct k_short_conv {
    int width, n_taps; /* n_taps 2 .. K_CONV_TAPS_MAX */
    const float *taps; /* [width][n_taps]; the last is the token's own */
    const float *bias; /* [width] or NULL */
};

/* Elements of a layer's state: the last products [n_taps][width], as those of Mamba-2. */
K_BOTH size_t k_short_conv_elems(int width, int n_taps)
{
    return ((size_t)width * (size_t)n_taps + 3) / 4 * 4;
}

/* A row of in [n_tokens][3 * width] is b, c, x; out [n_tokens][width] = c * (convolution(b * x) +
 * bias), each channel over its last n_taps tokens. States as those of ref_recurrent(). The
 * reference does channels first .. last - 1 of one sequence, the launcher as k_mamba_scan(). */
void ref_short_conv(float *out, const float *in, const struct k_short_conv *c,
                    const struct k_state *state, const struct k_tokens *t, int seq, int first,
                    int last);
int k_short_convolve(void *out, bool is_half, const k_bf16 *in, const struct k_short_conv *c,
                     const struct k_state *state, const struct k_tokens *t, k_stream stream);

/* --- rows ---------------------------------------------------------------------------------- */

/* The first `width` elements of each row of x [n][stride] *= by. The launcher's x is bfloat16. */
void ref_scale(float *x, int stride, int width, float by, int n);
int k_scale(k_bf16 *x, int stride, int width, float by, int n, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
