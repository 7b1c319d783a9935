/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of states in the pages (struct k_state), for the kernels of mixers. */
#ifndef QUIRE_KERNELS_STATE_CUH
#define QUIRE_KERNELS_STATE_CUH

#include "kernels/common.cuh"
#include "kernels/state.h"

/* Where element i of a sequence's state is. States of a sequence have less than 2^32 elements. */
static __device__ inline size_t state_find(const k_state &s, const k_tokens &t, int seq, size_t i)
{
    uint32_t at = (uint32_t)(s.at + i), page_elems = (uint32_t)s.page_elems;
    uint32_t page = at / page_elems;
    int32_t id = t.page_ids[(size_t)seq * t.pages_max + page];

    return (size_t)id * page_elems + (at - page * page_elems);
}

/* What is known of the type when a kernel is compiled. */
enum state_type { STATE_EITHER, STATE_FLOAT, STATE_BF16 };

template <state_type type> static __device__ inline bool state_is_bf16(const k_state &s)
{
    return type == STATE_EITHER ? s.is_bf16 : type == STATE_BF16;
}

template <state_type type = STATE_EITHER>
static __device__ inline float state_read(const k_state &s, const k_tokens &t, int seq, size_t i)
{
    size_t at = state_find(s, t, seq, i);

    return state_is_bf16<type>(s) ? load_bf16((const k_bf16 *)s.pages + at)
                                  : ((const float *)s.pages)[at];
}

/* Element i after the step. */
template <state_type type = STATE_EITHER>
static __device__ inline void state_write(const k_state &s, const k_tokens &t, int seq, size_t i,
                                          float x)
{
    size_t at = state_find(s, t, seq, i);

    if (state_is_bf16<type>(s))
        ((k_bf16 *)s.pages)[at] = k_state_round(
            __float_as_uint(x), k_state_chance_of((uint32_t)(s.at + i), t.kv_len[seq]));
    else
        ((float *)s.pages)[at] = x;
}

static __device__ inline float4 state_widen_four(uint2 x)
{
    return make_float4(low_half(x.x), high_half(x.x), low_half(x.y), high_half(x.y));
}

/* Elements i to i + 3 of a sequence's states, after pos tokens; i is even. */
static __device__ inline uint2 state_round_four(float4 x, uint32_t i, uint32_t pos)
{
    uint32_t one = k_state_chance(i, pos), other = k_state_chance(i + 2, pos);

    return make_uint2(k_state_round(__float_as_uint(x.x), one & 0xffff) |
                          (uint32_t)k_state_round(__float_as_uint(x.y), one >> 16) << 16,
                      k_state_round(__float_as_uint(x.z), other & 0xffff) |
                          (uint32_t)k_state_round(__float_as_uint(x.w), other >> 16) << 16);
}

#endif
