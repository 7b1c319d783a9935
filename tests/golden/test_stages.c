/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a model with stages that are in flight together. As many groups of sequences as there
 * are stages take turns, and each step takes its tokens from the device, where the step of its
 * group before has sampled them. The tokens must be those of one stage whose steps run one by one;
 * chunks of prompts follow one another directly.
 *
 * Runs on the cpu device, or with QUIRE_TEST_DEVICE=cuda with as many stages as there are GPUs. */
#include <sys/stat.h>

#include "device/device.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define EACH   3 /* sequences of a group */
#define GROUPS 4
#define ROUNDS 24
#define PROMPT 61
#define CHUNK  23

static bool on_gpu;

/* A model with its sequences, and the sampled tokens. */
struct turns {
    struct run run;
    struct run_seq seqs[GROUPS][EACH];
    int32_t got[GROUPS][ROUNDS][EACH];
    int n_begun, n_ended; /* steps of decodes */
    int n_groups, n_stay; /* steps that stay in flight */
};

static struct model *open_model(const char *folder, int n_stages, int n_ranks)
{
    struct model_options o = {.dir = folder,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = on_gpu ? "cuda" : "cpu",
                              .page_tokens = 16,
                              .num_pages = 512,
                              .gpu_memory_utilization = 0.9,
                              .max_num_seqs = 16,
                              .max_num_batched_tokens = 128,
                              .n_stages = n_stages,
                              .n_ranks = n_ranks};
    struct model *m = NULL;

    is_int(model_open(&m, &o), ERR_OK, "%s: %d stages of %d ranks open", folder, n_stages, n_ranks);
    return m;
}

/* Step i decodes group i % n_groups; the prompts' last steps come first and count as round 0. */
static int end_oldest(struct turns *t)
{
    int step = t->n_ended++, group = step % t->n_groups, round = step / t->n_groups;
    int rc = model_step_end(t->run.m, t->run.ids, NULL);

    for (int i = 0; i < EACH && rc == ERR_OK; i++) {
        struct run_seq *s = &t->seqs[group][i];

        t->got[group][round][i] = t->run.ids[i];
        s->tokens[PROMPT + group + i + round] = t->run.ids[i];
    }
    return rc;
}

/* The prompts of a group, in chunks that are all in flight behind one another, as far as steps may
 * be. */
static int begin_prompts(struct turns *t, int group)
{
    int rc = ERR_OK, n_flying = 0, n_samples = 0;

    while (rc == ERR_OK && n_samples == 0) {
        run_clear(&t->run);
        for (int i = 0; i < EACH; i++) {
            struct run_seq *s = &t->seqs[group][i];
            int left = s->n_tokens - s->n_computed;

            /* The last token of all comes in one step, so that all are sampled in it. */
            if (left > 1)
                run_add(&t->run, s, left - 1 < CHUNK ? left - 1 : CHUNK, false);
        }
        if (t->run.b.n_seqs == 0) {
            n_samples = EACH;
            for (int i = 0; i < EACH; i++)
                run_add(&t->run, &t->seqs[group][i], 1, false);
        }
        rc = run_begin(&t->run);
        n_flying++;
        while (rc == ERR_OK && n_flying > (n_samples > 0 ? 1 : t->n_stay)) {
            rc = model_step_end(t->run.m, t->run.ids, NULL);
            n_flying--;
        }
    }
    return rc;
}

/* The next step of decodes. Its tokens are those of the step n_groups before, which is in flight
 * unless steps run one by one. */
static int begin_decodes(struct turns *t)
{
    int group = t->n_begun % t->n_groups;
    bool flies = t->n_begun - t->n_groups >= t->n_ended;

    run_clear(&t->run);
    for (int i = 0; i < EACH; i++) {
        struct run_seq *s = &t->seqs[group][i];

        s->n_tokens++;
        run_add(&t->run, s, 1, false);
        if (flies)
            t->run.token_ids[i] = -1 - i;
    }
    return run_begin(&t->run);
}

/* All groups' prompts, then their decodes in turn. */
static int take_turns(struct turns *t)
{
    int rc = ERR_OK, n_steps = t->n_groups * ROUNDS;

    /* Prompts one group after another; the step that samples is ended at once. */
    for (int g = 0; g < t->n_groups && rc == ERR_OK; g++) {
        rc = begin_prompts(t, g);
        t->n_begun++;
        if (rc == ERR_OK)
            rc = end_oldest(t);
    }
    while (rc == ERR_OK && t->n_begun < n_steps) {
        rc = begin_decodes(t);
        t->n_begun++;
        while (rc == ERR_OK && t->n_begun - t->n_ended > t->n_stay)
            rc = end_oldest(t);
    }
    while (rc == ERR_OK && t->n_ended < t->n_begun)
        rc = end_oldest(t);
    return rc;
}

/* n_stages 1: one by one, in n_groups groups. */
static struct turns *turns_of(const char *folder, int n_stages, int n_ranks, int n_groups)
{
    struct turns *t = calloc(1, sizeof *t);
    struct model *m = open_model(folder, n_stages, n_ranks);
    int at = 0;

    if (m == NULL)
        return t;
    run_init(&t->run, m);
    t->n_groups = n_groups;
    t->n_stay = n_stages > 1 ? n_stages : 0;
    for (int g = 0; g < n_groups; g++) {
        for (int i = 0; i < EACH; i++) {
            struct run_seq *s = &t->seqs[g][i];

            s->n_tokens = PROMPT + g + i;
            for (int k = 0; k < s->n_tokens; k++)
                s->tokens[k] = (7 + 31 * k + 17 * g + 5 * i) % model_shape(m)->n_vocab;
            s->first_page = at;
            at += run_pages(m, s->n_tokens + ROUNDS);
        }
    }
    is_int(take_turns(t), ERR_OK, "%s: %d stages of %d ranks run", folder, n_stages, n_ranks);
    model_close(m);
    return t;
}

static void check_stages(const char *folder, const char *name, int n_stages, int n_ranks)
{
    struct turns *one = turns_of(folder, 1, n_ranks, n_stages);
    struct turns *many = turns_of(folder, n_stages, n_ranks, n_stages);
    int n_same = 0, n_all = n_stages * ROUNDS * EACH;

    for (int g = 0; g < n_stages; g++) {
        for (int k = 0; k < ROUNDS; k++) {
            for (int i = 0; i < EACH; i++)
                n_same += one->got[g][k][i] == many->got[g][k][i];
        }
    }
    is_int(n_same, n_all, "%s: %d stages of %d ranks in flight: the tokens of one stage", name,
           n_stages, n_ranks);
    free(one);
    free(many);
}

int main(void)
{
    static const char *const models[] = {
        "llama-gqa",        "qwen2-window",        "toy-states",         "families/qwen3-moe-fused",
        "families/qwen3.5", "families/nemotron-h", "families/falcon-h1", "demo"};
    const char *device = getenv("QUIRE_TEST_DEVICE"), *root = getenv("QUIRE_GOLDENS");
    char folder[4200], base[4096];
    struct stat st;
    int n_found = 0, most = 4;

    on_gpu = device != NULL && strcmp(device, "cuda") == 0;
    if (on_gpu)
        most = device_cuda_count();
    if (most < 2)
        tap_skip_all("stages need two GPUs");
    snprintf(base, sizeof base, "%s", root != NULL ? root : tap_path("tests/golden"));
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        bool is_demo = strcmp(models[i], "demo") == 0;

        snprintf(folder, sizeof folder, is_demo ? "%s/../../tools/demo-model/model" : "%s/%s", base,
                 models[i]);
        if (stat(folder, &st) != 0)
            continue;
        n_found++;
        check_stages(folder, models[i], 2, 1);
        if (is_demo && most >= 4) {
            check_stages(folder, models[i], 3, 1);
            check_stages(folder, models[i], 4, 1);
            check_stages(folder, models[i], 2, 2);
        }
    }
    if (n_found == 0)
        tap_skip_all("no models in tests/golden");
    return tap_done();
}
