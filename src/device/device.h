/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of a device: one table of operations, chosen at start.
 *
 * The cpu device holds weights, activations and KV in float32, the cuda device in bfloat16; the
 * residual and the logits are float32 on both. Memory is allocated at start by alloc() and its
 * variants, and given back as a whole by close(), or for a while by sleep(). Operations of a step
 * are enqueued in order on one stream; an error sticks and is returned by end(). All calls come
 * from one thread, except for pipes.
 *
 * The operations are those of kernels/kernels.h, which defines their results. Pointers to device
 * memory are void * or float *; the cpu device's are plain memory. */
#ifndef QUIRE_DEVICE_DEVICE_H
#define QUIRE_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/adapter.h"
#include "kernels/delta.h"
#include "kernels/index.h"
#include "kernels/kernels.h"
#include "kernels/latent.h"
#include "kernels/mamba.h"
#include "kernels/mxfp4.h"
#include "kernels/packed_many.h"

enum device_type { DEVICE_BF16, DEVICE_F16, DEVICE_F32 }; /* of weights in a file */

/* A pipe: host memory from which the device copies while the next pipe is filled. */
struct device_pipe {
    unsigned char *bytes;
    void *stream; /* the device's own */
};

#define DEVICE_TABLES_MAX 16

/* Scratch memory of a GPU for rows of packed matrices as bf16: the largest matrix of an 8B model is
 * two parts of it. */
#define DEVICE_WIDENED_BYTES ((size_t)128 << 20)
#define DEVICE_HALVED_BYTES  ((size_t)8 << 20) /* 64 rows of 65,536 */
/* Of k_multiply_many(), on GPUs of up to 160 multiprocessors. */
#define DEVICE_MANY_BYTES (K_MANY_COUNTERS + ((size_t)40 << 20))

/* Attention of layers that have the same heads, which see as many keys. */
struct device_heads {
    int n_heads, n_kv_heads, head_dim;
    int window; /* k_kv.window */
};

/* The largest step; work memory is sized by it. */
struct device_limits {
    int n_tokens, n_seqs, pages_max, len_max; /* len_max: tokens of a sequence */
    int n_tables;                             /* tables of pages, one per group of layers */
    int table_pages[DEVICE_TABLES_MAX];       /* entries of a row; 0: one per page of tokens */
    int page_tokens;
    int n_heads, head_dim; /* maxima over all layers */
    int n_shapes;          /* of attention; 0: no layer has any */
    struct device_heads shapes[DEVICE_TABLES_MAX];
    int dim, ff_dim, n_vocab;
    int n_experts, n_experts_used, expert_dim; /* of the largest FFN of experts: those of this
                                                * device, of a token, and the width of one; 0
                                                * without any */
    int n_choices;   /* experts that a router chooses from: those of all ranks */
    bool rounds;     /* the cpu device rounds inputs of products with weights of 4 to 8 bits to 8
                       * bits (cpu_round.h) */
    bool codes;      /* some matrices multiply codes (k_format_reads_codes()) */
    bool packed;     /* some matrices are packed (k_format_is_packed()), or bytes by row */
    bool bytes;      /* some of these have elements of 8 bits */
    bool rounded;    /* some of 4 bits become bytes for products of many rows (k_format.rounds_x) */
    bool has_states; /* some layers are recurrent */
    int state_shared; /* bytes of shared memory that a block of their kernels takes */
    int n_stages;     /* of the model; 0: one */
    bool follows;     /* a device of another process samples */
    bool picks;       /* steps have rows for pick() */
    bool caps_scores; /* attention has a soft cap */
    int n_adapters;   /* slots of adapters (kernels/adapter.h); 0: there are none */
    int adapter_rank; /* the highest of any */
    int adapter_in;   /* widest input of a matrix with adapters */
};

/* Scratch memory that products with packed matrices and with codes take (packed_cuda.c). */
static inline size_t device_widened_bytes(const struct device_limits *limits, bool is_portable)
{
    if (!limits->packed && !limits->codes)
        return 0;
    if (is_portable)
        return DEVICE_WIDENED_BYTES;
    if (limits->rounded) /* rows of the matrix, and of x */
        return K_MANY_COUNTERS + 2 * DEVICE_WIDENED_BYTES;
    if (limits->bytes)
        return K_MANY_COUNTERS + DEVICE_WIDENED_BYTES;
    return limits->packed ? DEVICE_MANY_BYTES : DEVICE_HALVED_BYTES;
}

/* The stages of a model. One step more may be in flight: one for each stage, and one that begins
 * before the oldest ends. */
static inline unsigned device_stages(int n_stages)
{
    return n_stages > 1 ? (unsigned)n_stages : 1;
}

/* The length of a ring for all steps in flight. A power of two, so that step numbers may wrap. */
static inline unsigned device_steps(int n_stages)
{
    unsigned n = 2;

    while (n < device_stages(n_stages) + 1)
        n *= 2;
    return n;
}

#define DEVICE_STAGES_MAX 16
#define DEVICE_STEPS_MAX  32 /* device_steps() of so many stages */

/* One step as host arrays; borrowed until sample() or, with n_rows 0, until launch(). An id of
 * tokens.ids below 0 refers to the token that row -1 - id of the previous step samples; with n
 * stages, of the n-th step before. Memory that histories point to is not read before sample(). */
struct device_batch {
    struct k_tokens tokens;
    const int32_t *row_tokens;       /* int32 [n_rows]: token of each row */
    const struct k_sample_row *rows; /* [n_rows]; history_at is not read */
    const int32_t *const *histories; /* [n_rows]: int32 [n_history] of each row */
    int n_rows;
    /* int32 [n_tokens]: the slot of each token's adapter, -1: none; NULL: no token has one. Only
     * where has_adapters of struct device is set. */
    const int32_t *adapters;
    const int32_t *picked; /* int32 [n_tokens]: the rows that pick() is given in this step; NULL:
                            * none, as where `picks` of the limits is not set */
    bool is_variant;       /* enqueues other operations than steps without this; in a model with
                            * adapters never */
};

/* Rows of activations. The operation that computes them writes the form that the next product
 * reads, so that rounding needs no pass of its own; quantise() makes codes of data. A caller that
 * needs both forms asks for data, then calls quantise(). */
struct device_rows {
    void *data;               /* the device's type, [n][width] */
    struct k_quantised codes; /* data and scales are the caller's memory, NULL where no product
                               * of the model reads codes (k_format_reads_codes()); other members
                               * are set by the operation that writes the rows */
};

/* An FFN of experts. x [n][dim] is of the device's type, whatever the experts' format is. */
struct device_experts {
    const void *x;
    const void *router_x;      /* [n][dim], input of the router, and may be out; NULL: x */
    struct k_half_normed norm; /* completes the norm of x; sums NULL: x is normed. Only where few()
                                * is true, without shared_switch */
    const struct k_router *router;
    const struct k_experts *experts;
    const float *shared_switch; /* NULL: none */
    bool adds;                  /* out has the result of the shared experts */
    /* Not NULL: the result goes on as that of K_PRODUCT_RESIDUAL, and out is not written. Only
     * where few() is true. */
    const struct k_product *residual;
};

/* A part of the rows that a stage hands to the next one. */
struct device_segment {
    void *data; /* [rows][row_bytes] */
    size_t row_bytes;
};

#define DEVICE_SEGMENTS_MAX 8

/* A connection with a device of another process. */
#define DEVICE_FAR_NAME 128
struct device_far {
    const char *name; /* [DEVICE_FAR_NAME], of far_name(); the same in both processes */
    bool sends;       /* rows go to the other process; else they come from it */
    /* Not NULL: the device of this process that sends the same steps' rows on its own
     * connection; rows are awaited behind that. */
    struct device *after;
    const atomic_bool *lost; /* true: the other process has ended */
};

enum device_way {
    DEVICE_IN,
    DEVICE_OUT,
    DEVICE_WAYS
}; /* directions of copies: to the device,
    * and back */
#define DEVICE_MARKS_MAX  64

#define DEVICE_BIASES_MAX 1024 /* of one row */
#define DEVICE_ASKED_MAX  128

/* Requests of rows beyond a sampled id (kernels.h, "logits beside sampling"). The device's memory,
 * made by reserve(); the caller may write it between the end of the previous step and sample(). */
struct device_extras {
    struct k_logits_row *rows;     /* [n_seqs] */
    struct k_bias *biases;         /* [n_seqs * DEVICE_BIASES_MAX] */
    uint32_t *masks;               /* [n_seqs][mask_words] */
    struct k_asked *asked;         /* [n_seqs * DEVICE_ASKED_MAX]; end() fills in the logits */
    int mask_words;                /* ceil(n_vocab / 32) */
    int n_rows, n_biases, n_masks; /* numbers in use; set before sample() */
    int n_asked;
};

/* How ranks exchange data; GPUs only. */
enum device_links {
    DEVICE_LINKS_PEERS, /* kernels over peer pointers; NCCL where GPUs cannot reach each other's
                         * memory */
    DEVICE_LINKS_NCCL,
};

/* Work of a device since it was opened. */
struct device_load {
    uint64_t n_steps; /* that have ended */
    uint64_t busy_us; /* in steps */
    uint64_t sum_us;  /* in sums over ranks, other ranks' delays included; 0 with NCCL */
};

struct device;

/* Rows of `width` elements: row i of `to` becomes row rows[i] of `from`. */
struct device_pick {
    void *to;
    const void *from;
    int to_stride, from_stride;      /* elements between rows */
    bool to_is_float, from_is_float; /* else of the device's type */
    const int32_t *rows;             /* `picked` of the step's batch; NULL: row i */
    int width, n;
};

struct device_ops {
    void (*close)(struct device *d);

    /* Make this device's GPU current for the calling thread, which begins steps of it from then on.
     * NULL: any thread may begin steps of any device. */
    int (*use)(struct device *d);

    /* Memory. free() returns the bytes that alloc() can still give. upload() and download() block;
     * ERR_GPU. */
    int (*free)(struct device *d, size_t *free_bytes, size_t *total_bytes);
    void *(*alloc)(struct device *d, size_t bytes);
    int (*upload)(struct device *d, void *dst, const void *src, size_t bytes);
    int (*download)(struct device *d, void *dst, const void *src, size_t bytes);
    /* download() of memory that no step in flight writes; does not wait for steps. */
    int (*fetch)(struct device *d, void *dst, const void *src, size_t bytes);

    /* A copy on the device, in the order of the steps. Memory does not overlap. */
    int (*copy_within)(struct device *d, void *dst, const void *src, size_t bytes);

    /* Sleep: most of the memory goes back to the system, and later returns at the same addresses,
     * so that no pointer and no recorded step changes. may_sleep(): from now on alloc_constant()
     * and alloc_scratch() give such memory; without it they are alloc(), whose memory always stays.
     * Constant memory is restored, and must not be written once sleep() was called; scratch memory
     * returns zeroed. ERR_UNSUPPORTED (logged).
     *
     * sleep() and wake() each do some milliseconds of work and return ERR_AGAIN while more is left.
     * Nothing may be in flight. Until sleep() returns ERR_OK the device is awake and can be used;
     * from then until wake() returns ERR_OK, only memory of alloc() can. ERR_NO_MEMORY (logged) of
     * sleep(): the host has no room for the content. ERR_NO_MEMORY of wake(): other processes have
     * the memory; everything taken so far is given back, so that two waking processes do not block
     * each other. Both: ERR_GPU. close() is allowed at any time. */
    int (*may_sleep)(struct device *d);
    void *(*alloc_constant)(struct device *d, size_t bytes);
    void *(*alloc_scratch)(struct device *d, size_t bytes);
    int (*sleep)(struct device *d);
    int (*wake)(struct device *d);

    /* Copies beside the steps, on copy engines. pin() prepares host memory for them (any thread);
     * other memory is copied slowly. copy_start() enqueues a copy; copies in begin after the steps
     * that have begun have ended. copy_mark() returns a ticket for all copies of a direction so
     * far, and ERR_AGAIN while DEVICE_MARKS_MAX are open; copy_done(): 1 if they are done, 0 if
     * not, ERR_GPU. After copy_fence() the next step, and copies in, wait for the copies out. */
    int (*pin)(struct device *d, void *memory, size_t bytes);
    void (*unpin)(struct device *d, void *memory);
    int (*copy_start)(struct device *d, enum device_way way, void *dst, const void *src,
                      size_t bytes);
    int (*copy_mark)(struct device *d, enum device_way way, uint64_t *ticket);
    int (*copy_done)(struct device *d, enum device_way way, uint64_t ticket);
    int (*copy_fence)(struct device *d);

    /* Convert n weights of a file's type, and store them at element `at` of dst. Borrowed for the
     * call. */
    int (*weights)(struct device *d, void *dst, size_t at, const void *src, enum device_type type,
                   size_t n);

    /* Pipes: for many bytes from several threads. A thread fills a pipe's bytes and sends them;
     * then it must wait before it fills the pipe again. Conversion may overwrite the pipe's bytes,
     * but not on devices with join_ranks(). Memory that was allocated after pipe_open() must not be
     * a destination. Any thread, each with its own pipes. ERR_GPU; pipe_open() also
     * ERR_NO_MEMORY. */
    int (*pipe_open)(struct device *d, struct device_pipe *p, size_t bytes);
    void (*pipe_close)(struct device *d, struct device_pipe *p);
    int (*pipe_wait)(struct device *d, struct device_pipe *p);
    /* As upload(). */
    int (*pipe_bytes)(struct device *d, struct device_pipe *p, void *dst, size_t bytes);
    /* As weights(). */
    int (*pipe_weights)(struct device *d, struct device_pipe *p, void *dst, size_t at,
                        enum device_type type, size_t n);
    /* Round rows [n_rows][n_in] of a file's type to e4m3, with one scale per row. Only if takes()
     * is true for such a matrix. */
    int (*pipe_quantise)(struct device *d, struct device_pipe *p, const struct k_quantised *out,
                         enum device_type type, int n_rows, int n_in);

    /* Fill a matrix's elements with noise, whatever their scales are; a matrix in
     * k_format_mxfp4() is that of one expert, and gets scales. */
    int (*fill_random)(struct device *d, const struct k_matrix *m, float deviation, uint64_t seed);

    /* True if matmul() multiplies with a matrix of this format and shape, which need not have
     * memory yet; experts() does, if it is k_format_mxfp4(). All devices take the plain format
     * (k_format_is_plain()). */
    bool (*takes)(struct device *d, const struct k_matrix *m);
    /* Bring a matrix of experts in k_format_mxfp4() into the arrangement of kernels/mxfp4.h, in
     * place: each expert's part of m->data, k_mxfp4_bytes(), begins with its rows as in a file,
     * codes [n_rows][n_in / 2], then exponents [n_rows][n_in / 32]. NULL where takes() is never
     * true for the format. ERR_NO_MEMORY, ERR_GPU (logged). */
    int (*arrange)(struct device *d, const struct k_matrix *m, const struct k_mxfp4_rows *rows);
    /* Read a table of measured products for GPUs like this one. A file for other hardware or
     * versions is logged and ignored; a missing one is ignored, and logged only if it is
     * expected. */
    void (*read_products)(struct device *d, const char *path, bool expected);

    /* Ranks: n devices that compute parts of one model, each on a thread of its own, and run the
     * same steps. join_ranks() is called before reserve(), with all devices in order of rank; NULL
     * where the kind has no ranks, and then the operations on ranks are NULL too. Only rank 0
     * samples (the limits of the others have n_vocab 0); on all ranks, negative ids of a step refer
     * to rank 0's samples. leave_ranks(): this rank drops out, so sums of the others, and their
     * steps, end with ERR_GPU. ERR_NO_MEMORY, ERR_UNSUPPORTED, ERR_GPU (logged): they cannot be
     * joined. */
    int (*join_ranks)(struct device *const *all, int n, enum device_links links);
    void (*leave_ranks)(struct device *d);

    /* Stages: n_stages * n_parts devices that compute consecutive layers of one model; the devices
     * of a stage are joined by join_ranks() if there are several. Called after that and before
     * reserve(), with all devices in the order of stages, then ranks. Device i hands its rows to
     * device i + n_parts. Only the first device of the last stage samples; the devices of the first
     * stage read its ids. NULL where the kind has no stages. Errors as join_ranks(). */
    int (*join_stages)(struct device *const *all, int n_stages, int n_parts);
    /* Between begin() and the operations of a step, in stages above the first: wait for the rows of
     * the stage before. After launch(), in stages below the last: hand rows to the next one. Both
     * with the same segments, of step_tokens rows. ERR_GPU: the other stage is gone. */
    int (*take)(struct device *d, const struct device_segment *segments, int n);
    int (*hand)(struct device *d, const struct device_segment *segments, int n);

    /* Nodes: rows to and from a device of another process, without a copy through this host where
     * the hardware allows it. NULL where the kind cannot. far_name(): a new name for a connection;
     * ERR_UNSUPPORTED (a warning is logged): there are no connections. far_open() blocks until the
     * other process opens its end; processes open theirs in the same order. ERR_GPU,
     * ERR_NO_MEMORY. far_take() and far_hand() are as take() and hand(). */
    int (*far_name)(struct device *d, char name[DEVICE_FAR_NAME]);
    int (*far_open)(struct device *d, const struct device_far *how);
    int (*far_take)(struct device *d, const struct device_segment *segments, int n);
    int (*far_hand)(struct device *d, const struct device_segment *segments, int n);

    /* Memory for rows of sum_ranks() and for `all` of gather_ranks(): other ranks write to it.
     * Always stays, as alloc(). All ranks make the same calls in the same order, between reserve()
     * and the step that uses it first; sizes may differ. Without ranks as alloc(). */
    void *(*alloc_shared)(struct device *d, size_t bytes);

    /* Allocate the work memory of steps within the limits. */
    int (*reserve)(struct device *d, const struct device_limits *limits);

    /* A step: begin, then replay or, if that returns false, operations up to the logits and launch;
     * then sample, if there are rows, and end. begin() sets step_tokens and step_rows, the numbers
     * that operations work on, which may exceed those of the batch. replay(): steps that differ
     * only in their arrays need not be enqueued operation by operation; true if this one was
     * enqueued as a whole. */
    int (*begin)(struct device *d, const struct device_batch *b);
    bool (*replay)(struct device *d);
    void (*embed)(struct device *d, float *x, const struct k_matrix *table);
    /* `to` is the matrix that the result is multiplied with next: the result goes to out->codes if
     * that product reads codes, else to out->data. */
    void (*rmsnorm)(struct device *d, struct device_rows *out, const float *x, const void *weight,
                    float eps, int n, const struct k_matrix *to);
    void (*add_rmsnorm)(struct device *d, struct device_rows *out, float *x, const void *delta,
                        const void *weight, float eps, int n, const struct k_matrix *to);
    /* Make codes of rows->data [n][to->n_in] if the product with `to` reads codes; else do
     * nothing. */
    void (*quantise)(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to);
    /* y [n][n_out] = x [n][n_in] * transpose(w [n_out][n_in]) + bias (NULL: none), of x->codes if w
     * reads codes. matmul_float() gives float32 on every device. Both add the products of the
     * tokens' adapters, if w and the step have any (kernels/adapter.h). */
    void (*matmul)(struct device *d, void *y, const struct device_rows *x, const struct k_matrix *w,
                   const void *bias, int n);
    void (*matmul_float)(struct device *d, float *y, const struct device_rows *x,
                         const struct k_matrix *w, int n);
    /* r is borrowed until attn(), its memory until the step has ended. */
    void (*rope_kv)(struct device *d, void *qkv, const struct k_kv *kv, const struct k_rotary *r,
                    int n_heads);
    /* `to` is the matrix of the product() that reads out next; NULL: matmul() reads it. */
    void (*attn)(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
                 float scale, const struct k_matrix *to);
    /* in [n_tokens][2 * width], out [n_tokens][width]; `to` as above. */
    void (*recurrent)(struct device *d, void *out, const void *in, const struct k_state *state,
                      int width, const struct k_matrix *to);
    /* k_delta_rule() of all tokens of the step; gates float32; `to` as above. If has_state_work,
     * d->rows has room for the step. delta_gate(): k_delta_gate() with w, a matrix of gates; false:
     * it cannot, in this step. NULL: it never can. */
    bool (*delta_gate)(struct device *d, float *gates, const struct k_delta_gating *g,
                       const struct k_matrix *w);
    void (*delta)(struct device *d, void *out, const void *in, const float *gates,
                  const struct k_delta *delta, const struct k_state *state,
                  const struct k_matrix *to);
    bool delta_writes_turns; /* k_delta.out_in_turns is followed */
    bool has_state_work;
    /* k_mamba_scan() and k_short_convolve() of all tokens of the step; likewise. */
    void (*mamba)(struct device *d, void *out, const void *in, const struct k_mamba *mamba,
                  const struct k_state *state, const struct k_matrix *to);
    void (*short_conv)(struct device *d, void *out, const void *in, const struct k_short_conv *conv,
                       const struct k_state *state, const struct k_matrix *to);
    /* out [n][width], as K_HALF_AT, of x of the device's type; NULL: no product reads such rows. */
    void (*halve)(struct device *d, void *out, const void *x, int width, int n);
    /* Latent attention of all tokens of the step (kernels/latent.h): rows of the first product to
     * the pages and q, queries for attn(), values of its results. Its kv has value_dim, and out of
     * attn() as many elements of each head. `to` as of attn(). */
    /* latent_join(): rows to the pages and queries for attn(), of rows of the first product and
     * q_b, in place of latent_keys(), the product and latent_queries(). latent_joins(): can it, in
     * this step? NULL: it cannot. */
    bool (*latent_joins)(struct device *d, const struct k_latent_shape *s,
                         const struct k_matrix *q_b);
    void (*latent_join)(struct device *d, void *out, const void *in, const struct k_latent *l,
                        const struct k_matrix *q_b, const struct k_kv *kv);
    void (*latent_keys)(struct device *d, void *q, const void *in, const struct k_latent *l,
                        const struct k_kv *kv, const struct k_matrix *to);
    void (*latent_queries)(struct device *d, void *out, const void *in, const struct k_latent *l);
    void (*latent_values)(struct device *d, void *out, const void *in, const struct k_latent *l,
                          const struct k_matrix *to);
    /* The choice of the tokens that each token of the step sees, and latent attention over these
     * (kernels/index.h): keys [n_tokens][dim] to the pages, chosen int32 [n_tokens][n_keys]. If
     * has_index_work, the work memory of struct k_index is there. */
    bool has_index_work;
    void (*index_keys)(struct device *d, const void *in, const struct k_index *x,
                       const struct k_kv *kv);
    void (*index_choose)(struct device *d, int32_t *chosen, const void *queries,
                         const float *weights, const struct k_index *x, const struct k_kv *kv);
    void (*attn_chosen)(struct device *d, void *out, const void *queries, const struct k_kv *kv,
                        const struct k_choice *chosen, int n_heads, float scale);
    /* x and gate [n][width], k_shut(); `to` as above. shut_attn(): the attn() that comes next does
     * it, with these gates; false: it cannot, in this step. NULL: it never can. */
    bool (*shut_attn)(struct device *d, const void *gate, const struct k_kv *kv);
    void (*shut)(struct device *d, void *x, const void *gate, int width, int n,
                 const struct k_matrix *to);
    /* in [n][2 * ff_dim], out [n][ff_dim]; `to` as of rmsnorm(). */
    void (*silu_mul)(struct device *d, struct device_rows *out, const void *in, int ff_dim, int n,
                     const struct k_matrix *to);
    /* matmul() without bias, then silu_mul(), in one: out [n][w->n_out / 2]. False: not with this
     * matrix, or not so many rows; nothing is done then. NULL: never. */
    bool (*gated)(struct device *d, struct device_rows *out, const struct device_rows *x,
                  const struct k_matrix *w, int n, const struct k_matrix *to);
    /* in and out [n][width]; `to` as of attn(). */
    void (*activate)(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                     int n, const struct k_matrix *to);
    /* Of models that the cpu device alone runs (`host_only` of struct plan); NULL on others.
     * ref_xielu() of rows [n][width], ref_gate_limited(), ref_shut_by() of rows x [n][width]. */
    void (*xielu)(struct device *d, void *out, const void *in, const struct k_xielu *curve,
                  int width, int n);
    void (*gate_limited)(struct device *d, struct device_rows *out, const void *in, float limit,
                         int ff_dim, int n);
    void (*shut_by)(struct device *d, void *x, const void *gate, const struct k_gating *how,
                    int width, int n);
    /* out [n][dim] = the weighted sum of the chosen experts of this device, plus what out has;
     * dim is that of the experts' inputs. */
    void (*experts)(struct device *d, void *out, const struct device_experts *e, int n);
    /* General layers: any norm, any activation before a gate, multipliers. Shapes and `to` as in
     * rmsnorm() and silu_mul(); norm points to this device's memory. norm_within(): the first
     * `width` elements of each row of x [n][stride], of the device's type. place() and add() act on
     * all tokens of the step; positions [][dim] is of the device's type. */
    void (*norm)(struct device *d, struct device_rows *out, const float *x,
                 const struct k_norm *norm, int n, const struct k_matrix *to);
    void (*norm_within)(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                        int n);
    void (*gate)(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
                 int ff_dim, int n, const struct k_matrix *to);
    void (*gate_by)(struct device *d, struct device_rows *out, const void *in,
                    const struct k_factor *by, enum k_activation kind, int n,
                    const struct k_matrix *to);
    /* x of the device's type, of all tokens of the step. */
    void (*layer_embeds)(struct device *d, void *x, const struct k_layer_embeds *e);
    void (*place)(struct device *d, float *x, float scale, const void *positions, int first);
    /* k_grow() of all tokens of the step; x is of the device's type. */
    void (*grow)(struct device *d, void *x, int stride, int width, const struct k_growth *g);
    void (*add)(struct device *d, float *x, const void *delta, float scale, int n);
    /* Copy rows. */
    void (*pick)(struct device *d, const struct device_pick *p);
    /* The first `width` elements of each row of x [n][stride], of the device's type, *= by. */
    void (*scale)(struct device *d, void *x, int stride, int width, float by, int n);
    /* x [n][dim] += delta, both of the device's type. */
    void (*add_within)(struct device *d, void *x, const void *delta, int n);
    /* k_add_normed() of all tokens of the step; norms point to this device's memory. out NULL:
     * nothing is normed. delta is lost. `to` as of rmsnorm(). */
    void (*add_normed)(struct device *d, struct device_rows *out, float *x, void *delta,
                       const struct k_adding *how, int n, const struct k_matrix *to);
    void (*soften)(struct device *d, float *logits, const struct k_softening *how, int n);
    /* out [step_rows][dim] = x + scale * delta at the step's rows. */
    void (*gather_add)(struct device *d, float *out, const float *x, const void *delta,
                       float scale);
    /* rows [n][width] of the device's type become the sum of all ranks' rows, added in the order of
     * the ranks, so that every rank has the same bits every time. Waits for the other ranks, which
     * must call with the same n and width. rows: as alloc_shared() returned it. */
    void (*sum_ranks)(struct device *d, void *rows, int n, int width);
    /* Norms of queries and keys over the heads of all ranks (kernels.h): squares(), sum_ranks() of
     * its result, then norm_squares(). NULL where there are no ranks. */
    void (*squares)(struct device *d, void *squares, const void *x, const struct k_split_norms *s,
                    int n);
    void (*norm_squares)(struct device *d, void *x, const void *squares,
                         const struct k_split_norms *s, int n);
    /* sum_ranks() of the plain product y of p, then the rest of K_PRODUCT_RESIDUAL
     * (k_sum_residual()). NULL where product() takes no matrix. */
    void (*sum_residual)(struct device *d, const struct k_product *p, int n);
    /* all [n][ranks * width] of rank 0 gets part [n][width] of each rank as columns rank * width
     * and on; float32 on every device. Other ranks pass what their call of alloc_shared() for it
     * returned. width is a multiple of 4. A sum must lie between two of these. */
    void (*gather_ranks)(struct device *d, float *all, const float *part, int n, int width);
    void (*launch)(struct device *d);
    /* Behind launch() or replay(), on the device that samples: bring the logits of each row of the
     * batch to its own number. NULL: they are there. */
    void (*place_rows)(struct device *d, float *logits);
    /* Sample the rows of the step that began last; extras may change logits. With histories or
     * extras only while no other step is in flight. */
    void (*sample)(struct device *d, float *logits);
    /* For steps of few tokens, all of them sampled: products that include the operations around
     * them (struct k_product, with pointers to this device's memory). few(): true if product()
     * takes such a matrix for n rows; a device may take none. */
    bool (*few)(struct device *d, const struct k_matrix *w, int n);
    void (*embed_normed)(struct device *d, float *x, void *normed, float *sums, const void *table,
                         const void *norm, const struct k_matrix *to);
    void (*product)(struct device *d, const struct k_product *p, int n);
    /* Wait for the oldest step; ids out: int32 [n_rows]; logprobs out: [*n_extras], one per extra
     * of the step, valid for those with n_top >= 0. ERR_GPU if any operation of it failed. */
    int (*end)(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras);
    /* The work so far. Takes some 20 us; from the thread that ends steps. */
    void (*measure)(struct device *d, struct device_load *out);
};

/* Sees the input of a product before it is computed: x float32 [n][w->n_in]. */
typedef void device_watch_fn(void *context, const struct k_matrix *w, const float *x, int n);

/* The part that all devices share; each kind's own struct begins with it. */
struct device {
    const struct device_ops *ops;
    struct device_limits limits;
    struct device_extras extras;
    size_t elem_bytes;      /* of plain weights, activations and KV: 4 cpu, 2 cuda */
    int rows_multiple;      /* matmul() may touch rows up to the next multiple of this: x and y
                             * must have room for them */
    size_t allocated_bytes; /* allocated so far, by alloc() and its variants */
    size_t sleeping_bytes;  /* the part of them that sleep() gives back */
    size_t constant_bytes;  /* the part of those that the host keeps a copy of */
    /* host, int32 [tokens]: where begin() has put the tokens of its batch, as row numbers of
     * activations; NULL: they are as in the batch */
    const int32_t *places;
    const int32_t *sample_ids; /* host: sample() gives sample_ids[id] in place of id; NULL: id */
    bool has_adapters;         /* products add those of adapters */
    bool is_gpu;               /* and operations are enqueued; else they run when they are called */
    int step_tokens, step_rows; /* set by begin() */
    float step_gap_us;          /* set by end(): how long the device was idle before the step */
    char name[64];              /* for the log */
    device_watch_fn *watch;     /* cpu only: called by matmul(); NULL: none */
    void *watch_context;
};

/* Open "cpu", "cuda" or "auto" (cuda if there is a GPU, else cpu). idx: which GPU, from 0, among
 * those that CUDA_VISIBLE_DEVICES leaves. "card:NAME" counts the memory that a GPU of this name (or
 * of so many GiB) would give, and computes nothing (device_card.c). cpu_threads: 0 means one per
 * core. ERR_INVALID for another name, ERR_UNSUPPORTED for a kind that was not built in, ERR_GPU,
 * ERR_NO_MEMORY; all logged. */
int device_open(struct device **out, const char *kind, int idx, int cpu_threads) ERR_CHECKED;
void device_close(struct device *d); /* NULL is fine */

/* Choose the kernels of the GPUs that are opened later: "auto" (NULL is the same), or "portable"
 * for those that every GPU has. ERR_INVALID, or ERR_UNSUPPORTED if they were not built in;
 * logged. */
int device_choose_kernels(const char *kernels) ERR_CHECKED;

/* The kinds, for device_open(). */
int device_cpu_open(struct device **out, int n_threads) ERR_CHECKED;
int device_cuda_open(struct device **out, int idx) ERR_CHECKED;
/* card: a name or GiB; with +BYTES behind it so many are taken by another model. */
int device_card_open(struct device **out, const char *card) ERR_CHECKED;
int device_cuda_count(void); /* usable GPUs; 0 when there is no driver */

/* True if the host has room for so many bytes of a sleeping device; logged if not. */
bool device_host_has_room(size_t bytes);
#define DEVICE_SLICE_US \
    5000 /* time of one call of sleep() or wake(): one tick of the engine's
          * loop */

/* The stream of a cuda device: for tests that launch kernels themselves. */
k_stream device_cuda_stream(struct device *d);

#endif
