/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files of models with states: Gated DeltaNet (Qwen3-Next, Qwen3.5), Kimi Delta Attention
 * (Kimi-Linear), Mamba-2 (Nemotron-H, Granite 4 H, Falcon-H1) and short convolutions (LFM2).
 *
 * The kind of a layer is in lists: a layer with key-value heads has attention; in Nemotron-H one
 * with a feed-forward length is an FFN. Qwen's files have a flag per layer, older ones an interval,
 * and those of Ollama the key-value heads. Beside the names these differ from the family's own
 * checkpoints:
 *
 *   ssm_a                 -exp() of A_log, of Mamba-2 and the delta rule alike
 *   value heads, qwen35   in turns (slice.h): rows of qkv, z, b, a, channels of the convolution,
 *                         A_log, dt_bias, and columns of the last matrix; qwen3next has them in the
 *                         order of the key heads; files of Ollama have a flag for either
 *   qkv and z, qwen3next  apart, each in the order of the key heads; together in older files
 *   multipliers           Falcon-H1's are part of the matrices
 *   MTP layers            counted in block_count, behind the last layer
 *
 * Source: the converter and the loaders of ggml-org/llama.cpp. */
#include "model/gguf_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define FULL_INTERVAL 4 /* where full_attention_interval is missing */

/* --- settings that all have ----------------------------------------------------------------- */

/* These may be one number or one per layer. The second list is of models without positions, whose
 * files have a rotary length all the same, which is ignored. */
const char *const gguf_states_own[] = {"attention.head_count_kv", "feed_forward_length", NULL};
const char *const gguf_states_own_all[] = {"attention.head_count_kv", "feed_forward_length", "rope",
                                           NULL};

/* A number that must be there, from 1 to a million. */
static double states_number(struct gguf_reading *r, const char *key)
{
    double number = gguf_config_number_or(r, key, 0.0);

    if (number >= 1.0 && number <= 1e6)
        return number;
    gguf_config_refuse(r, ERR_INVALID, "%s.%s must be a number from 1 to 1000000", r->family->name,
                       key);
    return 1.0;
}

/* The number that all layers have for which it is not 0; 0 if there is none. Others are refused. */
static double states_common(struct gguf_reading *r, const char *key)
{
    int n = gguf_config_layers(r);
    double common = 0.0;

    for (int i = 0; i < n && r->rc == ERR_OK; i++) {
        double number = gguf_config_layer_number_or(r, key, i, 0.0);

        if (number != 0.0 && common != 0.0 && number != common)
            gguf_config_refuse(r, ERR_UNSUPPORTED,
                               "%s.%s has %g and %g, and different ones are not supported",
                               r->family->name, key, common, number);
        if (number != 0.0)
            common = number;
    }
    return common;
}

/* The number that all entries of a list share; kinds of layers are written apart. */
static void states_put_counts(struct gguf_reading *r)
{
    double heads = states_common(r, "attention.head_count_kv");
    double width = states_common(r, "feed_forward_length");

    if (heads > 0.0)
        gguf_config_put_number(r, "num_key_value_heads", heads);
    if (width > 0.0)
        gguf_config_put_number(r, "intermediate_size", width);
}

static bool states_has_attention(struct gguf_reading *r, int layer)
{
    return gguf_config_layer_number_or(r, "attention.head_count_kv", layer, 0.0) > 0.0;
}

/* A list of kinds by key-value heads. */
static void states_put_kinds(struct gguf_reading *r, const char *without)
{
    int n = gguf_config_layers(r);

    gguf_config_put(r, "layer_types");
    for (int i = 0; i < n && r->rc == ERR_OK; i++)
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "[",
                   states_has_attention(r, i) ? "full_attention" : without);
    buf_add_byte(&r->text, ']');
}

/* A number under another name. */
static void states_put(struct gguf_reading *r, const char *key, const char *field)
{
    gguf_config_put_number(r, field, states_number(r, key));
}

/* The inner width by the number of heads. */
static double states_head_dim(struct gguf_reading *r)
{
    double inner = states_number(r, "ssm.inner_size"), n = states_number(r, "ssm.time_step_rank");
    double dim = inner / n;

    if (dim >= 1.0 && dim == floor(dim))
        return dim;
    gguf_config_refuse(r, ERR_INVALID, "%s: %g heads do not divide ssm.inner_size %g",
                       r->family->name, n, inner);
    return 1.0;
}

/* Does a layer have a tensor of this name behind "blk.N."? */
static bool states_has(struct gguf_reading *r, const char *name)
{
    char whole[128];
    int n = gguf_config_layers(r);

    for (int i = 0; i < n; i++) {
        (void)snprintf(whole, sizeof whole, "blk.%d.%s", i, name); /* names are short */
        if (gguf_config_has_tensor(r, whole))
            return true;
    }
    return false;
}

/* Not every layer has attention or an FFN, so their biases are those of any layer. */
void gguf_states_set_form(struct gguf_reading *r, struct hf_config *c)
{
    c->form.has_rates = true;
    c->qkv_bias = states_has(r, "attn_q.bias");
    c->o_bias = states_has(r, "attn_output.bias");
    c->mlp_bias = states_has(r, "ffn_up.bias");
}

static void states_name_numbers(struct gguf_reading *r, struct arch_names *names)
{
    names->state_in = GGUF_LAYER "ssm_in.weight";
    names->state_conv = GGUF_LAYER "ssm_conv1d.weight";
    names->state_conv_bias = GGUF_LAYER "ssm_conv1d.bias";
    names->state_a_log = GGUF_LAYER "ssm_a";
    names->state_dt_bias =
        states_has(r, "ssm_dt") ? GGUF_LAYER "ssm_dt" : GGUF_LAYER "ssm_dt.bias"; /* or Ollama's */
    names->state_skip = GGUF_LAYER "ssm_d";
    names->state_norm = GGUF_LAYER "ssm_norm.weight";
    names->state_out = GGUF_LAYER "ssm_out.weight";
}

/* --- Gated DeltaNet ------------------------------------------------------------------------- */

static bool states_is_recurrent(struct gguf_reading *r, int layer, int every)
{
    const struct gguf_value *heads = gguf_config_find(r, "attention.head_count_kv");

    if (gguf_config_find(r, "attention.recurrent_layers") != NULL)
        return gguf_config_layer_number_or(r, "attention.recurrent_layers", layer, 0.0) != 0.0;
    if (heads != NULL && heads->is_list)
        return !states_has_attention(r, layer);
    return (layer + 1) % every != 0;
}

static void states_put_delta_kinds(struct gguf_reading *r)
{
    double every = gguf_config_number_or(r, "full_attention_interval", FULL_INTERVAL);
    int n = gguf_config_layers(r);

    if (!(every >= 1.0 && every <= HF_CONFIG_LAYERS_MAX)) {
        gguf_config_refuse(r, ERR_INVALID, "%s.full_attention_interval must be 1 to %d",
                           r->family->name, HF_CONFIG_LAYERS_MAX);
        return;
    }
    gguf_config_put(r, "layer_types");
    for (int i = 0; i < n && r->rc == ERR_OK; i++)
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "[",
                   states_is_recurrent(r, i, (int)every) ? "linear_attention" : "full_attention");
    buf_add_byte(&r->text, ']');
}

/* state_size is the length of keys; all of these models have values of the same length. */
void gguf_states_put_delta(struct gguf_reading *r)
{
    states_put_counts(r);
    states_put(r, "ssm.conv_kernel", "linear_conv_kernel_dim");
    states_put(r, "ssm.state_size", "linear_key_head_dim");
    states_put(r, "ssm.group_count", "linear_num_key_heads");
    states_put(r, "ssm.time_step_rank", "linear_num_value_heads");
    gguf_config_put_number(r, "linear_value_head_dim", states_head_dim(r));
    states_put_delta_kinds(r);
}

void gguf_states_name_delta(struct gguf_reading *r, const struct hf_config *c,
                            struct arch_names *names)
{
    (void)c;
    states_name_numbers(r, names);
    names->qkv = NULL; /* of that name are q, k and v of the delta rule */
    names->delta_qkv = GGUF_LAYER "attn_qkv.weight";
    names->delta_z = GGUF_LAYER "attn_gate.weight";
    names->delta_b = GGUF_LAYER "ssm_beta.weight";
    names->delta_a = GGUF_LAYER "ssm_alpha.weight";
    if (states_has(r, "ssm_ba.weight"))
        names->delta_ba = GGUF_LAYER "ssm_ba.weight";
    if (states_has(r, "ssm_in.weight"))
        names->delta_qkvz = GGUF_LAYER "ssm_in.weight";
}

static const struct mtp_names states_mtp_names = {.fc = GGUF_LAYER "nextn.eh_proj.weight",
                                                  .norm_embed = GGUF_LAYER "nextn.enorm.weight",
                                                  .norm_hidden = GGUF_LAYER "nextn.hnorm.weight",
                                                  .norm =
                                                      GGUF_LAYER "nextn.shared_head_norm.weight"};

void gguf_states_set_delta(struct gguf_reading *r, struct hf_config *c)
{
    gguf_states_set_form(r, c);
    c->form.mtp = &states_mtp_names;
    c->form.heads_in_turns =
        gguf_config_flag_or(r, "ssm.v_head_reordered", strcmp(r->family->name, "qwen3next") != 0);
}

/* --- Kimi Delta Attention ------------------------------------------------------------------- */

/* As many heads as attention has, in all released models; the matrix of their gates has a row for
 * each. */
static double states_kimi_heads(struct gguf_reading *r)
{
    int n = gguf_config_layers(r);

    for (int i = 0; i < n; i++) {
        const struct gguf_tensor *beta;
        char name[128];

        (void)snprintf(name, sizeof name, "blk.%d.ssm_beta.weight", i); /* names are short */
        beta = gguf_find_tensor(r->g, name);
        if (beta != NULL && beta->n_dims == 2)
            return (double)beta->dims[0];
    }
    return states_number(r, "attention.head_count");
}

void gguf_states_put_kimi(struct gguf_reading *r)
{
    states_put_counts(r);
    gguf_config_put_number(r, "linear_num_heads", states_kimi_heads(r));
    states_put(r, "kda.head_dim", "linear_head_dim");
    states_put(r, "ssm.conv_kernel", "linear_conv_kernel_dim");
    states_put_kinds(r, "linear_attention");
    gguf_latent_put(r);
}

void gguf_states_name_kimi(struct gguf_reading *r, const struct hf_config *c,
                           struct arch_names *names)
{
    gguf_latent_name_tensors(r, c, names);
    names->kv_b = GGUF_LAYER "attn_kv_b.weight";
    names->k_b = names->v_b = NULL;
    if (!states_has(r, "attn_kv_b.weight")) {
        names->k_b = GGUF_LAYER "attn_k_b.weight";
        names->v_b = GGUF_LAYER "attn_v_b.weight";
    }
    states_name_numbers(r, names);
    names->state_out = names->o;
    names->delta_q = names->q;
    names->delta_k = names->k;
    names->delta_v = names->v;
    names->q_conv = GGUF_LAYER "ssm_conv1d_q.weight";
    names->k_conv = GGUF_LAYER "ssm_conv1d_k.weight";
    names->v_conv = GGUF_LAYER "ssm_conv1d_v.weight";
    names->delta_b = GGUF_LAYER "ssm_beta.weight";
    names->delta_f_a = GGUF_LAYER "ssm_f_a.weight";
    names->delta_f_b = GGUF_LAYER "ssm_f_b.weight";
    names->delta_g_a = GGUF_LAYER "ssm_g_a.weight";
    names->delta_g_b = GGUF_LAYER "ssm_g_b.weight";
}

/* --- Mamba-2 -------------------------------------------------------------------------------- */

/* Granite's names of the fields, which Falcon-H1 shares. */
static void states_put_mamba(struct gguf_reading *r)
{
    states_put(r, "ssm.time_step_rank", "mamba_n_heads");
    gguf_config_put_number(r, "mamba_d_head", states_head_dim(r));
    states_put(r, "ssm.group_count", "mamba_n_groups");
    states_put(r, "ssm.state_size", "mamba_d_state");
    states_put(r, "ssm.conv_kernel", "mamba_d_conv");
    gguf_config_put_flag(r, "mamba_conv_bias", states_has(r, "ssm_conv1d.bias"));
    gguf_config_put_flag(r, "mamba_proj_bias", states_has(r, "ssm_in.bias"));
}

/* One mixer or one FFN a layer. */
static void states_put_blocks(struct gguf_reading *r, bool has_experts)
{
    int n = gguf_config_layers(r);

    gguf_config_put(r, "layers_block_type");
    for (int i = 0; i < n && r->rc == ERR_OK; i++) {
        bool has_attention = states_has_attention(r, i);
        bool has_ffn = gguf_config_layer_number_or(r, "feed_forward_length", i, 0.0) > 0.0;
        const char *kind = has_attention ? "full_attention"
                           : !has_ffn    ? "linear_attention"
                           : has_experts ? "moe"
                                         : "mlp";

        if (has_attention && has_ffn)
            gguf_config_refuse(r, ERR_INVALID,
                               "layer %d has attention.head_count_kv and feed_forward_length, and "
                               "only one of them is possible",
                               i);
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "[", kind);
    }
    buf_add_byte(&r->text, ']');
}

void gguf_states_put_nemotron(struct gguf_reading *r)
{
    bool has_experts = strcmp(r->family->name, "nemotron_h_moe") == 0;
    double latent;

    states_put_counts(r);
    states_put(r, "ssm.time_step_rank", "mamba_num_heads");
    gguf_config_put_number(r, "mamba_head_dim", states_head_dim(r));
    states_put(r, "ssm.group_count", "n_groups");
    states_put(r, "ssm.state_size", "ssm_state_size");
    states_put(r, "ssm.conv_kernel", "conv_kernel");
    gguf_config_put_flag(r, "use_conv_bias", states_has(r, "ssm_conv1d.bias"));
    gguf_config_put_flag(r, "use_bias", states_has(r, "ssm_in.bias"));
    states_put_blocks(r, has_experts);
    if (gguf_config_number(r, "moe_latent_size", &latent))
        gguf_config_put_number(r, "moe_latent_size", latent);
}

/* A layer has one norm, whatever it is. */
void gguf_states_name_nemotron(struct gguf_reading *r, const struct hf_config *c,
                               struct arch_names *names)
{
    (void)c;
    states_name_numbers(r, names);
    names->norm_mlp = names->norm_attn;
    names->latent_in = GGUF_LAYER "ffn_latent_down.weight";
    names->latent_out = GGUF_LAYER "ffn_latent_up.weight";
}

/* Positions rotate where a switch of another purpose says so. The converter puts the rows of whole
 * heads in the order of pairs. Where a part of each head rotates, as in Bamba, these pairs are
 * others than the model's. */
static void states_put_granite_rope(struct gguf_reading *r)
{
    double head_dim =
        states_number(r, "embedding_length") / states_number(r, "attention.head_count");

    if (!gguf_config_flag_or(r, "rope.scaling.finetuned", true))
        return;
    head_dim = gguf_config_number_or(r, "attention.key_length", head_dim);
    if (gguf_config_number_or(r, "rope.dimension_count", head_dim) != head_dim)
        gguf_config_refuse(r, ERR_UNSUPPORTED,
                           "%s with positions in a part of each head (Bamba) is not supported",
                           r->family->name);
    buf_add_text(&r->text, ",\"position_embedding_type\":\"rope\"");
}

/* Granite 4 H. Without a scale scores have that of their heads; the family's own default is
 * another. */
void gguf_states_put_granite(struct gguf_reading *r)
{
    double n_experts = gguf_config_number_or(r, "expert_count", 0.0), number;
    double dim = states_number(r, "embedding_length"), inner = states_number(r, "ssm.inner_size");

    states_put_counts(r);
    states_put_mamba(r);
    gguf_config_put_number(r, "mamba_expand", inner / dim);
    states_put_kinds(r, "mamba");
    states_put_granite_rope(r);
    if (!gguf_config_number(r, "attention.scale", &number) || number == 0.0) {
        number = dim / states_number(r, "attention.head_count");
        number = gguf_config_number_or(r, "attention.key_length", number);
        gguf_config_put_number(r, "attention_multiplier", number > 0.0 ? 1.0 / sqrt(number) : 0.0);
    }
    gguf_config_put_number(r, "num_local_experts", n_experts);
    if (n_experts == 0.0) {
        number = states_common(r, "feed_forward_length");
        number = gguf_config_number_or(r, "expert_shared_feed_forward_length", number);
        gguf_config_put_number(r, "shared_intermediate_size", number);
    }
}

void gguf_states_name_mamba(struct gguf_reading *r, const struct hf_config *c,
                            struct arch_names *names)
{
    (void)c;
    states_name_numbers(r, names);
    if (states_has(r, "ffn_norm")) /* Falcon-H1's, without an ending */
        names->norm_mlp = GGUF_LAYER "ffn_norm";
}

/* Of the orders of norm and gate the file has one. */
void gguf_states_put_falcon(struct gguf_reading *r)
{
    states_put_counts(r);
    states_put_mamba(r);
    states_put(r, "ssm.inner_size", "mamba_d_ssm");
    gguf_config_put_flag(r, "mamba_rms_norm", states_has(r, "ssm_norm.weight"));
    gguf_config_put_flag(r, "mamba_norm_before_gate", false);
}

/* --- short convolutions --------------------------------------------------------------------- */

void gguf_states_put_lfm2(struct gguf_reading *r)
{
    if (gguf_config_number_or(r, "attention.sliding_window", 0.0) > 0.0)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s with windows is not supported", r->family->name);
    states_put_counts(r);
    states_put(r, "shortconv.l_cache", "conv_L_cache");
    gguf_config_put_flag(r, "block_auto_adjust_ff_dim", false);
    states_put_kinds(r, "conv");
}

/* The last norm has a name of its own in all but the oldest files. */
void gguf_states_name_lfm2(struct gguf_reading *r, const struct hf_config *c,
                           struct arch_names *names)
{
    (void)c;
    names->state_in = GGUF_LAYER "shortconv.in_proj.weight";
    names->state_conv = GGUF_LAYER "shortconv.conv.weight";
    names->state_out = GGUF_LAYER "shortconv.out_proj.weight";
    if (!gguf_config_has_tensor(r, "output_norm.weight"))
        names->norm = "token_embd_norm.weight";
}
