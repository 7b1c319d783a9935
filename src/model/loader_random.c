/* SPDX-License-Identifier: Apache-2.0
 *
 * Random elements of a model without files: on the cpu device each rank has the numbers that one
 * rank alone would have in its part. */
#include "base/mem.h"
#include "kernels/rng.h"
#include "model/loader_parts.h"

#define RANDOM_CODES 64.0f /* deviation of random codes, before their scale */

/* The slice of one rank alone. */
static struct slice loader_whole_slice(const struct slice *part)
{
    struct slice_shape shape = part->shape;

    shape.own_cols = shape.cols;
    for (int i = 0; i < shape.n_pieces; i++)
        shape.pieces[i].own_rows = shape.pieces[i].rows;
    return slice_make(&shape, 0, 1);
}

/* Fill a rank's part of a random plain matrix with the numbers that one rank alone would have
 * there. */
static int loader_fill_random_slices(struct loader *l, const struct k_matrix *m,
                                     const struct part *parts, int n_parts, uint64_t seed)
{
    float *row = mem_zalloc_array((size_t)m->n_in, sizeof *row);
    size_t above = 0, at = 0;
    int rc = row == NULL ? ERR_NO_MEMORY : ERR_OK;

    for (int i = 0; i < n_parts && rc == ERR_OK; i++) {
        const struct slice *slice = &parts[i].slice, whole = loader_whole_slice(slice);
        bool is_padded = slice_is_padded(&slice->shape);
        int before = slice_padded(&slice->shape.pad_rows, slice->first[0]);
        int col_before = slice_padded(&slice->shape.pad_cols, slice->col);

        for (int r = 0; r < slice->n_rows && rc == ERR_OK; r++, at += (size_t)m->n_in) {
            int row_of_whole = is_padded ? before + r : slice_to(&whole, slice_row(slice, r));
            size_t to = above + (size_t)row_of_whole;
            size_t first = to * (size_t)whole.n_cols + (size_t)col_before;

            for (int col = 0; col < slice->n_cols; col++)
                row[col] = k_noise(seed, first + (size_t)col) * RANDOM_SCALE;
            rc = l->d->ops->weights(l->d, m->data, at, row, DEVICE_F32, (size_t)m->n_in);
        }
        above += (size_t)whole.n_rows;
    }
    mem_free(row);
    return rc;
}

/* Fill a matrix with random elements; scales make quantised ones as large as plain ones. */
void loader_fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales,
                        const struct part *parts, int n_parts)
{
    size_t n_scales = loader_n_scales(m);
    const struct slice *slice = &parts[0].slice;
    bool is_split = slice->n_rows < slice->rows || slice->n_cols < slice->cols;
    float codes = k_format_is_packed(&m->format) ? 1.0f : RANDOM_CODES;
    uint64_t seed = l->seed++;
    float *scales;

    if (l->absent)
        return;
    /* On GPUs each rank's split matrix has noise of its own, because computing a whole model's
     * noise by one host thread would take minutes. The cpu device gives all ranks one rank's
     * numbers, which lets tests compare results. */
    if (l->n_shares > 1 && n_scales == 0 && !l->d->is_gpu)
        l->rc = loader_fill_random_slices(l, m, parts, n_parts, seed);
    else
        l->rc = l->d->ops->fill_random(l->d, m, n_scales > 0 ? codes : RANDOM_SCALE,
                                       is_split ? seed + ((uint64_t)l->share << 32) : seed);
    if (n_scales == 0 || l->rc != ERR_OK)
        return;
    if ((scales = mem_zalloc_array(n_scales, sizeof *scales)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < n_scales; i++)
        scales[i] = RANDOM_SCALE / codes;
    l->rc = l->d->ops->upload(l->d, dev_scales, scales, n_scales * sizeof *scales);
    mem_free(scales);
}
