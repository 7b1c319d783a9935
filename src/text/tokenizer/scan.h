/* Scanners: by hand, the patterns by which most models cut a text into pieces.
 *
 * A scanner does what its regular expression does, character by character, at fifty times the
 * speed of a regex library; src/text/tokenizer/scan.c has the patterns. */
#ifndef QUIRE_TEXT_TOKENIZER_SCAN_H
#define QUIRE_TEXT_TOKENIZER_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* What a character is, one bit each. */
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
    SCAN_QWEN2,   /* llama3 with each number alone */
    SCAN_MINICPM, /* llama3 with numbers as long as they are */
    SCAN_QWEN35,  /* qwen2 with marks among the letters */
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
    SCAN_PUNCT,         /* each mark of punctuation alone */
    SCAN_PUNCTS,        /* runs of them */
    SCAN_KINDS
};

struct scanner {
    const uint8_t *bits; /* of the code points below SCAN_BMP */
    const char *text;    /* valid UTF-8 */
    size_t len;
    enum scan_kind kind;
};

/* Fill the table that scanners read: enum scan_bit of each code point below SCAN_BMP. */
void scan_fill(uint8_t bits[SCAN_BMP]);

/* End of the match that begins at `at` < len; `at` when none does. */
size_t scan_match(const struct scanner *scanner, size_t at);

/* The first place from `at` on that a match may begin at; len when there is none. */
size_t scan_skip(const struct scanner *scanner, size_t at);

/* The scanner of a regular expression; SCAN_KINDS when it has none. */
enum scan_kind scan_find(const char *pattern, size_t len);

#endif
