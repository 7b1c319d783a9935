/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF files of models with latent attention: those of DeepSeek, and families like them. */
#include "model/gguf_parts.h"

#include <string.h>

#include "base/err.h"

/* DeepSeek V2, V3 and families like it share a name. V3 chooses experts by a sigmoid, with a bias,
 * which tells it where the setting is missing; Youtu has no experts. */
const char *gguf_latent_find_deepseek(struct gguf_reading *r)
{
    double gating = gguf_config_number_or(r, "expert_gating_func", 0.0);

    if (!gguf_experts_exist(r))
        return "YoutuForCausalLM";
    if (gating == 2.0 || (gating == 0.0 && gguf_experts_have(r, "exp_probs_b.bias")))
        return "DeepseekV3ForCausalLM";
    return r->family->arch;
}

/* Lengths of heads. Where keys and values of heads are made by tensors of their own, the plain
 * settings are those of a latent, and these have _mla. */
static void gguf_latent_put_heads(struct gguf_reading *r)
{
    double rope = gguf_config_number_or(r, "rope.dimension_count", 0.0);
    double key = gguf_config_number_or(r, "attention.key_length", 0.0);
    double value = gguf_config_number_or(r, "embedding_length", 0.0) /
                   gguf_config_number_or(r, "attention.head_count", 1.0);
    double rank;

    value = gguf_config_number_or(r, "attention.value_length", value);
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

void gguf_latent_put(struct gguf_reading *r)
{
    gguf_latent_put_heads(r);
    if (strcmp(r->arch->name, "DeepseekV2ForCausalLM") == 0 &&
        gguf_config_number_or(r, "expert_group_count", 1.0) > 1.0)
        buf_add_text(&r->text, ",\"topk_method\":\"group_limited_greedy\"");
}

/* The factors of MiniCPM 3 are no settings. */
void gguf_latent_put_minicpm3(struct gguf_reading *r)
{
    gguf_latent_put_heads(r);
    gguf_config_put_number(r, "scale_emb", 12.0);
    gguf_config_put_number(r, "scale_depth", 1.4);
    gguf_config_put_number(r, "dim_model_base", 256.0);
}

/* The choice of tokens. Without a list all layers make their own choice, but in GLM 5.2, which is
 * known by its context. */
void gguf_latent_put_index(struct gguf_reading *r)
{
    int n = gguf_config_layers(r);

    gguf_latent_put_heads(r);
    gguf_config_put_number(r, "index_n_heads",
                           gguf_config_number_or(r, "attention.indexer.head_count", 0.0));
    gguf_config_put_number(r, "index_head_dim",
                           gguf_config_number_or(r, "attention.indexer.key_length", 0.0));
    gguf_config_put_number(r, "index_topk",
                           gguf_config_number_or(r, "attention.indexer.top_k", 0.0));
    if (gguf_config_find(r, "attention.indexer.types") == NULL &&
        strcmp(r->family->name, "glm-dsa") == 0 &&
        gguf_config_number_or(r, "context_length", 0.0) >= 1048576.0)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.attention.indexer.types is missing",
                           r->family->name);
    gguf_config_put(r, "indexer_types");
    buf_add_byte(&r->text, '[');
    for (int i = 0; i < n && r->rc == ERR_OK; i++)
        buf_printf(&r->text, "%s\"%s\"", i > 0 ? "," : "",
                   gguf_config_layer_number_or(r, "attention.indexer.types", i, 1.0) != 0.0
                       ? "full"
                       : "shared");
    buf_add_byte(&r->text, ']');
}

void gguf_latent_name_tensors(struct gguf_reading *r, const struct hf_config *c,
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
    names->index_q = GGUF_LAYER "indexer.attn_q_b.weight";
    names->index_k = GGUF_LAYER "indexer.attn_k.weight";
    names->index_norm = GGUF_LAYER "indexer.k_norm.weight";
    names->index_weights = GGUF_LAYER "indexer.proj.weight";
}
