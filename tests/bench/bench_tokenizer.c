/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast is the tokenizer of a folder: opening, encoding, decoding, on one core.
 *
 *   make bench_tokenizer
 *   ./bench_tokenizer [--cache DIR] FOLDER [FILE ...]
 *
 * Encodes generated English-like text, the files (together, at most 32 MiB), the same in prompts
 * of 1 KiB, and a megabyte of each of some hostile texts. Prints the best of five runs, in time of
 * the processor, so that a busy machine disturbs less; opening is by the clock. With
 * --cache it opens the compiled tokenizer of that folder as a front does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "text/file.h"
#include "text/tokenizer/tokenizer.h"

#define RUNS      5
#define ENGLISH   ((size_t)8 << 20)
#define FILES_MAX ((size_t)32 << 20)
#define PROMPT    ((size_t)1 << 10)
#define HOSTILE   ((size_t)1 << 20)

static const char *const words[] = {
    "the",         "of",
    "and",         "to",
    "in",          "a",
    "is",          "that",
    "for",         "it",
    "as",          "was",
    "with",        "be",
    "by",          "on",
    "not",         "he",
    "this",        "are",
    "or",          "his",
    "from",        "at",
    "which",       "but",
    "have",        "an",
    "had",         "they",
    "you",         "were",
    "their",       "one",
    "all",         "we",
    "can",         "her",
    "has",         "there",
    "been",        "if",
    "more",        "when",
    "will",        "would",
    "who",         "so",
    "no",          "she",
    "other",       "its",
    "may",         "these",
    "what",        "them",
    "than",        "some",
    "him",         "time",
    "into",        "only",
    "do",          "such",
    "my",          "new",
    "about",       "out",
    "also",        "two",
    "any",         "up",
    "first",       "could",
    "our",         "then",
    "most",        "see",
    "should",      "after",
    "said",        "your",
    "very",        "between",
    "made",        "many",
    "over",        "like",
    "those",       "did",
    "now",         "even",
    "well",        "where",
    "must",        "people",
    "through",     "how",
    "same",        "work",
    "being",       "because",
    "world",       "system",
    "language",    "machine",
    "different",   "process",
    "memory",      "government",
    "children",    "development",
    "information", "history",
    "university",  "question",
    "experience",  "example",
    "however",     "although",
    "interest",    "possible",
    "important",   "international",
    "performance", "understanding",
    "tokenizer",   "unfathomable",
    "throughput",  "whisker",
    "marmalade",   "perpendicular",
};

/* Time of the processor that this process has used. */
static double cpu_s(void)
{
    struct timespec t;

    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0)
        exit(2);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Frequent words are frequent: the product of two uniform numbers picks the word. */
static void add_english(struct buf *out, size_t len)
{
    static const char *const ends[] = {" ", " ",  " ",  " ",   " ",   " ",  " ",
                                       " ", ", ", ". ", ".\n", "'s ", " (", ") "};
    unsigned state = 1;
    size_t n = sizeof words / sizeof words[0];

    while (out->len < len && !out->failed) {
        size_t u = next_random(&state) % 1000;
        size_t v = next_random(&state) % 1000;
        const char *word = words[u * v * n / 1000000];
        char first = word[0];

        if (next_random(&state) % 12 == 0)
            first = (char)(first - 'a' + 'A');
        buf_add_byte(out, first);
        buf_add_text(out, word + 1);
        if (next_random(&state) % 60 == 0)
            buf_printf(out, " %u", next_random(&state) % 3000);
        buf_add_text(out, ends[next_random(&state) % (sizeof ends / sizeof ends[0])]);
    }
}

/* Best time to encode text in parts of `part` bytes; the ids of the last run are in *ids. */
static double encode_s(const struct tokenizer *t, const struct buf *text, size_t part,
                       struct token_list *ids)
{
    double best = 1e9;
    int run;

    for (run = 0; run < RUNS; run++) {
        double from = cpu_s();
        double s;
        size_t at;

        ids->len = 0;
        for (at = 0; at < text->len; at += part) {
            size_t n = text->len - at < part ? text->len - at : part;

            if (tokenizer_encode(t, text->bytes + at, n, false, ids) != ERR_OK)
                exit(2);
        }
        s = cpu_s() - from;
        best = s < best ? s : best;
    }
    return best;
}

static void bench_text(const struct tokenizer *t, const char *name, const struct buf *text)
{
    struct token_list ids = {0};
    struct buf back = {0};
    double whole;
    double parts;
    double from;

    if (text->len == 0)
        return;
    parts = encode_s(t, text, PROMPT, &ids);
    whole = encode_s(t, text, text->len, &ids);
    from = cpu_s();
    tokenizer_decode(t, ids.ids, ids.len, false, &back);
    printf("%-10s %5.1f MB, %8zu tokens: %6.1f MB/s, in prompts of 1 KiB %6.1f MB/s, decodes "
           "%6.1f MB/s\n",
           name, (double)text->len / 1e6, ids.len, (double)text->len / 1e6 / whole,
           (double)text->len / 1e6 / parts, (double)text->len / 1e6 / (cpu_s() - from));
    buf_fini(&back);
    token_list_fini(&ids);
}

static void bench_hostile(const struct tokenizer *t)
{
    static const char *const units[] = {"a",  " ",   "ab", "\n", "\xf0\x9f\x98\x80",
                                        "'s", "A1!", "\t", "aA", "\xe4\xb8\xad"};
    struct token_list ids = {0};
    struct buf text = {0};
    size_t i;

    printf("1 MB of   ");
    for (i = 0; i < sizeof units / sizeof units[0]; i++) {
        double from;

        buf_clear(&text);
        while (text.len < HOSTILE)
            buf_add_text(&text, units[i]);
        ids.len = 0;
        from = cpu_s();
        if (text.failed || tokenizer_encode(t, text.bytes, text.len, false, &ids) != ERR_OK)
            exit(2);
        printf(" %s %.0f ms",
               units[i][0] == '\n'   ? "LF"
               : units[i][0] == '\t' ? "TAB"
                                     : units[i],
               (cpu_s() - from) * 1e3);
    }
    printf("\n");
    buf_fini(&text);
    token_list_fini(&ids);
}

/* KiB of a line of /proc/self/smaps_rollup. */
static long rollup_kib(const char *name)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[200];
    long kib = -1;

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    if (f != NULL)
        (void)fclose(f);
    return kib;
}

static struct tokenizer *bench_open(const char *folder, const char *cache)
{
    struct tokenizer *t = NULL;
    struct tokenizer_opening how;
    char why[600] = "";
    uint64_t from = clock_us();

    if (tokenizer_open_cached(&t, folder, cache, &how, why, sizeof why) != ERR_OK) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    printf("opens in %.1f ms, %s%s; this process: private %ld KiB, shared %ld KiB\n",
           (double)(clock_us() - from) / 1e3,
           how.written  ? "built, written and mapped"
           : how.mapped ? "mapped"
                        : "built",
           how.cache_why, rollup_kib("Private_Clean:") + rollup_kib("Private_Dirty:"),
           rollup_kib("Shared_Clean:"));
    return t;
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct buf english = {0};
    struct buf files = {.limit = FILES_MAX};
    const char *cache = "";
    char why[300];
    int i = 1;

    if (argc > 2 && strcmp(argv[1], "--cache") == 0) {
        cache = argv[2];
        i = 3;
    }
    if (i >= argc) {
        fprintf(stderr, "usage: bench_tokenizer [--cache DIR] FOLDER [FILE ...]\n");
        return 1;
    }
    t = bench_open(argv[i++], cache);
    add_english(&english, ENGLISH);
    for (; i < argc && files.len < FILES_MAX / 2; i++)
        if (file_read(&files, NULL, argv[i], FILES_MAX, why, sizeof why) != ERR_OK)
            fprintf(stderr, "%s\n", why);
    bench_text(t, "English", &english);
    bench_text(t, "files", &files);
    bench_hostile(t);
    buf_fini(&english);
    buf_fini(&files);
    tokenizer_close(t);
    return 0;
}
