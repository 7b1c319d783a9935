/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights in records (packed.h) as bfloat16 or bytes by row, for products of many rows, and random
 * ones. */
#include <cuda_fp16.h>

#include "kernels/bytes.h"
#include "kernels/packed.cuh"
#include "kernels/packed.h"
#include "kernels/rng.h"

#define THREADS 256

/* Two neighbours of a row of a strip: codes 16 bits apart, from bit `shift` on. */
template <int BITS>
static __device__ inline uint32_t packed_widen_two(uint32_t codes, int shift, float zero,
                                                   float scale)
{
    const uint32_t mask = (1U << BITS) - 1;

    return pack_bf16(((float)(codes >> shift & mask) - zero) * scale,
                     ((float)(codes >> (shift + 16) & mask) - zero) * scale);
}

/* A lane's words of 32 columns: of 4 bits two, of 8 bits four. */
template <int BITS>
static __device__ inline void packed_load_quarter(uint32_t (&codes)[BITS / 2], const char *record,
                                                  int quarter, int lane)
{
    if constexpr (BITS == 8) {
        uint4 four = *(const uint4 *)(record + quarter * 512 + lane * 16);

        codes[0] = four.x, codes[1] = four.y, codes[2] = four.z, codes[3] = four.w;
    } else {
        uint2 two = *(const uint2 *)(record + quarter / 2 * 512 + lane * 16 + quarter % 2 * 8);

        codes[0] = two.x, codes[1] = two.y;
    }
}

/* Exchange words between the four lanes of a row: lane q gets word q of each, in their order. */
static __device__ inline void packed_turn_four(uint32_t (&words)[4])
{
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2) {
        bool upper = (threadIdx.x & (unsigned)apart) != 0;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t other;

            if ((i & apart) != 0)
                continue;
            other = __shfl_xor_sync(~0U, upper ? words[i] : words[i + apart], apart);
            if (upper)
                words[i] = other;
            else
                words[i + apart] = other;
        }
    }
}

/* A warp per record. A lane has two columns of each eight; after an exchange with three others it
 * stores the eight columns of one. Bytes are read once and written once. */
template <int BITS>
static __global__ void __launch_bounds__(THREADS)
    dequantise_kernel(k_bf16 *out, const char *w, struct packed_shape s, size_t n_records)
{
    size_t record = ((size_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32, row = lane / 4, groups = K_PACKED_COLS / s.group;
    size_t strip = record / s.n_records, col = record % s.n_records * K_PACKED_COLS;
    const char *from = w + record * s.record_bytes;
    k_bf16 *to = out + (strip * K_PACKED_ROWS + row) * s.n_in + col + lane % 4 * 8;

    if (record >= n_records)
        return;
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        packed_numbers n = packed_numbers_of(from, quarter * groups / 4, row, s);
        uint32_t codes[BITS / 2];

        packed_load_quarter<BITS>(codes, from, quarter, lane);
#pragma unroll
        for (int below = 0; below < 2; below++) {
            uint32_t words[4]; /* of the quarter's four times eight columns */

#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i] = packed_widen_two<BITS>(codes[i * BITS / 8],
                                                  BITS == 8 ? 8 * below : i % 2 * 8 + 4 * below,
                                                  n.zero[below], n.scale[below]);
            packed_turn_four(words);
            *(uint4 *)(to + (size_t)(8 * below) * s.n_in + quarter * 32) =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

/* The same of floats, whose rows have scales. */
static __global__ void __launch_bounds__(THREADS)
    dequantise_floats_kernel(k_bf16 *out, const char *w, const float *rows, struct packed_shape s,
                             size_t n_records)
{
    size_t record = ((size_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32, groups = K_PACKED_COLS / s.group;
    size_t row = record / s.n_records * K_PACKED_ROWS + lane / 4;
    const char *from = w + record * s.record_bytes;
    const uint32_t *scales = (const uint32_t *)(from + PACKED_CODE_BYTES + lane / 4 * 2 * groups);
    k_bf16 *to = out + row * s.n_in + record % s.n_records * K_PACKED_COLS + lane % 4 * 8;

    if (record >= n_records)
        return;
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        uint2 codes = *(const uint2 *)(from + quarter / 2 * 512 + lane * 16 + quarter % 2 * 8);
        uint32_t a[2][4]; /* of 16 columns each */

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int group = (quarter * 2 + i) * groups / 8;

            packed_float_operand(a[i], i == 0 ? codes.x : codes.y,
                                 packed_float_scales(scales[group / 2], FLOAT_PICK(group)));
        }
#pragma unroll
        for (int below = 0; below < 2; below++) {
            float scale = rows[row + 8 * below];
            uint32_t words[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t two = a[i / 2][i % 2 * 2 + below];

                words[i] = pack_bf16(__uint_as_float(two << 16) * scale,
                                     __uint_as_float(two & 0xffff0000U) * scale);
            }
            packed_turn_four(words);
            *(uint4 *)(to + (size_t)(8 * below) * s.n_in + quarter * 32) =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

int k_dequantise(k_bf16 *out, const struct k_matrix *w, int first, int n, k_stream stream)
{
    const struct packed_shape s = packed_shape_of(w);
    const char *from = (const char *)w->data +
                       (size_t)(first / K_PACKED_ROWS) * s.n_records * (size_t)s.record_bytes;
    size_t n_records = (size_t)(n / K_PACKED_ROWS) * (size_t)s.n_records;
    unsigned blocks = (unsigned)((n_records * 32 + THREADS - 1) / THREADS);

    if (s.is_float)
        return K_LAUNCH(dequantise_floats_kernel, blocks, THREADS, 0, stream, out, from,
                        (const float *)w->scales + first, s, n_records);
    if (w->format.elem == K_INT8)
        return K_LAUNCH(dequantise_kernel<8>, blocks, THREADS, 0, stream, out, from, s, n_records);
    return K_LAUNCH(dequantise_kernel<4>, blocks, THREADS, 0, stream, out, from, s, n_records);
}

/* --- as bytes by row -------------------------------------------------------------------------- */

#define PACKED_STRIP_WARPS 8

struct packed_bytes_args {
    int8_t *out;
    float *scales;
    const char *w; /* the first strip */
    struct packed_shape s;
};

/* The larger one; a NaN is the largest. */
static __device__ inline float packed_larger(float a, float b)
{
    return a != a || a > b ? a : b;
}

/* For each row of a strip the largest magnitude that its scales and zero points allow. */
static __device__ inline void packed_find_most(float (&most)[K_PACKED_ROWS], const char *strip,
                                               const struct packed_shape &s)
{
    __shared__ float of_warp[PACKED_STRIP_WARPS][K_PACKED_ROWS];
    int row = threadIdx.x % K_PACKED_ROWS, groups = K_PACKED_COLS / s.group;
    float own = 0.0f;

    for (int i = threadIdx.x / K_PACKED_ROWS; i < s.n_records * groups;
         i += THREADS / K_PACKED_ROWS) {
        const char *record = strip + (size_t)(i / groups) * (size_t)s.record_bytes;
        const packed_numbers n = packed_numbers_of(record, i % groups, row % 8, s);
        float zero = n.zero[row / 8];

        own = packed_larger(fabsf(n.scale[row / 8]) * fmaxf(zero, 15.0f - zero), own);
    }
    own = packed_larger(__shfl_xor_sync(~0U, own, K_PACKED_ROWS), own);
    if (threadIdx.x % 32 < K_PACKED_ROWS)
        of_warp[threadIdx.x / 32][row] = own;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < K_PACKED_ROWS; r++) {
        most[r] = of_warp[0][r];
#pragma unroll
        for (int i = 1; i < PACKED_STRIP_WARPS; i++)
            most[r] = packed_larger(of_warp[i][r], most[r]);
    }
}

/* A code as a byte. The sum with 1.5 * 2^23 has the rounded number in its lowest bits. */
static __device__ inline uint32_t packed_round(uint32_t codes, int shift, float zero, float factor)
{
    return __float_as_uint(__fmaf_rn((float)(codes >> shift & 15) - zero, factor, 12582912.0f));
}

/* Four codes of a row in a word, in the order of K_BYTE_AT: 2 q, 2 q + 1, 2 q + 8, 2 q + 9. */
static __device__ inline uint32_t packed_round_four(uint32_t codes, int below, float zero,
                                                    float factor)
{
    uint32_t low = __byte_perm(packed_round(codes, 4 * below, zero, factor),
                               packed_round(codes, 4 * below + 16, zero, factor), 0x0040);
    uint32_t high = __byte_perm(packed_round(codes, 4 * below + 8, zero, factor),
                                packed_round(codes, 4 * below + 24, zero, factor), 0x0040);

    return __byte_perm(low, high, 0x5410);
}

/* A block per strip, a warp per record of it. After an exchange with the three other lanes of a row
 * a lane stores 16 columns. */
static __global__ void __launch_bounds__(THREADS) round_codes_kernel(const packed_bytes_args a)
{
    const struct packed_shape &s = a.s;
    const char *strip = a.w + (size_t)blockIdx.x * (size_t)s.n_records * (size_t)s.record_bytes;
    int lane = threadIdx.x % 32, row = lane / 4, groups = K_PACKED_COLS / s.group;
    float most[K_PACKED_ROWS], inverse[2] = {0.0f, 0.0f};

    packed_find_most(most, strip, s);
#pragma unroll
    for (int r = 0; r < K_PACKED_ROWS; r++) {
        if (r % 8 == row)
            inverse[r / 8] = most[r] == 0.0f ? 0.0f : 127.0f / most[r];
        if (threadIdx.x == r)
            a.scales[blockIdx.x * K_PACKED_ROWS + r] = most[r] / 127.0f;
    }
    for (int i = threadIdx.x / 32; i < s.n_records; i += PACKED_STRIP_WARPS) {
        const char *record = strip + (size_t)i * (size_t)s.record_bytes;
        int8_t *to = a.out + (size_t)(blockIdx.x * K_PACKED_ROWS + row) * (size_t)s.n_in +
                     i * K_PACKED_COLS + lane % 4 * 16;

#pragma unroll
        for (int part = 0; part < 2; part++) { /* 64 columns */
            const uint4 four = *(const uint4 *)(record + part * 512 + lane * 16);
            const uint32_t codes[4] = {four.x, four.y, four.z, four.w};
            const packed_numbers first = packed_numbers_of(record, part * 2 * groups / 4, row, s);
            const packed_numbers last =
                packed_numbers_of(record, (part * 2 + 1) * groups / 4, row, s);

#pragma unroll
            for (int below = 0; below < 2; below++) {
                uint32_t words[4];

#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const packed_numbers &n = k < 2 ? first : last;

                    words[k] = packed_round_four(codes[k], below, n.zero[below],
                                                 n.scale[below] * inverse[below]);
                }
                packed_turn_four(words);
                *(uint4 *)(to + (size_t)(8 * below) * (size_t)s.n_in + part * 64) =
                    make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }
}

int k_round_codes(int8_t *out, float *scales, const struct k_matrix *w, int first, int n,
                  k_stream stream)
{
    packed_bytes_args a = {out, scales, NULL, packed_shape_of(w)};

    a.w = (const char *)w->data +
          (size_t)(first / K_PACKED_ROWS) * (size_t)a.s.n_records * (size_t)a.s.record_bytes;
    return K_LAUNCH(round_codes_kernel, (unsigned)(n / K_PACKED_ROWS), THREADS, 0, stream, a);
}

/* --- random ----------------------------------------------------------------------------------- */

/* Codes of a record are random, its scales equal, its zeros in the middle. A thread per word. */
static __global__ void fill_records_kernel(uint32_t *out, size_t n_words, struct packed_shape s,
                                           uint32_t scales, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    int words = s.record_bytes / 4, scales_at = s.code_bytes / 4;
    int zeros_at = s.is_float ? words : scales_at + K_PACKED_COLS / s.group * 8;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_words; i += step) {
        int at = (int)(i % (size_t)words);

        out[i] = at < scales_at  ? (uint32_t)k_random(seed, i)
                 : at < zeros_at ? scales
                                 : (uint32_t)s.middle * 0x01010101U;
    }
}

/* The largest scale of e5m3 up to a positive number. */
static uint32_t packed_e5m3_of(float scale)
{
    uint32_t best = 0;

    for (uint32_t byte = 1; byte < 256; byte++) {
        if (ldexpf((float)(8 + byte % 8), (int)(byte / 8) - 34) <= scale)
            best = byte;
    }
    return best;
}

static int packed_fill_records(const struct k_matrix *w, float deviation, uint64_t seed,
                               k_stream stream)
{
    const struct packed_shape s = packed_shape_of(w);
    /* the deviation of codes 0 .. 15, of codes 0 .. 255, and of floats */
    float scale = deviation / (s.is_float ? 2.9f : s.middle == 8 ? 4.6f : 73.9f);
    __half narrow = __float2half(scale);
    __nv_bfloat16 brain = __float2bfloat16(scale);
    uint32_t bits = s.is_half    ? *(const uint16_t *)&narrow
                    : s.is_float ? packed_e5m3_of(scale) * 0x0101U
                                 : *(const uint16_t *)&brain;
    size_t n_words =
        (size_t)(w->n_out / K_PACKED_ROWS) * (size_t)s.n_records * (size_t)(s.record_bytes / 4);

    return K_LAUNCH(fill_records_kernel, 4096, 256, 0, stream, (uint32_t *)w->data, n_words, s,
                    bits << 16 | bits, seed);
}

int k_fill_random_packed(const struct k_matrix *w, float deviation, uint64_t seed, k_stream stream)
{
    if (k_format_is_packed(&w->format))
        return packed_fill_records(w, deviation, seed, stream);
    return k_fill_random_bytes((int8_t *)w->data, (size_t)w->n_out * (size_t)w->n_in, deviation,
                               seed, stream);
}
