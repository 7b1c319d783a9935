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

enum { SCALES, GLOBAL, ZEROS = 1, ORDER = QUANT_ORDER };

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
    if (rc == ERR_OK)
        rc = quant_check_order(s, p);
    for (int k = 0; rc == ERR_OK && p->beside[ORDER] != NULL && k < s->cols; k++) {
        if (quant_group(p, k) != k / group)
            rc = quant_fail(s, ERR_UNSUPPORTED, p->beside[ORDER],
                            "has input %d in another group; floats of 4 bits are read in order", k);
    }
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

/* Scales alone: a zero point that is not 0 changes the numbers. */
static int e4m3_check_zeros(const struct quant_search *s, const struct tensor *zeros)
{
    for (size_t i = 0; zeros != NULL && i < zeros->bytes; i++) {
        if (zeros->data[i] != 0)
            return quant_fail(s, ERR_UNSUPPORTED, zeros, "is not 0, as floats need it");
    }
    return ERR_OK;
}

/* weight F8_E4M3 [outputs][inputs], weight_scale [groups of outputs][groups of inputs], or one
 * number; U8 are exponents. weight_g_idx I32 [inputs] */
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
    p->n_groups = (int)across;
    if ((rc = e4m3_check_zeros(s, p->beside[ZEROS])) != ERR_OK ||
        (rc = quant_check_order(s, p)) != ERR_OK)
        return rc;
    if (t->n_dims > 2 || down < 1 || across < 1 || down > s->rows || across > s->cols ||
        s->rows % down != 0 || (s->cols % across != 0 && p->beside[ORDER] == NULL))
        return quant_fail(s, ERR_INVALID, t, "has %lld x %lld scales for %d x %d elements",
                          (long long)down, (long long)across, s->rows, s->cols);
    p->high = s->rows / (int)down;
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

        for (int k = 0; k < p->cols; k++) {
            size_t g = at + (size_t)quant_group(p, k);
            float scale = are_powers ? float4_power(scales->data[g]) : quant_number(scales, g);

            *out++ = k_e4m3_value(*bytes++) * scale;
        }
    }
}

/* --- packed as they are --------------------------------------------------------------------- */

/* A scale of K_E5M3 is at most 2^0 with a fraction of 3 bits and at least 2^-31; what is larger or
 * smaller in all of a row, or of a matrix, is in the row's. */

#define E4M3_LARGER 256.0f /* the power of two of e4m3's largest numbers */

static const uint8_t *float4_scales(const struct quant_part *p, int row)
{
    return p->beside[SCALES]->data + (size_t)row * (size_t)p->n_groups;
}

/* Scales that are negative or no numbers are left to the conversion. */
static bool nvfp4_fit(const struct quant_part *p)
{
    const uint8_t *scales = float4_scales(p, 0);
    unsigned n_odd = 0;

    for (size_t i = 0; i < (size_t)p->rows * (size_t)p->n_groups; i++)
        n_odd += scales[i] >= K_E4M3_NAN;
    return n_odd == 0;
}

/* e4m3's exponents as those of e5m3, in which the numbers below 2^-6 have a leading 1, too. */
static uint8_t nvfp4_e5m3(uint8_t e)
{
    int exponent = e >> 3, fraction = e & 7;

    if (e == 0)
        return 0;
    if (exponent > 0)
        return (uint8_t)((exponent + 16) << 3 | fraction);
    for (exponent = 1; fraction < 8; exponent--)
        fraction *= 2;
    return (uint8_t)((exponent + 16) << 3 | (fraction & 7));
}

static void nvfp4_scales(uint8_t *out, const struct quant_part *p, int row, int first, int n)
{
    const uint8_t *scales = float4_scales(p, row) + first;

    for (int i = 0; i < n; i++)
        out[i] = nvfp4_e5m3(scales[i]);
}

static bool nvfp4_is_zero(const struct quant_part *p, int row, int group)
{
    return float4_scales(p, row)[group] == 0;
}

static float nvfp4_row_scale(const struct quant_part *p, int row)
{
    (void)row;
    return E4M3_LARGER / quant_number(p->beside[GLOBAL], 0);
}

static float modelopt_row_scale(const struct quant_part *p, int row)
{
    (void)row;
    return E4M3_LARGER * quant_number(p->beside[GLOBAL], 0);
}

/* The largest exponent of a row, and whether all others are at most 31 less. */
static uint8_t mxfp4_largest(const struct quant_part *p, int row, bool *is_near)
{
    const uint8_t *scales = float4_scales(p, row);
    uint8_t most = 0, least = UINT8_MAX;

    for (int i = 0; i < p->n_groups; i++) {
        most = scales[i] > most ? scales[i] : most;
        least = scales[i] < least ? scales[i] : least;
    }
    *is_near = most - least <= 31;
    return most;
}

/* Groups of zeros may have any scale up to the row's largest. */
static bool mxfp4_row_fits(const struct quant_part *p, int row, uint8_t most)
{
    const uint8_t *scales = float4_scales(p, row);
    const uint8_t *codes = p->data->data + (size_t)row * (size_t)(p->cols / 2);

    for (int group = 0; group < p->n_groups; group++) {
        for (int i = 0; most - scales[group] > 31 && i < p->group / 2; i++) {
            if ((codes[group * p->group / 2 + i] & 0x77) != 0)
                return false;
        }
    }
    return true;
}

static bool mxfp4_fit(const struct quant_part *p)
{
    for (int row = 0; row < p->rows; row++) {
        bool is_near;
        uint8_t most = mxfp4_largest(p, row, &is_near);

        if (most == UINT8_MAX /* not a number */ || (!is_near && !mxfp4_row_fits(p, row, most)))
            return false;
    }
    return true;
}

static void mxfp4_scales(uint8_t *out, const struct quant_part *p, int row, int first, int n)
{
    const uint8_t *scales = float4_scales(p, row) + first;
    bool is_near;
    uint8_t most = mxfp4_largest(p, row, &is_near);

    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(most - scales[i] > 31 ? 0 : (31 - (most - scales[i])) << 3);
}

static bool mxfp4_is_zero(const struct quant_part *p, int row, int group)
{
    (void)p, (void)row, (void)group;
    return false;
}

static float mxfp4_row_scale(const struct quant_part *p, int row)
{
    bool is_near;

    return float4_power(mxfp4_largest(p, row, &is_near));
}

const struct quant_floats quant_floats_nvfp4 = {16, nvfp4_fit, nvfp4_scales, nvfp4_is_zero,
                                                nvfp4_row_scale};
const struct quant_floats quant_floats_modelopt = {16, nvfp4_fit, nvfp4_scales, nvfp4_is_zero,
                                                   modelopt_row_scale};
const struct quant_floats quant_floats_mxfp4 = {32, mxfp4_fit, mxfp4_scales, mxfp4_is_zero,
                                                mxfp4_row_scale};

float quant_row_scale(const struct quant_part *p, int row)
{
    if (p->kind->floats == NULL) /* bytes; one scale for all, or for each row */
        return quant_number(p->beside[0], p->n_groups > 0 ? (size_t)row : 0);
    return p->kind->floats->row_scale(p, row);
}

void quant_float_codes(const struct k_unpacked *to, const struct quant_part *p,
                       const uint8_t *bytes, struct quant_run run)
{
    const struct quant_floats *floats = p->kind->floats;
    int first = run.first / p->group, n = run.n / p->group;

    bytes += (size_t)run.row * (size_t)(p->cols / 2) + (size_t)(run.first / 2);
    for (int i = 0; i < run.n; i++)
        to->codes[i] = (uint8_t)(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
    for (int i = 0; i < n; i++) {
        if (floats->is_zero(p, run.row, first + i))
            memset(to->codes + (size_t)i * (size_t)p->group, 0, (size_t)p->group);
    }
    floats->scales(to->scales, p, run.row, first, n);
}

/* --- blocks of GGUF files ----------------------------------------------------------------- */

#define BLOCK_BYTES 17 /* an exponent, and elements i and i + 16 in byte i */

/* Write a block's codes, two neighbours in a byte. Block i's end before block i + 1 begins, so all
 * are written over their own bytes. */
void quant_unpack_mxfp4(void *bytes, size_t n)
{
    uint8_t *out = bytes;
    const uint8_t *from = bytes;

    for (size_t at = 0; at + BLOCK_BYTES <= n; at += BLOCK_BYTES, out += BLOCK_BYTES - 1) {
        uint8_t halves[BLOCK_BYTES - 1];

        memcpy(halves, from + at + 1, sizeof halves);
        for (int i = 0; i < 8; i++) {
            out[i] = (uint8_t)((halves[2 * i] & 15) | halves[2 * i + 1] << 4);
            out[i + 8] = (uint8_t)(halves[2 * i] >> 4 | (halves[2 * i + 1] & 0xf0));
        }
    }
}

void quant_exponents_mxfp4(uint8_t *out, const struct quant_part *p, int row, int first, int n)
{
    size_t n_groups = (size_t)p->cols / K_MXFP4_GROUP;
    size_t at = (size_t)row * n_groups + (size_t)first;

    for (int i = 0; i < n; i++) {
        if (quant_is_split_mxfp4(p->kind))
            out[i] = p->data->data[(at + (size_t)i) * BLOCK_BYTES];
        else
            out[i] = p->beside[SCALES]->data[at + (size_t)i];
    }
}
