/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece has rows 0 .. rows - 1 of its own; slice_piece_row() and its inverse convert between them and
 * the tensor's rows. Everything else is built on the two. */
#include "model/slice.h"

#include "base/must.h"

struct slice_shape slice_whole(int rows, int own_rows, int cols, int own_cols)
{
    struct slice_shape s = {.rows = 0, .cols = cols, .own_cols = own_cols};

    slice_stack(&s, rows, own_rows, NULL);
    return s;
}

void slice_stack(struct slice_shape *s, int rows, int own_rows, const struct head_order *order)
{
    must(s->n_pieces < SLICE_PIECES_MAX);
    s->pieces[s->n_pieces++] = (struct slice_piece){.rows = rows,
                                                    .own_rows = own_rows,
                                                    .from = s->rows,
                                                    .chunk = rows,
                                                    .stride = rows,
                                                    .order = order};
    s->rows += rows;
}

/* Where a rank's `own` of `whole` rows or columns begin. */
static int slice_own_first(int whole, int own, int rank, int n_ranks)
{
    return rank / (n_ranks / (whole / own)) * own;
}

struct slice slice_make(const struct slice_shape *shape, int rank, int n_ranks)
{
    struct slice s = {.shape = *shape,
                      .rows = shape->rows,
                      .cols = shape->cols,
                      .col = slice_own_first(shape->cols, shape->own_cols, rank, n_ranks),
                      .n_cols = shape->own_cols};

    for (int i = 0; i < shape->n_pieces; i++) {
        const struct slice_piece *p = &shape->pieces[i];

        s.first[i] = slice_own_first(p->rows, p->own_rows, rank, n_ranks);
        s.n_rows += p->own_rows;
    }
    return s;
}

/* The tensor's row of row i of a piece. */
static int slice_piece_row(const struct slice_piece *p, int i)
{
    return p->from + i / p->chunk * p->stride + i % p->chunk;
}

/* Row i of a piece whose row in the tensor is `row`; -1: the row is not of this piece. */
static int slice_row_of_piece(const struct slice_piece *p, int row)
{
    int at = row - p->from, i;

    if (at < 0 || at % p->stride >= p->chunk)
        return -1;
    i = at / p->stride * p->chunk + at % p->stride;
    return i < p->rows ? i : -1;
}

static int slice_reorder(const int16_t *order, int head_dim, int row)
{
    return row / head_dim * head_dim + order[row % head_dim];
}

int slice_row(const struct slice *s, int row)
{
    for (int i = 0; i < s->shape.n_pieces; i++) {
        const struct slice_piece *p = &s->shape.pieces[i];

        if (row < p->own_rows) {
            if (p->order != NULL)
                row = slice_reorder(p->order->from, p->order->head_dim, row);
            return slice_piece_row(p, s->first[i] + row);
        }
        row -= p->own_rows;
    }
    must(false); /* the slice has fewer rows */
    return 0;
}

int slice_to(const struct slice *s, int row)
{
    int above = 0;

    for (int i = 0; i < s->shape.n_pieces; i++) {
        const struct slice_piece *p = &s->shape.pieces[i];
        int own = slice_row_of_piece(p, row) - s->first[i];

        if (own >= 0 && own < p->own_rows) {
            if (p->order != NULL)
                own = slice_reorder(p->order->to, p->order->head_dim, own);
            return above + own;
        }
        above += p->own_rows;
    }
    return -1;
}

/* Groups of `high` rows of the tensor lie whole in a piece's part, in the same places. */
static bool slice_piece_cuts(const struct slice *s, int i, int high)
{
    const struct slice_piece *p = &s->shape.pieces[i];
    bool is_last = i + 1 == s->shape.n_pieces, is_all = p->own_rows == p->rows;

    if (p->from % high != 0 || s->first[i] % high != 0)
        return true;
    if ((!is_last || !is_all) && p->own_rows % high != 0)
        return true;
    if (p->chunk < p->rows && (p->chunk % high != 0 || p->stride % high != 0))
        return true;
    return p->order != NULL && high % p->order->head_dim != 0;
}

bool slice_cuts(const struct slice *s, const struct k_format *f)
{
    for (int i = 0; i < s->shape.n_pieces && f->group_rows > 1; i++) {
        if (slice_piece_cuts(s, i, f->group_rows))
            return true;
    }
    return f->group_cols > 0 && s->n_cols < s->cols && s->n_cols % f->group_cols != 0;
}

struct slice_run slice_next(const struct slice *s, int from, int end)
{
    struct slice_run run = {.from = from};

    while (run.from < end && (run.to = slice_to(s, run.from)) < 0)
        run.from++;
    while (run.from + run.n < end && slice_to(s, run.from + run.n) == run.to + run.n)
        run.n++;
    return run;
}
