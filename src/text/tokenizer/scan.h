/* SPDX-License-Identifier: Apache-2.0
 *
 * Scanners: hand-written matchers for the patterns by which most models cut a text into pieces.
 *
 * A scanner matches exactly as its regular expression, at about fifty times the speed of a regex
 * library; scan.c lists the patterns. Pure functions over a table; any thread. */
#ifndef QUIRE_TEXT_TOKENIZER_SCAN_H
#define QUIRE_TEXT_TOKENIZER_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* Classes of a character, one bit each. */
enum scan_bit {
    SCAN_LETTER = 1,
    SCAN_MARK = 2,
    SCAN_NUMBER = 4,
    SCAN_SPACE = 8,
    SCAN_UPPER = 16, /* capital or title-case letter */
    SCAN_LOWER = 32,
    SCAN_PUNCTUATION = 64,
    SCAN_SYMBOL = 128,
};

#define SCAN_BMP 0x10000u

enum scan_kind {
    SCAN_GPT2,
    SCAN_LLAMA3,
    SCAN_QWEN2,   /* llama3, but each digit is a match of its own */
    SCAN_MINICPM, /* llama3, but numbers have no length limit */
    SCAN_QWEN35,  /* qwen2, but marks count as letters */
    SCAN_O200K,
    SCAN_TEKKEN,
    SCAN_DEEPSEEK,      /* the third of DeepSeek's patterns; some characters match nothing */
    SCAN_NUMBERS,       /* \p{N}{1,3} */
    SCAN_CJK,           /* DeepSeek's second: han, hiragana, katakana */
    SCAN_CODER_CJK,     /* DeepSeek-Coder's ranges */
    SCAN_NEWLINE,       /* [\r\n] */
    SCAN_SPACE_LETTERS, /* \s?\p{L}+ */
    SCAN_SPACE_PUNCT,   /* \s?\p{P}+ */
    SCAN_DIGIT,         /* each digit alone */
    SCAN_DIGITS,        /* runs of digits */
    SCAN_PUNCT,         /* each punctuation character alone */
    SCAN_PUNCTS,        /* runs of punctuation */
    SCAN_KINDS
};

struct scanner {
    const uint8_t *bits; /* enum scan_bit of the code points below SCAN_BMP */
    const char *text;    /* valid UTF-8 */
    size_t len;
    enum scan_kind kind;
};

/* Fill the table that scanners read: enum scan_bit of each code point below SCAN_BMP. */
void scan_fill(uint8_t bits[SCAN_BMP]);

/* End of the match that begins at `at` < len; `at` when no match begins there. */
size_t scan_match(const struct scanner *scanner, size_t at);

/* A place at or after `at` before which no match begins; len when none follows. */
size_t scan_skip(const struct scanner *scanner, size_t at);

/* The scanner for a regular expression, compared as text; SCAN_KINDS when there is none. */
enum scan_kind scan_find(const char *pattern, size_t len);

#endif
