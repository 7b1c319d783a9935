/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: products that add their adapters in the same launch. Method: each row against
 * ref_multiply() with the matrix w + scale * b a of its adapter; rows with several adapters and
 * none, ranks of 1 to the highest, all kinds. The same call must give the same bits many times in a
 * row, with the counters back at zero, and a row's bits may not depend on the other rows'. */
#include "tests/kernel/gpu.h"

#define SMS   132
#define SLOTS 9
#define TURNS 50
#define ROWS  64

struct join_case {
    enum k_product_kind kind;
    int n_parts, n_out[K_ADAPTED_MAX], n_in, rank_max;
};

static const struct join_case cases[] = {
    {K_PRODUCT_PLAIN, 3, {1024, 256, 256}, 1024, 16},
    {K_PRODUCT_PLAIN, 3, {4096, 1024, 1024}, 576, 16},
    {K_PRODUCT_GATED, 2, {9216, 9216}, 1024, 16},
    {K_PRODUCT_GATED, 1, {18432}, 256, 40},
    {K_PRODUCT_RESIDUAL, 1, {4096}, 1792, 16},
    {K_PRODUCT_FLOAT, 1, {1024}, 2048, 16},
    {K_PRODUCT_FLOAT, 1, {1024}, 1088, 64},
};

/* A case's arrays; bfloat16 on the device, the same numbers here. */
struct made {
    const struct join_case *c;
    int n_out, y_width;
    float *x, *w, *norm, *residual, *bias, *sums;
    float *eff[SLOTS + 1]; /* w with a slot's adapters; the last one: w */
    int ranks[SLOTS];
    struct k_matrix dev_w;
    void *dev_x, *dev_bias, *dev_norm, *dev_sums;
    struct k_adapters of;
};

struct results {
    float *y, *normed, *sums;
};

/* Slot s of a part: its matrices, and what they add to w. */
static struct k_adapter make_slot(struct made *m, int part, int s)
{
    const struct join_case *c = m->c;
    size_t rank = (size_t)m->ranks[s], n_in = (size_t)c->n_in, n_out = (size_t)c->n_out[part];
    size_t stride = K_ADAPT_STRIDE(rank), first = (size_t)m->of.parts[part].first;
    float *a = gpu_random(rank * n_in, 0.1f), *b = gpu_random(rank * n_out, 0.3f);
    float *rows = calloc(n_out * stride, sizeof *rows), scale = 0.25f + 0.125f * (float)s;
    struct k_adapter one = {.rank = (int)rank, .scale = scale};

    for (size_t i = 0; i < n_out; i++) {
        float *to = m->eff[s] + (first + i) * n_in;

        for (size_t k = 0; k < rank; k++) {
            rows[i * stride + k] = b[k * n_out + i];
            for (size_t j = 0; j < n_in; j++)
                to[j] += scale * b[k * n_out + i] * a[k * n_in + j];
        }
    }
    one.a = gpu_bf16(a, rank * n_in);
    one.b = gpu_bf16(rows, n_out * stride);
    free(a), free(b), free(rows);
    return one;
}

static void make(struct made *m, const struct join_case *c)
{
    size_t n_in = (size_t)c->n_in, n_out;

    *m = (struct made){.c = c, .of = {.n_parts = c->n_parts}};
    for (int p = 0; p < c->n_parts; p++) {
        m->of.parts[p] = (struct k_adapted){.first = m->n_out, .n_out = c->n_out[p]};
        m->n_out += c->n_out[p];
    }
    n_out = (size_t)m->n_out;
    m->y_width = c->kind == K_PRODUCT_GATED ? m->n_out / 2 : m->n_out;
    m->x = gpu_random(ROWS * n_in, 1.0f);
    m->w = gpu_random(n_out * n_in, 0.1f);
    m->norm = gpu_random(n_out, 1.0f);
    m->bias = gpu_random(n_out, 0.5f);
    m->residual = gpu_random(ROWS * n_out, 2.0f);
    m->sums = malloc(ROWS * n_in / 16 * sizeof *m->sums);
    for (size_t i = 0; i < ROWS * n_in / 16; i++)
        m->sums[i] = 8.0f + 8.0f * gpu_uniform();
    for (int s = 0; s <= SLOTS; s++) {
        m->eff[s] = malloc(n_out * n_in * sizeof **m->eff);
        memcpy(m->eff[s], m->w, n_out * n_in * sizeof **m->eff);
    }
    for (int s = 0; s < SLOTS; s++) /* all ranks, and one with none */
        m->ranks[s] = s == 4 ? 0 : s < 4 ? c->rank_max : 1 + s * 5 % c->rank_max;
    for (int p = 0; p < c->n_parts; p++) {
        struct k_adapter slots[SLOTS];

        for (int s = 0; s < SLOTS; s++)
            slots[s] = make_slot(m, p, s);
        m->of.parts[p].slots = gpu_array(slots, sizeof slots);
    }
    m->dev_w =
        (struct k_matrix){.data = gpu_bf16(m->w, n_out * n_in), .n_out = m->n_out, .n_in = c->n_in};
    m->dev_bias = gpu_bf16(m->bias, n_out);
    m->dev_norm = gpu_bf16(m->norm, n_out);
    m->dev_sums = gpu_array(m->sums, ROWS * n_in / 16 * sizeof *m->sums);
}

static void made_free(struct made *m)
{
    free(m->x), free(m->w), free(m->norm), free(m->residual), free(m->bias), free(m->sums);
    for (int s = 0; s <= SLOTS; s++)
        free(m->eff[s]);
}

static struct results results_new(const struct made *m, int n)
{
    size_t used = (size_t)n * (size_t)m->n_out;

    return (struct results){calloc(used, 4), calloc(used, 4), calloc(used / 16 + 1, 4)};
}

static void results_free(struct results *r)
{
    free(r->y), free(r->normed), free(r->sums);
}

/* Rows first .. first + n - 1 by the reference, each with its own matrix. */
static void reference(const struct made *m, const int32_t *slots, int n, struct results *r)
{
    size_t n_in = (size_t)m->c->n_in, n_out = (size_t)m->n_out, width = (size_t)m->y_width;

    for (size_t i = 0; i < (size_t)n; i++) {
        struct k_matrix w = {
            .data = m->eff[slots[i] < 0 ? SLOTS : slots[i]], .n_out = m->n_out, .n_in = m->c->n_in};
        struct k_product p = {.kind = m->c->kind,
                              .x = m->x + i * n_in,
                              .w = &w,
                              .bias = m->bias,
                              .sums_in = m->sums + i * (n_in / 16),
                              .n_sums = m->c->n_in / 16,
                              .eps = 1e-5f,
                              .norm = m->norm,
                              .y = r->y + i * width,
                              .residual = r->y + i * width,
                              .normed = r->normed + i * width,
                              .sums_out = r->sums + i * (n_out / 16)};

        memcpy(r->y + i * width, m->residual + i * n_out, width * 4);
        ref_multiply(&p, 1);
    }
}

/* Rows first .. first + n - 1 on the device, `turns` times in a row. False: there is no such
 * kernel. */
static bool device(struct made *m, const int32_t *slots, int first, int n, int turns,
                   struct results *r)
{
    const struct join_case *c = m->c;
    size_t n_in = (size_t)c->n_in, used = (size_t)n * (size_t)m->y_width, n_x = (size_t)n * n_in;
    bool residual = c->kind == K_PRODUCT_RESIDUAL, is_float = c->kind == K_PRODUCT_FLOAT;
    size_t t_len = k_adapt_t_len(n, c->n_in, c->rank_max);
    int32_t order[ROWS], starts[ROWS + 1], segments[ROWS], of[ROWS], count[2], work[SLOTS + 2];
    struct k_adapt_rows rows = {order, starts, segments, count, of};
    uint32_t meet[2] = {0, 0};
    struct k_adapting a;
    float *before = m->residual + (size_t)first * (size_t)m->n_out, *f;

    k_adapt_sort(&rows, slots + first, n, SLOTS, work);
    a = (struct k_adapting){.of = m->of,
                            .rows = {gpu_array(order, sizeof order),
                                     gpu_array(starts, sizeof starts),
                                     gpu_array(segments, sizeof segments),
                                     gpu_array(count, sizeof count), gpu_array(of, sizeof of)},
                            .p = {.kind = c->kind,
                                  .x = gpu_bf16(m->x + (size_t)first * n_in, n_x),
                                  .w = &m->dev_w,
                                  .bias = m->dev_bias,
                                  .sums_in = (float *)m->dev_sums + (size_t)first * (n_in / 16),
                                  .n_sums = c->n_in / 16,
                                  .eps = 1e-5f,
                                  .norm = m->dev_norm,
                                  .y = gpu_array(NULL, used * (is_float ? 4 : 2)),
                                  .normed = gpu_array(NULL, used * 2),
                                  .sums_out = gpu_array(NULL, used / 16 * 4)},
                            .t = gpu_array(NULL, t_len * 4),
                            .meet = gpu_array(meet, sizeof meet),
                            .n = n,
                            .n_in = c->n_in,
                            .n_out = m->n_out,
                            .rank_max = c->rank_max,
                            .n_sms = SMS};
    if (!k_adapt_joins(&a))
        return false;
    for (int i = 0; i < turns; i++) {
        if (residual)
            a.p.residual = gpu_array(before, used * 4);
        gpu_must(k_adapt_join(&a, device_cuda_stream(gpu)));
    }
    if (residual || is_float) {
        ok(gpu_get(r->y, residual ? (void *)a.p.residual : a.p.y, used * 4),
           "guard bands are whole");
    } else {
        f = gpu_floats(a.p.y, used);
        memcpy(r->y, f, used * 4);
        free(f);
    }
    if (residual) {
        f = gpu_floats(a.p.normed, used);
        memcpy(r->normed, f, used * 4);
        free(f);
        ok(gpu_get(r->sums, a.p.sums_out, used / 16 * 4), "guard bands are whole");
    }
    ok(gpu_get(meet, a.meet, sizeof meet) && meet[0] == 0 && meet[1] == 0, "counters are zero");
    return true;
}

static void check_rows(struct made *m, int n, const char *how, int n_slots)
{
    size_t used = (size_t)n * (size_t)m->y_width, width = (size_t)m->y_width;
    struct results want = results_new(m, n), got = results_new(m, n), again = results_new(m, n);
    bool exact = m->c->kind == K_PRODUCT_RESIDUAL || m->c->kind == K_PRODUCT_FLOAT;
    int32_t slots[ROWS];
    char name[160];

    for (int i = 0; i < n; i++)
        slots[i] = n_slots == 1 ? 0 : i * 7 % (n_slots + 1) - 1;
    (void)snprintf(name, sizeof name, "kind %d, %d x %d, %d rows, %s", (int)m->c->kind, m->n_out,
                   m->c->n_in, n, how);
    if (!device(m, slots, 0, n, 1, &got)) {
        printf("# %s: three launches\n", name);
        results_free(&want), results_free(&got), results_free(&again);
        return;
    }
    reference(m, slots, n, &want);
    gpu_compare(got.y, want.y, used, 1e-5, exact ? 2e-4 : 8e-3, name);
    if (m->c->kind == K_PRODUCT_RESIDUAL) {
        gpu_compare(got.normed, want.normed, used, 1e-5, 8e-3, "its normed rows");
        gpu_compare(got.sums, want.sums, used / 16, 1e-4, 2e-3, "its squares");
    }
    (void)device(m, slots, 0, n, TURNS, &again);
    ok(memcmp(got.y, again.y, used * 4) == 0, "the same bits after %d turns", TURNS);
    /* The last row with others' adapters changed, and in the bucket of fewer rows. */
    for (int i = 0; i + 1 < n; i++)
        slots[i] = i * 5 % (SLOTS + 1) - 1;
    (void)device(m, slots, 0, n, 1, &again);
    ok(memcmp(got.y + used - width, again.y + used - width, width * 4) == 0,
       "a row's bits are its own");
    if (n > 1 && n <= 3) {
        (void)device(m, slots, n - 1, 1, 1, &again);
        ok(memcmp(got.y + used - width, again.y, width * 4) == 0, "alone, too");
    }
    results_free(&want), results_free(&got), results_free(&again);
}

int main(void)
{
    static const int numbers[] = {1, 2, 3, 4, 13, 32, 48, 64};

    gpu_open();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct made m;

        if (!gpu_has_turn())
            continue;
        make(&m, &cases[i]);
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
            check_rows(&m, numbers[k], "one adapter", 1);
            check_rows(&m, numbers[k], "several", SLOTS);
        }
        made_free(&m);
    }
    device_close(gpu);
    return tap_done();
}
