/* SPDX-License-Identifier: Apache-2.0
 *
 * For weights*.c only: what weights.c has for the loading of layers. */
#ifndef QUIRE_MODEL_WEIGHTS_PARTS_H
#define QUIRE_MODEL_WEIGHTS_PARTS_H

#include "model/loader.h"
#include "model/weights.h"

/* Constant while the layers are laid out. */
struct loading {
    struct loader *l;
    const struct arch_names *names;
    int dim;
};

/* A norm of rows of dim; K_NORM_NONE, which reads nothing, if the layer does not have it. */
struct k_norm weights_load_norm(const struct loading *in, const char *pattern, bool has);

/* The same for the result of a mixer or an FFN. */
struct k_norm weights_load_norm_after(const struct loading *in, const char *pattern, bool has);

/* The norm of a layer's input. The stage before the layer's has it too. */
struct k_norm weights_load_first_norm(const struct loading *in, const char *pattern, bool has);

/* `other`, if the file has it for the current layer, else the pattern. */
const char *weights_either(const struct loading *in, const char *pattern, const char *other);

/* A rank's part of numbers that all ranks have: those of its heads, of `width` each, behind
 * `before` numbers. */
const float *weights_of_share(const struct loading *in, const float *all, size_t before,
                              int own_heads, int width);

/* --- weights_delta.c --- */

/* A layer of the gated delta rule. */
void weights_load_delta(const struct loading *in, const struct layer_plan *whole,
                        const struct layer_plan *part, struct layer_weights *w);

/* --- weights_mamba.c --- */

/* Layers of Mamba-2, and of short convolutions. */
void weights_load_mamba(const struct loading *in, const struct layer_plan *whole,
                        const struct layer_plan *part, struct layer_weights *w);
void weights_load_conv(const struct loading *in, const struct layer_plan *whole,
                       const struct layer_plan *part, struct layer_weights *w);

/* --- weights_eagle.c --- */

/* An EAGLE-3 head's weights beside those of its layer. */
void weights_load_eagle(const struct loading *in);
void weights_load_mtp(const struct loading *in);

/* Elements of the rows that a layer's mixer reads. */
int weights_mixer_cols(const struct loading *in);

/* --- weights_pooling.c --- */

/* The output matrix of a model that pools, in place of the checkpoint's. head_name: of that one. */
void weights_load_pooling(struct loader *l, const char *head_name);

/* --- weights_latent.c --- */

/* A layer of latent attention. */
void weights_load_latent_attention(const struct loading *in, const struct layer_plan *whole,
                                   const struct layer_plan *part, struct layer_weights *w);

#endif
