/* SPDX-License-Identifier: Apache-2.0
 *
 * What reads the same input is stored as one matrix: q, k, v one below the other, then gate and
 * up. So a layer is four products. Whether a tensor is in a format of its own is seen by its type,
 * not by lists of module names in config.json; a matrix has that format when all its parts do, with
 * scales that fit together, and the device takes it. Else it is converted while it is read.
 *
 * First everything is looked up, checked and allocated, in the order of the layers: that gives a
 * list of tensors, each with where it is to go. Then the reader (reader.h) brings the bytes.
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
#include "model/quant.h"
#include "model/reader.h"
#include "model/safetensors.h"

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

/* Where a tensor goes. */
struct target {
    enum use_of_bytes use;
    enum device_type type;  /* of plain numbers */
    struct quant_part part; /* of a matrix */
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
    struct weights *w;
    struct device *d;
    const struct config *c;
    const struct plan *plan;
    const struct weights_source *from;
    struct checkpoint *files; /* NULL: random numbers */
    struct converted converted;
    uint64_t seed;             /* of the next random matrix */
    struct reader_item *items; /* [n_items]: tensors in the order of the digest */
    struct target *targets;    /* [n_items] */
    size_t n_items, items_cap;
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
    int rows;
    enum device_type type; /* of plain numbers */
};

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

/* Put a tensor on the list, to be summed alone; list_target() says otherwise. */
static void list(struct loader *l, const struct tensor *t)
{
    size_t cap = l->items_cap == 0 ? 64 : 2 * l->items_cap;
    struct reader_item *items = l->items;
    struct target *targets = l->targets;

    if (l->n_items == l->items_cap) {
        if ((items = mem_realloc(l->items, cap * sizeof *items)) != NULL)
            l->items = items;
        if ((targets = mem_realloc(l->targets, cap * sizeof *targets)) != NULL)
            l->targets = targets;
        if (items == NULL || targets == NULL) {
            l->rc = ERR_NO_MEMORY;
            return;
        }
        l->items_cap = cap;
    }
    items[l->n_items] = (struct reader_item){.t = t, .step = 1};
    targets[l->n_items++] = (struct target){.use = BYTES_SUMMED};
}

/* Bytes of a number in a file. */
static size_t file_bytes(enum device_type type)
{
    return type == DEVICE_F32 ? 4 : 2;
}

/* Bytes of a matrix's row in a file. */
static size_t row_bytes(const struct target *to)
{
    return to->part.kind != NULL ? k_format_row_bytes(&to->part.format, to->part.cols)
                                 : (size_t)to->part.cols * file_bytes(to->type);
}

/* step: bytes of the tensor that must stay together. */
static void list_target(struct loader *l, size_t item, size_t step, const struct target *to)
{
    l->items[item].step = step;
    l->targets[item] = *to;
}

static void digest(struct loader *l)
{
    for (size_t i = 0; i < l->n_items; i++) {
        const struct tensor *t = l->items[i].t;
        char line[400];
        int n = snprintf(line, sizeof line, "%.300s %.20s %016llx", t->name, t->dtype,
                         (unsigned long long)l->items[i].xxh3);

        l->w->digest = hash_sha256(&l->w->digest, sizeof l->w->digest, line, (size_t)n);
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

/* Fill a vector, or a part of it. */
static void fill_vector(struct loader *l, void *dst, size_t at, const char *pattern,
                        const char *ending, int n)
{
    char name[400];
    enum device_type type = DEVICE_F32;
    const struct tensor *t;

    if (l->rc != ERR_OK)
        return;
    name_of(l, name, sizeof name, pattern, ending);
    if ((t = find_vector(l, name, n)) == NULL)
        return;
    check_type(l, t, &type);
    if (l->rc == ERR_OK)
        list_target(l, l->n_items - 1, file_bytes(type),
                    &(struct target){.use = BYTES_FILLED, .type = type, .dst = dst, .at = at});
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
    p->item = l->n_items - 1;
    for (int i = 0; i < 3 && l->rc == ERR_OK; i++) {
        if (more[i] != NULL)
            list(l, more[i]);
    }
}

static void find_part(struct loader *l, struct part *p, int cols)
{
    char stem[400], why[QUANT_WHY_CAP];

    if (l->rc != ERR_OK)
        return;
    name_of(l, stem, sizeof stem, p->pattern, "");
    l->rc = quant_find(&p->q, l->files, &l->c->quant, stem, p->rows, cols, why, sizeof why);
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
        if (i + 1 < n_parts && parts[i].rows % q->format.group_rows != 0)
            return false; /* a group would reach over the seam */
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

    if (c->n++ == 0)
        quant_text(c->text, sizeof c->text, f);
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

    for (int r = 0; r < p->rows; r += high) {
        for (int c = 0; c < m->n_in; c += wide)
            scales[(size_t)((row + r) / high) * cols + (size_t)(c / wide)] =
                quant_scale(&p->q.scales, r, c);
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
    for (int i = 0; i < n_parts; row += parts[i++].rows)
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

    for (int i = 0; i < n_parts; row += (size_t)parts[i++].rows) {
        struct target to = {.use = BYTES_FILLED,
                            .type = parts[i].type,
                            .part = parts[i].q,
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
        list_target(l, parts[i].item, to.use == BYTES_FILLED ? file_bytes(to.type) : row_bytes(&to),
                    &to);
    }
}

/* n_rows rows from `first` on, of a tensor in a format or one that is rounded as if it were, to
 * numbers of the device's type. */
static int convert_rows(struct loader *l, const struct tensor *t, const struct target *to,
                        unsigned char *bytes, int first, int n_rows)
{
    size_t cols = (size_t)to->part.cols;
    int step = (int)(FLOATS / cols) + 1, rc = ERR_OK;
    float *floats = mem_zalloc_array((size_t)step * cols, sizeof *floats);
    struct tensor part = *t;

    if (floats == NULL)
        return ERR_NO_MEMORY;
    for (int r = 0; r < n_rows && rc == ERR_OK; r += step, bytes += (size_t)step * row_bytes(to)) {
        int some = n_rows - r < step ? n_rows - r : step;

        part.data = bytes;
        rc = to->part.kind != NULL ? quant_dequantise(floats, &to->part, bytes, first + r, some)
                                   : quant_round(floats, &part, 0, some, (int)cols);
        if (rc != ERR_OK)
            break;
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = l->d->ops->weights(l->d, to->dst, to->at + (size_t)(first + r) * cols, floats,
                                DEVICE_F32, (size_t)some * cols);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(floats);
    return rc;
}

/* The reader's: bytes from `at` on of an item are in the pipe. */
static int place(void *context, size_t idx, struct device_pipe *pipe, size_t at, size_t bytes)
{
    struct loader *l = context;
    struct device *d = l->d;
    const struct target *to = &l->targets[idx];
    size_t first = at / file_bytes(to->type), n = bytes / file_bytes(to->type);
    size_t cols = (size_t)to->part.cols;
    struct k_quantised out;

    if (to->part.kind != NULL && to->part.kind->unpack != NULL)
        to->part.kind->unpack(pipe->bytes, bytes);
    switch (to->use) {
    case BYTES_SUMMED: break;
    case BYTES_FILLED: return d->ops->pipe_weights(d, pipe, to->dst, to->at + first, to->type, n);
    case BYTES_COPIED: return d->ops->pipe_bytes(d, pipe, (char *)to->dst + to->at + at, bytes);
    case BYTES_ROUNDED:
        out = (struct k_quantised){.data = (k_e4m3 *)to->dst + to->at + first,
                                   .scales = to->scales + first / cols};
        return d->ops->pipe_quantise(d, pipe, &out, to->type, (int)(n / cols), (int)cols);
    case BYTES_CONVERTED:
        return convert_rows(l, l->items[idx].t, to, pipe->bytes, (int)(at / row_bytes(to)),
                            (int)(bytes / row_bytes(to)));
    }
    return ERR_OK;
}

/* Random elements, and scales that make them as large as others' weights. */
static void fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales)
{
    size_t n_scales = n_scales_of(m);
    float *scales;

    l->rc = l->d->ops->fill_random(l->d, m, n_scales > 0 ? RANDOM_CODES : RANDOM_SCALE, l->seed++);
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

/* A matrix made of up to three tensors, one below the other. */
static struct k_matrix matrix(struct loader *l, const char *const *patterns, const int *rows,
                              int n_parts, int cols, enum use use)
{
    struct part parts[PARTS_MAX] = {{.rows = 0}};
    struct k_matrix m = {.n_in = cols};
    float *scales = NULL;
    bool is_plain;

    for (int i = 0; i < n_parts; i++) {
        parts[i] = (struct part){.pattern = patterns[i], .rows = rows[i]};
        m.n_out += rows[i];
        if (l->files != NULL)
            find_part(l, &parts[i], cols);
    }
    if (l->rc != ERR_OK)
        return m;
    choose_format(l, &m, parts, n_parts, use);
    is_plain = k_format_is_plain(&m.format);
    m.data = allocate(l, (size_t)m.n_out * (is_plain ? (size_t)cols * l->d->elem_bytes
                                                     : k_format_row_bytes(&m.format, cols)));
    if (!is_plain)
        m.scales = scales = allocate(l, n_scales_of(&m) * sizeof *scales);
    l->w->reads_codes = l->w->reads_codes || k_format_reads_codes(&m.format);
    if (l->rc != ERR_OK)
        return m;
    if (l->files == NULL)
        fill_random(l, &m, scales);
    else
        list_parts(l, &m, scales, parts, n_parts, use);
    if (l->files != NULL && !is_plain && parts[0].q.kind != NULL)
        fill_scales(l, &m, scales, parts, n_parts);
    return m;
}

/* The bias of such a matrix; NULL when the model has none. Random models have zeros. */
static void *bias(struct loader *l, bool has, const char *const *patterns, const int *rows,
                  int n_parts)
{
    size_t n = 0, at = 0;
    void *dst;

    if (!has)
        return NULL;
    for (int i = 0; i < n_parts; i++)
        n += (size_t)rows[i];
    dst = allocate(l, n * l->d->elem_bytes);
    for (int i = 0; i < n_parts && l->files != NULL; i++) {
        fill_vector(l, dst, at, patterns[i], ".bias", rows[i]);
        at += (size_t)rows[i];
    }
    return dst;
}

/* A norm's weights; ones in a random model. */
static void *norm(struct loader *l, const char *pattern, int dim)
{
    void *dst = allocate(l, (size_t)dim * l->d->elem_bytes);
    float ones[256];

    if (l->files != NULL) {
        fill_vector(l, dst, 0, pattern, ".weight", dim);
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

static void load_attention(struct loader *l, const struct layer_plan *plan, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const struct attn_plan *a = &plan->attn;
    const char *qkv[] = {names->q, names->k, names->v};
    int dim = l->plan->dim, kv = a->n_kv_heads * a->head_dim;
    const int qkv_rows[] = {plan_mixer_out(plan), kv, kv};

    w->k_scale = w->v_scale = 1.0f;
    if (l->files != NULL && l->from->kv_scales) {
        w->k_scale = kv_scale(l, names->attn, names->k, "k_scale");
        w->v_scale = kv_scale(l, names->attn, names->v, "v_scale");
    }
    w->norm_mixer = norm(l, names->norm_attn, dim);
    w->mixer_in = matrix(l, qkv, qkv_rows, 3, dim, USE_LAYER);
    w->mixer_in_bias = bias(l, a->qkv_bias, qkv, qkv_rows, 3);
    if (a->qk_norm) {
        w->q_norm = norm(l, names->q_norm, a->head_dim);
        w->k_norm = norm(l, names->k_norm, a->head_dim);
    }
    w->mixer_out = matrix(l, &names->o, &dim, 1, plan_mixer_out(plan), USE_LAYER);
    w->mixer_out_bias = bias(l, a->o_bias, &names->o, &dim, 1);
}

static void load_recurrent(struct loader *l, const struct layer_plan *plan, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    int dim = l->plan->dim, rows = plan_mixer_in(plan);

    w->norm_mixer = norm(l, names->norm_attn, dim);
    w->mixer_in = matrix(l, &names->mixer_in, &rows, 1, dim, USE_LAYER);
    w->mixer_out = matrix(l, &names->mixer_out, &dim, 1, plan_mixer_out(plan), USE_LAYER);
}

/* A plain FFN has no gate. */
static void load_ffn(struct loader *l, const struct layer_plan *plan, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const struct ffn_plan *f = &plan->mlp;
    const char *gate_up[] = {names->gate, names->up};
    const int rows[] = {f->ff_dim, f->ff_dim};
    int dim = l->plan->dim, first = plan->ffn == FFN_PLAIN ? 1 : 0;

    w->norm_ffn = norm(l, names->norm_mlp, dim);
    w->ffn_in = matrix(l, gate_up + first, rows, 2 - first, dim, USE_LAYER);
    w->ffn_in_bias = bias(l, f->bias, gate_up + first, rows, 2 - first);
    w->down = matrix(l, &names->down, &dim, 1, f->ff_dim, USE_LAYER);
    w->down_bias = bias(l, f->bias, &names->down, &dim, 1);
}

static void load_layer(struct loader *l, const struct layer_plan *plan, struct layer_weights *w)
{
    switch (plan->mixer) {
    case MIXER_ATTENTION: load_attention(l, plan, w); break;
    case MIXER_RECURRENT: load_recurrent(l, plan, w); break;
    }
    load_ffn(l, plan, w);
}

/* Allocate everything, and list what is to be read. */
static int lay_out(struct loader *l)
{
    const struct config *c = l->c;
    const struct arch_names *names = c->arch->names;
    const char *head;

    memset(l->w, 0, sizeof *l->w);
    l->w->layers = mem_zalloc_array((size_t)c->n_layers, sizeof *l->w->layers);
    if (l->w->layers == NULL)
        return ERR_NO_MEMORY;
    l->layer = -1;
    l->w->embed = matrix(l, &names->embed, &c->n_vocab, 1, c->dim, USE_TABLE);
    for (l->layer = 0; l->layer < c->n_layers && l->rc == ERR_OK; l->layer++)
        load_layer(l, &l->plan->layers[l->layer], &l->w->layers[l->layer]);
    l->w->norm = norm(l, names->norm, c->dim);
    head = c->tied ? names->embed : names->head;
    if (c->tied && k_format_is_plain(&l->from->head))
        l->w->head = l->w->embed;
    else
        l->w->head = matrix(l, &head, &c->n_vocab, 1, c->dim, USE_HEAD);
    return l->rc;
}

static int read_all(struct loader *l)
{
    const struct reader r = {.files = l->files,
                             .device = l->d,
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

int weights_load(struct weights *w, struct device *d, const struct config *c,
                 const struct plan *plan, const struct weights_source *from)
{
    struct loader l = {.w = w, .d = d, .c = c, .plan = plan, .from = from, .seed = 1};
    int rc = from->dir == NULL ? ERR_OK : checkpoint_open(&l.files, from->dir);

    if (rc != ERR_OK)
        return rc;
    rc = lay_out(&l);
    log_debug("model: weights are laid out");
    if (rc == ERR_OK && from->dir != NULL)
        rc = read_all(&l);
    if (rc == ERR_OK && l.converted.n > 0)
        log_converted(&l.converted, d);
    if (from->dir == NULL)
        w->digest = hash_sha256("dummy", 5, NULL, 0);
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
