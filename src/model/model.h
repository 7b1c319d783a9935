/* SPDX-License-Identifier: Apache-2.0
 *
 * A model on a device: weights, KV pages and the forward pass, used through a handful of calls.
 *
 * The engine's thread is the only caller. After model_open() only model_sleep() allocates memory,
 * for a copy of the weights. A device error is returned as ERR_GPU and is final: the engine exits
 * and is restarted. */
#ifndef QUIRE_MODEL_MODEL_H
#define QUIRE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/batch.h"

struct model;
struct pooling;

struct model_options {
    const char *dir;          /* Hugging Face folder: config.json, *.safetensors; or a GGUF file */
    const char *hf_overrides; /* JSON object: members that replace those of config.json */
    const char *device;       /* "auto", "cuda", "cpu" */
    const char *kernels;      /* as device_choose_kernels(); NULL: "auto" */
    bool dummy_weights;       /* random weights in the shapes of config.json; no files read */
    /* NULL or "": as in the folder; "fp8": matrices of layers that are plain are rounded to e4m3,
     * with one scale per row; "fp8_all": the output matrix too; "int8": those of layers but
     * experts' are rounded to 8-bit whole numbers, with one scale per row. */
    const char *quantization;
    const char *kv_cache_dtype; /* NULL or "auto": the device's type; "fp8", "fp8_e4m3": e4m3 */
    const char *state_dtype;    /* of recurrent layers: NULL, "auto", "float32", "bfloat16" */
    const char *gemm_table; /* table of measured matrix products; NULL or "": the installed one */
    const char *cpu_inputs; /* of the cpu device's products with blocks of 4 to 8 bits: NULL, "" or
                              * "float32": as they are; "int8": rounded (device_limits.rounds) */
    const char
        *gpu_inputs; /* of a GPU's products of many rows with weights of 4 or 8 bits: NULL, ""
                              * or "auto": as the checkpoint says; "bf16": as they are; "int8":
                              * rounded (k_format.rounds_x) */
    int cpu_threads; /* 0: one per core; shared among the ranks */
    int n_ranks;     /* devices that share each layer, 1 .. 16 (rank.h); 0: one */
    int n_stages;    /* runs of layers, each on n_ranks devices of its own; 0: one */
    int n_nodes;     /* processes that share the stages (node.h), 1 or 2; 0: one */
    int node_rank;   /* which of them this is */
    const char *master_addr; /* of node 0 */
    int master_port;
    bool uses_nccl;     /* for sums over the devices; otherwise only where a GPU cannot reach
                             * another one's memory */
    int first_gpu;      /* of those that CUDA shows: the first of these devices */
    bool whole_experts; /* each rank has some experts, not a part of each */
    int page_tokens;    /* tokens of a page */
    int max_num_seqs;   /* 0: the device's default (256 cuda, 64 cpu) */
    int max_num_batched_tokens; /* 0: the device's default (8192 cuda, 1024 with stages, 512
                                 * cpu) */
    int max_model_len;          /* 0: the model's own */
    int num_pages;              /* 0: as many as fit */
    size_t beside_bytes;        /* of another model's page that belongs to each page of this one:
                                 * as many fit as have room for both */
    bool pages_later;           /* model_add_pages() allocates the pages */
    bool is_drafter;            /* the folder may be an EAGLE-3 head (model_join()) */
    bool is_mtp;                /* the model is the MTP layer of the folder, for model_join() */
    int n_taps;                 /* residuals that steps keep for a head; 0: none */
    const int *taps;            /* int [n_taps], as struct eagle_config has them */
    double gpu_memory_utilization;
    size_t cpu_kv_bytes;
    size_t bytes_max; /* that the model may take on its devices; 0: as much as there is */
    bool sleeps;      /* allocate memory in such a way that model_sleep() can give it back */
    const struct pooling *pooling; /* how it pools, its tokens looked up; NULL: it generates */
    int n_adapters;                /* slots of adapters (model_adapter_place()); 0: none */
    int adapter_rank;              /* the highest of any, 1 .. ADAPTER_RANK_MAX */
};

struct settings;

/* What the engine's settings say. Texts are borrowed. first_gpu and sleeps are left at 0: a program
 * that replicates or sleeps sets them. */
struct model_options model_options_of(const struct settings *settings);

/* The result of the options and config.json. */
struct model_shape {
    int n_layers, dim, n_heads, n_kv_heads, head_dim, ff_dim, n_vocab;
    int n_words; /* ids that tokens of a batch may have: n_vocab; of a head its target's; of a model
                   * that pools those of its embedding */
    bool pools;  /* logits are vectors [n_vocab] = [dim], or scores of labels, then zeros */
    int n_stages; /* 1 .. 16 */
    int max_model_len;
    int max_num_seqs;
    int max_num_batched_tokens;
    int page_tokens;
    size_t device_bytes;                   /* taken on the device, pages included */
    size_t weight_bytes, work_bytes;       /* of all ranks; work: activations, tables, work areas */
    int n_experts, n_experts_used;         /* of a layer with experts, and by a token; 0: none */
    size_t expert_bytes;                   /* of weight_bytes: all experts' matrices */
    size_t table_bytes;                    /* of weight_bytes: only looked up in */
    bool sleeps;                           /* sleeping was asked for, and the device can do it */
    size_t sleeping_bytes, constant_bytes; /* of device_bytes: the part that a sleep gives back,
                                            * and the part of that which the host keeps a copy of */
    int n_pages;                           /* KV pages on the device, ids 0 .. n_pages - 1 */
    size_t page_bytes;                     /* one page: all layers of a group, in the KV type;
                                            * with several ranks the sum of their parts */
    int n_groups;                          /* 1 .. CACHE_GROUPS_MAX */
    struct cache_group groups[CACHE_GROUPS_MAX];
    int n_adapters; /* slots of adapters */
    int n_eos;      /* ids that end a text: generation_config.json, else config.json */
    int32_t eos[8];
    bool is_gpu;
    char device[64];         /* for the log, e.g. "cpu, 2 threads" or the GPU's name */
    struct hash fingerprint; /* digest of weights, config, KV type and page layout: equal
                              * fingerprints mean that KV pages may be exchanged */
};

/* Load a model. Logs progress on long loads and the memory table (weights, KV pages,
 * activations, workspace) at the end. Blocks for the whole load.
 *
 * Returns ERR_OK; ERR_NOT_FOUND, ERR_SYNTAX, ERR_INVALID, ERR_CORRUPT or ERR_UNSUPPORTED for a
 * folder that is missing, damaged or of an unknown kind; ERR_NO_MEMORY; ERR_LIMIT: it needs more
 * than bytes_max; ERR_GPU. All are
 * logged with the file and the reason. */
int model_open(struct model **out, const struct model_options *options) ERR_CHECKED;
void model_close(struct model *m); /* NULL is fine */

const struct model_shape *model_shape(const struct model *m);

/* The layers that a head reads of its target: what options.taps of that is to be. 0: it is none. */
int model_taps(const struct model *m, const int **taps);

/* head drafts for target, both open: its steps read the rows of target's last step. head's pages
 * and dimensions are checked. ERR_UNSUPPORTED (logged). */
int model_join(struct model *head, struct model *target) ERR_CHECKED;

/* Allocate n pages of a model that was opened with pages_later; once, before its first step. */
int model_add_pages(struct model *m, int n) ERR_CHECKED;

/* Node 1 of two: follow node 0 until it ends, or until stop_fd is readable. ERR_DRAINING: it is;
 * ERR_GPU: node 0, or a device, has ended. */
int model_follow(struct model *m, int stop_fd) ERR_CHECKED;

/* True if the other node has ended, also while no step runs. */
bool model_is_lost(const struct model *m);

/* The least number of KV pages that a sequence of n_tokens tokens needs. */
int model_pages_of(const struct model *m, int n_tokens);

/* Give the device's memory back, and take it again. Weights are restored, the content of pages is
 * lost. Results and repetition as sleep() and wake() of device/device.h. No step and no copy may be
 * in flight. Only if shape.sleeps. */
int model_sleep(struct model *m) ERR_CHECKED;
int model_wake(struct model *m) ERR_CHECKED;

/* Adapters (adapter.h). model_adapter_check(): does it fit this model? Errors as adapters_check();
 * any thread. model_adapter_place(): copy it into a slot; waits until posted steps have run, and
 * no step in flight may use the slot. ERR_GPU. */
struct adapter;
int model_adapter_check(const struct model *m, const struct adapter *a, char *why,
                        size_t why_cap) ERR_CHECKED;
/* Prepare an adapter that fits for its places; before that it cannot be placed. Any thread that may
 * allocate. ERR_NO_MEMORY. */
int model_adapter_pack(const struct model *m, struct adapter *a) ERR_CHECKED;
int model_adapter_place(struct model *m, int slot, const struct adapter *a) ERR_CHECKED;
/* Fill a slot with noise on all matrices, for measurements. ERR_GPU. */
int model_adapter_place_noise(struct model *m, int slot, int rank) ERR_CHECKED;

/* Steps that may be in flight at once: shape.n_stages + 1, so that each stage computes one while
 * the next one begins. */
#define MODEL_STEPS_MAX 32 /* the length of rings: a power of two, so that numbers may wrap */

/* Start one step: write K and V of the batch's tokens into their pages, and compute the logits of
 * the rows. May return before the device is done. Steps run in the order in which they begin, and
 * so do page reads and writes between them.
 * A batch that breaks batch.h's ranges is a bug of the caller (must()).
 * On the cpu device results are bit-identical whatever else is in the batch; with another number of
 * ranks nearly so. On cuda the order of a product's sums depends on the number of rows, in buckets
 * of which the first is 1 to 3 (2 or 1 where a product sums over more than 25,000), so nearly equal
 * logits may change their order. */
int model_step_begin(struct model *m, const struct batch *b) ERR_CHECKED;

/* Sample the rows of the step that began last, with the same batch; once per step, and before the
 * next begins. If the batch has histories or extras, only after the previous step has ended: the
 * caller fills them in meanwhile, while the device computes. */
int model_step_sample(struct model *m, const struct batch *b) ERR_CHECKED;

/* Masks for extras: uint32 [max_num_seqs][ceil(n_vocab / 32)], id i is bit i % 32 of word i / 32.
 * The caller may write them between the end of the previous step and model_step_sample(). */
uint32_t *model_masks(struct model *m, int *n_words);

/* Wait for the oldest step in flight; token_ids out: int32 [n_rows]; logprobs out: [n_extras],
 * valid for those with n_top >= 0; may be NULL. */
int model_step_end(struct model *m, int32_t *token_ids,
                   struct batch_logprobs *logprobs) ERR_CHECKED;

/* How long the device was idle before the step that ended last, in microseconds; 0 on cpu. */
float model_gap_us(const struct model *m);

/* The work of a rank of this process, and its memory. */
struct model_load {
    int stage, part; /* the stage, and the rank's number in it */
    size_t device_bytes;
    uint64_t n_steps;         /* that have ended */
    uint64_t busy_us, sum_us; /* in steps; of these, in sums over ranks (0 with NCCL) */
};

int model_n_ranks(const struct model *m);
/* Takes some 20 us. */
void model_measure(struct model *m, int rank, struct model_load *out);

/* Inputs of a layer's products: of the mixer's first and second one, and of the FFN's. Experts'
 * products are not among them. */
enum model_input {
    MODEL_INPUT_MIXER,
    MODEL_INPUT_MIXER_OUT,
    MODEL_INPUT_FFN,
    MODEL_INPUT_DOWN,
    MODEL_INPUTS
};

/* Show the inputs of all later steps to fn: x float32 [n][width]; on the thread that begins steps.
 * ERR_UNSUPPORTED (logged): the device is not the cpu, or there are several ranks. */
typedef void model_watch_fn(void *context, int layer, enum model_input input, const float *x, int n,
                            int width);
int model_watch(struct model *m, model_watch_fn *fn, void *context) ERR_CHECKED;

/* The input that is multiplied with a tensor of a layer, by the tensor's name in the checkpoint.
 * False: none, or one of several for the same place (experts). */
bool model_input_of(const struct model *m, const char *tensor, int layer, enum model_input *input);

/* The unmodified logits of a row of the step that began last and has not been sampled: float32
 * [n_vocab]. Waits for the device; copies 0.5 MB for a vocabulary of 128k. */
int model_row_logits(struct model *m, int row, float *logits) ERR_CHECKED;

/* The same of n rows from `first` on: float [n][n_vocab], in one copy. */
int model_rows_logits(struct model *m, int first, int n, float *logits) ERR_CHECKED;

/* Logits of the last step's rows before penalties, float32 [n_rows][n_vocab]; for tests. */
int model_logits(struct model *m, float *logits) ERR_CHECKED;

/* Copy one page between the device and host memory of page_bytes; blocks. Never during a step
 * that writes the page. */
int model_page_read(struct model *m, int32_t page_id, void *host) ERR_CHECKED;
int model_page_write(struct model *m, int32_t page_id, const void *host) ERR_CHECKED;

/* Copy a page to another, after the steps that have begun and before the next one. */
int model_page_copy(struct model *m, int32_t to, int32_t from) ERR_CHECKED;

/* Copies that run beside the steps, without waiting; device/device.h describes starting, marks and
 * completion. A page that is copied in must not be used before its copy is done, and one that is
 * copied out must not be written; model_copy_fence() makes the next step wait for the copies out.
 * model_pin() prepares host memory (any thread). */
enum model_way { MODEL_IN, MODEL_OUT };
int model_page_in(struct model *m, int32_t page_id, const void *host) ERR_CHECKED;
int model_page_out(struct model *m, int32_t page_id, void *host) ERR_CHECKED;
int model_copy_mark(struct model *m, enum model_way way, uint64_t *ticket) ERR_CHECKED;
int model_copy_done(struct model *m, enum model_way way, uint64_t ticket) ERR_CHECKED;
int model_copy_fence(struct model *m) ERR_CHECKED;
int model_pin(struct model *m, void *memory, size_t bytes) ERR_CHECKED;
void model_unpin(struct model *m, void *memory);

#endif
