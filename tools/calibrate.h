/* SPDX-License-Identifier: Apache-2.0
 *
 * The second moments of the inputs of a model's products, for `quire quantize --calibrate`: the
 * model reads texts on the cpu device, and x * transpose(x) of each input x is added up. */
#ifndef QUIRE_TOOLS_CALIBRATE_H
#define QUIRE_TOOLS_CALIBRATE_H

#include "base/err.h"
#include "device/pool.h"

struct calibration;

/* folder: the model; path: a file with one JSON object a line, {"text": "..."}, of which the first
 * n_tokens tokens are read. The file is read here, the texts by calibration_moments(). The pool is
 * borrowed. ERR_INVALID
 * for another shape of a line, and the errors of eval_open(); all with a line on stderr. */
int calibration_open(struct calibration **out, const char *folder, const char *path, long n_tokens,
                     struct pool *pool) ERR_CHECKED;
void calibration_close(struct calibration *c); /* NULL is fine */

/* The moments of the input that is multiplied with a tensor of a layer: float32 [*n][*n], of which
 * the lower triangle is set; *moments NULL: the model does not multiply an input with it (experts).
 * Borrowed until the next call for another layer. The texts are read once for as many layers as fit
 * in a quarter of the memory. ERR_NO_MEMORY, or the model's error. */
int calibration_moments(struct calibration *c, const char *tensor, int layer, const float **moments,
                        int *n) ERR_CHECKED;

#endif
