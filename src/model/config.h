/* config.json of a Hugging Face folder: the numbers of a model, checked. */
#ifndef QUIRE_MODEL_CONFIG_H
#define QUIRE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kernels/kernels.h"
#include "model/quant.h"

#define CONFIG_EOS_MAX    8
#define CONFIG_LAYERS_MAX 1024

/* Which layers see a window of tokens. */
enum arch_window {
    ARCH_WINDOW_NONE,   /* none, whatever config.json says */
    ARCH_WINDOW_ALL,    /* all, by sliding_window alone */
    ARCH_WINDOW_LAYERS, /* with use_sliding_window those of layer_types, or of max_window_layers */
};

/* What sets one architecture apart; arch.c has a row for each. */
struct arch {
    const char *name;         /* architectures[0] of config.json */
    bool qkv_bias;            /* always; else attention_bias says */
    bool reads_bias_switches; /* attention_bias (q, k, v, o) and mlp_bias have a meaning */
    bool qk_norm;             /* each head of queries and of keys is normed */
    bool recurrent;           /* layer_types may say "recurrent" */
    bool plain_ffn;           /* where hidden_act is a GELU; else the FFN is gated, by silu */
    bool is_toy;              /* for tests; not listed */
    enum arch_window window;
    int head_dim; /* where config.json has none; 0: hidden_size / heads */
    const struct arch_names *names;
};

/* Tensor names; %d is the layer. A bias ends in .bias in place of .weight, and so on. attn is no
 * tensor itself: scales of keys and values may stand there. */
struct arch_names {
    const char *embed, *norm, *head;
    const char *norm_attn, *attn, *q, *k, *v, *o;
    const char *q_norm, *k_norm;
    const char *norm_mlp, *gate, *up, *down;
    const char *mixer_in, *mixer_out; /* of recurrent layers */
};

/* The row of an architecture; NULL when it is unknown. */
const struct arch *arch_find(const char *name);

/* The names that arch_find() knows, separated by commas. */
void arch_list(char *out, size_t cap);

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct rope_config {
    enum rope_kind kind;
    double theta;
    double factor, low_factor, high_factor, original_len; /* as the kind reads them */
};

enum layer_kind { LAYER_FULL, LAYER_WINDOW, LAYER_RECURRENT };

struct config {
    const struct arch *arch;
    int n_layers, dim, n_heads, n_kv_heads, head_dim, ff_dim, n_vocab;
    int len_max;                            /* positions that the model was made for */
    uint8_t layer_kinds[CONFIG_LAYERS_MAX]; /* enum layer_kind, [n_layers] */
    int window;      /* tokens that a token of LAYER_WINDOW sees, itself the last; below len_max */
    int mixer_width; /* of LAYER_RECURRENT */
    enum k_activation activation;
    float norm_eps;
    struct rope_config rope;
    bool tied; /* the output matrix is the embedding */
    bool qkv_bias, o_bias, mlp_bias;
    struct quant_config quant; /* of matrices of layers */
    int n_eos;
    int32_t eos[CONFIG_EOS_MAX];
    struct hash digest; /* SHA-256 of config.json's bytes */
};

/* Read dir/config.json and, for the ids that end a text, dir/generation_config.json.
 *
 * Returns ERR_OK; ERR_NOT_FOUND without config.json; ERR_SYNTAX; ERR_INVALID for a field that is
 * missing or absurd; ERR_UNSUPPORTED for an architecture, position scaling or quantisation that
 * quire does not compute; ERR_NO_MEMORY. All logged with file and field. */
int config_read(struct config *out, const char *dir) ERR_CHECKED;

/* The same from texts; name is for the log; generation may be NULL. */
int config_parse(struct config *out, const char *name, const char *text, size_t len,
                 const char *generation, size_t generation_len) ERR_CHECKED;

/* Cosine and sine by pair of positions first .. first + n_positions - 1: float
 * [n_positions][head_dim / 2][2], in the float32 arithmetic that models were trained with. Any
 * thread. */
void config_turns(const struct config *c, float *turns, int first, int n_positions);

/* Read a whole file into memory, freed with mem_free(); NUL-terminated. ERR_NOT_FOUND (not
 * logged) when it does not exist; ERR_IO, ERR_TOO_LARGE above bytes_max, ERR_NO_MEMORY (logged). */
int config_file(char **out, size_t *len, const char *path, size_t bytes_max) ERR_CHECKED;

#endif
