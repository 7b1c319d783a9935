/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations whose results are e4m3, and of the meaning of formats. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/bytes.h"
#include "kernels/e4m3.h"
#include "kernels/packed.h"

/* Round n elements with one scale: the given one, or the one that makes the largest element 448. */
static void round_run(k_e4m3 *out, float *scale, const float *x, const float *x_scale, int n)
{
    float amax = 0.0f, inverse;

    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    *scale = x_scale != NULL ? *x_scale : k_e4m3_scale(amax);
    inverse = 1.0f / *scale;
    for (int i = 0; i < n; i++)
        out[i] = k_e4m3_round(x[i] * inverse);
}

/* With one scale per row, or with one per run of K_E4M3_BLOCK elements. */
void ref_quantise(const struct k_quantised *out, const float *x, int n, int dim)
{
    for (int token = 0; token < n; token++) {
        const float *row = x + (size_t)token * dim;
        k_e4m3 *to = out->data + (size_t)token * dim;

        if (out->stride == 0)
            round_run(to, out->scales + token, row, out->x_scale, dim);
        for (int d = 0; out->stride != 0 && d < dim; d += K_E4M3_BLOCK)
            round_run(to + d, out->scales + (size_t)(d / K_E4M3_BLOCK) * out->stride + token,
                      row + d, NULL, dim - d < K_E4M3_BLOCK ? dim - d : K_E4M3_BLOCK);
    }
}

void ref_round_bytes(const struct k_bytes *out, const float *x, int n, int dim)
{
    for (int token = 0; token < n; token++) {
        const float *row = x + (size_t)token * (size_t)dim;
        int8_t *to = out->data + (size_t)token * (size_t)dim;
        float largest = 0.0f, inverse;

        for (int i = 0; i < dim; i++) /* a NaN stays */
            largest = isnan(largest) || largest > fabsf(row[i]) ? largest : fabsf(row[i]);
        inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        for (int i = 0; i < dim; i++) {
            float value = rintf(row[i] * inverse);

            to[K_BYTE_AT((size_t)i)] = (int8_t)(isnan(value) ? 0.0f : value);
        }
        out->scales[token] = largest / 127.0f;
    }
}

/* Element i of an array, which need not be aligned. */
static float number(enum k_type type, const void *from, size_t i)
{
    const uint8_t *bytes = from;
    float value = 0.0f;
    _Float16 half;

    switch (type) {
    case K_F32: memcpy(&value, bytes + 4 * i, 4); break;
    /* The upper half of a float32. */
    case K_BF16:
    case K_BF16_KEPT: memcpy((char *)&value + 2, bytes + 2 * i, 2); break;
    case K_E4M3: value = k_e4m3_value(bytes[i]); break;
    case K_INT8: value = (float)(int8_t)bytes[i]; break;
    case K_U4: value = (float)(bytes[i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15); break;
    case K_U8: value = (float)bytes[i]; break;
    case K_E8M0:
    case K_E2M1:
    case K_Q4_0:
    case K_Q4_1:
    case K_Q5_0:
    case K_Q5_1:
    case K_Q8_0:
    case K_IQ4_NL:
    case K_MXFP4:
    case K_Q2_K:
    case K_Q3_K:
    case K_Q4_K:
    case K_Q5_K:
    case K_Q6_K:
    case K_IQ4_XS: break; /* ref_blocks() reads these */
    case K_F16:
        memcpy(&half, bytes + 2 * i, 2);
        value = (float)half;
        break;
    case K_INT4:
    case K_FLOAT4: break; /* dequantise_records() */
    case K_E5M3: value = ldexpf((float)(8 + bytes[i] % 8), bytes[i] / 8 - 34); break;
    }
    return value;
}

/* Dequantise n elements from `at` on that share a scale and a zero; values has the numbers of all
 * 8-bit codes. Of K_INT8 they are a row. */
static void run_of(float *out, const struct k_matrix *w, size_t at, int n, const float *values,
                   float zero, float scale)
{
    const uint8_t *bytes = (const uint8_t *)w->data + at;

    if (k_type_bits(w->format.elem) == 8 && w->format.elem != K_U4) {
        for (int i = 0; i < n; i++)
            out[i] = (values[bytes[w->format.elem == K_INT8 ? K_BYTE_AT((size_t)i) : (size_t)i]] -
                      zero) *
                     scale;
        return;
    }
    for (int i = 0; i < n; i++)
        out[i] = (number(w->format.elem, w->data, at + (size_t)i) - zero) * scale;
}

/* Rows of blocks: everything but the blocks themselves is in them. */
static void dequantise_blocks(float *out, const struct k_matrix *w, int first, int n)
{
    size_t row_bytes = k_format_row_bytes(&w->format, w->n_in);
    int per_row = w->n_in / k_type_block(w->format.elem);

    ref_blocks(out, w->format.elem, (const uint8_t *)w->data + (size_t)first * row_bytes,
               (size_t)n * (size_t)per_row);
}

static const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* A record's arrays; strips are unpacked record by record. */
struct record {
    uint8_t codes[K_PACKED_ROWS * K_PACKED_COLS];
    uint8_t scales[K_PACKED_ROWS * 8], zeros[K_PACKED_ROWS * 4];
};

/* The record of a row and a column. */
static void record_unpack(struct record *to, const struct k_matrix *w, int row, int col)
{
    const struct k_packing packing = k_packing_of(&w->format);
    const struct k_unpacked arrays = {to->codes, to->scales, to->zeros};
    const uint8_t *strip = (const uint8_t *)w->data +
                           (size_t)(row / K_PACKED_ROWS) * k_packed_strip_bytes(&packing, w->n_in);

    k_unpack_strip(&arrays, &packing,
                   strip + (size_t)(col / K_PACKED_COLS) * k_packed_record_bytes(&packing),
                   K_PACKED_ROWS, K_PACKED_COLS);
}

/* A code of it, and its group's numbers; row and column as above. */
static int record_code(const struct record *r, const struct k_format *format, int row, int col,
                       int *zero, float *scale)
{
    int at = row % K_PACKED_ROWS, groups = K_PACKED_COLS / format->group_cols;
    size_t group = (size_t)(at * groups + col % K_PACKED_COLS / format->group_cols);

    *zero = format->has_zeros ? r->zeros[group] : k_format_middle(format);
    *scale = number(format->scale, r->scales, group);
    return r->codes[at * K_PACKED_COLS + col % K_PACKED_COLS];
}

static void dequantise_records(float *out, const struct k_matrix *w, int first, int n)
{
    struct record record;
    float scale;
    int zero;

    for (int row = first; row < first + n; row++) {
        for (int col = 0; col < w->n_in; col++) {
            int code;

            if (col % K_PACKED_COLS == 0)
                record_unpack(&record, w, row, col);
            code = record_code(&record, &w->format, row, col, &zero, &scale);
            out[col] = w->format.elem == K_FLOAT4 ? e2m1_values[code] : (float)(code - zero);
            out[col] *= scale;
            if (w->format.group_rows > 0)
                out[col] *= ((const float *)w->scales)[row];
        }
        out += w->n_in;
    }
}

void ref_round_codes(int8_t *out, float *scales, const struct k_matrix *w, int first, int n)
{
    struct record record;
    float scale, largest;
    int zero;

    for (int row = first; row < first + n; row++) {
        largest = 0.0f;
        for (int col = 0; col < w->n_in; col += w->format.group_cols) {
            float most;

            record_unpack(&record, w, row, col);
            (void)record_code(&record, &w->format, row, col, &zero, &scale);
            most = fabsf(scale) * (float)(zero > 15 - zero ? zero : 15 - zero);
            largest = isnan(largest) || largest > most ? largest : most; /* a NaN stays */
        }
        for (int col = 0; col < w->n_in; col++) {
            float value;
            int code;

            if (col % K_PACKED_COLS == 0)
                record_unpack(&record, w, row, col);
            code = record_code(&record, &w->format, row, col, &zero, &scale);
            value = fmaf((float)(code - zero), scale * (largest == 0.0f ? 0.0f : 127.0f / largest),
                         12582912.0f);
            out[K_BYTE_AT((size_t)col)] = (int8_t)(value - 12582912.0f);
        }
        scales[row - first] = largest / 127.0f;
        out += w->n_in;
    }
}

/* 8-bit codes are decoded by a table of 256 values, because a checkpoint has billions of them. */
void ref_dequantise(float *out, const struct k_matrix *w, int first, int n)
{
    const struct k_format *format = &w->format;
    size_t scale_cols = (size_t)k_format_scale_cols(format, w->n_in);
    int step = k_format_has_groups(format) ? format->group_cols : w->n_in;
    float values[256], whole = format->has_global ? *w->global : 1.0f;
    float middle = k_format_is_coded(format) ? (float)k_format_middle(format) : 0.0f;

    if (k_format_is_packed(format)) {
        dequantise_records(out, w, first, n);
        return;
    }
    if (k_type_block(format->elem) > 1 && format->elem != K_U4) {
        dequantise_blocks(out, w, first, n);
        return;
    }
    for (int i = 0; i < 256 && k_type_bits(format->elem) == 8 && format->elem != K_U4; i++)
        values[i] = number(format->elem, &(const uint8_t){(uint8_t)i}, 0);
    for (int row = first; row < first + n; row++) {
        for (int col = 0; col < w->n_in; col += step) {
            int some = w->n_in - col < step ? w->n_in - col : step;
            size_t group = 0;

            if (format->group_rows > 0)
                group = (size_t)(row / format->group_rows) * scale_cols + (size_t)(col / step);
            run_of(out, w, (size_t)row * (size_t)w->n_in + (size_t)col, some, values,
                   format->has_zeros ? number(format->scale, w->zeros, group) : middle,
                   (format->group_rows > 0 ? number(format->scale, w->scales, group) : 1.0f) *
                       whole);
            out += some;
        }
    }
}
