/* SPDX-License-Identifier: Apache-2.0
 *
 * Added tokens, such as "<|im_start|>": strings that are found in a text before it is normalized
 * and cut into pieces, and that become one token as they are. */
#ifndef QUIRE_TEXT_TOKENIZER_ADDED_H
#define QUIRE_TEXT_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer/image.h"

/* A set of added tokens that are searched for together. The tables belong to an image. */
struct added_set {
    const struct image_added *tokens; /* sorted by text */
    const char *text;
    size_t n;
    bool begins[256];    /* begins[c]: some token begins with byte c */
    uint32_t first[257]; /* tokens that begin with byte c: first[c] .. first[c + 1] - 1 */
};

/* Point set at one of an image's two lists. section: IMAGE_RAW or IMAGE_NORMAL. */
void added_attach(struct added_set *set, const struct image_header *image,
                  enum image_section section);

/* The order of the tokens in an image: by text, then by id. Like strcmp(). */
int added_compare(const char *a, size_t a_len, int32_t a_id, const char *b, size_t b_len,
                  int32_t b_id);

struct added_match {
    size_t start; /* of the token with the white space it absorbs */
    size_t stop;
    int32_t id;
};

/* Decides which tokens may match where. NULL: all tokens match everywhere. */
struct added_judge {
    bool (*allows)(void *context, int32_t id, size_t start, size_t stop);
    void *context;
};

/* A search through a text. */
struct added_search {
    const struct added_set *set;
    const char *text; /* valid UTF-8 */
    size_t len;
    size_t from;                     /* byte to continue at; added_next() advances it */
    size_t after;                    /* end of the previous match: lstrip absorbs no white space
                                        before it; set by the caller */
    const struct added_judge *judge; /* a token that it does not allow is treated as absent */
};

/* Find the next token: the leftmost, and at one place the longest. False when there is none. */
bool added_next(struct added_search *s, struct added_match *match);

#endif
