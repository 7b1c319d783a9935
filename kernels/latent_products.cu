/* SPDX-License-Identifier: Apache-2.0
 *
 * Absorbed queries and values of latent attention on tensor cores (mma.m16n8k16), for the sizes of
 * released models, on every GPU.
 *
 * Few tokens (up to FEW): bound by the bytes of up. A block has a head and 64 columns of queries,
 * or 32 of values, for all tokens. It requests its part of up before the previous kernel has ended;
 * with GLM-4.7-Flash 160 blocks of 24 or 32 KB, which is all of up at once. Its four warps share
 * the columns.
 *
 * Many tokens: a warp computes [MANY_ROWS * 16 tokens][MANY_COLS * 8 columns] of one head. Operands
 * come from memory straight into the fragments of mma, 16 or 8 bytes at a time.
 *
 * Sums do not depend on the order of their terms' numbers, so the term that a fragment calls k may
 * be another one, if both operands agree, and likewise a column. With lane = 4 g + c:
 *
 *   queries   terms 4 c .. 4 c + 3 of each 16 are the lane's: 8 bytes of a row of q. Of up_k
 *             [term][column] it loads 16 bytes of each of these four rows, columns 8 g .. 8 g + 7:
 *             one of each of eight fragments of columns. Its results are 16 columns in a row
 *   values    terms 8 c .. 8 c + 7 of each 32: 16 bytes of a row of sums and of a row of up_v
 *             [column][term], for two products
 *
 * Bits: a result is the sum of the same products in the same order for few and many tokens. */
#include "kernels/attn_chunk.cuh"
#include "kernels/latent.cuh"
#include "kernels/latent_few.cuh"

#define FEW           64          /* tokens */
#define PORTABLE      (99 * 1024) /* bytes of shared memory on other GPUs than Hopper */
#define FEW_THREADS   128
#define QUERY_COLUMNS 64 /* of a block */
#define VALUE_COLUMNS 32
#define MANY_ROWS     3
#define MANY_COLS     8

/* The first element of a token's head; of the last token for those behind it. */
static __device__ __forceinline__ const k_bf16 *latent_query_of(const latent_args &a, int token)
{
    return a.in + latent_query_at(a.l.shape, min(token, a.t.n_tokens - 1), blockIdx.x);
}

static __device__ __forceinline__ const k_bf16 *latent_sums_of(const latent_args &a, int token)
{
    return a.in + ((size_t)min(token, a.t.n_tokens - 1) * a.l.shape.n_heads + blockIdx.x) *
                      a.l.shape.kv_rank;
}

/* The ends of n queries from token `first` on, turned by `threads` threads. */
static __device__ __forceinline__ void latent_turn_ends(const latent_args &a, int first, int n,
                                                        int threads)
{
    const k_latent_shape &s = a.l.shape;
    int half = s.rope_dim / 2;

    for (int i = threadIdx.x % threads; i < n * half; i += threads) {
        int token = first + i / half;

        latent_turn((k_bf16 *)a.out + ((size_t)token * s.n_heads + blockIdx.x) * k_latent_row(&s) +
                        s.kv_rank,
                    a.in + latent_query_at(s, token, blockIdx.x) + s.nope_dim, a, a.t.pos[token],
                    i % half);
    }
}

/* --- few tokens ----------------------------------------------------------------------------- */

/* Request n rows of `width` elements, at a distance of `stride`; in shared memory of `room`. */
static __device__ __forceinline__ void latent_request(bf16 *to, int room, const k_bf16 *from,
                                                      size_t stride, int n, int width)
{
    int chunks = width / 8;

    for (int i = threadIdx.x; i < n * chunks; i += FEW_THREADS)
        chunk_copy16(to + i / chunks * room + i % chunks * 8,
                     from + i / chunks * stride + i % chunks * 8);
    chunk_end_group();
}

/* Elements of a row in shared memory: of up_k, of queries, of up_v and sums. */
#define UP_ROOM           (QUERY_COLUMNS + 8)
#define QUERY_ROOM(nope)  ((nope) + 8)
#define SUM_ROOM(kv_rank) ((kv_rank) + 32)

/* Blocks: a head, QUERY_COLUMNS columns. MT: tokens, in sixteens. */
template <int MT>
static __global__ void __launch_bounds__(FEW_THREADS) latent_queries_few_kernel(const latent_args a)
{
    extern __shared__ __align__(16) char shared[];
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, n = a.t.n_tokens;
    int column = blockIdx.y * QUERY_COLUMNS, own = threadIdx.x / 32 * 16;
    /* Of 16 terms, the one whose row the lane points to for chunk_load_matrices_turned(). */
    int term = lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2;
    bf16 *up = (bf16 *)shared, *queries = up + s.nope_dim * UP_ROOM;
    float acc[MT][2][4] = {};

    latent_request(up, UP_ROOM,
                   (const k_bf16 *)a.l.up +
                       (size_t)blockIdx.x * (s.nope_dim + s.v_dim) * s.kv_rank + column,
                   s.kv_rank, s.nope_dim, QUERY_COLUMNS);
    wait_for_previous();
    let_next_begin();
    latent_request(queries, QUERY_ROOM(s.nope_dim), latent_query_of(a, 0), k_latent_stride(&s), n,
                   s.nope_dim);
    if (blockIdx.y == 0)
        latent_turn_ends(a, 0, n, FEW_THREADS);
    chunk_wait_groups<0>();
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < s.nope_dim; k += 16) {
        uint32_t right[4];

        chunk_load_matrices_turned(right, up + (k + term) * UP_ROOM + own + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            int token = m * 16 + g;
            const bf16 *from = queries + k + c * 4;
            uint2 low = *(const uint2 *)(from + min(token, n - 1) * QUERY_ROOM(s.nope_dim));
            uint2 high = *(const uint2 *)(from + min(token + 8, n - 1) * QUERY_ROOM(s.nope_dim));
            const uint32_t left[4] = {low.x, high.x, low.y, high.y};

            chunk_multiply(acc[m][0], left, right[0], right[1]);
            chunk_multiply(acc[m][1], left, right[2], right[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < MT * 4; i++) {
        int m = i / 4, below = i / 2 % 2, j = i % 2, token = m * 16 + g + below * 8;
        k_bf16 *to = (k_bf16 *)a.out + ((size_t)token * s.n_heads + blockIdx.x) * k_latent_row(&s) +
                     column + own + j * 8 + c * 2;

        if (token < n)
            *(uint32_t *)to = pack_bf16(acc[m][j][below * 2], acc[m][j][below * 2 + 1]);
    }
}

#define PARTS_AHEAD 16 /* parts that a thread has requested */

/* The factors of a head's parts: lane i has those of parts i and i + 32. */
static __device__ inline float2 latent_factors(const latent_few_part *parts, int n, int row,
                                               float scale)
{
    int lane = threadIdx.x % 32;
    bool has[2] = {lane < n, lane + 32 < n};
    float top[2], sum[2], most, all;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        top[i] = has[i] ? parts[lane + 32 * i].top[row] : -INFINITY;
        sum[i] = has[i] ? parts[lane + 32 * i].sum[row] : 0.0f;
    }
    most = fmaxf(top[0], top[1]);
    for (int apart = 16; apart > 0; apart /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0U, most, apart));
#pragma unroll
    for (int i = 0; i < 2; i++)
        top[i] = has[i] ? exp2_fast((top[i] - most) * scale) : 0.0f;
    all = sum[0] * top[0] + sum[1] * top[1];
    for (int apart = 16; apart > 0; apart /= 2)
        all += __shfl_xor_sync(~0U, all, apart);
    return make_float2(top[0] / all, top[1] / all);
}

/* Four columns of the sum of a token's parts, by the lanes of a warp that have these columns, each
 * of `groups` every so manieth part; then over the groups. */
static __device__ inline float4 latent_add_parts(const latent_few_part *parts, int n, int row,
                                                 int column, int group, int groups, float2 factors)
{
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

#pragma unroll 1
    for (int first = 0; first < n; first += PARTS_AHEAD * groups) {
        float4 x[PARTS_AHEAD];

#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; i++)
            x[i] = *(const float4 *)&parts[min(first + i * groups + group, n - 1)].acc[row][column];
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; i++) {
            int part = first + i * groups + group;
            float low = __shfl_sync(~0U, factors.x, part % 32),
                  high = __shfl_sync(~0U, factors.y, part % 32);
            float f = part >= n ? 0.0f : part < 32 ? low : high;

            sum.x = __fmaf_rn(x[i].x, f, sum.x), sum.y = __fmaf_rn(x[i].y, f, sum.y);
            sum.z = __fmaf_rn(x[i].z, f, sum.z), sum.w = __fmaf_rn(x[i].w, f, sum.w);
        }
    }
    for (int apart = 16; apart > 16 / groups; apart /= 2) {
        sum.x += __shfl_xor_sync(~0U, sum.x, apart), sum.y += __shfl_xor_sync(~0U, sum.y, apart);
        sum.z += __shfl_xor_sync(~0U, sum.z, apart), sum.w += __shfl_xor_sync(~0U, sum.w, apart);
    }
    return sum;
}

/* The sums of a token's parts, by a warp: the block's share of the columns, to all blocks of the
 * head's cluster. */
static __device__ inline void latent_merge(bf16 *to, const latent_args &a, int token, int rank,
                                           int ranks, uint64_t *bar)
{
    int seq = a.t.seq[token], head = blockIdx.x, row = head % LATENT_FEW_HEADS;
    int lane = threadIdx.x % 32, columns = K_LATENT_RANK_MAX / ranks;
    int n = latent_few_split_of(a.t.kv_len[seq], a.most).n;
    int lanes = columns < 128 ? columns / 4 : 32; /* that have columns of their own */
    const latent_few_part *parts =
        a.parts + latent_few_first(token, head / LATENT_FEW_HEADS,
                                   latent_few_blocks(a.l.shape.n_heads), a.most);
    float2 factors = latent_factors(parts, n, row, a.scale);

    for (int first = 0; first < columns; first += 128) {
        int column = rank * columns + first + lane % lanes * 4;
        float4 sum = latent_add_parts(parts, n, row, column, lane / lanes, 32 / lanes, factors);

        if (lane < lanes)
            latent_few_send(to + column,
                            make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)), ranks,
                            bar);
    }
}

static_assert(LATENT_FEW_PARTS <= 64, "a lane has two factors");

/* Blocks: a head, VALUE_COLUMNS columns. MT: tokens, in sixteens. MERGES: sums are parts, which the
 * blocks of a head merge as a cluster: each has some columns, and sends them to all. */
template <int MT, bool MERGES>
static __global__ void __launch_bounds__(FEW_THREADS) latent_values_few_kernel(const latent_args a)
{
    extern __shared__ __align__(16) char shared[];
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, n = a.t.n_tokens;
    int column = blockIdx.y * VALUE_COLUMNS, own = threadIdx.x / 32 * 8;
    int room = SUM_ROOM(s.kv_rank);
    bf16 *up = (bf16 *)shared, *sums = up + VALUE_COLUMNS * room;
    int ranks = MERGES ? latent_few_ranks() : 1, rank = blockIdx.y % ranks;
    float acc[MT][4] = {};
    __shared__ uint64_t bar; /* counts the bytes of merged sums */

    if (MERGES)
        latent_few_open(&bar, n * K_LATENT_RANK_MAX * 2);
    latent_request(up, room,
                   (const k_bf16 *)a.l.up +
                       ((size_t)blockIdx.x * (s.nope_dim + s.v_dim) + s.nope_dim + column) *
                           s.kv_rank,
                   s.kv_rank, VALUE_COLUMNS, s.kv_rank);
    wait_for_previous();
    let_next_begin();
    if constexpr (MERGES) {
        latent_few_meet();
        for (int token = threadIdx.x / 32; token < n; token += FEW_THREADS / 32)
            latent_merge(sums + token * room, a, token, rank, ranks, &bar);
        latent_few_wait(&bar);
    } else {
        latent_request(sums, room, latent_sums_of(a, 0), (size_t)s.n_heads * s.kv_rank, n,
                       s.kv_rank);
    }
    chunk_wait_groups<0>();
    __syncthreads();
#pragma unroll 4
    for (int k = c * 8; k < s.kv_rank; k += 32) {
        uint4 b = *(const uint4 *)(up + (own + g) * room + k);

#pragma unroll
        for (int m = 0; m < MT; m++) {
            uint4 low = *(const uint4 *)(sums + min(m * 16 + g, n - 1) * room + k);
            uint4 high = *(const uint4 *)(sums + min(m * 16 + g + 8, n - 1) * room + k);
            const uint32_t front[4] = {low.x, high.x, low.y, high.y};
            const uint32_t back[4] = {low.z, high.z, low.w, high.w};

            chunk_multiply(acc[m], front, b.x, b.y);
            chunk_multiply(acc[m], back, b.z, b.w);
        }
    }
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int token = i / 2 * 16 + g + i % 2 * 8;
        size_t at = ((size_t)token * s.n_heads + blockIdx.x) * s.v_dim + column + own + c * 2;

        if (token < n)
            store_x_two(a.out, at, acc[i / 2][i % 2 * 2], acc[i / 2][i % 2 * 2 + 1], a.is_half);
    }
}

/* --- many tokens ---------------------------------------------------------------------------- */

/* Elements 2 i and 2 i + 1 of two rows, as pairs of terms: (low row, high row) of element j of each
 * half. */
static __device__ __forceinline__ uint32_t latent_pair(uint32_t upper, uint32_t lower, int j)
{
    return __byte_perm(upper, lower, j == 0 ? 0x5410 : 0x7632);
}

/* Blocks: a head, 64 columns per warp, MANY_ROWS * 16 tokens. */
static __global__ void __launch_bounds__(128) latent_queries_even_kernel(const latent_args a)
{
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, first = blockIdx.z * MANY_ROWS * 16;
    int column = (blockIdx.y * 4 + threadIdx.x / 32) * 64, width = k_latent_row(&s);
    const k_bf16 *up = (const k_bf16 *)a.l.up +
                       (size_t)blockIdx.x * (s.nope_dim + s.v_dim) * s.kv_rank + column + g * 8;
    float acc[MANY_ROWS][8][4] = {};

    wait_for_previous();
    let_next_begin();
    if (column >= s.kv_rank)
        return;
#pragma unroll 1
    for (int k = c * 4; k < s.nope_dim; k += 16) {
        uint32_t left[MANY_ROWS][4];
        uint4 right[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            right[i] = *(const uint4 *)(up + (size_t)(k + i) * s.kv_rank);
#pragma unroll
        for (int r = 0; r < MANY_ROWS; r++) {
            int token = first + r * 16 + g;
            uint2 low = *(const uint2 *)(latent_query_of(a, token) + k);
            uint2 high = *(const uint2 *)(latent_query_of(a, token + 8) + k);

            left[r][0] = low.x, left[r][1] = high.x, left[r][2] = low.y, left[r][3] = high.y;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t *x = (const uint32_t *)right + j / 2;
            uint32_t b0 = latent_pair(x[0], x[4], j % 2), b1 = latent_pair(x[8], x[12], j % 2);

#pragma unroll
            for (int r = 0; r < MANY_ROWS; r++)
                chunk_multiply(acc[r][j], left[r], b0, b1);
        }
    }
    /* Fragment j has at its column n column 8 n + j; the lane has those of n = 2 c and 2 c + 1. */
#pragma unroll
    for (int i = 0; i < MANY_ROWS * 4; i++) {
        int r = i / 4, below = i / 2 % 2, side = i % 2, token = first + r * 16 + g + below * 8;
        const float(*x)[4] = acc[r];
        int at = below * 2 + side;
        k_bf16 *to = (k_bf16 *)a.out + ((size_t)token * s.n_heads + blockIdx.x) * width + column +
                     (2 * c + side) * 8;

        if (token < a.t.n_tokens)
            *(uint4 *)to = make_uint4(pack_bf16(x[0][at], x[1][at]), pack_bf16(x[2][at], x[3][at]),
                                      pack_bf16(x[4][at], x[5][at]), pack_bf16(x[6][at], x[7][at]));
    }
    if (column == 0)
        latent_turn_ends(a, first, min(MANY_ROWS * 16, a.t.n_tokens - first), 32);
}

/* Blocks: a head, MANY_COLS * 8 columns per warp, MANY_ROWS * 16 tokens. */
static __global__ void __launch_bounds__(128) latent_values_even_kernel(const latent_args a)
{
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, first = blockIdx.z * MANY_ROWS * 16;
    int column = (blockIdx.y * 4 + threadIdx.x / 32) * MANY_COLS * 8;
    const k_bf16 *up =
        (const k_bf16 *)a.l.up +
        ((size_t)blockIdx.x * (s.nope_dim + s.v_dim) + s.nope_dim + column + g) * s.kv_rank;
    float acc[MANY_ROWS][MANY_COLS][4] = {};

    wait_for_previous();
    let_next_begin();
    if (column >= s.v_dim)
        return;
#pragma unroll 1
    for (int k = c * 8; k < s.kv_rank; k += 32) {
        uint4 low[MANY_ROWS], high[MANY_ROWS];

#pragma unroll
        for (int r = 0; r < MANY_ROWS; r++) {
            low[r] = *(const uint4 *)(latent_sums_of(a, first + r * 16 + g) + k);
            high[r] = *(const uint4 *)(latent_sums_of(a, first + r * 16 + g + 8) + k);
        }
#pragma unroll
        for (int j = 0; j < MANY_COLS; j++) {
            uint4 b = *(const uint4 *)(up + (size_t)j * 8 * s.kv_rank + k);

#pragma unroll
            for (int r = 0; r < MANY_ROWS; r++) {
                uint32_t front[4] = {low[r].x, high[r].x, low[r].y, high[r].y};
                uint32_t back[4] = {low[r].z, high[r].z, low[r].w, high[r].w};

                chunk_multiply(acc[r][j], front, b.x, b.y);
                chunk_multiply(acc[r][j], back, b.z, b.w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MANY_ROWS * MANY_COLS * 2; i++) {
        int r = i / 2 / MANY_COLS, j = i / 2 % MANY_COLS, token = first + r * 16 + g + i % 2 * 8;
        size_t at = ((size_t)token * s.n_heads + blockIdx.x) * s.v_dim + column + j * 8 + c * 2;

        if (token < a.t.n_tokens)
            store_x_two(a.out, at, acc[r][j][i % 2 * 2], acc[r][j][i % 2 * 2 + 1], a.is_half);
    }
}

/* --- launching ------------------------------------------------------------------------------ */

/* Blocks of four warps: heads, 64 columns of each warp, tokens. */
static dim3 latent_many_grid(const struct k_latent *l, const struct k_tokens *t, int columns)
{
    return dim3(l->shape.n_heads, (columns + 255) / 256,
                (t->n_tokens + MANY_ROWS * 16 - 1) / (MANY_ROWS * 16));
}

/* smem: what a block for few tokens would need. */
static bool latent_is_few(const struct k_tokens *t, size_t smem)
{
    return t->n_tokens <= FEW && (smem <= PORTABLE || !k_is_portable());
}

static_assert((VALUE_COLUMNS + FEW) * SUM_ROOM(K_LATENT_RANK_MAX) * 2 <= 227 * 1024, "values");
static_assert((K_HEAD_DIM_MAX * UP_ROOM + FEW * QUERY_ROOM(K_HEAD_DIM_MAX)) * 2 <= 227 * 1024,
              "queries");

int k_latent_queries_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                          const struct k_tokens *t, k_stream stream)
{
    const latent_args args = latent_args_of(out, in, l, t);
    int nope = l->shape.nope_dim;
    size_t smem = (size_t)(nope * UP_ROOM + t->n_tokens * QUERY_ROOM(nope)) * sizeof(k_bf16);
    dim3 grid(l->shape.n_heads, l->shape.kv_rank / QUERY_COLUMNS);

    if (!latent_is_few(t, smem))
        return LATENT_LAUNCH(latent_queries_even_kernel, latent_many_grid(l, t, l->shape.kv_rank),
                             128, 0, stream, args);
    if (t->n_tokens <= 16)
        return LATENT_LAUNCH(latent_queries_few_kernel<1>, grid, FEW_THREADS, smem, stream, args);
    return LATENT_LAUNCH(latent_queries_few_kernel<4>, grid, FEW_THREADS, smem, stream, args);
}

int k_latent_values_even(void *out, bool is_half, const k_bf16 *in, const struct k_latent *l,
                         const struct k_tokens *t, k_stream stream)
{
    latent_args args = latent_args_of(out, in, l, t);
    size_t smem = (size_t)(VALUE_COLUMNS + t->n_tokens) * SUM_ROOM(l->shape.kv_rank) * 2;
    dim3 grid(l->shape.n_heads, l->shape.v_dim / VALUE_COLUMNS);

    args.is_half = is_half;
    if (!latent_is_few(t, smem))
        return LATENT_LAUNCH(latent_values_even_kernel, latent_many_grid(l, t, l->shape.v_dim), 128,
                             0, stream, args);
    if (t->n_tokens <= 16)
        return LATENT_LAUNCH((latent_values_few_kernel<1, false>), grid, FEW_THREADS, smem, stream,
                             args);
    return LATENT_LAUNCH((latent_values_few_kernel<4, false>), grid, FEW_THREADS, smem, stream,
                         args);
}

/* Blocks of a cluster: a power of two. */
static unsigned latent_merge_ranks(unsigned blocks)
{
    unsigned ranks = 8;

    while (blocks % ranks != 0)
        ranks /= 2;
    return ranks;
}

/* After k_latent_attend(), which takes at most FEW tokens. */
int k_latent_attended(void *out, bool is_half, const struct k_latent *l, const struct k_tokens *t,
                      const struct k_attn_plan *plan, float scale, k_stream stream)
{
    constexpr float LOG2_E = 1.44269504f;
    latent_args args = latent_args_of(out, NULL, l, t);
    size_t smem = (size_t)(VALUE_COLUMNS + t->n_tokens) * SUM_ROOM(l->shape.kv_rank) * 2;
    dim3 grid(l->shape.n_heads, l->shape.v_dim / VALUE_COLUMNS);

    args.is_half = is_half;
    args.parts = (const latent_few_part *)plan->work;
    args.most = latent_few_parts(plan->n_decodes, l->shape.n_heads);
    args.scale = scale * LOG2_E;
    if (t->n_tokens <= 16)
        return LATENT_LAUNCH_CLUSTER((latent_values_few_kernel<1, true>), grid, FEW_THREADS, smem,
                                     latent_merge_ranks(grid.y), stream, args);
    return LATENT_LAUNCH_CLUSTER((latent_values_few_kernel<4, true>), grid, FEW_THREADS, smem,
                                 latent_merge_ranks(grid.y), stream, args);
}
