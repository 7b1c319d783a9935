/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: the vocabulary and the merges of a model.
 *
 * The files are not trusted: every id is checked against its range and against the others, every
 * merge against the vocabulary, and every kind against those that quire knows. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/tokenizer_parts.h"

/* The id in an added token's description, for each of the three forms in which files write it. */
static int64_t load_added_id(const struct json *token)
{
    int64_t id = 0;
    size_t i;

    if (token->kind == JSON_INT) /* added_tokens.json: {"<pad>": 1} */
        return token->whole;
    if (token->key == NULL)
        return json_get_int(token, "id", -1);
    /* added_tokens_decoder: {"50256": {...}} */
    for (i = 0; i < token->key_len && i < 10; i++) {
        if (token->key[i] >= '0' && token->key[i] <= '9')
            id = id * 10 + (token->key[i] - '0');
        else
            id = VOCAB_IDS_MAX;
    }
    if (token->key_len == 0 || token->key_len > 9)
        return -1;
    return id;
}

/* Raise *n_ids above every id in a list, and check that each is in range. */
static int load_count_ids(struct load *load, const struct json *list, const char *name,
                          int64_t *n_ids)
{
    uint32_t i;

    for (i = 0; list != NULL && i < list->n; i++) {
        const struct json *node = &list->items[i];
        /* In a vocabulary, {"the": 262}, the value is the id; in lists of added tokens it is a
         * member or the key. */
        int64_t id = list == load->vocab_json ? (node->kind == JSON_INT ? node->whole : -1)
                                              : load_added_id(node);

        if (id < 0 || id >= VOCAB_IDS_MAX)
            return load_fail(load, ERR_INVALID, "%s: item %u has no id in 0 .. %d", name, i,
                             VOCAB_IDS_MAX - 1);
        /* Ids may have gaps, so the table's size follows from the highest one and not from the
         * number of tokens. */
        if (id >= *n_ids)
            *n_ids = id + 1;
    }
    return ERR_OK;
}

/* Refuse settings of the model that change the ids and that quire does not implement. */
int load_model_kind(struct load *load)
{
    const struct json *model = json_get(load->files[FILE_TOKENIZER], "model");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const struct json *dropout = json_get(model, "dropout");
    const char *type = json_get_text(model, "type", "BPE");
    size_t i;

    /* A model of ranks has no tokenizer.json, so none of the settings below. */
    if (load->ranks.bytes != NULL)
        return load_ranks_kind(load);
    if (strcmp(type, "BPE") != 0)
        return load_fail(load, ERR_UNSUPPORTED, "model \"%.40s\" is not supported", type);
    /* Dropout makes encoding random, which is for training only. */
    if (json_is_number(dropout) && json_real(dropout) != 0)
        return load_fail(load, ERR_UNSUPPORTED, "dropout is not supported");
    /* Both settings mark parts of words in the vocabulary, as older models did: "##ing",
     * "ing</w>". */
    for (i = 0; i < 2; i++)
        if (json_get_text(model, affixes[i], "")[0] != '\0')
            return load_fail(load, ERR_UNSUPPORTED, "%s is not supported", affixes[i]);
    if (load->files[FILE_TOKENIZER] == NULL)
        load->vocab_json = load->files[FILE_VOCAB];
    else
        load->vocab_json = json_get_kind(model, "vocab", JSON_OBJECT);
    if (load->vocab_json == NULL)
        return load_fail(load, ERR_INVALID, "the model has no vocabulary");
    return ERR_OK;
}

/* Find the tokens of single symbols: bytes in a byte-level model, else ASCII characters and
 * <0x..>. */
static void load_find_symbols(struct load *load)
{
    bool byte_level = (load->facts.flags & IMAGE_BYTE_LEVEL) != 0;
    char text[8];
    int i;

    /* In GPT-2's alphabet each byte is one printable character; other models have tokens such as
     * <0x0A>. */
    for (i = 0; i < 256; i++) {
        size_t n = byte_level ? utf8_encode(vocab_byte_char((uint8_t)i), text)
                              : (size_t)snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);

        load->facts.byte_ids[i] = vocab_find(&load->vocab, text, n);
    }
    for (i = 0; i < 128; i++) {
        text[0] = (char)i;
        load->facts.ascii_ids[i] = vocab_find(&load->vocab, text, 1);
    }
}

/* Add the tokens of the JSON object {"text": id}. */
static int load_enter_vocab(struct load *load, int64_t n_ids)
{
    if (vocab_init(&load->vocab, n_ids) != ERR_OK)
        return load_no_memory(load);
    for (uint32_t i = 0; i < load->vocab_json->n; i++) {
        const struct json *node = &load->vocab_json->items[i];

        if (vocab_add(&load->vocab, node->whole, node->key, node->key_len, true) != ERR_OK)
            return load_fail(load, ERR_INVALID, "the vocabulary gives id %lld twice",
                             (long long)node->whole);
    }
    return ERR_OK;
}

/* Size the vocabulary by the largest id in any file, then fill it. */
int load_vocab(struct load *load)
{
    const struct json *root = load->files[FILE_TOKENIZER];
    const struct json *model = json_get_kind(root, "model", JSON_OBJECT);
    const struct json *unk = json_get_kind(model, "unk_token", JSON_TEXT);
    int64_t n_ids = 0;
    int rc = load_count_ids(load, load->vocab_json, "the vocabulary", &n_ids);

    if (rc == ERR_OK)
        rc = load_count_ids(load, json_get_kind(root, "added_tokens", JSON_LIST),
                            "the added tokens", &n_ids);
    if (rc == ERR_OK)
        rc = load_count_ids(
            load, json_get_kind(load->files[FILE_CONFIG], "added_tokens_decoder", JSON_OBJECT),
            "the added tokens", &n_ids);
    if (rc == ERR_OK && root == NULL)
        rc = load_count_ids(load, load->files[FILE_ADDED], "added_tokens.json", &n_ids);
    if (rc == ERR_OK) {
        /* Without a vocabulary there is a tiktoken.model, as load_model_kind() has checked. */
        if (load->vocab_json == NULL)
            rc = load_ranks(load, n_ids);
        else
            rc = load_enter_vocab(load, n_ids);
    }
    if (rc != ERR_OK)
        return rc;
    load_find_symbols(load);
    if (unk == NULL)
        load->facts.unk = -1;
    else
        load->facts.unk = vocab_find(&load->vocab, unk->text, unk->text_len);
    if (json_get_bool(model, "ignore_merges", false))
        load->facts.flags |= IMAGE_IGNORE_MERGES;
    if (json_get_bool(model, "fuse_unk", false))
        load->facts.flags |= IMAGE_FUSE_UNK;
    if (json_get_bool(model, "byte_fallback", false))
        load->facts.flags |= IMAGE_BYTE_FALLBACK;
    return ERR_OK;
}

/* --- merges ------------------------------------------------------------------------------------*/

/* One of the two tokens of a merge, as the file writes it. */
struct merge_side {
    const char *text;
    size_t len;
};

/* Add a merge: two tokens whose joined text is a token, too. Its rank is its place in the list.
 * `joined` is scratch memory. */
static int load_add_merge(struct load *load, struct buf *joined, struct merge_side left,
                          struct merge_side right, uint32_t rank)
{
    int32_t a = vocab_find(&load->vocab, left.text, left.len);
    int32_t b = vocab_find(&load->vocab, right.text, right.len);
    int32_t id;
    size_t slot;

    buf_clear(joined);
    buf_add(joined, left.text, left.len);
    buf_add(joined, right.text, right.len);
    if (joined->failed)
        return load_no_memory(load);
    id = vocab_find(&load->vocab, joined->bytes, joined->len);
    if (a < 0 || b < 0 || id < 0)
        return load_fail(load, ERR_INVALID,
                         "merge %u joins or makes a token that is not in the vocabulary", rank);
    /* If a pair is listed twice, the later rank is used, as in Hugging Face's. */
    slot = bpe_slot(load->merges, load->merges_mask, bpe_pair(a, b));
    load->merges[slot] = (struct image_merge){.pair = bpe_pair(a, b), .rank = rank, .id = id};
    return ERR_OK;
}

/* A merge as a line "left right". There must be exactly one space, because tokens contain none. */
static int load_add_merge_line(struct load *load, struct buf *joined, const char *line, size_t len,
                               uint32_t rank)
{
    const char *space = memchr(line, ' ', len);
    size_t left = space == NULL ? 0 : (size_t)(space - line);

    if (space == NULL || memchr(space + 1, ' ', len - left - 1) != NULL)
        return load_fail(load, ERR_INVALID, "merge %u is not two tokens separated by a space",
                         rank);
    return load_add_merge(load, joined, (struct merge_side){line, left},
                          (struct merge_side){space + 1, len - left - 1}, rank);
}

/* Read the merges of tokenizer.json: "a b", or ["a", "b"] in newer files. */
static int load_add_merges_json(struct load *load, struct buf *joined, const struct json *list)
{
    uint32_t i;
    int rc = ERR_OK;

    /* Newer files use pairs, because a token may contain a space. The position in the list is
     * the rank: merges that come first are applied first. */
    for (i = 0; i < list->n && rc == ERR_OK; i++) {
        const struct json *made = &list->items[i];

        if (made->kind == JSON_TEXT)
            rc = load_add_merge_line(load, joined, made->text, made->text_len, i);
        else if (made->kind == JSON_LIST && made->n == 2 && made->items[0].kind == JSON_TEXT &&
                 made->items[1].kind == JSON_TEXT)
            rc = load_add_merge(
                load, joined, (struct merge_side){made->items[0].text, made->items[0].text_len},
                (struct merge_side){made->items[1].text, made->items[1].text_len}, i);
        else
            rc = load_fail(load, ERR_INVALID, "merge %u is neither a string nor a pair of strings",
                           i);
    }
    return rc;
}

/* Read merges.txt: a line "a b" per merge, after a line "#version: 0.2". */
static int load_add_merges_txt(struct load *load, struct buf *joined)
{
    const char *p = load->merges_txt.bytes;
    const char *end = p + load->merges_txt.len;
    uint32_t rank = 0;
    int rc = ERR_OK;

    while (p < end && rc == ERR_OK) {
        /* Lines may end with \r\n, if the file was edited on another system. */
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol == NULL ? end : eol) - p);
        size_t used = len > 0 && p[len - 1] == '\r' ? len - 1 : len;

        /* Only lines with a merge have a rank. A merge of '#' is a normal line, hence the test
         * for the whole word. */
        if (used > 0 && !(used >= 8 && memcmp(p, "#version", 8) == 0))
            rc = load_add_merge_line(load, joined, p, used, rank++);
        p += len + (eol == NULL ? 0 : 1);
    }
    return rc;
}

static size_t load_count_lines(const struct buf *buf)
{
    size_t n = 1;
    size_t i;

    for (i = 0; i < buf->len; i++)
        n += buf->bytes[i] == '\n';
    return n;
}

int load_merges(struct load *load)
{
    const struct json *root = load->files[FILE_TOKENIZER];
    const struct json *list = json_get_kind(json_get(root, "model"), "merges", JSON_LIST);
    const struct json *scores = json_get_kind(json_get(root, "model"), "scores", JSON_LIST);
    size_t n = root == NULL ? load_count_lines(&load->merges_txt) : list == NULL ? 0 : list->n;
    size_t slots = pieces_slots(n);
    struct buf joined = {0};
    size_t i;
    int rc;

    must(load->vocab.tokens != NULL);
    if (load->n_ranks > 0)
        return load_ranks_merges(load);
    if (list == NULL && scores != NULL)
        return load_scored_merges(load, scores);
    if (root != NULL && list == NULL)
        return load_fail(load, ERR_INVALID, "the model has no list of merges");
    load->merges = mem_zalloc_array(slots, sizeof *load->merges);
    if (load->merges == NULL)
        return load_no_memory(load);
    load->merges_mask = slots - 1;
    /* 0 is a valid pair, so free slots have a value of their own. */
    for (i = 0; i < slots; i++)
        load->merges[i].pair = IMAGE_MERGE_FREE;
    if (root != NULL)
        rc = load_add_merges_json(load, &joined, list);
    else
        rc = load_add_merges_txt(load, &joined);
    buf_fini(&joined);
    return rc;
}
