/* A whole file as bytes: how the files of a model folder are read. */
#ifndef QUIRE_TEXT_FILE_H
#define QUIRE_TEXT_FILE_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

/* Append the file dir/name (name alone when dir is NULL) to out.
 *
 * Returns ERR_OK; ERR_NOT_FOUND when there is no such file; ERR_IO, ERR_LIMIT (above limit bytes)
 * and ERR_NO_MEMORY, with the reason in why. */
int file_read(struct buf *out, const char *dir, const char *name, size_t limit, char *why,
              size_t why_cap) ERR_CHECKED;

#endif
