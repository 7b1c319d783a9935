/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the cuda device: base_cuda.c (errors, memory) at the bottom, and above it
 * device_cuda.c (operations, opening), layers_cuda.c (operations of general layers), step_cuda.c
 * (the arrays of a step, recording and replaying steps), experts_cuda.c, copy_cuda.c (copies beside
 * the steps), peers_cuda.c (ranks), stages_cuda.c (stages) and sleep_cuda.c (memory that is given
 * back for a while). */
#ifndef QUIRE_DEVICE_PARTS_CUDA_H
#define QUIRE_DEVICE_PARTS_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "device/device.h"
#include "device/gemm_cuda.h"
#include "kernels/mixing.h"

#define CUDA_ALLOCS_MAX 65536
#define CUDA_GRAPHS_MAX 64 /* buckets of recorded steps: step_bucket_rows() */
#define CUDA_LISTS_MAX  4  /* lists of tiles */

/* The arrays of a step, as pointers into the pinned block or into its mirror on the device. */
struct step_arrays {
    int32_t *ids, *seq, *pos, *seq_start, *kv_len;
    int32_t *state_seqs, *state_starts, *state_lens; /* of layers with states, in recorded runs */
    int32_t *row_tokens, *decode_seqs;
    int32_t *run_places; /* of a recorded step, as k_attn_plan.places */
    int32_t *tile_seqs[CUDA_LISTS_MAX], *tile_starts[CUDA_LISTS_MAX];
    int32_t *picked;                /* where limits.picks is set */
    struct k_adapt_rows adapted[2]; /* of tokens, and of sampled rows, where there are adapters */
    struct k_sample_row *rows;
    size_t bytes; /* used */
};

/* A step in flight: its pinned memory, and facts for its end. */
struct step_slot {
    char *staging;                  /* pinned: the arrays */
    int32_t *pages;                 /* pinned: int32 [n_tables][table][pages needed] */
    int32_t *ids;                   /* pinned: int32 [n_seqs], sampled ids */
    struct k_logprob_row *logprobs; /* pinned: [n_seqs] */
    int n_rows;                     /* of the batch */
    int n_extras;
    bool is_marked;      /* the end of the step has an event: marks[].done */
    int n_seqs, n_pages; /* shape of the page tables */
};

/* Events at the time when a step's first operation could begin, and when its ids had arrived. Those
 * of the previous step must outlive the begin of the next, so there are more of them than slots. */
struct step_marks {
    cudaEvent_t begun, done;
};
#define CUDA_MARKS 64 /* a power of two, above DEVICE_STEPS_MAX + 1 */

/* The streams and buffers of a pipe: a piece may go to every rank. */
struct cuda_pipe {
    int n; /* devices */
    unsigned char *bytes;
    size_t cap;                        /* of bytes */
    cudaStream_t streams[K_RANKS_MAX]; /* by idx, of its GPU */
    k_bf16 *converted[K_RANKS_MAX];    /* pinned: bytes converted for a device; NULL: none yet */
};

struct peers;  /* peers_cuda.c */
struct stages; /* stages_cuda.c */
struct far;    /* far_cuda.c */

/* A recorded step of one bucket. The second step of a bucket is recorded, because the first loads
 * modules and chooses algorithms, which must not happen while the stream is captured. */
struct step_graph {
    cudaGraphExec_t exec; /* NULL: not recorded yet */
    bool is_warm;         /* a step of this bucket has been enqueued operation by operation */
    bool failed;          /* recording failed: never try again */
};

/* Copies in one direction. */
struct copy_way {
    cudaStream_t stream;
    cudaEvent_t fence;
    cudaEvent_t marks[DEVICE_MARKS_MAX]; /* mark n is at n % DEVICE_MARKS_MAX */
    uint64_t n_marks, n_done;
    bool is_open; /* copies in: the stream follows all steps begun before; no need to wait again */
};

/* The memory of one part of a region's addresses. */
struct sleep_piece {
    unsigned long long handle; /* the driver's; undefined while is_mapped is false */
    size_t at, bytes;          /* offset and size in the region; multiples of the granularity */
    bool is_mapped;
};
#define CUDA_PIECES_MAX 8192 /* mostly of SLEEP_PIECE_MAX bytes: 1 TiB */

/* Reserved addresses, whose memory can be given back and taken again. */
struct sleep_region {
    char *base;   /* NULL: not reserved */
    size_t cap;   /* bytes, of addresses */
    size_t used;  /* given out */
    size_t taken; /* bytes that have pieces, in order and without gaps */
    int n_pieces;
    struct sleep_piece pieces[CUDA_PIECES_MAX];
};

/* The work plan of a step's decodes for layers with one shape of attention. */
struct attn_schedule {
    void *memory;   /* k_attn_schedule() fills it */
    bool is_filled; /* in this step */
};

/* The tiles of a step's chunks for layers with so many query heads per kv head. */
struct attn_list {
    int group;
    int n_tiles, tile_keys;
};

/* Work memory of adapters (adapt_cuda.c); all NULL where there are none. */
struct adapt_state {
    float *t;       /* float32 [k_adapt_t_len()] */
    uint32_t *meet; /* of struct k_adapting */
    k_bf16 *plain;  /* [K_PRODUCT_ROWS_MAX][plain_width] */
    int plain_width;
    int32_t *slots; /* host, [rows]: of the step that begins */
    int32_t *work;  /* host, of k_adapt_sort() */
    bool is_active; /* some token of the step has an adapter */
};

struct sleep_calls; /* the driver's functions, sleep_cuda.c */

/* The state of a sleep. */
struct sleep_state {
    struct sleep_calls *calls; /* NULL: sleep_prepare() was not called, or failed */
    struct sleep_region constant, scratch;
    size_t granularity;
    char *copy;       /* host memory, bytes of constant; NULL before the first sleep */
    void *copy_map;   /* the mapping that contains it */
    size_t copy_room; /* bytes of the mapping */
    int n_pinned;     /* number of pinned pieces of the copy, from the first on */
    int n_copied;     /* pieces of constant copied so far: out while falling asleep, in while
                       * waking */
    bool is_whole;    /* the copy is complete: later sleeps copy nothing */
    bool is_asleep;   /* from the end of sleep() to that of wake() */
};

struct cuda {
    struct device base; /* first */
    int ordinal;        /* CUDA's number of the GPU */
    int rank;
    int idx;                      /* among the devices of all stages */
    bool samples;                 /* has all logits */
    struct peers *peers;          /* NULL: no other ranks */
    struct stages *stages;        /* NULL: this device, or its ranks, have all layers */
    struct far *far_in, *far_out; /* NULL: no rows from or to another process */
    struct k_links links; /* set by the first sum, after all ranks have reserved their memory */
    cudaStream_t stream;
    cudaStream_t side; /* for copies that need not wait for a step */
    struct copy_way ways[DEVICE_WAYS];
    struct gemm *gemm;
    void *many;      /* device_widened_bytes(): work memory of k_multiply_many() */
    k_bf16 *widened; /* in it: rows for packed matrices and e4m3; NULL: there are none of these */
    int n_sms;
    const struct device_batch *batch; /* while a step is enqueued */
    struct k_tokens tokens;           /* on the device */
    struct k_tokens state_tokens;     /* as layers with states see them */
    struct k_attn_plan plan;          /* on the device */
    struct step_arrays arrays;        /* on the device */
    struct step_slot slots[DEVICE_STEPS_MAX];
    struct step_marks marks[CUDA_MARKS];
    unsigned n_begun, n_ended;
    uint64_t n_steps; /* that have ended, and their time on the device */
    double busy_us;
    char *mirror;         /* the arrays on the device */
    int32_t *page_mirror; /* int32 [n_tables][n_seqs][pages_max] */
    size_t staging_bytes;
    bool is_short; /* no sequence of the step has more than K_ATTN_SHORT keys */
    struct {
        bool is_few;   /* the layer's attention leaves parts, which its values merge */
        bool is_fresh; /* the last keys are of the launch in front of attention */
        float scale;
    } latent;
    bool has_chunks;     /* sequences with several tokens: keys are written before attention */
    bool has_whole_runs; /* recorded, and all tokens of each of these are neighbours: a run */
    bool is_in_order;    /* recorded with states, and tokens have the batch's order */
    /* [has adapters, or is a variant][has_chunks, 2: has_whole_runs][is_short][bucket] */
    struct step_graph graphs[2][3][2][CUDA_GRAPHS_MAX];
    int bucket;                        /* bucket of the current step; -1: it cannot be recorded */
    bool is_recording;                 /* the stream is being captured */
    struct device_extras extras;       /* on the device */
    struct k_logprob_row *logprobs;    /* [n_seqs] on the device */
    int32_t *history, *history_mirror; /* int32 [history_cap] */
    size_t history_cap;
    int32_t *own_sampled;   /* int32 [n_seqs] */
    int32_t *sampled;       /* peers_ids(): ids of the last sampled step */
    struct k_mixing mixing; /* work memory of experts; NULL pointers without any */
    struct adapt_state adapt;
    int32_t *places;  /* host, [n_seqs]: base.places of a recorded step */
    int32_t *renames; /* base.sample_ids on the device; NULL: not yet */
    void *attn_work;
    struct attn_schedule schedules[DEVICE_TABLES_MAX]; /* [limits.n_shapes] */
    struct attn_list lists[CUDA_LISTS_MAX];            /* [n_lists] */
    int n_lists;
    k_bf16 *convert; /* pinned, [CONVERT_ELEMS] */
    void *workspace; /* WORKSPACE_BYTES, for products */
    int rc;          /* the first error of a step */
    struct sleep_state sleep;
    int n_allocs;
    void *allocs[CUDA_ALLOCS_MAX];
};

static inline struct cuda *cuda_of(struct device *d)
{
    return (struct cuda *)d;
}

/* --- base_cuda.c --- */
int cuda_check(cudaError_t e, const char *what);          /* ERR_GPU, logged */
void cuda_keep(struct cuda *c, int rc, const char *what); /* the first error of a step */
void *cuda_alloc(struct device *d, size_t bytes);
void *cuda_pinned(size_t bytes);
/* Make a device's GPU current for the calling thread; returns the ordinal to pass to cuda_leave().
 * Calls that allocate, launch or create need it; copies and events know their GPU by their
 * stream. */
int cuda_enter(const struct cuda *c);
void cuda_leave(int before);
/* True if the step that begins is sampled on this device. */
static inline bool cuda_samples(const struct cuda *c)
{
    return c->samples && c->batch->n_rows > 0;
}

/* --- device_cuda.c --- */
void cuda_quantise(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to);
/* Point c->plan at the tiles of chunks for layers with so many query heads per kv head. */
void cuda_find_tiles(struct cuda *c, int group);
bool cuda_schedule(struct cuda *c, const struct k_kv *kv, int n_heads);

/* --- adapt_cuda.c --- */
int adapt_reserve(struct cuda *c) ERR_CHECKED;
void adapt_close(struct cuda *c);
/* Sort the rows of a step with adapters into a. n_recorded: those of a recorded step, whose slots
 * are in c->adapt; 0: the step is as in the batch. */
void adapt_fill(struct cuda *c, const struct step_arrays *a, const struct device_batch *b,
                int n_recorded);
/* Does a product of this step add those of adapters? */
static inline bool adapt_is_due(const struct cuda *c, const struct k_matrix *w)
{
    return c->adapt.is_active && w->adapters != NULL;
}
/* Around a product with plain rows x; and a whole product of a fused step. */
void adapt_before(struct cuda *c, struct k_adapting *a, const struct gemm_product *p,
                  const void *x);
void adapt_after(struct cuda *c, const struct k_adapting *a);
void adapt_product(struct cuda *c, const struct k_product *p, int n);

/* --- layers_cuda.c --- */
void layers_activate(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                     int n, const struct k_matrix *to);
void layers_norm(struct device *d, struct device_rows *out, const float *x,
                 const struct k_norm *norm, int n, const struct k_matrix *to);
void layers_norm_within(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                        int n);
void layers_squares(struct device *d, void *squares, const void *x, const struct k_split_norms *s,
                    int n);
void layers_norm_squares(struct device *d, void *x, const void *squares,
                         const struct k_split_norms *s, int n);
void layers_gate(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
                 int ff_dim, int n, const struct k_matrix *to);
bool layers_shut_attn(struct device *d, const void *gate, const struct k_kv *kv);
void layers_shut(struct device *d, void *x, const void *gate, int width, int n,
                 const struct k_matrix *to);
void layers_gate_by(struct device *d, struct device_rows *out, const void *in,
                    const struct k_factor *by, enum k_activation kind, int n,
                    const struct k_matrix *to);
void layers_layer_embeds(struct device *d, void *x, const struct k_layer_embeds *e);
bool layers_delta_gate(struct device *d, float *gates, const struct k_delta_gating *g,
                       const struct k_matrix *w);
void layers_delta(struct device *d, void *out, const void *in, const float *gates,
                  const struct k_delta *delta, const struct k_state *state,
                  const struct k_matrix *to);
void layers_latent_keys(struct device *d, void *q, const void *in, const struct k_latent *l,
                        const struct k_kv *kv, const struct k_matrix *to);
bool layers_latent_joins(struct device *d, const struct k_latent_shape *s,
                         const struct k_matrix *q_b);
void layers_latent_join(struct device *d, void *out, const void *in, const struct k_latent *l,
                        const struct k_matrix *q_b, const struct k_kv *kv);
void layers_attn(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
                 float scale, const struct k_matrix *to);
void layers_halve(struct device *d, void *out, const void *x, int width, int n);
void layers_latent_queries(struct device *d, void *out, const void *in, const struct k_latent *l);
void layers_latent_values(struct device *d, void *out, const void *in, const struct k_latent *l,
                          const struct k_matrix *to);
void layers_index_keys(struct device *d, const void *in, const struct k_index *x,
                       const struct k_kv *kv);
void layers_index_choose(struct device *d, int32_t *chosen, const void *queries,
                         const float *weights, const struct k_index *x, const struct k_kv *kv);
void layers_attn_chosen(struct device *d, void *out, const void *queries, const struct k_kv *kv,
                        const struct k_choice *chosen, int n_heads, float scale);
void layers_grow(struct device *d, void *x, int stride, int width, const struct k_growth *g);
void layers_place(struct device *d, float *x, float scale, const void *positions, int first);
void layers_pick(struct device *d, const struct device_pick *p);
void layers_scale(struct device *d, void *x, int stride, int width, float by, int n);
void layers_add(struct device *d, float *x, const void *delta, float scale, int n);
void layers_add_within(struct device *d, void *x, const void *delta, int n);
void layers_add_normed(struct device *d, struct device_rows *out, float *x, void *delta,
                       const struct k_adding *how, int n, const struct k_matrix *to);
void layers_soften(struct device *d, float *logits, const struct k_softening *how, int n);

/* --- experts_cuda.c --- */
void experts_mix(struct device *d, void *out, const struct device_experts *e, int n);
int experts_reserve(struct cuda *c) ERR_CHECKED;
int experts_arrange(struct device *d, const struct k_matrix *m,
                    const struct k_mxfp4_rows *rows) ERR_CHECKED;

/* Products with packed matrices (packed_cuda.c): scratch memory; one product, of any number of
 * rows. Returns like gemm_run(), or -1 if a launch failed. */
int packed_reserve(struct cuda *c) ERR_CHECKED;
int packed_run(struct cuda *c, const struct gemm_product *p);

/* --- peers_cuda.c: operations of the table --- */
int peers_join(struct device *const *all, int n, enum device_links links);
void peers_leave(struct device *d);
int peers_reserve(struct cuda *c) ERR_CHECKED; /* the memory that sums need */
void peers_close(struct cuda *c);
void peers_stop(struct cuda *c); /* before cuda_close() waits for the stream */
bool peers_failed(const struct cuda *c);
/* Wait for an event of this device's stream; NULL: for all of the stream. */
int peers_wait(struct cuda *c, cudaEvent_t event) ERR_CHECKED;
/* Make the next operations see the ids that the previous step of rank 0 samples. */
int peers_fetch_ids(struct cuda *c) ERR_CHECKED;
int32_t *peers_ids(struct cuda *c);
bool peers_may_record(const struct cuda *c); /* false: steps must be enqueued each time */
struct cuda *peers_first(struct cuda *c);    /* rank 0's device; c itself without ranks */
/* Fills all [K_RANKS_MAX] with the devices of all ranks and stages, by idx; returns how many. */
int peers_all(struct cuda *c, struct cuda **all);
/* Let GPU `from` access the memory of GPU `to`. */
int peers_open_way(const struct cuda *from, const struct cuda *to) ERR_CHECKED;
void peers_sum(struct device *d, void *rows, int n, int width);
void peers_sum_residual(struct device *d, const struct k_product *p, int n);
void *peers_alloc_shared(struct device *d, size_t bytes);
void peers_gather(struct device *d, float *all, const float *part, int n, int width);

/* --- stages_cuda.c: operations of the table --- */
int stages_join(struct device *const *all, int n_stages, int n_parts);
int stages_take(struct device *d, const struct device_segment *segments, int n);
int stages_hand(struct device *d, const struct device_segment *segments, int n);
void stages_leave(struct device *d); /* peers_leave(), and no other stage waits any more */
int stages_reserve(struct cuda *c) ERR_CHECKED;
void stages_close(struct cuda *c);
bool stages_failed(const struct cuda *c);
int stages_all(const struct cuda *c, struct cuda **all); /* as peers_all() */
/* Make the next operations see the ids of the step that the one which begins takes them from. */
int stages_fetch_ids(struct cuda *c) ERR_CHECKED;

/* --- copy_cuda.c: operations of the table --- */
int copy_open(struct cuda *c) ERR_CHECKED;
void copy_close(struct cuda *c);
int copy_pin(struct device *d, void *memory, size_t bytes);
void copy_unpin(struct device *d, void *memory);
int copy_within(struct device *d, void *dst, const void *src, size_t bytes);
int copy_start(struct device *d, enum device_way way, void *dst, const void *src, size_t bytes);
int copy_mark(struct device *d, enum device_way way, uint64_t *ticket);
int copy_done(struct device *d, enum device_way way, uint64_t ticket);
int copy_fence(struct device *d);

/* --- sleep_cuda.c: operations of the table --- */
int sleep_prepare(struct device *d);
void *sleep_alloc_constant(struct device *d, size_t bytes);
void *sleep_alloc_scratch(struct device *d, size_t bytes);
int sleep_out(struct device *d);
int sleep_in(struct device *d);
void sleep_close(struct cuda *c);

/* --- step_cuda.c: operations of the table --- */
/* Find the lists of tiles that the layers need; ERR_UNSUPPORTED (logged). */
int step_find_lists(struct cuda *c) ERR_CHECKED;
int step_reserve(struct cuda *c) ERR_CHECKED;
void step_close(struct cuda *c);
int step_begin(struct device *d, const struct device_batch *b);
bool step_replay(struct device *d);
void step_launch(struct device *d);
void step_place_rows(struct device *d, float *logits);
void step_sample(struct device *d, float *logits);
int step_end(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras);

#endif
