/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files of Gemma 4: layers with a window and layers that see all tokens have heads of
 * different sizes and numbers, so some settings are lists. */
#include "model/gguf_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define KV_HEADS "attention.head_count_kv"
#define FF_DIM   "feed_forward_length"

const char *const gguf_gemma4_own[] = {KV_HEADS, FF_DIM, "heads", "rope", NULL};

/* The first layer with a window, or the first without one; -1 if there is none. */
static int gguf_gemma4_find_layer(struct gguf_reading *r, bool has_window)
{
    int n = gguf_config_layers(r);

    for (int i = 0; i < n && r->rc == ERR_OK; i++) {
        double window = gguf_config_layer_number_or(r, "attention.sliding_window_pattern", i, 0.0);

        if ((window != 0.0) == has_window)
            return i;
    }
    return -1;
}

/* Layers that see all tokens have no tensor of values if keys are values. */
static void gguf_gemma4_put_heads(struct gguf_reading *r)
{
    int window = gguf_gemma4_find_layer(r, true), full = gguf_gemma4_find_layer(r, false);
    char name[64];

    if (window < 0 || full < 0) {
        gguf_config_refuse(r, ERR_INVALID,
                           "%s.attention.sliding_window_pattern must have layers of both kinds",
                           r->family->name);
        return;
    }
    (void)snprintf(name, sizeof name, "blk.%d.attn_v.weight", full); /* fits */
    gguf_config_put_flag(r, "attention_k_eq_v", !gguf_config_has_tensor(r, name));
    gguf_config_put_number(r, "head_dim",
                           gguf_config_number_or(r, "attention.key_length_swa", 0.0));
    gguf_config_put_number(r, "global_head_dim",
                           gguf_config_number_or(r, "attention.key_length", 0.0));
    gguf_config_put_number(r, "num_key_value_heads",
                           gguf_config_layer_number_or(r, KV_HEADS, window, 0.0));
    gguf_config_put_number(r, "num_global_key_value_heads",
                           gguf_config_layer_number_or(r, KV_HEADS, full, 0.0));
}

/* FFNs of layers that share keys and values may be twice as wide. */
static void gguf_gemma4_put_widths(struct gguf_reading *r)
{
    int n = gguf_config_layers(r);
    double shared = gguf_config_number_or(r, "attention.shared_kv_layers", 0.0);
    double first = gguf_config_layer_number_or(r, FF_DIM, 0, 0.0), last = first;

    if (n > 0)
        last = gguf_config_layer_number_or(r, FF_DIM, n - 1, 0.0);
    for (int i = 0; i < n && r->rc == ERR_OK; i++) {
        double wanted = i + shared < n ? first : last;

        if (gguf_config_layer_number_or(r, FF_DIM, i, 0.0) != wanted ||
            (wanted != first && wanted != 2.0 * first))
            gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.%s of layer %d is not supported",
                               r->family->name, FF_DIM, i);
    }
    gguf_config_put_number(r, "intermediate_size", first);
    gguf_config_put_number(r, "num_kv_shared_layers", shared);
    gguf_config_put_flag(r, "use_double_wide_mlp", last != first);
}

/* The pairs of a head that rotate in layers that see all tokens: their frequencies are divided by
 * 1, those of the others by a number so large that they stand still. */
static double gguf_gemma4_rotary_part(struct gguf_reading *r)
{
    const struct gguf_tensor *factors = gguf_find_tensor(r->g, "rope_freqs.weight");
    double head_dim = gguf_config_number_or(r, "attention.key_length", 0.0), n_rotate = 0.0;
    size_t n;

    if (factors == NULL)
        return 1.0;
    n = factors->bytes / sizeof(float);
    if (strcmp(factors->type, "F32") != 0 || (double)n != head_dim / 2.0) {
        gguf_config_refuse(r, ERR_INVALID, "tensor rope_freqs.weight must have %g float32",
                           head_dim / 2.0);
        return 1.0;
    }
    for (size_t i = 0; i < n; i++) {
        float factor;

        memcpy(&factor, factors->data + i * sizeof factor, sizeof factor);
        if (factor == 1.0f && n_rotate == (double)i)
            n_rotate++;
        else if (factor < 1e20f)
            gguf_config_refuse(r, ERR_UNSUPPORTED, "factor %zu of rope_freqs.weight is %g", i,
                               (double)factor);
    }
    return (n_rotate + 0.25) / (double)n; /* rounded down it is n_rotate again */
}

static void gguf_gemma4_put_rope(struct gguf_reading *r)
{
    double theta = gguf_config_number_or(r, "rope.freq_base", 1000000.0);
    double local = gguf_config_number_or(r, "rope.freq_base_swa", 10000.0);
    double part = gguf_gemma4_rotary_part(r);

    if (gguf_config_number_or(r, "rope.dimension_count_swa",
                              gguf_config_number_or(r, "attention.key_length_swa", 0.0)) !=
        gguf_config_number_or(r, "attention.key_length_swa", 0.0))
        gguf_config_refuse(r, ERR_UNSUPPORTED,
                           "%s.rope.dimension_count_swa must be the length of a key",
                           r->family->name);
    buf_add_text(&r->text, ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
                           "\"proportional\",\"partial_rotary_factor\":");
    json_write_real(&r->text, part > 1.0 ? 1.0 : part);
    gguf_config_put_number(r, "rope_theta", theta);
    buf_add_text(&r->text, "},\"sliding_attention\":{\"rope_type\":\"default\"");
    gguf_config_put_number(r, "rope_theta", local);
    buf_add_text(&r->text, "}}");
}

void gguf_gemma4_put(struct gguf_reading *r)
{
    const struct gguf_tensor *table = gguf_find_tensor(r->g, "per_layer_token_embd.weight");

    gguf_gemma4_put_heads(r);
    gguf_gemma4_put_widths(r);
    gguf_gemma4_put_rope(r);
    gguf_config_put_number(r, "hidden_size_per_layer_input",
                           gguf_config_number_or(r, "embedding_length_per_layer_input", 0.0));
    if (table != NULL && table->n_dims == 2)
        gguf_config_put_number(r, "vocab_size_per_layer_input", (double)table->dims[0]);
    gguf_config_put_flag(r, "enable_moe_block", gguf_experts_exist(r));
}

void gguf_gemma4_name_tensors(struct gguf_reading *r, const struct hf_config *c,
                              struct arch_names *names)
{
    (void)r, (void)c;
    names->norm_router = GGUF_LAYER "ffn_gate_inp.scale";
    names->router_scales = GGUF_LAYER "ffn_down_exps.scale";
    names->shared_gate = names->gate;
    names->shared_up = names->up;
    names->shared_down = names->down;
    names->shared_gate_up = NULL;
    names->norm_experts = GGUF_LAYER "pre_ffw_norm_2.weight";
    names->norm_experts_after = GGUF_LAYER "post_ffw_norm_2.weight";
    names->norm_shared_after = GGUF_LAYER "post_ffw_norm_1.weight";
    names->embeds = "per_layer_token_embd.weight";
    names->embeds_in = "per_layer_model_proj.weight";
    names->norm_embeds = "per_layer_proj_norm.weight";
    names->embed_gate = GGUF_LAYER "inp_gate.weight";
    names->embed_out = GGUF_LAYER "proj.weight";
    names->norm_embed_after = GGUF_LAYER "post_norm.weight";
    names->layer_scale = GGUF_LAYER "layer_output_scale.weight";
}

void gguf_gemma4_set_form(struct gguf_reading *r, struct hf_config *c)
{
    c->has_layer_scale = gguf_config_has_tensor(r, "blk.0.layer_output_scale.weight");
}
