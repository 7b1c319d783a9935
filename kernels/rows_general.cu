/* SPDX-License-Identifier: Apache-2.0
 *
 * Row operations of layers in general: norms with a mean, norms after a product, activations other
 * than silu with a gate, multipliers, learned positions. The common form of a layer (RMS norm
 * before, silu with a gate) does not come here: it has fused kernels in rows_wide.cu and
 * product.cu.
 *
 * Norms take one block per row and read the row up to three times; the second and third reads hit
 * the cache, because a row is at most some 10 KB. Everything else is one element per thread. All
 * are bound by memory, and small beside the products of the layer. */
#include "kernels/activation.cuh"

#define NORM_THREADS 256
#define ELEM_THREADS 256

/* --- activations ------------------------------------------------------------------------ */

/* Blocks of a grid with one thread per element. */
static unsigned rows_blocks_of(size_t n)
{
    return (unsigned)((n + ELEM_THREADS - 1) / ELEM_THREADS);
}

static __device__ inline size_t rows_elem_of_thread()
{
    return (size_t)blockIdx.x * ELEM_THREADS + threadIdx.x;
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    activate_kernel(void *out, bool is_half, const k_bf16 *in, enum k_activation kind, size_t n)
{
    size_t i = rows_elem_of_thread();

    if (i < n)
        store_x(out, i, activation(load_bf16(in + i), kind), is_half);
}

int k_activate(void *out, bool is_half, const k_bf16 *in, enum k_activation kind, size_t n,
               k_stream stream)
{
    return K_LAUNCH(activate_kernel, rows_blocks_of(n), ELEM_THREADS, 0, stream, out, is_half, in,
                    kind, n);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    gate_kernel(k_bf16 *out, const k_bf16 *in, enum k_activation kind, size_t n, int ff_dim)
{
    size_t i = rows_elem_of_thread();
    const k_bf16 *gate = in + i / ff_dim * 2 * ff_dim + i % ff_dim;

    if (i < n)
        store_bf16(out + i, gated(load_bf16(gate), load_bf16(gate + ff_dim), kind));
}

int k_gate(k_bf16 *out, const k_bf16 *in, enum k_activation kind, int n, int ff_dim,
           k_stream stream)
{
    size_t elems = (size_t)n * ff_dim;

    return K_LAUNCH(gate_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, out, in, kind,
                    elems, ff_dim);
}

/* A thread has 16 elements, within which K_HALF_AT changes the order: so it may be in place. */
static __global__ void __launch_bounds__(ELEM_THREADS)
    shut_kernel(void *x, bool is_half, const k_bf16 *gate, size_t n)
{
    size_t first = rows_elem_of_thread() * 16;
    float y[16];

    for (int i = 0; i < 16; i++) {
        if (first + i < n)
            y[i] = load_bf16((const k_bf16 *)x + first + i) /
                   (1.0f + __expf(-load_bf16(gate + first + i)));
    }
    for (int i = 0; i < 16; i++) {
        if (first + i < n)
            store_x(x, first + i, y[i], is_half);
    }
}

int k_shut(void *x, bool is_half, const k_bf16 *gate, size_t n, k_stream stream)
{
    return K_LAUNCH(shut_kernel, rows_blocks_of((n + 15) / 16), ELEM_THREADS, 0, stream, x, is_half,
                    gate, n);
}

/* --- norms ------------------------------------------------------------------------------ */

static __device__ inline float rows_load(const float *p)
{
    return *p;
}

static __device__ inline float rows_load(const k_bf16 *p)
{
    return load_bf16(p);
}

/* One row by one block. The mean is computed first and the squared differences second, because the
 * difference of two large sums would lose the digits of a small variance. */
template <typename in_type>
static __device__ void rows_norm_row(k_bf16 *out, const in_type *x, const k_norm &norm, int dim)
{
    const k_bf16 *weight = (const k_bf16 *)norm.weight, *bias = (const k_bf16 *)norm.bias;
    __shared__ float shared[2][33];
    float mean = 0.0f, squares = 0.0f, scale;

    if (norm.kind == K_NORM_NONE) {
        for (int d = threadIdx.x; d < dim; d += NORM_THREADS)
            store_bf16(out + d, rows_load(x + d));
        return;
    }
    if (norm.kind == K_NORM_LAYER) {
        for (int d = threadIdx.x; d < dim; d += NORM_THREADS)
            mean += rows_load(x + d);
        mean = block_sum(mean, shared[0]) / dim;
    }
    for (int d = threadIdx.x; d < dim; d += NORM_THREADS)
        squares += (rows_load(x + d) - mean) * (rows_load(x + d) - mean);
    scale = rsqrtf(block_sum(squares, shared[1]) / dim + norm.eps);
    for (int d = threadIdx.x; d < dim; d += NORM_THREADS) {
        float result = (rows_load(x + d) - mean) * scale * load_bf16(weight + d);

        store_bf16(out + d, bias == NULL ? result : result + load_bf16(bias + d));
    }
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_rows_kernel(k_bf16 *out, const float *x, const k_norm norm, int dim)
{
    rows_norm_row(out + (size_t)blockIdx.x * dim, x + (size_t)blockIdx.x * dim, norm, dim);
}

int k_norm_rows(k_bf16 *out, const float *x, const struct k_norm *norm, int n, int dim,
                k_stream stream)
{
    return K_LAUNCH(norm_rows_kernel, n, NORM_THREADS, 0, stream, out, x, *norm, dim);
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_within_kernel(k_bf16 *x, int stride, const k_norm norm, int dim)
{
    k_bf16 *row = x + (size_t)blockIdx.x * stride;

    /* Each thread writes the elements that it alone has read last, so in place is safe. */
    rows_norm_row(row, (const k_bf16 *)row, norm, dim);
}

int k_norm_within(k_bf16 *x, int stride, const struct k_norm *norm, int n, int dim, k_stream stream)
{
    return K_LAUNCH(norm_within_kernel, n, NORM_THREADS, 0, stream, x, stride, *norm, dim);
}

/* --- elements --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(ELEM_THREADS)
    add_kernel(float *x, const k_bf16 *delta, float scale, size_t n)
{
    size_t i = rows_elem_of_thread();

    if (i < n)
        x[i] += scale * load_bf16(delta + i);
}

int k_add(float *x, const k_bf16 *delta, float scale, size_t n, k_stream stream)
{
    return K_LAUNCH(add_kernel, rows_blocks_of(n), ELEM_THREADS, 0, stream, x, delta, scale, n);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    place_kernel(float *x, float scale, const k_bf16 *positions, const int32_t *pos, int first,
                 int dim, size_t n)
{
    size_t i = rows_elem_of_thread();
    float result;

    if (i >= n)
        return;
    result = x[i] * scale;
    if (positions != NULL)
        result += load_bf16(positions + (size_t)(pos[i / dim] + first) * dim + i % dim);
    x[i] = result;
}

int k_place(float *x, float scale, const k_bf16 *positions, const int32_t *pos, int first, int n,
            int dim, k_stream stream)
{
    size_t elems = (size_t)n * dim;

    return K_LAUNCH(place_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, x, scale,
                    positions, pos, first, dim, elems);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    soften_kernel(float *x, const k_softening how, int width, size_t n)
{
    size_t i = rows_elem_of_thread();
    float result;

    if (i >= n)
        return;
    result = x[i];
    if (how.bias != NULL)
        result += load_bf16((const k_bf16 *)how.bias + i % width);
    result *= how.scale;
    x[i] = how.cap > 0.0f ? how.cap * tanhf(result / how.cap) : result;
}

int k_soften(float *x, const struct k_softening *how, int n, int width, k_stream stream)
{
    size_t elems = (size_t)n * width;

    return K_LAUNCH(soften_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, x, *how, width,
                    elems);
}
