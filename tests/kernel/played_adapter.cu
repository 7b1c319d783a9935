/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of adapters, compiled for the host. */
#include "tests/kernel/play_portable.h"

/* Blocks run one after another, so that one copy is enough. */
#undef __shared__
#define __shared__ static

/* A barrier of all threads, whose warps have met different numbers of times. It also counts as a
 * step forward for play_block(); an even number of words, so that lanes keep their turns. */
static void played_syncthreads(void)
{
    static int met[PLAY_THREADS];
    int self = play.current, turn = ++met[self];

    play.threads[self].n_met += 2;
    for (int i = 0; i < play.n_threads; i++) {
        while (met[i] < turn)
            (void)swapcontext(&play.threads[self].context, &play.scheduler);
    }
}
#define __syncthreads played_syncthreads

/* The word of attn_chunk.cuh that adapters use is portable.cuh's. */
#define QUIRE_KERNELS_ATTN_CHUNK_CUH
static void chunk_multiply(float (&c)[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    portable_multiply<false>(c, a[0], a[1], a[2], a[3], b0, b1);
}

#include "kernels/adapter.cu"
#include "tests/kernel/played.h"

int played_adapt(const struct k_adapting *a)
{
    play.fault = NULL;
    return k_adapt_in(a, NULL) == 0 && k_adapt_out(a, NULL) == 0 && play.fault == NULL ? 0 : -1;
}
