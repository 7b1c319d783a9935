/* SPDX-License-Identifier: Apache-2.0
 *
 * How states that are kept in bfloat16 (struct k_state) are rounded, on both sides.
 *
 * Up or down by chance: in proportion to what is cut off, so that the mean is exact. Rounded to the
 * nearest, a matrix that forgets less than 1/512 of itself per token would not forget at all
 * (tests/bench/bench_state.c has the errors). Chance is a function of the position up to which the
 * state has come and of the element, so the same steps give the same bits. */
#ifndef QUIRE_KERNELS_STATE_H
#define QUIRE_KERNELS_STATE_H

#include "kernels/format.h"

/* 32 bits for elements i and i + 1 of a sequence's states, i even, after pos tokens: the lower half
 * is the first one's. */
K_BOTH uint32_t k_state_chance(uint32_t i, uint32_t pos)
{
    uint32_t x = i * 0x9e3779b1U ^ pos * 0x85ebca77U;

    x ^= x >> 15;
    x *= 0x2c1b3c6dU;
    x ^= x >> 12;
    x *= 0x297a2d39U;
    return x ^ x >> 15;
}

/* The same for any element: 0 .. 65535. */
K_BOTH uint32_t k_state_chance_of(uint32_t i, uint32_t pos)
{
    return k_state_chance(i & ~1U, pos) >> (i & 1) * 16 & 0xffff;
}

/* The bits of a float32 as a bfloat16. What a bfloat16 can hold is not changed. NaN stays NaN. */
K_BOTH uint16_t k_state_round(uint32_t bits, uint32_t chance)
{
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + chance) >> 16);
}

#endif
