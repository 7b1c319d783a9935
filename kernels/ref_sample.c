/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of sampling. Every filter keeps the largest values of z, so each is a threshold on the
 * sort key of z, and together they are the largest threshold. A threshold is found byte by byte
 * from the top, as in the kernel; the sums are of integers, so their order does not matter. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"

/* The lowest id among equals; NaN is less than all. */
static int32_t argmax(const float *z, int n)
{
    int32_t best = 0;

    for (int32_t i = 1; i < n; i++) {
        if (k_sort_key(z[i]) > k_sort_key(z[best]))
            best = i;
    }
    return best;
}

/* The values that the filters have kept so far. */
struct kept {
    const float *z;
    int n;
    float top;           /* the largest z */
    uint64_t min_weight; /* of min_p */
    uint32_t least_key;  /* of top_k, then of top_p */
};

/* The weight of id i, or 0 if a filter has removed it. */
static uint64_t weight_of(const struct kept *k, int i)
{
    uint64_t weight = k_exp_fixed(k->z[i] - k->top);

    return weight >= k->min_weight && k_sort_key(k->z[i]) >= k->least_key ? weight : 0;
}

/* One byte of a threshold: the bin, from the top, in which the running sum reaches *need; *need
 * becomes the rest that this bin must give. */
static uint32_t pick_bin(const uint64_t bins[256], uint64_t *need)
{
    uint32_t bin = 255;

    while (bin > 0 && bins[bin] < *need)
        *need -= bins[bin--];
    return bin;
}

/* The largest key such that at least need keys are as large. */
static uint32_t key_by_count(const struct kept *k, uint64_t need)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        uint64_t bins[256] = {0};

        for (int i = 0; i < k->n; i++) {
            uint32_t key = k_sort_key(k->z[i]);

            if (((uint64_t)key >> (shift + 8)) == prefix)
                bins[key >> shift & 255]++;
        }
        prefix = prefix << 8 | pick_bin(bins, &need);
    }
    return prefix;
}

/* The largest key such that the weights of all keys as large reach need. */
static uint32_t key_by_weight(const struct kept *k, uint64_t need)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        uint64_t bins[256] = {0};

        for (int i = 0; i < k->n; i++) {
            uint32_t key = k_sort_key(k->z[i]);

            if (((uint64_t)key >> (shift + 8)) == prefix)
                bins[key >> shift & 255] += weight_of(k, i);
        }
        prefix = prefix << 8 | pick_bin(bins, &need);
    }
    return prefix;
}

/* Integers, so the order of summation does not matter. */
static uint64_t weight_sum(const struct kept *k)
{
    uint64_t sum = 0;

    for (int i = 0; i < k->n; i++)
        sum += weight_of(k, i);
    return sum;
}

/* counts[] as in kernels.h: bit 0 for the prompt, the rest for the output. */
static void count_history(int32_t *counts, int n_vocab, const struct k_sample_row *row,
                          const int32_t *history)
{
    memset(counts, 0, (size_t)n_vocab * sizeof *counts);
    for (int i = 0; i < row->n_history; i++) {
        int32_t id = history[row->history_at + i];

        if (i < row->n_prompt)
            counts[id] |= 1;
        else
            counts[id] += 2;
    }
}

/* The id in whose part of the running sum r falls, in the order of ids. */
static int32_t draw(const struct kept *k, const struct k_sample_row *row, uint64_t sum)
{
    uint64_t drawn = k_mul_high(k_random(row->sampling.seed, row->position), sum);
    uint64_t run = 0;

    for (int32_t i = 0; i < k->n; i++) {
        run += weight_of(k, i);
        if (run > drawn)
            return i;
    }
    return 0; /* never reached, because drawn < sum */
}

/* The order of the filters is vLLM's: penalties, temperature, min_p, top_k, top_p. */
int32_t ref_sample(const float *logits, int n_vocab, const struct k_sample_row *row,
                   const int32_t *history, float *scratch, int32_t *counts)
{
    struct kept kept = {.z = scratch, .n = n_vocab};
    uint64_t sum;
    int32_t best;

    if (row->n_history == 0 && row->n_banned == 0 && row->sampling.temperature <= 0.0f)
        return argmax(logits, n_vocab);
    memcpy(scratch, logits, (size_t)n_vocab * sizeof *scratch);
    if (row->n_history > 0) {
        count_history(counts, n_vocab, row, history);
        for (int i = 0; i < n_vocab; i++)
            scratch[i] =
                k_penalise(logits[i], counts[i], row->sampling.repetition_penalty,
                           row->sampling.frequency_penalty, row->sampling.presence_penalty);
    }
    for (int i = 0; i < row->n_banned; i++)
        scratch[row->banned[i]] = -INFINITY;
    best = argmax(scratch, n_vocab);
    if (row->sampling.temperature <= 0.0f)
        return best;
    for (int i = 0; i < n_vocab; i++)
        scratch[i] /= row->sampling.temperature;
    kept.top = scratch[best];
    kept.min_weight = k_min_weight(row->sampling.min_p);
    if (row->sampling.top_k > 0 && row->sampling.top_k < n_vocab)
        kept.least_key = key_by_count(&kept, (uint64_t)row->sampling.top_k);
    if ((sum = weight_sum(&kept)) == 0)
        return best;
    if (row->sampling.top_p < 1.0f) {
        uint32_t key = key_by_weight(&kept, k_top_weight(row->sampling.top_p, sum));

        kept.least_key = key > kept.least_key ? key : kept.least_key;
        sum = weight_sum(&kept);
    }
    return draw(&kept, row, sum);
}
