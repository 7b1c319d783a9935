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

#define RANKS SOLE_PARTS

/* What the blocks of a cluster tell each other. */
struct rank_sums {
    float squares[RANKS];
    uint64_t bar;
};

static __device__ inline uint32_t rank_remote(const void *at, int rank)
{
    uint32_t remote;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_addr(at)), "r"(rank));
    return remote;
}

/* Tell all blocks of the cluster, by the first lanes. */
static __device__ inline void rank_tell(rank_sums &r, int rank, float squares)
{
    int to = threadIdx.x;

    if (to < RANKS)
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                rank_remote(&r.squares[rank], to)),
            "r"(__float_as_uint(squares)), "r"(rank_remote(&r.bar, to))
            : "memory");
}

/* Columns of the block, one of each lane of the first warp: tell the others o, and finish it. */
template <state_type type>
static __device__ inline float rank_begin_norm(rank_sums &r, const sole_shared<type, 1> &s,
                                               const sole_factors &f, int rank)
{
    float o = sole_find_o(s, f, 0, 0, rank, threadIdx.x), squares = o * o;

    for (int apart = 16; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(~0U, squares, apart);
    rank_tell(r, rank, squares);
    return o;
}

template <state_type type>
static __device__ inline void rank_end_norm(rank_sums &r, const sole_shared<type, 1> &s,
                                            const delta_args &a, const sole_block &b, float o,
                                            int rank)
{
    int i = rank * SOLE_COLUMNS + threadIdx.x;
    size_t at = ((size_t)b.token * a.d.shape.n_v_heads + b.head) * DELTA_DIM + i;
    float scale;

    barrier_wait_cluster(&r.bar, 0);
    scale = rsqrtf((r.squares[0] + r.squares[1] + (r.squares[2] + r.squares[3])) / DELTA_DIM +
                   a.d.eps);
    store_x(a.out, at, o * scale * s.norm[i] * delta_open(false, s.z[0][i]), a.is_half);
}

/* Block x has a part of a value head, block y a sequence. */
template <state_type type>
static __global__ void __launch_bounds__(SOLE_THREADS, 8)
    delta_rank_kernel(const __grid_constant__ delta_args a)
{
    __shared__ __align__(16) sole_shared<type, 1> s;
    __shared__ rank_sums r;
    int rank = blockIdx.x % RANKS, head = blockIdx.x / RANKS;
    const sole_block b = sole_block_of(a, blockIdx.y, head, 1, rank);
    bool has_keys = head % (a.d.shape.n_v_heads / a.d.shape.n_k_heads) == 0 && rank == 0;
    sole_inputs in;
    sole_factors f;
    float o = 0.0f;

    if (b.len == 0 || delta_is_chunk(a, b.seq)) {
        wait_for_previous(); /* some block must */
        return;
    }
    sole_fetch<type>(a, b, s.m[0], head, rank);
    tf32_end_group();
    if (threadIdx.x == 0) {
        barrier_init(&r.bar, 1);
        barrier_init_done();
        barrier_expect(&r.bar, RANKS * sizeof(float));
    }
    __syncthreads();
    cluster_arrive_relaxed();
    sole_begin(s, in, a, b);
    __syncwarp();
    cluster_wait(); /* all barriers are there */
    wait_for_previous();
    let_next_begin();
    sole_set_inputs(s, in, a, b);
    tf32_wait_groups<0>();
    sole_sum_rows(s, 0, 0);
    __syncthreads();
    f = sole_factors_of(s, 0);
    if (threadIdx.x < 32)
        o = rank_begin_norm<type>(r, s, f, rank);
    sole_update(a, b, s, f, 0, 0, 0, rank);
    if (threadIdx.x < 32)
        rank_end_norm<type>(r, s, a, b, o, rank);
    sole_keep_inputs<type>(in, a, b, has_keys, rank * SOLE_COLUMNS, SOLE_COLUMNS);
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
