/* SPDX-License-Identifier: Apache-2.0
 *
 * Detokenizer: turns a stream of token ids into text, in whole characters, and ends it at a stop
 * string.
 *
 * The concatenated output equals tokenizer_decode() of all ids, up to the stop, however the ids are
 * grouped into pushes. Text is held back only while it may still change: the first bytes of a
 * character, a run of byte tokens (of models with byte fallback), and text that may become a stop
 * string.
 *
 * A run of byte tokens is held because one invalid byte turns the whole run into U+FFFD. From 64
 * bytes on, its complete characters are written; only for an invalid run that is longer does the
 * stream keep characters that tokenizer_decode() would replace.
 *
 * One thread at a time. detok_init() allocates all memory; a push allocates only when `out` has to
 * grow. */
#ifndef QUIRE_TEXT_OUTPUT_DETOK_H
#define QUIRE_TEXT_OUTPUT_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/tokenizer/tokenizer.h"

#define DETOK_STOPS_MAX      1024 /* stop strings per request */
#define DETOK_STOP_BYTES_MAX 4096 /* length of a stop string */
#define DETOK_RUN_MAX        64   /* byte tokens in a row that are held */

struct detok_stop {
    const char *text; /* not empty */
    size_t len;
};

enum detok_status {
    DETOK_GOING,   /* more ids may come */
    DETOK_STOPPED, /* stop string number stop_idx is complete; later pushes do nothing */
};

struct detok {
    const struct tokenizer *tokenizer; /* borrowed until detok_fini() */
    bool skip_special;
    bool include_stop;
    enum detok_status status;
    int stop_idx;    /* the stop string that matched; -1: none so far */
    char partial[4]; /* first bytes of a character that is not complete */
    size_t partial_len;
    char run[DETOK_RUN_MAX]; /* byte tokens in a row, not yet decoded */
    size_t run_len;
    bool drops;       /* the next token is the first of the text and loses its leading space */
    uint32_t strip_n; /* spaces that may still be dropped at the start of the text */
    int n_stops;
    struct detok_match *matches; /* one per stop string; owned */
    char *held;                  /* text that may become a stop string; owned */
    size_t held_len;
    size_t held_cap;
};

/* Begin a stream.
 *
 *   stops         n_stops texts, copied. The stop string that is completed first ends the stream;
 *                 of several that end at the same byte, the first in the list
 *   include_stop  the stop string is part of the output
 *
 * Returns ERR_OK; ERR_INVALID for an empty stop string; ERR_LIMIT for too many or too long ones;
 * ERR_NO_MEMORY. After an error detok needs no detok_fini(). */
int detok_init(struct detok *detok, const struct tokenizer *tokenizer, bool skip_special,
               const struct detok_stop *stops, size_t n_stops, bool include_stop) ERR_CHECKED;
void detok_fini(struct detok *detok); /* accepts {0} */

/* The output continues a text (a prompt), so its first token keeps the leading space that a decoder
 * drops at the start of a text: " Paris" after "in". Call before the first push. */
void detok_continue(struct detok *detok);

/* Decode one id and append the text that is final. Ids that are not in the vocabulary give no
 * text. out->failed is set when memory runs out. */
enum detok_status detok_push(struct detok *detok, int32_t id, struct buf *out);

/* The stream ends: append the held text. An incomplete character becomes U+FFFD, which may complete
 * a stop string; the status reports it. After a stop nothing is appended. */
enum detok_status detok_finish(struct detok *detok, struct buf *out);

#endif
