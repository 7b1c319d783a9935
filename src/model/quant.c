/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised checkpoints: the formats that quire reads, how they are found, and their conversion to
 * float32.
 *
 * The first part reads quantization_config of config.json; the table `formats` has a row per
 * format; the second part finds the tensors of one matrix and checks that scales fit its shape; the
 * last part computes numbers on the host. Data of a file need not be aligned, so every number is
 * copied out by memcpy(). */
#include "model/quant.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/must.h"
#include "kernels/e4m3.h"
#include "model/quant_parts.h"

/* --- quantization_config ---------------------------------------------------------------- */

/* Only settings that change the numbers are checked. Errors collect in quant_reading, of which the
 * first is reported. */

struct quant_reading {
    struct k_format format;
    /* Weights of e4m3 in an arrangement, or with inputs, that no device multiplies with: the row
     * with `values` is used. */
    bool is_converted;
    char *why;
    size_t why_cap;
    int rc; /* the first error; later ones are ignored */
};

/* Note an error with its sentence, unless there is one already. */
__attribute__((format(printf, 2, 3))) static void quant_refuse(struct quant_reading *r,
                                                               const char *format, ...)
{
    va_list args;

    if (r->rc != ERR_OK)
        return;
    va_start(args, format);
    (void)vsnprintf(r->why, r->why_cap, format, args); /* cut is fine */
    va_end(args);
    r->rc = ERR_UNSUPPORTED;
}

/* The format that a member like weight_block_size asks for: e4m3 in blocks of [128, 128], or by row
 * where it is missing. */
static struct k_format quant_e4m3_format(struct quant_reading *r, const struct json *obj,
                                         const char *field)
{
    const struct json *value = json_get(obj, field);

    if (value == NULL || value->kind == JSON_NULL)
        return k_format_by_row(K_E4M3);
    if (value->kind != JSON_LIST || value->n != 2 || value->items[0].kind != JSON_INT ||
        value->items[1].kind != JSON_INT || value->items[0].whole != K_E4M3_BLOCK ||
        value->items[1].whole != K_E4M3_BLOCK)
        quant_refuse(r, "%s is supported as [128, 128] only", field);
    return k_format_in_groups(K_E4M3, K_E4M3_BLOCK, K_E4M3_BLOCK);
}

/* Missing, null and {} all mean "not used". */
static bool quant_is_empty(const struct json *obj, const char *field)
{
    const struct json *value = json_get(obj, field);

    return value == NULL || value->kind == JSON_NULL ||
           (value->kind == JSON_OBJECT && value->n == 0);
}

/* {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]} */
static void quant_read_fp8(struct quant_reading *r, const struct json *config)
{
    const char *scheme = json_get_text(config, "activation_scheme", "dynamic");

    if (strcmp(scheme, "dynamic") != 0 && strcmp(scheme, "static") != 0)
        quant_refuse(r, "activation_scheme \"%.40s\" is neither dynamic nor static", scheme);
    if (strcmp(json_get_text(config, "fmt", "e4m3"), "e4m3") != 0)
        quant_refuse(r, "fmt is supported as e4m3 only");
    r->format = quant_e4m3_format(r, config, "weight_block_size");
}

/* Check a description of numbers: they must be 8-bit floats, and their strategy (the scope of a
 * scale) one of four. */
static void quant_check_numbers(struct quant_reading *r, const struct json *obj, const char *what,
                                const char *const strategies[4])
{
    const char *strategy = json_get_text(obj, "strategy", "tensor");
    const struct json *bits = json_get(obj, "num_bits");
    bool known = false;

    for (int i = 0; i < 4; i++)
        known = known || strcmp(strategy, strategies[i]) == 0;
    if (bits == NULL || bits->kind != JSON_INT || bits->whole != 8 ||
        strcmp(json_get_text(obj, "type", "float"), "float") != 0)
        quant_refuse(r, "%s are supported as float of 8 bits only", what);
    if (!known)
        quant_refuse(r, "%s of strategy \"%.40s\" are not supported", what, strategy);
}

/* One entry of config_groups: {"weights": {"num_bits": 8, "type": "float", "strategy": "block",
 * "block_structure": [128, 128]}, "input_activations": {...}, "targets": ["Linear"]}. Targets are
 * not read, because the type of each tensor shows whether it belongs to the group. */
static void quant_read_group(struct quant_reading *r, const struct json *group, bool first)
{
    static const char *const of_weights[] = {"tensor", "channel", "block", "group"};
    static const char *const of_inputs[] = {"tensor", "token", "group", "group"};
    const struct json *weights = json_get_kind(group, "weights", JSON_OBJECT);
    const struct json *inputs = json_get_kind(group, "input_activations", JSON_OBJECT);
    struct k_format format = k_format_by_row(K_E4M3);

    if (weights == NULL) {
        quant_refuse(r, "group %.60s needs weights", group->key);
        return;
    }
    quant_check_numbers(r, weights, "weights", of_weights);
    if (inputs != NULL)
        quant_check_numbers(r, inputs, "input_activations", of_inputs);
    /* Inputs stay as they are; or scales of groups within a row. */
    if (inputs == NULL || strcmp(json_get_text(weights, "strategy", "tensor"), "group") == 0) {
        r->is_converted = true;
        return;
    }
    if (strcmp(json_get_text(weights, "strategy", "tensor"), "block") == 0)
        format = quant_e4m3_format(r, weights, "block_structure");
    if (!first && !k_format_is_like(&format, &r->format))
        quant_refuse(r, "groups with and without blocks are not supported together");
    r->format = format;
}

/* {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {...}} */
static void quant_read_compressed(struct quant_reading *r, const struct json *config)
{
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);

    if (!quant_is_empty(config, "sparsity_config") || !quant_is_empty(config, "transform_config"))
        quant_refuse(r, "sparsity_config and transform_config are not supported");
    if (groups == NULL || groups->n == 0) {
        quant_refuse(r, "config_groups must name a group");
        return;
    }
    for (uint32_t i = 0; i < groups->n; i++)
        quant_read_group(r, &groups->items[i], i == 0);
}

/* Formats whose tensors say everything: bits and groups follow from their shapes, and modules that
 * are not quantised from the types. What changes the numbers otherwise is refused. */
static void quant_read_shapes(struct quant_reading *r, const struct json *config)
{
    if (!quant_is_empty(config, "sparsity_config") || !quant_is_empty(config, "transform_config"))
        quant_refuse(r, "sparsity_config and transform_config are not supported");
    r->format = k_format_bare(K_BF16);
}

/* GPTQ's words may have 8, 16, 32 or 64 bits. */
static void quant_read_gptq(struct quant_reading *r, const struct json *config)
{
    const char *words = json_get_text(config, "pack_dtype", "int32");

    if (strcmp(words, "int32") != 0)
        quant_refuse(r, "pack_dtype \"%.40s\" is not supported; int32 is", words);
    quant_read_shapes(r, config);
}

/* {"quant_method": "modelopt", "quant_algo": "FP8"}: a scale per tensor. */
static void quant_read_modelopt(struct quant_reading *r, const struct json *config)
{
    (void)config;
    r->format = k_format_by_row(K_E4M3);
}

/* --- the formats ------------------------------------------------------------------------- */

/* A new format is a row here and, if elements are packed, an unpack function. Despite its name,
 * weight_scale_inv is multiplied with, as weight_scale is. */
static const struct quant_format formats[] = {
    {.method = "fp8",
     .read = quant_read_fp8,
     .data = "weight",
     .dtype = "F8_E4M3",
     .scales = {"weight_scale", "weight_scale_inv"},
     .x_scale = "input_scale",
     .packed = 1,
     .elem = K_E4M3},
    {.method = "compressed-tensors",
     .names = {"float-quantized", "naive-quantized"},
     .read = quant_read_compressed,
     .data = "weight",
     .dtype = "F8_E4M3",
     .scales = {"weight_scale", "weight_scale_inv"},
     .x_scale = "input_scale",
     .packed = 1,
     .elem = K_E4M3},
    {.method = "modelopt",
     .name_key = "quant_algo",
     .names = {"FP8"},
     .read = quant_read_modelopt,
     .data = "weight",
     .dtype = "F8_E4M3",
     .scales = {"weight_scale"},
     .x_scale = "input_scale",
     .packed = 1,
     .elem = K_E4M3},
    {.method = "awq",
     .name_key = "version",
     .names = {"gemm"},
     .read = quant_read_shapes,
     .data = "qweight",
     .dtype = "I32",
     .text = "AWQ",
     .beside = {"scales", "qzeros"},
     .n_needed = 1,
     .is_whole = true,
     .check = quant_check_awq,
     .values = quant_values_awq,
     .codes = &quant_codes_awq},
    {.method = "awq",
     .name_key = "version",
     .names = {"gemv"},
     .read = quant_read_shapes,
     .data = "qweight",
     .dtype = "I32",
     .text = "AWQ",
     .beside = {"scales", "qzeros"},
     .n_needed = 1,
     .check = quant_check_awq_gemv,
     .values = quant_values_awq_gemv,
     .codes = &quant_codes_awq_gemv},
    {.method = "gptq",
     .name_key = "checkpoint_format",
     .names = {"gptq"},
     .read = quant_read_gptq,
     .data = "qweight",
     .dtype = "I32",
     .text = "GPTQ",
     .beside = {"scales", "qzeros", "g_idx"},
     .n_needed = 2,
     .is_whole = true,
     .check = quant_check_gptq,
     .values = quant_values_gptq,
     .codes = &quant_codes_gptq},
    {.method = "gptq",
     .name_key = "checkpoint_format",
     .names = {"gptq_v2"},
     .read = quant_read_gptq,
     .data = "qweight",
     .dtype = "I32",
     .text = "GPTQ",
     .beside = {"scales", "qzeros", "g_idx"},
     .n_needed = 2,
     .is_whole = true,
     .check = quant_check_gptq,
     .values = quant_values_gptq_v2,
     .codes = &quant_codes_gptq_v2},
    {.method = "compressed-tensors",
     .names = {"pack-quantized", "mixed-precision"},
     .read = quant_read_shapes,
     .data = "weight_packed",
     .dtype = "I32",
     .text = "packed integers",
     .beside = {"weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape"},
     .n_needed = 1,
     .check = quant_check_packed,
     .values = quant_values_packed,
     .codes = &quant_codes_packed},
    {.method = "compressed-tensors",
     .names = {"int-quantized"},
     .read = quant_read_shapes,
     .data = "weight",
     .dtype = "I8",
     .text = "int8",
     .beside = {"weight_scale", "weight_zero_point", "weight_g_idx"},
     .n_needed = 1,
     .check = quant_check_int8,
     .values = quant_values_int8,
     .codes = &quant_codes_int8},
    {.method = "compressed-tensors",
     .names = {"nvfp4-pack-quantized"},
     .read = quant_read_shapes,
     .data = "weight_packed",
     .dtype = "U8",
     .text = "NVFP4",
     .beside = {"weight_scale", "weight_global_scale", "weight_g_idx"},
     .n_needed = 2,
     .check = quant_check_nvfp4,
     .values = quant_values_nvfp4,
     .floats = &quant_floats_nvfp4},
    {.method = "compressed-tensors",
     .names = {"mxfp4-pack-quantized"},
     .read = quant_read_shapes,
     .data = "weight_packed",
     .dtype = "U8",
     .text = "MXFP4",
     .beside = {"weight_scale", [QUANT_ORDER] = "weight_g_idx"},
     .n_needed = 1,
     .check = quant_check_mxfp4,
     .values = quant_values_mxfp4,
     .floats = &quant_floats_mxfp4},
    /* gpt-oss: only experts, all of a layer in one tensor, which the loader looks up
     * (quant_mxfp4()). */
    {.method = "mxfp4",
     .read = quant_read_shapes,
     .data = "blocks",
     .dtype = "U8",
     .text = "MXFP4",
     .beside = {"scales"},
     .n_needed = 1,
     .check = quant_check_mxfp4,
     .values = quant_values_mxfp4},
    {.method = "compressed-tensors",
     .names = {"mxfp8-quantized"},
     .read = quant_read_shapes,
     .data = "weight",
     .dtype = "F8_E4M3",
     .text = "MXFP8",
     .beside = {"weight_scale", "weight_zero_point", "weight_g_idx"},
     .n_needed = 1,
     .check = quant_check_e4m3,
     .values = quant_values_e4m3},
    {.method = "modelopt",
     .name_key = "quant_algo",
     .names = {"NVFP4", "MIXED_PRECISION"},
     .read = quant_read_shapes,
     .data = "weight",
     .dtype = "U8",
     .text = "NVFP4",
     .beside = {"weight_scale", "weight_scale_2"},
     .n_needed = 2,
     .check = quant_check_nvfp4,
     .values = quant_values_modelopt,
     .floats = &quant_floats_modelopt},
    {.method = "bitsandbytes",
     .read = quant_read_shapes,
     .data = "weight",
     .dtype = "U8",
     .text = "4 bits of bitsandbytes",
     .beside = {"weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4",
                "weight.quant_state.bitsandbytes__fp4", "weight.nested_absmax",
                "weight.nested_quant_map"},
     .n_needed = 2,
     .check = quant_check_bnb4,
     .values = quant_values_bnb4},
    {.method = "bitsandbytes",
     .read = quant_read_shapes,
     .data = "weight",
     .dtype = "I8",
     .text = "int8 of bitsandbytes",
     .beside = {"SCB"},
     .n_needed = 1,
     .check = quant_check_bnb8,
     .values = quant_values_bnb8},
};

#define N_FORMATS (sizeof formats / sizeof formats[0])

/* e4m3 that is converted (quant_reading.is_converted). */
static const struct quant_format converted_e4m3 = {
    .method = "compressed-tensors",
    .data = "weight",
    .dtype = "F8_E4M3",
    .text = "e4m3",
    .beside = {"weight_scale", "weight_zero_point", "weight_g_idx"},
    .n_needed = 1,
    .check = quant_check_e4m3,
    .values = quant_values_e4m3};

/* Blocks of GGUF files, which no quantization_config names: each tensor has a type of its own. */
#define BLOCKS(type)                                                    \
    {                                                                   \
        .data = "weight", .dtype = #type, .packed = 1, .elem = K_##type \
    }

static const struct quant_format blocks[] = {
    {.data = "weight", .dtype = "Q4_0", .packed = 1, .elem = K_Q4_0, .codes = &quant_codes_q4_0},
    BLOCKS(Q4_1),
    BLOCKS(Q5_0),
    BLOCKS(Q5_1),
    {.data = "weight", .dtype = "Q8_0", .packed = 1, .elem = K_Q8_0, .codes = &quant_codes_q8_0},
    BLOCKS(Q2_K),
    BLOCKS(Q3_K),
    BLOCKS(Q4_K),
    BLOCKS(Q5_K),
    BLOCKS(Q6_K),
    BLOCKS(IQ4_NL),
    BLOCKS(IQ4_XS),
    BLOCKS(MXFP4),
};

#define N_BLOCKS (sizeof blocks / sizeof blocks[0])

/* Blocks of MXFP4 whose exponents are read apart. */
static const struct quant_format split_mxfp4 = {.data = "weight",
                                                .dtype = "MXFP4",
                                                .packed = 1,
                                                .elem = K_E2M1,
                                                .unpack = quant_unpack_mxfp4};

/* Scales are tensors of their own, and not inside of blocks. */
static bool quant_has_scales(const struct quant_format *f)
{
    return f->scales[0] != NULL;
}

/* The name that the config gives a row's format; NULL if it gives none. */
static const char *quant_name(const struct quant_format *f, const struct json *config)
{
    return json_get_text(config, f->name_key != NULL ? f->name_key : "format", NULL);
}

/* A row without names fits any. */
static bool quant_is_named(const struct quant_format *f, const char *name)
{
    for (int i = 0; i < QUANT_NAMES_MAX && f->names[i] != NULL; i++) {
        if (name == NULL || strcasecmp(f->names[i], name) == 0)
            return true;
    }
    return f->names[0] == NULL;
}

/* The row of a quant_method and the name of its format; NULL with a sentence that lists the known
 * methods. */
static const struct quant_format *quant_find_format(struct quant_reading *r,
                                                    const struct json *config)
{
    const char *method = json_get_text(config, "quant_method", "?"), *name = NULL;
    char known[200] = "";

    for (size_t i = 0; i < N_FORMATS; i++) {
        const struct quant_format *format = &formats[i];
        bool is_new = strstr(known, format->method) == NULL;
        size_t len = strlen(known);

        if (strcmp(format->method, method) == 0 &&
            quant_is_named(format, name = quant_name(format, config)))
            return format;
        (void)snprintf(known + len, sizeof known - len, "%s%s", i == 0 || !is_new ? "" : ", ",
                       is_new ? format->method : "");
    }
    if (name != NULL)
        quant_refuse(r, "format \"%.40s\" of %s is not supported", name, method);
    else
        quant_refuse(r,
                     "quant_method \"%.40s\" is not supported; use one of %s, or a bf16 checkpoint",
                     method, known);
    return NULL;
}

/* The packed format of random weights of a kind; plain if there is none. */
static struct k_format quant_packed_of(const struct quant_format *kind, const struct json *config)
{
    if (kind->floats != NULL)
        return k_format_float4(kind->floats->group);
    return kind->codes != NULL ? quant_packed_config(config) : k_format_bare(K_BF16);
}

/* The scope of a scale of weights in the first group of compressed-tensors. */
static const char *quant_strategy(const struct json *config)
{
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);
    const struct json *weights = groups != NULL && groups->n > 0
                                     ? json_get_kind(&groups->items[0], "weights", JSON_OBJECT)
                                     : NULL;

    return weights != NULL ? json_get_text(weights, "strategy", "tensor") : "";
}

int quant_read(struct quant_config *out, const struct json *config, char *why, size_t why_cap)
{
    struct quant_reading reading = {.why = why, .why_cap = why_cap};
    const struct quant_format *kind = quant_find_format(&reading, config);

    if (kind != NULL)
        kind->read(&reading, config);
    if (reading.is_converted) {
        kind = &converted_e4m3;
        reading.format = k_format_bare(K_BF16);
    }
    if (reading.rc != ERR_OK)
        return reading.rc;
    *out = (struct quant_config){
        .kind = kind, .format = reading.format, .packed = quant_packed_of(kind, config)};
    out->rounds_x = quant_rounds_inputs(config);
    quant_read_sizes(out, config);
    if (strcasecmp(json_get_text(config, "quant_algo", ""), "MIXED_PRECISION") == 0)
        quant_read_mix(&out->mix, config);
    if (kind->codes == &quant_codes_int8 && out->packed.elem == K_INT8 && !out->packed.has_zeros &&
        out->packed.group_cols == K_PACKED_COLS &&
        strcmp(quant_strategy(config), "channel") == 0) { /* random weights have that form, too */
        out->packed = k_format_bare(K_BF16);
        out->format = k_format_by_row(K_INT8);
        out->format.rounds_x = out->rounds_x;
    }
    return ERR_OK;
}

/* --- numbers ------------------------------------------------------------------------------ */

/* memcpy() is the portable way to reinterpret bits. */
static float quant_float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* An F16 number as float32. Exponent 31 is infinity or NaN; exponent 0 is a subnormal, a multiple
 * of 2^-24. */
static float quant_float_of_half(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    float small = (float)fraction * 0x1p-24f;

    if (exponent == 0)
        return sign == 0 ? small : -small;
    return quant_float_of_bits(sign | (exponent == 31 ? 255U : exponent + 112) << 23 |
                               fraction << 13);
}

/* The types differ in the second letter of their names, which is faster to test than the whole
 * name, millions of times. */
float quant_number(const struct tensor *t, size_t i)
{
    uint32_t bits = 0;

    switch (t->dtype[1]) {
    case '3': memcpy(&bits, t->data + 4 * i, 4); break;             /* F32 */
    case '8': bits = (uint32_t)t->data[i] << 23; break;             /* F8_E8M0: an exponent alone */
    case 'F': memcpy((char *)&bits + 2, t->data + 2 * i, 2); break; /* BF16: the upper half */
    default: memcpy(&bits, t->data + 2 * i, 2); return quant_float_of_half(bits);
    }
    return quant_float_of_bits(bits);
}

bool quant_is_number(const struct tensor *t)
{
    static const char *const types[] = {"F32", "BF16", "F16", "F8_E8M0"};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(t->dtype, types[i]) == 0)
            return true;
    }
    return false;
}

int quant_single(float *out, const struct tensor *t)
{
    if (!quant_is_number(t))
        return ERR_UNSUPPORTED;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] != 1)
            return ERR_INVALID;
    }
    *out = quant_number(t, 0);
    return ERR_OK;
}

/* With one row or column of scales, all elements share it. */
float quant_scale(const struct quant_scales *s, int row, int col)
{
    size_t at = 0;

    if (s->n_rows > 1)
        at = (size_t)(row / s->group_rows) * (size_t)s->n_cols;
    if (s->n_cols > 1)
        at += (size_t)(col / s->group_cols);
    return quant_number(s->t, at);
}

/* --- tensors of a matrix ------------------------------------------------------------------ */

/* The tensor named stem.ending, or NULL. */
static const struct tensor *quant_tensor_beside(const struct quant_search *s, const char *ending)
{
    char name[400];

    if (ending == NULL)
        return NULL;
    (void)snprintf(name, sizeof name, "%s.%s", s->stem, ending); /* no such tensor when cut */
    return checkpoint_find(s->files, name);
}

int quant_fail(const struct quant_search *s, int rc, const struct tensor *t, const char *format,
               ...)
{
    int n = snprintf(s->why, s->why_cap, "%s: tensor %s ", checkpoint_path(s->files, t), t->name);
    va_list args;

    va_start(args, format);
    if (n >= 0 && (size_t)n < s->why_cap)
        (void)vsnprintf(s->why + n, s->why_cap - (size_t)n, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

/* Check that t has one scale per group of f, or one for the whole matrix, and describe it in
 * *out. */
static int quant_read_scales(const struct quant_search *s, struct quant_scales *out,
                             const struct tensor *t, const struct k_format *f)
{
    int64_t n_rows = t->n_dims > 0 ? t->dims[0] : 1, n_cols = t->n_dims > 1 ? t->dims[1] : 1;
    int high = f->group_rows, wide = k_format_has_groups(f) ? f->group_cols : s->cols;
    int rows = (s->rows + high - 1) / high, cols = (s->cols + wide - 1) / wide;

    if (!quant_is_number(t))
        return quant_fail(s, ERR_UNSUPPORTED, t,
                          "has type %.20s; F32, BF16, F16 and F8_E8M0 are read", t->dtype);
    *out = (struct quant_scales){.t = t,
                                 .n_rows = (int)n_rows,
                                 .n_cols = (int)n_cols,
                                 .group_rows = high,
                                 .group_cols = wide};
    if (t->n_dims <= 2 && ((n_rows == rows && n_cols == cols) || (n_rows == 1 && n_cols == 1)))
        return ERR_OK;
    return quant_fail(s, ERR_INVALID, t,
                      "has %lld x %lld numbers, where %d x %d or one are expected",
                      (long long)n_rows, (long long)n_cols, rows, cols);
}

/* One number for the whole matrix. */
static bool quant_is_single(const struct quant_scales *s)
{
    return s->n_rows == 1 && s->n_cols == 1;
}

/* Find the scales, zero points and global scale of a matrix. If all of them are single numbers, the
 * format becomes "by row", whose kernels are faster than those for groups. */
static int quant_find_scales(const struct quant_search *s, struct quant_part *p)
{
    const struct quant_format *kind = p->kind;
    const struct tensor *tensor = NULL;
    int rc;

    if (!quant_has_scales(kind))
        return ERR_OK;
    for (int i = 0; tensor == NULL && i < QUANT_NAMES_MAX; i++)
        tensor = quant_tensor_beside(s, kind->scales[i]);
    if (tensor == NULL)
        return quant_fail(s, ERR_NOT_FOUND, p->data, "is %s and has no %s", kind->dtype,
                          kind->scales[0]);
    if ((rc = quant_read_scales(s, &p->scales, tensor, &p->format)) != ERR_OK)
        return rc;
    if ((tensor = quant_tensor_beside(s, kind->zeros)) != NULL &&
        (rc = quant_read_scales(s, &p->zeros, tensor, &p->format)) != ERR_OK)
        return rc;
    p->format.has_zeros = tensor != NULL;
    if ((tensor = quant_tensor_beside(s, kind->global)) != NULL &&
        (rc = quant_read_scales(s, &p->global, tensor, &p->format)) != ERR_OK)
        return rc;
    p->format.has_global = tensor != NULL;
    if (p->format.has_global && !quant_is_single(&p->global))
        return quant_fail(s, ERR_INVALID, tensor, "has more than one number");
    if (quant_is_single(&p->scales) && (!p->format.has_zeros || quant_is_single(&p->zeros))) {
        p->format.group_rows = 1;
        p->format.group_cols = 0;
    }
    return ERR_OK;
}

/* True if the matrix is stored in this format. */
static bool quant_has_data(const struct quant_search *s, const struct quant_format *f)
{
    const struct tensor *tensor = quant_tensor_beside(s, f->data);

    return tensor != NULL && strcmp(tensor->dtype, f->dtype) == 0;
}

/* The row that fits a matrix: the config's, or another of its method, because files may mix
 * formats. Without a config the type of the tensor decides, for the formats that it names. */
static const struct quant_format *quant_find_kind(const struct quant_search *s,
                                                  const struct quant_format *named)
{
    if (named != NULL && quant_has_data(s, named))
        return named;
    for (size_t i = 0; i < N_FORMATS; i++) {
        bool fits = formats[i].values == NULL;

        if (named != NULL)
            fits = named->method != NULL && strcmp(formats[i].method, named->method) == 0;
        if (fits && quant_has_data(s, &formats[i]))
            return &formats[i];
    }
    for (size_t i = 0; i < N_BLOCKS && named == NULL; i++) {
        if (quant_has_data(s, &blocks[i]))
            return &blocks[i];
    }
    return NULL;
}

/* The format in memory of a matrix of this kind; plain for one that is always converted. */
static struct k_format quant_format_of(const struct quant_config *config,
                                       const struct quant_format *kind)
{
    if (kind->values != NULL)
        return k_format_bare(K_BF16);
    if (!quant_has_scales(kind))
        return k_format_bare(kind->elem);
    if (config->kind != NULL && config->format.elem == kind->elem)
        return config->format;
    return k_format_by_row(kind->elem);
}

/* Find the tensors beside the data of a kind with `values`, and have them checked. */
static int quant_find_beside(const struct quant_search *s, struct quant_part *p)
{
    for (int i = 0; i < QUANT_BESIDE_MAX; i++) {
        p->beside[i] = quant_tensor_beside(s, p->kind->beside[i]);
        if (p->beside[i] == NULL && i < p->kind->n_needed)
            return quant_fail(s, ERR_NOT_FOUND, p->data, "has no %s beside it", p->kind->beside[i]);
    }
    return p->kind->check(s, p);
}

/* With packed elements a file's row is shorter than the matrix's. */
static int quant_check_shape(const struct quant_search *s, const struct quant_part *p)
{
    const struct tensor *tensor = p->data;
    int packed = p->kind != NULL ? p->kind->packed : 1;

    if (tensor->n_dims == 2 && tensor->dims[0] == s->rows && tensor->dims[1] * packed == s->cols)
        return ERR_OK;
    return quant_fail(s, ERR_INVALID, tensor,
                      "has %d dimensions, the first %lld; config.json says [%d][%d]",
                      tensor->n_dims, tensor->n_dims > 0 ? (long long)tensor->dims[0] : 0LL,
                      s->rows, s->cols / packed);
}

/* A matrix that is neither plain nor in a known format: perhaps the one that config names, but with
 * elements of another type. */
static int quant_miss(const struct quant_search *s, const struct quant_format *named)
{
    const struct tensor *other = named != NULL ? quant_tensor_beside(s, named->data) : NULL;

    if (other != NULL)
        return quant_fail(s, ERR_UNSUPPORTED, other, "has type %.20s; %s is read", other->dtype,
                          named->dtype);
    (void)snprintf(s->why, s->why_cap, "tensor %s.weight is missing", s->stem); /* cut is fine */
    return ERR_NOT_FOUND;
}

/* Members that matrices which stay packed need, of a kind of blocks. */
static void quant_set_codes(struct quant_part *p)
{
    if (p->kind == NULL || p->kind->codes == NULL || quant_has_values(p))
        return;
    p->bits = p->kind->elem == K_Q8_0 ? 8 : 4;
    p->group = k_type_block(p->kind->elem);
}

int quant_find(struct quant_part *out, const struct checkpoint *files,
               const struct quant_config *config, const struct quant_matrix *matrix, char *why,
               size_t why_cap)
{
    const struct quant_search search = {files, matrix->stem, matrix->rows, matrix->cols,
                                        why,   why_cap,      config};
    struct quant_part part = {.rows = matrix->rows, .cols = matrix->cols};
    int rc;

    must(matrix->rows >= 1 && matrix->cols >= 1);
    part.kind = quant_find_kind(&search, config->kind);
    if (part.kind != NULL)
        part.format = quant_format_of(config, part.kind);
    quant_set_codes(&part);
    part.data = quant_tensor_beside(&search, part.kind != NULL ? part.kind->data : "weight");
    if (part.data == NULL)
        return quant_miss(&search, config->kind);
    if (quant_has_values(&part))
        rc = quant_find_beside(&search, &part);
    else if ((rc = quant_check_shape(&search, &part)) == ERR_OK && part.kind != NULL)
        rc = quant_find_scales(&search, &part);
    if (rc == ERR_OK)
        *out = part;
    return rc;
}

int quant_take_blocks(struct quant_part *p)
{
    for (size_t i = 0; i < N_BLOCKS; i++) {
        if (strcmp(p->data->dtype, blocks[i].dtype) != 0)
            continue;
        if (p->cols % k_type_block(blocks[i].elem) != 0)
            return ERR_INVALID;
        p->kind = &blocks[i];
        p->format = k_format_bare(blocks[i].elem);
        quant_set_codes(p);
    }
    return ERR_OK;
}

bool quant_is_mxfp4(const struct quant_format *kind)
{
    return kind != NULL && kind->values == quant_values_mxfp4;
}

void quant_keep_mxfp4(struct quant_part *p)
{
    if (quant_is_mxfp4(p->kind))
        p->format = k_format_mxfp4();
}

void quant_split_mxfp4(struct quant_part *p)
{
    must(p->format.elem == K_MXFP4);
    p->kind = &split_mxfp4;
    p->format = k_format_mxfp4();
}

bool quant_is_split_mxfp4(const struct quant_format *kind)
{
    return kind == &split_mxfp4;
}

int quant_mxfp4(struct quant_part *out, const struct checkpoint *files,
                const struct tensor *const parts[2], const struct quant_matrix *matrix, char *why,
                size_t why_cap)
{
    const struct quant_search search = {files, matrix->stem, matrix->rows, matrix->cols,
                                        why,   why_cap,      NULL};
    struct quant_part part = {
        .data = parts[0], .rows = matrix->rows, .cols = matrix->cols, .beside = {parts[1]}};
    int rc;

    for (size_t i = 0; i < N_FORMATS && part.kind == NULL; i++) {
        if (quant_is_mxfp4(&formats[i]))
            part.kind = &formats[i];
    }
    must(part.kind != NULL);
    quant_keep_mxfp4(&part);
    rc = part.kind->check(&search, &part);
    if (rc == ERR_OK)
        *out = part;
    return rc;
}

/* --- weights ------------------------------------------------------------------------------ */

/* Expand the scales of n rows from `first` on, so that each row has its own, in the layout of
 * k_format_scale_cols(). */
static void quant_row_scales(float *out, const struct quant_scales *s, const struct k_format *f,
                             int cols, int first, int n)
{
    int wide = cols;

    if (k_format_has_groups(f))
        wide = f->group_cols;
    for (int row = first; row < first + n; row++, out += k_format_scale_cols(f, cols)) {
        for (int col = 0; col < cols; col += wide)
            out[col / wide] = quant_scale(s, row, col);
    }
}

size_t quant_row_bytes(const struct quant_part *p)
{
    must(p->kind != NULL);
    if (p->kind->is_whole)
        return 0;
    if (quant_has_values(p))
        return p->data->bytes / (size_t)p->rows;
    return k_format_row_bytes(&p->format, p->cols);
}

/* Uses the kernels' reference, so that converted weights equal the numbers that a kernel would
 * multiply with. */
int quant_dequantise(float *out, const struct quant_part *p, void *bytes, int first, int n)
{
    struct k_matrix rows = {.data = bytes, .format = p->format, .n_out = n, .n_in = p->cols};
    float *numbers, global = 1.0f;
    size_t n_scales;

    must(p->kind != NULL);
    if (quant_has_values(p)) {
        p->kind->values(out, p, bytes, first, n);
        return ERR_OK;
    }
    if (!quant_has_scales(p->kind)) {
        ref_dequantise(out, &rows, 0, n);
        return ERR_OK;
    }
    rows.format.group_rows = 1;
    n_scales = k_format_n_scales(&rows.format, n, p->cols);
    if ((numbers = mem_zalloc_array(2 * n_scales, sizeof *numbers)) == NULL)
        return ERR_NO_MEMORY;
    rows.scales = numbers;
    rows.zeros = numbers + n_scales;
    rows.global = &global;
    quant_row_scales(numbers, &p->scales, &rows.format, p->cols, first, n);
    if (p->format.has_zeros)
        quant_row_scales(numbers + n_scales, &p->zeros, &rows.format, p->cols, first, n);
    if (p->format.has_global)
        global = quant_scale(&p->global, 0, 0);
    ref_dequantise(out, &rows, 0, n);
    mem_free(numbers);
    return ERR_OK;
}

static void quant_round_int8(float *out, const struct tensor *weight, int first, int n, int cols)
{
    for (int row = first; row < first + n; row++) {
        size_t at = (size_t)row * (size_t)cols;
        float scale = quant_int8_scale(weight, weight->data, at, cols);

        for (int col = 0; col < cols; col++, out++)
            *out = (float)quant_int8_code(quant_number(weight, at + (size_t)col), scale) * scale;
    }
}

/* Row by row: round to codes, then take the codes' values. A device that does not multiply with
 * e4m3 computes the same model that way. */
int quant_round(float *out, const struct tensor *weight, int first, int n, int cols,
                enum k_type elem)
{
    size_t at = (size_t)first * (size_t)cols;
    k_e4m3 *codes;

    if (elem == K_INT8) {
        quant_round_int8(out, weight, first, n, cols);
        return ERR_OK;
    }
    codes = mem_alloc((size_t)cols);
    if (codes == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < (size_t)n * (size_t)cols; i++)
        out[i] = quant_number(weight, at + i);
    for (int row = 0; row < n; row++, out += cols) {
        float scale;
        struct k_quantised rounded = {.data = codes, .scales = &scale};

        ref_quantise(&rounded, out, 1, cols);
        for (int col = 0; col < cols; col++)
            out[col] = k_e4m3_value(codes[col]) * scale;
    }
    mem_free(codes);
    return ERR_OK;
}

/* Used in the log line on converted matrices. */
void quant_text(char *out, size_t cap, const struct quant_format *kind, const struct k_format *f)
{
    static const char *const types[] = {
        [K_BF16] = "bf16",   [K_E4M3] = "e4m3", [K_F32] = "float32",   [K_BF16_KEPT] = "bf16",
        [K_E8M0] = "e8m0",   [K_E2M1] = "e2m1", [K_Q4_0] = "Q4_0",     [K_Q4_1] = "Q4_1",
        [K_Q5_0] = "Q5_0",   [K_Q5_1] = "Q5_1", [K_Q8_0] = "Q8_0",     [K_IQ4_NL] = "IQ4_NL",
        [K_MXFP4] = "MXFP4", [K_Q2_K] = "Q2_K", [K_Q3_K] = "Q3_K",     [K_Q4_K] = "Q4_K",
        [K_Q5_K] = "Q5_K",   [K_Q6_K] = "Q6_K", [K_IQ4_XS] = "IQ4_XS", [K_F16] = "float16",
        [K_U4] = "int4",     [K_U8] = "int8",   [K_INT4] = "int4",     [K_INT8] = "int8",
        [K_FLOAT4] = "e2m1", [K_E5M3] = "e5m3",
    };
    char groups[40] = "row";

    if (kind != NULL && kind->text != NULL) {
        (void)snprintf(out, cap, "%s", kind->text);
        return;
    }
    if (k_format_has_groups(f))
        (void)snprintf(groups, sizeof groups, "%d x %d", f->group_rows, f->group_cols);
    (void)snprintf(out, cap, "%s%s%s%s%s", types[f->elem],
                   f->group_rows > 0 ? " with a scale for each " : "",
                   f->group_rows > 0 ? groups : "", f->has_zeros ? ", zero points" : "",
                   f->has_global ? ", a global scale" : "");
}
