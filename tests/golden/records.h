/* SPDX-License-Identifier: Apache-2.0
 *
 * A matrix of a checkpoint as records (kernels/packed.h), and what these hold. */
#ifndef QUIRE_TESTS_GOLDEN_RECORDS_H
#define QUIRE_TESTS_GOLDEN_RECORDS_H

#include <stdlib.h>

#include "model/quant.h"

/* float32 [rows][cols] of a part that quant_packs(), row by row into strips and back; free() it. */
static inline float *records_weights(const struct quant_part *p, const struct k_format *format)
{
    const struct k_packing packing = k_packing_of(format);
    size_t cols = (size_t)p->cols, numbers = cols / (size_t)format->group_cols;
    size_t strip_bytes = k_packed_strip_bytes(&packing, p->cols);
    float *got = calloc((size_t)p->rows * cols, sizeof *got);
    uint8_t *data = malloc(k_packed_bytes(&packing, p->rows, p->cols));
    uint8_t *codes = malloc(16 * cols), *scales = malloc(32 * numbers),
            *zeros = malloc(16 * numbers);
    size_t scale_bytes = (size_t)packing.scale_bytes;
    const struct k_unpacked strip = {codes, scales, zeros};
    float *row_scales = calloc((size_t)p->rows, sizeof *row_scales);
    const struct k_matrix m = {
        .data = data, .scales = row_scales, .format = *format, .n_in = p->cols};

    for (int row = 0; row < p->rows; row++) {
        size_t at = (size_t)(row % 16);
        const struct k_unpacked one = {codes + at * cols, scales + scale_bytes * at * numbers,
                                       zeros + at * numbers};

        if (format->group_rows > 0)
            row_scales[row] = quant_row_scale(p, row);
        quant_codes(&one, p, format, p->data->data, (struct quant_run){row, 0, p->cols});
        if (row % 16 == 15 || row == p->rows - 1)
            k_pack_strip(data + (size_t)(row / 16) * strip_bytes, &packing, &strip, row % 16 + 1,
                         p->cols);
    }
    ref_dequantise(got, &m, 0, p->rows);
    free(data), free(codes), free(scales), free(zeros), free(row_scales);
    return got;
}

#endif
