/* SPDX-License-Identifier: Apache-2.0
 *
 * quire quantize: a checkpoint with matrices of 4 or 8 bits, in compressed-tensors' layout, which
 * vLLM and transformers load.
 *
 *   quire quantize FOLDER --to int4|int8|fp8|nvfp4 --out FOLDER [--group N] [--text FILE]
 *                  [--calibrate FILE.jsonl] */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/settings.h"
#include "text/file.h"
#include "tools/eval.h"
#include "tools/quantize.h"
#include "tools/quire.h"

#define COPIED_BYTES_MAX ((size_t)256 << 20) /* of a tokenizer, a template */
#define TEXT_BYTES_MAX   ((size_t)1 << 30)
#define RUN_NAME         "quantize.run"

static void quantize_help(FILE *out)
{
    fprintf(out, "usage: quire quantize FOLDER --to int4|int8|fp8|nvfp4 --out FOLDER [options]\n\n"
                 "Write a checkpoint whose layers have matrices of 4 or 8 bits, in the layout of\n"
                 "compressed-tensors, which vLLM and transformers load too. FOLDER has weights in\n"
                 "bf16, f16 or f32. A run that was killed continues where it stopped.\n\n"
                 "  --to int4      4 bits, a scale for each --group of a row\n"
                 "  --to int8      8 bits, a scale per row; vLLM also rounds inputs to 8 bits\n"
                 "  --to fp8       e4m3, a scale per row; inputs are rounded to e4m3\n"
                 "  --to nvfp4     e2m1, a scale for 16 elements\n"
                 "  --out FOLDER   is made if it does not exist\n"
                 "  --group N      elements that share a scale: 128 (default), 64 or 32\n"
                 "  --calibrate FILE.jsonl\n"
                 "                 round after GPTQ, with the inputs that texts give, each a line\n"
                 "                 {\"text\": \"...\"}; on the CPU\n"
                 "  --calibrate-tokens N\n"
                 "                 of these texts, 16384 (default) or fewer if there are fewer\n"
                 "  --text FILE    print the perplexity of this text before and after\n"
                 "  --threads N    default: one per core\n");
}

struct quantize_task {
    struct quantize q;
    const char *text, *calibrate;
    int n_tokens;
};

static int quantize_number(const char *value, int low, int high, int *out)
{
    char *end;
    long n = strtol(value, &end, 10);

    if (*value == '\0' || *end != '\0' || n < low || n > high)
        return ERR_INVALID;
    *out = (int)n;
    return ERR_OK;
}

static int quantize_kind(const char *value, enum round_kind *out)
{
    static const char *const names[] = {
        [ROUND_INT4] = "int4", [ROUND_INT8] = "int8", [ROUND_FP8] = "fp8", [ROUND_NVFP4] = "nvfp4"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (enum round_kind)i;
            return ERR_OK;
        }
    }
    return ERR_INVALID;
}

/* ERR_INVALID, with a line on stderr. */
static int quantize_read_words(struct quantize_task *t, int argc, char **argv)
{
    int rc = ERR_OK;

    for (int i = 1; rc == ERR_OK && i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

        if (name[0] != '-' && t->q.folder == NULL) {
            t->q.folder = name;
            continue;
        }
        if (strcmp(name, "--to") == 0) {
            rc = quantize_kind(value, &t->q.kind);
            t->q.kind_name = value;
        } else if (strcmp(name, "--out") == 0) {
            t->q.out = value;
        } else if (strcmp(name, "--text") == 0) {
            t->text = value;
        } else if (strcmp(name, "--calibrate") == 0) {
            t->calibrate = value;
        } else if (strcmp(name, "--calibrate-tokens") == 0) {
            rc = quantize_number(value, 1, 1 << 30, &t->n_tokens);
        } else if (strcmp(name, "--group") == 0) {
            rc = quantize_number(value, 32, 128, &t->q.group);
            if (t->q.group % 32 != 0 || t->q.group == 96)
                rc = ERR_INVALID;
        } else if (strcmp(name, "--threads") == 0) {
            rc = quantize_number(value, 1, 64, &t->q.n_threads);
        } else {
            rc = ERR_INVALID;
        }
        if (rc != ERR_OK || value[0] == '\0')
            fprintf(stderr, "quire quantize: \"%s %s\" is not an option; see --help\n", name,
                    value);
        if (value[0] == '\0')
            rc = ERR_INVALID;
        i++;
    }
    if (rc == ERR_OK && (t->q.folder == NULL || t->q.out == NULL || t->q.kind_name == NULL)) {
        fprintf(stderr, "quire quantize: FOLDER, --to and --out are needed; see --help\n");
        rc = ERR_INVALID;
    }
    return rc;
}

/* Write a file of the result, whole or not at all. */
static int quantize_put_text(const char *folder, const char *name, const char *bytes, size_t len)
{
    char path[QUANTIZE_PATH_CAP], part[QUANTIZE_PATH_CAP + 8];
    FILE *f;
    bool good;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return ERR_LIMIT;
    (void)snprintf(part, sizeof part, "%s.part", path);
    f = fopen(part, "wbe");
    good = f != NULL && (len == 0 || fwrite(bytes, len, 1, f) == 1);
    if (f != NULL && fclose(f) != 0)
        good = false;
    if (good && rename(part, path) == 0)
        return ERR_OK;
    fprintf(stderr, "quire quantize: %s: %s\n", path, strerror(errno));
    return ERR_IO;
}

/* Is it a file that the result has of its own, or one of weights? */
static bool quantize_is_replaced(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".safetensors.index.json", ".bin", ".pth", ".pt",
        ".gguf",        ".bin.index.json"};

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t n = strlen(name), m = strlen(ends[i]);

        if (n >= m && strcmp(name + n - m, ends[i]) == 0)
            return true;
    }
    return name[0] == '.' || strcmp(name, "config.json") == 0 || strcmp(name, RUN_NAME) == 0;
}

/* Tokenizer, template and other small files of the source. */
static int quantize_copy_files(const struct quantize *q)
{
    DIR *dir = opendir(q->folder);
    struct dirent *entry;
    int rc = ERR_OK;

    if (dir == NULL)
        return ERR_IO;
    while (rc == ERR_OK && (entry = readdir(dir)) != NULL) {
        struct buf text = {0};
        struct stat st;
        char why[QUANTIZE_PATH_CAP];

        if (quantize_is_replaced(entry->d_name) ||
            fstatat(dirfd(dir), entry->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode) ||
            (size_t)st.st_size > COPIED_BYTES_MAX)
            continue;
        rc = file_read(&text, q->folder, entry->d_name, COPIED_BYTES_MAX, why, sizeof why);
        if (rc == ERR_OK)
            rc = quantize_put_text(q->out, entry->d_name, text.bytes, text.len);
        else
            fprintf(stderr, "quire quantize: %s\n", why);
        buf_fini(&text);
    }
    (void)closedir(dir);
    return rc;
}

/* Say which run the files of the result belong to; a folder of another run is refused. */
static int quantize_claim(const struct quantize_task *t)
{
    const struct quantize *q = &t->q;
    struct buf run = {0}, found = {0};
    char why[QUANTIZE_PATH_CAP], path[QUANTIZE_PATH_CAP];
    int rc;

    buf_printf(&run, "%s %d %zu tensors %zu bytes\n%s\n%s %d\n", q->kind_name, q->group, q->n_items,
               q->bytes_before, q->folder, t->calibrate != NULL ? t->calibrate : "",
               t->calibrate != NULL ? t->n_tokens : 0);
    if (mkdir(q->out, 0755) != 0 && errno != EEXIST) {
        fprintf(stderr, "quire quantize: %s: %s\n", q->out, strerror(errno));
        buf_fini(&run);
        return ERR_IO;
    }
    rc = file_read(&found, q->out, RUN_NAME, 1 << 16, why, sizeof why);
    (void)snprintf(path, sizeof path, "%s/config.json", q->out);
    if (rc == ERR_OK && (found.len != run.len || memcmp(found.bytes, run.bytes, run.len) != 0)) {
        fprintf(stderr, "quire quantize: %s has files of another run (%s/%s); remove it\n", q->out,
                q->out, RUN_NAME);
        rc = ERR_INVALID;
    } else if (rc == ERR_NOT_FOUND && access(path, F_OK) == 0) {
        fprintf(stderr, "quire quantize: %s has a checkpoint; choose another folder\n", q->out);
        rc = ERR_INVALID;
    } else if (rc == ERR_NOT_FOUND) {
        rc = quantize_put_text(q->out, RUN_NAME, run.bytes, run.len);
    }
    buf_fini(&run);
    buf_fini(&found);
    return rc;
}

/* The perplexity of t->text under the model of a folder. */
static int quantize_measure(const struct quantize_task *t, const char *folder, const char *when)
{
    struct settings settings;
    struct eval *e = NULL;
    struct buf text = {0};
    struct eval_sum sum;
    char why[QUANTIZE_PATH_CAP], program[] = "quantize", *argv[] = {program, NULL};
    bool exit_now;
    int rc = settings_read(&settings, 'E', 1, argv, &exit_now);

    if (rc != ERR_OK)
        return rc;
    rc = file_read(&text, NULL, t->text, TEXT_BYTES_MAX, why, sizeof why);
    if (rc != ERR_OK)
        fprintf(stderr, "quire quantize: %s\n", why);
    if (rc == ERR_OK)
        rc = eval_open(&e, folder, &settings, 0);
    if (rc == ERR_OK)
        rc = eval_text(e, text.bytes, text.len, &sum);
    if (rc == ERR_OK)
        printf("perplexity %s: %.4f (%ld tokens)\n", when, exp(sum.nats / (double)sum.n_tokens),
               sum.n_tokens);
    eval_close(e);
    buf_fini(&text);
    settings_fini(&settings);
    return rc;
}

/* All steps after the command line; the run file is the last thing to go. */
static int quantize_run(struct quantize_task *t)
{
    struct quantize *q = &t->q;
    char path[QUANTIZE_PATH_CAP];
    int rc = quantize_plan(q);

    if (rc == ERR_OK)
        rc = quantize_claim(t);
    if (rc != ERR_OK)
        return rc;
    printf("%s: %zu of %zu tensors become %s, %.2f GB become %.2f GB in %d file%s\n", q->folder,
           q->n_rounded, q->n_items, q->kind_name, (double)q->bytes_before * 1e-9,
           (double)q->bytes_after * 1e-9, q->n_files, q->n_files > 1 ? "s" : "");
    if (t->calibrate != NULL && (rc = pool_open(&q->pool, q->n_threads)) == ERR_OK)
        rc = calibration_open(&q->calibration, q->folder, t->calibrate, t->n_tokens, q->pool);
    if (rc == ERR_OK)
        rc = quantize_write(q);
    calibration_close(q->calibration);
    q->calibration = NULL;
    pool_close(q->pool);
    if (rc == ERR_OK && q->n_files > 1)
        rc =
            quantize_put_text(q->out, "model.safetensors.index.json", q->index.bytes, q->index.len);
    if (rc == ERR_OK)
        rc = quantize_copy_files(q);
    if (rc == ERR_OK)
        rc = quantize_put_text(q->out, "config.json", q->config.bytes, q->config.len);
    if (rc != ERR_OK)
        return rc;
    (void)snprintf(path, sizeof path, "%s/%s", q->out, RUN_NAME);
    (void)unlink(path);
    if (t->text != NULL)
        rc = quantize_measure(t, q->folder, "before");
    if (rc == ERR_OK && t->text != NULL)
        rc = quantize_measure(t, q->out, "after");
    return rc;
}

int quire_quantize(int argc, char **argv)
{
    struct quantize_task t = {.q = {.group = 128}, .n_tokens = 16384};
    int rc;

    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        quantize_help(stdout);
        return 0;
    }
    if (quantize_read_words(&t, argc, argv) != ERR_OK)
        return 2;
    if (t.q.n_threads == 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);

        t.q.n_threads = n < 1 ? 1 : (int)(n > 64 ? 64 : n);
    }
    log_set_level(LOG_LEVEL_WARN);
    rc = quantize_run(&t);
    checkpoint_close(t.q.source);
    buf_fini(&t.q.config);
    buf_fini(&t.q.index);
    arena_reset(&t.q.arena);
    return rc == ERR_OK ? 0 : 1;
}
