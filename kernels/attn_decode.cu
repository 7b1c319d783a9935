/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one query token per sequence, or of a run of them, over its pages, on tensor cores.
 *
 *   pages --TMA--> ring of stages (per warp) --ldmatrix--> S^T = K Q^T -> P^T -> O^T += V^T P^T
 *   warp's rows:  whole row -> out;  part of a row -> piece --+-- merge in the block
 *                                                             '-- merge between blocks (work)
 *
 * Split: k_attn_schedule() has cut the keys of all (sequence, kv head) rows, one row after another,
 * into equal shares, one per warp of a grid of one or two blocks per multiprocessor. A warp walks
 * over its share in tiles of 16 or 32 keys with a running softmax of its own, and loads tiles in
 * advance with the TMA into a ring of its own: nothing in the mainloop waits for another warp. A
 * warp's partial results of rows that it shares with others ("pieces") are merged at the end:
 * within the block through shared memory, between blocks ("parts") through plan->work, where the
 * last block to arrive merges the parts in their order and resets the counter to 0.
 *
 * The query heads of a kv head are the 8 columns (or 16; larger groups are cut) of both products,
 * so keys and values are the left operands, in the layout of the pages:
 *
 *     S^T [tokens][heads] = K [tokens][D] . Q^T      mma.m16n8k16, float32
 *     P^T = 2^(S^T - top)                            bf16, transposed by movmatrix
 *     O^T [D][heads]     += V^T [D][tokens] . P^T    V^T by ldmatrix.trans
 *
 * top is raised only when a score exceeds it by RISE, so that only this rare case pays for the
 * maximum over lanes and for rescaling O. fp8: bytes become float16 in registers, Q is float16
 * scaled by a power of two to below 2; V is transposed in units of two bytes, which a permutation
 * separates.
 *
 * Runs (kernels.h, k_attn_plan.places): decodes of one sequence at consecutive positions are one
 * item of up to 16 columns, [decode][head], each with an end and a window of its own. The item's
 * new keys, and those of the run in front of it, are put into its last tiles, as that of a single
 * decode is; its own are written to the pages by the warps that have these tiles.
 *
 * Shared memory: [warp][stage][K|V] tiles (decode_tile), 96 KB in flight per block, so that the
 * next kernel has room, of runs 64 KB and larger desks; barriers; the list of pieces. Pieces reuse
 * the ring.
 *
 * Bytes: every key and value once per block of heads, with an evict-first hint; 2 * group *
 * head_dim * 4 per part, of which a block has at most two. Same input, same bits; but shares depend
 * on the lengths of all sequences of the step, so a sequence's last bits depend on the other
 * sequences.
 *
 * Head sizes that are not a multiple of 8 elements (16 for fp8), and pages of other sizes than 2^n
 * >= 8: the same algorithm, but tiles are copied without the TMA and nothing is loaded in advance.
 *
 * Source: running softmax from FlashAttention-2 (arXiv:2307.08691), shares as in stream-K
 * (arXiv:2301.03598). */
#include "kernels/attn_brief.cuh"
#include "kernels/attn_decode_parts.cuh"
#include "kernels/choice.h"

#ifndef DECODE_PROMOTION
#define DECODE_PROMOTION CU_TENSOR_MAP_L2_PROMOTION_L2_128B
#endif
#define LOG2_E  1.44269504f
#define THREADS (DECODE_WARPS * 32)

/* WINDOWED: keys before a window are invisible (kernels.h, k_kv.window): a row's tiles begin with
 * the one that has the first visible key, and pages of that tile without a visible key are not
 * read. RUNS: an item has several decodes of a run. */
template <int D, int TYPE, int HEADS, bool WINDOWED, bool RUNS> struct decode {
    using warp = decode_warp<D, TYPE, HEADS, RUNS>;
    using tile = decode_tile<D, TYPE>;
    using state = typename warp::state;
    using parts = decode_parts<D, TYPE, HEADS, RUNS>;
    static constexpr int FRAGMENTS = parts::FRAGMENTS;
    static constexpr int PIECE = parts::PIECE;
    /* Shared memory: rings, desks, barriers, pieces. */
    static constexpr int DESKS_AT = DECODE_WARPS * warp::RING;
    static constexpr int BARRIERS_AT = DESKS_AT + DECODE_WARPS * warp::DESK;
    static constexpr int PIECES_AT = BARRIERS_AT + DECODE_WARPS * warp::STAGES * 8;
    static constexpr int SHARED = PIECES_AT + (2 * DECODE_WARPS + 1) * (int)sizeof(piece);

    static_assert(PIECE * 4 <= warp::RING, "a piece takes the ring's place");

    /* Blocks of heads are rare, and a division takes long. */
    static __device__ __forceinline__ int kv_head_of(const decode_args &a, int row)
    {
        return a.blocks == 1 ? row : row / a.blocks;
    }

    /* The first visible key of an item, and the tile that has it. */
    static __device__ __forceinline__ int lowest_of(const decode_args &a, const decode_item &it)
    {
        int later = RUNS ? decode_count_of(it) - 1 : 0;

        return WINDOWED ? decode_lowest(it.len - later, a.kv.window) : 0;
    }

    static __device__ __forceinline__ int first_tile(const decode_args &a, const decode_item &it)
    {
        return lowest_of(a, it) / tile::TOKENS;
    }

    /* --- loading tiles ------------------------------------------------------------------------ */

    /* The position of the loads, ahead of the tiles that are computed. */
    struct feed {
        const int32_t *pages;
        int item, row, tile, left;
        int row_tiles, n_pages, slab;
        int first_tile, first_page; /* visible */
        int base;                   /* page of lane 0 */
        int page, next;             /* ids of pages base + lane and base + 32 + lane */
        int stage;
        decode_item ahead; /* the next item */
    };

    /* The id of a page; for an invisible page, that of the first visible one. */
    static __device__ __forceinline__ int page_at(const feed &f, int page)
    {
        page = min(page, f.n_pages);
        return f.pages[WINDOWED ? max(page, f.first_page) : page];
    }

    /* Fetch the row's page ids from f.tile on; the previous row's are valid if it begins with the
     * same page. */
    static __device__ __forceinline__ void feed_row(feed &f, const decode_args &a, bool same_item)
    {
        int lane = threadIdx.x % 32;
        int base = (f.first_tile + f.tile) * tile::TOKENS >> a.page_shift;

        f.slab = a.slab + kv_head_of(a, f.row);
        if (same_item && base == f.base)
            return;
        f.base = base;
        f.page = page_at(f, base + lane);
        f.next = page_at(f, base + 32 + lane);
    }

    /* Begin a new sequence: its tiles, its page table, and the item after it, whose load is hidden
     * by the tiles of this one. */
    static __device__ __forceinline__ void feed_item(feed &f, const decode_args &a,
                                                     const decode_item &it)
    {
        int seq = RUNS ? decode_seq_of(it) : it.seq;

        f.first_tile = first_tile(a, it);
        f.first_page = lowest_of(a, it) >> a.page_shift;
        f.row_tiles = (it.len + tile::TOKENS - 1) / tile::TOKENS - f.first_tile;
        f.n_pages = (it.len - 1) >> a.page_shift;
        f.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        f.ahead = a.schedule->items[f.item + 1];
        feed_row(f, a, false);
    }

    /* Load the next tile. Each lane issues the copy of one box: the rows of a page, in all panels
     * or one. */
    static __device__ __forceinline__ void feed_tile(feed &f, const decode_args &a,
                                                     const CUtensorMap *map, uint32_t ring,
                                                     uint32_t barriers, uint64_t policy)
    {
        int lane = threadIdx.x % 32, side = lane & 1;
        int box = lane >> 1 & ((1 << a.box_shift) - 1), panel = lane >> (1 + a.box_shift);
        int pos = (f.first_tile + f.tile) * tile::TOKENS, page = pos >> a.page_shift;
        uint32_t full = barriers + f.stage * 8;

        if (f.left == 0)
            return;
        if (page - f.base >= 32) {
            f.base += 32;
            f.page = f.next;
            f.next = page_at(f, f.base + 32 + lane);
        }
        page = __shfl_sync(~0U, f.page, page - f.base + box);
        if (lane == 0)
            decode_full_expect(full, tile::STAGE);
        __syncwarp();
        if (panel < a.panel_boxes) {
            int at[5] = {panel * (tile::PANEL / tile::ELEM), pos & ((1 << a.page_shift) - 1), 0,
                         f.slab + side * a.kv.n_kv_heads, page};

            decode_copy_box(ring + f.stage * tile::STAGE + side * tile::BYTES +
                                panel * tile::TOKENS * tile::PANEL + box * a.box_bytes,
                            map, full, at, policy);
        }
        f.stage = f.stage + 1 == warp::STAGES ? 0 : f.stage + 1;
        f.left--;
        if (++f.tile == f.row_tiles && f.left > 0) {
            f.tile = 0;
            if (++f.row < a.kv.n_kv_heads * a.blocks) {
                feed_row(f, a, true);
            } else {
                f.row = 0;
                f.item++;
                feed_item(f, a, f.ahead);
            }
        }
    }

    /* Where a block writes its part of a row that began before it, and of a row that continues
     * after it. */
    static __device__ __forceinline__ float *part_at(const decode_args &a, int block, bool begins)
    {
        return a.work + ((size_t)block * 2 + begins) * PIECE;
    }

    /* Where a warp writes the piece of a row that began in another warp's share. */
    static __device__ __forceinline__ float *stash_at(const decode_args &a)
    {
        int worker = blockIdx.x * DECODE_WARPS + threadIdx.x / 32;

        return a.work + ((size_t)2 * DECODE_CTAS + worker) * PIECE;
    }

    /* Pieces p .. q - 1 belong to one row: merge them and write the row, or the block's part of
     * it. */
    static __device__ __forceinline__ void merge_pieces(const decode_args &a, const piece *pieces,
                                                        int p, int q, bool whole)
    {
        const piece &first = pieces[p];
        const float *from[parts::MANY];

#pragma unroll
        for (int idx = 0; idx < parts::MANY; idx++)
            from[idx] = p + idx < q ? pieces[p + idx].at : NULL;
        parts::mix_pieces(a, first, from, whole ? NULL : part_at(a, blockIdx.x, first.begins));
    }

    /* Count this block's part of a row; the last of the row's blocks to arrive merges all parts,
     * reading up to BATCH at a time. */
    static __device__ __forceinline__ void join_parts(const decode_args &a, const piece &p,
                                                      int *arrived)
    {
        const decode_span span = a.schedule->spans[blockIdx.x][p.begins];
        constexpr int BATCH = 8;
        int idle = parts::idle_shift(p);

        __syncthreads();
        if (threadIdx.x == 0)
            *arrived = decode_add_and_see(&a.schedule->counters[span.from]);
        __syncthreads();
        if (*arrived < span.to - span.from)
            return;
        if (span.to - span.from < parts::MANY) {
            const float *from[parts::MANY];

#pragma unroll
            for (int idx = 0; idx < parts::MANY; idx++)
                from[idx] =
                    span.from + idx <= span.to ? part_at(a, span.from + idx, idx == 0) : NULL;
            parts::mix_pieces(a, p, from, NULL);
            if (threadIdx.x == 0)
                a.schedule->counters[span.from] = 0;
            return;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < FRAGMENTS >> idle; i += THREADS) {
            int index = parts::index_of(i, idle);
            merged total = parts::merge_begin();

            if (!parts::has_heads(p, index))
                continue;
#pragma unroll 1
            for (int block = span.from; block <= span.to; block += BATCH) {
                merged part[BATCH];

#pragma unroll
                for (int idx = 0; idx < BATCH; idx++) {
                    if (block + idx <= span.to)
                        part[idx] = parts::merge_load(
                            part_at(a, block + idx, block + idx == span.from), index);
                }
#pragma unroll
                for (int idx = 0; idx < BATCH; idx++) {
                    if (block + idx <= span.to)
                        parts::merge_add(total, part[idx]);
                }
            }
            parts::write_merged(a, p, total, index);
        }
        if (threadIdx.x == 0)
            a.schedule->counters[span.from] = 0;
    }

    /* Merge all pieces of the block, row by row. */
    static __device__ void finish_block(const decode_args &a, const piece *pieces, int *arrived)
    {
        const int n = 2 * DECODE_WARPS;

#pragma unroll 1
        for (int p = 0, end; p < n; p = end) {
            int last = p;

            end = p + 1;
            if (pieces[p].at == NULL)
                continue;
#pragma unroll 1
            while (end < n && (pieces[end].at == NULL || pieces[end].start == pieces[p].start)) {
                last = pieces[end].at == NULL ? last : end;
                end++;
            }
            merge_pieces(a, pieces, p, end, pieces[p].begins && pieces[last].ends);
            if (!(pieces[p].begins && pieces[last].ends))
                join_parts(a, pieces[p], arrived);
        }
    }

    /* --- the mainloop ------------------------------------------------------------------------- */

    /* A warp's position in its share, and its resources. */
    struct walk {
        decode_item it, ahead; /* the item, and the next one */
        int item, row, tile, left;
        int side;     /* which of the desk's two places has the row's new key and value */
        bool has_new; /* of a run: those of the first segment have been asked for */
        int stage;
        uint32_t parity;
        feed f;
        char *ring, *desk;
        uint32_t barriers;
        uint64_t policy;
    };

    /* The part of a row that is in a share. */
    struct segment {
        int row_tiles, n;
        int first_tile, lowest;     /* visible */
        int kv_head, head, n_heads; /* of a run n_heads are its columns */
        int count, before;          /* of a run: decodes of the item, and in front of it */
        bool is_first;              /* of the kv head's blocks of heads */
        bool begins, ends, more;
        bool inserts; /* this warp adds the step's key and value, of a run some of them */
        const k_bf16 *token;
        const float2 *turn;
    };

    /* The part of a row in a share, from tile `tile` on with `left` tiles to go. */
    static __device__ __forceinline__ segment segment_at(const decode_args &a,
                                                         const decode_item &it, int row, int tile,
                                                         int left)
    {
        segment part;
        int block;

        part.lowest = lowest_of(a, it);
        part.first_tile = first_tile(a, it);
        part.row_tiles = (it.len + tile::TOKENS - 1) / tile::TOKENS - part.first_tile;
        part.n = min(left, part.row_tiles - tile);
        part.kv_head = kv_head_of(a, row);
        block = row - part.kv_head * a.blocks;
        part.head = part.kv_head * a.group + block * HEADS;
        part.n_heads = min(HEADS, a.group - block * HEADS);
        part.count = RUNS ? decode_count_of(it) : 1;
        part.before = RUNS ? decode_before_of(it) : 0;
        if (RUNS)
            part.n_heads = a.group * part.count;
        part.is_first = block == 0;
        part.begins = tile == 0;
        part.ends = tile + part.n == part.row_tiles;
        part.more = left > part.n;
        part.inserts = warp::TURNS && part.ends && a.turns != NULL;
        if (RUNS)
            part.inserts = a.turns != NULL && (part.first_tile + tile + part.n) * tile::TOKENS >
                                                  it.len - part.count - part.before;
        part.token = a.qkv + (size_t)it.token * a.width;
        part.turn = !warp::TURNS || a.turns == NULL
                        ? NULL
                        : (const float2 *)a.turns + (size_t)(it.len - 1) * (a.kv.head_dim / 2);
        return part;
    }

    /* Copy the queries of a segment to the desk, asynchronously. */
    static __device__ __forceinline__ void ask_segment(const walk &w, const decode_args &a,
                                                       const segment &s, int side)
    {
        if constexpr (RUNS)
            warp::ask_run(w.desk, a, s.token, s.head, s.n_heads);
        else
            warp::ask_row(w.desk, a, s.token, s.head, s.n_heads, s.kv_head, side, s.inserts);
    }

    /* Prefetch the queries of the next row. */
    static __device__ __forceinline__ void ask_next(const walk &w, const decode_args &a,
                                                    const segment &s)
    {
        int row = w.row + 1;
        bool same = row < a.kv.n_kv_heads * a.blocks;
        decode_item it;

        if (!s.more)
            return;
        it.seq = same ? w.it.seq : w.ahead.seq;
        it.len = same ? w.it.len : w.ahead.len;
        it.token = same ? w.it.token : w.ahead.token;
        ask_segment(w, a, segment_at(a, it, same ? row : 0, 0, w.left - s.n), w.side ^ 1);
    }

    /* Begin a row: prepare its queries, and the step's key and value if the row ends in this
     * share. */
    template <bool NORMED>
    static __device__ __forceinline__ void begin_row(walk &w, state &st, const decode_args &a,
                                                     const segment &s)
    {
        int hd = a.kv.head_dim;
        char *rows = w.desk + (HEADS + 2 * w.side) * warp::DESK_ROW;

        decode_copy_async_wait();
        __syncwarp();
        if (hd % 8 != 0)
            warp::lay_queries(w.desk, s.token + s.head * hd, s.n_heads, hd, s.turn);
        else if (s.turn != NULL)
            warp::template turn_queries<NORMED>(w.desk, a, s.n_heads, hd, s.turn);
        if (s.inserts && hd % 8 != 0)
            warp::lay_new(rows, a, s.token + (a.n_heads + s.kv_head) * hd, s.turn);
        else if (s.inserts)
            warp::template turn_new<NORMED>(rows, a, s.turn);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < warp::NT; n++)
            warp::take_queries(st, a, n, w.desk + n * 8 * warp::DESK_ROW, s.n_heads - n * 8);
        if (s.inserts && s.is_first)
            warp::store_new(rows, a, w.it.seq, w.it.len - 1, s.kv_head);
        __syncwarp();
    }

    /* The same of a run: the queries of all its decodes; of the new keys and values those that are
     * in the segment. Only those of the item's own decodes are written to the pages, because other
     * items have the other ones. */
    template <bool NORMED>
    static __device__ __forceinline__ void begin_run(walk &w, state &st, const decode_args &a,
                                                     const segment &s)
    {
        int n_new = s.count + s.before, first = w.it.len - n_new;
        int from = max(0, (s.first_tile + w.tile) * tile::TOKENS - first);
        int to = min(n_new, (s.first_tile + w.tile + s.n) * tile::TOKENS - first);
        char *rows = w.desk + HEADS * warp::DESK_ROW;
        const float2 *turn = (const float2 *)a.turns + (size_t)first * (D / 2);
        float4 turns[DECODE_TOGETHER][warp::PAIRS];

        if (s.inserts && !w.has_new)
            warp::ask_new(rows, a, s.token - (size_t)s.before * a.width, s.kv_head, n_new);
        w.has_new = false;
        if (a.turns != NULL)
            warp::load_turns(turns, turn + s.before * (D / 2), s.count);
        decode_copy_async_wait();
        __syncwarp();
        if (a.turns != NULL) {
            warp::template turn_run<NORMED>(w.desk, a, s.count, turns);
            if (s.inserts) {
                warp::template turn_new_run<NORMED>(rows, a, turn, from, to);
                __syncwarp();
                warp::store_run(rows, a, decode_seq_of(w.it), first, max(from, s.before), to,
                                s.kv_head);
            }
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < warp::NT; n++)
            warp::take_queries(st, a, n, w.desk + n * 8 * warp::DESK_ROW, s.n_heads - n * 8);
        __syncwarp();
    }

    /* The tiles of a segment: wait for a stage, add the new key, clear values outside the sequence
     * or before the window, multiply, and load another tile into the stage. */
    template <bool NORMED>
    static __device__ __forceinline__ void walk_row(walk &w, state &st, const decode_args &a,
                                                    const CUtensorMap *map, const segment &s)
    {
        if constexpr (RUNS)
            begin_run<NORMED>(w, st, a, s);
        else
            begin_row<NORMED>(w, st, a, s);
        ask_next(w, a, s);
#pragma unroll 1
        for (int i = 0; i < s.n; i++) {
            char *stage = w.ring + w.stage * tile::STAGE;
            int pos = (s.first_tile + w.tile + i) * tile::TOKENS;
            int valid = w.it.len - pos, before = s.lowest - pos;

            if (a.by_hand)
                warp::template copy_by_hand<WINDOWED>(stage, a, w.it, s.kv_head, pos, s.lowest);
            else
                decode_full_wait(w.barriers + w.stage * 8, w.parity);
            if (RUNS && s.inserts && pos + tile::TOKENS > w.it.len - s.count - s.before) {
                warp::insert_run(stage, pos, w.desk + HEADS * warp::DESK_ROW,
                                 w.it.len - s.count - s.before, s.count + s.before);
                fence_async();
                __syncwarp();
            }
            if (valid <= tile::TOKENS) {
                if (!RUNS && s.inserts)
                    warp::insert_new(stage, valid - 1,
                                     w.desk + (HEADS + 2 * w.side) * warp::DESK_ROW, a.kv.head_dim);
                warp::blank_values(stage + tile::BYTES, valid);
                fence_async();
                __syncwarp();
            }
            if (WINDOWED && before > 0) {
                warp::blank_front(stage + tile::BYTES, before);
                fence_async();
                __syncwarp();
            }
            if constexpr (RUNS)
                warp::template take_run_tile<WINDOWED>(
                    st, shared_addr(stage),
                    {valid, w.it.len, pos, s.count - 1, a.group, a.kv.window});
            else
                warp::template take_tile<WINDOWED>(st, shared_addr(stage), valid, before);
            __syncwarp();
            feed_tile(w.f, a, map, shared_addr(w.ring), w.barriers, w.policy);
            if (!a.by_hand && ++w.stage == warp::STAGES) {
                w.stage = 0;
                w.parity ^= 1;
            }
        }
    }

    /* Walk over the share row by row. Whole rows are written to out; the piece of the first row
     * goes to work, that of the last row to the ring, which is free by then. */
    template <bool NORMED>
    static __device__ __forceinline__ void walk_share(walk &w, const decode_args &a,
                                                      const CUtensorMap *map, piece *pieces)
    {
        state st;

#pragma unroll 1
        while (w.left > 0) {
            segment part = segment_at(a, w.it, w.row, w.tile, w.left);

            warp::clear(st);
            walk_row<NORMED>(w, st, a, map, part);
            warp::add_sums(st);
            if (part.begins && part.ends) {
                parts::write_row(a, st, w.it.token, part.head, part.n_heads);
            } else {
                float *to = part.more ? stash_at(a) : (float *)w.ring;

                parts::write_piece(to, st, part.n_heads);
                if (threadIdx.x % 32 == 0)
                    pieces[part.more ? 0 : 1] = {to,           w.it.first + w.row * part.row_tiles,
                                                 w.it.token,   part.head,
                                                 part.n_heads, part.begins,
                                                 part.ends};
            }
            w.left -= part.n;
            w.tile = 0;
            w.side ^= 1;
            if (++w.row == a.kv.n_kv_heads * a.blocks) {
                w.row = 0;
                w.it = w.ahead;
                if (w.left > 0)
                    w.ahead = a.schedule->items[++w.item + 1];
            }
        }
    }

    /* The load position begins where the computation does. */
    static __device__ __forceinline__ void begin_share(walk &w, const decode_worker &mine,
                                                       const decode_args &a, char *shared)
    {
        int index = threadIdx.x / 32;

        w.it = mine.first;
        if (mine.n > 0)
            w.ahead = a.schedule->items[mine.item + 1];
        w.item = mine.item, w.row = mine.row, w.tile = mine.tile, w.left = mine.n;
        w.side = 0;
        w.stage = 0;
        w.parity = 0;
        w.ring = shared + index * warp::RING;
        w.desk = shared + DESKS_AT + index * warp::DESK;
        w.barriers = shared_addr(shared + BARRIERS_AT) + index * warp::STAGES * 8;
        w.policy = decode_evict_first();
        w.f.item = mine.item, w.f.row = mine.row, w.f.tile = mine.tile;
        w.f.left = a.by_hand ? 0 : mine.n;
        w.f.stage = 0;
        if (w.f.left > 0)
            feed_item(w.f, a, mine.first);
    }

    /* Queries are the previous launch's result: wait for it before they are read. */
    static __device__ __forceinline__ void wait_and_ask(walk &w, const decode_args &a)
    {
        decode_wait_for_previous();
        if (w.left > 0) {
            segment s = segment_at(a, w.it, w.row, w.tile, w.left);

            ask_segment(w, a, s, w.side);
            if (RUNS && s.inserts)
                warp::ask_new(w.desk + HEADS * warp::DESK_ROW, a,
                              s.token - (size_t)s.before * a.width, s.kv_head, s.count + s.before);
        }
        w.has_new = RUNS;
    }
};

/* NORMED: heads of 128 or 256 that are normed before they are rotated. */
template <int D, int TYPE, int HEADS, bool NORMED, bool WINDOWED, bool RUNS>
static __global__ void __launch_bounds__(THREADS, 2)
    attn_decode_kernel(const __grid_constant__ CUtensorMap map,
                       const __grid_constant__ decode_args a)
{
    using k = decode<D, TYPE, HEADS, WINDOWED, RUNS>;
    extern __shared__ __align__(1024) char shared[];
    piece *pieces = (piece *)(shared + k::PIECES_AT);
    int index = threadIdx.x / 32;
    decode_worker mine = a.schedule->workers[blockIdx.x * DECODE_WARPS + index];
    typename k::walk w;

    if (threadIdx.x % 32 == 0) {
        tensor_prefetch(&map);
        pieces[2 * index].at = pieces[2 * index + 1].at = NULL;
        for (int i = 0; i < k::warp::STAGES; i++)
            decode_full_init(shared_addr(shared + k::BARRIERS_AT) +
                             (index * k::warp::STAGES + i) * 8);
        barrier_init_done();
    }
    __syncwarp();
    k::begin_share(w, mine, a, shared);
    /* With rotary, the previous launch writes nothing to the pages, so tiles can be loaded before
     * it ends. */
    if (a.turns == NULL)
        k::wait_and_ask(w, a);
#pragma unroll 1
    for (int i = 0; i < k::warp::STAGES; i++)
        k::feed_tile(w.f, a, &map, shared_addr(w.ring), w.barriers, w.policy);
    if (a.turns != NULL)
        k::wait_and_ask(w, a);
    decode_let_next_begin();
    k::template walk_share<NORMED>(w, a, &map, pieces + 2 * index);
    __syncthreads();
    k::finish_block(a, pieces, (int *)(pieces + 2 * DECODE_WARPS));
}

/* --- launch ------------------------------------------------------------------------------ */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Map the pages as [page][slab][panel][token][element of the panel]. If a tile has several pages,
 * or the panels have more elements than the head, a box is one panel of [head_dim] elements, and
 * the elements after these become zero. */
template <int D, int TYPE> static int decode_map_pages(CUtensorMap *map, decode_args &a)
{
    using tile = decode_tile<D, TYPE>;
    const struct k_kv &kv = a.kv;
    cuuint64_t elem = tile::ELEM, row = kv.head_dim * elem, slab = row * kv.page_tokens;
    int bt = kv.page_tokens, box_tokens = bt < tile::TOKENS ? bt : tile::TOKENS;
    bool apart = bt < tile::TOKENS || row != (cuuint64_t)tile::PANELS * tile::PANEL;
    cuuint32_t panel = tile::PANEL / tile::ELEM, panels = apart ? 1 : tile::PANELS;
    cuuint64_t sizes[5] = {apart ? (cuuint64_t)kv.head_dim : panel, (cuuint64_t)bt, panels,
                           kv.page_elems * elem / slab, (cuuint64_t)1 << 31};
    cuuint64_t strides[4] = {row, tile::PANEL, slab, kv.page_elems * elem};
    cuuint32_t box[5] = {panel, (cuuint32_t)box_tokens, panels, 1, 1}, ones[5] = {1, 1, 1, 1, 1};
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;

    a.page_shift = 31 - __builtin_clz((unsigned)bt);
    a.box_shift = bt < tile::TOKENS ? 31 - __builtin_clz((unsigned)(tile::TOKENS / bt)) : 0;
    a.box_bytes = box_tokens * tile::PANEL;
    a.panel_boxes = apart ? tile::PANELS : 1;
    a.slab = (int)(kv.layer_elems * elem / slab);
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return -1;
    return ((encode_fn)encode)(
               map,
               TYPE == K_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 5,
               kv.pages, sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
               tile::PANEL == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
               : tile::PANEL == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                   : CU_TENSOR_MAP_SWIZZLE_32B,
               DECODE_PROMOTION, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : -1;
}

typedef void (*decode_kernel)(CUtensorMap, decode_args);

/* The arguments of a launch that depend on the kernel's template. */
struct decode_launch {
    decode_kernel kernel;
    int n_ctas, shared;
};

/* Programmatic stream serialization lets the kernel begin while the previous one ends. */
static int decode_begin(const decode_launch &l, const CUtensorMap &map, const decode_args &a,
                        const struct k_attn_plan *plan, k_stream stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute((const void *)l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             l.shared) != cudaSuccess)
        return -1;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = l.n_ctas;
    config.blockDim = THREADS;
    config.dynamicSmemBytes = l.shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = plan->overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, l.kernel, map, a) == cudaSuccess ? 0 : -1;
}

/* The page map is encoded per launch: its pointers and strides may have changed with the layer. */
template <int D, int TYPE, int HEADS, bool NORMED, bool WINDOWED, bool RUNS>
static int decode_launch_shape(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    using k = decode<D, TYPE, HEADS, WINDOWED, RUNS>;
    decode_launch l = {attn_decode_kernel<D, TYPE, HEADS, NORMED, WINDOWED, RUNS>,
                       decode_ctas(&a.kv, plan->n_decodes / a.together), k::SHARED};
    CUtensorMap map = {};

    a.by_hand = !decode_engine_reads(a.kv, k::tile::ELEM);
    if (!a.by_hand && decode_map_pages<D, TYPE>(&map, a) != 0)
        return -1;
    if constexpr (RUNS) {
        using b = brief<D, TYPE, WINDOWED, true>;

        if (k_attn_is_brief_sm90(plan, &a.kv, a.n_heads))
            l = {attn_brief_run_kernel<D, TYPE, NORMED, WINDOWED>,
                 (plan->n_decodes + a.together - 1) / a.together * a.kv.n_kv_heads * b::RANKS,
                 b::SHARED};
    } else if constexpr (HEADS == 8) {
        using b = brief<D, TYPE, WINDOWED, false>;

        if (k_attn_is_brief_sm90(plan, &a.kv, a.n_heads))
            l = {attn_brief_kernel<D, TYPE, NORMED, WINDOWED>,
                 plan->n_decodes * a.kv.n_kv_heads * b::RANKS, b::SHARED};
    }
    return decode_begin(l, map, a, plan, stream);
}

template <int D, int TYPE, int HEADS, bool NORMED>
static int decode_choose_window(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    return a.kv.window > 0
               ? decode_launch_shape<D, TYPE, HEADS, NORMED, true, false>(a, plan, stream)
               : decode_launch_shape<D, TYPE, HEADS, NORMED, false, false>(a, plan, stream);
}

/* Runs whose keys are read once for several decodes. */
template <int D, int TYPE, bool NORMED>
static int decode_launch_runs(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    constexpr int N = DECODE_COLUMNS;

    return a.kv.window > 0 ? decode_launch_shape<D, TYPE, N, NORMED, true, true>(a, plan, stream)
                           : decode_launch_shape<D, TYPE, N, NORMED, false, true>(a, plan, stream);
}

/* The smallest kernel that holds the group: 8 or 16 heads at a time. */
template <int D, int TYPE, bool NORMED>
static int decode_choose_heads(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    return a.group <= 8 ? decode_choose_window<D, TYPE, 8, NORMED>(a, plan, stream)
                        : decode_choose_window<D, TYPE, 16, NORMED>(a, plan, stream);
}

/* The head sizes that k_attn_joins_sm90() knows. */
template <int TYPE>
static int decode_choose_runs(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    if (a.q_norm != NULL)
        return a.kv.head_dim == 128   ? decode_launch_runs<128, TYPE, true>(a, plan, stream)
               : a.kv.head_dim == 256 ? decode_launch_runs<256, TYPE, true>(a, plan, stream)
                                      : -1;
    return a.kv.head_dim == 64    ? decode_launch_runs<64, TYPE, false>(a, plan, stream)
           : a.kv.head_dim == 128 ? decode_launch_runs<128, TYPE, false>(a, plan, stream)
                                  : decode_launch_runs<256, TYPE, false>(a, plan, stream);
}

/* The smallest head size that was built and is not below the model's. */
template <int TYPE>
static int decode_choose_d(decode_args &a, const struct k_attn_plan *plan, k_stream stream)
{
    if (a.places != NULL)
        return decode_choose_runs<TYPE>(a, plan, stream);
    if (a.q_norm != NULL)
        return a.kv.head_dim == 128   ? decode_choose_heads<128, TYPE, true>(a, plan, stream)
               : a.kv.head_dim == 256 ? decode_choose_heads<256, TYPE, true>(a, plan, stream)
                                      : -1;
    switch (decode_d(a.kv.head_dim)) {
    case 64: return decode_choose_heads<64, TYPE, false>(a, plan, stream);
    case 80: return decode_choose_heads<80, TYPE, false>(a, plan, stream);
    case 96: return decode_choose_heads<96, TYPE, false>(a, plan, stream);
    case 128: return decode_choose_heads<128, TYPE, false>(a, plan, stream);
    case 256: return decode_choose_heads<256, TYPE, false>(a, plan, stream);
    default: return decode_choose_window<512, TYPE, 8, false>(a, plan, stream);
    }
}

int k_attn_is_brief_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads)
{
    int elem = kv->type == K_BF16 ? 2 : 1;

    int is_short = plan->is_short || (kv->window > 0 && kv->window <= K_ATTN_SHORT);
    int together =
        k_attn_joins_sm90(plan, kv, n_heads) ? decode_together(n_heads / kv->n_kv_heads) : 1;

    if (k_attn_is_window_sm90(plan, kv, n_heads))
        return 1;
    return is_short && decode_engine_reads(*kv, elem) && n_heads / kv->n_kv_heads <= 8 &&
           plan->n_decodes * kv->n_kv_heads <= BRIEF_ROWS * together;
}

int k_attn_rotates_sm90(const struct k_rotary *r, const struct k_kv *kv)
{
    if (kv->is_shared || r->norms_values || kv->head_dim > 256)
        return 0;
    return r->q_norm == NULL || ((kv->head_dim == 128 || kv->head_dim == 256) && !r->norms_after);
}

/* All scores are in units of log2, so that weights need exp2 only. */
int k_attn_decode_sm90(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                       const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                       float scale, k_stream stream)
{
    decode_args args = {};

    args.out = out;
    args.qkv = qkv;
    if (plan->rotary != NULL) {
        args.turns = plan->rotary->turns;
        args.q_norm = (const k_bf16 *)plan->rotary->q_norm;
        args.k_norm = (const k_bf16 *)plan->rotary->k_norm;
        args.eps = plan->rotary->eps;
    }
    args.kv = *kv;
    args.t = *t;
    args.decode_seqs = plan->decode_seqs;
    args.n_decodes = plan->n_decodes;
    args.together = 1;
    if (k_attn_joins_sm90(plan, kv, n_heads)) {
        args.places = plan->places;
        args.together = decode_together(n_heads / kv->n_kv_heads);
    }
    args.schedule = (decode_schedule *)plan->schedule;
    args.work = (float *)plan->work;
    args.n_heads = n_heads;
    args.group = n_heads / kv->n_kv_heads;
    args.blocks = decode_blocks(kv->head_dim, args.group);
    args.width = k_qkv_heads(kv, n_heads) * kv->head_dim;
    args.is_half = plan->out_is_half;
    args.gates = plan->gates;
    args.scale = scale * LOG2_E;
    args.weight = 1.0f;
    if (kv->type != K_BF16) {
        args.scale *= kv->k_scale;
        args.weight = kv->v_scale;
    }
    if (k_attn_is_window_sm90(plan, kv, n_heads))
        return k_attn_window_sm90(&args, plan->overlap, stream);
    return kv->type == K_BF16 ? decode_choose_d<K_BF16>(args, plan, stream)
                              : decode_choose_d<K_E4M3>(args, plan, stream);
}
