/* SPDX-License-Identifier: Apache-2.0
 *
 * One token per sequence of the gated delta rule by heads of 128, for delta_one.cu and
 * sm90_delta.cu: the parts of a block, which has value heads of one key head.
 *
 *   pages --copies--> slots of a thread -+-> m * k, m * q -> sums over rows -> u, o
 *                                        +-> keep * m + k * u -> pages
 *
 * A thread fetches elements of a matrix into slots of its own, so that copies need no barrier. With
 * o = keep * (m * q) + u * (k * q) both sums are found in one pass over the old matrix.
 *
 * All that is older than the previous kernel is read before that has ended: matrices, the inputs
 * kept for the convolution, and taps. The order of sums depends on nothing but the sizes. */
#ifndef QUIRE_KERNELS_DELTA_ONE_CUH
#define QUIRE_KERNELS_DELTA_ONE_CUH

#include "kernels/delta.cuh"

#define SOLE_THREADS 128 /* that have a channel of q, k and v each */
#define SOLE_WARPS   (SOLE_THREADS / 32)
#define SOLE_HEADS   3 /* value heads of a block, at most */

static_assert(DELTA_DIM == SOLE_THREADS, "a thread has a channel of each");

/* Four elements. */
template <state_type type> struct sole_slot {
    float4 x;
};
template <> struct sole_slot<STATE_BF16> {
    uint2 x;
};

/* A token, in shared memory. */
struct sole_token {
    float q[DELTA_DIM], k[DELTA_DIM], v[SOLE_HEADS][DELTA_DIM], z[SOLE_HEADS][DELTA_DIM];
    float norm[DELTA_DIM];
    float lengths[3][SOLE_WARPS]; /* parts of q * q, k * k, q * k */
    float keep[SOLE_HEADS], beta[SOLE_HEADS];
};

/* The block's work. */
struct sole_block {
    int seq, token, len;
    int head, n_heads; /* value heads */
    int k_head;
};

static __device__ inline sole_block sole_block_of(const delta_args &a, int seq, int head,
                                                  int n_heads)
{
    const struct k_delta_shape &s = a.d.shape;

    return {seq,
            a.t.seq_start[seq],
            a.t.kv_len[seq],
            head,
            n_heads,
            head / (s.n_v_heads / s.n_k_heads)};
}

/* --- the matrix ----------------------------------------------------------------------------- */

/* Four elements of a head's matrix, in the pages. */
struct sole_walk {
    const int32_t *page;
    uint32_t at;   /* in it */
    uint32_t elem; /* of the sequence's states */
};

static __device__ inline sole_walk sole_begin_walk(const delta_args &a, const sole_block &b,
                                                   int head, int row, int column)
{
    uint32_t elem = (uint32_t)(a.state.at + ((size_t)head * DELTA_DIM + row) * DELTA_DIM + column);
    uint32_t page_elems = (uint32_t)a.state.page_elems, page = elem / page_elems;

    return {a.t.page_ids + (size_t)b.seq * a.t.pages_max + page, elem - page * page_elems, elem};
}

static __device__ inline void sole_walk_on(const delta_args &a, sole_walk &w, int n_rows)
{
    w.elem += n_rows * DELTA_DIM;
    w.at += n_rows * DELTA_DIM;
    while (w.at >= (uint32_t)a.state.page_elems) {
        w.at -= (uint32_t)a.state.page_elems;
        w.page++;
    }
}

static __device__ inline size_t sole_place(const delta_args &a, const sole_walk &w)
{
    return (size_t)*w.page * a.state.page_elems + w.at;
}

/* Begin to fetch four elements. */
template <state_type type>
static __device__ inline void sole_fetch(const delta_args &a, const sole_block &b,
                                         sole_slot<type> *to, const sole_walk &w)
{
    if (b.len == 1)
        *to = {};
    else if (type == STATE_BF16)
        tf32_copy_two(to, (const k_bf16 *)a.state.pages + sole_place(a, w));
    else
        tf32_copy_four((float *)to, (const float *)a.state.pages + sole_place(a, w));
}

static __device__ inline float4 sole_widen(const sole_slot<STATE_FLOAT> &s)
{
    return s.x;
}

static __device__ inline float4 sole_widen(const sole_slot<STATE_BF16> &s)
{
    return state_widen_four(s.x);
}

static __device__ inline void sole_fma(float4 &to, float by, const float4 &x)
{
    to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}

/* Replace four elements of a row, whose key is k. */
template <state_type type>
static __device__ inline void sole_replace(const delta_args &a, const sole_block &b,
                                           const sole_walk &w, float4 m, float keep, float k,
                                           const float4 &u)
{
    m.x *= keep, m.y *= keep, m.z *= keep, m.w *= keep;
    sole_fma(m, k, u);
    if (type == STATE_BF16)
        *(uint2 *)((k_bf16 *)a.state.pages + sole_place(a, w)) = state_round_four(m, w.elem, b.len);
    else
        *(float4 *)((float *)a.state.pages + sole_place(a, w)) = m;
}

/* --- factors -------------------------------------------------------------------------------- */

/* Factors that the token gives to a head. */
struct sole_factors {
    float keep, beta, q, k; /* q, k: to unit lengths */
    float both;             /* q * k, before these */
};

static __device__ inline float sole_length(const float (&parts)[SOLE_WARPS])
{
    return parts[0] + parts[1] + (parts[2] + parts[3]);
}

static __device__ inline sole_factors sole_factors_of(const sole_token &s, int head)
{
    return {s.keep[head], s.beta[head],
            rsqrtf((sole_length(s.lengths[0]) + LENGTH_EPS) * DELTA_DIM),
            rsqrtf(sole_length(s.lengths[1]) + LENGTH_EPS), sole_length(s.lengths[2])};
}

/* u, times the factor of k: what a row of k adds to a column, whose value and sum by k are v and
 * by_k. */
static __device__ inline float sole_find_u(const sole_factors &f, float v, float by_k)
{
    return f.beta * (v - f.keep * f.k * by_k) * f.k;
}

/* The result of a column from its u and its sum by q. */
static __device__ inline float sole_find_o(const sole_factors &f, float u, float by_q)
{
    return f.q * (f.keep * by_q + f.both * u);
}

/* --- the convolution ------------------------------------------------------------------------ */

/* A channel: the sum over older tokens, the tap of the newest, its input, and the place of this in
 * the state. */
struct sole_channel {
    float older, tap;
    k_bf16 in;
    size_t at;
};

template <state_type type>
static __device__ inline sole_channel sole_begin_channel(const delta_args &a, const sole_block &b,
                                                         const delta_head &h, int i)
{
    int n_taps = a.d.shape.n_taps, pos = b.len - 1;
    float x[K_CONV_TAPS_MAX] = {}, by[K_CONV_TAPS_MAX] = {};
    sole_channel c = {0.0f, h.taps[i * n_taps + n_taps - 1], 0,
                      state_find(a.state, a.t, b.seq, delta_kept(a, pos, h.channel + i))};

#pragma unroll
    for (int back = 1; back < K_CONV_TAPS_MAX; back++) {
        if (back >= n_taps || pos < back)
            continue;
        by[back] = h.taps[i * n_taps + n_taps - 1 - back];
        x[back] = state_read<type>(a.state, a.t, b.seq, delta_kept(a, pos - back, h.channel + i));
    }
#pragma unroll
    for (int back = K_CONV_TAPS_MAX - 1; back > 0; back--)
        c.older += by[back] * x[back];
    return c;
}

static __device__ inline float sole_end_channel(const sole_channel &c)
{
    float sum = c.older + c.tap * load_bf16(&c.in);

    return sum * delta_sigmoid(sum);
}

/* A thread's channels: of q and k, and of the values of each head. */
struct sole_inputs {
    sole_channel q, k, v[SOLE_HEADS];
    k_bf16 z[SOLE_HEADS];
};

/* Before the previous kernel has ended. */
template <state_type type>
static __device__ inline void sole_begin_inputs(sole_inputs &in, const delta_args &a,
                                                const sole_block &b)
{
    in.q = sole_begin_channel<type>(a, b, delta_key_head(a, b.k_head, false), threadIdx.x);
    in.k = sole_begin_channel<type>(a, b, delta_key_head(a, b.k_head, true), threadIdx.x);
#pragma unroll
    for (int i = 0; i < SOLE_HEADS; i++) {
        if (i < b.n_heads)
            in.v[i] = sole_begin_channel<type>(a, b, delta_value_head(a, b.head + i), threadIdx.x);
    }
}

/* After it. */
static __device__ inline void sole_load_inputs(sole_inputs &in, const delta_args &a,
                                               const sole_block &b)
{
    const k_bf16 *row = delta_row(a, b.token) + threadIdx.x,
                 *z = delta_z(a, b.token) + b.head * DELTA_DIM + threadIdx.x;

    in.q.in = row[delta_key_head(a, b.k_head, false).channel];
    in.k.in = row[delta_key_head(a, b.k_head, true).channel];
#pragma unroll
    for (int i = 0; i < SOLE_HEADS; i++) {
        if (i < b.n_heads) {
            in.v[i].in = row[delta_value_head(a, b.head + i).channel];
            in.z[i] = z[i * DELTA_DIM];
        }
    }
}

/* q, k and v of the token, and parts of the lengths; a barrier follows. */
static __device__ inline void sole_convolve(sole_token &s, const sole_inputs &in,
                                            const sole_block &b)
{
    float q = sole_end_channel(in.q), k = sole_end_channel(in.k);
    float lengths[3] = {q * q, k * k, q * k};

    s.q[threadIdx.x] = q;
    s.k[threadIdx.x] = k;
#pragma unroll
    for (int i = 0; i < SOLE_HEADS; i++) {
        if (i < b.n_heads) {
            s.v[i][threadIdx.x] = sole_end_channel(in.v[i]);
            s.z[i][threadIdx.x] = load_bf16(&in.z[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        for (int apart = 16; apart > 0; apart /= 2)
            lengths[i] += __shfl_xor_sync(~0U, lengths[i], apart);
        if (threadIdx.x % 32 == 0)
            s.lengths[i][threadIdx.x / 32] = lengths[i];
    }
}

/* A channel's input into the state; a bfloat16 is not rounded. */
template <state_type type>
static __device__ inline void sole_keep_channel(const delta_args &a, const sole_channel &c)
{
    if (type == STATE_BF16)
        ((k_bf16 *)a.state.pages)[c.at] = c.in;
    else
        ((float *)a.state.pages)[c.at] = load_bf16(&c.in);
}

/* The token's inputs, into a row of the state that no block reads: keys by the block that has the
 * first value head that reads them, values by columns. */
template <state_type type>
static __device__ inline void sole_keep_inputs(const sole_inputs &in, const delta_args &a,
                                               const sole_block &b, bool has_keys, bool has_values)
{
    if (has_keys) {
        sole_keep_channel<type>(a, in.q);
        sole_keep_channel<type>(a, in.k);
    }
#pragma unroll
    for (int i = 0; i < SOLE_HEADS; i++) {
        if (i < b.n_heads && has_values)
            sole_keep_channel<type>(a, in.v[i]);
    }
}

/* --- a block's token ------------------------------------------------------------------------ */

/* keep and beta of the block's heads, a thread each. */
static __device__ inline void sole_set_gates(sole_token &s, const delta_args &a,
                                             const sole_block &b)
{
    int i = threadIdx.x;

    if (i >= b.n_heads)
        return;
    s.keep[i] = __expf(delta_log_keep(a, delta_gates(a, b.token), b.head + i));
    s.beta[i] = delta_sigmoid(delta_gates(a, b.token)[b.head + i]);
}

/* By SOLE_THREADS: all that comes before the previous kernel's end, except for matrices; and after
 * it the token's q, k, v and gates, which a barrier follows. */
template <state_type type>
static __device__ inline void sole_begin_token(sole_token &s, sole_inputs &in, const delta_args &a,
                                               const sole_block &b)
{
    sole_begin_inputs<type>(in, a, b);
    s.norm[threadIdx.x] = load_bf16((const k_bf16 *)a.d.norm + threadIdx.x);
}

static __device__ inline void sole_end_token(sole_token &s, sole_inputs &in, const delta_args &a,
                                             const sole_block &b)
{
    sole_load_inputs(in, a, b);
    sole_set_gates(s, a, b);
    sole_convolve(s, in, b);
}

#endif
