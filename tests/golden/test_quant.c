/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of e4m3 and of packed codes: the demo model, written in each format, must give what
 * its twin gives, whose tensors hold the same numbers as float32; rounding while loading must give
 * what the checkpoint rounded the same way gives; and the rounded model must still say the golden
 * texts.
 *
 * On the cpu device, where all are taken apart while loading, the bits are equal. With
 * QUIRE_TEST_DEVICE=cuda inputs of products are rounded too, or the twin's weights: there logits
 * are near. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/device.h"
#include "kernels/e4m3.h"
#include "model/hf_config.h"
#include "model/quant.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define DATA_CAP   ((size_t)64 << 20)
#define HEADER_CAP ((size_t)1 << 20)

enum scaling { PER_TENSOR, PER_ROW, PER_BLOCK, PACKED };
enum layout { AWQ, GPTQ, COMPRESSED_INT4, COMPRESSED_INT8, NVFP4, MODELOPT_NVFP4, MXFP4 };

#define COMPRESSED(weights, inputs)                                                               \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{" \
    "\"group_0\":{\"weights\":{\"num_bits\":8,\"type\":\"float\"," weights "},"                   \
    "\"input_activations\":{\"num_bits\":8,\"type\":\"float\"," inputs "}}},\"ignore\":[\"x\"]}"

static const struct format {
    const char *name;
    enum scaling scaling;
    const char *scale_name;  /* behind the tensor's stem */
    const char *scale_dtype; /* F32, BF16 or F8_E8M0 */
    bool scale_is_column;    /* [n][1] in place of [n] */
    bool input_scale;
    const char *left_out; /* these stay as they were; NULL: none */
    const char *config;   /* the value of quantization_config */
    /* Of PACKED: columns of a group, 0: a row; whether zero points differ; of a code, 0: 4. */
    enum layout layout;
    int group;
    bool zeros;
    int bits;
} formats[] = {
    {"fp8, static", PER_TENSOR, "weight_scale", "F32", false, true, NULL,
     "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"ignored_layers\":[\"x\"]}", AWQ,
     0, false, 0},
    {"fp8 in blocks", PER_BLOCK, "weight_scale_inv", "F32", false, false, NULL,
     "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\","
     "\"weight_block_size\":[128,128]}",
     AWQ, 0, false, 0},
    {"fp8 in blocks, exponents as scales", PER_BLOCK, "weight_scale_inv", "F8_E8M0", false, false,
     NULL, "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", AWQ, 0, false, 0},
    {"compressed-tensors FP8", PER_TENSOR, "weight_scale", "BF16", false, true, "o_proj",
     COMPRESSED("\"strategy\":\"tensor\"", "\"strategy\":\"tensor\",\"dynamic\":false"), AWQ, 0,
     false, 0},
    {"FP8_DYNAMIC", PER_ROW, "weight_scale", "BF16", true, false, "down_proj",
     COMPRESSED("\"strategy\":\"channel\"", "\"strategy\":\"token\",\"dynamic\":true"), AWQ, 0,
     false, 0},
    {"FP8_BLOCK", PER_BLOCK, "weight_scale", "BF16", false, false, NULL,
     COMPRESSED("\"strategy\":\"block\",\"block_structure\":[128,128]",
                "\"strategy\":\"group\",\"group_size\":128,\"dynamic\":true"),
     AWQ, 0, false, 0},
    {"rows as rounding makes them", PER_ROW, "weight_scale", "F32", false, false, NULL,
     COMPRESSED("\"strategy\":\"channel\"", "\"strategy\":\"token\",\"dynamic\":true"), AWQ, 0,
     false, 0},
    {.name = "AWQ",
     .scaling = PACKED,
     .scale_dtype = "F16",
     .config = "{\"quant_method\":\"awq\",\"version\":\"gemm\",\"bits\":4,\"group_size\":64}",
     .layout = AWQ,
     .group = 64,
     .zeros = true},
    {.name = "GPTQ",
     .scaling = PACKED,
     .scale_dtype = "F16",
     .left_out = "down_proj",
     .config = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"sym\":true}",
     .layout = GPTQ,
     .group = 128},
    {.name = "GPTQ with zero points",
     .scaling = PACKED,
     .scale_dtype = "F16",
     .config = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,\"sym\":false}",
     .layout = GPTQ,
     .group = 32,
     .zeros = true},
    {.name = "packed integers",
     .scaling = PACKED,
     .scale_dtype = "BF16",
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     .layout = COMPRESSED_INT4,
     .group = 32},
    {.name = "packed integers with zero points",
     .scaling = PACKED,
     .scale_dtype = "BF16",
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     .layout = COMPRESSED_INT4,
     .group = 128,
     .zeros = true},
    {.name = "GPTQ of 8 bits",
     .scaling = PACKED,
     .scale_dtype = "F16",
     .config = "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":32,\"sym\":false}",
     .layout = GPTQ,
     .bits = 8,
     .group = 32,
     .zeros = true},
    {.name = "INT8 of compressed-tensors",
     .scaling = PACKED,
     .scale_dtype = "BF16",
     .left_out = "o_proj",
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
     .layout = COMPRESSED_INT8,
     .bits = 8,
     .group = 128,
     .zeros = true},
    {.name = "W8A8 of compressed-tensors",
     .scaling = PACKED,
     .scale_dtype = "BF16",
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","
               "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":8,"
               "\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8,"
               "\"strategy\":\"token\",\"dynamic\":true}}}}",
     .layout = COMPRESSED_INT8,
     .bits = 8},
    {.name = "NVFP4",
     .scaling = PACKED,
     .left_out = "o_proj",
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\"}",
     .layout = NVFP4,
     .group = 16},
    {.name = "NVFP4 of ModelOpt",
     .scaling = PACKED,
     .config = "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
     .layout = MODELOPT_NVFP4,
     .group = 16},
    {.name = "MXFP4",
     .scaling = PACKED,
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\"}",
     .layout = MXFP4,
     .group = 32},
};

static bool on_gpu;
static int rows_a_step = RUN_SEQS;
static const char *kv_type = "auto"; /* of logits_of() */
static size_t layer_bytes;           /* of the model that logits_of() opened last, less the table */
static char root[] = "/tmp/quire-quant-XXXXXX";

/* --- writing a checkpoint -------------------------------------------------------------- */

struct file {
    char *header;
    size_t header_len, data_len;
    uint8_t *data;
};

static void begin(struct file *f)
{
    f->header = malloc(HEADER_CAP);
    f->data = malloc(DATA_CAP);
    f->data_len = 0;
    f->header_len = (size_t)snprintf(f->header, HEADER_CAP, "{");
}

static void add(struct file *f, const char *name, const char *dtype, const char *shape,
                const void *bytes, size_t n)
{
    if (f->data_len + n > DATA_CAP)
        exit(1);
    memcpy(f->data + f->data_len, bytes, n);
    f->header_len += (size_t)snprintf(
        f->header + f->header_len, HEADER_CAP - f->header_len,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
        f->header_len == 1 ? "" : ",", name, dtype, shape, f->data_len, f->data_len + n);
    f->data_len += n;
}

static void put(const char *path, const void *a, size_t a_len, const void *b, size_t b_len)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(a, 1, a_len, f) != a_len || fwrite(b, 1, b_len, f) != b_len ||
        fclose(f) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
}

static void finish(struct file *f, const char *folder, const char *config)
{
    char path[300], *text = malloc(HEADER_CAP + 8);
    uint64_t len = f->header_len + 1;

    memcpy(text, &len, 8);
    memcpy(text + 8, f->header, f->header_len);
    text[8 + f->header_len] = '}';
    (void)mkdir(folder, 0700);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    put(path, text, 8 + len, f->data, f->data_len);
    snprintf(path, sizeof path, "%s/config.json", folder);
    put(path, config, strlen(config), "", 0);
    free(text), free(f->header), free(f->data);
}

/* --- one matrix in one format ---------------------------------------------------------- */

/* A scale as its type holds it; bytes gets it. */
static float hold(const char *dtype, float scale, uint8_t *bytes)
{
    uint32_t bits;

    memcpy(&bits, &scale, 4);
    if (strcmp(dtype, "BF16") == 0)
        bits = (bits + 0x8000U) & 0xffff0000U;
    if (strcmp(dtype, "F8_E8M0") == 0)
        bits = (bits + 0x7fffffU) & 0x7f800000U; /* the next power of two */
    memcpy(&scale, &bits, 4);
    if (strcmp(dtype, "F32") == 0)
        memcpy(bytes, &bits, 4);
    else if (strcmp(dtype, "BF16") == 0)
        memcpy(bytes, (char *)&bits + 2, 2);
    else
        *bytes = (uint8_t)(bits >> 23);
    return scale;
}

/* Round w [rows][cols] as the format says: the tensors into q, the numbers they mean into twin. */
static void round_matrix(const struct format *t, struct file *q, struct file *twin,
                         const char *stem, const float *w, int rows, int cols)
{
    int high = t->scaling == PER_TENSOR ? rows : t->scaling == PER_ROW ? 1 : 128;
    int wide = t->scaling == PER_BLOCK ? 128 : cols, n = 0;
    int elem = strcmp(t->scale_dtype, "F32") == 0 ? 4 : strcmp(t->scale_dtype, "BF16") == 0 ? 2 : 1;
    k_e4m3 *data = malloc((size_t)rows * (size_t)cols);
    float *means = malloc((size_t)rows * (size_t)cols * 4);
    uint8_t *scales = malloc((size_t)rows * (size_t)cols * 4);
    char name[300], shape[60];

    for (int r0 = 0; r0 < rows; r0 += high) {
        for (int c0 = 0; c0 < cols; c0 += wide, n++) {
            int r1 = r0 + high < rows ? r0 + high : rows, c1 = c0 + wide < cols ? c0 + wide : cols;
            float amax = 0.0f, scale;

            for (int r = r0; r < r1; r++) {
                for (int c = c0; c < c1; c++)
                    amax = fmaxf(amax, fabsf(w[r * cols + c]));
            }
            scale = hold(t->scale_dtype, k_e4m3_scale(amax), scales + n * elem);
            for (int r = r0; r < r1; r++) {
                for (int c = c0; c < c1; c++) {
                    data[r * cols + c] = k_e4m3_round(w[r * cols + c] * (1.0f / scale));
                    means[r * cols + c] = k_e4m3_value(data[r * cols + c]) * scale;
                }
            }
        }
    }
    snprintf(name, sizeof name, "%s.weight", stem);
    snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    add(q, name, "F8_E4M3", shape, data, (size_t)rows * (size_t)cols);
    add(twin, name, "F32", shape, means, (size_t)rows * (size_t)cols * 4);
    if (t->scaling == PER_BLOCK)
        snprintf(shape, sizeof shape, "%d,%d", (rows + 127) / 128, (cols + 127) / 128);
    else if (t->scaling == PER_ROW)
        snprintf(shape, sizeof shape, t->scale_is_column ? "%d,1" : "%d", rows);
    else
        snprintf(shape, sizeof shape, "1");
    snprintf(name, sizeof name, "%s.%s", stem, t->scale_name);
    add(q, name, t->scale_dtype, shape, scales, (size_t)(n * elem));
    if (t->input_scale) {
        const float input = 0.25f; /* inputs up to 112: more than the demo model has */

        snprintf(name, sizeof name, "%s.input_scale", stem);
        add(q, name, "F32", "", &input, 4);
    }
    free(data), free(means), free(scales);
}

/* --- one matrix of packed codes -------------------------------------------------------------- */

/* A matrix of codes; numbers of groups are [rows][groups]. */
struct coded {
    int rows, cols, groups;
    uint8_t *codes, *zeros;
    uint16_t *scales;
};

/* Numbers of four bits [n_lines][n], eight to a word: element i of a line goes to the word
 * [i / 8][line] or, by lines, to [line][i / 8]; or of eight bits, four to a word. */
struct words {
    const uint8_t *numbers;
    int n_lines, n;
    bool by_lines, is_awq; /* AWQ's order of the eight */
    int bits;
};

static void add_words(struct file *f, const char *stem, const char *ending, struct words w)
{
    static const int awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t n = (size_t)w.n_lines * (size_t)w.n;
    int each = 32 / w.bits;
    uint32_t *words = calloc(n / (size_t)each, 4);
    char name[300], shape[60];

    for (int line = 0; line < w.n_lines; line++) {
        for (int i = 0; i < w.n; i++) {
            int at = w.by_lines ? line * (w.n / each) + i / each : i / each * w.n_lines + line;
            int place = w.is_awq ? awq[i % 8] : i % each;

            words[at] |= (uint32_t)w.numbers[line * w.n + i] << w.bits * place;
        }
    }
    snprintf(name, sizeof name, "%s.%s", stem, ending);
    snprintf(shape, sizeof shape, "%d,%d", w.by_lines ? w.n_lines : w.n / each,
             w.by_lines ? w.n / each : w.n_lines);
    add(f, name, "I32", shape, words, n / (size_t)each * 4);
    free(words);
}

/* The transpose of [rows][cols]; less is taken from every number, modulo 16 or 256. */
static uint8_t *turned(const uint8_t *from, int rows, int cols, int less, int bits)
{
    uint8_t *to = malloc((size_t)rows * (size_t)cols);

    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++)
            to[c * rows + r] = (uint8_t)((from[r * cols + c] - less) & ((1 << bits) - 1));
    }
    return to;
}

static void add_scales(struct file *f, const char *stem, const struct coded *m, const char *ending,
                       const char *dtype, bool by_group)
{
    size_t n = (size_t)m->rows * (size_t)m->groups;
    uint16_t *scales = malloc(2 * n);
    char name[300], shape[60];

    for (int r = 0; r < m->rows; r++) {
        for (int g = 0; g < m->groups; g++)
            scales[by_group ? g * m->rows + r : r * m->groups + g] = m->scales[r * m->groups + g];
    }
    snprintf(name, sizeof name, "%s.%s", stem, ending);
    snprintf(shape, sizeof shape, "%d,%d", by_group ? m->groups : m->rows,
             by_group ? m->rows : m->groups);
    add(f, name, dtype, shape, scales, 2 * n);
    free(scales);
}

/* Numbers of eight bits, less 128. */
static void add_bytes(struct file *f, const char *stem, const char *ending, const uint8_t *numbers,
                      int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    uint8_t *bytes = malloc(n);
    char name[300], shape[60];

    for (size_t i = 0; i < n; i++)
        bytes[i] = numbers[i] ^ 0x80;
    snprintf(name, sizeof name, "%s.%s", stem, ending);
    snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    add(f, name, "I8", shape, bytes, n);
    free(bytes);
}

static int bits_of(const struct format *t)
{
    return t->bits > 0 ? t->bits : 4;
}

static void add_coded(const struct format *t, struct file *q, const char *stem,
                      const struct coded *m)
{
    int bits = bits_of(t);
    uint8_t *codes = turned(m->codes, m->rows, m->cols, 0, bits);
    uint8_t *zeros = turned(m->zeros, m->rows, m->groups, t->layout == GPTQ ? 1 : 0, bits);

    switch (t->layout) {
    case AWQ:
        add_words(q, stem, "qweight", (struct words){codes, m->cols, m->rows, true, true, bits});
        add_words(q, stem, "qzeros", (struct words){zeros, m->groups, m->rows, true, true, bits});
        add_scales(q, stem, m, "scales", t->scale_dtype, true);
        break;
    case GPTQ:
        add_words(q, stem, "qweight",
                  (struct words){m->codes, m->rows, m->cols, false, false, bits});
        add_words(q, stem, "qzeros", (struct words){zeros, m->groups, m->rows, true, false, bits});
        add_scales(q, stem, m, "scales", t->scale_dtype, true);
        break;
    case COMPRESSED_INT4:
        add_words(q, stem, "weight_packed",
                  (struct words){m->codes, m->rows, m->cols, true, false, bits});
        if (t->zeros)
            add_words(q, stem, "weight_zero_point",
                      (struct words){zeros, m->groups, m->rows, false, false, bits});
        add_scales(q, stem, m, "weight_scale", t->scale_dtype, false);
        break;
    case COMPRESSED_INT8:
        add_bytes(q, stem, "weight", m->codes, m->rows, m->cols);
        if (t->zeros)
            add_bytes(q, stem, "weight_zero_point", m->zeros, m->rows, m->groups);
        add_scales(q, stem, m, "weight_scale", t->scale_dtype, false);
        break;
    case NVFP4:
    case MODELOPT_NVFP4:
    case MXFP4: break; /* add_floats() */
    }
    free(codes), free(zeros);
}

/* Round group i of a matrix to codes; out gets what they mean. */
static void code_group(const struct format *t, float *out, const struct coded *m, size_t i,
                       const float *w)
{
    uint8_t *codes = m->codes + i * (size_t)t->group, *zero = m->zeros + i;
    float low = 0.0f, high = 0.0f, scale, most = (float)((1 << bits_of(t)) - 1);
    float middle = (most + 1.0f) / 2.0f;
    _Float16 half;

    for (int k = 0; k < t->group; k++)
        low = fminf(low, w[k]), high = fmaxf(high, w[k]);
    scale = t->zeros ? (high - low) / most : fmaxf(high / (middle - 1.0f), -low / middle);
    scale = fmaxf(scale, bits_of(t) == 8 ? 1e-6f : 1e-4f);
    half = (_Float16)scale;
    memcpy(&m->scales[i], &half, 2);
    if (strcmp(t->scale_dtype, "BF16") == 0)
        scale = hold("BF16", scale, (uint8_t *)&m->scales[i]);
    else
        scale = (float)half;
    *zero = (uint8_t)(t->zeros ? fminf(roundf(-low / scale), most) : middle);
    for (int k = 0; k < t->group; k++) {
        codes[k] = (uint8_t)fminf(fmaxf(rintf(w[k] / scale) + (float)*zero, 0.0f), most);
        out[k] = (float)(codes[k] - *zero) * scale;
    }
}

/* --- one matrix of floats of four bits ------------------------------------------------------- */

/* The code of e2m1 that is nearest to x, and what it means. */
static uint8_t nearest(float x, float *means)
{
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    uint8_t best = 0;

    for (uint8_t i = 1; i < 8; i++) {
        if (fabsf(fabsf(x) - values[i]) < fabsf(fabsf(x) - values[best]))
            best = i;
    }
    *means = x < 0.0f ? -values[best] : values[best];
    return x < 0.0f ? best | 8 : best;
}

/* The scale of a group, whose largest element is amax, as a byte and as the loader reads it. */
static float float_scale(enum layout layout, float amax, float global, uint8_t *byte)
{
    if (layout == MXFP4)
        return hold("F8_E8M0", amax / 6.0f, byte);
    *byte = k_e4m3_round(amax / 6.0f * (layout == NVFP4 ? global : 1.0f / global));
    *byte = *byte == 0 ? 1 : *byte;
    return layout == NVFP4 ? k_e4m3_value(*byte) / global : k_e4m3_value(*byte) * global;
}

static void add_floats(const struct format *t, struct file *q, float *means, const char *stem,
                       const struct coded *m, const float *w)
{
    size_t n = (size_t)m->rows * (size_t)m->cols, n_groups = n / (size_t)t->group;
    uint8_t *bytes = calloc(n, 1), *scales = malloc(n_groups);
    float amax = 1e-6f, global;
    char name[300], shape[60];

    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(w[i]));
    global = t->layout == NVFP4 ? 6.0f * K_E4M3_MAX / amax : amax / (6.0f * K_E4M3_MAX);
    for (size_t i = 0; i < n; i += (size_t)t->group) {
        float most = 1e-6f, scale;

        for (size_t k = i; k < i + (size_t)t->group; k++)
            most = fmaxf(most, fabsf(w[k]));
        scale = float_scale(t->layout, most, global, &scales[i / (size_t)t->group]);
        for (size_t k = i; k < i + (size_t)t->group; k++) {
            bytes[k / 2] =
                (uint8_t)(bytes[k / 2] | nearest(w[k] / scale, &means[k]) << 4 * (k % 2));
            means[k] *= scale;
        }
    }
    snprintf(name, sizeof name, "%s.%s", stem,
             t->layout == MODELOPT_NVFP4 ? "weight" : "weight_packed");
    snprintf(shape, sizeof shape, "%d,%d", m->rows, m->cols / 2);
    add(q, name, "U8", shape, bytes, n / 2);
    snprintf(name, sizeof name, "%s.weight_scale", stem);
    snprintf(shape, sizeof shape, "%d,%d", m->rows, m->cols / t->group);
    add(q, name, t->layout == MXFP4 ? "U8" : "F8_E4M3", shape, scales, n_groups);
    snprintf(name, sizeof name, "%s.%s", stem,
             t->layout == NVFP4 ? "weight_global_scale" : "weight_scale_2");
    if (t->layout != MXFP4)
        add(q, name, "F32", "1", &global, 4);
    free(bytes), free(scales);
}

/* m has its sizes. */
static void pack_matrix(const struct format *of, struct file *q, struct file *twin,
                        const char *stem, struct coded m, const float *w)
{
    struct format own = *of, *t = &own;
    size_t n = (size_t)m.rows * (size_t)m.cols, n_groups;
    float *means = malloc(n * sizeof *means);
    char name[300], shape[60];

    if (own.group == 0) /* rows */
        own.group = m.cols;
    n_groups = n / (size_t)t->group;
    if (t->layout >= NVFP4)
        add_floats(t, q, means, stem, &m, w);
    m.groups = m.cols / t->group;
    m.codes = malloc(n), m.zeros = malloc(n_groups), m.scales = malloc(2 * n_groups);
    for (size_t i = 0; i < n_groups && t->layout < NVFP4; i++)
        code_group(t, means + i * (size_t)t->group, &m, i, w + i * (size_t)t->group);
    if (t->layout < NVFP4)
        add_coded(t, q, stem, &m);
    snprintf(name, sizeof name, "%s.weight", stem);
    snprintf(shape, sizeof shape, "%d,%d", m.rows, m.cols);
    add(twin, name, "F32", shape, means, n * sizeof *means);
    free(m.codes), free(m.zeros), free(m.scales), free(means);
}

/* --- the demo model -------------------------------------------------------------------- */

struct demo {
    struct checkpoint *files;
    char dir[4200], *config;
    struct hf_config c;
};

static void copy(const struct demo *d, struct file *q, struct file *twin, const char *name)
{
    const struct tensor *t = checkpoint_find(d->files, name);
    char shape[60];

    if (t == NULL) {
        printf("Bail out! the demo model has no %s\n", name);
        exit(1);
    }
    if (t->n_dims == 1)
        snprintf(shape, sizeof shape, "%d", (int)t->dims[0]);
    else
        snprintf(shape, sizeof shape, "%d,%d", (int)t->dims[0], (int)t->dims[1]);
    add(q, name, t->dtype, shape, t->data, t->bytes);
    add(twin, name, t->dtype, shape, t->data, t->bytes);
}

static void write_matrix(const struct demo *d, const struct format *t, struct file *q,
                         struct file *twin, const char *stem)
{
    char name[300];
    const struct tensor *from;
    float *w;
    size_t n;

    snprintf(name, sizeof name, "%s.weight", stem);
    if (t->left_out != NULL && strstr(stem, t->left_out) != NULL) {
        copy(d, q, twin, name);
        return;
    }
    from = checkpoint_find(d->files, name);
    n = from->bytes / 2;
    w = malloc(n * 4);
    for (size_t i = 0; i < n; i++)
        w[i] = quant_number(from, i);
    if (t->scaling == PACKED)
        pack_matrix(t, q, twin, stem,
                    (struct coded){.rows = (int)from->dims[0], .cols = (int)from->dims[1]}, w);
    else
        round_matrix(t, q, twin, stem, w, (int)from->dims[0], (int)from->dims[1]);
    free(w);
}

/* Write the model in a format to `folder`, and its twin of float32 to `twin_folder`. */
static void write_model(const struct demo *d, const struct format *t, const char *folder,
                        const char *twin_folder)
{
    static const char *const matrices[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm"};
    struct file q, twin;
    char name[120], *config = malloc(8192);
    size_t end = strlen(d->config);

    begin(&q), begin(&twin);
    copy(d, &q, &twin, "model.embed_tokens.weight");
    copy(d, &q, &twin, "model.norm.weight");
    for (int l = 0; l < d->c.n_layers; l++) {
        for (size_t i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, norms[i]);
            copy(d, &q, &twin, name);
        }
        for (size_t i = 0; i < 7; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, matrices[i]);
            write_matrix(d, t, &q, &twin, name);
        }
    }
    while (end > 0 && d->config[end] != '}')
        end--;
    snprintf(config, 8192, "%.*s,\"quantization_config\":%s}", (int)end, d->config, t->config);
    finish(&q, folder, config);
    finish(&twin, twin_folder, d->config);
    free(config);
}

static void drop(const char *folder)
{
    char path[300];

    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

/* --- running --------------------------------------------------------------------------- */

static double relative_error(const float *got, const float *want, size_t n)
{
    double diff = 0.0, norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / norm);
}

/* The text in one step, which has more rows than those that kernels for few take. */
static void check_one_step(struct run *r, struct run_seq *s, const float *want, const char *folder)
{
    size_t n_vocab = (size_t)model_shape(r->m)->n_vocab;
    float *logits = malloc(n_vocab * 4);
    int rc;

    s->n_computed = 0;
    s->first_page = 64;
    run_clear(r);
    run_add(r, s, s->n_tokens, false);
    rc = run_step(r);
    if (rc == ERR_OK)
        rc = model_logits(r->m, logits);
    ok(rc == ERR_OK && relative_error(logits, want, n_vocab) < (on_gpu ? 0.08 : 1e-6),
       "%s: %d tokens in one step", strrchr(folder, '/') + 1, s->n_tokens);
    free(logits);
}

/* Logits of every position of a text; and how many positions choose the text's next token. */
static float *logits_of(const char *folder, const char *quantization, int n_ranks,
                        const int32_t *text, int n, int *n_right)
{
    struct model_options o = {.dir = folder,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = on_gpu ? "cuda" : "cpu",
                              .quantization = quantization,
                              .kv_cache_dtype = kv_type,
                              .page_tokens = 16,
                              .num_pages = 256,
                              .gpu_memory_utilization = 0.9,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = 512,
                              .n_ranks = n_ranks};
    struct run *r = malloc(sizeof *r);
    struct run_seq *s = calloc(1, sizeof *s);
    struct model *m = NULL;
    float *logits = NULL;
    int n_vocab;

    if (model_open(&m, &o) != ERR_OK)
        goto out;
    n_vocab = model_shape(m)->n_vocab;
    layer_bytes = model_shape(m)->weight_bytes - model_shape(m)->table_bytes;
    logits = malloc((size_t)n * (size_t)n_vocab * 4);
    run_init(r, m);
    memcpy(s->tokens, text, (size_t)n * 4);
    s->n_tokens = n;
    *n_right = 0;
    for (int at = 0; at < n; at = s->n_computed) {
        int left = n - at < rows_a_step ? n - at : rows_a_step;

        run_clear(r);
        run_add(r, s, left, true);
        if (run_step(r) != ERR_OK ||
            model_logits(m, logits + (size_t)at * (size_t)n_vocab) != ERR_OK)
            goto out;
        for (int i = 0; i < left; i++)
            *n_right += at + i + 1 < n && r->ids[i] == text[at + i + 1];
    }
    check_one_step(r, s, logits + (size_t)(n - 1) * (size_t)n_vocab, folder);
out:
    model_close(m);
    free(r), free(s);
    return logits;
}

static void compare(const char *name, const float *got, const float *want, size_t n)
{
    if (got == NULL || want == NULL)
        ok(false, "%s: runs", name);
    else if (on_gpu)
        ok(relative_error(got, want, n) < 0.08, "%s: logits within %.1e of its float32 twin's",
           name, relative_error(got, want, n));
    else
        ok(memcmp(got, want, n * 4) == 0, "%s: the bits of its float32 twin", name);
}

/* The longest text of the golden file that fits: a case's prompt and what followed. */
static int golden_text(int32_t *text, int cap)
{
    FILE *f = fopen(tap_path("tests/golden/demo/golden.bin"), "rb");
    int32_t head[4], sizes[3]; /* "QGOLD1\0\0", cases, vocabulary; prompt, greedy, rows */
    int n = 0;

    if (f == NULL)
        tap_skip_all("tests/golden is not there");
    if (fread(head, 4, 4, f) != 4)
        head[2] = 0;
    for (int i = 0; i < head[2] && fread(sizes, 4, 3, f) == 3; i++) {
        int len = sizes[0] + sizes[1];
        long skip = 4L * sizes[2] * head[3];

        if (len <= cap && len > n && fread(text, 4, (size_t)len, f) == (size_t)len)
            n = len;
        else
            skip += 4L * len;
        fseek(f, skip, SEEK_CUR);
    }
    fclose(f);
    return n;
}

/* Slices of a matrix mean what the whole does. */
static void check_ranks(const char *name, const char *folder, const char *twin, const float *of_one,
                        const int32_t *text, int n, int n_vocab)
{
    size_t n_logits = (size_t)n * (size_t)n_vocab;
    int ignored = 0;

    for (int n_ranks = 2; n_ranks <= 4 && (!on_gpu || n_ranks <= device_cuda_count());
         n_ranks += 2) {
        float *got = logits_of(folder, "", n_ranks, text, n, &ignored);
        float *want = logits_of(twin, "", n_ranks, text, n, &ignored);

        compare(name, got, want, n_logits);
        ok(got != NULL && relative_error(got, of_one, n_logits) < (on_gpu ? 0.08 : 1e-5),
           "%s: %d ranks say what one says", name, n_ranks);
        free(got), free(want);
    }
}

/* A format that the device does not multiply with becomes what its numbers are rounded to. */
static void check_rounded(const char *name, const char *folder, const char *twin,
                          const int32_t *text, int n, int n_vocab)
{
    for (int n_ranks = 1; n_ranks <= 2; n_ranks++) {
        char title[200];
        int right;
        size_t bytes;
        float *got = logits_of(folder, "fp8", n_ranks, text, n, &right), *want;

        bytes = layer_bytes;
        want = logits_of(twin, "fp8", n_ranks, text, n, &right);
        snprintf(title, sizeof title, "%s, rounded to FP8, %d ranks", name, n_ranks);
        compare(title, got, want, (size_t)n * (size_t)n_vocab);
        ok(bytes == layer_bytes, "%s: %zu bytes, those of float32 take %zu", title, bytes,
           layer_bytes);
        free(got), free(want);
    }
}

static void check_format(const struct demo *d, const struct format *t, const int32_t *text, int n,
                         int n_right)
{
    char folder[200], twin[200];
    float *got, *want, *rounded;
    int right = 0, ignored = 0;
    size_t bytes;

    /* so few that a GPU does not round packed weights */
    rows_a_step = on_gpu && t->scaling == PACKED ? 8 : RUN_SEQS;
    snprintf(folder, sizeof folder, "%s/q", root);
    snprintf(twin, sizeof twin, "%s/twin", root);
    write_model(d, t, folder, twin);
    got = logits_of(folder, "", 1, text, n, &right);
    bytes = layer_bytes;
    want = logits_of(twin, "", 1, text, n, &ignored);
    if (!on_gpu && t->layout < NVFP4)
        ok(bytes * 5 < layer_bytes * 2, "%s: kept: %zu bytes, as float32 %zu", t->name, bytes,
           layer_bytes);
    compare(t->name, got, want, (size_t)n * (size_t)d->c.n_vocab);
    ok(right * 100 >= n_right * (t->scaling == PACKED ? 90 : 97),
       "%s: chooses %d of the text's tokens, unrounded %d", t->name, right, n_right);
    check_ranks(t->name, folder, twin, got, text, n, d->c.n_vocab);
    if (t->scaling == PER_ROW && t->left_out == NULL) {
        rounded = logits_of(d->dir, "fp8", 1, text, n, &right);
        compare("rounded while loading", rounded, on_gpu ? want : got,
                (size_t)n * (size_t)d->c.n_vocab);
        ok(right * 100 >= n_right * 97, "rounded while loading: chooses %d, unrounded %d", right,
           n_right);
        free(rounded);
        rounded = logits_of(d->dir, "fp8_all", 1, text, n, &right);
        ok(rounded != NULL && right * 100 >= n_right * 97,
           "rounded with the output matrix: chooses %d, unrounded %d", right, n_right);
        free(rounded);
    }
    if (!on_gpu && t->layout >= NVFP4)
        check_rounded(t->name, folder, twin, text, n, d->c.n_vocab);
    if (t->bits == 8 && t->group == 0) {
        rounded = logits_of(d->dir, "int8", 1, text, n, &right);
        compare("rounded to int8 while loading", rounded, on_gpu ? want : got,
                (size_t)n * (size_t)d->c.n_vocab);
        free(rounded);
        if (!on_gpu || device_cuda_count() > 1) {
            rounded = logits_of(d->dir, "int8", 2, text, n, &right);
            ok(rounded != NULL && relative_error(rounded, got, (size_t)n * (size_t)d->c.n_vocab) <
                                      (on_gpu ? 0.08 : 1e-5),
               "rounded to int8 on 2 ranks");
            free(rounded);
        }
    }
    drop(folder);
    drop(twin);
    free(got), free(want);
}

/* Latents in pages of e4m3: what a model says stays near, in steps of any size and over two ranks,
 * and is not the same. Rows of these models are noise, and some tokens go to other experts. */
static void check_latents(void)
{
    static const char *const names[] = {"deepseek-v3", "deepseek-v2-lite", "mistral4"};
    enum { N_TOKENS = 150, N_VOCAB = 160 };
    int32_t text[N_TOKENS];
    char below[200], folder[4300];
    int ignored = 0;

    for (int i = 0; i < N_TOKENS; i++)
        text[i] = (i * 37 + i * i) % N_VOCAB;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        float *want, *got, *both;
        double error;

        snprintf(below, sizeof below, "tests/golden/families/%s", names[i]);
        snprintf(folder, sizeof folder, "%s", tap_path(below));
        want = logits_of(folder, "", 1, text, N_TOKENS, &ignored);
        kv_type = "fp8";
        got = logits_of(folder, "", 1, text, N_TOKENS, &ignored);
        both = on_gpu || i == 1 ? NULL : logits_of(folder, "", 2, text, N_TOKENS, &ignored);
        kv_type = "auto";
        if (!ok(got != NULL && want != NULL, "%s: both types of pages run", names[i]))
            continue;
        error = relative_error(got, want, (size_t)N_TOKENS * N_VOCAB);
        ok(error > 1e-3 && error < 0.25, "%s: latents in e4m3: logits within %.1e", names[i],
           error);
        if (both != NULL)
            ok(relative_error(both, got, (size_t)N_TOKENS * N_VOCAB) < 1e-5,
               "%s: two ranks say the same", names[i]);
        free(want), free(got), free(both);
    }
}

/* Matrices with room for wider values are held as plain numbers, rounded in their rows. Some tokens
 * go to other experts then; numbers in wrong places would differ by more than 1. */
static void check_room(void)
{
    enum { N_TOKENS = 100, N_VOCAB = 160 };
    const char *folder = tap_path("tests/golden/families/mimo-v2");
    int32_t text[N_TOKENS];
    int ignored = 0;
    float *want, *got;

    for (int i = 0; i < N_TOKENS; i++)
        text[i] = (i * 37 + i * i) % N_VOCAB;
    want = logits_of(folder, "", 1, text, N_TOKENS, &ignored);
    got = logits_of(folder, "fp8", 1, text, N_TOKENS, &ignored);
    if (ok(got != NULL && want != NULL, "values narrower than keys, rounded to e4m3")) {
        double error = relative_error(got, want, (size_t)N_TOKENS * N_VOCAB);

        ok(error > 1e-3 && error < 0.5, "logits within %.1e", error);
    }
    free(want), free(got);
}

static int open_rc(const char *folder, const char *quantization, const char *kv)
{
    struct model_options o = {.dir = folder,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = "cpu",
                              .quantization = quantization,
                              .kv_cache_dtype = kv,
                              .page_tokens = 16,
                              .num_pages = 256};
    struct model *m = NULL;
    int rc = model_open(&m, &o);

    model_close(m);
    return rc;
}

/* Folders and options that cannot be met. */
static void check_refusals(const struct demo *d)
{
    struct format t = formats[0];
    char folder[200], twin[200];

    snprintf(folder, sizeof folder, "%s/q", root);
    snprintf(twin, sizeof twin, "%s/twin", root);
    t.scale_name = "scale_of_it";
    write_model(d, &t, folder, twin);
    is_int(open_rc(folder, "", ""), ERR_NOT_FOUND, "e4m3 without scales is refused");
    t = formats[1];
    t.scaling = PER_ROW;
    write_model(d, &t, folder, twin);
    is_int(open_rc(folder, "", ""), ERR_INVALID, "scales of another shape are refused");
    drop(folder);
    drop(twin);
    is_int(open_rc(d->dir, "fp9", ""), ERR_INVALID, "another quantization is refused");
    is_int(open_rc(d->dir, "", "int8"), ERR_INVALID, "another kv_cache_dtype is refused");
    is_int(open_rc(d->dir, "", "fp8"), ERR_UNSUPPORTED,
           "e4m3 pages of keys and values are not for the cpu device");
    is_int(open_rc(d->dir, "", "auto"), ERR_OK, "the device's own are");
}

int main(void)
{
    const char *device = getenv("QUIRE_TEST_DEVICE");
    static int32_t text[RUN_TOKENS];
    struct demo d = {.files = NULL};
    int n = golden_text(text, tap_is_long() ? 400 : 200), n_right = 0;
    float *plain;
    size_t len;
    char path[4300];

    on_gpu = device != NULL && strcmp(device, "cuda") == 0;
    snprintf(d.dir, sizeof d.dir, "%s", tap_path("tools/demo-model/model"));
    snprintf(path, sizeof path, "%s/config.json", d.dir);
    if (hf_config_read(&d.c, d.dir, NULL) != ERR_OK || checkpoint_open(&d.files, d.dir) != ERR_OK ||
        config_file(&d.config, &len, path, 8192) != ERR_OK || mkdtemp(root) == NULL)
        tap_skip_all("the demo model is not there");
    ok(n > 64, "a text of %d tokens", n);
    plain = logits_of(d.dir, "", 1, text, n, &n_right);
    ok(plain != NULL && n_right > n / 2, "unrounded: chooses %d of %d", n_right, n);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        check_format(&d, &formats[i], text, n, n_right);
    check_latents();
    check_room();
    check_refusals(&d);
    (void)rmdir(root);
    checkpoint_close(d.files);
    mem_free(d.config);
    free(plain);
    return tap_done();
}
