/* SPDX-License-Identifier: Apache-2.0
 *
 * Regular expressions of tokenizer files, for the patterns that have no scanner of their own
 * (text/tokenizer/scan.h). They match as Oniguruma does, the engine of Hugging Face's tokenizers.
 *
 * A compiled regex never changes and is shared by threads; scratch memory is per thread. */
#ifndef QUIRE_TEXT_REGEX_H
#define QUIRE_TEXT_REGEX_H

#include <stddef.h>

#include "base/err.h"

struct regex;      /* a compiled expression; shared by threads */
struct regex_work; /* scratch memory of matching; used by one thread at a time */

/* Compile a pattern of len bytes. Returns ERR_OK; ERR_UNSUPPORTED, with the reason in why, when the
 * pattern cannot be given the same meaning; ERR_NO_MEMORY. */
int regex_open(struct regex **out, const char *pattern, size_t len, char *why,
               size_t why_cap) ERR_CHECKED;
void regex_close(struct regex *re); /* NULL is fine */

struct regex_work *regex_work_open(void); /* NULL: no memory */
void regex_work_close(struct regex_work *work);

struct regex_match { /* byte offsets into the text */
    size_t start;
    size_t end; /* >= start */
};

/* Find the first match in text[from .. len), which is valid UTF-8. Returns ERR_OK; ERR_NOT_FOUND;
 * ERR_LIMIT when the search exceeded its step bound; ERR_NO_MEMORY. */
int regex_next(const struct regex *re, struct regex_work *work, const char *text, size_t len,
               size_t from, struct regex_match *match) ERR_CHECKED;

#endif
