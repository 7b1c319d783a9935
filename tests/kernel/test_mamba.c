/* SPDX-License-Identifier: Apache-2.0
 *
 * Mamba-2 and short convolutions against their references: sizes of heads, groups and states, taps,
 * states across pages, chunks and decodes, padding sequences, places of the norm, multipliers and
 * limits; and scaled rows. Results are rounded to bfloat16 once; states are float32 or
 * bfloat16. */
#include "kernels/mamba.h"
#include "tests/kernel/gpu.h"

#define SEQS    5
#define TOKENS  150
#define COLUMNS 40 /* of a row of the table */

/* norm: 0 none, 1 after the gate, 2 before it. */
static const struct {
    struct k_mamba_shape shape;
    size_t page_elems, at;
    int norm;
    bool is_plain; /* no biases, multipliers or limits */
} shapes[] = {{{2, 4, 1, 4, 2}, 16, 0, 1, false},        {{4, 10, 2, 12, 4}, 100, 24, 2, false},
              {{3, 33, 3, 70, 3}, 1001, 5, 0, false},    {{8, 64, 2, 128, 4}, 16384, 0, 1, true},
              {{2, 128, 1, 256, 4}, 16404, 8, 2, false}, {{2, 80, 2, 200, 4}, 8192, 4, 1, true},
              {{4, 64, 1, 256, 4}, 8192, 40, 0, true},   {{3, 96, 1, 128, 3}, 4100, 4, 1, false},
              {{12, 128, 1, 20, 4}, 2000, 4, 1, false}};

/* A padding sequence, one that begins, decodes, chunks. */
static const struct {
    int32_t starts[SEQS + 1], lens[SEQS];
} steps[] = {{{0, 1, 8, 9, 10, 43}, {0, 7, 1, 90, 60}},
             {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 90}},
             {{0, 70, 72, 135, 148, 150}, {70, 3, 64, 1000, 2}}};

/* What guard bytes are as numbers of a result. */
static float unwritten(bool is_half)
{
    const uint16_t bits = 0xabab;
    _Float16 half;

    memcpy(&half, &bits, sizeof half);
    return is_half ? (float)half : gpu_widen(bits);
}

/* Host and device copies of one case. */
struct mamba_case {
    int n_tokens, row;
    size_t state_size;
    float *in, *pages, *numbers, *want;
    struct k_mamba host, dev;
    struct k_state host_state, dev_state;
    struct k_tokens t, dt;
    int32_t table[SEQS * COLUMNS], seq[TOKENS], pos[TOKENS];
};

/* The part of the numbers that begins at a channel: taps of all channels come before biases. */
static struct k_mamba_part part_of(const float *numbers, const struct k_mamba_shape *s, int channel,
                                   float by, bool is_plain)
{
    const float *bias = numbers + k_mamba_channels(s) * s->n_taps + channel;

    return (struct k_mamba_part){numbers + channel * s->n_taps, is_plain ? NULL : bias,
                                 is_plain ? 1.0f : by};
}

static struct k_mamba mamba_of(const float *numbers, int i)
{
    const struct k_mamba_shape *s = &shapes[i].shape;
    const float *heads = numbers + k_mamba_channels(s) * (s->n_taps + 1);
    bool is_plain = shapes[i].is_plain;
    int inner = k_mamba_inner(s), width = s->n_groups * s->n_state;

    return (struct k_mamba){.shape = *s,
                            .x = part_of(numbers, s, 0, 0.8f, is_plain),
                            .b = part_of(numbers, s, inner, 0.6f, is_plain),
                            .c = part_of(numbers, s, inner + width, 0.7f, is_plain),
                            .a_log = heads,
                            .dt_bias = heads + s->n_heads,
                            .skip = heads + 2 * s->n_heads,
                            .norm = shapes[i].norm > 0 ? heads + 3 * s->n_heads : NULL,
                            .norm_first = shapes[i].norm == 2,
                            .eps = 1e-5f,
                            .least = is_plain ? 0.0f : 0.1f,
                            .most = is_plain ? INFINITY : 1.5f,
                            .z_by = is_plain ? 1.0f : 1.2f,
                            .dt_by = is_plain ? 1.0f : 0.9f};
}

static void make_weights(struct mamba_case *c, int i)
{
    const struct k_mamba_shape *s = &shapes[i].shape;
    size_t n = (size_t)(k_mamba_channels(s) * (s->n_taps + 1) + 3 * s->n_heads + k_mamba_inner(s));

    c->numbers = gpu_random(n, 1.0f);
    c->host = mamba_of(c->numbers, i);
    c->dev = mamba_of(gpu_array(c->numbers, n * sizeof *c->numbers), i);
    if (c->host.norm != NULL)
        c->dev.norm = gpu_bf16(c->host.norm, (size_t)k_mamba_inner(s));
    c->dev.rows = gpu_array(NULL, (size_t)c->n_tokens * k_mamba_work(s) * sizeof(float));
}

static void make_tokens(struct mamba_case *c, int step)
{
    const int32_t *starts = steps[step].starts, *lens = steps[step].lens;

    for (int s = 0; s < SEQS; s++) {
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
                             .n_tokens = starts[SEQS],
                             .n_seqs = SEQS,
                             .pages_max = COLUMNS};
    c->dt = c->t;
    c->dt.seq = gpu_array(c->seq, sizeof c->seq);
    c->dt.pos = gpu_array(c->pos, sizeof c->pos);
    c->dt.seq_start = gpu_array(starts, sizeof steps[step].starts);
    c->dt.kv_len = gpu_array(lens, sizeof steps[step].lens);
    c->dt.page_ids = gpu_array(c->table, sizeof c->table);
}

/* All of it by the references. */
static void run_reference(struct mamba_case *c)
{
    for (int seq = 0; seq < SEQS; seq++) {
        for (int head = 0; head < c->host.shape.n_heads; head++)
            ref_mamba_scan(c->want, c->in, &c->host, &c->host_state, &c->t, seq, head);
        ref_mamba_keep(c->in, &c->host, &c->host_state, &c->t, seq);
    }
    for (int token = 0; token < c->n_tokens; token++) {
        if (c->t.kv_len[c->seq[token]] > 0)
            ref_mamba_gate(c->want, c->in, &c->host, token);
    }
}

static void check_mamba(int i, int step, bool is_bf16)
{
    const struct k_mamba_shape *s = &shapes[i].shape;
    struct mamba_case *c = calloc(1, sizeof *c);
    size_t n_out;
    float *got, *after;
    k_bf16 *out, *din;
    bool is_half = k_mamba_inner(s) % 16 == 0 && i % 2 == 1;

    c->n_tokens = steps[step].starts[SEQS];
    c->row = k_mamba_row(s);
    n_out = (size_t)(c->n_tokens * k_mamba_inner(s));
    c->state_size = (size_t)(SEQS * COLUMNS + 1) * shapes[i].page_elems;
    make_weights(c, i);
    make_tokens(c, step);
    c->in = gpu_random((size_t)(c->n_tokens * c->row), 2.0f);
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
    out = gpu_array(NULL, n_out * 2);
    for (size_t k = 0; k < n_out; k++)
        c->want[k] = unwritten(is_half);
    run_reference(c);
    gpu_must(
        k_mamba_scan(out, is_half, din, &c->dev, &c->dev_state, &c->dt, device_cuda_stream(gpu)));
    got = is_half ? gpu_half_floats(out, n_out) : gpu_floats(out, n_out);
    gpu_compare(got, c->want, n_out, 2e-5, 4.1e-3, "mamba");
    ok(gpu_get(after, c->dev_state.pages, c->state_size * sizeof(float)), "guard bands are whole");
    if (is_bf16) /* numbers that differ by little may be rounded to neighbours */
        gpu_compare_rounded((const k_bf16 *)after, (const k_bf16 *)c->pages, c->state_size);
    else
        gpu_compare(after, c->pages, c->state_size, c->n_tokens == SEQS ? 1e-9 : 1e-6,
                    c->n_tokens == SEQS ? 1e-4 : 2e-3, "states");
    free(c->in), free(c->pages), free(c->numbers), free(c->want);
    free(after), free(got), free(c);
}

/* Short convolutions of `width` channels. */
static void check_short(int width, int n_taps, int step)
{
    struct mamba_case *c = calloc(1, sizeof *c);
    size_t n_out, n_in, page_elems = 64, n_numbers = (size_t)(width * (n_taps + 1));
    struct k_short_conv host, dev;
    float *got, *after, *numbers = gpu_random(n_numbers, 1.0f);
    const float *dnumbers = gpu_array(numbers, n_numbers * sizeof *numbers);
    k_bf16 *out, *din;
    bool is_half = width % 16 == 0;

    make_tokens(c, step);
    n_out = (size_t)(c->t.n_tokens * width);
    n_in = 3 * n_out;
    c->state_size = (size_t)(SEQS * COLUMNS + 1) * page_elems;
    host = (struct k_short_conv){width, n_taps, numbers,
                                 n_taps == 3 ? NULL : numbers + width * n_taps};
    dev = (struct k_short_conv){width, n_taps, dnumbers,
                                n_taps == 3 ? NULL : dnumbers + width * n_taps};
    c->in = gpu_random(n_in, 2.0f);
    c->pages = gpu_random(c->state_size, 1.0f);
    c->want = malloc(n_out * sizeof *c->want);
    after = malloc(c->state_size * sizeof *after);
    c->host_state = (struct k_state){.pages = c->pages, .page_elems = page_elems, .at = 7};
    c->dev_state = c->host_state;
    c->dev_state.pages = gpu_array(c->pages, c->state_size * sizeof(float));
    din = gpu_bf16(c->in, n_in);
    out = gpu_array(NULL, n_out * 2);
    for (size_t k = 0; k < n_out; k++)
        c->want[k] = unwritten(is_half);
    for (int seq = 0; seq < SEQS; seq++)
        ref_short_conv(c->want, c->in, &host, &c->host_state, &c->t, seq, 0, width);
    gpu_must(
        k_short_convolve(out, is_half, din, &dev, &c->dev_state, &c->dt, device_cuda_stream(gpu)));
    got = is_half ? gpu_half_floats(out, n_out) : gpu_floats(out, n_out);
    gpu_compare(got, c->want, n_out, 5e-6, 4.1e-3, "short convolutions");
    ok(gpu_get(after, c->dev_state.pages, c->state_size * sizeof(float)), "guard bands are whole");
    gpu_compare(after, c->pages, c->state_size, 1e-9, 1e-6, "their states");
    free(c->in), free(c->pages), free(c->want), free(numbers);
    free(after), free(got), free(c);
}

static void check_scale(void)
{
    size_t n = 7 * 50;
    float *x = gpu_random(n, 2.0f), *got;
    k_bf16 *dx = gpu_bf16(x, n);

    ref_scale(x, 50, 33, 0.7f, 7);
    gpu_must(k_scale(dx, 50, 33, 0.7f, 7, device_cuda_stream(gpu)));
    got = gpu_floats(dx, n);
    gpu_compare(got, x, n, 5e-6, 4.1e-3, "scaled rows");
    free(x), free(got);
}

int main(void)
{
    gpu_open();
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (gpu_has_turn())
                check_mamba((int)i, (int)step, false);
            if (gpu_has_turn())
                check_mamba((int)i, (int)step, true);
        }
        check_short(5, 2, (int)step);
        check_short(320, 3, (int)step);
        check_short(301, 4, (int)step);
    }
    check_scale();
    device_close(gpu);
    return tap_done();
}
