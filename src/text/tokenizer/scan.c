/* SPDX-License-Identifier: Apache-2.0
 *
 * The patterns, with alternatives in order. p is a character that is neither white space, letter
 * nor number; C is a contraction ('s 't 're 've 'm 'll 'd) in any case:
 *
 *   gpt2      C in small letters| ?L+| ?N+| ?p+|\s+(?!\S)|\s+
 *   llama3    C|[^\r\n L N]?L+|N{1,3}| ?p+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   o200k     [^\r\n L N]?U*W+C?|[^\r\n L N]?U+W*C?|N{1,3}| ?p+[\r\n/]*|... as llama3
 *             U: letters and marks but small ones, W: letters and marks but capitals
 *   tekken    o200k without C, each number alone
 *   deepseek  [ASCII punctuation][A-Za-z]+|[^\r\n L P S]?[L M]+| ?[P S]+[\r\n]*|... as llama3
 *
 * A regex engine backtracks; here no alternative needs more than one step back, except U*W+. When
 * no small letter follows, U* must give back its last character that is both U and W (a letter
 * without case, or a mark). */
#include "text/tokenizer/scan.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

#define SCAN_WORD_CHAR (SCAN_LETTER | SCAN_MARK)

/* The scanner's bits for a class of unicode.h. */
static uint8_t scan_bits_of(uint8_t cls)
{
    static const uint8_t by_category[32] = {
        [UNICODE_LU] = SCAN_LETTER | SCAN_UPPER,
        [UNICODE_LL] = SCAN_LETTER | SCAN_LOWER,
        [UNICODE_LT] = SCAN_LETTER | SCAN_UPPER,
        [UNICODE_LM] = SCAN_LETTER,
        [UNICODE_LO] = SCAN_LETTER,
        [UNICODE_MN] = SCAN_MARK,
        [UNICODE_MC] = SCAN_MARK,
        [UNICODE_ME] = SCAN_MARK,
        [UNICODE_ND] = SCAN_NUMBER,
        [UNICODE_NL] = SCAN_NUMBER,
        [UNICODE_NO] = SCAN_NUMBER,
        [UNICODE_PC] = SCAN_PUNCTUATION,
        [UNICODE_PD] = SCAN_PUNCTUATION,
        [UNICODE_PS] = SCAN_PUNCTUATION,
        [UNICODE_PE] = SCAN_PUNCTUATION,
        [UNICODE_PI] = SCAN_PUNCTUATION,
        [UNICODE_PF] = SCAN_PUNCTUATION,
        [UNICODE_PO] = SCAN_PUNCTUATION,
        [UNICODE_SM] = SCAN_SYMBOL,
        [UNICODE_SC] = SCAN_SYMBOL,
        [UNICODE_SK] = SCAN_SYMBOL,
        [UNICODE_SO] = SCAN_SYMBOL,
    };

    /* Space is a bit of its own, because white space is spread over several categories: the tab
     * is a control character, for example. */
    return (uint8_t)(by_category[cls & UNICODE_CATEGORY] |
                     ((cls & UNICODE_SPACE) != 0 ? SCAN_SPACE : 0));
}

void scan_fill(uint8_t bits[SCAN_BMP])
{
    uint32_t c;

    unicode_fill(bits, SCAN_BMP);
    for (c = 0; c < SCAN_BMP; c++)
        bits[c] = scan_bits_of(bits[c]);
}

/* --- characters --------------------------------------------------------------------------------*/

/* The bits of the character at `at` < len, and its length in bytes. ASCII comes first, because most
 * text is ASCII. Characters above the table's range are rare and are looked up. */
static inline uint8_t scan_bits_at(const struct scanner *scanner, size_t at, size_t *n)
{
    const unsigned char *p = (const unsigned char *)scanner->text + at;

    if (p[0] < 0x80) {
        *n = 1;
        return scanner->bits[p[0]];
    }
    /* The table covers all characters of up to three bytes. The text is valid UTF-8, so the lead
     * byte alone gives the length. */
    if (p[0] < 0xe0) {
        *n = 2;
        return scanner->bits[(p[0] & 0x1fu) << 6 | (p[1] & 0x3fu)];
    }
    if (p[0] < 0xf0) {
        *n = 3;
        return scanner->bits[(p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu)];
    }
    *n = 4;
    return scan_bits_of(unicode_class(utf8_decode(scanner->text + at)));
}

/* End of the run of characters that have one of `any` and none of `none`. */
static inline size_t scan_run_of(const struct scanner *scanner, size_t at, uint8_t any,
                                 uint8_t none)
{
    size_t n;

    while (at < scanner->len) {
        uint8_t bits = scan_bits_at(scanner, at, &n);

        if ((bits & any) == 0 || (bits & none) != 0)
            break;
        at += n;
    }
    return at;
}

/* End of the run of characters that have none of the bits in `none`. */
static inline size_t scan_run_without(const struct scanner *scanner, size_t at, uint8_t none)
{
    size_t n;

    while (at < scanner->len && (scan_bits_at(scanner, at, &n) & none) == 0)
        at += n;
    return at;
}

/* End of a run of at most `max` numbers. */
static inline size_t scan_run_of_numbers(const struct scanner *scanner, size_t at, int max)
{
    size_t n;

    while (max-- > 0 && at < scanner->len && (scan_bits_at(scanner, at, &n) & SCAN_NUMBER) != 0)
        at += n;
    return at;
}

static inline bool scan_is_newline(char c)
{
    return c == '\n' || c == '\r';
}

static inline bool scan_is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* A character of 33 .. 126 that is neither letter nor digit. */
static inline bool scan_is_ascii_punctuation(char c)
{
    return c > ' ' && c < 127 && !scan_is_ascii_letter(c) && !(c >= '0' && c <= '9');
}

/* End of an English contraction that begins at `at`; `at` when there is none. */
static size_t scan_contraction(const struct scanner *scanner, size_t at, bool any_case)
{
    size_t left = scanner->len - at;
    unsigned char first;
    unsigned char second;

    if (left < 2 || scanner->text[at] != '\'')
        return at;
    first = (unsigned char)scanner->text[at + 1];
    if (left < 3)
        second = 0;
    else
        second = (unsigned char)scanner->text[at + 2];
    if (any_case && first == 0xc5 && second == 0xbf)
        return at + 3; /* U+017F, the long s, whose upper case is S */
    if (any_case && first >= 'A' && first <= 'Z')
        first |= 0x20;
    if (any_case && second >= 'A' && second <= 'Z')
        second |= 0x20;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l'))
        return at + 3;
    return at;
}

/* --- parts of patterns -------------------------------------------------------------------------*/

/* White space: `\s*[\r\n]+|\s+(?!\S)|\s+`, without the first alternative unless by_lines. */
static size_t scan_white_space(const struct scanner *scanner, size_t at, bool by_lines)
{
    size_t end = at;
    size_t last = at;
    size_t after_newline = at;
    size_t n;

    while (end < scanner->len && (scan_bits_at(scanner, end, &n) & SCAN_SPACE) != 0) {
        last = end;
        end += n;
        if (scan_is_newline(scanner->text[last]))
            after_newline = end;
    }
    if (by_lines && after_newline > at)
        return after_newline;
    if (end == scanner->len || last == at)
        return end;
    return last; /* the last space belongs to the word that follows */
}

/* `?p+[\r\n]*` after an optional space; with slashes `[\r\n/]*`. p: none of the bits in `none`. */
static size_t scan_others(const struct scanner *scanner, size_t at, uint8_t none, bool slashes)
{
    size_t from = scanner->text[at] == ' ' ? at + 1 : at;
    size_t end = scan_run_without(scanner, from, none);

    if (end == from)
        return at;
    while (end < scanner->len &&
           (scan_is_newline(scanner->text[end]) || (slashes && scanner->text[end] == '/')))
        end++;
    return end;
}

/* `U*W+` from `at`; returns `at` when it does not match. */
static size_t scan_small_word(const struct scanner *scanner, size_t at)
{
    size_t last_both = at; /* end of the last character that is both U and W */
    size_t end = at;
    size_t n;

    while (end < scanner->len) {
        uint8_t bits = scan_bits_at(scanner, end, &n);

        if ((bits & SCAN_WORD_CHAR) == 0 || (bits & SCAN_LOWER) != 0)
            break;
        end += n;
        if ((bits & SCAN_UPPER) == 0)
            last_both = end;
    }
    if (end < scanner->len && (scan_bits_at(scanner, end, &n) & SCAN_LOWER) != 0)
        return scan_run_of(scanner, end, SCAN_WORD_CHAR, SCAN_UPPER);
    return last_both;
}

/* --- whole patterns ----------------------------------------------------------------------------*/

/* The pattern of GPT-2:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * A blank may precede a run; the kind of the run is that of the next character. */
static size_t scan_gpt2(const struct scanner *scanner, size_t at)
{
    size_t end = scan_contraction(scanner, at, false);
    size_t from = scanner->text[at] == ' ' ? at + 1 : at;
    size_t n;

    /* Contractions are the first alternatives of the pattern, so they have priority: "'s" is a
     * piece and not a part of other characters. */
    if (end > at)
        return end;
    /* A blank at the end of the text has no run after it and is white space. */
    if (from < scanner->len) {
        uint8_t bits = scan_bits_at(scanner, from, &n);

        if ((bits & SCAN_LETTER) != 0)
            return scan_run_of(scanner, from + n, SCAN_LETTER, 0);
        if ((bits & SCAN_NUMBER) != 0)
            return scan_run_of(scanner, from + n, SCAN_NUMBER, 0);
        if ((bits & SCAN_SPACE) == 0)
            return scan_run_without(scanner, from + n, SCAN_LETTER | SCAN_NUMBER | SCAN_SPACE);
    }
    /* White space before a word leaves its last blank to the word: \s+(?!\S). */
    return scan_white_space(scanner, at, false);
}

/* llama3 and its relatives. `letters` are the bits that count as letters, `numbers` the longest run
 * of numbers. The order of the tests differs from the alternatives where these exclude each
 * other. */
static inline size_t scan_words(const struct scanner *scanner, size_t at, uint8_t letters,
                                int numbers)
{
    size_t n;
    size_t n_next;
    uint8_t bits = scan_bits_at(scanner, at, &n);
    size_t end;

    /* Letters come first, because most pieces begin with one. */
    if ((bits & letters) != 0)
        return scan_run_of(scanner, at + n, letters, 0);
    if (scanner->text[at] == '\'') {
        end = scan_contraction(scanner, at, true);
        if (end > at)
            return end;
    }
    if ((bits & SCAN_NUMBER) != 0)
        return scan_run_of_numbers(scanner, at, numbers);
    /* One character that is no letter may precede a word, such as the blank of " word" or the
     * bracket of "(word". */
    if (!scan_is_newline(scanner->text[at]) && at + n < scanner->len &&
        (scan_bits_at(scanner, at + n, &n_next) & letters) != 0)
        return scan_run_of(scanner, at + n + n_next, letters, 0);
    end = scan_others(scanner, at, letters | SCAN_NUMBER | SCAN_SPACE, false);
    if (end > at)
        return end;
    return scan_white_space(scanner, at, true);
}

/* o200k and tekken: words end where a capital letter follows a small one ("camelCase" is two). */
static size_t scan_cased(const struct scanner *scanner, size_t at, bool contractions, int numbers)
{
    size_t n;
    uint8_t bits = scan_bits_at(scanner, at, &n);
    size_t word = at; /* start of the word, after the one other character that may precede it */
    size_t end = at;

    if ((bits & (SCAN_LETTER | SCAN_NUMBER)) == 0 && !scan_is_newline(scanner->text[at]))
        word = at + n;
    /* First alternative (a word that ends in small letters), with and without that character. */
    if (word > at) {
        end = scan_small_word(scanner, word);
        if (end == word)
            end = at;
    }
    if (end == at)
        end = scan_small_word(scanner, at);
    /* Second alternative (a word that begins with capitals), with and without it. */
    if (end == at && word > at) {
        end = scan_run_of(scanner, word, SCAN_WORD_CHAR, SCAN_LOWER);
        if (end == word)
            end = at;
    }
    if (end == at)
        end = scan_run_of(scanner, at, SCAN_WORD_CHAR, SCAN_LOWER);
    if (end > at) {
        if (contractions && end < scanner->len)
            return scan_contraction(scanner, end, true);
        return end;
    }
    if ((bits & SCAN_NUMBER) != 0)
        return scan_run_of_numbers(scanner, at, numbers);
    end = scan_others(scanner, at, SCAN_LETTER | SCAN_NUMBER | SCAN_SPACE, true);
    if (end > at)
        return end;
    return scan_white_space(scanner, at, true);
}

/* DeepSeek's third pattern. */
static size_t scan_deepseek(const struct scanner *scanner, size_t at)
{
    size_t end = at + 1;
    size_t n;
    size_t n_next;
    uint8_t bits = scan_bits_at(scanner, at, &n);

    /* [!-/:-~][A-Za-z]+: one character of ASCII punctuation and letters. */
    if (scan_is_ascii_punctuation(scanner->text[at]) && end < scanner->len &&
        scan_is_ascii_letter(scanner->text[end])) {
        while (end < scanner->len && scan_is_ascii_letter(scanner->text[end]))
            end++;
        return end;
    }
    if ((bits & SCAN_WORD_CHAR) != 0)
        return scan_run_of(scanner, at + n, SCAN_WORD_CHAR, 0);
    /* [^\r\n\p{P}\p{S}]?[\p{L}\p{M}]+: one character of another kind before a word. */
    if ((bits & (SCAN_PUNCTUATION | SCAN_SYMBOL)) == 0 && !scan_is_newline(scanner->text[at]) &&
        at + n < scanner->len && (scan_bits_at(scanner, at + n, &n_next) & SCAN_WORD_CHAR) != 0)
        return scan_run_of(scanner, at + n + n_next, SCAN_WORD_CHAR, 0);
    /*  ?[\p{P}\p{S}]+[\r\n]*: punctuation with a blank before it and line ends after it. */
    if (scanner->text[at] == ' ')
        end = at + 1;
    else
        end = at;
    n = scan_run_of(scanner, end, SCAN_PUNCTUATION | SCAN_SYMBOL, 0);
    if (n > end) {
        while (n < scanner->len && scan_is_newline(scanner->text[n]))
            n++;
        return n;
    }
    return scan_white_space(scanner, at, true);
}

/* `\s?x+`, where x has one of the bits in `any`. */
static size_t scan_after_space(const struct scanner *scanner, size_t at, uint8_t any)
{
    size_t n;
    size_t from = (scan_bits_at(scanner, at, &n) & SCAN_SPACE) != 0 ? at + n : at;
    size_t end = scan_run_of(scanner, from, any, 0);

    if (end > from)
        return end;
    return at;
}

/* Ranges of Han and kana characters in DeepSeek's patterns. */
static bool scan_is_cjk(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

static bool scan_is_coder_cjk(uint32_t c)
{
    return (c >= 0x800 && c <= 0x9fa5) || (c >= 0xac00 && c <= 0xd7ff);
}

static size_t scan_run_of_cjk(const struct scanner *scanner, size_t at, bool is_member(uint32_t))
{
    while (at < scanner->len && (unsigned char)scanner->text[at] >= 0xe0 &&
           is_member(utf8_decode(scanner->text + at)))
        at += utf8_sequence(scanner->text + at, scanner->len - at);
    return at;
}

/* Hugging Face's Punctuation and Digits use other versions of Unicode than its regexes: Punctuation
 * is of 8.0, in which two characters counted that have changed class since, and Digits of 17.0.
 * These characters became punctuation after 8.0. */
static const struct {
    uint32_t first;
    uint32_t last;
} young_punctuation[] = {
    {0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},
    {0xc84, 0xc84},     {0x1b4e, 0x1b4f},   {0x1b7d, 0x1b7f},   {0x2e43, 0x2e4f},
    {0x2e52, 0x2e5d},   {0x10d6e, 0x10d6e}, {0x10ead, 0x10ead}, {0x10f55, 0x10f59},
    {0x10f86, 0x10f89}, {0x113d4, 0x113d5}, {0x113d7, 0x113d8}, {0x1144b, 0x1144f},
    {0x1145a, 0x1145b}, {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9},
    {0x1183b, 0x1183b}, {0x11944, 0x11946}, {0x119e2, 0x119e2}, {0x11a3f, 0x11a46},
    {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09}, {0x11be1, 0x11be1},
    {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f},
    {0x11fff, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16d6d, 0x16d6f}, {0x16e97, 0x16e9a},
    {0x16fe2, 0x16fe2}, {0x1e5ff, 0x1e5ff}, {0x1e95e, 0x1e95f},
};

static bool scan_is_old_punctuation(uint32_t c, uint8_t bits)
{
    size_t i;

    if ((bits & SCAN_PUNCTUATION) == 0)
        return c == 0x166d || c == 0x111c9;
    for (i = 0; i < sizeof young_punctuation / sizeof young_punctuation[0]; i++)
        if (c >= young_punctuation[i].first && c <= young_punctuation[i].last)
            return false;
    return true;
}

/* End of a run of at most `max` punctuation characters. */
static size_t scan_run_of_punctuation(const struct scanner *scanner, size_t at, int max)
{
    size_t n;

    while (max-- > 0 && at < scanner->len) {
        uint8_t bits = scan_bits_at(scanner, at, &n);

        if (!scan_is_ascii_punctuation(scanner->text[at]) &&
            !scan_is_old_punctuation(utf8_decode(scanner->text + at), bits))
            break;
        at += n;
    }
    return at;
}

/* End of a run of at most `max` digits; two ranges are new in Unicode 17.0. */
static size_t scan_run_of_digits(const struct scanner *scanner, size_t at, int max)
{
    size_t n;

    while (max-- > 0 && at < scanner->len) {
        if ((scan_bits_at(scanner, at, &n) & SCAN_NUMBER) == 0) {
            uint32_t c = utf8_decode(scanner->text + at);

            if (!(c >= 0x11de0 && c <= 0x11de9) && !(c >= 0x16ff4 && c <= 0x16ff6))
                break;
        }
        at += n;
    }
    return at;
}

/* Matches of these patterns are rare, so bytes that cannot begin one are skipped quickly. */
size_t scan_skip(const struct scanner *scanner, size_t at)
{
    const unsigned char *p = (const unsigned char *)scanner->text;

    if (scanner->kind == SCAN_NUMBERS || scanner->kind == SCAN_DIGIT ||
        scanner->kind == SCAN_DIGITS)
        while (at < scanner->len && p[at] < 0x80 && (p[at] < '0' || p[at] > '9'))
            at++;
    else if (scanner->kind == SCAN_CJK || scanner->kind == SCAN_CODER_CJK)
        while (at < scanner->len && p[at] < 0xe0)
            at++;
    return at;
}

/* The end of the match that begins at `at`; `at` itself if none does. */
size_t scan_match(const struct scanner *scanner, size_t at)
{
    /* One scanner serves several models that differ in the set of letters and the longest run of
     * digits. */
    switch (scanner->kind) {
    case SCAN_GPT2: return scan_gpt2(scanner, at);
    case SCAN_LLAMA3: return scan_words(scanner, at, SCAN_LETTER, 3);
    case SCAN_QWEN2: return scan_words(scanner, at, SCAN_LETTER, 1);
    case SCAN_MINICPM: return scan_words(scanner, at, SCAN_LETTER, INT_MAX);
    case SCAN_QWEN35: return scan_words(scanner, at, SCAN_WORD_CHAR, 1);
    case SCAN_O200K: return scan_cased(scanner, at, true, 3);
    case SCAN_TEKKEN: return scan_cased(scanner, at, false, 1);
    case SCAN_DEEPSEEK: return scan_deepseek(scanner, at);
    /* The scanners from here on match a single kind of text and leave gaps. */
    case SCAN_NUMBERS: return scan_run_of_numbers(scanner, at, 3);
    case SCAN_CJK: return scan_run_of_cjk(scanner, at, scan_is_cjk);
    case SCAN_CODER_CJK: return scan_run_of_cjk(scanner, at, scan_is_coder_cjk);
    case SCAN_NEWLINE: return scan_is_newline(scanner->text[at]) ? at + 1 : at;
    case SCAN_SPACE_LETTERS: return scan_after_space(scanner, at, SCAN_LETTER);
    case SCAN_SPACE_PUNCT: return scan_after_space(scanner, at, SCAN_PUNCTUATION);
    case SCAN_DIGIT: return scan_run_of_digits(scanner, at, 1);
    case SCAN_DIGITS: return scan_run_of_digits(scanner, at, INT_MAX);
    case SCAN_PUNCT: return scan_run_of_punctuation(scanner, at, 1);
    case SCAN_PUNCTS: return scan_run_of_punctuation(scanner, at, INT_MAX);
    case SCAN_KINDS: break;
    }
    return at;
}

/* --- recognition -------------------------------------------------------------------------------*/

/* A pattern is recognised by its exact text. Models copy these patterns from each other, so few
 * texts cover most models; any other text goes to PCRE2, which is slower but equally correct. */

#define ANY_CASE     "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "|\\s+(?!\\S)|\\s+"
#define SCAN_TAIL    "|\\s*[\\r\\n]+" SPACES
#define OTHERS       "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define CASED_BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED_UP     "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_LOW    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_TAIL   "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SCAN_TAIL

static const struct {
    const char *pattern;
    enum scan_kind kind;
} patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" SPACES, SCAN_GPT2},
    {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHERS SCAN_TAIL, SCAN_LLAMA3},
    {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS SCAN_TAIL, SCAN_QWEN2},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"
     "|\\s*[\\r\\n]" SPACES,
     SCAN_QWEN2}, /* an equivalent pattern, as Ling's models write it */
    {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+" OTHERS SCAN_TAIL, SCAN_MINICPM},
    {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
              "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SCAN_TAIL,
     SCAN_QWEN35},
    {CASED_BEFORE CASED_UP "*" CASED_LOW "+" ANY_CASE "?|" CASED_BEFORE CASED_UP "+" CASED_LOW
                           "*" ANY_CASE "?|\\p{N}{1,3}" CASED_TAIL,
     SCAN_O200K},
    {CASED_BEFORE CASED_UP "*" CASED_LOW "+|" CASED_BEFORE CASED_UP "+" CASED_LOW
                           "*|\\p{N}" CASED_TAIL,
     SCAN_TEKKEN},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+" SPACES,
     SCAN_DEEPSEEK},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"
     "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES,
     SCAN_DEEPSEEK},
    {"\\p{N}{1,3}", SCAN_NUMBERS},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", SCAN_CJK},
    {"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", SCAN_CODER_CJK},
    {"[\r\n]", SCAN_NEWLINE},
    {"[\\r\\n]", SCAN_NEWLINE},
    {"\\s?\\p{L}+", SCAN_SPACE_LETTERS},
    {"\\s?\\p{P}+", SCAN_SPACE_PUNCT},
};

enum scan_kind scan_find(const char *pattern, size_t len)
{
    size_t i;

    must(pattern != NULL || len == 0);
    for (i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (strlen(patterns[i].pattern) == len && memcmp(patterns[i].pattern, pattern, len) == 0)
            return patterns[i].kind;
    return SCAN_KINDS;
}
