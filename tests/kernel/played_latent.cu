/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention, with the kernel for chunks of prompts, and the choice of tokens, compiled for
 * the host. */
#define PLAY_SHARED (227 * 1024)
#include "tests/kernel/play_portable.h"

static uint32_t __float_as_uint(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static uint32_t __ballot_sync(unsigned mask, bool yes)
{
    int turn = play_meet(mask, yes ? 1.0f : 0.0f), first = play.current / 32 * 32;
    uint32_t votes = 0;

    for (int i = 0; i < 32; i++)
        votes |= (uint32_t)(play.threads[first + i].told[turn] != 0.0f) << i;
    return votes;
}

static int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}

static uint32_t atomicAdd(uint32_t *to, uint32_t x)
{
    *to += x;
    return *to - x;
}

/* The words of attn_chunk.cuh are those of portable.cuh. */
#define QUIRE_KERNELS_ATTN_CHUNK_CUH
#define chunk_load_matrices        portable_load_matrices
#define chunk_load_matrices_turned portable_load_matrices_turned
#define chunk_end_group            portable_end_group
#define chunk_wait_groups          portable_wait_groups
#define chunk_copy16(to, from)     portable_copy16(to, from, true)

/* Of rows of bfloat16. */
static void play_store_two(void *to, size_t at, float low, float high, bool is_half)
{
    if (is_half)
        play.fault = "rows of float16 are not played";
    *(uint32_t *)((k_bf16 *)to + at) = pack_bf16(low, high);
}
#define store_x_two play_store_two

static void chunk_multiply(float (&c)[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    portable_multiply<false>(c, a[0], a[1], a[2], a[3], b0, b1);
}

#include "kernels/latent_products.cu"

#include "kernels/attn_latent_few.cu"
#undef ROW
#undef VALUES
#undef KEYS
#undef HEADS
#undef WARPS
#undef THREADS
#undef STAGES
#undef ROOM
#undef WEIGHTS
#undef SCORES
#undef RAW_ROOM
#undef NOTHING
#undef LOG2_E
/* Its names are short: it comes after the others. */
#include "kernels/attn_chunk.cu"
#include "kernels/latent.cu"
#include "tests/kernel/played.h"

#undef THREADS
#undef WARPS
#undef HEADS
/* Of index_choose_kernel(). */
alignas(16) float index_shared[32 * 1024];
#include "kernels/index.cu"

int played_index(const struct played_index *of)
{
    const k_choice chosen = {of->chosen, of->x.shape.n_keys};

    play.fault = NULL;
    if ((of->keys != NULL && k_index_keys(of->keys, &of->x, &of->of_keys, &of->t, NULL) != 0) ||
        k_index_choose(of->chosen, of->queries, of->weights, &of->x, &of->of_keys, &of->t, NULL) !=
            0 ||
        k_attn_chosen(of->out, of->absorbed, &of->kv, &of->t, &chosen, of->n_heads, of->scale,
                      NULL) != 0)
        return -1;
    return play.fault == NULL ? 0 : -1;
}

int played_latent_few(const struct played_latent *of)
{
    play.fault = NULL;
    if (k_latent_attend(of->absorbed, &of->kv, &of->t, &of->plan, of->l.shape.n_heads, of->scale,
                        of->is_fresh, NULL) != 0 ||
        k_latent_attended(of->out, false, &of->l, &of->t, &of->plan, of->scale, NULL) != 0)
        return -1;
    return play.fault == NULL ? 0 : -1;
}

int played_latent(const struct played_latent *of)
{
    play.fault = NULL;
    if (k_latent_keys(of->normed, false, of->rows, &of->l, &of->kv, &of->t, NULL) != 0 ||
        k_latent_queries(of->absorbed, of->queries, &of->l, &of->t, NULL) != 0 ||
        k_attn_latents_plain(of->sums, of->absorbed, &of->kv, &of->t, &of->plan,
                             of->l.shape.n_heads, of->scale, NULL) != 0 ||
        k_latent_values(of->out, false, of->sums, &of->l, &of->t, NULL) != 0)
        return -1;
    return play.fault == NULL ? 0 : -1;
}
