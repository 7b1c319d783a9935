/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the kernels before and behind latent attention (latent.h). */
#ifndef QUIRE_KERNELS_LATENT_CUH
#define QUIRE_KERNELS_LATENT_CUH

#include "kernels/latent.h"
#include "kernels/pages.cuh"

struct latent_args {
    k_bf16 *out;
    const k_bf16 *in;
    struct k_latent l;
    struct k_kv kv;
    struct k_tokens t;
};

/* The pair i of rope_dim elements, turned, and the places of its two elements. */
struct latent_two {
    float x, y;
    int low, high;
};

static __device__ inline latent_two latent_turned(const k_bf16 *from, const latent_args &a, int pos,
                                                  int i)
{
    int half = a.l.shape.rope_dim / 2;
    latent_two p = {};
    float2 turn = ((const float2 *)a.l.turns)[(size_t)pos * half + i];
    float x, y;

    p.low = a.l.interleaved ? 2 * i : i;
    p.high = a.l.interleaved ? 2 * i + 1 : i + half;
    x = load_bf16(from + p.low);
    y = load_bf16(from + p.high);
    p.x = turn_lower(x, y, turn);
    p.y = turn_upper(y, x, turn);
    return p;
}

static __device__ inline void latent_turn(k_bf16 *to, const k_bf16 *from, const latent_args &a,
                                          int pos, int i)
{
    latent_two p = latent_turned(from, a, pos, i);

    store_bf16(to + p.low, p.x);
    store_bf16(to + p.high, p.y);
}

/* Are the sizes those of whole tiles? Then the products are computed on tensor cores, by the
 * launchers of latent_products.cu. */
static inline bool latent_is_even(const struct k_latent_shape *s)
{
    return s->nope_dim % 16 == 0 && s->rope_dim % 8 == 0 && s->kv_rank % 64 == 0 &&
           s->v_dim % 64 == 0;
}

int k_latent_queries_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                          const struct k_tokens *t, k_stream stream);
int k_latent_values_even(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                         const struct k_tokens *t, k_stream stream);

#endif
