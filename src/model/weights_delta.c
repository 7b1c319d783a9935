/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out the weights of the gated delta rule (kernels/delta.h). A rank has some of the key heads,
 * and the value heads that read them. By channel, products of few rows are whole on each rank. */
#include "model/weights_parts.h"

/* A piece that has `chunk` rows of every `stride`, from row `from` on, of a tensor of which the
 * pieces before it are parts too. */
static void weights_stack_turns(struct slice_shape *s, int rows, int own_rows, int chunk,
                                int stride)
{
    int from = 0;

    for (int i = 0; i < s->n_pieces; i++)
        from += s->pieces[i].chunk;
    slice_stack(s, rows, own_rows, NULL);
    s->pieces[s->n_pieces - 1].from = from;
    s->pieces[s->n_pieces - 1].chunk = chunk;
    s->pieces[s->n_pieces - 1].stride = stride;
}

/* Value heads that read a key head, where a file has these in turns; 0: it does not. */
static int weights_delta_turn(const struct loading *in, const struct k_delta_shape *whole)
{
    return in->l->c->form.heads_in_turns ? whole->n_v_heads / whole->n_k_heads : 0;
}

/* The last piece is of all value heads, `width` rows of each. */
static void weights_turn_heads(const struct loading *in, const struct k_delta_shape *whole,
                               struct slice_shape *s, int width)
{
    struct slice_piece *last = &s->pieces[s->n_pieces - 1];

    last->turn = weights_delta_turn(in, whole);
    if (last->turn > 1)
        last->chunk = last->stride = width;
}

/* q, k, v and z: of each key head in turn, or one below the other in two tensors, or apart. By
 * channel without z. */
static struct loader_tensors weights_delta_rows(const struct loading *in,
                                                const struct k_delta_shape *whole,
                                                const struct k_delta_shape *own)
{
    const int rows[] = {k_delta_keys(whole), k_delta_keys(whole), k_delta_values(whole),
                        k_delta_values(whole)};
    const int own_rows[] = {k_delta_keys(own), k_delta_keys(own), k_delta_values(own),
                            k_delta_values(own)};
    int stride = (k_delta_channels(whole) + k_delta_values(whole)) / whole->n_k_heads;
    struct slice_shape shape = {.cols = in->dim, .own_cols = in->dim},
                       z = slice_whole(rows[3], own_rows[3], in->dim, in->dim);
    struct loader_tensors all;

    if (in->names->delta_q != NULL) {
        all =
            loader_tensor(in->names->delta_q, slice_whole(rows[0], own_rows[0], in->dim, in->dim));
        loader_add(&all, in->names->delta_k, slice_whole(rows[1], own_rows[1], in->dim, in->dim));
        loader_add(&all, in->names->delta_v, slice_whole(rows[2], own_rows[2], in->dim, in->dim));
        if (!whole->by_channel)
            loader_add(&all, in->names->delta_z,
                       slice_whole(rows[3], own_rows[3], in->dim, in->dim));
        return all;
    }
    if (in->names->delta_qkvz != NULL) {
        for (int i = 0; i < 4; i++)
            weights_stack_turns(&shape, rows[i], own_rows[i], rows[i] / whole->n_k_heads, stride);
        return loader_tensor(in->names->delta_qkvz, shape);
    }
    for (int i = 0; i < 3; i++)
        slice_stack(&shape, rows[i], own_rows[i], NULL);
    weights_turn_heads(in, whole, &shape, whole->v_dim);
    weights_turn_heads(in, whole, &z, whole->v_dim);
    all = loader_tensor(in->names->delta_qkv, shape);
    loader_add(&all, in->names->delta_z, z);
    return all;
}

/* b and a, likewise. */
static struct loader_tensors weights_delta_gates(const struct loading *in,
                                                 const struct k_delta_shape *whole,
                                                 const struct k_delta_shape *own)
{
    struct slice_shape one = slice_whole(whole->n_v_heads, own->n_v_heads, in->dim, in->dim);
    struct slice_shape both = {.cols = in->dim, .own_cols = in->dim};
    int turn = whole->n_v_heads / whole->n_k_heads;
    struct loader_tensors all;

    if (in->names->delta_ba != NULL) {
        for (int i = 0; i < 2; i++)
            weights_stack_turns(&both, whole->n_v_heads, own->n_v_heads, turn, 2 * turn);
        return loader_tensor(in->names->delta_ba, both);
    }
    weights_turn_heads(in, whole, &one, 1);
    all = loader_tensor(in->names->delta_b, one);
    if (!whole->by_channel)
        loader_add(&all, in->names->delta_a, one);
    return all;
}

/* The convolution: of q, k and v together, or of each; some files of a family have the former. */
static struct k_delta weights_load_taps(const struct loading *in, const struct k_delta_shape *whole,
                                        const struct k_delta_shape *own)
{
    const struct arch_names *names = in->names;
    int n_taps = whole->n_taps, key = whole->k_dim * n_taps, value = whole->v_dim * n_taps;
    size_t keys = (size_t)k_delta_keys(whole) * (size_t)n_taps;
    const struct numbers_form form = {.n_before = 2 * k_delta_keys(whole),
                                      .chunk = whole->v_dim,
                                      .turn = weights_delta_turn(in, whole)};
    struct k_delta d = {.shape = *own};

    if (names->q_conv == NULL || loader_has(in->l, names->state_conv)) {
        d.q_taps =
            loader_numbers_of(in->l, names->state_conv, k_delta_channels(whole), n_taps, &form);
        d.k_taps = weights_of_share(in, d.q_taps, keys, own->n_k_heads, key);
        d.v_taps = weights_of_share(in, d.q_taps, 2 * keys, own->n_v_heads, value);
        d.q_taps = weights_of_share(in, d.q_taps, 0, own->n_k_heads, key);
        return d;
    }
    d.q_taps = loader_numbers(in->l, names->q_conv, k_delta_keys(whole), n_taps, 1.0f);
    d.k_taps = loader_numbers(in->l, names->k_conv, k_delta_keys(whole), n_taps, 1.0f);
    d.v_taps = loader_numbers(in->l, names->v_conv, k_delta_values(whole), n_taps, 1.0f);
    d.q_taps = weights_of_share(in, d.q_taps, 0, own->n_k_heads, key);
    d.k_taps = weights_of_share(in, d.k_taps, 0, own->n_k_heads, key);
    d.v_taps = weights_of_share(in, d.v_taps, 0, own->n_v_heads, value);
    return d;
}

/* Weights beside the matrices. */
static struct k_delta weights_load_delta_numbers(const struct loading *in,
                                                 const struct k_delta_shape *whole,
                                                 const struct k_delta_shape *own)
{
    const struct arch_names *names = in->names;
    const struct slice_shape norm = slice_whole(whole->v_dim, whole->v_dim, 1, 1);
    int forgets = k_delta_forgets(whole);
    struct k_delta delta = weights_load_taps(in, whole, own);
    struct numbers_form form = {
        .is_rate = in->l->c->form.has_rates, .chunk = 1, .turn = weights_delta_turn(in, whole)};
    const float *a_log = loader_numbers_of(in->l, names->state_a_log, whole->n_v_heads, 1, &form);
    const float *bias;

    form.is_rate = false;
    bias = loader_numbers_of(in->l, names->state_dt_bias, forgets, 1, &form);

    delta.a_log = weights_of_share(in, a_log, 0, own->n_v_heads, 1);
    delta.dt_bias = weights_of_share(in, bias, 0, own->n_v_heads, forgets / whole->n_v_heads);
    delta.norm = loader_vector(in->l, names->state_norm, &norm, false);
    delta.eps = in->l->c->delta_eps > 0.0f ? in->l->c->delta_eps : in->l->whole->norm.eps;
    return delta;
}

/* The two products of a or z: `low` rows, then `width` of each head. */
static void weights_load_pair(const struct loading *in, const char *const *patterns, int low,
                              const int *rows, struct k_matrix *first, struct k_matrix *second)
{
    const struct loader_tensors a =
        loader_tensor(patterns[0], slice_whole(low, low, in->dim, in->dim));
    const struct loader_tensors b =
        loader_tensor(patterns[1], slice_whole(rows[0], rows[1], low, low));

    *first = loader_matrix(in->l, &a, USE_ADDED);
    *second = loader_matrix(in->l, &b, USE_ADDED);
}

/* The columns of the last matrix are in the order of the file's value heads. Where a block of its
 * format has columns of several heads, moving them would need another format. So the rule writes
 * its result in the file's order instead, if the device can: the product sums over all columns,
 * whatever their order, as long as both sides have the same one. A rank of several has heads from
 * all turns, so there the matrix is converted. */
static bool weights_keeps_turns(const struct loading *in, const struct layer_plan *whole)
{
    int block = loader_block(in->l, in->names->state_out);

    return weights_delta_turn(in, &whole->delta) > 1 && in->l->n_shares == 1 &&
           in->l->d->ops->delta_writes_turns && whole->delta.v_dim % block != 0;
}

/* Products of b and a are float32, so their matrix is plain. */
void weights_load_delta(const struct loading *in, const struct layer_plan *whole,
                        const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    const char *const of_a[] = {names->delta_f_a, names->delta_f_b}, *const of_z[] = {
                                                                         names->delta_g_a,
                                                                         names->delta_g_b};
    const int forgets[] = {k_delta_forgets(&whole->delta), k_delta_forgets(&part->delta)},
              values[] = {k_delta_values(&whole->delta), k_delta_values(&part->delta)};
    const struct loader_tensors rows = weights_delta_rows(in, &whole->delta, &part->delta);
    const struct loader_tensors gates = weights_delta_gates(in, &whole->delta, &part->delta);
    struct slice_shape columns =
        slice_whole(in->dim, in->dim, plan_mixer_out(whole), plan_mixer_out(part));
    bool keeps = weights_keeps_turns(in, whole);
    struct loader_tensors out;

    columns.col_turn = keeps ? 0 : weights_delta_turn(in, &whole->delta);
    columns.col_chunk = whole->delta.v_dim;
    out = loader_tensor(names->state_out, columns);
    w->norm_mixer = weights_load_first_norm(
        in, weights_either(in, names->norm_attn, names->norm_attn_or), whole->norms.before_mixer);
    w->mixer_in = loader_matrix(in->l, &rows, USE_LAYER);
    w->mixer_gate = loader_matrix(in->l, &gates, USE_ADDED);
    if (whole->delta.by_channel) {
        weights_load_pair(in, of_a, whole->delta.k_dim, forgets, &w->f_a, &w->f_b);
        weights_load_pair(in, of_z, whole->delta.v_dim, values, &w->g_a, &w->g_b);
    }
    w->delta = weights_load_delta_numbers(in, &whole->delta, &part->delta);
    w->delta.out_in_turns = keeps;
    w->mixer_out = loader_matrix(in->l, &out, USE_LAYER);
    w->norm_mixer_after =
        weights_load_norm_after(in, names->norm_attn_after, whole->norms.after_mixer);
}
