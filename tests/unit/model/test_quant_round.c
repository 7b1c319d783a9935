/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: rounding and reading are inverse. Method: random groups, zeros, one large element, tiny and
 * huge numbers, through round_*() and back; the error beside that of the plain scale
 * amax / greatest code, which the search must not exceed. */
#include <math.h>
#include <string.h>

#include "kernels/e4m3.h"
#include "model/quant_round.h"
#include "tests/tap.h"

#define COLS 256

static uint64_t state = 88172645463325252ULL;

static float drawn(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (float)((double)(state >> 11) * 0x1p-53 * 2.0 - 1.0);
}

static double error_of(const struct round_format *f, const float *x, int n, float scale)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++) {
        double off = (double)x[i] - (double)round_value(f, round_code(f, x[i], scale), scale);

        sum += off * off;
    }
    return sum;
}

/* The plain scale, as it is stored. */
static float plain(const struct round_format *f, const float *x, int n)
{
    static const float reach[] = {7.5f, 127.5f, 448.0f, 6.0f};
    uint8_t bytes[COLS * 2];
    float scales[COLS] = {0}, amax = 0.0f;
    struct round_format one = *f;
    uint32_t bits;

    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    one.group = n;
    scales[0] = fmaxf(amax / reach[f->kind], 1e-30f);
    round_pack_scales(bytes, &one, scales, n);
    if (f->kind == ROUND_NVFP4)
        return fmaxf(k_e4m3_value(bytes[0]), 0x1p-9f) / f->global;
    bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
    memcpy(&scales[0], &bits, 4);
    return scales[0];
}

static void rounds(enum round_kind kind, const char *name, float size)
{
    struct round_format f = {kind, kind == ROUND_NVFP4 ? 16 : kind == ROUND_INT4 ? 64 : COLS, 1.0f};
    int n_bad = 0, n_worse = 0, n_better = 0;

    f.global = round_global(kind, size);
    for (int turn = 0; turn < 200; turn++) {
        float x[COLS], scale;

        for (int i = 0; i < COLS; i++)
            x[i] = turn == 0 ? 0.0f : size * drawn() * drawn();
        if (turn % 5 == 1)
            x[3] = size; /* one large element */
        scale = round_scale(&f, x, NULL, f.group);
        n_bad += !(scale > 0.0f) || isinf(scale);
        for (int i = 0; i < f.group; i++) {
            float value = round_value(&f, round_code(&f, x[i], scale), scale);

            /* A code's value has that code again, and no larger magnitude turns its sign. */
            n_bad += round_value(&f, round_code(&f, value, scale), scale) != value;
            n_bad += value * x[i] < 0.0f;
        }
        n_worse += error_of(&f, x, f.group, scale) >
                   error_of(&f, x, f.group, plain(&f, x, f.group)) * (1.0 + 1e-6);
        n_better += error_of(&f, x, f.group, scale) <
                    error_of(&f, x, f.group, plain(&f, x, f.group)) * 0.98;
    }
    is_int(n_bad, 0, "%s around %g: values have their codes and signs", name, (double)size);
    is_int(n_worse, 0, "%s around %g: no scale is worse than the plain one", name, (double)size);
    ok(kind == ROUND_FP8 || n_better > 20, "%s around %g: many are better", name, (double)size);
}

/* With all importance on some elements, these are rounded better. */
static void weighs(void)
{
    struct round_format f = {ROUND_INT4, 64, 1.0f};
    double with = 0.0, without = 0.0;

    for (int turn = 0; turn < 200; turn++) {
        float x[64], importance[64];

        for (int i = 0; i < 64; i++) {
            x[i] = drawn() * drawn();
            importance[i] = i < 8 ? 1.0f : 0.0f;
        }
        with += error_of(&f, x, 8, round_scale(&f, x, importance, 64));
        without += error_of(&f, x, 8, round_scale(&f, x, NULL, 64));
    }
    ok(with < 0.7 * without, "importance counts: %g, %g without", with, without);
}

static void packs(void)
{
    static const uint8_t codes[8] = {1, 2, 3, 4, 5, 6, 7, 15};
    static const uint8_t words[4] = {0x21, 0x43, 0x65, 0xf7};
    struct round_format f = {ROUND_INT4, 8, 1.0f};
    uint8_t out[8];

    round_pack_codes(out, &f, codes, 8);
    ok(memcmp(out, words, 4) == 0, "4 bits: the first code is the lowest");
    f.kind = ROUND_INT8;
    round_pack_codes(out, &f, codes, 8);
    ok(out[0] == 0x81 && out[7] == 0x8f, "int8: two's complement");
    is_int((int64_t)round_code_bytes(&f, 8), 8, "int8: a byte a code");
    f.kind = ROUND_NVFP4;
    f.group = 16;
    is_int((int64_t)round_scale_bytes(&f, 64), 4, "NVFP4: a byte for 16");
}

int main(void)
{
    static const char *const names[] = {"int4", "int8", "e4m3", "NVFP4"};

    for (int kind = 0; kind < 4; kind++) {
        rounds((enum round_kind)kind, names[kind], 0.02f);
        rounds((enum round_kind)kind, names[kind], 1e-6f);
        rounds((enum round_kind)kind, names[kind], 3e4f);
    }
    weighs();
    packs();
    return tap_done();
}
