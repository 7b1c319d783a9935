/* SPDX-License-Identifier: Apache-2.0
 *
 * First everything is looked up, checked and allocated, in the order of the layers: that gives a
 * list of tensors, each with where it is to go. Then the reader (reader.h) brings the bytes. With
 * several ranks the looking up is done for each, and finds the same list: a tensor then has a
 * place, and a slice that belongs there, for every rank.
 *
 * Whether a tensor is in a format of its own is seen by its type, not by lists of module names in
 * config.json; a matrix has that format when all its tensors do, with scales that fit together, and
 * the device takes it. Otherwise it is converted while it is read.
 *
 * The digest chains, over the list, SHA-256 of (digest so far, name, type, XXH3 of the bytes):
 * cheap enough to be taken on every start. Its value names stores on disk, so the list keeps its
 * order. */
#include "model/loader.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "kernels/rng.h"
#include "model/quant.h"
#include "model/safetensors.h"

#define RANDOM_SCALE 0.02f             /* of random matrices: what models are initialised with */
#define RANDOM_CODES 64.0f             /* the same before a scale */
#define FLOATS       ((size_t)1 << 20) /* of a tensor that the host converts at a time */

/* What becomes of a tensor's bytes. */
enum use_of_bytes {
    BYTES_SUMMED,    /* nothing: the host has looked at them, if they are wanted */
    BYTES_FILLED,    /* numbers of a file's type, to the device's */
    BYTES_COPIED,    /* elements of a format that the device takes */
    BYTES_ROUNDED,   /* numbers of a file's type, rounded to a format on the device */
    BYTES_CONVERTED, /* numbers of the device's type that mean, or are rounded to, a format */
    BYTES_RAISED,    /* numbers of a file's type, plus 1, to the device's */
    BYTES_TURNED,    /* numbers of a tensor that is the transpose of the matrix */
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
    float *turned; /* BYTES_TURNED, rank 0's: the matrix of all ranks while its tensor is read */
};

static const struct k_format plain = {.elem = K_BF16};

/* The format that a plain matrix is rounded to. */
static struct k_format loader_rounded_format(const struct loader *l, enum loader_use use)
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
    bool is_turned;        /* the tensor is [columns][rows] */
};

struct loader_tensors loader_tensor(const char *pattern, struct slice_shape shape)
{
    return (struct loader_tensors){.patterns = {pattern}, .shapes = {shape}, .n = 1};
}

void loader_add(struct loader_tensors *all, const char *pattern, struct slice_shape shape)
{
    must(all->n < LOADER_TENSORS_MAX);
    all->patterns[all->n] = pattern;
    all->shapes[all->n++] = shape;
}

/* --- the list --------------------------------------------------------------------------- */

static void *loader_allocate(struct loader *l, size_t bytes)
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

static int loader_type_of(const struct tensor *t, enum device_type *out)
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

static struct target *loader_target_of(const struct loader *l, size_t item, int rank)
{
    return &l->targets[item * (size_t)l->n_ranks + (size_t)rank];
}

static void loader_grow_list(struct loader *l)
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

/* Put a tensor on the list, to be summed alone; loader_list_target() says otherwise. Rank 0 makes the
 * list, the others come by in the same order. */
static void loader_list_tensor(struct loader *l, const struct tensor *t)
{
    if (l->rank > 0) {
        must(l->n_listed < l->n_items && l->items[l->n_listed].t == t);
        l->n_listed++;
        return;
    }
    if (l->n_items == l->items_cap)
        loader_grow_list(l);
    if (l->rc != ERR_OK)
        return;
    l->items[l->n_items] = (struct reader_item){.t = t, .step = 1};
    for (int i = 0; i < l->n_ranks; i++)
        *loader_target_of(l, l->n_items, i) = (struct target){.use = BYTES_SUMMED};
    l->n_listed = ++l->n_items;
}

/* Bytes of a number in a file. */
static size_t loader_file_bytes(enum device_type type)
{
    return type == DEVICE_F32 ? 4 : 2;
}

/* Bytes of n elements of a row in a file. */
static size_t loader_elem_bytes(const struct target *to, int n)
{
    return to->part.kind != NULL ? k_format_row_bytes(&to->part.format, n)
                                 : (size_t)n * loader_file_bytes(to->type);
}

static size_t loader_row_bytes(const struct target *to)
{
    return loader_elem_bytes(to, to->slice.cols);
}

/* Where the current rank has its slice of a tensor, whose rows must not be torn. */
static void loader_list_target(struct loader *l, size_t item, const struct target *to)
{
    l->items[item].step = loader_row_bytes(to);
    if (to->use == BYTES_TURNED)
        l->items[item].step = loader_elem_bytes(to, to->slice.rows);
    *loader_target_of(l, item, l->rank) = *to;
}

static void loader_make_digest(struct loader *l)
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

/* Patterns begin with "model." where the checkpoint may have another prefix. */
void loader_name(const struct loader *l, char *out, size_t cap, const char *pattern,
                 const char *ending)
{
    static const char model[] = "model.";
    const char *prefix = "", *percent;
    size_t stem;

    if (l->prefix != NULL && strncmp(pattern, model, sizeof model - 1) == 0) {
        prefix = l->prefix;
        pattern += sizeof model - 1;
    }
    percent = strstr(pattern, "%d");
    stem = strlen(pattern) - strlen(".weight");
    if (percent == NULL)
        (void)snprintf(out, cap, "%s%.*s%s", prefix, (int)stem, pattern, ending);
    else
        (void)snprintf(out, cap, "%s%.*s%d%.*s%s", prefix, (int)(percent - pattern), pattern,
                       l->layer, (int)(stem - (size_t)(percent - pattern) - 2), percent + 2,
                       ending);
}

/* The tensor of a name with n numbers. */
static const struct tensor *loader_find_vector(struct loader *l, const char *name, int n)
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
    loader_list_tensor(l, t);
    return l->rc == ERR_OK ? t : NULL;
}

static void loader_check_type(struct loader *l, const struct tensor *t, enum device_type *type)
{
    if (loader_type_of(t, type) == ERR_OK)
        return;
    log_error("model: %s: tensor %s has type %.20s; BF16, F16 and F32 are read, and for matrices "
              "the format of quantization_config",
              checkpoint_path(l->files, t), t->name, t->dtype);
    l->rc = ERR_UNSUPPORTED;
}

/* Fill a vector, or a part of it, with a slice of the tensor of this name; dst NULL: this rank has
 * none of it. */
static void loader_fill_vector(struct loader *l, void *dst, size_t at, const char *name,
                               const struct slice *s, bool plus_one)
{
    struct target to = {.use = plus_one ? BYTES_RAISED : BYTES_FILLED,
                        .type = DEVICE_F32,
                        .slice = *s,
                        .dst = dst,
                        .at = at};
    const struct tensor *t;

    if (l->rc != ERR_OK || (t = loader_find_vector(l, name, s->rows)) == NULL)
        return;
    loader_check_type(l, t, &to.type);
    if (l->rc == ERR_OK && dst != NULL)
        loader_list_target(l, l->n_listed - 1, &to);
}

/* --- formats ---------------------------------------------------------------------------- */

/* The tensor beside a weight, by its ending; NULL when there is none. */
static const struct tensor *loader_tensor_beside(struct loader *l, const char *pattern,
                                                 const char *ending)
{
    char stem[400], name[440];
    const struct tensor *t;

    if (ending == NULL)
        return NULL;
    loader_name(l, stem, sizeof stem, pattern, "");
    (void)snprintf(name, sizeof name, "%s.%s", stem, ending);
    t = checkpoint_find(l->files, name);
    if (t != NULL)
        loader_list_tensor(l, t);
    return l->rc == ERR_OK ? t : NULL;
}

/* List the tensors of a part, in the digest's order. */
static void loader_list_part(struct loader *l, struct part *p)
{
    const struct tensor *const more[] = {p->q.scales.t, p->q.zeros.t, p->q.global.t};

    loader_list_tensor(l, p->q.data);
    p->item = l->n_listed - 1;
    for (int i = 0; i < 3 && l->rc == ERR_OK; i++) {
        if (more[i] != NULL)
            loader_list_tensor(l, more[i]);
    }
}

static void loader_find_part(struct loader *l, struct part *p)
{
    int rows = p->is_turned ? p->slice.cols : p->slice.rows;
    int cols = p->is_turned ? p->slice.rows : p->slice.cols;
    char stem[400], why[QUANT_WHY_CAP];

    if (l->rc != ERR_OK)
        return;
    loader_name(l, stem, sizeof stem, p->pattern, "");
    l->rc = quant_find(&p->q, l->files, &l->c->quant, stem, rows, cols, why, sizeof why);
    if (l->rc != ERR_OK) {
        log_error("model: %s", why);
        return;
    }
    loader_list_part(l, p);
    if (p->q.kind == NULL)
        loader_check_type(l, p->q.data, &p->type);
}

/* Whether the parts can stand as they are in one matrix. */
static bool loader_parts_fit(const struct part *parts, int n_parts)
{
    const struct quant_part *first = &parts[0].q;

    for (int i = 0; i < n_parts; i++) {
        const struct quant_part *q = &parts[i].q;

        if (q->kind == NULL || q->kind != first->kind ||
            !k_format_is_like(&q->format, &first->format))
            return false;
        if (q->format.has_global && n_parts > 1)
            return false; /* each part has its own */
        if (i + 1 < n_parts && q->format.group_rows > 0 &&
            parts[i].slice.n_rows % q->format.group_rows != 0)
            return false; /* a group would reach over the seam */
        if (slice_cuts(&parts[i].slice, &q->format))
            return false;
    }
    return true;
}

/* The format that the checkpoint, or the setting, has for a matrix; that of a part when not all
 * have it, which has_all says. */
static struct k_format loader_wanted_format(const struct loader *l, const struct part *parts,
                                            int n_parts, enum loader_use use, bool *has_all)
{
    *has_all = true;
    if (parts[0].is_turned)
        return plain; /* rounding works on rows of the file */
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].q.kind != NULL) {
            *has_all = loader_parts_fit(parts, n_parts);
            return parts[i].q.format;
        }
    }
    if (l->files == NULL && use == USE_LAYER && l->c->quant.kind != NULL)
        return l->c->quant.format;
    return loader_rounded_format(l, use);
}

static void loader_count_converted(struct loader *l, const struct k_matrix *m,
                                   const struct k_format *f)
{
    struct loader_converted *c = &l->converted;

    if (c->n == 0)
        quant_text(c->text, sizeof c->text, f);
    c->n += l->rank == 0;
    c->as_they_are += (size_t)m->n_out * k_format_row_bytes(f, m->n_in) +
                      k_format_n_scales(f, m->n_out, m->n_in) * sizeof(float);
    c->bytes += (size_t)m->n_out * (size_t)m->n_in * l->d->elem_bytes;
}

/* The format of a matrix on the device. */
static void loader_choose_format(struct loader *l, struct k_matrix *m, const struct part *parts,
                                 int n_parts, enum loader_use use)
{
    bool has_all;
    const struct k_format wanted = loader_wanted_format(l, parts, n_parts, use, &has_all);

    m->format = wanted;
    if (has_all && l->d->ops->takes(l->d, m))
        return;
    m->format = plain;
    loader_count_converted(l, m, &wanted);
}

static size_t loader_n_scales(const struct k_matrix *m)
{
    return k_format_n_scales(&m->format, m->n_out, m->n_in);
}

/* Put a part's scales where rows from `row` on of a matrix have theirs. */
static void loader_place_scales(const struct k_matrix *m, float *scales, int row,
                                const struct part *p)
{
    size_t cols = (size_t)k_format_scale_cols(&m->format, m->n_in);
    int high = m->format.group_rows;
    int wide = k_format_has_groups(&m->format) ? m->format.group_cols : m->n_in;

    for (int r = 0; r < p->slice.n_rows; r += high) {
        for (int c = 0; c < m->n_in; c += wide)
            scales[(size_t)((row + r) / high) * cols + (size_t)(c / wide)] =
                quant_scale(&p->q.scales, slice_row(&p->slice, r), p->slice.col + c);
    }
}

/* The largest of the parts' input scales, on the device; NULL when one has none. */
static const float *loader_input_scale(struct loader *l, const struct part *parts, int n_parts)
{
    float largest = 0.0f, *at;

    for (int i = 0; i < n_parts; i++) {
        const struct tensor *t =
            loader_tensor_beside(l, parts[i].pattern, parts[i].q.kind->x_scale);
        float scale;

        if (t == NULL || quant_single(&scale, t) != ERR_OK)
            return NULL;
        largest = scale > largest ? scale : largest;
    }
    at = loader_allocate(l, sizeof *at);
    if (l->rc == ERR_OK)
        l->rc = l->d->ops->upload(l->d, at, &largest, sizeof largest);
    return largest > 0.0f ? at : NULL;
}

/* The scales of a matrix in the format of its parts. */
static void loader_fill_scales(struct loader *l, struct k_matrix *m, float *dev_scales,
                               const struct part *parts, int n_parts)
{
    size_t n_scales = loader_n_scales(m);
    float *scales = mem_zalloc_array(n_scales, sizeof *scales);
    int row = 0;

    must(!m->format.has_zeros && !m->format.has_global); /* no device takes them yet */
    if (scales == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (int i = 0; i < n_parts; row += parts[i++].slice.n_rows)
        loader_place_scales(m, scales, row, &parts[i]);
    l->rc = l->d->ops->upload(l->d, dev_scales, scales, n_scales * sizeof *scales);
    mem_free(scales);
    if (!k_format_has_groups(&m->format) && l->rc == ERR_OK)
        m->x_scale = loader_input_scale(l, parts, n_parts);
    m->format.has_x_scale = m->x_scale != NULL;
}

/* What becomes of the parts of a matrix; its scales are those of the first row. */
static void loader_list_parts(struct loader *l, const struct k_matrix *m, float *dev_scales,
                              const struct part *parts, int n_parts, enum loader_use use)
{
    const struct k_format to_round = loader_rounded_format(l, use);
    bool is_plain = k_format_is_plain(&m->format), rounds = !k_format_is_plain(&to_round);
    size_t row = 0;

    for (int i = 0; i < n_parts; row += (size_t)parts[i++].slice.n_rows) {
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
        } else if (parts[i].is_turned) {
            to.use = BYTES_TURNED;
        } else if (to.part.kind != NULL || rounds) {
            to.use = BYTES_CONVERTED;
        }
        loader_list_target(l, parts[i].item, &to);
    }
}

/* Rows first .. first + n - 1 of a tensor as float32: a rank's slice of them. */
static int loader_store_floats(struct loader *l, int rank, const struct target *to,
                               const float *floats, int first, int n)
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

/* The host computes the numbers. */
static bool loader_is_converted(const struct target *to)
{
    return to->use == BYTES_CONVERTED || to->use == BYTES_RAISED;
}

static void loader_raise_numbers(float *out, const struct tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = quant_number(t, i) + 1.0f;
}

/* n_rows rows from `first` on, of a tensor in a format or one that is rounded as if it were, to
 * numbers of the device's type. */
static int loader_convert_rows(struct loader *l, size_t idx, unsigned char *bytes, int first,
                               int n_rows)
{
    const struct target *to = loader_target_of(l, idx, 0); /* of all ranks but for where it goes */
    size_t cols = (size_t)to->slice.cols;
    int step = (int)(FLOATS / cols) + 1, rc = ERR_OK;
    float *floats = mem_zalloc_array((size_t)step * cols, sizeof *floats);
    struct tensor part = *l->items[idx].t;

    if (floats == NULL)
        return ERR_NO_MEMORY;
    for (int r = 0; r < n_rows && rc == ERR_OK;
         r += step, bytes += (size_t)step * loader_row_bytes(to)) {
        int some = n_rows - r < step ? n_rows - r : step;

        part.data = bytes;
        if (to->use == BYTES_RAISED)
            loader_raise_numbers(floats, &part, (size_t)some * cols);
        else
            rc = to->part.kind != NULL ? quant_dequantise(floats, &to->part, bytes, first + r, some)
                                       : quant_round(floats, &part, 0, some, (int)cols);
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
            if (loader_is_converted(loader_target_of(l, idx, i)))
                rc =
                    loader_store_floats(l, i, loader_target_of(l, idx, i), floats, first + r, some);
        }
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(floats);
    return rc;
}

/* n_rows rows from `first` on of a tensor that is the transpose of its matrix: they are columns of
 * all rows of that, so the matrix is gathered on the host and stored with the tensor's last row.
 * One thread reads a tensor, in the order of its rows. */
static int loader_turn_rows(struct loader *l, size_t idx, unsigned char *bytes, int first,
                            int n_rows)
{
    struct target *to = loader_target_of(l, idx, 0);
    struct tensor part = *l->items[idx].t;
    int rows = to->slice.rows, cols = to->slice.cols, rc = ERR_OK;

    if (to->turned == NULL &&
        (to->turned = mem_zalloc_array((size_t)rows * (size_t)cols, sizeof(float))) == NULL)
        return ERR_NO_MEMORY;
    part.data = bytes;
    for (int c = 0; c < n_rows; c++) {
        for (int r = 0; r < rows; r++)
            to->turned[(size_t)r * (size_t)cols + (size_t)(first + c)] =
                quant_number(&part, (size_t)c * (size_t)rows + (size_t)r);
    }
    if (first + n_rows < cols)
        return ERR_OK;
    (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++)
        rc = loader_store_floats(l, i, loader_target_of(l, idx, i), to->turned, 0, rows);
    (void)pthread_mutex_unlock(&l->turn);
    mem_free(to->turned);
    to->turned = NULL;
    return rc;
}

/* n rows of a slice, from row `to_row` of it on: they begin in the pipe with row `row`. */
static int loader_send_rows(struct device *d, const struct target *to,
                            const struct device_pipe *pipe, int row, int to_row, int n)
{
    int cols = to->slice.n_cols;
    size_t elems = (size_t)n * (size_t)cols, at = to->at + (size_t)to_row * (size_t)cols;
    struct device_pipe some = *pipe;
    struct k_quantised out;

    some.bytes += (size_t)row * loader_row_bytes(to) + loader_elem_bytes(to, to->slice.col);
    switch (to->use) {
    case BYTES_SUMMED:
    case BYTES_CONVERTED:
    case BYTES_RAISED:
    case BYTES_TURNED: break;
    case BYTES_FILLED: return d->ops->pipe_weights(d, &some, to->dst, at, to->type, elems);
    case BYTES_COPIED:
        return d->ops->pipe_bytes(
            d, &some, (char *)to->dst + to->at + (size_t)to_row * loader_elem_bytes(to, cols),
            (size_t)n * loader_elem_bytes(to, cols));
    case BYTES_ROUNDED:
        out = (struct k_quantised){.data = (k_e4m3 *)to->dst + at, .scales = to->scales + to_row};
        return d->ops->pipe_quantise(d, &some, &out, to->type, n, cols);
    }
    return ERR_OK;
}

/* Rows first .. first + n - 1 of a tensor are in the pipe: a rank's slice of them. What several
 * ranks have is sent several times, so with ranks a device must not convert it in the pipe. */
static int loader_send_slice(struct device *d, const struct target *to,
                             const struct device_pipe *pipe, int first, int n)
{
    const struct slice *s = &to->slice;
    struct slice_run run = slice_next(s, first, first + n);
    int rc = ERR_OK;

    for (; run.n > 0 && rc == ERR_OK; run = slice_next(s, run.from + run.n, first + n)) {
        int step = s->n_cols < s->cols ? 1 : run.n;

        for (int i = 0; i < run.n && rc == ERR_OK; i += step)
            rc = loader_send_rows(d, to, pipe, run.from + i - first, run.to + i, step);
    }
    return rc;
}

/* The reader's: bytes from `at` on of an item are in the pipe. */
static int loader_place_bytes(void *context, size_t idx, struct device_pipe *pipe, size_t at,
                              size_t bytes)
{
    struct loader *l = context;
    const struct target *to = loader_target_of(l, idx, 0);
    size_t step = l->items[idx].step;
    int rc = ERR_OK;

    if (to->use == BYTES_SUMMED)
        return ERR_OK; /* of other ranks too */
    if (to->part.kind != NULL && to->part.kind->unpack != NULL)
        to->part.kind->unpack(pipe->bytes, bytes);
    if (to->use == BYTES_TURNED)
        return loader_turn_rows(l, idx, pipe->bytes, (int)(at / step), (int)(bytes / step));
    if (loader_is_converted(to))
        return loader_convert_rows(l, idx, pipe->bytes, (int)(at / step), (int)(bytes / step));
    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
        to = loader_target_of(l, idx, i);
        if (to->use != BYTES_SUMMED)
            rc = loader_send_slice(l->ranks[i].device, to, pipe, (int)(at / step),
                                   (int)(bytes / step));
    }
    return rc;
}

/* The rank's part of the noise that a whole matrix has, plain. */
static int loader_fill_random_slices(struct loader *l, const struct k_matrix *m,
                                     const struct part *parts, int n_parts, uint64_t seed)
{
    float *row = mem_zalloc_array((size_t)m->n_in, sizeof *row);
    size_t above = 0, at = 0;
    int rc = row == NULL ? ERR_NO_MEMORY : ERR_OK;

    for (int i = 0; i < n_parts && rc == ERR_OK; i++) {
        const struct slice *s = &parts[i].slice;

        for (int r = 0; r < s->n_rows && rc == ERR_OK; r++, at += (size_t)m->n_in) {
            size_t first = (above + (size_t)slice_row(s, r)) * (size_t)s->cols + (size_t)s->col;

            for (int c = 0; c < s->n_cols; c++)
                row[c] = k_noise(seed, first + (size_t)c) * RANDOM_SCALE;
            rc = l->d->ops->weights(l->d, m->data, at, row, DEVICE_F32, (size_t)m->n_in);
        }
        above += (size_t)s->rows;
    }
    mem_free(row);
    return rc;
}

/* Random elements, and scales that make them as large as others' weights. */
static void loader_fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales,
                               const struct part *parts, int n_parts)
{
    size_t n_scales = loader_n_scales(m);
    const struct slice *s = &parts[0].slice;
    bool is_split = s->n_rows < s->rows || s->n_cols < s->cols;
    uint64_t seed = l->seed++;
    float *scales;

    /* A GPU's ranks have noise of their own in split matrices, because a host thread would take
     * minutes for that of a whole model. On the cpu device ranks compute what one rank would, which
     * tests compare. */
    if (l->n_ranks > 1 && n_scales == 0 && !l->d->is_gpu)
        l->rc = loader_fill_random_slices(l, m, parts, n_parts, seed);
    else
        l->rc = l->d->ops->fill_random(l->d, m, n_scales > 0 ? RANDOM_CODES : RANDOM_SCALE,
                                       is_split ? seed + ((uint64_t)l->rank << 32) : seed);
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

struct k_matrix loader_matrix(struct loader *l, const struct loader_tensors *all,
                              enum loader_use use)
{
    struct part parts[LOADER_TENSORS_MAX] = {{.item = 0}};
    struct k_matrix m = {.n_in = all->shapes[0].own_cols};
    float *scales = NULL;
    bool is_plain;

    for (int i = 0; i < all->n; i++) {
        parts[i] = (struct part){.pattern = all->patterns[i],
                                 .slice = slice_make(&all->shapes[i], l->rank, l->n_ranks),
                                 .is_turned = use == USE_LAYER && l->c->arch->is_turned};
        m.n_out += parts[i].slice.n_rows;
        if (l->files != NULL)
            loader_find_part(l, &parts[i]);
    }
    if (l->rc != ERR_OK)
        return m;
    loader_choose_format(l, &m, parts, all->n, use);
    is_plain = k_format_is_plain(&m.format);
    m.data =
        loader_allocate(l, (size_t)m.n_out * (is_plain ? (size_t)m.n_in * l->d->elem_bytes
                                                       : k_format_row_bytes(&m.format, m.n_in)));
    if (!is_plain)
        m.scales = scales = loader_allocate(l, loader_n_scales(&m) * sizeof *scales);
    l->w->reads_codes = l->w->reads_codes || k_format_reads_codes(&m.format);
    if (l->rc != ERR_OK)
        return m;
    if (l->files == NULL)
        loader_fill_random(l, &m, scales, parts, all->n);
    else
        loader_list_parts(l, &m, scales, parts, all->n, use);
    if (l->files != NULL && !is_plain && parts[0].q.kind != NULL)
        loader_fill_scales(l, &m, scales, parts, all->n);
    return m;
}

/* The shape of what stands beside each row of a tensor: one number. */
static struct slice_shape loader_row_shape(const struct slice_shape *shape)
{
    struct slice_shape s = *shape;

    s.cols = s.own_cols = 1;
    return s;
}

void *loader_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split)
{
    struct slice slices[LOADER_TENSORS_MAX];
    size_t n = 0, at = 0;
    void *dst = NULL;

    for (int i = 0; i < all->n; i++) {
        const struct slice_shape shape = loader_row_shape(&all->shapes[i]);

        slices[i] = slice_make(&shape, l->rank, l->n_ranks);
        n += (size_t)slices[i].n_rows;
    }
    if (l->rank == 0 || split != SPLIT_COLUMNS)
        dst = loader_allocate(l, n * l->d->elem_bytes);
    for (int i = 0; i < all->n && l->files != NULL; i++) {
        char name[400];

        loader_name(l, name, sizeof name, all->patterns[i], ".bias");
        loader_fill_vector(l, dst, at, name, &slices[i], false);
        at += (size_t)slices[i].n_rows;
    }
    return dst;
}

void *loader_vector(struct loader *l, const char *pattern, const struct slice_shape *shape,
                    bool plus_one)
{
    const struct slice s = slice_make(shape, l->rank, l->n_ranks);
    void *dst = loader_allocate(l, (size_t)s.n_rows * l->d->elem_bytes);
    char name[400];
    float ones[256];

    if (l->files != NULL) {
        loader_name(l, name, sizeof name, pattern, ".weight");
        loader_fill_vector(l, dst, 0, name, &s, plus_one);
        return dst;
    }
    for (int i = 0; i < 256; i++)
        ones[i] = 1.0f;
    for (int i = 0; i < s.n_rows && l->rc == ERR_OK; i += 256)
        l->rc = l->d->ops->weights(l->d, dst, (size_t)i, ones, DEVICE_F32,
                                   (size_t)(s.n_rows - i < 256 ? s.n_rows - i : 256));
    return dst;
}

/* Whichever of the scale's names is there. */
float loader_kv_scale(struct loader *l, const char *own, const char *pattern, const char *ending)
{
    const struct tensor *t = loader_tensor_beside(l, own, ending);
    float scale = 1.0f;

    if (t == NULL)
        t = loader_tensor_beside(l, pattern, ending);
    if (t == NULL)
        t = loader_tensor_beside(l, pattern, "output_scale");
    if (t != NULL && quant_single(&scale, t) != ERR_OK) {
        log_error("model: %s: tensor %s is not one number of F32, BF16, F16 or F8_E8M0",
                  checkpoint_path(l->files, t), t->name);
        l->rc = ERR_UNSUPPORTED;
    }
    return scale;
}

int loader_read(struct loader *l)
{
    const struct reader r = {.files = l->files,
                             .device = l->ranks[0].device,
                             .items = l->items,
                             .n_items = l->n_items,
                             .place = loader_place_bytes,
                             .context = l};
    int rc;

    (void)pthread_mutex_init(&l->turn, NULL); /* default attributes: cannot fail on Linux */
    rc = reader_run(&r);
    (void)pthread_mutex_destroy(&l->turn);
    if (rc == ERR_OK)
        loader_make_digest(l);
    return rc;
}

void loader_fini(struct loader *l)
{
    for (size_t i = 0; i < l->n_items; i++)
        mem_free(loader_target_of(l, i, 0)->turned); /* where reading failed half-way */
    mem_free(l->targets);
    mem_free(l->items);
    checkpoint_close(l->files);
}
