/* A whole file as bytes: how the files of a model folder are read. */
#ifndef QUIRE_TEXT_FILE_H
#define QUIRE_TEXT_FILE_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"

/* Append the file dir/name (name alone when dir is NULL) to out.
 *
 * Returns ERR_OK; ERR_NOT_FOUND when there is no such file; ERR_IO, ERR_LIMIT (above limit bytes)
 * and ERR_NO_MEMORY, with the reason in why. */
int file_read(struct buf *out, const char *dir, const char *name, size_t limit, char *why,
              size_t why_cap) ERR_CHECKED;

/* Fold the contents of the file dir/name into a digest, of which no part stays in memory: the same
 * as file_fold() of all its bytes. ERR_NOT_FOUND, ERR_IO, ERR_LIMIT and ERR_NO_MEMORY as above. */
int file_digest(struct hash *hash, const char *dir, const char *name, size_t limit, char *why,
                size_t why_cap) ERR_CHECKED;

/* h = digest of h and of each piece of the bytes in turn, then of their number. */
void file_fold(struct hash *hash, const char *bytes, size_t len);

#endif
