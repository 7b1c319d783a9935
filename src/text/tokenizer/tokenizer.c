/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding goes through these stages:
 *
 *     raw text -> added tokens -> gaps between them, each normalized -> added tokens of the
 *     normalized text -> pieces (pretoken.h) -> ids (bpe.h)
 *
 * Decoding joins the bytes of the tokens and replaces invalid UTF-8. */
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/image_file.h"
#include "text/tokenizer/tokenizer_parts.h"

/* --- lists of ids ------------------------------------------------------------------------------*/

void token_list_fini(struct token_list *list)
{
    mem_free(list->ids);
    *list = (struct token_list){0};
}

int token_list_reserve(struct token_list *list, size_t n)
{
    size_t cap = list->cap == 0 ? 64 : list->cap;
    int32_t *grown;

    if (n <= list->cap - list->len)
        return ERR_OK;
    if (n > SIZE_MAX / 16 - list->len)
        return ERR_NO_MEMORY;
    /* The bound above keeps the sum and the doubling from overflowing. */
    while (cap < list->len + n)
        cap *= 2;
    grown = mem_realloc(list->ids, cap * sizeof *grown);
    if (grown == NULL)
        return ERR_NO_MEMORY;
    list->ids = grown;
    list->cap = cap;
    return ERR_OK;
}

int token_list_add(struct token_list *list, int32_t id)
{
    /* This runs once per token, so the usual case is one comparison. */
    if (list->len == list->cap) {
        int rc = token_list_reserve(list, 1);

        if (rc != ERR_OK)
            return rc;
    }
    list->ids[list->len++] = id;
    return ERR_OK;
}

int token_list_add_all(struct token_list *list, const int32_t *ids, size_t n)
{
    int rc = token_list_reserve(list, n);

    must(ids != NULL || n == 0);
    /* memcpy() must not get a NULL list, even for no ids. */
    if (rc != ERR_OK || n == 0)
        return rc;
    memcpy(list->ids + list->len, ids, n * sizeof *ids);
    list->len += n;
    return ERR_OK;
}

/* --- encoding ----------------------------------------------------------------------------------*/

/* Follows corresponding positions of a gap's raw text and its normalized text. It answers whether a
 * control token found in the normalized text comes from bytes that the template wrote. */
struct encoding_map {
    const char *raw; /* NULL: normalization changed nothing */
    const char *normal;
    size_t raw_len;
    size_t normal_len;
    size_t raw_at;
    size_t normal_at;
    bool lost; /* the correspondence is unknown from here on */
};

/* The state of one call of tokenizer_encode_own(). */
struct encoding {
    const struct tokenizer *t;
    struct token_list *out;
    struct pretoken_work *cuts;
    struct bpe_work bpe;
    struct normal_work normal;
    const struct spans *own; /* control tokens are found only inside these; NULL: everywhere */
    size_t gap;              /* offset in the raw text of the gap that is being encoded */
    struct encoding_map map;
};

/* --- control tokens ----------------------------------------------------------------------------*/

/* Each row: beginning and end of a name. With an empty end the name is the whole text. */

/* Is a token one that controls the model? Some models do not mark all of these as special, so names
 * in the usual brackets count as well: <|name|>, the same with full-width bars, <unused7>. */
bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id)
{
    static const char *const affixes[][2] = {{"<|", "|>"},
                                             {"<\xef\xbd\x9c", "\xef\xbd\x9c>"},
                                             {"<unused", ">"},
                                             {"<pad>", ""},
                                             {"<mask>", ""}};
    size_t len;
    const char *text = tokenizer_written(tokenizer, id, &len);

    /* An id without a text is no token and controls nothing. */
    if (text == NULL || tokenizer_is_special(tokenizer, id))
        return text != NULL;
    for (size_t i = 0; i < sizeof affixes / sizeof affixes[0]; i++) {
        size_t head = strlen(affixes[i][0]);
        size_t tail = strlen(affixes[i][1]);

        /* A text must have both brackets without an overlap, so "<|>" does not count. The
         * entries without a closing bracket are whole names. */
        if (len >= head + tail && memcmp(text, affixes[i][0], head) == 0 &&
            memcmp(text + len - tail, affixes[i][1], tail) == 0 && (tail > 0 || len == head))
            return true;
    }
    return false;
}

/* The added_judge of the raw text. */
static bool tokenizer_allows_raw(void *context, int32_t id, size_t start, size_t stop)
{
    const struct encoding *encoding = context;

    return !tokenizer_is_control(encoding->t, id) || spans_hold(encoding->own, start, stop);
}

/* Advance in both texts until position `at` of the normalized one. Only two changes are understood:
 * a U+2581 put before the text, and U+2581 in place of a space. False: the normalizer did more. */
static bool tokenizer_map_follow(struct encoding_map *map, size_t at)
{
    /* Both positions advance by one character per pass. If no normalizer changed the text, both
     * stay equal. */
    while (map->normal_at < at && map->raw_at < map->raw_len) {
        const char *raw = map->raw + map->raw_at;
        const char *normal = map->normal + map->normal_at;
        size_t n = utf8_sequence(normal, map->normal_len - map->normal_at);

        /* U+2581 at the start of the normalized text was put there, unless the raw text begins
         * with a space, which it then replaces. Any other character must be equal in both texts. */
        if (n == 3 && memcmp(normal, "\xe2\x96\x81", 3) == 0 &&
            (raw[0] == ' ' || map->normal_at == 0)) {
            map->raw_at += raw[0] == ' ';
        } else if (n <= map->raw_len - map->raw_at && memcmp(raw, normal, n) == 0) {
            map->raw_at += n;
        } else {
            return false;
        }
        map->normal_at += n;
    }
    /* A position inside of a character cannot be reached exactly, and the map then fails. */
    return map->normal_at == at;
}

/* The added_judge of a gap's normalized text. A token whose raw bytes are not known is not accepted
 * as a control token, unless the whole gap is inside the spans. */
static bool tokenizer_allows_normal(void *context, int32_t id, size_t start, size_t stop)
{
    struct encoding *encoding = context;
    struct encoding_map map = encoding->map;
    size_t from = start;

    if (!tokenizer_is_control(encoding->t, id))
        return true;
    if (map.raw == NULL)
        return spans_hold(encoding->own, encoding->gap + start, encoding->gap + stop);
    if (spans_hold(encoding->own, encoding->gap, encoding->gap + map.raw_len))
        return true;
    if (map.lost || start < map.normal_at)
        return false;
    if (tokenizer_map_follow(&map, start)) {
        encoding->map = map; /* later matches are further on */
        from = map.raw_at;
        if (tokenizer_map_follow(&map, stop))
            return spans_hold(encoding->own, encoding->gap + from, encoding->gap + map.raw_at);
    }
    encoding->map.lost = true;
    return false;
}

/* --- the stages --------------------------------------------------------------------------------*/

static int tokenizer_encode_piece(void *context, const char *piece, size_t len)
{
    struct encoding *encoding = context;

    return bpe_encode(&encoding->t->bpe, &encoding->bpe, piece, len, encoding->out);
}

/* Encode a text without added tokens. `first`: it is the start of the text to be encoded. */
static int tokenizer_encode_plain(struct encoding *encoding, const char *text, size_t len,
                                  bool first)
{
    const struct pretoken_receiver to = {.sink = tokenizer_encode_piece, .context = encoding};

    return pretoken_cut(&encoding->t->pretoken, encoding->cuts, text, len, first, &to);
}

/* Encode a normalized gap: its added tokens, and the plain text between them. */
static int tokenizer_encode_normal(struct encoding *encoding, const char *text, size_t len,
                                   bool first)
{
    const struct added_judge judge = {.allows = tokenizer_allows_normal, .context = encoding};
    struct added_search search = {.set = &encoding->t->normalized,
                                  .text = text,
                                  .len = len,
                                  .judge = encoding->own == NULL ? NULL : &judge};
    struct added_match match;
    int rc = ERR_OK;

    /* search.after is the end of the last match that was used. The text between it and the next
     * match is plain and is encoded by BPE. */
    while (added_next(&search, &match)) {
        if (match.start > search.after)
            rc = tokenizer_encode_plain(encoding, text + search.after, match.start - search.after,
                                        first && search.after == 0);
        if (rc == ERR_OK)
            rc = token_list_add(encoding->out, match.id);
        if (rc != ERR_OK)
            return rc;
        search.after = match.stop;
    }
    /* The rest after the last added token. */
    if (search.after < len)
        rc = tokenizer_encode_plain(encoding, text + search.after, len - search.after,
                                    first && search.after == 0);
    return rc;
}

/* Encode a gap between added tokens of the raw text. Each gap is normalized on its own, as Hugging
 * Face does. */
static int tokenizer_encode_gap(struct encoding *encoding, const char *text, size_t len, bool first)
{
    const char *normal;
    size_t normal_len;
    int rc = normal_apply(&encoding->t->normal, &encoding->normal, text, len, &normal, &normal_len);

    encoding->map = (struct encoding_map){0};
    /* A map is needed only if the normalizer changed the text. Positions in both are equal
     * otherwise. */
    if (rc == ERR_OK && (normal_len != len || memcmp(normal, text, len) != 0))
        encoding->map = (struct encoding_map){
            .raw = text, .raw_len = len, .normal = normal, .normal_len = normal_len};
    if (rc == ERR_OK)
        return tokenizer_encode_normal(encoding, normal, normal_len, first);
    return rc;
}

/* Encode valid UTF-8: added tokens of the raw text and the gaps between them. */
static int tokenizer_encode_valid(struct encoding *encoding, const char *text, size_t len)
{
    const struct added_judge judge = {.allows = tokenizer_allows_raw, .context = encoding};
    struct added_search search = {.set = &encoding->t->raw,
                                  .text = text,
                                  .len = len,
                                  .judge = encoding->own == NULL ? NULL : &judge};
    struct added_match match;
    int rc = ERR_OK;

    while (added_next(&search, &match)) {
        /* `gap` is the offset of the gap in the text, for the check of spans. */
        encoding->gap = search.after;
        if (match.start > search.after)
            rc = tokenizer_encode_gap(encoding, text + search.after, match.start - search.after,
                                      search.after == 0);
        if (rc == ERR_OK)
            rc = token_list_add(encoding->out, match.id);
        if (rc != ERR_OK)
            return rc;
        search.after = match.stop;
    }
    encoding->gap = search.after;
    if (search.after < len)
        rc = tokenizer_encode_gap(encoding, text + search.after, len - search.after,
                                  search.after == 0);
    return rc;
}

static int tokenizer_add_section(struct encoding *encoding, enum image_section section)
{
    return token_list_add_all(encoding->out, image_table(encoding->t->image, section),
                              image_count(encoding->t->image, section));
}

/* Replace invalid UTF-8, encode, and add the ids around the text. */
static int tokenizer_encode_text(struct encoding *encoding, const char *text, size_t len,
                                 bool add_special)
{
    const struct spans none = {0};
    struct buf valid = {0};
    int rc = ERR_OK;

    if (!utf8_is_valid(text, len)) {
        decode_lossy(text, len, &valid);
        if (valid.failed)
            rc = ERR_NO_MEMORY;
        text = valid.bytes;
        len = valid.len;
        if (encoding->own != NULL)
            encoding->own = &none; /* the spans count the bytes of the original text */
    }
    /* The expected length decides whether memos of pieces are worth their memory. */
    bpe_work_expect(&encoding->bpe, len, encoding->out);
    if (rc == ERR_OK && add_special)
        rc = tokenizer_add_section(encoding, IMAGE_BEFORE);
    /* The ids around the text are those of the post-processor, such as bos before it. */
    if (rc == ERR_OK)
        rc = tokenizer_encode_valid(encoding, text, len);
    if (rc == ERR_OK && add_special)
        rc = tokenizer_add_section(encoding, IMAGE_AFTER);
    buf_fini(&valid);
    return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len,
                     bool add_special, struct token_list *out)
{
    return tokenizer_encode_own(tokenizer, text, len, add_special, NULL, out);
}

int tokenizer_encode_own(const struct tokenizer *tokenizer, const char *text, size_t len,
                         bool add_special, const struct spans *own, struct token_list *out)
{
    struct encoding encoding = {
        .t = tokenizer, .out = out, .own = own, .cuts = pretoken_work_open(&tokenizer->pretoken)};
    size_t n_before = out->len;
    int rc = ERR_NO_MEMORY;

    must(text != NULL || len == 0);
    must(out != NULL);
    if (encoding.cuts != NULL)
        rc = tokenizer_encode_text(&encoding, text, len, add_special);
    /* After an error the list has the ids that it had before, not a part of the text. */
    if (rc != ERR_OK)
        out->len = n_before;
    pretoken_work_close(encoding.cuts);
    bpe_work_fini(&encoding.bpe);
    normal_work_fini(&encoding.normal);
    return rc;
}

/* --- tokens ------------------------------------------------------------------------------------*/

size_t tokenizer_most_bytes(const struct tokenizer *tokenizer)
{
    return tokenizer->most_bytes;
}

int tokenizer_n_vocab(const struct tokenizer *tokenizer)
{
    return (int)image_count(tokenizer->image, IMAGE_TOKENS);
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len)
{
    size_t i = (size_t)hash_xxh3(text, len) & tokenizer->by_text_mask;

    must(text != NULL || len == 0);
    /* Linear probing. The table has free slots, one of which ends the search. Ids are stored plus
     * one, because 0 marks a free slot. */
    for (; tokenizer->by_text[i] != 0; i = (i + 1) & tokenizer->by_text_mask) {
        const struct image_text *found = &tokenizer->tokens[tokenizer->by_text[i] - 1].text;

        if (found->len == len && memcmp(tokenizer->text + found->at, text, len) == 0)
            return (int32_t)(tokenizer->by_text[i] - 1);
    }
    return -1;
}

/* The flags of an id; 0 for unused and impossible ids. */
static uint32_t tokenizer_flags_of(const struct tokenizer *tokenizer, int32_t id)
{
    if (id < 0 || id >= tokenizer_n_vocab(tokenizer))
        return 0;
    return tokenizer->tokens[id].flags;
}

const char *tokenizer_written(const struct tokenizer *tokenizer, int32_t id, size_t *len)
{
    bool used = (tokenizer_flags_of(tokenizer, id) & TOKEN_USED) != 0;

    must(len != NULL);
    if (used)
        *len = tokenizer->tokens[id].text.len;
    else
        *len = 0;
    if (used)
        return tokenizer->text + tokenizer->tokens[id].text.at;
    return NULL;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id)
{
    return (tokenizer_flags_of(tokenizer, id) & TOKEN_SPECIAL) != 0;
}

bool tokenizer_is_skipped(const struct tokenizer *tokenizer, int32_t id)
{
    return (tokenizer_flags_of(tokenizer, id) & TOKEN_SKIPPED) != 0;
}

bool tokenizer_is_byte(const struct tokenizer *tokenizer, int32_t id)
{
    return (tokenizer_flags_of(tokenizer, id) & TOKEN_BYTE) != 0;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *len)
{
    must(len != NULL);
    *len = 0;
    if ((tokenizer_flags_of(tokenizer, id) & TOKEN_USED) == 0)
        return NULL;
    *len = tokenizer->tokens[id].bytes.len;
    return tokenizer->text + tokenizer->tokens[id].bytes.at;
}

const int32_t *tokenizer_special_ids(const struct tokenizer *tokenizer, size_t *n)
{
    must(n != NULL);
    *n = image_count(tokenizer->image, IMAGE_SPECIAL);
    return image_table(tokenizer->image, IMAGE_SPECIAL);
}

const int32_t *tokenizer_eos_ids(const struct tokenizer *tokenizer, size_t *n)
{
    must(n != NULL);
    *n = image_count(tokenizer->image, IMAGE_ENDS);
    return image_table(tokenizer->image, IMAGE_ENDS);
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->image->facts.bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->image->facts.eos;
}

int32_t tokenizer_pad(const struct tokenizer *tokenizer)
{
    return tokenizer->image->facts.pad;
}

/* --- decoding ----------------------------------------------------------------------------------*/

struct tokenizer_start tokenizer_start(const struct tokenizer *tokenizer)
{
    return (struct tokenizer_start){.drops =
                                        (tokenizer->image->facts.flags & IMAGE_DECODE_DROP) != 0,
                                    .strip_n = tokenizer->image->facts.strip_n};
}

void tokenizer_first_bytes(const struct tokenizer *tokenizer, int32_t id, struct buf *out)
{
    struct image_text text;

    must(id >= 0 && id < tokenizer_n_vocab(tokenizer));
    text = tokenizer->tokens[id].text;
    decode_first(&tokenizer->image->facts, tokenizer->text + text.at, text.len, out);
}

size_t tokenizer_strip(const struct tokenizer *tokenizer, uint32_t n, const char *text, size_t len,
                       uint32_t *taken)
{
    must(text != NULL || len == 0);
    must(taken != NULL);
    return decode_strip(&tokenizer->image->facts, n, text, len, taken);
}

/* Append the bytes of all tokens of a byte-level model. This is the common case, so it avoids a
 * function call per token. */
static void tokenizer_decode_bytes(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                                   bool skip_special, struct buf *out)
{
    uint32_t unwanted = skip_special ? TOKEN_SKIPPED : 0;
    size_t i;

    for (i = 0; i < n; i++) {
        uint32_t flags = tokenizer_flags_of(tokenizer, ids[i]);
        struct image_text bytes;

        /* An id that is not in use prints nothing; skip_special drops the tokens that control
         * the model. */
        if ((flags & TOKEN_USED) == 0 || (flags & unwanted) != 0)
            continue;
        bytes = tokenizer->tokens[ids[i]].bytes;
        /* The comparison in place avoids a call for the many tokens that fit. */
        if (out->cap - out->len <= bytes.len && !buf_reserve(out, bytes.len))
            return;
        memcpy(out->bytes + out->len, tokenizer->text + bytes.at, bytes.len);
        out->len += bytes.len;
    }
}

/* Append the bytes of all tokens of other models. A run of byte tokens is collected and decoded
 * when it ends, because one invalid byte turns the whole run into U+FFFD. */
static void tokenizer_decode_runs(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                                  bool skip_special, struct buf *out)
{
    bool first = tokenizer_start(tokenizer).drops;
    struct buf run = {0};
    size_t i;

    for (i = 0; i < n; i++) {
        uint32_t flags = tokenizer_flags_of(tokenizer, ids[i]);
        size_t len;
        const char *bytes = tokenizer_bytes(tokenizer, ids[i], &len);

        if (bytes == NULL || (skip_special && (flags & TOKEN_SKIPPED) != 0))
            continue;
        if ((flags & TOKEN_BYTE) != 0) {
            buf_add(&run, bytes, len);
            first = false;
            continue;
        }
        /* The run ends before this token. */
        if (run.len > 0) {
            decode_run(run.bytes, run.len, out);
            buf_clear(&run);
        }
        if (first)
            tokenizer_first_bytes(tokenizer, ids[i], out);
        else
            buf_add(out, bytes, len);
        first = false;
    }
    decode_run(run.bytes, run.len, out);
    out->failed = out->failed || run.failed;
    buf_fini(&run);
}

void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                      bool skip_special, struct buf *out)
{
    uint32_t strip_n = tokenizer->image->facts.strip_n;
    struct buf raw = {0};
    size_t from = 0;
    uint32_t taken;

    must(ids != NULL || n == 0);
    must(out != NULL);
    if ((tokenizer->image->facts.flags & IMAGE_DECODE_BYTES) != 0) {
        tokenizer_decode_bytes(tokenizer, ids, n, skip_special, &raw);
    } else {
        tokenizer_decode_runs(tokenizer, ids, n, skip_special, &raw);
        if (strip_n > 0)
            /* Only the start of the whole output is stripped, hence after the runs were joined. */
            from = decode_strip(&tokenizer->image->facts, strip_n, raw.bytes, raw.len, &taken);
    }
    if (raw.failed)
        out->failed = true;
    decode_lossy(raw.len == 0 ? "" : raw.bytes + from, raw.len - from, out);
    buf_fini(&raw);
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    pretoken_fini(&tokenizer->pretoken);
    normal_fini(&tokenizer->normal);
    /* An image is either a file that is mapped or memory in which it was built. */
    if (tokenizer->mapped)
        image_unmap(tokenizer->image);
    else
        mem_free(tokenizer->image);
    mem_free(tokenizer);
}
