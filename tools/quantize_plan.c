/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tensors are rounded: two-dimensional weights inside of layers, as long as their rows divide
 * into groups. Not rounded are embeddings and the output matrix (no layer's), routers (few numbers,
 * and a wrong expert costs much), gates of Gated DeltaNet (few numbers, and an error in how much a
 * state keeps adds up over tokens), norms, and towers of images or sound. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf.h"
#include "text/file.h"
#include "tools/quantize.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20)

/* Names of tensors, with numbers in their numeric order. */
static int quantize_compare(const char *a, const char *b)
{
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *end_a, *end_b;
            unsigned long x = strtoul(a, &end_a, 10), y = strtoul(b, &end_b, 10);

            if (x != y)
                return x < y ? -1 : 1;
            a = end_a - 1;
            b = end_b - 1;
        } else if (*a != *b) {
            break;
        }
    }
    return (unsigned char)*a - (unsigned char)*b;
}

static int quantize_by_name(const void *a, const void *b)
{
    const struct quantize_item *x = a, *y = b;

    return quantize_compare(x->t->name, y->t->name);
}

/* The layer's number in "model.layers.12.mlp.down_proj.weight"; -1 without one. */
static int quantize_layer(const char *name)
{
    static const char *const before[] = {".layers.", ".h.", ".blocks."};

    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        const char *at = strstr(name, before[i]);

        if (at != NULL && isdigit((unsigned char)at[strlen(before[i])]))
            return atoi(at + strlen(before[i]));
    }
    return -1;
}

static bool quantize_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool quantize_is_plain(const struct tensor *t)
{
    return strcmp(t->dtype, "BF16") == 0 || strcmp(t->dtype, "F16") == 0 ||
           strcmp(t->dtype, "F32") == 0;
}

/* Is it the weight of a Linear module in a layer of the text model? */
static bool quantize_is_matrix(const struct tensor *t)
{
    static const char *const left[] = {
        "gate.weight",         "gate.wg.weight",   "router.weight",     "router.proj.weight",
        "router.layer.weight", "norm.weight",      "embed.weight",      "embeddings.weight",
        "in_proj_a.weight",    "in_proj_b.weight", "in_proj_ba.weight", "weights_proj.weight",
        "attn.b_proj.weight",  "f_a_proj.weight",  "f_b_proj.weight",   "g_a_proj.weight",
        "g_b_proj.weight"};

    if (t->n_dims != 2 || !quantize_ends(t->name, ".weight") || !quantize_is_plain(t) ||
        quantize_layer(t->name) < 0 || strstr(t->name, "vis") != NULL ||
        strstr(t->name, "audio") != NULL)
        return false;
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        if (quantize_ends(t->name, left[i]))
            return false;
    }
    return true;
}

/* Add a tensor of the result; `end` replaces "weight" at the end of the name. part.name is set
 * here. */
static int quantize_add_part(struct quantize *q, struct quantize_item *item, const char *end,
                             struct quantize_part part)
{
    struct quantize_part *p = &item->parts[item->n_parts++];
    size_t stem = strlen(item->t->name) - strlen("weight");
    char *name = arena_alloc(&q->arena, stem + strlen(end) + 1);

    if (name == NULL)
        return ERR_NO_MEMORY;
    memcpy(name, item->t->name, stem);
    memcpy(name + stem, end, strlen(end) + 1);
    *p = part;
    p->name = name;
    return ERR_OK;
}

/* A tensor of `rows` rows, or of one dimension. */
#define QUANTIZE_2D(type, cols, n_bytes)                                         \
    (struct quantize_part)                                                       \
    {                                                                            \
        .dtype = (type), .n_dims = 2, .dims = {rows, (cols)}, .bytes = (n_bytes) \
    }
#define QUANTIZE_1D(type, n, n_bytes)                                   \
    (struct quantize_part)                                              \
    {                                                                   \
        .dtype = (type), .n_dims = 1, .dims = {(n)}, .bytes = (n_bytes) \
    }

/* A matrix's tensors in the result. */
static int quantize_add_matrix(struct quantize *q, struct quantize_item *item)
{
    int64_t rows = item->t->dims[0], cols = item->t->dims[1];
    struct round_format *f = &item->format;
    size_t codes, scales;
    int rc;

    f->kind = q->kind;
    f->global = 1.0f;
    f->group = (int)cols;
    if (q->kind == ROUND_INT4)
        f->group = q->group;
    if (q->kind == ROUND_NVFP4)
        f->group = 16;
    codes = (size_t)rows * round_code_bytes(f, (int)cols);
    scales = (size_t)rows * round_scale_bytes(f, (int)cols);
    item->is_rounded = true;
    switch (q->kind) {
    case ROUND_INT4:
        rc = quantize_add_part(q, item, "weight_packed", QUANTIZE_2D("I32", cols / 8, codes));
        if (rc == ERR_OK)
            rc = quantize_add_part(q, item, "weight_scale",
                                   QUANTIZE_2D("BF16", cols / f->group, scales));
        if (rc == ERR_OK)
            rc = quantize_add_part(q, item, "weight_shape", QUANTIZE_1D("I64", 2, 16));
        return rc;
    case ROUND_INT8:
    case ROUND_FP8:
        rc = quantize_add_part(q, item, "weight",
                               QUANTIZE_2D(q->kind == ROUND_INT8 ? "I8" : "F8_E4M3", cols, codes));
        if (rc == ERR_OK)
            rc = quantize_add_part(q, item, "weight_scale", QUANTIZE_2D("BF16", 1, scales));
        return rc;
    case ROUND_NVFP4:
        rc = quantize_add_part(q, item, "weight_packed", QUANTIZE_2D("U8", cols / 2, codes));
        if (rc == ERR_OK)
            rc = quantize_add_part(q, item, "weight_scale",
                                   QUANTIZE_2D("F8_E4M3", cols / 16, scales));
        if (rc == ERR_OK)
            rc = quantize_add_part(q, item, "weight_global_scale", QUANTIZE_1D("F32", 1, 4));
        return rc;
    }
    return ERR_INVALID;
}

static int quantize_add_copy(struct quantize_item *item)
{
    struct quantize_part *p = &item->parts[item->n_parts++];

    *p = (struct quantize_part){.name = item->t->name,
                                .dtype = item->t->dtype,
                                .n_dims = item->t->n_dims,
                                .bytes = item->t->bytes};
    memcpy(p->dims, item->t->dims, sizeof p->dims);
    return ERR_OK;
}

/* Does the matrix divide into groups, and codes into words? */
static bool quantize_divides(const struct quantize *q, const struct tensor *t)
{
    int64_t cols = t->dims[1];

    if (cols < 1 || cols > INT32_MAX || t->dims[0] < 1 || t->dims[0] > INT32_MAX)
        return false;
    if (q->kind == ROUND_INT4)
        return cols % q->group == 0 && cols % 8 == 0;
    return q->kind != ROUND_NVFP4 || cols % 16 == 0;
}

/* What becomes of each tensor, and its file. `left` collects names of modules that stay as they
 * are although they look like Linear ones. */
static int quantize_plan_items(struct quantize *q, struct buf *left)
{
    size_t in_file = 0;

    for (size_t i = 0; i < q->n_items; i++) {
        struct quantize_item *item = &q->items[i];
        size_t bytes = 0;
        int rc;

        item->layer = quantize_layer(item->t->name);
        if (quantize_is_matrix(item->t) && quantize_divides(q, item->t)) {
            rc = quantize_add_matrix(q, item);
            q->n_rounded++;
        } else {
            rc = quantize_add_copy(item);
            if (item->t->n_dims == 2 && quantize_ends(item->t->name, ".weight")) {
                buf_add_text(left, ", ");
                buf_add_json_string(left, item->t->name, strlen(item->t->name) - strlen(".weight"));
            }
        }
        if (rc != ERR_OK)
            return rc;
        for (int k = 0; k < item->n_parts; k++)
            bytes += item->parts[k].bytes;
        q->bytes_before += item->t->bytes;
        q->bytes_after += bytes;
        if (in_file > 0 && in_file + bytes > QUANTIZE_FILE_BYTES) {
            q->n_files++;
            in_file = 0;
        }
        in_file += bytes;
        item->file = q->n_files;
    }
    q->n_files++;
    if (q->n_rounded > 0)
        return ERR_OK;
    fprintf(stderr, "quire quantize: %s has no matrices in layers that can be rounded%s\n",
            q->folder, q->kind == ROUND_INT4 ? "; --group may not divide their rows" : "");
    return ERR_UNSUPPORTED;
}

/* End config.json with the descriptions of weights and inputs, as compressed-tensors reads
 * them. */
static void quantize_describe(struct quantize *q, const struct buf *left)
{
    static const struct {
        const char *format, *weights, *inputs;
    } texts[] = {
        [ROUND_INT4] = {"pack-quantized",
                        "\"num_bits\": 4, \"type\": \"int\", \"strategy\": "
                        "\"group\", \"group_size\": ",
                        "null"},
        [ROUND_INT8] = {"int-quantized",
                        "\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"channel\"",
                        "{\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": "
                        "\"token\", \"dynamic\": true}"},
        [ROUND_FP8] = {"float-quantized",
                       "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\"",
                       "{\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": "
                       "\"token\", \"dynamic\": true}"},
        [ROUND_NVFP4] = {"nvfp4-pack-quantized",
                         "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", "
                         "\"group_size\": 16",
                         "null"},
    };
    struct buf *out = &q->config;

    buf_printf(out,
               ",\n  \"quantization_config\": {\n    \"quant_method\": \"compressed-tensors\",\n"
               "    \"format\": \"%s\",\n    \"quantization_status\": \"compressed\",\n"
               "    \"ignore\": [\"lm_head\"%s],\n    \"config_groups\": {\"group_0\": {\n"
               "      \"targets\": [\"Linear\"],\n      \"weights\": {%s",
               texts[q->kind].format, buf_text(left), texts[q->kind].weights);
    if (q->kind == ROUND_INT4)
        buf_printf(out, "%d", q->group);
    buf_printf(out,
               ", \"symmetric\": true, \"dynamic\": false},\n"
               "      \"input_activations\": %s\n    }}\n  }\n}\n",
               texts[q->kind].inputs);
}

/* Read config.json into q->config, without its last brace. ERR_UNSUPPORTED for the config of a
 * quantised checkpoint. */
static int quantize_read_config(struct quantize *q)
{
    const struct json *root;
    char why[QUANTIZE_PATH_CAP + 200];
    int rc = ERR_UNSUPPORTED;

    if (gguf_is_path(q->folder))
        (void)snprintf(why, sizeof why,
                       "%s is a file; the folder of the model in bf16, f16 or f32 is wanted",
                       q->folder);
    else
        rc = file_read(&q->config, q->folder, "config.json", CONFIG_BYTES_MAX, why, sizeof why);
    if (rc == ERR_OK)
        rc = json_parse(&root, &q->arena, q->config.bytes, q->config.len, why, sizeof why);
    if (rc == ERR_OK && root->kind != JSON_OBJECT) {
        (void)snprintf(why, sizeof why, "config.json is no object");
        rc = ERR_INVALID;
    }
    if (rc == ERR_OK && (json_get(root, "quantization_config") != NULL ||
                         json_get(root, "compression_config") != NULL)) {
        (void)snprintf(why, sizeof why,
                       "%s is quantised already; the checkpoint in bf16, f16 or f32 is wanted",
                       q->folder);
        rc = ERR_UNSUPPORTED;
    }
    /* A scale belongs to a row of a matrix, but what GPT-2 stores as rows are columns. */
    if (rc == ERR_OK && strcmp(json_get_text(root, "model_type", ""), "gpt2") == 0) {
        (void)snprintf(why, sizeof why,
                       "%s: GPT-2 stores matrices transposed, which is not supported", q->folder);
        rc = ERR_UNSUPPORTED;
    }
    if (rc != ERR_OK) {
        fprintf(stderr, "quire quantize: %s\n", why);
        return rc;
    }
    q->config.len = (size_t)(strrchr(q->config.bytes, '}') - q->config.bytes);
    while (q->config.len > 0 && isspace((unsigned char)q->config.bytes[q->config.len - 1]))
        q->config.len--;
    return ERR_OK;
}

static int quantize_plan_index(struct quantize *q)
{
    char name[64];
    bool more = false;

    buf_printf(&q->index, "{\"metadata\": {\"total_size\": %zu}, \"weight_map\": {",
               q->bytes_after);
    for (size_t i = 0; i < q->n_items; i++) {
        quantize_file_name(q, q->items[i].file, name, sizeof name);
        for (int k = 0; k < q->items[i].n_parts; k++, more = true) {
            const char *tensor = q->items[i].parts[k].name;

            buf_add_text(&q->index, more ? ",\n" : "\n");
            buf_add_json_string(&q->index, tensor, strlen(tensor));
            buf_printf(&q->index, ": \"%s\"", name);
        }
    }
    buf_add_text(&q->index, "}}\n");
    return q->index.failed || q->config.failed ? ERR_NO_MEMORY : ERR_OK;
}

void quantize_file_name(const struct quantize *q, int file, char *out, size_t cap)
{
    if (q->n_files == 1)
        (void)snprintf(out, cap, "model.safetensors");
    else
        (void)snprintf(out, cap, "model-%05d-of-%05d.safetensors", file + 1, q->n_files);
}

int quantize_plan(struct quantize *q)
{
    struct buf left = {0};
    int rc = quantize_read_config(q);

    if (rc == ERR_OK)
        rc = checkpoint_open(&q->source, q->folder);
    if (rc != ERR_OK)
        return rc;
    q->n_items = checkpoint_size(q->source);
    q->items = arena_zalloc(&q->arena, (q->n_items + 1) * sizeof *q->items);
    if (q->items == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < q->n_items; i++)
        q->items[i].t = checkpoint_tensor(q->source, i);
    qsort(q->items, q->n_items, sizeof *q->items, quantize_by_name);
    rc = quantize_plan_items(q, &left);
    if (rc == ERR_OK) {
        quantize_describe(q, &left);
        rc = quantize_plan_index(q);
    }
    buf_fini(&left);
    return rc;
}
