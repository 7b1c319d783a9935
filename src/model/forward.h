/* SPDX-License-Identifier: Apache-2.0
 *
 * The forward pass: the operations of a model in their order. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include "model/batch.h"
#include "model/cache.h"
#include "model/pass.h"

/* Residuals that a step keeps for a head: those that enter some layers, or are behind the last. */
struct forward_taps {
    int n;
    int layers[EAGLE_TAPS_MAX];
    void *rows; /* act [n][n_tokens_max][dim] */
    int n_tokens_max, dim;
};

/* A loaded model on one rank. All pointers are borrowed. */
struct forward {
    struct device *device;
    int rank; /* of those that share the layers */
    const struct plan *plan;
    const struct weights *weights;
    const struct cache *cache;
    struct activations *act;
    void *pages;
    enum k_type kv_type;
    struct plan_stage stage;         /* its layers; none: the output matrix alone */
    bool is_last;                    /* it has the output matrix */
    const float *const *turns;       /* rotation tables, one per rope of the plan; device memory */
    const struct forward_taps *taps; /* to be kept by this step; NULL: none */
    /* Of an EAGLE-3 head: the rows that its step reads; the target's residuals, and embedding. */
    struct batch_hidden hidden;
    const struct forward_taps *tapped;
    const struct k_matrix *embed;
};

#define FORWARD_SEGMENTS_MAX 3
/* The rows of the step that begins which the stage before has computed, or that are for the next
 * one. Returns the number of segments. */
int forward_segments(const struct forward *f, struct device_segment *segments);

/* Enqueue the operations of one step: those of the stage's layers; in the last stage up to the
 * logits of its rows. Called between the device's begin() and launch(); the numbers of tokens and
 * rows are those that begin() has set. */
void forward(const struct forward *f);

/* --- forward_eagle.c --- */

/* The input of an EAGLE-3 head's layer: the residual, and the rows that its first product reads. */
void forward_enter_eagle(const struct forward *f, const struct pass *p);

/* The residual that enters an MTP layer. */
void forward_enter_mtp(const struct forward *f, const struct pass *p);

#endif
