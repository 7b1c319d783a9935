/* SPDX-License-Identifier: Apache-2.0
 *
 * A model says the same before and after sleeps, from recorded steps too (a GPU records those of
 * decodes), and gives back what it says it does. QUIRE_TEST_DEVICE=cuda runs it on a GPU. */
#include "tests/golden/run.h"
#include "tests/tap.h"

#define N_PROMPT 37
#define N_TOKENS 40

static struct model *open_model(const char *dir, bool sleeps)
{
    const char *device = getenv("QUIRE_TEST_DEVICE");
    struct model_options o = {.dir = dir,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = device == NULL ? "cpu" : device,
                              .page_tokens = 16,
                              .num_pages = 100,
                              .max_num_seqs = 8,
                              .max_num_batched_tokens = 64,
                              .cpu_threads = 1,
                              .sleeps = sleeps};
    struct model *m = NULL;

    is_int(model_open(&m, &o), ERR_OK, "the model opens");
    if (m == NULL)
        exit(1);
    return m;
}

static struct run_seq *say(struct model *m)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *s = calloc(1, sizeof *s);

    run_init(r, m);
    s->n_tokens = N_PROMPT;
    for (int i = 0; i < N_PROMPT; i++)
        s->tokens[i] = (i * 7919 + 11) % model_shape(m)->n_vocab;
    is_int(run_greedy(r, s, 16, N_TOKENS), ERR_OK, "it speaks");
    free(r);
    return s;
}

static void through(struct model *m, int (*step)(struct model *), const char *what)
{
    int rc = ERR_AGAIN;

    for (int i = 0; i < 100000 && rc == ERR_AGAIN; i++)
        rc = step(m);
    is_int(rc, ERR_OK, "%s", what);
}

static bool same(const struct run_seq *a, const struct run_seq *b)
{
    return a->n_tokens == b->n_tokens &&
           memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof a->tokens[0]) == 0;
}

int main(void)
{
    const char *srcdir = getenv("srcdir");
    struct run_seq *first, *again;
    char dir[1000];
    struct model *m;

    snprintf(dir, sizeof dir, "%s/tools/demo-model/model", srcdir == NULL ? "." : srcdir);
    m = open_model(dir, false);
    ok(!model_shape(m)->sleeps && model_shape(m)->sleeping_bytes == 0,
       "without the wish nothing can be given back");
    first = say(m);
    model_close(m);
    m = open_model(dir, true);
    ok(model_shape(m)->sleeps, "with it, it can");
    ok(model_shape(m)->sleeping_bytes <= model_shape(m)->device_bytes &&
           model_shape(m)->constant_bytes < model_shape(m)->sleeping_bytes &&
           model_shape(m)->constant_bytes > 1000000,
       "%zu of %zu bytes, %zu of them kept", model_shape(m)->sleeping_bytes,
       model_shape(m)->device_bytes, model_shape(m)->constant_bytes);
    for (int turn = 0; turn < 3; turn++) {
        again = say(m);
        ok(same(first, again), "it says the same (%d)", turn);
        free(again);
        through(m, model_sleep, "it sleeps");
        through(m, model_wake, "and wakes");
    }
    again = say(m);
    ok(same(first, again), "it says the same at last");
    through(m, model_sleep, "it sleeps");
    model_close(m);
    free(first);
    free(again);
    return tap_done();
}
