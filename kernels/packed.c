/* SPDX-License-Identifier: Apache-2.0
 *
 * The arrangement of packed weights: see the header. */
#include "kernels/packed.h"

#include <string.h>

#define TILE_COLS 64 /* whose codes stand together */
#define N_LANES   32
#define WORD      16 /* bytes that a lane reads at once */

/* The place of a code: byte of the record, and the lowest bit in that byte. */
struct place {
    uint16_t byte;
    uint16_t shift;
};

static size_t codes_bytes(const struct k_packing *p)
{
    return (size_t)(K_PACKED_ROWS * K_PACKED_COLS * p->bits / 8);
}

static size_t n_scales(const struct k_packing *p)
{
    return (size_t)(K_PACKED_ROWS * (K_PACKED_COLS / p->group));
}

bool k_packing_takes(const struct k_packing *p, int n_in)
{
    return (p->bits == 4 || p->bits == 8) &&
           (p->group == 16 || p->group == 32 || p->group == 64 || p->group == 128) &&
           (p->scale_bytes == 1 || p->scale_bytes == 2) && p->zero_bytes >= 0 &&
           p->zero_bytes <= 2 && n_in > 0 && n_in % K_PACKED_COLS == 0 &&
           (!p->is_float ||
            (p->bits == 4 && p->in_order && p->scale_bytes == 1 && p->zero_bytes == 0));
}

size_t k_packed_record_bytes(const struct k_packing *p)
{
    return codes_bytes(p) + n_scales(p) * (size_t)(p->scale_bytes + p->zero_bytes);
}

size_t k_packed_strip_bytes(const struct k_packing *p, int n_in)
{
    return (size_t)(n_in / K_PACKED_COLS) * k_packed_record_bytes(p);
}

size_t k_packed_bytes(const struct k_packing *p, int n_out, int n_in)
{
    size_t n_strips = ((size_t)n_out + K_PACKED_ROWS - 1) / K_PACKED_ROWS;

    return n_strips * k_packed_strip_bytes(p, n_in);
}

/* Register r of a fragment has row g + 8 (r % 2) and the columns 2 (r / 2) and 2 (r / 2) + 1 of
 * its four, counted in the order of the header. Its two codes are 16 bits apart; the codes of two
 * registers lie between each other, so that a register is a shift and a mask of its 32 bits. */
static struct place place_of(const struct k_packing *p, int row, int col)
{
    int tile = col / TILE_COLS, in_tile = col % TILE_COLS;
    int lane = row % 8 * 4 + in_tile % 32 / 8;
    int step = in_tile / 32 * 2 + in_tile % 8 / 4;
    int reg = in_tile % 4 / 2 * 2 + row / 8;
    int bit = in_tile % 2 * 16, bits32, words = p->bits / 4; /* words of a lane in a tile */

    if (p->in_order) {
        lane = row % 8 * 4 + in_tile % 8 / 2;
        step = in_tile / 16;
        reg = in_tile % 16 / 8 * 2 + row / 8;
    }
    if (p->bits == 4) {
        bits32 = step;
        bit += 4 * reg;
    } else {
        bits32 = 2 * step + reg / 2;
        bit += reg % 2 * 8;
    }
    return (struct place){(uint16_t)(((tile * words + bits32 / 4) * N_LANES + lane) * WORD +
                                     bits32 % 4 * 4 + bit / 8),
                          (uint16_t)(bit % 8)};
}

/* The places of all codes of a record [16][128], which are the same in each. */
static void find_places(struct place *places, const struct k_packing *p)
{
    for (int i = 0; i < K_PACKED_ROWS * K_PACKED_COLS; i++)
        places[i] = place_of(p, i / K_PACKED_COLS, i % K_PACKED_COLS);
}

/* Scales or zeros of a record: `bytes` of each, and the rows [stride] of their array, in which the
 * record's begin at column `first`. */
struct numbers {
    int bytes, n_groups, stride, first;
    bool by_lanes; /* in the order of floats */
};

static struct numbers numbers_of(const struct k_packing *p, int bytes, int n_in, int record)
{
    int n_groups = K_PACKED_COLS / p->group;

    return (struct numbers){bytes, n_groups, n_in / p->group, record * n_groups, p->is_float};
}

/* The byte of a number in the record's array, and in that of the rows. */
static size_t number_in_record(const struct numbers *n, int group, int row)
{
    int at =
        n->by_lanes ? (row % 8 * n->n_groups + group) * 2 + row / 8 : group * K_PACKED_ROWS + row;

    return (size_t)(at * n->bytes);
}

static size_t number_in_row(const struct numbers *n, int group, int row)
{
    return ((size_t)row * (size_t)n->stride + (size_t)(n->first + group)) * (size_t)n->bytes;
}

static void pack_numbers(uint8_t *to, const uint8_t *from, const struct numbers *n, int n_rows)
{
    for (int group = 0; group < n->n_groups; group++)
        for (int row = 0; row < n_rows; row++)
            memcpy(to + number_in_record(n, group, row), from + number_in_row(n, group, row),
                   (size_t)n->bytes);
}

static void unpack_numbers(uint8_t *to, const uint8_t *from, const struct numbers *n, int n_rows)
{
    for (int group = 0; group < n->n_groups; group++)
        for (int row = 0; row < n_rows; row++)
            memcpy(to + number_in_row(n, group, row), from + number_in_record(n, group, row),
                   (size_t)n->bytes);
}

/* The words of a record's codes in the order of floats, or back in that of integers. */
static void turn_words(uint8_t *to, const uint8_t *from, const struct k_packing *p,
                       uint32_t (*turn)(uint32_t))
{
    for (size_t i = 0; i < codes_bytes(p); i += 4) {
        uint32_t word;

        memcpy(&word, from + i, 4);
        word = turn(word);
        memcpy(to + i, &word, 4);
    }
}

void k_pack_strip(uint8_t *strip, const struct k_packing *p, const struct k_unpacked *from,
                  int n_rows, int n_in)
{
    size_t record_bytes = k_packed_record_bytes(p);
    struct place places[K_PACKED_ROWS * K_PACKED_COLS];
    unsigned mask = (1U << p->bits) - 1;

    find_places(places, p);
    memset(strip, 0, k_packed_strip_bytes(p, n_in));
    for (int record = 0; record < n_in / K_PACKED_COLS; record++) {
        uint8_t *to = strip + (size_t)record * record_bytes, *scales = to + codes_bytes(p);
        const struct numbers of_scales = numbers_of(p, p->scale_bytes, n_in, record);
        const struct numbers of_zeros = numbers_of(p, p->zero_bytes, n_in, record);

        for (int row = 0; row < n_rows; row++) {
            const uint8_t *codes =
                from->codes + (size_t)row * (size_t)n_in + (size_t)record * K_PACKED_COLS;

            for (int col = 0; col < K_PACKED_COLS; col++) {
                struct place at = places[row * K_PACKED_COLS + col];

                to[at.byte] = (uint8_t)(to[at.byte] | (codes[col] & mask) << at.shift);
            }
        }
        if (p->is_float)
            turn_words(to, to, p, k_float4_spread);
        pack_numbers(scales, from->scales, &of_scales, n_rows);
        if (p->zero_bytes > 0)
            pack_numbers(scales + n_scales(p) * (size_t)p->scale_bytes, from->zeros, &of_zeros,
                         n_rows);
    }
}

void k_unpack_strip(const struct k_unpacked *to, const struct k_packing *p, const uint8_t *strip,
                    int n_rows, int n_in)
{
    size_t record_bytes = k_packed_record_bytes(p);
    unsigned mask = (1U << p->bits) - 1;
    uint8_t turned[K_PACKED_ROWS * K_PACKED_COLS]; /* of 4 or 8 bits each */

    for (int record = 0; record < n_in / K_PACKED_COLS; record++) {
        const uint8_t *from = strip + (size_t)record * record_bytes;
        const uint8_t *scales = from + codes_bytes(p), *words = from;
        const struct numbers of_scales = numbers_of(p, p->scale_bytes, n_in, record);
        const struct numbers of_zeros = numbers_of(p, p->zero_bytes, n_in, record);

        if (p->is_float) {
            turn_words(turned, from, p, k_float4_gather);
            words = turned;
        }
        for (int row = 0; row < n_rows; row++) {
            uint8_t *codes =
                to->codes + (size_t)row * (size_t)n_in + (size_t)record * K_PACKED_COLS;

            for (int col = 0; col < K_PACKED_COLS; col++) {
                struct place at = place_of(p, row, col);

                codes[col] = (uint8_t)((unsigned)words[at.byte] >> at.shift & mask);
            }
        }
        unpack_numbers(to->scales, scales, &of_scales, n_rows);
        if (p->zero_bytes > 0)
            unpack_numbers(to->zeros, scales + n_scales(p) * (size_t)p->scale_bytes, &of_zeros,
                           n_rows);
    }
}
