/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices that stay packed (kernels/packed.h): whether their tensors allow it, and the strips that
 * their codes, scales and zero points become on each rank. No number is computed: bits move. */
#include "base/mem.h"
#include "model/loader_parts.h"

#define STRIPS 32 /* that are sent at a time */

/* Do a rank's rows and columns begin and end where strips and groups do? Rows of a strip may come
 * from anywhere in the tensor. */
static bool loader_slice_fits(const struct slice *s, const struct quant_part *p,
                              const struct k_format *f)
{
    return s->n_rows % K_PACKED_ROWS == 0 && s->n_cols % K_PACKED_COLS == 0 &&
           (p->group == p->cols || s->col % f->group_cols == 0);
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

int loader_pack(struct loader *l, size_t idx, const uint8_t *bytes)
{
    int rc = ERR_OK;

    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
        const struct target *to = loader_target_of(l, idx, i);

        if (to->use == BYTES_PACKED)
            rc = k_format_is_packed(&to->packed) ? loader_pack_rank(l, i, to, bytes)
                                                 : loader_round_rank(l, i, to, bytes);
    }
    return rc;
}
