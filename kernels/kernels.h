/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations of a transformer, twice: references (ref_*) in plain C on float32, which are the
 * specification, and launchers (k_*) of CUDA kernels on bfloat16, which are the fast twins.
 *
 * Shapes are written as C arrays, last index fastest. Launchers only enqueue on the given stream:
 * no allocation, no synchronisation, no host read. They return 0, or -1 when the launch was refused
 * (the caller asks CUDA for the reason). All pointers of a launcher are device pointers, those of a
 * reference are host pointers. References run on the caller's thread; those with a range argument
 * compute a part, which has the same bits whichever thread computes it.
 *
 * Inputs are bfloat16, sums float32, results rounded once (limits: tests/kernel). Same bits. */
#ifndef QUIRE_KERNELS_H
#define QUIRE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"
#include "kernels/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t k_bf16;              /* the upper half of a float32 */
typedef uint8_t k_e4m3;               /* e4m3.h */
typedef struct CUstream_st *k_stream; /* CUDA's cudaStream_t */

#define K_HEAD_DIM_MAX      512
#define K_HEAD_DIM_PORTABLE 256 /* of k_attn() by the portable kernels */
#define K_BANNED_MAX        24
#define K_CONV_TAPS_MAX     4 /* of convolutions before a state */

#define K_SAMPLE_VOCAB_MAX  425984 /* a row of a cluster's shared memory */

/* Which kernels launchers use: those for Hopper, preset where they were built, or the portable ones
 * for compute capability 8.0 and later. The choice is the process's, made before the first launch.
 * k_use_portable() is -1 if the portable ones were not built; k_attn_caps(): they were. */
int k_use_portable(void);
bool k_is_portable(void);
bool k_attn_caps(void);

/* A matrix of weights w [n_out][n_in]. Pointers that its format does not use are NULL. */
struct k_matrix {
    void *data;           /* [n_out][n_in], row-major, elements of format.elem; on the cpu device
                          * float32 */
    const void *scales;   /* of format.scale; shape as in k_format */
    const void *zeros;    /* likewise */
    const float *global;  /* one number */
    const float *x_scale; /* the checkpoint's scale of inputs, by which they are divided before they
                           * are rounded to codes; NULL: found for each row */
    struct k_format format;
    int n_out, n_in;
    const struct k_adapters *adapters; /* adapter.h; host memory; NULL: it has none */
};

#define K_TOKENS_FEW 8 /* of a sequence */

/* What is known of the number of tokens of each sequence. With 0 kernels for both are launched; the
 * choice between them is made for each sequence, and changes no bits. */
enum k_lengths {
    K_LENGTHS_FEW = 1, /* at most K_TOKENS_FEW */
    K_LENGTHS_LONG,    /* 1, or more than that */
};

/* The tokens of a step. The tokens of all sequences are stored one after another; sequence s owns
 * tokens seq_start[s] .. seq_start[s + 1] - 1, the last ones of its kv_len[s]. */
struct k_tokens {
    const int32_t *ids;       /* int32 [n_tokens] */
    const int32_t *seq;       /* int32 [n_tokens]: the sequence of each token */
    const int32_t *pos;       /* int32 [n_tokens]: its position, counted from 0 */
    const int32_t *seq_start; /* int32 [n_seqs + 1] */
    const int32_t *kv_len;    /* tokens with this step's */
    const int32_t *page_ids;  /* int32 [n_seqs][pages_max] */
    int n_tokens;
    int n_seqs;
    int pages_max;
    int table_seqs; /* rows from one page table to the next (k_tokens_of()); operations do not read
                     * it */
    int lengths;    /* enum k_lengths, or 0 */
};

/* t with the page table of a group of layers: int32
 * [n_groups][table_seqs][pages_max]. */
K_BOTH struct k_tokens k_tokens_of(const struct k_tokens *t, int group)
{
    struct k_tokens own = *t;

    own.page_ids += (size_t)group * (size_t)t->table_seqs * (size_t)t->pages_max;
    return own;
}

/* The keys and values of one layer in the pages:
 * [page][layer][K|V][kv_head][page_tokens][head_dim]. Of type `type` for launchers, float32 for
 * references. A stored K_E4M3 element times its scale is the key or value. */
struct k_kv {
    void *pages;        /* the first page */
    size_t page_elems;  /* elements of a page, all layers in it */
    size_t layer_elems; /* elements from a page's start to this layer's K */
    int n_kv_heads;
    int head_dim; /* even, 2 .. K_HEAD_DIM_MAX */
    int page_tokens;
    int window; /* keys that a token attends to, its own as the last one; 0: all. Pages without any,
                 * and their entries in page tables, are not read */
    enum k_type type;
    float k_scale, v_scale; /* for K_E4M3: value = stored * scale, usually 1. Otherwise unused */
    int group;              /* cache group of the layer, whose page table it uses: for
                             * k_tokens_of() */
    const float *sinks;     /* float32 [n_heads], on both sides, or NULL: scores that take part in
                             * the softmax of a head, without a value */
    float cap;      /* above 0: a score becomes cap * tanh(score / cap), if k_attn_caps() and
                             * for heads of at most K_HEAD_DIM_PORTABLE */
    bool is_shared; /* all keys and values are in the pages already, because another layer
                             * wrote them: rows of qkv are queries alone */
    int value_dim;  /* above 0: a value is the first value_dim elements of its key, pages have keys
                    * alone, and is_shared is true (latent.h). 0: values are as wide as keys */
};

/* The heads of a row of qkv. */
K_BOTH int k_qkv_heads(const struct k_kv *kv, int n_heads)
{
    if (kv->is_shared)
        return n_heads;
    return n_heads + 2 * kv->n_kv_heads;
}

/* How one row is sampled; ref_sample() defines each field. */
struct k_sample_row {
    struct sampling sampling;
    uint64_t position;
    int64_t history_at; /* index of this row's history in the array of all histories */
    int32_t n_history;  /* 0 when there is no penalty */
    int32_t n_prompt;
    int32_t n_banned;
    int32_t banned[K_BANNED_MAX];
};

/* --- rows ------------------------------------------------------------------------------ */

/* x [n][dim] = table [n_vocab][dim] at ids [n]. The residual x is float32 on both sides. For the
 * launchers an id below 0 means sampled[-1 - id]: a token of the previous step that the host has
 * not seen yet. */
void ref_embed(float *x, const float *table, const int32_t *ids, int n, int dim);
int k_embed(float *x, const k_bf16 *table, const int32_t *ids, const int32_t *sampled, int n,
            int dim, k_stream stream);

/* out [n][dim] = x / sqrt(mean(x^2) + eps) * weight [dim]. The sum of squares is float64 in the
 * reference. */
void ref_rmsnorm(float *out, const float *x, const float *weight, float eps, int n, int dim);
int k_rmsnorm(k_bf16 *out, const float *x, const k_bf16 *weight, float eps, int n, int dim,
              k_stream stream);

/* x [n][dim] += delta [n][dim], then out = rmsnorm(x). One pass over x in the kernel: reads 6,
 * writes 6 bytes an element. */
void ref_add_rmsnorm(float *out, float *x, const float *delta, const float *weight, float eps,
                     int n, int dim);
int k_add_rmsnorm(k_bf16 *out, float *x, const k_bf16 *delta, const k_bf16 *weight, float eps,
                  int n, int dim, k_stream stream);

/* out [n_rows][dim] = x + scale * delta at rows token_idx [n_rows]: only these rows of a batch are
 * needed after the last layer. */
void ref_gather_add(float *out, const float *x, const float *delta, float scale,
                    const int32_t *token_idx, int n_rows, int dim);
int k_gather_add(float *out, const float *x, const k_bf16 *delta, float scale,
                 const int32_t *token_idx, int n_rows, int dim, k_stream stream);

/* out [n][ff_dim] = silu(gate) * up, where in [n][2 * ff_dim] holds a row's gate, then its up. */
void ref_silu_mul(float *out, const float *in, int n, int ff_dim);
int k_silu_mul(k_bf16 *out, const k_bf16 *in, int n, int ff_dim, k_stream stream);

/* Activations of FFNs, with or without a gate:
 *
 *   plain   out [n] = activation(in)
 *   gated   out [n][ff_dim] = activation(gate) * up
 *
 * silu_mul() above is the gated form that has kernels of its own with e4m3 and in products. */
enum k_activation {
    K_SILU,      /* x / (1 + e^-x) */
    K_GELU,      /* x / 2 * (1 + erf(x / sqrt(2))) */
    K_GELU_TANH, /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
    K_RELU,      /* max(x, 0) */
    K_RELU_2,    /* max(x, 0)^2 */
    /* y / (1 + e^(-slope y)) with y = min(x, limit); as a gate it multiplies 1 + the up, which is
     * clamped to +-limit first. */
    K_SWISH_CLAMPED,
};
#define K_SWISH_SLOPE 1.702f
#define K_SWISH_LIMIT 7.0f

/* out [n] = activation(in). The launcher's out is bfloat16 or, with is_half, in the layout of
 * K_HALF_AT. */
void ref_activate(float *out, const float *in, enum k_activation kind, size_t n);
int k_activate(void *out, bool is_half, const k_bf16 *in, enum k_activation kind, size_t n,
               k_stream stream);

/* xIELU of Apertus (arXiv 2411.13010), whose numbers a layer learns; the reference alone:
 *
 *   x > 0   positive * x^2 + linear * x
 *   else    negative * (e^min(x, least) - 1 - x) + linear * x */
struct k_xielu {
    float positive, negative, linear, least;
};
void ref_xielu(float *out, const float *in, const struct k_xielu *curve, size_t n);

/* out [n][ff_dim] = min(silu(gate), limit) * up, with the up clamped to +-limit; the reference
 * alone. Rows as of ref_gate(). */
void ref_gate_limited(float *out, const float *in, float limit, int n, int ff_dim);

/* out [n][ff_dim] = activation(gate) * up. A row of in [n][2 * ff_dim] is its gate, then its up. */
void ref_gate(float *out, const float *in, enum k_activation kind, int n, int ff_dim);
int k_gate(k_bf16 *out, const k_bf16 *in, enum k_activation kind, int n, int ff_dim,
           k_stream stream);

/* Rows that a result is multiplied with: the first width of each stride elements. */
struct k_factor {
    const void *rows; /* bf16 for launchers, float32 for references */
    int stride, width;
};

/* out [n][width] = activation(in [n][width]) * by. */
void ref_gate_by(float *out, const float *in, const struct k_factor *by, enum k_activation kind,
                 int n);
int k_gate_by(k_bf16 *out, const k_bf16 *in, const struct k_factor *by, enum k_activation kind,
              int n, k_stream stream);

/* --- rows of layers in general ------------------------------------------------------------ */

/* A norm over the elements of a row; weight and bias [dim] are bf16 for launchers, float32 for
 * references. Sums are float64 in the references. */
enum k_norm_kind {
    K_NORM_RMS,   /* x / sqrt(mean(x^2) + eps) * weight */
    K_NORM_LAYER, /* (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias */
    K_NORM_NONE,  /* x, rounded to the type of out */
};

struct k_norm {
    enum k_norm_kind kind;
    const void *weight; /* NULL for K_NORM_NONE only */
    const void *bias;   /* for K_NORM_LAYER; NULL: none */
    float eps;
};

/* out [n][dim] = norm(x). */
void ref_norm(float *out, const float *x, const struct k_norm *norm, int n, int dim);
int k_norm_rows(k_bf16 *out, const float *x, const struct k_norm *norm, int n, int dim,
                k_stream stream);

/* The first dim elements of each row of x [n][stride] become their norm. */
void ref_norm_within(float *x, int stride, const struct k_norm *norm, int n, int dim);
int k_norm_within(k_bf16 *x, int stride, const struct k_norm *norm, int n, int dim,
                  k_stream stream);

/* Rows of `width` elements, float32 or bfloat16: row i of `to` becomes row rows[i] of `from`. */
struct k_pick {
    void *to;
    const void *from;
    bool to_is_float, from_is_float;
    int to_stride, from_stride, width, n; /* strides: elements between rows */
    const int32_t *rows;                  /* int32 [n]; NULL: row i */
};
int k_pick_rows(const struct k_pick *p, k_stream stream);
int k_rename(int32_t *ids, const int32_t *table, int n, k_stream stream); /* ids = table[ids] */

/* RMS norms of rows whose elements are divided between ranks: queries, then keys, of x [n][stride].
 * squares [n][K_SQUARES(n_ranks)], of x's type: k_squares() writes this rank's two sums of squares
 * into its place, each as three bf16 numbers whose sum is the float exactly, and zeros into the
 * places of others. So k_sum_ranks() brings all sums to all ranks without rounding, and
 * k_norm_squares() adds them in the order of the ranks: same bits on every rank. */
#define K_SQUARES(n_ranks) (8 * (n_ranks))

struct k_split_norm {
    const void *weight; /* [width] */
    int width, whole;   /* elements of this rank, and of all without copies */
    bool counts;        /* false: a lower rank has the same elements, and its sum counts */
};

struct k_split_norms {
    struct k_split_norm q, k;
    int stride;
    float eps;
    int rank, n_ranks;
};

void ref_squares(float *squares, const float *x, const struct k_split_norms *s, int n);
int k_squares(k_bf16 *squares, const k_bf16 *x, const struct k_split_norms *s, int n,
              k_stream stream);
void ref_norm_squares(float *x, const float *squares, const struct k_split_norms *s, int n);
int k_norm_squares(k_bf16 *x, const k_bf16 *squares, const struct k_split_norms *s, int n,
                   k_stream stream);

/* x [n] += scale * delta [n]. */
void ref_add(float *x, const float *delta, float scale, size_t n);
int k_add(float *x, const k_bf16 *delta, float scale, size_t n, k_stream stream);

/* A sum with all that some layers do around it: x [n][dim] = (x + by * after(delta)) * scale, then
 * out [n][dim] = norm(x), unless out is NULL. Norms are K_NORM_RMS or K_NORM_NONE. The kernel reads
 * delta and x once from memory and again from the cache. */
struct k_adding {
    struct k_norm after, norm;
    float by, scale;
};
void ref_add_normed(float *out, float *x, const float *delta, const struct k_adding *how, int n,
                    int dim);
int k_add_normed(k_bf16 *out, float *x, const k_bf16 *delta, const struct k_adding *how, int n,
                 int dim, k_stream stream);

/* x [n] += delta [n], both bf16: ref_add() with a scale of 1 is the reference. */
int k_add_within(k_bf16 *x, const k_bf16 *delta, size_t n, k_stream stream);

/* Embeddings of tokens for each layer: x [n][n_layers][width] holds projections of the embedded
 * tokens, and of each run of width elements
 *
 *   x = (x / sqrt(mean(x^2) + eps) * weight + table_scale * table [id]) * scale
 *
 * table [n_vocab][n_layers][width], weight [width] and x are bf16 for launchers, float32 for
 * references. ids of the launcher are as those of k_embed(); it reads x twice, the second time from
 * the cache, and everything else once. */
struct k_layer_embeds {
    const void *table, *weight;
    float table_scale, scale, eps;
    int n_layers, width;
};
void ref_embed_layers(float *x, const struct k_layer_embeds *e, const int32_t *ids, int n);
int k_embed_layers(k_bf16 *x, const struct k_layer_embeds *e, const int32_t *ids,
                   const int32_t *sampled, int n, k_stream stream);

/* x [n][dim] = x * scale, plus row pos [n] + first of a table of learned positions [][dim] (NULL:
 * none). */
void ref_place(float *x, float scale, const float *positions, const int32_t *pos, int first, int n,
               int dim);
int k_place(float *x, float scale, const k_bf16 *positions, const int32_t *pos, int first, int n,
            int dim, k_stream stream);

/* Queries that grow with the position: the first `width` elements of each row of x [n][stride] are
 * multiplied by 1 + beta * ln(1 + floor((pos + first) / period)). */
struct k_growth {
    float beta; /* 0: they do not grow */
    int period; /* tokens */
    int first;  /* of position 0; launchers: 0 */
};

void ref_grow(float *x, int stride, int width, const struct k_growth *g, const int32_t *pos, int n);
int k_grow(k_bf16 *x, int stride, int width, const struct k_growth *g, const int32_t *pos, int n,
           k_stream stream);

/* A change of logits x [n][width] by some models, in place: x = (x + bias) * scale; then, if cap is
 * above 0, x = cap * tanh(x / cap). bias [width], NULL: none. */
struct k_softening {
    const void *bias;
    float scale, cap;
};
void ref_soften(float *x, const struct k_softening *how, int n, int width);
int k_soften(float *x, const struct k_softening *how, int n, int width, k_stream stream);

/* --- products of few rows --------------------------------------------------------------- */

#define K_PRODUCT_ROWS_MAX 64 /* larger products are computed by cuBLASLt */

/* Products with e4m3 (k_format_reads_half()) read x as float16, clamped to its maximum of 65504, in
 * an order of their own: of each 16 elements the pairs 0, 2, 4, 6, 1, 3, 5, 7. Then four bytes of
 * w, which ldmatrix gives a lane, are this lane's part of a tensor core's operand. The macro is the
 * position of element i; rows are a multiple of 16. */
#define K_HALF_AT(i) (((i) & ~(size_t)15) | ((i) >> 1 & 6) | ((i)&1) | ((i)&2) << 2)

enum k_product_kind {
    K_PRODUCT_PLAIN,    /* y bf16 [n][n_out] */
    K_PRODUCT_FLOAT,    /* y float32 [n][n_out] */
    K_PRODUCT_GATED,    /* y bf16 [n][n_out / 2] = silu(first half) * second half */
    K_PRODUCT_RESIDUAL, /* residual += product; normed = residual * norm; sums_out */
};

/* A product of n rows with the operations around it in a decode:
 *
 *   product [n][n_out] = x [n][n_in] * transpose(w) * inverse [n] + bias
 *   inverse = 1 / sqrt(sum of sums_in / n_in + eps), 1 without sums_in
 *
 * So the RMS norm is in two halves: the operation that makes x multiplies by the norm's weights and
 * writes partial sums of squares; the product that reads x divides by their root. normed is such an
 * x for the next product, ceil(n_out / 16) its number of partial sums. x, bias, norm, normed and y
 * are bfloat16 for the launcher (y float32 for K_PRODUCT_FLOAT; x as K_HALF_AT if
 * k_format_reads_half(w)) and float32 for the reference, as w is. */
struct k_product {
    enum k_product_kind kind;
    const void *x;            /* [n][n_in] */
    const struct k_matrix *w; /* host struct; plain, packed, or e4m3 with scales by row or blocks */
    const void *bias;         /* [n_out] or NULL */
    const float *sums_in;     /* float32 [n][n_sums] or NULL */
    int n_sums;               /* for the launcher a multiple of 4: n_in / 16 */
    float eps;
    /* Does the product that reads y of K_PRODUCT_GATED, or normed, read half
     * (k_format_reads_half())? Then they are written as K_HALF_AT. The reference ignores it. */
    bool y_is_half;
    void *y;
    float *residual;  /* float32 [n][n_out] */
    const void *norm; /* [n_out] */
    void *normed;     /* [n][n_out] */
    float *sums_out;  /* float32 [n][ceil(n_out / 16)] */
};

/* n is 1 .. K_PRODUCT_ROWS_MAX; k_multiply_takes(): can the kernels read this matrix for n rows?
 * (K_PRODUCT_RESIDUAL also needs n_out to be a multiple of 16.) A row's result does not depend on
 * the other rows; the order of summation depends on the shape and on the bucket of n:
 * k_multiply_bucket() is the largest number of rows that has the order of n rows. Reads the matrix
 * once. n_sms: the device's multiprocessors. The kernel may begin before the previous kernel has
 * ended; until then it reads nothing but w and norm. */
void ref_multiply(const struct k_product *p, int n);
int k_multiply_takes(const struct k_matrix *w, int n);
int k_multiply_bucket(const struct k_matrix *w, int n);
int k_multiply(const struct k_product *p, int n, int n_sms, k_stream stream);

/* x float32 [n][dim] = table at ids; normed [n][dim] = x * norm; sums_out float32 [n][ceil(dim /
 * 16)]: the beginning of a decode. dim is a multiple of 16. normed_is_half: write normed as
 * K_HALF_AT, for the product that reads it. */
void ref_embed_normed(float *x, float *normed, float *sums_out, const float *table,
                      const int32_t *ids, const float *norm, int n, int dim);
int k_embed_normed(float *x, void *normed, bool normed_is_half, float *sums_out,
                   const k_bf16 *table, const int32_t *ids, const int32_t *sampled,
                   const k_bf16 *norm, int n, int dim, k_stream stream);

/* --- experts ---------------------------------------------------------------------------- */

/* An FFN of experts: a router chooses n_used of n_experts for each token, and the result is the
 * weighted sum of theirs:
 *
 *   scores of x by the router -> ids, weights [n][n_used] -> routes in the order of experts
 *   y [route][dim] = expert(x)
 *   out [n][dim] = sum of weights * y */
#define K_EXPERTS_MAX       1024
#define K_EXPERTS_USED_MAX  32
#define K_EXPERT_GROUPS_MAX 32

enum k_scoring {
    K_SCORE_SOFTMAX, /* scores and weights: softmax of the logits */
    K_SCORE_SIGMOID, /* scores and weights: sigmoid of the logits */
    K_SCORE_TOP,     /* scores: the logits; weights: softmax of the chosen ones */
    K_SCORE_MIXER,   /* scores: the logits, chosen one after another; the weight of each: softmax
                      * over the logits that are not chosen before it and are at most
                      * 2 * spread * max(|logit|, largest) below the largest */
};

/* logits [n][n_experts] = x * transpose(w) + logit_bias; choice = score + bias. With groups,
 * n_experts / n_groups neighbours form one; only the n_groups_used groups with the largest sums of
 * their group_best best choices take part. The n_used largest choices are taken, the lowest id
 * among equals; NaN is less than all. Weights are scores without the bias, divided by max(their
 * sum, least) if `renorms`, and multiplied by scale and by the expert's own scale. */
struct k_router {
    const float *w;             /* float32 [n_experts][dim], on both sides */
    const float *bias;          /* float32 [n_experts] or NULL */
    const float *logit_bias;    /* float32 [n_experts] or NULL: part of the logits */
    const float *scales;        /* float32 [n_experts] or NULL: of the weights */
    const float *shared_switch; /* float32 [dim] or NULL: shared slots have the weight sigmoid(x *
                                 * shared_switch), n_shared is 1 */
    int n_experts, n_used;
    int n_shared; /* of the n_used slots; these lead to experts n_experts .., with weight 1 */
    int n_groups, n_groups_used, group_best; /* n_groups 1: no groups */
    enum k_scoring scoring;
    bool renorms;
    float least, scale, spread;
    float cap; /* the reference alone: above 0, logits are cap * tanh(logit / cap) */
};

/* Rows x that are normed by half (k_product): sums of squares [n][n_sums] of the residual, which
 * complete the norm. */
struct k_half_normed {
    const float *sums; /* float32 */
    int n_sums;
    float eps;
};

/* The choices for n tokens; the best first. */
struct k_routes {
    int32_t *ids;   /* int32 [n][n_used] */
    float *weights; /* float32 [n][n_used] */
};

/* The choices for n tokens whose logits are known (without shared_switch), and for n tokens. */
void ref_choose(const struct k_routes *out, const float *logits, const struct k_router *r, int n);
void ref_route(const struct k_routes *out, const float *x, const struct k_router *r, int n,
               int dim);

/* The experts of a layer, or those of them that a rank has: ids first .. first + n - 1. Others
 * contribute nothing.
 *
 *   expert(x) = down * (activation(gate * x) * (up * x)), each product plus its bias
 *
 * With is_plain the ups are the gates too: relu(u) * u is relu(u)^2. */
struct k_experts {
    struct k_matrix in;    /* [n * 2 * ff_dim][dim]: of each expert its gate, then its up */
    struct k_matrix down;  /* [n * dim][ff_dim] */
    const void *in_bias;   /* of the device's type [n * 2 * ff_dim], or NULL */
    const void *down_bias; /* [n * dim], or NULL */
    int n, first, ff_dim;
    bool is_plain; /* in is [n * ff_dim][dim], and so is its bias; launchers: not in MXFP4 */
    enum k_activation activation;
    /* The cpu device alone. */
    float limit;        /* above 0: gates and ups as of ref_gate_limited() */
    bool weighs_inputs; /* weights multiply x, not results */
};

/* Routes in the order of experts, and of tokens for each. A route is token * n_used + slot. */
struct k_sorted {
    int32_t *starts; /* int32 [n + 1]: the routes of expert first + e are at starts[e] ..
                      * starts[e + 1] - 1 */
    int32_t *routes; /* int32 [starts[n]] */
    int32_t *places; /* int32 [n_routes]: the inverse; -1 for a route to another rank's expert */
};
void ref_sort_routes(const struct k_sorted *out, const int32_t *ids, const struct k_experts *e,
                     int n_routes);

/* out [n][dim] = own * out + sum of weights * y at the places of a token's routes, in the order of
 * its slots. own: 0 if not `adds`; else 1, or with a switch [dim] sigmoid(x * switch) of each
 * token. */
struct k_combining {
    const float *weights;  /* [n][n_used] */
    const int32_t *places; /* [n][n_used] */
    const void *x;         /* [n][dim]; read only with a switch */
    const float *switches; /* float32 [dim], on both sides; or NULL */
    bool adds;             /* out has a result already, such as that of shared experts */
    int n_used, dim;
};
void ref_combine(float *out, const float *y, const struct k_combining *c, int n);

/* The whole FFN of experts, with float32 weights of plain format. */
void ref_experts(float *out, const float *x, const struct k_experts *e,
                 const struct k_routes *routes, const struct k_combining *c, int n);

/* --- sums over ranks ---------------------------------------------------------------------- */

#define K_RANKS_MAX       8
#define K_SUM_SMALL_BYTES ((size_t)1 << 20) /* of rows that an inbox takes at once */
/* Two halves, each with data and as many bytes of call numbers. */
#define K_SUM_INBOX_BYTES(n_ranks) (4 * (size_t)(n_ranks)*K_SUM_SMALL_BYTES)
#define K_SUM_BLOCKS_MAX           128
#define K_SUM_FLAGS                (2 * K_SUM_BLOCKS_MAX * K_RANKS_MAX)

/* What a rank's kernels know of the others. All memory is zero before the first sum. The arrays
 * have an entry per rank, in the order of the ranks; the entry of a peer is a peer pointer. */
struct k_links {
    int n, rank;                  /* ranks, and which one this is */
    void *inbox[K_RANKS_MAX];     /* K_SUM_INBOX_BYTES each */
    uint64_t *flags[K_RANKS_MAX]; /* [K_SUM_FLAGS] each */
    uint64_t *calls;              /* [3], this rank's own: sums so far; blocks that have ended;
                                   * nanoseconds in sums so far */
    uint32_t *left;               /* host memory: not 0 when a rank does not go on */
    uint32_t *failed;             /* host memory, set by kernels: a sum was given up */
};

/* rows[r] [n], bf16, of each rank r become the sum of all of them: float32 sums in the order of the
 * ranks, rounded once, the same bits on each rank. All ranks must call with the same n, in the same
 * order of calls; a kernel waits for its peers, 4 s at most. The rows of other ranks are peer
 * pointers; all are 16 bytes aligned. */
int k_sum_ranks(k_bf16 *const rows[K_RANKS_MAX], size_t n, const struct k_links *links,
                k_stream stream);

/* all float32 [n][links->n * width], of rank 0, gets part [n][width] of each rank as its columns
 * rank * width and on. On other ranks `all` is a peer pointer. width is a multiple of 4. A call as
 * above. A rank may write into `all` before rank 0 makes the call, so another call must lie between
 * rank 0's last reading of it and this one. */
int k_gather_ranks(float *all, const float *part, int n, int width, const struct k_links *links,
                   k_stream stream);

/* What K_PRODUCT_RESIDUAL does, of a product whose parts the ranks have: rows[r] bf16 [n][n_out] is
 * the part of rank r, as for k_sum_ranks(), and then
 *
 *   residual += sum of the parts; normed = residual * norm; sums_out
 *
 * on all ranks. Of many rows the sum is rounded to bf16 before it is added. p->y is not read; rows
 * may have changed afterwards. n_out is a multiple of 16, and n * n_out * 2 at most
 * K_SUM_SMALL_BYTES. */
int k_sum_residual(const struct k_product *p, k_bf16 *const rows[K_RANKS_MAX], int n,
                   const struct k_links *links, k_stream stream);

/* --- rounding to e4m3 ------------------------------------------------------------------------- */

/* The destination of a result x [n][dim] as e4m3: data * scale is approximately x. */
struct k_quantised {
    k_e4m3 *data;         /* [n][dim] */
    float *scales;        /* [n]; with a stride: [ceil(dim / 128)][stride], where [b][t] is for
                           * elements 128 b .. 128 b + 127 of row t */
    const float *x_scale; /* the scale of all rows; NULL: the largest magnitude of a row or run
                           * becomes 448. Not read when there is a stride */
    int stride;           /* 0: one scale per row; else at least n */
};

/* out = x [n][dim] rounded to e4m3. Both sides give the same bits for the same x. In the kernels x
 * is bf16, or the result of the other operations before it would be rounded to bf16. dim is a
 * multiple of 16, at most K_QUANTISED_DIM_MAX. */
#define K_QUANTISED_DIM_MAX 65536
void ref_quantise(const struct k_quantised *out, const float *x, int n, int dim);
int k_quantise(const struct k_quantised *out, const k_bf16 *x, int n, int dim, k_stream stream);
int k_rmsnorm_e4m3(const struct k_quantised *out, const float *x, const k_bf16 *weight, float eps,
                   int n, int dim, k_stream stream);
int k_add_rmsnorm_e4m3(const struct k_quantised *out, float *x, const k_bf16 *delta,
                       const k_bf16 *weight, float eps, int n, int dim, k_stream stream);
int k_silu_mul_e4m3(const struct k_quantised *out, const k_bf16 *in, int n, int ff_dim,
                    k_stream stream);

/* out float32 [n][n_in] = rows first .. first + n - 1 of w, dequantised according to its format:
 * rounded once after the difference and once after the product with the scale. Here w's data is of
 * format.elem, as on a GPU; data, scales and zeros need not be aligned. A format without scales has
 * no zeros and no global scale. Matrices that a device does not take are converted by this function
 * at load. The kernel writes bfloat16, of packed formats only, for products of many rows: first and
 * n are multiples of 16; reads the records once and writes the rows once. */
void ref_dequantise(float *out, const struct k_matrix *w, int first, int n);
int k_dequantise(k_bf16 *out, const struct k_matrix *w, int first, int n, k_stream stream);

/* Of a matrix of e4m3 by row or in blocks: rows first .. first + n - 1 as bfloat16 [n][n_in], times
 * their scales; n_in is a multiple of 16. And x [n] in the order of K_HALF_AT, n a multiple of 16.
 * Both read and write once. */
int k_widen_codes(k_bf16 *out, const struct k_matrix *w, int first, int n, k_stream stream);
int k_halve_rows(void *out, const k_bf16 *x, size_t n, k_stream stream);

/* out float32 [n_blocks][k_type_block(type)] = the elements of blocks of a GGUF type, in the
 * arithmetic of the PyPI package gguf: one rounding per product and per difference. The blocks need
 * not be aligned. Any thread. */
void ref_blocks(float *out, enum k_type type, const void *blocks, size_t n_blocks);

/* --- attention ------------------------------------------------------------------------- */

/* The preparation of queries and keys, per head: a norm if the model has one ("qk-norm"), then the
 * rotation by their position.
 *
 * Norm: x / sqrt(mean(x^2) + eps) * weight over a head's elements. Pairs that rotate are (d, d +
 * head_dim / 2), as in GPT-NeoX: y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin. Some models rotate
 * first. */
struct k_rotary {
    const float *turns; /* float32 [max_len][head_dim / 2][2]: cosine, sine by position and pair */
    const void *q_norm; /* weights [head_dim]: bf16 aligned to 16 bytes for launchers, float32 for
                         * references; NULL: no norm */
    const void *k_norm; /* weights of the keys' norm; both or none, but NULL for a shared kv */
    float eps;
    bool norms_after;  /* the norm follows the rotation */
    bool norms_values; /* values are normed too, without weights */
};

/* Norm and rotate queries and keys, and write keys and values to their pages.
 *
 *   qkv  [n_tokens][(n_heads + 2 * n_kv_heads) * head_dim]: queries, keys, values of a token;
 *        queries are prepared in place, keys and values are read; of a shared kv queries alone
 *
 * Tokens of sequences of kv_len 0 are left as they are. The reference does tokens first .. last -
 * 1. */
void ref_rope_kv(float *qkv, const struct k_kv *kv, const struct k_tokens *t,
                 const struct k_rotary *r, int n_heads, int first, int last);
int k_rope_kv(k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
              const struct k_rotary *r, int n_heads, k_stream stream);

/* Causal attention over the pages with grouped queries: head h reads kv head h / (n_heads /
 * n_kv_heads).
 *
 *   out  [n_tokens][n_heads][head_dim], or value_dim of them
 *   qkv  as above, queries rotated; keys and values of the step are in the pages already
 *
 * A token attends to the keys of positions 0 .. its own, or to the last kv->window of them. scale
 * must be above 0. The reference computes one pair of token and kv head: its scores (scratch,
 * float32 [pos + 1]), their softmax, the sum of the values in the order of positions. */
void ref_attn(float *out, const float *qkv, const struct k_kv *kv, const struct k_tokens *t,
              int n_heads, float scale, int token, int kv_head, float *scratch);

/* ref_attn() with products of e4m3, without caps: queries are rounded with a power of 2 per row and
 * head as scale, and weights relative to the largest of K_ATTN_BLOCK keys at positions that a
 * multiple of it begins; the sum of weights is that of weights before they are rounded. */
void ref_attn_e4m3(float *out, const float *qkv, const struct k_kv *kv, const struct k_tokens *t,
                   int n_heads, float scale, int token, int kv_head, float *scratch);

#define K_ATTN_BLOCK 128 /* keys */

/* Does k_attn() round the queries and weights of chunks as ref_attn_e4m3() does? */
int k_attn_rounds(const struct k_kv *kv, int n_heads);

/* Attention of a whole step. Tokens of sequences with one token (decodes) and of those with several
 * (chunks) are computed by two kernels; the lists say which is which.
 *
 * decode_seqs [n_decodes] are sequences with one token, NULL: sequences 0 .. n_decodes - 1. Those
 * of kv_len 0 are skipped and their rows of out left as they are: so a graph can be captured for
 * more sequences than a step has. k_attn_schedule() must have run since kv_len, seq_start or
 * decode_seqs changed; it serves all layers of one window and shape. The split of a decode's keys
 * into partial sums depends on the lengths of all decodes of the step, and so do its last bits.
 *
 * places: NULL, or int32 [n_decodes] in device memory: runs of decodes that are one sequence at
 * consecutive positions, as those that verify drafts. Each has a page table, with the same entries,
 * and follows the one before it in the list and in qkv; its place in the run is counted from 0, at
 * most K_RUN_MAX - 1. Where k_attn_joins(), their keys are read once for several of them, and with
 * rotary, too, decodes of a run do not wait for each other's keys: all decodes of a sequence must
 * be one run then. Without k_attn_joins(), runs are not for rotary.
 *
 * rotary: NULL when queries are rotated and the step's keys and values are in the pages
 * (k_rope_kv() has run). Else a host struct: n_tiles is 0, qkv is the product's result, and the
 * kernel does the work of k_rope_kv() itself, with the same bits, if k_attn_rotates() says that it
 * can. Pages of earlier steps are then read before the previous launch has ended.
 *
 * is_short: no decode of the step has more than K_ATTN_SHORT keys. With that, or with a window that
 * is not larger, a few sequences are computed by a kernel of their own, which needs no schedule; so
 * are any number of decodes with a window of at most 128 keys and heads of 64: see
 * k_attn_is_brief().
 *
 * overlap: launch decodes so that the kernel begins while the previous launch still runs
 * (programmatic stream serialization). Everything enqueued before that one, k_attn_schedule() and
 * all inputs but qkv, must have ended by then: the launch after k_attn_schedule() must be a plain
 * one, or one that waits for it before it lets others begin.
 *
 * out_is_half: out is written in the layout of K_HALF_AT, for a product with e4m3; n_heads *
 * head_dim is a multiple of 16 then.
 *
 * tile_seqs [n_tiles], tile_starts [n_tiles]: sequence and first token (relative to the sequence's
 * first) of each tile of K_TILE_TOKENS(group) tokens, those with most keys first, as k_attn_tiles()
 * lists them. tile_keys is the sum of kv_len over sequences with tiles. drawn is one word of device
 * memory, 0 before the first launch; every launch leaves 0 there. */
struct k_attn_plan {
    const int32_t *decode_seqs;
    const int32_t *tile_seqs;
    const int32_t *tile_starts;
    int n_decodes;
    int n_tiles;
    int tile_keys;
    int overlap;
    int is_short;
    int out_is_half;
    const struct k_rotary *rotary;
    int32_t *drawn;
    void *schedule;      /* k_attn_schedule_bytes(n_decodes), 16-byte aligned */
    void *work;          /* k_attn_work_bytes(), 16-byte aligned */
    const k_bf16 *gates; /* NULL, or where k_attn_shuts() [n_tokens][n_heads * head_dim]: out is
                          * multiplied with their sigmoids */
    const int32_t *places;
};

/* List the tiles of a step, and count them and their keys in plan: host arrays with room for
 * t->n_tokens each, and the host's t. */
void k_attn_tiles(int32_t *tile_seqs, int32_t *tile_starts, struct k_attn_plan *plan,
                  const struct k_tokens *t, int group);

#define K_TILE_ROWS 128 /* rows (token, head of the group) of a tile: two warpgroups of 64 */

/* Tokens of a tile: its rows are shared by the query heads of a kv head, at most K_TILE_ROWS. */
#define K_TILE_TOKENS(group) ((group) >= K_TILE_ROWS ? 1 : K_TILE_ROWS / (group))

#define K_ATTN_SHORT         2048 /* keys */

#define K_RUN_MAX            8 /* decodes of a run */

/* Are the keys of a run's decodes read once for several of them (of up to 4, and as many as have 16
 * query heads per kv head in all)? On Hopper, if the plan has places, heads have 64, 128 or 256
 * elements, at most 8 share a kv head, pages have 2^n >= 8 tokens, and scores no cap. */
int k_attn_joins(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads);

/* Are the decodes of a plan computed by the kernel for few sequences with short contexts, or by the
 * one for short windows? Neither needs a schedule. */
int k_attn_is_brief(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads);

/* Can decodes with these pages rotate queries and keys themselves? With norms only for heads of
 * 128 and 256; not with norms of values, shared pages or heads above 256. */
int k_attn_rotates(const struct k_rotary *r, const struct k_kv *kv);

/* Can k_attn() include ref_shut() for the tokens of this plan? Not with a cap of scores. */
int k_attn_shuts(const struct k_attn_plan *plan, const struct k_kv *kv);

size_t k_attn_schedule_bytes(int n_decodes);
size_t k_attn_work_bytes(int head_dim, int n_heads, int n_kv_heads);

/* Share the keys of all decodes equally among the warps of k_attn()'s grid: fills plan->schedule.
 * One block; the grid is a function of n_decodes and the shapes. */
int k_attn_schedule(const struct k_attn_plan *plan, const struct k_kv *kv, const struct k_tokens *t,
                    int n_heads, k_stream stream);

int k_attn(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
           const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream);

/* --- states ----------------------------------------------------------------------------- */

/* The states of one layer in the pages: element i of a sequence's state is at (at + i) % page_elems
 * of page (at + i) / page_elems of its table. */
struct k_state {
    void *pages;       /* float32, or bfloat16: then rounded after the step (kernels/state.h) */
    size_t page_elems; /* elements per page */
    size_t at;         /* elements of the sequence's pages before this layer's */
    int group;         /* cache group of the layer, whose page table it uses: for k_tokens_of() */
    bool is_bf16;      /* not of the mixer for tests, nor of short convolutions */
};

/* A recurrent mixer for tests, elementwise in float32:
 *
 *   s_t = sigmoid(gate) * s_t-1 + (1 - sigmoid(gate)) * value,   out [n_tokens][width] = s_t
 *
 * in [n_tokens][2 * width] holds a token's value, then its gate; s is the sequence's state [width].
 * It is read before the first token of the step, unless that has position 0 (then it is 0), and
 * written after the last. Sequences of kv_len 0 are left as they are. The reference does channels
 * first .. last - 1 of one sequence. The launcher's in is bfloat16; its out is bfloat16 too or,
 * with is_half, in that of K_HALF_AT. Bits depend neither on chunks nor on other sequences. */
void ref_recurrent(float *out, const float *in, const struct k_state *state,
                   const struct k_tokens *t, int width, int seq, int first, int last);
int k_recurrent(void *out, bool is_half, const k_bf16 *in, const struct k_state *state,
                const struct k_tokens *t, int width, k_stream stream);

/* x [n][width] *= sigmoid(gate), in place. The launcher's result is bfloat16 or, with is_half, in
 * the layout of K_HALF_AT, and then width is a multiple of 16. */
void ref_shut(float *x, const float *gate, size_t n);

/* Other gates; the reference alone. One gate for each `width` elements of x, which it multiplies
 * with its sigmoid or softplus. */
struct k_gating {
    int width;
    bool is_softplus;
};
void ref_shut_by(float *x, const float *gate, const struct k_gating *how, size_t n);
int k_shut(void *x, bool is_half, const k_bf16 *gate, size_t n, k_stream stream);

/* --- sampling -------------------------------------------------------------------------- */

/* Choose a token of one row.
 *
 *   logits   float32 [n_vocab], unchanged
 *   row      the settings; row->history_at is an index in history
 *   scratch  float32 [n_vocab]
 *   counts   int32 [n_vocab]: 2 * times in the output + (1 if in the prompt); used when
 *            row->n_history > 0
 *
 * In this order (vLLM's): banned ids get -infinity. A token in the prompt or output: a positive
 * logit is divided by repetition_penalty, another multiplied; then frequency_penalty * count and,
 * once, presence_penalty are subtracted for tokens of the output. Temperature 0: the largest
 * value, the lowest id among equals. Otherwise z = value / temperature and the weight of an id is
 * w = floor(2^32 * e^(z - max z)) by k_exp_fixed() of rng.h, an integer, so that sums do not
 * depend on their order. The filters keep: z with w >= min_p * 2^32; of those the top_k
 * largest z and all equal to the last; of those the fewest largest z whose weights reach
 * ceil(top_p * sum), and all equal to the last. Let W be the sum of what is kept and
 * r = (k_random(seed, position) * W) >> 64; the result is the first id, in the order of ids, at
 * which the running sum of kept weights exceeds r.
 *
 * So the draw is a function of the row's logits and settings alone, on both sides. A row in
 * which W is 0 gives what temperature 0 gives; NaN is less than all numbers. */
int32_t ref_sample(const float *logits, int n_vocab, const struct k_sample_row *row,
                   const int32_t *history, float *scratch, int32_t *counts);

/* Sampling of n_rows rows; row->history_at is an index in history, which is not read when no row
 * has penalties. Logits are read once, without scratch: by a cluster of 8 blocks per row, whose
 * shared memory holds the row; or, with 96 rows and more, by one block for each row that is greedy
 * or has a top_k of up to 64. Needs n_vocab <= K_SAMPLE_VOCAB_MAX. */
int k_sample(int32_t *ids, const float *logits, int n_rows, int n_vocab,
             const struct k_sample_row *rows, const int32_t *history, k_stream stream);

/* --- logits apart from sampling -------------------------------------------------------------- */

#define K_LOGPROBS_MAX 128
#define K_SAMPLED      (-1) /* as a target: the sampled id */

/* logits[id] += value; -infinity bans it. */
struct k_bias {
    int32_t id; /* at most once per row */
    float value;
    float raw; /* set by the edit: the logit before value was added, -infinity where masked */
};

/* The outputs and changes that are wanted for a row of logits, apart from a sampled id. */
struct k_logits_row {
    int32_t row;       /* index of the row of logits */
    int32_t target;    /* the id whose log probability is wanted; K_SAMPLED: ids[row] */
    int32_t n_top;     /* number of most probable ids that are wanted; -1: no log probabilities */
    int32_t n_biases;  /* 0: none */
    int64_t biases_at; /* index of its first in biases */
    int64_t mask_at;   /* index in masks of its uint32 [ceil(n_vocab / 32)], where bit id % 32 of
                        * word id / 32 is 1 when id is allowed; -1: all are */
};

/* Natural logarithms of the softmax of the row before the edit. */
struct k_logprob_row {
    float log_sum;               /* logit - log_sum is the log probability */
    float chosen;                /* of the target */
    int32_t rank;                /* of a target: 1 + the number of larger logits; 0 with
                                  * K_SAMPLED */
    int32_t n_top;               /* as wanted, at most n_vocab */
    int32_t ids[K_LOGPROBS_MAX]; /* largest logit first, the lowest id among equals */
    float top[K_LOGPROBS_MAX];   /* their logits */
};

/* A logit that is wanted in addition to the most probable ones. */
struct k_asked {
    int32_t row; /* of logits */
    int32_t id;
    float logit; /* out */
};

/* In this order, with sampling between the last two:
 *
 *   asked     the logits of asked [n]
 *   logprobs  all of out [n] but chosen with K_SAMPLED, for rows with n_top >= 0; others untouched
 *   edit      forbidden ids become -infinity, then the biases are added; in place
 *   chosen    out [n].chosen of rows with K_SAMPLED and n_top >= 0, from ids [n_rows] and the
 *             edited logits. A forbidden id gives -infinity
 *
 * rows [n]: each row of logits at most once; a row's bits do not depend on the other rows. For log
 * probabilities NaN counts as -infinity and +infinity as FLT_MAX, in out.top as well; a row of
 * -infinity only has a log_sum of 0 and gives log probabilities of -infinity. Entries of out.ids
 * and out.top after n_top are left as they are. The sum is float64 in the reference; the kernel's
 * log_sum is within 1e-5 of it, or two units in its last place. Same input, same bits. */
void ref_read_asked(struct k_asked *asked, const float *logits, int n_vocab, int n);
int k_read_asked(struct k_asked *asked, const float *logits, int n_vocab, int n, k_stream stream);
void ref_logprobs(struct k_logprob_row *out, const float *logits, int n_vocab,
                  const struct k_logits_row *rows, int n);
void ref_edit(float *logits, int n_vocab, const struct k_logits_row *rows, int n,
              const uint32_t *masks, struct k_bias *biases);
void ref_chosen(struct k_logprob_row *out, const int32_t *ids, const float *logits, int n_vocab,
                const struct k_logits_row *rows, int n, const struct k_bias *biases);
int k_logprobs(struct k_logprob_row *out, const float *logits, int n_vocab,
               const struct k_logits_row *rows, int n, k_stream stream);
int k_edit(float *logits, int n_vocab, const struct k_logits_row *rows, int n,
           const uint32_t *masks, struct k_bias *biases, k_stream stream);
int k_chosen(struct k_logprob_row *out, const int32_t *ids, const float *logits, int n_vocab,
             const struct k_logits_row *rows, int n, const struct k_bias *biases, k_stream stream);

/* Copy bytes, rounded up to 16, between device memory and pinned host memory, both aligned to 16;
 * by a kernel and not by a copy engine, so that it does not wait for large copies. */
int k_copy(void *dst, const void *src, size_t bytes, k_stream stream);

/* dst int32 [n_rows][stride]: the first width of each row = src [n_rows][width]. */
int k_copy_rows(int32_t *dst, int stride, const int32_t *src, int width, int n_rows,
                k_stream stream);

/* n elements of approximately normal noise, mean 0, the given deviation, from (seed, index). */
int k_fill_random(k_bf16 *out, size_t n, float deviation, uint64_t seed, k_stream stream);
int k_fill_random_e4m3(k_e4m3 *out, size_t n, float deviation, uint64_t seed, k_stream stream);

/* A matrix of one expert in the arrangement of kernels/mxfp4.h [k_mxfp4_bytes()], from its rows in
 * a file: codes [n_rows][n_in / 2], exponents [n_rows][n_in / 32]. They do not overlap; out and
 * codes are aligned to 16 bytes. Refused if n_in is not whole groups of 32. */
struct k_mxfp4_rows;
int k_mxfp4_arrange(void *out, const void *codes, const void *exponents,
                    const struct k_mxfp4_rows *rows, int n_in, k_stream stream);

/* Random codes in this arrangement, with one exponent: a deviation of about 0.02. */
int k_fill_random_mxfp4(void *out, size_t bytes, uint64_t seed, k_stream stream);

/* Random codes for all of a packed matrix, with scales for about the given deviation; of bytes by
 * row, without scales, of that deviation. */
int k_fill_random_packed(const struct k_matrix *w, float deviation, uint64_t seed, k_stream stream);

#ifdef __cplusplus
}
#endif

#endif
