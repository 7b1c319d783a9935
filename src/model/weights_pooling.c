/* SPDX-License-Identifier: Apache-2.0
 *
 * The output matrix of a model that pools. Its "logits" are the answer:
 *
 *   vectors   [dim][dim] ones in the diagonal: a row's product is the row itself, to the last bit,
 *             because all other summands are zero
 *   scores    [n_labels][dim], filled up with rows of zeros: score.weight, or the rows of some
 *             tokens of the generating model's output matrix
 *
 * So vectors take the way of logits: over ranks, stages and nodes, and to the host, on each device.
 * The product costs dim * dim elements of memory and of reads per step, 32 MB for a dim of 4096. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/pooling.h"
#include "kernels/rng.h"
#include "model/loader_parts.h"
#include "model/quant.h"
#include "model/safetensors.h"
#include "model/weights_parts.h"

#define POOLING_ROWS_MULTIPLE 16 /* rows that products take at a time */

int weights_pooling_rows(const struct pooling *p, int dim)
{
    if (p->kind == POOLING_EMBED)
        return dim;
    return (p->n_labels + POOLING_ROWS_MULTIPLE - 1) / POOLING_ROWS_MULTIPLE *
           POOLING_ROWS_MULTIPLE;
}

/* The generating model's output matrix, from which some rows are read at once; NULL after an error.
 * It is not listed: its other rows are not the model's. */
static const struct tensor *pooling_find_head(struct loader *l, const char *pattern)
{
    const struct tensor *t;
    char name[400];

    loader_name(l, name, sizeof name, pattern, ".weight");
    t = checkpoint_find(l->files, name);
    if (t != NULL && t->n_dims == 2 && t->dims[1] == l->c->dim &&
        (strcmp(t->dtype, "BF16") == 0 || strcmp(t->dtype, "F16") == 0 ||
         strcmp(t->dtype, "F32") == 0))
        return t;
    log_error("model: classifier_from_token: the tensor %s must be BF16, F16 or F32 [vocabulary]"
              "[%d]",
              name, l->c->dim);
    l->rc = t == NULL ? ERR_NOT_FOUND : ERR_UNSUPPORTED;
    return NULL;
}

/* Add `by` times the row of a token to a row of numbers. */
static void pooling_add_token(struct loader *l, const struct tensor *head,
                              const struct pooling_token *token, float by, float *row)
{
    if (token->id < 0 || token->id >= head->dims[0]) {
        log_error("model: classifier_from_token: token %d is not in the vocabulary of %lld",
                  token->id, (long long)head->dims[0]);
        l->rc = ERR_INVALID;
        return;
    }
    for (int i = 0; i < l->c->dim; i++)
        row[i] += by * quant_number(head, (size_t)token->id * (size_t)l->c->dim + (size_t)i);
}

/* float32 [n_labels][dim]. */
static void pooling_read_labels(struct loader *l, const char *head_name, float *rows)
{
    const struct pooling *p = l->c->pooling;
    size_t dim = (size_t)l->c->dim;
    const struct tensor *t;

    if (l->files == NULL) {
        for (size_t i = 0; i < (size_t)p->n_labels * dim; i++)
            rows[i] = k_noise(l->seed, i);
        l->seed++;
        return;
    }
    if (p->n_tokens == 0) {
        t = loader_find_numbers(l, "score.weight", p->n_labels, l->c->dim);
        for (size_t i = 0; t != NULL && i < (size_t)p->n_labels * dim; i++)
            rows[i] = quant_number(t, i);
        return;
    }
    t = pooling_find_head(l, head_name);
    for (int i = 0; t != NULL && i < p->n_tokens && l->rc == ERR_OK; i++) {
        bool is_less = p->is_difference && i == 0;

        pooling_add_token(l, t, &p->tokens[i], is_less ? -1.0f : 1.0f,
                          rows + (p->is_difference ? 0 : (size_t)i * dim));
    }
}

/* Row r of the whole matrix. */
static void pooling_row(const struct loader *l, const float *labels, int r, float *row)
{
    const struct pooling *p = l->c->pooling;
    size_t dim = (size_t)l->c->dim;

    memset(row, 0, dim * sizeof *row);
    if (p->kind == POOLING_EMBED)
        row[r] = 1.0f;
    else if (r < p->n_labels)
        memcpy(row, labels + (size_t)r * dim, dim * sizeof *row);
}

/* All ranks make the calls that list tensors; those with a part of the matrix get memory. */
void weights_load_pooling(struct loader *l, const char *head_name)
{
    const struct pooling *p = l->c->pooling;
    struct k_matrix *m = &l->w->head;
    int first = plan_splits_head(l->part) ? l->share * l->part->head_rows : 0;
    size_t dim = (size_t)l->c->dim;
    float *labels, *row;

    *m = (struct k_matrix){.n_in = l->c->dim, .n_out = l->part->head_rows};
    if (l->rc != ERR_OK)
        return;
    labels = mem_zalloc_array((size_t)(p->n_labels + 1) * dim, sizeof *labels);
    row = mem_zalloc_array(dim, sizeof *row);
    if (labels == NULL || row == NULL)
        l->rc = ERR_NO_MEMORY;
    if (l->rc == ERR_OK && p->kind == POOLING_SCORE)
        pooling_read_labels(l, head_name, labels);
    if (l->share == 0 || plan_splits_head(l->part))
        m->data = loader_allocate(l, (size_t)m->n_out * dim * l->d->elem_bytes);
    for (int r = 0; r < m->n_out && m->data != NULL && l->rc == ERR_OK; r++) {
        pooling_row(l, labels, first + r, row);
        l->rc = l->d->ops->weights(l->d, m->data, (size_t)r * dim, row, DEVICE_F32, dim);
    }
    mem_free(labels);
    mem_free(row);
}
