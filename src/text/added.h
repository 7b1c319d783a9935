/* Added tokens: contents that are found in a text before anything else is done with it. */
#ifndef QUIRE_TEXT_ADDED_H
#define QUIRE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct added_token {
    const char *text; /* what is looked for; borrowed from the arena of whoever adds */
    size_t len;
    int32_t id;
    bool single_word; /* not inside a longer word */
    bool lstrip;      /* takes the white space before it along */
    bool rstrip;      /* and after it */
};

/* A set that is searched in one go. Start from {0}. */
struct added_set {
    struct added_token *tokens; /* sorted by text after added_sort() */
    size_t n;
    size_t cap;
    uint32_t first[257]; /* tokens that begin with byte c: first[c] .. first[c + 1] - 1 */
};

void added_fini(struct added_set *set);
int added_add(struct added_set *set, const struct added_token *token) ERR_CHECKED;
void added_sort(struct added_set *set); /* after the last added_add() */

struct added_match {
    size_t start; /* the token's place with the white space it takes; may begin before `after` */
    size_t stop;
    int32_t id;
};

/* Find the next token.
 *
 *   from    where the search begins; updated to where it goes on
 *   after   end of the previous match: lstrip takes no white space before it
 *
 * Leftmost, of those at one place the longest. False when there is none. */
bool added_next(const struct added_set *set, const char *text, size_t len, size_t *from,
                size_t after, struct added_match *match);

#endif
