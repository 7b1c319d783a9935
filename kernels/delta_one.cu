/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule of one token per sequence, heads of 128 (delta_one.cuh), any number of
 * sequences: bound by the states' bytes.
 *
 * A block has a value head of a sequence, or, where sequences are many, all value heads of a key
 * head, whose convolution it so does once. It walks over their parts with two of them under way
 * into a ring of slots; four blocks share a multiprocessor. The norm of a head is one warp's, while
 * the others go on. */
#include "kernels/delta_one.cuh"

#define STAGES    3
#define SEQS_MANY 32 /* from which on a block has all value heads of a key head */

/* Norm and gate of a head whose o is complete, by a warp. */
template <state_type type>
static __device__ inline void sole_finish(const sole_shared<type, STAGES> &s, const delta_args &a,
                                          const sole_block &b, int head)
{
    int i = threadIdx.x % 32 * 4;
    size_t at = ((size_t)b.token * a.d.shape.n_v_heads + b.head + head) * DELTA_DIM + i;
    float4 o = *(const float4 *)&s.o[head & 1][i], z = *(const float4 *)&s.z[head][i];
    float4 norm = *(const float4 *)&s.norm[i];
    float squares = (o.x * o.x + o.y * o.y) + (o.z * o.z + o.w * o.w), scale;

    for (int apart = 16; apart > 0; apart /= 2)
        squares += __shfl_xor_sync(~0U, squares, apart);
    scale = rsqrtf(squares / DELTA_DIM + a.d.eps);
    store_x(a.out, at, o.x * scale * norm.x * delta_open(false, z.x), a.is_half);
    store_x(a.out, at + 1, o.y * scale * norm.y * delta_open(false, z.y), a.is_half);
    store_x(a.out, at + 2, o.z * scale * norm.z * delta_open(false, z.z), a.is_half);
    store_x(a.out, at + 3, o.w * scale * norm.w * delta_open(false, z.w), a.is_half);
}

/* Begin to fetch the block's n-th part; an empty group where there is none. */
template <state_type type>
static __device__ inline void sole_fetch_part(sole_shared<type, STAGES> &s, const delta_args &a,
                                              const sole_block &b, int n)
{
    if (n < b.n_heads * SOLE_PARTS)
        sole_fetch<type>(a, b, s.m[n % STAGES], b.head + n / SOLE_PARTS, n % SOLE_PARTS);
    tf32_end_group();
}

/* Block x has n_heads value heads, block y a sequence. */
template <state_type type>
static __global__ void __launch_bounds__(SOLE_THREADS, 4)
    delta_sole_kernel(const __grid_constant__ delta_args a, int n_heads)
{
    extern __shared__ __align__(16) float delta_memory[];
    sole_shared<type, STAGES> &s = *(sole_shared<type, STAGES> *)delta_memory;
    const sole_block b = sole_block_of(a, blockIdx.y, blockIdx.x * n_heads, n_heads, 0);
    int turn = a.d.shape.n_v_heads / a.d.shape.n_k_heads, warp = threadIdx.x / 32;
    sole_inputs in;

    if (b.len == 0 || delta_is_chunk(a, b.seq)) {
        wait_for_previous(); /* some block must */
        return;
    }
    for (int n = 0; n < STAGES - 1; n++)
        sole_fetch_part<type>(s, a, b, n);
    sole_begin(s, in, a, b);
    wait_for_previous();
    let_next_begin();
    sole_set_inputs(s, in, a, b);
#pragma unroll 1
    for (int n = 0; n < n_heads * SOLE_PARTS; n++) {
        int head = n / SOLE_PARTS, part = n % SOLE_PARTS;
        sole_factors f;

        sole_fetch_part<type>(s, a, b, n + STAGES - 1);
        tf32_wait_groups<STAGES - 1>();
        sole_sum_rows(s, n % STAGES, n & 1);
        __syncthreads();
        f = sole_factors_of(s, head);
        if (warp == 0)
            s.o[head & 1][part * SOLE_COLUMNS + threadIdx.x] =
                sole_find_o(s, f, n & 1, head, part, threadIdx.x);
        if (warp == 1 && part == 0 && head > 0)
            sole_finish<type>(s, a, b, head - 1);
        sole_update(a, b, s, f, n % STAGES, n & 1, head, part);
    }
    __syncthreads();
    if (warp == 1)
        sole_finish<type>(s, a, b, n_heads - 1);
    sole_keep_inputs<type>(in, a, b, b.head % turn == 0, 0, DELTA_DIM);
}

/* --- the launch ----------------------------------------------------------------------------- */

/* Value heads of a block: with few sequences one, so that there are blocks for all. */
static int delta_sole_heads(const delta_args &a)
{
    int turn = a.d.shape.n_v_heads / a.d.shape.n_k_heads;

    return turn <= SOLE_HEADS && a.t.n_seqs >= SEQS_MANY ? turn : 1;
}

template <state_type type> static int delta_sole_launch(const delta_args &a, k_stream stream)
{
    const int bytes = (int)sizeof(sole_shared<type, STAGES>);
    int n_heads = delta_sole_heads(a);
    dim3 grid(a.d.shape.n_v_heads / n_heads, a.t.n_seqs);

    static_assert(4 * (sizeof(sole_shared<type, STAGES>) + 1024) <= 228 * 1024,
                  "four blocks of a multiprocessor");
    if (cudaFuncSetAttribute(delta_sole_kernel<type>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             bytes) != cudaSuccess)
        return -1;
    return delta_launch_early(delta_sole_kernel<type>, grid, SOLE_THREADS, bytes, 1, stream, a,
                              n_heads);
}

bool delta_sole_takes(const struct k_delta_shape *s, const struct k_state *state)
{
    return s->k_dim == DELTA_DIM && s->v_dim == DELTA_DIM && !s->by_channel &&
           state->page_elems % 4 == 0 && state->at % 4 == 0 && state->page_elems >= SOLE_PAGE;
}

int delta_run_sole(const delta_args &a, k_stream stream)
{
    return a.state.is_bf16 ? delta_sole_launch<STATE_BF16>(a, stream)
                           : delta_sole_launch<STATE_FLOAT>(a, stream);
}
