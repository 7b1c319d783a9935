/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes: json_parse() answers; what it took is written and read again to the same text. */
#include <string.h>

#include "base/json.h"
#include "base/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {0};
    const struct json *node = NULL;
    struct buf first = {0};
    struct buf second = {0};
    char why[100];

    if (json_parse(&node, &a, (const char *)bytes, len, why, sizeof why) == ERR_OK) {
        json_write(&first, node, JSON_COMPACT);
        if (strstr(first.bytes, "Infinity") == NULL) { /* not JSON: out of a double's range */
            must(json_parse(&node, &a, first.bytes, first.len, why, sizeof why) == ERR_OK);
            json_write(&second, node, JSON_COMPACT);
            must(first.len == second.len && memcmp(first.bytes, second.bytes, first.len) == 0);
        }
    }
    buf_fini(&first);
    buf_fini(&second);
    arena_reset(&a);
    return 0;
}
