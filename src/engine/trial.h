/* SPDX-License-Identifier: Apache-2.0
 *
 * Trial steps: before an engine serves, it runs some steps on its device and learns from them what
 * steps take (cost.h). The list is a function of the model's limits, so that a simulated device can
 * be tried like a real one. */
#ifndef QUIRE_ENGINE_TRIAL_H
#define QUIRE_ENGINE_TRIAL_H

#include "base/err.h"
#include "engine/cost.h"

#define TRIALS_MAX 64

/* A step of n_decodes sequences, which add a token to n_context each, and of one that adds n_chunk
 * tokens to its first n_before; n_chunk 0: without that one. */
struct trial {
    int n_decodes, n_context, n_chunk, n_before;
};

struct trial_limits {
    int max_num_seqs, max_num_batched_tokens, max_model_len;
};

/* Fill the list of steps, of each kind the shortest first; returns their number. */
int trial_list(struct trial out[TRIALS_MAX], const struct trial_limits *limits);

/* The parts of a trial's step. */
void trial_step(const struct cost *c, const struct trial *t, struct cost_step *out);

struct engine;

/* Begin e->cost, and on a GPU run the trial steps, 0.7 s at most; on the cpu device it learns
 * while it serves. The pages' contents are lost: for the start, after fill_init() and before any
 * sequence. ERR_GPU. */
int trial_run(struct engine *e) ERR_CHECKED;

#endif
