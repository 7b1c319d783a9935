/* SPDX-License-Identifier: Apache-2.0
 *
 * UTF-8: checking, measuring, decoding and encoding characters. */
#ifndef QUIRE_BASE_UTF8_H
#define QUIRE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes, 1 .. 4, of the valid character at the start of text[0 .. len), len >= 1;
 * 0 when there is none: invalid, a surrogate, above U+10FFFF, or cut off by len. */
size_t utf8_sequence(const char *text, size_t len);

/* The number of bytes at the start of text that begin a valid character which len cuts off; 0 when
 * the bytes are a whole character or can never become one. Streams hold such bytes back. */
size_t utf8_incomplete(const char *text, size_t len);

/* The number of bytes, >= 1, that one U+FFFD replaces at the start of invalid text: the longest run
 * that begins a valid character ("maximal subpart", as Rust and Python replace). */
size_t utf8_invalid_run(const char *text, size_t len);

/* The character at the start of text, which utf8_sequence() has found valid. */
uint32_t utf8_decode(const char *text);

/* Write c (a valid scalar value) to out[4]; returns the number of bytes. */
size_t utf8_encode(uint32_t c, char *out);

bool utf8_is_valid(const char *text, size_t len);

#endif
