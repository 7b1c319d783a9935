/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of prefixes: a chain of SHA-256 digests, one per full page.
 *
 *   root   = H("quire-kv1", fingerprint, salt); with an adapter H("quire-lora1", root, adapter)
 *   name_i = H(name_(i-1), tokens of page i as little-endian int32)
 *
 * Equal names mean equal weights and adapters, equal page layout, equal tenant and equal tokens
 * from the first on. Names do not change over restarts, and neither do keys on disk. 0.1 us per
 * page. */
#ifndef QUIRE_IPC_PREFIX_H
#define QUIRE_IPC_PREFIX_H

#include <stdint.h>

#include "base/hash.h"

/* The name before the first page. salt: 16 bytes; zeros are the shared namespace. */
struct hash prefix_root(const struct hash *fingerprint, const uint8_t *salt);

/* The root of requests with an adapter, of its content's digest: 32 bytes, not all zero. */
struct hash prefix_adapted(const struct hash *root, const uint8_t *adapter);

/* The name of the page with these tokens, int32 [page_tokens], after the page `parent`. */
struct hash prefix_name(const struct hash *parent, const int32_t *tokens, int page_tokens);

/* The name of another page at the end of the prefix `name`: of cache group `group`, part `part`.
 * Group 0, part 0 is `name` itself. No page of tokens has such a name. */
struct hash prefix_group_name(const struct hash *name, int group, int part);

/* A root as a number, to count and drop pages by namespace. 0 means none; a root has it with a
 * chance of one in 2^64. */
uint64_t prefix_space(const struct hash *root);

#endif
