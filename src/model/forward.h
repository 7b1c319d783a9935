/* The forward pass: a model's operations in their order. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include "device/device.h"
#include "model/config.h"
#include "model/weights.h"

/* Intermediate results, allocated once for the largest step. "act" is the device's type. */
struct activations {
    float *x;          /* residual, float [n_tokens][dim] */
    void *normed;      /* act [n_tokens][dim] */
    void *qkv;         /* act [n_tokens][(n_heads + 2 * n_kv_heads) * head_dim] */
    void *heads;       /* act [n_tokens][n_heads * head_dim]: attention's result */
    void *delta;       /* act [n_tokens][dim]: what is added to the residual next */
    void *gate_up;     /* act [n_tokens][2 * ff_dim] */
    void *ff;          /* act [n_tokens][ff_dim] */
    float *rows;       /* float [n_rows][dim]: the sampled rows' residual */
    void *rows_normed; /* act [n_rows][dim] */
    float *logits;     /* float [n_rows][n_vocab] */
};

int activations_alloc(struct activations *a, struct device *d,
                      const struct device_limits *limits) ERR_CHECKED;

/* Enqueue one step between the device's begin() and end(). kv is the first layer's view of the
 * pages. With n_rows 0 nothing is sampled. */
void forward(struct device *d, const struct config *c, const struct weights *w,
             const struct activations *a, const struct k_kv *kv, const float *turns, int n_tokens,
             int n_rows);

#endif
