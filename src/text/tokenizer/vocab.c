/* SPDX-License-Identifier: Apache-2.0
 *
 * An open-addressing table over an array of tokens, at most half full. */
#include "text/tokenizer/vocab.h"

#include <string.h>

#include "base/hash.h"

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

int vocab_char_byte(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 127);
    return c == 0x143 ? 173 : -1;
}

int vocab_init(struct vocab *v, int64_t n_ids)
{
    uint32_t size = 64;

    *v = (struct vocab){0};
    if (n_ids < 0 || n_ids > VOCAB_IDS_MAX)
        return ERR_LIMIT;
    while (size < (uint32_t)n_ids * 2)
        size *= 2;
    v->tokens = mem_zalloc_array((size_t)n_ids + 1, sizeof *v->tokens);
    v->slots = mem_zalloc_array(size, sizeof *v->slots);
    v->mask = size - 1;
    v->n = (int)n_ids;
    if (v->tokens == NULL || v->slots == NULL) {
        vocab_fini(v);
        return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

void vocab_fini(struct vocab *v)
{
    mem_free(v->tokens);
    mem_free(v->slots);
    *v = (struct vocab){0};
}

static uint32_t *slot_of(const struct vocab *v, const char *text, size_t len)
{
    uint32_t i = (uint32_t)hash_xxh3(text, len) & v->mask;

    for (; v->slots[i] != 0; i = (i + 1) & v->mask) {
        const struct vocab_token *t = &v->tokens[v->slots[i] - 1];

        if (t->text_len == len && memcmp(t->text, text, len) == 0)
            break;
    }
    return &v->slots[i];
}

int vocab_add(struct vocab *v, int64_t id, const char *text, size_t len, bool in_model)
{
    struct vocab_token *t;
    uint32_t *slot;

    if (id < 0 || id >= v->n || len > UINT32_MAX || v->tokens[id].text != NULL)
        return ERR_INVALID;
    slot = slot_of(v, text, len);
    if (*slot != 0)
        return ERR_INVALID;
    t = &v->tokens[id];
    t->text = text;
    t->text_len = (uint32_t)len;
    t->in_model = in_model;
    *slot = (uint32_t)id + 1;
    return ERR_OK;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len)
{
    return v->slots == NULL ? -1 : (int32_t)*slot_of(v, text, len) - 1;
}
