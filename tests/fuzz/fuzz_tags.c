/* SPDX-License-Identifier: Apache-2.0
 *
 * The first byte chooses the format of replies; the rest is a structural tag. What is taken
 * compiles to an automaton that the check takes, or is refused with a reason. */
#include <string.h>

#include "base/must.h"
#include "front/structured/tags.h"
#include "grammar/automaton.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *v = NULL;
    struct grammar_part part;
    struct grammar_error error;
    struct buf image = {0};
    char why[512] = "";
    char *text;

    if (len == 0 || (text = arena_strndup(&a, (const char *)bytes + 1, len - 1)) == NULL)
        return 0;
    if (json_parse(&v, &a, text, len - 1, why, sizeof why) == ERR_OK) {
        why[0] = '\0';
        if (tags_compose(v, (bytes[0] & 1) != 0 ? REPLY_HARMONY : REPLY_PLAIN, &a, &part, why,
                         sizeof why) == ERR_OK) {
            struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = &part, .n_parts = 1};

            if (grammar_compile(&r, &image, &error) == ERR_OK)
                must(automaton_check(image.bytes, image.len) == ERR_OK);
            else
                must(image.len == 0 && error.text[0] != '\0');
        } else {
            must(why[0] != '\0');
        }
    }
    buf_fini(&image);
    arena_reset(&a);
    return 0;
}
