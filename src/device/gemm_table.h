/* SPDX-License-Identifier: Apache-2.0
 *
 * What was measured of matrix products on one kind of GPU: the algorithm of each shape.
 *
 * The file is text. Its head names the library's version and the GPU, since an algorithm is
 * good for these alone:
 *
 *   cublaslt 130100
 *   gpu NVIDIA H200
 *   bf16 256 6144 4096 22.9 42 0 ... 0
 *
 * A line behind the head is a product: kind, rows, outputs, inputs, microseconds when it was
 * measured, and the algorithm as eight hexadecimal words. '#' begins a remark. */
#ifndef QUIRE_DEVICE_GEMM_TABLE_H
#define QUIRE_DEVICE_GEMM_TABLE_H

#include <stdint.h>

#include "base/err.h"

#define GEMM_ENTRIES_MAX 4096
#define GEMM_ALGO_WORDS  8

/* What is multiplied with what: bf16 or e4m3, scales per row or per block; results are bf16, or
 * float32 where it says so. */
enum gemm_kind {
    GEMM_BF16,
    GEMM_BF16_FLOAT,
    GEMM_E4M3,
    GEMM_E4M3_FLOAT,
    GEMM_E4M3_BLOCK,
    GEMM_KINDS
};

struct gemm_entry {
    enum gemm_kind kind;
    int n, n_out, n_in;
    float us;
    uint64_t algo[GEMM_ALGO_WORDS]; /* the library's own; it means nothing to us */
};

struct gemm_table {
    long version; /* of the library */
    char gpu[64];
    int n_entries;
    struct gemm_entry entries[GEMM_ENTRIES_MAX];
};

const char *gemm_kind_name(enum gemm_kind kind);

/* NULL when the product was not measured. */
const struct gemm_entry *gemm_table_find(const struct gemm_table *t, enum gemm_kind kind, int n,
                                         int n_out, int n_in);

/* Add, or put in place of what stands there for the same product. ERR_LIMIT when it is full. */
int gemm_table_put(struct gemm_table *t, const struct gemm_entry *entry) ERR_CHECKED;

/* Read path into t, whose version and gpu say what is wanted. ERR_OK; ERR_NOT_FOUND (not logged)
 * when there is no such file; ERR_UNSUPPORTED for a file of another version or GPU, ERR_SYNTAX for
 * a line that is none, ERR_IO; logged. On an error t has no entries. */
int gemm_table_read(struct gemm_table *t, const char *path) ERR_CHECKED;

/* ERR_IO (logged). */
int gemm_table_write(const struct gemm_table *t, const char *path) ERR_CHECKED;

#endif
