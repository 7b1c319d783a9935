/* Added tokens: contents that are found in a text before anything else is done with it. */
#ifndef QUIRE_TEXT_TOKENIZER_ADDED_H
#define QUIRE_TEXT_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer/image.h"

/* A set that is searched in one go; borrowed from an image. */
struct added_set {
    const struct image_added *tokens; /* sorted by text */
    const char *text;
    size_t n;
    bool begins[256];    /* whether one begins with byte c */
    uint32_t first[257]; /* tokens that begin with byte c: first[c] .. first[c + 1] - 1 */
};

/* section: IMAGE_RAW or IMAGE_NORMAL. */
void added_attach(struct added_set *set, const struct image_header *image,
                  enum image_section section);

/* The order in which an image has them: by text, then by id. */
int added_compare(const char *a, size_t a_len, int32_t a_id, const char *b, size_t b_len,
                  int32_t b_id);

struct added_match {
    size_t start; /* the token's place with the white space it takes; may begin before `after` */
    size_t stop;
    int32_t id;
};

/* A say in which tokens may be found where; NULL stands for all, everywhere. */
struct added_judge {
    bool (*allows)(void *context, int32_t id, size_t start, size_t stop);
    void *context;
};

/* A search through a text. */
struct added_search {
    const struct added_set *set;
    const char *text; /* valid UTF-8 */
    size_t len;
    size_t from;                     /* where it goes on */
    size_t after;                    /* end of the previous match: lstrip takes no white space
                                        before it; the caller's to set */
    const struct added_judge *judge; /* tokens that it does not allow count as if there were none
                                        such */
};

/* Find the next token: leftmost, of those at one place the longest. False when there is none. */
bool added_next(struct added_search *s, struct added_match *match);

#endif
