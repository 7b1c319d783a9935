/* SPDX-License-Identifier: Apache-2.0
 *
 * The desk of a warp of decode attention: the queries, keys and values of the step's tokens, from
 * their rows in memory to registers of products, to a tile in shared memory and to the pages. */
#ifndef QUIRE_KERNELS_ATTN_DECODE_DESK_CUH
#define QUIRE_KERNELS_ATTN_DECODE_DESK_CUH

#include "kernels/attn_decode.cuh"

#define NOTHING (-1e30f) /* maximum over no key; finite, so that differences are numbers */
#define RISE    8.0f     /* weights stay below 2^8, which bf16 and float16 hold */

struct decode_args {
    k_bf16 *out;
    const k_bf16 *qkv;
    const float *turns; /* NULL: nothing to rotate or to write */
    const int32_t *decode_seqs;
    const int32_t *places; /* of runs; NULL: there are none */
    int n_decodes;
    int together; /* decodes of an item, at most */
    struct k_kv kv;
    struct k_tokens t;
    decode_schedule *schedule;
    float *work;
    int n_heads, group;
    int blocks;   /* blocks of heads per kv head */
    float scale;  /* factor of scores, to units of log2 */
    float weight; /* factor of values */
    bool by_hand;
    bool is_half; /* layout of out */
    /* For copies by the TMA: */
    int page_shift;  /* log2(page_tokens) */
    int box_shift;   /* log2 of the pages per tile */
    int box_bytes;   /* from a page's rows to the next page's in a panel */
    int panel_boxes; /* copies for the panels of one page */
    int slab;        /* (kv head, K|V) slabs before the layer */
    /* For norms of heads: */
    const k_bf16 *q_norm, *k_norm; /* NULL: none */
    float eps;
    int width;           /* elements of a row of qkv */
    const k_bf16 *gates; /* as those of the plan */
};

/* RUNS: the columns are the heads of several decodes. */
template <int D, int TYPE, int HEADS, bool RUNS> struct decode_desk {
    using tile = decode_tile<D, TYPE>;
    static constexpr enum k_type KV = (enum k_type)TYPE;
    static constexpr int STEPS = D / 16;          /* of 16 elements */
    static constexpr int NT = HEADS / 8;          /* column tiles */
    static constexpr int MT = tile::TOKENS / 16;  /* row tiles */
    static constexpr int PAIRS = (D + 127) / 128; /* words of half a head in each lane */
    /* The desk is a warp's place for queries of a row, and for keys and values of the step, of this
     * row and of the next; of a run for all its keys and values. */
    static constexpr int DESK_ROW = D * 2 + 16; /* shifted by 4 banks from row to row */
    static constexpr int DESK = (HEADS + (RUNS ? 2 * K_RUN_MAX : 4)) * DESK_ROW;
    /* Stages of the ring: as many as fit with two blocks per multiprocessor. */
    static constexpr int ROOM = (28672 - DESK) / tile::STAGE;
    static constexpr int STAGES = D >= 256 || ROOM > tile::STAGES ? tile::STAGES : ROOM;
    static constexpr int RING = STAGES * tile::STAGE;
    static constexpr bool TURNS = D <= 256; /* k_attn_rotates() is false for larger heads */

    static_assert(tile::STAGE % (8 * tile::PANEL) == 0, "swizzles repeat after 8 rows");

    /* The state of a row in a lane: g = lane / 4, t = lane % 4. */
    struct state {
        uint32_t q[STEPS][NT][2]; /* head g */
        float o[STEPS][NT][4];    /* heads 2t, 2t + 1; elements g, g + 8; fp8: 2g, 2g + 1 */
        float top[NT][2], sum[NT][2], scale[NT][2];
    };

    /* The state before the first tile of a row. */
    static __device__ __forceinline__ void clear(state &st)
    {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            st.top[n][0] = st.top[n][1] = NOTHING;
            st.sum[n][0] = st.sum[n][1] = 0.0f;
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                st.o[i][n][0] = st.o[i][n][1] = st.o[i][n][2] = st.o[i][n][3] = 0.0f;
        }
    }

    /* Add the sums of the lanes that share two heads; all get the result. */
    static __device__ __forceinline__ void add_sums(state &st)
    {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
#pragma unroll
                for (int i = 4; i < 32; i *= 2)
                    st.sum[n][elem] += __shfl_xor_sync(~0U, st.sum[n][elem], i);
            }
        }
    }

    /* --- queries, and the step's key and value ------------------------------------------------ */

    /* Copy a row's queries to the desk, and its new key and value if it ends in this share (to rows
     * HEADS + 2 * side and the next). token is the token's row of qkv. Only for heads of whole 16
     * bytes: others are read when they are needed. */
    static __device__ __forceinline__ void ask_row(char *desk, const decode_args &a,
                                                   const k_bf16 *token, int head, int n_heads,
                                                   int kv_head, int side, bool inserts)
    {
        constexpr int LANES = D <= 64 ? 8 : D <= 128 ? 16 : 32;
        int hd = a.kv.head_dim, d = threadIdx.x % LANES * 8, n = n_heads + 2 * inserts;

        if (hd % 8 != 0 || d >= hd)
            return;
#pragma unroll 1
        for (int row = threadIdx.x % 32 / LANES; row < n; row += 32 / LANES) {
            int extra = row - n_heads;
            int from = extra < 0 ? head + row : a.n_heads + kv_head + extra * a.kv.n_kv_heads;
            int to = extra < 0 ? row : HEADS + 2 * side + extra;

#pragma unroll
            for (int at = 0; at < D; at += LANES * 8) {
                if (at == 0 || d + at < hd)
                    decode_copy_async(shared_addr(desk + to * DESK_ROW + (d + at) * 2),
                                      token + from * hd + d + at);
            }
        }
    }

    /* The same for the decodes of a run: n_columns queries, of `group` heads of each decode. */
    static __device__ __forceinline__ void ask_run(char *desk, const decode_args &a,
                                                   const k_bf16 *token, int head, int n_columns)
    {
        constexpr int LANES = D <= 64 ? 8 : D <= 128 ? 16 : 32;
        int d = threadIdx.x % LANES * 8;

#pragma unroll 1
        for (int column = threadIdx.x % 32 / LANES; column < n_columns; column += 32 / LANES) {
            int decode = column / a.group;

            decode_copy_async(shared_addr(desk + column * DESK_ROW + d * 2),
                              token + (size_t)decode * a.width +
                                  (head + column - decode * a.group) * D + d);
        }
    }

    /* Copy the new keys and values of a run, whose first decode's row of qkv is token, to rows of
     * the desk: [decode][key, value]. */
    static __device__ __forceinline__ void ask_new(char *rows, const decode_args &a,
                                                   const k_bf16 *token, int kv_head, int n)
    {
        constexpr int LANES = D <= 64 ? 8 : D <= 128 ? 16 : 32;
        int d = threadIdx.x % LANES * 8;

#pragma unroll 1
        for (int i = threadIdx.x % 32 / LANES; i < 2 * n; i += 32 / LANES)
            decode_copy_async(shared_addr(rows + i * DESK_ROW + d * 2),
                              token + (size_t)(i / 2) * a.width +
                                  (a.n_heads + kv_head + i % 2 * a.kv.n_kv_heads) * D + d);
    }

    /* Rotate one element and its partner half a head further on. */
    static __device__ __forceinline__ float2 turn_pair(float low, float high, float2 turn)
    {
        return make_float2(turn_lower(low, high, turn), turn_upper(high, low, turn));
    }

    /* Rotate elements 2 * lane + 64 * j and the next, of both halves: words of one head; returns
     * floats [low, its next, high, its next]. Only for heads whose halves are even. */
    static __device__ __forceinline__ float4 turn_words(uint32_t low, uint32_t high, float4 turn)
    {
        float2 a = turn_pair(low_half(low), low_half(high), make_float2(turn.x, turn.y));
        float2 b = turn_pair(high_half(low), high_half(high), make_float2(turn.z, turn.w));

        return make_float4(a.x, b.x, a.y, b.y);
    }

    /* The norm's factor of a head of D elements, which the warp has completely, in the order of
     * rope.cu. */
    static __device__ __forceinline__ float norm_inverse(const uint32_t (&low)[PAIRS],
                                                         const uint32_t (&high)[PAIRS], float eps)
    {
        float sum = 0.0f;

#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            float part = square_four(make_float4(low_half(low[j]), high_half(low[j]),
                                                 low_half(high[j]), high_half(high[j])));

#pragma unroll
            for (int row_tile = 1; row_tile < 32; row_tile *= 2)
                part = __fadd_rn(part, __shfl_xor_sync(~0U, part, row_tile));
            sum = j == 0 ? part : __fadd_rn(sum, part);
        }
        return head_inverse(sum, 1.0f / D, eps);
    }

    /* Multiply words of a head with its factor and the norm's weights, and rotate them as
     * turn_words() does. */
    static __device__ __forceinline__ float4 norm_and_turn(uint32_t low, uint32_t high, float4 turn,
                                                           uint2 weights, float inverse)
    {
        float2 a = turn_pair(normed(low_half(low), inverse, low_half(weights.x)),
                             normed(low_half(high), inverse, low_half(weights.y)),
                             make_float2(turn.x, turn.y));
        float2 b = turn_pair(normed(high_half(low), inverse, high_half(weights.x)),
                             normed(high_half(high), inverse, high_half(weights.y)),
                             make_float2(turn.z, turn.w));

        return make_float4(a.x, b.x, a.y, b.y);
    }

    static __device__ __forceinline__ uint2 norm_words(const k_bf16 *weights, int j)
    {
        const uint32_t *words = (const uint32_t *)weights + threadIdx.x % 32 + 32 * j;

        return make_uint2(words[0], words[D / 4]);
    }

    /* Rotate the queries on the desk. */
    static __device__ __forceinline__ void turn_plain(char *desk, int n_heads, int hd,
                                                      const float2 *turn)
    {
        int half = hd / 2;

#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int d = threadIdx.x % 32 * 2 + 64 * j;
            float4 turns;

            if (d >= half)
                break;
            turns = *(const float4 *)(turn + d);
#pragma unroll 4
            for (int h = 0; h < n_heads; h++) {
                uint32_t *at = (uint32_t *)(desk + h * DESK_ROW + d * 2);
                float4 y = turn_words(at[0], at[half / 2], turns);

                at[0] = pack_bf16(y.x, y.y);
                at[half / 2] = pack_bf16(y.z, y.w);
            }
        }
    }

    /* Norm and rotate the queries on the desk; heads of D elements. */
    static __device__ __forceinline__ void norm_queries(char *desk, const decode_args &a,
                                                        int n_heads, const float2 *turn)
    {
        float4 turns[PAIRS];

#pragma unroll
        for (int j = 0; j < PAIRS; j++)
            turns[j] = *(const float4 *)(turn + threadIdx.x % 32 * 2 + 64 * j);
        norm_heads(desk, a, n_heads, turns);
    }

    static __device__ __forceinline__ void norm_heads(char *desk, const decode_args &a, int n_heads,
                                                      const float4 (&turns)[PAIRS])
    {
        uint2 weights[PAIRS];

#pragma unroll
        for (int j = 0; j < PAIRS; j++)
            weights[j] = norm_words(a.q_norm, j);
#pragma unroll 4
        for (int h = 0; h < n_heads; h++) {
            uint32_t *at = (uint32_t *)(desk + h * DESK_ROW) + threadIdx.x % 32;
            uint32_t low[PAIRS], high[PAIRS];
            float inverse;

#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                low[j] = at[32 * j];
                high[j] = at[32 * j + D / 4];
            }
            inverse = norm_inverse(low, high, a.eps);
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                float4 y = norm_and_turn(low[j], high[j], turns[j], weights[j], inverse);

                at[32 * j] = pack_bf16(y.x, y.y);
                at[32 * j + D / 4] = pack_bf16(y.z, y.w);
            }
        }
    }

    /* Norm, if NORMED, and rotate the queries on the desk. */
    template <bool NORMED>
    static __device__ __forceinline__ void turn_queries(char *desk, const decode_args &a,
                                                        int n_heads, int hd, const float2 *turn)
    {
        if constexpr (NORMED)
            norm_queries(desk, a, n_heads, turn);
        else
            turn_plain(desk, n_heads, hd, turn);
    }

    /* Rotate queries of heads of D elements on the desk. */
    static __device__ __forceinline__ void turn_heads(char *desk, int n_heads,
                                                      const float4 (&turns)[PAIRS])
    {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int d = threadIdx.x % 32 * 2 + 64 * j;

            if (d >= D / 2)
                break;
#pragma unroll 4
            for (int h = 0; h < n_heads; h++) {
                uint32_t *at = (uint32_t *)(desk + h * DESK_ROW + d * 2);
                float4 y = turn_words(at[0], at[D / 4], turns[j]);

                at[0] = pack_bf16(y.x, y.y);
                at[D / 4] = pack_bf16(y.z, y.w);
            }
        }
    }

    /* The turns of N positions from `turn` on, as far as there are n: requested together, because
     * each takes long to arrive. */
    template <int N>
    static __device__ __forceinline__ void load_turns(float4 (&turns)[N][PAIRS], const float2 *turn,
                                                      int n)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int d = threadIdx.x % 32 * 2 + 64 * j;

                turns[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (i < n && d < D / 2)
                    turns[i][j] = *(const float4 *)(turn + i * (D / 2) + d);
            }
        }
    }

    /* Norm, if NORMED, and rotate the queries of one decode of a run. */
    template <bool NORMED>
    static __device__ __forceinline__ void turn_decode(char *desk, const decode_args &a,
                                                       const float4 (&turns)[PAIRS])
    {
        if constexpr (NORMED)
            norm_heads(desk, a, a.group, turns);
        else
            turn_heads(desk, a.group, turns);
    }

    /* The same of an item with `count` decodes. */
    template <bool NORMED>
    static __device__ __forceinline__ void turn_run(char *desk, const decode_args &a, int count,
                                                    const float4 (&turns)[DECODE_TOGETHER][PAIRS])
    {
#pragma unroll
        for (int i = 0; i < DECODE_TOGETHER; i++) {
            if (i >= count)
                break;
            turn_decode<NORMED>(desk + i * a.group * DESK_ROW, a, turns[i]);
        }
    }

    /* Copy queries to the desk element by element, rotated if there are turns. */
    static __device__ __forceinline__ void lay_queries(char *desk, const k_bf16 *q, int n_heads,
                                                       int hd, const float2 *turn)
    {
        int half = hd / 2;

#pragma unroll 1
        for (int i = threadIdx.x % 32; i < n_heads * half; i += 32) {
            int h = i / half, d = i % half;
            k_bf16 *to = (k_bf16 *)(desk + h * DESK_ROW) + d;
            float low = load_bf16(q + h * hd + d), high = load_bf16(q + h * hd + d + half);
            float2 y = make_float2(low, high);

            if (turn != NULL)
                y = turn_pair(low, high, turn[d]);
            store_bf16(to, y.x);
            store_bf16(to + half, y.y);
        }
    }

    /* Load the right operand of S^T, heads 8n to 8n + 7: elements in the order of the keys'
     * fragments. */
    static __device__ __forceinline__ void take_queries(state &st, const decode_args &a, int n,
                                                        const char *desk, int n_heads)
    {
        int lane_row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4;

#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                int d =
                    16 * i + (TYPE == K_BF16 ? 8 * pair + 2 * lane_col : 4 * lane_col + 2 * pair);
                uint32_t x = *(const uint32_t *)(desk + lane_row * DESK_ROW + d * 2);

                st.q[i][n][pair] = lane_row < n_heads && d < a.kv.head_dim ? x : 0U;
            }
        }
        if (TYPE == K_BF16)
            st.scale[n][0] = st.scale[n][1] = a.scale;
        else
            halve_queries(st, a, n);
    }

    /* Convert queries from bf16 to float16, each head divided by a power of two so that its largest
     * element is below 2; the scores' scale makes up for it. */
    static __device__ __forceinline__ void halve_queries(state &st, const decode_args &a, int n)
    {
        int lane_col = threadIdx.x % 4;
        float largest = 0.0f, down, up;
        uint32_t exponent;

#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int pair = 0; pair < 2; pair++)
                largest = fmaxf(largest, fmaxf(fabsf(low_half(st.q[i][n][pair])),
                                               fabsf(high_half(st.q[i][n][pair]))));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
        exponent = min(max(__float_as_uint(largest) >> 23, 1U), 253U);
        up = __uint_as_float(exponent << 23);
        down = __uint_as_float((254 - exponent) << 23);
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int pair = 0; pair < 2; pair++)
                st.q[i][n][pair] = decode_pack_two<TYPE>(low_half(st.q[i][n][pair]) * down,
                                                         high_half(st.q[i][n][pair]) * down);
        }
        st.scale[n][0] = a.scale * __shfl_sync(~0U, up, 8 * lane_col);
        st.scale[n][1] = a.scale * __shfl_sync(~0U, up, 8 * lane_col + 4);
    }

    static __device__ __forceinline__ void put_two(void *to, uint32_t two)
    {
        if (TYPE == K_BF16)
            *(uint32_t *)to = two;
        else
            *(uint16_t *)to = (uint16_t)two;
    }

    static __device__ __forceinline__ void put_one(void *to, uint32_t one)
    {
        if (TYPE == K_BF16)
            *(uint16_t *)to = (uint16_t)one;
        else
            *(uint8_t *)to = (uint8_t)one;
    }

    /* Convert the step's key and value on the desk, at `rows`, from the copies of qkv to their
     * stored form. */
    template <bool NORMED>
    static __device__ __forceinline__ void turn_new(char *rows, const decode_args &a,
                                                    const float2 *turn)
    {
        int hd = a.kv.head_dim, half = hd / 2, lane = threadIdx.x % 32;
        char *values = rows + DESK_ROW;
        uint32_t low[PAIRS], high[PAIRS], v[2 * PAIRS];
        float inverse = 0.0f;

#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            low[j] = *(const uint32_t *)(rows + (2 * lane + 64 * j) % D * 2);
            high[j] = *(const uint32_t *)(rows + (2 * lane + 64 * j + half) % D * 2);
            v[2 * j] = *(const uint32_t *)(values + (2 * lane + 128 * j) % D * 2);
            v[2 * j + 1] = *(const uint32_t *)(values + (2 * lane + 128 * j + 64) % D * 2);
        }
        __syncwarp();
        if constexpr (NORMED)
            inverse = norm_inverse(low, high, a.eps);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int d = 2 * lane + 64 * j;
            float4 y;

            if (d >= half)
                break;
            y = NORMED ? norm_and_turn(low[j], high[j], *(const float4 *)(turn + d),
                                       norm_words(a.k_norm, j), inverse)
                       : turn_words(low[j], high[j], *(const float4 *)(turn + d));
            put_two(rows + d * tile::ELEM, stored_two(KV, a.kv.k_scale, y.x, y.y));
            put_two(rows + (d + half) * tile::ELEM, stored_two(KV, a.kv.k_scale, y.z, y.w));
        }
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            int d = 2 * lane + 64 * j;

            if (d < hd)
                put_two(values + d * tile::ELEM,
                        stored_two(KV, a.kv.v_scale, low_half(v[j]), high_half(v[j])));
        }
    }

    /* The same for keys `from` .. `to` - 1 of a run, a few at a time. desk: row of key 0; turn: of
     * its position. */
    template <bool NORMED>
    static __device__ __forceinline__ void turn_new_run(char *desk, const decode_args &a,
                                                        const float2 *turn, int from, int to)
    {
        int lane = threadIdx.x % 32;

#pragma unroll 1
        for (int base = from; base < to; base += DECODE_TOGETHER) {
            uint32_t low[DECODE_TOGETHER][PAIRS], high[DECODE_TOGETHER][PAIRS];
            uint32_t v[DECODE_TOGETHER][2 * PAIRS];
            float4 turns[DECODE_TOGETHER][PAIRS];

            load_turns(turns, turn + base * (D / 2), to - base);
#pragma unroll
            for (int i = 0; i < DECODE_TOGETHER; i++) {
                const char *rows = desk + 2 * min(base + i, to - 1) * DESK_ROW;

#pragma unroll
                for (int j = 0; j < PAIRS; j++) {
                    low[i][j] = *(const uint32_t *)(rows + (2 * lane + 64 * j) % D * 2);
                    high[i][j] = *(const uint32_t *)(rows + (2 * lane + 64 * j + D / 2) % D * 2);
                    v[i][2 * j] =
                        *(const uint32_t *)(rows + DESK_ROW + (2 * lane + 128 * j) % D * 2);
                    v[i][2 * j + 1] =
                        *(const uint32_t *)(rows + DESK_ROW + (2 * lane + 128 * j + 64) % D * 2);
                }
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < DECODE_TOGETHER; i++) {
                char *rows = desk + 2 * (base + i) * DESK_ROW;

                if (base + i < to)
                    place_new<NORMED>(rows, a, low[i], high[i], v[i], turns[i]);
            }
        }
    }

    /* Write a key and a value to the desk in their stored form. */
    template <bool NORMED>
    static __device__ __forceinline__ void place_new(char *rows, const decode_args &a,
                                                     const uint32_t (&low)[PAIRS],
                                                     const uint32_t (&high)[PAIRS],
                                                     const uint32_t (&v)[2 * PAIRS],
                                                     const float4 (&turns)[PAIRS])
    {
        float inverse = NORMED ? norm_inverse(low, high, a.eps) : 0.0f;

#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            int d = 2 * (threadIdx.x % 32) + 64 * j;
            float4 y;

            if (d >= D / 2)
                break;
            y = NORMED ? norm_and_turn(low[j], high[j], turns[j], norm_words(a.k_norm, j), inverse)
                       : turn_words(low[j], high[j], turns[j]);
            put_two(rows + d * tile::ELEM, stored_two(KV, a.kv.k_scale, y.x, y.y));
            put_two(rows + (d + D / 2) * tile::ELEM, stored_two(KV, a.kv.k_scale, y.z, y.w));
        }
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            int d = 2 * (threadIdx.x % 32) + 64 * j;

            if (TYPE != K_BF16 && d < D)
                put_two(rows + DESK_ROW + d * tile::ELEM,
                        stored_two(KV, a.kv.v_scale, low_half(v[j]), high_half(v[j])));
        }
    }

    /* Write keys and values `from` .. `to` - 1 of a run from the desk to the pages; key 0 has
     * position first. */
    static __device__ __forceinline__ void store_run(const char *desk, const decode_args &a,
                                                     int seq, int first, int from, int to,
                                                     int kv_head)
    {
        constexpr int CHUNKS = D * tile::ELEM / 16;
        const int32_t *pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        size_t to_values = value_elems(a.kv) * tile::ELEM;

#pragma unroll 1
        for (int i = threadIdx.x % 32; i < (to - from) * CHUNKS; i += 32) {
            int key = from + i / CHUNKS, chunk = i % CHUNKS;
            const char *rows = desk + 2 * key * DESK_ROW + chunk * 16;
            char *at = (char *)a.kv.pages +
                       key_elem(a.kv, pages, first + key, kv_head) * tile::ELEM + chunk * 16;

            *(uint4 *)at = *(const uint4 *)rows;
            *(uint4 *)(at + to_values) = *(const uint4 *)(rows + DESK_ROW);
        }
    }

    /* Write them to a tile whose first key has position pos. */
    static __device__ __forceinline__ void insert_run(char *stage, int pos, const char *desk,
                                                      int first, int n)
    {
        constexpr int CHUNKS = D * tile::ELEM / 16;
        int from = max(0, pos - first), to = min(n, pos + tile::TOKENS - first);

#pragma unroll 1
        for (int i = threadIdx.x % 32; i < (to - from) * CHUNKS; i += 32) {
            int key = from + i / CHUNKS, chunk = i % CHUNKS;
            const char *rows = desk + 2 * key * DESK_ROW + chunk * 16;
            char *at = stage + tile::at(first + key - pos, chunk);

            *(uint4 *)at = *(const uint4 *)rows;
            *(uint4 *)(at + tile::BYTES) = *(const uint4 *)(rows + DESK_ROW);
        }
    }

    /* Prepare the step's key and value for any head size, from qkv, element by element. */
    static __device__ __forceinline__ void lay_new(char *rows, const decode_args &a,
                                                   const k_bf16 *from, const float2 *turn)
    {
        int half = a.kv.head_dim / 2, elem = tile::ELEM;
        const k_bf16 *value = from + a.kv.n_kv_heads * 2 * half;
        char *values = rows + DESK_ROW;

#pragma unroll 1
        for (int d = threadIdx.x % 32; d < half; d += 32) {
            float2 y = turn_pair(load_bf16(from + d), load_bf16(from + d + half), turn[d]);
            float low = load_bf16(value + d), high = load_bf16(value + d + half);

            put_one(rows + d * elem, stored_two(KV, a.kv.k_scale, y.x, 0.0f));
            put_one(rows + (d + half) * elem, stored_two(KV, a.kv.k_scale, y.y, 0.0f));
            put_one(values + d * elem, stored_two(KV, a.kv.v_scale, low, 0.0f));
            put_one(values + (d + half) * elem, stored_two(KV, a.kv.v_scale, high, 0.0f));
        }
    }

    /* Write the new key and value from the desk to the page. */
    static __device__ __forceinline__ void store_new(const char *keys, const decode_args &a,
                                                     int seq, int pos, int kv_head)
    {
        const int32_t *pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        char *to = (char *)a.kv.pages + key_elem(a.kv, pages, pos, kv_head) * tile::ELEM;
        size_t to_values = value_elems(a.kv) * tile::ELEM;
#pragma unroll 1
        for (int i = threadIdx.x % 32 * 2; i < a.kv.head_dim * tile::ELEM; i += 64) {
            *(uint16_t *)(to + i) = *(const uint16_t *)(keys + i);
            *(uint16_t *)(to + to_values + i) = *(const uint16_t *)(keys + DESK_ROW + i);
        }
    }

    /* Write them from the desk to row r of a tile. */
    static __device__ __forceinline__ void insert_new(char *to, int r, const char *keys, int hd)
    {
#pragma unroll 1
        for (int i = threadIdx.x % 32 * 2; i < hd * tile::ELEM; i += 64) {
            char *word = to + tile::at(r, i / 16) + i % 16;

            *(uint16_t *)word = *(const uint16_t *)(keys + i);
            *(uint16_t *)(word + tile::BYTES) = *(const uint16_t *)(keys + DESK_ROW + i);
        }
    }
};

#endif
