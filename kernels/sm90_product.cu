/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the products of up to 64 rows (sm90_product_kernel.cuh) without adapters: a kernel for
 * each bucket of rows, number of blocks, kind of product and form of w. */
#include "kernels/sm90_product_kernel.cuh"

template <int N, int MB, wide_form FORM>
static int wide_choose_kind(const maps &m, const wide_args &a, k_stream stream)
{
    const adapt_none none = {};

    switch (a.p.kind) {
    case K_PRODUCT_PLAIN: return wide_launch<N, MB, K_PRODUCT_PLAIN, FORM>(m, a, none, stream);
    case K_PRODUCT_FLOAT: return wide_launch<N, MB, K_PRODUCT_FLOAT, FORM>(m, a, none, stream);
    case K_PRODUCT_RESIDUAL:
        return wide_launch<N, MB, K_PRODUCT_RESIDUAL, FORM>(m, a, none, stream);
    case K_PRODUCT_GATED: {
        constexpr int BLOCKS = MB == 1 ? 2 : MB; /* gate and up */

        return wide_launch<N, BLOCKS, K_PRODUCT_GATED, FORM>(m, a, none, stream);
    }
    }
    return -1;
}

/* One kernel per number of blocks, so that the accumulators of each are in registers. */
template <int N, wide_form FORM>
static int wide_choose_blocks(const maps &m, const wide_args &a, k_stream stream)
{
    switch (a.c.n_blocks) {
    case 1: return wide_choose_kind<N, 1, FORM>(m, a, stream);
    case 2: return wide_choose_kind<N, 2, FORM>(m, a, stream);
    default: return wide_choose_kind<N, 4, FORM>(m, a, stream);
    }
}

template <int N> static int wide_choose(const maps &m, const wide_args &a, k_stream stream)
{
    return k_format_reads_half(&a.p.w->format) ? wide_choose_blocks<N, WIDE_E4M3>(m, a, stream)
                                               : wide_choose_blocks<N, WIDE_PLAIN>(m, a, stream);
}

/* Plain bf16, and e4m3 with at most one scale per row. */
bool product_wide_takes(const struct k_matrix *w, int n)
{
    return (k_format_is_plain(&w->format) || k_format_is_by_row(&w->format, K_E4M3)) &&
           w->n_in % product_cut_slab_cols(&w->format) == 0 && n >= 1 && n <= K_PRODUCT_ROWS_MAX;
}

/* One kernel per bucket of rows: the N of its wgmma is a template argument. */
int product_wide(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    maps tensor_maps = {};
    wide_args args = {};

    args.p = *p;
    args.scales = (const float *)p->w->scales;
    args.n = n;
    if ((p->sums_in != NULL && p->n_sums % 4 != 0) ||
        !product_cut_of(&args.c, p->w, p->kind, n, n_sms) ||
        wide_encode_maps(&tensor_maps, args) != 0)
        return -1;
    switch (args.c.columns) {
    case 8: return wide_choose<8>(tensor_maps, args, stream);
    case 16: return wide_choose<16>(tensor_maps, args, stream);
    case 32: return wide_choose<32>(tensor_maps, args, stream);
    case 48: return wide_choose<48>(tensor_maps, args, stream);
    default: return wide_choose<64>(tensor_maps, args, stream);
    }
}

template <int N> static int wide_choose_records(const maps &m, const wide_args &a, k_stream stream)
{
    return a.p.w->format.elem == K_FLOAT4 ? wide_choose_blocks<N, WIDE_FLOATS>(m, a, stream)
                                          : wide_choose_blocks<N, WIDE_CODES>(m, a, stream);
}

/* Codes in records, of more rows than product_packed.cu is fast for: buckets of 8, 16, 32, 64. */
int product_wide_packed(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    const int least = 49; /* the fewest rows of the bucket of 64 */
    maps tensor_maps = {};
    wide_args args = {};

    args.p = *p;
    args.scales = (const float *)p->w->scales; /* of floats */
    args.n = n;
    args.codes = codes_of(p->w);
    if (n > 32 && n < least)
        n = least;
    if ((p->sums_in != NULL && p->n_sums % 4 != 0) ||
        !product_cut_of(&args.c, p->w, p->kind, n, n_sms) ||
        wide_encode_maps(&tensor_maps, args) != 0)
        return -1;
    switch (args.c.columns) {
    case 8: /* of integers product_packed.cu multiplies them */
        return wide_choose_blocks<8, WIDE_FLOATS>(tensor_maps, args, stream);
    case 16: return wide_choose_records<16>(tensor_maps, args, stream);
    case 32: return wide_choose_records<32>(tensor_maps, args, stream);
    case 64: return wide_choose_records<64>(tensor_maps, args, stream);
    }
    return -1;
}
