/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: portable products of experts in every format, without a GPU. Method: the kernel played on
 * the host (play_portable.h) against sums in float64 of the same weights; few tokens and many,
 * gated or not, sizes that fill no tile, more routes of an expert than a tile has. Results are
 * rounded to bfloat16 once: a mean square error of some 3e-6. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mxfp4.h"
#include "kernels/packed.h"
#include "tests/kernel/played.h"
#include "tests/tap.h"

#define N_USED      2
#define EXPERTS_MAX 3
#define ROUTES_MAX  (200 * N_USED)

struct shape {
    int n_experts, n_out, n_in;
};

/* A product and its weights as numbers. */
struct run {
    struct played_product p;
    int rows; /* of an expert */
    float *w; /* [n_experts][rows][n_in] */
    int32_t starts[EXPERTS_MAX + 1], routes[ROUTES_MAX], touched[EXPERTS_MAX + 1];
    int32_t tiles[1 + 2 * (ROUTES_MAX / K_MIXING_TILE + EXPERTS_MAX)];
};

static unsigned seed;

static float uniform(void)
{
    seed = seed * 1664525U + 1013904223U;
    return (float)(seed >> 8) * 0x1p-23f - 1.0f;
}

static k_bf16 round_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static float widen(k_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static k_bf16 *random_bf16(size_t n, float scale)
{
    k_bf16 *h = malloc(n * sizeof *h);

    for (size_t i = 0; i < n; i++)
        h[i] = round_bf16(uniform() * scale);
    return h;
}

static float e4m3_value(unsigned code)
{
    float v = (code >> 3 & 15) != 0
                  ? ldexpf(1.0f + (float)(code & 7) / 8.0f, (int)(code >> 3 & 15) - 7)
                  : ldexpf((float)(code & 7) / 8.0f, -6);

    return (code & 0x80) != 0 ? -v : v;
}

static float e2m1_value(unsigned code)
{
    static const float values[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    return (code & 8) != 0 ? -values[code & 7] : values[code & 7];
}

static void make_plain(struct run *r, size_t n)
{
    k_bf16 *h = random_bf16(n, 0.1f);

    for (size_t i = 0; i < n; i++)
        r->w[i] = widen(h[i]);
    r->p.w = h;
}

/* Weights times their scales, rounded as the kernel rounds them. */
static void make_e4m3(struct run *r, size_t n, bool in_blocks)
{
    size_t n_in = (size_t)r->p.n_in, n_rows = n / n_in, cols = 1;
    uint8_t *codes = malloc(n);
    float *scales;

    if (in_blocks)
        cols = (size_t)K_SCALE_COLS(r->p.n_in, 128);
    scales = malloc(n_rows * cols * sizeof *scales);
    for (size_t i = 0; i < n_rows * cols; i++)
        scales[i] = 0.01f + 0.005f * uniform();
    for (size_t i = 0; i < n; i++) {
        size_t row = i / n_in, col = i % n_in;
        float scale = in_blocks ? scales[row / 128 * cols + col / 128] : scales[row];

        codes[i] = (uint8_t)((uniform() + 1.0f) * 127.9f);
        if ((codes[i] & 0x7f) == 0x7f) /* not a number */
            codes[i] = 0;
        r->w[i] = widen(round_bf16(e4m3_value(codes[i]) * scale));
    }
    r->p.w = codes;
    r->p.scales = scales;
    r->p.scale_cols = (int)cols;
}

static void spread_codes(uint32_t *record)
{
    for (int i = 0; i < K_MXFP4_CODES / 4; i++)
        record[i] = k_float4_spread(record[i]);
}

/* The strips of one expert, from its rows of codes and exponents. */
static void pack_mxfp4(uint8_t *to, const struct k_mxfp4_rows *rows, const uint8_t *codes,
                       const uint8_t *exponents, int n_in)
{
    const struct k_packing packing = {4, K_MXFP4_GROUP, 1, 0, false, false};
    size_t width = (size_t)n_in, groups = width / K_MXFP4_GROUP;
    uint8_t *own = calloc(16, width), *own_exponents = calloc(16, groups);

    for (int strip = 0; strip < k_mxfp4_strips(rows->n_rows); strip++) {
        const struct k_unpacked from = {own, own_exponents, NULL};

        for (size_t i = 0; i < 16; i++) {
            int row = k_mxfp4_row(rows, strip, (int)i);

            memset(own + i * width, 0, width);
            if (row < 0)
                continue;
            memcpy(own + i * width, codes + (size_t)row * width, width);
            memcpy(own_exponents + i * groups, exponents + (size_t)row * groups, groups);
        }
        k_pack_strip(to, &packing, &from, 16, n_in);
        for (int i = 0; i < k_mxfp4_records(n_in); i++)
            spread_codes((uint32_t *)(to + (size_t)i * K_MXFP4_RECORD));
        to += (size_t)k_mxfp4_records(n_in) * K_MXFP4_RECORD;
    }
    free(own), free(own_exponents);
}

static void make_mxfp4(struct run *r, size_t n)
{
    const struct k_mxfp4_rows rows = {r->p.n_experts, r->rows, r->p.is_gated, false};
    size_t each = n / (size_t)r->p.n_experts, bytes = k_mxfp4_bytes(r->rows, r->p.n_in);
    uint8_t *codes = malloc(n), *exponents = malloc(n / K_MXFP4_GROUP);
    uint8_t *packed = malloc(bytes * (size_t)r->p.n_experts);

    for (size_t i = 0; i < n / K_MXFP4_GROUP; i++)
        exponents[i] = (uint8_t)(121.0f + 2.0f * uniform());
    for (size_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)((uniform() + 1.0f) * 7.99f);
        r->w[i] = ldexpf(e2m1_value(codes[i]), exponents[i / K_MXFP4_GROUP] - 127);
    }
    for (int e = 0; e < r->p.n_experts; e++)
        pack_mxfp4(packed + bytes * (size_t)e, &rows, codes + each * (size_t)e,
                   exponents + each / K_MXFP4_GROUP * (size_t)e, r->p.n_in);
    r->p.w = packed;
    free(codes), free(exponents);
}

/* Slot s of token t goes to expert (7 t + 3 s) mod n. */
static void sort_routes(struct run *r)
{
    int n_routes = r->p.n_tokens * N_USED, n = 0;

    r->touched[0] = r->tiles[0] = 0;
    for (int e = 0; e < r->p.n_experts; e++) {
        r->starts[e] = n;
        for (int route = 0; route < n_routes; route++) {
            if ((route / N_USED * 7 + route % N_USED * 3) % r->p.n_experts == e)
                r->routes[n++] = route;
        }
        if (n > r->starts[e])
            r->touched[1 + r->touched[0]++] = e;
        for (int at = r->starts[e]; at < n; at += K_MIXING_TILE) {
            r->tiles[1 + 2 * r->tiles[0]] = e;
            r->tiles[2 + 2 * r->tiles[0]++] = at;
        }
    }
    r->starts[r->p.n_experts] = n;
}

/* A row of an expert times x, plus its bias. */
static double dot(const struct run *r, int expert, int row, const k_bf16 *x)
{
    size_t at = (size_t)expert * (size_t)r->rows + (size_t)row, n_in = (size_t)r->p.n_in;
    double sum = (double)widen(r->p.bias[at]);

    for (size_t i = 0; i < n_in; i++)
        sum += (double)r->w[at * n_in + i] * (double)widen(x[i]);
    return sum;
}

/* The mean square error over the mean square. */
static double error_of(const struct run *r)
{
    double error = 0.0, square = 0.0;
    int expert = 0;

    for (int place = 0; place < r->starts[r->p.n_experts]; place++) {
        int row = r->p.is_gated ? r->routes[place] / N_USED : place;
        const k_bf16 *x = r->p.x + (size_t)row * (size_t)r->p.n_in;

        while (r->starts[expert + 1] <= place)
            expert++;
        for (int o = 0; o < r->p.n_out; o++) {
            double want = dot(r, expert, o, x), got;

            if (r->p.is_gated)
                want = want / (1.0 + exp(-want)) * dot(r, expert, r->p.n_out + o, x);
            got = (double)widen(r->p.out[(size_t)place * (size_t)r->p.n_out + (size_t)o]);
            error += (got - want) * (got - want);
            square += want * want;
        }
    }
    return error / square;
}

static void check(enum k_type elem, bool in_blocks, struct shape s, int n_tokens, bool is_gated)
{
    int rows = is_gated ? 2 * s.n_out : s.n_out, n_routes = n_tokens * N_USED;
    size_t n_rows = (size_t)s.n_experts * (size_t)rows, n = n_rows * (size_t)s.n_in;
    size_t n_x = (size_t)(is_gated ? n_tokens : n_routes) * (size_t)s.n_in;
    struct run *r = calloc(1, sizeof *r);
    double error;
    int rc;

    r->rows = rows;
    r->w = malloc(n * sizeof *r->w);
    r->p = (struct played_product){.elem = elem,
                                   .scale_cols = 1,
                                   .n_in = s.n_in,
                                   .n_out = s.n_out,
                                   .n_tokens = n_tokens,
                                   .n_used = N_USED,
                                   .n_experts = s.n_experts,
                                   .is_gated = is_gated,
                                   .is_many = n_tokens > K_MIXING_FEW,
                                   .starts = r->starts,
                                   .routes = r->routes,
                                   .touched = r->touched,
                                   .tiles = r->tiles};
    if (elem == K_BF16)
        make_plain(r, n);
    else if (elem == K_E4M3)
        make_e4m3(r, n, in_blocks);
    else
        make_mxfp4(r, n);
    sort_routes(r);
    r->p.x = random_bf16(n_x, 1.0f);
    r->p.bias = random_bf16(n_rows, 0.1f);
    r->p.out = malloc((size_t)n_routes * (size_t)s.n_out * sizeof *r->p.out);
    rc = played_experts(&r->p);
    error = error_of(r);
    ok(rc == 0 && error < 1e-5, "%s, %d experts, %d x %d, %d tokens%s: NMSE %.1e",
       elem == K_BF16   ? "bf16"
       : elem == K_E2M1 ? "MXFP4"
       : in_blocks      ? "e4m3 in blocks"
                        : "e4m3 by row",
       s.n_experts, s.n_out, s.n_in, n_tokens, is_gated ? ", gated" : "", error);
    free((void *)(uintptr_t)r->p.w), free((void *)(uintptr_t)r->p.scales);
    free((void *)(uintptr_t)r->p.x), free((void *)(uintptr_t)r->p.bias);
    free(r->p.out), free(r->w), free(r);
}

int main(void)
{
    static const int n_tokens[] = {1, 9, 40, 150};

    seed = tap_seed(1);
    for (size_t i = 0; i < 2 * sizeof n_tokens / sizeof n_tokens[0]; i++) {
        int n = n_tokens[i / 2];
        bool is_gated = i % 2 == 1;

        check(K_BF16, false, (struct shape){3, 40, 136}, n, is_gated);
        check(K_E4M3, false, (struct shape){3, 72, 144}, n, is_gated);
        check(K_E4M3, true, (struct shape){2, 128, 464}, n, is_gated);
        check(K_E2M1, false, (struct shape){3, 40, 128}, n, is_gated);
        check(K_E2M1, false, (struct shape){2, 72, 384}, n, is_gated);
    }
    return tap_done();
}
