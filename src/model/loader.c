/* SPDX-License-Identifier: Apache-2.0
 *
 * From tensors in files to matrices on devices, in two passes.
 *
 * First everything is looked up, checked and allocated, in the order of the layers. That makes a
 * list of tensors, each with its destination (struct target). Then the reader (reader.h) brings the
 * bytes. With several ranks the first pass runs once per rank and finds the same list: a tensor
 * then has one target, with the slice that belongs there, for every rank.
 *
 * The format of a tensor is recognised by its type, not by lists of module names in config.json. A
 * matrix keeps its format if all its tensors have it, their scales fit together, and the device
 * multiplies with it. Otherwise it is converted while it is read.
 *
 * The experts of a layer are one matrix: their tensors, one below the other. A tensor that holds
 * all experts of a layer is taken apart into views, which are tensors of one expert each.
 *
 * The digest chains SHA-256 over the list: digest so far, name, type and XXH3 of the bytes, which
 * is cheap enough for every start. Stores on disk are named by it, so the order of the list must
 * not change. */
#include "model/loader_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "model/loader_parts.h"

static const struct k_format plain = {.elem = K_BF16};

static bool loader_is_of_layer(enum loader_use use)
{
    return use == USE_LAYER || use == USE_EXPERTS;
}

/* The format that plain matrices are rounded to by the setting `quantization`; plain: none. Tables
 * that are looked up in are never rounded. */
static struct k_format loader_rounded_format(const struct loader *l, enum loader_use use)
{
    if (use == USE_EXPERTS && l->from->layers.elem == K_INT8)
        return plain; /* no product of experts reads bytes */
    if (loader_is_of_layer(use))
        return l->from->layers;
    if (use == USE_HEAD)
        return l->from->head;
    return plain;
}

/* Most matrices are one tensor. */
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

/* The list is made by rank 0. Other ranks walk it in the same order and only fill in their targets,
 * so an assertion checks that they meet the same tensors. Errors are kept in l->rc, and every
 * function returns at once after one. */

/* Constant memory: it survives a sleep of the device. */
void *loader_allocate(struct loader *l, size_t bytes)
{
    void *memory;

    if (l->rc != ERR_OK || l->absent)
        return NULL;
    memory = l->d->ops->alloc_constant(l->d, bytes);
    if (memory == NULL)
        l->rc = ERR_NO_MEMORY;
    l->w->bytes += bytes;
    return memory;
}

/* Only these three types count as plain numbers. */
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

/* Both arrays grow together. An array that could be grown is kept even if the other failed, because
 * the old pointer is no longer valid. */
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

/* Append a tensor to the list, at first only to be hashed; loader_list_target() sets its
 * destination. Rank 0 makes the list, later ranks advance along it. */
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

/* Set the current rank's target of a tensor. step makes the reader deliver whole rows, because
 * conversion and slicing work on rows; of a transposed tensor, whole columns of the matrix. */
void loader_list_target(struct loader *l, size_t item, const struct target *to)
{
    if (l->absent)
        return;
    l->items[item].step = loader_row_bytes(to);
    if (to->use == BYTES_TURNED)
        l->items[item].step = loader_elem_bytes(to, to->slice.rows);
    if (quant_is_split_mxfp4(to->part.kind)) /* its rows are longer in the file */
        l->items[item].step = l->items[item].t->bytes / (size_t)to->slice.rows;
    if (loader_is_gathered(to))
        l->items[item].step = 1;
    *loader_target_of(l, item, l->rank) = *to;
}

/* Runs after the reader, which has set xxh3 of each item. */
static void loader_make_digest(struct loader *l)
{
    struct hash *sum = &l->ranks[0].weights->digest;

    for (size_t i = 0; i < l->n_items; i++) {
        const struct tensor *tensor = l->items[i].t;
        char line[400];
        int n = snprintf(line, sizeof line, "%.300s %.20s %016llx", tensor->name, tensor->dtype,
                         (unsigned long long)l->items[i].xxh3);

        *sum = hash_sha256(sum, sizeof *sum, line, (size_t)n);
    }
}

/* "model.layers.%d.mlp.up_proj.weight" with ending ".bias" becomes, in layer 3,
 * "model.layers.3.mlp.up_proj.bias". The leading "model." is replaced by the prefix that the
 * checkpoint uses. Two layers that are one of the checkpoint's have its number; an MTP layer's
 * is that behind its target's last layer, or 0. */
void loader_name(const struct loader *l, char *out, size_t cap, const char *pattern,
                 const char *ending)
{
    static const char model[] = "model.", weight[] = ".weight";
    int layer = l->c->is_twin ? l->layer / 2 : l->c->eagle.layer + l->layer;
    const int numbers[2] = {layer, l->expert};
    const char *prefix = "", *percent;
    size_t stem;
    int n;

    if (l->prefix != NULL && strncmp(pattern, model, sizeof model - 1) == 0) {
        prefix = l->prefix;
        pattern += sizeof model - 1;
    }
    /* Names without the ending are taken whole. */
    stem = strlen(pattern);
    if (stem > strlen(weight) && strcmp(pattern + stem - strlen(weight), weight) == 0)
        stem -= strlen(weight);
    n = snprintf(out, cap, "%s", prefix);
    for (int i = 0; i < 2 && (percent = memmem(pattern, stem, "%d", 2)) != NULL; i++) {
        size_t before = (size_t)(percent - pattern);

        n += snprintf(out + n, cap - (size_t)n, "%.*s%d", (int)before, pattern, numbers[i]);
        pattern += before + 2;
        stem -= before + 2;
    }
    (void)snprintf(out + n, cap - (size_t)n, "%.*s%s", (int)stem, pattern, ending);
}

/* The name of the current layer's tensor whose pattern is a whole name. */
void loader_whole_name(const struct loader *l, char *out, size_t cap, const char *whole)
{
    static const char weight[] = ".weight";
    size_t len = strlen(whole), end = sizeof weight - 1;
    bool has_ending = len > end && strcmp(whole + len - end, weight) == 0;

    loader_name(l, out, cap, whole, has_ending ? weight : "");
}

bool loader_has(const struct loader *l, const char *whole)
{
    char name[400];

    if (l->files == NULL || whole == NULL)
        return false;
    loader_whole_name(l, name, sizeof name, whole);
    return checkpoint_find(l->files, name) != NULL;
}

/* Find a vector of n numbers by its full name, and list it; NULL (logged) if it is missing or has
 * another shape. Norms of groups may be [groups][n / groups]. */
static const struct tensor *loader_find_vector(struct loader *l, const char *name, int n)
{
    const struct tensor *tensor = checkpoint_find(l->files, name);

    if (tensor == NULL) {
        log_error("model: tensor %s is missing", name);
        l->rc = ERR_NOT_FOUND;
        return NULL;
    }
    if (!(tensor->n_dims == 1 && tensor->dims[0] == n) &&
        !(tensor->n_dims == 2 && tensor->dims[0] >= 1 && tensor->dims[0] <= n &&
          tensor->dims[1] * tensor->dims[0] == n)) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says [%d]",
                  checkpoint_path(l->files, tensor), name, tensor->n_dims,
                  tensor->n_dims > 0 ? (long long)tensor->dims[0] : 0LL, n);
        l->rc = ERR_INVALID;
        return NULL;
    }
    loader_list_tensor(l, tensor);
    if (l->rc == ERR_OK)
        return tensor;
    return NULL;
}

/* Plain numbers must be of a type that the pipes convert. */
void loader_check_type(struct loader *l, const struct tensor *t, enum device_type *type)
{
    if (loader_type_of(t, type) == ERR_OK)
        return;
    log_error("model: %s: tensor %s has type %.20s; BF16, F16 and F32 are read, and for matrices "
              "the format of quantization_config",
              checkpoint_path(l->files, t), t->name, t->dtype);
    l->rc = ERR_UNSUPPORTED;
}

/* List a vector whose slice is to be stored at element `at` of dst; dst NULL: this rank has no part
 * of it, and the tensor is only hashed. */
static void loader_fill_vector(struct loader *l, void *dst, size_t at, const char *name,
                               const struct slice *s, bool plus_one)
{
    struct target to = {.use = plus_one ? BYTES_RAISED : BYTES_FILLED,
                        .type = DEVICE_F32,
                        .slice = *s,
                        .dst = dst,
                        .at = at};
    const struct tensor *tensor;

    if (l->rc != ERR_OK || (tensor = loader_find_vector(l, name, s->rows)) == NULL)
        return;
    loader_check_type(l, tensor, &to.type);
    if (l->rc == ERR_OK && dst != NULL)
        loader_list_target(l, l->n_listed - 1, &to);
}

/* --- formats ---------------------------------------------------------------------------- */

/* A matrix may consist of several tensors (q, k, v), and each may be quantised in its own way.
 * loader_choose_format() settles one format for the whole matrix; loader_list_parts() then decides
 * per tensor whether its bytes are copied, rounded or converted. */

/* The tensor whose name is the weight's stem and this ending, such as "input_scale"; NULL if there
 * is none. */
static const struct tensor *loader_tensor_beside(struct loader *l, const char *pattern, int expert,
                                                 const char *ending)
{
    char stem[400], name[440];
    const struct tensor *tensor;

    if (ending == NULL)
        return NULL;
    l->expert = expert;
    loader_name(l, stem, sizeof stem, pattern, "");
    (void)snprintf(name, sizeof name, "%s.%s", stem, ending);
    tensor = checkpoint_find(l->files, name);
    if (tensor != NULL)
        loader_list_tensor(l, tensor);
    if (l->rc == ERR_OK)
        return tensor;
    return NULL;
}

/* List the tensors of a part. The order is part of the digest: data, scales, zero points, global
 * scale, or those that a kind has beside its data. */
void loader_list_part(struct loader *l, struct part *p)
{
    const struct tensor *const more[] = {p->q.scales.t, p->q.zeros.t, p->q.global.t};

    loader_list_tensor(l, p->q.data);
    p->item = l->n_listed - 1;
    for (int i = 0; i < 3 && l->rc == ERR_OK; i++) {
        if (more[i] != NULL)
            loader_list_tensor(l, more[i]);
    }
    for (int i = 0; i < QUANT_BESIDE_MAX && l->rc == ERR_OK; i++) {
        if (p->q.beside[i] != NULL)
            loader_list_tensor(l, p->q.beside[i]);
    }
}

/* A transposed tensor is looked up with rows and columns exchanged. */
static void loader_find_part(struct loader *l, struct part *p)
{
    char stem[400], why[QUANT_WHY_CAP];
    struct quant_matrix matrix = {stem, p->slice.rows, p->slice.cols};

    if (p->is_turned) {
        matrix.rows = p->slice.cols;
        matrix.cols = p->slice.rows;
    }
    if (l->rc != ERR_OK)
        return;
    l->expert = p->expert;
    loader_name(l, stem, sizeof stem, p->pattern, "");
    l->rc = quant_find(&p->q, l->files, &l->c->quant, &matrix, why, sizeof why);
    if (l->rc != ERR_OK) {
        log_error("model: %s", why);
        return;
    }
    loader_list_part(l, p);
    if (p->q.kind == NULL)
        loader_check_type(l, p->q.data, &p->type);
    if (p->is_turned && quant_has_values(&p->q)) {
        log_error("model: tensor %s: transposed matrices are not read in this format",
                  p->q.data->name);
        l->rc = ERR_UNSUPPORTED;
    }
}

/* A part whose numbers are bf16 in the file. */
static bool loader_is_bf16(const struct part *p)
{
    return p->q.kind == NULL && p->q.data != NULL && p->type == DEVICE_BF16;
}

/* True if every part is such. */
static bool loader_are_bf16(const struct part *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        if (!loader_is_bf16(&parts[i]))
            return false;
    }
    return true;
}

/* True if the parts can form one matrix without conversion: one format for all, no scale that spans
 * a whole part while there are several, and no group of elements that crosses a seam between parts
 * or an edge of the rank's slice. */
static bool loader_parts_fit(const struct part *parts, int n_parts)
{
    const struct quant_part *first = &parts[0].q;

    for (int i = 0; i < n_parts; i++) {
        const struct quant_part *part = &parts[i].q;

        if (part->kind == NULL || part->kind != first->kind ||
            (quant_has_values(part) && !k_format_is_mxfp4(&part->format)) ||
            !k_format_is_like(&part->format, &first->format))
            return false;
        if (part->format.has_global && n_parts > 1)
            return false; /* each part has a global scale of its own, the matrix can have one */
        if (i + 1 < n_parts && part->format.group_rows > 0 &&
            parts[i].slice.n_rows % part->format.group_rows != 0)
            return false; /* a group would cross the seam to the next part */
        if (slice_cuts(&parts[i].slice, &part->format) ||
            slice_cuts_blocks(&parts[i].slice, k_type_block(part->format.elem)))
            return false;
    }
    return true;
}

/* The format that the checkpoint has, or the setting asks for. *has_all is false if only some parts
 * have it, or if they do not fit together: then the matrix must be converted. */
static struct k_format loader_wanted_format(const struct loader *l, const struct part *parts,
                                            int n_parts, enum loader_use use, bool *has_all)
{
    *has_all = true;
    if (l->files == NULL && use == USE_EXPERTS && quant_is_mxfp4(l->c->quant.kind)) {
        *has_all = parts[0].slice.n_cols % K_MXFP4_GROUP == 0; /* else a rank cuts groups */
        return k_format_mxfp4();
    }
    if (parts[0].is_turned)
        return plain; /* rounding works on rows of the file */
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].q.kind != NULL) {
            *has_all = loader_parts_fit(parts, n_parts);
            return parts[i].q.format;
        }
    }
    if (l->files == NULL && loader_is_of_layer(use) && l->c->quant.mix.n > 0 &&
        loader_mixed(l, parts, n_parts) == QUANT_MIXED_FP8)
        return k_format_by_row(K_E4M3);
    if (l->files == NULL && loader_is_of_layer(use) && l->c->quant.kind != NULL)
        return use == USE_EXPERTS && l->c->quant.format.elem == K_INT8 ? plain : l->c->quant.format;
    return loader_rounded_format(l, use);
}

/* Devices that compute in float32 may keep bf16 as it is: the products are the same. */
static bool loader_keeps_bf16(const struct loader *l, struct k_matrix *m, const struct part *parts,
                              int n_parts, enum loader_use use)
{
    const struct k_format to_round = loader_rounded_format(l, use);

    m->format = k_format_bare(K_BF16_KEPT);
    return use != USE_ADDED && k_format_is_plain(&to_round) && loader_are_bf16(parts, n_parts) &&
           l->d->ops->takes(l->d, m);
}

size_t loader_n_scales(const struct k_matrix *m)
{
    return k_format_n_scales(&m->format, m->n_out, m->n_in);
}

/* For one log line after loading: how many matrices were converted, and how much larger they
 * became. The count is of the first ranks; bytes are summed over ranks. */
static void loader_count_converted(struct loader *l, const struct k_matrix *m,
                                   const struct part *parts, int n_parts, const struct k_format *f)
{
    struct loader_converted *count = &l->converted;

    if (count->n == 0)
        quant_text(count->text, sizeof count->text, parts[0].q.kind, f);
    if (l->absent)
        return;
    count->n += l->share == 0;
    if (!quant_has_values(&parts[0].q))
        count->as_they_are += (size_t)m->n_out * k_format_row_bytes(f, m->n_in) +
                              k_format_n_scales(f, m->n_out, m->n_in) * sizeof(float);
    for (int i = 0; i < n_parts && quant_has_values(&parts[0].q) && l->share == 0; i++) {
        if (parts[i].q.data != NULL)
            count->as_they_are += parts[i].q.data->bytes;
        for (int k = 0; k < QUANT_BESIDE_MAX; k++) {
            if (parts[i].q.beside[k] != NULL)
                count->as_they_are += parts[i].q.beside[k]->bytes;
        }
    }
    count->is_rounded = !k_format_is_plain(&m->format);
    if (count->is_rounded)
        count->bytes += (size_t)m->n_out * k_format_row_bytes(&m->format, m->n_in) +
                        loader_n_scales(m) * sizeof(float);
    else
        count->bytes += (size_t)m->n_out * (size_t)m->n_in * l->d->elem_bytes;
}

static bool loader_is_any_turned(const struct part *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].is_turned)
            return true;
    }
    return false;
}

/* Is a part of another format than its matrix, which is in e4m3 with a scale per row? */
static bool loader_is_rounded_part(const struct k_matrix *m, const struct part *part)
{
    return part->q.kind != NULL && k_format_is_by_row(&m->format, K_E4M3) &&
           !k_format_is_by_row(&part->q.format, K_E4M3);
}

/* Choose the format of a matrix on the device: the wanted one if the device multiplies with it,
 * else plain numbers, or those that they are rounded to. */
static void loader_choose_format(struct loader *l, struct k_matrix *m, const struct part *parts,
                                 int n_parts, enum loader_use use)
{
    bool has_all, is_padded = false;
    const struct k_format wanted = loader_wanted_format(l, parts, n_parts, use, &has_all);

    for (int i = 0; i < n_parts; i++)
        is_padded = is_padded || slice_is_padded(&parts[i].slice.shape);
    if (is_padded) { /* rooms cut groups of all formats */
        m->format = plain;
        if (!k_format_is_plain(&wanted))
            loader_count_converted(l, m, parts, n_parts, &wanted);
        return;
    }
    if (loader_keeps_bf16(l, m, parts, n_parts, use) ||
        (loader_has_bytes(l, parts, n_parts, use, &m->format) && l->d->ops->takes(l->d, m)) ||
        (loader_packs(l, parts, n_parts, use, &m->format) && l->d->ops->takes(l->d, m)) ||
        (loader_codes(l, parts, n_parts, use, &m->format) && l->d->ops->takes(l->d, m)))
        return;
    /* takes() looks at the shape too: a quantised matrix of odd size is converted. Tables have no
     * scales beside them. */
    m->format = wanted;
    if (has_all && l->d->ops->takes(l->d, m) && use != USE_ADDED &&
        (use != USE_TABLE || wanted.group_rows == 0))
        return;
    m->format = k_format_mxfp4();
    if (use == USE_EXPERTS && has_all && wanted.elem == K_MXFP4 && l->d->ops->takes(l->d, m))
        return;
    m->format = plain;
    if (k_format_is_plain(&wanted) && has_all)
        return;
    /* Rounded, if the setting asks for it: half of the plain format's bytes. */
    m->format = loader_rounded_format(l, use);
    if (!k_format_is_by_row(&m->format, K_E4M3) || loader_is_any_turned(parts, n_parts) ||
        !l->d->ops->takes(l->d, m))
        m->format = plain;
    loader_count_converted(l, m, parts, n_parts, &wanted);
}

/* Write a part's scales into the matrix's array of scales, from row `row` of the matrix on. One
 * scale covers `high` rows and `wide` columns; scales of a whole tensor are repeated. */
static void loader_place_scales(const struct k_matrix *m, float *scales, int row,
                                const struct part *p)
{
    size_t cols = (size_t)k_format_scale_cols(&m->format, m->n_in);
    int high = m->format.group_rows;
    int wide = m->n_in;

    if (k_format_is_packed(&m->format) || m->format.elem == K_INT8) { /* groups' are in records */
        for (int r = 0; r < p->slice.n_rows; r++)
            scales[row + r] = quant_row_scale(&p->q, slice_row(&p->slice, r));
        return;
    }
    if (k_format_has_groups(&m->format))
        wide = m->format.group_cols;
    for (int r = 0; r < p->slice.n_rows; r += high) {
        for (int col = 0; col < m->n_in; col += wide)
            scales[(size_t)((row + r) / high) * cols + (size_t)(col / wide)] =
                quant_scale(&p->q.scales, slice_row(&p->slice, r), p->slice.col + col);
    }
}

/* Upload the largest of the parts' input scales; NULL if a part has none. The largest is safe,
 * because a product reads one input for all parts and must not clip any. */
static const float *loader_input_scale(struct loader *l, const struct part *parts, int n_parts)
{
    float largest = 0.0f, *at;

    for (int i = 0; i < n_parts; i++) {
        const struct tensor *tensor =
            loader_tensor_beside(l, parts[i].pattern, parts[i].expert, parts[i].q.kind->x_scale);
        float scale;

        if (tensor == NULL || quant_single(&scale, tensor) != ERR_OK)
            return NULL;
        if (scale > largest)
            largest = scale;
    }
    at = loader_allocate(l, sizeof *at);
    if (at != NULL)
        l->rc = l->d->ops->upload(l->d, at, &largest, sizeof largest);
    if (largest > 0.0f)
        return at;
    return NULL;
}

/* Compute the scales of a quantised matrix on the host, and upload them. */
static void loader_fill_scales(struct loader *l, struct k_matrix *m, float *dev_scales,
                               const struct part *parts, int n_parts)
{
    size_t n_scales = loader_n_scales(m);
    float *scales = mem_zalloc_array(n_scales, sizeof *scales);
    int row = 0;

    must(!m->format.has_zeros && !m->format.has_global); /* no device multiplies with such
                                                          * formats, so loader_choose_format()
                                                          * never chose one */
    if (scales == NULL) {
        l->rc = ERR_NO_MEMORY;
        return;
    }
    for (int i = 0; i < n_parts; row += parts[i++].slice.n_rows)
        loader_place_scales(m, scales, row, &parts[i]);
    if (!l->absent)
        l->rc = l->d->ops->upload(l->d, dev_scales, scales, n_scales * sizeof *scales);
    mem_free(scales);
    if (!k_format_has_groups(&m->format) && l->rc == ERR_OK)
        m->x_scale = loader_input_scale(l, parts, n_parts);
    m->format.has_x_scale = m->x_scale != NULL;
}

/* Set the targets of a matrix's parts, which follow one another in m->data. dev_scales belongs to
 * the first row of the matrix. */
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

        if (k_format_is_packed(&m->format) || k_format_is_coded(&m->format) ||
            (m->format.elem == K_INT8 && to.part.kind == NULL)) {
            size_t numbers = row * (size_t)k_format_scale_cols(&m->format, m->n_in);

            to.use = BYTES_PACKED;
            to.packed = m->format;
            to.scales = dev_scales + numbers;
            if (m->zeros != NULL)
                to.zeros = (float *)(uintptr_t)m->zeros + numbers;
            to.at = row * k_format_row_bytes(&m->format, m->n_in);
        } else if (parts[i].is_turned) {
            to.use = BYTES_TURNED;
            to.is_bf16 = !is_plain;
        } else if (loader_is_rounded_part(m, &parts[i])) {
            to.use = BYTES_QUANTISED;
            to.scales = dev_scales + row;
        } else if (!is_plain && (to.part.kind != NULL || m->format.elem == K_BF16_KEPT)) {
            /* The file's elements are the device's. */
            to.use = BYTES_COPIED;
            if (m->format.elem == K_INT8)
                to.part.format = m->format; /* of kinds with values it is plain */
            to.at = row * k_format_row_bytes(&m->format, m->n_in);
        } else if (!is_plain) {
            /* Plain in the file, rounded by the setting `quantization`. */
            to.use = BYTES_ROUNDED;
            to.scales = dev_scales + row;
        } else if (slice_is_padded(&parts[i].slice.shape)) {
            to.use = BYTES_WIDENED;
            to.packed = to_round;
        } else if (to.part.kind != NULL || rounds) {
            to.use = BYTES_CONVERTED;
            to.packed = to_round;
        }
        loader_list_target(l, parts[i].item, &to);
    }
}

/* Zeros, which rooms keep: other elements follow. */
static void loader_clear(struct loader *l, const struct k_matrix *m)
{
    float *row = mem_zalloc_array((size_t)m->n_in, sizeof *row);

    if (row == NULL)
        l->rc = ERR_NO_MEMORY;
    for (int i = 0; i < m->n_out && l->rc == ERR_OK; i++)
        l->rc = l->d->ops->weights(l->d, m->data, (size_t)i * (size_t)m->n_in, row, DEVICE_F32,
                                   (size_t)m->n_in);
    mem_free(row);
}

/* --- matrices and vectors -------------------------------------------------------------- */

/* These are called by weights.c in the order of the layers. Without files (dummy weights) they fill
 * memory at once instead of listing tensors. */

/* A part that this rank does not have: its tensor is read for others only. */
static void loader_leave_out(struct slice *s)
{
    s->n_rows = 0;
    for (int i = 0; i < s->shape.n_pieces; i++)
        s->shape.pieces[i].own_rows = 0;
}

/* The parts of a matrix in their order, looked up in the checkpoint. */
static void loader_find_parts(struct loader *l, struct part *parts, int n_parts,
                              const struct loader_tensors *all, enum loader_use use)
{
    for (int i = 0; i < n_parts && l->rc == ERR_OK; i++) {
        int which = i % all->n, expert = i / all->n;
        struct part *part = &parts[i];

        *part = (struct part){.pattern = all->patterns[which],
                              .expert = all->n_experts > 0 ? expert : -1,
                              .slice = slice_make(&all->shapes[which], l->share, l->n_shares),
                              .is_turned = all->is_mixed || all->is_turned[which] ||
                                           (loader_is_of_layer(use) && l->c->form.is_turned)};
        if (all->n_own_experts < all->n_experts && expert / all->n_own_experts != l->share)
            loader_leave_out(&part->slice);
        if (l->files == NULL)
            continue;
        if (all->in_one)
            loader_find_in_one(l, part, all->n_experts);
        else
            loader_find_part(l, part);
        if (use == USE_EXPERTS)
            quant_keep_mxfp4(&part->q);
    }
}

/* Place a matrix behind the experts of another; false: it cannot be there. */
static bool loader_place_behind(struct loader *l, struct k_matrix *m,
                                const struct loader_tensors *all)
{
    const struct k_matrix *b = all->behind;
    struct k_format format = b != NULL ? b->format : plain;
    size_t row_bytes = (size_t)m->n_in * l->d->elem_bytes;

    format.has_x_scale = m->format.has_x_scale;
    if (b == NULL || l->absent || b->data == NULL || b->n_in != m->n_in ||
        b->n_out != all->n_before * m->n_out || !k_format_is_same(&format, &m->format) ||
        k_format_is_packed(&format) || (format.group_rows > 0 && m->n_out % format.group_rows != 0))
        return false;
    if (!k_format_is_plain(&format))
        row_bytes = k_format_row_bytes(&format, m->n_in);
    m->data = (char *)b->data + (size_t)b->n_out * row_bytes;
    if (format.group_rows > 0)
        m->scales = (const float *)b->scales + loader_n_scales(b);
    if (format.has_zeros)
        m->zeros = (const float *)b->zeros + loader_n_scales(b);
    return true;
}

/* The memory of a matrix whose format is known, and of its scales. */
static void loader_place_matrix(struct loader *l, struct k_matrix *m,
                                const struct loader_tensors *all)
{
    size_t row_bytes = k_format_is_plain(&m->format) ? (size_t)m->n_in * l->d->elem_bytes
                                                     : k_format_row_bytes(&m->format, m->n_in);
    struct k_matrix roomy = *m;

    if (loader_place_behind(l, m, all))
        return;
    if (all->n_spare > 0)
        roomy.n_out += m->n_out / all->n_own_experts * all->n_spare;
    m->data = loader_allocate(l, (size_t)roomy.n_out * row_bytes);
    if (m->format.group_rows > 0)
        m->scales = loader_allocate(l, loader_n_scales(&roomy) * sizeof(float));
    if (m->format.group_rows > 0 && m->format.has_zeros)
        m->zeros = loader_allocate(l, loader_n_scales(&roomy) * sizeof(float));
}

/* Give a matrix of known parts its format and its memory, and list what goes there. */
static void loader_fill_matrix(struct loader *l, struct k_matrix *matrix, struct part *parts,
                               int n_parts, enum loader_use use, const struct loader_tensors *all)
{
    float *scales;

    loader_choose_format(l, matrix, parts, n_parts, use);
    if (k_format_is_mxfp4(&matrix->format)) {
        loader_fill_mxfp4(l, matrix, parts, n_parts, all);
        return;
    }
    loader_place_matrix(l, matrix, all);
    for (int i = 0; i < all->n && l->files != NULL && !l->absent && l->rc == ERR_OK; i++) {
        if (slice_is_padded(&all->shapes[i])) {
            loader_clear(l, matrix);
            break;
        }
    }
    scales = (float *)(uintptr_t)matrix->scales;
    l->w->is_packed =
        l->w->is_packed ||
        (!l->absent && (k_format_is_packed(&matrix->format) || matrix->format.elem == K_INT8));
    l->w->has_bytes = l->w->has_bytes || (!l->absent && matrix->format.elem == K_INT8);
    l->w->is_rounded = l->w->is_rounded ||
                       (!l->absent && matrix->format.elem == K_INT4 && matrix->format.rounds_x);
    l->w->reads_codes = l->w->reads_codes || (!l->absent && k_format_reads_codes(&matrix->format));
    if (l->rc != ERR_OK)
        return;
    if (l->files == NULL)
        loader_fill_random(l, matrix, scales, parts, n_parts);
    else
        loader_list_parts(l, matrix, scales, parts, n_parts, use);
    if (l->files != NULL && matrix->format.group_rows > 0 && parts[0].q.kind != NULL &&
        !k_format_is_coded(&matrix->format) && !loader_is_rounded_part(matrix, &parts[0]))
        loader_fill_scales(l, matrix, scales, parts, n_parts);
}

/* Look up all parts first, because the format of the matrix depends on all of them. */
struct k_matrix loader_matrix(struct loader *l, const struct loader_tensors *all,
                              enum loader_use use)
{
    int n_parts = all->n * (all->n_experts > 0 ? all->n_experts : 1);
    struct k_matrix matrix = {.n_in =
                                  slice_padded(&all->shapes[0].pad_cols, all->shapes[0].own_cols)};
    struct part *parts;

    must(all->n >= 1 && all->n <= LOADER_TENSORS_MAX);
    if (l->rc != ERR_OK)
        return matrix;
    if ((parts = mem_zalloc_array((size_t)n_parts, sizeof *parts)) == NULL) {
        l->rc = ERR_NO_MEMORY;
        return matrix;
    }
    loader_find_parts(l, parts, n_parts, all, use);
    for (int i = 0; i < n_parts; i++)
        matrix.n_out += parts[i].slice.n_rows;
    if (l->rc == ERR_OK)
        loader_fill_matrix(l, &matrix, parts, n_parts, use, all);
    loader_adapt(l, &matrix, all, use);
    mem_free(parts);
    return matrix;
}

/* The shape of a vector with one number per row of a tensor: its bias. */
struct slice_shape loader_row_shape(const struct slice_shape *shape)
{
    struct slice_shape row_shape = *shape;

    row_shape.cols = row_shape.own_cols = 1;
    return row_shape;
}

/* A bias added to a sum over ranks must be added once: only the first rank of a stage has it. */
void *loader_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split)
{
    struct slice slices[LOADER_TENSORS_MAX];
    size_t n = 0, at = 0;
    void *dst = NULL;

    for (int i = 0; i < all->n; i++) {
        const struct slice_shape shape = loader_row_shape(&all->shapes[i]);

        slices[i] = slice_make(&shape, l->share, l->n_shares);
        n += (size_t)slices[i].n_rows;
    }
    if (l->share == 0 || split != SPLIT_COLUMNS)
        dst = loader_allocate(l, n * l->d->elem_bytes);
    for (int i = 0; i < all->n && l->files != NULL; i++) {
        char name[400];

        loader_name(l, name, sizeof name, all->patterns[i], ".bias");
        loader_fill_vector(l, dst, at, name, &slices[i], false);
        at += (size_t)slices[i].n_rows;
    }
    return dst;
}

/* The tensor of loader_numbers(); NULL (logged) if it is missing or has another shape or type. */
const struct tensor *loader_find_numbers(struct loader *l, const char *whole, int rows, int cols)
{
    const struct tensor *tensor;
    enum device_type type;
    int64_t wanted = (int64_t)rows * cols, n = 1;
    char name[400];

    loader_whole_name(l, name, sizeof name, whole);
    if ((tensor = checkpoint_find(l->files, name)) == NULL) {
        log_error("model: tensor %s is missing", name);
        l->rc = ERR_NOT_FOUND;
        return NULL;
    }
    loader_check_type(l, tensor, &type);
    for (int i = 0; i < tensor->n_dims && n <= wanted; i++)
        n = tensor->dims[i] <= wanted ? n * tensor->dims[i] : wanted + 1;
    if (l->rc == ERR_OK &&
        (n != wanted || (cols > 1 && tensor->dims[tensor->n_dims - 1] != cols))) {
        log_error("model: %s: tensor %s has %d dimensions, the first %lld; config.json says "
                  "[%d][%d]",
                  checkpoint_path(l->files, tensor), name, tensor->n_dims,
                  tensor->n_dims > 0 ? (long long)tensor->dims[0] : 0LL, rows, cols);
        l->rc = ERR_INVALID;
    }
    if (l->rc != ERR_OK)
        return NULL;
    loader_list_tensor(l, tensor);
    return tensor;
}

/* Random models have ones, the neutral weight of a norm. */
void *loader_vector(struct loader *l, const char *pattern, const struct slice_shape *shape,
                    bool plus_one)
{
    const struct slice slice = slice_make(shape, l->share, l->n_shares);
    void *dst = loader_allocate(l, (size_t)slice.n_rows * l->d->elem_bytes);
    char name[400];
    float ones[256];

    if (l->files != NULL && pattern != NULL) {
        loader_whole_name(l, name, sizeof name, pattern);
        loader_fill_vector(l, dst, 0, name, &slice, plus_one);
        return dst;
    }
    for (int i = 0; i < 256; i++)
        ones[i] = 1.0f;
    for (int i = 0; i < slice.n_rows && l->rc == ERR_OK && dst != NULL; i += 256)
        l->rc = l->d->ops->weights(l->d, dst, (size_t)i, ones, DEVICE_F32,
                                   (size_t)(slice.n_rows - i < 256 ? slice.n_rows - i : 256));
    return dst;
}

/* Writers of checkpoints disagree about the name: three are tried. */
float loader_kv_scale(struct loader *l, const char *own, const char *pattern, const char *ending)
{
    const struct tensor *tensor = loader_tensor_beside(l, own, -1, ending);
    float scale = 1.0f;

    if (tensor == NULL)
        tensor = loader_tensor_beside(l, pattern, -1, ending);
    if (tensor == NULL)
        tensor = loader_tensor_beside(l, pattern, -1, "output_scale");
    if (tensor != NULL && quant_single(&scale, tensor) != ERR_OK) {
        log_error("model: %s: tensor %s is not one number of F32, BF16, F16 or F8_E8M0",
                  checkpoint_path(l->files, tensor), tensor->name);
        l->rc = ERR_UNSUPPORTED;
    }
    return scale;
}

/* The digest covers every listed tensor, whichever ranks use it. */
int loader_read(struct loader *l)
{
    const struct reader reader = {.files = l->files,
                                  .device = l->ranks[0].device,
                                  .items = l->items,
                                  .n_items = l->n_items,
                                  .place = loader_place_bytes,
                                  .context = l};
    int rc;

    (void)pthread_mutex_init(&l->turn, NULL); /* default attributes: cannot fail on Linux */
    rc = reader_run(&reader);
    (void)pthread_mutex_destroy(&l->turn);
    if (rc == ERR_OK)
        rc = loader_arrange(l);
    if (rc == ERR_OK)
        loader_make_digest(l);
    return rc;
}

/* Also after errors, at any point. */
void loader_fini(struct loader *l)
{
    for (size_t i = 0; i < l->n_items; i++) {
        /* Not NULL only if reading failed half-way. */
        mem_free(loader_leader(l, i)->turned);
        mem_free(loader_leader(l, i)->whole);
    }
    mem_free(l->arranged);
    mem_free(l->targets);
    mem_free(l->items);
    arena_reset(&l->views);
    checkpoint_close(l->files);
}
