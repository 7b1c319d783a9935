/* What walk.c and mask.c share: sets of configurations over a pool of stack frames.
 *
 * Frames and sets are taken and given back like a stack, as a trie is walked down and up. A frame
 * is found again while it lives (walk_frame_push()), so equal stacks are equal numbers. */
#ifndef QUIRE_GRAMMAR_WALK_PARTS_H
#define QUIRE_GRAMMAR_WALK_PARTS_H

#include <stdatomic.h>

#include "grammar/walk.h"

#define FRAMES_CAP   32768u
#define FRAME_HEADS  4096u /* a power of two */
#define SET_CAP      65536u
#define ONE_SET_MAX  1024u /* configurations of a closed set */
#define POPS_MAX     4096u /* of one entry of mask.c, which looks one frame deeper beyond */

#define FRAME_BOTTOM 0u /* nothing below: an end is the end of the output */
#define FRAME_HOLE   1u /* unknown what is below: an end is noted */

struct frame {
    uint32_t state, below;
    uint32_t next; /* in its chain of heads */
    uint16_t depth;
    uint16_t count; /* of characters that may come, and 1; 0: they are not counted */
};

struct set {
    uint32_t at, n;    /* in pool */
    bool bottom, hole; /* an end was reached with nothing, or the unknown, below */
};

struct level {
    struct set set;
    uint32_t n_frames, n_pool; /* to go back to */
    uint32_t end;              /* of the subtree */
};

struct walk_work {
    const struct automaton *a;
    uint32_t n_words; /* room of bits */
    uint32_t n_frames, n_pool;
    uint32_t steps;
    _Atomic uint32_t steps_max; /* walk_stop() makes it 0 */
    bool failed;                /* a bound was reached */
    bool many;                  /* more pops than POPS_MAX */
    uint32_t depth_max;         /* deepest frame since it was set to 0 */
    uint32_t n_bytes;           /* of a token, up to the node that is looked at */
    uint32_t
        need; /* characters that some token takes of an unknown count, and its way to the end */
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

/* Forget frames and sets made since the two numbers were taken. */
void walk_work_rewind(struct walk_work *work, uint32_t n_frames, uint32_t n_pool);

/* A frame; FRAME_BOTTOM - 1 (a huge number) when the stack is too deep. */
uint32_t walk_frame_push(struct walk_work *work, uint32_t state, uint32_t below, uint32_t count);

/* Add to a set that is the pool's last, unless it is there. */
void walk_set_add(struct walk_work *work, struct set *set, uint32_t state, uint32_t frame);

/* Follow calls and ends of a set, which is the pool's last, until nothing is new. */
void walk_set_close(struct walk_work *work, struct set *set);

/* Where a byte leads from a closed set: a new set, the pool's last. */
struct set walk_set_step(struct walk_work *work, const struct set *from, uint8_t byte);

/* The frames and tops of a walk as a set. */
struct set walk_set_load(struct walk_work *work, const struct walk *walk);

#endif
