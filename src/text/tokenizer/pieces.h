/* SPDX-License-Identifier: Apache-2.0
 *
 * The table from a piece of text to its token, which is read for every word.
 *
 * Short pieces (up to IMAGE_PIECE_LEN bytes, nearly all) are stored inside the table, so one cache
 * miss decides a look-up. Longer pieces are compared with their token's text. */
#ifndef QUIRE_TEXT_TOKENIZER_PIECES_H
#define QUIRE_TEXT_TOKENIZER_PIECES_H

#include <string.h>

#include "text/tokenizer/image.h"

struct piece_key {
    uint64_t low;
    uint64_t high; /* the last byte is the length */
};

static inline uint64_t piece_load(const char *bytes, size_t n)
{
    uint64_t word = 0;

    memcpy(&word, bytes, n);
    return word;
}

/* The key of a piece of 1 .. IMAGE_PIECE_LEN bytes. Reads no byte after the piece. */
static inline struct piece_key piece_key(const char *bytes, size_t len)
{
    struct piece_key key = {.high = (uint64_t)len << 56};

    if (len >= 8) { /* two loads, which may overlap */
        key.low = piece_load(bytes, 8);
        if (len > 8)
            key.high |= piece_load(bytes + len - 8, 8) >> (8 * (16 - len));
    } else if (len >= 4) {
        key.low = piece_load(bytes, 4) | piece_load(bytes + len - 4, 4) << (8 * (len - 4));
    } else {
        key.low = (uint64_t)(unsigned char)bytes[0] |
                  (uint64_t)(unsigned char)bytes[len / 2] << (8 * (len / 2)) |
                  (uint64_t)(unsigned char)bytes[len - 1] << (8 * (len - 1));
    }
    return key;
}

static inline size_t piece_hash(struct piece_key key)
{
    __extension__ typedef unsigned __int128 wide;
    wide m = (wide)(key.low ^ 0x9e3779b97f4a7c15u) * (key.high ^ 0xd6e8feb86659fd93u);

    return (size_t)((uint64_t)(m >> 64) ^ (uint64_t)m);
}

/* Number of slots for n entries: a power of two, at most two thirds used. */
static inline size_t pieces_slots(size_t n)
{
    size_t slots = 8;

    while (slots < n + n / 2 + 1)
        slots *= 2;
    return slots;
}

/* The slot of a key in a table of mask + 1 slots: the slot that holds it, or a free one. */
static inline const struct image_piece *piece_slot(const struct image_piece *table, size_t mask,
                                                   struct piece_key key)
{
    size_t i = piece_hash(key) & mask;

    while (table[i].id != -1 && (table[i].key[0] != key.low || table[i].key[1] != key.high))
        i = (i + 1) & mask;
    return &table[i];
}

#endif
