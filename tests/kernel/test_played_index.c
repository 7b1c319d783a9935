/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the choice of tokens as the GPU makes it, and attention over them, without one. Method: the
 * kernels played on the host (play_portable.h) against the references: whole numbers and quarter
 * turns, so that sums are exact and choices the same, also where many scores are equal; index keys
 * and attention within the rounding to bfloat16. A padding sequence, a decode, a chunk, texts that
 * are shorter than the choice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernel/played.h"
#include "tests/kernel/values.h"
#include "tests/tap.h"

#define N_SEQS    4
#define TOKENS    26
#define PAGE      16
#define PAGES_MAX 20
#define N_PAGES   (N_SEQS * PAGES_MAX)
#define LEN_MAX   (PAGE * PAGES_MAX)
#define ATTENDED  3 /* heads of attention */
#define LATENT    24
#define VALUE     16

static const struct {
    struct k_index_shape shape;
    bool interleaved;
    int most; /* of a number's size: small ones have many equal sums */
} cases[] = {{{64, 128, 64, 32}, false, 3},
             {{32, 64, 32, 200}, true, 3},
             {{5, 14, 6, 9}, true, 2},
             {{1, 2, 2, 1}, false, 1},
             {{2, 8, 4, 40}, false, 1}};

static const int32_t starts[N_SEQS + 1] = {0, 1, 2, 22, TOKENS}, lens[N_SEQS] = {0, 300, 85, 4};

static int32_t table[N_SEQS * PAGES_MAX], seqs[TOKENS], positions[TOKENS];

/* Whole numbers of -most .. most. */
static float *draw(size_t n, int most)
{
    float *f = malloc(n * sizeof *f);

    for (size_t i = 0; i < n; i++) {
        values_seed = values_seed * 1664525U + 1013904223U;
        f[i] = (float)((int)(values_seed >> 16) % (2 * most + 1) - most);
    }
    return f;
}

static k_bf16 *narrowed(const float *f, size_t n)
{
    k_bf16 *h = aligned_alloc(64, (n * sizeof *h + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++)
        h[i] = round_bf16(f[i]);
    return h;
}

static struct k_tokens make_tokens(void)
{
    for (int s = 0; s < N_SEQS; s++) {
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            seqs[i] = s;
            positions[i] = lens[s] == 0 ? 0 : lens[s] - starts[s + 1] + i;
        }
    }
    for (int i = 0; i < N_PAGES; i++)
        table[i] = i * 7 % N_PAGES;
    return (struct k_tokens){.seq = seqs,
                             .pos = positions,
                             .seq_start = starts,
                             .kv_len = lens,
                             .page_ids = table,
                             .n_tokens = TOKENS,
                             .n_seqs = N_SEQS,
                             .pages_max = PAGES_MAX};
}

/* Position p turns pair i by p + i quarters. */
static float *make_turns(int rope_dim)
{
    static const float cosines[4] = {1.0f, 0.0f, -1.0f, 0.0f};
    float *turns = malloc(sizeof *turns * LEN_MAX * (size_t)rope_dim);

    for (int p = 0; p < LEN_MAX; p++) {
        for (int i = 0; i < rope_dim / 2; i++) {
            turns[p * rope_dim + 2 * i] = cosines[(p + i) % 4];
            turns[p * rope_dim + 2 * i + 1] = cosines[(p + i + 3) % 4];
        }
    }
    return turns;
}

/* Mean square error of results, whose weights are rounded, too. */
static double error_of(const k_bf16 *got, const float *want, size_t n)
{
    double error = 0.0, square = 1e-30;

    for (size_t i = 0; i < n; i++) {
        double off = (double)widen(got[i]) - (double)want[i];

        error += off * off;
        square += (double)want[i] * (double)want[i];
    }
    return error / square;
}

/* Elements of pages that differ from the reference's by more than their rounding. */
static int differing(const k_bf16 *got, const float *want, size_t n)
{
    int n_off = 0;

    for (size_t i = 0; i < n; i++)
        n_off += fabsf(widen(got[i]) - want[i]) > 1e-4f + 5e-3f * fabsf(want[i]);
    return n_off;
}

static void check(int which)
{
    const struct k_index_shape *s = &cases[which].shape;
    int most = cases[which].most;
    size_t dim = (size_t)s->dim, heads = (size_t)s->n_heads, elems = PAGE * (LATENT + dim);
    size_t n_chosen = TOKENS * (size_t)s->n_keys, n_out = TOKENS * ATTENDED * VALUE;
    float *pages = draw(N_PAGES * elems, most), *queries = draw(TOKENS * heads * dim, most);
    float *weights = draw(TOKENS * heads, most), *norm = draw(dim, 2), *bias = draw(dim, 2);
    float *absorbed = draw(TOKENS * ATTENDED * LATENT, 1), *keys = draw(TOKENS * dim, most);
    float *turns = make_turns(s->rope_dim), *scratch = malloc(2 * LEN_MAX * sizeof *scratch);
    float *want = calloc(n_out, sizeof *want);
    int32_t *chosen = malloc(n_chosen * sizeof *chosen);
    const struct k_choice choice = {chosen, s->n_keys};
    k_bf16 *norm_low = narrowed(norm, dim), *bias_low = narrowed(bias, dim);
    k_bf16 *pages_low = narrowed(pages, N_PAGES * elems), *keys_low = narrowed(keys, TOKENS * dim);
    k_bf16 *queries_low = narrowed(queries, TOKENS * heads * dim);
    k_bf16 *absorbed_low = narrowed(absorbed, TOKENS * ATTENDED * LATENT);
    struct played_index p = {.t = make_tokens(),
                             .queries = queries_low,
                             .absorbed = absorbed_low,
                             .weights = weights,
                             .chosen = malloc(n_chosen * sizeof *p.chosen),
                             .out = calloc(n_out, sizeof *p.out),
                             .n_heads = ATTENDED,
                             .scale = 0.2f};
    struct k_index x = {.shape = *s,
                        .norm = norm,
                        .bias = bias,
                        .turns = turns,
                        .interleaved = cases[which].interleaved,
                        .eps = 1e-6f};
    struct k_kv kv = {.pages = pages,
                      .page_elems = elems,
                      .n_kv_heads = 1,
                      .head_dim = LATENT,
                      .value_dim = VALUE,
                      .page_tokens = PAGE,
                      .type = K_BF16,
                      .is_shared = true};
    struct k_kv of_keys = kv;

    of_keys.layer_elems = PAGE * LATENT;
    of_keys.head_dim = of_keys.value_dim = s->dim;
    p.x = x;
    p.x.norm = norm_low;
    p.x.bias = bias_low;
    p.x.scores = malloc(sizeof(float) * K_INDEX_BLOCKS * LEN_MAX);
    p.x.scores_len = LEN_MAX;
    p.kv = kv;
    p.of_keys = of_keys;
    p.kv.pages = p.of_keys.pages = pages_low;
    printf("# %d heads of %d, %d keys\n", s->n_heads, s->dim, s->n_keys);
    ok(played_index(&p) == 0, "no lane waits in vain");
    for (int i = 0; i < TOKENS; i++)
        ref_index_choose(chosen, queries, weights, &x, &of_keys, &p.t, i, scratch);
    ok(memcmp(chosen, p.chosen, n_chosen * sizeof *chosen) == 0, "the same choices");
    for (int i = ATTENDED; i < TOKENS * ATTENDED; i++) /* behind the padding token */
        ref_attn_chosen(want, absorbed, &kv, &p.t, &choice, ATTENDED, p.scale, i / ATTENDED,
                        i % ATTENDED, scratch);
    ok(error_of(p.out, want, n_out) < 1.5e-5, "attention: NMSE %.1e", error_of(p.out, want, n_out));
    p.keys = keys_low;
    ok(played_index(&p) == 0, "with keys of this step");
    ref_index_keys(keys, &x, &of_keys, &p.t, 0, TOKENS);
    is_int(differing(pages_low, pages, N_PAGES * elems), 0, "keys in the pages");
    free(pages), free(queries), free(weights), free(norm), free(bias), free(absorbed), free(keys);
    free(turns), free(scratch), free(want), free(chosen), free(norm_low), free(bias_low);
    free(pages_low), free(keys_low), free(queries_low), free(absorbed_low);
    free(p.chosen), free(p.out), free(p.x.scores);
}

int main(void)
{
    values_seed = tap_seed(1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check((int)i);
    return tap_done();
}
