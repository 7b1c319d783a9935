/* SPDX-License-Identifier: Apache-2.0 */
#include "model/plan.h"

#include <math.h>

#include "base/mem.h"

static struct layer_plan plan_layer(const struct config *c)
{
    return (struct layer_plan){
        .mixer = MIXER_ATTENTION,
        .ffn = FFN_GATED,
        .attn = {.n_heads = c->n_heads,
                 .n_kv_heads = c->n_kv_heads,
                 .head_dim = c->head_dim,
                 .scale = 1.0f / sqrtf((float)c->head_dim),
                 .qk_norm = c->arch->qk_norm,
                 .qkv_bias = c->qkv_bias,
                 .o_bias = c->o_bias},
        .gated = {.ff_dim = c->ff_dim, .bias = c->mlp_bias},
    };
}

int plan_make(struct plan *out, const struct config *c)
{
    struct plan p = {
        .n_layers = c->n_layers, .dim = c->dim, .n_vocab = c->n_vocab, .norm_eps = c->norm_eps};

    p.layers = mem_zalloc_array((size_t)c->n_layers, sizeof *p.layers);
    if (p.layers == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < c->n_layers; i++)
        p.layers[i] = plan_layer(c);
    *out = p;
    return ERR_OK;
}

void plan_fini(struct plan *p)
{
    mem_free(p->layers);
    p->layers = NULL;
}

int plan_heads_width(const struct attn_plan *a)
{
    return a->n_heads * a->head_dim;
}

int plan_qkv_width(const struct attn_plan *a)
{
    return (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
}

static int widest(int a, int b)
{
    return a > b ? a : b;
}

struct plan_widths plan_widest(const struct plan *p)
{
    struct plan_widths w = {0};

    for (int i = 0; i < p->n_layers; i++) {
        const struct layer_plan *l = &p->layers[i];

        w.qkv = widest(w.qkv, plan_qkv_width(&l->attn));
        w.heads = widest(w.heads, plan_heads_width(&l->attn));
        w.ff = widest(w.ff, l->gated.ff_dim);
    }
    return w;
}
