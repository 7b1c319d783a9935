/* SPDX-License-Identifier: Apache-2.0
 *
 * What reads the same input is stored as one matrix: q, k, v one below the other, then gate and
 * up. So a layer is four products. Whether a tensor is in a format of its own is seen by its type,
 * not by lists of module names in config.json; a matrix has that format when all its parts do, with
 * scales that fit together, and the device takes it. Else it is converted while it is read.
 *
 * First everything is looked up, checked and allocated, in the order of the layers: that gives a
 * list of tensors, each with where it is to go. Then the reader (reader.h) brings the bytes. With
 * several ranks the looking up is done for each, and finds the same list: a tensor then has a
 * place, and a slice that belongs there, for every rank.
 *
 * The digest chains, over the list, SHA-256 of (digest so far, name, type, XXH3 of the bytes):
 * cheap enough to be taken on every start. Its value names stores on disk, so the list keeps its
 * order. */
#include "model/weights.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "kernels/draw.h"
#include "model/quant.h"
#include "model/reader.h"
#include "model/safetensors.h"
#include "model/slice.h"

#define RANDOM_SCALE 0.02f             /* of random matrices: what models are initialised with */
#define RANDOM_CODES 64.0f             /* the same before a scale */
#define FLOATS       ((size_t)1 << 20) /* of a tensor that the host converts at a time */
#define PARTS_MAX    3                 /* tensors of a matrix: q, k, v */

/* What becomes of a tensor's bytes. */
enum use_of_bytes {
    BYTES_SUMMED,    /* nothing: the host has looked at them, if they are wanted */
    BYTES_FILLED,    /* numbers of a file's type, to the device's */
    BYTES_COPIED,    /* elements of a format that the device takes */
    BYTES_ROUNDED,   /* numbers of a file's type, rounded to a format on the device */
    BYTES_CONVERTED, /* numbers of the device's type that mean, or are rounded to, a format */
};

/* Where a tensor goes on a rank. */
struct target {
    enum use_of_bytes use;
    enum device_type type;  /* of plain numbers */
    struct quant_part part; /* of a matrix */
    struct slice slice;     /* of a vector: rows of one number */
    void *dst;
    size_t at;     /* element of dst; of BYTES_COPIED byte */
    float *scales; /* BYTES_ROUNDED: the first row's */
};

/* Matrices that the device does not multiply with as they are. */
struct converted {
    char text[100]; /* the format of the first */
    int n;
    size_t bytes, as_they_are; /* on the device, and in their own format */
};

struct loader {
    const struct weights_rank *ranks;
    int n_ranks;
    int rank;          /* whose part is being laid out */
    struct weights *w; /* its */
    struct device *d;
    const struct config *c;
    const struct plan *whole, *part;
    const struct weights_source *from;
    struct checkpoint *files; /* NULL: random numbers */
    struct converted converted;
    uint64_t seed;             /* of the next random matrix */
    struct reader_item *items; /* [n_items]: tensors in the order of the digest */
    struct target *targets;    /* [n_items][n_ranks] */
    size_t n_items, items_cap;
    size_t n_listed;      /* of the items, by this rank */
    pthread_mutex_t turn; /* of the reader's threads at the device's own operations */
    int layer;            /* being loaded; -1 outside the layers */
    int rc;               /* the first error; later calls do nothing */
};

/* What a matrix is for: to be looked up in, a product of a layer, or of the logits. */
enum use { USE_TABLE, USE_LAYER, USE_HEAD };

static const struct k_format plain = {.elem = K_BF16};

/* The format that a plain matrix is rounded to. */
static struct k_format rounded(const struct loader *l, enum use use)
{
    return use == USE_LAYER ? l->from->layers : use == USE_HEAD ? l->from->head : plain;
}

/* A tensor that is a matrix, or the part of one. */
struct part {
    const char *pattern;
    struct quant_part q;
    size_t item; /* in the list */
    struct slice slice;
    enum device_type type; /* of plain numbers */
};

/* Tensors that stand one below the other in a matrix. */
struct parts {
    const char *const *patterns; /* [n] */
    const int *rows, *own_rows;  /* [n]: of the tensors, and what a rank has of each */
    int n;
    int n_blocks; /* of equal rows in each tensor, which are divided each for itself */
    int cols, own_cols;
};

/* The current rank's slice of tensor i. */
static struct slice slice_of(const struct loader *l, const struct parts *all, int i)
{
    return slice_make((struct slice_shape){.rows = all->rows[i],
                                           .own_rows = all->own_rows[i],
                                           .n_blocks = all->n_blocks,
                                           .cols = all->cols,
                                           .own_cols = all->own_cols},
                      l->rank, l->n_ranks);
}

/* --- the list --------------------------------------------------------------------------- */

static void *allocate(struct loader *l, size_t bytes)
{
    void *p;

    if (l->rc != ERR_OK)
        return NULL;
    p = l->d->ops->alloc_constant(l->d, bytes);
    if (p == NULL)
        l->rc = ERR_NO_MEMORY;
    l->w->bytes += bytes;
    return p;
}

static int type_of(const struct tensor *t, enum device_type *out)
{
    static const struct {
        const char *name;
        enum device_type type;
    } types[] = {{"BF16", DEVICE_BF16}, {"F16", DEVICE_F16}, {"F32", DEVICE_F32}};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(t->dtype, types[i].name) == 0) {
            *out = types[i].type;
            return ERR_OK;
        }
    }
    return ERR_UNSUPPORTED;
}

static struct target *target_of(const struct loader *l, size_t item, int rank)
{
    return &l->targets[item * (size_t)l->n_ranks + (size_t)rank];
}

static void grow_list(struct loader *l)
{
    size_t cap = l->items_cap == 0 ? 64 : 2 * l->items_cap;
    struct reader_item *items = mem_realloc(l->items, cap * sizeof *items);
    struct target *targets;

    if (items != NULL)
        l->items = items;
    targets = mem_realloc(l->targets, cap * (size_t)l->n_ranks * sizeof *targets);
    if (targets != NULL)
        l->targets = targets;
    if (items == NULL || targets == NULL)
        l->rc = ERR_NO_MEMORY;
    else
        l->items_cap = cap;
}

/* Put a tensor on the list, to be summed alone; list_target() says otherwise. Rank 0 makes the
 * list, the others come by in the same order. */
static void list(struct loader *l, const struct tensor *t)
{
    if (l->rank > 0) {
        must(l->n_listed < l->n_items && l->items[l->n_listed].t == t);
        l->n_listed++;
        return;
    }
    if (l->n_items == l->items_cap)
        grow_list(l);
    if (l->rc != ERR_OK)
        return;
    l->items[l->n_items] = (struct reader_item){.t = t, .step = 1};
    for (int i = 0; i < l->n_ranks; i++)
        *target_of(l, l->n_items, i) = (struct target){.use = BYTES_SUMMED};
    l->n_listed = ++l->n_items;
}

/* Bytes of a number in a file. */
static size_t file_bytes(enum device_type type)
{
    return type == DEVICE_F32 ? 4 : 2;
}

/* Bytes of n elements of a row in a file. */
static size_t bytes_of(const struct target *to, int n)
{
    return to->part.kind != NULL ? k_format_row_bytes(&to->part.format, n)
                                 : (size_t)n * file_bytes(to->type);
}

static size_t row_bytes(const struct target *to)
{
    return bytes_of(to, to->slice.cols);
}

/* Where the current rank has its slice of a tensor, whose rows must not be torn. */
static void list_target(struct loader *l, size_t item, const struct target *to)
{
    l->items[item].step = row_bytes(to);
    *target_of(l, item, l->rank) = *to;
}

static void digest(struct loader *l)
{
    struct hash *sum = &l->ranks[0].weights->digest;

    for (size_t i = 0; i < l->n_items; i++) {
        const struct tensor *t = l->items[i].t;
        char line[400];
        int n = snprintf(line, sizeof line, "%.300s %.20s %016llx", t->name, t->dtype,
                         (unsigned long long)l->items[i].xxh3);

        *sum = hash_sha256(sum, sizeof *sum, line, (size_t)n);
    }
}

/* The name of the current layer's tensor, with `ending` in place of .weight. */
static void name_of(const struct loader *l, char *out, size_t cap, const char *pattern,
                    const char *ending)
{
    const char *percent = strstr(pattern, "%d");
    size_t stem = strlen(pattern) - strlen(".weight");

    if (percent == NULL)
        (void)snprintf(out, cap, "%.*s%s", (int)stem, pattern, ending);
    else
        (void)snprintf(out, cap, "%.*s%d%.*s%s", (int)(percent - pattern), pattern, l->layer,
                       (int)(stem - (size_t)(percent - pattern) - 2), percent + 2, ending);
}

/* The tensor of a name with n numbers. */
static const struct tensor *find_vector(struct loader *l, const char *name, int n)
{
    const struct tensor *t = checkpoint_find(l->files, name);

    if (t == NULL) {
        log_error("model: tensor %s is missing", name);
        l->rc = ERR_NOT_FOUND;
        return NULL;
    }
    if (t->n_dims != 1 || t->dims[0] != n) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says [%d]",
                  checkpoint_path(l->files, t), name, t->n_dims,
                  t->n_dims > 0 ? (long long)t->dims[0] : 0LL, n);
        l->rc = ERR_INVALID;
        return NULL;
    }
    list(l, t);
    return l->rc == ERR_OK ? t : NULL;
}

static void check_type(struct loader *l, const struct tensor *t, enum device_type *type)
{
    if (type_of(t, type) == ERR_OK)
        return;
    log_error("model: %s: tensor %s has type %.20s; BF16, F16 and F32 are read, and for matrices "
              "the format of quantization_config",
              checkpoint_path(l->files, t), t->name, t->dtype);
    l->rc = ERR_UNSUPPORTED;
}

/* Fill a vector, or a part of it, with a slice of a tensor; dst NULL: this rank has none of it. */
static void fill_vector(struct loader *l, void *dst, size_t at, const char *pattern,
                        const char *ending, const struct slice *s)
{
    char name[400];
    enum device_type type = DEVICE_F32;
    const struct tensor *t;

    if (l->rc != ERR_OK)
        return;
    name_of(l, name, sizeof name, pattern, ending);
    if ((t = find_vector(l, name, s->n_blocks * s->rows)) == NULL)
        return;
    check_type(l, t, &type);
    if (l->rc == ERR_OK && dst != NULL)
        list_target(
            l, l->n_listed - 1,
            &(struct target){.use = BYTES_FILLED, .type = type, .slice = *s, .dst = dst, .at = at});
}

/* --- formats ---------------------------------------------------------------------------- */

/* The tensor beside a weight, by its ending; NULL when there is none. */
static const struct tensor *beside(struct loader *l, const char *pattern, const char *ending)
{
    char stem[400], name[440];
    const struct tensor *t;

    if (ending == NULL)
        return NULL;
    name_of(l, stem, sizeof stem, pattern, "");
    (void)snprintf(name, sizeof name, "%s.%s", stem, ending);
    t = checkpoint_find(l->files, name);
    if (t != NULL)
        list(l, t);
    return l->rc == ERR_OK ? t : NULL;
}

/* List the tensors of a part, in the digest's order. */
static void list_part(struct loader *l, struct part *p)
{
    const struct tensor *const more[] = {p->q.scales.t, p->q.zeros.t, p->q.global.t};

    list(l, p->q.data);
    p->item = l->n_listed - 1;
    for (int i = 0; i < 3 && l->rc == ERR_OK; i++) {
        if (more[i] != NULL)
            list(l, more[i]);
    }
}

static void find_part(struct loader *l, struct part *p)
{
    int rows = p->slice.n_blocks * p->slice.rows;
    char stem[400], why[QUANT_WHY_CAP];

    if (l->rc != ERR_OK)
        return;
    name_of(l, stem, sizeof stem, p->pattern, "");
    l->rc = quant_find(&p->q, l->files, &l->c->quant, stem, rows, p->slice.cols, why, sizeof why);
    if (l->rc != ERR_OK) {
        log_error("model: %s", why);
        return;
    }
    list_part(l, p);
    if (p->q.kind == NULL)
        check_type(l, p->q.data, &p->type);
}

/* Whether the parts can stand as they are in one matrix. */
static bool fit_together(const struct part *parts, int n_parts)
{
    const struct quant_part *first = &parts[0].q;

    for (int i = 0; i < n_parts; i++) {
        const struct quant_part *q = &parts[i].q;

        if (q->kind == NULL || q->kind != first->kind ||
            !k_format_is_like(&q->format, &first->format))
            return false;
        if (q->format.has_global && n_parts > 1)
            return false; /* each part has its own */
        if (i + 1 < n_parts && slice_rows(&parts[i].slice) % q->format.group_rows != 0)
            return false; /* a group would reach over the seam */
        if (slice_cuts(&parts[i].slice, &q->format))
            return false;
    }
    return true;
}

/* The format that the checkpoint, or the setting, has for a matrix; that of a part when not all
 * have it, which has_all says. */
static struct k_format wanted_format(const struct loader *l, const struct part *parts, int n_parts,
                                     enum use use, bool *has_all)
{
    *has_all = true;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].q.kind != NULL) {
            *has_all = fit_together(parts, n_parts);
            return parts[i].q.format;
        }
    }
    if (l->files == NULL && use == USE_LAYER && l->c->quant.kind != NULL)
        return l->c->quant.format;
    return rounded(l, use);
}

static void count_converted(struct loader *l, const struct k_matrix *m, const struct k_format *f)
{
    struct converted *c = &l->converted;

    if (c->n == 0)
        quant_text(c->text, sizeof c->text, f);
    c->n += l->rank == 0;
    c->as_they_are += (size_t)m->n_out * k_format_row_bytes(f, m->n_in) +
                      k_format_n_scales(f, m->n_out, m->n_in) * sizeof(float);
    c->bytes += (size_t)m->n_out * (size_t)m->n_in * l->d->elem_bytes;
}

/* The format of a matrix on the device. */
static void choose_format(struct loader *l, struct k_matrix *m, const struct part *parts,
                          int n_parts, enum use use)
{
    bool has_all;
    const struct k_format wanted = wanted_format(l, parts, n_parts, use, &has_all);

    m->format = wanted;
    if (has_all && l->d->ops->takes(l->d, m))
        return;
    m->format = plain;
    count_converted(l, m, &wanted);
}

static size_t n_scales_of(const struct k_matrix *m)
{
    return k_format_n_scales(&m->format, m->n_out, m->n_in);
}

/* Put a part's scales where rows from `row` on of a matrix have theirs. */
static void place_scales(const struct k_matrix *m, float *scales, int row, const struct part *p)
{
    size_t cols = (size_t)k_format_scale_cols(&m->format, m->n_in);
    int high = m->format.group_rows;
    int wide = k_format_has_groups(&m->format) ? m->format.group_cols : m->n_in;

    for (int r = 0; r < slice_rows(&p->slice); r += high) {
        for (int c = 0; c < m->n_in; c += wide)
            scales[(size_t)((row + r) / high) * cols + (size_t)(c / wide)] =
                quant_scale(&p->q.scales, slice_row(&p->slice, r), p->slice.col + c);
    }
}

/* The largest of the parts' input scales, on the device; NULL when one has none. */
static const float *input_scale(struct loader *l, const struct part *parts, int n_parts)
{
    float largest = 0.0f, *at;

    for (int i = 0; i < n_parts; i++) {
        const struct tensor *t = beside(l, parts[i].pattern, parts[i].q.kind->x_scale);
        float scale;

        if (t == NULL || quant_single(&scale, t) != ERR_OK)
            return NULL;
        largest = scale > largest ? scale : largest;
    }
    at = allocate(l, sizeof *at);
    if (l->rc == ERR_OK)
        l->rc = l->d->ops->upload(l->d, at, &largest, sizeof largest);
    return largest > 0.0f ? at : NULL;
}

/* The scales of a matrix in the format of its parts. */
static void fill_scales(struct loader *l, struct k_matrix *m, float *dev_scales,
                        const struct part *parts, int n_parts)
{
    size_t n_scales = n_scales_of(m);
    float *scales = mem_zalloc_array(n_scales, sizeof *scales);
    int row = 0;

    must(!m->format.has_zeros && !m->format.has_global); /* no device takes them yet */
    if (scales == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (int i = 0; i < n_parts; row += slice_rows(&parts[i++].slice))
        place_scales(m, scales, row, &parts[i]);
    l->rc = l->d->ops->upload(l->d, dev_scales, scales, n_scales * sizeof *scales);
    mem_free(scales);
    if (!k_format_has_groups(&m->format) && l->rc == ERR_OK)
        m->x_scale = input_scale(l, parts, n_parts);
    m->format.has_x_scale = m->x_scale != NULL;
}

/* What becomes of the parts of a matrix; its scales are those of the first row. */
static void list_parts(struct loader *l, const struct k_matrix *m, float *dev_scales,
                       const struct part *parts, int n_parts, enum use use)
{
    const struct k_format to_round = rounded(l, use);
    bool is_plain = k_format_is_plain(&m->format), rounds = !k_format_is_plain(&to_round);
    size_t row = 0;

    for (int i = 0; i < n_parts; row += (size_t)slice_rows(&parts[i++].slice)) {
        struct target to = {.use = BYTES_FILLED,
                            .type = parts[i].type,
                            .part = parts[i].q,
                            .slice = parts[i].slice,
                            .dst = m->data,
                            .at = row * (size_t)m->n_in};

        if (!is_plain && to.part.kind != NULL) {
            to.use = BYTES_COPIED;
            to.at = row * k_format_row_bytes(&m->format, m->n_in);
        } else if (!is_plain) {
            to.use = BYTES_ROUNDED;
            to.scales = dev_scales + row;
        } else if (to.part.kind != NULL || rounds) {
            to.use = BYTES_CONVERTED;
        }
        list_target(l, parts[i].item, &to);
    }
}

/* Rows first .. first + n - 1 of a tensor as float32: a rank's slice of them. */
static int store_floats(struct loader *l, int rank, const struct target *to, const float *floats,
                        int first, int n)
{
    struct device *d = l->ranks[rank].device;
    const struct slice *s = &to->slice;
    struct slice_run run = slice_next(s, first, first + n);
    int rc = ERR_OK;

    for (; run.n > 0 && rc == ERR_OK; run = slice_next(s, run.from + run.n, first + n)) {
        int step = s->n_cols < s->cols ? 1 : run.n;

        for (int i = 0; i < run.n && rc == ERR_OK; i += step)
            rc = d->ops->weights(d, to->dst, to->at + (size_t)(run.to + i) * (size_t)s->n_cols,
                                 floats + (size_t)(run.from + i - first) * (size_t)s->cols + s->col,
                                 DEVICE_F32, (size_t)step * (size_t)s->n_cols);
    }
    return rc;
}

/* n_rows rows from `first` on, of a tensor in a format or one that is rounded as if it were, to
 * numbers of the device's type. */
static int convert_rows(struct loader *l, size_t idx, unsigned char *bytes, int first, int n_rows)
{
    const struct target *to = target_of(l, idx, 0); /* of all ranks but for where it goes */
    size_t cols = (size_t)to->slice.cols;
    int step = (int)(FLOATS / cols) + 1, rc = ERR_OK;
    float *floats = mem_zalloc_array((size_t)step * cols, sizeof *floats);
    struct tensor part = *l->items[idx].t;

    if (floats == NULL)
        return ERR_NO_MEMORY;
    for (int r = 0; r < n_rows && rc == ERR_OK; r += step, bytes += (size_t)step * row_bytes(to)) {
        int some = n_rows - r < step ? n_rows - r : step;

        part.data = bytes;
        rc = to->part.kind != NULL ? quant_dequantise(floats, &to->part, bytes, first + r, some)
                                   : quant_round(floats, &part, 0, some, (int)cols);
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
            if (target_of(l, idx, i)->use == BYTES_CONVERTED)
                rc = store_floats(l, i, target_of(l, idx, i), floats, first + r, some);
        }
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(floats);
    return rc;
}

/* n rows of a slice, from row `to_row` of it on: they begin in the pipe with row `row`. */
static int send(struct device *d, const struct target *to, const struct device_pipe *pipe, int row,
                int to_row, int n)
{
    int cols = to->slice.n_cols;
    size_t elems = (size_t)n * (size_t)cols, at = to->at + (size_t)to_row * (size_t)cols;
    struct device_pipe some = *pipe;
    struct k_quantised out;

    some.bytes += (size_t)row * row_bytes(to) + bytes_of(to, to->slice.col);
    switch (to->use) {
    case BYTES_SUMMED:
    case BYTES_CONVERTED: break;
    case BYTES_FILLED: return d->ops->pipe_weights(d, &some, to->dst, at, to->type, elems);
    case BYTES_COPIED:
        return d->ops->pipe_bytes(d, &some,
                                  (char *)to->dst + to->at + (size_t)to_row * bytes_of(to, cols),
                                  (size_t)n * bytes_of(to, cols));
    case BYTES_ROUNDED:
        out = (struct k_quantised){.data = (k_e4m3 *)to->dst + at, .scales = to->scales + to_row};
        return d->ops->pipe_quantise(d, &some, &out, to->type, n, cols);
    }
    return ERR_OK;
}

/* Rows first .. first + n - 1 of a tensor are in the pipe: a rank's slice of them. What several
 * ranks have is sent several times, so with ranks a device must not convert it in the pipe. */
static int send_slice(struct device *d, const struct target *to, const struct device_pipe *pipe,
                      int first, int n)
{
    const struct slice *s = &to->slice;
    struct slice_run run = slice_next(s, first, first + n);
    int rc = ERR_OK;

    for (; run.n > 0 && rc == ERR_OK; run = slice_next(s, run.from + run.n, first + n)) {
        int step = s->n_cols < s->cols ? 1 : run.n;

        for (int i = 0; i < run.n && rc == ERR_OK; i += step)
            rc = send(d, to, pipe, run.from + i - first, run.to + i, step);
    }
    return rc;
}

/* The reader's: bytes from `at` on of an item are in the pipe. */
static int place(void *context, size_t idx, struct device_pipe *pipe, size_t at, size_t bytes)
{
    struct loader *l = context;
    const struct target *to = target_of(l, idx, 0);
    size_t step = l->items[idx].step;
    int rc = ERR_OK;

    if (to->use == BYTES_SUMMED)
        return ERR_OK; /* of other ranks too */
    if (to->part.kind != NULL && to->part.kind->unpack != NULL)
        to->part.kind->unpack(pipe->bytes, bytes);
    if (to->use == BYTES_CONVERTED)
        return convert_rows(l, idx, pipe->bytes, (int)(at / step), (int)(bytes / step));
    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
        to = target_of(l, idx, i);
        if (to->use != BYTES_SUMMED)
            rc = send_slice(l->ranks[i].device, to, pipe, (int)(at / step), (int)(bytes / step));
    }
    return rc;
}

/* The rank's part of the noise that a whole matrix has, plain. */
static int fill_random_slices(struct loader *l, const struct k_matrix *m, const struct part *parts,
                              int n_parts, uint64_t seed)
{
    float *row = mem_zalloc_array((size_t)m->n_in, sizeof *row);
    size_t above = 0, at = 0;
    int rc = row == NULL ? ERR_NO_MEMORY : ERR_OK;

    for (int i = 0; i < n_parts && rc == ERR_OK; i++) {
        const struct slice *s = &parts[i].slice;

        for (int r = 0; r < slice_rows(s) && rc == ERR_OK; r++, at += (size_t)m->n_in) {
            size_t first = (above + (size_t)slice_row(s, r)) * (size_t)s->cols + (size_t)s->col;

            for (int c = 0; c < s->n_cols; c++)
                row[c] = k_noise(seed, first + (size_t)c) * RANDOM_SCALE;
            rc = l->d->ops->weights(l->d, m->data, at, row, DEVICE_F32, (size_t)m->n_in);
        }
        above += (size_t)s->n_blocks * (size_t)s->rows;
    }
    mem_free(row);
    return rc;
}

/* Random elements, and scales that make them as large as others' weights. */
static void fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales,
                        const struct part *parts, int n_parts)
{
    size_t n_scales = n_scales_of(m);
    uint64_t seed = l->seed++;
    float *scales;

    if (l->n_ranks > 1 && n_scales == 0)
        l->rc = fill_random_slices(l, m, parts, n_parts, seed);
    else
        l->rc = l->d->ops->fill_random(l->d, m, n_scales > 0 ? RANDOM_CODES : RANDOM_SCALE, seed);
    if (n_scales == 0 || l->rc != ERR_OK)
        return;
    if ((scales = mem_zalloc_array(n_scales, sizeof *scales)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < n_scales; i++)
        scales[i] = RANDOM_SCALE / RANDOM_CODES;
    l->rc = l->d->ops->upload(l->d, dev_scales, scales, n_scales * sizeof *scales);
    mem_free(scales);
}

/* --- matrices and vectors -------------------------------------------------------------- */

/* The rank's part of a matrix that is made of up to three tensors, one below the other. */
static struct k_matrix matrix(struct loader *l, const struct parts *all, enum use use)
{
    struct part parts[PARTS_MAX] = {{.item = 0}};
    struct k_matrix m = {.n_in = all->own_cols};
    float *scales = NULL;
    bool is_plain;

    for (int i = 0; i < all->n; i++) {
        parts[i] = (struct part){.pattern = all->patterns[i], .slice = slice_of(l, all, i)};
        m.n_out += all->own_rows[i];
        if (l->files != NULL)
            find_part(l, &parts[i]);
    }
    if (l->rc != ERR_OK)
        return m;
    choose_format(l, &m, parts, all->n, use);
    is_plain = k_format_is_plain(&m.format);
    m.data = allocate(l, (size_t)m.n_out * (is_plain ? (size_t)m.n_in * l->d->elem_bytes
                                                     : k_format_row_bytes(&m.format, m.n_in)));
    if (!is_plain)
        m.scales = scales = allocate(l, n_scales_of(&m) * sizeof *scales);
    l->w->reads_codes = l->w->reads_codes || k_format_reads_codes(&m.format);
    if (l->rc != ERR_OK)
        return m;
    if (l->files == NULL)
        fill_random(l, &m, scales, parts, all->n);
    else
        list_parts(l, &m, scales, parts, all->n, use);
    if (l->files != NULL && !is_plain && parts[0].q.kind != NULL)
        fill_scales(l, &m, scales, parts, all->n);
    return m;
}

/* The bias of such a matrix; NULL when the model has none, or where it is rank 0's to add. Random
 * models have zeros. */
static void *bias(struct loader *l, bool has, const struct parts *all, enum plan_split split)
{
    bool is_own = l->rank == 0 || split != SPLIT_COLUMNS;
    size_t n = 0, at = 0;
    void *dst = NULL;

    if (!has)
        return NULL;
    for (int i = 0; i < all->n; i++)
        n += (size_t)all->own_rows[i];
    if (is_own)
        dst = allocate(l, n * l->d->elem_bytes);
    for (int i = 0; i < all->n && l->files != NULL; i++) {
        struct slice s = slice_of(l, all, i);

        s.cols = s.n_cols = 1;
        s.col = 0;
        fill_vector(l, dst, at, all->patterns[i], ".bias", &s);
        at += (size_t)all->own_rows[i];
    }
    return dst;
}

/* A norm's weights; ones in a random model. */
static void *norm(struct loader *l, const char *pattern, int dim)
{
    const struct slice all = {.n_blocks = 1, .rows = dim, .n_rows = dim, .cols = 1, .n_cols = 1};
    void *dst = allocate(l, (size_t)dim * l->d->elem_bytes);
    float ones[256];

    if (l->files != NULL) {
        fill_vector(l, dst, 0, pattern, ".weight", &all);
        return dst;
    }
    for (int i = 0; i < 256; i++)
        ones[i] = 1.0f;
    for (int i = 0; i < dim && l->rc == ERR_OK; i += 256)
        l->rc = l->d->ops->weights(l->d, dst, (size_t)i, ones, DEVICE_F32,
                                   (size_t)(dim - i < 256 ? dim - i : 256));
    return dst;
}

/* The scale of a layer's keys or values in e4m3 pages: whichever of its names is there. */
static float kv_scale(struct loader *l, const char *own, const char *pattern, const char *ending)
{
    const struct tensor *t = beside(l, own, ending);
    float scale = 1.0f;

    if (t == NULL)
        t = beside(l, pattern, ending);
    if (t == NULL)
        t = beside(l, pattern, "output_scale");
    if (t != NULL && quant_single(&scale, t) != ERR_OK) {
        log_error("model: %s: tensor %s is not one number of F32, BF16, F16 or F8_E8M0",
                  checkpoint_path(l->files, t), t->name);
        l->rc = ERR_UNSUPPORTED;
    }
    return scale;
}

static void load_attention(struct loader *l, const struct layer_plan *whole,
                           const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const struct attn_plan *a = &whole->attn, *own = &part->attn;
    const char *names_in[] = {names->q, names->k, names->v};
    int dim = l->whole->dim, kv = a->n_kv_heads * a->head_dim,
        own_kv = own->n_kv_heads * a->head_dim;
    const int rows[] = {plan_mixer_out(whole), kv, kv},
              own_rows[] = {plan_mixer_out(part), own_kv, own_kv};
    const struct parts qkv = {names_in, rows, own_rows, 3, 1, dim, dim};
    const struct parts o = {&names->o, &dim, &dim, 1, 1, rows[0], own_rows[0]};

    w->k_scale = w->v_scale = 1.0f;
    if (l->files != NULL && l->from->kv_scales) {
        w->k_scale = kv_scale(l, names->attn, names->k, "k_scale");
        w->v_scale = kv_scale(l, names->attn, names->v, "v_scale");
    }
    w->norm_mixer = norm(l, names->norm_attn, dim);
    w->mixer_in = matrix(l, &qkv, USE_LAYER);
    w->mixer_in_bias = bias(l, a->qkv_bias, &qkv, part->splits.mixer_in);
    if (a->qk_norm) {
        w->q_norm = norm(l, names->q_norm, a->head_dim);
        w->k_norm = norm(l, names->k_norm, a->head_dim);
    }
    w->mixer_out = matrix(l, &o, USE_LAYER);
    w->mixer_out_bias = bias(l, a->o_bias, &o, part->splits.mixer_out);
}

/* Value and gate are halves of one tensor: a rank has the same channels of both. */
static void load_recurrent(struct loader *l, const struct layer_plan *whole,
                           const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    int dim = l->whole->dim, rows = plan_mixer_in(whole), own_rows = plan_mixer_in(part);
    const struct parts in = {&names->mixer_in, &rows, &own_rows, 1, 2, dim, dim};
    const struct parts out = {&names->mixer_out,   &dim, &dim, 1, 1, plan_mixer_out(whole),
                              plan_mixer_out(part)};

    w->norm_mixer = norm(l, names->norm_attn, dim);
    w->mixer_in = matrix(l, &in, USE_LAYER);
    w->mixer_out = matrix(l, &out, USE_LAYER);
}

/* A plain FFN has no gate. */
static void load_ffn(struct loader *l, const struct layer_plan *whole,
                     const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const char *names_in[] = {names->gate, names->up};
    int ff = whole->mlp.ff_dim, own_ff = part->mlp.ff_dim;
    const int rows[] = {ff, ff}, own_rows[] = {own_ff, own_ff};
    int dim = l->whole->dim, first = whole->ffn == FFN_PLAIN ? 1 : 0;
    const struct parts in = {names_in + first, rows, own_rows, 2 - first, 1, dim, dim};
    const struct parts down = {&names->down, &dim, &dim, 1, 1, ff, own_ff};

    w->norm_ffn = norm(l, names->norm_mlp, dim);
    w->ffn_in = matrix(l, &in, USE_LAYER);
    w->ffn_in_bias = bias(l, whole->mlp.bias, &in, part->splits.ffn_in);
    w->down = matrix(l, &down, USE_LAYER);
    w->down_bias = bias(l, whole->mlp.bias, &down, part->splits.down);
}

static void load_layer(struct loader *l, int layer)
{
    const struct layer_plan *whole = &l->whole->layers[layer], *part = &l->part->layers[layer];
    struct layer_weights *w = &l->w->layers[layer];

    switch (whole->mixer) {
    case MIXER_ATTENTION: load_attention(l, whole, part, w); break;
    case MIXER_RECURRENT: load_recurrent(l, whole, part, w); break;
    }
    load_ffn(l, whole, part, w);
}

/* Allocate everything of a rank, and list what is to be read. */
static int lay_out(struct loader *l, int rank)
{
    const struct config *c = l->c;
    const struct arch_names *names = c->arch->names;
    const char *head = c->tied ? names->embed : names->head;
    const struct parts table = {&names->embed, &c->n_vocab, &c->n_vocab, 1, 1, c->dim, c->dim};
    const struct parts out = {&head, &c->n_vocab, &c->n_vocab, 1, 1, c->dim, c->dim};

    l->rank = rank;
    l->w = l->ranks[rank].weights;
    l->d = l->ranks[rank].device;
    l->n_listed = 0;
    l->seed = 1;
    memset(l->w, 0, sizeof *l->w);
    l->w->layers = mem_zalloc_array((size_t)c->n_layers, sizeof *l->w->layers);
    if (l->w->layers == NULL)
        return ERR_NO_MEMORY;
    l->layer = -1;
    l->w->embed = matrix(l, &table, USE_TABLE);
    for (l->layer = 0; l->layer < c->n_layers && l->rc == ERR_OK; l->layer++)
        load_layer(l, l->layer);
    l->w->norm = norm(l, names->norm, c->dim);
    if (c->tied && k_format_is_plain(&l->from->head))
        l->w->head = l->w->embed;
    else if (rank == 0)
        l->w->head = matrix(l, &out, USE_HEAD);
    return l->rc;
}

static int read_all(struct loader *l)
{
    const struct reader r = {.files = l->files,
                             .device = l->ranks[0].device,
                             .items = l->items,
                             .n_items = l->n_items,
                             .place = place,
                             .context = l};
    int rc;

    (void)pthread_mutex_init(&l->turn, NULL); /* default attributes: cannot fail on Linux */
    rc = reader_run(&r);
    (void)pthread_mutex_destroy(&l->turn);
    if (rc == ERR_OK)
        digest(l);
    return rc;
}

static void log_converted(const struct converted *c, const struct device *d)
{
    log_info("model: %d matrices are %s, which %s does not multiply with; they are held as %s: "
             "%.1f MiB in place of %.1f",
             c->n, c->text, d->name, d->elem_bytes == sizeof(float) ? "float32" : "bf16",
             (double)c->bytes / 0x1p20, (double)c->as_they_are / 0x1p20);
}

int weights_load(const struct weights_rank *ranks, const struct config *c, const struct plan *whole,
                 const struct plan *part, const struct weights_source *from)
{
    struct loader l = {.ranks = ranks,
                       .n_ranks = part->n_ranks,
                       .c = c,
                       .whole = whole,
                       .part = part,
                       .from = from};
    int rc = from->dir == NULL ? ERR_OK : checkpoint_open(&l.files, from->dir);

    if (rc != ERR_OK)
        return rc;
    for (int i = 0; i < l.n_ranks && rc == ERR_OK; i++)
        rc = lay_out(&l, i);
    log_debug("model: weights are laid out");
    if (rc == ERR_OK && from->dir != NULL)
        rc = read_all(&l);
    if (rc == ERR_OK && l.converted.n > 0)
        log_converted(&l.converted, ranks[0].device);
    if (from->dir == NULL)
        ranks[0].weights->digest = hash_sha256("dummy", 5, NULL, 0);
    mem_free(l.targets);
    mem_free(l.items);
    checkpoint_close(l.files);
    return rc;
}

void weights_fini(struct weights *w)
{
    mem_free(w->layers);
    w->layers = NULL;
}
