/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: latent attention as the GPU does it, without one. Method: its kernels and that for chunks
 * of prompts played on the host (play_portable.h), each against its reference on what the one
 * before has written: sizes of released models and odd ones, pairs of both kinds, decodes, chunks
 * that share tiles or fill several, a sequence that is only padding. Results are rounded to
 * bfloat16 once, and the weights of values too: a mean square error of some 3e-6. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/e4m3.h"
#include "tests/kernel/played.h"
#include "tests/tap.h"

#define N_SEQS    4
#define TOKENS    24
#define PAGE      16
#define PAGES_MAX 6
#define N_PAGES   (N_SEQS * PAGES_MAX)
#define BEFORE    8 /* elements before the layer's in a page */
#define LEN_MAX   (PAGE * PAGES_MAX)

static const struct {
    struct k_latent_shape shape;
    bool interleaved;
} shapes[] = {{{16, 0, 512, 32, 64, 24}, true}, {{20, 0, 512, 24, 64, 40}, false},
              {{8, 12, 256, 16, 64, 16}, true}, {{3, 20, 128, 32, 16, 64}, true},
              {{3, 0, 20, 9, 8, 5}, true},      {{128, 0, 24, 6, 8, 4}, false}};

/* A padding sequence, a decode, chunks. */
static const int32_t starts[N_SEQS + 1] = {0, 1, 2, 21, TOKENS}, lens[N_SEQS] = {0, 70, 85, 3};

static unsigned seed;
static int32_t table[N_SEQS * PAGES_MAX], seqs[TOKENS], positions[TOKENS];
static int32_t tile_seqs[TOKENS], tile_starts[TOKENS];
static const int32_t decode_seqs[2] = {0, 1};

static float widen(k_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Random numbers, as bfloat16 in *out and as the same floats; aligned as a device's memory is. */
static float *draw(k_bf16 **out, size_t n, float by)
{
    k_bf16 *h = aligned_alloc(256, (n * sizeof *h + 255) / 256 * 256);
    float *f = malloc(n * sizeof *f);

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        seed = seed * 1664525U + 1013904223U;
        f[i] = ((float)(seed >> 8) * 0x1p-23f - 1.0f) * by;
        memcpy(&bits, &f[i], sizeof bits);
        h[i] = (k_bf16)(bits >> 16);
        f[i] = widen(h[i]);
    }
    *out = h;
    return f;
}

static float *floats_of(const k_bf16 *h, size_t n)
{
    float *f = malloc(n * sizeof *f);

    for (size_t i = 0; i < n; i++)
        f[i] = widen(h[i]);
    return f;
}

/* Compare elements of tokens that are not padding: the first `skip` are. */
static void compare(const k_bf16 *got, const float *want, size_t skip, size_t n, const char *what)
{
    double error = 0.0, square = 1e-30;

    for (size_t i = skip; i < n; i++) {
        double diff = (double)widen(got[i]) - (double)want[i];

        error += diff * diff;
        square += (double)want[i] * (double)want[i];
    }
    ok(error < 1.5e-5 * square, "%s: NMSE %.1e", what, error / square);
}

static struct k_tokens make_tokens(void)
{
    for (int s = 0; s < N_SEQS; s++) {
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            seqs[i] = s;
            positions[i] = lens[s] == 0 ? 0 : lens[s] - starts[s + 1] + i;
        }
    }
    for (int i = 0; i < N_SEQS * PAGES_MAX; i++)
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

static float *make_turns(int rope_dim)
{
    float *turns = malloc(sizeof *turns * LEN_MAX * (size_t)rope_dim);

    for (int p = 0; p < LEN_MAX; p++) {
        for (int i = 0; i < rope_dim; i += 2) {
            float angle = (float)p * powf(10.0f, -(float)i / 16.0f);

            turns[p * rope_dim + i] = cosf(angle);
            turns[p * rope_dim + i + 1] = sinf(angle);
        }
    }
    return turns;
}

/* The numbers of pages, of either type. */
static float *numbers_of(const struct k_kv *kv, size_t n)
{
    float *f;

    if (kv->type == K_BF16)
        return floats_of(kv->pages, n);
    f = malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = k_e4m3_value(((const k_e4m3 *)kv->pages)[i]) * kv->k_scale;
    return f;
}

/* Rows in pages of e4m3: those of the reference, rounded. */
static void compare_rounded(const struct k_kv *kv, const float *want, size_t n)
{
    const k_e4m3 *got = kv->pages;
    size_t n_other = 0;

    for (size_t i = 0; i < n; i++)
        n_other += got[i] != k_e4m3_round(want[i] / kv->k_scale);
    ok(n_other <= n / 1000, "rows in the pages: %zu of %zu are rounded otherwise", n_other, n);
}

/* The steps' results, one after another, each against the reference on the input that it had. */
static void compare_all(const struct played_latent *p, struct k_latent l, float *pages,
                        const float *rows, const float *queries, size_t q_rank)
{
    const struct k_latent_shape *s = &l.shape;
    size_t n_pages = N_PAGES * p->kv.page_elems, heads = TOKENS * (size_t)s->n_heads;
    size_t row = (size_t)k_latent_row(s), rank = (size_t)s->kv_rank;
    float *absorbed = floats_of(p->absorbed, heads * row), *sums = floats_of(p->sums, heads * rank);
    float *want = calloc(heads * (row + (size_t)s->v_dim), sizeof *want), scratch[LEN_MAX];
    size_t first = (size_t)s->n_heads; /* heads of the padding token */
    struct k_kv kv = p->kv;
    float *normed;

    kv.pages = pages;
    normed = calloc(TOKENS * q_rank + 1, sizeof *normed);
    ref_latent_keys(normed, rows, &l, &kv, &p->t, 0, TOKENS);
    if (q_rank > 0)
        compare(p->normed, normed, 0, TOKENS * q_rank, "normed latents of queries");
    free(normed);
    if (p->kv.type == K_BF16)
        compare(p->kv.pages, pages, 0, n_pages, "rows in the pages");
    else
        compare_rounded(&p->kv, pages, n_pages);
    for (int i = 0; i < TOKENS * s->n_heads; i++)
        ref_latent_queries(want, queries, &l, &p->t, i / s->n_heads, i % s->n_heads);
    compare(p->absorbed, want, 0, heads * row, "absorbed queries");
    kv.pages = numbers_of(&p->kv, n_pages);
    for (int i = 1; i < TOKENS; i++)
        ref_attn(want, absorbed, &kv, &p->t, s->n_heads, p->scale, i, 0, scratch);
    compare(p->sums, want, first * rank, heads * rank, "attention");
    for (int i = 0; i < TOKENS * s->n_heads; i++)
        ref_latent_values(want, sums, &l, i / s->n_heads, i % s->n_heads);
    compare(p->out, want, first * (size_t)s->v_dim, heads * (size_t)s->v_dim, "values");
    free(absorbed), free(sums), free(want), free(kv.pages);
}

/* Earlier rows as pages of e4m3 have them: the floats become their values. */
static void round_pages(void *pages, float *floats, size_t n, float scale)
{
    k_e4m3 *bytes = pages;

    for (size_t i = 0; i < n; i++) {
        bytes[i] = k_e4m3_round(floats[i] / scale);
        floats[i] = k_e4m3_value(bytes[i]) * scale;
    }
}

static void check(const struct k_latent_shape *s, bool interleaved, enum k_type type)
{
    size_t row = (size_t)k_latent_row(s), heads = TOKENS * (size_t)s->n_heads;
    size_t elems = BEFORE + PAGE * row, rank = (size_t)s->kv_rank;
    struct played_latent p = {.t = make_tokens(), .scale = 0.2f};
    size_t q_rank = (size_t)s->q_rank;
    k_bf16 *norm, *q_norm, *up, *pages, *rows, *queries;
    struct k_latent l = {.shape = *s, .interleaved = interleaved, .eps = 1e-6f};
    float *host_pages, *host_rows, *host_queries, *host_norm, *host_q_norm, *host_up, *turns;

    l.turns = turns = make_turns(s->rope_dim);
    l.norm = host_norm = draw(&norm, rank, 1.0f);
    l.q_norm = host_q_norm = draw(&q_norm, q_rank, 1.0f);
    l.up = host_up = draw(&up, (size_t)(s->n_heads * (s->nope_dim + s->v_dim)) * rank, 0.1f);
    host_pages = draw(&pages, N_PAGES * elems, 1.0f);
    host_rows = draw(&rows, TOKENS * (size_t)k_latent_in(s), 2.0f);
    host_queries = draw(&queries, TOKENS * (size_t)k_latent_stride(s), 1.0f);
    p.l = l;
    p.l.norm = norm;
    p.l.q_norm = q_norm;
    p.l.up = up;
    p.kv = (struct k_kv){.pages = pages,
                         .page_elems = elems,
                         .layer_elems = BEFORE,
                         .n_kv_heads = 1,
                         .head_dim = (int)row,
                         .value_dim = s->kv_rank,
                         .page_tokens = PAGE,
                         .type = type,
                         .k_scale = type == K_BF16 ? 1.0f : 0.5f,
                         .v_scale = type == K_BF16 ? 1.0f : 0.5f,
                         .is_shared = true};
    if (type != K_BF16)
        round_pages(pages, host_pages, N_PAGES * elems, p.kv.k_scale);
    k_attn_tiles(tile_seqs, tile_starts, &p.plan, &p.t, s->n_heads);
    p.plan.tile_seqs = tile_seqs;
    p.plan.tile_starts = tile_starts;
    p.plan.decode_seqs = decode_seqs;
    p.plan.n_decodes = 2;
    p.rows = rows;
    p.queries = queries;
    p.normed = calloc(TOKENS * q_rank + 1, sizeof *p.normed);
    p.absorbed = calloc(heads * row, sizeof *p.absorbed);
    p.sums = calloc(heads * rank, sizeof *p.sums);
    p.out = calloc(heads * (size_t)s->v_dim, sizeof *p.out);
    printf("# %d heads of %d and %d, latents of %zu in %s\n", s->n_heads, s->nope_dim, s->v_dim,
           row, type == K_BF16 ? "bf16" : "e4m3");
    ok(played_latent(&p) == 0, "no lane waits in vain");
    compare_all(&p, l, host_pages, host_rows, host_queries, q_rank);
    free(host_q_norm), free(q_norm), free(p.normed);
    free(host_norm), free(host_up), free(turns), free(norm), free(up);
    free(pages), free(rows), free(queries), free(host_pages), free(host_rows), free(host_queries);
    free(p.absorbed), free(p.sums), free(p.out);
}

/* Decodes alone, one of them of a padding sequence, by the kernels for few: against attention of
 * the reference, and values of it. */
static void check_few(const struct k_latent_shape *s, enum k_type type, bool is_fresh)
{
    static const int32_t few_starts[] = {0, 1, 2, 3, 4}, few_lens[] = {0, 70, 1, 85};
    size_t row = (size_t)k_latent_row(s), heads = N_SEQS * (size_t)s->n_heads;
    size_t elems = BEFORE + PAGE * row, rank = (size_t)s->kv_rank;
    struct played_latent p = {.t = make_tokens(), .scale = 0.05f};
    float *host_up, *host_pages, *host_absorbed, *want, *sums, scratch[LEN_MAX];
    k_bf16 *up, *pages, *absorbed;
    struct k_latent l = {.shape = *s};
    struct k_kv kv;

    for (int i = 0; i < N_SEQS; i++)
        seqs[i] = i, positions[i] = few_lens[i] > 0 ? few_lens[i] - 1 : 0;
    p.t.seq_start = few_starts;
    p.t.kv_len = few_lens;
    p.t.n_tokens = N_SEQS;
    l.up = host_up = draw(&up, (size_t)(s->n_heads * (s->nope_dim + s->v_dim)) * rank, 0.1f);
    host_pages = draw(&pages, N_PAGES * elems, 1.0f);
    host_absorbed = draw(&absorbed, heads * row, 1.0f);
    p.l = l;
    p.l.up = up;
    kv = (struct k_kv){.pages = pages,
                       .page_elems = elems,
                       .layer_elems = BEFORE,
                       .n_kv_heads = 1,
                       .head_dim = (int)row,
                       .value_dim = s->kv_rank,
                       .page_tokens = PAGE,
                       .type = type,
                       .k_scale = type == K_BF16 ? 1.0f : 0.5f,
                       .v_scale = type == K_BF16 ? 1.0f : 0.5f,
                       .is_shared = true};
    if (type != K_BF16)
        round_pages(pages, host_pages, N_PAGES * elems, kv.k_scale);
    p.kv = kv;
    p.plan.n_decodes = N_SEQS;
    p.plan.overlap = is_fresh;
    p.is_fresh = is_fresh;
    p.plan.work = aligned_alloc(256, k_attn_work_bytes((int)row, s->n_heads, 1));
    p.absorbed = absorbed;
    p.out = calloc(heads * (size_t)s->v_dim, sizeof *p.out);
    sums = calloc(heads * rank, sizeof *sums);
    want = calloc(heads * (size_t)s->v_dim, sizeof *want);
    printf("# few decodes of %d heads, values of %d\n", s->n_heads, s->v_dim);
    ok(played_latent_few(&p) == 0, "no lane waits in vain");
    kv.pages = host_pages;
    for (int i = 1; i < N_SEQS; i++)
        ref_attn(sums, host_absorbed, &kv, &p.t, s->n_heads, p.scale, i, 0, scratch);
    for (int i = 0; i < (int)heads; i++)
        ref_latent_values(want, sums, &l, i / s->n_heads, i % s->n_heads);
    compare(p.out, want, 0, heads * (size_t)s->v_dim, "values of few decodes");
    free(host_up), free(host_pages), free(host_absorbed), free(want), free(sums);
    free(up), free(pages), free(absorbed), free(p.plan.work), free(p.out);
}

int main(void)
{
    static const struct k_latent_shape few[] = {{3, 0, 512, 16, 64, 64}, {35, 0, 512, 16, 64, 64}};

    seed = tap_seed(1);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check(&shapes[i].shape, shapes[i].interleaved, K_BF16);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i += 3) /* whole rows, and odd ones */
        check(&shapes[i].shape, shapes[i].interleaved, K_E4M3);
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
        check_few(&few[i], K_BF16, i % 2 == 1);
    check_few(&few[0], K_E4M3, true);
    return tap_done();
}
