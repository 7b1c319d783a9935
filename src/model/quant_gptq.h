/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounding after GPTQ (Frantar et al., 2022): elements of a row are rounded one after another, and
 * the later ones compensate the error of each as far as the inputs of the matrix allow. The inputs
 * are known by their second moments.
 *
 * One matrix at a time; gptq_round() may run on several threads with rows of their own. */
#ifndef QUIRE_MODEL_QUANT_GPTQ_H
#define QUIRE_MODEL_QUANT_GPTQ_H

#include <stdint.h>

#include "base/err.h"
#include "device/pool.h"
#include "model/quant_round.h"

struct gptq {
    int n;
    float *factor;     /* [n][n], upper: transpose(factor) * factor is the inverse of the moments */
    float *importance; /* [n]: the loss of an error of 1 in an element */
};

/* moments [n][n]: the sum of x * transpose(x) over inputs x; its lower triangle is read. 1% of the
 * mean of the diagonal, or more, is added to the diagonal. Takes 2/3 n^3 multiply-adds on the
 * pool's threads, and memory for n^2 floats while it runs. ERR_NO_MEMORY; ERR_INVALID: moments that
 * are not finite, or all zero. */
int gptq_open(struct gptq *g, const float *moments, int n, struct pool *pool) ERR_CHECKED;
void gptq_close(struct gptq *g);

/* Round rows x [n_rows][g->n], 1 <= n_rows <= GPTQ_ROWS; x is overwritten. codes [n_rows][g->n],
 * scales [n_rows][g->n / f->group]. Returns the sum over rows of d * moments * transpose(d), where
 * d is the change by rounding: the error of outputs, squared. */
#define GPTQ_ROWS 16
double gptq_round(const struct gptq *g, const struct round_format *f, float *x, int n_rows,
                  uint8_t *codes, float *scales);

/* The sum over rows of x * moments * transpose(x); x is overwritten. */
double gptq_energy(const struct gptq *g, float *x, int n_rows);

#endif
