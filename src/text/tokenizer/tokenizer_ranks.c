/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: tiktoken.model, a vocabulary without merges. A line is a token's bytes in base64, a
 * space, and its rank, which is also its id:
 *
 *     aGVsbG8= 15339
 *
 * tiktoken merges the two neighbours whose joined bytes have the lowest rank. So every way to cut a
 * token into two other tokens is a merge with the token's rank, and these are generated here.
 *
 * The pattern that cuts a text into pieces is not in the file but in Python code beside it, which
 * is not run. Only the pattern of Kimi's class is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/tokenizer_parts.h"

#define RANKS_RESERVED  256  /* ids after the ranks, to which Kimi's class gives names */
#define RANKS_BYTES_MAX 1024 /* per token; tiktoken has no bound, its files stay below 200 */

/* --- lines -------------------------------------------------------------------------------- */

/* The six bits of a character of base64; -1 for all other characters. */
static int load_base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+')
        return 62;
    if (c == '/')
        return 63;
    return -1;
}

/* Append the bytes of base64 text, spelled in GPT-2's alphabet. Returns their number; 0:
 * invalid. */
static size_t load_spell_base64(const char *text, size_t len, struct buf *out)
{
    uint32_t bits = 0;
    size_t n_bytes = 0, n_bits = 0;
    char spelled[4];

    if (len == 0 || len % 4 != 0)
        return 0;
    /* Remove the padding, at most two characters. */
    while (len > 0 && text[len - 1] == '=' && len % 4 != 2)
        len--;
    if (len % 4 == 1)
        return 0;
    for (size_t i = 0; i < len; i++) {
        int value = load_base64_value(text[i]);

        if (value < 0)
            return 0;
        /* At most 12 bits are pending, so the mask keeps all of them. */
        bits = (bits << 6 | (uint32_t)value) & 0xffff;
        n_bits += 6;
        if (n_bits < 8)
            continue;
        n_bits -= 8;
        buf_add(out, spelled, utf8_encode(vocab_byte_char((uint8_t)(bits >> n_bits)), spelled));
        n_bytes++;
    }
    if (n_bytes > RANKS_BYTES_MAX)
        return 0;
    return n_bytes;
}

/* The rank at the end of a line; -1 when it is no number. */
static int64_t load_rank_of(const char *text, size_t len)
{
    int64_t rank = 0;

    if (len == 0 || len > 9)
        return -1;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        rank = rank * 10 + (text[i] - '0');
    }
    return rank;
}

/* Add the token of one line. */
static int load_read_line(struct load *load, const char *line, size_t len, uint32_t number)
{
    const char *space = memchr(line, ' ', len);
    size_t left = space == NULL ? 0 : (size_t)(space - line);
    int64_t rank = space == NULL ? -1 : load_rank_of(space + 1, len - left - 1);
    struct buf spelled = {0};
    char *text = NULL;
    size_t text_len;

    /* A line is the bytes of a token in base64 and its rank: "aGVsbG8= 15339" is "hello". */
    if (rank >= 0 && load_spell_base64(line, left, &spelled) > 0 && !spelled.failed)
        text = arena_strndup(&load->arena, spelled.bytes, spelled.len);
    text_len = spelled.len;
    buf_fini(&spelled);
    if (text == NULL)
        return load_fail(load, ERR_INVALID,
                         "tiktoken.model: line %u is not base64 of 1 to %d bytes, a space and a "
                         "rank",
                         number, RANKS_BYTES_MAX);
    /* A rank is the id as well. vocab_add() refuses a second token under one id or one text. */
    if (vocab_add(&load->vocab, rank, text, text_len, true) != ERR_OK)
        return load_fail(load, ERR_INVALID,
                         "tiktoken.model: line %u: a token or rank that occurs twice, or too large",
                         number);
    return ERR_OK;
}

/* The number of lines that are not empty. */
static uint32_t load_count_ranks(const struct buf *buf)
{
    uint32_t n = 0;

    for (size_t i = 0; i < buf->len; i++)
        n +=
            buf->bytes[i] != '\n' && buf->bytes[i] != '\r' && (i == 0 || buf->bytes[i - 1] == '\n');
    return n;
}

/* Lines may end with \n or \r\n, and the last one without either. Empty lines are skipped but
 * counted, so that an error names the line of an editor. */
static int load_read_lines(struct load *load)
{
    const char *p = load->ranks.bytes;
    const char *end = p + load->ranks.len;
    uint32_t number = 0;
    int rc = ERR_OK;

    while (p < end && rc == ERR_OK) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol == NULL ? end : eol) - p);
        size_t used = len > 0 && p[len - 1] == '\r' ? len - 1 : len;

        number++;
        if (used > 0)
            rc = load_read_line(load, p, used, number);
        p += len + (eol == NULL ? 0 : 1);
    }
    return rc;
}

/* --- the vocabulary ----------------------------------------------------------------------- */

int load_ranks_kind(struct load *load)
{
    const char *name = json_get_text(load->files[FILE_CONFIG], "tokenizer_class", "");

    if (strcmp(name, "TikTokenTokenizer") == 0)
        return ERR_OK;
    return load_fail(load, ERR_UNSUPPORTED,
                     "tiktoken.model: the pattern that cuts a text is known only for the class "
                     "TikTokenTokenizer, not for \"%.40s\"",
                     name);
}

/* Name the ids after the ranks that tokenizer_config.json leaves without a name. */
int load_reserved(struct load *load)
{
    static const struct json plain = {.kind = JSON_OBJECT};
    int rc = ERR_OK;

    must(load->n_ranks > 0);
    for (uint32_t i = 0; i < RANKS_RESERVED && rc == ERR_OK; i++) {
        uint32_t id = load->n_ranks + i;
        char name[40];
        char *text;

        /* A name that the configuration gives to the id is kept. */
        if (load->vocab.tokens[id].text != NULL)
            continue;
        (void)snprintf(name, sizeof name, "<|reserved_token_%u|>", id);
        text = arena_strndup(&load->arena, name, strlen(name));
        if (text == NULL)
            rc = load_no_memory(load);
        else
            rc = load_add_token(load, &plain, id, text, strlen(text));
    }
    return rc;
}

/* Read the lines into the vocabulary and check that ranks are 0 .. n - 1 and that every byte has a
 * token: any text can then be encoded. */
int load_ranks(struct load *load, int64_t n_ids)
{
    int rc;

    must(load->ranks.bytes != NULL);
    load->n_ranks = load_count_ranks(&load->ranks);
    if (load->n_ranks > VOCAB_IDS_MAX - RANKS_RESERVED)
        return load_fail(load, ERR_LIMIT, "tiktoken.model: more than %d tokens",
                         VOCAB_IDS_MAX - RANKS_RESERVED);
    if (n_ids < load->n_ranks + RANKS_RESERVED)
        n_ids = load->n_ranks + RANKS_RESERVED;
    if (vocab_init(&load->vocab, n_ids) != ERR_OK)
        return load_no_memory(load);
    rc = load_read_lines(load);
    for (uint32_t i = 0; i < load->n_ranks && rc == ERR_OK; i++) {
        if (load->vocab.tokens[i].text == NULL) /* reserved ids begin at the number of ranks */
            rc = load_fail(load, ERR_INVALID, "tiktoken.model: rank %u is missing", i);
    }
    for (int i = 0; i < 256 && rc == ERR_OK; i++) {
        char byte[4];

        if (vocab_find(&load->vocab, byte, utf8_encode(vocab_byte_char((uint8_t)i), byte)) < 0)
            rc = load_fail(load, ERR_INVALID, "tiktoken.model: byte %d has no token", i);
    }
    load->facts.flags |= IMAGE_IGNORE_MERGES; /* tiktoken looks up whole pieces first */
    return rc;
}

/* --- merges ------------------------------------------------------------------------------- */

/* The tokens that another token begins with, and those that it ends with. Per direction a token
 * points to the longest other token it begins (ends) with; that token's own pointer gives the next
 * shorter one, and so on. This finds all cuts of all tokens in about the time it takes to read
 * them. */
struct cuts {
    int32_t *begins; /* [n_ranks]: the longest token that this one begins with; -1: none */
    int32_t *ends;   /* [n_ranks]: the longest token that this one ends with; -1: none */
    int32_t begin_of[2 * RANKS_BYTES_MAX + 1]; /* beginnings of one token by length; -1: none */
};

/* A token in a list that is sorted. */
struct ranked {
    const char *text;
    uint32_t len;
    int32_t id;
};

/* Order by bytes from the first on; a token that another begins with comes before it. */
static int load_compare_forward(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->text, y->text, n);

    if (order != 0)
        return order;
    return (x->len > y->len) - (x->len < y->len);
}

/* Order by bytes from the last on; a token that another ends with comes before it. */
static int load_compare_backward(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;

    for (uint32_t i = 1; i <= n; i++) {
        uint8_t p = (uint8_t)x->text[x->len - i], q = (uint8_t)y->text[y->len - i];

        if (p != q)
            return p - q;
    }
    return (x->len > y->len) - (x->len < y->len);
}

static bool load_is_end_of(const struct vocab_token *token, const struct ranked *of)
{
    return token->text_len <= of->len &&
           memcmp(of->text + of->len - token->text_len, token->text, token->text_len) == 0;
}

static bool load_is_begin_of(const struct vocab_token *token, const struct ranked *of)
{
    return token->text_len <= of->len && memcmp(of->text, token->text, token->text_len) == 0;
}

/* Set the pointers from a sorted list. The longest part of a token is the token before it in the
 * list, or else one of that token's own parts. */
static void load_link_tokens(const struct vocab *vocab, const struct ranked *sorted, uint32_t n,
                             bool (*is_part)(const struct vocab_token *, const struct ranked *),
                             int32_t *parts)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t part = i == 0 ? -1 : sorted[i - 1].id;

        while (part >= 0 && !is_part(&vocab->tokens[part], &sorted[i]))
            part = parts[part];
        parts[sorted[i].id] = part;
    }
}

/* Sort the tokens in both directions and set both pointers. */
static int load_link_cuts(struct load *load, struct cuts *cuts)
{
    struct ranked *sorted = mem_zalloc_array(load->n_ranks, sizeof *sorted);

    if (sorted == NULL || cuts->begins == NULL || cuts->ends == NULL) {
        mem_free(sorted);
        return load_no_memory(load);
    }
    /* `sorted` refers to the texts of the vocabulary and is used for both directions. */
    for (uint32_t id = 0; id < load->n_ranks; id++)
        sorted[id] = (struct ranked){load->vocab.tokens[id].text, load->vocab.tokens[id].text_len,
                                     (int32_t)id};
    qsort(sorted, load->n_ranks, sizeof *sorted, load_compare_forward);
    load_link_tokens(&load->vocab, sorted, load->n_ranks, load_is_begin_of, cuts->begins);
    /* Sorted from the last byte on, a text's endings are its neighbours, as its beginnings are in
     * forward order. */
    qsort(sorted, load->n_ranks, sizeof *sorted, load_compare_backward);
    load_link_tokens(&load->vocab, sorted, load->n_ranks, load_is_end_of, cuts->ends);
    mem_free(sorted);
    /* -1 in all places: no beginning of that length is known. */
    memset(cuts->begin_of, 0xff, sizeof cuts->begin_of);
    return ERR_OK;
}

/* Find each way to make token `id` from two others. Returns their number, and enters them as merges
 * once the table exists. */
static size_t load_enter_cuts(struct load *load, struct cuts *cuts, uint32_t id)
{
    const struct vocab_token *tokens = load->vocab.tokens;
    size_t n = 0;

    /* begin_of[len] is the beginning of the token with that length. For each ending, the
     * matching beginning is then found by its length: for "hello" the ending "lo" needs the
     * beginning of 3 bytes, "hel". */
    for (int32_t a = cuts->begins[id]; a >= 0; a = cuts->begins[a])
        cuts->begin_of[tokens[a].text_len] = a;
    for (int32_t b = cuts->ends[id]; b >= 0; b = cuts->ends[b]) {
        int32_t a = cuts->begin_of[tokens[id].text_len - tokens[b].text_len];
        uint64_t pair = bpe_pair(a, b);

        if (a < 0)
            continue;
        n++;
        /* A token of rank r is made with rank r, whichever two tokens it is made from. */
        if (load->merges != NULL)
            load->merges[bpe_slot(load->merges, load->merges_mask, pair)] =
                (struct image_merge){.pair = pair, .rank = id, .id = (int32_t)id};
    }
    /* Only the places that were set are cleared, which is faster than all of them. */
    for (int32_t a = cuts->begins[id]; a >= 0; a = cuts->begins[a])
        cuts->begin_of[tokens[a].text_len] = -1;
    return n;
}

/* Count the merges, make a table of the right size, and enter them. */
static int load_enter_merges(struct load *load, struct cuts *cuts)
{
    struct image_merge *merges;
    size_t n = 0, slots;

    /* The first pass counts: the table does not exist yet, and nothing is entered. */
    for (uint32_t id = 0; id < load->n_ranks; id++)
        n += load_enter_cuts(load, cuts, id);
    slots = pieces_slots(n);
    merges = mem_zalloc_array(slots, sizeof *merges);
    if (merges == NULL)
        return load_no_memory(load);
    for (size_t i = 0; i < slots; i++)
        merges[i].pair = IMAGE_MERGE_FREE;
    load->merges = merges;
    load->merges_mask = slots - 1;
    for (uint32_t id = 0; id < load->n_ranks; id++)
        (void)load_enter_cuts(load, cuts, id);
    return ERR_OK;
}

int load_ranks_merges(struct load *load)
{
    struct cuts cuts = {.begins = mem_zalloc_array(load->n_ranks, sizeof *cuts.begins),
                        .ends = mem_zalloc_array(load->n_ranks, sizeof *cuts.ends)};
    int rc = load_link_cuts(load, &cuts);

    must(load->n_ranks > 0);
    if (rc == ERR_OK)
        rc = load_enter_merges(load, &cuts);
    mem_free(cuts.begins);
    mem_free(cuts.ends);
    return rc;
}
