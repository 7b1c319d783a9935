/* A lane in use: the calls of its two ends. The structs stand in wire_lane.h.
 *
 * Engine end: one thread. Front end: lane_submit() under the front's lock from several threads,
 * everything else from the one streamer thread. No call blocks. */
#ifndef QUIRE_IPC_LANE_H
#define QUIRE_IPC_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/wire_lane.h"

/* Either end's view: addresses in this process and indices that the peer cannot touch. */
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
    uint32_t queue_at; /* engine: taken so far; front: put so far */
    uint32_t *out_at;  /* [n_slots], engine: written; front: taken */
    int wake_fd;       /* control socket, to wake the peer; borrowed; -1: nobody sleeps */
    bool touched;      /* engine: something was put since lane_flush() */
    /* Front only: the arena is a ring of prompts, freed when the engine has taken them. */
    uint64_t arena_put;    /* bytes ever allocated */
    uint64_t arena_free;   /* bytes ever given back */
    uint32_t arena_seen;   /* queue position up to which space was given back */
    uint64_t *arena_marks; /* [queue_cap], arena_put after the entry's prompt */
};

/* Make a lane: a memfd, sealed against resizing, mapped and initialised. The caller owns *fd.
 * ERR_NO_MEMORY or ERR_IO (logged) leave nothing behind. */
int lane_create(struct lane *l, int *fd, uint32_t n_slots, size_t arena_bytes, uint64_t epoch,
                uint32_t front_pid) ERR_CHECKED;

/* Map the lane that the engine sent. ERR_VERSION (logged with both values) when it was laid out
 * by another build; ERR_CORRUPT when its numbers do not fit its size; ERR_NO_MEMORY. */
int lane_attach(struct lane *l, int fd, size_t lane_bytes) ERR_CHECKED;

void lane_detach(struct lane *l); /* unmap; an empty lane is fine */

/* Read the bytes that woke us. ERR_CLIENT_GONE when the peer has closed its end. */
int lane_take_wakes(int wake_fd) ERR_CHECKED;

/* --- engine --- */

/* Take the next request. Returns 1 and fills *slot and *request with a copy, 0 when there is
 * none, ERR_CORRUPT when the ring's numbers are impossible: drop the lane. The request's
 * fields are NOT checked yet. */
int lane_take(struct lane *l, uint32_t *slot, struct wire_request *request);

/* Copy the request's tokens. ERR_INVALID when they do not lie in the arena or an id is outside
 * 0 .. n_vocab - 1. Call before lane_release_queue(). */
int lane_tokens(const struct lane *l, const struct wire_request *request, int32_t n_vocab,
                int32_t *tokens) ERR_CHECKED;

/* Copy the wire_extra() words behind the tokens; lane_tokens() has returned ERR_OK. They are NOT
 * checked yet. ERR_INVALID when they do not lie in the arena. */
int lane_extra(const struct lane *l, const struct wire_request *request,
               int32_t *words) ERR_CHECKED;

/* Tell the front that everything taken has been copied. */
void lane_taken(struct lane *l);

/* Free records in a slot's ring, 0 .. WIRE_OUT_CAP, or ERR_CORRUPT: drop the lane. */
int lane_room(const struct lane *l, uint32_t slot);

/* Put a record into a slot that has room. The front is woken by lane_flush(). */
void lane_put(struct lane *l, uint32_t slot, struct wire_out record);

/* Wake the front if anything was put since the last call. Once per lane and step. */
void lane_flush(struct lane *l);

enum wire_cancel lane_cancelled(const struct lane *l, uint32_t slot);

/* Before the engine sleeps: set the flag on each lane, then ask each whether work came in
 * between; sleep only if none says so. lane_sleep_end() after waking. */
void lane_sleep_begin(struct lane *l);
bool lane_has_work(const struct lane *l);
void lane_sleep_end(struct lane *l);

/* --- front --- */

/* Submit a request in a slot of the caller's; tokens, and extra, int32 [wire_extra()], are copied.
 * extra may be NULL when that is 0. ERR_AGAIN when the arena is full of prompts that the engine has
 * not taken yet: answer 429. The engine sees it after the next lane_publish(), and until then the
 * arena keeps its tokens. */
int lane_submit(struct lane *l, uint32_t slot, struct wire_request request, const int32_t *tokens,
                const int32_t *extra) ERR_CHECKED;

/* The engine may take what was submitted, all of it in one pass. */
void lane_publish(struct lane *l);

/* What was submitted and the engine has not taken: requests, and at least their tokens. */
void lane_backlog(struct lane *l, uint32_t *n_reqs, uint64_t *n_tokens);

/* Look at the next record of a slot, which stays there; false when there is none. What the engine
 * put before a record that was taken, in whichever slot, is there. */
bool lane_peek(const struct lane *l, uint32_t slot, struct wire_out *record);

/* Take the next record of a slot; false when there is none. */
bool lane_record(struct lane *l, uint32_t slot, struct wire_out *record);

/* Slots with records: takes the ready word w (0 .. n_slots / 64) and returns its bits. */
uint64_t lane_ready(struct lane *l, uint32_t w);

/* Ask the engine to drop a sequence; its WIRE_FINISHED record still comes. */
void lane_cancel(struct lane *l, uint32_t slot, enum wire_cancel why);

/* Set the flag before sleeping; true when there is nothing to read, so that sleeping is right. */
bool lane_front_sleep(struct lane *l);
void lane_front_awake(struct lane *l);

#endif
