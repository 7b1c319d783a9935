/* SPDX-License-Identifier: Apache-2.0
 *
 * The activations of FFNs (enum k_activation), in float32. */
#ifndef QUIRE_KERNELS_ACTIVATION_CUH
#define QUIRE_KERNELS_ACTIVATION_CUH

#include "kernels/common.cuh"

static __device__ inline float activation(float x, enum k_activation kind)
{
    float positive = fmaxf(x, 0.0f);

    switch (kind) {
    case K_SILU: return x / (1.0f + expf(-x));
    case K_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case K_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case K_RELU: return positive;
    case K_RELU_2: return positive * positive;
    case K_SWISH_CLAMPED: x = fminf(x, K_SWISH_LIMIT); return x / (1.0f + expf(-K_SWISH_SLOPE * x));
    }
    return x;
}

/* The output of a gate and its up. */
static __device__ inline float gated(float gate, float up, enum k_activation kind)
{
    if (kind == K_SWISH_CLAMPED)
        up = fminf(fmaxf(up, -K_SWISH_LIMIT), K_SWISH_LIMIT) + 1.0f;
    return activation(gate, kind) * up;
}

#endif
