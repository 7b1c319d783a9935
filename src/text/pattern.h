/* SPDX-License-Identifier: Apache-2.0
 *
 * Translates regular expressions of tokenizer files, which are written for Oniguruma (the engine of
 * Hugging Face's tokenizers), into the syntax of PCRE2. Pure functions; any thread. */
#ifndef QUIRE_TEXT_PATTERN_H
#define QUIRE_TEXT_PATTERN_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

/* Appends, as members of a character class, the characters that have a property in Unicode 16.0 but
 * lack it in PCRE2's tables. name is the text inside \p{}; an unknown name appends nothing. */
typedef void pattern_additions(const char *name, size_t len, struct buf *out);

/* Append the translated pattern to out. These differ between the two engines:
 *
 *   \s, \S        without U+180E, which PCRE2 includes
 *   \p{X}         with the characters that `additions` appends
 *   \p{Han}       the script, without its extensions
 *   [a[b]], [a&&[^b]]  a class inside a class, one level deep: union and intersection
 *
 * Returns ERR_OK; ERR_UNSUPPORTED, with the construct in why, when PCRE2 has no equivalent;
 * ERR_NO_MEMORY. */
int pattern_translate(const char *pattern, size_t len, pattern_additions *additions,
                      struct buf *out, char *why, size_t why_cap) ERR_CHECKED;

#endif
