/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of latents in the pages: norm, rotation, the write (latent.cu, sm90_latent_front.cu). */
#ifndef QUIRE_KERNELS_LATENT_ROW_CUH
#define QUIRE_KERNELS_LATENT_ROW_CUH

#include "kernels/latent.cuh"

/* Store an element of a row in the pages. */
static __device__ inline void latent_keep(const latent_args &a, size_t at, float x)
{
    if (a.kv.type == K_BF16)
        store_bf16((k_bf16 *)a.kv.pages + at, x);
    else
        ((k_e4m3 *)a.kv.pages)[at] =
            __nv_cvt_float_to_fp8(__fdiv_rn(x, a.kv.k_scale), __NV_SATFINITE, __NV_E4M3);
}

/* 1 / root of the mean square of a row's first `width` elements, by the whole block of so many
 * threads. */
template <int N>
static __device__ inline float latent_inverse(const k_bf16 *from, int width, float eps,
                                              float *shared)
{
    float square = 0.0f;

#pragma unroll 4
    for (int j = threadIdx.x; j < width; j += N) {
        float x = load_bf16(from + j);

        square = __fmaf_rn(x, x, square);
    }
    return head_inverse(block_sum(square, shared), 1.0f / width, eps);
}

/* The token's row in the pages, by a block of so many threads. */
template <int N>
static __device__ inline void latent_keep_row(const latent_args &a, int token, float *shared)
{
    int seq = a.t.seq[token], pos = a.t.pos[token], rank = a.l.shape.kv_rank;
    const k_bf16 *from =
        a.in + (size_t)token * k_latent_in(&a.l.shape) + k_latent_first(&a.l.shape);
    float inverse;
    size_t row;

    if (a.t.kv_len[seq] == 0)
        return;
    row = key_elem(a.kv, a.t.page_ids + (size_t)seq * a.t.pages_max, pos, 0);
    inverse = latent_inverse<N>(from, rank, a.l.eps, shared);
    for (int j = threadIdx.x; j < rank; j += N)
        latent_keep(a, row + j,
                    normed(load_bf16(from + j), inverse, load_bf16((const k_bf16 *)a.l.norm + j)));
    if ((int)threadIdx.x < a.l.shape.rope_dim / 2) {
        latent_two p = latent_turned(from + rank, a, pos, threadIdx.x);

        latent_keep(a, row + rank + p.low, p.x);
        latent_keep(a, row + rank + p.high, p.y);
    }
}

#endif
