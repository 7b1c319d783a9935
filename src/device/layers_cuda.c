/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of general layers on the cuda device: activations, norms and sums that no product
 * includes, multipliers, positions (kernels.h). Each enqueues one kernel, and a second one where
 * the next product reads codes. */
#include "config.h"

#include "device/parts_cuda.h"

#include "base/must.h"

/* An FFN without a gate. */
void layers_activate(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                     int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_activate(out, to != NULL && k_format_reads_half(&to->format), in, kind,
                         (size_t)n * (size_t)width, gpu->stream),
              "activate");
}

/* The kernels of general layers write bf16; codes take a second pass. */
void layers_norm(struct device *d, struct device_rows *out, const float *x,
                 const struct k_norm *norm, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_norm_rows(out->data, x, norm, n, d->limits.dim, gpu->stream), "norm");
    cuda_quantise(d, out, n, to);
}

/* In place, on part of each row. */
void layers_norm_within(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                        int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_norm_within(x, stride, norm, n, width, gpu->stream), "norm_within");
}

/* Norms over the heads of all ranks. */
void layers_squares(struct device *d, void *squares, const void *x, const struct k_split_norms *s,
                    int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_squares(squares, x, s, n, gpu->stream), "squares");
}

void layers_norm_squares(struct device *d, void *x, const void *squares,
                         const struct k_split_norms *s, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_norm_squares(x, squares, s, n, gpu->stream), "norm_squares");
}

/* Activations other than SiLU. */
void layers_gate(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
                 int ff_dim, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_gate(out->data, in, kind, n, ff_dim, gpu->stream), "gate");
    cuda_quantise(d, out, n, to);
}

/* The gate of a layer's embeddings. */
void layers_gate_by(struct device *d, struct device_rows *out, const void *in,
                    const struct k_factor *by, enum k_activation kind, int n,
                    const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_gate_by(out->data, in, by, kind, n, gpu->stream), "gate_by");
    cuda_quantise(d, out, n, to);
}

/* The tiles of the step are known since rope_kv(). */
bool layers_shut_attn(struct device *d, const void *gate, const struct k_kv *kv)
{
    struct k_attn_plan *plan = &cuda_of(d)->plan;

    if (cuda_of(d)->has_chunks || k_attn_shuts(plan, kv) == 0)
        return false;
    plan->gates = gate;
    return true;
}

/* The gates of attention, by themselves. */
void layers_shut(struct device *d, void *x, const void *gate, int width, int n,
                 const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_shut(x, to != NULL && k_format_reads_half(&to->format), gate,
                     (size_t)n * (size_t)width, gpu->stream),
              "shut");
}

/* Negative ids as in cuda_embed(). */
void layers_layer_embeds(struct device *d, void *x, const struct k_layer_embeds *e)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(
        gpu, k_embed_layers(x, e, gpu->tokens.ids, gpu->sampled, gpu->tokens.n_tokens, gpu->stream),
        "layer_embeds");
}

/* Both take positions from the mirror, so a recorded step can be replayed. */
void layers_grow(struct device *d, void *x, int stride, int width, const struct k_growth *g)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_grow(x, stride, width, g, gpu->tokens.pos, gpu->tokens.n_tokens, gpu->stream),
              "grow");
}

/* Rows come from the mirror, in the order of a recorded step's tokens. */
void layers_pick(struct device *d, const struct device_pick *p)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_pick pick = {.to = p->to,
                                .from = p->from,
                                .to_stride = p->to_stride,
                                .from_stride = p->from_stride,
                                .to_is_float = p->to_is_float,
                                .from_is_float = p->from_is_float,
                                .rows = p->rows == NULL ? NULL : gpu->arrays.picked,
                                .width = p->width,
                                .n = p->n};

    must(p->rows == gpu->batch->picked || p->rows == NULL);
    cuda_keep(gpu, k_pick_rows(&pick, gpu->stream), "pick");
}

void layers_scale(struct device *d, void *x, int stride, int width, float by, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_scale(x, stride, width, by, n, gpu->stream), "scale");
}

void layers_place(struct device *d, float *x, float scale, const void *positions, int first)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_place(x, scale, positions, gpu->tokens.pos, first, gpu->tokens.n_tokens,
                      d->limits.dim, gpu->stream),
              "place");
}

/* x += scale * delta. */
void layers_add(struct device *d, float *x, const void *delta, float scale, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_add(x, delta, scale, (size_t)n * (size_t)d->limits.dim, gpu->stream), "add");
}

/* x += delta, where x is not the residual. */
void layers_add_within(struct device *d, void *x, const void *delta, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_add_within(x, delta, (size_t)n * (size_t)d->limits.dim, gpu->stream),
              "add_within");
}

/* Sum, norms and scale in one pass over the residual. */
void layers_add_normed(struct device *d, struct device_rows *out, float *x, void *delta,
                       const struct k_adding *how, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(
        gpu,
        k_add_normed(out == NULL ? NULL : out->data, x, delta, how, n, d->limits.dim, gpu->stream),
        "add_normed");
    if (out != NULL)
        cuda_quantise(d, out, n, to);
}

/* Bias, scale and cap of logits, for the families that have them. */
void layers_soften(struct device *d, float *logits, const struct k_softening *how, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_soften(logits, how, n, d->limits.n_vocab, gpu->stream), "soften");
}

/* Nothing else is added to the products. */
bool layers_delta_gate(struct device *d, float *gates, const struct k_delta_gating *g,
                       const struct k_matrix *w)
{
    struct cuda *gpu = cuda_of(d);

    if (w->adapters != NULL || !k_format_is_plain(&w->format) || g->dim % 4 != 0 ||
        d->step_tokens > K_DELTA_GATING_MAX)
        return false;
    cuda_keep(gpu, k_delta_gate(gates, g, w->n_out, d->step_tokens, gpu->stream), "delta_gate");
    return true;
}

/* One kernel where every sequence has one token; the step's other forms need d->rows. */
void layers_delta(struct device *d, void *out, const void *in, const float *gates,
                  const struct k_delta *delta, const struct k_state *state,
                  const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->state_tokens, state->group);

    cuda_keep(gpu,
              k_delta_rule(out, to != NULL && k_format_reads_half(&to->format), in, gates, delta,
                           state, &tokens, gpu->stream),
              "delta");
}

/* Attention that follows reads the lists of tiles and the schedule, which no rotary step has
 * chosen. */
static void layers_begin_latent(struct cuda *gpu, const struct k_latent *l, const struct k_kv *kv,
                                bool is_fresh)
{
    cuda_find_tiles(gpu, l->shape.n_heads);
    gpu->latent.is_fresh = is_fresh;
    gpu->latent.is_few =
        !gpu->has_chunks && k_latent_is_few(&gpu->plan, kv, &l->shape, gpu->tokens.n_tokens);
    gpu->plan.overlap = gpu->latent.is_few || cuda_schedule(gpu, kv, l->shape.n_heads);
}

bool layers_latent_joins(struct device *d, const struct k_latent_shape *s,
                         const struct k_matrix *q_b)
{
    return k_latent_joins(s, q_b, d->step_tokens) != 0;
}

void layers_latent_join(struct device *d, void *out, const void *in, const struct k_latent *l,
                        const struct k_matrix *q_b, const struct k_kv *kv)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    layers_begin_latent(gpu, l, kv, true);
    cuda_keep(gpu, k_latent_join(out, in, l, q_b, kv, &tokens, gpu->stream), "latent_join");
}

void layers_latent_keys(struct device *d, void *q, const void *in, const struct k_latent *l,
                        const struct k_kv *kv, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    layers_begin_latent(gpu, l, kv, false);
    cuda_keep(gpu,
              k_latent_keys(q, to != NULL && k_format_reads_half(&to->format), in, l, kv, &tokens,
                            gpu->stream),
              "latent_keys");
}

/* Attention of a step of few decodes over latents: parts, which the values merge. */
static void layers_attend_few(struct cuda *gpu, const void *q, const struct k_kv *kv, int n_heads,
                              float scale)
{
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    gpu->latent.scale = scale;
    cuda_keep(gpu,
              k_latent_attend(q, kv, &tokens, &gpu->plan, n_heads, scale, gpu->latent.is_fresh,
                              gpu->stream),
              "attn");
}

/* out is half precision if the fused product reads that. */
void layers_attn(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
                 float scale, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    if (kv->value_dim > 0 && gpu->latent.is_few) {
        layers_attend_few(gpu, qkv, kv, n_heads, scale);
        return;
    }
    gpu->plan.out_is_half = to != NULL && k_format_reads_half(&to->format);
    cuda_keep(gpu, k_attn(out, qkv, kv, &tokens, &gpu->plan, n_heads, scale, gpu->stream), "attn");
    gpu->plan.gates = NULL;
}

void layers_halve(struct device *d, void *out, const void *x, int width, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_halve_rows(out, x, (size_t)n * (size_t)width, gpu->stream), "halve_rows");
}

void layers_latent_queries(struct device *d, void *out, const void *in, const struct k_latent *l)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_latent_queries(out, in, l, &gpu->tokens, gpu->stream), "latent_queries");
}

void layers_index_keys(struct device *d, const void *in, const struct k_index *x,
                       const struct k_kv *kv)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    cuda_keep(gpu, k_index_keys(in, x, kv, &tokens, gpu->stream), "index_keys");
}

void layers_index_choose(struct device *d, int32_t *chosen, const void *queries,
                         const float *weights, const struct k_index *x, const struct k_kv *kv)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    cuda_keep(gpu, k_index_choose(chosen, queries, weights, x, kv, &tokens, gpu->stream),
              "index_choose");
}

void layers_attn_chosen(struct device *d, void *out, const void *queries, const struct k_kv *kv,
                        const struct k_choice *chosen, int n_heads, float scale)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    gpu->latent.is_few = false; /* values find whole results, no parts */
    cuda_keep(gpu, k_attn_chosen(out, queries, kv, &tokens, chosen, n_heads, scale, gpu->stream),
              "attn_chosen");
}

void layers_latent_values(struct device *d, void *out, const void *in, const struct k_latent *l,
                          const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    bool is_half = to != NULL && k_format_reads_half(&to->format);

    if (gpu->latent.is_few) {
        cuda_keep(gpu,
                  k_latent_attended(out, is_half, l, &gpu->tokens, &gpu->plan, gpu->latent.scale,
                                    gpu->stream),
                  "latent_values");
        return;
    }
    cuda_keep(gpu, k_latent_values(out, is_half, in, l, &gpu->tokens, gpu->stream),
              "latent_values");
}
