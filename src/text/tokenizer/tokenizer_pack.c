/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: what was read becomes the tables of an image. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/tokenizer_parts.h"

#define JOINED_BITS_MIN ((size_t)1 << 12)
#define JOINED_BITS_MAX ((size_t)1 << 24) /* 2 MiB; more would miss the caches */

/* The tables on their way. All owned. */
struct packing {
    struct load *l;
    struct buf text;
    struct image_token *tokens;
    uint32_t *by_text;
    size_t by_text_n;
    struct image_piece *pieces;
    size_t pieces_n;
    uint32_t *long_pieces;
    size_t long_n;
    uint64_t *likely;
    size_t likely_n; /* words of 64 bits */
    struct image_pair *byte_pairs;
    size_t byte_pairs_n;
    uint64_t *joined;
    size_t joined_n; /* words of 64 bits */
    struct image_added *added[2];
    struct image_step steps[2][STEPS_MAX];
    int32_t *special;
    size_t special_n;
};

static struct image_text keep(struct packing *p, const char *bytes, size_t len)
{
    struct image_text text = {.at = (uint32_t)p->text.len, .len = (uint32_t)len};

    buf_add(&p->text, bytes, len);
    return text;
}

/* --- tokens ------------------------------------------------------------------------------------*/

/* The bytes of a text in GPT-2's alphabet; false when a character is not of it. */
static bool is_spelled(const char *text, size_t len)
{
    size_t i = 0;

    while (i < len) {
        if (vocab_char_byte(utf8_decode(text + i)) < 0)
            return false;
        i += utf8_sequence(text + i, len - i);
    }
    return true;
}

/* What Hugging Face leaves out: tokens that decode from the content of a special one. So a special
 * token that is normalized to something else stays in. */
static bool is_skipped(const struct load *l, const struct vocab_token *t)
{
    int32_t id;

    if (t->said == NULL)
        return t->special;
    id = vocab_find(&l->vocab, t->said, t->said_len);
    return id >= 0 && l->vocab.tokens[id].special;
}

static void pack_token(struct packing *p, int id)
{
    const struct vocab_token *v = &p->l->vocab.tokens[id];
    struct image_token *t = &p->tokens[id];
    bool byte_level = (p->l->facts.flags & IMAGE_BYTE_LEVEL) != 0;
    bool is_byte = false;
    size_t from;

    if (v->text == NULL)
        return;
    t->flags = TOKEN_USED;
    t->flags |= v->in_model ? TOKEN_IN_MODEL : 0u;
    t->flags |= v->special ? TOKEN_SPECIAL : 0u;
    t->text = keep(p, v->text, v->text_len);
    t->flags |= is_skipped(p->l, v) ? TOKEN_SKIPPED : 0u;
    from = p->text.len;
    decode_token(&p->l->decode, v->said != NULL ? v->said : v->text,
                 v->said != NULL ? v->said_len : v->text_len, &p->text, &is_byte);
    t->bytes = (struct image_text){.at = (uint32_t)from, .len = (uint32_t)(p->text.len - from)};
    t->flags |= is_byte ? TOKEN_BYTE : 0u;
    if (!p->text.failed && t->bytes.len == t->text.len &&
        memcmp(p->text.bytes + t->bytes.at, v->text, v->text_len) == 0) {
        p->text.len = from; /* the same: once is enough */
        t->bytes = t->text;
    }
    if (!v->in_model)
        return;
    t->piece = t->text;
    if (!byte_level)
        return;
    t->piece.len = 0; /* what is not spelled is never a piece */
    if (!is_spelled(v->text, v->text_len))
        return;
    if ((p->l->decode.flags & IMAGE_DECODE_BYTES) != 0) {
        t->piece = t->bytes;
        return;
    }
    from = p->text.len;
    decode_token(&(struct decode_draft){.flags = IMAGE_DECODE_BYTES}, v->text, v->text_len,
                 &p->text, &is_byte);
    t->piece = (struct image_text){.at = (uint32_t)from, .len = (uint32_t)(p->text.len - from)};
}

static void enter_id(uint32_t *table, size_t n, uint64_t hash, int id)
{
    size_t i = (size_t)hash & (n - 1);

    while (table[i] != 0)
        i = (i + 1) & (n - 1);
    table[i] = (uint32_t)id + 1;
}

static void enter_piece(struct packing *p, int id)
{
    struct image_text piece = p->tokens[id].piece;
    const char *bytes = p->text.bytes + piece.at;
    struct piece_key key;
    size_t i;

    if (piece.len == 0)
        return;
    if (piece.len > IMAGE_PIECE_LEN) {
        enter_id(p->long_pieces, p->long_n, hash_xxh3(bytes, piece.len), id);
        return;
    }
    key = piece_key(bytes, piece.len);
    i = (size_t)(piece_slot(p->pieces, p->pieces_n - 1, key) - p->pieces);
    p->pieces[i] = (struct image_piece){.key = {key.low, key.high}, .id = id};
}

static int pack_tokens(struct packing *p)
{
    int n = p->l->vocab.n;
    size_t n_long = 0;
    size_t n_short = 0;
    size_t i;
    int id;

    p->tokens = mem_zalloc_array((size_t)n + 1, sizeof *p->tokens);
    if (p->tokens == NULL)
        return ERR_NO_MEMORY;
    for (id = 0; id < n; id++)
        pack_token(p, id);
    if (p->text.failed || p->text.len > UINT32_MAX / 2)
        return ERR_NO_MEMORY;
    for (id = 0; id < n; id++) {
        n_long += p->tokens[id].piece.len > IMAGE_PIECE_LEN;
        n_short += p->tokens[id].piece.len > 0 && p->tokens[id].piece.len <= IMAGE_PIECE_LEN;
    }
    p->by_text_n = pieces_slots((size_t)n);
    p->long_n = pieces_slots(n_long);
    p->pieces_n = pieces_slots(n_short);
    p->by_text = mem_zalloc_array(p->by_text_n, sizeof *p->by_text);
    p->long_pieces = mem_zalloc_array(p->long_n, sizeof *p->long_pieces);
    p->pieces = mem_zalloc_array(p->pieces_n, sizeof *p->pieces);
    p->special = mem_zalloc_array((size_t)n + 1, sizeof *p->special);
    if (p->by_text == NULL || p->long_pieces == NULL || p->pieces == NULL || p->special == NULL)
        return ERR_NO_MEMORY;
    for (i = 0; i < p->pieces_n; i++)
        p->pieces[i].id = -1;
    for (id = 0; id < n; id++) {
        const struct image_token *t = &p->tokens[id];

        if ((t->flags & TOKEN_USED) == 0)
            continue;
        enter_id(p->by_text, p->by_text_n, hash_xxh3(p->text.bytes + t->text.at, t->text.len), id);
        enter_piece(p, id);
        if ((t->flags & TOKEN_SPECIAL) != 0)
            p->special[p->special_n++] = id;
    }
    return ERR_OK;
}

/* --- merges ------------------------------------------------------------------------------------*/

/* The byte that a token is alone; -1 when it is none. */
static int byte_of(const struct packing *p, int32_t id)
{
    const struct vocab_token *t = &p->l->vocab.tokens[id];

    if (t->text_len == 0 || utf8_sequence(t->text, t->text_len) != t->text_len)
        return -1;
    return vocab_char_byte(utf8_decode(t->text));
}

static void pack_byte_pairs(struct packing *p)
{
    const struct load *l = p->l;
    size_t i;

    for (i = 0; i < p->byte_pairs_n; i++)
        p->byte_pairs[i] = (struct image_pair){.rank = BPE_NO_RANK, .id = -1};
    for (i = 0; p->byte_pairs_n > 0 && i <= l->merges_mask; i++) {
        const struct image_merge *m = &l->merges[i];
        int left = m->pair == IMAGE_MERGE_FREE ? -1 : byte_of(p, (int32_t)(m->pair >> 32));
        int right = left < 0 ? -1 : byte_of(p, (int32_t)(uint32_t)m->pair);

        if (right >= 0)
            p->byte_pairs[left << 8 | right] = (struct image_pair){.rank = m->rank, .id = m->id};
    }
}

/* What is asked before the table of merges: one byte of bits for each of its slots. */
static int pack_merges(struct packing *p)
{
    const struct load *l = p->l;
    size_t i;

    p->likely_n = (l->merges_mask + 1) / 8;
    p->byte_pairs_n = (l->facts.flags & IMAGE_BYTE_LEVEL) != 0 ? 65536 : 0;
    p->likely = mem_zalloc_array(p->likely_n, sizeof *p->likely);
    p->byte_pairs = mem_zalloc_array(p->byte_pairs_n + 1, sizeof *p->byte_pairs);
    if (p->likely == NULL || p->byte_pairs == NULL)
        return ERR_NO_MEMORY;
    for (i = 0; i <= l->merges_mask; i++) {
        uint64_t bit = bpe_likely_bit(l->merges[i].pair, p->likely_n * 64 - 1);

        if (l->merges[i].pair != IMAGE_MERGE_FREE)
            p->likely[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    pack_byte_pairs(p);
    return ERR_OK;
}

/* --- where a text may be cut -------------------------------------------------------------------*/

/* Whether merges alone decide what a character becomes, whatever stands beside it: each unknown
 * one is its bytes, and no merge joins bytes. */
static bool may_cut(const struct load *l)
{
    size_t i;
    int b;

    if ((l->facts.flags & (IMAGE_BYTE_LEVEL | IMAGE_BYTE_FALLBACK | IMAGE_IGNORE_MERGES)) !=
            IMAGE_BYTE_FALLBACK ||
        !image_has_all_bytes(&l->facts))
        return false;
    for (i = 0; i <= l->merges_mask; i++) {
        const struct image_merge *m = &l->merges[i];

        if (m->pair == IMAGE_MERGE_FREE)
            continue;
        for (b = 0; b < 256; b++)
            if ((int32_t)(m->pair >> 32) == l->facts.byte_ids[b] ||
                (int32_t)m->pair == l->facts.byte_ids[b])
                return false;
    }
    return true;
}

static void join_chars(struct packing *p, int32_t id)
{
    const struct vocab_token *t = &p->l->vocab.tokens[id];
    uint64_t mask = p->joined_n * 64 - 1;
    uint32_t last = 0;
    size_t i = 0;

    while (i < t->text_len) {
        uint32_t c = utf8_decode(t->text + i);

        if (i > 0) {
            uint64_t bit = bpe_joined_bit(last, c, mask);

            p->joined[bit / 64] |= (uint64_t)1 << bit % 64;
        }
        last = c;
        i += utf8_sequence(t->text + i, t->text_len - i);
    }
}

/* What merges make is where characters are joined: all other places are fit for a cut. */
static int pack_joined(struct packing *p)
{
    struct load *l = p->l;
    size_t bits = JOINED_BITS_MIN;
    size_t i;

    if (!may_cut(l))
        return ERR_OK;
    while (bits < JOINED_BITS_MAX && bits < l->merges_mask * 16)
        bits *= 2;
    p->joined_n = bits / 64;
    p->joined = mem_zalloc_array(p->joined_n, sizeof *p->joined);
    if (p->joined == NULL)
        return ERR_NO_MEMORY;
    for (i = 0; i <= l->merges_mask; i++)
        if (l->merges[i].pair != IMAGE_MERGE_FREE)
            join_chars(p, l->merges[i].id);
    l->facts.flags |= IMAGE_APART;
    return ERR_OK;
}

/* --- the rest ----------------------------------------------------------------------------------*/

static int compare_items(const void *a, const void *b)
{
    const struct load_added *x = a;
    const struct load_added *y = b;

    return added_compare(x->text, x->len, x->id, y->text, y->len, y->id);
}

static int pack_added(struct packing *p, struct load_added_list *list, struct image_added **out)
{
    size_t i;

    *out = mem_zalloc_array(list->n + 1, sizeof **out);
    if (*out == NULL)
        return ERR_NO_MEMORY;
    if (list->n > 0)
        qsort(list->items, list->n, sizeof list->items[0], compare_items);
    for (i = 0; i < list->n; i++)
        (*out)[i] = (struct image_added){.text = keep(p, list->items[i].text, list->items[i].len),
                                         .id = list->items[i].id,
                                         .flags = list->items[i].flags};
    return ERR_OK;
}

static void pack_steps(struct packing *p, const struct steps_draft *d, struct image_step *out)
{
    int i;

    for (i = 0; i < d->n; i++)
        out[i] = (struct image_step){
            .kind = d->steps[i].kind,
            .behavior = d->steps[i].behavior,
            .invert = d->steps[i].invert,
            .pattern = keep(p, d->steps[i].pattern, d->steps[i].pattern_len),
            .by = keep(p, d->steps[i].by, d->steps[i].by_len),
        };
}

/* Find out which tokens their pieces encode to, and mark them in the image. */
static int mark_whole(struct image_header *image)
{
    struct image_token *tokens = image_table_open(image, IMAGE_TOKENS);
    struct image_piece *pieces = image_table_open(image, IMAGE_PIECES);
    struct token_list ids = {0};
    struct bpe_work work = {0};
    struct bpe bpe;
    size_t i;
    int rc = ERR_OK;

    bpe_attach(&bpe, image);
    for (i = 0; i < image_count(image, IMAGE_TOKENS) && rc == ERR_OK; i++) {
        struct image_token *t = &tokens[i];
        const char *piece = bpe.text + t->piece.at;

        if (t->piece.len == 0)
            continue;
        ids.len = 0;
        rc = bpe_merge(&bpe, &work, piece, t->piece.len, &ids);
        if (rc != ERR_OK || ids.len != 1 || ids.ids[0] != (int32_t)i)
            continue;
        t->flags |= TOKEN_WHOLE;
        if (t->piece.len <= IMAGE_PIECE_LEN)
            pieces[piece_slot(pieces, bpe.pieces_mask, piece_key(piece, t->piece.len)) - pieces]
                .whole = 1;
    }
    token_list_fini(&ids);
    bpe_work_fini(&work);
    return rc;
}

static int pack_all(struct packing *p)
{
    struct load *l = p->l;
    int rc = pack_tokens(p);

    if (rc == ERR_OK)
        rc = pack_merges(p);
    if (rc == ERR_OK)
        rc = pack_joined(p);
    if (rc == ERR_OK)
        rc = pack_added(p, &l->raw, &p->added[0]);
    if (rc == ERR_OK)
        rc = pack_added(p, &l->normalized, &p->added[1]);
    if (rc != ERR_OK)
        return rc;
    pack_steps(p, &l->rewrites, p->steps[0]);
    pack_steps(p, &l->cuts, p->steps[1]);
    l->facts.flags |= l->decode.flags;
    l->facts.drop_char = l->decode.drop_char;
    l->facts.strip_char = l->decode.strip_char;
    l->facts.strip_n = l->decode.strip_n;
    return p->text.failed || p->text.len > UINT32_MAX / 2 ? ERR_NO_MEMORY : ERR_OK;
}

int load_pack(struct load *l, struct image_header **out)
{
    struct packing p = {.l = l};
    struct image_header *image = NULL;
    int rc = pack_all(&p);

    if (rc == ERR_OK) {
        struct image_part parts[IMAGE_SECTIONS] = {
            [IMAGE_TEXT] = {p.text.bytes, p.text.len},
            [IMAGE_TOKENS] = {p.tokens, (size_t)l->vocab.n},
            [IMAGE_BY_TEXT] = {p.by_text, p.by_text_n},
            [IMAGE_PIECES] = {p.pieces, p.pieces_n},
            [IMAGE_LONG_PIECES] = {p.long_pieces, p.long_n},
            [IMAGE_MERGES] = {l->merges, l->merges_mask + 1},
            [IMAGE_LIKELY] = {p.likely, p.likely_n},
            [IMAGE_BYTE_PAIRS] = {p.byte_pairs, p.byte_pairs_n},
            [IMAGE_JOINED] = {p.joined, p.joined_n},
            [IMAGE_RAW] = {p.added[0], l->raw.n},
            [IMAGE_NORMAL] = {p.added[1], l->normalized.n},
            [IMAGE_REWRITES] = {p.steps[0], (size_t)l->rewrites.n},
            [IMAGE_CUTS] = {p.steps[1], (size_t)l->cuts.n},
            [IMAGE_BEFORE] = {l->before.ids, l->before.len},
            [IMAGE_AFTER] = {l->after.ids, l->after.len},
            [IMAGE_SPECIAL] = {p.special, p.special_n},
            [IMAGE_ENDS] = {l->ends.ids, l->ends.len},
        };

        rc = image_build(&image, &l->facts, parts, &l->sources);
    }
    if (rc == ERR_OK)
        rc = mark_whole(image);
    if (rc == ERR_OK) {
        image_seal(image);
        *out = image;
        image = NULL;
    }
    mem_free(image);
    buf_fini(&p.text);
    mem_free(p.tokens);
    mem_free(p.by_text);
    mem_free(p.pieces);
    mem_free(p.long_pieces);
    mem_free(p.likely);
    mem_free(p.byte_pairs);
    mem_free(p.joined);
    mem_free(p.added[0]);
    mem_free(p.added[1]);
    mem_free(p.special);
    return rc == ERR_OK ? rc : load_no_memory(l);
}
