/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of tensor names that rows of arch.c refer to (struct arch_names in hf_config.h). They
 * are constants. */
#ifndef QUIRE_MODEL_ARCH_NAMES_H
#define QUIRE_MODEL_ARCH_NAMES_H

#include "model/hf_config.h"

extern const struct arch_names llama_names;
extern const struct arch_names eagle3_names;
extern const struct arch_names olmo2_names;
extern const struct arch_names gemma3_names;
extern const struct arch_names gemma4_names;
extern const struct arch_names phi3_names;
extern const struct arch_names step_names;
extern const struct arch_names mimo_v2_names;
extern const struct arch_names laguna_names;
extern const struct arch_names llama4_names;
extern const struct arch_names apertus_names;
extern const struct arch_names glm_names;
extern const struct arch_names cohere_names;
extern const struct arch_names phi_names;
extern const struct arch_names starcoder2_names;
extern const struct arch_names gpt2_names;
extern const struct arch_names gpt_neox_names;
extern const struct arch_names opt_names;
extern const struct arch_names mixtral_names;
extern const struct arch_names qwen_moe_names;
extern const struct arch_names qwen3_next_names;
extern const struct arch_names qwen3_5_names;
extern const struct arch_names glm4_moe_names;
extern const struct arch_names deepseek_names;
extern const struct arch_names deepseek_v32_names;
extern const struct arch_names kimi_linear_names;
extern const struct arch_names olmo_hybrid_names;
extern const struct arch_names minimax_m2_names;
extern const struct arch_names ernie4_5_moe_names;
extern const struct arch_names hunyuan_moe_names;
extern const struct arch_names granite_moe_names;
extern const struct arch_names granite_hybrid_names;
extern const struct arch_names falcon_h1_names;
extern const struct arch_names nemotron_h_names;
extern const struct arch_names lfm2_names;
extern const struct arch_names gpt_oss_names;
extern const struct arch_names afmoe_names;
extern const struct arch_names muse_glimmer_names;
extern const struct arch_names vaultgemma_names;
extern const struct arch_names hunyuan_dense_names;
extern const struct arch_names granite_swa_names;
extern const struct arch_names granite_moe_swa_names;
extern const struct arch_names exaone_moe_names;
extern const struct arch_names flex_olmo_names;
extern const struct arch_names hy3_names;
extern const struct arch_names internlm2_names;
extern const struct arch_names qwen3_vl_moe_names;
extern const struct arch_names sarvam_moe_names;
extern const struct mtp_names qwen_mtp_names;
extern const struct mtp_names deepseek_mtp_names;

#endif
