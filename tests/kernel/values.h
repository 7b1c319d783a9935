/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers and bfloat16 of tests that play kernels on the host. */
#ifndef QUIRE_TESTS_KERNEL_VALUES_H
#define QUIRE_TESTS_KERNEL_VALUES_H

#include <string.h>

#include "kernels/kernels.h"

static unsigned values_seed;

/* -1 to 1. */
static inline float uniform(void)
{
    values_seed = values_seed * 1664525U + 1013904223U;
    return (float)(values_seed >> 8) * 0x1p-23f - 1.0f;
}

static inline k_bf16 round_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static inline float widen(k_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
