/* SPDX-License-Identifier: Apache-2.0
 *
 * What settings and a folder say of pooling: the files of sentence-transformers in their older and
 * newer forms, architectures, overrides, tokens; and what is refused. */
#include "base/pooling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/tap.h"

static char folder[] = "/tmp/quire-pooling-XXXXXX";

static void forget(const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

/* NULL removes the file. */
static void make(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    forget(name);
    if (text == NULL)
        return;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "we");
    if (file == NULL || fputs(text, file) == EOF || fclose(file) != 0)
        abort();
}

static struct settings plain(void)
{
    return (struct settings){.model = folder,
                             .runner = "auto",
                             .task = "",
                             .convert = "auto",
                             .pooler_config = "",
                             .override_pooler_config = "",
                             .hf_overrides = ""};
}

#define TRANSFORMER "{\"type\": \"sentence_transformers.models.Transformer\", \"path\": \"\"}"
#define POOLING     "{\"type\": \"sentence_transformers.models.Pooling\", \"path\": \"1_Pooling\"}"
#define NORMALIZE \
    "{\"type\": \"sentence_transformers.models.Normalize\", \"path\": \"2_Normalize\"}"
#define DENSE      "{\"type\": \"sentence_transformers.models.Dense\", \"path\": \"2_Dense\"}"
#define ARCH(name) "{\"architectures\": [\"" name "\"]}"

/* Files, and what they mean. */
static const struct folder_case {
    const char *name, *config, *modules, *pooling;
    int rc;
    enum pooling_kind kind;
    enum pooling_type type;
    bool activates;
} folders[] = {
    {"a generating model", ARCH("Qwen3ForCausalLM"), NULL, NULL, ERR_OK, POOLING_NONE, 0, true},
    {"without an output matrix", ARCH("Qwen3Model"), NULL, NULL, ERR_OK, POOLING_EMBED,
     POOLING_LAST, true},
    {"a classifier", ARCH("Qwen3ForSequenceClassification"), NULL, NULL, ERR_OK, POOLING_SCORE,
     POOLING_LAST, true},
    {"modules of a generating model", ARCH("Qwen3ForCausalLM"),
     "[" TRANSFORMER ", " POOLING ", " NORMALIZE "]", "{\"pooling_mode_lasttoken\": true}", ERR_OK,
     POOLING_EMBED, POOLING_LAST, true},
    {"without a norm", ARCH("Qwen3Model"), "[" TRANSFORMER ", " POOLING "]",
     "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": false}", ERR_OK,
     POOLING_EMBED, POOLING_MEAN, false},
    {"the newer form", ARCH("LlamaModel"), "[" TRANSFORMER ", " POOLING ", " NORMALIZE "]",
     "{\"pooling_mode\": \"cls\", \"embedding_dimension\": 8}", ERR_OK, POOLING_EMBED, POOLING_CLS,
     true},
    {"max", ARCH("LlamaModel"), "[" TRANSFORMER ", " POOLING "]",
     "{\"pooling_mode_max_tokens\": true}", ERR_UNSUPPORTED, 0, 0, false},
    {"two modes", ARCH("LlamaModel"), "[" TRANSFORMER ", " POOLING "]",
     "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_lasttoken\": true}", ERR_UNSUPPORTED, 0,
     0, false},
    {"no mode", ARCH("LlamaModel"), "[" TRANSFORMER ", " POOLING "]", "{}", ERR_UNSUPPORTED, 0, 0,
     false},
    {"a dense module", ARCH("LlamaModel"), "[" TRANSFORMER ", " POOLING ", " DENSE "]",
     "{\"pooling_mode_lasttoken\": true}", ERR_UNSUPPORTED, 0, 0, false},
    {"a damaged file", ARCH("LlamaModel"), "[" TRANSFORMER ", ", NULL, ERR_SYNTAX, 0, 0, false},
    {"no config.json", NULL, NULL, NULL, ERR_OK, POOLING_NONE, 0, true},
};

static void test_folders(void)
{
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const struct folder_case *c = &folders[i];
        struct settings s = plain();
        struct pooling p = {.n_labels = -1};
        int rc;

        make("config.json", c->config);
        make("modules.json", c->modules);
        make("1_Pooling/config.json", c->pooling);
        rc = pooling_read(&p, &s);
        is_int(rc, c->rc, "%s: read", c->name);
        if (rc == ERR_OK)
            ok(p.kind == c->kind && p.type == c->type && p.activates == c->activates,
               "%s: kind %d, type %s, %d", c->name, (int)p.kind, pooling_type_name(p.type),
               p.activates);
        else
            is_int(p.n_labels, -1, "%s: nothing was written", c->name);
    }
    make("modules.json", NULL);
    make("1_Pooling/config.json", NULL);
}

/* Settings of a generating model's folder. */
static const struct setting_case {
    const char *name, *runner, *task, *convert, *pooler, *older, *overrides;
    int rc;
    enum pooling_kind kind;
    enum pooling_type type;
    bool activates;
    int n_labels;
} settings[] = {
    {"generate", "generate", "", "auto", "", "", "", ERR_OK, POOLING_NONE, 0, true, 0},
    {"pooling", "pooling", "", "auto", "", "", "", ERR_OK, POOLING_EMBED, 0, true, 0},
    {"embed", "auto", "embed", "auto", "", "", "", ERR_OK, POOLING_EMBED, 0, true, 0},
    {"embedding", "auto", "embedding", "auto", "", "", "", ERR_OK, POOLING_EMBED, 0, true, 0},
    {"task generate", "auto", "generate", "auto", "", "", "", ERR_OK, POOLING_NONE, 0, true, 0},
    {"score", "auto", "score", "auto", "", "", "", ERR_OK, POOLING_SCORE, 0, true, 2},
    {"classify", "pooling", "", "classify", "", "", "{\"num_labels\": 5}", ERR_OK, POOLING_SCORE, 0,
     true, 5},
    {"the mean", "pooling", "", "embed", "{\"pooling_type\": \"MEAN\", \"normalize\": false}", "",
     "", ERR_OK, POOLING_EMBED, POOLING_MEAN, false, 0},
    {"the older name", "pooling", "", "auto", "", "{\"seq_pooling_type\": \"CLS\"}", "", ERR_OK,
     POOLING_EMBED, POOLING_CLS, true, 0},
    {"an original reranker", "pooling", "", "auto", "{\"use_activation\": false}", "",
     "{\"architectures\": [\"Qwen3ForSequenceClassification\"], "
     "\"is_original_qwen3_reranker\": true, \"classifier_from_token\": [\"no\", \"yes\"]}",
     ERR_OK, POOLING_SCORE, POOLING_LAST, false, 1},
    {"labels that are tokens", "auto", "classify", "auto", "", "",
     "{\"classifier_from_token\": [\"a\", \"b\", 7]}", ERR_OK, POOLING_SCORE, 0, true, 3},
    {"another runner", "both", "", "auto", "", "", "", ERR_INVALID, 0, 0, false, 0},
    {"another task", "auto", "draft", "auto", "", "", "", ERR_INVALID, 0, 0, false, 0},
    {"another conversion", "pooling", "", "reward", "", "", "", ERR_INVALID, 0, 0, false, 0},
    {"another pooling", "pooling", "", "auto", "{\"pooling_type\": \"STEP\"}", "", "", ERR_INVALID,
     0, 0, false, 0},
    {"a list", "pooling", "", "auto", "[]", "", "", ERR_INVALID, 0, 0, false, 0},
    {"no JSON", "pooling", "", "auto", "{", "", "", ERR_SYNTAX, 0, 0, false, 0},
    {"an unknown member", "pooling", "", "auto", "{\"max_embed_len\": 9}", "", "", ERR_UNSUPPORTED,
     0, 0, false, 0},
    {"an override of another's", "auto", "", "auto", "", "", "{\"vocab_size\": 9}", ERR_OK, 0, 0,
     true, 0},
    {"another family", "auto", "", "auto", "", "", "{\"architectures\": [\"LlamaModel\"]}",
     ERR_UNSUPPORTED, 0, 0, false, 0},
    {"one token of two", "auto", "score", "auto", "", "",
     "{\"is_original_qwen3_reranker\": true, \"classifier_from_token\": [\"no\"]}", ERR_INVALID, 0,
     0, false, 0},
    {"a sigma of 0", "pooling", "", "auto", "{\"logit_sigma\": 0}", "", "", ERR_INVALID, 0, 0,
     false, 0},
    {"dimensions of a model without", "pooling", "", "auto", "{\"dimensions\": 8}", "", "",
     ERR_INVALID, 0, 0, false, 0},
};

static void test_settings(void)
{
    make("config.json", ARCH("Qwen3ForCausalLM"));
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const struct setting_case *c = &settings[i];
        struct settings s = plain();
        struct pooling p;
        int rc;

        s.runner = c->runner;
        s.task = c->task;
        s.convert = c->convert;
        s.pooler_config = c->pooler;
        s.override_pooler_config = c->older;
        s.hf_overrides = c->overrides;
        rc = pooling_read(&p, &s);
        is_int(rc, c->rc, "%s: read", c->name);
        if (rc == ERR_OK)
            ok(p.kind == c->kind && p.type == c->type && p.activates == c->activates &&
                   p.n_labels == c->n_labels,
               "%s: kind %d, type %s, %d, %d labels", c->name, (int)p.kind,
               pooling_type_name(p.type), p.activates, p.n_labels);
    }
}

static void test_dimensions(void)
{
    struct settings s = plain();
    struct pooling p;

    s.runner = "pooling";
    is_int(pooling_read(&p, &s), ERR_OK, "no dimensions");
    ok(!pooling_has_dimension(&p, 8), "none is allowed");
    s.hf_overrides = "{\"is_matryoshka\": true}";
    is_int(pooling_read(&p, &s), ERR_OK, "any dimensions");
    ok(pooling_has_dimension(&p, 8) && !pooling_has_dimension(&p, 0), "but not 0");
    make("config.json",
         "{\"architectures\": [\"Qwen3Model\"], \"matryoshka_dimensions\": [16, 32]}");
    s.hf_overrides = "";
    s.pooler_config = "{\"dimensions\": 32}";
    is_int(pooling_read(&p, &s), ERR_OK, "two dimensions");
    ok(pooling_has_dimension(&p, 16) && pooling_has_dimension(&p, 32) &&
           !pooling_has_dimension(&p, 24) && p.preset_dimensions == 32,
       "these, and one is the preset");
    make("config.json",
         "{\"architectures\": [\"Qwen3Model\"], \"matryoshka_dimensions\": [\"16\"]}");
    is_int(pooling_read(&p, &s), ERR_INVALID, "a dimension that is a text");
}

static void test_length(void)
{
    struct settings s = plain();
    struct pooling p;

    make("config.json", "{\"architectures\": [\"Qwen3Model\"], \"max_position_embeddings\": 100}");
    make("sentence_bert_config.json", "{\"max_seq_length\": 64}");
    ok(pooling_read(&p, &s) == ERR_OK && p.len_max == 64, "a shorter text than the model's");
    make("sentence_bert_config.json", "{\"max_seq_length\": 128}");
    ok(pooling_read(&p, &s) == ERR_OK && p.len_max == 0, "but not a longer one");
    make("sentence_bert_config.json", "{\"max_seq_length\": null}");
    ok(pooling_read(&p, &s) == ERR_OK && p.len_max == 0, "or none");
    make("sentence_bert_config.json", NULL);
}

static void test_tokens(void)
{
    struct settings s = plain();
    struct pooling p;

    make("config.json",
         "{\"architectures\": [\"Qwen3ForCausalLM\"], \"classifier_from_token\": [\"no\", \"yes\", "
         "5]}");
    s.task = "classify";
    is_int(pooling_read(&p, &s), ERR_OK, "three tokens");
    ok(p.n_tokens == 3 && p.tokens[0].id == -1 && p.tokens[2].id == 5, "one by its id");
    is_int(pooling_find_tokens(&p, folder), ERR_INVALID, "there is no vocabulary");
    make("vocab.json", "{\"no\": 3, \"yes\": 4}");
    is_int(pooling_find_tokens(&p, folder), ERR_OK, "vocab.json");
    ok(p.tokens[0].id == 3 && p.tokens[1].id == 4 && p.tokens[2].id == 5, "has the ids");
    is_int(pooling_read(&p, &s), ERR_OK, "again");
    make("tokenizer.json", "{\"model\": {\"vocab\": {\"no\": 8, \"yes\": 9}}}");
    is_int(pooling_find_tokens(&p, folder), ERR_OK, "tokenizer.json");
    ok(p.tokens[0].id == 8 && p.tokens[1].id == 9, "comes first");
    make("tokenizer.json", "{\"model\": {\"vocab\": {\"no\": 8}}}");
    is_int(pooling_read(&p, &s), ERR_OK, "again");
    is_int(pooling_find_tokens(&p, folder), ERR_INVALID, "a token that is not there");
    make("vocab.json", NULL);
    make("tokenizer.json", NULL);
}

int main(void)
{
    char path[256];

    if (mkdtemp(folder) == NULL)
        abort();
    (void)snprintf(path, sizeof path, "%s/1_Pooling", folder);
    (void)mkdir(path, 0700);
    test_folders();
    test_settings();
    test_dimensions();
    test_length();
    test_tokens();
    make("config.json", NULL);
    (void)rmdir(path);
    (void)rmdir(folder);
    return tap_done();
}
