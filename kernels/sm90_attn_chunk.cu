/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of several query tokens a sequence over its pages, for Hopper: wgmma, TMA.
 *
 * One block a multiprocessor takes pieces of work (tile, kv head) until none is left. A tile's
 * 128 rows are pairs (token, query head of the group), so that grouped heads share the keys that
 * are read. Three warpgroups: one warp of the first asks the copy engine for queries, keys and
 * values; the others own 64 rows each. Keys come in blocks, the last block of a tile first:
 *
 *     S [64][BLOCK] = q [64][HD] . K [BLOCK][HD]    both operands in shared memory
 *     O [64][HD]   += P [64][BLOCK] . V [BLOCK][HD] P = 2^(S - max) in registers
 *
 * A warpgroup issues S of one block and O of the block before, and computes P of the first while
 * the second runs; and the two warpgroups take turns (named barriers), so that one's P is
 * computed under the other's products.
 *
 * Shared memory: q [128][HD], rings of STAGES blocks of K and of V, barriers. All in slabs of 8
 * rows of 128 bytes with 128-byte swizzle: a slab is 64 elements of 8 rows. A page's rows are
 * slabs in the order [row / 8][element / 64], so that one copy brings a page.
 *
 * Source: the schedule is FlashAttention-3's (arXiv:2407.08608). */
#include "kernels/e4m3.cuh"
#include "kernels/pages.cuh"
#include "kernels/sm90.cuh"

#define ROWS      K_TILE_ROWS
#define CONSUMERS 2 /* warpgroups */
#define TURN_ID   1 /* named barriers TURN_ID + warpgroup: it may issue its products */
#define NOTHING   (-1e30f)
#define LOG2_E    1.44269504f
#define BATCH     4                  /* boxes asked for in a row */
#define L2_BYTES  ((size_t)32 << 20) /* of the 50 MB; measured: more evicts */
#define SLAB      1024               /* bytes: 8 rows of 128 */

/* Registers a thread: loaders and converters, and what is left for consumers. */
#define FEW_REGISTERS 48

static_assert(ROWS == CONSUMERS * 64, "a wgmma has 64 rows");

struct chunk_args {
    k_bf16 *out;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    int n_heads;
    float scale;        /* of scores, times log2(e) */
    float out_scale;    /* of the output */
    uint32_t window;    /* keys that a row sees; 2^31: all */
    int heads_together; /* kv heads whose tiles are mixed */
    int page_shift;     /* log2 of block_tokens */
    int boxes;          /* copies a block */
    int box_rows;       /* rows of a copy, a power of 2 */
    int box_shift;      /* its log2 */
    int layer_slabs;    /* from a page's start to the layer, in slabs' rows (8 tokens) */
};

enum { KEYS, VALUES };

/* Constants of a head size and a type of pages. */
template <int HEAD_DIM, bool E4M3> struct shape {
    static constexpr int HD = HEAD_DIM;
    static constexpr int BLOCK = HD > 128 ? 64 : 128; /* keys */
    static constexpr int STAGES = E4M3 || HD > 128 ? 2 : 3;
    static constexpr int COLUMNS = (HD + 63) / 64; /* slabs side by side */
    /* Head sizes of whole slabs: one copy brings all columns of a page. Others need a copy for
     * each column, filled up with zeros, and have their columns one behind another. */
    static constexpr bool WHOLE = HD % 64 == 0;
    static constexpr int ROWS_APART = WHOLE ? COLUMNS * SLAB : SLAB; /* from 8 rows to the next */
    static constexpr int COLUMNS_APART = WHOLE ? SLAB : BLOCK / 8 * SLAB;
    static constexpr int BLOCK_BYTES = BLOCK / 8 * COLUMNS * SLAB;
    static constexpr int Q_COLUMN = ROWS / 8 * SLAB;
    /* The second product in parts of PART columns of the output. */
    static constexpr int PARTS = HD > 128 ? 2 : 1;
    static constexpr int PART = HD / PARTS;
    /* Pages of e4m3 arrive in a ring of their own, [BLOCK][HD] bytes, and are converted. */
    static constexpr bool RAW = E4M3;
    static constexpr int RAW_STAGES = HD > 128 ? 1 : 2;
    static constexpr int RAW_BYTES = E4M3 ? BLOCK * HD : 16;
    static constexpr int LOAD_STAGES = E4M3 ? RAW_STAGES : STAGES;    /* of what copies fill */
    static constexpr int LOAD_BYTES = E4M3 ? 8 * HD : COLUMNS * SLAB; /* of 8 rows */
    static constexpr int THREADS = 128 * (CONSUMERS + (E4M3 ? 2 : 1));
    static constexpr int MANY_REGISTERS = E4M3 ? 208 : 232;
    /* Queries stay in registers where there is room. */
    static constexpr bool HELD = E4M3 ? HD < 128 : HD <= 128;
};

/* One tile and kv head. */
struct piece {
    int token0, pos0, n_tokens; /* n_tokens 0: there is no more work */
    int kv_head, kv_len;
    int first, last; /* blocks of keys, both inclusive */
    const int32_t *pages;
};

/* Arrays of two: keys, values. */
template <class S> struct chunk_shared {
    unsigned char q[S::COLUMNS * S::Q_COLUMN];
    unsigned char block[2][S::STAGES][S::BLOCK_BYTES];
    unsigned char raw[2][S::RAW_STAGES][S::RAW_BYTES];
    uint64_t q_full, q_empty, zeroed;
    uint64_t full[2][S::STAGES], empty[2][S::STAGES];
    uint64_t raw_full[2][S::RAW_STAGES], raw_empty[2][S::RAW_STAGES];
    struct piece pieces[2]; /* in turn; guarded by q_full and q_empty */
};

/* --- the producer ---------------------------------------------------------------------- */

/* Work in the order in which it is given out: heads_together heads at a time, so that their keys
 * stay in the L2 cache; of those the longest tiles first. */
template <class S> static __device__ struct piece find_piece(const chunk_args &a, int item)
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
    p.first = (uint32_t)p.pos0 < a.window ? 0 : (p.pos0 - (int)a.window + 1) / BLOCK;
    p.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
    return p;
}

/* This lane's page of a block: lane i asks for the block's i-th box. */
template <class S>
static __device__ __forceinline__ int page_of(const chunk_args &a, const struct piece &p, int block)
{
    int pos = block * S::BLOCK + (int)(threadIdx.x % 32) * a.box_rows;

    if (block < p.first || (int)threadIdx.x % 32 >= a.boxes || pos >= p.kv_len)
        return 0;
    return p.pages[pos >> a.page_shift];
}

/* Where the rows of a head begin in a page, or from position base on, in slabs; values are heads
 * behind the keys. A page may hold several blocks. */
static __device__ __forceinline__ int slab_of(const chunk_args &a, int head, int base)
{
    int bt = a.kv.block_tokens;

    return a.layer_slabs + head * (bt / 8) + (base & (bt - 1)) / 8;
}

/* One arrival a warp, when all of it is done with what is given back. */
static __device__ __forceinline__ void release(uint64_t *empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* Ask for the boxes of a block that hold keys, each lane knowing one page. slab: where the head's
 * rows begin in a page, in slabs. Lane 0 asks for BATCH boxes in a row: a branch and a shuffle
 * for each would take longer than the products. */
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
            for (int c = 0; c < (S::RAW ? 0 : S::WHOLE ? 1 : S::COLUMNS); c++)
                tensor_load_5d(to + j * box_bytes + c * S::COLUMNS_APART, map, full, c * 64, slab,
                               ids[j]);
        }
    }
}

template <class S>
static __device__ __forceinline__ void load_block(chunk_shared<S> *sh, const CUtensorMap *map,
                                                  const chunk_args &a, const struct piece &p,
                                                  int kind, int stage, uint64_t *full, int block,
                                                  int page)
{
    int base = block * S::BLOCK;
    int slab = slab_of(a, kind * a.kv.n_kv_heads + p.kv_head, base);

    if (S::RAW)
        load_boxes<S>(map, a, sh->raw[kind][stage], full, p.kv_len - base, page, slab);
    else
        load_boxes<S>(map, a, sh->block[kind][stage], full, p.kv_len - base, page, slab);
}

/* Values from position kv_len on are nobody's, perhaps NaN, which times 0 is NaN: they become
 * zeros before the consumers are told of the block. */
template <class S> static __device__ void zero_tail(unsigned char *v, int first)
{
    int lane = threadIdx.x % 32;

#pragma unroll 1
    for (int r = first + lane / 8; r < S::BLOCK; r += 4) {
        for (int c = 0; c < S::COLUMNS; c++)
            *(uint4 *)(v + r / 8 * S::ROWS_APART + c * S::COLUMNS_APART + r % 8 * 128 +
                       lane % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async();
}

template <class S>
static __device__ void load_queries(chunk_shared<S> *sh, const CUtensorMap *map,
                                    const chunk_args &a, int token0, int kv_head)
{
    int group = a.n_heads / a.kv.n_kv_heads;

    if (threadIdx.x % 32 != 0)
        return;
    barrier_expect(&sh->q_full, group * K_TILE_TOKENS(group) * S::COLUMNS * 128);
#pragma unroll
    for (int c = 0; c < S::COLUMNS; c++)
        tensor_load_3d(sh->q + c * S::Q_COLUMN, map, &sh->q_full, c * 64, kv_head * group, token0);
}

/* The next item after one's first: lane 0 draws, and the last draw of a launch puts the counter
 * back. */
static __device__ __forceinline__ int draw_item(const chunk_args &a, int n_items)
{
    int drawn = 0;

    if (threadIdx.x % 32 == 0) {
        drawn = atomicAdd(a.plan.drawn, 1);
        if (drawn == n_items - 1)
            *a.plan.drawn = 0;
    }
    return drawn + (int)gridDim.x;
}

/* The warp that gives out work and asks for queries and keys. */
template <class S>
static __device__ void load_keys(chunk_shared<S> *sh, const CUtensorMap *q_map,
                                 const CUtensorMap *kv_map, const chunk_args &a)
{
    uint64_t *full = S::RAW ? sh->raw_full[KEYS] : sh->full[KEYS];
    uint64_t *empty = S::RAW ? sh->raw_empty[KEYS] : sh->empty[KEYS];
    int n_items = a.plan.n_tiles * a.kv.n_kv_heads, next;
    ring<S::LOAD_STAGES> at = {0, 1};
    uint32_t q_empty = 1;

#pragma unroll 1
    for (int item = blockIdx.x; item < n_items; item = __shfl_sync(~0U, next, 0)) {
        struct piece p = find_piece<S>(a, item);
        int ahead = page_of<S>(a, p, p.last);

        next = draw_item(a, n_items);
        if (threadIdx.x % 32 == 0)
            sh->pieces[q_empty ^ 1] = p;
#pragma unroll 1
        for (int block = p.last; block >= p.first; block--, at.next()) {
            int page = ahead;

            ahead = page_of<S>(a, p, block - 1);
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

/* The next piece of work for those who need no queries; false: there is none. */
template <class S>
static __device__ __forceinline__ bool follow_piece(struct piece &p, chunk_shared<S> *sh,
                                                    uint32_t &parity)
{
    barrier_wait(&sh->q_full, parity);
    p = sh->pieces[parity];
    parity ^= 1;
    release(&sh->q_empty);
    return p.n_tokens > 0;
}

/* The warp that asks for values. */
template <class S>
static __device__ void load_values(chunk_shared<S> *sh, const CUtensorMap *map, const chunk_args &a)
{
    uint64_t *full = S::RAW ? sh->raw_full[VALUES] : sh->full[VALUES];
    uint64_t *empty = S::RAW ? sh->raw_empty[VALUES] : sh->empty[VALUES];
    ring<S::LOAD_STAGES> at = {0, 1};
    uint32_t parity = 0, zeroed = 0;
    struct piece p;

    while (follow_piece<S>(p, sh, parity)) {
        int ahead = page_of<S>(a, p, p.last);

#pragma unroll 1
        for (int block = p.last; block >= p.first; block--, at.next()) {
            int page = ahead, left = p.kv_len - block * S::BLOCK;
            bool has_tail = !S::RAW && left < S::BLOCK;

            ahead = page_of<S>(a, p, block - 1);
            barrier_wait(&empty[at.stage], at.parity);
            load_block<S>(sh, map, a, p, VALUES, at.stage, has_tail ? &sh->zeroed : &full[at.stage],
                          block, page);
            if (has_tail) {
                barrier_wait(&sh->zeroed, zeroed);
                zeroed ^= 1;
                zero_tail<S>(sh->block[VALUES][at.stage], left);
                release(&full[at.stage]);
            }
        }
    }
}

/* --- the converters -------------------------------------------------------------------- */

/* e4m3 [BLOCK][HD] to bf16 in slabs, zeros from row left on; by two warps. */
template <class S>
static __device__ __forceinline__ void widen_block(unsigned char *to, const unsigned char *raw,
                                                   int left)
{
    constexpr int PIECES = S::HD / 16; /* of 16 bytes a row */

#pragma unroll 4
    for (int i = threadIdx.x % 64; i < S::BLOCK * PIECES; i += 64) {
        int r = i / PIECES, c = i % PIECES, at = c % 4 * 2;
        uint4 x = r < left ? *(const uint4 *)(raw + i * 16) : make_uint4(0, 0, 0, 0);
        uint4 low = widen_eight(make_uint2(x.x, x.y)), high = widen_eight(make_uint2(x.z, x.w));
        unsigned char *row = to + r / 8 * S::ROWS_APART + c / 4 * S::COLUMNS_APART + r % 8 * 128;
        bool swap = c / 4 % 2; /* neighbouring slabs at the same time meet different banks */

        *(uint4 *)(row + ((at + swap) ^ r % 8) * 16) = swap ? high : low;
        *(uint4 *)(row + ((at + !swap) ^ r % 8) * 16) = swap ? low : high;
    }
}

/* Two warps for keys, two for values. */
template <class S> static __device__ void convert(chunk_shared<S> *sh)
{
    int kind = threadIdx.x / 64 % 2;
    ring<S::RAW_STAGES> from = {0, 0};
    ring<S::STAGES> to = {0, 1};
    uint32_t parity = 0;
    struct piece p;

    while (follow_piece<S>(p, sh, parity)) {
#pragma unroll 1
        for (int block = p.last; block >= p.first; block--) {
            barrier_wait(&sh->raw_full[kind][from.stage], from.parity);
            barrier_wait(&sh->empty[kind][to.stage], to.parity);
            widen_block<S>(sh->block[kind][to.stage], sh->raw[kind][from.stage],
                           p.kv_len - block * S::BLOCK);
            fence_async();
            release(&sh->full[kind][to.stage]);
            release(&sh->raw_empty[kind][from.stage]);
            from.next();
            to.next();
        }
    }
}

/* --- the consumers --------------------------------------------------------------------- */

/* What a thread holds of its warpgroup's 64 rows: of its warp's 16 rows lane / 4 and
 * lane / 4 + 8; of each 8 columns lane % 4 * 2 and the next. */
struct chunk_rows {
    float top[2], sum[2]; /* of scores, and of this thread's weights */
    int pos[2];
};

template <class S> struct chunk_state {
    float acc[S::PARTS][S::PART / 2];
    uint32_t weight[S::BLOCK / 16][4]; /* P of the block before, as wgmma wants it */
    struct chunk_rows rows;
};

/* The queries of the warpgroup: held in registers where there is room, or told as an operand. */
template <class S> struct chunk_queries {
    uint32_t held[S::HELD ? S::HD / 16 : 1][4];
    uint64_t told;
};

template <class S> struct chunk_rings {
    ring<S::STAGES> k, v;
};

/* The warpgroups' turns to issue products. */
static __device__ __forceinline__ void turn_take(int group)
{
    named_sync(TURN_ID + group, 128 * CONSUMERS);
}

static __device__ __forceinline__ void turn_give(int group)
{
    named_arrive(TURN_ID + (group ^ 1), 128 * CONSUMERS);
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_addr(p))
                 : "memory");
}

/* Row r's 16 bytes c of a slab stand at c ^ r % 8: the swizzle. */
template <class S>
static __device__ __forceinline__ void take_queries(chunk_queries<S> &q, chunk_shared<S> *sh)
{
    int lane = threadIdx.x % 32, row = (threadIdx.x - 128) / 32 * 16 + lane % 16;

    if constexpr (S::HELD) {
#pragma unroll
        for (int d = 0; d < S::HD / 16; d++)
            load_matrices(q.held[d], sh->q + d / 4 * S::Q_COLUMN + row * 128 +
                                         ((d % 4 * 2 + lane / 16) ^ row % 8) * 16);
    } else {
        q.told = operand(sh->q + (threadIdx.x / 128 - 1) * 8 * SLAB, SLAB, 0);
    }
}

/* score = q . K, begun and committed. */
template <class S>
static __device__ __forceinline__ void begin_scores(float (&score)[S::BLOCK / 2],
                                                    const chunk_queries<S> &q,
                                                    const unsigned char *k)
{
    keep(score);
    warpgroup_begin();
#pragma unroll
    for (int d = 0; d < S::HD / 16; d++) { /* 32 bytes of a row at a time; operands count by 16 */
        uint64_t b = operand(k, S::ROWS_APART, 0) + d / 4 * (S::COLUMNS_APART / 16) + d % 4 * 2;

        if constexpr (S::HELD)
            multiply_rows(score, q.held[d], b, d > 0);
        else
            multiply_rows(score, q.told + d / 4 * (S::Q_COLUMN / 16) + d % 4 * 2, b, d > 0);
    }
    warpgroup_commit();
}

/* acc += P . V, begun and committed. */
template <class S>
static __device__ __forceinline__ void begin_values(chunk_state<S> &st, const unsigned char *v)
{
#pragma unroll
    for (int part = 0; part < S::PARTS; part++)
        keep(st.acc[part]);
    keep(st.weight);
    warpgroup_begin();
#pragma unroll
    for (int j = 0; j < S::BLOCK / 16; j++) {
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
            multiply_columns(st.acc[part], st.weight[j],
                             operand(v + part * (S::PART / 64) * S::COLUMNS_APART, S::ROWS_APART,
                                     S::COLUMNS_APART) +
                                 j * 2 * (S::ROWS_APART / 16));
    }
    warpgroup_commit();
}

template <class S> static __device__ __forceinline__ void end_values(chunk_state<S> &st)
{
    warpgroup_wait<0>();
#pragma unroll
    for (int part = 0; part < S::PARTS; part++)
        keep(st.acc[part]);
}

/* With the other lanes of a row's four. */
static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

/* Turn scores into weights; shrink: by what the rows' sums so far are smaller. MASKED: some rows
 * do not see all of the block. */
template <class S, bool MASKED>
static __device__ __forceinline__ void soften(struct chunk_rows &rows, float (&score)[S::BLOCK / 2],
                                              float (&shrink)[2], const chunk_args &a, int block)
{
    constexpr int BLOCK = S::BLOCK;
    int col = block * BLOCK + threadIdx.x % 4 * 2;
    float base[2];

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = rows.top[r];

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *s = &score[4 * j + 2 * r + e];

                if (MASKED && (uint32_t)(rows.pos[r] - (col + 8 * j + e)) >= a.window)
                    *s = -INFINITY;
                top = fmaxf(top, *s);
            }
        }
        top = quad_max(top);
        shrink[r] = exp2_fast((rows.top[r] - top) * a.scale);
        rows.top[r] = top;
        base[r] = top * a.scale;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum[2] = {0.0f, 0.0f};

#pragma unroll
        for (int j = 0; j < BLOCK / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float w = exp2_fast(fmaf(score[4 * j + 2 * r + e], a.scale, -base[r]));

                score[4 * j + 2 * r + e] = w;
                sum[e] += w;
            }
        }
        rows.sum[r] = rows.sum[r] * shrink[r] + (sum[0] + sum[1]);
    }
}

/* The accumulator's layout is the left operand's. */
template <class S>
static __device__ __forceinline__ void pack_weights(chunk_state<S> &st,
                                                    const float (&score)[S::BLOCK / 2])
{
#pragma unroll
    for (int i = 0; i < S::BLOCK / 4; i++)
        st.weight[i / 4][i % 4] = pack_bf16(score[2 * i], score[2 * i + 1]);
}

/* acc *= factor of the row. */
template <class S>
static __device__ __forceinline__ void scale_acc(chunk_state<S> &st, const float (&factor)[2])
{
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
#pragma unroll
        for (int i = 0; i < S::PART / 2; i++)
            st.acc[part][i] *= factor[i / 2 % 2];
    }
}

/* Begin the scores of a block and the values of the block before; the scores are there at the
 * end, the values are not. */
template <class S>
static __device__ __forceinline__ void begin_both(chunk_state<S> &st, chunk_rings<S> &at,
                                                  chunk_shared<S> *sh, const chunk_queries<S> &q,
                                                  float (&score)[S::BLOCK / 2])
{
    int group = threadIdx.x / 128 - 1;

    barrier_wait(&sh->full[KEYS][at.k.stage], at.k.parity);
    turn_take(group);
    begin_scores<S>(score, q, sh->block[KEYS][at.k.stage]);
    barrier_wait(&sh->full[VALUES][at.v.stage], at.v.parity);
    begin_values<S>(st, sh->block[VALUES][at.v.stage]);
    turn_give(group);
    warpgroup_wait<1>();
    keep(score);
    release(&sh->empty[KEYS][at.k.stage]);
    at.k.next();
}

template <class S, bool MASKED>
static __device__ __forceinline__ void step(chunk_state<S> &st, chunk_rings<S> &at,
                                            chunk_shared<S> *sh, const chunk_queries<S> &q,
                                            const chunk_args &a, int block)
{
    float score[S::BLOCK / 2], shrink[2];

    begin_both<S>(st, at, sh, q, score);
    soften<S, MASKED>(st.rows, score, shrink, a, block);
    end_values<S>(st);
    release(&sh->empty[VALUES][at.v.stage]);
    at.v.next();
    scale_acc<S>(st, shrink);
    pack_weights<S>(st, score);
}

/* The quad's words [4 columns of 2][4 lanes], turned: lane l has what all four held in w[l]. */
static __device__ __forceinline__ uint4 turn_quad(uint32_t w0, uint32_t w1, uint32_t w2,
                                                  uint32_t w3)
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0U, odd ? w0 : w1, 1), b = __shfl_xor_sync(~0U, odd ? w2 : w3, 1);
    uint32_t x0 = odd ? a : w0, x1 = odd ? w1 : a; /* of column odd */
    uint32_t y0 = odd ? b : w2, y1 = odd ? w3 : b; /* of column odd + 2 */
    uint32_t c = __shfl_xor_sync(~0U, high ? x0 : y0, 2),
             d = __shfl_xor_sync(~0U, high ? x1 : y1, 2);

    return high ? make_uint4(c, d, y0, y1) : make_uint4(x0, x1, c, d);
}

template <class S>
static __device__ __forceinline__ void write_rows(const chunk_state<S> &st, const chunk_args &a,
                                                  const struct piece &p)
{
    int group = a.n_heads / a.kv.n_kv_heads, lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (threadIdx.x - 128) / 32 * 16 + lane / 4 + 8 * r, token = row / group;
        float sum = st.rows.sum[r], scale;
        k_bf16 *to =
            a.out +
            ((size_t)(p.token0 + token) * a.n_heads + p.kv_head * group + row % group) * S::HD;

        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        scale = a.out_scale / sum;
#pragma unroll
        for (int j = 0; j < S::HD / 8; j += 4) {
            uint32_t w[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = (j + i) % (S::HD / 8); /* 80 = 2 * 32 + 16: the last half is not used */
                const float *acc = &st.acc[at * 8 / S::PART][at * 8 % S::PART / 2 + 2 * r];

                w[i] = pack_bf16(acc[0] * scale, acc[1] * scale);
            }
            uint4 turned = turn_quad(w[0], w[1], w[2], w[3]);

            if (token < p.n_tokens && j + lane % 4 < S::HD / 8)
                *(uint4 *)(to + (j + lane % 4) * 8) = turned;
        }
    }
}

static __device__ __forceinline__ struct chunk_rows rows_of(const struct piece &p, int group)
{
    int row = (threadIdx.x - 128) / 32 * 16 + threadIdx.x % 32 / 4;

    return {{NOTHING, NOTHING}, {0.0f, 0.0f}, {p.pos0 + row / group, p.pos0 + (row + 8) / group}};
}

/* All blocks of a tile but its last (the one that is done first). */
template <class S>
static __device__ __forceinline__ void step_blocks(chunk_state<S> &st, chunk_rings<S> &at,
                                                   chunk_shared<S> *sh, const chunk_queries<S> &q,
                                                   const chunk_args &a, const struct piece &p)
{
    constexpr int BLOCK = S::BLOCK;
    /* Blocks in full view of all rows: full_first .. full_last. */
    int end = p.pos0 + p.n_tokens, full_last = (p.pos0 + 1) / BLOCK - 1;
    int full_first = (end - (int)min(a.window, (uint32_t)end) + BLOCK - 1) / BLOCK;
    int block = p.last - 1;

    for (; block >= p.first && block > full_last; block--)
        step<S, true>(st, at, sh, q, a, block);
    for (; block >= full_first; block--)
        step<S, false>(st, at, sh, q, a, block);
    for (; block >= p.first; block--)
        step<S, true>(st, at, sh, q, a, block);
}

/* From a tile to the next: the last values of the one under the first scores of the other. */
template <class S>
static __device__ __forceinline__ void turn_over(chunk_state<S> &st, chunk_rings<S> &at,
                                                 chunk_shared<S> *sh, const chunk_queries<S> &q,
                                                 const chunk_args &a, const struct piece &from,
                                                 const struct piece &to)
{
    struct chunk_rows rows = rows_of(to, a.n_heads / a.kv.n_kv_heads);
    float score[S::BLOCK / 2], shrink[2];

    begin_both<S>(st, at, sh, q, score);
    soften<S, true>(rows, score, shrink, a, to.last);
    end_values<S>(st);
    release(&sh->empty[VALUES][at.v.stage]);
    at.v.next();
    write_rows<S>(st, a, from);
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
#pragma unroll
        for (int i = 0; i < S::PART / 2; i++)
            st.acc[part][i] = 0.0f;
    }
    st.rows = rows;
    pack_weights<S>(st, score);
}

/* The next piece of work and its queries; false: there is none. */
template <class S>
static __device__ __forceinline__ bool take_piece(struct piece &p, chunk_queries<S> &q,
                                                  chunk_shared<S> *sh, uint32_t &parity)
{
    barrier_wait(&sh->q_full, parity);
    p = sh->pieces[parity];
    parity ^= 1;
    if (p.n_tokens == 0)
        return false;
    take_queries<S>(q, sh);
    if (S::HELD)
        release(&sh->q_empty);
    return true;
}

template <class S> static __device__ void consume(chunk_shared<S> *sh, const chunk_args &a)
{
    int group = threadIdx.x / 128 - 1;
    float score[S::BLOCK / 2], shrink[2];
    chunk_rings<S> at = {};
    chunk_state<S> st = {};
    chunk_queries<S> q;
    struct piece p, next;
    uint32_t parity = 0;

    if (group == 1)
        turn_give(group);
    (void)take_piece<S>(p, q, sh, parity); /* the grid is no larger than the work */
    st.rows = rows_of(p, a.n_heads / a.kv.n_kv_heads);
    barrier_wait(&sh->full[KEYS][0], 0);
    begin_scores<S>(score, q, sh->block[KEYS][0]);
    warpgroup_wait<0>();
    keep(score);
    release(&sh->empty[KEYS][0]);
    at.k.next();
    soften<S, true>(st.rows, score, shrink, a, p.last);
    pack_weights<S>(st, score);
    for (;; p = next) {
        step_blocks<S>(st, at, sh, q, a, p);
        if (!S::HELD)
            release(&sh->q_empty);
        if (!take_piece<S>(next, q, sh, parity))
            break;
        turn_over<S>(st, at, sh, q, a, p, next);
    }
    barrier_wait(&sh->full[VALUES][at.v.stage], at.v.parity);
    begin_values<S>(st, sh->block[VALUES][at.v.stage]);
    end_values<S>(st);
    write_rows<S>(st, a, p);
    if (group == 0)
        turn_take(group); /* the turn that nobody takes any more */
}

template <class S> static __device__ void init_barriers(chunk_shared<S> *sh)
{
    /* Queries are given back by the warps of consumers and all who read the piece of work. */
    barrier_init(&sh->q_full, 1);
    barrier_init(&sh->q_empty, 4 * CONSUMERS + 1 + (S::RAW ? 4 : 0));
    barrier_init(&sh->zeroed, 1);
    for (int kind = KEYS; kind <= VALUES; kind++) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&sh->full[kind][i], S::RAW ? 2 : 1);
            barrier_init(&sh->empty[kind][i], 4 * CONSUMERS);
        }
        for (int i = 0; i < S::RAW_STAGES; i++) {
            barrier_init(&sh->raw_full[kind][i], 1);
            barrier_init(&sh->raw_empty[kind][i], 2);
        }
    }
    barrier_init_done();
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, 1)
    sm90_attn_chunk_kernel(const __grid_constant__ CUtensorMap q_map,
                           const __grid_constant__ CUtensorMap kv_map,
                           const __grid_constant__ chunk_args a)
{
    extern __shared__ __align__(SLAB) unsigned char shared[];
    chunk_shared<S> *sh = (chunk_shared<S> *)shared;

    if (threadIdx.x == 0)
        init_barriers<S>(sh);
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_give<FEW_REGISTERS>();
        if (threadIdx.x < 32)
            load_keys<S>(sh, &q_map, &kv_map, a);
        else if (threadIdx.x < 64)
            load_values<S>(sh, &kv_map, a);
    } else if (threadIdx.x < 128 * (1 + CONSUMERS)) {
        registers_take<S::MANY_REGISTERS>();
        consume<S>(sh, a);
    } else {
        registers_give<FEW_REGISTERS>();
        convert<S>(sh);
    }
}

/* --- the launch ------------------------------------------------------------------------ */

static PFN_cuTensorMapEncodeTiled_v12000 find_encoder(void)
{
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess)
        return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)f;
}

/* strides: bytes, of all dimensions but the first. */
static int describe(CUtensorMap *map, CUtensorMapDataType type, int rank, const void *base,
                    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
    const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    bool is_bf16 = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

    if (encode == NULL)
        return -1;
    return encode(map, type, (cuuint32_t)rank, (void *)base, dims, strides, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  is_bf16 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : -1;
}

/* Queries as [token][head][element]; a box is the heads of a group of a tile's tokens. */
static int describe_queries(CUtensorMap *map, const chunk_args &a, const k_bf16 *qkv)
{
    cuuint64_t hd = (cuuint64_t)a.kv.head_dim;
    cuuint64_t width = (cuuint64_t)(a.n_heads + 2 * a.kv.n_kv_heads) * hd;
    int group = a.n_heads / a.kv.n_kv_heads;
    cuuint64_t dims[3] = {hd, (cuuint64_t)a.n_heads, (cuuint64_t)a.t.n_tokens};
    cuuint64_t strides[2] = {hd * 2, width * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)group, (cuuint32_t)K_TILE_TOKENS(group)};

    return describe(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, qkv, dims, strides, box);
}

/* The pool: how many pages it has is not asked, page ids are right. bf16:
 * [page][8 rows of a page, all layers][column of 64][row % 8][element]; e4m3: [page][row][element]. */
template <class S> static int describe_pages(CUtensorMap *map, const chunk_args &a)
{
    const cuuint64_t many = 1U << 31, hd = S::HD;
    cuuint32_t box_rows = (cuuint32_t)a.box_rows;

    if (S::RAW) {
        cuuint64_t dims[3] = {hd, a.kv.page_elems / hd, many}, strides[2] = {hd, a.kv.page_elems};
        cuuint32_t box[3] = {S::HD, box_rows, 1};

        return describe(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, a.kv.pages, dims, strides, box);
    }
    cuuint64_t dims[5] = {S::WHOLE ? 64 : hd, 8, S::WHOLE ? S::COLUMNS : 1,
                          a.kv.page_elems / (8 * hd), many};
    cuuint64_t strides[4] = {hd * 2, 128, 8 * hd * 2, a.kv.page_elems * 2};
    cuuint32_t box[5] = {64, 8, S::WHOLE ? S::COLUMNS : 1, box_rows / 8, 1};

    return describe(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, a.kv.pages, dims, strides, box);
}

static int n_multiprocessors(void)
{
    int device = 0, n = 0;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return n;
}

/* How many heads' keys and values the cache holds. */
static int heads_in_cache(const chunk_args &a)
{
    size_t elem_bytes = a.kv.type == K_E4M3 ? 1 : 2;
    size_t head_bytes = 2 * (size_t)a.plan.tile_keys * (size_t)a.kv.head_dim * elem_bytes;

    if (head_bytes * (size_t)a.kv.n_kv_heads <= L2_BYTES)
        return a.kv.n_kv_heads;
    return head_bytes > L2_BYTES ? 1 : (int)(L2_BYTES / head_bytes);
}

template <class S> static int launch_chunk(chunk_args a, const k_bf16 *qkv, k_stream stream)
{
    static const int n_blocks = n_multiprocessors();
    int n_items = a.plan.n_tiles * a.kv.n_kv_heads;
    CUtensorMap q_map, kv_map;

    a.box_rows = a.kv.block_tokens < S::BLOCK ? a.kv.block_tokens : S::BLOCK;
    a.boxes = S::BLOCK / a.box_rows;
    a.page_shift = __builtin_ctz((unsigned)a.kv.block_tokens);
    a.box_shift = __builtin_ctz((unsigned)a.box_rows);
    a.layer_slabs = (int)(a.kv.layer_elems / (8 * S::HD));
    a.heads_together = heads_in_cache(a);
    if (describe_queries(&q_map, a, qkv) != 0 || describe_pages<S>(&kv_map, a) != 0)
        return -1;
    if (cudaFuncSetAttribute(sm90_attn_chunk_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(chunk_shared<S>)) != cudaSuccess)
        return -1;
    return K_LAUNCH(sm90_attn_chunk_kernel<S>, n_items < n_blocks ? n_items : n_blocks, S::THREADS,
                    sizeof(chunk_shared<S>), stream, q_map, kv_map, a);
}

template <bool E4M3>
static int choose_head_dim(const chunk_args &a, const k_bf16 *qkv, k_stream stream)
{
    switch (a.kv.head_dim) {
    case 64: return launch_chunk<shape<64, E4M3>>(a, qkv, stream);
    case 80: return launch_chunk<shape<80, E4M3>>(a, qkv, stream);
    case 96: return launch_chunk<shape<96, E4M3>>(a, qkv, stream);
    case 128: return launch_chunk<shape<128, E4M3>>(a, qkv, stream);
    default: return launch_chunk<shape<256, E4M3>>(a, qkv, stream);
    }
}

/* Copies want addresses and strides of 16 bytes, and pages of whole slabs. */
bool sm90_attn_chunk_takes(const struct k_kv *kv, const k_bf16 *qkv, int n_heads)
{
    int hd = kv->head_dim, bt = kv->block_tokens;

    return (hd == 64 || hd == 80 || hd == 96 || hd == 128 || hd == 256) && bt >= 8 &&
           (bt & (bt - 1)) == 0 && n_heads / kv->n_kv_heads <= ROWS &&
           (uintptr_t)kv->pages % 16 == 0 && (uintptr_t)qkv % 16 == 0 &&
           kv->page_elems % (size_t)(8 * hd) == 0 && kv->layer_elems % (size_t)(8 * hd) == 0;
}

int k_attn_chunk_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                      const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                      float scale, k_stream stream)
{
    bool is_e4m3 = kv->type == K_E4M3;
    chunk_args a = {};

    a.out = out;
    a.kv = *kv;
    a.t = *t;
    a.plan = *plan;
    a.n_heads = n_heads;
    a.scale = scale * LOG2_E * (is_e4m3 ? kv->k_scale : 1.0f);
    a.out_scale = is_e4m3 ? kv->v_scale : 1.0f;
    a.window = kv->window > 0 ? (uint32_t)kv->window : 1U << 31;
    return is_e4m3 ? choose_head_dim<true>(a, qkv, stream) : choose_head_dim<false>(a, qkv, stream);
}
