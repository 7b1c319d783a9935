/* SPDX-License-Identifier: Apache-2.0
 *
 * The recurrent mixer for tests.
 *
 * Split: a thread has a channel of a sequence and walks over its tokens of the step; 128 channels
 * per block. Bytes: in once, out once, the state twice. Bound by the latency of one load per token;
 * nothing is prefetched, because no model that is served uses it. */
#include "kernels/common.cuh"

#define CHANNELS 128 /* per block */

struct recurrent_args {
    void *out;
    const k_bf16 *in;
    struct k_state state;
    struct k_tokens t;
    int width;
    bool is_half;
};

/* The address of a channel's state, which may be on any page of the sequence's table. */
static __device__ inline float *recurrent_state_elem(const recurrent_args &a, int seq, int channel)
{
    size_t at = a.state.at + channel;
    int32_t page = a.t.page_ids[(size_t)seq * a.t.pages_max + at / a.state.page_elems];

    return (float *)a.state.pages + (size_t)page * a.state.page_elems + at % a.state.page_elems;
}

static __global__ void __launch_bounds__(CHANNELS) recurrent_kernel(const recurrent_args a)
{
    int channel = blockIdx.x * CHANNELS + threadIdx.x, seq = blockIdx.y;
    int first = a.t.seq_start[seq], last = a.t.seq_start[seq + 1], len = a.t.kv_len[seq];
    float *kept, state;

    if (len == 0 || channel >= a.width)
        return;
    kept = recurrent_state_elem(a, seq, channel);
    state = len == last - first ? 0.0f : *kept;
    for (int i = first; i < last; i++) {
        const k_bf16 *row = a.in + (size_t)i * 2 * a.width;
        float keep = 1.0f / (1.0f + expf(-load_bf16(row + a.width + channel)));

        state = keep * state + (1.0f - keep) * load_bf16(row + channel);
        store_x(a.out, (size_t)i * a.width + channel, state, a.is_half);
    }
    *kept = state;
}

int k_recurrent(void *out, bool is_half, const k_bf16 *in, const struct k_state *state,
                const struct k_tokens *t, int width, k_stream stream)
{
    recurrent_args args = {out, in, *state, *t, width, is_half};

    return K_LAUNCH(recurrent_kernel, dim3((width + CHANNELS - 1) / CHANNELS, t->n_seqs), CHANNELS,
                    0, stream, args);
}
