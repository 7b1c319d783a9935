/* SPDX-License-Identifier: Apache-2.0
 *
 * The input: a byte that picks an image, then changes of it, each an offset of three bytes and
 * a byte to write. Under a right checksum an image is refused, or its readers stay inside it. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/must.h"
#include "text/output/detok.h"
#include "text/tokenizer/image_file.h"
#include "text/tokenizer/tokenizer_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define ADDED                                                                                   \
    "\"added_tokens\":[{\"id\":9,\"content\":\"<|end|>\",\"special\":true,\"rstrip\":true},"    \
    "{\"id\":8,\"content\":\"big\",\"normalized\":true,\"single_word\":true,\"lstrip\":true}]," \
    "\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}"

static const char *const files[] = {
    "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4,\"c\":5,"
    "\"abcabcabcabcabcabc\":6},\"merges\":[\"a b\",\"\\u0120 ab\"]},\"normalizer\":"
    "{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\"},"
    "{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"},{\"type\":\"Split\",\"behavior\":"
    "\"MergedWithNext\",\"invert\":true,\"pattern\":{\"Regex\":\"[0-9]+|q\"}}]},\"decoder\":"
    "{\"type\":\"ByteLevel\"}," ADDED "}",
    "{\"model\":{\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"u\",\"vocab\":{\"a\":0,"
    "\"b\":1,\"ab\":2,\"\\u2581\":3,\"\\u2581ab\":4,\"u\":5,\"<0xE4>\":6,\"<0xBD>\":7},\"merges\":"
    "[[\"a\",\"b\"],[\"\\u2581\",\"ab\"]]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
    "{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\" \"},\"content\":\"\\u2581\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":"
    "\"\\u2581\",\"prepend_scheme\":\"first\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},\"content\":\" \"},{\"type\":"
    "\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
    "\"stop\":0}]}," ADDED "}",
};

/* The image of files[which], in memory of its own; NULL when there is none. */
static struct image_header *make_image(int which)
{
    struct tokenizer *t = NULL;
    struct image_header *copy;
    char dir[64];
    char path[128];
    char why[600] = "";
    FILE *f;

    (void)snprintf(dir, sizeof dir, "/tmp/quire-fuzz-%ld", (long)getpid());
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    (void)mkdir(dir, 0700);
    f = fopen(path, "wb");
    must(f != NULL && fputs(files[which], f) >= 0 && fclose(f) == 0);
    if (tokenizer_open(&t, dir, why, sizeof why) != ERR_OK)
        fprintf(stderr, "%s\n", why);
    must(t != NULL);
    copy = mem_alloc((size_t)t->image->bytes);
    must(copy != NULL);
    memcpy(copy, t->image, (size_t)t->image->bytes);
    tokenizer_close(t);
    (void)unlink(path);
    (void)rmdir(dir);
    return copy;
}

static void use(const struct tokenizer *t)
{
    static const char text[] =
        "ab abcabcabcabcabcabc big, <|end|>  \xe4\xbd\xa0\xff e\xcc\x81 12q3\n";
    struct token_list ids = {0};
    struct buf whole = {0};
    struct buf streamed = {0};
    struct detok d;
    size_t n;
    size_t i;

    if (tokenizer_encode(t, text, sizeof text - 1, true, &ids) == ERR_OK)
        tokenizer_decode(t, ids.ids, ids.len, true, &whole);
    (void)tokenizer_special_ids(t, &n);
    (void)tokenizer_eos_ids(t, &n);
    (void)tokenizer_find(t, "<|end|>", 7);
    if (detok_init(&d, t, false, NULL, 0, false) == ERR_OK) {
        for (i = 0; i < ids.len; i++)
            (void)detok_push(&d, ids.ids[i], &streamed);
        for (i = 0; i < 12; i++)
            (void)detok_push(&d, (int32_t)i, &streamed);
        (void)detok_finish(&d, &streamed);
        detok_fini(&d);
    }
    token_list_fini(&ids);
    buf_fini(&whole);
    buf_fini(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct image_header *made[2];
    struct tokenizer *t = mem_zalloc(sizeof *t);
    struct image_header *image;
    const char *reason = "";
    char why[300] = "";
    size_t n;
    size_t i;

    if (made[0] == NULL) {
        made[0] = make_image(0);
        made[1] = make_image(1);
    }
    must(t != NULL);
    image = made[len > 0 ? bytes[0] & 1 : 0];
    n = (size_t)image->bytes;
    image = memcpy(mem_alloc(n), image, n);
    for (i = 1; i + 4 <= len; i += 4) {
        size_t at = ((size_t)bytes[i] | (size_t)bytes[i + 1] << 8 | (size_t)bytes[i + 2] << 16) % n;

        if (at >= offsetof(struct image_header, bytes))
            ((uint8_t *)image)[at] = bytes[i + 3];
    }
    if (image->bytes == n) /* else the checksum's own reading would leave it */
        image_seal(image);
    if (image_check(image, n, &image->sources, &reason) != ERR_OK)
        must(reason[0] != '\0');
    else if (tokenizer_attach(t, image, false, why, sizeof why) == ERR_OK)
        use(t);
    if (t->image == NULL)
        mem_free(image);
    tokenizer_close(t);
    return 0;
}
