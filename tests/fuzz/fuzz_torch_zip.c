/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as one of PyTorch's files: refused, or tensors that lie inside. */
#include <stdlib.h>

#include "base/must.h"
#include "model/torch_zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena arena = {.limit_bytes = (size_t)64 << 20};
    struct tensor_list list = {NULL, 0};
    char why[500];

    if (torch_zip_parse(&list, &arena, bytes, len, why, sizeof why) == ERR_OK) {
        for (size_t i = 0; i < list.n; i++) {
            must(list.tensors[i].data >= bytes);
            must(list.tensors[i].bytes <= len - (size_t)(list.tensors[i].data - bytes));
        }
    }
    arena_reset(&arena);
    return 0;
}
