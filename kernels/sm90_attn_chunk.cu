/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of several query tokens per sequence over its pages, for Hopper, with wgmma and
 * TMA.
 *
 *    warpgroup 0, warp 0: Q, K --TMA--> q, stages of K ---+--> warpgroup 1: 64 query rows --+
 *    warpgroup 0, warp 1: V ----TMA---> stages of V ------+--> warpgroup 2: 64 query rows --+-> out
 *    (e4m3: raw stages -> warpgroup 3 converts -> stages)
 *
 *    warpgroup 1   S(i) O(i-1) | softmax(i)  |             | S(i-1) O(i) | softmax(i-1) ..
 *    warpgroup 2               | S(i) O(i-1) | softmax(i)  |             | S(i-1) O(i)  ..
 *
 * One CTA per multiprocessor takes pieces of work (tile, kv head) until none is left. A tile's 128
 * rows are pairs (token, query head of the group), so that grouped heads share the keys that are
 * read. In the first warpgroup one warp loads queries and keys, one loads values
 * (sm90_attn_load.cuh); the next two warpgroups own 64 rows each; for pages of e4m3 a fourth one
 * converts what was loaded. Keys come in blocks, the last block of a tile first:
 *
 *     S [64][BLOCK] = q [64][HD] . K [BLOCK][HD]      q in registers, if there is room
 *     O [64][HD]   += P [64][BLOCK] . V [BLOCK][HD]   P = 2^(S - max) in registers
 *
 * A warpgroup issues S of one block and O of the block before, and computes P of the first while
 * the second runs; this continues across the border of two tiles. The two warpgroups take turns in
 * issuing (named barriers), so that one computes its softmax while the other's products run
 * ("ping-pong").
 *
 * Bits: a row's result depends on its tile's keys alone, in a fixed order, and not on which
 * multiprocessor takes a tile, or when.
 *
 * Source: the schedule of FlashAttention-3 (arXiv:2407.08608). */
#include "kernels/choice.h"
#include "kernels/sm90_attn_rows.cuh"

#define HALVED_ID 3 /* named barriers HALVED_ID + warpgroup: its queries are float16 */

/* --- the consumers --------------------------------------------------------------------- */

template <class S> struct consumer {
    chunk_shared<S> *sh;
    const chunk_args &a;
    ring<S::STAGES> k, v;
    float acc[S::PARTS][S::PART / 2];
    uint32_t weight[S::BLOCK / 16][4]; /* P of the block before, in wgmma's layout */
    struct chunk_rows rows;
    /* The queries: held in registers if there is room, or a descriptor of the operand. */
    uint32_t held[S::HELD ? S::HD / 16 : 1][4];
    uint64_t told;
};

/* Four 8 x 8 matrices from shared memory. */
static __device__ __forceinline__ void chunk_load_matrices(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_addr(p))
                 : "memory");
}

/* Two bfloat16 as two float16, which have more bits and less range: clamped to the largest. */
static __device__ __forceinline__ uint32_t chunk_half_of(uint32_t two)
{
    return pack_half(low_half(two), high_half(two));
}

/* Convert this warp's 16 rows of the queries in place, and wait until the warpgroup has done so. */
template <class S> static __device__ void chunk_halve_queries(chunk_shared<S> *sh)
{
    int warp = (threadIdx.x - 128) / 32, lane = threadIdx.x % 32;

#pragma unroll 4
    for (int i = lane; i < S::COLUMNS * 16 * 8; i += 32) { /* 16 bytes at a time, 8 per row */
        uint4 *at = (uint4 *)(sh->q + i / 128 * S::Q_COLUMN + warp * 16 * 128) + i % 128;
        uint4 x = *at;

        *at = make_uint4(chunk_half_of(x.x), chunk_half_of(x.y), chunk_half_of(x.z),
                         chunk_half_of(x.w));
    }
    fence_async();
    named_sync(HALVED_ID + warp / 4, 128);
}

/* Load the queries. With the swizzle, the 16 bytes c of row r of a slab are at c ^ r % 8. */
template <class S> static __device__ __forceinline__ void chunk_take_queries(consumer<S> &c)
{
    int lane = threadIdx.x % 32, row = (threadIdx.x - 128) / 32 * 16 + lane % 16;

    if constexpr (S::HELD) {
#pragma unroll
        for (int d = 0; d < S::HD / 16; d++)
            chunk_load_matrices(c.held[d], c.sh->q + d / 4 * S::Q_COLUMN + row * 128 +
                                               ((d % 4 * 2 + lane / 16) ^ row % 8) * 16);
#pragma unroll
        for (int i = 0; S::RAW && i < S::HD / 4; i++)
            c.held[i / 4][i % 4] = chunk_half_of(c.held[i / 4][i % 4]);
    } else {
        if (S::RAW)
            chunk_halve_queries(c.sh);
        c.told = operand(c.sh->q + (threadIdx.x / 128 - 1) * 8 * SLAB, SLAB, 0);
    }
}

/* Issue and commit score = q . K. */
template <class S>
static __device__ __forceinline__ void chunk_begin_scores(consumer<S> &c,
                                                          float (&score)[S::BLOCK / 2])
{
    const unsigned char *k = c.sh->block[KEYS][c.k.stage];

    keep(score);
    warpgroup_begin();
#pragma unroll
    /* 32 bytes of a row at a time; descriptors count in units of 16. */
    for (int d = 0; d < S::HD / 16; d++) {
        uint64_t b = operand(k, S::ROWS_APART, 0) + d / 4 * (S::COLUMNS_APART / 16) + d % 4 * 2;

        if constexpr (S::HELD && S::RAW)
            multiply_half_rows(score, c.held[d], b, d > 0);
        else if constexpr (S::HELD)
            multiply_rows(score, c.held[d], b, d > 0);
        else if constexpr (S::RAW)
            multiply_half_rows(score, c.told + d / 4 * (S::Q_COLUMN / 16) + d % 4 * 2, b, d > 0);
        else
            multiply_rows(score, c.told + d / 4 * (S::Q_COLUMN / 16) + d % 4 * 2, b, d > 0);
    }
    warpgroup_commit();
}

/* Wait for the scores: at most LEFT groups that were committed later may be unfinished. */
template <int LEFT, class S>
static __device__ __forceinline__ void chunk_end_scores(consumer<S> &c,
                                                        float (&score)[S::BLOCK / 2])
{
    warpgroup_wait<LEFT>();
    keep(score);
    load_release(&c.sh->empty[KEYS][c.k.stage]);
    c.k.next();
}

/* Queries that are not held are read by the scores of all blocks: after those of the tile's last
 * block they are released, and the next tile's are loaded during the rest of the step. */
template <class S>
static __device__ __forceinline__ void chunk_give_queries(consumer<S> &c, bool was_last)
{
    if (!S::HELD && was_last)
        load_release(&c.sh->q_empty);
}

/* Issue and commit acc += P . V. */
template <class S> static __device__ __forceinline__ void chunk_begin_values(consumer<S> &c)
{
    const unsigned char *v = c.sh->block[VALUES][c.v.stage];

#pragma unroll
    for (int part = 0; part < S::PARTS; part++)
        keep(c.acc[part]);
    keep(c.weight);
    warpgroup_begin();
#pragma unroll
    for (int j = 0; j < S::BLOCK / 16; j++) {
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            uint64_t b = operand(v + part * (S::PART / 64) * S::COLUMNS_APART, S::ROWS_APART,
                                 S::COLUMNS_APART) +
                         j * 2 * (S::ROWS_APART / 16);

            if constexpr (S::RAW)
                multiply_half_columns(c.acc[part], c.weight[j], b);
            else
                multiply_columns(c.acc[part], c.weight[j], b);
        }
    }
    warpgroup_commit();
}

/* Wait for the values, and release their stage. */
template <class S> static __device__ __forceinline__ void chunk_end_values(consumer<S> &c)
{
    warpgroup_wait<0>();
#pragma unroll
    for (int part = 0; part < S::PARTS; part++)
        keep(c.acc[part]);
    load_release(&c.sh->empty[VALUES][c.v.stage]);
    c.v.next();
}

/* The running softmax: turn scores into weights; shrink: the factor of the rows' sums so far.
 * MASKED: some rows do not attend to all of the block. */
template <class S, bool MASKED>
static __device__ __forceinline__ void chunk_soften(struct chunk_rows &rows,
                                                    float (&score)[S::BLOCK / 2],
                                                    float (&shrink)[2], const chunk_args &a,
                                                    int block)
{
    constexpr int BLOCK = S::BLOCK;
    int col = block * BLOCK + threadIdx.x % 4 * 2;
    float base[2];

#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = rows.top[row];

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float *s = &score[4 * j + 2 * row + elem];

                if (MASKED && (uint32_t)(rows.pos[row] - (col + 8 * j + elem)) >= a.window)
                    *s = -INFINITY;
                top = fmaxf(top, *s);
            }
        }
        top = chunk_quad_max(top);
        shrink[row] = exp2_fast((rows.top[row] - top) * a.scale);
        rows.top[row] = top;
        base[row] = top * a.scale;
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float sum[2] = {0.0f, 0.0f};

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float w = exp2_fast(fmaf(score[4 * j + 2 * row + elem], a.scale, -base[row]));

                score[4 * j + 2 * row + elem] = w;
                sum[elem] += w;
            }
        }
        rows.sum[row] = rows.sum[row] * shrink[row] + (sum[0] + sum[1]);
    }
}

/* Weights are at most 1: no clamping. */
static __device__ __forceinline__ uint32_t chunk_pack_weight_half(float low, float high)
{
    uint32_t two;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

/* P as a left operand: the accumulator's layout is the operand's. */
template <class S>
static __device__ __forceinline__ void chunk_pack_weights(consumer<S> &c,
                                                          const float (&score)[S::BLOCK / 2])
{
#pragma unroll
    for (int i = 0; i < S::BLOCK / 4; i++)
        c.weight[i / 4][i % 4] = S::RAW ? chunk_pack_weight_half(score[2 * i], score[2 * i + 1])
                                        : pack_bf16(score[2 * i], score[2 * i + 1]);
}

/* acc *= factor of the row. */
template <class S>
static __device__ __forceinline__ void chunk_scale_acc(consumer<S> &c, const float (&factor)[2])
{
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
#pragma unroll
        for (int i = 0; i < S::PART / 2; i++)
            c.acc[part][i] *= factor[i / 2 % 2];
    }
}

/* The scores of a tile's first block, without values of a block before. */
template <class S>
static __device__ __forceinline__ void chunk_first_scores(consumer<S> &c,
                                                          float (&score)[S::BLOCK / 2])
{
    barrier_wait(&c.sh->full[KEYS][c.k.stage], c.k.parity);
    chunk_begin_scores(c, score);
    chunk_end_scores<0>(c, score);
}

/* Issue the scores of a block and the values of the block before; at the end the scores are
 * complete, the values are not. */
template <class S>
static __device__ __forceinline__ void chunk_begin_both(consumer<S> &c,
                                                        float (&score)[S::BLOCK / 2])
{
    int group = threadIdx.x / 128 - 1;

    barrier_wait(&c.sh->full[KEYS][c.k.stage], c.k.parity);
    chunk_turn_take(group);
    chunk_begin_scores(c, score);
    barrier_wait(&c.sh->full[VALUES][c.v.stage], c.v.parity);
    chunk_begin_values(c);
    chunk_turn_give(group);
    chunk_end_scores<1>(c, score);
}

/* One round of the mainloop: the softmax of this block is computed while the values of the block
 * before are multiplied. */
template <bool MASKED, class S>
static __device__ __forceinline__ void chunk_step(consumer<S> &c, int block, bool is_last)
{
    float score[S::BLOCK / 2], shrink[2];

    chunk_begin_both(c, score);
    chunk_give_queries(c, is_last);
    chunk_soften<S, MASKED>(c.rows, score, shrink, c.a, block);
    chunk_end_values(c);
    chunk_scale_acc(c, shrink);
    chunk_pack_weights(c, score);
}

template <class S>
static __device__ __forceinline__ void chunk_write_own(const consumer<S> &c, const struct piece &p)
{
    const float units[2] = {c.rows.top[0] * c.a.scale, c.rows.top[1] * c.a.scale};

    chunk_write_rows<S>(c.a, p, c.acc, c.rows.sum, units);
}

/* All blocks of a tile but the last one, which is computed first. */
template <class S>
static __device__ __forceinline__ void chunk_step_blocks(consumer<S> &c, const struct piece &p)
{
    /* Blocks that all rows attend to completely: full_first .. full_last. Only the others are
     * masked. */
    int end = p.pos0 + p.n_tokens, full_last = (p.pos0 + 1) / S::BLOCK - 1;
    int full_first = (end - (int)min(c.a.window, (uint32_t)end) + S::BLOCK - 1) / S::BLOCK;
    int block = p.last - 1;

    for (; block >= p.first && block > full_last; block--)
        chunk_step<true>(c, block, block == p.first);
    for (; block >= full_first; block--)
        chunk_step<false>(c, block, block == p.first);
    for (; block >= p.first; block--)
        chunk_step<true>(c, block, block == p.first);
}

/* From a tile to the next: the last values of the one overlap with the first scores of the
 * other. */
template <class S>
static __device__ __forceinline__ void chunk_turn_over(consumer<S> &c, const struct piece &from,
                                                       const struct piece &to)
{
    struct chunk_rows rows = chunk_rows_of(to, c.a.n_heads / c.a.kv.n_kv_heads);
    float score[S::BLOCK / 2], shrink[2];

    chunk_begin_both(c, score);
    chunk_give_queries(c, to.first == to.last);
    chunk_soften<S, true>(rows, score, shrink, c.a, to.last);
    chunk_end_values(c);
    chunk_write_own(c, from);
#pragma unroll
    for (int i = 0; i < S::PARTS * S::PART / 2; i++)
        c.acc[i / (S::PART / 2)][i % (S::PART / 2)] = 0.0f;
    c.rows = rows;
    chunk_pack_weights(c, score);
}

/* Take the next piece of work and its queries; false: there is none. */
template <class S>
static __device__ __forceinline__ bool chunk_take_piece(consumer<S> &c, struct piece &p,
                                                        uint32_t &parity)
{
    barrier_wait(&c.sh->q_full, parity);
    p = c.sh->pieces[parity];
    parity ^= 1;
    if (p.n_tokens == 0)
        return false;
    chunk_take_queries(c);
    if (S::HELD)
        load_release(&c.sh->q_empty);
    return true;
}

/* Values are one block later than scores, also from a tile to the next: when chunk_step_blocks()
 * returns, the weights of p's first block, which was computed last, are in c for chunk_turn_over().
 * Group 1 gives group 0 the first turn; group 0 takes the last one, which nothing needs, so that
 * the barriers are left as they were. */
template <class S> static __device__ void chunk_consume(chunk_shared<S> *sh, const chunk_args &a)
{
    int group = threadIdx.x / 128 - 1;
    consumer<S> own = {sh, a};
    float score[S::BLOCK / 2], shrink[2];
    struct piece p, next;
    uint32_t parity = 0;

    if (group == 1)
        chunk_turn_give(group);
    (void)chunk_take_piece(own, p, parity); /* the grid is not larger than the work */
    own.rows = chunk_rows_of(p, a.n_heads / a.kv.n_kv_heads);
    chunk_first_scores(own, score);
    chunk_give_queries(own, p.first == p.last);
    chunk_soften<S, true>(own.rows, score, shrink, a, p.last);
    chunk_pack_weights(own, score);
    for (;; p = next) {
        chunk_step_blocks(own, p);
        if (!chunk_take_piece(own, next, parity))
            break;
        chunk_turn_over(own, p, next);
    }
    barrier_wait(&sh->full[VALUES][own.v.stage], own.v.parity);
    chunk_begin_values(own);
    chunk_end_values(own);
    chunk_write_own(own, p);
    if (group == 0)
        chunk_turn_take(group); /* the last turn, which no product needs */
}

/* Counts of arrivals per phase: a stage of e4m3 is filled by two converting warps, a stage of bf16
 * by the TMA alone. */
template <class S> static __device__ void chunk_init_barriers(chunk_shared<S> *sh)
{
    /* Queries are released by the consumers' warps and by all warps that read the piece of work. */
    barrier_init(&sh->q_full, 1);
    barrier_init(&sh->q_empty, 4 * CONSUMERS + 1 + (S::RAW ? 4 : 0));
    barrier_init(&sh->zeroed, 1);
    for (int kind = KEYS; kind <= VALUES; kind++) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&sh->full[kind][i], S::RAW ? 2 : 1);
            barrier_init(&sh->empty[kind][i], 4 * CONSUMERS);
        }
        for (int i = 0; i < S::RAW_STAGES; i++) {
            barrier_init(&sh->raw_full[kind][i], 1);
            barrier_init(&sh->raw_empty[kind][i], 2);
        }
    }
    barrier_init_done();
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    sm90_attn_chunk_kernel(const __grid_constant__ CUtensorMap q_map,
                           const __grid_constant__ CUtensorMap kv_map,
                           const __grid_constant__ chunk_args a)
{
    extern __shared__ __align__(SLAB) unsigned char shared[];
    chunk_shared<S> *sh = (chunk_shared<S> *)shared;

    if (threadIdx.x == 0) {
        tensor_prefetch(&q_map);
        tensor_prefetch(&kv_map);
        chunk_init_barriers<S>(sh);
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
        chunk_consume<S>(sh, a);
    } else {
        registers_give<S::FEW_REGISTERS>();
        load_convert<S>(sh);
    }
}

/* --- the launch ------------------------------------------------------------------------ */

template <class S>
static int chunk_launch_shape(const chunk_args &a, const k_bf16 *qkv, k_stream stream)
{
    return chunk_launch<S>(sm90_attn_chunk_kernel<S>, a, qkv, stream);
}

template <bool E4M3>
static int chunk_choose_head_dim(const chunk_args &a, const k_bf16 *qkv, k_stream stream)
{
    switch (a.kv.head_dim) {
    case 64: return chunk_launch_shape<shape<64, E4M3>>(a, qkv, stream);
    case 80: return chunk_launch_shape<shape<80, E4M3>>(a, qkv, stream);
    case 96: return chunk_launch_shape<shape<96, E4M3>>(a, qkv, stream);
    case 128: return chunk_launch_shape<shape<128, E4M3>>(a, qkv, stream);
    default: return chunk_launch_shape<shape<256, E4M3>>(a, qkv, stream);
    }
}

/* The TMA needs addresses and strides that are multiples of 16 bytes, and pages of whole slabs. */
int k_attn_chunk_takes_sm90(const struct k_kv *kv, const k_bf16 *qkv, int n_heads)
{
    int hd = kv->head_dim, bt = kv->page_tokens;

    return (hd == 64 || hd == 80 || hd == 96 || hd == 128 || hd == 256) && bt >= 8 &&
           (bt & (bt - 1)) == 0 && n_heads / kv->n_kv_heads <= ROWS &&
           (uintptr_t)kv->pages % 16 == 0 && (uintptr_t)qkv % 16 == 0 &&
           kv->page_elems % (size_t)(8 * hd) == 0 && kv->layer_elems % (size_t)(8 * hd) == 0;
}

/* The scales of e4m3 pages are applied to scores and to the output. */
int k_attn_chunk_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                      const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                      float scale, k_stream stream)
{
    bool is_e4m3 = kv->type == K_E4M3;
    chunk_args args = {};

    args.out = out;
    args.kv = *kv;
    args.t = *t;
    args.plan = *plan;
    args.n_heads = n_heads;
    args.scale = scale * LOG2_E * (is_e4m3 ? kv->k_scale : 1.0f);
    args.out_scale = is_e4m3 ? kv->v_scale : 1.0f;
    args.window = kv->window > 0 ? (uint32_t)kv->window : 1U << 31;
    return is_e4m3 ? chunk_choose_head_dim<true>(args, qkv, stream)
                   : chunk_choose_head_dim<false>(args, qkv, stream);
}
