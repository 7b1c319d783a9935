/* The forward pass: a model's operations in their order. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include "model/cache.h"
#include "model/pass.h"

/* A model that is loaded. */
struct forward {
    struct device *device;
    const struct plan *plan;
    const struct weights *weights;
    const struct cache *cache;
    struct activations *act;
    void *pages;
    enum k_type kv_type;
    const float *const *turns; /* of each of the plan's ropes */
};

/* Enqueue one step between the device's begin() and end(), of as many tokens and rows as begin()
 * said, up to the logits of the rows. */
void forward(const struct forward *f);

#endif
