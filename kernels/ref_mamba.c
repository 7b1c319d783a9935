/* SPDX-License-Identifier: Apache-2.0
 *
 * References of Mamba-2 and of short convolutions: one head or channel after another, token by
 * token. The cpu device runs them, so a head's matrix is copied out of the pages once per step, and
 * its loops run along rows of states. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kernels/mamba.h"
#include "kernels/ref_state.h"

#define PART_MAX K_MAMBA_STATE_MAX /* channels of a head's x, or of a group's B or C */

/* One step of one sequence. */
struct mamba_step {
    const struct k_mamba *m;
    const struct k_state *state;
    const struct k_tokens *t;
    const float *in;
    int seq;
    int begin, end; /* its tokens */
    int pos;        /* of the first one */
};

/* Consecutive channels of the convolution, with the inputs before the step. */
struct mamba_conv {
    const float *taps, *bias;
    float by;
    int channel, n;
    float kept[K_CONV_TAPS_MAX][PART_MAX];
};

static struct mamba_step mamba_step_of(const float *in, const struct k_mamba *m,
                                       const struct k_state *state, const struct k_tokens *t,
                                       int seq)
{
    struct mamba_step step = {.m = m,
                              .state = state,
                              .t = t,
                              .in = in,
                              .seq = seq,
                              .begin = t->seq_start[seq],
                              .end = t->seq_start[seq + 1]};

    step.pos = t->kv_len[seq] - (step.end - step.begin);
    return step;
}

/* --- the convolution ------------------------------------------------------------------------ */

/* Where the inputs of a channel's row begin in the state. */
static size_t mamba_ring_at(const struct k_mamba_shape *s, int row, int channel)
{
    return (size_t)s->n_heads * k_mamba_matrix(s) + (size_t)row * (size_t)k_mamba_channels(s) +
           (size_t)channel;
}

/* x, B and C of a token. */
static const float *mamba_inputs(const struct mamba_step *step, int token)
{
    const struct k_mamba_shape *s = &step->m->shape;

    return step->in + (size_t)token * (size_t)k_mamba_row(s) + k_mamba_inner(s);
}

/* n channels from the first-th of a part on, which itself begins at channel `at`. */
static void mamba_open_conv(const struct mamba_step *step, struct mamba_conv *c,
                            const struct k_mamba_part *part, int at, int first, int n)
{
    const struct k_mamba_shape *s = &step->m->shape;

    c->taps = part->taps + (size_t)first * (size_t)s->n_taps;
    c->bias = part->bias == NULL ? NULL : part->bias + first;
    c->by = part->by;
    c->channel = at + first;
    c->n = n;
    for (int row = 0; row < s->n_taps; row++)
        state_load(step->state, step->t, step->seq, c->kept[row], mamba_ring_at(s, row, c->channel),
                   (size_t)n);
}

/* out [n]: the channels at a token. */
static void mamba_convolve(const struct mamba_step *step, const struct mamba_conv *c, float *out,
                           int token)
{
    int n_taps = step->m->shape.n_taps, pos = step->pos + token - step->begin;

    memset(out, 0, (size_t)c->n * sizeof *out);
    for (int tap = 0; tap < n_taps; tap++) {
        int back = n_taps - 1 - tap;
        const float *x;

        if (pos < back)
            continue;
        if (token - back >= step->begin)
            x = mamba_inputs(step, token - back) + c->channel;
        else
            x = c->kept[(pos - back) % n_taps];
        for (int i = 0; i < c->n; i++)
            out[i] += c->taps[i * n_taps + tap] * x[i];
    }
    for (int i = 0; i < c->n; i++) {
        out[i] = c->by * out[i] + (c->bias != NULL ? c->bias[i] : 0.0f);
        out[i] *= state_sigmoid(out[i]);
    }
}

/* Inputs of the last tokens replace older ones. */
void ref_mamba_keep(const float *in, const struct k_mamba *m, const struct k_state *state,
                    const struct k_tokens *t, int seq)
{
    const struct mamba_step step = mamba_step_of(in, m, state, t, seq);
    int first = step.end - m->shape.n_taps;

    if (t->kv_len[seq] == 0)
        return;
    for (int i = first > step.begin ? first : step.begin; i < step.end; i++)
        state_store(state, t, seq, mamba_inputs(&step, i),
                    mamba_ring_at(&m->shape, (step.pos + i - step.begin) % m->shape.n_taps, 0),
                    (size_t)k_mamba_channels(&m->shape));
}

/* --- heads ---------------------------------------------------------------------------------- */

/* The length of a head's step at a token. */
static float mamba_length(const struct mamba_step *step, int token, int head)
{
    const struct k_mamba *m = step->m;
    const float *dt = mamba_inputs(step, token) + k_mamba_channels(&m->shape);
    float length = state_softplus(m->dt_by * dt[head] + m->dt_bias[head]);

    return fminf(fmaxf(length, m->least), m->most);
}

/* matrix [head_dim][n_state] forgets and takes x; y [head_dim] is read with c. */
static void mamba_update(const struct k_mamba_shape *s, float *matrix, const float *x,
                         const float *b, const float *c, const float by[3], float *y)
{
    for (int i = 0; i < s->head_dim; i++) {
        float *row = matrix + (size_t)i * (size_t)s->n_state;
        float taken = by[1] * x[i], sum = 0.0f;

        for (int j = 0; j < s->n_state; j++)
            row[j] = by[0] * row[j] + taken * b[j];
        for (int j = 0; j < s->n_state; j++)
            sum += row[j] * c[j];
        y[i] = sum + by[2] * x[i];
    }
}

void ref_mamba_scan(float *y, const float *in, const struct k_mamba *m, const struct k_state *state,
                    const struct k_tokens *t, int seq, int head)
{
    const struct mamba_step step = mamba_step_of(in, m, state, t, seq);
    const struct k_mamba_shape *s = &m->shape;
    int group = head / (s->n_heads / s->n_groups), inner = k_mamba_inner(s);
    struct mamba_conv of_x, of_b, of_c;
    float matrix[K_MAMBA_HEAD_MAX * K_MAMBA_STATE_MAX];
    float x[PART_MAX], b[PART_MAX], c[PART_MAX], rate = expf(m->a_log[head]);
    size_t at = (size_t)head * k_mamba_matrix(s);

    if (t->kv_len[seq] == 0)
        return;
    mamba_open_conv(&step, &of_x, &m->x, 0, head * s->head_dim, s->head_dim);
    mamba_open_conv(&step, &of_b, &m->b, inner, group * s->n_state, s->n_state);
    mamba_open_conv(&step, &of_c, &m->c, inner + s->n_groups * s->n_state, group * s->n_state,
                    s->n_state);
    memset(matrix, 0, k_mamba_matrix(s) * sizeof *matrix);
    if (step.pos > 0)
        state_load(state, t, seq, matrix, at, k_mamba_matrix(s));
    for (int i = step.begin; i < step.end; i++) {
        float length = mamba_length(&step, i, head);
        const float by[3] = {expf(-rate * length), length, m->skip[head]};

        mamba_convolve(&step, &of_x, x, i);
        mamba_convolve(&step, &of_b, b, i);
        mamba_convolve(&step, &of_c, c, i);
        mamba_update(s, matrix, x, b, c, by,
                     y + (size_t)i * (size_t)inner + (size_t)(head * s->head_dim));
    }
    state_store(state, t, seq, matrix, at, k_mamba_matrix(s));
}

/* Elements first .. first + n - 1 of a token are normed together. */
static void mamba_gate_group(float *out, const float *z, const struct k_mamba *m, int first, int n)
{
    const float *norm = m->norm;
    double sum = 0.0;
    float scale = 1.0f;

    for (int i = first; i < first + n; i++) {
        float gate = m->z_by * z[i];

        if (!m->norm_first)
            out[i] *= gate * state_sigmoid(gate);
        sum += (double)out[i] * (double)out[i];
    }
    if (norm != NULL)
        scale = 1.0f / sqrtf((float)(sum / n) + m->eps);
    for (int i = first; i < first + n; i++) {
        float gate = m->z_by * z[i];

        out[i] *= scale * (norm != NULL ? norm[i] : 1.0f);
        if (m->norm_first)
            out[i] *= gate * state_sigmoid(gate);
    }
}

void ref_mamba_gate(float *out, const float *in, const struct k_mamba *m, int token)
{
    const struct k_mamba_shape *s = &m->shape;
    int inner = k_mamba_inner(s), n = inner / s->n_groups;

    for (int group = 0; group < s->n_groups; group++)
        mamba_gate_group(out + (size_t)token * (size_t)inner,
                         in + (size_t)token * (size_t)k_mamba_row(s), m, group * n, n);
}

/* --- short convolutions --------------------------------------------------------------------- */

/* The last products of a channel, in the order of the ring. */
void ref_short_conv(float *out, const float *in, const struct k_short_conv *c,
                    const struct k_state *state, const struct k_tokens *t, int seq, int first,
                    int last)
{
    int begin = t->seq_start[seq], end = t->seq_start[seq + 1];
    int start = t->kv_len[seq] - (end - begin), width = c->width, n_taps = c->n_taps;
    float ring[K_CONV_TAPS_MAX];

    if (t->kv_len[seq] == 0)
        return;
    for (int channel = first; channel < last; channel++) {
        for (int row = 0; row < n_taps; row++)
            state_load(state, t, seq, &ring[row], (size_t)(row * width + channel), 1);
        for (int i = begin; i < end; i++) {
            const float *row = in + (size_t)i * 3 * (size_t)width;
            int pos = start + i - begin;
            float sum = c->bias != NULL ? c->bias[channel] : 0.0f;

            ring[pos % n_taps] = row[channel] * row[2 * width + channel];
            for (int back = n_taps - 1; back >= 0; back--) {
                if (pos >= back)
                    sum +=
                        c->taps[channel * n_taps + n_taps - 1 - back] * ring[(pos - back) % n_taps];
            }
            out[(size_t)i * (size_t)width + (size_t)channel] = row[width + channel] * sum;
        }
        for (int row = 0; row < n_taps; row++)
            state_store(state, t, seq, &ring[row], (size_t)(row * width + channel), 1);
    }
}

/* --- rows ----------------------------------------------------------------------------------- */

void ref_scale(float *x, int stride, int width, float by, int n)
{
    for (int row = 0; row < n; row++, x += stride) {
        for (int i = 0; i < width; i++)
            x[i] *= by;
    }
}
