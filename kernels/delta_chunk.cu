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

/* --- products --------------------------------------------------------------------------------- */

/* A tile of 16 x 8 sums, and the parts of its 16 x 8 and 8 x 8 inputs, of a lane. */
struct delta_sums {
    float x[4];
};

static __device__ inline void delta_mma(delta_sums &d, const float *a, const float *b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* The lane's rows and columns: of sums rows row(), row() + 8 and columns 2 * column(), + 1. */
static __device__ inline int delta_lane_row()
{
    return threadIdx.x % 32 / 4;
}

static __device__ inline int delta_lane_column()
{
    return threadIdx.x % 4;
}

/* The lane's part of a 16 x 8 input that begins at `from`. */
static __device__ inline void delta_load_a(float *a, const float *from, int pitch)
{
    const float *at = from + delta_lane_row() * pitch + delta_lane_column();

    a[0] = at[0], a[1] = at[8 * pitch], a[2] = at[4], a[3] = at[8 * pitch + 4];
}

/* Of an 8 x 8 input. */
static __device__ inline void delta_load_b(float *b, const float *from, int pitch)
{
    const float *at = from + delta_lane_column() * pitch + delta_lane_row();

    b[0] = at[0], b[1] = at[4 * pitch];
}

/* Of the transpose of an 8 x 8 input. */
static __device__ inline void delta_load_b_turned(float *b, const float *from, int pitch)
{
    const float *at = from + delta_lane_row() * pitch + delta_lane_column();

    b[0] = at[0], b[1] = at[4];
}

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
        const float *gate = a.gates + (size_t)(first + lane) * 2 * a.d.shape.n_v_heads;

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

static __device__ inline void delta_copy(float *to, const float *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

static __device__ inline void delta_copy_four(float *to, const float *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

/* Begin to copy `width` elements of n rows; in groups of four if all lie so. Rows up to CHUNK
 * become 0; columns up to `room`, a multiple of 4, do too. */
static __device__ inline void delta_fetch(float *to, int to_pitch, const float *from,
                                          size_t from_pitch, int n, int width, int room, bool fours)
{
    int each = room / 4;

    for (int at = threadIdx.x; at < CHUNK * each; at += THREADS) {
        int row = at / each, column = at % each * 4;
        float *place = to + row * to_pitch + column;
        const float *source = from + row * from_pitch + column;

        if (row < n && fours && column + 4 <= width) {
            delta_copy_four(place, source);
            continue;
        }
        for (int i = 0; i < 4; i++) {
            if (row < n && column + i < width)
                delta_copy(place + i, source + i);
            else
                place[i] = 0.0f;
        }
    }
}

/* True if rows and heads lie in groups of four elements. */
static __device__ inline bool delta_in_fours(const struct k_delta_shape &s)
{
    return s.k_dim % 4 == 0 && s.v_dim % 4 == 0;
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

        if (x >= first && x < first + n && delta_is_chunk(a, s))
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
    delta_sums qk[2] = {}, kk[2] = {};

    for (int i = 0; i < DELTA_DIM; i += 8) {
        float q[4], k[4], b[2];

        delta_load_a(q, p.q + row * K_PITCH + i, K_PITCH);
        delta_load_a(k, p.k + row * K_PITCH + i, K_PITCH);
        for (int j = 0; j < 2; j++) {
            delta_load_b_turned(b, p.k + (column + 8 * j) * K_PITCH + i, K_PITCH);
            delta_mma(qk[j], q, b);
            delta_mma(kk[j], k, b);
        }
    }
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < 4; i++) {
            int at = (row + delta_lane_row() + i / 2 * 8) * PITCH + column + 8 * j +
                     2 * delta_lane_column() + i % 2;

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
        t[i] = delta_tf32(t[i]);
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
    delta_fetch(p.q, K_PITCH, a.d.rows + first * pitch + k_head * s.k_dim, pitch, n, s.k_dim,
                DELTA_DIM, delta_in_fours(s));
    delta_fetch(p.k, K_PITCH, a.d.rows + first * pitch + k_delta_keys(&s) + k_head * s.k_dim, pitch,
                n, s.k_dim, DELTA_DIM, delta_in_fours(s));
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

/* The block's part of the work. */
struct delta_part {
    int head, seq, column, n_columns; /* the first of its columns in the head, and their number */
    int begin, end;                   /* tokens */
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

    delta_fetch(stage.q, K_PITCH, rows + k_head * s.k_dim, pitch, n, s.k_dim, DELTA_DIM, fours);
    delta_fetch(stage.k, K_PITCH, rows + k_delta_keys(&s) + k_head * s.k_dim, pitch, n, s.k_dim,
                DELTA_DIM, fours);
    delta_fetch(stage.v, PITCH, rows + 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column,
                pitch, n, part.n_columns, COLUMNS, fours);
    delta_fetch(stage.square, PITCH,
                delta_chunk_rows(a) + ((size_t)first * s.n_v_heads + part.head) * CHUNK,
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
    return threadIdx.x / 32 % 2 * 16 + delta_lane_row() + i / 2 * 8;
}

static __device__ inline int delta_quarter_column(int j, int i)
{
    return threadIdx.x / 64 * 16 + 8 * j + 2 * delta_lane_column() + i % 2;
}

/* k S and q S. */
static __device__ inline void delta_read_matrix(const delta_chunks &c, const delta_stage &stage,
                                                delta_sums *of_k, delta_sums *of_q)
{
    int row = threadIdx.x / 32 % 2 * 16, column = threadIdx.x / 64 * 16;

    for (int i = 0; i < DELTA_DIM; i += 8) {
        float q[4], k[4], b[2];

        delta_load_a(q, stage.q + row * K_PITCH + i, K_PITCH);
        delta_load_a(k, stage.k + row * K_PITCH + i, K_PITCH);
        for (int j = 0; j < 2; j++) {
            delta_load_b(b, c.s + i * S_PITCH + column + 8 * j, S_PITCH);
            delta_mma(of_k[j], k, b);
            delta_mma(of_q[j], q, b);
        }
    }
}

/* V, of the rows in stage.v: `own` has the warp's quarter of them, to which the part of T below its
 * diagonal adds. */
static __device__ inline void delta_solve(const delta_stage &stage, delta_sums *own)
{
    int row = threadIdx.x / 32 % 2 * 16 + delta_lane_row(), column = threadIdx.x / 64 * 16;

    for (int i = 0; i < CHUNK; i += 8) {
        float a[4], b[2];

        for (int e = 0; e < 4; e++) {
            int to = row + e % 2 * 8, from = i + delta_lane_column() + e / 2 * 4;

            a[e] = from < to ? stage.square[from * PITCH + to] : 0.0f;
        }
        for (int j = 0; j < 2; j++) {
            delta_load_b(b, stage.v + i * PITCH + column + 8 * j, PITCH);
            delta_mma(own[j], a, b);
        }
    }
}

/* o += B V. */
static __device__ inline void delta_attend(const delta_chunks &c, const delta_stage &stage,
                                           delta_sums *o)
{
    int row = threadIdx.x / 32 % 2 * 16 + delta_lane_row(), column = threadIdx.x / 64 * 16;

    for (int i = 0; i < CHUNK; i += 8) {
        float a[4], b[2];

        for (int e = 0; e < 4; e++) {
            int to = row + e % 2 * 8, from = i + delta_lane_column() + e / 2 * 4;

            a[e] = from <= to ? stage.square[to * PITCH + from] : 0.0f;
        }
        for (int j = 0; j < 2; j++) {
            delta_load_b(b, c.v + i * S_PITCH + column + 8 * j, S_PITCH);
            delta_mma(o[j], a, b);
        }
    }
}

/* The warp's 32 rows of the matrix: m[tile of 16 rows][tile of 8 columns]. */
static __device__ inline void delta_write_matrix(const delta_chunks &c, const delta_stage &stage,
                                                 delta_sums m[2][4])
{
    int row = threadIdx.x / 32 * 32 + delta_lane_row();
    float keep = stage.from[CHUNK - 1];

    for (int i = 0; i < 32; i++)
        m[i / 16][i / 4 % 4].x[i % 4] *= keep;
    for (int i = 0; i < CHUNK; i += 8) {
        int token = i + delta_lane_column();
        float by[2] = {stage.to[token], stage.to[token + 4]}, b[4][2];

        for (int j = 0; j < 4; j++)
            delta_load_b(b[j], c.v + i * S_PITCH + 8 * j, S_PITCH);
        for (int tile = 0; tile < 2; tile++) {
            float a[4];

            for (int e = 0; e < 4; e++)
                a[e] = delta_tf32(
                    by[e / 2] *
                    stage.k[(token + e / 2 * 4) * K_PITCH + row + 16 * tile + e % 2 * 8]);
            for (int j = 0; j < 4; j++)
                delta_mma(m[tile][j], a, b[j]);
        }
    }
}

/* Row and column of sum i of m[tile][j] in the block's part of the matrix. */
static __device__ inline int delta_matrix_row(int tile, int i)
{
    return threadIdx.x / 32 * 32 + 16 * tile + delta_lane_row() + i / 2 * 8;
}

static __device__ inline int delta_matrix_column(int j, int i)
{
    return 8 * j + 2 * delta_lane_column() + i % 2;
}

/* The matrix rounded, for the next chunk's products. */
static __device__ inline void delta_show_matrix(delta_chunks &c, const delta_sums m[2][4])
{
    for (int i = 0; i < 32; i++)
        c.s[delta_matrix_row(i / 16, i % 4) * S_PITCH + delta_matrix_column(i / 4 % 4, i % 4)] =
            delta_tf32(m[i / 16][i / 4 % 4].x[i % 4]);
}

/* Where sum i of the warp's part of the matrix is in the state; NULL beyond its edges. */
static __device__ inline float *delta_matrix_elem(const delta_args &a, const delta_part &part,
                                                  int i)
{
    const struct k_delta_shape &s = a.d.shape;
    int row = delta_matrix_row(i / 16, i % 4), column = delta_matrix_column(i / 4 % 4, i % 4);

    if (row >= s.k_dim || column >= part.n_columns)
        return NULL;
    return delta_elem(
        a, part.seq, part.head * k_delta_matrix(&s) + (size_t)row * s.v_dim + part.column + column);
}

/* One chunk, whose rows are there, from token `first` on. */
static __device__ inline void delta_run_chunk(const delta_args &a, const delta_part &part,
                                              delta_chunks &c, delta_stage &stage,
                                              delta_sums m[2][4], int first)
{
    const struct k_delta_shape &s = a.d.shape;
    delta_sums v[2] = {}, o[2] = {};

    delta_read_matrix(c, stage, v, o);
    for (int i = 0; i < 8; i++) {
        int row = delta_quarter_row(i % 4);
        float &old = stage.v[row * PITCH + delta_quarter_column(i / 4, i % 4)];
        float &x = v[i / 4].x[i % 4];

        x = stage.beta[row] * (old - stage.from[row] * x);
        old = delta_tf32(x);
        o[i / 4].x[i % 4] *= stage.from[row];
    }
    __syncthreads();
    delta_solve(stage, v);
    for (int i = 0; i < 8; i++)
        c.v[delta_quarter_row(i % 4) * S_PITCH + delta_quarter_column(i / 4, i % 4)] =
            delta_tf32(v[i / 4].x[i % 4]);
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

/* The last inputs of the block's channels replace older ones in the state: its values, and queries
 * and keys if its head is the first one that reads them. */
static __device__ inline void delta_keep_inputs(const delta_args &a, const delta_part &part)
{
    const struct k_delta_shape &s = a.d.shape;
    int turn = s.n_v_heads / s.n_k_heads, first = max(part.begin, part.end - s.n_taps);
    int first_pos = a.t.kv_len[part.seq] - (part.end - part.begin) - part.begin;
    bool has_keys = part.head % turn == 0 && part.column == 0;
    int n = part.n_columns + (has_keys ? 2 * s.k_dim : 0);

    for (int at = threadIdx.x; at < (part.end - first) * n; at += THREADS) {
        int token = first + at / n, i = at % n - part.n_columns;
        int channel = 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column + at % n;

        if (i >= 0)
            channel =
                part.head / turn * s.k_dim + i % s.k_dim + (i < s.k_dim ? 0 : k_delta_keys(&s));
        *delta_kept(a, part.seq, first_pos + token, channel) =
            load_bf16(delta_row(a, token) + channel);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) delta_chunk_kernel(const delta_args a)
{
    extern __shared__ __align__(16) float delta_memory[];
    delta_chunks &c = *(delta_chunks *)delta_memory;
    delta_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * COLUMNS};
    delta_sums m[2][4] = {};
    bool is_old;

    if (!delta_is_chunk(a, part.seq))
        return;
    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_columns = min(COLUMNS, a.d.shape.v_dim - part.column);
    is_old = a.t.kv_len[part.seq] > part.end - part.begin;
    delta_fetch_chunk(a, part, c.stages[0], part.begin);
    for (int i = 0; i < 32 && is_old; i++) {
        const float *elem = delta_matrix_elem(a, part, i);

        if (elem != NULL)
            m[i / 16][i / 4 % 4].x[i % 4] = *elem;
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
        float *elem = delta_matrix_elem(a, part, i);

        if (elem != NULL)
            *elem = m[i / 16][i / 4 % 4].x[i % 4];
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
