/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations of a forward pass. Each is one line of the transformer and runs in one of two ways:
 *
 *   fused     steps of few tokens, all of them sampled, of models of the common form (`fuses` of
 *             struct plan): norms, gate and residual are parts of the products (struct k_product).
 *             The residual's norm is then known only as sums of squares, and the product that reads
 *             it divides by their root
 *   in parts  any step: a product, then one operation each for the norm, gate or sum around it
 *
 * With ranks, a product that is split by columns is summed over them before it reaches the
 * residual.
 *
 * Both ways give the same numbers up to the order of sums. forward.c does not know which is
 * taken. */
#ifndef QUIRE_MODEL_PASS_H
#define QUIRE_MODEL_PASS_H

#include "device/device.h"
#include "model/plan.h"
#include "model/weights.h"

#define PASS_FUSED_MAX 64 /* largest fused step, in tokens */

/* Intermediate results, allocated once for the largest step. "act" is the device's type. Codes of
 * all rows share one memory: at most one of them is read later than the next is written. */
struct activations {
    float *x;                     /* residual, float [n_tokens][dim] */
    struct device_rows normed;    /* [n_tokens][dim] */
    void *mixer_in;               /* act [n_tokens][widest]: q, k, v; value, gate */
    struct device_rows mixed;     /* [n_tokens][widest]: a mixer's result, the heads */
    void *gates;                  /* act [n_tokens][n_heads * head_dim]: attention's gates; of
                                     * the delta rule float [n_tokens][k_delta_gates()]: b, a; NULL
                                     * without */
    float *delta_a;               /* float [n_tokens][k_delta_forgets()], of the delta rule by
                                     * channel, as the next two; NULL without */
    void *delta_z;                /* act [n_tokens][values] */
    struct device_rows delta_low; /* [n_tokens][widest of k_dim and v_dim] */
    float *state_work;            /* work memory of mixers with states; NULL without */
    void *delta;                  /* act [n_tokens][dim]: result that is added to the residual
                                     * next */
    void *apart;                  /* act [n_tokens][dim]: the router's input, then the result of
                                     * experts beside a dense FFN, or in a narrower space; NULL
                                     * without */
    void *latent_in, *latent_out; /* act [n_tokens][latent_dim]: input and result of experts in a
                                     * narrower space; NULL without */
    void *latents;                /* act [n_tokens][k_latent_in()], where queries have latents, too;
                                     * of latent attention, as the next two; NULL without */
    void *latent_queries;         /* act [n_tokens][n_heads * latent row] */
    void *latent_heads;           /* act [n_tokens][n_heads * kv_rank] */
    void *embeds;                 /* act [n_tokens][n_layers][width]: embeddings for each layer;
                                     * NULL without */
    /* Of the choice of tokens; NULL without. */
    void *index_queries, *index_keys; /* act [n_tokens][n_heads * dim], [n_tokens][dim] */
    float *index_weights;             /* float [n_tokens][n_heads] */
    int32_t *chosen;                  /* int32 [n_tokens][n_keys], also for layers behind it */
    float *index_scores;              /* work memory of the choice; NULL without */
    /* Of an EAGLE-3 head; NULL without. */
    struct device_rows tapped;      /* [n_tokens][n_taps * tap_dim] */
    struct device_rows pairs;       /* [n_tokens][2 * dim]: the embedded token, the row before */
    float *embedded;                /* float [n_tokens][dim] */
    void *squares;                  /* act [n_tokens][K_SQUARES(n_ranks)] of norms over the heads
                                     * of all ranks; NULL without */
    void *ffn_in;                   /* act [n_tokens][widest]: gate, up */
    struct device_rows ff;          /* [n_tokens][widest ff] */
    float *rows;                    /* float [n_rows][dim]: the sampled rows' residual */
    struct device_rows rows_normed; /* [n_rows][dim] */
    float *logits;                  /* float [n_rows][n_vocab], of rank 0 */
    float *own_logits;              /* float [n_rows][head_rows]; logits itself if the output
                                     * matrix is not split */
    float *sums;                    /* float [PASS_FUSED_MAX][dim / 16]: squares of x in parts */
    int fused_max;                  /* steps of up to this many tokens are fused; 0: none */
};

/* is_last: of the last stage, which has logits. ERR_NO_MEMORY. */
int activations_alloc(struct activations *a, struct device *d, const struct plan *plan,
                      const struct device_limits *limits, bool is_last) ERR_CHECKED;

/* Set fused_max: the largest step for which the device's fused product takes all matrices of the
 * stage. */
void activations_fuse(struct activations *a, struct device *d, const struct plan *plan,
                      const struct weights *w, struct plan_stage stage);

struct pass {
    struct device *d;
    const struct plan *plan;
    const struct weights *w;
    struct activations *a;
    bool fused;
    int n; /* tokens */
};

struct pass pass_of(struct device *d, const struct plan *plan, const struct weights *w,
                    struct activations *a);

/* The next reader of the residual: its norm, and the matrix that is multiplied with the result. */
struct pass_next {
    const struct k_norm *norm;
    const struct k_matrix *reader;
};

/* x = embedding of the ids; normed = norm(x). */
void pass_embed(const struct pass *p, struct pass_next next);

/* The residual has come from the stage before: normed = norm(x). In a fused step that has come
 * too. */
void pass_enter(const struct pass *p, struct pass_next next);

/* y = normed * w + bias. */
void pass_project(const struct pass *p, void *y, const struct k_matrix *w, const void *bias);

/* Queries and keys of mixer_in are normed, each over all of its heads, those of other ranks too.
 * rank: of this device. */
void pass_norm_whole(const struct pass *p, const struct attn_plan *attn,
                     const struct layer_weights *w, int rank);

/* Queries of mixer_in grow with their position. */
void pass_grow(const struct pass *p, const struct attn_plan *attn);

/* mixed = attention of mixer_in over the pages that kv views, times the sigmoid of gates where the
 * layer has them, for the product with reader. */
void pass_attend(const struct pass *p, const struct attn_plan *attn, const struct k_kv *kv,
                 const struct k_rotary *rotary, const struct k_matrix *reader);

/* mixer_in = queries, behind which nothing counts; the latents of keys and values go to the pages
 * that kv views. turns: of the layer's rope. */
void pass_project_latent(const struct pass *p, const struct layer_plan *layer,
                         const struct layer_weights *w, const struct k_kv *kv, const float *turns);

/* mixed = latent attention of mixer_in over the same pages, of all tokens or of chosen ones. */
void pass_attend_latent(const struct pass *p, const struct layer_plan *layer,
                        const struct layer_weights *w, const struct k_kv *kv, const float *turns);

/* mixed = the states of mixer_in's tokens, for the product with reader. */
void pass_recur(const struct pass *p, const struct recurrent_plan *recurrent,
                const struct k_state *state, const struct k_matrix *reader);

/* mixer_in = q, k, v, z; gates = b, a. By channel in parts only: delta_a = a, delta_z = z. */
void pass_project_delta(const struct pass *p, const struct layer_weights *w);

/* mixed = Gated DeltaNet of mixer_in and gates, for the product with reader. */
void pass_delta(const struct pass *p, const struct k_delta *delta, const struct k_state *state,
                const struct k_matrix *reader);

/* mixed = Mamba-2 of mixer_in, for the product with reader. */
void pass_mamba(const struct pass *p, const struct k_mamba *mamba, const struct k_state *state,
                const struct k_matrix *reader);

/* mixed = short convolutions of mixer_in, for the product with reader. */
void pass_convolve(const struct pass *p, const struct k_short_conv *conv,
                   const struct k_state *state, const struct k_matrix *reader);

/* ff = activation(gate) * up of normed * gate_up + bias, for the product with reader. */
void pass_gate(const struct pass *p, const struct ffn_plan *ffn, const struct k_matrix *gate_up,
               const void *bias, const struct k_matrix *reader);

/* ff = activation(normed * up + bias), for the product with reader; curve: that of an FFN with
 * xIELU. */
void pass_activate(const struct pass *p, const struct ffn_plan *ffn, const struct k_matrix *up,
                   const void *bias, const struct k_xielu *curve, const struct k_matrix *reader);

/* The experts of a layer, to be run by the sum that follows. The norm of their input is completed
 * by themselves or before, and delta has the result of the shared ones. */
struct device_experts pass_begin_experts(const struct pass *p, const struct layer_plan *layer,
                                         const struct layer_weights *w);

/* delta = a dense FFN and experts, each normed before and after, of all ranks together. */
void pass_mix_apart(const struct pass *p, const struct layer_plan *layer,
                    const struct layer_weights *w);

/* delta = the shared experts and those in a narrower space, of all ranks together. */
void pass_mix_latent(const struct pass *p, const struct layer_plan *layer,
                     const struct layer_weights *w);

/* A result to be added to the residual: a product with w, plus bias, or that of experts; normed by
 * `after`; summed over the ranks if w is split by columns. */
struct pass_sum {
    bool is_summed;                       /* delta has it, of all ranks; only `after` is left */
    const struct device_experts *experts; /* NULL: a product */
    const struct k_matrix *w;
    const void *bias;
    enum plan_split split;
    float by; /* the residual multiplier, times the layer's own */
    const struct k_norm *after;
};

/* x += by * after(rows * w + bias); then normed = norm(x), or, if next is parallel to the mixer,
 * the norm of x from before the sum. */
void pass_add(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
              struct pass_next next, bool is_parallel);

/* pass_add() for the last layer of a stage that is not the last. Only a fused step computes normed,
 * because the next stage can do it as well. */
void pass_leave(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
                struct pass_next next);

/* x = (x + by * after(rows * w + bias)) * scale, then normed = norm(x), for layers with more sums
 * or a scale; in parts only. No reader: nothing is normed. */
void pass_add_scaled(const struct pass *p, const struct device_rows *rows, struct pass_sum sum,
                     float scale, struct pass_next next);

/* The third sum of a layer, out(activation(gate(normed)) * embeds of layer i), whose rows are in
 * a->ff; in parts only. */
struct pass_sum pass_gate_embeds(const struct pass *p, enum k_activation kind,
                                 const struct layer_weights *w, int i);

/* In parts: the last sum, for all tokens; pass_finish_entered() follows. */
void pass_add_last(const struct pass *p, const struct device_rows *rows, struct pass_sum sum);

/* The residual is that of the last layer: the logits of the step's rows. */
void pass_finish_entered(const struct pass *p);

/* pass_add() for the last layer, followed by the logits of the step's rows, if it has any. */
void pass_finish(const struct pass *p, const struct device_rows *rows, struct pass_sum sum);

#endif
