/* SPDX-License-Identifier: Apache-2.0
 *
 * For the loader*.c files only: the destination of a tensor's bytes, which loader.c decides, and
 * their placement, which loader_place.c carries out while they are read. */
#ifndef QUIRE_MODEL_LOADER_PARTS_H
#define QUIRE_MODEL_LOADER_PARTS_H

#include "model/loader.h"
#include "model/quant.h"
#include "model/safetensors.h"

#define RANDOM_SCALE 0.02f /* deviation of random matrices; models are initialised with it */

/* The treatment of a tensor's bytes. All but the first end in device memory. */
enum use_of_bytes {
    BYTES_SUMMED,    /* only hashed: the host has used them already, or this rank has no part */
    BYTES_FILLED,    /* numbers of a file's type, converted to the device's by the pipe */
    BYTES_COPIED,    /* elements of a format that the device takes, copied as they are */
    BYTES_ROUNDED,   /* numbers of a file's type, rounded on the device to a format */
    BYTES_CONVERTED, /* dequantised, or rounded as if quantised, by the host; stored in the
                      * device's type */
    BYTES_QUANTISED, /* dequantised by the host and rounded to e4m3, with a scale per row */
    BYTES_RAISED,    /* numbers of a file's type plus 1, in the device's type */
    BYTES_WIDENED,   /* as BYTES_CONVERTED or plain, into a slice with room */
    BYTES_TURNED,    /* the tensor is the transpose of the matrix */
    BYTES_PACKED,    /* codes that go into records, with their scales, when all have come; or plain
                      * numbers that are rounded to bytes by row */
};

/* The destination of a tensor on one rank. */
struct target {
    enum use_of_bytes use;
    enum device_type type;  /* of plain numbers */
    struct quant_part part; /* of a matrix */
    struct k_format packed; /* BYTES_PACKED: of the matrix; BYTES_CONVERTED without a kind: what it
                             * is rounded to */
    struct slice slice;     /* of a vector: rows of one number */
    bool is_bf16; /* BYTES_TURNED: dst holds bf16 (K_BF16_KEPT), else numbers of the device */
    void *dst;
    size_t at;     /* element of dst; for BYTES_COPIED and BYTES_PACKED a byte */
    float *scales; /* of the rows, from the target's first: of BYTES_ROUNDED, BYTES_QUANTISED, bytes
                    * by row, and codes in the order of a row */
    float *zeros;  /* of such codes, likewise; NULL: they have none */
    float *turned; /* BYTES_TURNED, leader only: the whole matrix, gathered while its tensor is
                    * read */
    uint8_t *whole; /* likewise, the bytes of a tensor that is converted as a whole */
};

/* A tensor that is a matrix, or the part of one. */
struct part {
    const char *pattern;
    struct quant_part q;
    int expert;            /* whose tensor it is; -1: of no expert */
    size_t item;           /* in the list */
    struct slice slice;    /* without rows if this rank has no part of it */
    enum device_type type; /* of plain numbers */
    bool is_turned;        /* the tensor is [columns][rows] */
};

/* Scales of a matrix by its format. */
size_t loader_n_scales(const struct k_matrix *m);

/* loader_random.c. Fill a matrix with random elements, and dev_scales with scales that make
 * quantised ones as large as plain ones. Errors are kept in l. */
void loader_fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales,
                        const struct part *parts, int n_parts);

/* The target of a tensor of the list on a rank. */
struct target *loader_target_of(const struct loader *l, size_t item, int rank);

/* The target of the first rank that has a part of it, which describes the tensor for all such ranks
 * except for dst, at and slice; rank 0's if none has. */
struct target *loader_leader(const struct loader *l, size_t item);

/* Bytes of n elements of one row in a file, packed formats included. */
size_t loader_elem_bytes(const struct target *to, int n);

/* A tensor whose rows are not the matrix's is converted when all of it has come. */
bool loader_is_gathered(const struct target *to);

/* Bytes of one row of the tensor in the file; 0 if it is gathered. */
size_t loader_row_bytes(const struct target *to);

/* --- of loader.c, for loader_experts.c --- */

/* Constant memory of the current rank; NULL after an error. */
void *loader_allocate(struct loader *l, size_t bytes);

/* The name of the current layer's tensor whose pattern is a whole name. */
void loader_whole_name(const struct loader *l, char *out, size_t cap, const char *whole);

/* Set the type of a tensor of plain numbers; l->rc is an error if it has another type. */
void loader_check_type(struct loader *l, const struct tensor *t, enum device_type *type);

/* List the tensors of a part that has been found. */
void loader_list_part(struct loader *l, struct part *p);

/* The tensor of loader_numbers(); NULL (logged) if it is missing or has another shape or type. */
const struct tensor *loader_find_numbers(struct loader *l, const char *whole, int rows, int cols);

/* The shape of a vector with one number per row of a tensor. */
struct slice_shape loader_row_shape(const struct slice_shape *shape);

/* Set the current rank's target of a tensor of the list. */
void loader_list_target(struct loader *l, size_t item, const struct target *to);

/* --- of loader_experts.c --- */

/* Give a matrix of experts in k_format_mxfp4() its memory, and list what goes there; a random one
 * is filled at once. Slices of parts may change. */
void loader_fill_mxfp4(struct loader *l, struct k_matrix *m, struct part *parts, int n_parts,
                       const struct loader_tensors *all);

/* Arrange the matrices that have been read, on their devices. */
int loader_arrange(struct loader *l) ERR_CHECKED;

/* Find a part that is an expert's in the tensor, or in the blocks and scales, of all n experts of
 * the layer, and list it. Errors are in l->rc. */
void loader_find_in_one(struct loader *l, struct part *p, int n);

/* --- of loader_packed.c --- */

/* Are all parts bytes with a sign and one scale for each row, which a device may hold as they are?
 * Then *out is their format, k_format_by_row(K_INT8). */
bool loader_has_bytes(const struct loader *l, const struct part *parts, int n_parts,
                      enum loader_use use, struct k_format *out);

/* The format that all parts of a matrix have in a config that names each matrix's (quant_mix). */
enum quant_mixed loader_mixed(const struct loader *l, const struct part *parts, int n_parts);

/* Can the parts form a packed matrix without conversion? Then *out is its format. Without files:
 * the format of random weights. */
bool loader_packs(const struct loader *l, const struct part *parts, int n_parts,
                  enum loader_use use, struct k_format *out);

/* Can the parts form a matrix of codes in the order of a row (k_format_coded())? Then *out is its
 * format. Experts may. */
bool loader_codes(const struct loader *l, const struct part *parts, int n_parts,
                  enum loader_use use, struct k_format *out);

/* All of a tensor's data for the ranks that pack it. */
int loader_pack(struct loader *l, size_t idx, const uint8_t *bytes) ERR_CHECKED;

/* --- of loader_place.c --- */

/* The reader's place(): context is the loader. */
int loader_place_bytes(void *context, size_t idx, struct device_pipe *pipe, size_t at,
                       size_t bytes);

#endif
