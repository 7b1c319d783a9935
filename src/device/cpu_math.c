/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles the inner loops of cpu_tile.h once per instruction set, with GCC's vector extension, and
 * chooses among them at start.
 *
 * Each inclusion sets four numbers: floats per register, and how many sums are kept in registers at
 * once. They were chosen so that the sums of a tile just fit the registers of the set. The compiler
 * is told the target by a pragma, so one binary runs on every x86-64 machine. */
#ifndef __clang__
#pragma GCC optimize("O3") /* keeps the tiles of sums in registers */
#endif

#include "config.h"

#include "device/cpu_math.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES   16
#define INLINED static inline __attribute__((always_inline))

typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));
typedef float lanes4_at __attribute__((vector_size(16), aligned(4), may_alias)); /* in arrays */

/* Two steps, because ## does not expand its operands. */
#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)

#define TILE(name)  JOIN(name, _plain)
#define TILE_NAME   "generic"
#define WIDTH       4
#define TILE_ROWS   1
#define TILE_OUTS   2
#define TILE_MIX    8
#include "device/cpu_tile.h"
#undef TILE
#undef TILE_NAME
#undef WIDTH
#undef TILE_ROWS
#undef TILE_OUTS
#undef TILE_MIX

#ifdef __x86_64__
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define TILE(name) JOIN(name, _avx2)
#define TILE_NAME  "AVX2"
#define WIDTH      8
#define TILE_ROWS  2
#define TILE_OUTS  3
#define TILE_MIX   8
#include "device/cpu_tile.h"
#undef TILE
#undef TILE_NAME
#undef WIDTH
#undef TILE_ROWS
#undef TILE_OUTS
#undef TILE_MIX
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma,prefer-vector-width=512")
#define TILE(name) JOIN(name, _avx512)
#define TILE_NAME  "AVX-512"
#define WIDTH      16
#define TILE_ROWS  4
#define TILE_OUTS  4
#define TILE_MIX   4
#include "device/cpu_tile.h"
#pragma GCC pop_options
#endif

/* 0 is plain C with vectors of 4 floats, which every machine can run. */
const struct cpu_math *cpu_math_at(int n)
{
    if (n == 0)
        return &math_plain;
#ifdef __x86_64__
    if (n == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &math_avx2;
    if (n == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return &math_avx512;
#endif
    return NULL;
}

/* Stops at the first set that the machine lacks: sets are ordered, and each machine has a
 * prefix. */
const struct cpu_math *cpu_math_choose(void)
{
    const struct cpu_math *best = cpu_math_at(0);

    for (int n = 1; cpu_math_at(n) != NULL; n++)
        best = cpu_math_at(n);
    return best;
}
