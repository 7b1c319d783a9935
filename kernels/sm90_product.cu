/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of up to 64 rows with wgmma: y [n][n_out] = x [n][n_in] * transpose(w [n_out][n_in]),
 * bound by the bytes of w, with the operations around them in a decode (k_multiply() in kernels.h).
 * product.cu has up to three rows of bfloat16, and is faster for one.
 *
 *   warp 8 (producer)           stages in shared memory           warpgroups 0, 1 (consumers)
 *
 *    one lane issues TMA copies  W  [0][1][2] .. [depth - 1]       mainloop, per stage:
 *    of W and X into stages  --> X  [0][1] .. [x_depth - 1]  -->     wait full, wgmma, arrive empty
 *        ^                          full / empty barriers                  |
 *        '----- a stage is loaded again when 8 warps have arrived ---'     |  partial sums
 *                                                                          v
 *    warps 9 .. 11: inverse norms of x (sums of squares),   -->  exchange: between warpgroups, with
 *    prefetch of constants                                         the other CTA of the cluster
 *                                                                          |
 *                                                                          v
 *                                           epilogue: norm, scales, bias, gate or residual
 *                                           (sm90_product_end.cuh) -->  y, normed, sums_out
 *
 * Split. Rows of w are the M = 64 of a wgmma, rows of x its N. Rows of w are cut into tiles so that
 * all CTAs have the same number: for 8B's matrices a CTA has one tile of 32, 48 or 224 rows, of 1,
 * 2 or 4 blocks of at most 64; the accumulators beyond a block's rows are not used. So K (n_in)
 * need not be split; but if rows of x would be read through L2 too often, two CTAs of a cluster
 * share a tile twice as high, each with half of n_in (split-K). The output matrix has several tiles
 * per CTA; the last one is lower, so that all CTAs have the same number of rows.
 *
 * One warp loads, two warpgroups multiply: with tiles of one block each takes every second stage,
 * with others every second block. Three more warps add the squares of RMS norm.
 *
 * Shared memory: stages of w [rows of a block / 8][slabs][8][128 bytes] (a slab is 64 of n_in, 128
 * with e4m3), so that one copy reads 8 rows x 1 KB before the next 8 (with one slab after another
 * it was slower by a sixth, because of memory pages), and stages of x [slabs][rows of x, rounded up
 * to 8][128 bytes], with e4m3 twice as many slabs; both with 128-byte swizzle, as wgmma reads them.
 * In the epilogue of a CTA's only tile, its sums reuse the stages.
 *
 * e4m3 goes through registers, where it becomes float16: wgmma can take its first operand from
 * there. x is float16 then, its pairs in the order in which ldmatrix gives those of w (K_HALF_AT).
 * Bytes with a sign become bfloat16 there; w has that order itself (K_BYTE_AT).
 *
 * The first stages are loaded before the previous kernel has ended, but not all, because x waits in
 * the same queue. The numbers that loops and epilogues need are in registers by then (steady()).
 * The order of summation depends on the shape and on the bucket of n. */
#include "kernels/product_ring.h"
#include "kernels/sm90_product_codes.cuh"
#include "kernels/sm90_product_end.cuh"

#define THREADS 384 /* two warpgroups of consumers; a producer warp; three helper warps */

/* --- the producer ----------------------------------------------------------------------------- */

/* Copy slabs of rows of w. Weights are read once per step: evict first. */
static __device__ inline void wide_copy_w(void *to, const CUtensorMap *map, int row, int slab,
                                          bool by_eight, uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_addr(to)),
                 "l"(map), "r"(0), "r"(by_eight ? 0 : row), "r"(slab), "r"(by_eight ? row / 8 : 0),
                 "r"(shared_addr(bar)), "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* The work of a CTA: its first tile, and its part of n_in. */
struct work {
    int tile;
    int first, last; /* slabs of this CTA */
};

/* Barriers of the stages of w [depth] and of x [x_depth]: full and empty. */
struct barriers {
    uint64_t *full, *empty, *x_full, *x_empty;
};

/* The row of w where block b of a tile begins. TAILS: the tile may be one of the lower ones at the
 * end. */
template <int MB, bool TAILS>
static __device__ inline int wide_block_row(int tile, int b, const product_cut &c)
{
    const int half = MB / 2;

    if (TAILS && tile >= c.n_whole)
        return c.n_whole * c.rows + (tile - c.n_whole) * c.tail_rows + b * c.tail_rows / MB;
    if (MB == 1 || !c.gated)
        return tile * c.rows + b * c.block_rows;
    return tile * (c.rows / 2) + (b >= half ? c.n_out / 2 - half * c.block_rows : 0) +
           b * c.block_rows;
}

/* Load the next stage of x. */
static __device__ inline void wide_load_x(char *shared, const barriers &bars,
                                          const CUtensorMap *map, ring_step &x, ring_stage &to,
                                          const work &k, const product_cut &c)
{
    barrier_wait(&bars.x_empty[to.at], to.parity);
    barrier_expect(&bars.x_full[to.at], c.x_copied);
    tensor_load_3d(shared + c.x_at + to.at * c.x_bytes, map, &bars.x_full[to.at], 0, 0,
                   x.slab * c.x_slabs);
    ring_next(&to, 1, c.x_depth);
    ring_next_step(&x, k.first, k.last, c.box, c.n_groups);
}

/* Wait for the previous launch, and let the next one begin. */
static __device__ inline void wide_let_next_begin(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Before the previous launch has ended: initialise the barriers, and load the first stages of w.
 * Each warp does some of the stages, because an initialisation takes 30 cycles and a copy 100, and
 * nothing is read until then. */
template <int MB, wide_form FORM>
static __device__ inline void wide_begin_stages(char *shared, const barriers &bars,
                                                const CUtensorMap *map, const work &k,
                                                const wide_args &a, int warp)
{
    const product_cut &cut = a.c;

#pragma unroll 1
    for (int i = warp; i < cut.depth; i += THREADS / 32) {
        if (leads()) {
            barrier_init(&bars.full[i], 1);
            barrier_init_done();
            fence_async();
        }
        __syncwarp();
        if (leads()) {
            if (i < cut.first_stages) {
                if (WIDE_RECORDS(FORM)) {
                    codes_load_strips(shared + i * cut.stage_bytes, a.codes,
                                      wide_block_row<MB, false>(k.tile, i % MB, cut),
                                      k.first + i / MB * cut.box, cut, &bars.full[i]);
                } else {
                    barrier_expect(&bars.full[i], cut.stage_bytes);
                    wide_copy_w(shared + i * cut.stage_bytes, map,
                                wide_block_row<MB, false>(k.tile, i % MB, cut),
                                k.first + i / MB * cut.box, cut.rows_by_eight, &bars.full[i]);
                }
            }
            barrier_init(&bars.empty[i], WORKERS / 32);
        }
    }
    if (leads()) {
#pragma unroll 1
        for (int i = warp; i < cut.x_depth; i += THREADS / 32) {
            barrier_init(&bars.x_full[i], 1);
            barrier_init(&bars.x_empty[i], WORKERS / 32);
        }
        barrier_init_done();
        fence_async();
    }
}

/* The fields of the cut that the producer's loop reads, in registers. */
static __device__ inline product_cut wide_steady_cut(const product_cut &of)
{
    product_cut cut = of;

    cut.depth = steady(cut.depth);
    cut.stage_bytes = steady(cut.stage_bytes);
    cut.box = steady(cut.box);
    cut.rows = steady(cut.rows);
    cut.block_rows = steady(cut.block_rows);
    cut.n_out = steady(cut.n_out);
    cut.gated = steady(cut.gated);
    cut.x_depth = steady(cut.x_depth);
    cut.x_bytes = steady(cut.x_bytes);
    cut.x_copied = steady(cut.x_copied);
    cut.x_at = steady(cut.x_at);
    cut.x_slabs = steady(cut.x_slabs);
    cut.n_tiles = steady(cut.n_tiles);
    cut.n_groups = steady(cut.n_groups);
    cut.rows_by_eight = steady(cut.rows_by_eight);
    return cut;
}

/* By one lane: load all blocks of this CTA after the first stages, with a stage of x before each
 * step of w. Returns the stage that would be loaded next. */
template <int MB, bool TAILS, wide_form FORM>
static __device__ ring_stage wide_load_all(char *shared, const barriers &bars,
                                           const CUtensorMap *w_map, const CUtensorMap *tail_map,
                                           const CUtensorMap *x_map, const work &k,
                                           const wide_codes &codes, const product_cut &c)
{
    ring_step w = {k.tile, k.first}, x = w;
    ring_stage to = {0, 1}, x_to = {0, 1};
    int w_steps = c.first_stages / MB, x_steps = 0;

    tensor_prefetch(x_map);
    ring_next(&to, c.first_stages, c.depth);
    for (int i = 0; i < w_steps; i++)
        ring_next_step(&w, k.first, k.last, c.box, c.n_groups);
    wide_let_next_begin();
    for (int block = c.first_stages % MB; w.tile < c.n_tiles; block = 0, w_steps++) {
        for (; ring_x_is_due(x_steps, w_steps); x_steps++)
            wide_load_x(shared, bars, x_map, x, x_to, k, c);
        for (; block < MB; block++) {
            bool tail = TAILS && w.tile >= c.n_whole;

            barrier_wait(&bars.empty[to.at], to.parity);
            if (WIDE_RECORDS(FORM)) {
                codes_load_strips(shared + to.at * c.stage_bytes, codes,
                                  wide_block_row<MB, TAILS>(w.tile, block, c), w.slab, c,
                                  &bars.full[to.at]);
                ring_next(&to, 1, c.depth);
                continue;
            }
            barrier_expect(&bars.full[to.at],
                           tail ? c.stage_bytes / c.rows * c.tail_rows : c.stage_bytes);
            wide_copy_w(shared + to.at * c.stage_bytes, tail ? tail_map : w_map,
                        wide_block_row<MB, TAILS>(w.tile, block, c), w.slab, c.rows_by_eight,
                        &bars.full[to.at]);
            ring_next(&to, 1, c.depth);
        }
        ring_next_step(&w, k.first, k.last, c.box, c.n_groups);
    }
    while (x.tile < c.n_tiles)
        wide_load_x(shared, bars, x_map, x, x_to, k, c);
    return to;
}

/* --- the consumers' mainloop ------------------------------------------------------------------ */

/* The numbers of a warpgroup's mainloop, in registers. Addresses are in shared memory. */
struct rings {
    uint32_t stages, x_stages, stage_bytes, x_bytes;
    uint32_t full, x_full; /* the first barriers; the empty ones are EMPTY_AT bytes further on */
    int depth, x_depth;
    int n_steps, box, last_box; /* steps per tile; slabs of one, and of the last */
    uint32_t w_rows, x_rows;    /* upper half of the operands' descriptors: from eight rows to the
                                 * next */
    uint32_t slab, x_slab;      /* from a slab to the next, in units of 16 bytes */
};

#define EMPTY_AT (CUT_DEPTH_MAX * 8)

/* The numbers of the mainloop are computed once, before anything waits. */
static __device__ inline rings wide_rings_of(const product_cut &c, const char *shared,
                                             const barriers &bars, const work &k)
{
    int n = k.last - k.first, steps = (n + c.box - 1) / c.box;
    rings rings_now;

    rings_now.stages = steady(shared_addr(shared));
    rings_now.x_stages = steady(shared_addr(shared + c.x_at));
    rings_now.stage_bytes = steady((uint32_t)c.stage_bytes);
    rings_now.x_bytes = steady((uint32_t)c.x_bytes);
    rings_now.full = steady(shared_addr(bars.full));
    rings_now.x_full = steady(shared_addr(bars.x_full));
    rings_now.depth = steady(c.depth);
    rings_now.x_depth = steady(c.x_depth);
    rings_now.n_steps = steady(steps);
    rings_now.box = steady(c.box);
    rings_now.last_box = steady(n - (steps - 1) * c.box);
    rings_now.w_rows = steady((uint32_t)(operand(NULL, c.group_bytes, 0) >> 32));
    rings_now.x_rows = steady((uint32_t)(operand(NULL, 8 * CUT_SLAB, 0) >> 32));
    rings_now.slab = steady((uint32_t)c.slab_bytes / 16);
    rings_now.x_slab = steady((uint32_t)(c.x_rows * CUT_SLAB / 16));
    return rings_now;
}

/* Wait for stages of the other warpgroup and release them, too: a stage is loaded again when both
 * warpgroups have seen it full. Stages fill out of order, and a parity distinguishes only two
 * consecutive rounds: a warpgroup that is ahead would take a stage for full that the other one
 * still waits for, and a slower one would wait for a round that is over. */
static __device__ inline void wide_pass_stages(const rings &r, ring_stage &from, int n)
{
    for (; n > 0; n--) {
        barrier_wait(r.full + from.at * 8, from.parity);
        if (leads()) /* all lanes have seen it, because the election waits for them */
            barrier_arrive(r.full + EMPTY_AT + from.at * 8);
        ring_next(&from, 1, r.depth);
    }
}

/* A descriptor from its two halves. */
static __device__ __forceinline__ uint64_t wide_whole(uint32_t upper, uint32_t lower)
{
    return (uint64_t)upper << 32 | lower;
}

/* Multiply a stage of a block by x, in groups of 64 elements of n_in; addresses are in units of 16
 * bytes. */
template <int N>
static __device__ __forceinline__ void wide_multiply_bf16(float (&acc)[SUMS(N)][N / 2], uint32_t w,
                                                          uint32_t x, int n_slabs, const rings &r)
{
#pragma unroll 1
    for (int s = 0; s < n_slabs; s++) {
        keep(acc[0]), keep(acc[SUMS(N) - 1]);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_rows(acc[i % SUMS(N)], wide_whole(r.w_rows, w + 2 * i),
                          wide_whole(r.x_rows, x + 2 * i), 1);
        warpgroup_commit();
        w += r.slab;
        x += r.x_slab;
    }
    warpgroup_wait<0>();
    keep(acc[0]), keep(acc[SUMS(N) - 1]);
}

/* Widen four e4m3 of a word to two pairs of float16, exactly. */
static __device__ inline void wide_widen(uint32_t *low, uint32_t *high, uint32_t four)
{
    asm("{\n"
        ".reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n"
        "}"
        : "=r"(*low), "=r"(*high)
        : "r"(four));
}

/* Four bytes with a sign as pairs of bfloat16, each divided by SIGNED_UNIT. A byte without sign in
 * the low half of a bfloat16 is byte * 2^-133 (packed.cuh). */
#define SIGNED_UNIT 64.0f

static __device__ inline void wide_widen_signed(uint32_t *low, uint32_t *high, uint32_t four)
{
    const uint32_t power = 0x7f007f00U, less = 0xc000c000U; /* 2^127, -128 / 64 */
    uint32_t bytes = four ^ 0x80808080U;

    *low = codes_fused(__byte_perm(bytes, 0, 0x4140), power, less);
    *high = codes_fused(__byte_perm(bytes, 0, 0x4342), power, less);
}

/* Multiply 64 elements of n_in; w is widened already. */
template <int N, wide_form FORM>
static __device__ __forceinline__ void wide_multiply_half_slab(float (&acc)[SUMS(N)][N / 2],
                                                               uint32_t (&a)[4][4], uint32_t x,
                                                               const rings &r)
{
    keep(a), keep(acc[0]), keep(acc[SUMS(N) - 1]);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == WIDE_SIGNED)
            multiply_rows(acc[i % SUMS(N)], a[i], wide_whole(r.x_rows, x + 2 * i), 1);
        else
            multiply_half_rows(acc[i % SUMS(N)], a[i], wide_whole(r.x_rows, x + 2 * i), 1);
    }
    warpgroup_commit();
}

/* Load 64 elements of e4m3 of a warp's 16 rows: [8 rows, the next 8, both again 16 elements on]. */
static __device__ __forceinline__ void wide_load_half_slab(uint32_t (&r)[2][4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[i][0]), "=r"(r[i][1]), "=r"(r[i][2]), "=r"(r[i][3])
                     : "r"(at ^ i * 32)
                     : "memory");
}

/* Widen the 64 elements to operands of four products: with the order of x, the pairs of a word are
 * those that a lane needs. */
template <wide_form FORM>
static __device__ __forceinline__ void wide_widen_half_slab(uint32_t (&a)[4][4],
                                                            const uint32_t (&r)[2][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == WIDE_SIGNED) {
            wide_widen_signed(&a[i][0], &a[i][2], r[i / 2][i % 2 * 2]);
            wide_widen_signed(&a[i][1], &a[i][3], r[i / 2][i % 2 * 2 + 1]);
            continue;
        }
        wide_widen(&a[i][0], &a[i][2], r[i / 2][i % 2 * 2]);
        wide_widen(&a[i][1], &a[i][3], r[i / 2][i % 2 * 2 + 1]);
    }
}

/* Multiply a stage of e4m3, or of bytes, in two groups per slab: one group is loaded and one
 * widened while products run. Every group is waited for, else ptxas lets none run beside other
 * code. `at` is this lane's address, x is in units of 16 bytes. */
template <int N, wide_form FORM>
static __device__ __forceinline__ void wide_multiply_e4m3(float (&acc)[SUMS(N)][N / 2], uint32_t at,
                                                          uint32_t x, int n_slabs, const rings &r)
{
    uint32_t a[2][4][4], raw[2][4];

    wide_load_half_slab(raw, at);
#pragma unroll 1
    for (int s = 0; s < n_slabs; s++) {
        wide_widen_half_slab<FORM>(a[0], raw);
        wide_load_half_slab(raw, at ^ 64);
        wide_multiply_half_slab<N, FORM>(acc, a[0], x, r);
        x += r.x_slab;
        warpgroup_wait<1>();
        wide_widen_half_slab<FORM>(a[1], raw);
        at += r.slab * 16;
        if (s + 1 < n_slabs)
            wide_load_half_slab(raw, at);
        wide_multiply_half_slab<N, FORM>(acc, a[1], x, r);
        x += r.x_slab;
        warpgroup_wait<1>();
    }
    warpgroup_wait<0>();
    keep(acc[0]), keep(acc[SUMS(N) - 1]);
}

/* The offset in a stage of e4m3 where this lane begins: eight lanes give the addresses of a matrix,
 * chunk 0 or 1 of rows or of those 8 below. */
static __device__ inline uint32_t wide_lane_at(const product_cut &c)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;

    return (uint32_t)((warp * 2 + lane / 8 % 2) * c.group_bytes + lane % 8 * CUT_SLAB +
                      (lane / 16 ^ lane % 8) * 16);
}

/* The mainloop over a tile: acc gets this warpgroup's sums. With one block it takes every second
 * stage, with several every second block. */
template <int N, int MB, wide_form FORM>
static __device__ __forceinline__ void wide_multiply_tile(
    float (&acc)[RING_OWN_BLOCKS(MB)][SUMS(N)][N / 2], const rings &r, ring_stage &from,
    ring_stage &x_from, uint32_t lane, int group, const code_form &form)
{
    const int OWN = RING_OWN_BLOCKS(MB);

#pragma unroll
    for (int block = 0; block < OWN; block++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[block][0][i] = acc[block][SUMS(N) - 1][i] = 0.0f;
    }
    for (int left = r.n_steps, turn = 0; left > 0; left--, turn ^= 1) {
        int n_slabs = left > 1 ? r.box : r.last_box;

        barrier_wait(r.x_full + x_from.at * 8, x_from.parity);
        if (MB == 1 && ring_is_others(turn, group)) {
            wide_pass_stages(r, from, 1);
            if (leads())
                barrier_arrive(r.x_full + EMPTY_AT + x_from.at * 8);
            ring_next(&x_from, 1, r.x_depth);
            continue;
        }
#pragma unroll
        for (int block = 0; block < OWN; block++) {
            uint32_t w, x = (r.x_stages + (uint32_t)x_from.at * r.x_bytes) / 16;

            wide_pass_stages(r, from, ring_n_before(MB, group));
            w = r.stages + (uint32_t)from.at * r.stage_bytes;
            barrier_wait(r.full + from.at * 8, from.parity);
            if constexpr (WIDE_INTEGERS(FORM) && N <= CODES_FEW)
                codes_multiply_few<N, WIDE_IS_WHOLE(FORM), WIDE_BITS(FORM)>(
                    acc[block][0], w + lane, x, n_slabs, r.slab * 16, r.x_slab, form);
            else if constexpr (WIDE_INTEGERS(FORM))
                codes_multiply<N, WIDE_IS_WHOLE(FORM), WIDE_BITS(FORM)>(
                    acc[block][0], w + lane, x, n_slabs, r.slab * 16, r.x_slab, r.x_rows, form);
            else if constexpr (FORM == WIDE_FLOATS && N <= CODES_FEW)
                codes_multiply_few_floats<N>(acc[block], w + lane, x, n_slabs, r.slab * 16,
                                             r.x_slab, form);
            else if constexpr (FORM == WIDE_FLOATS)
                codes_multiply_floats<N>(acc[block], w + lane, x, n_slabs, r.slab * 16, r.x_slab,
                                         r.x_rows, form);
            else if constexpr (FORM == WIDE_E4M3 || FORM == WIDE_SIGNED)
                wide_multiply_e4m3<N, FORM>(acc[block], w + lane, x, n_slabs, r);
            else
                wide_multiply_bf16<N>(acc[block], w / 16, x, n_slabs, r);
            if (leads()) {
                barrier_arrive(r.full + EMPTY_AT + from.at * 8);
                if (ring_gives_x(MB, block))
                    barrier_arrive(r.x_full + EMPTY_AT + x_from.at * 8);
            }
            ring_next(&from, 1, r.depth);
            wide_pass_stages(r, from, ring_n_after(MB, group));
        }
        ring_next(&x_from, 1, r.x_depth);
    }
#pragma unroll
    for (int block = 0; block < OWN && SUMS(N) == 2; block++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[block][0][i] += acc[block][SUMS(N) - 1][i];
    }
}

/* --- the helper warps ------------------------------------------------------------------------- */

/* `unit` / sqrt(mean square) of the rows of x; by three warps, each several rows at a time. These
 * reads are queued after all copies of weights in flight, two microseconds late: so as much as
 * possible is requested at once. */
static __device__ void wide_find_inverse(float *inverse, const wide_args &a, float unit, int helper)
{
    const int ROWS = 8, FOURS = 2; /* rows that a lane requests at a time; fours per row */
    int lane = threadIdx.x % 32, n_sums = a.p.sums_in == NULL ? 0 : a.p.n_sums;
    float share = 1.0f / (float)a.c.n_in;

    for (int first = helper; first < a.n; first += 3 * ROWS) {
        float sum[ROWS] = {};

        for (int from = lane * 4; from < n_sums; from += FOURS * 128) {
            float4 four[ROWS][FOURS];

#pragma unroll
            for (int i = 0; i < ROWS * FOURS; i++) {
                int row = first + i / FOURS * 3, at = from + i % FOURS * 128;

                four[i / FOURS][i % FOURS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (row < a.n && at < n_sums)
                    four[i / FOURS][i % FOURS] = *(const float4 *)(a.p.sums_in + row * n_sums + at);
            }
#pragma unroll
            for (int i = 0; i < ROWS * FOURS; i++) {
                float4 x = four[i / FOURS][i % FOURS];

                sum[i / FOURS] += (x.x + x.y) + (x.z + x.w);
            }
        }
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) {
#pragma unroll
            for (int row_idx = 0; row_idx < ROWS; row_idx++)
                sum[row_idx] += __shfl_xor_sync(~0U, sum[row_idx], apart);
        }
#pragma unroll
        for (int row_idx = 0; row_idx < ROWS; row_idx++) {
            if (first + 3 * row_idx < a.n)
                inverse[first + 3 * row_idx] =
                    n_sums == 0 ? unit : unit * rsqrtf(sum[row_idx] * share + a.p.eps);
        }
    }
}

/* Prefetch to the L2 cache: the constants of the first tile's epilogue that nothing has read
 * yet. */
static __device__ void wide_fetch_constants(const wide_args &a, int tile, int rank)
{
    int lane = threadIdx.x % 32, own = a.c.rows / a.c.n_split, row = tile * a.c.rows + rank * own;

    if (a.p.kind == K_PRODUCT_RESIDUAL && lane * 64 < own && row + lane * 64 < a.c.n_out)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const k_bf16 *)a.p.norm + row + lane * 64));
}

/* --- the kernel ------------------------------------------------------------------------- */

/* The state that the warps of a CTA share. */
struct cta {
    char *shared;
    float *inverse, *scales;
    barriers bars;
    exchange x;
    work k;
    int warp, rank;
};

/* A warpgroup's position in the rings. */
struct places {
    rings r;
    uint32_t lane; /* with e4m3: offset in a stage where it begins */
    bool straight; /* K_PRODUCT_GATED of four blocks: end_write_gated() is its epilogue */
    exchange x_sums;
    ring_stage w, x;
    code_form form;
};

/* After a CTA's first tile: the inverse norms are ready. All threads have read the stages, which
 * the epilogue of a CTA's only tile reuses. */
static __device__ inline void wide_join_consumers(const cta &own, int tile)
{
    if (tile == own.k.tile)
        named_sync(1, THREADS - 32);
}

/* A tile of one block: mainloop and epilogue. */
template <int N, int KIND, wide_form FORM>
static __device__ inline void wide_work_block(const cta &own, const wide_args &a, const facts &t,
                                              int tile, int group, places &at)
{
    float acc[1][SUMS(N)][N / 2];
    share s = end_share_of<N>(a, t, own.shared, tile, own.rank, own.warp);
    first_patches<N> early =
        end_begin_patches<N, KIND, WIDE_SCALED(FORM)>(t, s, own.warp, own.warp / DEALT(N));

    wide_multiply_tile<N, 1, FORM>(acc, at.r, at.w, at.x, at.lane, group, at.form);
    wide_join_consumers(own, tile);
    end_block<N, KIND, WIDE_SCALED(FORM)>(acc[0][0], t, s, early, own.warp, own.rank, at.x_sums);
}

/* A tile of several blocks: mainloop and epilogue. */
template <int N, int MB, int KIND, wide_form FORM>
static __device__ inline void wide_work_blocks(const cta &own, const wide_args &a, const facts &t,
                                               int tile, int group, places &at)
{
    const int OWN = RING_OWN_BLOCKS(MB);
    const product_cut &cut = a.c;
    outputs o = end_outputs_of(a, tile, own.rank);
    float acc[OWN][SUMS(N)][N / 2],
        scale = WIDE_SCALED(FORM) ? end_scale_of(a, tile, threadIdx.x) : 1.0f;
    fetched f[TOGETHER(N)];
    gate_reads gates;

    if (KIND == K_PRODUCT_GATED && MB == 4)
        gates = end_read_gate<WIDE_SCALED(FORM)>(a, tile, group);
    if (KIND == K_PRODUCT_RESIDUAL)
        end_fetch_first<N>(f, a, o);
    wide_multiply_tile<N, MB, FORM>(acc, at.r, at.w, at.x, at.lane, group, at.form);
    wide_join_consumers(own, tile);
    if (KIND == K_PRODUCT_FLOAT && t.n_split == 1) {
        end_write_floats<N, MB, OWN, WIDE_SCALED(FORM)>(acc, t, tile, group);
        return;
    }
    if constexpr (KIND == K_PRODUCT_GATED && MB == 4) {
        if (at.straight) {
            end_write_gated<N>(acc, t, gates, group);
            named_sync(2, WORKERS);
            end_copy_gated<N>(t, tile);
            if (cut.n_tiles > cut.n_groups)
                named_sync(2, WORKERS);
            return;
        }
    }
    if (WIDE_SCALED(FORM))
        own.scales[threadIdx.x] = scale;
    for (int first = 0; first < a.n; first += cut.round) {
        end_store_sums<N, MB, OWN>(t.red + group * cut.block_rows, acc, first, cut.round,
                                   cut.block_rows);
        if (cut.n_split > 1)
            cluster_sync();
        else
            named_sync(2, WORKERS);
        end_finish<N, KIND, WIDE_SCALED(FORM)>(t.red + own.rank * o.own, a, t, t.inverse,
                                               own.scales + own.rank * o.own, o, cut.n_split > 1,
                                               first, min(first + cut.round, a.n), f);
        if (cut.n_split == 1)
            named_sync(2, WORKERS);
    }
}

/* The producer warp: one lane loads all stages. Then, in a pair, the other CTA may write its sums
 * to the stage that would be loaded next. */
template <int MB, int KIND, wide_form FORM>
static __device__ __forceinline__ void wide_produce(const cta &own, const wide_args &a,
                                                    const CUtensorMap *w_map,
                                                    const CUtensorMap *tail_map,
                                                    const CUtensorMap *x_map)
{
    constexpr bool TAILS = MB != 1 && KIND == K_PRODUCT_FLOAT && !WIDE_RECORDS(FORM);
    const product_cut &c = a.c;
    ring_stage next = {};
    char *stages = steady_shared(own.shared);
    uint64_t *bar = steady_shared(own.bars.full);
    const barriers bars = {bar, bar + CUT_DEPTH_MAX, bar + 2 * CUT_DEPTH_MAX,
                           bar + 3 * CUT_DEPTH_MAX};
    work k = {own.k.tile, own.k.first, steady(own.k.last)};
    product_cut cut = wide_steady_cut(c);

    if (leads())
        next =
            wide_load_all<MB, TAILS, FORM>(stages, bars, w_map, tail_map, x_map, k, a.codes, cut);
    __syncwarp();
    if (c.n_split > 1)
        cluster_wait();
    if (MB == 1 && c.n_split > 1 && leads()) {
        barrier_wait(&own.bars.empty[next.at], next.parity);
        end_arrive_remote(end_remote_addr(own.x.ready, own.rank ^ 1));
    }
}

/* The helper warps: the inverse norms, for which the consumers wait before the first epilogue. */
template <wide_form FORM>
static __device__ __forceinline__ void wide_help(const cta &own, const wide_args &a)
{
    wide_fetch_constants(a, own.k.tile, own.rank);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (a.c.n_split > 1)
        cluster_wait();
    wide_find_inverse(own.inverse, a, FORM == WIDE_SIGNED ? SIGNED_UNIT : 1.0f,
                      own.warp - WORKERS / 32 - 1);
    named_arrive(1, THREADS - 32);
}

/* N: columns computed; MB: blocks per tile; KIND: of product; FORM: of w. */
template <int N, int MB, int KIND, wide_form FORM>
static __global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap tail_map, const __grid_constant__ wide_args a)
{
    extern __shared__ __align__(1024) char shared[];
    const product_cut &cut = a.c;
    float *inverse = (float *)(shared + cut.rest_at), *scales = inverse + 64;
    uint64_t *first_bar = (uint64_t *)(scales + CUT_ROWS_MAX);
    cta own = {shared,
               inverse,
               scales,
               {first_bar, first_bar + CUT_DEPTH_MAX, first_bar + 2 * CUT_DEPTH_MAX,
                first_bar + 3 * CUT_DEPTH_MAX},
               {first_bar + 4 * CUT_DEPTH_MAX, first_bar + 4 * CUT_DEPTH_MAX + 1},
               {},
               warp_number(),
               cut.n_split > 1 ? (int)cluster_rank() : 0};
    int warp = own.warp;
    bool pushes = MB == 1 && cut.n_split > 1;

    if (!WIDE_RECORDS(FORM) && warp == THREADS / 32 - 1 && leads())
        tensor_prefetch(&w_map);
    own.k.tile = blockIdx.x >> (cut.n_split - 1); /* 1 or 2 */
    own.k.first = own.rank * cut.n_slabs >> (cut.n_split - 1);
    own.k.last = (own.rank + 1) * cut.n_slabs >> (cut.n_split - 1);
    wide_begin_stages<MB, FORM>(shared, own.bars, &w_map, own.k, a, warp);
    if (pushes && warp == THREADS / 32 - 1 && leads()) {
        barrier_init(own.x.ready, 1);
        barrier_init(own.x.met, 1);
        barrier_init_done();
    }
    __syncthreads();
    if (pushes && warp == THREADS / 32 - 1 && leads())
        barrier_expect(own.x.met, end_sent_bytes(cut));
    if (cut.n_split > 1)
        cluster_arrive_relaxed(); /* waited for before the other CTA's shared memory is written */
    if (warp == WORKERS / 32) {
        wide_produce<MB, KIND, FORM>(own, a, &w_map, &tail_map, &x_map);
    } else if (warp > WORKERS / 32) {
        wide_help<FORM>(own, a);
    } else {
        facts t = end_facts_of<KIND, WIDE_SCALED(FORM)>(
            a, inverse,
            (float *)(shared + (MB == 1 && cut.n_split > 1 ? cut.own_at[own.rank] : cut.red_at)));
        places at = {wide_rings_of(cut, shared, own.bars, own.k),
                     WIDE_RECORDS(FORM) ? codes_lane_at(cut) : wide_lane_at(cut),
                     steady(cut.n_split == 1 && cut.rows_by_eight),
                     {steady_shared(own.x.ready), steady_shared(own.x.met)},
                     {},
                     {},
                     WIDE_RECORDS(FORM) ? codes_form_of(a.codes) : code_form{}};

        asm volatile("griddepcontrol.wait;" ::: "memory");
        if (cut.n_split > 1)
            cluster_wait();
        for (int tile = own.k.tile; tile < cut.n_tiles; tile += cut.n_groups) {
            if constexpr (MB == 1)
                wide_work_block<N, KIND, FORM>(own, a, t, tile, warp / 4, at);
            else
                wide_work_blocks<N, MB, KIND, FORM>(own, a, t, tile, warp / 4, at);
        }
    }
    if (cut.n_split == 1 || pushes) /* a CTA that sums are sent to has waited for them */
        return;
    if (warp >= WORKERS / 32)
        cluster_sync();
    /* The others may still read our sums; nothing written here is waited for. */
    cluster_arrive_relaxed();
    cluster_wait();
}

/* --- launching -------------------------------------------------------------------------- */

/* Tensor maps of w, of its lower tiles, and of x. */
struct maps {
    CUtensorMap w, tail, x;
};

/* One copy reads a whole stage: [8 rows][slabs] by groups of eight rows, or [rows][slabs] if the
 * rows of w are not a multiple of eight. */
static int wide_encode_maps(maps *m, const wide_args &a)
{
    const product_cut &cut = a.c;
    cuuint32_t cols = (cuuint32_t)product_cut_slab_cols(&a.p.w->format);
    bool is_bytes = k_type_bits(a.p.w->format.elem) == 8;
    cuuint64_t row_bytes = (cuuint64_t)cut.n_in * CUT_SLAB / cols;
    cuuint64_t sizes[4] = {cols, 8, (cuuint64_t)cut.n_slabs, (cuuint64_t)cut.n_out / 8};
    cuuint64_t strides[3] = {row_bytes, CUT_SLAB, 8 * row_bytes};
    cuuint32_t box[4] = {cols, 8, (cuuint32_t)cut.box, (cuuint32_t)cut.block_rows / 8};
    cuuint64_t x_sizes[3] = {CUT_SLAB_COLS, (cuuint64_t)a.n,
                             (cuuint64_t)(cut.n_slabs * cut.x_slabs)};
    cuuint64_t x_strides[2] = {(cuuint64_t)cut.n_in * 2, CUT_SLAB};
    cuuint32_t x_box[3] = {CUT_SLAB_COLS, (cuuint32_t)cut.x_rows,
                           (cuuint32_t)(cut.box * cut.x_slabs)};

    if (k_format_is_packed(&a.p.w->format)) /* read without a map */
        return encode_boxes(&m->x, false, (void *)a.p.x, 3, x_sizes, x_strides, x_box);
    if (!cut.rows_by_eight) {
        sizes[1] = (cuuint64_t)cut.n_out;
        sizes[3] = 1;
        box[1] = (cuuint32_t)cut.block_rows;
        box[3] = 1;
    }
    if (encode_boxes(&m->w, is_bytes, a.p.w->data, 4, sizes, strides, box) != 0)
        return -1;
    m->tail = m->w;
    box[3] = (cuuint32_t)(cut.tail_rows / cut.n_blocks) / 8;
    if (cut.tail_rows > 0 &&
        encode_boxes(&m->tail, is_bytes, a.p.w->data, 4, sizes, strides, box) != 0)
        return -1;
    return encode_boxes(&m->x, false, (void *)a.p.x, 3, x_sizes, x_strides, x_box);
}

/* With split-K the two CTAs of a tile form a cluster. */
template <int N, int MB, int KIND, wide_form FORM>
static int wide_launch(const maps &m, const wide_args &a, k_stream stream)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute(wide_kernel<N, MB, KIND, FORM>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, a.c.smem) != cudaSuccess)
        return -1;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)a.c.n_split;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)(a.c.n_groups * a.c.n_split));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)a.c.smem;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = a.c.n_split > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, wide_kernel<N, MB, KIND, FORM>, m.w, m.x, m.tail, a) ==
                   cudaSuccess
               ? 0
               : -1;
}

template <int N, int MB, wide_form FORM>
static int wide_choose_kind(const maps &m, const wide_args &a, k_stream stream)
{
    switch (a.p.kind) {
    case K_PRODUCT_PLAIN: return wide_launch<N, MB, K_PRODUCT_PLAIN, FORM>(m, a, stream);
    case K_PRODUCT_FLOAT: return wide_launch<N, MB, K_PRODUCT_FLOAT, FORM>(m, a, stream);
    case K_PRODUCT_RESIDUAL: return wide_launch<N, MB, K_PRODUCT_RESIDUAL, FORM>(m, a, stream);
    case K_PRODUCT_GATED: {
        constexpr int BLOCKS = MB == 1 ? 2 : MB; /* gate and up */

        return wide_launch<N, BLOCKS, K_PRODUCT_GATED, FORM>(m, a, stream);
    }
    }
    return -1;
}

/* One kernel per number of blocks, so that the accumulators of each are in registers. */
template <int N, wide_form FORM>
static int wide_choose_blocks(const maps &m, const wide_args &a, k_stream stream)
{
    switch (a.c.n_blocks) {
    case 1: return wide_choose_kind<N, 1, FORM>(m, a, stream);
    case 2: return wide_choose_kind<N, 2, FORM>(m, a, stream);
    default: return wide_choose_kind<N, 4, FORM>(m, a, stream);
    }
}

template <int N> static int wide_choose(const maps &m, const wide_args &a, k_stream stream)
{
    if (a.p.w->format.elem == K_INT8)
        return wide_choose_blocks<N, WIDE_SIGNED>(m, a, stream);
    return k_format_reads_half(&a.p.w->format) ? wide_choose_blocks<N, WIDE_E4M3>(m, a, stream)
                                               : wide_choose_blocks<N, WIDE_PLAIN>(m, a, stream);
}

/* Plain bf16, and e4m3 or bytes with at most one scale per row. */
bool product_wide_takes(const struct k_matrix *w, int n)
{
    return (k_format_is_plain(&w->format) || k_format_is_by_row(&w->format, K_E4M3) ||
            k_format_is_by_row(&w->format, K_INT8)) &&
           w->n_in % product_cut_slab_cols(&w->format) == 0 && n >= 1 && n <= K_PRODUCT_ROWS_MAX;
}

/* One kernel per bucket of rows: the N of its wgmma is a template argument. */
int product_wide(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    maps tensor_maps = {};
    wide_args args = {};

    args.p = *p;
    args.scales = (const float *)p->w->scales;
    args.n = n;
    if ((p->sums_in != NULL && p->n_sums % 4 != 0) ||
        !product_cut_of(&args.c, p->w, p->kind, n, n_sms) ||
        wide_encode_maps(&tensor_maps, args) != 0)
        return -1;
    switch (args.c.columns) {
    case 8: return wide_choose<8>(tensor_maps, args, stream);
    case 16: return wide_choose<16>(tensor_maps, args, stream);
    case 32: return wide_choose<32>(tensor_maps, args, stream);
    case 48: return wide_choose<48>(tensor_maps, args, stream);
    default: return wide_choose<64>(tensor_maps, args, stream);
    }
}

template <int N> static int wide_choose_records(const maps &m, const wide_args &a, k_stream stream)
{
    if (a.p.w->format.elem == K_FLOAT4)
        return wide_choose_blocks<N, WIDE_FLOATS>(m, a, stream);
    if (a.p.w->format.elem == K_INT8)
        return a.codes.groups == 1 ? wide_choose_blocks<N, WIDE_WHOLE_BYTES>(m, a, stream)
                                   : wide_choose_blocks<N, WIDE_BYTES>(m, a, stream);
    return a.codes.groups == 1 ? wide_choose_blocks<N, WIDE_WHOLE>(m, a, stream)
                               : wide_choose_blocks<N, WIDE_CODES>(m, a, stream);
}

/* Codes in records, of more rows than product_packed.cu is fast for: buckets of 8, 16, 32, 64. */
int product_wide_packed(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    const int least = 49; /* the fewest rows of the bucket of 64 */
    maps tensor_maps = {};
    wide_args args = {};

    args.p = *p;
    args.scales = (const float *)p->w->scales; /* of floats */
    args.n = n;
    args.codes = codes_of(p->w);
    if (n > 32 && n < least)
        n = least;
    if ((p->sums_in != NULL && p->n_sums % 4 != 0) ||
        !product_cut_of(&args.c, p->w, p->kind, n, n_sms) ||
        wide_encode_maps(&tensor_maps, args) != 0)
        return -1;
    switch (args.c.columns) {
    case 8: return wide_choose_records<8>(tensor_maps, args, stream);
    case 16: return wide_choose_records<16>(tensor_maps, args, stream);
    case 32: return wide_choose_records<32>(tensor_maps, args, stream);
    case 64: return wide_choose_records<64>(tensor_maps, args, stream);
    }
    return -1;
}
