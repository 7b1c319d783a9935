/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables of rotations, and the order of a head's elements.
 *
 * The formulas are those of transformers' modeling_rope_utils, in its precision: a frequency is
 * computed in float32 from theta, scaled in float64, and rounded to float32 again. Any other order
 * of rounding would change angles at long positions visibly. */
#include "model/rope.h"

#include <math.h>

#include "base/must.h"

/* --- frequencies -------------------------------------------------------------------------- */

/* Pair i of a head turns by position * theta^(-2 i / dim). The scalings below change that frequency
 * so that a model can read longer texts than it was trained with. */

/* Llama 3: short waves stay, long ones become `factor` times longer, and between them the two are
 * mixed smoothly. */
static double rope_llama3_frequency(const struct rope *r, double frequency)
{
    double wave = 2.0 * M_PI / frequency, smooth;

    if (wave < r->original_len / r->high_factor)
        return frequency;
    if (wave > r->original_len / r->low_factor)
        return frequency / r->factor;
    smooth = (r->original_len / wave - r->low_factor) / (r->high_factor - r->low_factor);
    return (1.0 - smooth) * frequency / r->factor + smooth * frequency;
}

/* The (fractional) index of the pair that makes `turns` turns over the original length. */
static double rope_yarn_pair(const struct rope *r, double turns)
{
    return r->rotary_dim * log(r->original_len / (turns * 2.0 * M_PI)) / (2.0 * log(r->theta));
}

/* YaRN: fast pairs keep their frequency, slow ones are divided by factor, with a linear ramp
 * between. */
static double rope_yarn_frequency(const struct rope *r, int pair, double frequency)
{
    double low = rope_yarn_pair(r, r->beta_fast), high = rope_yarn_pair(r, r->beta_slow), ramp;

    if (r->truncates) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, r->rotary_dim - 1);
    if (low == high)
        high += 0.001; /* the ramp must have a width */
    ramp = fmin(fmax((pair - low) / (high - low), 0.0), 1.0);
    return frequency / r->factor * ramp + frequency * (1.0 - ramp);
}

/* Dynamic scaling: a larger theta for texts longer than the training's, chosen so that the slowest
 * pair makes as many turns as before. */
static double rope_dynamic_theta(const struct rope *r, int len_max)
{
    double stretch =
        r->factor * fmax(len_max, r->original_len) / r->original_len - (r->factor - 1.0);

    return r->theta * pow(stretch, r->rotary_dim / (r->rotary_dim - 2.0));
}

/* The frequency of one pair, in radians per position. */
static double rope_frequency(const struct rope *r, int pair, int len_max)
{
    double theta = r->kind == ROPE_DYNAMIC ? rope_dynamic_theta(r, len_max) : r->theta;
    int dim = r->kind == ROPE_PROPORTIONAL ? r->head_dim : r->rotary_dim;
    double plain = (double)(1.0f / powf((float)theta, (float)(2 * pair) / (float)dim));
    const float *factors = len_max > r->original_len ? r->long_factors : r->short_factors;

    switch (r->kind) {
    case ROPE_PLAIN:
    case ROPE_DYNAMIC: return plain;
    case ROPE_PROPORTIONAL:
    case ROPE_LINEAR: return plain / r->factor;
    case ROPE_LLAMA3: return rope_llama3_frequency(r, plain);
    case ROPE_YARN: return rope_yarn_frequency(r, pair, plain);
    case ROPE_LONG: return plain / (double)factors[pair];
    }
    return plain;
}

/* Pairs beyond rotary_dim do not turn: cosine 1, sine 0. */
void rope_turns(const struct rope *r, float *out, int first, int n, int len_max)
{
    int half = r->head_dim / 2;
    float frequency[K_HEAD_DIM_MAX / 2];

    must(r->head_dim <= K_HEAD_DIM_MAX && r->rotary_dim <= r->head_dim);
    for (int i = 0; i < r->rotary_dim / 2; i++)
        frequency[i] = (float)rope_frequency(r, i, len_max);
    for (int p = first; p < first + n; p++) {
        for (int i = 0; i < half; i++, out += 2) {
            float angle;

            if (i >= r->rotary_dim / 2) {
                out[0] = 1.0f;
                out[1] = 0.0f;
                continue;
            }
            angle = (float)p * frequency[i];
            out[0] = cosf(angle) * (float)r->scale;
            out[1] = sinf(angle) * (float)r->scale;
        }
    }
}

/* --- the order of a head ------------------------------------------------------------------ */

/* Checkpoints pair elements as (i, i + rotary_dim / 2) or (2 i, 2 i + 1); kernels always pair (i, i
 * + head_dim / 2). The loader moves rows of q and k accordingly; scores do not change, because both
 * are permuted alike. */

bool rope_is_in_order(const struct rope *r)
{
    return r->rotary_dim == 0 || r->kind == ROPE_PROPORTIONAL ||
           (r->rotary_dim == r->head_dim && !r->interleaved);
}

/* Rotating pairs come first in both halves of the head; the others fill the rest of each half.
 * Example: head_dim 8, rotary_dim 4, interleaved: 0 1 2 3 go to 0 4 1 5, and 4 5 6 7 to 2 3 6 7. */
int rope_place(const struct rope *r, int d)
{
    int half = r->head_dim / 2, pairs = r->rotary_dim / 2;

    must(d >= 0 && d < r->head_dim);
    if (rope_is_in_order(r))
        return d;
    if (d < r->rotary_dim) {
        int pair = d % pairs;
        int is_second = d / pairs;

        if (r->interleaved) {
            pair = d / 2;
            is_second = d % 2;
        }
        return pair + is_second * half;
    }
    d -= r->rotary_dim;
    if (d < half - pairs)
        return pairs + d;
    return half + pairs + (d - (half - pairs));
}
