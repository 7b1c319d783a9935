/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule of one token per sequence, heads of 128 (delta_one.cuh), few sequences on
 * Hopper: bound by latency.
 *
 * Split: a cluster of four blocks has a value head, each a quarter of its columns, so that one
 * sequence keeps all multiprocessors busy. A block is small enough to begin beside a product's, and
 * has all but the token's inputs when that has ended. What couples the columns is the norm: the
 * blocks send each other their sums of squares (st.async: a barrier in each counts the bytes). */
#include "kernels/delta_one.cuh"
#include "kernels/product.cuh"

#define RANKS   4
#define COLUMNS (DELTA_DIM / RANKS)    /* of a block */
#define LANES   (COLUMNS / 4)          /* of a row */
#define APART   (SOLE_THREADS / LANES) /* rows between two of a thread */
#define ROWS    (DELTA_DIM / APART)

template <state_type type> struct quarter_shared {
    sole_slot<type> m[ROWS][SOLE_THREADS];
    float sums[2][SOLE_WARPS][COLUMNS]; /* m * k and m * q of each warp's rows */
    sole_token token;
};

/* What the blocks of a cluster tell each other. */
struct quarter_sums {
    float squares[RANKS];
    uint64_t bar;
};

/* --- the matrix ----------------------------------------------------------------------------- */

static __device__ inline sole_walk quarter_begin_walk(const delta_args &a, const sole_block &b,
                                                      int rank)
{
    return sole_begin_walk(a, b, b.head, threadIdx.x / LANES,
                           rank * COLUMNS + threadIdx.x % LANES * 4);
}

static __device__ inline void quarter_add_apart(float4 &x, int apart)
{
    x.x += __shfl_xor_sync(~0U, x.x, apart), x.y += __shfl_xor_sync(~0U, x.y, apart);
    x.z += __shfl_xor_sync(~0U, x.z, apart), x.w += __shfl_xor_sync(~0U, x.w, apart);
}

/* Sums of the old matrix over the warp's rows, by k and by q. */
template <state_type type> static __device__ inline void quarter_sum_rows(quarter_shared<type> &s)
{
    float4 by_k = make_float4(0.0f, 0.0f, 0.0f, 0.0f), by_q = by_k;
    int row = threadIdx.x / LANES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < ROWS; i++, row += APART) {
        float4 m = sole_widen(s.m[i][threadIdx.x]);

        sole_fma(by_k, s.token.k[row], m);
        sole_fma(by_q, s.token.q[row], m);
    }
    for (int apart = LANES; apart < 32; apart *= 2) {
        quarter_add_apart(by_k, apart);
        quarter_add_apart(by_q, apart);
    }
    if (lane < LANES) {
        *(float4 *)&s.sums[0][warp][4 * lane] = by_k;
        *(float4 *)&s.sums[1][warp][4 * lane] = by_q;
    }
}

/* Sums of all rows: of a column, and of the thread's four by k. */
static __device__ inline float quarter_sum(const float (&sums)[SOLE_WARPS][COLUMNS], int column)
{
    return sums[0][column] + sums[1][column] + (sums[2][column] + sums[3][column]);
}

template <state_type type>
static __device__ inline void quarter_replace(const quarter_shared<type> &s, const delta_args &a,
                                              const sole_block &b, const sole_factors &f, int rank)
{
    int column = threadIdx.x % LANES * 4, row = threadIdx.x / LANES;
    sole_walk w = quarter_begin_walk(a, b, rank);
    float u[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        u[i] = sole_find_u(f, s.token.v[0][rank * COLUMNS + column + i],
                           quarter_sum(s.sums[0], column + i));
#pragma unroll
    for (int i = 0; i < ROWS; i++, row += APART, sole_walk_on(a, w, APART))
        sole_replace<type>(a, b, w, sole_widen(s.m[i][threadIdx.x]), f.keep, s.token.k[row],
                           make_float4(u[0], u[1], u[2], u[3]));
}

/* --- the norm ------------------------------------------------------------------------------- */

static __device__ inline uint32_t quarter_remote(const void *at, int rank)
{
    uint32_t remote;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_addr(at)), "r"(rank));
    return remote;
}

/* Tell all blocks of the cluster, by the first lanes. */
static __device__ inline void quarter_tell(quarter_sums &r, int rank, float squares)
{
    int to = threadIdx.x;

    if (to < RANKS)
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                quarter_remote(&r.squares[rank], to)),
            "r"(__float_as_uint(squares)), "r"(quarter_remote(&r.bar, to))
            : "memory");
}

/* Columns of the block, one of each lane of the first warp: tell the others o, and finish it. */
template <state_type type>
static __device__ inline float quarter_begin_norm(quarter_sums &r, const quarter_shared<type> &s,
                                                  const sole_factors &f, int rank)
{
    float u = sole_find_u(f, s.token.v[0][rank * COLUMNS + threadIdx.x],
                          quarter_sum(s.sums[0], threadIdx.x));
    float o = sole_find_o(f, u, quarter_sum(s.sums[1], threadIdx.x)), squares = o * o;

    for (int apart = 16; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(~0U, squares, apart);
    quarter_tell(r, rank, squares);
    return o;
}

template <state_type type>
static __device__ inline void quarter_end_norm(quarter_sums &r, const quarter_shared<type> &s,
                                               const delta_args &a, const sole_block &b, float o,
                                               int rank)
{
    int i = rank * COLUMNS + threadIdx.x;
    size_t at = ((size_t)b.token * a.d.shape.n_v_heads + b.head) * DELTA_DIM + i;
    float scale;

    barrier_wait_cluster(&r.bar, 0);
    scale =
        rsqrtf((r.squares[0] + r.squares[1] + (r.squares[2] + r.squares[3])) / DELTA_DIM + a.d.eps);
    store_x(a.out, at, o * scale * s.token.norm[i] * delta_open(false, s.token.z[0][i]), a.is_half);
}

/* --- the kernel ------------------------------------------------------------------------------ */

/* Block x has a part of a value head, block y a sequence. */
template <state_type type>
static __global__ void __launch_bounds__(SOLE_THREADS, 6)
    delta_rank_kernel(const __grid_constant__ delta_args a)
{
    __shared__ __align__(16) quarter_shared<type> s;
    __shared__ quarter_sums r;
    int rank = blockIdx.x % RANKS, head = blockIdx.x / RANKS;
    const sole_block b = sole_block_of(a, blockIdx.y, head, 1);
    bool has_keys = head % (a.d.shape.n_v_heads / a.d.shape.n_k_heads) == 0 && rank == 0;
    sole_inputs in;
    sole_factors f;
    sole_walk w;
    float o = 0.0f;

    if (b.len == 0 || delta_is_chunk(a, b.seq)) {
        wait_for_previous(); /* some block must */
        return;
    }
    w = quarter_begin_walk(a, b, rank);
#pragma unroll
    for (int i = 0; i < ROWS; i++, sole_walk_on(a, w, APART))
        sole_fetch<type>(a, b, &s.m[i][threadIdx.x], w);
    if (threadIdx.x == 0) {
        barrier_init(&r.bar, 1);
        barrier_init_done();
        barrier_expect(&r.bar, RANKS * sizeof(float));
    }
    __syncthreads();
    cluster_arrive_relaxed();
    sole_begin_token<type>(s.token, in, a, b);
    __syncwarp();
    cluster_wait(); /* all barriers are there */
    wait_for_previous();
    let_next_begin();
    sole_end_token(s.token, in, a, b);
    tf32_wait_copies();
    __syncthreads();
    quarter_sum_rows(s);
    __syncthreads();
    f = sole_factors_of(s.token, 0);
    if (threadIdx.x < 32)
        o = quarter_begin_norm<type>(r, s, f, rank);
    quarter_replace(s, a, b, f, rank);
    if (threadIdx.x < 32)
        quarter_end_norm<type>(r, s, a, b, o, rank);
    sole_keep_inputs<type>(in, a, b, has_keys, (int)threadIdx.x / COLUMNS == rank);
    barrier_wait_cluster(&r.bar, 0); /* nothing comes after the block's end */
}

int delta_run_ranks(const delta_args &a, k_stream stream)
{
    dim3 grid(a.d.shape.n_v_heads * RANKS, a.t.n_seqs);

    if (a.state.is_bf16)
        return delta_launch_early(delta_rank_kernel<STATE_BF16>, grid, SOLE_THREADS, 0, RANKS,
                                  stream, a);
    return delta_launch_early(delta_rank_kernel<STATE_FLOAT>, grid, SOLE_THREADS, 0, RANKS, stream,
                              a);
}
