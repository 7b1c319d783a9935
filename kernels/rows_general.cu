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

/* --- norms over several ranks ------------------------------------------------------------ */

/* One row by one block: queries first, then keys. */
static __device__ inline float rows_squares_of(const k_bf16 *x, const k_split_norm &norm,
                                               float *shared)
{
    float squares = 0.0f;

    for (int d = threadIdx.x; d < norm.width; d += NORM_THREADS)
        squares += load_bf16(x + d) * load_bf16(x + d);
    return block_sum(squares, shared);
}

/* The upper half of a float's bits is a bf16 number, and three of them have all 24 bits. */
static __device__ inline void rows_put_exact(k_bf16 *to, float value)
{
    for (int i = 0; i < 3; i++) {
        uint32_t bits = __float_as_uint(value) & 0xffff0000U;

        to[i] = (k_bf16)(bits >> 16);
        value -= __uint_as_float(bits);
    }
    to[3] = 0;
}

static __global__ void __launch_bounds__(NORM_THREADS)
    squares_kernel(k_bf16 *squares, const k_bf16 *x, const k_split_norms s)
{
    __shared__ float shared[2][33];
    const k_bf16 *row = x + (size_t)blockIdx.x * s.stride;
    k_bf16 *to = squares + (size_t)blockIdx.x * K_SQUARES(s.n_ranks);
    float q = rows_squares_of(row, s.q, shared[0]);
    float k = rows_squares_of(row + s.q.width, s.k, shared[1]);

    if ((int)threadIdx.x >= s.n_ranks)
        return;
    if ((int)threadIdx.x == s.rank) {
        rows_put_exact(to + s.rank * 8, s.q.counts ? q : 0.0f);
        rows_put_exact(to + s.rank * 8 + 4, s.k.counts ? k : 0.0f);
    } else {
        *(uint4 *)(to + threadIdx.x * 8) = make_uint4(0, 0, 0, 0);
    }
}

int k_squares(k_bf16 *squares, const k_bf16 *x, const struct k_split_norms *s, int n,
              k_stream stream)
{
    return K_LAUNCH(squares_kernel, n, NORM_THREADS, 0, stream, squares, x, *s);
}

/* squares: those of the first rank. */
static __device__ inline void rows_norm_by_squares(k_bf16 *x, const k_bf16 *squares,
                                                   const k_split_norm &norm, const k_split_norms &s)
{
    const k_bf16 *weight = (const k_bf16 *)norm.weight;
    float sum = 0.0f, scale;

    for (int i = 0; i < s.n_ranks; i++, squares += 8)
        sum += load_bf16(squares) + load_bf16(squares + 1) + load_bf16(squares + 2);
    scale = rsqrtf(sum / norm.whole + s.eps);
    for (int d = threadIdx.x; d < norm.width; d += NORM_THREADS)
        store_bf16(x + d, load_bf16(x + d) * scale * load_bf16(weight + d));
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_squares_kernel(k_bf16 *x, const k_bf16 *squares, const k_split_norms s)
{
    k_bf16 *row = x + (size_t)blockIdx.x * s.stride;
    const k_bf16 *sums = squares + (size_t)blockIdx.x * K_SQUARES(s.n_ranks);

    rows_norm_by_squares(row, sums, s.q, s);
    rows_norm_by_squares(row + s.q.width, sums + 4, s.k, s);
}

int k_norm_squares(k_bf16 *x, const k_bf16 *squares, const struct k_split_norms *s, int n,
                   k_stream stream)
{
    return K_LAUNCH(norm_squares_kernel, n, NORM_THREADS, 0, stream, x, squares, *s);
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
