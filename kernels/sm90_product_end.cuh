/* What sm90_product.cu does at the end of a tile: sums of warpgroups and CTAs meet, and what stands
 * around a product in a decode is done (k_multiply() in kernels.h). Sums that are whole go straight
 * from registers. Those of a tile of one block meet in shared memory in the order in which wgmma
 * leaves them; of several blocks as [column][rows of the tile], where 256 threads take four rows of
 * a column at a time. */
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
    int stride; /* floats in shared memory to the next column */
};

static __device__ inline outputs outputs_of(const wide_args &a, int tile, int rank)
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

/* What the end reads of the launch's arguments. */
struct targets {
    k_bf16 *y, *normed;
    float *residual, *sums_out;
};

template <int KIND> static __device__ inline targets targets_of(const struct k_product &p)
{
    uint32_t zero = unknown_zero();

    if (KIND == K_PRODUCT_RESIDUAL)
        return {NULL, fixed((k_bf16 *)p.normed, zero), fixed(p.residual, zero),
                fixed(p.sums_out, zero)};
    return {fixed((k_bf16 *)p.y, zero), NULL, NULL, NULL};
}

/* The gate of SwiGLU, without the branches of denormals. */
static __device__ __forceinline__ float silu(float x)
{
    float power, inverse;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return x * inverse;
}

/* Two columns of a row, 2 q and 2 q + 1 of row g, become two rows of a column, 2 q and 2 q + 1 of
 * column g, in lane 4 g + q of a warp. */
static __device__ __forceinline__ void transpose(uint32_t &two)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(two));
}

/* --- several blocks, through shared memory -------------------------------------------------- */

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

/* The sums of four rows, over the CTAs of a cluster when they are a pair. */
static __device__ inline void sum_parts(float f[4], const float *from, bool pair)
{
    float4 sum = pair ? load_four_remote(from, 0) : *(const float4 *)from;

    if (pair) {
        float4 more = load_four_remote(from, 1);

        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    *(float4 *)f = sum;
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

/* What this thread's first items read. */
template <int N>
static __device__ inline void fetch_first(fetched (&f)[TOGETHER(N)], const wide_args &a,
                                          const outputs &o)
{
    item i = {o.col, o.row};

#pragma unroll
    for (int b = 0; b < TOGETHER(N); b++) {
        if (i.col < a.n && o.begin + i.row * 4 < o.n_out)
            f[b] = fetch(a.p, i.col, o.begin + i.row * 4, o);
        next_item(i, o);
    }
}

/* Columns first .. last - 1 of a tile, whose scales are read for e4m3 only; four lanes have the
 * sixteen rows of a sum of squares. Code that runs once costs by its length, so that each kind of
 * product has its own. f: what the first items read. */
template <int N, int KIND, bool FP8>
static __device__ void finish(const float *red, const wide_args &a, const targets &t,
                              const float *inverse, const float *scales, const outputs &o,
                              bool pair, int first, int last, const fetched (&f)[TOGETHER(N)])
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
                sum_parts(y[b], red + i[b].col * o.stride + i[b].row * 4, pair);
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

                sum_parts(up, red + i[b].col * o.stride + i[b].row * 4 + a.c.rows / 2, pair);
                scale_four(up, a, inverse[c], FP8 ? scale + a.c.rows / 2 : NULL,
                           (size_t)(at + o.n_out), left, whole);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    y[b][k] = silu(y[b][k]) * up[k];
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
                                           const wide_args &a, float *y, const float *inverse,
                                           int tile, int group)
{
    int n_out = a.c.n_out;
    int warp_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < OWN; b++) {
#pragma unroll
        for (int below = 0; below < 16; below += 8) {
            int in_block = warp_row + below;
            int row = tile * a.c.rows + (2 * b + group) * a.c.block_rows + in_block;
            float scale, bias;

            if (in_block >= a.c.block_rows || row >= n_out)
                continue;
            scale = a.scales != NULL ? a.scales[row] : 1.0f;
            bias = a.p.bias != NULL ? load_bf16((const k_bf16 *)a.p.bias + row) : 0.0f;
#pragma unroll
            for (int e = 0; e < N / 4; e++) {
                int col = e / 2 * 8 + q * 2 + e % 2;

                if (col < a.n)
                    y[(uint32_t)col * (uint32_t)n_out + (uint32_t)row] =
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

template <bool FP8>
static __device__ inline gate_scales fetch_gate_scales(const wide_args &a, int tile, int group)
{
    int n_out = a.c.n_out / 2, row = gated_row(a, tile, group);
    gate_scales s = {{1.0f, 1.0f}, {1.0f, 1.0f}};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (FP8 && a.scales != NULL && row + i * 8 < n_out) {
            s.gate[i] = a.scales[row + i * 8];
            s.up[i] = a.scales[row + i * 8 + n_out];
        }
    }
    return s;
}

/* Where a tile's rows go: to y or, of a CTA's only tile, over the slots first, so that stores to y
 * are of whole columns. Tiles begin with every 16th row, as K_HALF_AT needs it. */
struct gated_place {
    k_bf16 *to;
    int stride, first; /* elements from column to column; rows in front of the tile's */
    bool staged;
};

static __device__ inline gated_place gated_place_of(const wide_args &a, k_bf16 *y, float *red,
                                                    int tile)
{
    int n_out = a.c.n_out / 2, own = a.c.rows / 2;

    if (a.c.n_tiles <= a.c.n_groups)
        return {(k_bf16 *)red, own + 8, 0, true};
    return {y, n_out, tile * own, false};
}

template <int N>
static __device__ inline void write_gated(const float (&acc)[2][SUMS(N)][N / 2], const wide_args &a,
                                          const gated_place &to, const float *inverse,
                                          const gate_scales &s, int tile, int group)
{
    const k_bf16 *bias = (const k_bf16 *)a.p.bias;
    bool is_half = a.p.y_is_half;
    int n_out = a.c.n_out / 2, q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    int own = gated_row(a, tile, group);

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = own - g + i * 8, in_block = threadIdx.x % 128 / 32 * 16 + i * 8;
        bool there = in_block < a.c.block_rows && row < n_out; /* all eight, or none */
        float gate_bias = 0.0f, up_bias = 0.0f, y[N / 8][2];
        uint32_t two[N / 8];
        int place = row - tile * (a.c.rows / 2) + to.first + q * 2;

        if (there && bias != NULL) {
            gate_bias = load_bf16(bias + row + g);
            up_bias = load_bf16(bias + row + g + n_out);
        }
#pragma unroll
        for (int e = 0; e < N / 4; e++) {
            float root = inverse[e / 2 * 8 + q * 2 + e % 2];
            float gate = acc[0][0][e / 2 * 4 + i * 2 + e % 2] * (root * s.gate[i]) + gate_bias;
            float up = acc[1][0][e / 2 * 4 + i * 2 + e % 2] * (root * s.up[i]) + up_bias;

            y[e / 2][e % 2] = silu(gate) * up;
        }
#pragma unroll
        for (int m = 0; m < N / 8; m++)
            two[m] = is_half ? pack_half(y[m][0], y[m][1]) : pack_bf16(y[m][0], y[m][1]);
#pragma unroll
        for (int m = 0; m < N / 8; m++)
            transpose(two[m]); /* now rows 2 q and 2 q + 1 of column g */
        place = is_half ? (int)K_HALF_AT(place) : place;
#pragma unroll
        for (int m = 0; m < N / 8; m++) {
            if (there && m * 8 + g < a.n)
                *(uint32_t *)(to.to + (uint32_t)(m * 8 + g) * (uint32_t)to.stride +
                              (uint32_t)place) = two[m];
        }
    }
}

/* What is over the slots to y, 16 lanes a column. */
static __device__ inline void copy_gated(k_bf16 *y, const gated_place &from, const wide_args &a,
                                         int tile)
{
    int n_out = a.c.n_out / 2, first = tile * (a.c.rows / 2), at = threadIdx.x % 16 * 8;

    if (at >= a.c.rows / 2 || first + at >= n_out)
        return;
    for (int col = threadIdx.x / 16; col < a.n; col += WORKERS / 16)
        *(uint4 *)(y + (uint32_t)col * (uint32_t)n_out + (uint32_t)(first + at)) =
            *(const uint4 *)(from.to + col * from.stride + at);
}

/* --- one block, of which each warpgroup has a share of n_in -------------------------------- */

/* Sums meet as wgmma leaves them: lane 4 g + q of a warp has of each eight rows, a strip, row g,
 * and of each eight columns 2 q and 2 q + 1. A lane's sums of a strip and 16 columns, a chunk, are
 * stored at once; of the fewest columns, 8. */
#define CHUNK_SUMS(N) ((N) == 8 ? 2 : 4)
#define CHUNK_COLS(N) (4 * CHUNK_SUMS(N))

/* How two CTAs that share a tile exchange sums: each tells the other when nobody reads a slot any
 * more, and gets the other's part of its rows there. */
struct exchange {
    uint64_t *ready, *met;
};

/* This CTA's share of a tile's outputs, and where this warp's sums of it meet the others. */
struct share {
    int n;            /* columns */
    int n_out, begin; /* rows of y; the first of this CTA */
    int strips;
    int chunks; /* of a strip that meet at a time */
    int part;   /* floats in shared memory that a warpgroup's sums take: [strips][chunks][lane] */
    int at[2];  /* of this lane's first chunk of its two strips, in a part */
    float *own, *sent;       /* parts in shared memory: this CTA's, and what the other one sends */
    uint32_t remote;         /* the other's `sent` */
    bool mine[2], others[2]; /* whose they are: this CTA's, the other one's, nobody's */
};

template <int N>
static __device__ inline share share_of(const wide_args &a, char *shared, int tile, int rank)
{
    int own = a.c.rows / a.c.n_split, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    uint32_t zero = unknown_zero();
    share s = {fixed(a.n, zero), fixed(a.c.n_out, zero),    tile * a.c.rows + rank * own,
               own / 8,          a.c.round / CHUNK_COLS(N), a.c.round * own};

#pragma unroll
    for (int below = 0; below < 2; below++) {
        int strip = warp * 2 + below - rank * s.strips;

        s.mine[below] = strip >= 0 && strip < s.strips;
        s.others[below] = !s.mine[below] && warp * 2 + below < a.c.n_split * s.strips;
        strip += s.mine[below] ? 0 : rank == 0 ? -s.strips : s.strips;
        s.at[below] = (strip * s.chunks * 32 + lane) * CHUNK_SUMS(N);
        pin(s.at[below]);
    }
    pin(s.n_out), pin(s.begin), pin(s.strips), pin(s.chunks), pin(s.part);
    s.own = (float *)(shared + (a.c.n_split > 1 ? a.c.own_at[rank] : a.c.red_at));
    if (a.c.n_split > 1) {
        s.sent = (float *)(shared + a.c.sent_at[rank]);
        s.remote = remote_addr(shared + a.c.sent_at[rank ^ 1], rank ^ 1);
    }
    return s;
}

/* Sums to shared memory of the cluster; the barrier there counts their bytes. */
static __device__ __forceinline__ void store_remote(uint32_t at, const float (&f)[2],
                                                    uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(at),
                 "f"(f[0]), "f"(f[1]), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void store_remote(uint32_t at, const float (&f)[4],
                                                    uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(at),
                 "f"(f[0]), "f"(f[1]), "f"(f[2]), "f"(f[3]), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void store_local(float *to, const float (&f)[2])
{
    *(float2 *)to = make_float2(f[0], f[1]);
}

static __device__ __forceinline__ void store_local(float *to, const float (&f)[4])
{
    *(float4 *)to = make_float4(f[0], f[1], f[2], f[3]);
}

static __device__ __forceinline__ void load_local(float (&f)[2], const float *from)
{
    *(float2 *)f = *(const float2 *)from;
}

static __device__ __forceinline__ void load_local(float (&f)[4], const float *from)
{
    *(float4 *)f = *(const float4 *)from;
}

/* Relaxed: nothing that was written is published by it. What this CTA has read must have been read
 * by a barrier of the CTA before; no last access to a slot may be put between that and this. */
static __device__ __forceinline__ void arrive_remote(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

/* How many bytes a CTA is sent. */
static __device__ inline uint32_t sent_bytes(const product_cut &c)
{
    return 2U * (uint32_t)(c.round * c.rows / 2) * 4U;
}

/* A warpgroup's sums from chunk `first` on, to its part here, and of the other CTA's rows there. */
template <int N>
static __device__ inline void share_sums(const float (&acc)[N / 2], int first, const share &s,
                                         int group, int rank, const exchange &x)
{
    const int SUMS_OF = CHUNK_SUMS(N);
    uint32_t met = 0;

    if (s.others[0] || s.others[1]) {
        met = remote_addr(x.met, rank ^ 1);
        barrier_wait(x.ready, 0);
    }
#pragma unroll
    for (int below = 0; below < 2; below++) {
        int at = group * s.part + s.at[below] - first * 32 * SUMS_OF;

#pragma unroll
        for (int c = 0; c < N / CHUNK_COLS(N); c++, at += 32 * SUMS_OF) {
            float f[SUMS_OF];

#pragma unroll
            for (int i = 0; i < SUMS_OF; i++)
                f[i] = acc[(c * SUMS_OF / 2 + i / 2) * 4 + below * 2 + i % 2];
            if (c < first || c >= first + s.chunks)
                continue;
            if (s.mine[below])
                store_local(s.own + at, f);
            if (s.others[below])
                store_remote(s.remote + (uint32_t)at * 4, f, met);
        }
    }
}

/* Two strips of a chunk: a warp ends them at a time. */
struct unit {
    int strip, chunk;
    int row, col; /* of this lane's first sum */
    uint32_t at;  /* which is this of y; nothing of 64 rows has more than 2^32 */
};

template <int N> static __device__ inline unit unit_of(const share &s, int number, int first)
{
    const int CHUNKS = N / CHUNK_COLS(N);
    int lane = threadIdx.x % 32;
    unit u;

    u.strip = s.chunks == 1 ? number * 2 : number / CHUNKS * 2;
    u.chunk = s.chunks == 1 ? 0 : number % CHUNKS;
    u.row = s.begin + u.strip * 8 + lane / 4;
    u.col = (first + u.chunk) * CHUNK_COLS(N) + lane % 4 * 2;
    u.at = (uint32_t)u.col * (uint32_t)s.n_out + (uint32_t)u.row;
    return u;
}

/* A lane's i-th sum of a strip is so many columns behind its first. */
static __device__ constexpr int column_of(int i)
{
    return i / 2 * 8 + i % 2;
}

/* What the end of a unit reads: of its rows, and the residual. */
template <int N> struct unit_reads {
    float residual[2][CHUNK_SUMS(N)];
    float norm[2], scale[2], bias[2];
};

template <int N, int KIND, bool FP8>
static __device__ inline unit_reads<N> read_unit(const wide_args &a, const targets &t,
                                                 const share &s, const unit &u)
{
    unit_reads<N> r;

#pragma unroll
    for (int b = 0; b < 2; b++) {
        int row = u.row + b * 8;
        bool there = u.strip + b < s.strips && row < s.n_out;

        r.scale[b] = FP8 && there && a.scales != NULL ? a.scales[row] : 1.0f;
        r.bias[b] = there && a.p.bias != NULL ? load_bf16((const k_bf16 *)a.p.bias + row) : 0.0f;
        if (KIND != K_PRODUCT_RESIDUAL)
            continue;
        r.norm[b] = there ? load_bf16((const k_bf16 *)a.p.norm + row) : 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNK_SUMS(N); i++)
            r.residual[b][i] = there && u.col + column_of(i) < s.n
                                   ? t.residual[u.at + column_of(i) * s.n_out + b * 8]
                                   : 0.0f;
    }
    return r;
}

/* Eight rows of a chunk's columns, two rows a lane and store: `row` and `col` are this lane's first
 * sum's. */
template <int V>
static __device__ inline void store_strip(k_bf16 *to, const float (&y)[V], bool is_half, int row,
                                          int col, const share &s)
{
    int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    uint32_t at;
    uint32_t two[V / 2];

#pragma unroll
    for (int m = 0; m < V / 2; m++)
        two[m] = is_half ? pack_half(y[2 * m], y[2 * m + 1]) : pack_bf16(y[2 * m], y[2 * m + 1]);
#pragma unroll
    for (int m = 0; m < V / 2; m++)
        transpose(two[m]);
    row += q * 2 - g, col += g - q * 2;
    at = (uint32_t)col * (uint32_t)s.n_out + (uint32_t)(is_half ? (int)K_HALF_AT(row) : row);
#pragma unroll
    for (int m = 0; m < V / 2; m++, at += (uint32_t)s.n_out * 8) {
        if (col + m * 8 < s.n)
            *(uint32_t *)(to + at) = two[m];
    }
}

/* The residual of a unit's sixteen rows, the squares of the sums, and the next norm's rows. */
template <int N>
static __device__ inline void add_unit(float (&y)[2][CHUNK_SUMS(N)], const unit_reads<N> &r,
                                       const wide_args &a, const targets &t, const share &s,
                                       const unit &u)
{
    float squares[CHUNK_SUMS(N)];

#pragma unroll
    for (int i = 0; i < CHUNK_SUMS(N); i++) {
        squares[i] = 0.0f;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            y[b][i] += r.residual[b][i];
            if (u.col + column_of(i) < s.n)
                t.residual[u.at + column_of(i) * s.n_out + b * 8] = y[b][i];
            squares[i] += y[b][i] * y[b][i];
            y[b][i] *= r.norm[b];
        }
    }
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) {
#pragma unroll
        for (int i = 0; i < CHUNK_SUMS(N); i++)
            squares[i] += __shfl_xor_sync(~0U, squares[i], apart);
    }
#pragma unroll
    for (int i = 0; i < CHUNK_SUMS(N); i++) {
        if (threadIdx.x % 32 < 4 && u.col + column_of(i) < s.n) /* of row 0 of sixteen */
            t.sums_out[(u.at + column_of(i) * s.n_out) / 16] = squares[i];
    }
#pragma unroll
    for (int b = 0; b < 2; b++)
        store_strip(t.normed, y[b], a.p.y_is_half, u.row + b * 8, u.col, s);
}

/* A unit of y, which has no residual. */
template <int N, int KIND>
static __device__ inline void write_unit(const float (&y)[2][CHUNK_SUMS(N)], const wide_args &a,
                                         const targets &t, const share &s, const unit &u)
{
#pragma unroll
    for (int b = 0; b < 2; b++) {
        if (u.strip + b >= s.strips || u.row + b * 8 >= s.n_out) /* all eight, or none */
            continue;
        if (KIND == K_PRODUCT_PLAIN)
            store_strip(t.y, y[b], false, u.row + b * 8, u.col, s);
#pragma unroll
        for (int i = 0; i < CHUNK_SUMS(N); i++) {
            if (KIND == K_PRODUCT_FLOAT && u.col + column_of(i) < s.n)
                ((float *)t.y)[u.at + column_of(i) * s.n_out + b * 8] = y[b][i];
        }
    }
}

/* A unit's sums of both warpgroups and, of a pair, of the other CTA's two, in a fixed order; with
 * the norm's division, scales and the bias. */
template <int N>
static __device__ inline void sum_unit(float (&y)[2][CHUNK_SUMS(N)], const float *inverse,
                                       const unit_reads<N> &r, const share &s, const unit &u,
                                       bool pair)
{
    const int SUMS_OF = CHUNK_SUMS(N);
    float root[SUMS_OF];

#pragma unroll
    for (int i = 0; i < SUMS_OF; i += 2)
        *(float2 *)(root + i) = *(const float2 *)(inverse + u.col + column_of(i));
#pragma unroll
    for (int b = 0; b < 2; b++) {
        int at = ((u.strip + b) * s.chunks + u.chunk) * 32 + threadIdx.x % 32;
        float part[4][SUMS_OF] = {};

        if (u.strip + b >= s.strips)
            continue;
        load_local(part[0], s.own + at * SUMS_OF);
        load_local(part[1], s.own + at * SUMS_OF + s.part);
        if (pair) {
            load_local(part[2], s.sent + at * SUMS_OF);
            load_local(part[3], s.sent + at * SUMS_OF + s.part);
        }
#pragma unroll
        for (int i = 0; i < SUMS_OF; i++) {
            float sum = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);

            y[b][i] = sum * (root[i] * r.scale[b]) + r.bias[b];
        }
    }
}

/* What a warp knows of its first unit before the first slot. */
template <int N> struct first_unit {
    unit u;
    unit_reads<N> reads;
};

template <int N, int KIND, bool FP8>
static __device__ inline first_unit<N> begin_unit(const wide_args &a, const targets &t,
                                                  const share &s, int warp, int first)
{
    first_unit<N> f;

    f.u = unit_of<N>(s, warp, first);
    f.reads = read_unit<N, KIND, FP8>(a, t, s, f.u);
    return f;
}

/* The end of what has met, from chunk `first` on. */
template <int N, int KIND, bool FP8>
static __device__ inline void end_units(const wide_args &a, const targets &t, const float *inverse,
                                        const share &s, int warp, int first, first_unit<N> now)
{
    int units = (s.strips + 1) / 2 * s.chunks;

    for (int i = warp; i < units;) {
        first_unit<N> next = now;
        float y[2][CHUNK_SUMS(N)];

        i += WORKERS / 32;
        if (i < units)
            next = begin_unit<N, KIND, FP8>(a, t, s, i, first);
        sum_unit<N>(y, inverse, now.reads, s, now.u, a.c.n_split > 1);
        if (KIND != K_PRODUCT_RESIDUAL)
            write_unit<N, KIND>(y, a, t, s, now.u);
        else if (now.u.row < s.n_out) /* all sixteen, or none */
            add_unit<N>(y, now.reads, a, t, s, now.u);
        now = next;
    }
}

/* The end of a tile of one block. One CTA has a tile at a time in shared memory of its own, or its
 * only one over the slots; of a pair each has one tile. */
template <int N, int KIND, bool FP8>
static __device__ inline void end_block(const float (&acc)[N / 2], const wide_args &a,
                                        const targets &t, const float *inverse, const share &s,
                                        first_unit<N> now, int warp, int rank, const exchange &x)
{
    for (int first = 0;;) {
        share_sums<N>(acc, first, s, warp / 4, rank, x);
        named_sync(2, WORKERS);
        if (a.c.n_split > 1)
            barrier_wait_cluster(x.met, 0);
        end_units<N, KIND, FP8>(a, t, inverse, s, warp, first, now);
        named_sync(2, WORKERS); /* of a pair, too: see Traps in README.md, "two ways out" */
        first += s.chunks;
        if (first * CHUNK_COLS(N) >= a.n)
            return;
        now = begin_unit<N, KIND, FP8>(a, t, s, warp, first);
    }
}

#endif
