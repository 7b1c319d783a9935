/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the header of a safetensors file, and checks all of it.
 *
 * The format: u64 little-endian header length N, N bytes of JSON that begin with '{' (spaces may
 * follow it), then data. Offsets count from the start of the data. Source: the format's README at
 * github.com/huggingface/safetensors.
 *
 * Example header: {"lm_head.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
 * "__metadata__": {"format": "pt"}}. */
#include "model/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define HEADER_BYTES_MAX ((size_t)100000000) /* the format's own limit */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    {"BOOL", 1},    {"U8", 1},   {"I8", 1},  {"F8_E5M2", 1},     {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"I16", 2},  {"U16", 2}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1},
    {"F16", 2},     {"BF16", 2}, {"I32", 4}, {"U32", 4},         {"F32", 4},
    {"I64", 8},     {"U64", 8},  {"F64", 8}, {"C64", 8},
};

struct parse {
    char *why;
    size_t why_cap;
    size_t data_bytes; /* bytes after the header */
};

/* Write the reason for an error. Returns rc. */
__attribute__((format(printf, 3, 4))) static int safetensors_refuse(const struct parse *p, int rc,
                                                                    const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(p->why, p->why_cap, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

/* The bytes that shape and type imply. ERR_UNSUPPORTED for an unknown type, ERR_CORRUPT for a
 * product that overflows. */
static int safetensors_tensor_bytes(const struct parse *p, const struct tensor *t, size_t *out)
{
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, t->dtype) == 0)
            bytes = dtypes[i].bytes;
    }
    if (bytes == 0)
        return safetensors_refuse(p, ERR_UNSUPPORTED,
                                  "tensor %.100s has type \"%.20s\", which is not read", t->name,
                                  t->dtype);
    for (int i = 0; i < t->n_dims; i++) {
        if (__builtin_mul_overflow(bytes, (size_t)t->dims[i], &bytes))
            return safetensors_refuse(p, ERR_CORRUPT,
                                      "tensor %.100s: the product of its shape overflows", t->name);
    }
    *out = bytes;
    return ERR_OK;
}

/* One entry of the header: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}. */
static int safetensors_read_tensor(const struct parse *p, struct tensor *t,
                                   const struct json *entry, const uint8_t *data)
{
    const struct json *shape = json_get_kind(entry, "shape", JSON_LIST);
    const struct json *span = json_get_kind(entry, "data_offsets", JSON_LIST);
    size_t want = 0;
    int rc;

    t->name = entry->key;
    t->dtype = json_get_text(entry, "dtype", NULL);
    if (entry->kind != JSON_OBJECT || t->dtype == NULL || shape == NULL || span == NULL ||
        span->n != 2 || span->items[0].kind != JSON_INT || span->items[1].kind != JSON_INT)
        return safetensors_refuse(p, ERR_CORRUPT,
                                  "tensor %.100s needs dtype, shape and two data_offsets", t->name);
    if (shape->n > TENSOR_DIMS_MAX)
        return safetensors_refuse(p, ERR_UNSUPPORTED, "tensor %.100s has %u dimensions", t->name,
                                  shape->n);
    t->n_dims = (int)shape->n;
    for (int i = 0; i < t->n_dims; i++) {
        if (shape->items[i].kind != JSON_INT || shape->items[i].whole < 0)
            return safetensors_refuse(p, ERR_CORRUPT,
                                      "tensor %.100s: its shape must be whole numbers", t->name);
        t->dims[i] = shape->items[i].whole;
    }
    if (span->items[0].whole < 0 || span->items[1].whole < span->items[0].whole ||
        (uint64_t)span->items[1].whole > p->data_bytes)
        return safetensors_refuse(p, ERR_CORRUPT,
                                  "tensor %.100s: data_offsets lie outside the file's %zu bytes"
                                  " of data (is it cut short?)",
                                  t->name, p->data_bytes);
    /* Inside the file, as checked above. */
    t->data = data + span->items[0].whole;
    t->bytes = (size_t)(span->items[1].whole - span->items[0].whole);
    if ((rc = safetensors_tensor_bytes(p, t, &want)) != ERR_OK)
        return rc;
    if (want != t->bytes)
        return safetensors_refuse(p, ERR_CORRUPT,
                                  "tensor %.100s has %zu bytes where its shape and type say "
                                  "%zu",
                                  t->name, t->bytes, want);
    return ERR_OK;
}

/* By address, so that holes and overlaps show between neighbours. Empty tensors come before others
 * at the same address. */
static int safetensors_by_data(const void *a, const void *b)
{
    const struct tensor *first = a, *second = b;

    if (first->data != second->data)
        return first->data < second->data ? -1 : 1;
    if (first->bytes < second->bytes)
        return -1;
    return first->bytes > second->bytes;
}

/* Verify that the tensors, sorted by address, cover the data exactly: no hole, no overlap, no bytes
 * after the last. */
static int safetensors_check_cover(const struct parse *p, const struct tensor *tensors, size_t n,
                                   const uint8_t *data)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < n; i++) {
        if (tensors[i].data != at)
            return safetensors_refuse(p, ERR_CORRUPT, "tensor %.100s %s the one before it",
                                      tensors[i].name,
                                      tensors[i].data < at ? "overlaps" : "leaves a hole after");
        /* `at` is where the next tensor must begin. */
        at += tensors[i].bytes;
    }
    if ((size_t)(at - data) != p->data_bytes)
        return safetensors_refuse(p, ERR_CORRUPT,
                                  "%zu bytes after the last tensor belong to no tensor",
                                  p->data_bytes - (size_t)(at - data));
    return ERR_OK;
}

/* The length is assembled byte by byte, because the format is little-endian on every machine. */
int safetensors_parse(struct tensor_list *out, struct arena *arena, const uint8_t *bytes,
                      size_t len, char *why, size_t why_cap)
{
    struct parse parse = {.why = why, .why_cap = why_cap};
    const struct json *header;
    struct tensor *tensors;
    uint64_t header_len = 0;
    size_t n_tensors = 0;
    int rc;

    for (size_t i = 0; i < 8 && i < len; i++)
        header_len |= (uint64_t)bytes[i] << (8 * i);
    if (len < 8 || header_len > HEADER_BYTES_MAX || header_len > len - 8)
        return safetensors_refuse(&parse, ERR_CORRUPT,
                                  "the header has %llu bytes, the file %zu: it is cut short "
                                  "or not a safetensors file",
                                  (unsigned long long)header_len, len);
    /* The format demands '{' at once, so that no other JSON or padding can come before. */
    if (header_len == 0 || bytes[8] != '{')
        return safetensors_refuse(&parse, ERR_CORRUPT, "the header does not begin with '{'");
    parse.data_bytes = len - 8 - (size_t)header_len;
    rc = json_parse(&header, arena, (const char *)bytes + 8, (size_t)header_len, why, why_cap);
    if (rc != ERR_OK)
        return rc == ERR_NO_MEMORY ? rc : ERR_CORRUPT;
    if (header->kind != JSON_OBJECT)
        return safetensors_refuse(&parse, ERR_CORRUPT, "the header is not an object");
    /* One entry may be metadata, so this is enough. */
    tensors = arena_zalloc(arena, (size_t)header->n * sizeof *tensors);
    if (tensors == NULL)
        return safetensors_refuse(&parse, ERR_NO_MEMORY, "no memory for %u tensors", header->n);
    for (uint32_t i = 0; i < header->n; i++) {
        if (strcmp(header->items[i].key, "__metadata__") == 0)
            continue;
        rc = safetensors_read_tensor(&parse, &tensors[n_tensors++], &header->items[i],
                                     bytes + 8 + header_len);
        if (rc != ERR_OK)
            return rc;
    }
    qsort(tensors, n_tensors, sizeof *tensors, safetensors_by_data);
    if ((rc = safetensors_check_cover(&parse, tensors, n_tensors, bytes + 8 + header_len)) !=
        ERR_OK)
        return rc;
    *out = (struct tensor_list){tensors, n_tensors};
    return ERR_OK;
}
