/* SPDX-License-Identifier: Apache-2.0
 *
 * A step's transfers from and to pinned host memory. Copy engines are as fast, but they work in the
 * order in which all streams enqueue: after hundreds of pages on their way to host memory, the ids
 * of a step would wait for milliseconds.
 *
 * Split: 16 bytes per thread, or 4 if rows are not so aligned; enough warps that their reads over
 * PCIe (some 2 us each) overlap. */
#include "kernels/common.cuh"

#define THREADS    256
#define BLOCKS_MAX 256

static __global__ void copy_kernel(uint4 *dst, const uint4 *src, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        dst[i] = src[i];
}

static __global__ void copy_rows_kernel(int32_t *dst, int stride, const int32_t *src, int width)
{
    for (int i = threadIdx.x; i < width; i += THREADS)
        dst[(size_t)blockIdx.x * stride + i] = src[(size_t)blockIdx.x * width + i];
}

/* A grid of at most BLOCKS_MAX blocks: more would not make PCIe faster. */
int k_copy(void *dst, const void *src, size_t bytes, k_stream stream)
{
    size_t n = (bytes + 15) / 16, blocks = (n + THREADS - 1) / THREADS;

    if (n == 0)
        return 0;
    return K_LAUNCH(copy_kernel, (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), THREADS, 0,
                    stream, (uint4 *)dst, (const uint4 *)src, n);
}

/* For rows of the same width with a stride, such as page tables. */
int k_copy_rows(int32_t *dst, int stride, const int32_t *src, int width, int n_rows,
                k_stream stream)
{
    if (n_rows == 0 || width == 0)
        return 0;
    return K_LAUNCH(copy_rows_kernel, (unsigned)n_rows, THREADS, 0, stream, dst, stride, src,
                    width);
}
