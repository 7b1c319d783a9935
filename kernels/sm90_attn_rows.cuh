/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of chunks for Hopper: what the consumers of sm90_attn_chunk.cu and sm90_attn_fp8.cu
 * have in common, which is a thread's rows, turns, the epilogue and the launch. */
#ifndef QUIRE_KERNELS_SM90_ATTN_ROWS_CUH
#define QUIRE_KERNELS_SM90_ATTN_ROWS_CUH

#include "kernels/sm90_attn_load.cuh"

#define TURN_ID  1 /* named barriers TURN_ID + warpgroup: it may issue its products */
#define NOTHING  (-1e30f)
#define LOG2_E   1.44269504f
#define L2_BYTES ((size_t)32 << 20) /* data that is reread from the cache; it has 50 MB */

/* A thread's share of its warpgroup's 64 rows: of its warp's 16 rows lane / 4 and lane / 4 + 8; of
 * each 8 columns lane % 4 * 2 and the next. */
struct chunk_rows {
    float top[2], sum[2]; /* maximum of scores, and sum of this thread's weights */
    int pos[2];
};

/* The warpgroups take turns in issuing products. */
static __device__ __forceinline__ void chunk_turn_take(int group)
{
    named_sync(TURN_ID + group, 128 * CONSUMERS);
}

/* The other warpgroup may issue now. */
static __device__ __forceinline__ void chunk_turn_give(int group)
{
    named_arrive(TURN_ID + (group ^ 1), 128 * CONSUMERS);
}

/* Maximum over the four lanes of a row. */
static __device__ __forceinline__ float chunk_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

/* Transpose in a quad: words [4 columns of 2][4 lanes]; lane l gets w[l] of all four. */
static __device__ __forceinline__ uint4 chunk_turn_quad(uint32_t w0, uint32_t w1, uint32_t w2,
                                                        uint32_t w3)
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0U, odd ? w0 : w1, 1), b = __shfl_xor_sync(~0U, odd ? w2 : w3, 1);
    uint32_t x0 = odd ? a : w0, x1 = odd ? w1 : a; /* of column odd */
    uint32_t y0 = odd ? b : w2, y1 = odd ? w3 : b; /* of column odd + 2 */
    uint32_t c = __shfl_xor_sync(~0U, high ? x0 : y0, 2),
             d = __shfl_xor_sync(~0U, high ? x1 : y1, 2);

    return high ? make_uint4(c, d, y0, y1) : make_uint4(x0, x1, c, d);
}

/* Store eight elements; is_half: in the order of K_HALF_AT. */
static __device__ __forceinline__ void chunk_store_eight(k_bf16 *to, int at, uint4 v, bool is_half)
{
    if (!is_half) {
        *(uint4 *)(to + at) = v;
        return;
    }
    *(uint2 *)(to + K_HALF_AT(at)) = make_uint2(v.x, v.z);
    *(uint2 *)(to + K_HALF_AT(at) + 8) = make_uint2(v.y, v.w);
}

/* Epilogue: add the sums of a row's four lanes, divide, and write 16 bytes per lane:
 * chunk_turn_quad() exchanges columns between lanes so that each has eight consecutive ones. Sums
 * and accs are of weights times 2^-units. */
template <class S>
static __device__ __forceinline__ void chunk_write_rows(const chunk_args &a, const struct piece &p,
                                                        const float (&accs)[S::PARTS][S::PART / 2],
                                                        const float (&sums)[2],
                                                        const float (&units)[2])
{
    int group = a.n_heads / a.kv.n_kv_heads, lane = threadIdx.x % 32;

#pragma unroll
    for (int row_idx = 0; row_idx < 2; row_idx++) {
        int row = (threadIdx.x - 128) / 32 * 16 + lane / 4 + 8 * row_idx, token = row / group;
        float sum = sums[row_idx], scale;
        k_bf16 *to =
            a.out +
            ((size_t)(p.token0 + token) * a.n_heads + p.kv_head * group + row % group) * S::HD;

        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (a.kv.sinks != NULL && token < p.n_tokens)
            sum += exp2_fast(a.kv.sinks[p.kv_head * group + row % group] * LOG2_E - units[row_idx]);
        scale = a.out_scale / sum;
#pragma unroll
        for (int j = 0; j < S::HD / 8; j += 4) {
            uint32_t w[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = (j + i) % (S::HD / 8); /* 80 = 2 * 32 + 16: the last half is not used */
                const float *acc = &accs[at * 8 / S::PART][at * 8 % S::PART / 2 + 2 * row_idx];

                w[i] = a.plan.out_is_half ? pack_half(acc[0] * scale, acc[1] * scale)
                                          : pack_bf16(acc[0] * scale, acc[1] * scale);
            }
            uint4 turned = chunk_turn_quad(w[0], w[1], w[2], w[3]);

            if (token < p.n_tokens && j + lane % 4 < S::HD / 8)
                chunk_store_eight(to, (j + lane % 4) * 8, turned, a.plan.out_is_half);
        }
    }
}

/* The state of a thread's two rows at the begin of a tile. */
static __device__ __forceinline__ struct chunk_rows chunk_rows_of(const struct piece &p, int group)
{
    int row = (threadIdx.x - 128) / 32 * 16 + threadIdx.x % 32 / 4;

    return {{NOTHING, NOTHING}, {0.0f, 0.0f}, {p.pos0 + row / group, p.pos0 + (row + 8) / group}};
}

/* --- the launch ------------------------------------------------------------------------ */

/* The driver's function, found at run time: the library does not link to libcuda. */
static PFN_cuTensorMapEncodeTiled_v12000 chunk_find_encoder(void)
{
    void *f = NULL;
    enum cudaDriverEntryPointQueryResult found;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess)
        return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)f;
}

/* strides: bytes, of all dimensions but the first. */
template <bool SWIZZLED>
static int chunk_describe(CUtensorMap *map, CUtensorMapDataType type, int rank, const void *base,
                          const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = chunk_find_encoder();
    const cuuint32_t ones[5] = {1, 1, 1, 1, 1};

    if (encode == NULL)
        return -1;
    return encode(map, type, (cuuint32_t)rank, (void *)base, dims, strides, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                  SWIZZLED ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : -1;
}

/* Map the queries as [token][head][element]; a box is the heads of a group of a tile's tokens. */
static int chunk_describe_queries(CUtensorMap *map, const chunk_args &a, const k_bf16 *qkv)
{
    cuuint64_t hd = (cuuint64_t)a.kv.head_dim;
    cuuint64_t width = (cuuint64_t)k_qkv_heads(&a.kv, a.n_heads) * hd;
    int group = a.n_heads / a.kv.n_kv_heads;
    cuuint64_t dims[3] = {hd, (cuuint64_t)a.n_heads, (cuuint64_t)a.t.n_tokens};
    cuuint64_t strides[2] = {hd * 2, width * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)group, (cuuint32_t)K_TILE_TOKENS(group)};

    return chunk_describe<true>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, qkv, dims, strides, box);
}

/* Map the pool of pages; its length is not known here, but page ids are valid. bf16: [page][8 rows
 * of a page, all layers][column of 64][row % 8][element]; e4m3: [page][row of a page, all
 * layers][element]. */
template <class S> static int chunk_describe_pages(CUtensorMap *map, const chunk_args &a)
{
    const cuuint64_t many = 1U << 31, hd = S::HD;
    cuuint32_t box_rows = (cuuint32_t)a.box_rows;

    if (S::RAW) {
        cuuint64_t dims[3] = {hd, a.kv.page_elems / hd, many}, strides[2] = {hd, a.kv.page_elems};
        cuuint32_t box[3] = {S::HD, box_rows, 1};

        return chunk_describe<!S::RAW_KEYS>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, a.kv.pages, dims,
                                            strides, box);
    }
    cuuint64_t dims[5] = {S::WHOLE ? 64 : hd, 8, S::WHOLE ? S::COLUMNS : 1,
                          a.kv.page_elems / (8 * hd), many};
    cuuint64_t strides[4] = {hd * 2, 128, 8 * hd * 2, a.kv.page_elems * 2};
    cuuint32_t box[5] = {64, 8, S::WHOLE ? S::COLUMNS : 1, box_rows / 8, 1};

    return chunk_describe<true>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, a.kv.pages, dims, strides,
                                box);
}

static int chunk_n_multiprocessors(void)
{
    int device = 0, n = 0;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return n;
}

/* How many heads' keys and values fit into the cache. */
static int chunk_heads_in_cache(const chunk_args &a)
{
    size_t elem_bytes = a.kv.type == K_E4M3 ? 1 : 2;
    size_t head_bytes = 2 * (size_t)a.plan.tile_keys * (size_t)a.kv.head_dim * elem_bytes;

    if (head_bytes * (size_t)a.kv.n_kv_heads <= L2_BYTES)
        return a.kv.n_kv_heads;
    return head_bytes > L2_BYTES ? 1 : (int)(L2_BYTES / head_bytes);
}

/* At most one CTA per multiprocessor; each takes further pieces from a counter. */
template <class S>
static int chunk_launch(void (*kernel)(CUtensorMap, CUtensorMap, chunk_args), chunk_args a,
                        const k_bf16 *qkv, k_stream stream)
{
    static const int n_blocks = chunk_n_multiprocessors();
    int n_items = a.plan.n_tiles * a.kv.n_kv_heads;
    CUtensorMap q_map, kv_map;

    a.box_rows = a.kv.page_tokens < S::BLOCK ? a.kv.page_tokens : S::BLOCK;
    a.boxes = S::BLOCK / a.box_rows;
    a.page_shift = __builtin_ctz((unsigned)a.kv.page_tokens);
    a.box_shift = __builtin_ctz((unsigned)a.box_rows);
    a.layer_slabs = (int)(a.kv.layer_elems / (8 * S::HD));
    a.heads_together = chunk_heads_in_cache(a);
    if (chunk_describe_queries(&q_map, a, qkv) != 0 || chunk_describe_pages<S>(&kv_map, a) != 0)
        return -1;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(chunk_shared<S>)) != cudaSuccess)
        return -1;
    return K_LAUNCH(kernel, n_items < n_blocks ? n_items : n_blocks, S::THREADS,
                    sizeof(chunk_shared<S>), stream, q_map, kv_map, a);
}

#endif
