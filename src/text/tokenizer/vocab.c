/* SPDX-License-Identifier: Apache-2.0
 *
 * An array of tokens by id, and an open-addressing hash table over their texts, at most half full
 * so that probing always ends at a free slot. */
#include "text/tokenizer/vocab.h"

#include <string.h>

#include "base/hash.h"
#include "base/must.h"

/* GPT-2's alphabet: a printable character of Latin-1 stands for itself; the other 68 bytes are
 * numbered in order from U+0100 on. */
uint32_t vocab_byte_char(uint8_t byte)
{
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
        return byte;
    if (byte <= 32)
        return 0x100u + byte;
    if (byte <= 160)
        return 0x100u + 33u + (byte - 127u);
    return 0x143; /* 173, the last of the 68 */
}

/* The inverse of vocab_byte_char(); -1 for characters outside of the alphabet. */
int vocab_char_byte(uint32_t c)
{
    /* Printable bytes are spelled by themselves. The others, in ascending order, are spelled by
     * the characters from U+0100 on: byte 0 by U+0100, the space, 32, by U+0120. */
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 127);
    if (c == 0x143)
        return 173;
    return -1;
}

int vocab_init(struct vocab *vocab, int64_t n_ids)
{
    uint32_t size = 64;

    *vocab = (struct vocab){0};
    if (n_ids < 0 || n_ids > VOCAB_IDS_MAX)
        return ERR_LIMIT;
    while (size < (uint32_t)n_ids * 2)
        size *= 2;
    /* One token more than there are ids, so that the allocation is never empty. */
    vocab->tokens = mem_zalloc_array((size_t)n_ids + 1, sizeof *vocab->tokens);
    vocab->slots = mem_zalloc_array(size, sizeof *vocab->slots);
    vocab->mask = size - 1;
    vocab->n = (int)n_ids;
    if (vocab->tokens == NULL || vocab->slots == NULL) {
        vocab_fini(vocab);
        return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

void vocab_fini(struct vocab *vocab)
{
    mem_free(vocab->tokens);
    mem_free(vocab->slots);
    *vocab = (struct vocab){0};
}

/* The slot that holds a text, or the free slot where it belongs. */
static uint32_t *vocab_find_slot(const struct vocab *vocab, const char *text, size_t len)
{
    uint32_t i = (uint32_t)hash_xxh3(text, len) & vocab->mask;

    /* Linear probing. The table always has a free slot, at which the search for an unknown text
     * ends. */
    for (; vocab->slots[i] != 0; i = (i + 1) & vocab->mask) {
        const struct vocab_token *token = &vocab->tokens[vocab->slots[i] - 1];

        if (token->text_len == len && memcmp(token->text, text, len) == 0)
            break;
    }
    return &vocab->slots[i];
}

int vocab_add(struct vocab *vocab, int64_t id, const char *text, size_t len, bool in_model)
{
    struct vocab_token *token;
    uint32_t *slot;

    must(text != NULL && vocab->tokens != NULL);
    /* Both directions must be unique: an id has one text and a text has one id. */
    if (id < 0 || id >= vocab->n || len > UINT32_MAX || vocab->tokens[id].text != NULL)
        return ERR_INVALID;
    slot = vocab_find_slot(vocab, text, len);
    if (*slot != 0)
        return ERR_INVALID;
    token = &vocab->tokens[id];
    token->text = text;
    token->text_len = (uint32_t)len;
    token->in_model = in_model;
    *slot = (uint32_t)id + 1;
    return ERR_OK;
}

int32_t vocab_find(const struct vocab *vocab, const char *text, size_t len)
{
    must(text != NULL || len == 0);
    if (vocab->slots == NULL)
        return -1;
    return (int32_t)*vocab_find_slot(vocab, text, len) - 1;
}
