/* SPDX-License-Identifier: Apache-2.0
 *
 * What reads the same input is stored as one matrix: q, k, v one below the other, then gate and
 * up. So a layer is four products. Whether a tensor is e4m3 is seen by its type, not by lists of
 * module names in config.json; a matrix is K_E4M3 when all its parts are, with scales that fit
 * together.
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
#include "model/quant.h"
#include "model/reader.h"
#include "model/safetensors.h"

#define RANDOM_SCALE 0.02f             /* of random matrices: what models are initialised with */
#define RANDOM_E4M3  64.0f             /* the same of random e4m3, before its scale */
#define FLOATS       ((size_t)1 << 20) /* of a tensor that the host converts at a time */
#define PARTS_MAX    3                 /* tensors of a matrix: q, k, v */

/* What becomes of a tensor's bytes. */
enum use_of_bytes {
    BYTES_SUMMED,  /* nothing: the host has looked at them, or nobody will */
    BYTES_FILLED,  /* numbers of the device's type */
    BYTES_COPIED,  /* e4m3 as it is */
    BYTES_ROUNDED, /* e4m3, rounded on the device */
    BYTES_WIDENED, /* numbers of the device's type that are, or are as if they were, e4m3 */
};

/* Where a tensor goes. */
struct target {
    enum use_of_bytes use;
    enum device_type type; /* of a tensor that is not e4m3 */
    void *dst;
    size_t at;                  /* element of dst */
    float *scales;              /* BYTES_ROUNDED: the first row's */
    int n_in;                   /* columns of a matrix */
    bool e4m3;                  /* the tensor is, with: */
    struct quant_scales source; /* its scales */
};

struct loader {
    struct weights *w;
    struct device *d;
    const struct config *c;
    const struct plan *plan;
    const struct weights_source *from;
    struct checkpoint *files;  /* NULL: random numbers */
    int n_widened;             /* matrices that are e4m3 but for the device */
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

/* What a plain matrix is rounded to. */
static struct k_format rounded(const struct loader *l, enum use use)
{
    static const struct k_format plain = {.elem = K_BF16};

    return use == USE_LAYER ? l->from->layers : use == USE_HEAD ? l->from->head : plain;
}

static bool is_rounded(const struct loader *l, enum use use)
{
    const struct k_format to = rounded(l, use);

    return !k_format_is_plain(&to);
}

/* A tensor that is a matrix, or the part of one. */
struct part {
    const char *pattern;
    const struct tensor *t;
    size_t item;                /* in the list */
    struct quant_scales scales; /* of an e4m3 one */
    int rows;
    bool e4m3;
    enum device_type type; /* of another */
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

static size_t elem_bytes(const struct target *to)
{
    return to->e4m3 ? 1 : to->type == DEVICE_F32 ? 4 : 2;
}

/* step: elements of the tensor that must stay together. */
static void list_target(struct loader *l, size_t item, size_t step, const struct target *to)
{
    l->items[item].step = step * elem_bytes(to);
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

/* The name of the current layer's tensor, with .bias in place of .weight when bias is set. */
static void name_of(const struct loader *l, char *out, size_t cap, const char *pattern,
                    const char *ending)
{
    const char *percent = strstr(pattern, "%d");
    size_t stem = strlen(pattern) - strlen("weight");

    if (percent == NULL)
        (void)snprintf(out, cap, "%.*s%s", (int)stem, pattern, ending);
    else
        (void)snprintf(out, cap, "%.*s%d%.*s%s", (int)(percent - pattern), pattern, l->layer,
                       (int)(stem - (size_t)(percent - pattern) - 2), percent + 2, ending);
}

/* The tensor of a name and shape, of any type; cols 0 means a vector of rows. */
static const struct tensor *find_shape(struct loader *l, const char *name, int rows, int cols)
{
    const struct tensor *t = checkpoint_find(l->files, name);
    bool fits;

    if (t == NULL) {
        log_error("model: tensor %s is missing", name);
        l->rc = ERR_NOT_FOUND;
        return NULL;
    }
    fits = cols == 0 ? t->n_dims == 1 && t->dims[0] == rows
                     : t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols;
    if (!fits) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says "
                  "[%d%s%.0d]",
                  checkpoint_path(l->files, t), name, t->n_dims,
                  t->n_dims > 0 ? (long long)t->dims[0] : 0LL, rows, cols == 0 ? "" : "][", cols);
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
    log_error("model: %s: tensor %s has type %.20s; BF16, F16 and F32 are read, and F8_E4M3 of "
              "matrices",
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
    if ((t = find_shape(l, name, n, 0)) == NULL)
        return;
    check_type(l, t, &type);
    if (l->rc == ERR_OK)
        list_target(l, l->n_items - 1, 1,
                    &(struct target){.use = BYTES_FILLED, .type = type, .dst = dst, .at = at});
}

/* --- e4m3 ------------------------------------------------------------------------------ */

/* The tensor beside a weight; NULL when there is none. */
static const struct tensor *beside(struct loader *l, const char *pattern, const char *ending)
{
    char name[400];
    const struct tensor *t;

    name_of(l, name, sizeof name, pattern, ending);
    t = checkpoint_find(l->files, name);
    if (t != NULL)
        list(l, t);
    return l->rc == ERR_OK ? t : NULL;
}

static void find_scales(struct loader *l, struct part *p, int cols)
{
    const struct tensor *t = beside(l, p->pattern, "weight_scale");
    char why[200];

    if (t == NULL)
        t = beside(l, p->pattern, "weight_scale_inv"); /* in spite of its name it multiplies */
    if (l->rc != ERR_OK)
        return;
    if (t == NULL) {
        log_error("model: %s: tensor %s is F8_E4M3 and has no weight_scale",
                  checkpoint_path(l->files, p->t), p->t->name);
        l->rc = ERR_NOT_FOUND;
        return;
    }
    l->rc = quant_scales_of(&p->scales, t, p->rows, cols, l->c->e4m3_block, why, sizeof why);
    if (l->rc != ERR_OK)
        log_error("model: %s: tensor %s: %s", checkpoint_path(l->files, t), t->name, why);
}

static void find_part(struct loader *l, struct part *p, int cols)
{
    char name[400];

    if (l->rc != ERR_OK)
        return;
    name_of(l, name, sizeof name, p->pattern, "weight");
    if ((p->t = find_shape(l, name, p->rows, cols)) == NULL)
        return;
    p->item = l->n_items - 1;
    p->e4m3 = strcmp(p->t->dtype, "F8_E4M3") == 0;
    if (p->e4m3)
        find_scales(l, p, cols);
    else
        check_type(l, p->t, &p->type);
}

static struct k_format e4m3_of(int block)
{
    return block > 0 ? k_format_in_groups(K_E4M3, block, block) : k_format_by_row(K_E4M3);
}

/* Whether the parts' e4m3 can stand as it is in one matrix, and in which format. */
static bool fit_together(const struct part *parts, int n_parts, struct k_format *format)
{
    int block = parts[0].scales.block;

    for (int i = 0; i < n_parts; i++) {
        if (!parts[i].e4m3 || parts[i].scales.block != block)
            return false;
        if (block > 0 && i + 1 < n_parts && parts[i].rows % block != 0)
            return false; /* a block would reach over the seam */
    }
    *format = e4m3_of(block);
    return true;
}

/* The format of a matrix on the device. */
static void choose_format(struct loader *l, struct k_matrix *m, const struct part *parts,
                          int n_parts, enum use use)
{
    const struct k_format plain = {.elem = K_BF16};
    bool any = false, rounds = is_rounded(l, use);

    for (int i = 0; i < n_parts; i++)
        any = any || parts[i].e4m3;
    if (l->files == NULL) {
        any = rounds || (use == USE_LAYER && l->c->e4m3);
        if (any)
            m->format = e4m3_of(use == USE_LAYER ? l->c->e4m3_block : 0);
    } else if (!any) {
        m->format = rounded(l, use);
    } else if (!fit_together(parts, n_parts, &m->format)) {
        m->format = plain;
    }
    if (!l->d->ops->takes(l->d, m))
        m->format = plain;
    l->n_widened += (any || rounds) && k_format_is_plain(&m->format);
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
                quant_scale(&p->scales, r, c);
    }
}

/* The largest of the parts' input scales, on the device; NULL when one has none. */
static const float *input_scale(struct loader *l, const struct part *parts, int n_parts)
{
    float largest = 0.0f, *at;

    for (int i = 0; i < n_parts; i++) {
        const struct tensor *t = beside(l, parts[i].pattern, "input_scale");
        struct quant_scales s;
        char why[200];

        if (t == NULL || quant_scales_of(&s, t, 1, 1, 0, why, sizeof why) != ERR_OK)
            return NULL;
        largest = quant_scale(&s, 0, 0) > largest ? quant_scale(&s, 0, 0) : largest;
    }
    at = allocate(l, sizeof *at);
    if (l->rc == ERR_OK)
        l->rc = l->d->ops->upload(l->d, at, &largest, sizeof largest);
    return largest > 0.0f ? at : NULL;
}

/* The scales of an e4m3 matrix of e4m3 parts. */
static void fill_scales(struct loader *l, struct k_matrix *m, float *dev_scales,
                        const struct part *parts, int n_parts)
{
    size_t n_scales = n_scales_of(m);
    float *scales = mem_zalloc_array(n_scales, sizeof *scales);
    int row = 0;

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
                       const struct part *parts, int n_parts, bool rounds)
{
    size_t cols = (size_t)m->n_in, row = 0;
    bool is_plain = k_format_is_plain(&m->format);

    for (int i = 0; i < n_parts; row += (size_t)parts[i++].rows) {
        const struct part *p = &parts[i];
        struct target to = {.use = BYTES_FILLED,
                            .type = p->type,
                            .dst = m->data,
                            .at = row * cols,
                            .n_in = m->n_in,
                            .e4m3 = p->e4m3,
                            .source = p->scales};

        if (!is_plain && p->e4m3) {
            to.use = BYTES_COPIED;
        } else if (!is_plain) {
            to.use = BYTES_ROUNDED;
            to.scales = dev_scales + row;
        } else if (p->e4m3 || rounds) {
            to.use = BYTES_WIDENED;
        }
        list_target(l, p->item, to.use == BYTES_FILLED || to.use == BYTES_COPIED ? 1 : cols, &to);
    }
}

/* n_rows rows from `first` on, of a tensor that is e4m3 or is rounded as if it were, to numbers of
 * the device's type. */
static int widen_rows(struct loader *l, const struct tensor *t, const struct target *to,
                      const unsigned char *bytes, int first, int n_rows)
{
    size_t cols = (size_t)to->n_in, row_bytes = cols * elem_bytes(to);
    int step = (int)(FLOATS / cols) + 1, rc = ERR_NO_MEMORY;
    float *floats = mem_zalloc_array((size_t)step * cols, sizeof *floats);
    k_e4m3 *scratch = mem_zalloc_array(cols, sizeof *scratch);
    struct tensor part = *t;

    if (floats != NULL && scratch != NULL)
        rc = ERR_OK;
    for (int r = 0; r < n_rows && rc == ERR_OK; r += step) {
        int some = n_rows - r < step ? n_rows - r : step;

        part.data = bytes + (size_t)r * row_bytes;
        if (to->e4m3)
            quant_widen(floats, part.data, &to->source, first + r, some, to->n_in);
        else
            quant_round(floats, &part, 0, some, to->n_in, scratch);
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = l->d->ops->weights(l->d, to->dst, to->at + (size_t)(first + r) * cols, floats,
                                DEVICE_F32, (size_t)some * cols);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(scratch);
    mem_free(floats);
    return rc;
}

/* The reader's: bytes from `at` on of an item are in the pipe. */
static int place(void *context, size_t idx, struct device_pipe *pipe, size_t at, size_t bytes)
{
    struct loader *l = context;
    struct device *d = l->d;
    const struct target *to = &l->targets[idx];
    size_t first = at / elem_bytes(to), n = bytes / elem_bytes(to), cols = (size_t)to->n_in;
    struct k_quantised out;

    switch (to->use) {
    case BYTES_SUMMED: break;
    case BYTES_FILLED: return d->ops->pipe_weights(d, pipe, to->dst, to->at + first, to->type, n);
    case BYTES_COPIED:
        return d->ops->pipe_bytes(d, pipe, (k_e4m3 *)to->dst + to->at + first, bytes);
    case BYTES_ROUNDED:
        out = (struct k_quantised){.data = (k_e4m3 *)to->dst + to->at + first,
                                   .scales = to->scales + first / cols};
        return d->ops->pipe_quantise(d, pipe, &out, to->type, (int)(n / cols), to->n_in);
    case BYTES_WIDENED:
        return widen_rows(l, l->items[idx].t, to, pipe->bytes, (int)(first / cols),
                          (int)(n / cols));
    }
    return ERR_OK;
}

/* Random elements, and scales that make them as large as others' weights. */
static void fill_random(struct loader *l, const struct k_matrix *m, float *dev_scales)
{
    size_t n_scales = n_scales_of(m);
    float *scales;

    l->rc = l->d->ops->fill_random(l->d, m, n_scales > 0 ? RANDOM_E4M3 : RANDOM_SCALE, l->seed++);
    if (n_scales == 0 || l->rc != ERR_OK)
        return;
    if ((scales = mem_zalloc_array(n_scales, sizeof *scales)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < n_scales; i++)
        scales[i] = RANDOM_SCALE / RANDOM_E4M3;
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
        list_parts(l, &m, scales, parts, n_parts, is_rounded(l, use));
    if (l->files != NULL && !is_plain && parts[0].e4m3)
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
        fill_vector(l, dst, at, patterns[i], "bias", rows[i]);
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
        fill_vector(l, dst, 0, pattern, "weight", dim);
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
    struct quant_scales s;
    char why[200];

    if (t == NULL)
        t = beside(l, pattern, ending);
    if (t == NULL)
        t = beside(l, pattern, "output_scale");
    if (t == NULL)
        return 1.0f;
    if (quant_scales_of(&s, t, 1, 1, 0, why, sizeof why) != ERR_OK) {
        log_error("model: %s: tensor %s: %s", checkpoint_path(l->files, t), t->name, why);
        l->rc = ERR_UNSUPPORTED;
        return 1.0f;
    }
    return quant_scale(&s, 0, 0);
}

static void load_attention(struct loader *l, const struct attn_plan *a, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const char *qkv[] = {names->q, names->k, names->v};
    int dim = l->plan->dim, kv = a->n_kv_heads * a->head_dim;
    const int qkv_rows[] = {plan_heads_width(a), kv, kv};

    w->k_scale = w->v_scale = 1.0f;
    if (l->files != NULL && l->from->kv_scales) {
        w->k_scale = kv_scale(l, names->attn, names->k, "k_scale");
        w->v_scale = kv_scale(l, names->attn, names->v, "v_scale");
    }
    w->norm_attn = norm(l, names->norm_attn, dim);
    w->qkv = matrix(l, qkv, qkv_rows, 3, dim, USE_LAYER);
    w->qkv_bias = bias(l, a->qkv_bias, qkv, qkv_rows, 3);
    if (a->qk_norm) {
        w->q_norm = norm(l, names->q_norm, a->head_dim);
        w->k_norm = norm(l, names->k_norm, a->head_dim);
    }
    w->o = matrix(l, &names->o, &dim, 1, plan_heads_width(a), USE_LAYER);
    w->o_bias = bias(l, a->o_bias, &names->o, &dim, 1);
}

static void load_gated(struct loader *l, const struct ffn_plan *f, struct layer_weights *w)
{
    const struct arch_names *names = l->c->arch->names;
    const char *gate_up[] = {names->gate, names->up};
    const int rows[] = {f->ff_dim, f->ff_dim};
    int dim = l->plan->dim;

    w->norm_mlp = norm(l, names->norm_mlp, dim);
    w->gate_up = matrix(l, gate_up, rows, 2, dim, USE_LAYER);
    w->gate_up_bias = bias(l, f->bias, gate_up, rows, 2);
    w->down = matrix(l, &names->down, &dim, 1, f->ff_dim, USE_LAYER);
    w->down_bias = bias(l, f->bias, &names->down, &dim, 1);
}

static void load_layer(struct loader *l, const struct layer_plan *plan, struct layer_weights *w)
{
    switch (plan->mixer) {
    case MIXER_ATTENTION: load_attention(l, &plan->attn, w); break;
    }
    switch (plan->ffn) {
    case FFN_GATED: load_gated(l, &plan->gated, w); break;
    }
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
    if (c->tied && !is_rounded(l, USE_HEAD))
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
    if (rc == ERR_OK && l.n_widened > 0 && d->is_gpu)
        log_info("model: %d matrices are e4m3 in a form that the GPU does not multiply with; they "
                 "are held in bf16",
                 l.n_widened);
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
