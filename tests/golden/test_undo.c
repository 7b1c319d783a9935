/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: wrong drafts leave no trace, in states and in pages of keys. Method: a text is computed
 * token by token, and again in steps with right and wrong drafts as the engine makes them: the
 * states are copied before each step, and if a draft is wrong the copy takes their place and the
 * next step computes the right tokens again. On a GPU these steps are recorded and have runs, of
 * one sequence or of several with different numbers of drafts. All rows that count are those of the
 * first way: equal on the cpu device; near with QUIRE_TEST_DEVICE=cuda, where chunks are computed
 * in another order. */
#include <math.h>

#include "base/log.h"
#include "device/device.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define PROMPT     40
#define TEXT       48 /* tokens behind it */
#define STEP_MAX   8  /* tokens of one sequence in a step with drafts */
#define SEQS       3  /* that draft together */
#define SEQ_PAGES  48 /* of each sequence */
#define KEPT_PAGES 24 /* of the states of one, kept behind those */
#define PAGES      ((SEQS + 1) * SEQ_PAGES + SEQS * KEPT_PAGES)
#define N_WORDS    1024
#define ERROR_CUDA 8e-2 /* as test_golden.c allows; without the copies it is mostly some 1 */

static const char *const folders[] = {
    "toy-states",          "families/qwen3.5",     "families/qwen3-next",
    "families/nemotron-h", "families/granite-h",   "families/falcon-h1",
    "families/lfm2",       "families/kimi-linear", "qwen3",
    "families/voxtral"};

/* Those that the cpu device alone runs. */
static const char *const folders_cpu[] = {"families/olmo-hybrid"};

/* A sequence that drafts: n_drafts in a step, of which n_right are right. */
struct drafting {
    struct run_seq seq;
    int n_drafts, n_right, n_known;
    int kept;            /* the first page of the copy of its states */
    int before, n_again; /* of the step: computed before it, and again in it */
    int n, right;        /* drafts, and right ones */
    int row;             /* the first row of it */
};

static struct run run;
static struct run_seq plain;
static struct drafting drafted[SEQS];
static float want[TEXT][N_WORDS], rows[SEQS * STEP_MAX * N_WORDS];
static const char *device = "cpu";

/* Copy the states of d to its kept pages, or back. */
static void copy_states(const struct drafting *d, bool back)
{
    const struct model_shape *shape = model_shape(run.m);

    for (int g = 0; g < shape->n_groups; g++) {
        for (int i = 0; shape->groups[g].kind == CACHE_STATE && i < shape->groups[g].n_state_pages;
             i++) {
            int32_t own = run_page(&run, &d->seq, g, i), kept = d->kept + i;

            if (i >= KEPT_PAGES ||
                model_page_copy(run.m, back ? own : kept, back ? kept : own) != ERR_OK)
                printf("Bail out! a page was not copied\n");
        }
    }
}

static void end_step(void)
{
    if (run_step(&run) != ERR_OK || (run.b.n_rows > 0 && model_logits(run.m, rows) != ERR_OK))
        printf("Bail out! a step failed\n");
}

static void step(struct run_seq *s, int n)
{
    run_clear(&run);
    run_add(&run, s, n, false);
    end_step();
}

/* The text is what the model says, and the logits of its tokens. */
static void say(int n_vocab)
{
    plain = (struct run_seq){.n_tokens = PROMPT};
    for (int i = 0; i < PROMPT; i++)
        plain.tokens[i] = (i * 37 + i * i % 11) % n_vocab;
    for (int i = 0; i < TEXT; i++) {
        step(&plain, plain.n_tokens - plain.n_computed);
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

/* Compute the prompt but its last token. */
static void begin(struct drafting *d, int idx, const int *of)
{
    *d = (struct drafting){.seq = {.n_tokens = PROMPT, .first_page = (idx + 1) * SEQ_PAGES},
                           .n_drafts = of[0],
                           .n_right = of[1],
                           .n_known = PROMPT,
                           .kept = (SEQS + 1) * SEQ_PAGES + idx * KEPT_PAGES};
    memcpy(d->seq.tokens, plain.tokens, sizeof d->seq.tokens);
    step(&d->seq, PROMPT - 1);
}

/* Add the known tokens and drafts of d to the step. */
static void add(struct drafting *d, int n_vocab)
{
    d->before = d->seq.n_computed;
    d->n_again = d->n_known - d->before - 1;
    d->n = d->n_again + 1 + d->n_drafts > STEP_MAX ? STEP_MAX - d->n_again - 1 : d->n_drafts;
    d->right = d->n < d->n_right ? d->n : d->n_right;
    for (int i = d->right; i < d->n; i++)
        d->seq.tokens[d->n_known + i] = (plain.tokens[d->n_known + i] + 1 + i) % n_vocab;
    d->seq.n_tokens = d->n_known + d->n;
    copy_states(d, false);
    d->row = run.b.n_rows;
    run_add(&run, &d->seq, d->n_again + 1 + d->n, true);
    /* Tokens that are computed again are not sampled. */
    run.b.n_rows -= d->n_again;
    memmove(run.rows + d->row, run.rows + d->row + d->n_again,
            (size_t)(run.b.n_rows - d->row) * sizeof *run.rows);
}

/* Take what was right. Returns the greatest error of a row of d that counts. */
static double take(struct drafting *d, int n_vocab)
{
    double error = 0.0;

    for (int i = 0; i <= d->right; i++) {
        double e = error_of(rows + (size_t)(d->row + i) * (size_t)n_vocab,
                            want[d->n_known - PROMPT + i], n_vocab);

        error = e > error ? e : error;
    }
    if (d->right < d->n) {
        copy_states(d, true);
        d->seq.n_computed = d->before;
    }
    d->n_known += d->right + 1;
    memcpy(d->seq.tokens, plain.tokens, sizeof d->seq.tokens);
    return error;
}

static bool goes_on(const struct drafting *d)
{
    return d->n_known + d->n_drafts < PROMPT + TEXT;
}

/* The same text with drafts, of n sequences beside each other: of[i] are the drafts of a step and
 * the right ones of these. Returns the greatest error of a row that counts. */
static double say_with_drafts(int n_vocab, const int of[][2], int n)
{
    double error = 0.0;
    bool goes = true;

    for (int i = 0; i < n; i++)
        begin(&drafted[i], i, of[i]);
    while (goes) {
        bool in_step[SEQS] = {false};

        goes = false;
        run_clear(&run);
        for (int i = 0; i < n; i++) {
            if (!(in_step[i] = goes_on(&drafted[i])))
                continue;
            add(&drafted[i], n_vocab);
            goes = true;
        }
        if (!goes)
            break;
        end_step();
        for (int i = 0; i < n; i++) {
            double e = in_step[i] ? take(&drafted[i], n_vocab) : 0.0;

            error = e > error ? e : error;
        }
    }
    return error;
}

static void check(const char *folder)
{
    static const int cases[][2] = {{3, 3}, {3, 0}, {3, 1}, {7, 5}, {1, 0}, {6, 2}};
    static const int together[][2] = {{7, 5}, {0, 0}, {3, 0}};
    char dir[4096], below[400];
    struct model_options o = {.dir = dir,
                              .device = device,
                              .cpu_threads = 1,
                              .page_tokens = 16,
                              .max_num_seqs = 32,
                              .max_num_batched_tokens = 64,
                              .max_model_len = 128,
                              .num_pages = PAGES};
    double most = strcmp(device, "cpu") == 0 ? 0.0 : ERROR_CUDA;
    struct model *m = NULL;
    double error;
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
        error = say_with_drafts(n_vocab, &cases[i], 1);
        ok(error <= most, "%s: %d of %d drafts right: within %.2e", folder, cases[i][1],
           cases[i][0], error);
    }
    error = say_with_drafts(n_vocab, together, SEQS);
    ok(error <= most, "%s: %d sequences together: within %.2e", folder, SEQS, error);
    model_close(m);
}

int main(void)
{
    if (getenv("QUIRE_TEST_DEVICE") != NULL)
        device = getenv("QUIRE_TEST_DEVICE");
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        check(folders[i]);
    for (size_t i = 0; i < sizeof folders_cpu / sizeof folders_cpu[0]; i++) {
        if (strcmp(device, "cpu") == 0)
            check(folders_cpu[i]);
    }
    return tap_done();
}
