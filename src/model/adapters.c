/* SPDX-License-Identifier: Apache-2.0
 *
 * Adapters of a rank's matrices.
 *
 * Names are compared without the prefix of the text model, which depends on who saved the file. B's
 * rows take the order of the matrix's rows: rows of queries and keys are reordered for the layer's
 * rope (rope.h). The cpu device has B transposed, GPUs have its rows, each with room for a multiple
 * of 16 ranks. */
#include "model/adapters.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/device.h"

#define ALIGN_BYTES ((size_t)64)

/* A tensor of a matrix. */
struct adapters_target {
    const char *name; /* without prefix */
    struct slice slice;
    struct k_adapted *part;  /* NULL: another rank has it */
    bool of_rows;            /* of the output matrix */
    struct k_adapter *table; /* [n_slots]: the part's slots, in host memory */
};

/* Different orders of heads in a model: at most one per rope, on each of its ranks. */
#define ORDERS_MAX 8

struct adapters {
    struct arena arena;
    struct adapters_target *targets; /* [n_targets] */
    size_t n_targets, targets_cap;
    const struct head_order *orders[ORDERS_MAX]; /* copies, which the targets' slices point to */
    int n_orders;
    struct k_adapters *last; /* noted */
    int n_slots, rank_max, widest;
    char *memory; /* of the device: [n_slots][slot_bytes] */
    size_t slot_bytes;
    struct k_adapter *table; /* of the device, [n_targets][n_slots]; NULL: it reads the host's */
    struct k_adapter *all;   /* as table, on its way */
    float *stage;            /* float [stage_len]: a matrix on its way */
    size_t stage_len;
};

/* A name without the prefix of the text model. */
static const char *adapters_short_name(const char *name)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                           "language_model.",       "model.",
                                           "transformer.",          "backbone."};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t len = strlen(prefixes[i]);

        if (strncmp(name, prefixes[i], len) == 0)
            return name + len;
    }
    return name;
}

struct adapters *adapters_new(int n_slots, int rank_max)
{
    struct adapters *adapters = mem_zalloc(sizeof *adapters);

    must(n_slots >= 1 && rank_max >= 1);
    if (adapters == NULL)
        return NULL;
    adapters->n_slots = n_slots;
    adapters->rank_max = rank_max;
    return adapters;
}

void adapters_free(struct adapters *a)
{
    if (a == NULL)
        return;
    mem_free(a->targets);
    mem_free(a->stage);
    mem_free(a->all);
    arena_reset(&a->arena);
    mem_free(a);
}

/* Room for one more target. */
static bool adapters_grow(struct adapters *a)
{
    size_t cap = a->targets_cap == 0 ? 64 : 2 * a->targets_cap;
    struct adapters_target *targets;

    if (a->n_targets < a->targets_cap)
        return true;
    targets = mem_realloc(a->targets, cap * sizeof *targets);
    if (targets == NULL)
        return false;
    a->targets = targets;
    a->targets_cap = cap;
    return true;
}

/* A copy of an order that lasts: the loader's end with it, and adapters come later. NULL: no
 * memory. */
static const struct head_order *adapters_keep_order(struct adapters *a,
                                                    const struct head_order *order)
{
    struct head_order *copy;

    for (int i = 0; i < a->n_orders; i++) {
        if (memcmp(a->orders[i], order, sizeof *order) == 0)
            return a->orders[i];
    }
    must(a->n_orders < ORDERS_MAX);
    copy = arena_zalloc(&a->arena, sizeof *copy);
    if (copy == NULL)
        return NULL;
    memcpy(copy, order, sizeof *copy);
    return a->orders[a->n_orders++] = copy;
}

static bool adapters_keep_orders(struct adapters *a, struct slice *slice)
{
    for (int i = 0; i < slice->shape.n_pieces; i++) {
        struct slice_piece *piece = &slice->shape.pieces[i];

        if (piece->order != NULL && (piece->order = adapters_keep_order(a, piece->order)) == NULL)
            return false;
    }
    return true;
}

const struct k_adapters *adapters_note(struct adapters *a, const char *const *names,
                                       const struct slice *slices, int n, bool of_rows, bool absent)
{
    struct k_adapters *matrix = arena_zalloc(&a->arena, sizeof *matrix);
    int first = 0;

    must(n >= 1 && n <= K_ADAPTED_MAX);
    if (matrix == NULL)
        return NULL;
    matrix->n_parts = n;
    matrix->n_in = slices[0].n_cols;
    matrix->of_rows = of_rows;
    if (a->last != NULL && !of_rows && !absent)
        a->last->next = matrix;
    a->last = absent ? NULL : matrix;
    for (int i = 0; i < n; i++) {
        const char *name = adapters_short_name(names[i]);
        struct k_adapted *part = &matrix->parts[i];
        struct adapters_target *target;

        *part = (struct k_adapted){.first = first, .n_out = slices[i].n_rows};
        part->slots = arena_zalloc(&a->arena, (size_t)a->n_slots * sizeof *part->slots);
        if (part->slots == NULL || !adapters_grow(a))
            return NULL;
        target = &a->targets[a->n_targets++];
        *target = (struct adapters_target){.slice = slices[i],
                                           .part = absent ? NULL : part,
                                           .of_rows = of_rows,
                                           .table = part->slots};
        if (!adapters_keep_orders(a, &target->slice) ||
            (target->name = arena_strndup(&a->arena, name, strlen(name))) == NULL)
            return NULL;
        first += slices[i].n_rows;
    }
    return matrix;
}

static size_t adapters_aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* A GPU reads the table of slots in its own memory. alloc() clears it: rank 0 everywhere. */
static bool adapters_alloc_table(struct adapters *a, struct device *d)
{
    size_t n = a->n_targets * (size_t)a->n_slots;

    a->table = d->ops->alloc(d, n * sizeof *a->table);
    a->all = mem_zalloc_array(n, sizeof *a->all);
    if (a->table == NULL || a->all == NULL)
        return false;
    for (size_t i = 0; i < a->n_targets; i++) {
        if (a->targets[i].part != NULL)
            a->targets[i].part->slots = a->table + i * (size_t)a->n_slots;
    }
    return true;
}

/* Bring the host's table to the device. Other slots' entries are as they were. */
static int adapters_store_table(const struct adapters *a, struct device *d)
{
    size_t slots = (size_t)a->n_slots;

    if (a->table == NULL)
        return ERR_OK;
    for (size_t i = 0; i < a->n_targets; i++)
        memcpy(a->all + i * slots, a->targets[i].table, slots * sizeof *a->all);
    return d->ops->upload(d, a->table, a->all, a->n_targets * slots * sizeof *a->all);
}

/* Numbers of B for one row of the matrix. */
static size_t adapters_b_stride(int rank, bool is_gpu)
{
    return is_gpu ? (size_t)K_ADAPT_STRIDE(rank) : (size_t)rank;
}

/* Memory that a sleep leaves alone: an adapter may be placed after one, and the copy that a GPU's
 * sleep makes of constant memory is made once. */
int adapters_alloc(struct adapters *a, struct device *d)
{
    size_t most = (size_t)a->rank_max, stride = adapters_b_stride(a->rank_max, d->is_gpu);

    for (size_t i = 0; i < a->n_targets; i++) {
        const struct slice *slice = &a->targets[i].slice;
        size_t n_a = most * (size_t)slice->n_cols, n_b = stride * (size_t)slice->n_rows;

        if (a->targets[i].part == NULL)
            continue;
        a->slot_bytes +=
            adapters_aligned(n_a * d->elem_bytes) + adapters_aligned(n_b * d->elem_bytes);
        if (slice->n_cols > a->widest)
            a->widest = slice->n_cols;
        if ((n_a > n_b ? n_a : n_b) > a->stage_len)
            a->stage_len = n_a > n_b ? n_a : n_b;
    }
    a->memory = d->ops->alloc(d, (size_t)a->n_slots * a->slot_bytes + ALIGN_BYTES);
    a->stage = mem_alloc(a->stage_len * sizeof *a->stage);
    if (a->memory == NULL || a->stage == NULL || (d->is_gpu && !adapters_alloc_table(a, d)))
        return ERR_NO_MEMORY;
    return ERR_OK;
}

int adapters_widest(const struct adapters *a)
{
    return a->widest;
}

/* --- one adapter ------------------------------------------------------------------------ */

/* The pair of a target; NULL: the adapter leaves it as it is. */
static const struct adapter_pair *adapters_pair_of(const struct adapter *of,
                                                   const struct adapters_target *target)
{
    for (size_t i = 0; i < adapter_n_pairs(of); i++) {
        const struct adapter_pair *pair = adapter_pair(of, i);

        if (strcmp(adapters_short_name(pair->module), target->name) == 0)
            return pair;
    }
    return NULL;
}

/* A module that no matrix is for. */
static int adapters_refuse_module(const struct adapter_pair *pair, char *why, size_t why_cap)
{
    const char *reason = "the model has no such matrix, or none that takes adapters; is it of "
                         "another base model?";

    if (strstr(pair->module, "experts.") != NULL)
        reason = "adapters of experts are not supported";
    (void)snprintf(why, why_cap, "%.200s: %s", pair->module, reason);
    return ERR_UNSUPPORTED;
}

int adapters_check(const struct adapters *a, const struct adapter *of, char *why, size_t why_cap)
{
    if (adapter_rank(of) > a->rank_max) {
        (void)snprintf(why, why_cap, "its rank %d is above max_lora_rank %d", adapter_rank(of),
                       a->rank_max);
        return ERR_INVALID;
    }
    for (size_t i = 0; i < adapter_n_pairs(of); i++) {
        const struct adapter_pair *pair = adapter_pair(of, i);
        const char *name = adapters_short_name(pair->module);
        const struct adapters_target *target = NULL;

        for (size_t j = 0; j < a->n_targets && target == NULL; j++) {
            if (strcmp(a->targets[j].name, name) == 0)
                target = &a->targets[j];
        }
        if (target == NULL)
            return adapters_refuse_module(pair, why, why_cap);
        if (pair->a->dims[1] == target->slice.cols && pair->b->dims[0] == target->slice.rows)
            continue;
        (void)snprintf(why, why_cap,
                       "%.200s is for a matrix [%lld][%lld], and the model's is [%d][%d]: it is "
                       "of another base model",
                       pair->module, (long long)pair->b->dims[0], (long long)pair->a->dims[1],
                       target->slice.rows, target->slice.cols);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* [rank][n_cols]: the rank's columns of A. */
static void adapters_take_a(const struct adapter_pair *pair, const struct slice *slice, float *to)
{
    for (int k = 0; k < pair->rank; k++)
        adapter_numbers(pair->a, (size_t)k * (size_t)slice->cols + (size_t)slice->col,
                        to + (size_t)k * (size_t)slice->n_cols, (size_t)slice->n_cols);
}

/* [rank][n_rows]: the rank's rows of B, transposed. */
static void adapters_take_b(const struct adapter_pair *pair, const struct slice *slice, float *to)
{
    float row[ADAPTER_RANK_MAX];
    size_t rank = (size_t)pair->rank;

    for (int i = 0; i < slice->n_rows; i++) {
        adapter_numbers(pair->b, (size_t)slice_row(slice, i) * rank, row, rank);
        for (size_t k = 0; k < rank; k++)
            to[k * (size_t)slice->n_rows + (size_t)i] = row[k];
    }
}

/* A pair's matrices as they are in a slot, at an offset of it. NULL: rank 0. Returns the offset
 * behind them. */
static size_t adapters_lay(const struct adapters_target *target, const struct adapter_pair *pair,
                           bool is_gpu, char *slot, size_t at, struct k_adapter *out)
{
    size_t elem_bytes = is_gpu ? sizeof(k_bf16) : sizeof(float), n_a, n_b, b;

    *out = (struct k_adapter){.rank = 0};
    if (pair == NULL || target->part == NULL)
        return at;
    n_a = (size_t)pair->rank * (size_t)target->slice.n_cols;
    n_b = adapters_b_stride(pair->rank, is_gpu) * (size_t)target->slice.n_rows;
    b = at + adapters_aligned(n_a * elem_bytes);
    *out =
        (struct k_adapter){.a = slot + at, .b = slot + b, .rank = pair->rank, .scale = pair->scale};
    return b + adapters_aligned(n_b * elem_bytes);
}

/* [rank][n_cols] in bfloat16: the rank's columns of A. */
static void adapters_pack_a(const struct adapter_pair *pair, const struct slice *slice,
                            uint16_t *to)
{
    size_t n = (size_t)slice->n_cols;

    for (size_t k = 0; k < (size_t)pair->rank; k++)
        adapter_bf16(pair->a, k * (size_t)slice->cols + (size_t)slice->col, to + k * n, n);
}

/* [n_rows][K_ADAPT_STRIDE(rank)] in bfloat16: the rank's rows of B; zeros are there already. */
static void adapters_pack_b(const struct adapter_pair *pair, const struct slice *slice,
                            uint16_t *to)
{
    size_t rank = (size_t)pair->rank, stride = adapters_b_stride(pair->rank, true);

    for (int i = 0; i < slice->n_rows; i++)
        adapter_bf16(pair->b, (size_t)slice_row(slice, i) * rank, to + (size_t)i * stride, rank);
}

/* The bytes of a slot on a GPU: its numbers are bfloat16. */
int adapters_pack(const struct adapters *a, struct adapter *of, int idx)
{
    char *image = mem_zalloc(a->slot_bytes + 1);
    size_t at = 0;

    if (image == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < a->n_targets; i++) {
        const struct adapters_target *target = &a->targets[i];
        const struct adapter_pair *pair = adapters_pair_of(of, target);
        const struct slice *slice = &target->slice;
        struct k_adapter one;
        size_t next = adapters_lay(target, pair, true, image, at, &one);

        if (one.rank > 0) {
            size_t b = at + adapters_aligned(2 * (size_t)one.rank * (size_t)slice->n_cols);

            adapters_pack_a(pair, slice, (uint16_t *)(void *)(image + at));
            adapters_pack_b(pair, slice, (uint16_t *)(void *)(image + b));
        }
        at = next;
    }
    adapter_keep_image(of, idx, image, a->slot_bytes);
    return ERR_OK;
}

/* Each matrix by itself, of float32. */
static int adapters_copy(struct adapters *a, struct device *d, const struct adapters_target *target,
                         const struct adapter_pair *pair, const struct k_adapter *one)
{
    const struct slice *slice = &target->slice;
    void *to;
    int rc;

    adapters_take_a(pair, slice, a->stage);
    memcpy(&to, &one->a, sizeof to); /* removes const */
    rc = d->ops->weights(d, to, 0, a->stage, DEVICE_F32, (size_t)one->rank * (size_t)slice->n_cols);
    if (rc != ERR_OK)
        return rc;
    adapters_take_b(pair, slice, a->stage);
    memcpy(&to, &one->b, sizeof to);
    return d->ops->weights(d, to, 0, a->stage, DEVICE_F32,
                           (size_t)one->rank * (size_t)slice->n_rows);
}

int adapters_place(struct adapters *a, struct device *d, int slot, const struct adapter *of,
                   int idx)
{
    char *memory = a->memory + (size_t)slot * a->slot_bytes;
    const void *image = adapter_image(of, idx);
    size_t at = 0;
    int rc = ERR_OK;

    must(slot >= 0 && slot < a->n_slots && adapter_rank(of) <= a->rank_max);
    must(!d->is_gpu || image != NULL);
    for (size_t i = 0; i < a->n_targets && rc == ERR_OK; i++) {
        const struct adapters_target *target = &a->targets[i];
        const struct adapter_pair *pair = adapters_pair_of(of, target);
        struct k_adapter one;

        at = adapters_lay(target, pair, d->is_gpu, memory, at, &one);
        if (one.rank > 0 && !d->is_gpu)
            rc = adapters_copy(a, d, target, pair, &one);
        target->table[slot] = one;
    }
    if (d->is_gpu && at > 0 && rc == ERR_OK)
        rc = d->ops->upload(d, memory, image, at);
    return rc == ERR_OK ? adapters_store_table(a, d) : rc;
}

/* Numbers as small as those of a trained adapter, so that logits stay what they are. The output
 * matrix has none, as with PEFT's "all-linear". */
int adapters_place_noise(struct adapters *a, struct device *d, int slot, int rank)
{
    char *at = a->memory + (size_t)slot * a->slot_bytes;
    size_t n = a->slot_bytes / d->elem_bytes;
    const struct k_matrix all = {.data = at, .n_out = (int)(n / 16), .n_in = 16};
    int rc = d->ops->fill_random(d, &all, 1e-3f, (uint64_t)slot + 1);

    must(slot >= 0 && slot < a->n_slots && rank <= a->rank_max);
    for (size_t i = 0; i < a->n_targets; i++) {
        const struct adapters_target *target = &a->targets[i];
        size_t n_a = (size_t)rank * (size_t)target->slice.n_cols,
               n_b = adapters_b_stride(rank, d->is_gpu) * (size_t)target->slice.n_rows;
        char *b = at + adapters_aligned(n_a * d->elem_bytes);

        if (target->part == NULL || target->of_rows)
            continue;
        target->table[slot] = (struct k_adapter){.a = at, .b = b, .rank = rank, .scale = 1.0f};
        at = b + adapters_aligned(n_b * d->elem_bytes);
    }
    return rc == ERR_OK ? adapters_store_table(a, d) : rc;
}
