/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8 by table 3-7 of the Unicode standard: the range of a character's second byte depends on its
 * first byte (E0 needs A0 .. BF, ED needs 80 .. 9F, and so on); all later bytes are 80 .. BF. This
 * excludes overlong forms, surrogates and values above U+10FFFF. */
#include "base/utf8.h"

#include <string.h>

/* The number of bytes that follow the first, or -1 for an invalid one. Sets the range of the second
 * byte. */
static int utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (c < 0x80)
        return 0;
    if (c >= 0xc2 && c <= 0xdf)
        return 1;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0)
            *lo = 0xa0;
        if (c == 0xed)
            *hi = 0x9f; /* surrogates */
        return 2;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0)
            *lo = 0x90;
        if (c == 0xf4)
            *hi = 0x8f;
        return 3;
    }
    return -1;
}

/* The number of first bytes that a valid character could begin with. *want is the whole length of
 * that character, 0 when not even the first byte fits. */
static size_t utf8_good(const char *text, size_t len, size_t *want)
{
    unsigned char lo;
    unsigned char hi;
    int more = len == 0 ? -1 : utf8_lead((unsigned char)text[0], &lo, &hi);
    size_t i = 1;

    *want = 0;
    if (more < 0)
        return 0;
    *want = (size_t)more + 1;
    while (i < *want && i < len) {
        unsigned char c = (unsigned char)text[i];

        if (c < lo || c > hi)
            break;
        /* From the third byte on the range is 80 .. BF again. */
        lo = 0x80;
        hi = 0xbf;
        i++;
    }
    return i;
}

/* The three questions about a broken or incomplete text are comparisons of the same two numbers:
 * `good` bytes that fit, of `want` that a character needs. */
size_t utf8_sequence(const char *text, size_t len)
{
    size_t want;
    size_t good = utf8_good(text, len, &want);

    if (want != 0 && good == want)
        return want;
    return 0;
}

/* The number of bytes of a character that has begun and lacks bytes; 0: none. */
size_t utf8_incomplete(const char *text, size_t len)
{
    size_t want;
    size_t good = utf8_good(text, len, &want);

    if (want != 0 && good < want && good == len)
        return good;
    return 0;
}

/* The bytes that one U+FFFD replaces: at least one. */
size_t utf8_invalid_run(const char *text, size_t len)
{
    size_t want;
    size_t good = utf8_good(text, len, &want);

    if (good == 0)
        return 1;
    return good;
}

/* The character at a text that is known to be valid. */
uint32_t utf8_decode(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;

    if (p[0] < 0x80)
        return p[0];
    if (p[0] < 0xe0)
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    if (p[0] < 0xf0)
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

/* Write a character as UTF-8; returns its length of 1 to 4 bytes. */
size_t utf8_encode(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* Most texts are ASCII, so eight bytes are checked at a time where possible. */
bool utf8_is_valid(const char *text, size_t len)
{
    size_t i = 0;

    while (i < len) {
        uint64_t word;
        size_t n;

        if (len - i >= sizeof word) { /* eight ASCII characters at once */
            memcpy(&word, text + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        n = utf8_sequence(text + i, len - i);

        if (n == 0)
            return false;
        i += n;
    }
    return true;
}
