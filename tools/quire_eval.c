/* SPDX-License-Identifier: Apache-2.0
 *
 * quire eval: how well a model predicts a text, or chooses among answers.
 *
 *   quire eval perplexity FOLDER|FILE.gguf TEXT [--len N] [settings]
 *   quire eval choices FOLDER|FILE.gguf QUESTIONS.jsonl [--len N] [settings] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/settings.h"
#include "text/file.h"
#include "tools/eval.h"
#include "tools/quire.h"

#define EVAL_BYTES_MAX   ((size_t)1 << 30) /* of a text or a file of questions */
#define EVAL_CHOICES_MAX 64

struct eval_task {
    const char *what, *folder, *file;
    int len;
    struct settings settings;
};

static void eval_help(FILE *out)
{
    fprintf(
        out,
        "usage: quire eval perplexity FOLDER|FILE.gguf TEXT [--len N] [settings]\n"
        "       quire eval choices FOLDER|FILE.gguf QUESTIONS.jsonl [--len N] [settings]\n\n"
        "perplexity  of a text file, in windows of --len tokens (default: 2048, or the\n"
        "            model's longest), each half a window after the one before it\n"
        "choices     one JSON object a line: {\"prompt\": \"...\", \"choices\": [\"...\", ...],\n"
        "            \"answer\": 0}; prints the share of questions whose answer has the\n"
        "            greatest probability, whole and per byte\n\n"
        "Settings are the engine's, such as --device, --quantization and\n"
        "--tensor-parallel-size (quire-engine --help).\n");
}

/* Take the command's own words out of argv; the others are settings. Returns how many are left, or
 * -1 after an error. */
static int eval_take_words(struct eval_task *t, int argc, char **argv)
{
    int left = 1;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--len") == 0) {
            char *end = NULL;
            long len = i + 1 < argc ? strtol(argv[++i], &end, 10) : 0;

            if (end == NULL || *end != '\0' || len < 2 || len > 1 << 24) {
                fprintf(stderr, "quire eval: --len must be 2 to %d tokens\n", 1 << 24);
                return -1;
            }
            t->len = (int)len;
        } else if (argv[i][0] != '-' && t->what == NULL) {
            t->what = argv[i];
        } else if (argv[i][0] != '-' && t->folder == NULL) {
            t->folder = argv[i];
        } else if (argv[i][0] != '-' && t->file == NULL) {
            t->file = argv[i];
        } else {
            argv[left++] = argv[i];
            if (argv[i][0] == '-' && strchr(argv[i], '=') == NULL && i + 1 < argc &&
                argv[i + 1][0] != '-')
                argv[left++] = argv[++i]; /* a setting's value */
        }
    }
    return left;
}

static int eval_perplexity(struct eval *e, const struct buf *text)
{
    struct eval_sum sum;
    int rc = eval_text(e, buf_text(text), text->len, &sum);

    if (rc != ERR_OK)
        return rc;
    printf("perplexity %.4f: %ld tokens in windows of %d, %.4f nats a token, %.4f bits a byte\n",
           exp(sum.nats / (double)sum.n_tokens), sum.n_tokens, eval_len(e),
           sum.nats / (double)sum.n_tokens, sum.nats / log(2.0) / (double)sum.n_bytes);
    return ERR_OK;
}

/* Questions so far. */
struct eval_score {
    long n;
    int right, right_by_byte;
};

/* Which choice wins, by its whole probability and per byte. */
static int eval_question(struct eval *e, const char *prompt, const struct json *choices, int *whole,
                         int *by_byte)
{
    double best = INFINITY, best_byte = INFINITY;

    for (uint32_t i = 0; i < choices->n; i++) {
        struct eval_sum sum;
        int rc = eval_choice(e, prompt, choices->items[i].text, &sum);

        if (rc != ERR_OK)
            return rc;
        if (sum.nats < best) {
            best = sum.nats;
            *whole = (int)i;
        }
        if (sum.nats / (double)sum.n_bytes < best_byte) {
            best_byte = sum.nats / (double)sum.n_bytes;
            *by_byte = (int)i;
        }
    }
    return ERR_OK;
}

/* One line of the file. ERR_INVALID, with its reason printed, for another shape. */
static int eval_line(struct eval *e, const char *line, size_t len, struct arena *arena,
                     struct eval_score *score)
{
    const struct json *root, *prompt, *choices, *answer;
    char why[200];
    bool good;
    int whole = -1, by_byte = -1, rc = json_parse(&root, arena, line, len, why, sizeof why);

    score->n++;
    if (rc != ERR_OK) {
        fprintf(stderr, "quire eval: question %ld: %s\n", score->n, why);
        return rc;
    }
    prompt = json_get_kind(root, "prompt", JSON_TEXT);
    choices = json_get_kind(root, "choices", JSON_LIST);
    answer = json_get_kind(root, "answer", JSON_INT);
    good = prompt != NULL && choices != NULL && answer != NULL && choices->n >= 2 &&
           choices->n <= EVAL_CHOICES_MAX && answer->whole >= 0 && answer->whole < choices->n;
    for (uint32_t i = 0; good && i < choices->n; i++)
        good = choices->items[i].kind == JSON_TEXT && choices->items[i].text_len > 0;
    if (!good) {
        fprintf(stderr,
                "quire eval: question %ld needs prompt (a text), choices (2 to %d texts) "
                "and answer (0 to the number of choices - 1)\n",
                score->n, EVAL_CHOICES_MAX);
        return ERR_INVALID;
    }
    rc = eval_question(e, prompt->text, choices, &whole, &by_byte);
    score->right += whole == answer->whole;
    score->right_by_byte += by_byte == answer->whole;
    return rc;
}

static int eval_choices(struct eval *e, const struct buf *text)
{
    struct arena arena = {0};
    struct eval_score score = {0};
    int rc = ERR_OK;

    for (size_t at = 0; rc == ERR_OK && at < text->len;) {
        const char *end = memchr(text->bytes + at, '\n', text->len - at);
        size_t len = end != NULL ? (size_t)(end - text->bytes) - at : text->len - at;

        if (strspn(text->bytes + at, " \t\r") < len)
            rc = eval_line(e, text->bytes + at, len, &arena, &score);
        arena_reset(&arena);
        at += len + 1;
    }
    if (rc == ERR_OK && score.n == 0) {
        fprintf(stderr, "quire eval: the file has no questions\n");
        rc = ERR_INVALID;
    }
    if (rc == ERR_OK)
        printf("%ld questions: %.4f right by probability, %.4f by probability per byte\n", score.n,
               (double)score.right / (double)score.n,
               (double)score.right_by_byte / (double)score.n);
    return rc;
}

int quire_eval(int argc, char **argv)
{
    struct eval_task t = {0};
    struct eval *e = NULL;
    struct buf text = {0};
    char why[400];
    bool exit_now = false;
    int left, rc = ERR_INVALID;

    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        eval_help(stdout);
        return 0;
    }
    left = eval_take_words(&t, argc, argv);
    if (left < 0)
        return 2;
    if (t.file == NULL || (strcmp(t.what, "perplexity") != 0 && strcmp(t.what, "choices") != 0)) {
        eval_help(stderr);
        return 2;
    }
    if (settings_read(&t.settings, 'E', left, argv, &exit_now) != ERR_OK || exit_now) {
        settings_fini(&t.settings);
        return exit_now ? 0 : 2;
    }
    log_set_level(LOG_LEVEL_WARN);
    rc = file_read(&text, NULL, t.file, EVAL_BYTES_MAX, why, sizeof why);
    if (rc != ERR_OK)
        fprintf(stderr, "quire eval: %s\n", why);
    if (rc == ERR_OK)
        rc = eval_open(&e, t.folder, &t.settings, t.len);
    if (rc == ERR_OK)
        rc = strcmp(t.what, "choices") == 0 ? eval_choices(e, &text) : eval_perplexity(e, &text);
    eval_close(e);
    buf_fini(&text);
    settings_fini(&t.settings);
    return rc == ERR_OK ? 0 : 1;
}
