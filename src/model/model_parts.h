/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct of model.h, shared by model.c (opening), model_steps.c (steps) and model_pages.c
 * (pages, sleep).
 * No other file includes this one. */
#ifndef QUIRE_MODEL_MODEL_PARTS_H
#define QUIRE_MODEL_MODEL_PARTS_H

#include "device/device.h"
#include "model/cache.h"
#include "model/hf_config.h"
#include "model/model.h"
#include "model/plan.h"
#include "model/rank.h"

/* The host arrays of a step, derived from its batch. The devices read them until the step is
 * sampled; where steps are posted (rank.h), they also hold what the batch's arrays had. */
struct model_step {
    int32_t *token_seq, *token_pos; /* int32 [max_num_batched_tokens] */
    int32_t *row_tokens;            /* int32 [max_num_seqs] */
    struct k_sample_row *rows;      /* [max_num_seqs] */
    const int32_t **histories;      /* [max_num_seqs] */
    struct device_batch batch;
    int n_rows;
    /* Where steps are posted: */
    int32_t *token_ids, *seq_start, *kv_len; /* [max_num_batched_tokens], [max_num_seqs + 1] */
    int32_t *page_ids;                       /* int32 [n_groups][max_num_seqs][pages_max] */
    struct device_extras extras;             /* the numbers in use */
    uint64_t tickets[RANKS_MAX];             /* the step's last task of each rank */
    struct model *model;
};

struct model {
    struct ranks ranks;
    struct device *device; /* the sampler's */
    struct hf_config config;
    struct model_shape shape;
    bool has_whole_experts;       /* experts are divided among the ranks, not each of them */
    struct plan plan;             /* of one rank's part; equal on all ranks */
    struct cache cache;           /* of all stages; equal on all ranks of a stage */
    int n_under_way;              /* steps that have begun and not ended, 0 .. MODEL_STEPS_MAX */
    enum k_type kv_type;          /* K_BF16 means the device's plain type */
    struct k_format layers, head; /* formats that plain matrices are rounded to; plain: none */
    size_t work_bytes;            /* activations, tables and work areas, for the log */
    struct model_step steps[MODEL_STEPS_MAX]; /* step i is at i % n_steps */
    unsigned n_steps;                         /* a power of two */
    unsigned n_begun;
    struct k_logprob_row *logprobs; /* [max_num_seqs] */
    int *n_asked;                   /* [max_num_seqs], of the step's extras */
    bool is_sampled;                /* the step that began last has been sampled */
};

#endif
