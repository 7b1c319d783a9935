/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with inputs that are rounded to 8 bits: the specification against float64, and each
 * instruction set against the specification, bit for bit. */
#include <math.h>
#include <time.h>

#include "device/cpu_round.h"
#include "tests/tap.h"

#define ROWS 7
#define OUTS 37

/* With the places of the upper bytes of float16 numbers in a block; -1: none. Types with blocks of
 * 32 come first. */
static const struct {
    enum k_type type;
    int halves[2];
} types[] = {{K_Q4_0, {1, -1}}, {K_Q4_1, {1, 3}},    {K_Q5_0, {1, -1}},   {K_Q5_1, {1, 3}},
             {K_Q8_0, {1, -1}}, {K_IQ4_NL, {1, -1}}, {K_MXFP4, {-1, -1}}, {K_Q3_K, {109, -1}},
             {K_Q4_K, {1, 3}},  {K_Q5_K, {1, 3}},    {K_Q6_K, {209, -1}}, {K_IQ4_XS, {1, -1}}};

/* Inputs whose blocks differ in size; some blocks are zero. */
static void fill_inputs(float *x, int n)
{
    for (int i = 0; i < n; i++) {
        float size = i / 32 % 7 == 3 ? 0.0f : ldexpf(1.0f, i / 32 % 11 - 5);

        x[i] = size * (float)(rand() % 20001 - 10000) * 1e-4f;
    }
}

/* Random weights; scales must be finite, so bytes that are the upper half of one, or an exponent,
 * are near 1. */
static void fill_weights(uint8_t *w, size_t n, enum k_type type)
{
    int size = k_type_block_bytes(type), which = 0;

    while (types[which].type != type)
        which++;
    for (size_t i = 0; i < n; i++) {
        int at = (int)(i % (size_t)size);

        w[i] = (uint8_t)rand();
        if (at == types[which].halves[0] || at == types[which].halves[1])
            w[i] = (uint8_t)(0x10 + rand() % 16 + (rand() % 2) * 0x80);
        if (type == K_MXFP4 && at == 0)
            w[i] = (uint8_t)(rand() % 8 == 0 ? rand() % 3 : 120 + rand() % 8);
    }
}

/* The value that a rounded input stands for, computed here once more. */
static double rounded(const float *x, int i)
{
    const float *block = x + i / 32 * 32;
    float most = 0.0f;

    for (int k = 0; k < 32; k++)
        most = fmaxf(most, fabsf(block[k]));
    if (most < 1e-30f)
        return 0.0;
    return nearbyint((double)(x[i] * (127.0f / most))) * (double)(most / 127.0f);
}

struct sample {
    enum k_type type;
    int n_in;
    size_t w_bytes;
    uint8_t *w;
    float *x, *values, *bias; /* values: the weights as float32 */
    float want[ROWS * OUTS];
};

/* A part of the product with a set: rows and outputs from the given ones on. */
static void multiply(float *y, const struct sample *s, const struct cpu_round *set, int row,
                     int out)
{
    size_t row_bytes = cpu_round_row_bytes(s->n_in);
    uint8_t *memory = malloc(ROWS * row_bytes + 64);
    uint8_t *rows = memory + (64 - (uintptr_t)memory % 64);
    struct cpu_rounded r = {.m = {.y = y,
                                  .w = s->w,
                                  .type = s->type,
                                  .w_bytes = s->w_bytes,
                                  .bias = s->bias,
                                  .n_in = s->n_in,
                                  .n_out = OUTS,
                                  .row_first = row,
                                  .row_last = ROWS,
                                  .out_first = out,
                                  .out_last = OUTS - 1},
                            .rows = rows};

    set->rows(rows, s->x, ROWS, s->n_in);
    set->matmul(&r);
    free(memory);
}

/* The largest magnitude of the weights of k's block. A product with a block is a scale times whole
 * numbers plus a minimum times their sum, so its roundings are as large as these allow, even where
 * the weights themselves are near zero. */
static double largest(const float *values, int k)
{
    double most = 0.0;

    for (int i = k / CPU_ROUND_BLOCK * CPU_ROUND_BLOCK, n = 0; n < CPU_ROUND_BLOCK; n++)
        most = fmax(most, fabs((double)values[i + n]));
    return most;
}

static void check_specification(struct sample *s)
{
    double worst = 0.0, sizes = 0.0;

    multiply(s->want, s, cpu_round_at(0), 0, 0);
    for (int i = 0; i < ROWS * OUTS; i++) {
        const float *values = s->values + (size_t)(i % OUTS) * (size_t)s->n_in;
        double sum = 0.0, size = fabs((double)s->bias[i % OUTS]);

        if (i % OUTS == OUTS - 1)
            continue; /* beyond the part */
        for (int k = 0; k < s->n_in; k++) {
            double x = rounded(s->x + (size_t)(i / OUTS) * (size_t)s->n_in, k);

            sum += x * (double)values[k];
            size += fabs(x) * largest(values, k);
        }
        worst = fmax(worst, fabs(sum + (double)s->bias[i % OUTS] - (double)s->want[i]) / size);
        sizes += size;
    }
    ok(worst < 4e-7 && sizes > 1.0, "type %d, %d elements: within %.1e of float64", (int)s->type,
       s->n_in, worst);
}

static void check_set(const struct sample *s, const struct cpu_round *set)
{
    float got[ROWS * OUTS] = {0}, part[ROWS * OUTS];
    size_t row_bytes = cpu_round_row_bytes(s->n_in);
    uint8_t *ours = calloc(ROWS, row_bytes), *theirs = calloc(ROWS, row_bytes);
    bool same = true;

    multiply(got, s, set, 0, 0);
    ok(memcmp(got, s->want, sizeof got) == 0,
       "%s: type %d, %d elements: the bits of the specification", set->name, (int)s->type, s->n_in);
    for (int row = 0; row < ROWS; row += 3) {
        for (int out = 0; out < OUTS - 1; out += 5) {
            memcpy(part, s->want, sizeof part);
            for (int i = row * OUTS; i < ROWS * OUTS; i++)
                part[i] = i % OUTS >= out && i % OUTS < OUTS - 1 ? -1.0f : part[i];
            multiply(part, s, set, row, out);
            same = same && memcmp(part, s->want, sizeof part) == 0;
        }
    }
    ok(same, "%s: type %d, %d elements: parts have the same bits and write no others", set->name,
       (int)s->type, s->n_in);
    cpu_round_at(0)->rows(ours, s->x, ROWS, s->n_in);
    set->rows(theirs, s->x, ROWS, s->n_in);
    ok(memcmp(ours, theirs, ROWS * row_bytes) == 0, "%s: %d elements are rounded alike", set->name,
       s->n_in);
    free(ours), free(theirs);
}

static void check_type(enum k_type type, int n_in)
{
    struct k_matrix m = {.format = k_format_bare(type), .n_out = OUTS, .n_in = n_in};
    struct sample s = {.type = type, .n_in = n_in, .w_bytes = k_format_row_bytes(&m.format, n_in)};

    s.w = malloc(OUTS * s.w_bytes);
    s.x = malloc((size_t)ROWS * (size_t)n_in * sizeof *s.x);
    s.values = malloc((size_t)OUTS * (size_t)n_in * sizeof *s.values);
    s.bias = malloc(OUTS * sizeof *s.bias);
    fill_weights(s.w, OUTS * s.w_bytes, type);
    fill_inputs(s.x, ROWS * n_in);
    fill_inputs(s.bias, OUTS);
    m.data = s.w;
    ref_dequantise(s.values, &m, 0, OUTS);
    check_specification(&s);
    for (int n = 1; cpu_round_at(n) != NULL; n++)
        check_set(&s, cpu_round_at(n));
    free(s.w), free(s.x), free(s.values), free(s.bias);
}

/* Not a number and infinity do not vanish. */
static void check_not_finite(void)
{
    float x[64] = {1.0f}, y[OUTS] = {0};
    uint8_t w[OUTS * 68], rows[576] __attribute__((aligned(64)));
    struct cpu_rounded r = {
        .m = {.y = y, .w = w, .type = K_Q8_0, .w_bytes = 68, .n_in = 64, .n_out = OUTS},
        .rows = rows};

    fill_weights(w, sizeof w, K_Q8_0);
    r.m.row_last = 1;
    r.m.out_last = OUTS;
    x[40] = NAN;
    ok(cpu_round_row_bytes(64) <= sizeof rows, "room for a row");
    for (int n = 0; cpu_round_at(n) != NULL; n++) {
        bool all = true;

        cpu_round_at(n)->rows(rows, x, 1, 64);
        cpu_round_at(n)->matmul(&r);
        for (int i = 0; i < OUTS; i++)
            all = all && isnan(y[i]);
        ok(all, "%s: not a number stays so", cpu_round_at(n)->name);
    }
}

int main(void)
{
    unsigned seed = (unsigned)time(NULL);

    printf("# seed %u\n", seed);
    srand(seed);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        check_type(types[i].type, 256);
        check_type(types[i].type, 768);
    }
    for (size_t i = 0; k_type_block(types[i].type) == 32; i++) {
        check_type(types[i].type, 32);
        check_type(types[i].type, 576);
        check_type(types[i].type, 32 * 19);
    }
    check_not_finite();
    return tap_done();
}
