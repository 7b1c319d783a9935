/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of a model on its devices, and their loading from a folder. */
#ifndef QUIRE_MODEL_WEIGHTS_H
#define QUIRE_MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/hash.h"
#include "device/device.h"
#include "model/adapters.h"
#include "model/hf_config.h"
#include "model/plan.h"

/* One layer, or a rank's part of it; vectors in the device's type, biases NULL where absent. Norms
 * that the layer does not have are K_NORM_NONE. */
struct layer_weights {
    struct k_norm norm_mixer, norm_mixer_after; /* [dim] */
    /* Attention: q, k, v: [(n_heads + 2 * n_kv_heads) * head_dim][dim]; q alone where another
     * layer's keys and values are read. Recurrent: value, gate: [2 * width][dim].
     * Delta rule: q, k, v, z (delta.h). Mamba-2 and short convolutions: as in mamba.h. */
    struct k_matrix mixer_in;
    void *mixer_in_bias;
    /* Latent attention: mixer_in is q [n_heads * query][dim] or, with a q_rank, q_a [q_rank][dim],
     * whose normed result q_b [n_heads * query][q_rank] reads; then kv_a [kv_rank +
     * rope_dim][dim]. */
    struct k_matrix q_b;
    struct k_matrix kv_b;       /* [n_heads * (nope_dim + v_dim)][kv_rank], plain */
    void *norm_q_a, *norm_kv_a; /* [q_rank], [kv_rank] */
    /* The choice of tokens: [n_heads * dim][q_rank], [dim][dim of the residual], and weights,
     * plain, [n_heads][dim of the residual]. */
    struct k_matrix index_q, index_k, index_weights;
    struct k_norm index_norm;  /* [dim of the index] */
    void *q_norm, *k_norm;     /* [head_dim]; QK_NORM_WHOLE: [n_heads * head_dim], [n_kv_heads *
                                * head_dim]; NULL without */
    struct k_matrix mixer_out; /* [dim][n_heads * head_dim], [dim][width] */
    void *mixer_out_bias;
    struct k_matrix mixer_gate; /* [n_heads * head_dim][dim]: attention's gate; delta rule: b, a
                                 * [k_delta_gates()][dim], plain */
    struct k_delta delta;       /* its other weights */
    /* Delta rule by channel, all plain: f_a [k_dim][dim], f_b [n_v_heads * k_dim][k_dim], and g
     * likewise with v_dim. */
    struct k_matrix f_a, f_b, g_a, g_b;
    struct k_mamba mamba; /* likewise, of Mamba-2 and of short convolutions */
    struct k_short_conv conv;
    const float *sinks;                     /* float32 [n_heads]; NULL without */
    struct k_norm norm_ffn, norm_ffn_after; /* [dim] */
    /* Of an FFN of experts these are the shared ones' matrices, without data if there are none. */
    struct k_matrix ffn_in; /* [2 * ff_dim][dim]: gate, up; of a plain FFN [ff_dim][dim] */
    void *ffn_in_bias;
    struct k_xielu xielu; /* of a plain FFN with it */
    struct k_matrix down; /* [dim][ff_dim] */
    void *down_bias;
    struct k_router router;
    struct k_experts experts;
    /* The same, with the shared expert as one more, which lies behind the others; n 0: it has
     * another size or format, or there is none. */
    struct k_router router_all;
    struct k_experts experts_all;
    struct k_matrix latent_in, latent_out; /* [latent_dim][dim], [dim][latent_dim] */
    const float *shared_switch; /* float32 [dim]; NULL: the shared experts count in full */
    /* Of experts apart: norms of the router's and the experts' input, and of both results. */
    struct k_norm norm_router, norm_experts, norm_experts_after, norm_shared_after; /* [dim] */
    /* Of embeddings for each layer. */
    struct k_matrix embed_gate, embed_out; /* [width][dim], [dim][width] */
    struct k_norm norm_embed_after;        /* [dim] */
    float scale;                           /* of the layer's result */
    float k_scale, v_scale;                /* scales of e4m3 KV pages from the checkpoint; else 1 */
};

/* Of a head: EAGLE-3, or an MTP layer. */
struct eagle_weights {
    struct k_matrix fc;                     /* [dim][n_taps * tap_dim]; MTP: [dim][2 * dim] */
    struct k_norm norm_embed;               /* [dim] */
    struct k_norm norm_target, norm_hidden; /* MTP: [dim]; the target's last norm, and that of fc's
                                             * second half */
    int32_t *ids; /* host, int32 [n_vocab]: the target's ids of its drafts; freed by
                   * weights_fini() */
};

struct weights {
    struct layer_weights *layers; /* [n_layers] */
    struct k_matrix embed;        /* [n_vocab][dim] */
    void *positions;              /* [n_rows][dim]; NULL without learned positions */
    /* Embeddings for each layer: the table [n_rows][n_layers * width], NULL without; the projection
     * of embedded tokens [n_layers * width][dim], and the norm of a layer's part of it [width]. */
    void *embeds;
    struct k_matrix embeds_in;
    struct k_norm norm_embeds;
    struct k_norm norm_embedded; /* [dim], of embedded tokens; only with plan.norms_embedding */
    struct k_norm norm;          /* [dim] */
    struct k_matrix head;        /* [plan.head_rows][dim]; rows of embed when tied */
    void *head_bias;             /* [n_vocab] or NULL */
    struct eagle_weights eagle;
    /* some matrix does, is, or has (device_limits) */
    bool reads_codes, is_packed, has_bytes, is_rounded;
    size_t bytes;              /* on the device */
    struct adapters *adapters; /* of its matrices (adapters.h); NULL: none */
    struct hash digest;        /* rank 0 only: of every tensor's name, type and bytes in the file */
};

/* The destination of a rank's part. */
struct weights_rank {
    struct weights *weights;
    struct device *device;
    int stage, share; /* the stage, and the rank's number in it */
    bool is_last;     /* of the stage with the output matrix */
};

/* The ranks of this process, of n_stages stages in all. */
struct weights_ranks {
    const struct weights_rank *at; /* [n] */
    int n, n_stages;
};

/* The source of weights, and the formats to round them to. */
struct weights_source {
    const char *dir; /* the folder; NULL: random numbers */
    /* Formats that plain matrices of layers, and a plain output matrix, are rounded to: e4m3 by
     * row, or the plain format, which leaves them unchanged. A tied output matrix becomes a second
     * matrix. */
    struct k_format layers, head;
    bool kv_scales;               /* read k_scale and v_scale */
    int n_adapters, adapter_rank; /* slots for adapters, and the highest rank; 0: none */
};

/* Allocate weights on the devices and fill them. whole: the shapes of the tensors; part: the shapes
 * of each of part->n_ranks ranks' parts. ranks: those of this process, of n_stages stages; each
 * has the layers of its stage (plan_stage()), the norm of the input of the next one, and of layers
 * elsewhere only the formats. The first stage has the embedding, the last one the final norm and
 * the output matrix. Every tensor is read once. Only a stage's first rank has an output
 * matrix that is not split, and the biases of results that are summed over ranks. A matrix keeps
 * the format of its tensors, or gets the one it is rounded to, if the device multiplies with it;
 * else it holds the same numbers in the plain format. A format whose groups a split would cut is
 * converted too. Logs progress every few seconds.
 *
 * Errors as checkpoint_open(), and ERR_INVALID for a tensor of another shape than config.json
 * implies, ERR_NOT_FOUND for a missing one, ERR_UNSUPPORTED for a type, ERR_GPU; all logged. The
 * array of layers is released by weights_fini(), device memory with the device. */
int weights_load(const struct weights_ranks *ranks, const struct hf_config *c,
                 const struct plan *whole, const struct plan *part,
                 const struct weights_source *from) ERR_CHECKED;
void weights_fini(struct weights *w);

/* Whether some matrices of n_layers layers are blocks that the cpu device multiplies with rounded
 * inputs, if it rounds any. */
bool weights_have_blocks(const struct weights *w, int n_layers);

/* The rows of the output matrix of a model that pools. */
struct pooling;
int weights_pooling_rows(const struct pooling *p, int dim);

#endif
