/* Regular expressions of tokenizer files that have no scanner of their own. */
#ifndef QUIRE_TEXT_REGEX_H
#define QUIRE_TEXT_REGEX_H

#include <stddef.h>

#include "base/err.h"

struct regex;      /* compiled; shared by threads */
struct regex_work; /* of one thread at a time */

/* Compile a pattern as Hugging Face's engine (Oniguruma) reads it. ERR_UNSUPPORTED with the
 * reason when it is not understood the same way; ERR_NO_MEMORY. */
int regex_open(struct regex **out, const char *pattern, size_t len, char *why,
               size_t why_cap) ERR_CHECKED;
void regex_close(struct regex *re); /* NULL is fine */

struct regex_work *regex_work_open(void); /* NULL: no memory */
void regex_work_close(struct regex_work *work);

/* Find the first match in valid UTF-8 text[from .. len). ERR_OK with its place; ERR_NOT_FOUND;
 * ERR_LIMIT when the search took too many steps; ERR_NO_MEMORY. */
int regex_next(const struct regex *re, struct regex_work *work, const char *text, size_t len,
               size_t from, size_t *start, size_t *end) ERR_CHECKED;

#endif
