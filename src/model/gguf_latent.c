/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files of models with latent attention: DeepSeek V2, V3 and Kimi K2, with their experts. */
#include "model/gguf_parts.h"

#include "base/err.h"

/* DeepSeek V3 has the name of V2, and chooses experts by a sigmoid. */
const char *gguf_latent_find_arch(struct gguf_reading *r)
{
    if (gguf_config_number_or(r, "expert_gating_func", 1.0) == 2.0)
        return "DeepseekV3ForCausalLM";
    return r->family->arch;
}

/* Lengths of heads. Where keys and values of heads are made by tensors of their own, the plain
 * settings are those of a latent, and these have _mla. */
static void gguf_latent_put_heads(struct gguf_reading *r)
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
static void gguf_latent_put_experts(struct gguf_reading *r)
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

void gguf_latent_put(struct gguf_reading *r)
{
    gguf_latent_put_heads(r);
    gguf_latent_put_experts(r);
}

void gguf_latent_name_tensors(const struct gguf_reading *r, const struct hf_config *c,
                              struct arch_names *names)
{
    (void)c;
    names->q_a = GGUF_LAYER "attn_q_a.weight";
    names->norm_q_a = GGUF_LAYER "attn_q_a_norm.weight";
    names->q_b = GGUF_LAYER "attn_q_b.weight";
    names->kv_a = GGUF_LAYER "attn_kv_a_mqa.weight";
    names->norm_kv_a = GGUF_LAYER "attn_kv_a_norm.weight";
    names->kv_b = GGUF_LAYER "attn_kv_b.weight";
    if (!gguf_config_has_tensor(r, "blk.0.attn_kv_b.weight")) {
        names->k_b = GGUF_LAYER "attn_k_b.weight";
        names->v_b = GGUF_LAYER "attn_v_b.weight";
    }
}
