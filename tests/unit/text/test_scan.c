/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: scanners match what their patterns match. Method: random texts of all kinds of characters
 * against PCRE2 with the same pattern and Unicode 16.0; and what pattern_translate() makes of the
 * parts that the two libraries read differently. */
#include "text/tokenizer/scan.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "tests/tap.h"
#include "text/pattern.h"
#include "text/regex.h"
#include "text/unicode.h"

#define C     "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL  "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UP    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define FRONT "[^\\r\\n\\p{L}\\p{N}]?"
#define REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL

static const struct {
    enum scan_kind kind;
    const char *pattern;
} patterns[] = {
    {SCAN_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {SCAN_LLAMA3,
     C "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL},
    {SCAN_QWEN2, C "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL},
    {SCAN_QWEN2, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
                 " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {SCAN_MINICPM, C "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL},
    {SCAN_QWEN35, C "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL},
    {SCAN_O200K, FRONT UP "*" LOW "+" C "?|" FRONT UP "+" LOW "*" C "?|\\p{N}{1,3}" REST},
    {SCAN_TEKKEN, FRONT UP "*" LOW "+|" FRONT UP "+" LOW "*|\\p{N}" REST},
    {SCAN_DEEPSEEK,
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {SCAN_NUMBERS, "\\p{N}{1,3}"},
    {SCAN_CJK, "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"},
    {SCAN_CODER_CJK, "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"},
    {SCAN_NEWLINE, "[\r\n]"},
    {SCAN_SPACE_LETTERS, "\\s?\\p{L}+"},
    {SCAN_SPACE_PUNCT, "\\s?\\p{P}+"},
};

static void add_random(struct buf *text, unsigned *seed)
{
    static const char *const parts[] = {
        " ",      "  ",           "\n",     "\r\n",       "\t",         "'s",         "'LL",
        "'",      "'\u017f",      "12",     "345678",     "a",          "Ab",         "AB",
        "hello",  "World",        "\u00e9", "e\u0301",    "\u01c5",     "\u02b0",     "\u4e2d",
        "\u3042", "\u0e01\u0e33", "\u180e", "\xc2\x85",   "\u00a0",     "\u3000",     "\u2028",
        "!",      "...",          "//",     "/",          "\n/",        "_",          "\u20ac",
        "\u2167", "\u00b2",       "\u0300", "\U0001f600", "\U0001d7d8", "\U00031350", "\U0001e4d0"};
    static const uint32_t ends[] = {0x250, 0x3000, 0xd800, 0x20000, 0x110000};
    int n = 1 + (int)(random_next(seed) % 12);

    while (n-- > 0) {
        char utf8[4];
        uint32_t c;

        if (random_next(seed) % 3 != 0) {
            buf_add_text(text, parts[random_next(seed) % (sizeof parts / sizeof parts[0])]);
            continue;
        }
        c = (random_next(seed) << 12 ^ random_next(seed)) % ends[random_next(seed) % 5];
        buf_add(text, utf8, utf8_encode(c >= 0xd800 && c < 0xe000 ? 0xfffd : c == 0 ? 1 : c, utf8));
    }
}

/* The first match from `from` by trying the scanner at each character. */
static bool scan_next(const struct scanner *s, size_t from, size_t *start, size_t *end)
{
    for (*start = from; *start < s->len;
         *start += utf8_sequence(s->text + *start, s->len - *start)) {
        *end = scan_match(s, *start);
        if (*end > *start)
            return true;
    }
    return false;
}

static bool agree(const struct scanner *s, const struct regex *re, struct regex_work *w)
{
    size_t from = 0;

    while (from < s->len) {
        size_t a[2] = {0, 0};
        struct regex_match b = {0, 0};
        bool scanned = scan_next(s, from, &a[0], &a[1]);
        bool matched = regex_next(re, w, s->text, s->len, from, &b) == ERR_OK;

        if (scanned != matched || a[0] * matched != b.start || a[1] * matched != b.end)
            return false;
        if (!matched)
            return true;
        from = b.end;
    }
    return true;
}

static void test_pattern(size_t which, const uint8_t *bits, unsigned seed)
{
    struct regex_work *w = regex_work_open();
    struct regex *re = NULL;
    struct buf text = {0};
    char why[200] = "";
    int wrong = 0;
    int n;

    is_int(scan_find(patterns[which].pattern, strlen(patterns[which].pattern)),
           patterns[which].kind, "pattern %zu has a scanner", which);
    if (w == NULL || regex_open(&re, patterns[which].pattern, strlen(patterns[which].pattern), why,
                                sizeof why) != ERR_OK)
        ok(false, "pattern %zu compiles: %s", which, why);
    for (n = 0; n < 20000 && re != NULL; n++) {
        struct scanner s;

        buf_clear(&text);
        add_random(&text, &seed);
        s = (struct scanner){
            .bits = bits, .text = text.bytes, .len = text.len, .kind = patterns[which].kind};
        if (!agree(&s, re, w) && wrong++ == 0)
            printf("# %s\n", text.bytes);
    }
    is_int(wrong, 0, "pattern %zu: 20000 texts cut alike", which);
    buf_fini(&text);
    regex_close(re);
    regex_work_close(w);
}

static void no_additions(const char *name, size_t len, struct buf *out)
{
    (void)name;
    (void)len;
    (void)out;
}

static void test_translate(void)
{
    static const struct {
        const char *pattern;
        int rc;
        const char *translated;
    } cases[] = {
        {"a+|b{1,3}", ERR_OK, "a+|b{1,3}"},
        {"\\s\\S", ERR_OK, "[^\\S\\x{180e}][\\S\\x{180e}]"},
        {"[a\\]]", ERR_OK, "[a\\]]"},
        {"[^(a|[bc])]", ERR_OK, "[^(a|bc)]"},
        {"[ab&&[^b]]", ERR_OK, "(?:(?![b])[ab])"},
        {"[ab&&[b]]+", ERR_OK, "(?:(?=[b])[ab])+"},
        {"[ab&&b]", ERR_OK, "(?:(?=[b])[ab])"},
        {"\\p{Lu}\\P{N}", ERR_OK, "[\\p{Lu}][^\\p{N}]"},
        {"[\\S]", ERR_UNSUPPORTED, "\\S inside a class"},
        {"[a[^b]]", ERR_UNSUPPORTED, "negated class"},
        {"[a[b[c]]]", ERR_UNSUPPORTED, "three deep"},
        {"[a&&b&&c]", ERR_UNSUPPORTED, "second intersection"},
        {"[^a&&b]", ERR_UNSUPPORTED, "such an intersection"},
        {"[&&a]", ERR_UNSUPPORTED, "an empty class"},
        {"[]a]", ERR_UNSUPPORTED, "not escaped"},
        {"[a", ERR_UNSUPPORTED, "without an end"},
        {"[a[b", ERR_UNSUPPORTED, "without an end"},
    };
    size_t i;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf out = {0};
        char why[200] = "";
        int rc = pattern_translate(cases[i].pattern, strlen(cases[i].pattern), no_additions, &out,
                                   why, sizeof why);

        ok(rc == cases[i].rc && (rc == ERR_OK ? strcmp(out.bytes, cases[i].translated) == 0
                                              : strstr(why, cases[i].translated) != NULL),
           "%s: %s%s", cases[i].pattern, rc == ERR_OK ? out.bytes : "", why);
        buf_fini(&out);
    }
}

int main(void)
{
    static uint8_t bits[SCAN_BMP];
    unsigned seed = tap_seed(3);
    size_t i;

    scan_fill(bits);
    test_translate();
    for (i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        test_pattern(i, bits, seed);
    return tap_done();
}
