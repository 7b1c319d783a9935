/* SPDX-License-Identifier: Apache-2.0
 *
 * The layer plan of a model: for each layer a mixer and an FFN with their shapes, norms and
 * positions. Made once from config.json by plan_make(); the loader and the forward pass read it and
 * nothing of the architecture's row.
 *
 * The general layer, where a norm that it lacks passes its input on unchanged, and r is the
 * residual multiplier:
 *
 *   x += r * after_mixer(mixer(before_mixer(x)))
 *   x += r * after_ffn(ffn(before_ffn(x)))
 *
 * In a parallel layer both lines read the x from before the first. An FFN of experts may have a
 * dense one beside it, each with norms of its own (struct experts_config, is_apart). Two lines
 * more follow where the model has embeddings for each layer, and where the layer has a scale:
 *
 *   x += after_embed(out(activation(gate(x)) * embeds of the layer))
 *   x = scale * x
 *
 * A layer may lack either line. */
#ifndef QUIRE_MODEL_PLAN_H
#define QUIRE_MODEL_PLAN_H

#include <stdbool.h>

#include "base/err.h"
#include "model/hf_config.h"

enum mixer_kind {
    MIXER_ATTENTION,
    MIXER_RECURRENT,
    MIXER_DELTA,
    MIXER_MAMBA,
    MIXER_CONV,
    MIXER_NONE,
};

/* Attention with keys and values of n_kv_heads heads, each for n_heads / n_kv_heads queries. */
struct attn_plan {
    int n_heads, n_kv_heads, head_dim;
    int value_dim;  /* of values in the checkpoint: zeros make them as wide as keys */
    int kv_copies;  /* ranks that hold the same kv head; 1: each is on one rank */
    int window;     /* tokens that a token sees, including itself; 0: all before it */
    int rope;       /* index in the plan's ropes */
    float scale;    /* of scores */
    int kv_layer;   /* whose pages have the keys and values: the layer itself, or one before */
    bool is_shared; /* it is one before; this layer has queries alone */
    bool values_are_keys; /* one projection gives both */
    bool value_norm;      /* values are normed, without weights */
    enum qk_norm qk_norm;
    bool qkv_bias; /* of the products */
    bool o_bias;
    bool sinks;                   /* a score of each head takes part in its softmax */
    bool has_gate;                /* each head's result is multiplied by a sigmoid */
    bool gate_by_head;            /* one gate for a head, not for each element */
    bool gate_softplus;           /* in place of the sigmoid */
    bool grows;                   /* queries grow with their position */
    struct k_latent_shape latent; /* kv_rank above 0: head_dim is that of latents, of one kv head */
    float latent_eps;
    struct k_index_shape index; /* n_keys above 0: of the choice of tokens; n_heads 0 then: the
                                 * layer sees the tokens that the one before it does */
    bool index_interleaved;
};

/* A state of width floats (kernels.h, ref_recurrent()). */
struct recurrent_plan {
    int width;
};

/* Mamba-2: heads and groups of the layer or of a rank. */
struct mamba_plan {
    struct k_mamba_shape shape;
    const struct mamba_config *config;
};

/* Short convolutions of `width` channels. */
struct conv_plan {
    int width, n_taps;
    bool bias;
};

/* The experts of a layer, and those that a rank has: n_own from rank * n_own on, or all of them. */
struct experts_plan {
    int n, n_own;
    int n_used;  /* by a token */
    int ff_dim;  /* of an expert */
    float limit; /* of gates and ups; 0: none */
    const struct experts_config *config;
};

/* FFN_GATED: down(activation(gate(x)) * up(x)); FFN_PLAIN: down(activation(up(x))); FFN_EXPERTS:
 * the weighted sum of some experts, plus a gated FFN of ff_dim, times a switch, if ff_dim is not 0:
 * the shared experts, which are plain where the experts are. */
struct ffn_plan {
    enum ffn_kind kind;
    int ff_dim;
    enum k_activation activation;
    bool bias;                   /* of all products but the experts' */
    float gate_by;               /* of the gate before its activation */
    bool has_xielu;              /* in place of the activation */
    float limit;                 /* of gates and ups; 0: none; of experts, of the shared one */
    struct experts_plan experts; /* FFN_EXPERTS */
};

/* The norms that a layer has. */
struct norm_places {
    bool before_mixer, after_mixer, before_ffn, after_ffn;
};

/* How ranks share a matrix [out][in]. By rows: each rank has some rows and computes those outputs.
 * By columns: each rank has some columns, reads those inputs, and the results of all ranks are
 * summed. */
enum plan_split { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLUMNS };

struct plan_splits {
    enum plan_split mixer_in, mixer_out, ffn_in, down;
};

struct layer_plan {
    enum mixer_kind mixer;
    struct attn_plan attn;           /* MIXER_ATTENTION */
    struct recurrent_plan recurrent; /* MIXER_RECURRENT */
    struct k_delta_shape delta;      /* MIXER_DELTA */
    struct mamba_plan mamba;         /* MIXER_MAMBA */
    struct conv_plan conv;           /* MIXER_CONV */
    struct ffn_plan ffn;
    struct norm_places norms;
    float mixer_by, ffn_by; /* of the results: the residual multiplier, times the layer's own */
    bool is_twin;           /* the next layer's mixer reads the x from before this one's, whose norm
                             * it shares; there is no FFN */
    bool has_scale;
    bool is_parallel;
    struct plan_splits splits;
};

/* Numbers of the largest FFN of experts; 0 without any. */
struct experts_widths {
    int n, n_own, n_used, ff_dim;
};

struct plan {
    int n_ranks; /* layers describe the part of one of n_ranks ranks; 1: whole layers */
    int n_layers, dim, n_vocab;
    const char *host_only;   /* as in the config */
    bool norms_embedding;    /* embedded tokens are normed */
    struct norm_config norm; /* of all norms of rows; norms of heads have neither mean nor bias */
    struct multipliers by;   /* 1 where the model has no multiplier */
    struct learned_positions positions;
    struct k_growth growth; /* of queries with the position */
    float score_cap;        /* of attention; 0: none */
    struct layer_embeds embeds;
    bool head_bias;   /* logits have a bias */
    int head_rows;    /* of the output matrix per rank; n_vocab: rank 0 has all, others none */
    bool fuses;       /* all layers have the form that fused operations compute: RMS norms before,
                     * silu with a gate or a plain FFN, no multipliers */
    bool bf16_states; /* states are kept in bfloat16 (plan_can_round_states()), else in float32 */
    const struct eagle_config *eagle; /* the config's; NULL: the model is no head */
    int n_ropes;
    const struct rope *ropes;  /* [n_ropes], the config's */
    struct layer_plan *layers; /* [n_layers] */
};

/* c must outlive the plan. ERR_NO_MEMORY. */
int plan_make(struct plan *out, const struct hf_config *c) ERR_CHECKED;

/* The plan of one rank's part, equal for all ranks. Heads, columns of an FFN and channels of a
 * state are divided, and kv heads if there are enough; with fewer kv heads than ranks, several
 * ranks have the same one. Norms and the embedding are whole on all ranks: looking up a part would
 * cost a sum per step. Rows of the output matrix are divided if they divide evenly; else rank 0 has
 * all of them.
 *
 * Experts are divided like any FFN, by columns, or with whole_experts each rank has some of them.
 *
 * ERR_UNSUPPORTED (logged) for numbers that do not divide; ERR_NO_MEMORY. */
int plan_split(struct plan *out, const struct plan *whole, int n_ranks,
               bool whole_experts) ERR_CHECKED;
void plan_fini(struct plan *p); /* accepts {0} */

/* ERR_UNSUPPORTED (logged) if the layers cannot be divided into stages, because one reads what only
 * the stage of another has. */
int plan_check_stages(const struct plan *p, int n_stages) ERR_CHECKED;

/* The layers first .. end - 1, those of one of n_stages stages; stage n_stages has none, and the
 * output matrix alone (node.h): consecutive ones, and as many in
 * each; earlier stages have one more if they do not divide evenly, because the last has the output
 * matrix. Twins stay together. */
struct plan_stage {
    int first, end;
};
struct plan_stage plan_stage(const struct plan *p, int stage, int n_stages);

/* True if every rank computes a part of the logits. */
bool plan_splits_head(const struct plan *p);

/* Drop the choice of tokens from a plan for texts of up to max_len tokens, if each of these sees
 * all before it. */
void plan_drop_index(struct plan *p, int max_len);

/* Elements of a token's row in the pages of a layer with attention: its keys and values, or its
 * latent and, behind those of a page, its index key. */
int plan_kv_elems(const struct attn_plan *attn);

/* Elements of a sequence's state; 0 of a layer with attention. */
size_t plan_state_elems(const struct layer_plan *l);

/* Do all layers with states have such as may be kept in bfloat16: Gated DeltaNet, Mamba-2? False
 * without any. */
bool plan_can_round_states(const struct plan *p);

/* Bytes of an element of states in the pages. */
size_t plan_state_elem_bytes(const struct plan *p);

/* Elements of a token's row: input of a mixer (q, k and v, or of latent attention q; value and
 * gate; q, k, v and z; z, x, B, C and dt; b, c and x), output of a mixer (the heads; or the state),
 * output of an FFN's first product. */
int plan_mixer_in(const struct layer_plan *l);
int plan_mixer_out(const struct layer_plan *l);
int plan_ffn_in(const struct layer_plan *l);

/* The maxima over all layers, by which activations and the device's work areas are sized. */
struct plan_widths {
    int mixer_in, mixer_out, ffn_in, ff;
    int n_heads, head_dim;                      /* of attention; 0 without any */
    int latents, latent_queries, latent_heads;  /* elements of a token's latents, of its absorbed
                                                   * queries and of their results; 0 without */
    struct k_index_shape index;                 /* of the choice of tokens; 0 without */
    int attn_gate;                              /* elements of a row of gates of heads */
    int delta_gates;                            /* of the delta rule: b and a */
    int delta_forgets, delta_values, delta_low; /* by channel: a, z, and what both are products
                                                   * of; 0 without */
    int state_work; /* of the work memory of mixers with states, in floats */
    bool has_states;
    int state_shared; /* bytes of shared memory of a block of their kernels */
    struct experts_widths experts;
    bool is_apart;    /* some layer has a dense FFN beside experts */
    int latent;       /* of experts in a narrower space */
    bool norms_whole; /* some layer norms queries and keys over all heads */
};
struct plan_widths plan_widest(const struct plan *p);

/* True if no layer before i has attention of the same shape: heads and window. */
bool plan_is_first_of_shape(const struct plan *p, int i);

#endif
