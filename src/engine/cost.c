/* SPDX-License-Identifier: Apache-2.0
 *
 * The filter works on the logarithms of factors around 1, so one deviation and one growth suit all
 * parts, and no factor becomes negative. With h the parts' times, and P the covariance of the
 * logarithms:
 *
 *   foretold = sum of h,  gain = P h / (h . P h + noise),  log factor += gain * (taken - foretold)
 *
 * Between two knots a step's tokens have the whole of all parts below and a share of the one that
 * they are in; as no factor is negative, the line through the knots never falls.
 *
 * Source: recursive least squares as a Kalman filter of a random walk, Haykin, Adaptive Filter
 * Theory, chapter 14. */
#include "engine/cost.h"

#include <math.h>
#include <string.h>

#include "base/must.h"

#define COST_GUESS_SPREAD 1.5  /* of a factor's logarithm before anything is measured */
#define COST_START_SPREAD 0.05 /* and after the trials: a clock's rate changes by so much */
#define COST_DRIFT        5e-7 /* variance that a step adds: 0.2 in some 80,000 steps */
#define COST_ODD_STEPS    3
#define COST_ODD_DRIFT    0.01
#define COST_PASSES       8    /* over the trials; after 4 the factors hardly change */
#define COST_STEP_MAX     0.7  /* of a logarithm at once: twice, or half */
#define COST_NOISE        0.03 /* deviation of steps of equal parts, of their time */
#define COST_NOISE_US     30.0 /* and of short ones */
#define COST_OUTLIER      4.0  /* deviations that a step may be off; more count as these */
#define COST_ERROR_STEPS  128.0
#define COST_MARGIN       3.0 /* mean errors, some 2.4 deviations: 99 of 100 steps are within */
#define COST_MARGIN_MAX   0.25
#define COST_AUTO_FIXED   8.0 /* see cost_target_us() */
#define COST_AUTO_MIN_US  40000.0
#define COST_AUTO_MAX_US  1000000.0
#define COST_FIRST_KNOT   16

/* First guesses: a GPU of 2023 and a desktop's processor, per second. */
#define COST_GPU_BYTES 3e12
#define COST_GPU_FLOPS 4e14
#define COST_CPU_BYTES 2e10
#define COST_CPU_FLOPS 1e11

/* Tokens at knot k: 1, 16, 32, ... */
static double cost_knot(int k)
{
    return k == 0 ? 1.0 : (double)(COST_FIRST_KNOT << (k - 1));
}

/* Nothing is known of how factors depend on one another. */
static void cost_reset(struct cost *c, double spread)
{
    memset(c->cov, 0, sizeof c->cov);
    for (int i = 0; i < COST_PARTS; i++)
        c->cov[i][i] = spread * spread;
    c->spread = spread;
}

void cost_init(struct cost *c, const struct cost_shape *shape)
{
    double bytes_us = 1e6 / (shape->is_gpu ? COST_GPU_BYTES : COST_CPU_BYTES);
    double flops_us = 1e6 / (shape->is_gpu ? COST_GPU_FLOPS : COST_CPU_FLOPS);

    _Static_assert(COST_KNOTS - 1 < 31, "the last knot is an int");
    *c = (struct cost){.shape = *shape, .least = 0.01, .most = 100.0};
    c->unit_us[COST_FIXED] = 50.0 + shape->weight_bytes * bytes_us;
    /* One unit of a part between knots is the whole way from the one to the other. */
    for (int k = 0; k + 1 < COST_KNOTS; k++)
        c->unit_us[COST_PRODUCTS + k] =
            (cost_knot(k + 1) - cost_knot(k)) * shape->token_flops * flops_us;
    c->unit_us[COST_DECODE_KEYS] = shape->key_bytes * bytes_us;
    c->unit_us[COST_PROMPT_PAIRS] = shape->pair_flops * flops_us;
    c->unit_us[COST_PROMPT_KEYS] = shape->key_bytes * bytes_us;
    c->unit_us[COST_ROWS] = 1.0 + shape->row_flops * flops_us;
    c->unit_us[COST_CHUNKS] = 5.0;
    for (int i = 0; i < COST_PARTS; i++)
        c->factor[i] = 1.0;
    cost_reset(c, COST_GUESS_SPREAD);
}

/* --- what a step has ---------------------------------------------------------------------- */

/* Of n tokens, those whose keys the last one sees: a mean over the groups of layers that have keys,
 * because each of them has as many layers. */
static double cost_seen(const struct cost *c, double n)
{
    double sum = 0.0;

    for (int i = 0; i < c->shape.n_groups; i++) {
        const struct cache_group *group = &c->shape.groups[i];

        if (group->kind == CACHE_FULL)
            sum += n;
        else if (group->kind == CACHE_WINDOW)
            sum += fmin(n, group->window);
    }
    return c->shape.n_groups > 0 ? sum / c->shape.n_groups : n;
}

/* Pairs of each of the first n tokens and the keys that it sees. */
static double cost_pairs(const struct cost *c, double n)
{
    double sum = 0.0;

    for (int i = 0; i < c->shape.n_groups; i++) {
        const struct cache_group *group = &c->shape.groups[i];
        double whole = n;

        if (group->kind == CACHE_STATE)
            continue;
        if (group->kind == CACHE_WINDOW && n > group->window) {
            whole = group->window;
            sum += (n - whole) * whole;
        }
        sum += whole * (whole + 1.0) / 2.0;
    }
    return c->shape.n_groups > 0 ? sum / c->shape.n_groups : n * (n + 1.0) / 2.0;
}

void cost_add(const struct cost *c, struct cost_step *step, int n_before, int n, int n_rows)
{
    step->n_tokens += n;
    step->n_rows += n_rows;
    if (n == 1) {
        step->decode_keys += cost_seen(c, n_before + 1.0);
        return;
    }
    step->n_chunks++;
    step->prompt_keys += cost_seen(c, (double)n_before + n);
    step->prompt_pairs += cost_pairs(c, (double)n_before + n) - cost_pairs(c, n_before);
}

/* Sums of doubles that are taken away in another order may leave a rest, which is nothing beside a
 * key. */
void cost_take(const struct cost *c, struct cost_step *step, int n_before, int n, int n_rows)
{
    struct cost_step of_seq = {0};

    cost_add(c, &of_seq, n_before, n, n_rows);
    step->n_tokens -= of_seq.n_tokens;
    step->n_rows -= of_seq.n_rows;
    step->n_chunks -= of_seq.n_chunks;
    step->decode_keys = fmax(0.0, step->decode_keys - of_seq.decode_keys);
    step->prompt_pairs = fmax(0.0, step->prompt_pairs - of_seq.prompt_pairs);
    step->prompt_keys = fmax(0.0, step->prompt_keys - of_seq.prompt_keys);
}

/* --- foretelling -------------------------------------------------------------------------- */

/* Products compute whole tiles of rows, so tokens up to the end of a tile cost nothing more. Steps
 * of few tokens have kernels of their own, which follow them closely. */
static double cost_rows_of(const struct cost *c, int64_t n_tokens)
{
    int64_t tile = c->shape.tile_tokens;

    if (tile <= 1 || n_tokens <= 2 * tile)
        return (double)n_tokens;
    return (double)((n_tokens + tile - 1) / tile * tile);
}

/* The parts' times at factor 1. */
static void cost_parts(const struct cost *c, const struct cost_step *step, double x[COST_PARTS])
{
    double n = cost_rows_of(c, step->n_tokens);

    memset(x, 0, sizeof *x * COST_PARTS);
    x[COST_FIXED] = c->unit_us[COST_FIXED];
    for (int k = 0; k + 1 < COST_KNOTS && n > cost_knot(k); k++) {
        double share = (n - cost_knot(k)) / (cost_knot(k + 1) - cost_knot(k));

        x[COST_PRODUCTS + k] = c->unit_us[COST_PRODUCTS + k] * fmin(share, 1.0);
    }
    x[COST_DECODE_KEYS] = c->unit_us[COST_DECODE_KEYS] * step->decode_keys;
    x[COST_PROMPT_PAIRS] = c->unit_us[COST_PROMPT_PAIRS] * step->prompt_pairs;
    x[COST_PROMPT_KEYS] = c->unit_us[COST_PROMPT_KEYS] * step->prompt_keys;
    x[COST_ROWS] = c->unit_us[COST_ROWS] * (double)step->n_rows;
    x[COST_CHUNKS] = c->unit_us[COST_CHUNKS] * (double)step->n_chunks;
}

static double cost_sum(const struct cost *c, const double x[COST_PARTS])
{
    double us = 0.0;

    for (int i = 0; i < COST_PARTS; i++)
        us += x[i] * c->factor[i];
    return us;
}

double cost_us(const struct cost *c, const struct cost_step *step)
{
    double x[COST_PARTS];

    cost_parts(c, step, x);
    return cost_sum(c, x);
}

int cost_fits(const struct cost *c, const struct cost_step *step, int n_before, int n,
              double limit_us)
{
    int low = 0, high = n;

    /* low fits, or is 0; whatever is above high does not, or is above n. */
    while (low < high) { /* halves the difference */
        int middle = low + (high - low + 1) / 2;
        struct cost_step more = *step;

        cost_add(c, &more, n_before, middle, 1);
        if (cost_us(c, &more) <= limit_us)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* --- learning ----------------------------------------------------------------------------- */

/* Let the factors' uncertainty grow, up to that of the start: rows and columns are scaled together,
 * so that it stays a covariance. */
static void cost_drift(struct cost *c, double drift)
{
    for (int i = 0; i < COST_PARTS; i++) {
        double most = c->spread * c->spread, scale;

        c->cov[i][i] += drift;
        if (c->cov[i][i] <= most)
            continue;
        scale = sqrt(most / c->cov[i][i]);
        for (int k = 0; k < COST_PARTS; k++) {
            c->cov[i][k] *= scale;
            c->cov[k][i] *= scale;
        }
    }
}

/* Correct the factors by what a step took beyond what was foretold. h: the parts' times, which are
 * also their derivatives by the factors' logarithms. */
static void cost_correct(struct cost *c, const double h[COST_PARTS], double us, double beyond_us)
{
    double ph[COST_PARTS], noise = COST_NOISE * us + COST_NOISE_US, var = noise * noise, most;

    for (int i = 0; i < COST_PARTS; i++) {
        ph[i] = 0.0;
        for (int k = 0; k < COST_PARTS; k++)
            ph[i] += c->cov[i][k] * h[k];
    }
    for (int i = 0; i < COST_PARTS; i++)
        var += h[i] * ph[i];
    most = COST_OUTLIER * sqrt(var);
    c->n_odd = fabs(beyond_us) > most ? c->n_odd + 1 : 0;
    beyond_us = fmax(-most, fmin(most, beyond_us));
    for (int i = 0; i < COST_PARTS; i++) {
        double step = fmax(-COST_STEP_MAX, fmin(COST_STEP_MAX, ph[i] / var * beyond_us));

        c->factor[i] = fmax(c->least, fmin(c->most, c->factor[i] * exp(step)));
        for (int k = 0; k < COST_PARTS; k++)
            c->cov[i][k] -= ph[i] * ph[k] / var;
    }
}

double cost_learn(struct cost *c, const struct cost_step *step, double us)
{
    double h[COST_PARTS], foretold = 0.0, error, weight;

    must(us > 0.0);
    cost_parts(c, step, h);
    for (int i = 0; i < COST_PARTS; i++) {
        h[i] *= c->factor[i];
        foretold += h[i];
    }
    error = fabs(foretold - us) / us;
    c->n_learned++;
    if (step->n_tokens > c->n_tokens_seen)
        c->n_tokens_seen = step->n_tokens;
    weight = fmax(1.0 / COST_ERROR_STEPS, 1.0 / (double)c->n_learned);
    c->error += weight * (fmin(error, 1.0) - c->error);
    /* One odd step was delayed; several in a row are of another device than was learned. */
    cost_drift(c, c->n_odd >= COST_ODD_STEPS ? COST_ODD_DRIFT : COST_DRIFT);
    /* The noise is of the shorter time: a step that was delayed does not make itself credible. */
    cost_correct(c, h, fmin(us, foretold), us - foretold);
    return error;
}

/* A step of one sequence. */
static const struct cost_step cost_one = {.n_tokens = 1, .n_rows = 1, .decode_keys = 1.0};

/* Steps longer than all that were learned from: a token costs what it does in the longest. */
static void cost_extend(struct cost *c)
{
    double token_us = 0.0;

    for (int k = 0; k + 1 < COST_KNOTS; k++) {
        double *unit_us = &c->unit_us[COST_PRODUCTS + k];

        if (cost_knot(k + 1) <= (double)c->n_tokens_seen)
            token_us = *unit_us / (cost_knot(k + 1) - cost_knot(k));
        else if (token_us > 0.0)
            *unit_us = token_us * (cost_knot(k + 1) - cost_knot(k));
    }
}

void cost_fit(struct cost *c, const struct cost_step *steps, const double *us, int n)
{
    /* The sum is not linear in the logarithms, so each pass begins where the last one ended. */
    for (int pass = 0; pass < COST_PASSES; pass++) {
        cost_reset(c, COST_GUESS_SPREAD);
        for (int i = 0; i < n; i++)
            (void)cost_learn(c, &steps[i], us[i]);
    }
    for (int i = 0; i < COST_PARTS; i++) {
        c->unit_us[i] *= c->factor[i];
        c->factor[i] = 1.0;
    }
    cost_reset(c, COST_START_SPREAD);
    cost_extend(c);
    c->one_us = cost_us(c, &cost_one);
    c->least = 0.25;
    c->most = 4.0;
    c->error = COST_NOISE;
    c->n_learned = 0;
}

double cost_target_us(const struct cost *c, int target_ms, int n_stages)
{
    double us = target_ms * 1e3 / n_stages, one_us = c->one_us;

    if (target_ms == 0)
        return 0.0;
    if (one_us <= 0.0)
        one_us = cost_us(c, &cost_one);
    if (target_ms < 0)
        us = fmin(COST_AUTO_MAX_US, fmax(COST_AUTO_MIN_US, COST_AUTO_FIXED * one_us)) / n_stages;
    return us / (1.0 + fmin(COST_MARGIN_MAX, COST_MARGIN * c->error));
}
