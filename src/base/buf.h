/* A growable run of bytes: what is written piece by piece and sent or parsed as a whole.
 *
 * An append that finds no memory sets `failed` and all later ones do nothing, so that a writer
 * checks once, at the end. */
#ifndef QUIRE_BASE_BUF_H
#define QUIRE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *bytes;  /* NUL-terminated after each append; NULL while nothing was appended */
    size_t len;   /* without the NUL */
    size_t cap;   /* allocated */
    size_t limit; /* appending past it fails; 0 means no limit */
    bool failed;  /* an append found no room; the content is cut */
};

void buf_fini(struct buf *b);                 /* empty and usable again */
void buf_clear(struct buf *b);                /* len 0, memory kept, failed reset */
bool buf_reserve(struct buf *b, size_t more); /* room for `more` bytes; false sets failed */
void buf_add(struct buf *b, const void *bytes, size_t len);
void buf_add_text(struct buf *b, const char *text);
void buf_add_byte(struct buf *b, char byte);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append text as the inside of a JSON string: escapes what RFC 8259 demands and nothing else;
 * invalid UTF-8 becomes U+FFFD. buf_add_json_string() adds the quotes as well. */
void buf_add_json_text(struct buf *b, const char *text, size_t len);
void buf_add_json_string(struct buf *b, const char *text, size_t len);

#endif
