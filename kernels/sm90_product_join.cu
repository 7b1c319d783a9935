/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the products of up to 64 rows that add their adapters (sm90_product_adapt.cuh). */
#include "kernels/sm90_product_kernel.cuh"

/* Each sixteen rows of w that a warp finishes are of one part, and the CTA's of at most two. */
static bool wide_parts_fit(const struct k_adapting *a, const product_cut &c)
{
    int own = c.rows / c.n_split;

    if (c.gated)
        return c.n_blocks == 4 && c.n_split == 1 && c.rows_by_eight &&
               (a->of.n_parts == 1 || (a->of.n_parts == 2 && a->of.parts[1].first == c.n_out / 2));
    if (c.n_blocks != 1 || own % PATCH_ROWS != 0 || c.n_out % PATCH_ROWS != 0)
        return false;
    for (int i = 0; i < a->of.n_parts; i++) {
        const struct k_adapted *part = &a->of.parts[i];

        if (part->first % PATCH_ROWS != 0 || part->n_out % PATCH_ROWS != 0 || part->n_out < own)
            return false;
    }
    return true;
}

/* A CTA has one tile, so that the stages behind it are free. */
static bool wide_cut_joined(product_cut *c, const struct k_adapting *a)
{
    return product_cut_beside(c, a->p.w, a->p.kind, a->n, a->n_sms, (int)sizeof(wide_adapted)) &&
           c->n_tiles <= c->n_groups;
}

bool product_wide_joins(const struct k_adapting *a)
{
    product_cut c = {};

    return k_format_is_plain(&a->p.w->format) && product_wide_takes(a->p.w, a->n) &&
           a->rank_max <= WIDE_RANK && (a->p.sums_in == NULL || a->p.n_sums % 4 == 0) &&
           wide_cut_joined(&c, a) && wide_parts_fit(a, c);
}

template <int N>
static int wide_join(const maps &m, const wide_args &a, const k_adapting &j, k_stream stream)
{
    switch (a.p.kind) {
    case K_PRODUCT_PLAIN: return wide_launch<N, 1, K_PRODUCT_PLAIN, WIDE_PLAIN>(m, a, j, stream);
    case K_PRODUCT_FLOAT: return wide_launch<N, 1, K_PRODUCT_FLOAT, WIDE_PLAIN>(m, a, j, stream);
    case K_PRODUCT_RESIDUAL:
        return wide_launch<N, 1, K_PRODUCT_RESIDUAL, WIDE_PLAIN>(m, a, j, stream);
    case K_PRODUCT_GATED: return wide_launch<N, 4, K_PRODUCT_GATED, WIDE_PLAIN>(m, a, j, stream);
    }
    return -1;
}

int product_wide_join(const struct k_adapting *a, k_stream stream)
{
    maps tensor_maps = {};
    wide_args args = {};

    args.p = a->p;
    args.n = a->n;
    if (!wide_cut_joined(&args.c, a) || wide_encode_maps(&tensor_maps, args) != 0)
        return -1;
    switch (args.c.columns) {
    case 8: return wide_join<8>(tensor_maps, args, *a, stream);
    case 16: return wide_join<16>(tensor_maps, args, *a, stream);
    case 32: return wide_join<32>(tensor_maps, args, *a, stream);
    case 48: return wide_join<48>(tensor_maps, args, *a, stream);
    default: return wide_join<64>(tensor_maps, args, *a, stream);
    }
}
