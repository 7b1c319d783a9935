/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of LoRA adapters (adapter.h), on every GPU. No GPU has run them, so the cuda device does
 * not call them and refuses models with adapters; tests/kernel/test_played_adapter.c plays them.
 *
 *   in    a block per part and row: a warp has some rows of a, its lanes every 32nd element of x,
 *         and sums go over the lanes in one order
 *   out   a thread per part, row and output: the terms of its sum are added in the order of t
 *
 * A row without an adapter ends its blocks at once. Decodes are bound by reading a and b, once for
 * each row: rank * (n_in + n_out) elements. Each number depends on its own row only. */
#include "kernels/adapter.h"
#include "kernels/common.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* The adapter of a row for a part; rank 0: none. */
static __device__ inline k_adapter adapter_of_row(const k_adapting &a, int part, int row)
{
    int slot = a.adapters[a.rows == NULL ? row : a.rows[row]];
    k_adapter none = {};

    if (slot < 0)
        return none;
    return a.of.parts[part].slots[slot];
}

static __device__ inline float *adapter_inner(const k_adapting &a, int part, int row)
{
    return a.t + ((size_t)part * a.n + row) * a.rank_max;
}

static __global__ void __launch_bounds__(THREADS) adapt_in_kernel(const k_adapting a)
{
    int part = blockIdx.x / a.n, row = blockIdx.x % a.n;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const k_adapter one = adapter_of_row(a, part, row);
    const k_bf16 *x = a.x + (size_t)row * a.n_in;

    for (int k = warp; k < one.rank; k += WARPS) {
        const k_bf16 *from = (const k_bf16 *)one.a + (size_t)k * a.n_in;
        float sum = 0.0f;

        for (int i = lane; i < a.n_in; i += 32)
            sum = __fmaf_rn(load_bf16(from + i), load_bf16(x + i), sum);
        for (int by = 16; by > 0; by /= 2)
            sum += __shfl_xor_sync(~0U, sum, by);
        if (lane == 0)
            adapter_inner(a, part, row)[k] = sum;
    }
}

static __global__ void __launch_bounds__(THREADS) adapt_out_kernel(const k_adapting a, int n_blocks)
{
    int part = blockIdx.x / n_blocks / a.n, row = blockIdx.x / n_blocks % a.n;
    int out = blockIdx.x % n_blocks * THREADS + threadIdx.x, n_out = a.of.parts[part].n_out;
    const k_adapter one = adapter_of_row(a, part, row);
    const float *t = adapter_inner(a, part, row);
    size_t at = (size_t)row * a.stride + a.of.parts[part].first + out;
    float sum = 0.0f;

    if (out >= n_out || one.rank == 0)
        return;
    for (int k = 0; k < one.rank; k++)
        sum = __fmaf_rn(t[k], load_bf16((const k_bf16 *)one.b + (size_t)k * n_out + out), sum);
    if (a.y_is_float)
        ((float *)a.y)[at] = __fmaf_rn(one.scale, sum, ((float *)a.y)[at]);
    else
        store_bf16((k_bf16 *)a.y + at, __fmaf_rn(one.scale, sum, load_bf16((k_bf16 *)a.y + at)));
}

int k_adapt(const struct k_adapting *a, k_stream stream)
{
    int widest = 0, n_blocks;

    for (int p = 0; p < a->of.n_parts; p++)
        widest = a->of.parts[p].n_out > widest ? a->of.parts[p].n_out : widest;
    n_blocks = (widest + THREADS - 1) / THREADS;
    if (a->n == 0 || n_blocks == 0)
        return 0;
    if (K_LAUNCH(adapt_in_kernel, a->of.n_parts * a->n, THREADS, 0, stream, *a) != 0)
        return -1;
    return K_LAUNCH(adapt_out_kernel, a->of.n_parts * a->n * n_blocks, THREADS, 0, stream, *a,
                    n_blocks);
}
