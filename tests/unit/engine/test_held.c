/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what an engine publishes is what its cache holds, after at most two rounds, and a page that
 * gets its name at once. Method: a pool of pages with random names beside the published set; full
 * buckets; nothing before a front asks. */
#include <string.h>

#include "engine/engine.h"
#include "ipc/prefix.h"
#include "tests/tap.h"

#define N_PAGES 200
#define BLOCK   4

static struct engine e;
static struct wire_held page;

static struct hash name_of(unsigned n)
{
    struct hash root = {{1}};
    int32_t tokens[BLOCK] = {(int32_t)n, 1, 2, 3};

    return prefix_name(&root, tokens, BLOCK);
}

/* Passes until a round begins and ends. */
static void rounds(int n)
{
    int until = e.held.round + n;

    for (int i = 0; i < 1000000 && e.held.round != (uint8_t)until; i++)
        held_pass(&e);
}

/* Does the set have exactly the names of the pool? */
static bool agrees(unsigned n_names)
{
    bool good = true;

    for (unsigned i = 0; i < n_names; i++) {
        struct hash name = name_of(i);

        good = good && wire_held_has(&page, name.bytes) == pages_has(e.pages, &name);
    }
    return good;
}

/* Take a page and give it a name that no other has. */
static void name_one(unsigned n)
{
    struct hash name = name_of(n), parent = {{0}};
    int32_t tokens[BLOCK] = {(int32_t)n, 1, 2, 3};
    struct page_label label;
    bool evicted;
    int32_t got = pages_take(e.pages, &evicted, &label);

    must_ok(got < 0);
    if (pages_name(e.pages, got, &name, &parent, tokens))
        held_note(&e, got);
    pages_unref(e.pages, got);
}

static void test_rounds(unsigned seed)
{
    bool good = true, at_once = true;
    unsigned n_names = 3 * N_PAGES;

    for (unsigned i = 0; i < 50; i++)
        name_one(i);
    held_pass(&e);
    ok(!wire_held_has(&page, ((struct hash){{0}}).bytes) && !e.held.on,
       "nothing before a front asks");
    held_start(&e.held);
    rounds(1);
    ok(agrees(n_names), "the first round publishes what was there");
    for (int turn = 0; turn < 20 && good; turn++) {
        for (int i = 0; i < 150; i++) {
            unsigned n = random_next(&seed) % n_names;
            struct hash name = name_of(n);

            name_one(n);
            at_once = at_once && wire_held_has(&page, name.bytes);
        }
        rounds(2);
        good = agrees(n_names);
    }
    ok(at_once, "a name is there as soon as a page has it");
    ok(good, "after two rounds names of evicted pages are gone, and no others");
    for (int32_t i = 0; i < N_PAGES; i++)
        pages_drop(e.pages, i);
    e.sched.n_running = 1; /* the parts of a busy engine */
    rounds(2);
    ok(agrees(n_names), "what was dropped as well");
    e.sched.n_running = 0;
}

/* More names of one bucket than places: the newest are kept, and none of a round displaces all. */
static void test_full(void)
{
    struct hash names[WIRE_HELD_PLACES + 4];
    int n = 0;

    for (int i = 0; i < WIRE_HELD_PLACES + 4; i++) {
        memset(&names[i], 0, sizeof names[i]);
        names[i].bytes[0] = 77; /* the bucket */
        names[i].bytes[4] = (uint8_t)(i + 1);
    }
    for (int i = 0; i < WIRE_HELD_PLACES; i++)
        held_add(&e.held, &names[i]);
    for (int i = 0; i < WIRE_HELD_PLACES; i++)
        n += wire_held_has(&page, names[i].bytes);
    is_int(n, WIRE_HELD_PLACES, "a bucket has %d places", WIRE_HELD_PLACES);
    e.held.round++;
    for (int i = 4; i < WIRE_HELD_PLACES + 4; i++)
        held_add(&e.held, &names[i]);
    n = 0;
    for (int i = 0; i < WIRE_HELD_PLACES + 4; i++)
        n += wire_held_has(&page, names[i].bytes);
    is_int(n, WIRE_HELD_PLACES, "more do not fit");
    ok(wire_held_has(&page, names[WIRE_HELD_PLACES + 3].bytes), "the newest is there");
    e.held.round++;
    held_add(&e.held, &names[7]);
    held_sweep(&e.held, wire_held_bucket(names[7].bytes));
    n = 0;
    for (int i = 0; i < WIRE_HELD_PLACES + 4; i++)
        n += wire_held_has(&page, names[i].bytes);
    ok(n == 1 && wire_held_has(&page, names[7].bytes), "a sweep leaves what the round has seen");
}

int main(void)
{
    unsigned seed = tap_seed(3);

    must_ok(pages_open(&e.pages, N_PAGES, BLOCK));
    must_ok(held_open(&e.held, &page));
    test_rounds(seed);
    test_full();
    pages_close(e.pages);
    return tap_done();
}
