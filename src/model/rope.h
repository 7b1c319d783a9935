/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions: the angle of each pair of a head's elements by position, in the forms that
 * config.json knows.
 *
 * Kernels rotate pairs (i, i + head_dim / 2) of whole heads by a table of cosines and sines. Models
 * that rotate other pairs, or only some, are brought to this form by reordering each head's rows:
 * the loader permutes the matrices of queries and of keys alike, so their products do not change.
 * Pairs that the model does not rotate have cosine 1 and sine 0. */
#ifndef QUIRE_MODEL_ROPE_H
#define QUIRE_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum rope_kind {
    ROPE_PLAIN,
    ROPE_LINEAR,       /* positions divided by factor */
    ROPE_LLAMA3,       /* long waves slower by factor, short ones as they are */
    ROPE_YARN,         /* likewise, with a ramp between two numbers of turns over the original
                        * length */
    ROPE_LONG,         /* a factor per pair: one list for short contexts, one for long ones */
    ROPE_DYNAMIC,      /* theta grows with the longest served text */
    ROPE_PROPORTIONAL, /* the first pairs of the whole head; frequencies as if all rotated */
};

struct rope {
    enum rope_kind kind;
    int head_dim;     /* even */
    int rotary_dim;   /* elements of a head that rotate, even; 0: the layer has no positions */
    bool interleaved; /* pairs are (2 i, 2 i + 1), not (i, i + rotary_dim / 2) */
    double theta;
    double factor;                  /* of all kinds but PLAIN and PROPORTIONAL */
    double low_factor, high_factor; /* LLAMA3 */
    double beta_fast, beta_slow;    /* YARN: turns over original_len */
    bool truncates;                 /* YARN: the bounds between pairs are whole numbers */
    double original_len;            /* LLAMA3, YARN, LONG, DYNAMIC: positions of the training */
    double scale;                   /* of cosines and sines; 1 but for YARN and LONG */
    float short_factors[K_HEAD_DIM_MAX / 2], long_factors[K_HEAD_DIM_MAX / 2]; /* LONG */
};

/* Cosine and sine by pair for positions first .. first + n - 1, in the float32 arithmetic that
 * models were trained with: out float [n][head_dim / 2][2]. len_max: the longest served text, which
 * selects the list of LONG and theta of DYNAMIC. Any thread. */
void rope_turns(const struct rope *r, float *out, int first, int n, int len_max);

/* The new index of element d of a head of the checkpoint, 0 .. head_dim - 1. */
int rope_place(const struct rope *r, int d);

/* True if rope_place() changes no index. */
bool rope_is_in_order(const struct rope *r);

#endif
