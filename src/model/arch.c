/* SPDX-License-Identifier: Apache-2.0
 *
 * The supported architectures: one row each in arch_table, and one table of tensor names per family
 * of checkpoints.
 *
 * A row is found by the name in `architectures` of config.json. It holds the differences from
 * Llama: which biases and norms exist, which layers have a window, and the defaults of fields that
 * config.json may omit. An architecture that differs only in fields of struct arch needs a row here
 * and no code; one with fields of its own in config.json also has a function in family.c. */
#include <stdio.h>
#include <string.h>

#include "model/family.h"
#include "model/hf_config.h"

/* --- names of tensors --------------------------------------------------------------------- */

/* Names as Hugging Face writes them; %d is replaced by the layer's number. The parts that most
 * families share are macros, so that a table shows only how its family differs. Bias names are
 * derived (".bias" in place of ".weight"), and a name that is missing here is a tensor that the
 * family does not have. */

#define LAYER "model.layers.%d."
#define LLAMA_ALL                                                                                \
    .embed = "model.embed_tokens.weight", .norm = "model.norm.weight", .head = "lm_head.weight", \
    .attn = LAYER "self_attn.weight"
#define LLAMA_QKV                                                               \
    .q = LAYER "self_attn.q_proj.weight", .k = LAYER "self_attn.k_proj.weight", \
    .v = LAYER "self_attn.v_proj.weight"
#define LLAMA_QK_NORMS \
    .q_norm = LAYER "self_attn.q_norm.weight", .k_norm = LAYER "self_attn.k_norm.weight"
#define LLAMA_O .o = LAYER "self_attn.o_proj.weight"
#define LLAMA_FFN                                                           \
    .gate = LAYER "mlp.gate_proj.weight", .up = LAYER "mlp.up_proj.weight", \
    .down = LAYER "mlp.down_proj.weight"
#define LLAMA_NORMS \
    .norm_attn = LAYER "input_layernorm.weight", .norm_mlp = LAYER "post_attention_layernorm.weight"

static const struct arch_names llama_names = {LLAMA_ALL,
                                              LLAMA_NORMS,
                                              LLAMA_QKV,
                                              LLAMA_QK_NORMS,
                                              LLAMA_O,
                                              LLAMA_FFN,
                                              .mixer_in = LAYER "mixer.in_proj.weight",
                                              .mixer_out = LAYER "mixer.o_proj.weight"};

/* One layer, without a number; fc and the norm of embedded tokens are weights_eagle.c's. */
static const struct arch_names eagle3_names = {.embed = "model.embed_tokens.weight",
                                               .norm = "norm.weight",
                                               .head = "lm_head.weight",
                                               .attn = "midlayer.self_attn.weight",
                                               .q = "midlayer.self_attn.q_proj.weight",
                                               .k = "midlayer.self_attn.k_proj.weight",
                                               .v = "midlayer.self_attn.v_proj.weight",
                                               .o = "midlayer.self_attn.o_proj.weight",
                                               .norm_attn = "midlayer.hidden_norm.weight",
                                               .norm_mlp =
                                                   "midlayer.post_attention_layernorm.weight",
                                               .gate = "midlayer.mlp.gate_proj.weight",
                                               .up = "midlayer.mlp.up_proj.weight",
                                               .down = "midlayer.mlp.down_proj.weight"};

/* This family has no norm before the mixer and the FFN, only after them. */
static const struct arch_names olmo2_names = {
    LLAMA_ALL,
    LLAMA_QKV,
    LLAMA_QK_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight"};

static const struct arch_names gemma3_names = {
    LLAMA_ALL,
    LLAMA_QKV,
    LLAMA_QK_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    .norm_attn = LAYER "input_layernorm.weight",
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp = LAYER "pre_feedforward_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight"};

/* The FFN beside the experts has the names of a dense one. */
static const struct arch_names gemma4_names = {
    LLAMA_ALL,
    LLAMA_QKV,
    LLAMA_QK_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    .norm_attn = LAYER "input_layernorm.weight",
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp = LAYER "pre_feedforward_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight",
    .router = LAYER "router.proj.weight",
    .norm_router = LAYER "router.scale",
    .router_scales = LAYER "router.per_expert_scale",
    .expert_gate = LAYER "experts.%d.gate_proj.weight",
    .expert_up = LAYER "experts.%d.up_proj.weight",
    .expert_down = LAYER "experts.%d.down_proj.weight",
    .experts_gate_up = LAYER "experts.gate_up_proj",
    .experts_down = LAYER "experts.down_proj",
    .shared_gate = LAYER "mlp.gate_proj.weight",
    .shared_up = LAYER "mlp.up_proj.weight",
    .shared_down = LAYER "mlp.down_proj.weight",
    .norm_experts = LAYER "pre_feedforward_layernorm_2.weight",
    .norm_experts_after = LAYER "post_feedforward_layernorm_2.weight",
    .norm_shared_after = LAYER "post_feedforward_layernorm_1.weight",
    .embeds = "model.embed_tokens_per_layer.weight",
    .embeds_in = "model.per_layer_model_projection.weight",
    .norm_embeds = "model.per_layer_projection_norm.weight",
    .embed_gate = LAYER "per_layer_input_gate.weight",
    .embed_out = LAYER "per_layer_projection.weight",
    .norm_embed_after = LAYER "post_per_layer_input_norm.weight",
    .layer_scale = LAYER "layer_scalar"};

/* q, k and v are one tensor here, and so are gate and up. */
static const struct arch_names phi3_names = {LLAMA_ALL,
                                             LLAMA_NORMS,
                                             LLAMA_O,
                                             .qkv = LAYER "self_attn.qkv_proj.weight",
                                             .gate_up = LAYER "mlp.gate_up_proj.weight",
                                             .down = LAYER "mlp.down_proj.weight"};

static const struct arch_names glm_names = {LLAMA_ALL,
                                            LLAMA_NORMS,
                                            LLAMA_QKV,
                                            LLAMA_O,
                                            .norm_attn_after =
                                                LAYER "post_self_attn_layernorm.weight",
                                            .norm_mlp_after = LAYER "post_mlp_layernorm.weight",
                                            .gate_up = LAYER "mlp.gate_up_proj.weight",
                                            .down = LAYER "mlp.down_proj.weight"};

/* A layer is parallel: the mixer and the FFN read the same norm of the residual. */
static const struct arch_names cohere_names = {LLAMA_ALL, LLAMA_QKV, LLAMA_O, LLAMA_FFN,
                                               .norm_attn = LAYER "input_layernorm.weight"};

static const struct arch_names phi_names = {LLAMA_QKV,
                                            .embed = "model.embed_tokens.weight",
                                            .norm = "model.final_layernorm.weight",
                                            .head = "lm_head.weight",
                                            .attn = LAYER "self_attn.weight",
                                            .o = LAYER "self_attn.dense.weight",
                                            .norm_attn = LAYER "input_layernorm.weight",
                                            .up = LAYER "mlp.fc1.weight",
                                            .down = LAYER "mlp.fc2.weight"};

static const struct arch_names starcoder2_names = {LLAMA_ALL,
                                                   LLAMA_NORMS,
                                                   LLAMA_QKV,
                                                   LLAMA_O,
                                                   .up = LAYER "mlp.c_fc.weight",
                                                   .down = LAYER "mlp.c_proj.weight"};

/* Most files have "transformer." or nothing in place of "model."; loader_name() puts in the prefix
 * that was found. */
static const struct arch_names gpt2_names = {.embed = "model.wte.weight",
                                             .positions = "model.wpe.weight",
                                             .norm = "model.ln_f.weight",
                                             .head = "lm_head.weight",
                                             .norm_attn = "model.h.%d.ln_1.weight",
                                             .norm_mlp = "model.h.%d.ln_2.weight",
                                             .attn = "model.h.%d.attn.weight",
                                             .qkv = "model.h.%d.attn.c_attn.weight",
                                             .o = "model.h.%d.attn.c_proj.weight",
                                             .up = "model.h.%d.mlp.c_fc.weight",
                                             .down = "model.h.%d.mlp.c_proj.weight"};

static const struct arch_names gpt_neox_names = {
    .embed = "gpt_neox.embed_in.weight",
    .norm = "gpt_neox.final_layer_norm.weight",
    .head = "embed_out.weight",
    .norm_attn = "gpt_neox.layers.%d.input_layernorm.weight",
    .norm_mlp = "gpt_neox.layers.%d.post_attention_layernorm.weight",
    .attn = "gpt_neox.layers.%d.attention.weight",
    .qkv = "gpt_neox.layers.%d.attention.query_key_value.weight",
    .o = "gpt_neox.layers.%d.attention.dense.weight",
    .up = "gpt_neox.layers.%d.mlp.dense_h_to_4h.weight",
    .down = "gpt_neox.layers.%d.mlp.dense_4h_to_h.weight"};

#define OPT_LAYER "model.decoder.layers.%d."
static const struct arch_names opt_names = {.embed = "model.decoder.embed_tokens.weight",
                                            .positions = "model.decoder.embed_positions.weight",
                                            .norm = "model.decoder.final_layer_norm.weight",
                                            .head = "lm_head.weight",
                                            .norm_attn = OPT_LAYER "self_attn_layer_norm.weight",
                                            .norm_mlp = OPT_LAYER "final_layer_norm.weight",
                                            .attn = OPT_LAYER "self_attn.weight",
                                            .q = OPT_LAYER "self_attn.q_proj.weight",
                                            .k = OPT_LAYER "self_attn.k_proj.weight",
                                            .v = OPT_LAYER "self_attn.v_proj.weight",
                                            .o = OPT_LAYER "self_attn.out_proj.weight",
                                            .up = OPT_LAYER "fc1.weight",
                                            .down = OPT_LAYER "fc2.weight"};

/* Mixtures of experts. Names of tensors with all experts of a layer, which transformers writes by
 * itself, are the same for all families that name their experts "experts". */
#define EXPERTS_OF(mlp)                                                                     \
    .router = LAYER mlp "gate.weight", .experts_gate_up = LAYER mlp "experts.gate_up_proj", \
    .experts_down = LAYER mlp "experts.down_proj"
#define EXPERTS_NAMED(mlp, gate_name, up_name, down_name)       \
    .expert_gate = LAYER mlp "experts.%d." gate_name ".weight", \
    .expert_up = LAYER mlp "experts.%d." up_name ".weight",     \
    .expert_down = LAYER mlp "experts.%d." down_name ".weight"
#define QWEN_EXPERTS EXPERTS_OF("mlp."), EXPERTS_NAMED("mlp.", "gate_proj", "up_proj", "down_proj")
#define MIXTRAL_EXPERTS \
    EXPERTS_OF("block_sparse_moe."), EXPERTS_NAMED("block_sparse_moe.", "w1", "w3", "w2")
#define SHARED_EXPERTS(name)                              \
    .shared_gate = LAYER "mlp." name ".gate_proj.weight", \
    .shared_up = LAYER "mlp." name ".up_proj.weight",     \
    .shared_down = LAYER "mlp." name ".down_proj.weight"

static const struct arch_names mixtral_names = {LLAMA_ALL, LLAMA_NORMS, LLAMA_QKV, LLAMA_O,
                                                MIXTRAL_EXPERTS};
static const struct arch_names qwen_moe_names = {LLAMA_ALL,
                                                 LLAMA_NORMS,
                                                 LLAMA_QKV,
                                                 LLAMA_QK_NORMS,
                                                 LLAMA_O,
                                                 LLAMA_FFN,
                                                 QWEN_EXPERTS,
                                                 SHARED_EXPERTS("shared_expert"),
                                                 .shared_switch =
                                                     LAYER "mlp.shared_expert_gate.weight"};
#define DELTA "linear_attn."
#define DELTA_PARTS                                                                  \
    .state_conv = LAYER DELTA "conv1d.weight", .state_a_log = LAYER DELTA "A_log",   \
    .state_dt_bias = LAYER DELTA "dt_bias", .state_norm = LAYER DELTA "norm.weight", \
    .state_out = LAYER DELTA "out_proj.weight"
#define QWEN_SHARED \
    SHARED_EXPERTS("shared_expert"), .shared_switch = LAYER "mlp.shared_expert_gate.weight"
static const struct arch_names qwen3_next_names = {LLAMA_ALL,
                                                   LLAMA_NORMS,
                                                   LLAMA_QKV,
                                                   LLAMA_QK_NORMS,
                                                   LLAMA_O,
                                                   LLAMA_FFN,
                                                   QWEN_EXPERTS,
                                                   QWEN_SHARED,
                                                   DELTA_PARTS,
                                                   .delta_qkvz = LAYER DELTA "in_proj_qkvz.weight",
                                                   .delta_ba = LAYER DELTA "in_proj_ba.weight"};
static const struct arch_names qwen3_5_names = {LLAMA_ALL,
                                                LLAMA_NORMS,
                                                LLAMA_QKV,
                                                LLAMA_QK_NORMS,
                                                LLAMA_O,
                                                LLAMA_FFN,
                                                QWEN_EXPERTS,
                                                QWEN_SHARED,
                                                DELTA_PARTS,
                                                .delta_qkv = LAYER DELTA "in_proj_qkv.weight",
                                                .delta_z = LAYER DELTA "in_proj_z.weight",
                                                .delta_b = LAYER DELTA "in_proj_b.weight",
                                                .delta_a = LAYER DELTA "in_proj_a.weight"};
static const struct arch_names glm4_moe_names = {LLAMA_ALL,
                                                 LLAMA_NORMS,
                                                 LLAMA_QKV,
                                                 LLAMA_QK_NORMS,
                                                 LLAMA_O,
                                                 LLAMA_FFN,
                                                 QWEN_EXPERTS,
                                                 SHARED_EXPERTS("shared_experts"),
                                                 .router_bias =
                                                     LAYER "mlp.gate.e_score_correction_bias"};
#define LATENT_PARTS                                                                              \
    .q = LAYER "self_attn.q_proj.weight", .q_a = LAYER "self_attn.q_a_proj.weight",               \
    .norm_q_a = LAYER "self_attn.q_a_layernorm.weight", .q_b = LAYER "self_attn.q_b_proj.weight", \
    .kv_a = LAYER "self_attn.kv_a_proj_with_mqa.weight",                                          \
    .norm_kv_a = LAYER "self_attn.kv_a_layernorm.weight",                                         \
    .kv_b = LAYER "self_attn.kv_b_proj.weight"
static const struct arch_names deepseek_names = {
    LLAMA_ALL,    LLAMA_NORMS,
    LLAMA_O,      LLAMA_FFN,
    QWEN_EXPERTS, SHARED_EXPERTS("shared_experts"),
    LATENT_PARTS, .router_bias = LAYER "mlp.gate.e_score_correction_bias"};
static const struct arch_names deepseek_v32_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    QWEN_EXPERTS,
    SHARED_EXPERTS("shared_experts"),
    LATENT_PARTS,
    .router_bias = LAYER "mlp.gate.e_score_correction_bias",
    .index_q = LAYER "self_attn.indexer.wq_b.weight",
    .index_k = LAYER "self_attn.indexer.wk.weight",
    .index_norm = LAYER "self_attn.indexer.k_norm.weight",
    .index_weights = LAYER "self_attn.indexer.weights_proj.weight"};
static const struct arch_names kimi_linear_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    MIXTRAL_EXPERTS,
    LATENT_PARTS,
    .router_bias = LAYER "block_sparse_moe.gate.e_score_correction_bias",
    .shared_gate = LAYER "block_sparse_moe.shared_experts.gate_proj.weight",
    .shared_up = LAYER "block_sparse_moe.shared_experts.up_proj.weight",
    .shared_down = LAYER "block_sparse_moe.shared_experts.down_proj.weight",
    .delta_q = LAYER "self_attn.q_proj.weight",
    .delta_k = LAYER "self_attn.k_proj.weight",
    .delta_v = LAYER "self_attn.v_proj.weight",
    .q_conv = LAYER "self_attn.q_conv1d.weight",
    .k_conv = LAYER "self_attn.k_conv1d.weight",
    .v_conv = LAYER "self_attn.v_conv1d.weight",
    .delta_b = LAYER "self_attn.b_proj.weight",
    .delta_f_a = LAYER "self_attn.f_a_proj.weight",
    .delta_f_b = LAYER "self_attn.f_b_proj.weight",
    .delta_g_a = LAYER "self_attn.g_a_proj.weight",
    .delta_g_b = LAYER "self_attn.g_b_proj.weight",
    .state_a_log = LAYER "self_attn.A_log",
    .state_dt_bias = LAYER "self_attn.dt_bias",
    .state_norm = LAYER "self_attn.o_norm.weight",
    .state_out = LAYER "self_attn.o_proj.weight"};
static const struct arch_names minimax_m2_names = {LLAMA_ALL,
                                                   LLAMA_NORMS,
                                                   LLAMA_QKV,
                                                   LLAMA_O,
                                                   LLAMA_QK_NORMS,
                                                   MIXTRAL_EXPERTS,
                                                   .router_bias = LAYER
                                                   "block_sparse_moe.e_score_correction_bias"};
static const struct arch_names ernie4_5_moe_names = {LLAMA_ALL,
                                                     LLAMA_NORMS,
                                                     LLAMA_QKV,
                                                     LLAMA_O,
                                                     LLAMA_FFN,
                                                     QWEN_EXPERTS,
                                                     SHARED_EXPERTS("shared_experts"),
                                                     .router_bias = LAYER
                                                     "mlp.moe_statics.e_score_correction_bias"};
static const struct arch_names hunyuan_moe_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_O,
    .q_norm = LAYER "self_attn.query_layernorm.weight",
    .k_norm = LAYER "self_attn.key_layernorm.weight",
    .router = LAYER "mlp.gate.wg.weight",
    EXPERTS_NAMED("mlp.", "gate_proj", "up_proj", "down_proj"),
    .experts_gate_up = LAYER "mlp.experts.gate_up_proj",
    .experts_down = LAYER "mlp.experts.down_proj",
    SHARED_EXPERTS("shared_mlp")};
static const struct arch_names granite_moe_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_O,
    .router = LAYER "block_sparse_moe.router.layer.weight",
    .experts_gate_up = LAYER "block_sparse_moe.input_linear.weight",
    .experts_down = LAYER "block_sparse_moe.output_linear.weight",
    .shared_gate_up = LAYER "shared_mlp.input_linear.weight",
    .shared_down = LAYER "shared_mlp.output_linear.weight"};

#define STATES_OF(mixer)                                                                 \
    .state_in = LAYER mixer "in_proj.weight", .state_conv = LAYER mixer "conv1d.weight", \
    .state_conv_bias = LAYER mixer "conv1d.bias", .state_a_log = LAYER mixer "A_log",    \
    .state_dt_bias = LAYER mixer "dt_bias", .state_skip = LAYER mixer "D",               \
    .state_norm = LAYER mixer "norm.weight", .state_out = LAYER mixer "out_proj.weight"

/* The FFN of models without experts, or what all tokens use besides. */
static const struct arch_names granite_hybrid_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_O,
    STATES_OF("mamba."),
    .gate_up = LAYER "shared_mlp.input_linear.weight",
    .down = LAYER "shared_mlp.output_linear.weight",
    .router = LAYER "block_sparse_moe.router.layer.weight",
    .experts_gate_up = LAYER "block_sparse_moe.input_linear.weight",
    .experts_down = LAYER "block_sparse_moe.output_linear.weight",
    .shared_gate_up = LAYER "shared_mlp.input_linear.weight",
    .shared_down = LAYER "shared_mlp.output_linear.weight"};

#define FORWARD_FFN                                                                           \
    .gate = LAYER "feed_forward.gate_proj.weight", .up = LAYER "feed_forward.up_proj.weight", \
    .down = LAYER "feed_forward.down_proj.weight"
static const struct arch_names falcon_h1_names = {.embed = "model.embed_tokens.weight",
                                                  .norm = "model.final_layernorm.weight",
                                                  .head = "lm_head.weight",
                                                  .attn = LAYER "self_attn.weight",
                                                  LLAMA_QKV,
                                                  LLAMA_O,
                                                  STATES_OF("mamba."),
                                                  FORWARD_FFN,
                                                  .norm_attn = LAYER "input_layernorm.weight",
                                                  .norm_mlp = LAYER "pre_ff_layernorm.weight"};

/* A layer has one mixer, and one norm before it. */
static const struct arch_names nemotron_h_names = {
    .embed = "model.embeddings.weight",
    .norm = "model.norm_f.weight",
    .head = "lm_head.weight",
    .attn = LAYER "mixer.weight",
    .norm_attn = LAYER "norm.weight",
    .norm_mlp = LAYER "norm.weight",
    .q = LAYER "mixer.q_proj.weight",
    .k = LAYER "mixer.k_proj.weight",
    .v = LAYER "mixer.v_proj.weight",
    .o = LAYER "mixer.o_proj.weight",
    STATES_OF("mixer."),
    .up = LAYER "mixer.up_proj.weight",
    .down = LAYER "mixer.down_proj.weight",
    .router = LAYER "mixer.gate.weight",
    .router_bias = LAYER "mixer.gate.e_score_correction_bias",
    .expert_up = LAYER "mixer.experts.%d.up_proj.weight",
    .expert_down = LAYER "mixer.experts.%d.down_proj.weight",
    .latent_in = LAYER "mixer.fc1_latent_proj.weight",
    .latent_out = LAYER "mixer.fc2_latent_proj.weight",
    .shared_up = LAYER "mixer.shared_experts.up_proj.weight",
    .shared_down = LAYER "mixer.shared_experts.down_proj.weight"};

static const struct arch_names lfm2_names = {.embed = "model.embed_tokens.weight",
                                             .norm = "model.embedding_norm.weight",
                                             .head = "lm_head.weight",
                                             .attn = LAYER "self_attn.weight",
                                             .norm_attn = LAYER "operator_norm.weight",
                                             .norm_mlp = LAYER "ffn_norm.weight",
                                             LLAMA_QKV,
                                             .q_norm = LAYER "self_attn.q_layernorm.weight",
                                             .k_norm = LAYER "self_attn.k_layernorm.weight",
                                             .o = LAYER "self_attn.out_proj.weight",
                                             .state_in = LAYER "conv.in_proj.weight",
                                             .state_conv = LAYER "conv.conv.weight",
                                             .state_conv_bias = LAYER "conv.conv.bias",
                                             .state_out = LAYER "conv.out_proj.weight",
                                             .gate = LAYER "feed_forward.w1.weight",
                                             .up = LAYER "feed_forward.w3.weight",
                                             .down = LAYER "feed_forward.w2.weight",
                                             .router_bias = LAYER "feed_forward.expert_bias",
                                             EXPERTS_OF("feed_forward."),
                                             EXPERTS_NAMED("feed_forward.", "w1", "w3", "w2")};

static const struct arch_names gpt_oss_names = {LLAMA_ALL,
                                                LLAMA_NORMS,
                                                LLAMA_QKV,
                                                LLAMA_O,
                                                .sinks = LAYER "self_attn.sinks",
                                                .router = LAYER "mlp.router.weight",
                                                .router_bias = LAYER "mlp.router.bias",
                                                .experts_gate_up = LAYER "mlp.experts.gate_up_proj",
                                                .experts_down = LAYER "mlp.experts.down_proj",
                                                .experts_are_mixed = true};

/* --- architectures ------------------------------------------------------------------------ */

/* Fields that are absent are 0, false or NULL, and that is Llama's choice. hf_config.h explains
 * each. */

#define LAYER_NORM                             \
    {                                          \
        .kind = K_NORM_LAYER, .has_bias = true \
    }

#define GEMMA4                                                                             \
    .any_activation = true, .activation = "gelu_pytorch_tanh", .is_tied = true,            \
    .has_two_shapes = true, .head_dim = 256, .rotary_part = 1.0, .qk_norm = QK_NORM_HEADS, \
    .norms = NORMS_BOTH, .window = ARCH_WINDOW_TYPES, .window_pattern = 6, .names = &gemma4_names

/* Gated DeltaNet in three of four layers, and attention with gates in the fourth. */
#define QWEN_DELTA                                                                              \
    .qk_norm = QK_NORM_HEADS, .head_dim = 256, .rotary_part = 0.25, .norm = {.plus_one = true}, \
    .has_mtp = true

/* Latent attention, whose rope family_latent.c adds, and experts. */
#define LATENT                                                                       \
    .has_two_shapes = true, .head_dim = 64, .rotary_part = 1.0, .interleaved = true, \
    .names = &deepseek_names

static const struct arch arch_table[] = {
    {.name = "LlamaForCausalLM", .reads_bias_switches = true, .names = &llama_names},
    /* Mistral: all layers have the window, if the file sets one. */
    {.name = "MistralForCausalLM", .window = ARCH_WINDOW_ALL, .names = &llama_names},
    {.name = "Ministral3ForCausalLM", .window = ARCH_WINDOW_ALL, .names = &llama_names},
    {.name = "Mistral3ForConditionalGeneration",
     .window = ARCH_WINDOW_ALL,
     .is_wrapped = true,
     .names = &llama_names},
    /* Qwen 2: biases of q, k and v although the file has no switch for them. */
    {.name = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
    /* Vision models: only the text model is run, whose fields are in text_config. */
    {.name = "Qwen2VLForConditionalGeneration",
     .qkv_bias = true,
     .is_wrapped = true,
     .names = &llama_names},
    {.name = "Qwen2_5_VLForConditionalGeneration",
     .qkv_bias = true,
     .is_wrapped = true,
     .names = &llama_names},
    /* Qwen 3 norms each head of queries and keys instead of adding biases. */
    {.name = "Qwen3ForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_HEADS,
     .head_dim = 128,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
    {.name = "Qwen3VLForConditionalGeneration",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_HEADS,
     .head_dim = 128,
     .theta = 500000.0,
     .is_wrapped = true,
     .names = &llama_names},
    /* Cohere: parallel layers with one norm, layer norms without bias, interleaved rope. */
    {.name = "CohereForCausalLM",
     .reads_bias_switches = true,
     .is_parallel = true,
     .is_tied = true,
     .interleaved = true,
     .norm = {.kind = K_NORM_LAYER},
     .read = family_cohere,
     .names = &cohere_names},
    {.name = "Cohere2ForCausalLM",
     .reads_bias_switches = true,
     .is_parallel = true,
     .is_tied = true,
     .interleaved = true,
     .norm = {.kind = K_NORM_LAYER},
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 4,
     .window_preset = 4096,
     .read = family_cohere2,
     .names = &cohere_names},
    /* EXAONE 4: norms only after mixer and FFN, as in OLMo 2. */
    {.name = "Exaone4ForCausalLM",
     .qk_norm = QK_NORM_HEADS,
     .norms = NORMS_AFTER,
     .norm = {.eps = 1e-5f},
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 4,
     .window_preset = 4096,
     .read = family_exaone4,
     .names = &olmo2_names},
    /* Gemma: weights of norms are stored minus one, and embeddings are tied and scaled. */
    {.name = "GemmaForCausalLM",
     .any_activation = true,
     .activation = "gelu_pytorch_tanh",
     .is_tied = true,
     .head_dim = 256,
     .norm = {.plus_one = true},
     .read = family_gemma,
     .names = &llama_names},
    /* Gemma 2: norms on both sides, a cap of scores, and every second layer sees all tokens. */
    {.name = "Gemma2ForCausalLM",
     .any_activation = true,
     .activation = "gelu_pytorch_tanh",
     .is_tied = true,
     .head_dim = 256,
     .norms = NORMS_BOTH,
     .norm = {.plus_one = true},
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 2,
     .window_preset = 4096,
     .read = family_gemma2,
     .names = &gemma3_names},
    /* Gemma 3: norms on both sides, and every sixth layer sees all tokens. */
    {.name = "Gemma3ForCausalLM",
     .any_activation = true,
     .activation = "gelu_pytorch_tanh",
     .is_tied = true,
     .head_dim = 256,
     .theta = 1e6,
     .qk_norm = QK_NORM_HEADS,
     .norms = NORMS_BOTH,
     .norm = {.plus_one = true},
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 6,
     .window_preset = 4096,
     .read = family_gemma3,
     .names = &gemma3_names},
    {.name = "Gemma3ForConditionalGeneration",
     .any_activation = true,
     .activation = "gelu_pytorch_tanh",
     .is_tied = true,
     .is_wrapped = true,
     .head_dim = 256,
     .theta = 1e6,
     .qk_norm = QK_NORM_HEADS,
     .norms = NORMS_BOTH,
     .norm = {.plus_one = true},
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 6,
     .window_preset = 4096,
     .read = family_gemma3,
     .names = &gemma3_names},
    /* Gemma 4: weights of norms as they are, other heads in layers that see all tokens; a dense FFN
     * beside experts, or embeddings for each layer. */
    {.name = "Gemma4ForCausalLM", GEMMA4, .window_preset = 512, .read = family_gemma4},
    {.name = "Gemma4ForConditionalGeneration",
     GEMMA4,
     .is_wrapped = true,
     .window_preset = 512,
     .read = family_gemma4},
    {.name = "Gemma4UnifiedForCausalLM",
     GEMMA4,
     .window_preset = 1024,
     .read = family_gemma4_unified},
    {.name = "Gemma4UnifiedForConditionalGeneration",
     GEMMA4,
     .is_wrapped = true,
     .window_preset = 1024,
     .read = family_gemma4_unified},
    /* GLM: half of each head rotates, in neighbouring pairs. */
    {.name = "GlmForCausalLM",
     .head_dim = 128,
     .rotary_part = 0.5,
     .interleaved = true,
     .read = family_glm,
     .names = &glm_names},
    {.name = "Glm4ForCausalLM",
     .norms = NORMS_BOTH,
     .head_dim = 128,
     .rotary_part = 0.5,
     .interleaved = true,
     .read = family_glm,
     .names = &glm_names},
    /* GPT-2: learned positions; matrices are stored transposed (Conv1D). */
    {.name = "GPT2LMHeadModel",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .any_activation = true,
     .activation = "gelu_new",
     .is_tied = true,
     .is_turned = true,
     .ffn = FFN_PLAIN,
     .norm = LAYER_NORM,
     .read = family_gpt2,
     .names = &gpt2_names},
    /* GPT-NeoX, Pythia: q, k, v of each head in turn in one tensor. */
    {.name = "GPTNeoXForCausalLM",
     .mlp_bias = true,
     .any_activation = true,
     .activation = "gelu",
     .ffn = FFN_PLAIN,
     .norm = LAYER_NORM,
     .fused = ARCH_BY_HEAD,
     .rotary_part = 0.25,
     .read = family_gpt_neox,
     .names = &gpt_neox_names},
    {.name = "GraniteForCausalLM",
     .reads_bias_switches = true,
     .read = family_granite,
     .names = &llama_names},
    /* Nemotron: squared ReLU without a gate; layer norms stored minus one. */
    {.name = "NemotronForCausalLM",
     .reads_bias_switches = true,
     .any_activation = true,
     .activation = "relu2",
     .ffn = FFN_PLAIN,
     .norm = {.kind = K_NORM_LAYER, .has_bias = true, .plus_one = true},
     .rotary_part = 0.5,
     .names = &llama_names},
    /* OLMo 2: one norm over all heads of queries, and one over those of keys. */
    {.name = "Olmo2ForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_WHOLE,
     .norms = NORMS_AFTER,
     .norm = {.eps = 1e-5f},
     .theta = 500000.0,
     .names = &olmo2_names},
    {.name = "Olmo3ForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_WHOLE,
     .norms = NORMS_AFTER,
     .norm = {.eps = 1e-5f},
     .theta = 500000.0,
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 4,
     .window_preset = 4096,
     .read = family_olmo3,
     .names = &olmo2_names},
    {.name = "OPTForCausalLM",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .any_activation = true,
     .activation = "relu",
     .is_tied = true,
     .ffn = FFN_PLAIN,
     .norm = LAYER_NORM,
     .read = family_opt,
     .names = &opt_names},
    /* Phi 1 and 2: parallel layers, biases everywhere, even of the logits. */
    {.name = "PhiForCausalLM",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .head_bias = true,
     .any_activation = true,
     .activation = "gelu_new",
     .is_parallel = true,
     .ffn = FFN_PLAIN,
     .norm = LAYER_NORM,
     .rotary_part = 0.5,
     .read = family_phi,
     .names = &phi_names},
    /* Phi 3 and 4: as Llama, with fused q, k, v and fused gate and up. */
    {.name = "Phi3ForCausalLM",
     .norm = {.eps = 1e-5f},
     .rotary_part = 1.0,
     .window = ARCH_WINDOW_TYPES,
     .names = &phi3_names},
    /* Mixtures of experts. */
    {.name = "MixtralForCausalLM",
     .norm = {.eps = 1e-5f},
     .theta = 1e6,
     .window = ARCH_WINDOW_TYPES,
     .read = family_mixtral,
     .names = &mixtral_names},
    {.name = "Qwen2MoeForCausalLM",
     .qkv_bias = true,
     .window = ARCH_WINDOW_LAYERS,
     .read = family_qwen2_moe,
     .names = &qwen_moe_names},
    {.name = "Qwen3MoeForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_HEADS,
     .head_dim = 128,
     .read = family_qwen3_moe,
     .names = &qwen_moe_names},
    {.name = "Qwen3NextForCausalLM",
     QWEN_DELTA,
     .read = family_qwen3_next,
     .names = &qwen3_next_names},
    {.name = "Qwen3_5ForCausalLM", QWEN_DELTA, .read = family_qwen3_5, .names = &qwen3_5_names},
    {.name = "Qwen3_5ForConditionalGeneration",
     QWEN_DELTA,
     .is_wrapped = true,
     .read = family_qwen3_5,
     .names = &qwen3_5_names},
    {.name = "Qwen3_5MoeForCausalLM",
     QWEN_DELTA,
     .read = family_qwen3_5_moe,
     .names = &qwen3_5_names},
    {.name = "Qwen3_5MoeForConditionalGeneration",
     QWEN_DELTA,
     .is_wrapped = true,
     .read = family_qwen3_5_moe,
     .names = &qwen3_5_names},
    /* Mamba-2 among layers of attention, or beside attention. */
    {.name = "NemotronHForCausalLM",
     .reads_bias_switches = true,
     .any_activation = true,
     .activation = "relu2",
     .ffn = FFN_PLAIN,
     .norm = {.eps = 1e-5f},
     .head_dim = 128,
     .read = family_nemotron_h,
     .names = &nemotron_h_names},
    {.name = "GraniteMoeHybridForCausalLM",
     .reads_bias_switches = true,
     .read = family_granite_hybrid,
     .names = &granite_hybrid_names},
    {.name = "FalconH1ForCausalLM",
     .norm = {.eps = 1e-5f},
     .read = family_falcon_h1,
     .names = &falcon_h1_names},
    {.name = "BambaForCausalLM",
     .norm = {.eps = 1e-5f},
     .rotary_part = 0.5,
     .read = family_bamba,
     .names = &falcon_h1_names},
    /* Short convolutions among layers of attention. */
    {.name = "Lfm2ForCausalLM",
     .is_tied = true,
     .norm = {.eps = 1e-5f},
     .qk_norm = QK_NORM_HEADS,
     .theta = 1e6,
     .read = family_lfm2,
     .names = &lfm2_names},
    {.name = "Lfm2MoeForCausalLM",
     .is_tied = true,
     .norm = {.eps = 1e-5f},
     .qk_norm = QK_NORM_HEADS,
     .theta = 1e6,
     .read = family_lfm2_moe,
     .names = &lfm2_names},
    {.name = "OlmoeForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = QK_NORM_WHOLE,
     .norm = {.eps = 1e-5f},
     .read = family_olmoe,
     .names = &qwen_moe_names},
    {.name = "GraniteMoeForCausalLM",
     .reads_bias_switches = true,
     .read = family_granite_moe,
     .names = &granite_moe_names},
    {.name = "GraniteMoeSharedForCausalLM",
     .reads_bias_switches = true,
     .read = family_granite_moe,
     .names = &granite_moe_names},
    /* GLM 4.5 to 4.7: half of a head rotates, but not in neighbouring pairs. */
    {.name = "Glm4MoeForCausalLM",
     .norm = {.eps = 1e-5f},
     .rotary_part = 0.5,
     .read = family_glm4_moe,
     .names = &glm4_moe_names},
    {.name = "DeepseekV2ForCausalLM", LATENT, .read = family_deepseek_v2},
    {.name = "DeepseekV3ForCausalLM", LATENT, .read = family_deepseek_v3},
    {.name = "KimiK2ForCausalLM", LATENT, .read = family_deepseek_v3},
    {.name = "KimiK25ForConditionalGeneration",
     LATENT,
     .is_wrapped = true,
     .read = family_deepseek_v3},
    {.name = "Kimi_K25ForConditionalGeneration", /* as transformers writes it */
     LATENT,
     .is_wrapped = true,
     .read = family_deepseek_v3},
    {.name = "Glm4MoeLiteForCausalLM",
     LATENT,
     .norm = {.eps = 1e-5f},
     .read = family_glm4_moe_lite},
    /* An index chooses the tokens that latent attention sees. */
    {.name = "DeepseekV32ForCausalLM",
     .has_two_shapes = true,
     .head_dim = 64,
     .rotary_part = 1.0,
     .interleaved = true,
     .read = family_deepseek_v32,
     .names = &deepseek_v32_names},
    {.name = "GlmMoeDsaForCausalLM",
     .has_two_shapes = true,
     .head_dim = 64,
     .rotary_part = 1.0,
     .interleaved = true,
     .norm = {.eps = 1e-5f},
     .read = family_glm_moe_dsa,
     .names = &deepseek_v32_names},
    {.name = "KimiLinearForCausalLM",
     .has_two_shapes = true,
     .head_dim = 64,
     .norm = {.eps = 1e-5f},
     .read = family_kimi_linear,
     .names = &kimi_linear_names},
    {.name = "Mistral4ForCausalLM", LATENT, .read = family_mistral4},
    {.name = "MiniMaxM2ForCausalLM",
     .qk_norm = QK_NORM_WHOLE,
     .head_dim = 128,
     .rotary_part = 1.0,
     .theta = 5e6,
     .read = family_minimax_m2,
     .names = &minimax_m2_names},
    {.name = "Ernie4_5_MoeForCausalLM",
     .is_tied = true,
     .interleaved = true,
     .norm = {.eps = 1e-5f},
     .theta = 500000.0,
     .read = family_ernie4_5_moe,
     .names = &ernie4_5_moe_names},
    {.name = "HunYuanMoEV1ForCausalLM",
     .reads_bias_switches = true,
     .norm = {.eps = 1e-5f},
     .read = family_hunyuan_moe,
     .names = &hunyuan_moe_names},
    /* gpt-oss: sinks, windows in every second layer, biases everywhere. */
    {.name = "GptOssForCausalLM",
     .norm = {.eps = 1e-5f},
     .head_dim = 64,
     .theta = 150000.0,
     .window = ARCH_WINDOW_TYPES,
     .window_pattern = 2,
     .window_preset = 128,
     .read = family_gpt_oss,
     .names = &gpt_oss_names},
    {.name = "PhimoeForCausalLM",
     .norm = {.kind = K_NORM_LAYER, .has_bias = true},
     .theta = 1e6,
     .window = ARCH_WINDOW_TYPES,
     .read = family_phimoe,
     .names = &mixtral_names},
    {.name = "PhiMoEForCausalLM", /* as the released files write it */
     .norm = {.kind = K_NORM_LAYER, .has_bias = true},
     .theta = 1e6,
     .window = ARCH_WINDOW_TYPES,
     .read = family_phimoe,
     .names = &mixtral_names},
    {.name = "SeedOssForCausalLM", .head_dim = 128, .read = family_seed_oss, .names = &llama_names},
    {.name = "SmolLM3ForCausalLM",
     .reads_bias_switches = true,
     .is_tied = true,
     .theta = 2e6,
     .read = family_smollm3,
     .names = &llama_names},
    {.name = "StableLmForCausalLM",
     .norm = LAYER_NORM,
     .rotary_part = 0.25,
     .read = family_stablelm,
     .names = &llama_names},
    {.name = "Starcoder2ForCausalLM",
     .any_activation = true,
     .activation = "gelu_pytorch_tanh",
     .is_tied = true,
     .ffn = FFN_PLAIN,
     .norm = LAYER_NORM,
     .window = ARCH_WINDOW_TYPES,
     .read = family_starcoder2,
     .names = &starcoder2_names},
    /* The only architecture with recurrent layers; for tests. */
    {.name = "ToyRecurrentForCausalLM",
     .reads_bias_switches = true,
     .recurrent = true,
     .any_activation = true,
     .is_toy = true,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
    /* EAGLE-3 heads. */
    {.name = "LlamaForCausalLMEagle3",
     .reads_bias_switches = true,
     .is_drafter = true,
     .read = family_eagle3,
     .names = &eagle3_names},
    {.name = "Eagle3LlamaForCausalLM",
     .reads_bias_switches = true,
     .is_drafter = true,
     .read = family_eagle3,
     .names = &eagle3_names},
};

/* Linear: the table has some thirty rows and is searched once per start. */
const struct arch *arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof arch_table / sizeof arch_table[0]; i++) {
        if (strcmp(arch_table[i].name, name) == 0)
            return &arch_table[i];
    }
    return NULL;
}

const struct arch *arch_of_text(const struct arch *arch, const char *model_type)
{
    if (strcmp(arch->name, "Mistral3ForConditionalGeneration") == 0 &&
        strcmp(model_type, "mistral4") == 0)
        return arch_find("Mistral4ForCausalLM");
    return arch;
}

/* Toys exist for tests only: they are the last rows, and are not named. */
const char *arch_name(size_t i)
{
    if (i >= sizeof arch_table / sizeof arch_table[0] || arch_table[i].is_toy ||
        arch_table[i].is_drafter)
        return NULL;
    return arch_table[i].name;
}
