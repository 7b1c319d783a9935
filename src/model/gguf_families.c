/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings of GGUF files that one family has, or that llama.cpp has in code and no file names:
 * functions of the rows in gguf_config.c. */
#include "model/gguf_parts.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* --- architectures that share a name -------------------------------------------------------- */

/* Mixtral has the name of Llama, and experts. */
const char *gguf_family_find_llama(struct gguf_reading *r)
{
    return gguf_experts_exist(r) ? "MixtralForCausalLM" : r->family->arch;
}

/* OLMo 3 has the name of OLMo 2, and windows. */
const char *gguf_family_find_olmo(struct gguf_reading *r)
{
    if (gguf_config_find(r, "attention.sliding_window") != NULL)
        return "Olmo3ForCausalLM";
    return r->family->arch;
}

const char *gguf_family_find_granite_swa(struct gguf_reading *r)
{
    return gguf_experts_exist(r) ? "GraniteMoeSWAForCausalLM" : r->family->arch;
}

/* --- settings ------------------------------------------------------------------------------- */

/* Gemma's scale of scores is no setting: the largest model's is by another length than its
 * heads'. */
static void gguf_family_put_scale(struct gguf_reading *r, double largest)
{
    double wide = gguf_config_number_or(r, "embedding_length", 0.0) /
                  gguf_config_number_or(r, "attention.head_count", 1.0);

    if (gguf_config_number_or(r, "block_count", 0.0) != largest)
        wide = gguf_config_number_or(r, "attention.key_length", 256.0);
    gguf_config_put_number(r, "query_pre_attn_scalar", wide);
}

void gguf_family_put_gemma2(struct gguf_reading *r)
{
    gguf_family_put_scale(r, 46.0);
}

void gguf_family_put_gemma3(struct gguf_reading *r)
{
    gguf_family_put_scale(r, 62.0);
}

/* Which layers have positions, if some have none. */
void gguf_family_put_granite_swa(struct gguf_reading *r)
{
    int n = gguf_config_layers(r);
    double theta = gguf_config_number_or(r, "rope.freq_base", 10000.0);

    if (gguf_config_find(r, "attention.rope_pattern") == NULL)
        return;
    gguf_config_put(r, "layer_rope_theta");
    buf_add_byte(&r->text, '[');
    for (int i = 0; i < n && r->rc == ERR_OK; i++) {
        buf_add_comma(&r->text, i > 0);
        json_write_real(
            &r->text,
            gguf_config_layer_number_or(r, "attention.rope_pattern", i, 1.0) != 0.0 ? theta : 0.0);
    }
    buf_add_byte(&r->text, ']');
}

/* Norms of queries have no weights but one factor, which the file has as a vector. */
void gguf_family_put_muse(struct gguf_reading *r)
{
    const struct gguf_tensor *norm = gguf_find_tensor(r->g, "blk.0.attn_q_norm.weight");
    float factor = 0.0f;

    if (norm == NULL || strcmp(norm->type, "F32") != 0 || norm->bytes < sizeof factor) {
        gguf_config_refuse(r, ERR_NOT_FOUND, "tensor blk.0.attn_q_norm.weight is missing");
        return;
    }
    memcpy(&factor, norm->data, sizeof factor);
    gguf_config_put_number(r, "qk_scale_factor", (double)factor);
    gguf_config_put_number(r, "output_multiplier", gguf_config_number_or(r, "logit_scale", 1.0));
}

/* Embedded tokens are always scaled. */
void gguf_family_put_afmoe(struct gguf_reading *r)
{
    gguf_config_put_flag(r, "mup_enabled", true);
}

/* --- after the configuration is parsed ------------------------------------------------------ */

/* Files of vision models have rows of queries and keys in halves. */
void gguf_family_set_glm4(struct gguf_reading *r, struct hf_config *c)
{
    const struct gguf_value *sections = gguf_config_find(r, "rope.dimension_sections");
    double first = 0.0;

    if (sections != NULL && gguf_item(sections, 0, &first) && first > 0.0)
        c->ropes[0].interleaved = false;
}

/* YaRN's ramp has no whole numbers for ends, as config.json of all its models says. */
void gguf_family_set_gpt_oss(struct gguf_reading *r, struct hf_config *c)
{
    (void)r;
    c->ropes[0].truncates = false;
}

/* Layers with a window have a theta of their own. */
void gguf_family_set_mellum(struct gguf_reading *r, struct hf_config *c)
{
    c->ropes[1].theta = gguf_config_number_or(r, "rope.freq_base_swa", c->ropes[0].theta);
}

/* Factors as they are applied, where config.json has numbers that they are made of. Files without
 * them are of the first models. */
void gguf_family_set_minicpm(struct gguf_reading *r, struct hf_config *c)
{
    double depth = 1.4 / sqrt((double)c->n_layers), logits = (double)c->dim / 256.0;

    c->by.embedding = (float)gguf_config_number_or(r, "embedding_scale", 12.0);
    c->by.residual = (float)gguf_config_number_or(r, "residual_scale", depth);
    c->by.logits = (float)(1.0 / gguf_config_number_or(r, "logit_scale", logits));
}
