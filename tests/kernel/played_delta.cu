/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule compiled for the host: one token of a sequence, and several where each
 * channel has a factor. Chunks on tensor cores are not played. */
#include "tests/kernel/play_portable.h"

#define blockDim play.block_dim

#define __expf   expf

static uint32_t __float_as_uint(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static int max(int a, int b)
{
    return a > b ? a : b;
}

/* The words of tf32.cuh. */
#define QUIRE_KERNELS_TF32_CUH
static float tf32_round(float x)
{
    return x;
}

static void tf32_copy_four(float *to, const float *from)
{
    memcpy(to, from, 4 * sizeof *to);
}

static void tf32_copy_two(void *to, const void *from)
{
    memcpy(to, from, 8);
}

static void tf32_end_group(void)
{
}

template <int n> static void tf32_wait_groups(void)
{
}

static void tf32_wait_copies(void)
{
}

template <int rows, int threads>
static void tf32_fetch(float *to, int to_pitch, const float *from, size_t from_pitch, int n,
                       int width, int room, bool)
{
    for (int at = threadIdx.x; at < rows * room; at += threads) {
        int row = at / room, column = at % room;

        to[row * to_pitch + column] =
            row < n && column < width ? from[row * from_pitch + column] : 0.0f;
    }
}

static void play_store(void *to, size_t at, float x, bool is_half)
{
    if (is_half)
        play.fault = "rows of float16 are not played";
    store_bf16((k_bf16 *)to + at, x);
}
#define store_x play_store

/* Of a block, whichever kernel it runs. */
alignas(16) float delta_memory[32 * 1024];

#include "kernels/delta.cu"
#include "kernels/delta_one.cu"
#undef THREADS
#undef WARPS
#undef ROWS
#undef COLUMNS
#include "kernels/delta_serial.cu"
#include "tests/kernel/played.h"

/* Clusters are not played. */
int delta_run_ranks(const delta_args &a, k_stream stream)
{
    return delta_run_sole(a, stream);
}

int delta_launch_chunks(const delta_args &, k_stream)
{
    play.fault = "chunks on tensor cores are not played";
    return -1;
}

int played_delta(const struct played_delta *of)
{
    play.fault = NULL;
    if (k_delta_rule(of->out, false, of->in, of->gates, &of->d, &of->state, &of->t, NULL) != 0)
        return -1;
    return play.fault == NULL ? 0 : -1;
}

int played_gate(float *gates, const struct k_delta_gating *g, int n_gates, int n)
{
    play.fault = NULL;
    if (k_delta_gate(gates, g, n_gates, n, NULL) != 0)
        return -1;
    return play.fault == NULL ? 0 : -1;
}
