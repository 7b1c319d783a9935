/* SPDX-License-Identifier: Apache-2.0
 *
 * LoRA adapters against PEFT: logits and greedy texts of the golden files in adapters/ (README.md
 * says how they are made), alone, over ranks and stages; and batches of several adapters and none,
 * in which each sequence must have the bits that it has alone.
 *
 * Then folders that are refused, each for one reason.
 *
 * Runs on the cpu device, or with QUIRE_TEST_DEVICE=cuda on the GPU, whose numbers are bfloat16:
 * there logits are within 2e-2, or three times the model's own noise, and texts may part. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/device.h"
#include "model/adapter.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define CHUNK  37
#define SLOTS  3
#define CROWD  9
#define ROUNDS 12

static char base[4096];

/* --- goldens ---------------------------------------------------------------------------- */

static int read_int(FILE *f)
{
    int32_t v = 0;

    return fread(&v, 4, 1, f) == 1 ? v : -1;
}

static void *read_array(FILE *f, size_t n)
{
    void *p = malloc(n * 4 + 4);

    if (fread(p, 4, n, f) != n) {
        printf("Bail out! a golden file is cut short\n");
        exit(1);
    }
    return p;
}

static const char *quantization; /* of models that are opened */
static const char *device = "cpu";
static double limit = 1e-4; /* of logits' error */
static bool is_exact = true;

static struct model *open_model(const char *name, int n_ranks, int n_stages)
{
    char folder[4200];
    struct model_options o = {.dir = folder,
                              .device = device,
                              .page_tokens = 16,
                              .num_pages = 256,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = 512,
                              .n_ranks = n_ranks,
                              .n_stages = n_stages,
                              .quantization = quantization,
                              .n_adapters = SLOTS,
                              .adapter_rank = 8};
    struct model *m = NULL;

    snprintf(folder, sizeof folder, "%s/%s", base, name);
    is_int(model_open(&m, &o), ERR_OK, "%s: ranks: %d, stages: %d: opens", name, n_ranks, n_stages);
    return m;
}

/* Read, check and place an adapter of the goldens. */
static void load(struct model *m, const char *name, int slot)
{
    char folder[4200], why[ADAPTER_WHY_CAP] = "";
    struct adapter *a = NULL;
    int rc;

    snprintf(folder, sizeof folder, "%s/adapters/%s", base, name);
    rc = adapter_open(&a, folder, 8, why, sizeof why);
    if (rc == ERR_OK)
        rc = model_adapter_check(m, a, why, sizeof why);
    if (rc == ERR_OK)
        rc = model_adapter_pack(m, a);
    if (rc == ERR_OK)
        rc = model_adapter_place(m, slot, a);
    is_int(rc, ERR_OK, "%s: is loaded (%s)", name, why);
    adapter_close(a);
}

static double distance(const float *got, const float *want, size_t n)
{
    double diff = 0.0, norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / norm);
}

/* One case of a file: a prompt in chunks, its logits, its greedy text. */
static void check_case(struct run *r, FILE *f, const char *name, int n_vocab, int adapter)
{
    int n_prompt = read_int(f), n_greedy = read_int(f), n_rows = read_int(f), n_same = 0, rc;
    int32_t *prompt = read_array(f, (size_t)n_prompt), *greedy = read_array(f, (size_t)n_greedy);
    float *want = read_array(f, (size_t)n_rows * (size_t)n_vocab);
    float *got = malloc((size_t)n_rows * (size_t)n_vocab * sizeof *got);
    struct run_seq *s = calloc(1, sizeof *s);
    double error;

    memcpy(s->tokens, prompt, (size_t)n_prompt * 4);
    s->n_tokens = n_prompt;
    s->adapter = adapter;
    do {
        int left = s->n_tokens - s->n_computed;

        run_clear(r);
        run_add(r, s, left < CHUNK ? left : CHUNK, n_rows > 1);
        rc = run_step(r);
    } while (rc == ERR_OK && s->n_computed < s->n_tokens);
    if (rc == ERR_OK)
        rc = model_logits(r->m, got);
    error = distance(got, want, (size_t)n_rows * (size_t)n_vocab);
    ok(rc == ERR_OK && error < limit, "%s: prompt of %d: logits within %.2e of the golden's", name,
       n_prompt, error);
    s->n_computed = 0;
    is_int(run_greedy(r, s, CHUNK, n_greedy), ERR_OK, "%s: greedy runs", name);
    while (n_same < n_greedy && s->tokens[n_prompt + n_same] == greedy[n_same])
        n_same++;
    if (is_exact)
        is_int(n_same, n_greedy, "%s: prompt of %d: greedy tokens equal", name, n_prompt);
    free(prompt), free(greedy), free(want), free(got), free(s);
}

/* All cases of a golden file, with 1 + the slot of an adapter, or without any. */
static void check_file(struct run *r, const char *name, const char *folder, int adapter)
{
    char path[4300];
    FILE *f;
    int n_cases, n_vocab;

    snprintf(path, sizeof path, "%s/%s/golden.bin", base, folder);
    if ((f = fopen(path, "rb")) == NULL || fseek(f, 8, SEEK_SET) != 0) {
        ok(false, "%s is a golden file", path);
        return;
    }
    n_cases = read_int(f);
    n_vocab = read_int(f);
    is_int(n_vocab, model_shape(r->m)->n_vocab, "%s: vocabulary", name);
    for (int i = 0; i < n_cases; i++)
        check_case(r, f, name, n_vocab, adapter);
    fclose(f);
}

static const struct {
    const char *name, *model;
    bool divides; /* by two ranks */
    double noise; /* of bfloat16 in this model, as in test_golden.c */
} adapters[] = {
    {"llama-gqa-all", "llama-gqa", true, 0.0},
    {"llama-gqa-few", "llama-gqa", true, 0.0},
    {"llama-gqa-torch", "llama-gqa", true, 0.0},
    {"qwen2-window-r8", "qwen2-window", true, 2.4e-2},
    {"qwen3-rslora", "qwen3", false, 0.0},
    {"gpt2-conv1d", "families/gpt2", true, 1e-2},
    {"qwen2-moe-shared", "families/qwen2-moe", true, 2.3e-2},
    {"phi3-pattern", "families/phi3", true, 2.9e-2},
};

/* The adapter is in slot 1, between two that hold others or nothing. */
static void check_adapter(size_t i, int n_ranks, int n_stages)
{
    char folder[200], title[200];
    struct model *m = open_model(adapters[i].model, n_ranks, n_stages);
    double common = limit;
    struct run *r = malloc(sizeof *r);

    if (m == NULL)
        return;
    run_init(r, m);
    snprintf(folder, sizeof folder, "adapters/%s", adapters[i].name);
    snprintf(title, sizeof title, "%s, ranks: %d, stages: %d", adapters[i].name, n_ranks, n_stages);
    load(m, adapters[i].name, 1);
    if (!is_exact && adapters[i].noise > 0.0)
        limit = fmax(limit, 3.0 * adapters[i].noise);
    check_file(r, title, folder, 1 + 1);
    if (n_ranks * n_stages == 1)
        check_file(r, "without adapter", adapters[i].model, 0);
    limit = common;
    model_close(m);
    free(r);
}

/* Logits after a prompt that every model has, of the last position. */
static void prompt_logits(struct model *m, int adapter, float *logits)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *s = calloc(1, sizeof *s);

    run_init(r, m);
    s->n_tokens = 50;
    for (int t = 0; t < s->n_tokens; t++)
        s->tokens[t] = t * 31 % model_shape(m)->n_vocab;
    s->adapter = adapter;
    run_clear(r);
    run_add(r, s, s->n_tokens, false);
    is_int(run_step(r), ERR_OK, "a prompt runs");
    is_int(model_logits(m, logits), ERR_OK, "logits");
    free(r), free(s);
}

/* Matrices of 8 bits change logits much less than the adapter does. */
static void check_rounded(void)
{
    float *logits[4];
    double rounded, adapted;

    for (int i = 0; i < 4; i++) {
        struct model *m;

        quantization = i < 2 ? NULL : "fp8_all";
        m = open_model("llama-gqa", 1, 1);
        load(m, "llama-gqa-all", 0);
        logits[i] = malloc((size_t)model_shape(m)->n_vocab * sizeof(float));
        prompt_logits(m, i % 2, logits[i]);
        model_close(m);
    }
    quantization = NULL;
    rounded = distance(logits[3], logits[1], 320);
    adapted = distance(logits[3], logits[2], 320);
    ok(rounded > 1e-6 && rounded < 0.2 && adapted > 0.5,
       "fp8: logits with an adapter change by %.2f when weights are rounded, by %.2f without it",
       rounded, adapted);
    for (int i = 0; i < 4; i++)
        free(logits[i]);
}

/* --- batches ---------------------------------------------------------------------------- */

struct crowd {
    struct run run;
    struct run_seq seqs[CROWD];
    float *logits[CROWD][ROUNDS]; /* of each step that samples the sequence */
};

/* The prompts: different lengths; adapters in turn, and none. */
static void begin_crowd(struct crowd *c, const struct model *m)
{
    memset(c->seqs, 0, sizeof c->seqs);
    for (int i = 0; i < CROWD; i++) {
        struct run_seq *s = &c->seqs[i];

        s->n_tokens = 3 + 11 * i;
        for (int t = 0; t < s->n_tokens; t++)
            s->tokens[t] = (i % 3 * 57 + t * 31) % model_shape(m)->n_vocab;
        s->adapter = i * 2 % (SLOTS + 1);
        s->first_page = i * 12;
    }
}

/* Round 0 computes the prompts, the others a token each; of all sequences, or of `one`. */
static int run_crowd(struct crowd *c, struct model *m, int one)
{
    int n_vocab = model_shape(m)->n_vocab, rc = ERR_OK;
    float *logits = malloc((size_t)CROWD * (size_t)n_vocab * sizeof *logits);

    for (int round = 0; round < ROUNDS && rc == ERR_OK; round++) {
        int n = 0;

        run_clear(&c->run);
        for (int i = 0; i < CROWD; i++) {
            struct run_seq *s = &c->seqs[i];

            if (one < 0 || one == i)
                run_add(&c->run, s, s->n_tokens - s->n_computed, false);
        }
        rc = run_step(&c->run);
        if (rc == ERR_OK)
            rc = model_logits(m, logits);
        for (int i = 0; i < CROWD && rc == ERR_OK; i++) {
            struct run_seq *s = &c->seqs[i];
            size_t bytes = (size_t)n_vocab * sizeof *logits;

            if (one >= 0 && one != i)
                continue;
            c->logits[i][round] = malloc(bytes);
            memcpy(c->logits[i][round], logits + (size_t)n * (size_t)n_vocab, bytes);
            s->tokens[s->n_tokens++] = c->run.ids[n++];
        }
    }
    free(logits);
    return rc;
}

/* Sequence i in both: the same bits, or numbers that are as near as roundings, as long as the texts
 * are the same. */
static void check_member(const struct crowd *all, const struct crowd *alone, int i, int n_vocab,
                         int n_ranks)
{
    size_t bytes = (size_t)n_vocab * sizeof(float);
    int n_same = 0, first = all->seqs[i].n_tokens - ROUNDS;

    for (int round = 0; round < ROUNDS; round++) {
        const float *one = all->logits[i][round], *other = alone->logits[i][round];
        bool is_same_text = memcmp(all->seqs[i].tokens + first, alone->seqs[i].tokens + first,
                                   (size_t)round * sizeof(int32_t)) == 0;

        n_same += is_exact ? memcmp(one, other, bytes) == 0
                           : !is_same_text || distance(one, other, (size_t)n_vocab) < limit;
    }
    is_int(n_same, ROUNDS, "ranks: %d: sequence %d, adapter %d: the same numbers in a crowd",
           n_ranks, i, all->seqs[i].adapter);
}

/* Sequence i in a crowd has the bits that it has alone; of all with equal prompts, adapters make
 * the difference. */
static void check_crowd(int n_ranks)
{
    struct model *m = open_model("llama-gqa", n_ranks, 1);
    struct crowd *all = calloc(1, sizeof *all), *alone = calloc(1, sizeof *alone);

    load(m, "llama-gqa-all", 0);
    load(m, "llama-gqa-few", 1);
    load(m, "llama-gqa-few", 2);
    load(m, "llama-gqa-all", 2); /* a slot is used again */
    run_init(&all->run, m);
    run_init(&alone->run, m);
    begin_crowd(all, m);
    is_int(run_crowd(all, m, -1), ERR_OK, "a crowd runs");
    begin_crowd(alone, m);
    for (int i = 0; i < CROWD; i++) {
        is_int(run_crowd(alone, m, i), ERR_OK, "sequence %d runs alone", i);
        check_member(all, alone, i, model_shape(m)->n_vocab, n_ranks);
    }
    for (int i = 0; i < CROWD; i++) {
        for (int round = 0; round < ROUNDS; round++)
            free(all->logits[i][round]), free(alone->logits[i][round]);
    }
    model_close(m);
    free(all), free(alone);
}

/* --- refusals --------------------------------------------------------------------------- */

static void write_file(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[4400];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
}

static char *read_file(const char *folder, const char *name, size_t *n)
{
    char path[4400], *bytes = malloc(1 << 20);
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    if ((f = fopen(path, "rb")) == NULL) {
        printf("Bail out! %s cannot be read\n", path);
        exit(1);
    }
    *n = fread(bytes, 1, (1 << 20) - 1, f);
    bytes[*n] = '\0';
    fclose(f);
    return bytes;
}

/* The first place of `from` becomes `to`, which may be longer. */
static size_t replace(char *text, size_t n, const char *from, const char *to)
{
    char *at = memmem(text, n, from, strlen(from));
    size_t rest;

    if (at == NULL) {
        printf("Bail out! no %s in the file\n", from);
        exit(1);
    }
    rest = n - (size_t)(at - text) - strlen(from);
    memmove(at + strlen(to), at + strlen(from), rest + 1);
    memcpy(at, to, strlen(to));
    return n - strlen(from) + strlen(to);
}

/* Changes to a folder, and a part of the reason that must follow. in_names: the change is one of
 * the matrices' file, to a text of the same length. */
static const struct {
    const char *from, *to, *why;
    bool in_names;
} refusals[] = {
    {"\"LORA\"", "\"LOHA\"", "peft_type", false},
    {"\"use_dora\": false", "\"use_dora\": true", "use_dora", false},
    {"\"bias\": \"none\"", "\"bias\": \"all\"", "bias", false},
    {"\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]", "modules_to_save", false},
    {"\"layer_replication\": null", "\"layer_replication\": [[0, 1]]", "layer_replication", false},
    {"\"target_parameters\": null", "\"target_parameters\": [\"x\"]", "target_parameters", false},
    {"\"lora_bias\": false", "\"lora_bias\": true", "lora_bias", false},
    {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"", "pissa", false},
    {"\"r\": 3", "\"r\": 4", "as the rank", false},
    {"\"r\": 3", "\"r\": 300", "max_lora_rank", false},
    {"\"r\": 3", "\"r\": 0", "max_lora_rank", false},
    {"\"r\": 3", "\"s\": 3", "r is missing", false},
    {"\"lora_alpha\": 4", "\"lora_alpha\": \"x\"", "lora_alpha is missing or not a number", false},
    {"\"lora_alpha\": 4", "\"lora_alpha\": 1e300", "lora_alpha", false},
    {"\"lora_alpha\": 4", "\"lora_alpha\": -2e39", "lora_alpha", false},
    {"\"bias\": \"none\"", "\"bias\": true", "bias", false},
    {"\"use_rslora\": false", "\"use_rslora\": 1", "use_rslora", false},
    {"\"alpha_pattern\": {}", "\"alpha_pattern\": [4]", "alpha_pattern", false},
    {"\"rank_pattern\": {}", "\"rank_pattern\": 3", "rank_pattern", false},
    {"\"rank_pattern\": {}", "\"rank_pattern\": {\"(\": 3}", "not an expression", false},
    {"\"rank_pattern\": {}", "\"rank_pattern\": {\"((((a{1,255}){1,255}){1,255}){1,255})\": 3}",
     "not an expression", false},
    {"\"rank_pattern\": {}", "\"rank_pattern\": {\"(.*)(.*)\\\\3\\\\4x\": 3}", "not an expression",
     false},
    {"{", "[", "adapter_config.json", false},
    {"q_proj.lora_A", "q_prok.lora_A", "no lora_B", true},
    {"self_attn.q_proj.lora_A.weight", "x.lora_embedding_A.aaaaaaaaaaa", "embeddings", true},
    {"v_proj.lora_A.weight", "v_proj.lora_A.weighs", "neither", true},
    {"[3,64]", "[64,3]", "are not", true},
    {"BF16", "I16\"", "adapter_model.safetensors", true},
};

/* Write the folder of llama-gqa-few with one change, and read it. */
static int refused(const char *folder, size_t i, char *why, size_t cap)
{
    char from[4200], *config, *file;
    size_t n_config, n_file;
    struct adapter *a = NULL;
    int rc;

    snprintf(from, sizeof from, "%s/adapters/llama-gqa-few", base);
    config = read_file(from, "adapter_config.json", &n_config);
    file = read_file(from, "adapter_model.safetensors", &n_file);
    if (refusals[i].in_names)
        n_file = replace(file, n_file, refusals[i].from, refusals[i].to);
    else
        n_config = replace(config, n_config, refusals[i].from, refusals[i].to);
    write_file(folder, "adapter_config.json", config, n_config);
    write_file(folder, "adapter_model.safetensors", file, n_file);
    free(config), free(file);
    rc = adapter_open(&a, folder, 64, why, cap);
    adapter_close(a);
    return rc;
}

/* A file that ends early, at some places; and what is not there. */
static void check_cut(const char *folder)
{
    char from[4200], why[ADAPTER_WHY_CAP] = "", *file;
    struct adapter *a = NULL;
    size_t n;

    snprintf(from, sizeof from, "%s/adapters/llama-gqa-few", base);
    file = read_file(from, "adapter_config.json", &n);
    write_file(folder, "adapter_config.json", file, n);
    free(file);
    file = read_file(from, "adapter_model.safetensors", &n);
    for (size_t len = 0; len < n; len += n / 7) {
        write_file(folder, "adapter_model.safetensors", file, len);
        is_int(adapter_open(&a, folder, 64, why, sizeof why), ERR_CORRUPT, "cut at %zu: %s", len,
               why);
    }
    free(file);
    snprintf(from, sizeof from, "%s/adapter_model.safetensors", folder);
    unlink(from);
    is_int(adapter_open(&a, folder, 64, why, sizeof why), ERR_NOT_FOUND, "no matrices: %s", why);
    snprintf(from, sizeof from, "%s/adapter_config.json", folder);
    unlink(from);
    is_int(adapter_open(&a, folder, 64, why, sizeof why), ERR_NOT_FOUND, "no config: %s", why);
    is_int(adapter_open(&a, "/nonexistent", 64, why, sizeof why), ERR_NOT_FOUND, "no folder: %s",
           why);
}

/* Its last matrix is a B of bfloat16, whose last number becomes infinite. */
static void check_infinite(const char *folder)
{
    char from[4200], why[ADAPTER_WHY_CAP] = "", *config, *file;
    struct adapter *a = NULL;
    size_t n_config, n_file;

    snprintf(from, sizeof from, "%s/adapters/llama-gqa-few", base);
    config = read_file(from, "adapter_config.json", &n_config);
    file = read_file(from, "adapter_model.safetensors", &n_file);
    file[n_file - 1] = (char)0x7f;
    file[n_file - 2] = (char)0x80;
    write_file(folder, "adapter_config.json", config, n_config);
    write_file(folder, "adapter_model.safetensors", file, n_file);
    is_int(adapter_open(&a, folder, 64, why, sizeof why), ERR_INVALID, "infinite: %s", why);
    ok(strstr(why, "not finite") != NULL, "which is the reason");
    free(config), free(file);
}

/* An adapter of another model is refused when it is fitted. */
static void check_foreign(void)
{
    struct model *m = open_model("llama-gqa", 1, 1);
    const char *const names[] = {"qwen2-window-r8", "gpt2-conv1d", "phi3-pattern"};
    char folder[4200], why[ADAPTER_WHY_CAP] = "";

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct adapter *a = NULL;
        int rc;

        snprintf(folder, sizeof folder, "%s/adapters/%s", base, names[i]);
        is_int(adapter_open(&a, folder, 8, why, sizeof why), ERR_OK, "%s opens", names[i]);
        rc = model_adapter_check(m, a, why, sizeof why);
        ok(rc != ERR_OK && strstr(why, "base model") != NULL, "%s: refused: %s", names[i], why);
        adapter_close(a);
    }
    model_close(m);
}

static void check_refusals(void)
{
    char folder[] = "/tmp/quire-adapters-XXXXXX";

    if (mkdtemp(folder) == NULL) {
        printf("Bail out! no folder in /tmp\n");
        exit(1);
    }
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char why[ADAPTER_WHY_CAP] = "";
        int rc = refused(folder, i, why, sizeof why);

        ok(rc != ERR_OK && strstr(why, refusals[i].why) != NULL && strchr(why, '\n') == NULL,
           "%s: %s: %s", refusals[i].to, err_sentence(rc), why);
    }
    check_infinite(folder);
    check_cut(folder);
    rmdir(folder);
}

int main(void)
{
    int n_gpus = device_cuda_count();

    snprintf(base, sizeof base, "%s", tap_path("tests/golden"));
    if (getenv("QUIRE_TEST_DEVICE") != NULL) {
        device = getenv("QUIRE_TEST_DEVICE");
        is_exact = strcmp(device, "cpu") == 0;
        limit = is_exact ? limit : 2e-2;
    }
    for (size_t i = 0; i < sizeof adapters / sizeof adapters[0]; i++) {
        check_adapter(i, 1, 1);
        if (!is_exact && n_gpus < 2)
            continue;
        check_adapter(i, 1, 2);
        if (adapters[i].divides)
            check_adapter(i, 2, 1);
    }
    if (is_exact || n_gpus >= 4)
        check_adapter(0, 2, 2);
    check_rounded();
    check_crowd(1);
    if (is_exact || n_gpus >= 2)
        check_crowd(2);
    check_refusals();
    check_foreign();
    return tap_done();
}
