/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps: the chain of actions of a normalizer or a pre-tokenizer, as read from JSON and before it
 * is written to an image. */
#ifndef QUIRE_TEXT_TOKENIZER_STEPS_H
#define QUIRE_TEXT_TOKENIZER_STEPS_H

#include <stdbool.h>
#include <stddef.h>

#include "text/tokenizer/image.h"

#define STEPS_MAX 16 /* the longest known chain has five */

struct step_draft {
    unsigned kind; /* an enum of the module that reads it */
    unsigned behavior;
    bool invert;
    const char *pattern; /* borrowed from the JSON tree or static; NULL: none */
    size_t pattern_len;
    const char *by; /* borrowed or static, like pattern */
    size_t by_len;
};

struct steps_draft {
    struct step_draft steps[STEPS_MAX];
    int n;
};

/* Append a zeroed step; NULL when there are too many. */
static inline struct step_draft *steps_add(struct steps_draft *draft, unsigned kind)
{
    if (draft->n == STEPS_MAX)
        return NULL;
    draft->steps[draft->n] = (struct step_draft){.kind = kind};
    return &draft->steps[draft->n++];
}

/* Get the steps of an image, borrowed from it; false when there are too many. */
static inline bool steps_of_image(struct steps_draft *draft, const struct image_header *image,
                                  enum image_section section)
{
    const struct image_step *from = image_table(image, section);
    const char *text = image_table(image, IMAGE_TEXT);
    size_t i;

    draft->n = 0;
    if (image_count(image, section) > STEPS_MAX)
        return false;
    for (i = 0; i < image_count(image, section); i++)
        draft->steps[draft->n++] = (struct step_draft){.kind = from[i].kind,
                                                       .behavior = from[i].behavior,
                                                       .invert = from[i].invert != 0,
                                                       .pattern = text + from[i].pattern.at,
                                                       .pattern_len = from[i].pattern.len,
                                                       .by = text + from[i].by.at,
                                                       .by_len = from[i].by.len};
    return true;
}

#endif
