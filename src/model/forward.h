/* The forward pass: a model's operations in their order. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include "model/pass.h"

/* Enqueue one step between the device's begin() and end(), of as many tokens and rows as begin()
 * said, up to the logits of the rows. kv is the first layer's view of the pages. */
void forward(struct device *d, const struct plan *plan, const struct weights *w,
             struct activations *a, const struct k_kv *kv, const float *turns);

#endif
