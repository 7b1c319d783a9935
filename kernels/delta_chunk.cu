/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule over chunks of CHUNK tokens, on tensor cores (tf32, sums in float32).
 *
 * With S the matrix before a chunk, and G_i the sum of the logarithms of its factors up to token i
 * of the chunk, the rule is
 *
 *   A_ij = beta_i exp(G_i - G_j) k_i k_j, j < i      T = inverse(1 + A)
 *   B_ij = exp(G_i - G_j) q_i k_j, j <= i
 *   V = T diag(beta) (v - diag(exp(G)) k S)          [CHUNK][v_dim]
 *   o = diag(exp(G)) q S + B V
 *   S = exp(G_last) S + transpose(diag(exp(G_last - G)) k) V
 *
 * The first kernel makes T and B of all chunks; a block has a chunk and a key head. The second one
 * runs through the chunks of a sequence; a block has COLUMNS columns of a head's matrix, which lie
 * in the registers of its warps, by rows, and in shared memory for the products. The next chunk's
 * rows are fetched meanwhile. Bound by shared memory's bandwidth; each row of q and k is read
 * v_dim / COLUMNS times, from the L2 cache.
 *
 * A chunk's T and B are packed in one square: of its row i, elements up to i are B_ij, those behind
 * are T_ji. Rows are by token [n_tokens][n_v_heads][CHUNK], so a short chunk needs no more. */
#include "kernels/delta.cuh"

#define CHUNK   K_DELTA_CHUNK
#define COLUMNS 32
#define THREADS 128
#define K_PITCH (DELTA_DIM + 4) /* of rows of q and k in shared memory: no bank twice */
#define PITCH   (CHUNK + 4)
#define S_PITCH (COLUMNS + 8) /* of operands that products read by columns */

static_assert(CHUNK == 32 && COLUMNS == 32, "a lane has a token, or a column");
static_assert(THREADS == DELTA_DIM, "a warp has 32 rows of a matrix, and a quarter of a result");

/* --- chunks ----------------------------------------------------------------------------------- */

/* A lane's token of a chunk of n: G, and beta, 0 behind the end. */
struct delta_decay {
    float g, beta;
};

static __device__ inline delta_decay delta_decay_of(const delta_args &a, int first, int n, int head)
{
    int lane = threadIdx.x % 32;
    delta_decay d = {0.0f, 0.0f};

    if (lane < n) {
        const float *gate = delta_gates(a, first + lane);

        d.g = delta_log_keep(a, gate, head);
        d.beta = delta_sigmoid(gate[head]);
    }
    for (int back = 1; back < 32; back *= 2) {
        float before = __shfl_up_sync(~0U, d.g, back);

        if (lane >= back)
            d.g += before;
    }
    return d;
}

/* --- the first kernel ------------------------------------------------------------------------- */

struct delta_prepared {
    float q[CHUNK * K_PITCH], k[CHUNK * K_PITCH];
    float qk[CHUNK * PITCH], kk[CHUNK * PITCH];
    float a[THREADS / 32][CHUNK * CHUNK]; /* of each warp's head */
    int seq;
};

/* The sequence of the grid's chunk x: chunks of sequence s are seq_start[s] / CHUNK + s and more,
 * which leaves some without tokens. -1: none. All threads of the block call it. */
static __device__ inline int delta_find_seq(const delta_args &a, int x, int *shared)
{
    if (threadIdx.x == 0)
        *shared = -1;
    __syncthreads();
    for (int s = threadIdx.x; s < a.t.n_seqs; s += THREADS) {
        int first = a.t.seq_start[s] / CHUNK + s;
        int n = (a.t.seq_start[s + 1] - a.t.seq_start[s] + CHUNK - 1) / CHUNK;

        if (x >= first && x < first + n && delta_is_chunk(a, s) && !delta_is_few(a, s))
            *shared = s;
    }
    __syncthreads();
    return *shared;
}

/* qk and kk: the products of the rows of q, and of k, with those of k. A warp has 16 rows and 16
 * columns of both. */
static __device__ inline void delta_multiply_keys(delta_prepared &p)
{
    int warp = threadIdx.x / 32, row = warp % 2 * 16, column = warp / 2 * 16;
    tf32_sums qk[2] = {}, kk[2] = {};

    for (int i = 0; i < DELTA_DIM; i += 8) {
        float q[4], k[4], b[2];

        tf32_load_a(q, p.q + row * K_PITCH + i, K_PITCH);
        tf32_load_a(k, p.k + row * K_PITCH + i, K_PITCH);
        for (int j = 0; j < 2; j++) {
            tf32_load_b_turned(b, p.k + (column + 8 * j) * K_PITCH + i, K_PITCH);
            tf32_mma(qk[j], q, b);
            tf32_mma(kk[j], k, b);
        }
    }
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < 4; i++) {
            int at = (row + tf32_lane_row() + i / 2 * 8) * PITCH + column + 8 * j +
                     2 * tf32_lane_column() + i % 2;

            p.qk[at] = qk[j].x[i];
            p.kk[at] = kk[j].x[i];
        }
    }
}

/* T and B of one value head by one warp. Lane j makes column j of T, row after row, and writes row
 * j of the square, whose second part that is. */
static __device__ inline void delta_prepare_head(const delta_args &a, delta_prepared &p, int first,
                                                 int n, int head)
{
    int lane = threadIdx.x % 32;
    float *A = p.a[threadIdx.x / 32], t[CHUNK];
    delta_decay d = delta_decay_of(a, first, n, head);
    float4 *out = (float4 *)(delta_chunk_rows(a) +
                             ((size_t)(first + lane) * a.d.shape.n_v_heads + head) * CHUNK);

    for (int i = 0; i < CHUNK; i++) {
        float g = __shfl_sync(~0U, d.g, i), beta = __shfl_sync(~0U, d.beta, i);

        A[i * CHUNK + lane] = lane < i ? beta * __expf(g - d.g) * p.kk[i * PITCH + lane] : 0.0f;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};

#pragma unroll
        for (int l = 0; l < i; l++)
            sums[l % 4] += A[i * CHUNK + l] * t[l];
        t[i] = lane == i ? 1.0f : -(sums[0] + sums[1] + (sums[2] + sums[3]));
        if (lane > i)
            t[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float g = __shfl_sync(~0U, d.g, i);

        if (i <= lane)
            t[i] = __expf(d.g - g) * p.qk[lane * PITCH + i];
        t[i] = tf32_round(t[i]);
    }
    if (lane < n) {
#pragma unroll
        for (int i = 0; i < CHUNK; i += 4)
            out[i / 4] = make_float4(t[i], t[i + 1], t[i + 2], t[i + 3]);
    }
    __syncwarp();
}

static __global__ void __launch_bounds__(THREADS) delta_prepare_kernel(const delta_args a)
{
    extern __shared__ __align__(16) float delta_memory[];
    delta_prepared &p = *(delta_prepared *)delta_memory;
    const struct k_delta_shape &s = a.d.shape;
    int k_head = blockIdx.y, turn = s.n_v_heads / s.n_k_heads, first, n;
    int seq = delta_find_seq(a, blockIdx.x, &p.seq);
    size_t pitch = k_delta_channels(&s);

    if (seq < 0)
        return;
    first = a.t.seq_start[seq] + ((int)blockIdx.x - a.t.seq_start[seq] / CHUNK - seq) * CHUNK;
    n = min(CHUNK, a.t.seq_start[seq + 1] - first);
    tf32_fetch<CHUNK, THREADS>(p.q, K_PITCH, a.d.rows + first * pitch + k_head * s.k_dim, pitch, n,
                               s.k_dim, DELTA_DIM, delta_in_fours(s));
    tf32_fetch<CHUNK, THREADS>(p.k, K_PITCH,
                               a.d.rows + first * pitch + k_delta_keys(&s) + k_head * s.k_dim,
                               pitch, n, s.k_dim, DELTA_DIM, delta_in_fours(s));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    delta_multiply_keys(p);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < turn; i += THREADS / 32)
        delta_prepare_head(a, p, first, n, k_head * turn + i);
}

/* --- the second kernel ------------------------------------------------------------------------ */

/* The rows of a chunk. */
struct delta_stage {
    float q[CHUNK * K_PITCH], k[CHUNK * K_PITCH];
    float v[CHUNK * PITCH];                    /* then diag(beta) (v - diag(exp(G)) k S) */
    float square[CHUNK * PITCH];               /* T and B */
    float from[CHUNK], to[CHUNK], beta[CHUNK]; /* exp(G), exp(G_last - G) */
};

struct delta_chunks {
    delta_stage stages[2];
    float s[DELTA_DIM * S_PITCH]; /* the matrix, rounded */
    float v[CHUNK * S_PITCH];     /* V */
};

/* Begin to fetch a chunk; the first warp makes its factors. */
static __device__ inline void delta_fetch_chunk(const delta_args &a, const delta_part &part,
                                                delta_stage &stage, int first)
{
    const struct k_delta_shape &s = a.d.shape;
    int n = min(CHUNK, part.end - first), lane = threadIdx.x;
    size_t pitch = k_delta_channels(&s);
    const float *rows = a.d.rows + first * pitch;
    int k_head = part.head / (s.n_v_heads / s.n_k_heads);
    bool fours = delta_in_fours(s);

    tf32_fetch<CHUNK, THREADS>(stage.q, K_PITCH, rows + k_head * s.k_dim, pitch, n, s.k_dim,
                               DELTA_DIM, fours);
    tf32_fetch<CHUNK, THREADS>(stage.k, K_PITCH, rows + k_delta_keys(&s) + k_head * s.k_dim, pitch,
                               n, s.k_dim, DELTA_DIM, fours);
    tf32_fetch<CHUNK, THREADS>(stage.v, PITCH,
                               rows + 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column,
                               pitch, n, part.n_columns, COLUMNS, fours);
    tf32_fetch<CHUNK, THREADS>(stage.square, PITCH,
                               delta_chunk_rows(a) +
                                   ((size_t)first * s.n_v_heads + part.head) * CHUNK,
                               (size_t)s.n_v_heads * CHUNK, n, CHUNK, CHUNK, true);
    if (lane < 32) {
        delta_decay d = delta_decay_of(a, first, n, part.head);
        float last = __shfl_sync(~0U, d.g, 31);

        stage.from[lane] = __expf(d.g);
        stage.to[lane] = lane < n ? __expf(last - d.g) : 0.0f;
        stage.beta[lane] = d.beta;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Row and column of sum i of tile j of the warp's quarter of a result [CHUNK][COLUMNS]: 16 rows and
 * two tiles of 8 columns. */
static __device__ inline int delta_quarter_row(int i)
{
    return threadIdx.x / 32 % 2 * 16 + tf32_lane_row() + i / 2 * 8;
}

static __device__ inline int delta_quarter_column(int j, int i)
{
    return threadIdx.x / 64 * 16 + 8 * j + 2 * tf32_lane_column() + i % 2;
}

/* k S and q S. */
static __device__ inline void delta_read_matrix(const delta_chunks &c, const delta_stage &stage,
                                                tf32_sums *of_k, tf32_sums *of_q)
{
    int row = threadIdx.x / 32 % 2 * 16, column = threadIdx.x / 64 * 16;

    for (int i = 0; i < DELTA_DIM; i += 8) {
        float q[4], k[4], b[2];

        tf32_load_a(q, stage.q + row * K_PITCH + i, K_PITCH);
        tf32_load_a(k, stage.k + row * K_PITCH + i, K_PITCH);
        for (int j = 0; j < 2; j++) {
            tf32_load_b(b, c.s + i * S_PITCH + column + 8 * j, S_PITCH);
            tf32_mma(of_k[j], k, b);
            tf32_mma(of_q[j], q, b);
        }
    }
}

/* V, of the rows in stage.v: `own` has the warp's quarter of them, to which the part of T below its
 * diagonal adds. */
static __device__ inline void delta_solve(const delta_stage &stage, tf32_sums *own)
{
    int row = threadIdx.x / 32 % 2 * 16 + tf32_lane_row(), column = threadIdx.x / 64 * 16;

    for (int i = 0; i < CHUNK; i += 8) {
        float a[4], b[2];

        for (int e = 0; e < 4; e++) {
            int to = row + e % 2 * 8, from = i + tf32_lane_column() + e / 2 * 4;

            a[e] = from < to ? stage.square[from * PITCH + to] : 0.0f;
        }
        for (int j = 0; j < 2; j++) {
            tf32_load_b(b, stage.v + i * PITCH + column + 8 * j, PITCH);
            tf32_mma(own[j], a, b);
        }
    }
}

/* o += B V. */
static __device__ inline void delta_attend(const delta_chunks &c, const delta_stage &stage,
                                           tf32_sums *o)
{
    int row = threadIdx.x / 32 % 2 * 16 + tf32_lane_row(), column = threadIdx.x / 64 * 16;

    for (int i = 0; i < CHUNK; i += 8) {
        float a[4], b[2];

        for (int e = 0; e < 4; e++) {
            int to = row + e % 2 * 8, from = i + tf32_lane_column() + e / 2 * 4;

            a[e] = from <= to ? stage.square[to * PITCH + from] : 0.0f;
        }
        for (int j = 0; j < 2; j++) {
            tf32_load_b(b, c.v + i * S_PITCH + column + 8 * j, S_PITCH);
            tf32_mma(o[j], a, b);
        }
    }
}

/* The warp's 32 rows of the matrix: m[tile of 16 rows][tile of 8 columns]. */
static __device__ inline void delta_write_matrix(const delta_chunks &c, const delta_stage &stage,
                                                 tf32_sums m[2][4])
{
    int row = threadIdx.x / 32 * 32 + tf32_lane_row();
    float keep = stage.from[CHUNK - 1];

    for (int i = 0; i < 32; i++)
        m[i / 16][i / 4 % 4].x[i % 4] *= keep;
    for (int i = 0; i < CHUNK; i += 8) {
        int token = i + tf32_lane_column();
        float by[2] = {stage.to[token], stage.to[token + 4]}, b[4][2];

        for (int j = 0; j < 4; j++)
            tf32_load_b(b[j], c.v + i * S_PITCH + 8 * j, S_PITCH);
        for (int tile = 0; tile < 2; tile++) {
            float a[4];

            for (int e = 0; e < 4; e++)
                a[e] = tf32_round(
                    by[e / 2] *
                    stage.k[(token + e / 2 * 4) * K_PITCH + row + 16 * tile + e % 2 * 8]);
            for (int j = 0; j < 4; j++)
                tf32_mma(m[tile][j], a, b[j]);
        }
    }
}

/* Row and column of sum i of m[tile][j] in the block's part of the matrix. */
static __device__ inline int delta_matrix_row(int tile, int i)
{
    return threadIdx.x / 32 * 32 + 16 * tile + tf32_lane_row() + i / 2 * 8;
}

static __device__ inline int delta_matrix_column(int j, int i)
{
    return 8 * j + 2 * tf32_lane_column() + i % 2;
}

/* The matrix rounded, for the next chunk's products. */
static __device__ inline void delta_show_matrix(delta_chunks &c, const tf32_sums m[2][4])
{
    for (int i = 0; i < 32; i++)
        c.s[delta_matrix_row(i / 16, i % 4) * S_PITCH + delta_matrix_column(i / 4 % 4, i % 4)] =
            tf32_round(m[i / 16][i / 4 % 4].x[i % 4]);
}

#define DELTA_NONE SIZE_MAX

/* The element of the state that is sum i of the warp's part of the matrix; DELTA_NONE beyond its
 * edges. */
static __device__ inline size_t delta_matrix_elem(const delta_args &a, const delta_part &part,
                                                  int i)
{
    const struct k_delta_shape &s = a.d.shape;
    int row = delta_matrix_row(i / 16, i % 4), column = delta_matrix_column(i / 4 % 4, i % 4);

    if (row >= s.k_dim || column >= part.n_columns)
        return DELTA_NONE;
    return part.head * k_delta_matrix(&s) + (size_t)row * s.v_dim + part.column + column;
}

/* One chunk, whose rows are there, from token `first` on. */
static __device__ inline void delta_run_chunk(const delta_args &a, const delta_part &part,
                                              delta_chunks &c, delta_stage &stage,
                                              tf32_sums m[2][4], int first)
{
    const struct k_delta_shape &s = a.d.shape;
    tf32_sums v[2] = {}, o[2] = {};

    delta_read_matrix(c, stage, v, o);
    for (int i = 0; i < 8; i++) {
        int row = delta_quarter_row(i % 4);
        float &old = stage.v[row * PITCH + delta_quarter_column(i / 4, i % 4)];
        float &x = v[i / 4].x[i % 4];

        x = stage.beta[row] * (old - stage.from[row] * x);
        old = tf32_round(x);
        o[i / 4].x[i % 4] *= stage.from[row];
    }
    __syncthreads();
    delta_solve(stage, v);
    for (int i = 0; i < 8; i++)
        c.v[delta_quarter_row(i % 4) * S_PITCH + delta_quarter_column(i / 4, i % 4)] =
            tf32_round(v[i / 4].x[i % 4]);
    __syncthreads();
    delta_attend(c, stage, o);
    for (int i = 0; i < 8; i++) {
        int token = first + delta_quarter_row(i % 4), column = delta_quarter_column(i / 4, i % 4);

        if (token < part.end && column < part.n_columns)
            a.d.rows[(size_t)token * k_delta_channels(&s) + 2 * k_delta_keys(&s) +
                     part.head * s.v_dim + part.column + column] = o[i / 4].x[i % 4];
    }
    delta_write_matrix(c, stage, m);
    delta_show_matrix(c, m);
}

static __global__ void __launch_bounds__(THREADS, 2) delta_chunk_kernel(const delta_args a)
{
    extern __shared__ __align__(16) float delta_memory[];
    delta_chunks &c = *(delta_chunks *)delta_memory;
    delta_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * COLUMNS};
    tf32_sums m[2][4] = {};
    bool is_old;

    if (!delta_is_chunk(a, part.seq) || delta_is_few(a, part.seq))
        return;
    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_columns = min(COLUMNS, a.d.shape.v_dim - part.column);
    is_old = a.t.kv_len[part.seq] > part.end - part.begin;
    delta_fetch_chunk(a, part, c.stages[0], part.begin);
    for (int i = 0; i < 32 && is_old; i++) {
        size_t elem = delta_matrix_elem(a, part, i);

        if (elem != DELTA_NONE)
            m[i / 16][i / 4 % 4].x[i % 4] = state_read(a.state, a.t, part.seq, elem);
    }
    delta_show_matrix(c, m);
    for (int first = part.begin, turn = 0; first < part.end; first += CHUNK, turn ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (first + CHUNK < part.end)
            delta_fetch_chunk(a, part, c.stages[turn ^ 1], first + CHUNK);
        delta_run_chunk(a, part, c, c.stages[turn], m, first);
    }
    for (int i = 0; i < 32; i++) {
        size_t elem = delta_matrix_elem(a, part, i);

        if (elem != DELTA_NONE)
            state_write(a.state, a.t, part.seq, elem, m[i / 16][i / 4 % 4].x[i % 4]);
    }
    delta_keep_inputs(a, part);
}

/* --- launchers -------------------------------------------------------------------------------- */

static int delta_allow(const void *kernel, size_t bytes)
{
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
        cudaSuccess)
        return 0;
    return -1;
}

int delta_launch_chunks(const delta_args &a, k_stream stream)
{
    const struct k_delta_shape *s = &a.d.shape;
    dim3 chunks(a.t.n_tokens / CHUNK + a.t.n_seqs, s->n_k_heads);
    dim3 columns(s->n_v_heads, (s->v_dim + COLUMNS - 1) / COLUMNS, a.t.n_seqs);

    static_assert(2 * (sizeof(delta_chunks) + 1024) <= 228 * 1024,
                  "two blocks of a multiprocessor");
    static_assert(sizeof(delta_chunks) <= K_DELTA_SHARED_BYTES, "what devices look for");
    if (delta_allow((const void *)delta_prepare_kernel, sizeof(delta_prepared)) != 0 ||
        delta_allow((const void *)delta_chunk_kernel, sizeof(delta_chunks)) != 0 ||
        K_LAUNCH(delta_prepare_kernel, chunks, THREADS, sizeof(delta_prepared), stream, a) != 0)
        return -1;
    return K_LAUNCH(delta_chunk_kernel, columns, THREADS, sizeof(delta_chunks), stream, a);
}
