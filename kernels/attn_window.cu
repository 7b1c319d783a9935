/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode attention with a window of at most 128 keys and heads of 64.
 *
 *   pages --> registers (a warp's 32 keys, all requested at once) --> S = Q K^T -> P
 *         --> O^T = V^T P^T, of each warp --> shared memory --> merged, with the sink --> out
 *
 * There is so little to read, 32 KB per row (sequence, kv head), that latencies count: of the loads
 * in front of the keys, of the keys, and of everything behind them. So no plan is read, keys and
 * values are not copied through shared memory, no warp has a loop over tiles, and all that does not
 * depend on the previous launch is requested before it has ended. Queries and the step's key and
 * value are prepared once for all warps while keys and values are on their way.
 *
 * Split: a block of four warps per row; a warp has 32 keys, counted from the window's first.
 *
 * Layout: a lane is g = lane / 4, t = lane % 4. The order of the elements of a head within a
 * product is free, and chosen so that each load is one of eight consecutive elements (a chunk):
 *
 *   Q, left operand:    head g, chunks t and t + 4
 *   K, right operand:   keys g + 8 i, chunks t and t + 4
 *   S:                  head g, keys 8 i + 2 t and the next: P is P^T's right operand as it is
 *   V^T, left operand:  keys 2 t + {0, 1, 8, 9} + 16 i, chunk g; pairs of keys are put together
 *   O^T:                heads 2 t and 2 t + 1, elements of chunk g
 *
 * Shared memory: 10 KB, the queries and four partial results. Bytes: every key and value of the
 * window once. Same input, same bits, whatever other sequences the step has.
 *
 * Source: softmax over parts as in FlashAttention-2 (arXiv:2307.08691). */
#include "kernels/attn_decode_parts.cuh"
#include "kernels/choice.h"

#define WINDOW_WARPS 4
#define WINDOW_PART  32 /* keys of a warp */
#define WINDOW_CTAS  5  /* per multiprocessor: with six, registers of keys are spilled */

/* TURNS: queries and the step's keys are rotated, and the latter written to the pages. */
template <int TYPE, bool TURNS> struct window {
    static constexpr int D = 64;
    static constexpr int HEADS = 8;
    static constexpr enum k_type KV = (enum k_type)TYPE;
    static constexpr int STEPS = D / 16;                  /* of 16 elements */
    static constexpr int TILES = WINDOW_PART / 8;         /* products of 8 keys */
    static constexpr int PARTS = WINDOW_PART / 16;        /* and of 16 values */
    static constexpr int WORDS = TYPE == K_BF16 ? 4 : 2;  /* of a chunk */
    static constexpr int ROW = TYPE == K_BF16 ? 128 : 64; /* bytes of a key */
    static constexpr int OUT_ROW = D + 4;                 /* floats; rows are shifted by 4 banks */
    using desk = decode_desk<D, TYPE, HEADS, false>;

    struct chunk {
        uint32_t word[WORDS];
    };

    /* The block's row, and the warp's part of the window. */
    struct row {
        const int32_t *pages;
        int len, token, head;
        int n, mine;  /* visible keys, and the warp's of them; not positive: none */
        bool inserts; /* the warp's last key is the step's */
        uint32_t at;  /* row in the pages of key `lane` */
    };

    /* A lane's chunks of the warp's keys and values. */
    struct tile {
        chunk k[TILES][2], v[PARTS][4];
    };

    /* What warps prepare for all. */
    struct inbox {
        __align__(16) uint32_t q[HEADS][2][16]; /* halves of a head: put_query() */
        __align__(16) uint32_t key_value[2][D * 2 / 4];
        float scale[HEADS]; /* of e4m3 */
    };

    /* Results of the warps. */
    struct results {
        float o[WINDOW_WARPS][HEADS][OUT_ROW];
        float top[WINDOW_WARPS][HEADS], sum[WINDOW_WARPS][HEADS];
    };

    /* The address of row `at` of the pages, of which `base` is the first. */
    static __device__ __forceinline__ const char *row_at(const char *base, uint32_t at)
    {
        const char *p;

        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(p) : "r"(at), "n"(ROW), "l"(base));
        return p;
    }

    /* Keys and values are read once per step. */
    static __device__ __forceinline__ chunk load(const char *from)
    {
        chunk c;

        if constexpr (TYPE == K_BF16)
            asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(c.word[0]), "=r"(c.word[1]), "=r"(c.word[2]), "=r"(c.word[3])
                         : "l"(from));
        else
            asm volatile("ld.global.cs.v2.u32 {%0,%1}, [%2];"
                         : "=r"(c.word[0]), "=r"(c.word[1])
                         : "l"(from));
        return c;
    }

    static __device__ __forceinline__ float bf16_of(float x)
    {
        return low_half(pack_bf16(x, 0.0f));
    }

    /* The row in the pages of the key at a position; its value's is value_rows() further on. Pages
     * have less than 2^32 rows, that is 256 GB. */
    static __device__ __forceinline__ uint32_t page_row(const decode_args &a, const row &r, int pos)
    {
        return (uint32_t)r.pages[pos >> a.page_shift] * (uint32_t)(a.kv.page_elems / D) +
               (uint32_t)(a.kv.layer_elems / D) + (blockIdx.x << a.page_shift) +
               (pos & ((1 << a.page_shift) - 1));
    }

    static __device__ __forceinline__ uint32_t value_rows(const decode_args &a)
    {
        return (uint32_t)a.kv.n_kv_heads << a.page_shift;
    }

    /* Find the warp's keys, of a sequence that has some. Instead of the step's key, and of rows
     * behind the last one, the last that is in the pages is read; where there is none, nothing that
     * is read counts. */
    static __device__ __forceinline__ row find(const decode_args &a, int seq, int len)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, lowest, before;
        row r;

        r.len = len;
        r.token = a.t.seq_start[seq];
        r.head = blockIdx.x * a.group;
        lowest = decode_lowest(len, a.kv.window);
        r.n = len - lowest;
        before = min(warp * WINDOW_PART, r.n - 1);
        r.mine = min(WINDOW_PART, r.n - warp * WINDOW_PART);
        r.inserts = TURNS && r.mine > 0 && r.n - before <= WINDOW_PART;
        r.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
        r.at = page_row(a, r, min(lowest + before + lane, len - 1));
        r.at = __shfl_sync(~0U, r.at, min(lane, max(0, r.mine - 1 - r.inserts)));
        return r;
    }

    /* Request the warp's keys and values. */
    static __device__ __forceinline__ void ask(tile &x, const decode_args &a, const row &r)
    {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const char *keys = (const char *)a.kv.pages + t * sizeof(chunk);
        const char *values = row_at((const char *)a.kv.pages + g * sizeof(chunk), value_rows(a));

#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const char *from = row_at(keys, __shfl_sync(~0U, r.at, g + 8 * i));

            x.k[i][0] = load(from);
            x.k[i][1] = load(from + 4 * sizeof(chunk));
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.v[i][j] = load(
                    row_at(values, __shfl_sync(~0U, r.at, 16 * i + 2 * t + j / 2 * 8 + j % 2)));
        }
    }

    /* What a thread has of a row of 64 elements that 16 threads share: elements 2 j and the next,
     * and those half a row further on; j = threadIdx.x % 16. */
    struct slice {
        float low[2], high[2];
    };

    static __device__ __forceinline__ float4 load_turns(const decode_args &a, int len)
    {
        return ((const float4 *)a.turns)[(size_t)(len - 1) * (D / 4) + threadIdx.x % 16];
    }

    static __device__ __forceinline__ slice load_slice(const k_bf16 *from)
    {
        const uint32_t *words = (const uint32_t *)from + threadIdx.x % 16;
        uint32_t low = words[0], high = words[D / 4];

        return {{low_half(low), high_half(low)}, {low_half(high), high_half(high)}};
    }

    static __device__ __forceinline__ void turn(slice &x, float4 by)
    {
        float2 first = make_float2(by.x, by.y), second = make_float2(by.z, by.w);
        slice from = x;

        x.low[0] = turn_lower(from.low[0], from.high[0], first);
        x.high[0] = turn_upper(from.high[0], from.low[0], first);
        x.low[1] = turn_lower(from.low[1], from.high[1], second);
        x.high[1] = turn_upper(from.high[1], from.low[1], second);
    }

    /* Write a slice of two words. The second and the third of four words change places (scores()).
     * Rows of odd heads have their halves exchanged, so that eight lanes that read 16 bytes meet
     * all banks. */
    static __device__ __forceinline__ void put_query(inbox &to, int head, uint32_t low,
                                                     uint32_t high)
    {
        int j = threadIdx.x % 16, at = (j & ~3) | (j & 1) << 1 | (j >> 1 & 1), side = head % 2;

        to.q[head][side][at] = low;
        to.q[head][side ^ 1][at] = high;
    }

    static __device__ __forceinline__ slice ask_query(const decode_args &a, const row &r)
    {
        int head = threadIdx.x / 16;
        slice none = {};

        return head >= a.group
                   ? none
                   : load_slice(a.qkv + (size_t)r.token * a.width + (r.head + head) * D);
    }

    /* Of the step's key for the lower half of a warp, of its value for the upper one. */
    static __device__ __forceinline__ slice ask_new(const decode_args &a, const row &r)
    {
        return load_slice(a.qkv + (size_t)r.token * a.width +
                          (a.n_heads + blockIdx.x + threadIdx.x % 32 / 16 * a.kv.n_kv_heads) * D);
    }

    /* Prepare the queries: 16 threads a head. For e4m3 they become float16, divided by a power of
     * two per head so that the largest is below 2; the scores' scale makes up for it. */
    static __device__ __forceinline__ void lay_queries(inbox &to, const decode_args &a, slice x,
                                                       float4 by)
    {
        int head = threadIdx.x / 16;

        if constexpr (TURNS) {
            turn(x, by);
            x = {{bf16_of(x.low[0]), bf16_of(x.low[1])}, {bf16_of(x.high[0]), bf16_of(x.high[1])}};
        }
        if constexpr (TYPE == K_BF16) {
            put_query(to, head, pack_bf16(x.low[0], x.low[1]), pack_bf16(x.high[0], x.high[1]));
        } else {
            float largest = fmaxf(fmaxf(fabsf(x.low[0]), fabsf(x.low[1])),
                                  fmaxf(fabsf(x.high[0]), fabsf(x.high[1])));
            uint32_t exponent;
            float down;

#pragma unroll
            for (int i = 1; i < 16; i *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, i));
            exponent = min(max(__float_as_uint(largest) >> 23, 1U), 253U);
            down = __uint_as_float((254 - exponent) << 23);
            put_query(to, head, decode_pack_two<TYPE>(x.low[0] * down, x.low[1] * down),
                      decode_pack_two<TYPE>(x.high[0] * down, x.high[1] * down));
            if (threadIdx.x % 16 == 0)
                to.scale[head] = a.scale * __uint_as_float(exponent << 23);
        }
    }

    /* The step's key and value: to the pages, and for the warp that has their place. */
    static __device__ __forceinline__ void lay_new(inbox &to, const decode_args &a, const row &r,
                                                   slice x, float4 by)
    {
        int side = threadIdx.x % 32 / 16, j = threadIdx.x % 16, pos = r.len - 1;
        uint32_t at = page_row(a, r, pos) + side * value_rows(a), low, high;
        float scale = side == 0 ? a.kv.k_scale : a.kv.v_scale;
        char *page = (char *)a.kv.pages + (size_t)at * ROW, *own = (char *)to.key_value[side];

        if (side == 0)
            turn(x, by);
        low = stored_two(KV, scale, x.low[0], x.low[1]);
        high = stored_two(KV, scale, x.high[0], x.high[1]);
        desk::put_two(page + j * (ROW / 32), low);
        desk::put_two(page + ROW / 2 + j * (ROW / 32), high);
        desk::put_two(own + j * (ROW / 32), low);
        desk::put_two(own + ROW / 2 + j * (ROW / 32), high);
    }

    /* Put the step's key and value in their places, also in those of keys behind it, whose weights
     * are 0 but whose values must be numbers. */
    static __device__ __forceinline__ void insert(tile &x, const inbox &from, int last)
    {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        chunk low = ((const chunk *)from.key_value[0])[t];
        chunk high = ((const chunk *)from.key_value[0])[t + 4];
        chunk values = ((const chunk *)from.key_value[1])[g];

#pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (g + 8 * i >= last)
                x.k[i][0] = low, x.k[i][1] = high;
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (16 * i + 2 * t + j / 2 * 8 + j % 2 >= last)
                    x.v[i][j] = values;
            }
        }
    }

    /* Of eight keys as a right operand, 16 elements: half a chunk of each lane. */
    static __device__ __forceinline__ void key_operand(uint32_t (&k)[2], const chunk &from,
                                                       int side)
    {
        if constexpr (TYPE == K_BF16)
            k[0] = from.word[2 * side], k[1] = from.word[2 * side + 1];
        else
            decode_widen_e4m3(&k[0], &k[1], from.word[side]);
    }

    /* Of 16 values, elements 2 i and 2 i + 1 of the lanes' chunks. */
    static __device__ __forceinline__ void value_operand(uint32_t (&v)[4], const chunk (&from)[4],
                                                         int i)
    {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (TYPE == K_BF16) {
                v[2 * j] = __byte_perm(from[2 * j].word[i], from[2 * j + 1].word[i], 0x5410);
                v[2 * j + 1] = __byte_perm(from[2 * j].word[i], from[2 * j + 1].word[i], 0x7632);
            } else {
                decode_widen_e4m3(&v[2 * j], &v[2 * j + 1],
                                  __byte_perm(from[2 * j].word[i / 2], from[2 * j + 1].word[i / 2],
                                              i % 2 == 0 ? 0x5140 : 0x7362));
            }
        }
    }

    /* S of the warp's n keys. The 16 rows of the left operand are half of the elements of a chunk
     * of eight heads, and the other half: of each product with one of the two halves of keys, eight
     * rows count. */
    static __device__ __forceinline__ void scores(float (&s)[TILES][2], const inbox &from,
                                                  const tile &x, int n)
    {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        uint32_t q[2][4];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 four = *(const uint4 *)&from.q[g][i ^ g % 2][t * 4];

            q[i][0] = four.x, q[i][1] = four.y, q[i][2] = four.z, q[i][3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            float parts[2][4] = {};

#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t k[2];

                key_operand(k, x.k[i][j / 2], j % 2);
                decode_multiply<TYPE>(parts[j % 2], q[j / 2], k);
            }
            s[i][0] = parts[0][0] + parts[1][2];
            s[i][1] = parts[0][1] + parts[1][3];
        }
        if (n == WINDOW_PART)
            return;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int elem = 0; elem < 2; elem++) {
                if (8 * i + 2 * t + elem >= n)
                    s[i][elem] = -INFINITY;
            }
        }
    }

    /* Turn scores into weights relative to the head's largest of this warp, *top in units of log2;
     * *sum is their sum. scale is positive. */
    static __device__ __forceinline__ void soften(uint32_t (&w)[PARTS][2], float (&s)[TILES][2],
                                                  float scale, float *top, float *sum)
    {
        float most = s[0][0], total = 0.0f;

#pragma unroll
        for (int i = 0; i < TILES * 2; i++)
            most = fmaxf(most, s[i / 2][i % 2]);
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0U, most, 2)) * scale;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            s[i][0] = exp2_fast(fmaf(s[i][0], scale, -most));
            s[i][1] = exp2_fast(fmaf(s[i][1], scale, -most));
            total += s[i][0] + s[i][1];
            w[i / 2][i % 2] = decode_pack_two<TYPE>(s[i][0], s[i][1]);
        }
        total += __shfl_xor_sync(~0U, total, 1);
        total += __shfl_xor_sync(~0U, total, 2);
        *top = most;
        *sum = total;
    }

    /* The warp's n keys: scores, softmax, output, which goes to shared memory. */
    static __device__ __forceinline__ void take(results &to, const inbox &from,
                                                const decode_args &a, const tile &x, int n)
    {
        int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        float s[TILES][2], o[STEPS][4] = {}, top, sum;
        uint32_t w[PARTS][2];

        scores(s, from, x, n);
        soften(w, s, TYPE == K_BF16 ? a.scale : from.scale[g], &top, &sum);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                uint32_t v[4];

                value_operand(v, x.v[part], i);
                decode_multiply<TYPE>(o[i], v, w[part]);
            }
        }
        if (t == 0)
            to.top[warp][g] = top, to.sum[warp][g] = sum;
#pragma unroll
        for (int elem = 0; elem < 2; elem++) {
            float *out = to.o[warp][2 * t + elem] + g * 8;

            *(float4 *)out = make_float4(o[0][elem], o[0][2 + elem], o[1][elem], o[1][2 + elem]);
            *(float4 *)(out + 4) =
                make_float4(o[2][elem], o[2][2 + elem], o[3][elem], o[3][2 + elem]);
        }
    }

    /* Of a warp without keys. */
    static __device__ __forceinline__ void take_none(results &to)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
        for (int i = 0; i < HEADS / 2; i++)
            *(float4 *)&to.o[warp][2 * i + lane / 16][lane % 16 * 4] = make_float4(0, 0, 0, 0);
        if (lane < HEADS)
            to.top[warp][lane] = NOTHING, to.sum[warp][lane] = 0.0f;
    }

    /* Merge the results of the warps, and write four elements of one head. sink: its score, in
     * units of log2. */
    static __device__ __forceinline__ void merge(const results &from, const decode_args &a,
                                                 const row &r, float sink)
    {
        int head = threadIdx.x / 16, d = threadIdx.x % 16 * 4;
        size_t at = ((size_t)r.token * a.n_heads + r.head + head) * D + d;
        float top = NOTHING, sum = 0.0f, x[4] = {};

        if (head >= a.group)
            return;
#pragma unroll
        for (int warp = 0; warp < WINDOW_WARPS; warp++)
            top = fmaxf(top, from.top[warp][head]);
#pragma unroll
        for (int warp = 0; warp < WINDOW_WARPS; warp++) {
            float4 o = *(const float4 *)(from.o[warp][head] + d);
            float factor = exp2_fast(from.top[warp][head] - top);

            sum += from.sum[warp][head] * factor;
            x[0] += o.x * factor, x[1] += o.y * factor;
            x[2] += o.z * factor, x[3] += o.w * factor;
        }
        sum = __fdividef(a.weight, sum + exp2_fast(sink - top));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= sum;
            if (a.gates != NULL)
                x[i] = __fdividef(x[i], 1.0f + __expf(-load_bf16(a.gates + at + i)));
        }
        store_x_two(a.out, at, x[0], x[1], a.is_half);
        store_x_two(a.out, at + 2, x[2], x[3], a.is_half);
    }
};

template <int TYPE, bool TURNS>
static __global__ void __launch_bounds__(WINDOW_WARPS * 32, WINDOW_CTAS)
    attn_window_kernel(const __grid_constant__ decode_args a)
{
    using k = window<TYPE, TURNS>;
    __shared__ __align__(16) typename k::results results;
    __shared__ typename k::inbox inbox;
    int seq = a.decode_seqs == NULL ? blockIdx.y : a.decode_seqs[blockIdx.y];
    int len = a.t.kv_len[seq], head = threadIdx.x / 16;
    float sink = -INFINITY;
    float4 by = {};
    typename k::row r;
    typename k::tile x;
    typename k::slice query, fresh = {};

    if (len == 0) {
        decode_wait_for_previous();
        return;
    }
    r = k::find(a, seq, len);
    /* With rotary, the previous launch writes nothing to the pages. */
    if constexpr (TURNS)
        by = k::load_turns(a, len);
    else
        decode_wait_for_previous();
    k::ask(x, a, r);
    if (a.kv.sinks != NULL && head < a.group)
        sink = a.kv.sinks[r.head + head];
    decode_wait_for_previous();
    decode_let_next_begin();
    query = k::ask_query(a, r);
    if (TURNS && threadIdx.x < 32)
        fresh = k::ask_new(a, r);
    k::lay_queries(inbox, a, query, by);
    if (TURNS && threadIdx.x < 32)
        k::lay_new(inbox, a, r, fresh, by);
    __syncthreads();
    if (r.inserts)
        k::insert(x, inbox, r.mine - 1);
    if (r.mine > 0)
        k::take(results, inbox, a, x, r.mine);
    else
        k::take_none(results);
    __syncthreads();
    k::merge(results, a, r, sink * SINK_LOG2_E);
}

typedef void (*window_kernel)(decode_args);

template <int TYPE> static window_kernel window_choose(const decode_args &a)
{
    return a.turns != NULL ? attn_window_kernel<TYPE, true> : attn_window_kernel<TYPE, false>;
}

int k_attn_is_window_sm90(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads)
{
    return kv->window > 0 && kv->window <= WINDOW_WARPS * WINDOW_PART && kv->head_dim == 64 &&
           kv->value_dim == 0 && n_heads / kv->n_kv_heads <= 8 &&
           !k_attn_joins_sm90(plan, kv, n_heads) &&
           decode_engine_reads(*kv, kv->type == K_BF16 ? 2 : 1);
}

int k_attn_window_sm90(const struct decode_args *a, int overlap, k_stream stream)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    decode_args args = *a;

    args.page_shift = 31 - __builtin_clz((unsigned)a->kv.page_tokens);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(a->kv.n_kv_heads, a->n_decodes);
    config.blockDim = WINDOW_WARPS * 32;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config,
                              a->kv.type == K_BF16 ? window_choose<K_BF16>(*a)
                                                   : window_choose<K_E4M3>(*a),
                              args) == cudaSuccess
               ? 0
               : -1;
}
