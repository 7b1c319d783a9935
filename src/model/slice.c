/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows and columns of a tensor a rank has, and where each goes.
 *
 * A piece has rows 0 .. rows - 1 of its own. slice_piece_row() and its inverse slice_row_of_piece()
 * convert between them and the rows of the tensor; everything else is built on these two.
 *
 * Example: q, k, v by head, 2 heads of 64 rows. Piece k has from 64, chunk 64, stride 192: its row
 * 70 is in head 1, and is row 64 + 192 + 6 = 262 of the tensor. */
#include "model/slice.h"

#include <string.h>

#include "base/must.h"

/* One piece in the tensor's order is the common case. */
struct slice_shape slice_whole(int rows, int own_rows, int cols, int own_cols)
{
    struct slice_shape shape = {.rows = 0, .cols = cols, .own_cols = own_cols};

    must(own_rows <= rows && own_cols <= cols);
    slice_stack(&shape, rows, own_rows, NULL);
    return shape;
}

/* The caller may change from, chunk and stride afterwards, for pieces in chunks. */
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

/* The first of a rank's `own` rows (or columns) out of `whole`. With fewer parts than ranks,
 * n_ranks / (whole / own) ranks share each part: 8 ranks and 2 kv heads give 0 0 0 0 1 1 1 1. */
static int slice_own_first(int whole, int own, int rank, int n_ranks)
{
    return rank / (n_ranks / (whole / own)) * own;
}

bool slice_is_padded(const struct slice_shape *s)
{
    return s->pad_rows.n > 0 || s->pad_cols.n > 0;
}

int slice_padded(const struct slice_pad *pad, int i)
{
    return pad->n > 0 ? i / pad->n * pad->own + i % pad->n : i;
}

/* Columns and each piece are divided in the same way. */
struct slice slice_make(const struct slice_shape *shape, int rank, int n_ranks)
{
    struct slice slice = {.shape = *shape,
                          .rows = shape->rows,
                          .cols = shape->cols,
                          .col = slice_own_first(shape->cols, shape->own_cols, rank, n_ranks),
                          .n_cols = shape->own_cols};

    must(rank >= 0 && rank < n_ranks);
    slice.n_cols = slice_padded(&shape->pad_cols, slice.n_cols);
    for (int i = 0; i < shape->n_pieces; i++) {
        const struct slice_piece *piece = &shape->pieces[i];

        slice.first[i] = slice_own_first(piece->rows, piece->own_rows, rank, n_ranks);
        slice.n_rows += slice_padded(&shape->pad_rows, piece->own_rows);
    }
    return slice;
}

int slice_in_turns(int chunk, int n, int turn)
{
    return chunk % turn * (n / turn) + chunk / turn;
}

/* The row of the tensor that is row i of a piece. */
static int slice_piece_row(const struct slice_piece *p, int i)
{
    int chunk = i / p->chunk;

    if (p->turn > 1)
        chunk = slice_in_turns(chunk, p->rows / p->chunk, p->turn);
    return p->from + chunk * p->stride + i % p->chunk;
}

/* The row of a piece that is row `row` of the tensor; -1 if that row belongs to another piece. */
static int slice_row_of_piece(const struct slice_piece *p, int row)
{
    int at = row - p->from, chunk, n = p->rows / p->chunk;

    if (at < 0 || at % p->stride >= p->chunk || at / p->stride >= n)
        return -1;
    chunk = at / p->stride;
    if (p->turn > 1) /* its own inverse, with the other number of groups */
        chunk = slice_in_turns(chunk, n, n / p->turn);
    return chunk * p->chunk + at % p->stride;
}

/* Reorder within a head; the head itself stays. */
static int slice_reorder(const int16_t *order, int head_dim, int row)
{
    return row / head_dim * head_dim + order[row % head_dim];
}

/* The slice's rows are the parts of all pieces, one after another. */
int slice_row(const struct slice *s, int row)
{
    for (int i = 0; i < s->shape.n_pieces; i++) {
        const struct slice_piece *piece = &s->shape.pieces[i];

        if (row < piece->own_rows) {
            if (piece->order != NULL)
                row = slice_reorder(piece->order->from, piece->order->head_dim, row);
            return slice_piece_row(piece, s->first[i] + row);
        }
        row -= piece->own_rows;
    }
    must(false); /* row is beyond the slice */
    return 0;
}

/* The inverse of slice_row(). */
int slice_to(const struct slice *s, int row)
{
    int above = 0;

    for (int i = 0; i < s->shape.n_pieces; i++) {
        const struct slice_piece *piece = &s->shape.pieces[i];
        int own = slice_row_of_piece(piece, row) - s->first[i];

        if (own >= 0 && own < piece->own_rows) {
            if (piece->order != NULL)
                own = slice_reorder(piece->order->to, piece->order->head_dim, own);
            return above + own;
        }
        above += piece->own_rows;
    }
    return -1;
}

/* True if a group of `high` rows that share a scale would not lie whole, and in its place, in the
 * rank's part of piece i. The last piece may end with an incomplete group if the rank has all of
 * it. */
static bool slice_piece_cuts(const struct slice *s, int i, int high)
{
    const struct slice_piece *piece = &s->shape.pieces[i];
    bool is_last = i + 1 == s->shape.n_pieces, is_all = piece->own_rows == piece->rows;

    if (piece->from % high != 0 || s->first[i] % high != 0)
        return true;
    if ((!is_last || !is_all) && piece->own_rows % high != 0)
        return true;
    if (piece->chunk < piece->rows && (piece->chunk % high != 0 || piece->stride % high != 0))
        return true;
    return piece->order != NULL && high % piece->order->head_dim != 0;
}

bool slice_cuts_blocks(const struct slice *s, int n)
{
    return s->n_cols % n != 0 || (s->shape.col_turn > 1 && s->shape.col_chunk % n != 0);
}

/* Columns are split at multiples of n_cols, and moved in chunks. */
bool slice_cuts(const struct slice *s, const struct k_format *f)
{
    for (int i = 0; i < s->shape.n_pieces && f->group_rows > 1; i++) {
        if (slice_piece_cuts(s, i, f->group_rows))
            return true;
    }
    return f->group_cols > 0 && (s->n_cols < s->cols || s->shape.col_turn > 1) &&
           slice_cuts_blocks(s, f->group_cols);
}

/* Longest run of rows that are consecutive in both, so that one copy moves them. */
struct slice_run slice_next(const struct slice *s, int from, int end)
{
    struct slice_run run = {.from = from};

    while (run.from < end && (run.to = slice_to(s, run.from)) < 0)
        run.from++;
    while (run.from + run.n < end && slice_to(s, run.from + run.n) == run.to + run.n)
        run.n++;
    return run;
}

void slice_order_columns(const struct slice *s, void *rows, int n, size_t chunk_bytes, void *row)
{
    int n_chunks = s->cols / s->shape.col_chunk;
    size_t row_bytes = (size_t)n_chunks * chunk_bytes;

    for (int i = 0; i < n; i++) {
        char *to = (char *)rows + (size_t)i * row_bytes;

        memcpy(row, to, row_bytes);
        for (int chunk = 0; chunk < n_chunks; chunk++) {
            size_t from = (size_t)slice_in_turns(chunk, n_chunks, s->shape.col_turn);

            memcpy(to + (size_t)chunk * chunk_bytes, (char *)row + from * chunk_bytes, chunk_bytes);
        }
    }
}
