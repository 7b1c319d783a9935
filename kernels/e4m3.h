/* SPDX-License-Identifier: Apache-2.0
 *
 * e4m3: 8-bit floats with a sign, 4 bits of exponent (bias 7) and 3 of fraction. The largest is
 * 448, the smallest 2^-9; there is no infinity, and 0x7f is NaN. For C and CUDA, with the same bits
 * on both sides. */
#ifndef QUIRE_KERNELS_E4M3_H
#define QUIRE_KERNELS_E4M3_H

#include <string.h>

#include "kernels/kernels.h"

#define K_E4M3_MAX   448.0f
#define K_E4M3_NAN   0x7f
#define K_E4M3_BLOCK 128 /* elements that share a scale in rows with several scales */
/* Lower bound of a row's maximum: so a row of zeros has a scale, and the scale has an inverse. */
#define K_AMAX_MIN 0x1p-100f

K_BOTH float k_e4m3_value(k_e4m3 e)
{
    uint32_t sign = (uint32_t)(e & 0x80) << 24, bits;
    float value;

    if ((e & 0x7f) == K_E4M3_NAN)
        bits = 0x7fc00000U;
    /* Float32's bias is 127 - 7 = 120 more, its fraction 20 bits longer. */
    else if ((e & 0x78) != 0)
        bits = sign | (((uint32_t)(e & 0x7f) << 20) + (120U << 23));
    else {
        value = (float)(e & 7) * 0x1p-9f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    memcpy(&value, &bits, 4);
    return value;
}

/* Round to nearest, ties to the even fraction; larger magnitudes become the largest. */
K_BOTH k_e4m3 k_e4m3_round(float x)
{
    uint32_t bits, sign;
    float value;

    memcpy(&bits, &x, 4);
    sign = bits >> 24 & 0x80;
    bits &= 0x7fffffffU;
    if (bits > 0x7f800000U)
        return K_E4M3_NAN;
    if (bits >= 0x43e00000U) /* 448 */
        return (k_e4m3)(sign | 0x7e);
    if (bits >= 0x3c800000U) { /* 2^-6, the smallest with a full fraction */
        bits += 0x7ffffU + (bits >> 20 & 1);
        return (k_e4m3)(sign | ((bits >> 20) - (120U << 3)));
    }
    memcpy(&value, &bits, 4);
    value = value * 0x1p9f + 0x1p23f; /* the addition rounds to a whole number */
    memcpy(&bits, &value, 4);
    return (k_e4m3)(sign | (bits & 15));
}

/* The scale of elements with maximum magnitude amax; elements are multiplied by 1 / scale. */
K_BOTH float k_e4m3_scale(float amax)
{
    return (amax > K_AMAX_MIN ? amax : K_AMAX_MIN) * (1.0f / K_E4M3_MAX);
}

#endif
