/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule, in two forms: Gated DeltaNet, whose heads forget by one factor a token, and
 * Kimi Delta Attention, where each channel of a head's key has a factor of its own (by_channel).
 * Conventions as in kernels.h. Sources: Gated Delta Networks, arXiv 2412.06464; Kimi Linear, arXiv
 * 2510.26692. */
#ifndef QUIRE_KERNELS_DELTA_H
#define QUIRE_KERNELS_DELTA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_DELTA_DIM_MAX      128          /* of launchers */
#define K_DELTA_REF_DIM_MAX  256          /* of the reference */
#define K_DELTA_SHARED_BYTES (110 * 1024) /* of a block of k_delta_rule() */

/* The sizes of a layer. Value heads v * n .. v * n + n - 1 read key head v, where n = n_v_heads /
 * n_k_heads. */
struct k_delta_shape {
    int n_k_heads, n_v_heads; /* n_v_heads is a multiple of n_k_heads */
    int k_dim, v_dim;         /* of a head; 1 .. K_DELTA_DIM_MAX or K_DELTA_REF_DIM_MAX */
    int n_taps;               /* of the convolution; 2 .. K_CONV_TAPS_MAX */
    bool by_channel;          /* Kimi Delta Attention */
    bool doubles;             /* the reference only: 2 sigmoid(b) replaces sigmoid(b), so that a
                               * state may change its sign */
};

/* Elements of all queries or keys, of all values, and of a row's q, k and v. */
K_BOTH int k_delta_keys(const struct k_delta_shape *s)
{
    return s->n_k_heads * s->k_dim;
}
K_BOTH int k_delta_values(const struct k_delta_shape *s)
{
    return s->n_v_heads * s->v_dim;
}
K_BOTH int k_delta_channels(const struct k_delta_shape *s)
{
    return 2 * k_delta_keys(s) + k_delta_values(s);
}

/* Elements of a row of inputs, of one of gates, and of a token's a. */
K_BOTH int k_delta_row(const struct k_delta_shape *s)
{
    return k_delta_channels(s) + (s->by_channel ? 0 : k_delta_values(s));
}
K_BOTH int k_delta_gates(const struct k_delta_shape *s)
{
    return s->by_channel ? s->n_v_heads : 2 * s->n_v_heads;
}
K_BOTH int k_delta_forgets(const struct k_delta_shape *s)
{
    return s->n_v_heads * (s->by_channel ? s->k_dim : 1);
}

/* Elements of a head's matrix, and of a layer's state: the matrices [n_v_heads][k_dim][v_dim], then
 * the last inputs of the convolution [n_taps][channels], that of position p in row p % n_taps. A
 * step of one token so writes a row that it does not read. A multiple of 4. */
K_BOTH size_t k_delta_matrix(const struct k_delta_shape *s)
{
    return (size_t)s->k_dim * (size_t)s->v_dim;
}
K_BOTH size_t k_delta_elems(const struct k_delta_shape *s)
{
    size_t n =
        (size_t)s->n_v_heads * k_delta_matrix(s) + (size_t)s->n_taps * (size_t)k_delta_channels(s);

    return (n + 3) / 4 * 4;
}

/* Rows of gates b and a of few tokens, from the residual and its sums of squares:
 * gates [n][n_gates] = w * norm(x). The launch in front must not write what is read here: it may
 * still run. */
#define K_DELTA_GATING_MAX 8 /* tokens */
struct k_delta_gating {
    const k_bf16 *w;    /* [n_gates][dim] */
    const float *x;     /* [n][dim] */
    const k_bf16 *norm; /* [dim] */
    const float *sums;  /* [n][n_sums] */
    int dim, n_sums;    /* dim: a multiple of 4 */
    float eps;
};
int k_delta_gate(float *gates, const struct k_delta_gating *g, int n_gates, int n, k_stream stream);

/* A layer's weights: float32 on both sides, except norm. */
struct k_delta {
    struct k_delta_shape shape;
    const float *q_taps, *k_taps; /* [n_k_heads * k_dim][n_taps]; the last is the token's own */
    const float *v_taps;          /* [n_v_heads * v_dim][n_taps] */
    const float *a_log;           /* [n_v_heads] */
    const float *dt_bias;         /* [k_delta_forgets()] */
    const void *norm;             /* [v_dim]; bfloat16 for the launcher */
    float eps;                    /* of norm */
    /* Of the reference alone: out has the first value head of every key head, then the second of
     * every one, and so on. */
    bool out_in_turns;
    /* By channel, a step's inputs that are no part of its rows: float32 on both sides a
     * [n_tokens][n_v_heads][k_dim], and z [n_tokens][values], bfloat16 for the launcher. */
    const float *a;
    const void *z;
    float *rows; /* work memory of the launcher [n_tokens][k_delta_work()], for steps in which a
                  * sequence has several tokens */
};

/* Tokens of a sequence that kernels compute together. */
#define K_DELTA_CHUNK 32

/* Floats of work memory for a token, in whole groups of four for all tokens together. */
K_BOTH size_t k_delta_work(const struct k_delta_shape *s)
{
    return (size_t)(k_delta_channels(s) +
                    (s->by_channel ? k_delta_forgets(s) : K_DELTA_CHUNK * s->n_v_heads));
}

/* A row of in [n_tokens][k_delta_row()] is q, k, v, z; one of gates, float32 [n_tokens]
 * [k_delta_gates()] on both sides, is b, a, [n_v_heads] each; by channel z and a are apart. q, k
 * and v pass the convolution, each channel over its last n_taps tokens (0 before the text), and
 * SiLU. Then for every value head, in float32:
 *
 *   q = q / sqrt(sum(q^2) + 1e-6) / sqrt(k_dim),   k = k / sqrt(sum(k^2) + 1e-6)
 *   S = exp(-exp(a_log) * softplus(a + dt_bias)) * S            [k_dim][v_dim]
 *   u = sigmoid(b) * (v - transpose(S) k),   S = S + k u,   o = transpose(S) q
 *   out [n_tokens][values] = o / sqrt(mean(o^2) + eps) * norm * silu(z)
 *
 * By channel the factor of S is one for each of its k_dim rows, and sigmoid(z) replaces silu(z).
 *
 * States are read, written and left as by ref_recurrent(). The reference does key head k_head of
 * one sequence, with the value heads that read it. The launcher's in is bfloat16, and so is its out
 * or, with is_half, in the layout of K_HALF_AT. Same bits whatever else is in the batch; sums and
 * states are float32, but sequences of several tokens take products of tf32 where heads forget by
 * one factor. */
void ref_delta_rule(float *out, const float *in, const float *gates, const struct k_delta *d,
                    const struct k_state *state, const struct k_tokens *t, int seq, int k_head);
int k_delta_rule(void *out, bool is_half, const k_bf16 *in, const float *gates,
                 const struct k_delta *d, const struct k_state *state, const struct k_tokens *t,
                 k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
