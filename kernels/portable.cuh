/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the portable kernels: loads that stay out of the L1 cache, copies to shared memory, and
 * the product of two small matrices, as compute capability 8.0 has them. */
#ifndef QUIRE_KERNELS_PORTABLE_CUH
#define QUIRE_KERNELS_PORTABLE_CUH

#include "kernels/e4m3.cuh"

/* 16 bytes that are read once. */
static __device__ __forceinline__ uint4 portable_load_once(const void *p)
{
    uint4 v;

    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}

/* 16 bytes to shared memory, without waiting; zeros if not `has`. */
static __device__ __forceinline__ void portable_copy16(void *to, const void *from, bool has)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(has ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void portable_end_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most LEFT groups of this thread's copies are under way. */
template <int LEFT> static __device__ __forceinline__ void portable_wait_groups(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Four 8 x 8 matrices from shared memory, in the layout of an operand; or each transposed. */
static __device__ __forceinline__ void portable_load_matrices(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p))
                 : "memory");
}

static __device__ __forceinline__ void portable_load_matrices_turned(uint32_t (&r)[4],
                                                                     const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p))
                 : "memory");
}

/* c [16][8] += a [16][16] * b [16][8], of bfloat16 or, if HALF, of float16. */
template <bool HALF>
static __device__ __forceinline__ void portable_multiply(float (&c)[4], uint32_t a0, uint32_t a1,
                                                         uint32_t a2, uint32_t a3, uint32_t b0,
                                                         uint32_t b1)
{
    if (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t portable_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

#endif
