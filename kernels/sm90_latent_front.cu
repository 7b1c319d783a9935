/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention of few tokens on Hopper, from the layer's first product to absorbed queries, in
 * one launch: bound by latency.
 *
 *   in [q_rank | kv_rank + rope] --norm--> x --q_b--> query of a head --up_k--> absorbed query
 *                                \--norm, rotation--> rows in the pages
 *
 * Split: a cluster of four CTAs has a head. Each has a quarter of the rows of q_b and a quarter of
 * the columns of up_k, both of which it requests before the previous kernel has ended, so that only
 * arithmetic is left then. It norms the latent of queries by itself, multiplies its rows, and sends
 * them to all four (st.async: a barrier in each counts the bytes); then it multiplies its columns.
 * One more cluster writes the rows of keys.
 *
 * Products are mma.m16n8k16 of bfloat16: rows of q_b are rows, tokens are columns; tokens are rows
 * for up_k. e4m3 becomes bfloat16, which is exact; the sums of each 128 columns are multiplied by
 * their scale. Terms are those of latent_products.cu: a lane has eight in a row of each 32.
 *
 * Order of sums: a half of q_rank in blocks of 128, then the halves. It depends on nothing else. */
#include "kernels/attn_chunk.cuh"
#include "kernels/choice.h"
#include "kernels/e4m3.cuh"
#include "kernels/latent_row.cuh"
#include "kernels/product.cuh"

#define RANKS      4
#define WARPS      8
#define THREADS    (WARPS * 32)
#define TOKENS_MAX 8
#define BLOCK      128 /* columns of q_b that share a scale */
#define COLUMNS    (K_LATENT_RANK_MAX / RANKS)
#define UP_ROOM    (COLUMNS + 8) /* elements of a row of up_k in shared memory */
#define NORMS      8             /* of 16 bytes, of a lane: a q_rank of at most 2048 */
#define CTAS       132

struct front_args {
    latent_args a;
    const char *w;       /* q_b */
    const float *scales; /* NULL: w is bfloat16 */
    int group_rows, scale_cols, row_bytes;
};

/* Offsets in shared memory. */
struct front_places {
    int up, x, sums, queries, end; /* w is at 0 */
    int w_room;                    /* bytes of a row of w */
    int x_room, q_room;            /* elements */
};

/* Rows of which eight meet all banks, whether a lane reads 8 bytes of each or 16. */
static __host__ __device__ inline front_places front_places_of(const k_latent_shape &s,
                                                               int row_bytes, int n)
{
    front_places p = {};
    int rows = k_latent_query(&s) / RANKS;

    p.w_room = row_bytes + (row_bytes == s.q_rank ? 32 : 64);
    p.x_room = s.q_rank + 32;
    p.q_room = k_latent_query(&s) + 8;
    p.up = rows * p.w_room;
    p.x = p.up + s.nope_dim * UP_ROOM * 2;
    p.sums = p.x + n * p.x_room * 2;
    p.queries = p.sums + 2 * rows * TOKENS_MAX * 4;
    p.end = p.queries + n * p.q_room * 2;
    return p;
}

/* --- requests ------------------------------------------------------------------------------- */

/* Request n rows of `width` bytes, `stride` apart; in shared memory `room` apart. */
static __device__ inline void front_request(char *to, int room, const char *from, size_t stride,
                                            int n, int width)
{
    int chunks = width / 16;

    for (int i = threadIdx.x; i < n * chunks; i += THREADS)
        chunk_copy16((bf16 *)(to + i / chunks * room + i % chunks * 16),
                     (const k_bf16 *)(from + i / chunks * stride + i % chunks * 16));
    chunk_end_group();
}

static __device__ inline void front_request_weights(char *shared, const front_args &f,
                                                    const front_places &p, int head, int rank)
{
    const k_latent_shape &s = f.a.l.shape;
    int rows = k_latent_query(&s) / RANKS;

    front_request(shared, p.w_room,
                  f.w + ((size_t)head * k_latent_query(&s) + (size_t)rank * rows) * f.row_bytes,
                  f.row_bytes, rows, f.row_bytes);
    front_request(shared + p.up, UP_ROOM * 2,
                  (const char *)((const k_bf16 *)f.a.l.up +
                                 (size_t)head * (s.nope_dim + s.v_dim) * s.kv_rank +
                                 rank * COLUMNS),
                  (size_t)s.kv_rank * 2, s.nope_dim, COLUMNS * 2);
}

/* --- the norm of latents of queries --------------------------------------------------------- */

/* A lane's weights of the norm: of each 256 elements eight. */
struct front_norm {
    uint4 weights[NORMS];
};

static __device__ inline front_norm front_norm_of(const front_args &f)
{
    front_norm norm;

#pragma unroll
    for (int i = 0; i < NORMS; i++) {
        int at = (i * 32 + threadIdx.x % 32) * 8;

        norm.weights[i] = at < f.a.l.shape.q_rank
                              ? *(const uint4 *)((const k_bf16 *)f.a.l.q_norm + at)
                              : make_uint4(0, 0, 0, 0);
    }
    return norm;
}

static __device__ inline float front_square(uint32_t two)
{
    return __fmaf_rn(low_half(two), low_half(two), high_half(two) * high_half(two));
}

static __device__ inline uint32_t front_normed(uint32_t two, uint32_t weights, float inverse)
{
    return pack_bf16(normed(low_half(two), inverse, low_half(weights)),
                     normed(high_half(two), inverse, high_half(weights)));
}

/* A token's latent, by a warp. */
static __device__ inline void front_norm_token(bf16 *to, const front_args &f,
                                               const front_norm &norm, int token)
{
    const k_latent_shape &s = f.a.l.shape;
    const k_bf16 *from = f.a.in + (size_t)token * k_latent_in(&s);
    uint4 x[NORMS];
    float square = 0.0f, inverse;

#pragma unroll
    for (int i = 0; i < NORMS; i++) {
        int at = (i * 32 + threadIdx.x % 32) * 8;

        x[i] = at < s.q_rank ? *(const uint4 *)(from + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < NORMS; i++)
        square += (front_square(x[i].x) + front_square(x[i].y)) +
                  (front_square(x[i].z) + front_square(x[i].w));
    for (int apart = 16; apart > 0; apart /= 2)
        square += __shfl_xor_sync(~0U, square, apart);
    inverse = head_inverse(square, 1.0f / s.q_rank, f.a.l.eps);
#pragma unroll
    for (int i = 0; i < NORMS; i++) {
        int at = (i * 32 + threadIdx.x % 32) * 8;
        const uint4 &w = norm.weights[i];

        if (at < s.q_rank)
            *(uint4 *)(to + at) =
                make_uint4(front_normed(x[i].x, w.x, inverse), front_normed(x[i].y, w.y, inverse),
                           front_normed(x[i].z, w.z, inverse), front_normed(x[i].w, w.w, inverse));
    }
}

/* --- q_b ------------------------------------------------------------------------------------ */

/* Eight elements of a row of w, from element k on. */
template <bool E4M3> static __device__ inline uint4 front_weights(const char *row, int k)
{
    if constexpr (E4M3)
        return widen_eight(*(const uint2 *)(row + k));
    else
        return *(const uint4 *)(row + k * 2);
}

/* Sums of 16 rows and a half of the columns by a warp, to [half][rows][TOKENS_MAX]. row: of w, of
 * the CTA's first one. */
template <bool E4M3>
static __device__ inline void front_multiply(char *shared, const front_args &f,
                                             const front_places &p, int row)
{
    const k_latent_shape &s = f.a.l.shape;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int rows = k_latent_query(&s) / RANKS, first = warp % 4 * 16 + g, half = warp / 4;
    int begin = half * (s.q_rank / 2), n = f.a.t.n_tokens;
    const char *low = shared + first * p.w_room, *high = low + 8 * p.w_room;
    const bf16 *x = (const bf16 *)(shared + p.x) + min(g, n - 1) * p.x_room + c * 8;
    const float *scales[2];
    float acc[4] = {}, *to = (float *)(shared + p.sums) + (half * rows + first) * TOKENS_MAX;

    if (warp % 4 * 16 >= rows)
        return;
    if (E4M3) {
        scales[0] = f.scales + (size_t)((row + first) / f.group_rows) * f.scale_cols;
        scales[1] = f.scales + (size_t)((row + first + 8) / f.group_rows) * f.scale_cols;
    }
#pragma unroll 2
    for (int k = begin; k < begin + s.q_rank / 2; k += BLOCK) {
        int block = f.scale_cols > 1 ? k / BLOCK : 0;
        float scale[2] = {1.0f, 1.0f}, part[4] = {};

        if (E4M3)
            scale[0] = __ldg(scales[0] + block), scale[1] = __ldg(scales[1] + block);
#pragma unroll
        for (int i = 0; i < BLOCK; i += 32) {
            uint4 l = front_weights<E4M3>(low, k + i + c * 8),
                  h = front_weights<E4M3>(high, k + i + c * 8), b = *(const uint4 *)(x + k + i);
            const uint32_t front[4] = {l.x, h.x, l.y, h.y}, back[4] = {l.z, h.z, l.w, h.w};

            chunk_multiply(part, front, b.x, b.y);
            chunk_multiply(part, back, b.z, b.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[i] = __fmaf_rn(part[i], scale[i / 2], acc[i]);
    }
    *(float2 *)(to + c * 2) = make_float2(acc[0], acc[1]);
    *(float2 *)(to + 8 * TOKENS_MAX + c * 2) = make_float2(acc[2], acc[3]);
}

static __device__ inline uint32_t front_remote(const void *at, int rank)
{
    uint32_t remote;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_addr(at)), "r"(rank));
    return remote;
}

/* Send the CTA's part of the queries, as bfloat16, to all CTAs of the cluster. */
static __device__ inline void front_send(char *shared, const front_args &f, const front_places &p,
                                         int rank, uint64_t *bar)
{
    int rows = k_latent_query(&f.a.l.shape) / RANKS;
    const float *sums = (const float *)(shared + p.sums);

    for (int i = threadIdx.x; i < rows / 2 * f.a.t.n_tokens; i += THREADS) {
        int token = i / (rows / 2), row = i % (rows / 2) * 2;
        const float *at = sums + row * TOKENS_MAX + token, *other = at + rows * TOKENS_MAX;
        uint32_t two = pack_bf16(at[0] + other[0], at[TOKENS_MAX] + other[TOKENS_MAX]);
        const bf16 *to = (const bf16 *)(shared + p.queries) + token * p.q_room + rank * rows + row;

#pragma unroll
        for (int k = 0; k < RANKS; k++)
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                    front_remote(to, k)),
                "r"(two), "r"(front_remote(bar, k))
                : "memory");
    }
}

/* --- up_k ----------------------------------------------------------------------------------- */

/* The columns of the CTA, 16 of each warp; as latent_queries_few_kernel(). */
static __device__ inline void front_absorb(char *shared, const front_args &f, const front_places &p,
                                           int head, int rank)
{
    const k_latent_shape &s = f.a.l.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, n = f.a.t.n_tokens;
    int own = threadIdx.x / 32 * 16, term = lane % 8 / 2 * 4 + lane % 2 + lane / 8 % 2 * 2;
    const bf16 *up = (const bf16 *)(shared + p.up) + term * UP_ROOM + own + lane / 16 * 8;
    const bf16 *query = (const bf16 *)(shared + p.queries) + min(g, n - 1) * p.q_room + c * 4;
    float acc[2][4] = {};
    k_bf16 *to = (k_bf16 *)f.a.out + ((size_t)g * s.n_heads + head) * k_latent_row(&s) +
                 rank * COLUMNS + own + c * 2;

#pragma unroll 4
    for (int k = 0; k < s.nope_dim; k += 16) {
        uint32_t right[4];
        uint2 low = *(const uint2 *)(query + k);
        const uint32_t left[4] = {low.x, low.x, low.y, low.y}; /* rows 8 .. are not used */

        chunk_load_matrices_turned(right, up + k * UP_ROOM);
        chunk_multiply(acc[0], left, right[0], right[1]);
        chunk_multiply(acc[1], left, right[2], right[3]);
    }
    if (g < n) {
        *(uint32_t *)to = pack_bf16(acc[0][0], acc[0][1]);
        *(uint32_t *)(to + 8) = pack_bf16(acc[1][0], acc[1][1]);
    }
}

/* The ends of the head's queries, turned. */
static __device__ inline void front_turn(const char *shared, const front_args &f,
                                         const front_places &p, int head)
{
    const k_latent_shape &s = f.a.l.shape;
    int half = s.rope_dim / 2;

    for (int i = threadIdx.x; i < f.a.t.n_tokens * half; i += THREADS) {
        int token = i / half;

        latent_turn((k_bf16 *)f.a.out + ((size_t)token * s.n_heads + head) * k_latent_row(&s) +
                        s.kv_rank,
                    (const k_bf16 *)(shared + p.queries) + token * p.q_room + s.nope_dim, f.a,
                    f.a.t.pos[token], i % half);
    }
}

/* --- the kernel ----------------------------------------------------------------------------- */

template <bool E4M3>
static __global__ void __launch_bounds__(THREADS, 1)
    latent_front_kernel(const __grid_constant__ front_args f)
{
    extern __shared__ __align__(16) char shared[];
    __shared__ uint64_t bar;
    const k_latent_shape &s = f.a.l.shape;
    int head = blockIdx.x / RANKS, rank = blockIdx.x % RANKS, n = f.a.t.n_tokens;
    const front_places p = front_places_of(s, f.row_bytes, n);
    front_norm norm;

    if (head == s.n_heads) {
        wait_for_previous();
        let_next_begin();
        for (int token = rank; token < n; token += RANKS) {
            latent_keep_row<THREADS>(f.a, token, (float *)shared);
            __syncthreads();
        }
        return;
    }
    if (threadIdx.x == 0) {
        barrier_init(&bar, 1);
        barrier_init_done();
        barrier_expect(&bar, k_latent_query(&s) * n * 2);
    }
    __syncthreads();
    cluster_arrive_relaxed();
    front_request_weights(shared, f, p, head, rank);
    norm = front_norm_of(f);
    wait_for_previous();
    let_next_begin();
    if ((int)threadIdx.x / 32 < n)
        front_norm_token((bf16 *)(shared + p.x) + threadIdx.x / 32 * p.x_room, f, norm,
                         threadIdx.x / 32);
    chunk_wait_groups<0>();
    __syncthreads();
    front_multiply<E4M3>(shared, f, p,
                         head * k_latent_query(&s) + rank * (k_latent_query(&s) / RANKS));
    __syncthreads();
    cluster_wait(); /* all barriers are there */
    front_send(shared, f, p, rank, &bar);
    barrier_wait_cluster(&bar, 0);
    front_absorb(shared, f, p, head, rank);
    if (rank == RANKS - 1)
        front_turn(shared, f, p, head);
}

/* --- the launch ----------------------------------------------------------------------------- */

static front_args front_args_of(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                                const struct k_matrix *q_b, const struct k_kv *kv,
                                const struct k_tokens *t)
{
    front_args f = {};

    f.a = latent_args_of(out, in, l, t);
    f.a.kv = *kv;
    f.w = (const char *)q_b->data;
    f.row_bytes = q_b->n_in * 2;
    if (k_format_is_plain(&q_b->format))
        return f;
    f.scales = (const float *)q_b->scales;
    f.group_rows = q_b->format.group_rows;
    f.scale_cols = k_format_scale_cols(&q_b->format, q_b->n_in);
    f.row_bytes = q_b->n_in;
    return f;
}

int k_latent_joins_sm90(const struct k_latent_shape *s, const struct k_matrix *q_b, int n)
{
    bool is_plain = k_format_is_plain(&q_b->format);
    const struct k_format by_row = k_format_by_row(K_E4M3);

    return n >= 1 && n <= TOKENS_MAX && q_b->adapters == NULL && s->q_rank % (2 * BLOCK) == 0 &&
           s->q_rank > 0 && s->q_rank <= NORMS * 256 && k_latent_query(s) % (RANKS * 16) == 0 &&
           k_latent_query(s) <= RANKS * 64 && s->kv_rank == K_LATENT_RANK_MAX &&
           latent_is_even(s) && (s->n_heads + 1) * RANKS <= CTAS &&
           (is_plain || k_format_is_same(&q_b->format, &by_row) ||
            k_format_is_in_blocks(&q_b->format, K_E4M3, BLOCK)) &&
           front_places_of(*s, is_plain ? s->q_rank * 2 : s->q_rank, n).end <= 226 * 1024;
}

int k_latent_join_sm90(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                       const struct k_matrix *q_b, const struct k_kv *kv, const struct k_tokens *t,
                       k_stream stream)
{
    const front_args f = front_args_of(out, in, l, q_b, kv, t);
    int bytes = front_places_of(l->shape, f.row_bytes, t->n_tokens).end;
    void (*kernel)(front_args) =
        f.scales != NULL ? latent_front_kernel<true> : latent_front_kernel<false>;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    if ((kv->type != K_BF16 && kv->type != K_E4M3) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
            cudaSuccess)
        return -1;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = RANKS;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = dim3((l->shape.n_heads + 1) * RANKS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, f) == cudaSuccess ? 0 : -1;
}
