/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of matrices of e4m3, which a GPU without such products needs, and of bytes as bfloat16; and
 * rows of x in the order that products of few rows read. Sixteen elements per thread. */
#include "kernels/e4m3.cuh"

#define THREADS 256

struct widen_args {
    k_bf16 *out;
    const k_e4m3 *w;
    const float *scales;                /* NULL: all are 1 */
    int n_in, first, block, scale_cols; /* block: rows and columns with one scale; 0: by row */
    size_t n;                           /* sixteens */
};

/* Eight bytes with a sign, times a scale: the first two of each word from bit `from` on. */
static __device__ inline uint4 codes_scaled_bytes(const uint4 &words, int from, float scale)
{
    const uint32_t word[4] = {words.x >> from, words.y >> from, words.z >> from, words.w >> from};
    uint32_t two[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = pack_bf16((float)(int8_t)word[i] * scale, (float)(int8_t)(word[i] >> 8) * scale);
    return make_uint4(two[0], two[1], two[2], two[3]);
}

template <bool IS_INT8>
static __global__ void __launch_bounds__(THREADS) widen_codes_kernel(const widen_args a)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    int sixteens = a.n_in / 16, row, col;
    float scale = 1.0f;
    uint4 codes;

    if (i >= a.n)
        return;
    row = a.first + (int)(i / sixteens);
    col = (int)(i % sixteens) * 16;
    codes = *(const uint4 *)(a.w + (size_t)row * a.n_in + col);
    if (a.scales != NULL)
        scale = a.block == 0 ? a.scales[row]
                             : a.scales[(size_t)(row / a.block) * a.scale_cols + col / a.block];
    if (IS_INT8) {
        *(uint4 *)(a.out + i * 16) = codes_scaled_bytes(codes, 0, scale);
        *(uint4 *)(a.out + i * 16 + 8) = codes_scaled_bytes(codes, 16, scale);
        return;
    }
    *(uint4 *)(a.out + i * 16) = scaled_eight(make_uint2(codes.x, codes.y), scale);
    *(uint4 *)(a.out + i * 16 + 8) = scaled_eight(make_uint2(codes.z, codes.w), scale);
}

int k_widen_codes(k_bf16 *out, const struct k_matrix *w, int first, int n, k_stream stream)
{
    widen_args a = {};

    a.out = out;
    a.w = (const k_e4m3 *)w->data;
    a.scales = (const float *)w->scales;
    a.n_in = w->n_in;
    a.first = first;
    a.block = w->format.group_cols;
    a.scale_cols = k_format_scale_cols(&w->format, w->n_in);
    a.n = (size_t)n * (size_t)(w->n_in / 16);
    if (w->format.elem == K_INT8)
        return K_LAUNCH(widen_codes_kernel<true>, (unsigned)((a.n + THREADS - 1) / THREADS),
                        THREADS, 0, stream, a);
    return K_LAUNCH(widen_codes_kernel<false>, (unsigned)((a.n + THREADS - 1) / THREADS), THREADS,
                    0, stream, a);
}

static __global__ void __launch_bounds__(THREADS)
    halve_rows_kernel(void *out, const k_bf16 *x, size_t n)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 16;

    wait_for_previous();
    let_next_begin();
    if (i >= n)
        return;
#pragma unroll
    for (int k = 0; k < 16; k += 2)
        store_x_two(out, i + k, load_bf16(x + i + k), load_bf16(x + i + k + 1), true);
}

int k_halve_rows(void *out, const k_bf16 *x, size_t n, k_stream stream)
{
    return K_LAUNCH_EARLY(halve_rows_kernel, (unsigned)((n / 16 + THREADS - 1) / THREADS), THREADS,
                          stream, out, x, n);
}
