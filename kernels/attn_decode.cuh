/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the planner and the kernels of decode attention, and the instructions that they are
 * made of: barriers in shared memory, the TMA, small matrix products, fp8. */
#ifndef QUIRE_KERNELS_ATTN_DECODE_CUH
#define QUIRE_KERNELS_ATTN_DECODE_CUH

#include <cuda_fp16.h>

#include "kernels/latent.h"
#include "kernels/pages.cuh"
#include "kernels/sm90.cuh"

#define DECODE_WARPS 4
#define DECODE_SMS   132              /* of an H200; any other number is correct, too */
#define DECODE_CTAS  (2 * DECODE_SMS) /* the largest grid */
#ifndef DECODE_FEW
#define DECODE_FEW 4 /* sequences for which one block per multiprocessor is enough */
#endif
#define DECODE_LEAST   32 /* keys per warp, at least: merging more parts takes longer */
#define DECODE_WORKERS (DECODE_CTAS * DECODE_WARPS)
/* Of latents: keys of a tile, rows (heads) of a job, and tiles that a CTA has at least. */
#define DECODE_LATENT_TILE  32
#define DECODE_LATENT_ROWS  64
#define DECODE_LATENT_LEAST 2

/* A decode that has keys, or several of a run, whose keys are read once for all. Its tiles are
 * counted from the one with the first visible key on. */
struct decode_item {
    __align__(16) int32_t seq; /* decode_seq_of() and so on */
    int32_t len;               /* keys of the last decode, this step's included */
    int32_t token;             /* row of the first decode in qkv and out */
    int32_t first;             /* tiles of all items before it */
};

/* The share of a warp: n tiles from `tile` of row `row` of an item, then those of the next rows. */
struct decode_worker {
    __align__(16) int32_t item;
    int32_t row;
    int32_t tile;
    int32_t n;
    decode_item first; /* a copy of the item, which saves a dependent load */
};

/* Of a row of latents that is cut: the sums of some of its tiles. A CTA leaves two at most: of the
 * row that its share begins within, and of the one that it ends within. */
struct decode_latent_part {
    float acc[DECODE_LATENT_ROWS][K_LATENT_RANK_MAX];
    float top[DECODE_LATENT_ROWS], sum[DECODE_LATENT_ROWS];
};

/* The first and the last block with keys of a row. */
struct decode_span {
    int32_t from, to;
};

/* The plan of a step in device memory. counters [c] counts the blocks that have finished their part
 * of the row that begins in block c and continues after it; 0 between launches. */
struct decode_schedule {
    int32_t counters[DECODE_CTAS];
    decode_span spans[DECODE_CTAS][2]; /* of the rows at a block's begin and end */
    decode_worker workers[DECODE_WORKERS];
    decode_item items[1]; /* [n_decodes] */
};

/* A tile of keys in shared memory: rows of TOKENS keys in panels of PANEL bytes,
 * [panel][token][PANEL], whose 16-byte chunks are swizzled so that eight rows meet all banks. */
template <int D, int TYPE> struct decode_tile {
    static constexpr int ELEM = TYPE == K_BF16 ? 2 : 1;
    static constexpr int ROW = D * ELEM;
    static constexpr int PANEL = ROW % 128 == 0 ? 128 : ROW % 64 == 0 || ROW % 32 != 0 ? 64 : 32;
    static constexpr int PANELS = (ROW + PANEL - 1) / PANEL;
    static constexpr int TOKENS = PANELS * PANEL > 128 ? 16 : 32;
    static constexpr int BYTES = TOKENS * PANELS * PANEL;
    static constexpr int STAGE = 2 * BYTES; /* keys, then values */
    static constexpr int STAGES = STAGE > 24576 ? 1 : STAGE > 12288 ? 2 : 24576 / STAGE;

    /* The offset of chunk `chunk` of a token's row. */
    static __device__ __forceinline__ int at(int token, int chunk)
    {
        int turn = PANEL == 128 ? token & 7 : PANEL == 64 ? token >> 1 & 3 : token >> 2 & 1;

        return (chunk / (PANEL / 16) * TOKENS + token) * PANEL +
               ((chunk % (PANEL / 16)) ^ turn) * 16;
    }
};

/* The sizes that kernels are built for: head_dim rounded up, and the query heads that share a pass
 * over the keys. Larger groups are cut into blocks of heads. */
static inline int decode_d(int head_dim)
{
    int d = head_dim <= 80 ? 80 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;

    if (head_dim > 256)
        return 512;
    return head_dim <= 64 ? 64 : d;
}

/* A wider tile of heads would waste half of the product for small groups. Of heads above 256 there
 * are registers for eight. */
static inline int decode_heads(int head_dim, int group)
{
    return group <= 8 || head_dim > 256 ? 8 : 16;
}

static inline int decode_blocks(int head_dim, int group)
{
    int heads = decode_heads(head_dim, group);

    return (group + heads - 1) / heads;
}

static inline int decode_tile_tokens(const struct k_kv *kv)
{
    int d = decode_d(kv->head_dim);

    if (kv->type == K_BF16)
        return d == 64 ? decode_tile<64, K_BF16>::TOKENS : decode_tile<128, K_BF16>::TOKENS;
    return d >= 256 ? decode_tile<256, K_E4M3>::TOKENS : decode_tile<128, K_E4M3>::TOKENS;
}

/* Can the TMA read these pages, tile by tile? */
static inline bool decode_engine_reads(const struct k_kv &kv, int elem)
{
    int bt = kv.page_tokens;
    size_t slab = (size_t)bt * kv.head_dim;

    return bt >= 8 && (bt & (bt - 1)) == 0 && kv.head_dim * elem % 16 == 0 && kv.head_dim >= 64 &&
           (uintptr_t)kv.pages % 16 == 0 && kv.page_elems % slab == 0 && kv.layer_elems % slab == 0;
}

/* --- runs ------------------------------------------------------------------------------ */

/* Decodes of a run that share an item: their heads are columns of one tile of 16, [decode][head of
 * the group]. An item of a run with 8 decodes has the first or the last 4; it needs the new keys of
 * those before it, too, but writes only its own. */
#define DECODE_TOGETHER 4
#define DECODE_COLUMNS  16

/* Decodes of an item, at most; 1 where it makes no difference. */
static __host__ __device__ inline int decode_together(int group)
{
    int fit = DECODE_COLUMNS / group;

    return fit < 1 ? 1 : fit < DECODE_TOGETHER ? fit : DECODE_TOGETHER;
}

/* The parts of decode_item.seq: the sequence of the first decode, how many decodes the item has,
 * and how many of the run are in front of them. An item of one decode without a run in front of it
 * has the sequence's number as it is. */
static __host__ __device__ inline int decode_item_seq(int seq, int n_decodes, int n_before)
{
    return seq | (n_decodes - 1) << 24 | n_before << 26;
}

static __device__ inline int decode_seq_of(const decode_item &it)
{
    return it.seq & ((1 << 24) - 1);
}

static __device__ inline int decode_count_of(const decode_item &it)
{
    return (it.seq >> 24 & 3) + 1;
}

static __device__ inline int decode_before_of(const decode_item &it)
{
    return it.seq >> 26;
}

/* Decodes of the item that begins with decode i of n; 0 if none does. */
static __device__ inline int decode_count_at(const int32_t *places, int i, int n, int together)
{
    int place = places[i], count = 1;

    if (place % together != 0)
        return 0;
#pragma unroll
    for (int j = 1; j < DECODE_TOGETHER; j++) {
        if (count == j && j < together && i + j < n && places[i + j] == place + j)
            count++;
    }
    return count;
}

/* Blocks of heads that share latents. */
static inline int decode_latent_blocks(int n_heads)
{
    return (n_heads + DECODE_LATENT_ROWS - 1) / DECODE_LATENT_ROWS;
}

/* Two blocks per multiprocessor read faster than one; one leaves room for the next kernel, which
 * matters more when there is little to read. Two do not fit at head sizes above 128. */
static inline int decode_ctas(const struct k_kv *kv, int n_decodes)
{
    return n_decodes <= DECODE_FEW || kv->head_dim > 128 ? DECODE_SMS : 2 * DECODE_SMS;
}

/* Workers that share n_tiles tiles: a multiple of a block's warps. */
static __host__ __device__ inline int decode_workers(int n_tiles, int tile_tokens, int n_workers)
{
    int block_tiles = DECODE_LEAST / tile_tokens * DECODE_WARPS;
    int n = (n_tiles + block_tiles - 1) / block_tiles * DECODE_WARPS;

    return n < n_workers ? n : n_workers;
}

/* The first tile of worker i, and the worker of a tile. */
static __device__ inline int decode_share_first(int i, int n_tiles, int n_workers)
{
    return n_workers == 0 ? 0 : (int)((int64_t)i * n_tiles / n_workers);
}

/* The worker to whose share a tile belongs; the inverse of decode_share_first(). */
static __device__ inline int decode_share_of(int tile, int n_tiles, int n_workers)
{
    return (int)((((int64_t)tile + 1) * n_workers + n_tiles - 1) / n_tiles) - 1;
}

/* The first visible key of a decode with len keys; window 0: all are visible. */
static __host__ __device__ inline int decode_lowest(int len, int window)
{
    return window > 0 && len > window ? len - window : 0;
}

/* --- barriers and copies --------------------------------------------------------------- */

static __device__ __forceinline__ void decode_full_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void decode_full_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Spin until the stage's copies have arrived. */
static __device__ __forceinline__ void decode_full_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;

    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (done == 0);
}

/* KV is read once per step, so it is evicted first when the L2 cache needs room. */
static __device__ __forceinline__ uint64_t decode_evict_first(void)
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Copy 16 bytes by this thread, bypassing the L1 cache; and wait for all its copies. */
static __device__ __forceinline__ void decode_copy_async(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void decode_copy_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* A TMA copy of one box, with a hint for the L2 cache. */
static __device__ __forceinline__ void decode_copy_box(uint32_t to, const CUtensorMap *map,
                                                       uint32_t barrier, const int at[5],
                                                       uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier"
        "::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
        "l"(policy)
        : "memory");
}

/* --- the previous and the next launch --------------------------------------------------------- */

/* Until the previous launch of the stream has ended and its writes are visible. */
static __device__ __forceinline__ void decode_wait_for_previous(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next launch may begin; it waits in turn for this one's end before it reads its results. */
static __device__ __forceinline__ void decode_let_next_begin(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Add 1 and return the old value. Together with a block barrier on either side it orders this
 * block's earlier writes and later reads with those of the other blocks that count here. */
static __device__ __forceinline__ int decode_add_and_see(int32_t *counter)
{
    int old;

    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(old)
                 : "l"(counter)
                 : "memory");
    return old;
}

/* --- matrices ---------------------------------------------------------------------------- */

static __device__ __forceinline__ void decode_load_matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void decode_load_matrices_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Transpose an 8 x 8 matrix that is spread over the lanes of a warp. */
static __device__ __forceinline__ uint32_t decode_turn_matrix(uint32_t x)
{
    uint32_t y;

    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* c [16][8] += a [16][16] * b [16][8], of bfloat16 or of float16. */
template <int TYPE>
static __device__ __forceinline__ void decode_multiply(float c[4], const uint32_t a[4],
                                                       const uint32_t b[2])
{
    if (TYPE == K_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Pack two numbers as operands of decode_multiply(), the first in the lower half. */
template <int TYPE>
static __device__ __forceinline__ uint32_t decode_pack_two(float low, float high)
{
    __half2 two;

    if (TYPE == K_BF16)
        return pack_bf16(low, high);
    two = __floats2half2_rn(low, high);
    return *(uint32_t *)&two;
}

/* Four e4m3 in a word as two words of float16: first the lower two, then the upper two. */
static __device__ __forceinline__ void decode_widen_e4m3(uint32_t *low, uint32_t *high,
                                                         uint32_t four)
{
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}"
        : "=r"(*low), "=r"(*high)
        : "r"(four));
}

#endif
