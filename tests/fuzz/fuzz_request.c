/* The first byte chooses chat or completion; the rest is a request's body, parsed and read as a
 * front does before it renders. */
#include <string.h>

#include "base/must.h"
#include "front/fields.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *body = NULL;
    const char *param = NULL;
    struct exchange x = {0};
    struct presets presets;
    struct fields f;
    char why[512] = "";
    char *text;

    if (len == 0 || (text = arena_strndup(&a, (const char *)bytes + 1, len - 1)) == NULL)
        return 0;
    presets_init(&presets);
    x.format = (bytes[0] & 1) != 0 ? EXCHANGE_CHAT : EXCHANGE_COMPLETION;
    if (json_parse(&body, &a, text, len - 1, why, sizeof why) == ERR_OK &&
        body->kind == JSON_OBJECT) {
        if (fields_read(&f, &x, body, &presets, "demo", why, sizeof why, &param) != ERR_OK) {
            must(why[0] != '\0' && param != NULL);
        } else {
            must(f.n_stops <= DETOK_STOPS_MAX && f.request.n_stop_ids <= WIRE_STOP_IDS);
            must(x.n >= 1 && x.n <= 128);
            must(!x.max_tokens_given || x.max_tokens >= 1);
            must(f.request.temperature >= 0.0f && f.request.temperature <= 2.0f);
            must(f.request.top_p > 0.0f && f.request.top_p <= 1.0f && f.request.top_k >= 0);
        }
    }
    arena_reset(&a);
    return 0;
}
