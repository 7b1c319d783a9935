/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and comparison for tests of kernels: arrays between guard bands, inputs rounded to
 * bfloat16 on the host so that kernel and reference see the same numbers. With
 * QUIRE_TEST_KERNELS=portable they test the portable kernels. */
#ifndef QUIRE_TESTS_KERNEL_GPU_H
#define QUIRE_TESTS_KERNEL_GPU_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "tests/tap.h"

#define GUARD 256 /* bytes of 0xAB before and behind each array */

static struct device *gpu;
static unsigned gpu_seed;

static inline void gpu_open(void)
{
    if (device_cuda_count() == 0)
        tap_skip_all("NO GPU: kernels are not tested");
    if (device_choose_kernels(getenv("QUIRE_TEST_KERNELS")) != ERR_OK ||
        device_cuda_open(&gpu, 0) != ERR_OK) {
        printf("Bail out! the GPU does not open\n");
        exit(1);
    }
    gpu_seed = tap_seed(1);
}

/* Whether the next case is to run. QUIRE_TEST_PART=k/n: every n-th case does, from the k-th on; for
 * tools under which a kernel takes a thousand times as long. */
static inline bool gpu_has_turn(void)
{
    static unsigned n_cases;
    const char *part = getenv("QUIRE_TEST_PART");
    unsigned k = 0, n = 1;

    if (part != NULL && (sscanf(part, "%u/%u", &k, &n) != 2 || k >= n)) {
        printf("Bail out! QUIRE_TEST_PART is k/n, k below n\n");
        exit(1);
    }
    return n_cases++ % n == k;
}

static inline void gpu_must(int rc)
{
    if (rc != 0) {
        printf("Bail out! the GPU failed\n");
        exit(1);
    }
}

/* An array on the device, copied from src (NULL: 0xAB). */
static inline void *gpu_array(const void *src, size_t bytes)
{
    char *host = malloc(bytes + 2 * GUARD), *dev = gpu->ops->alloc(gpu, bytes + 2 * GUARD);

    gpu_must(dev == NULL);
    memset(host, 0xab, bytes + 2 * GUARD);
    if (src != NULL)
        memcpy(host + GUARD, src, bytes);
    gpu_must(gpu->ops->upload(gpu, dev, host, bytes + 2 * GUARD));
    free(host);
    return dev + GUARD;
}

/* Copy an array back; false when a guard band was written. */
static inline bool gpu_get(void *dst, const void *dev, size_t bytes)
{
    unsigned char *host = malloc(bytes + 2 * GUARD);
    bool intact = true;

    gpu_must(gpu->ops->download(gpu, host, (const char *)dev - GUARD, bytes + 2 * GUARD));
    for (size_t i = 0; i < GUARD; i++)
        intact = intact && host[i] == 0xab && host[bytes + GUARD + i] == 0xab;
    memcpy(dst, host + GUARD, bytes);
    free(host);
    return intact;
}

static inline k_bf16 gpu_round(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static inline float gpu_widen(k_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

static inline float gpu_uniform(void)
{
    gpu_seed = gpu_seed * 1664525U + 1013904223U;
    return (float)(gpu_seed >> 8) * 0x1p-23f - 1.0f; /* [-1, 1) */
}

/* n random numbers that bfloat16 holds exactly. */
static inline float *gpu_random(size_t n, float scale)
{
    float *f = malloc(n * sizeof *f + 4);

    for (size_t i = 0; i < n; i++)
        f[i] = gpu_widen(gpu_round(gpu_uniform() * scale));
    return f;
}

/* Such numbers as bfloat16 on the device. */
static inline k_bf16 *gpu_bf16(const float *f, size_t n)
{
    k_bf16 *h = malloc(n * sizeof *h + 4), *dev;

    for (size_t i = 0; i < n; i++)
        h[i] = gpu_round(f[i]);
    dev = gpu_array(h, n * sizeof *h);
    free(h);
    return dev;
}

/* Such numbers as bfloat16, where the floats were. */
static inline void gpu_narrow(void *numbers, size_t n)
{
    char *bytes = numbers;

    for (size_t i = 0; i < n; i++) {
        k_bf16 h;
        float f;

        memcpy(&f, bytes + 4 * i, sizeof f);
        h = gpu_round(f);
        memcpy(bytes + 2 * i, &h, sizeof h);
    }
}

/* The device's bfloat16 array as floats; bails out on a broken guard band. */
static inline float *gpu_floats(const k_bf16 *dev, size_t n)
{
    k_bf16 *h = malloc(n * sizeof *h + 4);
    float *f = malloc(n * sizeof *f + 4);

    ok(gpu_get(h, dev, n * sizeof *h), "guard bands are whole");
    for (size_t i = 0; i < n; i++)
        f[i] = gpu_widen(h[i]);
    free(h);
    return f;
}

/* Such numbers as a product with e4m3 takes them on the device, and back; n is a multiple of 16. */
static inline void *gpu_half(const float *f, size_t n)
{
    _Float16 *h = malloc(n * sizeof *h);
    void *dev;

    for (size_t i = 0; i < n; i++)
        h[K_HALF_AT(i)] = (_Float16)f[i];
    dev = gpu_array(h, n * sizeof *h);
    free(h);
    return dev;
}

static inline float *gpu_half_floats(const void *dev, size_t n)
{
    _Float16 *h = malloc(n * sizeof *h);
    float *f = malloc(n * sizeof *f);

    ok(gpu_get(h, dev, n * sizeof *h), "guard bands are whole");
    for (size_t i = 0; i < n; i++)
        f[i] = (float)h[K_HALF_AT(i)];
    free(h);
    return f;
}

/* Mean square error over mean square, and the worst difference over the largest value. The limit
 * of the mean is for many elements; of a few, each may be as far off as half a unit, 2^-8. */
static inline void gpu_compare(const float *got, const float *want, size_t n, double nmse_limit,
                               double worst_limit, const char *name)
{
    double error = 0.0, square = 0.0, worst = 0.0, largest = 1e-30;

    if (n < 256 && nmse_limit < 0x1p-16 && nmse_limit > 1e-8)
        nmse_limit = 0x1p-16;

    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);

        if (!(diff < 1e30))
            diff = 1e30; /* NaN counts */
        error += diff * diff;
        square += (double)want[i] * (double)want[i];
        worst = fmax(worst, diff);
        largest = fmax(largest, fabs((double)want[i]));
    }
    ok(error <= nmse_limit * square + 1e-30 && worst <= worst_limit * largest,
       "%s: NMSE %.1e of %.1e, worst %.1e of %.1e", name, error / (square + 1e-30), nmse_limit,
       worst / largest, worst_limit);
}

/* States of bfloat16 [n]: neighbours at most, and equal where they are not rounded from sums of
 * another order. */
static inline void gpu_compare_rounded(const k_bf16 *got, const k_bf16 *want, size_t n)
{
    float *wide = malloc(n * sizeof *wide), *of = malloc(n * sizeof *of);
    size_t n_apart = 0;

    for (size_t i = 0; i < n; i++) {
        wide[i] = gpu_widen(got[i]);
        of[i] = gpu_widen(want[i]);
        n_apart += got[i] != want[i];
    }
    gpu_compare(wide, of, n, 1e-5, 1e-2, "rounded states");
    ok(n_apart < n / 20, "of which few differ: %zu of %zu", n_apart, n);
    free(wide), free(of);
}

#endif
