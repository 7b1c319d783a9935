/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode attention for few sequences with short contexts.
 *
 * Split: a cluster of eight blocks per (sequence, kv head); its 32 warps take the row's tiles in
 * turn, two ahead. Each block merges the partial results of its warps and sends each rank an eighth
 * of the elements; after a cluster barrier each rank merges eight parts:
 *
 *   tiles 0 1 2 ... 31 32 ...  -> warps of 8 blocks (each with a softmax of its own)
 *   4 warps -> 1 part per block -> through distributed shared memory -> rank r merges 1/8
 *
 * Runs: the clusters of decodes that begin no item end at once.
 *
 * No plan is read, and the code that runs once is half as long as attn_decode.cu's, because here
 * the latency of the whole path counts and not its throughput.
 *
 * Shared memory per block: rings 64 KB, desks 13 KB, barriers, the ranks' parts 8 KB (head size
 * 128): two blocks per multiprocessor, or one beside the next product. Heads above 256 have rings
 * of 128 KB and fill a multiprocessor. Bytes: every key and value once. Same input, same bits,
 * whatever other sequences the step has. */
#ifndef QUIRE_KERNELS_ATTN_BRIEF_CUH
#define QUIRE_KERNELS_ATTN_BRIEF_CUH

#include <cooperative_groups.h>

#include "kernels/attn_decode_parts.cuh"

namespace cg = cooperative_groups;

#define BRIEF_ROWS 16 /* rows (sequence, kv head) up to which it is faster */

template <int D, int TYPE, bool WINDOWED, bool RUNS> struct brief {
    static constexpr int HEADS = RUNS ? DECODE_COLUMNS : 8;
    using warp = decode_warp<D, TYPE, HEADS, RUNS>;
    using parts = decode_parts<D, TYPE, HEADS, RUNS>;
    using tile = decode_tile<D, TYPE>;
    using state = typename warp::state;
    static constexpr int RANKS = 8;
    static constexpr int WORKERS = RANKS * DECODE_WARPS;
    static constexpr int SLOTS =
        (warp::STEPS * warp::NT + RANKS - 1) / RANKS; /* steps of O^T that a rank merges */
    /* Two blocks per multiprocessor, and room for the next product's block. A piece fits, too. */
    static constexpr int LEAST = (parts::PIECE * 4 + tile::STAGE - 1) / tile::STAGE;
    static constexpr int STAGES = tile::STAGE > 24576 ? 1 : LEAST > 2 ? LEAST : 2;
    static constexpr int RING = STAGES * tile::STAGE;
    /* Shared memory: rings, desks, barriers, the ranks' parts. Of a run the warps' desks have new
     * keys and values, and one in front of them the queries. */
    static constexpr int QUERIES_AT = DECODE_WARPS * RING;
    static constexpr int DESKS_AT = QUERIES_AT + (RUNS ? HEADS * warp::DESK_ROW : 0);
    static constexpr int DESK = RUNS ? 2 * K_RUN_MAX * warp::DESK_ROW : warp::DESK;
    static constexpr int BARRIERS_AT = DESKS_AT + DECODE_WARPS * DESK;
    static constexpr int INBOX_AT = BARRIERS_AT + DECODE_WARPS * STAGES * 8;
    static_assert(parts::PIECE * 4 <= RING && DECODE_WARPS * STAGES % 2 == 0,
                  "a piece takes the ring's place");
    static constexpr int SHARED = INBOX_AT + RANKS * SLOTS * 32 * (int)sizeof(merged);

    /* The walk of a warp: tiles worker, worker + WORKERS, ... of a row, from the one with the first
     * visible key on. */
    struct run {
        const int32_t *pages;
        int len, n_pages, kv_head;
        int lowest, first_tile, first_page; /* visible */
        int count, before;                  /* of a run: decodes here, and in front of them */
        int next, n_tiles;                  /* to be loaded */
        int stage;                          /* into which the next tile is loaded */
        int taken;                          /* of a run: from which the next one is taken */
        uint32_t parity;
        char *ring, *desk;
        uint32_t barriers;
    };

    /* Load the next tile; each lane issues the copy of one box. */
    static __device__ __forceinline__ void ask_tile(run &r, const decode_args &a,
                                                    const CUtensorMap *map, uint64_t policy)
    {
        int lane = threadIdx.x % 32, side = lane & 1;
        int box = lane >> 1 & ((1 << a.box_shift) - 1), panel = lane >> (1 + a.box_shift);
        int pos = r.next * tile::TOKENS;
        uint32_t full = r.barriers + r.stage * 8;

        if (r.next >= r.n_tiles)
            return;
        if (lane == 0)
            decode_full_expect(full, tile::STAGE);
        __syncwarp();
        if (panel < a.panel_boxes) {
            int index = min((pos >> a.page_shift) + box, r.n_pages);
            int page = r.pages[WINDOWED ? max(index, r.first_page) : index];
            int at[5] = {panel * (tile::PANEL / tile::ELEM), pos & ((1 << a.page_shift) - 1), 0,
                         a.slab + r.kv_head + side * a.kv.n_kv_heads, page};

            decode_copy_box(shared_addr(r.ring) + r.stage * tile::STAGE + side * tile::BYTES +
                                panel * tile::TOKENS * tile::PANEL + box * a.box_bytes,
                            map, full, at, policy);
        }
        r.stage = r.stage + 1 == STAGES ? 0 : r.stage + 1;
        r.next += WORKERS;
    }

    /* Prepare the queries, and the step's key and value in the warp that has the last tile. */
    template <bool NORMED>
    static __device__ __forceinline__ void begin(const run &r, state &st, const decode_args &a,
                                                 const k_bf16 *token, int seq, int token_idx,
                                                 bool inserts)
    {
        int hd = a.kv.head_dim;
        const float2 *turn = !warp::TURNS || a.turns == NULL
                                 ? NULL
                                 : (const float2 *)a.turns + (size_t)(r.len - 1) * (hd / 2);
        char *rows = r.desk + 8 * warp::DESK_ROW;

        warp::ask_row(r.desk, a, token, r.kv_head * a.group, a.group, r.kv_head, 0, inserts);
        decode_copy_async_wait();
        __syncwarp();
        if (turn != NULL)
            warp::template turn_queries<NORMED>(r.desk, a, a.group, hd, turn);
        if (inserts)
            warp::template turn_new<NORMED>(rows, a, turn);
        __syncwarp();
        warp::take_queries(st, a, 0, r.desk, a.group);
        if (inserts)
            warp::store_new(rows, a, seq, r.len - 1, r.kv_head);
        __syncwarp();
    }

    /* Does this warp have a tile with new keys of a run? There are two such tiles at most, of
     * different warps: *from .. *to - 1 are the keys in it. */
    static __device__ __forceinline__ bool has_new(const run &r, int worker, int *from, int *to)
    {
        int n_new = r.count + r.before, first = r.len - n_new;
        int tile_idx = (r.len - 1) / tile::TOKENS;

        if ((tile_idx - r.first_tile) % WORKERS != worker)
            tile_idx = first / tile::TOKENS;
        *from = max(0, tile_idx * tile::TOKENS - first);
        *to = min(n_new, (tile_idx + 1) * tile::TOKENS - first);
        return (tile_idx - r.first_tile) % WORKERS == worker;
    }

    /* The item that begins with decode `at`, sequence seq. False: none does, or it has no keys. */
    static __device__ __forceinline__ bool find_item(run &r, const decode_args &a, int at, int seq,
                                                     int worker)
    {
        r.len = a.t.kv_len[seq];
        r.before = a.places[at];
        r.count = decode_count_at(a.places, at, a.n_decodes, a.together);
        if (r.count == 0 || r.len == 0)
            return false;
        r.len += r.count - 1;
        r.n_pages = (r.len - 1) >> a.page_shift;
        r.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        r.lowest = WINDOWED ? decode_lowest(r.len - r.count + 1, a.kv.window) : 0;
        r.first_tile = r.lowest / tile::TOKENS;
        r.first_page = r.lowest >> a.page_shift;
        r.next = r.first_tile + worker;
        r.n_tiles = (r.len + tile::TOKENS - 1) / tile::TOKENS;
        return true;
    }

    /* The same of a run, as in attn_decode.cu, by all warps of the block: each prepares the queries
     * of one decode, for all. Waits for the previous launch, but not with the turns, which it does
     * not write. */
    template <bool NORMED>
    static __device__ __forceinline__ void begin_run(const run &r, state &st, const decode_args &a,
                                                     const k_bf16 *token, int seq, int worker,
                                                     char *queries, bool *inserts)
    {
        static_assert(!RUNS || DECODE_TOGETHER <= DECODE_WARPS, "a warp per decode");
        int n_new = r.count + r.before, first = r.len - n_new, mine = threadIdx.x / 32;
        const float2 *turn = (const float2 *)a.turns + (size_t)first * (D / 2);
        char *own = queries + mine * a.group * warp::DESK_ROW;
        float4 turns[1][warp::PAIRS];
        bool turns_own = a.turns != NULL && mine < r.count;
        int from, to;

        if (turns_own)
            warp::load_turns(turns, turn + (r.before + mine) * (D / 2), 1);
        decode_wait_for_previous();
        decode_let_next_begin();
        *inserts = has_new(r, worker, &from, &to) && a.turns != NULL;
        if (mine < r.count)
            warp::ask_row(own, a, token + (size_t)mine * a.width, r.kv_head * a.group, a.group,
                          r.kv_head, 0, false);
        if (*inserts)
            warp::ask_new(r.desk, a, token - (size_t)r.before * a.width, r.kv_head, n_new);
        decode_copy_async_wait();
        __syncwarp();
        if (turns_own)
            warp::template turn_decode<NORMED>(own, a, turns[0]);
        if (*inserts) {
            warp::template turn_new_run<NORMED>(r.desk, a, turn, from, to);
            __syncwarp();
            warp::store_run(r.desk, a, seq, first, max(from, r.before), to, r.kv_head);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < warp::NT; n++)
            warp::take_queries(st, a, n, queries + n * 8 * warp::DESK_ROW,
                               r.count * a.group - n * 8);
    }

    /* The mainloop: wait for a stage, add the new key if it belongs to this tile, clear values
     * outside the sequence, multiply, and load the next tile into the stage. */
    static __device__ __forceinline__ void walk(run &r, state &st, const decode_args &a,
                                                const CUtensorMap *map, uint64_t policy, int worker,
                                                bool inserts)
    {
        int stage = RUNS ? r.taken : 0;
        uint32_t parity = RUNS ? r.parity : 0;

#pragma unroll 1
        for (int tile_idx = r.first_tile + worker; tile_idx < r.n_tiles; tile_idx += WORKERS) {
            char *at = r.ring + stage * tile::STAGE;
            int valid = r.len - tile_idx * tile::TOKENS,
                before = r.lowest - tile_idx * tile::TOKENS;

            decode_full_wait(r.barriers + stage * 8, parity);
            if (RUNS && inserts && valid - tile::TOKENS < r.count + r.before) {
                warp::insert_run(at, tile_idx * tile::TOKENS, r.desk, r.len - r.count - r.before,
                                 r.count + r.before);
                fence_async();
                __syncwarp();
            }
            if (valid <= tile::TOKENS) {
                if (!RUNS && inserts)
                    warp::insert_new(at, valid - 1, r.desk + 8 * warp::DESK_ROW, a.kv.head_dim);
                warp::blank_values(at + tile::BYTES, valid);
                fence_async();
                __syncwarp();
            }
            if (WINDOWED && before > 0) {
                warp::blank_front(at + tile::BYTES, before);
                fence_async();
                __syncwarp();
            }
            if constexpr (RUNS)
                warp::template take_run_tile<WINDOWED>(
                    st, shared_addr(at),
                    {valid, r.len, tile_idx * tile::TOKENS, r.count - 1, a.group, a.kv.window});
            else
                warp::template take_tile<WINDOWED>(st, shared_addr(at), valid, before);
            __syncwarp();
            ask_tile(r, a, map, policy);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        r.taken = stage;
        r.parity = parity;
    }

    /* Send the block's part of each float4 of O^T to the rank that merges it. */
    static __device__ __forceinline__ void send(const piece &p, char *shared, int rank)
    {
        cg::cluster_group cluster = cg::this_cluster();
        merged *inbox = (merged *)(shared + INBOX_AT);
        int idle = parts::idle_shift(p);

#pragma unroll 1
        for (int i = threadIdx.x; i < parts::FRAGMENTS >> idle; i += DECODE_WARPS * 32) {
            int index = parts::index_of(i, idle), step = index / 32;
            merged total = parts::merge_load((const float *)shared, index);

#pragma unroll
            for (int warp_idx = 1; warp_idx < DECODE_WARPS; warp_idx++)
                parts::merge_add(
                    total, parts::merge_load((const float *)(shared + warp_idx * RING), index));
            *cluster.map_shared_rank(&inbox[(rank * SLOTS + step / RANKS) * 32 + index % 32],
                                     step % RANKS) = total;
        }
    }

    /* Merge the parts of all ranks for this rank's eighth of the elements, and write them. */
    static __device__ __forceinline__ void receive(const decode_args &a, const piece &p,
                                                   const char *shared, int rank)
    {
        const merged *inbox = (const merged *)(shared + INBOX_AT);
        int lane = threadIdx.x % 32, step = threadIdx.x / 32 * RANKS + rank;
        merged total = parts::merge_begin();

        if (step >= warp::STEPS * warp::NT || !parts::has_heads(p, step * 32 + lane))
            return;
#pragma unroll
        for (int rank_idx = 0; rank_idx < RANKS; rank_idx++)
            parts::merge_add(total, inbox[(rank_idx * SLOTS + step / RANKS) * 32 + lane]);
        parts::write_merged(a, p, total, step * 32 + lane);
    }
};

/* NORMED: heads of 128 or 256 that are normed before they are rotated. */
template <int D, int TYPE, bool NORMED, bool WINDOWED>
static __global__ void __cluster_dims__(8, 1, 1)
    __launch_bounds__(DECODE_WARPS * 32, D > 256 ? 1 : 2)
        attn_brief_kernel(const __grid_constant__ CUtensorMap map,
                          const __grid_constant__ decode_args a)
{
    using b = brief<D, TYPE, WINDOWED, false>;
    using warp = typename b::warp;
    extern __shared__ __align__(1024) char shared[];
    cg::cluster_group cluster = cg::this_cluster();
    int index = threadIdx.x / 32, rank = (int)cluster.block_rank();
    int row = blockIdx.x / b::RANKS, at = row / a.kv.n_kv_heads,
        worker = rank * DECODE_WARPS + index;
    int seq = a.decode_seqs == NULL ? at : a.decode_seqs[at];
    int token_idx = a.t.seq_start[seq];
    uint64_t policy = decode_evict_first();
    typename b::run r;
    typename b::state st;
    piece p = {};
    bool inserts;

    r.len = a.t.kv_len[seq];
    r.kv_head = row - at * a.kv.n_kv_heads;
    r.n_pages = (r.len - 1) >> a.page_shift;
    r.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
    r.lowest = WINDOWED ? decode_lowest(r.len, a.kv.window) : 0;
    r.first_tile = r.lowest / b::tile::TOKENS;
    r.first_page = r.lowest >> a.page_shift;
    r.next = r.first_tile + worker;
    r.n_tiles = (r.len + b::tile::TOKENS - 1) / b::tile::TOKENS;
    r.stage = 0;
    r.ring = shared + index * b::RING;
    r.desk = shared + b::DESKS_AT + index * warp::DESK;
    r.barriers = shared_addr(shared + b::BARRIERS_AT) + index * b::STAGES * 8;
    cluster.barrier_arrive(); /* nothing is sent before all blocks have begun */
    if (threadIdx.x % 32 == 0) {
        tensor_prefetch(&map);
#pragma unroll 1
        for (int i = 0; i < b::STAGES; i++)
            decode_full_init(r.barriers + i * 8);
        barrier_init_done();
    }
    __syncwarp();
    if (a.turns == NULL)
        decode_wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < b::STAGES; i++)
        b::ask_tile(r, a, &map, policy);
    if (a.turns != NULL)
        decode_wait_for_previous();
    decode_let_next_begin();
    p.token = token_idx;
    p.head = r.kv_head * a.group;
    p.n_heads = a.group;
    inserts =
        warp::TURNS && a.turns != NULL && (r.n_tiles - 1 - r.first_tile) % b::WORKERS == worker;
    warp::clear(st);
    if (r.first_tile + worker < r.n_tiles) {
        b::template begin<NORMED>(r, st, a, a.qkv + (size_t)token_idx * a.width, seq, token_idx,
                                  inserts);
        b::walk(r, st, a, &map, policy, worker, inserts);
    }
    warp::add_sums(st);
    b::parts::write_piece((float *)r.ring, st, p.n_heads);
    __syncthreads();
    cluster.barrier_wait();
    b::send(p, shared, rank);
    cluster.sync();
    if (r.len > 0)
        b::receive(a, p, shared, rank);
}

/* The same of runs: a cluster has the items that begin with one of `together` neighbours in the
 * list of decodes, mostly one. Then the ring and the inbox are used again. */
template <int D, int TYPE, bool NORMED, bool WINDOWED>
static __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(DECODE_WARPS * 32, 2)
    attn_brief_run_kernel(const __grid_constant__ CUtensorMap map,
                          const __grid_constant__ decode_args a)
{
    using b = brief<D, TYPE, WINDOWED, true>;
    extern __shared__ __align__(1024) char shared[];
    cg::cluster_group cluster = cg::this_cluster();
    int index = threadIdx.x / 32, rank = (int)cluster.block_rank();
    int row = blockIdx.x / b::RANKS, neighbours = row / a.kv.n_kv_heads;
    int worker = rank * DECODE_WARPS + index;
    uint64_t policy = decode_evict_first();
    typename b::run r;
    typename b::state st;

    cluster.barrier_arrive(); /* nothing is sent before all blocks have begun */
    r.kv_head = row - neighbours * a.kv.n_kv_heads;
    r.stage = r.taken = 0;
    r.parity = 0;
    r.ring = shared + index * b::RING;
    r.desk = shared + b::DESKS_AT + index * b::DESK;
    r.barriers = shared_addr(shared + b::BARRIERS_AT) + index * b::STAGES * 8;
    if (threadIdx.x % 32 == 0) {
        tensor_prefetch(&map);
#pragma unroll 1
        for (int i = 0; i < b::STAGES; i++)
            decode_full_init(r.barriers + i * 8);
        barrier_init_done();
    }
    __syncwarp();
    if (a.turns == NULL)
        decode_wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < a.together; i++) {
        int at = neighbours * a.together + i, seq;
        piece p = {};
        bool inserts;

        if (at >= a.n_decodes)
            break;
        seq = a.decode_seqs == NULL ? at : a.decode_seqs[at];
        if (!b::find_item(r, a, at, seq, worker))
            continue;
#pragma unroll 1
        for (int j = 0; j < b::STAGES; j++)
            b::ask_tile(r, a, &map, policy);
        p.token = a.t.seq_start[seq];
        p.head = r.kv_head * a.group;
        p.n_heads = a.group * r.count;
        b::warp::clear(st);
        b::template begin_run<NORMED>(r, st, a, a.qkv + (size_t)p.token * a.width, seq, worker,
                                      shared + b::QUERIES_AT, &inserts);
        b::walk(r, st, a, &map, policy, worker, inserts);
        b::warp::add_sums(st);
        b::parts::write_piece((float *)r.ring, st, p.n_heads);
        fence_async(); /* before the ring is filled by the TMA again */
        __syncthreads();
        cluster.barrier_wait();
        b::send(p, shared, rank);
        cluster.sync();
        b::receive(a, p, shared, rank);
        cluster.barrier_arrive();
    }
    decode_wait_for_previous();
    cluster.barrier_wait();
}

#endif
