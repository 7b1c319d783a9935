/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the name that was meant is found among others. Method: distances counted by hand; the best
 * of lists. */
#include <string.h>

#include "base/near.h"
#include "tests/tap.h"

static void check_distances(void)
{
    static const struct {
        const char *a, *b;
        int edits;
    } pairs[] = {{"", "", 0},
                 {"", "abc", 3},
                 {"serve", "serve", 0},
                 {"serv", "serve", 1},
                 {"sreve", "serve", 1},
                 {"max_num-seqs", "max-num_seqs", 0},
                 {"kitten", "sitting", 3},
                 {"Qwen3ForCausalLM", "Qwen2ForCausalLM", 1}};
    char x[2 * NEAR_MAX], y[2 * NEAR_MAX];

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        int there = near_distance(pairs[i].a, pairs[i].b);
        int back = near_distance(pairs[i].b, pairs[i].a);

        ok(there == pairs[i].edits && back == pairs[i].edits,
           "\"%s\" and \"%s\": %d edits, %d back", pairs[i].a, pairs[i].b, there, back);
    }
    memset(x, 'x', sizeof x);
    memset(y, 'y', sizeof y);
    x[sizeof x - 1] = y[sizeof y - 1] = '\0';
    is_int(near_distance(x, y), NEAR_MAX, "of longer names the beginning counts");
}

static void check_best(void)
{
    static const char *const names[] = {"chat", "serve", "server", "quantize"};
    struct near near = {.word = "sevre"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        near_try(&near, names[i]);
    ok(near.name == names[1], "the best of a list is kept");
    near = (struct near){.word = "xyz"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        near_try(&near, names[i]);
    ok(near.name == NULL, "no name is like one that differs in all bytes");
}

int main(void)
{
    check_distances();
    check_best();
    return tap_done();
}
