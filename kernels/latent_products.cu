/* SPDX-License-Identifier: Apache-2.0
 *
 * Absorbed queries and values of latent attention on tensor cores (mma.m16n8k16), for the sizes of
 * released models, on every GPU.
 *
 * A warp computes [ROWS * 16 tokens][COLS * 8 columns] of one head. Operands come from memory
 * straight into the fragments of mma, 16 or 8 bytes at a time: sums do not depend on the order of
 * their terms' numbers, so the term that a fragment calls k may be another one, if both operands
 * agree, and likewise a column. With lane = 4 g + c:
 *
 *   queries   terms 4 c .. 4 c + 3 of each 16 are the lane's: 8 bytes of a row of q. Of up_k
 *             [term][column] it loads 16 bytes of each of these four rows, columns 8 g .. 8 g + 7:
 *             one of each of eight fragments of columns. Its results are 16 columns in a row
 *   values    terms 8 c .. 8 c + 7 of each 32: 16 bytes of a row of sums and of a row of up_v
 *             [column][term], for two products
 *
 * Few tokens: one fragment of rows, and few columns, so that many warps read. Bits: a result is the
 * sum of the same products in the same order in both cases. */
#include "kernels/attn_chunk.cuh"
#include "kernels/latent.cuh"

#define FEW 16 /* tokens: one fragment */

/* The first element of a token's head; of the last token for those behind it. */
static __device__ __forceinline__ const k_bf16 *latent_token(const latent_args &a, int token,
                                                             int stride)
{
    return a.in + ((size_t)min(token, a.t.n_tokens - 1) * a.l.shape.n_heads + blockIdx.x) * stride;
}

/* Elements 2 i and 2 i + 1 of two rows, as pairs of terms: (low row, high row) of element j of each
 * half. */
static __device__ __forceinline__ uint32_t latent_pair(uint32_t upper, uint32_t lower, int j)
{
    return __byte_perm(upper, lower, j == 0 ? 0x5410 : 0x7632);
}

/* The ends of queries, turned: a warp has its tokens' pairs. */
template <int ROWS>
static __device__ __forceinline__ void latent_turn_ends(const latent_args &a, int first)
{
    const k_latent_shape &s = a.l.shape;
    int half = s.rope_dim / 2, n = min(ROWS * 16, a.t.n_tokens - first);

    for (int i = threadIdx.x % 32; i < n * half; i += 32) {
        size_t at = (size_t)(first + i / half) * s.n_heads + blockIdx.x;

        latent_turn(a.out + at * k_latent_row(&s) + s.kv_rank,
                    a.in + at * k_latent_query(&s) + s.nope_dim, a, a.t.pos[first + i / half],
                    i % half);
    }
}

/* Blocks: a head, 64 columns per warp, ROWS * 16 tokens. */
template <int ROWS>
static __global__ void __launch_bounds__(128) latent_queries_even_kernel(const latent_args a)
{
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, first = blockIdx.z * ROWS * 16;
    int column = (blockIdx.y * 4 + threadIdx.x / 32) * 64, width = k_latent_row(&s);
    const k_bf16 *up = (const k_bf16 *)a.l.up +
                       (size_t)blockIdx.x * (s.nope_dim + s.v_dim) * s.kv_rank + column + g * 8;
    float acc[ROWS][8][4] = {};

    if (column >= s.kv_rank)
        return;
#pragma unroll(ROWS == 1 ? 4 : 1)
    for (int k = c * 4; k < s.nope_dim; k += 16) {
        uint32_t left[ROWS][4];
        uint4 right[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            right[i] = *(const uint4 *)(up + (size_t)(k + i) * s.kv_rank);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int token = first + r * 16 + g, query = k_latent_query(&s);
            uint2 low = *(const uint2 *)(latent_token(a, token, query) + k);
            uint2 high = *(const uint2 *)(latent_token(a, token + 8, query) + k);

            left[r][0] = low.x, left[r][1] = high.x, left[r][2] = low.y, left[r][3] = high.y;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t *x = (const uint32_t *)right + j / 2;
            uint32_t b0 = latent_pair(x[0], x[4], j % 2), b1 = latent_pair(x[8], x[12], j % 2);

#pragma unroll
            for (int r = 0; r < ROWS; r++)
                chunk_multiply(acc[r][j], left[r], b0, b1);
        }
    }
    /* Fragment j has at its column n column 8 n + j; the lane has those of n = 2 c and 2 c + 1. */
#pragma unroll
    for (int i = 0; i < ROWS * 4; i++) {
        int r = i / 4, below = i / 2 % 2, side = i % 2, token = first + r * 16 + g + below * 8;
        const float(*x)[4] = acc[r];
        int at = below * 2 + side;
        k_bf16 *to =
            a.out + ((size_t)token * s.n_heads + blockIdx.x) * width + column + (2 * c + side) * 8;

        if (token < a.t.n_tokens)
            *(uint4 *)to = make_uint4(pack_bf16(x[0][at], x[1][at]), pack_bf16(x[2][at], x[3][at]),
                                      pack_bf16(x[4][at], x[5][at]), pack_bf16(x[6][at], x[7][at]));
    }
    if (column == 0)
        latent_turn_ends<ROWS>(a, first);
}

/* Blocks: a head, COLS * 8 columns per warp, ROWS * 16 tokens. */
template <int ROWS, int COLS>
static __global__ void __launch_bounds__(128) latent_values_even_kernel(const latent_args a)
{
    const k_latent_shape &s = a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, first = blockIdx.z * ROWS * 16;
    int column = (blockIdx.y * 4 + threadIdx.x / 32) * COLS * 8;
    const k_bf16 *up =
        (const k_bf16 *)a.l.up +
        ((size_t)blockIdx.x * (s.nope_dim + s.v_dim) + s.nope_dim + column + g) * s.kv_rank;
    float acc[ROWS][COLS][4] = {};

    if (column >= s.v_dim)
        return;
#pragma unroll(ROWS == 1 ? 4 : 1)
    for (int k = c * 8; k < s.kv_rank; k += 32) {
        uint4 low[ROWS], high[ROWS];

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            low[r] = *(const uint4 *)(latent_token(a, first + r * 16 + g, s.kv_rank) + k);
            high[r] = *(const uint4 *)(latent_token(a, first + r * 16 + g + 8, s.kv_rank) + k);
        }
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            uint4 b = *(const uint4 *)(up + (size_t)j * 8 * s.kv_rank + k);

#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                uint32_t front[4] = {low[r].x, high[r].x, low[r].y, high[r].y};
                uint32_t back[4] = {low[r].z, high[r].z, low[r].w, high[r].w};

                chunk_multiply(acc[r][j], front, b.x, b.y);
                chunk_multiply(acc[r][j], back, b.z, b.w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * COLS * 2; i++) {
        int r = i / 2 / COLS, j = i / 2 % COLS, token = first + r * 16 + g + i % 2 * 8;
        k_bf16 *to =
            a.out + ((size_t)token * s.n_heads + blockIdx.x) * s.v_dim + column + j * 8 + c * 2;

        if (token < a.t.n_tokens)
            *(uint32_t *)to = pack_bf16(acc[r][j][i % 2 * 2], acc[r][j][i % 2 * 2 + 1]);
    }
}

/* Blocks of four warps: heads, columns, tokens. */
static dim3 latent_even_grid(const struct k_latent *l, const struct k_tokens *t, int columns,
                             int per_warp, int tokens)
{
    return dim3(l->shape.n_heads, (columns + 4 * per_warp - 1) / (4 * per_warp),
                (t->n_tokens + tokens - 1) / tokens);
}

int k_latent_queries_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                          const struct k_tokens *t, k_stream stream)
{
    const latent_args args = {out, in, *l, {}, *t};
    int columns = l->shape.kv_rank;

    if (t->n_tokens <= FEW)
        return K_LAUNCH(latent_queries_even_kernel<1>, latent_even_grid(l, t, columns, 64, 16), 128,
                        0, stream, args);
    return K_LAUNCH(latent_queries_even_kernel<3>, latent_even_grid(l, t, columns, 64, 48), 128, 0,
                    stream, args);
}

int k_latent_values_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                         const struct k_tokens *t, k_stream stream)
{
    const latent_args args = {out, in, *l, {}, *t};
    int columns = l->shape.v_dim;
    dim3 few = latent_even_grid(l, t, columns, 16, 16),
         many = latent_even_grid(l, t, columns, 64, 48);

    if (t->n_tokens <= FEW)
        return K_LAUNCH((latent_values_even_kernel<1, 2>), few, 128, 0, stream, args);
    return K_LAUNCH((latent_values_even_kernel<3, 8>), many, 128, 0, stream, args);
}
