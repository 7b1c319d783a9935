/* SPDX-License-Identifier: Apache-2.0
 *
 * Which stage, which round and whose turn comes next in the rings of sm90_product.cu: the decisions
 * of its producer and of its two warpgroups, without their barriers. tests/unit/kernels/
 * test_product_ring.c plays the protocol on the host with these same functions. For C and CUDA.
 *
 * A ring of w has `depth` stages, one of x `x_depth`. A step is `box` slabs of a tile: n_blocks
 * stages of w, and one of x. */
#ifndef QUIRE_KERNELS_PRODUCT_RING_H
#define QUIRE_KERNELS_PRODUCT_RING_H

#include "kernels/format.h"

/* A stage of a ring whose length is chosen at launch, and the parity of its round. A reader begins
 * with {0, 0}, a writer with {0, 1}, because the first round of a ring is empty. */
struct ring_stage {
    int at;
    uint32_t parity;
};

/* n <= depth stages on; the parity changes with each round of the ring. */
K_BOTH void ring_next(struct ring_stage *s, int n, int depth)
{
    s->at += n;
    if (s->at >= depth) {
        s->at -= depth;
        s->parity ^= 1;
    }
}

/* --- the producer ----------------------------------------------------------------------- */

/* The position of loads: a step is `box` slabs of a tile. */
struct ring_step {
    int tile, slab;
};

/* The next step of the tile, whose slabs are [first, last), or the first of the CTA's next tile. */
K_BOTH void ring_next_step(struct ring_step *s, int first, int last, int box, int n_groups)
{
    s->slab += box;
    if (s->slab >= last) {
        s->slab = first;
        s->tile += n_groups;
    }
}

/* Before step w_step of w, x is loaded up to that step, and not further: x waits in w's queue. */
K_BOTH bool ring_x_is_due(int x_step, int w_step)
{
    return x_step <= w_step;
}

/* --- the consumers ---------------------------------------------------------------------- */

/* Blocks of a step that a warpgroup multiplies, where it multiplies any. */
#define RING_OWN_BLOCKS(n_blocks) ((n_blocks) == 4 ? 2 : 1)

/* With one block each warpgroup has every second step of a tile: is it the other's turn? turn is 0
 * in the first step, then 1, 0, ... With several blocks each has every second block of all steps.
 */
K_BOTH bool ring_is_others(int turn, int group)
{
    return turn != group;
}

/* The stages of the other warpgroup that are passed before a block of one's own, and after it. */
K_BOTH int ring_n_before(int n_blocks, int group)
{
    return n_blocks > 1 ? group : 0;
}
K_BOTH int ring_n_after(int n_blocks, int group)
{
    return n_blocks > 1 ? 1 - group : 0;
}

/* The stage of x is given back with the last of one's own blocks. */
K_BOTH bool ring_gives_x(int n_blocks, int own_block)
{
    return own_block + 1 == RING_OWN_BLOCKS(n_blocks);
}

#endif
