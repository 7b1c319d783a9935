/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapters of a product of 4 to 64 rows (sm90_product.cu), within its kernel:
 *
 *   helper warps, beside the mainloop   items of t = a x, on tensor cores -> global memory, a counter
 *                                       all of t for the CTA's rows of w -> fragments in shared memory
 *   consumers, before the epilogue      b t, on tensor cores, added to the accumulators
 *
 * Segments are adapter.h's: at most eight rows of x with one adapter. An item is a segment, a part
 * and wide_run() elements, and a warp's. All CTAs are resident, so they may wait for each other. t
 * has no factor of a norm: the epilogue applies it to both.
 *
 * mma.m16n8k16: ranks, then rows of w, are its rows m, rows of x its columns n; a result has the
 * layout of wgmma's. With lane = 4 g + c, terms of b t are ranks 4 c .. 4 c + 3 of each lane.
 *
 * A tile of one block has its patches of 16 rows of w and 8 rows of x dealt to the warps, and each
 * reads b of the adapters in its eight rows from the L2 cache. The gate's tile of four blocks gets b
 * through further stages of the ring, segment by segment. t is the sum of two numbers in bfloat16.
 * The columns of other adapters are zeros, so that b must be finite (model/adapters.c sees to it). */
#ifndef QUIRE_KERNELS_SM90_PRODUCT_ADAPT_CUH
#define QUIRE_KERNELS_SM90_PRODUCT_ADAPT_CUH

#include "kernels/adapter.cuh"
#include "kernels/product_adapt.cuh"
#include "kernels/product_ring.h"
#include "kernels/sm90_product_end.cuh"

#define WIDE_RANK     16
#define WIDE_HELPERS  3 /* warps */
#define WIDE_SPANS    4 /* of 64 elements, whose loads are in flight together */
#define WIDE_SEGMENTS K_PRODUCT_ROWS_MAX

/* In shared memory. */
struct wide_adapted {
    uint2 terms[2][2][K_PRODUCT_ROWS_MAX][4]; /* of t: [upper, lower][plane][row of x][c] */
    uint64_t masks[2][WIDE_SEGMENTS];  /* [plane]: the rows of x of a segment with an adapter */
    const k_bf16 *b[2][WIDE_SEGMENTS]; /* where the rows of b would begin with y's column 0 */
};

/* Elements of an item. */
static __host__ __device__ inline int wide_run(int n_in)
{
    return n_in > 8192 ? 1024 : 512;
}

static __host__ __device__ inline int wide_shares(int n_in)
{
    return (n_in + wide_run(n_in) - 1) / wide_run(n_in);
}

/* Segments without adapter are left out. */
static __device__ inline int wide_n_items(const k_adapting &j)
{
    return (j.rows.count[0] - j.rows.count[1]) * j.of.n_parts * wide_shares(j.n_in);
}

static __device__ inline void wide_multiply_16x8(float (&d)[4], uint32_t a0, uint32_t a1,
                                                 uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* --- t = a x ------------------------------------------------------------------------------ */

struct wide_item {
    int segment, part, share;
    k_adapter one;
};

/* Item i of j; rank 0: there is none. */
static __device__ inline wide_item wide_item_of(const k_adapting &j, int i, int n_items)
{
    int shares = wide_shares(j.n_in);
    wide_item item = {};

    item.share = i % shares;
    item.part = i / shares % j.of.n_parts;
    item.segment = j.rows.count[1] + i / shares / j.of.n_parts;
    if (i < n_items)
        item.one = j.of.parts[item.part].slots[j.rows.slots[item.segment]];
    return item;
}

/* This lane's elements of a in some spans: 16 of ranks g and g + 8 in each. */
struct wide_a {
    uint32_t low[WIDE_SPANS][8], high[WIDE_SPANS][8];
};

/* at: of the first span, within the item. */
static __device__ inline void wide_load_a(wide_a &w, const k_adapting &j, const wide_item &item,
                                          int at)
{
    int g = threadIdx.x % 32 / 4, rank = item.one.rank;
    const k_bf16 *low = (const k_bf16 *)item.one.a + (size_t)min(g, rank - 1) * j.n_in;
    const k_bf16 *high = (const k_bf16 *)item.one.a + (size_t)min(g + 8, rank - 1) * j.n_in;

    if (rank == 0)
        return;
    at += item.share * wide_run(j.n_in) + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < WIDE_SPANS; i++) {
        adapter_load_run(w.low[i], low, at + i * 64, j.n_in);
        adapter_load_run(w.high[i], high, at + i * 64, j.n_in);
    }
}

/* The same spans of this lane's row of x, and their product. */
static __device__ inline void wide_multiply_spans(float (&sum)[4], const wide_a &w,
                                                  const k_adapting &j, const wide_item &item,
                                                  int row, int at)
{
    const k_bf16 *x = (const k_bf16 *)j.p.x + (size_t)row * j.n_in;
    uint32_t of_x[WIDE_SPANS][8];

    at += item.share * wide_run(j.n_in) + threadIdx.x % 4 * 16;
#pragma unroll
    for (int i = 0; i < WIDE_SPANS; i++)
        adapter_load_run(of_x[i], x, at + i * 64, j.n_in);
#pragma unroll
    for (int i = 0; i < WIDE_SPANS; i++) {
#pragma unroll
        for (int k = 0; k < 8; k += 2)
            wide_multiply_16x8(sum, w.low[i][k], w.high[i][k], w.low[i][k + 1], w.high[i][k + 1],
                               of_x[i][k], of_x[i][k + 1]);
    }
}

/* t of a share, part and row: [shares][n_parts][n][WIDE_RANK]. */
static __device__ inline float *wide_t(const k_adapting &j, int share, int part, int row)
{
    return j.t + (((size_t)share * j.of.n_parts + part) * j.n + row) * WIDE_RANK;
}

/* A segment's rows: the number, this lane's of x, and those of its results. */
struct wide_rows {
    int n, x, t[2];
};

static __device__ inline wide_rows wide_rows_of(const k_adapting &j, int segment)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, start = j.rows.starts[segment];
    int n = j.rows.starts[segment + 1] - start;
    const int32_t *order = j.rows.order + start;

    return {n, order[min(g, n - 1)], {order[min(2 * c, n - 1)], order[min(2 * c + 1, n - 1)]}};
}

/* One item, by a warp. has_first: w has its first spans. */
static __device__ inline void wide_make_item(wide_a &w, const k_adapting &j, const wide_item &item,
                                             const wide_rows &rows, bool has_first)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, run = wide_run(j.n_in);
    float sum[4] = {};

#pragma unroll 1
    for (int at = 0; at < run; at += WIDE_SPANS * 64) {
        if (at > 0 || !has_first)
            wide_load_a(w, j, item, at);
        wide_multiply_spans(sum, w, j, item, rows.x, at);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int rank = g + i / 2 * 8;

        if (2 * c + i % 2 < rows.n)
            wide_t(j, item.share, item.part, rows.t[i % 2])[rank] =
                rank < item.one.rank ? sum[i] * item.one.scale : 0.0f;
    }
}

/* The first item of a helper warp, and how many there are in the grid. */
static __device__ inline int wide_first(int helper)
{
    return helper * gridDim.x + blockIdx.x;
}

/* By the helper warps. The first item's a is requested before the previous launch has ended. */
static __device__ void wide_make_t(const k_adapting &j, int helper)
{
    int n_items = wide_n_items(j), first = wide_first(helper), stride = WIDE_HELPERS * gridDim.x;
    wide_item item = wide_item_of(j, first, n_items);
    wide_rows rows = {};
    wide_a w;

    wide_load_a(w, j, item, 0);
    if (first < n_items)
        rows = wide_rows_of(j, item.segment);
    asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll 1
    for (int i = first; i < n_items; i += stride) {
        if (i > first) {
            item = wide_item_of(j, i, n_items);
            rows = wide_rows_of(j, item.segment);
        }
        if (item.one.rank > 0)
            wide_make_item(w, j, item, rows, i == first);
    }
    __threadfence();
    __syncwarp();
    if (first < n_items && threadIdx.x % 32 == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(j.meet) : "memory");
}

/* --- t, as fragments ------------------------------------------------------------------------ */

/* The parts that a CTA's rows of w belong to: the gate and up, or at most two that follow each
 * other. */
struct wide_planes {
    int part[2];
    int n;
    int begin, own; /* the CTA's rows of w, or of the gate */
    int second;     /* the first row of plane 1 */
};

static __device__ inline int wide_part_of(const k_adapting &j, int row)
{
    int part = 0;

    while (part + 1 < j.of.n_parts && row >= j.of.parts[part + 1].first)
        part++;
    return part;
}

static __device__ inline wide_planes wide_planes_of(const k_adapting &j, bool is_gated, int begin,
                                                    int own)
{
    wide_planes p = {{0, j.of.n_parts - 1}, 2, begin, own, j.n_out / 2};

    if (is_gated)
        return p;
    p.part[0] = wide_part_of(j, begin);
    p.part[1] = wide_part_of(j, min(begin + own, j.n_out) - 1);
    p.n = 1 + (p.part[1] != p.part[0]);
    p.second = p.n == 2 ? j.of.parts[p.part[1]].first : j.n_out;
    return p;
}

static __device__ inline void wide_fetch_bytes(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

/* By one helper warp, before the previous launch has ended: the segments' masks and b, which comes
 * to the L2 cache. */
static __device__ void wide_note_segments(wide_adapted &sh, const k_adapting &j,
                                          const wide_planes &p, bool is_gated)
{
    int skipped = j.rows.count[1], n_segments = j.rows.count[0] - skipped;

#pragma unroll 1
    for (int i = threadIdx.x % 32; i < 2 * WIDE_SEGMENTS; i += 32) {
        int plane = i / WIDE_SEGMENTS, s = i % WIDE_SEGMENTS,
            shift = is_gated && plane ? p.second : 0;
        int begin = max(p.begin + shift, plane == 0 ? 0 : p.second);
        int end = min(p.begin + p.own + shift, plane == 0 ? p.second : j.n_out);
        k_adapter one = {};

        sh.masks[plane][s] = 0;
        if (s >= n_segments || plane >= p.n)
            continue;
        one = j.of.parts[p.part[plane]].slots[j.rows.slots[skipped + s]];
        if (one.rank == 0)
            continue;
        sh.masks[plane][s] = j.rows.masks[skipped + s];
        sh.b[plane][s] =
            (const k_bf16 *)one.b - (ptrdiff_t)j.of.parts[p.part[plane]].first * WIDE_RANK;
        if (end > begin)
            wide_fetch_bytes(sh.b[plane][s] + (size_t)begin * WIDE_RANK,
                             (end - begin) * WIDE_RANK * 2);
    }
}

/* By the helper warps; a barrier of all follows. Rows without adapter get what memory has: masks
 * leave them out. */
template <int N>
static __device__ void wide_collect_t(wide_adapted &sh, const k_adapting &j, const wide_planes &p)
{
    const int ALL = WIDE_HELPERS * 32, OWN = (N * 4 + ALL - 1) / ALL;
    int helper = threadIdx.x - (WORKERS + 32), shares = wide_shares(j.n_in);

    if (helper == 0) {
        adapt_await(j.meet, min(WIDE_HELPERS * (int)gridDim.x, wide_n_items(j)));
        adapt_depart(j);
    }
    named_sync(3, ALL);
#pragma unroll 1
    for (int plane = 0; plane < p.n; plane++) {
        float4 t[OWN] = {};

#pragma unroll 8
        for (int share = 0; share < shares; share++) {
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                int at = helper + i * ALL, row = min(at / 4, j.n - 1);
                float4 x = __ldcg((const float4 *)wide_t(j, share, p.part[plane], row) + at % 4);

                t[i].x += x.x, t[i].y += x.y, t[i].z += x.z, t[i].w += x.w;
            }
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            int at = helper + i * ALL;
            uint32_t first[2], second[2];

            adapter_divide<2>(first, t[i].x, t[i].y);
            adapter_divide<2>(second, t[i].z, t[i].w);
            if (at >= N * 4)
                continue;
            sh.terms[0][plane][at / 4][at % 4] = make_uint2(first[0], second[0]);
            sh.terms[1][plane][at / 4][at % 4] = make_uint2(first[1], second[1]);
        }
    }
}

/* d += b t for a patch; low and high: this lane's ranks of rows g and g + 8 of b. Columns that are
 * not of `mine` are zeros. */
static __device__ inline void wide_add_patch(float (&d)[4], uint2 low, uint2 high,
                                             const wide_adapted &sh, int plane, int column,
                                             bool mine)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 t = sh.terms[i][plane][column][threadIdx.x % 4];

        wide_multiply_16x8(d, low.x, high.x, low.y, high.y, mine ? t.x : 0U, mine ? t.y : 0U);
    }
}

/* --- tiles of one block --------------------------------------------------------------------- */

/* The adapters of a warp's patches: lane 8 i + k has b for the i-th sixteen rows of w and the k-th
 * segment in the warp's eight rows of x, and which of these are the segment's. */
struct wide_pairs {
    const k_bf16 *b;
    int plane;
    uint32_t mask; /* 0: there is none */
};

/* Bits of the segments in eight rows of x. */
static __device__ inline uint64_t wide_segments_of(const wide_adapted &sh, int plane, int eight)
{
    const uint8_t *masks = (const uint8_t *)sh.masks[plane] + eight;
    int lane = threadIdx.x % 32;
    uint32_t low = __ballot_sync(~0U, masks[8 * lane] != 0);
    uint32_t high = __ballot_sync(~0U, masks[8 * (lane + 32)] != 0);

    return (uint64_t)high << 32 | low;
}

/* When segments are noted. */
template <int N>
static __device__ inline wide_pairs wide_find_pairs(const wide_adapted &sh, const share &s,
                                                    const wide_planes &p, int warp)
{
    int lane = threadIdx.x % 32, eight = warp % DEALT(N), segment;
    int sixteen = warp / DEALT(N) + lane / 8 * (8 / DEALT(N)), row = s.first + sixteen * PATCH_ROWS;
    uint64_t segments = wide_segments_of(sh, 0, eight), second = 0;
    wide_pairs pairs = {};

    if (p.n == 2)
        second = wide_segments_of(sh, 1, eight);
    pairs.plane = row >= p.second;
    if (pairs.plane != 0)
        segments = second;
    for (int i = 0; i < lane % 8; i++)
        segments &= segments - 1;
    if (segments == 0 || sixteen >= s.sixteens)
        return pairs;
    segment = __ffsll((long long)segments) - 1;
    pairs.mask = (uint32_t)(sh.masks[pairs.plane][segment] >> 8 * eight) & 255;
    pairs.b = sh.b[pairs.plane][segment] + (size_t)row * WIDE_RANK;
    return pairs;
}

/* What the adapters add to a patch: the i-th of the warp's sixteens. */
static __device__ inline void wide_adapt_patch(float (&d)[4], const wide_adapted &sh,
                                               const wide_pairs &pairs, int i, int eight)
{
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    uint2 low[8], high[8];
    uint32_t masks[8];

#pragma unroll
    for (int k = 0; k < 8; k++) {
        const k_bf16 *b = (const k_bf16 *)__shfl_sync(~0U, (uint64_t)pairs.b, (8 * i + k) % 32);

        masks[k] = __shfl_sync(~0U, pairs.mask, (8 * i + k) % 32);
        low[k] = high[k] = make_uint2(0, 0);
        if (masks[k] != 0) {
            low[k] = *(const uint2 *)(b + g * WIDE_RANK + 4 * c);
            high[k] = *(const uint2 *)(b + (g + 8) * WIDE_RANK + 4 * c);
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        int plane = __shfl_sync(~0U, pairs.plane, (8 * i + k) % 32);

        if (masks[k] != 0)
            wide_add_patch(d, low[k], high[k], sh, plane, eight * 8 + g, (masks[k] >> g & 1) != 0);
    }
}

/* For end_block(). */
struct wide_more {
    static constexpr bool adds = true;

    const wide_adapted &sh;
    const wide_pairs &pairs;

    __device__ void add(float (&d)[PATCH_SUMS], int nth, int eight) const
    {
        wide_adapt_patch(d, sh, pairs, nth, eight);
    }
};

/* --- the gate's tiles ------------------------------------------------------------------------ */

/* b of a segment in a stage: the tile's rows of the gate, then those of up. As many segments fit as
 * a stage has slabs. */
static __device__ inline int wide_segment_bytes(const product_cut &c)
{
    return c.rows * WIDE_RANK * 2;
}

static __device__ inline int wide_n_segments(const k_adapting &j)
{
    return j.rows.count[0] - j.rows.count[1];
}

/* By the producer warp, whose leader has loaded all stages of w, and so has seen each round of the
 * ring: load b into the stages behind them, a lane for each segment of a stage. */
static __device__ void wide_load_segments(char *shared, uint64_t *full, uint64_t *empty,
                                          const wide_adapted &sh, int n, const product_cut &c,
                                          int tile, ring_stage to)
{
    int lane = threadIdx.x % 32, bytes = wide_segment_bytes(c), half = c.n_out / 2;
    int row = tile * (c.rows / 2), rows_bytes = min(c.rows / 2, half - row) * WIDE_RANK * 2;

    for (int first = 0; first < n; first += c.box, ring_next(&to, 1, c.depth)) {
        char *at = shared + to.at * c.stage_bytes + lane * bytes;
        int s = first + lane;
        bool is_there = lane < c.box && s < n, gate = is_there && sh.masks[0][s] != 0;
        bool up = is_there && sh.masks[1][s] != 0;
        uint32_t all = __reduce_add_sync(~0U, (uint32_t)((gate + up) * rows_bytes));

        barrier_wait(&empty[to.at], to.parity);
        if (lane == 0)
            barrier_expect(&full[to.at], all);
        __syncwarp();
        if (gate)
            copy_to_shared(at, sh.b[0][s] + (size_t)row * WIDE_RANK, rows_bytes, &full[to.at]);
        if (up)
            copy_to_shared(at + bytes / 2, sh.b[1][s] + (size_t)(row + half) * WIDE_RANK,
                           rows_bytes, &full[to.at]);
    }
}

/* One segment of a stage: the gate's and up's sums of this warp. `at` is this lane's first element
 * of b of the gate, up is `up` bytes further. */
template <int N>
static __device__ __forceinline__ void wide_add_segment(float (&gate)[N / 2], float (&up)[N / 2],
                                                        const wide_adapted &sh, int s,
                                                        const char *at, int up_at)
{
    const int below = 8 * WIDE_RANK * 2;
    uint64_t of_gate = sh.masks[0][s], of_up = sh.masks[1][s], any = of_gate | of_up;
    uint2 low = *(const uint2 *)at, high = *(const uint2 *)(at + below);
    uint2 up_low = *(const uint2 *)(at + up_at), up_high = *(const uint2 *)(at + up_at + below);
    int g = threadIdx.x % 32 / 4;

#pragma unroll
    for (int eight = 0; eight < N / 8; eight++) {
        int column = eight * 8 + g;

        if ((any >> 8 * eight & 255) == 0)
            continue;
        if ((of_gate >> 8 * eight & 255) != 0)
            wide_add_patch(*(float(*)[4]) & gate[4 * eight], low, high, sh, 0, column,
                           (of_gate >> column & 1) != 0);
        if ((of_up >> 8 * eight & 255) != 0)
            wide_add_patch(*(float(*)[4]) & up[4 * eight], up_low, up_high, sh, 1, column,
                           (of_up >> column & 1) != 0);
    }
}

#endif
