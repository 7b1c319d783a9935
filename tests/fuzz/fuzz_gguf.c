/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a GGUF file: refused, or settings and tensors that lie inside. */
#include <stdlib.h>

#include "base/gguf.h"
#include "base/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Read all items of a setting. */
static void read_value(const struct gguf_value *v)
{
    struct gguf_walk walk = gguf_walk(v);
    struct gguf_text text;
    double number;
    uint64_t n = 0;

    while (gguf_next(&walk, &text)) {
        must((const uint8_t *)text.bytes >= v->bytes);
        must(text.len <= v->len - (size_t)((const uint8_t *)text.bytes - v->bytes));
        n++;
    }
    must(v->kind != GGUF_TEXT || n == v->n);
    for (uint64_t i = 0; gguf_item(v, i, &number); i++)
        must(i < v->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena arena = {.limit_bytes = (size_t)64 << 20};
    struct gguf g = {.n_values = 0};
    int32_t ids[8];
    char why[200];

    if (gguf_parse(&g, &arena, bytes, len, why, sizeof why) == ERR_OK) {
        for (size_t i = 0; i < g.n_values; i++)
            read_value(&g.values[i]);
        for (size_t i = 0; i < g.n_tensors; i++) {
            must(g.tensors[i].data >= bytes);
            must(g.tensors[i].bytes <= len - (size_t)(g.tensors[i].data - bytes));
        }
        must(gguf_ends(&g, ids, 8) <= 8);
    }
    arena_reset(&arena);
    return 0;
}
