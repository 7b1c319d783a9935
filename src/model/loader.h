/* SPDX-License-Identifier: Apache-2.0
 *
 * Brings the tensors of a checkpoint to the ranks of a model; weights.c is built on it.
 *
 * A matrix of the model consists of one tensor or of several, one below the other; a tensor may
 * hold several pieces of it (slice.h). loader_matrix(), loader_bias() and loader_vector() look
 * tensors up, check them, allocate memory, and list the bytes to be read; loader_read() then reads
 * everything. Errors are logged and kept in rc, and later calls do nothing, so a caller checks rc
 * once. */
#ifndef QUIRE_MODEL_LOADER_H
#define QUIRE_MODEL_LOADER_H

#include <pthread.h>

#include "model/plan.h"
#include "model/reader.h"
#include "model/slice.h"
#include "model/weights.h"

#define LOADER_TENSORS_MAX 4 /* tensors of one matrix: q, k, v, z */

struct target;   /* loader.c: the destination of a tensor on a rank */
struct arranged; /* loader_experts.c: a matrix that is arranged when it has been read */

/* Statistics on matrices that the device does not multiply with in their own format. */
struct loader_converted {
    char text[100]; /* the format of the first one, in words */
    int n;
    bool is_rounded;           /* the last one became e4m3, as the setting quantization asks */
    size_t bytes, as_they_are; /* on the device, and in their own format; all ranks */
};

struct loader {
    const struct weights_rank *ranks;
    int n_ranks;      /* of all stages */
    int rank;         /* the rank whose part is being laid out */
    int stage, share; /* its stage, and its number in it: which share of each tensor it has */
    int n_stages, n_shares;
    bool is_last;      /* it has the output matrix */
    bool absent;       /* what is laid out belongs to another stage: it is listed, and gets neither
                        * memory nor bytes */
    struct weights *w; /* of this rank */
    struct device *d;
    const struct hf_config *c;
    const struct plan *whole, *part;
    const struct weights_source *from;
    struct checkpoint *files; /* NULL: fill with random numbers */
    const char *prefix;       /* replaces "model." at the start of names of the text model */
    const char *of_target; /* of an MTP layer: the prefix of its target's names; else as prefix */
    struct head_order orders[HF_CONFIG_ROPES_MAX]; /* slices point to them until all is read */
    struct loader_converted converted;
    uint64_t seed;             /* of the next random matrix */
    struct reader_item *items; /* [n_items]: tensors in the order of the digest */
    struct target *targets;    /* [n_items][n_ranks] */
    size_t n_items, items_cap;
    size_t n_listed;           /* items that this rank has listed so far */
    struct arranged *arranged; /* [n_arranged] */
    size_t n_arranged, arranged_cap;
    struct arena views;   /* of tensors that hold several matrices */
    pthread_mutex_t turn; /* held by a reader's thread during the device's non-pipe operations */
    int layer;            /* being loaded; -1 outside the layers */
    int expert;           /* likewise, of the layer */
    int rc;               /* the first error; later calls do nothing */
};

/* The tensors of a matrix or a bias, by the patterns of their names (hf_config.h). With experts the
 * list is repeated for each of them, and a rank has n_own_experts of these: all, or its own ones.
 * If in_one, a pattern is the whole name of a tensor [n_experts][rows][cols]. */
struct loader_tensors {
    const char *patterns[LOADER_TENSORS_MAX];
    struct slice_shape shapes[LOADER_TENSORS_MAX];
    int n;
    int n_experts, n_own_experts; /* 0: not of experts */
    bool is_gated;                /* of experts: gates and ups */
    bool in_one;
    bool is_turned[LOADER_TENSORS_MAX]; /* the tensor, or each expert's, is [cols][rows] */
    bool is_mixed;                      /* in_one, in the forms of arch_names.experts_are_mixed */
    int n_spare; /* of experts: the matrix's memory has room for so many more of its own */
    /* The matrix goes into the room behind this one's n_before experts, where it is as large as one
     * of them and has their format; NULL: elsewhere. */
    const struct k_matrix *behind;
    int n_before;
};

/* A list of one tensor; loader_add() appends more. */
struct loader_tensors loader_tensor(const char *pattern, struct slice_shape shape);
void loader_add(struct loader_tensors *all, const char *pattern, struct slice_shape shape);

/* The use of a matrix: a table that is looked up in, one whose rows are added (always plain), a
 * product of a layer, a product of all experts of a layer, or the product that gives logits. */
enum loader_use { USE_TABLE, USE_ADDED, USE_LAYER, USE_EXPERTS, USE_HEAD };

/* The current rank's part of a matrix. */
struct k_matrix loader_matrix(struct loader *l, const struct loader_tensors *all,
                              enum loader_use use);

/* Note a matrix of these tensors as one that adapters may have, if there are adapters and its use
 * allows them. loader_matrix() has done so with its own. */
void loader_adapt(struct loader *l, struct k_matrix *m, const struct loader_tensors *all,
                  enum loader_use use);

/* The bias of such a matrix. NULL on ranks above 0 if the matrix is split by columns, because
 * results of such products are summed over the ranks, and the bias must be added once. Random
 * models have zeros. */
void *loader_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split);

/* The biases [own experts][rows] of experts that are in one tensor: [n_experts][rows], its name
 * that of the matrix with "_bias". NULL on ranks above 0 if all ranks have all experts and the
 * matrix is split by columns. Random models have zeros. */
void *loader_expert_bias(struct loader *l, const struct loader_tensors *all, enum plan_split split);

/* A vector, such as the weights of a norm; ones in a random model, or if pattern is NULL. plus_one:
 * add 1 to each element, in float32. */
void *loader_vector(struct loader *l, const char *pattern, const struct slice_shape *shape,
                    bool plus_one);

/* Float32 numbers [rows][cols] on the device, of a tensor with this shape or, for one column, with
 * this many elements, times `by`; noise in a random model, zeros in place of a vector. `whole` is
 * the tensor's whole name. The host reads them at once, so only for small tensors. */
const float *loader_numbers(struct loader *l, const char *whole, int rows, int cols, float by);

/* How a tensor of numbers is stored. */
struct numbers_form {
    bool is_rate;    /* -exp() of the numbers */
    int n_before;    /* these rows are in order, and behind them */
    int chunk, turn; /* chunks of rows, in turns (slice.h); turn 0: they are in order too */
};

/* The same of a tensor in another form. A rate that is not negative is refused (logged). */
const float *loader_numbers_of(struct loader *l, const char *whole, int rows, int cols,
                               const struct numbers_form *form);

/* The only number of a tensor of this whole name; 1 in a random model. Logged if it is missing. */
float loader_number(struct loader *l, const char *whole);

/* True if the checkpoint has the current layer's tensor of this whole name. */
bool loader_has(const struct loader *l, const char *whole);

/* Elements of a row that the current layer's tensor holds in one block; 1 for plain numbers, and if
 * it is missing. */
int loader_block(const struct loader *l, const char *pattern);

/* Log that the checkpoint has more experts than config.json says, if it has: their tensors follow
 * `pattern`. */
void loader_refuse_more_experts(struct loader *l, const char *pattern, int n);

/* The scale of a layer's keys or values in e4m3 pages, stored with the stem `own` or with the
 * projection `pattern`; 1 if the checkpoint has none. */
float loader_kv_scale(struct loader *l, const char *own, const char *pattern, const char *ending);

/* The name of the current layer's tensor, with `ending` in place of ".weight". */
void loader_name(const struct loader *l, char *out, size_t cap, const char *pattern,
                 const char *ending);

/* Read all listed tensors, and make rank 0's digest. */
int loader_read(struct loader *l) ERR_CHECKED;

/* Free what the loader holds. */
void loader_fini(struct loader *l);

#endif
