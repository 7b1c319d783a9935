/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on logits apart from sampling and log probabilities (logprobs.cu): logits that are
 * asked for, masks and biases, and the log probability of the sampled id.
 *
 * Edit. Split: 32 words of a row's mask, 1024 ids, per warp; a lane writes the ids of its bit, so
 * that stores are coalesced wherever a row begins. Words of ones cost nothing more. A bias changes
 * only allowed ids, the mask only forbidden ones, so the two need no order.
 *
 * H200, us for 1, 64 and 256 rows of 128256 (bench_logits; a launch alone is 5.8): masks that allow
 * 1 in 1000 7 16 50, half 8 23 71, nearly all 6 7 11. */
#include "kernels/logits.cuh"

#define EDIT_THREADS   128
#define CHOSEN_THREADS 128

/* --- logits that are asked for --------------------------------------------------------------- */

/* One logit per thread. */
static __global__ void __launch_bounds__(EDIT_THREADS)
    asked_kernel(struct k_asked *asked, const float *logits, int n_vocab, int n)
{
    int i = blockIdx.x * EDIT_THREADS + (int)threadIdx.x;

    if (i < n)
        asked[i].logit = logits_tame(logits[(size_t)asked[i].row * n_vocab + asked[i].id]);
}

int k_read_asked(struct k_asked *asked, const float *logits, int n_vocab, int n, k_stream stream)
{
    int n_blocks = (n + EDIT_THREADS - 1) / EDIT_THREADS;

    return K_LAUNCH(asked_kernel, n_blocks, EDIT_THREADS, 0, stream, asked, logits, n_vocab, n);
}

/* --- edit ----------------------------------------------------------------------------------- */

/* Write -infinity where this warp's 32 words have zeros. */
static __device__ void logits_ban(float *logits, int n_vocab, const uint32_t *mask)
{
    int lane = threadIdx.x % 32, first = (blockIdx.x * EDIT_THREADS + (int)threadIdx.x) - lane;
    int n_words = (n_vocab + 31) / 32;
    uint32_t own = first + lane < n_words ? mask[first + lane] : ~0U;
    uint32_t left = __ballot_sync(~0U, own != ~0U);

    for (; left != 0; left &= left - 1) {
        int i = __ffs((int)left) - 1, id = (first + i) * 32 + lane;
        uint32_t word = __shfl_sync(~0U, own, i);

        if ((word >> lane & 1) == 0 && id < n_vocab)
            logits[id] = -INFINITY;
    }
}

/* A bias of a forbidden id has no effect; its raw logit counts as -infinity. */
static __device__ inline void logits_add_bias(float *logits, const uint32_t *mask,
                                              struct k_bias *bias)
{
    int id = bias->id;
    float raw = logits[id];

    if (mask != NULL && (mask[id / 32] >> id % 32 & 1) == 0) {
        bias->raw = -INFINITY; /* logits_ban() writes it, perhaps at this moment */
        return;
    }
    bias->raw = raw;
    logits[id] = raw + bias->value;
}

static __global__ void __launch_bounds__(EDIT_THREADS)
    edit_kernel(float *logits, int n_vocab, const struct k_logits_row *rows, const uint32_t *masks,
                struct k_bias *biases)
{
    struct k_logits_row row = rows[blockIdx.y];
    const uint32_t *mask = row.mask_at >= 0 ? masks + row.mask_at : NULL;

    logits += (size_t)row.row * n_vocab;
    if (mask != NULL)
        logits_ban(logits, n_vocab, mask);
    for (int i = blockIdx.x * EDIT_THREADS + threadIdx.x; i < row.n_biases;
         i += gridDim.x * EDIT_THREADS)
        logits_add_bias(logits, mask, &biases[row.biases_at + i]);
}

/* The grid covers the mask's words; the biases of a row are distributed over the same threads. */
int k_edit(float *logits, int n_vocab, const struct k_logits_row *rows, int n,
           const uint32_t *masks, struct k_bias *biases, k_stream stream)
{
    int n_words = (n_vocab + 31) / 32;
    dim3 grid((n_words + EDIT_THREADS - 1) / EDIT_THREADS, n);

    return K_LAUNCH(edit_kernel, grid, EDIT_THREADS, 0, stream, logits, n_vocab, rows, masks,
                    biases);
}

/* --- the sampled id --------------------------------------------------------------------------- */

/* One row per warp. */
static __global__ void __launch_bounds__(CHOSEN_THREADS)
    chosen_kernel(struct k_logprob_row *out, const int32_t *ids, const float *logits, int n_vocab,
                  const struct k_logits_row *rows, int n, const struct k_bias *biases)
{
    int lane = threadIdx.x % 32, at = (blockIdx.x * CHOSEN_THREADS + (int)threadIdx.x) / 32, id;
    struct k_logits_row row;
    float logit;

    if (at >= n)
        return;
    row = rows[at];
    if (row.n_top < 0 || row.target != K_SAMPLED)
        return;
    id = ids[row.row];
    logit = logits[(size_t)row.row * n_vocab + id];
    for (int first = 0; first < row.n_biases; first += 32) {
        const struct k_bias *bias = &biases[row.biases_at + first + lane];
        bool is_it = first + lane < row.n_biases && bias->id == id;
        uint32_t hit = __ballot_sync(~0U, is_it);

        if (hit != 0)
            logit = biases[row.biases_at + first + __ffs((int)hit) - 1].raw;
    }
    if (lane == 0)
        out[at].chosen = logits_tame(logit) - out[at].log_sum;
}

int k_chosen(struct k_logprob_row *out, const int32_t *ids, const float *logits, int n_vocab,
             const struct k_logits_row *rows, int n, const struct k_bias *biases, k_stream stream)
{
    int n_blocks = (n + CHOSEN_THREADS / 32 - 1) / (CHOSEN_THREADS / 32);

    return K_LAUNCH(chosen_kernel, n_blocks, CHOSEN_THREADS, 0, stream, out, ids, logits, n_vocab,
                    rows, n, biases);
}
