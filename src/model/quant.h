/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices in formats of their own: how config.json names a format, which tensors of a checkpoint
 * belong to it, and how their bytes become weights. quant.c has a row for each; the loader knows
 * none of them by name.
 *
 * Computing is done on the host, in float32: for devices, or shapes, that do not multiply with a
 * format. */
#ifndef QUIRE_MODEL_QUANT_H
#define QUIRE_MODEL_QUANT_H

#include "base/err.h"
#include "base/json.h"
#include "kernels/kernels.h"
#include "model/safetensors.h"

#define QUANT_NAMES_MAX 3
#define QUANT_WHY_CAP   600 /* for a sentence */

struct quant_reading; /* quant.c */

/* A format in checkpoints. Names of tensors are endings, in place of "weight". Scales, zero points
 * and the global scale are F32, BF16, F16 or F8_E8M0, and multiply as k_format says. */
struct quant_format {
    const char *method;                 /* quant_method of quantization_config */
    const char *names[QUANT_NAMES_MAX]; /* its `format` is one of these, the first where there is
                                         * none; empty: it is not read */
    /* Read the rest of quantization_config. */
    void (*read)(struct quant_reading *r, const struct json *config);
    const char *data;                    /* [rows][columns / packed] */
    const char *dtype;                   /* of data, by which the format is known */
    const char *scales[QUANT_NAMES_MAX]; /* the first of these that is there */
    const char *zeros;                   /* of the scales' shape; NULL: there are none */
    const char *global;                  /* one number; NULL: there is none */
    const char *x_scale;                 /* one number, for inputs; it may be missing */
    int packed;                          /* elements in a number of data */
    enum k_type elem;                    /* in memory */
    /* Make n bytes of whole rows elements, in place; NULL: they are elements. Any thread. */
    void (*unpack)(void *bytes, size_t n);
};

/* The format of layers' matrices by quantization_config. */
struct quant_config {
    const struct quant_format *kind; /* NULL: nothing */
    struct k_format format;          /* unless a tensor has one scale for all */
};

/* Numbers beside a tensor of weights, one for each group of its elements. */
struct quant_scales {
    const struct tensor *t; /* F32, BF16, F16 or F8_E8M0 */
    int n_rows, n_cols;     /* 1 x 1: one for all */
    int group_rows, group_cols;
};

/* A matrix, or a part of one, as a checkpoint has it. */
struct quant_part {
    const struct tensor *data;
    const struct quant_format *kind; /* NULL: plain numbers; nothing below is set */
    struct k_format format;          /* in memory: float32 scales, by row or in groups */
    struct quant_scales scales;
    struct quant_scales zeros, global; /* t is NULL where the format has none */
    int cols;
};

/* Read a quantization_config. Modules that it leaves as they were need no reading: their tensors'
 * types say it. ERR_UNSUPPORTED, and why. */
int quant_read(struct quant_config *out, const struct json *config, char *why,
               size_t why_cap) ERR_CHECKED;

/* Find the tensors of a matrix [rows][cols], whose names begin with stem and a dot. A tensor whose
 * format config does not name is known by its type. ERR_NOT_FOUND for a missing tensor, ERR_INVALID
 * for another shape, ERR_UNSUPPORTED for another type of scales; why says it, with the tensor's
 * file and name. */
int quant_find(struct quant_part *out, const struct checkpoint *files,
               const struct quant_config *config, const char *stem, int rows, int cols, char *why,
               size_t why_cap) ERR_CHECKED;

/* The scale of an element, without the global one. */
float quant_scale(const struct quant_scales *s, int row, int col);

/* The number of a tensor that has one. ERR_INVALID for another shape, ERR_UNSUPPORTED for a type
 * that scales do not have. */
int quant_single(float *out, const struct tensor *t) ERR_CHECKED;

/* Element i of a tensor of one of the types above. */
float quant_number(const struct tensor *t, size_t i);

/* out [n][cols] = the weights of rows first .. first + n - 1 of a part with a kind; bytes are these
 * rows of its data, unpacked. ERR_NO_MEMORY. Any thread. */
int quant_dequantise(float *out, const struct quant_part *p, void *bytes, int first,
                     int n) ERR_CHECKED;

/* out [n][cols] = rows first .. first + n - 1 of a BF16, F16 or F32 tensor as they are after
 * rounding to e4m3 with a scale a row. ERR_NO_MEMORY. Any thread. */
int quant_round(float *out, const struct tensor *weight, int first, int n, int cols) ERR_CHECKED;

/* A format in words, for the log: "e4m3 with a scale for each 128 x 128". */
void quant_text(char *out, size_t cap, const struct k_format *f);

#endif
