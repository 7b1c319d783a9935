/* SPDX-License-Identifier: Apache-2.0
 *
 * One row per architecture. A family that is a Llama but for the fields of struct arch is a line
 * here; anything more is a field more. */
#include <stdio.h>
#include <string.h>

#include "model/config.h"

static const struct arch_names llama_names = {
    .embed = "model.embed_tokens.weight",
    .norm = "model.norm.weight",
    .head = "lm_head.weight",
    .norm_attn = "model.layers.%d.input_layernorm.weight",
    .attn = "model.layers.%d.self_attn.weight",
    .q = "model.layers.%d.self_attn.q_proj.weight",
    .k = "model.layers.%d.self_attn.k_proj.weight",
    .v = "model.layers.%d.self_attn.v_proj.weight",
    .o = "model.layers.%d.self_attn.o_proj.weight",
    .q_norm = "model.layers.%d.self_attn.q_norm.weight",
    .k_norm = "model.layers.%d.self_attn.k_norm.weight",
    .norm_mlp = "model.layers.%d.post_attention_layernorm.weight",
    .gate = "model.layers.%d.mlp.gate_proj.weight",
    .up = "model.layers.%d.mlp.up_proj.weight",
    .down = "model.layers.%d.mlp.down_proj.weight",
    .mixer_in = "model.layers.%d.mixer.in_proj.weight",
    .mixer_out = "model.layers.%d.mixer.o_proj.weight",
};

static const struct arch arch_table[] = {
    {.name = "LlamaForCausalLM", .reads_bias_switches = true, .names = &llama_names},
    {.name = "MistralForCausalLM", .window = ARCH_WINDOW_ALL, .names = &llama_names},
    {.name = "Qwen2ForCausalLM",
     .qkv_bias = true,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
    {.name = "Qwen3ForCausalLM",
     .reads_bias_switches = true,
     .qk_norm = true,
     .head_dim = 128,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
    {.name = "ToyRecurrentForCausalLM",
     .reads_bias_switches = true,
     .recurrent = true,
     .plain_ffn = true,
     .is_toy = true,
     .window = ARCH_WINDOW_LAYERS,
     .names = &llama_names},
};

const struct arch *arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof arch_table / sizeof arch_table[0]; i++) {
        if (strcmp(arch_table[i].name, name) == 0)
            return &arch_table[i];
    }
    return NULL;
}

void arch_list(char *out, size_t cap)
{
    size_t used = 0;

    for (size_t i = 0; i < sizeof arch_table / sizeof arch_table[0] && used < cap; i++) {
        int n = arch_table[i].is_toy
                    ? 0
                    : snprintf(out + used, cap - used, i == 0 ? "%s" : ", %s", arch_table[i].name);

        used += n < 0 ? cap : (size_t)n;
    }
}
