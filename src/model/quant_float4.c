/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that are floats of 4 bits (e2m1), two in a byte, the low half first: NVFP4 as
 * compressed-tensors and as ModelOpt write it, and MXFP4; and floats of 8 bits (e4m3) for inputs
 * that are not rounded, or with scales that no device knows: MXFP8, groups within a row.
 *
 *   NVFP4: e2m1 * (e4m3 scale of 16 / global scale), ModelOpt: times its global scale
 *   MXFP4: e2m1 * 2^(exponent of 32 - 127)
 *   e4m3:  e4m3 * scale of a group of rows and columns */
#include <string.h>

#include "kernels/e4m3.h"
#include "model/quant_parts.h"

enum { SCALES, GLOBAL };

static const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Data U8 [outputs][inputs / 2] and scales of one byte [outputs][inputs / group]. */
static int float4_check(const struct quant_search *s, struct quant_part *p, int group)
{
    const struct tensor *scales = p->beside[SCALES];
    int rc = quant_expect(s, p->data, "U8", s->rows, s->cols / 2);

    if (rc == ERR_OK && s->cols % group != 0)
        rc = quant_fail(s, ERR_INVALID, p->data, "needs %d n inputs", group);
    p->bits = 4;
    p->group = group;
    p->n_groups = s->cols / group;
    if (rc == ERR_OK)
        rc = quant_expect(s, scales, NULL, s->rows, p->n_groups);
    return rc;
}

int quant_check_nvfp4(const struct quant_search *s, struct quant_part *p)
{
    float global;
    int rc = float4_check(s, p, 16);

    if (rc == ERR_OK && strcmp(p->beside[SCALES]->dtype, "F8_E4M3") != 0)
        rc = quant_fail(s, ERR_UNSUPPORTED, p->beside[SCALES], "has type %.20s; F8_E4M3 is read",
                        p->beside[SCALES]->dtype);
    if (rc == ERR_OK && quant_single(&global, p->beside[GLOBAL]) != ERR_OK)
        rc = quant_fail(s, ERR_INVALID, p->beside[GLOBAL], "must be one number");
    return rc;
}

int quant_check_mxfp4(const struct quant_search *s, struct quant_part *p)
{
    int rc = float4_check(s, p, 32);

    if (rc == ERR_OK && strcmp(p->beside[SCALES]->dtype, "U8") != 0 &&
        strcmp(p->beside[SCALES]->dtype, "F8_E8M0") != 0)
        rc = quant_fail(s, ERR_UNSUPPORTED, p->beside[SCALES],
                        "has type %.20s; U8 and F8_E8M0 are read", p->beside[SCALES]->dtype);
    return rc;
}

/* One group, whose elements share a scale. Returns the byte behind it. */
static const uint8_t *float4_group(float *out, const uint8_t *bytes, int n, float scale)
{
    for (int i = 0; i < n; i += 2, bytes++) {
        out[i] = e2m1_values[*bytes & 15] * scale;
        out[i + 1] = e2m1_values[*bytes >> 4] * scale;
    }
    return bytes;
}

void quant_values_nvfp4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                        int n)
{
    const uint8_t *scales = p->beside[SCALES]->data + (size_t)first * (size_t)p->n_groups;
    float global = quant_number(p->beside[GLOBAL], 0);

    for (int i = 0; i < n * p->n_groups; i++, out += p->group)
        bytes = float4_group(out, bytes, p->group, k_e4m3_value(scales[i]) / global);
}

void quant_values_modelopt(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                           int n)
{
    const uint8_t *scales = p->beside[SCALES]->data + (size_t)first * (size_t)p->n_groups;
    float global = quant_number(p->beside[GLOBAL], 0);

    for (int i = 0; i < n * p->n_groups; i++, out += p->group)
        bytes = float4_group(out, bytes, p->group, k_e4m3_value(scales[i]) * global);
}

/* 2^(e - 127); the smallest is subnormal. */
static float float4_power(uint8_t e)
{
    uint32_t bits = e > 0 ? (uint32_t)e << 23 : (uint32_t)1 << 22;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

void quant_values_mxfp4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                        int n)
{
    const uint8_t *scales = p->beside[SCALES]->data + (size_t)first * (size_t)p->n_groups;

    for (int i = 0; i < n * p->n_groups; i++, out += p->group)
        bytes = float4_group(out, bytes, p->group, float4_power(scales[i]));
}

/* weight F8_E4M3 [outputs][inputs], weight_scale [groups of outputs][groups of inputs], or one
 * number; U8 are exponents. */
int quant_check_e4m3(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t = p->beside[SCALES];
    int64_t down = t->n_dims > 0 ? t->dims[0] : 1, across = t->n_dims > 1 ? t->dims[1] : 1;
    int rc = quant_expect(s, p->data, "F8_E4M3", s->rows, s->cols);

    p->bits = 8;
    if (rc != ERR_OK)
        return rc;
    if (strcmp(t->dtype, "U8") != 0 && !quant_is_number(t))
        return quant_fail(s, ERR_UNSUPPORTED, t, "has type %.20s", t->dtype);
    if (t->n_dims > 2 || down < 1 || across < 1 || down > s->rows || across > s->cols ||
        s->rows % down != 0 || s->cols % across != 0)
        return quant_fail(s, ERR_INVALID, t, "has %lld x %lld scales for %d x %d elements",
                          (long long)down, (long long)across, s->rows, s->cols);
    p->high = s->rows / (int)down;
    p->n_groups = (int)across;
    p->group = s->cols / (int)across;
    return ERR_OK;
}

void quant_values_e4m3(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n)
{
    const struct tensor *scales = p->beside[SCALES];
    bool are_powers = scales->dtype[0] == 'U';

    for (int row = first; row < first + n; row++) {
        size_t at = (size_t)(row / p->high) * (size_t)p->n_groups;

        for (int g = 0; g < p->n_groups; g++) {
            float scale = are_powers ? float4_power(scales->data[at + (size_t)g])
                                     : quant_number(scales, at + (size_t)g);

            for (int i = 0; i < p->group; i++)
                *out++ = k_e4m3_value(*bytes++) * scale;
        }
    }
}
