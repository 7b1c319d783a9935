/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding: added tokens in the raw text -> each gap normalized on its own -> added tokens in the
 * normalized text -> pieces -> BPE. Decoding: the bytes of the tokens, joined, made valid. */
#include <string.h>

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

    if (rc != ERR_OK || n == 0)
        return rc;
    memcpy(list->ids + list->len, ids, n * sizeof *ids);
    list->len += n;
    return ERR_OK;
}

/* --- encoding ----------------------------------------------------------------------------------*/

/* Where the normalized text of a gap stands in the raw one, followed from place to place. */
struct encoding_map {
    const char *raw; /* NULL: the gap is as it was */
    const char *normal;
    size_t raw_len;
    size_t normal_len;
    size_t raw_at;
    size_t normal_at;
    bool lost; /* it cannot be followed from here on */
};

struct encoding {
    const struct tokenizer *t;
    struct token_list *out;
    struct pretoken_work *cuts;
    struct bpe_work bpe;
    struct normal_work normal;
    const struct spans *own; /* control tokens are found in these alone; NULL: everywhere */
    size_t gap;              /* where the text that is normalized begins in the raw one */
    struct encoding_map map;
};

/* --- control tokens ----------------------------------------------------------------------------*/

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    static const char *const affixes[][2] = {{"<|", "|>"},
                                             {"<\xef\xbd\x9c", "\xef\xbd\x9c>"},
                                             {"<unused", ">"},
                                             {"<pad>", ""},
                                             {"<mask>", ""}};
    size_t len;
    const char *text = tokenizer_written(t, id, &len);

    if (text == NULL || tokenizer_is_special(t, id))
        return text != NULL;
    for (size_t i = 0; i < sizeof affixes / sizeof affixes[0]; i++) {
        size_t head = strlen(affixes[i][0]);
        size_t tail = strlen(affixes[i][1]);

        if (len >= head + tail && memcmp(text, affixes[i][0], head) == 0 &&
            memcmp(text + len - tail, affixes[i][1], tail) == 0 && (tail > 0 || len == head))
            return true;
    }
    return false;
}

static bool allows_raw(void *context, int32_t id, size_t start, size_t stop)
{
    const struct encoding *e = context;

    return !tokenizer_is_control(e->t, id) || spans_hold(e->own, start, stop);
}

/* Go on in both texts up to `at` of the normalized one, as long as the normalizer has only put
 * something in front or put other signs for spaces. False: it has done more. */
static bool map_follow(struct encoding_map *m, size_t at)
{
    while (m->normal_at < at && m->raw_at < m->raw_len) {
        const char *raw = m->raw + m->raw_at;
        const char *normal = m->normal + m->normal_at;
        size_t n = utf8_sequence(normal, m->normal_len - m->normal_at);

        if (n == 3 && memcmp(normal, "\xe2\x96\x81", 3) == 0 &&
            (raw[0] == ' ' || m->normal_at == 0)) {
            m->raw_at += raw[0] == ' ';
        } else if (n <= m->raw_len - m->raw_at && memcmp(raw, normal, n) == 0) {
            m->raw_at += n;
        } else {
            return false;
        }
        m->normal_at += n;
    }
    return m->normal_at == at;
}

/* The same in a gap's normalized text. What cannot be followed back is no control token, unless the
 * whole gap is own. */
static bool allows_normal(void *context, int32_t id, size_t start, size_t stop)
{
    struct encoding *e = context;
    struct encoding_map m = e->map;
    size_t from = start;

    if (!tokenizer_is_control(e->t, id))
        return true;
    if (m.raw == NULL)
        return spans_hold(e->own, e->gap + start, e->gap + stop);
    if (spans_hold(e->own, e->gap, e->gap + m.raw_len))
        return true;
    if (m.lost || start < m.normal_at)
        return false;
    if (map_follow(&m, start)) {
        e->map = m; /* places come in order */
        from = m.raw_at;
        if (map_follow(&m, stop))
            return spans_hold(e->own, e->gap + from, e->gap + m.raw_at);
    }
    e->map.lost = true;
    return false;
}

/* --- the steps ---------------------------------------------------------------------------------*/

static int encode_piece(void *context, const char *piece, size_t len)
{
    struct encoding *e = context;

    return bpe_encode(&e->t->bpe, &e->bpe, piece, len, e->out);
}

/* A text without added tokens. `first`: at the start of what is encoded. */
static int encode_plain(struct encoding *e, const char *text, size_t len, bool first)
{
    return pretoken_cut(&e->t->pretoken, e->cuts, text, len, first, encode_piece, e);
}

static int encode_normal(struct encoding *e, const char *text, size_t len, bool first)
{
    const struct added_judge judge = {.allows = allows_normal, .context = e};
    struct added_search s = {.set = &e->t->normalized,
                             .text = text,
                             .len = len,
                             .judge = e->own == NULL ? NULL : &judge};
    struct added_match m;
    int rc = ERR_OK;

    while (added_next(&s, &m)) {
        if (m.start > s.after)
            rc = encode_plain(e, text + s.after, m.start - s.after, first && s.after == 0);
        if (rc == ERR_OK)
            rc = token_list_add(e->out, m.id);
        if (rc != ERR_OK)
            return rc;
        s.after = m.stop;
    }
    if (s.after < len)
        rc = encode_plain(e, text + s.after, len - s.after, first && s.after == 0);
    return rc;
}

static int encode_gap(struct encoding *e, const char *text, size_t len, bool first)
{
    const char *normal;
    size_t normal_len;
    int rc = normal_apply(&e->t->normal, &e->normal, text, len, &normal, &normal_len);

    e->map = (struct encoding_map){0};
    if (rc == ERR_OK && (normal_len != len || memcmp(normal, text, len) != 0))
        e->map = (struct encoding_map){
            .raw = text, .raw_len = len, .normal = normal, .normal_len = normal_len};
    return rc == ERR_OK ? encode_normal(e, normal, normal_len, first) : rc;
}

static int encode_valid(struct encoding *e, const char *text, size_t len)
{
    const struct added_judge judge = {.allows = allows_raw, .context = e};
    struct added_search s = {
        .set = &e->t->raw, .text = text, .len = len, .judge = e->own == NULL ? NULL : &judge};
    struct added_match m;
    int rc = ERR_OK;

    while (added_next(&s, &m)) {
        e->gap = s.after;
        if (m.start > s.after)
            rc = encode_gap(e, text + s.after, m.start - s.after, s.after == 0);
        if (rc == ERR_OK)
            rc = token_list_add(e->out, m.id);
        if (rc != ERR_OK)
            return rc;
        s.after = m.stop;
    }
    e->gap = s.after;
    if (s.after < len)
        rc = encode_gap(e, text + s.after, len - s.after, s.after == 0);
    return rc;
}

static int add_section(struct encoding *e, enum image_section section)
{
    return token_list_add_all(e->out, image_table(e->t->image, section),
                              image_count(e->t->image, section));
}

static int encode_text(struct encoding *e, const char *text, size_t len, bool add_special)
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
        if (e->own != NULL)
            e->own = &none; /* they speak of another text */
    }
    bpe_work_expect(&e->bpe, len, e->out);
    if (rc == ERR_OK && add_special)
        rc = add_section(e, IMAGE_BEFORE);
    if (rc == ERR_OK)
        rc = encode_valid(e, text, len);
    if (rc == ERR_OK && add_special)
        rc = add_section(e, IMAGE_AFTER);
    buf_fini(&valid);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                     struct token_list *out)
{
    return tokenizer_encode_own(t, text, len, add_special, NULL, out);
}

int tokenizer_encode_own(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                         const struct spans *own, struct token_list *out)
{
    struct encoding e = {.t = t, .out = out, .own = own, .cuts = pretoken_work_open(&t->pretoken)};
    size_t n_before = out->len;
    int rc = ERR_NO_MEMORY;

    if (e.cuts != NULL)
        rc = encode_text(&e, text, len, add_special);
    if (rc != ERR_OK)
        out->len = n_before;
    pretoken_work_close(e.cuts);
    bpe_work_fini(&e.bpe);
    normal_work_fini(&e.normal);
    return rc;
}

/* --- tokens ------------------------------------------------------------------------------------*/

size_t tokenizer_most_bytes(const struct tokenizer *t)
{
    return t->most_bytes;
}

int tokenizer_n_vocab(const struct tokenizer *t)
{
    return (int)image_count(t->image, IMAGE_TOKENS);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    size_t i = (size_t)hash_xxh3(text, len) & t->by_text_mask;

    for (; t->by_text[i] != 0; i = (i + 1) & t->by_text_mask) {
        const struct image_text *found = &t->tokens[t->by_text[i] - 1].text;

        if (found->len == len && memcmp(t->text + found->at, text, len) == 0)
            return (int32_t)(t->by_text[i] - 1);
    }
    return -1;
}

/* The flags of an id, 0 for unused and impossible ones. */
static uint32_t flags_of(const struct tokenizer *t, int32_t id)
{
    return id < 0 || id >= tokenizer_n_vocab(t) ? 0 : t->tokens[id].flags;
}

const char *tokenizer_written(const struct tokenizer *t, int32_t id, size_t *len)
{
    bool used = (flags_of(t, id) & TOKEN_USED) != 0;

    *len = used ? t->tokens[id].text.len : 0;
    return used ? t->text + t->tokens[id].text.at : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return (flags_of(t, id) & TOKEN_SPECIAL) != 0;
}

bool tokenizer_is_skipped(const struct tokenizer *t, int32_t id)
{
    return (flags_of(t, id) & TOKEN_SKIPPED) != 0;
}

bool tokenizer_is_byte(const struct tokenizer *t, int32_t id)
{
    return (flags_of(t, id) & TOKEN_BYTE) != 0;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if ((flags_of(t, id) & TOKEN_USED) == 0)
        return NULL;
    *len = t->tokens[id].bytes.len;
    return t->text + t->tokens[id].bytes.at;
}

const int32_t *tokenizer_special_ids(const struct tokenizer *t, size_t *n)
{
    *n = image_count(t->image, IMAGE_SPECIAL);
    return image_table(t->image, IMAGE_SPECIAL);
}

const int32_t *tokenizer_eos_ids(const struct tokenizer *t, size_t *n)
{
    *n = image_count(t->image, IMAGE_ENDS);
    return image_table(t->image, IMAGE_ENDS);
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->image->facts.bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->image->facts.eos;
}

int32_t tokenizer_pad(const struct tokenizer *t)
{
    return t->image->facts.pad;
}

/* --- decoding ----------------------------------------------------------------------------------*/

struct tokenizer_start tokenizer_start(const struct tokenizer *t)
{
    return (struct tokenizer_start){.drops = (t->image->facts.flags & IMAGE_DECODE_DROP) != 0,
                                    .strip_n = t->image->facts.strip_n};
}

void tokenizer_first_bytes(const struct tokenizer *t, int32_t id, struct buf *out)
{
    struct image_text text = t->tokens[id].text;

    decode_first(&t->image->facts, t->text + text.at, text.len, out);
}

size_t tokenizer_strip(const struct tokenizer *t, uint32_t n, const char *text, size_t len,
                       uint32_t *taken)
{
    return decode_strip(&t->image->facts, n, text, len, taken);
}

/* Append the bytes of all tokens of a byte-level model. */
static void decode_bytes(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                         struct buf *out)
{
    uint32_t unwanted = skip_special ? TOKEN_SKIPPED : 0;
    size_t i;

    for (i = 0; i < n; i++) {
        uint32_t flags = flags_of(t, ids[i]);
        struct image_text bytes;

        if ((flags & TOKEN_USED) == 0 || (flags & unwanted) != 0)
            continue;
        bytes = t->tokens[ids[i]].bytes;
        if (out->cap - out->len <= bytes.len && !buf_reserve(out, bytes.len))
            return;
        memcpy(out->bytes + out->len, t->text + bytes.at, bytes.len);
        out->len += bytes.len;
    }
}

/* The same of the others; runs of byte tokens become characters on the way. */
static void decode_runs(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                        struct buf *out)
{
    bool first = tokenizer_start(t).drops;
    struct buf run = {0};
    size_t i;

    for (i = 0; i < n; i++) {
        uint32_t flags = flags_of(t, ids[i]);
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids[i], &len);

        if (bytes == NULL || (skip_special && (flags & TOKEN_SKIPPED) != 0))
            continue;
        if ((flags & TOKEN_BYTE) != 0) {
            buf_add(&run, bytes, len);
            first = false;
            continue;
        }
        if (run.len > 0) {
            decode_run(run.bytes, run.len, out);
            buf_clear(&run);
        }
        if (first)
            tokenizer_first_bytes(t, ids[i], out);
        else
            buf_add(out, bytes, len);
        first = false;
    }
    decode_run(run.bytes, run.len, out);
    out->failed = out->failed || run.failed;
    buf_fini(&run);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out)
{
    uint32_t strip_n = t->image->facts.strip_n;
    struct buf raw = {0};
    size_t from = 0;
    uint32_t taken;

    if ((t->image->facts.flags & IMAGE_DECODE_BYTES) != 0) {
        decode_bytes(t, ids, n, skip_special, &raw);
    } else {
        decode_runs(t, ids, n, skip_special, &raw);
        if (strip_n > 0)
            from = decode_strip(&t->image->facts, strip_n, raw.bytes, raw.len, &taken);
    }
    if (raw.failed)
        out->failed = true;
    decode_lossy(raw.len == 0 ? "" : raw.bytes + from, raw.len - from, out);
    buf_fini(&raw);
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    pretoken_fini(&t->pretoken);
    normal_fini(&t->normal);
    if (t->mapped)
        image_unmap(t->image);
    else
        mem_free(t->image);
    mem_free(t);
}
