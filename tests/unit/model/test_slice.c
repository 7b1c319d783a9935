/* Slices of tensors: all ranks' together are the tensor, each row stands where slice_row() says, in
 * whatever pieces the tensor comes; groups that an edge would cut are seen. */
#include "model/slice.h"

#include <string.h>

#include "tests/tap.h"

#define CELLS_MAX 4096

/* Pieces of `piece` rows, as a reader brings them: every row of the slice, in its place, once. */
static bool comes_whole(const struct slice *s, int piece)
{
    int all = s->n_blocks * s->rows, n = 0;

    for (int at = 0; at < all; at += piece) {
        int end = at + piece < all ? at + piece : all;

        for (struct slice_run r = slice_next(s, at, end); r.n > 0;
             r = slice_next(s, r.from + r.n, end)) {
            for (int i = 0; i < r.n; i++) {
                if (r.to + i != n++ || slice_row(s, r.to + i) != r.from + i)
                    return false;
            }
        }
    }
    return n == slice_rows(s);
}

/* How often each element is had, by all ranks: n_ranks / (number of different slices). */
static void check(struct slice_shape shape, int n_ranks, int times)
{
    int had[CELLS_MAX] = {0};
    bool whole = true, even = true;

    for (int rank = 0; rank < n_ranks; rank++) {
        struct slice s = slice_make(shape, rank, n_ranks);

        for (int piece = 1; piece <= shape.rows; piece++)
            whole = whole && comes_whole(&s, piece);
        for (int r = 0; r < slice_rows(&s); r++) {
            for (int c = 0; c < s.n_cols; c++)
                had[slice_row(&s, r) * s.cols + s.col + c]++;
        }
    }
    for (int i = 0; i < shape.rows * shape.cols; i++)
        even = even && had[i] == times;
    ok(whole, "[%d][%d], %d blocks, %d ranks: in any pieces", shape.rows, shape.cols,
       shape.n_blocks, n_ranks);
    ok(even, "[%d][%d] of [%d][%d]: each element %d times", shape.own_rows, shape.own_cols,
       shape.rows, shape.cols, times);
}

static void check_cuts(void)
{
    const struct k_format blocks = k_format_in_groups(K_E4M3, 16, 16);
    const struct k_format by_row = k_format_by_row(K_E4M3);
    const struct slice_shape shapes[] = {
        {40, 40, 1, 40, 40}, {64, 32, 1, 40, 40}, {48, 24, 1, 40, 40}, {40, 40, 1, 48, 24}};

    for (int i = 0; i < 4; i++) {
        struct slice s = slice_make(shapes[i], 1, 2);

        ok(slice_cuts(&s, &blocks) == (i >= 2), "blocks, shape %d: %s", i,
           i >= 2 ? "cut" : "not cut");
        ok(!slice_cuts(&s, &by_row), "a scale a row, shape %d: not cut", i);
    }
}

int main(void)
{
    check((struct slice_shape){12, 12, 1, 7, 7}, 1, 1);
    check((struct slice_shape){12, 12, 1, 7, 7}, 4, 4); /* whole on all */
    check((struct slice_shape){12, 3, 1, 7, 7}, 4, 1);
    check((struct slice_shape){12, 6, 1, 7, 7}, 4, 2); /* two kv heads, four ranks */
    check((struct slice_shape){5, 5, 1, 28, 7}, 4, 1);
    check((struct slice_shape){40, 10, 2, 3, 3}, 4, 1); /* value and gate */
    check((struct slice_shape){30, 10, 1, 1, 1}, 3, 1); /* a bias */
    check_cuts();
    return tap_done();
}
