/* SPDX-License-Identifier: Apache-2.0
 *
 * References of the operations on logits apart from sampling: log probabilities of the model's own
 * logits, masks and biases, and the log probability of the sampled id. */
#include "config.h"

#include <float.h>
#include <math.h>

#include "kernels/kernels.h"

/* A logit as it counts for log probabilities: NaN as -infinity, +infinity as FLT_MAX. */
static float tame(float x)
{
    if (x != x)
        return -INFINITY;
    return x > FLT_MAX ? FLT_MAX : x;
}

/* The largest logit is subtracted before exp(), which cannot overflow then. */
static float log_sum_of(const float *logits, int n_vocab)
{
    float top = -INFINITY;
    double sum = 0.0;

    for (int i = 0; i < n_vocab; i++)
        top = fmaxf(top, tame(logits[i]));
    if (top == -INFINITY)
        return 0.0f;
    for (int i = 0; i < n_vocab; i++)
        sum += exp((double)tame(logits[i]) - (double)top);
    return (float)((double)top + log(sum));
}

/* The n largest by insertion: equal ones stay in the order of ids. */
static void find_top(struct k_logprob_row *out, const float *logits, int n_vocab, int n)
{
    int n_found = 0;

    for (int32_t id = 0; id < n_vocab; id++) {
        float logit = tame(logits[id]);
        int at = n_found;

        while (at > 0 && logit > out->top[at - 1])
            at--;
        if (at == n)
            continue;
        n_found += n_found < n;
        for (int i = n_found - 1; i > at; i--) {
            out->top[i] = out->top[i - 1];
            out->ids[i] = out->ids[i - 1];
        }
        out->top[at] = logit;
        out->ids[at] = id;
    }
    out->n_top = n_found;
}

/* Read before the edit, so that the model's own logits are reported. */
void ref_read_asked(struct k_asked *asked, const float *logits, int n_vocab, int n)
{
    for (int i = 0; i < n; i++)
        asked[i].logit = tame(logits[(size_t)asked[i].row * (size_t)n_vocab + (size_t)asked[i].id]);
}

/* A rank is one plus the number of larger logits, so equal logits share a rank. */
void ref_logprobs(struct k_logprob_row *out, const float *logits, int n_vocab,
                  const struct k_logits_row *rows, int n)
{
    for (int row_idx = 0; row_idx < n; row_idx++) {
        const float *row = logits + (size_t)rows[row_idx].row * (size_t)n_vocab;
        float target;

        if (rows[row_idx].n_top < 0)
            continue;
        out[row_idx].log_sum = log_sum_of(row, n_vocab);
        find_top(&out[row_idx], row, n_vocab, rows[row_idx].n_top);
        out[row_idx].rank = 0;
        if (rows[row_idx].target == K_SAMPLED)
            continue;
        target = tame(row[rows[row_idx].target]);
        out[row_idx].chosen = target - out[row_idx].log_sum;
        out[row_idx].rank = 1;
        for (int i = 0; i < n_vocab; i++)
            out[row_idx].rank += tame(row[i]) > target;
    }
}

/* Masks first, then biases. The logit before a bias is kept, because log probabilities are of the
 * model's own distribution. */
void ref_edit(float *logits, int n_vocab, const struct k_logits_row *rows, int n,
              const uint32_t *masks, struct k_bias *biases)
{
    for (int row_idx = 0; row_idx < n; row_idx++) {
        float *row = logits + (size_t)rows[row_idx].row * (size_t)n_vocab;

        for (int i = 0; rows[row_idx].mask_at >= 0 && i < n_vocab; i++) {
            if ((masks[rows[row_idx].mask_at + i / 32] >> i % 32 & 1) == 0)
                row[i] = -INFINITY;
        }
        for (int i = 0; i < rows[row_idx].n_biases; i++) {
            struct k_bias *bias = &biases[rows[row_idx].biases_at + i];

            bias->raw = row[bias->id];
            row[bias->id] = bias->raw + bias->value;
        }
    }
}

/* After sampling: the sampled id's own logit is found under its bias, if it has one. */
void ref_chosen(struct k_logprob_row *out, const int32_t *ids, const float *logits, int n_vocab,
                const struct k_logits_row *rows, int n, const struct k_bias *biases)
{
    for (int row_idx = 0; row_idx < n; row_idx++) {
        int32_t id;
        float logit;

        if (rows[row_idx].n_top < 0 || rows[row_idx].target != K_SAMPLED)
            continue;
        id = ids[rows[row_idx].row];
        logit = logits[(size_t)rows[row_idx].row * (size_t)n_vocab + (size_t)id];
        for (int i = 0; i < rows[row_idx].n_biases; i++) {
            if (biases[rows[row_idx].biases_at + i].id == id)
                logit = biases[rows[row_idx].biases_at + i].raw;
        }
        out[row_idx].chosen = tame(logit) - out[row_idx].log_sum;
    }
}
