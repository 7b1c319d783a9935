/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the files of a model folder (tokenizer, template, configuration): whole files into memory,
 * or only their digest. Any thread; blocks on the disk. */
#ifndef QUIRE_TEXT_FILE_H
#define QUIRE_TEXT_FILE_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"

/* Append the contents of the file dir/name (of name alone when dir is NULL) to out. If dir is a
 * GGUF file, the contents are made from it (gguf_folder.h).
 *
 *   limit  largest accepted size in bytes
 *   why    out on error: one sentence with the path and the reason
 *
 * Returns ERR_OK; ERR_NOT_FOUND when there is no such file; ERR_IO, ERR_LIMIT (above limit bytes)
 * and ERR_NO_MEMORY. */
int file_read(struct buf *out, const char *dir, const char *name, size_t limit, char *why,
              size_t why_cap) ERR_CHECKED;

/* Fold the contents of the file dir/name into a digest without keeping them in memory. The digest
 * is that of file_fold() over all bytes of the file. Errors are those of file_read(). */
int file_digest(struct hash *hash, const char *dir, const char *name, size_t limit, char *why,
                size_t why_cap) ERR_CHECKED;

/* Fold len bytes into a digest: hash = SHA-256 of hash and a piece, for each piece of 64 KiB in
 * turn, and at the end for the length, so that two files never fold like one joined file. */
void file_fold(struct hash *hash, const char *bytes, size_t len);

#endif
