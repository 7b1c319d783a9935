/* SPDX-License-Identifier: Apache-2.0
 *
 * ids -> x [n_tokens][dim] -> normed
 * each layer:  normed -> mixer_in -> mixed;  x += mixed * mixer_out -> normed
 *              normed -> ffn_in -> ff;       x += ff * down -> normed
 * sampled rows: normed -> logits [n_rows][n_vocab]
 *
 * pass.h says how each of these runs. */
#include "model/forward.h"

/* What is passed from layer to layer beside the activations. */
struct forward {
    struct pass pass;
    struct k_kv kv;    /* the current layer's view of the pages */
    size_t page_start; /* of the first layer's, elements */
    const float *turns;
};

/* The view of layer i's pages. */
static void use_layer(struct forward *f, int i)
{
    const struct layer_weights *l = &f->pass.w->layers[i];
    struct k_kv *kv = &f->kv;

    kv->layer_elems = f->page_start + (size_t)i * 2 * (size_t)kv->n_kv_heads *
                                          (size_t)kv->block_tokens * (size_t)kv->head_dim;
    kv->window = f->pass.plan->layers[i].attn.window;
    kv->k_scale = l->k_scale;
    kv->v_scale = l->v_scale;
}

static void mix(const struct forward *f, const struct layer_plan *plan,
                const struct layer_weights *l)
{
    const struct pass *p = &f->pass;
    const struct k_rotary rotary = {
        .turns = f->turns, .q_norm = l->q_norm, .k_norm = l->k_norm, .eps = p->plan->norm_eps};

    switch (plan->mixer) {
    case MIXER_ATTENTION:
        pass_project(p, p->a->mixer_in, &l->mixer_in, l->mixer_in_bias);
        pass_attend(p, &plan->attn, &f->kv, &rotary, &l->mixer_out);
        break;
    }
    pass_add(p, &p->a->mixed, &l->mixer_out, l->mixer_out_bias,
             (struct pass_next){.norm = l->norm_ffn, .reader = &l->ffn_in});
}

/* next: what reads x after this layer; NULL after the last one. */
static void feed(const struct forward *f, const struct layer_plan *plan,
                 const struct layer_weights *l, const struct layer_weights *next)
{
    const struct pass *p = &f->pass;

    switch (plan->ffn) {
    case FFN_GATED: pass_gate(p, plan->mlp.ff_dim, &l->ffn_in, l->ffn_in_bias, &l->down); break;
    case FFN_PLAIN: pass_activate(p, &plan->mlp, &l->ffn_in, l->ffn_in_bias, &l->down); break;
    }
    if (next == NULL)
        pass_finish(p, &p->a->ff, &l->down, l->down_bias);
    else
        pass_add(p, &p->a->ff, &l->down, l->down_bias,
                 (struct pass_next){.norm = next->norm_mixer, .reader = &next->mixer_in});
}

void forward(struct device *d, const struct plan *plan, const struct weights *w,
             struct activations *a, const struct k_kv *kv, const float *turns)
{
    struct forward f = {
        .pass = pass_of(d, plan, w, a), .kv = *kv, .page_start = kv->layer_elems, .turns = turns};

    pass_embed(&f.pass, (struct pass_next){.norm = w->layers[0].norm_mixer,
                                           .reader = &w->layers[0].mixer_in});
    for (int i = 0; i < plan->n_layers; i++) {
        use_layer(&f, i);
        mix(&f, &plan->layers[i], &w->layers[i]);
        feed(&f, &plan->layers[i], &w->layers[i],
             i + 1 < plan->n_layers ? &w->layers[i + 1] : NULL);
    }
}
