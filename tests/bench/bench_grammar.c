/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of masks: tests/bench/bench_grammar DATA, a folder with maskbench/ and tokenizers/.
 *
 * The vocabulary: the tokens of phi-2, those of llama2 (SentencePiece, as bytes), and pairs of
 * letters' tokens that follow each other in the schemas or in the list of tokens, 128,000 in all.
 * Each schema of MaskBench is compiled, each valid instance is split into the longest tokens; then,
 * as an engine would, a mask is made and the next token accepted, until the end (or where the
 * instance's members are in an order that the grammar does not have). One core; a fresh cache for
 * each schema, so that first visits count.
 *
 * Then free text, with 50,000 to 256,000 tokens: those of phi-2 and llama2, and generated ones
 * (tests/grammar/pieces.h). For each form the masks along a text with an empty cache, and once more
 * with what was kept.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/must.h"
#include "grammar/grammar.h"
#include "grammar/walk.h"
#include "tests/grammar/pieces.h"
#include "text/tokenizer/tokenizer.h"

#define N_VOCAB     128000
#define N_LARGEST   262144
#define CACHE_BYTES ((size_t)64 << 20)
#define TIMES_MAX   2000000
#define SLOW_US     10000 /* masks that take longer are named */

static struct arena strings;
static struct pieces pieces;
static double times[TIMES_MAX], accepts[TIMES_MAX];
static size_t n_times;

/* Time that was computed for: on a shared machine, too, without that of others. */
static double now_us(void)
{
    struct timespec t;

    must(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void token_add(const char *bytes, size_t len)
{
    pieces_add(&pieces, bytes, len);
}

/* The longest token at the start of a text; its length. */
static size_t longest(const char *text, size_t len, int32_t *id)
{
    return pieces_longest(&pieces, text, len, id);
}

static char *file_take(const char *folder, const char *name, size_t *len)
{
    char path[4096];
    char *text;
    FILE *f;
    long size;

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        return NULL;
    size = ftell(f);
    rewind(f);
    text = malloc((size_t)size + 1);
    must(text != NULL && fread(text, 1, (size_t)size, f) == (size_t)size);
    (void)fclose(f); /* it was only read */
    text[size] = '\0';
    *len = (size_t)size;
    return text;
}

/* --- the vocabulary ----------------------------------------------------------------------- */

static void take_bytes(const char *folder)
{
    struct tokenizer *t;
    char path[4096];
    char why[600];
    int32_t id;

    (void)snprintf(path, sizeof path, "%s/tokenizers/phi-2", folder);
    if (tokenizer_open(&t, path, why, sizeof why) != ERR_OK) {
        printf("1..0 # SKIP %s\n", why);
        exit(0);
    }
    for (id = 0; id < tokenizer_n_vocab(t); id++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, id, &len);

        if (!tokenizer_is_special(t, id) && bytes != NULL)
            token_add(bytes, len);
    }
    tokenizer_close(t);
}

/* SentencePiece writes a space as U+2581. */
static void take_pieces(const char *folder)
{
    struct arena a = {0};
    const struct json *file, *vocab;
    size_t len;
    char *text = file_take(folder, "tokenizers/llama2/tokenizer.json", &len);
    char piece[1024];
    char why[200];
    uint32_t i;

    if (text == NULL)
        return;
    must(json_parse(&file, &a, text, len, why, sizeof why) == ERR_OK);
    vocab = json_get(json_get(file, "model"), "vocab");
    for (i = 0; vocab != NULL && i < vocab->n; i++) {
        const char *key = vocab->items[i].key;
        size_t n = 0;
        size_t k;

        for (k = 0; k < vocab->items[i].key_len && n < sizeof piece; k++)
            if (strncmp(key + k, "\xe2\x96\x81", 3) == 0) {
                piece[n++] = ' ';
                k += 2;
            } else {
                piece[n++] = key[k];
            }
        token_add(piece, n);
    }
    arena_reset(&a);
    free(text);
}

/* Pairs with quotes and brackets would make it a vocabulary of JSON, which no model has. */
static bool is_words(const char *text, size_t len)
{
    size_t i;

    for (i = 0; i < len; i++)
        if (!((text[i] | 0x20) >= 'a' && (text[i] | 0x20) <= 'z') && (i > 0 || text[i] != ' ') &&
            (unsigned char)text[i] < 128)
            return false;
    return true;
}

static void take_pairs(const char *folder, char *const *names, size_t n_names)
{
    size_t i, len, at, n;
    int32_t id;

    for (i = 0; i < n_names && pieces.n < N_VOCAB; i++) {
        char *text = file_take(folder, names[i], &len);
        size_t before = 0;

        for (at = 0; text != NULL && at < len; at += n) {
            n = longest(text + at, len - at, &id);
            if (before > 0 && before + n <= 16 && is_words(text + at - before, before + n))
                token_add(text + at - before, before + n);
            before = n;
        }
        free(text);
    }
    for (i = 300; i + 1 < pieces.n && pieces.n < N_VOCAB; i++) { /* neighbours of the list */
        char both[TRIE_TOKEN_MAX * 2];

        const struct trie_token *two = &pieces.tokens[i];

        n = two[0].len;
        if (n + two[1].len > 16 || two[1].bytes[0] == ' ')
            continue;
        memcpy(both, two[0].bytes, n);
        memcpy(both + n, two[1].bytes, two[1].len);
        if (is_words(both, n + two[1].len))
            token_add(both, n + two[1].len);
    }
}

/* --- one schema --------------------------------------------------------------------------- */

struct bench {
    const struct token_trie *vocab;
    struct walk_work *work;
    struct walk_cache *cache;
    struct walk walk;
    uint32_t *mask;
    size_t n_schemas, n_refused, n_instances, n_through, n_wrong;
    size_t n_limit;
    double compile_us, compile_most;
    const char *name;
};

static void run_instance(struct bench *b, const struct automaton *a, const struct json *v)
{
    struct buf text = {0};
    size_t at, n;
    int32_t id;
    int rc = ERR_OK;

    json_write(&text, v, JSON_PYTHON);
    walk_init(&b->walk, a);
    b->n_instances++;
    for (at = 0; at < text.len && rc == ERR_OK && n_times < TIMES_MAX; at += n) {
        double start = now_us();
        double middle;
        bool allowed;

        rc = walk_mask(b->work, a, b->vocab, b->cache, &b->walk, b->mask);
        middle = now_us();
        if (middle - start > SLOW_US)
            printf("# slow: %.1f ms, %u tops, byte %zu of %s\n", (middle - start) / 1e3,
                   b->walk.n_tops, at, b->name);
        if (rc != ERR_OK) {
            b->n_limit++;
            break;
        }
        n = longest(text.bytes + at, text.len - at, &id);
        allowed = (b->mask[id / 32] >> id % 32 & 1) != 0;
        accepts[n_times] = now_us();
        rc = walk_accept(b->work, a, b->vocab, &b->walk, id);
        accepts[n_times] = now_us() - accepts[n_times];
        times[n_times++] = middle - start;
        b->n_wrong += allowed != (rc == ERR_OK);
    }
    b->n_through += at == text.len && rc == ERR_OK && walk_can_end(b->work, a, &b->walk);
    buf_fini(&text);
}

static void run_file(struct bench *b, const char *folder, const char *name)
{
    struct arena arena = {0};
    struct buf source = {0};
    struct buf image = {0};
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA};
    const struct json *file, *tests;
    char why[200];
    size_t len;
    char *text = file_take(folder, name, &len);
    double us;
    uint32_t i;
    int rc;

    must(text != NULL);
    b->name = name;
    if (json_parse(&file, &arena, text, len, why, sizeof why) == ERR_OK) {
        json_write(&source, json_get(file, "schema"), JSON_COMPACT);
        r.source = source.bytes;
        r.source_len = source.len;
        us = now_us();
        rc = grammar_compile(&r, &image, NULL);
        us = now_us() - us;
        b->n_schemas++;
        b->compile_us += us;
        b->compile_most = us > b->compile_most ? us : b->compile_most;
        b->n_refused += rc != ERR_OK;
        tests = json_get(file, "tests");
        walk_cache_init(b->cache, CACHE_BYTES);
        for (i = 0; rc == ERR_OK && i < tests->n; i++)
            if (json_get_bool(&tests->items[i], "valid", false))
                run_instance(b, (const struct automaton *)(void *)image.bytes,
                             json_get(&tests->items[i], "data"));
    }
    buf_fini(&image);
    buf_fini(&source);
    arena_reset(&arena);
    free(text);
}

static int number_order(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void show(const char *what, double *list)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n_times; i++)
        sum += list[i];
    qsort(list, n_times, sizeof *list, number_order);
    printf("# %-6s %zu: mean %.1f us, median %.1f, p90 %.1f, p99 %.1f, p99.9 %.0f, most %.0f\n",
           what, n_times, sum / (double)n_times, list[n_times / 2], list[n_times * 9 / 10],
           list[n_times * 99 / 100], list[n_times * 999 / 1000], list[n_times - 1]);
}

/* --- free text ---------------------------------------------------------------------------- */

static const struct grammar_part call_parts[] = {
    {.kind = PART_TEXT, .text = "<tool_call>", .len = 11},
    {.kind = PART_SCHEMA, .text = "{}", .len = 2},
    {.kind = PART_TEXT, .text = "</tool_call>", .len = 12}};
static const struct grammar_part call_part = {.kind = PART_SEQUENCE,
                                              .parts = call_parts,
                                              .n_parts = 3};
static const struct grammar_part tags_part = {.kind = PART_TRIGGERS,
                                              .parts = &call_part,
                                              .n_parts = 1,
                                              .max = UINT32_MAX};
static const struct grammar_part free_part = {.kind = PART_FREE};

static const struct free_case {
    const char *name;
    struct grammar_request r;
    const char *text;
} free_cases[] = {
#define SOURCE(a, b)                                            \
    {                                                           \
        .kind = (a), .source = (b), .source_len = sizeof(b) - 1 \
    }
    {"regex .*", SOURCE(GRAMMAR_REGEX, ".*"), "The quick brown fox, of course."},
    {"regex Answer: .*", SOURCE(GRAMMAR_REGEX, "Answer: .*"), "Answer: it is \"so\"."},
    {"any text", {.kind = GRAMMAR_PARTS, .parts = &free_part, .n_parts = 1}, "Some words\nof it"},
    {"tags in text",
     {.kind = GRAMMAR_PARTS, .parts = &tags_part, .n_parts = 1},
     "I look. <tool_call>{\"a\": 1}</tool_call> So <too it is"},
    {"rules of text", SOURCE(GRAMMAR_EBNF, "root ::= t (\"<\" t \">\" t)*\nt ::= [^<>]*"),
     "Some <words of it> and more"},
    {"ambiguous rules", SOURCE(GRAMMAR_EBNF, "root ::= x \"1\"\nx ::= y | y x\ny ::= [a-z ]+"),
     "some words 1"},
    {"any JSON", SOURCE(GRAMMAR_SCHEMA, "{}"), "{\"name\": [\"some words\", 12, {\"b\": null}]}"},
#undef SOURCE
};

/* The masks along a text: most and mean, in us. */
static void free_masks(struct bench *b, const struct free_case *c, const struct automaton *a,
                       double *most, double *mean)
{
    size_t at = 0, n, len = strlen(c->text), n_masks = 0;
    double sum = 0, us;
    int32_t id;

    *most = 0;
    walk_init(&b->walk, a);
    for (; at < len; at += n, n_masks++) {
        us = now_us();
        b->n_limit += walk_mask(b->work, a, b->vocab, b->cache, &b->walk, b->mask) != ERR_OK;
        us = now_us() - us;
        sum += us;
        *most = us > *most ? us : *most;
        n = longest(c->text + at, len - at, &id);
        b->n_wrong += (b->mask[id / 32] >> id % 32 & 1) == 0;
        must(walk_accept(b->work, a, b->vocab, &b->walk, id) == ERR_OK);
    }
    *mean = sum / (double)n_masks;
}

static void free_text(struct bench *b, const char *folder, uint32_t n_vocab)
{
    struct buf image = {0};
    double first, first_mean, again, again_mean;

    pieces_begin(&pieces, n_vocab - 1);
    take_bytes(folder);
    take_pieces(folder);
    pieces_fill(&pieces);
    b->vocab = pieces_image(&pieces, &image);
    printf("# %u tokens, %u nodes:\n", b->vocab->n_vocab, b->vocab->tries[0].n_nodes);
    for (size_t i = 0; i < sizeof free_cases / sizeof free_cases[0]; i++) {
        const struct free_case *c = &free_cases[i];
        const struct automaton *a;
        struct buf form = {0};

        must(grammar_compile(&c->r, &form, NULL) == ERR_OK);
        a = (const struct automaton *)(const void *)form.bytes;
        b->n_limit = 0;
        walk_cache_init(b->cache, CACHE_BYTES);
        free_masks(b, c, a, &first, &first_mean);
        free_masks(b, c, a, &again, &again_mean);
        printf("#   %-16s first mean %.0f us, most %.0f; again mean %.1f, most %.0f; %zu at a "
               "bound\n",
               c->name, first_mean, first, again_mean, again, b->n_limit);
        buf_fini(&form);
    }
    buf_fini(&image);
    pieces_end(&pieces);
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {50257, 128256, 152064, 256000}; /* GPT-2, Llama, Qwen, Gemma */
    static char *names[20000];
    struct bench b = {0};
    struct buf image = {0};
    char folder[4000];
    size_t n_names = 0;
    size_t i;
    int32_t ends[1];
    struct dirent *e;
    DIR *dir;
    double us;

    (void)snprintf(folder, sizeof folder, "%s/maskbench", argc > 1 ? argv[1] : ".");
    dir = opendir(folder);
    if (dir == NULL) {
        printf("1..0 # SKIP no folder %s: usage: bench_grammar DATA\n", folder);
        return 0;
    }
    while ((e = readdir(dir)) != NULL)
        if (e->d_name[0] != '.' && n_names < 20000)
            names[n_names++] = arena_strndup(&strings, e->d_name, strlen(e->d_name));
    (void)closedir(dir); /* it was only read */
    qsort(names, n_names, sizeof *names, name_order);
    pieces_begin(&pieces, N_VOCAB);
    take_bytes(argv[1]);
    take_pieces(argv[1]);
    printf("# vocabulary: %u tokens of tokenizers", pieces.n);
    take_pairs(folder, names, n_names);
    ends[0] = (int32_t)pieces.n;
    us = now_us();
    must(trie_build(pieces.tokens, pieces.n + 1, ends, 1, &image) == ERR_OK);
    us = now_us() - us;
    b.vocab = (const struct token_trie *)(void *)image.bytes;
    printf(", %u with pairs; image %.1f MB, %u nodes, built in %.0f ms", pieces.n,
           (double)image.len / 1e6, b.vocab->tries[0].n_nodes, us / 1e3);
    us = now_us();
    must(trie_check(image.bytes, image.len) == ERR_OK);
    printf(", checked in %.1f ms\n", (now_us() - us) / 1e3);
    for (i = 1; i < TRIE_TRIES; i++)
        printf("# trie without plain tokens of at most %u characters: %u nodes\n",
               b.vocab->tries[i].slice_chars, b.vocab->tries[i].n_nodes);
    b.work = malloc(walk_work_bytes(N_LARGEST));
    b.cache = malloc(CACHE_BYTES);
    b.mask = malloc((N_LARGEST / 32 + 1) * sizeof *b.mask);
    must(b.work != NULL && b.cache != NULL && b.mask != NULL);
    walk_work_init(b.work, N_LARGEST);
    for (i = 0; i < n_names; i++)
        run_file(&b, folder, names[i]);
    printf("# schemas %zu, refused %zu; compile mean %.2f ms, most %.0f ms\n", b.n_schemas,
           b.n_refused, b.compile_us / (double)b.n_schemas / 1e3, b.compile_most / 1e3);
    printf("# valid instances %zu, to the end %zu (most others have members in another order), "
           "%zu reached a bound of the walk\n",
           b.n_instances, b.n_through, b.n_limit);
    show("mask", times);
    show("accept", accepts);
    pieces_end(&pieces);
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        free_text(&b, argv[1], sizes[i]);
    printf("%sok 1 - masks agree with what is accepted (%zu do not)\n1..1\n",
           b.n_wrong == 0 ? "" : "not ", b.n_wrong);
    return b.n_wrong != 0;
}
