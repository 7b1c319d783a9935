/* SPDX-License-Identifier: Apache-2.0
 *
 * The text files of a model's folder, made from a GGUF file: tokenizer.json, tokenizer_config.json
 * and generation_config.json. So a GGUF file can stand wherever a folder is read. */
#ifndef QUIRE_TEXT_GGUF_FOLDER_H
#define QUIRE_TEXT_GGUF_FOLDER_H

#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"

/* Append the file `name` of the folder that the GGUF file at `path` stands for.
 *
 * Returns ERR_OK; ERR_NOT_FOUND for other names, and for a file without a tokenizer; ERR_CORRUPT,
 * ERR_UNSUPPORTED for a kind of tokenizer that quire does not know, ERR_IO, ERR_NO_MEMORY; `why`
 * gets the path and the reason. A vocabulary of 128,000 tokens takes about 50 ms. Any thread. */
int gguf_folder_read(struct buf *out, const char *path, const char *name, char *why,
                     size_t why_cap) ERR_CHECKED;

#endif
