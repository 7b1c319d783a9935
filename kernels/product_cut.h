/* How sm90_product.cu cuts a matrix and lays out shared memory: plain arithmetic on the host, for
 * any shape and any number of multiprocessors. Any thread. */
#ifndef QUIRE_KERNELS_PRODUCT_CUT_H
#define QUIRE_KERNELS_PRODUCT_CUT_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUT_SLAB      128 /* bytes of a row in a slab: one row of the swizzle's pattern */
#define CUT_SLAB_COLS 64  /* of bfloat16 and float16 */
#define CUT_BLOCK     64  /* rows of w that one wgmma takes */
#define CUT_DEPTH_MAX 32
#define CUT_ROWS_MAX  256 /* of w in a tile */
/* of a tile's rows of K_PRODUCT_GATED in shared memory, from a column to the next */
#define CUT_GATED_STRIDE (CUT_ROWS_MAX / 2 + 8)
/* inverse, scales, barriers of slots, two of a cluster's exchange */
#define CUT_REST_BYTES (64 * 4 + CUT_ROWS_MAX * 4 + 4 * CUT_DEPTH_MAX * 8 + 2 * 8)
#define CUT_SMEM_MAX   (227 * 1024)

/* How a matrix is cut for a bucket of rows. */
struct product_cut {
    /* What the kernel wants before its first copy. A launch finds its arguments cold: 200 cycles
     * for each 64 bytes, and these are the first. */
    int n_split;     /* CTAs of a cluster: each has a share of n_in */
    int n_slabs;     /* of w, over n_in */
    int rest_at;     /* in shared memory: inverse, barriers */
    int depth;       /* slots of w */
    int first_slots; /* of the first tile: ordered before the launch in front has ended */
    int slot_bytes;
    int n_out;
    int rows;       /* of w in a tile */
    int block_rows; /* rows / n_blocks, at most CUT_BLOCK */
    int box;        /* slabs of a slot */
    int x_depth;
    int part;     /* of one block: floats that a warpgroup's sums take, of whole sixteen rows */
    int n_tiles;  /* of the matrix */
    int n_groups; /* clusters */
    bool gated;
    /* slots of w are [rows / 8][box][8][CUT_SLAB]; else [box][rows][CUT_SLAB] */
    bool rows_by_eight;

    int n_in;
    int x_slabs;  /* of x for a slab of w: 1, or 2 of e4m3 */
    int columns;  /* of a wgmma: the bucket's rows */
    int x_rows;   /* of x that are copied: n rounded up to 8 */
    int n_blocks; /* of a tile: 1, 2 or 4 */
    /* Of K_PRODUCT_FLOAT with several tiles a CTA: tiles behind the first n_whole have tail_rows,
     * so that all CTAs have nearly equally many rows; 0: there are none. */
    int n_whole, tail_rows;
    int group_bytes, slab_bytes; /* in a slot: from 8 rows to the next, from a slab to the next */
    int x_bytes;
    int x_copied; /* bytes of a slot of x that are copied */
    /* in shared memory, whose beginning are the slots of w: */
    int x_at;
    /* sums of a round; 0, over the slots, when there is one tile (but see own_at) */
    int red_at;
    /* of one block and two CTAs, where each has its own sums and what the other sends, a slot of w
     * each: the latter where one more slot would go, which is read first of the last `depth` */
    int own_at[2], sent_at[2];
    int smem;
    int round; /* of several blocks: columns that are written at a time */
};

/* The largest number of rows of x that are cut as n are: 8, 16, 32, 48 or 64. */
int product_cut_columns(int n);

/* Elements of n_in in a slab of w. */
int product_cut_slab_cols(const struct k_format *format);

/* w for n rows of x, 1 .. K_PRODUCT_ROWS_MAX. n_in is a multiple of product_cut_slab_cols(); for
 * K_PRODUCT_RESIDUAL n_out is one of 16. False: no room, which no such shape was found to have. */
bool product_cut_of(struct product_cut *c, const struct k_matrix *w, enum k_product_kind kind,
                    int n, int n_sms);

#ifdef __cplusplus
}
#endif
#endif
