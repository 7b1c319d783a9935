/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary of any size as models have them, made of generated pieces: all bytes, words of one
 * to four syllables with and without a space before them and in three cases, numbers of up to
 * three digits, Cyrillic and Chinese, runs of spaces and signs, pieces of JSON and of programs.
 * Nothing is drawn from a clock or a file, so it is the same everywhere. tests/integration/twin.py
 * asks `judge` for the same pieces.
 *
 * Most pieces are the start of others, as where pieces are made by merges. 128,000 of them make a
 * trie of more than 100,000 inner nodes: as many as the vocabularies of models in use have. */
#ifndef QUIRE_TESTS_GRAMMAR_PIECES_H
#define QUIRE_TESTS_GRAMMAR_PIECES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "grammar/trie.h"

#define PIECES_SLOTS (1u << 20) /* of the table that keeps pieces apart; a power of two */

struct pieces {
    struct arena arena;
    struct trie_token *tokens; /* [cap + 1]; the last, which spells nothing, ends the text */
    uint32_t n, cap;
    uint32_t *slots; /* piece + 1; 0: free */
    uint32_t draws;
};

static uint32_t pieces_slot(const struct pieces *p, const char *bytes, size_t len)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    h = (h ^ h >> 15) & (PIECES_SLOTS - 1);
    while (p->slots[h] != 0 && (p->tokens[p->slots[h] - 1].len != len ||
                                memcmp(p->tokens[p->slots[h] - 1].bytes, bytes, len) != 0))
        h = (h + 1) & (PIECES_SLOTS - 1);
    return h;
}

__attribute__((unused)) static void pieces_add(struct pieces *p, const char *bytes, size_t len)
{
    uint32_t h = pieces_slot(p, bytes, len);

    if (p->n == p->cap || len == 0 || len > TRIE_TOKEN_MAX || p->slots[h] != 0)
        return;
    p->tokens[p->n].bytes = arena_strndup(&p->arena, bytes, len);
    p->tokens[p->n].len = len;
    p->slots[h] = ++p->n;
}

static void pieces_add_text(struct pieces *p, const char *text)
{
    pieces_add(p, text, strlen(text));
}

static uint32_t pieces_draw(struct pieces *p, uint32_t below)
{
    p->draws = p->draws * 1664525u + 1013904223u;
    return (p->draws >> 8) % below;
}

/* A syllable; the number of its bytes. */
static size_t pieces_syllable(struct pieces *p, char *to)
{
    static const char *const onsets[] = {"b",  "c",  "d",  "f", "g",  "h",  "j", "k", "l",  "m",
                                         "n",  "p",  "r",  "s", "t",  "v",  "w", "z", "st", "tr",
                                         "pl", "ch", "sh", "",  "br", "cl", "s", "t", "gr", "th"};
    static const char *const vowels[] = {"a", "e", "i", "o", "u", "ea", "io", "y", "e", "a", "ou"};
    static const char *const codas[] = {"", "", "", "n", "r", "s", "t", "l", "nd", "ng", "m", "ck"};

    return (size_t)sprintf(to, "%s%s%s", onsets[pieces_draw(p, 30)], vowels[pieces_draw(p, 11)],
                           codas[pieces_draw(p, 12)]);
}

static void pieces_word(struct pieces *p)
{
    uint32_t n = 1 + pieces_draw(p, 2) + pieces_draw(p, 3), shape = pieces_draw(p, 8);
    char word[64] = " ";
    size_t len = 1;

    for (uint32_t i = 0; i < n; i++)
        len += pieces_syllable(p, word + len);
    if (shape == 0)
        word[1] = (char)(word[1] & ~0x20);
    for (size_t i = 1; i < len && shape == 1; i++)
        word[i] = (char)(word[i] & ~0x20);
    for (size_t at = shape < 5 ? 0 : 1, n_bytes = 2; n_bytes <= len - at; n_bytes++)
        if (n_bytes == len - at || pieces_draw(p, 3) > 0)
            pieces_add(p, word + at, n_bytes);
}

/* Characters of two or three bytes each, with some that end inside of one. */
static void pieces_foreign(struct pieces *p, bool chinese)
{
    uint32_t n = 1 + pieces_draw(p, chinese ? 4 : 7);
    char word[64] = " ";
    size_t len = pieces_draw(p, 2);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = chinese ? 0x4e00 + pieces_draw(p, 3000) : 0x430 + pieces_draw(p, 32);

        if (chinese)
            word[len++] = (char)(0xe0 | c >> 12);
        word[len++] = (char)(chinese ? 0x80 | (c >> 6 & 63) : 0xc0 | c >> 6);
        word[len++] = (char)(0x80 | (c & 63));
    }
    for (size_t n_bytes = 3; n_bytes <= len; n_bytes += chinese ? 3 : 2)
        pieces_add(p, word, n_bytes);
    pieces_add(p, word, len - (pieces_draw(p, 16) == 0));
}

static void pieces_signs(struct pieces *p)
{
    static const char signs[] = "{}[]():;,.\"'`<>=+-*/\\|&^%$#@!?_~\n\t ";
    static const char *const common[] = {
        "\": ", "\":\"", "\", \"", "\"},{\"", "\"},\n", "\"]",  "]}",   "}}",    "{}",  "[]",
        "</",   "/>",    "\":",    "\",\n",   " \"",    "\\n",  "\\\"", "\\u00", "://", "...",
        "**",   "```",   "true",   "false",   "null",   " {\n", "[{\"", "();\n", "->",  "=>",
        "0.",   "20",    "-01",    "T00",     "<|",     "|>",   "e+"};
    char run[100];

    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        pieces_add_text(p, common[i]);
    for (size_t i = 0; i < sizeof signs - 1; i++)
        for (size_t len = 2; len < 80; len += len < 16 ? 1 : 8) {
            memset(run, signs[i], len);
            pieces_add(p, run, len);
        }
    for (int i = 0; i < 2000; i++) {
        size_t len = 2 + pieces_draw(p, 4);

        for (size_t k = 0; k < len; k++)
            run[k] = signs[pieces_draw(p, sizeof signs - 1)];
        pieces_add(p, run, len);
    }
    for (int i = 0; i < 1000; i++) {
        (void)sprintf(run, "%d", i);
        pieces_add_text(p, run);
    }
}

/* The bytes, and room for cap pieces in all. */
__attribute__((unused)) static void pieces_begin(struct pieces *p, uint32_t cap)
{
    *p = (struct pieces){.cap = cap, .draws = 20260101};
    p->tokens = calloc((size_t)cap + 1, sizeof *p->tokens);
    p->slots = calloc(PIECES_SLOTS, sizeof *p->slots);
    must(p->tokens != NULL && p->slots != NULL);
    for (int byte = 0; byte < 256; byte++) {
        char one = (char)byte;

        pieces_add(p, &one, 1);
    }
}

/* Generated ones until there are as many as there is room for. */
__attribute__((unused)) static void pieces_fill(struct pieces *p)
{
    pieces_signs(p);
    while (p->n < p->cap) {
        uint32_t kind = pieces_draw(p, 10);

        if (kind < 7)
            pieces_word(p);
        else
            pieces_foreign(p, kind == 9);
    }
}

__attribute__((unused)) static void pieces_end(struct pieces *p)
{
    arena_reset(&p->arena);
    free(p->tokens);
    free(p->slots);
}

/* The image; the end token is the one behind the pieces. */
__attribute__((unused)) static const struct token_trie *pieces_image(const struct pieces *p,
                                                                     struct buf *image)
{
    int32_t end = (int32_t)p->n;

    must(trie_build(p->tokens, p->n + 1, &end, 1, image) == ERR_OK);
    must(trie_check(image->bytes, image->len) == ERR_OK);
    return (const struct token_trie *)(const void *)image->bytes;
}

/* The longest piece that a text begins with; its length. */
__attribute__((unused)) static size_t pieces_longest(const struct pieces *p, const char *text,
                                                     size_t len, int32_t *id)
{
    for (size_t n = len < 64 ? len : 64; n > 0; n--) {
        uint32_t h = pieces_slot(p, text, n);

        if (p->slots[h] != 0) {
            *id = (int32_t)p->slots[h] - 1;
            return n;
        }
    }
    must(!"every byte is a piece");
    return 1;
}

#endif
