/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out the weights of latent attention.
 *
 * Rows keep the checkpoint's order, because latents and the ends of queries are rotated as it pairs
 * them (struct k_latent): so e4m3 with scales of 128 x 128 stays as it is where the ranks divide it
 * evenly. kv_b alone is held in the plain format, because it is multiplied from both sides. */
#include "model/weights_parts.h"

#define INDEX_EPS 1e-6f /* of the norm of index keys, whatever rms_norm_eps is */

static void *weights_load_latent_norm(const struct loading *in, const char *pattern, int width)
{
    const struct slice_shape shape = slice_whole(width, width, 1, 1);

    return loader_vector(in->l, pattern, &shape, false);
}

/* Queries, in one product or in two, and the latents of keys and values, in the first of them. Only
 * the rows of heads are divided among ranks. */
static void weights_load_latent_first(const struct loading *in, const struct k_latent_shape *whole,
                                      const struct k_latent_shape *own, struct layer_weights *w)
{
    int rows = whole->n_heads * k_latent_query(whole),
        own_rows = own->n_heads * k_latent_query(own);
    int rank = whole->q_rank, row = k_latent_row(whole);
    struct loader_tensors first =
        loader_tensor(in->names->q, slice_whole(rows, own_rows, in->dim, in->dim));
    const struct loader_tensors last =
        loader_tensor(in->names->q_b, slice_whole(rows, own_rows, rank, rank));

    if (rank > 0)
        first = loader_tensor(in->names->q_a, slice_whole(rank, rank, in->dim, in->dim));
    loader_add(&first, in->names->kv_a, slice_whole(row, row, in->dim, in->dim));
    w->mixer_in = loader_matrix(in->l, &first, USE_LAYER);
    if (rank == 0)
        return;
    w->norm_q_a = weights_load_latent_norm(in, in->names->norm_q_a, rank);
    w->q_b = loader_matrix(in->l, &last, USE_LAYER);
}

/* The rows that make keys and values of latents: those of a head follow one another. In one tensor,
 * or as many tensors as heads in two, where keys' are transposed. */
static struct k_matrix weights_load_latent_rows(const struct loading *in,
                                                const struct k_latent_shape *whole,
                                                const struct k_latent_shape *own)
{
    int up = whole->nope_dim + whole->v_dim, rank = whole->kv_rank;
    struct loader_tensors rows = loader_tensor(
        in->names->kv_b, slice_whole(whole->n_heads * up, own->n_heads * up, rank, rank));

    if (in->names->k_b != NULL) {
        rows = loader_tensor(in->names->k_b,
                             slice_whole(whole->nope_dim, whole->nope_dim, rank, rank));
        loader_add(&rows, in->names->v_b, slice_whole(whole->v_dim, whole->v_dim, rank, rank));
        rows.is_turned[0] = true;
        rows.in_one = true;
        rows.n_experts = whole->n_heads;
        rows.n_own_experts = own->n_heads;
    }
    return loader_matrix(in->l, &rows, USE_ADDED);
}

/* The choice of tokens, whole on every rank. */
static void weights_load_index(const struct loading *in, const struct attn_plan *attn,
                               struct layer_weights *w)
{
    const struct k_index_shape *s = &attn->index;
    const struct arch_names *names = in->names;
    int rows = s->n_heads * s->dim, rank = attn->latent.q_rank;
    const struct slice_shape norm = slice_whole(s->dim, s->dim, 1, 1);
    const struct loader_tensors of_norm = loader_tensor(names->index_norm, norm);
    const struct loader_tensors q =
        loader_tensor(names->index_q, slice_whole(rows, rows, rank, rank));
    const struct loader_tensors k =
        loader_tensor(names->index_k, slice_whole(s->dim, s->dim, in->dim, in->dim));
    const struct loader_tensors weights =
        loader_tensor(names->index_weights, slice_whole(s->n_heads, s->n_heads, in->dim, in->dim));

    w->index_q = loader_matrix(in->l, &q, USE_LAYER);
    w->index_k = loader_matrix(in->l, &k, USE_LAYER);
    w->index_norm = (struct k_norm){.kind = K_NORM_LAYER, .eps = INDEX_EPS};
    w->index_norm.weight = loader_vector(in->l, names->index_norm, &norm, false);
    w->index_norm.bias = loader_bias(in->l, &of_norm, SPLIT_NONE);
    w->index_weights = loader_matrix(in->l, &weights, USE_ADDED);
}

/* All ranks have the latents of keys and values, and each its heads of what reads them. */
void weights_load_latent_attention(const struct loading *in, const struct layer_plan *whole,
                                   const struct layer_plan *part, struct layer_weights *w)
{
    const struct arch_names *names = in->names;
    const struct k_latent_shape *s = &whole->attn.latent, *own = &part->attn.latent;
    const struct loader_tensors out_proj = loader_tensor(
        names->o, slice_whole(in->dim, in->dim, plan_mixer_out(whole), plan_mixer_out(part)));

    w->k_scale = w->v_scale = 1.0f;
    w->norm_mixer = weights_load_first_norm(in, names->norm_attn, whole->norms.before_mixer);
    weights_load_latent_first(in, s, own, w);
    w->norm_kv_a = weights_load_latent_norm(in, names->norm_kv_a, s->kv_rank);
    w->kv_b = weights_load_latent_rows(in, s, own);
    if (whole->attn.index.n_heads > 0)
        weights_load_index(in, &whole->attn, w);
    w->mixer_out = loader_matrix(in->l, &out_proj, USE_LAYER);
    w->norm_mixer_after =
        weights_load_norm_after(in, names->norm_attn_after, whole->norms.after_mixer);
}
