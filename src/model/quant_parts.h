/* SPDX-License-Identifier: Apache-2.0
 *
 * For the quant*.c files only: the search for a matrix's tensors, and the formats that have
 * functions of their own. Each has a check, which must leave nothing to `values` that could lead
 * outside of a tensor: shapes, types, and numbers that are used as places. */
#ifndef QUIRE_MODEL_QUANT_PARTS_H
#define QUIRE_MODEL_QUANT_PARTS_H

#include "model/quant.h"

/* The matrix that quant_find() looks for, and the buffer for its error message. */
struct quant_search {
    const struct checkpoint *files;
    const char *stem;
    int rows, cols;
    char *why;
    size_t why_cap;
    const struct quant_config *config; /* NULL: none */
};

/* Write the error message, which starts with the file and the tensor. Returns rc. */
int quant_fail(const struct quant_search *s, int rc, const struct tensor *t, const char *format,
               ...) __attribute__((format(printf, 4, 5)));

/* Is the tensor of a type that quant_number() reads? */
bool quant_is_number(const struct tensor *t);

/* Check the shape [rows][cols] of a tensor, and its type, unless dtype is NULL. ERR_INVALID,
 * ERR_UNSUPPORTED. */
int quant_expect(const struct quant_search *s, const struct tensor *t, const char *dtype,
                 int64_t rows, int64_t cols) ERR_CHECKED;

/* Check that t has scales [rows][n_groups] in any arrangement, of a type that quant_number() reads;
 * set p's groups. Groups that are not of equal length, as their number or the config's sizes show,
 * are refused unless p has an order of groups; p->group is not their length then. */
int quant_expect_scales(const struct quant_search *s, struct quant_part *p, const struct tensor *t,
                        int64_t rows, int64_t n_groups) ERR_CHECKED;

/* beside[QUANT_ORDER] may be a tensor [inputs] that says which group each input is of. Every number
 * must be a group; a tensor that begins with -1 was never filled in, and is forgotten. The group of
 * an input is that, or the one of its place. */
#define QUANT_ORDER 2
int quant_check_order(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_group(const struct quant_part *p, int col);

/* A little-endian 32-bit word of a tensor. */
uint32_t quant_word(const uint8_t *bytes, size_t i);

/* quant_packed.c: integers that are packed into 32-bit words, and int8. */
int quant_check_awq(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_awq_gemv(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_gptq(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_packed(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_int8(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
void quant_values_awq(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                      int n);
void quant_values_awq_gemv(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                           int n);
void quant_values_gptq(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n);
void quant_values_gptq_v2(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                          int n);
void quant_values_packed(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                         int n);
void quant_values_int8(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n);

/* Codes of 4 or 8 bits, of a kind whose zero points are integers: how they are found in all bytes
 * of data, and beside it. */
struct quant_codes {
    void (*row)(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row, int first,
                int n);
    int (*zero)(const struct quant_part *p, int row, int group);
    /* Its 16 bits. */
    const uint8_t *(*scale)(const struct quant_part *p, const uint8_t *bytes, int row, int group);
};
extern const struct quant_codes quant_codes_awq, quant_codes_awq_gemv, quant_codes_gptq,
    quant_codes_gptq_v2, quant_codes_packed, quant_codes_int8, quant_codes_q4_0, quant_codes_q8_0;

/* Floats of 4 bits of a kind: how they become codes and scales of K_FLOAT4. Columns are whole
 * groups. */
struct quant_floats {
    int group;
    /* Are all scales such as K_E5M3 has, times their row's? */
    bool (*fit)(const struct quant_part *p);
    /* Scales of n groups of a row from `first` on; a scale of 0 becomes the smallest. */
    void (*scales)(uint8_t *out, const struct quant_part *p, int row, int first, int n);
    /* Does the group have a scale of 0, so that its codes are to be 0? */
    bool (*is_zero)(const struct quant_part *p, int row, int group);
    float (*row_scale)(const struct quant_part *p, int row);
};
extern const struct quant_floats quant_floats_nvfp4, quant_floats_modelopt, quant_floats_mxfp4;

/* n bytes of whole blocks of MXFP4 become their codes, of which there are 16 bytes a block, in
 * place. */
void quant_unpack_mxfp4(void *bytes, size_t n);

/* The codes and scales of a run of floats (quant_codes()). */
void quant_float_codes(const struct k_unpacked *to, const struct quant_part *p,
                       const uint8_t *bytes, struct quant_run run);

/* Rounding of a row of plain numbers to 8-bit whole numbers: its scale, the least with which none
 * is cut, rounded to bfloat16, and the code of an element. `bytes` are the tensor's, with the row's
 * first element at `at`. */
float quant_int8_scale(const struct tensor *t, const uint8_t *bytes, size_t at, int cols);
int8_t quant_int8_code(float x, float scale);

/* Does every group of compressed-tensors ask for inputs of 8-bit whole numbers, with a scale for
 * each token that is computed from it? */
bool quant_rounds_inputs(const struct json *config);

/* The bits of elements and the sizes of groups that a quantization_config of whole numbers
 * names. */
void quant_read_sizes(struct quant_config *out, const struct json *config);

/* Which matrices are in which format, as quantized_layers or config_groups name them. */
void quant_read_mix(struct quant_mix *out, const struct json *config);

/* The packed format of random weights that a quantization_config describes; plain if none. */
struct k_format quant_packed_config(const struct json *config);

/* quant_float4.c: floats of 4 bits with a scale for 16 or 32, and of 8 bits with scales in any
 * arrangement. */
int quant_check_nvfp4(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_mxfp4(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_e4m3(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
void quant_values_nvfp4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                        int n);
void quant_values_modelopt(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                           int n);
void quant_values_mxfp4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                        int n);
void quant_values_e4m3(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n);

/* quant_bnb.c: the formats of bitsandbytes. */
int quant_check_bnb4(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
int quant_check_bnb8(const struct quant_search *s, struct quant_part *p) ERR_CHECKED;
void quant_values_bnb4(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n);
void quant_values_bnb8(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n);

#endif
