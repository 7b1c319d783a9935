/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of portable.cuh on the host: products of tensor cores, loads of matrices and
 * asynchronous copies as the instructions define them. Include this before a portable kernel's
 * source; play.h says how its threads run. */
#ifndef QUIRE_TESTS_KERNEL_PLAY_PORTABLE_H
#define QUIRE_TESTS_KERNEL_PLAY_PORTABLE_H

#include "tests/kernel/play.h"

#define QUIRE_KERNELS_PORTABLE_CUH
#undef blockDim /* a member of launches in experts.cuh */

static size_t __cvta_generic_to_shared(const void *); /* of functions that are not played */

/* What lanes tell each other, in turns. */
static struct {
    uint32_t a[4], b[2];
    const char *row;
} play_told[2][PLAY_THREADS];

/* All threads of the block meet; warps may have met among themselves more or less often. */
static void __syncthreads(void)
{
    int turn = play.threads[play.current].n_all++, self = play.current;

    play.threads[self].n_met++;
    for (int i = 0; i < play.n_threads; i++) {
        while (!play.threads[i].done && play.threads[i].n_all <= turn)
            (void)swapcontext(&play.threads[self].context, &play.scheduler);
    }
}

static uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t bytes = (uint64_t)y << 32 | x;
    uint32_t result = 0;

    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}

template <class T> static T __ldg(const T *p)
{
    return *p;
}

static int min(int a, int b)
{
    return a < b ? a : b;
}

static uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#include "kernels/e4m3.cuh"

/* One of two of bfloat16, or of float16. */
template <bool HALF> static float play_half_of(uint32_t two, int half)
{
    __half_raw raw;

    if (!HALF)
        return __uint_as_float(half == 0 ? two << 16 : two & 0xffff0000U);
    raw.x = (unsigned short)(half == 0 ? two : two >> 16);
    return __half2float(raw);
}

static uint4 portable_load_once(const void *p)
{
    return *(const uint4 *)p;
}

static uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}

/* Element k of a row of a, or of a column of b, is in the lane of its row and pair. */
template <bool HALF>
static void portable_multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                              uint32_t b0, uint32_t b1)
{
    int self = play.current, first = self / 32 * 32, lane = self % 32;
    auto *told = play_told[play.threads[self].n_met & 1];
    const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};

    memcpy(told[self].a, a, sizeof a);
    memcpy(told[self].b, b, sizeof b);
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;

        for (int k = 0; k < 16; k++) {
            int pair = k % 8 / 2;

            c[i] +=
                play_half_of<HALF>(told[first + row % 8 * 4 + pair].a[row / 8 + k / 8 * 2], k % 2) *
                play_half_of<HALF>(told[first + col * 4 + pair].b[k / 8], k % 2);
        }
    }
}

static void portable_load_matrices(uint32_t (&r)[4], const void *p)
{
    int self = play.current, first = self / 32 * 32, lane = self % 32;
    auto *told = play_told[play.threads[self].n_met & 1];

    told[self].row = (const char *)p;
    __syncwarp();
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], told[first + i * 8 + lane / 4].row + lane % 4 * 4, 4);
}

static void portable_load_matrices_turned(uint32_t (&r)[4], const void *p)
{
    int self = play.current, first = self / 32 * 32, lane = self % 32;
    auto *told = play_told[play.threads[self].n_met & 1];

    told[self].row = (const char *)p;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        for (int half = 0; half < 2; half++) /* element lane / 4 of rows lane % 4 * 2, and + 1 */
            memcpy((char *)&r[i] + 2 * half,
                   told[first + i * 8 + lane % 4 * 2 + half].row + lane / 4 * 2, 2);
    }
}

static void portable_copy16(void *to, const void *from, bool has)
{
    if (has)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
}

static void portable_end_group(void)
{
}

template <int LEFT> static void portable_wait_groups(void)
{
}

static uint32_t portable_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Grids of several dimensions; the kernel's dynamic memory is here. */
#ifndef PLAY_SHARED
#define PLAY_SHARED (99 * 1024)
#endif
[[maybe_unused]] alignas(128) static char shared[PLAY_SHARED];

template <class F> static int play_launch_two(dim3 grid, dim3 block_dim, F f)
{
    play.grid_dim = grid;
    play.block_dim = block_dim;
    play.n_threads = (int)block_dim.x;
    play.body = [](void *p) { (*(F *)p)(); };
    play.arguments = &f;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z && play.fault == NULL; i++) {
        play.block = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
        play_block();
    }
    return play.fault == NULL ? 0 : -1;
}

#undef K_LAUNCH
#define K_LAUNCH(kernel, grid, block, smem, stream, ...) \
    ((void)(stream), (void)(smem),                       \
     play_launch_two(dim3(grid), dim3(block), [=] { (kernel)(__VA_ARGS__); }))
#define cudaFuncSetAttribute(...) cudaSuccess

#endif
