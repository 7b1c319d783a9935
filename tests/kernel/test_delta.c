/* SPDX-License-Identifier: Apache-2.0
 *
 * The gated delta rule against its reference: factors of heads and of channels, sizes of heads,
 * taps, states across pages, chunks and decodes, padding sequences; and gates of attention. Results
 * are rounded to bfloat16 once; states are float32 or bfloat16. */
#include "kernels/delta.h"
#include "tests/kernel/gpu.h"

#define SEQS    33
#define TOKENS  150
#define COLUMNS 40 /* of a row of the table */

static const struct {
    struct k_delta_shape shape;
    size_t page_elems, at;
} shapes[] = {
    {{1, 1, 4, 4, 2, false, false}, 16, 0},       {{2, 4, 12, 20, 4, false, false}, 100, 24},
    {{3, 3, 33, 70, 3, false, false}, 1001, 5},   {{2, 6, 128, 128, 4, false, false}, 16384, 0},
    {{1, 2, 128, 128, 4, false, false}, 4100, 8}, {{2, 2, 64, 128, 4, false, false}, 8192, 4},
    {{1, 4, 128, 96, 4, false, false}, 8192, 40}, {{2, 4, 12, 20, 4, true, false}, 100, 24},
    {{3, 3, 33, 70, 3, true, false}, 1001, 5},    {{6, 6, 128, 128, 4, true, false}, 16384, 0},
    {{2, 2, 128, 128, 4, true, false}, 4100, 8},  {{4, 4, 64, 128, 2, true, false}, 8192, 4}};

/* A padding sequence, one that begins, decodes, chunks. Without starts there are decodes alone. */
static struct {
    int n_seqs;
    int32_t starts[SEQS + 1], lens[SEQS];
} steps[] = {{5, {0, 1, 8, 9, 10, 43}, {0, 7, 1, 90, 60}},
             {5, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 90}},
             {5, {0, 70, 72, 135, 148, 150}, {70, 3, 64, 1000, 2}},
             {4, {0, 1, 2, 3, 4}, {0, 1, 2, 90}},
             {1, {0, 1}, {7}},
             {3, {0, 1, 2, 9}, {50, 1, 60}},
             {33, {0}, {0}}};

static void fill_steps(void)
{
    for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
        if (steps[k].starts[1] > 0)
            continue;
        for (int s = 0; s < steps[k].n_seqs; s++) {
            steps[k].starts[s + 1] = s + 1;
            steps[k].lens[s] = s * 7 % 90;
        }
    }
}

/* What guard bytes are as numbers of a result. */
static float unwritten(bool is_half)
{
    const uint16_t bits = 0xabab;
    _Float16 half;

    memcpy(&half, &bits, sizeof half);
    return is_half ? (float)half : gpu_widen(bits);
}

/* Host and device copies of one case. */
struct delta_case {
    int n_tokens, row;
    size_t state_size;
    float *in, *gates, *a, *z, *pages, *numbers, *want;
    struct k_delta host, dev;
    struct k_state host_state, dev_state;
    struct k_tokens t, dt;
    int32_t table[SEQS * COLUMNS], seq[TOKENS], pos[TOKENS];
};

/* Weights of both sides: taps, a_log, dt_bias, norm. */
static void make_weights(struct delta_case *c, const struct k_delta_shape *s)
{
    int keys = k_delta_keys(s) * s->n_taps, heads = s->n_v_heads;
    size_t n_taps = (size_t)(k_delta_channels(s) * s->n_taps);
    size_t n_bias = (size_t)k_delta_forgets(s);
    size_t n = n_taps + (size_t)(heads + s->v_dim) + n_bias;
    float *numbers = c->numbers = gpu_random(n, 1.0f), *at;

    at = gpu_array(numbers, n * sizeof *numbers);
    c->host = (struct k_delta){.shape = *s,
                               .q_taps = numbers,
                               .k_taps = numbers + keys,
                               .v_taps = numbers + 2 * keys,
                               .a_log = numbers + n_taps,
                               .dt_bias = numbers + n_taps + heads,
                               .norm = numbers + n_taps + heads + n_bias,
                               .eps = 1e-6f};
    c->dev = c->host;
    c->dev.q_taps = at;
    c->dev.k_taps = at + keys;
    c->dev.v_taps = at + 2 * keys;
    c->dev.a_log = at + n_taps;
    c->dev.dt_bias = at + n_taps + heads;
    c->dev.norm = gpu_bf16(c->host.norm, (size_t)s->v_dim);
    c->dev.rows = gpu_array(NULL, (size_t)c->n_tokens * k_delta_work(s) * sizeof(float));
}

/* Inputs that are no part of rows, by channel. */
static void make_apart(struct delta_case *c, const struct k_delta_shape *s)
{
    size_t n_a = (size_t)(c->n_tokens * k_delta_forgets(s));
    size_t n_z = (size_t)(c->n_tokens * k_delta_values(s));

    if (!s->by_channel)
        return;
    c->host.a = c->a = gpu_random(n_a, 2.0f);
    c->z = gpu_random(n_z, 2.0f);
    c->dev.a = gpu_array(c->a, n_a * sizeof *c->a);
    c->dev.z = gpu_bf16(c->z, n_z);
    c->host.z = c->z;
}

static void make_tokens(struct delta_case *c, int step)
{
    const int32_t *starts = steps[step].starts, *lens = steps[step].lens;
    int n_seqs = steps[step].n_seqs;

    for (int s = 0; s < n_seqs; s++) {
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            c->seq[i] = s;
            c->pos[i] = lens[s] == 0 ? 0 : lens[s] - starts[s + 1] + i;
        }
    }
    for (int k = 0; k < SEQS * COLUMNS; k++)
        c->table[k] = (int32_t)(k * 7 % (SEQS * COLUMNS + 1));
    c->t = (struct k_tokens){.seq = c->seq,
                             .pos = c->pos,
                             .seq_start = starts,
                             .kv_len = lens,
                             .page_ids = c->table,
                             .n_tokens = starts[n_seqs],
                             .n_seqs = n_seqs,
                             .pages_max = COLUMNS};
    c->dt = c->t;
    c->dt.seq = gpu_array(c->seq, sizeof c->seq);
    c->dt.pos = gpu_array(c->pos, sizeof c->pos);
    c->dt.seq_start = gpu_array(starts, sizeof steps[step].starts);
    c->dt.kv_len = gpu_array(lens, sizeof steps[step].lens);
    c->dt.page_ids = gpu_array(c->table, sizeof c->table);
}

static void check_delta(int i, int step, bool is_bf16)
{
    const struct k_delta_shape *s = &shapes[i].shape;
    struct delta_case *c = calloc(1, sizeof *c);
    size_t n_out, n_gates;
    float *got, *after, *dgates;
    k_bf16 *out, *din;
    bool is_half = k_delta_values(s) % 16 == 0 && i % 2 == 1;

    c->n_tokens = steps[step].starts[steps[step].n_seqs];
    c->row = k_delta_row(s);
    n_out = (size_t)(c->n_tokens * k_delta_values(s));
    n_gates = (size_t)(c->n_tokens * k_delta_gates(s));
    c->state_size = (size_t)(SEQS * COLUMNS + 1) * shapes[i].page_elems;
    make_weights(c, s);
    make_tokens(c, step);
    make_apart(c, s);
    c->in = gpu_random((size_t)(c->n_tokens * c->row), 2.0f);
    c->gates = gpu_random(n_gates, 2.0f);
    c->pages = gpu_random(c->state_size, 1.0f);
    c->want = malloc(n_out * sizeof *c->want);
    after = malloc(c->state_size * sizeof *after);
    if (is_bf16)
        gpu_narrow(c->pages, c->state_size);
    c->host_state = (struct k_state){.pages = c->pages,
                                     .page_elems = shapes[i].page_elems,
                                     .at = shapes[i].at,
                                     .is_bf16 = is_bf16};
    c->dev_state = c->host_state;
    c->dev_state.pages = gpu_array(c->pages, c->state_size * sizeof(float));
    din = gpu_bf16(c->in, (size_t)(c->n_tokens * c->row));
    dgates = gpu_array(c->gates, n_gates * sizeof *dgates);
    out = gpu_array(NULL, n_out * 2);
    for (size_t k = 0; k < n_out; k++)
        c->want[k] = unwritten(is_half);
    for (int seq = 0; seq < c->t.n_seqs; seq++) {
        for (int head = 0; head < s->n_k_heads; head++)
            ref_delta_rule(c->want, c->in, c->gates, &c->host, &c->host_state, &c->t, seq, head);
    }
    gpu_must(k_delta_rule(out, is_half, din, dgates, &c->dev, &c->dev_state, &c->dt,
                          device_cuda_stream(gpu)));
    got = is_half ? gpu_half_floats(out, n_out) : gpu_floats(out, n_out);
    gpu_compare(got, c->want, n_out, 2e-5, 4.1e-3, "delta");
    ok(gpu_get(after, c->dev_state.pages, c->state_size * sizeof(float)), "guard bands are whole");
    if (is_bf16) /* numbers that differ by little may be rounded to neighbours */
        gpu_compare_rounded((const k_bf16 *)after, (const k_bf16 *)c->pages, c->state_size);
    else
        gpu_compare(after, c->pages, c->state_size, c->n_tokens == c->t.n_seqs ? 1e-9 : 1e-6,
                    c->n_tokens == c->t.n_seqs ? 1e-4 : 2e-3, "states");
    free(c->a), free(c->z), free(c->in), free(c->gates), free(c->pages), free(c->numbers),
        free(c->want);
    free(after), free(got), free(c);
}

static void check_shut(size_t n, bool is_half)
{
    float *x = gpu_random(n, 2.0f), *gate = gpu_random(n, 4.0f), *got;
    k_bf16 *dx = gpu_bf16(x, n), *dgate = gpu_bf16(gate, n);

    ref_shut(x, gate, n);
    gpu_must(k_shut(dx, is_half, dgate, n, device_cuda_stream(gpu)));
    got = is_half ? gpu_half_floats(dx, n) : gpu_floats(dx, n);
    gpu_compare(got, x, n, 5e-6, 4.1e-3, "gates");
    free(x), free(gate), free(got);
}

/* Gates of n tokens, from a residual whose sums of squares are there in parts. */
static void check_gate(int n, int dim, int n_gates)
{
    size_t n_x = (size_t)(n * dim), n_w = (size_t)(n_gates * dim), n_out = (size_t)(n * n_gates);
    int n_sums = (dim + 15) / 16;
    float *x = gpu_random(n_x, 3.0f), *w = gpu_random(n_w, 0.5f), *want, *got;
    float *norm = gpu_random((size_t)dim, 1.0f), *sums;
    struct k_delta_gating g = {.dim = dim, .n_sums = n_sums, .eps = 1e-5f};
    float *out = gpu_array(NULL, n_out * sizeof *out);

    want = malloc(n_out * sizeof *want);
    got = malloc(n_out * sizeof *got);
    sums = calloc((size_t)(n * n_sums), sizeof *sums);
    for (int t = 0; t < n; t++) {
        double square = 0.0;

        for (int i = 0; i < dim; i++) {
            sums[t * n_sums + i / 16] += x[t * dim + i] * x[t * dim + i];
            square += (double)x[t * dim + i] * (double)x[t * dim + i];
        }
        for (int k = 0; k < n_gates; k++) {
            double sum = 0.0;

            for (int i = 0; i < dim; i++)
                sum += (double)x[t * dim + i] * (double)norm[i] * (double)w[k * dim + i];
            want[t * n_gates + k] = (float)(sum / sqrt(square / dim + 1e-5));
        }
    }
    g.w = gpu_bf16(w, n_w);
    g.x = gpu_array(x, n_x * sizeof *x);
    g.norm = gpu_bf16(norm, (size_t)dim);
    g.sums = gpu_array(sums, (size_t)(n * n_sums) * sizeof *sums);
    gpu_must(k_delta_gate(out, &g, n_gates, n, device_cuda_stream(gpu)));
    ok(gpu_get(got, out, n_out * sizeof *got), "guard bands are whole");
    gpu_compare(got, want, n_out, 1e-8, 1e-4, "gates as products");
    ok(k_delta_gate(out, &g, n_gates, K_DELTA_GATING_MAX + 1, device_cuda_stream(gpu)) != 0,
       "not for more tokens");
    free(x), free(w), free(norm), free(sums), free(want), free(got);
}

int main(void)
{
    gpu_open();
    fill_steps();
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (gpu_has_turn())
                check_delta((int)i, (int)step, false);
            if (gpu_has_turn())
                check_delta((int)i, (int)step, true);
        }
    }
    check_gate(1, 2048, 64);
    check_gate(K_DELTA_GATING_MAX, 5120, 96);
    check_gate(3, 60, 5);
    check_shut(5, false);
    check_shut(16 * 4096, false);
    check_shut(16 * 4095, true);
    device_close(gpu);
    return tap_done();
}
