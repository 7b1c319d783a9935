/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole model against transformers: logits and greedy continuations of the golden files
 * (README.md says how they are made and what they hold).
 *
 * QUIRE_TEST_DEVICE=cuda runs it on the GPU, whose weights and activations are bfloat16: logits
 * must stay within 2e-2, or within twice the distance that transformers' own logits in bfloat16
 * have (README.md), and the demo model, which was trained, must say the same words. Those of the
 * random models, whose best logits are close, are only shown. QUIRE_GOLDENS names another folder
 * than tests/golden. */
#include <math.h>
#include <stdint.h>
#include <sys/stat.h>

#include "device/device.h"
#include "model/hf_config.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define CHUNK   37  /* of prefills: no multiple of a page */
#define FEW     7   /* tokens at a time, as they stand behind a cached prefix */
#define FEW_LEN 200 /* tokens of a prompt that comes so, at most: its steps are many */

struct golden {
    int32_t *prompt, *greedy;
    float *logits; /* float [n_rows][n_vocab]: of the prompt's last n_rows positions */
    int n_prompt, n_greedy, n_rows;
};

#define CASES_MAX      16 /* of a model */
#define CASES_OF_RANKS 5

static bool on_gpu;
static double limit;                  /* of the distance of logits, for the model under test */
static float *of_one_rank[CASES_MAX]; /* logits of each case */
static char *contents;
static long contents_len, contents_at;

static const void *take(long bytes)
{
    const void *p = contents + contents_at;

    contents_at += bytes;
    if (contents_at > contents_len) {
        printf("Bail out! a golden file is cut short\n");
        exit(1);
    }
    return p;
}

static int take_int(void)
{
    uint32_t v;

    memcpy(&v, take(4), 4);
    return (int)v;
}

static void *take_array(int n)
{
    void *p = malloc((size_t)n * 4 + 4);

    memcpy(p, take((long)n * 4), (size_t)n * 4);
    return p;
}

static bool open_golden(const char *path)
{
    FILE *f = fopen(path, "rb");

    if (f == NULL)
        return false;
    fseek(f, 0, SEEK_END);
    contents_len = ftell(f);
    rewind(f);
    contents = malloc((size_t)contents_len + 1);
    contents_at = 0;
    contents_len = (long)fread(contents, 1, (size_t)contents_len, f);
    fclose(f);
    return memcmp(take(8), "QGOLD1\0", 8) == 0;
}

static struct golden next_golden(int n_vocab)
{
    struct golden g = {.n_prompt = take_int(), .n_greedy = take_int(), .n_rows = take_int()};

    g.prompt = take_array(g.n_prompt);
    g.greedy = take_array(g.n_greedy);
    g.logits = take_array(g.n_rows * n_vocab);
    return g;
}

/* |got - want| / |want| over all elements, in the 2-norm. */
static double relative_error(const float *got, const float *want, size_t n)
{
    double diff = 0.0, norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / norm);
}

/* The numbers of ranks of a stage, and of stages. */
struct parallel {
    int n_ranks, n_stages;
    bool whole_experts;
};

/* Stages alone compute the same bits; several ranks of a stage what one does, up to the order of
 * sums. Takes the logits. */
static void compare_ranks(float *logits, int idx, size_t n, const char *name,
                          struct parallel parallel)
{
    int n_ranks = parallel.n_ranks, n_stages = parallel.n_stages;
    double error;

    if (n_ranks == 1 && n_stages > 1) {
        error = relative_error(logits, of_one_rank[idx], n);
        if (on_gpu)
            ok(error < limit, "%s: stages: %d: logits within %.2e of one's", name, n_stages, error);
        else
            ok(memcmp(logits, of_one_rank[idx], n * sizeof *logits) == 0,
               "%s: stages: %d: the logits of one, bit for bit (%.2e)", name, n_stages, error);
        free(logits);
        return;
    }
    if (n_ranks == 1) {
        free(of_one_rank[idx]);
        of_one_rank[idx] = logits;
        return;
    }
    error = relative_error(logits, of_one_rank[idx], n);
    ok(error < (on_gpu ? limit : 1e-5),
       "%s: ranks: %d, stages: %d: logits within %.2e of one rank's", name, n_ranks, n_stages,
       error);
    free(logits);
}

static void check_logits(struct run *r, const struct golden *g, const char *name, int n_vocab,
                         int idx, struct parallel parallel)
{
    struct run_seq *s = calloc(1, sizeof *s);
    float *logits = malloc((size_t)g->n_rows * (size_t)n_vocab * sizeof *logits);
    int rc = ERR_OK;
    double error;

    memcpy(s->tokens, g->prompt, (size_t)g->n_prompt * 4);
    s->n_tokens = g->n_prompt;
    while (rc == ERR_OK && s->n_computed < s->n_tokens) {
        int left = s->n_tokens - s->n_computed;

        run_clear(r);
        run_add(r, s, left < CHUNK ? left : CHUNK, g->n_rows > 1);
        rc = run_step(r);
    }
    is_int(rc, ERR_OK, "%s: prompt of %d runs", name, g->n_prompt);
    is_int(model_logits(r->m, logits), ERR_OK, "%s: logits", name);
    error = relative_error(logits, g->logits, (size_t)g->n_rows * (size_t)n_vocab);
    ok(error < limit, "%s: prompt of %d: logits within %.2e of the golden's", name, g->n_prompt,
       error);
    compare_ranks(logits, idx, (size_t)g->n_rows * (size_t)n_vocab, name, parallel);
    free(s);
}

/* The last positions' logits, of a prompt that came a few tokens at a time, all of them sampled. */
static void check_few(struct run *r, const struct golden *g, const char *name, int n_vocab)
{
    struct run_seq *s = calloc(1, sizeof *s);
    float *logits = malloc((size_t)FEW * (size_t)n_vocab * sizeof *logits);
    int rc = ERR_OK, left = 0, n;
    double error;

    memcpy(s->tokens, g->prompt, (size_t)g->n_prompt * 4);
    s->n_tokens = g->n_prompt;
    while (rc == ERR_OK && s->n_computed < s->n_tokens) {
        left = s->n_tokens - s->n_computed < FEW ? s->n_tokens - s->n_computed : FEW;
        run_clear(r);
        run_add(r, s, left, true);
        rc = run_step(r);
    }
    is_int(rc, ERR_OK, "%s: prompt of %d runs, few tokens at a time", name, g->n_prompt);
    is_int(model_logits(r->m, logits), ERR_OK, "%s: logits", name);
    n = g->n_rows < left ? g->n_rows : left;
    error = relative_error(logits + (size_t)(left - n) * (size_t)n_vocab,
                           g->logits + (size_t)(g->n_rows - n) * (size_t)n_vocab,
                           (size_t)n * (size_t)n_vocab);
    ok(error < limit, "%s: prompt of %d, few at a time: logits within %.2e of the golden's", name,
       g->n_prompt, error);
    free(logits);
    free(s);
}

static void check_greedy(struct run *r, const struct golden *g, const char *name)
{
    struct run_seq *s = calloc(1, sizeof *s);
    int n_same = 0;

    memcpy(s->tokens, g->prompt, (size_t)g->n_prompt * 4);
    s->n_tokens = g->n_prompt;
    is_int(run_greedy(r, s, CHUNK, g->n_greedy), ERR_OK, "%s: greedy runs", name);
    while (n_same < g->n_greedy && s->tokens[g->n_prompt + n_same] == g->greedy[n_same])
        n_same++;
    if (on_gpu && strcmp(name, "demo") != 0)
        printf("# %s: prompt of %d: %d of %d greedy tokens in bfloat16\n", name, g->n_prompt,
               n_same, g->n_greedy);
    else
        is_int(n_same, g->n_greedy, "%s: prompt of %d: greedy tokens equal", name, g->n_prompt);
    free(s);
}

static void check_model(const char *name, const char *folder, const char *golden_path,
                        struct parallel parallel)
{
    /* Two threads of a small model wait for each other; a run of minutes has them in one model. */
    bool is_long = tap_is_long();
    bool one_thread = !is_long && strcmp(name, "demo") != 0;
    struct model_options o = {.dir = folder,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = on_gpu ? "cuda" : "cpu",
                              .cpu_threads = one_thread ? parallel.n_ranks : 0,
                              .page_tokens = 16,
                              .num_pages = 256,
                              .gpu_memory_utilization = 0.9,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = 512,
                              .n_ranks = parallel.n_ranks,
                              .n_stages = parallel.n_stages,
                              .whole_experts = parallel.whole_experts};
    struct run *r = malloc(sizeof *r);
    struct model *m = NULL;
    int n_cases, n_vocab;

    if (!open_golden(golden_path)) {
        ok(false, "%s: %s is a golden file", name, golden_path);
        return;
    }
    is_int(model_open(&m, &o), ERR_OK, "%s: opens", name);
    if (m == NULL)
        return;
    run_init(r, m);
    n_cases = take_int();
    n_vocab = take_int();
    is_int(n_vocab, model_shape(m)->n_vocab, "%s: vocabulary", name);
    /* Of a model over ranks or stages a few, unless the run is a long one. */
    if (parallel.n_ranks * parallel.n_stages > 1 && !is_long && n_cases > CASES_OF_RANKS)
        n_cases = CASES_OF_RANKS;
    for (int i = 0; i < n_cases && i < CASES_MAX && n_vocab == model_shape(m)->n_vocab; i++) {
        struct golden g = next_golden(n_vocab);

        check_logits(r, &g, name, n_vocab, i, parallel);
        /* Each step of ranks and stages is several meetings of threads: of these the last prompt,
         * the longest, has small steps. */
        if (i == n_cases - 1 || is_long || parallel.n_ranks * parallel.n_stages == 1) {
            if (is_long || g.n_prompt <= FEW_LEN)
                check_few(r, &g, name, n_vocab);
            check_greedy(r, &g, name);
        }
        free(g.prompt);
        free(g.greedy);
        free(g.logits);
    }
    model_close(m);
    free(contents);
    free(r);
}

/* The same model as a GGUF file, a set of them, or one of an older form (make_gguf.py,
 * make_gguf_states.py), if there is one. Over two ranks those that a rank has in another order:
 * gpt-oss, whose biases of gates and ups are tensors of their own there, and heads in turns
 * (slice.h). */
static void check_gguf(const char *base, const char *name, const char *golden_path)
{
    static const char *const endings[] = {"", "-00001-of-00002", "-00001-of-00003", "-old"};
    const char *slash = strrchr(name, '/');
    char file[4400], title[200];
    struct stat st;

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        snprintf(title, sizeof title, "gguf/%s%s.gguf", slash != NULL ? slash + 1 : name,
                 endings[i]);
        snprintf(file, sizeof file, "%s/%s", base, title);
        if (stat(file, &st) != 0)
            continue;
        check_model(title, file, golden_path, (struct parallel){1, 1, false});
        if ((strstr(name, "gpt-oss") != NULL || strcmp(name, "families/qwen3.5") == 0) &&
            (!on_gpu || device_cuda_count() >= 2))
            check_model(title, file, golden_path, (struct parallel){2, 1, false});
    }
}

/* What does not divide is refused. */
static void check_refused(const char *name, const char *folder, int n_ranks, int n_stages)
{
    struct model_options o = {.dir = folder,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = on_gpu ? "cuda" : "cpu",
                              .page_tokens = 16,
                              .num_pages = 256,
                              .n_ranks = n_ranks,
                              .n_stages = n_stages};
    struct model *m = NULL;

    is_int(model_open(&m, &o), ERR_UNSUPPORTED, "%s: ranks: %d, stages: %d: refused", name, n_ranks,
           n_stages);
    model_close(m);
}

/* The number of a model's layers, and whether stages can share them. */
static int layers_of(const char *folder, bool *divide)
{
    struct hf_config *c = calloc(1, sizeof *c);
    int n = hf_config_read(c, folder, NULL) == ERR_OK ? c->n_layers : 0;

    *divide = c->n_kv_shared == 0 && c->layer_embeds.width == 0;
    for (int i = 0; i < n; i++)
        *divide = *divide && !c->index.is_shared[i];
    free(c);
    return n;
}

/* With 1, 2, 3 and 4 ranks, or as many as there are GPUs. fits: the numbers of ranks that divide
 * the model's heads and columns; the others are refused. whole: those for which whole experts are
 * divided, too. */
static void check_ranks(const char *name, const char *folder, const char *path, const char *fits,
                        const char *whole)
{
    check_model(name, folder, path, (struct parallel){1, 1, false});
    for (int n = 2; n <= (on_gpu ? device_cuda_count() : 4) && n <= 4; n++) {
        if (strchr(fits, '0' + n) != NULL)
            check_model(name, folder, path, (struct parallel){n, 1, false});
        else
            check_refused(name, folder, n, 1);
        if (strchr(whole, '0' + n) != NULL)
            check_model(name, folder, path, (struct parallel){n, 1, true});
    }
}

/* With 2 and 4 stages, alone and with 2 ranks each, as many as there are layers and GPUs for. */
static void check_stages(const char *name, const char *folder, const char *path, const char *fits)
{
    bool divide = false;
    int n_layers = layers_of(folder, &divide);

    if (!divide)
        check_refused(name, folder, 1, 2);
    for (int n = 2; n <= 4 && divide; n += 2) {
        for (int ranks = 1; ranks <= 2; ranks++) {
            if (n > n_layers || (ranks == 2 && strchr(fits, '2') == NULL) ||
                (on_gpu && n * ranks > device_cuda_count()))
                continue;
            check_model(name, folder, path, (struct parallel){ranks, n, false});
        }
    }
}

/* The numbers of ranks that divide a model's experts. */
static const char *whole_of(const char *name)
{
    static const char *const models[][2] = {
        {"families/qwen3-moe", "3"},           {"families/qwen3-moe-fused", "24"},
        {"families/granite-moe-shared", "24"}, {"families/glm4-moe", "2"},
        {"families/deepseek-v2", "2"},         {"families/glm4-moe-lite", "2"},
        {"families/deepseek-v3", "2"},         {"families/kimi-k25", "2"},
        {"families/ernie4-5-moe", "2"},        {"families/gpt-oss-mxfp4", "2"},
        {"families/kimi-linear", "2"},         {"families/deepseek-v32", "2"},
        {"families/glm-moe-dsa", "2"},         {"families/mimo-v2", "2"}};

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(models[i][0], name) == 0)
            return models[i][1];
    }
    return "";
}

/* fits: numbers of ranks; noise: the distance of transformers' bfloat16, where it matters. The
 * devices that a model does not run on must refuse it; the portable kernels take no heads above
 * 256. */
static const struct {
    const char *name, *fits;
    double noise;
    enum { ANY_DEVICE, NOT_PORTABLE, CPU_ONLY } runs_on;
} models[] = {
    {"llama-gqa", "24", 0.0, ANY_DEVICE},
    {"llama-odd", "", 0.0, ANY_DEVICE},
    {"llama-scaled", "3", 4.4e-2, ANY_DEVICE},
    {"qwen3", "2", 0.0, ANY_DEVICE},
    {"qwen2-window", "24", 2.4e-2, ANY_DEVICE},
    {"qwen3-window", "24", 2.5e-2, ANY_DEVICE},
    {"mistral-window", "", 9.7e-2, ANY_DEVICE},
    {"toy-recurrent", "24", 0.0, ANY_DEVICE},
    {"toy-states", "24", 0.0, ANY_DEVICE},
    {"families/bamba", "2", 1.9e-02, ANY_DEVICE},
    {"families/cohere", "24", 1.8e-02, ANY_DEVICE},
    {"families/cohere2", "24", 1.9e-02, ANY_DEVICE},
    {"families/exaone4", "24", 1.5e-02, ANY_DEVICE},
    {"families/gemma", "24", 4.4e-02, ANY_DEVICE},
    {"families/gemma2", "24", 2.7e-02, ANY_DEVICE},
    {"families/gemma3", "24", 2.2e-02, ANY_DEVICE},
    {"families/gemma4", "24", 3.1e-02, ANY_DEVICE},
    {"families/glm", "24", 2.0e-02, ANY_DEVICE},
    {"families/glm4", "24", 3.4e-02, ANY_DEVICE},
    {"families/gpt-neox", "24", 1.2e-02, ANY_DEVICE},
    {"families/gpt-neox-serial", "24", 1.2e-02, ANY_DEVICE},
    {"families/gpt2", "24", 1.0e-02, ANY_DEVICE},
    {"families/granite", "24", 2.7e-02, ANY_DEVICE},
    {"families/ministral3", "24", 8.2e-02, ANY_DEVICE},
    {"families/nemotron", "24", 6.5e-02, ANY_DEVICE},
    {"families/olmo2", "24", 1.1e-02, ANY_DEVICE},
    {"families/olmo3", "24", 1.2e-02, ANY_DEVICE},
    {"families/opt", "24", 9.8e-03, ANY_DEVICE},
    {"families/opt-torch", "24", 9.8e-03, ANY_DEVICE},
    {"families/phi", "24", 1.3e-02, ANY_DEVICE},
    {"families/phi3", "24", 2.9e-02, ANY_DEVICE},
    {"families/qwen2-yarn", "24", 2.6e-02, ANY_DEVICE},
    {"families/qwen3-vl", "24", 2.5e-02, ANY_DEVICE},
    {"families/falcon-h1", "2", 2.9e-02, ANY_DEVICE},
    {"families/falcon-h1-first", "2", 1.9e-02, ANY_DEVICE},
    {"families/falcon-h1-after", "2", 1.9e-02, ANY_DEVICE},
    {"families/granite-h", "", 1.5e-02, ANY_DEVICE},
    {"families/granite-h-dense", "", 2.6e-02, ANY_DEVICE},
    {"families/lfm2", "24", 2.7e-02, ANY_DEVICE},
    {"families/lfm2-moe", "24", 1.1e-02, ANY_DEVICE},
    {"families/nemotron-h", "24", 2.7e-02, ANY_DEVICE},
    {"families/nemotron-h-latent", "24", 1.4e-02, ANY_DEVICE},
    {"families/nemotron-h-moe", "24", 1.8e-02, ANY_DEVICE},
    {"families/qwen3-next", "2", 1.3e-02, ANY_DEVICE},
    {"families/qwen3.5", "24", 7.0e-02, ANY_DEVICE},
    {"families/qwen3.5-moe", "", 1.1e-02, ANY_DEVICE},
    {"families/qwen3.5-moe-wide", "", 2.7e-02, ANY_DEVICE},
    {"families/kimi-linear", "2", 2.1e-02, ANY_DEVICE},
    {"families/kimi-linear-wide", "", 1.3e-02, ANY_DEVICE},
    {"families/olmo-hybrid", "24", 2.5e-02, CPU_ONLY},
    {"families/apertus", "24", 2.0e-02, CPU_ONLY},
    {"families/llama4", "2", 2.0e-02, CPU_ONLY},
    {"families/step3p7", "2", 2.0e-02, CPU_ONLY},
    {"families/laguna", "2", 2.0e-02, CPU_ONLY},
    {"families/mimo-v2", "24", 2.0e-02, ANY_DEVICE},
    {"families/seed-oss", "24", 4.4e-02, ANY_DEVICE},
    {"families/smollm3", "24", 3.9e-02, ANY_DEVICE},
    {"families/stablelm", "24", 1.5e-02, ANY_DEVICE},
    {"families/starcoder2", "24", 1.6e-02, ANY_DEVICE},
    {"families/arcee", "24", 2.6e-02, ANY_DEVICE},
    {"families/cwm", "24", 3.5e-02, ANY_DEVICE},
    {"families/ernie4-5", "24", 2.0e-02, ANY_DEVICE},
    {"families/granite-swa", "24", 2.8e-02, ANY_DEVICE},
    {"families/helium", "24", 2.3e-02, ANY_DEVICE},
    {"families/hunyuan-dense", "24", 2.2e-02, ANY_DEVICE},
    {"families/internlm3", "24", 3.6e-02, ANY_DEVICE},
    {"families/jais2", "24", 1.9e-02, ANY_DEVICE},
    {"families/ministral", "24", 3.0e-02, ANY_DEVICE},
    {"families/vaultgemma", "24", 1.6e-02, ANY_DEVICE},
    {"families/minicpm3", "24", 1.3e-02, ANY_DEVICE},
    {"families/youtu", "24", 1.5e-02, ANY_DEVICE},
    {"families/dots1", "24", 1.6e-02, ANY_DEVICE},
    {"families/minicpm", "24", 4.2e-02, ANY_DEVICE},
    {"families/exaone-moe", "24", 2.2e-02, ANY_DEVICE},
    {"families/flex-olmo", "24", 9.0e-03, ANY_DEVICE},
    {"families/granite-moe-swa", "24", 2.3e-02, ANY_DEVICE},
    {"families/hy3", "24", 1.7e-02, ANY_DEVICE},
    {"families/mellum", "24", 1.6e-02, ANY_DEVICE},
    {"families/sarvam-moe", "24", 2.1e-02, ANY_DEVICE},
    {"families/bailing-moe", "24", 1.6e-02, ANY_DEVICE},
    {"families/internlm2", "24", 3.6e-02, ANY_DEVICE},
    {"families/qwen3-vl-moe", "2", 1.5e-02, ANY_DEVICE},
    {"families/glm4v", "24", 3.1e-02, ANY_DEVICE},
    {"families/glm4v-moe", "24", 3.7e-02, ANY_DEVICE},
    {"families/sarvam-mla", "24", 1.9e-02, ANY_DEVICE},
    {"families/solar-open", "24", 1.3e-02, ANY_DEVICE},
    {"families/internvl", "24", 2.7e-02, ANY_DEVICE},
    {"families/llava", "24", 2.4e-02, ANY_DEVICE},
    {"families/smolvlm", "24", 4.5e-02, ANY_DEVICE},
    {"families/aya-vision", "24", 2.9e-02, ANY_DEVICE},
    {"families/cohere2-vision", "24", 3.2e-02, ANY_DEVICE},
    {"families/idefics3", "24", 8.9e-02, ANY_DEVICE},
    {"families/llava-next", "24", 4.4e-02, ANY_DEVICE},
    {"families/llava-onevision", "24", 1.4e-01, ANY_DEVICE},
    {"families/lfm2-vl", "24", 3.8e-02, ANY_DEVICE},
    {"families/qwen2-audio", "24", 4.4e-02, ANY_DEVICE},
    {"families/voxtral", "24", 7.5e-02, ANY_DEVICE},
    {"families/olmo", "24", 3.5e-02, ANY_DEVICE},
    {"families/afmoe", "24", 1.6e-02, ANY_DEVICE},
    {"families/muse-glimmer", "24", 7.6e-02, ANY_DEVICE},
    {"families/mixtral", "", 1.4e-02, ANY_DEVICE},
    {"families/qwen2-moe", "24", 2.3e-02, ANY_DEVICE},
    {"families/qwen3-moe", "3", 1.6e-02, ANY_DEVICE},
    {"families/qwen3-moe-fused", "24", 2.1e-02, ANY_DEVICE},
    {"families/qwen3-moe-wide", "24", 2.3e-02, ANY_DEVICE},
    {"families/olmoe", "24", 1.2e-02, ANY_DEVICE},
    {"families/granite-moe", "24", 2.1e-02, ANY_DEVICE},
    {"families/granite-moe-shared", "24", 3.6e-02, ANY_DEVICE},
    {"families/glm4-moe", "24", 1.5e-02, ANY_DEVICE},
    {"families/deepseek-v2", "24", 1.9e-02, ANY_DEVICE},
    {"families/deepseek-v2-lite", "", 1.9e-02, ANY_DEVICE},
    {"families/deepseek-v3", "24", 2.7e-02, ANY_DEVICE},
    {"families/deepseek-v32", "24", 1.3e-02, ANY_DEVICE},
    {"families/glm-moe-dsa", "24", 2.9e-02, ANY_DEVICE},
    {"families/moonlight", "24", 2.0e-02, ANY_DEVICE},
    {"families/glm4-moe-lite", "24", 1.5e-02, ANY_DEVICE},
    {"families/kimi-k25", "24", 2.5e-02, ANY_DEVICE},
    {"families/mistral4", "24", 1.9e-02, ANY_DEVICE},
    {"families/mistral4-vl", "24", 1.4e-02, ANY_DEVICE},
    {"families/minimax-m2", "24", 1.3e-02, ANY_DEVICE},
    {"families/ernie4-5-moe", "24", 4.1e-02, ANY_DEVICE},
    {"families/hunyuan-moe", "24", 1.8e-02, ANY_DEVICE},
    {"families/gemma4-moe", "2", 2.6e-02, NOT_PORTABLE},
    {"families/phimoe", "24", 2.3e-02, ANY_DEVICE},
    {"families/gpt-oss", "2", 2.2e-02, ANY_DEVICE},
    {"families/gpt-oss-mxfp4", "24", 2.5e-02, ANY_DEVICE},
    {"packed/model-awq", "24", 1.6e-02, ANY_DEVICE},
    {"packed/model-gptq-4-order", "24", 2.1e-02, ANY_DEVICE},
    {"packed/model-ct-int4-zeros", "24", 1.6e-02, ANY_DEVICE},
    {"packed/model-ct-nvfp4", "24", 2.7e-02, ANY_DEVICE},
    {"packed/model-bnb-nf4", "24", 2.4e-02, ANY_DEVICE},
    {"packed/model-delta-fp8", "", 8.0e-02, ANY_DEVICE},
    {"packed/model-latent-fp8", "24", 1.0e-01, ANY_DEVICE},
    {"demo", "24", 0.0, ANY_DEVICE},
};

int main(void)
{
    const char *device = getenv("QUIRE_TEST_DEVICE"), *root = getenv("QUIRE_GOLDENS");
    const char *kernels = getenv("QUIRE_TEST_KERNELS");
    bool is_portable = kernels != NULL && strcmp(kernels, "portable") == 0;
    char folder[4200], path[4200], base[4096];
    struct stat st;
    int n_found = 0;

    on_gpu = device != NULL && strcmp(device, "cuda") == 0;
    snprintf(base, sizeof base, "%s", root != NULL ? root : tap_path("tests/golden"));
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        snprintf(path, sizeof path, "%s/%s/golden.bin", base, models[i].name);
        if (strcmp(models[i].name, "demo") == 0)
            snprintf(folder, sizeof folder, "%s/../../tools/demo-model/model", base);
        else
            snprintf(folder, sizeof folder, "%s/%s", base, models[i].name);
        if (stat(path, &st) != 0) {
            printf("# %s does not exist: not tested\n", path);
            continue;
        }
        n_found++;
        if (on_gpu &&
            (models[i].runs_on == CPU_ONLY || (models[i].runs_on == NOT_PORTABLE && is_portable))) {
            check_refused(models[i].name, folder, 1, 1);
            continue;
        }
        limit = !on_gpu ? 1e-4 : models[i].noise > 1e-2 ? 2.0 * models[i].noise : 2e-2;
        check_ranks(models[i].name, folder, path, models[i].fits, whole_of(models[i].name));
        check_stages(models[i].name, folder, path, models[i].fits);
        check_gguf(base, models[i].name, path);
    }
    if (n_found == 0)
        tap_skip_all("no golden files in tests/golden");
    return tap_done();
}
