/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a sequence: everything that holds a pointer to it lets go. This file is below the
 * parts that decide on an end (intake, fill, publish), so that none of them has to call another for
 * it. */
#include "engine/engine.h"

/* Steps in flight drop their results for seq. The model computes them all the same. */
static void retire_from_steps(struct engine *e, const struct seq *seq)
{
    for (unsigned i = e->n_ended; i != e->n_begun; i++) {
        struct engine_step *step = &e->steps[i % MODEL_STEPS_MAX];

        for (int s = 0; s < step->n_seqs; s++) {
            if (step->seqs[s] == seq)
                step->seqs[s] = NULL;
        }
        for (int r = 0; r < step->n_rows; r++) {
            if (step->rows[r] == seq)
                step->rows[r] = NULL;
        }
    }
}

void retire(struct engine *e, struct seq *seq)
{
    /* Probes keep no device awake: the time of use counts for real requests only. */
    if ((seq->request.flags & WIRE_PROBE) == 0)
        e->power.used_us = e->now_us;
    /* The order matters: loads and steps point to seq, the scheduler drops its pages, and only a
     * sequence without pages may go back to the pool. */
    tiers_forget(e, seq);
    retire_from_steps(e, seq);
    e->lanes[seq->lane_idx].by_slot[seq->slot] = NULL;
    guide_end(seq);
    lora_end(e, seq);
    sched_remove(&e->sched, seq);
    seq_release(&e->pool, seq);
}
