/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of LoRA adapters on a GPU against the reference (adapt_case.h): rows with several
 * adapters and none, each kind of product, odd sizes. */
#include "tests/kernel/adapt_case.h"
#include "tests/kernel/gpu.h"

/* The device's table of a part's slots. */
static struct k_adapter *put_slots(const struct adapt_made *m, int part)
{
    const struct k_adapted *of = &m->narrow.parts[part];
    struct k_adapter slots[ADAPT_SLOTS];

    for (int s = 0; s < ADAPT_SLOTS; s++) {
        size_t rank = (size_t)of->slots[s].rank;

        slots[s] = of->slots[s];
        slots[s].a = gpu_array(of->slots[s].a, rank * (size_t)m->c->n_in * sizeof(k_bf16));
        slots[s].b =
            gpu_array(of->slots[s].b, K_ADAPT_STRIDE(rank) * (size_t)of->n_out * sizeof(k_bf16));
    }
    return gpu_array(slots, sizeof slots);
}

/* Copy back the kernel's 16-bit numbers as floats. */
static float *get(const void *dev, size_t n, bool is_half)
{
    return is_half ? gpu_half_floats(dev, n) : gpu_floats(dev, n);
}

static float *get_floats(const float *dev, size_t n)
{
    float *f = malloc(n * sizeof *f + 4);

    ok(gpu_get(f, dev, n * sizeof *f), "guard bands are whole");
    return f;
}

static void check(size_t at)
{
    const struct adapt_case *c = &adapt_cases[at];
    size_t n = (size_t)c->n, n_y, n_in = (size_t)c->n_in;
    bool is_float = c->kind == K_PRODUCT_FLOAT;
    struct adapt_got got = {NULL};
    struct k_adapting a;
    struct adapt_made m;

    adapt_make(&m, c);
    n_y = n * (size_t)m.n_out;
    a = (struct k_adapting){
        .of = m.narrow,
        .rows = {gpu_array(m.order, sizeof m.order), gpu_array(m.starts, sizeof m.starts),
                 gpu_array(m.segments, sizeof m.segments), gpu_array(m.count, sizeof m.count),
                 gpu_array(m.of, sizeof m.of)},
        .p = {.kind = c->kind,
              .x = gpu_array(m.x, n * n_in * sizeof *m.x),
              .sums_in = c->has_norm ? gpu_array(m.sums, n * (n_in / 16) * sizeof(float)) : NULL,
              .n_sums = c->n_in / 16,
              .eps = ADAPT_EPS,
              .y_is_half = c->is_half,
              .y = is_float ? gpu_array(m.before_float, n_y * sizeof(float))
                            : gpu_array(m.before, n_y * sizeof(k_bf16)),
              .residual = gpu_array(m.residual, n_y * sizeof(float)),
              .norm = gpu_array(m.norm, (size_t)m.n_out * sizeof(k_bf16)),
              .normed = gpu_array(NULL, n_y * sizeof(k_bf16)),
              .sums_out = gpu_array(NULL, n * ((size_t)m.n_out / 16) * sizeof(float))},
        .x_is_half = c->is_half,
        .plain = gpu_array(m.before, n_y * sizeof(k_bf16)),
        .t = gpu_array(NULL, K_ADAPT_SPLITS * (size_t)c->n_parts * n * 64 * sizeof(float)),
        .n = c->n,
        .n_in = c->n_in,
        .n_out = m.n_out,
        .rank_max = 64,
        .n_sms = 132};
    for (int part = 0; part < c->n_parts; part++)
        a.of.parts[part].slots = put_slots(&m, part);
    gpu_must(k_adapt_in(&a, device_cuda_stream(gpu)));
    gpu_must(k_adapt_out(&a, device_cuda_stream(gpu)));
    if (c->kind == K_PRODUCT_RESIDUAL) {
        got.residual = get_floats(a.p.residual, n_y);
        got.normed = get(a.p.normed, n_y, c->is_half);
        got.sums_out = get_floats(a.p.sums_out, n_y / 16);
    } else if (is_float) {
        got.y = get_floats(a.p.y, n_y);
    } else {
        /* A gated result is half as wide as the memory that it is written to. */
        bool is_gated = c->kind == K_PRODUCT_GATED;
        float *all = get(a.p.y, n_y, c->is_half && is_gated);

        got.y = all;
    }
    adapt_compare(&m, &got, at);
    free(got.y), free(got.normed), free(got.sums_out), free(got.residual);
    adapt_free(&m);
}

int main(void)
{
    gpu_open();
    adapt_seed = gpu_seed;
    for (size_t at = 0; at < ADAPT_CASES; at++) {
        if (gpu_has_turn())
            check(at);
    }
    device_close(gpu);
    return tap_done();
}
