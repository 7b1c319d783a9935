/* Images in files: found by the digest of what they were made of, mapped, written whole. */
#ifndef QUIRE_TEXT_TOKENIZER_IMAGE_FILE_H
#define QUIRE_TEXT_TOKENIZER_IMAGE_FILE_H

#include "text/tokenizer/image.h"

/* Map the image of these sources that stands in folder dir, read only, shared with every process
 * that maps it, until image_unmap().
 *
 * ERR_NOT_FOUND when there is none; ERR_CORRUPT or ERR_VERSION (image_check()), and for a file
 * that another user owns or may write, with the reason in why; ERR_IO. */
int image_map(struct image_header **out, const char *dir, const struct hash *sources, char *why,
              size_t why_cap) ERR_CHECKED;
void image_unmap(struct image_header *image);

/* Write an image into folder dir under the name that image_map() looks for: into a file of its
 * own, which then takes the name's place at once. The old file stays valid for those who map it.
 * ERR_IO with the reason in why; ERR_NO_MEMORY. */
int image_write(const struct image_header *image, const char *dir, char *why,
                size_t why_cap) ERR_CHECKED;

#endif
