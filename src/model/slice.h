/* What a rank has of a tensor [n_blocks * rows][cols]: the same rows of each block, and of these
 * some columns. Blocks are what stands one below the other in one tensor and is divided each for
 * itself, such as a recurrent mixer's value and gate. */
#ifndef QUIRE_MODEL_SLICE_H
#define QUIRE_MODEL_SLICE_H

#include <stdbool.h>

#include "kernels/format.h"

struct slice {
    int n_blocks, rows, cols; /* rows: of a block */
    int row, n_rows, col, n_cols;
};

/* All rows and columns of a tensor, and how many of them a rank has. */
struct slice_shape {
    int rows, own_rows, n_blocks, cols, own_cols;
};

/* A rank's slice. Where there are fewer different slices than ranks, ranks that stand side by side
 * have the same. */
struct slice slice_make(struct slice_shape s, int rank, int n_ranks);

int slice_rows(const struct slice *s);         /* of all blocks */
int slice_row(const struct slice *s, int row); /* the tensor's row that is row `row` of the slice */

/* A group of elements that share a scale would reach over the slice's edge. */
bool slice_cuts(const struct slice *s, const struct k_format *f);

/* Rows of a tensor that stand one behind the other in a slice too. */
struct slice_run {
    int from, to; /* the first, in the tensor and in the slice */
    int n;        /* 0: there are none */
};

/* The first such among rows from .. end - 1 of the tensor. */
struct slice_run slice_next(const struct slice *s, int from, int end);

#endif
