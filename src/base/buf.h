/* SPDX-License-Identifier: Apache-2.0
 *
 * A growable run of bytes, for output that is written piece by piece and sent or parsed as a whole.
 *
 * An append that finds no memory sets `failed`, and all later appends do nothing: a writer checks
 * once, at the end. */
#ifndef QUIRE_BASE_BUF_H
#define QUIRE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *bytes;  /* NUL-terminated after each append; NULL before the first */
    size_t len;   /* without the NUL */
    size_t cap;   /* allocated */
    size_t limit; /* appending past it fails; 0 means no limit */
    bool failed;  /* an append found no room, so the content is incomplete */
};

void buf_fini(struct buf *b);                 /* empty and usable again */
void buf_clear(struct buf *b);                /* len 0, memory kept, failed reset */
bool buf_reserve(struct buf *b, size_t more); /* room for `more` bytes; false sets failed */
/* Append bytes, a C string, one byte, or formatted text; each adds a NUL that len does not
 * count. */
void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_add_text(struct buf *b, const char *text);
void buf_add_byte(struct buf *b, char byte);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_add_comma(struct buf *b, bool needed); /* for lists: needed from the second item on */

/* The content as a C string; "" while nothing was appended. */
static inline const char *buf_text(const struct buf *b)
{
    if (b->len == 0)
        return "";
    return b->bytes;
}

/* Append text as the inside of a JSON string: escapes only the characters for which RFC 8259
 * demands it; each invalid UTF-8 byte becomes U+FFFD. buf_add_json_string() adds the quotes too. */
void buf_add_json_text(struct buf *b, const char *text, size_t len);
void buf_add_json_string(struct buf *b, const char *text, size_t len);

#endif
