/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of several query tokens per sequence over pages of e4m3, for Hopper, with wgmma
 * of e4m3: twice the rate of float16, and keys are used as they arrive.
 *
 *    warpgroup 0, warp 0: Q, K --TMA--> q, stages of K -+--> warpgroup 1: 64 query rows --+
 *    warpgroup 0, warp 1: V -----TMA--> raw stages of V |                                 +--> out
 *    warpgroup 3: raw stages, transposed -> stages of V +--> warpgroup 2: 64 query rows --+
 *
 * Work, tiles and loads are those of sm90_attn_chunk.cu (sm90_attn_load.cuh). A wgmma of bytes
 * reads its right operand along the sum alone, so values are transposed in shared memory. For each
 * block of keys, the last one of a tile first:
 *
 *     S [64][BLOCK] = q [64][HD] . K [BLOCK][HD]     q as e4m3 in registers, a scale per row
 *     P [64][BLOCK] = 2^(S - top + 8) as e4m3        top: the row's maximum in this block
 *     O [64][HD]    = O * 2^(top before - top) + P . V
 *
 * The sums of a wgmma of bytes keep some 14 bits (DeepSeek-V3), and would be cut once for each 32
 * keys. So each block has sums of its own, which are added in float32: the rescaling of the sums so
 * far becomes a fused operation, and the time stays the same. A row's weights are relative to the
 * block's maximum, not to that of all blocks so far, and so use e4m3's range in each block. FALL
 * bounds how far the maximum of a block may be below the latter, so that no sum overflows.
 *
 * A warpgroup waits for its products; the other one's softmax runs meanwhile. Scores and the sums
 * of a block's values have the same registers, which leaves room for the sums of the tile.
 *
 * Accuracy: ref_attn_e4m3() describes the rounding. Bits: as in sm90_attn_chunk.cu.
 *
 * Source: FlashAttention-3 (arXiv:2407.08608) for the order of keys and the transposition by
 * producers; sums in two levels after DeepSeek-V3 (arXiv:2412.19437). */
#include "kernels/choice.h"
#include "kernels/sm90_attn_rows.cuh"

#define WEIGHT_BITS    8.0f  /* weights are at most 2^8; the largest e4m3 is 448 */
#define FALL           64.0f /* log2: sums of 16384 weights and values stay below 2^100 */
#define LEAST_EXPONENT ((127U - 60) << 7) /* of a row of queries: 2^-60, as bfloat16 */

struct fp8_consumer {
    using S = shape_fp8;
    chunk_shared<S> *sh;
    const chunk_args &a;
    ring<S::STAGES> k, v;
    float acc[S::PARTS][S::PART / 2];
    uint32_t q[S::HD / 32][4];
    float scale[2]; /* of the two rows' scores, times log2(e) */
    float unit[2];  /* log2 of the weights' and sums' unit */
    float peak[2];  /* the largest unit so far */
    float sum[2];   /* of this thread's weights */
    int pos[2];
};

/* c [64][128] (+)= a [64][32] . b [128][32], of e4m3, a in registers. */
static __device__ __forceinline__ void fp8_multiply(float (&c)[64], const uint32_t (&a)[4],
                                                    uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
                 " {" SM90_STR64 "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n"
                 "}"
                 : SM90_C64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* Four floats as e4m3, the first in the lowest byte. */
static __device__ __forceinline__ uint32_t fp8_pack(float x0, float x1, float x2, float x3)
{
    uint16_t low, high;

    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
    return (uint32_t)low | (uint32_t)high << 16;
}

/* Four elements of a row of the queries, 8 bytes. */
static __device__ __forceinline__ uint2 fp8_query_four(const chunk_shared<shape_fp8> *sh, int row,
                                                       int d)
{
    int chunk = d % 64 / 8;

    return *(const uint2 *)(sh->q + d / 64 * shape_fp8::Q_COLUMN + row * 128 +
                            (chunk ^ row % 8) * 16 + d % 8 * 2);
}

/* The larger magnitudes of two pairs of bfloat16, as 16 bits each. */
static __device__ __forceinline__ uint32_t fp8_larger(uint32_t a, uint32_t b)
{
    return __vmaxu2(a & 0x7fff7fffU, b & 0x7fff7fffU);
}

/* Round two rows of the queries: with the largest magnitude m 2^k of a row, 1 <= m < 2, times
 * 2^(7 - k), which is exact. */
static __device__ __forceinline__ void fp8_take_queries(fp8_consumer &c)
{
    int lane = threadIdx.x % 32, first = (threadIdx.x - 128) / 32 * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + 8 * i;
        uint32_t top = 0, exponent;
        float up;

#pragma unroll
        for (int j = 0; j < shape_fp8::HD / 16; j++) {
            uint2 x = fp8_query_four(c.sh, row, j * 16 + lane % 4 * 4);

            top = fp8_larger(top, fp8_larger(x.x, x.y));
        }
        top = fp8_larger(top, __shfl_xor_sync(~0U, top, 1));
        top = fp8_larger(top, __shfl_xor_sync(~0U, top, 2));
        exponent = max(max(top & 0x7f80U, top >> 16 & 0x7f80U), LEAST_EXPONENT) << 16;
        up = __uint_as_float((261U << 23) - exponent);
#pragma unroll
        for (int j = 0; j < shape_fp8::HD / 16; j++) {
            uint2 x = fp8_query_four(c.sh, row, j * 16 + lane % 4 * 4);

            c.q[j / 2][j % 2 * 2 + i] = fp8_pack(low_half(x.x) * up, high_half(x.x) * up,
                                                 low_half(x.y) * up, high_half(x.y) * up);
        }
        c.scale[i] = c.a.scale * __uint_as_float(exponent - (7U << 23));
    }
}

/* score = q . K of the next block. */
static __device__ __forceinline__ void fp8_compute_scores(fp8_consumer &c,
                                                          float (&score)[shape_fp8::BLOCK / 2])
{
    using S = shape_fp8;
    uint64_t b = operand(c.sh->block[KEYS][c.k.stage], SLAB, 0);

    barrier_wait(&c.sh->full[KEYS][c.k.stage], c.k.parity);
    keep(score);
    warpgroup_begin();
#pragma unroll
    for (int d = 0; d < S::HD / 32; d++) /* 32 bytes at a time; descriptors count in units of 16 */
        fp8_multiply(score, c.q[d], b + d * 2, d > 0);
    warpgroup_commit();
    warpgroup_wait<0>();
    keep(score);
    load_release(&c.sh->empty[KEYS][c.k.stage]);
    c.k.next();
}

/* Turn scores into weights; shrink: the factors of the rows' sums so far, which can be above 1.
 * MASKED: some rows do not attend to all of the block. */
template <bool MASKED>
static __device__ __forceinline__ void fp8_soften(fp8_consumer &c,
                                                  float (&score)[shape_fp8::BLOCK / 2],
                                                  float (&shrink)[2], int block)
{
    constexpr int BLOCK = shape_fp8::BLOCK;
    int col = block * BLOCK + threadIdx.x % 4 * 2;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = -INFINITY, unit;

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float *s = &score[4 * j + 2 * row + elem];

                if (MASKED && (uint32_t)(c.pos[row] - (col + 8 * j + elem)) >= c.a.window)
                    *s = -INFINITY;
                top = fmaxf(top, *s);
            }
        }
        unit = fmaxf(chunk_quad_max(top) * c.scale[row], c.peak[row] - FALL);
        shrink[row] = exp2_fast(c.unit[row] - unit);
        c.unit[row] = unit;
        c.peak[row] = fmaxf(c.peak[row], unit);
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float sum[2] = {0.0f, 0.0f}, base = c.unit[row] - WEIGHT_BITS;

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float w = exp2_fast(fmaf(score[4 * j + 2 * row + elem], c.scale[row], -base));

                score[4 * j + 2 * row + elem] = w;
                sum[elem] += w;
            }
        }
        c.sum[row] = c.sum[row] * shrink[row] + (sum[0] + sum[1]);
    }
}

/* acc = acc * shrink + weights . V of the next block. */
static __device__ __forceinline__ void fp8_add_values(fp8_consumer &c,
                                                      const float (&score)[shape_fp8::BLOCK / 2],
                                                      const float (&shrink)[2])
{
    using S = shape_fp8;
    uint32_t weight[S::BLOCK / 32][4];
    float part[S::HD / 2];
    uint64_t b = operand(c.sh->block[VALUES][c.v.stage], SLAB, 0);

    /* The order of keys is that of load_turn_block(). */
#pragma unroll
    for (int i = 0; i < S::BLOCK / 8; i++) {
        const float *s = &score[i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2];

        weight[i / 4][i % 4] = fp8_pack(s[0], s[1], s[4], s[5]);
    }
    barrier_wait(&c.sh->full[VALUES][c.v.stage], c.v.parity);
    keep(part);
    keep(weight);
    warpgroup_begin();
#pragma unroll
    for (int j = 0; j < S::BLOCK / 32; j++)
        fp8_multiply(part, weight[j], b + j * 2, j > 0);
    warpgroup_commit();
    warpgroup_wait<0>();
    keep(part);
    load_release(&c.sh->empty[VALUES][c.v.stage]);
    c.v.next();
#pragma unroll
    for (int i = 0; i < S::HD / 2; i++)
        c.acc[0][i] = fmaf(c.acc[0][i], shrink[i / 2 % 2], part[i]);
}

template <bool MASKED> static __device__ __forceinline__ void fp8_step(fp8_consumer &c, int block)
{
    float score[shape_fp8::BLOCK / 2], shrink[2];

    fp8_compute_scores(c, score);
    fp8_soften<MASKED>(c, score, shrink, block);
    fp8_add_values(c, score, shrink);
}

/* All blocks of a tile. Blocks that all rows attend to completely are full_first .. full_last. */
static __device__ __forceinline__ void fp8_step_blocks(fp8_consumer &c, const struct piece &p)
{
    constexpr int BLOCK = shape_fp8::BLOCK;
    int end = p.pos0 + p.n_tokens, full_last = (p.pos0 + 1) / BLOCK - 1;
    int full_first = (end - (int)min(c.a.window, (uint32_t)end) + BLOCK - 1) / BLOCK;
    int block = p.last;

    for (; block >= p.first && block > full_last; block--)
        fp8_step<true>(c, block);
    for (; block >= full_first; block--)
        fp8_step<false>(c, block);
    for (; block >= p.first; block--)
        fp8_step<true>(c, block);
}

/* The state at the begin of a tile. */
static __device__ __forceinline__ void fp8_begin_tile(fp8_consumer &c, const struct piece &p)
{
    int group = c.a.n_heads / c.a.kv.n_kv_heads;
    int row = (threadIdx.x - 128) / 32 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        c.pos[i] = p.pos0 + (row + 8 * i) / group;
        c.unit[i] = c.peak[i] = NOTHING;
        c.sum[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < shape_fp8::HD / 2; i++)
        c.acc[0][i] = 0.0f;
}

static __device__ void fp8_consume(chunk_shared<shape_fp8> *sh, const chunk_args &a)
{
    fp8_consumer c = {sh, a};
    uint32_t parity = 0;

    for (;;) {
        float units[2];
        struct piece p;

        barrier_wait(&sh->q_full, parity);
        p = sh->pieces[parity];
        parity ^= 1;
        if (p.n_tokens == 0)
            break;
        fp8_take_queries(c);
        load_release(&sh->q_empty);
        fp8_begin_tile(c, p);
        fp8_step_blocks(c, p);
        units[0] = c.unit[0] - WEIGHT_BITS;
        units[1] = c.unit[1] - WEIGHT_BITS;
        chunk_write_rows<shape_fp8>(a, p, c.acc, c.sum, units);
    }
}

/* Counts of arrivals per phase: a stage of transposed values is filled by TURNERS warps, one of
 * keys by the TMA. Queries are released by the warps of consumers, and by those that read the piece
 * of work. */
static __device__ void fp8_init_barriers(chunk_shared<shape_fp8> *sh)
{
    using S = shape_fp8;

    barrier_init(&sh->q_full, 1);
    barrier_init(&sh->q_empty, 4 * CONSUMERS + 1 + S::TURNERS);
    for (int i = 0; i < S::STAGES; i++) {
        barrier_init(&sh->full[KEYS][i], 1);
        barrier_init(&sh->full[VALUES][i], S::TURNERS);
        barrier_init(&sh->empty[KEYS][i], 4 * CONSUMERS);
        barrier_init(&sh->empty[VALUES][i], 4 * CONSUMERS);
    }
    for (int i = 0; i < S::RAW_STAGES; i++) {
        barrier_init(&sh->raw_full[VALUES][i], 1);
        barrier_init(&sh->raw_empty[VALUES][i], S::TURNERS);
    }
    barrier_init_done();
}

static __global__ void __launch_bounds__(shape_fp8::THREADS, 1)
    sm90_attn_fp8_kernel(const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap kv_map,
                         const __grid_constant__ chunk_args a)
{
    using S = shape_fp8;
    extern __shared__ __align__(SLAB) unsigned char shared[];
    chunk_shared<S> *sh = (chunk_shared<S> *)shared;

    if (threadIdx.x == 0) {
        tensor_prefetch(&q_map);
        tensor_prefetch(&kv_map);
        fp8_init_barriers(sh);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<S::FEW_REGISTERS>();
        if (threadIdx.x < 32)
            load_keys<S>(sh, &q_map, &kv_map, a);
        else if (threadIdx.x < 64)
            load_values<S>(sh, &kv_map, a);
    } else if (threadIdx.x < 128 * (1 + CONSUMERS)) {
        registers_take<S::MANY_REGISTERS>();
        fp8_consume(sh, a);
    } else {
        registers_give<S::FEW_REGISTERS>();
        load_turn<S>(sh);
    }
}

int k_attn_chunk_is_fp8(const struct k_kv *kv)
{
    return kv->type == K_E4M3 && kv->head_dim == shape_fp8::HD;
}

int k_attn_chunk_fp8(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                     const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                     float scale, k_stream stream)
{
    chunk_args args = {};

    args.out = out;
    args.kv = *kv;
    args.t = *t;
    args.plan = *plan;
    args.n_heads = n_heads;
    args.scale = scale * LOG2_E * kv->k_scale;
    args.out_scale = kv->v_scale;
    args.window = kv->window > 0 ? (uint32_t)kv->window : 1U << 31;
    return chunk_launch<shape_fp8>(sm90_attn_fp8_kernel, args, qkv, stream);
}
