/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by walk.c and mask.c: sets of configurations over a pool of stack frames.
 *
 * Frames and sets are allocated and released like a stack, as a trie is walked down and up. While a
 * frame lives, pushing an equal one returns it (walk_frame_push()), so equal stacks have equal
 * numbers and comparing stacks is comparing numbers. */
#ifndef QUIRE_GRAMMAR_WALK_PARTS_H
#define QUIRE_GRAMMAR_WALK_PARTS_H

#include <stdatomic.h>

#include "grammar/walk.h"

#define FRAMES_CAP   32768u
#define FRAME_HEADS  4096u /* a power of two */
#define SET_CAP      65536u
#define ONE_SET_MAX  1024u /* configurations per closed set */
#define POPS_MAX     4096u /* per entry of mask.c; with more, one more frame is made known */

#define FRAME_BOTTOM 0u /* the empty stack: an end is the end of the output */
#define FRAME_HOLE   1u /* an unknown stack: an end is recorded */

struct frame {
    uint32_t state, below;
    uint32_t next; /* in its hash chain */
    uint16_t depth;
    uint16_t count; /* characters that are left, plus 1; 0: not counted */
};

struct set {
    uint32_t at, n;    /* pool[at .. at + n) */
    bool bottom, hole; /* an end was reached with an empty stack, or with an unknown one */
};

/* A level of the walk through a trie. */
struct level {
    struct set set;
    uint32_t n_frames, n_pool; /* to rewind to */
    uint32_t end;              /* first node after the subtree */
};

struct walk_work {
    const struct automaton *a;
    uint32_t n_words; /* room of bits[] */
    uint32_t n_frames, n_pool;
    uint32_t steps;
    _Atomic uint32_t steps_max; /* walk_stop() sets it to 0 */
    bool failed;                /* a bound was reached */
    bool many;                  /* more than POPS_MAX pops */
    uint32_t depth_max;         /* deepest frame since it was set to 0 */
    uint32_t n_bytes;           /* bytes of the token up to the current node */
    uint32_t
        need; /* characters that some token takes of an unknown count, with its way to the end */
    uint32_t n_pops;
    struct frame frames[FRAMES_CAP];
    uint32_t heads[FRAME_HEADS];
    struct walk_top pool[SET_CAP];
    struct level levels[TRIE_TOKEN_MAX + 1];
    uint32_t pops[POPS_MAX];
    uint32_t bits[];
};

/* Begin a call. */
void walk_work_reset(struct walk_work *work, const struct automaton *automaton);

/* Release the frames and sets made since the two numbers were read. */
void walk_work_rewind(struct walk_work *work, uint32_t n_frames, uint32_t n_pool);

/* Push a frame. UINT32_MAX when the stack is too deep. */
uint32_t walk_frame_push(struct walk_work *work, uint32_t state, uint32_t below, uint32_t count);

/* Add a configuration to a set, which must be the pool's last, unless it is in the set already. */
void walk_set_add(struct walk_work *work, struct set *set, uint32_t state, uint32_t frame);

/* Add everything that calls and ends lead to from a set, which must be the pool's last. */
void walk_set_close(struct walk_work *work, struct set *set);

/* The set after a byte from a closed set: a new set, the pool's last. */
struct set walk_set_step(struct walk_work *work, const struct set *from, uint8_t byte);

/* The frames and tops of a walk as a set. */
struct set walk_set_load(struct walk_work *work, const struct walk *walk);

#endif
