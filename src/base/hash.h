/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests: SHA-256 for names that must not collide even if a client tries, XXH3 for checksums. */
#ifndef QUIRE_BASE_HASH_H
#define QUIRE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_BYTES 32

struct hash {
    uint8_t bytes[HASH_BYTES];
};

/* SHA-256 of a, then b (b_len may be 0). About 0.1 us for 100 bytes where the CPU has SHA
 * instructions. Any thread. */
struct hash hash_sha256(const void *a, size_t a_len, const void *b, size_t b_len);

/* Free the context that hash_sha256() keeps for the calling thread. Call it before the thread
 * ends. */
void hash_end_thread(void);

/* XXH3, 64 bits: finds damage, does not resist an attacker. About 20 GB/s. Any thread. */
uint64_t hash_xxh3(const void *bytes, size_t len);

/* XXH3 of bytes that arrive in parts; one thread at a time. */
struct hash_xxh3 {
    _Alignas(64) unsigned char state[576];
};
void hash_xxh3_begin(struct hash_xxh3 *h);
void hash_xxh3_add(struct hash_xxh3 *h, const void *bytes, size_t len);
uint64_t hash_xxh3_end(const struct hash_xxh3 *h);

/* Write 2 * n + 1 characters of lower-case hexadecimal. */
void hash_hex(const uint8_t *bytes, size_t n, char *out);

#endif
