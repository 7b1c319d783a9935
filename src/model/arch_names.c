/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of tensors as Hugging Face writes them, one table per family of checkpoints.
 *
 * %d is replaced by the layer's number. The parts that most families share are macros, so that a
 * table shows only how its family differs. Bias names are derived (".bias" in place of ".weight"),
 * and a name that is missing here is a tensor that the family does not have. */
#include "model/arch_names.h"

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

const struct arch_names llama_names = {LLAMA_ALL,
                                       LLAMA_NORMS,
                                       LLAMA_QKV,
                                       LLAMA_QK_NORMS,
                                       LLAMA_O,
                                       LLAMA_FFN,
                                       .mixer_in = LAYER "mixer.in_proj.weight",
                                       .mixer_out = LAYER "mixer.o_proj.weight"};

/* One layer, without a number; fc and the norm of embedded tokens are weights_eagle.c's. */
const struct arch_names eagle3_names = {.embed = "model.embed_tokens.weight",
                                        .norm = "norm.weight",
                                        .head = "lm_head.weight",
                                        .attn = "midlayer.self_attn.weight",
                                        .q = "midlayer.self_attn.q_proj.weight",
                                        .k = "midlayer.self_attn.k_proj.weight",
                                        .v = "midlayer.self_attn.v_proj.weight",
                                        .o = "midlayer.self_attn.o_proj.weight",
                                        .norm_attn = "midlayer.hidden_norm.weight",
                                        .norm_mlp = "midlayer.post_attention_layernorm.weight",
                                        .gate = "midlayer.mlp.gate_proj.weight",
                                        .up = "midlayer.mlp.up_proj.weight",
                                        .down = "midlayer.mlp.down_proj.weight"};

/* This family has no norm before the mixer and the FFN, only after them. */
const struct arch_names olmo2_names = {LLAMA_ALL,
                                       LLAMA_QKV,
                                       LLAMA_QK_NORMS,
                                       LLAMA_O,
                                       LLAMA_FFN,
                                       .norm_attn_after = LAYER "post_attention_layernorm.weight",
                                       .norm_mlp_after = LAYER "post_feedforward_layernorm.weight"};

const struct arch_names gemma3_names = {LLAMA_ALL,
                                        LLAMA_QKV,
                                        LLAMA_QK_NORMS,
                                        LLAMA_O,
                                        LLAMA_FFN,
                                        .norm_attn = LAYER "input_layernorm.weight",
                                        .norm_attn_after = LAYER "post_attention_layernorm.weight",
                                        .norm_mlp = LAYER "pre_feedforward_layernorm.weight",
                                        .norm_mlp_after =
                                            LAYER "post_feedforward_layernorm.weight"};

/* The FFN beside the experts has the names of a dense one. */
const struct arch_names gemma4_names = {
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

const struct arch_names apertus_names = {LLAMA_ALL,
                                         LLAMA_QKV,
                                         LLAMA_QK_NORMS,
                                         LLAMA_O,
                                         LLAMA_FFN,
                                         .norm_attn = LAYER "attention_layernorm.weight",
                                         .norm_mlp = LAYER "feedforward_layernorm.weight"};

/* q, k and v are one tensor here, and so are gate and up. */
const struct arch_names phi3_names = {LLAMA_ALL,
                                      LLAMA_NORMS,
                                      LLAMA_O,
                                      .qkv = LAYER "self_attn.qkv_proj.weight",
                                      .gate_up = LAYER "mlp.gate_up_proj.weight",
                                      .down = LAYER "mlp.down_proj.weight"};

const struct arch_names glm_names = {LLAMA_ALL,
                                     LLAMA_NORMS,
                                     LLAMA_QKV,
                                     LLAMA_O,
                                     .norm_attn_after = LAYER "post_self_attn_layernorm.weight",
                                     .norm_mlp_after = LAYER "post_mlp_layernorm.weight",
                                     .gate_up = LAYER "mlp.gate_up_proj.weight",
                                     .down = LAYER "mlp.down_proj.weight"};

/* A layer is parallel: the mixer and the FFN read the same norm of the residual. */
const struct arch_names cohere_names = {LLAMA_ALL, LLAMA_QKV, LLAMA_O, LLAMA_FFN,
                                        .norm_attn = LAYER "input_layernorm.weight"};

const struct arch_names phi_names = {LLAMA_QKV,
                                     .embed = "model.embed_tokens.weight",
                                     .norm = "model.final_layernorm.weight",
                                     .head = "lm_head.weight",
                                     .attn = LAYER "self_attn.weight",
                                     .o = LAYER "self_attn.dense.weight",
                                     .norm_attn = LAYER "input_layernorm.weight",
                                     .up = LAYER "mlp.fc1.weight",
                                     .down = LAYER "mlp.fc2.weight"};

const struct arch_names starcoder2_names = {LLAMA_ALL,
                                            LLAMA_NORMS,
                                            LLAMA_QKV,
                                            LLAMA_O,
                                            .up = LAYER "mlp.c_fc.weight",
                                            .down = LAYER "mlp.c_proj.weight"};

/* Most files have "transformer." or nothing in place of "model."; loader_name() puts in the prefix
 * that was found. */
const struct arch_names gpt2_names = {.embed = "model.wte.weight",
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

const struct arch_names gpt_neox_names = {
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
const struct arch_names opt_names = {.embed = "model.decoder.embed_tokens.weight",
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

const struct arch_names mixtral_names = {LLAMA_ALL, LLAMA_NORMS, LLAMA_QKV, LLAMA_O,
                                         MIXTRAL_EXPERTS};
const struct arch_names qwen_moe_names = {LLAMA_ALL,
                                          LLAMA_NORMS,
                                          LLAMA_QKV,
                                          LLAMA_QK_NORMS,
                                          LLAMA_O,
                                          LLAMA_FFN,
                                          QWEN_EXPERTS,
                                          SHARED_EXPERTS("shared_expert"),
                                          .shared_switch = LAYER "mlp.shared_expert_gate.weight"};
#define DELTA "linear_attn."
#define DELTA_PARTS                                                                  \
    .state_conv = LAYER DELTA "conv1d.weight", .state_a_log = LAYER DELTA "A_log",   \
    .state_dt_bias = LAYER DELTA "dt_bias", .state_norm = LAYER DELTA "norm.weight", \
    .state_out = LAYER DELTA "out_proj.weight"
#define QWEN_SHARED \
    SHARED_EXPERTS("shared_expert"), .shared_switch = LAYER "mlp.shared_expert_gate.weight"
const struct arch_names qwen3_next_names = {LLAMA_ALL,
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
const struct arch_names qwen3_5_names = {LLAMA_ALL,
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
const struct arch_names glm4_moe_names = {LLAMA_ALL,
                                          LLAMA_NORMS,
                                          LLAMA_QKV,
                                          LLAMA_QK_NORMS,
                                          LLAMA_O,
                                          LLAMA_FFN,
                                          QWEN_EXPERTS,
                                          SHARED_EXPERTS("shared_experts"),
                                          .router_bias = LAYER "mlp.gate.e_score_correction_bias"};
#define LATENT_PARTS                                                                              \
    .q = LAYER "self_attn.q_proj.weight", .q_a = LAYER "self_attn.q_a_proj.weight",               \
    .norm_q_a = LAYER "self_attn.q_a_layernorm.weight", .q_b = LAYER "self_attn.q_b_proj.weight", \
    .kv_a = LAYER "self_attn.kv_a_proj_with_mqa.weight",                                          \
    .norm_kv_a = LAYER "self_attn.kv_a_layernorm.weight",                                         \
    .kv_b = LAYER "self_attn.kv_b_proj.weight"
const struct arch_names deepseek_names = {
    LLAMA_ALL,    LLAMA_NORMS,
    LLAMA_O,      LLAMA_FFN,
    QWEN_EXPERTS, SHARED_EXPERTS("shared_experts"),
    LATENT_PARTS, .router_bias = LAYER "mlp.gate.e_score_correction_bias"};
const struct arch_names deepseek_v32_names = {
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
const struct arch_names kimi_linear_names = {
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
/* Norms of layers with attention have OLMo 2's names. */
const struct arch_names olmo_hybrid_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_QK_NORMS,
    LLAMA_O,
    LLAMA_FFN,
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight",
    .norm_attn_or = LAYER "attention_layer_norm.weight",
    .norm_middle_or = LAYER "feedforward_layer_norm.weight",
    .delta_q = LAYER DELTA "q_proj.weight",
    .delta_k = LAYER DELTA "k_proj.weight",
    .delta_v = LAYER DELTA "v_proj.weight",
    .delta_z = LAYER DELTA "g_proj.weight",
    .delta_b = LAYER DELTA "b_proj.weight",
    .delta_a = LAYER DELTA "a_proj.weight",
    .q_conv = LAYER DELTA "q_conv1d.weight",
    .k_conv = LAYER DELTA "k_conv1d.weight",
    .v_conv = LAYER DELTA "v_conv1d.weight",
    .state_conv = LAYER DELTA "conv1d.weight",
    .state_a_log = LAYER DELTA "A_log",
    .state_dt_bias = LAYER DELTA "dt_bias",
    .state_norm = LAYER DELTA "o_norm.weight",
    .state_out = LAYER DELTA "o_proj.weight"};
const struct arch_names minimax_m2_names = {LLAMA_ALL,
                                            LLAMA_NORMS,
                                            LLAMA_QKV,
                                            LLAMA_O,
                                            LLAMA_QK_NORMS,
                                            MIXTRAL_EXPERTS,
                                            .router_bias =
                                                LAYER "block_sparse_moe.e_score_correction_bias"};
const struct arch_names ernie4_5_moe_names = {LLAMA_ALL,
                                              LLAMA_NORMS,
                                              LLAMA_QKV,
                                              LLAMA_O,
                                              LLAMA_FFN,
                                              QWEN_EXPERTS,
                                              SHARED_EXPERTS("shared_experts"),
                                              .router_bias =
                                                  LAYER "mlp.moe_statics.e_score_correction_bias"};
const struct arch_names hunyuan_moe_names = {
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
const struct arch_names llama4_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_O,
    .gate = LAYER "feed_forward.gate_proj.weight",
    .up = LAYER "feed_forward.up_proj.weight",
    .down = LAYER "feed_forward.down_proj.weight",
    .router = LAYER "feed_forward.router.weight",
    EXPERTS_NAMED("feed_forward.", "gate_proj", "up_proj", "down_proj"),
    .experts_gate_up = LAYER "feed_forward.experts.gate_up_proj",
    .experts_down = LAYER "feed_forward.experts.down_proj",
    .experts_are_turned = true,
    .shared_gate = LAYER "feed_forward.shared_expert.gate_proj.weight",
    .shared_up = LAYER "feed_forward.shared_expert.up_proj.weight",
    .shared_down = LAYER "feed_forward.shared_expert.down_proj.weight"};
/* Gates and ups of all experts apart. */
const struct arch_names step_names = {LLAMA_ALL,
                                      LLAMA_NORMS,
                                      LLAMA_QKV,
                                      LLAMA_QK_NORMS,
                                      LLAMA_O,
                                      LLAMA_FFN,
                                      .attn_gate = LAYER "self_attn.g_proj.weight",
                                      .router = LAYER "moe.gate.weight",
                                      .router_bias = LAYER "moe.router_bias",
                                      .experts_gate = LAYER "moe.gate_proj.weight",
                                      .experts_up = LAYER "moe.up_proj.weight",
                                      .experts_down = LAYER "moe.down_proj.weight",
                                      .shared_gate = LAYER "share_expert.gate_proj.weight",
                                      .shared_up = LAYER "share_expert.up_proj.weight",
                                      .shared_down = LAYER "share_expert.down_proj.weight"};
const struct arch_names mimo_v2_names = {LLAMA_ALL,
                                         LLAMA_NORMS,
                                         LLAMA_QKV,
                                         LLAMA_O,
                                         LLAMA_FFN,
                                         QWEN_EXPERTS,
                                         .sinks = LAYER "self_attn.attention_sink_bias",
                                         .router_bias = LAYER "mlp.gate.e_score_correction_bias"};
const struct arch_names laguna_names = {LLAMA_ALL,
                                        LLAMA_NORMS,
                                        LLAMA_QKV,
                                        LLAMA_QK_NORMS,
                                        LLAMA_O,
                                        LLAMA_FFN,
                                        QWEN_EXPERTS,
                                        SHARED_EXPERTS("shared_expert"),
                                        .attn_gate = LAYER "self_attn.g_proj.weight",
                                        .router_bias = LAYER "mlp.experts.e_score_correction_bias"};
const struct arch_names granite_moe_names = {
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

/* The FFN of models without experts, or the one that all tokens use beside them. */
const struct arch_names granite_hybrid_names = {
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
const struct arch_names falcon_h1_names = {.embed = "model.embed_tokens.weight",
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
const struct arch_names nemotron_h_names = {
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

const struct arch_names lfm2_names = {.embed = "model.embed_tokens.weight",
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

const struct arch_names gpt_oss_names = {LLAMA_ALL,
                                         LLAMA_NORMS,
                                         LLAMA_QKV,
                                         LLAMA_O,
                                         .sinks = LAYER "self_attn.sinks",
                                         .router = LAYER "mlp.router.weight",
                                         .router_bias = LAYER "mlp.router.bias",
                                         .experts_gate_up = LAYER "mlp.experts.gate_up_proj",
                                         .experts_down = LAYER "mlp.experts.down_proj",
                                         .experts_are_mixed = true};

/* --- families that differ from the ones above in a few names ---------------------------------- */

const struct arch_names afmoe_names = {LLAMA_ALL,
                                       LLAMA_QKV,
                                       LLAMA_QK_NORMS,
                                       LLAMA_O,
                                       LLAMA_FFN,
                                       EXPERTS_NAMED("mlp.", "gate_proj", "up_proj", "down_proj"),
                                       SHARED_EXPERTS("shared_experts"),
                                       .attn_gate = LAYER "self_attn.gate_proj.weight",
                                       .norm_attn = LAYER "input_layernorm.weight",
                                       .norm_attn_after = LAYER "post_attention_layernorm.weight",
                                       .norm_mlp = LAYER "pre_mlp_layernorm.weight",
                                       .norm_mlp_after = LAYER "post_mlp_layernorm.weight",
                                       .router = LAYER "mlp.router.gate.weight",
                                       .router_bias = LAYER "mlp.expert_bias",
                                       .experts_gate_up = LAYER "mlp.experts.gate_up_proj",
                                       .experts_down = LAYER "mlp.experts.down_proj"};

const struct arch_names muse_glimmer_names = {
    LLAMA_ALL,
    LLAMA_QKV,
    LLAMA_O,
    LLAMA_FFN,
    .attn_gate = LAYER "self_attn.gate_proj.weight",
    .norm_attn = LAYER "input_layernorm.weight",
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp = LAYER "pre_feedforward_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight"};

const struct arch_names vaultgemma_names = {LLAMA_ALL,
                                            LLAMA_QKV,
                                            LLAMA_O,
                                            LLAMA_FFN,
                                            .norm_attn = LAYER "input_layernorm.weight",
                                            .norm_mlp = LAYER "pre_feedforward_layernorm.weight"};

const struct arch_names hunyuan_dense_names = {LLAMA_ALL,
                                               LLAMA_NORMS,
                                               LLAMA_QKV,
                                               LLAMA_O,
                                               LLAMA_FFN,
                                               .q_norm = LAYER "self_attn.query_layernorm.weight",
                                               .k_norm = LAYER "self_attn.key_layernorm.weight"};

const struct arch_names granite_swa_names = {
    LLAMA_ALL, LLAMA_NORMS, LLAMA_QKV, LLAMA_O, LLAMA_FFN, .sinks = LAYER "self_attn.sinks"};

const struct arch_names granite_moe_swa_names = {
    LLAMA_ALL,
    LLAMA_NORMS,
    LLAMA_QKV,
    LLAMA_O,
    .sinks = LAYER "self_attn.sinks",
    .router = LAYER "block_sparse_moe.router.weight",
    .experts_gate_up = LAYER "block_sparse_moe.experts.gate_up_proj",
    .experts_down = LAYER "block_sparse_moe.experts.down_proj"};

const struct arch_names flex_olmo_names = {
    LLAMA_ALL,
    LLAMA_QKV,
    LLAMA_QK_NORMS,
    LLAMA_O,
    QWEN_EXPERTS,
    .norm_attn_after = LAYER "post_attention_layernorm.weight",
    .norm_mlp_after = LAYER "post_feedforward_layernorm.weight"};

const struct arch_names exaone_moe_names = {LLAMA_ALL,
                                            LLAMA_NORMS,
                                            LLAMA_QKV,
                                            LLAMA_QK_NORMS,
                                            LLAMA_O,
                                            LLAMA_FFN,
                                            QWEN_EXPERTS,
                                            SHARED_EXPERTS("shared_experts"),
                                            .router_bias = LAYER "mlp.e_score_correction_bias"};

const struct arch_names hy3_names = {LLAMA_ALL,
                                     LLAMA_NORMS,
                                     LLAMA_QKV,
                                     LLAMA_QK_NORMS,
                                     LLAMA_O,
                                     LLAMA_FFN,
                                     EXPERTS_NAMED("mlp.", "gate_proj", "up_proj", "down_proj"),
                                     SHARED_EXPERTS("shared_mlp"),
                                     .router = LAYER "mlp.router.gate.weight",
                                     .router_bias = LAYER "mlp.expert_bias",
                                     .experts_gate_up = LAYER "mlp.experts.gate_up_proj",
                                     .experts_down = LAYER "mlp.experts.down_proj"};

const struct arch_names internlm2_names = {.embed = "model.tok_embeddings.weight",
                                           .norm = "model.norm.weight",
                                           .head = "output.weight",
                                           .attn = LAYER "attention.weight",
                                           .qkv = LAYER "attention.wqkv.weight",
                                           .o = LAYER "attention.wo.weight",
                                           .norm_attn = LAYER "attention_norm.weight",
                                           .norm_mlp = LAYER "ffn_norm.weight",
                                           .gate = LAYER "feed_forward.w1.weight",
                                           .up = LAYER "feed_forward.w3.weight",
                                           .down = LAYER "feed_forward.w2.weight"};

const struct arch_names qwen3_vl_moe_names = {
    LLAMA_ALL, LLAMA_NORMS, LLAMA_QKV,    LLAMA_QK_NORMS,
    LLAMA_O,   LLAMA_FFN,   QWEN_EXPERTS, .experts_are_turned = true};

const struct arch_names sarvam_moe_names = {LLAMA_NORMS,
                                            LLAMA_FFN,
                                            QWEN_EXPERTS,
                                            SHARED_EXPERTS("shared_experts"),
                                            .embed = "model.word_embeddings.weight",
                                            .norm = "model.norm.weight",
                                            .head = "lm_head.weight",
                                            .attn = LAYER "attention.weight",
                                            .qkv = LAYER "attention.query_key_value.weight",
                                            .q_norm = LAYER "attention.query_layernorm.weight",
                                            .k_norm = LAYER "attention.key_layernorm.weight",
                                            .o = LAYER "attention.dense.weight",
                                            .router_bias = LAYER "mlp.gate.expert_bias"};

/* MTP layers. DeepSeek's have copies of the embedding and of the output matrix, which are not
 * read. */
const struct mtp_names qwen_mtp_names = {.prefix = "mtp.",
                                         .fc = "mtp.fc.weight",
                                         .norm_embed = "mtp.pre_fc_norm_embedding.weight",
                                         .norm_hidden = "mtp.pre_fc_norm_hidden.weight",
                                         .norm = "model.norm.weight"};
const struct mtp_names deepseek_mtp_names = {.fc = LAYER "eh_proj.weight",
                                             .norm_embed = LAYER "enorm.weight",
                                             .norm_hidden = LAYER "hnorm.weight",
                                             .norm = LAYER "shared_head.norm.weight"};
