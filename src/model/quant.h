/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices in quantised formats: how config.json names a format, which tensors of a checkpoint
 * belong to a matrix, and how their bytes become weights. quant.c has a row per format; the loader
 * knows none of them by name.
 *
 * Conversions run on the host, in float32, for devices or shapes that do not multiply with a
 * format. */
#ifndef QUIRE_MODEL_QUANT_H
#define QUIRE_MODEL_QUANT_H

#include "base/err.h"
#include "base/json.h"
#include "kernels/kernels.h"
#include "kernels/packed.h"
#include "model/safetensors.h"

#define QUANT_NAMES_MAX  3
#define QUANT_BESIDE_MAX 6
#define QUANT_GROUPS_MAX 8   /* sizes of groups that a config may name; more are not checked */
#define QUANT_WHY_CAP    600 /* for a sentence */

struct quant_reading; /* quant.c */
struct quant_search;  /* quant_parts.h */
struct quant_codes;
struct quant_floats;
struct quant_part;

/* A format in checkpoints. Names of tensors are endings that replace "weight". Scales, zero points
 * and the global scale are F32, BF16, F16 or F8_E8M0, and are applied as k_format describes. */
struct quant_format {
    const char *method;                 /* quant_method of quantization_config; NULL: none, the
                                         * format is recognised by the type of data */
    const char *name_key;               /* the member that names the format; NULL: "format" */
    const char *names[QUANT_NAMES_MAX]; /* its accepted values, in any case; the first is meant
                                         * where it is missing; empty: it is not read */
    /* Read the rest of quantization_config. */
    void (*read)(struct quant_reading *r, const struct json *config);
    const char *data;                    /* [rows][columns / packed] */
    const char *dtype;                   /* type of data, by which the format is recognised */
    const char *scales[QUANT_NAMES_MAX]; /* names of the scales; the first that exists is used;
                                          * none: they are inside of blocks (kernels/format.h) */
    const char *zeros;                   /* zero points, in the shape of the scales; NULL: none */
    const char *global;                  /* one number; NULL: none */
    const char *x_scale;                 /* one number, for inputs; may be missing */
    int packed;                          /* elements per number of data */
    enum k_type elem;                    /* type of an element in memory */
    /* Unpack n bytes of whole rows into elements, in place; NULL: nothing to unpack. Any thread. */
    void (*unpack)(void *bytes, size_t n);

    /* Formats with `values` are always converted; of the members above only those up to dtype, and
     * packed, are set for them. */
    const char *text;                     /* for the log: "AWQ" */
    const char *beside[QUANT_BESIDE_MAX]; /* endings of the matrix's other tensors */
    int n_needed;                         /* the first n of them must exist */
    /* The rows of data are not the matrix's: all bytes of data are needed for any row. */
    bool is_whole;
    /* Check the shapes and types of all tensors, and set the members of p that `values` reads.
     * Errors as quant_find(). */
    int (*check)(const struct quant_search *s, struct quant_part *p);
    /* out [n][cols] = rows first .. first + n - 1; bytes are their rows of data, or all of data if
     * is_whole. Any thread. */
    void (*values)(float *out, const struct quant_part *p, const uint8_t *bytes, int first, int n);
    /* Their codes, zero points and places of scales, where matrices can be packed as they are
     * (quant_packs()); NULL: they cannot. */
    const struct quant_codes *codes;
    const struct quant_floats *floats; /* likewise, of floats of 4 bits */
};

/* ModelOpt's MIXED_PRECISION, by kinds of matrices and layers (quant_mixed.c). */
#define QUANT_MIX_KINDS  24 /* matrices of a layer that differ, of all kinds of layers */
#define QUANT_MIX_NAME   64
#define QUANT_MIX_LAYERS 256

enum quant_mixed { QUANT_MIXED_PLAIN, QUANT_MIXED_FP8, QUANT_MIXED_FP4 };

struct quant_mix {
    int n; /* 0: nothing is named */
    struct quant_mix_kind {
        char name[QUANT_MIX_NAME];
        uint8_t of_layer[QUANT_MIX_LAYERS]; /* enum quant_mixed */
    } kinds[QUANT_MIX_KINDS];
};

/* How the matrix of a stem such as "model.layers.0.mlp.up_proj" is stored. */
enum quant_mixed quant_mixed_of(const struct quant_mix *mix, const char *stem);

/* The format of layers' matrices, from quantization_config. */
struct quant_config {
    const struct quant_format *kind; /* NULL: none was named */
    struct k_format format;          /* unless a tensor has a single scale */
    struct k_format packed;          /* of random weights, where tensors could be packed; else
                                      * plain */
    struct quant_mix mix;            /* of random weights, where matrices differ */
    bool rounds_x;                   /* inputs may be rounded as k_format.rounds_x says */
    /* Of whole numbers, by all groups of the config: bit b is set if elements of b bits are named,
     * and the sizes of groups of columns. */
    unsigned bits;
    int groups[QUANT_GROUPS_MAX], n_groups;
};

/* The scales of a tensor of weights: one number per group of its elements. */
struct quant_scales {
    const struct tensor *t; /* F32, BF16, F16 or F8_E8M0 */
    int n_rows, n_cols;     /* 1 x 1: one for all */
    int group_rows, group_cols;
};

/* A matrix, or a part of one, as stored in a checkpoint. */
struct quant_part {
    const struct tensor *data;
    const struct quant_format *kind; /* NULL: plain numbers; nothing below is set */
    struct k_format format;          /* in memory: float32 scales, by row or in groups */
    struct quant_scales scales;
    struct quant_scales zeros, global; /* t is NULL where the format has none */
    int rows, cols;
    /* Of kinds with `values`: */
    const struct tensor *beside[QUANT_BESIDE_MAX]; /* NULL: does not exist */
    int bits;                                      /* of an element */
    int group;                                     /* elements of a row that share a scale */
    int n_groups;                                  /* scales of a row */
    int high;                                      /* rows that share scales */
    float offset;                                  /* of bitsandbytes' scales */
};

/* Is the part converted by its kind's own function? */
static inline bool quant_has_values(const struct quant_part *p)
{
    return p->kind != NULL && p->kind->values != NULL;
}

/* Bytes of data for each row of the matrix; 0: rows are not apart (is_whole). */
size_t quant_row_bytes(const struct quant_part *p);

/* Read a quantization_config. Its list of modules that are not quantised is ignored, because their
 * tensors' types show it. ERR_UNSUPPORTED, with the reason in `why`. */
int quant_read(struct quant_config *out, const struct json *config, char *why,
               size_t why_cap) ERR_CHECKED;

/* A matrix to look for: its tensors' names begin with stem and a dot. */
struct quant_matrix {
    const char *stem;
    int rows, cols;
};

/* Find the tensors of a matrix. If config names no format, the tensor's type decides.
 * ERR_NOT_FOUND for a missing tensor, ERR_INVALID for another shape, ERR_UNSUPPORTED for another
 * type of scales; `why` receives the reason, with the tensor's file and name. */
int quant_find(struct quant_part *out, const struct checkpoint *files,
               const struct quant_config *config, const struct quant_matrix *matrix, char *why,
               size_t why_cap) ERR_CHECKED;

/* Set the kind and format of a part whose data, rows and cols are set, by the type of data alone,
 * if that is one of GGUF's blocks; rows of other lengths than whole blocks are ERR_INVALID. */
int quant_take_blocks(struct quant_part *p) ERR_CHECKED;

/* Does the kind have the elements and scales of k_format_mxfp4()? Matrices of experts may keep
 * them: quant_keep_mxfp4() makes it the part's format in memory, if so. */
bool quant_is_mxfp4(const struct quant_format *kind);
void quant_keep_mxfp4(struct quant_part *p);

/* Take a part in GGUF's blocks of MXFP4 as codes and exponents apart, which is exact: its bytes are
 * unpacked while they are read, and have fewer bytes then. */
void quant_split_mxfp4(struct quant_part *p);
bool quant_is_split_mxfp4(const struct quant_format *kind);

/* The exponents of groups first .. first + n - 1 of a row of a part in the format
 * k_format_mxfp4(), from its tensors. Any thread. */
void quant_exponents_mxfp4(uint8_t *out, const struct quant_part *p, int row, int first, int n);

/* A matrix of floats of four bits of an expert, as quant_find() returns it for MXFP4, by its data
 * U8 [rows][cols / 2] and its exponents U8 [rows][cols / 32], in k_format_mxfp4(). Errors
 * likewise. */
int quant_mxfp4(struct quant_part *out, const struct checkpoint *files,
                const struct tensor *const parts[2], const struct quant_matrix *matrix, char *why,
                size_t why_cap) ERR_CHECKED;

/* The scale of an element, without the global one. */
float quant_scale(const struct quant_scales *s, int row, int col);

/* The value of a tensor with a single number. ERR_INVALID for another shape, ERR_UNSUPPORTED for a
 * type that scales do not have. */
int quant_single(float *out, const struct tensor *t) ERR_CHECKED;

/* Element i of a tensor of one of the types above. */
float quant_number(const struct tensor *t, size_t i);

/* out [n][cols] = the weights of rows first .. first + n - 1 of a part with a kind; bytes are these
 * rows of its data, unpacked; all of its data if the kind is_whole. ERR_NO_MEMORY. Any thread. */
int quant_dequantise(float *out, const struct quant_part *p, void *bytes, int first,
                     int n) ERR_CHECKED;

/* Can a part be packed as it is (kernels/packed.h)? Then *out is its format. A scale of a whole row
 * is repeated for each 128 columns; zero points that are all in the middle are left out. Floats are
 * packed if their scales are exact as K_E5M3 times one number for each row. Reads all scales and
 * zero points. */
bool quant_packs(struct k_format *out, const struct quant_part *p);

/* Is a part bytes with a sign (K_INT8), with one scale for each row, no zero points, and all
 * elements of a row in one place? */
bool quant_is_bytes(const struct quant_part *p);

/* The scale of a row of floats that are packed, or of bytes. */
float quant_row_scale(const struct quant_part *p, int row);

/* Columns first .. first + n - 1 of a row: whole groups. */
struct quant_run {
    int row, first, n;
};

/* The codes of a run, with the scales and zero points of their groups in the format `as`; bytes are
 * all of the part's data. Any thread. */
void quant_codes(const struct k_unpacked *to, const struct quant_part *p, const struct k_format *as,
                 const uint8_t *bytes, struct quant_run run);

/* The codes of a run, one in a byte, with the scales and zero points of the groups of `as`, which
 * is a k_format_coded(), as float32. Any thread. */
struct quant_coded {
    uint8_t *codes;
    float *scales, *zeros;
};
void quant_code_row(const struct quant_coded *to, const struct quant_part *p,
                    const struct k_format *as, const uint8_t *bytes, struct quant_run run);

/* Put n bytes of whole rows, multiples of 16, in the order of K_BYTE_AT. Any thread. */
void quant_order_bytes(uint8_t *bytes, size_t n);

/* A run of a row of plain numbers, rounded to bytes with a sign, in that order; returns the scale
 * of the whole row. bytes are all of the part's data. Any thread. */
float quant_bytes(uint8_t *out, const struct quant_part *p, const uint8_t *bytes,
                  struct quant_run run);

/* out [n][cols] = rows first .. first + n - 1 of a BF16, F16 or F32 tensor, rounded with one scale
 * per row and back: to 8-bit whole numbers as quant_bytes() does, or, if elem is another, to e4m3.
 * ERR_NO_MEMORY. Any thread. */
int quant_round(float *out, const struct tensor *weight, int first, int n, int cols,
                enum k_type elem) ERR_CHECKED;

/* The format of a part in words, for the log: "e4m3 with a scale for each 128 x 128". kind may be
 * NULL. */
void quant_text(char *out, size_t cap, const struct quant_format *kind, const struct k_format *f);

#endif
