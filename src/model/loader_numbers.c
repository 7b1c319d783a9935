/* SPDX-License-Identifier: Apache-2.0
 *
 * Float32 numbers beside the matrices: the host reads them at once, in the form that the checkpoint
 * stores them in, and uploads them. */
#include <math.h>

#include "base/log.h"
#include "base/mem.h"
#include "kernels/rng.h"
#include "model/loader_parts.h"

/* The row of a tensor in this form. */
static int loader_row_of(const struct numbers_form *form, int row, int n_rows)
{
    int at = row - form->n_before;

    if (form->turn <= 1 || at < 0)
        return row;
    return form->n_before + at % form->chunk +
           form->chunk * slice_in_turns(at / form->chunk, (n_rows - form->n_before) / form->chunk,
                                        form->turn);
}

/* out [rows][cols]: the numbers of a tensor. */
static void loader_take_numbers(struct loader *l, float *out, const struct tensor *t, int rows,
                                int cols, const struct numbers_form *form)
{
    for (int row = 0; row < rows && l->rc == ERR_OK; row++) {
        size_t from = (size_t)loader_row_of(form, row, rows) * (size_t)cols;

        for (int col = 0; col < cols; col++) {
            float number = quant_number(t, from + (size_t)col);

            if (form->is_rate && !(number < 0.0f)) {
                log_error("model: %s: tensor %s has %g, and its numbers must be negative",
                          checkpoint_path(l->files, t), t->name, (double)number);
                l->rc = ERR_INVALID;
            } else if (form->is_rate) {
                number = (float)log(-(double)number);
            }
            *out++ = number;
        }
    }
}

/* All ranks of a random model get the same numbers, because all make the same choices by them. */
static const float *loader_fill_numbers(struct loader *l, const char *whole, int rows, int cols,
                                        const struct numbers_form *form, float by)
{
    size_t n = (size_t)rows * (size_t)cols;
    const struct tensor *tensor = NULL;
    uint64_t seed = l->seed++;
    float *numbers, *at;

    if (l->rc == ERR_OK && l->files != NULL)
        tensor = loader_find_numbers(l, whole, rows, cols);
    at = loader_allocate(l, n * sizeof *at);
    if (at == NULL)
        return NULL;
    if ((numbers = mem_zalloc_array(n, sizeof *numbers)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return NULL;
    }
    if (tensor != NULL)
        loader_take_numbers(l, numbers, tensor, rows, cols, form);
    for (size_t i = 0; i < n; i++) {
        if (tensor != NULL)
            numbers[i] *= by;
        else if (cols > 1)
            numbers[i] = k_noise(seed, i) * RANDOM_SCALE;
    }
    if (l->rc == ERR_OK)
        l->rc = l->d->ops->upload(l->d, at, numbers, n * sizeof *numbers);
    mem_free(numbers);
    return at;
}

const float *loader_numbers(struct loader *l, const char *whole, int rows, int cols, float by)
{
    const struct numbers_form as_it_is = {.turn = 0};

    return loader_fill_numbers(l, whole, rows, cols, &as_it_is, by);
}

const float *loader_numbers_of(struct loader *l, const char *whole, int rows, int cols,
                               const struct numbers_form *form)
{
    return loader_fill_numbers(l, whole, rows, cols, form, 1.0f);
}

float loader_number(struct loader *l, const char *whole)
{
    const struct tensor *tensor;

    if (l->files == NULL || l->rc != ERR_OK)
        return 1.0f;
    tensor = loader_find_numbers(l, whole, 1, 1);
    if (tensor == NULL)
        return 1.0f;
    return quant_number(tensor, 0);
}

int loader_block(const struct loader *l, const char *pattern)
{
    struct quant_part part = {.data = NULL};
    char name[400];

    if (l->files == NULL)
        return 1;
    loader_whole_name(l, name, sizeof name, pattern);
    part.data = checkpoint_find(l->files, name);
    if (part.data == NULL || part.data->n_dims != 2)
        return 1;
    part.rows = (int)part.data->dims[0];
    part.cols = (int)part.data->dims[1];
    /* A row that is not whole blocks is refused when the matrix is looked for. */
    if (quant_take_blocks(&part) != ERR_OK || part.kind == NULL)
        return 1;
    return k_type_block(part.format.elem);
}
