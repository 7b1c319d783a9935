/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial results of decode attention: a warp's result for a row is written to the output if it has
 * the whole row, else it becomes a piece, and pieces of one row are merged.
 *
 * A piece is (O, top, sum) per head: an unnormalised output, the maximum score and the sum of
 * weights relative to it. Two pieces merge as in FlashAttention's split-K:
 *
 *   top = max(t1, t2);  sum = s1 2^(t1 - top) + s2 2^(t2 - top);  O likewise;  result O / sum */
#ifndef QUIRE_KERNELS_ATTN_DECODE_PARTS_CUH
#define QUIRE_KERNELS_ATTN_DECODE_PARTS_CUH

#include "kernels/attn_decode_tile.cuh"

#define SINK_LOG2_E 1.44269504f /* scores are in units of log2 */

/* A warp's partial result of a row at the end of its share, or the merged one of a block. */
struct piece {
    const float *at; /* NULL: there is none */
    int start;       /* the row's first tile, counted over all tiles: identifies the row */
    int token;
    int head, n_heads;
    bool begins, ends; /* the row begins here; it ends here */
};

/* A float4 of several pieces of one row, merged in their order. */
struct merged {
    float4 o;
    float2 top, sum;
};

template <int D, int TYPE, int HEADS> struct decode_parts {
    using warp = decode_warp<D, TYPE, HEADS>;
    using state = typename warp::state;
    static constexpr int STEPS = warp::STEPS;
    static constexpr int NT = warp::NT;
    static constexpr int FRAGMENTS = STEPS * NT * 32;       /* float4s of O^T */
    static constexpr int PIECE = FRAGMENTS * 4 + 2 * HEADS; /* floats: O^T, top, sum */

    /* The position of a lane's first element of row tile 0, and how many elements remain from
     * there. The second element of a pair is FAR elements further on. */
    static constexpr int FAR = TYPE == K_BF16 ? 8 : 1;

    static __device__ __forceinline__ size_t out_at(const decode_args &a, int token, int head,
                                                    int lane, int *left)
    {
        int d = TYPE == K_BF16 ? lane / 4 : lane / 4 * 2, hd = a.kv.head_dim;

        *left = hd - d;
        return ((size_t)token * a.n_heads + head + lane % 4 * 2) * hd + d;
    }

    /* Write an element of out. */
    static __device__ __forceinline__ void write_one(const decode_args &a, size_t at, float x)
    {
        if (a.gates != NULL)
            x /= 1.0f + __expf(-load_bf16(a.gates + at));
        store_x(a.out, at, x, a.is_half);
    }

    /* Write one float4 of O^T: two elements of two heads, of which n_heads and n_elems exist. */
    static __device__ __forceinline__ void write_four(const decode_args &a, size_t at, float4 o,
                                                      float2 weight, int n_heads, int n_elems)
    {
        int hd = a.kv.head_dim;

        if (n_heads > 0 && n_elems > 0)
            write_one(a, at, o.x * weight.x);
        if (n_heads > 0 && n_elems > FAR)
            write_one(a, at + FAR, o.z * weight.x);
        if (n_heads > 1 && n_elems > 0)
            write_one(a, at + hd, o.y * weight.y);
        if (n_heads > 1 && n_elems > FAR)
            write_one(a, at + hd + FAR, o.w * weight.y);
    }

    /* What a head's sink adds to the sum of weights relative to top. Heads beyond the last one have
     * none. */
    static __device__ __forceinline__ float sink(const decode_args &a, int head, float top)
    {
        if (a.kv.sinks == NULL || head >= a.n_heads)
            return 0.0f;
        return exp2_fast(a.kv.sinks[head] * SINK_LOG2_E - top);
    }

    /* The factors that turn sums of weighted values into the output: 1 / sum, times the values'
     * scale. head: the first of the two. */
    static __device__ __forceinline__ float2 weights(const decode_args &a, int head, float2 top,
                                                     float2 sum)
    {
        return make_float2(__fdividef(a.weight, sum.x + sink(a, head, top.x)),
                           __fdividef(a.weight, sum.y + sink(a, head + 1, top.y)));
    }

    /* Write a row that this warp has completely. */
    static __device__ __forceinline__ void write_row(const decode_args &a, const state &st,
                                                     int token, int head, int n_heads)
    {
        int lane = threadIdx.x % 32, hd = a.kv.head_dim, left;
        size_t at = out_at(a, token, head, lane, &left);

#pragma unroll
        for (int n = 0; n < NT; n++) {
            float2 weight =
                weights(a, head + n * 8 + lane % 4 * 2, make_float2(st.top[n][0], st.top[n][1]),
                        make_float2(st.sum[n][0], st.sum[n][1]));

#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const float *o = st.o[i][n];

                write_four(a, at + n * 8 * hd + i * 16, make_float4(o[0], o[1], o[2], o[3]), weight,
                           n_heads - n * 8 - lane % 4 * 2, left - i * 16);
            }
        }
    }

    /* Write a float4 of a merged row. */
    static __device__ __forceinline__ void write_merged(const decode_args &a, const piece &p,
                                                        const merged &m, int index)
    {
        int lane = index % 32, n = index / 32 % NT, i = index / 32 / NT, left;
        size_t at = out_at(a, p.token, p.head + n * 8, lane, &left);

        write_four(a, at + i * 16, m.o, weights(a, p.head + n * 8 + lane % 4 * 2, m.top, m.sum),
                   p.n_heads - n * 8 - lane % 4 * 2, left - i * 16);
    }

    /* A piece has the layout of the accumulators, so that writing and merging need no shuffles. */
    static __device__ __forceinline__ void write_piece(float *to, const state &st, int n_heads)
    {
        int lane = threadIdx.x % 32, h = lane % 4 * 2;

#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (n * 8 + h >= n_heads)
                break;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const float *o = st.o[i][n];

                ((float4 *)to)[(i * NT + n) * 32 + lane] = make_float4(o[0], o[1], o[2], o[3]);
            }
            if (lane < 4) {
                float *heads = to + FRAGMENTS * 4 + n * 8 + h;

                *(float2 *)heads = make_float2(st.top[n][0], st.top[n][1]);
                *(float2 *)(heads + HEADS) = make_float2(st.sum[n][0], st.sum[n][1]);
            }
        }
    }

    /* The neutral element of merge_add(). */
    static __device__ __forceinline__ merged merge_begin(void)
    {
        return {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float2(NOTHING, NOTHING),
                make_float2(0.0f, 0.0f)};
    }

    /* Load from shared memory, or from plan->work, where other blocks may have written it. */
    static __device__ __forceinline__ merged merge_load(const float *from, int index)
    {
        const float *heads = from + FRAGMENTS * 4 + index / 32 % NT * 8 + index % 4 * 2;

        return {((const float4 *)from)[index], *(const float2 *)heads,
                *(const float2 *)(heads + HEADS)};
    }

    /* The sums of both are rescaled to the larger maximum. The order of merging is fixed by the
     * callers, so the bits are too. */
    static __device__ __forceinline__ void merge_add(merged &m, const merged &p)
    {
        float2 most = make_float2(fmaxf(m.top.x, p.top.x), fmaxf(m.top.y, p.top.y));
        float2 mine = make_float2(exp2_fast(m.top.x - most.x), exp2_fast(m.top.y - most.y));
        float2 its = make_float2(exp2_fast(p.top.x - most.x), exp2_fast(p.top.y - most.y));

        m.o.x = m.o.x * mine.x + p.o.x * its.x;
        m.o.y = m.o.y * mine.y + p.o.y * its.y;
        m.o.z = m.o.z * mine.x + p.o.z * its.x;
        m.o.w = m.o.w * mine.y + p.o.w * its.y;
        m.sum.x = m.sum.x * mine.x + p.sum.x * its.x;
        m.sum.y = m.sum.y * mine.y + p.sum.y * its.y;
        m.top = most;
    }

    static __device__ __forceinline__ void merge_store(float *to, const merged &m, int index)
    {
        int head = index / 32 % NT * 8 + index % 4 * 2;

        ((float4 *)to)[index] = m.o;
        if (index % 32 < 4 && index / 32 < NT) {
            *(float2 *)(to + FRAGMENTS * 4 + head) = m.top;
            *(float2 *)(to + FRAGMENTS * 4 + HEADS + head) = m.sum;
        }
    }

    /* Of the four lanes that share elements, only those whose heads exist have work: thread i takes
     * float4 index_of(i). */
    static __device__ __forceinline__ int idle_shift(const piece &p)
    {
        return NT > 1 || p.n_heads > 4 ? 0 : p.n_heads > 2 ? 1 : 2;
    }

    static __device__ __forceinline__ int index_of(int i, int idle)
    {
        int busy = 2 - idle;

        return i >> busy << 2 | (i & ((1 << busy) - 1));
    }

    /* Columns beyond the group's heads have no result. */
    static __device__ __forceinline__ bool has_heads(const piece &p, int index)
    {
        return index / 32 % NT * 8 + index % 4 * 2 < p.n_heads;
    }
};

#endif
