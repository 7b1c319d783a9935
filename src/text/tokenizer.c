/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding: added tokens in the raw text -> each gap normalized on its own -> added tokens in the
 * normalized text -> pieces -> BPE. Decoding: the bytes of the tokens, joined, made valid. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

void token_list_fini(struct token_list *list)
{
    mem_free(list->ids);
    *list = (struct token_list){0};
}

static int token_list_reserve(struct token_list *list, size_t more)
{
    size_t cap = list->cap == 0 ? 64 : list->cap;
    int32_t *grown;

    if (more <= list->cap - list->len)
        return ERR_OK;
    if (more > SIZE_MAX / 16 - list->len)
        return ERR_NO_MEMORY;
    while (cap < list->len + more)
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
    return token_list_add_all(list, &id, 1);
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

struct encoding {
    const struct tokenizer *t;
    struct token_list *out;
    struct pretoken_work *cuts;
    struct bpe_work bpe;
    struct buf normal; /* the gap in NFC */
};

static int encode_piece(void *context, const char *piece, size_t len)
{
    struct encoding *e = context;

    return bpe_encode(&e->t->bpe, &e->bpe, piece, len, e->out);
}

static int encode_normal(struct encoding *e, const char *text, size_t len)
{
    struct added_match m;
    size_t from = 0;
    size_t after = 0;
    int rc = ERR_OK;

    while (added_next(&e->t->normalized, text, len, &from, after, &m)) {
        if (m.start > after)
            rc = pretoken_cut(&e->t->pretoken, e->cuts, text + after, m.start - after, encode_piece,
                              e);
        if (rc == ERR_OK)
            rc = token_list_add(e->out, m.id);
        if (rc != ERR_OK)
            return rc;
        after = m.stop;
    }
    if (after < len)
        rc = pretoken_cut(&e->t->pretoken, e->cuts, text + after, len - after, encode_piece, e);
    return rc;
}

static int encode_gap(struct encoding *e, const char *text, size_t len)
{
    if (!e->t->nfc || unicode_is_nfc(text, len))
        return encode_normal(e, text, len);
    buf_clear(&e->normal);
    unicode_nfc(text, len, &e->normal);
    if (e->normal.failed)
        return ERR_NO_MEMORY;
    return encode_normal(e, e->normal.bytes, e->normal.len);
}

static int encode_valid(struct encoding *e, const char *text, size_t len)
{
    struct added_match m;
    size_t from = 0;
    size_t after = 0;
    int rc = ERR_OK;

    while (added_next(&e->t->raw, text, len, &from, after, &m)) {
        if (m.start > after)
            rc = encode_gap(e, text + after, m.start - after);
        if (rc == ERR_OK)
            rc = token_list_add(e->out, m.id);
        if (rc != ERR_OK)
            return rc;
        after = m.stop;
    }
    if (after < len)
        rc = encode_gap(e, text + after, len - after);
    return rc;
}

/* Append text with U+FFFD for what is not UTF-8, one for each maximal subpart. */
static void add_lossy(struct buf *out, const char *text, size_t len)
{
    size_t from = 0;
    size_t i = 0;

    if (len == 0)
        return; /* text may be NULL */
    while (i < len) {
        size_t n = (unsigned char)text[i] < 0x80 ? 1 : utf8_sequence(text + i, len - i);

        if (n != 0) {
            i += n;
            continue;
        }
        buf_add(out, text + from, i - from);
        buf_add(out, "\xef\xbf\xbd", 3);
        i += utf8_invalid_run(text + i, len - i);
        from = i;
    }
    buf_add(out, text + from, len - from);
}

static int encode_text(struct encoding *e, const char *text, size_t len, bool add_special)
{
    struct buf valid = {0};
    int rc = ERR_OK;

    if (!utf8_is_valid(text, len)) {
        add_lossy(&valid, text, len);
        if (valid.failed)
            rc = ERR_NO_MEMORY;
        text = valid.bytes;
        len = valid.len;
    }
    if (rc == ERR_OK && add_special)
        rc = token_list_add_all(e->out, e->t->before.ids, e->t->before.len);
    if (rc == ERR_OK)
        rc = encode_valid(e, text, len);
    if (rc == ERR_OK && add_special)
        rc = token_list_add_all(e->out, e->t->after.ids, e->t->after.len);
    buf_fini(&valid);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special,
                     struct token_list *out)
{
    struct encoding e = {.t = t, .out = out, .cuts = pretoken_work_open()};
    size_t n_before = out->len;
    int rc = ERR_NO_MEMORY;

    if (e.cuts != NULL)
        rc = encode_text(&e, text, len, add_special);
    if (rc != ERR_OK)
        out->len = n_before;
    pretoken_work_close(e.cuts);
    bpe_work_fini(&e.bpe);
    buf_fini(&e.normal);
    return rc;
}

int tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->vocab.n;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    return vocab_find_text(&t->vocab, text, len);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.n && t->vocab.tokens[id].special;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    if (id < 0 || id >= t->vocab.n || t->vocab.tokens[id].text == NULL)
        return NULL;
    *len = t->vocab.tokens[id].bytes_len;
    return t->vocab.tokens[id].bytes;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out)
{
    struct buf raw = {0};
    size_t i;

    for (i = 0; i < n; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids[i], &len);

        if (bytes != NULL && !(skip_special && tokenizer_is_special(t, ids[i])))
            buf_add(&raw, bytes, len);
    }
    if (raw.failed)
        out->failed = true;
    add_lossy(out, raw.bytes, raw.len);
    buf_fini(&raw);
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

int32_t tokenizer_pad(const struct tokenizer *t)
{
    return t->pad;
}

void tokenizer_close(struct tokenizer *t)
{
    if (t == NULL)
        return;
    bpe_fini(&t->bpe);
    pretoken_fini(&t->pretoken);
    added_fini(&t->raw);
    added_fini(&t->normalized);
    token_list_fini(&t->before);
    token_list_fini(&t->after);
    vocab_fini(&t->vocab);
    mem_free(t);
}
