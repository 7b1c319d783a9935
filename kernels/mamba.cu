/* SPDX-License-Identifier: Apache-2.0
 *
 * Mamba-2.
 *
 * Sequences with one token: a block has a head of a sequence. Each warp has rows of the head's
 * matrix in registers, four elements or eight per lane, which are fetched while the convolution of
 * x, B and C runs. Bytes: the matrix once in and once out; bound by memory. B and C are convolved
 * by every head of their group: the state's rows of inputs are such that no block writes a row that
 * another one reads (mamba.h).
 *
 * Sequences with several: the convolution and SiLU, a thread per channel of a token, into float32
 * rows; chunks (mamba_chunk.cu).
 *
 * Both write results into the rows; the norm and the gate follow, by a block per group of a
 * token. */
#include "kernels/mamba.cuh"

#define ONE_THREADS  256
#define ONE_WARPS    (ONE_THREADS / 32)
#define ONE_ROWS     8 /* of a warp at a time */
#define CONV_THREADS 256
#define GATE_THREADS 256

static_assert(ONE_ROWS == 8, "mamba_one_add() halves three times");

/* --- a token per sequence ------------------------------------------------------------------- */

struct mamba_one {
    float x[K_MAMBA_HEAD_MAX], b[K_MAMBA_STATE_MAX], c[K_MAMBA_STATE_MAX];
};

/* Rows of a head's matrix by a warp: of row i elements 128 * j + 4 * lane and three more. */
template <int fours> struct mamba_rows_held {
    float4 x[ONE_ROWS][fours];
};

/* The lane's four elements of a row; elements beyond the row are 0. Whole rows lie in groups of
 * four elements that no page divides. */
template <bool whole>
static __device__ inline float4 mamba_fetch_four(const mamba_args &a, int seq, int head, int row,
                                                 int column)
{
    const struct k_mamba_shape &s = a.m.shape;
    size_t at = head * k_mamba_matrix(&s) + (size_t)row * s.n_state + column;

    if constexpr (whole) {
        return *(const float4 *)mamba_elem(a, seq, at);
    } else {
        float x[4];

        for (int i = 0; i < 4; i++)
            x[i] = column + i < s.n_state ? *mamba_elem(a, seq, at + i) : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
}

template <bool whole>
static __device__ inline void mamba_store_four(const mamba_args &a, int seq, int head, int row,
                                               int column, float4 x)
{
    const struct k_mamba_shape &s = a.m.shape;
    size_t at = head * k_mamba_matrix(&s) + (size_t)row * s.n_state + column;

    if constexpr (whole) {
        *(float4 *)mamba_elem(a, seq, at) = x;
    } else {
        const float each[4] = {x.x, x.y, x.z, x.w};

        for (int i = 0; i < 4; i++) {
            if (column + i < s.n_state)
                *mamba_elem(a, seq, at + i) = each[i];
        }
    }
}

/* Rows first .. first + ONE_ROWS - 1 of the head's matrix; zeros where it begins. */
template <bool whole, int fours>
static __device__ inline void mamba_fetch_rows(const mamba_args &a, mamba_rows_held<fours> &held,
                                               int seq, int head, int first, bool is_new)
{
#pragma unroll
    for (int i = 0; i < ONE_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < fours; j++) {
            held.x[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!is_new && first + i < a.m.shape.head_dim)
                held.x[i][j] = mamba_fetch_four<whole>(a, seq, head, first + i,
                                                       128 * j + 4 * ((int)threadIdx.x % 32));
        }
    }
}

/* x, B and C of the block's head after the convolution, and the token's inputs into the state:
 * those of B and C by the first head of their group. */
static __device__ inline void mamba_one_convolve(const mamba_args &a, mamba_one &shared, int seq,
                                                 int token, int pos, int head)
{
    const struct k_mamba_shape &s = a.m.shape;
    bool is_first = head % (s.n_heads / s.n_groups) == 0;

    for (int at = threadIdx.x; at < s.head_dim + 2 * s.n_state; at += ONE_THREADS) {
        bool is_x = at < s.head_dim;
        int i = is_x ? at : (at - s.head_dim) % s.n_state;
        bool is_b = at < s.head_dim + s.n_state;
        int channel = is_x   ? head * s.head_dim + i
                      : is_b ? mamba_b_channel(s, head) + i
                             : mamba_c_channel(s, head) + i;

        (is_x   ? shared.x
         : is_b ? shared.b
                : shared.c)[i] = mamba_convolve(a, channel, seq, token, token, pos);
        if (is_x || is_first)
            *mamba_kept(a, seq, pos, channel) =
                load_bf16(mamba_row(a, token) + k_mamba_inner(&s) + channel);
    }
}

/* Sums over a warp of ONE_ROWS numbers of each lane: lane l gets that of number l / 4 % 8, with its
 * bits in reverse. */
static __device__ inline float mamba_one_add(float *x)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int half = ONE_ROWS / 2, bit = 16; half > 0; half /= 2, bit /= 2) {
#pragma unroll
        for (int i = 0; i < half; i++) {
            float own = lane & bit ? x[i + half] : x[i], other = lane & bit ? x[i] : x[i + half];

            x[i] = own + __shfl_xor_sync(~0U, other, bit);
        }
    }
    x[0] += __shfl_xor_sync(~0U, x[0], 2);
    return x[0] + __shfl_xor_sync(~0U, x[0], 1);
}

/* The number whose sum a lane gets. */
static __device__ inline int mamba_one_row()
{
    int lane = threadIdx.x % 32;

    return (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}

/* The rows forget, take x and are read and stored. */
template <bool whole, int fours>
static __device__ inline void mamba_run_rows(const mamba_args &a, const mamba_one &shared,
                                             mamba_rows_held<fours> &held, int seq, int head,
                                             int first, float2 by)
{
    const struct k_mamba_shape &s = a.m.shape;
    int lane = threadIdx.x % 32, row = first + mamba_one_row();
    float sums[ONE_ROWS] = {}, y;

#pragma unroll
    for (int j = 0; j < fours; j++) {
        int column = 128 * j + 4 * lane;
        float4 b = *(const float4 *)&shared.b[column], c = *(const float4 *)&shared.c[column];

#pragma unroll
        for (int i = 0; i < ONE_ROWS; i++) {
            float x = first + i < s.head_dim ? by.y * shared.x[first + i] : 0.0f;
            float4 &m = held.x[i][j];

            m.x = by.x * m.x + x * b.x, m.y = by.x * m.y + x * b.y;
            m.z = by.x * m.z + x * b.z, m.w = by.x * m.w + x * b.w;
            sums[i] += m.x * c.x + m.y * c.y + (m.z * c.z + m.w * c.w);
            if (first + i < s.head_dim)
                mamba_store_four<whole>(a, seq, head, first + i, column, m);
        }
    }
    y = mamba_one_add(sums);
    if (lane % 4 == 0 && row < s.head_dim)
        mamba_rows(a, a.t.seq_start[seq])[head * s.head_dim + row] =
            y + a.m.skip[head] * shared.x[row];
}

template <bool whole, int fours>
static __global__ void __launch_bounds__(ONE_THREADS) mamba_one_kernel(const mamba_args a)
{
    __shared__ __align__(16) mamba_one shared;
    int head = blockIdx.x, seq = blockIdx.y;
    int token = a.t.seq_start[seq], len = a.t.kv_len[seq];
    int first = (int)threadIdx.x / 32 * ONE_ROWS;
    mamba_rows_held<fours> held;
    float length;

    if (len == 0 || mamba_is_chunk(a, seq))
        return;
    mamba_fetch_rows<whole>(a, held, seq, head, first, len == 1);
    for (int i = a.m.shape.n_state + threadIdx.x; i < 128 * fours; i += ONE_THREADS)
        shared.b[i] = shared.c[i] = 0.0f;
    length = mamba_length(a, token, head);
    mamba_one_convolve(a, shared, seq, token, len - 1, head);
    __syncthreads();
    while (first < a.m.shape.head_dim) {
        mamba_run_rows<whole>(a, shared, held, seq, head, first,
                              make_float2(__expf(mamba_log_keep(a, head, length)), length));
        first += ONE_WARPS * ONE_ROWS;
        if (first < a.m.shape.head_dim)
            mamba_fetch_rows<whole>(a, held, seq, head, first, len == 1);
    }
}

/* --- several tokens: the convolution ---------------------------------------------------------- */

/* B and C are rounded for tensor cores. Behind the channels come the heads, whose steps are
 * made. */
static __global__ void __launch_bounds__(CONV_THREADS) mamba_convolve_kernel(const mamba_args a)
{
    const struct k_mamba_shape &s = a.m.shape;
    int token = blockIdx.x, channel = blockIdx.y * CONV_THREADS + threadIdx.x;
    int seq = a.t.seq[token], head = channel - k_mamba_channels(&s);

    if (head >= s.n_heads || !mamba_is_chunk(a, seq))
        return;
    if (head < 0) {
        float x = mamba_convolve(a, channel, seq, token, a.t.seq_start[seq], a.t.pos[token]);

        mamba_rows(a, token)[channel] = channel < k_mamba_inner(&s) ? x : tf32_round(x);
    } else {
        float length = mamba_length(a, token, head);

        mamba_steps(a, token)[2 * head] = length;
        mamba_steps(a, token)[2 * head + 1] = mamba_log_keep(a, head, length);
    }
}

/* --- the norm and the gate -------------------------------------------------------------------- */

static __global__ void __launch_bounds__(GATE_THREADS) mamba_gate_kernel(const mamba_args a)
{
    __shared__ float shared[33];
    const struct k_mamba_shape &s = a.m.shape;
    int token = blockIdx.x, inner = k_mamba_inner(&s), n = inner / s.n_groups;
    int first = blockIdx.y * n;
    const float *y = mamba_rows(a, token) + first;
    const k_bf16 *z = mamba_row(a, token) + first;
    float squares = 0.0f, scale = 1.0f;

    if (a.t.kv_len[a.t.seq[token]] == 0)
        return;
    for (int i = threadIdx.x; i < n && a.m.norm != NULL; i += GATE_THREADS) {
        float gate = a.m.z_by * load_bf16(z + i);
        float x = a.m.norm_first ? y[i] : y[i] * gate * mamba_sigmoid(gate);

        squares += x * x;
    }
    if (a.m.norm != NULL)
        scale = rsqrtf(block_sum(squares, shared) / n + a.m.eps);
    for (int i = threadIdx.x; i < n; i += GATE_THREADS) {
        float gate = a.m.z_by * load_bf16(z + i), norm = 1.0f;

        if (a.m.norm != NULL)
            norm = load_bf16((const k_bf16 *)a.m.norm + first + i);
        store_x(a.out, (size_t)token * inner + first + i,
                y[i] * scale * norm * (gate * mamba_sigmoid(gate)), a.is_half);
    }
}

/* --- launchers -------------------------------------------------------------------------------- */

template <int fours> static int mamba_launch_one(const mamba_args &a, bool whole, k_stream stream)
{
    dim3 grid(a.m.shape.n_heads, a.t.n_seqs);

    if (whole)
        return K_LAUNCH((mamba_one_kernel<true, fours>), grid, ONE_THREADS, 0, stream, a);
    return K_LAUNCH((mamba_one_kernel<false, fours>), grid, ONE_THREADS, 0, stream, a);
}

/* Every sequence of a step has a token, so as many tokens as sequences are one for each. */
int k_mamba_scan(void *out, bool is_half, const k_bf16 *in, const struct k_mamba *m,
                 const struct k_state *state, const struct k_tokens *t, k_stream stream)
{
    const mamba_args args = {out, in, *m, *state, *t, is_half};
    const struct k_mamba_shape *s = &m->shape;
    dim3 channels(t->n_tokens,
                  (k_mamba_channels(s) + s->n_heads + CONV_THREADS - 1) / CONV_THREADS);
    bool whole = s->n_state % 128 == 0 && state->page_elems % 4 == 0 && state->at % 4 == 0;
    int rc = 0;

    if (s->head_dim > K_MAMBA_HEAD_MAX || s->n_state > K_MAMBA_STATE_MAX)
        return -1;
    if (t->n_seqs > 1 || t->n_tokens == 1)
        rc = s->n_state <= 128 ? mamba_launch_one<1>(args, whole, stream)
                               : mamba_launch_one<2>(args, whole, stream);
    if (rc == 0 && t->n_tokens > t->n_seqs &&
        (K_LAUNCH(mamba_convolve_kernel, channels, CONV_THREADS, 0, stream, args) != 0 ||
         mamba_launch_chunks(args, stream) != 0))
        rc = -1;
    if (rc != 0)
        return rc;
    return K_LAUNCH(mamba_gate_kernel, dim3(t->n_tokens, s->n_groups), GATE_THREADS, 0, stream,
                    args);
}
