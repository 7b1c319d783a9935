/* SPDX-License-Identifier: Apache-2.0
 *
 * The addresses of keys and values in the pages, and the arithmetic that all kernels that rotate
 * and store them share, so that their bits agree. */
#ifndef QUIRE_KERNELS_PAGES_CUH
#define QUIRE_KERNELS_PAGES_CUH

#include <cuda_fp8.h>

#include "kernels/common.cuh"

/* The index in kv.pages of the first element of a position's key; its value is value_elems()
 * further on. pages is the sequence's page table. The usual page sizes, 2^n tokens, need no
 * division. */
static __device__ inline size_t key_elem(const struct k_kv &kv, const int32_t *pages, int pos,
                                         int kv_head)
{
    int bt = kv.page_tokens;
    int page = (bt & (bt - 1)) == 0 ? pos >> (31 - __clz(bt)) : pos / bt;

    return (size_t)pages[page] * kv.page_elems + kv.layer_elems +
           (unsigned)((kv_head * bt + pos - page * bt) * kv.head_dim);
}

/* The address of the key in pages of bf16. */
static __device__ inline k_bf16 *key_row(const struct k_kv &kv, const int32_t *pages, int pos,
                                         int kv_head)
{
    return (k_bf16 *)kv.pages + key_elem(kv, pages, pos, kv_head);
}

/* A latent's value begins it. */
static __device__ inline size_t value_elems(const struct k_kv &kv)
{
    if (kv.value_dim > 0)
        return 0;
    return (size_t)kv.n_kv_heads * kv.page_tokens * kv.head_dim;
}

/* One element of a rotated pair: the lower is x c - other s, the upper x c + other s. Written with
 * explicit roundings, so that every kernel that rotates gets the same bits. */
static __device__ inline float turn_lower(float x, float other, float2 turn)
{
    return __fmaf_rn(x, turn.x, -__fmul_rn(other, turn.y));
}

static __device__ inline float turn_upper(float x, float other, float2 turn)
{
    return __fmaf_rn(x, turn.x, __fmul_rn(other, turn.y));
}

/* The norm of a head, in parts of four elements: two consecutive ones and their partners half a
 * head further on. Sums of parts are added as a binary tree, neighbours first, so that every kernel
 * that norms heads of a multiple of 16 elements gets the same bits. */
static __device__ inline float square_four(float4 x)
{
    return __fmaf_rn(x.w, x.w, __fmaf_rn(x.z, x.z, __fmaf_rn(x.y, x.y, __fmul_rn(x.x, x.x))));
}

/* The factor of the elements, before the weights; part is 1 / head_dim. */
static __device__ inline float head_inverse(float sum, float part, float eps)
{
    return rsqrtf(__fmaf_rn(sum, part, eps));
}

static __device__ inline float normed(float x, float inverse, float weight)
{
    return __fmul_rn(__fmul_rn(x, inverse), weight);
}

/* Two numbers as stored in a page: rounded to nearest, e4m3 saturating at 448; the first in the
 * lower half of a word (bf16) or of 16 bits (e4m3). */
static __device__ inline uint32_t stored_two(enum k_type type, float scale, float low, float high)
{
    if (type == K_BF16)
        return pack_bf16(low, high);
    return __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(low, scale), __fdiv_rn(high, scale)),
                                    __NV_SATFINITE, __NV_E4M3);
}

#endif
