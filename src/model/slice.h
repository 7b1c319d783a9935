/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's part of a tensor: which of its rows, in which order, and which columns of these.
 *
 * A tensor holds one or several pieces, such as q, k and v of a fused projection, or gate and up; a
 * rank has a part of each piece, and the parts follow one another in its matrix. The rows of a
 * piece may come in chunks (heads of q, k and v in turn), and the rows within each head may be
 * reordered (rope.h).
 *
 * Chunks may be in turns: where the matrix has groups of `turn` chunks each, the tensor has the
 * first chunk of every group, then the second of every group, and so on. GGUF files have the value
 * heads of Gated DeltaNet so, as rows and as columns. */
#ifndef QUIRE_MODEL_SLICE_H
#define QUIRE_MODEL_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/format.h"
#include "kernels/kernels.h"

#define SLICE_PIECES_MAX 5 /* z, x, B, C, dt of Mamba-2 */

/* The order of the rows of a head: row d of the tensor is row to[d], and row r is from[r]. */
struct head_order {
    int head_dim;
    int16_t to[K_HEAD_DIM_MAX], from[K_HEAD_DIM_MAX];
};

/* A piece of a tensor, and the size of a rank's part. */
struct slice_piece {
    int rows, own_rows; /* own_rows divides rows, or the ranks share parts (slice_make()) */
    int from;           /* the piece's first row in the tensor */
    int chunk, stride;  /* chunks of `chunk` rows begin `stride` rows apart; a piece in one run
                         * is one chunk */
    int turn;           /* chunks are in turns; 0 or 1: in the matrix's order */
    const struct head_order *order; /* NULL: unchanged; else rows are whole heads */
};

/* Room for more: each run of `n` rows (or columns) of the tensor is one of `own` of the slice,
 * whose last ones are 0. n 0: there is none. */
struct slice_pad {
    int n, own;
};

/* A whole tensor, before it is divided among ranks. One with room has one piece, in its order. */
struct slice_shape {
    int rows; /* of the tensor, all pieces */
    int n_pieces;
    struct slice_piece pieces[SLICE_PIECES_MAX];
    int cols, own_cols;
    int col_chunk, col_turn; /* columns are in chunks, in turns; col_turn 0: one chunk */
    struct slice_pad pad_rows, pad_cols;
};

struct slice {
    struct slice_shape shape;
    int first[SLICE_PIECES_MAX]; /* the rank's first row of each piece */
    int n_rows;                  /* of the rank: all pieces, with room */
    int rows, cols;              /* of the tensor */
    int col, n_cols;             /* col: in the matrix's order */
};

/* Where chunk `chunk` of n is in a tensor that has them in turns. */
int slice_in_turns(int chunk, int n, int turn);

/* A tensor that is one piece, in the tensor's order. */
struct slice_shape slice_whole(int rows, int own_rows, int cols, int own_cols);

/* Append a piece below those that the shape has, in one chunk. */
void slice_stack(struct slice_shape *s, int rows, int own_rows, const struct head_order *order);

/* A rank's slice. If a piece has fewer parts than there are ranks, neighbouring ranks have the same
 * part. */
struct slice slice_make(const struct slice_shape *shape, int rank, int n_ranks);

bool slice_is_padded(const struct slice_shape *s);

/* The place of element i behind the room of those before it, and how many places i elements take,
 * which are whole runs. */
int slice_padded(const struct slice_pad *pad, int i);

/* Not of a slice with room. */
int slice_row(const struct slice *s, int row); /* the row of the tensor that is row `row` of the
                                                * slice */
int slice_to(const struct slice *s, int row);  /* the row of the slice for a row of the tensor,
                                                * or -1 */

/* True if blocks of n columns of the tensor would cross an edge of the slice, or of a chunk that
 * moves. */
bool slice_cuts_blocks(const struct slice *s, int n);

/* True if a group of elements that share a scale would cross an edge of the slice, of a piece, or
 * of a head that is reordered. */
bool slice_cuts(const struct slice *s, const struct k_format *f);

/* Rows that are consecutive both in the tensor and in the slice. */
struct slice_run {
    int from, to; /* the first, in the tensor and in the slice */
    int n;        /* 0: there are none */
};

/* The first such run among rows from .. end - 1 of the tensor. */
struct slice_run slice_next(const struct slice *s, int from, int end);

/* Bring the columns of n whole rows of a tensor, in chunks of chunk_bytes each, from turns into the
 * matrix's order, in place; row has room for the bytes of one. Any thread. */
void slice_order_columns(const struct slice *s, void *rows, int n, size_t chunk_bytes, void *row);

#endif
