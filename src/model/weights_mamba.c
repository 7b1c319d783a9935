/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out the weights of Mamba-2 (kernels/mamba.h) and of short convolutions. A rank has some of
 * the groups of heads, or of the channels. */
#include "model/weights_parts.h"

/* z, x, B, C and dt, one below the other in one tensor; a rank has those of its groups. */
static struct loader_tensors weights_mamba_rows(const struct loading *in,
                                                const struct k_mamba_shape *whole,
                                                const struct k_mamba_shape *own)
{
    const int rows[] = {k_mamba_inner(whole), k_mamba_inner(whole),
                        whole->n_groups * whole->n_state, whole->n_groups * whole->n_state,
                        whole->n_heads};
    const int own_rows[] = {k_mamba_inner(own), k_mamba_inner(own), own->n_groups * own->n_state,
                            own->n_groups * own->n_state, own->n_heads};
    struct slice_shape shape = {.cols = in->dim, .own_cols = in->dim};

    for (int i = 0; i < 5; i++)
        slice_stack(&shape, rows[i], own_rows[i], NULL);
    return loader_tensor(in->names->state_in, shape);
}

/* A rank's part of x, B or C: `width` channels of each of own_n heads or groups, behind `before`
 * channels. */
static struct k_mamba_part weights_mamba_part(const struct loading *in, const struct k_mamba *of,
                                              size_t before, int own_n, int width, float by)
{
    int n_taps = of->shape.n_taps;

    return (struct k_mamba_part){
        .taps = weights_of_share(in, of->x.taps, before * (size_t)n_taps, own_n, width * n_taps),
        .bias = weights_of_share(in, of->x.bias, before, own_n, width),
        .by = by};
}

/* Weights beside the matrices. */
static struct k_mamba weights_load_mamba_numbers(const struct loading *in,
                                                 const struct mamba_plan *plan,
                                                 const struct k_mamba_shape *own)
{
    const struct mamba_config *config = plan->config;
    const struct k_mamba_shape *whole = &plan->shape;
    const struct arch_names *names = in->names;
    const struct slice_shape norm = slice_whole(k_mamba_inner(whole), k_mamba_inner(own), 1, 1);
    size_t b = (size_t)k_mamba_inner(whole), c = b + (size_t)(whole->n_groups * whole->n_state);
    int channels = k_mamba_channels(whole), heads = whole->n_heads;
    const struct numbers_form rates = {.is_rate = in->l->c->form.has_rates};
    struct k_mamba m = {.shape = *own,
                        .norm_first = config->norm_first,
                        .eps = in->l->whole->norm.eps,
                        .least = config->least,
                        .most = config->most,
                        .z_by = config->z_by,
                        .dt_by = config->dt_by};

    m.x.taps = loader_numbers(in->l, names->state_conv, channels, whole->n_taps, 1.0f);
    if (config->has_conv_bias)
        m.x.bias = loader_numbers(in->l, names->state_conv_bias, channels, 1, 1.0f);
    m.b = weights_mamba_part(in, &m, b, own->n_groups, own->n_state, config->b_by);
    m.c = weights_mamba_part(in, &m, c, own->n_groups, own->n_state, config->c_by);
    m.x = weights_mamba_part(in, &m, 0, own->n_heads, own->head_dim, config->x_by);
    m.a_log = weights_of_share(in, loader_numbers_of(in->l, names->state_a_log, heads, 1, &rates),
                               0, own->n_heads, 1);
    m.dt_bias = weights_of_share(in, loader_numbers(in->l, names->state_dt_bias, heads, 1, 1.0f), 0,
                                 own->n_heads, 1);
    m.skip = weights_of_share(in, loader_numbers(in->l, names->state_skip, heads, 1, 1.0f), 0,
                              own->n_heads, 1);
    if (config->has_norm)
        m.norm = loader_vector(in->l, names->state_norm, &norm, false);
    return m;
}

void weights_load_mamba(const struct loading *in, const struct layer_plan *whole,
                        const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    const struct loader_tensors rows =
        weights_mamba_rows(in, &whole->mamba.shape, &part->mamba.shape);
    const struct loader_tensors out =
        loader_tensor(names->state_out,
                      slice_whole(in->dim, in->dim, plan_mixer_out(whole), plan_mixer_out(part)));

    w->norm_mixer = weights_load_first_norm(in, names->norm_attn, whole->norms.before_mixer);
    w->mixer_in = loader_matrix(in->l, &rows, USE_LAYER);
    if (whole->mamba.config->has_bias)
        w->mixer_in_bias = loader_bias(in->l, &rows, part->splits.mixer_in);
    w->mamba = weights_load_mamba_numbers(in, &whole->mamba, &part->mamba.shape);
    w->mixer_out = loader_matrix(in->l, &out, USE_LAYER);
    if (whole->mamba.config->has_bias)
        w->mixer_out_bias = loader_bias(in->l, &out, part->splits.mixer_out);
    w->norm_mixer_after =
        weights_load_norm_after(in, names->norm_attn_after, whole->norms.after_mixer);
}

void weights_load_conv(const struct loading *in, const struct layer_plan *whole,
                       const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    int width = whole->conv.width, own = part->conv.width, n_taps = whole->conv.n_taps;
    struct slice_shape three = {.cols = in->dim, .own_cols = in->dim};
    const struct loader_tensors out =
        loader_tensor(names->state_out, slice_whole(in->dim, in->dim, width, own));
    struct loader_tensors first;
    const float *taps, *bias = NULL;

    for (int i = 0; i < 3; i++)
        slice_stack(&three, width, own, NULL);
    first = loader_tensor(names->state_in, three);
    w->norm_mixer = weights_load_first_norm(in, names->norm_attn, whole->norms.before_mixer);
    w->mixer_in = loader_matrix(in->l, &first, USE_LAYER);
    if (whole->conv.bias)
        w->mixer_in_bias = loader_bias(in->l, &first, part->splits.mixer_in);
    taps = loader_numbers(in->l, names->state_conv, width, n_taps, 1.0f);
    if (whole->conv.bias)
        bias = loader_numbers(in->l, names->state_conv_bias, width, 1, 1.0f);
    w->conv = (struct k_short_conv){.width = own,
                                    .n_taps = n_taps,
                                    .taps = weights_of_share(in, taps, 0, own, n_taps),
                                    .bias = weights_of_share(in, bias, 0, own, 1)};
    w->mixer_out = loader_matrix(in->l, &out, USE_LAYER);
    if (whole->conv.bias)
        w->mixer_out_bias = loader_bias(in->l, &out, part->splits.mixer_out);
    w->norm_mixer_after =
        weights_load_norm_after(in, names->norm_attn_after, whole->norms.after_mixer);
}
