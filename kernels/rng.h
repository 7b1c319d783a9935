/* SPDX-License-Identifier: Apache-2.0
 *
 * Arithmetic that must give the same bits in C and in CUDA: random numbers and the weights of
 * sampling. Included by the reference and by the kernels. */
#ifndef QUIRE_KERNELS_RNG_H
#define QUIRE_KERNELS_RNG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

/* A product that no compiler fuses with a later sum. */
#ifdef __CUDA_ARCH__
#define K_MUL(a, b) __fmul_rn((a), (b))
#else
#define K_MUL(a, b) ((a) * (b))
#endif

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all bits. */
K_BOTH uint64_t k_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

/* 64 random bits for (seed, position): a counter-based generator, no state. */
K_BOTH uint64_t k_random(uint64_t seed, uint64_t position)
{
    uint64_t key = k_mix(seed + 0x9e3779b97f4a7c15ULL);

    return k_mix(key + (position + 1) * 0x9e3779b97f4a7c15ULL);
}

/* Approximately normal noise, mean 0, deviation 1: the sum of four uniform numbers. */
K_BOTH float k_noise(uint64_t seed, uint64_t i)
{
    uint64_t r = k_random(seed, i);
    int sum = (int)(r & 65535) + (int)(r >> 16 & 65535) + (int)(r >> 32 & 65535) + (int)(r >> 48);

    return ((float)sum - 131070.0f) * (1.0f / 37837.0f); /* 37837: 65536 * sqrt(4 / 12) */
}

/* Upper 64 bits of a product. */
K_BOTH uint64_t k_mul_high(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t mid = a1 * b0 + ((a0 * b0) >> 32);
    uint64_t mid2 = a0 * b1 + (uint32_t)mid;

    return a1 * b1 + (mid >> 32) + (mid2 >> 32);
}

/* 2^32 * e^x for x <= 0 as an integer, within 1e-5 relative; 2^32 at 0; 0 below 2^-32. Each
 * operation is exactly rounded, so the result is the same on every machine. */
K_BOTH uint64_t k_exp_fixed(float x)
{
    float y, whole, p;
    uint32_t bits;

    if (!(x > -22.5f)) /* also NaN */
        return 0;
    y = K_MUL(x, 1.44269504f);
    whole = floorf(y);
    y = y - whole; /* [0, 1): exact */
    p = 1.5353362e-4f;
    p = fmaf(p, y, 1.3398874e-3f);
    p = fmaf(p, y, 9.6184373e-3f);
    p = fmaf(p, y, 5.5503324e-2f);
    p = fmaf(p, y, 2.4022648e-1f);
    p = fmaf(p, y, 6.9314720e-1f);
    p = fmaf(p, y, 1.0f);
    memcpy(&bits, &p, sizeof bits); /* p is in [1, 2.001): 2^32 p is a whole number */
    return (uint64_t)((bits & 0x7fffffU) | 0x800000U) << ((bits >> 23) - 118) >> -(int)whole;
}

/* A float's bits as an integer that sorts as the float does; NaN sorts first. */
K_BOTH uint32_t k_sort_key(float x)
{
    uint32_t u;

    if (x != x)
        return 0;
    x += 0.0f; /* -0 equals 0 */
    memcpy(&u, &x, sizeof u);
    return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}

/* The value of an id before temperature: repetition, frequency, presence. */
K_BOTH float k_penalise(float logit, int32_t count, float repetition, float frequency,
                        float presence)
{
    int32_t n_out = count >> 1;

    if (count != 0)
        logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (n_out > 0)
        logit = fmaf(-frequency, (float)n_out, logit) - presence;
    return logit;
}

/* The least weight that min_p keeps. */
K_BOTH uint64_t k_min_weight(float min_p)
{
    return (uint64_t)ceil((double)min_p * 4294967296.0);
}

/* The weight that the kept ids must reach for top_p of sum: 1 .. sum. */
K_BOTH uint64_t k_top_weight(float top_p, uint64_t sum)
{
    double want = ceil((double)top_p * (double)sum);
    uint64_t w = want < 1.0 ? 1 : (uint64_t)want;

    return w > sum ? sum : w;
}

#endif
