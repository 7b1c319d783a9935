/* SPDX-License-Identifier: Apache-2.0
 *
 * The epilogue of sm90_product.cu: partial sums of warpgroups and CTAs are added, and the
 * operations around a product in a decode are done (k_multiply() in kernels.h). There are three
 * ways, by the owner of a sum:
 *
 *    complete in one thread   straight from the accumulators         end_write_floats() and
 *                                                                    end_write_gated()
 *    a tile of one block      partial sums of two warpgroups (and   end_block(): patches of 16 x 8,
 *                             of the other CTA) in shared memory     in the layout of wgmma
 *    several blocks           [column][rows of the tile] in shared    end_finish(): 256 threads,
 *                             memory                                 four rows of a column at a
 *                                                                    time */
#ifndef QUIRE_KERNELS_SM90_PRODUCT_END_CUH
#define QUIRE_KERNELS_SM90_PRODUCT_END_CUH

#include "kernels/product.cuh"
#include "kernels/product_cut.h"

/* Elements of w: bfloat16; e4m3, for which x is float16; bytes with a sign; codes in records:
 * integers of 4 or 8 bits, a record of which is one group or several, or floats. */
enum wide_form {
    WIDE_PLAIN,
    WIDE_E4M3,
    WIDE_SIGNED,
    WIDE_WHOLE,
    WIDE_CODES,
    WIDE_WHOLE_BYTES,
    WIDE_BYTES,
    WIDE_FLOATS
};

#define WIDE_IS_WHOLE(form) ((form) == WIDE_WHOLE || (form) == WIDE_WHOLE_BYTES)
#define WIDE_BITS(form)     ((form) == WIDE_WHOLE_BYTES || (form) == WIDE_BYTES ? 8 : 4)
#define WIDE_INTEGERS(form) ((form) >= WIDE_WHOLE && (form) <= WIDE_BYTES)
#define WIDE_RECORDS(form)  (WIDE_INTEGERS(form) || (form) == WIDE_FLOATS)
/* by row */
#define WIDE_SCALED(form) ((form) == WIDE_E4M3 || (form) == WIDE_SIGNED || (form) == WIDE_FLOATS)

#define WORKERS           256 /* threads of the two warpgroups that multiply and finish tiles */

/* Accumulators per element: two, so that consecutive products need not wait for each other; with
 * the most columns there are registers for one only. */
#define SUMS(N) ((N) > 32 ? 1 : 2)

/* A packed matrix. */
struct wide_codes {
    const char *w;
    int record_bytes, groups; /* groups of columns in a record: 1, 2 or 4; 4 or 8 of floats */
    bool has_zeros, is_half;  /* scales are float16 */
};

struct wide_args {
    struct product_cut c; /* begins a 64-byte line of the arguments */
    struct k_product p;
    const float *scales; /* [n_out] or NULL */
    int n;
    struct wide_codes codes;
};

/* --- the numbers that the epilogue needs ------------------------------------------------------ */

/* The outputs of a tile, in items of four rows of w, and this thread's among them. */
struct outputs {
    int n_out, begin; /* rows of y; the first of this CTA */
    int fours;        /* items per column */
    int own;          /* rows per column */
    int col, row;     /* this thread's first item: its column and its four rows */
    int cols_a_turn, rows_a_turn;
    int stride; /* floats from a column to the next in shared memory */
};

static __device__ inline outputs end_outputs_of(const wide_args &a, int tile, int rank)
{
    int tile_rows = a.c.gated ? a.c.rows / 2 : a.c.rows;
    outputs o;

    o.n_out = a.c.gated ? a.c.n_out / 2 : a.c.n_out;
    o.own = tile_rows / a.c.n_split;
    o.begin = tile * tile_rows + rank * o.own;
    o.fours = o.own / 4;
    o.col = threadIdx.x / o.fours;
    o.row = threadIdx.x % o.fours;
    o.cols_a_turn = WORKERS / o.fours;
    o.rows_a_turn = WORKERS % o.fours;
    o.stride = a.c.n_blocks * CUT_BLOCK + 4;
    pin(o.n_out), pin(o.begin), pin(o.fours), pin(o.own), pin(o.col), pin(o.row);
    pin(o.cols_a_turn), pin(o.rows_a_turn), pin(o.stride);
    return o;
}

/* Launch arguments and numbers of the cut that the epilogue reads, in registers. */
struct facts {
    int n, n_out, rows; /* columns; rows of y, and of a tile of y */
    int n_split;
    bool is_half; /* y or normed is float16 */
    k_bf16 *y, *normed;
    float *residual, *sums_out;
    const k_bf16 *norm, *bias;
    const float *scales;
    int block_rows, n_whole, tail_rows; /* rows of w; for K_PRODUCT_FLOAT, from the cut */
    const float *inverse;               /* this and the next in shared memory */
    float *red;
};

/* Everything is read once, before the mainloop, and kept in uniform registers. */
template <int KIND, bool SCALED>
static __device__ inline facts end_facts_of(const wide_args &a, const float *inverse, float *red)
{
    int halves = KIND == K_PRODUCT_GATED ? 2 : 1;
    facts f = {};

    f.n = steady(a.n);
    f.n_out = steady(a.c.n_out / halves);
    f.rows = steady(a.c.rows / halves);
    f.n_split = steady(a.c.n_split);
    f.inverse = steady_shared(inverse);
    f.red = steady_shared(red);
    f.block_rows = steady(a.c.block_rows);
    if (KIND == K_PRODUCT_FLOAT) {
        f.n_whole = steady(a.c.n_whole);
        f.tail_rows = steady(a.c.tail_rows);
    }
    f.bias = steady_global((const k_bf16 *)a.p.bias);
    if (SCALED)
        f.scales = steady_global(a.scales);
    if (KIND == K_PRODUCT_RESIDUAL) {
        f.norm = steady_global((const k_bf16 *)a.p.norm);
        f.normed = steady_global((k_bf16 *)a.p.normed);
        f.residual = steady_global(a.p.residual);
        f.sums_out = steady_global(a.p.sums_out);
    } else {
        f.y = steady_global((k_bf16 *)a.p.y);
    }
    if (KIND == K_PRODUCT_RESIDUAL || KIND == K_PRODUCT_GATED)
        f.is_half = steady(a.p.y_is_half);
    return f;
}

/* The gate of SwiGLU, without the branches for denormals. */
static __device__ __forceinline__ float end_silu(float x)
{
    float power, inverse;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return x * inverse;
}

/* Transpose within a warp: two columns 2 q and 2 q + 1 of row g, in lane 4 g + q, become two rows 2
 * q and 2 q + 1 of column g. */
static __device__ __forceinline__ void end_transpose(uint32_t &two)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(two));
}

/* --- several blocks, through shared memory -------------------------------------------------- */

/* The address of p in the shared memory of a CTA of the cluster. */
static __device__ __forceinline__ uint32_t end_remote_addr(const void *p, int rank)
{
    uint32_t at;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_addr(p)), "r"(rank));
    return at;
}

static __device__ inline float4 end_load_four_remote(const float *p, int rank)
{
    float4 f;

    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w)
                 : "r"(end_remote_addr(p, rank)));
    return f;
}

/* Store columns first .. first + columns - 1 of a warpgroup's sums to shared memory
 * [column][stride]. */
template <int N, int MB, int OWN>
static __device__ inline void end_store_sums(float *red, const float (&acc)[OWN][SUMS(N)][N / 2],
                                             int first, int columns, int block_rows)
{
    const int stride = MB * CUT_BLOCK + 4;
    int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;

#pragma unroll
    for (int half = 0; half < OWN; half++) {
#pragma unroll
        for (int elem = 0; elem < N / 2; elem++) {
            int col = elem / 4 * 8 + lane_col * 2 + elem % 2 - first, below = elem % 4 / 2 * 8;

            if (col >= 0 && col < columns && row + below < block_rows)
                red[col * stride + 2 * half * block_rows + row + below] = acc[half][0][elem];
        }
    }
}

/* Load four elements of a row of n; `whole`: as one access. */
static __device__ inline void end_load_four(float f[4], const void *from, size_t at, int left,
                                            bool whole)
{
    const k_bf16 *p = (const k_bf16 *)from + at;

    if (whole) {
        uint2 v = *(const uint2 *)p;

        f[0] = low_half(v.x), f[1] = high_half(v.x);
        f[2] = low_half(v.y), f[3] = high_half(v.y);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = i < left ? load_bf16(p + i) : 0.0f;
}

/* Four rows of a column: two words of float16 in the order of K_HALF_AT, or one store of bf16. */
static __device__ inline void end_store_four(void *to, size_t at, const float f[4], bool is_half,
                                             int left, bool whole)
{
    k_bf16 *p = (k_bf16 *)to + at;

    if (is_half) {
        store_x_two(to, at, f[0], f[1], true);
        store_x_two(to, at + 2, f[2], f[3], true);
    } else if (whole) {
        *(uint2 *)p = make_uint2(pack_bf16(f[0], f[1]), pack_bf16(f[2], f[3]));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < left)
                store_bf16(p + i, f[i]);
        }
    }
}

/* The sums of four rows, added over the CTAs of a cluster if they are a pair. */
static __device__ inline void end_sum_parts(float f[4], const float *from, bool pair)
{
    float4 sum = pair ? end_load_four_remote(from, 0) : *(const float4 *)from;

    if (pair) {
        float4 more = end_load_four_remote(from, 1);

        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    *(float4 *)f = sum;
}

/* Apply the norm's factor, scales (NULL: none) and the bias to rows `at` .. of w. */
static __device__ inline void end_scale_four(float f[4], const wide_args &a, float inverse,
                                             const float *scales, size_t at, int left, bool whole)
{
    float bias[4] = {}, scale[4] = {1.0f, 1.0f, 1.0f, 1.0f};

    if (a.p.bias != NULL)
        end_load_four(bias, a.p.bias, at, left, whole);
    if (scales != NULL)
        *(float4 *)scale = *(const float4 *)scales;
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = f[i] * (inverse * scale[i]) + bias[i];
}

/* The scale of row i of a tile; 0 after the end of the matrix. */
static __device__ inline float end_scale_of(const wide_args &a, int tile, int i)
{
    int tile_rows = a.c.gated ? a.c.rows / 2 : a.c.rows;
    int n_out = a.c.gated ? a.c.n_out / 2 : a.c.n_out;
    int row = tile * tile_rows + i % tile_rows;

    if (i >= a.c.rows || row >= n_out)
        return 0.0f;
    return a.scales == NULL ? 1.0f : a.scales[row + i / tile_rows * n_out];
}

/* The inputs of K_PRODUCT_RESIDUAL's epilogue for four rows of a column. */
struct fetched {
    float4 residual;
    uint2 norm;
};

static __device__ inline fetched end_fetch(const k_product &p, int col, int at, const outputs &o)
{
    return {*(const float4 *)(p.residual + (size_t)col * o.n_out + at),
            *(const uint2 *)((const k_bf16 *)p.norm + at)};
}

/* Add the residual, the squares of the result, and the rows of the next norm; rows are a multiple
 * of 16. */
static __device__ inline void end_add_residual(float y[4], const fetched &f, const facts &t,
                                               bool is_half, size_t to, int at, int col,
                                               const outputs &o)
{
    float square;

    y[0] += f.residual.x, y[1] += f.residual.y, y[2] += f.residual.z, y[3] += f.residual.w;
    *(float4 *)(t.residual + to) = *(const float4 *)y;
    square = y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3];
    y[0] *= low_half(f.norm.x), y[1] *= high_half(f.norm.x);
    y[2] *= low_half(f.norm.y), y[3] *= high_half(f.norm.y);
    end_store_four(t.normed, to, y, is_half, 4, true);
    square += __shfl_xor_sync(0xfU << (threadIdx.x & 28), square, 1);
    square += __shfl_xor_sync(0xfU << (threadIdx.x & 28), square, 2);
    if (at % 16 == 0)
        t.sums_out[(size_t)col * (o.n_out / 16) + at / 16] = square;
}

/* Four rows of a column. */
struct item {
    int col, row;
};

static __device__ inline void end_next_item(item &i, const outputs &o)
{
    i.col += o.cols_a_turn;
    i.row += o.rows_a_turn;
    if (i.row >= o.fours) {
        i.row -= o.fours;
        i.col++;
    }
}

/* Items whose loads are in flight together. */
#define TOGETHER(N) ((N) > 32 ? 2 : 1)

/* Load the inputs of this thread's first items. */
template <int N>
static __device__ inline void end_fetch_first(fetched (&f)[TOGETHER(N)], const wide_args &a,
                                              const outputs &o)
{
    item i = {o.col, o.row};

#pragma unroll
    for (int half = 0; half < TOGETHER(N); half++) {
        if (i.col < a.n && o.begin + i.row * 4 < o.n_out)
            f[half] = end_fetch(a.p, i.col, o.begin + i.row * 4, o);
        end_next_item(i, o);
    }
}

/* Finish columns first .. last - 1 of a tile; scales are read with e4m3 only; four lanes have the
 * sixteen rows of a sum of squares. Code that runs once costs by its length, so each kind of
 * product has its own. f: the loaded inputs of the first items. */
template <int N, int KIND, bool SCALED>
static __device__ void end_finish(const float *red, const wide_args &a, const facts &t,
                                  const float *inverse, const float *scales, const outputs &o,
                                  bool pair, int first, int last, const fetched (&f)[TOGETHER(N)])
{
    bool whole = o.n_out % 4 == 0;
    item next = {o.col, o.row};

    for (int turn = 0; next.col < last - first; turn++) {
        item i[TOGETHER(N)];
        float y[TOGETHER(N)][4];

#pragma unroll
        for (int half = 0; half < TOGETHER(N); half++) {
            i[half] = next;
            end_next_item(next, o);
            if (i[half].col < last - first && o.begin + i[half].row * 4 < o.n_out)
                end_sum_parts(y[half], red + i[half].col * o.stride + i[half].row * 4, pair);
        }
#pragma unroll
        for (int half = 0; half < TOGETHER(N); half++) {
            int at = o.begin + i[half].row * 4, left = o.n_out - at, col = i[half].col + first;
            const float *scale = SCALED ? scales + i[half].row * 4 : NULL;
            size_t to = (size_t)col * o.n_out + at;

            if (left <= 0 || col >= last)
                continue;
            end_scale_four(y[half], a, inverse[col], scale, (size_t)at, left, whole);
            if (KIND == K_PRODUCT_GATED) {
                float up[4];

                end_sum_parts(up, red + i[half].col * o.stride + i[half].row * 4 + a.c.rows / 2,
                              pair);
                end_scale_four(up, a, inverse[col], SCALED ? scale + a.c.rows / 2 : NULL,
                               (size_t)(at + o.n_out), left, whole);
#pragma unroll
                for (int idx = 0; idx < 4; idx++)
                    y[half][idx] = end_silu(y[half][idx]) * up[idx];
            }
            if (KIND == K_PRODUCT_RESIDUAL) {
                end_add_residual(y[half],
                                 turn == 0 && first == 0 ? f[half] : end_fetch(a.p, col, at, o), t,
                                 a.p.y_is_half, to, at, col, o);
            } else if (KIND == K_PRODUCT_FLOAT) {
                if (whole)
                    *(float4 *)((float *)t.y + to) = *(const float4 *)y[half];
#pragma unroll
                for (int idx = 0; idx < 4; idx++) {
                    if (!whole && idx < left)
                        ((float *)t.y)[to + idx] = y[half][idx];
                }
            } else {
                end_store_four(t.y, to, y[half], KIND == K_PRODUCT_GATED && a.p.y_is_half, left,
                               whole);
            }
        }
    }
}

/* --- straight from the accumulators ---------------------------------------------------------- */

/* Write a tile's floats straight from the accumulators, eight rows per store; no other CTA or
 * warpgroup has a part of them, so nothing waits. */
template <int N, int MB, int OWN, bool SCALED>
static __device__ inline void end_write_floats(const float (&acc)[OWN][SUMS(N)][N / 2],
                                               const facts &t, int tile, int group)
{
    float *y = (float *)t.y;
    int tile_row = tile * t.rows, block_rows = t.block_rows;
    int warp_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;

    if (tile >= t.n_whole) {
        tile_row = t.n_whole * t.rows + (tile - t.n_whole) * t.tail_rows;
        block_rows = t.tail_rows / MB;
    }

#pragma unroll
    for (int half = 0; half < OWN; half++) {
#pragma unroll
        for (int below = 0; below < 16; below += 8) {
            int in_block = warp_row + below;
            int row = tile_row + (2 * half + group) * block_rows + in_block;
            float scale, bias;

            if (in_block >= block_rows || row >= t.n_out)
                continue;
            scale = SCALED && t.scales != NULL ? t.scales[row] : 1.0f;
            bias = t.bias != NULL ? load_bf16(t.bias + row) : 0.0f;
#pragma unroll
            for (int elem = 0; elem < N / 4; elem++) {
                int col = elem / 2 * 8 + lane_col * 2 + elem % 2;

                if (col < t.n)
                    y[(uint32_t)col * (uint32_t)t.n_out + (uint32_t)row] =
                        acc[half][0][elem / 2 * 4 + elem % 2 + below / 4] *
                            (t.inverse[col] * scale) +
                        bias;
            }
        }
    }
}

/* With four blocks, a warpgroup's first block is of the gate and its second of `up`, the same rows:
 * so both are in its registers. For rows g and g + 8, gate and up: scales, and biases as bfloat16,
 * which are not widened before the epilogue. */
struct gate_reads {
    float gate[2], up[2];
    uint32_t gate_bias[2], up_bias[2];
};

static __device__ inline int end_gated_row(const wide_args &a, int tile, int group)
{
    return tile * (a.c.rows / 2) + group * a.c.block_rows + threadIdx.x % 128 / 32 * 16 +
           threadIdx.x % 32 / 4;
}

template <bool SCALED>
static __device__ inline gate_reads end_read_gate(const wide_args &a, int tile, int group)
{
    const k_bf16 *bias = (const k_bf16 *)a.p.bias;
    int n_out = a.c.n_out / 2, row = end_gated_row(a, tile, group);
    gate_reads reads = {{1.0f, 1.0f}, {1.0f, 1.0f}, {}, {}};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (SCALED && a.scales != NULL && row + i * 8 < n_out) {
            reads.gate[i] = a.scales[row + i * 8];
            reads.up[i] = a.scales[row + i * 8 + n_out];
        }
        if (bias != NULL && row + i * 8 < n_out) {
            reads.gate_bias[i] = bias[row + i * 8];
            reads.up_bias[i] = bias[row + i * 8 + n_out];
        }
    }
    return reads;
}

/* Collect a tile's rows of y in shared memory, [column][CUT_GATED_STRIDE], so that stores to y are
 * of whole columns: over the stages of a CTA's only tile, else after them. Tiles begin at multiples
 * of 16 rows, as K_HALF_AT needs it. */
template <int N>
static __device__ inline void end_write_gated(const float (&acc)[2][SUMS(N)][N / 2], const facts &t,
                                              const gate_reads &s, int group)
{
    int block_rows = t.block_rows;
    k_bf16 *red = (k_bf16 *)t.red;
    int lane_col = threadIdx.x % 4, lane_row = threadIdx.x % 32 / 4;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int in_block = threadIdx.x % 128 / 32 * 16 + i * 8, place;
        float y[N / 8][2];
        uint32_t two[N / 8];

        if (in_block >= block_rows) /* all eight rows, or none */
            continue;
        place = group * block_rows + in_block + lane_col * 2;
        place = lane_row * CUT_GATED_STRIDE + (t.is_half ? (int)K_HALF_AT(place) : place);
#pragma unroll
        for (int eight = 0; eight < N / 8; eight++) {
            float2 root = *(const float2 *)(t.inverse + eight * 8 + lane_col * 2);

#pragma unroll
            for (int idx = 0; idx < 2; idx++) {
                float r = idx == 0 ? root.x : root.y;
                float gate =
                    acc[0][0][eight * 4 + i * 2 + idx] * (r * s.gate[i]) + low_half(s.gate_bias[i]);
                float up =
                    acc[1][0][eight * 4 + i * 2 + idx] * (r * s.up[i]) + low_half(s.up_bias[i]);

                y[eight][idx] = end_silu(gate) * up;
            }
        }
        if (t.is_half) {
#pragma unroll
            for (int eight = 0; eight < N / 8; eight++)
                two[eight] = pack_half(y[eight][0], y[eight][1]);
        } else {
#pragma unroll
            for (int eight = 0; eight < N / 8; eight++)
                two[eight] = pack_bf16(y[eight][0], y[eight][1]);
        }
#pragma unroll
        for (int eight = 0; eight < N / 8; eight++) {
            end_transpose(
                two[eight]); /* now rows 2 lane_col and 2 lane_col + 1 of column lane_row */
            *(uint32_t *)(red + eight * 8 * CUT_GATED_STRIDE + place) = two[eight];
        }
    }
}

/* Copy the collected rows to y, 16 lanes per column. */
template <int N> static __device__ inline void end_copy_gated(const facts &t, int tile)
{
    int row = tile * t.rows, at = threadIdx.x % 16 * 8, col = threadIdx.x / 16;
    k_bf16 *y = t.y + (uint32_t)col * (uint32_t)t.n_out + (uint32_t)(row + at);
    const k_bf16 *red = (const k_bf16 *)t.red + col * CUT_GATED_STRIDE + at;

    if (at >= t.rows || row + at >= t.n_out)
        return;
#pragma unroll
    for (int i = 0; i < (N + 15) / 16; i++) {
        if (col + i * 16 < t.n)
            *(uint4 *)(y + (uint32_t)(i * 16) * (uint32_t)t.n_out) =
                *(const uint4 *)(red + i * 16 * CUT_GATED_STRIDE);
    }
}

/* --- one block, shared between the warpgroups ------------------------------------------------- */

/* Partial sums are exchanged in the layout of wgmma: in a patch of sixteen rows and eight columns,
 * lane 4 g + q of a warp has rows g and g + 8 of columns 2 q and 2 q + 1: four consecutive
 * accumulators. This code runs once, with one or two warps per scheduler, where each instruction
 * that waits for the previous one takes five cycles: so it costs by its length. */
#define PATCH_ROWS 16
#define PATCH_SUMS 4

/* Patches per sixteen rows, rounded up for the distribution over warps: a warp finishes those of
 * the same columns, of every (8 / DEALT)-th sixteen rows. */
#define PATCHES(N) ((N) / 8)
#define DEALT(N)   ((N) > 32 ? 8 : PATCHES(N))

/* Patches that a warp finishes together; their inputs are requested before the first stage. */
#define PATCHES_TOGETHER(N) ((N) > 32 ? 2 : 1)

/* The exchange of two CTAs that share a tile: each signals the other when nothing reads a stage any
 * more, and receives the other's sums of its rows there. */
struct exchange {
    uint64_t *ready, *met;
};

/* This CTA's share of a tile's outputs, and where this warp's sums of it meet the others. */
struct share {
    int begin, end;    /* rows of this CTA */
    int first;         /* the first row of its first sixteen: `begin`, or 8 less */
    int sixteens;      /* number of sixteens that it finishes; rows after the matrix do not count */
    int part;          /* floats of a warpgroup's sums: [sixteens][PATCHES][lane][4] */
    float *own, *sent; /* in shared memory: this CTA's sums, and those that the other one sends */
    float *mine;       /* where this lane's sums go in its warpgroup's part; NULL: they are not this
                        * CTA's */
    uint32_t others;   /* the place in the other CTA; 0: they are not its */
};

/* Computed before the mainloop too: where each lane's sums go is known by then. */
template <int N>
static __device__ inline share end_share_of(const wide_args &a, const facts &t, char *shared,
                                            int tile, int rank, int warp)
{
    const int FLOATS = PATCHES(N) * 32 * PATCH_SUMS; /* per sixteen rows */
    int own = t.n_split > 1 ? t.rows / 2 : t.rows, lane = threadIdx.x % 32;
    int before = rank * own / PATCH_ROWS;
    int all = (own + PATCH_ROWS - 1) / PATCH_ROWS, place;
    share s = {};

    s.begin = tile * t.rows + rank * own;
    s.end = min(s.begin + own, t.n_out);
    s.first = tile * t.rows + before * PATCH_ROWS;
    s.sixteens = (s.end - s.first + PATCH_ROWS - 1) / PATCH_ROWS;
    s.part = all * FLOATS;
    s.own = t.red;
    place = warp / 4 * s.part + lane * PATCH_SUMS;
    if (warp % 4 >= before && warp % 4 < before + all)
        s.mine = s.own + place + (warp % 4 - before) * FLOATS;
    if (t.n_split > 1) {
        before = (rank ^ 1) * own / PATCH_ROWS;
        s.sent = steady_shared((float *)(shared + a.c.sent_at[rank]));
        if (warp % 4 >= before && warp % 4 < before + all)
            s.others = end_remote_addr(shared + a.c.sent_at[rank ^ 1], rank ^ 1) +
                       (uint32_t)(place + (warp % 4 - before) * FLOATS) * 4;
    }
    return s;
}

/* Store four floats to shared memory of the cluster; the barrier there counts their bytes. */
static __device__ __forceinline__ void end_store_remote(uint32_t at, const float *f,
                                                        uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(at),
                 "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]), "r"(barrier)
                 : "memory");
}

/* Relaxed: it publishes no writes. Reads of this CTA must be completed by a barrier of the CTA
 * before; there must be no last access to a stage between that barrier and this arrival. */
static __device__ __forceinline__ void end_arrive_remote(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

/* The number of bytes that a CTA receives. */
static __device__ inline uint32_t end_sent_bytes(const product_cut &c)
{
    return 2U * (uint32_t)c.part * 4U;
}

/* Store a warp's sums to its part in this CTA or, for the other CTA's rows, in the other; a sixteen
 * with rows of both goes to both. */
template <int N>
static __device__ inline void end_share_sums(const float (&acc)[N / 2], const share &s, int rank,
                                             const exchange &x)
{
    if (s.mine != NULL) {
#pragma unroll
        for (int i = 0; i < PATCHES(N); i++)
            *(float4 *)(s.mine + i * 32 * PATCH_SUMS) =
                make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
    }
    if (s.others != 0) {
        uint32_t met = end_remote_addr(x.met, rank ^ 1);

        barrier_wait(x.ready, 0);
#pragma unroll
        for (int i = 0; i < PATCHES(N); i++)
            end_store_remote(s.others + (uint32_t)(i * 32 * PATCH_SUMS * 4), acc + 4 * i, met);
    }
}

/* A lane's part of a patch: rows `row` and `row` + 8 of two columns. */
struct patch {
    int row, col;
    uint32_t at;   /* index of its first element in y; 64 rows have less than 2^32 elements */
    bool there[2]; /* rows that exist; of eight all or none */
    bool taken[2]; /* columns that exist */
};

/* The rows and columns of this lane's part of a patch, and which of them exist. */
template <int N>
static __device__ inline patch end_patch_of(const facts &t, const share &s, int warp, int sixteen)
{
    int lane = threadIdx.x % 32;
    patch p;

    p.row = s.first + sixteen * PATCH_ROWS + lane / 4;
    p.col = warp % DEALT(N) * 8 + lane % 4 * 2;
    p.at = (uint32_t)p.col * (uint32_t)t.n_out + (uint32_t)p.row;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        p.there[i] = p.row + i * 8 >= s.begin && p.row + i * 8 < s.end;
        p.taken[i] = p.col + i < t.n;
    }
    return p;
}

/* The inputs of a patch's epilogue, and the residual in the layout of wgmma's sums. norm and bias
 * stay bfloat16 until then, because the first use waits for the load, and that would be before the
 * first stage. */
struct patch_reads {
    float residual[PATCH_SUMS], scale[2];
    uint32_t norm[2], bias[2];
};

/* Requested before the first stage, so that the loads are hidden by the mainloop. */
template <int KIND, bool SCALED>
static __device__ inline patch_reads end_read_patch(const facts &t, const patch &p)
{
    patch_reads reads;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = p.row + half * 8;

        reads.scale[half] = SCALED && p.there[half] && t.scales != NULL ? t.scales[row] : 1.0f;
        reads.bias[half] = p.there[half] && t.bias != NULL ? t.bias[row] : 0;
        if (KIND != K_PRODUCT_RESIDUAL)
            continue;
        reads.norm[half] = p.there[half] ? t.norm[row] : 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
            reads.residual[2 * half + i] =
                p.there[half] && p.taken[i] ? t.residual[p.at + i * t.n_out + half * 8] : 0.0f;
    }
    return reads;
}

/* Add a patch's sums of both warpgroups and, in a pair, of the other CTA's two, in a fixed order;
 * apply the norm's factor, scales and the bias. */
template <int N>
static __device__ inline void end_sum_patch(float (&y)[PATCH_SUMS], const facts &t,
                                            const patch_reads &r, const share &s, const patch &p,
                                            int warp, int sixteen)
{
    int at = ((sixteen * PATCHES(N) + warp % DEALT(N)) * 32 + threadIdx.x % 32) * PATCH_SUMS;
    float4 sum = *(const float4 *)(s.own + at), more = *(const float4 *)(s.own + at + s.part);
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
    float2 root = *(const float2 *)(t.inverse + p.col);

    if (t.n_split > 1) {
        a = *(const float4 *)(s.sent + at);
        b = *(const float4 *)(s.sent + at + s.part);
    }
    sum.x = (sum.x + more.x) + (a.x + b.x), sum.y = (sum.y + more.y) + (a.y + b.y);
    sum.z = (sum.z + more.z) + (a.z + b.z), sum.w = (sum.w + more.w) + (a.w + b.w);
    y[0] = sum.x * (root.x * r.scale[0]) + low_half(r.bias[0]);
    y[1] = sum.y * (root.y * r.scale[0]) + low_half(r.bias[0]);
    y[2] = sum.z * (root.x * r.scale[1]) + low_half(r.bias[1]);
    y[3] = sum.w * (root.y * r.scale[1]) + low_half(r.bias[1]);
}

/* Store a patch as bfloat16 or float16, two rows per lane and store. */
static __device__ inline void end_store_patch(k_bf16 *to, const float (&y)[PATCH_SUMS],
                                              bool is_half, const facts &t, const patch &p)
{
    int lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4,
        row = p.row - lane_row + lane_col * 2;
    int col = p.col - lane_col * 2 + lane_row,
        below = is_half ? 4 : 8; /* in the order of K_HALF_AT */
    uint32_t at = (uint32_t)col * (uint32_t)t.n_out;
    uint32_t two[2];

    at += (uint32_t)(is_half ? (int)K_HALF_AT(row) : row);
    if (is_half)
        two[0] = pack_half(y[0], y[1]), two[1] = pack_half(y[2], y[3]);
    else
        two[0] = pack_bf16(y[0], y[1]), two[1] = pack_bf16(y[2], y[3]);
    end_transpose(two[0]), end_transpose(two[1]);
    if (p.there[0] && col < t.n)
        *(uint32_t *)(to + at) = two[0];
    if (p.there[1] && col < t.n)
        *(uint32_t *)(to + at + (uint32_t)below) = two[1];
}

/* Add the residual of a patch, sum the squares, and store the rows of the next norm. */
static __device__ inline void end_add_patch(float (&y)[PATCH_SUMS], const patch_reads &r,
                                            const facts &t, const patch &p)
{
    bool odd = threadIdx.x % 8 >= 4;
    float first, second, kept;

#pragma unroll
    for (int i = 0; i < PATCH_SUMS; i++) {
        y[i] += r.residual[i];
        if (p.there[i / 2] && p.taken[i % 2])
            t.residual[p.at + i % 2 * t.n_out + i / 2 * 8] = y[i];
    }
    first = y[0] * y[0] + y[2] * y[2];
    second = y[1] * y[1] + y[3] * y[3];
    /* Over sixteen rows: lanes with odd g continue with the second column, the others with the
     * first. */
    kept = (odd ? second : first) + __shfl_xor_sync(~0U, odd ? first : second, 4);
    kept += __shfl_xor_sync(~0U, kept, 8);
    kept += __shfl_xor_sync(~0U, kept, 16);
    if (threadIdx.x % 32 < 8 && p.there[0] && (odd ? p.taken[1] : p.taken[0]))
        t.sums_out[(p.at - threadIdx.x % 32 / 4 + odd * t.n_out) / PATCH_ROWS] = kept;
#pragma unroll
    for (int i = 0; i < PATCH_SUMS; i++)
        y[i] *= low_half(r.norm[i / 2]);
    end_store_patch(t.normed, y, t.is_half, t, p);
}

/* Write a patch of y; there is no residual. */
template <int KIND>
static __device__ inline void end_write_patch(const float (&y)[PATCH_SUMS], const facts &t,
                                              const patch &p)
{
    if (KIND == K_PRODUCT_PLAIN)
        end_store_patch(t.y, y, false, t, p);
#pragma unroll
    for (int i = 0; i < PATCH_SUMS; i++) {
        if (KIND == K_PRODUCT_FLOAT && p.there[i / 2] && p.taken[i % 2])
            ((float *)t.y)[p.at + i % 2 * t.n_out + i / 2 * 8] = y[i];
    }
}

/* The first patches that a warp finishes, with the inputs that it requests before the first
 * stage. */
template <int N> struct first_patches {
    patch p[PATCHES_TOGETHER(N)];
    patch_reads reads[PATCHES_TOGETHER(N)];
};

/* The warp's patches from this sixteen rows on. For patches beyond the CTA's, no row is `there`. */
template <int N, int KIND, bool SCALED>
static __device__ inline first_patches<N> end_begin_patches(const facts &t, const share &s,
                                                            int warp, int sixteen)
{
    first_patches<N> f;

#pragma unroll
    for (int i = 0; i < PATCHES_TOGETHER(N); i++) {
        f.p[i] = end_patch_of<N>(t, s, warp, sixteen + i * (8 / DEALT(N)));
        f.reads[i] = end_read_patch<KIND, SCALED>(t, f.p[i]);
    }
    return f;
}

/* The epilogue of a tile of one block. A single CTA has the sums of a tile in shared memory of
 * their own, or those of its only tile over the stages; each CTA of a pair has one tile. */
template <int N, int KIND, bool SCALED>
static __device__ inline void end_block(const float (&acc)[N / 2], const facts &t, const share &s,
                                        first_patches<N> now, int warp, int rank, const exchange &x)
{
    const int APART = 8 / DEALT(N), TOGETHER = PATCHES_TOGETHER(N);

    end_share_sums<N>(acc, s, rank, x);
    named_sync(2, WORKERS);
    if (t.n_split > 1)
        barrier_wait_cluster(x.met, 0);
    for (int sixteen = warp / DEALT(N); sixteen < s.sixteens && warp % DEALT(N) < PATCHES(N);) {
        float y[TOGETHER][PATCH_SUMS];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (i == 0 || sixteen + i * APART < s.sixteens)
                end_sum_patch<N>(y[i], t, now.reads[i], s, now.p[i], warp, sixteen + i * APART);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (i > 0 && sixteen + i * APART >= s.sixteens)
                continue;
            if (KIND != K_PRODUCT_RESIDUAL)
                end_write_patch<KIND>(y[i], t, now.p[i]);
            else
                end_add_patch(y[i], now.reads[i], t, now.p[i]);
        }
        sixteen += TOGETHER * APART;
        if (sixteen < s.sixteens)
            now = end_begin_patches<N, KIND, SCALED>(t, s, warp, sixteen);
    }
    /* Also in a pair: see "one way out" under Traps in docs/kernels/guide.md. */
    named_sync(2, WORKERS);
}

#endif
