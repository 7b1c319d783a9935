/* SPDX-License-Identifier: Apache-2.0
 *
 * The cut of product_cut.h. It is chosen in this order: how many CTAs share a tile (split-K, when
 * one CTA alone would have too few rows), how many rows a tile has (so that all CTAs end together),
 * then the largest stages for which enough of them fit into shared memory. */
#include "kernels/product_cut.h"

#include "kernels/packed.h"

#define SPLIT_MAX   2           /* CTAs that share a tile */
#define STAGE_BYTES (32 * 1024) /* at most, per stage of w */
#define PRE_BYTES   (64 * 1024) /* of w that are loaded before x, which waits in the same queue */
#define BOX_MAX     8           /* slabs of a stage */
/* The same of packed matrices: each stage costs its warps some 250 cycles that wait. */
#define PACKED_STAGE_BYTES (40 * 1024)
#define PACKED_PRE_BYTES   (32 * 1024)
#define PACKED_BOX_MAX     12
#define PRE_MORE           (96 * 1024) /* when a CTA has four blocks, and much to read after it */
#define WHOLE_ROWS         48 /* enough rows of an unshared tile, for any number of rows of x */

static int round_up(int x, int to)
{
    return (x + to - 1) / to * to;
}

/* The N of a wgmma is a multiple of 8; these five are built. */
int product_cut_columns(int n)
{
    return n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : n <= 48 ? 48 : 64;
}

/* A slab is 128 bytes per row, so it has 64 columns of bfloat16 and 128 of e4m3; or records of 128
 * columns. */
int product_cut_slab_cols(const struct k_format *format)
{
    if (k_format_is_packed(format))
        return K_PACKED_COLS;
    return CUT_SLAB * 8 / k_type_bits(format->elem);
}

/* What the rows of a block are a multiple of. */
static int strip_of(const struct product_cut *c)
{
    return c->packed ? K_PACKED_ROWS : 8;
}

/* Blocks of 64 rows in a tile of so many rows: 1, 2 or 4. With one, the epilogue handles eight rows
 * at a time. */
static int blocks_of(const struct product_cut *c, int rows)
{
    bool one = rows <= CUT_BLOCK && !c->gated && c->rows_by_eight;

    return one ? 1 : rows <= 2 * CUT_BLOCK ? 2 : 4;
}

/* Rows per tile, so that all groups of CTAs have nearly the same number; 0: none with a cluster. */
static int rows_of(const struct product_cut *c, bool sixteens, int n_split, int n_sms)
{
    int groups = n_sms / n_split, best = 0;
    long best_cost = 0;

    for (int passes = 1, left = 8; left > 0; passes++) {
        int share = (c->n_out + groups * passes - 1) / (groups * passes);
        int blocks = blocks_of(c, share), unit = 8 * n_split * (c->gated ? 2 : 1), rows;
        long cost;

        if (unit < strip_of(c) * blocks)
            unit = strip_of(c) * blocks;
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

/* The least number of stages of w. Fewer and longer ones are faster when a tile has four blocks, or
 * a share of n_in many slabs. */
static int min_stages(const struct product_cut *c)
{
    return c->n_blocks == 4 ? 5 : c->n_slabs / c->n_split > 64 ? 3 : 4;
}

/* As many stages of w as fit into so many bytes, and of x at least `least`, so that both are loaded
 * equally far ahead. */
static void share_ring(struct product_cut *c, int bytes, int least)
{
    c->x_depth = bytes / (c->n_blocks * c->stage_bytes + c->x_bytes);
    for (c->x_depth = c->x_depth < least ? least : c->x_depth;; c->x_depth++) {
        if (c->x_depth > CUT_DEPTH_MAX)
            c->x_depth = CUT_DEPTH_MAX;
        c->depth = (bytes - c->x_depth * c->x_bytes) / c->stage_bytes;
        if (c->depth > CUT_DEPTH_MAX)
            c->depth = CUT_DEPTH_MAX;
        if (c->x_depth == CUT_DEPTH_MAX || c->depth <= c->x_depth * c->n_blocks ||
            bytes - (c->x_depth + 1) * c->x_bytes < min_stages(c) * c->stage_bytes)
            return;
    }
}

/* Stages that are loaded before x: as many as fit, but not more than the shorter share has. */
static int first_stages_of(const struct product_cut *c)
{
    int bytes = c->n_blocks == 4 ? PRE_MORE : c->packed ? PACKED_PRE_BYTES : PRE_BYTES;
    int n = bytes / c->stage_bytes;
    int steps = (c->n_slabs / c->n_split + c->box - 1) / c->box; /* of the shorter share */

    n = n < c->depth ? n : c->depth;
    n = n < steps * c->n_blocks ? n : steps * c->n_blocks;
    return n < 1 ? 1 : n;
}

/* Where two CTAs put the sums of their only tile, a stage each: its own, when all stages have been
 * read; the other's sums in the stage that would be loaded next, if there were more to load. */
static void place_sums(struct product_cut *c)
{
    for (int rank = 0; rank < 2; rank++) {
        int slabs = ((rank + 1) * c->n_slabs >> 1) - (rank * c->n_slabs >> 1);
        int stage = (slabs + c->box - 1) / c->box % c->depth;

        c->sent_at[rank] = stage * c->stage_bytes;
        c->own_at[rank] = (stage + 1) % c->depth * c->stage_bytes;
    }
}

/* Bytes of a stage of w, and of its parts. */
static void size_stage(struct product_cut *c, int box)
{
    if (c->packed) { /* slab_bytes is a record's */
        c->group_bytes = box * c->slab_bytes;
        c->stage_bytes = c->block_rows / K_PACKED_ROWS * c->group_bytes;
        return;
    }
    c->group_bytes = c->rows_by_eight ? box * 8 * CUT_SLAB : 8 * CUT_SLAB;
    c->slab_bytes = c->rows_by_eight ? 8 * CUT_SLAB : c->block_rows * CUT_SLAB;
    c->stage_bytes = box * c->block_rows * CUT_SLAB;
}

/* Lay out shared memory with stages of `box` slabs; false when too few fit. */
static bool lay_out(struct product_cut *c, int box)
{
    int stride = c->n_blocks * CUT_BLOCK + 4, sums, rest, slack, ring;
    bool one_tile = c->n_tiles <= c->n_groups, is_pair = c->n_blocks == 1 && c->n_split == 2;
    int least = c->n_blocks == 1 ? 4 : 2; /* stages of x: two per warpgroup */

    c->box = box;
    size_stage(c, box);
    c->x_bytes = box * c->x_slabs * c->columns * CUT_SLAB;
    c->x_copied = box * c->x_slabs * c->x_rows * CUT_SLAB;
    c->part = c->n_blocks == 1 ? round_up(c->rows / c->n_split, 16) * c->columns : 0;
    c->round = one_tile || c->columns < 16 ? c->columns : 16;
    sums = c->round * stride * 4;
    if (c->n_blocks == 1) /* per warpgroup */
        sums = 2 * c->part * 4;
    if (c->n_blocks == 4 && c->gated && c->n_split == 1 && sums < c->columns * CUT_GATED_STRIDE * 2)
        sums = c->columns * CUT_GATED_STRIDE * 2;
    rest = CUT_REST_BYTES + (one_tile ? 0 : sums);
    if (c->packed) /* x is aligned; stages are too short for sums of a pair */
        rest += 1024 + (is_pair ? 2 * sums : 0);
    /* Blocks of less than 64 rows: the wgmma reads the bytes after them, too. These are mostly
     * stages of x. */
    slack = (CUT_BLOCK - c->block_rows) / strip_of(c) * c->group_bytes;
    share_ring(c, CUT_SMEM_MAX - rest, least);
    if (c->x_depth * c->x_bytes < slack)
        share_ring(c, CUT_SMEM_MAX - rest - slack, least);
    c->first_stages = first_stages_of(c);
    c->x_at = round_up(c->depth * c->stage_bytes, 1024); /* for the swizzle */
    ring = c->x_at + c->x_depth * c->x_bytes;
    if (ring < c->x_at + slack)
        ring = c->x_at + slack;
    if (one_tile && ring < sums)
        ring = sums;
    c->red_at = one_tile ? 0 : ring;
    c->rest_at = ring + (one_tile ? 0 : sums);
    if (c->packed && is_pair) {
        for (int rank = 0; rank < 2; rank++) {
            c->own_at[rank] = c->rest_at;
            c->sent_at[rank] = c->rest_at + sums;
        }
        c->rest_at += 2 * sums;
    } else if (c->depth > 0 && is_pair) {
        place_sums(c);
    }
    c->smem = c->rest_at + CUT_REST_BYTES;
    if (!c->packed && is_pair && c->stage_bytes < sums)
        return false;
    return c->depth >= min_stages(c) && c->smem <= CUT_SMEM_MAX;
}

/* Cut the rows after the last round in which every CTA has a whole tile into one tile for each. */
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

/* Cut into tiles of c->rows; false when they do not fit. */
static bool cut_tiles(struct product_cut *c, bool tails, int n_sms)
{
    int box, most, share, even;

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
    if (c->block_rows % strip_of(c) != 0)
        return false;
    size_stage(c, 1);
    box = (c->packed ? PACKED_STAGE_BYTES : STAGE_BYTES) / c->stage_bytes;
    most = c->packed ? PACKED_BOX_MAX : BOX_MAX;
    box = box > most ? most : box;
    share = (c->n_slabs + c->n_split - 1) / c->n_split;
    for (; box > 0; box--) {
        even = (share + box - 1) / box; /* stages of a share; the rest is the other CTA's */
        even = (share + even - 1) / even;
        if (lay_out(c, even))
            return true;
    }
    return false;
}

/* First the split and the rows per tile, then the layout. A second attempt with more rows per tile
 * follows if sums do not fit into a stage. */
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
    c->packed = k_format_is_packed(&w->format);
    if (c->packed) {
        const struct k_packing packing = k_packing_of(&w->format);

        c->slab_bytes = (int)k_packed_record_bytes(&packing);
    }
    /* A share has at least four slabs; lay_out() checks whether a stage then has room for sums. */
    for (int split = 1;
         split <= SPLIT_MAX && (split == 1 || 4 * split <= c->n_slabs) && split <= n_sms; split++) {
        int rows = rows_of(c, kind == K_PRODUCT_RESIDUAL, split, n_sms);

        if (rows == 0)
            break;
        c->n_split = split;
        c->rows = rows;
        /* With other formats, filling up a wgmma's 64 rows costs dequantisation of rows that are
         * not used. */
        if (rows >= WHOLE_ROWS || (k_format_is_plain(&w->format) && c->columns * 3 <= rows * 2))
            break;
    }
    tails = kind == K_PRODUCT_FLOAT && c->rows_by_eight && !c->packed;
    if (cut_tiles(c, tails, n_sms))
        return true;
    /* Sums of a pair take multiples of 16 rows in a stage; with the most columns, stages are too
     * short for tiles with half of that. */
    c->rows = round_up(c->rows, 16 * c->n_split);
    return cut_tiles(c, tails, n_sms);
}
