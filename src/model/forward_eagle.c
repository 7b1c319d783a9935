/* SPDX-License-Identifier: Apache-2.0
 *
 * An EAGLE-3 head: one layer that foretells the target's tokens from what the target computed for
 * the tokens before.
 *
 *   row h of position t:  fc(residuals that entered some layers of the target at t)
 *                         or, where the token t is a draft, the head's own residual at t - 1
 *   pair of position t:   norm(embedding of token t + 1), norm(h)
 *   x = h;  x += attention(pair);  x += ffn(norm(x));  logits = head(norm(x))
 *
 * The logits at position t are those of token t + 2. From the second line on it is the layer of
 * forward.c. The residual before the final norm is the row of the next draft.
 *
 * Source: EAGLE-3 (arXiv 2503.01840); the tensors are those of published heads.
 *
 * An MTP layer is a whole layer of its target's kind behind a product of both rows:
 *
 * row h of position t:  norm(residual behind the target's last layer at t), the target's last norm,
 *                         or, where the token t is a draft, the layer's own last norm at t - 1
 *   x = fc(norm(embedding of token t + 1), norm(h)); then the layer, the norm, the target's head
 *
 * Source: DeepSeek-V3 (arXiv 2412.19437); the order of the two rows in fc is that of published
 * folders, Qwen3-Next's and DeepSeek's alike, and struct mtp_names has their names. */
#include "model/forward.h"

#include "base/must.h"

/* The rows of the target's last step, one tap behind another, and fc of them. */
static void forward_fuse_taps(const struct forward *f, const struct pass *p)
{
    const struct eagle_config *e = p->plan->eagle;
    const struct forward_taps *from = f->tapped;
    size_t elem = p->d->elem_bytes;

    must(from->n == e->n_taps && from->dim == e->tap_dim);
    for (int i = 0; i < e->n_taps; i++) {
        size_t tap = (size_t)i * (size_t)from->n_tokens_max * (size_t)from->dim;

        p->d->ops->pick(p->d, &(struct device_pick){.to = (char *)p->a->tapped.data +
                                                          (size_t)i * (size_t)e->tap_dim * elem,
                                                    .from = (const char *)from->rows + tap * elem,
                                                    .to_stride = e->n_taps * e->tap_dim,
                                                    .from_stride = from->dim,
                                                    .rows = f->hidden.rows,
                                                    .width = e->tap_dim,
                                                    .n = p->n});
    }
    p->d->ops->quantise(p->d, &p->a->tapped, p->n, &p->w->eagle.fc);
    p->d->ops->matmul(p->d, p->a->delta, &p->a->tapped, &p->w->eagle.fc, NULL, p->n);
}

/* x = the rows before, of the target or of the head's own last step. */
static void forward_take_hidden(const struct forward *f, const struct pass *p)
{
    int dim = p->plan->dim;
    struct device_pick pick = {.to = p->a->x,
                               .to_stride = dim,
                               .to_is_float = true,
                               .from_stride = dim,
                               .width = dim,
                               .n = p->n};

    if (f->hidden.of_target) {
        forward_fuse_taps(f, p);
        pick.from = p->a->delta;
    } else if (p->plan->eagle->passes_normed) {
        pick.from = p->a->rows_normed.data;
        pick.rows = f->hidden.rows;
    } else {
        pick.from = p->a->rows;
        pick.from_is_float = true;
        pick.rows = f->hidden.rows;
    }
    p->d->ops->pick(p->d, &pick);
}

void forward_enter_eagle(const struct forward *f, const struct pass *p)
{
    const struct device_ops *op = p->d->ops;
    int dim = p->plan->dim;
    char *pairs = p->a->pairs.data, *second = pairs + (size_t)dim * p->d->elem_bytes;
    struct device_pick pick = {
        .to_stride = 2 * dim, .from_stride = dim, .from_is_float = true, .width = dim, .n = p->n};

    forward_take_hidden(f, p);
    op->embed(p->d, p->a->embedded, f->embed);
    pick.to = pairs;
    pick.from = p->a->embedded;
    op->pick(p->d, &pick);
    pick.to = second;
    pick.from = p->a->x;
    op->pick(p->d, &pick);
    op->norm_within(p->d, pairs, 2 * dim, &p->w->eagle.norm_embed, dim, p->n);
    op->norm_within(p->d, second, 2 * dim, &p->w->layers[0].norm_mixer, dim, p->n);
    if (p->plan->eagle->norms_residual)
        op->pick(p->d, &(struct device_pick){.to = p->a->x,
                                             .to_stride = dim,
                                             .to_is_float = true,
                                             .from = second,
                                             .from_stride = 2 * dim,
                                             .width = dim,
                                             .n = p->n});
    op->quantise(p->d, &p->a->pairs, p->n, &p->w->layers[0].mixer_in);
}

/* Both rows as one, normed. */
static void forward_pair_mtp(const struct forward *f, const struct pass *p, char *pairs)
{
    const struct device_ops *op = p->d->ops;
    const struct eagle_weights *w = &p->w->eagle;
    int dim = p->plan->dim;
    char *second = pairs + (size_t)dim * p->d->elem_bytes;
    struct device_pick pick = {.to = second,
                               .to_stride = 2 * dim,
                               .from = p->a->rows_normed.data,
                               .from_stride = dim,
                               .rows = f->hidden.rows,
                               .width = dim,
                               .n = p->n};

    if (f->hidden.of_target)
        pick.from = f->tapped->rows;
    op->pick(p->d, &pick);
    if (f->hidden.of_target)
        op->norm_within(p->d, second, 2 * dim, &w->norm_target, dim, p->n);
    op->norm_within(p->d, second, 2 * dim, &w->norm_hidden, dim, p->n);
    op->embed(p->d, p->a->embedded, f->embed);
    op->pick(p->d, &(struct device_pick){.to = pairs,
                                         .to_stride = 2 * dim,
                                         .from = p->a->embedded,
                                         .from_is_float = true,
                                         .from_stride = dim,
                                         .width = dim,
                                         .n = p->n});
    op->norm_within(p->d, pairs, 2 * dim, &w->norm_embed, dim, p->n);
}

void forward_enter_mtp(const struct forward *f, const struct pass *p)
{
    const struct device_ops *op = p->d->ops;
    int dim = p->plan->dim;

    forward_pair_mtp(f, p, p->a->pairs.data);
    op->quantise(p->d, &p->a->pairs, p->n, &p->w->eagle.fc);
    op->matmul(p->d, p->a->delta, &p->a->pairs, &p->w->eagle.fc, NULL, p->n);
    op->pick(p->d, &(struct device_pick){.to = p->a->x,
                                         .to_stride = dim,
                                         .to_is_float = true,
                                         .from = p->a->delta,
                                         .from_stride = dim,
                                         .width = dim,
                                         .n = p->n});
}
