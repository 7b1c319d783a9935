/* The input: one byte of flags, stop strings to the first 0xff, then ids of a model in which
 * every byte is a token. Streamed text equals the whole text up to the stop. */
#define _GNU_SOURCE 1 /* memmem() */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/detok.h"
#include "text/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static struct tokenizer *open_bytes(void)
{
    struct tokenizer *t = NULL;
    struct buf json = {0};
    char dir[64];
    char path[128];
    char why[600] = "";
    FILE *f;
    int i;

    buf_add_text(&json, "{\"model\":{\"vocab\":{");
    for (i = 0; i < 256; i++) {
        char utf8[4];
        size_t n = utf8_encode(vocab_byte_char((uint8_t)i), utf8);

        buf_add_text(&json, i > 0 ? "," : "");
        buf_add_json_string(&json, utf8, n);
        buf_printf(&json, ":%d", i);
    }
    buf_add_text(&json, "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
                        "\"decoder\":{\"type\":\"ByteLevel\"}}");
    (void)snprintf(dir, sizeof dir, "/tmp/quire-fuzz-%ld", (long)getpid());
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    (void)mkdir(dir, 0700);
    f = fopen(path, "wb");
    must(f != NULL && fwrite(json.bytes, 1, json.len, f) == json.len && fclose(f) == 0);
    must(tokenizer_open(&t, dir, why, sizeof why) == ERR_OK);
    (void)unlink(path);
    (void)rmdir(dir);
    buf_fini(&json);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct tokenizer *t;
    const uint8_t *end = len < 2 ? NULL : memchr(bytes + 1, 0xff, len - 1);
    struct detok_stop stops[2];
    size_t n_stops = 0;
    struct token_list ids = {0};
    struct buf streamed = {0};
    struct buf whole = {0};
    struct detok d;
    const uint8_t *p;
    const char *found;

    if (t == NULL)
        t = open_bytes();
    if (end == NULL)
        return 0;
    if (end > bytes + 1)
        stops[n_stops++] = (struct detok_stop){(const char *)bytes + 1, (size_t)(end - bytes - 1)};
    if (detok_init(&d, t, false, stops, n_stops, (bytes[0] & 1) != 0) != ERR_OK)
        return 0;
    for (p = end + 1; p < bytes + len; p++) {
        must(token_list_add(&ids, *p) == ERR_OK);
        (void)detok_push(&d, *p, &streamed);
    }
    (void)detok_finish(&d, &streamed);
    tokenizer_decode(t, ids.ids, ids.len, false, &whole);
    found = n_stops == 0 || whole.len == 0
                ? NULL
                : memmem(whole.bytes, whole.len, stops[0].text, stops[0].len);
    if (found != NULL)
        whole.len = (size_t)(found - whole.bytes) + ((bytes[0] & 1) != 0 ? stops[0].len : 0);
    must((found != NULL) == (d.status == DETOK_STOPPED));
    must(streamed.len == whole.len);
    must(whole.len == 0 || memcmp(streamed.bytes, whole.bytes, whole.len) == 0);
    detok_fini(&d);
    token_list_fini(&ids);
    buf_fini(&streamed);
    buf_fini(&whole);
    return 0;
}
