/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: products of adapters as the GPU computes them, without one. Method: the kernels played on
 * the host (play.h) against the reference, for rows with several adapters and none, matrices of one
 * and of three parts, odd sizes, ranks of 1 to 64, tokens and sampled rows, results in float32 and
 * bfloat16. A row alone must have the bits that it has among others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernel/played.h"
#include "tests/tap.h"

#define SLOTS    3
#define TOKENS   7
#define RANK_MAX 64

static unsigned seed;

static const struct {
    int n_in, n_parts, n_out[K_ADAPTED_MAX], ranks[SLOTS];
    bool of_rows, is_float;
} cases[] = {
    {64, 1, {96}, {8, 3, 0}, false, true},
    {100, 3, {40, 13, 300}, {16, 1, 64}, false, true},
    {33, 3, {40, 13, 300}, {5, 0, 7}, false, false},
    {48, 1, {515}, {4, 9, 2}, true, true},
};

static float widen(k_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static k_bf16 narrow(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (k_bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Random numbers, as bfloat16 in *out and as the same floats. */
static float *draw(k_bf16 **out, size_t n)
{
    float *f = malloc((n + 1) * sizeof *f);

    *out = malloc((n + 1) * sizeof **out);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        (*out)[i] = narrow((float)(seed >> 8) * 0x1p-23f - 1.0f);
        f[i] = widen((*out)[i]);
    }
    return f;
}

/* A matrix with adapters in both forms. */
struct pair {
    struct k_adapters wide, narrow;
    int n_out;
};

static void make_adapters(struct pair *p, size_t c)
{
    memset(p, 0, sizeof *p);
    p->wide.n_parts = p->narrow.n_parts = cases[c].n_parts;
    for (int part = 0; part < cases[c].n_parts; part++) {
        int n_out = cases[c].n_out[part];
        struct k_adapter *wide = calloc(SLOTS, sizeof *wide), *slots = calloc(SLOTS, sizeof *slots);

        for (int s = 0; s < SLOTS; s++) {
            size_t rank = (size_t)cases[c].ranks[s];
            k_bf16 *a, *b;
            float *wide_a = draw(&a, rank * (size_t)cases[c].n_in);
            float *wide_b = draw(&b, rank * (size_t)n_out);

            wide[s] = (struct k_adapter){wide_a, wide_b, (int)rank, 0.5f + (float)s};
            slots[s] = (struct k_adapter){a, b, (int)rank, 0.5f + (float)s};
        }
        p->wide.parts[part] = (struct k_adapted){p->n_out, n_out, wide};
        p->narrow.parts[part] = (struct k_adapted){p->n_out, n_out, slots};
        p->n_out += n_out;
    }
}

static void free_adapters(struct pair *p)
{
    for (int part = 0; part < p->wide.n_parts; part++) {
        for (int s = 0; s < SLOTS; s++) {
            struct k_adapter *both[] = {&p->wide.parts[part].slots[s],
                                        &p->narrow.parts[part].slots[s]};

            for (int i = 0; i < 2; i++)
                free((void *)(uintptr_t)both[i]->a), free((void *)(uintptr_t)both[i]->b);
        }
        free(p->wide.parts[part].slots), free(p->narrow.parts[part].slots);
    }
}

static void check(size_t c)
{
    static const int32_t slots[TOKENS] = {1, -1, 0, 2, 1, -1, 0}, rows[3] = {1, 3, 6};
    bool of_rows = cases[c].of_rows, is_float = cases[c].is_float;
    int n = of_rows ? 3 : TOKENS, n_in = cases[c].n_in;
    struct pair p;
    size_t n_y;
    k_bf16 *x, *y;
    float *wide_x = draw(&x, (size_t)n * (size_t)n_in), *wide_y, *got, *t, worst = 0.0f;
    struct k_adapting a;
    int n_same = 0;

    make_adapters(&p, c);
    n_y = (size_t)n * (size_t)p.n_out;
    wide_y = draw(&y, n_y);
    got = malloc(n_y * sizeof *got);
    t = malloc((size_t)p.wide.n_parts * (size_t)n * RANK_MAX * sizeof *t);
    memcpy(got, wide_y, n_y * sizeof *got);
    a = (struct k_adapting){.of = p.narrow,
                            .y = is_float ? (void *)got : (void *)y,
                            .y_is_float = is_float,
                            .x = x,
                            .t = t,
                            .adapters = slots,
                            .rows = of_rows ? rows : NULL,
                            .n = n,
                            .n_in = n_in,
                            .stride = p.n_out,
                            .rank_max = RANK_MAX};
    ok(played_adapt(&a) == 0, "case %zu: no lane waits in vain", c);
    for (int i = 0; i < n; i++) {
        int slot = slots[of_rows ? rows[i] : i];
        float *want = wide_y + (size_t)i * (size_t)p.n_out, work[RANK_MAX];
        float *alone = malloc((size_t)p.n_out * sizeof *alone);

        memcpy(alone, want, (size_t)p.n_out * sizeof *alone);
        if (slot >= 0)
            ref_adapt(want, wide_x + (size_t)i * (size_t)n_in, &p.wide, slot, n_in, work);
        for (int j = 0; j < p.n_out; j++) {
            size_t at = (size_t)i * (size_t)p.n_out + (size_t)j;
            float is = is_float ? got[at] : widen(y[at]);

            worst = fmaxf(worst, fabsf(is - want[j]) / (1.0f + fabsf(want[j])));
        }
        a.n = 1;
        a.x = x + (size_t)i * (size_t)n_in;
        a.adapters = of_rows ? slots : slots + i;
        a.rows = of_rows ? rows + i : NULL;
        a.y = alone;
        n_same +=
            is_float && played_adapt(&a) == 0 &&
            memcmp(alone, got + (size_t)i * (size_t)p.n_out, (size_t)p.n_out * sizeof *alone) == 0;
        free(alone);
    }
    ok(worst < (is_float ? 3e-5f : 4e-3f), "case %zu: within %.1e of the reference", c,
       (double)worst);
    if (is_float)
        is_int(n_same, n, "case %zu: each row has the same bits alone", c);
    free_adapters(&p);
    free(x), free(y), free(wide_x), free(wide_y), free(got), free(t);
}

int main(void)
{
    seed = tap_seed(1);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        check(c);
    return tap_done();
}
