/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizes records for compare.py, which knows what Hugging Face makes of them.
 *
 *   tokenize_records FOLDER CACHE-FOLDER-OR-"" < records > answers
 *
 * A record: 'T' text, 'S' text with special tokens, 'I' ids of 4 bytes; its length in 4 bytes; its
 * bytes. An answer: the ids, their text, their text without special tokens, each behind its length
 * in 4 bytes, and a byte that is 0 when the streamed text is the whole text at each step. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/output/detok.h"
#include "text/tokenizer/tokenizer.h"

static void put(const void *bytes, size_t n_bytes, size_t n)
{
    uint32_t count = (uint32_t)n;

    if (fwrite(&count, 4, 1, stdout) != 1 ||
        (n_bytes > 0 && fwrite(bytes, 1, n_bytes, stdout) != n_bytes))
        exit(2);
}

/* Whether pushing the ids one by one gives the whole text, and never a text that is taken back. */
static bool streams(const struct tokenizer *t, const struct token_list *ids, bool skip,
                    const struct buf *whole)
{
    struct buf out = {0};
    struct detok d;
    bool good = true;
    size_t i;

    if (detok_init(&d, t, skip, NULL, 0, false) != ERR_OK)
        exit(2);
    for (i = 0; i < ids->len; i++) {
        size_t seen = out.len;

        (void)detok_push(&d, ids->ids[i], &out);
        good =
            good && out.len <= whole->len &&
            (out.len == seen || memcmp(out.bytes + seen, whole->bytes + seen, out.len - seen) == 0);
    }
    (void)detok_finish(&d, &out);
    good = good && out.len == whole->len &&
           (out.len == 0 || memcmp(out.bytes, whole->bytes, out.len) == 0);
    detok_fini(&d);
    buf_fini(&out);
    return good;
}

static void answer(const struct tokenizer *t, char kind, const char *bytes, size_t len)
{
    struct token_list ids = {0};
    struct buf texts[2] = {{0}};
    unsigned char wrong = 0;
    size_t i;
    int skip;

    for (i = 0; kind == 'I' && i + 4 <= len; i += 4) {
        int32_t id;

        memcpy(&id, bytes + i, 4);
        if (token_list_add(&ids, id) != ERR_OK)
            exit(2);
    }
    if (kind != 'I' && tokenizer_encode(t, bytes, len, kind == 'S', &ids) != ERR_OK)
        wrong = 2;
    put(ids.ids, ids.len * 4, ids.len);
    for (skip = 0; skip < 2; skip++) {
        tokenizer_decode(t, ids.ids, ids.len, skip == 1, &texts[skip]);
        put(texts[skip].bytes, texts[skip].len, texts[skip].len);
        if (!streams(t, &ids, skip == 1, &texts[skip]))
            wrong |= 1;
        buf_fini(&texts[skip]);
    }
    if (fwrite(&wrong, 1, 1, stdout) != 1)
        exit(2);
    token_list_fini(&ids);
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct tokenizer_opening how;
    char why[600] = "";
    char *bytes = NULL;
    unsigned char head[5];

    if (argc != 3 || tokenizer_open_cached(&t, argv[1], argv[2], &how, why, sizeof why) != ERR_OK) {
        fprintf(stderr, "tokenize_records FOLDER CACHE: %s\n", why);
        return 1;
    }
    while (fread(head, 1, 5, stdin) == 5) {
        uint32_t len;
        char *grown;

        memcpy(&len, head + 1, 4);
        grown = realloc(bytes, (size_t)len + 1);
        if (grown == NULL)
            return 2;
        bytes = grown;
        if (fread(bytes, 1, len, stdin) != len)
            return 2;
        answer(t, (char)head[0], bytes, len);
    }
    free(bytes);
    tokenizer_close(t);
    return 0;
}
