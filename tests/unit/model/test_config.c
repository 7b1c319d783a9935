/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json: both spellings, defaults, what is refused and how. */
#include <math.h>
#include <unistd.h>

#include "base/log.h"
#include "model/config_source.h"
#include "model/hf_config.h"
#include "tests/tap.h"

#define SHAPE                                                               \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8," \
    "\"intermediate_size\":128,\"vocab_size\":320,\"max_position_embeddings\":512"
#define LLAMA "\"architectures\":[\"LlamaForCausalLM\"]," SHAPE
#define QWEN2 "\"architectures\":[\"Qwen2ForCausalLM\"]," SHAPE
#define PHI3  "\"architectures\":[\"Phi3ForCausalLM\"]," SHAPE

#define GEMMA4                                                                            \
    "\"architectures\":[\"Gemma4ForCausalLM\"]," SHAPE ",\"head_dim\":8,"                 \
    "\"num_key_value_heads\":4,\"global_head_dim\":16,\"hidden_size_per_layer_input\":0," \
    "\"sliding_window\":40,\"layer_types\":[\"sliding_attention\",\"full_attention\"]"

#define QWEN3_5                                                                              \
    "\"architectures\":[\"Qwen3_5ForCausalLM\"],\"head_dim\":16,\"linear_num_key_heads\":2," \
    "\"linear_num_value_heads\":4," SHAPE

static struct hf_config c;

static int parse(const char *text, const char *generation)
{
    return hf_config_parse(&c, "config.json", text, strlen(text), generation,
                           generation == NULL ? 0 : strlen(generation));
}

#define QUANT(members) ",\"quantization_config\":{" members "}"
#define FP8            "\"quant_method\":\"fp8\""
#define CT             "\"quant_method\":\"compressed-tensors\""
#define BLOCKS         "\"strategy\":\"block\",\"block_structure\":[128,128]"
#define GROUP(weights)                                 \
    ",\"config_groups\":{\"g\":{\"weights\":{" weights \
    "},\"input_activations\":{\"num_bits\":8,\"strategy\":\"token\"}}}"

#define LATENT                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":8,"         \
    "\"vocab_size\":320,\"max_position_embeddings\":512,\"intermediate_size\":128," \
    "\"n_routed_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24"
#define DEEPSEEK \
    "\"architectures\":[\"DeepseekV3ForCausalLM\"],\"n_group\":1,\"topk_group\":1," LATENT

#define V32  "\"architectures\":[\"DeepseekV32ForCausalLM\"],\"n_group\":1,\"topk_group\":1," LATENT
#define GLM5 "\"architectures\":[\"GlmMoeDsaForCausalLM\"]," LATENT

/* The names of released files. */
#define KIMI                                                                              \
    "\"architectures\":[\"KimiLinearForCausalLM\"],\"head_dim\":72,\"hidden_size\":2304," \
    "\"first_k_dense_replace\":1,\"intermediate_size\":9216,\"kv_lora_rank\":512,"        \
    "\"model_max_length\":1048576,\"moe_intermediate_size\":1024,\"moe_layer_freq\":1,"   \
    "\"moe_renormalize\":true,\"moe_router_activation_func\":\"sigmoid\","                \
    "\"num_attention_heads\":32,\"num_expert_group\":1,\"num_experts\":256,"              \
    "\"num_experts_per_token\":8,\"num_hidden_layers\":5,\"num_key_value_heads\":32,"     \
    "\"num_shared_experts\":1,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,"             \
    "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-05,\"routed_scaling_factor\":2.446,"     \
    "\"topk_group\":1,\"v_head_dim\":128,\"vocab_size\":163840"
#define KIMI_LAYERS(kda)                                                                      \
    ",\"linear_attn_config\":{\"full_attn_layers\":[4],\"head_dim\":128,\"kda_layers\":[" kda \
    "],\"num_heads\":32,\"short_conv_kernel_size\":4}"

static const struct {
    const char *what, *text;
    int rc;
} refused[] = {
    {"not JSON", "{", ERR_SYNTAX},
    {"a list", "[]", ERR_SYNTAX},
    {"no architecture", "{}", ERR_INVALID},
    {"another architecture", "{\"architectures\":[\"FooForCausalLM\"]}", ERR_UNSUPPORTED},
    {"no sizes", "{\"architectures\":[\"LlamaForCausalLM\"]}", ERR_INVALID},
    {"a size of 0", "{" LLAMA ",\"hidden_size\":0}", ERR_INVALID},
    {"a negative size", "{" LLAMA ",\"vocab_size\":-1}", ERR_INVALID},
    {"a huge size", "{" LLAMA ",\"num_hidden_layers\":100000000000}", ERR_INVALID},
    {"a broken size", "{" LLAMA ",\"hidden_size\":64.5}", ERR_INVALID},
    {"a text for a size", "{" LLAMA ",\"hidden_size\":\"64\"}", ERR_INVALID},
    {"uneven groups", "{" LLAMA ",\"num_key_value_heads\":3}", ERR_INVALID},
    {"an odd head", "{" LLAMA ",\"head_dim\":7}", ERR_INVALID},
    {"a head too large", "{" LLAMA ",\"head_dim\":514}", ERR_INVALID},
    {"another activation", "{" LLAMA ",\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED},
    {"a number as activation", "{" LLAMA ",\"hidden_act\":1}", ERR_INVALID},
    {"a text as positions", "{" LLAMA ",\"rope_parameters\":\"x\"}", ERR_INVALID},
    {"a list as positions", "{" LLAMA ",\"rope_scaling\":[1]}", ERR_INVALID},
    {"a number as scaling", "{" LLAMA ",\"rope_parameters\":{\"rope_type\":7}}", ERR_INVALID},
    {"a number as scaling of old", "{" LLAMA ",\"rope_scaling\":{\"type\":7}}", ERR_INVALID},
    {"a number as positions of a kind", "{" LLAMA ",\"rope_parameters\":{\"full_attention\":7}}",
     ERR_INVALID},
    {"a text as mscale",
     "{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":\"x\"}}",
     ERR_INVALID},
    {"a number as layers", "{" LLAMA ",\"layer_types\":7}", ERR_INVALID},
    {"quantised in no known way", "{" LLAMA QUANT("") "}", ERR_UNSUPPORTED},
    {"another quant_method", "{" LLAMA QUANT("\"quant_method\":\"exl3\"") "}", ERR_UNSUPPORTED},
    {"blocks of 64", "{" LLAMA QUANT(FP8 ",\"weight_block_size\":[64,128]") "}", ERR_UNSUPPORTED},
    {"e5m2", "{" LLAMA QUANT(FP8 ",\"fmt\":\"e5m2\"") "}", ERR_UNSUPPORTED},
    {"no groups", "{" LLAMA QUANT(CT) "}", ERR_UNSUPPORTED},
    {"sparse words", "{" LLAMA QUANT(CT ",\"format\":\"marlin-24\"") "}", ERR_UNSUPPORTED},
    {"int8", "{" LLAMA QUANT(CT GROUP("\"num_bits\":8,\"type\":\"int\"")) "}", ERR_UNSUPPORTED},
    {"4 bits", "{" LLAMA QUANT(CT GROUP("\"num_bits\":4")) "}", ERR_UNSUPPORTED},
    {"heads of weights", "{" LLAMA QUANT(CT GROUP("\"num_bits\":8,\"strategy\":\"head\"")) "}",
     ERR_UNSUPPORTED},
    {"inputs alone",
     "{" LLAMA QUANT(CT ",\"config_groups\":{\"g\":{\"input_activations\":{\"num_bits\":8}}}") "}",
     ERR_UNSUPPORTED},
    {"a transform",
     "{" LLAMA QUANT(CT GROUP("\"num_bits\":8") ",\"transform_config\":{\"a\":1}") "}",
     ERR_UNSUPPORTED},
    {"another rope", "{" LLAMA ",\"rope_scaling\":{\"type\":\"foo\",\"factor\":2}}",
     ERR_UNSUPPORTED},
    {"queries that shrink with the position",
     "{" LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
     "\"original_max_position_embeddings\":64,\"llama_4_scaling_beta\":-0.1}}",
     ERR_INVALID},
    {"queries that grow in no steps",
     "{" LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,"
     "\"llama_4_scaling_beta\":0.1}}",
     ERR_INVALID},
    {"a part of a head where the family has none", "{" LLAMA ",\"partial_rotary_factor\":0.5}",
     ERR_UNSUPPORTED},
    {"a part above 1", "{" PHI3 ",\"partial_rotary_factor\":1.5}", ERR_INVALID},
    {"a part of nothing", "{" PHI3 ",\"partial_rotary_factor\":0.1}", ERR_INVALID},
    {"too few factors",
     "{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],"
     "\"long_factor\":[1,1]}}",
     ERR_INVALID},
    {"a parallel StableLm",
     "{" LLAMA ",\"architectures\":[\"StableLmForCausalLM\"],\"use_parallel_residual\":true}",
     ERR_UNSUPPORTED},
    {"positions of too many kinds",
     "{" SHAPE ",\"architectures\":[\"GraniteSWAForCausalLM\"],\"num_hidden_layers\":4,"
     "\"layer_rope_theta\":[1,2,3,0]}",
     ERR_UNSUPPORTED},
    {"a theta below 0",
     "{" SHAPE ",\"architectures\":[\"GraniteSWAForCausalLM\"],\"layer_rope_theta\":[1,-2]}",
     ERR_INVALID},
    {"a theta too few",
     "{" SHAPE ",\"architectures\":[\"GraniteSWAForCausalLM\"],\"layer_rope_theta\":[1]}",
     ERR_INVALID},
    {"clipped keys", "{" SHAPE ",\"architectures\":[\"IQuestCoderForCausalLM\"],\"clip_qkv\":8}",
     ERR_UNSUPPORTED},
    {"no positions for Cwm", "{" SHAPE ",\"architectures\":[\"CwmForCausalLM\"]}", ERR_INVALID},
    {"a layer neither dense nor sparse",
     "{" SHAPE ",\"architectures\":[\"HYV3ForCausalLM\"],\"num_experts\":4,"
     "\"num_experts_per_tok\":2,\"mlp_layer_types\":[\"dense\",\"wide\"]}",
     ERR_INVALID},
    {"a cap of scores",
     "{" LLAMA ",\"architectures\":[\"Gemma3ForCausalLM\"],\"attn_logit_softcapping\":50}",
     ERR_UNSUPPORTED},
    {"a rope without its factor", "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}",
     ERR_INVALID},
    {"a factor of 0", "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}",
     ERR_INVALID},
    {"a window of 0", "{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":0}", ERR_INVALID},
    {"too few layer_types", "{" QWEN2 ",\"layer_types\":[\"full_attention\"]}", ERR_INVALID},
    {"a window without its size",
     "{" QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", ERR_INVALID},
    {"another mixer", "{" QWEN2 ",\"layer_types\":[\"full_attention\",\"recurrent\"]}",
     ERR_UNSUPPORTED},
    {"Qwen3.5: an unknown type of layer",
     "{" QWEN3_5 ",\"layer_types\":[\"linear_attention\",\"sliding_attention\"]}", ERR_UNSUPPORTED},
    {"a type too few", "{" QWEN3_5 ",\"layer_types\":[\"linear_attention\"]}", ERR_INVALID},
    {"full layers at no interval", "{" QWEN3_5 ",\"full_attention_interval\":0}", ERR_INVALID},
    {"value heads between key heads", "{" QWEN3_5 ",\"linear_num_key_heads\":3}", ERR_INVALID},
    {"wide key heads", "{" QWEN3_5 ",\"linear_key_head_dim\":256}", ERR_INVALID},
    {"long convolutions", "{" QWEN3_5 ",\"linear_conv_kernel_dim\":5}", ERR_INVALID},
    {"Kimi-Linear: a layer of no kind", "{" KIMI KIMI_LAYERS("1,2,3") "}", ERR_INVALID},
    {"a layer of two kinds", "{" KIMI KIMI_LAYERS("1,2,3,4") "}", ERR_INVALID},
    {"a layer behind the last", "{" KIMI KIMI_LAYERS("1,2,3,6") "}", ERR_INVALID},
    {"positions", "{" KIMI ",\"mla_use_nope\":false}", ERR_UNSUPPORTED},
    {"DeepSeek V3.2: one product for queries", "{" V32 ",\"q_lora_rank\":null}", ERR_UNSUPPORTED},
    {"index heads narrower than the rope", "{" V32 ",\"index_head_dim\":62}", ERR_INVALID},
    {"odd ones", "{" V32 ",\"index_head_dim\":127}", ERR_INVALID},
    {"no tokens to see", "{" V32 ",\"index_topk\":0}", ERR_INVALID},
    {"GLM-5: a first layer that shares", "{" GLM5 ",\"index_topk_pattern\":\"SFF\"}", ERR_INVALID},
    {"too few types of index", "{" GLM5 ",\"indexer_types\":[\"full\",\"full\"]}", ERR_INVALID},
    {"an unknown type", "{" GLM5 ",\"indexer_types\":[\"full\",\"half\",\"full\"]}", ERR_INVALID},
    {"no gates", "{" QWEN3_5 ",\"attn_output_gate\":false}", ERR_UNSUPPORTED},
    {"biases beside gates", "{" QWEN3_5 ",\"attention_bias\":true}", ERR_UNSUPPORTED},
    {"Gemma 4: all layers share keys", "{" GEMMA4 ",\"num_kv_shared_layers\":2}", ERR_INVALID},
    {"more than there are", "{" GEMMA4 ",\"num_kv_shared_layers\":2000000000}", ERR_INVALID},
    {"less than none", "{" GEMMA4 ",\"num_kv_shared_layers\":-1}", ERR_INVALID},
    {"no layer of the kind that shares", "{" GEMMA4 ",\"num_kv_shared_layers\":1}", ERR_INVALID},
    {"heads of nothing", "{" GEMMA4 ",\"global_head_dim\":0}", ERR_INVALID},
    {"heads of 1024", "{" GEMMA4 ",\"global_head_dim\":1024}", ERR_INVALID},
    {"an odd head of full layers", "{" GEMMA4 ",\"global_head_dim\":9}", ERR_INVALID},
    {"uneven groups of full layers",
     "{" GEMMA4 ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":3}", ERR_INVALID},
    {"an unknown type of layer",
     "{" GEMMA4 ",\"layer_types\":[\"chunked_attention\",\"full_attention\"]}", ERR_UNSUPPORTED},
    {"a window in the last layer",
     "{" GEMMA4 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", ERR_INVALID},
    {"windows of no size", "{" GEMMA4 ",\"sliding_window\":null}", ERR_INVALID},
    {"heads of a layer with a window", "{" GEMMA4 ",\"per_layer_config\":{\"0\":{},\"1\":{}}}",
     ERR_UNSUPPORTED},
    {"no heads of a full layer", "{" GEMMA4 ",\"per_layer_config\":{}}", ERR_UNSUPPORTED},
    {"one rope for two sizes", "{" GEMMA4 ",\"rope_parameters\":{\"rope_type\":\"default\"}}",
     ERR_INVALID},
    {"embeddings of a huge width", "{" GEMMA4 ",\"hidden_size_per_layer_input\":40000}",
     ERR_INVALID},
    {"embeddings of fewer tokens",
     "{" GEMMA4 ",\"hidden_size_per_layer_input\":4,\"vocab_size_per_layer_input\":319}",
     ERR_INVALID},
    {"tokens that see what follows", "{" GEMMA4 ",\"use_bidirectional_attention\":\"all\"}",
     ERR_UNSUPPORTED},
    {"experts without a number",
     "{" GEMMA4 ",\"enable_moe_block\":true,\"moe_intermediate_size\":8,\"top_k_experts\":1}",
     ERR_INVALID},
    {"latents of nothing", "{" DEEPSEEK ",\"kv_lora_rank\":0}", ERR_INVALID},
    {"latents of 514", "{" DEEPSEEK ",\"kv_lora_rank\":514}", ERR_INVALID},
    {"odd latents", "{" DEEPSEEK ",\"kv_lora_rank\":511}", ERR_INVALID},
    {"an odd rope", "{" DEEPSEEK ",\"qk_rope_head_dim\":63}", ERR_INVALID},
    {"a rope of 128", "{" DEEPSEEK ",\"qk_rope_head_dim\":128}", ERR_INVALID},
    {"absurd queries", "{" DEEPSEEK ",\"q_lora_rank\":-5}", ERR_INVALID},
    {"heads without keys", "{" DEEPSEEK ",\"qk_nope_head_dim\":0}", ERR_INVALID},
    {"values of 10^9", "{" DEEPSEEK ",\"v_head_dim\":1000000000}", ERR_INVALID},
    {"biases of latents", "{" DEEPSEEK ",\"attention_bias\":true}", ERR_UNSUPPORTED},
    {"a part of the rope", "{" DEEPSEEK ",\"partial_rotary_factor\":0.5}", ERR_UNSUPPORTED},
    {"another choice of experts", "{" DEEPSEEK ",\"topk_method\":\"best\"}", ERR_UNSUPPORTED},
    {"another score of experts", "{" DEEPSEEK ",\"scoring_func\":\"softmax\"}", ERR_UNSUPPORTED},
    {"experts in every second layer", "{" DEEPSEEK ",\"moe_layer_freq\":2}", ERR_UNSUPPORTED},
    {"more groups than experts", "{" DEEPSEEK ",\"n_group\":7}", ERR_INVALID},
    {"an mscale below 0",
     "{" DEEPSEEK ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale_all_dim\":-1}}",
     ERR_INVALID},
    {"eos as a text", "{" LLAMA ",\"eos_token_id\":\"x\"}", ERR_INVALID},
    {"tied as a number", "{" LLAMA ",\"tie_word_embeddings\":1}", ERR_INVALID},
};

static void check_values(void)
{
    is_int(parse("{" LLAMA "}", NULL), ERR_OK, "the least Llama");
    is_int(c.n_kv_heads, 8, "kv heads default to heads");
    is_int(c.head_dim, 8, "head_dim defaults to dim / heads");
    ok(fabs(c.ropes[0].theta - 10000.0) < 1e-9 && c.ropes[0].kind == ROPE_PLAIN, "rope's defaults");
    ok(!c.tied && !c.qkv_bias && c.n_eos == 0, "other defaults");
    is_int(parse("{" LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\","
                 "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                 "\"original_max_position_embeddings\":8192},\"eos_token_id\":[3,4,999],"
                 "\"attention_bias\":true}",
                 NULL),
           ERR_OK, "an older Llama 3");
    ok(c.ropes[0].kind == ROPE_LLAMA3 && fabs(c.ropes[0].theta - 5e5) < 1e-9, "its rope");
    is_int(c.n_eos, 2, "ids outside the vocabulary end nothing");
    ok(c.qkv_bias && c.o_bias && !c.mlp_bias, "its biases");
    is_int(parse("{" LLAMA ",\"eos_token_id\":3,\"rope_parameters\":{\"rope_type\":\"default\","
                 "\"rope_theta\":500.0}}",
                 "{\"eos_token_id\":[7,8]}"),
           ERR_OK, "a newer one");
    ok(fabs(c.ropes[0].theta - 500.0) < 1e-9, "its theta");
    ok(c.n_eos == 2 && c.eos[0] == 7, "generation_config.json's ids count");
    is_int(parse("{" LLAMA ",\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":100}",
                 NULL),
           ERR_OK, "a Mistral with a window");
    ok(c.len_max == 512 && c.window == 100 && c.layer_kinds[0] == LAYER_WINDOW &&
           c.layer_kinds[1] == LAYER_WINDOW,
       "has it in all layers, and longer texts");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":100,"
                 "\"use_sliding_window\":false}",
                 NULL),
           ERR_OK, "a Qwen2");
    ok(c.qkv_bias && !c.o_bias && c.layer_kinds[1] == LAYER_FULL, "has its biases and no window");
    ok(c.qk_norm == QK_NORM_NONE, "and no norms of heads");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen3ForCausalLM\"]}", NULL), ERR_OK, "a Qwen3");
    ok(c.qk_norm == QK_NORM_HEADS && !c.qkv_bias && c.head_dim == 128,
       "has norms, and heads of 128");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":true,"
                 "\"head_dim\":64}",
                 NULL),
           ERR_OK, "another");
    ok(c.qkv_bias && c.o_bias && c.head_dim == 64, "has what it says");
}

static void check_windows(void)
{
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1,"
                 "\"sliding_window\":100}",
                 NULL),
           ERR_OK, "a Qwen2 with a window");
    ok(c.window == 100 && c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_WINDOW,
       "has it from max_window_layers on");
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0,"
                 "\"sliding_window\":100,"
                 "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
                 NULL),
           ERR_OK, "one with layer_types");
    ok(c.layer_kinds[0] == LAYER_WINDOW && c.layer_kinds[1] == LAYER_FULL, "has it where they say");
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0,"
                 "\"sliding_window\":512}",
                 NULL),
           ERR_OK, "a window as long as the longest text");
    ok(c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_FULL, "is none");
    is_int(parse("{" QWEN2 ",\"architectures\":[\"MistralForCausalLM\"],"
                 "\"max_position_embeddings\":8192}",
                 NULL),
           ERR_OK, "a Mistral that says nothing");
    ok(c.window == 4096 && c.layer_kinds[1] == LAYER_WINDOW, "has transformers' window");
    is_int(parse("{" QWEN2 ",\"architectures\":[\"MistralForCausalLM\"],"
                 "\"max_position_embeddings\":8192,\"sliding_window\":null}",
                 NULL),
           ERR_OK, "one that says null");
    ok(c.layer_kinds[1] == LAYER_FULL, "has none");
}

static void check_quant(void)
{
    is_int(parse("{" LLAMA "}", NULL), ERR_OK, "no quantization_config");
    ok(c.quant.kind == NULL, "names no format");
    is_int(parse("{" LLAMA QUANT(FP8 ",\"activation_scheme\":\"static\"") "}", NULL), ERR_OK,
           "fp8");
    ok(c.quant.kind != NULL && k_format_is_by_row(&c.quant.format, K_E4M3), "is e4m3 by row");
    is_int(parse("{" LLAMA QUANT(FP8 ",\"weight_block_size\":[128,128]") "}", NULL), ERR_OK,
           "fp8 in blocks");
    ok(k_format_is_in_blocks(&c.quant.format, K_E4M3, 128), "is e4m3 with blocks");
    is_int(parse("{" LLAMA QUANT(CT GROUP("\"num_bits\":8," BLOCKS) ",\"sparsity_config\":{}") "}",
                 NULL),
           ERR_OK, "compressed-tensors in blocks");
    ok(k_format_is_in_blocks(&c.quant.format, K_E4M3, 128), "has blocks");
}

/* The two of a pair's angles that tell ropes apart: of position 2, of the first and last pair. */
static void check_rope(const char *name, const char *rope, int len_max, double first, double last)
{
    char text[1000];
    float turns[3 * 8];

    (void)snprintf(text, sizeof text, "{" LLAMA ",%s}", rope);
    is_int(parse(text, NULL), ERR_OK, "rope: %s", name);
    rope_turns(&c.ropes[0], turns, 0, 3, len_max);
    ok(fabs(atan2((double)turns[2 * 8 + 1], (double)turns[2 * 8]) - first) < 1e-5 &&
           fabs(atan2((double)turns[2 * 8 + 7], (double)turns[2 * 8 + 6]) - last) < 1e-6,
       "%s: turns by %.5f and %.6f", name, first, last);
}

/* Heads of 8 and theta 1e4: frequencies 1, 0.1, 0.01, 0.001. */
static void check_ropes(void)
{
    float turns[8];

    check_rope("plain", "\"rope_theta\":10000", 512, 2.0, 0.002);
    check_rope("linear", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", 512, 0.5, 0.0005);
    check_rope("dynamic, as long as the training",
               "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", 512, 2.0, 0.002);
    /* theta * (2 * 2 - 1)^(8 / 6): the last pair has theta^(-3/4), so 3 times longer waves. */
    check_rope("dynamic, twice as long", "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}",
               1024, 2.0, 0.002 / 3.0);
    /* Over 512 positions the pairs turn 81, 8.1, 0.81 and 0.08 times: all but the first are slow
     * beyond the ramp's end at 1 turn, or on it. */
    check_rope("yarn",
               "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
               "\"original_max_position_embeddings\":512}",
               512, 2.0, 0.0005);
    rope_turns(&c.ropes[0], turns, 0, 1, 512);
    ok(fabs((double)turns[0] - (0.1 * log(4.0) + 1.0)) < 1e-6, "yarn raises cosines");
    is_int(parse("{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
                 "\"long_factor\":[2,2,2,8]},\"original_max_position_embeddings\":128}",
                 NULL),
           ERR_OK, "longrope");
    ok(fabs(c.ropes[0].scale - sqrt(1.0 + log(4.0) / log(128.0))) < 1e-9, "its scale");
    rope_turns(&c.ropes[0], turns, 1, 1, 128);
    ok(fabs(atan2((double)turns[7], (double)turns[6]) - 0.001) < 1e-7, "short factors up to 128");
    rope_turns(&c.ropes[0], turns, 1, 1, 129);
    ok(fabs(atan2((double)turns[7], (double)turns[6]) - 0.000125) < 1e-7, "long ones above");
}

/* EXAONE as released: a pattern of layers with L and G in place of a number. */
static void check_pattern(void)
{
    static const char exaone[] =
        "{" SHAPE ",\"num_hidden_layers\":6,\"architectures\":[\"Exaone4ForCausalLM\"],"
        "\"sliding_window\":40,\"sliding_window_pattern\":\"%s\"}";
    char text[1024], kinds[8] = "";

    (void)snprintf(text, sizeof text, exaone, "LLG");
    is_int(parse(text, NULL), ERR_OK, "a pattern of layers as a text");
    for (int i = 0; i < c.n_layers; i++)
        kinds[i] = c.layer_kinds[i] == LAYER_WINDOW ? 'L' : 'G';
    ok(strcmp(kinds, "LLGLLG") == 0, "repeats: %s", kinds);
    (void)snprintf(text, sizeof text, exaone, "LGLL");
    is_int(parse(text, NULL), ERR_OK, "a pattern that ends with a window");
    ok(c.layer_kinds[1] == LAYER_FULL && c.layer_kinds[4] == LAYER_WINDOW &&
           c.layer_kinds[5] == LAYER_FULL,
       "the last layer sees all tokens");
    (void)snprintf(text, sizeof text, exaone, "LX");
    is_int(parse(text, NULL), ERR_INVALID, "another letter");
    (void)snprintf(text, sizeof text, exaone, "");
    is_int(parse(text, NULL), ERR_INVALID, "no letter");
}

/* Models whose text model may be of any family. */
static void check_wrapped(void)
{
    static const char wrapped[] = "{\"architectures\":[\"LlavaForConditionalGeneration\"],"
                                  "\"text_config\":{\"model_type\":\"%s\"," SHAPE "}}";
    char text[1024];

    (void)snprintf(text, sizeof text, wrapped, "qwen2");
    is_int(parse(text, NULL), ERR_OK, "a model around a Qwen 2");
    ok(strcmp(c.arch->name, "Qwen2ForCausalLM") == 0 && c.qkv_bias && c.dim == 64,
       "is that text model");
    (void)snprintf(text, sizeof text, wrapped, "mistral4");
    is_int(parse(text, NULL), ERR_INVALID, "a Mistral 4 without the fields of one");
    (void)snprintf(text, sizeof text, wrapped, "foo");
    is_int(parse(text, NULL), ERR_UNSUPPORTED, "an unknown text model");
    is_int(parse("{\"architectures\":[\"LlavaForConditionalGeneration\"]," SHAPE "}", NULL),
           ERR_UNSUPPORTED, "no text_config");
}

static void check_families(void)
{
    check_pattern();
    check_wrapped();
    is_int(parse("{" LLAMA ",\"architectures\":[\"SmolLM3ForCausalLM\"],\"no_rope_layers\":[1,0]}",
                 NULL),
           ERR_OK, "a SmolLM3");
    ok(c.n_ropes == 2 && c.ropes[c.layer_ropes[0]].rotary_dim == 8 &&
           c.ropes[c.layer_ropes[1]].rotary_dim == 0,
       "has a layer without positions");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Gemma3ForCausalLM\"],\"head_dim\":8,"
                 "\"sliding_window\":40,\"sliding_window_pattern\":2,"
                 "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
                 NULL),
           ERR_OK, "a Gemma 3");
    ok(c.layer_kinds[0] == LAYER_WINDOW && c.layer_kinds[1] == LAYER_FULL, "has its pattern");
    ok(c.ropes[c.layer_ropes[0]].kind == ROPE_PLAIN &&
           fabs(c.ropes[c.layer_ropes[0]].theta - 1e4) < 1e-9 &&
           c.ropes[c.layer_ropes[1]].kind == ROPE_LINEAR &&
           fabs(c.ropes[c.layer_ropes[1]].theta - 1e6) < 1e-9,
       "and a rope per kind of layer");
    ok(c.norms == NORMS_BOTH && c.norm.plus_one && c.tied && c.activation == K_GELU_TANH &&
           fabs((double)c.attn_scale - 1.0 / 16.0) < 1e-9 && c.by.embedding == 8.0f,
       "and what else sets it apart");
    is_int(parse("{\"architectures\":[\"Qwen3VLForConditionalGeneration\"],\"text_config\":{" SHAPE
                 "},\"tie_word_embeddings\":true}",
                 NULL),
           ERR_OK, "a model with a text model in it");
    ok(c.dim == 64 && c.tied && c.qk_norm == QK_NORM_HEADS, "has the text model's fields");
    is_int(parse("{\"architectures\":[\"OPTForCausalLM\"],\"hidden_size\":64,\"ffn_dim\":96,"
                 "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":100,"
                 "\"max_position_embeddings\":40}",
                 NULL),
           ERR_OK, "an OPT");
    ok(c.positions.is_used && c.positions.n_rows == 42 && c.ropes[0].rotary_dim == 0 && c.tied &&
           c.activation == K_RELU && c.ffn == FFN_PLAIN && c.norm.kind == K_NORM_LAYER,
       "has a table of positions and no rope");
}

static void check_gemma4(void)
{
    is_int(parse("{" GEMMA4 ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":2}", NULL),
           ERR_OK, "a Gemma 4");
    ok(c.head_dim == 8 && c.n_kv_heads == 4 && c.full_head_dim == 16 && c.full_kv_heads == 2 &&
           c.values_are_keys,
       "has heads of two sizes");
    ok(c.ropes[c.layer_ropes[0]].kind == ROPE_PLAIN && c.ropes[c.layer_ropes[0]].rotary_dim == 8 &&
           c.ropes[c.layer_ropes[1]].kind == ROPE_PROPORTIONAL &&
           c.ropes[c.layer_ropes[1]].rotary_dim == 4 && c.ropes[c.layer_ropes[1]].head_dim == 16 &&
           fabs(c.ropes[c.layer_ropes[1]].theta - 1e6) < 1e-9,
       "and a rope for each, as the class has them");
    ok(!c.norm.plus_one && c.attn_scale == 1.0f && c.value_norm && c.has_layer_scale &&
           c.n_kv_shared == 0 && c.layer_embeds.width == 0 && c.experts.n == 0,
       "and what else sets it apart");
    is_int(parse("{" GEMMA4 ",\"num_global_key_value_heads\":2}", NULL), ERR_OK,
           "a number of kv heads that counts only where keys are values");
    is_int(c.full_kv_heads, 4, "leaves it");
    is_int(parse("{" GEMMA4 ",\"per_layer_config\":{\"1\":{\"head_dim\":12,"
                 "\"num_key_value_heads\":1}}}",
                 NULL),
           ERR_OK, "as transformers writes it");
    ok(c.full_head_dim == 12 && c.full_kv_heads == 1, "the heads of its full layer");
    is_int(parse("{" GEMMA4 ",\"per_layer_config\":{\"01\":{\"head_dim\":12}}}", NULL), ERR_OK,
           "as it writes that of more than ten layers");
    is_int(parse("{\"architectures\":[\"Gemma4ForConditionalGeneration\"],\"text_config\":{" GEMMA4
                 ",\"sliding_window\":600,\"enable_moe_block\":true,\"num_experts\":4,"
                 "\"top_k_experts\":2,\"moe_intermediate_size\":24}}",
                 NULL),
           ERR_OK, "with experts, in a model of images");
    ok(c.experts.n == 4 && c.experts.is_apart && c.experts.has_scales && c.experts.renorms &&
           c.experts.shared_dim == 128 && c.layer_experts[0] && c.layer_experts[1],
       "has them beside the FFN");
    is_int(c.layer_kinds[0], LAYER_WINDOW, "layers with a window longer than all keep their kind");
}

/* Released files have an interval, files that transformers writes a list. */
static void check_qwen3_5(void)
{
    is_int(parse("{" QWEN3_5 "}", NULL), ERR_OK, "a Qwen3.5");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[1] == LAYER_DELTA,
       "without a list: attention in every fourth layer");
    ok(c.delta.n_k_heads == 2 && c.delta.n_v_heads == 4 && c.delta.k_dim == 128 &&
           c.delta.v_dim == 128 && c.delta.n_taps == 4 && c.attn_gate && c.norm.plus_one,
       "its sizes and gates");
    is_int(c.ropes[0].rotary_dim, 4, "a quarter of a head rotates");
    is_int(parse("{" QWEN3_5 ",\"full_attention_interval\":2}", NULL), ERR_OK, "an interval");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[1] == LAYER_FULL, "says which");
    is_int(parse("{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"text_config\":{"
                 "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
                 "\"vocab_size\":320,\"max_position_embeddings\":512,\"num_experts\":4,"
                 "\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,"
                 "\"layer_types\":[\"full_attention\",\"linear_attention\"],"
                 "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,"
                 "\"partial_rotary_factor\":0.25,\"mrope_section\":[11,11,10]}}}",
                 NULL),
           ERR_OK, "with experts, in a model of images, without intermediate_size");
    ok(c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_DELTA && c.head_dim == 256 &&
           c.ropes[0].rotary_dim == 64 && fabs(c.ropes[0].theta - 1e7) < 1.0,
       "its layers and positions");
    ok(c.experts.n == 4 && c.experts.renorms && c.experts.has_switch && c.experts.shared_dim == 512,
       "its experts");
}

#define HYBRID                                                                \
    "\"hidden_size\":64,\"num_attention_heads\":8,\"num_key_value_heads\":2," \
    "\"vocab_size\":320,\"max_position_embeddings\":512,\"intermediate_size\":128"
#define NEMOTRON_H "\"architectures\":[\"NemotronHForCausalLM\"]," HYBRID
#define GRANITE_H                                                                         \
    "\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"num_hidden_layers\":2," HYBRID \
    ",\"num_local_experts\":0,\"shared_intermediate_size\":96,\"mamba_n_heads\":8"

/* Released files have a letter for each layer, and infinity as Python writes it. */
static void check_nemotron_h(void)
{
    is_int(parse("{" NEMOTRON_H ",\"num_hidden_layers\":4,\"hybrid_override_pattern\":\"M*-E\","
                 "\"n_routed_experts\":6,\"moe_intermediate_size\":24,"
                 "\"time_step_limit\":[0.001,Infinity]}",
                 NULL),
           ERR_OK, "a Nemotron-H with letters, experts and infinity");
    ok(c.layer_kinds[0] == LAYER_MAMBA && c.layer_kinds[1] == LAYER_FULL &&
           c.layer_kinds[2] == LAYER_NONE && c.layer_kinds[3] == LAYER_NONE,
       "its layers");
    ok(c.lacks_ffn[0] && c.lacks_ffn[1] && !c.lacks_ffn[2] && !c.layer_experts[2] &&
           c.layer_experts[3] && c.experts.is_plain,
       "its FFNs");
    ok(fabsf(c.mamba.least - 0.001f) < 1e-9f && isinf(c.mamba.most) && c.head_dim == 128 &&
           c.ropes[0].rotary_dim == 0,
       "its limits, and no positions");
    is_int(parse("{" NEMOTRON_H ",\"layers_block_type\":[\"mlp\",\"linear_attention\"],"
                 "\"time_step_limit\":[0.0,{\"__float__\":\"Infinity\"}]}",
                 NULL),
           ERR_OK, "one with a list, whose length is the number of layers");
    ok(c.n_layers == 2 && c.layer_kinds[1] == LAYER_MAMBA && isinf(c.mamba.most), "likewise");
    is_int(
        parse("{" NEMOTRON_H ",\"num_hidden_layers\":2,\"hybrid_override_pattern\":\"M\"}", NULL),
        ERR_INVALID, "a letter is missing");
    is_int(
        parse("{" NEMOTRON_H ",\"num_hidden_layers\":1,\"hybrid_override_pattern\":\"X\"}", NULL),
        ERR_UNSUPPORTED, "an unknown letter");
    is_int(parse("{" NEMOTRON_H ",\"layers_block_type\":[\"mlp\"],\"time_step_limit\":[1]}", NULL),
           ERR_INVALID, "one limit");
    is_int(parse("{" NEMOTRON_H ",\"layers_block_type\":[\"mlp\"],\"n_groups\":3}", NULL),
           ERR_INVALID, "heads that do not divide into groups");
    is_int(
        parse("{" NEMOTRON_H ",\"layers_block_type\":[\"mlp\"],\"x\":\"a \\\" Infinity\"}", NULL),
        ERR_OK, "the word in a text");
}

static void check_hybrids(void)
{
    check_nemotron_h();
    is_int(parse("{" GRANITE_H ",\"mamba_d_head\":\"auto\"}", NULL), ERR_OK,
           "a Granite 4 H without experts and lists");
    ok(c.mamba.shape.head_dim == 16 && c.layer_kinds[1] == LAYER_MAMBA && c.ff_dim == 96 &&
           c.ropes[0].rotary_dim == 0,
       "its heads and FFN");
    is_int(parse("{" GRANITE_H ",\"mamba_d_head\":15}", NULL), ERR_UNSUPPORTED,
           "heads of another size");
    is_int(parse("{\"architectures\":[\"FalconH1ForCausalLM\"],\"num_hidden_layers\":2," HYBRID
                 ",\"mamba_d_ssm\":64,\"mamba_n_heads\":4,\"ssm_in_multiplier\":2.0,"
                 "\"ssm_multipliers\":[1,2,3,4,5],\"attention_in_multiplier\":0.5}",
                 NULL),
           ERR_OK, "a Falcon-H1");
    ok(c.n_layers == 4 && c.is_twin && c.layer_kinds[2] == LAYER_MAMBA && c.lacks_ffn[2] &&
           c.layer_kinds[3] == LAYER_FULL && !c.lacks_ffn[3],
       "each layer is two");
    ok(c.mamba.dt_by == 10.0f && c.mamba.x_by == 4.0f && c.by.attention == 0.5f &&
           fabsf(c.attn_scale - 0.25f / sqrtf(8.0f)) < 1e-6f && !c.mamba.has_norm,
       "its multipliers");
    is_int(parse("{\"architectures\":[\"Lfm2ForCausalLM\"],\"num_hidden_layers\":3," HYBRID
                 ",\"block_ff_dim\":300,\"full_attn_idxs\":[1],\"block_multiple_of\":64}",
                 NULL),
           ERR_OK, "an LFM2");
    ok(c.ff_dim == 256 && c.conv.n_taps == 3 && c.layer_kinds[0] == LAYER_CONV &&
           c.layer_kinds[1] == LAYER_FULL && c.layer_kinds[2] == LAYER_CONV && c.tied,
       "its layers, and the FFN's width: two thirds, and up to a multiple");
}

static void check_latent(void)
{
    is_int(parse("{" DEEPSEEK ",\"rope_theta\":50000.0,\"rope_scaling\":{\"type\":\"yarn\","
                 "\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
                 "\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1}}",
                 NULL),
           ERR_OK, "a DeepSeek V3 with the defaults of its class");
    ok(c.latent.q_rank == 1536 && c.latent.kv_rank == 512 && c.latent.nope_dim == 128 &&
           c.latent.rope_dim == 64 && c.latent.v_dim == 128 && c.latent.n_heads == 8,
       "the sizes of its heads");
    ok(c.n_kv_heads == 1 && c.full_kv_heads == 1 && c.head_dim == 576 && c.full_head_dim == 576,
       "one kv head of a latent");
    ok(c.n_ropes == 1 && c.ropes[0].head_dim == 64 && c.ropes[0].rotary_dim == 64 &&
           c.ropes[0].interleaved && c.ropes[0].scale == 1.0,
       "its rope, and cosines as they are");
    ok(fabs((double)c.attn_scale - pow(0.1 * log(40.0) + 1.0, 2.0) / sqrt(192.0)) < 1e-6,
       "and scores that grow instead");
    ok(!c.layer_experts[2] && c.experts.scoring == K_SCORE_SIGMOID && c.experts.has_bias &&
           c.experts.group_best == 2 && c.experts.renorms && c.experts.shared_dim == 24,
       "its experts, behind three dense layers");
    is_int(parse("{" DEEPSEEK ",\"rope_interleave\":false,\"q_lora_rank\":null}", NULL), ERR_OK,
           "one with pairs that are apart, and one product for queries");
    ok(!c.ropes[0].interleaved && c.latent.q_rank == 0, "has these");
    is_int(parse("{\"architectures\":[\"DeepseekV2ForCausalLM\"]," LATENT
                 ",\"n_group\":3,\"topk_group\":1,\"topk_method\":\"greedy\"}",
                 NULL),
           ERR_OK, "a DeepSeek V2");
    ok(c.experts.n_groups == 1 && c.experts.group_best == 1 && !c.experts.renorms &&
           c.experts.scoring == K_SCORE_SOFTMAX && !c.experts.has_bias && c.layer_experts[0] &&
           c.experts.shared_dim == 48,
       "whose groups do not count");
    is_int(parse("{\"architectures\":[\"DeepseekV2ForCausalLM\"]," LATENT
                 ",\"norm_topk_prob\":true}",
                 NULL),
           ERR_UNSUPPORTED, "one whose weights add up to 1");
    is_int(parse("{\"architectures\":[\"KimiK25ForConditionalGeneration\"],\"text_config\":{"
                 "\"n_group\":1,\"topk_group\":1,\"first_k_dense_replace\":0," LATENT "}}",
                 NULL),
           ERR_OK, "a Kimi K2.5");
    ok(c.layer_experts[0] && c.latent.kv_rank == 512, "is a DeepSeek V3");
    is_int(parse("{\"architectures\":[\"Glm4MoeLiteForCausalLM\"]," LATENT
                 ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\"]}",
                 NULL),
           ERR_OK, "a GLM 4.7 Flash");
    ok(c.latent.v_dim == 256 && c.layer_experts[0] && !c.layer_experts[1] && c.layer_experts[2],
       "its layers");
    is_int(parse("{\"architectures\":[\"Glm4MoeLiteForCausalLM\"]," LATENT
                 ",\"mlp_layer_types\":[\"sparse\",\"wide\",\"sparse\"]}",
                 NULL),
           ERR_INVALID, "an unknown type of layer");
}

static void check_kimi_linear(void)
{
    is_int(parse("{" KIMI KIMI_LAYERS("1,2,3,5") "}", NULL), ERR_OK, "a released Kimi-Linear");
    ok(c.layer_kinds[2] == LAYER_DELTA && c.layer_kinds[3] == LAYER_FULL &&
           c.layer_kinds[4] == LAYER_DELTA && c.delta.by_channel && c.delta.n_k_heads == 32 &&
           c.delta.k_dim == 128 && c.delta.n_taps == 4,
       "its layers");
    ok(c.ropes[0].rotary_dim == 0 && c.ropes[0].head_dim == 64 && c.head_dim == 576 &&
           fabs((double)c.attn_scale - 1.0 / sqrt(192.0)) < 1e-6 && c.latent.q_rank == 0,
       "latents without positions");
    ok(!c.layer_experts[0] && c.layer_experts[1] && c.experts.n == 256 && c.experts.n_used == 8 &&
           c.experts.shared_dim == 1024 && c.experts.renorms && c.len_max == 1048576,
       "its experts, behind one dense layer");
    is_int(parse("{" KIMI "}", NULL), ERR_OK, "one without lists of layers");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[3] == LAYER_DELTA &&
           c.layer_kinds[4] == LAYER_FULL,
       "has those of its class");
}

/* Indexes of their classes' sizes. */
static void check_index(void)
{
    is_int(parse("{" V32 "}", NULL), ERR_OK, "a DeepSeek V3.2");
    ok(c.index.shape.n_heads == 64 && c.index.shape.dim == 128 && c.index.shape.n_keys == 2048 &&
           c.index.shape.rope_dim == 64 && !c.index.interleaved && !c.index.is_shared[1],
       "its index");
    is_int(parse("{" GLM5 ",\"index_topk_freq\":2,\"index_skip_topk_offset\":1}", NULL), ERR_OK,
           "a GLM-5");
    ok(c.index.shape.n_heads == 32 && c.index.interleaved && !c.index.is_shared[0] &&
           c.index.is_shared[1] && !c.index.is_shared[2] && c.latent.q_rank == 2048 &&
           c.latent.nope_dim == 192 && c.latent.v_dim == 256 && !c.layer_experts[2],
       "its index, in every second layer");
    is_int(parse("{" GLM5 ",\"index_topk_pattern\":[\"full\",\"full\",\"shared\"]}", NULL), ERR_OK,
           "one with a list");
    ok(!c.index.is_shared[1] && c.index.is_shared[2], "has what that says");
}

#define MISTRAL4                                                               \
    LATENT ",\"rope_parameters\":{\"type\":\"yarn\",\"factor\":128.0,"         \
           "\"original_max_position_embeddings\":8192,\"mscale_all_dim\":1.0," \
           "\"mscale\":1.0,\"llama_4_scaling_beta\":0.1,\"partial_rotary_factor\":0.5}"

/* Released files have the whole model's name of Mistral 3. */
static void check_mistral4(void)
{
    is_int(parse("{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"text_config\":{"
                 "\"model_type\":\"mistral4\"," MISTRAL4 "}}",
                 NULL),
           ERR_OK, "a Mistral 4 in a model of images");
    ok(c.latent.kv_rank == 256 && c.latent.nope_dim == 64 && c.ropes[0].rotary_dim == 64 &&
           c.growth.beta > 0.09f && c.growth.period == 8192 && c.layer_experts[0] &&
           c.experts.scoring == K_SCORE_SOFTMAX && !c.experts.has_bias && c.experts.renorms,
       "has latents, queries that grow and experts");
    is_int(parse("{\"architectures\":[\"Mistral4ForCausalLM\"]," LATENT "}", NULL), ERR_INVALID,
           "one without its rope");
    is_int(parse("{\"architectures\":[\"Mistral4ForCausalLM\"],\"qk_nope_head_dim\":32," MISTRAL4
                 "}",
                 NULL),
           ERR_UNSUPPORTED, "one whose rope is of another head");
}

/* Every name of the table of unserved ones would be a lie once it is served. */
static void test_near(void)
{
    static const struct {
        const char *name, *sentence;
    } rows[] = {
        {"DeepseekV4ForCausalLM", "the nearest that is served is DeepseekV3ForCausalLM; it "
                                  "differs by compressed attention of tokens by an index"},
        {"LlamaForCausalLn", "the nearest name that is served is LlamaForCausalLM"},
        {"Qwen3MoeForCausaLM", "the nearest name that is served is Qwen3MoeForCausalLM"},
        {"", "the nearest name that is served is GlmForCausalLM"},
    };
    char near[300], long_name[5000];

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        arch_near(near, sizeof near, rows[i].name);
        ok(strcmp(near, rows[i].sentence) == 0, "\"%s\": %s", rows[i].name, near);
    }
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    arch_near(near, sizeof near, long_name);
    ok(strstr(near, "the nearest name that is served is ") == near, "a long name has a nearest");
    for (size_t i = 0; arch_name(i) != NULL; i++) {
        arch_near(near, sizeof near, arch_name(i));
        ok(strstr(near, arch_name(i)) != NULL && strstr(near, "differs") == NULL,
           "%s is served, and nearest to itself", arch_name(i));
    }
}

/* Lines that the log has for a config. */
static int lines_of(const char *text)
{
    FILE *log = tmpfile();
    int stderr_fd = dup(STDERR_FILENO), n = 0;

    if (log == NULL || stderr_fd == -1)
        return -1;
    (void)dup2(fileno(log), STDERR_FILENO);
    (void)parse(text, NULL);
    (void)dup2(stderr_fd, STDERR_FILENO);
    (void)close(stderr_fd);
    rewind(log);
    for (int byte = fgetc(log); byte != EOF; byte = fgetc(log))
        n += byte == '\n';
    (void)fclose(log);
    return n;
}

/* A number out of range counts as the least one; what that number would break is not told. */
static void check_lines(void)
{
    is_int(lines_of("{" QWEN3_5 ",\"linear_num_value_heads\":0}"), 1,
           "value heads of 0 are one error");
    is_int(lines_of("{" QWEN3_5 ",\"linear_num_value_heads\":3}"), 1, "value heads of 3 too");
    is_int(lines_of("{" GEMMA4 ",\"global_head_dim\":-2}"), 1, "heads of -2 are one error");
    is_int(lines_of("{" LLAMA ",\"head_dim\":-2}"), 1, "also those of Llama");
    is_int(lines_of("{" DEEPSEEK ",\"kv_lora_rank\":0}"), 1, "latents of 0 are one error");
    is_int(lines_of("{" DEEPSEEK ",\"qk_rope_head_dim\":-1}"), 1, "a rope of -1 too");
    is_int(lines_of("{" DEEPSEEK ",\"v_head_dim\":2000000000}"), 1, "huge values too");
    is_int(lines_of("{" KIMI KIMI_LAYERS("1,2,3") "}"), 1, "a layer of no kind is one error");
    is_int(lines_of("{" V32 ",\"index_head_dim\":62}"), 1, "narrow index heads too");
    is_int(lines_of("{" V32 ",\"kv_lora_rank\":0}"), 1, "latents of 0 before an index");
    is_int(lines_of("{" GLM5 ",\"index_topk_pattern\":\"SSS\"}"), 1, "a wrong pattern too");
    is_int(lines_of("{" GEMMA4 ",\"hidden_size_per_layer_input\":4,"
                    "\"vocab_size_per_layer_input\":\"x\"}"),
           1, "a number that is a text is one error");
}

/* The longest text by the scaling of positions. */
static void check_lengths(void)
{
    static const struct {
        const char *ropes;
        int len, scaled;
    } of[] = {
        {"\"rope_theta\":10000", 512, 512},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":512}",
         2048, 2048},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":2.5,"
         "\"original_max_position_embeddings\":128}",
         512, 512},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1e9,"
         "\"original_max_position_embeddings\":512}",
         HF_CONFIG_LEN_MAX, HF_CONFIG_LEN_MAX},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", 512, 2048},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", 512, 1024},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}",
         512, 512},
    };

    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        char text[1024];

        (void)snprintf(text, sizeof text, "{" LLAMA ",%s}", of[i].ropes);
        is_int(parse(text, NULL), ERR_OK, "%s", of[i].ropes);
        is_int(c.len_max, of[i].len, "its length");
        is_int(c.len_scaled, of[i].scaled, "and the longest that may be asked for");
    }
}

static void check_override(const char *text, const char *overrides, const char *want)
{
    struct buf out = {.bytes = NULL};

    is_int(config_override(&out, text, strlen(text), overrides), ERR_OK, "%s", overrides);
    is_text(buf_text(&out), want, "gives %s", want);
    buf_fini(&out);
}

static void check_overrides(void)
{
    static const char *const wrong[] = {"[]", "1", "{", "null", ""};
    struct buf out = {.bytes = NULL};

    check_override("{\"a\":1,\"b\":[2.50]}", "{\"a\":null,\"c\":{\"d\":1}}",
                   "{\"a\":null,\"b\":[2.50],\"c\":{\"d\":1}}");
    check_override("{\"a\":{\"x\":1,\"y\":2}}", "{\"a\":{\"x\":3}}", "{\"a\":{\"x\":3}}");
    check_override("{\"text_config\":{\"x\":1,\"y\":{\"z\":2}},\"q\":0}",
                   "{\"text_config\":{\"x\":3,\"y\":{}}}",
                   "{\"text_config\":{\"x\":3,\"y\":{}},\"q\":0}");
    check_override("{\"text_config\":1}", "{\"text_config\":{\"x\":3}}",
                   "{\"text_config\":{\"x\":3}}");
    /* Members of poolings are read elsewhere (base/pooling.h), but in parts they are no such. */
    check_override("{\"architectures\":[\"A\"],\"b\":{}}",
                   "{\"architectures\":[\"B\"],\"num_labels\":3}",
                   "{\"architectures\":[\"A\"],\"b\":{}}");
    check_override("{\"x_config\":{\"method\":1}}", "{\"x_config\":{\"method\":2}}",
                   "{\"x_config\":{\"method\":2}}");
    /* The older names of rotary parameters go where the file has them. */
    check_override(
        "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5}}",
        "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}}",
        "{\"rope_parameters\":{\"rope_theta\":5,\"rope_type\":\"yarn\",\"factor\":4.0}}");
    check_override("{\"rope_parameters\":{\"rope_theta\":5,\"k\":1}}", "{\"rope_theta\":7}",
                   "{\"rope_parameters\":{\"rope_theta\":7,\"k\":1}}");
    check_override("{\"rope_parameters\":{\"k\":1}}", "{\"rope_theta\":7,\"rope_scaling\":{}}",
                   "{\"rope_parameters\":{\"k\":1,\"rope_theta\":7}}");
    check_override("{\"rope_theta\":5,\"rope_scaling\":null}",
                   "{\"rope_theta\":7,\"rope_scaling\":{\"factor\":2}}",
                   "{\"rope_theta\":7,\"rope_scaling\":{\"factor\":2}}");
    check_override("{\"rope_parameters\":{\"k\":1}}", "{\"rope_parameters\":{\"l\":2}}",
                   "{\"rope_parameters\":{\"l\":2}}");
    check_override("[1]", "{\"a\":1}", "[1]");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ok(config_override(&out, "{}", 2, wrong[i]) != ERR_OK && out.len == 0, "refused: \"%s\"",
           wrong[i]);
    buf_fini(&out);
}

int main(void)
{
    test_near();
    struct hf_config before;

    log_set_level(LOG_LEVEL_ERROR);
    check_values();
    before = c;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        is_int(parse(refused[i].text, NULL), refused[i].rc, "%s is refused", refused[i].what);
    ok(memcmp(&before, &c, sizeof c) == 0, "and nothing is written");
    check_windows();
    check_quant();
    check_ropes();
    check_lengths();
    check_overrides();
    check_families();
    check_gemma4();
    check_qwen3_5();
    check_hybrids();
    check_latent();
    check_mistral4();
    check_kimi_linear();
    check_index();
    check_lines();
    return tap_done();
}
