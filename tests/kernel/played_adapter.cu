/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of adapters, compiled for the host. */
#include "tests/kernel/play.h"

/* Blocks run one after another, so that one copy is enough. */
#undef __shared__
#define __shared__ static
using std::min;

/* A barrier of all threads. It also counts as a step forward for play_block(); an even number of
 * words, so that lanes keep their turns. */
static void __syncthreads(void)
{
    static int met[PLAY_THREADS];
    int self = play.current, turn = ++met[self];

    play.threads[self].n_met += 2;
    for (int i = 0; i < play.n_threads; i++) {
        while (met[i] < turn)
            (void)swapcontext(&play.threads[self].context, &play.scheduler);
    }
}

#include "kernels/adapter.cu"
#include "tests/kernel/played.h"

int played_adapt(const struct k_adapting *a)
{
    play.fault = NULL;
    return k_adapt_in(a, NULL) == 0 && k_adapt_out(a, NULL) == 0 && play.fault == NULL ? 0 : -1;
}
