/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: product_cut_of() cuts every shape so that the kernel can rely on it. Method: shapes of all
 * sizes, kinds and buckets, on GPUs with few and many multiprocessors; each is looked at for what
 * sm90_product.cu takes for granted. Llama-3.1-8B's are cut as kernels/README.md says. */
#include "kernels/product_cut.h"
#include "tests/tap.h"

/* Everything is covered once, and CTAs that share a tile run at the same time. */
static bool covers(const struct product_cut *c, int n_sms)
{
    int tail = c->tail_rows > 0 ? c->tail_rows : c->rows, n_tail = c->n_tiles - c->n_whole;
    long covered = (long)c->n_whole * c->rows + (long)n_tail * tail;

    return c->rows > 0 && covered >= c->n_out &&
           covered - (n_tail > 0 ? tail : c->rows) < c->n_out &&
           c->rows == c->n_blocks * c->block_rows && c->n_groups * c->n_split <= n_sms &&
           c->n_groups <= c->n_tiles && (c->n_split == 1 || c->n_tiles <= c->n_groups);
}

/* The last turn of a matrix with several tiles a CTA: none has more than one of the lower tiles,
 * whose blocks are of whole eights, and which end as the others do. */
static bool tail_fits(const struct product_cut *c, enum k_product_kind kind)
{
    if (c->tail_rows == 0)
        return c->n_whole == c->n_tiles;
    return kind == K_PRODUCT_FLOAT && c->rows_by_eight && c->n_blocks > 1 && c->n_split == 1 &&
           c->n_whole % c->n_groups == 0 && c->n_whole > 0 &&
           c->n_tiles - c->n_whole <= c->n_groups && c->tail_rows <= c->rows &&
           c->tail_rows % (8 * c->n_blocks) == 0;
}

/* A stage of w: eights of rows in their slabs, or strips of records. */
static bool holds_stage(const struct product_cut *c)
{
    if (c->packed)
        return c->block_rows % 16 == 0 && c->slab_bytes % 16 == 0 &&
               c->group_bytes == c->box * c->slab_bytes &&
               c->stage_bytes == c->block_rows / 16 * c->group_bytes &&
               c->x_at >= c->depth * c->stage_bytes && c->x_at % 1024 == 0;
    return c->stage_bytes == c->box * c->block_rows * CUT_SLAB && c->stage_bytes % 1024 == 0 &&
           c->x_at == c->depth * c->stage_bytes;
}

/* Slots hold what is copied to them; rings are long enough for two warpgroups that wait for each
 * other; what lies where does not overlap, nor does a wgmma read behind it. */
static bool has_room(const struct product_cut *c)
{
    int last = (c->depth - 1) * c->stage_bytes, stride = c->n_blocks * CUT_BLOCK + 4;
    int sums = c->n_blocks == 1 ? 2 * c->part * 4 : c->round * stride * 4;
    int least = c->n_blocks == 4 ? 5 : c->n_slabs / c->n_split > 64 ? 3 : 4;
    int reach =
        c->rows_by_eight ? 8 * c->group_bytes : (c->box - 1) * c->slab_bytes + CUT_BLOCK * CUT_SLAB;

    if (c->packed) /* four warps read a strip each */
        reach = 4 * c->group_bytes;

    return c->block_rows % 8 == 0 && c->block_rows <= CUT_BLOCK && c->box >= 1 &&
           c->box <= (c->packed ? 12 : 8) && holds_stage(c) && c->x_bytes % 1024 == 0 &&
           c->x_copied == c->box * c->x_slabs * c->x_rows * CUT_SLAB && c->x_copied <= c->x_bytes &&
           c->depth >= least && c->depth <= CUT_DEPTH_MAX &&
           c->x_depth >= (c->n_blocks == 1 ? 4 : 2) && c->x_depth <= CUT_DEPTH_MAX &&
           c->rest_at >= c->x_at + c->x_depth * c->x_bytes && c->rest_at >= c->red_at + sums &&
           (c->red_at == 0 ? c->n_tiles <= c->n_groups && c->round >= c->columns
                           : c->red_at >= c->x_at + c->x_depth * c->x_bytes) &&
           c->first_stages >= 1 && c->first_stages <= c->depth &&
           c->first_stages <= (c->n_slabs / c->n_split + c->box - 1) / c->box * c->n_blocks &&
           c->red_at % 16 == 0 && c->rest_at % 16 == 0 && c->smem == c->rest_at + CUT_REST_BYTES &&
           c->smem <= CUT_SMEM_MAX && last + reach <= c->smem;
}

/* Two CTAs with one block leave sums over two stages of w, those of the other CTA over the one that
 * would be filled next. */
static bool sums_have_slots(const struct product_cut *c)
{
    int sums = 2 * c->part * 4;

    if (c->n_blocks > 1 || c->n_split == 1)
        return true;
    if (c->packed) /* places of their own, behind the rings */
        return c->own_at[0] >= c->x_at + c->x_depth * c->x_bytes && c->own_at[0] % 16 == 0 &&
               c->own_at[1] == c->own_at[0] && c->sent_at[0] >= c->own_at[0] + sums &&
               c->sent_at[1] == c->sent_at[0] && c->sent_at[0] + sums <= c->rest_at;
    for (int rank = 0; rank < 2; rank++) {
        int slabs = (rank + 1) * c->n_slabs / 2 - rank * c->n_slabs / 2;
        int next = (slabs + c->box - 1) / c->box % c->depth * c->stage_bytes;

        if (c->sent_at[rank] != next || c->own_at[rank] == next || c->own_at[rank] < 0 ||
            c->own_at[rank] + c->stage_bytes > c->x_at || c->own_at[rank] % c->stage_bytes != 0)
            return false;
    }
    return sums <= c->stage_bytes;
}

/* What the ends of tiles take four or sixteen rows at a time. */
static bool ends_whole(const struct product_cut *c, enum k_product_kind kind)
{
    int own = c->rows / c->n_split;

    /* of one block eight rows of a warp are all one CTA's and all the matrix's, and a warpgroup's
     * part has the sixteens in which a CTA has rows; there are CTAs for no more than two parts */
    if (c->n_split > 2 ||
        (c->n_blocks == 1 && (own % 8 != 0 || c->n_out % 8 != 0 ||
                              c->part != (own + 15) / 16 * 16 * c->columns || c->part % 4 != 0)))
        return false;
    if (kind == K_PRODUCT_RESIDUAL)
        return own % 16 == 0;
    if (kind != K_PRODUCT_GATED)
        return own % 4 == 0;
    /* of four blocks rows of y come together, and 16 threads have 8 of a column each */
    return c->gated && c->n_blocks >= 2 && own % 8 == 0 && c->rows / 2 <= 128 &&
           (c->n_blocks == 2 || c->n_split == 2 ||
            (c->rows % 32 == 0 && c->red_at % 16 == 0 &&
             c->columns * CUT_GATED_STRIDE * 2 <= c->rest_at - c->red_at));
}

static void cut_all(int n_sms, enum k_type type)
{
    static const int rows[] = {1, 9, 16, 24, 32, 48, 64};
    const struct k_format format = type == K_INT4     ? k_format_packed(K_F16, 32, true)
                                   : type == K_INT8   ? k_format_int8(K_F16, 32, true)
                                   : type == K_FLOAT4 ? k_format_float4(16)
                                                      : k_format_bare(type);
    bool in_records = k_format_is_packed(&format);
    int slab = product_cut_slab_cols(&format), unit = in_records ? 32 : 16;
    long n = 0, n_bad = 0;

    for (int kind = K_PRODUCT_PLAIN; kind <= K_PRODUCT_RESIDUAL; kind++) {
        for (int out = unit; out < 300000; out += out < 2048    ? unit
                                                  : out < 32768 ? 13 * unit
                                                                : 4110) {
            if (out % 32 != 0 && in_records)
                continue;
            for (int in = slab; in <= 32768; in += in < 1024 ? slab : 7 * slab * (in / 8192 + 1)) {
                for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                    const struct k_matrix w = {.format = format, .n_out = out, .n_in = in};
                    struct product_cut c = {0};
                    bool good;

                    if (kind == K_PRODUCT_RESIDUAL && out % 16 != 0)
                        continue;
                    good = product_cut_of(&c, &w, (enum k_product_kind)kind, rows[i], n_sms) &&
                           covers(&c, n_sms) && has_room(&c) &&
                           tail_fits(&c, (enum k_product_kind)kind) && sums_have_slots(&c) &&
                           ends_whole(&c, (enum k_product_kind)kind);
                    if (!good && n_bad++ < 5)
                        printf(
                            "# kind %d, %d x %d, %d rows: tiles of %d, %d of them, stages %d and "
                            "%d, %d bytes\n",
                            kind, out, in, rows[i], c.rows, c.n_tiles, c.depth, c.x_depth, c.smem);
                    n++;
                }
            }
        }
    }
    ok(n > (in_records ? 10000 : 100000) && n_bad == 0,
       "%ld shapes of %s on %d multiprocessors, %ld cut badly", n,
       in_records       ? "records"
       : type == K_E4M3 ? "e4m3"
                        : "bf16",
       n_sms, n_bad);
}

static void cut_one(enum k_type type, enum k_product_kind kind, int out, int in, int n, int rows,
                    int n_split)
{
    const struct k_matrix w = {.format = {.elem = type}, .n_out = out, .n_in = in};
    struct product_cut c = {0};
    bool cut = product_cut_of(&c, &w, kind, n, 132);

    ok(cut && c.rows == rows && c.n_split == n_split,
       "%d x %d for %d rows: tiles of %d, %d to each", out, in, n, c.rows, c.n_split);
}

/* The head's rows, of which each of 132 CTAs has 971.6 if none has more than another. */
static void cut_head(int n)
{
    const struct k_matrix w = {.n_out = 128256, .n_in = 4096};
    struct product_cut c = {0};
    bool cut = product_cut_of(&c, &w, K_PRODUCT_FLOAT, n, 132);
    int most = c.n_whole / c.n_groups * c.rows + c.tail_rows;

    ok(cut && c.n_groups == 132 && most == 976, "the head for %d rows: %d rows of w at most", n,
       most);
}

int main(void)
{
    static const int sms[] = {16, 66, 78, 114, 132};

    for (size_t i = 0; i < sizeof sms / sizeof sms[0]; i++)
        cut_all(sms[i], K_BF16), cut_all(sms[i], K_E4M3), cut_all(sms[i], K_INT4),
            cut_all(sms[i], K_INT8), cut_all(sms[i], K_FLOAT4);
    for (int n = 8; n <= 32; n *= 2) {
        cut_one(K_BF16, K_PRODUCT_PLAIN, 6144, 4096, n, 48, 1);
        cut_one(K_BF16, K_PRODUCT_RESIDUAL, 4096, 4096, n, n < 32 ? 32 : 64, n < 32 ? 1 : 2);
        cut_one(K_BF16, K_PRODUCT_GATED, 28672, 4096, n, 224, 1);
        cut_one(K_BF16, K_PRODUCT_RESIDUAL, 4096, 14336, n, n < 32 ? 32 : 64, n < 32 ? 1 : 2);
        cut_one(K_E4M3, K_PRODUCT_PLAIN, 6144, 4096, n, 48, 1);
        cut_one(K_E4M3, K_PRODUCT_RESIDUAL, 4096, 4096, n, 64, 2);
        cut_one(K_E4M3, K_PRODUCT_GATED, 28672, 4096, n, 224, 1);
    }
    cut_head(8);
    cut_head(64);
    ok(product_cut_columns(1) == 8 && product_cut_columns(9) == 16 &&
           product_cut_columns(32) == 32 && product_cut_columns(33) == 48 &&
           product_cut_columns(49) == 64,
       "columns");
    return tap_done();
}
