/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of a model on its device. */
#ifndef QUIRE_MODEL_WEIGHTS_H
#define QUIRE_MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/hash.h"
#include "device/device.h"
#include "model/hf_config.h"
#include "model/plan.h"

/* One layer, or a rank's part of it; vectors in the device's type, biases NULL where there are
 * none. Norms that the layer does not have are K_NORM_NONE. */
struct layer_weights {
    struct k_norm norm_mixer, norm_mixer_after; /* [dim] */
    /* Attention: q, k, v: [(n_heads + 2 * n_kv_heads) * head_dim][dim]. Recurrent: value, gate:
     * [2 * width][dim]. */
    struct k_matrix mixer_in;
    void *mixer_in_bias;
    void *q_norm, *k_norm;     /* [head_dim]; QK_NORM_WHOLE: [n_heads * head_dim], [n_kv_heads *
                                * head_dim]; NULL without */
    struct k_matrix mixer_out; /* [dim][n_heads * head_dim], [dim][width] */
    void *mixer_out_bias;
    struct k_norm norm_ffn, norm_ffn_after; /* [dim] */
    struct k_matrix ffn_in; /* [2 * ff_dim][dim]: gate, up; of a plain FFN [ff_dim][dim] */
    void *ffn_in_bias;
    struct k_matrix down; /* [dim][ff_dim] */
    void *down_bias;
    float k_scale, v_scale; /* of e4m3 KV pages, by the checkpoint; else 1 */
};

struct weights {
    struct layer_weights *layers; /* [n_layers] */
    struct k_matrix embed;        /* [n_vocab][dim] */
    void *positions;              /* [n_rows][dim]; NULL without learned positions */
    struct k_norm norm;           /* [dim] */
    struct k_matrix head;         /* [n_vocab][dim]; embed itself when tied */
    void *head_bias;              /* [n_vocab] or NULL */
    bool reads_codes;             /* some matrices do (k_format_reads_codes()) */
    size_t bytes;                 /* on the device */
    struct hash digest; /* rank 0's: of every tensor's name, type and bytes, as they were read */
};

/* Where a rank's part goes. */
struct weights_rank {
    struct weights *weights;
    struct device *device;
};

/* Where weights come from, and what is made of them. */
struct weights_source {
    const char *dir; /* the folder; NULL: random numbers */
    /* Formats that plain matrices of layers, and a plain output matrix, are rounded to: e4m3 by
     * row, or the plain format, which leaves them alone. A tied output matrix becomes a second
     * matrix. */
    struct k_format layers, head;
    bool kv_scales; /* k_scale and v_scale are wanted */
};

/* Allocate on the devices and fill. whole: the shapes of the tensors; part: those of what each of
 * part->n_ranks ranks has of them. A tensor is read once. A bias of what is summed over ranks, and
 * the output matrix, are rank 0's alone; a format whose groups a split would cut is converted like
 * one that the device does not take. Logs progress every few seconds. A matrix has the format of
 * its parts in the folder, or that which they are rounded to, where the device takes it; else it
 * holds the same numbers in the plain format.
 *
 * Errors as checkpoint_open(), and ERR_INVALID for a tensor of another shape than config.json
 * implies, ERR_NOT_FOUND for a missing one, ERR_UNSUPPORTED for a type, ERR_GPU; all logged. The
 * layers' array is released by weights_fini(), device memory with the device. */
int weights_load(const struct weights_rank *ranks, const struct hf_config *c,
                 const struct plan *whole, const struct plan *part,
                 const struct weights_source *from) ERR_CHECKED;
void weights_fini(struct weights *w);

#endif
