/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of Unicode characters that tokenizers and templates need: classes, white space, case,
 * and the normalization form NFC.
 *
 * The tables are those of Hugging Face's tokenizers 0.23.2 (classes: Unicode 16.0; NFC: 9.0),
 * made by tools/unicode-table.py. All functions are pure; any thread. */
#ifndef QUIRE_TEXT_UNICODE_H
#define QUIRE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* General categories, in the order of the table. */
enum unicode_category {
    UNICODE_CN,
    UNICODE_LU,
    UNICODE_LL,
    UNICODE_LT,
    UNICODE_LM,
    UNICODE_LO,
    UNICODE_MN,
    UNICODE_MC,
    UNICODE_ME,
    UNICODE_ND,
    UNICODE_NL,
    UNICODE_NO,
    UNICODE_PC,
    UNICODE_PD,
    UNICODE_PS,
    UNICODE_PE,
    UNICODE_PI,
    UNICODE_PF,
    UNICODE_PO,
    UNICODE_SM,
    UNICODE_SC,
    UNICODE_SK,
    UNICODE_SO,
    UNICODE_ZS,
    UNICODE_ZL,
    UNICODE_ZP,
    UNICODE_CC,
    UNICODE_CF,
    UNICODE_CO,
};

/* Bits of a class. */
#define UNICODE_CATEGORY 0x1f /* mask of the general category */
#define UNICODE_SPACE    0x20 /* matches \s: 25 characters */
#define UNICODE_WORD     0x40 /* matches \w */
#define UNICODE_CHECK    0x80 /* may change under NFC */

/* The class of a code point. Binary search, about 10 ns. */
uint8_t unicode_class(uint32_t c);

/* Write the classes of the code points 0 .. n - 1, for callers that look up many. */
void unicode_fill(uint8_t *classes, uint32_t n);

static inline bool unicode_is_letter(uint8_t cls)
{
    cls &= UNICODE_CATEGORY;
    return cls >= UNICODE_LU && cls <= UNICODE_LO;
}

static inline bool unicode_is_number(uint8_t cls)
{
    cls &= UNICODE_CATEGORY;
    return cls >= UNICODE_ND && cls <= UNICODE_NO;
}

enum unicode_letter_case { UNICODE_UPPER, UNICODE_LOWER, UNICODE_TITLE };

/* Write the character in another case to out and return the number of code points, 1 to 3. */
int unicode_to_case(uint32_t c, enum unicode_letter_case to, uint32_t out[3]);

/* Python's str.isprintable() and str.isspace() for one character. */
bool unicode_is_printable(uint32_t c);
bool unicode_is_python_space(uint32_t c);

/* True when valid UTF-8 has no character that NFC could change, as most text. */
bool unicode_is_nfc(const char *text, size_t len);

/* Byte offset of the first character at or after `from` that NFC could change; len when there is
 * none. */
size_t unicode_next_check(const char *text, size_t len, size_t from);

/* Append the NFC of valid UTF-8 to out; out->failed is set when memory runs out. */
void unicode_nfc(const char *text, size_t len, struct buf *out);

#endif
