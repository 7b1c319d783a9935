/* SPDX-License-Identifier: Apache-2.0
 *
 * Lax reading of numbers and flags, and the printing of values in error texts. */
#include "front/request/lax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LAX_NUMBER_BYTES 64 /* longer texts are no numbers of any client */

/* Read a number from a text with the JSON parser, which refuses "0x10", "nan" and "1 2". Spaces and
 * a plus sign before it are allowed. */
static bool lax_read(const char *text, size_t len, struct json *out)
{
    struct arena arena = {0};
    const struct json *value = NULL;
    char digits[LAX_NUMBER_BYTES];
    bool good;

    while (len > 0 && (text[0] == ' ' || text[0] == '+')) {
        text++;
        len--;
    }
    if (len == 0 || len >= sizeof digits)
        return false;
    memcpy(digits, text, len);
    good = json_parse(&value, &arena, digits, len, NULL, 0) == ERR_OK && json_is_number(value);
    if (good) {
        *out = *value;
        out->text = text; /* in the request, which outlives this arena */
    }
    arena_reset(&arena);
    return good;
}

struct json lax_number(const struct json *v)
{
    struct json number = *v;

    /* A text that is no number is returned as the text that it is. */
    if (v->kind == JSON_TEXT && !lax_read(v->text, v->text_len, &number))
        return *v;
    /* 2.0 counts as 2, if int64_t can hold it. */
    if (number.kind == JSON_REAL && fabs(number.real) < 0x1p63 &&
        floor(number.real) == number.real) {
        number.kind = JSON_INT;
        number.whole = (int64_t)number.real;
    }
    number.key = v->key;
    number.key_len = v->key_len;
    return number;
}

/* Words for flags that Python's clients and web forms send, and the numbers 0 and 1. */
bool lax_flag(const struct json *v, bool *flag)
{
    /* The first half means false, the second true. */
    static const char *const words[] = {"false", "f", "no",  "n", "off", "0",
                                        "true",  "t", "yes", "y", "on",  "1"};
    const size_t n = sizeof words / sizeof words[0];
    struct json number;

    if (v->kind == JSON_BOOL) {
        *flag = v->flag;
        return true;
    }
    for (size_t i = 0; v->kind == JSON_TEXT && !json_has_nul(v) && i < n; i++) {
        if (strcasecmp(v->text, words[i]) == 0) {
            *flag = i >= n / 2;
            return true;
        }
    }
    number = lax_number(v);
    if (v->kind == JSON_TEXT || number.kind != JSON_INT || number.whole < 0 || number.whole > 1)
        return false;
    *flag = number.whole == 1;
    return true;
}

/* A value that is no flag counts as missing: fields_read() has refused it before. */
bool lax_get_flag(const struct json *obj, const char *name, bool fallback)
{
    const struct json *value = json_get(obj, name);
    bool flag = fallback;

    if (value != NULL && lax_flag(value, &flag))
        return flag;
    return fallback;
}

/* Show a value in an error text: at most 40 bytes of it. */
const char *lax_show(const struct json *v, char out[LAX_SHOW_BYTES])
{
    if (v->kind == JSON_TEXT)
        (void)snprintf(out, LAX_SHOW_BYTES, "\"%.40s\"", v->text);
    else if (v->kind == JSON_BOOL)
        (void)snprintf(out, LAX_SHOW_BYTES, "%s", json_flag_text(v->flag));
    else if (json_is_number(v))
        (void)snprintf(out, LAX_SHOW_BYTES, "%.*s", v->n > 40 ? 40 : (int)v->n, v->text);
    else
        (void)snprintf(out, LAX_SHOW_BYTES, "%s", json_kind_name(v->kind));
    return out;
}
