/* SPDX-License-Identifier: Apache-2.0
 *
 * How sm90_product.cu cuts a matrix into tiles and lays out shared memory: plain arithmetic on the
 * host, for any shape and any number of multiprocessors. Any thread. The picture is in
 * sm90_product.cu; a box is the number of slabs in a stage, a block is the M of one wgmma. */
#ifndef QUIRE_KERNELS_PRODUCT_CUT_H
#define QUIRE_KERNELS_PRODUCT_CUT_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUT_SLAB      128 /* bytes of a row in a slab: one row of the 128-byte swizzle */
#define CUT_SLAB_COLS 64  /* of bfloat16 and float16 */
#define CUT_BLOCK     64  /* rows of w per wgmma */
#define CUT_DEPTH_MAX 32
#define CUT_ROWS_MAX  256 /* rows of w per tile */
/* Stride of a column of a K_PRODUCT_GATED tile in shared memory. */
#define CUT_GATED_STRIDE (CUT_ROWS_MAX / 2 + 8)
/* Inverse norms, scales, barriers of the ring, two of the cluster's exchange. */
#define CUT_REST_BYTES (64 * 4 + CUT_ROWS_MAX * 4 + 4 * CUT_DEPTH_MAX * 8 + 2 * 8)
#define CUT_SMEM_MAX   (227 * 1024)

/* How a matrix is cut for a bucket of rows. */
struct product_cut {
    /* Needed by the kernel before its first copy. The arguments of a launch are not cached: 200
     * cycles per 64 bytes, and these are the first. */
    int n_split;      /* CTAs of a cluster (split-K): each has a share of n_in */
    int n_slabs;      /* slabs of w along n_in */
    int rest_at;      /* offset in shared memory of inverse norms and barriers */
    int depth;        /* stages of w */
    int first_stages; /* stages of the first tile that are loaded before the previous launch has
                      * ended */
    int stage_bytes;
    int n_out;
    int rows;       /* rows of w per tile */
    int block_rows; /* rows / n_blocks, at most CUT_BLOCK */
    int box;        /* slabs per stage */
    int x_depth;
    int part;     /* with one block: floats of a warpgroup's sums, a multiple of 16 rows */
    int n_tiles;  /* tiles of the matrix */
    int n_groups; /* clusters */
    bool gated;
    /* stages of w are [rows / 8][box][8][CUT_SLAB]; else [box][rows][CUT_SLAB] */
    bool rows_by_eight;
    bool packed; /* stages of w are strips [rows / 16][box][record] (packed.h) */

    int n_in;
    int x_slabs;  /* slabs of x per slab of w: 1, or 2 with e4m3 */
    int columns;  /* N of a wgmma: the bucket's rows of x */
    int x_rows;   /* rows of x that are copied: n rounded up to 8 */
    int n_blocks; /* blocks per tile: 1, 2 or 4 */
    /* With K_PRODUCT_FLOAT and several tiles per CTA: tiles after the first n_whole have tail_rows,
     * so that all CTAs have nearly the same number of rows; 0: there are none. */
    int n_whole, tail_rows;
    int group_bytes, slab_bytes; /* in a stage: bytes from 8 rows, or a strip, to the next, and from
                                  * a slab to the next */
    int x_bytes;
    int x_copied; /* bytes copied per stage of x */
    /* Offsets in shared memory, which begins with the stages of w. */
    int x_at;
    /* sums of a round; 0, over the stages, when there is one tile (but see own_at) */
    int red_at;
    /* With one block and two CTAs: a CTA's own sums and those that the other sends, each in a stage
     * of w; the latter in the stage that would be loaded next, which was read first of the last
     * `depth` */
    int own_at[2], sent_at[2];
    int smem;
    int round; /* with several blocks: columns that are written at a time */
};

/* The largest number of rows of x that is cut like n: 8, 16, 32, 48 or 64. */
int product_cut_columns(int n);

/* Elements of n_in in a slab of w. */
int product_cut_slab_cols(const struct k_format *format);

/* Cut w for n rows of x, 1 .. K_PRODUCT_ROWS_MAX. n_in is a multiple of product_cut_slab_cols();
 * for K_PRODUCT_RESIDUAL n_out is a multiple of 16. False: it does not fit into shared memory,
 * which is known of no such shape. */
bool product_cut_of(struct product_cut *c, const struct k_matrix *w, enum k_product_kind kind,
                    int n, int n_sms);

#ifdef __cplusplus
}
#endif
#endif
