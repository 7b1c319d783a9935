/* SPDX-License-Identifier: Apache-2.0
 *
 * The input is a template, rendered over a small conversation within the bounds. The spans that are
 * said to be the template's are in order, and hold nothing that only the conversation has. */
#include <string.h>

#include "base/must.h"
#include "text/template/jinja.h"

#define SECRET "\xee\x80\x80" /* a character that no case, filter or escape makes of others */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_own(const struct buf *out, const struct spans *own)
{
    size_t last = 0;

    for (size_t i = 0; i < own->n; i++) {
        struct span s = own->items[i];

        must(s.start < s.stop && s.stop <= out->len && (i == 0 || s.start > last));
        for (size_t at = s.start; at + 3 <= s.stop; at++)
            must(memcmp(out->bytes + at, SECRET, 3) != 0);
        last = s.stop;
    }
}

static bool holds(const uint8_t *bytes, size_t len, const char *what, size_t n)
{
    for (size_t at = 0; at + n <= len; at++)
        if (memcmp(bytes + at, what, n) == 0)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\" h\xc3\xa9" SECRET " " SECRET
                                   "\",\"n\":[1,2.5,true,null]},{\"role\":\"x" SECRET "\"}]";
    bool knows = holds(bytes, len, SECRET, 3) || holds(bytes, len, "\\", 1);
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *node = NULL;
    struct buf out = {.limit = (size_t)8 << 20};
    struct jinja *j = NULL;
    struct jinja_vars v;
    struct spans own = {0};
    char why[200];

    if (len < 4096 && jinja_compile(&j, (const char *)bytes, len, why, sizeof why) == ERR_OK &&
        json_parse(&node, &a, messages, strlen(messages), why, sizeof why) == ERR_OK) {
        jinja_vars_init(&v, &a);
        v.now_unix_s = 1;
        v.own = &own;
        jinja_vars_json(&v, "messages", node);
        if (jinja_render(j, &v, &a, &out, why, sizeof why) != ERR_OK)
            buf_clear(&out); /* any answer will do but a crash */
        else if (!knows)
            check_own(&out, &own);
    }
    jinja_close(j);
    buf_fini(&out);
    arena_reset(&a);
    return 0;
}
