/* SPDX-License-Identifier: Apache-2.0
 *
 * The name that somebody may have meant. */
#ifndef QUIRE_TOOLS_NEAR_H
#define QUIRE_TOOLS_NEAR_H

#define NEAR_MAX 63 /* bytes of a name; longer ones are like no other */

/* The best of the names that near_try() has seen. Begin with the word and zeros. */
struct near {
    const char *word;
    const char *name; /* the most alike, borrowed from near_try(); NULL: none is alike */
    int distance;     /* bytes that are put in, left out or changed, and neighbours that changed
                       * places; "-" is "_" */
};

/* Is this name more like the word than those before? A name that differs in more than a third of
 * the word's bytes is not like it. Some len * len additions. */
void near_try(struct near *near, const char *name);

#endif
