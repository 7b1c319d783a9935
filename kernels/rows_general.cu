/* SPDX-License-Identifier: Apache-2.0
 *
 * Row operations of layers in general: norms with a mean, norms after a product, activations other
 * than silu with a gate, multipliers, learned positions. The common form of a layer (RMS norm
 * before, silu with a gate) does not come here: it has fused kernels in rows_wide.cu and
 * product.cu. Embeddings of tokens for each layer are here, too.
 *
 * Norms take one block per row and read the row up to three times; the second and third reads hit
 * the cache, because a row is at most some 10 KB. Everything else is one element per thread. All
 * are bound by memory, and small beside the products of the layer. */
#include "kernels/activation.cuh"
#include "kernels/mamba.h"

#define NORM_THREADS 256
#define ELEM_THREADS 256
#define ADD_THREADS  512 /* one row of 2048 elements at a time */

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

    wait_for_previous();
    let_next_begin();
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
    return K_LAUNCH_EARLY(shut_kernel, rows_blocks_of((n + 15) / 16), ELEM_THREADS, stream, x,
                          is_half, gate, n);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    gate_by_kernel(k_bf16 *out, const k_bf16 *in, const k_factor by, enum k_activation kind,
                   size_t n)
{
    size_t i = rows_elem_of_thread();
    const k_bf16 *factor =
        (const k_bf16 *)by.rows + i / by.width * (size_t)by.stride + i % by.width;

    if (i < n)
        store_bf16(out + i, activation(load_bf16(in + i), kind) * load_bf16(factor));
}

int k_gate_by(k_bf16 *out, const k_bf16 *in, const struct k_factor *by, enum k_activation kind,
              int n, k_stream stream)
{
    size_t elems = (size_t)n * by->width;

    return K_LAUNCH(gate_by_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, out, in, *by,
                    kind, elems);
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

/* --- sums with their norms ---------------------------------------------------------------- */

/* Four elements, or as many of them as W says; the rest is not touched. */
template <int W> static __device__ inline void rows_take(float to[W], const k_bf16 *from)
{
    if (W == 4) {
        uint2 words = *(const uint2 *)from;

        to[0] = low_half(words.x), to[1 % W] = high_half(words.x);
        to[2 % W] = low_half(words.y), to[3 % W] = high_half(words.y);
    } else {
        to[0] = load_bf16(from);
    }
}

template <int W> static __device__ inline void rows_put(k_bf16 *to, const float from[W])
{
    if (W == 4)
        *(uint2 *)to =
            make_uint2(pack_bf16(from[0], from[1 % W]), pack_bf16(from[2 % W], from[3 % W]));
    else
        store_bf16(to, from[0]);
}

/* x = (x + by * after(delta)) * scale for the elements of a thread; returns their squares. */
template <int W>
static __device__ inline float rows_add(float *x, const k_bf16 *delta, const k_adding &how, int dim,
                                        float factor)
{
    const k_bf16 *weight = (const k_bf16 *)how.after.weight;
    float squares = 0.0f;

    for (int d = threadIdx.x * W; d < dim; d += ADD_THREADS * W) {
        float y[W], w[W], sum[W];

        rows_take<W>(y, delta + d);
        if (how.after.kind == K_NORM_RMS)
            rows_take<W>(w, weight + d);
        if (W == 4)
            *(float4 *)sum = *(const float4 *)(x + d);
        else
            sum[0] = x[d];
#pragma unroll
        for (int i = 0; i < W; i++) {
            if (how.after.kind == K_NORM_RMS)
                y[i] *= factor * w[i];
            sum[i] = (sum[i] + how.by * y[i]) * how.scale;
            squares += sum[i] * sum[i];
        }
        if (W == 4)
            *(float4 *)(x + d) = *(const float4 *)sum;
        else
            x[d] = sum[0];
    }
    return squares;
}

/* One row by one block. Each thread reads again only its own results. */
template <int W>
static __global__ void __launch_bounds__(ADD_THREADS)
    add_normed_kernel(k_bf16 *out, float *x, const k_bf16 *delta, const k_adding how, int dim)
{
    const k_bf16 *weight = (const k_bf16 *)how.norm.weight;
    __shared__ float shared[2][33];
    size_t row = (size_t)blockIdx.x * dim;
    float squares = 0.0f, factor = 1.0f;

    x += row;
    delta += row;
    if (how.after.kind == K_NORM_RMS) {
        for (int d = threadIdx.x * W; d < dim; d += ADD_THREADS * W) {
            float y[W];

            rows_take<W>(y, delta + d);
#pragma unroll
            for (int i = 0; i < W; i++)
                squares += y[i] * y[i];
        }
        factor = rsqrtf(block_sum(squares, shared[0]) / dim + how.after.eps);
    }
    squares = rows_add<W>(x, delta, how, dim, factor);
    if (out == NULL)
        return;
    factor = 1.0f;
    if (how.norm.kind == K_NORM_RMS)
        factor = rsqrtf(block_sum(squares, shared[1]) / dim + how.norm.eps);
    for (int d = threadIdx.x * W; d < dim; d += ADD_THREADS * W) {
        float y[W], w[W];

#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] = x[d + i];
        if (how.norm.kind == K_NORM_RMS) {
            rows_take<W>(w, weight + d);
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] *= factor * w[i];
        }
        rows_put<W>(out + row + d, y);
    }
}

int k_add_normed(k_bf16 *out, float *x, const k_bf16 *delta, const struct k_adding *how, int n,
                 int dim, k_stream stream)
{
    uintptr_t all = (uintptr_t)out | (uintptr_t)x | (uintptr_t)delta |
                    (uintptr_t)how->after.weight | (uintptr_t)how->norm.weight;

    if (dim % 4 == 0 && all % 16 == 0)
        return K_LAUNCH(add_normed_kernel<4>, n, ADD_THREADS, 0, stream, out, x, delta, *how, dim);
    return K_LAUNCH(add_normed_kernel<1>, n, ADD_THREADS, 0, stream, out, x, delta, *how, dim);
}

/* One layer of one token by one block: norms its run of x and adds its run of the table's row. Each
 * thread writes the elements that it alone reads. */
static __global__ void __launch_bounds__(NORM_THREADS)
    embed_layers_kernel(k_bf16 *x, const k_layer_embeds e, const int32_t *ids,
                        const int32_t *sampled)
{
    __shared__ float shared[33];
    int layer = blockIdx.x, token = blockIdx.y, id = ids[token];
    size_t row = (size_t)e.n_layers * e.width, at = (size_t)layer * e.width;
    k_bf16 *run = x + token * row + at;
    const k_bf16 *weight = (const k_bf16 *)e.weight, *from;
    float squares = 0.0f, scale;

    id = id < 0 ? sampled[-1 - id] : id;
    from = (const k_bf16 *)e.table + id * row + at;
    for (int d = threadIdx.x; d < e.width; d += NORM_THREADS)
        squares += load_bf16(run + d) * load_bf16(run + d);
    scale = rsqrtf(block_sum(squares, shared) / e.width + e.eps);
    for (int d = threadIdx.x; d < e.width; d += NORM_THREADS) {
        float result = load_bf16(run + d) * scale * load_bf16(weight + d);

        store_bf16(run + d, (result + e.table_scale * load_bf16(from + d)) * e.scale);
    }
}

int k_embed_layers(k_bf16 *x, const struct k_layer_embeds *e, const int32_t *ids,
                   const int32_t *sampled, int n, k_stream stream)
{
    return K_LAUNCH(embed_layers_kernel, dim3(e->n_layers, n), NORM_THREADS, 0, stream, x, *e, ids,
                    sampled);
}

/* --- elements --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(ELEM_THREADS)
    add_within_kernel(k_bf16 *x, const k_bf16 *delta, size_t n)
{
    size_t i = rows_elem_of_thread();

    if (i < n)
        store_bf16(x + i, load_bf16(x + i) + load_bf16(delta + i));
}

int k_add_within(k_bf16 *x, const k_bf16 *delta, size_t n, k_stream stream)
{
    return K_LAUNCH(add_within_kernel, rows_blocks_of(n), ELEM_THREADS, 0, stream, x, delta, n);
}

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

/* A thread per element. */
static __global__ void __launch_bounds__(ELEM_THREADS)
    grow_kernel(k_bf16 *x, int stride, int width, const k_growth g, const int32_t *pos, size_t n)
{
    size_t i = rows_elem_of_thread();

    if (i >= n)
        return;
    x += i / width * stride + i % width;
    store_bf16(x, load_bf16(x) * (1.0f + g.beta * logf(1.0f + (float)(pos[i / width] / g.period))));
}

int k_grow(k_bf16 *x, int stride, int width, const struct k_growth *g, const int32_t *pos, int n,
           k_stream stream)
{
    size_t elems = (size_t)n * width;

    return K_LAUNCH(grow_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, x, stride, width,
                    *g, pos, elems);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    scale_kernel(k_bf16 *x, int stride, int width, float by, size_t n)
{
    size_t i = rows_elem_of_thread();

    if (i >= n)
        return;
    x += i / width * stride + i % width;
    store_bf16(x, load_bf16(x) * by);
}

int k_scale(k_bf16 *x, int stride, int width, float by, int n, k_stream stream)
{
    size_t elems = (size_t)n * width;

    return K_LAUNCH(scale_kernel, rows_blocks_of(elems), ELEM_THREADS, 0, stream, x, stride, width,
                    by, elems);
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

/* --- rows of other steps -------------------------------------------------------------------- */

static __global__ void __launch_bounds__(ELEM_THREADS) pick_kernel(const k_pick p)
{
    size_t i = rows_elem_of_thread(), row = i / p.width, at = i % p.width, from, to;
    float value;

    if (row >= (size_t)p.n)
        return;
    from = (size_t)(p.rows == NULL ? row : p.rows[row]) * p.from_stride + at;
    to = row * p.to_stride + at;
    value =
        p.from_is_float ? ((const float *)p.from)[from] : load_bf16((const k_bf16 *)p.from + from);
    if (p.to_is_float)
        ((float *)p.to)[to] = value;
    else
        store_bf16((k_bf16 *)p.to + to, value);
}

int k_pick_rows(const struct k_pick *p, k_stream stream)
{
    return K_LAUNCH(pick_kernel, rows_blocks_of((size_t)p->n * p->width), ELEM_THREADS, 0, stream,
                    *p);
}

static __global__ void __launch_bounds__(ELEM_THREADS)
    rename_kernel(int32_t *ids, const int32_t *table, int n)
{
    size_t i = rows_elem_of_thread();

    if (i < (size_t)n)
        ids[i] = table[ids[i]];
}

int k_rename(int32_t *ids, const int32_t *table, int n, k_stream stream)
{
    return K_LAUNCH(rename_kernel, rows_blocks_of((size_t)n), ELEM_THREADS, 0, stream, ids, table,
                    n);
}
