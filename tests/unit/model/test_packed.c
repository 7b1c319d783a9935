/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: every packed format gives the weights of its reference, bit for bit, and a matrix whose
 * tensors do not fit together is refused. Method: the matrices of tests/golden/packed, converted at
 * once and in runs of rows; then each of their tensors made wrong in turn: absent, of another type,
 * shorter, longer, and with numbers that point elsewhere. */
#include "base/json.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "model/hf_config.h"
#include "model/quant_parts.h"
#include "tests/golden/records.h"
#include "tests/tap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {
    "awq",           "awq-gemv",        "gptq-2",         "gptq-3",       "gptq-4",
    "gptq-4-order",  "gptq-8",          "gptq-v2",        "ct-int4",      "ct-int4-zeros",
    "ct-int4-order", "ct-int4-channel", "ct-int3",        "ct-int8",      "ct-w8a8",
    "ct-w8a8-zeros", "ct-nvfp4",        "ct-mxfp4",       "ct-fp8-alone", "ct-fp8-groups",
    "ct-fp8-order",  "ct-mxfp8",        "modelopt-nvfp4", "modelopt-fp8", "bnb-nf4",
    "bnb-nf4-plain", "bnb-int8"};

static char root[] = "/tmp/quire-packed-XXXXXX";
static char why[QUANT_WHY_CAP];

/* A folder's matrix. */
struct matrix {
    struct quant_config config;
    struct checkpoint *files;
    int rows, cols;
};

static bool read_config(struct matrix *m, const char *folder)
{
    struct arena arena = {.chunks = NULL};
    const struct json *obj = NULL;
    char path[4400], *text = NULL;
    size_t len = 0;
    bool good = false;

    snprintf(path, sizeof path, "%s/config.json", folder);
    if (config_file(&text, &len, path, (size_t)1 << 20) == ERR_OK &&
        json_parse(&obj, &arena, text, len, NULL, 0) == ERR_OK) {
        m->rows = (int)json_get_int(obj, "rows", 0);
        m->cols = (int)json_get_int(obj, "cols", 0);
        good =
            quant_read(&m->config, json_get(obj, "quantization_config"), why, sizeof why) == ERR_OK;
    }
    arena_reset(&arena);
    mem_free(text);
    return good;
}

/* Rows first .. first + n - 1, as the loader asks for them. */
static bool convert(float *out, const struct quant_part *p, int first, int n)
{
    size_t row_bytes = quant_row_bytes(p);
    uint8_t *bytes = malloc(p->data->bytes);
    int rc;

    memcpy(bytes, p->data->data, p->data->bytes);
    rc = quant_dequantise(out, p, bytes + (size_t)first * row_bytes, first, n);
    free(bytes);
    return rc == ERR_OK;
}

/* A matrix that can be packed: taken apart again, its records give the same weights. */
static void check_records(const char *name, const struct quant_part *p, const float *expected)
{
    /* the others have other bits, an order of their own, or float32 scales */
    static const char *const packs[] = {"awq",     "awq-gemv", "gptq-4",   "gptq-8",
                                        "gptq-v2", "ct-nvfp4", "ct-mxfp4", "modelopt-nvfp4"};
    size_t n = (size_t)p->rows * (size_t)p->cols, n_wrong = 0;
    struct k_format format;
    bool packs_it = quant_packs(&format, p), wanted = false;
    float *got;

    for (size_t i = 0; i < sizeof packs / sizeof packs[0]; i++)
        wanted = wanted || strcmp(name, packs[i]) == 0;
    ok(packs_it == wanted, "%s: is %s", name, wanted ? "packed" : "converted");
    if (!packs_it)
        return;
    got = records_weights(p, &format);
    /* The reference multiplies the scales of NVFP4 first, and rounds that to float32. */
    for (size_t i = 0; i < n; i++)
        n_wrong += format.group_cols == 16 ? fabsf(got[i] - expected[i]) > 0x1p-22f * fabsf(got[i])
                                           : memcmp(&got[i], &expected[i], sizeof got[i]) != 0;
    ok(n_wrong == 0, "%s: records hold the weights of the reference, but for %zu", name, n_wrong);
    free(got);
}

/* A part whose first scale is another. */
struct rescaled {
    struct quant_part part;
    struct tensor scales;
    uint8_t *bytes;
};

static void rescale(struct rescaled *r, const struct quant_part *p, uint8_t scale)
{
    *r = (struct rescaled){.part = *p, .scales = *p->beside[0]};
    r->bytes = malloc(r->scales.bytes);
    memcpy(r->bytes, r->scales.data, r->scales.bytes);
    r->bytes[0] = scale;
    r->scales.data = r->bytes;
    r->part.beside[0] = &r->scales;
}

static void check_scale(const char *name, const struct quant_part *p, uint8_t scale, bool wanted)
{
    size_t n = (size_t)p->rows * (size_t)p->cols;
    float *want = calloc(n, sizeof *want), *got;
    struct k_format format;
    struct rescaled r;
    size_t n_wrong = 0;

    rescale(&r, p, scale);
    if (ok(quant_packs(&format, &r.part) == wanted, "%s: with a scale of 0x%02x it is %s", name,
           scale, wanted ? "packed" : "converted") &&
        wanted && convert(want, &r.part, 0, p->rows)) {
        got = records_weights(&r.part, &format);
        for (size_t i = 0; i < n; i++)
            n_wrong += fabsf(got[i] - want[i]) > 0x1p-22f * fabsf(want[i]);
        ok(n_wrong == 0, "%s: with a scale of 0x%02x: %zu weights are wrong", name, scale, n_wrong);
        free(got);
    }
    free(want), free(r.bytes);
}

/* Floats stay packed while their scales are what records can hold: of NVFP4 positive numbers and 0,
 * of MXFP4 exponents at most 31 below the row's largest, or any others of groups of zeros. */
static void check_float_scales(const char *name, const struct quant_part *p)
{
    const uint8_t *scales = p->beside[0]->data;
    uint8_t most = 0, least = 255;

    if (p->kind->floats->group == 16) {
        check_scale(name, p, 0x00, true), check_scale(name, p, 0x01, true);
        check_scale(name, p, 0x07, true), check_scale(name, p, 0x08, true);
        check_scale(name, p, 0x7e, true), check_scale(name, p, 0x7f, false);
        check_scale(name, p, 0x81, false), check_scale(name, p, 0xff, false);
        return;
    }
    for (int i = 1; i < p->n_groups; i++)
        most = scales[i] > most ? scales[i] : most, least = scales[i] < least ? scales[i] : least;
    check_scale(name, p, (uint8_t)(most - 31), true);
    check_scale(name, p, (uint8_t)(most - 32), false);
    check_scale(name, p, (uint8_t)(least + 31), true);
    check_scale(name, p, (uint8_t)(least + 32), false);
    check_scale(name, p, 255, false);
}

static void check_values(const char *name, const struct matrix *m)
{
    const struct quant_matrix x = {"x", m->rows, m->cols};
    const struct tensor *expected = checkpoint_find(m->files, "x.expected");
    size_t n = (size_t)m->rows * (size_t)m->cols;
    float *got = calloc(n, sizeof *got);
    struct quant_part part;
    bool good = true;

    why[0] = '\0';
    if (!ok(quant_find(&part, m->files, &m->config, &x, why, sizeof why) == ERR_OK,
            "%s: is found: %s", name, why)) {
        free(got);
        return;
    }
    ok(convert(got, &part, 0, m->rows) && memcmp(got, expected->data, 4 * n) == 0,
       "%s: weights equal those of the reference", name);
    memset(got, 0, 4 * n);
    for (int row = 0; row < m->rows; row += 5)
        good = good && convert(got + (size_t)row * (size_t)m->cols, &part, row,
                               m->rows - row < 5 ? m->rows - row : 5);
    ok(good && memcmp(got, expected->data, 4 * n) == 0, "%s: in runs of rows", name);
    check_records(name, &part, (const float *)(const void *)expected->data);
    if (part.kind != NULL && part.kind->floats != NULL)
        check_float_scales(name, &part);
    free(got);
}

/* --- damage ----------------------------------------------------------------------------------- */

enum damage { ABSENT, OTHER_TYPE, SHORTER, LONGER, WILD, DAMAGES };

static const char *const damages[DAMAGES] = {"absent", "of another type", "shorter", "longer",
                                             "wild"};

/* Append a tensor to a file in the making; shape [rows][cols] or as many as dims say. */
static void append(struct buf *header, struct buf *data, const struct tensor *t, enum damage damage)
{
    int64_t dims[TENSOR_DIMS_MAX];
    size_t bytes = t->bytes, begin = data->len;
    uint8_t *copy = calloc(1, 2 * t->bytes + 16);

    memcpy(dims, t->dims, sizeof dims);
    memcpy(copy, t->data, t->bytes);
    if (damage == WILD)
        memset(copy, 0x77, bytes);
    if (t->n_dims > 0 && damage == SHORTER && dims[0] > 0)
        bytes = t->bytes / (size_t)dims[0] * (size_t)(dims[0] - 1), dims[0]--;
    if (t->n_dims > 0 && damage == LONGER)
        bytes = t->bytes / (size_t)dims[0] * (size_t)(dims[0] + 1), dims[0]++;
    buf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->len > 1 ? "," : "",
               t->name, damage == OTHER_TYPE ? "I16" : t->dtype);
    if (damage == OTHER_TYPE)
        bytes &= ~(size_t)1;
    for (int i = 0; i < (damage == OTHER_TYPE ? 1 : t->n_dims); i++)
        buf_printf(header, "%s%lld", i > 0 ? "," : "",
                   damage == OTHER_TYPE ? (long long)(bytes / 2) : (long long)dims[i]);
    buf_add(data, copy, bytes);
    buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", begin, data->len);
    free(copy);
}

/* The matrix with one tensor damaged. */
static struct checkpoint *damaged(const struct matrix *m, const char *const *all, int n_all,
                                  int which, enum damage damage)
{
    struct buf header = {.bytes = NULL}, data = {.bytes = NULL};
    struct checkpoint *files = NULL;
    char path[200];
    uint64_t len;
    FILE *f;

    buf_add_byte(&header, '{');
    for (int i = 0; i < n_all; i++) {
        const struct tensor *t = checkpoint_find(m->files, all[i]);

        if (i != which)
            append(&header, &data, t, DAMAGES);
        else if (damage != ABSENT)
            append(&header, &data, t, damage);
    }
    buf_add_byte(&header, '}');
    len = header.len;
    snprintf(path, sizeof path, "%s/model.safetensors", root);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(&len, 8, 1, f) != 1 || fwrite(header.bytes, len, 1, f) != 1 ||
        fwrite(data.bytes, 1, data.len, f) != data.len || fclose(f) != 0 ||
        checkpoint_open(&files, root) != ERR_OK) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
    buf_fini(&header);
    buf_fini(&data);
    return files;
}

/* Refused with a sentence, or converted without a read outside of the tensors (a sanitizer sees
 * it). */
static bool is_safe(const struct matrix *m, struct checkpoint *files, bool *refused)
{
    const struct quant_matrix x = {"x", m->rows, m->cols};
    float *got = calloc((size_t)m->rows * (size_t)m->cols, sizeof *got);
    struct quant_part part;
    bool good = true;

    why[0] = '\0';
    *refused = quant_find(&part, files, &m->config, &x, why, sizeof why) != ERR_OK;
    if (*refused)
        good = why[0] != '\0';
    else if (part.kind != NULL)
        good = convert(got, &part, 0, m->rows);
    checkpoint_close(files);
    free(got);
    return good;
}

static void check_damage(const char *name, const struct matrix *m)
{
    static const char *const endings[] = {"weight",
                                          "weight_packed",
                                          "qweight",
                                          "scales",
                                          "qzeros",
                                          "g_idx",
                                          "weight_scale",
                                          "weight_zero_point",
                                          "weight_g_idx",
                                          "weight_global_scale",
                                          "weight_scale_2",
                                          "weight.absmax",
                                          "weight.quant_map",
                                          "weight.quant_state.bitsandbytes__nf4",
                                          "weight.nested_absmax",
                                          "weight.nested_quant_map",
                                          "SCB"};
    static char text[sizeof endings / sizeof endings[0]][60];
    const char *all[sizeof endings / sizeof endings[0]];
    int n = 0, n_refused = 0, n_unsafe = 0, n_unclear = 0;

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(text[n], sizeof text[n], "x.%s", endings[i]);
        if (checkpoint_find(m->files, text[n]) != NULL)
            all[n] = text[n], n++;
    }
    for (int i = 0; i < n; i++) {
        for (int damage = 0; damage < DAMAGES; damage++) {
            bool refused = false;

            if (!is_safe(m, damaged(m, all, n, i, (enum damage)damage), &refused)) {
                printf("# %s: %s %s: %s\n", name, all[i], damages[damage], why);
                n_unsafe++;
            }
            n_refused += refused;
            n_unclear += refused && damage == OTHER_TYPE &&
                         strstr(all[i], "weight_packed") != NULL && strstr(why, "I16") == NULL;
            n_unclear += refused && damage == OTHER_TYPE && strstr(all[i], "qweight") != NULL &&
                         strstr(why, "I16") == NULL;
        }
    }
    ok(n_unclear == 0, "%s: elements of another type are refused by that: %s", name, why);
    ok(n_unsafe == 0 && n_refused >= 2 * n, "%s: %d of %d damages are refused, none leads outside",
       name, n_refused, DAMAGES * n);
}

/* --- config.json ------------------------------------------------------------------------------ */

static int read_text(const char *text)
{
    struct arena arena = {.chunks = NULL};
    struct quant_config c;
    const struct json *obj;
    int rc;

    if (json_parse(&obj, &arena, text, strlen(text), NULL, 0) != ERR_OK)
        exit(1);
    why[0] = '\0';
    rc = quant_read(&c, obj, why, sizeof why);
    arena_reset(&arena);
    return rc;
}

static void test_config(void)
{
    is_int(read_text("{\"quant_method\":\"awq\",\"version\":\"GEMM\"}"), ERR_OK,
           "names in any case");
    is_int(read_text("{\"quant_method\":\"awq\"}"), ERR_OK, "a version is not needed");
    is_int(read_text("{\"quant_method\":\"awq\",\"version\":\"marlin\"}"), ERR_UNSUPPORTED,
           "another layout");
    ok(strstr(why, "marlin") != NULL, "is named: %s", why);
    is_int(read_text("{\"quant_method\":\"gptq\",\"checkpoint_format\":\"bitblas\"}"),
           ERR_UNSUPPORTED, "another form of GPTQ");
    is_int(read_text("{\"quant_method\":\"gptq\",\"bits\":4,\"pack_dtype\":\"int16\"}"),
           ERR_UNSUPPORTED, "words of another length");
    ok(strstr(why, "pack_dtype") != NULL && strstr(why, "int16") != NULL, "are named: %s", why);
    is_int(read_text("{\"quant_method\":\"gptq\",\"bits\":4,\"pack_dtype\":\"int32\"}"), ERR_OK,
           "those of 32 bits are read");
    is_int(read_text("{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}"),
           ERR_UNSUPPORTED, "another algorithm of ModelOpt");
    is_int(read_text("{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
                     "\"transform_config\":{\"a\":1}}"),
           ERR_UNSUPPORTED, "a transform changes the numbers");
}

/* Which matrices a mix names, in both forms. */
static void test_mixed(void)
{
    static const char *const texts[] = {
        "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{"
        "\"model.layers.3.mlp.up_proj\":{\"quant_algo\":\"NVFP4\",\"group_size\":16},"
        "\"model.layers.4.mlp.up_proj\":{\"quant_algo\":\"FP8\"},"
        "\"lm_head\":{\"quant_algo\":\"FP8\"},"
        "\"model.layers.999999999999999999999.mlp.up_proj\":{\"quant_algo\":\"FP8\"},"
        "\"model.layers.-1.mlp.up_proj\":{\"quant_algo\":\"FP8\"},\"model.layers.\":7,"
        "\"model.layers.5.mlp.experts.7.up_proj\":{\"quant_algo\":\"FP8\"}}}",
        "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"config_groups\":{"
        "\"group_0\":{\"weights\":{\"num_bits\":4},\"targets\":[\"model.layers.3.mlp.up_proj\",7]},"
        "\"group_1\":{\"weights\":{\"num_bits\":8},\"targets\":[\"model.layers.4.mlp.up_proj\","
        "\"model.layers.5.mlp.experts.7.up_proj\"]},\"group_2\":3}}"};

    for (int i = 0; i < 2; i++) {
        struct arena arena = {.chunks = NULL};
        struct quant_config c;
        const struct json *obj;

        if (json_parse(&obj, &arena, texts[i], strlen(texts[i]), NULL, 0) != ERR_OK)
            exit(1);
        is_int(quant_read(&c, obj, why, sizeof why), ERR_OK, "a mix is read");
        ok(quant_mixed_of(&c.mix, "language_model.model.layers.3.mlp.up_proj") == QUANT_MIXED_FP4 &&
               quant_mixed_of(&c.mix, "model.layers.4.mlp.up_proj") == QUANT_MIXED_FP8 &&
               quant_mixed_of(&c.mix, "model.layers.5.mlp.experts.0.up_proj") == QUANT_MIXED_FP8,
           "and what it names is in its format");
        ok(quant_mixed_of(&c.mix, "model.layers.5.mlp.up_proj") == QUANT_MIXED_PLAIN &&
               quant_mixed_of(&c.mix, "model.layers.3.mlp.down_proj") == QUANT_MIXED_PLAIN &&
               quant_mixed_of(&c.mix, "lm_head") == QUANT_MIXED_PLAIN,
           "and nothing else is");
        arena_reset(&arena);
    }
}

/* Plain numbers as bytes are what quant_round() gives: rows of noise, one of zeros, one with a
 * single large number, one with none above 0; a part of a row as the whole. */
static void test_rounded(void)
{
    enum { ROWS = 32, COLS = 256, N = ROWS * COLS };
    static float x[N], rounded[N];
    static uint8_t codes[N];
    const struct tensor t = {.dtype = "F32", .data = (const uint8_t *)x, .bytes = sizeof x};
    const struct quant_part part = {.data = &t, .rows = ROWS, .cols = COLS};
    double worst = 0.0;
    int n_other = 0;

    for (int i = 0; i < N; i++) {
        x[i] = (float)((i * 7919 + i / 13) % 2001 - 1000) / 997.0f;
        x[i] = i / COLS == 3 ? 0.0f : i / COLS == 5 ? -fabsf(x[i]) : x[i];
    }
    x[9 * COLS + 77] = 1000.0f;
    ok(quant_round(rounded, &t, 0, ROWS, COLS, K_INT8) == ERR_OK, "rows are rounded");
    for (int row = 0; row < ROWS; row++) {
        const float *own = x + row * COLS;
        float scale =
            quant_bytes(codes + row * COLS, &part, t.data, (struct quant_run){row, 0, 128});
        float most = 0.0f;

        n_other += scale != quant_bytes(codes + row * COLS + 128, &part, t.data,
                                        (struct quant_run){row, 128, 128});
        for (int i = 0; i < COLS; i++)
            most = fmaxf(most, fabsf(own[i]));
        for (int i = 0; i < COLS; i++) {
            float got = (float)(int8_t)codes[(size_t)(row * COLS) + K_BYTE_AT((size_t)i)] * scale;

            n_other += got != rounded[row * COLS + i] || (row == 3 && got != 0.0f);
            worst = fmax(worst, most > 0.0f ? (double)(fabsf(own[i] - got) / most) : 0.0);
        }
    }
    ok(n_other == 0, "bytes are what quant_round() gives, but for %d", n_other);
    /* half a step of 127; the scale's own rounding cuts the outermost by 1/512 at most */
    ok(worst < 0.5 / 127.0 + 1.0 / 512.0, "rounding is within %.2e of a row's largest", worst);
}

/* A number that is none spoils its row, as it does where nothing is rounded, and no other. */
static void test_not_finite(void)
{
    enum { ROWS = 4, COLS = 16, N = ROWS * COLS };
    float x[N], rounded[N];
    uint8_t codes[COLS];
    const struct tensor t = {.dtype = "F32", .data = (const uint8_t *)x, .bytes = sizeof x};
    const struct quant_part part = {.data = &t, .rows = ROWS, .cols = COLS};

    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    x[1 * COLS + 3] = NAN;
    x[2 * COLS + 5] = INFINITY;
    x[3 * COLS + 7] = -INFINITY;
    ok(quant_round(rounded, &t, 0, ROWS, COLS, K_INT8) == ERR_OK && !isnan(rounded[0]),
       "a row of numbers is rounded");
    for (int row = 0; row < ROWS; row++) {
        float scale = quant_bytes(codes, &part, t.data, (struct quant_run){row, 0, COLS});
        int n = 0;

        for (int i = 0; i < COLS; i++)
            n += isnan(rounded[row * COLS + i]) && isnan((float)(int8_t)codes[i] * scale);
        is_int(n, row == 0 ? 0 : COLS, "row %d: so many are not numbers", row);
    }
}

/* Blocks of MXFP4 as codes and exponents: the values of the blocks, of any of their rows. */
static void test_split(void)
{
    enum { ROWS = 5, COLS = 96, GROUPS = COLS / 32, SIZE = ROWS * GROUPS * 17 };
    static const float of_code[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    uint8_t bytes[SIZE], codes[SIZE], exponents[ROWS * GROUPS];
    const struct tensor t = {.dtype = "MXFP4", .data = bytes, .bytes = SIZE};
    struct quant_part p = {.data = &t, .rows = ROWS, .cols = COLS};
    float want[ROWS * COLS];
    int n_same = 0;

    for (int i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i % 17 == 0 ? 118 + i % 11 : i * 37 + i / 17);
    memcpy(codes, bytes, SIZE);
    ref_blocks(want, K_MXFP4, bytes, ROWS * GROUPS);
    ok(quant_take_blocks(&p) == ERR_OK && p.format.elem == K_MXFP4, "blocks of MXFP4 are known");
    quant_split_mxfp4(&p);
    ok(quant_is_split_mxfp4(p.kind) && k_format_is_mxfp4(&p.format), "they are split");
    p.kind->unpack(codes, SIZE);
    for (int row = 0; row < ROWS; row++) {
        quant_exponents_mxfp4(exponents, &p, row, 0, 1);
        quant_exponents_mxfp4(exponents + 1, &p, row, 1, GROUPS - 1);
        for (int i = 0; i < COLS; i++) {
            int code = codes[(row * COLS + i) / 2] >> (4 * (i % 2)) & 15;
            float value = ldexpf(of_code[code & 7], exponents[i / 32] - 127);

            n_same += (code & 8 ? -value : value) == want[row * COLS + i];
        }
    }
    is_int(n_same, ROWS * COLS, "codes and exponents give the blocks' values");
}

int main(void)
{
    if (mkdtemp(root) == NULL)
        tap_skip_all("no temporary folder");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct matrix m = {.files = NULL};
        char below[100], folder[4200];

        snprintf(below, sizeof below, "tests/golden/packed/%s", names[i]);
        snprintf(folder, sizeof folder, "%s", tap_path(below));
        if (ok(read_config(&m, folder) && checkpoint_open(&m.files, folder) == ERR_OK,
               "%s: opens: %s", names[i], why)) {
            check_values(names[i], &m);
            check_damage(names[i], &m);
        }
        checkpoint_close(m.files);
    }
    test_config();
    test_mixed();
    test_rounded();
    test_not_finite();
    test_split();
    snprintf(why, sizeof why, "%s/model.safetensors", root);
    (void)unlink(why);
    (void)rmdir(root);
    return tap_done();
}
