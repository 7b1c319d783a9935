/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer images in files, named by the digest of the files they were built from. They are
 * mapped read only and shared by processes, and are always written as a whole. */
#ifndef QUIRE_TEXT_TOKENIZER_IMAGE_FILE_H
#define QUIRE_TEXT_TOKENIZER_IMAGE_FILE_H

#include "text/tokenizer/image.h"

/* Map the image with these sources from folder dir, read only and shared between processes, until
 * image_unmap().
 *
 * Returns ERR_OK; ERR_NOT_FOUND when there is none; ERR_CORRUPT or ERR_VERSION when image_check()
 * reports it; ERR_CORRUPT also when another user owns or may write the file; ERR_IO. why gets the
 * reason for all but ERR_NOT_FOUND. */
int image_map(struct image_header **out, const char *dir, const struct hash *sources, char *why,
              size_t why_cap) ERR_CHECKED;
void image_unmap(struct image_header *image);

/* Write an image into folder dir under the name that image_map() looks for. It is written to a
 * temporary file, which is then renamed: processes that map the previous file keep it.
 * ERR_IO with the reason in why; ERR_NO_MEMORY. */
int image_write(const struct image_header *image, const char *dir, char *why,
                size_t why_cap) ERR_CHECKED;

#endif
