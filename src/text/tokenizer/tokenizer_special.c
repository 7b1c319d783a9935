/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: added tokens, the ids that add_special puts around a text, and the tokens that have a
 * name (bos, eos, unk, pad). The data is spread over several files of different age; each function
 * says which file and which form it reads. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "text/tokenizer/tokenizer_parts.h"

/* --- added tokens ------------------------------------------------------------------------------*/

static int load_list_add(struct load_added_list *list, const struct load_added *item)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 64 : list->cap * 2;
        struct load_added *grown = mem_realloc(list->items, cap * sizeof *grown);

        if (grown == NULL)
            return ERR_NO_MEMORY;
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->n++] = *item;
    return ERR_OK;
}

/* Make sure that the vocabulary has this token under this id. */
static int load_enter_added(struct load *load, int64_t id, const char *text, size_t len)
{
    int32_t known = vocab_find(&load->vocab, text, len);

    if (known >= 0 && known != id)
        return load_fail(load, ERR_INVALID, "added token %lld has id %d in the vocabulary",
                         (long long)id, known);
    if (known < 0 && vocab_add(&load->vocab, id, text, len, false) != ERR_OK)
        return load_fail(load, ERR_INVALID, "added token %lld: another token has this id",
                         (long long)id);
    return ERR_OK;
}

/* Replace a token's text by its normalized form, in the arena: it is searched for in normalized
 * text. */
static int load_normalize(struct load *load, struct load_added *item)
{
    struct normal_work work = {0};
    const char *text;
    size_t len;
    int rc = normal_apply(&load->normal, &work, item->text, item->len, &text, &len);

    /* An added token with "normalized": true is searched for in text that went through the
     * normalizer, so "my token" must be "my▁token" there. */
    if (rc == ERR_OK) {
        item->text = arena_strndup(&load->arena, text, len);
        item->len = len;
    }
    normal_work_fini(&work);
    if (rc == ERR_OK && item->text == NULL)
        return ERR_NO_MEMORY;
    return rc;
}

int load_add_token(struct load *load, const struct json *node, int64_t id, const char *text,
                   size_t len)
{
    bool special = json_get_bool(node, "special", node == NULL);
    struct load_added item = {.text = text, .len = len, .id = (int32_t)id};
    struct load_added_list *list = &load->raw;
    int rc = load_enter_added(load, id, text, len);

    must(text != NULL);
    if (rc != ERR_OK)
        return rc;
    load->vocab.tokens[id].added = true;
    if (special)
        load->vocab.tokens[id].special = true;
    if (json_get_bool(node, "single_word", false))
        item.flags |= ADDED_SINGLE_WORD;
    if (json_get_bool(node, "lstrip", false))
        item.flags |= ADDED_LSTRIP;
    if (json_get_bool(node, "rstrip", false))
        item.flags |= ADDED_RSTRIP;
    /* A token with "normalized" is searched for in the normalized text, and so must be normalized
     * itself. */
    if (json_get_bool(node, "normalized", false)) {
        list = &load->normalized;
        rc = load_normalize(load, &item);
        /* Hugging Face decodes it to the text that it is searched for by. */
        load->vocab.tokens[id].said = item.text;
        load->vocab.tokens[id].said_len = (uint32_t)item.len;
    }
    if (rc == ERR_OK && item.len > 0)
        rc = load_list_add(list, &item);
    if (rc == ERR_NO_MEMORY)
        return load_no_memory(load);
    return rc;
}

/* The id of a description: "id" in tokenizer.json, the key in added_tokens_decoder. */
static int64_t load_id_of(const struct json *node)
{
    int64_t id = 0;
    size_t i;

    if (node->key == NULL)
        return json_get_int(node, "id", -1);
    for (i = 0; i < node->key_len; i++) /* load_vocab() has checked that these are few digits */
        id = id * 10 + (node->key[i] - '0');
    return id;
}

/* Read a list of added tokens:
 *
 *     {"id": 2, "content": "<|im_end|>", "special": true, "lstrip": false, ...}
 *
 * A token that an earlier file described is not changed. */
static int load_added(struct load *load, const struct json *list)
{
    bool described = load->raw.n + load->normalized.n > 0; /* tokenizer.json comes first */
    uint32_t i;
    int rc = ERR_OK;

    for (i = 0; list != NULL && i < list->n && rc == ERR_OK; i++) {
        const struct json *node = &list->items[i];
        const struct json *content = json_get_kind(node, "content", JSON_TEXT);
        int32_t known;

        if (content == NULL || content->text_len == 0)
            return load_fail(load, ERR_INVALID, "an added token has no content");
        known = vocab_find(&load->vocab, content->text, content->text_len);
        if (described && known >= 0 && load->vocab.tokens[known].added)
            continue;
        rc = load_add_token(load, node, load_id_of(node), content->text, content->text_len);
    }
    return rc;
}

/* Read added_tokens.json of older folders: {"<pad>": 1}. */
static int load_added_file(struct load *load)
{
    const struct json *list = load->files[FILE_ADDED];
    static const struct json plain = {.kind = JSON_OBJECT};
    uint32_t i;
    int rc = ERR_OK;

    /* A token that tokenizer_config.json described already has more precise flags there. */
    for (i = 0; list != NULL && i < list->n && rc == ERR_OK; i++) {
        const struct json *node = &list->items[i];
        int32_t known = vocab_find(&load->vocab, node->key, node->key_len);

        if (node->key_len > 0 && !(known >= 0 && load->vocab.tokens[known].added))
            rc = load_add_token(load, &plain, node->whole, node->key, node->key_len);
    }
    return rc;
}

/* --- names -------------------------------------------------------------------------------------*/

/* The token that GPT2Tokenizer uses for bos, eos and unk when no file names them. */
static const struct json gpt2_preset = {.kind = JSON_TEXT,
                                        .text = "<|endoftext|>",
                                        .text_len = sizeof "<|endoftext|>" - 1};

/* The text of bos_token or another name, which is a string or an object with "content". NULL when
 * no file has it. */
static const struct json *load_named_token(const struct load *load, const char *name)
{
    static const enum tokenizer_file files[] = {FILE_CONFIG, FILE_SPECIAL};
    size_t i;

    /* tokenizer_config.json has priority over special_tokens_map.json. */
    for (i = 0; i < 2; i++) {
        const struct json *node = json_get(load->files[files[i]], name);

        if (node != NULL && node->kind == JSON_OBJECT)
            node = json_get(node, "content");
        if (node != NULL && node->kind == JSON_TEXT)
            return node;
    }
    /* The class GPT2Tokenizer has "<|endoftext|>" as its preset for bos, eos and unk. */
    if (load->files[FILE_TOKENIZER] == NULL &&
        strcmp(json_get_text(load->files[FILE_CONFIG], "tokenizer_class", ""), "GPT2Tokenizer") ==
            0 &&
        (name[0] == 'b' || name[0] == 'e' || name[0] == 'u'))
        return &gpt2_preset;
    return NULL;
}

static int32_t load_named_id(const struct load *load, const char *name)
{
    const struct json *node = load_named_token(load, name);

    if (node == NULL)
        return -1;
    return vocab_find(&load->vocab, node->text, node->text_len);
}

/* Without tokenizer.json, the tokens that the configuration names are special. */
static int load_named(struct load *load)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    size_t i;
    int rc = ERR_OK;

    for (i = 0; i < sizeof names / sizeof names[0] && rc == ERR_OK; i++) {
        const struct json *node = load_named_token(load, names[i]);
        int32_t id = load_named_id(load, names[i]);

        /* A token of the vocabulary becomes an added one: it must be found in a text as a whole,
         * before BPE. */
        if (id >= 0 && !load->vocab.tokens[id].added)
            rc = load_add_token(load, NULL, id, node->text, node->text_len);
        else if (id >= 0)
            load->vocab.tokens[id].special = true;
    }
    return rc;
}

static int load_add_end(struct load *load, const struct json *id)
{
    if (id->kind != JSON_INT || id->whole < 0 || id->whole >= load->vocab.n)
        return ERR_OK; /* a model may have more rows than its tokenizer has ids: not an error */
    return token_list_add(&load->ends, (int32_t)id->whole);
}

static int load_compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    if (x < y)
        return -1;
    return x > y;
}

/* Collect the ids that end a text: eos_token_id in two files, a number or a list, and the named eos
 * token. The list is sorted and each id is kept once. */
static int load_ends(struct load *load)
{
    static const enum tokenizer_file files[] = {FILE_GENERATION, FILE_MODEL};
    size_t kept = 0;
    size_t i;
    uint32_t k;
    int rc = ERR_OK;

    if (load->facts.eos >= 0)
        rc = token_list_add(&load->ends, load->facts.eos);
    for (i = 0; i < 2; i++) {
        const struct json *node = json_get(load->files[files[i]], "eos_token_id");

        /* Models that also read images keep the members of their language model in
         * "text_config". */
        if (node == NULL || node->kind == JSON_NULL)
            node = json_get(json_get(load->files[files[i]], "text_config"), "eos_token_id");
        if (node != NULL && node->kind == JSON_INT && rc == ERR_OK)
            rc = load_add_end(load, node);
        for (k = 0; node != NULL && node->kind == JSON_LIST && k < node->n && rc == ERR_OK; k++)
            rc = load_add_end(load, &node->items[k]);
    }
    if (rc != ERR_OK)
        return load_no_memory(load);
    if (load->ends.len > 0)
        qsort(load->ends.ids, load->ends.len, sizeof load->ends.ids[0], load_compare_ids);
    for (i = 0; i < load->ends.len; i++)
        if (kept == 0 || load->ends.ids[kept - 1] != load->ends.ids[i])
            load->ends.ids[kept++] = load->ends.ids[i];
    load->ends.len = kept;
    return ERR_OK;
}

/* --- ids around a text -------------------------------------------------------------------------*/

static int load_add_id(struct load *load, const struct json *node, struct token_list *out)
{
    if (node == NULL || node->kind != JSON_INT || node->whole < 0 || node->whole >= load->vocab.n)
        return load_fail(load, ERR_INVALID, "post_processor: an id is out of range");
    if (token_list_add(out, (int32_t)node->whole) == ERR_OK)
        return ERR_OK;
    return load_no_memory(load);
}

/* Append the ids of one SpecialToken of a template. */
static int load_add_template_ids(struct load *load, const struct json *processor,
                                 const struct json *token, struct token_list *out)
{
    const struct json *id = json_get_kind(token, "id", JSON_TEXT);
    const struct json *ids;
    uint32_t i;
    int rc = ERR_OK;

    if (id == NULL)
        return load_fail(load, ERR_INVALID, "post_processor: a special token without an id");
    /* The ids are in the processor's own table: {"special_tokens": {"<s>": {"ids": [1]}}}. */
    ids = json_get_kind(json_get_n(json_get(processor, "special_tokens"), id->text, id->text_len),
                        "ids", JSON_LIST);
    if (ids == NULL)
        return load_fail(load, ERR_INVALID, "post_processor: token \"%.40s\" is not described",
                         id->text);
    for (i = 0; i < ids->n && rc == ERR_OK; i++)
        rc = load_add_id(load, &ids->items[i], out);
    return rc;
}

/* TemplateProcessing: {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}], ...}. Ids up
 * to the Sequence come before a text, the others after it. */
static int load_template(struct load *load, const struct json *node)
{
    const struct json *single = json_get_kind(node, "single", JSON_LIST);
    struct token_list *out = &load->before;
    uint32_t i;
    int rc = ERR_OK;

    if (single == NULL)
        return load_fail(load, ERR_INVALID, "post_processor: no template for a single text");
    /* `out` changes from `before` to `after` at the Sequence, which is the place of the text. A
     * second Sequence would be a pair of texts, which has no meaning for a prompt. */
    for (i = 0; i < single->n && rc == ERR_OK; i++) {
        const struct json *special = json_get(&single->items[i], "SpecialToken");

        if (special != NULL)
            rc = load_add_template_ids(load, node, special, out);
        else if (json_get(&single->items[i], "Sequence") != NULL && out == &load->before)
            out = &load->after;
        else
            rc = load_fail(load, ERR_UNSUPPORTED,
                           "post_processor: an element of \"single\" is not supported");
    }
    return rc;
}

/* RobertaProcessing and BertProcessing: {"cls": ["<s>", 0], "sep": ["</s>", 2]}. */
static int load_pair(struct load *load, const struct json *node)
{
    const struct json *cls = json_get_kind(node, "cls", JSON_LIST);
    const struct json *sep = json_get_kind(node, "sep", JSON_LIST);
    int rc;

    if (cls == NULL || sep == NULL || cls->n != 2 || sep->n != 2)
        return load_fail(load, ERR_INVALID, "post_processor: cls or sep is missing");
    rc = load_add_id(load, &cls->items[1], &load->before);
    if (rc == ERR_OK)
        return load_add_id(load, &sep->items[1], &load->after);
    return rc;
}

/* Read one post-processor. ByteLevel only changes offsets, so it has no effect here. */
static int load_processor(struct load *load, const struct json *node)
{
    const char *type = json_get_text(node, "type", "");

    if (strcmp(type, "ByteLevel") == 0)
        return ERR_OK;
    if (load->before.len + load->after.len > 0)
        return load_fail(load, ERR_UNSUPPORTED, "two post-processors that add tokens");
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(load, node);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return load_pair(load, node);
    return load_fail(load, ERR_UNSUPPORTED, "post-processor \"%.40s\" is not supported", type);
}

static int load_post_processor(struct load *load, const struct json *node)
{
    const struct json *list = json_get_kind(node, "processors", JSON_LIST);
    uint32_t i;
    int rc = ERR_OK;

    if (node == NULL || node->kind == JSON_NULL)
        return ERR_OK;
    if (strcmp(json_get_text(node, "type", ""), "Sequence") != 0 || list == NULL)
        return load_processor(load, node);
    for (i = 0; i < list->n && rc == ERR_OK; i++)
        rc = load_processor(load, &list->items[i]);
    return rc;
}

/* Do add_bos_token and add_eos_token of the configuration override the post-processor? They do for
 * the classes that rebuild it when they are loaded. */
static bool load_config_rules(const struct load *load)
{
    static const char *const classes[] = {"LlamaTokenizer",     "LlamaTokenizerFast",
                                          "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
                                          "GemmaTokenizer",     "GemmaTokenizerFast"};
    const struct json *config = load->files[FILE_CONFIG];
    const char *name = json_get_text(config, "tokenizer_class", "");
    size_t i;

    /* Without tokenizer.json there is no post-processor to override. */
    if (load->files[FILE_TOKENIZER] == NULL)
        return true;
    /* Even for these classes the rules apply only if the configuration mentions one of them. */
    for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i], name) == 0)
            return json_get_kind(config, "add_bos_token", JSON_BOOL) != NULL ||
                   json_get_kind(config, "add_eos_token", JSON_BOOL) != NULL;
    return false;
}

/* Set the named ids and, where the configuration decides, the ids around a text. */
static int load_apply_config(struct load *load)
{
    const struct json *config = load->files[FILE_CONFIG];
    int rc = ERR_OK;

    /* The named ids are set in every case; only the ids around a text depend on the rules. */
    load->facts.bos = load_named_id(load, "bos_token");
    load->facts.eos = load_named_id(load, "eos_token");
    load->facts.pad = load_named_id(load, "pad_token");
    if (!load_config_rules(load))
        return ERR_OK;
    /* The configuration replaces the post-processor's ids and does not add to them. */
    load->before.len = 0;
    load->after.len = 0;
    /* The presets differ: classes with a tokenizer.json add bos unless it is switched off. */
    if (json_get_bool(config, "add_bos_token", load->files[FILE_TOKENIZER] != NULL) &&
        load->facts.bos >= 0)
        rc = token_list_add(&load->before, load->facts.bos);
    if (rc == ERR_OK && json_get_bool(config, "add_eos_token", false) && load->facts.eos >= 0)
        rc = token_list_add(&load->after, load->facts.eos);
    if (rc == ERR_OK)
        return rc;
    return load_no_memory(load);
}

/* The order matters, because a later source adds to the tokens of an earlier one, and names can
 * only be resolved when all tokens are known. */
int load_specials(struct load *load)
{
    const struct json *root = load->files[FILE_TOKENIZER];
    int rc = load_added(load, json_get_kind(root, "added_tokens", JSON_LIST));

    must(load->vocab.tokens != NULL);
    if (rc == ERR_OK)
        rc = load_added(
            load, json_get_kind(load->files[FILE_CONFIG], "added_tokens_decoder", JSON_OBJECT));
    if (rc == ERR_OK && root == NULL)
        rc = load_added_file(load);
    if (rc == ERR_OK && load->n_ranks > 0)
        rc = load_reserved(load);
    if (rc == ERR_OK && root == NULL)
        rc = load_named(load);
    if (rc == ERR_OK)
        rc = load_post_processor(load, json_get(root, "post_processor"));
    if (rc == ERR_OK)
        rc = load_apply_config(load);
    if (rc == ERR_OK)
        return load_ends(load);
    return rc;
}
