/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading: the merges of a SentencePiece model, which has a score per token in place of a list of
 * merges.
 *
 * SentencePiece joins, of all neighbours that are a token together, those with the highest score of
 * that token, the leftmost among equals. So each way to cut a token into two others is a merge, and
 * its rank is the place of the token's score; merges of equal scores share a rank. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pieces.h"
#include "text/tokenizer/tokenizer_parts.h"

/* A merge before it has a rank. */
struct scored {
    double score; /* of the token that it makes */
    int32_t left, right, id;
};

struct scored_list {
    struct scored *items; /* owned */
    size_t n, cap;
};

static int scored_add(struct scored_list *list, const struct scored *item)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 1024 : 2 * list->cap;
        struct scored *items = mem_realloc(list->items, cap * sizeof *items);

        if (items == NULL)
            return ERR_NO_MEMORY;
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = *item;
    return ERR_OK;
}

/* Highest score first; equal ones by their tokens, so that builds are reproducible. */
static int scored_compare(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return x->left < y->left ? -1 : x->left > y->left;
}

/* Cut a token before each of its characters but the first. */
static int load_cut_token(struct load *load, struct scored_list *list, int32_t id, double score)
{
    const struct vocab_token *token = &load->vocab.tokens[id];
    int rc = ERR_OK;

    for (size_t at = 1; at < token->text_len && rc == ERR_OK; at++) {
        struct scored item = {.score = score, .id = id};

        if ((token->text[at] & 0xc0) == 0x80) /* inside of a character */
            continue;
        item.left = vocab_find(&load->vocab, token->text, at);
        item.right = vocab_find(&load->vocab, token->text + at, token->text_len - at);
        if (item.left >= 0 && item.right >= 0)
            rc = scored_add(list, &item);
    }
    return rc;
}

/* Enter the sorted merges into the table. */
static void load_rank_scored(struct load *load, const struct scored_list *list)
{
    uint32_t rank = 0;

    for (size_t i = 0; i < list->n; i++) {
        const struct scored *item = &list->items[i];
        uint64_t pair = bpe_pair(item->left, item->right);

        if (i > 0 && item->score < list->items[i - 1].score)
            rank++;
        load->merges[bpe_slot(load->merges, load->merges_mask, pair)] =
            (struct image_merge){.pair = pair, .rank = rank, .id = item->id};
    }
}

int load_scored_merges(struct load *load, const struct json *scores)
{
    struct scored_list list = {.n = 0};
    size_t slots;
    int rc = ERR_OK;

    must(load->vocab.tokens != NULL);
    for (uint32_t id = 0; id < scores->n && (int)id < load->vocab.n && rc == ERR_OK; id++) {
        if (json_is_number(&scores->items[id]) && load->vocab.tokens[id].text != NULL)
            rc = load_cut_token(load, &list, (int32_t)id, json_real(&scores->items[id]));
    }
    if (rc == ERR_OK && list.n > 0)
        qsort(list.items, list.n, sizeof list.items[0], scored_compare);
    slots = pieces_slots(list.n);
    if (rc == ERR_OK && (load->merges = mem_zalloc_array(slots, sizeof *load->merges)) == NULL)
        rc = ERR_NO_MEMORY;
    if (rc == ERR_OK) {
        load->merges_mask = slots - 1;
        for (size_t i = 0; i < slots; i++)
            load->merges[i].pair = IMAGE_MERGE_FREE;
        load_rank_scored(load, &list);
    }
    mem_free(list.items);
    if (rc == ERR_OK)
        return rc;
    return load_no_memory(load);
}
