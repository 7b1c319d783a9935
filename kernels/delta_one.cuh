/* SPDX-License-Identifier: Apache-2.0
 *
 * One token per sequence of the gated delta rule by heads of 128, for delta_one.cu and
 * sm90_delta.cu: the parts of a block, which has columns of some value heads of one key head.
 *
 *   pages --copies--> slots [ROWS] of a thread -+-> m * k, m * q -> sums over rows -> u, o
 *                                               +-> keep * m + k * u -> pages
 *
 * A block walks over parts of 32 columns of its heads. A thread has 4 columns of 8 rows of a part,
 * and fetches them into slots of its own, so that copies need no barrier. With o = keep * (m * q) +
 * u * (k * q) both sums are found in one pass over the old matrix, and a part costs one barrier.
 *
 * All that is older than the previous kernel is read before that has ended: matrices, the inputs
 * kept for the convolution, taps, and the products of gates, whose input was complete before it.
 * The order of sums depends on nothing but the sizes. */
#ifndef QUIRE_KERNELS_DELTA_ONE_CUH
#define QUIRE_KERNELS_DELTA_ONE_CUH

#include "kernels/delta.cuh"

#define SOLE_THREADS 128
#define SOLE_WARPS   (SOLE_THREADS / 32)
#define SOLE_COLUMNS 32 /* of a part */
#define SOLE_PARTS   (DELTA_DIM / SOLE_COLUMNS)
#define SOLE_LANES   (SOLE_COLUMNS / 4) /* of a row */
#define SOLE_APART   (SOLE_THREADS / SOLE_LANES) /* rows between two of a thread */
#define SOLE_ROWS    (DELTA_DIM / SOLE_APART)
#define SOLE_HEADS   3 /* of a block, at most */

/* Elements that a page must have: as many as lie between two rows of a thread. */
#define SOLE_PAGE    (SOLE_APART * DELTA_DIM)

static_assert(DELTA_DIM == SOLE_THREADS, "a thread has a channel of q, k and v");

template <state_type type> struct sole_slot {
    float4 x;
};
template <> struct sole_slot<STATE_BF16> {
    uint2 x;
};

template <state_type type, int STAGES> struct sole_shared {
    sole_slot<type> m[STAGES][SOLE_ROWS][SOLE_THREADS];
    float q[DELTA_DIM], k[DELTA_DIM], v[SOLE_HEADS][DELTA_DIM], z[SOLE_HEADS][DELTA_DIM];
    float norm[DELTA_DIM];
    float lengths[3][SOLE_WARPS];                /* parts of q * q, k * k, q * k */
    float sums[2][2][SOLE_WARPS][SOLE_COLUMNS];  /* in turns: m * k and m * q of each warp's rows */
    float o[2][DELTA_DIM];                       /* of two heads, in turns */
    float keep[SOLE_HEADS], beta[SOLE_HEADS];
    float dots[2 * SOLE_HEADS + 1][SOLE_WARPS];
};

/* The block's work. */
struct sole_block {
    int seq, token, len;
    int head, n_heads; /* value heads */
    int k_head;
    int part; /* the first, of head */
};

static __device__ inline sole_block sole_block_of(const delta_args &a, int seq, int head,
                                                  int n_heads, int part)
{
    const struct k_delta_shape &s = a.d.shape;

    return {seq,     a.t.seq_start[seq],              a.t.kv_len[seq], head,
            n_heads, head / (s.n_v_heads / s.n_k_heads), part};
}

/* --- the matrix ----------------------------------------------------------------------------- */

/* The thread's rows of a part, in the pages. */
struct sole_walk {
    const int32_t *page;
    uint32_t at;   /* in it */
    uint32_t elem; /* of the sequence's states */
};

static __device__ inline sole_walk sole_begin_walk(const delta_args &a, const sole_block &b,
                                                   int head, int part)
{
    uint32_t elem = (uint32_t)(a.state.at + (size_t)head * DELTA_DIM * DELTA_DIM +
                               (threadIdx.x / SOLE_LANES) * DELTA_DIM + part * SOLE_COLUMNS +
                               threadIdx.x % SOLE_LANES * 4);
    uint32_t page_elems = (uint32_t)a.state.page_elems, page = elem / page_elems;

    return {a.t.page_ids + (size_t)b.seq * a.t.pages_max + page, elem - page * page_elems, elem};
}

static __device__ inline void sole_next_row(const delta_args &a, sole_walk &w)
{
    w.elem += SOLE_PAGE;
    w.at += SOLE_PAGE;
    if (w.at >= (uint32_t)a.state.page_elems) {
        w.at -= (uint32_t)a.state.page_elems;
        w.page++;
    }
}

static __device__ inline size_t sole_place(const delta_args &a, const sole_walk &w)
{
    return (size_t)*w.page * a.state.page_elems + w.at;
}

/* Begin to fetch the thread's rows of a part. */
template <state_type type>
static __device__ inline void sole_fetch(const delta_args &a, const sole_block &b,
                                         sole_slot<type> (&to)[SOLE_ROWS][SOLE_THREADS], int head,
                                         int part)
{
    sole_walk w = sole_begin_walk(a, b, head, part);

#pragma unroll
    for (int i = 0; i < SOLE_ROWS; i++) {
        sole_slot<type> *slot = &to[i][threadIdx.x];

        if (b.len == 1)
            *slot = {};
        else if (type == STATE_BF16)
            tf32_copy_two(slot, (const k_bf16 *)a.state.pages + sole_place(a, w));
        else
            tf32_copy_four((float *)slot, (const float *)a.state.pages + sole_place(a, w));
        if (i + 1 < SOLE_ROWS)
            sole_next_row(a, w);
    }
}

static __device__ inline float4 sole_widen(const sole_slot<STATE_FLOAT> &s)
{
    return s.x;
}

static __device__ inline float4 sole_widen(const sole_slot<STATE_BF16> &s)
{
    return state_widen_four(s.x);
}

template <state_type type>
static __device__ inline void sole_store(const delta_args &a, const sole_block &b,
                                         const sole_walk &w, float4 x)
{
    if (type == STATE_BF16)
        *(uint2 *)((k_bf16 *)a.state.pages + sole_place(a, w)) =
            state_round_four(x, w.elem, b.len);
    else
        *(float4 *)((float *)a.state.pages + sole_place(a, w)) = x;
}

static __device__ inline void sole_fma(float4 &to, float by, const float4 &x)
{
    to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}

static __device__ inline void sole_add_apart(float4 &x, int apart)
{
    x.x += __shfl_xor_sync(~0U, x.x, apart), x.y += __shfl_xor_sync(~0U, x.y, apart);
    x.z += __shfl_xor_sync(~0U, x.z, apart), x.w += __shfl_xor_sync(~0U, x.w, apart);
}

/* Sums of the old matrix over the warp's rows, by k and by q. */
template <state_type type, int STAGES>
static __device__ inline void sole_sum_rows(sole_shared<type, STAGES> &s, int stage, int turn)
{
    float4 by_k = make_float4(0.0f, 0.0f, 0.0f, 0.0f), by_q = by_k;
    int row = threadIdx.x / SOLE_LANES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < SOLE_ROWS; i++, row += SOLE_APART) {
        float4 m = sole_widen(s.m[stage][i][threadIdx.x]);

        sole_fma(by_k, s.k[row], m);
        sole_fma(by_q, s.q[row], m);
    }
    for (int apart = SOLE_LANES; apart < 32; apart *= 2) {
        sole_add_apart(by_k, apart);
        sole_add_apart(by_q, apart);
    }
    if (lane < SOLE_LANES) {
        *(float4 *)&s.sums[turn][0][warp][4 * lane] = by_k;
        *(float4 *)&s.sums[turn][1][warp][4 * lane] = by_q;
    }
}

/* The sum of a column of the part over all rows, and of four columns. */
static __device__ inline float sole_sum(const float (&sums)[SOLE_WARPS][SOLE_COLUMNS], int column)
{
    float sum = sums[0][column];

#pragma unroll
    for (int i = 1; i < SOLE_WARPS; i++)
        sum += sums[i][column];
    return sum;
}

static __device__ inline float4 sole_sum_four(const float (&sums)[SOLE_WARPS][SOLE_COLUMNS],
                                              int column)
{
    float4 sum = *(const float4 *)&sums[0][column];

#pragma unroll
    for (int i = 1; i < SOLE_WARPS; i++)
        sole_fma(sum, 1.0f, *(const float4 *)&sums[i][column]);
    return sum;
}

/* Factors that the token gives to a head. */
struct sole_factors {
    float keep, beta, q, k; /* q, k: to unit lengths */
    float both;             /* q * k, before these */
};

static __device__ inline float sole_length(const float (&parts)[SOLE_WARPS])
{
    return parts[0] + parts[1] + (parts[2] + parts[3]);
}

template <state_type type, int STAGES>
static __device__ inline sole_factors sole_factors_of(const sole_shared<type, STAGES> &s, int head)
{
    return {s.keep[head], s.beta[head],
            rsqrtf((sole_length(s.lengths[0]) + LENGTH_EPS) * DELTA_DIM),
            rsqrtf(sole_length(s.lengths[1]) + LENGTH_EPS), sole_length(s.lengths[2])};
}

/* u, times the factor of k: what a row of k adds to a column, whose value and sum by k are v and
 * sum. */
static __device__ inline float sole_find_u(const sole_factors &f, float v, float sum)
{
    return f.beta * (v - f.keep * f.k * sum) * f.k;
}

/* The result of a column. head: of the block. */
template <state_type type, int STAGES>
static __device__ inline float sole_find_o(const sole_shared<type, STAGES> &s,
                                           const sole_factors &f, int turn, int head, int part,
                                           int column)
{
    float u = sole_find_u(f, s.v[head][part * SOLE_COLUMNS + column],
                          sole_sum(s.sums[turn][0], column));

    return f.q * (f.keep * sole_sum(s.sums[turn][1], column) + f.both * u);
}

/* The new matrix. */
template <state_type type, int STAGES>
static __device__ inline void sole_update(const delta_args &a, const sole_block &b,
                                          const sole_shared<type, STAGES> &s,
                                          const sole_factors &f, int stage, int turn, int head,
                                          int part)
{
    int column = threadIdx.x % SOLE_LANES * 4, row = threadIdx.x / SOLE_LANES;
    sole_walk w = sole_begin_walk(a, b, b.head + head, part);
    float4 v = *(const float4 *)&s.v[head][part * SOLE_COLUMNS + column];
    float4 u = sole_sum_four(s.sums[turn][0], column);

    u = make_float4(sole_find_u(f, v.x, u.x), sole_find_u(f, v.y, u.y), sole_find_u(f, v.z, u.z),
                    sole_find_u(f, v.w, u.w));
#pragma unroll
    for (int i = 0; i < SOLE_ROWS; i++, row += SOLE_APART) {
        float4 m = sole_widen(s.m[stage][i][threadIdx.x]);

        m.x *= f.keep, m.y *= f.keep, m.z *= f.keep, m.w *= f.keep;
        sole_fma(m, s.k[row], u);
        sole_store<type>(a, b, w, m);
        if (i + 1 < SOLE_ROWS)
            sole_next_row(a, w);
    }
}

/* --- the convolution ------------------------------------------------------------------------ */

/* A channel: the sum over older tokens, the tap of the newest, and its input. */
struct sole_channel {
    float older, tap;
    k_bf16 in;
};

template <state_type type>
static __device__ inline sole_channel sole_begin_channel(const delta_args &a, const sole_block &b,
                                                         const delta_head &h, int i)
{
    int n_taps = a.d.shape.n_taps, pos = b.len - 1;
    float x[K_CONV_TAPS_MAX] = {}, by[K_CONV_TAPS_MAX] = {};
    sole_channel c = {0.0f, h.taps[i * n_taps + n_taps - 1], 0};

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
template <state_type type, int STAGES>
static __device__ inline void sole_convolve(sole_shared<type, STAGES> &s, const sole_inputs &in,
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

/* The token's inputs into the state, in a row that no block reads: keys by the block that has the
 * first value head that reads them, values by columns. */
template <state_type type>
static __device__ inline void sole_keep_inputs(const sole_inputs &in, const delta_args &a,
                                               const sole_block &b, bool has_keys, int column,
                                               int n_columns)
{
    int i = threadIdx.x, pos = b.len - 1;

    if (has_keys) {
        state_write<type>(a.state, a.t, b.seq,
                          delta_kept(a, pos, delta_key_head(a, b.k_head, false).channel + i),
                          load_bf16(&in.q.in));
        state_write<type>(a.state, a.t, b.seq,
                          delta_kept(a, pos, delta_key_head(a, b.k_head, true).channel + i),
                          load_bf16(&in.k.in));
    }
#pragma unroll
    for (int h = 0; h < SOLE_HEADS; h++) {
        if (h < b.n_heads && i >= column && i < column + n_columns)
            state_write<type>(a.state, a.t, b.seq,
                              delta_kept(a, pos, delta_value_head(a, b.head + h).channel + i),
                              load_bf16(&in.v[h].in));
    }
}

/* --- gates ---------------------------------------------------------------------------------- */

static __device__ inline float4 sole_widen_two(uint2 x)
{
    return state_widen_four(x);
}

/* The thread's part of four elements of a row of gates. */
static __device__ inline float sole_dot_four(const k_bf16 *w, float4 x)
{
    float4 y = sole_widen_two(*(const uint2 *)w);

    return (x.x * y.x + x.y * y.y) + (x.z * y.z + x.w * y.w);
}

/* Products of the normed residual and rows b and a of each head, and the sum of squares, into parts
 * by warps; a barrier follows. */
template <state_type type, int STAGES>
static __device__ inline void sole_multiply_gates(sole_shared<type, STAGES> &s,
                                                  const delta_args &a, const sole_block &b)
{
    const struct k_delta_gating &g = a.d.gating;
    const float *x = g.x + (size_t)b.token * g.dim;
    const k_bf16 *w = (const k_bf16 *)g.w + (size_t)b.head * g.dim,
                 *other = w + (size_t)a.d.shape.n_v_heads * g.dim;
    float dots[2 * SOLE_HEADS + 1] = {};

#pragma unroll 2
    for (int at = threadIdx.x * 4; at < g.dim; at += SOLE_THREADS * 4) {
        float4 v = *(const float4 *)(x + at);
        float4 by = sole_widen_two(*(const uint2 *)((const k_bf16 *)g.norm + at));

        v.x *= by.x, v.y *= by.y, v.z *= by.z, v.w *= by.w;
#pragma unroll
        for (int i = 0; i < SOLE_HEADS; i++) {
            if (i < b.n_heads) {
                dots[2 * i] += sole_dot_four(w + (size_t)i * g.dim + at, v);
                dots[2 * i + 1] += sole_dot_four(other + (size_t)i * g.dim + at, v);
            }
        }
    }
    for (int i = threadIdx.x; i < g.n_sums; i += SOLE_THREADS)
        dots[2 * SOLE_HEADS] += g.sums[(size_t)b.token * g.n_sums + i];
#pragma unroll
    for (int i = 0; i < 2 * SOLE_HEADS + 1; i++) {
        if (i / 2 >= b.n_heads && i < 2 * SOLE_HEADS)
            continue;
        for (int apart = 16; apart > 0; apart /= 2)
            dots[i] += __shfl_xor_sync(~0U, dots[i], apart);
        if (threadIdx.x % 32 == 0)
            s.dots[i][threadIdx.x / 32] = dots[i];
    }
}

/* keep and beta of the block's heads, a thread each: from the parts above, or from gates that are
 * there, which the previous kernel may have written. A barrier follows. */
template <state_type type, int STAGES>
static __device__ inline void sole_set_gates(sole_shared<type, STAGES> &s, const delta_args &a,
                                             const sole_block &b, bool multiplied)
{
    const struct k_delta_gating &g = a.d.gating;
    int i = threadIdx.x, head = b.head + i;
    float of_b, of_a;

    if (i >= b.n_heads)
        return;
    if (multiplied) {
        float inverse = rsqrtf(sole_length(s.dots[2 * SOLE_HEADS]) / g.dim + g.eps);

        of_b = sole_length(s.dots[2 * i]) * inverse;
        of_a = sole_length(s.dots[2 * i + 1]) * inverse;
    } else {
        of_b = delta_gates(a, b.token)[head];
        of_a = delta_gates(a, b.token)[a.d.shape.n_v_heads + head];
    }
    s.keep[i] = __expf(-expf(a.d.a_log[head]) * delta_softplus(of_a + a.d.dt_bias[head]));
    s.beta[i] = delta_sigmoid(of_b);
}

/* All that comes before the previous kernel's end, except for matrices. The wait and
 * sole_set_inputs() follow. */
template <state_type type, int STAGES>
static __device__ inline void sole_begin(sole_shared<type, STAGES> &s, sole_inputs &in,
                                         const delta_args &a, const sole_block &b)
{
    sole_begin_inputs<type>(in, a, b);
    s.norm[threadIdx.x] = load_bf16((const k_bf16 *)a.d.norm + threadIdx.x);
    if (a.d.gating.w == NULL)
        return;
    sole_multiply_gates(s, a, b);
    __syncthreads();
    sole_set_gates(s, a, b, true);
}

/* The token's q, k, v and gates; all threads see them then. */
template <state_type type, int STAGES>
static __device__ inline void sole_set_inputs(sole_shared<type, STAGES> &s, sole_inputs &in,
                                              const delta_args &a, const sole_block &b)
{
    sole_load_inputs(in, a, b);
    if (a.d.gating.w == NULL)
        sole_set_gates(s, a, b, false);
    sole_convolve(s, in, b);
    __syncthreads();
}

#endif
