/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding matrices to formats of 4 and 8 bits, as `quire quantize` writes them: a scale for each
 * group of a row, chosen by search, and a code for each element. The inverse of quant*.c.
 *
 * All functions are pure; any thread. */
#ifndef QUIRE_MODEL_QUANT_ROUND_H
#define QUIRE_MODEL_QUANT_ROUND_H

#include <stddef.h>
#include <stdint.h>

enum round_kind {
    ROUND_INT4,  /* whole numbers -8 .. 7; bf16 scales of groups */
    ROUND_INT8,  /* whole numbers -128 .. 127; a bf16 scale for each row */
    ROUND_FP8,   /* e4m3; a bf16 scale for each row */
    ROUND_NVFP4, /* e2m1; e4m3 scales of 16 elements, and a float32 for the whole matrix */
};

struct round_format {
    enum round_kind kind;
    int group;    /* elements of a row that share a scale; the columns are a multiple of it */
    float global; /* ROUND_NVFP4: stored scale = scale * global; otherwise 1 */
};

/* The factor of ROUND_NVFP4 for a matrix whose greatest magnitude is amax; 1 for other kinds. */
float round_global(enum round_kind kind, float amax);

/* Choose the scale of a group x [n] that makes the sum of importance * (x - value)^2 smallest, of
 * some tens of scales around amax / greatest code. importance: [n], or NULL for ones. The result is
 * above 0 and exact in the stored type. */
float round_scale(const struct round_format *f, const float *x, const float *importance, int n);

/* The code of an element nearest to x, and its value. Codes of whole numbers are stored with an
 * offset of 8 or 128. */
uint8_t round_code(const struct round_format *f, float x, float scale);
float round_value(const struct round_format *f, uint8_t code, float scale);

/* The bytes of n rows of codes or scales as a checkpoint has them: codes packed 8 in a word
 * (ROUND_INT4) or 2 in a byte (ROUND_NVFP4), scales in bf16 or e4m3. `out` holds
 * round_code_bytes() or round_scale_bytes() for each row. */
size_t round_code_bytes(const struct round_format *f, int cols);
size_t round_scale_bytes(const struct round_format *f, int cols);
void round_pack_codes(uint8_t *out, const struct round_format *f, const uint8_t *codes, int cols);
void round_pack_scales(uint8_t *out, const struct round_format *f, const float *scales, int cols);

#endif
