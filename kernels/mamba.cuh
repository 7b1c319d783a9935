/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts that the kernels of Mamba-2 share. */
#ifndef QUIRE_KERNELS_MAMBA_CUH
#define QUIRE_KERNELS_MAMBA_CUH

#include "kernels/common.cuh"
#include "kernels/mamba.h"
#include "kernels/state.cuh"
#include "kernels/tf32.cuh"

struct mamba_args {
    void *out;
    const k_bf16 *in;
    struct k_mamba m;
    struct k_state state;
    struct k_tokens t;
    bool is_half;
};

/* The launcher of mamba_chunk.cu: sequences with several tokens, from the rows that
 * mamba_convolve_kernel() has written; results replace x in them. */
int mamba_launch_chunks(const mamba_args &a, k_stream stream);

/* Sequences of one token have a kernel of their own. */
static __device__ inline bool mamba_is_chunk(const mamba_args &a, int seq)
{
    return a.t.kv_len[seq] > 0 && a.t.seq_start[seq + 1] - a.t.seq_start[seq] > 1;
}

/* --- addresses ------------------------------------------------------------------------------ */

/* The element of the state that is a channel's input at position pos. */
static __device__ inline size_t mamba_kept(const mamba_args &a, int pos, int channel)
{
    const struct k_mamba_shape &s = a.m.shape;
    size_t row = pos % s.n_taps;

    return s.n_heads * k_mamba_matrix(&s) + row * k_mamba_channels(&s) + channel;
}

/* A token's row of inputs: z, then x, B and C, then dt. */
static __device__ inline const k_bf16 *mamba_row(const mamba_args &a, int token)
{
    return a.in + (size_t)token * k_mamba_row(&a.m.shape);
}

/* Its x, B and C. */
static __device__ inline const k_bf16 *mamba_inputs(const mamba_args &a, int token)
{
    return mamba_row(a, token) + k_mamba_inner(&a.m.shape);
}

/* A token's x (or result), B and C in work memory, and the two numbers of each head: the length of
 * its step, and the logarithm of what it keeps. */
static __device__ inline float *mamba_rows(const mamba_args &a, int token)
{
    return a.m.rows + (size_t)token * k_mamba_channels(&a.m.shape);
}

static __device__ inline float *mamba_steps(const mamba_args &a, int token)
{
    const struct k_mamba_shape &s = a.m.shape;

    return a.m.rows + (size_t)a.t.n_tokens * k_mamba_channels(&s) + (size_t)token * 2 * s.n_heads;
}

/* The first channel of a head's x, and of its B and C. */
static __device__ inline int mamba_b_channel(const struct k_mamba_shape &s, int head)
{
    return k_mamba_inner(&s) + head / (s.n_heads / s.n_groups) * s.n_state;
}

static __device__ inline int mamba_c_channel(const struct k_mamba_shape &s, int head)
{
    return mamba_b_channel(s, head) + s.n_groups * s.n_state;
}

/* --- one token ------------------------------------------------------------------------------ */

static __device__ inline float mamba_sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

/* The length of a head's step. */
static __device__ inline float mamba_length(const mamba_args &a, int token, int head)
{
    const struct k_mamba_shape &s = a.m.shape;
    float dt = load_bf16(mamba_row(a, token) + k_mamba_inner(&s) + k_mamba_channels(&s) + head);
    float x = a.m.dt_by * dt + a.m.dt_bias[head];
    float softplus = x > 20.0f ? x : log1pf(expf(x));

    return fminf(fmaxf(softplus, a.m.least), a.m.most);
}

/* The logarithm of the factor of a head's matrix before a token with a step of this length. */
static __device__ inline float mamba_log_keep(const mamba_args &a, int head, float length)
{
    return -expf(a.m.a_log[head]) * length;
}

#endif
