/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices that adapters may have: those of layers and the output matrix, but not experts, and not
 * those of more tensors than kernels take, or with room: adapters with these are refused by their
 * names. */
#include "model/adapters.h"
#include "model/loader.h"

#define NAME_CAP 400

void loader_adapt(struct loader *l, struct k_matrix *m, const struct loader_tensors *all,
                  enum loader_use use)
{
    char names[LOADER_TENSORS_MAX][NAME_CAP];
    const char *at[LOADER_TENSORS_MAX];
    struct slice slices[LOADER_TENSORS_MAX];

    if (l->rc != ERR_OK || l->w->adapters == NULL || (use != USE_LAYER && use != USE_HEAD) ||
        all->n > K_ADAPTED_MAX)
        return;
    for (int i = 0; i < all->n; i++) {
        if (slice_is_padded(&all->shapes[i]))
            return;
    }
    for (int i = 0; i < all->n; i++) {
        loader_name(l, names[i], sizeof names[i], all->patterns[i], "");
        at[i] = names[i];
        slices[i] = slice_make(&all->shapes[i], l->share, l->n_shares);
    }
    m->adapters = adapters_note(l->w->adapters, at, slices, all->n, use == USE_HEAD, l->absent);
    if (m->adapters == NULL)
        l->rc = ERR_NO_MEMORY;
}
