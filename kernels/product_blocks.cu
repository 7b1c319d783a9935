/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows with e4m3 that has a scale per block of 128 x 128, bound by the bytes of w,
 * with the operations around them in a decode (k_multiply() in kernels.h).
 *
 *   w --TMA--> ring of boxes (per warp) --mma--> accumulators -+  end of some tiles: sums of the
 *   x --L1 cache--> registers ----------------^                +--> 16 warps -> epilogue -> y
 *
 * Split: a block per multiprocessor has a run of tiles of 16 rows of w; its 16 warps share the
 * columns of each: a warp has every 16th box (16 rows x 128 bytes). Each warp has a ring of its
 * own, which runs on from a tile to the next, and whose first boxes are loaded before the previous
 * kernel has ended. A box lies in one block of scales, so its sum is multiplied by one scale. Sums
 * of several tiles meet at once (GROUP), so that each thread finishes an output.
 *
 * e4m3 becomes float16, which is exact, and x is float16 in the order of K_HALF_AT: of 16 elements
 * a lane's first 16 bytes are the pairs 0, 2, 4, 6, the others 1, 3, 5, 7. The order of the
 * elements of n_in is free as long as w and x agree; lane (g = lane / 4, q = lane % 4) has chunks
 * 2 q and 2 q + 1 of rows g and g + 8 of a box. The order of sums depends on n_in alone. */
#include "kernels/activation.cuh"
#include "kernels/e4m3.cuh"
#include "kernels/product_end.cuh"

#define WARPS     16
#define THREADS   (WARPS * 32)
#define TILE      16
#define BLOCK     128 /* rows and columns of a scale; also the elements of a box */
#define BOX_BYTES 2048
#define DEPTH     4  /* boxes of a ring: 128 KB per multiprocessor, as in product.cu */
#define ROWS_MAX  16 /* x is read from L2 by all blocks: with more rows cuBLASLt is faster */

struct blocks_args {
    struct k_product p;
    int n, n_in, n_out;
    int n_tiles, n_boxes; /* boxes: of a tile */
    const float *scales;  /* of blocks [n_out / 128][scale_cols] */
    int scale_cols;
};

/* A warp's ring, the same in all lanes. */
struct blocks_ring {
    char *boxes;
    uint64_t *full;
    int stage, parity;   /* of the box to be multiplied next */
    int tile, last, box; /* to be loaded next */
};

/* --- loads ------------------------------------------------------------------------------------ */

/* Weights are read once per step: evict first. */
static __device__ inline void blocks_copy_box(void *to, const CUtensorMap *map, int elem, int row,
                                              uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_addr(to)),
                 "l"(map), "r"(elem), "r"(row), "r"(0), "r"(shared_addr(bar)),
                 "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* Load the warp's next box into a stage. */
static __device__ inline void blocks_load_next(blocks_ring &r, const CUtensorMap *map,
                                               const blocks_args &a, int warp, int stage)
{
    if (r.tile >= r.last)
        return;
    if (leads()) {
        barrier_expect(&r.full[stage], BOX_BYTES);
        blocks_copy_box(r.boxes + stage * BOX_BYTES, map, r.box * BLOCK,
                        r.tile * (a.p.kind == K_PRODUCT_GATED ? 8 : TILE), &r.full[stage]);
    }
    r.box += WARPS;
    if (r.box >= a.n_boxes) {
        r.box = warp;
        r.tile++;
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* c [16][8] += a [16][16] * b [16][8], of float16 */
static __device__ inline void blocks_multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 16 elements of a row as eight pairs of float16. */
struct sixteen {
    uint32_t pair[8];
};

static __device__ inline sixteen blocks_widen(const uint4 &v)
{
    return {{half_two(v.x), half_two(v.x >> 16), half_two(v.y), half_two(v.y >> 16), half_two(v.z),
             half_two(v.z >> 16), half_two(v.w), half_two(v.w >> 16)}};
}

/* A lane's part of a box: two chunks of rows g and g + 8; of a column of x the same. */
struct box_rows {
    sixteen low[2], high[2];
};
struct box_column {
    uint4 x[4];
};

/* `at ^ g` is the TMA's swizzle. */
static __device__ inline box_rows blocks_read_box(const char *box)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    box_rows w;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *at = box + g * 128 + ((2 * q + i) ^ g) * 16;

        w.low[i] = blocks_widen(*(const uint4 *)at);
        w.high[i] = blocks_widen(*(const uint4 *)(at + 8 * 128));
    }
    return w;
}

static __device__ inline box_column blocks_read_column(const uint16_t *x, int box)
{
    const uint4 *from = (const uint4 *)(x + box * BLOCK + threadIdx.x % 4 * 32);

    return {{from[0], from[1], from[2], from[3]}};
}

static __device__ inline void blocks_multiply_box(float (&acc)[4], const box_rows &w,
                                                  const box_column &c, float2 scales)
{
    float part[4] = {};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const sixteen &l = w.low[i], &h = w.high[i];
        uint4 even = c.x[2 * i], odd = c.x[2 * i + 1];

        blocks_multiply(part, l.pair[0], h.pair[0], l.pair[2], h.pair[2], even.x, even.y);
        blocks_multiply(part, l.pair[4], h.pair[4], l.pair[6], h.pair[6], even.z, even.w);
        blocks_multiply(part, l.pair[1], h.pair[1], l.pair[3], h.pair[3], odd.x, odd.y);
        blocks_multiply(part, l.pair[5], h.pair[5], l.pair[7], h.pair[7], odd.z, odd.w);
    }
    acc[0] = __fmaf_rn(part[0], scales.x, acc[0]);
    acc[1] = __fmaf_rn(part[1], scales.x, acc[1]);
    acc[2] = __fmaf_rn(part[2], scales.y, acc[2]);
    acc[3] = __fmaf_rn(part[3], scales.y, acc[3]);
}

/* The scales of a tile's rows 0 and 8; eight rows are in one block. */
struct tile_scales {
    const float *low, *high;
};

static __device__ inline tile_scales blocks_scales_of(const blocks_args &a, int tile)
{
    bool is_gated = a.p.kind == K_PRODUCT_GATED;
    int low = is_gated ? tile * 8 : tile * TILE, high = is_gated ? a.n_out / 2 + low : low + 8;

    return {a.scales + low / BLOCK * a.scale_cols, a.scales + high / BLOCK * a.scale_cols};
}

/* The warp's sums of a tile. */
template <int NT>
static __device__ inline void blocks_multiply_tile(float (&acc)[NT][4], blocks_ring &r,
                                                   const CUtensorMap *map, const blocks_args &a,
                                                   int tile, const uint16_t *const (&x)[NT],
                                                   int warp)
{
    const tile_scales scales = blocks_scales_of(a, tile);

#pragma unroll 1
    for (int box = warp; box < a.n_boxes; box += WARPS) {
        box_column first = blocks_read_column(x[0], box);
        float2 scale = make_float2(__ldg(scales.low + box), __ldg(scales.high + box));
        box_rows w;

        barrier_wait(&r.full[r.stage], r.parity);
        w = blocks_read_box(r.boxes + r.stage * BOX_BYTES);
        __syncwarp();
        blocks_load_next(r, map, a, warp, r.stage);
        if (++r.stage == DEPTH) {
            r.stage = 0;
            r.parity ^= 1;
        }
        blocks_multiply_box(acc[0], w, first, scale);
#pragma unroll
        for (int i = 1; i < NT; i++)
            blocks_multiply_box(acc[i], w, blocks_read_column(x[i], box), scale);
    }
}

/* --- the epilogue ----------------------------------------------------------------------------- */

/* A thread's output and the numbers that it needs. */
struct blocks_output {
    bool mine;
    int col, place, row; /* row of x; row of the tile; row of w, in the gate's half when gated */
    float residual;
    k_bf16 bias, bias_up, norm; /* widened at the end, because the first use waits */
};

/* `index` counts the outputs of a tile: 16 neighbours have the rows of a column. last: of the
 * block's tiles. */
static __device__ inline blocks_output blocks_choose_output(const blocks_args &a, int tile,
                                                            int last, int index)
{
    const struct k_product &p = a.p;
    bool is_gated = p.kind == K_PRODUCT_GATED;
    int n_rows = is_gated ? a.n_out / 2 : a.n_out;
    blocks_output o = {};

    o.place = index % TILE;
    o.col = index / TILE;
    o.row = (is_gated ? tile * 8 : tile * TILE) + o.place;
    o.mine = tile < last && o.col < a.n && o.row < n_rows && !(is_gated && o.place >= 8);
    if (!o.mine)
        return o;
    if (p.bias != NULL)
        o.bias = ((const k_bf16 *)p.bias)[o.row];
    if (p.bias != NULL && is_gated)
        o.bias_up = ((const k_bf16 *)p.bias)[o.row + n_rows];
    if (p.kind == K_PRODUCT_RESIDUAL) {
        o.residual = p.residual[(size_t)o.col * a.n_out + o.row];
        o.norm = ((const k_bf16 *)p.norm)[o.row];
    }
    return o;
}

/* The sum over warps of a row of the tile and a column. sums [WARPS][NT * 4][32], as the
 * accumulators of lanes. */
template <int NT> static __device__ inline float blocks_sum_of(const float *sums, int row, int col)
{
    int lane = row % 8 * 4 + col % 8 / 2;
    const float *at = sums + (col / 8 * 4 + row / 8 * 2 + col % 2) * 32 + lane;
    float sum = 0.0f;

#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        sum += at[warp * NT * 128];
    return sum;
}

/* Finish one output: inverse is the norm's factor of its column. */
static __device__ inline void blocks_write_output(const blocks_args &a, const blocks_output &o,
                                                  float sum, float up, float inverse)
{
    const struct k_product &p = a.p;
    float result = sum * inverse + load_bf16(&o.bias), square;
    size_t at = (size_t)o.col * a.n_out + o.row;

    switch (p.kind) {
    case K_PRODUCT_PLAIN: store_bf16((k_bf16 *)p.y + at, result); break;
    case K_PRODUCT_FLOAT: ((float *)p.y)[at] = result; break;
    case K_PRODUCT_GATED:
        store_x(p.y, (size_t)o.col * (a.n_out / 2) + o.row,
                activation(result, K_SILU) * (up * inverse + load_bf16(&o.bias_up)), p.y_is_half);
        break;
    case K_PRODUCT_RESIDUAL: /* the sixteen lanes of a column come here together */
        result += o.residual;
        p.residual[at] = result;
        store_x(p.normed, at, result * load_bf16(&o.norm), p.y_is_half);
        square = result * result;
        for (int apart = 8; apart > 0; apart /= 2)
            square += __shfl_xor_sync(0xffffU << (threadIdx.x & 16), square, apart);
        if (o.place == 0)
            p.sums_out[(size_t)o.col * (a.n_out / 16) + o.row / 16] = square;
        break;
    }
}

template <int NT>
static __device__ inline void blocks_finish(const blocks_args &a, const blocks_output &o,
                                            const float *sums, const float *inverse)
{
    float up = 0.0f;

    if (!o.mine)
        return;
    if (a.p.kind == K_PRODUCT_GATED)
        up = blocks_sum_of<NT>(sums, o.place + 8, o.col);
    blocks_write_output(a, o, blocks_sum_of<NT>(sums, o.place, o.col), up, inverse[o.col]);
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* Shared memory. NT: columns, in eights. */
template <int NT> struct blocks_shared {
    static const int OUTPUTS = NT * 128;        /* of a tile */
    static const int GROUP = THREADS / OUTPUTS; /* tiles */
    char boxes[WARPS][DEPTH][BOX_BYTES];
    float sums[GROUP][WARPS * OUTPUTS];
    float inverse[NT * 8];
    uint64_t full[WARPS][DEPTH];
};

template <int NT>
static __global__ void __launch_bounds__(THREADS, 1)
    blocks_kernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ blocks_args a)
{
    extern __shared__ __align__(1024) char memory[];
    blocks_shared<NT> &s = *(blocks_shared<NT> *)memory;
    int warp = warp_number(), lane = threadIdx.x % 32;
    int first = (int)((int64_t)a.n_tiles * blockIdx.x / gridDim.x);
    const int GROUP = blocks_shared<NT>::GROUP;
    const uint16_t *x[NT];
    float squares[SQUARES];
    blocks_ring r = {};

    r.boxes = s.boxes[warp][0];
    r.full = s.full[warp];
    r.box = warp;
    r.last = (int)((int64_t)a.n_tiles * (blockIdx.x + 1) / gridDim.x);
    r.tile = warp < a.n_boxes ? first : r.last;
    if (leads()) {
        for (int i = 0; i < DEPTH; i++)
            barrier_init(&r.full[i], 1);
        barrier_init_done();
        fence_async();
        tensor_prefetch(&map);
    }
    __syncwarp();
    for (int i = 0; i < DEPTH; i++)
        blocks_load_next(r, &map, a, warp, i);
#pragma unroll
    for (int i = 0; i < NT; i++)
        x[i] = (const uint16_t *)a.p.x + (size_t)min(i * 8 + lane / 4, a.n - 1) * a.n_in;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
    end_fetch_squares(squares, warp, a);
    for (int base = first; base < r.last; base += GROUP) {
        int own = (int)threadIdx.x / blocks_shared<NT>::OUTPUTS;
        blocks_output o =
            blocks_choose_output(a, base + own, r.last, threadIdx.x % blocks_shared<NT>::OUTPUTS);

#pragma unroll 1
        for (int k = 0; k < GROUP && base + k < r.last; k++) {
            float acc[NT][4] = {};

            blocks_multiply_tile<NT>(acc, r, &map, a, base + k, x, warp);
#pragma unroll
            for (int i = 0; i < NT * 4; i++)
                s.sums[k][(warp * NT * 4 + i) * 32 + lane] = acc[i / 4][i % 4];
        }
        if (base == first)
            end_find_inverse<WARPS>(s.inverse, squares, warp, a);
        __syncthreads();
        blocks_finish<NT>(a, o, s.sums[own], s.inverse);
        __syncthreads(); /* the next tiles' sums are in the same place */
    }
}

/* --- launching -------------------------------------------------------------------------------- */

/* Map the matrix as [parts][rows][n_in]: two parts when the rows of gate and up are one after the
 * other. */
static int blocks_encode_map(CUtensorMap *map, const struct k_product *p)
{
    bool is_gated = p->kind == K_PRODUCT_GATED;
    cuuint64_t row_bytes = (cuuint64_t)p->w->n_in;
    cuuint64_t rows = (cuuint64_t)p->w->n_out / (is_gated ? 2 : 1);
    cuuint64_t sizes[3] = {row_bytes, rows, is_gated ? 2U : 1U};
    cuuint64_t strides[2] = {row_bytes, rows * row_bytes};
    cuuint32_t box[3] = {BLOCK, is_gated ? 8U : 16U, is_gated ? 2U : 1U};

    return encode_boxes(map, true, p->w->data, 3, sizes, strides, box);
}

bool product_blocks_takes(const struct k_matrix *w, int n)
{
    return k_format_is_in_blocks(&w->format, K_E4M3, BLOCK) && w->n_in % BLOCK == 0 &&
           w->n_out % TILE == 0 && n >= 1 && n <= ROWS_MAX;
}

template <int NT>
static int blocks_launch(const CUtensorMap &map, const blocks_args &a, int n_sms, k_stream stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute(blocks_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(blocks_shared<NT>)) != cudaSuccess)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)n_sms);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(blocks_shared<NT>);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, blocks_kernel<NT>, map, a) == cudaSuccess ? 0 : -1;
}

int product_blocks(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    const struct k_matrix *w = p->w;
    blocks_args args = {};
    CUtensorMap map;

    if (blocks_encode_map(&map, p) != 0)
        return -1;
    args.p = *p;
    args.n = n;
    args.n_in = w->n_in;
    args.n_out = w->n_out;
    args.n_tiles = w->n_out / TILE;
    args.n_boxes = w->n_in / BLOCK;
    args.scales = (const float *)w->scales;
    args.scale_cols = k_format_scale_cols(&w->format, w->n_in);
    if (n <= 8)
        return blocks_launch<1>(map, args, n_sms, stream);
    return blocks_launch<2>(map, args, n_sms, stream);
}
