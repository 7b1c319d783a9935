/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that pool, against what transformers and sentence-transformers compute with them
 * (make_pooling.py): the rows that come back in place of logits are those of the last norm, or the
 * scores of the labels; at once, in chunks, in a crowd, and on two ranks. QUIRE_TEST_DEVICE=cuda
 * runs it on a GPU. */
#include <math.h>

#include "base/pooling.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define TEXTS_MAX   8
#define NUMBERS_MAX 64
#define PAGES       256

struct golden {
    struct run_seq texts[TEXTS_MAX];
    float numbers[TEXTS_MAX][NUMBERS_MAX];
    int n_texts, n_numbers;
};

static struct golden golden;
static struct run run;

static void read_golden(const char *dir)
{
    char path[4200];
    FILE *f;
    int32_t counts[2] = {0, 0}, n = 0;
    bool good;

    (void)snprintf(path, sizeof path, "%s/golden.bin", dir);
    f = fopen(path, "rb");
    good = f != NULL && fread(counts, 4, 2, f) == 2 && counts[0] <= TEXTS_MAX &&
           counts[1] <= NUMBERS_MAX;
    memset(&golden, 0, sizeof golden);
    golden.n_texts = counts[0];
    golden.n_numbers = counts[1];
    for (int i = 0; i < golden.n_texts && good; i++) {
        good = fread(&n, 4, 1, f) == 1 && n <= RUN_TOKENS &&
               fread(golden.texts[i].tokens, 4, (size_t)n, f) == (size_t)n &&
               fread(golden.numbers[i], 4, (size_t)counts[1], f) == (size_t)counts[1];
        golden.texts[i].n_tokens = n;
        golden.texts[i].first_page = i * 16;
    }
    if (!good) {
        printf("Bail out! %s cannot be read\n", path);
        exit(1);
    }
    fclose(f);
}

static const char *device(void)
{
    const char *name = getenv("QUIRE_TEST_DEVICE");

    return name == NULL || name[0] == '\0' ? "cpu" : name;
}

static struct model *open_model(const char *dir, const struct pooling *p, int n_ranks)
{
    struct model_options o = {.dir = dir,
                              .device = device(),
                              .cpu_threads = n_ranks,
                              .n_ranks = n_ranks,
                              .page_tokens = 16,
                              .max_num_seqs = RUN_SEQS,
                              .max_num_batched_tokens = 256,
                              .max_model_len = 256,
                              .num_pages = PAGES,
                              .gpu_memory_utilization = 0.9,
                              .pooling = p};
    struct model *m = NULL;

    if (model_open(&m, &o) == ERR_OK)
        run_init(&run, m);
    return m;
}

/* Add the rows of a step that has begun: each to its text's sum, or the one that counts. */
static void take_rows(struct model *m, const struct pooling *p, float sums[][NUMBERS_MAX])
{
    static float row[RUN_TOKENS];

    for (int r = 0; r < run.b.n_rows; r++) {
        int at = run.rows[r].token_idx, seq = 0;
        const struct run_seq *text;
        int position;

        while (at >= run.seq_start[seq + 1])
            seq++;
        text = run.seqs[seq];
        position = run.kv_len[seq] - (run.seq_start[seq + 1] - at);
        if (model_row_logits(m, r, row) != ERR_OK)
            continue;
        for (int i = 0; i < golden.n_numbers; i++) {
            if (p->type == POOLING_MEAN)
                sums[text - golden.texts][i] += row[i] / (float)text->n_tokens;
            else if (position == (p->type == POOLING_CLS ? 0 : text->n_tokens - 1))
                sums[text - golden.texts][i] = row[i];
        }
    }
}

/* All texts beside each other, `chunk` tokens of each per step. */
static bool compute(struct model *m, const struct pooling *p, int chunk, float sums[][NUMBERS_MAX])
{
    bool good = true, more = true;

    memset(sums, 0, sizeof *sums * TEXTS_MAX);
    for (int i = 0; i < golden.n_texts; i++)
        golden.texts[i].n_computed = 0;
    while (good && more) { /* each pass computes a token of a text at least */
        more = false;
        run_clear(&run);
        for (int i = 0; i < golden.n_texts; i++) {
            struct run_seq *text = &golden.texts[i];
            int left = text->n_tokens - text->n_computed, n = left < chunk ? left : chunk;

            if (n > 0 && run.b.n_tokens + n <= 256 && run.b.n_rows + n <= RUN_SEQS)
                run_add(&run, text, n, true);
            more = more || left > 0;
        }
        if (!more)
            break;
        for (int g = 0; g < model_shape(m)->n_groups; g++) {
            for (int seq = 0; seq < run.b.n_seqs; seq++)
                run_row(&run, seq, g);
        }
        good = model_step_begin(m, &run.b) == ERR_OK;
        if (good)
            take_rows(m, p, sums);
        good = good && model_step_sample(m, &run.b) == ERR_OK &&
               model_step_end(m, run.ids, NULL) == ERR_OK;
    }
    return good;
}

/* The largest difference of vectors of length 1, or of scores; *cosine: the least. */
static double difference(const struct pooling *p, float sums[][NUMBERS_MAX], double *cosine)
{
    double worst = 0.0;

    *cosine = 1.0;
    for (int t = 0; t < golden.n_texts; t++) {
        double ab = 0.0, aa = 0.0, bb = 0.0;

        for (int i = 0; i < golden.n_numbers; i++) {
            double a = (double)sums[t][i], b = (double)golden.numbers[t][i];

            ab += a * b;
            aa += a * a;
            bb += b * b;
        }
        if (p->kind == POOLING_EMBED)
            *cosine = fmin(*cosine, ab / sqrt(aa * bb));
        for (int i = 0; i < golden.n_numbers; i++) {
            double a = (double)sums[t][i], b = (double)golden.numbers[t][i];

            if (p->kind == POOLING_EMBED)
                worst = fmax(worst, fabs(a / sqrt(aa) - b / sqrt(bb)));
            else
                worst = fmax(worst, fabs(1.0 / (1.0 + exp(-a)) - 1.0 / (1.0 + exp(-b))));
        }
    }
    return worst;
}

/* A folder, as its files and the overrides say. */
static void check_folder(const char *name, enum pooling_kind kind, enum pooling_type type,
                         const char *overrides)
{
    static float first[TEXTS_MAX][NUMBERS_MAX], sums[TEXTS_MAX][NUMBERS_MAX];
    bool gpu = strcmp(device(), "cpu") != 0;
    double most = gpu ? 2e-2 : 1e-4, least = gpu ? 0.999 : 0.9999, cosine, worst;
    bool good;
    char path[128], dir[4096];
    struct pooling p;
    struct model *m;

    (void)snprintf(path, sizeof path, "tests/golden/pooling/%s", name);
    (void)snprintf(dir, sizeof dir, "%s", tap_path(path));
    read_golden(dir);
    good = pooling_read(&p, &(struct settings){.model = dir,
                                               .runner = "auto",
                                               .task = "",
                                               .convert = "auto",
                                               .pooler_config = "",
                                               .override_pooler_config = "",
                                               .hf_overrides = overrides}) == ERR_OK;
    ok(good && p.kind == kind && p.type == type, "%s pools, by %s", name,
       pooling_type_name(p.type));
    for (int ranks = 1; ranks <= (gpu ? 1 : 2); ranks++) {
        m = open_model(dir, &p, ranks);
        ok(m != NULL && model_shape(m)->pools && model_shape(m)->n_words == 320 &&
               model_shape(m)->n_vocab >= golden.n_numbers,
           "%s: opened on %d ranks", name, ranks);
        if (m == NULL)
            continue;
        good = compute(m, &p, 64, first);
        worst = difference(&p, first, &cosine);
        ok(good && worst < most && cosine > least, "%s: %d texts within %.1e, cosine %.7f", name,
           golden.n_texts, worst, cosine);
        good = compute(m, &p, 5, sums);
        worst = difference(&p, sums, &cosine);
        ok(good && worst < most, "%s: in chunks of 5, within %.1e", name, worst);
        if (!gpu)
            ok(memcmp(first, sums, sizeof first) == 0, "%s: to the last bit", name);
        model_close(m);
    }
}

/* The rows of a GGUF file are those of the folder with the same weights. */
static void check_gguf(void)
{
    static float folder[TEXTS_MAX][NUMBERS_MAX], file[TEXTS_MAX][NUMBERS_MAX];
    bool gpu = strcmp(device(), "cpu") != 0;
    struct pooling p = {.kind = POOLING_EMBED, .sigma = 1.0};
    struct model *m[2];
    char dir[4096];
    double worst = 0.0;

    for (int i = 0; i < golden.n_texts; i++) {
        for (int k = 0; k < golden.texts[i].n_tokens; k++)
            golden.texts[i].tokens[k] %= 320;
    }
    (void)snprintf(dir, sizeof dir, "%s", tap_path("tests/golden/llama-gqa"));
    m[0] = open_model(dir, &p, 1);
    golden.n_numbers = m[0] == NULL ? 0 : model_shape(m[0])->n_vocab;
    ok(m[0] != NULL && golden.n_numbers <= NUMBERS_MAX && compute(m[0], &p, 64, folder),
       "a generating folder pools");
    model_close(m[0]);
    (void)snprintf(dir, sizeof dir, "%s", tap_path("tests/golden/gguf/llama-gqa.gguf"));
    m[1] = open_model(dir, &p, 1);
    ok(m[1] != NULL && compute(m[1], &p, 64, file), "and so does the GGUF file");
    for (int t = 0; t < golden.n_texts; t++) {
        for (int i = 0; i < golden.n_numbers; i++)
            worst = fmax(worst, fabs((double)folder[t][i] - (double)file[t][i]));
    }
    ok(worst < (gpu ? 5e-2 : 1e-4) && folder[0][0] != 0.0f, "within %.1e", worst);
    model_close(m[1]);
}

static void check_refusals(void)
{
    struct pooling none = {.kind = POOLING_NONE};
    char dir[4096];

    (void)snprintf(dir, sizeof dir, "%s", tap_path("tests/golden/pooling/qwen3-last"));
    ok(open_model(dir, &none, 1) == NULL, "a folder without an output matrix does not generate");
}

int main(void)
{
    check_folder("qwen3-last", POOLING_EMBED, POOLING_LAST, "");
    check_folder("qwen2-last", POOLING_EMBED, POOLING_LAST, "");
    check_folder("granite-last", POOLING_EMBED, POOLING_LAST, "");
    check_folder("mistral-mean", POOLING_EMBED, POOLING_MEAN, "");
    check_folder("llama-cls", POOLING_EMBED, POOLING_CLS, "");
    check_folder("qwen3-labels", POOLING_SCORE, POOLING_LAST, "");
    check_folder("qwen3-original", POOLING_SCORE, POOLING_LAST,
                 "{\"architectures\": [\"Qwen3ForSequenceClassification\"], "
                 "\"classifier_from_token\": [21, 300], \"is_original_qwen3_reranker\": true}");
    check_gguf();
    check_refusals();
    return tap_done();
}
