/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a step's decode attention: which warp reads which keys (split-K over all sequences,
 * as stream-K does it).
 *
 * One block. The visible keys of every (sequence, kv head) are a row of tiles; the rows of all
 * sequences, one after another, are cut into shares that differ by at most one tile, one share per
 * warp of the grid. Example with 3 rows and 4 warps:
 *
 *   rows     |---- row 0 ----|- row 1 -|------- row 2 -------|      (tiles)
 *   warps    |  warp 0  |  warp 1  |  warp 2  |  warp 3      |
 *
 * A prefix sum over the sequences gives the begin of each; a binary search in it, the begin of each
 * share. Reads kv_len and seq_start, writes 16 bytes per sequence and per warp.
 *
 * Short rows are not cut: a worker takes whole rows, and nothing is merged. 64 sequences of 8 kv
 * heads with a window of 128 keys are 512 rows of 5 tiles, for as many warps. Rows of about one
 * length are cut into 2 or 4 equal shares, if that leaves few warps without work: then a row is one
 * block's, and no block waits for another one's part.
 *
 * Decodes of a run that are read together (attn_decode.cuh) are one item here, with one row per kv
 * head.
 *
 * Runs on the device, because lengths change there while the launches of a graph stay the same. */
#include "kernels/attn_decode.cuh"
#include "kernels/choice.h"

#define PLAN_THREADS 1024
#define PLAN_WARPS   (PLAN_THREADS / 32)
#define MERGE_TILES  5 /* a merge of cut rows takes at least as long as so many tiles */
#define JOIN_TILES   2 /* a merge of blocks' parts takes so much longer than one in a block */

struct plan_args {
    decode_schedule *schedule;
    const int32_t *decode_seqs;
    const int32_t *places; /* of decodes in their runs; NULL: each is an item of its own */
    int together;          /* decodes of an item, at most */
    struct k_tokens t;
    int n_decodes;
    int tile_tokens;
    int window;    /* keys that a token attends to; 0: all */
    int rows;      /* rows per sequence */
    int n_workers; /* warps of the grid; with latents CTAs */
    bool is_latent;
};

/* Tiles of a row of n decodes, the last of which has len keys. */
static __device__ inline int plan_tiles_of(const plan_args &a, int len, int n)
{
    int tiles = (len + a.tile_tokens - 1) / a.tile_tokens;

    return a.window == 0 ? tiles : tiles - decode_lowest(len - n + 1, a.window) / a.tile_tokens;
}

static __device__ inline int plan_row_tiles_of(const plan_args &a, const decode_item &it)
{
    return plan_tiles_of(a, it.len, decode_count_of(it));
}

/* Sum of x over the threads before this one, and over all threads; shared: int [PLAN_WARPS + 1]. */
static __device__ int plan_sum_before(int x, int *shared, int *total)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, upto = x;

    for (int i = 1; i < 32; i *= 2) {
        int below = __shfl_up_sync(~0U, upto, i);

        upto += lane >= i ? below : 0;
    }
    __syncthreads();
    if (lane == 31)
        shared[warp] = upto;
    __syncthreads();
    if (warp == 0) {
        int count = shared[lane], sum = count;

        for (int i = 1; i < 32; i *= 2) {
            int below = __shfl_up_sync(~0U, sum, i);

            sum += lane >= i ? below : 0;
        }
        shared[lane] = sum - count;
        if (lane == 31)
            shared[PLAN_WARPS] = sum;
    }
    __syncthreads();
    *total = shared[PLAN_WARPS];
    return shared[warp] + upto - x;
}

/* The same in all threads. */
struct plan_size {
    int n_items, n_rows, n_tiles;
    int longest; /* tiles of a row, at most */
    int n_workers;
    int ways; /* into which a row is cut; 0: shares do not depend on rows */
};

/* List the items: sequences that have keys, with the number of tiles before each. */
static __device__ plan_size plan_list_items(const plan_args &a)
{
    __shared__ int shared[PLAN_WARPS + 1], longest;
    int tiles_before = 0, items_before = 0;

    if (threadIdx.x == 0)
        longest = 0;
    __syncthreads();
    for (int base = 0; base < a.n_decodes; base += PLAN_THREADS) {
        int i = base + threadIdx.x, seq = 0, len = 0, n = 1, tiles, most, before, at, total;

        if (i < a.n_decodes) {
            seq = a.decode_seqs == NULL ? i : a.decode_seqs[i];
            len = a.t.kv_len[seq];
            if (a.places != NULL)
                n = decode_count_at(a.places, i, a.n_decodes, a.together);
            len = n == 0 || len == 0 ? 0 : len + n - 1;
        }
        tiles = len == 0 ? 0 : plan_tiles_of(a, len, n);
        most = __reduce_max_sync(~0U, tiles);
        if (threadIdx.x % 32 == 0)
            atomicMax(&longest, most);
        tiles *= a.rows;
        before = plan_sum_before(tiles, shared, &total) + tiles_before;
        tiles_before += total;
        at = plan_sum_before(len > 0, shared, &total) + items_before;
        items_before += total;
        if (len > 0)
            a.schedule->items[at] = {decode_item_seq(seq, n, a.places == NULL ? 0 : a.places[i]),
                                     len, a.t.seq_start[seq], before};
    }
    /* A sentinel for readers that look one item ahead. */
    if (threadIdx.x == 0)
        a.schedule->items[items_before] = {0, 0, 0, tiles_before};
    __syncthreads();
    return {items_before, items_before * a.rows, tiles_before, longest, 0, 0};
}

/* Rows stay whole, or a block's, where the warp with the most tiles ends before the shares of cut
 * rows would be read and merged. */
static __device__ void plan_choose(const plan_args &a, plan_size *s)
{
    int cut = a.is_latent ? max(1, min(s->n_tiles / DECODE_LATENT_LEAST, a.n_workers))
                          : decode_workers(s->n_tiles, a.tile_tokens, a.n_workers);
    int least = s->n_tiles / a.n_workers;

    s->ways = 0;
    s->n_workers = cut;
    for (int ways = 1; ways <= (a.is_latent ? 1 : DECODE_WARPS) && s->n_rows > 0; ways *= 2) {
        int whole = min(s->n_rows, a.n_workers / ways);
        int most = (s->n_rows + whole - 1) / whole * ((s->longest + ways - 1) / ways);

        if (ways > 1 && s->n_rows > whole)
            return;
        if (most > least + (ways == 1 ? MERGE_TILES : JOIN_TILES))
            continue;
        s->ways = ways;
        s->n_workers = whole * ways;
        return;
    }
}

/* The item to which a tile belongs: the last one that begins at or before it. */
static __device__ int plan_item_of(const decode_item *items, int n_items, int tile)
{
    int low = 0, high = n_items;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (items[middle].first <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The share of a worker: where it begins, and how many tiles it has. */
static __device__ decode_worker plan_share(const plan_args &a, int n_items, int first, int last)
{
    decode_worker worker = {};
    int row_tiles;

    worker.item = plan_item_of(a.schedule->items, n_items, first);
    worker.first = a.schedule->items[worker.item];
    row_tiles = plan_row_tiles_of(a, worker.first);
    worker.row = (first - worker.first.first) / row_tiles;
    worker.tile = (first - worker.first.first) % row_tiles;
    worker.n = last - first;
    return worker;
}

/* The tile at which a row begins, or the end. */
static __device__ int plan_row_begin(const plan_args &a, const plan_size &s, int row)
{
    const decode_item *it = &a.schedule->items[row / a.rows];

    return row >= s.n_rows ? s.n_tiles : it->first + row % a.rows * plan_row_tiles_of(a, *it);
}

/* The tile at which the share of a worker begins. */
static __device__ int plan_share_begin(const plan_args &a, const plan_size &s, int worker)
{
    int row, begin;

    if (s.ways == 0)
        return decode_share_first(worker, s.n_tiles, s.n_workers);
    if (s.ways == 1)
        return plan_row_begin(a, s, decode_share_first(worker, s.n_rows, s.n_workers));
    row = worker / s.ways;
    begin = plan_row_begin(a, s, row);
    return begin +
           decode_share_first(worker % s.ways, plan_row_begin(a, s, row + 1) - begin, s.ways);
}

/* The first and last block with tiles of the row to which a tile belongs. */
static __device__ decode_span plan_span_of(const plan_args &a, int n_items, int tile, int n_tiles,
                                           int n_workers)
{
    const decode_item *it = &a.schedule->items[plan_item_of(a.schedule->items, n_items, tile)];
    int row_tiles = plan_row_tiles_of(a, *it);
    int start = tile - (tile - it->first) % row_tiles;

    return {decode_share_of(start, n_tiles, n_workers) / DECODE_WARPS,
            decode_share_of(start + row_tiles - 1, n_tiles, n_workers) / DECODE_WARPS};
}

static __global__ void __launch_bounds__(PLAN_THREADS) attn_schedule_kernel(const plan_args a)
{
    decode_schedule *schedule = a.schedule;
    plan_size s = plan_list_items(a);

    plan_choose(a, &s);
    for (int i = threadIdx.x; i < 2 * DECODE_CTAS; i += PLAN_THREADS) {
        int block = i / 2, side = i % 2 * DECODE_WARPS;

        schedule->counters[block] = 0;
        if (s.ways == 0 && (block + 1) * DECODE_WARPS <= s.n_workers)
            schedule->spans[block][i % 2] = plan_span_of(
                a, s.n_items,
                decode_share_first(block * DECODE_WARPS + side, s.n_tiles, s.n_workers) - i % 2,
                s.n_tiles, s.n_workers);
    }
    for (int i = threadIdx.x; i < a.n_workers; i += PLAN_THREADS) {
        int first, last;

        schedule->workers[i] = {};
        if (i >= s.n_workers)
            continue;
        first = plan_share_begin(a, s, i);
        last = plan_share_begin(a, s, i + 1);
        if (last > first)
            schedule->workers[i] = plan_share(a, s.n_items, first, last);
    }
}

/* Other sizes of heads are rare, and each kernel takes long to compile. */
int k_attn_joins_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads)
{
    bool is_built = kv->head_dim == 64 || kv->head_dim == 128 || kv->head_dim == 256;

    return plan->places != NULL && is_built && kv->value_dim == 0 &&
           n_heads / kv->n_kv_heads <= 8 && decode_engine_reads(*kv, kv->type == K_BF16 ? 2 : 1);
}

size_t k_attn_schedule_bytes(int n_decodes)
{
    return sizeof(decode_schedule) + (size_t)n_decodes * sizeof(decode_item);
}

/* Two parts per block and one piece per warp; portable_attn.cu has at most so many parts. */
size_t k_attn_work_bytes(int head_dim, int n_heads, int n_kv_heads)
{
    int heads = head_dim > 256 ? decode_heads(head_dim, n_heads / n_kv_heads) : DECODE_COLUMNS;
    size_t floats = (size_t)decode_d(head_dim) * heads + 2 * (size_t)heads;

    if (head_dim > K_LATENT_RANK_MAX)
        return 2 * DECODE_SMS * sizeof(decode_latent_part);
    return (2 * DECODE_CTAS + DECODE_WORKERS) * floats * sizeof(float);
}

/* The plan depends on lengths and shapes only, so one serves all layers of a window and shape. */
int k_attn_schedule_sm90(const struct k_attn_plan *plan, const struct k_kv *kv,
                         const struct k_tokens *t, int n_heads, k_stream stream)
{
    int group = n_heads / kv->n_kv_heads;
    plan_args args = {};

    if (plan->n_decodes == 0)
        return 0;
    args.schedule = (decode_schedule *)plan->schedule;
    args.is_latent = kv->value_dim > 0;
    args.decode_seqs = plan->decode_seqs;
    args.t = *t;
    args.n_decodes = plan->n_decodes;
    args.tile_tokens = decode_tile_tokens(kv);
    args.window = kv->window;
    args.rows = kv->n_kv_heads * decode_blocks(kv->head_dim, group);
    args.together = 1;
    if (k_attn_joins_sm90(plan, kv, n_heads)) {
        args.places = plan->places;
        args.together = decode_together(group);
    }
    args.n_workers = decode_ctas(kv, plan->n_decodes / args.together) * DECODE_WARPS;
    if (args.is_latent) {
        args.tile_tokens = DECODE_LATENT_TILE;
        args.rows = decode_latent_blocks(n_heads);
        args.n_workers = DECODE_SMS;
    }
    return K_LAUNCH(attn_schedule_kernel, 1, PLAN_THREADS, 0, stream, args);
}

/* Decodes and chunks of prompts can share a step, but not a kernel: they write different rows of
 * out. */
int k_attn(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
           const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
    int rc = 0;

    if (kv->value_dim > 0)
        return k_attn_latents(out, qkv, kv, t, plan, n_heads, scale, stream);
    if (plan->n_decodes > 0)
        rc = k_attn_decode(out, qkv, kv, t, plan, n_heads, scale, stream);
    if (rc == 0 && plan->n_tiles > 0)
        rc = k_attn_chunk(out, qkv, kv, t, plan, n_heads, scale, stream);
    return rc;
}
