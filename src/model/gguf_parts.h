/* SPDX-License-Identifier: Apache-2.0
 *
 * For the gguf_*.c files of this folder only: the file that is read, the row of its architecture,
 * and the functions by which a row's own settings become fields of a config.json. */
#ifndef QUIRE_MODEL_GGUF_PARTS_H
#define QUIRE_MODEL_GGUF_PARTS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/gguf.h"
#include "model/hf_config.h"

#define GGUF_WHY_CAP 400

/* The name of a tensor of a layer, in struct arch_names. */
#define GGUF_LAYER "blk.%d."

struct gguf_reading;

/* A value of general.architecture. Functions may be NULL, and are called in the order below. */
struct gguf_family {
    const char *name; /* general.architecture */
    const char *arch; /* architectures[0] of config.json */
    /* Rows of queries and keys of each head are in the order of pairs of neighbours, as rotary
     * positions were first defined; in the family's own checkpoints in halves. */
    bool is_permuted;
    bool has_post_names; /* the norm before the FFN is named post_attention_norm */
    bool is_latent;      /* latent attention; put() writes the lengths of heads */
    bool renorms;        /* weights of experts have the sum 1 if the file does not say it */
    bool plain_experts;  /* experts have no gate */
    int window;          /* if the file does not say it; 0: none */
    /* Settings that put() writes, such as those that may differ between layers; NULL behind the
     * last. "rope" stands for all of the positions, "heads" for lengths of heads. */
    const char *const *own;
    /* Another architectures[0] than arch, if the settings say so. */
    const char *(*find_arch)(struct gguf_reading *r);
    /* Writes the fields that only this family has, behind all others. */
    void (*put)(struct gguf_reading *r);
    /* Changes the names of tensors. */
    void (*name_tensors)(struct gguf_reading *r, const struct hf_config *c,
                         struct arch_names *names);
    /* Changes the parsed configuration: form, biases and experts are set. May refuse. */
    void (*set_form)(struct gguf_reading *r, struct hf_config *c);
};

/* The file that is read, and the text that is made. */
struct gguf_reading {
    const struct gguf *g;
    const struct gguf_family *family;
    const struct arch *arch;
    struct buf text;
    char *why; /* [GGUF_WHY_CAP] */
    int rc;    /* the first error; later ones are ignored */
};

/* Ends the reading with an error; a sentence without the file's name. */
void gguf_config_refuse(struct gguf_reading *r, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* --- settings of the family (gguf_fields.c) ------------------------------------------------- */

/* The value of a key without the family's name, such as "block_count"; NULL if it is missing. */
const struct gguf_value *gguf_config_find(const struct gguf_reading *r, const char *key);

/* A number that may be given once or for each layer, then the same for all. False if it is
 * missing, or refused. */
bool gguf_config_number(struct gguf_reading *r, const char *key, double *out);
double gguf_config_number_or(struct gguf_reading *r, const char *key, double preset);

/* The number of a layer, of a list or one for all; the preset if it is missing. A list that is too
 * short is refused. */
double gguf_config_layer_number_or(struct gguf_reading *r, const char *key, int layer,
                                   double preset);

/* Layers without those that draft, 1 .. HF_CONFIG_LAYERS_MAX; 0 with another value, which is
 * refused. */
int gguf_config_layers(struct gguf_reading *r);

/* Does put() write this setting? */
bool gguf_config_is_own(const struct gguf_reading *r, const char *key);

/* A flag; the preset if it is missing. */
bool gguf_config_flag_or(struct gguf_reading *r, const char *key, bool preset);

bool gguf_config_has_tensor(const struct gguf_reading *r, const char *name);

/* --- the text (gguf_fields.c) ----------------------------------------------------------------- */

/* ,"field": */
void gguf_config_put(struct gguf_reading *r, const char *field);
void gguf_config_put_number(struct gguf_reading *r, const char *field, double number);
void gguf_config_put_flag(struct gguf_reading *r, const char *field, bool flag);

/* --- experts (gguf_experts.c) ----------------------------------------------------------------- */

/* Does the file have a mixture of experts? */
bool gguf_experts_exist(struct gguf_reading *r);

/* Has the first layer with experts a tensor of this name, such as "ffn_up_shexp.weight"? */
bool gguf_experts_have(struct gguf_reading *r, const char *name);

/* For files with experts: write their fields; set which layers have them, and refuse settings that
 * the family does not compute. */
void gguf_experts_put(struct gguf_reading *r);
void gguf_experts_set_form(struct gguf_reading *r, struct hf_config *c);

/* Names that depend on the file's tensors. */
void gguf_experts_name_tensors(struct gguf_reading *r, const struct hf_config *c,
                               struct arch_names *names);

/* --- functions of rows ------------------------------------------------------------------------ */

/* gguf_latent.c */
const char *gguf_latent_find_deepseek(struct gguf_reading *r);
void gguf_latent_put(struct gguf_reading *r);
void gguf_latent_put_minicpm3(struct gguf_reading *r);
void gguf_latent_put_index(struct gguf_reading *r);
void gguf_latent_name_tensors(struct gguf_reading *r, const struct hf_config *c,
                              struct arch_names *names);

/* gguf_gemma4.c */
extern const char *const gguf_gemma4_own[];
void gguf_gemma4_put(struct gguf_reading *r);
void gguf_gemma4_name_tensors(struct gguf_reading *r, const struct hf_config *c,
                              struct arch_names *names);
void gguf_gemma4_set_form(struct gguf_reading *r, struct hf_config *c);

/* gguf_families.c */
const char *gguf_family_find_llama(struct gguf_reading *r);
const char *gguf_family_find_olmo(struct gguf_reading *r);
const char *gguf_family_find_granite_swa(struct gguf_reading *r);
void gguf_family_put_afmoe(struct gguf_reading *r);
void gguf_family_put_gemma2(struct gguf_reading *r);
void gguf_family_put_gemma3(struct gguf_reading *r);
void gguf_family_put_granite_swa(struct gguf_reading *r);
void gguf_family_put_muse(struct gguf_reading *r);
void gguf_family_set_glm4(struct gguf_reading *r, struct hf_config *c);
void gguf_family_set_gpt_oss(struct gguf_reading *r, struct hf_config *c);
void gguf_family_set_mellum(struct gguf_reading *r, struct hf_config *c);
void gguf_family_set_minicpm(struct gguf_reading *r, struct hf_config *c);

/* gguf_states.c */
extern const char *const gguf_states_own[], *const gguf_states_own_all[];
void gguf_states_put_delta(struct gguf_reading *r);
void gguf_states_put_kimi(struct gguf_reading *r);
void gguf_states_put_nemotron(struct gguf_reading *r);
void gguf_states_put_granite(struct gguf_reading *r);
void gguf_states_put_falcon(struct gguf_reading *r);
void gguf_states_put_lfm2(struct gguf_reading *r);
void gguf_states_name_delta(struct gguf_reading *r, const struct hf_config *c,
                            struct arch_names *names);
void gguf_states_name_kimi(struct gguf_reading *r, const struct hf_config *c,
                           struct arch_names *names);
void gguf_states_name_nemotron(struct gguf_reading *r, const struct hf_config *c,
                               struct arch_names *names);
void gguf_states_name_mamba(struct gguf_reading *r, const struct hf_config *c,
                            struct arch_names *names);
void gguf_states_name_lfm2(struct gguf_reading *r, const struct hf_config *c,
                           struct arch_names *names);
void gguf_states_set_delta(struct gguf_reading *r, struct hf_config *c);
void gguf_states_set_form(struct gguf_reading *r, struct hf_config *c);

#endif
