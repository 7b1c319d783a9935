/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of at most three rows with bfloat16: y [n][n_out] = x [n][n_in] * transpose(w
 * [n_out][n_in]), bound by the bytes of w, with the operations around them in a decode
 * (k_multiply() in kernels.h).
 *
 *   w --TMA--> ring of boxes (per warp) --mma--> accumulators -+
 *   x --TMA--> shared memory -----------------------^          |  end of a pass: sums of the
 *                                                              +--> WK warps -> epilogue -> y
 *
 * Split: one CTA per multiprocessor. Rows of w are cut into tiles of 16, and a CTA takes a run of
 * tiles. WK of its eight warps share a tile (split-K in the CTA): each takes every WK-th pair of
 * boxes, a box being 16 rows x 128 bytes. Each warp has a ring of its own: it loads boxes with the
 * TMA, multiplies them (mma.m16n8k16, w on the side of 16, rows of x on the side of 8) and loads
 * the next ones into the same place; no warp waits for another until a pass of PT tiles ends. Then
 * the partial sums are added in shared memory, and the threads that add them finish the outputs.
 * The order of summation depends on the shape and n's bucket alone.
 *
 * Shared memory: rings [WARPS][depth] of 4 KB, rows of x, sums of warps, barriers. About 128 KB of
 * boxes are in flight; with 192 KB, or when a second kernel's rings are resident too, the same
 * copies are slower by a third (docs/kernels/guide.md).
 *
 * The first boxes are loaded before the previous kernel has ended (programmatic dependent launch),
 * because weights do not depend on it.
 *
 * Lanes: lane (g = lane / 4, q = lane % 4) has rows g and g + 8 of a tile. The order of the
 * elements of n_in is free as long as w and x agree, so lane q takes the 16-byte chunks 2 q and 2 q
 * + 1 of a box's row: with the TMA's 128-byte swizzle no two lanes of a quarter warp meet in a
 * bank, and no ldmatrix is needed. Rows of x are padded by 16 bytes, for the same reason. */
#include "kernels/choice.h"
#include "kernels/product_adapt.cuh"
#include "kernels/product_cut.h"
#include "kernels/product_end.cuh"

#define ROWS_FEW    3 /* for more the other kernel is faster */
#define WARPS       8
#define THREADS     (WARPS * 32)
#define BOX_ROWS    16
#define BOX_COLS    64
#define BOX_BYTES   2048 /* 16 rows of 128 bytes */
#define STAGE_BYTES (2 * BOX_BYTES)
#define DEPTH_MAX   4  /* stages of a ring: 128 KB per multiprocessor */
#define COL_STRIDE  20 /* stride of sums in shared memory: 16 rows, and no two lanes in a bank */
#define SMEM_MAX    (226 * 1024)

struct product_args {
    struct k_product p;
    int n, n_in, n_out;
    int tiles_each, tiles_left; /* tiles of 16 rows of w per block, and how many blocks have one
                                 * more */
    int n_boxes;                /* boxes per tile */
    int depth;                  /* stages of a ring */
    int x_stride;               /* bytes between rows of x in shared memory */
};

/* --- instructions ----------------------------------------------------------------------------- */

/* barrier_wait() with a branch inside the assembly: in this loop the code around a wait matters,
 * and it was measured with this one. */
static __device__ inline void product_bar_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(shared_addr(bar)),
                 "r"(parity)
                 : "memory");
}

/* Load two boxes of the matrix, side by side: `box` is the index of the first one in its row, `row`
 * the first row. Weights are read once per step: evict first. */
static __device__ inline void product_copy_boxes(void *to, const CUtensorMap *map, int box, int row,
                                                 uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(shared_addr(to)),
                 "l"(map), "r"(0), "r"(row), "r"(box), "r"(shared_addr(bar)),
                 "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* --- one box ---------------------------------------------------------------------------- */

struct chunk {
    uint4 low, high; /* rows g and g + 8 */
};

/* A lane's 16 bytes of rows g and g + 8; `at ^ g` is the engine's swizzle. */
static __device__ inline chunk product_load_chunk(const char *box, int g, int at)
{
    const char *row = box + g * 128 + (at ^ g) * 16;

    return {*(const uint4 *)row, *(const uint4 *)(row + 8 * 128)};
}

/* Multiply 32 elements of n_in: eight of each lane's quarter. */
template <int NT>
static __device__ inline void product_multiply_bf16(float acc[NT][4], const chunk &a, const char *x,
                                                    const uint32_t x_row[NT])
{
#pragma unroll
    for (int tile_idx = 0; tile_idx < NT; tile_idx++) {
        uint4 x_words = *(const uint4 *)(x + x_row[tile_idx]);

        end_multiply_16x8(acc[tile_idx], a.low.x, a.high.x, a.low.y, a.high.y, x_words.x,
                          x_words.y);
        end_multiply_16x8(acc[tile_idx], a.low.z, a.high.z, a.low.w, a.high.w, x_words.z,
                          x_words.w);
    }
}

/* Multiply one box in shared memory by the rows of x. */
template <int NT>
static __device__ inline void product_multiply_box(float acc[2][NT][4], const char *box,
                                                   const char *x, const uint32_t x_row[NT])
{
    int lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;
    chunk c0 = product_load_chunk(box, lane_row, 2 * lane_col),
          c1 = product_load_chunk(box, lane_row, 2 * lane_col + 1);

    product_multiply_bf16<NT>(acc[0], c0, x, x_row);
    product_multiply_bf16<NT>(acc[1], c1, x + 16, x_row);
}

/* --- a warp's ring ---------------------------------------------------------------------- */

/* A warp's ring. A stage has two boxes, so that one wait and one copy move 4 KB. All lanes keep the
 * same numbers. */
struct box_ring {
    char *boxes;
    uint64_t *bars;
    int stage, parity;        /* of the boxes to be multiplied next */
    int tile, last_tile, box; /* to be loaded next */
    int tile_rows;            /* rows of a part (gate or up) in a tile */
};

/* Load the next two boxes of a tile into a stage. The second may be one too many (zeros, or another
 * CTA's): it is not multiplied. */
template <int WK>
static __device__ inline void product_load_boxes(box_ring &r, const CUtensorMap *map,
                                                 const product_args &a, int warp, int stage)
{
    if (r.tile >= r.last_tile)
        return;
    if (leads()) {
        barrier_expect(&r.bars[stage], STAGE_BYTES);
        product_copy_boxes(r.boxes + stage * STAGE_BYTES, map, r.box, r.tile * r.tile_rows,
                           &r.bars[stage]);
    }
    r.box += 2 * WK;
    if (r.box >= a.n_boxes) {
        r.box = warp % WK * 2;
        r.tile += WARPS / WK;
    }
}

/* Multiply a tile by the rows of x; acc gets the sums over this warp's boxes. */
template <int NT, int WK>
static __device__ inline void product_multiply_tile(float acc[2][NT][4], box_ring &r,
                                                    const CUtensorMap *map, const product_args &a,
                                                    const char *xs, const uint32_t x_row[NT],
                                                    int warp)
{
    const int x_bytes = 128; /* of a row of x, for a box */

    for (int box = warp % WK * 2; box < a.n_boxes; box += 2 * WK) {
        const char *from = r.boxes + r.stage * STAGE_BYTES, *x = xs + box * x_bytes;

        product_bar_wait(&r.bars[r.stage], r.parity);
        product_multiply_box<NT>(acc, from, x, x_row);
        if (box + 1 < a.n_boxes)
            product_multiply_box<NT>(acc, from + BOX_BYTES, x + x_bytes, x_row);
        __syncwarp();
        product_load_boxes<WK>(r, map, a, warp, r.stage);
        if (r.tile >= r.last_tile) /* repeated; only the first time counts */
            asm volatile("griddepcontrol.launch_dependents;");
        if (++r.stage == a.depth) {
            r.stage = 0;
            r.parity ^= 1;
        }
    }
}

/* Store a warp's sums of a tile [n][COL_STRIDE]. */
template <int NT>
static __device__ inline void product_store_sums(float *to, const float acc[2][NT][4], int n)
{
    int lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;

#pragma unroll
    for (int tile_idx = 0; tile_idx < NT; tile_idx++) {
#pragma unroll
        for (int elem = 0; elem < 4; elem++) {
            int col = tile_idx * 8 + lane_col * 2 + elem % 2;

            if (col < n)
                to[col * COL_STRIDE + lane_row + elem / 2 * 8] =
                    acc[0][tile_idx][elem] + acc[1][tile_idx][elem];
        }
    }
}

/* --- epilogue --------------------------------------------------------------------------------- */

/* Choose the thread's output. 16 lanes have the rows of a tile, so that they can add squares.
 * `tile` is the first of the pass' TILES. */
template <int TILES>
static __device__ inline output product_choose_output(const product_args &a, int tile, int last)
{
    const struct k_product &p = a.p;
    int i = (threadIdx.x + (unsigned)tile * 32) % THREADS, row = i % 16;
    bool gated = p.kind == K_PRODUCT_GATED;
    output out = {};

    out.place = i % (16 * TILES);
    out.c = i / (16 * TILES);
    tile += out.place / 16;
    out.row = gated ? tile * 8 + row : tile * 16 + row;
    out.mine = out.c < a.n && tile < last && out.row < (gated ? a.n_out / 2 : a.n_out) &&
               !(gated && row >= 8);
    if (!out.mine)
        return out;
    end_fetch_output(out, p, a.n_out);
    return out;
}

/* Add the sums of a place and column of the warps that share a tile: [TILES][WK][n][COL_STRIDE]. */
template <int WK>
static __device__ inline float product_sum_warps(const float *red, int place, int col, int n)
{
    float sum = 0.0f;

#pragma unroll
    for (int warp_idx = 0; warp_idx < WK; warp_idx++)
        sum += red[((place / 16 * WK + warp_idx) * n + col) * COL_STRIDE + place % 16];
    return sum;
}

/* What adapters do in a product; here there are none. */
template <class JOIN> struct product_adapters {
    static constexpr int WARPS_MORE = 0;

    __device__ product_adapters(const JOIN &, void *)
    {
    }
    __device__ void help(const char *, int, uint64_t *)
    {
    }
    __device__ void fetch(const output &, bool)
    {
    }
    __device__ void meet(bool) const
    {
        __syncthreads();
    }
    __device__ void add(float &, float &, int) const
    {
    }
};

/* Warps of their own make t while the others multiply, which meet them twice: when the rows'
 * adapters are in shared memory, and when t is. */
template <> struct product_adapters<k_adapting> {
    static constexpr int WARPS_MORE = ADAPT_WARPS;
    static constexpr int ALL = THREADS + 32 * WARPS_MORE;
    static constexpr int MULTIPLY_ID = 2, NOTED_ID = 3, MADE_ID = 4; /* named barriers */

    const k_adapting &j;
    adapt_shared &sh;
    adapt_words own, up; /* of this thread's output */

    __device__ product_adapters(const k_adapting &join, void *memory)
        : j(join), sh(*(adapt_shared *)memory)
    {
    }

    /* The warps that make t; x arrives at its barrier. */
    __device__ void help(const char *xs, int x_bytes, uint64_t *x_bar)
    {
        adapt_item item = adapt_begin(sh, j);

        named_arrive(NOTED_ID, ALL);
        asm volatile("griddepcontrol.wait;" ::: "memory");
        product_bar_wait(x_bar, 0);
        adapt_make_t(j, item, xs, x_bytes);
        adapt_collect_t(sh, j);
        named_arrive(MADE_ID, ALL);
    }

    /* Request the rows of b for an output. */
    __device__ void fetch(const output &o, bool is_first)
    {
        if (is_first)
            named_sync(NOTED_ID, ALL);
        if (!o.mine)
            return;
        own = adapt_fetch_b(sh, j, o.c, o.row);
        if (j.p.kind == K_PRODUCT_GATED)
            up = adapt_fetch_b(sh, j, o.c, o.row + j.n_out / 2);
    }

    /* The warps' sums of a pass are in shared memory; t is, too. */
    __device__ void meet(bool is_first) const
    {
        if (is_first)
            named_sync(MADE_ID, ALL);
        else
            named_sync(MULTIPLY_ID, THREADS);
    }

    /* Add to the sums of an output and, with a gate, of up. */
    __device__ void add(float &sum, float &up_sum, int kind) const
    {
        sum += adapt_sum(sh, j, own);
        if (kind == K_PRODUCT_GATED)
            up_sum += adapt_sum(sh, j, up);
    }
};

/* Add the warps' sums and the adapters', and finish the outputs. */
template <int WK, class ADAPTERS>
static __device__ void product_end_pass(const float *red, const targets &to, const output &o, int n,
                                        const float *inverse, const ADAPTERS &adapters,
                                        bool is_first)
{
    float sum, up = 0.0f;

    adapters.meet(is_first);
    if (!o.mine)
        return;
    if (to.kind == K_PRODUCT_GATED)
        up = product_sum_warps<WK>(red, o.place + 8, o.c, n);
    sum = product_sum_warps<WK>(red, o.place, o.c, n);
    adapters.add(sum, up, to.kind);
    end_write_output(to, o, sum, up, inverse[o.c]);
}

/* --- the rows of x ---------------------------------------------------------------------- */

/* Load the rows of x; by one lane. */
static __device__ void product_load_x(char *xs, const product_args &a, uint64_t *bar)
{
    barrier_expect(bar, a.n * a.n_in * 2);
    for (int col = 0; col < a.n; col++)
        end_copy_bytes(xs + col * a.x_stride, (const k_bf16 *)a.p.x + (size_t)col * a.n_in,
                       a.n_in * 2, bar);
}

/* --- the kernel ------------------------------------------------------------------------- */

/* Initialise a warp's barriers, and load its first boxes. */
template <int WK>
static __device__ inline void product_begin_ring(box_ring &ring, uint64_t *x_bar,
                                                 const CUtensorMap *map, const product_args &a,
                                                 int warp)
{
    if (leads()) {
        for (int i = 0; i < a.depth; i++)
            barrier_init(&ring.bars[i], 1);
        if (warp == 0)
            barrier_init(x_bar, 1);
        barrier_init_done();
        fence_async();
    }
    __syncwarp();
    for (int i = 0; i < a.depth; i++)
        product_load_boxes<WK>(ring, map, a, warp, i);
}

/* NT: columns computed, in eights; WK: warps that share a tile; PT: tiles of a warp per pass; JOIN:
 * k_adapting if the product adds adapters, which have more warps and a memory of adapt_shared. */
template <int NT, int WK, int PT, class JOIN>
static __global__ void __launch_bounds__(THREADS + 32 * product_adapters<JOIN>::WARPS_MORE, 1)
    product_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ product_args a,
                   const __grid_constant__ JOIN join)
{
    /* Shared memory: rings [WARPS][depth], x [n][x_stride], sums of warps
     * [2][PT][WARPS][n][COL_STRIDE], inverse [8 NT], barriers [WARPS][depth] and that of x, the
     * adapters'. */
    extern __shared__ __align__(1024) char shared[];
    const int tiles = WARPS / WK * PT;
    int warp = warp_number(), lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4, pass = 0;
    char *xs = shared + WARPS * a.depth * STAGE_BYTES;
    float *red = (float *)(xs + a.n * a.x_stride), *red_odd = red + PT * WARPS * COL_STRIDE * a.n;
    float *inverse = red_odd + PT * WARPS * COL_STRIDE * a.n;
    uint64_t *bars = (uint64_t *)(inverse + 8 * NT), *x_bar = bars + WARPS * a.depth;
    constexpr bool HELPED = product_adapters<JOIN>::WARPS_MORE > 0;
    product_adapters<JOIN> adapters(join, bars + (WARPS * DEPTH_MAX + 2));
    int first = blockIdx.x * a.tiles_each + min((int)blockIdx.x, a.tiles_left);
    int last = first + a.tiles_each + ((int)blockIdx.x < a.tiles_left);
    targets to = end_targets_of(a.p, a.n_out);
    box_ring ring = {};
    uint32_t x_row[NT];
    float squares[SQUARES];

    ring.boxes = shared + warp * a.depth * STAGE_BYTES;
    ring.bars = bars + warp * a.depth;
    ring.tile = warp % WK * 2 < a.n_boxes ? first + warp / WK : last;
    ring.last_tile = last;
    ring.box = warp % WK * 2;
    ring.tile_rows = a.p.kind == K_PRODUCT_GATED ? 8 : BOX_ROWS;
    if (!HELPED || warp < WARPS)
        product_begin_ring<WK>(ring, x_bar, &map, a, warp);
    for (int tile_idx = 0; tile_idx < NT; tile_idx++)
        x_row[tile_idx] = min(tile_idx * 8 + lane_row, a.n - 1) * a.x_stride + lane_col * 32;
    __syncthreads();
    if (HELPED && warp >= WARPS) {
        adapters.help(xs, a.x_stride, x_bar);
        return;
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (warp == 0 && leads())
        product_load_x(xs, a, x_bar);
    end_fetch_squares(squares, warp, a);
    product_bar_wait(x_bar, 0);

    /* A CTA without tiles meets its helpers all the same. */
    for (int tile = first; tile < last || (HELPED && pass == 0); tile += tiles, pass++) {
        float *sums = pass & 1 ? red_odd : red;
        output out = product_choose_output<tiles>(a, tile, last);

        for (int tile_idx = 0; tile_idx < PT; tile_idx++) {
            float acc[2][NT][4] = {};

            if (tile + tile_idx * (WARPS / WK) + warp / WK < last)
                product_multiply_tile<NT, WK>(acc, ring, &map, a, xs, x_row, warp);
            if (tile_idx == 0)
                adapters.fetch(out, pass == 0);
            product_store_sums<NT>(sums + (tile_idx * WARPS + warp) * COL_STRIDE * a.n, acc, a.n);
        }
        if (tile == first)
            end_find_inverse<WARPS>(inverse, squares, warp, a);
        product_end_pass<WK>(sums, to, out, a.n, inverse, adapters, pass == 0);
    }
}

/* --- launching -------------------------------------------------------------------------- */

/* Map the matrix as [boxes][parts][rows][128 bytes]: two parts when the rows of gate and up are one
 * after the other. */
static int product_encode_map(CUtensorMap *map, const struct k_product *p)
{
    bool gated = p->kind == K_PRODUCT_GATED;
    cuuint64_t rows = (cuuint64_t)p->w->n_out / (gated ? 2 : 1);
    cuuint64_t row_bytes = (cuuint64_t)p->w->n_in * 2;
    cuuint64_t sizes[4] = {BOX_COLS, rows, gated ? 2U : 1U, row_bytes / 128};
    cuuint64_t strides[3] = {row_bytes, row_bytes * rows, 128};
    cuuint32_t box[4] = {BOX_COLS, gated ? 8U : 16U, gated ? 2U : 1U, 2};

    return encode_boxes(map, false, p->w->data, 4, sizes, strides, box);
}

/* Bytes of shared memory apart from the rings. */
static size_t product_rest_bytes(int n_in, int n)
{
    return (size_t)n * (size_t)(n_in * 2 + 16) + 2 * 4 * WARPS * COL_STRIDE * (size_t)n * 4 +
           8 * 4 + (WARPS * DEPTH_MAX + 2) * 8;
}

/* Bytes of the adapters' memory behind it. */
static size_t product_adapt_bytes(const struct k_adapting &j)
{
    return sizeof(adapt_shared) +
           (size_t)(j.n * j.of.n_parts) * K_ADAPT_STRIDE(j.rank_max) * sizeof(float);
}

static size_t product_adapt_bytes(const adapt_none &)
{
    return 0;
}

/* The products that this file's kernel supports. */
static bool product_takes(const struct k_matrix *w, int n)
{
    return n >= 1 && n <= ROWS_FEW && k_format_is_plain(&w->format) && w->n_in % BOX_COLS == 0 &&
           product_rest_bytes(w->n_in, n) + WARPS * 2 * STAGE_BYTES <= SMEM_MAX;
}

/* Is the other kernel to be used? With a long n_in, x may not fit here. */
static bool product_is_wide(const struct k_matrix *w, int n)
{
    return product_wide_takes(w, n) && !product_takes(w, n);
}

/* Any of the kernels. */
int k_multiply_takes_sm90(const struct k_matrix *w, int n)
{
    return product_takes(w, n) || product_wide_takes(w, n) || product_blocks_takes(w, n) ||
           product_packed_takes(w, n);
}

/* Within a bucket the order of summation is the same, so the caller may pad its rows to it. */
int k_multiply_bucket_sm90(const struct k_matrix *w, int n)
{
    int bucket = ROWS_FEW;

    if (product_is_wide(w, n))
        return product_cut_columns(n);
    if (product_packed_takes(w, n))
        return product_packed_bucket(w, n);
    if (product_blocks_takes(w, n))
        return n; /* the order of sums is the same for all, but not their limit */
    while (bucket > n && !product_takes(w, bucket))
        bucket--;
    return bucket;
}

/* As many stages as fit beside the rows of x, at most DEPTH_MAX. */
template <class JOIN>
static int product_launch(const CUtensorMap &map, product_args &a, const JOIN &join, int n_sms,
                          k_stream stream)
{
    auto *kernel = product_kernel<1, 8, 4, JOIN>;
    size_t rest = product_rest_bytes(a.n_in, a.n) + product_adapt_bytes(join), smem;
    int depth = (int)((SMEM_MAX - rest) / (WARPS * STAGE_BYTES));
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    a.depth = depth < DEPTH_MAX ? depth : DEPTH_MAX;
    smem = rest + (size_t)WARPS * a.depth * STAGE_BYTES;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem) !=
        cudaSuccess)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)n_sms);
    config.blockDim = dim3(THREADS + 32 * product_adapters<JOIN>::WARPS_MORE);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, map, a, join) == cudaSuccess ? 0 : -1;
}

/* Tiles are distributed evenly: the first tiles_left CTAs have one more than the others. */
template <class JOIN>
static int product_few(const struct k_product *p, const JOIN &join, int n, int n_sms,
                       k_stream stream)
{
    const struct k_matrix *w = p->w;
    bool gated = p->kind == K_PRODUCT_GATED;
    product_args args = {};
    CUtensorMap map;
    int n_tiles;

    if (!product_takes(w, n) || (p->kind == K_PRODUCT_RESIDUAL && w->n_out % 16 != 0) ||
        product_encode_map(&map, p) != 0)
        return -1;
    args.p = *p;
    args.n = n;
    args.n_in = w->n_in;
    args.n_out = w->n_out;
    n_tiles = gated ? (w->n_out / 2 + 7) / 8 : (w->n_out + 15) / 16;
    args.tiles_each = n_tiles / n_sms;
    args.tiles_left = n_tiles % n_sms;
    args.n_boxes = w->n_in / BOX_COLS;
    args.x_stride = w->n_in * 2 + 16;
    return product_launch(map, args, join, n_sms, stream);
}

int k_multiply_sm90(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    const struct k_matrix *w = p->w;

    if (product_is_wide(w, n))
        return p->kind == K_PRODUCT_RESIDUAL && w->n_out % 16 != 0
                   ? -1
                   : product_wide(p, n, n_sms, stream);
    if (k_format_is_packed(&w->format))
        return product_packed(p, n, n_sms, stream);
    if (product_blocks_takes(w, n))
        return product_blocks(p, n, n_sms, stream);
    return product_few(p, adapt_none(), n, n_sms, stream);
}

/* --- with adapters ---------------------------------------------------------------------- */

/* Is it a product of this file's kernel? */
static bool product_joins(const struct k_adapting *a)
{
    const struct k_matrix *w = a->p.w;

    return product_takes(w, a->n) &&
           product_rest_bytes(w->n_in, a->n) + product_adapt_bytes(*a) + WARPS * 2 * STAGE_BYTES <=
               SMEM_MAX;
}

bool k_adapt_joins_sm90(const struct k_adapting *a)
{
    bool is_whole = a->p.kind != K_PRODUCT_RESIDUAL || a->p.w->n_out % 16 == 0;

    return is_whole && product_joins(a);
}

int k_adapt_join_sm90(const struct k_adapting *a, k_stream stream)
{
    return product_few(&a->p, *a, a->n, a->n_sms, stream);
}
