/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading hexadecimal digits. hash_hex() writes them. */
#ifndef QUIRE_BASE_HEX_H
#define QUIRE_BASE_HEX_H

#include <stddef.h>
#include <stdint.h>

/* The value of a digit of either case; -1 for any other character. */
int hex_digit(int c);

/* The value of the first n digits (1 .. 8) of text[0 .. len); -1 when there are fewer. */
int64_t hex_number(const char *text, size_t len, size_t n);

#endif
