/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one query token a sequence over its pages.
 *
 * One block of eight warps for each (part of the keys, kv head and up to HEADS of its query
 * heads, sequence). LANES lanes share a key, eight elements (16 bytes) each; a group of lanes
 * takes KEYS keys at once, so that 2 * KEYS loads of 16 bytes are under way in each lane, and
 * keeps its own running softmax (maximum, sum, weighted values). These meet within the warp by
 * shuffles, between warps in shared memory, between parts in attn_join_kernel.
 *
 * Memory-bound: reads 2 * kv_len * head_dim * 2 bytes for each kv head and group of HEADS. The
 * parts are a function of kv_len alone, so a sequence's bits do not depend on the batch.
 *
 * Source: running softmax from FlashAttention-2 (arXiv:2307.08691), parts as in Flash-Decoding. */
#include "kernels/pages.cuh"

#define DECODE_WARPS 8
#define KEYS         4
#define LOG2_E       1.44269504f
#define NOTHING      (-1e30f) /* a maximum over no key; finite, so that differences are numbers */

struct decode_args {
    k_bf16 *out;
    const k_bf16 *qkv;
    struct k_kv kv;
    struct k_tokens t;
    struct k_attn_plan plan;
    int n_heads;
    float scale;
};

/* Eight elements from p; n of them exist (a row's end, or nothing at all). */
static __device__ inline uint4 load8(const k_bf16 *p, int n, bool wide)
{
    uint4 v = make_uint4(0, 0, 0, 0);

    if (wide) {
        if (n > 0)
            v = *(const uint4 *)p;
        return v;
    }
    if (n > 0)
        v.x = *(const uint32_t *)p;
    if (n > 2)
        v.y = *(const uint32_t *)(p + 2);
    if (n > 4)
        v.z = *(const uint32_t *)(p + 4);
    if (n > 6)
        v.w = *(const uint32_t *)(p + 6);
    return v;
}

static __device__ inline void unpack8(float *f, uint4 v)
{
    f[0] = low_half(v.x), f[1] = high_half(v.x), f[2] = low_half(v.y), f[3] = high_half(v.y);
    f[4] = low_half(v.z), f[5] = high_half(v.z), f[6] = low_half(v.w), f[7] = high_half(v.w);
}

template <int HEADS> struct softmax_state {
    float top[HEADS], sum[HEADS], acc[HEADS][8];
};

/* Take KEYS keys' scores and values into the running softmax of one lane. */
template <int HEADS>
static __device__ inline void take_keys(softmax_state<HEADS> &st, const float score[HEADS][KEYS],
                                        const uint4 value[KEYS])
{
    float weight[HEADS][KEYS];

#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        float top = st.top[g], shrink;

#pragma unroll
        for (int k = 0; k < KEYS; k++)
            top = fmaxf(top, score[g][k]);
        shrink = exp2_fast(st.top[g] - top);
        st.top[g] = top;
        st.sum[g] *= shrink;
#pragma unroll
        for (int d = 0; d < 8; d++)
            st.acc[g][d] *= shrink;
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            weight[g][k] = exp2_fast(score[g][k] - top);
            st.sum[g] += weight[g][k];
        }
    }
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        float v[8];

        unpack8(v, value[k]);
#pragma unroll
        for (int g = 0; g < HEADS; g++) {
#pragma unroll
            for (int d = 0; d < 8; d++)
                st.acc[g][d] = fmaf(weight[g][k], v[d], st.acc[g][d]);
        }
    }
}

/* Add the state of the lane `apart` lanes away. */
template <int HEADS> static __device__ inline void join_lanes(softmax_state<HEADS> &st, int apart)
{
#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        float other = __shfl_xor_sync(~0U, st.top[g], apart);
        float top = fmaxf(st.top[g], other);
        float mine = exp2_fast(st.top[g] - top), its = exp2_fast(other - top);

        st.sum[g] = st.sum[g] * mine + __shfl_xor_sync(~0U, st.sum[g], apart) * its;
#pragma unroll
        for (int d = 0; d < 8; d++)
            st.acc[g][d] = st.acc[g][d] * mine + __shfl_xor_sync(~0U, st.acc[g][d], apart) * its;
        st.top[g] = top;
    }
}

/* The keys of one group of lanes from first to last - 1 of the part. */
template <int LANES, int HEADS>
static __device__ void scan_keys(softmax_state<HEADS> &st, const decode_args &a,
                                 const float q[HEADS][8], const int32_t *pages, int kv_head,
                                 int first, int last)
{
    const int groups = 32 / LANES;
    int hd = a.kv.head_dim, d = threadIdx.x % LANES * 8, left = hd - d;
    int group = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    bool wide = hd % 8 == 0;
    size_t to_value = value_elems(a.kv);

    for (int base = first + warp * groups * KEYS; base < last;
         base += DECODE_WARPS * groups * KEYS) {
        uint4 key[KEYS], value[KEYS];
        float score[HEADS][KEYS];

#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            int pos = base + k * groups + group;
            const k_bf16 *row = key_row(a.kv, pages, pos < last ? pos : first, kv_head) + d;

            key[k] = load8(row, left, wide);
            value[k] = load8(row + to_value, left, wide);
        }
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            float f[8];

            unpack8(f, key[k]);
#pragma unroll
            for (int g = 0; g < HEADS; g++) {
                float dot = 0.0f;

#pragma unroll
                for (int e = 0; e < 8; e++)
                    dot = fmaf(q[g][e], f[e], dot);
#pragma unroll
                for (int i = LANES / 2; i > 0; i /= 2)
                    dot += __shfl_xor_sync(~0U, dot, i);
                score[g][k] = base + k * groups + group < last ? dot : -INFINITY;
            }
        }
        take_keys<HEADS>(st, score, value);
    }
}

/* Write one head's result: finished, or as the state of a part. */
static __device__ void write_head(const decode_args &a, int decode, int head, int n_parts,
                                  float top, float sum, const float *acc, int d, int n)
{
    int hd = a.kv.head_dim, seq = a.plan.decode_seqs[decode];
    float *work = a.plan.work +
                  (((size_t)decode * a.n_heads + head) * a.plan.part_count + blockIdx.x) * (hd + 2);
    k_bf16 *out = a.out + ((size_t)a.t.seq_start[seq] * a.n_heads + head) * hd;

    for (int e = 0; e < n; e++) {
        if (n_parts == 1)
            store_bf16(out + d + e, acc[e] / sum);
        else
            work[2 + d + e] = acc[e];
    }
    if (n_parts > 1 && d == 0) {
        work[0] = top;
        work[1] = sum;
    }
}

template <int LANES, int HEADS>
static __global__ void __launch_bounds__(DECODE_WARPS * 32, 2)
    attn_decode_kernel(const decode_args a)
{
    __shared__ float shared[DECODE_WARPS][HEADS][LANES][10]; /* top, sum, acc of a lane */
    int group = a.n_heads / a.kv.n_kv_heads, hd = a.kv.head_dim;
    int runs = (group + HEADS - 1) / HEADS; /* blocks that share a kv head */
    int kv_head = blockIdx.y / runs, g0 = blockIdx.y % runs * HEADS;
    int seq = a.plan.decode_seqs[blockIdx.z], len = a.t.kv_len[seq];
    int part = k_attn_part_tokens(len), n_parts = (len + part - 1) / part;
    int first = blockIdx.x * part, last = min(first + part, len);
    int lane = threadIdx.x % LANES, d = lane * 8, n = min(max(hd - d, 0), 8);
    const k_bf16 *q_row =
        a.qkv + (size_t)a.t.seq_start[seq] * (a.n_heads + 2 * a.kv.n_kv_heads) * hd;
    softmax_state<HEADS> st;
    float q[HEADS][8];

    if ((int)blockIdx.x >= n_parts)
        return;
#pragma unroll
    for (int g = 0; g < HEADS; g++) {
        int head = kv_head * group + min(g0 + g, group - 1);

        unpack8(q[g], load8(q_row + (size_t)head * hd + d, hd - d, hd % 8 == 0));
        st.top[g] = NOTHING;
        st.sum[g] = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            q[g][e] *= a.scale * LOG2_E;
            st.acc[g][e] = 0.0f;
        }
    }
    scan_keys<LANES, HEADS>(st, a, q, a.t.page_ids + (size_t)seq * a.t.pages_max, kv_head, first,
                            last);
#pragma unroll
    for (int apart = LANES; apart < 32; apart *= 2)
        join_lanes<HEADS>(st, apart);
    if (threadIdx.x % 32 < LANES) {
#pragma unroll
        for (int g = 0; g < HEADS; g++) {
            float *s = shared[threadIdx.x / 32][g][lane];

            s[0] = st.top[g];
            s[1] = st.sum[g];
#pragma unroll
            for (int e = 0; e < 8; e++)
                s[2 + e] = st.acc[g][e];
        }
    }
    __syncthreads();
    for (int g = threadIdx.x / LANES; g < HEADS && g0 + g < group; g += DECODE_WARPS * 32 / LANES) {
        float top = NOTHING, sum = 0.0f, acc[8] = {0};

        for (int w = 0; w < DECODE_WARPS; w++)
            top = fmaxf(top, shared[w][g][lane][0]);
        for (int w = 0; w < DECODE_WARPS; w++) {
            float shrink = exp2_fast(shared[w][g][lane][0] - top);

            sum += shared[w][g][lane][1] * shrink;
            for (int e = 0; e < 8; e++)
                acc[e] += shared[w][g][lane][2 + e] * shrink;
        }
        write_head(a, blockIdx.z, kv_head * group + g0 + g, n_parts, top, sum, acc, d, n);
    }
}

/* One block for each (head, sequence) of several parts. */
static __global__ void attn_join_kernel(const decode_args a)
{
    int head = blockIdx.x, hd = a.kv.head_dim, seq = a.plan.decode_seqs[blockIdx.y];
    int len = a.t.kv_len[seq], part = k_attn_part_tokens(len), n_parts = (len + part - 1) / part;
    const float *work =
        a.plan.work + ((size_t)blockIdx.y * a.n_heads + head) * a.plan.part_count * (hd + 2);
    float top = NOTHING, sum = 0.0f;

    if (n_parts == 1)
        return;
    for (int p = 0; p < n_parts; p++)
        top = fmaxf(top, work[(size_t)p * (hd + 2)]);
    for (int p = 0; p < n_parts; p++)
        sum += work[(size_t)p * (hd + 2) + 1] * exp2_fast(work[(size_t)p * (hd + 2)] - top);
    for (int d = threadIdx.x; d < hd; d += blockDim.x) {
        float acc = 0.0f;

        for (int p = 0; p < n_parts; p++)
            acc += work[(size_t)p * (hd + 2) + 2 + d] * exp2_fast(work[(size_t)p * (hd + 2)] - top);
        store_bf16(a.out + ((size_t)a.t.seq_start[seq] * a.n_heads + head) * hd + d, acc / sum);
    }
}

template <int LANES, int HEADS> static int launch_decode(const decode_args &a, k_stream stream)
{
    int group = a.n_heads / a.kv.n_kv_heads;
    dim3 grid(a.plan.part_count, a.kv.n_kv_heads * ((group + HEADS - 1) / HEADS), a.plan.n_decodes);

    return K_LAUNCH((attn_decode_kernel<LANES, HEADS>), grid, DECODE_WARPS * 32, 0, stream, a);
}

template <int LANES> static int choose_heads(const decode_args &a, k_stream stream)
{
    int group = a.n_heads / a.kv.n_kv_heads;

    if (group == 1)
        return launch_decode<LANES, 1>(a, stream);
    if (group == 2)
        return launch_decode<LANES, 2>(a, stream);
    return launch_decode<LANES, 4>(a, stream);
}

int k_attn_decode(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                  const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
    decode_args a = {out, qkv, *kv, *t, *plan, n_heads, scale};
    int rc = kv->head_dim <= 32    ? choose_heads<4>(a, stream)
             : kv->head_dim <= 64  ? choose_heads<8>(a, stream)
             : kv->head_dim <= 128 ? choose_heads<16>(a, stream)
                                   : choose_heads<32>(a, stream);

    if (rc == 0 && plan->part_count > 1)
        rc = K_LAUNCH(attn_join_kernel, dim3(n_heads, plan->n_decodes), 128, 0, stream, a);
    return rc;
}
