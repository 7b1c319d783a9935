/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of config.json of families with latent attention (kernels/latent.h): DeepSeek V2 and V3,
 * V3.2, Kimi K2, Kimi-Linear, GLM 4.7 Flash and 5, Mistral 4, MiniCPM 3, Youtu, Sarvam. Meanings
 * and defaults are those of the configuration classes in transformers, which ignore head_dim and
 * the number of kv heads.
 *
 * The model's config has one kv head, whose head_dim is the length of a latent. */
#include "model/family.h"

#include <math.h>
#include <string.h>

#include "base/log.h"

#define NORM_EPS 1e-6f /* of the norms of latents, whatever rms_norm_eps is */

/* Defaults of the classes. */
struct latent_presets {
    int q_rank, kv_rank, nope_dim, v_dim;
    bool scales_head; /* partial_rotary_factor may be the rotating part of a whole query */
    bool has_no_rope;
};

/* null means that there is one product for queries; a missing field has the class's default. */
static int latent_q_rank(struct config_source *s, const struct json *obj, int preset)
{
    const struct json *value = json_get(obj, "q_lora_rank");

    if (value == NULL ? preset == 0 : value->kind == JSON_NULL)
        return 0;
    return source_whole(s, obj, "q_lora_rank", preset, 1, 65536);
}

static void latent_read_shape(struct hf_config *c, struct config_source *s, const struct json *obj,
                              const struct latent_presets *p)
{
    c->latent = (struct k_latent_shape){
        .n_heads = c->n_heads,
        .q_rank = latent_q_rank(s, obj, p->q_rank),
        .kv_rank = source_whole(s, obj, "kv_lora_rank", p->kv_rank, 2, K_LATENT_RANK_MAX),
        .nope_dim = source_whole(s, obj, "qk_nope_head_dim", p->nope_dim, 1, K_HEAD_DIM_MAX),
        .rope_dim = source_whole(s, obj, "qk_rope_head_dim", 64, 2, K_LATENT_ROPE_MAX),
        .v_dim = source_whole(s, obj, "v_head_dim", p->v_dim, 1, K_HEAD_DIM_MAX)};
    if (s->rc == ERR_OK && (c->latent.kv_rank % 2 != 0 || c->latent.rope_dim % 2 != 0)) {
        log_error("model: %s: kv_lora_rank %d and qk_rope_head_dim %d must be even", s->name,
                  c->latent.kv_rank, c->latent.rope_dim);
        source_fail(s, ERR_INVALID);
    }
    c->latent_eps = NORM_EPS;
    c->n_kv_heads = c->full_kv_heads = 1;
    c->head_dim = c->full_head_dim = k_latent_row(&c->latent);
}

/* The head that partial_rotary_factor is a part of: its rotating elements must be rope_dim. */
static int latent_rope_head(const struct hf_config *c, struct config_source *s,
                            const struct json *obj, const struct json *parameters, bool may_scale)
{
    double part = source_positive(s, obj, "partial_rotary_factor", 1.0);
    double head;

    if (parameters != NULL)
        part = source_positive(s, parameters, "partial_rotary_factor", part);
    head = round(c->latent.rope_dim / part);
    if (head == c->latent.rope_dim || (may_scale && head == k_latent_query(&c->latent)))
        return (int)head;
    log_error("model: %s: partial_rotary_factor %g does not fit qk_rope_head_dim %d", s->name, part,
              c->latent.rope_dim);
    source_fail(s, ERR_UNSUPPORTED);
    return c->latent.rope_dim;
}

/* Long contexts: scores are multiplied by the square of what YaRN multiplies cosines with. */
static void latent_read_scale(struct hf_config *c, struct config_source *s,
                              const struct json *parameters)
{
    const struct rope *rope = &c->ropes[0];
    const struct json *all = json_get(parameters, "mscale_all_dim");
    double by;

    c->attn_scale = 1.0f / sqrtf((float)k_latent_query(&c->latent));
    if (parameters == NULL || rope->kind == ROPE_PLAIN || all == NULL || all->kind == JSON_NULL ||
        (json_is_number(all) && json_real(all) == 0.0) || rope->factor <= 1.0)
        return;
    by = 0.1 * source_positive(s, parameters, "mscale_all_dim", 0.0) * log(rope->factor) + 1.0;
    c->attn_scale *= (float)(by * by);
}

static void latent_read_rope(struct hf_config *c, struct config_source *s, const struct json *obj,
                             bool may_scale)
{
    const struct json *parameters = config_rope_object(obj, NULL);
    int head = latent_rope_head(c, s, obj, parameters, may_scale);
    struct rope *rope;

    if (s->rc != ERR_OK)
        return;
    rope = &c->ropes[config_add_rope(c, head, s, obj, parameters)];
    rope->head_dim = rope->rotary_dim = c->latent.rope_dim;
    rope->interleaved = source_flag(s, obj, "rope_interleave", true);
    latent_read_scale(c, s, parameters);
}

/* Nothing rotates: the part of a key that all heads share is as it is. */
static void latent_read_no_rope(struct hf_config *c)
{
    int none = config_add_no_rope(c);

    c->ropes[none].head_dim = c->latent.rope_dim;
    c->attn_scale = 1.0f / sqrtf((float)k_latent_query(&c->latent));
}

static void latent_read(struct hf_config *c, struct config_source *s, const struct json *obj,
                        const struct latent_presets *p)
{
    static const char *const refused[] = {"attention_bias", "mlp_bias"};

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (source_flag(s, obj, refused[i], false)) {
            log_error("model: %s: %s is not supported with latent attention", s->name, refused[i]);
            source_fail(s, ERR_UNSUPPORTED);
        }
    }
    latent_read_shape(c, s, obj, p);
    if (s->rc == ERR_OK && p->has_no_rope)
        latent_read_no_rope(c);
    else if (s->rc == ERR_OK)
        latent_read_rope(c, s, obj, p->scales_head);
}

/* A text must be one of two if it is there; it means the class's own choice if it is missing. */
static void latent_expect(struct config_source *s, const struct json *obj, const char *field,
                          const char *one, const char *other)
{
    const char *text = json_get_text(obj, field, one);

    if (strcmp(text, one) == 0 || strcmp(text, other) == 0)
        return;
    log_error("model: %s: %s \"%.40s\" is not supported", s->name, field, text);
    source_fail(s, ERR_UNSUPPORTED);
}

/* --- families ------------------------------------------------------------------------------- */

void family_deepseek_v2(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {1536, 512, 128, 128, false, false};
    static const struct grouped_experts experts = {
        .ff_dim = 1407, .n_shared = 2, .n_groups = 1, .n_groups_used = 1, .scale = 1.0};

    latent_read(c, s, obj, &presets);
    if (s->rc == ERR_OK)
        c->ropes[0].interleaved = true;
    latent_expect(s, obj, "topk_method", "greedy", "group_limited_greedy");
    latent_expect(s, obj, "scoring_func", "softmax", "softmax");
    family_grouped_experts(c, s, obj, &experts);
    /* The best group is that of the best expert; weights are used as they are. */
    c->experts.group_best = 1;
    if (strcmp(json_get_text(obj, "topk_method", "greedy"), "greedy") == 0)
        c->experts.n_groups = c->experts.n_groups_used = 1;
    c->experts.renorms = false;
    if (source_flag(s, obj, "norm_topk_prob", false)) {
        log_error("model: %s: norm_topk_prob is not supported for %s", s->name, c->arch->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* Kimi K2 and Moonlight have this class, too. */
void family_deepseek_v3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {1536, 512, 128, 128, false, false};
    static const struct grouped_experts experts = {.ff_dim = 2048,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_dense = 3,
                                                   .n_groups = 8,
                                                   .n_groups_used = 4,
                                                   .scale = 2.5,
                                                   .is_sigmoid = true};

    latent_read(c, s, obj, &presets);
    latent_expect(s, obj, "topk_method", "noaux_tc", "noaux_tc");
    latent_expect(s, obj, "scoring_func", "sigmoid", "sigmoid");
    family_grouped_experts(c, s, obj, &experts);
}

/* Latent attention without positions among layers of Kimi Delta Attention. */
void family_kimi_linear(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {
        .kv_rank = 512, .nope_dim = 128, .v_dim = 128, .has_no_rope = true};
    static const struct grouped_experts experts = {.ff_dim = 2048,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_dense = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 2.446,
                                                   .is_sigmoid = true};

    family_kimi_layers(c, s, obj);
    latent_read(c, s, obj, &presets);
    latent_expect(s, obj, "moe_router_activation_func", "sigmoid", "sigmoid");
    if (!source_flag(s, obj, "mla_use_nope", true)) {
        log_error("model: %s: mla_use_nope must be true", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    family_grouped_experts(c, s, obj, &experts);
    family_layer_types(c, s, obj);
}

/* --- the choice of tokens ------------------------------------------------------------------- */

static void latent_read_index(struct hf_config *c, struct config_source *s, const struct json *obj,
                              int n_heads)
{
    if (s->rc != ERR_OK)
        return;
    c->index.shape = (struct k_index_shape){
        .n_heads = source_whole(s, obj, "index_n_heads", n_heads, 1, 1024),
        .dim = source_whole(s, obj, "index_head_dim", 128, 2, K_INDEX_DIM_MAX),
        .rope_dim = c->latent.rope_dim,
        .n_keys = source_whole(s, obj, "index_topk", 2048, 1, 1 << 20)};
    c->ropes[0].interleaved = true;
    if (s->rc == ERR_OK &&
        (c->index.shape.dim % 2 != 0 || c->index.shape.dim < c->index.shape.rope_dim)) {
        log_error("model: %s: index_head_dim %d must be even and at least qk_rope_head_dim %d",
                  s->name, c->index.shape.dim, c->index.shape.rope_dim);
        source_fail(s, ERR_INVALID);
    }
    if (s->rc == ERR_OK && c->latent.q_rank == 0) {
        log_error("model: %s: q_lora_rank must be a number", s->name);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* The type of a layer's index by a list of "full" and "shared", or by a text of F and S; "" if
 * there is none for it. */
static const char *latent_index_type(const struct json *types, const char *pattern, int layer)
{
    if (types != NULL && layer < (int)types->n && types->items[layer].kind == JSON_TEXT)
        return types->items[layer].text;
    if (types != NULL || layer >= (int)strlen(pattern))
        return "";
    return pattern[layer] == 'S' ? "shared" : pattern[layer] == 'F' ? "full" : "";
}

/* Which layers see the tokens that the one before does: those of a list or a pattern; else every
 * few layers one has an index of its own. */
static void latent_read_shared(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    const struct json *types = json_get_kind(obj, "indexer_types", JSON_LIST);
    const char *pattern = json_get_text(obj, "index_topk_pattern", NULL);
    int every = source_whole(s, obj, "index_topk_freq", 1, 0, HF_CONFIG_LAYERS_MAX);
    int first = source_whole(s, obj, "index_skip_topk_offset", 2, 0, HF_CONFIG_LAYERS_MAX);

    if (types == NULL)
        types = json_get_kind(obj, "index_topk_pattern", JSON_LIST);
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++) {
        int behind = i + 1 > first ? i + 1 - first : 0;
        const char *type = every > 1 && behind % every != 0 ? "shared" : "full";

        if (types != NULL || pattern != NULL)
            type = latent_index_type(types, pattern, i);
        c->index.is_shared[i] = strcmp(type, "shared") == 0;
        if ((c->index.is_shared[i] && i > 0) || strcmp(type, "full") == 0)
            continue;
        log_error("model: %s: indexer_types must have \"full\" or \"shared\" for each of %d "
                  "layers, and begin with \"full\"",
                  s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
    }
}

void family_deepseek_v32(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    family_deepseek_v3(c, s, obj);
    family_layer_types(c, s, obj);
    latent_read_index(c, s, obj, 64);
}

/* Without mlp_layer_types the first n_dense layers are dense. */
static void latent_read_glm(struct hf_config *c, struct config_source *s, const struct json *obj,
                            const struct latent_presets *presets,
                            const struct grouped_experts *experts)
{
    latent_read(c, s, obj, presets);
    latent_expect(s, obj, "topk_method", "noaux_tc", "noaux_tc");
    latent_expect(s, obj, "scoring_func", "sigmoid", "sigmoid");
    family_grouped_experts(c, s, obj, experts);
    family_layer_types(c, s, obj);
}

/* The index rotates pairs as attention does. */
void family_glm_moe_dsa(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {2048, 512, 192, 256, false, false};
    static const struct grouped_experts experts = {.ff_dim = 2048,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_dense = 3,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 2.5,
                                                   .is_sigmoid = true};

    latent_read_glm(c, s, obj, &presets, &experts);
    latent_read_index(c, s, obj, 32);
    latent_read_shared(c, s, obj);
    c->index.interleaved = true;
}

/* --- more families -------------------------------------------------------------------------- */

void family_glm4_moe_lite(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {768, 512, 192, 256, false, false};
    static const struct grouped_experts experts = {.ff_dim = 1536,
                                                   .n_used = 4,
                                                   .n_shared = 1,
                                                   .n_dense = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 1.8,
                                                   .is_sigmoid = true};

    latent_read_glm(c, s, obj, &presets, &experts);
}

/* Queries grow with the position (llama_4_scaling_beta), as in Ministral 3. */
void family_mistral4(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {1024, 256, 64, 128, true, false};
    static const struct grouped_experts experts = {.ff_dim = 2048,
                                                   .n_used = 4,
                                                   .n_shared = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 1.0};

    if (config_rope_object(obj, NULL) == NULL) {
        log_error("model: %s: rope_parameters must be set", s->name);
        source_fail(s, ERR_INVALID);
        return;
    }
    latent_read(c, s, obj, &presets);
    family_grouped_experts(c, s, obj, &experts);
}

/* All layers are dense. */
void family_youtu(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {1536, 512, 128, 128, false, false};

    latent_read(c, s, obj, &presets);
}

/* As Youtu, with the multipliers of MiniCPM; pairs that rotate are half of the rope apart. */
void family_minicpm3(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    struct latent_presets presets = {768, 256, 64, c->dim / c->n_heads, false, false};

    latent_read(c, s, obj, &presets);
    if (s->rc == ERR_OK)
        c->ropes[0].interleaved = source_flag(s, obj, "rope_interleave", false);
    family_minicpm(c, s, obj);
}

/* DeepSeek V3 with other defaults. */
void family_sarvam_mla(struct hf_config *c, struct config_source *s, const struct json *obj)
{
    static const struct latent_presets presets = {0, 512, 128, 128, false, false};
    static const struct grouped_experts experts = {.ff_dim = 2048,
                                                   .n_used = 8,
                                                   .n_shared = 1,
                                                   .n_dense = 1,
                                                   .n_groups = 1,
                                                   .n_groups_used = 1,
                                                   .scale = 2.5,
                                                   .is_sigmoid = true};

    latent_read(c, s, obj, &presets);
    family_grouped_experts(c, s, obj, &experts);
}
