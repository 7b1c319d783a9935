/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct of model.h, shared by model.c (opening), model_steps.c (steps), model_pages.c
 * (pages, sleep) and watch.c.
 * No other file includes this one. */
#ifndef QUIRE_MODEL_MODEL_PARTS_H
#define QUIRE_MODEL_MODEL_PARTS_H

#include "device/device.h"
#include "model/cache.h"
#include "model/forward.h"
#include "model/hf_config.h"
#include "model/model.h"
#include "model/node.h"
#include "model/plan.h"
#include "model/rank.h"

/* The host arrays of a step, derived from its batch. The devices read them until the step is
 * sampled; where steps are posted (rank.h), they also hold what the batch's arrays had. */
struct model_step {
    int32_t *token_seq, *token_pos; /* int32 [max_num_batched_tokens] */
    int32_t *picked;                /* of a head: rows beside its tokens */
    int32_t *token_slots;           /* likewise, of adapters; NULL: the model has none */
    int32_t *row_tokens;            /* int32 [max_num_seqs] */
    struct k_sample_row *rows;      /* [max_num_seqs] */
    const int32_t **histories;      /* [max_num_seqs] */
    struct device_batch batch;
    struct batch_hidden hidden;
    int n_rows;
    struct device_extras extras; /* the device's arrays, and the numbers of this step */
    /* Where steps are posted: */
    int32_t *token_ids, *seq_start, *kv_len; /* [max_num_batched_tokens], [max_num_seqs + 1] */
    int32_t *page_ids;                       /* int32 [n_groups][max_num_seqs][pages_max] */
    uint64_t tickets[RANKS_MAX];             /* the step's last task of each rank */
    struct model *model;
};

/* Where another node's rank has its part of a page in host memory. */
struct model_part {
    size_t at, bytes;
};

struct model {
    struct ranks ranks;
    struct node *node; /* NULL: there is one */
    int node_rank;
    bool has_far; /* devices hand rows to the other node's by themselves */
    int n_far;    /* ranks of the other node with layers */
    struct model_part far[RANKS_MAX];
    size_t own_page_bytes;               /* parts of this node's ranks */
    uint64_t asked_at[DEVICE_MARKS_MAX]; /* pages that were asked for before a mark, in a ring by
                                          * ticket */
    struct device *device;               /* the sampler's */
    struct hf_config config;
    struct model_shape shape;
    bool has_whole_experts;       /* experts are divided among the ranks, not each of them */
    bool rounds_inputs;           /* on the cpu device (cpu_inputs) */
    struct plan plan;             /* of one rank's part; equal on all ranks */
    struct cache cache;           /* of all stages; equal on all ranks of a stage */
    int n_under_way;              /* steps that have begun and not ended, 0 .. MODEL_STEPS_MAX */
    enum k_type kv_type;          /* K_BF16 means the device's plain type */
    struct k_format layers, head; /* formats that plain matrices are rounded to; plain: none */
    size_t work_bytes;            /* activations, tables and work areas, for the log */
    int row_pages;                /* room of a row of page_ids */
    char *own_page;               /* node 1: [own_page_bytes], a page on its way */
    struct model_step steps[MODEL_STEPS_MAX]; /* step i is at i % n_steps */
    unsigned n_steps;                         /* a power of two */
    unsigned n_begun;
    model_watch_fn *watch;
    void *watch_context;
    struct k_logprob_row *logprobs; /* [max_num_seqs] */
    int *n_asked;                   /* [max_num_seqs], of the step's extras */
    int adapter_rank;               /* the highest of any adapter */
    struct forward_taps taps;       /* rank 0's, of the last step; n 0: none are kept */
    const struct model *target;     /* of a head; NULL: none */
    bool is_sampled;                /* the step that began last has been sampled */
};

/* --- model_types.c --- */

/* Choose the types of weights, pages, inputs of products, and states, for this device. A word that
 * no setting has: ERR_INVALID; a type that the device lacks: ERR_UNSUPPORTED (logged). */
int model_choose_types(struct model *m, const struct model_options *o) ERR_CHECKED;

/* --- model_pages.c --- */

/* Choose n_pages. If the memory is too small for a text of max_model_len tokens, lower that length,
 * unless it was asked for: then it is an error. ERR_NO_MEMORY (logged), ERR_GPU. */
int model_choose_pages(struct model *m, const struct model_options *o) ERR_CHECKED;

/* Orders of node 0. */
int model_follow_page_out(struct model *m, const struct node_message *order);
int model_follow_page_in(struct model *m, const struct node_message *order);
int model_follow_page_copy(struct model *m, const struct node_message *order);
int model_follow_sleep(struct model *m, const struct node_message *order);

/* --- model_head.c --- */

/* Memory for the residuals that options ask for. ERR_UNSUPPORTED (logged), ERR_NO_MEMORY. */
int model_take_mtp(struct model *m, const struct model_options *o) ERR_CHECKED;
int model_alloc_taps(struct model *m, const struct model_options *o) ERR_CHECKED;

/* The checkpoint's output matrix, or that of a model that pools. ERR_UNSUPPORTED (logged). */
int model_choose_head(struct model *m, const struct model_options *o) ERR_CHECKED;

/* May this folder be opened as it is asked for, on this device? ERR_UNSUPPORTED (logged). */
int model_check_head(const struct model *m, const struct model_options *o) ERR_CHECKED;

/* Rows come from the other node before this rank's layers, and go to it behind them. */
bool model_takes_far(const struct model *m, const struct rank *r);
bool model_hands_far(const struct model *m, const struct rank *r);

#endif
