/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the kernels of experts (experts_route.cu, experts_few.cu, sm90_experts.cu,
 * experts.cu). */
#ifndef QUIRE_KERNELS_EXPERTS_CUH
#define QUIRE_KERNELS_EXPERTS_CUH

#include <cuda.h>

#include "kernels/activation.cuh"
#include "kernels/e4m3.cuh"
#include "kernels/mixing.h"

/* One product of all experts of a rank, with the activation if it is the first of the two:
 *
 *   is_gated   out [route][n_out] = activation(x * gate) * (x * up), x [token][n_in]; rows of an
 *              expert are its n_out gates, then its n_out ups, or its ups alone (up is 0), which
 *              are then the gates too
 *   otherwise  out [route][n_out] = x * w, x [route][n_in] in the order of experts */
struct experts_product {
    const k_bf16 *x;
    const void *w;       /* [n_experts][rows][n_in], or as mxfp4.h */
    const float *scales; /* by row [n_experts * rows], or in blocks [..][scale_cols] */
    k_bf16 *out;
    const int32_t *starts, *routes, *touched, *tiles; /* of k_mixing */
    int n_in, n_out, rows;                            /* rows: of an expert in w */
    int up;                                           /* rows from a gate to its up */
    int scale_cols;
    int n_tokens, n_used, n_experts;
    const float *inverse; /* float32 [n_tokens], the factors of x; or NULL */
    const k_bf16 *bias;   /* bf16 [n_experts * rows] or NULL */
    enum k_activation activation;
    bool is_gated;
};

enum experts_format { EXPERTS_PLAIN, EXPERTS_BY_ROW, EXPERTS_IN_BLOCKS, EXPERTS_MXFP4 };

/* The order of elements within a row of x of experts_many(), which is that of the lanes that have
 * w: as it is; K_HALF_AT in each 16; or in each 32, which are four runs of eight, the first,
 * second, third and fourth pair of each run. */
enum experts_order { ORDER_PLAIN, ORDER_HALF, ORDER_OF_LANES };

static inline enum experts_order experts_order_of(enum experts_format format)
{
    if (format == EXPERTS_PLAIN)
        return ORDER_PLAIN;
    return format == EXPERTS_MXFP4 ? ORDER_OF_LANES : ORDER_HALF;
}

#define EXPERTS_BLOCK 128 /* rows and columns of a block with one scale */

/* The end of an FFN: the sum of each token's routes, and of what out has. residual NULL: it goes to
 * out, else on as that of K_PRODUCT_RESIDUAL. */
struct experts_end {
    k_bf16 *out;
    const k_bf16 *y;
    struct k_combining c;
    float *residual, *sums_out;
    const k_bf16 *norm;
    void *normed;
    bool is_half;
};

/* experts_few.cu, sm90_experts.cu. Both take rows of n_in in whole 16 bytes only; MXFP4 in whole
 * groups. experts_few_choose(): the first product of one token with up to FEW_CHOOSE_MAX slots,
 * after route_logits_of_one(). experts_few_sum(): the second product of one token and its end, so
 * that p's out and end's y are not used; for shapes that experts_few_sums() takes. */
int experts_few(const struct experts_product *p, enum experts_format format, int n_sms,
                k_stream stream);
#define FEW_CHOOSE_MAX 31
struct route_args;
int experts_few_choose(const struct experts_product *p, const struct route_args *choice,
                       enum experts_format format, int n_sms, k_stream stream);
bool experts_few_sums(const struct experts_product *p, enum experts_format format, int n_sms);
int experts_few_sum(const struct experts_product *p, const struct experts_end *end,
                    enum experts_format format, int n_sms, k_stream stream);
/* experts_one.cu: experts_few_choose() and experts_few_sum() in one launch, with the same bits, for
 * shapes that experts_one_takes(). The launch in front fills first->out with ones (ff of
 * route_args). There are n_sms blocks, which wait for each other: a device that cannot run all of
 * them at the same time takes no shape. */
bool experts_one_takes(const struct experts_product *first, const struct experts_product *second,
                       enum experts_format in, enum experts_format down, int n_sms);
int experts_one(const struct experts_product *first, const struct experts_product *second,
                const struct experts_end *end, const struct route_args *choice,
                enum experts_format format, int n_sms, k_stream stream);
/* experts_strips.cu: the same as experts_few() of MXFP4, with the same bits; faster from
 * FEW_STRIPS_MIN tokens on, and experts_few() takes at most eight. */
#define FEW_STRIPS_MIN 4
int experts_strips(const struct experts_product *p, int n_sms, k_stream stream);
/* x [route][n_in] in the order of experts for either product, its elements in experts_order_of()
 * the format, n_in in whole runs of that order, n_out in whole eights. out: the order of outputs,
 * which are whole runs; ORDER_PLAIN unless is_gated. */
int experts_many(const struct experts_product *p, enum experts_format format,
                 enum experts_order out, int n_sms, k_stream stream);

/* Rows of x in the order of experts, for experts_many(). */
int experts_gather(k_bf16 *out, const k_bf16 *x, const struct experts_product *p,
                   enum experts_order order, k_stream stream);

/* TMA maps of both kernels for many routes, of elements of one byte (e4m3) or two (bfloat16); boxes
 * have 128 bytes of a row. w as [experts][eights of rows][parts][8 rows][n_in], gates and ups being
 * two parts, in boxes of tile_rows rows; p->x as [1][routes][n_in]. Return non-zero if CUDA refuses
 * the shape. */
int experts_map_w(CUtensorMap *map, const struct experts_product *p, bool is_bytes, int tile_rows);
int experts_map_x(CUtensorMap *map, const struct experts_product *p, bool is_bytes, int routes);

/* sm90_grouped.cu: the same for plain matrices, or e4m3 with rows of x rounded to e4m3, a scale for
 * each run of 128 elements. experts_spread() puts x, which is not p->x, into p's order of routes,
 * rounded or not, and sets both counters of k_mixing's taken to 0. experts_grouped() multiplies its
 * rows or the first product's outputs; each product has its counter. The first product rounds its
 * outputs, if its matrix is e4m3; the second does not. Scales stand behind the codes, which are
 * half as large as the bfloat16 that there must be room for. */
int experts_spread(void *out, const k_bf16 *x, const int32_t *places, uint32_t *taken,
                   const struct experts_product *p, bool rounds, k_stream stream);
int experts_grouped(const struct experts_product *p, enum experts_format format, uint32_t *taken,
                    int n_sms, k_stream stream);

/* portable_experts.cu: the same for few routes and for many, with x as it is. is_many: the step has
 * more tokens than K_MIXING_FEW. */
int experts_tiles(const struct experts_product *p, enum experts_format format, bool is_many,
                  k_stream stream);

/* The row of x of a place in the order of routes. */
static __device__ inline int experts_row(const struct experts_product &p, int place)
{
    if (!p.is_gated)
        return place;
    return p.n_tokens == 1 ? 0 : p.routes[place] / p.n_used;
}

/* The factor of the row of x of a place. */
static __device__ inline float experts_factor(const struct experts_product &p, int place)
{
    return p.inverse != NULL ? p.inverse[experts_row(p, place)] : 1.0f;
}

/* The bias of a row of an expert. */
static __device__ inline float experts_own_bias(const struct experts_product &p, int expert,
                                                int row)
{
    return p.bias != NULL ? load_bf16(p.bias + (size_t)expert * p.rows + row) : 0.0f;
}

/* c [16][8] += a [16][16] * b [16][8] */
static __device__ __forceinline__ void experts_multiply(float (&c)[4], uint32_t a0, uint32_t a1,
                                                        uint32_t a2, uint32_t a3, uint32_t b0,
                                                        uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Kernels of a step of few tokens are launched while the previous kernel still runs, which hides
 * the launch. Each calls this before it reads or writes anything that others write; only then may
 * the next one be launched. */
static __device__ __forceinline__ void experts_wait_for_previous(void)
{
    wait_for_previous();
    let_next_begin();
}

#ifndef gridDim /* else kernels are played on the host */
template <class... P, class... A>
static inline int experts_launch_early(void (*kernel)(P...), dim3 grid, unsigned block, size_t smem,
                                       k_stream stream, A... args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = k_is_portable() ? 0 : 1;
    return cudaLaunchKernelEx(&config, kernel, args...) == cudaSuccess ? 0 : -1;
}
#endif

/* 16 bytes of weights, which are read once. */
static __device__ __forceinline__ uint4 experts_load_once(const void *p)
{
    uint4 v;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* 16 bytes from memory to shared memory, without waiting; zeros if not `has`. */
static __device__ __forceinline__ void experts_copy_later(void *to, const void *from, bool has)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(has ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void experts_copies_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most LEFT groups of this thread's copies are under way. */
template <int LEFT> static __device__ __forceinline__ void experts_copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
