/* SPDX-License-Identifier: Apache-2.0 */
#include "model/slice.h"

/* Where a rank's `own` of `whole` rows or columns begin. */
static int own_first(int whole, int own, int rank, int n_ranks)
{
    return rank / (n_ranks / (whole / own)) * own;
}

struct slice slice_make(struct slice_shape s, int rank, int n_ranks)
{
    int rows = s.rows / s.n_blocks, n_rows = s.own_rows / s.n_blocks;

    return (struct slice){.n_blocks = s.n_blocks,
                          .rows = rows,
                          .row = own_first(rows, n_rows, rank, n_ranks),
                          .n_rows = n_rows,
                          .cols = s.cols,
                          .col = own_first(s.cols, s.own_cols, rank, n_ranks),
                          .n_cols = s.own_cols};
}

int slice_rows(const struct slice *s)
{
    return s->n_blocks * s->n_rows;
}

int slice_row(const struct slice *s, int row)
{
    return row / s->n_rows * s->rows + s->row + row % s->n_rows;
}

bool slice_cuts(const struct slice *s, const struct k_format *f)
{
    return (f->group_rows > 1 && s->n_rows < s->rows && s->n_rows % f->group_rows != 0) ||
           (f->group_cols > 0 && s->n_cols < s->cols && s->n_cols % f->group_cols != 0);
}

struct slice_run slice_next(const struct slice *s, int from, int end)
{
    while (from < end) { /* a block each time */
        int block = from / s->rows, begin = block * s->rows;
        int first = begin + s->row, last = first + s->n_rows;

        if (s->n_rows == s->rows)
            return (struct slice_run){.from = from, .to = from, .n = end - from};
        first = first > from ? first : from;
        last = last < end ? last : end;
        if (first < last)
            return (struct slice_run){
                .from = first, .to = block * s->n_rows + first - begin - s->row, .n = last - first};
        from = begin + s->rows;
    }
    return (struct slice_run){.n = 0};
}
