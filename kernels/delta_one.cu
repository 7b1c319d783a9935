/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule of one token per sequence, heads of 128 (delta_one.cuh), any number of
 * sequences: bound by the states' bytes.
 *
 * A block has a value head of a sequence, or, where sequences are many, all value heads of a key
 * head, whose convolution it so does once. Quarters of matrices, 16 KB in one piece, go through a
 * ring of slots: a quarter of the next head takes the place of one of this head as soon as that is
 * replaced. Two blocks share a multiprocessor.
 *
 * A warp has four rows of each quarter, a lane four columns of these. Sums over rows are those of a
 * thread first, then those of the warps. */
#include "kernels/delta_one.cuh"

#define THREADS   256
#define WARPS     (THREADS / 32)
#define QUARTER   (DELTA_DIM / 4) /* rows */
#define ROWS      (QUARTER / WARPS)
#define RING      6
#define SEQS_MANY 32  /* from which on a block has all value heads of a key head */
#define HEADS_FEW 264 /* up to which each has a block */

static_assert(DELTA_DIM == 4 * 32, "four columns of a head per lane");

template <state_type type> struct walk_shared {
    sole_slot<type> m[RING][ROWS][THREADS];
    float sums[2][WARPS][DELTA_DIM]; /* m * k and m * q of each warp's rows */
    float u[DELTA_DIM];
    float squares[SOLE_WARPS];
    sole_token token;
};

/* Begin to fetch the block's n-th quarter; an empty group where there is none. */
template <state_type type>
static __device__ inline void walk_fetch(walk_shared<type> &s, const delta_args &a,
                                         const sole_block &b, int n, int stage)
{
    if (n < b.n_heads * 4) {
        sole_walk w = sole_begin_walk(
            a, b, b.head + n / 4, n % 4 * QUARTER + threadIdx.x / 32 * ROWS, threadIdx.x % 32 * 4);

#pragma unroll
        for (int i = 0; i < ROWS; i++, sole_walk_on(a, w, 1))
            sole_fetch<type>(a, b, &s.m[stage][i][threadIdx.x], w);
    }
    tf32_end_group();
}

/* Sums of a head's old matrix over the warp's rows, by k and by q. stage: of the first quarter. */
template <state_type type>
static __device__ inline void walk_sum_rows(walk_shared<type> &s, int stage)
{
    float4 by_k = make_float4(0.0f, 0.0f, 0.0f, 0.0f), by_q = by_k;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < 4; n++) {
        int row = n * QUARTER + warp * ROWS;
        float4 k = *(const float4 *)&s.token.k[row], q = *(const float4 *)&s.token.q[row];
        const float ks[ROWS] = {k.x, k.y, k.z, k.w}, qs[ROWS] = {q.x, q.y, q.z, q.w};

#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 m = sole_widen(s.m[stage][i][threadIdx.x]);

            sole_fma(by_k, ks[i], m);
            sole_fma(by_q, qs[i], m);
        }
        stage = stage + 1 == RING ? 0 : stage + 1;
    }
    *(float4 *)&s.sums[0][warp][4 * lane] = by_k;
    *(float4 *)&s.sums[1][warp][4 * lane] = by_q;
}

/* u of a thread's column, into shared memory, and o, which is returned; and parts of its square. */
template <state_type type>
static __device__ inline float walk_find_o(walk_shared<type> &s, const sole_factors &f, int head)
{
    float by_k = 0.0f, by_q = 0.0f, u, o, squares;

#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        by_k += s.sums[0][i][threadIdx.x];
        by_q += s.sums[1][i][threadIdx.x];
    }
    u = sole_find_u(f, s.token.v[head][threadIdx.x], by_k);
    o = sole_find_o(f, u, by_q);
    s.u[threadIdx.x] = u;
    squares = o * o;
    for (int apart = 16; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(~0U, squares, apart);
    if (threadIdx.x % 32 == 0)
        s.squares[threadIdx.x / 32] = squares;
    return o;
}

/* Norm and gate of the thread's column. */
template <state_type type>
static __device__ inline void walk_finish(const walk_shared<type> &s, const delta_args &a,
                                          const sole_block &b, int head, float o)
{
    size_t at = ((size_t)b.token * a.d.shape.n_v_heads + b.head + head) * DELTA_DIM + threadIdx.x;
    float scale = rsqrtf(sole_length(s.squares) / DELTA_DIM + a.d.eps);

    store_x(a.out, at,
            o * scale * s.token.norm[threadIdx.x] * delta_open(false, s.token.z[head][threadIdx.x]),
            a.is_half);
}

/* The new matrix of a head; quarters that come later take the places of its own. */
template <state_type type>
static __device__ inline void walk_replace(walk_shared<type> &s, const delta_args &a,
                                           const sole_block &b, const sole_factors &f, int head,
                                           int &stage)
{
    int row = threadIdx.x / 32 * ROWS, lane = threadIdx.x % 32;
    sole_walk w = sole_begin_walk(a, b, b.head + head, row, 4 * lane);
    float4 u = *(const float4 *)&s.u[4 * lane];

#pragma unroll 1
    for (int n = 0; n < 4; n++, row += QUARTER) {
#pragma unroll
        for (int i = 0; i < ROWS; i++, sole_walk_on(a, w, 1))
            sole_replace<type>(a, b, w, sole_widen(s.m[stage][i][threadIdx.x]), f.keep,
                               s.token.k[row + i], u);
        sole_walk_on(a, w, QUARTER - ROWS);
        walk_fetch(s, a, b, head * 4 + n + RING, stage);
        stage = stage + 1 == RING ? 0 : stage + 1;
    }
}

/* Block x has n_heads value heads, block y a sequence. */
template <state_type type>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_walk_kernel(const __grid_constant__ delta_args a, int n_heads)
{
    extern __shared__ __align__(16) float delta_memory[];
    walk_shared<type> &s = *(walk_shared<type> *)delta_memory;
    const sole_block b = sole_block_of(a, blockIdx.y, blockIdx.x * n_heads, n_heads);
    int turn = a.d.shape.n_v_heads / a.d.shape.n_k_heads, stage = 0;
    bool has_column = threadIdx.x < SOLE_THREADS;
    sole_inputs in;

    if (b.len == 0 || delta_is_chunk(a, b.seq)) {
        wait_for_previous(); /* some block must */
        return;
    }
    for (int n = 0; n < RING; n++)
        walk_fetch(s, a, b, n, n);
    if (has_column)
        sole_begin_token<type>(s.token, in, a, b);
    wait_for_previous();
    let_next_begin();
    if (has_column) {
        sole_end_token(s.token, in, a, b);
        sole_keep_inputs<type>(in, a, b, b.head % turn == 0, true);
    }
    __syncthreads();
#pragma unroll 1
    for (int head = 0; head < n_heads; head++) {
        const sole_factors f = sole_factors_of(s.token, head);
        float o = 0.0f;

        tf32_wait_groups<RING - 4>();
        walk_sum_rows(s, stage);
        __syncthreads();
        if (has_column)
            o = walk_find_o(s, f, head);
        __syncthreads();
        if (has_column)
            walk_finish(s, a, b, head, o);
        walk_replace(s, a, b, f, head, stage);
    }
}

/* --- the launch ----------------------------------------------------------------------------- */

/* Value heads of a block. */
static int walk_heads(const delta_args &a)
{
    int turn = a.d.shape.n_v_heads / a.d.shape.n_k_heads;

    return turn <= SOLE_HEADS &&
                   (a.t.n_seqs >= SEQS_MANY || a.t.n_seqs * a.d.shape.n_v_heads > HEADS_FEW)
               ? turn
               : 1;
}

template <state_type type> static int walk_launch(const delta_args &a, k_stream stream)
{
    const int bytes = (int)sizeof(walk_shared<type>);
    int n_heads = walk_heads(a);
    dim3 grid(a.d.shape.n_v_heads / n_heads, a.t.n_seqs);

    static_assert(2 * (sizeof(walk_shared<type>) + 1024) <= 228 * 1024,
                  "two blocks of a multiprocessor");
    if (cudaFuncSetAttribute(delta_walk_kernel<type>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes) != cudaSuccess)
        return -1;
    return delta_launch_early(delta_walk_kernel<type>, grid, THREADS, bytes, 1, stream, a, n_heads);
}

bool delta_sole_takes(const struct k_delta_shape *s, const struct k_state *state)
{
    return s->k_dim == DELTA_DIM && s->v_dim == DELTA_DIM && !s->by_channel &&
           state->page_elems % 4 == 0 && state->at % 4 == 0 && !k_is_portable();
}

int delta_run_sole(const delta_args &a, k_stream stream)
{
    return a.state.is_bf16 ? walk_launch<STATE_BF16>(a, stream)
                           : walk_launch<STATE_FLOAT>(a, stream);
}
