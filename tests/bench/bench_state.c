/* SPDX-License-Identifier: Apache-2.0
 *
 * The error of states that are kept in bfloat16, beside float32, after 32,768 tokens.
 *
 *   bench_state [TOKENS]
 *
 * By the references, without a GPU. A state is rounded when a step ends, so the error depends on
 * the tokens of a step: 1 of decodes, 32 of a chunk of the kernels, 2,048 of prompts. A row per
 * head: the error of its results over the last 1,024 tokens, and of its matrix in the end, relative
 * to float32, as roots of mean squares. */
#include <string.h>

#include "kernels/ref_state.h"
#include "tests/bench/states.h"

#define STEPS 3

static const int step_tokens[STEPS] = {1, 32, STATES_STEP};

/* A step of n tokens behind the first `before`. */
struct bench_tokens {
    const float *in, *gates;
    float *out;
    int before, n;
};

static void bench_step(const struct states *s, bool is_bf16, void *pages,
                       const struct bench_tokens *step)
{
    const int32_t start[2] = {0, step->n}, len[1] = {step->before + step->n}, table[1] = {0};
    const struct k_tokens t = {.seq_start = start,
                               .kv_len = len,
                               .page_ids = table,
                               .n_tokens = step->n,
                               .n_seqs = 1,
                               .pages_max = 1};
    const struct k_state state = {.pages = pages, .page_elems = s->n_state, .is_bf16 = is_bf16};

    for (int head = 0; head < STATES_HEADS; head++) {
        if (s->is_mamba)
            ref_mamba_scan(step->out, step->in, &s->mamba, &state, &t, 0, head);
        else
            ref_delta_rule(step->out, step->in, step->gates, &s->delta, &state, &t, 0, head);
    }
    if (s->is_mamba)
        ref_mamba_keep(step->in, &s->mamba, &state, &t, 0);
}

/* The error of head h's matrix in bfloat16. */
static double bench_matrix_error(const struct states *s, const void *got, const void *want, int h)
{
    size_t n = s->is_mamba ? k_mamba_matrix(&s->mamba.shape) : k_delta_matrix(&s->delta.shape);
    struct states_error e = {0};

    for (size_t i = (size_t)h * n; i < (size_t)(h + 1) * n; i++) {
        float wide = state_widen(((const k_bf16 *)got)[i]);

        states_add(&e, &wide, (const float *)want + i, 1);
    }
    return states_error_of(&e);
}

static void bench_run(bool is_mamba, int n_tokens)
{
    struct states s;
    float *in, *gates, *out[1 + STEPS];
    void *pages[1 + STEPS];
    struct states_error errors[STEPS][STATES_HEADS] = {0};

    states_open(&s, is_mamba);
    in = calloc(STATES_STEP * s.row, sizeof *in);
    gates = calloc(STATES_STEP * 2 * STATES_HEADS, sizeof *gates);
    for (int i = 0; i <= STEPS; i++) {
        out[i] = calloc(STATES_STEP * s.n_out, sizeof *out[i]);
        pages[i] = calloc(s.n_state, sizeof(float));
    }
    for (int before = 0; before < n_tokens; before += STATES_STEP) {
        states_draw(&s, in, gates);
        for (int i = 0; i <= STEPS; i++) {
            int n = i == 0 ? STATES_STEP : step_tokens[i - 1];

            for (int at = 0; at < STATES_STEP; at += n) {
                const struct bench_tokens step = {in + (size_t)at * s.row,
                                                  gates + (size_t)at * 2 * STATES_HEADS,
                                                  out[i] + (size_t)at * s.n_out, before + at, n};

                bench_step(&s, i > 0, pages[i], &step);
            }
        }
    }
    printf("\n%s, %d tokens\nhalved in   results, of steps of          matrices\n",
           is_mamba ? "Mamba-2" : "Gated DeltaNet", n_tokens);
    for (int i = 0; i < 2 * STEPS; i++)
        printf("%*d", i == 0 ? 18 : 9, step_tokens[i % STEPS]);
    printf("\n");
    for (int i = 0; i < STEPS; i++)
        states_add_results(&s, errors[i], out[1 + i], out[0]);
    for (int h = 0; h < STATES_HEADS; h++) {
        printf("%9d", states_half_life(h));
        for (int i = 0; i < STEPS; i++)
            printf("%9.1e", states_error_of(&errors[i][h]));
        for (int i = 0; i < STEPS; i++)
            printf("%9.1e", bench_matrix_error(&s, pages[1 + i], pages[0], h));
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    int n_tokens = argc > 1 ? atoi(argv[1]) : STATES_TOKENS;

    if (n_tokens < STATES_STEP) {
        fprintf(stderr, "usage: bench_state [TOKENS], at least %d\n", STATES_STEP);
        return 2;
    }
    bench_run(false, n_tokens);
    bench_run(true, n_tokens);
    return 0;
}
