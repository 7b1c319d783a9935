/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule with a factor for each channel of a key (Kimi Delta Attention), sequences of
 * several tokens: token after token, as the reference does it.
 *
 * A block has COLUMNS columns of a head's matrix in registers: a warp has four of them, of which a
 * lane has a quarter of the rows in groups of four, so that sums over rows take three exchanges and
 * no barrier. Rows of q, k, v and factors, which delta_convolve_kernel() has written, are fetched
 * into shared memory TOKENS at a time, the next ones while these run. Bound by the latency of a
 * token: a sum over rows, which the next one waits for.
 *
 * Chunks on tensor cores, as in delta_chunk.cu, would need factors between two tokens of each
 * channel within the product of their keys. */
#include "kernels/delta.cuh"

#define WARPS   4
#define COLUMNS (4 * WARPS) /* of a block */
#define THREADS (32 * WARPS)
#define TOKENS  16 /* of a fetch */
#define ROWS    16 /* of a lane: four groups of four, 32 rows apart */

static_assert(8 * ROWS == DELTA_DIM, "eight lanes have a column");

/* Rows of some tokens; a row behind the last channel is 0. */
struct delta_rows {
    float q[TOKENS][DELTA_DIM], k[TOKENS][DELTA_DIM], keep[TOKENS][DELTA_DIM];
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

/* The element of the state that is row i of the lane. */
static __device__ inline size_t delta_lane_elem(const delta_args &a, const delta_part &part, int i)
{
    const struct k_delta_shape &s = a.d.shape;

    return part.head * k_delta_matrix(&s) + (size_t)delta_lane_row(i) * s.v_dim + part.column +
           delta_lane_column();
}

/* Begin to fetch the rows of up to TOKENS tokens. Channels behind the last one are 0. */
static __device__ inline void delta_fetch_rows(const delta_args &a, const delta_part &part,
                                               delta_rows &to, int first)
{
    const struct k_delta_shape &s = a.d.shape;
    int n = min(TOKENS, part.end - first), k_head = part.head / (s.n_v_heads / s.n_k_heads);
    size_t pitch = k_delta_channels(&s), forgets = k_delta_forgets(&s);
    const float *row = a.d.rows + first * pitch, *q = row + k_head * s.k_dim;
    bool fours = delta_in_fours(s);

    tf32_fetch<TOKENS, THREADS>(to.q[0], DELTA_DIM, q, pitch, n, s.k_dim, DELTA_DIM, fours);
    tf32_fetch<TOKENS, THREADS>(to.k[0], DELTA_DIM, q + k_delta_keys(&s), pitch, n, s.k_dim,
                                DELTA_DIM, fours);
    tf32_fetch<TOKENS, THREADS>(to.keep[0], DELTA_DIM,
                                delta_chunk_rows(a) + first * forgets + part.head * s.k_dim,
                                forgets, n, s.k_dim, DELTA_DIM, fours);
    tf32_fetch<TOKENS, THREADS>(to.v[0], COLUMNS,
                                row + 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column,
                                pitch, n, part.n_columns, COLUMNS, fours);
    if ((int)threadIdx.x < n)
        to.beta[threadIdx.x] = delta_sigmoid(delta_gates(a, first + threadIdx.x)[part.head]);
}

/* The sum over the eight lanes of a column, in all of them. */
static __device__ inline float delta_add_lanes(float x)
{
    for (int other = 4; other > 0; other /= 2)
        x += __shfl_xor_sync(~0U, x, other);
    return x;
}

/* One token: m [ROWS] of the lane changes; the result is the column's, in all of its lanes. */
static __device__ inline float delta_step(float *m, const delta_rows &rows, int t)
{
    float k[ROWS], sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, u;

#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        float4 keep = *(const float4 *)&rows.keep[t][delta_lane_row(i)];

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
static __device__ inline void delta_run_rows(const delta_args &a, const delta_part &part,
                                             const delta_rows &rows, float *m, int first)
{
    const struct k_delta_shape &s = a.d.shape;
    int n = min(TOKENS, part.end - first), column = delta_lane_column();
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
static __global__ void __launch_bounds__(THREADS) delta_channel_kernel(const delta_args a)
{
    extern __shared__ __align__(16) float delta_memory[];
    delta_rows *rows = (delta_rows *)delta_memory;
    const struct k_delta_shape &s = a.d.shape;
    delta_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * COLUMNS, 0, 0, 0};
    float m[ROWS];
    bool is_old;

    if (!delta_is_chunk(a, part.seq))
        return;
    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_columns = min(COLUMNS, s.v_dim - part.column);
    is_old = a.t.kv_len[part.seq] > part.end - part.begin;
    for (int i = 0; i < ROWS; i++) {
        bool has = is_old && delta_lane_row(i) < s.k_dim && delta_lane_column() < part.n_columns;

        m[i] = has ? state_read(a.state, a.t, part.seq, delta_lane_elem(a, part, i)) : 0.0f;
    }
    delta_fetch_rows(a, part, rows[0], part.begin);
    for (int first = part.begin, turn = 0; first < part.end; first += TOKENS, turn ^= 1) {
        tf32_wait_copies();
        __syncthreads();
        if (first + TOKENS < part.end)
            delta_fetch_rows(a, part, rows[turn ^ 1], first + TOKENS);
        delta_run_rows(a, part, rows[turn], m, first);
    }
    for (int i = 0; i < ROWS; i++) {
        if (delta_lane_row(i) < s.k_dim && delta_lane_column() < part.n_columns)
            state_write(a.state, a.t, part.seq, delta_lane_elem(a, part, i), m[i]);
    }
    delta_keep_inputs(a, part);
}

int delta_launch_channels(const delta_args &a, k_stream stream)
{
    const struct k_delta_shape *s = &a.d.shape;
    dim3 columns(s->n_v_heads, (s->v_dim + COLUMNS - 1) / COLUMNS, a.t.n_seqs);
    size_t bytes = 2 * sizeof(delta_rows);

    static_assert(2 * sizeof(delta_rows) <= K_DELTA_SHARED_BYTES, "what devices look for");
    if (cudaFuncSetAttribute(delta_channel_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH(delta_channel_kernel, columns, THREADS, bytes, stream, a);
}
