/* The plan of a model's layers: for each a mixer and an FFN with their shapes. Made once from
 * config.json by plan_make(); the loader and the forward pass read it and nothing of the
 * architecture's row.
 *
 * A layer is  x += mixer(norm(x));  x += ffn(norm(x)). */
#ifndef QUIRE_MODEL_PLAN_H
#define QUIRE_MODEL_PLAN_H

#include <stdbool.h>

#include "base/err.h"
#include "model/config.h"

enum mixer_kind { MIXER_ATTENTION };
enum ffn_kind { FFN_GATED };

/* Attention with keys and values of n_kv_heads heads, each for n_heads / n_kv_heads queries. */
struct attn_plan {
    int n_heads, n_kv_heads, head_dim;
    float scale;   /* of scores */
    bool qk_norm;  /* each head of queries and of keys is normed */
    bool qkv_bias; /* of the products */
    bool o_bias;
};

/* down(silu(gate(x)) * up(x)) */
struct ffn_plan {
    int ff_dim;
    bool bias; /* of all three products */
};

struct layer_plan {
    enum mixer_kind mixer;
    enum ffn_kind ffn;
    struct attn_plan attn; /* MIXER_ATTENTION */
    struct ffn_plan gated; /* FFN_GATED */
};

struct plan {
    int n_layers, dim, n_vocab;
    float norm_eps;
    struct layer_plan *layers; /* [n_layers] */
};

/* ERR_NO_MEMORY. */
int plan_make(struct plan *out, const struct config *c) ERR_CHECKED;
void plan_fini(struct plan *p); /* accepts {0} */

/* Elements of a token's row that the layer's products make: q, k and v; the heads. */
int plan_qkv_width(const struct attn_plan *a);
int plan_heads_width(const struct attn_plan *a);

/* The widest rows of any layer, for the memory of activations. */
struct plan_widths {
    int qkv, heads, ff;
};
struct plan_widths plan_widest(const struct plan *p);

#endif
