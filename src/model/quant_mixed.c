/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelOpt's MIXED_PRECISION: which of a model's matrices are FP8, NVFP4 or plain, by the names in
 * config.json. Only random weights need it, and so `quire plan`: with files each tensor's type
 * shows it.
 *
 *   "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}, ...}, or
 *   "config_groups": {"group_0": {"weights": {"num_bits": 4}, "targets": ["model.layers.0..."]}}
 *
 * A matrix is kept by the part of its name behind the layer's number, without other numbers: of a
 * layer's experts the last one that is named counts. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "model/quant_parts.h"

/* The matrix's kind and layer by its name; false: it is of no layer, or its name is too long. */
static bool mixed_kind(char out[QUANT_MIX_NAME], int *layer, const char *name)
{
    static const char layers[] = "layers.";
    const char *at = strstr(name, layers);
    char *rest;
    size_t n = 0;
    long number;

    if (at == NULL || !isdigit((unsigned char)at[sizeof layers - 1]))
        return false;
    number = strtol(at + sizeof layers - 1, &rest, 10);
    if (number < 0 || number >= QUANT_MIX_LAYERS)
        return false;
    for (; *rest != '\0' && n + 1 < QUANT_MIX_NAME; rest++) {
        if (!isdigit((unsigned char)*rest))
            out[n++] = *rest;
    }
    out[n] = '\0';
    *layer = (int)number;
    return *rest == '\0';
}

/* The row of a kind, or the first free one; NULL: there is no room. */
static struct quant_mix_kind *mixed_row(struct quant_mix *mix, const char *kind)
{
    for (int i = 0; i < mix->n; i++) {
        if (strcmp(mix->kinds[i].name, kind) == 0)
            return &mix->kinds[i];
    }
    return mix->n < QUANT_MIX_KINDS ? &mix->kinds[mix->n] : NULL;
}

/* What has no room counts as plain. */
static void mixed_add(struct quant_mix *mix, const char *name, enum quant_mixed how)
{
    char kind[QUANT_MIX_NAME];
    struct quant_mix_kind *row;
    int layer;

    if (!mixed_kind(kind, &layer, name) || (row = mixed_row(mix, kind)) == NULL)
        return;
    if (row == &mix->kinds[mix->n]) {
        memcpy(row->name, kind, sizeof row->name);
        mix->n++;
    }
    row->of_layer[layer] = (uint8_t)how;
}

/* W4A16_NVFP4 and the like have the same weights; formats that are not read fail with files. */
static enum quant_mixed mixed_algorithm(const char *algorithm)
{
    if (strstr(algorithm, "NVFP4") != NULL)
        return QUANT_MIXED_FP4;
    return strncmp(algorithm, "FP8", 3) == 0 ? QUANT_MIXED_FP8 : QUANT_MIXED_PLAIN;
}

static void mixed_add_group(struct quant_mix *mix, const struct json *group)
{
    const struct json *weights = json_get_kind(group, "weights", JSON_OBJECT);
    const struct json *targets = json_get_kind(group, "targets", JSON_LIST);
    int64_t bits = weights != NULL ? json_get_int(weights, "num_bits", 0) : 0;
    enum quant_mixed how = bits == 4   ? QUANT_MIXED_FP4
                           : bits == 8 ? QUANT_MIXED_FP8
                                       : QUANT_MIXED_PLAIN;

    for (uint32_t i = 0; targets != NULL && i < targets->n; i++) {
        if (targets->items[i].kind == JSON_TEXT)
            mixed_add(mix, targets->items[i].text, how);
    }
}

void quant_read_mix(struct quant_mix *out, const struct json *config)
{
    const struct json *layers = json_get_kind(config, "quantized_layers", JSON_OBJECT);
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);

    *out = (struct quant_mix){.n = 0};
    for (uint32_t i = 0; layers != NULL && i < layers->n; i++)
        mixed_add(out, layers->items[i].key,
                  mixed_algorithm(json_get_text(&layers->items[i], "quant_algo", "")));
    for (uint32_t i = 0; layers == NULL && groups != NULL && i < groups->n; i++)
        mixed_add_group(out, &groups->items[i]);
}

enum quant_mixed quant_mixed_of(const struct quant_mix *mix, const char *stem)
{
    char kind[QUANT_MIX_NAME];
    int layer;

    if (!mixed_kind(kind, &layer, stem))
        return QUANT_MIXED_PLAIN;
    for (int i = 0; i < mix->n; i++) {
        if (strcmp(mix->kinds[i].name, kind) == 0)
            return (enum quant_mixed)mix->kinds[i].of_layer[layer];
    }
    return QUANT_MIXED_PLAIN;
}
