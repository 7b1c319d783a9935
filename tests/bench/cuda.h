/* SPDX-License-Identifier: Apache-2.0
 *
 * What benches of single kernels share: memory of the GPU, random numbers for it, a median. What
 * fails ends the program. Tests of kernels have kernel/gpu.h, which guards its arrays. */
#ifndef QUIRE_TESTS_BENCH_CUDA_H
#define QUIRE_TESTS_BENCH_CUDA_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static inline void bench_must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
            cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

/* QUIRE_TEST_KERNELS=portable measures the portable kernels. */
static inline void bench_choose_kernels(void)
{
    const char *kernels = getenv("QUIRE_TEST_KERNELS");

    if (kernels != NULL && strcmp(kernels, "portable") == 0)
        bench_must(k_use_portable(), "the portable kernels");
}

/* An array on the GPU, copied from src (NULL: whatever it holds). */
static inline void *bench_array(const void *src, size_t bytes)
{
    void *p = NULL;

    bench_must(cudaMalloc(&p, bytes) != cudaSuccess, "memory");
    if (src != NULL)
        bench_must(cudaMemcpy(p, src, bytes, cudaMemcpyHostToDevice) != cudaSuccess, "copy");
    return p;
}

static inline uint64_t bench_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* n logits on the GPU: noise of deviation 2.5 about 0, one in 4096 lifted by up to 16, so that few
 * tokens hold the weight. */
static inline float *bench_logits(size_t n, uint64_t *x)
{
    float *host = malloc(n * sizeof *host), *p;

    for (size_t i = 0; i < n; i++) {
        uint64_t r = bench_random(x);
        int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff);

        host[i] = ((float)sum - 98304.0f) * (2.5f / 32768.0f);
        if (r >> 52 == 0)
            host[i] += (float)(r >> 44 & 0xff) / 16.0f;
    }
    p = bench_array(host, n * sizeof *host);
    free(host);
    return p;
}

static inline int bench_compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Of n values, which are sorted. */
static inline float bench_median(float *values, size_t n)
{
    qsort(values, n, sizeof *values, bench_compare);
    return values[n / 2];
}

#endif
