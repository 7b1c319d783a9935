/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: tokenizer.json (or vocab.json + merges.txt) and tokenizer_config.json.
 *
 * Nothing in the files is believed: every id is checked against its range and its neighbours,
 * every merge against the vocabulary, every kind against what quire knows. The JSON trees live in
 * one arena that ends with tokenizer_open(). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/file.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

#define FILE_BYTES_MAX ((size_t)256 << 20) /* the largest tokenizer.json has 40 MB */

struct load {
    struct tokenizer *t;
    struct arena arena;
    const struct json *root;   /* tokenizer.json; NULL: vocab.json and merges.txt */
    const struct json *vocab;  /* object: text to id */
    const struct json *config; /* tokenizer_config.json, or NULL */
    struct buf merges;         /* merges.txt */
    char *why;
    size_t why_cap;
};

__attribute__((format(printf, 3, 4))) static int fail(struct load *l, int rc, const char *format,
                                                      ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(l->why, l->why_cap, format, args);
    va_end(args);
    return rc;
}

static int out_of_memory(struct load *l)
{
    return fail(l, ERR_NO_MEMORY, "out of memory for the tokenizer");
}

/* Read dir/name as JSON; ERR_NOT_FOUND leaves *out alone. */
static int read_json(struct load *l, const char *dir, const char *name, const struct json **out)
{
    struct buf text = {0};
    char reason[200] = "";
    int rc = file_read(&text, dir, name, FILE_BYTES_MAX, l->why, l->why_cap);

    if (rc == ERR_OK) {
        rc = json_parse(out, &l->arena, text.bytes, text.len, reason, sizeof reason);
        if (rc != ERR_OK)
            rc = fail(l, rc, "%s: %s", name, reason);
        else if ((*out)->kind != JSON_OBJECT)
            rc = fail(l, ERR_INVALID, "%s: not an object", name);
    }
    buf_fini(&text);
    return rc;
}

static int read_files(struct load *l, const char *dir)
{
    int rc = read_json(l, dir, "tokenizer_config.json", &l->config);

    if (rc != ERR_OK && rc != ERR_NOT_FOUND)
        return rc;
    rc = read_json(l, dir, "tokenizer.json", &l->root);
    if (rc != ERR_NOT_FOUND)
        return rc;
    rc = read_json(l, dir, "vocab.json", &l->vocab);
    if (rc == ERR_OK)
        rc = file_read(&l->merges, dir, "merges.txt", FILE_BYTES_MAX, l->why, l->why_cap);
    if (rc == ERR_NOT_FOUND)
        return fail(l, rc, "%s: neither tokenizer.json nor vocab.json and merges.txt", dir);
    return rc;
}

/* --- vocabulary --------------------------------------------------------------------------------*/

/* The id of an added token's description, wherever it stands. */
static int64_t added_id(const struct json *token)
{
    if (token->key != NULL) { /* added_tokens_decoder: {"50256": {...}} */
        int64_t id = 0;
        size_t i;

        for (i = 0; i < token->key_len && i < 10; i++)
            id = token->key[i] >= '0' && token->key[i] <= '9' ? id * 10 + (token->key[i] - '0')
                                                              : VOCAB_IDS_MAX;
        return token->key_len == 0 || token->key_len > 9 ? -1 : id;
    }
    return json_get_int(token, "id", -1);
}

static int count_ids(struct load *l, const struct json *list, int64_t *n_ids)
{
    uint32_t i;

    for (i = 0; list != NULL && i < list->n; i++) {
        const struct json *node = &list->items[i];
        int64_t id =
            list == l->vocab ? (node->kind == JSON_INT ? node->whole : -1) : added_id(node);

        if (id < 0 || id >= VOCAB_IDS_MAX)
            return fail(l, ERR_INVALID, "%s: item %u has no id in 0 .. %d",
                        list == l->vocab ? "the vocabulary" : "the added tokens", i,
                        VOCAB_IDS_MAX - 1);
        if (id >= *n_ids)
            *n_ids = id + 1;
    }
    return ERR_OK;
}

static int load_vocab(struct load *l, const struct json *added, const struct json *decoder)
{
    int64_t n_ids = 0;
    uint32_t i;
    int rc = count_ids(l, l->vocab, &n_ids);

    if (rc == ERR_OK)
        rc = count_ids(l, added, &n_ids);
    if (rc == ERR_OK)
        rc = count_ids(l, decoder, &n_ids);
    if (rc != ERR_OK)
        return rc;
    if (vocab_init(&l->t->vocab, n_ids) != ERR_OK)
        return out_of_memory(l);
    for (i = 0; i < l->vocab->n; i++) {
        const struct json *node = &l->vocab->items[i];

        rc = vocab_add(&l->t->vocab, node->whole, node->key, node->key_len, true);
        if (rc == ERR_NO_MEMORY)
            return out_of_memory(l);
        if (rc != ERR_OK)
            return fail(l, rc, "the vocabulary gives id %lld twice", (long long)node->whole);
    }
    return ERR_OK;
}

/* --- merges ------------------------------------------------------------------------------------*/

static int add_merge(struct load *l, const char *left, size_t left_len, const char *right,
                     size_t right_len, uint32_t rank)
{
    int rc = bpe_add(&l->t->bpe, left, left_len, right, right_len, rank);

    if (rc == ERR_NOT_FOUND)
        return fail(l, ERR_INVALID, "merge %u joins or makes a token that is not in the vocabulary",
                    rank);
    return rc == ERR_OK ? rc : out_of_memory(l);
}

static int add_merge_line(struct load *l, const char *line, size_t len, uint32_t rank)
{
    const char *space = memchr(line, ' ', len);
    size_t left = space == NULL ? 0 : (size_t)(space - line);

    if (space == NULL || memchr(space + 1, ' ', len - left - 1) != NULL)
        return fail(l, ERR_INVALID, "merge %u is not two tokens with a space between", rank);
    return add_merge(l, line, left, space + 1, len - left - 1, rank);
}

static int load_merges_json(struct load *l, const struct json *list)
{
    uint32_t i;
    int rc = ERR_OK;

    for (i = 0; i < list->n && rc == ERR_OK; i++) {
        const struct json *m = &list->items[i];

        if (m->kind == JSON_TEXT)
            rc = add_merge_line(l, m->text, m->text_len, i);
        else if (m->kind == JSON_LIST && m->n == 2 && m->items[0].kind == JSON_TEXT &&
                 m->items[1].kind == JSON_TEXT)
            rc = add_merge(l, m->items[0].text, m->items[0].text_len, m->items[1].text,
                           m->items[1].text_len, i);
        else
            rc = fail(l, ERR_INVALID, "merge %u is neither a string nor a pair of strings", i);
    }
    return rc;
}

static int load_merges_txt(struct load *l)
{
    const char *p = l->merges.bytes;
    const char *end = p + l->merges.len;
    uint32_t rank = 0;
    int rc = ERR_OK;

    while (p < end && rc == ERR_OK) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol == NULL ? end : eol) - p);
        size_t used = len > 0 && p[len - 1] == '\r' ? len - 1 : len;

        if (used > 0 && !(used >= 8 && memcmp(p, "#version", 8) == 0))
            rc = add_merge_line(l, p, used, rank++);
        p += len + 1;
    }
    return rc;
}

static size_t count_lines(const struct buf *b)
{
    size_t n = 1;
    size_t i;

    for (i = 0; i < b->len; i++)
        n += b->bytes[i] == '\n';
    return n;
}

/* Settings of the model that change ids and that quire does not follow. */
static int check_model(struct load *l, const struct json *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const struct json *dropout = json_get(model, "dropout");
    const char *type = json_get_text(model, "type", "BPE");
    size_t i;

    if (strcmp(type, "BPE") != 0)
        return fail(l, ERR_UNSUPPORTED, "model \"%.40s\" is not supported", type);
    if (json_get_bool(model, "byte_fallback", false))
        return fail(l, ERR_UNSUPPORTED, "byte_fallback (SentencePiece models) is not supported");
    if (json_is_number(dropout) && json_real(dropout) != 0)
        return fail(l, ERR_UNSUPPORTED, "dropout is not supported");
    for (i = 0; i < 2; i++)
        if (json_get_text(model, affixes[i], "")[0] != '\0')
            return fail(l, ERR_UNSUPPORTED, "%s is not supported", affixes[i]);
    return ERR_OK;
}

static int load_model(struct load *l)
{
    const struct json *model = json_get_kind(l->root, "model", JSON_OBJECT);
    const struct json *merges = json_get_kind(model, "merges", JSON_LIST);
    const struct json *unk = json_get_kind(model, "unk_token", JSON_TEXT);
    struct tokenizer *t = l->t;
    size_t n_merges = merges != NULL ? merges->n : count_lines(&l->merges);
    int rc;

    if (l->root != NULL && (rc = check_model(l, model)) != ERR_OK)
        return rc;
    if (l->root != NULL && merges == NULL)
        return fail(l, ERR_INVALID, "the model has no list of merges");
    if (bpe_init(&t->bpe, &t->vocab, n_merges) != ERR_OK)
        return out_of_memory(l);
    t->bpe.ignore_merges = json_get_bool(model, "ignore_merges", false);
    t->bpe.fuse_unk = json_get_bool(model, "fuse_unk", false);
    if (unk != NULL)
        t->bpe.unk_id = vocab_find_text(&t->vocab, unk->text, unk->text_len);
    rc = merges != NULL ? load_merges_json(l, merges) : load_merges_txt(l);
    if (rc == ERR_OK && bpe_mark_whole(&t->bpe, &t->vocab) != ERR_OK)
        rc = out_of_memory(l);
    return rc;
}

/* --- added tokens ------------------------------------------------------------------------------*/

static int enter_added(struct load *l, int64_t id, const char *text, size_t len)
{
    int32_t known = vocab_find_text(&l->t->vocab, text, len);
    int rc;

    if (known >= 0 && known != id)
        return fail(l, ERR_INVALID, "added token %lld has id %d in the vocabulary", (long long)id,
                    known);
    if (known >= 0)
        return ERR_OK;
    rc = vocab_add(&l->t->vocab, id, text, len, false);
    if (rc == ERR_INVALID)
        return fail(l, rc, "added token %lld: another token has this id", (long long)id);
    return rc == ERR_OK ? rc : out_of_memory(l);
}

/* Enter one token with its flags. `node` may be NULL: a special token without description. */
static int add_token(struct load *l, const struct json *node, int64_t id, const char *text,
                     size_t len)
{
    struct tokenizer *t = l->t;
    bool special = json_get_bool(node, "special", node == NULL);
    struct added_token token = {.text = text, .len = len, .id = (int32_t)id};
    struct added_set *set = &t->raw;
    struct buf normal = {0};
    int rc = enter_added(l, id, text, len);

    if (rc != ERR_OK)
        return rc;
    if (special)
        t->vocab.tokens[id].special = true;
    token.single_word = json_get_bool(node, "single_word", false);
    token.lstrip = json_get_bool(node, "lstrip", false);
    token.rstrip = json_get_bool(node, "rstrip", false);
    if (json_get_bool(node, "normalized", false)) {
        set = &t->normalized;
        if (t->nfc) {
            unicode_nfc(text, len, &normal);
            token.len = normal.len;
            text = normal.bytes;
        }
    }
    token.text = normal.failed ? NULL : arena_strndup(&t->vocab.arena, text, token.len);
    if (token.text == NULL || added_add(set, &token) != ERR_OK)
        rc = out_of_memory(l);
    buf_fini(&normal);
    return rc;
}

static bool is_added(const struct tokenizer *t, int32_t id)
{
    size_t i;

    for (i = 0; i < t->raw.n; i++)
        if (t->raw.tokens[i].id == id)
            return true;
    for (i = 0; i < t->normalized.n; i++)
        if (t->normalized.tokens[i].id == id)
            return true;
    return false;
}

static int load_added(struct load *l, const struct json *list)
{
    size_t n_first = l->t->raw.n + l->t->normalized.n;
    uint32_t i;
    int rc = ERR_OK;

    for (i = 0; list != NULL && i < list->n && rc == ERR_OK; i++) {
        const struct json *node = &list->items[i];
        const struct json *content = json_get_kind(node, "content", JSON_TEXT);
        int32_t known;

        if (content == NULL || content->text_len == 0)
            return fail(l, ERR_INVALID, "an added token has no content");
        known = vocab_find_text(&l->t->vocab, content->text, content->text_len);
        if (n_first > 0 && known >= 0 && is_added(l->t, known))
            continue; /* tokenizer.json has described it */
        rc = add_token(l, node, added_id(node), content->text, content->text_len);
    }
    return rc;
}

/* The text of bos_token and its kin, a string or an object with content; NULL if there is none. */
static const struct json *named_token(const struct load *l, const char *name)
{
    const struct json *node = json_get(l->config, name);

    if (node != NULL && node->kind == JSON_OBJECT)
        node = json_get(node, "content");
    return node != NULL && node->kind == JSON_TEXT ? node : NULL;
}

static int32_t named_id(const struct load *l, const char *name)
{
    const struct json *node = named_token(l, name);

    return node == NULL ? -1 : vocab_find_text(&l->t->vocab, node->text, node->text_len);
}

/* Without tokenizer.json the tokens that the configuration names are special. */
static int load_named(struct load *l)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    size_t i;
    int rc = ERR_OK;

    for (i = 0; i < sizeof names / sizeof names[0] && rc == ERR_OK; i++) {
        const struct json *node = named_token(l, names[i]);
        int32_t id = named_id(l, names[i]);

        if (id >= 0 && !is_added(l->t, id))
            rc = add_token(l, NULL, id, node->text, node->text_len);
    }
    return rc;
}

/* --- the rest ----------------------------------------------------------------------------------*/

static int load_normalizer(struct load *l, const struct json *node)
{
    const struct json *list = json_get_kind(node, "normalizers", JSON_LIST);
    const char *type = json_get_text(node, "type", "");
    uint32_t i;

    if (node == NULL || node->kind == JSON_NULL)
        return ERR_OK;
    if (strcmp(type, "NFC") == 0) {
        l->t->nfc = true;
        return ERR_OK;
    }
    if (strcmp(type, "Sequence") != 0 || list == NULL)
        return fail(l, ERR_UNSUPPORTED, "normalizer \"%.40s\" is not supported", type);
    for (i = 0; i < list->n; i++) {
        if (!json_is_text(json_get(&list->items[i], "type"), "NFC"))
            return fail(l, ERR_UNSUPPORTED, "normalizer \"%.40s\" is not supported",
                        json_get_text(&list->items[i], "type", ""));
        l->t->nfc = true;
    }
    return ERR_OK;
}

/* Append the ids that one SpecialToken of a template stands for. */
static int add_template_ids(struct load *l, const struct json *processor, const struct json *token,
                            struct token_list *out)
{
    const struct json *id = json_get_kind(token, "id", JSON_TEXT);
    const struct json *entry;
    const struct json *ids;
    uint32_t i;

    if (id == NULL)
        return fail(l, ERR_INVALID, "post_processor: a special token without an id");
    entry = json_get_n(json_get(processor, "special_tokens"), id->text, id->text_len);
    ids = json_get_kind(entry, "ids", JSON_LIST);
    if (ids == NULL)
        return fail(l, ERR_INVALID, "post_processor: token \"%.40s\" is not described", id->text);
    for (i = 0; i < ids->n; i++) {
        const struct json *n = &ids->items[i];

        if (n->kind != JSON_INT || n->whole < 0 || n->whole >= l->t->vocab.n)
            return fail(l, ERR_INVALID, "post_processor: an id is out of range");
        if (token_list_add(out, (int32_t)n->whole) != ERR_OK)
            return out_of_memory(l);
    }
    return ERR_OK;
}

static int load_template(struct load *l, const struct json *node)
{
    const struct json *single = json_get_kind(node, "single", JSON_LIST);
    struct token_list *out = &l->t->before;
    uint32_t i;
    int rc = ERR_OK;

    if (single == NULL)
        return fail(l, ERR_INVALID, "post_processor: no template for a single text");
    for (i = 0; i < single->n && rc == ERR_OK; i++) {
        const struct json *special = json_get(&single->items[i], "SpecialToken");

        if (special != NULL)
            rc = add_template_ids(l, node, special, out);
        else if (json_get(&single->items[i], "Sequence") != NULL && out == &l->t->before)
            out = &l->t->after;
        else
            rc = fail(l, ERR_UNSUPPORTED, "post_processor: a template that is not understood");
    }
    return rc;
}

static int load_post_processor(struct load *l, const struct json *node)
{
    const struct json *list = json_get_kind(node, "processors", JSON_LIST);
    const char *type = json_get_text(node, "type", "");
    uint32_t i;
    int rc = ERR_OK;

    if (node == NULL || node->kind == JSON_NULL || strcmp(type, "ByteLevel") == 0)
        return ERR_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(l, node);
    if (strcmp(type, "Sequence") != 0 || list == NULL)
        return fail(l, ERR_UNSUPPORTED, "post-processor \"%.40s\" is not supported", type);
    for (i = 0; i < list->n && rc == ERR_OK; i++) {
        const struct json *item = &list->items[i];

        if (json_is_text(json_get(item, "type"), "TemplateProcessing"))
            rc = load_template(l, item);
        else if (!json_is_text(json_get(item, "type"), "ByteLevel"))
            rc = fail(l, ERR_UNSUPPORTED, "post-processor \"%.40s\" is not supported",
                      json_get_text(item, "type", ""));
    }
    return rc;
}

/* Whether add_bos_token of the configuration overrules the post-processor: the classes that
 * rebuild it when they load do so. */
static bool config_rules(const struct load *l)
{
    static const char *const classes[] = {"LlamaTokenizer",         "LlamaTokenizerFast",
                                          "CodeLlamaTokenizer",     "GemmaTokenizer",
                                          "CodeLlamaTokenizerFast", "GemmaTokenizerFast"};
    const char *name = json_get_text(l->config, "tokenizer_class", "");
    size_t i;

    if (l->root == NULL)
        return true;
    for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (strcmp(classes[i], name) == 0)
            return json_get_kind(l->config, "add_bos_token", JSON_BOOL) != NULL ||
                   json_get_kind(l->config, "add_eos_token", JSON_BOOL) != NULL;
    return false;
}

static int load_config(struct load *l)
{
    struct tokenizer *t = l->t;
    int rc = ERR_OK;

    t->bos = named_id(l, "bos_token");
    t->eos = named_id(l, "eos_token");
    t->pad = named_id(l, "pad_token");
    if (!config_rules(l))
        return ERR_OK;
    t->before.len = 0;
    t->after.len = 0;
    if (json_get_bool(l->config, "add_bos_token", false) && t->bos >= 0)
        rc = token_list_add(&t->before, t->bos);
    if (rc == ERR_OK && json_get_bool(l->config, "add_eos_token", false) && t->eos >= 0)
        rc = token_list_add(&t->after, t->eos);
    return rc == ERR_OK ? rc : out_of_memory(l);
}

static int load_pretoken(struct load *l)
{
    char reason[200] = "";
    int rc;

    if (l->root == NULL) {
        rc = pretoken_init_gpt2(&l->t->pretoken,
                                json_get_bool(l->config, "add_prefix_space", false));
        return rc == ERR_OK ? rc : out_of_memory(l);
    }
    rc = pretoken_init(&l->t->pretoken, json_get(l->root, "pre_tokenizer"), reason, sizeof reason);
    if (rc != ERR_OK)
        return fail(l, rc, "%s", reason[0] != '\0' ? reason : err_sentence(rc));
    if (!l->t->pretoken.byte_level)
        return fail(l, ERR_UNSUPPORTED, "only byte-level models are supported");
    if (!json_is_text(json_get(json_get(l->root, "decoder"), "type"), "ByteLevel"))
        return fail(l, ERR_UNSUPPORTED, "only the ByteLevel decoder is supported");
    return ERR_OK;
}

static int load_all(struct load *l, const char *dir)
{
    const struct json *added = NULL;
    const struct json *decoder;
    int rc = read_files(l, dir);

    if (rc != ERR_OK)
        return rc;
    if (l->root != NULL) {
        if ((rc = check_model(l, json_get(l->root, "model"))) != ERR_OK)
            return rc;
        l->vocab = json_get_kind(json_get(l->root, "model"), "vocab", JSON_OBJECT);
        added = json_get_kind(l->root, "added_tokens", JSON_LIST);
    }
    decoder = json_get_kind(l->config, "added_tokens_decoder", JSON_OBJECT);
    if (l->vocab == NULL)
        return fail(l, ERR_INVALID, "the model has no vocabulary");
    if ((rc = load_normalizer(l, json_get(l->root, "normalizer"))) != ERR_OK)
        return rc;
    if ((rc = load_pretoken(l)) != ERR_OK)
        return rc;
    if ((rc = load_vocab(l, added, decoder)) != ERR_OK)
        return rc;
    if ((rc = load_model(l)) != ERR_OK)
        return rc;
    if ((rc = load_added(l, added)) != ERR_OK)
        return rc;
    if ((rc = load_added(l, decoder)) != ERR_OK)
        return rc;
    if (l->root == NULL && (rc = load_named(l)) != ERR_OK)
        return rc;
    if ((rc = load_post_processor(l, json_get(l->root, "post_processor"))) != ERR_OK)
        return rc;
    return load_config(l);
}

/* A content equal to a special one is left out under whatever id it has; ids and contents are one
 * to one here, so nothing is left to do but to sort what is searched. */
static void seal(struct tokenizer *t)
{
    added_sort(&t->raw);
    added_sort(&t->normalized);
}

int tokenizer_open(struct tokenizer **out, const char *dir, char *why, size_t why_cap)
{
    char reason[400] = "";
    struct load l = {.why = reason, .why_cap = sizeof reason};
    int rc = ERR_NO_MEMORY;

    l.t = mem_zalloc(sizeof *l.t);
    if (l.t != NULL) {
        l.t->bos = l.t->eos = l.t->pad = -1;
        rc = load_all(&l, dir);
    }
    arena_reset(&l.arena);
    buf_fini(&l.merges);
    if (rc == ERR_OK) {
        seal(l.t);
        *out = l.t;
        return ERR_OK;
    }
    tokenizer_close(l.t);
    if (why != NULL && why_cap > 0)
        (void)snprintf(why, why_cap, "tokenizer of %s: %s", dir, reason);
    return rc;
}
