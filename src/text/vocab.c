/* SPDX-License-Identifier: Apache-2.0
 *
 * Two open-addressing tables over one array of tokens, at most half full. */
#include "text/vocab.h"

#include <string.h>

#include "base/hash.h"
#include "base/utf8.h"

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
    v->tokens = mem_zalloc_array((size_t)n_ids, sizeof *v->tokens);
    v->by_text.slots = mem_zalloc_array(size, sizeof *v->by_text.slots);
    v->by_bytes.slots = mem_zalloc_array(size, sizeof *v->by_bytes.slots);
    v->by_text.mask = size - 1;
    v->by_bytes.mask = size - 1;
    v->n = (int)n_ids;
    if (v->tokens == NULL || v->by_text.slots == NULL || v->by_bytes.slots == NULL) {
        vocab_fini(v);
        return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

void vocab_fini(struct vocab *v)
{
    mem_free(v->tokens);
    mem_free(v->by_text.slots);
    mem_free(v->by_bytes.slots);
    arena_reset(&v->arena);
    *v = (struct vocab){0};
}

static uint32_t *text_slot(const struct vocab *v, const char *text, size_t len)
{
    uint32_t i = (uint32_t)hash_xxh3(text, len) & v->by_text.mask;

    for (; v->by_text.slots[i] != 0; i = (i + 1) & v->by_text.mask) {
        const struct vocab_token *t = &v->tokens[v->by_text.slots[i] - 1];

        if (t->text_len == len && memcmp(t->text, text, len) == 0)
            break;
    }
    return &v->by_text.slots[i];
}

static uint32_t *bytes_slot(const struct vocab *v, const char *bytes, size_t len)
{
    uint32_t i = (uint32_t)hash_xxh3(bytes, len) & v->by_bytes.mask;

    for (; v->by_bytes.slots[i] != 0; i = (i + 1) & v->by_bytes.mask) {
        const struct vocab_token *t = &v->tokens[v->by_bytes.slots[i] - 1];

        if (t->bytes_len == len && memcmp(t->bytes, bytes, len) == 0)
            break;
    }
    return &v->by_bytes.slots[i];
}

/* The bytes that a text spells, into out (text_len is room enough); false when it does not. */
static bool spell(const char *text, size_t len, char *out, size_t *out_len)
{
    size_t i = 0;
    size_t n = 0;

    while (i < len) {
        int byte = vocab_char_byte(utf8_decode(text + i));

        if (byte < 0)
            return false;
        out[n++] = (char)byte;
        i += utf8_sequence(text + i, len - i);
    }
    *out_len = n;
    return true;
}

int vocab_add(struct vocab *v, int64_t id, const char *text, size_t len, bool in_model)
{
    struct vocab_token *t;
    uint32_t *slot;
    size_t n = 0;
    char *bytes;

    if (id < 0 || id >= v->n || len > UINT32_MAX || v->tokens[id].text != NULL)
        return ERR_INVALID;
    slot = text_slot(v, text, len);
    if (*slot != 0)
        return ERR_INVALID;
    t = &v->tokens[id];
    t->text = arena_strndup(&v->arena, text, len);
    bytes = arena_alloc(&v->arena, len + 1);
    if (t->text == NULL || bytes == NULL) {
        t->text = NULL;
        return ERR_NO_MEMORY;
    }
    t->text_len = (uint32_t)len;
    t->in_model = in_model;
    t->spelled = spell(text, len, bytes, &n);
    if (!t->spelled) {
        memcpy(bytes, text, len);
        n = len;
    }
    bytes[n] = '\0';
    t->bytes = bytes;
    t->bytes_len = (uint32_t)n;
    *slot = (uint32_t)id + 1;
    if (in_model && t->spelled)
        *bytes_slot(v, bytes, n) = (uint32_t)id + 1;
    return ERR_OK;
}

int32_t vocab_find_text(const struct vocab *v, const char *text, size_t len)
{
    return (int32_t)*text_slot(v, text, len) - 1;
}

int32_t vocab_find_bytes(const struct vocab *v, const char *bytes, size_t len)
{
    return (int32_t)*bytes_slot(v, bytes, len) - 1;
}
