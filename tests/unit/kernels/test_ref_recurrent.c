/* SPDX-License-Identifier: Apache-2.0
 *
 * The recurrent mixer's reference in float64, over states that lie across pages, in chunks and as a
 * whole; and both GELUs. */
#include <math.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

#define WIDTH      37
#define TOKENS     50
#define PAGE_ELEMS 16 /* floats of a page: a state of two layers takes five */
#define N_PAGES    12

static float in[TOKENS * 2 * WIDTH], out[TOKENS * WIDTH], whole[TOKENS * WIDTH];
static float pages[N_PAGES * PAGE_ELEMS];
static const int32_t table[2][6] = {{7, 2, 9, 0, 4, 11}, {1, 3, 5, 6, 8, 10}};

static float noise(void)
{
    return (float)(rand() % 4001 - 2000) * 1e-3f;
}

/* The next n tokens of sequence 1, of `done`; sequence 0 is a padding one. */
static void run(int done, int n)
{
    const int32_t start[3] = {0, 0, n}, len[2] = {0, done + n};
    const struct k_state state = {.pages = pages, .page_elems = PAGE_ELEMS, .at = WIDTH};
    const struct k_tokens t = {.seq_start = start,
                               .kv_len = len,
                               .page_ids = table[0],
                               .n_tokens = n,
                               .n_seqs = 2,
                               .pages_max = 6};

    for (int s = 0; s < 2; s++) {
        ref_recurrent(out + done * WIDTH, in + done * 2 * WIDTH, &state, &t, WIDTH, s, 0, 20);
        ref_recurrent(out + done * WIDTH, in + done * 2 * WIDTH, &state, &t, WIDTH, s, 20, WIDTH);
    }
}

static double worst_difference(void)
{
    double worst = 0.0;

    for (int c = 0; c < WIDTH; c++) {
        double s = 0.0;

        for (int i = 0; i < TOKENS; i++) {
            double keep = 1.0 / (1.0 + exp(-(double)in[(i * 2 + 1) * WIDTH + c]));

            s = keep * s + (1.0 - keep) * (double)in[i * 2 * WIDTH + c];
            worst = fmax(worst, fabs(s - (double)out[i * WIDTH + c]));
        }
    }
    return worst;
}

/* What stands in pages before the first token is not read, and other pages are not written. */
static void check_recurrent(void)
{
    bool untouched = true;
    double worst;

    for (int i = 0; i < N_PAGES * PAGE_ELEMS; i++)
        pages[i] = NAN;
    run(0, TOKENS);
    worst = worst_difference();
    ok(worst < 1e-6, "%d tokens at once: within %.1e", TOKENS, worst);
    memcpy(whole, out, sizeof out);
    memset(out, 0, sizeof out);
    for (int done = 0, n; done < TOKENS; done += n) {
        n = 1 + rand() % 7;
        n = n < TOKENS - done ? n : TOKENS - done;
        run(done, n);
    }
    ok(memcmp(out, whole, sizeof out) == 0, "in chunks: the same bits");
    for (int p = 0; p < 6; p++) {
        for (int i = 0; i < PAGE_ELEMS; i++) {
            int elem = p * PAGE_ELEMS + i;
            bool is_nan =
                pages[table[1][p] * PAGE_ELEMS + i] != pages[table[1][p] * PAGE_ELEMS + i];
            bool is_other =
                pages[table[0][p] * PAGE_ELEMS + i] != pages[table[0][p] * PAGE_ELEMS + i];

            untouched = untouched && is_other && is_nan == (elem < WIDTH || elem >= 2 * WIDTH);
        }
    }
    ok(untouched, "nothing but the layer's state is written");
}

int main(void)
{
    srand(tap_seed(1));
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        in[i] = noise();
    check_recurrent();
    return tap_done();
}
