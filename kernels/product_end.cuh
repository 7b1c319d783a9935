/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the products that multiply with mma.m16n8k16 (product.cu, product_packed.cu;
 * product_blocks.cu has the norm from here): copies of rows of x, the norm's factors, and the
 * operations on a finished sum. */
#ifndef QUIRE_KERNELS_PRODUCT_END_CUH
#define QUIRE_KERNELS_PRODUCT_END_CUH

#include "kernels/product.cuh"

#define SQUARES 8 /* partial sums of squares that a lane prefetches */

/* A copy without a tensor map, for rows of x. */
static __device__ inline void end_copy_bytes(void *to, const void *from, uint32_t bytes,
                                             uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_addr(to)),
                 "l"(from), "r"(bytes), "r"(shared_addr(bar))
                 : "memory");
}

/* c [16][8] += a [16][16] * b [16][8] */
static __device__ inline void end_multiply_16x8(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* --- outputs ---------------------------------------------------------------------------- */

/* An output of a thread, and the numbers that it needs, which are prefetched. */
struct output {
    bool mine;  /* there is one */
    int c, row; /* row of x; row of w, in the gate's half when gated */
    int place;  /* row of the pass, for its sum */
    float residual;
    k_bf16 bias, bias_up, norm; /* widened at the end, because the first use waits for the load */
};

/* Load the numbers of an output whose place is chosen. */
static __device__ inline void end_fetch_output(output &o, const k_product &p, int n_out)
{
    bool is_gated = p.kind == K_PRODUCT_GATED;

    o.bias = p.bias != NULL ? ((const k_bf16 *)p.bias)[o.row] : (k_bf16)0;
    if (is_gated)
        o.bias_up = p.bias != NULL ? ((const k_bf16 *)p.bias)[o.row + n_out / 2] : (k_bf16)0;
    if (p.kind == K_PRODUCT_RESIDUAL) {
        o.residual = p.residual[(size_t)o.c * n_out + o.row];
        o.norm = ((const k_bf16 *)p.norm)[o.row];
    }
}

/* The launch arguments that the epilogue reads, in registers. */
struct targets {
    int kind, n_out, is_half;
    void *y, *normed;
    float *residual, *sums_out;
};

/* Read once before the mainloop: an argument that was not read recently takes 500 cycles. */
static __device__ inline targets end_targets_of(const k_product &p, int n_out)
{
    targets to = {p.kind, n_out, p.y_is_half, p.y, p.normed, p.residual, p.sums_out};

    pin(to.kind), pin(to.n_out), pin(to.is_half);
    pin_global(to.y), pin_global(to.normed), pin_global(to.residual), pin_global(to.sums_out);
    return to;
}

/* Finish one output: inverse is the norm's factor of its column. */
static __device__ inline void end_write_output(const targets &to, const output &o, float sum,
                                               float up, float inverse)
{
    float result = sum * inverse + load_bf16(&o.bias), square;
    size_t at = (size_t)o.c * to.n_out + o.row;

    switch (to.kind) {
    case K_PRODUCT_PLAIN: store_bf16((k_bf16 *)to.y + at, result); break;
    case K_PRODUCT_FLOAT: ((float *)to.y)[at] = result; break;
    case K_PRODUCT_GATED:
        store_x(to.y, (size_t)o.c * (to.n_out / 2) + o.row,
                result / (1.0f + __expf(-result)) * (up * inverse + load_bf16(&o.bias_up)),
                to.is_half);
        break;
    case K_PRODUCT_RESIDUAL: /* the sixteen lanes of a tile come here together */
        result += o.residual;
        to.residual[at] = result;
        store_x(to.normed, at, result * load_bf16(&o.norm), to.is_half);
        square = result * result;
        for (int apart = 8; apart > 0; apart /= 2)
            square += __shfl_xor_sync(0xffffU << (threadIdx.x & 16), square, apart);
        if (o.row % 16 == 0)
            to.sums_out[(size_t)o.c * (to.n_out / 16) + o.row / 16] = square;
        break;
    }
}

/* --- the norm of x ---------------------------------------------------------------------- */

/* Prefetch the partial sums of squares of row c; a lane has every 32nd. */
template <class ARGS>
static __device__ inline void end_fetch_squares(float squares[SQUARES], int c, const ARGS &a)
{
    int lane = threadIdx.x % 32, n_sums = a.p.sums_in != NULL && c < a.n ? a.p.n_sums : 0;

#pragma unroll
    for (int i = 0; i < SQUARES; i++) {
        int at = i * 32 + lane;

        squares[i] = at < n_sums ? a.p.sums_in[(size_t)c * n_sums + at] : 0.0f;
    }
}

/* 1 / sqrt(mean square) of each row of x; the first 32 * SQUARES partial sums of row `warp` are
 * prefetched. */
template <int WARPS, class ARGS>
static __device__ void end_find_inverse(float *inverse, float squares[SQUARES], int warp,
                                        const ARGS &a)
{
    int lane = threadIdx.x % 32, n_sums = a.p.sums_in != NULL ? a.p.n_sums : 0;

    for (int col = warp; col < a.n; col += WARPS) {
        float sum = 0.0f;

        if (col > warp)
            end_fetch_squares(squares, col, a);
#pragma unroll
        for (int i = 0; i < SQUARES; i++)
            sum += squares[i];
        for (int i = 32 * SQUARES + lane; i < n_sums; i += 32)
            sum += a.p.sums_in[(size_t)col * n_sums + i];
        for (int i = 16; i > 0; i /= 2)
            sum += __shfl_xor_sync(~0U, sum, i);
        if (lane == 0)
            inverse[col] = n_sums > 0 ? rsqrtf(sum / a.n_in + a.p.eps) : 1.0f;
    }
}

#endif
