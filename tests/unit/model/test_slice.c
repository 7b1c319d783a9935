/* SPDX-License-Identifier: Apache-2.0
 *
 * Slices of tensors: all ranks' together are the tensor, each row is where slice_row() and
 * slice_to() say, in whatever runs the tensor comes; groups that an edge would cut are seen. Pieces
 * of fused tensors, in chunks, and heads in another order are shapes among the others. */
#include "model/slice.h"

#include <string.h>

#include "model/rope.h"
#include "tests/tap.h"

#define CELLS_MAX 8192

/* Runs of `step` rows, as a reader brings them: every row of the slice, in its place, once. */
static bool comes_whole(const struct slice *s, int step)
{
    int n = 0;

    for (int at = 0; at < s->rows; at += step) {
        int end = at + step < s->rows ? at + step : s->rows;

        for (struct slice_run r = slice_next(s, at, end); r.n > 0;
             r = slice_next(s, r.from + r.n, end)) {
            for (int i = 0; i < r.n; i++, n++) {
                if (slice_row(s, r.to + i) != r.from + i || slice_to(s, r.from + i) != r.to + i)
                    return false;
            }
        }
    }
    return n == s->n_rows;
}

/* How often each element is had, by all ranks: n_ranks / (number of different slices). */
static void check(const char *name, struct slice_shape shape, int n_ranks, int times)
{
    int had[CELLS_MAX] = {0};
    bool whole = true, even = true;

    for (int rank = 0; rank < n_ranks; rank++) {
        struct slice s = slice_make(&shape, rank, n_ranks);

        for (int step = 1; step <= shape.rows; step++)
            whole = whole && comes_whole(&s, step);
        for (int r = 0; r < s.n_rows; r++) {
            for (int c = 0; c < s.n_cols; c++)
                had[slice_row(&s, r) * s.cols + s.col + c]++;
        }
    }
    for (int i = 0; i < shape.rows * shape.cols; i++)
        even = even && had[i] == times;
    ok(whole, "%s, %d ranks: in any runs", name, n_ranks);
    ok(even, "%s, %d ranks: each element %d times", name, n_ranks, times);
}

/* Heads of 3 rows in room for 5, and of 4 columns in room for 6: two of them a rank. */
static void check_room(void)
{
    struct slice_shape shape = slice_whole(12, 6, 16, 8);
    struct slice s;

    ok(!slice_is_padded(&shape), "a slice without room");
    shape.pad_rows = (struct slice_pad){3, 5};
    shape.pad_cols = (struct slice_pad){4, 6};
    s = slice_make(&shape, 1, 2);
    ok(slice_is_padded(&shape) && s.n_rows == 10 && s.n_cols == 12 && s.rows == 12 &&
           s.cols == 16 && s.col == 8,
       "one with it: its size, and the tensor's");
    ok(slice_to(&s, 5) == -1 && slice_to(&s, 6) == 0 && slice_to(&s, 9) == 3,
       "rows of the tensor are those of a slice without");
    ok(slice_padded(&shape.pad_rows, 2) == 2 && slice_padded(&shape.pad_rows, 3) == 5 &&
           slice_padded(&shape.pad_cols, 7) == 9,
       "which have places behind the room of others");
}

static void make_order(struct head_order *o, const struct rope *r)
{
    o->head_dim = r->head_dim;
    for (int d = 0; d < r->head_dim; d++) {
        o->to[d] = (int16_t)rope_place(r, d);
        o->from[o->to[d]] = (int16_t)d;
    }
}

/* q, k and v of heads of 8 in one tensor, one below the other or head by head. */
static struct slice_shape fused(int n_heads, int own_heads, bool by_head,
                                const struct head_order *order)
{
    struct slice_shape s = {.cols = 5, .own_cols = 5};

    for (int i = 0; i < 3; i++)
        slice_stack(&s, n_heads * 8, own_heads * 8, i < 2 ? order : NULL);
    for (int i = 0; i < 3 && by_head; i++) {
        s.pieces[i].from = i * 8;
        s.pieces[i].chunk = 8;
        s.pieces[i].stride = 24;
    }
    return s;
}

static void check_fused(void)
{
    const struct rope partial = {.head_dim = 8, .rotary_dim = 4};
    const struct rope pairs = {.head_dim = 8, .rotary_dim = 6, .interleaved = true};
    struct head_order order;
    struct slice_shape shape;
    struct slice s;

    check("q, k, v", fused(4, 2, false, NULL), 2, 1);
    check("q, k, v head by head", fused(4, 1, true, NULL), 4, 1);
    make_order(&order, &partial);
    check("half of a head rotates", fused(4, 2, false, &order), 2, 1);
    make_order(&order, &pairs);
    check("pairs side by side, head by head", fused(4, 4, true, &order), 1, 1);
    shape = fused(4, 2, true, &order);
    s = slice_make(&shape, 1, 2);
    is_int(slice_row(&s, 0), 2 * 24, "the first row of rank 1 is of head 2's query");
    is_int(slice_row(&s, 1), 2 * 24 + 2, "its second is the second pair's first");
    is_int(slice_row(&s, 4), 2 * 24 + 1, "the second half begins with the first pair's second");
    is_int(slice_row(&s, 7), 2 * 24 + 7, "and ends with the last element");
    is_int(slice_row(&s, 16), 2 * 24 + 8, "after two heads of queries come keys");
    is_int(slice_row(&s, 33), 2 * 24 + 17, "values keep their order");
    is_int(slice_to(&s, 0), -1, "rank 1 has nothing of head 0");
}

/* 2 groups of 3 heads, of which the tensor has the first of both groups, then the second of both:
 * queries of 4 rows above heads of 8, or columns. */
static struct slice_shape turned(int own_groups, bool columns)
{
    struct slice_shape s = {.cols = 5, .own_cols = 5};

    if (columns) {
        s = slice_whole(5, 5, 48, own_groups * 24);
        s.col_chunk = 8;
        s.col_turn = 3;
        return s;
    }
    slice_stack(&s, 4, own_groups * 2, NULL);
    slice_stack(&s, 48, own_groups * 24, NULL);
    s.pieces[1].chunk = s.pieces[1].stride = 8;
    s.pieces[1].turn = 3;
    return s;
}

static void check_turns(void)
{
    /* Head h of the matrix, group h / 3, is at this place of the tensor. */
    static const int places[] = {0, 2, 4, 1, 3, 5};
    struct slice_shape rows = turned(2, false), columns = turned(1, true);
    struct slice s = slice_make(&rows, 0, 1), c = slice_make(&columns, 1, 2);
    char numbers[2][48], row[48];
    bool right = true, moved = true;

    check("rows in turns", rows, 1, 1);
    check("rows in turns", turned(1, false), 2, 1);
    for (int i = 0; i < 48; i++) {
        numbers[0][i] = (char)i;
        numbers[1][i] = (char)(50 + i);
    }
    slice_order_columns(&c, numbers, 2, 8, row);
    for (int head = 0; head < 6; head++) {
        right = right && slice_row(&s, 4 + head * 8 + 5) == 4 + places[head] * 8 + 5;
        for (int i = 0; i < 8; i++)
            moved = moved && numbers[0][head * 8 + i] == places[head] * 8 + i &&
                    numbers[1][head * 8 + i] == 50 + places[head] * 8 + i;
    }
    ok(right, "each head's rows are at its place");
    ok(moved, "columns come from theirs");
    is_int(c.col, 24, "rank 1 has the second group's");
    ok(!slice_cuts_blocks(&c, 8) && slice_cuts_blocks(&c, 12),
       "blocks of 8 columns move, those of 12 are cut");
}

static void check_cuts(void)
{
    const struct k_format blocks = k_format_in_groups(K_E4M3, 16, 16);
    const struct k_format by_row = k_format_by_row(K_E4M3);
    const struct rope partial = {.head_dim = 8, .rotary_dim = 4};
    struct head_order order;
    struct {
        const char *name;
        struct slice_shape shape;
        int n_ranks;
        bool cuts;
    } cases[] = {{"all of a tensor", slice_whole(40, 40, 40, 40), 1, false},
                 {"half of the rows", slice_whole(64, 32, 40, 40), 2, false},
                 {"24 of 48 rows", slice_whole(48, 24, 40, 40), 2, true},
                 {"24 of 48 columns", slice_whole(40, 40, 48, 24), 2, true},
                 {"heads of 8 in turns", turned(2, false), 1, true},
                 {"columns of 8 in turns", turned(2, true), 1, true},
                 {"pieces of 32", fused(4, 4, false, NULL), 1, false},
                 {"pieces of 24", fused(3, 3, false, NULL), 1, true},
                 {"head by head", fused(4, 4, true, NULL), 1, true},
                 {"heads of 8 in an order", fused(4, 4, false, &order), 1, false}};

    make_order(&order, &partial);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct slice s = slice_make(&cases[i].shape, cases[i].n_ranks - 1, cases[i].n_ranks);
        struct k_format f = blocks;

        if (cases[i].shape.cols == 5)
            f.group_cols = 5;
        ok(slice_cuts(&s, &f) == cases[i].cuts, "blocks, %s: %s", cases[i].name,
           cases[i].cuts ? "cut" : "not cut");
        ok(!slice_cuts(&s, &by_row), "a scale per row, %s: not cut", cases[i].name);
    }
}

int main(void)
{
    struct slice_shape value_and_gate = {.cols = 3, .own_cols = 3};

    check("[12][7] whole", slice_whole(12, 12, 7, 7), 1, 1);
    check("[12][7] whole on all", slice_whole(12, 12, 7, 7), 4, 4);
    check("[3][7] of [12][7]", slice_whole(12, 3, 7, 7), 4, 1);
    check("two kv heads", slice_whole(12, 6, 7, 7), 4, 2);
    check("[5][7] of [5][28]", slice_whole(5, 5, 28, 7), 4, 1);
    slice_stack(&value_and_gate, 20, 5, NULL);
    slice_stack(&value_and_gate, 20, 5, NULL);
    check("value and gate", value_and_gate, 4, 1);
    check("a bias", slice_whole(30, 10, 1, 1), 3, 1);
    check_fused();
    check_turns();
    check_cuts();
    check_room();
    return tap_done();
}
