/* SPDX-License-Identifier: Apache-2.0
 *
 * The first product of a gated FFN for many rows, and the gate, in one kernel (gated.h).
 *
 *   warpgroup 0 (producer)             ring in shared memory      warpgroups 1, 2 (consumers)
 *
 *    a lane of a warp: rows of w   -->  W [0] .. [DEPTH - 1]  -->  wgmma: 64 rows of w
 *    a lane of another: rows of x  -->  X [0] .. [DEPTH - 1]  -->  x 256 of x
 *        ^                                     |                        |
 *        '---------- empty barriers <----------'                        v
 *                                               silu(gate) * up -> shared memory -> y
 *
 * A tile is 64 outputs of 256 rows of x, or of 128 where half of the blocks would have none else.
 * Its rows of w are 8 of the gate, the 8 of up that they belong to, the next 8 of the gate and so
 * on: one copy of the TMA, to which gate and up are a dimension of two. wgmma gives a thread rows g
 * and g + 8 of 16, so that a thread has gate and up of the same output.
 *
 * Two blocks are a cluster with the same rows of x and neighbouring outputs: each copies half of
 * the rows of x to both. So a stage is empty when the consumers of both blocks have read it. Their
 * arrivals have the scope of a block, because nothing that is written is handed over: with the
 * scope of the cluster the product took half as long again
 * (docs/kernels/experiments/gated-products.md).
 *
 * A stage is 64 columns of both, with the TMA's 128-byte swizzle. Each pair of blocks takes every
 * so-many-th tile; tiles that run together have few rows of w and of x in common with many others,
 * so that both are read from the L2 cache. The producers go on to the next tile while the consumers
 * finish one, and one warpgroup multiplies while the other writes. */
#include "kernels/gated.h"
#include "kernels/product.cuh"

#define OUTS      64  /* of a tile */
#define ROWS      128 /* of w, of a tile: gate and up */
#define COLS      256 /* rows of x, of a tile, at most */
#define GROUPS    2   /* warpgroups that multiply */
#define DEPTH     4
#define CONSUMERS (GROUPS * 128)
#define THREADS   (CONSUMERS + 128)
#define GIVEN     56 /* registers */
#define TAKEN     224
#define X_ROWS    64  /* of a copy of x */
#define SLAB      64  /* columns of a stage */
#define LINE      128 /* their bytes */
#define W_BYTES   (ROWS * LINE)
#define X_BYTES   (COLS * LINE)
#define CHUNK     64 /* rows of x that are written at a time */
#define OUT_PITCH 80 /* bytes of a row of them: 32 outputs, and 16 so that banks differ */
#define PAIR      2  /* blocks of a cluster */
#define TOGETHER  8  /* tiles of x that are multiplied by the same rows of w, one after another */

static_assert(128 * GIVEN + CONSUMERS * TAKEN <= THREADS * (65536 / THREADS / 8 * 8), "registers");

struct gated_shared {
    char x[DEPTH][X_BYTES];
    char w[DEPTH][W_BYTES];
    char out[GROUPS][CHUNK * OUT_PITCH];
    uint64_t full[DEPTH], empty[DEPTH];
};

static_assert(sizeof(struct gated_shared) <= 227 * 1024, "shared memory");

struct gated_args {
    k_bf16 *y;
    int n, n_out, n_slabs;
    int cols; /* rows of x of a tile: COLS, or half of it */
    int w_pairs, x_tiles;
};

struct gated_tile {
    int out, col, n_cols; /* the first output; of x: the first row, and how many */
};

/* The tile of this block of a pair's tile. The x tiles of a run of TOGETHER take turns at each two
 * tiles of w. */
static __device__ inline gated_tile gated_tile_of(const gated_args &a, int tile)
{
    int run = tile / (TOGETHER * a.w_pairs), at = tile - run * TOGETHER * a.w_pairs;
    int together = min(TOGETHER, a.x_tiles - run * TOGETHER), col;

    col = (run * TOGETHER + at % together) * a.cols;
    return {(at / together * PAIR + (int)blockIdx.x % PAIR) * OUTS, col, min(a.n - col, a.cols)};
}

/* The pairs' tiles that this block takes part in: from the first on, each so-many-th. */
static __device__ inline int gated_first(void)
{
    return (int)blockIdx.x / PAIR;
}

static __device__ inline int gated_stride(void)
{
    return (int)gridDim.x / PAIR;
}

/* --- the producer ----------------------------------------------------------------------------- */

/* By one lane: the rows of w of all tiles of this block. Rows beyond the matrix are filled with
 * zeros, and not written. */
static __device__ inline void gated_produce_w(gated_shared &s, const CUtensorMap *map,
                                              const gated_args &a, int n_all)
{
    ring<DEPTH> at = {0, 1};

    for (int tile = gated_first(); tile < n_all; tile += gated_stride()) {
        const gated_tile t = gated_tile_of(a, tile);

        for (int slab = 0; slab < a.n_slabs; slab++) {
            barrier_wait(&s.empty[at.stage], at.parity);
            barrier_expect(&s.full[at.stage], W_BYTES);
            tensor_load_4d(s.w[at.stage], map, &s.full[at.stage], slab * SLAB, 0, 0, t.out / 8);
            at.next();
        }
    }
}

/* A copy of a box of rows of x to the same place in both blocks, with a report to the same barrier
 * of each. */
static __device__ __forceinline__ void gated_load_both(void *to, const CUtensorMap *map,
                                                       uint64_t *full, int column, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier"
                 "::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
                     shared_addr(to)),
                 "l"(map), "r"(shared_addr(full)), "r"(column), "r"(row),
                 "h"((uint16_t)((1 << PAIR) - 1))
                 : "memory");
}

/* By one lane of another warp: the rows of x of the same tiles. Each block of a pair copies every
 * other box for both; a stage is empty when the consumers of both have read it. */
static __device__ inline void gated_produce_x(gated_shared &s, const CUtensorMap *map,
                                              const gated_args &a, int n_all)
{
    ring<DEPTH> at = {0, 1};
    int rank = (int)blockIdx.x % PAIR;

    for (int tile = gated_first(); tile < n_all; tile += gated_stride()) {
        const gated_tile t = gated_tile_of(a, tile);
        int n = (t.n_cols + X_ROWS - 1) / X_ROWS;

        for (int slab = 0; slab < a.n_slabs; slab++) {
            barrier_wait(&s.empty[at.stage], at.parity);
            barrier_expect(&s.full[at.stage], (uint32_t)(n * X_ROWS * LINE));
            for (int i = rank; i < n; i += PAIR)
                gated_load_both(s.x[at.stage] + i * X_ROWS * LINE, map, &s.full[at.stage],
                                slab * SLAB, t.col + i * X_ROWS);
            at.next();
        }
    }
}

/* --- the consumers' mainloop ------------------------------------------------------------------ */

/* Issue the products of a slab with PARTS times 128 rows of x; add 0: the first of a tile. */
template <int PARTS>
static __device__ __forceinline__ void gated_issue(float (&acc)[2][64], const char *w,
                                                   const char *x, int add)
{
    keep(acc[0]), keep(acc[PARTS - 1]);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < PARTS * 4; i++)
        multiply_rows(acc[i % PARTS], operand(w + i / PARTS * 32, 1024, 0),
                      operand(x + i % PARTS * 128 * LINE + i / PARTS * 32, 1024, 0),
                      add | i / PARTS);
    warpgroup_commit();
}

/* By one lane of each warp: a stage was read, for the producers of both blocks. */
static __device__ __forceinline__ void gated_release(uint64_t *empty)
{
#pragma unroll
    for (int rank = 0; rank < PAIR; rank++) {
        uint32_t at;

        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_addr(empty)), "r"(rank));
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
    }
}

/* acc = a tile's sums. The products of a slab are issued while those of the one before run, whose
 * stage is given back when they have ended. */
template <int PARTS>
static __device__ __forceinline__ void gated_multiply_tile(float (&acc)[2][64], gated_shared &s,
                                                           ring<DEPTH> &at, int n_slabs)
{
    int before = 0, group = ((int)threadIdx.x - 128) / 128;

    for (int slab = 0; slab < n_slabs; slab++) {
        barrier_wait(&s.full[at.stage], at.parity);
        gated_issue<PARTS>(acc, s.w[at.stage] + group * 64 * LINE, s.x[at.stage], slab);
        warpgroup_wait<1>();
        if (slab > 0 && leads())
            gated_release(&s.empty[before]);
        before = at.stage;
        at.next();
    }
    warpgroup_wait<0>();
    keep(acc[0]), keep(acc[PARTS - 1]);
    if (leads())
        gated_release(&s.empty[before]);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* silu(gate) * up in few instructions; the quotient is 0 where the exponential is infinite. */
static __device__ __forceinline__ float gated_mix(float gate, float up)
{
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Put the outputs of CHUNK rows of x into shared memory [CHUNK][OUT_PITCH bytes]; c: their sums. A
 * warp has 8 outputs. */
static __device__ inline void gated_stage_chunk(char *out, const float *c)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;

#pragma unroll
    for (int j = 0; j < CHUNK / 8; j += 4) {
        uint32_t m[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *own = c + (j + i) * 4;

            m[i] = pack_bf16(gated_mix(own[0], own[2]), gated_mix(own[1], own[3]));
        }
        store_turned(shared_addr(out + ((j + lane / 8) * 8 + lane % 8) * OUT_PITCH + warp * 16), m);
    }
}

/* Copy the chunk to memory: n rows from row `first` on, outputs from `at` on. */
static __device__ inline void gated_write_chunk(const char *out, const gated_args &a, int first,
                                                int n, int at)
{
#pragma unroll
    for (int i = threadIdx.x % 128; i < CHUNK * 4; i += 128) {
        int row = i / 4, eight = i % 4;

        if (row < n && at + eight * 8 < a.n_out)
            *(uint4 *)(a.y + (size_t)(first + row) * a.n_out + at + eight * 8) =
                *(const uint4 *)(out + row * OUT_PITCH + eight * 16);
    }
}

static __device__ __forceinline__ void gated_consume(gated_shared &s, const gated_args &a,
                                                     int n_all)
{
    int group = ((int)threadIdx.x - 128) / 128;
    ring<DEPTH> at = {0, 0};
    float acc[2][64];

    for (int tile = gated_first(); tile < n_all; tile += gated_stride()) {
        const gated_tile t = gated_tile_of(a, tile);
        char *out = s.out[group];

        if (t.n_cols > 128)
            gated_multiply_tile<2>(acc, s, at, a.n_slabs);
        else
            gated_multiply_tile<1>(acc, s, at, a.n_slabs);
#pragma unroll
        for (int i = 0; i < COLS / CHUNK; i++) {
            if (i * CHUNK >= t.n_cols)
                break;
            gated_stage_chunk(out, acc[i / 2] + i % 2 * 32);
            named_sync(1 + group, 128);
            gated_write_chunk(out, a, t.col + i * CHUNK, t.n_cols - i * CHUNK,
                              t.out + group * (OUTS / 2));
            named_sync(1 + group, 128);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

static __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    gated_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map, const __grid_constant__ gated_args a)
{
    extern __shared__ __align__(1024) char memory[];
    gated_shared &s = *(gated_shared *)memory;
    int n_all = a.w_pairs * a.x_tiles;

    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++) {
            barrier_init(&s.full[i], 2);
            barrier_init(&s.empty[i], PAIR * CONSUMERS / 32);
        }
        barrier_init_done();
        fence_async();
    }
    __syncwarp();
    cluster_sync();
    if (threadIdx.x < 128) {
        registers_give<GIVEN>();
        if (threadIdx.x == 0)
            gated_produce_w(s, &w_map, a, n_all);
        else if (threadIdx.x == 32)
            gated_produce_x(s, &x_map, a, n_all);
        __syncwarp();
    } else {
        registers_take<TAKEN>();
        gated_consume(s, a, n_all);
    }
    cluster_sync(); /* the other block writes here, and tells barriers here, to its end */
}

/* w as columns, 8 rows, gate or up, which eight: a box is OUTS / 8 eights of both. */
static int gated_encode_w(CUtensorMap *map, const void *data, int n_out, int n_in)
{
    cuuint64_t row_bytes = (cuuint64_t)n_in * 2;
    cuuint64_t sizes[4] = {(cuuint64_t)n_in, 8, 2, (cuuint64_t)n_out / 8};
    cuuint64_t strides[3] = {row_bytes, (cuuint64_t)n_out * row_bytes, 8 * row_bytes};
    cuuint32_t box[4] = {SLAB, 8, 2, OUTS / 8};

    return encode_boxes(map, false, (void *)(uintptr_t)data, 4, sizes, strides, box);
}

static int gated_encode_x(CUtensorMap *map, const void *data, int n, int n_in)
{
    cuuint64_t sizes[2] = {(cuuint64_t)n_in, (cuuint64_t)n};
    cuuint64_t strides[1] = {(cuuint64_t)n_in * 2};
    cuuint32_t box[2] = {SLAB, X_ROWS};

    return encode_boxes(map, false, (void *)(uintptr_t)data, 2, sizes, strides, box);
}

/* How many rows of x a tile has: the number with which the last pair of blocks ends sooner. */
static int gated_choose_cols(int n, int w_pairs, int n_pairs)
{
    long whole = ((long)w_pairs * ((n + COLS - 1) / COLS) + n_pairs - 1) / n_pairs;
    long halves = ((long)w_pairs * ((n + COLS / 2 - 1) / (COLS / 2)) + n_pairs - 1) / n_pairs;

    return n <= COLS / 2 || 13 * halves < 20 * whole ? COLS / 2 : COLS;
}

bool k_multiply_gated_takes_sm90(const struct k_matrix *w)
{
    return k_format_is_plain(&w->format) && w->n_out % 16 == 0 && w->n_in % SLAB == 0;
}

int k_multiply_gated_sm90(k_bf16 *y, const k_bf16 *x, const struct k_matrix *w, int n, int n_sms,
                          k_stream stream)
{
    int n_out = w->n_out / 2, w_pairs = (n_out + PAIR * OUTS - 1) / (PAIR * OUTS);
    int n_pairs = n_sms / PAIR, cols = gated_choose_cols(n, w_pairs, n_pairs);
    const gated_args a = {y, n, n_out, w->n_in / SLAB, cols, w_pairs, (n + cols - 1) / cols};
    CUtensorMap w_map, x_map;

    if (!k_multiply_gated_takes_sm90(w) || gated_encode_w(&w_map, w->data, n_out, w->n_in) != 0 ||
        gated_encode_x(&x_map, x, n, w->n_in) != 0 ||
        cudaFuncSetAttribute(gated_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(gated_shared)) != cudaSuccess)
        return -1;
    return K_LAUNCH(gated_kernel, n_pairs * PAIR, THREADS, sizeof(gated_shared), stream, w_map,
                    x_map, a);
}
