/* SPDX-License-Identifier: Apache-2.0
 *
 * The input: lines of tiktoken.model, a zero byte, tokenizer_config.json. A first byte that is even
 * puts lines of the 256 bytes in front of them. The folder opens or is refused with a reason; what
 * opens encodes, and decodes to what it was. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void put(const char *path, const char *head, const uint8_t *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");

    must(f != NULL && fputs(head, f) >= 0 && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
}

/* "AA== 0\n" to "/w== 255\n" */
static void bytes_lines(char out[4000])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = 0;

    for (unsigned b = 0; b < 256; b++)
        at += (size_t)snprintf(out + at, 4000 - at, "%c%c== %u\n", digits[b >> 2],
                               digits[(b & 3) << 4], b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char text[] =
        "Hello, ab abc  \xe4\xbd\xa0 12345 e\xcc\x81<|reserved_token_300|>\n";
    const uint8_t *end = len > 1 ? memchr(bytes + 1, 0, len - 1) : NULL;
    size_t n_ranks = end == NULL ? len : (size_t)(end - bytes);
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct buf out = {0};
    char lines[4000] = "";
    char ranks[100], config[100], dir[64];
    char why[600] = "";

    if (len == 0)
        return 0;
    (void)snprintf(dir, sizeof dir, "/tmp/quire-fuzz-%ld", (long)getpid());
    (void)snprintf(ranks, sizeof ranks, "%s/tiktoken.model", dir);
    (void)snprintf(config, sizeof config, "%s/tokenizer_config.json", dir);
    (void)mkdir(dir, 0700);
    if (bytes[0] % 2 == 0)
        bytes_lines(lines);
    put(ranks, lines, bytes + 1, n_ranks - 1);
    if (end != NULL)
        put(config, "", end + 1, len - n_ranks - 1);
    else
        put(config, "{\"tokenizer_class\":\"TikTokenTokenizer\"}", bytes, 0);
    if (tokenizer_open(&t, dir, why, sizeof why) == ERR_OK) {
        must(tokenizer_encode(t, text, sizeof text - 1, false, &ids) == ERR_OK);
        tokenizer_decode(t, ids.ids, ids.len, false, &out);
        must(end != NULL || (out.len == sizeof text - 1 && memcmp(out.bytes, text, out.len) == 0));
    } else {
        must(why[0] != '\0');
    }
    tokenizer_close(t);
    token_list_fini(&ids);
    buf_fini(&out);
    (void)unlink(ranks);
    (void)unlink(config);
    (void)rmdir(dir);
    return 0;
}
