/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: wrong drafts leave no trace, in states and in pages of keys. Method: a text is computed
 * token by token, and again in steps with right and wrong drafts as the engine makes them: the
 * states are copied before each step, and if a draft is wrong the copy takes their place and the
 * next step computes the right tokens again. On a GPU, steps without states are recorded and have
 * runs. All rows that count are those of the first way: equal on the cpu device; near with
 * QUIRE_TEST_DEVICE=cuda, where chunks are computed in another order. */
#include <math.h>

#include "base/log.h"
#include "device/device.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define PROMPT     40
#define TEXT       48 /* tokens behind it */
#define STEP_MAX   8  /* tokens of one sequence in a step with drafts */
#define PAGES      96
#define N_WORDS    1024
#define ERROR_CUDA 8e-2 /* as test_golden.c allows; without the copies it is mostly some 1 */

static const char *const folders[] = {
    "toy-states",          "families/qwen3.5",     "families/qwen3-next",
    "families/nemotron-h", "families/granite-h",   "families/falcon-h1",
    "families/lfm2",       "families/kimi-linear", "qwen3",
    "families/voxtral"};

static struct run run;
static struct run_seq plain, drafted;
static float want[TEXT][N_WORDS], rows[STEP_MAX * N_WORDS];
static const char *device = "cpu";

/* Copy the states of s to the last pages, or back. */
static void copy_states(const struct run_seq *s, bool back)
{
    const struct model_shape *shape = model_shape(run.m);

    for (int g = 0; g < shape->n_groups; g++) {
        for (int i = 0; shape->groups[g].kind == CACHE_STATE && i < shape->groups[g].n_state_pages;
             i++) {
            int32_t own = run_page(&run, s, g, i), kept = PAGES - 1 - i;

            if (model_page_copy(run.m, back ? own : kept, back ? kept : own) != ERR_OK)
                printf("Bail out! a page was not copied\n");
        }
    }
}

static void step(struct run_seq *s, int n, bool all)
{
    run_clear(&run);
    run_add(&run, s, n, all);
    if (run_step(&run) != ERR_OK || (run.b.n_rows > 0 && model_logits(run.m, rows) != ERR_OK))
        printf("Bail out! a step failed\n");
}

/* The text is what the model says, and the logits of its tokens. */
static void say(int n_vocab)
{
    plain = (struct run_seq){.n_tokens = PROMPT};
    for (int i = 0; i < PROMPT; i++)
        plain.tokens[i] = (i * 37 + i * i % 11) % n_vocab;
    for (int i = 0; i < TEXT; i++) {
        step(&plain, plain.n_tokens - plain.n_computed, false);
        memcpy(want[i], rows, (size_t)n_vocab * sizeof **want);
        plain.tokens[plain.n_tokens++] = run.ids[0];
    }
}

static double error_of(const float *got, const float *right, int n)
{
    double diff = 0.0, norm = 0.0;

    for (int i = 0; i < n; i++) {
        double d = (double)got[i] - (double)right[i];

        diff += d * d;
        norm += (double)right[i] * (double)right[i];
    }
    return sqrt(diff / norm);
}

/* The same text with n_drafts drafts in each step, of which n_right are right. Returns the greatest
 * error of a row that counts. */
static double say_with_drafts(int n_vocab, int n_drafts, int n_right)
{
    int n_known = PROMPT;
    double error = 0.0;

    drafted = (struct run_seq){.n_tokens = PROMPT, .first_page = PAGES / 2};
    memcpy(drafted.tokens, plain.tokens, sizeof drafted.tokens);
    step(&drafted, PROMPT - 1, false);
    while (n_known + n_drafts < PROMPT + TEXT) {
        int before = drafted.n_computed, n_again = n_known - before - 1;
        int n = n_again + 1 + n_drafts > STEP_MAX ? STEP_MAX - n_again - 1 : n_drafts;
        int right = n < n_right ? n : n_right;

        for (int i = right; i < n; i++)
            drafted.tokens[n_known + i] = (plain.tokens[n_known + i] + 1 + i) % n_vocab;
        drafted.n_tokens = n_known + n;
        copy_states(&drafted, false);
        step(&drafted, n_again + 1 + n, true);
        for (int i = 0; i <= right; i++) {
            double e = error_of(rows + (size_t)(n_again + i) * (size_t)n_vocab,
                                want[n_known - PROMPT + i], n_vocab);

            error = e > error ? e : error;
        }
        if (right < n) {
            copy_states(&drafted, true);
            drafted.n_computed = before;
        }
        n_known += right + 1;
        memcpy(drafted.tokens, plain.tokens, sizeof drafted.tokens);
    }
    return error;
}

static void check(const char *folder)
{
    static const int cases[][2] = {{3, 3}, {3, 0}, {3, 1}, {7, 5}, {1, 0}, {6, 2}};
    char dir[4096], below[400];
    struct model_options o = {.dir = dir,
                              .device = device,
                              .cpu_threads = 1,
                              .page_tokens = 16,
                              .max_num_seqs = 8,
                              .max_num_batched_tokens = 64,
                              .max_model_len = 128,
                              .num_pages = PAGES};
    double most = strcmp(device, "cpu") == 0 ? 0.0 : ERROR_CUDA;
    struct model *m = NULL;
    int n_vocab;

    (void)snprintf(below, sizeof below, "tests/golden/%s", folder);
    (void)snprintf(dir, sizeof dir, "%s", tap_path(below));
    if (model_open(&m, &o) != ERR_OK) {
        ok(false, "%s opens", folder);
        return;
    }
    n_vocab = model_shape(m)->n_vocab;
    run_init(&run, m);
    say(n_vocab);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double error = say_with_drafts(n_vocab, cases[i][0], cases[i][1]);

        ok(error <= most, "%s: %d of %d drafts right: within %.2e", folder, cases[i][1],
           cases[i][0], error);
    }
    model_close(m);
}

int main(void)
{
    if (getenv("QUIRE_TEST_DEVICE") != NULL)
        device = getenv("QUIRE_TEST_DEVICE");
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        check(folders[i]);
    return tap_done();
}
