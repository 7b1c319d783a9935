/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts in MXFP4 for 4 to 64 tokens, each expert that has routes read once for each
 * 16 of them.
 *
 *   warps 16, 17: bulk copies of   ring in shared memory            warps 0 .. 15
 *   16 strips x 128 columns  -->   stage [0] .. [DEPTH - 1]   -->   two warps for each two strips:
 *   warps 18, 19: loads and        w: 16 strips x a record          codes -> bfloat16 -> mma with
 *   stores of rows of x      -->   x: 16 rows                       the rows of x, scales -> sums
 *        ^                               |                              |
 *        '------- empty barriers <-------'                              v
 *                                                     sums of the two -> activation -> out
 *
 * Split: a strip is 16 rows of w (mxfp4.h): 8 gates and their 8 ups, or 16 rows of down. There is
 * one block per multiprocessor, which has a run of strips, and walks through it in tiles of up to
 * 16 strips of one expert. Of two warps one has the even boxes of 256 columns, the other the odd
 * ones. Consumers do nothing but multiply, and have two strips each, because issue slots and the
 * reads of shared memory bind them: a read of w at full speed leaves 3.4 instructions of a lane for
 * each weight, and 54 reads of 128 bytes for 2048 weights. So a row of x that is read serves two
 * strips.
 *
 * A box is two stages, so that few bytes are held by the warps that multiply, and more are on
 * their way. Of either kind of boxes one warp loads w, by copies whose addresses are the same in
 * all lanes: a copy for each lane is a loop over the lanes, which takes as long as a stage's bytes;
 * and one warp for all boxes reaches 60% of a read. Rows of x are multiplied with 2^MXFP4_SHIFT on
 * their way, so they go through registers.
 *
 * Order of sums: that of experts_few.cu with MXFP4, so one token's kernels give the same bits: each
 * run of 32 columns by itself, then times its scale to those of the even boxes or of the odd ones,
 * then both. It depends on n_in alone.
 *
 * Bytes. Each touched expert once, for up to 16 routes. Rows of x once for each tile, from the L2
 * cache: for 8 routes an eighth of the tile's weights. */
#include "kernels/experts.cuh"
#include "kernels/mxfp4.cuh"
#include "kernels/product.cuh"

#define STRIPS   16 /* of a tile */
#define PAIRS    (STRIPS / 2)
#define WARPS    (2 * PAIRS)
#define THREADS  ((WARPS + 4) * 32) /* with a warp for w and one for x of either kind of boxes */
#define BOX      256                /* columns */
#define COLS     K_MXFP4_COLS       /* of a stage: half a box */
#define DEPTH    8
#define GROUP    8 /* routes of a product */
#define ROWS_MAX (2 * GROUP)
#define X_PITCH  (COLS * 2 + 64) /* so that two rows of 64 bytes have other banks */
#define TILE     16
#define PARTS    (COLS / 64) /* of 64 columns, two runs */
#define RUN      K_MXFP4_GROUP
#define ONCE     0x12f0000000000000ULL /* weights leave the L2 cache first */

struct strips_shared {
    char w[DEPTH][STRIPS][K_MXFP4_RECORD];
    char x[DEPTH][ROWS_MAX][X_PITCH];
    float4 sums[PAIRS][2][2][32]; /* for either warp of a pair, of 8 routes */
    int4 tiles[DEPTH];            /* with the first half of a tile's boxes 0 and 1 */
    uint64_t full[DEPTH], empty[DEPTH];
};

static_assert(sizeof(struct strips_shared) <= 227 * 1024, "shared memory");
static_assert(DEPTH % 4 == 0,
              "a stage has even boxes or odd ones, so its warps see all its rounds");
static_assert(BOX == 32 * 8, "the lanes of a warp load a row of x of a box at once");

/* The stages of even boxes, or of odd ones: two of each four. */
struct strips_ring {
    int stage;
    uint32_t parity;

    __device__ __forceinline__ void next()
    {
        stage += stage % 2 == 0 ? 1 : 3;
        if (stage >= DEPTH) {
            stage -= DEPTH;
            parity ^= 1;
        }
    }
};

static __device__ inline strips_ring strips_ring_of(int odd, uint32_t parity)
{
    return {2 * odd, parity};
}

struct strips_args {
    struct experts_product p;
    int n_strips; /* of an expert */
    int n_boxes;  /* of a strip, an even number: the last one may be empty */
};

/* Up to STRIPS strips of an expert, and up to ROWS_MAX of its routes. In shared memory: expert,
 * strip, start, and n and count in a word. */
struct strips_tile {
    int expert, strip, n; /* n 0: the end of the run */
    int start, count;     /* routes */
};

/* --- the producers ---------------------------------------------------------------------------- */

/* The strips at .. last - 1 that are left of this block. */
struct strips_run {
    int at, last;
};

/* Looked up in the L2 cache: the choices are older than the previous kernel, whose reads nothing
 * orders before these. */
static __device__ inline strips_run strips_run_of(const strips_args &a)
{
    unsigned n = (unsigned)(__ldcg(a.p.touched) * a.n_strips);

    return {(int)(n * blockIdx.x / gridDim.x), (int)(n * (blockIdx.x + 1) / gridDim.x)};
}

/* With all routes; the same in all lanes, for the compiler too. */
static __device__ inline strips_tile strips_tile_at(const strips_args &a, const strips_run &run)
{
    strips_tile t = {};

    if (run.at >= run.last)
        return t;
    t.expert = __ldcg(a.p.touched + 1 + run.at / a.n_strips);
    t.strip = run.at % a.n_strips;
    t.n = min(min(STRIPS, run.last - run.at), a.n_strips - t.strip);
    t.start = __ldcg(a.p.starts + t.expert);
    t.count = __ldcg(a.p.starts + t.expert + 1) - t.start;
    t.expert = __shfl_sync(~0U, t.expert, 0);
    t.strip = __shfl_sync(~0U, t.strip, 0);
    t.n = __shfl_sync(~0U, t.n, 0);
    return t;
}

/* A record. */
static __device__ inline void strips_copy(void *to, const void *from, uint64_t *full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_addr(to)),
                 "l"(from), "n"(K_MXFP4_RECORD), "r"(shared_addr(full)), "l"(ONCE)
                 : "memory");
}

/* Load a record of each strip. */
static __device__ inline void strips_load_w(strips_shared &s, const strips_args &a,
                                            const strips_tile &t, int stage, int record)
{
    int n_records = k_mxfp4_records(a.p.n_in), n = record < n_records ? t.n : 0;
    const char *from =
        (const char *)a.p.w +
        ((size_t)(t.expert * a.n_strips + t.strip) * n_records + record) * K_MXFP4_RECORD;

    if (!leads())
        return;
    if (record < 4 && record % 2 == 0)
        s.tiles[stage] = make_int4(t.expert, t.strip, t.start, t.n | min(t.count, ROWS_MAX) << 8);
    barrier_expect(&s.full[stage], n * K_MXFP4_RECORD);
#pragma unroll 1
    for (int i = 0; i < n; i++, from += n_records * K_MXFP4_RECORD)
        strips_copy(s.w[stage][i], from, &s.full[stage]);
}

/* The even boxes of all strips of this block, or the odd ones, by a warp. Those of the second
 * product are loaded while the first one still runs, because the choices are older. */
static __device__ inline void strips_produce(strips_shared &s, const strips_args &a, int odd)
{
    strips_run run;
    strips_tile t;
    strips_ring r = strips_ring_of(odd, 1);

    if (a.p.is_gated)
        experts_wait_for_previous();
    run = strips_run_of(a);
    for (t = strips_tile_at(a, run); t.n > 0; run.at += t.n, t = strips_tile_at(a, run)) {
        for (; t.count > 0; t.start += ROWS_MAX, t.count -= ROWS_MAX) {
#pragma unroll 1
            for (int box = odd; box < a.n_boxes; box += 2) {
#pragma unroll 1
                for (int half = 0; half < 2; half++, r.next()) {
                    barrier_wait(&s.empty[r.stage], r.parity);
                    strips_load_w(s, a, t, r.stage, 2 * box + half);
                }
            }
        }
    }
    barrier_wait(&s.empty[r.stage], r.parity);
    if (leads()) {
        s.tiles[r.stage] = make_int4(0, 0, 0, 0);
        barrier_arrive(&s.full[r.stage]);
    }
}

/* Load the rows of x of a tile's even boxes, or of its odd ones, by a warp: they are on their way
 * while it waits for their place. Rows that the tile does not have are zeros. */
template <int ROWS>
static __device__ inline void strips_load_x(strips_shared &s, const strips_args &a,
                                            const strips_tile &t, strips_ring &r, int odd)
{
    int lane = threadIdx.x % 32, count = min(t.count, ROWS);
    int row = experts_row(a.p, t.start + min(lane, count - 1));

#pragma unroll 1
    for (int box = odd; box < a.n_boxes; box += 2) {
        const k_bf16 *from = a.p.x + box * BOX + lane * 8;
        bool has = box * BOX + lane * 8 < a.p.n_in;
        strips_ring second = r;
        int stage;
        uint4 x[ROWS];

#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            size_t at = (size_t)__shfl_sync(~0U, row, i) * a.p.n_in;

            x[i] = has && i < count ? *(const uint4 *)(from + at) : make_uint4(0, 0, 0, 0);
        }
        second.next();
        barrier_wait(&s.empty[r.stage], r.parity);
        barrier_wait(&s.empty[second.stage], second.parity);
        stage = lane < 16 ? r.stage : second.stage;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            *(uint4 *)(s.x[stage][i] + lane % 16 * 16) = mxfp4_raise(x[i]);
        barrier_arrive(&s.full[r.stage]);
        barrier_arrive(&s.full[second.stage]);
        r = second;
        r.next();
    }
}

/* All rows of x, in the order of strips_produce(). */
static __device__ inline void strips_produce_x(strips_shared &s, const strips_args &a, int odd)
{
    strips_run run;
    strips_tile t;
    strips_ring r = strips_ring_of(odd, 1);

    experts_wait_for_previous();
    run = strips_run_of(a);
    for (t = strips_tile_at(a, run); t.n > 0; run.at += t.n, t = strips_tile_at(a, run)) {
        for (; t.count > 0; t.start += ROWS_MAX, t.count -= ROWS_MAX) {
            if (t.count <= GROUP)
                strips_load_x<GROUP>(s, a, t, r, odd);
            else
                strips_load_x<ROWS_MAX>(s, a, t, r, odd);
        }
    }
    barrier_wait(&s.empty[r.stage], r.parity);
    barrier_arrive(&s.full[r.stage]);
}

/* --- products --------------------------------------------------------------------------------- */

/* A warp: its pair of strips, and whether it has the even boxes or the odd ones. */
struct strips_warp {
    int pair, odd;
    strips_ring stage;
};

/* Sums of two strips, of up to 8 NT routes. */
template <int NT> struct strips_sums {
    float of[2][NT][4];
};

/* Multiply a part of 64 columns of a record. codes and exponents: where this lane's are in the
 * first strip; x: where its columns of the first row are. */
template <int NT>
static __device__ __forceinline__ void strips_multiply(strips_sums<NT> &acc, const char *codes,
                                                       const char *exponents, const char *x,
                                                       int part, bool has_odd)
{
    uint4 b[2][NT];

#pragma unroll
    for (int i = 0; i < 2 * NT; i++)
        b[i % 2][i / 2] = *(const uint4 *)(x + i / 2 * (GROUP * X_PITCH) + part * 128 + i % 2 * 64);
#pragma unroll
    for (int strip = 0; strip < 2; strip++) {
        int record = strip * K_MXFP4_RECORD;
        const uint4 four = *(const uint4 *)(codes + record + part * (K_MXFP4_CODES / 2));
        const uint8_t *e = (const uint8_t *)exponents + record + part * 32;
        const uint32_t word[4] = {four.x, four.y, four.z, four.w};

#pragma unroll
        for (int run = 0; run < 2; run++) {
            const float low = mxfp4_scale(e[run * 16]), high = mxfp4_scale(e[run * 16 + 8]);
            uint32_t w[2][4];

            if (run == 1 && !has_odd)
                break;
            float4_widen(w[0], word[2 * run]);
            float4_widen(w[1], word[2 * run + 1]);
#pragma unroll
            for (int c = 0; c < NT; c++) {
                const uint4 &v = b[run][c];
                float sum[4] = {};

                experts_multiply(sum, w[0][0], w[0][1], w[0][2], w[0][3], v.x, v.y);
                experts_multiply(sum, w[1][0], w[1][1], w[1][2], w[1][3], v.z, v.w);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc.of[strip][c][i] =
                        __fmaf_rn(sum[i], i < 2 ? low : high, acc.of[strip][c][i]);
            }
        }
    }
}

/* All boxes of a tile that this warp has; warps of strips that it does not have only give the
 * stages back. */
template <int NT>
static __device__ __forceinline__ void strips_multiply_tile(strips_sums<NT> &acc, strips_shared &s,
                                                            const strips_args &a, strips_warp &own,
                                                            bool has)
{
    int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const char *first = s.w[0][2 * own.pair], *codes = first + lane * 16,
               *exponents = first + K_MXFP4_CODES + g, *x = s.x[0][g] + q * 16;

#pragma unroll 1
    for (int record = 2 * own.odd; record < 2 * a.n_boxes; record += record % 2 == 0 ? 1 : 3) {
        int left = has ? a.p.n_in - record * COLS : 0;
        int w_at = own.stage.stage * (int)sizeof s.w[0],
            x_at = own.stage.stage * (int)sizeof s.x[0];

        barrier_wait(&s.full[own.stage.stage], own.stage.parity);
        if (left >= COLS) {
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                strips_multiply<NT>(acc, codes + w_at, exponents + w_at, x + x_at, part, true);
        } else {
#pragma unroll 1
            for (int part = 0; part * 2 * RUN < left; part++)
                strips_multiply<NT>(acc, codes + w_at, exponents + w_at, x + x_at, part,
                                    (part * 2 + 1) * RUN < left);
        }
        barrier_arrive(&s.empty[own.stage.stage]); /* of all lanes, because all have read */
        own.stage.next();
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

/* The row of w, of the expert's, that row 0 or 8 of a strip is; the last one past the end. */
static __device__ inline int strips_row(const struct experts_product &p, int strip, int row)
{
    if (!p.is_gated)
        return min(strip * TILE + row, p.n_out - 1);
    return min(strip * 8 + row % 8, p.n_out - 1) + (row < 8 ? 0 : p.up);
}

/* The biases of a lane's rows g and g + 8. */
static __device__ inline float2 strips_bias(const struct experts_product &p, int expert, int strip)
{
    int g = threadIdx.x % 32 / 4;

    return make_float2(experts_own_bias(p, expert, strips_row(p, strip, g)),
                       experts_own_bias(p, expert, strips_row(p, strip, g + 8)));
}

/* Write the sums of 8 routes, the first of which is at place `first`; n: routes from it on. */
static __device__ inline void strips_write(const struct experts_product &p, int strip,
                                           const float (&sum)[4], float2 bias, int first, int n)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int out = strip * (p.is_gated ? 8 : TILE) + g;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int col = q * 2 + i;
        float factor = MXFP4_SUMS_LARGER, y, z;
        k_bf16 *to = p.out + (size_t)(first + col) * p.n_out + out;

        if (col >= n)
            continue;
        factor *= experts_factor(p, first + col);
        y = sum[i] * factor + bias.x;
        z = sum[i + 2] * factor + bias.y;
        if (p.is_gated)
            y = gated(y, z, p.activation);
        if (out < p.n_out)
            store_bf16(to, y);
        if (!p.is_gated && out + 8 < p.n_out)
            store_bf16(to + 8, z);
    }
}

/* Either warp of a pair ends one of its strips: it gets the sums of the other one. */
template <int NT>
static __device__ __forceinline__ void strips_end(const strips_sums<NT> &acc, strips_shared &s,
                                                  const strips_args &a, const strips_tile &t,
                                                  const strips_warp &own, float2 bias)
{
    int lane = threadIdx.x % 32, strip = t.strip + 2 * own.pair + own.odd;

#pragma unroll
    for (int c = 0; c < NT; c++) {
        const float(&first)[4] = acc.of[0][c], (&second)[4] = acc.of[1][c];

        s.sums[own.pair][1 - own.odd][c][lane] =
            own.odd ? make_float4(first[0], first[1], first[2], first[3])
                    : make_float4(second[0], second[1], second[2], second[3]);
    }
    named_sync(1 + own.pair, 64);
#pragma unroll
    for (int c = 0; c < NT; c++) {
        const float4 others = s.sums[own.pair][own.odd][c][lane];
        const float other[4] = {others.x, others.y, others.z, others.w};
        float sum[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = (own.odd ? acc.of[1][c][i] : acc.of[0][c][i]) + other[i];
        if (2 * own.pair + own.odd < t.n)
            strips_write(a.p, strip, sum, bias, t.start + c * GROUP, t.count - c * GROUP);
    }
    named_sync(1 + own.pair, 64); /* the next tile may use sums */
}

template <int NT>
static __device__ __forceinline__ void strips_tile_of(strips_shared &s, const strips_args &a,
                                                      const strips_tile &t, strips_warp &own)
{
    strips_sums<NT> acc = {};
    bool has = 2 * own.pair < t.n;
    float2 bias = make_float2(0.0f, 0.0f);

    if (has)
        bias = strips_bias(a.p, t.expert, t.strip + 2 * own.pair + own.odd);
    strips_multiply_tile<NT>(acc, s, a, own, has);
    if (has)
        strips_end<NT>(acc, s, a, t, own, bias);
}

static __device__ __forceinline__ void strips_consume(strips_shared &s, const strips_args &a,
                                                      int warp)
{
    strips_warp own = {warp / 2, warp % 2, strips_ring_of(warp % 2, 0)};

    for (;;) { /* until a tile has nothing */
        int4 v;

        barrier_wait(&s.full[own.stage.stage], own.stage.parity);
        v = s.tiles[own.stage.stage];
        const strips_tile t = {v.x, v.y, v.w & 255, v.z, v.w >> 8};

        if (t.n == 0)
            break;
        if (t.count <= GROUP)
            strips_tile_of<1>(s, a, t, own);
        else
            strips_tile_of<2>(s, a, t, own);
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    strips_kernel(const __grid_constant__ strips_args a)
{
    extern __shared__ __align__(1024) char memory[];
    strips_shared &s = *(strips_shared *)memory;
    int warp = warp_number();

    if (threadIdx.x < DEPTH) {
        barrier_init(&s.full[threadIdx.x], 1 + 32);
        barrier_init(&s.empty[threadIdx.x], PAIRS * 32);
    }
    barrier_init_done();
    fence_async();
    __syncthreads();
    if (warp >= WARPS + 2) {
        strips_produce_x(s, a, warp % 2);
    } else if (warp >= WARPS) {
        strips_produce(s, a, warp % 2);
    } else {
        experts_wait_for_previous(); /* for the factors */
        strips_consume(s, a, warp);
    }
}

/* --- launching -------------------------------------------------------------------------------- */

int experts_strips(const struct experts_product *p, int n_sms, k_stream stream)
{
    const size_t bytes = sizeof(strips_shared);
    int rows = p->is_gated ? 8 : TILE;
    const strips_args a = {*p, (p->n_out + rows - 1) / rows,
                           (p->n_in + 2 * BOX - 1) / (2 * BOX) * 2};

    if (cudaFuncSetAttribute(strips_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return -1;
    return experts_launch_early(strips_kernel, dim3(n_sms), THREADS, bytes, stream, a);
}
