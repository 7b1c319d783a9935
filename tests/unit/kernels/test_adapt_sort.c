/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: k_adapt_sort() makes segments that kernels can rely on. Method: random slots for 1 to 100
 * rows; each must be in one segment of its slot, in order, at most K_ADAPT_ROWS a segment, those
 * without adapter first. */
#include <stdlib.h>

#include "kernels/adapter.h"
#include "tests/tap.h"

#define ROWS_MAX  100
#define SLOTS_MAX 9

struct sorted {
    int32_t order[ROWS_MAX], starts[ROWS_MAX + 1], slots[ROWS_MAX], count[2], of[ROWS_MAX];
};

/* Are the rows of segment i right? */
static bool rows_are_right(const struct sorted *s, int i, const int32_t *slots, int *n_seen)
{
    for (int at = s->starts[i]; at < s->starts[i + 1]; at++) {
        int row = s->order[at];

        if (slots[row] != s->slots[i] || s->of[row] != s->slots[i] ||
            (at > s->starts[i] && row <= s->order[at - 1]))
            return false;
        n_seen[row]++;
    }
    return true;
}

static bool is_right(const struct sorted *s, const int32_t *slots, int n)
{
    int n_seen[ROWS_MAX] = {0}, n_none = 0;
    bool right = s->starts[0] == 0 && s->starts[s->count[0]] == n;

    for (int i = 0; i < s->count[0] && right; i++) {
        int rows = s->starts[i + 1] - s->starts[i];

        n_none += s->slots[i] < 0;
        right = rows >= 1 && rows <= K_ADAPT_ROWS && rows_are_right(s, i, slots, n_seen) &&
                (i == 0 || s->slots[i] >= s->slots[i - 1]);
    }
    for (int row = 0; row < n; row++)
        right = right && n_seen[row] == 1;
    return right && n_none == s->count[1];
}

int main(void)
{
    unsigned seed = tap_seed(1);
    int n_wrong = 0;

    for (int turn = 0; turn < 2000; turn++) {
        int n = 1 + turn % ROWS_MAX, n_slots = 1 + turn / 7 % SLOTS_MAX;
        int32_t slots[ROWS_MAX], work[SLOTS_MAX + 2];
        struct sorted s;
        struct k_adapt_rows to = {s.order, s.starts, s.slots, s.count, s.of};

        for (int i = 0; i < n; i++) {
            seed = seed * 1664525U + 1013904223U;
            slots[i] = (int)(seed >> 16) % (n_slots + 1) - 1;
        }
        k_adapt_sort(&to, slots, n, n_slots, work);
        n_wrong += !is_right(&s, slots, n);
    }
    is_int(n_wrong, 0, "each row is once in a segment of its slot");
    return tap_done();
}
