/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the files of a quantised checkpoint, one after another. A file is named .part until it is
 * complete and on disk; the file `quantize.run` in the folder says which run its files belong to,
 * so that a run that was killed continues, and another run does not mix with it. Rows of a matrix
 * are independent: threads take them in equal parts. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/must.h"
#include "model/quant.h"
#include "model/quant_gptq.h"
#include "tools/quantize.h"

#define THREADS_MAX  64
#define HEADER_ALIGN 8 /* data begins at a multiple of it */

/* Rows first .. last - 1 of a matrix, for one thread. */
struct quantize_rows {
    const struct quantize_item *item;
    int first, last;
    uint8_t *codes, *scales; /* of the whole matrix */
    const struct gptq *gptq; /* NULL: to nearest */
    double error, sum;       /* squares: of the changes by rounding, of all weights; with gptq both
                              * of outputs */
    int rc;
};

/* What was lost in a layer. */
struct quantize_loss {
    int layer, n;
    double error, sum; /* squares */
    double worst;      /* the greatest relative error of a matrix */
    const char *worst_name;
};

struct quantize_file {
    int fd;
    int rc;
    char path[QUANTIZE_PATH_CAP];
};

/* --- one matrix ----------------------------------------------------------------------------- */

static void quantize_row(struct quantize_rows *r, int row, float *x, uint8_t *codes, float *scales)
{
    const struct tensor *t = r->item->t;
    const struct round_format *f = &r->item->format;
    int cols = (int)t->dims[1];

    for (int i = 0; i < cols; i++)
        x[i] = quant_number(t, (size_t)row * (size_t)cols + (size_t)i);
    for (int g = 0; g < cols / f->group; g++) {
        int at = g * f->group;

        scales[g] = round_scale(f, x + at, NULL, f->group);
        for (int i = at; i < at + f->group; i++) {
            double off;

            codes[i] = round_code(f, x[i], scales[g]);
            off = (double)x[i] - (double)round_value(f, codes[i], scales[g]);
            r->error += off * off;
            r->sum += (double)x[i] * (double)x[i];
        }
    }
    round_pack_codes(r->codes + (size_t)row * round_code_bytes(f, cols), f, codes, cols);
    round_pack_scales(r->scales + (size_t)row * round_scale_bytes(f, cols), f, scales, cols);
}

/* Rows first .. first + n - 1 together. x has room for twice as many, codes and scales for n. */
static void quantize_rows_gptq(struct quantize_rows *r, int first, int n, float *x, uint8_t *codes,
                               float *scales)
{
    const struct tensor *t = r->item->t;
    const struct round_format *f = &r->item->format;
    size_t cols = (size_t)t->dims[1];
    float *copy = x + (size_t)n * cols;

    for (size_t i = 0; i < (size_t)n * cols; i++)
        x[i] = quant_number(t, (size_t)first * cols + i);
    memcpy(copy, x, (size_t)n * cols * sizeof *x);
    r->sum += gptq_energy(r->gptq, copy, n);
    r->error += gptq_round(r->gptq, f, x, n, codes, scales);
    for (int i = 0; i < n; i++) {
        size_t row = (size_t)(first + i);

        round_pack_codes(r->codes + row * round_code_bytes(f, (int)cols), f,
                         codes + (size_t)i * cols, (int)cols);
        round_pack_scales(r->scales + row * round_scale_bytes(f, (int)cols), f,
                          scales + (size_t)i * (cols / (size_t)f->group), (int)cols);
    }
}

static void *quantize_rows_run(void *context)
{
    struct quantize_rows *r = context;
    size_t cols = (size_t)r->item->t->dims[1], at_once = r->gptq != NULL ? GPTQ_ROWS : 1;
    float *x = mem_zalloc_array(2 * at_once * cols, sizeof *x);
    float *scales = mem_zalloc_array(at_once * cols, sizeof *scales);
    uint8_t *codes = mem_zalloc_array(at_once * cols, 1);

    r->rc = x == NULL || scales == NULL || codes == NULL ? ERR_NO_MEMORY : ERR_OK;
    for (int row = r->first; r->rc == ERR_OK && row < r->last; row += (int)at_once) {
        int n = r->last - row < (int)at_once ? r->last - row : (int)at_once;

        if (r->gptq != NULL)
            quantize_rows_gptq(r, row, n, x, codes, scales);
        else
            quantize_row(r, row, x, codes, scales);
    }
    mem_free(x);
    mem_free(scales);
    mem_free(codes);
    return NULL;
}

/* Round all rows; `whole` has the item, codes and scales, and gets the errors. */
static int quantize_matrix(const struct quantize *q, struct quantize_rows *whole)
{
    struct quantize_rows parts[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    bool started[THREADS_MAX] = {false};
    int rows = (int)whole->item->t->dims[0], n = q->n_threads < rows ? q->n_threads : rows;

    must(n >= 1 && n <= THREADS_MAX);
    for (int i = 0; i < n; i++) {
        parts[i] = *whole;
        parts[i].first = (int)((int64_t)rows * i / n);
        parts[i].last = (int)((int64_t)rows * (i + 1) / n);
        started[i] = i > 0 && pthread_create(&threads[i], NULL, quantize_rows_run, &parts[i]) == 0;
    }
    for (int i = 0; i < n; i++) { /* the caller's part, and those without a thread */
        if (!started[i])
            (void)quantize_rows_run(&parts[i]);
    }
    for (int i = 0; i < n; i++) {
        if (started[i])
            (void)pthread_join(threads[i], NULL);
        whole->error += parts[i].error;
        whole->sum += parts[i].sum;
        if (parts[i].rc != ERR_OK)
            whole->rc = parts[i].rc;
    }
    return whole->rc;
}

static float quantize_amax(const struct tensor *t)
{
    size_t n = (size_t)t->dims[0] * (size_t)t->dims[1];
    float amax = 0.0f;

    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(quant_number(t, i)));
    return amax;
}

/* --- one file ------------------------------------------------------------------------------- */

static void quantize_put(struct quantize_file *f, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (f->rc == ERR_OK && n > 0) {
        ssize_t done = write(f->fd, at, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            fprintf(stderr, "quire quantize: writing %s: %s\n", f->path, strerror(errno));
            f->rc = ERR_IO;
            return;
        }
        at += done;
        n -= (size_t)done;
    }
}

/* The header: names, types, shapes and places of all tensors of the file. */
static void quantize_put_header(const struct quantize *q, int file, struct quantize_file *f)
{
    struct buf header = {0};
    size_t at = 0;
    uint8_t length[8];

    buf_add_text(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < q->n_items; i++) {
        for (int k = 0; q->items[i].file == file && k < q->items[i].n_parts; k++) {
            const struct quantize_part *p = &q->items[i].parts[k];

            buf_add_byte(&header, ',');
            buf_add_json_string(&header, p->name, strlen(p->name));
            buf_printf(&header, ":{\"dtype\":\"%s\",\"shape\":[", p->dtype);
            for (int d = 0; d < p->n_dims; d++)
                buf_printf(&header, "%s%lld", d > 0 ? "," : "", (long long)p->dims[d]);
            buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + p->bytes);
            at += p->bytes;
        }
    }
    buf_add_byte(&header, '}');
    while (header.len % HEADER_ALIGN != 0 && !header.failed)
        buf_add_byte(&header, ' ');
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header.len >> (8 * i));
    if (header.failed)
        f->rc = ERR_NO_MEMORY;
    quantize_put(f, length, sizeof length);
    quantize_put(f, header.bytes, header.len);
    buf_fini(&header);
}

static void quantize_note_loss(struct quantize_loss *loss, const struct quantize_rows *r)
{
    double part = r->sum > 0.0 ? sqrt(r->error / r->sum) : 0.0;

    loss->n++;
    loss->error += r->error;
    loss->sum += r->sum;
    if (part >= loss->worst) {
        loss->worst = part;
        loss->worst_name = r->item->t->name;
    }
}

/* The part of a matrix's tensors that is neither codes nor scales. */
static void quantize_put_rest(struct quantize_file *f, const struct quantize_item *item)
{
    uint8_t shape[16];

    if (item->n_parts < 3)
        return;
    if (item->format.kind == ROUND_NVFP4) {
        quantize_put(f, &item->format.global, sizeof item->format.global);
        return;
    }
    for (int i = 0; i < 16; i++)
        shape[i] = (uint8_t)((uint64_t)item->t->dims[i / 8] >> (8 * (i % 8)));
    quantize_put(f, shape, sizeof shape);
}

/* The factor of the matrix's inputs, if it is calibrated; g->n 0: it is not. */
static int quantize_calibrate(const struct quantize *q, const struct quantize_item *item,
                              struct gptq *g)
{
    const float *moments = NULL;
    int n = 0, rc;

    *g = (struct gptq){.n = 0};
    if (q->calibration == NULL)
        return ERR_OK;
    rc = calibration_moments(q->calibration, item->t->name, item->layer, &moments, &n);
    if (rc != ERR_OK)
        return rc;
    if (moments != NULL && n == (int)item->t->dims[1]) {
        rc = gptq_open(g, moments, n, q->pool);
        if (rc != ERR_INVALID)
            return rc;
    }
    printf("%s: to nearest, its inputs are not known\n", item->t->name);
    return ERR_OK;
}

static int quantize_put_matrix(const struct quantize *q, struct quantize_item *item,
                               struct quantize_file *f, struct quantize_loss *loss)
{
    struct gptq gptq;
    struct quantize_rows r = {.item = item,
                              .codes = mem_alloc(item->parts[0].bytes),
                              .scales = mem_alloc(item->parts[1].bytes)};

    r.rc = r.codes == NULL || r.scales == NULL ? ERR_NO_MEMORY : ERR_OK;
    if (r.rc == ERR_OK && item->format.kind == ROUND_NVFP4)
        item->format.global = round_global(ROUND_NVFP4, quantize_amax(item->t));
    if (r.rc == ERR_OK)
        r.rc = quantize_calibrate(q, item, &gptq);
    if (r.rc == ERR_OK && gptq.n > 0)
        r.gptq = &gptq;
    if (r.rc == ERR_OK && quantize_matrix(q, &r) == ERR_OK) {
        quantize_put(f, r.codes, item->parts[0].bytes);
        quantize_put(f, r.scales, item->parts[1].bytes);
        quantize_put_rest(f, item);
        quantize_note_loss(loss, &r);
    }
    if (r.gptq != NULL)
        gptq_close(&gptq);
    mem_free(r.codes);
    mem_free(r.scales);
    return r.rc != ERR_OK ? r.rc : f->rc;
}

/* A layer is complete: its line. */
static void quantize_print_loss(const struct quantize *q, const struct quantize_loss *loss,
                                size_t done)
{
    if (loss->n == 0)
        return;
    printf("layer %d: %d matrices, relative error%s %.4f, greatest %.4f (%s); %zu%% done\n",
           loss->layer, loss->n, q->calibration != NULL ? " of outputs" : "",
           sqrt(loss->error / fmax(loss->sum, 1e-300)), loss->worst, loss->worst_name,
           100 * done / q->bytes_after);
    fflush(stdout);
}

static int quantize_put_items(struct quantize *q, int file, struct quantize_file *f, size_t *done)
{
    struct quantize_loss loss = {.layer = -1};
    int rc = f->rc;

    for (size_t i = 0; rc == ERR_OK && i < q->n_items; i++) {
        struct quantize_item *item = &q->items[i];

        if (item->file != file)
            continue;
        if (item->layer != loss.layer) {
            quantize_print_loss(q, &loss, *done);
            loss = (struct quantize_loss){.layer = item->layer};
        }
        if (item->is_rounded)
            rc = quantize_put_matrix(q, item, f, &loss);
        else
            quantize_put(f, item->t->data, item->t->bytes);
        for (int k = 0; k < item->n_parts; k++)
            *done += item->parts[k].bytes;
        rc = rc != ERR_OK ? rc : f->rc;
    }
    if (rc == ERR_OK)
        quantize_print_loss(q, &loss, *done);
    return rc;
}

/* Write one file of the result under a name with .part, then give it its own name. */
static int quantize_put_file(struct quantize *q, int file, const char *path, size_t *done)
{
    struct quantize_file f = {.fd = -1};
    int rc;

    if ((size_t)snprintf(f.path, sizeof f.path, "%s.part", path) >= sizeof f.path)
        return ERR_LIMIT;
    f.fd = open(f.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (f.fd == -1) {
        fprintf(stderr, "quire quantize: %s: %s\n", f.path, strerror(errno));
        return ERR_IO;
    }
    quantize_put_header(q, file, &f);
    rc = quantize_put_items(q, file, &f, done);
    if (rc == ERR_OK && (fsync(f.fd) != 0 || rename(f.path, path) != 0)) {
        fprintf(stderr, "quire quantize: %s: %s\n", f.path, strerror(errno));
        rc = ERR_IO;
    }
    (void)close(f.fd);
    return rc;
}

int quantize_write(struct quantize *q)
{
    char path[QUANTIZE_PATH_CAP], name[64];
    size_t done = 0;

    for (int file = 0; file < q->n_files; file++) {
        int rc;

        quantize_file_name(q, file, name, sizeof name);
        if ((size_t)snprintf(path, sizeof path, "%s/%s", q->out, name) >= sizeof path)
            return ERR_LIMIT;
        if (access(path, F_OK) == 0) {
            printf("%s is there already\n", path);
            for (size_t i = 0; i < q->n_items; i++) {
                for (int k = 0; q->items[i].file == file && k < q->items[i].n_parts; k++)
                    done += q->items[i].parts[k].bytes;
            }
            continue;
        }
        if ((rc = quantize_put_file(q, file, path, &done)) != ERR_OK)
            return rc;
    }
    return ERR_OK;
}
