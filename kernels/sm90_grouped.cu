/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of experts for many tokens with wgmma, both operands from shared memory: bfloat16, or
 * e4m3 with rows of x rounded to e4m3 as well.
 *
 *   x [token] --> rows in the order of routes (spread)
 *
 *   warp 0 (producer)                 ring in shared memory         warpgroups 1 and 2
 *
 *    takes the next tile         -->   tile [0] .. [1]          -->  128 routes x 128 rows of w
 *    TMA copies of x and of w    -->   stage [0] .. [DEPTH - 1] -->  each, in blocks of 64 routes
 *        ^                                    |                           |
 *        '------------ empty barriers <-------'                           v
 *                                                scale, bias, activation -> shared memory -> out
 *
 * A tile is up to 128 routes of one expert and 256 rows of w. Routes are the first operand, in
 * blocks of 64, so a tile with up to 64 routes takes half as long. A step is 128 bytes of a row: 64
 * elements of bfloat16, or 128 of e4m3. For the first product the rows of w are half gates and half
 * their ups, in turns of 8, so that a gate and its up are in one lane.
 *
 * Tiles differ in size; a CTA takes the next one from a counter when it has loaded one. The tiles
 * of the same routes follow each other, so that CTAs that run together have few experts, whose
 * weights stay in the L2 cache. Which CTA computes a tile has no effect on its bits.
 *
 * e4m3. A row of x is cut into runs of 128 elements, each with a scale (its largest magnitude
 * becomes 448), as the dense products with e4m3 have it. The tensor core adds up one run, of 128
 * elements, in its short accumulator; a warpgroup multiplies these sums by the scales and adds them
 * in float32, while the tensor core works for the other warpgroup. The first product rounds its
 * outputs to e4m3 in the same way: a tile has 128 outputs of a route, one run.
 *
 * Bytes. A step of a tile brings 48 KB from L2 for 2 x 128 x 256 x 64 operations (e4m3: 128).
 *
 * Sums are float32, in an order that depends on n_in alone. */
#include <cuda_fp8.h>

#include "kernels/e4m3.h"
#include "kernels/experts.cuh"
#include "kernels/product.cuh"

#define BLOCK     64          /* routes of a wgmma */
#define ROUTES    (2 * BLOCK) /* of a tile */
#define ROWS      256         /* of w, of a tile */
#define OWN       (ROWS / 2)  /* of a warpgroup */
#define LINE      128         /* bytes of a row of a stage */
#define W_BYTES   (ROWS * LINE)
#define X_BYTES   (ROUTES * LINE)
#define DEPTH     4
#define WARPS     8 /* that multiply */
#define THREADS   ((WARPS + 4) * 32)
#define GIVEN     40 /* registers */
#define TAKEN     232
#define OUT_BYTES 4096 /* results of 16 routes, of a warp */
#define HALVES    (K_MIXING_TILE / ROUTES)
#define SPREAD    128 /* threads of a row */

/* A format beside enum experts_format: EXPERTS_IN_BLOCKS where the rows of a warpgroup do not have
 * one scale, or its gates and its ups one each. */
#define GROUPED_UNEVEN 4

static_assert(128 * GIVEN + WARPS * 32 * TAKEN <= THREADS * (65536 / THREADS / 8 * 8), "registers");
static_assert(OUT_BYTES == 16 * OWN * 2, "rows of bfloat16");
static_assert(ROWS == 2 * K_E4M3_BLOCK, "a gated tile has one run of outputs");

struct grouped_shared {
    char w[DEPTH][W_BYTES];
    char x[DEPTH][X_BYTES];
    char out[WARPS][OUT_BYTES];
    float tops[2][2][ROUTES]; /* largest outputs: of a tile, of a warpgroup */
    int4 tiles[2];            /* expert, first place, routes (-1: the end), part */
    uint64_t full[DEPTH], empty[DEPTH], tile_full[2], tile_empty[2];
};

static_assert(sizeof(struct grouped_shared) <= 227 * 1024, "shared memory");

struct grouped_args {
    struct experts_product p;
    const float *x_scales; /* [run][stride] */
    float *out_scales;     /* the same of out, if that is e4m3 */
    uint32_t *taken;       /* tiles that were taken beyond the first of each CTA */
    int stride;            /* places */
    int n_parts;           /* tiles of rows of w of an expert */
    int n_steps;
};

/* --- the producer ----------------------------------------------------------------------------- */

/* A tile: expert, first place, routes (none: it has no work), part. */
static __device__ inline int4 grouped_tile_of(const grouped_args &a, uint32_t unit)
{
    int of_routes = (int)unit / a.n_parts, tile = of_routes / HALVES;
    int expert = __ldg(a.p.tiles + 1 + 2 * tile);
    int first = __ldg(a.p.tiles + 2 + 2 * tile) + of_routes % HALVES * ROUTES;

    return make_int4(expert, first, min(__ldg(a.p.starts + expert + 1) - first, ROUTES),
                     (int)unit % a.n_parts);
}

/* Sources of the copies. */
struct grouped_source {
    const CUtensorMap *w, *x;
    int elems; /* of a step */
};

static __device__ inline void grouped_load_w(grouped_shared &s, const grouped_source &from,
                                             const grouped_args &a, const int4 &t, int stage,
                                             int step)
{
    barrier_expect(&s.full[stage], W_BYTES + (t.z > BLOCK ? X_BYTES : X_BYTES / 2));
    tensor_load_5d(s.w[stage], from.w, &s.full[stage], step * from.elems,
                   t.w * (ROWS / (a.p.is_gated ? 16 : 8)), t.x);
}

static __device__ inline void grouped_load_x(grouped_shared &s, const grouped_source &from,
                                             const int4 &t, int stage, int step)
{
    for (int i = 0; i == 0 || i * BLOCK < t.z; i++)
        tensor_load_3d(s.x[stage] + i * (X_BYTES / 2), from.x, &s.full[stage], step * from.elems,
                       t.y + i * BLOCK, 0);
}

/* Load the steps of a tile. Of `early` ones the weights are already on their way. */
static __device__ inline void grouped_load_tile(grouped_shared &s, const grouped_source &from,
                                                const grouped_args &a, const int4 &t,
                                                ring<DEPTH> &r, int early)
{
    for (int step = 0; step < a.n_steps; step++) {
        if (step >= early) {
            barrier_wait(&s.empty[r.stage], r.parity);
            grouped_load_w(s, from, a, t, r.stage, step);
        }
        grouped_load_x(s, from, t, r.stage, step);
        r.next();
    }
}

/* By one lane. The list of tiles is older than the launch in front of this one, which x and the
 * counter come from: weights of the first tile are loaded before that has ended. */
static __device__ inline void grouped_produce(grouped_shared &s, const grouped_source &from,
                                              const grouped_args &a)
{
    uint32_t n_all = (uint32_t)(__ldg(a.p.tiles) * HALVES * a.n_parts), unit = blockIdx.x;
    ring<DEPTH> r = {0, 1};
    ring<2> slot = {0, 1};
    int early = 0;

    if (unit < n_all) {
        const int4 t = grouped_tile_of(a, unit);

        for (; t.z > 0 && early < min(DEPTH, a.n_steps); early++)
            grouped_load_w(s, from, a, t, early, early);
    }
    wait_for_previous();
    while (unit < n_all) {
        uint32_t next = gridDim.x + atomicAdd(a.taken, 1U);
        const int4 t = grouped_tile_of(a, unit);

        if (t.z > 0) {
            barrier_wait(&s.tile_empty[slot.stage], slot.parity);
            s.tiles[slot.stage] = t;
            barrier_arrive(&s.tile_full[slot.stage]);
            slot.next();
            grouped_load_tile(s, from, a, t, r, early);
        }
        early = 0;
        unit = next;
    }
    barrier_wait(&s.tile_empty[slot.stage], slot.parity);
    s.tiles[slot.stage] = make_int4(0, 0, -1, 0);
    barrier_arrive(&s.tile_full[slot.stage]);
}

/* --- the consumers' mainloop ------------------------------------------------------------------ */

/* Sums of a thread: rows g and g + 8 of its warp's 16 of a block, and of each 8 rows of w two. */
typedef float grouped_sums[BLOCK];

/* c [64][128] (+)= a [64][32] * transpose(b [128][32]), of e4m3. */
static __device__ __forceinline__ void grouped_multiply_codes(float (&c)[64], uint64_t a,
                                                              uint64_t b, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
                 " {" SM90_STR64 "}, %64, %65, p, 1, 1;\n"
                 "}"
                 : SM90_C64
                 : "l"(a), "l"(b), "r"(add));
}

/* This thread's place in its tile. */
struct grouped_lane {
    int group, warp, g, q; /* warpgroup; its warp; the lane's row and its pair of columns */
};

/* Give the stage back. */
static __device__ __forceinline__ void grouped_release(grouped_shared &s, int stage)
{
    if (leads())
        barrier_arrive(&s.empty[stage]);
}

template <int BLOCKS> static __device__ __forceinline__ void grouped_clear(grouped_sums (&acc)[2])
{
#pragma unroll
    for (int i = 0; i < BLOCKS * BLOCK; i++)
        acc[i / BLOCK][i % BLOCK] = 0.0f;
}

/* acc = BLOCKS x 64 routes x the 128 rows of w of this warpgroup, of bfloat16. A stage is given
 * back when the products of the next one have been issued and its own have ended. */
template <int BLOCKS>
static __device__ __forceinline__ void grouped_multiply_plain(grouped_sums (&acc)[2],
                                                              grouped_shared &s, ring<DEPTH> &r,
                                                              const grouped_lane &l, int n_steps)
{
    int before = 0;

    grouped_clear<BLOCKS>(acc);
    for (int step = 0; step < n_steps; step++) {
        const char *w = s.w[r.stage] + l.group * OWN * LINE, *x = s.x[r.stage];

        barrier_wait(&s.full[r.stage], r.parity);
        keep(acc[0]), keep(acc[BLOCKS - 1]);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < BLOCKS * 4; i++)
            multiply_rows(acc[i / 4], operand(x + i / 4 * BLOCK * LINE + i % 4 * 32, 1024, 0),
                          operand(w + i % 4 * 32, 1024, 0), 1);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (step > 0)
            grouped_release(s, before);
        before = r.stage;
        r.next();
    }
    warpgroup_wait<0>();
    keep(acc[0]), keep(acc[BLOCKS - 1]);
    grouped_release(s, before);
}

/* Where the scales of a lane's first row of x and of its warpgroup's gates are. Scales of rows that
 * the tile does not have are read too, and not used. */
struct grouped_scales {
    const float *x, *gate;
    int stride, up; /* to the next run; to the scales of ups */
};

/* Scales of one run. */
struct grouped_factors {
    float x[2][2], w[2];
};

template <int FORMAT>
static __device__ __forceinline__ grouped_factors grouped_factors_at(const grouped_scales &s,
                                                                     int step)
{
    grouped_factors f;

#pragma unroll
    for (int i = 0; i < 4; i++)
        f.x[i / 2][i % 2] = __ldg(s.x + (size_t)step * s.stride + i / 2 * BLOCK + i % 2 * 8);
    f.w[0] = FORMAT == EXPERTS_IN_BLOCKS ? __ldg(s.gate + step) : 1.0f;
    f.w[1] = FORMAT == EXPERTS_IN_BLOCKS ? __ldg(s.gate + s.up + step) : 1.0f;
    return f;
}

/* The row of w of the expert, of a warpgroup's rows 8 j .. 8 j + 7; its last ones past the end. */
template <bool GATED>
static __device__ __forceinline__ int grouped_row(const grouped_args &a, int part, int group, int j)
{
    if (!GATED)
        return min(part * ROWS + group * OWN + j * 8, a.p.n_out - 8);
    return min(part * OWN + group * BLOCK + j / 2 * 8, a.p.n_out - 8) + j % 2 * a.p.up;
}

/* acc += sums * scales of a run. */
template <int FORMAT, bool GATED>
static __device__ __forceinline__ void grouped_promote(grouped_sums &acc, const grouped_sums &sums,
                                                       const grouped_factors &f, int block,
                                                       const grouped_args &a, const int4 &t,
                                                       const grouped_lane &l, int step)
{
    if (FORMAT == GROUPED_UNEVEN) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            int row = t.x * a.p.rows + grouped_row<GATED>(a, t.w, l.group, j);
            float own = __ldg(a.p.scales + row / EXPERTS_BLOCK * a.p.scale_cols + step);

#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[4 * j + i] =
                    __fmaf_rn(sums[4 * j + i], f.x[block][i / 2] * own, acc[4 * j + i]);
        }
        return;
    }
    const float low[2] = {f.x[block][0] * f.w[0], f.x[block][0] * f.w[1]},
                high[2] = {f.x[block][1] * f.w[0], f.x[block][1] * f.w[1]};

#pragma unroll
    for (int j = 0; j < 16; j++) {
        int up = GATED ? j % 2 : 0;

        acc[4 * j] = __fmaf_rn(sums[4 * j], low[up], acc[4 * j]);
        acc[4 * j + 1] = __fmaf_rn(sums[4 * j + 1], low[up], acc[4 * j + 1]);
        acc[4 * j + 2] = __fmaf_rn(sums[4 * j + 2], high[up], acc[4 * j + 2]);
        acc[4 * j + 3] = __fmaf_rn(sums[4 * j + 3], high[up], acc[4 * j + 3]);
    }
}

/* The same of e4m3. */
template <int FORMAT, bool GATED, int BLOCKS>
static __device__ __forceinline__ void grouped_multiply_rounded(
    grouped_sums (&acc)[2], grouped_shared &s, ring<DEPTH> &r, const grouped_lane &l,
    const grouped_args &a, const int4 &t, const grouped_scales &scales)
{
    grouped_factors next = grouped_factors_at<FORMAT>(scales, 0);
    grouped_sums sums;

    grouped_clear<BLOCKS>(acc);
    for (int step = 0; step < a.n_steps; step++) {
        const char *w = s.w[r.stage] + l.group * OWN * LINE, *x = s.x[r.stage];
        const grouped_factors f = next;

        if (step + 1 < a.n_steps)
            next = grouped_factors_at<FORMAT>(scales, step + 1);
        barrier_wait(&s.full[r.stage], r.parity);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            keep(sums);
            warpgroup_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
                grouped_multiply_codes(sums, operand(x + block * BLOCK * LINE + k * 32, 1024, 0),
                                       operand(w + k * 32, 1024, 0), k != 0);
            warpgroup_commit();
            warpgroup_wait<0>();
            keep(sums);
            if (block == BLOCKS - 1)
                grouped_release(s, r.stage);
            grouped_promote<FORMAT, GATED>(acc[block], sums, f, block, a, t, l, step);
        }
        r.next();
    }
}

template <int FORMAT, bool GATED>
static __device__ __forceinline__ grouped_scales grouped_scales_of(const grouped_args &a,
                                                                   const int4 &t,
                                                                   const grouped_lane &l)
{
    grouped_scales s = {};
    int own = t.x * a.p.rows;

    s.stride = a.stride;
    s.x = a.x_scales + t.y + l.warp * 16 + l.g;
    if (FORMAT == EXPERTS_IN_BLOCKS) {
        int gate = own + grouped_row<GATED>(a, t.w, l.group, 0),
            up = own + grouped_row<GATED>(a, t.w, l.group, 1);

        s.gate = a.p.scales + gate / EXPERTS_BLOCK * a.p.scale_cols;
        s.up = (up / EXPERTS_BLOCK - gate / EXPERTS_BLOCK) * a.p.scale_cols;
    }
    return s;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Scales and biases of two neighbouring rows of w. */
template <int FORMAT>
static __device__ __forceinline__ void grouped_end_pair(float (&y)[2][4], const grouped_args &a,
                                                        int row)
{
    float2 scale = make_float2(1.0f, 1.0f), bias = make_float2(0.0f, 0.0f);

    if (FORMAT == EXPERTS_BY_ROW)
        scale = *(const float2 *)(a.p.scales + row);
    if (a.p.bias != NULL) {
        uint32_t two = *(const uint32_t *)(a.p.bias + row);

        bias = make_float2(low_half(two), high_half(two));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y[i / 2][i % 2 * 2] = __fmaf_rn(y[i / 2][i % 2 * 2], scale.x, bias.x);
        y[i / 2][i % 2 * 2 + 1] = __fmaf_rn(y[i / 2][i % 2 * 2 + 1], scale.y, bias.y);
    }
}

/* Scales and biases of all sums. */
template <int FORMAT, bool GATED>
static __device__ __forceinline__ void grouped_end_sums(grouped_sums (&acc)[2],
                                                        const grouped_args &a, const int4 &t,
                                                        const grouped_lane &l)
{
    if (FORMAT != EXPERTS_BY_ROW && a.p.bias == NULL)
        return;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        int row = t.x * a.p.rows + grouped_row<GATED>(a, t.w, l.group, j) + 2 * l.q;
        float y[2][4];

#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i / 4][i % 4] = acc[i / 4][4 * j + i % 4];
        grouped_end_pair<FORMAT>(y, a, row);
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i / 4][4 * j + i % 4] = y[i / 4][i % 4];
    }
}

/* silu(gate) * up in few instructions; the quotient is 0 where the exponential is infinite. */
static __device__ __forceinline__ float grouped_silu(float gate, float up)
{
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Outputs in the place of the gates, by a loop over shared memory: one copy of the code. A lane
 * has own[..][lane]. */
static __device__ __forceinline__ void grouped_activate_others(grouped_sums &acc, char *own,
                                                               enum k_activation kind)
{
    float4 *at = (float4 *)own + threadIdx.x % 32;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float *c = acc + half * 32;

#pragma unroll
        for (int i = 0; i < 8; i++)
            at[i * 32] = make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
#pragma unroll 1
        for (int i = 0; i < 8; i += 2) {
            float4 gate = at[i * 32], up = at[(i + 1) * 32];

            at[i * 32] = make_float4(gated(gate.x, up.x, kind), gated(gate.y, up.y, kind),
                                     gated(gate.z, up.z, kind), gated(gate.w, up.w, kind));
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            float4 y = at[i * 32];

            c[4 * i] = y.x, c[4 * i + 1] = y.y, c[4 * i + 2] = y.z, c[4 * i + 3] = y.w;
        }
    }
}

/* Outputs in the place of the gates. */
static __device__ __forceinline__ void grouped_activate(grouped_sums &acc, char *own,
                                                        enum k_activation kind)
{
    if (kind != K_SILU) {
        grouped_activate_others(acc, own, kind);
        return;
    }
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[4 * j + i] = grouped_silu(acc[4 * j + i], acc[4 * j + 4 + i]);
    }
}

/* Four 8 x 8 matrices of bfloat16 to shared memory; lane l gives the address of row l % 8 of
 * matrix l / 8. */
static __device__ inline void grouped_store_four(uint32_t at, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/* Write 16 routes of a warp as bfloat16. n: routes of the tile from them on. Chunks of 16 bytes are
 * staged so that rows of 128 bytes and more meet all banks. */
template <bool GATED>
static __device__ __forceinline__ void grouped_write_plain(const grouped_sums &acc, char *out,
                                                           const grouped_args &a, int place, int n,
                                                           int at)
{
    const int STEP = GATED ? 2 : 1, CHUNKS = 16 / STEP; /* of a row */
    int lane = threadIdx.x % 32, row = lane % 16;

    __syncwarp();
#pragma unroll
    for (int j = 0; j < CHUNKS; j += 2) {
        const float *c = acc + j * STEP * 4, *d = c + STEP * 4;
        const uint32_t m[4] = {pack_bf16(c[0], c[1]), pack_bf16(c[2], c[3]), pack_bf16(d[0], d[1]),
                               pack_bf16(d[2], d[3])};

        grouped_store_four(shared_addr(out + (row * CHUNKS + ((j + lane / 16) ^ row % 8)) * 16), m);
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        int own = i / CHUNKS, chunk = i % CHUNKS;

        if (own < n && at + chunk * 8 < a.p.n_out)
            *(uint4 *)(a.p.out + (size_t)(place + own) * a.p.n_out + at + chunk * 8) =
                *(const uint4 *)(out + (own * CHUNKS + (chunk ^ own % 8)) * 16);
    }
}

#define CODES_PITCH 80 /* bytes of a row of 64 codes */

/* The same as e4m3, times a factor for each of rows g and g + 8. */
static __device__ __forceinline__ void grouped_write_codes(const grouped_sums &acc, char *out,
                                                           const float (&factor)[2],
                                                           const grouped_args &a, int place, int n,
                                                           int at, const grouped_lane &l)
{
    int lane = threadIdx.x % 32;

    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *c = acc + 8 * j;

#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint16_t *)(out + (l.g + 8 * i) * CODES_PITCH + j * 8 + 2 * l.q) =
                __nv_cvt_float2_to_fp8x2(
                    make_float2(c[2 * i] * factor[i], c[2 * i + 1] * factor[i]), __NV_SATFINITE,
                    __NV_E4M3);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int own = lane / 4 + 8 * i, chunk = lane % 4;

        if (own < n && at + chunk * 16 < a.p.n_out)
            *(uint4 *)((k_e4m3 *)a.p.out + (size_t)(place + own) * a.p.n_out + at + chunk * 16) =
                *(const uint4 *)(out + own * CODES_PITCH + chunk * 16);
    }
}

/* Largest outputs of rows g and g + 8 of both blocks, over the run that both warpgroups have.
 * tops: [2][ROUTES] of this tile. */
static __device__ __forceinline__ void grouped_find_tops(float (&top)[2][2],
                                                         const grouped_sums (&acc)[2],
                                                         float (*tops)[ROUTES],
                                                         const grouped_lane &l)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float most = 0.0f;

#pragma unroll
        for (int j = 0; j < 8; j++)
            most = fmaxf(most, fmaxf(fabsf(acc[i / 2][8 * j + i % 2 * 2]),
                                     fabsf(acc[i / 2][8 * j + i % 2 * 2 + 1])));
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
        top[i / 2][i % 2] = most;
        if (l.q == 0)
            tops[l.group][i / 2 * BLOCK + l.warp * 16 + i % 2 * 8 + l.g] = most;
    }
    named_sync(1, WARPS * 32);
#pragma unroll
    for (int i = 0; i < 4; i++)
        top[i / 2][i % 2] = fmaxf(top[i / 2][i % 2],
                                  tops[1 - l.group][i / 2 * BLOCK + l.warp * 16 + i % 2 * 8 + l.g]);
}

/* Outputs of the first product as e4m3, with the scales of their run. */
static __device__ __forceinline__ void grouped_end_codes(const grouped_sums (&acc)[2],
                                                         grouped_shared &s, char *out,
                                                         const grouped_args &a, const int4 &t,
                                                         const grouped_lane &l, int turn)
{
    float top[2][2];

    grouped_find_tops(top, acc, s.tops[turn], l);
#pragma unroll
    for (int block = 0; block < 2; block++) {
        int from = block * BLOCK + l.warp * 16;
        const float scale[2] = {k_e4m3_scale(top[block][0]), k_e4m3_scale(top[block][1])},
                    factor[2] = {1.0f / scale[0], 1.0f / scale[1]};

        if (from >= t.z)
            break;
        if (l.group == 0 && l.q == 0) {
            float *to = a.out_scales + (size_t)t.w * a.stride + t.y + from + l.g;

            if (from + l.g < t.z)
                to[0] = scale[0];
            if (from + l.g + 8 < t.z)
                to[8] = scale[1];
        }
        grouped_write_codes(acc[block], out, factor, a, t.y + from, t.z - from,
                            t.w * OWN + l.group * BLOCK, l);
    }
}

/* turn: 0 and 1 for a CTA's tiles in turns. */
template <int FORMAT, bool GATED>
static __device__ __forceinline__ void grouped_end(grouped_sums (&acc)[2], grouped_shared &s,
                                                   const grouped_args &a, const int4 &t,
                                                   const grouped_lane &l, int turn)
{
    char *out = s.out[l.group * 4 + l.warp];
    int at = GATED ? t.w * OWN + l.group * BLOCK : t.w * ROWS + l.group * OWN;

    grouped_end_sums<FORMAT, GATED>(acc, a, t, l);
#pragma unroll
    for (int block = 0; GATED && block < 2; block++)
        grouped_activate(acc[block], out, a.p.activation);
    if constexpr (GATED && FORMAT != EXPERTS_PLAIN) {
        grouped_end_codes(acc, s, out, a, t, l, turn);
    } else {
#pragma unroll
        for (int block = 0; block < 2; block++) {
            int from = block * BLOCK + l.warp * 16;

            if (from < t.z)
                grouped_write_plain<GATED>(acc[block], out, a, t.y + from, t.z - from, at);
        }
    }
}

/* The sums of a tile. */
template <int FORMAT, bool GATED, int BLOCKS>
static __device__ __forceinline__ void grouped_multiply(grouped_sums (&acc)[2], grouped_shared &s,
                                                        ring<DEPTH> &r, const grouped_lane &l,
                                                        const grouped_args &a, const int4 &t)
{
    if constexpr (FORMAT == EXPERTS_PLAIN)
        grouped_multiply_plain<BLOCKS>(acc, s, r, l, a.n_steps);
    else
        grouped_multiply_rounded<FORMAT, GATED, BLOCKS>(acc, s, r, l, a, t,
                                                        grouped_scales_of<FORMAT, GATED>(a, t, l));
}

template <int FORMAT, bool GATED>
static __device__ __forceinline__ void grouped_consume(grouped_shared &s, const grouped_args &a)
{
    const grouped_lane l = {(int)threadIdx.x / 128 - 1, (int)threadIdx.x % 128 / 32,
                            (int)threadIdx.x % 32 / 4, (int)threadIdx.x % 4};
    ring<DEPTH> r = {0, 0};
    ring<2> slot = {0, 0};
    grouped_sums acc[2] = {};

    for (;;) { /* until the producer says that there is no more */
        int turn = slot.stage;
        int4 t;

        barrier_wait(&s.tile_full[slot.stage], slot.parity);
        t = s.tiles[slot.stage];
        __syncwarp();
        if (leads())
            barrier_arrive(&s.tile_empty[slot.stage]);
        slot.next();
        if (t.z < 0)
            break;
        if (t.z > BLOCK)
            grouped_multiply<FORMAT, GATED, 2>(acc, s, r, l, a, t);
        else
            grouped_multiply<FORMAT, GATED, 1>(acc, s, r, l, a, t);
        grouped_end<FORMAT, GATED>(acc, s, a, t, l, turn);
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int FORMAT, bool GATED>
static __global__ void __launch_bounds__(THREADS, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ grouped_args a)
{
    extern __shared__ __align__(1024) char memory[];
    grouped_shared &s = *(grouped_shared *)memory;

    if (threadIdx.x == 0) {
        for (int i = 0; i < DEPTH; i++) {
            barrier_init(&s.full[i], 1);
            barrier_init(&s.empty[i], WARPS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(&s.tile_full[i], 1);
            barrier_init(&s.tile_empty[i], WARPS);
        }
        barrier_init_done();
        fence_async();
    }
    __syncthreads();
    let_next_begin();
    if (threadIdx.x < 128) {
        registers_give<GIVEN>();
        if (threadIdx.x == 0)
            grouped_produce(s, {&w_map, &x_map, FORMAT == EXPERTS_PLAIN ? 64 : 128}, a);
    } else {
        registers_take<TAKEN>();
        wait_for_previous(); /* for the scales of x */
        grouped_consume<FORMAT, GATED>(s, a);
    }
}

/* --- rows in the order of routes -------------------------------------------------------------- */

struct spread_args {
    const k_bf16 *x;
    void *out;
    float *scales;
    const int32_t *places;
    uint32_t *taken;
    int n_used, dim, stride;
};

/* 16 elements from d on of a row, rounded; the 8 lanes of a run share its scale. */
static __device__ inline uint4 grouped_round(float *scale, const k_bf16 *x, int d, int dim)
{
    float v[16] = {}, most = 0.0f, factor;
    uint32_t word[4];

    if (d < dim) {
        load_eight(v, x + d);
        load_eight(v + 8, x + d + 8);
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        most = fmaxf(most, fabsf(v[i]));
    for (int i = 4; i > 0; i /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0U, most, i));
    *scale = k_e4m3_scale(most);
    factor = 1.0f / *scale;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = __nv_cvt_float2_to_fp8x2(
            make_float2(v[4 * i] * factor, v[4 * i + 1] * factor), __NV_SATFINITE, __NV_E4M3);
        uint32_t high = __nv_cvt_float2_to_fp8x2(
            make_float2(v[4 * i + 2] * factor, v[4 * i + 3] * factor), __NV_SATFINITE, __NV_E4M3);

        word[i] = low | high << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Write a token's row of x to the places of its routes. A block has a token; the first one also
 * sets the counters of tiles of both products to 0. */
template <bool ROUNDS> static __global__ void __launch_bounds__(SPREAD) spread_kernel(spread_args a)
{
    const int ELEMS = ROUNDS ? 16 : 8, BYTES = ROUNDS ? 1 : 2;
    const k_bf16 *x = a.x + (size_t)blockIdx.x * a.dim;
    const int32_t *places = a.places + (size_t)blockIdx.x * a.n_used;

    let_next_begin();
    if (blockIdx.x == 0 && threadIdx.x < 2)
        a.taken[threadIdx.x] = 0;
    for (int base = 0; base < a.dim; base += SPREAD * ELEMS) {
        int d = base + (int)threadIdx.x * ELEMS;
        float scale = 0.0f;
        uint4 v = {};

        if (ROUNDS)
            v = grouped_round(&scale, x, d, a.dim);
        else if (d < a.dim)
            v = *(const uint4 *)(x + d);
        for (int slot = 0; slot < a.n_used; slot++) {
            int place = __ldg(places + slot);

            if (place < 0 || d >= a.dim)
                continue;
            *(uint4 *)((char *)a.out + ((size_t)place * a.dim + d) * BYTES) = v;
            if (ROUNDS && d % K_E4M3_BLOCK == 0)
                a.scales[(size_t)(d / K_E4M3_BLOCK) * a.stride + place] = scale;
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

template <int FORMAT, bool GATED>
static int grouped_launch(grouped_args *a, int n_sms, k_stream stream)
{
    const bool IS_BYTES = FORMAT != EXPERTS_PLAIN;
    CUtensorMap w_map, x_map;

    a->n_steps = (a->p.n_in * (IS_BYTES ? 1 : 2) + LINE - 1) / LINE;
    if (experts_map_w(&w_map, &a->p, IS_BYTES, ROWS) != 0 ||
        experts_map_x(&x_map, &a->p, IS_BYTES, BLOCK) != 0 ||
        cudaFuncSetAttribute(grouped_kernel<FORMAT, GATED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(grouped_shared)) != cudaSuccess)
        return -1;
    return experts_launch_early(grouped_kernel<FORMAT, GATED>, dim3(n_sms), THREADS,
                                sizeof(grouped_shared), stream, w_map, x_map, *a);
}

template <int FORMAT> static int grouped_launch_either(grouped_args *a, int n_sms, k_stream stream)
{
    return a->p.is_gated ? grouped_launch<FORMAT, true>(a, n_sms, stream)
                         : grouped_launch<FORMAT, false>(a, n_sms, stream);
}

/* Scales stand behind the codes, which are half as large as the bfloat16 that there is room for. */
static float *grouped_scales_behind(const void *codes, int n, int dim)
{
    return (float *)((uintptr_t)codes + ((size_t)n * (size_t)dim + 3) / 4 * 4);
}

int experts_spread(void *out, const k_bf16 *x, const int32_t *places, uint32_t *taken,
                   const struct experts_product *p, bool rounds, k_stream stream)
{
    int n = p->n_tokens * p->n_used;
    const spread_args a = {
        x, out, grouped_scales_behind(out, n, p->n_in), places, taken, p->n_used, p->n_in, n};

    if (rounds)
        return K_LAUNCH(spread_kernel<true>, p->n_tokens, SPREAD, 0, stream, a);
    return K_LAUNCH(spread_kernel<false>, p->n_tokens, SPREAD, 0, stream, a);
}

int experts_grouped(const struct experts_product *p, enum experts_format format, uint32_t *taken,
                    int n_sms, k_stream stream)
{
    int n = p->n_tokens * p->n_used, outs = p->is_gated ? OWN : ROWS;
    grouped_args a = {};

    a.p = *p;
    a.x_scales = grouped_scales_behind(p->x, n, p->n_in);
    a.out_scales = grouped_scales_behind(p->out, n, p->n_out);
    a.taken = taken;
    a.stride = n;
    a.n_parts = (p->n_out + outs - 1) / outs;
    switch (format) {
    case EXPERTS_PLAIN: return grouped_launch_either<EXPERTS_PLAIN>(&a, n_sms, stream);
    case EXPERTS_BY_ROW: return grouped_launch_either<EXPERTS_BY_ROW>(&a, n_sms, stream);
    case EXPERTS_IN_BLOCKS:
        if (p->rows % EXPERTS_BLOCK != 0 || p->up % EXPERTS_BLOCK != 0)
            return grouped_launch_either<GROUPED_UNEVEN>(&a, n_sms, stream);
        return grouped_launch_either<EXPERTS_IN_BLOCKS>(&a, n_sms, stream);
    case EXPERTS_MXFP4: break;
    }
    return -1;
}
