/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of chunks for Hopper, the producers: the warps that load queries, keys and values, and
 * those that convert keys and values of e4m3. sm90_attn_chunk.cu has the consumers, and a picture
 * of both.
 *
 * Shared memory: q [128][HD], rings of STAGES blocks of keys and of values, barriers; all in slabs
 * of 8 rows of 128 bytes with 128-byte swizzle. The slabs of a block are in the order [row /
 * 8][element / 64], so that one copy loads all of a page's rows of one head. A block needs as many
 * copies as it has pages; pages without a key of the sequence are not loaded.
 *
 * Each stage has two barriers: full, which the copies' bytes complete, and empty, on which each
 * consumer warp arrives. */
#ifndef QUIRE_KERNELS_SM90_ATTN_LOAD_CUH
#define QUIRE_KERNELS_SM90_ATTN_LOAD_CUH

#include "kernels/e4m3.cuh"
#include "kernels/pages.cuh"
#include "kernels/sm90.cuh"

#define ROWS      K_TILE_ROWS
#define CONSUMERS 2    /* warpgroups */
#define BATCH     4    /* boxes that are requested in a row */
#define SLAB      1024 /* bytes: 8 rows of 128 */

static_assert(ROWS == CONSUMERS * 64, "a wgmma has 64 rows");

struct chunk_args {
    k_bf16 *out;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    int n_heads;
    float scale;        /* factor of scores, times log2(e) */
    float out_scale;    /* factor of the output */
    uint32_t window;    /* keys that a row attends to; 2^31: all */
    int heads_together; /* kv heads whose tiles are computed alternately */
    int page_shift;     /* log2 of page_tokens */
    int boxes;          /* copies per block */
    int box_rows;       /* rows per copy, a power of 2 */
    int box_shift;      /* log2 of that */
    int layer_slabs;    /* from a page's start to the layer, in slabs (8 tokens) */
};

enum { KEYS, VALUES };

/* Constants of a head size and a type of pages. */
template <int HEAD_DIM, bool E4M3> struct shape {
    static constexpr int HD = HEAD_DIM;
    static constexpr int BLOCK = HD > 128 ? 64 : 128; /* keys per block */
    static constexpr int STAGES = E4M3 || HD > 128 ? 2 : 3;
    static constexpr int COLUMNS = (HD + 63) / 64; /* slabs side by side */
    /* Head sizes of whole slabs: one copy loads all columns of a page. Others need a copy per
     * column, filled up with zeros, and have their columns one after another. */
    static constexpr bool WHOLE = HD % 64 == 0;
    static constexpr int ROWS_APART = WHOLE ? COLUMNS * SLAB : SLAB; /* from 8 rows to the next */
    static constexpr int COLUMNS_APART = WHOLE ? SLAB : BLOCK / 8 * SLAB;
    static constexpr int BLOCK_BYTES = BLOCK / 8 * COLUMNS * SLAB;
    static constexpr int Q_COLUMN = ROWS / 8 * SLAB;
    /* The second product is computed in parts of PART columns of the output. */
    static constexpr int PARTS = HD > 128 ? 2 : 1;
    static constexpr int PART = HD / PARTS;
    /* Pages of e4m3 arrive in a ring of their own, [BLOCK][HD] bytes, and are converted from
     * there. */
    static constexpr bool RAW = E4M3, RAW_KEYS = E4M3;
    static constexpr int RAW_KINDS = 2;
    static constexpr int RAW_STAGES = HD > 128 ? 1 : 2;
    static constexpr int RAW_BYTES = E4M3 ? BLOCK * HD : 16;
    /* Of the ring that copies fill. */
    static constexpr int LOAD_STAGES = E4M3 ? RAW_STAGES : STAGES, KEY_STAGES = LOAD_STAGES;
    static constexpr int LOAD_BYTES = E4M3 ? 8 * HD : COLUMNS * SLAB; /* per 8 rows */
    static constexpr int THREADS = 128 * (CONSUMERS + (E4M3 ? 2 : 1));
    /* Registers per thread, of consumers and of others. The launch's registers are redistributed; a
     * request for more than there are would wait forever. */
    static constexpr int MANY_REGISTERS = E4M3 ? 208 : 224;
    static constexpr int FEW_REGISTERS = E4M3 ? 48 : 56;
    static_assert(128 * CONSUMERS * MANY_REGISTERS + (THREADS - 128 * CONSUMERS) * FEW_REGISTERS <=
                      THREADS * (65536 / THREADS / 8 * 8),
                  "no more registers than a launch has");
    /* Queries stay in registers if there is room. */
    static constexpr bool HELD = E4M3 ? HD < 128 : HD <= 128;
};

/* The same of products of e4m3 (sm90_attn_fp8.cu): keys are used as they arrive, a row of 128 bytes
 * each; values arrive so too, and are transposed into rows of 128 keys. */
struct shape_fp8 {
    static constexpr int HD = 128, COLUMNS = 2, PARTS = 1, PART = HD;
    static constexpr int BLOCK = K_ATTN_BLOCK, STAGES = 3;
    static constexpr bool WHOLE = true, RAW = true, RAW_KEYS = false;
    static constexpr int ROWS_APART = SLAB, COLUMNS_APART = SLAB, Q_COLUMN = ROWS / 8 * SLAB;
    static constexpr int BLOCK_BYTES = BLOCK * HD;
    static constexpr int RAW_KINDS = 1, RAW_STAGES = 3, RAW_BYTES = BLOCK * HD;
    static constexpr int LOAD_STAGES = RAW_STAGES, KEY_STAGES = STAGES, LOAD_BYTES = 8 * HD;
    static constexpr int TURNERS = 4; /* warps that transpose */
    static constexpr int THREADS = 128 * (CONSUMERS + 2);
    static constexpr int MANY_REGISTERS = 200, FEW_REGISTERS = 56;
    static_assert(BLOCK == 128 && HD == 128, "rows of 128 bytes, and swizzles of them");
};

/* A piece of work: one tile and kv head. */
struct piece {
    int token0, pos0, n_tokens; /* n_tokens 0: there is no more work */
    int kv_head, kv_len;
    int lowest;      /* the first key that one of its tokens attends to */
    int first, last; /* first and last block of keys, both inclusive */
    const int32_t *pages;
};

/* The arrays of two are for keys and for values. */
template <class S> struct chunk_shared {
    unsigned char q[S::COLUMNS * S::Q_COLUMN];
    unsigned char block[2][S::STAGES][S::BLOCK_BYTES];
    unsigned char raw[S::RAW_KINDS][S::RAW_STAGES][S::RAW_BYTES];
    uint64_t q_full, q_empty, zeroed;
    uint64_t full[2][S::STAGES], empty[2][S::STAGES];
    uint64_t raw_full[2][S::RAW_STAGES], raw_empty[2][S::RAW_STAGES];
    struct piece pieces[2]; /* alternately; guarded by q_full and q_empty */
};

/* --- the loaders ------------------------------------------------------------------------------ */

/* Pieces in the order in which they are given out: heads_together heads at a time, so that their
 * keys stay in the L2 cache; among those, the longest tiles first. */
template <class S> static __device__ struct piece load_find_piece(const chunk_args &a, int item)
{
    constexpr int BLOCK = S::BLOCK;
    int section = item / (a.plan.n_tiles * a.heads_together);
    int head0 = section * a.heads_together;
    int n_heads = min(a.heads_together, a.kv.n_kv_heads - head0);
    int tile = (item - head0 * a.plan.n_tiles) / n_heads;
    int seq = a.plan.tile_seqs[tile], start = a.plan.tile_starts[tile];
    int token0 = a.t.seq_start[seq], n_seq = a.t.seq_start[seq + 1] - token0;
    struct piece p;

    p.kv_head = head0 + (item - head0 * a.plan.n_tiles) % n_heads;
    p.kv_len = a.t.kv_len[seq];
    p.token0 = token0 + start;
    p.pos0 = p.kv_len - n_seq + start;
    p.n_tokens = min(K_TILE_TOKENS(a.n_heads / a.kv.n_kv_heads), n_seq - start);
    p.last = (p.pos0 + p.n_tokens - 1) / BLOCK;
    p.lowest = (uint32_t)p.pos0 < a.window ? 0 : p.pos0 - (int)a.window + 1;
    p.first = p.lowest / BLOCK;
    p.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
    return p;
}

/* This lane's page of a block: lane i loads the block's i-th box. Pages before the window of the
 * tile's first token may belong to other sequences, so the first visible page is loaded in their
 * place. Such keys are masked, such values zeroed. */
template <class S>
static __device__ __forceinline__ int load_page_of(const chunk_args &a, const struct piece &p,
                                                   int block)
{
    int pos = block * S::BLOCK + (int)(threadIdx.x % 32) * a.box_rows;

    if (block < p.first || (int)threadIdx.x % 32 >= a.boxes || pos >= p.kv_len)
        return 0;
    return p.pages[max(pos, p.lowest) >> a.page_shift];
}

/* The slab where the rows of a head begin in a page, or from position base on; values are further
 * heads after the keys. A page may have several blocks. */
static __device__ __forceinline__ int load_slab_of(const chunk_args &a, int head, int base)
{
    int bt = a.kv.page_tokens;

    return a.layer_slabs + head * (bt / 8) + (base & (bt - 1)) / 8;
}

/* One arrival per warp, when all its lanes have finished with the stage. */
static __device__ __forceinline__ void load_release(uint64_t *empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* Load the boxes of a block that have keys; each lane knows one page. slab: where the head's rows
 * begin in a page. Lane 0 issues BATCH boxes in a row, because a branch and a shuffle for each
 * would take longer than the products. */
template <class S>
static __device__ __forceinline__ void load_boxes(const CUtensorMap *map, const chunk_args &a,
                                                  unsigned char *to, uint64_t *full, int left,
                                                  int page, int slab)
{
    int n = min(a.boxes, (left + a.box_rows - 1) >> a.box_shift);
    int box_bytes = a.box_rows / 8 * (S::RAW ? S::LOAD_BYTES : S::ROWS_APART);

    if (threadIdx.x % 32 == 0)
        barrier_expect(full, n * a.box_rows / 8 * S::LOAD_BYTES);
#pragma unroll 1
    for (int i = 0; i < n; i += BATCH, to += BATCH * box_bytes) {
        int ids[BATCH];

#pragma unroll
        for (int j = 0; j < BATCH; j++)
            ids[j] = __shfl_sync(~0U, page, i + j);
        if (threadIdx.x % 32 != 0)
            continue;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            if (i + j >= n)
                break;
            if (S::RAW)
                tensor_load_3d(to + j * box_bytes, map, full, 0, slab * 8, ids[j]);
#pragma unroll
            for (int column = 0; column < (S::RAW ? 0 : S::WHOLE ? 1 : S::COLUMNS); column++)
                tensor_load_5d(to + j * box_bytes + column * S::COLUMNS_APART, map, full,
                               column * 64, slab, ids[j]);
        }
    }
}

/* Load one block of keys or values into a stage, or raw into the ring that is converted. */
template <class S>
static __device__ __forceinline__ void load_block(chunk_shared<S> *sh, const CUtensorMap *map,
                                                  const chunk_args &a, const struct piece &p,
                                                  int kind, int stage, uint64_t *full, int block,
                                                  int page)
{
    int base = block * S::BLOCK;
    int slab = load_slab_of(a, kind * a.kv.n_kv_heads + p.kv_head, base);

    if (kind == KEYS ? S::RAW_KEYS : S::RAW)
        load_boxes<S>(map, a, sh->raw[kind % S::RAW_KINDS][stage], full, p.kv_len - base, page,
                      slab);
    else
        load_boxes<S>(map, a, sh->block[kind][stage], full, p.kv_len - base, page, slab);
}

/* Values from position kv_len on, and those before a window, may be anything, perhaps NaN, and NaN
 * times 0 is NaN: they are zeroed before the consumers get the block. Rows first .. last - 1. */
template <class S> static __device__ void load_zero_rows(unsigned char *v, int first, int last)
{
    int lane = threadIdx.x % 32;

#pragma unroll 1
    for (int row = first + lane / 8; row < last; row += 4) {
        for (int column = 0; column < S::COLUMNS; column++)
            *(uint4 *)(v + row / 8 * S::ROWS_APART + column * S::COLUMNS_APART + row % 8 * 128 +
                       lane % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async();
}

/* One copy per column of 64 elements; the box has the heads of the group of all tokens of a
 * tile. */
template <class S>
static __device__ void load_queries(chunk_shared<S> *sh, const CUtensorMap *map,
                                    const chunk_args &a, int token0, int kv_head)
{
    int group = a.n_heads / a.kv.n_kv_heads;

    if (threadIdx.x % 32 != 0)
        return;
    barrier_expect(&sh->q_full, group * K_TILE_TOKENS(group) * S::COLUMNS * 128);
#pragma unroll
    for (int column = 0; column < S::COLUMNS; column++)
        tensor_load_3d(sh->q + column * S::Q_COLUMN, map, &sh->q_full, column * 64, kv_head * group,
                       token0);
}

/* The next item after a CTA's first one: lane 0 draws, and the last draw of a launch resets the
 * counter. */
static __device__ __forceinline__ int load_draw_item(const chunk_args &a, int n_items)
{
    int drawn = 0;

    if (threadIdx.x % 32 == 0) {
        drawn = atomicAdd(a.plan.drawn, 1);
        if (drawn == n_items - 1)
            *a.plan.drawn = 0;
    }
    return drawn + (int)gridDim.x;
}

/* Warp 0: it distributes the work, and loads queries and keys. */
template <class S>
static __device__ void load_keys(chunk_shared<S> *sh, const CUtensorMap *q_map,
                                 const CUtensorMap *kv_map, const chunk_args &a)
{
    uint64_t *full = S::RAW_KEYS ? sh->raw_full[KEYS] : sh->full[KEYS];
    uint64_t *empty = S::RAW_KEYS ? sh->raw_empty[KEYS] : sh->empty[KEYS];
    int n_items = a.plan.n_tiles * a.kv.n_kv_heads, next;
    ring<S::KEY_STAGES> at = {0, 1};
    uint32_t q_empty = 1;

#pragma unroll 1
    for (int item = blockIdx.x; item < n_items; item = __shfl_sync(~0U, next, 0)) {
        struct piece p = load_find_piece<S>(a, item);
        int ahead = load_page_of<S>(a, p, p.last);

        next = load_draw_item(a, n_items);
        if (threadIdx.x % 32 == 0)
            sh->pieces[q_empty ^ 1] = p;
#pragma unroll 1
        for (int block = p.last; block >= p.first; block--, at.next()) {
            int page = ahead;

            ahead = load_page_of<S>(a, p, block - 1);
            barrier_wait(&empty[at.stage], at.parity);
            load_block<S>(sh, kv_map, a, p, KEYS, at.stage, &full[at.stage], block, page);
            if (block == p.last) {
                barrier_wait(&sh->q_empty, q_empty);
                load_queries<S>(sh, q_map, a, sh->pieces[q_empty ^ 1].token0, p.kv_head);
            }
        }
        q_empty ^= 1;
    }
    barrier_wait(&sh->q_empty, q_empty);
    if (threadIdx.x % 32 == 0) {
        sh->pieces[q_empty ^ 1].n_tokens = 0;
        barrier_arrive(&sh->q_full);
    }
}

/* The next piece of work, for warps that need no queries; false: there is none. */
template <class S>
static __device__ __forceinline__ bool load_follow_piece(struct piece &p, chunk_shared<S> *sh,
                                                         uint32_t &parity)
{
    barrier_wait(&sh->q_full, parity);
    p = sh->pieces[parity];
    parity ^= 1;
    load_release(&sh->q_empty);
    return p.n_tokens > 0;
}

/* Warp 1: it loads values. */
template <class S>
static __device__ void load_values(chunk_shared<S> *sh, const CUtensorMap *map, const chunk_args &a)
{
    uint64_t *full = S::RAW ? sh->raw_full[VALUES] : sh->full[VALUES];
    uint64_t *empty = S::RAW ? sh->raw_empty[VALUES] : sh->empty[VALUES];
    ring<S::LOAD_STAGES> at = {0, 1};
    uint32_t parity = 0, zeroed = 0;
    struct piece p;

    while (load_follow_piece<S>(p, sh, parity)) {
        int ahead = load_page_of<S>(a, p, p.last);

#pragma unroll 1
        for (int block = p.last; block >= p.first; block--, at.next()) {
            int page = ahead, left = p.kv_len - block * S::BLOCK;
            int front = p.lowest - block * S::BLOCK;
            bool has_tail = !S::RAW && (left < S::BLOCK || front > 0);

            ahead = load_page_of<S>(a, p, block - 1);
            barrier_wait(&empty[at.stage], at.parity);
            load_block<S>(sh, map, a, p, VALUES, at.stage, has_tail ? &sh->zeroed : &full[at.stage],
                          block, page);
            if (has_tail) {
                barrier_wait(&sh->zeroed, zeroed);
                zeroed ^= 1;
                load_zero_rows<S>(sh->block[VALUES][at.stage], left, S::BLOCK);
                load_zero_rows<S>(sh->block[VALUES][at.stage], 0, front);
                load_release(&full[at.stage]);
            }
        }
    }
}

/* --- the converters --------------------------------------------------------------------------- */

/* Store 32 converted bytes of a row, the first and the last half, to the slabs of their columns:
 * piece c of row r. */
template <class S>
static __device__ __forceinline__ void load_put_piece(unsigned char *to, int r, int c, uint4 low,
                                                      uint4 high)
{
    int at = c % 4 * 2;
    unsigned char *row = to + r / 8 * S::ROWS_APART + c / 4 * S::COLUMNS_APART + r % 8 * 128;
    bool swap = c / 4 % 2; /* neighbouring slabs, at the same time, use different banks */

    *(uint4 *)(row + ((at + swap) ^ r % 8) * 16) = swap ? high : low;
    *(uint4 *)(row + ((at + !swap) ^ r % 8) * 16) = swap ? low : high;
}

/* Zero rows 0 .. front - 1, each by the thread that load_widen_block() has written it with. */
template <class S>
static __device__ __forceinline__ void load_blank_front(unsigned char *to, int front)
{
    constexpr int PIECES = S::HD / 16;
    uint4 zeros = make_uint4(0, 0, 0, 0);

#pragma unroll 1
    for (int i = threadIdx.x % 64; i < front * PIECES; i += 64)
        load_put_piece<S>(to, i / PIECES, i % PIECES, zeros, zeros);
}

/* Convert e4m3 [BLOCK][HD] to float16 in slabs, with zeros from row left on; by two warps. */
template <class S>
static __device__ __forceinline__ void load_widen_block(unsigned char *to, const unsigned char *raw,
                                                        int left)
{
    constexpr int PIECES = S::HD / 16; /* of 16 bytes per row */

#pragma unroll 4
    for (int i = threadIdx.x % 64; i < S::BLOCK * PIECES; i += 64) {
        int row = i / PIECES, column = i % PIECES;
        uint4 x = row < left ? *(const uint4 *)(raw + i * 16) : make_uint4(0, 0, 0, 0);
        uint4 low = half_eight(make_uint2(x.x, x.y)), high = half_eight(make_uint2(x.z, x.w));

        load_put_piece<S>(to, row, column, low, high);
    }
}

/* Warpgroup 3, only for e4m3: two warps convert keys, two values. */
template <class S> static __device__ void load_convert(chunk_shared<S> *sh)
{
    int kind = threadIdx.x / 64 % 2;
    ring<S::RAW_STAGES> from = {0, 0};
    ring<S::STAGES> to = {0, 1};
    uint32_t parity = 0;
    struct piece p;

    while (load_follow_piece<S>(p, sh, parity)) {
#pragma unroll 1
        for (int block = p.last; block >= p.first; block--) {
            barrier_wait(&sh->raw_full[kind][from.stage], from.parity);
            barrier_wait(&sh->empty[kind][to.stage], to.parity);
            load_widen_block<S>(sh->block[kind][to.stage], sh->raw[kind][from.stage],
                                p.kv_len - block * S::BLOCK);
            if (p.lowest > block * S::BLOCK)
                load_blank_front<S>(sh->block[kind][to.stage], p.lowest - block * S::BLOCK);
            fence_async();
            load_release(&sh->full[kind][to.stage]);
            load_release(&sh->raw_empty[kind][from.stage]);
            from.next();
            to.next();
        }
    }
}

/* --- the transposers -------------------------------------------------------------------------- */

/* Bytes of a word that are keys first .. last - 1; the word has keys key, key + 1, + 8 and + 9. */
static __device__ __forceinline__ uint32_t load_mask_keys(uint32_t word, int key, int first,
                                                          int last)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int k = key + i / 2 * 8 + i % 2;

        word = k >= first && k < last ? word : word & ~(0xffU << 8 * i);
    }
    return word;
}

/* Transpose values [keys][HD] to [HD][keys], both in slabs with 128-byte swizzle; warp i of
 * TURNERS. Of each 16 keys, position 4 t + 2 h + i is key 8 h + 2 t + i: a thread of a wgmma has
 * the weights of keys 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t as sums of the first product, and reads
 * them as four neighbours in the second. MASKED: keys first .. last - 1 alone exist.
 *
 * ldmatrix.trans gives lane 4 c + t bytes 2 c and 2 c + 1 of keys 2 t and 2 t + 1: two permutations
 * make words of four keys of them. stmatrix takes rows 2 c; in the upper half of a matrix 2 c + 1,
 * so that its eight rows are in different banks. */
template <class S, bool MASKED>
static __device__ __forceinline__ void load_turn_block(unsigned char *to, const unsigned char *raw,
                                                       int warp, int first, int last)
{
    int lane = threadIdx.x % 32, row = lane % 8;
    uint32_t evens = lane < 16 ? 0x6420 : 0x7531, odds = evens ^ 0x1111;
    int d = 2 * row + ((row >= 4) ^ (lane / 8 % 2)); /* of the row that this lane addresses */

#pragma unroll 4
    for (int i = warp; i < S::BLOCK / 32 * (S::HD / 16); i += S::TURNERS) {
        int key = i / (S::HD / 16) * 32, column = i % (S::HD / 16);
        int chunk = key / 16 + lane / 16;
        uint32_t in[4], out[4];

        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(in[0]), "=r"(in[1]), "=r"(in[2]), "=r"(in[3])
                     : "r"(shared_addr(raw) + (key + lane) * 128 + (column ^ row) * 16)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) {
            out[j] = __byte_perm(in[j / 2 * 2], in[j / 2 * 2 + 1], j % 2 ? odds : evens);
            if (MASKED)
                out[j] = load_mask_keys(out[j], key + j / 2 * 16 + lane % 4 * 2, first, last);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         shared_addr(to) + (column * 16 + d) * 128 + (chunk ^ d % 8) * 16),
                     "r"(out[0]), "r"(out[1]), "r"(out[2]), "r"(out[3])
                     : "memory");
    }
}

/* Warpgroup 3, for products of e4m3: values that exist transposed, others as zeros. */
template <class S> static __device__ void load_turn(chunk_shared<S> *sh)
{
    ring<S::RAW_STAGES> from = {0, 0};
    ring<S::STAGES> to = {0, 1};
    int warp = threadIdx.x / 32 % S::TURNERS;
    uint32_t parity = 0;
    struct piece p;

    while (load_follow_piece<S>(p, sh, parity)) {
#pragma unroll 1
        for (int block = p.last; block >= p.first; block--) {
            const unsigned char *raw = sh->raw[0][from.stage];
            int first = p.lowest - block * S::BLOCK, last = p.kv_len - block * S::BLOCK;

            barrier_wait(&sh->raw_full[VALUES][from.stage], from.parity);
            barrier_wait(&sh->empty[VALUES][to.stage], to.parity);
            if (first > 0 || last < S::BLOCK)
                load_turn_block<S, true>(sh->block[VALUES][to.stage], raw, warp, first, last);
            else
                load_turn_block<S, false>(sh->block[VALUES][to.stage], raw, warp, first, last);
            fence_async();
            load_release(&sh->full[VALUES][to.stage]);
            load_release(&sh->raw_empty[VALUES][from.stage]);
            from.next();
            to.next();
        }
    }
}

#endif
