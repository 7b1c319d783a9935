/* SPDX-License-Identifier: Apache-2.0
 *
 * quire quantize, in three parts: quantize_plan.c decides what becomes of each tensor and which
 * file it goes to, quantize_write.c rounds matrices and writes the files, quire_quantize.c is the
 * command. The result is a checkpoint of compressed-tensors' layout. */
#ifndef QUIRE_TOOLS_QUANTIZE_H
#define QUIRE_TOOLS_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/quant_round.h"
#include "model/safetensors.h"
#include "tools/calibrate.h"

#define QUANTIZE_PATH_CAP   4096
#define QUANTIZE_PARTS      4                 /* tensors that a matrix becomes */
#define QUANTIZE_FILE_BYTES ((size_t)4 << 30) /* a file ends after the tensor that fills it */

/* A tensor of the result. */
struct quantize_part {
    const char *name;
    const char *dtype;
    int n_dims;
    int64_t dims[TENSOR_DIMS_MAX];
    size_t bytes;
};

/* A tensor of the source. Matrices of layers are rounded, all others copied. */
struct quantize_item {
    const struct tensor *t;
    bool is_rounded;
    struct round_format format;
    struct quantize_part parts[QUANTIZE_PARTS]; /* 1 if copied; codes, scales, and further ones */
    int n_parts;
    int layer; /* -1: of none */
    int file;
};

struct quantize {
    const char *folder, *out; /* source, result */
    enum round_kind kind;
    const char *kind_name;
    int group;                       /* of int4 */
    int n_threads;                   /* 0: one per core */
    struct pool *pool;               /* of calibration; NULL without */
    struct calibration *calibration; /* NULL: rounding to nearest */
    struct arena arena;
    struct checkpoint *source;
    struct quantize_item *items; /* [n_items], by layer */
    size_t n_items, n_rounded;
    int n_files;
    size_t bytes_before, bytes_after;
    struct buf config; /* config.json of the result */
    struct buf index;  /* model.safetensors.index.json */
};

/* Decide about all tensors of q->folder. ERR_UNSUPPORTED, with a line on stderr, for a checkpoint
 * that is quantised already, or without matrices that can be rounded. */
int quantize_plan(struct quantize *q) ERR_CHECKED;

/* Name of file i of the result, in out [cap]. */
void quantize_file_name(const struct quantize *q, int file, char *out, size_t cap);

/* Write all files that are not there yet, and print a line per layer. A file gets its name when it
 * is complete, so a run that was killed goes on where it stopped. */
int quantize_write(struct quantize *q) ERR_CHECKED;

#endif
