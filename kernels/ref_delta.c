/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference of the gated delta rule: one key head after another, token by token. The cpu device
 * runs it, so a head's matrix is copied out of the pages once per step, and its loops run along
 * rows of values. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/delta.h"
#include "kernels/ref_state.h"

#define LENGTH_EPS 1e-6f /* of the lengths of queries and keys */

/* One step of one sequence. */
struct delta_step {
    const struct k_delta *d;
    const struct k_state *state;
    const struct k_tokens *t;
    const float *in, *gates;
    int seq;
    int begin, end; /* its tokens */
    int pos;        /* of the first one */
};

/* A head's channels of the convolution, with the inputs before the step. */
struct delta_conv {
    const float *taps; /* [dim][n_taps] */
    int channel, dim;  /* the first one, and their number */
    float kept[K_CONV_TAPS_MAX][K_DELTA_REF_DIM_MAX];
};

/* --- states ------------------------------------------------------------------------------- */

static void delta_load(const struct delta_step *step, float *to, size_t i, size_t n)
{
    state_load(step->state, step->t, step->seq, to, i, n);
}

static void delta_store(const struct delta_step *step, const float *from, size_t i, size_t n)
{
    state_store(step->state, step->t, step->seq, from, i, n);
}

/* --- the convolution ------------------------------------------------------------------------ */

/* Where the inputs of a channel's row begin in the state. */
static size_t delta_ring_at(const struct k_delta_shape *s, int row, int channel)
{
    return (size_t)s->n_v_heads * k_delta_matrix(s) + (size_t)row * (size_t)k_delta_channels(s) +
           (size_t)channel;
}

static size_t delta_row(const struct k_delta_shape *s, int token)
{
    return (size_t)token * (size_t)k_delta_row(s);
}

static void delta_open_conv(const struct delta_step *step, struct delta_conv *c)
{
    const struct k_delta_shape *s = &step->d->shape;

    for (int row = 0; row < s->n_taps; row++)
        delta_load(step, c->kept[row], delta_ring_at(s, row, c->channel), (size_t)c->dim);
}

/* The inputs of the last tokens replace older ones. */
static void delta_close_conv(const struct delta_step *step, const struct delta_conv *c)
{
    const struct k_delta_shape *s = &step->d->shape;
    int first = step->end - s->n_taps;

    for (int i = first > step->begin ? first : step->begin; i < step->end; i++)
        delta_store(step, step->in + delta_row(s, i) + c->channel,
                    delta_ring_at(s, (step->pos + i - step->begin) % s->n_taps, c->channel),
                    (size_t)c->dim);
}

/* out [dim]: the channels at a token. */
static void delta_convolve(const struct delta_step *step, const struct delta_conv *c, float *out,
                           int token)
{
    const struct k_delta_shape *s = &step->d->shape;
    int pos = step->pos + token - step->begin;

    memset(out, 0, (size_t)c->dim * sizeof *out);
    for (int tap = 0; tap < s->n_taps; tap++) {
        int back = s->n_taps - 1 - tap;
        const float *x = step->in + c->channel;

        if (pos < back)
            continue;
        if (token - back >= step->begin)
            x += delta_row(s, token - back);
        else
            x = c->kept[(pos - back) % s->n_taps];
        for (int i = 0; i < c->dim; i++)
            out[i] += c->taps[i * s->n_taps + tap] * x[i];
    }
    for (int i = 0; i < c->dim; i++)
        out[i] *= state_sigmoid(out[i]);
}

/* The same, of length `length`. */
static void delta_convolve_unit(const struct delta_step *step, const struct delta_conv *c,
                                float *out, int token, float length)
{
    double sum = 0.0;
    float scale;

    delta_convolve(step, c, out, token);
    for (int i = 0; i < c->dim; i++)
        sum += (double)out[i] * (double)out[i];
    scale = length / sqrtf((float)sum + LENGTH_EPS);
    for (int i = 0; i < c->dim; i++)
        out[i] *= scale;
}

/* --- heads ---------------------------------------------------------------------------------- */

/* out [values] = the normed and gated result o [v_dim] of a head at a token. */
static void delta_finish(const struct delta_step *step, float *out, const float *o, int token,
                         int head)
{
    const struct k_delta *d = step->d;
    const struct k_delta_shape *s = &d->shape;
    const float *norm = d->norm, *z = step->in + delta_row(s, token) + k_delta_channels(s);
    size_t at = (size_t)token * (size_t)k_delta_values(s);
    int turn = s->n_v_heads / s->n_k_heads;
    double sum = 0.0;
    float scale;

    if (s->by_channel)
        z = (const float *)d->z + at;
    z += head * s->v_dim;
    if (d->out_in_turns)
        head = head % turn * s->n_k_heads + head / turn;
    out += at + (size_t)(head * s->v_dim);
    for (int j = 0; j < s->v_dim; j++)
        sum += (double)o[j] * (double)o[j];
    scale = 1.0f / sqrtf((float)(sum / s->v_dim) + d->eps);
    for (int j = 0; j < s->v_dim; j++) {
        float open = state_sigmoid(z[j]);

        out[j] = o[j] * scale * norm[j] * (s->by_channel ? open : z[j] * open);
    }
}

/* keep [k_dim] = the factors of the rows of a head's matrix before a token. */
static void delta_forget(const struct delta_step *step, float *keep, int token, int head)
{
    const struct k_delta *d = step->d;
    const struct k_delta_shape *s = &d->shape;
    float rate = expf(d->a_log[head]);
    const float *a, *bias = d->dt_bias;
    size_t row = (size_t)token * (size_t)s->n_v_heads;
    float one;

    if (s->by_channel) {
        a = d->a + (row + (size_t)head) * (size_t)s->k_dim;
        bias += head * s->k_dim;
        for (int i = 0; i < s->k_dim; i++)
            keep[i] = expf(-rate * state_softplus(a[i] + bias[i]));
        return;
    }
    one = step->gates[2 * row + (size_t)(s->n_v_heads + head)];
    one = expf(-rate * state_softplus(one + bias[head]));
    for (int i = 0; i < s->k_dim; i++)
        keep[i] = one;
}

/* m [k_dim][v_dim] forgets, takes the value v at key k, and is read with q into o [v_dim]. */
static void delta_update(const struct k_delta_shape *s, float *m, const float *q, const float *k,
                         const float *v, const float *keep, float beta, float *o)
{
    float u[K_DELTA_REF_DIM_MAX] = {0};

    for (int i = 0; i < s->k_dim; i++) {
        float *row = m + (size_t)i * (size_t)s->v_dim;

        for (int j = 0; j < s->v_dim; j++) {
            row[j] *= keep[i];
            u[j] += row[j] * k[i];
        }
    }
    for (int j = 0; j < s->v_dim; j++)
        u[j] = beta * (v[j] - u[j]);
    memset(o, 0, (size_t)s->v_dim * sizeof *o);
    for (int i = 0; i < s->k_dim; i++) {
        float *row = m + (size_t)i * (size_t)s->v_dim;

        for (int j = 0; j < s->v_dim; j++) {
            row[j] += k[i] * u[j];
            o[j] += row[j] * q[i];
        }
    }
}

/* All tokens of one value head. */
static void delta_run_head(const struct delta_step *step, float *out, const struct delta_conv *of_q,
                           const struct delta_conv *of_k, int head)
{
    const struct k_delta *d = step->d;
    const struct k_delta_shape *s = &d->shape;
    struct delta_conv of_v = {.taps = d->v_taps + (size_t)head * (size_t)(s->v_dim * s->n_taps),
                              .channel = 2 * k_delta_keys(s) + head * s->v_dim,
                              .dim = s->v_dim};
    float m[K_DELTA_REF_DIM_MAX * K_DELTA_REF_DIM_MAX];
    float q[K_DELTA_REF_DIM_MAX], k[K_DELTA_REF_DIM_MAX], v[K_DELTA_REF_DIM_MAX],
        o[K_DELTA_REF_DIM_MAX];
    float keep[K_DELTA_REF_DIM_MAX];

    delta_open_conv(step, &of_v);
    if (step->pos > 0)
        delta_load(step, m, (size_t)head * k_delta_matrix(s), k_delta_matrix(s));
    else
        memset(m, 0, k_delta_matrix(s) * sizeof *m);
    for (int i = step->begin; i < step->end; i++) {
        float beta =
            state_sigmoid(step->gates[(size_t)i * (size_t)k_delta_gates(s) + (size_t)head]);

        if (s->doubles)
            beta *= 2.0f;
        delta_convolve_unit(step, of_q, q, i, 1.0f / sqrtf((float)s->k_dim));
        delta_convolve_unit(step, of_k, k, i, 1.0f);
        delta_convolve(step, &of_v, v, i);
        delta_forget(step, keep, i, head);
        delta_update(s, m, q, k, v, keep, beta, o);
        delta_finish(step, out, o, i, head);
    }
    delta_store(step, m, (size_t)head * k_delta_matrix(s), k_delta_matrix(s));
    delta_close_conv(step, &of_v);
}

/* Inputs of queries and keys are replaced when all value heads have read them. */
void ref_delta_rule(float *out, const float *in, const float *gates, const struct k_delta *d,
                    const struct k_state *state, const struct k_tokens *t, int seq, int k_head)
{
    const struct k_delta_shape *s = &d->shape;
    struct delta_step step = {.d = d,
                              .state = state,
                              .t = t,
                              .in = in,
                              .gates = gates,
                              .seq = seq,
                              .begin = t->seq_start[seq],
                              .end = t->seq_start[seq + 1]};
    int n = s->n_v_heads / s->n_k_heads;
    size_t taps = (size_t)k_head * (size_t)(s->k_dim * s->n_taps);
    struct delta_conv of_q = {
        .taps = d->q_taps + taps, .channel = k_head * s->k_dim, .dim = s->k_dim};
    struct delta_conv of_k = {
        .taps = d->k_taps + taps, .channel = k_delta_keys(s) + k_head * s->k_dim, .dim = s->k_dim};

    if (t->kv_len[seq] == 0)
        return;
    step.pos = t->kv_len[seq] - (step.end - step.begin);
    delta_open_conv(&step, &of_q);
    delta_open_conv(&step, &of_k);
    for (int head = k_head * n; head < (k_head + 1) * n; head++)
        delta_run_head(&step, out, &of_q, &of_k, head);
    delta_close_conv(&step, &of_q);
    delta_close_conv(&step, &of_k);
}

void ref_shut_by(float *x, const float *gate, const struct k_gating *how, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i / (size_t)how->width];

        x[i] *= how->is_softplus ? state_softplus(g) : state_sigmoid(g);
    }
}

void ref_shut(float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= state_sigmoid(gate[i]);
}
