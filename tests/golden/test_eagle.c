/* SPDX-License-Identifier: Apache-2.0
 *
 * An EAGLE-3 head against the implementation in make_eagle.py, and an MTP layer against that in
 * make_mtp.py: the logits of the first draft, made of the target's residuals of a prompt, and those
 * of the drafts after it, made of the head's own.
 * With QUIRE_TEST_DEVICE=cuda on the GPU, whose numbers are bfloat16. */
#include <math.h>

#include "device/device.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define DRAFTS_MAX 8
#define PAGES      64
#define MTP_GGUF   "tests/golden/gguf/mtp-00001-of-00002.gguf"

static int32_t prompt[RUN_TOKENS], wanted[DRAFTS_MAX];
static float logits[DRAFTS_MAX][1024], got[1024];
static int n_prompt, n_drafts, n_vocab;
static int32_t next;
static const char *device = "cpu";

static void read_golden(const char *path)
{
    FILE *f = fopen(tap_path(path), "rb");
    int32_t counts[3];
    bool good = f != NULL && fread(counts, 4, 3, f) == 3;

    n_prompt = good ? counts[0] : 0;
    n_drafts = good ? counts[1] : 0;
    n_vocab = good ? counts[2] : 0;
    good = good && fread(prompt, 4, (size_t)n_prompt, f) == (size_t)n_prompt &&
           fread(&next, 4, 1, f) == 1 && fread(wanted, 4, (size_t)n_drafts, f) == (size_t)n_drafts;
    for (int i = 0; i < n_drafts && good; i++)
        good = fread(logits[i], 4, (size_t)n_vocab, f) == (size_t)n_vocab;
    if (!good) {
        printf("Bail out! no golden of a head\n");
        exit(1);
    }
    fclose(f);
}

static struct model_options options_of(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .device = device,
                                  .cpu_threads = 1,
                                  .page_tokens = 16,
                                  .max_num_seqs = 4,
                                  .max_num_batched_tokens = 64,
                                  .max_model_len = 256,
                                  .num_pages = PAGES};
}

/* Tokens from `first` on of the text, with one row at the last; the sampled id. */
static int32_t step(struct model *m, struct run *r, const int32_t *ids, int first, int n)
{
    int32_t id = -1;

    memcpy(r->token_ids, ids, (size_t)n * 4);
    r->b.n_tokens = n;
    r->b.n_seqs = r->b.n_rows = 1;
    r->seq_start[0] = 0;
    r->seq_start[1] = n;
    r->kv_len[0] = first + n;
    for (int i = 0; i < model_shape(m)->n_groups * r->pages_max; i++)
        r->page_ids[i] = i % PAGES;
    r->rows[0] = (struct batch_row){.token_idx = n - 1, .sampling = sampling_greedy()};
    if (model_step_begin(m, &r->b) != ERR_OK || model_step_sample(m, &r->b) != ERR_OK ||
        model_step_end(m, &id, NULL) != ERR_OK)
        printf("Bail out! a step failed\n");
    return id;
}

static double error_of(const float *want)
{
    double diff = 0.0, norm = 0.0;

    for (int i = 0; i < n_vocab; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / norm);
}

/* The head in one folder of the target in another, with the golden of a folder. quantization NULL:
 * weights as they are; else they are rounded, which changes logits by more, and perhaps a draft. */
static void check(const char *name, const char *golden_of, const char *head_of,
                  const char *target_of, const char *quantization)
{
    bool is_mtp = strcmp(head_of, target_of) == 0;
    char head_dir[4096], target_dir[4096];
    struct model_options of_head = options_of(head_dir), of_target = options_of(target_dir);
    static struct run target_run, head_run;
    static int32_t rows[RUN_TOKENS];
    struct model *head = NULL, *target = NULL;
    double error = 1.0, limit = strcmp(device, "cpu") == 0 ? 1e-5 : is_mtp ? 7e-2 : 3e-2;
    double largest = quantization != NULL ? 0.2 : limit;
    int32_t id;

    (void)snprintf(head_dir, sizeof head_dir, "%s/golden.bin", golden_of);
    read_golden(head_dir);
    (void)snprintf(head_dir, sizeof head_dir, "%s", tap_path(head_of));
    (void)snprintf(target_dir, sizeof target_dir, "%s", tap_path(target_of));
    if (!is_mtp)
        ok(model_open(&head, &of_head) == ERR_UNSUPPORTED, "%s: it is no model by itself", name);
    of_head.quantization = of_target.quantization = quantization;
    of_head.is_drafter = !is_mtp;
    of_head.is_mtp = is_mtp;
    of_head.pages_later = true;
    of_head.max_model_len = 0;
    ok(model_open(&head, &of_head) == ERR_OK, "%s is a drafter", name);
    of_target.n_taps = model_taps(head, &of_target.taps);
    is_int(of_target.n_taps, is_mtp ? 1 : 3, "%s: layers that it reads", name);
    ok(model_open(&target, &of_target) == ERR_OK && model_join(head, target) == ERR_OK &&
           model_add_pages(head, PAGES) == ERR_OK,
       "of a target");
    run_init(&target_run, target);
    run_init(&head_run, head);
    (void)step(target, &target_run, prompt, 0, n_prompt);
    for (int i = 0; i < n_prompt; i++)
        rows[i] = i;
    memmove(prompt, prompt + 1, (size_t)(n_prompt - 1) * 4);
    prompt[n_prompt - 1] = next;
    head_run.b.hidden = (struct batch_hidden){.of_target = true, .rows = rows};
    id = step(head, &head_run, prompt, 0, n_prompt);
    for (int i = 0; i < n_drafts; i++) {
        ok(id == wanted[i] || quantization != NULL, "%s: draft %d is %d (%d)", name, i, wanted[i],
           id);
        if (model_logits(head, got) == ERR_OK)
            error = error_of(logits[i]);
        ok(error < largest && (quantization == NULL || error > 1e-2), "its logits are within %.2e",
           error);
        head_run.b.hidden.of_target = false;
        rows[0] = 0;
        id = step(head, &head_run, &wanted[i], n_prompt + i, 1);
    }
    model_close(head);
    model_close(target);
}

static void check_mtp(const char *name, const char *folder, const char *quantization)
{
    check(name, folder, folder, folder, quantization);
}

/* Folders without an MTP layer, and models whose layers are not read. */
static void check_missing(void)
{
    static const struct {
        const char *folder;
        int rc;
    } cases[] = {{"tests/golden/families/glm4-moe", ERR_NOT_FOUND},
                 {"tests/golden/families/qwen3-next", ERR_NOT_FOUND},
                 {"tests/golden/families/deepseek-v3", ERR_NOT_FOUND},
                 {"tests/golden/families/deepseek-v2", ERR_UNSUPPORTED},
                 {"tests/golden/gguf/qwen3-next.gguf", ERR_NOT_FOUND},
                 {"tests/golden/gguf/deepseek-v3.gguf", ERR_UNSUPPORTED}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[4096];
        struct model_options of_head = options_of(dir);
        struct model *head = NULL;

        (void)snprintf(dir, sizeof dir, "%s", tap_path(cases[i].folder));
        of_head.is_mtp = true;
        of_head.pages_later = true;
        is_int(model_open(&head, &of_head), cases[i].rc, "%s has no MTP layer", cases[i].folder);
    }
}

int main(void)
{
    if (getenv("QUIRE_TEST_DEVICE") != NULL)
        device = getenv("QUIRE_TEST_DEVICE");
    check("an EAGLE-3 head", "tests/golden/eagle3", "tests/golden/eagle3", "tests/golden/llama-gqa",
          NULL);
    check_mtp("an MTP layer", "tests/golden/mtp", NULL);
    check("an MTP layer in a GGUF file", "tests/golden/mtp", MTP_GGUF, MTP_GGUF, NULL);
    check_mtp("an MTP layer with experts", "tests/golden/mtp-moe", NULL);
    check_mtp("DeepSeek V3's", "tests/golden/mtp-deepseek-v3", NULL);
    check_mtp("DeepSeek V3.2's", "tests/golden/mtp-deepseek-v32", NULL);
    check_mtp("GLM 4.5's", "tests/golden/mtp-glm4-moe", NULL);
    check_mtp("GLM 4.7 Flash's", "tests/golden/mtp-glm4-moe-lite", NULL);
    check_mtp("an MTP layer in e4m3", "tests/golden/mtp", "fp8");
    check_mtp("an MTP layer with experts in e4m3", "tests/golden/mtp-moe", "fp8");
    check_missing();
    return tap_done();
}
