/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which a setting is found, as in vLLM: pooler_config, then the files of
 * sentence-transformers, then what is usual for the architecture. */
#include "base/pooling.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#define POOLING_FILE_MAX  ((size_t)8 << 20)   /* of files that describe the model */
#define POOLING_VOCAB_MAX ((size_t)256 << 20) /* of tokenizer.json */

/* What is read on the way to a struct pooling. */
struct pooling_source {
    const struct settings *s;
    struct arena arena;
    const struct json *config;    /* config.json; NULL: there is none */
    const struct json *overrides; /* hf_overrides; NULL: none */
    const struct json *pooler;    /* pooler_config; NULL: none */
    const struct json *modules;   /* modules.json; NULL: none */
    bool has_pooling, has_norm;   /* among the modules */
    int rc;
};

static void pooling_fail(struct pooling_source *in, int rc)
{
    if (in->rc == ERR_OK)
        in->rc = rc;
}

/* A file of the folder as JSON; NULL: it is not there, or an error (logged). */
static const struct json *pooling_file(struct pooling_source *in, const char *dir, const char *name,
                                       size_t most)
{
    const struct json *out = NULL;
    char path[4096], why[200] = "";
    size_t n = 0;
    char *text = NULL;
    FILE *f = NULL;
    int rc = ERR_OK;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return NULL; /* the model cannot be opened either */
    f = fopen(path, "re");
    if (f == NULL && (errno == ENOENT || errno == ENOTDIR))
        return NULL;
    if (f == NULL || fseek(f, 0, SEEK_END) != 0 || ftell(f) < 0) {
        rc = ERR_IO;
    } else if ((n = (size_t)ftell(f)) > most) {
        rc = ERR_TOO_LARGE;
    } else {
        rewind(f);
        text = mem_alloc(n + 1);
        rc = text == NULL ? ERR_NO_MEMORY : fread(text, 1, n, f) == n ? ERR_OK : ERR_IO;
    }
    if (rc == ERR_OK)
        rc = json_parse(&out, &in->arena, text, n, why, sizeof why);
    if (rc != ERR_OK)
        log_error("model: %s: %s", path, why[0] != '\0' ? why : err_sentence(rc));
    mem_free(text);
    if (f != NULL)
        (void)fclose(f); /* was only read */
    if (rc == ERR_OK)
        return out;
    pooling_fail(in, rc);
    return NULL;
}

/* A setting that is a JSON object; NULL: it is empty, or an error (logged). */
static const struct json *pooling_setting(struct pooling_source *in, const char *name,
                                          const char *text)
{
    const struct json *out = NULL;
    char why[200] = "it must be a JSON object";
    int rc;

    if (text[0] == '\0')
        return NULL;
    rc = json_parse(&out, &in->arena, text, strlen(text), why, sizeof why);
    if (rc == ERR_OK && out->kind == JSON_OBJECT)
        return out;
    log_error("%s: %s", name, why);
    pooling_fail(in, rc == ERR_OK ? ERR_INVALID : rc);
    return NULL;
}

/* The member of hf_overrides, or else of config.json. */
static const struct json *pooling_member(const struct pooling_source *in, const char *name)
{
    const struct json *value = json_get(in->overrides, name);

    if (value == NULL)
        value = json_get(in->config, name);
    if (value != NULL && value->kind == JSON_NULL)
        return NULL;
    return value;
}

/* --- the architecture ------------------------------------------------------------------------ */

size_t pooling_stem(const char *architecture, bool *is_headless)
{
    static const struct {
        const char *end;
        bool is_headless;
    } ends[] = {{"ForCausalLM", false},
                {"ForConditionalGeneration", false},
                {"ForSequenceClassification", true},
                {"EmbeddingModel", true},
                {"ForTextEncoding", true},
                {"Model", true}};
    size_t len = strlen(architecture);

    *is_headless = false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t n = strlen(ends[i].end);

        if (len <= n || strcmp(architecture + len - n, ends[i].end) != 0 ||
            strcmp(architecture, "GPT2LMHeadModel") == 0)
            continue;
        *is_headless = ends[i].is_headless;
        return len - n;
    }
    return 0;
}

static const char *pooling_first(const struct json *obj)
{
    const struct json *list = json_get_kind(obj, "architectures", JSON_LIST);

    if (list == NULL || list->n == 0 || list->items[0].kind != JSON_TEXT)
        return "";
    return list->items[0].text;
}

static bool pooling_classifies(const char *architecture)
{
    return strstr(architecture, "ForSequenceClassification") != NULL;
}

/* The name that decides: that of hf_overrides, which must be of the same family. */
static const char *pooling_architecture(struct pooling_source *in)
{
    const char *own = pooling_first(in->config), *other = pooling_first(in->overrides);
    bool is_headless;
    size_t n = pooling_stem(own, &is_headless);

    if (json_get(in->overrides, "architectures") == NULL)
        return own;
    if (n > 0 && pooling_stem(other, &is_headless) == n && strncmp(own, other, n) == 0)
        return other;
    if (own[0] == '\0')
        log_error(
            "hf_overrides: architectures replaces a name of config.json; a GGUF file says its "
            "family itself");
    else
        log_error("hf_overrides: architectures must be a list of one name of the family of "
                  "\"%.80s\"",
                  own);
    pooling_fail(in, ERR_UNSUPPORTED);
    return own;
}

/* Members that would have no effect are refused, because they change what the model computes. */
static void pooling_check_members(struct pooling_source *in, const char *setting,
                                  const struct json *obj, const char *const *names)
{
    for (uint32_t i = 0; obj != NULL && i < obj->n; i++) {
        bool known = false;

        for (int k = 0; names[k] != NULL; k++)
            known = known || strcmp(obj->items[i].key, names[k]) == 0;
        if (known)
            continue;
        log_error("%s: the member %.40s is not supported", setting, obj->items[i].key);
        pooling_fail(in, ERR_UNSUPPORTED);
    }
}

/* --- modules of sentence-transformers --------------------------------------------------------- */

static bool pooling_ends(const char *text, const char *end)
{
    size_t len = strlen(text), n = strlen(end);

    return len >= n && strcmp(text + len - n, end) == 0;
}

/* The flags of 1_Pooling/config.json, or its pooling_mode. */
static const struct {
    const char *flag, *mode;
    int type; /* enum pooling_type; -1: not served */
} pooling_modes[] = {{"pooling_mode_lasttoken", "lasttoken", POOLING_LAST},
                     {"pooling_mode_mean_tokens", "mean", POOLING_MEAN},
                     {"pooling_mode_cls_token", "cls", POOLING_CLS},
                     {"pooling_mode_max_tokens", "max", -1},
                     {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", -1},
                     {"pooling_mode_weightedmean_tokens", "weightedmean", -1}};

static void pooling_read_mode(struct pooling_source *in, const char *path, struct pooling *out)
{
    const struct json *file = pooling_file(in, in->s->model, path, POOLING_FILE_MAX);
    const char *mode = json_get_text(file, "pooling_mode", "");
    int n = 0;

    if (file == NULL)
        return;
    for (size_t i = 0; i < sizeof pooling_modes / sizeof pooling_modes[0]; i++) {
        if (!json_get_bool(file, pooling_modes[i].flag, false) &&
            strcmp(mode, pooling_modes[i].mode) != 0)
            continue;
        n++;
        if (pooling_modes[i].type >= 0) {
            out->type = (enum pooling_type)pooling_modes[i].type;
            continue;
        }
        log_error("model: %s: %s is not served; lasttoken, mean and cls are", path,
                  pooling_modes[i].flag);
        pooling_fail(in, ERR_UNSUPPORTED);
    }
    if (n == 1)
        return;
    log_error("model: %s: it must have one pooling mode, not %d", path, n);
    pooling_fail(in, ERR_UNSUPPORTED);
}

/* Each module must be one that is served, because leaving one out would change the vectors. */
static void pooling_read_modules(struct pooling_source *in, struct pooling *out)
{
    for (uint32_t i = 0; in->modules != NULL && i < in->modules->n; i++) {
        const struct json *module = &in->modules->items[i];
        const char *type = json_get_text(module, "type", "");
        char path[600];

        if (pooling_ends(type, ".Transformer"))
            continue;
        if (pooling_ends(type, ".Normalize")) {
            in->has_norm = true;
        } else if (pooling_ends(type, ".Pooling")) {
            in->has_pooling = true;
            (void)snprintf(path, sizeof path, "%.500s/config.json",
                           json_get_text(module, "path", "1_Pooling"));
            pooling_read_mode(in, path, out);
        } else {
            log_error("model: modules.json: the module %.100s is not served", type);
            pooling_fail(in, ERR_UNSUPPORTED);
        }
    }
}

/* A shorter length than config.json's, for which the model was trained. */
static void pooling_read_length(struct pooling_source *in, struct pooling *out)
{
    const struct json *file =
        pooling_file(in, in->s->model, "sentence_bert_config.json", POOLING_FILE_MAX);
    int64_t n = json_get_int(file, "max_seq_length", 0);

    if (n > 0 && n < json_get_int(in->config, "max_position_embeddings", 0))
        out->len_max = (int)n;
}

/* --- the settings ----------------------------------------------------------------------------- */

/* Is the value one of the names, which end with NULL? */
static bool pooling_is_one(struct pooling_source *in, const char *setting, const char *value,
                           const char *const *names)
{
    char all[200] = "";
    size_t n = 0;

    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(value, names[i]) == 0)
            return true;
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    log_error("%s = '%.40s': it must be one of %s", setting, value, all);
    pooling_fail(in, ERR_INVALID);
    return false;
}

/* Does the model pool? task is the older name of runner and convert. */
static bool pooling_runs(struct pooling_source *in, const char *architecture)
{
    static const char *const runners[] = {"auto", "generate", "pooling", NULL};
    static const char *const tasks[] = {"",          "auto",     "generate", "embed",
                                        "embedding", "classify", "score",    NULL};
    const struct settings *s = in->s;
    bool is_headless;

    if (!pooling_is_one(in, "runner", s->runner, runners) ||
        !pooling_is_one(in, "task", s->task, tasks))
        return false;
    if (strcmp(s->runner, "auto") != 0)
        return strcmp(s->runner, "pooling") == 0;
    if (s->task[0] != '\0' && strcmp(s->task, "auto") != 0)
        return strcmp(s->task, "generate") != 0;
    (void)pooling_stem(architecture, &is_headless);
    return in->has_pooling || is_headless;
}

static enum pooling_kind pooling_convert(struct pooling_source *in, const char *architecture)
{
    static const char *const converts[] = {"auto", "none", "embed", "classify", NULL};
    const struct settings *s = in->s;
    const char *task = s->task;

    if (!pooling_is_one(in, "convert", s->convert, converts))
        return POOLING_NONE;
    if (strcmp(s->convert, "embed") == 0 || strncmp(task, "embed", 5) == 0)
        return POOLING_EMBED;
    if (strcmp(s->convert, "classify") == 0 || strcmp(task, "classify") == 0 ||
        strcmp(task, "score") == 0 || pooling_classifies(architecture))
        return POOLING_SCORE;
    return POOLING_EMBED;
}

/* A number of pooler_config. */
static double pooling_number(struct pooling_source *in, const char *name, double preset)
{
    const struct json *value = json_get(in->pooler, name);

    if (value == NULL || value->kind == JSON_NULL)
        return preset;
    if (json_is_number(value))
        return json_real(value);
    log_error("pooler_config: %s must be a number", name);
    pooling_fail(in, ERR_INVALID);
    return preset;
}

static void pooling_read_type(struct pooling_source *in, struct pooling *out)
{
    static const char *const fields[] = {"pooling_type", "seq_pooling_type"};
    static const char *const names[] = {"LAST", "MEAN", "CLS", NULL};

    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        const char *value = json_get_text(in->pooler, fields[f], "");

        if (value[0] == '\0' || !pooling_is_one(in, "pooler_config: pooling_type", value, names))
            continue;
        for (int i = 0; names[i] != NULL; i++) {
            if (strcmp(value, names[i]) == 0)
                out->type = (enum pooling_type)i;
        }
    }
}

/* pooler_config replaces what the folder says. normalize, softmax and activation are older names of
 * use_activation. */
static void pooling_read_pooler(struct pooling_source *in, struct pooling *out)
{
    static const char *const members[] = {"pooling_type", "seq_pooling_type", "use_activation",
                                          "normalize",    "softmax",          "activation",
                                          "dimensions",   "logit_mean",       "logit_sigma",
                                          "logit_scale",  "logit_bias",       NULL};
    static const char *const flags[] = {"normalize", "softmax", "activation", "use_activation"};
    double scale;

    if (in->pooler == NULL)
        return;
    pooling_check_members(in, "pooler_config", in->pooler, members);
    pooling_read_type(in, out);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        out->activates = json_get_bool(in->pooler, flags[i], out->activates);
    out->preset_dimensions = (int)pooling_number(in, "dimensions", 0);
    out->mean = pooling_number(in, "logit_mean", pooling_number(in, "logit_bias", 0.0));
    scale = pooling_number(in, "logit_scale", 1.0);
    out->sigma = pooling_number(in, "logit_sigma", scale == 0.0 ? 0.0 : 1.0 / scale);
    if (out->sigma == 0.0) {
        log_error("pooler_config: logit_sigma and logit_scale must not be 0");
        pooling_fail(in, ERR_INVALID);
    }
    if (out->preset_dimensions != 0 && !pooling_has_dimension(out, out->preset_dimensions)) {
        log_error("pooler_config: dimensions is %d, and the model's vectors cannot be cut to that "
                  "(is_matryoshka, matryoshka_dimensions of config.json)",
                  out->preset_dimensions);
        pooling_fail(in, ERR_INVALID);
    }
}

/* --- config.json ------------------------------------------------------------------------------ */

static void pooling_read_dimensions(struct pooling_source *in, struct pooling *out)
{
    const struct json *flag = pooling_member(in, "is_matryoshka");
    const struct json *list = pooling_member(in, "matryoshka_dimensions");

    out->is_matryoshka = flag != NULL && flag->kind == JSON_BOOL && flag->flag;
    if (list == NULL)
        return;
    out->is_matryoshka = true;
    for (uint32_t i = 0; list->kind == JSON_LIST && i < list->n; i++) {
        const struct json *n = &list->items[i];

        if (n->kind == JSON_INT && n->whole > 0 && n->whole < INT32_MAX &&
            out->n_dimensions < POOLING_DIMENSIONS_MAX) {
            out->dimensions[out->n_dimensions++] = (int)n->whole;
            continue;
        }
        log_error("model: matryoshka_dimensions must be a list of at most %d whole numbers",
                  POOLING_DIMENSIONS_MAX);
        pooling_fail(in, ERR_INVALID);
        return;
    }
}

/* The tokens whose rows of the output matrix are the labels. */
static void pooling_read_tokens(struct pooling_source *in, const struct json *list,
                                struct pooling *out)
{
    for (uint32_t i = 0; list->kind == JSON_LIST && i < list->n && i < POOLING_TOKENS_MAX; i++) {
        struct pooling_token *token = &out->tokens[out->n_tokens];
        const struct json *value = &list->items[i];

        if (value->kind == JSON_INT && value->whole >= 0 && value->whole < INT32_MAX) {
            *token = (struct pooling_token){.id = (int32_t)value->whole};
        } else if (value->kind == JSON_TEXT && value->text_len > 0 &&
                   value->text_len < sizeof token->text && !json_has_nul(value)) {
            *token = (struct pooling_token){.id = -1};
            memcpy(token->text, value->text, value->text_len);
        } else {
            break;
        }
        out->n_tokens++;
    }
    if (list->kind == JSON_LIST && list->n >= 1 && out->n_tokens == (int)list->n)
        return;
    log_error("classifier_from_token must be a list of 1 to %d tokens, or their ids",
              POOLING_TOKENS_MAX);
    pooling_fail(in, ERR_INVALID);
}

/* Two tokens are one label if config.json says so in one of two ways; else each is a label. */
static void pooling_read_labels(struct pooling_source *in, struct pooling *out)
{
    const struct json *list = pooling_member(in, "classifier_from_token");
    const struct json *original = pooling_member(in, "is_original_qwen3_reranker");
    const struct json *method = pooling_member(in, "method");
    const struct json *names = pooling_member(in, "id2label"),
                      *n = pooling_member(in, "num_labels");

    out->n_labels = 2; /* transformers' default */
    if (names != NULL && names->kind == JSON_OBJECT)
        out->n_labels = (int)(names->n <= POOLING_LABELS_MAX ? names->n : 0);
    if (n != NULL && n->kind == JSON_INT)
        out->n_labels = (int)(n->whole <= POOLING_LABELS_MAX ? n->whole : 0);
    if (list != NULL) {
        pooling_read_tokens(in, list, out);
        out->is_difference = (original != NULL && original->kind == JSON_BOOL && original->flag) ||
                             json_is_text(method, "from_2_way_softmax");
        out->n_labels = out->is_difference ? 1 : out->n_tokens;
    }
    if (out->n_labels >= 1 && (!out->is_difference || out->n_tokens == 2))
        return;
    log_error(out->is_difference
                  ? "classifier_from_token must have two tokens with is_original_qwen3_reranker"
                  : "model: config.json: the number of labels (id2label, num_labels) must be 1 to "
                    "4096");
    pooling_fail(in, ERR_INVALID);
}

/* --- all -------------------------------------------------------------------------------------- */

bool pooling_has_dimension(const struct pooling *p, int64_t n)
{
    if (!p->is_matryoshka || n < 1)
        return false;
    for (int i = 0; i < p->n_dimensions; i++) {
        if (p->dimensions[i] == n)
            return true;
    }
    return p->n_dimensions == 0;
}

const char *pooling_type_name(enum pooling_type type)
{
    switch (type) {
    case POOLING_LAST: return "LAST";
    case POOLING_MEAN: return "MEAN";
    case POOLING_CLS: return "CLS";
    }
    return "";
}

bool pooling_overrides(const char *name)
{
    static const char *const names[] = {
        "architectures", "classifier_from_token", "is_original_qwen3_reranker",
        "method",        "is_matryoshka",         "matryoshka_dimensions",
        "num_labels"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* Without a file of sentence-transformers: the last token, and vectors of length 1. With one, only
 * a module Normalize makes these. */
static void pooling_read_all(struct pooling_source *in, struct pooling *out)
{
    const char *architecture = pooling_architecture(in);

    pooling_read_modules(in, out);
    if (in->rc != ERR_OK || !pooling_runs(in, architecture))
        return;
    out->kind = pooling_convert(in, architecture);
    if (out->kind == POOLING_EMBED)
        out->activates = !in->has_pooling || in->has_norm;
    if (out->kind == POOLING_SCORE && gguf_is_path(in->s->model)) {
        log_error("model: %s: GGUF files give vectors, and no scores", in->s->model);
        pooling_fail(in, ERR_UNSUPPORTED);
    }
    if (out->kind == POOLING_SCORE)
        pooling_read_labels(in, out);
    pooling_read_length(in, out);
    pooling_read_dimensions(in, out);
    pooling_read_pooler(in, out);
}

int pooling_read(struct pooling *out, const struct settings *s)
{
    const char *older = s->override_pooler_config;
    struct pooling_source in = {.s = s};
    struct pooling pooling = {.type = POOLING_LAST, .activates = true, .sigma = 1.0};

    if (s->model[0] != '\0') {
        in.config = pooling_file(&in, s->model, "config.json", POOLING_FILE_MAX);
        in.modules = pooling_file(&in, s->model, "modules.json", POOLING_FILE_MAX);
    }
    if (in.modules != NULL && in.modules->kind != JSON_LIST)
        in.modules = NULL;
    in.overrides = pooling_setting(&in, "hf_overrides", s->hf_overrides);
    in.pooler = pooling_setting(&in, "pooler_config",
                                s->pooler_config[0] != '\0' ? s->pooler_config : older);
    if (in.rc == ERR_OK)
        pooling_read_all(&in, &pooling);
    arena_reset(&in.arena);
    if (in.rc == ERR_OK)
        *out = pooling;
    return in.rc;
}

/* The vocabulary of tokenizer.json is {"token": id}, in "model"; vocab.json is nothing else. */
int pooling_find_tokens(struct pooling *p, const char *dir)
{
    const struct settings none = {.model = dir};
    struct pooling_source in = {.s = &none};
    const struct json *vocab = NULL;

    for (int i = 0; i < p->n_tokens && in.rc == ERR_OK; i++) {
        struct pooling_token *token = &p->tokens[i];
        int64_t id;

        if (token->id >= 0)
            continue;
        if (vocab == NULL)
            vocab = json_get_kind(
                json_get_kind(pooling_file(&in, dir, "tokenizer.json", POOLING_VOCAB_MAX), "model",
                              JSON_OBJECT),
                "vocab", JSON_OBJECT);
        if (vocab == NULL && in.rc == ERR_OK)
            vocab = pooling_file(&in, dir, "vocab.json", POOLING_VOCAB_MAX);
        id = json_get_int(vocab, token->text, -1);
        if (id < 0 || id > INT32_MAX) {
            log_error("model: classifier_from_token: the vocabulary of %s has no token \"%s\"", dir,
                      token->text);
            pooling_fail(&in, ERR_INVALID);
        }
        token->id = (int32_t)id;
    }
    arena_reset(&in.arena);
    return in.rc;
}
