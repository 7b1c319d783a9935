/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of tf32 by tensor cores, and copies of their rows into shared memory: for mixers with
 * states over chunks of tokens. */
#ifndef QUIRE_KERNELS_TF32_CUH
#define QUIRE_KERNELS_TF32_CUH

#include "kernels/common.cuh"

/* A float32 number as a product of the tensor cores reads it: with 10 bits of mantissa. */
static __device__ inline float tf32_round(float x)
{
    uint32_t y;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}

/* --- products --------------------------------------------------------------------------------- */

/* A tile of 16 x 8 sums, and the parts of its 16 x 8 and 8 x 8 inputs, of a lane. */
struct tf32_sums {
    float x[4];
};

static __device__ inline void tf32_mma(tf32_sums &d, const float *a, const float *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* The lane's rows and columns: of sums rows row(), row() + 8 and columns 2 * column(), + 1. */
static __device__ inline int tf32_lane_row()
{
    return threadIdx.x % 32 / 4;
}

static __device__ inline int tf32_lane_column()
{
    return threadIdx.x % 4;
}

/* The lane's part of a 16 x 8 input that begins at `from`. */
static __device__ inline void tf32_load_a(float *a, const float *from, int pitch)
{
    const float *at = from + tf32_lane_row() * pitch + tf32_lane_column();

    a[0] = at[0], a[1] = at[8 * pitch], a[2] = at[4], a[3] = at[8 * pitch + 4];
}

/* Of an 8 x 8 input. */
static __device__ inline void tf32_load_b(float *b, const float *from, int pitch)
{
    const float *at = from + tf32_lane_column() * pitch + tf32_lane_row();

    b[0] = at[0], b[1] = at[4 * pitch];
}

/* Of the transpose of an 8 x 8 input. */
static __device__ inline void tf32_load_b_turned(float *b, const float *from, int pitch)
{
    const float *at = from + tf32_lane_row() * pitch + tf32_lane_column();

    b[0] = at[0], b[1] = at[4];
}

/* --- copies ----------------------------------------------------------------------------------- */

static __device__ inline void tf32_copy(float *to, const float *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}

static __device__ inline void tf32_copy_four(float *to, const float *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

/* Two floats, or four bfloat16. */
static __device__ inline void tf32_copy_two(void *to, const void *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);

    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
}

/* Copies since the last call are a group; wait until at most n groups are under way. */
static __device__ inline void tf32_end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n> static __device__ inline void tf32_wait_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

static __device__ inline void tf32_wait_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Begin to copy `width` elements of n rows; in groups of four if all lie so. Rows up to `rows`
 * become 0; columns up to `room`, a multiple of 4, do too. */
template <int rows, int threads>
static __device__ inline void tf32_fetch(float *to, int to_pitch, const float *from,
                                         size_t from_pitch, int n, int width, int room, bool fours)
{
    int each = room / 4;

    for (int at = threadIdx.x; at < rows * each; at += threads) {
        int row = at / each, column = at % each * 4;
        float *place = to + row * to_pitch + column;
        const float *source = from + row * from_pitch + column;

        if (row < n && fours && column + 4 <= width) {
            tf32_copy_four(place, source);
            continue;
        }
        for (int i = 0; i < 4; i++) {
            if (row < n && column + i < width)
                tf32_copy(place + i, source + i);
            else
                place[i] = 0.0f;
        }
    }
}

#endif
