/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu device against the references in float64, the same bits whatever is computed beside,
 * and a pool that does each task once. */
#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "device/cpu_math.h"
#include "device/device.h"
#include "device/pool.h"
#include "kernels/e4m3.h"
#include "tests/tap.h"

static float *random_floats(size_t n)
{
    float *f = malloc(n * sizeof *f + 64);

    for (size_t i = 0; i < n; i++)
        f[i] = (float)(rand() % 20001 - 10000) * 1e-4f;
    return f;
}

static void check_matmul(struct device *d, int n, int n_out, int n_in)
{
    float *x = random_floats((size_t)n * (size_t)n_in), *bias = random_floats((size_t)n_out);
    float *w = random_floats((size_t)n_out * (size_t)n_in);
    float *y = malloc((size_t)n * (size_t)n_out * 4), *row = malloc((size_t)n_out * 4);
    struct k_matrix m = {.data = w, .n_out = n_out, .n_in = n_in};
    double worst = 0.0;
    bool same = true;

    d->ops->matmul(d, y, &(struct device_rows){.data = x}, &m, bias, n);
    for (int r = 0; r < n; r++) {
        for (int o = 0; o < n_out; o++) {
            double sum = (double)bias[o];

            for (int i = 0; i < n_in; i++)
                sum += (double)x[r * n_in + i] * (double)w[o * n_in + i];
            worst = fmax(worst, fabs(sum - (double)y[r * n_out + o]));
        }
        d->ops->matmul(d, row, &(struct device_rows){.data = x + r * n_in}, &m, bias, 1);
        same = same && memcmp(row, y + r * n_out, (size_t)n_out * 4) == 0;
    }
    ok(worst < 1e-5 * sqrt((double)n_in), "matmul %d x %d x %d within %.1e", n, n_out, n_in, worst);
    ok(same, "matmul %d x %d x %d: a row alone has the same bits", n, n_out, n_in);
    free(x), free(bias), free(w), free(y), free(row);
}

/* Each instruction set's product against the best one's, which check_matmul() proves. */
static void check_set(const struct cpu_math *m)
{
    enum { ROWS = 7, OUTS = 13, INS = 77 };
    float *x = random_floats(ROWS * INS), *w = random_floats(OUTS * INS), got[ROWS * OUTS];
    float want[ROWS * OUTS];
    struct cpu_matmul p = {.y = got,
                           .x = x,
                           .w = w,
                           .type = K_F32,
                           .w_bytes = INS * sizeof *w,
                           .n_in = INS,
                           .n_out = OUTS,
                           .row_last = ROWS,
                           .out_last = OUTS};
    double worst = 0.0;

    m->matmul(&p);
    p.y = want;
    cpu_math_choose()->matmul(&p);
    for (int i = 0; i < ROWS * OUTS; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    ok(worst < 1e-5, "%s: matmul within %.1e of %s", m->name, worst, cpu_math_choose()->name);
    free(x), free(w);
}

/* The place of the upper byte of each of two float16 numbers of a block; -1: none. */
static const int halves[][2] = {
    [K_F32] = {1, 3},     [K_BF16_KEPT] = {-1, -1}, [K_E4M3] = {-1, -1},  [K_U4] = {-1, -1},
    [K_U8] = {-1, -1},    [K_Q4_0] = {1, -1},       [K_Q4_1] = {1, 3},    [K_Q5_0] = {1, -1},
    [K_Q5_1] = {1, 3},    [K_Q8_0] = {1, -1},       [K_IQ4_NL] = {1, -1}, [K_MXFP4] = {-1, -1},
    [K_Q2_K] = {81, 83},  [K_Q3_K] = {109, -1},     [K_Q4_K] = {1, 3},    [K_Q5_K] = {1, 3},
    [K_Q6_K] = {209, -1}, [K_IQ4_XS] = {1, -1},
};

/* Random weights of a type: scales must be finite, so bytes that are the upper half of a float16,
 * or an exponent, are near 1. */
static void fill_weights(uint8_t *w, size_t n, enum k_type type)
{
    int size = k_type_block_bytes(type);

    for (size_t i = 0; i < n; i++) {
        int at = (int)(i % (size_t)size);

        w[i] = (uint8_t)rand();
        if (at == halves[type][0] || at == halves[type][1])
            w[i] = (uint8_t)(0x10 + rand() % 16 + (rand() % 2) * 0x80);
        if (type == K_MXFP4 && at == 0)
            w[i] = (uint8_t)(i == 0 ? 1 : 110 + rand() % 32);
        if (type == K_E4M3 && (w[i] & 0x7f) == 0x7f)
            w[i] = 0x7e;
    }
    for (size_t i = 1; type == K_BF16_KEPT && i < n; i += 2)
        w[i] = (uint8_t)(0x3c + rand() % 4 + (rand() % 2) * 0x80);
}

/* A product with weights of a format has the bits of the product with their values as float32. */
static void check_format(const struct cpu_math *m, struct k_format format, int ins)
{
    enum { ROWS = 7, OUTS = 133, FIRST = 2 };
    enum k_type type = format.elem;
    struct k_matrix w = {.format = format, .n_out = OUTS, .n_in = ins};
    size_t row_bytes = k_format_row_bytes(&w.format, ins), n = (size_t)OUTS * (size_t)ins;
    size_t n_scales = k_format_n_scales(&w.format, OUTS, ins);
    uint8_t *bytes = malloc(OUTS * row_bytes);
    float *x = random_floats((size_t)ROWS * (size_t)ins), *values = malloc(n * 4),
          *wide = malloc(n * 4), *scales = random_floats(n_scales),
          *zeros = random_floats(n_scales);
    float got[ROWS * OUTS] = {0}, want[ROWS * OUTS] = {0};
    struct cpu_matmul p = {.y = got,
                           .x = x,
                           .w = bytes,
                           .type = type,
                           .w_bytes = row_bytes,
                           .scales = {.at = scales,
                                      .zeros = format.has_zeros ? zeros : NULL,
                                      .high = format.group_rows,
                                      .wide = format.group_cols,
                                      .a_row = k_format_scale_cols(&format, ins)},
                           .n_in = ins,
                           .n_out = OUTS,
                           .row_last = ROWS,
                           .out_last = OUTS};

    fill_weights(bytes, OUTS * row_bytes, type);
    for (size_t i = 0; i < n_scales; i++)
        zeros[i] = (float)(rand() % (type == K_U4 ? 16 : 256));
    w.data = bytes;
    w.scales = scales;
    w.zeros = zeros;
    ref_dequantise(values, &w, 0, OUTS);
    p.out_first = FIRST;
    m->expand(wide, &p);
    ok(memcmp(wide, values + (size_t)FIRST * (size_t)ins,
              (size_t)(OUTS - FIRST) * (size_t)ins * 4) == 0,
       "%s: type %d, %d elements, %d x %d: expand equals the reference", m->name, (int)type, ins,
       format.group_rows, format.group_cols);
    p.out_first = 0;
    p.y = want;
    p.w = values;
    p.type = K_F32;
    p.w_bytes = (size_t)ins * 4;
    m->matmul(&p);
    p.y = got;
    p.w = bytes;
    p.type = type;
    p.w_bytes = row_bytes;
    if (cpu_math_multiplies(type)) {
        m->matmul(&p);
        ok(memcmp(got, want, sizeof got) == 0 && got[0] - got[0] == 0.0f && got[0] != got[1],
           "%s: type %d, %d elements: product equals that of float32", m->name, (int)type, ins);
    }
    free(bytes), free(x), free(values), free(wide), free(scales), free(zeros);
}

static void check_type(const struct cpu_math *m, enum k_type type, int ins)
{
    check_format(m, k_format_bare(type), ins);
}

/* All codes, and no number. */
static void check_e4m3(const struct cpu_math *m)
{
    uint8_t codes[256];
    const float one = 1.0f;
    float got[256];
    struct cpu_matmul p = {.w = codes,
                           .type = K_E4M3,
                           .w_bytes = 256,
                           .scales = {.at = &one, .high = 1, .a_row = 1},
                           .n_in = 256,
                           .n_out = 1,
                           .out_last = 1};
    bool right = true;

    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    m->expand(got, &p);
    for (int i = 0; i < 256; i++) {
        float want = k_e4m3_value((uint8_t)i);

        right = right && (isnan(want) ? isnan(got[i]) : memcmp(&want, &got[i], 4) == 0);
    }
    ok(right, "%s: all codes of e4m3", m->name);
}

static void check_types(const struct cpu_math *m)
{
    for (int type = 0; type <= K_IQ4_XS; type++) {
        if (cpu_math_reads((enum k_type)type) && !cpu_math_scales((enum k_type)type))
            check_type(m, (enum k_type)type, 512);
    }
    check_e4m3(m);
    check_format(m, k_format_by_row(K_E4M3), 77);
    check_format(m, k_format_by_row(K_E4M3), 320);
    check_format(m, k_format_in_groups(K_E4M3, K_E4M3_BLOCK, K_E4M3_BLOCK), 328);
    for (int group = 32; group <= 128; group *= 2) {
        check_format(m, k_format_coded(K_U4, group, group < 128), 384);
        check_format(m, k_format_coded(K_U8, group, group > 32), 384);
    }
    check_type(m, K_BF16_KEPT, 77);
    check_type(m, K_BF16_KEPT, 8);
    check_type(m, K_Q8_0, 32);
    check_type(m, K_MXFP4, 32);
    check_type(m, K_Q5_1, 96);
}

/* The score of a query and a key, and the sum of weighted values of an element, in float64. */
static double dot_of(const float *q, const float *key, int dim)
{
    double dot = 0.0;

    for (int e = 0; e < dim; e++)
        dot += (double)q[e] * (double)key[e];
    return dot;
}

static double sum_of(const float *weights, const float *values, int n, int dim, int e)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += (double)weights[i] * (double)values[i * dim + e];
    return sum;
}

/* Attention's loops over keys and values, as float64 has them; and a query in any tile has the bits
 * of a query alone. */
static void check_keys(const struct cpu_math *m, int n_q, int n_keys, int dim)
{
    enum { ROW = 48, DIM_MAX = 128 };
    float *queries = random_floats((size_t)n_q * (size_t)dim);
    float *keys = random_floats((size_t)n_keys * (size_t)dim);
    float scores[CPU_QUERIES * ROW], out[CPU_QUERIES][DIM_MAX] = {{0}}, alone[ROW];
    const float *q[CPU_QUERIES];
    float *outs[CPU_QUERIES], alone_out[DIM_MAX];
    double worst = 0.0, worst_mix = 0.0;
    bool same = true;

    for (int j = 0; j < n_q; j++) {
        q[j] = queries + j * dim;
        outs[j] = out[j];
    }
    m->scores(scores, ROW, q, n_q, keys, n_keys, dim);
    m->mix(outs, n_q, scores, ROW, keys, n_keys, dim, dim);
    for (int j = 0; j < n_q; j++) {
        float *to = alone_out;

        memset(alone_out, 0, sizeof alone_out);
        m->scores(alone, ROW, q + j, 1, keys, n_keys, dim);
        m->mix(&to, 1, alone, ROW, keys, n_keys, dim, dim);
        same &= memcmp(alone, scores + j * ROW, (size_t)n_keys * sizeof *alone) == 0;
        same &= memcmp(alone_out, out[j], (size_t)dim * sizeof *alone_out) == 0;
        for (int i = 0; i < n_keys; i++)
            worst = fmax(worst, fabs(dot_of(q[j], keys + i * dim, dim) - (double)alone[i]));
        for (int e = 0; e < dim; e++)
            worst_mix =
                fmax(worst_mix, fabs(sum_of(alone, keys, n_keys, dim, e) - (double)out[j][e]));
    }
    ok(worst < 1e-5 && worst_mix < 1e-4 && same,
       "%s: %d queries, %d keys of %d: scores within %.1e, mix within %.1e", m->name, n_q, n_keys,
       dim, worst, worst_mix);
    free(queries), free(keys);
}

/* A product by a scale, and the largest of them wherever it is. */
static void check_scale(const struct cpu_math *m)
{
    bool right = true;

    for (int n = 1; n <= 40; n++) {
        for (int at = 0; at < n; at++) {
            float scores[40];

            for (int i = 0; i < n; i++)
                scores[i] = i == at ? -1.0f : -2.0f - (float)i;
            right &= m->scale(scores, n, 0.5f) + 0.5f == 0.0f;
            right &= scores[at] + 0.5f == 0.0f && (n < 2 || at == 0 || scores[0] + 1.0f == 0.0f);
        }
    }
    ok(right && isinf(m->scale(NULL, 0, 0.5f)), "%s: scaled, and the largest", m->name);
}

static void check_softmax(const struct cpu_math *m)
{
    float scores[64], want[64], gate[37], up[37], out[37];
    double worst = 0.0, sum = 0.0;
    float got_sum;

    for (int i = 0; i < 37; i++) {
        scores[i] = want[i] = (float)(rand() % 4000) * -0.01f;
        gate[i] = (float)(rand() % 4000 - 2000) * 0.01f;
        up[i] = 1.5f;
    }
    got_sum = m->weights(scores, 37, -1.0f);
    for (int i = 0; i < 37; i++) {
        double e = exp((double)want[i] + 1.0);

        sum += e;
        worst = fmax(worst, fabs((double)scores[i] - e) / e);
    }
    ok(worst < 3e-6 && fabs((double)got_sum - sum) < 1e-5 * sum, "%s: exp within %.1e", m->name,
       worst);
    m->silu_mul(out, gate, up, 37);
    worst = 0.0;
    for (int i = 0; i < 37; i++) {
        double g = (double)gate[i], s = g / (1.0 + exp(-g)) * 1.5;

        worst = fmax(worst, fabs((double)out[i] - s) / (fabs(s) + 1e-6));
    }
    ok(worst < 3e-6, "%s: silu within %.1e", m->name, worst);
}

struct tally {
    atomic_int n[1000];
};

static void tally_task(void *job, int task, int worker)
{
    (void)worker;
    atomic_fetch_add(&((struct tally *)job)->n[task], 1);
}

static void check_pool(void)
{
    struct pool *p = NULL;
    struct tally *t = calloc(1, sizeof *t);
    struct timespec nap = {.tv_nsec = 2000000}, before, after;
    bool once = true;
    double cpu_s;

    is_int(pool_open(&p, 4), ERR_OK, "a pool of four");
    for (int run = 1; run <= 2000; run++) {
        int n = rand() % 1000 + 1;

        memset(t, 0, sizeof *t);
        if (run % 500 == 0)
            nanosleep(&nap, NULL); /* workers fall asleep */
        pool_run(p, tally_task, t, n);
        for (int i = 0; i < 1000; i++)
            once = once && atomic_load(&t->n[i]) == (i < n);
    }
    ok(once, "each task runs once");
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    for (int i = 0; i < 50; i++)
        nanosleep(&nap, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    cpu_s =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    ok(cpu_s < 0.02, "an idle pool sleeps: %.1f ms of CPU in 100", cpu_s * 1e3);
    pool_close(p);
    free(t);
}

int main(void)
{
    struct device *d = NULL;

    srand(tap_seed(1));
    is_int(device_open(&d, "tpu", 0, 0), ERR_INVALID, "an unknown device is refused");
    is_int(device_open(&d, "cpu", 0, 2), ERR_OK, "cpu opens");
    check_matmul(d, 1, 3, 5);
    check_matmul(d, 5, 131, 60);
    check_matmul(d, 9, 60, 37);
    check_matmul(d, 70, 100, 256);
    check_matmul(d, 300, 96, 333);
    for (int i = 0; cpu_math_at(i) != NULL; i++) {
        check_set(cpu_math_at(i));
        check_types(cpu_math_at(i));
        for (int n_q = 1; n_q <= CPU_QUERIES; n_q++) {
            check_keys(cpu_math_at(i), n_q, 33, 64);
            check_keys(cpu_math_at(i), n_q, 19, 108);
            check_keys(cpu_math_at(i), n_q, 5, 2);
            check_keys(cpu_math_at(i), n_q, 1, 128);
        }
        check_scale(cpu_math_at(i));
        check_softmax(cpu_math_at(i));
    }
    device_close(d);
    check_pool();
    return tap_done();
}
