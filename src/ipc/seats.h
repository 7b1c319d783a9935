/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats: which of several engines of a machine may be awake.
 *
 * Engines of different models share the device's memory. A seat is the right to use it; models_max
 * is their number, models_memory what all that are taken may use. The engines keep one table, a
 * file that all of them map: a row per engine. An engine that wants a seat while none is free asks
 * the engine that was used least recently to fall asleep, and waits until it has done so.
 * seats_decide() is that policy; the rest is the table.
 *
 * An engine tells its use when it has loaded its model. Before that it counts as much as all may
 * use, so that no load can exceed the bound; the table keeps the use for its next process.
 *
 * Any process may die at any instruction: an engine locks a byte of the file for its row, and the
 * kernel releases the lock with the process. A row that is not locked holds no seat. Decisions are
 * made under a lock of the whole table, which is held for some microseconds.
 *
 * Fronts read the table, to tell the state of each model. */
#ifndef QUIRE_IPC_SEATS_H
#define QUIRE_IPC_SEATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define SEATS_MAX      128     /* rows */
#define SEATS_PATH     108     /* bytes of a socket's path, as in struct sockaddr_un */
#define SEATS_SLICE_US 1000000 /* an engine with requests may use its seat for so long */

enum seat_state {
    SEAT_STARTING, /* the process runs; it holds no seat */
    SEAT_ASLEEP,
    SEAT_WAITING, /* it waits for a seat */
    SEAT_HELD,    /* it holds a seat: awake, or about to be */
};

/* A row. The engine alone writes it, but for `asked`, which others set and the engine clears. */
struct seat {
    char socket[SEATS_PATH];    /* of the engine; "": the row was never used */
    _Atomic uint32_t state;     /* enum seat_state */
    _Atomic uint32_t n_reqs;    /* requests that run or wait */
    _Atomic uint32_t asked;     /* it is to fall asleep */
    _Atomic uint32_t ready;     /* its model is loaded and it takes fronts */
    _Atomic uint64_t used_us;   /* clock_us() when a request ended last, or its seat was taken */
    _Atomic uint64_t since_us;  /* clock_us() when it took its seat */
    _Atomic uint64_t wanted_us; /* clock_us() since when it waits */
    _Atomic uint64_t bytes;     /* it takes so much while it is awake; 0: not known yet */
    uint64_t settings;          /* a digest of those that `bytes` belongs to */
};

/* A copy of a row, for the policy. */
struct seat_view {
    bool alive; /* its engine runs; false: the rest does not count */
    enum seat_state state;
    bool asked;
    uint32_t n_reqs;
    uint64_t used_us, since_us, wanted_us, bytes;
};

/* What engines that are awake may be and use in all; 0: no bound. */
struct seat_room {
    int n_max;
    uint64_t bytes_max;
};

/* May the engine of row `own`, which waits, take a seat? One of room's bounds is set. If not, *ask
 * is the row of the engine to ask to fall asleep, or -1: none now. Seats are given in the order of
 * waiting. Among the engines to ask, those without requests come first, the least recently used
 * before others; one with requests is asked after SEATS_SLICE_US, the longest awake first. No
 * engine is asked beyond those that make room for the ones that wait. */
bool seats_decide(const struct seat_view *rows, int n, int own, const struct seat_room *room,
                  uint64_t now_us, int *ask);

struct seats; /* one process's view of the table */

/* Open the table in a folder and take a row for the engine with this socket. settings: a digest;
 * the use that an engine with the same ones has told is still known. ERR_IN_USE: there are
 * SEATS_MAX engines; ERR_IO, ERR_VERSION, ERR_NO_MEMORY (logged). */
int seats_open(struct seats **out, const char *folder, const char *socket,
               uint64_t settings) ERR_CHECKED;

/* Make an empty table in a folder, before any engine runs: it says that the folder's sockets start
 * engines. ERR_IO (errno is set). */
int seats_mark(const char *folder) ERR_CHECKED;
/* Is there a table, an empty one included? */
bool seats_are_marked(const char *folder);

/* Map the table read-only, without a row. ERR_NOT_FOUND: there is none yet. */
int seats_observe(struct seats **out, const char *folder) ERR_CHECKED;

void seats_close(struct seats *s); /* accepts NULL */

/* Own row. Take a seat, or ask for one. ERR_AGAIN: call again soon. */
int seats_take(struct seats *s, const struct seat_room *room, uint64_t now_us) ERR_CHECKED;
/* What the engine takes while it is awake; 0: it is not known any more. */
void seats_tell(struct seats *s, uint64_t bytes);
uint64_t seats_told(const struct seats *s);
/* The device has no memory for this engine, although it has a seat: give the seat back and ask the
 * engine that the policy chooses. */
void seats_press(struct seats *s, uint64_t now_us);
void seats_give(struct seats *s, enum seat_state state); /* SEAT_ASLEEP or SEAT_STARTING */
bool seats_asked(const struct seats *s);
void seats_refuse(struct seats *s); /* it was asked, and cannot sleep */
void seats_ready(struct seats *s);
void seats_unready(struct seats *s); /* it is about to end */
/* Once per pass: the requests, and when one ended last. */
void seats_note(struct seats *s, uint32_t n_reqs, uint64_t used_us);

/* The state of the engine with this socket; false: it does not run. *ready: it takes fronts. */
bool seats_find(const struct seats *s, const char *socket, enum seat_state *state, bool *ready);

#endif
