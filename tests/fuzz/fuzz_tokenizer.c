/* SPDX-License-Identifier: Apache-2.0
 *
 * The input is a tokenizer.json: it opens or is refused with a reason; what opens encodes. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char text[] = "Hello, it's 12 <|end|>  \xe4\xbd\xa0\xff e\xcc\x81\n";
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct buf out = {0};
    char dir[64];
    char path[128];
    char why[600] = "";
    FILE *f;

    (void)snprintf(dir, sizeof dir, "/tmp/quire-fuzz-%ld", (long)getpid());
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    (void)mkdir(dir, 0700);
    f = fopen(path, "wb");
    must(f != NULL && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
    if (tokenizer_open(&t, dir, why, sizeof why) == ERR_OK) {
        if (tokenizer_encode(t, text, sizeof text - 1, true, &ids) == ERR_OK)
            tokenizer_decode(t, ids.ids, ids.len, false, &out);
    } else {
        must(why[0] != '\0');
    }
    tokenizer_close(t);
    token_list_fini(&ids);
    buf_fini(&out);
    (void)unlink(path);
    (void)rmdir(dir);
    return 0;
}
