/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows of 8-bit whole numbers with wgmma (bytes.h).
 *
 *   warpgroup 0 (producer)             ring in shared memory      warpgroups 1, 2 (consumers)
 *
 *    a lane of a warp: rows of w   -->  W [0] .. [DEPTH - 1]  -->  registers --> wgmma: 64 rows
 *    a lane of another: rows of x  -->  X [0] .. [DEPTH - 1]  ----------------->  of w x 256 of x
 *        ^                                     |                        |
 *        '---------- empty barriers <----------'                        v
 *                                                   scales, bias -> shared memory -> y
 *
 * A tile is 128 rows of w and 256 of x, or 128 where half of the blocks would have none else; the
 * second 128 are skipped where there are none. A stage is 128 columns of both, with the TMA's
 * 128-byte swizzle. There is one block per multiprocessor, which takes every so-many-th tile; tiles
 * that run together have few rows of w and of x in common with many others, so that both are read
 * from the L2 cache. The producer goes on to the next tile while the consumers finish one.
 *
 * w goes through registers, where ldmatrix puts it as the instruction wants it: from shared memory
 * each of the two halves of x would read it again. Sums are exact: 49,152 columns of 128 x 128 are
 * less than 2^31. */
#include "kernels/bytes.h"
#include "kernels/product.cuh"

#define ROWS      128 /* of w, of a tile */
#define COLS      256 /* rows of x, of a tile, at most */
#define GROUPS    2   /* warpgroups that multiply */
#define DEPTH     4
#define CONSUMERS (GROUPS * 128)
#define THREADS   (CONSUMERS + 128)
#define GIVEN     56 /* registers */
#define TAKEN     224
#define X_ROWS    64  /* of a copy of x */
#define SLAB      128 /* columns of a stage */
#define W_BYTES   (ROWS * SLAB)
#define X_BYTES   (COLS * SLAB)
#define CHUNK     64 /* rows of x that are written at a time */
#define OUT_PITCH 144
#define TOGETHER  8 /* tiles of x that are multiplied by the same rows of w, one after another */

static_assert(128 * GIVEN + CONSUMERS * TAKEN <= THREADS * (65536 / THREADS / 8 * 8), "registers");
static_assert((long)K_PACKED_IN_MAX * 128 * 128 < 1L << 31, "sums");

struct bytes_shared {
    char x[DEPTH][X_BYTES];
    char w[DEPTH][W_BYTES];
    char out[GROUPS][CHUNK * OUT_PITCH];
    float scales[2][COLS]; /* of rows of x, of a tile and of the next */
    uint64_t full[DEPTH], empty[DEPTH];
};

static_assert(sizeof(struct bytes_shared) <= 227 * 1024, "shared memory");

struct bytes_args {
    k_bf16 *y;
    const k_bf16 *bias;
    const float *scales, *x_scales;
    int n, n_out, y_stride, n_slabs;
    int cols; /* rows of x of a tile: COLS, or half of it */
    int w_tiles, x_tiles;
};

struct bytes_tile {
    int row, col, n_cols; /* of w; of x: the first, and how many */
};

/* The x tiles of a run of TOGETHER take turns at each tile of w. */
static __device__ inline bytes_tile bytes_tile_of(const bytes_args &a, int tile)
{
    int run = tile / (TOGETHER * a.w_tiles), at = tile - run * TOGETHER * a.w_tiles;
    int together = min(TOGETHER, a.x_tiles - run * TOGETHER), col;

    col = (run * TOGETHER + at % together) * a.cols;
    return {at / together * ROWS, col, min(a.n - col, a.cols)};
}

/* --- the producer ----------------------------------------------------------------------------- */

/* By one lane: the rows of w of all tiles of this block. Rows beyond the matrix are filled with
 * zeros, and not written. */
static __device__ inline void bytes_produce_w(bytes_shared &s, const CUtensorMap *map,
                                              const bytes_args &a, int n_all)
{
    ring<DEPTH> at = {0, 1};

    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x) {
        const bytes_tile t = bytes_tile_of(a, tile);

        for (int slab = 0; slab < a.n_slabs; slab++) {
            barrier_wait(&s.empty[at.stage], at.parity);
            barrier_expect(&s.full[at.stage], W_BYTES);
            tensor_load_3d(s.w[at.stage], map, &s.full[at.stage], slab * SLAB, t.row, 0);
            at.next();
        }
    }
}

/* By one lane of another warp: the rows of x of the same tiles. */
static __device__ inline void bytes_produce_x(bytes_shared &s, const CUtensorMap *map,
                                              const bytes_args &a, int n_all)
{
    ring<DEPTH> at = {0, 1};

    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x) {
        const bytes_tile t = bytes_tile_of(a, tile);
        int n = (t.n_cols + X_ROWS - 1) / X_ROWS;

        for (int slab = 0; slab < a.n_slabs; slab++) {
            barrier_wait(&s.empty[at.stage], at.parity);
            barrier_expect(&s.full[at.stage], (uint32_t)(n * X_ROWS * SLAB));
            for (int i = 0; i < n; i++)
                tensor_load_3d(s.x[at.stage] + i * X_ROWS * SLAB, map, &s.full[at.stage],
                               slab * SLAB, t.col + i * X_ROWS, 0);
            at.next();
        }
    }
}

/* --- the consumers' mainloop ------------------------------------------------------------------ */

#define BYTES_EIGHT(i)                                                                          \
    "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]), \
        "+r"(c[i + 6]), "+r"(c[i + 7])

/* c [64][128] += a [64][32] * transpose(b [128][32]). */
static __device__ __forceinline__ void bytes_multiply(int (&c)[64], const uint32_t (&a)[4],
                                                      uint64_t b)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8"
                 " {" SM90_STR64 "}, {%64, %65, %66, %67}, %68, p;\n"
                 "}"
                 : BYTES_EIGHT(0), BYTES_EIGHT(8), BYTES_EIGHT(16), BYTES_EIGHT(24),
                   BYTES_EIGHT(32), BYTES_EIGHT(40), BYTES_EIGHT(48), BYTES_EIGHT(56)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void bytes_keep(int (&c)[64])
{
#pragma unroll
    for (int i = 0; i < 64; i++)
        asm volatile("" : "+r"(c[i])::"memory");
}

/* Where this lane's address in a stage of w begins: eight lanes give those of a matrix of 8 rows of
 * 16 bytes; rows 8 further down come next, then both 16 bytes further on. */
static __device__ inline uint32_t bytes_lane_at(void)
{
    int lane = threadIdx.x % 32, row = ((int)threadIdx.x - 128) / 32 * 16 + lane % 16;

    return (uint32_t)(row * SLAB + (lane / 16 ^ lane % 8) * 16);
}

/* A warp's 16 rows of a slab as the first operand of four products of 32 columns; at: the lane's
 * address. */
static __device__ __forceinline__ void bytes_load_slab(uint32_t (&a)[4][4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                     : "r"(at ^ i * 32)
                     : "memory");
}

/* Issue the products of a slab with PARTS times 128 rows of x. */
template <int PARTS>
static __device__ __forceinline__ void bytes_issue(int (&acc)[2][64], uint32_t (&a)[4][4],
                                                   const char *x)
{
    keep(a), bytes_keep(acc[0]), bytes_keep(acc[PARTS - 1]);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < PARTS * 4; i++)
        bytes_multiply(acc[i % PARTS], a[i / PARTS],
                       operand(x + i % PARTS * 128 * 128 + i / PARTS * 32, 1024, 0));
    warpgroup_commit();
}

/* acc = a tile's sums. While the products of a slab run, the next one goes to registers; a stage
 * is given back when its own have ended. */
template <int PARTS>
static __device__ __forceinline__ void bytes_multiply_tile(int (&acc)[2][64], bytes_shared &s,
                                                           ring<DEPTH> &at, int n_slabs)
{
    uint32_t own = bytes_lane_at(), a[2][4][4];
    int before = 0;

#pragma unroll
    for (int i = 0; i < PARTS * 64; i++)
        acc[i / 64][i % 64] = 0;
    barrier_wait(&s.full[at.stage], at.parity);
    bytes_load_slab(a[0], shared_addr(s.w[at.stage]) + own);
    for (int first = 0; first < n_slabs; first += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            int slab = first + odd;

            if (slab >= n_slabs)
                break;
            bytes_issue<PARTS>(acc, a[odd], s.x[at.stage]);
            warpgroup_wait<1>();
            if (slab > 0 && leads())
                barrier_arrive(&s.empty[before]);
            before = at.stage;
            at.next();
            if (slab + 1 < n_slabs) {
                barrier_wait(&s.full[at.stage], at.parity);
                bytes_load_slab(a[odd ^ 1], shared_addr(s.w[at.stage]) + own);
            }
        }
    }
    warpgroup_wait<0>();
    bytes_keep(acc[0]), bytes_keep(acc[PARTS - 1]);
    if (leads())
        barrier_arrive(&s.empty[before]);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The numbers of a lane's rows g and g + 8 of w. */
struct bytes_ends {
    float scale[2], bias[2];
};

static __device__ inline bytes_ends bytes_ends_of(const bytes_args &a, int row)
{
    bytes_ends e;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int own = min(row + 8 * i, a.n_out - 1);

        e.scale[i] = __ldg(a.scales + own);
        e.bias[i] = a.bias != NULL ? load_bf16(a.bias + own) : 0.0f;
    }
    return e;
}

/* Put the outputs of CHUNK rows of x into shared memory [CHUNK][OUT_PITCH bytes]; c: their sums;
 * scales: of the rows. */
static __device__ inline void bytes_stage_chunk(char *out, const bytes_ends &e, const int *c,
                                                const float *scales)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, row = lane % 8, matrix = lane / 8;

#pragma unroll
    for (int j = 0; j < CHUNK / 8; j += 2) {
        uint32_t m[4];

#pragma unroll
        for (int i = 0; i < 4; i++) { /* of two eights of rows of x, rows g and g + 8 of w */
            const int eight = j + i / 2, high = i % 2;
            const int *own = c + eight * 4 + high * 2;
            const float2 scale = *(const float2 *)(scales + eight * 8 + lane % 4 * 2);

            m[i] = pack_bf16(__fmaf_rn((float)own[0], e.scale[high] * scale.x, e.bias[high]),
                             __fmaf_rn((float)own[1], e.scale[high] * scale.y, e.bias[high]));
        }
        store_turned(shared_addr(out + ((j + matrix / 2) * 8 + row) * OUT_PITCH + warp * 32 +
                                 matrix % 2 * 16),
                     m);
    }
}

/* Copy the chunk to memory: n rows from row `first` on, outputs from `at` on. */
static __device__ inline void bytes_write_chunk(const char *out, const bytes_args &a, int first,
                                                int n, int at)
{
#pragma unroll 4
    for (int i = threadIdx.x % 128; i < CHUNK * 8; i += 128) {
        int row = i / 8, eight = i % 8;

        if (row < n && at + eight * 8 < a.n_out)
            *(uint4 *)(a.y + (size_t)(first + row) * a.y_stride + at + eight * 8) =
                *(const uint4 *)(out + row * OUT_PITCH + eight * 16);
    }
}

static __device__ __forceinline__ void bytes_consume(bytes_shared &s, const bytes_args &a,
                                                     int n_all)
{
    int own = (int)threadIdx.x - 128, group = own / 128, turn = 0;
    ring<DEPTH> at = {0, 0};
    int acc[2][64];

    for (int tile = blockIdx.x; tile < n_all; tile += gridDim.x, turn ^= 1) {
        const bytes_tile t = bytes_tile_of(a, tile);
        const bytes_ends ends = bytes_ends_of(a, t.row + own / 32 * 16 + own % 32 / 4);
        char *out = s.out[group];

        if (own < t.n_cols)
            s.scales[turn][own] = __ldg(a.x_scales + t.col + own);
        if (t.n_cols > 128)
            bytes_multiply_tile<2>(acc, s, at, a.n_slabs);
        else
            bytes_multiply_tile<1>(acc, s, at, a.n_slabs);
        named_sync(3, CONSUMERS);
#pragma unroll
        for (int i = 0; i < COLS / CHUNK; i++) {
            if (i * CHUNK >= t.n_cols)
                break;
            bytes_stage_chunk(out, ends, acc[i / 2] + i % 2 * 32, s.scales[turn] + i * CHUNK);
            named_sync(1 + group, 128);
            bytes_write_chunk(out, a, t.col + i * CHUNK, t.n_cols - i * CHUNK, t.row + group * 64);
            named_sync(1 + group, 128);
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS, 1)
    bytes_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map, const __grid_constant__ bytes_args a)
{
    extern __shared__ __align__(1024) char memory[];
    bytes_shared &s = *(bytes_shared *)memory;
    int n_all = a.w_tiles * a.x_tiles;

    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++) {
            barrier_init(&s.full[i], 2);
            barrier_init(&s.empty[i], CONSUMERS / 32);
        }
        barrier_init_done();
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<GIVEN>();
        if (threadIdx.x == 0)
            bytes_produce_w(s, &w_map, a, n_all);
        else if (threadIdx.x == 32)
            bytes_produce_x(s, &x_map, a, n_all);
    } else {
        registers_take<TAKEN>();
        bytes_consume(s, a, n_all);
    }
}

/* Map n rows of bytes, of which a copy has `box_rows`. */
static int bytes_encode_rows(CUtensorMap *map, const void *data, int n, int n_in, int box_rows)
{
    cuuint64_t row_bytes = (cuuint64_t)n_in;
    cuuint64_t sizes[3] = {row_bytes, (cuuint64_t)n, 1};
    cuuint64_t strides[2] = {row_bytes, (cuuint64_t)n * row_bytes};
    cuuint32_t box[3] = {SLAB, (cuuint32_t)box_rows, 1};

    return encode_boxes(map, true, (void *)(uintptr_t)data, 3, sizes, strides, box);
}

/* How many rows of x a tile has: the number with which the last block ends sooner. A tile of half
 * as many takes 0.65 of the time, because it loads two thirds of the bytes. */
static int bytes_choose_cols(int n, int w_tiles, int n_sms)
{
    long whole = ((long)w_tiles * ((n + COLS - 1) / COLS) + n_sms - 1) / n_sms;
    long halves = ((long)w_tiles * ((n + COLS / 2 - 1) / (COLS / 2)) + n_sms - 1) / n_sms;

    return n <= COLS / 2 || 13 * halves < 20 * whole ? COLS / 2 : COLS;
}

bool k_multiply_bytes_takes_sm90(const struct k_matrix *w)
{
    return k_format_is_by_row(&w->format, K_INT8) && w->format.rounds_x && w->n_out % 16 == 0 &&
           w->n_in % SLAB == 0 && w->n_in <= K_PACKED_IN_MAX;
}

int k_multiply_bytes_sm90(k_bf16 *y, int y_stride, const struct k_bytes *x,
                          const struct k_matrix *w, const k_bf16 *bias, int n, int n_sms,
                          k_stream stream)
{
    int w_tiles = (w->n_out + ROWS - 1) / ROWS, cols = bytes_choose_cols(n, w_tiles, n_sms);
    const bytes_args a = {
        y,    bias,    (const float *)w->scales, x->scales, n, w->n_out, y_stride, w->n_in / SLAB,
        cols, w_tiles, (n + cols - 1) / cols};
    CUtensorMap w_map, x_map;

    if (!k_multiply_bytes_takes_sm90(w) ||
        bytes_encode_rows(&w_map, w->data, w->n_out, w->n_in, ROWS) != 0 ||
        bytes_encode_rows(&x_map, x->data, n, w->n_in, X_ROWS) != 0 ||
        cudaFuncSetAttribute(bytes_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(bytes_shared)) != cudaSuccess)
        return -1;
    return K_LAUNCH(bytes_kernel, n_sms, THREADS, sizeof(bytes_shared), stream, w_map, x_map, a);
}
