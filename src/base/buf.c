/* SPDX-License-Identifier: Apache-2.0
 *
 * The growable buffer and the JSON escaper.
 *
 * The buffer doubles its memory, so that n appended bytes cost O(n) copies. One byte is always kept
 * for a NUL, so that the content can be passed to C functions at any time. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* Free the memory. The limit remains, so that the buffer can be used again. */
void buf_fini(struct buf *b)
{
    mem_free(b->bytes);
    *b = (struct buf){.limit = b->limit};
}

/* Make the buffer empty but keep its memory. An error is forgotten, too. */
void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->bytes != NULL)
        b->bytes[0] = '\0';
}

/* Make room for more bytes. After a failure all later calls fail as well, so that callers need to
 * check only once, at the end. */
bool buf_reserve(struct buf *b, size_t more)
{
    size_t need = b->len + more + 1;
    size_t cap = b->cap == 0 ? 256 : b->cap;
    char *grown;

    /* need < more: the sum has overflowed. */
    if (b->failed || need < more || (b->limit != 0 && b->len + more > b->limit)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    while (cap < need)
        cap *= 2;
    grown = mem_realloc(b->bytes, cap);
    if (grown == NULL) {
        b->failed = true;
        return false;
    }
    b->bytes = grown;
    b->cap = cap;
    return true;
}

/* Append bytes. Nothing is appended after a failure. */
void buf_add(struct buf *b, const void *bytes, size_t len)
{
    if (!buf_reserve(b, len))
        return;
    if (len != 0)
        memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
    b->bytes[b->len] = '\0';
}

void buf_add_text(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_add_byte(struct buf *b, char byte)
{
    buf_add(b, &byte, 1);
}

void buf_add_comma(struct buf *b, bool needed)
{
    if (needed)
        buf_add_byte(b, ',');
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;
    int len;

    va_start(args, format);
    /* Formatted twice: the first pass only counts. */
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0 || !buf_reserve(b, (size_t)len))
        return;
    va_start(args, format);
    (void)vsnprintf(b->bytes + b->len, (size_t)len + 1, format, args);
    va_end(args);
    b->len += (size_t)len;
}

/* The two-character escapes of RFC 8259, and \u00XX for the other control characters. */
static void buf_add_json_escape(struct buf *b, unsigned char c)
{
    switch (c) {
    case '"': buf_add(b, "\\\"", 2); break;
    case '\\': buf_add(b, "\\\\", 2); break;
    case '\n': buf_add(b, "\\n", 2); break;
    case '\r': buf_add(b, "\\r", 2); break;
    case '\t': buf_add(b, "\\t", 2); break;
    case '\b': buf_add(b, "\\b", 2); break;
    case '\f': buf_add(b, "\\f", 2); break;
    default: buf_printf(b, "\\u%04x", c); break;
    }
}

/* Runs that need no escape are appended as a whole, because nearly all output of a model is such a
 * run. text[from .. i) is the run read so far; a character that must be replaced ends it. Invalid
 * bytes become U+FFFD one by one, as in Python's errors="replace". */
void buf_add_json_text(struct buf *b, const char *text, size_t len)
{
    size_t from = 0;
    size_t i = 0;

    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        size_t n = 1;

        if (c >= 0x80)
            n = utf8_sequence(text + i, len - i);
        if (n != 0 && c >= 0x20 && c != '"' && c != '\\') {
            i += n;
            continue;
        }
        buf_add(b, text + from, i - from);
        if (n == 0)
            buf_add(b, "\xef\xbf\xbd", 3);
        else
            buf_add_json_escape(b, c);
        i++;
        from = i;
    }
    buf_add(b, text + from, len - from);
}

void buf_add_json_string(struct buf *b, const char *text, size_t len)
{
    buf_add_byte(b, '"');
    buf_add_json_text(b, text, len);
    buf_add_byte(b, '"');
}
