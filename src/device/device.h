/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model may ask of a device: one table of operations, chosen at start.
 *
 * The cpu device holds weights, activations and KV in float32, the cuda device in bfloat16; the
 * residual and the logits are float32 on both. Memory is got at start from device_alloc() and
 * given back as a whole by close(), or for a while by sleep(). Operations of a step are enqueued in
 * order on one stream; an error sticks and is returned by end(). One thread calls, but for pipes.
 *
 * The operations are those of kernels/kernels.h, which says what they compute. Pointers to
 * device memory are void * or float *; the cpu device's are plain memory. */
#ifndef QUIRE_DEVICE_DEVICE_H
#define QUIRE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"

enum device_type { DEVICE_BF16, DEVICE_F16, DEVICE_F32 }; /* of weights in a file */

/* Host memory that the device copies from while the next pipe is filled. */
struct device_pipe {
    unsigned char *bytes;
    void *stream; /* the device's own */
};

#define DEVICE_TABLES_MAX 16

/* The most that a step may hold; what work memory is sized by. */
struct device_limits {
    int n_tokens, n_seqs, pages_max, len_max; /* len_max: tokens of a sequence */
    int n_tables;                             /* of pages, for groups of layers */
    int table_pages[DEVICE_TABLES_MAX]; /* entries of a row; 0: as many as the tokens have pages */
    int page_tokens;
    int n_heads, n_kv_heads, head_dim; /* the most of any layer; n_heads / n_kv_heads of all */
    int n_windows;                     /* different ones of layers, "all" among them */
    int dim, ff_dim, n_vocab;
    bool codes;      /* some matrices read them (k_format_reads_codes()) */
    bool has_states; /* some layers are recurrent */
};

/* Steps that may be under way: the next may begin before the one before has ended. */
#define DEVICE_STEPS_MAX 2

/* One step as host arrays; borrowed until sample() or, with n_rows 0, the last operation. An id of
 * tokens.ids below 0 stands for the token that row -1 - id of the step before samples. What
 * histories point to is not read before sample(). */
struct device_batch {
    struct k_tokens tokens;
    const int32_t *row_tokens;       /* int32 [n_rows]: token of each row */
    const struct k_sample_row *rows; /* [n_rows]; history_at is not read */
    const int32_t *const *histories; /* [n_rows]: int32 [n_history] of each row */
    int n_rows;
};

/* Rows of activations. The operation that makes them writes the form that the product which reads
 * them next takes, so that rounding costs no pass of its own; quantise() makes codes of data. Who
 * wants both forms asks for data, and for codes by quantise(). */
struct device_rows {
    void *data;               /* the device's type, [n][width] */
    struct k_quantised codes; /* data and scales are the caller's memory, NULL where no product of
                               * the model reads codes (k_format_reads_codes()); the rest is set by
                               * the operation that writes */
};

enum device_way { DEVICE_IN, DEVICE_OUT, DEVICE_WAYS }; /* of copies: to the device, and back */
#define DEVICE_MARKS_MAX  64

#define DEVICE_BIASES_MAX 1024 /* of one row */
#define DEVICE_ASKED_MAX  128

/* What is wanted of some rows beside an id (kernels.h: logits beside sampling). Memory of the
 * device's, made by reserve(); the caller's between the end of the step before and sample(). */
struct device_extras {
    struct k_logits_row *rows;     /* [n_seqs] */
    struct k_bias *biases;         /* [n_seqs * DEVICE_BIASES_MAX] */
    uint32_t *masks;               /* [n_seqs][mask_words] */
    struct k_asked *asked;         /* [n_seqs * DEVICE_ASKED_MAX]; end() fills in the logits */
    int mask_words;                /* ceil(n_vocab / 32) */
    int n_rows, n_biases, n_masks; /* used; set before sample() */
    int n_asked;
};

struct device;

struct device_ops {
    void (*close)(struct device *d);

    /* The calling thread begins steps of this device from now on. Threads that do not call it may
     * begin those of the first device of a kind. NULL: any thread may begin any device's. */
    int (*use)(struct device *d);

    /* Memory. free() tells what device_alloc() may still give, in bytes. upload() and download()
     * block; ERR_GPU. */
    int (*free)(struct device *d, size_t *free_bytes, size_t *total_bytes);
    void *(*alloc)(struct device *d, size_t bytes);
    int (*upload)(struct device *d, void *dst, const void *src, size_t bytes);
    int (*download)(struct device *d, void *dst, const void *src, size_t bytes);
    /* download() of memory that no step under way writes: does not wait for one. */
    int (*fetch)(struct device *d, void *dst, const void *src, size_t bytes);

    /* A copy on the device, in the order of the steps. Memory does not overlap. */
    int (*copy_within)(struct device *d, void *dst, const void *src, size_t bytes);

    /* Sleep: most of the memory goes back to the system and comes again where it was, so that no
     * pointer and no recorded step changes. may_sleep(): alloc_constant() and alloc_scratch() give
     * such memory from now on; else they are alloc(), whose memory always stays. Constant memory
     * comes back as it was, and is not written any more once sleep() was called; scratch memory
     * comes back zero. ERR_UNSUPPORTED (logged).
     *
     * sleep() and wake() do some milliseconds' worth and return ERR_AGAIN while more is to be done.
     * Nothing may be under way. Until sleep() returns ERR_OK the device is awake and can be used;
     * from then until wake() does, only memory of alloc() can. ERR_NO_MEMORY (logged) of sleep():
     * the host has no room for the content. ERR_NO_MEMORY of wake(): others have the memory; what
     * was taken again is given back, so that two that wake do not hold each other up. Both:
     * ERR_GPU. close() is fine at any time. */
    int (*may_sleep)(struct device *d);
    void *(*alloc_constant)(struct device *d, size_t bytes);
    void *(*alloc_scratch)(struct device *d, size_t bytes);
    int (*sleep)(struct device *d);
    int (*wake)(struct device *d);

    /* Copies beside the steps, on copy engines. pin() makes host memory ready for them (any
     * thread); memory that is not is copied slowly. copy_start() enqueues one; copies in begin when
     * the steps that were begun before have ended. copy_mark() gives a ticket for all of a way so
     * far, and ERR_AGAIN when DEVICE_MARKS_MAX are open; copy_done(): 1, 0 when it is not, ERR_GPU.
     * After copy_fence() the next step, and copies in, wait for the copies out. */
    int (*pin)(struct device *d, void *memory, size_t bytes);
    void (*unpin)(struct device *d, void *memory);
    int (*copy_start)(struct device *d, enum device_way way, void *dst, const void *src,
                      size_t bytes);
    int (*copy_mark)(struct device *d, enum device_way way, uint64_t *ticket);
    int (*copy_done)(struct device *d, enum device_way way, uint64_t ticket);
    int (*copy_fence)(struct device *d);

    /* n weights from a file's type into the device's, to element at of dst. Borrowed for the
     * call. */
    int (*weights)(struct device *d, void *dst, size_t at, const void *src, enum device_type type,
                   size_t n);

    /* Pipes: for many bytes from several threads. A thread fills a pipe's bytes and sends them;
     * then it must wait before it fills the pipe again. What is sent may be overwritten by being
     * converted, but not where join_ranks() is. Memory that was allocated after pipe_open() must
     * not be sent to. Any thread, each with pipes of its own. ERR_GPU; pipe_open() ERR_NO_MEMORY
     * too. */
    int (*pipe_open)(struct device *d, struct device_pipe *p, size_t bytes);
    void (*pipe_close)(struct device *d, struct device_pipe *p);
    int (*pipe_wait)(struct device *d, struct device_pipe *p);
    /* As upload(). */
    int (*pipe_bytes)(struct device *d, struct device_pipe *p, void *dst, size_t bytes);
    /* As weights(). */
    int (*pipe_weights)(struct device *d, struct device_pipe *p, void *dst, size_t at,
                        enum device_type type, size_t n);
    /* Round rows [n_rows][n_in] of a file's type to e4m3, with a scale a row. Where takes() is true
     * of such a matrix. */
    int (*pipe_quantise)(struct device *d, struct device_pipe *p, const struct k_quantised *out,
                         enum device_type type, int n_rows, int n_in);

    /* Noise into a matrix's elements, whatever their scales are. */
    int (*fill_random)(struct device *d, const struct k_matrix *m, float deviation, uint64_t seed);

    /* True when matmul() takes a matrix of this format and shape, which need not have memory yet.
     * All take the plain format (k_format_is_plain()). */
    bool (*takes)(struct device *d, const struct k_matrix *m);
    /* Read what was measured of products on a GPU like this one; a file that is of no use here
     * is logged and ignored, and so is a missing one, without a word unless it is expected. */
    void (*read_products)(struct device *d, const char *path, bool expected);

    /* Ranks: n devices that compute parts of one model, each with a thread of its own, and do the
     * same steps. join_ranks() before reserve(), all by rank; NULL where the kind has no ranks,
     * and then so are the two below. Rank 0 alone has logits and samples them (the limits of the
     * others have n_vocab 0); on the others too, ids of a step that stand for sampled ones are rank
     * 0's. leave_ranks(): this rank does not go on, so the others' sums, and a rank that fails, end
     * their steps with ERR_GPU. ERR_NO_MEMORY, ERR_UNSUPPORTED (logged): they cannot be joined. */
    int (*join_ranks)(struct device *const *all, int n);
    void (*leave_ranks)(struct device *d);

    /* Allocate what steps within the limits need. */
    int (*reserve)(struct device *d, const struct device_limits *limits);

    /* A step: begin, then replay or, where that gives false, operations up to the logits and
     * launch; then sample, if there are rows, and end. begin() sets step_tokens and step_rows: how
     * many tokens and rows the operations are for, which may be a few more than the batch has.
     * replay(): steps that are alike but for their arrays need not be enqueued operation by
     * operation; true when this one was enqueued as a whole. */
    int (*begin)(struct device *d, const struct device_batch *b);
    bool (*replay)(struct device *d);
    void (*embed)(struct device *d, float *x, const void *table);
    /* `to` is the matrix that the result is multiplied with next: it is written to out->codes where
     * that product reads codes, else to out->data. */
    void (*rmsnorm)(struct device *d, struct device_rows *out, const float *x, const void *weight,
                    float eps, int n, const struct k_matrix *to);
    void (*add_rmsnorm)(struct device *d, struct device_rows *out, float *x, const void *delta,
                        const void *weight, float eps, int n, const struct k_matrix *to);
    /* Codes of rows->data [n][to->n_in], where a product with `to` reads them; else nothing. */
    void (*quantise)(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to);
    /* y [n][n_out] = x [n][n_in] * transpose(w [n_out][n_in]) + bias (NULL: none), of x->codes
     * where w reads them. The second gives float32 on every device. */
    void (*matmul)(struct device *d, void *y, const struct device_rows *x, const struct k_matrix *w,
                   const void *bias, int n);
    void (*matmul_float)(struct device *d, float *y, const struct device_rows *x,
                         const struct k_matrix *w, int n);
    /* r is borrowed until attn(), its memory until the step has ended. */
    void (*rope_kv)(struct device *d, void *qkv, const struct k_kv *kv, const struct k_rotary *r,
                    int n_heads);
    /* `to` is what product() multiplies out with next; NULL: matmul() does. */
    void (*attn)(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
                 float scale, const struct k_matrix *to);
    /* in [n_tokens][2 * width], out [n_tokens][width]; `to` as above. */
    void (*recurrent)(struct device *d, void *out, const void *in, const struct k_state *state,
                      int width, const struct k_matrix *to);
    /* in [n][2 * ff_dim], out [n][ff_dim]; `to` as of rmsnorm(). */
    void (*silu_mul)(struct device *d, struct device_rows *out, const void *in, int ff_dim, int n,
                     const struct k_matrix *to);
    /* in and out [n][width]; `to` as of attn(). */
    void (*activate)(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                     int n, const struct k_matrix *to);
    /* Layers in general: any norm, any activation before a gate, multipliers. Shapes and `to` as of
     * rmsnorm() and silu_mul(); norm points to this device's memory. norm_within(): the first
     * `width` elements of each row of x [n][stride], of the device's type. place() and add() are
     * for all tokens of the step; positions [][dim] is of the device's type. */
    void (*norm)(struct device *d, struct device_rows *out, const float *x,
                 const struct k_norm *norm, int n, const struct k_matrix *to);
    void (*norm_within)(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                        int n);
    void (*gate)(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
                 int ff_dim, int n, const struct k_matrix *to);
    void (*place)(struct device *d, float *x, float scale, const void *positions, int first);
    void (*add)(struct device *d, float *x, const void *delta, float scale, int n);
    void (*soften)(struct device *d, float *logits, const struct k_softening *how, int n);
    /* out [step_rows][dim] = x + scale * delta at the step's rows. */
    void (*gather_add)(struct device *d, float *out, const float *x, const void *delta,
                       float scale);
    /* rows [n][width] of the device's type become the sum of all ranks' rows, added in the order of
     * the ranks: the same bits on each of them, every time. Waits for the others, and all must come
     * with the same n and width. */
    void (*sum_ranks)(struct device *d, void *rows, int n, int width);
    /* sum_ranks() of the plain product y of p, then the rest of K_PRODUCT_RESIDUAL
     * (k_sum_residual()). NULL where product() takes no matrix. */
    void (*sum_residual)(struct device *d, const struct k_product *p, int n);
    void (*launch)(struct device *d);
    /* Sample the rows of the step that was last begun; extras may change logits. With histories or
     * extras only when no other step is under way. */
    void (*sample)(struct device *d, float *logits);
    /* For steps of few tokens, all of them sampled: products that bring what stands around them
     * (struct k_product, with pointers to this device's memory). few(): whether product() takes
     * such a matrix for n rows; a device may take none. */
    bool (*few)(struct device *d, const struct k_matrix *w, int n);
    void (*embed_normed)(struct device *d, float *x, void *normed, float *sums, const void *table,
                         const void *norm, const struct k_matrix *to);
    void (*product)(struct device *d, const struct k_product *p, int n);
    /* Wait for the oldest step; ids out: int32 [n_rows]; logprobs out: [*n_extras], as many as
     * there were extras of the step, those with n_top >= 0. ERR_GPU when anything of it failed. */
    int (*end)(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras);
};

/* The part that all devices share; each kind's own struct begins with it. */
struct device {
    const struct device_ops *ops;
    struct device_limits limits;
    struct device_extras extras;
    size_t elem_bytes;      /* of plain weights, activations and KV: 4 cpu, 2 cuda */
    int rows_multiple;      /* matmul() may touch rows up to the next multiple of this: x and y
                             * must have room for them */
    size_t allocated_bytes; /* by alloc() and its kin so far */
    size_t sleeping_bytes;  /* of them, what sleep() gives back */
    size_t constant_bytes;  /* of them, what the host keeps meanwhile */
    bool is_gpu;
    int step_tokens, step_rows; /* set by begin() */
    float step_gap_us;          /* set by end(): how long the device stood still before the step */
    char name[64];              /* for the log */
};

/* Open "cpu", "cuda" or "auto" (cuda where there is a GPU, else cpu). idx: which GPU, from 0, of
 * those that CUDA_VISIBLE_DEVICES leaves. "card:NAME" counts the memory that a GPU of this name
 * (or of so many GiB) would give, and computes nothing (device_card.c). cpu_threads: 0 means one
 * per core. ERR_INVALID for another name, ERR_UNSUPPORTED for a kind that was not built in,
 * ERR_GPU, ERR_NO_MEMORY; all logged. */
int device_open(struct device **out, const char *kind, int idx, int cpu_threads) ERR_CHECKED;
void device_close(struct device *d); /* NULL is fine */

/* The kinds, for device_open(). */
int device_cpu_open(struct device **out, int n_threads) ERR_CHECKED;
int device_cuda_open(struct device **out, int idx) ERR_CHECKED;
int device_card_open(struct device **out, const char *card) ERR_CHECKED;
int device_cuda_count(void); /* usable GPUs; 0 when there is no driver */

/* Whether the host could take so many bytes of a device that goes to sleep; logged when not. */
bool device_host_has_room(size_t bytes);
#define DEVICE_SLICE_US 5000 /* what sleep() and wake() take at a time: a tick of the loop's */

/* The stream of a cuda device: for tests that launch kernels themselves. */
k_stream device_cuda_stream(struct device *d);

#endif
