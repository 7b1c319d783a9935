/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a GGUF file is refused unless all of it is sound, and a refused or damaged one is never
 * read outside of its bytes. Method: files of tests/golden/gguf, cut at every length and with bytes
 * flipped (every bit of the head of one, random ones of the others); each is held at the end of its
 * own allocation, and what was parsed is read to the last byte, so that a sanitizer sees a slip.
 * Then heads with one wrong field each, whose message must name it. */
#include "base/gguf.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "tests/tap.h"

#define FLIPS 4000

static char why[300];
static struct arena arena;
static volatile unsigned sink;

/* Read everything that a list of settings and tensors points to. */
static void touch(const struct gguf *g)
{
    int32_t ids[8];
    double number;

    for (size_t i = 0; i < g->n_values; i++) {
        struct gguf_walk walk = gguf_walk(&g->values[i]);
        struct gguf_text text = g->values[i].key;

        do {
            for (size_t k = 0; k < text.len; k++)
                sink += (unsigned char)text.bytes[k];
        } while (gguf_next(&walk, &text));
        for (uint64_t k = 0; gguf_item(&g->values[i], k, &number); k++)
            sink += number > 0.0;
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        for (size_t k = 0; k < g->tensors[i].bytes; k++)
            sink += g->tensors[i].data[k];
    }
    sink += (unsigned)gguf_ends(g, ids, 8);
}

/* Parse a copy that ends where its memory ends. */
static int parse(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len + 1);
    struct gguf g = {.n_values = 0};
    int rc;

    why[0] = '\0';
    memcpy(copy + 1, bytes, len); /* at an odd address, too */
    rc = gguf_parse(&g, &arena, copy + 1, len, why, sizeof why);
    if (rc == ERR_OK)
        touch(&g);
    arena_reset(&arena);
    free(copy);
    return rc;
}

static uint8_t *load(const char *name, size_t *len)
{
    char below[200];
    uint8_t *bytes = malloc((size_t)1 << 20);
    FILE *f;

    (void)snprintf(below, sizeof below, "tests/golden/gguf/%s", name);
    f = fopen(tap_path(below), "rb");
    *len = f == NULL ? 0 : fread(bytes, 1, (size_t)1 << 20, f);
    if (f != NULL)
        fclose(f);
    ok(*len > 0 && *len < (size_t)1 << 20, "%s is there", name);
    return bytes;
}

/* Every proper beginning is refused with a sentence; but zeros behind the last tensor, or behind a
 * head without tensors, may be missing. */
static void test_cuts(const char *name)
{
    size_t len, n_wrong = 0;
    uint8_t *bytes = load(name, &len);

    is_int(parse(bytes, len), ERR_OK, "%s is sound", name);
    for (size_t cut = 0; cut < len; cut++) {
        int rc = parse(bytes, cut);

        n_wrong += rc != ERR_OK ? rc != ERR_CORRUPT || why[0] == '\0' : cut + 32 < len;
    }
    ok(n_wrong == 0, "%s: refused at each of %zu lengths", name, len);
    free(bytes);
}

/* Flipped bits give a file or an error, and never a read outside. */
static void test_flips(const char *name, bool all)
{
    size_t len, n_refused = 0, n = 0;
    uint8_t *bytes = load(name, &len);
    unsigned seed = 1;

    for (size_t i = 0; i < (all ? 8 * len : FLIPS); i++) {
        size_t bit = i;

        if (!all) {
            seed = seed * 1664525U + 1013904223U;
            bit = (size_t)(seed >> 4) % (8 * len);
        }
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        n_refused += parse(bytes, len) != ERR_OK;
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        n++;
    }
    ok(n_refused > 0 && n_refused < n, "%s: %zu of %zu flipped bits are noticed", name, n_refused,
       n);
    free(bytes);
}

/* --- heads by hand -------------------------------------------------------------------------- */

static void put_number(struct buf *b, uint64_t number, int n)
{
    for (int i = 0; i < n; i++)
        buf_add_byte(b, (char)(number >> (8 * i) & 255));
}

static void put_text(struct buf *b, const char *text)
{
    put_number(b, strlen(text), 8);
    buf_add_text(b, text);
}

/* What a head says; the file has one setting and one tensor of 2 x 32 elements of Q8_0. */
struct head {
    uint64_t version, n_tensors, n_values, kind, list_kind, list_n, alignment;
    uint64_t n_dims, cols, rows, type, offset;
    const char *name;
};

static const struct head good = {.version = 3,
                                 .n_tensors = 1,
                                 .n_values = 2,
                                 .kind = GGUF_U32,
                                 .list_kind = GGUF_I16,
                                 .list_n = 3,
                                 .alignment = 64,
                                 .n_dims = 2,
                                 .cols = 32,
                                 .rows = 2,
                                 .type = 8,
                                 .name = "a.weight"};

static void write_head(struct buf *b, const struct head *h)
{
    buf_add_text(b, "GGUF");
    put_number(b, h->version, 4);
    put_number(b, h->n_tensors, 8);
    put_number(b, h->n_values, 8);
    put_text(b, "general.alignment");
    put_number(b, h->kind, 4);
    put_number(b, h->alignment, 4);
    put_text(b, "list");
    put_number(b, GGUF_LIST, 4);
    put_number(b, h->list_kind, 4);
    put_number(b, h->list_n, 8);
    for (int i = 0; i < 3; i++)
        put_number(b, (uint64_t)(i - 1), 2);
    put_text(b, h->name);
    put_number(b, h->n_dims, 4);
    put_number(b, h->cols, 8);
    put_number(b, h->rows, 8);
    put_number(b, h->type, 4);
    put_number(b, h->offset, 8);
    while (b->len % 64 != 0)
        buf_add_byte(b, '\0');
    for (int i = 0; i < 2 * 34; i++)
        buf_add_byte(b, (char)i);
}

static int parse_head(const struct head *h)
{
    struct buf b = {.bytes = NULL};
    int rc;

    write_head(&b, h);
    rc = parse((const uint8_t *)b.bytes, b.len);
    buf_fini(&b);
    return rc;
}

static void test_head(void)
{
    struct buf b = {.bytes = NULL};
    struct gguf g = {.n_values = 0};
    double number = 0.0;
    int64_t whole = 0;

    write_head(&b, &good);
    is_int(gguf_parse(&g, &arena, (const uint8_t *)b.bytes, b.len, why, sizeof why), ERR_OK,
           "a head by hand: %s", why);
    ok(g.n_values == 2 && gguf_whole(&g, "general.alignment", &whole) && whole == 64, "a setting");
    ok(!gguf_whole(&g, "list", &whole) && !gguf_whole(&g, "none", &whole) && whole == 64,
       "no single number");
    ok(gguf_list(&g, "list", GGUF_I16) != NULL && gguf_list(&g, "list", GGUF_U16) == NULL,
       "a list of a kind");
    ok(gguf_item(gguf_find(&g, "list"), 0, &number) && number == -1.0, "a negative item");
    ok(!gguf_item(gguf_find(&g, "list"), 3, &number), "no item behind the last");
    ok(g.n_tensors == 1 && g.tensors[0].dims[0] == 2 && g.tensors[0].dims[1] == 32 &&
           g.tensors[0].bytes == 68 && g.tensors[0].data[1] == 1 &&
           strcmp(g.tensors[0].type, "Q8_0") == 0,
       "a tensor, whose last dimension is the fastest");
    ok(gguf_find_tensor(&g, "a.weight") == &g.tensors[0] && gguf_find_tensor(&g, "b") == NULL,
       "is found by its name");
    arena_reset(&arena);
    buf_fini(&b);
}

static void test_wrong_heads(void)
{
    static const struct {
        const char *what, *word; /* the word is in the message */
        size_t field;
        uint64_t value;
        int rc;
    } heads[] = {
        {"version 1", "version 1", offsetof(struct head, version), 1, ERR_UNSUPPORTED},
        {"the other byte order", "big-endian", offsetof(struct head, version), 3U << 24,
         ERR_UNSUPPORTED},
        {"too many tensors", "claims", offsetof(struct head, n_tensors), UINT64_MAX, ERR_CORRUPT},
        {"more tensors than bytes", "cut short", offsetof(struct head, n_tensors), 1000,
         ERR_CORRUPT},
        {"too many settings", "claims", offsetof(struct head, n_values), (uint64_t)1 << 40,
         ERR_CORRUPT},
        {"an unknown kind", "general.alignment", offsetof(struct head, kind), 13, ERR_CORRUPT},
        {"a list of lists", "kind 9", offsetof(struct head, list_kind), GGUF_LIST, ERR_CORRUPT},
        {"a list longer than the file", "cut short", offsetof(struct head, list_n), UINT64_MAX / 2,
         ERR_CORRUPT},
        {"no alignment", "alignment", offsetof(struct head, alignment), 0, ERR_CORRUPT},
        {"a vast alignment", "alignment", offsetof(struct head, alignment), UINT32_MAX,
         ERR_CORRUPT},
        {"five dimensions", "5 dimensions", offsetof(struct head, n_dims), 5, ERR_CORRUPT},
        {"a negative dimension", "range", offsetof(struct head, rows), UINT64_MAX, ERR_CORRUPT},
        {"a shape that overflows", "overflows", offsetof(struct head, rows), (uint64_t)1 << 62,
         ERR_CORRUPT},
        {"half a block", "blocks", offsetof(struct head, cols), 48, ERR_CORRUPT},
        {"an unknown type", "type 4", offsetof(struct head, type), 4, ERR_UNSUPPORTED},
        {"a type out of range", "type 4294967295", offsetof(struct head, type), UINT32_MAX,
         ERR_UNSUPPORTED},
        {"an offset behind the end", "cut short", offsetof(struct head, offset), 64, ERR_CORRUPT},
        {"an offset that overflows", "cut short", offsetof(struct head, offset), UINT64_MAX - 8,
         ERR_CORRUPT},
    };
    struct head h = good;

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        int rc;

        h = good;
        memcpy((char *)&h + heads[i].field, &heads[i].value, sizeof heads[i].value);
        rc = parse_head(&h);
        ok(rc == heads[i].rc && strstr(why, heads[i].word) != NULL, "%s: %s", heads[i].what, why);
    }
    h = good;
    h.name = "";
    ok(parse_head(&h) == ERR_CORRUPT && strstr(why, "name") != NULL, "an empty name: %s", why);
}

/* The message of a file names it. */
static void test_open(void)
{
    struct gguf_file *file = NULL;

    is_int(gguf_open(&file, "/no/such/file.gguf", why, sizeof why), ERR_NOT_FOUND,
           "a missing file");
    ok(strstr(why, "/no/such/file.gguf") != NULL, "is named: %s", why);
    is_int(gguf_open(&file, tap_path("tests/golden/README.md"), why, sizeof why), ERR_CORRUPT,
           "another file");
    ok(strstr(why, "README.md: not a GGUF file") != NULL, "is named: %s", why);
    ok(file == NULL && !gguf_is_path("/tmp"), "a folder is no file");
}

/* --- ends of texts ------------------------------------------------------------------------- */

/* A head with tokens, all of a kind, and the id that ends a text. */
static void check_ends(const char *const *tokens, int n, unsigned kind, const char *wanted)
{
    struct buf b = {.bytes = NULL};
    struct gguf g = {.n_values = 0};
    int32_t ids[8];
    char got[100] = "";
    int n_ends = 0;

    buf_add_text(&b, "GGUF");
    put_number(&b, 3, 4);
    put_number(&b, 0, 8);
    put_number(&b, 3, 8);
    put_text(&b, "tokenizer.ggml.eos_token_id");
    put_number(&b, GGUF_U32, 4);
    put_number(&b, 0, 4);
    put_text(&b, "tokenizer.ggml.tokens");
    put_number(&b, GGUF_LIST, 4);
    put_number(&b, GGUF_TEXT, 4);
    put_number(&b, (uint64_t)n, 8);
    for (int i = 0; i < n; i++)
        put_text(&b, tokens[i]);
    put_text(&b, "tokenizer.ggml.token_type");
    put_number(&b, GGUF_LIST, 4);
    put_number(&b, GGUF_I32, 4);
    put_number(&b, (uint64_t)n, 8);
    for (int i = 0; i < n; i++)
        put_number(&b, kind, 4);
    while (b.len % 32 != 0)
        buf_add_byte(&b, '\0');
    if (gguf_parse(&g, &arena, (const uint8_t *)b.bytes, b.len, why, sizeof why) == ERR_OK)
        n_ends = gguf_ends(&g, ids, 8);
    for (int i = 0; i < n_ends; i++)
        (void)snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i > 0 ? " " : "",
                       ids[i]);
    is_text(got, wanted, "ids that end a text with %s", tokens[1]);
    arena_reset(&arena);
    buf_fini(&b);
}

static void test_ends(void)
{
    static const char *const chat[] = {"</s>", "<|im_end|>", "a", "<|endoftext|>"};
    static const char *const harmony[] = {"<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"};
    static const char *const solar[] = {"</s>", "<|end|>", "<|flush|>", "<|calls|>"};
    static const char *const phi[] = {"<|endoftext|>", "<|end|>", "<|user|>", "x"};
    static const char *const gemma[] = {"<eos>", "<turn|>", "<|tool_response>", "<|turn>"};
    static const char *const turns[] = {"<turn|>", "<eos>", "</s>", "a"};
    static const char *const nemotron[] = {"<|im_end|>", "</s>", "<s>", "a"};

    check_ends(chat, 4, GGUF_TOKEN_CONTROL, "0 1 3");
    check_ends(chat, 4, GGUF_TOKEN_NORMAL, "0");
    check_ends(phi, 4, GGUF_TOKEN_CONTROL, "0 1");
    check_ends(harmony, 4, GGUF_TOKEN_CONTROL, "0 2 3");
    check_ends(solar, 4, GGUF_TOKEN_CONTROL, "0 2 3");
    check_ends(gemma, 4, GGUF_TOKEN_CONTROL, "0 1 2");
    check_ends(gemma, 4, GGUF_TOKEN_ADDED, "0 1 2");
    check_ends(turns, 4, GGUF_TOKEN_NORMAL, "0 1");
    check_ends(nemotron, 4, GGUF_TOKEN_CONTROL, "0 1");
}

int main(void)
{
    test_ends();
    test_head();
    test_wrong_heads();
    test_open();
    test_cuts("vocab-llama2.gguf");
    test_cuts("phi3.gguf");
    test_flips("vocab-gpt2.gguf", true);
    test_flips("phi3.gguf", false);
    test_flips("vocab-llama2.gguf", false);
    return tap_done();
}
