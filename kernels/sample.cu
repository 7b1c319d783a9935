/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: one block a row; the rules stand at ref_sample() in kernels.h. All sums are sums of
 * integers, so the result is the reference's whatever the order of adding. A greedy row without
 * penalties reads its logits once; another one writes its adjusted values to scratch and reads
 * them about ten times, mostly from the L2 cache. */
#include "kernels/common.cuh"
#include "kernels/draw.h"

#define SAMPLE_THREADS 1024
#define SAMPLE_WARPS   (SAMPLE_THREADS / 32)

struct shared_state {
    unsigned long long bins[256];
    unsigned long long warps[SAMPLE_WARPS];
    unsigned long long result;
    unsigned int byte;
};

/* What the filters keep so far. */
struct kept {
    const float *z;
    int n;
    float top;
    uint64_t min_weight;
    uint32_t least_key;
};

static __device__ inline uint64_t weight_of(const struct kept &k, float z)
{
    uint64_t w = k_exp_fixed(z - k.top);

    return w >= k.min_weight && k_sort_key(z) >= k.least_key ? w : 0;
}

static __device__ inline uint64_t warp_sum(uint64_t x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(~0U, x, i);
    return x;
}

static __device__ inline uint64_t warp_max(uint64_t x)
{
    for (int i = 16; i > 0; i /= 2)
        x = max(x, (uint64_t)__shfl_xor_sync(~0U, x, i));
    return x;
}

/* The largest value, the lowest id among equals. */
static __device__ int block_argmax(const float *z, int n, struct shared_state *s)
{
    uint64_t best = 0;

    for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        best = max(best, (uint64_t)k_sort_key(z[i]) << 32 | (0xffffffffU - (uint32_t)i));
    best = warp_max(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->warps[threadIdx.x / 32] = best;
    __syncthreads();
    best = warp_max(s->warps[threadIdx.x % 32]);
    return (int)(0xffffffffU - (uint32_t)best);
}

static __device__ uint64_t block_weight(const struct kept &k, struct shared_state *s)
{
    uint64_t sum = 0;

    for (int i = threadIdx.x; i < k.n; i += SAMPLE_THREADS)
        sum += weight_of(k, k.z[i]);
    sum = warp_sum(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->warps[threadIdx.x / 32] = sum;
    __syncthreads();
    return warp_sum(s->warps[threadIdx.x % 32]);
}

/* The byte at shift of the threshold key whose upper bytes are prefix, as pick_bin() of the
 * reference; *need becomes what is wanted of its bin. One thread adds 256 bins. */
static __device__ uint32_t pick_byte(struct shared_state *s, uint64_t *need)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned int b = 255;
        unsigned long long left = *need;

        while (b > 0 && s->bins[b] < left)
            left -= s->bins[b--];
        s->byte = b;
        s->result = left;
    }
    __syncthreads();
    *need = s->result;
    return s->byte;
}

static __device__ void clear_bins(struct shared_state *s)
{
    __syncthreads();
    if (threadIdx.x < 256)
        s->bins[threadIdx.x] = 0;
    __syncthreads();
}

/* The largest key such that need keys are as large or larger. */
static __device__ uint32_t key_by_count(const struct kept &k, uint64_t need, struct shared_state *s)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        clear_bins(s);
        for (int i = threadIdx.x; i < k.n; i += SAMPLE_THREADS) {
            uint32_t key = k_sort_key(k.z[i]);

            if ((uint64_t)key >> (shift + 8) == prefix)
                atomicAdd(&s->bins[key >> shift & 255], 1ULL);
        }
        prefix = prefix << 8 | pick_byte(s, &need);
    }
    return prefix;
}

/* The largest key such that the weights of all keys as large or larger reach need. */
static __device__ uint32_t key_by_weight(const struct kept &k, uint64_t need,
                                         struct shared_state *s)
{
    uint32_t prefix = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        clear_bins(s);
        for (int i = threadIdx.x; i < k.n; i += SAMPLE_THREADS) {
            uint32_t key = k_sort_key(k.z[i]);
            uint64_t w = (uint64_t)key >> (shift + 8) == prefix ? weight_of(k, k.z[i]) : 0;

            if (w != 0)
                atomicAdd(&s->bins[key >> shift & 255], (unsigned long long)w);
        }
        prefix = prefix << 8 | pick_byte(s, &need);
    }
    return prefix;
}

/* The first id at which the running sum of weights exceeds r. Each warp owns a run of ids; the
 * warp in whose run the sum is reached searches it, 32 ids at a time. */
static __device__ int draw_id(const struct kept &k, uint64_t r, struct shared_state *s)
{
    int run = (k.n + SAMPLE_WARPS * 32 - 1) / (SAMPLE_WARPS * 32) * 32;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = min(warp * run, k.n), last = min(first + run, k.n);
    uint64_t sum = 0, before = 0;

    for (int i = first + lane; i < last; i += 32)
        sum += weight_of(k, k.z[i]);
    sum = warp_sum(sum);
    __syncthreads();
    if (lane == 0)
        s->warps[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        before += s->warps[w];
    if (before <= r && r < before + sum) { /* true for one warp */
        for (int base = first; base < last; base += 32) {
            uint64_t own = base + lane < last ? weight_of(k, k.z[base + lane]) : 0, upto = own;
            unsigned int hits;

            for (int i = 1; i < 32; i *= 2) {
                uint64_t lower = __shfl_up_sync(~0U, upto, i);

                upto += lane >= i ? lower : 0;
            }
            hits = __ballot_sync(~0U, before + upto > r);
            if (hits != 0) {
                if (lane == 0)
                    s->result = base + __ffs(hits) - 1;
                break;
            }
            before += __shfl_sync(~0U, upto, 31);
        }
    }
    __syncthreads();
    return (int)s->result;
}

/* Penalties, banned ids and temperature, from logits to z. */
static __device__ void adjust(float *z, const float *logits, const int32_t *counts, int n,
                              const struct k_sample_row *row)
{
    float divisor = row->temperature > 0.0f ? row->temperature : 1.0f;

    for (int i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
        int32_t count = row->n_history > 0 ? counts[i] : 0;

        z[i] =
            k_penalise(logits[i], count, row->repetition, row->frequency, row->presence) / divisor;
    }
    __syncthreads();
    if ((int)threadIdx.x < row->n_banned)
        z[row->banned[threadIdx.x]] = -INFINITY;
    __syncthreads();
}

static __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(int32_t *ids, const float *logits, int n_vocab, const struct k_sample_row *rows,
                  float *scratch, const int32_t *counts)
{
    __shared__ struct shared_state s;
    const struct k_sample_row *row = &rows[blockIdx.x];
    size_t at = (size_t)blockIdx.x * n_vocab;
    bool greedy = row->temperature <= 0.0f, plain = row->n_history == 0 && row->n_banned == 0;
    struct kept k = {greedy && plain ? logits + at : scratch + at, n_vocab, 0.0f, 0, 0};
    uint64_t sum;
    int id;

    if (!greedy || !plain)
        adjust(scratch + at, logits + at, counts + at, n_vocab, row);
    id = block_argmax(k.z, n_vocab, &s);
    if (!greedy) {
        k.top = k.z[id];
        k.min_weight = k_min_weight(row->min_p);
        if (row->top_k > 0 && row->top_k < n_vocab)
            k.least_key = key_by_count(k, row->top_k, &s);
        sum = block_weight(k, &s);
        if (sum != 0 && row->top_p < 1.0f) {
            uint32_t key = key_by_weight(k, k_top_weight(row->top_p, sum), &s);

            k.least_key = max(key, k.least_key);
            sum = block_weight(k, &s);
        }
        if (sum != 0)
            id = draw_id(k, k_mul_high(k_random(row->seed, row->position), sum), &s);
    }
    if (threadIdx.x == 0)
        ids[blockIdx.x] = id;
}

int k_sample(int32_t *ids, const float *logits, int n_rows, int n_vocab,
             const struct k_sample_row *rows, float *scratch, const int32_t *counts,
             k_stream stream)
{
    return K_LAUNCH(sample_kernel, n_rows, SAMPLE_THREADS, 0, stream, ids, logits, n_vocab, rows,
                    scratch, counts);
}

static __global__ void sample_count_kernel(int32_t *counts, const struct k_sample_row *rows,
                                           const int32_t *history, int first, int n_vocab)
{
    const struct k_sample_row *row = &rows[first + blockIdx.x];
    int32_t *count = counts + (size_t)(first + blockIdx.x) * n_vocab;

    if (row->n_history == 0)
        return;
    for (int i = threadIdx.x; i < n_vocab; i += SAMPLE_THREADS)
        count[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row->n_history; i += SAMPLE_THREADS) {
        int32_t *c = &count[history[row->history_at + i]];

        if (i < row->n_prompt)
            atomicOr(c, 1);
        else
            atomicAdd(c, 2);
    }
}

int k_sample_count(int32_t *counts, const struct k_sample_row *rows, const int32_t *history,
                   int first, int last, int n_vocab, k_stream stream)
{
    return K_LAUNCH(sample_count_kernel, last - first, SAMPLE_THREADS, 0, stream, counts, rows,
                    history, first, n_vocab);
}
