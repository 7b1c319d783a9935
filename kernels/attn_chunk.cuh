/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of attn_chunk.cu: loads of matrices, their product, copies to shared memory. */
#ifndef QUIRE_KERNELS_ATTN_CHUNK_CUH
#define QUIRE_KERNELS_ATTN_CHUNK_CUH

#include "kernels/common.cuh"

/* Four 8 x 8 matrices from shared memory, in the layout of a left operand. */
static __device__ inline void chunk_load_matrices(uint32_t r[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

/* Four matrices, each transposed: values are the right operand of the second product, and have a
 * key per row. */
static __device__ inline void chunk_load_matrices_turned(uint32_t r[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

/* c [16][8] += a [16][16] * b [16][8] */
static __device__ inline void chunk_multiply(float c[4], const uint32_t a[4], uint32_t b0,
                                             uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes without a detour through registers, and not through the L1 cache. */
static __device__ inline void chunk_copy16(bf16 *to, const k_bf16 *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from));
}

/* Close a group of copies; chunk_wait_groups() waits for groups in order. */
static __device__ inline void chunk_end_group(void)
{
    asm volatile("cp.async.commit_group;");
}

template <int LEFT> static __device__ inline void chunk_wait_groups(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
