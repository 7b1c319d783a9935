/* Steps: what a normalizer or a pre-tokenizer does one after the other, as it is read from JSON
 * and before it stands in an image. */
#ifndef QUIRE_TEXT_TOKENIZER_STEPS_H
#define QUIRE_TEXT_TOKENIZER_STEPS_H

#include <stdbool.h>
#include <stddef.h>

#include "text/tokenizer/image.h"

#define STEPS_MAX 16 /* the longest known chain has five */

struct step_draft {
    unsigned kind; /* of the module that reads it */
    unsigned behavior;
    bool invert;
    const char *pattern; /* borrowed from the JSON tree or static; NULL: none */
    size_t pattern_len;
    const char *by; /* the same */
    size_t by_len;
};

struct steps_draft {
    struct step_draft steps[STEPS_MAX];
    int n;
};

/* The next step, zeroed; NULL when there are too many. */
static inline struct step_draft *steps_add(struct steps_draft *draft, unsigned kind)
{
    if (draft->n == STEPS_MAX)
        return NULL;
    draft->steps[draft->n] = (struct step_draft){.kind = kind};
    return &draft->steps[draft->n++];
}

/* The steps that stand in an image, borrowed from it; false when they are too many. */
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
