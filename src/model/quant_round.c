/* SPDX-License-Identifier: Apache-2.0
 *
 * The search of a scale: for whole numbers and floats alike, the error as a function of the scale
 * has many small dips, because each element jumps from code to code. So a grid of scales is tried,
 * from a little above amax / greatest code down to half of it (smaller scales cut off the greatest
 * elements and round the others better); the best one is followed by the least-squares scale of its
 * codes. */
#include "model/quant_round.h"

#include <math.h>
#include <string.h>

#include "base/must.h"
#include "kernels/e4m3.h"

#define ROUND_STEPS    40    /* scales of the grid */
#define ROUND_MOST     1.07f /* the grid's ends, as parts of amax / greatest code */
#define ROUND_LEAST    0.53f
#define ROUND_E2M1_MAX 6.0f

static const float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

/* To nearest, ties to even. */
static uint16_t round_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static float round_from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

float round_global(enum round_kind kind, float amax)
{
    if (kind != ROUND_NVFP4)
        return 1.0f;
    return ROUND_E2M1_MAX * K_E4M3_MAX / fmaxf(amax, K_AMAX_MIN);
}

/* The greatest magnitude that a scale of 1 reaches. Whole numbers reach half a step more on their
 * negative side. */
static float round_reach(enum round_kind kind)
{
    switch (kind) {
    case ROUND_INT4: return 7.5f;
    case ROUND_INT8: return 127.5f;
    case ROUND_FP8: return K_E4M3_MAX;
    case ROUND_NVFP4: return ROUND_E2M1_MAX;
    }
    must(0);
    return 0.0f;
}

/* The scale as it is stored, above 0. */
static float round_stored(const struct round_format *f, float scale)
{
    if (f->kind == ROUND_NVFP4) {
        k_e4m3 code = k_e4m3_round(scale * f->global);

        return k_e4m3_value(code > 0 ? code : 1) / f->global;
    }
    return round_from_bf16(round_bf16(fmaxf(scale, K_AMAX_MIN)));
}

uint8_t round_code(const struct round_format *f, float x, float scale)
{
    float v = x / scale;

    if (f->kind == ROUND_FP8)
        return k_e4m3_round(v);
    if (f->kind == ROUND_NVFP4) {
        float size = fabsf(v);
        uint8_t code = 7;

        /* Ties go to the code with an even number, as the hardware rounds. */
        while (code > 0) {
            float middle = (e2m1[code] + e2m1[code - 1]) / 2;

            if (size > middle || (size == middle && code % 2 == 0))
                break;
            code--;
        }
        return v < 0.0f && code > 0 ? code | 8 : code;
    }
    if (f->kind == ROUND_INT4)
        return (uint8_t)(int)(fminf(fmaxf(rintf(v), -8.0f), 7.0f) + 8.0f);
    return (uint8_t)(int)(fminf(fmaxf(rintf(v), -128.0f), 127.0f) + 128.0f);
}

float round_value(const struct round_format *f, uint8_t code, float scale)
{
    switch (f->kind) {
    case ROUND_INT4: return (float)((int)code - 8) * scale;
    case ROUND_INT8: return (float)((int)code - 128) * scale;
    case ROUND_FP8: return k_e4m3_value(code) * scale;
    case ROUND_NVFP4: return (code & 8 ? -e2m1[code & 7] : e2m1[code]) * scale;
    }
    must(0);
    return 0.0f;
}

/* A group of elements, and the best scale so far. */
struct round_search {
    const struct round_format *f;
    const float *x, *importance; /* [n] */
    int n;
    float best;
    double least;  /* the weighted error of best */
    double xq, qq; /* weighted sums of x * value and value * value under best */
};

static void round_try(struct round_search *s, float scale)
{
    double error = 0.0, xq = 0.0, qq = 0.0;

    for (int i = 0; i < s->n; i++) {
        double weight = s->importance != NULL ? (double)s->importance[i] : 1.0;
        double value = (double)round_value(s->f, round_code(s->f, s->x[i], scale), scale);
        double off = (double)s->x[i] - value;

        error += weight * off * off;
        xq += weight * (double)s->x[i] * value;
        qq += weight * value * value;
    }
    if (error >= s->least)
        return;
    s->best = scale;
    s->least = error;
    s->xq = xq;
    s->qq = qq;
}

float round_scale(const struct round_format *f, const float *x, const float *importance, int n)
{
    struct round_search s = {.f = f, .x = x, .importance = importance, .n = n, .least = INFINITY};
    float amax = 0.0f, top, last;

    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    top = amax / round_reach(f->kind);
    s.best = last = round_stored(f, top);
    round_try(&s, last);
    for (int i = 0; i < ROUND_STEPS; i++) {
        float part = ROUND_MOST - (ROUND_MOST - ROUND_LEAST) * (float)i / (float)ROUND_STEPS;
        float scale = round_stored(f, top * part);

        if (scale != last) /* stored scales may be few */
            round_try(&s, scale);
        last = scale;
    }
    if (s.qq > 0.0)
        round_try(&s, round_stored(f, (float)((double)s.best * s.xq / s.qq)));
    return s.best;
}

size_t round_code_bytes(const struct round_format *f, int cols)
{
    bool is_half = f->kind == ROUND_INT4 || f->kind == ROUND_NVFP4;

    must(cols > 0 && (f->kind != ROUND_INT4 || cols % 8 == 0));
    return is_half ? (size_t)cols / 2 : (size_t)cols;
}

size_t round_scale_bytes(const struct round_format *f, int cols)
{
    must(f->group > 0 && cols % f->group == 0);
    return (size_t)(cols / f->group) * (f->kind == ROUND_NVFP4 ? 1 : 2);
}

void round_pack_codes(uint8_t *out, const struct round_format *f, const uint8_t *codes, int cols)
{
    for (int i = 0; i < cols; i++) {
        if (f->kind == ROUND_INT8)
            out[i] = (uint8_t)(codes[i] ^ 0x80); /* two's complement */
        else if (f->kind == ROUND_FP8)
            out[i] = codes[i];
        else if (i % 2 == 0)
            out[i / 2] = codes[i]; /* little-endian words: the low half comes first */
        else
            out[i / 2] = (uint8_t)(out[i / 2] | codes[i] << 4);
    }
}

void round_pack_scales(uint8_t *out, const struct round_format *f, const float *scales, int cols)
{
    for (int g = 0; g < cols / f->group; g++) {
        uint16_t half = round_bf16(scales[g]);

        if (f->kind == ROUND_NVFP4)
            out[g] = k_e4m3_round(scales[g] * f->global);
        else
            memcpy(out + 2 * g, &half, 2);
    }
}
