/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that pools; and a model that drafts tokens of another one, an EAGLE-3 head or an MTP
 * layer: the rows that a target keeps for it, and how the two are joined (forward_eagle.c has the
 * pass). */
#include <string.h>

#include "base/log.h"
#include "base/must.h"
#include "base/pooling.h"
#include "model/model_parts.h"

/* Of the target's configuration that of its MTP layer: one layer like those that see all tokens,
 * with the same vocabulary. */
int model_take_mtp(struct model *m, const struct model_options *o)
{
    struct hf_config *c = &m->config;
    int last = c->n_layers - 1;

    if (!o->is_mtp)
        return ERR_OK;
    while (last >= 0 && c->layer_kinds[last] != LAYER_FULL)
        last--;
    if (c->form.mtp == NULL || last < 0) {
        log_error("model: %s: the method mtp is for Qwen3.5 and Qwen3-Next, and for Hugging Face "
                  "folders of DeepSeek V3 and GLM 4.5 to 5",
                  o->dir);
        return ERR_UNSUPPORTED;
    }
    c->eagle = (struct eagle_config){.n_taps = 1,
                                     .taps = {c->n_layers},
                                     .is_mtp = true,
                                     .layer = c->form.mtp->prefix == NULL ? c->n_layers : 0,
                                     .tap_dim = c->dim,
                                     .n_words = c->n_vocab,
                                     .passes_normed = true};
    c->layer_kinds[0] = c->layer_kinds[last];
    c->layer_ropes[0] = c->layer_ropes[last];
    c->layer_experts[0] = c->layer_experts[last];
    c->index.is_shared[0] = false;
    c->n_layers = 1;
    return ERR_OK;
}

/* Residuals of rank 0, which has them whole as every rank does. */
int model_alloc_taps(struct model *m, const struct model_options *o)
{
    static const int preset[EAGLE_TAPS_MAX] = {2, 0, -3};
    struct forward_taps *taps = &m->taps;
    struct device *device = m->ranks.at[0].device;
    int n_layers = m->shape.n_layers;

    if (o->n_taps == 0)
        return ERR_OK;
    if (m->ranks.n_stages > 1 || o->n_nodes > 1) {
        log_error("model: a head reads layers of all stages: set pipeline_parallel_size "
                  "and nnodes to 1");
        return ERR_UNSUPPORTED;
    }
    *taps =
        (struct forward_taps){.n_tokens_max = m->shape.max_num_batched_tokens, .dim = m->shape.dim};
    for (int i = 0; i < o->n_taps; i++) {
        int layer = o->taps[i];

        if (layer < 0) /* the published heads' default: 2, L / 2, L - 3 */
            layer = i == 1 ? n_layers / 2 : preset[i] < 0 ? n_layers + preset[i] : preset[i];
        if (layer < 0 || layer > n_layers) {
            log_error("model: the head reads layer %d, and there are %d", layer, n_layers);
            return ERR_UNSUPPORTED;
        }
        taps->layers[taps->n++] = layer;
    }
    taps->rows = device->ops->alloc_scratch(device, (size_t)taps->n * (size_t)taps->n_tokens_max *
                                                        (size_t)taps->dim * device->elem_bytes);
    return taps->rows == NULL ? ERR_NO_MEMORY : ERR_OK;
}

int model_taps(const struct model *m, const int **taps)
{
    *taps = m->config.eagle.taps;
    return m->config.eagle.n_taps;
}

int model_join(struct model *head, struct model *target)
{
    const struct eagle_config *e = &head->config.eagle;
    const struct rank *rank = &head->ranks.at[0];
    bool borrows = rank->weights.embed.data == NULL;

    must(e->n_taps > 0 && target->taps.n == e->n_taps);
    if (e->tap_dim != target->shape.dim || (borrows && head->shape.dim != target->shape.dim)) {
        log_error("model: the head is for a model of dim %d, and this one has %d", e->tap_dim,
                  target->shape.dim);
        return ERR_UNSUPPORTED;
    }
    head->target = target;
    return ERR_OK;
}

/* Replace the output matrix and what follows it. No id ends a text, because none is sampled. */
static void model_pool(struct hf_config *c, const struct pooling *p)
{
    c->pooling = p;
    c->n_words = c->n_vocab;
    c->n_vocab = weights_pooling_rows(p, c->dim);
    c->head_bias = false;
    c->by.logits = 1.0f;
    c->by.logits_cap = 0.0f;
    c->n_eos = 0;
}

int model_choose_head(struct model *m, const struct model_options *o)
{
    if (o->pooling != NULL && o->pooling->kind != POOLING_NONE) {
        model_pool(&m->config, o->pooling);
        return ERR_OK;
    }
    if (!m->config.is_headless)
        return ERR_OK;
    log_error("model: %s has no output matrix, so it cannot generate: set runner to pooling",
              o->dir);
    return ERR_UNSUPPORTED;
}

/* Kernels compute parts of layers that the families of GPUs have; the references compute all. */
static int model_check_host_only(const struct model *m)
{
    if (m->plan.host_only == NULL || !m->device->is_gpu)
        return ERR_OK;
    log_error("model: %s: %s: not supported on %s, only on the cpu device", m->config.arch->name,
              m->plan.host_only, m->device->name);
    return ERR_UNSUPPORTED;
}

/* A choice of tokens is left in the plan where texts may be longer than it. */
static int model_check_index(const struct model *m, const struct model_options *o)
{
    const struct k_index_shape s = plan_widest(&m->plan).index;

    if (s.n_keys > 0 && m->device->is_gpu &&
        (s.n_heads > K_INDEX_HEADS_FAST || s.dim > K_INDEX_DIM_FAST ||
         o->page_tokens * s.dim % 8 != 0)) {
        log_error("model: %s: an index of %d heads of %d, with page_tokens %d, is not supported on "
                  "%s: set max_model_len to at most index_topk %d",
                  m->config.arch->name, s.n_heads, s.dim, o->page_tokens, m->device->name,
                  s.n_keys);
        return ERR_UNSUPPORTED;
    }
    if (s.n_keys > 0 && o->kv_cache_dtype != NULL && strncmp(o->kv_cache_dtype, "fp8", 3) == 0) {
        log_error("model: %s: kv_cache_dtype fp8 is supported with a max_model_len of at most "
                  "index_topk %d only",
                  m->config.arch->name, s.n_keys);
        return ERR_UNSUPPORTED;
    }
    return ERR_OK;
}

/* The folder of a head is no model. */
int model_check_head(const struct model *m, const struct model_options *o)
{
    bool is_head = m->config.eagle.n_taps > 0;

    if (is_head && !o->is_drafter && !o->is_mtp) {
        log_error("model: %s is an EAGLE-3 head: name it in speculative_config, with the method "
                  "eagle3",
                  o->dir);
        return ERR_UNSUPPORTED;
    }
    if (model_check_host_only(m) != ERR_OK)
        return ERR_UNSUPPORTED;
    return model_check_index(m, o);
}
