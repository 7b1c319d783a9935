/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a checkpoint brought to the ranks of a model, which is what weights.c is made of.
 *
 * A matrix of the model is made of one tensor or of several, one below the other; a tensor may hold
 * several pieces of it (slice.h). loader_matrix() and its kin look tensors up, check them, allocate
 * and note what is to be read; loader_read() then brings all bytes. Errors are kept in rc and
 * logged, and later calls do nothing, so a caller looks once. */
#ifndef QUIRE_MODEL_LOADER_H
#define QUIRE_MODEL_LOADER_H

#include <pthread.h>

#include "model/plan.h"
#include "model/reader.h"
#include "model/slice.h"
#include "model/weights.h"

#define LOADER_TENSORS_MAX 3 /* of a matrix: q, k, v */

struct target; /* loader.c: where a tensor goes on a rank */

/* Matrices that the device does not multiply with as they are. */
struct loader_converted {
    char text[100]; /* the format of the first */
    int n;
    size_t bytes, as_they_are; /* on the device, and in their own format */
};

struct loader {
    const struct weights_rank *ranks;
    int n_ranks;
    int rank;          /* whose part is being laid out */
    struct weights *w; /* its */
    struct device *d;
    const struct hf_config *c;
    const struct plan *whole, *part;
    const struct weights_source *from;
    struct checkpoint *files; /* NULL: random numbers */
    const char *prefix; /* of the names of this checkpoint's text model, in place of "model." */
    struct head_order orders[HF_CONFIG_ROPES_MAX]; /* slices point to them until all is read */
    struct loader_converted converted;
    uint64_t seed;             /* of the next random matrix */
    struct reader_item *items; /* [n_items]: tensors in the order of the digest */
    struct target *targets;    /* [n_items][n_ranks] */
    size_t n_items, items_cap;
    size_t n_listed;      /* of the items, by this rank */
    pthread_mutex_t turn; /* of the reader's threads at the device's own operations */
    int layer;            /* being loaded; -1 outside the layers */
    int rc;               /* the first error; later calls do nothing */
};

/* The tensors that a matrix or a bias is made of, by the patterns of their names (hf_config.h). */
struct loader_tensors {
    const char *patterns[LOADER_TENSORS_MAX];
    struct slice_shape shapes[LOADER_TENSORS_MAX];
    int n;
};

/* One tensor; several are appended by loader_add(). */
struct loader_tensors loader_tensor(const char *pattern, struct slice_shape shape);
void loader_add(struct loader_tensors *all, const char *pattern, struct slice_shape shape);

/* What a matrix is for: to be looked up in, a product of a layer, or of the logits. */
enum loader_use { USE_TABLE, USE_LAYER, USE_HEAD };

/* The current rank's part of a matrix. */
struct k_matrix loader_matrix(struct loader *l, const struct loader_tensors *all,
                              enum loader_use use);

/* The bias of such a matrix. NULL where it is rank 0's to add: what is split by columns is summed
 * over the ranks. Random models have zeros. */
void *loader_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split);

/* A vector, such as a norm's weights; ones in a random model. plus_one: 1 is added to each element
 * in float32. */
void *loader_vector(struct loader *l, const char *pattern, const struct slice_shape *shape,
                    bool plus_one);

/* The scale of a layer's keys or values in e4m3 pages, beside the tensor `own` or beside the
 * projection of `pattern`; 1 where the checkpoint has none. */
float loader_kv_scale(struct loader *l, const char *own, const char *pattern, const char *ending);

/* The name of the current layer's tensor, with `ending` in place of ".weight". */
void loader_name(const struct loader *l, char *out, size_t cap, const char *pattern,
                 const char *ending);

/* Read all that was listed, and make rank 0's digest. */
int loader_read(struct loader *l) ERR_CHECKED;

/* Free what the loader holds. */
void loader_fini(struct loader *l);

#endif
