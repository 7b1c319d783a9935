/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step will take: a model of its parts, whose factors are measured at start and corrected
 * by every step that ends.
 *
 *   fixed           what any step takes: weights' bytes, launches
 *   products        by the step's tokens, in whole tiles: a line through knots at powers of two,
 *                   which never falls
 *   decode keys     the keys that sequences with one token read
 *   prompt pairs    pairs of a token and a key in chunks of prompts
 *   prompt keys     keys that chunks read
 *   rows, chunks    sampled rows; sequences with more than one token
 *
 * Each part is a factor times what the step has of it, so a time is a sum, and factors are found by
 * a Kalman filter: recursive least squares whose uncertainty grows with every step, up to that of
 * the start. Factors stay within bounds, and a step that took absurdly long counts as a long one.
 *
 * No clock, no memory after init, no device. One thread. */
#ifndef QUIRE_ENGINE_COST_H
#define QUIRE_ENGINE_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "model/batch.h"

#define COST_KNOTS 18 /* tokens 1, 16, 32, .. 2^20: more than a step can have */

enum cost_part {
    COST_FIXED,
    COST_PRODUCTS, /* the first of COST_KNOTS - 1 parts, from knot to knot */
    COST_DECODE_KEYS = COST_PRODUCTS + COST_KNOTS - 1,
    COST_PROMPT_PAIRS,
    COST_PROMPT_KEYS,
    COST_ROWS,
    COST_CHUNKS,
    COST_PARTS
};

/* What a step has. Sums, so that sequences can be added and taken away. */
struct cost_step {
    int64_t n_tokens, n_rows, n_chunks;
    double decode_keys;  /* tokens whose keys are read, a mean over the groups of layers */
    double prompt_pairs; /* likewise pairs */
    double prompt_keys;
};

/* The model's numbers for the first guess. */
struct cost_shape {
    double weight_bytes; /* read by every step */
    double token_flops;  /* of products, per token */
    double key_bytes;    /* of keys and values, per token */
    double pair_flops;   /* per pair of a token and a key */
    double row_flops;    /* of the output matrix, per row */
    int tile_tokens;     /* rows that products compute at once; 1: each by itself */
    bool is_gpu;
    const struct cache_group *groups; /* borrowed for good */
    int n_groups;
};

struct cost {
    struct cost_shape shape;
    double unit_us[COST_PARTS]; /* factors as they were measured at start, or guessed */
    double factor[COST_PARTS];  /* 1 at start */
    double spread;              /* largest deviation of a factor's logarithm */
    double least, most;         /* bounds of the factors */
    double cov[COST_PARTS][COST_PARTS];
    double one_us;         /* a step of one sequence at start; 0: no trials were made */
    double error;          /* mean of |foretold - taken| / taken, of the last some hundred steps */
    uint64_t n_learned;    /* steps */
    int64_t n_tokens_seen; /* of the longest of them */
    int n_odd;             /* steps in a row that were far off */
};

/* Begin with a guess from the shape. Factors may become 1/100 to 100 of it. */
void cost_init(struct cost *c, const struct cost_shape *shape);

/* Add a sequence of which a step computes n tokens after its first n_before; n_rows of them are
 * sampled. Take it away again: with the same numbers. */
void cost_add(const struct cost *c, struct cost_step *step, int n_before, int n, int n_rows);
void cost_take(const struct cost *c, struct cost_step *step, int n_before, int n, int n_rows);

/* The time of a step in microseconds, above 0. Some 30 multiplications. It does not fall when
 * tokens, keys or rows are added. */
double cost_us(const struct cost *c, const struct cost_step *step);

/* The most tokens, up to n, that a sequence with n_before tokens can add to the step without its
 * taking longer than limit_us; 0: none. */
int cost_fits(const struct cost *c, const struct cost_step *step, int n_before, int n,
              double limit_us);

/* A step took `us`. Returns the relative error of what was foretold: |foretold - taken| / taken.
 * Some 2,000 multiplications. */
double cost_learn(struct cost *c, const struct cost_step *step, double us);

/* Trials took these times, [n] of both: find the factors that foretell them best. From here on they
 * change slowly, within a factor of 4. Some milliseconds. */
void cost_fit(struct cost *c, const struct cost_step *steps, const double *us, int n);

/* The target for steps in microseconds. target_ms above 0: that; 0: none, returns 0; -1: the time
 * in which the fixed part of a step is an eighth, from 40 ms to 1 s. Steps are planned shorter than
 * the target by their usual error, so that few are longer. With stages, n_stages steps are a
 * token's time. */
double cost_target_us(const struct cost *c, int target_ms, int n_stages);

#endif
