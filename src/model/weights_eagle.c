/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights that only a head has. An MTP layer: fc and the three norms before it. An EAGLE-3
 * head: fc, which makes one row of the target's residuals; the norm of the embedded token; and d2t,
 * which turns an id of the head's vocabulary into one of the target's. t2d says the same and is not
 * read. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/safetensors.h"
#include "model/weights_parts.h"

/* A head's mixer reads the embedded token and the row before, one behind the other. */
int weights_mixer_cols(const struct loading *in)
{
    const struct eagle_config *e = &in->l->c->eagle;

    return e->n_taps > 0 && !e->is_mtp ? 2 * in->dim : in->dim;
}

/* ids[i] = i + d2t[i], int64 in the file. Without d2t both have one vocabulary. */
static int weights_load_ids(const struct loader *l, int32_t *ids, int n)
{
    const struct eagle_config *e = &l->c->eagle;
    const struct tensor *t = l->files == NULL ? NULL : checkpoint_find(l->files, "d2t");
    int64_t *added;
    int rc;

    for (int i = 0; i < n; i++)
        ids[i] = i;
    if (t == NULL)
        return ERR_OK;
    if (strcmp(t->dtype, "I64") != 0 || t->n_dims != 1 || t->dims[0] != n) {
        log_error("model: %s: d2t must be I64 [%d]", checkpoint_path(l->files, t), n);
        return ERR_INVALID;
    }
    added = mem_alloc((size_t)n * sizeof *added);
    if (added == NULL)
        return ERR_NO_MEMORY;
    rc = checkpoint_read(l->files, t, 0, added, (size_t)n * sizeof *added);
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        if (added[i] < -i || added[i] >= e->n_words - i) {
            log_error("model: %s: d2t[%d] leads out of the vocabulary of %d",
                      checkpoint_path(l->files, t), i, e->n_words);
            rc = ERR_INVALID;
        }
        ids[i] += (int32_t)added[i];
    }
    mem_free(added);
    return rc;
}

static void weights_give_ids(struct loader *l)
{
    struct eagle_weights *w = &l->w->eagle;

    w->ids = mem_alloc((size_t)l->c->n_vocab * sizeof *w->ids);
    if (w->ids == NULL && l->rc == ERR_OK)
        l->rc = ERR_NO_MEMORY;
    if (l->rc == ERR_OK)
        l->rc = weights_load_ids(l, w->ids, l->c->n_vocab);
}

void weights_load_eagle(const struct loading *in)
{
    struct loader *l = in->l;
    const struct eagle_config *e = &l->c->eagle;
    struct eagle_weights *w = &l->w->eagle;
    int cols = e->n_taps * e->tap_dim;
    const struct loader_tensors fc =
        loader_tensor("fc.weight", slice_whole(in->dim, in->dim, cols, cols));

    w->fc = loader_matrix(l, &fc, USE_LAYER);
    w->norm_embed = weights_load_norm(in, "midlayer.input_layernorm.weight", true);
    weights_give_ids(l);
}

void weights_load_mtp(const struct loading *in)
{
    struct loader *l = in->l;
    struct eagle_weights *w = &l->w->eagle;
    const struct mtp_names *names = l->c->form.mtp;
    const char *prefix = l->prefix;
    const struct loader_tensors fc =
        loader_tensor(names->fc, slice_whole(in->dim, in->dim, 2 * in->dim, 2 * in->dim));

    w->fc = loader_matrix(l, &fc, USE_LAYER);
    w->norm_embed = weights_load_norm(in, names->norm_embed, true);
    w->norm_hidden = weights_load_norm(in, names->norm_hidden, true);
    l->prefix = l->of_target;
    w->norm_target = weights_load_norm(in, in->names->norm, true);
    l->prefix = prefix;
    weights_give_ids(l);
}
