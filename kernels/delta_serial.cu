/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule token after token, as the reference does it: sequences of 2 to DELTA_FEW
 * tokens, such as those that verify drafts, and with a factor for each channel of a key (Kimi Delta
 * Attention) those of any number.
 *
 * A block has COLUMNS columns of a head's matrix in registers: a warp has four of them, of which a
 * lane has a quarter of the rows in groups of four, so that sums over rows take three exchanges and
 * no barrier. Rows of q, k, v and factors, which delta_convolve_kernel() has written, are fetched
 * into shared memory some tokens at a time, the next ones while these run. Few tokens: bound by
 * matrices' bytes, once in and once out; a chunk on tensor cores (delta_chunk.cu) computes 32
 * tokens whatever their number is. Many: by the latency of a token, a sum over rows, which the next
 * one waits for.
 *
 * By channel, chunks would need factors between two tokens of each channel within the product of
 * their keys. */
#include "kernels/delta.cuh"

#define WARPS   4
#define COLUMNS (4 * WARPS) /* of a block */
#define THREADS (32 * WARPS)
#define ROWS    16 /* of a lane: four groups of four, 32 rows apart */

static_assert(8 * ROWS == DELTA_DIM, "eight lanes have a column");

/* Rows of some tokens; a row behind the last channel is 0. */
template <bool by_channel> struct delta_rows;
template <> struct delta_rows<true> {
    static constexpr int TOKENS = 16, STAGES = 2;
    float q[TOKENS][DELTA_DIM], k[TOKENS][DELTA_DIM], keep[TOKENS][DELTA_DIM];
    float v[TOKENS][COLUMNS], beta[TOKENS];
};
template <> struct delta_rows<false> {
    static constexpr int TOKENS = DELTA_FEW, STAGES = 1;
    float q[TOKENS][DELTA_DIM], k[TOKENS][DELTA_DIM], keep[TOKENS];
    float v[TOKENS][COLUMNS], beta[TOKENS];
};

/* Row i of a lane's ROWS, and its column in the block. */
static __device__ inline int delta_lane_row(int i)
{
    return i / 4 * 32 + threadIdx.x % 8 * 4 + i % 4;
}

static __device__ inline int delta_lane_column()
{
    return threadIdx.x / 8;
}

/* Where the lane's rows are in the pages: an index in the sequence's table, and the element of that
 * page. */
struct delta_lane_place {
    uint32_t page, at;
};

static __device__ inline delta_lane_place delta_lane_begin(const delta_args &a,
                                                           const delta_part &part)
{
    const struct k_delta_shape &s = a.d.shape;
    uint32_t page_elems = (uint32_t)a.state.page_elems;
    uint32_t at =
        (uint32_t)(a.state.at + part.head * k_delta_matrix(&s) +
                   (size_t)delta_lane_row(0) * s.v_dim + part.column + delta_lane_column());

    return {at / page_elems, at % page_elems};
}

/* From row i of the lane to the next one. */
static __device__ inline void delta_lane_next(const delta_args &a, delta_lane_place &place, int i)
{
    uint32_t page_elems = (uint32_t)a.state.page_elems;

    place.at += (delta_lane_row(i + 1) - delta_lane_row(i)) * a.d.shape.v_dim;
    while (place.at >= page_elems) {
        place.at -= page_elems;
        place.page++;
    }
}

/* Row i of the lane is one of the matrix. */
static __device__ inline bool delta_lane_has(const delta_args &a, const delta_part &part, int i)
{
    return delta_lane_row(i) < a.d.shape.k_dim && delta_lane_column() < part.n_columns;
}

static __device__ inline void delta_lane_read(const delta_args &a, const delta_part &part, float *m)
{
    const int32_t *ids = a.t.page_ids + (size_t)part.seq * a.t.pages_max;
    delta_lane_place place = delta_lane_begin(a, part);

#pragma unroll
    for (int i = 0; i < ROWS; i++, delta_lane_next(a, place, i - 1)) {
        size_t at;

        m[i] = 0.0f;
        if (!delta_lane_has(a, part, i))
            continue;
        at = (size_t)ids[place.page] * a.state.page_elems + place.at;
        m[i] = a.state.is_bf16 ? load_bf16((const k_bf16 *)a.state.pages + at)
                               : ((const float *)a.state.pages)[at];
    }
}

static __device__ inline void delta_lane_write(const delta_args &a, const delta_part &part,
                                               const float *m)
{
    const int32_t *ids = a.t.page_ids + (size_t)part.seq * a.t.pages_max;
    delta_lane_place place = delta_lane_begin(a, part);

#pragma unroll
    for (int i = 0; i < ROWS; i++, delta_lane_next(a, place, i - 1)) {
        size_t at;

        if (!delta_lane_has(a, part, i))
            continue;
        at = (size_t)ids[place.page] * a.state.page_elems + place.at;
        if (a.state.is_bf16)
            ((k_bf16 *)a.state.pages)[at] = k_state_round(
                __float_as_uint(m[i]),
                k_state_chance_of(place.page * (uint32_t)a.state.page_elems + place.at,
                                  a.t.kv_len[part.seq]));
        else
            ((float *)a.state.pages)[at] = m[i];
    }
}

/* Begin to fetch the rows of up to TOKENS tokens. Channels behind the last one are 0. */
template <bool by_channel>
static __device__ inline void delta_fetch_rows(const delta_args &a, const delta_part &part,
                                               delta_rows<by_channel> &to, int first)
{
    constexpr int TOKENS = delta_rows<by_channel>::TOKENS;
    const struct k_delta_shape &s = a.d.shape;
    int n = min(TOKENS, part.end - first), k_head = part.head / (s.n_v_heads / s.n_k_heads);
    size_t pitch = k_delta_channels(&s), forgets = k_delta_forgets(&s);
    const float *row = a.d.rows + first * pitch, *q = row + k_head * s.k_dim;
    bool fours = delta_in_fours(s);

    tf32_fetch<TOKENS, THREADS>(to.q[0], DELTA_DIM, q, pitch, n, s.k_dim, DELTA_DIM, fours);
    tf32_fetch<TOKENS, THREADS>(to.k[0], DELTA_DIM, q + k_delta_keys(&s), pitch, n, s.k_dim,
                                DELTA_DIM, fours);
    if constexpr (by_channel)
        tf32_fetch<TOKENS, THREADS>(to.keep[0], DELTA_DIM,
                                    delta_chunk_rows(a) + first * forgets + part.head * s.k_dim,
                                    forgets, n, s.k_dim, DELTA_DIM, fours);
    tf32_fetch<TOKENS, THREADS>(to.v[0], COLUMNS,
                                row + 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column,
                                pitch, n, part.n_columns, COLUMNS, fours);
    if ((int)threadIdx.x >= n)
        return;
    to.beta[threadIdx.x] = delta_sigmoid(delta_gates(a, first + threadIdx.x)[part.head]);
    if constexpr (!by_channel)
        to.keep[threadIdx.x] =
            __expf(delta_log_keep(a, delta_gates(a, first + threadIdx.x), part.head));
}

/* Factors of row i of the lane and the three behind it. */
static __device__ inline float4 delta_keep_four(const delta_rows<true> &rows, int t, int i)
{
    return *(const float4 *)&rows.keep[t][delta_lane_row(i)];
}

static __device__ inline float4 delta_keep_four(const delta_rows<false> &rows, int t, int)
{
    return make_float4(rows.keep[t], rows.keep[t], rows.keep[t], rows.keep[t]);
}

/* The sum over the eight lanes of a column, in all of them. */
static __device__ inline float delta_add_lanes(float x)
{
    for (int other = 4; other > 0; other /= 2)
        x += __shfl_xor_sync(~0U, x, other);
    return x;
}

/* One token: m [ROWS] of the lane changes; the result is the column's, in all of its lanes. */
template <bool by_channel>
static __device__ inline float delta_step(float *m, const delta_rows<by_channel> &rows, int t)
{
    float k[ROWS], sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, u;

#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        float4 keep = delta_keep_four(rows, t, i);

        *(float4 *)(k + i) = *(const float4 *)&rows.k[t][delta_lane_row(i)];
        m[i] *= keep.x, m[i + 1] *= keep.y, m[i + 2] *= keep.z, m[i + 3] *= keep.w;
        for (int j = 0; j < 4; j++)
            sums[j] += m[i + j] * k[i + j];
    }
    u = delta_add_lanes(sums[0] + sums[1] + (sums[2] + sums[3]));
    u = rows.beta[t] * (rows.v[t][delta_lane_column()] - u);
    for (int j = 0; j < 4; j++)
        sums[j] = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        float4 q = *(const float4 *)&rows.q[t][delta_lane_row(i)];

        for (int j = 0; j < 4; j++)
            m[i + j] += k[i + j] * u;
        sums[0] += m[i] * q.x, sums[1] += m[i + 1] * q.y;
        sums[2] += m[i + 2] * q.z, sums[3] += m[i + 3] * q.w;
    }
    return delta_add_lanes(sums[0] + sums[1] + (sums[2] + sums[3]));
}

/* All tokens whose rows are there, from token `first` on. A warp's four columns are written by one
 * lane each. */
template <bool by_channel>
static __device__ inline void delta_run_rows(const delta_args &a, const delta_part &part,
                                             const delta_rows<by_channel> &rows, float *m,
                                             int first)
{
    const struct k_delta_shape &s = a.d.shape;
    int n = min(delta_rows<by_channel>::TOKENS, part.end - first), column = delta_lane_column();
    float *out = a.d.rows + (size_t)first * k_delta_channels(&s) + 2 * k_delta_keys(&s) +
                 part.head * s.v_dim + part.column + column;

    for (int t = 0; t < n; t++) {
        float o = delta_step(m, rows, t);

        if (threadIdx.x % 8 == 0 && column < part.n_columns)
            out[(size_t)t * k_delta_channels(&s)] = o;
    }
}

/* Values of a block's columns are read before their results replace them: by the block itself, in
 * the order of tokens. */
template <bool by_channel>
static __global__ void __launch_bounds__(THREADS) delta_serial_kernel(const delta_args a)
{
    using rows_of = delta_rows<by_channel>;
    extern __shared__ __align__(16) float delta_memory[];
    rows_of *rows = (rows_of *)delta_memory;
    const struct k_delta_shape &s = a.d.shape;
    delta_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * COLUMNS, 0, 0, 0};
    float m[ROWS] = {};
    bool is_old;

    if (!delta_is_chunk(a, part.seq) || (!by_channel && !delta_is_few(a, part.seq)))
        return;
    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_columns = min(COLUMNS, s.v_dim - part.column);
    is_old = a.t.kv_len[part.seq] > part.end - part.begin;
    delta_fetch_rows(a, part, rows[0], part.begin);
    if (is_old)
        delta_lane_read(a, part, m);
    for (int first = part.begin, turn = 0; first < part.end; first += rows_of::TOKENS) {
        tf32_wait_copies();
        __syncthreads();
        if (rows_of::STAGES > 1 && first + rows_of::TOKENS < part.end)
            delta_fetch_rows(a, part, rows[turn ^ 1], first + rows_of::TOKENS);
        delta_run_rows(a, part, rows[turn], m, first);
        turn = (turn + 1) % rows_of::STAGES;
    }
    delta_lane_write(a, part, m);
    delta_keep_inputs(a, part);
}

template <bool by_channel> static int delta_launch_tokens(const delta_args &a, k_stream stream)
{
    using rows_of = delta_rows<by_channel>;
    const struct k_delta_shape *s = &a.d.shape;
    dim3 columns(s->n_v_heads, (s->v_dim + COLUMNS - 1) / COLUMNS, a.t.n_seqs);
    size_t bytes = rows_of::STAGES * sizeof(rows_of);

    static_assert(rows_of::STAGES * sizeof(rows_of) <= K_DELTA_SHARED_BYTES,
                  "what devices look for");
    if (cudaFuncSetAttribute(delta_serial_kernel<by_channel>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH(delta_serial_kernel<by_channel>, columns, THREADS, bytes, stream, a);
}

int delta_launch_serial(const delta_args &a, k_stream stream)
{
    return a.d.shape.by_channel ? delta_launch_tokens<true>(a, stream)
                                : delta_launch_tokens<false>(a, stream);
}
