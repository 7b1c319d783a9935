/* SPDX-License-Identifier: Apache-2.0
 *
 * Short convolutions: a thread has a channel of a token. Sequences of one token store their product
 * at once, in a row of the state that no thread reads; those of several do it by a second kernel,
 * because their tokens read rows that it replaces. Bound by memory. */
#include "kernels/common.cuh"
#include "kernels/mamba.h"

#define THREADS 256

struct short_args {
    void *out;
    const k_bf16 *in;
    struct k_short_conv c;
    struct k_state state;
    struct k_tokens t;
    bool is_half;
};

/* A channel's product at position pos, in the state. */
static __device__ inline float *short_kept(const short_args &a, int seq, int pos, int channel)
{
    uint32_t at = (uint32_t)(a.state.at + (size_t)(pos % a.c.n_taps) * a.c.width + channel);
    uint32_t page_elems = (uint32_t)a.state.page_elems, page = at / page_elems;
    int32_t id = a.t.page_ids[(size_t)seq * a.t.pages_max + page];

    return (float *)a.state.pages + (size_t)id * page_elems + (at - page * page_elems);
}

/* b * x of a token of the step. */
static __device__ inline float short_product(const short_args &a, int token, int channel)
{
    const k_bf16 *row = a.in + (size_t)token * 3 * a.c.width + channel;

    return load_bf16(row) * load_bf16(row + 2 * a.c.width);
}

static __global__ void __launch_bounds__(THREADS) short_convolve_kernel(const short_args a)
{
    int token = blockIdx.x, channel = blockIdx.y * THREADS + threadIdx.x, seq = a.t.seq[token];
    int begin = a.t.seq_start[seq], pos = a.t.pos[token];
    float sum = 0.0f, own;

    if (channel >= a.c.width || a.t.kv_len[seq] == 0)
        return;
    own = short_product(a, token, channel);
    if (a.c.bias != NULL)
        sum = a.c.bias[channel];
    for (int back = min(a.c.n_taps - 1, pos); back >= 0; back--) {
        float x = own;

        if (token - back < begin)
            x = *short_kept(a, seq, pos - back, channel);
        else if (back > 0)
            x = short_product(a, token - back, channel);
        sum += a.c.taps[channel * a.c.n_taps + a.c.n_taps - 1 - back] * x;
    }
    if (a.t.seq_start[seq + 1] - begin == 1)
        *short_kept(a, seq, pos, channel) = own;
    store_x(a.out, (size_t)token * a.c.width + channel,
            load_bf16(a.in + ((size_t)token * 3 + 1) * a.c.width + channel) * sum, a.is_half);
}

/* The last products of sequences with several tokens. */
static __global__ void __launch_bounds__(THREADS) short_keep_kernel(const short_args a)
{
    int seq = blockIdx.x, channel = blockIdx.y * THREADS + threadIdx.x;
    int begin = a.t.seq_start[seq], end = a.t.seq_start[seq + 1];

    if (channel >= a.c.width || a.t.kv_len[seq] == 0 || end - begin == 1)
        return;
    for (int token = max(begin, end - a.c.n_taps); token < end; token++)
        *short_kept(a, seq, a.t.pos[token], channel) = short_product(a, token, channel);
}

int k_short_convolve(void *out, bool is_half, const k_bf16 *in, const struct k_short_conv *c,
                     const struct k_state *state, const struct k_tokens *t, k_stream stream)
{
    const short_args args = {out, in, *c, *state, *t, is_half};
    int parts = (c->width + THREADS - 1) / THREADS;

    if (K_LAUNCH(short_convolve_kernel, dim3(t->n_tokens, parts), THREADS, 0, stream, args) != 0)
        return -1;
    if (t->n_tokens == t->n_seqs)
        return 0;
    return K_LAUNCH(short_keep_kernel, dim3(t->n_seqs, parts), THREADS, 0, stream, args);
}
