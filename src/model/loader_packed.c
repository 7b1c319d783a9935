/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices that stay packed (kernels/packed.h, or codes in the order of a row): whether their
 * tensors allow it, and the strips or rows that their codes, scales and zero points become on each
 * rank. No number is computed: bits move. */
#include <string.h>

#include "base/mem.h"
#include "model/loader_parts.h"

#define STRIPS 32 /* that are sent at a time */

/* Do a rank's columns begin and end where groups do? */
static bool loader_groups_fit(const struct slice *s, const struct quant_part *p,
                              const struct k_format *f)
{
    return s->n_cols % 32 == 0 &&
           (p->group == p->cols || (s->col % f->group_cols == 0 && s->n_cols % f->group_cols == 0));
}

/* And rows and columns where strips do? Rows of a strip may come from anywhere in the tensor. */
static bool loader_slice_fits(const struct slice *s, const struct quant_part *p,
                              const struct k_format *f)
{
    return s->n_rows % K_PACKED_ROWS == 0 && s->n_cols % K_PACKED_COLS == 0 &&
           loader_groups_fit(s, p, f);
}

bool loader_has_bytes(const struct loader *l, const struct part *parts, int n_parts,
                      enum loader_use use, struct k_format *out)
{
    *out = k_format_by_row(K_INT8);
    out->rounds_x = l->c->quant.rounds_x;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].expert >= 0 || parts[i].is_turned || !quant_is_bytes(&parts[i].q))
            return false;
    }
    return l->files != NULL && use != USE_TABLE && use != USE_ADDED;
}

enum quant_mixed loader_mixed(const struct loader *l, const struct part *parts, int n_parts)
{
    enum quant_mixed how = QUANT_MIXED_PLAIN;

    for (int i = 0; i < n_parts; i++) {
        char stem[400];
        enum quant_mixed own;

        loader_name(l, stem, sizeof stem, parts[i].pattern, "");
        own = quant_mixed_of(&l->c->quant.mix, stem);
        if (i > 0 && own != how)
            return QUANT_MIXED_PLAIN;
        how = own;
    }
    return how;
}

/* loader_packs() without rounding of inputs. */
static bool loader_packs_as(const struct loader *l, const struct part *parts, int n_parts,
                            enum loader_use use, struct k_format *out)
{
    *out = l->c->quant.packed;
    if (l->files == NULL && use == USE_LAYER && parts[0].expert < 0)
        return k_format_is_packed(out) &&
               (l->c->quant.mix.n == 0 || loader_mixed(l, parts, n_parts) == QUANT_MIXED_FP4);
    for (int i = 0; i < n_parts; i++) {
        struct k_format format;
        bool has_zeros = i > 0 && out->has_zeros;

        if (parts[i].expert >= 0 || parts[i].is_turned || !quant_packs(&format, &parts[i].q) ||
            !loader_slice_fits(&parts[i].slice, &parts[i].q, &format) ||
            slice_cuts_blocks(&parts[i].slice, k_type_block(parts[i].q.format.elem)))
            return false;
        format.has_zeros = format.has_zeros || has_zeros;
        if (i > 0 && (format.elem != out->elem || format.scale != out->scale ||
                      format.group_cols != out->group_cols))
            return false;
        *out = format;
    }
    return l->files != NULL && use != USE_TABLE && use != USE_ADDED;
}

bool loader_codes(const struct loader *l, const struct part *parts, int n_parts,
                  enum loader_use use, struct k_format *out)
{
    struct k_format first = {.elem = K_BF16};
    bool has_zeros = false;

    for (int i = 0; i < n_parts; i++) {
        struct k_format format;

        if (parts[i].is_turned || !quant_has_values(&parts[i].q) ||
            !quant_packs(&format, &parts[i].q) ||
            (parts[i].slice.n_rows > 0 &&
             !loader_groups_fit(&parts[i].slice, &parts[i].q, &format)))
            return false;
        has_zeros = has_zeros || format.has_zeros;
        if (i == 0)
            first = format;
        if (format.elem != first.elem || format.group_cols != first.group_cols)
            return false;
    }
    *out = k_format_coded(first.elem == K_INT8 ? K_U8 : K_U4, first.group_cols, has_zeros);
    return (first.elem == K_INT4 || first.elem == K_INT8) && l->files != NULL && use != USE_TABLE &&
           use != USE_ADDED;
}

bool loader_packs(const struct loader *l, const struct part *parts, int n_parts,
                  enum loader_use use, struct k_format *out)
{
    bool packs = loader_packs_as(l, parts, n_parts, use, out);

    out->rounds_x = l->c->quant.rounds_x && out->elem == K_INT4;
    return packs;
}

/* The strip of a rank's rows first .. first + 15. */
static void loader_make_strip(uint8_t *strip, const struct k_unpacked *rows,
                              const struct target *to, const uint8_t *bytes, int first)
{
    const struct k_packing packing = k_packing_of(&to->packed);
    const struct slice *slice = &to->slice;
    size_t numbers = (size_t)(slice->n_cols / packing.group);

    for (int i = 0; i < K_PACKED_ROWS; i++) {
        const struct k_unpacked row = {rows->codes + (size_t)i * (size_t)slice->n_cols,
                                       rows->scales +
                                           (size_t)i * numbers * (size_t)packing.scale_bytes,
                                       rows->zeros + (size_t)i * numbers};

        quant_codes(&row, &to->part, &to->packed, bytes,
                    (struct quant_run){slice_row(slice, first + i), slice->col, slice->n_cols});
    }
    k_pack_strip(strip, &packing, rows, K_PACKED_ROWS, slice->n_cols);
}

/* Pack a rank's rows, some strips at a time. */
static int loader_pack_rank(struct loader *l, int rank, const struct target *to,
                            const uint8_t *bytes)
{
    struct device *d = l->ranks[rank].device;
    const struct k_packing packing = k_packing_of(&to->packed);
    size_t n_cols = (size_t)to->slice.n_cols, strip = k_packed_strip_bytes(&packing, (int)n_cols);
    size_t codes = K_PACKED_ROWS * n_cols, numbers = codes / (size_t)packing.group;
    uint8_t *strips = mem_alloc(STRIPS * strip + codes + 3 * numbers);
    const struct k_unpacked rows = {strips + STRIPS * strip, strips + STRIPS * strip + codes,
                                    strips + STRIPS * strip + codes + 2 * numbers};
    int rc = strips == NULL ? ERR_NO_MEMORY : ERR_OK, n = to->slice.n_rows / K_PACKED_ROWS;

    for (int first = 0; first < n && rc == ERR_OK; first += STRIPS) {
        int some = n - first < STRIPS ? n - first : STRIPS;

        for (int i = 0; i < some; i++)
            loader_make_strip(strips + (size_t)i * strip, &rows, to, bytes,
                              (first + i) * K_PACKED_ROWS);
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = d->ops->upload(d, (char *)to->dst + to->at + (size_t)first * strip, strips,
                            (size_t)some * strip);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(strips);
    return rc;
}

/* Round a rank's rows to bytes, some at a time; a row's scale is that of all ranks. */
static int loader_round_rank(struct loader *l, int rank, const struct target *to,
                             const uint8_t *bytes)
{
    enum { ROWS = STRIPS * K_PACKED_ROWS };
    struct device *d = l->ranks[rank].device;
    size_t n_cols = (size_t)to->slice.n_cols;
    uint8_t *codes = mem_alloc(ROWS * n_cols);
    float scales[ROWS];
    int rc = codes == NULL ? ERR_NO_MEMORY : ERR_OK, n = to->slice.n_rows;

    for (int first = 0; first < n && rc == ERR_OK; first += ROWS) {
        int some = n - first < ROWS ? n - first : ROWS;

        for (int i = 0; i < some; i++)
            scales[i] = quant_bytes(codes + (size_t)i * n_cols, &to->part, bytes,
                                    (struct quant_run){slice_row(&to->slice, first + i),
                                                       to->slice.col, to->slice.n_cols});
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = d->ops->upload(d, (char *)to->dst + to->at + (size_t)first * n_cols, codes,
                            (size_t)some * n_cols);
        if (rc == ERR_OK)
            rc = d->ops->upload(d, to->scales + first, scales, (size_t)some * sizeof scales[0]);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(codes);
    return rc;
}

/* The rows of codes that a matrix in k_format_coded() has in memory, and their numbers. */
struct coded_rows {
    uint8_t *bytes, *codes; /* [ROWS][row_bytes]; of one row [n_cols] */
    float *scales, *zeros;  /* [ROWS][numbers] */
};

/* Row i of such rows is row `row` of the rank's slice. */
static void loader_code_row(const struct coded_rows *rows, int i, const struct target *to,
                            const uint8_t *bytes, int row)
{
    const struct slice *slice = &to->slice;
    size_t numbers = (size_t)k_format_scale_cols(&to->packed, slice->n_cols);
    size_t n_cols = (size_t)slice->n_cols, row_bytes = k_format_row_bytes(&to->packed, (int)n_cols);
    const struct quant_coded own = {rows->codes, rows->scales + (size_t)i * numbers,
                                    rows->zeros + (size_t)i * numbers};
    uint8_t *out = rows->bytes + (size_t)i * row_bytes;

    quant_code_row(&own, &to->part, &to->packed, bytes,
                   (struct quant_run){slice_row(slice, row), slice->col, slice->n_cols});
    if (to->packed.elem == K_U8) {
        memcpy(out, rows->codes, n_cols);
        return;
    }
    for (size_t k = 0; k < row_bytes; k++) {
        const uint8_t *low = rows->codes + k / 16 * 32 + k % 16;

        out[k] = (uint8_t)((low[0] & 15) | low[16] << 4);
    }
}

/* Bring a rank's rows of codes into the order of a row, some at a time. */
static int loader_code_rank(struct loader *l, int rank, const struct target *to,
                            const uint8_t *bytes)
{
    enum { ROWS = STRIPS };
    struct device *d = l->ranks[rank].device;
    int n_cols = to->slice.n_cols, n = to->slice.n_rows, rc = ERR_OK;
    size_t row_bytes = k_format_row_bytes(&to->packed, n_cols);
    size_t numbers = (size_t)k_format_scale_cols(&to->packed, n_cols);
    float *floats = mem_zalloc_array(2 * ROWS * numbers, sizeof *floats);
    uint8_t *memory = mem_alloc(ROWS * row_bytes + (size_t)n_cols);
    const struct coded_rows rows = {memory, memory + ROWS * row_bytes, floats,
                                    floats + ROWS * numbers};

    if (floats == NULL || memory == NULL)
        rc = ERR_NO_MEMORY;
    for (int first = 0; first < n && rc == ERR_OK; first += ROWS) {
        size_t some = (size_t)(n - first < ROWS ? n - first : ROWS);
        size_t at = (size_t)first * numbers, n_bytes = some * numbers * sizeof(float);

        for (size_t i = 0; i < some; i++)
            loader_code_row(&rows, (int)i, to, bytes, first + (int)i);
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = d->ops->upload(d, (char *)to->dst + to->at + (size_t)first * row_bytes, rows.bytes,
                            some * row_bytes);
        if (rc == ERR_OK)
            rc = d->ops->upload(d, to->scales + at, rows.scales, n_bytes);
        if (rc == ERR_OK && to->zeros != NULL)
            rc = d->ops->upload(d, to->zeros + at, rows.zeros, n_bytes);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(floats);
    mem_free(memory);
    return rc;
}

int loader_pack(struct loader *l, size_t idx, const uint8_t *bytes)
{
    int rc = ERR_OK;

    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
        const struct target *to = loader_target_of(l, idx, i);

        if (to->use == BYTES_PACKED && k_format_is_coded(&to->packed))
            rc = loader_code_rank(l, i, to, bytes);
        else if (to->use == BYTES_PACKED)
            rc = k_format_is_packed(&to->packed) ? loader_pack_rank(l, i, to, bytes)
                                                 : loader_round_rank(l, i, to, bytes);
    }
    return rc;
}
