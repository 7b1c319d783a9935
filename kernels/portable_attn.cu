/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token per sequence over its pages, on every GPU from compute capability 8.0 on.
 *
 * Split: the keys of a (sequence, KV head) are a row of tiles of 16 keys, cut into equal shares for
 * warps. A row has up to SPLITS_MAX CTAs, as many as fill the GPU when there are few rows. The
 * query heads of the group are the 16 rows of the products; larger groups take a CTA for each 16.
 * A warp walks its share with its own softmax and its own two stages of shared memory, which
 * cp.async fills; so warps wait for each other only at the end.
 *
 *   for each 16 keys: S = q . K^T -> mask -> P = 2^(S - max), rescale O -> O += P . V
 *
 * The parts of a CTA's warps are added in shared memory, those of a row's CTAs by the last CTA to
 * arrive, in their order. Where the shares lie depends on the sequence's length and on the number
 * of rows of the launch, not on the lengths of others.
 *
 * e4m3 becomes bfloat16 on the way from its stage to a tile that is as one of bfloat16. */
#include "kernels/choice.h"
#include "kernels/pages.cuh"
#include "kernels/portable.cuh"

#define KEYS       16 /* of a tile */
#define ROWS       16 /* query heads of a CTA: the rows of an mma */
#define STAGES     2
#define PAD        8 /* elements after a row, so that ldmatrix meets all banks */
#define SPLITS_MAX 64
#define LEAST      2 /* tiles of a warp, at least */
#define LOG2_E     1.44269504f
#define NOTHING    (-1e30f)

struct single_args {
    k_bf16 *out;
    const k_bf16 *qkv;
    struct k_kv kv;
    struct k_tokens t;
    const int32_t *decode_seqs;
    int32_t *counters; /* per row, CTAs that have written their part; 0 between launches */
    float *parts;      /* [row][split]: [group][head_dim], then tops, then sums [group] */
    int n_heads, qkv_heads, group, blocks, n_splits;
    bool is_half;
    float scale, out_scale; /* factor of scores, in units of log2; of the output */
    float cap;              /* of scores, in units of log2; 0: none */
};

/* Warps and shared memory for heads of up to D elements. */
template <int D, int TYPE> struct single_shape {
    static constexpr int WARPS = D > 128 ? 2 : 4;
    static constexpr int THREADS = WARPS * 32;
    static constexpr int ROW = D + PAD;                                    /* of a tile, elements */
    static constexpr int TILE = KEYS * ROW * 2;                            /* bytes */
    static constexpr int STAGE = TYPE == K_BF16 ? 2 * TILE : 2 * KEYS * D; /* keys, values */
    static constexpr int WIDE = TYPE == K_BF16 ? 0 : TILE; /* a tile that was converted */
    static constexpr int WARP = STAGES * STAGE + WIDE;
    static constexpr int QUERIES = ROWS * ROW * 2;
    static constexpr int SHARED = QUERIES + WARPS * WARP;
    static_assert(WARPS * (D + 2) * ROWS * 4 <= WARPS * WARP, "parts lie over the stages");
    static_assert(SHARED <= 99 * 1024, "shared memory of compute capability 8.6");
};

/* The share of a CTA. */
struct single_row {
    int seq, len, token;
    int kv_head, first_head, n_heads; /* query heads of the CTA */
    int lowest;                       /* the first visible key */
    int first_tile, n_tiles, n_splits;
};

template <int D> struct single_state {
    float acc[D / 8][4];
    float top[2], sum[2];
};

/* False if there is nothing to do. */
static __device__ inline bool single_find_row(single_row &r, const single_args &a, int n_warps)
{
    int block = blockIdx.y % a.blocks, each = LEAST * n_warps;

    r.seq = a.decode_seqs != NULL ? a.decode_seqs[blockIdx.z] : (int)blockIdx.z;
    r.len = a.t.kv_len[r.seq];
    if (r.len == 0)
        return false;
    r.token = a.t.seq_start[r.seq];
    r.kv_head = blockIdx.y / a.blocks;
    r.first_head = r.kv_head * a.group + block * ROWS;
    r.n_heads = min(ROWS, a.group - block * ROWS);
    r.lowest = a.kv.window > 0 && r.len > a.kv.window ? r.len - a.kv.window : 0;
    r.first_tile = r.lowest / KEYS;
    r.n_tiles = (r.len + KEYS - 1) / KEYS - r.first_tile;
    r.n_splits = min(a.n_splits, (r.n_tiles + each - 1) / each);
    return (int)blockIdx.x < r.n_splits;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* A part of a row that is no run of whole 16 bytes: two elements at a time, zeros beyond hd. */
template <int TYPE>
static __device__ inline void single_copy_odd(void *to, const void *from, int d, int hd, bool has)
{
    const int n = TYPE == K_BF16 ? 8 : 16;

    for (int i = 0; i < n; i += 2) {
        if (TYPE == K_BF16)
            ((uint32_t *)to)[i / 2] = has && d + i < hd ? ((const uint32_t *)from)[i / 2] : 0U;
        else
            ((uint16_t *)to)[i / 2] =
                has && d + i < hd ? ((const uint16_t *)from)[i / 2] : (uint16_t)0;
    }
}

/* The keys and values of a tile to a stage, by a warp; zeros where a key is not visible. */
template <int D, int TYPE>
static __device__ inline void single_copy_tile(char *stage, const single_args &a,
                                               const single_row &r, const int32_t *pages, int tile)
{
    using s = single_shape<D, TYPE>;
    const int elem = TYPE == K_BF16 ? 2 : 1, chunks = D * elem / 16;
    const int row_bytes = TYPE == K_BF16 ? s::ROW * 2 : D;
    int lane = threadIdx.x % 32, pos = tile * KEYS + lane % KEYS, hd = a.kv.head_dim;
    bool has = pos >= r.lowest && pos < r.len;
    size_t mine = has ? key_elem(a.kv, pages, pos, r.kv_head) : 0, values = value_elems(a.kv);

#pragma unroll
    for (int i = 0; i < KEYS * chunks / 32; i++) {
        int row = (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks, d = chunk * 16 / elem;
        size_t at = __shfl_sync(~0U, mine, row);
        bool is_key = __shfl_sync(~0U, has, row);
        const char *from = (const char *)a.kv.pages + (at + d) * elem;
        char *to = stage + row * row_bytes + chunk * 16;

        if (hd * elem % 16 == 0) {
            portable_copy16(to, from, is_key && d < hd);
            portable_copy16(to + s::STAGE / 2, from + values * elem, is_key && d < hd);
        } else {
            single_copy_odd<TYPE>(to, from, d, hd, is_key);
            single_copy_odd<TYPE>(to + s::STAGE / 2, from + values * elem, d, hd, is_key);
        }
    }
}

/* The queries, by the CTA; zeros in rows without a head. */
template <int D, int TYPE>
static __device__ inline void single_copy_queries(bf16 *queries, const single_args &a,
                                                  const single_row &r)
{
    using s = single_shape<D, TYPE>;
    int hd = a.kv.head_dim;

    for (int i = threadIdx.x; i < ROWS * D / 8; i += s::THREADS) {
        int row = i / (D / 8), d = i % (D / 8) * 8;
        bool has = row < r.n_heads;
        size_t head = (size_t)r.token * a.qkv_heads + r.first_head + (has ? row : 0);

        single_copy_odd<K_BF16>(queries + row * s::ROW + d, a.qkv + head * hd + d, d, hd, has);
    }
}

/* Keys or values of a stage as a tile of bfloat16. */
template <int D, int TYPE> static __device__ inline const bf16 *single_tile(char *wide, char *from)
{
    using s = single_shape<D, TYPE>;

    if (TYPE == K_BF16)
        return (const bf16 *)from;
    __syncwarp(); /* the tile before has been read */
    for (int i = threadIdx.x % 32; i < KEYS * D / 8; i += 32)
        *(uint4 *)(wide + i / (D / 8) * s::ROW * 2 + i % (D / 8) * 16) =
            widen_eight(*(const uint2 *)(from + i * 8));
    __syncwarp();
    return (const bf16 *)wide;
}

/* --- a tile ----------------------------------------------------------------------------------- */

/* score [16 heads][KEYS] = q . k */
template <int D>
static __device__ inline void single_score(float (&score)[2][4], const bf16 *q, const bf16 *k)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 8; i++)
        score[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];

        portable_load_matrices(a, q + lane % 16 * (D + PAD) + d + lane / 16 * 8);
        portable_load_matrices(b,
                               k + (lane % 8 + lane / 16 * 8) * (D + PAD) + d + lane / 8 % 2 * 8);
        portable_multiply<false>(score[0], a[0], a[1], a[2], a[3], b[0], b[1]);
        portable_multiply<false>(score[1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
}

/* Scores become weights; earlier sums shrink by the change of the maximum. base: position of the
 * tile's first key. */
template <int D>
static __device__ inline void single_soften(single_state<D> &st, float (&score)[2][4],
                                            const single_row &r, float scale, float cap, int base)
{
    int col = base + threadIdx.x % 4 * 2;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = st.top[row], shrink;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &s = score[i / 2][2 * row + i % 2];
            int pos = col + i / 2 * 8 + i % 2;

            s = pos >= r.lowest && pos < r.len ? soft_cap(s * scale, cap) : -INFINITY;
            top = fmaxf(top, s);
        }
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0U, top, 2));
        shrink = exp2_fast(st.top[row] - top);
        st.sum[row] *= shrink;
        if (__any_sync(~0U, top != st.top[row])) {
#pragma unroll
            for (int j = 0; j < D / 8; j++) {
                st.acc[j][2 * row] *= shrink;
                st.acc[j][2 * row + 1] *= shrink;
            }
        }
        st.top[row] = top;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &s = score[i / 2][2 * row + i % 2];

            s = exp2_fast(s - top);
            st.sum[row] += s;
        }
    }
}

/* O += P . V; the accumulators of scores have the layout of a left operand. */
template <int D>
static __device__ inline void single_add_values(single_state<D> &st, const float (&weight)[2][4],
                                                const bf16 *v)
{
    int lane = threadIdx.x % 32;
    uint32_t a[4] = {pack_bf16(weight[0][0], weight[0][1]), pack_bf16(weight[0][2], weight[0][3]),
                     pack_bf16(weight[1][0], weight[1][1]), pack_bf16(weight[1][2], weight[1][3])};

#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t b[4];

        portable_load_matrices_turned(b, v + lane % 16 * (D + PAD) + d + lane / 16 * 8);
        portable_multiply<false>(st.acc[d / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        portable_multiply<false>(st.acc[d / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
}

/* A warp's share of the row. */
template <int D, int TYPE>
static __device__ inline void single_walk(single_state<D> &st, char *memory, const bf16 *queries,
                                          const single_args &a, const single_row &r)
{
    using s = single_shape<D, TYPE>;
    int n_workers = r.n_splits * s::WARPS, worker = blockIdx.x * s::WARPS + threadIdx.x / 32;
    int tile = r.first_tile + (int)((int64_t)worker * r.n_tiles / n_workers);
    int end = r.first_tile + (int)((int64_t)(worker + 1) * r.n_tiles / n_workers);
    const int32_t *pages = a.t.page_ids + (size_t)r.seq * a.t.pages_max;
    char *wide = memory + STAGES * s::STAGE;

    if (tile < end)
        single_copy_tile<D, TYPE>(memory, a, r, pages, tile);
    portable_end_group();
#pragma unroll 1
    for (int stage = 0; tile < end; tile++, stage ^= 1) {
        char *now = memory + stage * s::STAGE;
        float score[2][4];

        if (tile + 1 < end)
            single_copy_tile<D, TYPE>(memory + (stage ^ 1) * s::STAGE, a, r, pages, tile + 1);
        portable_end_group();
        portable_wait_groups<1>();
        __syncwarp();
        single_score<D>(score, queries, single_tile<D, TYPE>(wide, now));
        single_soften<D>(st, score, r, a.scale, a.cap, tile * KEYS);
        single_add_values<D>(st, score, single_tile<D, TYPE>(wide, now + s::STAGE / 2));
        __syncwarp(); /* the next copy writes over this stage */
    }
    portable_wait_groups<0>();
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Partial sums of some heads: [heads][width], then tops, then sums. */
struct single_part {
    float *acc, *top, *sum;
    int width;
};

static __device__ inline single_part single_part_at(float *memory, int i, int heads, int width)
{
    float *own = memory + (size_t)i * heads * (width + 2);

    return {own, own + heads * width, own + heads * (width + 1), width};
}

template <int D>
static __device__ inline void single_store(const single_part &p, const single_state<D> &st)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int row = 0; row < 2; row++) {
        int head = lane / 4 + 8 * row;
        float sum = st.sum[row];

        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (lane % 4 == 0) {
            p.top[head] = st.top[row];
            p.sum[head] = sum;
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *(float2 *)(p.acc + head * p.width + j * 8 + lane % 4 * 2) =
                make_float2(st.acc[j][2 * row], st.acc[j][2 * row + 1]);
    }
}

/* Two neighbouring elements of a head, the sum of n parts, in their order. */
struct single_sum {
    float low, high, top, sum;
};

static __device__ inline single_sum single_add_parts(float *memory, int n, int heads, int width,
                                                     int head, int d)
{
    single_sum all = {0.0f, 0.0f, NOTHING, 0.0f};

#pragma unroll 4
    for (int i = 0; i < n; i++)
        all.top = fmaxf(all.top, single_part_at(memory, i, heads, width).top[head]);
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        const single_part p = single_part_at(memory, i, heads, width);
        float weight = exp2_fast(p.top[head] - all.top);
        float2 two = *(const float2 *)(p.acc + head * width + d);

        all.low = __fmaf_rn(two.x, weight, all.low);
        all.high = __fmaf_rn(two.y, weight, all.high);
        all.sum = __fmaf_rn(p.sum[head], weight, all.sum);
    }
    return all;
}

static __device__ inline void single_write(const single_args &a, const single_row &r,
                                           const single_sum &x, int head, int d)
{
    float sum = x.sum, scale;

    if (a.kv.sinks != NULL)
        sum += exp2_fast(a.kv.sinks[r.first_head + head] * LOG2_E - x.top);
    scale = a.out_scale / sum;
    store_x_two(a.out, ((size_t)r.token * a.n_heads + r.first_head + head) * a.kv.head_dim + d,
                x.low * scale, x.high * scale, a.is_half);
}

/* Is this the last CTA of its row? Then it sees the parts of all. */
static __device__ inline bool single_is_last(const single_args &a, const single_row &r)
{
    __shared__ int before;
    int32_t *counter = a.counters + (size_t)blockIdx.z * gridDim.y + blockIdx.y;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(counter, 1);
        if (before == r.n_splits - 1)
            *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return before == r.n_splits - 1;
}

/* The sums of the CTA's warps, which are in shared memory, become output or a part of the row. */
template <int D, int TYPE>
static __device__ inline void single_finish(float *shared, const single_args &a,
                                            const single_row &r)
{
    using s = single_shape<D, TYPE>;
    int hd = a.kv.head_dim, pairs = hd / 2, heads = min(a.group, ROWS);
    size_t row = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    float *parts = a.parts + row * a.n_splits * heads * (hd + 2);

    for (int i = threadIdx.x; i < r.n_heads * pairs; i += s::THREADS) {
        int head = i / pairs, d = i % pairs * 2;
        single_sum x = single_add_parts(shared, s::WARPS, ROWS, D, head, d);
        single_part p = single_part_at(parts, blockIdx.x, heads, hd);

        if (r.n_splits == 1) {
            single_write(a, r, x, head, d);
            continue;
        }
        *(float2 *)(p.acc + head * hd + d) = make_float2(x.low, x.high);
        if (d == 0) {
            p.top[head] = x.top;
            p.sum[head] = x.sum;
        }
    }
    if (r.n_splits == 1 || !single_is_last(a, r))
        return;
    for (int i = threadIdx.x; i < r.n_heads * pairs; i += s::THREADS) {
        int head = i / pairs, d = i % pairs * 2;

        single_write(a, r, single_add_parts(parts, r.n_splits, heads, hd, head, d), head, d);
    }
}

/* Grid: splits, KV heads and blocks of their query heads, sequences. */
template <int D, int TYPE>
static __global__ void __launch_bounds__(single_shape<D, TYPE>::THREADS)
    attn_single_kernel(const __grid_constant__ single_args a)
{
    using s = single_shape<D, TYPE>;
    extern __shared__ __align__(16) char shared[];
    char *memory = shared + s::QUERIES;
    int warp = threadIdx.x / 32;
    single_row r;
    single_state<D> st;

    if (!single_find_row(r, a, s::WARPS))
        return;
    single_copy_queries<D, TYPE>((bf16 *)shared, a, r);
    for (int i = 0; i < D / 2; i++)
        st.acc[i / 4][i % 4] = 0.0f;
    st.top[0] = st.top[1] = NOTHING;
    st.sum[0] = st.sum[1] = 0.0f;
    __syncthreads();
    single_walk<D, TYPE>(st, memory + warp * s::WARP, (const bf16 *)shared, a, r);
    __syncthreads(); /* parts lie over the stages */
    single_store<D>(single_part_at((float *)memory, warp, ROWS, D), st);
    __syncthreads();
    single_finish<D, TYPE>((float *)memory, a, r);
}

/* --- launching -------------------------------------------------------------------------------- */

/* CTAs of a row: two for each multiprocessor, when there are few rows. */
static int single_splits(int n_rows)
{
    int gpu = 0, n_sms = 0, n;

    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, gpu) != cudaSuccess)
        return 1;
    n = 2 * n_sms / n_rows;
    n = n > SPLITS_MAX ? SPLITS_MAX : n;
    return n < 1 ? 1 : n;
}

template <int D, int TYPE>
static int single_launch(const single_args &a, int n_decodes, k_stream stream)
{
    using s = single_shape<D, TYPE>;
    dim3 grid(a.n_splits, a.kv.n_kv_heads * a.blocks, n_decodes);

    if (cudaFuncSetAttribute(attn_single_kernel<D, TYPE>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, s::SHARED) != cudaSuccess)
        return -1;
    return K_LAUNCH((attn_single_kernel<D, TYPE>), grid, s::THREADS, s::SHARED, stream, a);
}

template <int TYPE> static int single_choose_d(const single_args &a, int n_decodes, k_stream stream)
{
    if (a.kv.head_dim <= 64)
        return single_launch<64, TYPE>(a, n_decodes, stream);
    if (a.kv.head_dim <= 128)
        return single_launch<128, TYPE>(a, n_decodes, stream);
    if (a.kv.head_dim <= 256)
        return single_launch<256, TYPE>(a, n_decodes, stream);
    return -1;
}

static int single_blocks(int group)
{
    return (group + ROWS - 1) / ROWS;
}

/* There is nothing to plan; the counters of rows with several CTAs begin at 0. */
int k_attn_schedule_portable(const struct k_attn_plan *plan, const struct k_kv *kv,
                             const struct k_tokens *t, int n_heads, k_stream stream)
{
    int n_rows = plan->n_decodes * kv->n_kv_heads * single_blocks(n_heads / kv->n_kv_heads);

    (void)t;
    if (n_rows == 0 || single_splits(n_rows) == 1)
        return 0;
    return cudaMemsetAsync(plan->schedule, 0, (size_t)n_rows * sizeof(int32_t), stream) ==
                   cudaSuccess
               ? 0
               : -1;
}

int k_attn_decode_portable(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv,
                           const struct k_tokens *t, const struct k_attn_plan *plan, int n_heads,
                           float scale, k_stream stream)
{
    single_args a = {};

    if (plan->rotary != NULL)
        return -1;
    a.out = out;
    a.qkv = qkv;
    a.kv = *kv;
    a.t = *t;
    a.decode_seqs = plan->decode_seqs;
    a.counters = (int32_t *)plan->schedule;
    a.parts = (float *)plan->work;
    a.n_heads = n_heads;
    a.qkv_heads = k_qkv_heads(kv, n_heads);
    a.group = n_heads / kv->n_kv_heads;
    a.blocks = single_blocks(a.group);
    a.n_splits = single_splits(plan->n_decodes * kv->n_kv_heads * a.blocks);
    a.is_half = plan->out_is_half;
    a.scale = scale * LOG2_E;
    a.cap = kv->cap * LOG2_E;
    a.out_scale = 1.0f;
    if (kv->type == K_BF16)
        return single_choose_d<K_BF16>(a, plan->n_decodes, stream);
    a.scale *= kv->k_scale;
    a.out_scale = kv->v_scale;
    return single_choose_d<K_E4M3>(a, plan->n_decodes, stream);
}
