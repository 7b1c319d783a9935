/* SPDX-License-Identifier: Apache-2.0
 *
 * A LoRA adapter as PEFT saves it: a folder with adapter_config.json and adapter_model.safetensors
 * (or adapter_model.bin), read into host memory. It knows nothing of a model; adapters.h fits it to
 * one. */
#ifndef QUIRE_MODEL_ADAPTER_H
#define QUIRE_MODEL_ADAPTER_H

#include <stddef.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/safetensors.h"

#define ADAPTER_WHY_CAP  400
#define ADAPTER_RANK_MAX 256

/* The two matrices of one module: y += scale * b (a x). */
struct adapter_pair {
    const char *module;         /* its name in the model, "model.layers.0.self_attn.q_proj" */
    const struct tensor *a, *b; /* [rank][n_in], [n_out][rank] */
    int rank;
    float scale;
};

struct adapter;

/* Read a folder whole; `rank_max`: the highest rank that is taken.
 *
 * ERR_NOT_FOUND (no such folder or file), ERR_SYNTAX, ERR_INVALID, ERR_CORRUPT, ERR_UNSUPPORTED (an
 * adapter of another kind), ERR_IO, ERR_NO_MEMORY: `why` receives one line. Any thread that may
 * allocate. */
int adapter_open(struct adapter **out, const char *dir, int rank_max, char *why,
                 size_t why_cap) ERR_CHECKED;
void adapter_close(struct adapter *a); /* NULL is fine */

/* Of configuration and matrices: equal adapters have equal ones, whatever their names. */
struct hash adapter_digest(const struct adapter *a);

size_t adapter_bytes(const struct adapter *a); /* of host memory */
int adapter_rank(const struct adapter *a);     /* the highest of its pairs */

/* Memory of mem_alloc() that a model has prepared for one of its GPUs, below ADAPTER_IMAGES; the
 * adapter frees it. NULL: none yet. */
#define ADAPTER_IMAGES 128
void *adapter_image(const struct adapter *a, int idx);
void adapter_keep_image(struct adapter *a, int idx, void *image, size_t n_bytes);

/* Pair i in the order of names. */
size_t adapter_n_pairs(const struct adapter *a);
const struct adapter_pair *adapter_pair(const struct adapter *a, size_t i);

/* Numbers at .. at + n - 1 of a matrix as float32. */
void adapter_numbers(const struct tensor *t, size_t at, float *to, size_t n);

/* The same as bfloat16: to nearest, ties to even; NaN stays NaN. Such a matrix is copied. */
void adapter_bf16(const struct tensor *t, size_t at, uint16_t *to, size_t n);

#endif
