/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum of one token's experts at the end of their second product (experts_few.cu).
 *
 *   items of a block -> results.y [item][16] -> sum by slots -> out, or residual and norm
 *
 * A block has the tiles first .. last - 1, and of each of them the items of all experts, in the
 * order of k_sorted. Its thread i has row i of these tiles. Results are rounded to bfloat16 and
 * added up in the order of slots as combine_kernel() does, and so are squares and the factor of
 * `switches`: one token gets the same bits as among others. */
#ifndef QUIRE_KERNELS_EXPERTS_FEW_SUM_CUH
#define QUIRE_KERNELS_EXPERTS_FEW_SUM_CUH

#include "kernels/experts.cuh"

#define FEW_SUM_ROWS  16
#define FEW_SUM_TILES 32 /* of a block: 512 rows, one for each thread */
#define FEW_SUM_ITEMS 128
#define FEW_SUM_SLOTS 8 /* read at a time */
#define FEW_SUM_WARPS 8 /* that multiply x by `switches`, as combine_kernel() has them */

struct few_results {
    k_bf16 y[FEW_SUM_ITEMS][FEW_SUM_ROWS];
    float own[FEW_SUM_WARPS]; /* sums of x * switches */
};

/* A thread's row and the numbers that it needs at the end. */
struct few_sum_row {
    int row, place; /* place: of slot `lane` */
    float weight;   /* likewise */
    float residual;
    k_bf16 own, norm; /* widened at the end, because the first use waits */
};

/* The first tile of a block. */
static __device__ inline int few_sum_first(int n_tiles, int block)
{
    return (int)((int64_t)n_tiles * block / gridDim.x);
}

/* A part of x * switches. */
static __device__ inline void few_sum_switch(few_results &s, const struct experts_end &e)
{
    const k_bf16 *x = (const k_bf16 *)e.c.x;
    int n = FEW_SUM_WARPS * 32;
    float sum = 0.0f;

    if (!e.c.adds || e.c.switches == NULL || (int)threadIdx.x >= n)
        return;
#pragma unroll 8
    for (int i = threadIdx.x; i < e.c.dim; i += n)
        sum = __fmaf_rn(load_bf16(x + i), e.c.switches[i], sum);
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0U, sum, apart);
    if (threadIdx.x % 32 == 0)
        s.own[threadIdx.x / 32] = sum;
}

/* Request all that is older than the first product. */
static __device__ inline few_sum_row few_sum_begin(few_results &s, const struct experts_end &e,
                                                   int first, int last)
{
    int lane = threadIdx.x % 32;
    few_sum_row r = {first * FEW_SUM_ROWS + (int)threadIdx.x, -1};

    if (lane < e.c.n_used) {
        r.place = __ldcg(e.c.places + lane);
        r.weight = __ldcg(e.c.weights + lane);
    }
    if (r.row < last * FEW_SUM_ROWS && e.residual != NULL) {
        r.residual = __ldcg(e.residual + r.row);
        r.norm = e.norm[r.row];
    }
    if (r.row < last * FEW_SUM_ROWS && e.c.adds)
        r.own = __ldcg(e.out + r.row);
    few_sum_switch(s, e);
    return r;
}

/* The factor of what out has already. */
static __device__ inline float few_sum_factor(const few_results &s, const struct experts_end &e)
{
    float sum;

    if (!e.c.adds || e.c.switches == NULL)
        return e.c.adds ? 1.0f : 0.0f;
    sum = threadIdx.x % 32 < FEW_SUM_WARPS ? s.own[threadIdx.x % 32] : 0.0f;
    for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(~0U, sum, apart);
    return 1.0f / (1.0f + expf(-sum));
}

/* The rest of K_PRODUCT_RESIDUAL for a row, by whole warps; of 16 squares the first eight and the
 * others are added up one after the other. */
static __device__ inline void few_sum_residual(const struct experts_end &e, const few_sum_row &r,
                                               float sum, bool has)
{
    float x = r.residual + sum, square = 0.0f;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = __shfl_sync(~0U, x, i, 8);

        square = __fmaf_rn(other, other, square);
    }
    square += __shfl_xor_sync(~0U, square, 8);
    if (!has)
        return;
    e.residual[r.row] = x;
    store_x(e.normed, r.row, x * load_bf16(&r.norm), e.is_half);
    if (r.row % FEW_SUM_ROWS == 0)
        e.sums_out[r.row / FEW_SUM_ROWS] = square;
}

/* sum += weight * result of FEW_SUM_SLOTS slots from `slot` on, in their order; all are read before
 * the first is added. y: the first result of the row's tile; slots from n_used on have none. By
 * whole warps. */
static __device__ inline void few_sum_slots(float &sum, const k_bf16 *y, const few_sum_row &r,
                                            int slot, int n_used)
{
    float results[FEW_SUM_SLOTS], weights[FEW_SUM_SLOTS];
    bool has[FEW_SUM_SLOTS];

#pragma unroll
    for (int i = 0; i < FEW_SUM_SLOTS; i++) {
        int place = __shfl_sync(~0U, r.place, slot + i);

        weights[i] = __shfl_sync(~0U, r.weight, slot + i);
        has[i] = slot + i < n_used && place >= 0;
        results[i] = has[i] ? load_bf16(y + place * FEW_SUM_ROWS + r.row % FEW_SUM_ROWS) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < FEW_SUM_SLOTS; i++) {
        if (has[i])
            sum = __fmaf_rn(weights[i], results[i], sum);
    }
}

/* After all items. */
static __device__ inline void few_sum_end(const few_results &s, const struct experts_end &e,
                                          const few_sum_row &r, int first, int last, int n_touched)
{
    bool has = r.row < last * FEW_SUM_ROWS;
    int tile = (int)threadIdx.x / FEW_SUM_ROWS;
    float sum = 0.0f, factor;

    if ((int)threadIdx.x / 32 * 32 >= (last - first) * FEW_SUM_ROWS)
        return; /* the whole warp */
    factor = few_sum_factor(s, e);
    if (has && e.c.adds)
        sum = factor * load_bf16(&r.own);
    for (int slot = 0; slot < e.c.n_used; slot += FEW_SUM_SLOTS)
        few_sum_slots(sum, &s.y[tile * n_touched][0], r, slot, has ? e.c.n_used : 0);
    if (e.residual != NULL)
        few_sum_residual(e, r, sum, has);
    else if (has)
        store_bf16(e.out + r.row, sum);
}

#endif
