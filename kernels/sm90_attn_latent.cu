/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over latents of 512 + 64 elements (latent.h) for Hopper, with wgmma: decodes, split
 * over their keys, and chunks of prompts.
 *
 *    warpgroup 0: keys --cp.async--> ring of stages --+--> warpgroup 1: values 0 .. 255
 *                                                     +--> warpgroup 2: values 256 .. 511
 *
 * A job is 64 rows, pairs (token, head), and a run of tiles of 32 keys. A tile is read once, as
 * keys [32][576] and, its first 512 columns, as values [32][512]:
 *
 *     S [64][32] = q [64][576] . K     each warpgroup over half of the 576 columns; they add their
 *                                      halves through shared memory, one barrier per tile
 *     O [64][256] += P [64][32] . V    each warpgroup has half of the output's columns, and P of
 *                                      all keys, from the same S: the softmax is computed twice
 *
 *     warpgroups 1, 2   S(0) | add, softmax(0) | S(1) O(0) | add, softmax(1) | S(2) O(1) ..
 *                                                     `--- O(0) runs meanwhile ---'
 *
 * Two fifths of the queries stay in registers, the rest in shared memory.
 *
 * Rows of e4m3 come as they are into two raw stages, in the place of the last one of bf16, and the
 * loaders widen each into one of the other three while the next is on its way. A thread widens what
 * it has copied itself.
 *
 * Decodes: k_attn_schedule() has cut the tiles of all rows of jobs into equal shares, one a CTA
 * (attn_plan.cu). A row that is cut leaves parts in plan->work, sums that are not divided yet; a
 * second kernel merges. Chunks: a CTA takes whole tiles of the plan in turn.
 *
 * Bits: a row's result depends on its keys and on the lengths of the step's decodes, which decide
 * where rows are cut, not on timing.
 *
 * Tiles of 64 keys would not leave room for queries and three stages. Source: the absorbed form of
 * DeepSeek-V2 (arXiv 2405.04434); two warpgroups that share the output's columns as in FlashMLA. */
#include "kernels/attn_decode.cuh"
#include "kernels/choice.h"
#include "kernels/e4m3.cuh"
#include "kernels/latent.h"

#define ROW       (K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX)
#define VALUES    K_LATENT_RANK_MAX
#define TILE      DECODE_LATENT_TILE
#define STAGES    4
#define RAW       (TILE * ROW) /* bytes of a tile of e4m3 */
#define SLAB      1024
#define PANEL     (TILE / 8 * SLAB) /* bytes of 64 columns of a tile */
#define PANELS    (ROW / 64)
#define Q_PANEL   (64 / 8 * SLAB)
#define Q_PANELS  5 /* of queries in shared memory, from the third on */
#define HELD      8 /* products of 16 columns whose queries a warpgroup holds in registers */
#define LEFT      (ROW / 32 - HELD)
#define CONSUMERS 256
#define THREADS   (128 + CONSUMERS)
#define SUM_ID    1 /* named barriers of the consumers: halves of scores are there */
#define JOB_ID    2 /* the queries of a job may be replaced; are there */
#define NOTHING   (-1e30f)
#define RISE      8.0f /* weights stay below 2^8 */
#define LOG2_E    1.44269504f
#define MERGERS   8 /* CTAs that merge a cut row */

static_assert(LEFT * 2 == Q_PANELS * 4, "the queries that are not held");
static_assert(2 * RAW == PANELS * PANEL, "two raw tiles in a stage");

/* Stages of widened tiles. */
template <bool E4M3> static constexpr int latent_stages = E4M3 ? STAGES - 1 : STAGES;

struct latent_args {
    k_bf16 *out;
    const k_bf16 *q;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    int n_heads, blocks; /* blocks of 64 heads of a decode */
    float scale;         /* times log2(e), and the scale of e4m3 */
    float out_scale;     /* of results */
};

/* 64 rows from pair `pair` of the tokens from `token` on. */
struct latent_job {
    const int32_t *pages;
    int token, pair, n_rows;
    int pos;      /* of `token` */
    int len;      /* keys that are read: none is beyond the last row's */
    int first, n; /* tiles */
    int part;     /* index of the part that it leaves; -1: the row is whole */
};

struct latent_shared {
    unsigned char tile[STAGES][PANELS * PANEL];
    unsigned char q[Q_PANELS * Q_PANEL];
    float4 halves[2][2][4][128]; /* of scores: [tile % 2][warpgroup][][thread] */
    uint64_t full[STAGES], empty[STAGES];
};

/* --- jobs ---------------------------------------------------------------------------------- */

/* What a CTA has left to do. */
struct latent_work {
    decode_worker share; /* of decodes */
    int tile;            /* of chunks: twice the tile of the plan, and which half of its rows */
};

/* The next piece of the CTA's share of decodes; false: there is none. */
static __device__ bool latent_next_decode(const latent_args &a, latent_work &w, latent_job &job)
{
    const decode_schedule *schedule = (const decode_schedule *)a.plan.schedule;
    int tiles = (w.share.first.len + TILE - 1) / TILE;
    bool is_cut;

    if (w.share.n <= 0)
        return false;
    job.pages = a.t.page_ids + (size_t)w.share.first.seq * a.t.pages_max;
    job.token = w.share.first.token;
    job.pair = w.share.row * 64;
    job.n_rows = min(64, a.n_heads - job.pair);
    job.len = w.share.first.len;
    job.pos = job.len - 1;
    job.first = w.share.tile;
    job.n = min(w.share.n, tiles - job.first);
    is_cut = job.n < tiles;
    /* A share cuts at most the row that it begins with and the one that it ends with. */
    job.part = is_cut ? 2 * (int)blockIdx.x + (job.first == 0) : -1;
    w.share.n -= job.n;
    w.share.tile = 0;
    if (++w.share.row == a.blocks && w.share.n > 0) {
        w.share.row = 0;
        w.share.first = schedule->items[++w.share.item];
    }
    return true;
}

/* The next half of a tile of a chunk. */
static __device__ bool latent_next_chunk(const latent_args &a, latent_work &w, latent_job &job)
{
    int tile = w.tile / 2, seq, start, n_seq, n_tokens;

    for (; tile < a.plan.n_tiles; w.tile += gridDim.x, tile = w.tile / 2) {
        seq = a.plan.tile_seqs[tile];
        start = a.plan.tile_starts[tile];
        n_seq = a.t.seq_start[seq + 1] - a.t.seq_start[seq];
        n_tokens = min(K_TILE_TOKENS(a.n_heads), n_seq - start);
        job.pair = w.tile % 2 * 64;
        job.n_rows = min(64, n_tokens * a.n_heads - job.pair);
        if (job.n_rows <= 0 || a.t.kv_len[seq] == 0) /* a recorded step may have tiles to spare */
            continue;
        job.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        job.token = a.t.seq_start[seq] + start;
        job.pos = a.t.kv_len[seq] - n_seq + start;
        job.len = job.pos + (job.pair + job.n_rows - 1) / a.n_heads + 1;
        job.first = 0;
        job.n = (job.len + TILE - 1) / TILE;
        job.part = -1;
        w.tile += gridDim.x;
        return true;
    }
    return false;
}

static __device__ bool latent_next_job(const latent_args &a, latent_work &w, latent_job &job)
{
    return latent_next_decode(a, w, job) || latent_next_chunk(a, w, job);
}

/* --- the loaders --------------------------------------------------------------------------- */

/* Copy 16 bytes, or as many zeros. */
static __device__ __forceinline__ void latent_copy(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}

template <int N> static __device__ __forceinline__ void latent_copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A thread copies the same 16 bytes of each panel's rows of 128, of two rows. */
static __device__ __forceinline__ void latent_load_tile(const latent_args &a, const latent_job &job,
                                                        unsigned char *tile, int first)
{
    int chunk = threadIdx.x % 8;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = threadIdx.x / 8 + half * 16, pos = first * TILE + row;
        bool is_there = pos < job.len;
        const k_bf16 *from = key_row(a.kv, job.pages, is_there ? pos : first * TILE, 0) + chunk * 8;
        uint32_t to = shared_addr(tile) + row / 8 * SLAB + row % 8 * 128 + ((chunk ^ row % 8) * 16);

#pragma unroll
        for (int panel = 0; panel < PANELS; panel++)
            latent_copy(to + panel * PANEL, from + panel * 64, is_there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The copies of the tile in a stage have ended: wgmma may read it. */
static __device__ __forceinline__ void latent_announce(latent_shared *sh, int stage)
{
    fence_async();
    barrier_arrive(&sh->full[stage]);
}

/* Begin to copy a tile of e4m3: a thread has every fourth 16 bytes of a row, one of each panel. */
static __device__ __forceinline__ void latent_fetch_raw(const latent_args &a, const latent_job &job,
                                                        unsigned char *raw, int first)
{
    int row = threadIdx.x / 4, chunk = threadIdx.x % 4, pos = first * TILE + row;
    bool is_there = pos < job.len;
    const uint8_t *from = (const uint8_t *)a.kv.pages +
                          key_elem(a.kv, job.pages, is_there ? pos : first * TILE, 0) + chunk * 16;
    uint32_t to = shared_addr(raw) + row * ROW + chunk * 16;

#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        latent_copy(to + panel * 64, from + panel * 64, is_there);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The thread's part of a raw tile, whose copies have ended, as bf16 in a stage. */
static __device__ __forceinline__ void latent_widen_raw(unsigned char *tile,
                                                        const unsigned char *raw)
{
    int row = threadIdx.x / 4, chunk = threadIdx.x % 4;
    const unsigned char *from = raw + row * ROW + chunk * 16;
    unsigned char *to = tile + row / 8 * SLAB + row % 8 * 128;

#pragma unroll 3
    for (int panel = 0; panel < PANELS; panel++) {
        uint4 x = *(const uint4 *)(from + panel * 64);

        *(uint4 *)(to + panel * PANEL + (2 * chunk ^ row % 8) * 16) =
            widen_eight(make_uint2(x.x, x.y));
        *(uint4 *)(to + panel * PANEL + ((2 * chunk + 1) ^ row % 8) * 16) =
            widen_eight(make_uint2(x.z, x.w));
    }
}

/* A tile is widened when the next one has been requested. */
static __device__ void latent_load_raw(latent_shared *sh, const latent_args &a, latent_work w)
{
    ring<latent_stages<true>> at = {0, 1};
    unsigned char *raw = sh->tile[STAGES - 1];
    latent_job job;
    int n = 0; /* tiles so far */
    bool more = latent_next_job(a, w, job);

    for (int i = 0; more || n > 0;) {
        if (more)
            latent_fetch_raw(a, job, raw + n % 2 * RAW, job.first + i);
        if (n > 0) {
            if (more)
                latent_copies_wait<1>();
            else
                latent_copies_wait<0>();
            barrier_wait(&sh->empty[at.stage], at.parity);
            latent_widen_raw(sh->tile[at.stage], raw + (n - 1) % 2 * RAW);
            latent_announce(sh, at.stage);
            at.next();
        }
        if (!more)
            return;
        n++;
        if (++i == job.n) {
            i = 0;
            more = latent_next_job(a, w, job);
        }
    }
}

/* A tile is announced when the next one has been requested, which is a stage before the consumers
 * need it. */
static __device__ void latent_load(latent_shared *sh, const latent_args &a, latent_work w)
{
    ring<STAGES> at = {0, 1};
    latent_job job;
    int n = 0; /* tiles so far */

    while (latent_next_job(a, w, job)) {
#pragma unroll 1
        for (int i = 0; i < job.n; i++, n++, at.next()) {
            barrier_wait(&sh->empty[at.stage], at.parity);
            latent_load_tile(a, job, sh->tile[at.stage], job.first + i);
            if (n > 0) {
                latent_copies_wait<1>();
                latent_announce(sh, (at.stage + STAGES - 1) % STAGES);
            }
        }
    }
    latent_copies_wait<0>();
    if (n > 0)
        latent_announce(sh, (at.stage + STAGES - 1) % STAGES);
}

/* --- the consumers ------------------------------------------------------------------------- */

/* A thread's share of the 64 rows: rows lane / 4 and lane / 4 + 8 of its warp's 16, of each 8
 * columns lane % 4 * 2 and the next. */
struct latent_rows {
    uint32_t held[HELD][4];
    float acc[2][64]; /* 128 columns each */
    float top[2], sum[2];
    int pos[2]; /* the last key that a row attends to */
};

static __device__ __forceinline__ int latent_row(void)
{
    return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

/* Two elements of a row of the queries; zeros behind the last row. */
static __device__ __forceinline__ uint32_t latent_query(const latent_args &a, const latent_job &job,
                                                        int row, int column)
{
    size_t at = ((size_t)job.token * a.n_heads + job.pair + row) * ROW + column;

    return row < job.n_rows ? *(const uint32_t *)(a.q + at) : 0;
}

/* The first columns of warpgroup 0's half and the last of the other's go to registers, the others
 * to shared memory. */
template <int WG>
static __device__ void latent_take_queries(latent_shared *sh, const latent_args &a,
                                           const latent_job &job, latent_rows &r)
{
    const k_bf16 *from = a.q + ((size_t)job.token * a.n_heads + job.pair) * ROW + HELD * 16;
    int row = latent_row(), column = WG * (ROW - HELD * 16) + threadIdx.x % 4 * 2;

    named_sync(JOB_ID, CONSUMERS);
#pragma unroll
    for (int i = 0; i < Q_PANELS * 2; i++) {
        int at = i * CONSUMERS + threadIdx.x - 128, line = at / (Q_PANELS * 8);
        int chunk = at % (Q_PANELS * 8);
        uint4 x = make_uint4(0, 0, 0, 0);

        if (line < job.n_rows)
            x = *(const uint4 *)(from + (size_t)line * ROW + chunk * 8);
        *(uint4 *)(sh->q + chunk / 8 * Q_PANEL + line / 8 * SLAB + line % 8 * 128 +
                   (chunk % 8 ^ line % 8) * 16) = x;
    }
    fence_async();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            r.held[i][k] = latent_query(a, job, row + k % 2 * 8, column + i * 16 + k / 2 * 8);
    }
    named_sync(JOB_ID, CONSUMERS);
}

/* The lower half of an operand's descriptor, in a register that the compiler knows to be the same
 * in all lanes: then an operand's descriptor is one addition. */
static __device__ __forceinline__ uint32_t latent_base(const unsigned char *p, int columns_apart)
{
    return __shfl_sync(~0U, (uint32_t)operand(p, SLAB, columns_apart), 0);
}

/* The descriptor of an operand `at` 16 bytes further on. */
static __device__ __forceinline__ uint64_t latent_operand(uint32_t base, int at)
{
    return (uint64_t)(SLAB / 16 | 1 << 30) << 32 | (base + at);
}

/* Issue and commit this warpgroup's half of the scores of the tile in a stage. */
template <int WG>
static __device__ __forceinline__ void latent_begin_scores(latent_shared *sh, latent_rows &r,
                                                           float (&score)[16],
                                                           const unsigned char *tile)
{
    uint32_t k = latent_base(tile, 0), q = latent_base(sh->q, 0);

    keep(score);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        constexpr int begin = WG * (ROW / 16 - HELD);
        int at = begin + i;

        multiply_rows(score, r.held[i], latent_operand(k, at / 4 * (PANEL / 16) + at % 4 * 2),
                      i > 0);
    }
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        constexpr int begin = HELD + WG * LEFT;
        int at = begin + i, in_q = at - HELD;

        multiply_rows(score, latent_operand(q, in_q / 4 * (Q_PANEL / 16) + in_q % 4 * 2),
                      latent_operand(k, at / 4 * (PANEL / 16) + at % 4 * 2), 1);
    }
    warpgroup_commit();
}

/* Add the other warpgroup's half. */
template <int WG>
static __device__ __forceinline__ void latent_add_halves(latent_shared *sh, float (&score)[16],
                                                         int tile)
{
    float4(*own)[128] = sh->halves[tile % 2][WG], (*other)[128] = sh->halves[tile % 2][WG ^ 1];
    int t = threadIdx.x % 128;

#pragma unroll
    for (int i = 0; i < 4; i++)
        own[i][t] = make_float4(score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]);
    named_sync(SUM_ID, CONSUMERS);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 x = other[i][t];

        score[4 * i] += x.x, score[4 * i + 1] += x.y;
        score[4 * i + 2] += x.z, score[4 * i + 3] += x.w;
    }
}

/* Keys behind a row's last one do not count. */
static __device__ __forceinline__ void latent_mask(const latent_rows &r, float (&score)[16],
                                                   int base)
{
    int col = base + threadIdx.x % 4 * 2;

#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (col + i / 4 * 8 + i % 2 > r.pos[i / 2 % 2])
            score[i] = -INFINITY;
    }
}

/* Raise the rows' tops; shrink: the factors of the sums so far. */
static __device__ __forceinline__ void latent_raise(latent_rows &r, const float (&score)[16],
                                                    float (&shrink)[2], float scale)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = r.top[row];

#pragma unroll
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, score[i / 2 * 4 + row * 2 + i % 2]);
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
        shrink[row] = exp2_fast((r.top[row] - top) * scale);
        r.sum[row] *= shrink[row];
        r.top[row] = top;
    }
}

/* The running softmax: scores become weights, relative to tops that are raised only when a score
 * exceeds one by RISE, which is rare. True: sums are to be multiplied with shrink. */
static __device__ __forceinline__ bool latent_soften(latent_rows &r, float (&score)[16],
                                                     float (&shrink)[2], float scale)
{
    float most[2] = {score[0], score[2]};
    bool rises;

#pragma unroll
    for (int i = 0; i < 16; i++)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], score[i]);
    rises = (most[0] - r.top[0]) * scale > RISE || (most[1] - r.top[1]) * scale > RISE;
    rises = __any_sync(~0U, rises);
    if (rises)
        latent_raise(r, score, shrink, scale);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float *s = &score[i];

        *s = exp2_fast(fmaf(*s, scale, -r.top[i / 2 % 2] * scale));
        r.sum[i / 2 % 2] += *s;
    }
    return rises;
}

/* The scores of this warpgroup's columns are there: weights of the tile. n: tiles of the CTA. */
template <int WG>
static __device__ __forceinline__ bool latent_weigh(latent_shared *sh, latent_rows &r,
                                                    float (&score)[16], float (&shrink)[2],
                                                    float scale, const latent_job &job, int tile,
                                                    int n)
{
    bool rises;

    keep(score);
    latent_add_halves<WG>(sh, score, n);
    if ((tile + 1) * TILE > job.pos)
        latent_mask(r, score, tile * TILE);
    rises = latent_soften(r, score, shrink, scale);
    keep(score);
    return rises;
}

/* P as a left operand: the accumulator's layout is the operand's. */
static __device__ __forceinline__ void latent_pack(uint32_t (&weight)[2][4],
                                                   const float (&score)[16])
{
#pragma unroll
    for (int k = 0; k < 8; k++)
        weight[k / 4][k % 4] = pack_bf16(score[2 * k], score[2 * k + 1]);
}

/* Issue and commit acc += P . V of this warpgroup's columns. */
template <int WG>
static __device__ __forceinline__ void latent_begin_values(latent_rows &r, uint32_t (&weight)[2][4],
                                                           const unsigned char *tile)
{
    uint32_t v = latent_base(tile + WG * 4 * PANEL, PANEL);

    keep(r.acc[0]);
    keep(r.acc[1]);
    keep(weight);
    warpgroup_begin();
#pragma unroll
    for (int i = 0; i < TILE / 16; i++) {
#pragma unroll
        for (int part = 0; part < 2; part++)
            multiply_columns(r.acc[part], weight[i],
                             latent_operand(v, part * 2 * (PANEL / 16) + i * 2 * (SLAB / 16)));
    }
    warpgroup_commit();
}

/* Wait for the values, and release the stage that they were in. */
static __device__ __forceinline__ void latent_end_values(latent_shared *sh, latent_rows &r,
                                                         int stage)
{
    warpgroup_wait<0>();
    keep(r.acc[0]);
    keep(r.acc[1]);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&sh->empty[stage]);
}

static __device__ __forceinline__ void latent_shrink(latent_rows &r, const float (&shrink)[2])
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        r.acc[i / 64][i % 64] *= shrink[i / 2 % 2];
}

/* Results of whole rows, or a part: sums with their tops. */
template <int WG>
static __device__ void latent_write(const latent_args &a, const latent_job &job, latent_rows &r)
{
    decode_latent_part *part = (decode_latent_part *)a.plan.work + max(job.part, 0);

#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = latent_row() + k * 8, column = WG * 256 + threadIdx.x % 4 * 2;
        float sum = r.sum[k], scale;
        k_bf16 *to = a.out + ((size_t)job.token * a.n_heads + job.pair + row) * VALUES + column;

        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (row >= job.n_rows)
            continue;
        if (job.part >= 0 && WG == 0 && threadIdx.x % 4 == 0)
            part->top[row] = r.top[k], part->sum[row] = sum;
        scale = a.out_scale / sum;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float low = r.acc[i / 16][i % 16 * 4 + k * 2];
            float high = r.acc[i / 16][i % 16 * 4 + k * 2 + 1];

            if (job.part >= 0)
                *(float2 *)&part->acc[row][column + i * 8] = make_float2(low, high);
            else
                *(uint32_t *)(to + i * 8) = pack_bf16(low * scale, high * scale);
        }
    }
}

template <int WG, bool E4M3>
static __device__ void latent_compute(latent_shared *sh, const latent_args &a,
                                      const latent_job &job, ring<latent_stages<E4M3>> &at, int &n)
{
    latent_rows r = {};
    float score[16], shrink[2];
    uint32_t weight[2][4];
    int stage, release;

    latent_take_queries<WG>(sh, a, job, r);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        r.top[k] = NOTHING;
        r.pos[k] = job.pos + (job.pair + latent_row() + k * 8) / a.n_heads;
    }
    barrier_wait(&sh->full[at.stage], at.parity);
    latent_begin_scores<WG>(sh, r, score, sh->tile[at.stage]);
    warpgroup_wait<0>();
    latent_weigh<WG>(sh, r, score, shrink, a.scale, job, job.first, n++);
    latent_pack(weight, score);
    stage = at.stage;
    at.next();
    if (job.n > 1)
        barrier_wait(&sh->full[at.stage], at.parity);
#pragma unroll 1
    for (int i = 1; i < job.n; i++) {
        bool rises;

        latent_begin_scores<WG>(sh, r, score, sh->tile[at.stage]);
        latent_begin_values<WG>(r, weight, sh->tile[stage]);
        warpgroup_wait<1>();
        rises = latent_weigh<WG>(sh, r, score, shrink, a.scale, job, job.first + i, n++);
        release = stage;
        stage = at.stage;
        at.next();
        /* The assembler moves the wait for the values to the front of what it does not depend on,
         * as the softmax, but not across this loop. */
        if (i + 1 < job.n)
            barrier_wait(&sh->full[at.stage], at.parity);
        latent_end_values(sh, r, release);
        if (rises)
            latent_shrink(r, shrink);
        latent_pack(weight, score);
    }
    latent_begin_values<WG>(r, weight, sh->tile[stage]);
    latent_end_values(sh, r, stage);
    latent_write<WG>(a, job, r);
}

template <int WG, bool E4M3>
static __device__ void latent_consume(latent_shared *sh, const latent_args &a, latent_work w)
{
    ring<latent_stages<E4M3>> at = {0, 0};
    latent_job job;
    int n = 0;

    while (latent_next_job(a, w, job))
        latent_compute<WG, E4M3>(sh, a, job, at, n);
}

template <bool E4M3>
static __global__ void __launch_bounds__(THREADS, 1)
    sm90_attn_latent_kernel(const __grid_constant__ latent_args a)
{
    extern __shared__ __align__(SLAB) unsigned char shared[];
    latent_shared *sh = (latent_shared *)shared;
    latent_work w = {{}, (int)blockIdx.x};

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&sh->full[i], 128);
            barrier_init(&sh->empty[i], CONSUMERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_previous();
    let_next_begin();
    if (a.plan.n_decodes > 0)
        w.share = ((const decode_schedule *)a.plan.schedule)->workers[blockIdx.x];
    if (threadIdx.x < 128) {
        registers_give<40>();
        if constexpr (E4M3)
            latent_load_raw(sh, a, w);
        else
            latent_load(sh, a, w);
    } else {
        registers_take<232>();
        if (threadIdx.x < 256)
            latent_consume<0, E4M3>(sh, a, w);
        else
            latent_consume<1, E4M3>(sh, a, w);
    }
}

/* --- merging -------------------------------------------------------------------------------- */

/* A block per worker that continues a row as the first one, and eighth of the row's 64: of each
 * row, a thread has four columns. */
static __global__ void __launch_bounds__(128) sm90_latent_merge_kernel(const latent_args a)
{
    const decode_worker *workers = ((const decode_schedule *)a.plan.schedule)->workers;
    const decode_latent_part *parts = (const decode_latent_part *)a.plan.work;
    int first = blockIdx.x, last = first, left, tiles;
    decode_worker w, before;

    wait_for_previous();
    let_next_begin();
    w = workers[first];
    if (first == 0 || w.n == 0 || w.tile == 0)
        return;
    before = workers[first - 1];
    /* The worker before begins within the row, too: then it is not the first. */
    if (before.item == w.item && before.row == w.row && before.tile > 0)
        return;
    tiles = (w.first.len + TILE - 1) / TILE;
    for (left = tiles - w.tile; left > workers[last].n; last++)
        left -= workers[last].n;
    for (int row = blockIdx.y; row < min(64, a.n_heads - w.row * 64); row += MERGERS) {
        const decode_latent_part *begin = &parts[2 * (first - 1) + 1];
        float top = begin->top[row], sum = 0.0f;
        float4 acc = make_float4(0, 0, 0, 0);
        k_bf16 *to = a.out + ((size_t)w.first.token * a.n_heads + w.row * 64 + row) * VALUES +
                     threadIdx.x * 4;

        for (int i = first; i <= last; i++)
            top = fmaxf(top, parts[2 * i].top[row]);
        for (int i = first - 1; i <= last; i++) {
            const decode_latent_part *part = i < first ? begin : &parts[2 * i];
            float factor = exp2_fast((part->top[row] - top) * a.scale);
            float4 x = *(const float4 *)&part->acc[row][threadIdx.x * 4];

            sum = fmaf(part->sum[row], factor, sum);
            acc.x = fmaf(x.x, factor, acc.x), acc.y = fmaf(x.y, factor, acc.y);
            acc.z = fmaf(x.z, factor, acc.z), acc.w = fmaf(x.w, factor, acc.w);
        }
        sum /= a.out_scale;
        *(uint2 *)to =
            make_uint2(pack_bf16(acc.x / sum, acc.y / sum), pack_bf16(acc.z / sum, acc.w / sum));
    }
}

/* --- the launch ------------------------------------------------------------------------------ */

int k_attn_latents_take_sm90(const struct k_kv *kv)
{
    size_t elems = kv->type == K_E4M3 ? 16 : 8; /* of a copy */

    return kv->head_dim == ROW && kv->value_dim == VALUES &&
           (kv->type == K_BF16 || kv->type == K_E4M3) && kv->page_elems % elems == 0 &&
           kv->layer_elems % elems == 0;
}

template <bool E4M3> static int latent_launch(const latent_args &args, k_stream stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute(sm90_attn_latent_kernel<E4M3>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(latent_shared)) != cudaSuccess)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(DECODE_SMS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(latent_shared);
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, sm90_attn_latent_kernel<E4M3>, args) == cudaSuccess ? 0 : -1;
}

int k_attn_latents_sm90(k_bf16 *out, const k_bf16 *q, const struct k_kv *kv,
                        const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                        float scale, k_stream stream)
{
    latent_args args = {
        out, q, *kv, *t, *plan, n_heads, decode_latent_blocks(n_heads), scale * LOG2_E, 1.0f};
    int rc;

    if (plan->n_decodes == 0 && plan->n_tiles == 0)
        return 0;
    if (kv->type == K_E4M3) {
        args.scale *= kv->k_scale;
        args.out_scale = kv->v_scale;
    }
    rc =
        kv->type == K_E4M3 ? latent_launch<true>(args, stream) : latent_launch<false>(args, stream);
    if (rc == 0 && plan->n_decodes > 0)
        rc = K_LAUNCH_EARLY(sm90_latent_merge_kernel, dim3(DECODE_SMS, MERGERS), 128, stream, args);
    return rc;
}
