/* SPDX-License-Identifier: Apache-2.0
 *
 * Both products of one token's experts and their sum in one launch, for e4m3.
 *
 *   logits -> choice -> gates and ups -> ff, in memory -> downs -> sum by slots -> out, or residual
 *
 * Split: a block per multiprocessor, with the items and tiles of experts_few.cu: a run of items of
 * the first product, and some tiles of the second one with the items of all experts. A warp's
 * ring of boxes runs on from the first product to the second, so weights of the second one are on
 * their way while the first is multiplied. They must not be before those of the first: rings are
 * short, and pairs of warps without an item of the first product wait until half of it is done.
 *
 * Blocks hand ff over through memory without a counter: the launch in front fills it with 0xffff,
 * the bits of no result, and a warp reads the elements that it multiplies until all of them are
 * results.
 *
 * Waiting ends, because all blocks run at the same time. Shapes are refused if the grid has more
 * blocks than fit on the device. Kernels in front of it on the stream, and those of other streams,
 * end without it, so a block gets its multiprocessor sooner or later. The next kernel cannot take
 * one away, because it begins after all blocks have let it, and a block has begun then. Processes
 * that share multiprocessors at the same time (MPS) could each have a part of them; so a warp that
 * has read POLLS times stops the kernel, which is an error of the device.
 *
 * The router has a block on some multiprocessors, and blocks of this kernel begin there when it has
 * ended: these are the last ones of the grid, which choose at once. Others choose before, too, from
 * old logits, because code that is run once a layer takes longer to be fetched than to run.
 *
 * x, the residual and what the sum adds to are older than the launch in front, so they are
 * requested before it has ended, and before any weights, behind which they would queue. So are, for
 * the L2 cache, the weights of a shared expert, which is known without a choice.
 *
 * Bits are those of experts_few.cu: both have the boxes of a row, the warps, and the slots in the
 * same order. */
#include "kernels/experts_few.cuh"

#define PAIRS     8
#define WARPS     (2 * PAIRS)
#define THREADS   (32 * WARPS + 32)     /* the last warp chooses */
#define BOX       2048                  /* bytes: 16 rows x 128 columns */
#define EIGHTS    16                    /* of a box's columns */
#define ROOM      (EIGHTS + EIGHTS / 8) /* places of 16 bytes that these take: see one_place() */
#define DEPTH     2                     /* boxes of a ring */
#define DEPTH_MAX 3                     /* likewise with a shared expert: in the L2 cache already */
#define CHOSEN    (1 + PAIRS)           /* named barriers, after those of pairs */
#define HALFWAY   (2 + PAIRS)
#define HALF_MIN  4         /* boxes of an item from which on there is a half to wait for */
#define SHARERS   64        /* blocks that bring the shared expert: they begin early */
#define AHEAD     1024      /* bytes that a lane brings at a time */
#define HELD      3         /* eights of ff that a lane waits for at a time */
#define POLLS     (1 << 26) /* more than a minute */

/* After x there are the columns of ff of each warp, ceil(boxes / 2) * ROOM places. */
struct one_shared {
    char boxes[WARPS][DEPTH_MAX][BOX];
    float sums[PAIRS][4 * 32];
    uint64_t full[WARPS][DEPTH_MAX];
    int32_t chosen[1 + FEW_CHOOSE_MAX]; /* the number of own experts, and which, in their order */
    int32_t places[32];                 /* of slots, in that order; or -1 */
    float weights[32];                  /* of slots */
    few_results results;
    uint4 x[];
};

struct one_product {
    struct experts_product p;
    int n_tiles; /* of an expert */
    int n_boxes; /* of a tile */
};

struct one_args {
    struct one_product first, second;
    struct experts_end end;
};

/* The items of a block: those of the first product, and tiles of the second. */
struct one_items {
    int first, last;
    int first_tile, last_tile;
};

/* A warp's ring, the same in all lanes. */
struct one_ring {
    char *boxes;
    uint64_t *full;
    int seen, n_touched; /* lane i has word i of chosen; word 0 */
    int stage, parity;   /* of the box to be multiplied next */
    int free;            /* that is loaded next */
    int depth;
    const CUtensorMap *map;           /* of the box to be loaded next; NULL: there is none */
    int item, last, expert, row, box; /* likewise */
    int n_boxes;                      /* of its item */
    const CUtensorMap *next_map;      /* of the second product, while the first is loaded */
    int next_item, next_last, next_boxes;
    int n_idle;   /* warps without an item of the first product, which wait for its half; or 0 */
    bool is_idle; /* this is one of them */
};

/* Where eight number i of a row is in shared memory: lanes whose eights are 64 bytes apart meet in
 * no bank. */
static __device__ __host__ inline int one_place(int i)
{
    return i + i / 8;
}

/* --- loads ------------------------------------------------------------------------------------ */

/* Look up the item that is to be loaded next. Items of the first product follow each other by
 * tiles of an expert, those of the second by experts of a tile. */
static __device__ inline void one_begin_item(one_ring &r, const one_args &a, int warp)
{
    int whole, rest;

    if (r.map != NULL && (r.item >= r.last || warp % 2 >= r.n_boxes)) {
        r.map = r.next_map;
        r.item = r.next_item;
        r.last = r.next_last;
        r.n_boxes = r.next_boxes;
        r.next_map = NULL;
        if (r.item >= r.last || warp % 2 >= r.n_boxes)
            r.map = NULL;
    }
    if (r.map == NULL)
        return;
    if (r.next_map != NULL) {
        whole = few_quotient(r.item, a.first.n_tiles);
        rest = r.item - whole * a.first.n_tiles;
        r.expert = __shfl_sync(~0U, r.seen, 1 + whole);
        r.row = rest * 8;
    } else {
        whole = few_quotient(r.item, r.n_touched);
        rest = r.item - whole * r.n_touched;
        r.expert = __shfl_sync(~0U, r.seen, 1 + rest);
        r.row = whole * TILE;
    }
    r.box = warp % 2;
}

/* Load the warp's next box. */
static __device__ inline void one_load(one_ring &r, const one_args &a, int warp)
{
    int stage = r.free;

    if (r.map == NULL)
        return;
    if (leads()) {
        barrier_expect(&r.full[stage], BOX);
        few_copy_box(r.boxes + stage * BOX, r.map, r.box * 128, r.row, r.expert, &r.full[stage]);
    }
    r.free = stage + 1 < r.depth ? stage + 1 : 0;
    r.box += 2;
    if (r.box < r.n_boxes)
        return;
    r.item += PAIRS;
    one_begin_item(r, a, warp);
}

/* The stage that has been read is loaded again, and the next one's turn comes. */
static __device__ inline void one_next(one_ring &r, const one_args &a, int warp)
{
    __syncwarp();
    one_load(r, a, warp);
    if (++r.stage == r.depth) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

static __device__ inline one_ring one_open_ring(one_shared &s, const CUtensorMap *in,
                                                const CUtensorMap *down, int depth)
{
    one_ring r = {};

    r.boxes = s.boxes[warp_number()][0];
    r.full = s.full[warp_number()];
    r.depth = depth;
    r.map = in;
    r.next_map = down;
    if (leads()) {
        for (int i = 0; i < depth; i++)
            barrier_init(&r.full[i], 1);
        barrier_init_done();
        fence_async();
        tensor_prefetch(in);
        tensor_prefetch(down);
    }
    __syncwarp();
    return r;
}

static __device__ inline one_items one_items_of_block(const one_args &a, int n_touched)
{
    unsigned n = (unsigned)(n_touched * a.first.n_tiles);

    return {(int)(n * blockIdx.x / gridDim.x), (int)(n * (blockIdx.x + 1) / gridDim.x),
            few_sum_first(a.second.n_tiles, blockIdx.x),
            few_sum_first(a.second.n_tiles, blockIdx.x + 1)};
}

/* The first item of a pair in the second product: pairs with fewer items of the first are first. */
static __device__ inline int one_second_item(const one_items &items, int n_touched, int pair)
{
    return items.first_tile * n_touched + PAIRS - 1 - pair;
}

/* Request a warp's first boxes. */
static __device__ inline void one_begin(one_ring &r, const one_args &a, const one_items &items)
{
    int warp = warp_number();

    r.item = items.first + warp / 2;
    r.last = items.last;
    r.n_boxes = a.first.n_boxes;
    r.next_item = one_second_item(items, r.n_touched, warp / 2);
    r.next_last = items.last_tile * r.n_touched;
    r.next_boxes = a.second.n_boxes;
    if (r.depth == DEPTH && a.first.n_boxes >= HALF_MIN && items.first < items.last)
        r.n_idle = max(0, 2 * (PAIRS - (items.last - items.first)));
    r.is_idle = r.n_idle > 0 && r.item >= r.last;
    one_begin_item(r, a, warp);
    for (int i = 0; i < r.depth && !r.is_idle; i++)
        one_load(r, a, warp);
}

/* --- products --------------------------------------------------------------------------------- */

/* A lane's elements of a box; x: the eights of its columns. */
static __device__ inline few_column<EXPERTS_BY_ROW> one_inputs(const uint4 *x)
{
    few_column<EXPERTS_BY_ROW> c;

#pragma unroll
    for (int i = 0; i < 4; i++)
        c.x[i] = x[one_place((int)threadIdx.x % 4 * 4 + i)];
    return c;
}

/* The sums of a warp's boxes of an item; x: the eights of the warp's first one, the next one's are
 * `step` boxes further on. halfway: a box of the warp after which idle warps may begin, or -1. */
template <int FORMAT>
static __device__ inline void one_multiply(float (&acc)[4], one_ring &r, const one_args &a,
                                           const one_product &p, const few_item &it, const uint4 *x,
                                           int step, int halfway)
{
    int warp = warp_number(), g = threadIdx.x % 32 / 4, own = it.expert * p.p.rows;
    const float *low =
        p.p.scales + (own + few_row(p.p, it.tile, g)) / EXPERTS_BLOCK * p.p.scale_cols;
    const float *high =
        p.p.scales + (own + few_row(p.p, it.tile, g + 8)) / EXPERTS_BLOCK * p.p.scale_cols;

#pragma unroll 1
    for (int box = warp % 2; box < p.n_boxes; box += 2, x += step * ROOM) {
        const few_column<EXPERTS_BY_ROW> begun = one_inputs(x);
        float2 scales = few_box_scales<FORMAT>(p.p, low, high, box);
        few_parts<EXPERTS_BY_ROW> w;
        few_column<FORMAT> c;
        few_parts<FORMAT> parts;

        barrier_wait(&r.full[r.stage], r.parity);
        w = few_weights<EXPERTS_BY_ROW>(r.boxes + r.stage * BOX);
        one_next(r, a, warp);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            c.x[i] = begun.x[i];
            parts.low[i] = w.low[i];
            parts.high[i] = w.high[i];
        }
        few_box<FORMAT>(acc, parts, c, scales);
        if (box == halfway)
            named_arrive(HALFWAY, 32 * (1 + r.n_idle));
    }
}

/* Are all eight elements results? None of these is 0xffff, which is a NaN: theirs is 0x7fff. */
static __device__ inline bool one_is_whole(const uint4 &v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    uint32_t none = 0;

#pragma unroll
    for (int i = 0; i < 4; i++) /* a half of ~word is 0 */
        none |= (~words[i] - 0x00010001U) & words[i] & 0x80008000U;
    return none == 0;
}

static __device__ inline uint4 one_load_ff(const k_bf16 *from)
{
    uint4 v;

    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

static __device__ inline void one_store_ff(k_bf16 *to, float x)
{
    const __nv_bfloat16 y = __float2bfloat16(x);

    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(__bfloat16_as_ushort(y))
                 : "memory");
}

/* A result of the first product. */
static __device__ inline void one_end_first(const experts_product &p, const few_item &it,
                                            const few_rows &r, const float (&acc)[4], float factor)
{
    int out = it.tile * 8 + (int)threadIdx.x % 32 / 4;
    float y = acc[0] * (r.scale.x * factor) + load_bf16(&r.bias[0]);
    float z = acc[2] * (r.scale.y * factor) + load_bf16(&r.bias[1]);

    if (threadIdx.x % 4 == 0 && out < p.n_out)
        one_store_ff(p.out + (size_t)it.start * p.n_out + out, gated(y, z, p.activation));
}

/* The warp's columns of a row of ff, when they are there. */
static __device__ inline void one_fetch_ff(uint4 *to, const one_product &p, int place)
{
    int lane = threadIdx.x % 32, half = warp_number() % 2;
    int n = (p.n_boxes - half + 1) / 2 * EIGHTS;
    const k_bf16 *row = p.p.x + (size_t)place * p.p.n_in;

    for (int first = lane; first < n; first += 32 * HELD) {
        uint4 v[HELD];
        bool whole;
        int polls = 0;

        do {
            if (++polls > POLLS)
                __trap();
            whole = true;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                int at = first + i * 32,
                    col = ((at / EIGHTS * 2 + half) * EIGHTS + at % EIGHTS) * 8;

                v[i] = at < n && col < p.p.n_in ? one_load_ff(row + col) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < HELD; i++)
                whole = whole && one_is_whole(v[i]);
        } while (!whole);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (first + i * 32 < n)
                to[one_place(first + i * 32)] = v[i];
        }
    }
    __syncwarp();
}

template <int FORMAT>
static __device__ inline void one_run_first(one_ring &r, const one_args &a, one_shared &s,
                                            const one_items &items, float factor)
{
    int warp = warp_number();

    for (int item = items.first + warp / 2; item < items.last; item += PAIRS) {
        int place = few_quotient(item, a.first.n_tiles);
        few_item it = {__shfl_sync(~0U, r.seen, 1 + place), item - place * a.first.n_tiles, place,
                       1};
        const few_rows rows = few_rows_of<FORMAT>(a.first.p, it);
        float acc[1][4] = {};

        one_multiply<FORMAT>(
            acc[0], r, a, a.first, it, s.x + warp % 2 * ROOM, 2,
            item == items.first && warp == 0 && r.n_idle > 0 ? a.first.n_boxes / 4 * 2 - 2 : -1);
        few_add_halves<1>(acc, s.sums[warp / 2], warp);
        if (warp % 2 == 0)
            one_end_first(a.first.p, it, rows, acc[0], factor);
    }
    if (!r.is_idle)
        return;
    named_sync(HALFWAY, 32 * (1 + r.n_idle));
#pragma unroll 1
    for (int i = 0; i < r.depth; i++)
        one_load(r, a, warp);
}

template <int FORMAT>
static __device__ inline void one_run_second(one_ring &r, const one_args &a, one_shared &s,
                                             const one_items &items, uint4 *ff)
{
    int warp = warp_number(), first = items.first_tile * r.n_touched;

    for (int item = one_second_item(items, r.n_touched, warp / 2);
         item < items.last_tile * r.n_touched; item += PAIRS) {
        int tile = few_quotient(item, r.n_touched), place = item - tile * r.n_touched;
        few_item it = {__shfl_sync(~0U, r.seen, 1 + place), tile, place, 1};
        const few_rows rows = few_rows_of<FORMAT>(a.second.p, it);
        float acc[1][4] = {}, factors[1][2] = {{1.0f, 1.0f}};

        one_fetch_ff(ff, a.second, place);
        one_multiply<FORMAT>(acc[0], r, a, a.second, it, ff, 1, -1);
        few_add_halves<1>(acc, s.sums[warp / 2], warp);
        if (warp % 2 == 0)
            few_end<1>(a.second.p, it, rows, acc, factors, 0, 1, s.results.y[item - first]);
    }
}

/* Bring a block's share of an expert's matrix to the L2 cache, by one warp. */
static __device__ inline void one_fetch_matrix(const experts_product &p, int expert, int block)
{
    size_t bytes = (size_t)p.rows * p.n_in, share = (bytes / SHARERS + 15) / 16 * 16;
    const char *from = (const char *)p.w + expert * bytes + block * share;
    size_t left = block * share < bytes ? bytes - block * share : 0;
    int n = (int)(share < left ? share : left);

    for (int at = (int)threadIdx.x % 32 * AHEAD; at < n; at += 32 * AHEAD)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at),
                     "r"(min(AHEAD, n - at))
                     : "memory");
}

/* The shared expert, the first of them, which every token has. */
static __device__ inline void one_fetch_shared(const one_args &a, const route_args &c)
{
    int expert = c.r.n_experts - c.first;

    if (c.r.n_shared == 0 || expert < 0 || expert >= c.n_own || (int)blockIdx.x >= SHARERS)
        return;
    one_fetch_matrix(a.first.p, expert, (int)blockIdx.x);
    one_fetch_matrix(a.second.p, expert, (int)blockIdx.x);
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* x in shared memory; zeros follow it up to whole boxes. */
static __device__ inline void one_store_x(uint4 *to, const one_product &p)
{
    for (int i = threadIdx.x; i < p.n_boxes * EIGHTS; i += 32 * WARPS)
        to[one_place(i)] =
            i * 8 < p.p.n_in ? __ldcg((const uint4 *)(p.p.x + i * 8)) : make_uint4(0, 0, 0, 0);
}

/* Choose the experts, by a warp of its own; all others are let go when they are known. goes: no
 * rehearsal. */
static __device__ inline void one_choose(one_shared &s, const route_args &c, bool is_padding,
                                         bool goes)
{
    static_assert(sizeof s.sums >= K_EXPERTS_MAX * sizeof(uint32_t), "room for the keys");
    int lane = threadIdx.x % 32;
    uint32_t *keys = (uint32_t *)s.sums - (size_t)WARPS * c.r.n_experts; /* as it adds that */
    const route_slot slot = route_choose_in(c, 0, is_padding, keys, [&](int id) {
        const route_place p = route_place_one(c, id);

        if (p.has)
            s.chosen[1 + p.before] = p.expert;
        if (lane == 0)
            s.chosen[0] = p.n;
        s.places[lane] = p.has ? p.before : -1;
        __syncwarp();
        if (goes)
            named_arrive(CHOSEN, THREADS);
    });

    s.weights[lane] = slot.weight;
}

template <int FORMAT>
static __global__ void __launch_bounds__(THREADS, 1)
    one_kernel(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap down,
               const __grid_constant__ one_args a, const __grid_constant__ route_args c)
{
    extern __shared__ __align__(1024) char memory[];
    one_shared &s = *(one_shared *)memory;
    bool is_padding = route_is_padding(c, 0);
    int warp = warp_number(), n_late = (c.n_logits + c.high - 1) / c.high;
    bool is_late = (int)blockIdx.x >= (int)gridDim.x - n_late;
    uint4 *ff = s.x + a.first.n_boxes * ROOM + warp * ((a.second.n_boxes + 1) / 2 * ROOM);
    one_items items = one_items_of_block(a, 0);
    few_sum_row row = few_sum_begin(s.results, a.end, items.first_tile, items.last_tile);

    if (warp == WARPS) {
#pragma unroll 1
        for (int turn = is_late ? 1 : 0; turn < 2; turn++) {
            if (turn == 1)
                wait_for_previous();
            one_choose(s, c, is_padding, turn == 1);
        }
    } else {
        one_ring r = one_open_ring(s, &in, &down, c.r.n_shared > 0 ? DEPTH_MAX : DEPTH);
        float factor = 1.0f;

        one_store_x(s.x, a.first);
        if (warp == WARPS - 1)
            one_fetch_shared(a, c);
        wait_for_previous();
        named_sync(CHOSEN, THREADS);
        r.seen = s.chosen[threadIdx.x % 32];
        r.n_touched = s.chosen[0];
        items = one_items_of_block(a, r.n_touched);
        one_begin(r, a, items);
        if (a.first.p.inverse != NULL)
            factor = __ldcg(a.first.p.inverse);
        let_next_begin();
        one_run_first<FORMAT>(r, a, s, items, factor);
        one_run_second<FORMAT>(r, a, s, items, ff);
    }
    __syncthreads();
    row.place = s.places[threadIdx.x % 32];
    row.weight = s.weights[threadIdx.x % 32];
    few_sum_end(s.results, a.end, row, items.first_tile, items.last_tile, s.chosen[0]);
}

/* --- launching -------------------------------------------------------------------------------- */

static struct one_args one_args_of(const struct experts_product *first,
                                   const struct experts_product *second,
                                   const struct experts_end *end)
{
    struct one_args a = {};

    a.first.p = *first;
    a.first.n_tiles = (first->n_out + 7) / 8;
    a.first.n_boxes = (first->n_in + 127) / 128;
    a.second.p = *second;
    a.second.n_tiles = second->n_out / TILE;
    a.second.n_boxes = (second->n_in + 127) / 128;
    if (end != NULL)
        a.end = *end;
    return a;
}

static size_t one_bytes(const struct one_args &a)
{
    size_t places =
        (size_t)a.first.n_boxes * ROOM + (size_t)WARPS * ((a.second.n_boxes + 1) / 2 * ROOM);

    return sizeof(one_shared) + places * sizeof(uint4);
}

/* Can all blocks run at the same time? They wait for each other. */
template <int FORMAT> static bool one_fits(size_t bytes, int n_sms)
{
    int device, have, each;

    return cudaFuncSetAttribute(one_kernel<FORMAT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)bytes) == cudaSuccess &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&have, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
           cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, one_kernel<FORMAT>, THREADS,
                                                         bytes) == cudaSuccess &&
           n_sms <= have * each;
}

bool experts_one_takes(const struct experts_product *first, const struct experts_product *second,
                       enum experts_format in, enum experts_format down, int n_sms)
{
    size_t bytes = one_bytes(one_args_of(first, second, NULL));

    if (in != down || (in != EXPERTS_BY_ROW && in != EXPERTS_IN_BLOCKS) || bytes > SHARED_MAX ||
        first->n_used > FEW_CHOOSE_MAX || !experts_few_sums(second, down, n_sms))
        return false;
    return in == EXPERTS_BY_ROW ? one_fits<EXPERTS_BY_ROW>(bytes, n_sms)
                                : one_fits<EXPERTS_IN_BLOCKS>(bytes, n_sms);
}

template <int FORMAT>
static int one_launch(const struct one_args &a, const struct route_args *choice, int n_sms,
                      k_stream stream)
{
    CUtensorMap in, down;

    if (few_encode_map(&in, &a.first.p, true) != 0 || few_encode_map(&down, &a.second.p, true) != 0)
        return -1;
    return few_begin_launch(one_kernel<FORMAT>, THREADS, one_bytes(a), n_sms, stream, in, down, a,
                            *choice);
}

int experts_one(const struct experts_product *first, const struct experts_product *second,
                const struct experts_end *end, const struct route_args *choice,
                enum experts_format format, int n_sms, k_stream stream)
{
    const struct one_args a = one_args_of(first, second, end);

    return (format == EXPERTS_BY_ROW ? one_launch<EXPERTS_BY_ROW>
                                     : one_launch<EXPERTS_IN_BLOCKS>)(a, choice, n_sms, stream);
}
