/* SPDX-License-Identifier: Apache-2.0
 *
 * The portable products of experts, compiled for the host. */
#include "tests/kernel/play_portable.h"

#include "kernels/portable_experts.cu"
#include "tests/kernel/played.h"

int played_experts(const struct played_product *of)
{
    struct experts_product p = {};

    p.x = of->x;
    p.w = of->w;
    p.scales = of->scales;
    p.scale_cols = of->scale_cols;
    p.out = of->out;
    p.starts = of->starts;
    p.routes = of->routes;
    p.touched = of->touched;
    p.tiles = of->tiles;
    p.bias = of->bias;
    p.n_in = of->n_in;
    p.n_out = of->n_out;
    p.rows = of->is_gated ? 2 * of->n_out : of->n_out;
    p.up = of->is_gated ? of->n_out : 0;
    p.n_tokens = of->n_tokens;
    p.n_used = of->n_used;
    p.n_experts = of->n_experts;
    p.activation = K_SILU;
    p.is_gated = of->is_gated;
    play.fault = NULL;
    return experts_tiles(&p,
                         of->elem == K_BF16   ? EXPERTS_PLAIN
                         : of->elem == K_E4M3 ? EXPERTS_BY_ROW
                                              : EXPERTS_MXFP4,
                         of->is_many, NULL);
}
