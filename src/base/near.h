/* SPDX-License-Identifier: Apache-2.0
 *
 * The name that was probably meant by a mistyped one. */
#ifndef QUIRE_BASE_NEAR_H
#define QUIRE_BASE_NEAR_H

#define NEAR_MAX 80 /* bytes of a name */

/* Edits between two names: bytes that are inserted, deleted or replaced, and neighbours that change
 * places; "-" and "_" are equal. Of longer names the first NEAR_MAX bytes count. Some len * len
 * additions. */
int near_distance(const char *a, const char *b);

/* The best of the names that near_try() has seen. Begin with the word and zeros. */
struct near {
    const char *word;
    const char *name; /* the most alike, borrowed from near_try(); NULL: none is alike */
    int distance;
};

/* Keep this name if it is more like the word than those before. A name with more edits than a third
 * of the word's bytes, or a longer one than NEAR_MAX, is not like it. */
void near_try(struct near *near, const char *name);

#endif
