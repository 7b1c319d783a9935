/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts for many tokens with wgmma: one product for each expert, of the rows that are
 * routed to it, in one launch.
 *
 *   x [token] --> rows in the order of routes (gather)
 *
 *   warpgroup 0 (producer)            rings in shared memory       warpgroups 1 .. (consumers)
 *
 *    a lane of a warp: TMA       -->   W [0] .. [W_DEPTH - 1]  -->   wgmma: 64 rows of w each x
 *    copies of w; of another:    -->   X [0] .. [X_DEPTH - 1]        the routes of the tile
 *    of rows of x                           |                              |
 *        ^                                  |                              v
 *        '----------- empty barriers <------'          scale, bias, activation -> shared memory
 *                                                       -> out
 *
 * There are two forms. Wide: a tile is 128 rows of w and up to 256 routes of one expert (k_route()
 * lists these; the second 128 are skipped where there are none), and two warpgroups multiply.
 * Narrow, where experts have few routes on average: 256 rows of w, 32 or 64 routes at a time, and
 * four warpgroups (docs/kernels/experiments/experts-narrow.md).
 *
 * For the first product the rows are half gates and half their ups, in turns of 8, so that a gate
 * and its up are in one lane. There is one block per multiprocessor, which takes every so-many-th
 * tile; blocks that run together have the same routes and the same expert, so both are read from
 * the L2 cache. The producer goes on to the next tile while the consumers finish one.
 *
 * A launch of its own first copies the rows of x into the order of routes, where the TMA can read
 * them. (A producer that found them by index with cp.async took three times as long: the fence that
 * makes such a copy visible to wgmma waits for all other copies of its thread.) Both operands have
 * 128-byte rows with the TMA's swizzle.
 *
 * w is the first operand of wgmma. bfloat16 is read from shared memory. e4m3 goes through
 * registers, where it becomes bfloat16, which is exact; with scales of blocks it is multiplied by
 * the scale and rounded to bfloat16, as a dequantised matrix would be. ldmatrix gives a lane four
 * adjacent bytes, while the tensor core wants two and two that are 8 apart; therefore x has the
 * pairs of each 16 elements in the order of K_HALF_AT then: the gathered rows have it, and the
 * first product writes its outputs so.
 *
 * Sums are float32, in an order that depends on n_in alone: a route's bits do not depend on where
 * in a tile it is. */
#include "kernels/experts.cuh"
#include "kernels/mxfp4.cuh"
#include "kernels/product.cuh"

#define ROUTES       K_MIXING_TILE
#define NARROW       64 /* routes at a time in the narrow form */
#define NARROW_MEAN  48 /* routes of an expert, on average, up to which the narrow form runs */
#define SLAB         64 /* elements of n_in of a stage of x, and of a step */
#define CHUNK        64 /* routes that are written at a time */
#define OUT_PITCH    144
#define GATHERS      (132 * 16)           /* blocks that copy rows */
#define RECORD_WORDS (K_MXFP4_RECORD / 8) /* a box has at most 256 elements in a row */

static_assert(ROUTES == 256, "two halves of 128 columns");

/* The two forms, by the routes that are multiplied at a time. In the narrow one a step takes as
 * long as its latencies, not its products, so twice as many warps share a tile of twice the
 * rows. */
template <int FORMAT, int COLS> struct many_form {
    static const bool IS_WIDE = COLS == ROUTES, IS_PLAIN = FORMAT == EXPERTS_PLAIN;
    static const int GROUPS = IS_WIDE ? 2 : 4; /* warpgroups that multiply */
    static const int ROWS = GROUPS * 64;       /* of w, of a tile */
    static const int STRIPS = ROWS / 16;
    static const int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;
    static const int GIVEN = IS_WIDE ? 56 : 32, TAKEN = IS_WIDE ? 224 : 112; /* registers */
    /* More than the block has at its launch would never be given. */
    static_assert(128 * GIVEN + CONSUMERS * TAKEN <= THREADS * (65536 / THREADS / 8 * 8), "");
    static const int STEPS = IS_PLAIN ? 1 : 2;   /* of a stage of w */
    static const int X_ROWS = IS_WIDE ? 64 : 32; /* of a copy of x */
    /* Bytes of a stage of w: rows of 128 bytes, or as many strips of MXFP4 as have these rows. */
    static const int W_BYTES = FORMAT == EXPERTS_MXFP4 ? STRIPS * K_MXFP4_RECORD : ROWS * 128;
    static const int W_DEPTH = FORMAT == EXPERTS_MXFP4 ? (IS_WIDE ? 4 : 6)
                               : IS_WIDE               ? (IS_PLAIN ? 4 : 2)
                                                       : 4;
    static const int X_DEPTH = IS_WIDE ? (IS_PLAIN ? 4 : 5) : FORMAT == EXPERTS_MXFP4 ? 10 : 7;
};

template <int FORMAT, int COLS> struct many_shared {
    typedef many_form<FORMAT, COLS> form;
    char w[form::W_DEPTH][form::W_BYTES];
    __align__(1024) char x[form::X_DEPTH][COLS * 128];
    char out[form::GROUPS][CHUNK * OUT_PITCH];
    uint64_t w_full[form::W_DEPTH], w_empty[form::W_DEPTH];
    uint64_t x_full[form::X_DEPTH], x_empty[form::X_DEPTH];
};

struct many_args {
    struct experts_product p;
    int n_tiles; /* tiles of rows of w of an expert */
    int n_steps;
    enum experts_order order; /* of out */
};

/* A tile: places first .. first + n - 1 of an expert, and which rows of w. */
struct many_tile {
    int expert, first, n, part;
};

static __device__ inline many_tile many_tile_of(const many_args &a, int tile)
{
    int of_routes = tile / a.n_tiles;
    many_tile t;

    t.expert = __ldg(a.p.tiles + 1 + 2 * of_routes);
    t.first = __ldg(a.p.tiles + 2 + 2 * of_routes);
    t.n = min(__ldg(a.p.starts + t.expert + 1) - t.first, ROUTES);
    t.part = tile % a.n_tiles;
    return t;
}

/* --- the producer ----------------------------------------------------------------------------- */

/* Load elements at .. at + 63 of the rows of x of n places from `first` on. What other places hold
 * only reaches sums that are not used. */
template <int ROWS>
static __device__ inline void many_load_rows(char *to, const CUtensorMap *map, int first, int n,
                                             int at, uint64_t *full)
{
    n = (n + ROWS - 1) / ROWS;
    barrier_expect(full, n * ROWS * 128);
    for (int i = 0; i < n; i++)
        tensor_load_3d(to + i * ROWS * 128, map, full, at, first + i * ROWS, 0);
}

/* By one lane: the weights of all tiles of this block, once for each COLS routes of a tile. Rows
 * that a tile does not have are filled with zeros, or with rows of others, and not written. */
template <int FORMAT, int COLS>
static __device__ inline void many_produce_w(many_shared<FORMAT, COLS> &s, const CUtensorMap *map,
                                             const many_args &a, int n_all)
{
    typedef many_form<FORMAT, COLS> form;
    const int elems = FORMAT == EXPERTS_PLAIN ? 64 : 128;
    int n_stages = (a.n_steps + form::STEPS - 1) / form::STEPS;
    ring<form::W_DEPTH> w = {0, 1};

    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x) {
        const many_tile t = many_tile_of(a, tile);
        int n = n_stages * ((t.n + COLS - 1) / COLS);

        for (int i = 0; i < n; i++) {
            int stage = i % n_stages;

            barrier_wait(&s.w_empty[w.stage], w.parity);
            barrier_expect(&s.w_full[w.stage], form::W_BYTES);
            if (FORMAT == EXPERTS_MXFP4)
                tensor_load_3d(s.w[w.stage], map, &s.w_full[w.stage], stage * RECORD_WORDS,
                               t.part * form::STRIPS, t.expert);
            else
                tensor_load_5d(s.w[w.stage], map, &s.w_full[w.stage], stage * elems,
                               t.part * form::ROWS / (a.p.is_gated ? 16 : 8), t.expert);
            w.next();
        }
    }
}

/* By one lane of another warp: the rows of x of the same tiles. */
template <int FORMAT, int COLS>
static __device__ inline void many_produce_x(many_shared<FORMAT, COLS> &s, const CUtensorMap *map,
                                             const many_args &a, int n_all)
{
    typedef many_form<FORMAT, COLS> form;
    ring<form::X_DEPTH> x = {0, 1};

    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x) {
        const many_tile t = many_tile_of(a, tile);

        for (int from = 0; from < t.n; from += COLS) {
            for (int step = 0; step < a.n_steps; step++) {
                barrier_wait(&s.x_empty[x.stage], x.parity);
                many_load_rows<form::X_ROWS>(s.x[x.stage], map, t.first + from,
                                             min(t.n - from, COLS), step * SLAB,
                                             &s.x_full[x.stage]);
                x.next();
            }
        }
    }
}

/* --- the consumers' mainloop ------------------------------------------------------------------ */

/* The operand of a slab of x: its second part begins 128 rows further on. */
static __device__ __forceinline__ uint64_t many_x_operand(const char *x, int part, int k)
{
    return operand(x + part * 128 * 128 + k * 32, 1024, 0);
}

template <int FORMAT, int COLS> struct many_rings {
    ring<many_form<FORMAT, COLS>::W_DEPTH> w;
    ring<many_form<FORMAT, COLS>::X_DEPTH> x;
};

/* Sums of COLS routes: 64 rows of w of this warpgroup x 128 columns in each part, or 64. N of the
 * columns are computed. */
template <int COLS> struct many_sums {
    static const int PARTS = COLS / 128 > 0 ? COLS / 128 : 1;
    static const int WIDTH = COLS / PARTS / 2; /* floats of a thread in a part */
    float of[PARTS][WIDTH];
};

template <int N, int COLS> struct many_columns {
    static const int PARTS = N / 128 > 0 ? N / 128 : 1;
    static const int WIDTH = N / PARTS / 2;
    typedef float part[WIDTH];

    static __device__ __forceinline__ part &of(many_sums<COLS> &acc, int i)
    {
        return *(part *)acc.of[i];
    }
    static __device__ __forceinline__ void hold(many_sums<COLS> &acc)
    {
        keep(of(acc, 0)), keep(of(acc, PARTS - 1));
    }
};

template <int COLS> static __device__ __forceinline__ void many_clear(many_sums<COLS> &acc)
{
    const int WIDTH = many_sums<COLS>::WIDTH;

#pragma unroll
    for (int i = 0; i < many_sums<COLS>::PARTS * WIDTH; i++)
        acc.of[i / WIDTH][i % WIDTH] = 0.0f;
}

/* acc = 64 rows of w of this warpgroup x N routes, of bfloat16. A stage is given back
 * when the products of the next one have been issued and its own have ended. */
template <int N, int COLS>
static __device__ __forceinline__ void many_multiply_plain(many_sums<COLS> &acc,
                                                           many_shared<EXPERTS_PLAIN, COLS> &s,
                                                           many_rings<EXPERTS_PLAIN, COLS> &r,
                                                           int group, int n_steps)
{
    typedef many_columns<N, COLS> columns;
    many_rings<EXPERTS_PLAIN, COLS> before = r;

    many_clear(acc);
    for (int step = 0; step < n_steps; step++) {
        const char *w = s.w[r.w.stage] + group * 64 * 128, *x = s.x[r.x.stage];

        barrier_wait(&s.w_full[r.w.stage], r.w.parity);
        barrier_wait(&s.x_full[r.x.stage], r.x.parity);
        columns::hold(acc);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < columns::PARTS * 4; i++)
            multiply_rows(columns::of(acc, i / 4), operand(w + i % 4 * 32, 1024, 0),
                          many_x_operand(x, i / 4, i % 4), 1);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (step > 0 && leads()) {
            barrier_arrive(&s.w_empty[before.w.stage]);
            barrier_arrive(&s.x_empty[before.x.stage]);
        }
        before = r;
        r.w.next();
        r.x.next();
    }
    warpgroup_wait<0>();
    columns::hold(acc);
    if (leads()) {
        barrier_arrive(&s.w_empty[before.w.stage]);
        barrier_arrive(&s.x_empty[before.x.stage]);
    }
}

/* Two of e4m3, times a scale, as bfloat16. */
static __device__ inline uint32_t many_scaled_two(uint32_t two, float scale)
{
    uint32_t halves = half_two(two);
    float2 f = __half22float2(*(__half2 *)&halves);

    return pack_bf16(f.x * scale, f.y * scale);
}

/* Load 64 elements of MXFP4 of a warp's 16 rows, as the first operand of four products; record:
 * the warp's in the stage; part: which half of it. */
static __device__ __forceinline__ void many_load_mxfp4(uint32_t (&a)[4][4], const char *record,
                                                       int part)
{
    const uint4 codes = mxfp4_codes(record, part);
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint2 powers = mxfp4_powers(record, part * 2 + i);

        mxfp4_operand(a[2 * i], word[2 * i], powers.x, powers.y);
        mxfp4_operand(a[2 * i + 1], word[2 * i + 1], powers.x, powers.y);
    }
}

/* The same of e4m3. at: this lane's address in the stage, of half a row. scales: of rows g and
 * g + 8. */
template <int FORMAT>
static __device__ __forceinline__ void many_load_operands(uint32_t (&a)[4][4], uint32_t at,
                                                          float2 scales)
{
    uint32_t raw[2][4];

#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(raw[i][0]), "=r"(raw[i][1]), "=r"(raw[i][2]), "=r"(raw[i][3])
                     : "r"(at ^ i * 32)
                     : "memory");
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t low = raw[k / 2][k % 2 * 2], high = raw[k / 2][k % 2 * 2 + 1];

        if (FORMAT == EXPERTS_IN_BLOCKS) {
            a[k][0] = many_scaled_two(low, scales.x);
            a[k][1] = many_scaled_two(high, scales.y);
            a[k][2] = many_scaled_two(low >> 16, scales.x);
            a[k][3] = many_scaled_two(high >> 16, scales.y);
        } else {
            a[k][0] = widen_two(low);
            a[k][1] = widen_two(high);
            a[k][2] = widen_two(low >> 16);
            a[k][3] = widen_two(high >> 16);
        }
    }
}

/* Issue the products of a slab. */
template <int N, int COLS>
static __device__ __forceinline__ void many_issue_slab(many_sums<COLS> &acc, uint32_t (&a)[4][4],
                                                       const char *x)
{
    typedef many_columns<N, COLS> columns;

    keep(a), columns::hold(acc);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < columns::PARTS * 4; i++)
        multiply_rows(columns::of(acc, i / 4), a[i % 4], many_x_operand(x, i / 4, i % 4), 1);
    warpgroup_commit();
}

/* Where the scales of blocks of this lane's rows g and g + 8 begin. */
struct many_scales {
    const float *low, *high;
};

/* The row of w, of the expert's, that a warp's row 0 or 8 is; the last one past the end. */
template <int ROWS>
static __device__ inline int many_row(const many_args &a, const many_tile &t, int group, int warp,
                                      int row)
{
    if (!a.p.is_gated)
        return min(t.part * ROWS + group * 64 + warp * 16 + row, a.p.n_out - 1);
    return min(t.part * (ROWS / 2) + group * 32 + warp * 8 + row % 8, a.p.n_out - 1) +
           (row < 8 ? 0 : a.p.up);
}

template <int FORMAT> static __device__ inline float2 many_scales_at(const many_scales &s, int step)
{
    if (FORMAT != EXPERTS_IN_BLOCKS)
        return make_float2(1.0f, 1.0f);
    return make_float2(__ldg(s.low + step / 2), __ldg(s.high + step / 2));
}

/* The operands of a step from its stage of w. */
template <int FORMAT>
static __device__ __forceinline__ void many_load_step(uint32_t (&a)[4][4], const char *stage,
                                                      int group, uint32_t at, float2 scales,
                                                      int odd)
{
    if constexpr (FORMAT == EXPERTS_MXFP4)
        many_load_mxfp4(a, stage + (group * 4 + threadIdx.x % 128 / 32) * K_MXFP4_RECORD, odd);
    else
        many_load_operands<FORMAT>(a, (shared_addr(stage) + at) ^ odd * 64, scales);
}

/* As many_multiply_plain(), of elements that become bfloat16: while the products of a slab run,
 * the next one is converted. A stage of w has two slabs, and is given back when the second is in
 * registers. */
template <int FORMAT, int N, int COLS>
static __device__ __forceinline__ void many_multiply_widened(many_sums<COLS> &acc,
                                                             many_shared<FORMAT, COLS> &s,
                                                             many_rings<FORMAT, COLS> &r, int group,
                                                             const many_scales &scales, int n_steps)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    uint32_t at = (uint32_t)((group * 64 + warp * 16 + lane / 8 % 2 * 8 + lane % 8) * 128 +
                             (lane / 16 ^ lane % 8) * 16);
    uint32_t a[2][4][4];
    ring<many_form<FORMAT, COLS>::X_DEPTH> before = r.x;
    float2 next = many_scales_at<FORMAT>(scales, 0);

    many_clear(acc);
    barrier_wait(&s.w_full[r.w.stage], r.w.parity);
    many_load_step<FORMAT>(a[0], s.w[r.w.stage], group, at, next, 0);
    for (int step = 0; step < n_steps; step += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int own = step + odd;
            bool more = own + 1 < n_steps;

            if (own >= n_steps)
                break;
            if (more)
                next = many_scales_at<FORMAT>(scales, own + 1);
            barrier_wait(&s.x_full[r.x.stage], r.x.parity);
            many_issue_slab<N>(acc, a[odd], s.x[r.x.stage]);
            warpgroup_wait<1>();
            if (own > 0 && leads())
                barrier_arrive(&s.x_empty[before.stage]);
            before = r.x;
            r.x.next();
            if (odd == 1 || !more) {
                __syncwarp();
                if (leads())
                    barrier_arrive(&s.w_empty[r.w.stage]);
                r.w.next();
            }
            if (more) {
                if (odd == 1)
                    barrier_wait(&s.w_full[r.w.stage], r.w.parity);
                many_load_step<FORMAT>(a[odd ^ 1], s.w[r.w.stage], group, at, next, odd ^ 1);
            }
        }
    }
    warpgroup_wait<0>();
    many_columns<N, COLS>::hold(acc);
    if (leads())
        barrier_arrive(&s.x_empty[before.stage]);
}

template <int FORMAT, int N, int COLS>
static __device__ __forceinline__ void many_multiply_all(many_sums<COLS> &acc,
                                                         many_shared<FORMAT, COLS> &s,
                                                         many_rings<FORMAT, COLS> &r, int group,
                                                         const many_scales &scales, int n_steps)
{
    if constexpr (FORMAT == EXPERTS_PLAIN)
        many_multiply_plain<N>(acc, s, r, group, n_steps);
    else
        many_multiply_widened<FORMAT, N>(acc, s, r, group, scales, n_steps);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Scales and biases of a lane's rows g and g + 8. */
struct many_ends {
    float2 scale, bias;
};

template <int FORMAT>
static __device__ inline many_ends many_ends_of(const many_args &a, int low, int high)
{
    many_ends e = {make_float2(1.0f, 1.0f), make_float2(0.0f, 0.0f)};

    if (FORMAT == EXPERTS_BY_ROW)
        e.scale = make_float2(__ldg(a.p.scales + low), __ldg(a.p.scales + high));
    if (FORMAT == EXPERTS_MXFP4)
        e.scale = make_float2(MXFP4_LARGER, MXFP4_LARGER);
    if (a.p.bias != NULL)
        e.bias = make_float2(load_bf16(a.p.bias + low), load_bf16(a.p.bias + high));
    return e;
}

/* Outputs of 16 routes, from 8 floats of each lane: of a gated product one matrix of 8 outputs for
 * each 8 routes, else two. */
static __device__ inline uint32_t many_pack_rows(const many_args &a, const many_ends &e, float y0,
                                                 float y1, float z0, float z1, bool high)
{
    y0 = y0 * e.scale.x + e.bias.x, y1 = y1 * e.scale.x + e.bias.x;
    z0 = z0 * e.scale.y + e.bias.y, z1 = z1 * e.scale.y + e.bias.y;
    if (a.p.is_gated)
        return pack_bf16(gated(y0, z0, a.p.activation), gated(y1, z1, a.p.activation));
    return high ? pack_bf16(z0, z1) : pack_bf16(y0, y1);
}

/* Put the outputs of CHUNK routes into shared memory [CHUNK][OUT_PITCH bytes]; c: their sums. */
static __device__ inline void many_stage_chunk(char *out, const many_args &a, const many_ends &e,
                                               const float *c, int warp)
{
    int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;

    if (a.p.is_gated) {
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j += 4) {
            uint32_t m[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *f = c + (j + i) * 4;

                m[i] = many_pack_rows(a, e, f[0], f[1], f[2], f[3], false);
            }
            store_turned(shared_addr(out + ((j + matrix) * 8 + row) * OUT_PITCH + warp * 16), m);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j += 2) {
        uint32_t m[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *f = c + (j + i / 2) * 4;

            m[i] = many_pack_rows(a, e, f[0], f[1], f[2], f[3], i % 2 == 1);
        }
        store_turned(shared_addr(out + ((j + matrix / 2) * 8 + row) * OUT_PITCH + warp * 32 +
                                 matrix % 2 * 16),
                     m);
    }
}

/* 16 bytes of a row of outputs: ORDER_HALF has pairs 0, 2, 4, 6 of 16 elements first, and
 * ORDER_OF_LANES pairs 0, 4, 8, 12 of 32. */
static __device__ inline uint4 many_staged(const char *row, int chunk, enum experts_order order)
{
    const uint32_t *pair = (const uint32_t *)row;

    if (order == ORDER_PLAIN)
        return *(const uint4 *)(row + chunk * 16);
    if (order == ORDER_HALF) {
        pair += chunk / 2 * 8 + chunk % 2;
        return make_uint4(pair[0], pair[2], pair[4], pair[6]);
    }
    pair += chunk / 4 * 16 + chunk % 4;
    return make_uint4(pair[0], pair[4], pair[8], pair[12]);
}

/* Copy the chunk to memory: n routes, from place `first` on; outputs from `at` on. */
static __device__ inline void many_write_chunk(const char *out, const many_args &a, int first,
                                               int n, int at)
{
    int n_chunks = a.p.is_gated ? 4 : 8, own = threadIdx.x % 128;

    for (int i = own; i < CHUNK * n_chunks; i += 128) {
        int route = i / n_chunks, chunk = i % n_chunks;

        if (route < n && at + chunk * 8 < a.p.n_out)
            *(uint4 *)(a.p.out + (size_t)(first + route) * a.p.n_out + at + chunk * 8) =
                many_staged(out + route * OUT_PITCH, chunk, a.order);
    }
}

/* n routes from place `first` on; outputs from `at` on. */
template <int COLS>
static __device__ __forceinline__ void many_finish_tile(char *out, const many_args &a,
                                                        const many_ends &e,
                                                        const many_sums<COLS> &acc, int first,
                                                        int n, int at, int group, int warp)
{
#pragma unroll
    for (int i = 0; i < COLS / CHUNK; i++) {
        if (i * CHUNK >= n)
            break;
        many_stage_chunk(out, a, e, acc.of[i / 2] + i % 2 * 32, warp);
        named_sync(1 + group, 128);
        many_write_chunk(out, a, first + i * CHUNK, n - i * CHUNK, at);
        named_sync(1 + group, 128);
    }
}

template <int FORMAT, int COLS>
static __device__ __forceinline__ void many_consume(many_shared<FORMAT, COLS> &s,
                                                    const many_args &a, int n_all)
{
    const int ROWS = many_form<FORMAT, COLS>::ROWS;
    int group = (int)threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4;
    many_rings<FORMAT, COLS> r = {{0, 0}, {0, 0}};
    many_sums<COLS> acc;
    many_tile next = {};

    if ((int)blockIdx.x < n_all)
        next = many_tile_of(a, blockIdx.x);
    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x) {
        const many_tile t = next;
        int own = t.expert * a.p.rows;
        int at = (t.part * ROWS + group * 64) / (a.p.is_gated ? 2 : 1);
        int low = own + many_row<ROWS>(a, t, group, warp, g),
            high = own + many_row<ROWS>(a, t, group, warp, g + 8);
        const many_ends ends = many_ends_of<FORMAT>(a, low, high);

        const many_scales scales = {a.p.scales + low / EXPERTS_BLOCK * a.p.scale_cols,
                                    a.p.scales + high / EXPERTS_BLOCK * a.p.scale_cols};

        if (tile + (int)gridDim.x < n_all) /* looked up while this one is multiplied */
            next = many_tile_of(a, tile + gridDim.x);
        for (int from = 0; from < t.n; from += COLS) {
            int n = min(t.n - from, COLS);

            if (n > COLS / 2)
                many_multiply_all<FORMAT, COLS>(acc, s, r, group, scales, a.n_steps);
            else
                many_multiply_all<FORMAT, COLS / 2>(acc, s, r, group, scales, a.n_steps);
            many_finish_tile(s.out[group], a, ends, acc, t.first + from, n, at, group, warp);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int FORMAT, int COLS>
static __global__ void __launch_bounds__(many_form<FORMAT, COLS>::THREADS, 1)
    many_kernel(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const __grid_constant__ many_args a)
{
    typedef many_form<FORMAT, COLS> form;
    extern __shared__ __align__(1024) char memory[];
    many_shared<FORMAT, COLS> &s = *(many_shared<FORMAT, COLS> *)memory;
    int n_all = a.p.tiles[0] * a.n_tiles;

    if (threadIdx.x == 0) {
        for (int i = 0; i < form::W_DEPTH; i++) {
            barrier_init(&s.w_full[i], 1);
            barrier_init(&s.w_empty[i], form::CONSUMERS / 32);
        }
        for (int i = 0; i < form::X_DEPTH; i++) {
            barrier_init(&s.x_full[i], 1);
            barrier_init(&s.x_empty[i], form::CONSUMERS / 32);
        }
        barrier_init_done();
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<form::GIVEN>();
        if (threadIdx.x == 0)
            many_produce_w<FORMAT, COLS>(s, &w_map, a, n_all);
        else if (threadIdx.x == 32)
            many_produce_x<FORMAT, COLS>(s, &x_map, a, n_all);
    } else {
        registers_take<form::TAKEN>();
        many_consume<FORMAT, COLS>(s, a, n_all);
    }
}

/* Copy 32 elements in another order. */
template <int ORDER> static __device__ inline void many_copy_run(uint4 *to, const uint4 *from)
{
    uint4 a = from[0], b = from[1], c = from[2], d = from[3];

    if (ORDER == ORDER_HALF) {
        to[0] = make_uint4(a.x, a.z, b.x, b.z);
        to[1] = make_uint4(a.y, a.w, b.y, b.w);
        to[2] = make_uint4(c.x, c.z, d.x, d.z);
        to[3] = make_uint4(c.y, c.w, d.y, d.w);
        return;
    }
    to[0] = make_uint4(a.x, b.x, c.x, d.x);
    to[1] = make_uint4(a.y, b.y, c.y, d.y);
    to[2] = make_uint4(a.z, b.z, c.z, d.z);
    to[3] = make_uint4(a.w, b.w, c.w, d.w);
}

/* Copy the rows of x of all routes into their order, with elements in ORDER. A block has a place,
 * and goes on to the place gridDim.x further on. */
template <int ORDER>
static __global__ void __launch_bounds__(128)
    gather_kernel(k_bf16 *out, const k_bf16 *x, const int32_t *routes, const int32_t *end,
                  int n_used, int dim)
{
    for (int place = blockIdx.x; place < *end; place += gridDim.x) {
        const uint4 *from = (const uint4 *)(x + (size_t)(routes[place] / n_used) * dim);
        uint4 *to = (uint4 *)(out + (size_t)place * dim);

        for (int i = threadIdx.x; i < dim / 8 && ORDER == ORDER_PLAIN; i += 128)
            to[i] = from[i];
        for (int i = threadIdx.x; i < dim / 32 && ORDER != ORDER_PLAIN; i += 128)
            many_copy_run<ORDER>(to + 4 * i, from + 4 * i);
        if (ORDER == ORDER_HALF && dim % 32 != 0 && threadIdx.x == 0) {
            uint4 a = from[dim / 8 - 2], b = from[dim / 8 - 1]; /* the last 16 */

            to[dim / 8 - 2] = make_uint4(a.x, a.z, b.x, b.z);
            to[dim / 8 - 1] = make_uint4(a.y, a.w, b.y, b.w);
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

int experts_map_w(CUtensorMap *map, const struct experts_product *p, bool is_bytes, int tile_rows)
{
    cuuint64_t row_bytes = (cuuint64_t)p->n_in * (is_bytes ? 1 : 2);
    cuuint64_t sizes[5] = {(cuuint64_t)p->n_in, 8, p->is_gated ? 2U : 1U, (cuuint64_t)p->n_out / 8,
                           (cuuint64_t)p->n_experts};
    cuuint64_t strides[4] = {row_bytes, (cuuint64_t)p->up * row_bytes, 8 * row_bytes,
                             (cuuint64_t)p->rows * row_bytes};
    cuuint32_t box[5] = {is_bytes ? 128U : 64U, 8, p->is_gated ? 2U : 1U,
                         (cuuint32_t)tile_rows / (p->is_gated ? 16U : 8U), 1};

    return encode_boxes(map, is_bytes, (void *)(uintptr_t)p->w, 5, sizes, strides, box);
}

int experts_map_x(CUtensorMap *map, const struct experts_product *p, bool is_bytes, int routes)
{
    cuuint64_t row_bytes = (cuuint64_t)p->n_in * (is_bytes ? 1 : 2);
    cuuint64_t n = (cuuint64_t)p->n_tokens * (cuuint64_t)p->n_used;
    cuuint64_t sizes[3] = {(cuuint64_t)p->n_in, n, 1}, strides[2] = {row_bytes, n * row_bytes};
    cuuint32_t box[3] = {is_bytes ? 128U : 64U, (cuuint32_t)routes, 1};

    return encode_boxes(map, is_bytes, (void *)(uintptr_t)p->x, 3, sizes, strides, box);
}

/* Map records as [experts][strips][words of 8 bytes]. */
static int many_encode_records(CUtensorMap *map, const struct experts_product *p, int tile_rows)
{
    cuuint64_t n_strips = (cuuint64_t)k_mxfp4_strips(p->rows);
    cuuint64_t row_bytes = (cuuint64_t)k_mxfp4_records(p->n_in) * K_MXFP4_RECORD;
    cuuint64_t sizes[3] = {row_bytes / 8, n_strips, (cuuint64_t)p->n_experts};
    cuuint64_t strides[2] = {row_bytes, n_strips * row_bytes};
    cuuint32_t box[3] = {RECORD_WORDS, (cuuint32_t)tile_rows / 16, 1};

    return encode_tensor(map, CU_TENSOR_MAP_DATA_TYPE_INT64, CU_TENSOR_MAP_SWIZZLE_NONE,
                         (void *)(uintptr_t)p->w, 3, sizes, strides, box);
}

template <int FORMAT, int COLS>
static int many_launch_form(const struct experts_product *p, enum experts_order order, int n_sms,
                            k_stream stream)
{
    typedef many_form<FORMAT, COLS> form;
    const size_t bytes = sizeof(many_shared<FORMAT, COLS>);
    int rows = form::ROWS / (p->is_gated ? 2 : 1);
    many_args a = {*p, (p->n_out + rows - 1) / rows, (p->n_in + SLAB - 1) / SLAB, order};
    CUtensorMap w_map, x_map;
    int rc = FORMAT == EXPERTS_MXFP4
                 ? many_encode_records(&w_map, p, form::ROWS)
                 : experts_map_w(&w_map, p, FORMAT != EXPERTS_PLAIN, form::ROWS);

    static_assert(sizeof(many_shared<FORMAT, COLS>) <= 227 * 1024, "shared memory");
    if (rc != 0 || experts_map_x(&x_map, p, false, form::X_ROWS) != 0 ||
        cudaFuncSetAttribute(many_kernel<FORMAT, COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return K_LAUNCH((many_kernel<FORMAT, COLS>), n_sms, form::THREADS, bytes, stream, w_map, x_map,
                    a);
}

/* The form is chosen by the average number of routes of an expert. An expert with more than NARROW
 * of them is read again, from the L2 cache, for each further NARROW. */
template <int FORMAT>
static int many_launch(const struct experts_product *p, enum experts_order order, int n_sms,
                       k_stream stream)
{
    if ((size_t)p->n_tokens * (size_t)p->n_used <= (size_t)p->n_experts * NARROW_MEAN)
        return many_launch_form<FORMAT, NARROW>(p, order, n_sms, stream);
    return many_launch_form<FORMAT, ROUTES>(p, order, n_sms, stream);
}

int experts_gather(k_bf16 *out, const k_bf16 *x, const struct experts_product *p,
                   enum experts_order order, k_stream stream)
{
    static void (*const kernels[])(k_bf16 *, const k_bf16 *, const int32_t *, const int32_t *, int,
                                   int) = {gather_kernel<ORDER_PLAIN>, gather_kernel<ORDER_HALF>,
                                           gather_kernel<ORDER_OF_LANES>};
    int n = p->n_tokens * p->n_used, grid = n < GATHERS ? n : GATHERS;

    return K_LAUNCH(kernels[order], grid, 128, 0, stream, out, x, p->routes,
                    p->starts + p->n_experts, p->n_used, p->n_in);
}

int experts_many(const struct experts_product *p, enum experts_format format,
                 enum experts_order out, int n_sms, k_stream stream)
{
    switch (format) {
    case EXPERTS_PLAIN: return many_launch<EXPERTS_PLAIN>(p, out, n_sms, stream);
    case EXPERTS_BY_ROW: return many_launch<EXPERTS_BY_ROW>(p, out, n_sms, stream);
    case EXPERTS_IN_BLOCKS: return many_launch<EXPERTS_IN_BLOCKS>(p, out, n_sms, stream);
    case EXPERTS_MXFP4: return many_launch<EXPERTS_MXFP4>(p, out, n_sms, stream);
    }
    return -1;
}
