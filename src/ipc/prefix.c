/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of prefix.h. "quire-kv1" is the version of the naming scheme: another scheme must change
 * it, or pages on disk would be found by names of different meaning. */
#include "ipc/prefix.h"

#include <string.h>

/* The salt separates tenants, the fingerprint separates models: pages of one root are never found
 * under another. */
struct hash prefix_root(const struct hash *fingerprint, const uint8_t *salt)
{
    static const char kind[] = "quire-kv1";
    uint8_t text[sizeof kind - 1 + HASH_BYTES];

    /* Without the terminating zero: the text is part of the digest as it is written in prefix.h. */
    memcpy(text, kind, sizeof kind - 1);
    memcpy(text + sizeof kind - 1, fingerprint->bytes, HASH_BYTES);
    return hash_sha256(text, sizeof text, salt, 16);
}

struct hash prefix_adapted(const struct hash *root, const uint8_t *adapter)
{
    static const char kind[] = "quire-lora1";
    uint8_t text[sizeof kind - 1 + HASH_BYTES];

    memcpy(text, kind, sizeof kind - 1);
    memcpy(text + sizeof kind - 1, root->bytes, HASH_BYTES);
    return hash_sha256(text, sizeof text, adapter, HASH_BYTES);
}

struct hash prefix_name(const struct hash *parent, const int32_t *tokens, int page_tokens)
{
    return hash_sha256(parent->bytes, HASH_BYTES, tokens, sizeof *tokens * (size_t)page_tokens);
}

/* The digest of the name and of (group, part), in the place of a page's tokens. The first number is
 * below 0, because no token id is: with two tokens per page these would be a page's name. */
struct hash prefix_group_name(const struct hash *name, int group, int part)
{
    int32_t which[2] = {-1 - group, part};

    if (group == 0 && part == 0)
        return *name;
    return hash_sha256(name->bytes, HASH_BYTES, which, sizeof which);
}

uint64_t prefix_space(const struct hash *root)
{
    uint64_t space;

    memcpy(&space, root->bytes, sizeof space);
    return space;
}
