/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads config.json as transformers writes it, in its older spelling (rope_theta, rope_scaling) and
 * its newer one (rope_parameters).
 *
 * The architecture's row (arch.c) is found first, because it decides the defaults of the other
 * fields. Then come the common fields, the row's switches, the kinds of layers, and last the
 * family's own function. Numbers are bounded here, once, so that products of shapes fit a size_t
 * everywhere else. */
#include "model/hf_config.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pooling.h"
#include "model/config_source.h"
#include "model/gguf_config.h"

#define CONFIG_BYTES_MAX    ((size_t)4 << 20) /* the largest known config.json has 200 KiB */
#define CONFIG_ARENA_MAX    ((size_t)64 << 20)
#define WINDOW_PRESET       4096 /* default of sliding_window in transformers (Mistral, Qwen) */
#define WINDOW_FIRST_PRESET 28   /* default of max_window_layers (Qwen) */

/* Only the first error is kept, because later ones often follow from it. */
void source_fail(struct config_source *s, int rc)
{
    if (s->rc == ERR_OK)
        s->rc = rc;
}

/* Floats that happen to be whole are refused too: no writer of config.json makes them. */
int source_whole(struct config_source *s, const struct json *obj, const char *field, int preset,
                 int low, int high)
{
    const struct json *value = json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL) {
        if (preset != 0)
            return preset;
        log_error("model: %s: %s is missing", s->name, field);
        source_fail(s, ERR_INVALID);
        return low;
    }
    if (value->kind != JSON_INT || value->whole < low || value->whole > high) {
        log_error("model: %s: %s must be a whole number from %d to %d", s->name, field, low, high);
        source_fail(s, ERR_INVALID);
        return low;
    }
    return (int)value->whole;
}

/* The upper bound keeps later arithmetic finite; NaN fails both comparisons. */
double source_positive(struct config_source *s, const struct json *obj, const char *field,
                       double preset)
{
    const struct json *value = json_get(obj, field);
    double x;

    if ((value == NULL || value->kind == JSON_NULL) && preset > 0.0)
        return preset;
    x = json_is_number(value) ? json_real(value) : 0.0;
    if (!(x > 0.0 && x < 1e30)) {
        log_error("model: %s: %s must be a positive number", s->name, field);
        source_fail(s, ERR_INVALID);
        return 1.0;
    }
    return x;
}

/* JSON true and false only; numbers are refused. */
bool source_flag(struct config_source *s, const struct json *obj, const char *field, bool preset)
{
    const struct json *value = json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL)
        return preset;
    if (value->kind != JSON_BOOL) {
        log_error("model: %s: %s must be true or false", s->name, field);
        source_fail(s, ERR_INVALID);
        return preset;
    }
    return value->flag;
}

/* The first name is the fallback, so that an error message shows the usual name. */
const char *source_alias(const struct json *obj, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) {
        const struct json *value = json_get(obj, names[i]);

        if (value != NULL && value->kind != JSON_NULL)
            return names[i];
    }
    return names[0];
}

/* Families that take silu only still name it; any other name is refused for them. */
static void hf_config_read_activation(struct config_source *s, struct hf_config *c,
                                      const struct json *obj)
{
    static const char *const fields[] = {"hidden_act", "hidden_activation", "activation_function",
                                         NULL};
    static const struct {
        const char *name;
        enum k_activation activation;
    } known[] = {{"silu", K_SILU},           {"swish", K_SILU},
                 {"gelu", K_GELU},           {"gelu_new", K_GELU_TANH},
                 {"gelu_fast", K_GELU_TANH}, {"gelu_pytorch_tanh", K_GELU_TANH},
                 {"relu", K_RELU},           {"relu2", K_RELU_2}};
    const char *preset = c->arch->activation != NULL ? c->arch->activation : "silu";
    const char *field = source_alias(obj, fields), *name = json_get_text(obj, field, preset);

    c->has_xielu = strcmp(name, "xielu") == 0 && strcmp(preset, name) == 0;
    if (c->has_xielu) /* of the one family whose layers have its numbers */
        return;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        /* Entry 0 is silu, which every family takes. */
        if (strcmp(name, known[i].name) == 0 && (i == 0 || c->arch->any_activation)) {
            c->activation = known[i].activation;
            return;
        }
    }
    log_error("model: %s: %s \"%.40s\" is not supported%s", s->name, field, name,
              c->arch->any_activation ? "" : ", only silu");
    source_fail(s, ERR_UNSUPPORTED);
}

/* Quantised checkpoints describe their format in quantization_config (quant.c). */
static void hf_config_read_quant(struct config_source *s, struct hf_config *c,
                                 const struct json *obj)
{
    const struct json *quant = json_get(obj, "quantization_config");
    char why[QUANT_WHY_CAP];

    if (quant == NULL || quant->kind == JSON_NULL)
        quant = json_get(obj, "compression_config"); /* an older name of the field */
    if (quant == NULL || quant->kind == JSON_NULL)
        return;
    if (quant_read(&c->quant, quant, why, sizeof why) != ERR_OK) {
        log_error("model: %s: quantization_config: %s", s->name, why);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* A name such as "Qwen3Model" or "Qwen3ForSequenceClassification" is that of a family without its
 * output matrix. */
static void hf_config_find_headless(struct hf_config *c, const char *name)
{
    char generating[120];
    size_t n = pooling_stem(name, &c->is_headless);

    if (n == 0 || !c->is_headless || n > sizeof generating - sizeof "ForCausalLM")
        return;
    (void)snprintf(generating, sizeof generating, "%.*sForCausalLM", (int)n, name);
    c->arch = arch_find(generating);
}

/* The first entry of `architectures`, such as "LlamaForCausalLM", selects the row. */
static void hf_config_read_arch(struct config_source *s, struct hf_config *c,
                                const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "architectures", JSON_LIST);
    const char *name = list != NULL && list->n > 0 && list->items[0].kind == JSON_TEXT
                           ? list->items[0].text
                           : NULL;

    if (name == NULL) {
        log_error("model: %s: architectures must be a list of at least one name", s->name);
        source_fail(s, ERR_INVALID);
        return;
    }
    c->arch = arch_find(name);
    if (c->arch == NULL)
        hf_config_find_headless(c, name);
    if (c->arch == NULL) {
        char near[300];

        arch_near(near, sizeof near, name);
        log_error("model: %s: architecture \"%.80s\" is not served; %s "
                  "(docs/models-and-formats.md lists all)",
                  s->name, name, near);
        source_fail(s, ERR_UNSUPPORTED);
    }
}

/* The row of the text model in a model of images or sound. obj: text_config, or NULL. */
static void hf_config_find_text(struct config_source *s, struct hf_config *c,
                                const struct json *obj)
{
    const char *type = json_get_text(obj, "model_type", "");
    const struct arch *text = arch_of_text(type);

    if (text == NULL) {
        log_error("model: %s: %s with a text_config of model_type \"%.40s\" is not served", s->name,
                  c->arch->name, type);
        source_fail(s, ERR_UNSUPPORTED);
        return;
    }
    c->arch = text;
}

/* Attention in both directions is another computation, which the tensors do not show. */
static void hf_config_check_causal(struct config_source *s, const struct json *obj)
{
    const struct json *both = json_get_kind(obj, "use_bidirectional_attention", JSON_BOOL);

    if (json_get_bool(obj, "is_causal", true) && (both == NULL || !both->flag))
        return;
    log_error("model: %s: %s: attention in both directions is not served", s->name,
              both != NULL && both->flag ? "use_bidirectional_attention is true"
                                         : "is_causal is false");
    source_fail(s, ERR_UNSUPPORTED);
}

/* Read the counts. Families use different names for the same numbers, so each has a list of
 * aliases. Layer norms (has_mean) come with other defaults than RMS norms. */
static void hf_config_read_counts(struct config_source *s, struct hf_config *c,
                                  const struct json *obj)
{
    static const char *const dims[] = {"hidden_size", "n_embd", NULL};
    static const char *const layers[] = {"num_hidden_layers", "n_layer", NULL};
    static const char *const heads[] = {"num_attention_heads", "n_head", NULL};
    static const char *const widths[] = {"intermediate_size",     "ffn_dim",      "n_inner",
                                         "moe_intermediate_size", "block_ff_dim", NULL};
    static const char *const lengths[] = {"max_position_embeddings", "n_positions",
                                          "model_max_length", NULL};
    static const char *const epsilons[] = {"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
                                           "norm_epsilon", "norm_eps",       NULL};
    const struct json *blocks = json_get_kind(obj, "layers_block_type", JSON_LIST);
    bool has_mean = c->arch->norm.kind == K_NORM_LAYER;
    double eps = 1e-6;

    if (has_mean)
        eps = 1e-5;
    c->dim = source_whole(s, obj, source_alias(obj, dims), 0, 1, 65536);
    c->n_layers =
        source_whole(s, obj, source_alias(obj, layers),
                     blocks != NULL && blocks->n <= HF_CONFIG_LAYERS_MAX ? (int)blocks->n : 0, 1,
                     HF_CONFIG_LAYERS_MAX);
    c->n_heads = source_whole(s, obj, source_alias(obj, heads), 0, 1, 1024);
    c->n_kv_heads = source_whole(s, obj, "num_key_value_heads", c->n_heads, 1, 1024);
    c->ff_dim =
        source_whole(s, obj, source_alias(obj, widths), has_mean ? 4 * c->dim : 0, 1, 1 << 20);
    c->n_vocab = source_whole(s, obj, "vocab_size", 0, 1, 1 << 22);
    c->len_max = source_whole(s, obj, source_alias(obj, lengths), 0, 1, HF_CONFIG_LEN_MAX);
    config_scale_len(c, obj);
    /* The family decides the kind of norm, the file its epsilon. */
    c->norm = c->arch->norm;
    if (c->norm.eps > 0.0f)
        eps = (double)c->norm.eps;
    c->norm.eps = (float)source_positive(s, obj, source_alias(obj, epsilons), eps);
    c->tied = source_flag(s, obj, "tie_word_embeddings", c->arch->is_tied);
}

/* Heads must divide into groups of equal size, and rotary positions need an even head. */
static void hf_config_read_shape(struct config_source *s, struct hf_config *c,
                                 const struct json *obj)
{
    hf_config_read_counts(s, c, obj);
    if (s->rc != ERR_OK)
        return;
    /* hidden_size / heads is only the default: many families have a larger head_dim. */
    c->head_dim = c->arch->head_dim > 0 ? c->arch->head_dim : c->dim / c->n_heads;
    if (c->head_dim == 0)
        c->head_dim = 1;
    c->head_dim = source_whole(s, obj, "head_dim", c->head_dim, 1, K_HEAD_DIM_MAX);
    if (s->rc == ERR_OK && c->n_heads % c->n_kv_heads != 0) {
        log_error("model: %s: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                  s->name, c->n_heads, c->n_kv_heads);
        source_fail(s, ERR_INVALID);
    }
    if (s->rc == ERR_OK && (c->head_dim % 2 != 0 || c->head_dim > K_HEAD_DIM_MAX)) {
        log_error("model: %s: head_dim %d must be even and at most %d", s->name, c->head_dim,
                  K_HEAD_DIM_MAX);
        source_fail(s, ERR_INVALID);
    }
    c->full_kv_heads = c->n_kv_heads;
    c->full_head_dim = c->head_dim;
    /* Families with another scale replace it in family.c. */
    c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
}

/* Apply the architecture's row, and add the rope that all layers use at first. family.c may change
 * both later, and adds all ropes of layers with different heads. */
static void hf_config_read_row(struct config_source *s, struct hf_config *c, const struct json *obj)
{
    const struct arch *arch = c->arch;

    c->form = (struct tensor_form){.names = *arch->names,
                                   .fused = arch->fused,
                                   .is_turned = arch->is_turned,
                                   .mtp = arch->mtp};
    c->qk_norm = arch->qk_norm;
    c->ffn = arch->ffn;
    if (arch->is_toy && c->activation != K_SILU)
        c->ffn = FFN_PLAIN;
    c->norms = c->delta_norms = arch->norms;
    c->is_parallel = arch->is_parallel;
    /* Neutral values; family.c sets others. */
    c->by = (struct multipliers){.embedding = 1.0f,
                                 .residual = 1.0f,
                                 .logits = 1.0f,
                                 .attention = 1.0f,
                                 .states = 1.0f,
                                 .gate = 1.0f,
                                 .ffn = 1.0f};
    c->qkv_bias = arch->qkv_bias;
    c->o_bias = arch->o_bias;
    c->mlp_bias = arch->mlp_bias;
    c->head_bias = arch->head_bias;
    if (arch->reads_bias_switches) {
        c->qkv_bias = source_flag(s, obj, "attention_bias", arch->qkv_bias);
        c->o_bias = source_flag(s, obj, "attention_bias", arch->o_bias);
        c->mlp_bias = source_flag(s, obj, "mlp_bias", arch->mlp_bias);
    }
    if (s->rc == ERR_OK && !arch->has_two_shapes)
        (void)config_add_rope(c, c->head_dim, s, obj, config_rope_object(obj, "full_attention"));
}

/* The window of layers that have one; 0: all layers see all tokens. A missing field has
 * transformers' default, which differs by architecture. */
static int hf_config_read_window(struct config_source *s, const struct hf_config *c,
                                 const struct json *obj)
{
    const struct json *value = json_get(obj, "sliding_window");

    /* null switches the window off in every family. */
    if (c->arch->window == ARCH_WINDOW_NONE || (value != NULL && value->kind == JSON_NULL))
        return 0;
    /* Qwen files carry a window that is switched off. */
    if (c->arch->window == ARCH_WINDOW_LAYERS && !source_flag(s, obj, "use_sliding_window", false))
        return 0;
    if (c->arch->window == ARCH_WINDOW_TYPES && value == NULL)
        return c->arch->window_preset;
    return source_whole(s, obj, "sliding_window", WINDOW_PRESET, 1, 1 << 24);
}

/* The kind of one entry of layer_types. */
static enum layer_kind hf_config_layer_kind(struct config_source *s, const struct hf_config *c,
                                            const struct json *type)
{
    const char *name = type->kind == JSON_TEXT ? type->text : "";

    if (strcmp(name, "full_attention") == 0)
        return LAYER_FULL;
    if (strcmp(name, "sliding_attention") == 0 && c->window > 0)
        return LAYER_WINDOW;
    if (strcmp(name, "recurrent") == 0 && c->arch->recurrent)
        return LAYER_RECURRENT;
    if (strcmp(name, "sliding_attention") == 0) {
        log_error("model: %s: layer_types has sliding_attention, and sliding_window or "
                  "use_sliding_window is not set",
                  s->name);
        source_fail(s, ERR_INVALID);
    } else {
        log_error("model: %s: layer_types has \"%.40s\", which is not supported", s->name, name);
        source_fail(s, ERR_UNSUPPORTED);
    }
    return LAYER_FULL;
}

/* The list must have an entry per layer. */
static void hf_config_read_layer_types(struct config_source *s, struct hf_config *c,
                                       const struct json *types)
{
    if (types->kind != JSON_LIST || types->n != (uint32_t)c->n_layers) {
        log_error("model: %s: layer_types must be a list of %d", s->name, c->n_layers);
        source_fail(s, ERR_INVALID);
        return;
    }
    for (int i = 0; i < c->n_layers && s->rc == ERR_OK; i++)
        c->layer_kinds[i] = (uint8_t)hf_config_layer_kind(s, c, &types->items[i]);
}

/* The pattern of layers that see all tokens: every n-th, or those with a G in a text of L and G
 * that repeats, such as "LLLG", and the last one. Its length, and *text if it is one. */
static int hf_config_read_pattern(struct config_source *s, const struct hf_config *c,
                                  const struct json *obj, const char **text)
{
    static const char field[] = "sliding_window_pattern";

    *text = json_get_text(obj, field, NULL);
    if (*text == NULL)
        return source_whole(s, obj, field, c->arch->window_pattern, 1, 1024);
    if (**text != '\0' && strspn(*text, "LG") == strlen(*text))
        return (int)strnlen(*text, HF_CONFIG_LAYERS_MAX);
    log_error("model: %s: %s \"%.40s\" must be a number, or a text of L and G", s->name, field,
              *text);
    source_fail(s, ERR_INVALID);
    return 1;
}

/* Set the kind of each layer, as transformers' classes decide it: by layer_types, by a pattern
 * (every n-th layer is full), or by the first layer with a window. A window at least as long as the
 * longest text has no effect, so such layers count as full. */
static void hf_config_read_layers(struct config_source *s, struct hf_config *c,
                                  const struct json *obj)
{
    const struct json *types = json_get(obj, "layer_types");
    const char *text = NULL;
    int first = 0, pattern = 0;

    if (s->rc != ERR_OK)
        return;
    c->window = hf_config_read_window(s, c, obj);
    if (c->arch->window == ARCH_WINDOW_LAYERS)
        first = source_whole(s, obj, "max_window_layers", WINDOW_FIRST_PRESET, 0, 1 << 24);
    if (c->arch->window_pattern > 0)
        pattern = hf_config_read_pattern(s, c, obj, &text);
    /* Layers before `first` stay full. An explicit list overrides this below. */
    for (int i = first; i < c->n_layers && c->window > 0; i++) {
        c->layer_kinds[i] = LAYER_WINDOW;
        if (text != NULL ? text[i % pattern] == 'G' || i == c->n_layers - 1
                         : pattern > 0 && (i + 1) % pattern == 0)
            c->layer_kinds[i] = LAYER_FULL;
    }
    if (c->arch->window >= ARCH_WINDOW_LAYERS && types != NULL && types->kind != JSON_NULL)
        hf_config_read_layer_types(s, c, types);
    for (int i = 0; i < c->n_layers && c->window >= c->len_scaled; i++) {
        if (c->layer_kinds[i] == LAYER_WINDOW && !c->arch->has_two_shapes)
            c->layer_kinds[i] = LAYER_FULL;
    }
    if (c->arch->recurrent)
        c->mixer_width = source_whole(s, obj, "mixer_width", c->dim, 1, 65536);
}

/* eos_token_id is a number or a list of numbers. Ids outside the vocabulary are skipped, because
 * they can never be sampled. */
static void hf_config_read_eos(struct config_source *s, struct hf_config *c, const struct json *obj)
{
    const struct json *value = json_get(obj, "eos_token_id");
    const struct json *items = value;
    uint32_t n = 1;

    if (value == NULL || value->kind == JSON_NULL)
        return;
    /* Treat a single number as a list of one. */
    if (value->kind == JSON_LIST) {
        items = value->items;
        n = value->n;
    }
    c->n_eos = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].kind != JSON_INT || c->n_eos == HF_CONFIG_EOS_MAX) {
            log_error("model: %s: eos_token_id must be an id or a list of at most %d", s->name,
                      HF_CONFIG_EOS_MAX);
            source_fail(s, ERR_INVALID);
            return;
        }
        if (items[i].whole >= 0 && items[i].whole < c->n_vocab)
            c->eos[c->n_eos++] = (int32_t)items[i].whole;
    }
}

/* Python's json writes infinity as a word that JSON does not have. Outside of texts it becomes a
 * number of the same length that is beyond a double's range, and so is read as infinity. */
static const char *hf_config_replace_words(struct arena *arena, const char *text, size_t len)
{
    static const char word[] = "Infinity", number[] = "1e999999";
    size_t n = sizeof word - 1;
    bool in_text = false;
    char *copy;

    if (memmem(text, len, word, n) == NULL || (copy = arena_alloc(arena, len + 1)) == NULL)
        return text;
    memcpy(copy, text, len);
    copy[len] = '\0';
    for (size_t i = 0; i < len; i++) {
        if (in_text && copy[i] == '\\')
            i++;
        else if (copy[i] == '"')
            in_text = !in_text;
        else if (!in_text && len - i >= n && memcmp(copy + i, word, n) == 0)
            memcpy(copy + i, number, n);
    }
    return copy;
}

/* The document must be an object. */
static int hf_config_parse_json(const struct json **out, struct arena *arena, const char *name,
                                const char *text, size_t len)
{
    char why[200];
    int rc =
        json_parse(out, arena, hf_config_replace_words(arena, text, len), len, why, sizeof why);

    if (rc != ERR_OK) {
        log_error("model: %s: %s", name, rc == ERR_NO_MEMORY ? err_sentence(rc) : why);
        return rc;
    }
    if ((*out)->kind != JSON_OBJECT) {
        log_error("model: %s: the document must be an object", name);
        return ERR_SYNTAX;
    }
    return ERR_OK;
}

/* Is each of these fields of its kind, missing or null? Another kind would count as missing, and
 * the model would compute something else. */
struct field_kind {
    const char *field;
    enum json_kind kind;
};

static void hf_config_check_kinds(struct config_source *s, const struct json *obj,
                                  const struct field_kind *fields, size_t n)
{
    for (size_t i = 0; obj != NULL && i < n; i++) {
        const struct json *value = json_get(obj, fields[i].field);
        const char *wanted = fields[i].kind == JSON_TEXT     ? "text"
                             : fields[i].kind == JSON_OBJECT ? "object"
                                                             : "list";

        if (value == NULL || value->kind == JSON_NULL || value->kind == fields[i].kind)
            continue;
        log_error("model: %s: %s must be of the kind %s", s->name, fields[i].field, wanted);
        source_fail(s, ERR_INVALID);
    }
}

static void hf_config_check_all_kinds(struct config_source *s, const struct json *obj)
{
    static const struct field_kind outer[] = {
        {"hidden_act", JSON_TEXT},
        {"hidden_activation", JSON_TEXT},
        {"activation_function", JSON_TEXT},
        {"mlp_hidden_act", JSON_TEXT},
        {"topk_method", JSON_TEXT},
        {"scoring_func", JSON_TEXT},
        {"position_embedding_type", JSON_TEXT},
        {"hybrid_override_pattern", JSON_TEXT},
        {"rope_parameters", JSON_OBJECT},
        {"rope_scaling", JSON_OBJECT},
        {"linear_attn_config", JSON_OBJECT},
        {"layer_types", JSON_LIST},
        {"layers_block_type", JSON_LIST},
        {"mlp_layer_types", JSON_LIST},
        {"mlp_only_layers", JSON_LIST},
        {"no_rope_layers", JSON_LIST},
    };
    static const struct field_kind of_ropes[] = {
        {"rope_type", JSON_TEXT},
        {"type", JSON_TEXT},
        {"full_attention", JSON_OBJECT},
        {"sliding_attention", JSON_OBJECT},
    };
    const struct json *ropes = json_get_kind(obj, "rope_parameters", JSON_OBJECT);
    const struct json *older = json_get_kind(obj, "rope_scaling", JSON_OBJECT);
    const struct json *full = json_get_kind(ropes, "full_attention", JSON_OBJECT);
    const struct json *local = json_get_kind(ropes, "sliding_attention", JSON_OBJECT);

    hf_config_check_kinds(s, obj, outer, sizeof outer / sizeof outer[0]);
    hf_config_check_kinds(s, ropes, of_ropes, sizeof of_ropes / sizeof of_ropes[0]);
    hf_config_check_kinds(s, older, of_ropes, sizeof of_ropes / sizeof of_ropes[0]);
    hf_config_check_kinds(s, full, of_ropes, 2);
    hf_config_check_kinds(s, local, of_ropes, 2);
}

/* Multimodal checkpoints wrap the text model's fields in text_config; all fields are read from
 * there, except those of the whole model. generation_config.json has the last word on the ids that
 * end a text. */
int hf_config_parse(struct hf_config *out, const char *name, const char *bytes, size_t len,
                    const char *generation, size_t generation_len)
{
    struct arena arena = {.limit_bytes = CONFIG_ARENA_MAX};
    struct config_source source = {.name = name};
    struct hf_config config = {.n_eos = 0};
    const struct json *obj, *root;

    if ((source.rc = hf_config_parse_json(&obj, &arena, name, bytes, len)) != ERR_OK)
        goto out;
    /* Without the architecture nothing else can be read, so return at once. */
    hf_config_read_arch(&source, &config, obj);
    if (source.rc != ERR_OK)
        goto out;
    hf_config_read_quant(&source, &config, obj);
    root = obj;
    if (config.arch->is_wrapped && json_get_kind(obj, "text_config", JSON_OBJECT) != NULL) {
        obj = json_get_kind(obj, "text_config", JSON_OBJECT);
        hf_config_read_quant(&source, &config, obj);
    }
    if (config.arch->wraps_any)
        hf_config_find_text(&source, &config, root != obj ? obj : NULL);
    if (source.rc != ERR_OK)
        goto out;
    /* From here on errors collect in source.rc, so that one run can log several. */
    hf_config_check_all_kinds(&source, obj);
    hf_config_read_activation(&source, &config, obj);
    hf_config_read_shape(&source, &config, obj);
    hf_config_check_causal(&source, obj);
    hf_config_read_row(&source, &config, obj);
    hf_config_read_layers(&source, &config, obj);
    if (source.rc == ERR_OK && config.arch->read != NULL)
        config.arch->read(&config, &source, obj);
    hf_config_read_eos(&source, &config, obj);
    if (root != obj) { /* the outer object has the ids and the tie of the whole model */
        hf_config_read_eos(&source, &config, root);
        config.tied = source_flag(&source, root, "tie_word_embeddings", config.tied);
    }
    /* The digest of the file's bytes: any edit, even of an ignored field, makes another
     * fingerprint. */
    config.digest = hash_sha256(bytes, len, NULL, 0);
    if (source.rc == ERR_OK && generation != NULL) {
        source.name = "generation_config.json";
        source.rc = hf_config_parse_json(&obj, &arena, source.name, generation, generation_len);
        if (source.rc == ERR_OK)
            hf_config_read_eos(&source, &config, obj);
    }
    if (source.rc == ERR_OK)
        *out = config;
out:
    arena_reset(&arena);
    return source.rc;
}

/* The size is taken once: a file that grows meanwhile is read up to that size, one that shrinks is
 * an error. */
int config_file(char **out, size_t *len, const char *path, size_t bytes_max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = ERR_IO;
    struct stat st;
    char *text = NULL;
    size_t n = 0, want;

    /* A missing file is the caller's decision: often the file is optional. */
    if (fd == -1 && (errno == ENOENT || errno == ENOTDIR))
        return ERR_NOT_FOUND;
    if (fd == -1 || fstat(fd, &st) == -1 || !S_ISREG(st.st_mode)) {
        log_error("model: %s: %s", path, fd == -1 ? strerror(errno) : "not a file");
        goto out;
    }
    want = (size_t)st.st_size;
    if (want > bytes_max || (text = mem_alloc(want + 1)) == NULL) {
        log_error("model: %s: %zu bytes are too many", path, want);
        rc = want > bytes_max ? ERR_TOO_LARGE : ERR_NO_MEMORY;
        goto out;
    }
    while (n < want) {
        ssize_t got = read(fd, text + n, want - n);

        if (got == -1 && errno == EINTR)
            continue;
        if (got <= 0) {
            log_error("model: %s: %s", path,
                      got == 0 ? "it was truncated while it was read" : strerror(errno));
            goto out;
        }
        n += (size_t)got;
    }
    /* For callers that treat the text as a string. */
    text[n] = '\0';
    *out = text;
    *len = n;
    text = NULL;
    rc = ERR_OK;
out:
    mem_free(text);
    if (fd != -1)
        (void)close(fd); /* was only read */
    return rc;
}

/* generation_config.json is optional. */
int hf_config_read(struct hf_config *out, const char *dir, const char *overrides)
{
    char path[4096], generation_path[4096];
    char *text = NULL, *generation = NULL;
    struct buf merged = {.bytes = NULL};
    size_t len = 0, generation_len = 0;
    int rc;

    if (gguf_is_path(dir))
        return gguf_config_read(out, dir, overrides);
    /* A path that is cut would name another file. */
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path ||
        snprintf(generation_path, sizeof generation_path, "%s/generation_config.json", dir) >=
            (int)sizeof generation_path) {
        log_error("model: the folder's name is too long");
        return ERR_INVALID;
    }
    rc = config_file(&text, &len, path, CONFIG_BYTES_MAX);
    if (rc == ERR_NOT_FOUND)
        log_error("model: %s does not exist; --model names a Hugging Face folder or a "
                  "GGUF file",
                  path);
    if (rc != ERR_OK)
        goto out;
    rc = config_file(&generation, &generation_len, generation_path, CONFIG_BYTES_MAX);
    if (rc != ERR_OK && rc != ERR_NOT_FOUND)
        goto out;
    if (overrides == NULL || overrides[0] == '\0')
        rc = hf_config_parse(out, path, text, len, generation, generation_len);
    else if ((rc = config_override(&merged, text, len, overrides)) == ERR_OK)
        rc = hf_config_parse(out, path, merged.bytes, merged.len, generation, generation_len);
out:
    buf_fini(&merged);
    mem_free(generation);
    mem_free(text);
    return rc;
}
