/* SPDX-License-Identifier: Apache-2.0
 *
 * Mamba-2.
 *
 * First the convolution, SiLU and lengths of steps, a thread per channel of a few tokens, into
 * float32 rows. Then the scan, whose results replace x in the rows:
 *
 *   sequences with one token   a block has a head of a sequence, and each warp rows of the head's
 *                              matrix in registers, four elements or eight per lane. Bytes: the
 *                              matrix once in and once out; bound by memory
 *   with several               chunks (mamba_chunk.cu)
 *
 * Last the norm and the gate, by a warp per group of a token, or by a block where groups are
 * large. */
#include "kernels/mamba.cuh"

#define ONE_THREADS  256
#define ONE_WARPS    (ONE_THREADS / 32)
#define ONE_ROWS     8  /* of a warp at a time */
#define ONE_FEW      16 /* sequences, up to which blocks convolve by themselves */
#define CONV_THREADS 256
#define CONV_TOKENS  8 /* of a thread, in steps with several for a sequence */
#define GATE_THREADS 256
#define GATE_EACH    32 /* elements of a lane */

static_assert(ONE_ROWS == 8, "mamba_one_add() halves three times");

/* --- the convolution ------------------------------------------------------------------------ */

/* What a thread knows of its channel. */
struct mamba_channel {
    float taps[K_CONV_TAPS_MAX]; /* [0]: the token's own */
    float by, bias;
    int channel;
};

static __device__ inline mamba_channel mamba_channel_of(const mamba_args &a, int channel)
{
    const struct k_mamba_shape &s = a.m.shape;
    int inner = k_mamba_inner(&s), width = s.n_groups * s.n_state, i = channel;
    const struct k_mamba_part *part = &a.m.x;
    mamba_channel c = {{}, 0.0f, 0.0f, channel};

    if (channel >= inner) {
        part = channel < inner + width ? &a.m.b : &a.m.c;
        i -= channel < inner + width ? inner : inner + width;
    }
#pragma unroll
    for (int back = 0; back < K_CONV_TAPS_MAX; back++) {
        if (back < s.n_taps)
            c.taps[back] = part->taps[i * s.n_taps + s.n_taps - 1 - back];
    }
    c.by = part->by;
    c.bias = part->bias == NULL ? 0.0f : part->bias[i];
    return c;
}

/* The channel's inputs before a token, whose sequence begins at token `begin` of the step. */
static __device__ inline void mamba_fetch_inputs(const mamba_args &a, const mamba_channel &c,
                                                 float *x, int seq, int token, int begin, int pos)
{
#pragma unroll
    for (int back = 1; back < K_CONV_TAPS_MAX; back++) {
        x[back] = 0.0f;
        if (back >= a.m.shape.n_taps || pos < back)
            continue;
        if (token - back >= begin)
            x[back] = load_bf16(mamba_inputs(a, token - back) + c.channel);
        else
            x[back] = state_read(a.state, a.t, seq, mamba_kept(a, pos - back, c.channel));
    }
}

static __device__ inline float mamba_convolve(const mamba_channel &c, const float *x)
{
    float sum = 0.0f;

#pragma unroll
    for (int back = K_CONV_TAPS_MAX - 1; back >= 0; back--)
        sum += c.taps[back] * x[back];
    sum = c.by * sum + c.bias;
    return sum * mamba_sigmoid(sum);
}

/* The channel at n tokens from `first` on. Those of a sequence follow one another, so that inputs
 * are read once. A sequence of one token stores its input here, those of several in the end. */
static __device__ inline void mamba_convolve_tokens(const mamba_args &a, int channel, int first,
                                                    int n)
{
    const mamba_channel c = mamba_channel_of(a, channel);
    bool is_x = channel < k_mamba_inner(&a.m.shape);
    float x[K_CONV_TAPS_MAX] = {};
    int last = -1;

    for (int token = first; token < first + n; token++) {
        int seq = a.t.seq[token], begin = a.t.seq_start[seq], pos = a.t.pos[token];
        float y;

        if (a.t.kv_len[seq] == 0)
            continue;
        if (seq != last)
            mamba_fetch_inputs(a, c, x, seq, token, begin, pos);
        last = seq;
        x[0] = load_bf16(mamba_inputs(a, token) + channel);
        y = mamba_convolve(c, x);
        mamba_rows(a, token)[channel] = is_x || !mamba_is_chunk(a, seq) ? y : tf32_round(y);
        if (!mamba_is_chunk(a, seq))
            state_write(a.state, a.t, seq, mamba_kept(a, pos, channel), x[0]);
#pragma unroll
        for (int back = K_CONV_TAPS_MAX - 1; back > 0; back--)
            x[back] = x[back - 1];
    }
}

/* B and C of chunks are rounded for tensor cores. Behind the channels come the heads, whose steps
 * are made. */
static __global__ void __launch_bounds__(CONV_THREADS)
    mamba_convolve_kernel(const mamba_args a, int n_each)
{
    const struct k_mamba_shape &s = a.m.shape;
    int first = blockIdx.x * n_each, n = min(n_each, a.t.n_tokens - first);
    int channel = blockIdx.y * CONV_THREADS + threadIdx.x, head = channel - k_mamba_channels(&s);

    if (head >= s.n_heads)
        return;
    if (head < 0) {
        mamba_convolve_tokens(a, channel, first, n);
        return;
    }
    for (int token = first; token < first + n; token++) {
        float length = mamba_length(a, token, head);

        mamba_steps(a, token)[2 * head] = length;
        mamba_steps(a, token)[2 * head + 1] = mamba_log_keep(a, head, length);
    }
}

/* --- a token per sequence ------------------------------------------------------------------- */

struct mamba_one {
    float x[K_MAMBA_HEAD_MAX], b[K_MAMBA_STATE_MAX], c[K_MAMBA_STATE_MAX];
};

/* Rows of a head's matrix by a warp: of row i elements 128 * j + 4 * lane and three more. */
template <int fours> struct mamba_rows_held {
    float4 x[ONE_ROWS][fours];
};

/* Where the lane's first four elements of ONE_ROWS whole rows are among all pages' elements: `left`
 * elements are in the first page's part, the others in the second's. Where a kernel knows the type
 * of states, rows lie in whole groups of four elements that no page divides. */
struct mamba_place {
    int64_t first, second;
    int left;
};

static __device__ inline mamba_place mamba_place_of(const mamba_args &a, int seq, int head, int row)
{
    const struct k_mamba_shape &s = a.m.shape;
    uint32_t page_elems = (uint32_t)a.state.page_elems;
    uint32_t at = (uint32_t)(a.state.at + head * k_mamba_matrix(&s) + (size_t)row * s.n_state);
    uint32_t page = at / page_elems, from = at - page * page_elems;
    const int32_t *ids = a.t.page_ids + (size_t)seq * a.t.pages_max;
    int column = 4 * ((int)threadIdx.x % 32);
    mamba_place p = {};

    p.left = (int)(page_elems - from) - column;
    p.first = (int64_t)ids[page] * page_elems + from + column;
    if (p.left < ONE_ROWS * s.n_state)
        p.second = (int64_t)ids[min((int)page + 1, a.t.pages_max - 1)] * page_elems - p.left;
    return p;
}

/* The lane's four elements of row i, of the head's row `row`, from column 128 * j on; elements
 * beyond the row are 0. */
template <state_type type>
static __device__ inline float4 mamba_fetch_four(const mamba_args &a, const mamba_place &p, int seq,
                                                 int head, int row, int i, int j)
{
    const struct k_mamba_shape &s = a.m.shape;

    if constexpr (type != STATE_EITHER) {
        int at = i * s.n_state + 128 * j;
        int64_t place = (at < p.left ? p.first : p.second) + at;

        if (type == STATE_BF16)
            return state_widen_four(__ldcs((const uint2 *)((const k_bf16 *)a.state.pages + place)));
        return __ldcs((const float4 *)((const float *)a.state.pages + place));
    } else {
        int column = 128 * j + 4 * ((int)threadIdx.x % 32);
        size_t at = head * k_mamba_matrix(&s) + (size_t)(row + i) * s.n_state + column;
        float x[4];

        for (int e = 0; e < 4; e++)
            x[e] = column + e < s.n_state ? state_read(a.state, a.t, seq, at + e) : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
}

template <state_type type>
static __device__ inline void mamba_store_four(const mamba_args &a, const mamba_place &p, int seq,
                                               int head, int row, int i, int j, float4 x)
{
    const struct k_mamba_shape &s = a.m.shape;

    if constexpr (type != STATE_EITHER) {
        int at = i * s.n_state + 128 * j;
        int64_t place = (at < p.left ? p.first : p.second) + at;
        size_t elem = head * k_mamba_matrix(&s) + (size_t)row * s.n_state + at;

        if (type == STATE_BF16)
            __stcs((uint2 *)((k_bf16 *)a.state.pages + place),
                   state_round_four(x, (uint32_t)(a.state.at + elem + 4 * (threadIdx.x % 32)),
                                    a.t.kv_len[seq]));
        else
            __stcs((float4 *)((float *)a.state.pages + place), x);
    } else {
        int column = 128 * j + 4 * ((int)threadIdx.x % 32);
        size_t at = head * k_mamba_matrix(&s) + (size_t)(row + i) * s.n_state + column;
        const float each[4] = {x.x, x.y, x.z, x.w};

        for (int e = 0; e < 4; e++) {
            if (column + e < s.n_state)
                state_write(a.state, a.t, seq, at + e, each[e]);
        }
    }
}

/* Rows first .. first + ONE_ROWS - 1 of the head's matrix; zeros where it begins. */
template <state_type type, int fours>
static __device__ inline void mamba_fetch_rows(const mamba_args &a, mamba_rows_held<fours> &held,
                                               const mamba_place &p, int seq, int head, int first)
{
    bool is_new = a.t.kv_len[seq] == 1;

#pragma unroll
    for (int i = 0; i < ONE_ROWS; i++) {
#pragma unroll
        for (int j = 0; j < fours; j++) {
            held.x[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!is_new && first + i < a.m.shape.head_dim)
                held.x[i][j] = mamba_fetch_four<type>(a, p, seq, head, first, i, j);
        }
    }
}

/* x, B and C of the block's head, by the block itself: those of B and C are stored by the first
 * head of their group. The state's rows of inputs are such that no block writes a row that another
 * one reads (mamba.h). */
static __device__ inline void mamba_one_convolve(const mamba_args &a, mamba_one &shared, int seq,
                                                 int token, int head)
{
    const struct k_mamba_shape &s = a.m.shape;
    bool is_first = head % (s.n_heads / s.n_groups) == 0;
    int pos = a.t.kv_len[seq] - 1;

    for (int at = threadIdx.x; at < s.head_dim + 2 * s.n_state; at += ONE_THREADS) {
        bool is_x = at < s.head_dim, is_b = at < s.head_dim + s.n_state;
        int i = is_x ? at : (at - s.head_dim) % s.n_state;
        int channel = is_x   ? head * s.head_dim + i
                      : is_b ? mamba_b_channel(s, head) + i
                             : mamba_c_channel(s, head) + i;
        const mamba_channel c = mamba_channel_of(a, channel);
        float x[K_CONV_TAPS_MAX];

        mamba_fetch_inputs(a, c, x, seq, token, token, pos);
        x[0] = load_bf16(mamba_inputs(a, token) + channel);
        (is_x ? shared.x : is_b ? shared.b : shared.c)[i] = mamba_convolve(c, x);
        if (is_x || is_first)
            state_write(a.state, a.t, seq, mamba_kept(a, pos, channel), x[0]);
    }
}

/* x, B and C of the block's head, which the convolution has made. */
template <int fours>
static __device__ inline void mamba_one_fetch(const mamba_args &a, mamba_one &shared, int token,
                                              int head)
{
    const struct k_mamba_shape &s = a.m.shape;
    const float *row = mamba_rows(a, token);

    for (int i = threadIdx.x; i < 128 * fours; i += ONE_THREADS) {
        bool has = i < s.n_state;

        shared.b[i] = has ? row[mamba_b_channel(s, head) + i] : 0.0f;
        shared.c[i] = has ? row[mamba_c_channel(s, head) + i] : 0.0f;
    }
    for (int i = threadIdx.x; i < s.head_dim; i += ONE_THREADS)
        shared.x[i] = row[head * s.head_dim + i];
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
template <state_type type, int fours>
static __device__ inline void mamba_run_rows(const mamba_args &a, const mamba_one &shared,
                                             mamba_rows_held<fours> &held, const mamba_place &p,
                                             int seq, int head, int first, float2 step)
{
    const struct k_mamba_shape &s = a.m.shape;
    int lane = threadIdx.x % 32, row = first + mamba_one_row(), token = a.t.seq_start[seq];
    float length = step.x, keep = __expf(step.y), sums[ONE_ROWS] = {}, y;

#pragma unroll
    for (int j = 0; j < fours; j++) {
        int column = 128 * j + 4 * lane;
        float4 b = *(const float4 *)&shared.b[column], c = *(const float4 *)&shared.c[column];

#pragma unroll
        for (int i = 0; i < ONE_ROWS; i++) {
            float x = first + i < s.head_dim ? length * shared.x[first + i] : 0.0f;
            float4 &m = held.x[i][j];

            m.x = keep * m.x + x * b.x, m.y = keep * m.y + x * b.y;
            m.z = keep * m.z + x * b.z, m.w = keep * m.w + x * b.w;
            sums[i] += m.x * c.x + m.y * c.y + (m.z * c.z + m.w * c.w);
            if (first + i < s.head_dim)
                mamba_store_four<type>(a, p, seq, head, first, i, j, m);
        }
    }
    y = mamba_one_add(sums);
    if (lane % 4 == 0 && row < s.head_dim)
        mamba_rows(a, token)[head * s.head_dim + row] = y + a.m.skip[head] * shared.x[row];
}

/* convolves: the block does it, because a launch costs more where sequences are few. */
template <state_type type, int fours, bool convolves>
static __global__ void __launch_bounds__(ONE_THREADS, fours == 1 ? 3 : 2)
    mamba_one_kernel(const mamba_args a)
{
    __shared__ __align__(16) mamba_one shared;
    int head = blockIdx.x, seq = blockIdx.y, first = (int)threadIdx.x / 32 * ONE_ROWS;
    int token = a.t.seq_start[seq];
    mamba_rows_held<fours> held;
    mamba_place p = {};
    float2 step;

    if (a.t.kv_len[seq] == 0 || mamba_is_chunk(a, seq))
        return;
    if (type != STATE_EITHER && first < a.m.shape.head_dim)
        p = mamba_place_of(a, seq, head, first);
    mamba_fetch_rows<type>(a, held, p, seq, head, first);
    if constexpr (convolves) {
        for (int i = a.m.shape.n_state + threadIdx.x; i < 128 * fours; i += ONE_THREADS)
            shared.b[i] = shared.c[i] = 0.0f;
        mamba_one_convolve(a, shared, seq, token, head);
        step.x = mamba_length(a, token, head);
        step.y = mamba_log_keep(a, head, step.x);
    } else {
        mamba_one_fetch<fours>(a, shared, token, head);
        step = make_float2(mamba_steps(a, token)[2 * head], mamba_steps(a, token)[2 * head + 1]);
    }
    __syncthreads();
    while (first < a.m.shape.head_dim) {
        mamba_run_rows<type>(a, shared, held, p, seq, head, first, step);
        first += ONE_WARPS * ONE_ROWS;
        if (first >= a.m.shape.head_dim)
            return;
        if (type != STATE_EITHER)
            p = mamba_place_of(a, seq, head, first);
        mamba_fetch_rows<type>(a, held, p, seq, head, first);
    }
}

/* --- the norm and the gate -------------------------------------------------------------------- */

/* Element i of a group of a token: what is normed, and its gate. */
struct mamba_gated {
    float x, gate;
};

static __device__ inline mamba_gated mamba_gated_of(const mamba_args &a, const float *y,
                                                    const k_bf16 *z, int i)
{
    float gate = a.m.z_by * load_bf16(z + i);

    gate *= mamba_sigmoid(gate);
    return {a.m.norm_first ? y[i] : y[i] * gate, a.m.norm_first ? gate : 1.0f};
}

static __device__ inline void mamba_store_gated(const mamba_args &a, size_t at, int channel,
                                                const mamba_gated &g, float scale)
{
    float norm = a.m.norm != NULL ? load_bf16((const k_bf16 *)a.m.norm + channel) : 1.0f;

    store_x(a.out, at, g.x * scale * norm * g.gate, a.is_half);
}

/* A warp has a group of at most 32 * GATE_EACH elements. */
static __global__ void __launch_bounds__(GATE_THREADS) mamba_gate_small_kernel(const mamba_args a)
{
    const struct k_mamba_shape &s = a.m.shape;
    int token = blockIdx.x, inner = k_mamba_inner(&s), n = inner / s.n_groups;
    int group = blockIdx.y * (GATE_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *y = mamba_rows(a, token) + group * n;
    const k_bf16 *z = mamba_row(a, token) + group * n;
    mamba_gated g[GATE_EACH];
    float squares = 0.0f, scale = 1.0f;

    if (group >= s.n_groups || a.t.kv_len[a.t.seq[token]] == 0)
        return;
#pragma unroll
    for (int i = 0; i < GATE_EACH; i++) {
        g[i] = {0.0f, 0.0f};
        if (lane + 32 * i < n)
            g[i] = mamba_gated_of(a, y, z, lane + 32 * i);
        squares += g[i].x * g[i].x;
    }
    for (int other = 16; other > 0; other /= 2)
        squares += __shfl_xor_sync(~0U, squares, other);
    if (a.m.norm != NULL)
        scale = rsqrtf(squares / n + a.m.eps);
#pragma unroll
    for (int i = 0; i < GATE_EACH; i++) {
        int channel = group * n + lane + 32 * i;

        if (lane + 32 * i < n)
            mamba_store_gated(a, (size_t)token * inner + channel, channel, g[i], scale);
    }
}

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
        mamba_gated g = mamba_gated_of(a, y, z, i);

        squares += g.x * g.x;
    }
    if (a.m.norm != NULL)
        scale = rsqrtf(block_sum(squares, shared) / n + a.m.eps);
    for (int i = threadIdx.x; i < n; i += GATE_THREADS)
        mamba_store_gated(a, (size_t)token * inner + first + i, first + i,
                          mamba_gated_of(a, y, z, i), scale);
}

/* --- launchers -------------------------------------------------------------------------------- */

template <int fours, bool convolves>
static int mamba_launch_form(const mamba_args &a, bool whole, k_stream stream)
{
    dim3 grid(a.m.shape.n_heads, a.t.n_seqs);

    if (!whole)
        return K_LAUNCH((mamba_one_kernel<STATE_EITHER, fours, convolves>), grid, ONE_THREADS, 0,
                        stream, a);
    if (a.state.is_bf16)
        return K_LAUNCH((mamba_one_kernel<STATE_BF16, fours, convolves>), grid, ONE_THREADS, 0,
                        stream, a);
    return K_LAUNCH((mamba_one_kernel<STATE_FLOAT, fours, convolves>), grid, ONE_THREADS, 0, stream,
                    a);
}

template <bool convolves> static int mamba_launch_one(const mamba_args &a, k_stream stream)
{
    const struct k_mamba_shape *s = &a.m.shape;
    bool whole = s->n_state % 128 == 0 && a.state.page_elems % 4 == 0 && a.state.at % 4 == 0 &&
                 a.state.page_elems >= (size_t)ONE_ROWS * (size_t)s->n_state;

    if (s->n_state <= 128)
        return mamba_launch_form<1, convolves>(a, whole, stream);
    return mamba_launch_form<2, convolves>(a, whole, stream);
}

static int mamba_launch_gate(const mamba_args &a, k_stream stream)
{
    const struct k_mamba_shape *s = &a.m.shape;
    int n_warps = GATE_THREADS / 32;

    if (k_mamba_inner(s) / s->n_groups <= 32 * GATE_EACH)
        return K_LAUNCH(mamba_gate_small_kernel,
                        dim3(a.t.n_tokens, (s->n_groups + n_warps - 1) / n_warps), GATE_THREADS, 0,
                        stream, a);
    return K_LAUNCH(mamba_gate_kernel, dim3(a.t.n_tokens, s->n_groups), GATE_THREADS, 0, stream, a);
}

/* Every sequence of a step has a token, so as many tokens as sequences are one for each. */
int k_mamba_scan(void *out, bool is_half, const k_bf16 *in, const struct k_mamba *m,
                 const struct k_state *state, const struct k_tokens *t, k_stream stream)
{
    const mamba_args args = {out, in, *m, *state, *t, is_half};
    const struct k_mamba_shape *s = &m->shape;
    int n_each = t->n_tokens == t->n_seqs ? 1 : CONV_TOKENS;
    dim3 channels((t->n_tokens + n_each - 1) / n_each,
                  (k_mamba_channels(s) + s->n_heads + CONV_THREADS - 1) / CONV_THREADS);

    if (s->head_dim > K_MAMBA_HEAD_MAX || s->n_state > K_MAMBA_STATE_MAX)
        return -1;
    if (t->n_tokens == t->n_seqs && t->n_seqs <= ONE_FEW)
        return mamba_launch_one<true>(args, stream) != 0 ? -1 : mamba_launch_gate(args, stream);
    if (K_LAUNCH(mamba_convolve_kernel, channels, CONV_THREADS, 0, stream, args, n_each) != 0)
        return -1;
    if ((t->n_seqs > 1 || t->n_tokens == 1) && mamba_launch_one<false>(args, stream) != 0)
        return -1;
    if (t->n_tokens > t->n_seqs && mamba_launch_chunks(args, stream) != 0)
        return -1;
    return mamba_launch_gate(args, stream);
}
