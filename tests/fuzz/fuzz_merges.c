/* SPDX-License-Identifier: Apache-2.0
 *
 * The input: vocab.json, merges.txt and tokenizer_config.json, each ended by a zero byte. The
 * folder opens or is refused with a reason; what opens encodes. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    static const char text[] = "Hello, ab abc  \xe4\xbd\xa0\xff e\xcc\x81</s>\n";
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct buf out = {0};
    char dir[64];
    char path[128];
    char why[600] = "";
    int i;

    (void)snprintf(dir, sizeof dir, "/tmp/quire-fuzz-%ld", (long)getpid());
    (void)mkdir(dir, 0700);
    for (i = 0; i < 3; i++) {
        const uint8_t *end = len > 0 ? memchr(bytes, 0, len) : NULL;
        size_t n = end == NULL ? len : (size_t)(end - bytes);
        FILE *f;

        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        f = fopen(path, "wb");
        must(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
        bytes += n + (end != NULL);
        len -= n + (end != NULL);
    }
    if (tokenizer_open(&t, dir, why, sizeof why) == ERR_OK) {
        if (tokenizer_encode(t, text, sizeof text - 1, true, &ids) == ERR_OK)
            tokenizer_decode(t, ids.ids, ids.len, false, &out);
    } else {
        must(why[0] != '\0');
    }
    tokenizer_close(t);
    token_list_fini(&ids);
    buf_fini(&out);
    for (i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
    return 0;
}
