/* SPDX-License-Identifier: Apache-2.0
 *
 * quire plan: which GPUs a model needs, without a GPU and without its weights.
 *
 *   quire plan FOLDER [--card NAME] [--len TOKENS] [settings]
 *
 * For each number of GPUs and each format the model is opened on cards that only count
 * (src/device/device_card.c), with the engine's settings, so that the figures are those that an
 * engine logs at its start. config.json is all that is read of the folder. A drafter of
 * speculative_config is opened before the model, as the engine does, on the first of its GPUs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/settings.h"
#include "device/device.h"
#include "model/hf_config.h"
#include "model/model.h"
#include "tools/quire.h"

#define GIB     (1.0 / 1073741824.0)
#define LEN_MAX 16777216
#define WHY_CAP 128

static const int plan_ranks[] = {1, 2, 4, 8};
static const struct {
    const char *name, *quantization, *kv;
} plan_formats[] = {{"as the folder", "", "auto"}, {"fp8, KV fp8", "fp8", "fp8"}};

/* A model that drafts; what it takes is of the row that was printed last. */
struct plan_drafter {
    char folder[1024]; /* "": none */
    bool is_mtp, is_head;
    size_t bytes, page_bytes;
    int n_taps, taps[EAGLE_TAPS_MAX];
};

struct plan_task {
    const char *folder, *card;
    int len;            /* tokens of a sequence; 0: the model's longest */
    double state_bytes; /* of one sequence, of the row that was printed last */
    struct plan_drafter drafter;
    struct settings settings;
};

static void plan_help(FILE *out)
{
    fprintf(out, "usage: quire plan FOLDER [--card NAME] [--len TOKENS] [settings]\n\n"
                 "Print how many GPUs a model needs and how many sequences fit. FOLDER has a\n"
                 "config.json; weights are not read.\n\n"
                 "  --card NAME    h200 (default), h100, h100-nvl, gh200, a100, l40s, rtx-4090,\n"
                 "                 rtx-5090, or memory in GiB\n"
                 "  --len TOKENS   length of the sequences that are counted; default: 8192, or\n"
                 "                 the model's longest if that is shorter\n\n"
                 "Settings are the engine's, such as --gpu-memory-utilization,\n"
                 "--max-num-batched-tokens and --page-tokens (quire-engine --help). With\n"
                 "--pipeline-parallel-size P, each of P stages has 1, 2, 4 ... GPUs. A drafter\n"
                 "of --speculative-config is counted.\n");
}

/* Take the command's own words out of argv; the others are settings. Returns how many are left, or
 * -1 after an error. */
static int plan_take_words(struct plan_task *t, int argc, char **argv)
{
    int left = 1;

    for (int i = 1; i < argc; i++) {
        bool has_value = strcmp(argv[i], "--card") == 0 || strcmp(argv[i], "--len") == 0;

        if (has_value && i + 1 == argc) {
            fprintf(stderr, "quire plan: %s wants a value\n", argv[i]);
            return -1;
        }
        if (strcmp(argv[i], "--card") == 0) {
            t->card = argv[++i];
        } else if (strcmp(argv[i], "--len") == 0) {
            char *end;
            long len = strtol(argv[++i], &end, 10);

            if (*end != '\0' || len < 1 || len > LEN_MAX) {
                fprintf(stderr, "quire plan: --len \"%s\" must be 1 to %d tokens\n", argv[i],
                        LEN_MAX);
                return -1;
            }
            t->len = (int)len;
        } else if (argv[i][0] != '-' && t->folder == NULL) {
            t->folder = argv[i];
        } else {
            argv[left++] = argv[i];
            if (argv[i][0] == '-' && strchr(argv[i], '=') == NULL && i + 1 < argc &&
                argv[i + 1][0] != '-')
                argv[left++] = argv[++i]; /* a setting's value */
        }
    }
    return left;
}

/* Read the drafter of speculative_config; n-grams and suffixes take no memory of a GPU. */
static int plan_read_drafter(struct plan_task *t, const struct hf_config *c)
{
    struct plan_drafter *d = &t->drafter;
    const char *text = t->settings.speculative_config, *method, *folder;
    struct arena arena = {0};
    const struct json *o;
    char why[WHY_CAP];
    int rc;

    if (text[0] == '\0')
        return ERR_OK;
    if ((rc = json_parse(&o, &arena, text, strlen(text), why, sizeof why)) != ERR_OK) {
        log_error("quire plan: speculative_config: %s", why);
        return rc;
    }
    method = json_get_text(o, "method", "draft_model");
    folder = json_get_text(o, "model", "");
    d->is_mtp = strcmp(method, "mtp") == 0;
    d->is_head = strcmp(method, "eagle3") == 0;
    if (d->is_mtp && folder[0] == '\0')
        folder = t->folder;
    if (d->is_mtp || d->is_head || strcmp(method, "draft_model") == 0)
        (void)snprintf(d->folder, sizeof d->folder, "%s", folder);
    arena_reset(&arena);
    if (!d->is_mtp || c->arch->mtp != NULL)
        return ERR_OK;
    log_error("quire plan: MTP layers of %s are not read", c->arch->name);
    return ERR_UNSUPPORTED;
}

/* Open the drafter beside a model of these options, and note what it takes. */
static int plan_open_drafter(struct plan_task *t, struct model_options o)
{
    struct plan_drafter *d = &t->drafter;
    struct model *m = NULL;
    const int *taps;
    int rc;

    o.dir = d->folder;
    o.is_mtp = d->is_mtp;
    o.is_drafter = d->is_head;
    o.pages_later = true;
    o.n_ranks = o.n_stages = 1;
    o.n_adapters = 0;
    if (!d->is_mtp) {
        o.quantization = NULL;
        o.max_model_len = 0;
    }
    if ((rc = model_open(&m, &o)) != ERR_OK)
        return rc;
    d->bytes = model_shape(m)->device_bytes;
    d->page_bytes = model_shape(m)->page_bytes;
    d->n_taps = model_taps(m, &taps);
    memcpy(d->taps, taps, (size_t)d->n_taps * sizeof *taps);
    model_close(m);
    return ERR_OK;
}

/* Why a model does not open: the ranks do not divide it, or the memory is short. */
static const char *plan_reason(int rc)
{
    return rc == ERR_NO_MEMORY ? "does not fit" : "cannot be divided so";
}

/* One row of the table; false when the model, or a sequence of t->len tokens, does not fit so. */
static bool plan_row(struct plan_task *t, int n_ranks, size_t format)
{
    char device[64];
    const struct settings *s = &t->settings;
    const struct model_options given = model_options_of(s);
    struct model_options o = {
        .dir = t->folder,
        .n_adapters = given.n_adapters,
        .adapter_rank = given.adapter_rank,
        .device = device,
        .dummy_weights = true,
        .quantization = plan_formats[format].quantization,
        .kv_cache_dtype = plan_formats[format].kv,
        .state_dtype = given.state_dtype,
        .n_ranks = n_ranks,
        .n_stages = s->pipeline_parallel_size,
        .page_tokens = s->page_tokens,
        .max_num_seqs = s->max_num_seqs,
        .max_num_batched_tokens = s->max_num_batched_tokens,
        .max_model_len = s->max_model_len,
        .gpu_memory_utilization = s->gpu_memory_utilization,
    };
    const struct model_shape *shape;
    struct model *m = NULL;
    double bytes, tokens, per_token;
    int rc, n_seqs;

    (void)snprintf(device, sizeof device, "card:%s", t->card);
    rc = t->drafter.folder[0] == '\0' ? ERR_OK : plan_open_drafter(t, o);
    if (rc == ERR_OK) {
        (void)snprintf(device, sizeof device, "card:%s+%zu", t->card, t->drafter.bytes);
        o.beside_bytes = t->drafter.page_bytes;
        o.n_taps = t->drafter.n_taps;
        o.taps = t->drafter.taps;
        rc = model_open(&m, &o);
    }
    printf("%-5d %-14s ", n_ranks * s->pipeline_parallel_size, plan_formats[format].name);
    if (rc != ERR_OK) {
        printf("%s\n", plan_reason(rc));
        return false;
    }
    shape = model_shape(m);
    n_seqs = shape->n_pages / model_pages_of(m, t->len);
    t->state_bytes = 0.0;
    for (int g = 0; g < shape->n_groups; g++)
        t->state_bytes += (double)shape->groups[g].n_state_pages * (double)shape->page_bytes;
    bytes = (double)shape->page_bytes * shape->n_pages;
    tokens = (double)shape->n_pages * shape->page_tokens;
    per_token = (double)shape->page_bytes * model_pages_of(m, t->len) / t->len;
    printf("%12.1f %11.1f %11.1f %13.1f %13.0f %12d\n", (double)shape->weight_bytes * GIB,
           (double)shape->work_bytes * GIB, bytes * GIB, per_token / 1024.0, tokens, n_seqs);
    model_close(m);
    return n_seqs > 0;
}

/* With stages the rows are of as many GPUs for each stage, up to the most that are supported. */
static void plan_print(struct plan_task *t)
{
    int n_stages = t->settings.pipeline_parallel_size, fewest = 0, most = n_stages;
    size_t format = 0;

    printf("%-5s %-14s %12s %11s %11s %13s %13s %12s\n", "GPUs", "weights", "weights GiB",
           "work GiB", "KV GiB", "KiB a token", "tokens in KV", "sequences");
    for (size_t i = 0; i < sizeof plan_ranks / sizeof plan_ranks[0]; i++) {
        if (i > 0 && plan_ranks[i] * n_stages > K_RANKS_MAX)
            break;
        most = plan_ranks[i] * n_stages;
        for (size_t f = 0; f < sizeof plan_formats / sizeof plan_formats[0]; f++) {
            if (plan_row(t, plan_ranks[i], f) && fewest == 0) {
                fewest = most;
                format = f;
            }
        }
    }
    printf("\nweights, work and KV are sums over the GPUs; sequences have %d tokens each\n",
           t->len);
    if (t->state_bytes > 0.0)
        printf(
            "states take %.1f MiB of the KV for each sequence, and for each of their snapshots in "
            "the prefix cache\n",
            t->state_bytes / 1048576.0);
    if (t->drafter.bytes > 0)
        printf("the drafter takes %.1f GiB more of the first GPU, and %.1f KiB more a token; its "
               "figures are of the last row\n",
               (double)t->drafter.bytes * GIB,
               (double)t->drafter.page_bytes / 1024.0 / t->settings.page_tokens);
    if (fewest > 0)
        printf("the smallest that works: %d GPU%s, weights %s\n", fewest, fewest > 1 ? "s" : "",
               plan_formats[format].name);
    else
        printf("the model does not fit %d cards\n", most);
}

int quire_plan(int argc, char **argv)
{
    struct plan_task *t = mem_zalloc(sizeof *t);
    struct device *card = NULL;
    struct hf_config c;
    bool exit_now = false;
    int left, rc = 2;

    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        plan_help(stdout);
        mem_free(t);
        return 0;
    }
    if (t == NULL)
        return 2;
    t->card = "h200";
    left = plan_take_words(t, argc, argv);
    if (left < 0 || t->folder == NULL) {
        if (left >= 0)
            plan_help(stderr);
        goto out;
    }
    if (settings_read(&t->settings, 'E', left, argv, &exit_now) != ERR_OK ||
        hf_config_read(&c, t->folder, t->settings.hf_overrides) != ERR_OK ||
        plan_read_drafter(t, &c) != ERR_OK || device_card_open(&card, t->card) != ERR_OK)
        goto out;
    if (t->len == 0)
        t->len = c.len_max < 8192 ? c.len_max : 8192;
    if (t->len > c.len_scaled) {
        fprintf(stderr, "quire plan: --len %d is more than the model's %d tokens\n", t->len,
                c.len_scaled);
        goto out;
    }
    printf("%s: %s, %d layers, vocabulary %d; cards: %s, %.2f of their memory\n", t->folder,
           c.arch->name, c.n_layers, c.n_vocab, t->card, t->settings.gpu_memory_utilization);
    log_set_level(LOG_LEVEL_NONE); /* the rows say what does not fit */
    plan_print(t);
    rc = 0;
out:
    device_close(card);
    settings_fini(&t->settings);
    mem_free(t);
    return rc;
}
