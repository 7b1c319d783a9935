/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the products of experts for few routes (experts_few.cu, experts_one.cu): boxes of w, a
 * lane's products, the end of an item, launching. The lanes are described in experts_few.cu. */
#ifndef QUIRE_KERNELS_EXPERTS_FEW_CUH
#define QUIRE_KERNELS_EXPERTS_FEW_CUH

#include "kernels/experts_choose.cuh"
#include "kernels/experts_few_sum.cuh"
#include "kernels/mxfp4.cuh"
#include "kernels/product.cuh"

#define TILE       16

#define SHARED_MAX (227 * 1024) /* of a block */

template <int FORMAT> static __device__ __host__ constexpr int few_box_bytes(void)
{
    return FORMAT == EXPERTS_MXFP4 ? 2 * K_MXFP4_RECORD : 2048;
}

/* An item. */
struct few_item {
    int expert, tile, start, count; /* start, count: its routes */
};

template <int FORMAT> static __device__ __host__ constexpr int few_box_elems(void)
{
    return FORMAT == EXPERTS_PLAIN ? 64 : FORMAT == EXPERTS_MXFP4 ? 2 * K_MXFP4_COLS : 128;
}

/* a / b for a < 2^20 (items of 1024 experts), with fewer instructions before the first weights than
 * a division: half a unit more is never so near to a whole number that the error reaches it. */
static __device__ inline int few_quotient(int a, int b)
{
    return (int)__fdividef((float)a + 0.5f, (float)b);
}

/* Weights are read once per step: evict first. */
static __device__ inline void few_copy_box(void *to, const CUtensorMap *map, int elem, int row,
                                           int expert, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_addr(to)),
                 "l"(map), "r"(elem), "r"(row), "r"(0), "r"(expert), "r"(shared_addr(bar)),
                 "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* Eight elements of x, as four words; zeros past the end of the row. */
static __device__ inline uint4 few_input(const k_bf16 *x, int at, int n_in)
{
    if (at >= n_in)
        return make_uint4(0, 0, 0, 0);
    return *(const uint4 *)(x + at);
}

/* Multiply eight elements of n_in of each lane. */
static __device__ inline void few_multiply(float (&c)[4], const uint4 &low, const uint4 &high,
                                           const uint4 &x)
{
    experts_multiply(c, low.x, high.x, low.y, high.y, x.x, x.y);
    experts_multiply(c, low.z, high.z, low.w, high.w, x.z, x.w);
}

/* A lane's elements of a box: of rows g and g + 8, and of a row of x. */
template <int FORMAT> struct few_parts {
    static const int N = FORMAT == EXPERTS_PLAIN ? 2 : 4; /* eights */
    uint4 low[N], high[N];
};

template <int FORMAT> struct few_column {
    uint4 x[few_parts<FORMAT>::N];
};

template <int FORMAT>
static __device__ inline few_column<FORMAT> few_inputs(const k_bf16 *x, int box, int n_in)
{
    int at = box * few_box_elems<FORMAT>() + threadIdx.x % 4 * (few_box_elems<FORMAT>() / 4);
    few_column<FORMAT> c;

#pragma unroll
    for (int i = 0; i < few_parts<FORMAT>::N; i++)
        c.x[i] = few_input(x, at + i * 8, n_in);
    return c;
}

/* Read a box; `at ^ g` is the TMA's swizzle. */
template <int FORMAT> static __device__ inline few_parts<FORMAT> few_weights(const char *box)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    few_parts<FORMAT> w;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *at = box + g * 128 + ((2 * q + i) ^ g) * 16;
        uint4 low = *(const uint4 *)at, high = *(const uint4 *)(at + 8 * 128);

        if (FORMAT == EXPERTS_PLAIN) {
            w.low[i] = low;
            w.high[i] = high;
            continue;
        }
        w.low[2 * i % few_parts<FORMAT>::N] = widen_eight(make_uint2(low.x, low.y));
        w.low[(2 * i + 1) % few_parts<FORMAT>::N] = widen_eight(make_uint2(low.z, low.w));
        w.high[2 * i % few_parts<FORMAT>::N] = widen_eight(make_uint2(high.x, high.y));
        w.high[(2 * i + 1) % few_parts<FORMAT>::N] = widen_eight(make_uint2(high.z, high.w));
    }
    return w;
}

/* Multiply a box by a column; scales: of the box's rows g and g + 8. */
template <int FORMAT>
static __device__ inline void few_box(float (&acc)[4], const few_parts<FORMAT> &w,
                                      const few_column<FORMAT> &c, float2 scales)
{
    float part[4] = {};
    float(&to)[4] = FORMAT == EXPERTS_IN_BLOCKS ? part : acc;

#pragma unroll
    for (int i = 0; i < few_parts<FORMAT>::N; i++)
        few_multiply(to, w.low[i], w.high[i], c.x[i]);
    if (FORMAT != EXPERTS_IN_BLOCKS)
        return;
    acc[0] = __fmaf_rn(part[0], scales.x, acc[0]);
    acc[1] = __fmaf_rn(part[1], scales.x, acc[1]);
    acc[2] = __fmaf_rn(part[2], scales.y, acc[2]);
    acc[3] = __fmaf_rn(part[3], scales.y, acc[3]);
}

/* The row of w, of the expert's, that row 0 or 8 of the tile is; the last one past the end. */
static __device__ inline int few_row(const struct experts_product &p, int tile, int row)
{
    if (!p.is_gated)
        return min(tile * TILE + row, p.n_out - 1);
    return min(tile * 8 + row % 8, p.n_out - 1) + (row < 8 ? 0 : p.up);
}

/* The scales of a box's two rows of blocks. */
template <int FORMAT>
static __device__ inline float2 few_box_scales(const struct experts_product &p, const float *low,
                                               const float *high, int box)
{
    if (FORMAT != EXPERTS_IN_BLOCKS)
        return make_float2(1.0f, 1.0f);
    return make_float2(__ldg(low + box), __ldg(high + box));
}

/* The sums of both warps of an item, in its first warp. */
template <int NT>
static __device__ inline void few_add_halves(float (&acc)[NT][4], float *sums, int warp)
{
    int lane = threadIdx.x % 32, pair = warp / 2;

    if (warp % 2 == 1) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            sums[i * 32 + lane] = acc[i / 4][i % 4];
    }
    named_sync(1 + pair, 64);
    if (warp % 2 == 0) {
#pragma unroll
        for (int i = 0; i < NT * 4; i++)
            acc[i / 4][i % 4] += sums[i * 32 + lane];
    }
    named_sync(1 + pair, 64); /* the next item may use sums */
}

/* What the end of an item needs of rows g and g + 8, requested at its beginning. */
struct few_rows {
    float2 scale;
    k_bf16 bias[2]; /* widened at the end, because the first use waits */
};

template <int FORMAT>
static __device__ inline few_rows few_rows_of(const struct experts_product &p, const few_item &it)
{
    int g = threadIdx.x % 32 / 4, own = it.expert * p.rows;
    int low = own + few_row(p, it.tile, g), high = own + few_row(p, it.tile, g + 8);
    few_rows r = {make_float2(1.0f, 1.0f), {0, 0}};

    if (FORMAT == EXPERTS_BY_ROW)
        r.scale = make_float2(__ldg(p.scales + low), __ldg(p.scales + high));
    if (FORMAT == EXPERTS_MXFP4)
        r.scale = make_float2(MXFP4_SUMS_LARGER, MXFP4_SUMS_LARGER);
    if (p.bias != NULL) {
        r.bias[0] = p.bias[low];
        r.bias[1] = p.bias[high];
    }
    return r;
}

/* Finish the outputs of n columns, which begin at place `first`; in memory, or those of a tile and
 * one column in shared memory. */
template <int NT>
static __device__ inline void few_end(const struct experts_product &p, const few_item &it,
                                      const few_rows &r, const float (&acc)[NT][4],
                                      const float (&factors)[NT][2], int first, int n, k_bf16 *tile)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, rows = p.is_gated ? 8 : TILE;
    int out = it.tile * rows + g;
    float2 scale = r.scale, bias = make_float2(load_bf16(&r.bias[0]), load_bf16(&r.bias[1]));

#pragma unroll
    for (int i = 0; i < NT * 2; i++) {
        int col = i / 2 * 8 + q * 2 + i % 2;
        float factor = factors[i / 2][i % 2];
        float y = acc[i / 2][i % 2] * (scale.x * factor) + bias.x;
        float z = acc[i / 2][i % 2 + 2] * (scale.y * factor) + bias.y;
        k_bf16 *to = tile != NULL ? tile + g : p.out + (size_t)(first + col) * p.n_out + out;

        if (col >= n)
            continue;
        if (p.is_gated) {
            if (out < p.n_out)
                store_bf16(to, gated(y, z, p.activation));
            continue;
        }
        if (out < p.n_out)
            store_bf16(to, y);
        if (out + 8 < p.n_out)
            store_bf16(to + 8, z);
    }
}

/* Map the matrix as [experts][parts][rows][n_in]: gates and ups are two parts. */
static int few_encode_map(CUtensorMap *map, const struct experts_product *p, bool is_bytes)
{
    cuuint64_t row_bytes = (cuuint64_t)p->n_in * (is_bytes ? 1 : 2);
    cuuint64_t rows = (cuuint64_t)p->n_out, parts = p->is_gated ? 2 : 1;
    cuuint64_t sizes[4] = {(cuuint64_t)p->n_in, rows, parts, (cuuint64_t)p->n_experts};
    cuuint64_t strides[3] = {row_bytes, p->up * row_bytes, (cuuint64_t)p->rows * row_bytes};
    cuuint32_t box[4] = {is_bytes ? 128U : 64U, p->is_gated ? 8U : 16U, p->is_gated ? 2U : 1U, 1};

    return encode_boxes(map, is_bytes, (void *)(uintptr_t)p->w, 4, sizes, strides, box);
}

template <class... P, class... A>
static int few_begin_launch(void (*kernel)(P...), int threads, size_t bytes, int n_sms,
                            k_stream stream, A... args)
{
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess)
        return -1;
    return experts_launch_early(kernel, dim3(n_sms), threads, bytes, stream, args...);
}

#endif
