/* SPDX-License-Identifier: Apache-2.0
 *
 * References of rotary positions and of attention over pages. Attention is written as its
 * definition: scores, their maximum, weights, the weighted sum of values; no running softmax. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/e4m3.h"
#include "kernels/kernels.h"

/* The keys of one position of a sequence; its values are value_elems further on. */
static float *key_row(const struct k_kv *kv, const struct k_tokens *t, int seq, int pos,
                      int kv_head)
{
    int32_t page = t->page_ids[(size_t)seq * t->pages_max + pos / kv->page_tokens];
    size_t row = (size_t)kv_head * kv->page_tokens + pos % kv->page_tokens;

    return (float *)kv->pages + (size_t)page * kv->page_elems + kv->layer_elems +
           row * kv->head_dim;
}

static size_t value_elems(const struct k_kv *kv)
{
    if (kv->value_dim > 0) /* a value begins its key */
        return 0;
    return (size_t)kv->n_kv_heads * kv->page_tokens * kv->head_dim;
}

/* GPT-NeoX's pairs: element d with element d + head_dim / 2. */
static void rotate(float *out, const float *x, const float *turns, int head_dim)
{
    int half = head_dim / 2;

    for (int d = 0; d < half; d++) {
        float x0 = x[d], x1 = x[d + half], cosine = turns[2 * d], sine = turns[2 * d + 1];

        out[d] = x0 * cosine - x1 * sine;
        out[d + half] = x1 * cosine + x0 * sine;
    }
}

/* out may be x; weight NULL: no norm. */
static void norm_and_rotate(float *out, const float *x, const struct k_rotary *r,
                            const float *weight, int pos, int head_dim)
{
    float normed[K_HEAD_DIM_MAX];
    const float *turns = r->turns + (size_t)pos * head_dim;

    if (weight == NULL) {
        rotate(out, x, turns, head_dim);
    } else if (r->norms_after) {
        rotate(normed, x, turns, head_dim);
        ref_rmsnorm(out, normed, weight, r->eps, 1, head_dim);
    } else {
        ref_rmsnorm(normed, x, weight, r->eps, 1, head_dim);
        rotate(out, normed, turns, head_dim);
    }
}

/* Without weights. */
static void norm_value(float *out, const float *x, float eps, int head_dim)
{
    float ones[K_HEAD_DIM_MAX];

    for (int d = 0; d < head_dim; d++)
        ones[d] = 1.0f;
    ref_rmsnorm(out, x, ones, eps, 1, head_dim);
}

/* Queries are prepared in place; keys go to their pages, and values, copied or normed, beside
 * them. */
void ref_rope_kv(float *qkv, const struct k_kv *kv, const struct k_tokens *t,
                 const struct k_rotary *r, int n_heads, int first, int last)
{
    int hd = kv->head_dim;
    size_t stride = (size_t)k_qkv_heads(kv, n_heads) * hd;

    for (int i = first; i < last; i++) {
        float *row = qkv + (size_t)i * stride;

        if (t->kv_len[t->seq[i]] == 0)
            continue;
        for (int head = 0; head < n_heads; head++, row += hd)
            norm_and_rotate(row, row, r, r->q_norm, t->pos[i], hd);
        for (int head = 0; head < kv->n_kv_heads && !kv->is_shared; head++, row += hd) {
            float *key = key_row(kv, t, t->seq[i], t->pos[i], head);
            const float *value = row + (size_t)kv->n_kv_heads * hd;

            norm_and_rotate(key, row, r, r->k_norm, t->pos[i], hd);
            if (r->norms_values)
                norm_value(key + value_elems(kv), value, r->eps, hd);
            else
                memcpy(key + value_elems(kv), value, (size_t)hd * sizeof *row);
        }
    }
}

/* Scores of keys first .. last; returns their maximum. */
static float score_keys(float *scores, const float *query, const struct k_kv *kv,
                        const struct k_tokens *t, int seq, int kv_head, int first, int last,
                        float scale)
{
    float top = -INFINITY;

    for (int i = first; i <= last; i++) {
        const float *key = key_row(kv, t, seq, i, kv_head);
        float dot = 0.0f;

        for (int d = 0; d < kv->head_dim; d++)
            dot += query[d] * key[d];
        scores[i] = dot * scale;
        if (kv->cap > 0.0f)
            scores[i] = kv->cap * tanhf(scores[i] / kv->cap);
        top = fmaxf(top, scores[i]);
    }
    return top;
}

/* The first key that a token attends to. */
static int first_key(const struct k_kv *kv, int pos)
{
    return kv->window > 0 && pos >= kv->window ? pos - kv->window + 1 : 0;
}

/* Head by head: scores of all visible keys, their softmax, and the weighted sum of values in the
 * order of positions, in float32. */
void ref_attn(float *out, const float *qkv, const struct k_kv *kv, const struct k_tokens *t,
              int n_heads, float scale, int token, int kv_head, float *scratch)
{
    int hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    int vd = kv->value_dim > 0 ? kv->value_dim : hd;
    int seq = t->seq[token], last = t->pos[token], first = first_key(kv, last);

    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float *query =
            qkv + ((size_t)token * (size_t)k_qkv_heads(kv, n_heads) + (size_t)head) * hd;
        float *out_row = out + ((size_t)token * n_heads + head) * vd;
        float top = score_keys(scratch, query, kv, t, seq, kv_head, first, last, scale), sum = 0.0f;

        if (kv->sinks != NULL) {
            top = fmaxf(top, kv->sinks[head]);
            sum = expf(kv->sinks[head] - top);
        }
        memset(out_row, 0, (size_t)vd * sizeof *out_row);
        for (int i = first; i <= last; i++) {
            const float *value = key_row(kv, t, seq, i, kv_head) + value_elems(kv);
            float weight = expf(scratch[i] - top);

            sum += weight;
            for (int d = 0; d < vd; d++)
                out_row[d] += weight * value[d];
        }
        for (int d = 0; d < vd; d++)
            out_row[d] /= sum;
    }
}

/* Round to e4m3 with a power of 2 as scale, so that the largest magnitude is in [128, 256). */
static void round_query(float *out, const float *query, int head_dim)
{
    float most = 0x1p-60f;
    int exponent;

    for (int d = 0; d < head_dim; d++)
        most = fmaxf(most, fabsf(query[d]));
    (void)frexpf(most, &exponent); /* most < 2^exponent */
    for (int d = 0; d < head_dim; d++)
        out[d] = ldexpf(k_e4m3_value(k_e4m3_round(ldexpf(query[d], 8 - exponent))), exponent - 8);
}

/* Add the values of keys first .. last with rounded weights of at most 2^8 to out_row, times
 * 2^-8 share; returns the sum of the weights before they were rounded, times the same. */
static float add_rounded(float *out_row, const float *scores, float top, const struct k_kv *kv,
                         const struct k_tokens *t, int seq, int kv_head, int first, int last,
                         float share)
{
    float sum = 0.0f;

    for (int i = first; i <= last; i++) {
        const float *value = key_row(kv, t, seq, i, kv_head) + value_elems(kv);
        float weight = expf(scores[i] - top);
        float rounded = k_e4m3_value(k_e4m3_round(weight * 256.0f)) / 256.0f;

        sum += weight * share;
        for (int d = 0; d < kv->head_dim; d++)
            out_row[d] += rounded * share * value[d];
    }
    return sum;
}

/* In blocks of keys, as the weights of each are relative to the block's largest. */
void ref_attn_e4m3(float *out, const float *qkv, const struct k_kv *kv, const struct k_tokens *t,
                   int n_heads, float scale, int token, int kv_head, float *scratch)
{
    int hd = kv->head_dim, group = n_heads / kv->n_kv_heads, seq = t->seq[token];
    int last = t->pos[token], first = first_key(kv, last);
    float query[K_HEAD_DIM_MAX];

    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        float *out_row = out + ((size_t)token * n_heads + head) * hd, top, sum = 0.0f;

        round_query(query,
                    qkv + ((size_t)token * (size_t)k_qkv_heads(kv, n_heads) + (size_t)head) * hd,
                    hd);
        top = score_keys(scratch, query, kv, t, seq, kv_head, first, last, scale);
        if (kv->sinks != NULL) {
            top = fmaxf(top, kv->sinks[head]);
            sum = expf(kv->sinks[head] - top);
        }
        memset(out_row, 0, (size_t)hd * sizeof *out_row);
        for (int from = first, to; from <= last; from = to + 1) {
            float block_top = -INFINITY;

            to = from / K_ATTN_BLOCK * K_ATTN_BLOCK + K_ATTN_BLOCK - 1;
            to = to < last ? to : last;
            for (int i = from; i <= to; i++)
                block_top = fmaxf(block_top, scratch[i]);
            sum += add_rounded(out_row, scratch, block_top, kv, t, seq, kv_head, from, to,
                               expf(block_top - top));
        }
        for (int d = 0; d < hd; d++)
            out_row[d] /= sum;
    }
}
