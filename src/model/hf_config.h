/* config.json of a Hugging Face folder: the numbers of a model, checked. */
#ifndef QUIRE_MODEL_HF_CONFIG_H
#define QUIRE_MODEL_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kernels/kernels.h"
#include "model/quant.h"
#include "model/rope.h"

#define HF_CONFIG_EOS_MAX    8
#define HF_CONFIG_LAYERS_MAX 1024

#define HF_CONFIG_ROPES_MAX  3

enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEADS, /* each head of queries and of keys is normed */
    QK_NORM_WHOLE, /* all heads of a token's queries together, and those of its keys */
};

enum ffn_kind { FFN_GATED, FFN_PLAIN };

/* Where layers have norms: before the mixer and the FFN, after them, or both. */
enum norm_scheme { NORMS_BEFORE, NORMS_AFTER, NORMS_BOTH };

/* Norms of rows. */
struct norm_config {
    enum k_norm_kind kind;
    bool has_bias;
    bool plus_one; /* the checkpoint's weights are what is added to 1 */
    float eps;
};

/* Which layers see a window of tokens. */
enum arch_window {
    ARCH_WINDOW_NONE,   /* none, whatever config.json says */
    ARCH_WINDOW_ALL,    /* all, by sliding_window alone */
    ARCH_WINDOW_LAYERS, /* with use_sliding_window those of layer_types, or of max_window_layers */
    ARCH_WINDOW_TYPES,  /* those of layer_types, or of the family's pattern (window_pattern) */
};

/* How q, k and v of a fused projection follow one another. */
enum arch_fused { ARCH_STACKED, ARCH_BY_HEAD };

struct hf_config;
struct config_source;
struct json;

/* The differences between architectures; arch.c has a row for each. */
struct arch {
    const char *name;         /* architectures[0] of config.json */
    bool qkv_bias;            /* always; else attention_bias says */
    bool reads_bias_switches; /* attention_bias (q, k, v, o) and mlp_bias have a meaning */
    bool mlp_bias;            /* always; else mlp_bias */
    bool o_bias;              /* likewise, of the output projection */
    bool head_bias;
    bool recurrent;      /* layer_types may say "recurrent" */
    bool any_activation; /* hidden_act may be another than silu */
    bool is_toy;         /* for tests; not listed */
    bool is_parallel;
    bool is_tied;    /* where config.json does not say */
    bool is_wrapped; /* config.json may have the text model's fields in text_config */
    enum qk_norm qk_norm;
    enum ffn_kind ffn;
    enum norm_scheme norms;
    struct norm_config norm; /* eps where config.json has none; 0: 1e-6, with a mean 1e-5 */
    enum arch_window window;
    int window_pattern;     /* ARCH_WINDOW_TYPES without layer_types: each so many-th layer sees
                               * all tokens; 0: none does */
    int window_preset;      /* ARCH_WINDOW_TYPES without sliding_window; 0: there is none */
    enum arch_fused fused;  /* where names->qkv is used */
    int head_dim;           /* where config.json has none; 0: hidden_size / heads */
    double rotary_part;     /* of a head, where config.json does not say; 0: all, and it
                               * must not say otherwise */
    double theta;           /* of rope, likewise; 0: 10000 */
    const char *activation; /* likewise; NULL: silu */
    bool interleaved;       /* rope rotates neighbours */
    bool is_turned;         /* matrices of layers are [n_in][n_out] in checkpoints */
    /* Fields with names of the family's own, and multipliers; NULL: none. Called last. */
    void (*read)(struct hf_config *c, struct config_source *s, const struct json *obj);
    const struct arch_names *names;
};

/* Tensor names; %d is the layer. A bias ends in .bias in place of .weight, and so on. attn is no
 * tensor itself: scales of keys and values may be there. A fused projection takes the place of its
 * parts where it has a name. */
struct arch_names {
    const char *embed, *positions, *norm, *head;
    const char *norm_attn, *norm_attn_after, *attn, *q, *k, *v, *qkv, *o;
    const char *q_norm, *k_norm;
    const char *norm_mlp, *norm_mlp_after; /* norm_mlp NULL in a parallel layer: norm_attn */
    const char *gate, *up, *gate_up, *down;
    const char *mixer_in, *mixer_out; /* of recurrent layers */
};

/* The row of an architecture; NULL when it is unknown. */
const struct arch *arch_find(const char *name);

/* The names that arch_find() knows, separated by commas. */
void arch_list(char *out, size_t cap);

enum layer_kind { LAYER_FULL, LAYER_WINDOW, LAYER_RECURRENT };

/* Numbers by which a model scales; 1 and a cap of 0 do nothing. */
struct multipliers {
    float embedding; /* of embedded tokens */
    float residual;  /* of what a mixer or an FFN adds */
    float logits, logits_cap;
};

/* A table that is added to embedded tokens. */
struct learned_positions {
    bool is_used;
    int first; /* row of position 0 */
    int n_rows;
};

struct hf_config {
    const struct arch *arch;
    int n_layers, dim, n_heads, n_kv_heads, head_dim, ff_dim, n_vocab;
    int len_max;                               /* positions that the model was made for */
    uint8_t layer_kinds[HF_CONFIG_LAYERS_MAX]; /* enum layer_kind, [n_layers] */
    uint8_t layer_ropes[HF_CONFIG_LAYERS_MAX]; /* index in ropes, [n_layers] */
    int window;      /* tokens that a token of LAYER_WINDOW sees, itself the last; below len_max */
    int mixer_width; /* of LAYER_RECURRENT */
    enum qk_norm qk_norm;
    enum ffn_kind ffn;
    enum k_activation activation;
    enum norm_scheme norms;
    struct norm_config norm;
    bool is_parallel;
    float attn_scale; /* of scores */
    struct multipliers by;
    struct learned_positions positions;
    int n_ropes;
    struct rope ropes[HF_CONFIG_ROPES_MAX];
    bool tied; /* the output matrix is the embedding */
    bool qkv_bias, o_bias, mlp_bias, head_bias;
    struct quant_config quant; /* of matrices of layers */
    int n_eos;
    int32_t eos[HF_CONFIG_EOS_MAX];
    struct hash digest; /* SHA-256 of config.json's bytes */
};

/* Read dir/config.json and, for the ids that end a text, dir/generation_config.json.
 *
 * Returns ERR_OK; ERR_NOT_FOUND without config.json; ERR_SYNTAX; ERR_INVALID for a field that is
 * missing or absurd; ERR_UNSUPPORTED for an architecture, position scaling or quantisation that
 * quire does not compute; ERR_NO_MEMORY. All logged with file and field. */
int hf_config_read(struct hf_config *out, const char *dir) ERR_CHECKED;

/* The same from texts; name is for the log; generation may be NULL. */
int hf_config_parse(struct hf_config *out, const char *name, const char *bytes, size_t len,
                    const char *generation, size_t generation_len) ERR_CHECKED;

/* Read a whole file into memory, freed with mem_free(); NUL-terminated. ERR_NOT_FOUND (not
 * logged) when it does not exist; ERR_IO, ERR_TOO_LARGE above bytes_max, ERR_NO_MEMORY (logged). */
int config_file(char **out, size_t *len, const char *path, size_t bytes_max) ERR_CHECKED;

#endif
