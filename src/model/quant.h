/* Matrices whose elements stand as e4m3 in a checkpoint, with scales in a tensor beside them; and
 * the rounding of others. What is here is done on the host, in float32: for devices, or shapes,
 * that do not multiply with e4m3. */
#ifndef QUIRE_MODEL_QUANT_H
#define QUIRE_MODEL_QUANT_H

#include "device/device.h"
#include "model/safetensors.h"

/* The scales of a tensor of weights: an element times its scale is the weight. */
struct quant_scales {
    const struct tensor *t; /* F32, BF16, F16 or F8_E8M0 */
    int n_rows, n_cols;     /* 1 x 1: one for all; n x 1: one a row; else one a block */
    int block;              /* side of the blocks; 0: there are none */
};

/* How t scales weights [rows][cols]; block is what config.json says. ERR_INVALID for another
 * shape, ERR_UNSUPPORTED for another type; why says it. */
int quant_scales_of(struct quant_scales *out, const struct tensor *t, int rows, int cols, int block,
                    char *why, size_t why_cap) ERR_CHECKED;

float quant_scale(const struct quant_scales *s, int row, int col);

/* Element i of a tensor of one of the types above. */
float quant_number(const struct tensor *t, size_t i);

/* out [n][cols] = the weights of rows first .. first + n - 1 of an e4m3 tensor; from [n][cols] is
 * their elements. */
void quant_widen(float *out, const k_e4m3 *from, const struct quant_scales *s, int first, int n,
                 int cols);

/* out [n][cols] = rows first .. first + n - 1 of a BF16, F16 or F32 tensor as they are after
 * rounding to e4m3 with a scale a row. scratch [cols]. */
void quant_round(float *out, const struct tensor *weight, int first, int n, int cols,
                 k_e4m3 *scratch);

#endif
