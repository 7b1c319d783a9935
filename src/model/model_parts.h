/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct of model.h, shared by model.c (opening, steps) and model_pages.c (pages, sleep).
 * No other file includes this one. */
#ifndef QUIRE_MODEL_MODEL_PARTS_H
#define QUIRE_MODEL_MODEL_PARTS_H

#include "device/device.h"
#include "model/cache.h"
#include "model/hf_config.h"
#include "model/model.h"
#include "model/plan.h"
#include "model/rank.h"

struct model {
    struct ranks ranks;
    struct device *device; /* rank 0's, which samples */
    struct hf_config config;
    struct model_shape shape;
    bool has_whole_experts;       /* experts are divided among the ranks, not each of them */
    struct plan plan;             /* of one rank's part; equal on all ranks */
    struct cache cache;           /* equal on all ranks */
    int n_under_way;              /* steps that have begun and not ended, 0 .. MODEL_STEPS_MAX */
    int n_rows;                   /* of the last step */
    enum k_type kv_type;          /* K_BF16 means the device's plain type */
    struct k_format layers, head; /* formats that plain matrices are rounded to; plain: none */
    size_t work_bytes;            /* activations, tables and work areas, for the log */
    /* Derived from a batch by model_step_begin(); read by the device until the step is sampled. */
    int32_t *token_seq, *token_pos; /* int32 [max_num_batched_tokens] */
    int32_t *row_tokens;            /* int32 [max_num_seqs] */
    struct k_sample_row *rows;      /* [max_num_seqs] */
    const int32_t **histories;      /* [max_num_seqs] */
    struct device_batch device_batch;
    struct k_logprob_row *logprobs; /* [max_num_seqs] */
    int *n_asked;                   /* [max_num_seqs], of the step's extras */
    bool is_sampled;                /* the step that began last has been sampled */
};

#endif
