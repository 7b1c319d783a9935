/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ends of a lane: the functions that fronts and the engine use. The structs are in
 * wire_lane.h, with a picture.
 *
 * Threads: the engine's end belongs to one thread. At the front's end, lane_submit() is called by
 * several threads under the front's lock; everything else by the one streamer thread. No call
 * blocks. */
#ifndef QUIRE_IPC_LANE_H
#define QUIRE_IPC_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/wire_lane.h"

/* One end's private view of a lane: addresses in this process, and indices that the peer cannot
 * touch. */
struct lane {
    struct wire_lane *shared;
    uint32_t *queue;
    struct wire_slot *slots;
    struct wire_out *out; /* [n_slots][WIRE_OUT_CAP] */
    char *arena;
    size_t lane_bytes;
    size_t arena_bytes;
    uint32_t n_slots;
    uint32_t queue_cap;
    uint32_t queue_at; /* engine: entries taken so far; front: entries put so far */
    uint32_t *out_at;  /* [n_slots], records so far; engine: written; front: taken */
    int wake_fd;       /* control socket for waking the peer; borrowed; -1: the peer never sleeps */
    bool touched;      /* engine: records were put since the last lane_flush() */
    /* Front only. The arena is a ring: space is allocated in the order of submission and freed in
     * that order, when the engine has copied the prompts. */
    uint64_t arena_put;    /* bytes ever allocated */
    uint64_t arena_free;   /* bytes ever freed */
    uint32_t arena_seen;   /* queue position up to which space was freed */
    uint64_t *arena_marks; /* [queue_cap], arena_put after the entry's prompt */
};

/* Make a lane: a memfd, sealed against resizing, mapped and initialised. The caller owns *fd. On
 * ERR_NO_MEMORY (logged) nothing is left open or mapped. */
int lane_create(struct lane *l, int *fd, uint32_t n_slots, size_t arena_bytes, uint64_t epoch,
                uint32_t front_pid) ERR_CHECKED;

/* Map a lane that the engine sent. ERR_VERSION (logged with both digests) when another build made
 * it; ERR_CORRUPT when its numbers do not fit its size; ERR_NO_MEMORY. */
int lane_attach(struct lane *l, int fd, size_t lane_bytes) ERR_CHECKED;

void lane_detach(struct lane *l); /* unmap; a lane that was never mapped is allowed */

/* Read the pending wake-up bytes, at most LANE_WAKES_MAX of them. ERR_CLIENT_GONE when the peer has
 * closed its end. */
int lane_take_wakes(int wake_fd) ERR_CHECKED;

/* --- engine --- */

/* Take the next request. Returns 1 and fills *slot and *request with a copy; 0 when the queue is
 * empty; ERR_CORRUPT when the queue's indices are impossible: drop the lane. The fields of the
 * request are NOT checked yet. */
int lane_take(struct lane *l, uint32_t *slot, struct wire_request *request);

/* Copy the tokens of a request. ERR_INVALID when they do not lie in the arena or an id is outside 0
 * .. n_vocab - 1. Call it before lane_taken(), which frees the space. */
int lane_tokens(const struct lane *l, const struct wire_request *request, int32_t n_vocab,
                int32_t *tokens) ERR_CHECKED;

/* Copy the wire_extra() words that follow the tokens, after lane_tokens() has returned ERR_OK. The
 * words are NOT checked yet. ERR_INVALID when they do not lie in the arena. */
int lane_extra(const struct lane *l, const struct wire_request *request,
               int32_t *words) ERR_CHECKED;

/* Report to the front that everything taken so far has been copied: it may reuse the space. */
void lane_taken(struct lane *l);

/* Free records in the ring of a slot, 0 .. WIRE_OUT_CAP, or ERR_CORRUPT: drop the lane. */
int lane_room(const struct lane *l, uint32_t slot);

/* Append a record to a slot that has room. lane_flush() wakes the front. */
void lane_put(struct lane *l, uint32_t slot, struct wire_out record);

/* Wake the front if records were put since the last call. Once per lane and step, because a wake-up
 * is a system call. */
void lane_flush(struct lane *l);

/* The reason for which the front cancelled a sequence; WIRE_WANTED when it did not. */
enum wire_cancel lane_cancelled(const struct lane *l, uint32_t slot);

/* How the engine goes to sleep without missing a request: lane_sleep_begin() on each lane, then
 * lane_has_work() on each, and sleep only if all return false. lane_sleep_end() after waking. */
void lane_sleep_begin(struct lane *l);
bool lane_has_work(const struct lane *l);
void lane_sleep_end(struct lane *l);

/* --- front --- */

/* Submit a request in a free slot of the caller. Copies the tokens, and the wire_extra() words of
 * extra, which may be NULL when there are none. ERR_AGAIN when the arena is full of prompts that
 * the engine has not taken yet: answer 429. The engine sees the request after the next
 * lane_publish(). */
int lane_submit(struct lane *l, uint32_t slot, struct wire_request request, const int32_t *tokens,
                const int32_t *extra) ERR_CHECKED;

/* Let the engine take everything submitted so far, in one pass of its loop. */
void lane_publish(struct lane *l);

/* Count the requests that the engine has not taken, and their tokens (rounded up: at least). */
void lane_backlog(struct lane *l, uint32_t *n_reqs, uint64_t *n_tokens);

/* The slot of the i-th request that the engine has not taken: 0 to n_reqs - 1 of lane_backlog(). */
uint32_t lane_queued(const struct lane *l, uint32_t i);

/* Look at the next record of a slot without taking it; false when there is none. After a record was
 * taken, all records that the engine put earlier are visible, in any slot. */
bool lane_peek(const struct lane *l, uint32_t slot, struct wire_out *record);

/* Take the next record of a slot; false when there is none. */
bool lane_record(struct lane *l, uint32_t slot, struct wire_out *record);

/* Take word w (0 .. n_slots / 64) of the ready bits: bit i is slot 64 * w + i. */
uint64_t lane_ready(struct lane *l, uint32_t w);

/* Ask the engine to end a sequence. Its WIRE_FINISHED record still comes. */
void lane_cancel(struct lane *l, uint32_t slot, enum wire_cancel why);

/* Set the front's flag before it sleeps. True when there is nothing to read, so that it may
 * sleep. */
bool lane_front_sleep(struct lane *l);
void lane_front_awake(struct lane *l);

#endif
