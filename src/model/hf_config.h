/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json of a Hugging Face folder: the shapes and switches of a model, checked. Everything
 * that differs between architectures is data here (struct arch); the layer plan (plan.h) is made
 * from it. */
#ifndef QUIRE_MODEL_HF_CONFIG_H
#define QUIRE_MODEL_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kernels/delta.h"
#include "kernels/index.h"
#include "kernels/kernels.h"
#include "kernels/latent.h"
#include "kernels/mamba.h"
#include "model/quant.h"
#include "model/rope.h"

#define HF_CONFIG_EOS_MAX    8
#define HF_CONFIG_LAYERS_MAX 1024
#define HF_CONFIG_LEN_MAX    (1 << 24) /* tokens of a text */
#define HF_CONFIG_SHARED_MAX 64        /* shared experts of a layer */

#define HF_CONFIG_ROPES_MAX  3

enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEADS, /* each head of queries and of keys is normed */
    QK_NORM_WHOLE, /* one norm over all heads of a token's queries, one over its keys */
    QK_NORM_AFTER, /* as QK_NORM_HEADS, after the rotation */
};

enum ffn_kind { FFN_GATED, FFN_PLAIN, FFN_EXPERTS, FFN_NONE };

/* Where layers have norms: before the mixer and the FFN, after them, or both. */
enum norm_scheme { NORMS_BEFORE, NORMS_AFTER, NORMS_BOTH };

/* The form of the norms of rows. */
struct norm_config {
    enum k_norm_kind kind;
    bool has_bias;
    bool plus_one; /* the checkpoint stores weight - 1 */
    bool is_bare;  /* the checkpoint has no weights: all are 1 */
    float eps;
    float after_eps;    /* of norms after mixers and FFNs; 0: eps */
    bool last_is_plain; /* the last norm's weights are stored as they are, even with plus_one */
};

/* Which layers see a window of tokens. */
enum arch_window {
    ARCH_WINDOW_NONE,   /* no layer, whatever config.json has */
    ARCH_WINDOW_ALL,    /* all layers, if sliding_window is set */
    ARCH_WINDOW_LAYERS, /* with use_sliding_window: by layer_types, else layers from
                         * max_window_layers on */
    ARCH_WINDOW_TYPES,  /* by layer_types, else by the family's pattern (window_pattern) */
};

/* The order of rows in a fused q, k, v projection: all of q, k, v one below the other, or for each
 * kv head in turn its q heads, k and v. */
enum arch_fused { ARCH_STACKED, ARCH_BY_HEAD };

struct hf_config;
struct config_source;
struct json;
struct pooling;

/* The differences between architectures; arch.c has a row for each. */
struct arch {
    const char *name;         /* architectures[0] of config.json */
    bool qkv_bias;            /* true: always; false: see reads_bias_switches */
    bool reads_bias_switches; /* attention_bias (q, k, v, o) and mlp_bias of config.json are read */
    bool mlp_bias;            /* likewise, of the FFN */
    bool o_bias;              /* likewise, of the output projection */
    bool head_bias;
    bool recurrent;      /* layer_types may contain "recurrent" */
    bool any_activation; /* hidden_act may differ from silu */
    bool is_toy;         /* for tests only; arch_name() omits it */
    bool is_drafter;     /* no model by itself: see struct eagle_config; likewise */
    bool is_parallel;
    bool is_tied;        /* default of tie_word_embeddings */
    bool is_wrapped;     /* config.json may have the text model's fields in text_config */
    bool wraps_any;      /* text_config is there, and its model_type decides the row */
    bool has_two_shapes; /* layers with a window have other heads than those without */
    enum qk_norm qk_norm;
    bool qk_norm_is_bare; /* it has no weights */
    enum ffn_kind ffn;
    enum norm_scheme norms;
    struct norm_config norm; /* eps where config.json has none; 0: 1e-6, with a mean 1e-5 */
    enum arch_window window;
    int window_pattern;     /* ARCH_WINDOW_TYPES without layer_types: every window_pattern-th
                             * layer sees all tokens; 0: none does */
    int window_preset;      /* ARCH_WINDOW_TYPES: default of sliding_window; 0: none */
    enum arch_fused fused;  /* for names->qkv */
    int head_dim;           /* default of head_dim; 0: hidden_size / heads */
    double rotary_part;     /* default of the rotating part of a head; 0: all of it, and another
                             * value is refused */
    double theta;           /* default of rope_theta; 0: 10000 */
    const char *activation; /* default of hidden_act; NULL: silu */
    bool interleaved;       /* rope rotates pairs (2 i, 2 i + 1) */
    bool is_turned;         /* checkpoints hold layer matrices as [n_in][n_out] */
    /* Reads the fields that only this family has; NULL: none. Called after all others. */
    void (*read)(struct hf_config *c, struct config_source *s, const struct json *obj);
    const struct arch_names *names;
    const struct mtp_names *mtp; /* of the MTP layer that folders may have */
};

/* The tensors that an MTP layer has beside those of a layer of its model. %d is the layer's number:
 * with a prefix, which replaces "model." in all its names, 0; without one that behind the model's
 * last layer. */
struct mtp_names {
    const char *prefix; /* or NULL */
    const char *fc, *norm_embed, *norm_hidden, *norm;
};

/* Tensor names; %d is the layer. A bias has .bias in place of .weight. attn is not a tensor itself
 * but the stem of the scales of keys and values. Where a fused name (qkv, gate_up) is set, it
 * replaces the names of its parts. */
struct arch_names {
    const char *embed, *positions, *norm, *head;
    const char *norm_attn, *norm_attn_after, *attn, *q, *k, *v, *qkv, *o;
    /* Whole names that some files have in place of norm_attn; of norm_attn_after and norm_mlp. */
    const char *norm_attn_or, *norm_middle_or;
    const char *q_norm, *k_norm;
    /* Of latent attention (kernels/latent.h); q in place of q_a and q_b without a q_rank. */
    const char *q_a, *norm_q_a, *q_b, *kv_a, *norm_kv_a, *kv_b;
    /* Or its rows for keys and for values apart, whole names: [n_heads][kv_rank][nope_dim] and
     * [n_heads][v_dim][kv_rank]. */
    const char *k_b, *v_b;
    /* Of the choice of tokens: queries of the latents of queries, keys and weights of the input;
     * index_norm has a .bias. */
    const char *index_q, *index_k, *index_norm, *index_weights;
    const char *norm_mlp, *norm_mlp_after; /* norm_mlp NULL in a parallel layer: it shares
                                            * norm_attn */
    const char *gate, *up, *gate_up, *down;
    const char *attn_gate;            /* NULL, with gates: halves of q's rows */
    const char *sinks;                /* the whole name: [n_heads] */
    const char *router, *router_bias; /* router_bias: the whole name, without .weight */
    /* A tensor per expert, whose number replaces the second %d; or, where the file has them, one
     * tensor for all: [n][2 * ff_dim][dim], or gates and ups apart, and [n][dim][ff_dim], whole
     * names. */
    const char *expert_gate, *expert_up, *expert_down, *experts_gate_up, *experts_down;
    const char *experts_gate, *experts_up;
    /* Of those for all: [n][dim][2 * ff_dim] and [n][ff_dim][dim], gates and ups in turn, with
     * biases NAME_bias; or floats of four bits in rows, NAME_blocks and NAME_scales. */
    bool experts_are_mixed;
    /* Of those for all: [n][dim][2 * ff_dim], gates before ups, and [n][ff_dim][dim]. */
    bool experts_are_turned;
    const char *shared_gate, *shared_up, *shared_gate_up, *shared_down, *shared_switch;
    const char *latent_in, *latent_out; /* of experts with a latent_dim */
    /* Of experts apart (struct experts_config); whole names, but for the norms. */
    const char *norm_router, *router_scales, *norm_experts, *norm_experts_after, *norm_shared_after;
    /* Embeddings for each layer (struct layer_embeds): of the model, and of a layer. */
    const char *embeds, *embeds_in, *norm_embeds, *embed_gate, *embed_out, *norm_embed_after;
    const char *layer_scale;          /* the whole name */
    const char *mixer_in, *mixer_out; /* of recurrent layers */
    /* Of Gated DeltaNet: q, k, v and z in one tensor, those of each key head in turn, and b and a
     * likewise; or in four; or q, k and v apart, too. */
    const char *delta_qkvz, *delta_ba, *delta_qkv, *delta_z, *delta_b, *delta_a, *state_out;
    /* Of Kimi Delta Attention: q, k and v and their convolutions (whole names) apart; a is f_b *
     * f_a of the layer's input, and z is g_b * g_a. */
    const char *delta_q, *delta_k, *delta_v, *q_conv, *k_conv, *v_conv;
    const char *delta_f_a, *delta_f_b, *delta_g_a, *delta_g_b;
    const char *state_conv, *state_a_log, *state_dt_bias, *state_norm; /* whole names */
    /* Of Mamba-2, and of short convolutions: z, x, B, C and dt in one tensor; b, c and x. */
    const char *state_in;
    const char *state_conv_bias, *state_skip; /* whole names */
};

/* How a checkpoint stores the tensors of its architecture. Folders have the row's form; a GGUF file
 * has one of its own (gguf_config.h). */
struct tensor_form {
    struct arch_names names;
    enum arch_fused fused;
    bool is_turned;              /* layer matrices are [n_in][n_out] */
    bool has_rates;              /* state_a_log holds -exp() of its numbers */
    bool heads_in_turns;         /* value heads of Gated DeltaNet are in turns (slice.h) */
    const struct mtp_names *mtp; /* NULL: no MTP layer is read */
};

/* The row of an architecture by its name in config.json; NULL if it is unknown. */
const struct arch *arch_find(const char *name);

/* The row of a text model by its model_type, such as "qwen3"; NULL if it is unknown. */
const struct arch *arch_of_text(const char *model_type);

/* The i-th name that arch_find() knows, from 0; NULL behind the last one. */
const char *arch_name(size_t i);

/* Write which served architecture is nearest to the unknown `name`, and what differs if that is
 * known: "the nearest that is served is ...". */
void arch_near(char *out, size_t cap, const char *name);

enum layer_kind {
    LAYER_FULL,
    LAYER_WINDOW,
    LAYER_RECURRENT,
    LAYER_DELTA,
    LAYER_MAMBA,
    LAYER_CONV, /* short convolutions */
    LAYER_NONE, /* an FFN alone */
};

/* Constant factors of some families; 1, and a cap of 0, have no effect. */
struct multipliers {
    float embedding; /* of embedded tokens */
    float residual;  /* of the results that a mixer and an FFN add to the residual */
    float logits, logits_cap;
    float attention, states; /* of the results of mixers with keys, and with states */
    float gate, ffn;         /* of an FFN's gate before its activation, and of its result */
};

/* Layers of Mamba-2 (kernels/mamba.h). */
struct mamba_config {
    struct k_mamba_shape shape;
    bool has_bias; /* the products have one */
    bool has_conv_bias;
    bool has_norm, norm_first;
    float least, most; /* limits of a step; most may be infinite */
    float z_by, x_by, b_by, c_by, dt_by;
};

/* The choice of the tokens that latent attention sees (kernels/index.h). */
struct index_config {
    struct k_index_shape shape;           /* n_keys 0: there is none */
    bool interleaved;                     /* its rope, whose turns are those of latents */
    bool is_shared[HF_CONFIG_LAYERS_MAX]; /* [n_layers]: the layer sees the tokens that the one
                                           * before it does */
};

/* Layers of short convolutions. */
struct conv_config {
    int n_taps;
    bool has_bias; /* the convolution, and the products */
};

/* The experts of those layers that have them (kernels.h, struct k_router). */
struct experts_config {
    int n;           /* 0: no layer has experts */
    int n_used;      /* by a token */
    int ff_dim;      /* of an expert */
    int shared_dim;  /* of the FFN that all tokens use besides; 0: none */
    int latent_dim;  /* of the experts' inputs and results, which a product makes of the layer's
                      * input, and another brings back; 0: that of the residual */
    bool has_switch; /* that FFN's result is multiplied by a sigmoid of each token */
    bool has_bias;   /* the choice has a bias */
    bool has_biases; /* the router's logits and both products of an expert have one */
    bool has_scales; /* each expert's weight has a factor of its own */
    bool is_plain;   /* an expert, and the FFN that all tokens use, is down(relu(up(x))^2) */
    bool is_apart;   /* the FFN that all tokens use, the experts and the router each have a norm of
                      * the layer's input, and the results have norms before they are added */
    int n_groups, n_groups_used, group_best;
    enum k_scoring scoring;
    bool renorms;
    float least, scale, spread;
    float cap;          /* of the router's logits; 0: none */
    bool weighs_inputs; /* an expert's weight multiplies its input */
};

/* Embeddings of tokens for each layer: their rows of a table are mixed with a projection of the
 * embedded tokens, and each layer adds its part, gated by the residual, to the residual. */
struct layer_embeds {
    int width; /* of a layer; 0: none */
    int n_rows;
};

#define EAGLE_TAPS_MAX 8

/* A head: one layer that drafts tokens of another model, the target (forward_eagle.c). Of EAGLE-3,
 * or one for multi-token prediction (MTP) from the target's own folder. */
struct eagle_config {
    int n_taps; /* 0: the model is none */
    int taps
        [EAGLE_TAPS_MAX]; /* layers of the target whose entering residual it reads, n_layers: the
                               * one behind the last; -1: the layer that the published heads read */
    bool is_mtp;
    int layer;           /* its number in the names of its tensors */
    int tap_dim;         /* of the target's residual */
    int n_words;         /* of the target's vocabulary, and of the embedding */
    bool norms_residual; /* its residual is the normed row */
    bool passes_normed;  /* the next draft's step gets the final norm's result */
};

/* Learned positions: a table whose rows are added to the embedded tokens. */
struct learned_positions {
    bool is_used;
    int first; /* row of position 0 */
    int n_rows;
};

struct hf_config {
    const struct arch *arch;
    struct tensor_form form;
    int n_layers, dim, n_heads, n_kv_heads, head_dim, ff_dim, n_vocab;
    int full_kv_heads, full_head_dim; /* of LAYER_FULL layers */
    int n_kv_shared;                  /* layers, the last ones, that read keys and values of the
                                       * last layer of their kind before them */
    bool shared_is_wide;              /* FFNs of these have 2 * ff_dim */
    bool values_are_keys;             /* of LAYER_FULL layers: there is one projection for both */
    bool value_norm;                  /* values are normed, without weights */
    bool has_layer_scale;             /* a layer's result is multiplied by a number of its own */
    bool norms_embedding;             /* embedded tokens are normed, without weights */
    struct layer_embeds layer_embeds;
    int len_max;    /* the longest text that the model was trained for, in tokens */
    int len_scaled; /* the longest that its positions reach: max_model_len may ask for it */
    uint8_t layer_kinds[HF_CONFIG_LAYERS_MAX]; /* enum layer_kind, [n_layers] */
    uint8_t layer_ropes[HF_CONFIG_LAYERS_MAX]; /* index in ropes, [n_layers] */
    int window;      /* tokens that a token of a LAYER_WINDOW layer sees, including itself; below
                      * len_scaled */
    int mixer_width; /* of LAYER_RECURRENT */
    struct k_delta_shape delta;           /* of LAYER_DELTA */
    float delta_eps;                      /* of the norms of its heads; 0: norm.eps */
    struct mamba_config mamba;            /* of LAYER_MAMBA */
    struct conv_config conv;              /* of LAYER_CONV */
    struct k_latent_shape latent;         /* of LAYER_FULL; kv_rank 0: heads have keys of their own,
                                           * else the one kv head has a latent for a key */
    float latent_eps;                     /* of the norms of latents */
    struct index_config index;            /* of LAYER_FULL with latents */
    bool lacks_ffn[HF_CONFIG_LAYERS_MAX]; /* [n_layers]: the layer is a mixer alone */
    bool is_twin;                         /* two layers are one of the checkpoint's: Mamba-2, whose
                                           * input attention reads too, and attention with the
                                           * FFN */
    bool attn_gate; /* attention's result is multiplied by a sigmoid of the layer's input */
    bool gate_by_head, gate_softplus; /* one gate for each head; softplus in place of the sigmoid */
    uint16_t layer_heads[HF_CONFIG_LAYERS_MAX]; /* [n_layers], of attention; 0: n_heads */
    bool still_grows;                           /* queries grow in layers without positions alone,
                                                 * and heads are normed in the others alone */
    bool has_xielu;                             /* of plain FFNs, in place of the activation */
    /* Limits of gates and ups, [n_layers], 0: none: of experts, and of other FFNs. */
    float limits[HF_CONFIG_LAYERS_MAX], shared_limits[HF_CONFIG_LAYERS_MAX];
    int value_dim;      /* of a head's values, which are below head_dim; 0: they are as wide */
    bool sinks_locally; /* sinks are in layers with a window alone */
    int chunk; /* tokens that a text may have, because layers attend in chunks; 0: any number */
    enum qk_norm qk_norm;
    enum ffn_kind ffn;
    enum k_activation activation;
    enum norm_scheme norms, delta_norms; /* of layers, and of those of LAYER_DELTA */
    struct norm_config norm;
    bool is_parallel;
    const char
        *host_only;   /* the part of the model that the cpu device alone computes; NULL: none */
    float attn_scale; /* of scores */
    struct multipliers by;
    struct learned_positions positions;
    struct k_growth growth; /* of queries with the position */
    float score_cap;        /* of attention; 0: none */
    struct experts_config experts;
    bool layer_experts[HF_CONFIG_LAYERS_MAX]; /* [n_layers]: the FFN is one of experts */
    int n_ropes;
    struct rope ropes[HF_CONFIG_ROPES_MAX];
    bool tied; /* the output matrix is the embedding */
    bool qkv_bias, o_bias, mlp_bias, head_bias;
    bool sinks; /* each head has a score that takes part in its softmax, without a value */
    struct quant_config quant; /* format of the layers' matrices */
    struct eagle_config eagle; /* n_vocab is that of its drafts */
    bool is_headless;          /* the architecture has no output matrix */
    /* Of a model that pools: n_vocab is the rows of its output matrix, and n_words those of the
     * embedding. NULL: it generates. Borrowed. */
    const struct pooling *pooling;
    int n_words;
    int n_eos;
    int32_t eos[HF_CONFIG_EOS_MAX];
    struct hash digest; /* SHA-256 of config.json's bytes */
};

/* Read dir/config.json and, for the ids that end a text, dir/generation_config.json; or, where dir
 * is a file, the settings of that GGUF file. overrides is the setting hf_overrides; NULL and "":
 * nothing is replaced.
 *
 * Returns ERR_OK; ERR_NOT_FOUND without config.json; ERR_SYNTAX; ERR_INVALID for a field that is
 * missing or out of range; ERR_UNSUPPORTED for an architecture, position scaling or quantisation
 * that quire does not compute; ERR_NO_MEMORY. All are logged with file and field. */
int hf_config_read(struct hf_config *out, const char *dir, const char *overrides) ERR_CHECKED;

/* The ids that a text may have. */
static inline int hf_config_words(const struct hf_config *c)
{
    if (c->eagle.n_taps > 0)
        return c->eagle.n_words;
    return c->pooling != NULL ? c->n_words : c->n_vocab;
}

/* Parse the texts of the two files. name appears in the log; generation may be NULL. Errors as
 * hf_config_read(). */
int hf_config_parse(struct hf_config *out, const char *name, const char *bytes, size_t len,
                    const char *generation, size_t generation_len) ERR_CHECKED;

/* Read a whole file into memory, freed with mem_free(); NUL-terminated. ERR_NOT_FOUND (not
 * logged) when it does not exist; ERR_IO, ERR_TOO_LARGE above bytes_max, ERR_NO_MEMORY (logged). */
int config_file(char **out, size_t *len, const char *path, size_t bytes_max) ERR_CHECKED;

#endif
