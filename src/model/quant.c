/* SPDX-License-Identifier: Apache-2.0
 *
 * Data of a file need not be aligned, so every number is copied out of it. */
#include "model/quant.h"

#include <stdio.h>
#include <string.h>

#include "kernels/e4m3.h"

static float float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static float float_of_half(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    float small = (float)fraction * 0x1p-24f;

    if (exponent == 0)
        return sign == 0 ? small : -small;
    return float_of_bits(sign | (exponent == 31 ? 255U : exponent + 112) << 23 | fraction << 13);
}

/* The types differ in the second letter of their names. */
float quant_number(const struct tensor *t, size_t i)
{
    uint32_t bits = 0;

    switch (t->dtype[1]) {
    case '3': memcpy(&bits, t->data + 4 * i, 4); break;             /* F32 */
    case '8': bits = (uint32_t)t->data[i] << 23; break;             /* F8_E8M0: an exponent alone */
    case 'F': memcpy((char *)&bits + 2, t->data + 2 * i, 2); break; /* BF16: the upper half */
    default: memcpy(&bits, t->data + 2 * i, 2); return float_of_half(bits);
    }
    return float_of_bits(bits);
}

static bool is_number(const struct tensor *t)
{
    static const char *const types[] = {"F32", "BF16", "F16", "F8_E8M0"};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(t->dtype, types[i]) == 0)
            return true;
    }
    return false;
}

int quant_scales_of(struct quant_scales *out, const struct tensor *t, int rows, int cols, int block,
                    char *why, size_t why_cap)
{
    int64_t n_rows = t->n_dims > 0 ? t->dims[0] : 1, n_cols = t->n_dims > 1 ? t->dims[1] : 1;

    if (!is_number(t)) {
        (void)snprintf(why, why_cap, "its type %.20s is none of F32, BF16, F16, F8_E8M0", t->dtype);
        return ERR_UNSUPPORTED;
    }
    *out = (struct quant_scales){.t = t, .n_rows = 1, .n_cols = 1};
    if (t->n_dims <= 2 && n_rows == 1 && n_cols == 1)
        return ERR_OK;
    out->n_rows = rows;
    if (block > 0) {
        out->block = block;
        out->n_rows = (rows + block - 1) / block;
        out->n_cols = (cols + block - 1) / block;
    }
    if (t->n_dims <= 2 && n_rows == out->n_rows && n_cols == out->n_cols)
        return ERR_OK;
    (void)snprintf(why, why_cap, "it has %lld x %lld scales, where %d x %d or one are expected",
                   (long long)n_rows, (long long)n_cols, out->n_rows, out->n_cols);
    return ERR_INVALID;
}

float quant_scale(const struct quant_scales *s, int row, int col)
{
    size_t r = s->block > 0 ? (size_t)(row / s->block) : s->n_rows > 1 ? (size_t)row : 0;
    size_t c = s->block > 0 ? (size_t)(col / s->block) : 0;

    return quant_number(s->t, r * (size_t)s->n_cols + c);
}

void quant_widen(float *out, const k_e4m3 *from, const struct quant_scales *s, int first, int n,
                 int cols)
{
    int step = s->block > 0 ? s->block : cols;
    float values[256];

    for (int e = 0; e < 256; e++)
        values[e] = k_e4m3_value((k_e4m3)e);
    for (int row = first; row < first + n; row++) {
        for (int col = 0; col < cols; col += step) {
            float scale = quant_scale(s, row, col);
            int end = cols - col < step ? cols : col + step;

            for (int i = col; i < end; i++)
                *out++ = values[*from++] * scale;
        }
    }
}

void quant_round(float *out, const struct tensor *weight, int first, int n, int cols,
                 k_e4m3 *scratch)
{
    size_t at = (size_t)first * (size_t)cols;

    for (size_t i = 0; i < (size_t)n * (size_t)cols; i++)
        out[i] = quant_number(weight, at + i);
    for (int r = 0; r < n; r++, out += cols) {
        float scale;
        struct k_quantised q = {.data = scratch, .scales = &scale};

        ref_quantise(&q, out, 1, cols);
        for (int c = 0; c < cols; c++)
            out[c] = k_e4m3_value(scratch[c]) * scale;
    }
}
