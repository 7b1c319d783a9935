/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a checkpoint's formats are found, checked and converted as their rows say. Method: small
 * checkpoints written here. Each row of quant.c with every arrangement of its scales, and with one
 * damage each, whose message must name the tensor; then a row of the test's own with zero points, a
 * global scale, packed numbers and unpack(), which no format has so far, through quant_find() and
 * through weights_load(), bit for bit against the numbers that were written. */
#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/e4m3.h"
#include "model/plan.h"
#include "model/quant.h"
#include "model/weights.h"
#include "tests/tap.h"

#define HEADER_CAP 16384
#define DATA_CAP   65536

enum { ROWS = 130, COLS = 136 }; /* blocks of 128 end early on both sides */

static char dir[] = "/tmp/quire-quant-XXXXXX";

/* --- a checkpoint in the making --------------------------------------------------------- */

static char header[HEADER_CAP];
static uint8_t data[DATA_CAP];
static size_t header_len, data_len;

static void begin(void)
{
    header_len = (size_t)snprintf(header, sizeof header, "{");
    data_len = 0;
}

static void add(const char *name, const char *dtype, const char *shape, const void *bytes, size_t n)
{
    if (data_len + n > sizeof data)
        exit(1);
    memcpy(data + data_len, bytes, n);
    header_len +=
        (size_t)snprintf(header + header_len, sizeof header - header_len,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         header_len == 1 ? "" : ",", name, dtype, shape, data_len, data_len + n);
    data_len += n;
}

static struct checkpoint *finish(void)
{
    char path[200];
    struct checkpoint *files = NULL;
    uint64_t len = header_len + 1;
    FILE *f;

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    header[header_len] = '}';
    f = fopen(path, "wb");
    if (f == NULL || fwrite(&len, 8, 1, f) != 1 || fwrite(header, len, 1, f) != 1 ||
        (data_len > 0 && fwrite(data, data_len, 1, f) != 1) || fclose(f) != 0 ||
        checkpoint_open(&files, dir) != ERR_OK) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
    return files;
}

/* --- config.json ------------------------------------------------------------------------ */

static char why[QUANT_WHY_CAP];

static int read_config(struct quant_config *out, const char *text)
{
    struct arena arena = {.chunks = NULL};
    const struct json *obj;
    int rc;

    if (json_parse(&obj, &arena, text, strlen(text), NULL, 0) != ERR_OK)
        exit(1);
    *out = (struct quant_config){.kind = NULL};
    why[0] = '\0';
    rc = quant_read(out, obj, why, sizeof why);
    arena_reset(&arena);
    return rc;
}

#define FP8    "{\"quant_method\":\"fp8\"}"
#define BLOCKS "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"
#define COMPRESSED(format)                                                                      \
    "{\"quant_method\":\"compressed-tensors\"," format "\"config_groups\":{\"a\":{\"weights\":" \
    "{\"num_bits\":8,\"strategy\":\"channel\"},\"input_activations\":{\"num_bits\":8}}}}"

static void test_names(void)
{
    static const char *const known[] = {FP8, BLOCKS, COMPRESSED(""),
                                        COMPRESSED("\"format\":\"float-quantized\","),
                                        COMPRESSED("\"format\":\"naive-quantized\",")};
    struct quant_config c;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int rc = read_config(&c, known[i]);

        ok(rc == ERR_OK && c.kind != NULL && c.format.elem == K_E4M3 &&
               k_format_has_groups(&c.format) == (i == 1),
           "%s", known[i]);
    }
    is_int(read_config(&c, "{\"quant_method\":\"exl9\"}"), ERR_UNSUPPORTED, "another method");
    ok(c.kind == NULL && strstr(why, "exl9") != NULL && strstr(why, "fp8, compressed") != NULL,
       "is named, and so are those that are known: %s", why);
    is_int(read_config(&c, COMPRESSED("\"format\":\"marlin-24\",")), ERR_UNSUPPORTED,
           "another format of a method");
    ok(strstr(why, "marlin-24") != NULL, "is named: %s", why);
}

#define PACKED(inputs)                                                                           \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{" \
    "\"a\":{\"weights\":{\"num_bits\":4,\"group_size\":128}" inputs "}}}"
#define INPUTS(bits, type, strategy, dynamic)                                                      \
    ",\"input_activations\":{\"num_bits\":" bits ",\"type\":\"" type "\",\"strategy\":\"" strategy \
    "\",\"dynamic\":" dynamic "}"

/* Inputs are rounded where all groups ask for whole numbers of 8 bits with a scale a token. */
static void test_inputs(void)
{
    static const struct {
        const char *config;
        bool rounds;
    } inputs[] = {{PACKED(""), false},
                  {PACKED(",\"input_activations\":null"), false},
                  {PACKED(INPUTS("8", "int", "token", "true")), true},
                  {PACKED(INPUTS("8", "int", "token", "false")), false},
                  {PACKED(INPUTS("8", "int", "tensor", "true")), false},
                  {PACKED(INPUTS("8", "float", "token", "true")), false},
                  {PACKED(INPUTS("4", "int", "token", "true")), false}};
    struct quant_config c;

    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        int rc = read_config(&c, inputs[i].config);

        ok(rc == ERR_OK && c.packed.elem == K_INT4 && c.rounds_x == inputs[i].rounds,
           "inputs %s: %s", inputs[i].rounds ? "are rounded" : "stay", inputs[i].config);
    }
}

/* --- tensors of a format ---------------------------------------------------------------- */

struct tensors {
    const char *config; /* NULL: config.json says nothing */
    const char *scale_name, *scale_dtype, *scale_shape;
    size_t scale_bytes;
    const char *data_dtype, *data_shape;
    int rc;
    bool has_blocks;
    const char *named; /* in the message */
};

#define E4M3    "F8_E4M3", "130,136"
#define WEIGHT  "x.proj.weight "
#define SCALE   "x.proj.weight_scale "
#define INVERSE "x.proj.weight_scale_inv "

static const struct tensors cases[] = {
    {FP8, "weight_scale", "F32", "", 4, E4M3, ERR_OK, false, ""},
    {FP8, "weight_scale", "F32", "1", 4, E4M3, ERR_OK, false, ""},
    {FP8, "weight_scale_inv", "BF16", "130", 260, E4M3, ERR_OK, false, ""},
    {NULL, "weight_scale", "F16", "130,1", 260, E4M3, ERR_OK, false, ""},
    {BLOCKS, "weight_scale_inv", "F8_E8M0", "2,2", 4, E4M3, ERR_OK, true, ""},
    {BLOCKS, "weight_scale", "F32", "1", 4, E4M3, ERR_OK, false, ""},
    {COMPRESSED(""), "weight_scale", "F32", "130,1", 520, E4M3, ERR_OK, false, ""},
    {FP8, "scale", "F32", "1", 4, E4M3, ERR_NOT_FOUND, false, WEIGHT},
    {FP8, "weight_scale", "I32", "1", 4, E4M3, ERR_UNSUPPORTED, false, SCALE},
    {FP8, "weight_scale", "F32", "129", 516, E4M3, ERR_INVALID, false, SCALE},
    {FP8, "weight_scale", "F32", "130,2", 1040, E4M3, ERR_INVALID, false, SCALE},
    {FP8, "weight_scale", "F32", "1,1,1", 4, E4M3, ERR_INVALID, false, SCALE},
    {BLOCKS, "weight_scale_inv", "F32", "130", 520, E4M3, ERR_INVALID, false, INVERSE},
    {BLOCKS, "weight_scale_inv", "F32", "2,1", 8, E4M3, ERR_INVALID, false, INVERSE},
    {FP8, "weight_scale", "F32", "1", 4, "F8_E4M3", "136,130", ERR_INVALID, false, WEIGHT},
    {FP8, "weight_scale", "F32", "1", 4, "F8_E4M3", "17680", ERR_INVALID, false, WEIGHT},
};

static void test_tensors(const struct tensors *t)
{
    static const uint8_t bytes[ROWS * COLS];
    struct quant_config config = {.kind = NULL};
    struct quant_part p = {.data = NULL};
    struct checkpoint *files;
    char name[60];
    int rc = t->config == NULL ? ERR_OK : read_config(&config, t->config);

    begin();
    add("x.proj.weight", t->data_dtype, t->data_shape, bytes, sizeof bytes);
    snprintf(name, sizeof name, "x.proj.%s", t->scale_name);
    add(name, t->scale_dtype, t->scale_shape, bytes, t->scale_bytes);
    files = finish();
    why[0] = '\0';
    if (rc == ERR_OK)
        rc = quant_find(&p, files, &config, &(struct quant_matrix){"x.proj", ROWS, COLS}, why,
                        sizeof why);
    ok(rc == t->rc && strstr(why, t->named) != NULL && (rc == ERR_OK) == (p.data != NULL) &&
           (rc != ERR_OK || (k_format_is_in_blocks(&p.format, K_E4M3, 128) == t->has_blocks &&
                             k_format_is_by_row(&p.format, K_E4M3) == !t->has_blocks)),
       "%s, [%s] with %s %s [%s]: %d%s%s", t->config == NULL ? "nothing" : t->config, t->data_shape,
       t->scale_dtype, t->scale_name, t->scale_shape, rc, rc == ERR_OK ? "" : ", ", why);
    checkpoint_close(files);
}

static void test_plain(void)
{
    static const uint8_t bytes[ROWS * COLS * 2];
    const struct quant_config none = {.kind = NULL};
    struct quant_config fp8;
    struct quant_part p = {.cols = 0};
    struct checkpoint *files;
    int rc = read_config(&fp8, FP8);

    begin();
    add("x.proj.weight", "BF16", "130,136", bytes, sizeof bytes);
    files = finish();
    ok(rc == ERR_OK &&
           quant_find(&p, files, &fp8, &(struct quant_matrix){"x.proj", ROWS, COLS}, why,
                      sizeof why) == ERR_OK &&
           p.kind == NULL && p.cols == COLS,
       "a module that was left alone has plain numbers");
    is_int(
        quant_find(&p, files, &none, &(struct quant_matrix){"x.proj", COLS, ROWS}, why, sizeof why),
        ERR_INVALID, "of another shape: refused");
    is_int(
        quant_find(&p, files, &none, &(struct quant_matrix){"y.proj", ROWS, COLS}, why, sizeof why),
        ERR_NOT_FOUND, "not there: refused");
    ok(strstr(why, "y.proj.weight") != NULL, "by name: %s", why);
    checkpoint_close(files);
}

/* --- whole numbers ---------------------------------------------------------------------- */

#define INT8(format, weights)                                                  \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format            \
    "\",\"config_groups\":{\"a\":{\"weights\":{\"type\":\"int\"" weights "}}," \
    "\"b\":{\"weights\":{\"num_bits\":4,\"type\":\"int\",\"group_size\":32}}}}"
#define GPTQ(group) "{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":" group "}"

/* A matrix [8][cols] of bytes. */
struct whole {
    const char *config, *ending, *dtype;
    int cols, n_groups; /* of a row */
    int order;          /* columns of a group, by g_idx; 0: there is none; -1: not filled in */
    int rc;
};

static const struct whole wholes[] = {
    /* so few inputs fill as many words with fewer bits */
    {INT8("pack-quantized", ",\"num_bits\":8"), "weight_packed", "I32", 8, 1, 0, ERR_OK},
    {INT8("pack-quantized", ",\"num_bits\":8"), "weight_packed", "I32", 24, 3, 0, ERR_OK},
    {INT8("pack-quantized", ""), "weight_packed", "I32", 24, 1, 0, ERR_INVALID},
    {INT8("pack-quantized", ""), "weight_packed", "I32", 32, 1, 0, ERR_OK},
    /* a last group that is shorter is none of equal length */
    {INT8("int-quantized", ",\"group_size\":64"), "weight", "I8", 96, 2, 0, ERR_UNSUPPORTED},
    {INT8("int-quantized", ",\"group_size\":64"), "weight", "I8", 48, 2, 0, ERR_UNSUPPORTED},
    {INT8("int-quantized", ",\"group_size\":48"), "weight", "I8", 96, 2, 0, ERR_OK},
    {INT8("int-quantized", ",\"group_size\":64"), "weight", "I8", 96, 2, 64, ERR_OK},
    {INT8("int-quantized", ",\"group_size\":48"), "weight", "I8", 96, 2, 80, ERR_OK},
    {INT8("int-quantized", ",\"group_size\":48"), "weight", "I8", 96, 2, 16, ERR_CORRUPT},
    {INT8("int-quantized", ""), "weight", "I8", 96, 1, 96, ERR_OK},
    {INT8("pack-quantized", ",\"group_size\":64"), "weight_packed", "I32", 96, 2, 64, ERR_OK},
    {INT8("int-quantized", ",\"group_size\":-1"), "weight", "I8", 96, 1, 0, ERR_OK},
    {INT8("pack-quantized", ",\"group_size\":64"), "weight_packed", "I32", 96, 2, 0,
     ERR_UNSUPPORTED},
    {GPTQ("64"), "qweight", "I32", 96, 2, 0, ERR_UNSUPPORTED},
    {GPTQ("64"), "qweight", "I32", 96, 2, -1, ERR_UNSUPPORTED},
    {GPTQ("64"), "qweight", "I32", 96, 2, 64, ERR_OK},
    {GPTQ("32"), "qweight", "I32", 80, 3, 32, ERR_OK},
    {GPTQ("-1"), "qweight", "I32", 80, 3, 0, ERR_UNSUPPORTED},
    {GPTQ("32"), "qweight", "I32", 80, 3, 16, ERR_CORRUPT}, /* names group 4 */
};

/* Element i of row r, as a byte with a sign. */
static int whole_number(int r, int i)
{
    return (r * 31 + i * 7) % 256 - 128;
}

/* Scales are 1, 2, 3 .. for the groups of a row. */
static void test_whole(const struct whole *t)
{
    enum { N = 8, MOST = 96 };
    static float got[N * MOST];
    static uint8_t bytes[N * MOST];
    static uint32_t zeros[MOST], order[MOST];
    static float scales[N * MOST];
    bool is_gptq = strcmp(t->ending, "qweight") == 0, is_packed = strcmp(t->dtype, "I32") == 0;
    int wide = t->order > 0 ? t->order : t->cols / t->n_groups, n_wrong = 0, rc;
    struct quant_config config;
    struct quant_part p = {.data = NULL};
    struct checkpoint *files;
    char name[60], shape[60];

    for (int r = 0; r < N; r++) {
        for (int i = 0; i < t->cols; i++) {
            int at = is_gptq ? (i / 4 * N + r) * 4 + i % 4 : r * t->cols + i;

            bytes[at] = (uint8_t)(whole_number(r, i) + (is_packed ? 128 : 0));
            order[i] = t->order < 0 ? UINT32_MAX : (uint32_t)(i / wide);
        }
        for (int g = 0; g < t->n_groups; g++)
            scales[is_gptq ? g * N + r : r * t->n_groups + g] = (float)(g + 1);
    }
    for (int i = 0; i < MOST; i++)
        zeros[i] = 0x7f7f7f7f; /* 128, less 1 */
    begin();
    snprintf(name, sizeof name, "x.%s", t->ending);
    snprintf(shape, sizeof shape, "%d,%d", is_gptq ? t->cols / 4 : N,
             is_gptq ? N : t->cols / (is_packed ? 4 : 1));
    add(name, t->dtype, shape, bytes, (size_t)(N * t->cols));
    snprintf(shape, sizeof shape, "%d,%d", is_gptq ? t->n_groups : N, is_gptq ? N : t->n_groups);
    add(is_gptq ? "x.scales" : "x.weight_scale", "F32", shape, scales,
        (size_t)(N * t->n_groups) * sizeof *scales);
    snprintf(shape, sizeof shape, "%d,%d", t->n_groups, N / 4);
    if (is_gptq)
        add("x.qzeros", "I32", shape, zeros, (size_t)(t->n_groups * N));
    snprintf(shape, sizeof shape, "%d", t->cols);
    if (t->order != 0)
        add(is_gptq ? "x.g_idx" : "x.weight_g_idx", "I32", shape, order,
            (size_t)t->cols * sizeof *order);
    files = finish();
    rc = read_config(&config, t->config);
    if (rc == ERR_OK)
        rc = quant_find(&p, files, &config, &(struct quant_matrix){"x", N, t->cols}, why,
                        sizeof why);
    is_int(rc, t->rc, "%s, %d inputs in %d groups: %s", t->config, t->cols, t->n_groups, why);
    if (rc == ERR_OK && quant_dequantise(got, &p, bytes, 0, N) == ERR_OK) {
        for (int i = 0; i < N * t->cols; i++)
            n_wrong += got[i] !=
                       (float)(whole_number(i / t->cols, i % t->cols) * (i % t->cols / wide + 1));
        is_int(n_wrong, 0, "its weights");
    }
    checkpoint_close(files);
}

/* --- a format with everything ----------------------------------------------------------- */

/* Elements are written with all bits turned over, four to a number. */
static void turn_over(void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)bytes)[i] ^= 0xff;
}

static const struct quant_format everything = {.data = "codes",
                                               .dtype = "I32",
                                               .scales = {"steps"},
                                               .zeros = "points",
                                               .global = "whole",
                                               .packed = 4,
                                               .elem = K_E4M3,
                                               .unpack = turn_over};

enum { GROUP = 8, DIM = 32, FF = 48, VOCAB = 8, N_MATRICES = 7 };

static const struct {
    const char *stem;
    int rows, cols;
} matrices[N_MATRICES] = {{"self_attn.q_proj", DIM, DIM}, {"self_attn.k_proj", DIM, DIM},
                          {"self_attn.v_proj", DIM, DIM}, {"self_attn.o_proj", DIM, DIM},
                          {"mlp.gate_proj", FF, DIM},     {"mlp.up_proj", FF, DIM},
                          {"mlp.down_proj", DIM, FF}};

/* The weights that are meant, matrix by matrix. */
static float meant[N_MATRICES][FF * DIM];

static void write_matrix(int i, bool is_plain)
{
    int rows = matrices[i].rows, cols = matrices[i].cols, n_groups = rows * (cols / GROUP);
    const float whole = 0.75f;
    static float scales[FF * DIM / GROUP], points[FF * DIM / GROUP];
    static uint8_t codes[FF * DIM];
    char name[100], shape[40];

    for (int g = 0; g < n_groups; g++) {
        scales[g] = 0.01f * (float)(1 + (g * 7 + i) % 13);
        points[g] = (float)(g % 5) - 2.0f;
    }
    for (int k = 0; k < rows * cols; k++) {
        codes[k] = (uint8_t)((k * 31 + i) % 127);
        meant[i][k] = (k_e4m3_value(codes[k]) - points[k / GROUP]) * (scales[k / GROUP] * whole);
    }
    if (is_plain) {
        snprintf(shape, sizeof shape, "%d,%d", rows, cols);
        snprintf(name, sizeof name, "model.layers.0.%s.weight", matrices[i].stem);
        add(name, "F32", shape, meant[i], (size_t)(rows * cols) * 4);
        return;
    }
    turn_over(codes, (size_t)(rows * cols));
    snprintf(shape, sizeof shape, "%d,%d", rows, cols / 4);
    snprintf(name, sizeof name, "model.layers.0.%s.codes", matrices[i].stem);
    add(name, "I32", shape, codes, (size_t)(rows * cols));
    snprintf(shape, sizeof shape, "%d,%d", rows, cols / GROUP);
    snprintf(name, sizeof name, "model.layers.0.%s.steps", matrices[i].stem);
    add(name, "F32", shape, scales, (size_t)n_groups * 4);
    snprintf(name, sizeof name, "model.layers.0.%s.points", matrices[i].stem);
    add(name, "F32", shape, points, (size_t)n_groups * 4);
    snprintf(name, sizeof name, "model.layers.0.%s.whole", matrices[i].stem);
    add(name, "F32", "1", &whole, 4);
}

/* left_out: a matrix that has plain numbers. */
static struct checkpoint *write_model(int left_out)
{
    static const float ones[VOCAB * DIM];

    begin();
    add("model.embed_tokens.weight", "F32", "8,32", ones, sizeof ones);
    add("model.norm.weight", "F32", "32", ones, DIM * 4);
    add("model.layers.0.input_layernorm.weight", "F32", "32", ones, DIM * 4);
    add("model.layers.0.post_attention_layernorm.weight", "F32", "32", ones, DIM * 4);
    for (int i = 0; i < N_MATRICES; i++)
        write_matrix(i, i == left_out);
    return finish();
}

static void is_meant(const struct k_matrix *m, int first, int n, const char *name)
{
    const float *at = m->data;
    bool same = k_format_is_plain(&m->format);

    for (int i = first; i < first + n; i++) {
        size_t size = (size_t)(matrices[i].rows * matrices[i].cols);

        same = same && memcmp(at, meant[i], size * sizeof *at) == 0;
        at += size;
    }
    ok(same, "%s: converted to the numbers that were written, bit for bit", name);
}

/* Groups whose zero points, or global scale, have another shape. */
static void test_damage(const struct quant_config *config, const char *points, const char *whole,
                        const char *named)
{
    static const uint8_t bytes[DIM * DIM * 4];
    struct quant_part p;
    struct checkpoint *files;
    int rc;

    begin();
    add("x.codes", "I32", "32,8", bytes, DIM * DIM);
    add("x.steps", "F32", "32,4", bytes, DIM * 4 * 4);
    add("x.points", "F32", points, bytes, strcmp(points, "32,4") == 0 ? 512 : 128);
    add("x.whole", "F32", whole, bytes, strcmp(whole, "1") == 0 ? 4 : 512);
    files = finish();
    rc = quant_find(&p, files, config, &(struct quant_matrix){"x", DIM, DIM}, why, sizeof why);
    ok(rc == ERR_INVALID && strstr(why, named) != NULL, "refused: %s", why);
    checkpoint_close(files);
}

static void test_model(struct device *d, const struct hf_config *c, const struct plan *plan,
                       int left_out)
{
    const struct weights_source from = {.dir = dir};
    struct weights w;
    bool loaded;

    checkpoint_close(write_model(left_out));
    loaded = weights_load(&(struct weights_ranks){&(struct weights_rank){&w, d, 0, 0, true}, 1, 1},
                          c, plan, plan, &from) == ERR_OK;
    ok(loaded, "loaded: all matrices in the format, but for %s",
       left_out < 0 ? "none" : matrices[left_out].stem);
    if (loaded) {
        is_meant(&w.layers[0].mixer_in, 0, 3, "qkv");
        is_meant(&w.layers[0].mixer_out, 3, 1, "o");
        is_meant(&w.layers[0].ffn_in, 4, 2, "gate and up");
        is_meant(&w.layers[0].down, 6, 1, "down");
        ok(!w.reads_codes, "no product reads codes");
        weights_fini(&w);
    }
}

static void test_everything(void)
{
    const char *text = "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,"
                       "\"intermediate_size\":48,\"num_hidden_layers\":1,"
                       "\"num_attention_heads\":2,\"vocab_size\":8,\"rms_norm_eps\":1e-5,"
                       "\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";
    struct device *d = NULL;
    struct hf_config c;
    struct plan plan;

    if (hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0) != ERR_OK ||
        plan_make(&plan, &c) != ERR_OK || device_open(&d, "cpu", 0, 1) != ERR_OK)
        exit(1);
    c.quant.kind = &everything;
    c.quant.format = k_format_in_groups(K_E4M3, 1, GROUP);
    test_model(d, &c, &plan, -1);
    test_model(d, &c, &plan, 1); /* k: a part of a matrix */
    test_damage(&c.quant, "32", "1", "x.points ");
    test_damage(&c.quant, "32,4", "32,4", "x.whole ");
    plan_fini(&plan);
    device_close(d);
}

static void test_texts(void)
{
    struct k_format f = k_format_in_groups(K_E4M3, 1, 32);
    char text[100];

    f.has_zeros = true;
    quant_text(text, sizeof text, NULL, &f);
    ok(strcmp(text, "e4m3 with a scale for each 1 x 32, zero points") == 0, "in words: %s", text);
    f = k_format_by_row(K_E4M3);
    quant_text(text, sizeof text, NULL, &f);
    ok(strcmp(text, "e4m3 with a scale for each row") == 0, "in words: %s", text);
}

int main(void)
{
    char path[200];

    log_set_level(LOG_LEVEL_ERROR);
    if (mkdtemp(dir) == NULL)
        tap_skip_all("no temporary folder");
    test_names();
    test_inputs();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_tensors(&cases[i]);
    test_plain();
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++)
        test_whole(&wholes[i]);
    test_everything();
    test_texts();
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    (void)unlink(path);
    (void)rmdir(dir);
    return tap_done();
}
