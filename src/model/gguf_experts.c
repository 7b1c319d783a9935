/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts in GGUF files, of any family.
 *
 * A file has one tensor with all experts of a layer (but the first ones of Mixtral, which have one
 * per expert), and its settings have the same names in all
 * families. Fields of config.json have not: one value is written under each name that a family
 * reads it by, because a family ignores the names of others. Two facts are taken from the tensors
 * in place of the settings: which layers have experts, and the width of the shared expert, which
 * some writers give wrongly.
 *
 * Some files do not say how scores become weights, because llama.cpp has it in code; then it is
 * what the family computes. Where the file does say it, gguf_experts_check() compares. */
#include "model/gguf_parts.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"

/* Values of expert_gating_func. */
enum { GATING_SOFTMAX = 1, GATING_SIGMOID, GATING_TOP };

/* The tensor of a layer; NULL if there is none. */
static const struct gguf_tensor *gguf_experts_tensor(const struct gguf_reading *r, int layer,
                                                     const char *name)
{
    char full[128];

    (void)snprintf(full, sizeof full, "blk.%d.%s", layer, name); /* names are short */
    return gguf_find_tensor(r->g, full);
}

bool gguf_experts_exist(struct gguf_reading *r)
{
    return gguf_config_number_or(r, "expert_count", 0.0) > 0.0;
}

/* The first layer with experts; 0 if there is none. */
static int gguf_experts_first_layer(struct gguf_reading *r)
{
    int n = gguf_config_layers(r);

    for (int i = 0; i < n; i++) {
        if (gguf_experts_tensor(r, i, "ffn_gate_inp.weight") != NULL)
            return i;
    }
    return 0;
}

bool gguf_experts_have(struct gguf_reading *r, const char *name)
{
    return gguf_experts_tensor(r, gguf_experts_first_layer(r), name) != NULL;
}

/* Rows of the shared expert, 0 if there is none; of gate and up in one tensor, half of them. */
static double gguf_experts_shared_width(struct gguf_reading *r)
{
    int layer = gguf_experts_first_layer(r);
    const struct gguf_tensor *up = gguf_experts_tensor(r, layer, "ffn_up_shexp.weight");
    const struct gguf_tensor *gate = gguf_experts_tensor(r, layer, "ffn_gate_shexp.weight");

    if (up == NULL || up->n_dims != 2)
        return 0.0;
    return (double)up->dims[0] / (gate == NULL && !r->family->plain_experts ? 2.0 : 1.0);
}

/* The width of an expert, by the setting or by the tensor: older files have no setting. */
static double gguf_experts_width(struct gguf_reading *r)
{
    const struct gguf_tensor *down =
        gguf_experts_tensor(r, gguf_experts_first_layer(r), "ffn_down_exps.weight");
    double width = gguf_config_number_or(r, "expert_feed_forward_length", 0.0);

    if (width > 0.0 || down == NULL || down->n_dims != 3)
        return width;
    return (double)down->dims[2];
}

/* A number under each name that families have for it. */
static void gguf_experts_put_all(struct gguf_reading *r, const char *const *fields, double number)
{
    for (int i = 0; fields[i] != NULL; i++)
        gguf_config_put_number(r, fields[i], number);
}

void gguf_experts_put(struct gguf_reading *r)
{
    static const char *const used[] = {"num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts",
                                       NULL};
    static const char *const n_shared[] = {"n_shared_experts", "num_shared_experts",
                                           "num_shared_expert", "moe_num_shared_experts", NULL};
    static const char *const shared_widths[] = {"shared_expert_intermediate_size",
                                                "shared_intermediate_size",
                                                "moe_shared_expert_intermediate_size", NULL};
    static const char *const scales[] = {"routed_scaling_factor", "route_scale",
                                         "router_scaling_factor", NULL};
    double width = gguf_experts_width(r), shared = gguf_experts_shared_width(r);
    double scale = gguf_config_number_or(r, "expert_weights_scale", 1.0);

    gguf_config_put_number(r, "num_experts", gguf_config_number_or(r, "expert_count", 0.0));
    gguf_experts_put_all(r, used, gguf_config_number_or(r, "expert_used_count", 0.0));
    if (width > 0.0)
        gguf_config_put_number(r, "moe_intermediate_size", width);
    gguf_experts_put_all(r, n_shared, width > 0.0 ? round(shared / width) : 0.0);
    if (shared > 0.0)
        gguf_experts_put_all(r, shared_widths, shared);
    gguf_experts_put_all(r, scales, scale > 0.0 ? scale : 1.0);
    gguf_config_put_number(r, "n_group", gguf_config_number_or(r, "expert_group_count", 1.0));
    gguf_config_put_number(r, "topk_group",
                           gguf_config_number_or(r, "expert_group_used_count", 1.0));
    gguf_config_put_flag(r, "norm_topk_prob",
                         gguf_config_flag_or(r, "expert_weights_norm", r->family->renorms));
}

/* Does the family compute weights as the settings say? */
static void gguf_experts_check(struct gguf_reading *r, const struct hf_config *c)
{
    const struct experts_config *e = &c->experts;
    double gating = gguf_config_number_or(r, "expert_gating_func", 0.0);
    double scale = gguf_config_number_or(r, "expert_weights_scale", 0.0);
    bool is_same = gating == 0.0 || (gating == GATING_SOFTMAX && e->scoring == K_SCORE_SOFTMAX) ||
                   (gating == GATING_SIGMOID && e->scoring == K_SCORE_SIGMOID) ||
                   (gating == GATING_TOP && e->scoring == K_SCORE_TOP);

    if (e->n == 0)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s with a mixture of experts is not supported",
                           r->family->name);
    else if (!is_same)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.expert_gating_func %g is not supported",
                           r->family->name, gating);
    else if (scale > 0.0 && (float)scale != e->scale)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.expert_weights_scale %g is not supported",
                           r->family->name, scale);
    else if (gguf_config_flag_or(r, "expert_weights_norm", e->renorms) != e->renorms &&
             e->scoring != K_SCORE_TOP)
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s.expert_weights_norm is not supported",
                           r->family->name);
    else if (!e->has_bias &&
             (gguf_experts_have(r, "exp_probs_b.bias") || gguf_experts_have(r, "exp_probs_b")))
        gguf_config_refuse(r, ERR_UNSUPPORTED, "%s with tensors exp_probs_b is not supported",
                           r->family->name);
}

void gguf_experts_set_form(struct gguf_reading *r, struct hf_config *c)
{
    gguf_experts_check(r, c);
    /* The layers of a twin are not those of the file. */
    for (int i = 0; i < c->n_layers && !c->is_twin && r->rc == ERR_OK; i++)
        c->layer_experts[i] = gguf_experts_tensor(r, i, "ffn_gate_inp.weight") != NULL;
}

void gguf_experts_name_tensors(struct gguf_reading *r, const struct hf_config *c,
                               struct arch_names *names)
{
    if (!gguf_experts_exist(r))
        return;
    if (gguf_experts_have(r, "ffn_down.0.weight")) { /* files of Mixtral's first months */
        names->expert_gate = GGUF_LAYER "ffn_gate.%d.weight";
        names->expert_up = GGUF_LAYER "ffn_up.%d.weight";
        names->expert_down = GGUF_LAYER "ffn_down.%d.weight";
    }
    if (gguf_experts_have(r, "ffn_gate_up_exps.weight"))
        names->experts_gate_up = GGUF_LAYER "ffn_gate_up_exps.weight";
    if (!gguf_experts_have(r, "ffn_gate_shexp.weight") && !r->family->plain_experts)
        names->shared_gate_up = names->shared_up;
    if (!gguf_experts_have(r, "exp_probs_b.bias"))
        names->router_bias = GGUF_LAYER "exp_probs_b";
    if (c->experts.has_biases)
        names->router_bias = GGUF_LAYER "ffn_gate_inp.bias";
}
