/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of bitsandbytes: 4 bits by a table (nf4, fp4), and int8.
 *
 * In 4 bits a matrix is one run of elements, two in a byte, the high half first. Each block of
 * (usually) 64 has a scale, absmax; the scales may be quantised themselves, to places of a second
 * table with a scale for each 256 and an offset:
 *
 *   weight = quant_map[element] * absmax[i / 64]
 *   absmax[j] = nested_quant_map[byte j] * nested_absmax[j / 256] + nested_offset
 *
 * The sizes are JSON in a tensor of bytes. int8 has a largest magnitude per output (SCB):
 *
 *   weight = element * SCB / 127
 *
 * Source: bitsandbytes' functional.py, QuantState. */
#include <string.h>

#include "base/json.h"
#include "model/quant_parts.h"

enum { ABSMAX, MAP, STATE_NF4, STATE_FP4, NESTED_ABSMAX, NESTED_MAP };
enum { SCB };

#define NESTED_BLOCK 256
#define STATE_BYTES  ((size_t)64 << 10)

/* Does t have n float32 numbers, in any shape? */
static bool bnb_is_floats(const struct tensor *t, size_t n)
{
    return t != NULL && strcmp(t->dtype, "F32") == 0 && t->bytes == 4 * n;
}

/* {"quant_type": "nf4", "blocksize": 64, "shape": [4096, 4096], "nested_blocksize": 256,
 * "nested_offset": 0.04, ...} */
static int bnb_read_state(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t =
        p->beside[STATE_NF4] != NULL ? p->beside[STATE_NF4] : p->beside[STATE_FP4];
    struct arena arena = {.limit_bytes = (size_t)1 << 20};
    const struct json *state, *offset;
    int rc = ERR_OK;

    if (t == NULL)
        return quant_fail(s, ERR_NOT_FOUND, p->data, "has no weight.quant_state beside it");
    if (t->bytes > STATE_BYTES ||
        json_parse(&state, &arena, (const char *)t->data, t->bytes, NULL, 0) != ERR_OK) {
        arena_reset(&arena);
        return quant_fail(s, ERR_CORRUPT, t, "is not JSON");
    }
    p->group = (int)json_get_int(state, "blocksize", 64);
    offset = json_get(state, "nested_offset");
    if (json_is_number(offset))
        p->offset = (float)json_real(offset);
    if (p->group < 2 || p->group > 1 << 16 ||
        json_get_int(state, "nested_blocksize", NESTED_BLOCK) != NESTED_BLOCK)
        rc = quant_fail(s, ERR_UNSUPPORTED, t, "has blocks of sizes that are not read");
    arena_reset(&arena);
    return rc;
}

/* weight U8 [outputs * inputs / 2][1], absmax F32 or U8 [blocks] */
int quant_check_bnb4(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *absmax = p->beside[ABSMAX];
    size_t n = (size_t)s->rows * (size_t)s->cols, n_blocks;
    int rc = bnb_read_state(s, p);

    if (rc != ERR_OK)
        return rc;
    n_blocks = (n + (size_t)p->group - 1) / (size_t)p->group;
    p->bits = 4;
    if (s->cols % 2 != 0 || p->data->bytes != n / 2)
        return quant_fail(s, ERR_INVALID, p->data, "has %zu bytes; config.json says %d x %d / 2",
                          p->data->bytes, s->rows, s->cols);
    if (!bnb_is_floats(p->beside[MAP], 16))
        return quant_fail(s, ERR_INVALID, p->beside[MAP], "must be 16 numbers of F32");
    if (bnb_is_floats(absmax, n_blocks))
        return ERR_OK;
    if (strcmp(absmax->dtype, "U8") != 0 || absmax->bytes != n_blocks)
        return quant_fail(s, ERR_INVALID, absmax, "must be %zu numbers of F32 or U8", n_blocks);
    if (bnb_is_floats(p->beside[NESTED_ABSMAX], (n_blocks + NESTED_BLOCK - 1) / NESTED_BLOCK) &&
        bnb_is_floats(p->beside[NESTED_MAP], 256))
        return ERR_OK;
    return quant_fail(s, ERR_INVALID, absmax, "is quantised, and its own scales do not fit");
}

static float bnb_scale(const struct quant_part *p, size_t block)
{
    const struct tensor *absmax = p->beside[ABSMAX];
    float product;

    if (absmax->dtype[0] == 'F')
        return quant_number(absmax, block);
    product = quant_number(p->beside[NESTED_MAP], absmax->data[block]) *
              quant_number(p->beside[NESTED_ABSMAX], block / NESTED_BLOCK);
    return product + p->offset;
}

void quant_values_bnb4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n)
{
    size_t at = (size_t)first * (size_t)p->cols, end = at + (size_t)n * (size_t)p->cols;
    size_t group = (size_t)p->group;
    float map[16], scale = bnb_scale(p, at / group);

    for (size_t i = 0; i < 16; i++)
        map[i] = quant_number(p->beside[MAP], i);
    for (; at < end; at++) {
        int byte = *bytes, q = at % 2 == 0 ? byte >> 4 : byte & 15;

        if (at % group == 0)
            scale = bnb_scale(p, at / group);
        *out++ = map[q] * scale;
        bytes += at % 2;
    }
}

/* weight I8 [outputs][inputs], SCB F32 [outputs] */
int quant_check_bnb8(const struct quant_search *s, struct quant_part *p)
{
    int rc = quant_expect(s, p->data, "I8", s->rows, s->cols);

    p->bits = 8;
    if (rc == ERR_OK && !bnb_is_floats(p->beside[SCB], (size_t)s->rows))
        rc = quant_fail(s, ERR_INVALID, p->beside[SCB], "must be %d numbers of F32", s->rows);
    return rc;
}

void quant_values_bnb8(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n)
{
    for (int r = 0; r < n; r++) {
        float most = quant_number(p->beside[SCB], (size_t)(first + r));

        for (int k = 0; k < p->cols; k++) {
            float product = (float)(int8_t)*bytes++ * most;

            *out++ = product * 7.874015718698502e-3f; /* 1 / 127, as bitsandbytes has it */
        }
    }
}
