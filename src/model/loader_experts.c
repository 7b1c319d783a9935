/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that hold something of all experts of a layer: their matrices, which are taken apart into
 * views, and their biases. */
#include <stdio.h>

#include "base/log.h"
#include "model/loader_parts.h"

/* --- matrices --------------------------------------------------------------------------- */

/* The part of a tensor [n][rows] .. that belongs to one expert, as a tensor [rows][cols] of its
 * own, where what follows the rows counts as columns. It will be the list's entry `ahead` entries
 * after the next: views are made for rank 0, and the other ranks find them there. */
static const struct tensor *loader_view(struct loader *l, const struct tensor *whole, int expert,
                                        size_t ahead)
{
    struct tensor *view;

    if (l->rank > 0)
        return l->items[l->n_listed + ahead].t;
    if ((view = arena_alloc(&l->views, sizeof *view)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return NULL;
    }
    *view = *whole;
    view->n_dims = 2;
    view->dims[0] = whole->dims[1];
    view->dims[1] = whole->dims[2];
    for (int i = 3; i < whole->n_dims; i++)
        view->dims[1] *= whole->dims[i];
    view->bytes = whole->bytes / (size_t)whole->dims[0];
    view->data = whole->data + (size_t)expert * view->bytes;
    return view;
}

/* The tensor of all experts whose name is that of the part's with an ending; NULL if there is
 * none. */
static const struct tensor *loader_beside_all(const struct loader *l, const struct part *p,
                                              const char *ending)
{
    char name[400], full[440];

    loader_whole_name(l, name, sizeof name, p->pattern);
    (void)snprintf(full, sizeof full, "%s%s", name, ending);
    return checkpoint_find(l->files, full);
}

/* Find an expert in tensors of floats of four bits: blocks [n][rows][cols / 32][16], scales
 * [n][rows][cols / 32]. */
static void loader_find_in_blocks(struct loader *l, struct part *p, int n,
                                  const struct tensor *blocks)
{
    const struct tensor *scales = loader_beside_all(l, p, "_scales");
    const struct quant_matrix matrix = {p->pattern, p->slice.rows, p->slice.cols};
    const struct tensor *parts[2];
    char why[QUANT_WHY_CAP];

    if (scales == NULL || scales->n_dims != 3 || scales->dims[0] != n || blocks->n_dims < 3 ||
        blocks->dims[0] != n) {
        log_error("model: %s: tensor %s needs %d experts, and a tensor _scales beside it",
                  checkpoint_path(l->files, blocks), blocks->name, n);
        l->rc = ERR_INVALID;
        return;
    }
    parts[0] = loader_view(l, blocks, p->expert, 0);
    parts[1] = loader_view(l, scales, p->expert, 1);
    if (l->rc != ERR_OK)
        return;
    l->rc = quant_mxfp4(&p->q, l->files, parts, &matrix, why, sizeof why);
    if (l->rc != ERR_OK)
        log_error("model: %s", why);
    else
        loader_list_part(l, p);
}

/* Find an expert in the tensor of all n experts of the layer. */
void loader_find_in_one(struct loader *l, struct part *p, int n)
{
    char name[400];
    const struct tensor *whole = loader_beside_all(l, p, "_blocks");
    int rows = p->is_turned ? p->slice.cols : p->slice.rows;
    int cols = p->is_turned ? p->slice.rows : p->slice.cols;

    if (p->is_turned && whole != NULL) {
        p->is_turned = false;
        loader_find_in_blocks(l, p, n, whole);
        return;
    }
    loader_whole_name(l, name, sizeof name, p->pattern);
    if ((whole = checkpoint_find(l->files, name)) == NULL) {
        log_error("model: tensor %s is missing", name);
        l->rc = ERR_NOT_FOUND;
        return;
    }
    if (whole->n_dims != 3 || whole->dims[0] != n || whole->dims[1] != rows ||
        whole->dims[2] != cols) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says "
                  "[%d][%d][%d]",
                  checkpoint_path(l->files, whole), name, whole->n_dims,
                  whole->n_dims > 0 ? (long long)whole->dims[0] : 0LL, n, rows, cols);
        l->rc = ERR_INVALID;
        return;
    }
    p->q = (struct quant_part){.data = loader_view(l, whole, p->expert, 0), .cols = p->slice.cols};
    if (l->rc != ERR_OK)
        return;
    loader_list_part(l, p);
    loader_check_type(l, whole, &p->type);
}

/* --- biases ----------------------------------------------------------------------------- */

/* Store the biases of one expert, of the rows of a rank's slice. */
static void loader_fill_expert_bias(struct loader *l, void *dst, size_t at,
                                    const struct tensor *tensor, const struct slice *s, int expert)
{
    size_t first = (size_t)expert * (size_t)s->rows;

    for (int row = 0; row < s->n_rows && l->rc == ERR_OK; row++) {
        float number = quant_number(tensor, first + (size_t)slice_row(s, row));

        l->rc = l->d->ops->weights(l->d, dst, at + (size_t)row, &number, DEVICE_F32, 1);
    }
}

/* The host reads the tensor at once: it is small. */
void *loader_expert_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split)
{
    const struct slice_shape shape = loader_row_shape(&all->shapes[0]);
    const struct slice slice = slice_make(&shape, l->share, l->n_shares);
    size_t n_rows = (size_t)slice.n_rows, n_own = (size_t)all->n_own_experts;
    bool has = l->share == 0 || split != SPLIT_COLUMNS;
    int first = all->n_own_experts < all->n_experts ? l->share * all->n_own_experts : 0;
    const struct tensor *tensor = NULL;
    void *dst = has ? loader_allocate(l, n_own * n_rows * l->d->elem_bytes) : NULL;
    char name[400];

    (void)snprintf(name, sizeof name, "%s_bias", all->patterns[0]);
    if (l->rc == ERR_OK && l->files != NULL)
        tensor = loader_find_numbers(l, name, all->n_experts, slice.rows);
    if (tensor == NULL)
        return dst; /* zeros, or an error */
    for (int i = 0; i < all->n_own_experts && dst != NULL; i++)
        loader_fill_expert_bias(l, dst, (size_t)i * n_rows, tensor, &slice, first + i);
    return dst;
}

/* --- numbers of experts ------------------------------------------------------------------- */

/* Experts are counted from 0, so one more would have number n. */
void loader_refuse_more_experts(struct loader *l, const char *pattern, int n)
{
    char name[400];

    if (l->rc != ERR_OK || l->files == NULL || pattern == NULL)
        return;
    l->expert = n;
    loader_name(l, name, sizeof name, pattern, ".weight");
    if (checkpoint_find(l->files, name) == NULL)
        return;
    log_error("model: tensor %s exists, but config.json says that there are %d experts", name, n);
    l->rc = ERR_INVALID;
}
