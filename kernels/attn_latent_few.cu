/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of few decodes over latents of 512 + 64 (latent.h), bound by latency.
 *
 *   keys --cp.async--> two stages [32][576] --+-- scores, 8 warps: 8 keys, half of the columns
 *   queries [32 heads][576] ------------------+        |  shared memory
 *                                                 softmax, 8 warps: 4 heads
 *                                                      |  shared memory
 *                                             +-- sums [32][512], 8 warps: 64 columns
 *                                             `-> a part in work memory
 *
 * Split: a block has a decode, up to 32 heads, and a run of the decode's tiles of 32 keys. The
 * number of runs depends on the decode's length and on the number of decodes. The kernel of values
 * merges the runs (latent_products.cu), so that no launch of its own does.
 *
 * Early: earlier steps' latents are there, and this step's, too, where another kernel is between
 * the one that wrote it and this one: kernels wait before they let the next one begin. So the first
 * two tiles are requested before the kernel in front has ended; the last key after that, if that
 * kernel writes it (sm90_latent_front.cu). A plan without `overlap` waits first.
 *
 * Keys of e4m3 come as they are; the thread that has copied some widens them, for a tile at a time.
 *
 * Bits: of a decode they depend on its keys and on the number of decodes. */
#include "kernels/attn_chunk.cuh"
#include "kernels/e4m3.cuh"
#include "kernels/latent.cuh"
#include "kernels/latent_few.cuh"

#define ROW        (K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX)
#define VALUES     K_LATENT_RANK_MAX
#define KEYS       LATENT_FEW_KEYS
#define HEADS      LATENT_FEW_HEADS
#define WARPS      8
#define THREADS    (WARPS * 32)
#define STAGES     2
#define ROOM       (ROW + 8)  /* elements of a row in shared memory: eight rows meet all banks */
#define RAW_ROOM   (ROW + 16) /* bytes of a row of e4m3 */
#define WEIGHTS    (KEYS + 8) /* likewise */
#define SCORES     (KEYS + 4)
#define TOKENS_MAX 16 /* decodes times blocks of heads */
#define NOTHING    (-1e30f)
#define LOG2_E     1.44269504f

struct few_args {
    const k_bf16 *q;
    struct k_kv kv;
    struct k_tokens t;
    const int32_t *decode_seqs;
    latent_few_part *parts;
    int n_heads, most;
    float scale;              /* times log2(e), and the scale of e4m3 */
    float k_scale, out_scale; /* of e4m3, of largest scores and of sums in parts */
    bool overlaps;
    bool is_fresh; /* the last key is of the kernel in front */
};

/* raw: keys of e4m3, of which a tile at a time is widened to the first stage; else not there. */
struct few_shared {
    bf16 keys[STAGES][KEYS * ROOM];
    bf16 queries[HEADS * ROOM];
    float scores[2][HEADS][SCORES]; /* of each half of the columns */
    bf16 weights[HEADS * WEIGHTS];
    float shrink[HEADS];
    unsigned char raw[STAGES][KEYS * RAW_ROOM];
};

/* A block's work, the same in all threads. */
struct few_job {
    const int32_t *pages;
    int token, len;
    int tile, last; /* tiles */
    int head, n_heads;
};

static __device__ inline few_job few_job_of(const few_args &a)
{
    int seq = a.decode_seqs != NULL ? a.decode_seqs[blockIdx.z] : (int)blockIdx.z;
    few_job job = {};
    latent_few_split split;

    job.pages = a.t.page_ids + (size_t)seq * a.t.pages_max;
    job.token = a.t.seq_start[seq];
    job.len = a.t.kv_len[seq];
    split = latent_few_split_of(job.len, a.most);
    job.tile = (int)blockIdx.x * split.tiles;
    job.last = (int)blockIdx.x < split.n ? min(job.tile + split.tiles, (job.len + KEYS - 1) / KEYS)
                                         : job.tile;
    job.head = (int)blockIdx.y * HEADS;
    job.n_heads = min(HEADS, a.n_heads - job.head);
    return job;
}

/* --- copies --------------------------------------------------------------------------------- */

/* Bytes of a row in shared memory, and elements of 16 bytes. */
template <bool E4M3> struct few_form {
    static const int ROOM_BYTES = E4M3 ? RAW_ROOM : ROOM * 2;
    static const int ELEMS = E4M3 ? 16 : 8;
    static const int CHUNKS = ROW / ELEMS;
};

/* A stage of tiles as they are in memory. */
template <bool E4M3> static __device__ inline char *few_stage(few_shared &s, int stage)
{
    return E4M3 ? (char *)s.raw[stage] : (char *)s.keys[stage];
}

/* Request a key by a warp, or make it zero. */
template <bool E4M3>
static __device__ inline void few_request_key(char *to, const few_args &a, const few_job &job,
                                              int pos)
{
    size_t elem = key_elem(a.kv, job.pages, min(pos, job.len - 1), 0);
    const char *from = (const char *)a.kv.pages + elem * (E4M3 ? 1 : 2);

#pragma unroll
    for (int i = 0; i < (few_form<E4M3>::CHUNKS + 31) / 32; i++) {
        int chunk = i * 32 + (int)threadIdx.x % 32;

        if (chunk >= few_form<E4M3>::CHUNKS)
            break;
        if (pos < job.len)
            chunk_copy16((bf16 *)(to + chunk * 16), (const k_bf16 *)(from + chunk * 16));
        else
            *(uint4 *)(to + chunk * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* Request a tile of keys, if there is one, but not key `but`; keys behind the last one are zeros.
 * The group of copies is closed in any case. A warp has four keys. */
template <bool E4M3>
static __device__ inline void few_request_keys(char *to, const few_args &a, const few_job &job,
                                               int tile, int but)
{
    if (tile < job.last) {
#pragma unroll
        for (int i = 0; i < KEYS / WARPS; i++) {
            int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i, pos = tile * KEYS + row;

            if (pos != but)
                few_request_key<E4M3>(to + row * few_form<E4M3>::ROOM_BYTES, a, job, pos);
        }
    }
    chunk_end_group();
}

/* Request a key of the first two tiles, if it is there. */
template <bool E4M3>
static __device__ inline void few_request_last(few_shared &s, const few_args &a, const few_job &job,
                                               int pos)
{
    int tile = pos / KEYS, row = pos % KEYS;

    if (tile < job.last && tile - job.tile < STAGES && tile >= job.tile &&
        (int)threadIdx.x / 32 == row / (KEYS / WARPS))
        few_request_key<E4M3>(
            few_stage<E4M3>(s, tile - job.tile) + row * few_form<E4M3>::ROOM_BYTES, a, job, pos);
}

/* A tile of e4m3 as bf16: a thread widens what it has copied, which has come. */
static __device__ inline void few_widen(bf16 *keys, const unsigned char *raw)
{
#pragma unroll 1
    for (int i = 0; i < KEYS / WARPS; i++) {
        int row = (int)threadIdx.x / 32 * (KEYS / WARPS) + i;

        for (int chunk = threadIdx.x % 32; chunk < few_form<true>::CHUNKS; chunk += 32) {
            uint4 x = *(const uint4 *)(raw + row * RAW_ROOM + chunk * 16);
            uint4 *to = (uint4 *)(keys + row * ROOM + chunk * 16);

            to[0] = widen_eight(make_uint2(x.x, x.y));
            to[1] = widen_eight(make_uint2(x.z, x.w));
        }
    }
}

static __device__ inline void few_request_queries(bf16 *to, const few_args &a, const few_job &job)
{
    const k_bf16 *from = a.q + ((size_t)job.token * a.n_heads + job.head) * ROW;

    for (int i = threadIdx.x; i < job.n_heads * (ROW / 8); i += THREADS)
        chunk_copy16(to + i / (ROW / 8) * ROOM + i % (ROW / 8) * 8, from + (size_t)i * 8);
    chunk_end_group();
}

/* --- a tile --------------------------------------------------------------------------------- */

/* A warp's share of the scores: 8 keys of all heads, half of the columns. */
static __device__ inline void few_score(few_shared &s, const bf16 *keys)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int key = warp % 4 * 8, half = warp / 4, first = half * (ROW / 2);
    const bf16 *k = keys + (key + lane % 8) * ROOM + first + lane / 8 * 8;
    const bf16 *q = s.queries + lane % 16 * ROOM + first + lane / 16 * 8;
    float acc[2][4] = {};

#pragma unroll
    for (int at = 0; at < ROW / 2; at += 32) {
        uint32_t right[4];

        chunk_load_matrices(right, k + at);
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t left[4];

                chunk_load_matrices(left, q + m * 16 * ROOM + at + step * 16);
                chunk_multiply(acc[m], left, right[2 * step], right[2 * step + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *to = &s.scores[half][i * 8 + lane / 4][key + lane % 4 * 2];

        to[0] = acc[i / 2][i % 2 * 2];
        to[1] = acc[i / 2][i % 2 * 2 + 1];
    }
}

/* A warp's four heads: the largest score so far and the sum of weights, the same in all lanes. */
struct few_rows {
    float top[4], sum[4];
};

/* Scores become weights; a lane has a key. */
static __device__ inline void few_soften(few_shared &s, few_rows &r, float scale, bool is_there)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = warp * 4 + i;
        float score = is_there ? s.scores[0][row][lane] + s.scores[1][row][lane] : -INFINITY;
        float top = score, sum, shrink;

        for (int apart = 16; apart > 0; apart /= 2)
            top = fmaxf(top, __shfl_xor_sync(~0U, top, apart));
        top = fmaxf(top, r.top[i]);
        score = exp2_fast((score - top) * scale);
        shrink = exp2_fast((r.top[i] - top) * scale);
        sum = score;
        for (int apart = 16; apart > 0; apart /= 2)
            sum += __shfl_xor_sync(~0U, sum, apart);
        r.top[i] = top;
        r.sum[i] = r.sum[i] * shrink + sum;
        store_bf16((k_bf16 *)s.weights + row * WEIGHTS + lane, score);
        if (lane == 0)
            s.shrink[row] = shrink;
    }
}

/* acc [32 heads][64 columns of the warp] = acc * shrink + weights * values. */
static __device__ inline void few_add_values(few_shared &s, float (&acc)[2][8][4], const bf16 *keys)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bf16 *v = keys + (lane % 8 + lane / 8 % 2 * 8) * ROOM + warp * 64 + lane / 16 * 8;
    const bf16 *w = s.weights + lane % 16 * WEIGHTS + lane / 16 * 8;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float shrink = s.shrink[i * 8 + lane / 4];

#pragma unroll
        for (int j = 0; j < 8; j++)
            acc[i / 2][j][i % 2 * 2] *= shrink, acc[i / 2][j][i % 2 * 2 + 1] *= shrink;
    }
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        uint32_t left[2][4];

        chunk_load_matrices(left[0], w + key);
        chunk_load_matrices(left[1], w + 16 * WEIGHTS + key);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t right[4];

            chunk_load_matrices_turned(right, v + key * ROOM + j * 8);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                chunk_multiply(acc[m][j], left[m], right[0], right[1]);
                chunk_multiply(acc[m][j + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* --- the kernel ----------------------------------------------------------------------------- */

static __device__ inline void few_write(const few_args &a, const few_job &job,
                                        const float (&acc)[2][8][4], const few_rows &r)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    latent_few_part *part =
        a.parts + latent_few_first(job.token, blockIdx.y, gridDim.y, a.most) + blockIdx.x;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = i * 8 + lane / 4;

        if (row >= job.n_heads)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++)
            *(float2 *)&part->acc[row][warp * 64 + j * 8 + lane % 4 * 2] = make_float2(
                acc[i / 2][j][i % 2 * 2] * a.out_scale, acc[i / 2][j][i % 2 * 2 + 1] * a.out_scale);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (lane == 0)
            part->top[warp * 4 + i] = r.top[i] * a.k_scale, part->sum[warp * 4 + i] = r.sum[i];
    }
}

template <bool E4M3>
static __global__ void __launch_bounds__(THREADS, 2) attn_latent_few_kernel(const few_args a)
{
    extern __shared__ __align__(16) char shared[];
    few_shared &s = *(few_shared *)shared;
    float acc[2][8][4] = {};
    few_rows r;
    few_job job;
    int fresh;

    if (!a.overlaps)
        wait_for_previous();
    job = few_job_of(a);
    fresh = a.is_fresh ? job.len - 1 : -1;
    few_request_keys<E4M3>(few_stage<E4M3>(s, 0), a, job, job.tile, fresh);
    few_request_keys<E4M3>(few_stage<E4M3>(s, 1), a, job, job.tile + 1, fresh);
    if (a.overlaps)
        wait_for_previous();
    let_next_begin();
    if (job.tile >= job.last)
        return;
    if (fresh >= 0)
        few_request_last<E4M3>(s, a, job, fresh);
    few_request_queries(s.queries, a, job);
#pragma unroll
    for (int i = 0; i < 4; i++)
        r.top[i] = NOTHING, r.sum[i] = 0.0f;
    chunk_wait_groups<0>();
    if (!E4M3)
        __syncthreads();
#pragma unroll 1
    for (int tile = job.tile; tile < job.last; tile++) {
        int stage = (tile - job.tile) % STAGES;
        bf16 *keys = s.keys[E4M3 ? 0 : stage];

        if (E4M3) {
            few_widen(keys, s.raw[stage]);
            __syncthreads();
        }
        few_score(s, keys);
        __syncthreads();
        few_soften(s, r, a.scale, tile * KEYS + (int)threadIdx.x % 32 < job.len);
        __syncthreads();
        few_add_values(s, acc, keys);
        if (tile + 1 == job.last)
            break;
        chunk_wait_groups<0>(); /* the next tile */
        __syncthreads();
        few_request_keys<E4M3>(few_stage<E4M3>(s, stage), a, job, tile + 2, -1);
    }
    few_write(a, job, acc, r);
}

/* --- the launch ----------------------------------------------------------------------------- */

int k_latent_is_few(const struct k_attn_plan *plan, const struct k_kv *kv,
                    const struct k_latent_shape *s, int n_tokens)
{
    size_t elems = kv->type == K_E4M3 ? 16 : 8; /* of a copy */

    return !k_is_portable() && plan->n_tiles == 0 && plan->n_decodes == n_tokens &&
           plan->n_decodes >= 1 && plan->n_decodes * latent_few_blocks(s->n_heads) <= TOKENS_MAX &&
           (kv->type == K_BF16 || kv->type == K_E4M3) && kv->head_dim == ROW &&
           kv->value_dim == VALUES && kv->page_elems % elems == 0 && kv->layer_elems % elems == 0 &&
           latent_is_even(s);
}

int k_latent_attend(const k_bf16 *q, const struct k_kv *kv, const struct k_tokens *t,
                    const struct k_attn_plan *plan, int n_heads, float scale, bool is_fresh,
                    k_stream stream)
{
    int most = latent_few_parts(plan->n_decodes, n_heads);
    bool is_e4m3 = kv->type == K_E4M3;
    dim3 grid(most, latent_few_blocks(n_heads), plan->n_decodes);
    few_args args = {};

    args.q = q;
    args.kv = *kv;
    args.t = *t;
    args.decode_seqs = plan->decode_seqs;
    args.parts = (latent_few_part *)plan->work;
    args.n_heads = n_heads;
    args.most = most;
    args.k_scale = is_e4m3 ? kv->k_scale : 1.0f;
    args.out_scale = is_e4m3 ? kv->v_scale : 1.0f;
    args.scale = scale * LOG2_E * args.k_scale;
    args.overlaps = plan->overlap != 0;
    args.is_fresh = is_fresh;
    if (is_e4m3)
        return LATENT_LAUNCH(attn_latent_few_kernel<true>, grid, THREADS, sizeof(few_shared),
                             stream, args);
    return LATENT_LAUNCH(attn_latent_few_kernel<false>, grid, THREADS, offsetof(few_shared, raw),
                         stream, args);
}
