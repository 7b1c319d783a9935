/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy of seats by examples and by a simulation, and the table with two openings of it. */
#include "ipc/seats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/tap.h"

#define S 1000000u

static struct seat_view held(uint32_t n_reqs, uint64_t used_us)
{
    return (struct seat_view){.alive = true,
                              .state = SEAT_HELD,
                              .n_reqs = n_reqs,
                              .used_us = used_us,
                              .since_us = used_us};
}

static struct seat_view waits(uint64_t wanted_us)
{
    return (struct seat_view){
        .alive = true, .state = SEAT_WAITING, .n_reqs = 1, .wanted_us = wanted_us};
}

static void test_choice(void)
{
    struct seat_view rows[4] = {held(0, 5 * S), held(0, 3 * S), waits(9 * S), {0}};
    int ask = -1;

    ok(seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 3}, 10 * S, &ask) && ask == -1,
       "a free seat is taken");
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == 1,
       "the least recently used is asked");
    rows[1].n_reqs = 1;
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == 0,
       "one without requests is asked before one with some");
    rows[0].n_reqs = 1;
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == 1,
       "of several with requests, the longest awake");
    rows[0].since_us = rows[1].since_us = 10 * S - SEATS_SLICE_US + 1;
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == -1,
       "none with requests before its time");
    rows[0] = held(0, 5 * S);
    rows[0].asked = true;
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == -1,
       "no second one is asked for the same seat");
    rows[1] = held(0, 6 * S);
    rows[3] = waits(8 * S);
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) && ask == 1,
       "a second waits: a second is asked");
    rows[0].alive = false;
    ok(!seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask),
       "the seat of a dead one is for the first to wait");
    ok(seats_decide(rows, 4, 3, &(struct seat_room){.n_max = 2}, 10 * S, &ask),
       "and that one takes it");
    rows[3].wanted_us = rows[2].wanted_us;
    ok(seats_decide(rows, 4, 2, &(struct seat_room){.n_max = 2}, 10 * S, &ask) !=
           seats_decide(rows, 4, 3, &(struct seat_room){.n_max = 2}, 10 * S, &ask),
       "of two that wait since the same time one takes it");
}

/* Engines want seats at random; those asked sleep a little later. Every one gets its turn, and no
 * more than max are awake. */
static void test_turns(unsigned seed)
{
    struct seat_view rows[7] = {0};
    uint64_t now_us = S, longest_us = 0;
    int most = 0, n_taken = 0;

    for (int i = 0; i < 7; i++)
        rows[i] = (struct seat_view){.alive = true, .state = SEAT_ASLEEP};
    for (int step = 0; step < 20000; step++) {
        int i = (int)(random_next(&seed) % 7), n = 0, ask;

        now_us += 10000;
        if (rows[i].state == SEAT_ASLEEP && random_next(&seed) % 4 == 0) {
            rows[i] = waits(now_us);
        } else if (rows[i].state == SEAT_WAITING) {
            if (seats_decide(rows, 7, i, &(struct seat_room){.n_max = 2}, now_us, &ask)) {
                if (now_us - rows[i].wanted_us > longest_us)
                    longest_us = now_us - rows[i].wanted_us;
                rows[i] = held(1, now_us);
                n_taken++;
            } else if (ask >= 0) {
                rows[ask].asked = true;
            }
        } else if (rows[i].state == SEAT_HELD && rows[i].asked) {
            rows[i] = (struct seat_view){.alive = true, .state = SEAT_ASLEEP};
        } else if (rows[i].state == SEAT_HELD && random_next(&seed) % 8 == 0) {
            rows[i].n_reqs ^= 1;
            rows[i].used_us = now_us;
        }
        for (int k = 0; k < 7; k++)
            n += rows[k].state == SEAT_HELD;
        most = n > most ? n : most;
    }
    ok(most == 2, "two seats, never more than two awake");
    ok(n_taken > 100, "many turns");
    ok(longest_us < 20 * S, "none waits for long");
    printf("# %d turns, longest wait %.2f s\n", n_taken, (double)longest_us * 1e-6);
}

/* A bound on memory: n engines, each with so many bytes; row 0 waits. */
static void test_bytes(void)
{
    struct seat_view rows[4] = {waits(9 * S), held(0, 2 * S), held(0, 3 * S), held(0, 1 * S)};
    struct seat_room room = {.bytes_max = 100};
    int ask = -1;

    rows[0].bytes = 40;
    rows[1].bytes = 20;
    rows[2].bytes = 30;
    rows[3].bytes = 10;
    ok(seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == -1, "100 of 100 bytes");
    rows[0].bytes = 41;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == 3, "one more: the least recent");
    rows[3].asked = true;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == -1, "it makes enough room");
    rows[0].bytes = 60;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == 1, "or not: a second one");
    rows[3] = (struct seat_view){.alive = true, .state = SEAT_ASLEEP, .bytes = 10};
    rows[1].asked = true;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == -1, "90 of 100 soon");
    rows[0].bytes = 0;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == 2,
       "one whose use is not known gets the memory alone");
    rows[1].alive = rows[2].alive = false;
    ok(seats_decide(rows, 4, 0, &room, 10 * S, &ask), "when no other is awake");
    rows[0].bytes = 500;
    ok(seats_decide(rows, 4, 0, &room, 10 * S, &ask), "more than the bound counts as the bound");
    rows[1] = waits(8 * S);
    rows[1].bytes = 1;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask) && ask == -1, "not before its turn");
    room.n_max = 1;
    rows[0].bytes = 1;
    ok(!seats_decide(rows, 4, 0, &room, 10 * S, &ask), "both bounds hold");
}

static void test_table(void)
{
    char folder[] = "/tmp/quire-seats-XXXXXX", path[64];
    struct seats *a = NULL, *b = NULL, *front = NULL;
    enum seat_state state;
    bool ready;

    if (mkdtemp(folder) == NULL)
        abort();
    ok(seats_observe(&front, folder) == ERR_NOT_FOUND, "no table before the first engine");
    ok(seats_open(&a, folder, "/run/a.sock", 1) == ERR_OK, "one engine");
    ok(seats_open(&b, folder, "/run/b.sock", 1) == ERR_OK, "another");
    ok(seats_observe(&front, folder) == ERR_OK, "a front reads");
    ok(seats_find(front, "/run/a.sock", &state, &ready) && state == SEAT_STARTING && !ready,
       "it sees a");
    ok(!seats_find(front, "/run/c.sock", &state, &ready), "and no c");
    ok(seats_take(a, &(struct seat_room){.n_max = 1}, S) == ERR_OK, "a takes the seat");
    ok(seats_take(b, &(struct seat_room){.n_max = 1}, 2 * S) == ERR_AGAIN && seats_asked(a),
       "b wants it: a is asked");
    seats_give(a, SEAT_ASLEEP);
    ok(!seats_asked(a) && seats_take(b, &(struct seat_room){.n_max = 1}, 3 * S) == ERR_OK,
       "a gives it, b takes it");
    ok(seats_take(a, &(struct seat_room){.n_max = 1}, 4 * S) == ERR_AGAIN && seats_asked(b),
       "a wants it again");
    seats_close(b);
    ok(!seats_find(front, "/run/b.sock", &state, &ready), "b has ended");
    ok(seats_take(a, &(struct seat_room){.n_max = 1}, 5 * S) == ERR_OK, "its seat is free");
    seats_ready(a);
    ok(seats_find(front, "/run/a.sock", &state, &ready) && state == SEAT_HELD && ready, "awake");
    ok(seats_open(&b, folder, "/run/b.sock", 1) == ERR_OK, "b again");
    ok(seats_take(b, &(struct seat_room){.n_max = 0}, 6 * S) == ERR_OK,
       "without a number there is a seat for each");
    seats_press(b, 7 * S);
    ok(seats_asked(a), "the device has no memory: the other one is asked");
    seats_tell(b, 7000);
    seats_unready(b);
    ok(seats_find(front, "/run/b.sock", &state, &ready) && !ready, "b is about to end");
    seats_close(a);
    seats_close(b);
    ok(seats_open(&a, folder, "/run/a.sock", 1) == ERR_OK && seats_told(a) == 0, "a again");
    ok(seats_open(&b, folder, "/run/b.sock", 1) == ERR_OK && seats_told(b) == 7000,
       "what b told is known");
    seats_close(b);
    ok(seats_open(&b, folder, "/run/b.sock", 2) == ERR_OK && seats_told(b) == 0,
       "but not with other settings");
    seats_close(a);
    seats_close(b);
    seats_close(front);
    (void)snprintf(path, sizeof path, "%s/seats", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

int main(void)
{
    test_choice();
    test_turns(1);
    test_turns(2);
    test_bytes();
    test_table();
    return tap_done();
}
