/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the operations on logits apart from sampling (logits.cu, logprobs.cu,
 * portable_logits.cu). */
#ifndef QUIRE_KERNELS_LOGITS_CUH
#define QUIRE_KERNELS_LOGITS_CUH

#include <float.h>

#include "kernels/sample.cuh"

/* A logit as it counts for log probabilities; NaN loses in both operations. */
static __device__ inline float logits_tame(float x)
{
    return fminf(fmaxf(x, -INFINITY), FLT_MAX); /* a NaN loses */
}

#endif
