/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows with packed matrices (packed.h): y [n][n_out] = x [n][n_in] * transpose(w).
 *
 *   warp 8 (one lane)             ring in shared memory            warpgroups 0, 1
 *
 *    TMA copies of x,         -->  [x: 2 slabs][records of w]  -->  codes -> registers, bfloat16:
 *    bulk copies of records        4 or 5 stages, full / empty      the next 64 columns are widened
 *        ^                              |         barriers          while wgmma runs with these
 *        '------------------------------'                                 |
 *                                                                         v
 *    warp 9: announces partial sums of                             sums of other CTAs, scale, bias
 *    tiles that several CTAs share                                       -> y
 *
 * Split. A tile is 256 rows of w x 96 or 128 rows of x; a warpgroup has 128 rows of w, the first
 * operand of wgmma, in two blocks of 64. So a code is widened once for all rows of x of a tile,
 * and a stage of x is read from L2 for 256 rows of w. A CTA keeps to one tile of x; CTAs of the
 * same place in all tiles of x are a group. The steps of all tiles of w, of 128 columns each, are
 * a sequence that is cut into equal runs, one for each group: a CTA may begin and end within a
 * tile.
 *
 * Tiles that are shared. A CTA whose run goes on after a tile writes its sums of it to memory.
 * Those whose runs end in a tile divide its rows of x: each writes the sums of the others' part,
 * waits, and adds those of its own, which the lane that loads has copied to where the stages were.
 * No warp waits before its run has ended. The order of sums is fixed.
 *
 * Bytes. Codes once for each tile of x that does not find them in L2; x once for each 256 rows of
 * w.
 *
 * A weight is rounded to bfloat16 once, from the exact product of code and scale. With scales of
 * bfloat16 and no zero points that is one fused operation for two weights. */
#include "kernels/packed_many.h"
#include "kernels/sm90_product_codes.cuh"

#define THREADS    384 /* two warpgroups that multiply, one whose first warp loads */
#define WORKERS    256
#define WARPS      (WORKERS / 32)
#define BLOCKS     2 /* of 64 rows of w, of a warpgroup */
#define ROWS       (2 * BLOCKS * 64)
#define NARROW     96 /* rows of x of a tile */
#define WIDE       128
#define ROWS_MAX   2048 /* of x at a time, so that they stay in the L2 cache */
#define DEPTH_MAX  8
#define BARRIERS   (2 * DEPTH_MAX * 8 + 8)
#define SCRATCH    (4 * PIECE) /* two of each warpgroup */
#define PITCH      (BLOCKS * 128 + 16)
#define PIECE      (16 * PITCH)              /* results of 16 rows of x, padded */
#define X_BYTES(N) (2 * (N)*128)             /* of a stage: two slabs */
#define CHUNK_SUMS (WARPS * 2 * BLOCKS * 32) /* of 16 rows of x, in fours */
#define GIVEN      40                        /* registers */
#define TAKEN      232

static_assert(128 * GIVEN + WORKERS * TAKEN <= THREADS * (65536 / THREADS / 8 * 8), "registers");

enum bulk_codes {
    BULK_WHOLE, /* scales of bfloat16 for each 128 columns, no zero points */
    BULK_CODES,
    BULK_FLOATS,
};

/* The launch. Tiles are ROWS of w x N rows of x. A CTA has one tile of rows of x, and its
 * group a run of units: steps of 128 columns, tile of w after tile of w. */
struct bulk_args {
    const char *w;
    const float *rows; /* scales of rows, of floats */
    const k_bf16 *bias;
    void *y;
    unsigned *counters; /* [CTA] */
    float4 *parts;      /* bulk_sums_at() */
    int n, n_out;
    int n_steps; /* records of a row */
    int record_bytes, w_bytes, depth;
    int n_tiles;           /* of x */
    int n_units, n_groups; /* of all groups */
    code_form form;
    bool y_is_float;
};

/* A CTA's place. */
struct bulk_place {
    int group, x_tile;
};

/* A part of a run: steps first .. last - 1 of a tile of w; the last one of the run. */
struct bulk_part {
    int tile, first, last;
    bool is_last;
};

static __device__ __forceinline__ int bulk_begin(const bulk_args &a, int group)
{
    return (int)((long)a.n_units * group / a.n_groups);
}

/* The group that has a unit. */
static __device__ __forceinline__ int bulk_group_of(const bulk_args &a, int unit)
{
    return (int)((((long)unit + 1) * a.n_groups - 1) / a.n_units);
}

static __device__ __forceinline__ bulk_part bulk_part_at(const bulk_args &a, int unit, int end)
{
    bulk_part p;

    p.tile = unit / a.n_steps;
    p.first = unit - p.tile * a.n_steps;
    p.last = min(a.n_steps, p.first + end - unit);
    p.is_last = unit + p.last - p.first == end;
    return p;
}

/* Offsets in shared memory: stages of x, stages of w, scratch, barriers. */
template <int N> struct bulk_layout {
    uint32_t x, w, scratch, full, empty, sums;

    __device__ __forceinline__ bulk_layout(const char *shared, const bulk_args &a)
    {
        x = shared_addr(shared);
        w = x + (uint32_t)(a.depth * X_BYTES(N));
        scratch = w + (uint32_t)(a.depth * a.w_bytes);
        full = scratch + SCRATCH;
        empty = full + DEPTH_MAX * 8;
        sums = empty + DEPTH_MAX * 8;
    }
};

static __device__ __forceinline__ void bulk_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* --- tiles that several CTAs share ------------------------------------------------------------ */

/* The groups that share a tile: first .. last. For `n_ending` of them, all but at most the last, it
 * is the last tile of their runs. Those finish it together, each some chunks of 16 columns. */
struct bulk_sharers {
    int first, n, n_ending;
};

static __device__ __forceinline__ bulk_sharers bulk_sharers_of(const bulk_args &a, int tile)
{
    bulk_sharers s;
    int last = bulk_group_of(a, (tile + 1) * a.n_steps - 1);

    s.first = bulk_group_of(a, tile * a.n_steps);
    s.n = last - s.first + 1;
    s.n_ending = bulk_begin(a, last + 1) <= (tile + 1) * a.n_steps ? s.n : s.n - 1;
    return s;
}

/* The chunks that a group finishes, as bits. */
template <int N>
static __device__ __forceinline__ unsigned bulk_chunks_of(const bulk_sharers &s, int group)
{
    unsigned mask = 0;

#pragma unroll
    for (int c = 0; c < N / 16; c++)
        mask |= (unsigned)(s.first + c * s.n_ending / (N / 16) == group) << c;
    return mask;
}

static __device__ __forceinline__ int bulk_cta(const bulk_args &a, int group, const bulk_place &own)
{
    return group * a.n_tiles + own.x_tile;
}

/* What the sharers of a tile count. */
static __device__ __forceinline__ unsigned *bulk_counter(const bulk_args &a, const bulk_sharers &s,
                                                         const bulk_place &own)
{
    return a.counters + bulk_cta(a, s.first, own);
}

/* The partial sums of a CTA's first or last tile, of a chunk: [WARPS][2 * BLOCKS][32], a lane's
 * four floats together. */
template <int N>
static __device__ __forceinline__ float4 *bulk_sums_at(const bulk_args &a, int cta, bool is_last,
                                                       int chunk)
{
    return a.parts + ((cta * 2 + is_last) * (N / 16) + chunk) * CHUNK_SUMS;
}

/* By another warp: announce the sums that this CTA has written. */
static __device__ __forceinline__ void bulk_announce(const bulk_args &a, const bulk_place &own)
{
    int unit = bulk_begin(a, own.group), end = bulk_begin(a, own.group + 1);

    while (unit < end) {
        const bulk_part part = bulk_part_at(a, unit, end);

        unit += part.last - part.first;
        if (part.last - part.first == a.n_steps)
            continue;
        unsigned *counter = bulk_counter(a, bulk_sharers_of(a, part.tile), own);

        named_sync(part.is_last ? 2 : 1, WORKERS + 32);
        if (leads())
            asm volatile("fence.acq_rel.gpu;\n"
                         "red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter)
                         : "memory");
        __syncwarp();
    }
}

/* Wait until all sharers have announced their sums. The last one that has seen it clears the
 * counter. */
static __device__ __forceinline__ void bulk_wait_for(unsigned *counter, int n, int n_finishing)
{
    unsigned now;

    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while ((int)(now & 0xffff) != n);
    if ((int)(atomicAdd(counter, 0x10000U) >> 16) == n_finishing - 1)
        *counter = 0;
}

/* By the lane that loads, at the end, when the stages are free: the sums of the others of the
 * chunks that this CTA finishes, one after another, where the stages were. */
template <int N>
static __device__ __forceinline__ void bulk_fetch_sums(const bulk_layout<N> &at, const bulk_args &a,
                                                       const bulk_place &own, int tile)
{
    const bulk_sharers s = bulk_sharers_of(a, tile);
    unsigned mask = bulk_chunks_of<N>(s, own.group);
    int bytes = __popc(mask) * CHUNK_SUMS * 16, first = __ffs((int)mask) - 1;
    uint32_t to = at.x;

    if (mask == 0)
        return;
    bulk_wait_for(bulk_counter(a, s, own), s.n, min(s.n_ending, N / 16));
    asm volatile("fence.proxy.async;" ::: "memory");
    bulk_expect(at.sums, (uint32_t)((s.n - 1) * bytes));
    for (int i = 0; i < s.n; i++) {
        if (s.first + i == own.group)
            continue;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to),
                     "l"(bulk_sums_at<N>(a, bulk_cta(a, s.first + i, own), i < s.n_ending, first)),
                     "r"(bytes), "r"(at.sums)
                     : "memory");
        to += (uint32_t)bytes;
    }
}

/* By the warps that multiply: exchange the sums of a tile. Returns the chunks that this CTA
 * finishes. */
template <int N>
static __device__ __forceinline__ unsigned bulk_exchange(float (&acc)[BLOCKS][N / 2],
                                                         const bulk_layout<N> &at,
                                                         const bulk_args &a, const bulk_part &part,
                                                         const bulk_place &own, int warp)
{
    const int CHUNKS = N / 16;
    const bulk_sharers s = bulk_sharers_of(a, part.tile);
    int place = warp * 2 * BLOCKS * 32 + (int)threadIdx.x % 32;
    unsigned mask = part.is_last ? bulk_chunks_of<N>(s, own.group) : 0;
    float4 *to = bulk_sums_at<N>(a, bulk_cta(a, own.group, own), part.is_last, 0) + place;
    uint32_t from = at.x + (uint32_t)place * 16;

#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        if ((mask >> c & 1) != 0)
            continue;
#pragma unroll
        for (int j = 0; j < 2 * BLOCKS; j++) {
            const float *f = &acc[j / 2][8 * c + j % 2 * 4];

            __stcg(to + c * CHUNK_SUMS + j * 32, make_float4(f[0], f[1], f[2], f[3]));
        }
    }
    named_arrive(part.is_last ? 2 : 1, WORKERS + 32);
    if (mask == 0)
        return 0;
    barrier_wait(at.sums, 0);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        if ((mask >> c & 1) == 0)
            continue;
#pragma unroll 1
        for (int i = 0; i < s.n - 1; i++) {
#pragma unroll
            for (int j = 0; j < 2 * BLOCKS; j++) {
                uint4 more = codes_load_words(
                    from + (uint32_t)(i * __popc(mask) * CHUNK_SUMS + j * 32) * 16);
                float *f = &acc[j / 2][8 * c + j % 2 * 4];

                f[0] += __uint_as_float(more.x), f[1] += __uint_as_float(more.y);
                f[2] += __uint_as_float(more.z), f[3] += __uint_as_float(more.w);
            }
        }
        from += (uint32_t)CHUNK_SUMS * 16;
    }
    return mask;
}

/* --- the producer ----------------------------------------------------------------------------- */

/* Records of a step of all strips of a tile that there are. */
static __device__ __forceinline__ void bulk_load_w(uint32_t to, const bulk_args &a, int row,
                                                   int n_strips, int step, uint32_t bar)
{
    size_t strip_bytes = (size_t)a.n_steps * (size_t)a.record_bytes;
    const char *from =
        a.w + (size_t)(row / K_PACKED_ROWS) * strip_bytes + (size_t)step * (size_t)a.record_bytes;

#pragma unroll 1
    for (int i = 0; i < n_strips; i++, to += (uint32_t)a.record_bytes, from += strip_bytes)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(a.record_bytes), "r"(bar)
                     : "memory");
}

/* By one lane: all stages. Those that fit are begun with w before the previous launch has ended. */
template <int N>
static __device__ __forceinline__ void bulk_produce(char *shared, const bulk_layout<N> &at,
                                                    const CUtensorMap *map, const bulk_args &a,
                                                    const bulk_place &own)
{
    int begin = bulk_begin(a, own.group), end = bulk_begin(a, own.group + 1);
    int ahead = min(end - begin, a.depth), stage = 0;
    int tile = begin / a.n_steps, step = begin - tile * a.n_steps;
    uint32_t parity = 1;

    tensor_prefetch(map);
    for (int i = 0; i < end - begin + ahead; i++) {
        /* the first round is in two parts, w and x */
        bool is_first = i < ahead, only_x = !is_first && i < 2 * ahead;
        int row = tile * ROWS;
        int n_strips = min(ROWS, max(0, a.n_out - row)) / K_PACKED_ROWS;
        uint32_t full = at.full + (uint32_t)stage * 8;

        if (i == ahead) {
            tile = begin / a.n_steps, step = begin - tile * a.n_steps;
            row = tile * ROWS;
            n_strips = min(ROWS, max(0, a.n_out - row)) / K_PACKED_ROWS;
            stage = 0, full = at.full;
            asm volatile("griddepcontrol.wait;" ::: "memory");
            asm volatile("griddepcontrol.launch_dependents;");
        }
        if (!only_x) {
            if (!is_first)
                barrier_wait(at.empty + (uint32_t)stage * 8, parity);
            bulk_expect(full, (uint32_t)(n_strips * a.record_bytes + X_BYTES(N)));
            bulk_load_w(at.w + (uint32_t)(stage * a.w_bytes), a, row, n_strips, step, full);
        }
        if (!is_first)
            tensor_load_3d(shared + stage * X_BYTES(N), map, (uint64_t *)(shared + (full - at.x)),
                           0, own.x_tile * N, 2 * step);
        if (++stage == a.depth) {
            stage = 0;
            if (!is_first)
                parity ^= 1;
        }
        if (++step == a.n_steps)
            step = 0, tile++;
    }
    tile = (end - 1) / a.n_steps;
    if (begin <= tile * a.n_steps && end == (tile + 1) * a.n_steps)
        return;
    for (int i = 0; i < a.depth; i++) {
        barrier_wait(at.empty + (uint32_t)stage * 8, parity);
        if (++stage == a.depth)
            stage = 0, parity ^= 1;
    }
    bulk_fetch_sums<N>(at, a, own, tile);
}

/* --- codes to operands ------------------------------------------------------------------------ */

/* A lane's numbers of a group of columns, twice in a word, for rows g and g + 8. Of BULK_WHOLE
 * the factor and the addend that make a code the weight times 2^-32; else -zero / 64, and 64 times
 * the scale as a sum of two. */
struct bulk_numbers {
    uint32_t less[2], high[2], low[2];
};

static __device__ __forceinline__ void bulk_whole_numbers(bulk_numbers &numbers, uint32_t record)
{
    const uint32_t first = 0x72007200U, second = 0x70007000U, less = 0xb100b100U;
    uint32_t scales = record + PACKED_CODE_BYTES + threadIdx.x % 32 / 4 * 2;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t scale = codes_load_shared_16(scales + i * 16) * 0x00010001U;

        numbers.high[i] = mxfp4_times(scale, i == 0 ? first : second); /* 2^101, 2^97 */
        numbers.less[i] = mxfp4_times(scale, less);                    /* -8 * 2^-32 */
    }
}

static __device__ __forceinline__ void bulk_load_numbers(bulk_numbers &numbers, uint32_t record,
                                                         int group, const code_form &form)
{
    code_numbers n;

    codes_load_numbers<4>(n, record, group, form);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float high = __bfloat162float(__float2bfloat16(n.scale[i]));

        numbers.less[i] = n.less[i];
        numbers.high[i] = pack_bf16(high, high);
        numbers.low[i] = pack_bf16(n.scale[i] - high, n.scale[i] - high);
    }
}

/* Widen the tile-th 64 columns of a record to operands of four products. record: its address; a
 * tile's numbers are kept for the next one where they are the same. */
template <bulk_codes FORM>
static __device__ __forceinline__ void bulk_widen(uint32_t (&a)[4][4], bulk_numbers &numbers,
                                                  const uint4 &words, uint32_t record, int tile,
                                                  const code_form &form)
{
    const uint32_t codes[4] = {words.x, words.y, words.z, words.w};

    if (FORM == BULK_FLOATS) {
        codes_widen_floats(a, words, record, tile, form);
        return;
    }
    if (FORM == BULK_WHOLE && tile == 0)
        bulk_whole_numbers(numbers, record);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t upper = codes[i] >> 8;

        if (FORM == BULK_WHOLE) {
            a[i][0] = codes_fused(codes[i] & CODE_LOW, numbers.high[0], numbers.less[0]);
            a[i][1] = codes_fused(codes[i] & CODE_HIGH, numbers.high[1], numbers.less[1]);
            a[i][2] = codes_fused(upper & CODE_LOW, numbers.high[0], numbers.less[0]);
            a[i][3] = codes_fused(upper & CODE_HIGH, numbers.high[1], numbers.less[1]);
            continue;
        }
        if (i == 0 || (i == 2 && form.groups == 4))
            bulk_load_numbers(numbers, record, (tile * 2 + i / 2) * form.groups / 4, form);
        codes_operand(a[i], codes[i], numbers.less);
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[i][r] =
                codes_fused(a[i][r], numbers.high[r % 2], mxfp4_times(a[i][r], numbers.low[r % 2]));
    }
}

/* --- the mainloop ----------------------------------------------------------------------------- */

/* The stages as a lane reads them; constants but for the place in the ring. Addresses are in shared
 * memory. */
struct bulk_ring {
    uint32_t x, full, empty;       /* the first stage of x, the first barriers */
    uint32_t records;              /* the warp's first record in the first stage */
    uint32_t w_bytes, block_bytes; /* from a stage to the next, from a block of rows to the next */
    uint32_t x_rows;               /* upper half of the descriptors of x */
    int depth, stage;
    uint32_t parity;
    code_form form;
};

template <int N>
static __device__ __forceinline__ bulk_ring bulk_ring_of(const bulk_layout<N> &at,
                                                         const bulk_args &a, int warp)
{
    int strip = warp / 4 * BLOCKS * 4 + warp % 4;

    return {at.x,
            at.full,
            at.empty,
            steady(at.w + (uint32_t)(strip * a.record_bytes)),
            steady((uint32_t)a.w_bytes),
            steady(4 * (uint32_t)a.record_bytes),
            (uint32_t)(operand(NULL, 1024, 0) >> 32),
            steady(a.depth),
            0,
            0,
            codes_form_of({a.w, a.record_bytes, a.form.groups, a.form.has_zeros, a.form.is_half})};
}

static __device__ __forceinline__ void bulk_release(uint32_t empty)
{
    if (leads())
        barrier_arrive(empty);
}

/* Begin the products of 64 columns with a block of rows. x: in units of 16 bytes. */
template <int N>
static __device__ __forceinline__ void bulk_begin_products(float (&acc)[N / 2], uint32_t (&a)[4][4],
                                                           uint32_t x, uint32_t x_rows)
{
    keep(a), keep(acc);
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_rows(acc, a[k], (uint64_t)x_rows << 32 | (x + (uint32_t)(2 * k)), 1);
    warpgroup_commit();
}

/* Multiply n_steps stages. At each time one group of products runs while the next operands are
 * widened; ptxas would make wgmma wait if that stood before the products in the loop. */
template <int N, bulk_codes FORM>
static __device__ __forceinline__ void bulk_multiply(float (&acc)[BLOCKS][N / 2], bulk_ring &r,
                                                     int n_steps)
{
    uint32_t a[2][4][4], w = r.records + (uint32_t)r.stage * r.w_bytes;
    uint32_t lane_at = threadIdx.x % 32 * 16;
    int before = r.stage;
    bulk_numbers numbers;

#pragma unroll
    for (int i = 0; i < BLOCKS * N / 2; i++)
        acc[i / (N / 2)][i % (N / 2)] = 0.0f;
    barrier_wait(r.full + (uint32_t)r.stage * 8, r.parity);
    bulk_widen<FORM>(a[0], numbers, codes_load_words(w + lane_at), w, 0, r.form);
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        uint32_t x = (r.x >> 4) + (uint32_t)(r.stage * (X_BYTES(N) / 16));

#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) {
            const int then = (i + 1) % (2 * BLOCKS);

            bulk_begin_products<N>(acc[i / 2], a[i % 2], x + (uint32_t)(i % 2 * (N * 128 / 16)),
                                   r.x_rows);
            warpgroup_wait<1>();
            if (i == 0 && step > 0)
                bulk_release(r.empty + (uint32_t)before * 8);
            if (then == 0) {
                before = r.stage;
                if (++r.stage == r.depth)
                    r.stage = 0, r.parity ^= 1;
                if (step + 1 == n_steps)
                    break;
                barrier_wait(r.full + (uint32_t)r.stage * 8, r.parity);
                w = r.records + (uint32_t)r.stage * r.w_bytes;
            }
            uint32_t record = w + (uint32_t)(then / 2) * r.block_bytes;

            bulk_widen<FORM>(
                a[then % 2], numbers,
                codes_load_words(record + lane_at + then % 2 * (PACKED_CODE_BYTES / 2)), record,
                then % 2, r.form);
        }
    }
    warpgroup_wait<0>();
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        keep(acc[i]);
    bulk_release(r.empty + (uint32_t)before * 8);
}

/* --- sums to results -------------------------------------------------------------------------- */

/* Put 16 rows of w x 16 of x of a warp into its place in shared memory [16][PITCH]. */
static __device__ __forceinline__ void bulk_stage_piece(const float *f, uint32_t to)
{
    int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;

    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + (uint32_t)(row * PITCH + half * 16)),
                 "r"(pack_bf16(f[0], f[1])), "r"(pack_bf16(f[2], f[3])), "r"(pack_bf16(f[4], f[5])),
                 "r"(pack_bf16(f[6], f[7]))
                 : "memory");
}

/* Copy a warpgroup's piece, 16 rows of BLOCKS * 64 results, to y. */
static __device__ __forceinline__ void bulk_copy_piece(uint32_t from, k_bf16 *y, int n_out,
                                                       int n_rows, int n_cols)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        int unit = i * 128 + (int)threadIdx.x % 128, row = unit / (BLOCKS * 8),
            col = unit % (BLOCKS * 8) * 8;
        uint4 words = codes_load_words(from + (uint32_t)(row * PITCH + col * 2));

        if (row < n_rows && col < n_cols)
            *(uint4 *)(y + (size_t)row * (size_t)n_out + col) = words;
    }
}

static __device__ __forceinline__ void bulk_store_floats(const float *f, float *y, int n_out,
                                                         int n_rows)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = i / 4 * 8 + lane % 4 * 2 + i % 2;

        if (row < n_rows)
            y[(size_t)row * (size_t)n_out + lane / 4 + i / 2 % 2 * 8] = f[i];
    }
}

/* Scales and biases of a lane's rows g and g + 8 of each block. */
struct bulk_ends {
    float scale[BLOCKS][2], bias[BLOCKS][2];
};

template <bulk_codes FORM>
static __device__ __forceinline__ void bulk_load_ends(bulk_ends &e, const bulk_args &a, int first)
{
    int g = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = min(g + b * 64 + 8 * i, a.n_out - 1);

            e.scale[b][i] = FORM == BULK_WHOLE ? 0x1p32f : FORM == BULK_CODES ? 1.0f : a.rows[row];
            e.bias[b][i] = a.bias != NULL ? load_bf16(a.bias + row) : 0.0f;
        }
    }
}

/* A warpgroup's sums, complete, of the chunks of 16 columns in the mask. first: of the warpgroup's
 * rows of w. */
template <int N, bulk_codes FORM, bool IS_FLOAT>
static __device__ __forceinline__ void bulk_finish(float (&acc)[BLOCKS][N / 2], const bulk_args &a,
                                                   int first, int x_first, int warp,
                                                   uint32_t scratch, unsigned mask, int &turn)
{
    bulk_ends e;

    bulk_load_ends<FORM>(e, a, first);
#pragma unroll
    for (int c = 0; c < N / 16; c++) {
        int x_row = x_first + c * 16;
        uint32_t piece = scratch + (uint32_t)(warp / 4 * 2 * PIECE + turn * PIECE);
        size_t to = (size_t)x_row * (size_t)a.n_out + (size_t)first;

        if (x_row >= a.n || (mask >> c & 1) == 0)
            continue;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            int row = b * 64 + warp % 4 * 16;
            float f[8];

#pragma unroll
            for (int i = 0; i < 8; i++)
                f[i] = __fmaf_rn(acc[b][8 * c + i], e.scale[b][i / 2 % 2], e.bias[b][i / 2 % 2]);
            if (!IS_FLOAT)
                bulk_stage_piece(f, piece + (uint32_t)row * 2);
            else if (first + row < a.n_out)
                bulk_store_floats(f, (float *)a.y + to + row, a.n_out, a.n - x_row);
        }
        if (!IS_FLOAT) {
            named_sync(4 + warp / 4, 128);
            bulk_copy_piece(piece, (k_bf16 *)a.y + to, a.n_out, a.n - x_row, a.n_out - first);
            turn ^= 1;
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------------- */

template <int N, bulk_codes FORM, bool IS_FLOAT>
static __device__ __forceinline__ void bulk_consume(const bulk_layout<N> &at, const bulk_args &a,
                                                    const bulk_place &own, int warp)
{
    int unit = bulk_begin(a, own.group), end = bulk_begin(a, own.group + 1), turn = 0;
    bulk_ring r = bulk_ring_of<N>(at, a, warp);
    float acc[BLOCKS][N / 2];

    while (unit < end) {
        const bulk_part part = bulk_part_at(a, unit, end);

        unsigned mask = ~0U;

        bulk_multiply<N, FORM>(acc, r, part.last - part.first);
        if (part.last - part.first < a.n_steps)
            mask = bulk_exchange<N>(acc, at, a, part, own, warp);
        bulk_finish<N, FORM, IS_FLOAT>(acc, a, part.tile * ROWS + warp / 4 * BLOCKS * 64,
                                       own.x_tile * N, warp, at.scratch, mask, turn);
        unit += part.last - part.first;
    }
}

template <int N, bulk_codes FORM, bool IS_FLOAT>
static __global__ void __launch_bounds__(THREADS, 1)
    bulk_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ bulk_args a)
{
    extern __shared__ __align__(1024) char shared[];
    const bulk_layout<N> at(shared, a);
    int warp = warp_number();
    const bulk_place own = {(int)blockIdx.x / a.n_tiles, (int)blockIdx.x % a.n_tiles};

    if (warp == WARPS && leads()) {
        uint64_t *bars = (uint64_t *)(shared + (at.full - at.x));

        for (int i = 0; i < a.depth; i++) {
            barrier_init(bars + i, 1);
            barrier_init(bars + DEPTH_MAX + i, WARPS);
        }
        barrier_init(bars + 2 * DEPTH_MAX, 1);
        barrier_init_done();
        fence_async();
    }
    __syncthreads();
    if (warp >= WARPS) {
        registers_give<GIVEN>();
        if (warp == WARPS && leads())
            bulk_produce<N>(shared, at, &x_map, a, own);
        __syncwarp();
        if (warp == WARPS + 1) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            bulk_announce(a, own);
        }
    } else {
        registers_take<TAKEN>();
        asm volatile("griddepcontrol.wait;" ::: "memory");
        bulk_consume<N, FORM, IS_FLOAT>(at, a, own, warp);
    }
}

/* --- the host's side -------------------------------------------------------------------------- */

template <int N, bulk_codes FORM, bool IS_FLOAT>
static int bulk_launch_out(const CUtensorMap &map, const bulk_args &a, int smem, k_stream stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute(bulk_kernel<N, FORM, IS_FLOAT>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, smem) != cudaSuccess)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(a.n_groups * a.n_tiles));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)smem;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, bulk_kernel<N, FORM, IS_FLOAT>, map, a) == cudaSuccess ? 0
                                                                                              : -1;
}

template <int N, bulk_codes FORM>
static int bulk_launch(const CUtensorMap &map, const bulk_args &a, int smem, k_stream stream)
{
    return a.y_is_float ? bulk_launch_out<N, FORM, true>(map, a, smem, stream)
                        : bulk_launch_out<N, FORM, false>(map, a, smem, stream);
}

/* Whether the sums of all sharers of a tile fit where the stages are: up to six groups share one,
 * or up to eight that have equal parts. */
static bool bulk_sums_fit(const bulk_args &a, int n_groups)
{
    int n_tiles = a.n_units / a.n_steps;

    return n_groups <= a.n_units && (a.n_units / n_groups >= (a.n_steps + 4) / 5 ||
                                     (n_groups % n_tiles == 0 && n_groups / n_tiles <= 8));
}

/* Units of the longest run, and what the exchange costs, as units. */
static int bulk_cost(const bulk_args &a, int n_groups)
{
    int units = (a.n_units + n_groups - 1) / n_groups;
    bool is_shared = a.n_units % n_groups != 0 || a.n_units / n_groups % a.n_steps != 0;

    return units + (is_shared ? 2 : 0);
}

/* The number of groups with the least cost. */
static int bulk_choose_groups(const bulk_args &a, int most)
{
    int best = 1;

    for (int n = 2; n <= most; n++) {
        if (bulk_sums_fit(a, n) && bulk_cost(a, n) <= bulk_cost(a, best))
            best = n;
    }
    return best;
}

/* The N of the tiles is a template argument; rows of x beyond n are read as zeros. */
template <int N> static int bulk_choose(bulk_args &a, const struct k_product *p, k_stream stream)
{
    const struct k_matrix *w = p->w;
    const struct packed_shape s = packed_shape_of(w);
    int stage = a.w_bytes + X_BYTES(N), rest = SCRATCH + BARRIERS;
    cuuint64_t sizes[3] = {CUT_SLAB_COLS, (cuuint64_t)a.n, (cuuint64_t)(w->n_in / CUT_SLAB_COLS)};
    cuuint64_t strides[2] = {(cuuint64_t)w->n_in * 2, CUT_SLAB};
    cuuint32_t box[3] = {CUT_SLAB_COLS, N, 2};
    CUtensorMap map;

    a.depth = (CUT_SMEM_MAX - rest) / stage;
    a.depth = a.depth > DEPTH_MAX ? DEPTH_MAX : a.depth;
    if (encode_boxes(&map, false, (void *)p->x, 3, sizes, strides, box) != 0)
        return -1;
    if (s.is_float)
        return bulk_launch<N, BULK_FLOATS>(map, a, a.depth * stage + rest, stream);
    if (s.group == K_PACKED_COLS && !s.has_zeros && !s.is_half)
        return bulk_launch<N, BULK_WHOLE>(map, a, a.depth * stage + rest, stream);
    return bulk_launch<N, BULK_CODES>(map, a, a.depth * stage + rest, stream);
}

static int bulk_run(const struct k_product *p, int n, void *work, int n_sms, k_stream stream)
{
    const struct packed_shape s = packed_shape_of(p->w);
    bulk_args a = {};

    a.w = (const char *)p->w->data;
    a.rows = (const float *)p->w->scales;
    a.bias = (const k_bf16 *)p->bias;
    a.y = p->y;
    a.counters = (unsigned *)work;
    a.parts = (float4 *)((char *)work + K_MANY_COUNTERS);
    a.n = n;
    a.n_out = p->w->n_out;
    a.n_steps = s.n_records;
    a.record_bytes = s.record_bytes;
    a.w_bytes = ROWS / K_PACKED_ROWS * s.record_bytes;
    a.n_tiles = (n + WIDE - 1) / WIDE;
    a.n_units = (a.n_out + ROWS - 1) / ROWS * a.n_steps;
    a.n_groups = bulk_choose_groups(a, n_sms / a.n_tiles);
    a.form = {K_PACKED_COLS / s.group, s.has_zeros, s.is_half};
    a.y_is_float = p->kind == K_PRODUCT_FLOAT;
    if ((n + a.n_tiles - 1) / a.n_tiles <= NARROW)
        return bulk_choose<NARROW>(a, p, stream);
    return bulk_choose<WIDE>(a, p, stream);
}

int k_multiply_many_sm90(const struct k_product *p, int n, void *work, int n_sms, k_stream stream)
{
    size_t y_bytes = (size_t)p->w->n_out * (p->kind == K_PRODUCT_FLOAT ? 4 : 2);
    int rc = 0;

    for (int row = 0; row < n && rc == 0; row += ROWS_MAX) {
        struct k_product some = *p;

        some.x = (const k_bf16 *)p->x + (size_t)row * (size_t)p->w->n_in;
        some.y = (char *)p->y + (size_t)row * y_bytes;
        rc = bulk_run(&some, n - row < ROWS_MAX ? n - row : ROWS_MAX, work, n_sms, stream);
    }
    return rc;
}
