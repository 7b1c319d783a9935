/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks: each GPU has a part of the same rows, and all get the sum of the parts.
 *
 * GPUs write into each other's memory through peer pointers. There are two protocols, chosen by
 * size (tests/bench/bench_ranks measures both):
 *
 *   small  Each rank pushes its rows into every peer's inbox: four bytes of data, then four bytes
 *          of the call's number, which are stored together. The receiver polls its own memory until
 *          the number is right. So data needs neither a fence nor a flag of its own, and the
 *          latency is one trip over the link.
 *
 *            rank 0                      rank 1
 *            rows -> {d0,k,d1,k} ======> inbox[from 0]: poll until both are k, add
 *            inbox[from 1]       <====== {d0,k,d1,k} <- rows
 *
 *   large  Each rank adds one slice of the rows: it reads the slice in all ranks' memory, and
 *          writes the sums back to all of them, in place. No other rank reads or writes the slice,
 *          so no copy is needed. The ranks meet before, when all rows are complete, and after, when
 *          all sums have been written: each block signals to the peers' blocks of equal number.
 *
 *            rank 0                      rank 1
 *            a0 = a0 + b0  ------------> b0       reads b0, writes a0 and b0
 *            a1            <------------ b1 = a1 + b1
 *
 *          A link carries 2 (n - 1) / n of the bytes each way.
 *
 * Parts are added in float32 in the order of the ranks, so a repeated sum gives the same bits
 * again, and all ranks have the same bits: of a small sum because all add in this order, of a large
 * one because one rank adds for all.
 *
 * An inbox has two halves, used in turn. A rank that writes a half for call k + 2 has completed
 * call k + 1. For that, each peer's kernel of call k + 1 had to run, and it ran after the peer's
 * kernel of call k had ended. So no rank reads data of call k any more.
 *
 * If a peer does not take part, a rank gives up after WAIT_NS, or as soon as the host reports that
 * a rank has left. It then sets *failed, which the host checks at the end of each step. */
#include "kernels/common.cuh"

#include <algorithm>

#define SMALL_THREADS 256
#define LARGE_THREADS 512
#define LARGE_BLOCKS  128 /* one flag each; all are resident at once (132 multiprocessors) */
/* Bytes of rows times peers: pushed data is twice as long. Beyond it the large protocol is faster;
 * with the residual it does without a kernel for that. */
#define SMALL_MAX          ((size_t)1 << 20)
#define SMALL_RESIDUAL_MAX ((size_t)2048 << 10)
#define AT_ONCE            2 /* groups that a thread has in flight from a rank, */
#define RANKS_AT_ONCE      4 /* and from how many ranks */
#define POLLS              4096
#define WAIT_NS            4000000000ULL

static_assert(K_SUM_BLOCKS_MAX >= LARGE_BLOCKS, "a flag for each block");

/* --- waiting ------------------------------------------------------------------------------ */

static __device__ inline uint64_t ranks_now_ns()
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Counts the polls of one wait; the clock and the host's words are read only every POLLS polls. */
struct patience {
    uint32_t n_polls;
    uint64_t since;
};

static __device__ bool ranks_gives_up(struct patience *p, const struct k_links &links)
{
    if (++p->n_polls % POLLS != 0)
        return false;
    if (p->since == 0)
        p->since = ranks_now_ns();
    if (*(volatile uint32_t *)links.left == 0 && *(volatile uint32_t *)links.failed == 0 &&
        ranks_now_ns() - p->since < WAIT_NS)
        return false;
    *(volatile uint32_t *)links.failed = 1;
    return true;
}

/* The number of this call, from 1. It is equal on all ranks, because they make the same calls. */
static __device__ inline uint64_t ranks_call_number(const struct k_links &links)
{
    return *(volatile uint64_t *)links.calls + 1;
}

/* The last block to end advances the call counter, because all blocks have read it by then. The
 * time of a call is that of its last block. */
static __device__ void ranks_end_call(const struct k_links &links, uint64_t call, uint64_t since_ns)
{
    unsigned long long *ended = (unsigned long long *)links.calls + 1;

    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(ended, 1) == gridDim.x - 1) {
        *ended = 0;
        *(volatile uint64_t *)(links.calls + 2) += ranks_now_ns() - since_ns;
        *(volatile uint64_t *)links.calls = call;
    }
}

/* The call's number as it is stored with data in an inbox. It is never 0, the content before the
 * first call. A half would accept the number of 2^32 calls ago, days earlier, but only where
 * nothing was written in between. */
static __device__ inline uint32_t ranks_mark_of(uint64_t call)
{
    uint32_t mark = (uint32_t)(call >> 1) + 1;

    return mark == 0 ? ~0U : mark;
}

/* --- small -------------------------------------------------------------------------------- */

/* The place of a rank's group of eight elements in an inbox: two times 16 bytes of data and
 * numbers, SECOND apart. The first halves of 32 groups stand together, then their second ones, so
 * that a warp's store is one run of 512 bytes: shorter ones fill a link with headers. */
#define SECOND 32

static __device__ inline uint4 *ranks_inbox_at(const struct k_links &links, int owner, int from,
                                               uint64_t call, size_t group)
{
    size_t half = (call & 1) * links.n + from;

    return (uint4 *)links.inbox[owner] + half * (K_SUM_SMALL_BYTES / 8) +
           group / SECOND * (2 * SECOND) + group % SECOND;
}

static __device__ inline void ranks_push_group(const struct k_links &links, uint64_t call,
                                               size_t group, uint4 v)
{
    uint32_t mark = ranks_mark_of(call);

    for (int peer = 0; peer < links.n; peer++) {
        uint4 *to = ranks_inbox_at(links, peer, links.rank, call, group);

        if (peer == links.rank)
            continue;
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(v.x),
                     "r"(mark), "r"(v.y)
                     : "memory");
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to + SECOND),
                     "r"(v.z), "r"(mark), "r"(v.w)
                     : "memory");
    }
}

static __device__ inline uint4 ranks_load_volatile(const uint4 *from)
{
    uint4 v;

    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

static __device__ inline uint4 ranks_receive_group(const struct k_links &links, int from,
                                                   uint64_t call, size_t group,
                                                   struct patience *patience)
{
    const uint4 *at = ranks_inbox_at(links, links.rank, from, call, group);
    uint32_t mark = ranks_mark_of(call);
    uint4 low, high;

    do {
        low = ranks_load_volatile(at);
        high = ranks_load_volatile(at + SECOND);
    } while ((low.y != mark || low.w != mark || high.y != mark || high.w != mark) &&
             !ranks_gives_up(patience, links));
    return make_uint4(low.x, low.z, high.x, high.z);
}

static __device__ inline void ranks_add_group(float *sum, uint4 v)
{
    sum[0] += low_half(v.x), sum[1] += high_half(v.x), sum[2] += low_half(v.y);
    sum[3] += high_half(v.y), sum[4] += low_half(v.z), sum[5] += high_half(v.z);
    sum[6] += low_half(v.w), sum[7] += high_half(v.w);
}

/* The sum of all ranks' parts of a group; own is this rank's part. */
static __device__ inline void ranks_sum_group(float *sum, const struct k_links &links,
                                              uint64_t call, size_t group, uint4 own,
                                              struct patience *patience)
{
    for (int i = 0; i < 8; i++)
        sum[i] = 0.0f;
    for (int from = 0; from < links.n; from++)
        ranks_add_group(sum, from == links.rank
                                 ? own
                                 : ranks_receive_group(links, from, call, group, patience));
}

/* Eight elements from `at` on, zeros after n. */
static __device__ inline uint4 ranks_load_part(const k_bf16 *rows, size_t at, size_t n)
{
    uint16_t part[8] = {0};
    uint4 v;

    if (at + 8 <= n)
        return *(const uint4 *)(rows + at);
    for (int i = 0; i < 8; i++)
        part[i] = at + i < n ? rows[at + i] : 0;
    v = make_uint4(part[0] | (uint32_t)part[1] << 16, part[2] | (uint32_t)part[3] << 16,
                   part[4] | (uint32_t)part[5] << 16, part[6] | (uint32_t)part[7] << 16);
    return v;
}

static __device__ inline void ranks_store_part(k_bf16 *rows, size_t at, size_t n, const float *v)
{
    if (at + 8 <= n) {
        store_eight(rows + at, v);
        return;
    }
    for (int i = 0; i < 8; i++) {
        if (at + i < n)
            store_bf16(rows + at + i, v[i]);
    }
}

/* All groups are pushed before any is received, so that the trips over the link overlap. */
static __global__ void __launch_bounds__(SMALL_THREADS)
    sum_small_kernel(k_bf16 *rows, size_t n, const __grid_constant__ struct k_links links)
{
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t step = (size_t)gridDim.x * blockDim.x, n_groups = (n + 7) / 8;
    struct patience patience = {0, 0};
    uint64_t call = ranks_call_number(links), since_ns = ranks_now_ns();

    for (size_t g = first; g < n_groups; g += step)
        ranks_push_group(links, call, g, ranks_load_part(rows, g * 8, n));
    for (size_t g = first; g < n_groups; g += step) {
        float sum[8];

        ranks_sum_group(sum, links, call, g, ranks_load_part(rows, g * 8, n), &patience);
        ranks_store_part(rows, g * 8, n, sum);
    }
    ranks_end_call(links, call, since_ns);
}

/* --- small, with the residual and the first half of the next RMS norm ---------------------- */

/* What follows the sum of a row. */
struct residual_end {
    float *residual;
    const k_bf16 *norm;
    void *normed;
    float *sums_out;
    int dim;
    bool is_half;
};

/* Add a group of a row's sums to the residual, and begin the norm; the sum of the squares. */
static __device__ inline float ranks_add_residual(const struct residual_end &e, size_t row, int g,
                                                  float *sum)
{
    size_t at = row * e.dim + (size_t)g * 8;
    float square = 0.0f;

    for (int i = 0; i < 8; i++) {
        float x = e.residual[at + i] + sum[i];

        e.residual[at + i] = x;
        square += x * x;
        sum[i] = x * load_bf16(e.norm + (size_t)g * 8 + i);
    }
    for (int i = 0; i < 8; i += 2)
        store_x_two(e.normed, at + i, sum[i], sum[i + 1], e.is_half);
    return square;
}

/* One block per row, eight elements per thread at a time. dim is a multiple of 16, so that two
 * neighbouring threads have the 16 elements of a part of sums_out; threads are whole warps. */
static __global__ void sum_residual_kernel(const k_bf16 *rows,
                                           const __grid_constant__ struct residual_end e,
                                           const __grid_constant__ struct k_links links)
{
    int n_groups = e.dim / 8;
    size_t row = blockIdx.x, first_group = row * n_groups;
    struct patience patience = {0, 0};
    uint64_t call, since_ns;

    /* The next product may fetch its weights meanwhile, because all blocks of this kernel are
     * resident. */
    let_next_begin();
    wait_for_previous();
    call = ranks_call_number(links);
    since_ns = ranks_now_ns();
    for (int g = threadIdx.x; g < n_groups; g += blockDim.x)
        ranks_push_group(links, call, first_group + g,
                         *(const uint4 *)(rows + (first_group + g) * 8));
    for (int base = 0; base < n_groups; base += blockDim.x) {
        int g = base + threadIdx.x;
        bool is_mine = g < n_groups;
        float square = 0.0f;

        if (is_mine) {
            uint4 own = *(const uint4 *)(rows + (first_group + g) * 8);
            float sum[8];

            ranks_sum_group(sum, links, call, first_group + g, own, &patience);
            square = ranks_add_residual(e, row, g, sum);
        }
        square += __shfl_xor_sync(~0U, square, 1);
        if (is_mine && g % 2 == 0)
            e.sums_out[row * (e.dim / 16) + g / 2] = square;
    }
    ranks_end_call(links, call, since_ns);
}

/* --- large -------------------------------------------------------------------------------- */

/* Signal to all peers that this block is at a phase of the call, and wait for theirs. Writes of the
 * block before the meeting are visible afterwards to the peers' blocks of equal number. */
static __device__ void ranks_meet(const struct k_links &links, uint64_t call, int phase)
{
    size_t at = ((size_t)phase * K_SUM_BLOCKS_MAX + blockIdx.x) * K_RANKS_MAX;

    __syncthreads();
    if ((int)threadIdx.x < links.n && (int)threadIdx.x != links.rank) {
        uint64_t *theirs = links.flags[threadIdx.x] + at + links.rank;
        const uint64_t *mine = links.flags[links.rank] + at + threadIdx.x;
        struct patience patience = {0, 0};
        uint64_t seen;

        __threadfence_system();
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(theirs), "l"(call) : "memory");
        do
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine) : "memory");
        while (seen < call && !ranks_gives_up(&patience, links));
    }
    __syncthreads();
}

/* The rows of all ranks; the entries of other ranks are peer pointers. */
struct all_rows {
    k_bf16 *of[K_RANKS_MAX];
};

/* A thread's groups from base on, zeros from last on: all loads are under way at once, because a
 * link's latency is long. Volatile, since peers' memory must not come from a cache of this GPU. */
static __device__ inline void ranks_load_groups(uint4 *v, const k_bf16 *rows, size_t base,
                                                size_t last)
{
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        size_t g = base + (size_t)i * blockDim.x + threadIdx.x;

        v[i] = g < last ? ranks_load_volatile((const uint4 *)rows + g) : make_uint4(0, 0, 0, 0);
    }
}

/* Add whole groups first .. last - 1 of all ranks' rows, and write the sums to all ranks. */
static __device__ void ranks_sum_slice(const struct all_rows &rows, const struct k_links &links,
                                       size_t first, size_t last)
{
    for (size_t base = first; base < last; base += (size_t)AT_ONCE * blockDim.x) {
        float sum[AT_ONCE][8] = {};

        for (int from = 0; from < links.n; from += RANKS_AT_ONCE) {
            uint4 v[RANKS_AT_ONCE][AT_ONCE];

#pragma unroll
            for (int r = 0; r < RANKS_AT_ONCE; r++) {
                if (from + r < links.n)
                    ranks_load_groups(v[r], rows.of[from + r], base, last);
            }
#pragma unroll
            for (int r = 0; r < RANKS_AT_ONCE; r++) {
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    if (from + r < links.n)
                        ranks_add_group(sum[i], v[r][i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            size_t g = base + (size_t)i * blockDim.x + threadIdx.x;

            for (int to = 0; to < links.n && g < last; to++)
                store_eight(rows.of[to] + g * 8, sum[i]);
        }
    }
}

/* The elements after the last whole group: one thread of the last rank adds them. */
static __device__ void ranks_sum_rest(const struct all_rows &rows, const struct k_links &links,
                                      size_t first, size_t n)
{
    for (size_t i = first; i < n; i++) {
        float sum = 0.0f;

        for (int from = 0; from < links.n; from++)
            sum += low_half(*(volatile k_bf16 *)(rows.of[from] + i));
        for (int to = 0; to < links.n; to++)
            store_bf16(rows.of[to] + i, sum);
    }
}

/* Two blocks fit a multiprocessor, so that two ranks that share a GPU can wait for each other. */
static __global__ void __launch_bounds__(LARGE_THREADS, 2)
    sum_large_kernel(const __grid_constant__ struct all_rows rows, size_t n,
                     const __grid_constant__ struct k_links links)
{
    size_t n_groups = n / 8, first = n_groups * links.rank / links.n;
    size_t n_own = n_groups * (links.rank + 1) / links.n - first;
    uint64_t call = ranks_call_number(links), since_ns = ranks_now_ns();

    ranks_meet(links, call, 0);
    ranks_sum_slice(rows, links, first + n_own * blockIdx.x / gridDim.x,
                    first + n_own * (blockIdx.x + 1) / gridDim.x);
    if (links.rank == links.n - 1 && blockIdx.x == 0 && threadIdx.x == 0)
        ranks_sum_rest(rows, links, n_groups * 8, n);
    ranks_meet(links, call, 1);
    ranks_end_call(links, call, since_ns);
}

/* The same with the residual and the first half of the next RMS norm. A block has a row, of which
 * each rank's block adds a part; when they have met again the whole sum, rounded, is in this rank's
 * own rows. */
static __global__ void __launch_bounds__(LARGE_THREADS, 2)
    sum_residual_large_kernel(const __grid_constant__ struct all_rows rows,
                              const __grid_constant__ struct residual_end e,
                              const __grid_constant__ struct k_links links)
{
    size_t n_groups = e.dim / 8, row = blockIdx.x, first = row * n_groups;
    uint64_t call, since_ns;

    let_next_begin();
    wait_for_previous();
    call = ranks_call_number(links);
    since_ns = ranks_now_ns();
    ranks_meet(links, call, 0);
    ranks_sum_slice(rows, links, first + n_groups * links.rank / links.n,
                    first + n_groups * (links.rank + 1) / links.n);
    ranks_meet(links, call, 1);
    for (int base = 0; base < (int)n_groups; base += LARGE_THREADS) {
        int g = base + threadIdx.x;
        bool is_mine = g < (int)n_groups;
        float square = 0.0f;

        if (is_mine) {
            float sum[8] = {};

            ranks_add_group(sum,
                            ranks_load_volatile((const uint4 *)rows.of[links.rank] + first + g));
            square = ranks_add_residual(e, row, g, sum);
        }
        square += __shfl_xor_sync(~0U, square, 1);
        if (is_mine && g % 2 == 0)
            e.sums_out[row * (e.dim / 16) + g / 2] = square;
    }
    ranks_end_call(links, call, since_ns);
}

/* --- columns ------------------------------------------------------------------------------ */

/* Four elements per thread at a time. */
static __global__ void __launch_bounds__(LARGE_THREADS)
    gather_kernel(float *all, const float *part, int n, int width,
                  const __grid_constant__ struct k_links links)
{
    size_t own = (size_t)width / 4, n_groups = own * n;
    size_t step = (size_t)gridDim.x * blockDim.x;
    uint64_t call = ranks_call_number(links), since_ns = ranks_now_ns();

    for (size_t g = (size_t)blockIdx.x * blockDim.x + threadIdx.x; g < n_groups; g += step) {
        size_t row = g / own, col = g % own;

        ((float4 *)all)[(row * links.n + links.rank) * own + col] = ((const float4 *)part)[g];
    }
    ranks_meet(links, call, 0);
    ranks_end_call(links, call, since_ns);
}

/* --- launchers ---------------------------------------------------------------------------- */

int k_sum_ranks(k_bf16 *const rows[K_RANKS_MAX], size_t n, const struct k_links *links,
                k_stream stream)
{
    struct all_rows all = {};

    if (n * sizeof(k_bf16) * (links->n - 1) <= SMALL_MAX &&
        n * sizeof(k_bf16) <= K_SUM_SMALL_BYTES) {
        size_t blocks = ((n + 7) / 8 + SMALL_THREADS - 1) / SMALL_THREADS;

        return K_LAUNCH(sum_small_kernel, (unsigned)std::min<size_t>(blocks, LARGE_BLOCKS),
                        SMALL_THREADS, 0, stream, rows[links->rank], n, *links);
    }
    for (int r = 0; r < links->n; r++)
        all.of[r] = rows[r];
    return K_LAUNCH(sum_large_kernel, LARGE_BLOCKS, LARGE_THREADS, 0, stream, all, n, *links);
}

/* All ranks launch the same grid, because blocks of equal number meet. */
int k_gather_ranks(float *all, const float *part, int n, int width, const struct k_links *links,
                   k_stream stream)
{
    size_t n_groups = (size_t)n * (size_t)width / 4;
    size_t blocks = (n_groups + LARGE_THREADS - 1) / LARGE_THREADS;

    return K_LAUNCH(gather_kernel, (unsigned)std::min<size_t>(blocks, LARGE_BLOCKS), LARGE_THREADS,
                    0, stream, all, part, n, width, *links);
}

/* Launched while the previous kernel still runs. */
template <class... P, class... A>
static int ranks_launch_early(void (*kernel)(P...), int blocks, int threads, k_stream stream,
                              A... args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = k_is_portable() ? 0 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? 0 : -1;
}

int k_sum_residual(const struct k_product *p, k_bf16 *const rows[K_RANKS_MAX], int n,
                   const struct k_links *links, k_stream stream)
{
    int dim = p->w->n_out, threads = std::min((dim / 8 + 31) / 32 * 32, 1024);
    size_t bytes = (size_t)n * dim * sizeof(k_bf16);
    struct residual_end e = {p->residual, (const k_bf16 *)p->norm, p->normed, p->sums_out, dim,
                             p->y_is_half};
    struct all_rows all = {};

    if (dim % 16 != 0 || bytes > K_SUM_SMALL_BYTES)
        return -1;
    if (bytes * (links->n - 1) <= SMALL_RESIDUAL_MAX || n > LARGE_BLOCKS)
        return ranks_launch_early(sum_residual_kernel, n, threads, stream,
                                  (const k_bf16 *)rows[links->rank], e, *links);
    for (int r = 0; r < links->n; r++)
        all.of[r] = rows[r];
    return ranks_launch_early(sum_residual_large_kernel, n, LARGE_THREADS, stream, all, e, *links);
}
