/* SPDX-License-Identifier: Apache-2.0
 *
 * Moments are n^2 numbers for each of a layer's four inputs: a gigabyte for a layer of a model of
 * 8B. So they are collected for a run of layers at a time, and the texts are read again for the
 * next run. */
#include "tools/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/settings.h"
#include "model/model.h"
#include "text/file.h"
#include "tools/eval.h"

#define BYTES_MAX ((size_t)1 << 30)

struct calibration {
    struct settings settings;
    bool has_settings;
    struct eval *eval;
    struct buf file;
    struct arena arena; /* of the line that is read */
    long n_tokens;
    struct pool *pool;
    int first, n;    /* the layers whose moments are held */
    float **moments; /* [n_layers][MODEL_INPUTS]: of the layers held */
    int widths[MODEL_INPUTS];
    bool failed; /* no memory */
};

/* --- moments -------------------------------------------------------------------------------- */

struct calibrate_job {
    float *moments;
    const float *x;
    int n, width;
};

/* A row of the lower triangle. */
static void calibrate_add(void *context, int task, int worker)
{
    const struct calibrate_job *job = context;
    size_t width = (size_t)job->width;
    float *row = job->moments + (size_t)task * width;

    (void)worker;
    for (int t = 0; t < job->n; t++) {
        const float *x = job->x + (size_t)t * width;
        float own = x[task];

        for (int j = 0; j <= task; j++)
            row[j] += own * x[j];
    }
}

static void calibrate_see(void *context, int layer, enum model_input input, const float *x, int n,
                          int width)
{
    struct calibration *c = context;
    float **place = &c->moments[layer * MODEL_INPUTS + (int)input];

    if (layer < c->first || layer >= c->first + c->n || c->failed)
        return;
    if (*place == NULL)
        *place = mem_zalloc_array((size_t)width * (size_t)width, sizeof **place);
    if (*place == NULL) {
        c->failed = true;
        return;
    }
    c->widths[input] = width;
    pool_run(c->pool, calibrate_add,
             &(struct calibrate_job){.moments = *place, .x = x, .n = n, .width = width}, width);
}

/* --- texts ---------------------------------------------------------------------------------- */

/* The text of a line. ERR_INVALID (on stderr). */
static int calibrate_line(struct calibration *c, const char *line, size_t len, long number,
                          const struct json **text)
{
    const struct json *root;
    char why[200] = "expected {\"text\": \"...\"}";
    int rc;

    arena_reset(&c->arena);
    rc = json_parse(&root, &c->arena, line, len, why, sizeof why);
    *text = rc == ERR_OK ? json_get_kind(root, "text", JSON_TEXT) : NULL;
    if (*text == NULL) {
        fprintf(stderr, "quire quantize: --calibrate, line %ld: %s\n", number, why);
        return rc == ERR_NO_MEMORY ? rc : ERR_INVALID;
    }
    return ERR_OK;
}

/* Read all texts; with `reads`, by the model too. ERR_INVALID (on stderr) without any token. */
static int calibrate_read(struct calibration *c, bool reads)
{
    long left = c->n_tokens, number = 0;
    const char *at = buf_text(&c->file), *end = at + c->file.len;
    int rc = ERR_OK;

    while (rc == ERR_OK && at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((line_end != NULL ? line_end : end) - at);
        const struct json *text;

        number++;
        if (len > 0) {
            rc = calibrate_line(c, at, len, number, &text);
            if (rc == ERR_OK && reads)
                rc = eval_read(c->eval, text->text, text->text_len, &left);
        }
        at += len + 1;
    }
    if (rc == ERR_OK && (number == 0 || (reads && left == c->n_tokens))) {
        fprintf(stderr, "quire quantize: --calibrate: the file has no text\n");
        rc = ERR_INVALID;
    }
    return rc;
}

/* --- a run of layers ------------------------------------------------------------------------ */

/* As many layers as a quarter of the memory holds, one at least. */
static int calibrate_layers(const struct model_shape *shape)
{
    double heads = (double)shape->n_heads * shape->head_dim, dim = shape->dim, ff = shape->ff_dim;
    double bytes = 4.0 * (2.0 * dim * dim + heads * heads + ff * ff);
    double room = 0.25 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    if (room < 2.0 * bytes)
        return 1;
    return room / bytes > shape->n_layers ? shape->n_layers : (int)(room / bytes);
}

static void calibrate_forget(struct calibration *c)
{
    for (int i = c->first * MODEL_INPUTS; i < (c->first + c->n) * MODEL_INPUTS; i++) {
        mem_free(c->moments[i]);
        c->moments[i] = NULL;
    }
    c->n = 0;
}

static int calibrate_collect(struct calibration *c, int layer)
{
    const struct model_shape *shape = model_shape(eval_model(c->eval));
    int rc;

    calibrate_forget(c);
    c->first = layer;
    c->n = calibrate_layers(shape);
    if (c->n > shape->n_layers - layer)
        c->n = shape->n_layers - layer;
    printf("calibrating layers %d to %d\n", c->first, c->first + c->n - 1);
    (void)fflush(stdout);
    rc = calibrate_read(c, true);
    return c->failed ? ERR_NO_MEMORY : rc;
}

int calibration_moments(struct calibration *c, const char *tensor, int layer, const float **moments,
                        int *n)
{
    struct model *m = eval_model(c->eval);
    enum model_input input;
    int rc = ERR_OK;

    *moments = NULL;
    if (layer < 0 || layer >= model_shape(m)->n_layers || !model_input_of(m, tensor, layer, &input))
        return ERR_OK;
    if (layer < c->first || layer >= c->first + c->n)
        rc = calibrate_collect(c, layer);
    *moments = c->moments[layer * MODEL_INPUTS + (int)input];
    *n = c->widths[input];
    return rc;
}

/* --- opening -------------------------------------------------------------------------------- */

static int calibrate_open_model(struct calibration *c, const char *folder)
{
    char program[] = "quantize", device[] = "--device", cpu[] = "cpu";
    char *argv[] = {program, device, cpu, NULL};
    bool exit_now;
    int rc = settings_read(&c->settings, 'E', 3, argv, &exit_now);

    c->has_settings = rc == ERR_OK;
    if (rc == ERR_OK)
        rc = eval_open(&c->eval, folder, &c->settings, 0);
    if (rc == ERR_OK)
        rc = model_watch(eval_model(c->eval), calibrate_see, c);
    if (rc != ERR_OK)
        return rc;
    c->moments = mem_zalloc_array((size_t)model_shape(eval_model(c->eval))->n_layers * MODEL_INPUTS,
                                  sizeof *c->moments);
    return c->moments != NULL ? ERR_OK : ERR_NO_MEMORY;
}

int calibration_open(struct calibration **out, const char *folder, const char *path, long n_tokens,
                     struct pool *pool)
{
    struct calibration *c = mem_zalloc(sizeof *c);
    char why[400];
    int rc;

    must(n_tokens >= 1);
    *out = NULL;
    if (c == NULL)
        return ERR_NO_MEMORY;
    c->n_tokens = n_tokens;
    c->pool = pool;
    rc = file_read(&c->file, NULL, path, BYTES_MAX, why, sizeof why);
    if (rc != ERR_OK)
        fprintf(stderr, "quire quantize: %s\n", why);
    if (rc == ERR_OK)
        rc = calibrate_read(c, false);
    if (rc == ERR_OK)
        rc = calibrate_open_model(c, folder);
    if (rc == ERR_OK)
        *out = c;
    else
        calibration_close(c);
    return rc;
}

void calibration_close(struct calibration *c)
{
    if (c == NULL)
        return;
    if (c->moments != NULL)
        calibrate_forget(c);
    mem_free(c->moments);
    eval_close(c->eval);
    if (c->has_settings)
        settings_fini(&c->settings);
    arena_reset(&c->arena);
    buf_fini(&c->file);
    mem_free(c);
}
