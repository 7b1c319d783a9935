/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the two kernels of products (product.cu, sm90_product.cu). */
#ifndef QUIRE_KERNELS_PRODUCT_CUH
#define QUIRE_KERNELS_PRODUCT_CUH

#include "kernels/sm90.cuh"

/* The kernel for up to K_PRODUCT_ROWS_MAX rows: its part of k_multiply_takes() and of
 * k_multiply(). */
bool product_wide_takes(const struct k_matrix *w, int n);
int product_wide(const struct k_product *p, int n, int n_sms, k_stream stream);

/* The same of the kernel for e4m3 with scales of blocks. */
bool product_blocks_takes(const struct k_matrix *w, int n);
int product_blocks(const struct k_product *p, int n, int n_sms, k_stream stream);

/* The same of the kernel for codes in records (packed.h); the bucket as k_multiply_bucket(). */
bool product_packed_takes(const struct k_matrix *w, int n);
int product_packed_bucket(const struct k_matrix *w, int n);
int product_packed(const struct k_product *p, int n, int n_sms, k_stream stream);

/* The same by the kernel for up to K_PRODUCT_ROWS_MAX rows. */
int product_wide_packed(const struct k_product *p, int n, int n_sms, k_stream stream);

/* Is this the elected lane of the warp? Always the same one. */
static __device__ inline bool leads(void)
{
    uint32_t yes;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(yes));
    return yes != 0;
}

/* The warp's number, as a value that the compiler knows to be equal in all lanes: addresses of
 * copies must be uniform, and otherwise the compiler makes them so lane by lane. */
static __device__ inline int warp_number(void)
{
    return __shfl_sync(~0U, (int)threadIdx.x / 32, 0);
}

/* Keep a value in a register from here on. Launch arguments that the epilogue reads, and divisions
 * by them, would otherwise be fetched and computed there, where everything waits for it: an
 * argument that was not read recently takes 500 cycles. If registers are short, ptxas fetches it
 * again all the same. */
static __device__ __forceinline__ void pin(int &x)
{
    asm volatile("" : "+r"(x));
}

template <class T> static __device__ __forceinline__ void pin_global(T *&x)
{
    asm volatile("" : "+l"(x));
    __builtin_assume(__isGlobal(x));
}

/* Keep a value that is equal in all lanes in a register, whatever ptxas decides: the result of a
 * reduction is neither fetched again nor recomputed in each round of a loop, as the base of shared
 * memory is. All lanes must call it; some 20 cycles, so before anything waits. */
static __device__ __forceinline__ uint32_t steady(uint32_t x)
{
    asm volatile("redux.sync.or.b32 %0, %0, 0xffffffff;" : "+r"(x));
    return x;
}

static __device__ __forceinline__ int steady(int x)
{
    return (int)steady((uint32_t)x);
}

static __device__ __forceinline__ bool steady(bool x)
{
    return steady((uint32_t)x) != 0;
}

template <class T> static __device__ __forceinline__ T *steady_global(T *p)
{
    size_t at = __cvta_generic_to_global(p);

    at = (size_t)steady((uint32_t)(at >> 32)) << 32 | steady((uint32_t)at);
    return (T *)__cvta_global_to_generic(at);
}

template <class T> static __device__ __forceinline__ T *steady_shared(T *p)
{
    return (T *)__cvta_shared_to_generic(steady(shared_addr(p)));
}

static __device__ inline uint32_t cluster_rank(void)
{
    uint32_t r;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

static __device__ inline void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ inline void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* 600 cycles, because writes have to reach the L2 cache first. */
static __device__ inline void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Encode a tensor map of up to five dimensions. 0, or -1. Promotion to 256 bytes halves the speed
 * (docs/kernels/guide.md). */
static inline int encode_tensor(CUtensorMap *map, CUtensorMapDataType type,
                                CUtensorMapSwizzle swizzle, void *data, int rank,
                                const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    cudaDriverEntryPointQueryResult found;
    void *fn = NULL;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        fn == NULL)
        return -1;
    return ((encode_fn)fn)(map, type, (cuuint32_t)rank, data, sizes, strides, box, ones,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
               ? 0
               : -1;
}

/* The same with 128 bytes as the innermost box, swizzled. */
static inline int encode_boxes(CUtensorMap *map, bool is_bytes, void *data, int rank,
                               const cuuint64_t *sizes, const cuuint64_t *strides,
                               const cuuint32_t *box)
{
    return encode_tensor(
        map, is_bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        CU_TENSOR_MAP_SWIZZLE_128B, data, rank, sizes, strides, box);
}

#endif
