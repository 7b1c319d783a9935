/* Text of a stream of tokens: whole characters only, and stop strings.
 *
 * Any cut of the ids into pushes gives the same bytes as tokenizer_decode() of all of them, up to
 * the stop. Held back is only the start of a character that may still become whole, a run of byte
 * tokens (of models with byte fallback) and text that may still become a stop string.
 *
 * A run of byte tokens is held because one wrong byte makes U+FFFD of all of it. From the 64th
 * byte on, its characters leave as they become whole: only of a longer run that is wrong does the
 * stream keep characters that tokenizer_decode() loses.
 *
 * One thread at a time. Memory is claimed by detok_init() alone; a push allocates nothing but
 * what `out` needs to grow. */
#ifndef QUIRE_TEXT_OUTPUT_DETOK_H
#define QUIRE_TEXT_OUTPUT_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer/tokenizer.h"

#define DETOK_STOPS_MAX      1024 /* stop strings of one request */
#define DETOK_STOP_BYTES_MAX 4096 /* length of one */
#define DETOK_RUN_MAX        64   /* byte tokens in a row that wait for their end */

struct detok_stop {
    const char *text; /* not empty */
    size_t len;
};

enum detok_status {
    DETOK_GOING,   /* more ids may come */
    DETOK_STOPPED, /* a stop string is complete; stop_idx says which; later pushes do nothing */
};

struct detok {
    const struct tokenizer *tokenizer; /* borrowed until detok_fini() */
    bool skip_special;
    bool include_stop;
    enum detok_status status;
    int stop_idx;    /* the stop string that matched; -1 while none has */
    char partial[4]; /* bytes that begin a character */
    size_t partial_len;
    char run[DETOK_RUN_MAX]; /* byte tokens that came in a row */
    size_t run_len;
    bool drops;       /* the next token is the first of a text whose start loses something: */
    uint32_t strip_n; /* so many spaces may still be left out */
    int n_stops;
    struct detok_match *matches; /* one per stop string; owned */
    char *held;                  /* text that may become a stop string; owned */
    size_t held_len;
    size_t held_cap;
};

/* Begin a stream.
 *
 *   stops         n_stops texts, copied; the one that ends first stops the stream, of those that
 *                 end together the first in the list
 *   include_stop  the stop string is part of the output
 *
 * Returns ERR_OK; ERR_INVALID for an empty stop string; ERR_LIMIT for too many or too long ones;
 * ERR_NO_MEMORY. On error d needs no detok_fini(). */
int detok_init(struct detok *detok, const struct tokenizer *tokenizer, bool skip_special,
               const struct detok_stop *stops, size_t n_stops, bool include_stop) ERR_CHECKED;
void detok_fini(struct detok *detok); /* accepts {0} */

/* What comes goes on with a text, a prompt: it keeps the space that a decoder takes from the start
 * of a text, as "Paris" after "in" must. Before the first push. */
void detok_continue(struct detok *detok);

/* Take one id; append the text that is certain by now. Unknown ids give no text. */
enum detok_status detok_push(struct detok *detok, int32_t id, struct buf *out);

/* The stream has ended without a stop string: append what is held; an unfinished character
 * becomes U+FFFD (and may complete a stop string, which the status says). After a stop it
 * appends nothing. */
enum detok_status detok_finish(struct detok *detok, struct buf *out);

#endif
