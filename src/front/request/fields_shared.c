/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of request fields that other APIs have too, under names of their own: the salt of
 * /admin/cache, the effort of /v1/responses. fields.h declares them. */
#include "front/request/fields.h"

#include <string.h>

#include "base/hash.h"

/* Only a digest goes to the engine, of a fixed length. */
bool fields_read_salt(const struct json *v, uint8_t salt[WIRE_SALT_BYTES])
{
    struct hash digest;

    if (v->kind != JSON_TEXT || v->text_len == 0)
        return false;
    /* The prefix keeps these digests apart from those of other uses. */
    digest = hash_sha256("cache_salt", sizeof "cache_salt", v->text, v->text_len);
    memcpy(salt, &digest, WIRE_SALT_BYTES);
    return true;
}

/* Is this one of the words for reasoning_effort? */
bool fields_is_effort(const struct json *v)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    bool is = false;

    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++)
        is = is || json_is_text(v, efforts[i]);
    return is;
}
