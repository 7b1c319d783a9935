/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the choice of tokens, and of attention over the chosen ones. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/index.h"
#include "kernels/latent.h"

/* The row of a position: the layer has one kv head. */
static float *row_of(const struct k_kv *kv, const struct k_tokens *t, int seq, int pos)
{
    int32_t page = t->page_ids[(size_t)seq * t->pages_max + pos / kv->page_tokens];

    return (float *)kv->pages + (size_t)page * kv->page_elems + kv->layer_elems +
           (size_t)(pos % kv->page_tokens) * kv->head_dim;
}

/* x [dim], of which the first rope_dim elements are rotated. out may be x. */
static void turn(float *out, const float *x, const struct k_index *index, int pos)
{
    const struct k_index_shape *s = &index->shape;

    ref_latent_rotate(out, x, index->turns + (size_t)pos * (size_t)s->rope_dim, s->rope_dim,
                      index->interleaved);
    if (out != x)
        memcpy(out + s->rope_dim, x + s->rope_dim, (size_t)(s->dim - s->rope_dim) * sizeof *out);
}

void ref_index_keys(const float *in, const struct k_index *x, const struct k_kv *kv,
                    const struct k_tokens *t, int first, int last)
{
    int dim = x->shape.dim;
    const struct k_norm norm = {K_NORM_LAYER, x->norm, x->bias, x->eps};
    float key[K_INDEX_DIM_MAX];

    for (int i = first; i < last; i++) {
        if (t->kv_len[t->seq[i]] == 0)
            continue;
        ref_norm(key, in + (size_t)i * (size_t)dim, &norm, 1, dim);
        turn(row_of(kv, t, t->seq[i], t->pos[i]), key, x, t->pos[i]);
    }
}

/* Put x [n] in an order in which all before element k are at least as large, and all behind it at
 * most. Each turn leaves a part without the middle element, so there are fewer than n turns. */
static float find_largest(float *x, int n, int k)
{
    int from = 0, to = n - 1;

    while (from < to) {
        float middle = x[from + (to - from) / 2];
        int i = from, j = to;

        while (i <= j) {
            while (x[i] > middle)
                i++;
            while (x[j] < middle)
                j--;
            if (i <= j) {
                float swapped = x[i];

                x[i++] = x[j];
                x[j--] = swapped;
            }
        }
        if (k <= j)
            to = j;
        else if (k >= i)
            from = i;
        else
            break;
    }
    return x[k];
}

/* The scores of all positions that the token may see; a NaN is less than all numbers. */
static void score_keys(float *scores, const float *queries, const float *weights,
                       const struct k_index *x, const struct k_kv *kv, const struct k_tokens *t,
                       int token, int n)
{
    const struct k_index_shape *s = &x->shape;
    float query[K_INDEX_DIM_MAX];

    memset(scores, 0, (size_t)n * sizeof *scores);
    for (int head = 0; head < s->n_heads; head++) {
        size_t at = (size_t)token * (size_t)s->n_heads + (size_t)head;

        turn(query, queries + at * (size_t)s->dim, x, t->pos[token]);
        for (int i = 0; i < n; i++) {
            const float *key = row_of(kv, t, t->seq[token], i);
            float dot = 0.0f;

            for (int d = 0; d < s->dim; d++)
                dot += query[d] * key[d];
            scores[i] += weights[at] * fmaxf(dot, 0.0f);
        }
    }
    for (int i = 0; i < n; i++) {
        if (isnan(scores[i]))
            scores[i] = -INFINITY;
    }
}

void ref_index_choose(int32_t *chosen, const float *queries, const float *weights,
                      const struct k_index *x, const struct k_kv *kv, const struct k_tokens *t,
                      int token, float *scratch)
{
    int n = t->kv_len[t->seq[token]] == 0 ? 0 : t->pos[token] + 1;
    int n_keys = x->shape.n_keys, n_chosen = 0, n_equal = n_keys;
    float *scores = scratch, *order = scratch + n, least = -INFINITY;

    chosen += (size_t)token * (size_t)n_keys;
    if (n > n_keys) {
        score_keys(scores, queries, weights, x, kv, t, token, n);
        memcpy(order, scores, (size_t)n * sizeof *order);
        least = find_largest(order, n, n_keys - 1);
        for (int i = 0; i < n; i++)
            n_equal -= scores[i] > least; /* the places that are left for the least one's equals */
    }
    for (int i = 0; i < n && n_chosen < n_keys; i++) {
        bool is_equal = n > n_keys && scores[i] == least;

        if (n > n_keys && (scores[i] < least || (is_equal && n_equal == 0)))
            continue;
        n_equal -= is_equal;
        chosen[n_chosen++] = i;
    }
    while (n_chosen < n_keys)
        chosen[n_chosen++] = -1;
}

void ref_attn_chosen(float *out, const float *queries, const struct k_kv *kv,
                     const struct k_tokens *t, const struct k_choice *chosen, int n_heads,
                     float scale, int token, int head, float *scratch)
{
    size_t at = (size_t)token * (size_t)n_heads + (size_t)head;
    const float *query = queries + at * (size_t)kv->head_dim;
    float *out_row = out + at * (size_t)kv->value_dim, top = -INFINITY, sum = 0.0f;
    const int32_t *own = chosen->positions + (size_t)token * (size_t)chosen->n_keys;
    int n = 0;

    for (; n < chosen->n_keys && own[n] >= 0; n++) {
        const float *key = row_of(kv, t, t->seq[token], own[n]);
        float dot = 0.0f;

        for (int d = 0; d < kv->head_dim; d++)
            dot += query[d] * key[d];
        scratch[n] = dot * scale;
        top = fmaxf(top, scratch[n]);
    }
    memset(out_row, 0, (size_t)kv->value_dim * sizeof *out_row);
    for (int i = 0; i < n; i++) {
        const float *value = row_of(kv, t, t->seq[token], own[i]);
        float weight = expf(scratch[i] - top);

        sum += weight;
        for (int d = 0; d < kv->value_dim; d++)
            out_row[d] += weight * value[d];
    }
    for (int d = 0; d < kv->value_dim && n > 0; d++)
        out_row[d] /= sum;
}
