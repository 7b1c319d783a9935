/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the questions of format.h have the answers that devices and kernels rely on. Method: the
 * formats that are, and some that no device takes yet, each asked everything; sizes by hand. And
 * ref_dequantise() gives the weights of a format as the formula does; blocks of GGUF files have the
 * values that the package gguf gives them, bit for bit (tests/golden/make_gguf.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/e4m3.h"
#include "tests/tap.h"

static const struct k_format plain = {.elem = K_BF16};

/* The answers to all questions, a letter each, in their order. */
static const char *answers(const struct k_format *f)
{
    static char out[8];

    out[0] = k_format_is_plain(f) ? 'p' : '-';
    out[1] = k_format_has_groups(f) ? 'g' : '-';
    out[2] = k_format_is_by_row(f, K_E4M3) ? 'r' : '-';
    out[3] = k_format_is_in_blocks(f, K_E4M3, 128) ? 'b' : '-';
    out[4] = k_format_reads_codes(f) ? 'c' : '-';
    out[5] = k_format_reads_half(f) ? 'h' : '-';
    out[6] = '\0';
    return out;
}

static void test_answers(void)
{
    struct k_format f = plain;

    ok(strcmp(answers(&f), "p-----") == 0, "bf16 is plain");
    f.has_x_scale = true;
    ok(strcmp(answers(&f), "p-----") == 0, "so it is when inputs have a scale");
    f = k_format_by_row(K_E4M3);
    ok(strcmp(answers(&f), "--r-ch") == 0, "e4m3 with a scale a row");
    f.group_rows = 0;
    ok(strcmp(answers(&f), "--r-ch") == 0, "e4m3 without scales is taken as scales of 1");
    f = k_format_in_groups(K_E4M3, 128, 128);
    ok(strcmp(answers(&f), "-g-bch") == 0, "e4m3 in blocks");
    f = k_format_in_groups(K_E4M3, 1, 128);
    ok(strcmp(answers(&f), "-g--ch") == 0, "e4m3 in groups of a row is neither");
    f = k_format_by_row(K_BF16);
    ok(strcmp(answers(&f), "------") == 0, "bf16 with scales is not plain");
}

/* A device must not take a format that it has not been told of. */
static void test_more(void)
{
    struct k_format f[] = {plain, k_format_by_row(K_E4M3), k_format_in_groups(K_E4M3, 128, 128)};
    int n_taken = 0;

    for (size_t i = 0; i < 3; i++) {
        struct k_format more[3] = {f[i], f[i], f[i]};

        more[0].has_zeros = true;
        more[1].has_global = true;
        more[2].scale = K_BF16;
        for (int k = 0; k < (i == 0 ? 2 : 3); k++)
            n_taken += k_format_is_plain(&more[k]) || k_format_is_by_row(&more[k], K_E4M3) ||
                       k_format_is_in_blocks(&more[k], K_E4M3, 128);
    }
    is_int(n_taken, 0, "zero points, a global scale or scales of bf16 are another format");
}

static void test_likeness(void)
{
    struct k_format row = k_format_by_row(K_E4M3), block = k_format_in_groups(K_E4M3, 128, 128);
    struct k_format other = row, bare = plain;

    ok(k_format_is_like(&row, &other), "a format is like itself");
    other.has_x_scale = true;
    ok(k_format_is_like(&row, &other), "with a scale of inputs or without");
    other.has_zeros = true;
    ok(!k_format_is_like(&row, &other), "zero points make a difference");
    ok(!k_format_is_like(&row, &block) && !k_format_is_like(&row, &plain), "so do scales");
    bare.scale = K_F32;
    ok(k_format_is_like(&bare, &plain), "the type of scales that are not there makes none");
}

static void test_sizes(void)
{
    struct k_format row = k_format_by_row(K_E4M3), block = k_format_in_groups(K_E4M3, 128, 128);
    struct k_format group = k_format_in_groups(K_E4M3, 1, 32);

    ok(k_format_row_bytes(&plain, 48) == 96 && k_format_row_bytes(&row, 48) == 48,
       "bytes of a row");
    is_int((long)k_format_n_scales(&plain, 300, 300), 0, "plain: no scales");
    is_int((long)k_format_n_scales(&row, 300, 300), 300, "a scale a row");
    ok(k_format_scale_rows(&block, 300) == 3 && k_format_scale_cols(&block, 300) == 4,
       "blocks: 3 rows of 3 scales, rounded up to 4");
    is_int((long)k_format_n_scales(&block, 300, 300), 12, "which makes 12");
    is_int((long)k_format_n_scales(&group, 300, 300), 300 * 12, "groups of 32: 10 a row, so 12");
}

enum { OUT = 6, IN = 40, WIDE = 16 };

/* Rows `first` .. of a matrix in groups of 2 x 16 with everything, or with less. */
static void check_meaning(bool zeros, bool global, const char *name)
{
    static uint8_t data[OUT * IN];
    static float scales[3 * 4], points[3 * 4], got[OUT * IN];
    const float whole = 0.75f;
    struct k_matrix w = {.data = data,
                         .scales = scales,
                         .zeros = zeros ? points : NULL,
                         .global = global ? &whole : NULL,
                         .format = k_format_in_groups(K_E4M3, 2, WIDE),
                         .n_out = OUT,
                         .n_in = IN};
    int n_wrong = 0;

    w.format.has_zeros = zeros;
    w.format.has_global = global;
    for (int i = 0; i < OUT * IN; i++)
        data[i] = (uint8_t)(i * 37 % 127);
    for (int i = 0; i < 3 * 4; i++) {
        scales[i] = 0.1f + (float)i;
        points[i] = (float)(i % 5);
    }
    ref_dequantise(got, &w, 1, OUT - 1);
    for (int r = 1; r < OUT; r++) {
        for (int c = 0; c < IN; c++) {
            int group = r / 2 * 4 + c / WIDE;
            float scale = global ? scales[group] * whole : scales[group];
            float from = k_e4m3_value(data[r * IN + c]) - (zeros ? points[group] : 0.0f);

            n_wrong += got[(r - 1) * IN + c] != from * scale;
        }
    }
    is_int(n_wrong, 0, "%s", name);
}

static void test_meaning(void)
{
    static const uint8_t bf16[] = {0, 0x80, 0x3f, 0, 0xc0}; /* behind a byte: 1, -2 */
    static const float f32[] = {0.5f, 3.0f};
    struct k_matrix w = {.n_out = 1, .n_in = 2};
    float got[2];

    check_meaning(false, false, "elements and scales in groups");
    check_meaning(true, false, "with zero points");
    check_meaning(false, true, "with a global scale");
    check_meaning(true, true, "with both");
    memcpy(&w.data, &(const void *){bf16 + 1}, sizeof w.data);
    ref_dequantise(got, &w, 0, 1);
    ok(got[0] == 1.0f && got[1] == -2.0f, "the plain format, at an odd address");
    memcpy(&w.data, &(const void *){f32}, sizeof w.data);
    w.format.elem = K_F32;
    ref_dequantise(got, &w, 0, 1);
    ok(got[0] == 0.5f && got[1] == 3.0f, "float32");
}

/* --- blocks ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum k_type type;
} block_types[] = {{"Q4_0", K_Q4_0},    {"Q4_1", K_Q4_1},     {"Q5_0", K_Q5_0},   {"Q5_1", K_Q5_1},
                   {"Q8_0", K_Q8_0},    {"IQ4_NL", K_IQ4_NL}, {"MXFP4", K_MXFP4}, {"Q2_K", K_Q2_K},
                   {"Q3_K", K_Q3_K},    {"Q4_K", K_Q4_K},     {"Q5_K", K_Q5_K},   {"Q6_K", K_Q6_K},
                   {"IQ4_XS", K_IQ4_XS}};

/* One type of blocks.bin: its blocks begin at an odd address. */
/* Bytes with a sign: their size, their order in a row, their scales. */
static void test_bytes(void)
{
    enum { ROWS = 3, COLS = 32 };
    static uint8_t data[ROWS * COLS];
    const float scales[ROWS] = {0.5f, -2.0f, 0.25f};
    const struct k_matrix w = {.data = data,
                               .scales = scales,
                               .format = k_format_by_row(K_INT8),
                               .n_out = ROWS,
                               .n_in = COLS};
    const struct k_format in_groups = k_format_int8(K_BF16, 128, false);
    float got[ROWS * COLS];
    int n_wrong = 0;

    for (int i = 0; i < ROWS * COLS; i++)
        data[i / COLS * COLS + (int)K_BYTE_AT((size_t)(i % COLS))] = (uint8_t)(i * 5 - 128);
    ref_dequantise(got, &w, 0, ROWS);
    for (int i = 0; i < ROWS * COLS; i++)
        n_wrong += got[i] != (float)(int8_t)(uint8_t)(i * 5 - 128) * scales[i / COLS];
    is_int(n_wrong, 0, "bytes with a sign");
    ok(k_format_row_bytes(&w.format, 384) == 384 && !k_format_is_packed(&w.format) &&
           !k_format_reads_half(&w.format) && k_format_n_scales(&w.format, 5, 384) == 5,
       "bytes by row take a byte each and a scale a row");
    ok(k_format_row_bytes(&in_groups, 384) == 3 * (128 + 2) && k_format_is_packed(&in_groups),
       "records of 8 bits take 130 for 128 columns of a row");
}

static void check_blocks(FILE *f, const char *name, enum k_type type)
{
    char title[8] = "";
    uint32_t n[3] = {0}; /* elements, bytes, blocks */
    uint8_t bytes[4096];
    float want[4096], got[4096];
    size_t n_values;

    if (fread(title, 8, 1, f) != 1 || fread(n, sizeof n, 1, f) != 1 ||
        n[1] * n[2] >= sizeof bytes || n[0] * n[2] > 4096 ||
        fread(bytes + 1, n[1], n[2], f) != n[2] || fread(want, 4 * n[0], n[2], f) != n[2]) {
        ok(false, "%s: blocks.bin is cut short", name);
        return;
    }
    n_values = (size_t)n[0] * n[2];
    ok(strncmp(title, name, 8) == 0 && (int)n[0] == k_type_block(type) &&
           (int)n[1] == k_type_block_bytes(type),
       "%s: %u elements in %u bytes", name, n[0], n[1]);
    ref_blocks(got, type, bytes + 1, n[2]);
    ok(memcmp(got, want, 4 * n_values) == 0, "%s: values equal those of the package gguf", name);
    ok(k_format_row_bytes(&(const struct k_format){.elem = type}, (int)n_values) == n[1] * n[2],
       "%s: bytes of a row", name);
    memset(got, 0, sizeof got);
    ref_dequantise(
        got,
        &(const struct k_matrix){
            .data = bytes + 1, .format = {.elem = type}, .n_out = (int)n[2], .n_in = (int)n[0]},
        1, (int)n[2] - 1);
    ok(memcmp(got, want + n[0], 4 * (n_values - n[0])) == 0, "%s: rows of a matrix", name);
}

static void test_blocks(void)
{
    FILE *f = fopen(tap_path("tests/golden/gguf/blocks.bin"), "rb");

    if (!ok(f != NULL, "blocks.bin is there"))
        return;
    for (size_t i = 0; i < sizeof block_types / sizeof block_types[0]; i++)
        check_blocks(f, block_types[i].name, block_types[i].type);
    ok(fgetc(f) == EOF, "no type is left");
    fclose(f);
}

int main(void)
{
    test_bytes();
    test_blocks();
    test_answers();
    test_more();
    test_likeness();
    test_sizes();
    test_meaning();
    return tap_done();
}
