/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors files: names, types, shapes and bytes of a checkpoint's tensors.
 *
 * A file is hostile until its header has been checked: every tensor lies inside the file, has the
 * bytes its shape says, overlaps no other, and none leaves a hole. */
#ifndef QUIRE_MODEL_SAFETENSORS_H
#define QUIRE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define TENSOR_DIMS_MAX 8

struct tensor {
    const char *name;  /* NUL-terminated; lives as long as the arena or checkpoint */
    const char *dtype; /* as in the file: "BF16", "F32", ... */
    int n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    const uint8_t *data; /* perhaps unaligned, little-endian, last index fastest */
    size_t bytes;
    int file; /* of the checkpoint's; for messages */
};

/* Check a whole file's bytes and list its tensors in the order of their data.
 *
 * Returns ERR_OK; ERR_CORRUPT when the file breaks a rule, ERR_UNSUPPORTED for a tensor of
 * sub-byte type or more than TENSOR_DIMS_MAX dimensions (why says which and where),
 * ERR_NO_MEMORY. *out lives in the arena, data points into bytes. */
int safetensors_parse(struct tensor **out, size_t *n, struct arena *arena, const uint8_t *bytes,
                      size_t len, char *why, size_t why_cap) ERR_CHECKED;

/* All tensors of a folder: model.safetensors.index.json and the files it names, else
 * model.safetensors. */
struct checkpoint;

/* Errors as safetensors_parse(), ERR_NOT_FOUND for a missing file, ERR_SYNTAX for a broken index,
 * ERR_IO; logged. Files are mapped, not read: while a checkpoint is open they must not be
 * truncated (a reader of lost bytes is ended by SIGBUS). */
int checkpoint_open(struct checkpoint **out, const char *dir) ERR_CHECKED;
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

/* By name; NULL when there is none. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* Copy bytes at .. at + n - 1 of a tensor from its file. ERR_IO, or ERR_CORRUPT when the file has
 * become shorter; logged. Any thread. */
int checkpoint_read(const struct checkpoint *c, const struct tensor *t, size_t at, void *to,
                    size_t n) ERR_CHECKED;

/* The path of the file that a tensor came from. */
const char *checkpoint_path(const struct checkpoint *c, const struct tensor *t);

#endif
