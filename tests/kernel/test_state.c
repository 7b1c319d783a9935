/* SPDX-License-Identifier: Apache-2.0
 *
 * States in bfloat16 beside float32 over 32,768 tokens, by the kernels: prompts in steps of 2,048
 * tokens, in the chunked form, and decodes of one. Prints the errors of results by head, which
 * tests/bench/bench_state.c measures for the references, and bounds them. */
#include "tests/bench/states.h"
#include "tests/kernel/gpu.h"

#define RUNS 4 /* prompts in float32 and bfloat16, decodes in both */

struct state_run {
    bool is_bf16;
    int n; /* tokens of a step */
    void *pages;
    k_bf16 *out;
    float *results;
    int32_t *starts; /* of a step, on the device */
};

static void run_step(const struct states *dev, struct state_run *r, const k_bf16 *in,
                     const float *gates, const struct k_tokens *t, int at)
{
    const struct k_state state = {
        .pages = r->pages, .page_elems = dev->n_state, .is_bf16 = r->is_bf16};
    k_bf16 *out = r->out + (size_t)at * dev->n_out;

    if (dev->is_mamba)
        gpu_must(k_mamba_scan(out, false, in, &dev->mamba, &state, t, device_cuda_stream(gpu)));
    else
        gpu_must(
            k_delta_rule(out, false, in, gates, &dev->delta, &state, t, device_cuda_stream(gpu)));
}

/* STATES_STEP tokens behind `before`; counts [i] is i: positions, and lengths of sequences. */
static void run_tokens(const struct states *dev, struct state_run *r, const k_bf16 *in,
                       const float *gates, const int32_t *counts, const int32_t *zeros, int before)
{
    for (int at = 0; at < STATES_STEP; at += r->n) {
        const struct k_tokens t = {.seq = zeros,
                                   .pos = counts + before + at,
                                   .seq_start = r->starts,
                                   .kv_len = counts + before + at + r->n,
                                   .page_ids = zeros,
                                   .n_tokens = r->n,
                                   .n_seqs = 1,
                                   .pages_max = 1};

        run_step(dev, r, in + (size_t)at * dev->row, gates + (size_t)at * 2 * STATES_HEADS, &t, at);
    }
}

static void check_states(bool is_mamba)
{
    static const double bounds[2] = {5e-3, 6e-2};
    struct states s, dev;
    struct state_run runs[RUNS] = {{.n = STATES_STEP},
                                   {.n = STATES_STEP, .is_bf16 = true},
                                   {.n = 1},
                                   {.n = 1, .is_bf16 = true}};
    struct states_error errors[2][STATES_HEADS] = {0};
    int32_t *host_counts = malloc((STATES_TOKENS + 1) * sizeof *host_counts);
    const int32_t *counts, *zeros;
    float *in, *gates;

    states_open(&s, is_mamba);
    dev = s;
    states_point(&dev, gpu_array(s.numbers, s.n_numbers * sizeof(float)),
                 gpu_bf16(s.numbers + s.n_numbers - 128, 128));
    dev.mamba.norm = NULL;
    dev.delta.rows = gpu_array(NULL, STATES_STEP * k_delta_work(&s.delta.shape) * sizeof(float));
    dev.mamba.rows = gpu_array(NULL, STATES_STEP * k_mamba_work(&s.mamba.shape) * sizeof(float));
    for (int i = 0; i <= STATES_TOKENS; i++)
        host_counts[i] = i;
    counts = gpu_array(host_counts, (STATES_TOKENS + 1) * sizeof *host_counts);
    memset(host_counts, 0, (STATES_TOKENS + 1) * sizeof *host_counts);
    zeros = gpu_array(host_counts, STATES_STEP * sizeof *host_counts);
    for (int i = 0; i < RUNS; i++) {
        const int32_t start[2] = {0, runs[i].n};

        runs[i].pages = gpu_array(NULL, s.n_state * sizeof(float));
        runs[i].out = gpu_array(NULL, STATES_STEP * s.n_out * sizeof(k_bf16));
        runs[i].starts = gpu_array(start, sizeof start);
    }
    in = malloc(STATES_STEP * s.row * sizeof *in);
    gates = malloc(STATES_STEP * 2 * STATES_HEADS * sizeof *gates);
    for (int before = 0; before < STATES_TOKENS; before += STATES_STEP) {
        k_bf16 *din;
        float *dgates;

        states_draw(&s, in, gates);
        din = gpu_bf16(in, STATES_STEP * s.row);
        dgates = gpu_array(gates, STATES_STEP * 2 * STATES_HEADS * sizeof *gates);
        for (int i = 0; i < RUNS; i++)
            run_tokens(&dev, &runs[i], din, dgates, counts, zeros, before);
    }
    for (int i = 0; i < RUNS; i++)
        runs[i].results = gpu_floats(runs[i].out, STATES_STEP * s.n_out);
    for (int form = 0; form < 2; form++)
        states_add_results(&s, errors[form], runs[2 * form + 1].results, runs[2 * form].results);
    printf("# %s, results after %d tokens; halved in, prompts, decodes\n",
           is_mamba ? "Mamba-2" : "Gated DeltaNet", STATES_TOKENS);
    for (int h = 0; h < STATES_HEADS; h++) {
        double prompts = states_error_of(&errors[0][h]), decodes = states_error_of(&errors[1][h]);

        printf("# %9d %9.1e %9.1e\n", states_half_life(h), prompts, decodes);
        ok(prompts < bounds[0] && decodes < bounds[1], "errors of head %d", h);
    }
    free(host_counts), free(in), free(gates), free(s.numbers);
    for (int i = 0; i < RUNS; i++)
        free(runs[i].results);
}

int main(void)
{
    gpu_open();
    check_states(false);
    check_states(true);
    device_close(gpu);
    return tap_done();
}
