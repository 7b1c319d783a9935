/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 by OpenSSL, which picks the CPU's instructions, and XXH3 by xxHash.
 *
 * Pages are named by SHA-256. Without a digest there would be no name, and the process could not go
 * on, so a failing digest is a must(). */
#include "base/hash.h"

#include <openssl/evp.h>
#define XXH_STATIC_LINKING_ONLY /* for the size of the state */
#include <xxhash.h>

#include "base/must.h"

/* Fetching an algorithm costs more than a short digest, so each thread keeps its context and
 * algorithm until hash_end_thread(). */
static _Thread_local EVP_MD_CTX *hash_ctx;
static _Thread_local EVP_MD *hash_md;

/* The digest of a followed by b. Two parts save callers from copying them together. */
struct hash hash_sha256(const void *a, size_t a_len, const void *b, size_t b_len)
{
    struct hash digest;
    unsigned int len = 0;

    if (hash_ctx == NULL) {
        hash_ctx = EVP_MD_CTX_new();
        hash_md = EVP_MD_fetch(NULL, "SHA256", NULL);
        must(hash_ctx != NULL);
        must(hash_md != NULL);
    }
    must(EVP_DigestInit_ex2(hash_ctx, hash_md, NULL) == 1);
    must(EVP_DigestUpdate(hash_ctx, a, a_len) == 1);
    must(b_len == 0 || EVP_DigestUpdate(hash_ctx, b, b_len) == 1);
    must(EVP_DigestFinal_ex(hash_ctx, digest.bytes, &len) == 1);
    must(len == HASH_BYTES);
    return digest;
}

/* Free this thread's context. */
void hash_end_thread(void)
{
    EVP_MD_CTX_free(hash_ctx);
    EVP_MD_free(hash_md);
    hash_ctx = NULL;
    hash_md = NULL;
}

/* A fast hash of 64 bits, for tables and checks of data; never for the names of pages. */
uint64_t hash_xxh3(const void *bytes, size_t len)
{
    return XXH3_64bits(bytes, len);
}

/* struct hash_xxh3 is opaque memory for xxHash's state, so that no other file includes xxhash.h. */
_Static_assert(sizeof(XXH3_state_t) == sizeof(struct hash_xxh3), "room for the state");

void hash_xxh3_begin(struct hash_xxh3 *h)
{
    must(XXH3_64bits_reset((XXH3_state_t *)h) == XXH_OK);
}

void hash_xxh3_add(struct hash_xxh3 *h, const void *bytes, size_t len)
{
    must(XXH3_64bits_update((XXH3_state_t *)h, bytes, len) == XXH_OK);
}

uint64_t hash_xxh3_end(const struct hash_xxh3 *h)
{
    return XXH3_64bits_digest((const XXH3_state_t *)h);
}

/* Two digits for each byte, and a NUL. */
void hash_hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}
