/* What sm90_product.cu does at the end of a tile: sums of warpgroups and CTAs meet, and what stands
 * around a product in a decode is done (k_multiply() in kernels.h). Sums that are whole go straight
 * from registers, others through shared memory, [column][rows of the tile], where 256 threads take
 * four rows of a column at a time. */
#ifndef QUIRE_KERNELS_SM90_PRODUCT_END_CUH
#define QUIRE_KERNELS_SM90_PRODUCT_END_CUH

#include "kernels/product.cuh"
#include "kernels/product_cut.h"

#define WORKERS 256 /* threads of two warpgroups, that multiply and end tiles */

/* Sums that a thread keeps of an element, so that products that follow each other need not wait; of
 * the most columns there are registers for one. */
#define SUMS(N) ((N) > 32 ? 1 : 2)

struct wide_args {
    struct k_product p;
    struct product_cut c;
    const float *scales; /* [n_out] or NULL */
    int n;
};

/* --- what the end needs to know ----------------------------------------------------------- */

/* Where the outputs of a tile are, four rows of w an item, and which of them are this thread's. */
struct outputs {
    int n_out, begin; /* rows of y; the first of this CTA */
    int fours;        /* items of a column */
    int own;          /* rows of a column */
    int col, row;     /* this thread's first item: its column, its four rows */
    int cols_a_turn, rows_a_turn;
    int stride, part; /* floats in shared memory: to the next column, to the next part */
};

static __device__ inline outputs outputs_of(const wide_args &a, int tile, int rank, bool pushed)
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
    o.stride = pushed ? o.own + 4 : a.c.n_blocks * CUT_BLOCK + 4;
    o.part = (pushed ? a.c.columns : a.c.round) * o.stride;
    pin(o.n_out), pin(o.begin), pin(o.fours), pin(o.own), pin(o.col), pin(o.row);
    pin(o.cols_a_turn), pin(o.rows_a_turn), pin(o.stride), pin(o.part);
    return o;
}

/* --- through shared memory --------------------------------------------------------------- */

/* The place of p in the shared memory of a CTA of the cluster. */
static __device__ __forceinline__ uint32_t remote_addr(const void *p, int rank)
{
    uint32_t at;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_addr(p)), "r"(rank));
    return at;
}

static __device__ inline float4 load_four_remote(const float *p, int rank)
{
    float4 f;

    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f.x), "=f"(f.y), "=f"(f.z), "=f"(f.w)
                 : "r"(remote_addr(p, rank)));
    return f;
}

/* Columns first .. first + columns - 1 of a warpgroup's sums to shared memory [column][stride]. */
template <int N, int MB, int OWN>
static __device__ inline void store_sums(float *red, const float (&acc)[OWN][SUMS(N)][N / 2],
                                         int first, int columns, int block_rows)
{
    const int stride = MB * CUT_BLOCK + 4;
    int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < OWN; b++) {
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            int col = e / 4 * 8 + q * 2 + e % 2 - first, below = e % 4 / 2 * 8;

            if (col >= 0 && col < columns && row + below < block_rows)
                red[col * stride + 2 * b * block_rows + row + below] = acc[b][0][e];
        }
    }
}

/* A float to shared memory of the cluster; the barrier there counts its bytes. */
static __device__ __forceinline__ void store_remote(uint32_t at, float x, uint32_t barrier)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(at),
        "r"(__float_as_uint(x)), "r"(barrier)
        : "memory");
}

/* Relaxed: nothing that was written is published by it. What this CTA has read must have been read
 * by a barrier of the CTA before; no last access to a slot may be put between that and this. */
static __device__ __forceinline__ void arrive_remote(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

/* How two CTAs that share a tile exchange sums: each tells the other when nobody reads its slots
 * any more, and gets the other's part of its rows there. */
struct exchange {
    uint64_t *ready, *met;
};

/* The bytes that a CTA is sent. */
static __device__ inline uint32_t exchanged_bytes(const wide_args &a)
{
    return 2U * (uint32_t)(a.c.rows / 2 * a.n) * 4U;
}

/* A warpgroup's sums of a tile of one block, [column][stride]: of its own rows to parts 0 and 1, of
 * the other CTA's rows to parts 2 and 3 there. */
template <int N>
static __device__ inline void push_sums(float *red, const float (&acc)[SUMS(N)][N / 2], int n,
                                        int group, int rank, const outputs &o, const exchange &x)
{
    int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    float *to = red + group * o.part;
    uint32_t remote = remote_addr(red + (2 + group) * o.part, rank ^ 1);
    uint32_t met = remote_addr(x.met, rank ^ 1);
    bool ready = false;

#pragma unroll
    for (int below = 0; below < 16; below += 8) {
        int at = row + below - rank * o.own;
        bool mine = at >= 0 && at < o.own, others = !mine && row + below < 2 * o.own;

        at += mine ? 0 : rank == 0 ? -o.own : o.own;
        if (others && !ready) {
            barrier_wait(x.ready, 0);
            ready = true;
        }
#pragma unroll
        for (int e = 0; e < N / 4; e++) {
            int col = e / 2 * 8 + q * 2 + e % 2;
            float sum = acc[0][e / 2 * 4 + e % 2 + below / 4];

            if (mine && col < n)
                to[col * o.stride + at] = sum;
            if (others && col < n)
                store_remote(remote + (uint32_t)(col * o.stride + at) * 4, sum, met);
        }
    }
}

/* Four numbers of a row of n; `whole` when they may be taken at once. */
static __device__ inline void load_four(float f[4], const void *from, size_t at, int left,
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

static __device__ inline void store_four(void *to, size_t at, const float f[4], bool is_half,
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

/* The sums of four rows over the CTAs of a cluster, and of the two warpgroups where they have
 * shares of n_in, in a fixed order; parts are `apart` floats from each other. */
enum parts {
    PARTS_ONE,    /* of both warpgroups together */
    PARTS_TWO,    /* one of each warpgroup */
    PARTS_PUSHED, /* the same, and then the other CTA's two */
    PARTS_REMOTE  /* PARTS_ONE, and the other CTA's in its own shared memory */
};

static __device__ inline void sum_parts(float f[4], const float *from, int parts, int apart)
{
    float4 part[4] = {};

    if (parts == PARTS_REMOTE) {
        part[0] = load_four_remote(from, 0);
        part[2] = load_four_remote(from, 1);
    } else {
        part[0] = *(const float4 *)from;
    }
    if (parts == PARTS_TWO || parts == PARTS_PUSHED)
        part[1] = *(const float4 *)(from + apart);
    if (parts == PARTS_PUSHED) {
        part[2] = *(const float4 *)(from + 2 * apart);
        part[3] = *(const float4 *)(from + 3 * apart);
    }
    f[0] = (part[0].x + part[1].x) + (part[2].x + part[3].x);
    f[1] = (part[0].y + part[1].y) + (part[2].y + part[3].y);
    f[2] = (part[0].z + part[1].z) + (part[2].z + part[3].z);
    f[3] = (part[0].w + part[1].w) + (part[2].w + part[3].w);
}

/* The norm's division, scales (NULL: none) and the bias of rows `at` .. of w. */
static __device__ inline void scale_four(float f[4], const wide_args &a, float inverse,
                                         const float *scales, size_t at, int left, bool whole)
{
    float bias[4] = {}, scale[4] = {1.0f, 1.0f, 1.0f, 1.0f};

    if (a.p.bias != NULL)
        load_four(bias, a.p.bias, at, left, whole);
    if (scales != NULL)
        *(float4 *)scale = *(const float4 *)scales;
#pragma unroll
    for (int i = 0; i < 4; i++)
        f[i] = f[i] * (inverse * scale[i]) + bias[i];
}

/* The scale of row i of a tile; 0 behind the matrix. */
static __device__ inline float scale_of(const wide_args &a, int tile, int i)
{
    int tile_rows = a.c.gated ? a.c.rows / 2 : a.c.rows;
    int n_out = a.c.gated ? a.c.n_out / 2 : a.c.n_out;
    int row = tile * tile_rows + i % tile_rows;

    if (i >= a.c.rows || row >= n_out)
        return 0.0f;
    return a.scales == NULL ? 1.0f : a.scales[row + i / tile_rows * n_out];
}

/* What the end of K_PRODUCT_RESIDUAL reads for four rows of a column. */
struct fetched {
    float4 residual;
    uint2 norm;
};

static __device__ inline fetched fetch(const k_product &p, int col, int at, const outputs &o)
{
    return {*(const float4 *)(p.residual + (size_t)col * o.n_out + at),
            *(const uint2 *)((const k_bf16 *)p.norm + at)};
}

/* What the end reads of the launch's arguments. */
struct targets {
    k_bf16 *y, *normed;
    float *residual, *sums_out;
};

static __device__ inline targets targets_of(const struct k_product &p)
{
    targets t = {(k_bf16 *)p.y, (k_bf16 *)p.normed, p.residual, p.sums_out};

    pin_global(t.y), pin_global(t.normed), pin_global(t.residual), pin_global(t.sums_out);
    return t;
}

/* The residual, the squares of the sum and the next norm's rows; rows are a multiple of 16. */
static __device__ inline void add_residual(float y[4], const fetched &f, const targets &t,
                                           bool is_half, size_t to, int at, int col,
                                           const outputs &o)
{
    float square;

    y[0] += f.residual.x, y[1] += f.residual.y, y[2] += f.residual.z, y[3] += f.residual.w;
    *(float4 *)(t.residual + to) = *(const float4 *)y;
    square = y[0] * y[0] + y[1] * y[1] + y[2] * y[2] + y[3] * y[3];
    y[0] *= low_half(f.norm.x), y[1] *= high_half(f.norm.x);
    y[2] *= low_half(f.norm.y), y[3] *= high_half(f.norm.y);
    store_four(t.normed, to, y, is_half, 4, true);
    square += __shfl_xor_sync(0xfU << (threadIdx.x & 28), square, 1);
    square += __shfl_xor_sync(0xfU << (threadIdx.x & 28), square, 2);
    if (at % 16 == 0)
        t.sums_out[(size_t)col * (o.n_out / 16) + at / 16] = square;
}

/* Four rows of a column: this thread's n-th. */
struct item {
    int col, row;
};

static __device__ inline void next_item(item &i, const outputs &o)
{
    i.col += o.cols_a_turn;
    i.row += o.rows_a_turn;
    if (i.row >= o.fours) {
        i.row -= o.fours;
        i.col++;
    }
}

/* Items whose loads are under way together. */
#define TOGETHER(N) ((N) > 32 ? 2 : 1)

/* Columns first .. last - 1 of a tile, whose scales are read for e4m3 only; four lanes have the
 * sixteen rows of a sum of squares. Code that runs once costs by its length, so that each kind of
 * product has its own. f: what the first items read. */
template <int N, int KIND, bool FP8>
static __device__ void finish(const float *red, const wide_args &a, const targets &t,
                              const float *inverse, const float *scales, const outputs &o,
                              int parts, int first, int last, const fetched (&f)[TOGETHER(N)])
{
    bool whole = o.n_out % 4 == 0;
    item next = {o.col, o.row};

    for (int turn = 0; next.col < last - first; turn++) {
        item i[TOGETHER(N)];
        float y[TOGETHER(N)][4];

#pragma unroll
        for (int b = 0; b < TOGETHER(N); b++) {
            i[b] = next;
            next_item(next, o);
            if (i[b].col < last - first && o.begin + i[b].row * 4 < o.n_out)
                sum_parts(y[b], red + i[b].col * o.stride + i[b].row * 4, parts, o.part);
        }
#pragma unroll
        for (int b = 0; b < TOGETHER(N); b++) {
            int at = o.begin + i[b].row * 4, left = o.n_out - at, c = i[b].col + first;
            const float *scale = FP8 ? scales + i[b].row * 4 : NULL;
            size_t to = (size_t)c * o.n_out + at;

            if (left <= 0 || c >= last)
                continue;
            scale_four(y[b], a, inverse[c], scale, (size_t)at, left, whole);
            if (KIND == K_PRODUCT_GATED) {
                float up[4];

                sum_parts(up, red + i[b].col * o.stride + i[b].row * 4 + a.c.rows / 2, parts,
                          o.part);
                scale_four(up, a, inverse[c], FP8 ? scale + a.c.rows / 2 : NULL,
                           (size_t)(at + o.n_out), left, whole);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    y[b][k] = __fdividef(y[b][k], 1.0f + __expf(-y[b][k])) * up[k];
            }
            if (KIND == K_PRODUCT_RESIDUAL) {
                add_residual(y[b], turn == 0 && first == 0 ? f[b] : fetch(a.p, c, at, o), t,
                             a.p.y_is_half, to, at, c, o);
            } else if (KIND == K_PRODUCT_FLOAT) {
                if (whole)
                    *(float4 *)((float *)t.y + to) = *(const float4 *)y[b];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (!whole && k < left)
                        ((float *)t.y)[to + k] = y[b][k];
                }
            } else {
                store_four(t.y, to, y[b], KIND == K_PRODUCT_GATED && a.p.y_is_half, left, whole);
            }
        }
    }
}

/* --- from registers -------------------------------------------------------------------- */

/* A tile's floats straight from the registers, eight rows a store; no other CTA or warpgroup has a
 * part of them, and nobody waits for anybody. */
template <int N, int MB, int OWN>
static __device__ inline void write_floats(const float (&acc)[OWN][SUMS(N)][N / 2],
                                           const wide_args &a, const float *inverse, int tile,
                                           int group)
{
    int warp_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < OWN; b++) {
#pragma unroll
        for (int below = 0; below < 16; below += 8) {
            int in_block = warp_row + below;
            int row = tile * a.c.rows + (2 * b + group) * a.c.block_rows + in_block;
            float scale, bias;

            if (in_block >= a.c.block_rows || row >= a.c.n_out)
                continue;
            scale = a.scales != NULL ? a.scales[row] : 1.0f;
            bias = a.p.bias != NULL ? load_bf16((const k_bf16 *)a.p.bias + row) : 0.0f;
#pragma unroll
            for (int e = 0; e < N / 4; e++) {
                int col = e / 2 * 8 + q * 2 + e % 2;

                if (col < a.n)
                    ((float *)a.p.y)[(size_t)col * a.c.n_out + row] =
                        acc[b][0][e / 2 * 4 + e % 2 + below / 4] * (inverse[col] * scale) + bias;
            }
        }
    }
}

/* Of four blocks the first of a warpgroup is of the gate, the second of what is gated, the same
 * rows: so the end is in its registers, too. scales: of rows g and g + 8, gate and up. */
struct gate_scales {
    float gate[2], up[2];
};

static __device__ inline int gated_row(const wide_args &a, int tile, int group)
{
    return tile * (a.c.rows / 2) + group * a.c.block_rows + threadIdx.x % 128 / 32 * 16 +
           threadIdx.x % 32 / 4;
}

static __device__ inline gate_scales fetch_gate_scales(const wide_args &a, int tile, int group)
{
    int n_out = a.c.n_out / 2, row = gated_row(a, tile, group);
    gate_scales s = {{1.0f, 1.0f}, {1.0f, 1.0f}};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (a.scales != NULL && row + i * 8 < n_out) {
            s.gate[i] = a.scales[row + i * 8];
            s.up[i] = a.scales[row + i * 8 + n_out];
        }
    }
    return s;
}

template <int N>
static __device__ inline void write_gated(const float (&acc)[2][SUMS(N)][N / 2], const wide_args &a,
                                          k_bf16 *to, const float *inverse, const gate_scales &s,
                                          int tile, int group)
{
    const k_bf16 *bias = (const k_bf16 *)a.p.bias;
    bool is_half = a.p.y_is_half;
    int n_out = a.c.n_out / 2, q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    int own = gated_row(a, tile, group);

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = own - g + i * 8, in_block = threadIdx.x % 128 / 32 * 16 + i * 8;
        bool there = in_block < a.c.block_rows && row < n_out; /* all eight, or none */
        float gate_bias = 0.0f, up_bias = 0.0f;
        uint32_t two[N / 8];

        if (there && bias != NULL) {
            gate_bias = load_bf16(bias + row + g);
            up_bias = load_bf16(bias + row + g + n_out);
        }
#pragma unroll
        for (int m = 0; m < N / 8; m++) {
            float y[2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                float root = inverse[m * 8 + q * 2 + e];
                float gate = acc[0][0][m * 4 + i * 2 + e] * (root * s.gate[i]) + gate_bias;
                float up = acc[1][0][m * 4 + i * 2 + e] * (root * s.up[i]) + up_bias;

                y[e] = __fdividef(gate, 1.0f + __expf(-gate)) * up;
            }
            two[m] = is_half ? pack_half(y[0], y[1]) : pack_bf16(y[0], y[1]);
        }
#pragma unroll
        for (int m = 0; m < N / 8; m++)
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(two[m]));
#pragma unroll
        for (int m = 0; m < N / 8; m++) {
            if (there && m * 8 + g < a.n) { /* now rows 2 q and 2 q + 1 of column g */
                size_t at = (size_t)(m * 8 + g) * n_out + row + q * 2;

                *(uint32_t *)(to + (is_half ? K_HALF_AT(at) : at)) = two[m];
            }
        }
    }
}

#endif
