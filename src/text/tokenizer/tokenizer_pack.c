/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading, last step: writes the data that was read into the tables of an image (image.h). Tables
 * are first collected in struct packing, then image_build() copies them together. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/tokenizer_parts.h"

#define JOINED_BITS_MIN ((size_t)1 << 12)
#define JOINED_BITS_MAX ((size_t)1 << 24) /* 2 MiB; more would miss the caches */

/* The tables while they are collected. All owned. */
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

/* Append bytes to the table of texts and return their place. */
static struct image_text load_keep_text(struct packing *packing, const char *bytes, size_t len)
{
    struct image_text text = {.at = (uint32_t)packing->text.len, .len = (uint32_t)len};

    buf_add(&packing->text, bytes, len);
    return text;
}

/* --- tokens ------------------------------------------------------------------------------------*/

/* Is a text spelled entirely in GPT-2's alphabet? */
static bool load_is_spelled(const char *text, size_t len)
{
    size_t i = 0;

    /* One character outside of the alphabet is enough: the token's text is then a plain one,
     * such as that of an added token. */
    while (i < len) {
        if (vocab_char_byte(utf8_decode(text + i)) < 0)
            return false;
        i += utf8_sequence(text + i, len - i);
    }
    return true;
}

/* Does skip_special omit this token? Hugging Face omits tokens that decode to the text of a special
 * token, so a special token that a normalizer changed to another text is kept. */
static bool load_is_skipped(const struct load *load, const struct vocab_token *token)
{
    int32_t id;

    if (token->said == NULL)
        return token->special;
    id = vocab_find(&load->vocab, token->said, token->said_len);
    return id >= 0 && load->vocab.tokens[id].special;
}

/* Fill in one token: its text, the bytes it decodes to, and the piece that BPE makes it of. Equal
 * texts are stored once. */
static void load_pack_token(struct packing *packing, int id)
{
    const struct vocab_token *token = &packing->l->vocab.tokens[id];
    struct image_token *out = &packing->tokens[id];
    bool byte_level = (packing->l->facts.flags & IMAGE_BYTE_LEVEL) != 0;
    bool is_byte = false;
    size_t from;

    if (token->text == NULL)
        return;
    out->flags = TOKEN_USED;
    if (token->in_model)
        out->flags |= TOKEN_IN_MODEL;
    if (token->special)
        out->flags |= TOKEN_SPECIAL;
    out->text = load_keep_text(packing, token->text, token->text_len);
    if (load_is_skipped(packing->l, token))
        out->flags |= TOKEN_SKIPPED;
    from = packing->text.len;
    decode_token(&packing->l->decode, token->said != NULL ? token->said : token->text,
                 token->said != NULL ? token->said_len : token->text_len, &packing->text, &is_byte);
    out->bytes =
        (struct image_text){.at = (uint32_t)from, .len = (uint32_t)(packing->text.len - from)};
    if (is_byte)
        out->flags |= TOKEN_BYTE;
    if (!packing->text.failed && out->bytes.len == out->text.len &&
        memcmp(packing->text.bytes + out->bytes.at, token->text, token->text_len) == 0) {
        packing->text.len = from; /* equal to its text: store it once */
        out->bytes = out->text;
    }
    if (!token->in_model)
        return;
    out->piece = out->text;
    if (!byte_level)
        return;
    out->piece.len = 0; /* text outside of the alphabet is never a piece */
    if (!load_is_spelled(token->text, token->text_len))
        return;
    if ((packing->l->decode.flags & IMAGE_DECODE_BYTES) != 0) {
        out->piece = out->bytes;
        return;
    }
    from = packing->text.len;
    decode_token(&(struct decode_draft){.flags = IMAGE_DECODE_BYTES}, token->text, token->text_len,
                 &packing->text, &is_byte);
    out->piece =
        (struct image_text){.at = (uint32_t)from, .len = (uint32_t)(packing->text.len - from)};
}

/* Enter an id into a hash table of ids; the table has free slots (pieces_slots()). */
static void load_enter_id(uint32_t *table, size_t n, uint64_t hash, int id)
{
    size_t i = (size_t)hash & (n - 1);

    must(n > 0 && (n & (n - 1)) == 0);
    while (table[i] != 0)
        i = (i + 1) & (n - 1);
    table[i] = (uint32_t)id + 1;
}

/* Enter a token under its piece, in the table for short or for long pieces. */
static void load_enter_piece(struct packing *packing, int id)
{
    struct image_text piece = packing->tokens[id].piece;
    const char *bytes = packing->text.bytes + piece.at;
    struct piece_key key;
    size_t i;

    /* Tokens without a piece are never a result of BPE, such as special ones. */
    if (piece.len == 0)
        return;
    if (piece.len > IMAGE_PIECE_LEN) {
        load_enter_id(packing->long_pieces, packing->long_n, hash_xxh3(bytes, piece.len), id);
        return;
    }
    /* piece_slot() returns the slot of an equal piece or a free one. */
    key = piece_key(bytes, piece.len);
    i = (size_t)(piece_slot(packing->pieces, packing->pieces_n - 1, key) - packing->pieces);
    packing->pieces[i] = (struct image_piece){.key = {key.low, key.high}, .id = id};
}

/* Fill in all tokens, then the hash tables over them, which are sized by counting first. */
static int load_pack_tokens(struct packing *packing)
{
    int n = packing->l->vocab.n;
    size_t n_long = 0;
    size_t n_short = 0;
    size_t i;
    int id;

    packing->tokens = mem_zalloc_array((size_t)n + 1, sizeof *packing->tokens);
    if (packing->tokens == NULL)
        return ERR_NO_MEMORY;
    /* All texts first, because the hash tables refer to their places. */
    for (id = 0; id < n; id++)
        load_pack_token(packing, id);
    if (packing->text.failed || packing->text.len > UINT32_MAX / 2)
        return ERR_NO_MEMORY;
    for (id = 0; id < n; id++) {
        n_long += packing->tokens[id].piece.len > IMAGE_PIECE_LEN;
        n_short +=
            packing->tokens[id].piece.len > 0 && packing->tokens[id].piece.len <= IMAGE_PIECE_LEN;
    }
    packing->by_text_n = pieces_slots((size_t)n);
    packing->long_n = pieces_slots(n_long);
    packing->pieces_n = pieces_slots(n_short);
    packing->by_text = mem_zalloc_array(packing->by_text_n, sizeof *packing->by_text);
    packing->long_pieces = mem_zalloc_array(packing->long_n, sizeof *packing->long_pieces);
    packing->pieces = mem_zalloc_array(packing->pieces_n, sizeof *packing->pieces);
    packing->special = mem_zalloc_array((size_t)n + 1, sizeof *packing->special);
    if (packing->by_text == NULL || packing->long_pieces == NULL || packing->pieces == NULL ||
        packing->special == NULL)
        return ERR_NO_MEMORY;
    for (i = 0; i < packing->pieces_n; i++)
        packing->pieces[i].id = -1;
    for (id = 0; id < n; id++) {
        const struct image_token *token = &packing->tokens[id];

        if ((token->flags & TOKEN_USED) == 0)
            continue;
        load_enter_id(packing->by_text, packing->by_text_n,
                      hash_xxh3(packing->text.bytes + token->text.at, token->text.len), id);
        load_enter_piece(packing, id);
        if ((token->flags & TOKEN_SPECIAL) != 0)
            packing->special[packing->special_n++] = id;
    }
    return ERR_OK;
}

/* --- merges ------------------------------------------------------------------------------------*/

/* The byte that a token consists of; -1 when it is longer. */
static int load_byte_of(const struct packing *packing, int32_t id)
{
    const struct vocab_token *token = &packing->l->vocab.tokens[id];

    if (token->text_len == 0 || utf8_sequence(token->text, token->text_len) != token->text_len)
        return -1;
    return vocab_char_byte(utf8_decode(token->text));
}

/* Copy the merges of two single bytes into a table that is indexed by both bytes. */
static void load_pack_byte_pairs(struct packing *packing)
{
    const struct load *load = packing->l;
    size_t i;

    /* Pairs that do not merge are the rule, so the table begins without any. */
    for (i = 0; i < packing->byte_pairs_n; i++)
        packing->byte_pairs[i] = (struct image_pair){.rank = BPE_NO_RANK, .id = -1};
    /* Merges of other than single bytes give -1 for one of both and are not entered. */
    for (i = 0; packing->byte_pairs_n > 0 && i <= load->merges_mask; i++) {
        const struct image_merge *merge = &load->merges[i];
        int left = merge->pair == IMAGE_MERGE_FREE
                       ? -1
                       : load_byte_of(packing, (int32_t)(merge->pair >> 32));
        int right = left < 0 ? -1 : load_byte_of(packing, (int32_t)(uint32_t)merge->pair);

        if (right >= 0)
            packing->byte_pairs[left << 8 | right] =
                (struct image_pair){.rank = merge->rank, .id = merge->id};
    }
}

/* Build the filter that is read before the table of merges: eight bits per slot of that table. */
static int load_pack_merges(struct packing *packing)
{
    const struct load *load = packing->l;
    size_t i;

    /* The filter is small enough for a cache, and recognizes most pairs that do not merge
     * without a look at the table. */
    packing->likely_n = (load->merges_mask + 1) / 8;
    if ((load->facts.flags & IMAGE_BYTE_LEVEL) != 0)
        packing->byte_pairs_n = 65536;
    else
        packing->byte_pairs_n = 0;
    packing->likely = mem_zalloc_array(packing->likely_n, sizeof *packing->likely);
    packing->byte_pairs = mem_zalloc_array(packing->byte_pairs_n + 1, sizeof *packing->byte_pairs);
    if (packing->likely == NULL || packing->byte_pairs == NULL)
        return ERR_NO_MEMORY;
    /* A bit that is set means "perhaps a merge", one that is not set "surely none". */
    for (i = 0; i <= load->merges_mask; i++) {
        uint64_t bit = bpe_likely_bit(load->merges[i].pair, packing->likely_n * 64 - 1);

        if (load->merges[i].pair != IMAGE_MERGE_FREE)
            packing->likely[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    load_pack_byte_pairs(packing);
    return ERR_OK;
}

/* --- where a text may be cut -------------------------------------------------------------------*/

/* May a text be cut between characters that no merge joins? Only if merges alone decide how a
 * character is encoded: every unknown character becomes its bytes, and no merge joins these
 * bytes. */
static bool load_may_cut(const struct load *load)
{
    size_t i;
    int b;

    if ((load->facts.flags & (IMAGE_BYTE_LEVEL | IMAGE_BYTE_FALLBACK | IMAGE_IGNORE_MERGES)) !=
            IMAGE_BYTE_FALLBACK ||
        !image_has_all_bytes(&load->facts))
        return false;
    /* A merge that joins a byte token could join bytes of two unknown characters across a cut. */
    for (i = 0; i <= load->merges_mask; i++) {
        const struct image_merge *merge = &load->merges[i];

        if (merge->pair == IMAGE_MERGE_FREE)
            continue;
        for (b = 0; b < 256; b++)
            if ((int32_t)(merge->pair >> 32) == load->facts.byte_ids[b] ||
                (int32_t)merge->pair == load->facts.byte_ids[b])
                return false;
    }
    return true;
}

/* Mark each pair of adjacent characters of a token as joined. */
static void load_join_chars(struct packing *packing, int32_t id)
{
    const struct vocab_token *token = &packing->l->vocab.tokens[id];
    uint64_t mask = packing->joined_n * 64 - 1;
    uint32_t last = 0;
    size_t i = 0;

    /* Adjacent characters of a token are the ones that some merge has joined. */
    while (i < token->text_len) {
        uint32_t c = utf8_decode(token->text + i);

        if (i > 0) {
            uint64_t bit = bpe_joined_bit(last, c, mask);

            packing->joined[bit / 64] |= (uint64_t)1 << bit % 64;
        }
        last = c;
        i += utf8_sequence(token->text + i, token->text_len - i);
    }
}

/* Build IMAGE_JOINED from the results of all merges: a text may be cut between any other
 * characters. */
static int load_pack_joined(struct packing *packing)
{
    struct load *load = packing->l;
    size_t bits = JOINED_BITS_MIN;
    size_t i;

    if (!load_may_cut(load))
        return ERR_OK;
    /* About 16 bits per slot of the table of merges leave few accidental matches; the maximum
     * bounds the memory of a large vocabulary. */
    while (bits < JOINED_BITS_MAX && bits < load->merges_mask * 16)
        bits *= 2;
    packing->joined_n = bits / 64;
    packing->joined = mem_zalloc_array(packing->joined_n, sizeof *packing->joined);
    if (packing->joined == NULL)
        return ERR_NO_MEMORY;
    /* Only results of merges count: a token that no merge makes is never produced from its
     * characters. */
    for (i = 0; i <= load->merges_mask; i++)
        if (load->merges[i].pair != IMAGE_MERGE_FREE)
            load_join_chars(packing, load->merges[i].id);
    load->facts.flags |= IMAGE_APART;
    return ERR_OK;
}

/* --- other tables ------------------------------------------------------------------------------*/

static int load_compare_items(const void *a, const void *b)
{
    const struct load_added *x = a;
    const struct load_added *y = b;

    return added_compare(x->text, x->len, x->id, y->text, y->len, y->id);
}

/* Sort one list of added tokens and write it. */
static int load_pack_added(struct packing *packing, struct load_added_list *list,
                           struct image_added **out)
{
    size_t i;

    *out = mem_zalloc_array(list->n + 1, sizeof **out);
    if (*out == NULL)
        return ERR_NO_MEMORY;
    /* qsort() must not be called with a NULL list, which an empty list has. */
    if (list->n > 0)
        qsort(list->items, list->n, sizeof list->items[0], load_compare_items);
    for (i = 0; i < list->n; i++)
        (*out)[i] = (struct image_added){
            .text = load_keep_text(packing, list->items[i].text, list->items[i].len),
            .id = list->items[i].id,
            .flags = list->items[i].flags};
    return ERR_OK;
}

static void load_pack_steps(struct packing *packing, const struct steps_draft *draft,
                            struct image_step *out)
{
    int i;

    /* Texts of the steps are moved into the image's text, since the files they came from are
     * freed. */
    for (i = 0; i < draft->n; i++)
        out[i] = (struct image_step){
            .kind = draft->steps[i].kind,
            .behavior = draft->steps[i].behavior,
            .invert = draft->steps[i].invert,
            .pattern =
                load_keep_text(packing, draft->steps[i].pattern, draft->steps[i].pattern_len),
            .by = load_keep_text(packing, draft->steps[i].by, draft->steps[i].by_len),
        };
}

/* Find the tokens that BPE produces from their own pieces, and mark them in the finished image. */
static int load_mark_whole(struct image_header *image)
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
        struct image_token *token = &tokens[i];
        const char *piece = bpe.text + token->piece.at;

        if (token->piece.len == 0)
            continue;
        ids.len = 0;
        rc = bpe_merge(&bpe, &work, piece, token->piece.len, &ids);
        /* The merges give the token itself, so a piece equal to it needs no merging at run time. */
        if (rc != ERR_OK || ids.len != 1 || ids.ids[0] != (int32_t)i)
            continue;
        token->flags |= TOKEN_WHOLE;
        if (token->piece.len <= IMAGE_PIECE_LEN)
            pieces[piece_slot(pieces, bpe.pieces_mask, piece_key(piece, token->piece.len)) - pieces]
                .whole = 1;
    }
    token_list_fini(&ids);
    bpe_work_fini(&work);
    return rc;
}

/* Collect all tables. */
static int load_pack_all(struct packing *packing)
{
    struct load *load = packing->l;
    /* Tokens come first, because the tables after them refer to their texts. */
    int rc = load_pack_tokens(packing);

    if (rc == ERR_OK)
        rc = load_pack_merges(packing);
    if (rc == ERR_OK)
        rc = load_pack_joined(packing);
    if (rc == ERR_OK)
        rc = load_pack_added(packing, &load->raw, &packing->added[0]);
    if (rc == ERR_OK)
        rc = load_pack_added(packing, &load->normalized, &packing->added[1]);
    if (rc != ERR_OK)
        return rc;
    /* `text` grows in all of these steps, and everything refers to it by offset, since it may
     * move. */
    load_pack_steps(packing, &load->rewrites, packing->steps[0]);
    load_pack_steps(packing, &load->cuts, packing->steps[1]);
    load->facts.flags |= load->decode.flags;
    load->facts.drop_char = load->decode.drop_char;
    load->facts.strip_char = load->decode.strip_char;
    load->facts.strip_n = load->decode.strip_n;
    if (packing->text.failed || packing->text.len > UINT32_MAX / 2)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

int load_pack(struct load *load, struct image_header **out)
{
    struct packing packing = {.l = load};
    struct image_header *image = NULL;
    int rc = load_pack_all(&packing);

    must(out != NULL && load->merges != NULL && load->vocab.tokens != NULL);
    if (rc == ERR_OK) {
        struct image_part parts[IMAGE_SECTIONS] = {
            [IMAGE_TEXT] = {packing.text.bytes, packing.text.len},
            [IMAGE_TOKENS] = {packing.tokens, (size_t)load->vocab.n},
            [IMAGE_BY_TEXT] = {packing.by_text, packing.by_text_n},
            [IMAGE_PIECES] = {packing.pieces, packing.pieces_n},
            [IMAGE_LONG_PIECES] = {packing.long_pieces, packing.long_n},
            [IMAGE_MERGES] = {load->merges, load->merges_mask + 1},
            [IMAGE_LIKELY] = {packing.likely, packing.likely_n},
            [IMAGE_BYTE_PAIRS] = {packing.byte_pairs, packing.byte_pairs_n},
            [IMAGE_JOINED] = {packing.joined, packing.joined_n},
            [IMAGE_RAW] = {packing.added[0], load->raw.n},
            [IMAGE_NORMAL] = {packing.added[1], load->normalized.n},
            [IMAGE_REWRITES] = {packing.steps[0], (size_t)load->rewrites.n},
            [IMAGE_CUTS] = {packing.steps[1], (size_t)load->cuts.n},
            [IMAGE_BEFORE] = {load->before.ids, load->before.len},
            [IMAGE_AFTER] = {load->after.ids, load->after.len},
            [IMAGE_SPECIAL] = {packing.special, packing.special_n},
            [IMAGE_ENDS] = {load->ends.ids, load->ends.len},
        };

        rc = image_build(&image, &load->facts, parts, &load->sources);
    }
    /* A token is `whole` if BPE makes it from its own text. This needs an image to encode with,
     * so it is found out last, and the image is sealed with its digest afterwards. */
    if (rc == ERR_OK)
        rc = load_mark_whole(image);
    if (rc == ERR_OK) {
        image_seal(image);
        *out = image;
        image = NULL;
    }
    /* On success `image` is NULL here. The parts were copied into the image. */
    mem_free(image);
    buf_fini(&packing.text);
    mem_free(packing.tokens);
    mem_free(packing.by_text);
    mem_free(packing.pieces);
    mem_free(packing.long_pieces);
    mem_free(packing.likely);
    mem_free(packing.byte_pairs);
    mem_free(packing.joined);
    mem_free(packing.added[0]);
    mem_free(packing.added[1]);
    mem_free(packing.special);
    if (rc == ERR_OK)
        return rc;
    return load_no_memory(load);
}
