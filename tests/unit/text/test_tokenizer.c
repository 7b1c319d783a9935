/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: ids and texts equal Hugging Face's tokenizers. Method: the goldens of
 * tests/golden/text/make_tokenizers.py; every ids list also streamed through the detokenizer;
 * damaged files; hostile texts; phi-2's real tokenizer when QUIRE_TEST_DATA names a folder that
 * has it. */
#include "text/tokenizer/tokenizer.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "tests/tap.h"
#include "text/file.h"
#include "text/output/detok.h"

/* A sanitizer looks at all that memmem() may read, each time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWEST_US 600000000
#else
#define SLOWEST_US 60000000 /* of CPU time; a quadratic one needs 4 minutes for 256 KiB */
#endif

static const char *const models[] = {"gpt2",    "gpt2-prefix", "llama3",    "qwen2",    "qwen35",
                                     "phi4",    "smollm",      "o200k",     "deepseek", "merged",
                                     "tekken",  "falcon",      "bloom",     "coder",    "llama2",
                                     "mistral", "gemma",       "metaspace", "kimi"};

/* Vocabularies that are also GGUF files. */
static const char *const in_gguf[] = {"gpt2",   "qwen2",    "smollm", "o200k", "tekken", "llama3",
                                      "llama2", "deepseek", "coder",  "kimi",  "gemma",  "qwen35"};

static bool same_ids(const struct token_list *got, const struct json *want)
{
    uint32_t i;

    if (got->len != want->n)
        return false;
    for (i = 0; i < want->n; i++)
        if (got->ids[i] != want->items[i].whole)
            return false;
    return true;
}

static bool same_text(const struct buf *got, const struct json *want)
{
    return !got->failed && got->len == want->text_len &&
           (got->len == 0 || memcmp(got->bytes, want->text, got->len) == 0);
}

/* No fewer tokens than tokenizer_most_bytes() promises. */
static bool is_long_enough(const struct tokenizer *t, const struct token_list *ids, size_t len)
{
    size_t most = tokenizer_most_bytes(t);

    return most == 0 || ids->len * most >= len;
}

static bool encodes(const struct tokenizer *t, const struct json *text, bool special,
                    const struct json *want)
{
    struct token_list ids = {0};
    bool good = tokenizer_encode(t, text->text, text->text_len, special, &ids) == ERR_OK &&
                same_ids(&ids, want) && is_long_enough(t, &ids, text->text_len);

    token_list_fini(&ids);
    return good;
}

static bool decodes(const struct tokenizer *t, const struct json *ids, bool skip,
                    const struct json *want)
{
    struct token_list list = {0};
    struct buf whole = {0};
    struct buf streamed = {0};
    struct detok d;
    bool good;
    uint32_t i;

    if (detok_init(&d, t, skip, NULL, 0, false) != ERR_OK)
        return false;
    for (i = 0; i < ids->n; i++) {
        if (token_list_add(&list, (int32_t)ids->items[i].whole) != ERR_OK)
            return false;
        (void)detok_push(&d, (int32_t)ids->items[i].whole, &streamed);
    }
    (void)detok_finish(&d, &streamed);
    tokenizer_decode(t, list.ids, list.len, skip, &whole);
    good = same_text(&whole, want) && same_text(&streamed, want);
    detok_fini(&d);
    buf_fini(&whole);
    buf_fini(&streamed);
    token_list_fini(&list);
    return good;
}

static void check_cases(const char *name, const struct tokenizer *t, const struct json *cases)
{
    int wrong[4] = {0};
    int first = -1;
    uint32_t i;

    for (i = 0; i < cases->n; i++) {
        const struct json *c = cases->items[i].items;
        bool bad = false;

        if (c[0].kind == JSON_TEXT && !encodes(t, &c[0], false, &c[1]))
            bad = ++wrong[0] > 0;
        if (c[0].kind == JSON_TEXT && !encodes(t, &c[0], true, &c[2]))
            bad = ++wrong[1] > 0;
        if (!decodes(t, &c[2], false, &c[3]))
            bad = ++wrong[2] > 0;
        if (!decodes(t, &c[2], true, &c[4]))
            bad = ++wrong[3] > 0;
        if (bad && first < 0)
            first = (int)i;
    }
    is_int(wrong[0], 0, "%s: %u texts encode", name, cases->n);
    is_int(wrong[1], 0, "%s: with special tokens", name);
    is_int(wrong[2], 0, "%s: ids decode, whole and streamed", name);
    is_int(wrong[3], 0, "%s: without special tokens", name);
    if (first >= 0)
        printf("# first wrong case: line %d of %s/cases.json\n", first + 2, name);
}

static void test_golden(const char *folder, const char *name)
{
    struct tokenizer *t = NULL;
    struct arena a = {0};
    const struct json *cases = NULL;
    struct buf text = {0};
    char why[600] = "";

    if (ok(tokenizer_open(&t, folder, why, sizeof why) == ERR_OK, "%s opens: %s", name, why)) {
        if (ok(file_read(&text, folder, "cases.json", (size_t)1 << 28, why, sizeof why) == ERR_OK &&
                   json_parse(&cases, &a, text.bytes, text.len, why, sizeof why) == ERR_OK,
               "%s: cases: %s", name, why))
            check_cases(name, t, cases);
    }
    tokenizer_close(t);
    buf_fini(&text);
    arena_reset(&a);
}

/* The cases whose texts have none of the added tokens with flags, which a GGUF file cannot say. */
static struct json without_flags(const struct json *cases)
{
    static const char *const flagged[] = {"hello",    "keep",     "wide",     "<|en",
                                          "\xce\xa9", "\xc3\xa9", "e\xcc\x81"};
    struct json *items = malloc((cases->n + 1) * sizeof *items);
    struct json some = *cases;

    some.n = 0;
    some.items = items;
    for (uint32_t i = 0; i < cases->n; i++) {
        const struct json *text = &cases->items[i].items[0];
        bool has = false;

        for (size_t k = 0; text->kind == JSON_TEXT && k < sizeof flagged / sizeof flagged[0]; k++)
            has = has || memmem(text->text, text->text_len, flagged[k], strlen(flagged[k])) != NULL;
        if (!has)
            items[some.n++] = cases->items[i];
    }
    return some;
}

/* The same vocabulary in a GGUF file (tests/golden/make_gguf.py): the cases of the folder hold. */
static void test_gguf(const char *name)
{
    struct tokenizer *t = NULL;
    struct arena a = {0};
    const struct json *cases = NULL;
    struct buf text = {0};
    char below[200];
    char folder[4200];
    char why[600] = "";
    void *items;

    (void)snprintf(below, sizeof below, "tests/golden/text/%s", name);
    (void)snprintf(folder, sizeof folder, "%s", tap_path(below));
    (void)snprintf(below, sizeof below, "tests/golden/gguf/vocab-%s.gguf", name);
    ok(tokenizer_open(&t, tap_path(below), why, sizeof why) == ERR_OK, "%s opens: %s", below, why);
    if (t != NULL &&
        file_read(&text, folder, "cases.json", (size_t)1 << 28, why, sizeof why) == ERR_OK &&
        ok(json_parse(&cases, &a, text.bytes, text.len, why, sizeof why) == ERR_OK, "cases: %s",
           why)) {
        struct json some = without_flags(cases);

        ok(some.n > 90, "%s: %u of %u cases", below, some.n, cases->n);
        check_cases(below, t, &some);
        memcpy(&items, &some.items, sizeof items);
        free(items);
    }
    tokenizer_close(t);
    buf_fini(&text);
    arena_reset(&a);
}

static struct tokenizer *open_golden(const char *name)
{
    struct tokenizer *t = NULL;
    char below[200];
    char why[600] = "";

    (void)snprintf(below, sizeof below, "tests/golden/text/%s", name);
    ok(tokenizer_open(&t, tap_path(below), why, sizeof why) == ERR_OK, "%s opens %s", name, why);
    return t;
}

static void test_names(void)
{
    struct tokenizer *t = open_golden("llama3");
    int32_t start = tokenizer_find(t, "<|start|>", 9);
    size_t len = 0;

    ok(start >= 0 && tokenizer_is_special(t, start), "a special token is found");
    is_int(tokenizer_bos(t), start, "bos is named by a text");
    is_int(tokenizer_eos(t), tokenizer_find(t, "<|end|>", 7), "eos by an object");
    is_int(tokenizer_pad(t), -1, "pad is null");
    is_int(tokenizer_find(t, "no such token", 13), -1, "no such token");
    ok(tokenizer_n_vocab(t) > start, "n_vocab is above every id");
    ok(tokenizer_bytes(t, tokenizer_n_vocab(t), &len) == NULL && len == 0, "an impossible id");
    ok(tokenizer_bytes(t, -1, &len) == NULL, "a negative id");
    ok(tokenizer_bytes(t, start, &len) != NULL && len == 9, "the bytes of a token");
    tokenizer_close(t);
}

/* Of the last three, two have a token that takes any white space beside it, one leaves out what it
 * does not know. */
static void test_most_bytes(void)
{
    static const struct {
        const char *name;
        bool is_bound;
    } kinds[] = {{"gpt2", true}, {"tekken", true},  {"bloom", true},    {"llama2", true},
                 {"phi4", true}, {"llama3", false}, {"mistral", false}, {"metaspace", false}};
    size_t i;

    for (i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct tokenizer *t = open_golden(kinds[i].name);
        size_t longest = 0;
        size_t most = tokenizer_most_bytes(t);
        int id;

        for (id = 0; id < tokenizer_n_vocab(t); id++) {
            size_t len;

            (void)tokenizer_bytes(t, id, &len);
            longest = len > longest ? len : longest;
        }
        ok((most > 0) == kinds[i].is_bound && (most == 0 || most >= longest) && most < 1000,
           "%s: a token stands for %zu bytes at most, the longest has %zu", kinds[i].name, most,
           longest);
        tokenizer_close(t);
    }
}

/* A megabyte of the worst texts in about a second each. */
static void test_hostile(void)
{
    static const char *const units[] = {
        "a", " ", "ab", "\n", "\xf0\x9f\x98\x80", "<|en", "'s", "e\xcc\x81", "\xff", "A", "  x"};
    size_t len = (size_t)1 << (tap_is_long() ? 20 : 18);
    char *text = malloc(len);
    size_t m;
    size_t u;

    if (text == NULL)
        tap_skip_all("no memory");
    for (m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct tokenizer *t = open_golden(models[m]);
        uint64_t slowest_us = 0;
        bool good = true;

        for (u = 0; u < sizeof units / sizeof units[0]; u++) {
            struct token_list ids = {0};
            size_t n = strlen(units[u]);
            uint64_t from = clock_cpu_us();
            size_t i;

            for (i = 0; i + n <= len; i += n)
                memcpy(text + i, units[u], n);
            good = tokenizer_encode(t, text, len / n * n, false, &ids) == ERR_OK && good;
            good = good && is_long_enough(t, &ids, len / n * n);
            from = clock_cpu_us() - from;
            slowest_us = from > slowest_us ? from : slowest_us;
            token_list_fini(&ids);
        }
        ok(good && slowest_us < SLOWEST_US, "%s: %zu KiB of each hostile text, slowest %.2f s",
           models[m], len >> 10, (double)slowest_us / 1e6);
        tokenizer_close(t);
    }
    free(text);
}

static char scratch[200];

static void write_file(const char *name, const char *bytes, size_t len)
{
    char path[400];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", scratch, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, len, f) != len || fclose(f) != 0)
        tap_skip_all("the temporary folder cannot be written");
}

static int open_text(const char *text, size_t len, char *why, size_t why_cap)
{
    struct tokenizer *t = NULL;
    int rc;

    write_file("tokenizer.json", text, len);
    rc = tokenizer_open(&t, scratch, why, why_cap);
    tokenizer_close(t);
    return rc;
}

#define MODEL(vocab, merges)                                                   \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}," \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"   \
    "\"decoder\":{\"type\":\"ByteLevel\"}"

static const struct {
    const char *text;
    int rc;
    const char *why;
} damaged[] = {
    {"[]", ERR_INVALID, "not an object"},
    {"{}", ERR_INVALID, "no vocabulary"},
    {"{\"model\":{\"vocab\":[]}}", ERR_INVALID, "no vocabulary"},
    {"{\"model\":{\"type\":\"Unigram\"}}", ERR_UNSUPPORTED, "Unigram"},
    {MODEL("{\"a\":\"x\"}", "[]") "}", ERR_INVALID, "no id"},
    {MODEL("{\"a\":-1}", "[]") "}", ERR_INVALID, "no id"},
    {MODEL("{\"a\":2000000000}", "[]") "}", ERR_INVALID, "no id"},
    {MODEL("{\"a\":1,\"b\":1}", "[]") "}", ERR_INVALID, "id 1 twice"},
    {MODEL("{\"a\":0,\"b\":1}", "[\"a b\"]") "}", ERR_INVALID, "merge 0"},
    {MODEL("{\"a\":0,\"b\":1}", "[\"a\"]") "}", ERR_INVALID, "merge 0"},
    {MODEL("{\"a\":0,\"b\":1}", "[\"a b c\"]") "}", ERR_INVALID, "merge 0"},
    {MODEL("{\"a\":0,\"b\":1}", "[[\"a\",1]]") "}", ERR_INVALID, "merge 0"},
    {MODEL("{\"a\":0,\"b\":1}", "[7]") "}", ERR_INVALID, "merge 0"},
    {MODEL("{\"a\":0,\"b\":1}", "7") "}", ERR_INVALID, "no list of merges"},
    {MODEL("{\"a\":0}", "[]") ",\"added_tokens\":[{\"id\":5}]}", ERR_INVALID, "no content"},
    {MODEL("{\"a\":0}", "[]") ",\"added_tokens\":[{\"id\":5,\"content\":\"a\"}]}", ERR_INVALID,
     "has id 0"},
    {MODEL("{\"a\":0}", "[]") ",\"added_tokens\":[{\"id\":0,\"content\":\"b\"}]}", ERR_INVALID,
     "another token"},
    {MODEL("{\"a\":0}", "[]") ",\"added_tokens\":[{\"content\":\"b\"}]}", ERR_INVALID, "no id"},
    {MODEL("{\"a\":0}", "[]") ",\"normalizer\":{\"type\":\"NFKC\"}}", ERR_UNSUPPORTED, "NFKC"},
    {MODEL("{\"a\":0}", "[]") ",\"post_processor\":{\"type\":\"What\"}}", ERR_UNSUPPORTED, "What"},
    {MODEL("{\"a\":0}", "[]") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
                              "[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
     ERR_INVALID, "\"x\" is not described"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Metaspace\"}}",
     ERR_UNSUPPORTED, "Metaspace"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Whitespace\"}}",
     ERR_UNSUPPORTED, "Whitespace"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]}}", ERR_UNSUPPORTED, "decoder \"none\""},
    {"{\"model\":{\"vocab\":{},\"merges\":[]},\"decoder\":{\"type\":\"CTC\"}}", ERR_UNSUPPORTED,
     "decoder \"CTC\""},
    {"{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":"
     "\"Isolated\",\"pattern\":{\"Regex\":\"[a[^b]]\"}}}",
     ERR_UNSUPPORTED, "class"},
    {"{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":"
     "\"Isolated\",\"pattern\":{\"Regex\":\"(\"}}}",
     ERR_UNSUPPORTED, "regex"},
    {MODEL("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]") "}", ERR_OK, ""},
};

static void test_damaged(void)
{
    struct buf text = {0};
    char why[600];
    size_t i;
    bool good = true;

    for (i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        int rc;

        why[0] = '\0';
        rc = open_text(damaged[i].text, strlen(damaged[i].text), why, sizeof why);
        ok(rc == damaged[i].rc && strstr(why, damaged[i].why) != NULL, "damaged %zu: %s", i, why);
    }
    if (file_read(&text, tap_path("tests/golden/text/llama3"), "tokenizer.json", (size_t)1 << 28,
                  why, sizeof why) != ERR_OK)
        tap_skip_all("no golden");
    for (i = 0; i < text.len; i += 500) {
        char kept = text.bytes[i];

        good = open_text(text.bytes, i, why, sizeof why) != ERR_OK && good;
        text.bytes[i] = '7';
        (void)open_text(text.bytes, text.len, why, sizeof why); /* either way, no crash */
        text.bytes[i] = kept;
    }
    ok(good, "cut at every 500th byte: refused");
    buf_fini(&text);
}

static void test_vocab_and_merges(void)
{
    static const char vocab[] = "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"</s>\":4}";
    static const char merges[] = "#version: 0.2\na b\n";
    static const char config[] = "{\"add_bos_token\":true,\"bos_token\":\"</s>\"}";
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    char path[400];
    char why[600] = "";

    (void)snprintf(path, sizeof path, "%s/tokenizer.json", scratch);
    (void)unlink(path);
    is_int(tokenizer_open(&t, scratch, why, sizeof why), ERR_NOT_FOUND, "an empty folder: %s", why);
    write_file("vocab.json", vocab, strlen(vocab));
    write_file("merges.txt", merges, strlen(merges));
    write_file("tokenizer_config.json", config, strlen(config));
    if (ok(tokenizer_open(&t, scratch, why, sizeof why) == ERR_OK, "vocab.json opens %s", why)) {
        ok(tokenizer_encode(t, "ab</s> b", 8, true, &ids) == ERR_OK && ids.len == 5 &&
               ids.ids[0] == 4 && ids.ids[1] == 2 && ids.ids[2] == 4 && ids.ids[3] == 3 &&
               ids.ids[4] == 1,
           "bos, a merge, a special token, a space");
    }
    token_list_fini(&ids);
    tokenizer_close(t);
}

static void remove_scratch(void)
{
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt",
                                        "tokenizer_config.json"};
    char path[400];
    size_t i;

    for (i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", scratch, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(scratch);
}

/* The real thing: round trips and speed. */
static void test_real(void)
{
    const char *data = getenv("QUIRE_TEST_DATA");
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct buf text = {0};
    struct buf back = {0};
    char path[4096];
    char why[600] = "";
    uint64_t from;

    (void)snprintf(path, sizeof path, "%s/tokenizers/phi-2", data == NULL ? "" : data);
    if (data == NULL || access(path, R_OK) != 0) {
        ok(true, "phi-2 # SKIP QUIRE_TEST_DATA names no folder with tokenizers/phi-2");
        return;
    }
    from = clock_us();
    if (tokenizer_open(&t, path, why, sizeof why) != ERR_OK)
        t = NULL;
    ok(t != NULL, "phi-2 opens in %.2f s %s", (double)(clock_us() - from) / 1e6, why);
    if (t == NULL ||
        file_read(&text, path, "tokenizer_config.json", (size_t)1 << 28, why, sizeof why) != ERR_OK)
        return;
    while (text.len < (size_t)4 << 20)
        if (buf_reserve(&text, 8192)) /* before its own bytes are added to it */
            buf_add(&text, text.bytes, text.len < 8192 ? text.len : 8192);
    from = clock_us();
    is_int(tokenizer_encode(t, text.bytes, text.len, false, &ids), ERR_OK, "encodes");
    from = clock_us() - from;
    tokenizer_decode(t, ids.ids, ids.len, false, &back);
    ok(back.len == text.len && memcmp(back.bytes, text.bytes, text.len) == 0,
       "phi-2: round trip of %zu bytes, %zu tokens, %.1f MB/s", text.len, ids.len,
       (double)text.len / (double)from);
    buf_fini(&back);
    buf_fini(&text);
    token_list_fini(&ids);
    tokenizer_close(t);
}

int main(void)
{
    char below[200];
    size_t i;

    (void)snprintf(scratch, sizeof scratch, "/tmp/quire-tokenizer-%ld", (long)getpid());
    if (mkdir(scratch, 0700) != 0)
        tap_skip_all("no temporary folder");
    for (i = 0; i < sizeof models / sizeof models[0]; i++) {
        (void)snprintf(below, sizeof below, "tests/golden/text/%s", models[i]);
        test_golden(tap_path(below), models[i]);
    }
    for (i = 0; i < sizeof in_gguf / sizeof in_gguf[0]; i++)
        test_gguf(in_gguf[i]);
    test_names();
    test_most_bytes();
    test_damaged();
    test_vocab_and_merges();
    test_hostile();
    test_real();
    remove_scratch();
    return tap_done();
}
