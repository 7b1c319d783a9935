/* SPDX-License-Identifier: Apache-2.0
 *
 * A block of a kernel's threads on the host, for kernels that keep to plain CUDA: coroutines that
 * a round-robin scheduler lets go on until they wait for each other. Include this before the
 * kernel's source, compiled as C++ for the host; launches by K_LAUNCH() then run here.
 *
 * What is there is what the played kernels use. A lane that waits for one that never comes, or
 * shuffles with one outside its mask, is a fault (play.fault). Not thread-safe. */
#ifndef QUIRE_TESTS_KERNEL_PLAY_H
#define QUIRE_TESTS_KERNEL_PLAY_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define PLAY_THREADS 1024
#define PLAY_STACK   (64 * 1024)

struct play_thread {
    ucontext_t context;
    char *stack;
    dim3 idx;
    bool done;
    int n_met;     /* how often it has waited for others */
    int n_all;     /* how often for all of the block */
    float told[2]; /* to them, in turns: no thread is two ahead of one that it waits for */
};

static struct {
    struct play_thread threads[PLAY_THREADS];
    dim3 block, block_dim, grid_dim;
    int current, n_threads;
    void (*body)(void *);
    void *arguments;
    ucontext_t scheduler;
    const char *fault;
} play;

#define threadIdx play.threads[play.current].idx
#define blockIdx  play.block
#define blockDim  play.block_dim
#define gridDim   play.grid_dim
#define __launch_bounds__(...)

static void play_thread_main(void)
{
    play.body(play.arguments);
    play.threads[play.current].done = true;
    (void)swapcontext(&play.threads[play.current].context, &play.scheduler);
}

static void play_begin(int i)
{
    struct play_thread *t = &play.threads[i];

    if (t->stack == NULL && (t->stack = (char *)malloc(PLAY_STACK)) == NULL)
        abort();
    t->idx = dim3(i % play.block_dim.x, i / play.block_dim.x, 0);
    t->done = false;
    t->n_met = t->n_all = 0;
    (void)getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = PLAY_STACK;
    t->context.uc_link = NULL;
    makecontext(&t->context, play_thread_main, 0);
}

/* All threads of a block to their ends; a round without any progress is a fault. */
static void play_block(void)
{
    int n_left = play.n_threads;

    for (int i = 0; i < play.n_threads; i++)
        play_begin(i);
    while (n_left > 0 && play.fault == NULL) {
        bool moves = false;

        for (int i = 0; i < play.n_threads; i++) {
            struct play_thread *t = &play.threads[i];
            int before = t->n_met;

            if (t->done)
                continue;
            play.current = i;
            (void)swapcontext(&play.scheduler, &t->context);
            moves = moves || t->done || t->n_met != before;
            n_left -= t->done;
        }
        if (!moves && play.fault == NULL)
            play.fault = "a lane waits for one that does not come";
    }
}

static void play_grid(dim3 grid, dim3 block_dim, void (*body)(void *), void *arguments)
{
    play.block_dim = block_dim;
    play.grid_dim = grid;
    play.n_threads = (int)(block_dim.x * block_dim.y);
    play.body = body;
    play.arguments = arguments;
    if (play.n_threads > PLAY_THREADS || grid.y * grid.z * block_dim.z != 1)
        play.fault = "a launch that cannot be played";
    for (unsigned b = 0; b < grid.x && play.fault == NULL; b++) {
        play.block = dim3(b, 0, 0);
        play_block();
    }
}

template <class F> static int play_launch(dim3 grid, dim3 block_dim, F f)
{
    play_grid(
        grid, block_dim, [](void *p) { (*(F *)p)(); }, &f);
    return play.fault == NULL ? 0 : -1;
}

/* --- the machine's words ---------------------------------------------------------------- */

/* Tell the lanes of mask a number, and wait until all have: where theirs stand from then on. */
static int play_meet(unsigned mask, float x)
{
    int self = play.current, first = self / 32 * 32, turn = play.threads[self].n_met++;

    if ((mask >> (self - first) & 1) == 0)
        play.fault = "a lane outside its own mask";
    play.threads[self].told[turn & 1] = x;
    for (int i = 0; i < 32; i++) {
        while ((mask >> i & 1) != 0 && play.threads[first + i].n_met <= turn)
            (void)swapcontext(&play.threads[self].context, &play.scheduler);
    }
    return turn & 1;
}

static float __shfl_xor_sync(unsigned mask, float x, int by)
{
    int turn = play_meet(mask, x), from = play.current ^ by;

    if ((mask >> from % 32 & 1) == 0)
        play.fault = "a lane that is asked is outside the mask";
    return play.threads[from].told[turn];
}

static inline float __shfl_sync(unsigned mask, float x, int from)
{
    int turn = play_meet(mask, x), first = play.current / 32 * 32;

    if ((mask >> from & 1) == 0)
        play.fault = "a lane that is asked is outside the mask";
    return play.threads[first + from].told[turn];
}

static inline void __syncwarp(void)
{
    (void)play_meet(~0U, 0.0f);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* volatile: the host's compiler is not to contract them. */
static inline float __fmul_rn(float a, float b)
{
    volatile float y = a * b;

    return y;
}

static inline float __fadd_rn(float a, float b)
{
    volatile float y = a + b;

    return y;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}

static inline float rsqrtf(float a)
{
    return (float)(1.0 / sqrt((double)a));
}

static inline float __uint_as_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

static inline int __clz(int x)
{
    return __builtin_clz((unsigned)x);
}

static void __syncthreads(void); /* of kernels that are not played */

#include "kernels/common.cuh"

#undef K_LAUNCH
#define K_LAUNCH(kernel, grid, block, smem, stream, ...) \
    ((void)(stream), play_launch(dim3(grid), dim3(block), [=] { (kernel)(__VA_ARGS__); }))
#undef K_LAUNCH_EARLY
#define K_LAUNCH_EARLY(kernel, grid, block, stream, ...) \
    K_LAUNCH(kernel, grid, block, 0, stream, __VA_ARGS__)

#endif
