/* SPDX-License-Identifier: Apache-2.0
 *
 * Hopper's own instructions as small functions: barriers in shared memory, the tensor memory
 * accelerator (TMA), the warpgroup product (wgmma), registers moved between warpgroups.
 *
 * A wgmma runs asynchronously to the threads that issue it: its accumulators must not be touched
 * between warpgroup_begin() and the warpgroup_wait() that covers it. keep() before the first and
 * after the second of these makes the compiler respect that. */
#ifndef QUIRE_KERNELS_SM90_CUH
#define QUIRE_KERNELS_SM90_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "kernels/common.cuh"

static __device__ __forceinline__ uint32_t shared_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- barriers in shared memory --------------------------------------------------------- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_addr(b)), "r"(n_arrivals)
                 : "memory");
}

/* After the last barrier_init(): makes them visible to the TMA. */
static __device__ __forceinline__ void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    barrier_arrive(shared_addr(b));
}

/* Arrive, and let the phase also wait for so many bytes of copies. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_addr(b)),
                 "r"(bytes)
                 : "memory");
}

/* Wait until the phase of this parity has ended. barrier_wait_cluster() also for writes of another
 * CTA. */
#define SM90_BARRIER_WAIT(NAME, ORDER)                                                      \
    static __device__ __forceinline__ void NAME(uint32_t at, uint32_t parity)               \
    {                                                                                       \
        uint32_t done;                                                                      \
                                                                                            \
        do {                                                                                \
            asm volatile("{\n"                                                              \
                         ".reg .pred p;\n"                                                  \
                         "mbarrier.try_wait.parity" ORDER ".shared::cta.b64 p, [%1], %2;\n" \
                         "selp.u32 %0, 1, 0, p;\n"                                          \
                         "}"                                                                \
                         : "=r"(done)                                                       \
                         : "r"(at), "r"(parity)                                             \
                         : "memory");                                                       \
        } while (!done);                                                                    \
    }                                                                                       \
                                                                                            \
    static __device__ __forceinline__ void NAME(uint64_t *b, uint32_t parity)               \
    {                                                                                       \
        NAME(shared_addr(b), parity);                                                       \
    }

SM90_BARRIER_WAIT(barrier_wait, ".acquire.cta")
SM90_BARRIER_WAIT(barrier_wait_cluster, ".acquire.cluster")

/* A position in a ring of stages, and the parity of its current round. */
template <int STAGES> struct ring {
    int stage;
    uint32_t parity;

    __device__ __forceinline__ void next(void)
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* Named barriers: wait for n threads, or only arrive. */
static __device__ __forceinline__ void named_sync(int id, int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

static __device__ __forceinline__ void named_arrive(int id, int n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

/* Make this thread's stores to shared memory visible to wgmma and to the TMA. */
static __device__ __forceinline__ void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Four 8 x 8 matrices of 16-bit elements to shared memory, transposed; lane l gives the address of
 * row l % 8 of matrix l / 8. */
static __device__ inline void store_turned(uint32_t at, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/* --- tensor memory accelerator (TMA) ------------------------------------------------------ */

static __device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static __device__ __forceinline__ void tensor_load_3d(void *to, const CUtensorMap *map,
                                                      uint64_t *full, int c0, int c1, int c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier"
                 "::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_addr(to)),
                 "l"(map), "r"(shared_addr(full)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

static __device__ __forceinline__ void tensor_load_4d(void *to, const CUtensorMap *map,
                                                      uint64_t *full, int c0, int c1, int c2,
                                                      int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier"
                 "::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_addr(to)),
                 "l"(map), "r"(shared_addr(full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* A TMA copy of a 5-dimensional box; it reports its bytes to the barrier `full`. */
static __device__ __forceinline__ void tensor_load_5d(void *to, const CUtensorMap *map,
                                                      uint64_t *full, int c0, int c3, int c4)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier"
        "::complete_tx::bytes [%0], [%1, {%3, %4, %4, %5, %6}], [%2];" ::"r"(shared_addr(to)),
        "l"(map), "r"(shared_addr(full)), "r"(c0), "r"(0), "r"(c3), "r"(c4)
        : "memory");
}

/* A run of memory to shared memory, both aligned to 16 bytes, as are its bytes. */
static __device__ __forceinline__ void copy_to_shared(void *to, const void *from, int bytes,
                                                      uint64_t *full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_addr(to)),
                 "l"(from), "r"(bytes), "r"(shared_addr(full))
                 : "memory");
}

/* --- registers ------------------------------------------------------------------------- */

/* The warpgroup may use more registers from here on; others must have given them. */
template <int N> static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- products -------------------------------------------------------------------------- */

/* Orders accesses to registers and shared memory before the wgmma that follow. */
static __device__ __forceinline__ void warpgroup_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void warpgroup_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until at most LEFT of the committed groups are unfinished. */
template <int LEFT> static __device__ __forceinline__ void warpgroup_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* An empty asm that names the registers: the compiler cannot move their use across it. */
template <int N> static __device__ __forceinline__ void keep(float (&r)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(r[i])::"memory");
}

template <int N> static __device__ __forceinline__ void keep(uint32_t (&r)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(r[i][0]), "+r"(r[i][1]), "+r"(r[i][2]), "+r"(r[i][3])::"memory");
}

/* The descriptor of a wgmma operand in shared memory with 128-byte swizzle. Slabs are 8 rows of 128
 * bytes. Along rows, slabs are `rows_apart` bytes apart. Read as columns (transposed operand),
 * neighbouring slabs are `columns_apart` bytes apart. */
static __device__ __forceinline__ uint64_t operand(const void *p, int rows_apart, int columns_apart)
{
    return (uint64_t)(shared_addr(p) >> 4) | (uint64_t)(columns_apart >> 4) << 16 |
           (uint64_t)(rows_apart >> 4) << 32 | (uint64_t)1 << 62;
}

/* Operand lists of the inline assembly. SM90_STRn are the names of n accumulators ("%0, %1, ..."),
 * SM90_Cn their constraints ("+f"(c[0]), ...). For example SM90_STR16 is SM90_R0 ", " SM90_R8, that
 * is "%0, ..., %7, %8, ..., %15". */
#define SM90_R0    "%0, %1, %2, %3, %4, %5, %6, %7"
#define SM90_R8    "%8, %9, %10, %11, %12, %13, %14, %15"
#define SM90_R16   "%16, %17, %18, %19, %20, %21, %22, %23"
#define SM90_R24   "%24, %25, %26, %27, %28, %29, %30, %31"
#define SM90_R32   "%32, %33, %34, %35, %36, %37, %38, %39"
#define SM90_R40   "%40, %41, %42, %43, %44, %45, %46, %47"
#define SM90_R48   "%48, %49, %50, %51, %52, %53, %54, %55"
#define SM90_R56   "%56, %57, %58, %59, %60, %61, %62, %63"
#define SM90_STR4  "%0, %1, %2, %3"
#define SM90_STR8  SM90_R0
#define SM90_STR16 SM90_R0 ", " SM90_R8
#define SM90_STR24 SM90_STR16 ", " SM90_R16
#define SM90_STR32 SM90_R0 ", " SM90_R8 ", " SM90_R16 ", " SM90_R24
#define SM90_STR40 SM90_STR32 ", " SM90_R32
#define SM90_STR48 SM90_STR40 ", " SM90_R40
#define SM90_STR64 SM90_STR48 ", " SM90_R48 ", " SM90_R56

#define SM90_EIGHT(i)                                                                           \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define SM90_C4  "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define SM90_C8  SM90_EIGHT(0)
#define SM90_C16 SM90_EIGHT(0), SM90_EIGHT(8)
#define SM90_C24 SM90_EIGHT(0), SM90_EIGHT(8), SM90_EIGHT(16)
#define SM90_C32 SM90_EIGHT(0), SM90_EIGHT(8), SM90_EIGHT(16), SM90_EIGHT(24)
#define SM90_C40 SM90_C32, SM90_EIGHT(32)
#define SM90_C48 SM90_C40, SM90_EIGHT(40)
#define SM90_C64 SM90_C48, SM90_EIGHT(48), SM90_EIGHT(56)

/* c [64][N] (+)= a [64][16] * b, of bfloat16 (multiply) or float16 (multiply_half); a thread holds
 * N / 2 floats of c. _rows(): b is [N][16], a is in shared memory or in registers; add 0 overwrites
 * c. _columns(): b is [16][N], a is in registers; adds. One SM90_PRODUCTS line below makes the six
 * functions of one N; A0 .. A5 are the numbers of the operands after the accumulators. */
#define SM90_TYPED(PREFIX, TYPE, N, C, A0, A1, A2, A3, A4, A5)                                     \
    static __device__ __forceinline__ void PREFIX##_rows(float(&c)[C], uint64_t a, uint64_t b,     \
                                                         int add)                                  \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, " A2 ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE               \
                     " {" SM90_STR##C "}, " A0 ", " A1 ", p, 1, 1, 0, 0;\n"                        \
                                      "}"                                                          \
                     : SM90_C##C                                                                   \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }                                                                                              \
    static __device__ __forceinline__ void PREFIX##_rows(float(&c)[C], const uint32_t(&a)[4],      \
                                                         uint64_t b, int add)                      \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, " A5 ", 0;\n"                                                 \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE               \
                     " {" SM90_STR##C "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " A4 ", p, 1, 1, 0;\n" \
                                      "}"                                                          \
                     : SM90_C##C                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));              \
    }                                                                                              \
    static __device__ __forceinline__ void PREFIX##_columns(float(&c)[C], const uint32_t(&a)[4],   \
                                                            uint64_t b)                            \
    {                                                                                              \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, 1, 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE               \
                     " {" SM90_STR##C "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " A4 ", p, 1, 1, 1;\n" \
                                      "}"                                                          \
                     : SM90_C##C                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
#define SM90_PRODUCTS(N, C, ...)                    \
    SM90_TYPED(multiply, "bf16", N, C, __VA_ARGS__) \
    SM90_TYPED(multiply_half, "f16", N, C, __VA_ARGS__)

SM90_PRODUCTS(8, 4, "%4", "%5", "%6", "%7", "%8", "%9")
SM90_PRODUCTS(16, 8, "%8", "%9", "%10", "%11", "%12", "%13")
SM90_PRODUCTS(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
SM90_PRODUCTS(48, 24, "%24", "%25", "%26", "%27", "%28", "%29")
SM90_PRODUCTS(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
SM90_PRODUCTS(80, 40, "%40", "%41", "%42", "%43", "%44", "%45")
SM90_PRODUCTS(96, 48, "%48", "%49", "%50", "%51", "%52", "%53")
SM90_PRODUCTS(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")

#endif
