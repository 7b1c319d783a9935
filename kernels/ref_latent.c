/* SPDX-License-Identifier: Apache-2.0
 *
 * References of latent attention's steps before and behind attention itself, which is ref_attn()
 * with value_dim. */
#include "config.h"

#include <string.h>

#include "kernels/latent.h"

/* The two elements of a pair are next to each other, or half of x apart. */
void ref_latent_rotate(float *out, const float *x, const float *turns, int rope_dim,
                       bool interleaved)
{
    int half = rope_dim / 2;

    for (int i = 0; i < half; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        float x0 = x[a], x1 = x[b], cosine = turns[2 * i], sine = turns[2 * i + 1];

        out[a] = x0 * cosine - x1 * sine;
        out[b] = x1 * cosine + x0 * sine;
    }
}

static const float *turns_of(const struct k_latent *l, int pos)
{
    return l->turns + (size_t)pos * (size_t)l->shape.rope_dim;
}

/* The layer has one kv head, and a page nothing but rows. */
void ref_latent_keys(float *q, const float *in, const struct k_latent *l, const struct k_kv *kv,
                     const struct k_tokens *t, int first, int last)
{
    int width = k_latent_row(&l->shape), rank = l->shape.kv_rank, q_rank = l->shape.q_rank;

    for (int i = first; i < last; i++) {
        const float *begin = in + (size_t)i * (size_t)k_latent_in(&l->shape);
        const float *from = begin + k_latent_first(&l->shape);
        int seq = t->seq[i], pos = t->pos[i];
        int32_t page;
        float *row;

        if (q_rank > 0)
            ref_rmsnorm(q + (size_t)i * (size_t)q_rank, begin, l->q_norm, l->eps, 1, q_rank);
        if (t->kv_len[seq] == 0)
            continue;
        page = t->page_ids[(size_t)seq * t->pages_max + pos / kv->page_tokens];
        row = (float *)kv->pages + (size_t)page * kv->page_elems + kv->layer_elems +
              (size_t)(pos % kv->page_tokens) * (size_t)width;
        ref_rmsnorm(row, from, l->norm, l->eps, 1, rank);
        ref_latent_rotate(row + rank, from + rank, turns_of(l, pos), l->shape.rope_dim,
                          l->interleaved);
    }
}

/* The rows of a head's matrix in the order of its outputs. */
static const float *up_of(const struct k_latent *l, int head)
{
    const struct k_latent_shape *s = &l->shape;

    return (const float *)l->up + (size_t)head * (size_t)(s->nope_dim + s->v_dim) * s->kv_rank;
}

void ref_latent_queries(float *out, const float *in, const struct k_latent *l,
                        const struct k_tokens *t, int token, int head)
{
    const struct k_latent_shape *s = &l->shape;
    size_t at = (size_t)token * s->n_heads + head;
    const float *q = in + (size_t)token * (size_t)k_latent_stride(s) +
                     (size_t)head * (size_t)k_latent_query(s),
                *up = up_of(l, head);
    float *to = out + at * (size_t)k_latent_row(s);

    memset(to, 0, (size_t)s->kv_rank * sizeof *to);
    for (int d = 0; d < s->nope_dim; d++) {
        for (int j = 0; j < s->kv_rank; j++)
            to[j] += q[d] * up[(size_t)d * s->kv_rank + j];
    }
    ref_latent_rotate(to + s->kv_rank, q + s->nope_dim, turns_of(l, t->pos[token]), s->rope_dim,
                      l->interleaved);
}

void ref_latent_values(float *out, const float *in, const struct k_latent *l, int token, int head)
{
    const struct k_latent_shape *s = &l->shape;
    size_t at = (size_t)token * s->n_heads + head;
    const float *sum = in + at * (size_t)s->kv_rank;
    const float *up = up_of(l, head) + (size_t)s->nope_dim * s->kv_rank;
    float *to = out + at * (size_t)s->v_dim;

    for (int d = 0; d < s->v_dim; d++) {
        to[d] = 0.0f;
        for (int j = 0; j < s->kv_rank; j++)
            to[d] += sum[j] * up[(size_t)d * s->kv_rank + j];
    }
}
