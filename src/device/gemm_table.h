/* SPDX-License-Identifier: Apache-2.0
 *
 * A table of measured matrix products on one kind of GPU: the fastest algorithm of each shape.
 *
 * The file is text. Its head names the library's version and the GPU, because an algorithm is valid
 * for these alone:
 *
 *   cublaslt 130100
 *   gpu NVIDIA H200
 *   bf16 256 6144 4096 22.9 42 0 ... 0
 *
 * Each line after the head is a product: kind, rows, outputs, inputs, measured microseconds, and
 * the algorithm as eight hexadecimal words. '#' begins a comment. */
#ifndef QUIRE_DEVICE_GEMM_TABLE_H
#define QUIRE_DEVICE_GEMM_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"

#define GEMM_ENTRIES_MAX 4096
#define GEMM_ALGO_WORDS  8

/* Types of the factors and the result: bf16 or e4m3, with scales per row or per block; results are
 * bf16, or float32 in the _FLOAT kinds. */
enum gemm_kind {
    GEMM_BF16,
    GEMM_BF16_FLOAT,
    GEMM_E4M3,
    GEMM_E4M3_FLOAT,
    GEMM_E4M3_BLOCK,
    GEMM_KINDS
};

/* True if the cuda device multiplies with w: plain matrices, and e4m3 with multiples of 16 on both
 * sides and scales per row or per block of 128. */
bool gemm_takes(const struct k_matrix *w);

struct gemm_entry {
    enum gemm_kind kind;
    int n, n_out, n_in;
    float us;
    uint64_t algo[GEMM_ALGO_WORDS]; /* opaque to us */
};

struct gemm_table {
    long version; /* version of cuBLASLt */
    char gpu[64];
    int n_entries;
    struct gemm_entry entries[GEMM_ENTRIES_MAX];
};

const char *gemm_kind_name(enum gemm_kind kind);

/* The entry of a product, or NULL if it was not measured. */
const struct gemm_entry *gemm_table_find(const struct gemm_table *t, enum gemm_kind kind, int n,
                                         int n_out, int n_in);

/* Add an entry, or replace the one of the same product. ERR_LIMIT if the table is full. */
int gemm_table_put(struct gemm_table *t, const struct gemm_entry *entry) ERR_CHECKED;

/* Read path into t, whose version and gpu are set to the expected ones. ERR_OK; ERR_NOT_FOUND (not
 * logged) if there is no such file; ERR_UNSUPPORTED for a file of another version or GPU,
 * ERR_SYNTAX for a malformed line, ERR_IO; logged. On an error t has no entries. */
int gemm_table_read(struct gemm_table *t, const char *path) ERR_CHECKED;

/* ERR_IO (logged). */
int gemm_table_write(const struct gemm_table *t, const char *path) ERR_CHECKED;

#endif
