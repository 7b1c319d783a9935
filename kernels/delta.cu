/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule (Gated DeltaNet).
 *
 * Sequences with one token: one kernel. A block has a value head of a sequence; it fetches the
 * head's matrix into shared memory while the convolution of q, k and v runs. Bytes: the matrix once
 * in and once out; bound by memory from some ten sequences on, before that by latency. A block also
 * convolves the queries and keys of its head, which several value heads share: the state's rows of
 * inputs are such that no block writes a row that another one reads (kernels.h).
 *
 * Sequences with several: the convolution, SiLU and lengths, by one warp per head of a token, into
 * float32 rows; chunks (delta_chunk.cu) or, few tokens and by channel, token after token
 * (delta_serial.cu); the norm and the gate.
 *
 * Heads of other sizes than 128 take the same kernels with checks. */
#include "config.h"

#include "kernels/delta.cuh"

#define ONE_THREADS  512
#define ONE_WARPS    (ONE_THREADS / 32)
#define ONE_ROWS     (DELTA_DIM / ONE_WARPS) /* of a warp */

#define CONV_WARPS   8
#define GATE_THREADS 128
#define GATE_ROOM    33 /* floats of block_sum() */

#define RANKS_MAX    4 /* sequences whose heads are divided among blocks */

static_assert(DELTA_DIM == 4 * 32, "four columns or channels of a head per lane");
static_assert(4 * DELTA_DIM == ONE_THREADS, "a thread convolves one channel, or has a factor");

/* --- a token per sequence ------------------------------------------------------------------- */

struct delta_one {
    float m[DELTA_DIM][DELTA_DIM]; /* a thread only uses elements that it has fetched */
    float q[DELTA_DIM], k[DELTA_DIM], v[DELTA_DIM], u[DELTA_DIM];
    float keep[DELTA_DIM];             /* by channel: factors of rows */
    float parts[ONE_WARPS][DELTA_DIM]; /* sums over a warp's rows, by column */
    float squares[ONE_WARPS];
};

/* The place of a lane's four columns in one of the warp's rows of a head's matrix. */
struct delta_place {
    uint32_t page, at; /* an index in the sequence's table, and the element of that page */
};

static __device__ inline delta_place delta_first_place(const delta_args &a, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t row = (size_t)head * s.k_dim + threadIdx.x / 32 * ONE_ROWS;
    uint32_t at = (uint32_t)(a.state.at + row * s.v_dim + threadIdx.x % 32 * 4);
    uint32_t page_elems = (uint32_t)a.state.page_elems;

    return {at / page_elems, at % page_elems};
}

/* The next row; a page has at least one. */
static __device__ inline void delta_next_place(const delta_args &a, delta_place &place)
{
    place.at += a.d.shape.v_dim;
    if (place.at >= (uint32_t)a.state.page_elems) {
        place.at -= (uint32_t)a.state.page_elems;
        place.page++;
    }
}

/* The same place among all pages' elements. */
static __device__ inline size_t delta_at(const delta_args &a, int seq, const delta_place &place)
{
    int32_t id = a.t.page_ids[(size_t)seq * a.t.pages_max + place.page];

    return (size_t)id * a.state.page_elems + place.at;
}

/* Begin to fetch the four columns of a lane in row `row`, which is at `place`. Where the type of
 * states is known, matrices lie in whole groups of four elements that no page divides. */
template <state_type type>
static __device__ inline void delta_fetch_four(const delta_args &a, float *to, int seq, int head,
                                               int row, const delta_place &place)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t at = (size_t)head * k_delta_matrix(&s) + (size_t)row * s.v_dim;
    int column = threadIdx.x % 32 * 4;

    if constexpr (type == STATE_FLOAT) {
        tf32_copy_four(to, (const float *)a.state.pages + delta_at(a, seq, place));
    } else {
        for (int i = 0; i < 4; i++)
            to[i] = row < s.k_dim && column + i < s.v_dim
                        ? state_read(a.state, a.t, seq, at + column + i)
                        : 0.0f;
    }
}

template <state_type type>
static __device__ inline void delta_store_four(const delta_args &a, int seq, int head, int row,
                                               const delta_place &place, float4 x)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t at = (size_t)head * k_delta_matrix(&s) + (size_t)row * s.v_dim;
    int column = threadIdx.x % 32 * 4;

    if constexpr (type == STATE_FLOAT) {
        *(float4 *)((float *)a.state.pages + delta_at(a, seq, place)) = x;
    } else if constexpr (type == STATE_BF16) {
        *(uint2 *)((k_bf16 *)a.state.pages + delta_at(a, seq, place)) =
            state_round_four(x, (uint32_t)(a.state.at + at + column), a.t.kv_len[seq]);
    } else {
        const float each[4] = {x.x, x.y, x.z, x.w};

        for (int i = 0; i < 4; i++) {
            if (row < s.k_dim && column + i < s.v_dim)
                state_write(a.state, a.t, seq, at + column + i, each[i]);
        }
    }
}

/* q, k and v of the block's head, one channel per thread, and the token's inputs into the state.
 * The first value head of a key head stores those of q and k. */
template <state_type type, bool by_channel>
static __device__ inline void delta_one_convolve(const delta_args &a, delta_one &shared, int seq,
                                                 int token, int pos, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    int part = threadIdx.x / DELTA_DIM, i = threadIdx.x % DELTA_DIM,
        turn = s.n_v_heads / s.n_k_heads;
    float x = 0.0f, squares;
    delta_head h;

    if (part > 2 && by_channel)
        shared.keep[i] = delta_keep_row(a, token, head, i);
    if (part > 2)
        return;
    h = part < 2 ? delta_key_head(a, head / turn, part == 1) : delta_value_head(a, head);
    if (i < h.dim) {
        x = delta_convolve<type>(a, h, i, seq, token, token, pos);
        if (part == 2 || head % turn == 0)
            state_write<type>(a.state, a.t, seq, delta_kept(a, pos, h.channel + i),
                              load_bf16(delta_row(a, token) + h.channel + i));
    }
    (part == 0 ? shared.q : part == 1 ? shared.k : shared.v)[i] = x;
    squares = x * x;
    for (int lane = 16; lane > 0; lane /= 2)
        squares += __shfl_xor_sync(~0U, squares, lane);
    if (threadIdx.x % 32 == 0)
        shared.squares[threadIdx.x / 32] = squares;
}

/* Sum of squares of four warps. */
static __device__ inline float delta_four(const float *squares)
{
    return squares[0] + squares[1] + (squares[2] + squares[3]);
}

/* A column's sum over all warps. */
static __device__ inline float delta_sum_parts(const delta_one &shared)
{
    float sum = 0.0f;

    for (int warp = 0; warp < ONE_WARPS; warp++)
        sum += shared.parts[warp][threadIdx.x];
    return sum;
}

/* The result of the block's head: a thread has a column of the first four warps. */
template <bool by_channel>
static __device__ inline void delta_one_finish(const delta_args &a, delta_one &shared, int token,
                                               int head)
{
    const struct k_delta_shape &s = a.d.shape;
    int i = threadIdx.x;
    float o = 0.0f, squares;

    if (i < DELTA_DIM) {
        o = delta_sum_parts(shared);
        squares = o * o;
        for (int lane = 16; lane > 0; lane /= 2)
            squares += __shfl_xor_sync(~0U, squares, lane);
        if (i % 32 == 0)
            shared.squares[i / 32] = squares;
    }
    __syncthreads();
    if (i < s.v_dim) {
        float z = load_bf16(delta_z(a, token) + head * s.v_dim + i);
        float scale = rsqrtf(delta_four(shared.squares) / s.v_dim + a.d.eps);
        float norm = load_bf16((const k_bf16 *)a.d.norm + i);

        store_x(a.out, (size_t)token * k_delta_values(&s) + head * s.v_dim + i,
                o * scale * norm * delta_open(by_channel, z), a.is_half);
    }
}

static __device__ inline void delta_fma(float4 &to, float by, const float4 &x)
{
    to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}

/* The thread's rows of a whole matrix of bfloat16, all of them in flight before the first is
 * widened. */
static __device__ inline void delta_fetch_bf16(const delta_args &a, float *own, int seq, int head)
{
    delta_place place = delta_first_place(a, head);
    uint2 x[ONE_ROWS];

#pragma unroll
    for (int i = 0; i < ONE_ROWS; i++, delta_next_place(a, place))
        x[i] = *(const uint2 *)((const k_bf16 *)a.state.pages + delta_at(a, seq, place));
#pragma unroll
    for (int i = 0; i < ONE_ROWS; i++)
        *(float4 *)(own + i * DELTA_DIM) = state_widen_four(x[i]);
}

/* The thread's rows of the matrix, into shared memory. */
template <state_type type>
static __device__ inline void delta_fetch_matrix(const delta_args &a, float *own, int seq, int head,
                                                 bool is_new)
{
    delta_place place = delta_first_place(a, head);

    if (type == STATE_BF16 && !is_new) {
        delta_fetch_bf16(a, own, seq, head);
        return;
    }
    for (int i = 0; i < ONE_ROWS; i++, delta_next_place(a, place)) {
        float *to = own + i * DELTA_DIM;

        if (is_new)
            *(float4 *)to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        else
            delta_fetch_four<type>(a, to, seq, head, threadIdx.x / 32 * ONE_ROWS + i, place);
    }
}

/* Sums of the matrix, times keep, over the thread's rows, by k. keep [ONE_ROWS], unless the factor
 * of all rows is in `by`. */
template <bool by_channel>
static __device__ inline float4 delta_read_rows(const float *own, const float *k, const float *keep,
                                                float by)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int i = 0; i < ONE_ROWS; i++)
        delta_fma(sum, by_channel ? k[i] * keep[i] * by : k[i] * by,
                  *(const float4 *)(own + i * DELTA_DIM));
    return sum;
}

template <state_type type, bool by_channel>
static __global__ void __launch_bounds__(ONE_THREADS, 3) delta_one_kernel(const delta_args a)
{
    extern __shared__ __align__(16) float delta_memory[];
    delta_one &shared = *(delta_one *)delta_memory;
    int head = blockIdx.x, seq = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int token = a.t.seq_start[seq], len = a.t.kv_len[seq], first = warp * ONE_ROWS;
    float *own = &shared.m[first][4 * lane];
    const float *gate = a.gates + (size_t)token * (by_channel ? 1 : 2) * a.d.shape.n_v_heads;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), u;
    float q_scale, k_scale, keep = 1.0f, beta;
    delta_place place;

    if (len == 0 || delta_is_chunk(a, seq))
        return;
    delta_fetch_matrix<type>(a, own, seq, head, len == 1);
    delta_one_convolve<type, by_channel>(a, shared, seq, token, len - 1, head);
    if (!by_channel)
        keep = __expf(delta_log_keep(a, gate, head));
    beta = delta_sigmoid(gate[head]);
    tf32_wait_copies();
    __syncthreads();
    q_scale = rsqrtf((delta_four(shared.squares) + LENGTH_EPS) * a.d.shape.k_dim);
    k_scale = rsqrtf(delta_four(shared.squares + 4) + LENGTH_EPS);
    *(float4 *)&shared.parts[warp][4 * lane] =
        delta_read_rows<by_channel>(own, shared.k + first, shared.keep + first, keep * k_scale);
    __syncthreads();
    if (threadIdx.x < DELTA_DIM)
        shared.u[threadIdx.x] = beta * (shared.v[threadIdx.x] - delta_sum_parts(shared)) * k_scale;
    __syncthreads();
    u = *(const float4 *)&shared.u[4 * lane];
    place = delta_first_place(a, head);
    for (int i = 0; i < ONE_ROWS; i++, delta_next_place(a, place)) {
        float4 m = *(const float4 *)(own + i * DELTA_DIM);

        if (by_channel)
            keep = shared.keep[first + i];
        m.x *= keep, m.y *= keep, m.z *= keep, m.w *= keep;
        delta_fma(m, shared.k[first + i], u);
        delta_store_four<type>(a, seq, head, first + i, place, m);
        delta_fma(sum, shared.q[first + i] * q_scale, m);
    }
    *(float4 *)&shared.parts[warp][4 * lane] = sum;
    __syncthreads();
    delta_one_finish<by_channel>(a, shared, token, head);
}

/* --- gates ---------------------------------------------------------------------------------- */

/* Block x has a gate, block y a token. The next kernel may begin at once: it waits for the end of
 * this one, which is behind that of the kernel before. */
static __global__ void __launch_bounds__(GATE_THREADS)
    delta_gate_kernel(float *gates, const struct k_delta_gating g)
{
    extern __shared__ __align__(16) float delta_memory[]; /* two of block_sum() */
    const float *x = g.x + (size_t)blockIdx.y * g.dim;
    const k_bf16 *w = g.w + (size_t)blockIdx.x * g.dim;
    float sum = 0.0f, squares = 0.0f;

    let_next_begin();
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < g.dim; at += GATE_THREADS * 4) {
        float4 v = *(const float4 *)(x + at);
        float4 by = state_widen_four(*(const uint2 *)(g.norm + at)),
               of = state_widen_four(*(const uint2 *)(w + at));

        sum += (v.x * by.x * of.x + v.y * by.y * of.y) + (v.z * by.z * of.z + v.w * by.w * of.w);
    }
    for (int i = threadIdx.x; i < g.n_sums; i += GATE_THREADS)
        squares += g.sums[(size_t)blockIdx.y * g.n_sums + i];
    sum = block_sum(sum, delta_memory);
    squares = block_sum(squares, delta_memory + GATE_ROOM);
    if (threadIdx.x == 0)
        gates[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = sum * rsqrtf(squares / g.dim + g.eps);
    wait_for_previous();
}

int k_delta_gate(float *gates, const struct k_delta_gating *g, int n_gates, int n, k_stream stream)
{
    if (n < 1 || n > K_DELTA_GATING_MAX || g->dim % 4 != 0)
        return -1;
    return delta_launch_early(delta_gate_kernel, dim3(n_gates, n), GATE_THREADS,
                              2 * GATE_ROOM * sizeof(float), 1, stream, gates, *g);
}

/* --- several tokens: the convolution ---------------------------------------------------------- */

/* The factors of a head's matrix before a token, by a warp. */
static __device__ inline void delta_keep_rows(const delta_args &a, int token, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    float *to = delta_chunk_rows(a) + ((size_t)token * s.n_v_heads + head) * s.k_dim;

    for (int i = threadIdx.x % 32; i < s.k_dim; i += 32)
        to[i] = delta_keep_row(a, token, head, i);
}

/* A row of a.d.rows: q and k of their lengths, rounded where tensor cores multiply them, and v. A
 * warp has a head of a token; by channel others have the factors of one. */
static __global__ void __launch_bounds__(32 * CONV_WARPS) delta_convolve_kernel(const delta_args a)
{
    const struct k_delta_shape &s = a.d.shape;
    int token = blockIdx.x, item = blockIdx.y * CONV_WARPS + threadIdx.x / 32,
        lane = threadIdx.x % 32;
    int seq = a.t.seq[token], begin = a.t.seq_start[seq], n_heads = 2 * s.n_k_heads + s.n_v_heads;
    bool is_value = item >= 2 * s.n_k_heads, is_key = !is_value && item >= s.n_k_heads;
    bool is_exact = s.by_channel || delta_is_few(a, seq);
    float x[4], squares = 0.0f, scale = 1.0f;
    delta_head h;

    if (s.by_channel && item >= n_heads && item < n_heads + s.n_v_heads && delta_is_chunk(a, seq))
        delta_keep_rows(a, token, item - n_heads);
    if (item >= n_heads || !delta_is_chunk(a, seq))
        return;
    h = is_value ? delta_value_head(a, item - 2 * s.n_k_heads)
                 : delta_key_head(a, item - (is_key ? s.n_k_heads : 0), is_key);
    for (int j = 0; j < 4; j++) {
        int i = lane + 32 * j;

        x[j] = i < h.dim ? delta_convolve<STATE_EITHER>(a, h, i, seq, token, begin, a.t.pos[token])
                         : 0.0f;
        squares += x[j] * x[j];
    }
    if (!is_value) {
        for (int other = 16; other > 0; other /= 2)
            squares += __shfl_xor_sync(~0U, squares, other);
        scale = rsqrtf((squares + LENGTH_EPS) * (is_key ? 1 : s.k_dim));
    }
    for (int j = 0; j < 4; j++) {
        int i = lane + 32 * j;

        if (i < h.dim)
            a.d.rows[(size_t)token * k_delta_channels(&s) + h.channel + i] =
                is_value   ? x[j]
                : is_exact ? x[j] * scale
                           : tf32_round(x[j] * scale);
    }
}

/* --- several tokens: the norm and the gate --------------------------------------------------- */

/* A warp has a value head of a token. */
static __global__ void __launch_bounds__(32 * CONV_WARPS) delta_finish_kernel(const delta_args a)
{
    const struct k_delta_shape &s = a.d.shape;
    int token = blockIdx.x, head = blockIdx.y * CONV_WARPS + threadIdx.x / 32,
        lane = threadIdx.x % 32, first = head * s.v_dim;
    const float *row = a.d.rows + (size_t)token * k_delta_channels(&s) + 2 * k_delta_keys(&s);
    float o[4], squares = 0.0f, scale;

    if (head >= s.n_v_heads || !delta_is_chunk(a, a.t.seq[token]))
        return;
    for (int j = 0; j < 4; j++) {
        int i = lane + 32 * j;

        o[j] = i < s.v_dim ? row[first + i] : 0.0f;
        squares += o[j] * o[j];
    }
    for (int other = 16; other > 0; other /= 2)
        squares += __shfl_xor_sync(~0U, squares, other);
    scale = rsqrtf(squares / s.v_dim + a.d.eps);
    for (int j = 0; j < 4; j++) {
        int i = lane + 32 * j;

        if (i < s.v_dim) {
            float z = load_bf16(delta_z(a, token) + first + i);
            float norm = load_bf16((const k_bf16 *)a.d.norm + i);

            store_x(a.out, (size_t)token * k_delta_values(&s) + first + i,
                    o[j] * scale * norm * delta_open(s.by_channel, z), a.is_half);
        }
    }
}

/* --- launchers -------------------------------------------------------------------------- */

template <state_type type, bool by_channel>
static int delta_launch_form(const delta_args &args, k_stream stream)
{
    static_assert(3 * (sizeof(delta_one) + 1024) <= 228 * 1024, "three blocks of a multiprocessor");
    if (cudaFuncSetAttribute(delta_one_kernel<type, by_channel>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(delta_one)) != cudaSuccess)
        return -1;
    return K_LAUNCH((delta_one_kernel<type, by_channel>),
                    dim3(args.d.shape.n_v_heads, args.t.n_seqs), ONE_THREADS, sizeof(delta_one),
                    stream, args);
}

template <state_type type> static int delta_launch_one(const delta_args &args, k_stream stream)
{
    if (args.d.shape.by_channel)
        return delta_launch_form<type, true>(args, stream);
    return delta_launch_form<type, false>(args, stream);
}

/* whole: heads of 128, whose matrices lie in groups of four. */
static int delta_run_one(const delta_args &args, bool whole, k_stream stream)
{
#ifdef HAVE_SM90
    if (delta_sole_takes(&args.d.shape, &args.state))
        return args.t.n_seqs <= RANKS_MAX ? delta_run_ranks(args, stream)
                                          : delta_run_sole(args, stream);
#endif
    if (!whole)
        return delta_launch_one<STATE_EITHER>(args, stream);
    if (args.state.is_bf16)
        return delta_launch_one<STATE_BF16>(args, stream);
    return delta_launch_one<STATE_FLOAT>(args, stream);
}

/* Every sequence of a step has a token, so as many tokens as sequences are one for each. */
int k_delta_rule(void *out, bool is_half, const k_bf16 *in, const float *gates,
                 const struct k_delta *d, const struct k_state *state, const struct k_tokens *t,
                 k_stream stream)
{
    const struct k_delta_shape *s = &d->shape;
    delta_args args = {out, in, gates, *d, *state, *t, is_half, NULL, 0};
    int n_heads = 2 * s->n_k_heads + (s->by_channel ? 2 : 1) * s->n_v_heads;
    dim3 heads(t->n_tokens, (n_heads + CONV_WARPS - 1) / CONV_WARPS);
    dim3 values(t->n_tokens, (s->n_v_heads + CONV_WARPS - 1) / CONV_WARPS);
    bool whole = s->k_dim == DELTA_DIM && s->v_dim == DELTA_DIM && state->page_elems % 4 == 0 &&
                 state->at % 4 == 0 && state->page_elems >= DELTA_DIM;

    if (s->k_dim > DELTA_DIM || s->v_dim > DELTA_DIM)
        return -1;
    args.z = s->by_channel ? (const k_bf16 *)d->z : in + k_delta_channels(s);
    args.z_pitch = s->by_channel ? k_delta_values(s) : k_delta_row(s);
    args.d.rows += delta_chunk_elems(args);
    if ((t->n_seqs > 1 || t->n_tokens == 1) && delta_run_one(args, whole, stream) != 0)
        return -1;
    if (t->n_tokens == t->n_seqs)
        return 0;
    if (K_LAUNCH(delta_convolve_kernel, heads, 32 * CONV_WARPS, 0, stream, args) != 0)
        return -1;
    if ((s->by_channel || t->lengths != K_LENGTHS_LONG) && delta_launch_serial(args, stream) != 0)
        return -1;
    if (!s->by_channel && t->lengths != K_LENGTHS_FEW && delta_launch_chunks(args, stream) != 0)
        return -1;
    return K_LAUNCH(delta_finish_kernel, values, 32 * CONV_WARPS, 0, stream, args);
}
