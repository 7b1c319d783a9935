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
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/gguf.h"
#include "base/log.h"

#define WHY_CAP 400

static const struct family {
    const char *name; /* general.architecture */
    const char *arch; /* architectures[0] of config.json */
    /* Rows of queries and keys of each head are in the order of pairs of neighbours, as rotary
     * positions were first defined; in the family's own checkpoints in halves. */
    bool is_permuted;
    bool has_post_names; /* the norm before the FFN is named post_attention_norm */
    bool is_latent;      /* latent attention, and experts */
} families[] = {
    {.name = "llama", .arch = "LlamaForCausalLM", .is_permuted = true},
    {.name = "qwen2", .arch = "Qwen2ForCausalLM"},
    {.name = "qwen2vl", .arch = "Qwen2VLForConditionalGeneration"},
    {.name = "qwen3", .arch = "Qwen3ForCausalLM"},
    {.name = "qwen3vl", .arch = "Qwen3VLForConditionalGeneration"},
    {.name = "gemma", .arch = "GemmaForCausalLM"},
    {.name = "gemma3", .arch = "Gemma3ForCausalLM"},
    {.name = "phi2", .arch = "PhiForCausalLM"},
    {.name = "phi3", .arch = "Phi3ForCausalLM"},
    {.name = "starcoder2", .arch = "Starcoder2ForCausalLM"},
    {.name = "gpt2", .arch = "GPT2LMHeadModel"},
    {.name = "gptneox", .arch = "GPTNeoXForCausalLM"},
    {.name = "command-r", .arch = "CohereForCausalLM"},
    {.name = "cohere2", .arch = "Cohere2ForCausalLM"},
    {.name = "granite", .arch = "GraniteForCausalLM", .is_permuted = true},
    {.name = "olmo2", .arch = "Olmo2ForCausalLM"},
    {.name = "stablelm", .arch = "StableLmForCausalLM"},
    {.name = "nemotron", .arch = "NemotronForCausalLM"},
    {.name = "exaone4", .arch = "Exaone4ForCausalLM"},
    {.name = "glm4", .arch = "Glm4ForCausalLM"},
    {.name = "smollm3", .arch = "SmolLM3ForCausalLM", .is_permuted = true},
    {.name = "seed_oss", .arch = "SeedOssForCausalLM", .has_post_names = true},
    {.name = "deepseek2", .arch = "DeepseekV2ForCausalLM", .is_latent = true},
};

#define N_FAMILIES (sizeof families / sizeof families[0])

/* The file that is read, and the text that is made. */
struct reading {
    const struct gguf *g;
    const struct family *family;
    const struct arch *arch;
    struct buf text;
    char *why; /* [WHY_CAP] */
    int rc;    /* the first error; later ones are ignored */
};

__attribute__((format(printf, 3, 4))) static void gguf_config_refuse(struct reading *r, int rc,
                                                                     const char *format, ...)
{
    va_list args;

    if (r->rc != ERR_OK)
        return;
    va_start(args, format);
    (void)vsnprintf(r->why, WHY_CAP, format, args); /* cut is fine */
    va_end(args);
    r->rc = rc;
}

/* --- settings of the family ----------------------------------------------------------------- */

/* The key of a setting of this family: "llama." before it. */
static const struct gguf_value *gguf_config_find(const struct reading *r, const char *key)
{
    char name[128];

    (void)snprintf(name, sizeof name, "%s.%s", r->family->name, key); /* keys are short */
    return gguf_find(r->g, name);
}

/* A number that may be given once or for each layer, then the same for all. False if it is
 * missing. */
static bool gguf_config_number(struct reading *r, const char *key, double *out)
{
    const struct gguf_value *value = gguf_config_find(r, key);
    double number = 0.0, other;

    if (value == NULL)
        return false;
    if (!gguf_item(value, 0, &number) || !isfinite(number))
        gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a number", r->family->name, key);
    for (uint64_t i = 1; i < value->n && r->rc == ERR_OK; i++) {
        if (!gguf_item(value, i, &other) || other != number)
            gguf_config_refuse(r, ERR_UNSUPPORTED,
                               "%s.%s differs between layers, which is not supported",
                               r->family->name, key);
    }
    *out = number;
    return r->rc == ERR_OK;
}

static double gguf_config_number_or(struct reading *r, const char *key, double preset)
{
    double number;

    if (gguf_config_number(r, key, &number))
        return number;
    return preset;
}

/* A flag; the preset if it is missing. */
static bool gguf_config_flag_or(struct reading *r, const char *key, bool preset)
{
    const struct gguf_value *value = gguf_config_find(r, key);

    if (value == NULL)
        return preset;
    if (value->kind == GGUF_FLAG && !value->is_list)
        return value->bytes[0] != 0;
    gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a flag", r->family->name, key);
    return preset;
}

static bool gguf_config_has_tensor(const struct reading *r, const char *name)
{
    return gguf_find_tensor(r->g, name) != NULL;
}

/* --- the text ------------------------------------------------------------------------------- */

static void gguf_config_put(struct reading *r, const char *field)
{
    buf_printf(&r->text, ",\"%s\":", field);
}

/* Whole numbers without a point, because the reader refuses them otherwise. */
static void gguf_config_put_number(struct reading *r, const char *field, double number)
{
    gguf_config_put(r, field);
    if (number >= -1e15 && number <= 1e15 && number == (double)(int64_t)number)
        buf_printf(&r->text, "%lld", (long long)number);
    else
        json_write_real(&r->text, number);
}

static void gguf_config_put_flag(struct reading *r, const char *field, bool flag)
{
    gguf_config_put(r, field);
    buf_add_text(&r->text, json_flag_text(flag));
}

/* Numbers that config.json has under another name. A field that the family does not know is
 * ignored, so one table serves all. */
static void gguf_config_put_numbers(struct reading *r)
{
    static const struct {
        const char *key, *field;
    } numbers[] = {
        {"embedding_length", "hidden_size"},
        {"block_count", "num_hidden_layers"},
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

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (gguf_config_number(r, numbers[i].key, &number))
            gguf_config_put_number(r, numbers[i].field, number);
    }
    if (!r->family->is_latent && gguf_config_number(r, "attention.key_length", &number))
        gguf_config_put_number(r, "head_dim", number);
}

/* Switches by the list of tensors. */
static void gguf_config_put_flags(struct reading *r)
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
static void gguf_config_put_window(struct reading *r)
{
    const struct gguf_value *pattern = gguf_config_find(r, "attention.sliding_window_pattern");
    double window = gguf_config_number_or(r, "attention.sliding_window", 0.0), has;

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
    for (uint64_t i = 0; i < pattern->n && gguf_item(pattern, i, &has); i++)
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "",
                   has != 0.0 ? "sliding_attention" : "full_attention");
    buf_add_byte(&r->text, ']');
}

/* --- rotary positions ------------------------------------------------------------------------- */

/* A float32 vector as a list of numbers. */
static void gguf_config_put_vector(struct reading *r, const char *field,
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
static void gguf_config_put_factors(struct reading *r, const char *short_name,
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
static void gguf_config_put_scaling(struct reading *r, const char *type)
{
    static const struct {
        const char *key, *field;
    } numbers[] = {
        {"rope.scaling.factor", "factor"},
        {"rope.scaling.original_context_length", "original_max_position_embeddings"},
        {"rope.scaling.yarn_attn_factor", "attention_factor"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
    };
    double number, by = gguf_config_number_or(r, "rope.scaling.yarn_log_multiplier", 0.0);

    buf_printf(&r->text, ",\"rope_scaling\":{\"rope_type\":\"%s\"", type);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (gguf_config_number(r, numbers[i].key, &number))
            gguf_config_put_number(r, numbers[i].field, number);
    }
    /* A tenth of mscale_all_dim, in single precision. The file does not have mscale, which is equal
     * to it in these models: so cosines are not multiplied, and scores by what the two say. */
    if (r->family->is_latent && by != 0.0) {
        by = round(by * 1e7) / 1e6;
        gguf_config_put_number(r, "mscale", by);
        gguf_config_put_number(r, "mscale_all_dim", by);
    }
    buf_add_byte(&r->text, '}');
}

/* The part of a head that rotates. A quarter of an element is added, so that rounding down gives
 * the whole number again. */
static void gguf_config_put_rotary_part(struct reading *r)
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

static void gguf_config_put_rope(struct reading *r)
{
    struct gguf_text type = {"none", 4};
    char key[128];

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

/* --- latent attention and its experts ------------------------------------------------------- */

/* Lengths of heads. Where keys and values of heads are made by tensors of their own, the plain
 * settings are those of a latent, and these have _mla. */
static void gguf_config_put_latent_heads(struct reading *r)
{
    double rope = gguf_config_number_or(r, "rope.dimension_count", 0.0);
    double key = gguf_config_number_or(r, "attention.key_length", 0.0);
    double value = gguf_config_number_or(r, "attention.value_length", 0.0), rank;

    key = gguf_config_number_or(r, "attention.key_length_mla", key);
    value = gguf_config_number_or(r, "attention.value_length_mla", value);
    if (!(key > rope && rope > 0.0)) {
        gguf_config_refuse(r, ERR_INVALID,
                           "%s: a key of %g elements, of which %g rotate, is not possible",
                           r->family->name, key, rope);
        return;
    }
    gguf_config_put_number(r, "qk_rope_head_dim", rope);
    gguf_config_put_number(r, "qk_nope_head_dim", key - rope);
    gguf_config_put_number(r, "v_head_dim", value);
    gguf_config_put_number(r, "kv_lora_rank",
                           gguf_config_number_or(r, "attention.kv_lora_rank", 0.0));
    if (gguf_config_number(r, "attention.q_lora_rank", &rank) && rank > 0.0)
        gguf_config_put_number(r, "q_lora_rank", rank);
    else
        buf_add_text(&r->text, ",\"q_lora_rank\":null");
}

/* Experts by softmax are DeepSeek V2's, by sigmoid V3's; files without the setting are older than
 * V3. */
static void gguf_config_put_experts(struct reading *r)
{
    static const struct {
        const char *key, *field;
        double preset;
    } numbers[] = {
        {"expert_count", "n_routed_experts", 0.0},
        {"expert_used_count", "num_experts_per_tok", 0.0},
        {"expert_shared_count", "n_shared_experts", 0.0},
        {"expert_feed_forward_length", "moe_intermediate_size", 0.0},
        {"expert_weights_scale", "routed_scaling_factor", 1.0},
        {"leading_dense_block_count", "first_k_dense_replace", 0.0},
        {"expert_group_count", "n_group", 1.0},
        {"expert_group_used_count", "topk_group", 1.0},
    };
    bool is_sigmoid = gguf_config_number_or(r, "expert_gating_func", 1.0) == 2.0;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        gguf_config_put_number(r, numbers[i].field,
                               gguf_config_number_or(r, numbers[i].key, numbers[i].preset));
    gguf_config_put_flag(r, "norm_topk_prob", gguf_config_flag_or(r, "expert_weights_norm", false));
    if (!is_sigmoid && gguf_config_number_or(r, "expert_group_count", 1.0) > 1.0)
        buf_add_text(&r->text, ",\"topk_method\":\"group_limited_greedy\"");
}

/* --- the whole file --------------------------------------------------------------------------- */

/* The row of general.architecture; a message that lists the known ones otherwise. */
static void gguf_config_find_family(struct reading *r)
{
    struct gguf_text name = {"", 0};
    char known[WHY_CAP - 100] = "";

    if (!gguf_get_text(r->g, "general.architecture", &name)) {
        gguf_config_refuse(r, ERR_INVALID,
                           "general.architecture is missing (of a set of files, name the first)");
        return;
    }
    for (size_t i = 0; i < N_FAMILIES; i++) {
        size_t len = strlen(known);

        if (gguf_text_is(name, families[i].name))
            r->family = &families[i];
        (void)snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "",
                       families[i].name);
    }
    if (r->family == NULL)
        gguf_config_refuse(r, ERR_UNSUPPORTED,
                           "architecture \"%.*s\" is not supported; these are: %s",
                           (int)(name.len < 40 ? name.len : 40), name.bytes, known);
}

/* OLMo 3 has the name of OLMo 2, and windows. */
static const char *gguf_config_arch_name(struct reading *r)
{
    if (strcmp(r->family->name, "olmo2") == 0 &&
        gguf_config_find(r, "attention.sliding_window") != NULL)
        return "Olmo3ForCausalLM";
    if (r->family->is_latent && gguf_config_number_or(r, "expert_gating_func", 1.0) == 2.0)
        return "DeepseekV3ForCausalLM";
    return r->family->arch;
}

/* Gemma 3's scale of scores is no setting: the largest model's is by another length than its
 * heads'. */
static void gguf_config_put_gemma3(struct reading *r)
{
    double layers = gguf_config_number_or(r, "block_count", 0.0);
    double wide = gguf_config_number_or(r, "embedding_length", 0.0) /
                  gguf_config_number_or(r, "attention.head_count", 1.0);

    if (strcmp(r->family->name, "gemma3") != 0)
        return;
    if (layers != 62.0)
        wide = gguf_config_number_or(r, "attention.key_length", 256.0);
    gguf_config_put_number(r, "query_pre_attn_scalar", wide);
}

static void gguf_config_make_text(struct reading *r)
{
    const struct gguf_tensor *embed = gguf_find_tensor(r->g, "token_embd.weight");

    gguf_config_find_family(r);
    if (r->rc != ERR_OK)
        return;
    r->arch = arch_find(gguf_config_arch_name(r));
    if (!r->family->is_latent && gguf_config_number_or(r, "expert_count", 0.0) > 0.0)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "mixtures of experts are not supported");
    if (embed == NULL || embed->n_dims != 2)
        gguf_config_refuse(r, ERR_NOT_FOUND, "tensor token_embd.weight is missing");
    if (r->rc != ERR_OK)
        return;
    buf_printf(&r->text, "{\"architectures\":[\"%s\"]", r->arch->name);
    gguf_config_put_number(r, "vocab_size", (double)embed->dims[0]);
    gguf_config_put_numbers(r);
    gguf_config_put_flags(r);
    gguf_config_put_window(r);
    gguf_config_put_gemma3(r);
    gguf_config_put_rope(r);
    if (r->family->is_latent) {
        gguf_config_put_latent_heads(r);
        gguf_config_put_experts(r);
    }
    buf_add_byte(&r->text, '}');
    if (r->text.failed)
        gguf_config_refuse(r, ERR_NO_MEMORY, "out of memory");
}

#define LAYER "blk.%d."

/* Of latent attention and of experts. */
static void gguf_config_name_latent(const struct reading *r, struct arch_names *names)
{
    names->q_a = LAYER "attn_q_a.weight";
    names->norm_q_a = LAYER "attn_q_a_norm.weight";
    names->q_b = LAYER "attn_q_b.weight";
    names->kv_a = LAYER "attn_kv_a_mqa.weight";
    names->norm_kv_a = LAYER "attn_kv_a_norm.weight";
    names->kv_b = LAYER "attn_kv_b.weight";
    if (!gguf_config_has_tensor(r, "blk.0.attn_kv_b.weight")) {
        names->k_b = LAYER "attn_k_b.weight";
        names->v_b = LAYER "attn_v_b.weight";
    }
    names->router = LAYER "ffn_gate_inp.weight";
    names->router_bias = LAYER "exp_probs_b.bias";
    names->experts_gate = LAYER "ffn_gate_exps.weight";
    names->experts_up = LAYER "ffn_up_exps.weight";
    names->experts_down = LAYER "ffn_down_exps.weight";
    names->shared_gate = LAYER "ffn_gate_shexp.weight";
    names->shared_up = LAYER "ffn_up_shexp.weight";
    names->shared_down = LAYER "ffn_down_shexp.weight";
}

/* The names of all tensors, without those that the family does not have. */
static struct arch_names gguf_config_names(const struct reading *r, const struct hf_config *c)
{
    struct arch_names names = {.embed = "token_embd.weight",
                               .positions = "position_embd.weight",
                               .norm = "output_norm.weight",
                               .head = "output.weight",
                               .norm_attn = LAYER "attn_norm.weight",
                               .norm_attn_after = LAYER "post_attention_norm.weight",
                               .attn = LAYER "attn.weight",
                               .q = LAYER "attn_q.weight",
                               .k = LAYER "attn_k.weight",
                               .v = LAYER "attn_v.weight",
                               .o = LAYER "attn_output.weight",
                               .q_norm = LAYER "attn_q_norm.weight",
                               .k_norm = LAYER "attn_k_norm.weight",
                               .norm_mlp = LAYER "ffn_norm.weight",
                               .norm_mlp_after = LAYER "post_ffw_norm.weight",
                               .gate = LAYER "ffn_gate.weight",
                               .up = LAYER "ffn_up.weight",
                               .down = LAYER "ffn_down.weight"};

    if (r->family->is_latent)
        gguf_config_name_latent(r, &names);
    if (r->arch->names->norm_mlp == NULL)
        names.norm_mlp = NULL;
    if (r->family->has_post_names)
        names.norm_mlp = names.norm_attn_after;
    if (gguf_config_has_tensor(r, "blk.0.attn_qkv.weight"))
        names.qkv = LAYER "attn_qkv.weight";
    if (c->ffn == FFN_GATED && !r->family->is_latent &&
        !gguf_config_has_tensor(r, "blk.0.ffn_gate.weight"))
        names.gate_up = names.up;
    return names;
}

/* What the tensors of the file differ in from the family's own checkpoints. */
static void gguf_config_set_form(const struct reading *r, struct hf_config *c)
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

int gguf_config_read(struct hf_config *out, const char *path)
{
    char why[WHY_CAP] = "";
    struct reading reading = {.why = why};
    struct buf ends = {.bytes = NULL};
    struct gguf_file *file = NULL;
    struct hf_config config;
    int rc = gguf_open(&file, path, why, sizeof why);

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
    else
        rc = hf_config_parse(&config, path, reading.text.bytes, reading.text.len, ends.bytes,
                             ends.len);
    if (rc != ERR_OK)
        goto out;
    gguf_config_set_form(&reading, &config);
    *out = config;
out:
    buf_fini(&ends);
    buf_fini(&reading.text);
    gguf_close(file);
    return rc;
}
