/* SPDX-License-Identifier: Apache-2.0
 *
 * The work of a warp of decode attention on a tile of keys and values: the two products, the
 * softmax between them, and copies without the TMA. */
#ifndef QUIRE_KERNELS_ATTN_DECODE_TILE_CUH
#define QUIRE_KERNELS_ATTN_DECODE_TILE_CUH

#include "kernels/attn_decode_desk.cuh"

/* The keys of a tile that a column sees: those of the last decode of an item end before `valid`,
 * those of each decode before it one earlier. */
struct decode_sight {
    int valid;
    int len;     /* keys of the last decode */
    int pos;     /* of the tile's first key */
    int n_later; /* decodes behind the first */
    int group;   /* columns of a decode */
    int window;
};

template <int D, int TYPE, int HEADS, bool RUNS = false>
struct decode_warp : decode_desk<D, TYPE, HEADS, RUNS> {
    using desk = decode_desk<D, TYPE, HEADS, RUNS>;
    using desk::MT, desk::NT, desk::STEPS;
    using typename desk::state;
    using typename desk::tile;

    /* --- tiles without the TMA ---------------------------------------------------------------- */

    /* Copy a tile without the TMA: any head size, any page size; zeros after the end of either, and
     * for keys before `lowest` if there is a window. */
    template <bool WINDOWED>
    static __device__ __forceinline__ void copy_by_hand(char *to, const decode_args &a,
                                                        const decode_item &it, int kv_head,
                                                        int first, int lowest)
    {
        const int32_t *pages = a.t.page_ids + (size_t)it.seq * a.t.pages_max;
        size_t values = value_elems(a.kv);

#pragma unroll 1
        for (int row = 0; row < tile::TOKENS; row++) {
            bool there = first + row < it.len && (!WINDOWED || first + row >= lowest);
            size_t elem = there ? key_elem(a.kv, pages, first + row, kv_head) : 0;

#pragma unroll 1
            for (int d = threadIdx.x % 32 * 2; d < D; d += 64) {
                char *word = to + tile::at(row, d * tile::ELEM / 16) + d * tile::ELEM % 16;
                bool some = there && d < a.kv.head_dim;

                if (TYPE == K_BF16) {
                    const k_bf16 *from = (const k_bf16 *)a.kv.pages + elem + d;

                    *(uint32_t *)word = some ? *(const uint32_t *)from : 0U;
                    *(uint32_t *)(word + tile::BYTES) =
                        some ? *(const uint32_t *)(from + values) : 0U;
                } else {
                    const uint8_t *from = (const uint8_t *)a.kv.pages + elem + d;

                    *(uint16_t *)word = some ? *(const uint16_t *)from : (uint16_t)0;
                    *(uint16_t *)(word + tile::BYTES) =
                        some ? *(const uint16_t *)(from + values) : (uint16_t)0;
                }
            }
        }
        __syncwarp();
    }

    /* Clear values after the end of a sequence: they may be anything, and 0 * NaN is NaN. */
    static __device__ void blank_values(char *values, int valid)
    {
        int chunks = tile::PANELS * tile::PANEL / 16;

#pragma unroll 1
        for (int i = threadIdx.x % 32; i < (tile::TOKENS - valid) * chunks; i += 32)
            *(uint4 *)(values + tile::at(valid + i / chunks, i % chunks)) = make_uint4(0, 0, 0, 0);
    }

    /* Clear values before a window. */
    static __device__ void blank_front(char *values, int before)
    {
        int chunks = tile::PANELS * tile::PANEL / 16;

#pragma unroll 1
        for (int i = threadIdx.x % 32; i < before * chunks; i += 32)
            *(uint4 *)(values + tile::at(i / chunks, i % chunks)) = make_uint4(0, 0, 0, 0);
    }

    /* --- products ------------------------------------------------------------------------ */

    /* The offset of a lane's row of four matrices in the tile of 16 tokens: chunk 0 or 1 of a pair;
     * other pairs are reached by exclusive or. */
    static __device__ __forceinline__ uint32_t lane_at(int token, int chunk)
    {
        return tile::at(token, chunk);
    }

    static __device__ __forceinline__ uint32_t pair_at(uint32_t lane, int pair)
    {
        constexpr int IN_PANEL = tile::PANEL / 32;

        return (lane ^ (pair % IN_PANEL * 32)) + pair / IN_PANEL * tile::TOKENS * tile::PANEL;
    }

    /* S^T = K . Q^T for one tile. Two accumulators per score, for even and odd steps, so that
     * consecutive products do not wait for each other. */
    static __device__ __forceinline__ void scores(float s[MT][NT][4], const state &st,
                                                  uint32_t keys)
    {
        int lane = threadIdx.x % 32;
        uint32_t at = lane_at(lane % 16, lane / 16);

#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
            float odd[NT][4] = {};

#pragma unroll
            for (int n = 0; n < NT; n++)
                s[row_tile][n][0] = s[row_tile][n][1] = s[row_tile][n][2] = s[row_tile][n][3] =
                    0.0f;
            if (TYPE == K_BF16) {
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    uint32_t k[4];

                    decode_load_matrices(k, keys + row_tile * 16 * tile::PANEL + pair_at(at, i));
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        decode_multiply<TYPE>(i % 2 == 0 ? s[row_tile][n] : odd[n], k, st.q[i][n]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < STEPS; i += 2) {
                    uint32_t r[4], k[4];

                    decode_load_matrices(r,
                                         keys + row_tile * 16 * tile::PANEL + pair_at(at, i / 2));
                    decode_widen_e4m3(&k[0], &k[2], r[0]);
                    decode_widen_e4m3(&k[1], &k[3], r[1]);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        decode_multiply<TYPE>(s[row_tile][n], k, st.q[i][n]);
                    if (i + 1 == STEPS)
                        break;
                    decode_widen_e4m3(&k[0], &k[2], r[2]);
                    decode_widen_e4m3(&k[1], &k[3], r[3]);
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        decode_multiply<TYPE>(odd[n], k, st.q[i + 1 < STEPS ? i + 1 : i][n]);
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int elem = 0; elem < 4; elem++)
                    s[row_tile][n][elem] =
                        (s[row_tile][n][elem] + odd[n][elem]) * st.scale[n][elem % 2];
            }
        }
    }

    /* Keys from `valid` on do not exist. */
    static __device__ __forceinline__ void mask(float s[MT][NT][4], int valid)
    {
        int lane_row = threadIdx.x % 32 / 4;

#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int elem = 0; elem < 4; elem++)
                    s[row_tile][n][elem] = row_tile * 16 + lane_row + elem / 2 * 8 < valid
                                               ? s[row_tile][n][elem]
                                               : -INFINITY;
            }
        }
    }

    /* The first `before` keys of a tile are invisible. */
    static __device__ __forceinline__ void mask_front(float s[MT][NT][4], int before)
    {
        int lane_row = threadIdx.x % 32 / 4;

#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int elem = 0; elem < 4; elem++)
                    s[row_tile][n][elem] = row_tile * 16 + lane_row + elem / 2 * 8 < before
                                               ? -INFINITY
                                               : s[row_tile][n][elem];
            }
        }
    }

    /* Keys that the decodes of a run do not see: behind the end of each, and before its window. */
    template <bool WINDOWED>
    static __device__ __forceinline__ void mask_run(float s[MT][NT][4], const decode_sight &sight)
    {
        int lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;

#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int elem = 0; elem < 4; elem++) {
                int later = sight.n_later - (n * 8 + lane_col * 2 + elem % 2) / sight.group;
                int end = sight.valid - later;
                int begin =
                    WINDOWED ? decode_lowest(sight.len - later, sight.window) - sight.pos : 0;

#pragma unroll
                for (int row_tile = 0; row_tile < MT; row_tile++) {
                    int row = row_tile * 16 + lane_row + elem / 2 * 8;

                    if (row >= end || (WINDOWED && row < begin))
                        s[row_tile][n][elem] = -INFINITY;
                }
            }
        }
    }

    /* Raise the maxima of the running softmax, and rescale sums and outputs. */
    static __device__ __forceinline__ void raise_tops(state &st, const float s[MT][NT][4])
    {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                float top = st.top[n][elem], shrink;

#pragma unroll
                for (int row_tile = 0; row_tile < MT; row_tile++)
                    top = fmaxf(top, fmaxf(s[row_tile][n][elem], s[row_tile][n][2 + elem]));
#pragma unroll
                for (int i = 4; i < 32; i *= 2)
                    top = fmaxf(top, __shfl_xor_sync(~0U, top, i));
                shrink = exp2_fast(st.top[n][elem] - top);
                st.top[n][elem] = top;
                st.sum[n][elem] *= shrink;
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    st.o[i][n][elem] *= shrink;
                    st.o[i][n][2 + elem] *= shrink;
                }
            }
        }
    }

    /* Turn scores into weights, transposed as right operands of O^T. */
    static __device__ __forceinline__ void soften(uint32_t w[MT][NT][2], state &st,
                                                  const float s[MT][NT][4])
    {
        bool rises = false;

#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int elem = 0; elem < 4; elem++)
                    rises = rises || s[row_tile][n][elem] > st.top[n][elem % 2] + RISE;
            }
        }
        if (__any_sync(~0U, rises))
            raise_tops(st, s);
#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float p[4];

#pragma unroll
                for (int elem = 0; elem < 4; elem++) {
                    p[elem] = exp2_fast(s[row_tile][n][elem] - st.top[n][elem % 2]);
                    st.sum[n][elem % 2] += p[elem];
                }
                w[row_tile][n][0] = decode_turn_matrix(decode_pack_two<TYPE>(p[0], p[1]));
                w[row_tile][n][1] = decode_turn_matrix(decode_pack_two<TYPE>(p[2], p[3]));
            }
        }
    }

    /* O^T += V^T . P^T. */
    static __device__ __forceinline__ void mix(state &st, const uint32_t w[MT][NT][2],
                                               uint32_t values)
    {
        int lane = threadIdx.x % 32;
        uint32_t at = TYPE == K_BF16 ? lane_at(lane % 8 + lane / 16 * 8, lane / 8 % 2)
                                     : lane_at(lane % 16, lane / 16);

#pragma unroll
        for (int row_tile = 0; row_tile < MT; row_tile++) {
            uint32_t v[4], r[4];

            if (TYPE == K_BF16) {
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    decode_load_matrices_turned(v, values + row_tile * 16 * tile::PANEL +
                                                       pair_at(at, i));
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        decode_multiply<TYPE>(st.o[i][n], v, w[row_tile][n]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < STEPS; i++) {
                    if (i % 2 == 0)
                        decode_load_matrices_turned(r, values + row_tile * 16 * tile::PANEL +
                                                           pair_at(at, i / 2));
                    /* Tokens 2t and 2t + 1 have elements 2g and 2g + 1 each: sort by element. */
                    decode_widen_e4m3(&v[0], &v[1], __byte_perm(r[i % 2 * 2], 0, 0x3120));
                    decode_widen_e4m3(&v[2], &v[3], __byte_perm(r[i % 2 * 2 + 1], 0, 0x3120));
#pragma unroll
                    for (int n = 0; n < NT; n++)
                        decode_multiply<TYPE>(st.o[i][n], v, w[row_tile][n]);
                }
            }
        }
    }

    /* One tile: scores, masks, softmax, output. before: invisible keys at its begin. */
    template <bool WINDOWED>
    static __device__ __forceinline__ void take_tile(state &st, uint32_t keys, int valid,
                                                     int before)
    {
        float s[MT][NT][4];
        uint32_t w[MT][NT][2];

        scores(s, st, keys);
        if (valid < tile::TOKENS)
            mask(s, valid);
        if (WINDOWED && before > 0)
            mask_front(s, before);
        soften(w, st, s);
        mix(st, w, keys + tile::BYTES);
    }

    /* The same of a run. */
    template <bool WINDOWED>
    static __device__ __forceinline__ void take_run_tile(state &st, uint32_t keys,
                                                         const decode_sight &sight)
    {
        float s[MT][NT][4];
        uint32_t w[MT][NT][2];

        scores(s, st, keys);
        if (sight.valid - sight.n_later < tile::TOKENS ||
            (WINDOWED && decode_lowest(sight.len, sight.window) > sight.pos))
            mask_run<WINDOWED>(s, sight);
        soften(w, st, s);
        mix(st, w, keys + tile::BYTES);
    }
};

#endif
