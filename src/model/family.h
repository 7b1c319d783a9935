/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json that one family has and others do not: the functions that rows of arch.c
 * name as `read`. Each is called after the common fields are read, with the text model's JSON
 * object, and changes the config. Errors are logged and kept in s. */
#ifndef QUIRE_MODEL_FAMILY_H
#define QUIRE_MODEL_FAMILY_H

#include "model/config_source.h"

void family_cohere(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_cohere2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_deepseek_v2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_deepseek_v3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_eagle3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_exaone4(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma4(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma4_unified(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_glm(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_deepseek_v32(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_glm_moe_dsa(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_glm4_moe_lite(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gpt2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gpt_neox(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_kimi_linear(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_mistral4(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_granite(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_olmo3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_opt(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_phi(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_seed_oss(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_smollm3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_stablelm(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_starcoder2(struct hf_config *c, struct config_source *s, const struct json *obj);

void family_apertus(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_cwm(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_ernie4_5(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_granite_swa(struct hf_config *c, struct config_source *s, const struct json *obj);
/* The sinks and the theta of each layer of Granite with windows. */
void family_granite_layers(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_helium(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_hunyuan_dense(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_internlm2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_internlm3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_iquestcoder(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_jais2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_muse_glimmer(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_olmo(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_minicpm(struct hf_config *c, struct config_source *s, const struct json *obj);

/* family_latent.c: families with latent attention */
void family_minicpm3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_sarvam_mla(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_youtu(struct hf_config *c, struct config_source *s, const struct json *obj);

/* family_delta.c: layers of Gated DeltaNet */
void family_qwen3_next(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_olmo_hybrid(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_qwen3_5(struct hf_config *c, struct config_source *s, const struct json *obj);
/* Layers of Kimi Delta Attention and of attention, and their heads. */
void family_kimi_layers(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_qwen3_5_moe(struct hf_config *c, struct config_source *s, const struct json *obj);

/* family_mamba.c: layers of Mamba-2, and of short convolutions */
void family_nemotron_h(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_granite_hybrid(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_falcon_h1(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_bamba(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_lfm2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_lfm2_moe(struct hf_config *c, struct config_source *s, const struct json *obj);

/* family_gates.c: a gate for each head, and heads that differ from layer to layer */
void family_step3p5(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_mimo_v2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_laguna(struct hf_config *c, struct config_source *s, const struct json *obj);

/* family_experts.c: mixtures of experts */
void family_mimo_experts(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_step_experts(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_laguna_experts(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_nemotron_h_experts(struct hf_config *c, struct config_source *s,
                               const struct json *obj);
void family_lfm2_experts(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_mixtral(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_qwen2_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_qwen_delta_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_qwen3_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_olmoe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_granite_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_glm4_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_minimax_m2(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_ernie4_5_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gemma4_experts(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_hunyuan_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_gpt_oss(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_phimoe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_afmoe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_dots1(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_exaone_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_granite_moe_swa(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_hy3(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_llama4(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_mellum(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_sarvam_moe(struct hf_config *c, struct config_source *s, const struct json *obj);
void family_solar_open(struct hf_config *c, struct config_source *s, const struct json *obj);
/* mlp_layer_types, if it is there, has "dense" or "sparse" for each layer. */
void family_layer_types(struct hf_config *c, struct config_source *s, const struct json *obj);
/* Hunyuan's positions: theta is raised once by alpha, although the file calls them dynamic. */
void family_read_alpha(struct hf_config *c, struct config_source *s, const struct json *obj);

/* Defaults for experts with the fields of DeepSeek: in groups, beside shared ones, after dense
 * layers. n_used or n_shared 0: the field is required. */
struct grouped_experts {
    int ff_dim, n_used, n_shared, n_dense, n_groups, n_groups_used;
    double scale;
    bool is_sigmoid; /* with a bias of the choice; else a softmax without one */
};
void family_grouped_experts(struct hf_config *c, struct config_source *s, const struct json *obj,
                            const struct grouped_experts *presets);

#endif
