/* SPDX-License-Identifier: Apache-2.0
 *
 * Mamba-2 over chunks of CHUNK tokens, on tensor cores (tf32, sums in float32).
 *
 * With S [head_dim][n_state] the matrix before a chunk, d_i the length of a step, and L_i the sum
 * of the logarithms of what steps up to token i of the chunk keep, the formulas of mamba.h are
 *
 *   M_ij = exp(L_i - L_j) d_j C_i B_j, j <= i         [CHUNK][CHUNK]
 *   y = diag(exp(L)) C transpose(S) + M x + skip * x
 *   S = exp(L_last) S + transpose(diag(exp(L_last - L) d) x) B
 *
 * A block has ROWS rows of a head's matrix and runs through the chunks of a sequence; each warp has
 * half the columns of 16 of the rows, in registers, as sums of the last product. They are the left
 * operand of the first one as they are, because a sum over n_state may go in any order: the right
 * operand is read in pairs of columns instead. Results of both halves meet in shared memory. The
 * next chunk's rows are fetched meanwhile, unless n_state is so large that shared memory has no
 * room for them. M is made by every head, although C B is the group's. Bound by the latency of a
 * chunk's products, one after another. */
#include "kernels/mamba.cuh"

#define CHUNK   32
#define ROWS    64
#define THREADS 256
#define X_PITCH (ROWS + 8)  /* of operands that products read by columns */
#define M_PITCH (CHUNK + 4) /* of one that they read by rows */
#define TILES   (CHUNK / 8) /* of tokens */

static_assert(CHUNK == 32, "a lane has a token");
static_assert(THREADS / 64 * 16 == ROWS, "two warps have 16 rows");

/* The warp's first row, and its half of the columns. */
static __device__ inline int mamba_warp_row()
{
    return (int)threadIdx.x / 32 % 4 * 16;
}

static __device__ inline int mamba_warp_half()
{
    return threadIdx.x / 128;
}

/* The rows of a chunk, for states of up to 8 * wide elements. */
template <int wide> struct mamba_stage {
    static constexpr int pitch = 8 * wide + 8; /* pairs of columns of four rows: no bank twice */
    float b[CHUNK * pitch], c[CHUNK * pitch];
    float x[CHUNK * X_PITCH];
    float log[CHUNK], length[CHUNK];
    float from[CHUNK], to[CHUNK]; /* exp(L), exp(L_last - L) d */
};

template <int wide, int n_stages> struct mamba_chunks {
    mamba_stage<wide> stages[n_stages];
    float m[CHUNK * M_PITCH];
};

/* The block's part of the work. */
struct mamba_part {
    int head, seq, row, n_rows; /* the first of its rows in the head, and their number */
    int begin, end;             /* tokens */
};

/* --- rows of a chunk -------------------------------------------------------------------------- */

/* The factors of a chunk by the first warp, of which each lane has a token. */
template <int wide>
static __device__ inline void mamba_make_factors(mamba_stage<wide> &stage, float length, float log)
{
    int lane = threadIdx.x;
    float last;

    for (int back = 1; back < 32; back *= 2) {
        float before = __shfl_up_sync(~0U, log, back);

        if (lane >= back)
            log += before;
    }
    last = __shfl_sync(~0U, log, 31);
    stage.log[lane] = log;
    stage.length[lane] = length;
    stage.from[lane] = __expf(log);
    stage.to[lane] = __expf(last - log) * length;
}

/* Begin to fetch a chunk. */
template <int wide>
static __device__ inline void mamba_fetch_chunk(const mamba_args &a, const mamba_part &part,
                                                mamba_stage<wide> &stage, int first)
{
    const struct k_mamba_shape &s = a.m.shape;
    int n = min(CHUNK, part.end - first), pitch = mamba_stage<wide>::pitch;
    size_t channels = k_mamba_channels(&s);
    const float *rows = mamba_rows(a, first);
    bool fours = s.head_dim % 4 == 0 && s.n_state % 4 == 0;
    float length = 0.0f, log = 0.0f;

    if ((int)threadIdx.x < n) {
        length = mamba_steps(a, first + threadIdx.x)[2 * part.head];
        log = mamba_steps(a, first + threadIdx.x)[2 * part.head + 1];
    }
    tf32_fetch<CHUNK, THREADS>(stage.b, pitch, rows + mamba_b_channel(s, part.head), channels, n,
                               s.n_state, 8 * wide, fours);
    tf32_fetch<CHUNK, THREADS>(stage.c, pitch, rows + mamba_c_channel(s, part.head), channels, n,
                               s.n_state, 8 * wide, fours);
    tf32_fetch<CHUNK, THREADS>(stage.x, X_PITCH, rows + part.head * s.head_dim + part.row, channels,
                               n, part.n_rows, ROWS, fours);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (threadIdx.x < 32)
        mamba_make_factors(stage, length, log);
}

/* --- products --------------------------------------------------------------------------------- */

/* M, of which a warp makes 16 rows and 8 columns, in two sums of every second step. */
template <int wide>
static __device__ inline void mamba_make_m(const mamba_stage<wide> &stage, float *m)
{
    int row = threadIdx.x / 32 % 2 * 16, column = threadIdx.x / 64 * 8;
    const int pitch = mamba_stage<wide>::pitch;
    tf32_sums sums[2] = {};

#pragma unroll
    for (int i = 0; i < wide; i++) {
        float c[4], b[2];

        tf32_load_a(c, stage.c + row * pitch + 8 * i, pitch);
        tf32_load_b_turned(b, stage.b + column * pitch + 8 * i, pitch);
        tf32_mma(sums[i % 2], c, b);
    }
    for (int i = 0; i < 4; i++) {
        int to = row + tf32_lane_row() + i / 2 * 8;
        int from = column + 2 * tf32_lane_column() + i % 2;
        float by = from <= to ? __expf(stage.log[to] - stage.log[from]) * stage.length[from] : 0.0f;

        m[to * M_PITCH + from] = tf32_round(by * (sums[0].x[i] + sums[1].x[i]));
    }
}

/* The warp's rows of x: of tokens 8 * i and on the left operand of a product. */
template <int wide>
static __device__ inline void mamba_load_x(const mamba_stage<wide> &stage, float x[TILES][4])
{
    int row = mamba_warp_row() + tf32_lane_row();

#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] = stage.x[(8 * i + tf32_lane_column() + e / 2 * 4) * X_PITCH + row + e % 2 * 8];
    }
}

/* The warp's part of y by tokens: diag(exp(L)) C transpose(S) + M x, turned, over its columns of S
 * and every second tile of tokens. */
template <int wide>
static __device__ inline void mamba_read(const mamba_stage<wide> &stage, const float *m,
                                         const tf32_sums *s, const float x[TILES][4], tf32_sums *y)
{
    const int pitch = mamba_stage<wide>::pitch;
    const float *columns = stage.c + mamba_warp_half() * 4 * wide;

#pragma unroll
    for (int i = 0; i < wide / 2; i++) {
        const float a[4] = {tf32_round(s[i].x[0]), tf32_round(s[i].x[2]), tf32_round(s[i].x[1]),
                            tf32_round(s[i].x[3])};

#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float2 c = *(const float2 *)(columns + (8 * j + tf32_lane_row()) * pitch + 8 * i +
                                         2 * tf32_lane_column());

            tf32_mma(y[j], a, &c.x);
        }
    }
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        float2 from = *(const float2 *)&stage.from[8 * j + 2 * tf32_lane_column()];

        y[j].x[0] *= from.x, y[j].x[2] *= from.x;
        y[j].x[1] *= from.y, y[j].x[3] *= from.y;
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        float a[4];

        if (i % 2 != mamba_warp_half())
            continue;
        for (int e = 0; e < 4; e++)
            a[e] = tf32_round(x[i][e]);
#pragma unroll
        for (int j = i; j < TILES; j++) {
            float b[2];

            tf32_load_b_turned(b, m + 8 * j * M_PITCH + 8 * i, M_PITCH);
            tf32_mma(y[j], a, b);
        }
    }
}

/* The warp's part of S takes the chunk. */
template <int wide>
static __device__ inline void mamba_write(const mamba_stage<wide> &stage, tf32_sums *s,
                                          const float x[TILES][4])
{
    const int pitch = mamba_stage<wide>::pitch;
    const float *columns = stage.b + mamba_warp_half() * 4 * wide;
    float keep = stage.from[CHUNK - 1];

#pragma unroll
    for (int j = 0; j < wide / 2; j++) {
        for (int e = 0; e < 4; e++)
            s[j].x[e] *= keep;
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        int token = 8 * i + tf32_lane_column();
        float a[4];

        for (int e = 0; e < 4; e++)
            a[e] = tf32_round(x[i][e] * stage.to[token + e / 2 * 4]);
#pragma unroll
        for (int j = 0; j < wide / 2; j++) {
            float b[2];

            tf32_load_b(b, columns + 8 * i * pitch + 8 * j, pitch);
            tf32_mma(s[j], a, b);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* Row and column of sum i of a tile of 16 of the warp's rows. */
static __device__ inline int mamba_sum_row(int i)
{
    return mamba_warp_row() + tf32_lane_row() + i / 2 * 8;
}

static __device__ inline int mamba_sum_column(int i)
{
    return 2 * tf32_lane_column() + i % 2;
}

#define MAMBA_NONE SIZE_MAX

/* The element of the state that is sum i of tile j of the warp's part of the matrix; MAMBA_NONE
 * beyond its edges. */
template <int wide>
static __device__ inline size_t mamba_matrix_elem(const mamba_args &a, const mamba_part &part,
                                                  int j, int i)
{
    const struct k_mamba_shape &s = a.m.shape;
    int row = mamba_sum_row(i);
    int column = mamba_warp_half() * 4 * wide + 8 * j + mamba_sum_column(i);

    if (row >= part.n_rows || column >= s.n_state)
        return MAMBA_NONE;
    return part.head * k_mamba_matrix(&s) + (size_t)(part.row + row) * s.n_state + column;
}

/* y of the other half of the columns, which goes where C was. */
static __device__ inline void mamba_leave_results(float *shared, const tf32_sums *y)
{
    for (int i = 0; i < 4 * TILES; i++) {
        int token = i / 4 * 8 + mamba_sum_column(i % 4);

        shared[token * X_PITCH + mamba_sum_row(i % 4)] = y[i / 4].x[i % 4];
    }
}

/* Results, which replace x. */
template <int wide>
static __device__ inline void mamba_store_results(const mamba_args &a, const mamba_part &part,
                                                  const mamba_stage<wide> &stage,
                                                  const tf32_sums *y, int first)
{
    float skip = a.m.skip[part.head];

    for (int i = 0; i < 4 * TILES; i++) {
        int token = i / 4 * 8 + mamba_sum_column(i % 4), row = mamba_sum_row(i % 4);
        int at = token * X_PITCH + row;

        if (first + token < part.end && row < part.n_rows)
            mamba_rows(a, first + token)[part.head * a.m.shape.head_dim + part.row + row] =
                y[i / 4].x[i % 4] + stage.c[at] + skip * stage.x[at];
    }
}

/* One chunk, whose rows are there, from token `first` on. */
template <int wide>
static __device__ inline void mamba_run_chunk(const mamba_args &a, const mamba_part &part,
                                              mamba_stage<wide> &stage, float *m, tf32_sums *s,
                                              int first)
{
    float x[TILES][4];
    tf32_sums y[TILES] = {};

    mamba_make_m(stage, m);
    mamba_load_x(stage, x);
    __syncthreads();
    mamba_read(stage, m, s, x, y);
    __syncthreads();
    if (mamba_warp_half() == 1)
        mamba_leave_results(stage.c, y);
    mamba_write(stage, s, x);
    __syncthreads();
    if (mamba_warp_half() == 0)
        mamba_store_results(a, part, stage, y, first);
}

/* The last inputs of the block's channels replace older ones in the state: its rows of x, and B and
 * C if its head is the first of their group. */
static __device__ inline void mamba_keep_inputs(const mamba_args &a, const mamba_part &part)
{
    const struct k_mamba_shape &s = a.m.shape;
    int first = max(part.begin, part.end - s.n_taps);
    int first_pos = a.t.kv_len[part.seq] - (part.end - part.begin) - part.begin;
    bool has_both = part.head % (s.n_heads / s.n_groups) == 0 && part.row == 0;
    int n = part.n_rows + (has_both ? 2 * s.n_state : 0);

    for (int at = threadIdx.x; at < (part.end - first) * n; at += THREADS) {
        int token = first + at / n, i = at % n - part.n_rows;
        int channel = part.head * s.head_dim + part.row + at % n;

        if (i >= 0)
            channel = i < s.n_state ? mamba_b_channel(s, part.head) + i
                                    : mamba_c_channel(s, part.head) + i - s.n_state;
        state_write(a.state, a.t, part.seq, mamba_kept(a, first_pos + token, channel),
                    load_bf16(mamba_row(a, token) + k_mamba_inner(&s) + channel));
    }
}

template <int wide, int n_stages>
static __global__ void __launch_bounds__(THREADS, 2) mamba_chunk_kernel(const mamba_args a)
{
    extern __shared__ __align__(16) float mamba_memory[];
    mamba_chunks<wide, n_stages> &c = *(mamba_chunks<wide, n_stages> *)mamba_memory;
    mamba_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * ROWS};
    tf32_sums s[wide / 2] = {};

    if (!mamba_is_chunk(a, part.seq))
        return;
    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_rows = min(ROWS, a.m.shape.head_dim - part.row);
    mamba_fetch_chunk(a, part, c.stages[0], part.begin);
    if (a.t.kv_len[part.seq] > part.end - part.begin) {
#pragma unroll
        for (int i = 0; i < 2 * wide; i++) {
            size_t elem = mamba_matrix_elem<wide>(a, part, i / 4, i % 4);

            if (elem != MAMBA_NONE)
                s[i / 4].x[i % 4] = state_read(a.state, a.t, part.seq, elem);
        }
    }
    for (int first = part.begin, turn = 0; first < part.end; first += CHUNK) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (n_stages == 2 && first + CHUNK < part.end)
            mamba_fetch_chunk(a, part, c.stages[turn ^ 1], first + CHUNK);
        mamba_run_chunk(a, part, c.stages[turn], c.m, s, first);
        if (n_stages == 1 && first + CHUNK < part.end) {
            __syncthreads();
            mamba_fetch_chunk(a, part, c.stages[0], first + CHUNK);
        }
        turn ^= n_stages - 1;
    }
#pragma unroll
    for (int i = 0; i < 2 * wide; i++) {
        size_t elem = mamba_matrix_elem<wide>(a, part, i / 4, i % 4);

        if (elem != MAMBA_NONE)
            state_write(a.state, a.t, part.seq, elem, s[i / 4].x[i % 4]);
    }
    mamba_keep_inputs(a, part);
}

/* --- launchers -------------------------------------------------------------------------------- */

template <int wide, int n_stages> static int mamba_launch_wide(const mamba_args &a, k_stream stream)
{
    const struct k_mamba_shape *s = &a.m.shape;
    const int bytes = (int)sizeof(mamba_chunks<wide, n_stages>);
    dim3 parts(s->n_heads, (s->head_dim + ROWS - 1) / ROWS, a.t.n_seqs);

    static_assert(sizeof(mamba_chunks<wide, n_stages>) <= K_MAMBA_SHARED_BYTES,
                  "what devices look for");
    if (cudaFuncSetAttribute(mamba_chunk_kernel<wide, n_stages>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH((mamba_chunk_kernel<wide, n_stages>), parts, THREADS, bytes, stream, a);
}

int mamba_launch_chunks(const mamba_args &a, k_stream stream)
{
    if (a.m.shape.n_state <= 128)
        return mamba_launch_wide<16, 2>(a, stream);
    return mamba_launch_wide<32, 1>(a, stream);
}
