/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields that single families have in config.json: what is made of them, and that a value that is
 * not served is refused with one line that names its field. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "model/hf_config.h"
#include "tests/tap.h"

#define SHAPE                                                                                  \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"vocab_size\":320," \
    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"max_position_embeddings\":512"
#define OF(name)    "{\"architectures\":[\"" name "\"]," SHAPE

#define OLMO_HYBRID OF("OlmoHybridForCausalLM")
#define APERTUS     OF("ApertusForCausalLM")
#define LLAMA4      OF("Llama4ForCausalLM") ",\"num_local_experts\":6"

#define STEP                                                            \
    OF("Step3p5ForCausalLM")                                            \
    ",\"n_routed_experts\":6,\"num_experts_per_tok\":2,\"head_dim\":8," \
    "\"num_nextn_predict_layers\":1,\"sliding_window\":32"
#define STEP_TYPES                                                                      \
    ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"," \
    "\"full_attention\",\"full_attention\"]"
#define LAGUNA OF("LagunaForCausalLM") ",\"num_experts\":6,\"num_experts_per_tok\":2,\"head_dim\":8"
#define LAGUNA_TYPES                                                                    \
    ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"," \
    "\"full_attention\"]"

#define MIMO                                             \
    OF("MiMoV2FlashForCausalLM")                         \
    ",\"n_routed_experts\":6,\"num_experts_per_tok\":2," \
    "\"head_dim\":24,\"v_head_dim\":16"

static struct hf_config c;
static char lines[4096];

/* The result of a config; its lines in the log are in `lines`. */
static int parse(const char *text)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO), rc;
    size_t n;

    if (log == NULL || kept == -1)
        return -1;
    (void)dup2(fileno(log), STDERR_FILENO);
    rc = hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0);
    (void)dup2(kept, STDERR_FILENO);
    (void)close(kept);
    rewind(log);
    n = fread(lines, 1, sizeof lines - 1, log);
    lines[n] = '\0';
    (void)fclose(log);
    return rc;
}

static const struct {
    const char *text, *named; /* the line has the second */
    int rc;
} refused[] = {
    {OLMO_HYBRID ",\"linear_num_key_heads\":4}", "linear_num_value_heads 8", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_value_head_dim\":257}", "linear_value_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_key_head_dim\":0}", "linear_key_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_conv_kernel_dim\":\"4\"}", "linear_conv_kernel_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_allow_neg_eigval\":1}", "linear_allow_neg_eigval", ERR_INVALID},
    {OLMO_HYBRID ",\"layer_types\":[\"full_attention\"]}", "layer_types", ERR_INVALID},
    {OLMO_HYBRID ",\"hidden_act\":\"gelu\"}", "hidden_act", ERR_UNSUPPORTED},
    {APERTUS ",\"hidden_act\":\"yelu\"}", "yelu", ERR_UNSUPPORTED},
    {OF("ArceeForCausalLM") ",\"hidden_act\":\"xielu\"}", "xielu", ERR_UNSUPPORTED},
    {STEP ",\"layer_types\":[\"full_attention\"]}", "layer_types", ERR_INVALID},
    {STEP ",\"layer_types\":[1,2,3,4]}", "layer_types", ERR_UNSUPPORTED},
    {STEP STEP_TYPES ",\"num_sliding_attention_heads\":5}", "heads 5 of layer 1", ERR_INVALID},
    {STEP STEP_TYPES ",\"attention_other_setting\":{\"num_attention_groups\":4}}",
     "attention_other_setting", ERR_UNSUPPORTED},
    {STEP STEP_TYPES ",\"sliding_window\":0}", "sliding_window", ERR_INVALID},
    {STEP ",\"swiglu_limits\":[1,2]}", "swiglu_limits", ERR_INVALID},
    {STEP ",\"swiglu_limits_shared\":[0,null,-1,0]}", "swiglu_limits_shared", ERR_INVALID},
    {STEP ",\"rope_theta\":[1e4,0,1e4,1e4]" STEP_TYPES "}", "rope_theta", ERR_INVALID},
    {STEP ",\"partial_rotary_factors\":[2,1,1,1]}", "partial_rotary_factors", ERR_INVALID},
    {STEP ",\"moe_layers_enum\":\"1,x\"}", "moe_layers_enum", ERR_INVALID},
    {STEP ",\"use_head_wise_attn_gate\":false}", "use_head_wise_attn_gate", ERR_UNSUPPORTED},
    {STEP ",\"moe_router_activation\":\"softmax\"}", "moe_router_activation", ERR_UNSUPPORTED},
    {LAGUNA ",\"gating\":false}", "gating", ERR_UNSUPPORTED},
    {LAGUNA ",\"num_attention_heads_per_layer\":[8,8,8,0]}", "num_attention_heads_per_layer",
     ERR_INVALID},
    {LAGUNA ",\"num_attention_heads_per_layer\":[8,7,8,8]}", "7 of layer 1", ERR_INVALID},
    {LAGUNA ",\"moe_apply_router_weight_on_input\":true}", "moe_apply_router_weight_on_input",
     ERR_UNSUPPORTED},
    {LAGUNA ",\"moe_router_logit_softcapping\":-1}", "moe_router_logit_softcapping", ERR_INVALID},
    {LAGUNA LAGUNA_TYPES ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     "rope_parameters", ERR_INVALID},
    {LAGUNA ",\"mlp_layer_types\":[\"dense\"]}", "mlp_layer_types", ERR_INVALID},
    {MIMO ",\"attention_bias\":true}", "attention_bias", ERR_UNSUPPORTED},
    {MIMO ",\"attention_projection_layout\":\"fused_qkv\"}", "attention_projection_layout",
     ERR_UNSUPPORTED},
    {MIMO ",\"add_full_attention_sink_bias\":true}", "add_full_attention_sink_bias",
     ERR_UNSUPPORTED},
    {MIMO ",\"v_head_dim\":32}", "v_head_dim", ERR_INVALID},
    {MIMO ",\"swa_head_dim\":32}", "swa_head_dim", ERR_UNSUPPORTED},
    {MIMO ",\"swa_num_key_value_heads\":3}", "kv heads", ERR_INVALID},
    {MIMO ",\"hybrid_layer_pattern\":[1]}", "hybrid_layer_pattern", ERR_INVALID},
    {MIMO ",\"moe_layer_freq\":[1]}", "moe_layer_freq", ERR_INVALID},
    {MIMO ",\"attention_value_scale\":0}", "attention_value_scale", ERR_INVALID},
    {MIMO ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     "sliding_attention", ERR_INVALID},
    {LLAMA4 ",\"attention_chunk_size\":0}", "attention_chunk_size", ERR_INVALID},
    {LLAMA4 ",\"floor_scale\":0}", "floor_scale", ERR_INVALID},
    {LLAMA4 ",\"attn_scale\":\"x\"}", "attn_scale", ERR_INVALID},
    {LLAMA4 ",\"moe_layers\":3}", "moe_layers", ERR_INVALID},
    {LLAMA4 ",\"num_experts_per_tok\":7}", "experts per token", ERR_INVALID},
    {LLAMA4 ",\"no_rope_layers\":[1]}", "no_rope_layers", ERR_INVALID},
    {LLAMA4 ",\"intermediate_size_mlp\":null,\"use_qk_norm\":3}", "use_qk_norm", ERR_INVALID},
};

static void check_refused(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *end;

        is_int(parse(refused[i].text), refused[i].rc, "refused: %s", refused[i].named);
        end = strchr(lines, '\n');
        ok(end != NULL && end[1] == '\0' && strstr(lines, refused[i].named) != NULL,
           "with one line that names it");
    }
}

static void check_olmo_hybrid(void)
{
    is_int(parse(OLMO_HYBRID "}"), ERR_OK, "an OLMo hybrid with the defaults of its class");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[2] == LAYER_DELTA &&
           c.layer_kinds[3] == LAYER_FULL && c.norms == NORMS_AFTER &&
           c.delta_norms == NORMS_BEFORE,
       "its layers and their norms");
    ok(c.delta.n_k_heads == 8 && c.delta.n_v_heads == 8 && c.delta.k_dim == 6 &&
           c.delta.v_dim == 12 && c.delta.n_taps == 4 && c.delta.doubles && c.host_only != NULL,
       "its states, which a GPU does not compute");
    ok(c.n_ropes == 1 && c.ropes[0].rotary_dim == 0, "no positions");
    is_int(parse(OLMO_HYBRID ",\"rope_theta\":500000.0,\"linear_allow_neg_eigval\":false}"), ERR_OK,
           "one with positions");
    ok(c.ropes[0].rotary_dim == 8 && c.ropes[0].theta == 500000.0 && c.host_only == NULL,
       "and states that keep their signs: as of other families");
}

static void check_apertus(void)
{
    is_int(parse(APERTUS "}"), ERR_OK, "an Apertus with the defaults of its class");
    ok(c.has_xielu && c.host_only != NULL && c.ffn == FFN_PLAIN && c.qk_norm == QK_NORM_HEADS,
       "its FFN, which a GPU does not compute");
    ok(c.ropes[0].kind == ROPE_LLAMA3 && c.ropes[0].theta == 12e6 && c.ropes[0].factor == 8.0 &&
           c.ropes[0].original_len == 8192.0,
       "its positions");
    is_int(parse(APERTUS ",\"hidden_act\":\"gelu\",\"rope_theta\":1e4,\"rope_scaling\":{"
                         "\"rope_type\":\"default\"}}"),
           ERR_OK, "one with another activation");
    ok(!c.has_xielu && c.host_only == NULL && c.activation == K_GELU &&
           c.ropes[0].kind == ROPE_PLAIN,
       "is a model of any device");
}

static void check_llama4(void)
{
    is_int(parse(LLAMA4 "}"), ERR_OK, "a Llama 4 with the defaults of its class");
    ok(c.chunk == 8192 && c.len_max == 512 && c.len_scaled == 512, "texts below a chunk");
    ok(c.ropes[0].interleaved && c.layer_ropes[2] == 0 && c.ropes[c.layer_ropes[3]].rotary_dim == 0,
       "every fourth layer has no positions");
    ok(c.qk_norm == QK_NORM_AFTER && c.still_grows && c.growth.period == 8192 &&
           c.growth.first == 1 && fabsf(c.growth.beta - 0.1f) < 1e-6f,
       "norms in the others, and queries that grow in these");
    ok(c.layer_experts[0] && c.layer_experts[3] && c.experts.ff_dim == 128 &&
           c.experts.shared_dim == 128 && c.ff_dim == 16384 && c.experts.n_used == 1 &&
           c.experts.weighs_inputs && !c.experts.renorms && c.host_only != NULL,
       "its experts, which a GPU does not compute");
    is_int(parse(LLAMA4 ",\"attention_chunk_size\":100,\"moe_layers\":[1,9],"
                        "\"no_rope_layers\":[],\"attn_temperature_tuning\":4}"),
           ERR_OK, "one with short chunks");
    ok(c.len_max == 100 && c.len_scaled == 100 && !c.layer_experts[0] && c.layer_experts[1] &&
           !c.layer_experts[2] && c.growth.beta > 0.0f && c.layer_ropes[3] != 0,
       "has texts of these; experts in the layers that it lists");
    is_int(parse(LLAMA4 ",\"attention_chunk_size\":100,\"attn_temperature_tuning\":0,"
                        "\"use_qk_norm\":false,\"layer_types\":[\"full_attention\","
                        "\"full_attention\",\"full_attention\",\"full_attention\"]}"),
           ERR_OK, "one without chunks");
    ok(c.len_max == 512 && c.chunk == 0 && c.growth.beta == 0.0f && c.qk_norm == QK_NORM_NONE,
       "has long texts, and neither norms nor growth");
}

/* The fields of released files, with entries of an MTP layer; then those of transformers. */
static void check_step(void)
{
    is_int(parse(OF("Step3p5ForCausalLM") STEP_TYPES
                 ",\"num_attention_groups\":4,\"num_key_value_heads\":null,\"head_dim\":8,"
                 "\"moe_num_experts\":6,\"moe_top_k\":2,\"share_expert_dim\":28,"
                 "\"num_nextn_predict_layers\":1,\"sliding_window\":32,"
                 "\"attention_other_setting\":{\"attention_type\":\"sliding_attention\","
                 "\"num_attention_heads\":12,\"num_attention_groups\":4,\"head_dim\":8},"
                 "\"rope_theta\":[5e6,1e4,1e4,5e6,5e6],\"moe_layers_enum\":\"1,3\","
                 "\"partial_rotary_factors\":[0.5,1.0,1.0,0.5,0.5],"
                 "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2.0,"
                 "\"low_freq_factor\":1.0,\"high_freq_factor\":32.0,"
                 "\"original_max_position_embeddings\":128},"
                 "\"swiglu_limits\":[0,0,0,7,7],\"swiglu_limits_shared\":[0,0,0,16,0],"
                 "\"moe_router_scaling_factor\":3.0}"),
           ERR_OK, "a released Step 3.5");
    ok(c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_WINDOW && c.window == 32 &&
           c.layer_heads[0] == 8 && c.layer_heads[1] == 12 && c.n_kv_heads == 4,
       "its layers and their heads");
    ok(c.ropes[c.layer_ropes[0]].rotary_dim == 4 && c.ropes[c.layer_ropes[0]].theta == 5e6 &&
           c.ropes[c.layer_ropes[0]].kind == ROPE_LLAMA3 &&
           c.ropes[c.layer_ropes[1]].rotary_dim == 8 && c.ropes[c.layer_ropes[1]].theta == 1e4 &&
           c.ropes[c.layer_ropes[1]].kind == ROPE_PLAIN,
       "and their positions");
    ok(c.limits[3] == 7.0f && c.shared_limits[3] == 16.0f && c.limits[0] == 0.0f &&
           !c.layer_experts[0] && c.layer_experts[1] && !c.layer_experts[2] && c.layer_experts[3] &&
           c.experts.n == 6 && c.experts.n_used == 2 && c.experts.scale == 3.0f,
       "its experts and limits");
    ok(c.gate_by_head && c.attn_gate && !c.gate_softplus && c.host_only != NULL,
       "gates of heads, which a GPU does not compute");
    is_int(parse(STEP ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"dense\"]}"), ERR_OK,
           "a Step with the defaults of its class");
    ok(c.layer_kinds[1] == LAYER_FULL && c.layer_heads[1] == 8 && c.layer_experts[0] &&
           !c.layer_experts[1],
       "its layers");
}

static void check_laguna(void)
{
    is_int(parse(LAGUNA LAGUNA_TYPES "}"), ERR_OK, "a Laguna with the defaults of its class");
    ok(c.ropes[c.layer_ropes[0]].rotary_dim == 4 && c.ropes[c.layer_ropes[0]].theta == 500000.0 &&
           c.ropes[c.layer_ropes[1]].rotary_dim == 8 && c.ropes[c.layer_ropes[1]].theta == 1e4 &&
           c.window == 512,
       "its layers and their positions");
    ok(c.gate_by_head && c.gate_softplus && !c.layer_experts[0] && c.layer_experts[1] &&
           c.experts.cap == 0.0f && c.experts.renorms && c.host_only != NULL,
       "its gates and experts");
    is_int(parse(LAGUNA ",\"gating\":\"per-element\",\"num_attention_heads_per_layer\":[4,8,6,2],"
                        "\"moe_router_logit_softcapping\":3.0}"),
           ERR_OK, "one with other heads in each layer");
    ok(!c.gate_by_head && c.gate_softplus && c.layer_heads[2] == 6 && c.experts.cap == 3.0f &&
           c.layer_kinds[1] == LAYER_FULL,
       "has these");
}

/* The defaults of the class, then the fields of released files. */
static void check_mimo(void)
{
    is_int(parse(MIMO "}"), ERR_OK, "a MiMo-V2 with the defaults of its class");
    ok(c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_WINDOW && c.window == 129 &&
           c.n_kv_heads == 4 && c.full_kv_heads == 2 && c.value_dim == 16,
       "its layers and their heads");
    ok(c.sinks && c.sinks_locally && fabsf(c.by.attention - 0.707f) < 1e-6f &&
           c.ropes[c.layer_ropes[0]].theta == 5e6 && c.ropes[c.layer_ropes[1]].theta == 1e4 &&
           c.ropes[0].rotary_dim == 8 && c.host_only == NULL,
       "its sinks and positions");
    ok(!c.layer_experts[0] && c.layer_experts[1] && c.experts.has_bias &&
           c.experts.group_best == 2 && c.experts.shared_dim == 0,
       "its experts");
    is_int(parse(MIMO ",\"hybrid_layer_pattern\":[0,1,1,0],\"sliding_window\":128,"
                      "\"sliding_window_size\":128,\"swa_num_key_value_heads\":8,"
                      "\"swa_head_dim\":24,\"swa_v_head_dim\":16,\"swa_num_attention_heads\":8,"
                      "\"moe_layer_freq\":[0,1,0,1],\"rope_theta\":5000000,"
                      "\"swa_rope_theta\":10000,\"partial_rotary_factor\":0.334,"
                      "\"layernorm_epsilon\":1e-4,\"routed_scaling_factor\":null,"
                      "\"add_swa_attention_sink_bias\":true,\"attention_value_scale\":null,"
                      "\"add_full_attention_sink_bias\":false}"),
           ERR_OK, "a released one");
    ok(c.layer_kinds[3] == LAYER_FULL && c.window == 129 && c.n_kv_heads == 8 &&
           c.full_kv_heads == 2 && !c.layer_experts[2] && c.layer_experts[3] &&
           fabsf(c.norm.eps - 1e-4f) < 1e-9f && c.by.attention == 1.0f && c.experts.scale == 1.0f,
       "has what its fields say");
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    check_refused();
    check_olmo_hybrid();
    check_apertus();
    check_llama4();
    check_mimo();
    check_step();
    check_laguna();
    return tap_done();
}
