/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable products of few rows, compiled for the host. */
#include "tests/kernel/play_portable.h"

/* The parts of product.cuh that the end of a product needs; the rest is for Hopper. */
#define QUIRE_KERNELS_PRODUCT_CUH
#undef __grid_constant__
#define __grid_constant__
#undef __shared__
#define __shared__ static /* of the block that is played */

#include "kernels/common.cuh"

static void pin(int &)
{
}

template <class T> static void pin_global(T *&)
{
}

static uint32_t shared_addr(const void *) /* of functions that are not played */
{
    return 0;
}

#define __expf                     expf
#define k_multiply_portable        play_multiply
#define k_multiply_takes_portable  play_multiply_takes
#define k_multiply_bucket_portable play_multiply_bucket
#include "kernels/portable_product.cu"
#include "tests/kernel/played.h"

int played_multiply(const struct k_product *p, int n)
{
    play.fault = NULL;
    return play_multiply(p, n, 1, NULL);
}
