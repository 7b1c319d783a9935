/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts for few routes each, bound by the bytes of those experts that are touched:
 * each is read once, where up to 64 routes lead to it.
 *
 *   w --TMA--> ring of boxes (per warp) --mma--> accumulators -+
 *   x --L1 cache--> registers ----------------^                |  sums of the two warps
 *                                                              +--> activation, scale -> out
 *
 * Split: an item is a tile of an expert that has routes, 16 rows of w: 8 gates and their 8 ups, or
 * 16 rows of down. There is one block per multiprocessor, which has a run of items; neighbouring
 * items have the same expert, so rows of x stay in the L1 cache. Two warps have an item, and each
 * takes every second box (16 rows x 128 bytes) of it. The number of items is in device memory, so a
 * recorded step serves any choice.
 *
 * Each warp has a ring of its own, which runs on from an item to the next: it loads a box with the
 * TMA into the place of the box that it has just multiplied. So 128 KB of weights are in flight per
 * multiprocessor, and only the two warps of an item ever wait for each other. The second product
 * begins to load weights while the first one still runs: the choices are older than both.
 *
 * One token: every block of the first product chooses the experts from the logits
 * (few_choose_kernel()). A block of the second product has the same tiles of all experts, so it
 * adds their results up itself (few_sum_kernel(), experts_few_sum.cuh).
 *
 * Lanes: lane (g = lane / 4, q = lane % 4) has rows g and g + 8 of the tile. The order of the
 * elements of n_in is free as long as w and x agree, so lane q takes the 16-byte chunks 2 q and
 * 2 q + 1 of a box's row: with the TMA's 128-byte swizzle no two lanes of a quarter warp meet in a
 * bank. e4m3 becomes bfloat16, which is exact. Rows g and g + 8 are a gate and its up, so both are
 * in one lane.
 *
 * MXFP4 is in memory in the order of lanes (mxfp4.h), so a box is two records of 16 rows, a run of
 * bytes, and is read without a swizzle. Its elements become bfloat16 without their scale, exactly.
 * Of up to 8 tokens all rows of x are in shared memory, if they fit (few_store_x()).
 *
 * Order of sums: boxes of a warp, then warps. It depends on n_in alone, so a route's bits do not
 * depend on other routes. A scale multiplies the sum of its columns in float32: of a box if it is a
 * block's, of a run of 32 with MXFP4, as in experts_strips.cu. */
#include "kernels/experts_few.cuh"

#define COLS_MAX 64 /* routes of an expert at a time */

/* COLS: columns of an item; with 8 the rows of x follow, if they fit. Registers of MXFP4 leave room
 * for more warps then: the 11 items of a multiprocessor, a token of gpt-oss, are one round. */
template <int FORMAT, int COLS> struct few_shared {
    static const int PAIRS = FORMAT == EXPERTS_MXFP4 && COLS == 8 ? 12 : 8;
    static const int WARPS = 2 * PAIRS, THREADS = 32 * WARPS;
    static const int DEPTH = PAIRS > 8 ? 3 : 4; /* boxes of a ring */
    char boxes[WARPS][DEPTH][few_box_bytes<FORMAT>()];
    float sums[PAIRS][COLS / 8 * 4 * 32];
    uint64_t full[WARPS][DEPTH];
    int32_t chosen[1 + FEW_CHOOSE_MAX]; /* of few_choose_kernel(): as k_mixing's touched */
    few_results results;                /* of few_sum_kernel() */
    uint4 x[];
};

/* The same in all threads. */
struct few_args {
    struct experts_product p;
    int n_tiles;  /* of an expert */
    int n_boxes;  /* of a tile */
    bool by_tile; /* items of a tile follow each other, else those of an expert */
};

/* A warp's ring, the same in all lanes. */
struct few_ring {
    char *boxes;
    uint64_t *full;
    int depth, pairs;                  /* boxes of the ring; pairs of warps of the block */
    int seen;                          /* lane i has word i of p.touched */
    int n_touched;                     /* word 0 */
    int stage, parity;                 /* of the box to be multiplied next */
    int item, last, expert, box, left; /* to be loaded next; left: passes over its columns */
    int row;                           /* of the item in its expert */
    const char *strip;                 /* MXFP4: the item's first record */
};

/* --- loads ------------------------------------------------------------------------------------ */

/* The choices are read from L2, because in the second product nothing orders these reads after the
 * reads of an earlier layer. The first words of the list of experts are in registers, and what one
 * token's routes are is known: each look-up in memory would delay the first weights. */
static __device__ inline int few_expert(const few_args &a, const few_ring &r, int place)
{
    return place < 31 ? __shfl_sync(~0U, r.seen, 1 + place) : __ldcg(a.p.touched + 1 + place);
}

/* An item's tile, and the place of its expert in the list. */
struct few_place {
    int tile, place;
};

static __device__ inline few_place few_place_of(const few_args &a, const few_ring &r, int item)
{
    int each = a.by_tile ? r.n_touched : a.n_tiles, whole = few_quotient(item, each);
    int rest = item - whole * each;

    return a.by_tile ? few_place{whole, rest} : few_place{rest, whole};
}

static __device__ inline few_item few_item_of(const few_args &a, const few_ring &r, int item)
{
    const few_place at = few_place_of(a, r, item);
    few_item it = {few_expert(a, r, at.place), at.tile, at.place, 1};

    if (a.p.n_tokens == 1)
        return it;
    it.start = __ldcg(a.p.starts + it.expert);
    it.count = __ldcg(a.p.starts + it.expert + 1) - it.start;
    return it;
}

/* The same from memory without a map; bytes is a multiple of 16. */
static __device__ inline void few_copy_run(char *to, const char *from, int bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_addr(to)),
                 "l"(from), "r"(bytes), "r"(shared_addr(bar)), "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* A box of MXFP4: two records of a strip, or the last one. Of a last half record the columns past
 * the end are left out, which is a 45th of a row of 2880. */
static __device__ inline void few_copy_records(char *to, const few_args &a, const few_ring &r,
                                               uint64_t *bar)
{
    const char *from = r.strip + r.box * (2 * K_MXFP4_RECORD);
    int left = a.p.n_in - 2 * r.box * K_MXFP4_COLS, codes = K_MXFP4_CODES / 2;
    int bytes = left > K_MXFP4_COLS ? 2 * K_MXFP4_RECORD : K_MXFP4_RECORD;

    if (left <= K_MXFP4_COLS / 2) {
        barrier_expect(bar, K_MXFP4_RECORD - codes);
        few_copy_run(to, from, codes, bar);
        few_copy_run(to + K_MXFP4_CODES, from + K_MXFP4_CODES, K_MXFP4_RECORD - K_MXFP4_CODES, bar);
        return;
    }
    barrier_expect(bar, bytes);
    few_copy_run(to, from, bytes, bar);
}

/* Look up the item that is to be loaded next. */
template <int FORMAT>
static __device__ inline void few_begin_item(few_ring &r, const few_args &a, int warp)
{
    few_place at;

    r.box = warp % 2;
    if (r.item >= r.last || r.box >= a.n_boxes) {
        r.item = r.last;
        return;
    }
    at = few_place_of(a, r, r.item);
    r.expert = few_expert(a, r, at.place);
    r.row = at.tile * (a.p.is_gated ? 8 : TILE);
    r.strip = (const char *)a.p.w +
              ((size_t)r.expert * a.n_tiles + at.tile) * k_mxfp4_records(a.p.n_in) * K_MXFP4_RECORD;
    r.left = 1;
    if (a.p.n_tokens > COLS_MAX && FORMAT != EXPERTS_MXFP4)
        r.left = (few_item_of(a, r, r.item).count + COLS_MAX - 1) / COLS_MAX;
}

/* Load the warp's next box into a stage. */
template <int FORMAT>
static __device__ inline void few_load(few_ring &r, const CUtensorMap *map, const few_args &a,
                                       int warp, int stage)
{
    if (r.item >= r.last)
        return;
    if (leads()) {
        char *to = r.boxes + stage * few_box_bytes<FORMAT>();

        if constexpr (FORMAT == EXPERTS_MXFP4) {
            few_copy_records(to, a, r, &r.full[stage]);
        } else {
            barrier_expect(&r.full[stage], few_box_bytes<FORMAT>());
            few_copy_box(to, map, r.box * few_box_elems<FORMAT>(), r.row, r.expert, &r.full[stage]);
        }
    }
    r.box += 2;
    if (r.box < a.n_boxes)
        return;
    r.box = warp % 2;
    if (--r.left > 0)
        return;
    r.item += r.pairs;
    few_begin_item<FORMAT>(r, a, warp);
}

/* The stage that has been read is loaded again, and the next one's turn comes. */
template <int FORMAT>
static __device__ inline void few_next(few_ring &r, const CUtensorMap *map, const few_args &a,
                                       int warp)
{
    __syncwarp();
    few_load<FORMAT>(r, map, a, warp, r.stage);
    if (++r.stage == r.depth) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Elements from a row of x in shared memory to the next one: two rows of 64 bytes have other banks,
 * and zeros fill a row up to whole 64 columns. */
static __device__ __host__ inline int few_x_pitch(int n_in)
{
    return (n_in + 63) / 64 * 64 + 32;
}

/* A row of x for MXFP4: RUNS runs of 32 columns, loaded that far ahead, across the borders of
 * boxes: a load from the L1 cache takes as long as some runs' products, one from shared memory
 * less. */
template <bool X_SHARED> struct few_ahead {
    static const int RUNS = X_SHARED ? 2 : 8;
    uint4 x[RUNS];
};

#define BOX_RUNS 8 /* of 32 columns */

/* Columns from a box of a warp to its next one. */
#define BOX_STEP (2 * 2 * K_MXFP4_COLS)

/* Load run `run` of a box; runs 8 .. are those of the warp's next box. x: the lane's elements of
 * the box's first run; left: columns from there to the end of the row, whole runs. In shared memory
 * zeros or finite numbers follow a row, which are not used or meet zeros; so there is no condition,
 * and addresses differ by constants, because the product has few issue slots to spare. */
template <bool X_SHARED>
static __device__ inline void few_load_run(few_ahead<X_SHARED> &f, const k_bf16 *x, int run,
                                           int left)
{
    int col = run / BOX_RUNS * BOX_STEP + run % BOX_RUNS * K_MXFP4_GROUP;
    uint4 &to = f.x[run % few_ahead<X_SHARED>::RUNS];

    if (X_SHARED)
        to = *(const uint4 *)(x + col);
    else
        to = col < left ? *(const uint4 *)(x + col) : make_uint4(0, 0, 0, 0);
}

/* Multiply a run: a lane has the columns 8 q .. of it, of which the first four go with a word of
 * codes and the others with the next one. A row's scale multiplies the sum of the run. ONE: there
 * is one column, whose sums are the first of two. */
template <bool ONE>
static __device__ inline void few_run(float (&acc)[4], uint32_t first, uint32_t second,
                                      float2 scales, const uint4 &x)
{
    float part[4] = {};
    uint32_t w[4];

    float4_widen(w, first);
    experts_multiply(part, w[0], w[1], w[2], w[3], x.x, x.y);
    float4_widen(w, second);
    experts_multiply(part, w[0], w[1], w[2], w[3], x.z, x.w);
    acc[0] = __fmaf_rn(part[0], scales.x, acc[0]);
    acc[2] = __fmaf_rn(part[2], scales.y, acc[2]);
    if (ONE)
        return;
    acc[1] = __fmaf_rn(part[1], scales.x, acc[1]);
    acc[3] = __fmaf_rn(part[3], scales.y, acc[3]);
}

/* Multiply a box of MXFP4 by all columns. It ends with a whole run; past it x is 0 and w is some
 * finite number. */
template <bool X_SHARED, bool ONE>
static __device__ inline void few_records(float (&acc)[4], few_ahead<X_SHARED> &f,
                                          const char *stage, const k_bf16 *x, int left)
{
    const int RUNS = few_ahead<X_SHARED>::RUNS;
    int n_parts = min(4, (left + K_MXFP4_COLS / 2 - 1) / (K_MXFP4_COLS / 2));

#pragma unroll
    for (int part = 0; part < 4; part++) {
        const char *record = stage + part / 2 * K_MXFP4_RECORD;
        uint4 codes, v;

        if (part >= n_parts)
            break;
        codes = mxfp4_codes(record, part % 2);
        v = f.x[2 * part % RUNS];
        few_load_run<X_SHARED>(f, x, 2 * part + RUNS, left);
        few_run<ONE>(acc, codes.x, codes.y, mxfp4_scales(record, part % 2 * 2),
                     X_SHARED ? v : mxfp4_raise(v));
        v = f.x[(2 * part + 1) % RUNS];
        few_load_run<X_SHARED>(f, x, 2 * part + 1 + RUNS, left);
        few_run<ONE>(acc, codes.z, codes.w, mxfp4_scales(record, part % 2 * 2 + 1),
                     X_SHARED ? v : mxfp4_raise(v));
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* The columns first .. first + n - 1 of an item's routes, at most 8 NT, with MXFP4 at most 8.
 * X_SHARED: from is all rows of x in shared memory, few_x_pitch() apart, else p.x. ONE: n is 1. */
template <int FORMAT, int NT, bool X_SHARED, bool ONE>
static __device__ inline void few_columns(few_ring &r, const CUtensorMap *map, const few_args &a,
                                          const few_item &it, const k_bf16 *from, float *sums,
                                          int first, int n, k_bf16 *tile)
{
    const struct experts_product &p = a.p;
    int warp = warp_number(), g = threadIdx.x % 32 / 4;
    int own = it.expert * p.rows, left = p.n_in - warp % 2 * 2 * K_MXFP4_COLS;
    int pitch = X_SHARED ? few_x_pitch(p.n_in) : p.n_in;
    const float *low = p.scales + (own + few_row(p, it.tile, g)) / EXPERTS_BLOCK * p.scale_cols;
    const float *high =
        p.scales + (own + few_row(p, it.tile, g + 8)) / EXPERTS_BLOCK * p.scale_cols;
    const few_rows rows = few_rows_of<FORMAT>(p, it);
    const k_bf16 *x[NT];
    float acc[NT][4] = {}, factors[NT][2];
    few_ahead<X_SHARED> ahead;

    static_assert(FORMAT != EXPERTS_MXFP4 || NT == 1, "experts_strips.cu has more columns");
#pragma unroll
    for (int i = 0; i < NT * 2; i++)
        factors[i / 2][i % 2] =
            experts_factor(p, first + min(i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2, n - 1));
#pragma unroll
    for (int i = 0; i < NT; i++)
        x[i] = from + (size_t)experts_row(p, first + min(i * 8 + g, n - 1)) * pitch;
    if constexpr (FORMAT == EXPERTS_MXFP4) {
        x[0] += warp % 2 * 2 * K_MXFP4_COLS + threadIdx.x % 4 * 8;
#pragma unroll
        for (int run = 0; run < few_ahead<X_SHARED>::RUNS; run++)
            few_load_run<X_SHARED>(ahead, x[0], run, left);
    }
#pragma unroll 1
    for (int box = warp % 2; box < a.n_boxes; box += 2) {
        const char *stage = r.boxes + r.stage * few_box_bytes<FORMAT>();

        if constexpr (FORMAT == EXPERTS_MXFP4) {
            barrier_wait(&r.full[r.stage], r.parity);
            few_records<X_SHARED, ONE>(acc[0], ahead, stage, x[0], left);
            x[0] += BOX_STEP;
            left -= BOX_STEP;
            few_next<FORMAT>(r, map, a, warp);
        } else {
            few_column<FORMAT> begun = few_inputs<FORMAT>(x[0], box, p.n_in);
            float2 scales = few_box_scales<FORMAT>(p, low, high, box);
            few_parts<FORMAT> w;

            barrier_wait(&r.full[r.stage], r.parity);
            w = few_weights<FORMAT>(stage);
            few_next<FORMAT>(r, map, a, warp);
            few_box<FORMAT>(acc[0], w, begun, scales);
#pragma unroll
            for (int i = 1; i < NT; i++)
                few_box<FORMAT>(acc[i], w, few_inputs<FORMAT>(x[i], box, p.n_in), scales);
        }
    }
    few_add_halves<NT>(acc, sums, warp);
    if (warp % 2 == 0)
        few_end<NT>(p, it, rows, acc, factors, first, n, tile);
}

/* All columns of an item. COLS: the most that a step of this kernel has, 8 or 64. */
template <int FORMAT, int COLS, bool X_SHARED>
static __device__ inline void few_run_item(few_ring &r, const CUtensorMap *map, const few_args &a,
                                           const few_item &it, const k_bf16 *from, float *sums)
{
    if constexpr (COLS == 8) {
        few_columns<FORMAT, 1, X_SHARED, false>(r, map, a, it, from, sums, it.start, it.count,
                                                NULL);
    } else {
        for (int done = 0; done < it.count; done += COLS) {
            int n = min(it.count - done, COLS), first = it.start + done;

            if (n <= 8)
                few_columns<FORMAT, 1, false, false>(r, map, a, it, from, sums, first, n, NULL);
            else if (n <= 16)
                few_columns<FORMAT, 2, false, false>(r, map, a, it, from, sums, first, n, NULL);
            else if (n <= 32)
                few_columns<FORMAT, 4, false, false>(r, map, a, it, from, sums, first, n, NULL);
            else
                few_columns<FORMAT, COLS / 8, false, false>(r, map, a, it, from, sums, first, n,
                                                            NULL);
        }
    }
}

/* Open a warp's ring. */
template <int FORMAT, int COLS>
static __device__ inline few_ring few_open_ring(few_shared<FORMAT, COLS> &s, const CUtensorMap *map)
{
    few_ring r = {};

    r.depth = few_shared<FORMAT, COLS>::DEPTH;
    r.pairs = few_shared<FORMAT, COLS>::PAIRS;
    r.boxes = s.boxes[warp_number()][0];
    r.full = s.full[warp_number()];
    if (leads()) {
        for (int i = 0; i < r.depth; i++)
            barrier_init(&r.full[i], 1);
        barrier_init_done();
        fence_async();
        if (FORMAT != EXPERTS_MXFP4)
            tensor_prefetch(map);
    }
    __syncwarp();
    return r;
}

static __device__ inline void few_look_up(few_ring &r, const few_args &a)
{
    int lane = threadIdx.x % 32;

    r.seen = lane <= a.p.n_experts ? __ldcg(a.p.touched + lane) : 0;
    r.n_touched = __shfl_sync(~0U, r.seen, 0);
}

/* Begin the items first .. last - 1 of a block. */
template <int FORMAT>
static __device__ inline void few_begin(few_ring &r, const CUtensorMap *map, const few_args &a,
                                        int first, int last)
{
    int warp = warp_number();

    r.last = last;
    r.item = first + warp / 2;
    few_begin_item<FORMAT>(r, a, warp);
    for (int i = 0; i < r.depth; i++)
        few_load<FORMAT>(r, map, a, warp, i);
}

/* Rows of x on their way to shared memory, for MXFP4: it has so many instructions that loads of x
 * from the L1 cache, which wait for each other, delay them. Other formats lose more by waiting for
 * the copy. A thread has every so many eights of elements. */
template <int HELD> struct few_rows_of_x {
    uint4 eights[HELD];
};

/* Eight elements of n rows. */
static __device__ inline uint4 few_eight_of_x(const struct experts_product &p, int n, int at)
{
    int each = few_x_pitch(p.n_in) / 8, row = at / each, col = at % each * 8;

    if (row >= n || col >= p.n_in)
        return make_uint4(0, 0, 0, 0);
    return *(const uint4 *)(p.x + (size_t)row * p.n_in + col);
}

/* Request the first of n rows. */
template <int HELD>
static __device__ inline few_rows_of_x<HELD> few_request_x(const struct experts_product &p, int n)
{
    few_rows_of_x<HELD> r;

#pragma unroll
    for (int i = 0; i < HELD; i++)
        r.eights[i] = few_eight_of_x(p, n, (int)(threadIdx.x + i * blockDim.x));
    return r;
}

/* Store them, and all others, times 2^MXFP4_SHIFT. */
template <int HELD>
static __device__ inline void few_store_x(uint4 *to, const few_rows_of_x<HELD> &r,
                                          const struct experts_product &p, int n)
{
    int size = n * few_x_pitch(p.n_in) / 8, at = threadIdx.x;

#pragma unroll
    for (int i = 0; i < HELD; i++, at += blockDim.x) {
        if (at < size)
            to[at] = mxfp4_raise(r.eights[i]);
    }
    for (; at < size; at += blockDim.x)
        to[at] = mxfp4_raise(few_eight_of_x(p, n, at));
    __syncthreads();
}

/* The items of a block. */
struct few_run_of_items {
    int first, last;
};

static __device__ inline few_run_of_items few_items_of_block(int n_items)
{
    unsigned n = (unsigned)n_items;

    return {(int)(n * blockIdx.x / gridDim.x), (int)(n * (blockIdx.x + 1) / gridDim.x)};
}

template <int FORMAT, int COLS, bool X_SHARED>
static __global__ void __launch_bounds__((few_shared<FORMAT, COLS>::THREADS), 1)
    few_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ few_args a)
{
    extern __shared__ __align__(1024) char memory[];
    few_shared<FORMAT, COLS> &s = *(few_shared<FORMAT, COLS> *)memory;
    const k_bf16 *from = X_SHARED ? (const k_bf16 *)s.x : a.p.x;
    int warp = warp_number();
    int rows = a.p.is_gated ? a.p.n_tokens : a.p.n_tokens * a.p.n_used;
    few_ring r = few_open_ring<FORMAT>(s, &map);
    few_rows_of_x<4> x;
    few_run_of_items items;

    if (a.p.is_gated) { /* else the choices are older than the previous kernel */
        wait_for_previous();
        if (X_SHARED)
            x = few_request_x<4>(a.p, rows);
        let_next_begin();
    }
    few_look_up(r, a);
    items = few_items_of_block(r.n_touched * a.n_tiles);
    few_begin<FORMAT>(r, &map, a, items.first, items.last);
    if (!a.p.is_gated) {
        wait_for_previous();
        if (X_SHARED)
            x = few_request_x<4>(a.p, rows);
        let_next_begin();
    }
    if (X_SHARED)
        few_store_x(s.x, x, a.p, rows);
    for (int item = items.first + warp / 2; item < r.last; item += r.pairs)
        few_run_item<FORMAT, COLS, X_SHARED>(r, &map, a, few_item_of(a, r, item), from,
                                             s.sums[warp / 2]);
}

/* Choose the experts of one token, by the first warp; the first block leaves them in memory too. */
template <int FORMAT>
static __device__ inline void few_choose_by_warp(few_shared<FORMAT, 8> &s, const route_args &c,
                                                 bool is_padding, bool stores)
{
    static_assert(sizeof s.sums >= K_EXPERTS_MAX * sizeof(uint32_t), "room for the keys");
    const route_slot slot = route_choose_in(c, 0, is_padding, (uint32_t *)s.sums);
    const route_place p = route_place_one(c, slot.id);

    if (p.has)
        s.chosen[1 + p.before] = p.expert;
    if (leads())
        s.chosen[0] = p.n;
    if (!stores)
        return;
    route_store(c, 0, slot);
    route_store_place(c, p);
    __threadfence(); /* the next kernel, which this one lets in, looks the experts up */
}

/* The first product of one token, with the choice of its experts. Code that a block runs once a
 * layer takes longer to be fetched than to run: so it chooses once before the logits are there,
 * from those of the layer before, and throws that away. */
template <int FORMAT, bool X_SHARED>
static __global__ void __launch_bounds__((few_shared<FORMAT, 8>::THREADS), 1)
    few_choose_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ few_args a,
                      const __grid_constant__ route_args c)
{
    extern __shared__ __align__(1024) char memory[];
    few_shared<FORMAT, 8> &s = *(few_shared<FORMAT, 8> *)memory;
    const k_bf16 *from = X_SHARED ? (const k_bf16 *)s.x : a.p.x;
    bool is_padding = route_is_padding(c, 0); /* lengths are older than the previous kernel */
    int warp = warp_number();
    few_ring r = few_open_ring<FORMAT>(s, &map);
    few_rows_of_x<1> x;
    few_run_of_items items;

#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1) {
            wait_for_previous();
            if (X_SHARED)
                x = few_request_x<1>(a.p, 1);
        }
        if (warp == 0)
            few_choose_by_warp<FORMAT>(s, c, is_padding, turn == 1 && blockIdx.x == 0);
    }
    __syncthreads();
    let_next_begin();
    r.seen = s.chosen[threadIdx.x % 32];
    r.n_touched = s.chosen[0];
    items = few_items_of_block(r.n_touched * a.n_tiles);
    few_begin<FORMAT>(r, &map, a, items.first, items.last);
    if (X_SHARED)
        few_store_x(s.x, x, a.p, 1);
    for (int item = items.first + warp / 2; item < r.last; item += r.pairs) {
        few_item it = few_item_of(a, r, item);

        few_columns<FORMAT, 1, X_SHARED, true>(r, &map, a, it, from, s.sums[warp / 2], it.start, 1,
                                               NULL);
    }
}

/* The second product of one token with the sum of its experts: a block has whole tiles, of each of
 * them the items of all experts. */
template <int FORMAT>
static __global__ void __launch_bounds__((few_shared<FORMAT, 8>::THREADS), 1)
    few_sum_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ few_args a,
                   const __grid_constant__ struct experts_end end)
{
    extern __shared__ __align__(1024) char memory[];
    few_shared<FORMAT, 8> &s = *(few_shared<FORMAT, 8> *)memory;
    const bool X_SHARED = FORMAT == EXPERTS_MXFP4;
    const k_bf16 *from = X_SHARED ? (const k_bf16 *)s.x : a.p.x;
    int warp = warp_number(), first = few_sum_first(a.n_tiles, blockIdx.x);
    int last = few_sum_first(a.n_tiles, blockIdx.x + 1);
    few_ring r = few_open_ring<FORMAT>(s, &map);
    few_rows_of_x<2> x;
    few_sum_row row;

    few_look_up(r, a); /* choices are older than the previous kernel */
    few_begin<FORMAT>(r, &map, a, first * r.n_touched, last * r.n_touched);
    row = few_sum_begin(s.results, end, first, last);
    wait_for_previous();
    if (X_SHARED)
        x = few_request_x<2>(a.p, r.n_touched);
    let_next_begin();
    if (X_SHARED)
        few_store_x(s.x, x, a.p, r.n_touched);
    for (int item = first * r.n_touched + warp / 2; item < r.last; item += r.pairs) {
        few_item it = few_item_of(a, r, item);

        few_columns<FORMAT, 1, X_SHARED, true>(r, &map, a, it, from, s.sums[warp / 2], it.start, 1,
                                               s.results.y[item - first * r.n_touched]);
    }
    __syncthreads();
    few_sum_end(s.results, end, row, first, last, r.n_touched);
}

/* --- launching -------------------------------------------------------------------------------- */

/* Bytes of shared memory with these rows of x, and room for what is loaded ahead after the last
 * one; 0: they do not fit. */
static size_t few_x_bytes(const struct experts_product *p)
{
    size_t rows = (size_t)p->n_tokens * (p->is_gated ? 1 : p->n_used);
    size_t elems = rows * few_x_pitch(p->n_in) + BOX_STEP + 2 * K_MXFP4_COLS;
    size_t bytes = sizeof(few_shared<EXPERTS_MXFP4, 8>) + elems * sizeof(k_bf16);

    return p->n_tokens <= 8 && bytes <= SHARED_MAX ? bytes : 0;
}

/* What a product of one token does besides; NULL: nothing. */
struct few_more {
    const struct experts_end *end;
    const route_args *choice;
};

/* Up to 8 tokens have a kernel without the code of more columns. */
template <int FORMAT>
static int few_launch(const struct experts_product *p, const struct few_more &also, int n_sms,
                      k_stream stream)
{
    typedef few_shared<FORMAT, 8> few;
    typedef few_shared<FORMAT, COLS_MAX> more;
    const int rows = p->is_gated ? 8 : TILE, elems = few_box_elems<FORMAT>();
    few_args a = {*p, (p->n_out + rows - 1) / rows, (p->n_in + elems - 1) / elems,
                  also.end != NULL};
    CUtensorMap map = {};

    static_assert(sizeof(few) <= SHARED_MAX && sizeof(more) <= SHARED_MAX, "shared memory");
    if (FORMAT != EXPERTS_MXFP4 && few_encode_map(&map, p, FORMAT != EXPERTS_PLAIN) != 0)
        return -1;
    if (also.end != NULL)
        return few_begin_launch(few_sum_kernel<FORMAT>, few::THREADS,
                                FORMAT == EXPERTS_MXFP4 ? few_x_bytes(p) : sizeof(few), n_sms,
                                stream, map, a, *also.end);
    if constexpr (FORMAT == EXPERTS_MXFP4) {
        if (also.choice != NULL && few_x_bytes(p) > 0)
            return few_begin_launch(few_choose_kernel<FORMAT, true>, few::THREADS, few_x_bytes(p),
                                    n_sms, stream, map, a, *also.choice);
    }
    if (also.choice != NULL)
        return few_begin_launch(few_choose_kernel<FORMAT, false>, few::THREADS, sizeof(few), n_sms,
                                stream, map, a, *also.choice);
    if constexpr (FORMAT == EXPERTS_MXFP4) {
        if (p->n_tokens <= 8 && few_x_bytes(p) > 0)
            return few_begin_launch(few_kernel<FORMAT, 8, true>, few::THREADS, few_x_bytes(p),
                                    n_sms, stream, map, a);
    }
    if (p->n_tokens <= 8)
        return few_begin_launch(few_kernel<FORMAT, 8, false>, few::THREADS, sizeof(few), n_sms,
                                stream, map, a);
    if constexpr (FORMAT != EXPERTS_MXFP4)
        return few_begin_launch(few_kernel<FORMAT, COLS_MAX, false>, more::THREADS, sizeof(more),
                                n_sms, stream, map, a);
    return -1; /* experts_strips.cu */
}

static int few_launch_any(const struct experts_product *p, const struct few_more &more,
                          enum experts_format format, int n_sms, k_stream stream)
{
    switch (format) {
    case EXPERTS_PLAIN: return few_launch<EXPERTS_PLAIN>(p, more, n_sms, stream);
    case EXPERTS_BY_ROW: return few_launch<EXPERTS_BY_ROW>(p, more, n_sms, stream);
    case EXPERTS_IN_BLOCKS: return few_launch<EXPERTS_IN_BLOCKS>(p, more, n_sms, stream);
    case EXPERTS_MXFP4: return few_launch<EXPERTS_MXFP4>(p, more, n_sms, stream);
    }
    return -1;
}

int experts_few(const struct experts_product *p, enum experts_format format, int n_sms,
                k_stream stream)
{
    return few_launch_any(p, {NULL, NULL}, format, n_sms, stream);
}

int experts_few_choose(const struct experts_product *p, const struct route_args *choice,
                       enum experts_format format, int n_sms, k_stream stream)
{
    return few_launch_any(p, {NULL, choice}, format, n_sms, stream);
}

bool experts_few_sums(const struct experts_product *p, enum experts_format format, int n_sms)
{
    int tiles = (p->n_out / TILE + n_sms - 1) / n_sms;

    return (format != EXPERTS_MXFP4 || few_x_bytes(p) > 0) && p->n_tokens == 1 &&
           p->n_out % TILE == 0 && (format != EXPERTS_PLAIN || p->n_in % 8 == 0) &&
           tiles <= FEW_SUM_TILES && tiles * p->n_used <= FEW_SUM_ITEMS && p->n_used <= 32;
}

int experts_few_sum(const struct experts_product *p, const struct experts_end *end,
                    enum experts_format format, int n_sms, k_stream stream)
{
    return few_launch_any(p, {end, NULL}, format, n_sms, stream);
}
