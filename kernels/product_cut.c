/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/product_cut.h"

#define SPLIT_MAX  2           /* CTAs that share a tile */
#define SLOT_BYTES (32 * 1024) /* of a slot of w, at most */
#define PRE_BYTES  (64 * 1024) /* of w that are ordered before x, which stands in the same queue */
#define PRE_MORE   (96 * 1024) /* where a CTA has four blocks, and so much to read behind it */
#define WHOLE_ROWS 48          /* of a tile that is not shared, however many rows x has */

static int round_up(int x, int to)
{
    return (x + to - 1) / to * to;
}

int product_cut_columns(int n)
{
    return n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : n <= 48 ? 48 : 64;
}

int product_cut_slab_cols(const struct k_format *format)
{
    return CUT_SLAB * 8 / k_type_bits(format->elem);
}

/* Blocks of 64 rows that a tile of so many takes: 1, 2 or 4. Of one, eight rows end together. */
static int blocks_of(const struct product_cut *c, int rows)
{
    bool one = rows <= CUT_BLOCK && !c->gated && c->rows_by_eight;

    return one ? 1 : rows <= 2 * CUT_BLOCK ? 2 : 4;
}

/* Rows of a tile, so that all groups of CTAs have nearly equally many; 0: none with a cluster. */
static int rows_of(const struct product_cut *c, bool sixteens, int n_split, int n_sms)
{
    int groups = n_sms / n_split, best = 0;
    long best_cost = 0;

    for (int passes = 1, left = 8; left > 0; passes++) {
        int share = (c->n_out + groups * passes - 1) / (groups * passes);
        int blocks = blocks_of(c, share), unit = 8 * n_split * (c->gated ? 2 : 1), rows;
        long cost;

        if (unit < 8 * blocks)
            unit = 8 * blocks;
        if (sixteens && unit < 16 * n_split)
            unit = 16 * n_split;
        rows = round_up(share, unit);
        if (rows > CUT_ROWS_MAX || rows > blocks * CUT_BLOCK)
            continue;
        left--;
        cost = (long)passes * rows;
        if (best == 0 || cost < best_cost) {
            best = rows;
            best_cost = cost;
        }
        if (passes == 1 || n_split > 1)
            return n_split > 1 && passes > 1 ? 0 : rows;
    }
    return best;
}

/* Slots of w, at least. Fewer and longer ones pay where a tile has four blocks, or a share of n_in
 * many slabs. */
static int least_slots(const struct product_cut *c)
{
    return c->n_blocks == 4 ? 5 : c->n_slabs / c->n_split > 64 ? 3 : 4;
}

/* As many slots of w as so many bytes have room for, and of x, at least `least`, as far ahead. */
static void share_ring(struct product_cut *c, int bytes, int least)
{
    c->x_depth = bytes / (c->n_blocks * c->slot_bytes + c->x_bytes);
    for (c->x_depth = c->x_depth < least ? least : c->x_depth;; c->x_depth++) {
        if (c->x_depth > CUT_DEPTH_MAX)
            c->x_depth = CUT_DEPTH_MAX;
        c->depth = (bytes - c->x_depth * c->x_bytes) / c->slot_bytes;
        if (c->depth > CUT_DEPTH_MAX)
            c->depth = CUT_DEPTH_MAX;
        if (c->x_depth == CUT_DEPTH_MAX || c->depth <= c->x_depth * c->n_blocks ||
            bytes - (c->x_depth + 1) * c->x_bytes < least_slots(c) * c->slot_bytes)
            return;
    }
}

static int first_slots_of(const struct product_cut *c)
{
    int n = (c->n_blocks == 4 ? PRE_MORE : PRE_BYTES) / c->slot_bytes;
    int steps = (c->n_slabs / c->n_split + c->box - 1) / c->box; /* of the shorter share */

    n = n < c->depth ? n : c->depth;
    n = n < steps * c->n_blocks ? n : steps * c->n_blocks;
    return n < 1 ? 1 : n;
}

/* Where two CTAs leave sums of the only tile, a slot each: its own when all have been read; the
 * other's as soon as that slot would be filled again, were there more. */
static void place_sums(struct product_cut *c)
{
    for (int rank = 0; rank < 2; rank++) {
        int slabs = ((rank + 1) * c->n_slabs >> 1) - (rank * c->n_slabs >> 1);
        int slot = (slabs + c->box - 1) / c->box % c->depth;

        c->sent_at[rank] = slot * c->slot_bytes;
        c->own_at[rank] = (slot + 1) % c->depth * c->slot_bytes;
    }
}

/* Slots of `box` slabs; false when too few have room. */
static bool lay_out(struct product_cut *c, int box)
{
    int stride = c->n_blocks * CUT_BLOCK + 4, sums, rest, slack, ring;
    bool one_tile = c->n_tiles <= c->n_groups;
    int least = c->n_blocks == 1 ? 4 : 2; /* of x: two for each warpgroup */

    c->box = box;
    c->group_bytes = c->rows_by_eight ? box * 8 * CUT_SLAB : 8 * CUT_SLAB;
    c->slab_bytes = c->rows_by_eight ? 8 * CUT_SLAB : c->block_rows * CUT_SLAB;
    c->slot_bytes = box * c->block_rows * CUT_SLAB;
    c->x_bytes = box * c->x_slabs * c->columns * CUT_SLAB;
    c->x_copied = box * c->x_slabs * c->x_rows * CUT_SLAB;
    c->part = c->n_blocks == 1 ? round_up(c->rows / c->n_split, 16) * c->columns : 0;
    c->round = one_tile || c->columns < 16 ? c->columns : 16;
    sums = c->round * stride * 4;
    if (c->n_blocks == 1) /* of each warpgroup */
        sums = 2 * c->part * 4;
    if (c->n_blocks == 4 && c->gated && c->n_split == 1 && sums < c->columns * CUT_GATED_STRIDE * 2)
        sums = c->columns * CUT_GATED_STRIDE * 2;
    rest = CUT_REST_BYTES + (one_tile ? 0 : sums);
    /* blocks of less than 64 rows: what is behind them is read, too. Mostly that is slots of x */
    slack = (CUT_BLOCK - c->block_rows) / 8 * c->group_bytes;
    share_ring(c, CUT_SMEM_MAX - rest, least);
    if (c->x_depth * c->x_bytes < slack)
        share_ring(c, CUT_SMEM_MAX - rest - slack, least);
    c->first_slots = first_slots_of(c);
    c->x_at = c->depth * c->slot_bytes;
    ring = c->x_at + c->x_depth * c->x_bytes;
    if (ring < c->x_at + slack)
        ring = c->x_at + slack;
    if (one_tile && ring < sums)
        ring = sums;
    c->red_at = one_tile ? 0 : ring;
    c->rest_at = ring + (one_tile ? 0 : sums);
    if (c->depth > 0 && c->n_blocks == 1 && c->n_split == 2)
        place_sums(c);
    c->smem = c->rest_at + CUT_REST_BYTES;
    if (c->n_blocks == 1 && c->n_split == 2 && c->slot_bytes < sums)
        return false;
    return c->depth >= least_slots(c) && c->smem <= CUT_SMEM_MAX;
}

/* The rows behind the last turn that has whole tiles for all CTAs, in a tile for each. */
static void cut_tail(struct product_cut *c)
{
    int n_whole = c->n_out / (c->rows * c->n_groups) * c->n_groups;
    int left = c->n_out - n_whole * c->rows;

    if (n_whole == 0 || left == 0)
        return;
    c->tail_rows = round_up((left + c->n_groups - 1) / c->n_groups, 8 * c->n_blocks);
    c->n_whole = n_whole;
    c->n_tiles = n_whole + (left + c->tail_rows - 1) / c->tail_rows;
}

/* Tiles of c->rows; false when they have no room. */
static bool cut_tiles(struct product_cut *c, bool tails, int n_sms)
{
    int box, share, even;

    c->n_blocks = blocks_of(c, c->rows);
    c->block_rows = c->rows / c->n_blocks;
    c->n_tiles = (c->n_out + c->rows - 1) / c->rows;
    c->n_groups = n_sms / c->n_split;
    if (c->n_groups > c->n_tiles)
        c->n_groups = c->n_tiles;
    c->n_whole = c->n_tiles;
    c->tail_rows = 0;
    if (tails && c->n_blocks > 1 && c->n_split == 1)
        cut_tail(c);
    box = SLOT_BYTES / (c->block_rows * CUT_SLAB);
    box = box > 8 ? 8 : box;
    share = (c->n_slabs + c->n_split - 1) / c->n_split;
    for (; box > 0; box--) {
        even = (share + box - 1) / box; /* slots of a share; behind it is the other CTA's */
        even = (share + even - 1) / even;
        if (lay_out(c, even))
            return true;
    }
    return false;
}

bool product_cut_of(struct product_cut *c, const struct k_matrix *w, enum k_product_kind kind,
                    int n, int n_sms)
{
    bool tails;

    c->gated = kind == K_PRODUCT_GATED;
    c->n_out = w->n_out;
    c->n_in = w->n_in;
    c->columns = product_cut_columns(n);
    c->x_rows = round_up(n, 8);
    c->x_slabs = product_cut_slab_cols(&w->format) / CUT_SLAB_COLS;
    c->n_slabs = w->n_in / product_cut_slab_cols(&w->format);
    c->rows_by_eight = w->n_out % (c->gated ? 16 : 8) == 0;
    /* a share has four slabs; whether a slot has room for sums then, lay_out() says */
    for (int split = 1;
         split <= SPLIT_MAX && (split == 1 || 4 * split <= c->n_slabs) && split <= n_sms; split++) {
        int rows = rows_of(c, kind == K_PRODUCT_RESIDUAL, split, n_sms);

        if (rows == 0)
            break;
        c->n_split = split;
        c->rows = rows;
        /* Of other formats, what is missing of a wgmma's 64 rows is widened in vain. */
        if (rows >= WHOLE_ROWS || (k_format_is_plain(&w->format) && c->columns * 3 <= rows * 2))
            break;
    }
    tails = kind == K_PRODUCT_FLOAT && c->rows_by_eight;
    if (cut_tiles(c, tails, n_sms))
        return true;
    /* A pair's sums take whole sixteens of a slot; of the most columns slots are too short for
     * tiles that have half of one. */
    c->rows = round_up(c->rows, 16 * c->n_split);
    return cut_tiles(c, tails, n_sms);
}
