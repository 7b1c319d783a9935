/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: every name that was added and not erased is found, and no other. Method: random calls on
 * names that fall together beside a naive model; then names of one place in a row around the
 * table's end, where each is erased in turn. */
#include <string.h>

#include "kv/table.h"
#include "tests/tap.h"

#define N 64

/* The name is neither first nor of a size that divides the step. */
struct thing {
    char before[13];
    struct hash name;
    bool in;
};

/* A name whose search begins at `home`, and which differs from others by `number`. */
static struct hash name_of(uint32_t home, uint32_t number)
{
    struct hash h = {0};

    memcpy(h.bytes, &home, sizeof home);
    memcpy(h.bytes + HASH_BYTES - sizeof number, &number, sizeof number);
    return h;
}

static bool agrees(const struct table *t, const struct thing *things, int n)
{
    uint32_t n_in = 0;

    for (int i = 0; i < n; i++) {
        if (table_find(t, &things[i].name) != (things[i].in ? i : -1))
            return false;
        n_in += things[i].in;
    }
    return table_count(t) == n_in;
}

static void test_random(uint64_t seed)
{
    struct thing things[N] = {0};
    struct table t;
    int wrong = -1;

    ok(table_open(&t, &things->name, sizeof *things, N) == ERR_OK, "open");
    for (uint32_t i = 0; i < N; i++) /* 8 places for 64 names; the last is the table's end */
        things[i].name = name_of(t.mask - 7 + i % 8, i);
    ok(agrees(&t, things, N), "an empty table finds nothing");
    for (int step = 0; step < 20000 && wrong == -1; step++) {
        int i;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        i = (int)(seed >> 33) % N;
        if (things[i].in)
            table_erase(&t, &things[i].name);
        else
            table_add(&t, &things[i].name, i);
        things[i].in = !things[i].in;
        if (!agrees(&t, things, N))
            wrong = step;
    }
    ok(wrong == -1, "20000 random calls agree with a naive model");
    table_clear(&t);
    for (int i = 0; i < N; i++)
        things[i].in = false;
    ok(agrees(&t, things, N), "clear forgets all");
    table_close(&t);
}

/* Four names of the last place: three stand at the table's beginning. */
static void test_around_the_end(void)
{
    for (int gone = 0; gone < 4; gone++) {
        struct thing things[5] = {0};
        struct table t;

        ok(table_open(&t, &things->name, sizeof *things, 5) == ERR_OK, "open");
        for (uint32_t i = 0; i < 5; i++) {
            things[i].name = name_of(i == 4 ? 1 : t.mask, i); /* the last is pushed behind them */
            table_add(&t, &things[i].name, (int)i);
            things[i].in = true;
        }
        ok(t.ids[t.mask] == 0 && t.ids[3] == 4, "a run goes on at the table's beginning");
        table_erase(&t, &things[gone].name);
        things[gone].in = false;
        ok(agrees(&t, things, 5), "name %d of a run around the end is erased", gone);
        table_close(&t);
    }
}

static void test_place(void)
{
    struct thing thing = {.name = name_of(5, 1)};
    struct table t;
    struct table none = {0};
    struct hash other = name_of(5, 2);
    int32_t *place;

    ok(table_open(&t, &thing.name, sizeof thing, 1) == ERR_OK, "open");
    place = table_place(&t, &thing.name);
    ok(*place == -1, "the place of a new name is empty");
    *place = 0;
    ok(table_find(&t, &thing.name) == 0, "what is written there is found");
    ok(table_find(&t, &other) == -1, "a name that begins alike is another");
    table_close(&t);
    table_close(&none);
}

int main(void)
{
    test_random(2026);
    test_around_the_end();
    test_place();
    return tap_done();
}
