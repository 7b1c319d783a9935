/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a safetensors file: refused, or tensors that lie inside. */
#include <stdlib.h>

#include "base/must.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena arena = {.limit_bytes = (size_t)64 << 20};
    struct tensor *tensors = NULL;
    char why[200];
    size_t n = 0;

    if (safetensors_parse(&tensors, &n, &arena, bytes, len, why, sizeof why) == ERR_OK) {
        for (size_t i = 0; i < n; i++) {
            must(tensors[i].data >= bytes);
            must(tensors[i].bytes <= len - (size_t)(tensors[i].data - bytes));
        }
    }
    arena_reset(&arena);
    return 0;
}
