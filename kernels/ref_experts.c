/* SPDX-License-Identifier: Apache-2.0
 *
 * References of an FFN of experts: the router's choices, the order of routes by experts, and the
 * sum of the experts' results.
 *
 * Choices are made of float32 logits, one token at a time. Sums of products are float64, as in the
 * other references. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* --- choices ------------------------------------------------------------------------------ */

/* Softmax of n logits in place. */
static void softmax(float *x, int n)
{
    float top = -INFINITY, sum = 0.0f;

    for (int i = 0; i < n; i++)
        top = fmaxf(top, x[i]);
    for (int i = 0; i < n; i++) {
        x[i] = expf(x[i] - top);
        sum += x[i];
    }
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

/* The index of the largest of x [n] that is not taken; the lowest among equals. NaN is less than
 * all. */
static int largest(const float *x, const bool *taken, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        if (!taken[i] && (best < 0 || x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))))
            best = i;
    }
    return best;
}

/* The sum of the group_best best of a group's choices. */
static float group_score(const float *choice, const struct k_router *r, int group)
{
    int size = r->n_experts / r->n_groups;
    bool taken[K_EXPERTS_MAX] = {false};
    float sum = 0.0f;

    for (int i = 0; i < r->group_best && i < size; i++) {
        int best = largest(choice + group * size, taken, size);

        taken[best] = true;
        sum += choice[group * size + best];
    }
    return sum;
}

/* Mark the experts of groups that do not take part. */
static void close_groups(bool *closed, const float *choice, const struct k_router *r)
{
    int size = r->n_experts / r->n_groups;
    float scores[K_EXPERTS_MAX];
    bool open[K_EXPERTS_MAX] = {false};

    for (int group = 0; group < r->n_groups; group++)
        scores[group] = group_score(choice, r, group);
    for (int i = 0; i < r->n_groups_used; i++)
        open[largest(scores, open, r->n_groups)] = true;
    for (int i = 0; i < r->n_experts; i++)
        closed[i] = !open[i / size];
}

/* The weight of the largest logit that is not taken, among those near it. */
static float mixer_weight(const float *logits, const bool *taken, const struct k_router *r,
                          int best)
{
    float sum = 0.0f, top = logits[best];

    for (int i = 0; i < r->n_experts; i++) {
        float apart = (top - logits[i]) / fmaxf(fabsf(logits[i]), top);

        if (!taken[i] && !(apart > 2.0f * r->spread))
            sum += expf(logits[i] - top);
    }
    return 1.0f / sum;
}

/* Scores of one token, from its logits, in place. */
static void score(float *x, const struct k_router *r)
{
    switch (r->scoring) {
    case K_SCORE_SOFTMAX: softmax(x, r->n_experts); break;
    case K_SCORE_SIGMOID:
        for (int i = 0; i < r->n_experts; i++)
            x[i] = 1.0f / (1.0f + expf(-x[i]));
        break;
    case K_SCORE_TOP:
    case K_SCORE_MIXER: break;
    }
}

/* Weights of the chosen experts, from their scores, in place. */
static void weigh(float *weights, const int32_t *ids, const struct k_router *r)
{
    int n = r->n_used - r->n_shared;
    float sum = 0.0f;

    if (r->scoring == K_SCORE_TOP)
        softmax(weights, n);
    for (int i = 0; i < n; i++)
        sum += weights[i];
    for (int i = 0; i < n; i++) {
        if (r->renorms)
            weights[i] /= fmaxf(sum, r->least);
        weights[i] *= r->scale;
        if (r->scales != NULL)
            weights[i] *= r->scales[ids[i]];
    }
}

/* One token. */
static void choose(int32_t *ids, float *weights, const float *logits, const struct k_router *r)
{
    float scores[K_EXPERTS_MAX], choice[K_EXPERTS_MAX];
    bool taken[K_EXPERTS_MAX] = {false};

    memcpy(scores, logits, (size_t)r->n_experts * sizeof *scores);
    for (int i = 0; i < r->n_experts && r->cap > 0.0f; i++)
        scores[i] = r->cap * tanhf(scores[i] / r->cap);
    score(scores, r);
    for (int i = 0; i < r->n_experts; i++)
        choice[i] = scores[i] + (r->bias != NULL ? r->bias[i] : 0.0f);
    if (r->n_groups > 1)
        close_groups(taken, choice, r);
    for (int slot = 0; slot < r->n_used - r->n_shared; slot++) {
        int best = largest(choice, taken, r->n_experts);

        ids[slot] = best;
        weights[slot] =
            r->scoring == K_SCORE_MIXER ? mixer_weight(scores, taken, r, best) : scores[best];
        taken[best] = true;
    }
    weigh(weights, ids, r);
    for (int i = 0; i < r->n_shared; i++) {
        ids[r->n_used - r->n_shared + i] = r->n_experts + i;
        weights[r->n_used - r->n_shared + i] = 1.0f;
    }
}

void ref_choose(const struct k_routes *out, const float *logits, const struct k_router *r, int n)
{
    for (int token = 0; token < n; token++)
        choose(out->ids + (size_t)token * (size_t)r->n_used,
               out->weights + (size_t)token * (size_t)r->n_used,
               logits + (size_t)token * (size_t)r->n_experts, r);
}

/* y [n_out] = w [n_out][n_in] * x [n_in] */
static void multiply(float *y, const float *w, const float *x, int n_out, int n_in)
{
    for (int out = 0; out < n_out; out++, w += n_in) {
        double sum = 0.0;

        for (int in = 0; in < n_in; in++)
            sum += (double)w[in] * (double)x[in];
        y[out] = (float)sum;
    }
}

/* y [n] += the bias of an expert; bias [experts][n] or NULL. */
static void add_bias(float *y, const float *bias, int expert, int n)
{
    for (int i = 0; i < n && bias != NULL; i++)
        y[i] += bias[(size_t)expert * (size_t)n + (size_t)i];
}

void ref_route(const struct k_routes *out, const float *x, const struct k_router *r, int n, int dim)
{
    float logits[K_EXPERTS_MAX];

    for (int token = 0; token < n; token++) {
        const struct k_routes one = {out->ids + (size_t)token * (size_t)r->n_used,
                                     out->weights + (size_t)token * (size_t)r->n_used};

        multiply(logits, r->w, x + (size_t)token * (size_t)dim, r->n_experts, dim);
        add_bias(logits, r->logit_bias, 0, r->n_experts);
        ref_choose(&one, logits, r, 1);
        if (r->shared_switch == NULL)
            continue;
        multiply(logits, r->shared_switch, x + (size_t)token * (size_t)dim, 1, dim);
        one.weights[r->n_used - 1] = 1.0f / (1.0f + expf(-logits[0]));
    }
}

/* --- order -------------------------------------------------------------------------------- */

/* A counting sort, so routes of an expert stay in the order of tokens. */
void ref_sort_routes(const struct k_sorted *out, const int32_t *ids, const struct k_experts *e,
                     int n_routes)
{
    int32_t at[K_EXPERTS_MAX] = {0}, sum = 0;

    for (int i = 0; i < n_routes; i++) {
        if (ids[i] >= e->first && ids[i] < e->first + e->n)
            at[ids[i] - e->first]++;
    }
    for (int i = 0; i < e->n; i++) {
        int32_t count = at[i];

        out->starts[i] = at[i] = sum;
        sum += count;
    }
    out->starts[e->n] = sum;
    for (int i = 0; i < n_routes; i++) {
        bool mine = ids[i] >= e->first && ids[i] < e->first + e->n;

        out->places[i] = -1;
        if (!mine)
            continue;
        out->places[i] = at[ids[i] - e->first]++;
        out->routes[out->places[i]] = i;
    }
}

/* --- results ------------------------------------------------------------------------------ */

/* The factor of a token's result that out has already. */
static float own_factor(const struct k_combining *c, int token)
{
    const float *x = (const float *)c->x + (size_t)token * (size_t)c->dim;
    double sum = 0.0;

    if (c->switches == NULL)
        return 1.0f;
    for (int d = 0; d < c->dim; d++)
        sum += (double)x[d] * (double)c->switches[d];
    return (float)(1.0 / (1.0 + exp(-sum)));
}

void ref_combine(float *out, const float *y, const struct k_combining *c, int n)
{
    for (int token = 0; token < n; token++, out += c->dim) {
        float own = c->adds ? own_factor(c, token) : 0.0f;

        for (int d = 0; d < c->dim; d++)
            out[d] = c->adds ? own * out[d] : 0.0f;
        for (int slot = 0; slot < c->n_used; slot++) {
            size_t route = (size_t)token * (size_t)c->n_used + (size_t)slot;
            const float *row = y + (size_t)c->places[route] * (size_t)c->dim;

            for (int d = 0; d < c->dim && c->places[route] >= 0; d++)
                out[d] += c->weights[route] * row[d];
        }
    }
}

/* One expert for one token; h is scratch [3 * ff_dim]. */
static void run_expert(float *y, const float *x, const struct k_experts *e, int expert, float *h)
{
    size_t dim = (size_t)e->in.n_in, ff_dim = (size_t)e->ff_dim, at = (size_t)expert * ff_dim * dim;
    int rows = e->is_plain ? e->ff_dim : 2 * e->ff_dim;

    multiply(h, (const float *)e->in.data + (size_t)(rows / e->ff_dim) * at, x, rows, e->in.n_in);
    add_bias(h, (const float *)e->in_bias, expert, rows);
    if (e->is_plain)
        memcpy(h + ff_dim, h, ff_dim * sizeof *h);
    ref_gate(h + 2 * ff_dim, h, e->activation, 1, e->ff_dim);
    multiply(y, (const float *)e->down.data + at, h + 2 * ff_dim, e->in.n_in, e->ff_dim);
    add_bias(y, (const float *)e->down_bias, expert, e->in.n_in);
}

/* Results in the order of experts, then their sums. No memory: nothing is written, and out keeps
 * its numbers; tests notice. */
void ref_experts(float *out, const float *x, const struct k_experts *e,
                 const struct k_routes *routes, const struct k_combining *c, int n)
{
    size_t n_routes = (size_t)n * (size_t)c->n_used, dim = (size_t)c->dim;
    float *y = malloc((n_routes * dim + 3 * (size_t)e->ff_dim) * sizeof *y);
    int32_t *numbers = malloc((2 * n_routes + (size_t)e->n + 1) * sizeof *numbers);
    const struct k_sorted sorted = {numbers, numbers + e->n + 1, numbers + e->n + 1 + n_routes};
    struct k_combining combining = *c;

    if (y != NULL && numbers != NULL) {
        ref_sort_routes(&sorted, routes->ids, e, (int)n_routes);
        for (int i = 0; i < e->n; i++) {
            for (int32_t at = sorted.starts[i]; at < sorted.starts[i + 1]; at++)
                run_expert(y + (size_t)at * dim, x + (size_t)(sorted.routes[at] / c->n_used) * dim,
                           e, i, y + n_routes * dim);
        }
        combining.weights = routes->weights;
        combining.places = sorted.places;
        ref_combine(out, y, &combining, n);
    }
    free(y);
    free(numbers);
}
