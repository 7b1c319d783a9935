/* SPDX-License-Identifier: Apache-2.0
 *
 * rope.cu and the beginning of decode attention, compiled for the host. What the included sources
 * have beside that is not emitted. */
#include "tests/kernel/play.h"

#include "kernels/rope.cu"
#include "tests/kernel/played.h"

/* Words of the parts of decode attention that are not played. */
static size_t __cvta_generic_to_shared(const void *);
static uint32_t __float_as_uint(float);
static uint32_t __byte_perm(uint32_t, uint32_t, uint32_t);
static float __shfl_sync(unsigned, float, int);
static int __any_sync(unsigned, int);
static float __fdividef(float, float);
static int min(int, int);
static uint32_t min(uint32_t, uint32_t);
static uint32_t max(uint32_t, uint32_t);

#include "kernels/attn_decode_tile.cuh"

template <int D, int TYPE>
static void decode_rows(k_bf16 *queries, int n_heads, k_bf16 *key, k_bf16 *value,
                        const struct k_rotary *r, const struct k_kv *kv, int pos)
{
    using warp = decode_warp<D, TYPE, 8>;
    static __align__(16) char desk[warp::DESK];
    char *rows = desk + 8 * warp::DESK_ROW;
    const float2 *turn = (const float2 *)r->turns + (size_t)pos * (D / 2);
    decode_args a = {};

    a.kv = *kv;
    a.q_norm = (const k_bf16 *)r->q_norm;
    a.k_norm = (const k_bf16 *)r->k_norm;
    a.eps = r->eps;
    for (int h = 0; h < n_heads; h++)
        memcpy(desk + h * warp::DESK_ROW, queries + h * D, 2 * D);
    memcpy(rows, key, 2 * D);
    memcpy(rows + warp::DESK_ROW, value, 2 * D);
    (void)play_launch(1, 32, [&] {
        if (r->q_norm != NULL) {
            warp::template turn_queries<true>(desk, a, n_heads, D, turn);
            warp::template turn_new<true>(rows, a, turn);
        } else {
            warp::template turn_queries<false>(desk, a, n_heads, D, turn);
            warp::template turn_new<false>(rows, a, turn);
        }
    });
    for (int h = 0; h < n_heads; h++)
        memcpy(queries + h * D, desk + h * warp::DESK_ROW, 2 * D);
    memcpy(key, rows, 2 * D);
    memcpy(value, rows + warp::DESK_ROW, 2 * D);
}

void played_decode_rows(k_bf16 *queries, int n_heads, k_bf16 *key, k_bf16 *value,
                        const struct k_rotary *r, const struct k_kv *kv, int pos)
{
    if (kv->head_dim == 256 && kv->type == K_BF16)
        decode_rows<256, K_BF16>(queries, n_heads, key, value, r, kv, pos);
    else if (kv->head_dim == 256)
        decode_rows<256, K_E4M3>(queries, n_heads, key, value, r, kv, pos);
    else if (kv->type == K_BF16)
        decode_rows<128, K_BF16>(queries, n_heads, key, value, r, kv, pos);
    else
        decode_rows<128, K_E4M3>(queries, n_heads, key, value, r, kv, pos);
}

const char *played_fault(void)
{
    return play.fault;
}
