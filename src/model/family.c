/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json that only one family of models has. Meanings and defaults are those of the
 * configuration classes in transformers.
 *
 * Each function runs after the common fields were read (hf_config.c) and changes the config. A
 * field whose other value would change the result in a way that no kernel computes is refused,
 * because computing something else silently would be worse. */
#include "model/family.h"

#include <math.h>

#include "base/log.h"

/* Refuse a switch whose other value would change the result in a way that is not computed. */
static void family_require_flag(struct config_source *s, const struct json *obj, const char *field,
                                bool value)
{
    if (source_flag(s, obj, field, value) != value) {
        log_error("model: %s: %s must be %s", s->name, field, value ? "true" : "false");
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* Let all layers of one kind use another rope. */
static void family_give_rope(struct hf_config *c, enum layer_kind kind, int rope)
{
    for (int i = 0; i < c->n_layers; i++) {
        if (c->layer_kinds[i] == kind)
            c->layer_ropes[i] = (uint8_t)rope;
    }
}

/* Refuse a cap of attention scores, because no kernel applies one. */
static void family_refuse_score_cap(struct config_source *s, const struct json *obj)
{
    const struct json *cap = json_get(obj, "attn_logit_softcapping");

    if (cap != NULL && cap->kind != JSON_NULL) {
        log_error("model: %s: attn_logit_softcapping is not supported", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

void family_cohere(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_require_flag(s, obj, "use_qk_norm", false);
    c->by.logits = (float)source_positive(s, obj, "logit_scale", 0.0625);
}

/* Full-attention layers have no positions; those with a window use the rope. */
void family_cohere2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->by.logits = (float)source_positive(s, obj, "logit_scale", 0.0625);
    family_give_rope(c, LAYER_FULL, config_add_no_rope(c));
}

/* A list of whole numbers from 0; its length, at most `most`. */
static int family_list(struct config_source *s, const struct json *obj, const char *field, int *out,
                       int most)
{
    const struct json *list = json_get(obj, field);
    int n = 0;

    if (list == NULL || list->kind == JSON_NULL)
        return 0;
    if (list->kind == JSON_LIST && list->n >= 1 && list->n <= (uint32_t)most) {
        while (n < (int)list->n && list->items[n].kind == JSON_INT && list->items[n].whole >= 0 &&
               list->items[n].whole < HF_CONFIG_LAYERS_MAX) {
            out[n] = (int)list->items[n].whole;
            n++;
        }
    }
    if (n == 0 || n < (int)list->n) {
        log_error("model: %s: %s must be a list of 1 to %d layers", s->name, field, most);
        source_fail(s, ERR_INVALID);
    }
    return n;
}

/* An EAGLE-3 head. vocab_size is the target's; of the layers that it reads, the published heads
 * have three. */
void family_eagle3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *own = json_get_kind(obj, "eagle_config", JSON_OBJECT);
    struct eagle_config *e = &c->eagle;

    e->n_taps = family_list(s, own, "eagle_aux_hidden_state_layer_ids", e->taps, EAGLE_TAPS_MAX);
    if (e->n_taps == 0) {
        e->n_taps = source_whole(s, obj, "num_aux_hidden_states", 3, 3, 3);
        e->taps[0] = e->taps[1] = e->taps[2] = -1;
    }
    family_require_flag(s, own, "use_aux_hidden_state", true);
    family_require_flag(s, own, "norm_before_fc", false);
    family_require_flag(s, obj, "fc_norm", false);
    e->tap_dim = source_whole(s, obj, "target_hidden_size", c->dim, 1, 1 << 20);
    e->norms_residual = source_flag(s, obj, "norm_before_residual", false);
    e->passes_normed = source_flag(s, obj, "norm_output", false);
    e->n_words = c->n_vocab;
    c->n_vocab = source_whole(s, obj, "draft_vocab_size", e->n_words, 1, e->n_words);
    c->by.logits = (float)source_positive(s, obj, "logit_scale", 1.0);
    if (s->rc != ERR_OK || c->n_layers == 1)
        return;
    log_error("model: %s: a head of %d layers is not supported: EAGLE-3 heads have one", s->name,
              c->n_layers);
    source_fail(s, ERR_UNSUPPORTED);
}

void family_exaone4(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    (void)s, (void)obj;
    if (c->window > 0)
        family_give_rope(c, LAYER_FULL, config_add_no_rope(c));
}

/* The first Gemma checkpoints say "gelu" but mean its tanh form. Embeddings are scaled by
 * sqrt(dim). */
void family_gemma(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    (void)s, (void)obj;
    if (c->activation == K_GELU)
        c->activation = K_GELU_TANH;
    c->by.embedding = sqrtf((float)c->dim);
}

/* Window layers have a rope of their own with a smaller theta, which is never scaled. The full
 * layers keep the rope that the common fields gave. */
void family_gemma3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *parameters = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *local = json_get_kind(parameters, "sliding_attention", JSON_OBJECT);
    const struct json *cap = json_get(obj, "final_logit_softcapping");
    int rope = config_add_rope(c, c->head_dim, s, obj, local);

    if (local == NULL)
        c->ropes[rope].theta = source_positive(s, obj, "rope_local_base_freq", 10000.0);
    family_give_rope(c, LAYER_WINDOW, rope);
    family_refuse_score_cap(s, obj);
    family_require_flag(s, obj, "use_bidirectional_attention", false);
    c->by.embedding = sqrtf((float)c->dim);
    c->attn_scale = (float)(1.0 / sqrt(source_positive(s, obj, "query_pre_attn_scalar", 256.0)));
    if (cap != NULL && cap->kind != JSON_NULL)
        c->by.logits_cap = (float)source_positive(s, obj, "final_logit_softcapping", 0.0);
}

/* As Gemma 3 with one rope, and with a cap of attention scores. */
void family_gemma2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *scores = json_get(obj, "attn_logit_softcapping");
    const struct json *logits = json_get(obj, "final_logit_softcapping");

    family_require_flag(s, obj, "use_bidirectional_attention", false);
    c->by.embedding = sqrtf((float)c->dim);
    c->attn_scale = (float)(1.0 / sqrt(source_positive(s, obj, "query_pre_attn_scalar", 256.0)));
    if (scores == NULL || scores->kind != JSON_NULL)
        c->score_cap = (float)source_positive(s, obj, "attn_logit_softcapping", 50.0);
    if (logits == NULL || logits->kind != JSON_NULL)
        c->by.logits_cap = (float)source_positive(s, obj, "final_logit_softcapping", 30.0);
}

/* attention_bias means q, k and v only; the output projection has no bias. */
void family_glm(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = source_flag(s, obj, "attention_bias", true);
}

/* Positions are a learned table that is added to the embedding, so no layer has a rope. */
void family_gpt2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_require_flag(s, obj, "scale_attn_weights", true);
    family_require_flag(s, obj, "scale_attn_by_inverse_layer_idx", false);
    c->positions = (struct learned_positions){.is_used = true, .first = 0, .n_rows = c->len_max};
    c->n_ropes = 0;
    (void)config_add_no_rope(c);
}

void family_gpt_neox(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->is_parallel = source_flag(s, obj, "use_parallel_residual", true);
    c->qkv_bias = c->o_bias = source_flag(s, obj, "attention_bias", true);
}

/* Granite divides logits by logits_scaling, where other families multiply. */
void family_granite(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->by.embedding = (float)source_positive(s, obj, "embedding_multiplier", 1.0);
    c->by.residual = (float)source_positive(s, obj, "residual_multiplier", 1.0);
    c->by.logits = (float)(1.0 / source_positive(s, obj, "logits_scaling", 1.0));
    c->attn_scale = (float)source_positive(s, obj, "attention_multiplier", 1.0);
}

/* Window layers use the plain rope, even where the full layers' rope is scaled. */
void family_olmo3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *parameters = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *local = json_get_kind(parameters, "sliding_attention", JSON_OBJECT);
    int rope = config_add_rope(c, c->head_dim, s, obj, local);

    if (local == NULL)
        c->ropes[rope].theta = c->ropes[0].theta;
    family_give_rope(c, LAYER_WINDOW, rope);
}

/* As GPT-2, with learned positions; position p has row p + 2 of the table. Variants with norms
 * after the layers or a narrower embedding (OPT-350m) are not computed. */
void family_opt(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_require_flag(s, obj, "do_layer_norm_before", true);
    family_require_flag(s, obj, "enable_bias", true);
    family_require_flag(s, obj, "layer_norm_elementwise_affine", true);
    family_require_flag(s, obj, "_remove_final_layer_norm", false);
    if (source_whole(s, obj, "word_embed_proj_dim", c->dim, 1, 65536) != c->dim) {
        log_error("model: %s: word_embed_proj_dim must be hidden_size", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    c->positions =
        (struct learned_positions){.is_used = true, .first = 2, .n_rows = c->len_max + 2};
    c->n_ropes = 0;
    (void)config_add_no_rope(c);
}

void family_phi(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    (void)c;
    family_require_flag(s, obj, "qk_layernorm", false);
}

void family_seed_oss(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = source_flag(s, obj, "attention_bias", true);
    c->o_bias = source_flag(s, obj, "attention_out_bias", false);
    c->mlp_bias = source_flag(s, obj, "mlp_bias", false);
}

/* no_rope_layers has one number per layer, 1 for a layer with positions. Without the list every
 * no_rope_layer_interval-th layer has none. */
void family_smollm3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "no_rope_layers", JSON_LIST);
    int interval = source_whole(s, obj, "no_rope_layer_interval", 4, 1, HF_CONFIG_LAYERS_MAX);
    int none = config_add_no_rope(c);

    family_require_flag(s, obj, "use_sliding_window", false);
    if (list != NULL && list->n == 0)
        list = NULL;
    if (list != NULL && list->n != (uint32_t)c->n_layers) {
        log_error("model: %s: no_rope_layers must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) {
        bool has = list == NULL ? (i + 1) % interval != 0
                                : list->items[i].kind == JSON_INT && list->items[i].whole != 0;

        if (!has)
            c->layer_ropes[i] = (uint8_t)none;
    }
}

void family_stablelm(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_require_flag(s, obj, "use_parallel_residual", false);
    family_require_flag(s, obj, "qk_layernorm", false);
    c->qkv_bias = source_flag(s, obj, "use_qkv_bias", false);
}

void family_starcoder2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = c->o_bias = c->mlp_bias = source_flag(s, obj, "use_bias", true);
}

/* Without positions in the file they are scaled as Llama 3's. */
void family_apertus(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct rope *rope = &c->ropes[0];

    if (c->has_xielu)
        c->host_only = "xIELU";
    if (s->rc != ERR_OK || config_rope_object(obj, NULL) != NULL)
        return;
    rope->kind = ROPE_LLAMA3;
    rope->factor = 8.0;
    rope->original_len = 8192;
    rope->low_factor = 1.0;
    rope->high_factor = 4.0;
}

/* Layers in turn, from the first on: one that sees all tokens, then three with a window. */
void family_cwm(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    if (config_rope_object(obj, NULL) == NULL) {
        log_error("model: %s: rope_parameters must be set", s->name);
        source_fail(s, ERR_INVALID);
    }
    if (json_get_kind(obj, "layer_types", JSON_LIST) != NULL)
        return;
    for (int i = 0; i < c->n_layers; i += 4)
        c->layer_kinds[i] = LAYER_FULL;
}

void family_ernie4_5(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = c->o_bias = c->mlp_bias = source_flag(s, obj, "use_bias", false);
}

/* layer_rope_theta has a theta per layer, or 0 for one without positions. */
static void family_read_thetas(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "layer_rope_theta", JSON_LIST);

    if (list != NULL && list->n != (uint32_t)c->n_layers) {
        log_error("model: %s: layer_rope_theta must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
    }
    for (int i = 0; i < c->n_layers && list != NULL && s->rc == ERR_OK; i++) {
        const struct json *value = &list->items[i];
        double theta = json_is_number(value) ? json_real(value) : -1.0;
        int rope = 0;

        if (!(theta >= 0.0 && theta < 1e30)) {
            log_error("model: %s: layer_rope_theta must have numbers from 0", s->name);
            source_fail(s, ERR_INVALID);
            return;
        }
        while (rope < c->n_ropes &&
               (c->ropes[rope].rotary_dim == 0 ? theta > 0.0 : c->ropes[rope].theta != theta))
            rope++;
        if (rope == HF_CONFIG_ROPES_MAX) {
            log_error("model: %s: layer_rope_theta: more than %d kinds of positions are not "
                      "supported",
                      s->name, HF_CONFIG_ROPES_MAX);
            source_fail(s, ERR_UNSUPPORTED);
            return;
        }
        if (rope == c->n_ropes && theta == 0.0) {
            (void)config_add_no_rope(c);
        } else if (rope == c->n_ropes) {
            c->ropes[c->n_ropes] = c->ropes[0];
            c->ropes[c->n_ropes++].theta = theta;
        }
        c->layer_ropes[i] = (uint8_t)rope;
    }
}

/* Without layer_types every fourth layer, from the first on, sees all tokens. */
void family_granite_layers(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->sinks = true;
    for (int i = 0; i < c->n_layers && json_get_kind(obj, "layer_types", JSON_LIST) == NULL; i += 4)
        c->layer_kinds[i] = LAYER_FULL;
    family_read_thetas(c, s, obj);
}

void family_granite_swa(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_granite(c, s, obj);
    family_granite_layers(c, s, obj);
}

/* The output projection has no bias, whatever attention_bias is. */
void family_helium(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    (void)s, (void)obj;
    c->o_bias = false;
}

/* Heads are normed after their rotation. */
void family_hunyuan_dense(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_read_alpha(c, s, obj);
    c->qk_norm = QK_NORM_AFTER;
}

void family_internlm2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = c->o_bias = source_flag(s, obj, "bias", false);
}

/* One switch for the biases of q, k and v, another for all others. */
void family_internlm3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const char *const qkv[] = {"qkv_bias", "attention_bias", NULL};
    static const char *const others[] = {"bias", "mlp_bias", NULL};

    c->qkv_bias = source_flag(s, obj, source_alias(obj, qkv), false);
    c->o_bias = c->mlp_bias = source_flag(s, obj, source_alias(obj, others), false);
}

/* Windows with positions; every fourth layer, counted from the last one, sees all tokens and has no
 * positions. Queries and keys are normed without weights, then queries grow by a factor. */
void family_muse_glimmer(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *thetas = json_get_kind(obj, "layer_rope_theta", JSON_LIST);
    bool has_types = json_get_kind(obj, "layer_types", JSON_LIST) != NULL;
    int none = thetas == NULL ? config_add_no_rope(c) : 0;

    for (int i = 0; i < c->n_layers; i++) {
        bool is_full = (c->n_layers - 1 - i) % 4 == 0;

        if (is_full && !has_types)
            c->layer_kinds[i] = LAYER_FULL;
        if (is_full && thetas == NULL)
            c->layer_ropes[i] = (uint8_t)none;
    }
    family_read_thetas(c, s, obj);
    c->attn_gate = true;
    c->norms_embedding = true;
    c->norm.after_eps = (float)source_positive(s, obj, "post_norm_eps", 1e-8);
    c->attn_scale *= (float)source_positive(s, obj, "qk_scale_factor", 3.87);
    c->by.logits = (float)source_positive(s, obj, "output_multiplier", 0.19611613513818404);
    c->by.logits_cap = (float)source_positive(s, obj, "final_logit_softcapping", 20.0);
}

/* Refuse limits of queries, keys and values. */
void family_olmo(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *clip = json_get(obj, "clip_qkv");

    (void)c;
    if (clip != NULL && clip->kind != JSON_NULL) {
        log_error("model: %s: clip_qkv is not supported", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

void family_iquestcoder(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_require_flag(s, obj, "use_sliding_window", false);
    family_olmo(c, s, obj);
}

/* Biases are there unless the file says otherwise. */
void family_jais2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    c->qkv_bias = c->o_bias = source_flag(s, obj, "attention_bias", true);
    c->mlp_bias = source_flag(s, obj, "mlp_bias", true);
}

/* Multipliers of embedded tokens, of mixers' and FFNs' results, and of the logits' input. */
void family_minicpm(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    double depth = sqrt((double)c->n_layers);

    c->by.embedding = (float)source_positive(s, obj, "scale_emb", 1.0);
    c->by.residual = (float)(source_positive(s, obj, "scale_depth", depth) / depth);
    c->by.logits =
        (float)(source_positive(s, obj, "dim_model_base", (double)c->dim) / (double)c->dim);
}
