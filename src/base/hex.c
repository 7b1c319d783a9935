/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading hexadecimal digits. The C library's strtol() accepts signs, spaces and "0x", which
 * neither JSON escapes nor URLs allow; these functions accept digits alone. */
#include "base/hex.h"

#include "base/must.h"

/* The value of a digit of either case; -1: none. */
int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The value of exactly n digits; -1: there are fewer, or something else between them. */
int64_t hex_number(const char *text, size_t len, size_t n)
{
    int64_t value = 0;
    size_t i;

    must(n <= 15);
    if (len < n)
        return -1;
    for (i = 0; i < n; i++) {
        int digit = hex_digit((unsigned char)text[i]);

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}
