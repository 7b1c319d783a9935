/* The input is a template, rendered over a small conversation within the bounds. */
#include <string.h>

#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\" h\xc3\xa9 \",\"n\":[1,2.5,true,null]},"
        "{\"role\":\"x\"}]";
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *node = NULL;
    struct buf out = {.limit = (size_t)8 << 20};
    struct jinja *j = NULL;
    struct jinja_vars v;
    char why[200];

    if (len < 4096 && jinja_compile(&j, (const char *)bytes, len, why, sizeof why) == ERR_OK &&
        json_parse(&node, &a, messages, strlen(messages), why, sizeof why) == ERR_OK) {
        jinja_vars_init(&v, &a);
        v.now_unix_s = 1;
        jinja_vars_json(&v, "messages", node);
        if (jinja_render(j, &v, &a, &out, why, sizeof why) != ERR_OK)
            buf_clear(&out); /* any answer will do but a crash */
    }
    jinja_close(j);
    buf_fini(&out);
    arena_reset(&a);
    return 0;
}
