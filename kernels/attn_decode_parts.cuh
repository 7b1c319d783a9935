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

/* RUNS: token is that of an item's first decode, head the first of the group, and columns are the
 * heads of one decode after another. */
template <int D, int TYPE, int HEADS, bool RUNS = false> struct decode_parts {
    using warp = decode_warp<D, TYPE, HEADS, RUNS>;
    using state = typename warp::state;
    static constexpr int STEPS = warp::STEPS;
    static constexpr int NT = warp::NT;
    static constexpr int FRAGMENTS = STEPS * NT * 32;       /* float4s of O^T */
    static constexpr int PIECE = FRAGMENTS * 4 + 2 * HEADS; /* floats: O^T, top, sum */

    /* The second element of a pair is FAR elements further on. */
    static constexpr int FAR = TYPE == K_BF16 ? 8 : 1;

    /* Where a lane writes its elements of two columns: those of step 0, of which `left` exist from
     * there on. */
    struct place {
        size_t at[2];
        bool exists[2];
        int left;
        float2 weight;
    };

    /* What a head's sink adds to the sum of weights relative to top. Heads beyond the last one have
     * none. */
    static __device__ __forceinline__ float sink(const decode_args &a, int head, float top)
    {
        if (a.kv.sinks == NULL || head >= a.n_heads)
            return 0.0f;
        return exp2_fast(a.kv.sinks[head] * SINK_LOG2_E - top);
    }

    /* The place of a lane's columns, of which `column` is the first, and the factors that turn sums
     * of weighted values into the output: 1 / sum, times the values' scale. Of a run, each column
     * may be another decode's. */
    static __device__ __forceinline__ place place_of(const decode_args &a, int token, int head,
                                                     int n_columns, int lane, int column,
                                                     float2 top, float2 sum)
    {
        int d = TYPE == K_BF16 ? lane / 4 : lane / 4 * 2;
        int heads[2] = {head + column, head + column + 1};
        size_t hd = a.kv.head_dim;
        place to;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            int decode = RUNS ? (column + i) / a.group : 0;

            heads[i] -= decode * a.group;
            to.at[i] = ((size_t)(token + decode) * a.n_heads + heads[i]) * hd + d;
            to.exists[i] = column + i < n_columns;
        }
        to.left = a.kv.head_dim - d;
        to.weight = make_float2(__fdividef(a.weight, sum.x + sink(a, heads[0], top.x)),
                                __fdividef(a.weight, sum.y + sink(a, heads[1], top.y)));
        return to;
    }

    /* Write an element of out. */
    static __device__ __forceinline__ void write_one(const decode_args &a, size_t at, float x)
    {
        if (a.gates != NULL)
            x /= 1.0f + __expf(-load_bf16(a.gates + at));
        store_x(a.out, at, x, a.is_half);
    }

    /* Write one float4 of O^T, of a step: two elements of two columns. */
    static __device__ __forceinline__ void write_four(const decode_args &a, const place &to,
                                                      float4 o, int step)
    {
        int left = to.left - step * 16;

        if (to.exists[0] && left > 0)
            write_one(a, to.at[0] + step * 16, o.x * to.weight.x);
        if (to.exists[0] && left > FAR)
            write_one(a, to.at[0] + step * 16 + FAR, o.z * to.weight.x);
        if (to.exists[1] && left > 0)
            write_one(a, to.at[1] + step * 16, o.y * to.weight.y);
        if (to.exists[1] && left > FAR)
            write_one(a, to.at[1] + step * 16 + FAR, o.w * to.weight.y);
    }

    /* Write a row that this warp has completely. */
    static __device__ __forceinline__ void write_row(const decode_args &a, const state &st,
                                                     int token, int head, int n_columns)
    {
        int lane = threadIdx.x % 32;

#pragma unroll
        for (int n = 0; n < NT; n++) {
            place to = place_of(a, token, head, n_columns, lane, n * 8 + lane % 4 * 2,
                                make_float2(st.top[n][0], st.top[n][1]),
                                make_float2(st.sum[n][0], st.sum[n][1]));

#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const float *o = st.o[i][n];

                write_four(a, to, make_float4(o[0], o[1], o[2], o[3]), i);
            }
        }
    }

    /* The first column of a float4. */
    static __device__ __forceinline__ int column_of(int index)
    {
        return index / 32 % NT * 8 + index % 4 * 2;
    }

    /* Write a float4 of a merged row. */
    static __device__ __forceinline__ void write_merged(const decode_args &a, const piece &p,
                                                        const merged &m, int index)
    {
        write_four(
            a, place_of(a, p.token, p.head, p.n_heads, index % 32, column_of(index), m.top, m.sum),
            m.o, index / 32 / NT);
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
        const float *heads = from + FRAGMENTS * 4 + column_of(index);

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
        int head = column_of(index);

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
        return column_of(index) < p.n_heads;
    }

    /* --- several pieces at once --------------------------------------------------------------- */

    static constexpr int MANY = 2 * DECODE_WARPS; /* pieces */

    /* The factors of pieces of one row, some of which may be NULL, for the columns of a float4, and
     * the maximum and the sum of all. */
    struct mixture {
        float2 factors[MANY], top, sum;
    };

    static __device__ __forceinline__ mixture mix_begin(const float *const (&from)[MANY],
                                                        int column)
    {
        mixture m;
        float2 sums[MANY];

        m.top = make_float2(NOTHING, NOTHING);
        m.sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int idx = 0; idx < MANY; idx++) {
            const float *heads = from[idx] + FRAGMENTS * 4 + column;

            m.factors[idx] = make_float2(NOTHING, NOTHING);
            sums[idx] = make_float2(0.0f, 0.0f);
            if (from[idx] == NULL)
                continue;
            m.factors[idx] = *(const float2 *)heads;
            sums[idx] = *(const float2 *)(heads + HEADS);
        }
#pragma unroll
        for (int idx = 0; idx < MANY; idx++)
            m.top = make_float2(fmaxf(m.top.x, m.factors[idx].x), fmaxf(m.top.y, m.factors[idx].y));
#pragma unroll
        for (int idx = 0; idx < MANY; idx++) {
            m.factors[idx] = make_float2(exp2_fast(m.factors[idx].x - m.top.x),
                                         exp2_fast(m.factors[idx].y - m.top.y));
            m.sum.x += sums[idx].x * m.factors[idx].x;
            m.sum.y += sums[idx].y * m.factors[idx].y;
        }
        return m;
    }

    static __device__ __forceinline__ float4 mix_four(const mixture &m,
                                                      const float *const (&from)[MANY], int index)
    {
        float4 each[MANY], o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

#pragma unroll
        for (int idx = 0; idx < MANY; idx++) {
            if (from[idx] != NULL)
                each[idx] = ((const float4 *)from[idx])[index];
        }
#pragma unroll
        for (int idx = 0; idx < MANY; idx++) {
            if (from[idx] == NULL)
                continue;
            o.x += each[idx].x * m.factors[idx].x;
            o.y += each[idx].y * m.factors[idx].y;
            o.z += each[idx].z * m.factors[idx].x;
            o.w += each[idx].w * m.factors[idx].y;
        }
        return o;
    }

    /* Merge pieces of a row by the threads of a block: to out, or, if part is not NULL, to that. A
     * thread has the same two columns of all its float4s, so their factors are found once. */
    static __device__ __forceinline__ void mix_pieces(const decode_args &a, const piece &p,
                                                      const float *const (&from)[MANY], float *part)
    {
        int idle = idle_shift(p), first = index_of(threadIdx.x, idle);
        mixture m;
        place to;

        if (!has_heads(p, first))
            return;
        m = mix_begin(from, column_of(first));
        to = place_of(a, p.token, p.head, p.n_heads, first % 32, column_of(first), m.top, m.sum);
#pragma unroll 2
        for (int i = threadIdx.x; i < FRAGMENTS >> idle; i += DECODE_WARPS * 32) {
            int index = index_of(i, idle);
            float4 o = mix_four(m, from, index);

            if (part == NULL)
                write_four(a, to, o, index / 32 / NT);
            else
                merge_store(part, {o, m.top, m.sum}, index);
        }
    }
};

#endif
