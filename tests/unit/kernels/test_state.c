/* SPDX-License-Identifier: Apache-2.0
 *
 * States in bfloat16: how numbers are rounded, copies across pages, and that a matrix that forgets
 * slowly still forgets: rounded to the nearest it would not. */
#include <math.h>
#include <string.h>

#include "kernels/ref_state.h"
#include "tests/bench/states.h"
#include "tests/tap.h"

#define DECODES 4096

static void test_round(void)
{
    double sum = 0.0, worst = 0.0;
    int n_up = 0;

    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float x = state_widen((k_bf16)bits);
        k_bf16 got = state_round(x, bits, 7);

        if (isnan(x) ? !isnan(state_widen(got)) : got != bits)
            n_up++;
    }
    is_int(n_up, 0, "what a bfloat16 can hold is kept: also zeros, infinities, NaN");
    for (size_t i = 0; i < 100000; i++) {
        float x = 1.0f + 0x1p-10f, got = state_widen(state_round(x, i % 1000, (int)(i / 1000)));

        sum += (double)got - 1.0;
        worst = fmax(worst, fabs((double)got - (double)x));
    }
    ok(fabs(sum / 100000 - 0x1p-10) < 0x1p-16, "the mean is exact: 1 + %.6f", sum / 100000);
    ok(worst < 0x1p-7, "to a neighbour");
    is_int(state_round(1.0f + 0x1p-9f, 12, 34), state_round(1.0f + 0x1p-9f, 12, 34),
           "equal elements and positions, equal bits");
}

static void test_copies(void)
{
    k_bf16 pages[6 * 10] = {0};
    const int32_t table[3] = {5, 0, 3}, len[1] = {9};
    const struct k_state state = {.pages = pages, .page_elems = 10, .at = 4, .is_bf16 = true};
    const struct k_tokens t = {.kv_len = len, .page_ids = table, .n_seqs = 1, .pages_max = 3};
    float from[20], to[20] = {0};
    int n = 0;

    for (int i = 0; i < 20; i++)
        from[i] = (float)(i - 7) * 0.25f;
    state_store(&state, &t, 0, from, 3, 20);
    state_load(&state, &t, 0, to, 3, 20);
    ok(memcmp(from, to, sizeof to) == 0, "20 elements over three pages come back");
    for (int i = 0; i < 60; i++)
        n += pages[i] != 0;
    is_int(n, 19, "and nothing else was written");
    ok(state_widen(pages[57]) == from[0] && state_widen(pages[30]) == from[13],
       "they are where the table says");
}

/* Mamba-2, token by token, in float32 and bfloat16. */
static void test_forgets(void)
{
    struct states s;
    struct states_error errors[STATES_HEADS] = {0};
    float *in, *gates, *out[2];
    void *pages[2];

    states_open(&s, true);
    in = calloc(STATES_STEP * s.row, sizeof *in);
    gates = calloc(STATES_STEP * 2 * STATES_HEADS, sizeof *gates);
    for (int i = 0; i < 2; i++) {
        out[i] = calloc(STATES_STEP * s.n_out, sizeof *out[i]);
        pages[i] = calloc(s.n_state, sizeof(float));
    }
    for (int at = 0; at < DECODES; at++) {
        const int32_t start[2] = {0, 1}, len[1] = {at + 1}, table[1] = {0};
        const struct k_tokens t = {.seq_start = start,
                                   .kv_len = len,
                                   .page_ids = table,
                                   .n_tokens = 1,
                                   .n_seqs = 1,
                                   .pages_max = 1};
        size_t i = (size_t)(at % STATES_STEP);

        if (i == 0)
            states_draw(&s, in, gates);
        for (int type = 0; type < 2; type++) {
            const struct k_state state = {
                .pages = pages[type], .page_elems = s.n_state, .is_bf16 = type == 1};

            ref_mamba_scan(out[type] + i * s.n_out, in + i * s.row, &s.mamba, &state, &t, 0, 3);
            ref_mamba_keep(in + i * s.row, &s.mamba, &state, &t, 0);
        }
    }
    states_add_results(&s, errors, out[1], out[0]);
    ok(states_error_of(&errors[3]) < 0.03, "half of it forgotten in %d tokens: error %.4f",
       states_half_life(3), states_error_of(&errors[3]));
    free(in), free(gates), free(s.numbers);
    for (int i = 0; i < 2; i++)
        free(out[i]), free(pages[i]);
}

int main(void)
{
    test_round();
    test_copies();
    test_forgets();
    return tap_done();
}
