/* SPDX-License-Identifier: Apache-2.0
 *
 * What reads the same input is stored as one matrix: q, k, v one below the other, then gate and
 * up. So a layer is four products.
 *
 * The digest chains, over all tensors in the order of loading, SHA-256 of (digest so far, name,
 * type, XXH3 of the bytes): cheap enough to be taken on every start. */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/safetensors.h"

#define PROGRESS_US  5000000            /* between two lines of progress */
#define RANDOM_SCALE 0.02f              /* of random matrices: what models are initialised with */
#define PART_BYTES   ((size_t)64 << 20) /* of a tensor between two looks at the clock */

struct loader {
    struct weights *w;
    struct device *d;
    const struct config *c;
    struct checkpoint *files; /* NULL: random numbers */
    uint64_t seed;            /* of the next random matrix */
    size_t read_bytes;
    uint64_t logged_us;
    int layer; /* being loaded; -1 outside the layers */
    int rc;    /* the first error; later calls do nothing */
};

static void *allocate(struct loader *l, size_t n)
{
    void *p;

    if (l->rc != ERR_OK)
        return NULL;
    p = l->d->ops->alloc(l->d, n * l->d->elem_bytes);
    if (p == NULL)
        l->rc = ERR_NO_MEMORY;
    l->w->bytes += n * l->d->elem_bytes;
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

static void digest(struct loader *l, const struct tensor *t)
{
    char line[400];
    int n = snprintf(line, sizeof line, "%.300s %.20s %016llx", t->name, t->dtype,
                     (unsigned long long)hash_xxh3(t->data, t->bytes));

    l->w->digest = hash_sha256(&l->w->digest, sizeof l->w->digest, line, (size_t)n);
}

static void progress(struct loader *l, size_t bytes)
{
    l->read_bytes += bytes;
    if (clock_us() - l->logged_us < PROGRESS_US)
        return;
    l->logged_us = clock_us();
    log_info("model: loading weights, %.1f GB read", (double)l->read_bytes * 1e-9);
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

static const struct tensor *find(struct loader *l, const char *name, int rows, int cols,
                                 enum device_type *type)
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
    if (type_of(t, type) != ERR_OK) {
        log_error("model: %s: tensor %s has type %.20s; BF16, F16 and F32 are read",
                  checkpoint_path(l->files, t), name, t->dtype);
        l->rc = ERR_UNSUPPORTED;
        return NULL;
    }
    return t;
}

/* Fill rows x cols elements of dst, from element at; cols 0 means a vector of rows. */
static void fill(struct loader *l, void *dst, size_t at, const char *pattern, const char *ending,
                 int rows, int cols)
{
    char name[400];
    enum device_type type = DEVICE_F32;
    const struct tensor *t;
    size_t n = (size_t)rows * (cols == 0 ? 1 : (size_t)cols), elem_bytes;

    if (l->rc != ERR_OK)
        return;
    name_of(l, name, sizeof name, pattern, ending);
    if ((t = find(l, name, rows, cols, &type)) == NULL)
        return;
    digest(l, t);
    elem_bytes = type == DEVICE_F32 ? 4 : 2;
    for (size_t i = 0; i < n && l->rc == ERR_OK; i += PART_BYTES / elem_bytes) {
        size_t part = n - i < PART_BYTES / elem_bytes ? n - i : PART_BYTES / elem_bytes;

        l->rc = l->d->ops->weights(l->d, dst, at + i, t->data + i * elem_bytes, type, part);
        progress(l, part * elem_bytes);
    }
}

/* A matrix made of up to three, one below the other. */
static struct k_matrix matrix(struct loader *l, const char *const *patterns, const int *rows,
                              int n_parts, int cols)
{
    struct k_matrix m = {.type = K_BF16, .n_in = cols};
    size_t n, at = 0;

    for (int i = 0; i < n_parts; i++)
        m.n_out += rows[i];
    n = (size_t)m.n_out * (size_t)cols;
    m.data = allocate(l, n);
    if (l->rc != ERR_OK)
        return m;
    if (l->files == NULL) {
        l->rc = l->d->ops->fill_random(l->d, &m, RANDOM_SCALE, l->seed++);
        return m;
    }
    for (int i = 0; i < n_parts; i++) {
        fill(l, m.data, at, patterns[i], "weight", rows[i], cols);
        at += (size_t)rows[i] * (size_t)cols;
    }
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
    dst = allocate(l, n);
    for (int i = 0; i < n_parts && l->files != NULL; i++) {
        fill(l, dst, at, patterns[i], "bias", rows[i], 0);
        at += (size_t)rows[i];
    }
    return dst;
}

/* A norm's weights; ones in a random model. */
static void *norm(struct loader *l, const char *pattern, int dim)
{
    void *dst = allocate(l, (size_t)dim);
    float ones[256];

    if (l->files != NULL) {
        fill(l, dst, 0, pattern, "weight", dim, 0);
        return dst;
    }
    for (int i = 0; i < 256; i++)
        ones[i] = 1.0f;
    for (int i = 0; i < dim && l->rc == ERR_OK; i += 256)
        l->rc = l->d->ops->weights(l->d, dst, (size_t)i, ones, DEVICE_F32,
                                   (size_t)(dim - i < 256 ? dim - i : 256));
    return dst;
}

static void load_layer(struct loader *l, struct layer_weights *w)
{
    const struct config *c = l->c;
    const struct arch_names *names = c->arch->names;
    const char *qkv[] = {names->q, names->k, names->v}, *gate_up[] = {names->gate, names->up};
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const int qkv_rows[] = {q, kv, kv}, gate_up_rows[] = {c->ff_dim, c->ff_dim};

    w->norm_attn = norm(l, names->norm_attn, c->dim);
    w->qkv = matrix(l, qkv, qkv_rows, 3, c->dim);
    w->qkv_bias = bias(l, c->qkv_bias, qkv, qkv_rows, 3);
    w->o = matrix(l, &names->o, &c->dim, 1, q);
    w->o_bias = bias(l, c->o_bias, &names->o, &c->dim, 1);
    w->norm_mlp = norm(l, names->norm_mlp, c->dim);
    w->gate_up = matrix(l, gate_up, gate_up_rows, 2, c->dim);
    w->gate_up_bias = bias(l, c->mlp_bias, gate_up, gate_up_rows, 2);
    w->down = matrix(l, &names->down, &c->dim, 1, c->ff_dim);
    w->down_bias = bias(l, c->mlp_bias, &names->down, &c->dim, 1);
}

static int load(struct loader *l)
{
    const struct config *c = l->c;
    const struct arch_names *names = c->arch->names;

    memset(l->w, 0, sizeof *l->w);
    l->w->layers = mem_zalloc_array((size_t)c->n_layers, sizeof *l->w->layers);
    if (l->w->layers == NULL)
        return ERR_NO_MEMORY;
    l->logged_us = clock_us();
    l->layer = -1;
    l->w->embed = matrix(l, &names->embed, &c->n_vocab, 1, c->dim);
    for (l->layer = 0; l->layer < c->n_layers && l->rc == ERR_OK; l->layer++)
        load_layer(l, &l->w->layers[l->layer]);
    l->w->norm = norm(l, names->norm, c->dim);
    l->w->head = c->tied ? l->w->embed : matrix(l, &names->head, &c->n_vocab, 1, c->dim);
    return l->rc;
}

int weights_load(struct weights *w, struct device *d, const struct config *c, const char *dir)
{
    struct loader l = {.w = w, .d = d, .c = c};
    int rc = checkpoint_open(&l.files, dir);

    if (rc != ERR_OK)
        return rc;
    rc = load(&l);
    checkpoint_close(l.files);
    return rc;
}

int weights_random(struct weights *w, struct device *d, const struct config *c)
{
    struct loader l = {.w = w, .d = d, .c = c, .seed = 1};
    int rc = load(&l);

    w->digest = hash_sha256("dummy", 5, NULL, 0);
    return rc;
}

void weights_fini(struct weights *w)
{
    mem_free(w->layers);
    w->layers = NULL;
}
