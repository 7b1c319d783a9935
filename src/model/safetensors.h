/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors files: names, types, shapes and bytes of a checkpoint's tensors.
 *
 * A file is not trusted until its header has been checked: every tensor lies inside the file, has
 * the bytes that its shape implies, overlaps no other, and leaves no hole. */
#ifndef QUIRE_MODEL_SAFETENSORS_H
#define QUIRE_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#define TENSOR_DIMS_MAX 8

struct tensor {
    const char *name;  /* NUL-terminated; lives as long as the arena or checkpoint */
    const char *dtype; /* as in the file: "BF16", "F32", ...; of GGUF files also "Q4_K", ... */
    int n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    const uint8_t *data; /* possibly unaligned, little-endian, last index fastest */
    size_t bytes;
    int file; /* index of the file in the checkpoint */
};

/* The tensors of one file. */
struct tensor_list {
    struct tensor *tensors; /* [n] */
    size_t n;
};

/* Check a whole file's bytes and list its tensors in the order of their data.
 *
 * Returns ERR_OK; ERR_CORRUPT if the file breaks a rule, ERR_UNSUPPORTED for a tensor of sub-byte
 * type or more than TENSOR_DIMS_MAX dimensions (`why` receives the rule and the tensor),
 * ERR_NO_MEMORY. out->tensors is in the arena, data points into bytes. */
int safetensors_parse(struct tensor_list *out, struct arena *arena, const uint8_t *bytes,
                      size_t len, char *why, size_t why_cap) ERR_CHECKED;

/* All tensors of a folder: the files named in model.safetensors.index.json, or model.safetensors
 * without an index, or else pytorch_model.bin and its index (torch_zip.h); or those of a GGUF file,
 * and of the files of its set. */
struct checkpoint;

/* Errors as safetensors_parse(), ERR_NOT_FOUND for a missing file, ERR_SYNTAX for a broken index,
 * ERR_IO; logged. Files are mapped, not read: they must not be truncated while a checkpoint is open
 * (reading lost bytes of a mapping raises SIGBUS). */
int checkpoint_open(struct checkpoint **out, const char *dir) ERR_CHECKED;
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

/* The tensor of a name; NULL if there is none. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name);

/* Tensor i in the order of names, 0 <= i < checkpoint_size(). */
size_t checkpoint_size(const struct checkpoint *c);
const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);

/* Copy bytes at .. at + n - 1 of a tensor from its file. ERR_IO, or ERR_CORRUPT when the file has
 * become shorter; logged. Any thread. */
int checkpoint_read(const struct checkpoint *c, const struct tensor *t, size_t at, void *to,
                    size_t n) ERR_CHECKED;

/* The path of the file that a tensor came from. */
const char *checkpoint_path(const struct checkpoint *c, const struct tensor *t);

#endif
