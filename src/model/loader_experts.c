/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors that hold something of all experts of a layer: their matrices, which are taken apart into
 * views, and their biases. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "model/loader_parts.h"

/* A matrix whose rows a device brings into another order when all have come. */
struct arranged {
    struct device *device;
    struct k_matrix matrix;
    struct k_mxfp4_rows rows;
};

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
    int rows, cols;

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
    /* Some writers turn the matrices of families whose released files have them turned. */
    if (whole->n_dims == 3 && whole->dims[1] == p->slice.rows && whole->dims[2] == p->slice.cols &&
        p->slice.rows != p->slice.cols)
        p->is_turned = false;
    rows = p->is_turned ? p->slice.cols : p->slice.rows;
    cols = p->is_turned ? p->slice.rows : p->slice.cols;
    if (whole->n_dims != 3 || whole->dims[0] != n || whole->dims[1] != rows ||
        whole->dims[2] != cols) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says "
                  "[%d][%d][%d]",
                  checkpoint_path(l->files, whole), name, whole->n_dims,
                  whole->n_dims > 0 ? (long long)whole->dims[0] : 0LL, n, rows, cols);
        l->rc = ERR_INVALID;
        return;
    }
    p->q = (struct quant_part){
        .data = loader_view(l, whole, p->expert, 0), .rows = rows, .cols = cols};
    if (l->rc != ERR_OK)
        return;
    if ((l->rc = quant_take_blocks(&p->q)) != ERR_OK) {
        log_error("model: %s: rows of tensor %s, of %d, are not whole blocks of %s",
                  checkpoint_path(l->files, whole), name, cols, whole->dtype);
        return;
    }
    loader_list_part(l, p);
    if (p->q.kind == NULL)
        loader_check_type(l, whole, &p->type);
}

/* --- floats of 4 bits --------------------------------------------------------------------- */

/* Rows come as they are in the file; then the device arranges them (kernels/mxfp4.h), which takes
 * milliseconds, where a host thread would take minutes. */

/* The rows of gates and ups in turns, as one piece: a rank's rows are neighbours in the file. */
static void loader_leave_mixed(const struct loader *l, struct slice *s)
{
    const struct slice_piece *gates = &s->shape.pieces[0];
    const struct slice_shape shape = slice_whole(s->rows, 2 * gates->own_rows, s->cols, s->n_cols);

    must(s->shape.n_pieces == 2 && gates->stride == 2 && gates->chunk == 1);
    *s = slice_make(&shape, l->share, l->n_shares);
}

/* Upload the exponents of a part's rows, which go to `at` of the matrix. */
static void loader_fill_exponents(struct loader *l, const struct k_matrix *m, size_t at,
                                  const struct part *p)
{
    size_t n = (size_t)m->n_in / K_MXFP4_GROUP;
    uint8_t *rows = mem_alloc((size_t)p->slice.n_rows * n);

    if (rows == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (int row = 0; row < p->slice.n_rows; row++)
        quant_exponents_mxfp4(rows + (size_t)row * n, &p->q, slice_row(&p->slice, row),
                              p->slice.col / K_MXFP4_GROUP, (int)n);
    l->rc = l->d->ops->upload(l->d, (char *)m->data + at, rows, (size_t)p->slice.n_rows * n);
    mem_free(rows);
}

/* List the parts of a matrix: those of an expert follow one another at the beginning of its
 * memory, codes, then exponents. */
static void loader_list_mxfp4(struct loader *l, const struct k_matrix *m,
                              const struct k_mxfp4_rows *rows, struct part *parts, int n_parts,
                              bool is_mixed)
{
    size_t row_bytes = k_format_row_bytes(&m->format, m->n_in);
    size_t expert_bytes = k_mxfp4_bytes(rows->n_rows, m->n_in), n_rows = (size_t)rows->n_rows;
    size_t row = 0;

    for (int i = 0; i < n_parts && l->rc == ERR_OK; i++) {
        size_t first = row / n_rows * expert_bytes, below = row % n_rows;
        struct target to;

        if (parts[i].slice.n_rows == 0)
            continue;
        if (parts[i].q.format.elem == K_MXFP4)
            quant_split_mxfp4(&parts[i].q);
        if (is_mixed)
            loader_leave_mixed(l, &parts[i].slice);
        to = (struct target){.use = BYTES_COPIED,
                             .part = parts[i].q,
                             .slice = parts[i].slice,
                             .dst = m->data,
                             .at = first + below * row_bytes};
        loader_list_target(l, parts[i].item, &to);
        loader_fill_exponents(
            l, m, first + n_rows * row_bytes + below * ((size_t)m->n_in / K_MXFP4_GROUP),
            &parts[i]);
        row += (size_t)parts[i].slice.n_rows;
    }
}

/* Note a matrix for loader_arrange(). */
static void loader_note_arranged(struct loader *l, const struct k_matrix *m,
                                 const struct k_mxfp4_rows *rows)
{
    if (l->n_arranged == l->arranged_cap) {
        size_t cap = l->arranged_cap == 0 ? 64 : 2 * l->arranged_cap;
        struct arranged *grown = mem_realloc(l->arranged, cap * sizeof *grown);

        if (grown == NULL) {
            l->rc = ERR_NO_MEMORY;
            return;
        }
        l->arranged = grown;
        l->arranged_cap = cap;
    }
    l->arranged[l->n_arranged++] = (struct arranged){l->d, *m, *rows};
}

void loader_fill_mxfp4(struct loader *l, struct k_matrix *m, struct part *parts, int n_parts,
                       const struct loader_tensors *all)
{
    const struct k_mxfp4_rows rows = {.n_experts = all->n_own_experts,
                                      .n_rows = m->n_out / all->n_own_experts,
                                      .is_gated = all->is_gated,
                                      .is_mixed = all->is_gated && all->is_mixed};
    size_t expert_bytes = k_mxfp4_bytes(rows.n_rows, m->n_in);
    uint64_t seed = l->files == NULL ? l->seed++ + ((uint64_t)l->share << 32) : 0;

    m->data = loader_allocate(l, (size_t)rows.n_experts * expert_bytes);
    if (l->rc != ERR_OK || l->absent)
        return;
    if (l->files != NULL) {
        loader_list_mxfp4(l, m, &rows, parts, n_parts, rows.is_mixed);
        loader_note_arranged(l, m, &rows);
        return;
    }
    for (int i = 0; i < rows.n_experts && l->rc == ERR_OK; i++) {
        const struct k_matrix one = {.data = (char *)m->data + (size_t)i * expert_bytes,
                                     .format = m->format,
                                     .n_out = rows.n_rows,
                                     .n_in = m->n_in};

        l->rc = l->d->ops->fill_random(l->d, &one, 0.0f, seed + ((uint64_t)i << 40));
    }
}

int loader_arrange(struct loader *l)
{
    int rc = ERR_OK;

    for (size_t i = 0; i < l->n_arranged && rc == ERR_OK; i++) {
        const struct arranged *a = &l->arranged[i];

        rc = a->device->ops->arrange(a->device, &a->matrix, &a->rows);
    }
    return rc;
}

/* --- biases ----------------------------------------------------------------------------- */

/* The tensor [n_experts][rows] of the biases of a part: NAME_bias, or with .bias in place of
 * .weight. */
static const struct tensor *loader_find_expert_bias(struct loader *l, const char *pattern,
                                                    int n_experts, int rows)
{
    size_t stem = strlen(pattern), ending = strlen(".weight");
    char name[400];

    if (stem > ending && strcmp(pattern + stem - ending, ".weight") == 0)
        (void)snprintf(name, sizeof name, "%.*s.bias", (int)(stem - ending), pattern);
    else
        (void)snprintf(name, sizeof name, "%s_bias", pattern);
    return loader_find_numbers(l, name, n_experts, rows);
}

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

/* The host reads the tensors at once: they are small. */
void *loader_expert_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split)
{
    struct slice slices[LOADER_TENSORS_MAX];
    size_t n_rows = 0, n_own = (size_t)all->n_own_experts, before = 0;
    bool has = l->share == 0 || split != SPLIT_COLUMNS;
    int first = all->n_own_experts < all->n_experts ? l->share * all->n_own_experts : 0;
    void *dst;

    for (int i = 0; i < all->n; i++) {
        const struct slice_shape shape = loader_row_shape(&all->shapes[i]);

        slices[i] = slice_make(&shape, l->share, l->n_shares);
        n_rows += (size_t)slices[i].n_rows;
    }
    dst = has ? loader_allocate(l, n_own * n_rows * l->d->elem_bytes) : NULL;
    for (int i = 0; i < all->n && l->rc == ERR_OK && l->files != NULL; i++) {
        const struct tensor *tensor =
            loader_find_expert_bias(l, all->patterns[i], all->n_experts, slices[i].rows);

        for (int e = 0; e < all->n_own_experts && dst != NULL && tensor != NULL; e++)
            loader_fill_expert_bias(l, dst, (size_t)e * n_rows + before, tensor, &slices[i],
                                    first + e);
        before += (size_t)slices[i].n_rows;
    }
    return dst; /* zeros without files */
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
