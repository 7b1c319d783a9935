/* SPDX-License-Identifier: Apache-2.0
 *
 * The input: one byte of flags, stop strings to the first 0xff, then ids of a model in which
 * every byte is a token: byte-level, or with byte fallback, where ids above 255 come as pairs of
 * letters. Streamed text equals the whole text up to the stop, unless a run of bytes is longer
 * than the detokenizer holds. */
#define _GNU_SOURCE 1 /* memmem() */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/output/detok.h"
#include "text/tokenizer/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void describe_fallback(struct buf *json)
{
    int i;

    buf_add_text(json, "{\"model\":{\"byte_fallback\":true,\"vocab\":{");
    for (i = 0; i < 192; i++) /* 64 and above twice: the first quarter are texts */
        buf_printf(json, "\"<0x%02X>\":%d,", (unsigned)(i + 64), i + 64);
    for (i = 0; i < 64; i++)
        buf_printf(json, "\"%s%c%c\":%d%s", i % 4 == 0 ? "\xe2\x96\x81" : "", 'A' + i % 26,
                   'a' + i % 7, i, i < 63 ? "," : "");
    buf_add_text(json,
                 "},\"merges\":[]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                 "\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},"
                 "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                 "\"content\":\" \",\"start\":1,\"stop\":0}]}}");
}

static void describe_bytes(struct buf *out)
{
    struct buf json = {0};
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
    *out = json;
}

static struct tokenizer *open_model(bool fallback)
{
    struct tokenizer *t = NULL;
    struct buf json = {0};
    char dir[64];
    char path[128];
    char why[600] = "";
    FILE *f;

    if (fallback)
        describe_fallback(&json);
    else
        describe_bytes(&json);
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
    static struct tokenizer *models[2];
    const struct tokenizer *t;
    size_t run = 0;
    size_t longest = 0;
    const uint8_t *end = len < 2 ? NULL : memchr(bytes + 1, 0xff, len - 1);
    struct detok_stop stops[2];
    size_t n_stops = 0;
    struct token_list ids = {0};
    struct buf streamed = {0};
    struct buf whole = {0};
    struct detok d;
    const uint8_t *p;
    const char *found;

    if (models[0] == NULL) {
        models[0] = open_model(false);
        models[1] = open_model(true);
    }
    if (end == NULL)
        return 0;
    t = models[bytes[0] >> 1 & 1];
    if (end > bytes + 1)
        stops[n_stops++] = (struct detok_stop){(const char *)bytes + 1, (size_t)(end - bytes - 1)};
    if (detok_init(&d, t, false, stops, n_stops, (bytes[0] & 1) != 0) != ERR_OK)
        return 0;
    for (p = end + 1; p < bytes + len; p++) {
        must(token_list_add(&ids, *p) == ERR_OK);
        (void)detok_push(&d, *p, &streamed);
        run = tokenizer_is_byte(t, *p) ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    (void)detok_finish(&d, &streamed);
    tokenizer_decode(t, ids.ids, ids.len, false, &whole);
    if (longest >= DETOK_RUN_MAX)
        whole.len = streamed.len = 0;
    found = n_stops == 0 || whole.len == 0
                ? NULL
                : memmem(whole.bytes, whole.len, stops[0].text, stops[0].len);
    if (found != NULL)
        whole.len = (size_t)(found - whole.bytes) + ((bytes[0] & 1) != 0 ? stops[0].len : 0);
    must(longest >= DETOK_RUN_MAX || (found != NULL) == (d.status == DETOK_STOPPED));
    must(streamed.len == whole.len);
    must(whole.len == 0 || memcmp(streamed.bytes, whole.bytes, whole.len) == 0);
    detok_fini(&d);
    token_list_fini(&ids);
    buf_fini(&streamed);
    buf_fini(&whole);
    return 0;
}
