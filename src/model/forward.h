/* The forward pass: a model's operations in their order. */
#ifndef QUIRE_MODEL_FORWARD_H
#define QUIRE_MODEL_FORWARD_H

#include "device/device.h"
#include "model/config.h"
#include "model/weights.h"

#define FORWARD_FEW 64 /* rows of the short way at most */

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
    float *sums;       /* float [FORWARD_FEW][dim / 16]: squares of x in parts; NULL: no few */
    int few;           /* steps of up to this many tokens go the short way; 0: none */
};

int activations_alloc(struct activations *a, struct device *d,
                      const struct device_limits *limits) ERR_CHECKED;

/* Find out up to how many tokens a step may go the short way: all matrices must be taken. */
void activations_few(struct activations *a, struct device *d, const struct config *c,
                     const struct weights *w);

/* Enqueue one step between the device's begin() and end(), of as many tokens and rows as begin()
 * said, up to the logits of the rows. kv is the first layer's view of the pages. */
void forward(struct device *d, const struct config *c, const struct weights *w,
             const struct activations *a, const struct k_kv *kv, const float *turns);

#endif
