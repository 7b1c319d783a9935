/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a model's layers: for each a mixer and an FFN with their shapes, norms and positions.
 * Made once from config.json by plan_make(); the loader and the forward pass read it and nothing of
 * the architecture's row.
 *
 * A layer in general, where norms that it does not have leave their input as it is, and r is the
 * residual multiplier:
 *
 *   x += r * after_mixer(mixer(before_mixer(x)))
 *   x += r * after_ffn(ffn(before_ffn(x)))
 *
 * In a parallel layer both read the x from before the first line. */
#ifndef QUIRE_MODEL_PLAN_H
#define QUIRE_MODEL_PLAN_H

#include <stdbool.h>

#include "base/err.h"
#include "model/hf_config.h"

enum mixer_kind { MIXER_ATTENTION, MIXER_RECURRENT };

/* Attention with keys and values of n_kv_heads heads, each for n_heads / n_kv_heads queries. */
struct attn_plan {
    int n_heads, n_kv_heads, head_dim;
    int window;  /* tokens that a token sees, itself the last; 0: all before it */
    int rope;    /* index in the plan's ropes */
    float scale; /* of scores */
    enum qk_norm qk_norm;
    bool qkv_bias; /* of the products */
    bool o_bias;
};

/* A state of width floats (kernels.h, ref_recurrent()). */
struct recurrent_plan {
    int width;
};

/* FFN_GATED: down(activation(gate(x)) * up(x)); FFN_PLAIN: down(activation(up(x))) */
struct ffn_plan {
    enum ffn_kind kind;
    int ff_dim;
    enum k_activation activation;
    bool bias; /* of all products */
};

/* Which norms a layer has. */
struct norm_places {
    bool before_mixer, after_mixer, before_ffn, after_ffn;
};

/* How ranks share a matrix [out][in]: each has some of the rows and makes those outputs; or each
 * has some of the columns, reads those inputs, and the ranks' results are to be summed. */
enum plan_split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLUMNS };

struct plan_splits {
    enum plan_split mixer_in, mixer_out, ffn_in, down;
};

struct layer_plan {
    enum mixer_kind mixer;
    struct attn_plan attn;           /* MIXER_ATTENTION */
    struct recurrent_plan recurrent; /* MIXER_RECURRENT */
    struct ffn_plan ffn;
    struct norm_places norms;
    bool is_parallel;
    struct plan_splits splits;
};

struct plan {
    int n_ranks; /* layers are what each of so many has; 1: they are whole */
    int n_layers, dim, n_vocab;
    struct norm_config norm; /* all norms of rows, and those of heads but for a mean and a bias */
    struct multipliers by;   /* 1 where the model has none */
    struct learned_positions positions;
    bool head_bias; /* logits have one */
    bool fuses;     /* all layers have the form that fused operations compute: RMS norms
                                * before, silu with a gate or a plain FFN, no multipliers */
    int n_ropes;
    const struct rope *ropes;  /* [n_ropes], the config's */
    struct layer_plan *layers; /* [n_layers] */
};

/* c must outlive the plan. ERR_NO_MEMORY. */
int plan_make(struct plan *out, const struct hf_config *c) ERR_CHECKED;

/* The plan of a rank's part, the same for each: heads, columns of an FFN and channels of a state
 * are divided, and kv heads where there are enough; where there are fewer kv heads than ranks,
 * several ranks have the same one. Norms and the embedding are whole on all ranks, the output
 * matrix is whole on rank 0, which computes the logits.
 *
 * ERR_UNSUPPORTED (logged) for what does not divide; ERR_NO_MEMORY. */
int plan_split(struct plan *out, const struct plan *whole, int n_ranks) ERR_CHECKED;
void plan_fini(struct plan *p); /* accepts {0} */

/* Elements of a token's row: what a mixer takes (q, k and v; value and gate) and what it gives (the
 * heads; the state); what an FFN's first product makes. */
int plan_mixer_in(const struct layer_plan *l);
int plan_mixer_out(const struct layer_plan *l);
int plan_ffn_in(const struct layer_plan *l);

/* The most of any layer, for the memory of activations and the device's. */
struct plan_widths {
    int mixer_in, mixer_out, ffn_in, ff;
    int n_heads, n_kv_heads, head_dim; /* of attention; 0 without any */
    bool has_states;
    int n_windows; /* different ones of attention, "all tokens" among them */
};
struct plan_widths plan_widest(const struct plan *p);

#endif
