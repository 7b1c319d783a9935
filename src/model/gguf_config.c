/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the settings of a GGUF file into the config.json of the same model, which the reader of
 * config.json then checks: so both kinds of files give the same plan, with the same bounds.
 *
 * The table `families` has a row per value of general.architecture. Tensors have the same names in
 * all families. Three things differ from the family's own checkpoints: rows of queries and keys may
 * be permuted (is_permuted), norms hold the weight itself where the family stores weight - 1, and
 * matrices are never transposed, nor is a fused projection in the order of heads. Which biases,
 * fused matrices and output matrix exist is read from the list of tensors.
 *
 * Source of the names and keys: gguf-py/gguf/constants.py of ggml-org/llama.cpp. */
#include "model/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/gguf.h"
#include "base/json.h"
#include "base/log.h"
#include "model/config_source.h"
#include "model/gguf_parts.h"

/* Members of rows of models with states (gguf_states.c). */
#define STATES(of_put, of_names) \
    .renorms = true, .put = (of_put), .name_tensors = (of_names), .set_form = gguf_states_set_form
#define STATES_DELTA                                                                               \
    .has_post_names = true, .renorms = true, .own = gguf_states_own, .put = gguf_states_put_delta, \
    .name_tensors = gguf_states_name_delta, .set_form = gguf_states_set_delta

static const struct gguf_family families[] = {
    {.name = "llama",
     .arch = "LlamaForCausalLM",
     .is_permuted = true,
     .renorms = true,
     .find_arch = gguf_family_find_llama},
    {.name = "mistral3", .arch = "Ministral3ForCausalLM", .is_permuted = true},
    {.name = "arcee", .arch = "ArceeForCausalLM", .is_permuted = true},
    {.name = "qwen2", .arch = "Qwen2ForCausalLM"},
    {.name = "qwen2vl", .arch = "Qwen2VLForConditionalGeneration"},
    {.name = "qwen3", .arch = "Qwen3ForCausalLM"},
    {.name = "qwen3vl", .arch = "Qwen3VLForConditionalGeneration"},
    {.name = "gemma", .arch = "GemmaForCausalLM"},
    {.name = "gemma2", .arch = "Gemma2ForCausalLM", .window = 4096, .put = gguf_family_put_gemma2},
    {.name = "gemma3", .arch = "Gemma3ForCausalLM", .put = gguf_family_put_gemma3},
    {.name = "gemma4",
     .arch = "Gemma4ForCausalLM",
     .own = gguf_gemma4_own,
     .put = gguf_gemma4_put,
     .name_tensors = gguf_gemma4_name_tensors,
     .set_form = gguf_gemma4_set_form},
    {.name = "phi2", .arch = "PhiForCausalLM"},
    {.name = "phi3", .arch = "Phi3ForCausalLM"},
    {.name = "starcoder2", .arch = "Starcoder2ForCausalLM"},
    {.name = "gpt2", .arch = "GPT2LMHeadModel"},
    {.name = "gptneox", .arch = "GPTNeoXForCausalLM"},
    {.name = "command-r", .arch = "CohereForCausalLM"},
    {.name = "cohere2", .arch = "Cohere2ForCausalLM"},
    {.name = "granite", .arch = "GraniteForCausalLM", .is_permuted = true},
    {.name = "granite_swa",
     .arch = "GraniteSWAForCausalLM",
     .is_permuted = true,
     .find_arch = gguf_family_find_granite_swa,
     .put = gguf_family_put_granite_swa},
    {.name = "olmo", .arch = "OlmoForCausalLM", .is_permuted = true},
    {.name = "olmo2", .arch = "Olmo2ForCausalLM", .find_arch = gguf_family_find_olmo},
    {.name = "stablelm", .arch = "StableLmForCausalLM"},
    {.name = "nemotron", .arch = "NemotronForCausalLM"},
    {.name = "exaone4", .arch = "Exaone4ForCausalLM"},
    {.name = "chatglm", .arch = "GlmForCausalLM"},
    {.name = "glm4", .arch = "Glm4ForCausalLM", .set_form = gguf_family_set_glm4},
    {.name = "smollm3", .arch = "SmolLM3ForCausalLM", .is_permuted = true},
    {.name = "seed_oss", .arch = "SeedOssForCausalLM", .has_post_names = true},
    {.name = "ernie4_5", .arch = "Ernie4_5ForCausalLM"},
    {.name = "hunyuan-dense", .arch = "HunYuanDenseV1ForCausalLM"},
    {.name = "internlm2", .arch = "InternLM2ForCausalLM", .is_permuted = true},
    {.name = "jais2", .arch = "Jais2ForCausalLM"},
    {.name = "minicpm",
     .arch = "MiniCPMForCausalLM",
     .is_permuted = true,
     .set_form = gguf_family_set_minicpm},
    {.name = "muse-glimmer",
     .arch = "MuseGlimmerForConditionalGeneration",
     .is_permuted = true,
     .put = gguf_family_put_muse},
    /* Mixtures of experts. */
    {.name = "qwen2moe", .arch = "Qwen2MoeForCausalLM"},
    {.name = "qwen3moe", .arch = "Qwen3MoeForCausalLM", .renorms = true},
    {.name = "qwen3vlmoe", .arch = "Qwen3VLMoeForConditionalGeneration", .renorms = true},
    {.name = "gpt-oss",
     .arch = "GptOssForCausalLM",
     .has_post_names = true,
     .set_form = gguf_family_set_gpt_oss},
    {.name = "glm4moe", .arch = "Glm4MoeForCausalLM", .has_post_names = true},
    {.name = "ernie4_5-moe", .arch = "Ernie4_5_MoeForCausalLM", .renorms = true},
    {.name = "olmoe", .arch = "OlmoeForCausalLM"},
    {.name = "granitemoe", .arch = "GraniteMoeForCausalLM", .is_permuted = true},
    {.name = "phimoe", .arch = "PhimoeForCausalLM"},
    {.name = "bailingmoe2", .arch = "BailingMoeV2ForCausalLM"},
    {.name = "hunyuan-moe", .arch = "HunYuanMoEV1ForCausalLM", .renorms = true},
    {.name = "minimax-m2", .arch = "MiniMaxM2ForCausalLM", .renorms = true},
    {.name = "dots1", .arch = "Dots1ForCausalLM"},
    {.name = "exaone-moe", .arch = "ExaoneMoeForCausalLM"},
    {.name = "afmoe", .arch = "AfmoeForCausalLM", .renorms = true, .put = gguf_family_put_afmoe},
    {.name = "mellum",
     .arch = "MellumForCausalLM",
     .renorms = true,
     .set_form = gguf_family_set_mellum},
    {.name = "hy_v3", .arch = "HYV3ForCausalLM", .renorms = true},
    /* Latent attention. */
    {.name = "deepseek2",
     .arch = "DeepseekV2ForCausalLM",
     .is_latent = true,
     .find_arch = gguf_latent_find_deepseek,
     .put = gguf_latent_put,
     .name_tensors = gguf_latent_name_tensors},
    {.name = "deepseek32",
     .arch = "DeepseekV32ForCausalLM",
     .is_latent = true,
     .put = gguf_latent_put_index,
     .name_tensors = gguf_latent_name_tensors},
    {.name = "glm-dsa",
     .arch = "GlmMoeDsaForCausalLM",
     .is_latent = true,
     .put = gguf_latent_put_index,
     .name_tensors = gguf_latent_name_tensors},
    {.name = "mistral4",
     .arch = "Mistral4ForCausalLM",
     .is_latent = true,
     .put = gguf_latent_put,
     .name_tensors = gguf_latent_name_tensors},
    {.name = "minicpm3",
     .arch = "MiniCPM3ForCausalLM",
     .is_latent = true,
     .put = gguf_latent_put_minicpm3,
     .name_tensors = gguf_latent_name_tensors},
    /* States. */
    {.name = "qwen3next", .arch = "Qwen3NextForCausalLM", STATES_DELTA},
    {.name = "qwen35", .arch = "Qwen3_5ForCausalLM", STATES_DELTA},
    {.name = "qwen35moe", .arch = "Qwen3_5MoeForCausalLM", STATES_DELTA},
    {.name = "kimi-linear",
     .arch = "KimiLinearForCausalLM",
     .is_latent = true,
     STATES(gguf_states_put_kimi, gguf_states_name_kimi),
     .own = gguf_states_own},
    {.name = "nemotron_h",
     .arch = "NemotronHForCausalLM",
     STATES(gguf_states_put_nemotron, gguf_states_name_nemotron),
     .own = gguf_states_own_all},
    {.name = "nemotron_h_moe",
     .arch = "NemotronHForCausalLM",
     STATES(gguf_states_put_nemotron, gguf_states_name_nemotron),
     .plain_experts = true,
     .own = gguf_states_own_all},
    {.name = "granitehybrid",
     .arch = "GraniteMoeHybridForCausalLM",
     .is_permuted = true,
     STATES(gguf_states_put_granite, gguf_states_name_mamba),
     .own = gguf_states_own},
    {.name = "falcon-h1",
     .arch = "FalconH1ForCausalLM",
     STATES(gguf_states_put_falcon, gguf_states_name_mamba),
     .own = gguf_states_own},
    {.name = "lfm2",
     .arch = "Lfm2ForCausalLM",
     STATES(gguf_states_put_lfm2, gguf_states_name_lfm2),
     .own = gguf_states_own},
    {.name = "lfm2moe",
     .arch = "Lfm2MoeForCausalLM",
     STATES(gguf_states_put_lfm2, gguf_states_name_lfm2),
     .own = gguf_states_own},
};

#define N_FAMILIES (sizeof families / sizeof families[0])

/* --- the text ------------------------------------------------------------------------------- */

/* Numbers that config.json has under another name. A field that the family does not know is
 * ignored, so one table serves all. */
static void gguf_config_put_numbers(struct gguf_reading *r)
{
    static const struct {
        const char *key, *field;
    } numbers[] = {
        {"embedding_length", "hidden_size"},
        {"attention.head_count", "num_attention_heads"},
        {"attention.head_count_kv", "num_key_value_heads"},
        {"feed_forward_length", "intermediate_size"},
        {"context_length", "max_position_embeddings"},
        {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
        {"attention.layer_norm_epsilon", "layer_norm_eps"},
        {"rope.freq_base", "rope_theta"},
        {"rope.freq_base_swa", "rope_local_base_freq"},
        {"embedding_scale", "embedding_multiplier"},
        {"residual_scale", "residual_multiplier"},
        {"attention.scale", "attention_multiplier"},
        {"logit_scale", "logits_scaling"},
        {"logit_scale", "logit_scale"},
        {"final_logit_softcapping", "final_logit_softcapping"},
        {"attn_logit_softcapping", "attn_logit_softcapping"},
    };
    double number;

    gguf_config_put_number(r, "num_hidden_layers", gguf_config_layers(r));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!gguf_config_is_own(r, numbers[i].key) &&
            gguf_config_number(r, numbers[i].key, &number))
            gguf_config_put_number(r, numbers[i].field, number);
    }
    if (!r->family->is_latent && !gguf_config_is_own(r, "heads") &&
        gguf_config_number(r, "attention.key_length", &number))
        gguf_config_put_number(r, "head_dim", number);
}

/* Switches by the list of tensors. */
static void gguf_config_put_flags(struct gguf_reading *r)
{
    bool has_norms = gguf_config_has_tensor(r, "blk.0.attn_q_norm.weight");

    gguf_config_put_flag(r, "tie_word_embeddings", !gguf_config_has_tensor(r, "output.weight"));
    if (gguf_config_find(r, "use_parallel_residual") != NULL)
        gguf_config_put_flag(r, "use_parallel_residual",
                             gguf_config_flag_or(r, "use_parallel_residual", false));
    /* Families whose norms of heads are an option name it so; they refuse it. */
    if (has_norms && r->arch->qk_norm == QK_NORM_NONE) {
        gguf_config_put_flag(r, "use_qk_norm", true);
        gguf_config_put_flag(r, "qk_layernorm", true);
    }
}

/* A window of some layers: every n-th sees all, or a flag per layer says which do not. Without a
 * window, families with a preset must not use it. */
static void gguf_config_put_window(struct gguf_reading *r)
{
    const struct gguf_value *pattern = gguf_config_find(r, "attention.sliding_window_pattern");
    double window = gguf_config_number_or(r, "attention.sliding_window", r->family->window), has;
    uint64_t n = (uint64_t)gguf_config_layers(r);

    if (!(window > 0.0)) {
        gguf_config_put(r, "sliding_window");
        buf_add_text(&r->text, "null");
        return;
    }
    gguf_config_put_number(r, "sliding_window", window);
    if (pattern == NULL)
        return;
    if (!pattern->is_list && gguf_item(pattern, 0, &has)) {
        gguf_config_put_number(r, "sliding_window_pattern", has);
        return;
    }
    gguf_config_put(r, "layer_types");
    buf_add_byte(&r->text, '[');
    for (uint64_t i = 0; i < n && gguf_item(pattern, i, &has); i++)
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "",
                   has != 0.0 ? "sliding_attention" : "full_attention");
    buf_add_byte(&r->text, ']');
}

/* --- rotary positions ------------------------------------------------------------------------- */

/* A float32 vector as a list of numbers. */
static void gguf_config_put_vector(struct gguf_reading *r, const char *field,
                                   const struct gguf_tensor *t)
{
    if (t->n_dims != 1 || strcmp(t->type, "F32") != 0 || t->bytes > 4 * K_HEAD_DIM_MAX) {
        gguf_config_refuse(r, ERR_INVALID, "tensor %s must be one row of at most %d float32",
                           t->name, K_HEAD_DIM_MAX);
        return;
    }
    buf_printf(&r->text, ",\"%s\":[", field);
    for (size_t i = 0; i < t->bytes / 4; i++) {
        float number;

        memcpy(&number, t->data + 4 * i, sizeof number);
        buf_add_comma(&r->text, i > 0);
        json_write_real(&r->text, (double)number);
    }
    buf_add_byte(&r->text, ']');
}

/* A frequency is divided by a factor of its own: Llama 3's scaling is stored so, as one list, and
 * longrope as two. Both are longrope to config.json. */
static void gguf_config_put_factors(struct gguf_reading *r, const char *short_name,
                                    const char *long_name)
{
    const struct gguf_tensor *near = gguf_find_tensor(r->g, short_name);
    const struct gguf_tensor *far = gguf_find_tensor(r->g, long_name);

    if (near == NULL || far == NULL) {
        gguf_config_refuse(r, ERR_NOT_FOUND, "tensor %s is missing",
                           near == NULL ? short_name : long_name);
        return;
    }
    buf_add_text(&r->text, ",\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":1.0");
    gguf_config_put_vector(r, "short_factor", near);
    gguf_config_put_vector(r, "long_factor", far);
    gguf_config_put_number(r, "original_max_position_embeddings",
                           gguf_config_number_or(r, "rope.scaling.original_context_length",
                                                 gguf_config_number_or(r, "context_length", 1.0)));
    gguf_config_put_number(r, "attention_factor",
                           gguf_config_number_or(r, "rope.scaling.attn_factor", 1.0));
    buf_add_byte(&r->text, '}');
}

/* Scalings by a rule, with the fields of config.json. */
static void gguf_config_put_scaling(struct gguf_reading *r, const char *type)
{
    static const struct {
        const char *key, *field;
    } numbers[] = {
        {"rope.scaling.factor", "factor"},
        {"rope.scaling.original_context_length", "original_max_position_embeddings"},
        {"rope.scaling.yarn_attn_factor", "attention_factor"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
        {"attention.temperature_scale", "llama_4_scaling_beta"},
    };
    double number, by = gguf_config_number_or(r, "rope.scaling.yarn_log_multiplier", 0.0);

    buf_printf(&r->text, ",\"rope_scaling\":{\"rope_type\":\"%s\"", type);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (gguf_config_number(r, numbers[i].key, &number))
            gguf_config_put_number(r, numbers[i].field, number);
    }
    /* With latents a tenth of mscale_all_dim, in single precision. The file does not have mscale,
     * which is equal to it in these models: so cosines are not multiplied, and scores are, by the
     * factor of both. In others mscale is 1. */
    if (r->family->is_latent)
        by = round(by * 1e7) / 1e6;
    if (by != 0.0) {
        gguf_config_put_number(r, "mscale", r->family->is_latent ? by : 1.0);
        gguf_config_put_number(r, "mscale_all_dim", by);
    }
    buf_add_byte(&r->text, '}');
}

/* The part of a head that rotates. A quarter of an element is added, so that rounding down gives
 * the whole number again. */
static void gguf_config_put_rotary_part(struct gguf_reading *r)
{
    double head_dim = gguf_config_number_or(r, "embedding_length", 0.0) /
                      gguf_config_number_or(r, "attention.head_count", 1.0);
    double rotary;

    head_dim = gguf_config_number_or(r, "attention.key_length", head_dim);
    rotary = gguf_config_number_or(r, "rope.dimension_count", head_dim);
    if (gguf_config_number_or(r, "attention.value_length", head_dim) != head_dim)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "values of another length than keys");
    if (rotary < head_dim)
        gguf_config_put_number(r, "partial_rotary_factor", (rotary + 0.25) / head_dim);
    else if (r->arch->rotary_part > 0.0)
        gguf_config_put_number(r, "partial_rotary_factor", 1.0);
}

static void gguf_config_put_rope(struct gguf_reading *r)
{
    struct gguf_text type = {"none", 4};
    char key[128];

    if (gguf_config_is_own(r, "rope"))
        return;
    if (!r->family->is_latent)
        gguf_config_put_rotary_part(r);
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", r->family->name); /* keys are short */
    if (!gguf_get_text(r->g, key, &type) && gguf_find(r->g, key) != NULL)
        gguf_config_refuse(r, ERR_INVALID, "%s must be a text", key); /* "none" when missing */
    if (gguf_text_is(type, "linear") || gguf_text_is(type, "yarn"))
        gguf_config_put_scaling(r, type.len == 4 ? "yarn" : "linear");
    else if (gguf_text_is(type, "longrope") ||
             gguf_config_has_tensor(r, "rope_factors_long.weight"))
        gguf_config_put_factors(r, "rope_factors_short.weight", "rope_factors_long.weight");
    else if (gguf_config_has_tensor(r, "rope_freqs.weight"))
        gguf_config_put_factors(r, "rope_freqs.weight", "rope_freqs.weight");
    else if (!gguf_text_is(type, "none"))
        gguf_config_refuse(r, ERR_UNSUPPORTED, "position scaling \"%.*s\" is not supported",
                           (int)(type.len < 40 ? type.len : 40), type.bytes);
}

/* --- the whole file --------------------------------------------------------------------------- */

/* The row of general.architecture. */
static void gguf_config_find_family(struct gguf_reading *r)
{
    struct gguf_text name = {"", 0};

    if (!gguf_get_text(r->g, "general.architecture", &name)) {
        gguf_config_refuse(r, ERR_INVALID, "general.architecture is missing");
        return;
    }
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (gguf_text_is(name, families[i].name))
            r->family = &families[i];
    }
    if (r->family == NULL)
        gguf_config_refuse(r, ERR_UNSUPPORTED,
                           "architecture \"%.*s\" of a GGUF file is not served "
                           "(docs/models-and-formats.md lists all that are)",
                           (int)(name.len < 40 ? name.len : 40), name.bytes);
}

/* Settings that change the result in a way that no family computes, or only with yarn. */
static void gguf_config_check(struct gguf_reading *r)
{
    double growth = gguf_config_number_or(r, "attention.temperature_scale", 0.0);
    double length = gguf_config_number_or(r, "rope.scaling.original_context_length", 0.0);

    if (gguf_config_number_or(r, "attention.clamp_kqv", 0.0) > 0.0)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.attention.clamp_kqv is not supported",
                           r->family->name);
    if (!gguf_config_flag_or(r, "attention.causal", true))
        gguf_config_refuse(r, ERR_UNSUPPORTED, "attention in both directions is not supported");
    if (growth != 0.0 && (length == 0.0 || gguf_config_number_or(r, "attention.temperature_length",
                                                                 length) != length))
        gguf_config_refuse(r, ERR_UNSUPPORTED,
                           "%s.attention.temperature_scale needs a temperature_length that is "
                           "rope.scaling.original_context_length",
                           r->family->name);
}

static void gguf_config_make_text(struct gguf_reading *r)
{
    const struct gguf_tensor *embed = gguf_find_tensor(r->g, "token_embd.weight");

    gguf_config_find_family(r);
    if (r->rc != ERR_OK)
        return;
    r->arch = arch_find(r->family->find_arch != NULL ? r->family->find_arch(r) : r->family->arch);
    if (embed == NULL || embed->n_dims != 2)
        gguf_config_refuse(r, ERR_NOT_FOUND, "tensor token_embd.weight is missing");
    if (r->rc != ERR_OK)
        return;
    buf_printf(&r->text, "{\"architectures\":[\"%s\"]", r->arch->name);
    gguf_config_put_number(r, "vocab_size", (double)embed->dims[0]);
    gguf_config_check(r);
    gguf_config_put_numbers(r);
    gguf_config_put_flags(r);
    gguf_config_put_window(r);
    gguf_config_put_rope(r);
    if (gguf_experts_exist(r))
        gguf_experts_put(r);
    if (r->family->put != NULL)
        r->family->put(r);
    buf_add_byte(&r->text, '}');
    if (r->text.failed)
        gguf_config_refuse(r, ERR_NO_MEMORY, "out of memory");
}

/* The names of all tensors, without those that the family does not have. */
static struct arch_names gguf_config_names(struct gguf_reading *r, const struct hf_config *c)
{
    struct arch_names names = {.embed = "token_embd.weight",
                               .positions = "position_embd.weight",
                               .norm = "output_norm.weight",
                               .head = "output.weight",
                               .norm_attn = GGUF_LAYER "attn_norm.weight",
                               .norm_attn_after = GGUF_LAYER "post_attention_norm.weight",
                               .attn_gate = GGUF_LAYER "attn_gate.weight",
                               .sinks = GGUF_LAYER "attn_sinks.weight",
                               .attn = GGUF_LAYER "attn.weight",
                               .q = GGUF_LAYER "attn_q.weight",
                               .k = GGUF_LAYER "attn_k.weight",
                               .v = GGUF_LAYER "attn_v.weight",
                               .o = GGUF_LAYER "attn_output.weight",
                               .q_norm = GGUF_LAYER "attn_q_norm.weight",
                               .k_norm = GGUF_LAYER "attn_k_norm.weight",
                               .norm_mlp = GGUF_LAYER "ffn_norm.weight",
                               .norm_mlp_after = GGUF_LAYER "post_ffw_norm.weight",
                               .gate = GGUF_LAYER "ffn_gate.weight",
                               .up = GGUF_LAYER "ffn_up.weight",
                               .down = GGUF_LAYER "ffn_down.weight",
                               .router = GGUF_LAYER "ffn_gate_inp.weight",
                               .router_bias = GGUF_LAYER "exp_probs_b.bias",
                               .experts_gate = GGUF_LAYER "ffn_gate_exps.weight",
                               .experts_up = GGUF_LAYER "ffn_up_exps.weight",
                               .experts_down = GGUF_LAYER "ffn_down_exps.weight",
                               .shared_gate = GGUF_LAYER "ffn_gate_shexp.weight",
                               .shared_up = GGUF_LAYER "ffn_up_shexp.weight",
                               .shared_down = GGUF_LAYER "ffn_down_shexp.weight",
                               .shared_switch = GGUF_LAYER "ffn_gate_inp_shexp.weight"};

    if (r->arch->names->norm_mlp == NULL)
        names.norm_mlp = NULL;
    if (r->arch->names->attn_gate == NULL)
        names.attn_gate = NULL;
    if (r->family->has_post_names)
        names.norm_mlp = names.norm_attn_after;
    if (gguf_config_has_tensor(r, "blk.0.attn_qkv.weight"))
        names.qkv = GGUF_LAYER "attn_qkv.weight";
    if (c->ffn == FFN_GATED && !r->family->is_latent &&
        !gguf_config_has_tensor(r, "blk.0.ffn_gate.weight"))
        names.gate_up = names.up;
    gguf_experts_name_tensors(r, c, &names);
    if (r->family->name_tensors != NULL)
        r->family->name_tensors(r, c, &names);
    return names;
}

/* What the tensors of the file differ in from the family's own checkpoints. */
static void gguf_config_set_form(struct gguf_reading *r, struct hf_config *c)
{
    c->form = (struct tensor_form){.names = gguf_config_names(r, c), .fused = ARCH_STACKED};
    c->norm.plus_one = false;
    for (int i = 0; i < c->n_ropes && r->family->is_permuted; i++)
        c->ropes[i].interleaved = true;
    c->qkv_bias = gguf_config_has_tensor(r, "blk.0.attn_q.bias") ||
                  gguf_config_has_tensor(r, "blk.0.attn_qkv.bias");
    c->o_bias = gguf_config_has_tensor(r, "blk.0.attn_output.bias");
    c->mlp_bias = gguf_config_has_tensor(r, "blk.0.ffn_up.bias");
    c->head_bias = gguf_config_has_tensor(r, "output.bias");
    if (gguf_experts_exist(r))
        gguf_experts_set_form(r, c);
    if (r->family->set_form != NULL)
        r->family->set_form(r, c);
}

/* The ids that end a text, as generation_config.json has them. */
static void gguf_config_ends(const struct gguf *g, struct buf *out)
{
    int32_t ids[HF_CONFIG_EOS_MAX];
    int n = gguf_ends(g, ids, HF_CONFIG_EOS_MAX);

    buf_add_text(out, "{\"eos_token_id\":[");
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]);
    buf_add_text(out, "]}");
}

int gguf_config_read(struct hf_config *out, const char *path, const char *overrides)
{
    char why[GGUF_WHY_CAP] = "";
    struct gguf_reading reading = {.why = why};
    struct buf ends = {.bytes = NULL}, merged = {.bytes = NULL};
    struct gguf_file *file = NULL;
    struct hf_config config;
    int rc = gguf_open_set(&file, path, why, sizeof why);

    if (rc != ERR_OK) {
        log_error("model: %s", why);
        return rc;
    }
    reading.g = gguf_of(file);
    gguf_config_make_text(&reading);
    rc = reading.rc;
    if (rc != ERR_OK) {
        log_error("model: %s: %s", path, why);
        goto out;
    }
    gguf_config_ends(reading.g, &ends);
    if (ends.failed)
        rc = ERR_NO_MEMORY;
    else if (overrides == NULL || overrides[0] == '\0')
        buf_add(&merged, reading.text.bytes, reading.text.len);
    else
        rc = config_override(&merged, reading.text.bytes, reading.text.len, overrides);
    if (rc == ERR_OK && merged.failed)
        rc = ERR_NO_MEMORY;
    if (rc == ERR_OK)
        rc = hf_config_parse(&config, path, merged.bytes, merged.len, ends.bytes, ends.len);
    if (rc != ERR_OK)
        goto out;
    gguf_config_set_form(&reading, &config);
    rc = reading.rc;
    if (rc != ERR_OK) {
        log_error("model: %s: %s", path, why);
        goto out;
    }
    *out = config;
out:
    buf_fini(&merged);
    buf_fini(&ends);
    buf_fini(&reading.text);
    gguf_close(file);
    return rc;
}
