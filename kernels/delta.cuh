/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts that the kernels of the gated delta rule share. */
#ifndef QUIRE_KERNELS_DELTA_CUH
#define QUIRE_KERNELS_DELTA_CUH

#include "kernels/common.cuh"
#include "kernels/delta.h"
#include "kernels/state.cuh"
#include "kernels/tf32.cuh"

#define DELTA_DIM  K_DELTA_DIM_MAX
#define DELTA_FEW  K_TOKENS_FEW
#define LENGTH_EPS 1e-6f

struct delta_args {
    void *out;
    const k_bf16 *in;
    const float *gates;
    struct k_delta d;
    struct k_state state;
    struct k_tokens t;
    bool is_half;
    const k_bf16 *z; /* of the first token */
    int z_pitch;     /* to the next one */
};

/* One token per sequence and heads of 128 with factors of heads: the launchers of delta_one.cu, for
 * what delta_sole_takes(), and of sm90_delta.cu, for few sequences of that. */
bool delta_sole_takes(const struct k_delta_shape *s, const struct k_state *state);
int delta_run_sole(const delta_args &a, k_stream stream);
int delta_run_ranks(const delta_args &a, k_stream stream);

/* The launchers of delta_chunk.cu and delta_serial.cu: sequences with several tokens, from the
 * rows that delta_convolve_kernel() has written; results replace v in them. The first one is for
 * those that are not few, the second one for few, and by channel for all. */
int delta_launch_chunks(const delta_args &a, k_stream stream);
int delta_launch_serial(const delta_args &a, k_stream stream);

/* Rows of chunks [n_tokens][n_v_heads][K_DELTA_CHUNK], which lie before those of a.d.rows, because
 * they are in groups of four whatever the sizes of heads are. By channel factors of the matrices'
 * rows [n_tokens][n_v_heads][k_dim] lie there. */
static __host__ __device__ inline size_t delta_chunk_elems(const delta_args &a)
{
    const struct k_delta_shape &s = a.d.shape;

    return (size_t)a.t.n_tokens * s.n_v_heads * (s.by_channel ? s.k_dim : K_DELTA_CHUNK);
}

static __device__ inline float *delta_chunk_rows(const delta_args &a)
{
    return a.d.rows - delta_chunk_elems(a);
}

/* Sequences of one token have a kernel of their own. */
static __device__ inline bool delta_is_chunk(const delta_args &a, int seq)
{
    return a.t.kv_len[seq] > 0 && a.t.seq_start[seq + 1] - a.t.seq_start[seq] > 1;
}

/* Of those with several tokens. */
static __device__ inline bool delta_is_few(const delta_args &a, int seq)
{
    return a.t.seq_start[seq + 1] - a.t.seq_start[seq] <= DELTA_FEW;
}

/* True if rows and heads lie in groups of four elements. */
static __device__ inline bool delta_in_fours(const struct k_delta_shape &s)
{
    return s.k_dim % 4 == 0 && s.v_dim % 4 == 0;
}

#ifdef gridDim /* played on the host */
#define delta_launch_early(kernel, grid, block, bytes, n_ranks, stream, ...) \
    K_LAUNCH(kernel, grid, block, bytes, stream, __VA_ARGS__)
#else
/* A launch that may begin while the kernel in front of it still runs, in clusters of n_ranks. */
template <class... P, class... A>
static inline int delta_launch_early(void (*kernel)(P...), dim3 grid, unsigned block, size_t bytes,
                                     unsigned n_ranks, k_stream stream, A... args)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = n_ranks;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = k_is_portable() ? 0 : n_ranks > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? 0 : -1;
}
#endif

/* --- addresses ------------------------------------------------------------------------------ */

/* The element of the state that is a channel's input at position pos. */
static __device__ inline size_t delta_kept(const delta_args &a, int pos, int channel)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t row = pos % s.n_taps;

    return s.n_v_heads * k_delta_matrix(&s) + row * k_delta_channels(&s) + channel;
}

/* A token's row of inputs. */
static __device__ inline const k_bf16 *delta_row(const delta_args &a, int token)
{
    const struct k_delta_shape &s = a.d.shape;

    return a.in + (size_t)token * k_delta_row(&s);
}

/* A token's z of all value heads, and its row of gates. */
static __device__ inline const k_bf16 *delta_z(const delta_args &a, int token)
{
    return a.z + (size_t)token * a.z_pitch;
}

static __device__ inline const float *delta_gates(const delta_args &a, int token)
{
    return a.gates + (size_t)token * k_delta_gates(&a.d.shape);
}

/* --- one token ------------------------------------------------------------------------------ */

static __device__ inline float delta_sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

static __device__ inline float delta_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* The logarithm of the factor of a head's matrix before a token. */
static __device__ inline float delta_log_keep(const delta_args &a, const float *gate, int head)
{
    float x = gate[a.d.shape.n_v_heads + head] + a.d.dt_bias[head];

    return -expf(a.d.a_log[head]) * delta_softplus(x);
}

/* The factor of row i of a head's matrix before a token, by channel; 1 behind the last row. */
static __device__ inline float delta_keep_row(const delta_args &a, int token, int head, int i)
{
    const struct k_delta_shape &s = a.d.shape;
    int at = head * s.k_dim + i;

    if (i >= s.k_dim)
        return 1.0f;
    return __expf(
        -expf(a.d.a_log[head]) *
        delta_softplus(a.d.a[(size_t)token * k_delta_forgets(&s) + at] + a.d.dt_bias[at]));
}

/* What a result is multiplied with. */
static __device__ inline float delta_open(bool by_channel, float z)
{
    return by_channel ? delta_sigmoid(z) : z * delta_sigmoid(z);
}

/* A head of q, k or v: its taps, and its first channel. */
struct delta_head {
    const float *taps;
    int channel, dim;
};

static __device__ inline delta_head delta_key_head(const delta_args &a, int k_head, bool is_key)
{
    const struct k_delta_shape &s = a.d.shape;
    int first = k_head * s.k_dim;
    const float *taps = is_key ? a.d.k_taps : a.d.q_taps;

    return {taps + first * s.n_taps, first + (is_key ? k_delta_keys(&s) : 0), s.k_dim};
}

static __device__ inline delta_head delta_value_head(const delta_args &a, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    int first = head * s.v_dim;

    return {a.d.v_taps + first * s.n_taps, first + 2 * k_delta_keys(&s), s.v_dim};
}

/* Channel i of a head at a token, whose sequence begins at token `begin` of the step. All taps are
 * fetched at once. */
template <state_type type>
static __device__ inline float delta_convolve(const delta_args &a, const delta_head &h, int i,
                                              int seq, int token, int begin, int pos)
{
    int n_taps = a.d.shape.n_taps;
    float x[K_CONV_TAPS_MAX], by[K_CONV_TAPS_MAX], sum = 0.0f;

#pragma unroll
    for (int back = 0; back < K_CONV_TAPS_MAX; back++) {
        x[back] = by[back] = 0.0f;
        if (back >= n_taps || pos < back)
            continue;
        by[back] = h.taps[i * n_taps + n_taps - 1 - back];
        if (token - back >= begin)
            x[back] = load_bf16(delta_row(a, token - back) + h.channel + i);
        else
            x[back] = state_read<type>(a.state, a.t, seq, delta_kept(a, pos - back, h.channel + i));
    }
    for (int back = K_CONV_TAPS_MAX - 1; back >= 0; back--)
        sum += by[back] * x[back];
    return sum * delta_sigmoid(sum);
}

/* --- a sequence's tokens by one block ------------------------------------------------------- */

/* The block's part of the work. */
struct delta_part {
    int head, seq, column, n_columns; /* the first of its columns in the head, and their number */
    int begin, end;                   /* tokens */
};

/* The last inputs of the block's channels replace older ones in the state: its values, and queries
 * and keys if its head is the first one that reads them. */
static __device__ inline void delta_keep_inputs(const delta_args &a, const delta_part &part)
{
    const struct k_delta_shape &s = a.d.shape;
    int turn = s.n_v_heads / s.n_k_heads, first = max(part.begin, part.end - s.n_taps);
    int first_pos = a.t.kv_len[part.seq] - (part.end - part.begin) - part.begin;
    bool has_keys = part.head % turn == 0 && part.column == 0;
    int n = part.n_columns + (has_keys ? 2 * s.k_dim : 0);

    for (int at = threadIdx.x; at < (part.end - first) * n; at += (int)blockDim.x) {
        int token = first + at / n, i = at % n - part.n_columns;
        int channel = 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column + at % n;

        if (i >= 0)
            channel =
                part.head / turn * s.k_dim + i % s.k_dim + (i < s.k_dim ? 0 : k_delta_keys(&s));
        state_write(a.state, a.t, part.seq, delta_kept(a, first_pos + token, channel),
                    load_bf16(delta_row(a, token) + channel));
    }
}

#endif
