/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule (Gated DeltaNet), in two ways.
 *
 * Steps of one token per sequence: one kernel. A block has a value head of a sequence; it loads the
 * head's matrix into registers while the convolution of q, k and v runs, and does the rest out of
 * registers. Bytes: the matrix once in and once out; bound by memory from some ten sequences on,
 * before that by latency. A block also convolves the queries and keys of its head, which several
 * value heads share: the state's rows of inputs are such that no block writes a row that another
 * one reads (kernels.h).
 *
 * Other steps: three kernels. The convolution, SiLU and lengths, by one warp per head of a token,
 * into float32 rows; the scan, in which a block has SCAN_COLUMNS columns of a head's matrix in
 * registers and walks over the tokens of its sequence, so that a warp waits for no other except
 * where tiles of rows change; the norm and the gate. The scan is bound by the chain of operations
 * of a token: a product of 16 elements, a sum over 8 lanes, an update.
 *
 * Heads of other sizes than 128 take the same kernels with checks. */
#include "kernels/common.cuh"

#define DELTA_DIM    K_DELTA_DIM_MAX
#define LENGTH_EPS   1e-6f
#define LOG2_E       1.4426950408889634f

#define ONE_THREADS  512
#define ONE_WARPS    (ONE_THREADS / 32)
#define ONE_ROWS     (DELTA_DIM / ONE_WARPS) /* of a warp */

#define CONV_WARPS   8

#define SCAN_COLUMNS 32
#define SCAN_THREADS (8 * SCAN_COLUMNS) /* 8 lanes have a column */
#define SCAN_TILE    16                 /* tokens in shared memory, twice */

static_assert(DELTA_DIM == 4 * 32, "four columns or channels of a head per lane");
static_assert(3 * DELTA_DIM <= ONE_THREADS, "a thread convolves one channel");

struct delta_args {
    void *out;
    const k_bf16 *in;
    const float *gates;
    struct k_delta d;
    struct k_state state;
    struct k_tokens t;
    bool is_half;
};

/* --- addresses ------------------------------------------------------------------------------ */

/* Element i of a sequence's state. States of a sequence have less than 2^32 elements. */
static __device__ inline float *delta_elem(const delta_args &a, int seq, size_t i)
{
    uint32_t at = (uint32_t)(a.state.at + i), page_elems = (uint32_t)a.state.page_elems;
    uint32_t page = at / page_elems;
    int32_t id = a.t.page_ids[(size_t)seq * a.t.pages_max + page];

    return a.state.pages + (size_t)id * page_elems + (at - page * page_elems);
}

/* A channel's input at position pos, in the state. */
static __device__ inline float *delta_kept(const delta_args &a, int seq, int pos, int channel)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t row = pos % s.n_taps;

    return delta_elem(a, seq,
                      s.n_v_heads * k_delta_matrix(&s) + row * k_delta_channels(&s) + channel);
}

/* A token's row of inputs. */
static __device__ inline const k_bf16 *delta_row(const delta_args &a, int token)
{
    const struct k_delta_shape &s = a.d.shape;

    return a.in + (size_t)token * (k_delta_channels(&s) + k_delta_values(&s));
}

/* --- one token ------------------------------------------------------------------------------ */

static __device__ inline float delta_sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

/* By which a head's matrix is multiplied before a token. */
static __device__ inline float delta_keep(const delta_args &a, const float *gate, int head)
{
    float x = gate[a.d.shape.n_v_heads + head] + a.d.dt_bias[head];
    float softplus = x > 20.0f ? x : log1pf(expf(x));

    return expf(-expf(a.d.a_log[head]) * softplus);
}

/* A head of q, k or v: its taps, and its first channel. */
struct delta_head {
    const float *taps;
    int channel, dim;
};

static __device__ inline delta_head delta_key_head(const delta_args &a, int k_head, bool is_key)
{
    const struct k_delta_shape &s = a.d.shape;
    int first = k_head * s.k_dim;
    const float *taps = is_key ? a.d.k_taps : a.d.q_taps;

    return {taps + first * s.n_taps, first + (is_key ? k_delta_keys(&s) : 0), s.k_dim};
}

static __device__ inline delta_head delta_value_head(const delta_args &a, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    int first = head * s.v_dim;

    return {a.d.v_taps + first * s.n_taps, first + 2 * k_delta_keys(&s), s.v_dim};
}

/* Channel i of a head at a token, whose sequence begins at token `begin` of the step. */
static __device__ inline float delta_convolve(const delta_args &a, const delta_head &h, int i,
                                              int seq, int token, int begin, int pos)
{
    int n_taps = a.d.shape.n_taps;
    float sum = 0.0f;

    for (int tap = 0; tap < n_taps; tap++) {
        int back = n_taps - 1 - tap;
        float x = 0.0f;

        if (token - back >= begin)
            x = load_bf16(delta_row(a, token - back) + h.channel + i);
        else if (pos >= back)
            x = *delta_kept(a, seq, pos - back, h.channel + i);
        sum += h.taps[i * n_taps + tap] * x;
    }
    return sum * delta_sigmoid(sum);
}

/* --- a token per sequence ------------------------------------------------------------------- */

struct delta_one {
    float q[DELTA_DIM], k[DELTA_DIM], v[DELTA_DIM], u[DELTA_DIM];
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

static __device__ inline float *delta_at(const delta_args &a, int seq, const delta_place &place)
{
    int32_t id = a.t.page_ids[(size_t)seq * a.t.pages_max + place.page];

    return a.state.pages + (size_t)id * a.state.page_elems + place.at;
}

/* The four columns of a lane in row `row`, which is at `place`. Whole matrices lie in groups of
 * four elements that no page divides. */
template <bool whole>
static __device__ inline float4 delta_load_four(const delta_args &a, int seq, int head, int row,
                                                const delta_place &place)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t at = (size_t)head * k_delta_matrix(&s) + (size_t)row * s.v_dim;
    int column = threadIdx.x % 32 * 4;

    if constexpr (whole) {
        return *(const float4 *)delta_at(a, seq, place);
    } else {
        float x[4];

        for (int i = 0; i < 4; i++)
            x[i] =
                row < s.k_dim && column + i < s.v_dim ? *delta_elem(a, seq, at + column + i) : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
}

template <bool whole>
static __device__ inline void delta_store_four(const delta_args &a, int seq, int head, int row,
                                               const delta_place &place, float4 x)
{
    const struct k_delta_shape &s = a.d.shape;
    size_t at = (size_t)head * k_delta_matrix(&s) + (size_t)row * s.v_dim;
    int column = threadIdx.x % 32 * 4;

    if constexpr (whole) {
        *(float4 *)delta_at(a, seq, place) = x;
    } else {
        const float each[4] = {x.x, x.y, x.z, x.w};

        for (int i = 0; i < 4; i++) {
            if (row < s.k_dim && column + i < s.v_dim)
                *delta_elem(a, seq, at + column + i) = each[i];
        }
    }
}

/* q, k and v of the block's head, one channel per thread, and the token's inputs into the state.
 * The first value head of a key head stores those of q and k. */
static __device__ inline void delta_one_convolve(const delta_args &a, delta_one &shared, int seq,
                                                 int token, int pos, int head)
{
    const struct k_delta_shape &s = a.d.shape;
    int part = threadIdx.x / DELTA_DIM, i = threadIdx.x % DELTA_DIM,
        turn = s.n_v_heads / s.n_k_heads;
    float x = 0.0f, squares;
    delta_head h;

    if (part > 2)
        return;
    h = part < 2 ? delta_key_head(a, head / turn, part == 1) : delta_value_head(a, head);
    if (i < h.dim) {
        x = delta_convolve(a, h, i, seq, token, token, pos);
        if (part == 2 || head % turn == 0)
            *delta_kept(a, seq, pos, h.channel + i) =
                load_bf16(delta_row(a, token) + h.channel + i);
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
        float z = load_bf16(delta_row(a, token) + k_delta_channels(&s) + head * s.v_dim + i);
        float scale = rsqrtf(delta_four(shared.squares) / s.v_dim + a.d.eps);
        float norm = load_bf16((const k_bf16 *)a.d.norm + i);

        store_x(a.out, (size_t)token * k_delta_values(&s) + head * s.v_dim + i,
                o * scale * norm * (z * delta_sigmoid(z)), a.is_half);
    }
}

static __device__ inline void delta_fma(float4 &to, float by, const float4 &x)
{
    to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}

template <bool whole>
static __global__ void __launch_bounds__(ONE_THREADS, whole ? 2 : 1)
    delta_one_kernel(const delta_args a)
{
    __shared__ __align__(16) delta_one shared;
    int head = blockIdx.x, seq = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int token = a.t.seq_start[seq], len = a.t.kv_len[seq], pos = len - 1;
    float4 m[ONE_ROWS], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), u;
    float q_scale, k_scale, keep;
    delta_place place = delta_first_place(a, head);

    if (len == 0)
        return;
    for (int i = 0; i < ONE_ROWS; i++, delta_next_place(a, place)) {
        m[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (pos > 0)
            m[i] = delta_load_four<whole>(a, seq, head, warp * ONE_ROWS + i, place);
    }
    delta_one_convolve(a, shared, seq, token, pos, head);
    keep = delta_keep(a, a.gates + (size_t)token * 2 * a.d.shape.n_v_heads, head);
    __syncthreads();
    q_scale = rsqrtf((delta_four(shared.squares) + LENGTH_EPS) * a.d.shape.k_dim);
    k_scale = rsqrtf(delta_four(shared.squares + 4) + LENGTH_EPS);
    for (int i = 0; i < ONE_ROWS; i++) {
        m[i].x *= keep, m[i].y *= keep, m[i].z *= keep, m[i].w *= keep;
        delta_fma(sum, shared.k[warp * ONE_ROWS + i] * k_scale, m[i]);
    }
    *(float4 *)&shared.parts[warp][4 * lane] = sum;
    __syncthreads();
    if (threadIdx.x < DELTA_DIM) {
        float beta = delta_sigmoid(a.gates[(size_t)token * 2 * a.d.shape.n_v_heads + head]);

        shared.u[threadIdx.x] = beta * (shared.v[threadIdx.x] - delta_sum_parts(shared));
    }
    __syncthreads();
    u = *(const float4 *)&shared.u[4 * lane];
    sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    place = delta_first_place(a, head);
    for (int i = 0; i < ONE_ROWS; i++, delta_next_place(a, place)) {
        int row = warp * ONE_ROWS + i;

        delta_fma(m[i], shared.k[row] * k_scale, u);
        delta_store_four<whole>(a, seq, head, row, place, m[i]);
        delta_fma(sum, shared.q[row] * q_scale, m[i]);
    }
    *(float4 *)&shared.parts[warp][4 * lane] = sum;
    __syncthreads();
    delta_one_finish(a, shared, token, head);
}

/* --- several tokens: the convolution ---------------------------------------------------------- */

/* A row of a.d.rows: q and k of their lengths, and v. A warp has a head of a token. */
static __global__ void __launch_bounds__(32 * CONV_WARPS) delta_convolve_kernel(const delta_args a)
{
    const struct k_delta_shape &s = a.d.shape;
    int token = blockIdx.x, item = blockIdx.y * CONV_WARPS + threadIdx.x / 32,
        lane = threadIdx.x % 32;
    int seq = a.t.seq[token], begin = a.t.seq_start[seq], n_heads = 2 * s.n_k_heads + s.n_v_heads;
    bool is_value = item >= 2 * s.n_k_heads, is_key = !is_value && item >= s.n_k_heads;
    float x[4], squares = 0.0f, scale = 1.0f;
    delta_head h;

    if (item >= n_heads || a.t.kv_len[seq] == 0)
        return;
    h = is_value ? delta_value_head(a, item - 2 * s.n_k_heads)
                 : delta_key_head(a, item - (is_key ? s.n_k_heads : 0), is_key);
    for (int j = 0; j < 4; j++) {
        int i = lane + 32 * j;

        x[j] = i < h.dim ? delta_convolve(a, h, i, seq, token, begin, a.t.pos[token]) : 0.0f;
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
            a.d.rows[(size_t)token * k_delta_channels(&s) + h.channel + i] = x[j] * scale;
    }
}

/* --- several tokens: the scan ----------------------------------------------------------------- */

struct delta_tile {
    float q[SCAN_TILE][DELTA_DIM], k[SCAN_TILE][DELTA_DIM]; /* beyond k_dim: 0 */
    float v[SCAN_TILE][SCAN_COLUMNS];
    float keep[SCAN_TILE], beta[SCAN_TILE];
};

/* The block's part of the work. */
struct delta_part {
    int head, seq, column, n_columns; /* the first of its columns in the head, and their number */
    int begin, end;                   /* tokens */
};

static __device__ inline void delta_copy(float *to, const float *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

/* Begin to copy the rows of a tile from token `first` on. */
static __device__ inline void delta_fetch(const delta_args &a, const delta_part &part,
                                          delta_tile &tile, int first)
{
    const struct k_delta_shape &s = a.d.shape;
    int n = min(SCAN_TILE, part.end - first), channels = k_delta_channels(&s), i = threadIdx.x;
    int q = part.head / (s.n_v_heads / s.n_k_heads) * s.k_dim, k = q + k_delta_keys(&s);
    int v = 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column;

    for (int at = i; at < n * DELTA_DIM; at += SCAN_THREADS) {
        int token = at / DELTA_DIM, row = at % DELTA_DIM;
        const float *from = a.d.rows + (size_t)(first + token) * channels;

        if (row >= s.k_dim)
            continue;
        delta_copy(&tile.q[token][row], from + q + row);
        delta_copy(&tile.k[token][row], from + k + row);
    }
    for (int at = i; at < n * SCAN_COLUMNS; at += SCAN_THREADS) {
        int token = at / SCAN_COLUMNS, column = at % SCAN_COLUMNS;

        if (column < part.n_columns)
            delta_copy(&tile.v[token][column],
                       a.d.rows + (size_t)(first + token) * channels + v + column);
    }
    if (i < n) {
        const float *gate = a.gates + (size_t)(first + i) * 2 * s.n_v_heads;

        tile.keep[i] = delta_keep(a, gate, part.head);
        tile.beta[i] = delta_sigmoid(gate[part.head]);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The row of a lane's element i of its column: lanes of a column read neighbouring groups of four,
 * so that shared memory gives all in one pass. */
static __device__ inline int delta_scan_row(int i)
{
    return i / 4 * 32 + threadIdx.x % 8 * 4 + i % 4;
}

/* A sum over the 8 lanes of a column. */
static __device__ inline float delta_sum_lanes(float x)
{
    for (int lane = 4; lane > 0; lane /= 2)
        x += __shfl_xor_sync(~0U, x, lane);
    return x;
}

/* 16 elements of a row in shared memory, those of delta_scan_row(). */
static __device__ inline void delta_load_row(float *to, const float *row)
{
    for (int i = 0; i < 4; i++) {
        float4 four = *(const float4 *)(row + i * 32 + threadIdx.x % 8 * 4);

        to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
}

/* One token: m has the lane's part of a column. Returns the column's result. */
static __device__ inline float delta_scan_token(float *m, const delta_tile &tile, int token)
{
    float k[16], q[16], sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}, keep = tile.keep[token], u;

    delta_load_row(k, tile.k[token]);
    delta_load_row(q, tile.q[token]);
    for (int i = 0; i < 16; i++)
        sums[i % 4] += m[i] * k[i];
    u = keep * delta_sum_lanes(sums[0] + sums[1] + (sums[2] + sums[3]));
    u = tile.beta[token] * (tile.v[token][threadIdx.x / 8] - u);
    sums[0] = sums[1] = sums[2] = sums[3] = 0.0f;
    for (int i = 0; i < 16; i++) {
        m[i] = keep * m[i] + k[i] * u;
        sums[i % 4] += m[i] * q[i];
    }
    return delta_sum_lanes(sums[0] + sums[1] + (sums[2] + sums[3]));
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

    for (int at = threadIdx.x; at < (part.end - first) * n; at += SCAN_THREADS) {
        int token = first + at / n, i = at % n - part.n_columns;
        int channel = 2 * k_delta_keys(&s) + part.head * s.v_dim + part.column + at % n;

        if (i >= 0)
            channel =
                part.head / turn * s.k_dim + i % s.k_dim + (i < s.k_dim ? 0 : k_delta_keys(&s));
        *delta_kept(a, part.seq, first_pos + token, channel) =
            load_bf16(delta_row(a, token) + channel);
    }
}

/* Element i of the lane's column in the state. */
static __device__ inline float *delta_scan_elem(const delta_args &a, const delta_part &part, int i)
{
    const struct k_delta_shape &s = a.d.shape;

    return delta_elem(a, part.seq,
                      part.head * k_delta_matrix(&s) + (size_t)delta_scan_row(i) * s.v_dim +
                          part.column + threadIdx.x / 8);
}

/* All tokens of a sequence, for some columns of a head. Results replace v in a.d.rows. */
static __global__ void __launch_bounds__(SCAN_THREADS) delta_scan_kernel(const delta_args a)
{
    __shared__ __align__(16) delta_tile tiles[2];
    const struct k_delta_shape &s = a.d.shape;
    delta_part part = {(int)blockIdx.x, (int)blockIdx.z, (int)blockIdx.y * SCAN_COLUMNS};
    bool has_column;
    float m[16];

    part.begin = a.t.seq_start[part.seq];
    part.end = a.t.seq_start[part.seq + 1];
    part.n_columns = min(SCAN_COLUMNS, s.v_dim - part.column);
    if (a.t.kv_len[part.seq] == 0)
        return;
    for (int i = threadIdx.x; i < (int)(sizeof tiles / sizeof(float)); i += SCAN_THREADS)
        ((float *)tiles)[i] = 0.0f;
    __syncthreads();
    has_column = (int)threadIdx.x / 8 < part.n_columns;
    delta_fetch(a, part, tiles[0], part.begin);
    for (int i = 0; i < 16; i++) {
        m[i] = 0.0f;
        if (a.t.kv_len[part.seq] > part.end - part.begin && has_column &&
            delta_scan_row(i) < s.k_dim)
            m[i] = *delta_scan_elem(a, part, i);
    }
    for (int first = part.begin, turn = 0; first < part.end; first += SCAN_TILE, turn ^= 1) {
        int n = min(SCAN_TILE, part.end - first);

        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (first + SCAN_TILE < part.end)
            delta_fetch(a, part, tiles[turn ^ 1], first + SCAN_TILE);
        for (int token = 0; token < n; token++) {
            float o = delta_scan_token(m, tiles[turn], token);

            if (threadIdx.x % 8 == 0 && has_column)
                a.d.rows[(size_t)(first + token) * k_delta_channels(&s) + 2 * k_delta_keys(&s) +
                         part.head * s.v_dim + part.column + threadIdx.x / 8] = o;
        }
    }
    for (int i = 0; i < 16; i++) {
        if (has_column && delta_scan_row(i) < s.k_dim)
            *delta_scan_elem(a, part, i) = m[i];
    }
    delta_keep_inputs(a, part);
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

    if (head >= s.n_v_heads || a.t.kv_len[a.t.seq[token]] == 0)
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
            float z = load_bf16(delta_row(a, token) + k_delta_channels(&s) + first + i);
            float norm = load_bf16((const k_bf16 *)a.d.norm + i);

            store_x(a.out, (size_t)token * k_delta_values(&s) + first + i,
                    o[j] * scale * norm * (z * delta_sigmoid(z)), a.is_half);
        }
    }
}

/* --- launchers -------------------------------------------------------------------------- */

static int delta_launch_one(const delta_args &args, bool whole, k_stream stream)
{
    dim3 grid(args.d.shape.n_v_heads, args.t.n_seqs);

    if (whole)
        return K_LAUNCH(delta_one_kernel<true>, grid, ONE_THREADS, 0, stream, args);
    return K_LAUNCH(delta_one_kernel<false>, grid, ONE_THREADS, 0, stream, args);
}

/* Every sequence of a step has a token, so as many tokens as sequences are one for each. */
int k_delta_rule(void *out, bool is_half, const k_bf16 *in, const float *gates,
                 const struct k_delta *d, const struct k_state *state, const struct k_tokens *t,
                 k_stream stream)
{
    delta_args args = {out, in, gates, *d, *state, *t, is_half};
    const struct k_delta_shape *s = &d->shape;
    int n_heads = 2 * s->n_k_heads + s->n_v_heads;
    dim3 heads(t->n_tokens, (n_heads + CONV_WARPS - 1) / CONV_WARPS);
    dim3 columns(s->n_v_heads, (s->v_dim + SCAN_COLUMNS - 1) / SCAN_COLUMNS, t->n_seqs);
    dim3 values(t->n_tokens, (s->n_v_heads + CONV_WARPS - 1) / CONV_WARPS);

    if (s->k_dim > DELTA_DIM || s->v_dim > DELTA_DIM)
        return -1;
    if (t->n_tokens == t->n_seqs)
        return delta_launch_one(args,
                                s->k_dim == DELTA_DIM && s->v_dim == DELTA_DIM &&
                                    state->page_elems % 4 == 0 && state->at % 4 == 0 &&
                                    state->page_elems >= DELTA_DIM,
                                stream);
    if (K_LAUNCH(delta_convolve_kernel, heads, 32 * CONV_WARPS, 0, stream, args) != 0 ||
        K_LAUNCH(delta_scan_kernel, columns, SCAN_THREADS, 0, stream, args) != 0)
        return -1;
    return K_LAUNCH(delta_finish_kernel, values, 32 * CONV_WARPS, 0, stream, args);
}
