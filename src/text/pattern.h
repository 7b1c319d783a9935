/* Patterns: a regular expression as Oniguruma reads it, rewritten for PCRE2. */
#ifndef QUIRE_TEXT_PATTERN_H
#define QUIRE_TEXT_PATTERN_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

/* Appends the characters that have a property (the name inside \p{}) in Unicode 16.0 and lack it
 * in PCRE2's tables, as members of a class; nothing for a name it does not know. */
typedef void pattern_additions(const char *name, size_t len, struct buf *out);

/* Append the pattern rewritten:
 *
 *   \s, \S        without U+180E, which PCRE2 counts in
 *   \p{X}         with the characters of `additions`
 *   \p{Han}       the script, not its extensions
 *   [a[b]], [a&&[^b]]  a class in a class, one deep: union and intersection
 *
 * ERR_UNSUPPORTED with the reason for what PCRE2 cannot say; ERR_NO_MEMORY. */
int pattern_translate(const char *pattern, size_t len, pattern_additions *additions,
                      struct buf *out, char *why, size_t why_cap) ERR_CHECKED;

#endif
