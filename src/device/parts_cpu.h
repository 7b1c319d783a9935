/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the cpu device: device_cpu.c (memory, products, opening), cpu_rows.c
 * (operations on rows), cpu_step.c, cpu_mix.c (attention and states), cpu_latent.c, cpu_index.c,
 * cpu_adapt.c and cpu_experts.c. */
#ifndef QUIRE_DEVICE_PARTS_CPU_H
#define QUIRE_DEVICE_PARTS_CPU_H

#include "device/cpu_math.h"
#include "device/cpu_ranks.h"
#include "device/cpu_round.h"
#include "device/cpu_sleep.h"
#include "device/cpu_stages.h"
#include "device/device.h"
#include "device/pool.h"
#include "kernels/mxfp4.h"

#define CPU_ALLOCS_MAX  16384  /* allocations of one model */
#define CPU_INLINE_WORK 100000 /* multiply-adds below which a thread costs more than it saves */

/* Work memory of experts, for the largest step. */
struct cpu_experts {
    float *logits; /* float [n_tokens][n_choices] */
    struct k_routes routes;
    struct k_sorted sorted;
    int32_t *touched;           /* int32 [n_experts]: those with routes */
    uint8_t *rounded;           /* rounded rows of all routes; NULL: inputs stay float32 */
    float *x, *ffn_in, *ff, *y; /* float [routes][width], in the order of experts */
};

/* Rows of a step with adapters, those of a slot next to each other; one of the two for tokens, one
 * for sampled rows. */
struct cpu_adapted_rows {
    int32_t *order;  /* int32 [n_tokens]: a row of the step */
    int32_t *slots;  /* int32 [n_tokens]: the slot of order[i] */
    int32_t *starts; /* int32 [n_adapters + 1]: the first of a slot in order */
};

struct cpu_adapt {
    struct cpu_adapted_rows tokens, rows;
    float *x; /* float [n_tokens][adapter_in]: inputs, in that order */
    float *t; /* float [K_ADAPTED_MAX][n_tokens][adapter_rank]: a x */
};

struct cpu {
    struct device base; /* first */
    struct pool *pool;
    const struct cpu_math *math;
    const struct cpu_round *round; /* NULL: inputs of products stay float32 */
    uint8_t *rounded;              /* rounded rows of a product's inputs */
    size_t rounded_bytes;
    const struct device_batch *batch; /* of the step that began last */
    float *scratch;                   /* float [threads][scratch_len]: scores, a row of logits */
    int32_t *counts;                  /* int32 [threads][n_vocab] */
    size_t scratch_len;
    float *wide; /* float [threads][wide_len]: weights of a product's task as float32 */
    size_t wide_len;
    int longest;                    /* row of any matrix that takes() was asked about; wide has
                                     * room for CPU_OUTS of them */
    int32_t *token_ids;             /* int32 [n_tokens]: ids of the step, with negative ones
                                     * resolved */
    int32_t *attn_blocks;           /* int32 [n_tokens]: the first token of each block of an
                                     * attention's tasks */
    int32_t *ids[DEVICE_STEPS_MAX]; /* int32 [n_seqs]: sampled, by step */
    int n_rows[DEVICE_STEPS_MAX];
    struct k_logprob_row *logprobs[DEVICE_STEPS_MAX]; /* [n_seqs], of the step's extras */
    int n_extras[DEVICE_STEPS_MAX];
    _Atomic unsigned n_begun, n_ended; /* with stages, steps end on another thread */
    uint64_t begun_us;                 /* the clock when work of a step began */
    uint64_t n_steps;                  /* that have ended */
    _Atomic uint64_t busy_us, sum_us;  /* time in steps so far, and in sums over ranks */
    struct cpu_experts experts;        /* NULL pointers in models without experts */
    struct cpu_adapt adapt;            /* NULL pointers without adapters */
    struct cpu_sleep sleep;
    struct cpu_ranks *ranks; /* NULL: this is the only rank */
    struct cpu *sampler;     /* the device that samples: rank 0, of the last stage */
    int rank;
    struct cpu_stages *stages; /* NULL: this device has all layers */
    int idx;                   /* among the devices of all stages */
    char *weights;             /* the rest of the last piece of memory for weights */
    size_t weights_left;       /* bytes */
    int n_allocs;
    void *allocs[CPU_ALLOCS_MAX];
};

static inline struct cpu *cpu_of(struct device *d)
{
    return (struct cpu *)d;
}

/* How products of this device read a matrix: plain numbers are float32, experts in k_format_mxfp4()
 * are blocks (cpu_arrange()), others as they are kept. */
static inline enum k_type cpu_type_of(const struct k_matrix *w)
{
    if (k_format_is_plain(&w->format))
        return K_F32;
    if (k_format_is_mxfp4(&w->format))
        return K_MXFP4;
    return w->format.elem;
}

static inline size_t cpu_row_bytes(const struct k_matrix *w)
{
    const struct k_format format = k_format_bare(cpu_type_of(w));

    return k_format_row_bytes(&format, w->n_in);
}

/* The product with rows `first` .. first + n_out - 1 of a matrix, without x, y and ranges. */
static inline struct cpu_matmul cpu_product_of(const struct k_matrix *w, int first, int n_out)
{
    struct cpu_matmul m = {.w = w->data,
                           .type = cpu_type_of(w),
                           .w_bytes = cpu_row_bytes(w),
                           .n_in = w->n_in,
                           .n_out = n_out};

    m.w = (const char *)w->data + (size_t)first * m.w_bytes;
    if (cpu_math_scales(m.type))
        m.scales = (struct cpu_scales){.at = w->scales,
                                       .zeros = w->format.has_zeros ? w->zeros : NULL,
                                       .high = w->format.group_rows,
                                       .wide = w->format.group_cols,
                                       .a_row = k_format_scale_cols(&w->format, w->n_in),
                                       .first = first};
    return m;
}

/* --- device_cpu.c --- */
#define CPU_OUTS 32 /* outputs of a product's task, whose weights stay in the L1/L2 cache */

/* A task's part of a product, by the way that is fastest for its type and number of rows. */
void cpu_multiply_part(const struct cpu *cpu, const struct cpu_matmul *m, int worker);
/* Bring a matrix of experts in k_format_mxfp4() into blocks of K_MXFP4 (device.h). */
int cpu_arrange(struct device *d, const struct k_matrix *m,
                const struct k_mxfp4_rows *rows) ERR_CHECKED;

/* --- cpu_rows.c: operations of the table --- */
void cpu_embed(struct device *d, float *x, const struct k_matrix *table);
void cpu_pick(struct device *d, const struct device_pick *p);
void cpu_rmsnorm(struct device *d, struct device_rows *out, const float *x, const void *weight,
                 float eps, int n, const struct k_matrix *to);
void cpu_add_rmsnorm(struct device *d, struct device_rows *out, float *x, const void *delta,
                     const void *weight, float eps, int n, const struct k_matrix *to);
void cpu_rope_kv(struct device *d, void *qkv, const struct k_kv *kv, const struct k_rotary *r,
                 int n_heads);
void cpu_silu_mul(struct device *d, struct device_rows *out, const void *in, int ff_dim, int n,
                  const struct k_matrix *to);
void cpu_activate(struct device *d, void *out, const void *in, enum k_activation kind, int width,
                  int n, const struct k_matrix *to);
void cpu_gate(struct device *d, struct device_rows *out, const void *in, enum k_activation kind,
              int ff_dim, int n, const struct k_matrix *to);
void cpu_norm(struct device *d, struct device_rows *out, const float *x, const struct k_norm *norm,
              int n, const struct k_matrix *to);
void cpu_norm_within(struct device *d, void *x, int stride, const struct k_norm *norm, int width,
                     int n);
void cpu_place(struct device *d, float *x, float scale, const void *positions, int first);
void cpu_add(struct device *d, float *x, const void *delta, float scale, int n);
void cpu_scale(struct device *d, void *x, int stride, int width, float by, int n);
void cpu_add_within(struct device *d, void *x, const void *delta, int n);
void cpu_add_normed(struct device *d, struct device_rows *out, float *x, void *delta,
                    const struct k_adding *how, int n, const struct k_matrix *to);
void cpu_gate_by(struct device *d, struct device_rows *out, const void *in,
                 const struct k_factor *by, enum k_activation kind, int n,
                 const struct k_matrix *to);
void cpu_layer_embeds(struct device *d, void *x, const struct k_layer_embeds *e);
void cpu_soften(struct device *d, float *logits, const struct k_softening *how, int n);
void cpu_quantise(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to);
void cpu_gather_add(struct device *d, float *out, const float *x, const void *delta, float scale);

/* The ids of a step, by its number. */
static inline int32_t *cpu_ids_of(struct cpu *c, unsigned step)
{
    return c->ids[step % device_steps(c->base.limits.n_stages)];
}

/* --- cpu_step.c: operations of the table --- */
int cpu_begin(struct device *d, const struct device_batch *b);
bool cpu_replay(struct device *d);
void cpu_launch(struct device *d);
void cpu_sample(struct device *d, float *logits);
int cpu_end(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras);
void cpu_measure(struct device *d, struct device_load *out);

/* --- cpu_mix.c: operations of the table --- */
void cpu_attn(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
              float scale, const struct k_matrix *to);
void cpu_recurrent(struct device *d, void *out, const void *in, const struct k_state *state,
                   int width, const struct k_matrix *to);
void cpu_delta(struct device *d, void *out, const void *in, const float *gates,
               const struct k_delta *delta, const struct k_state *state, const struct k_matrix *to);
void cpu_mamba(struct device *d, void *out, const void *in, const struct k_mamba *mamba,
               const struct k_state *state, const struct k_matrix *to);
void cpu_short_conv(struct device *d, void *out, const void *in, const struct k_short_conv *conv,
                    const struct k_state *state, const struct k_matrix *to);
void cpu_xielu(struct device *d, void *out, const void *in, const struct k_xielu *curve, int width,
               int n);
void cpu_gate_limited(struct device *d, struct device_rows *out, const void *in, float limit,
                      int ff_dim, int n);
void cpu_shut_by(struct device *d, void *x, const void *gate, const struct k_gating *how, int width,
                 int n);
void cpu_shut(struct device *d, void *x, const void *gate, int width, int n,
              const struct k_matrix *to);

/* --- cpu_latent.c: operations of the table --- */
void cpu_latent_keys(struct device *d, void *q, const void *in, const struct k_latent *l,
                     const struct k_kv *kv, const struct k_matrix *to);
void cpu_latent_queries(struct device *d, void *out, const void *in, const struct k_latent *l);
void cpu_latent_values(struct device *d, void *out, const void *in, const struct k_latent *l,
                       const struct k_matrix *to);

/* --- cpu_index.c: operations of the table --- */
void cpu_index_keys(struct device *d, const void *in, const struct k_index *x,
                    const struct k_kv *kv);
void cpu_index_choose(struct device *d, int32_t *chosen, const void *queries, const float *weights,
                      const struct k_index *x, const struct k_kv *kv);
void cpu_attn_chosen(struct device *d, void *out, const void *queries, const struct k_kv *kv,
                     const struct k_choice *chosen, int n_heads, float scale);

/* --- cpu_stages.c: operations of the table --- */
void cpu_leave_ranks(struct device *d);
int cpu_join_stages(struct device *const *all, int n_stages, int n_parts);
int cpu_take(struct device *d, const struct device_segment *segments, int n);
int cpu_hand(struct device *d, const struct device_segment *segments, int n);

/* --- cpu_adapt.c --- */
int cpu_reserve_adapters(struct device *d) ERR_CHECKED;
/* The rows of a step that begins. */
void cpu_begin_adapters(struct cpu *cpu);
/* y [n][w->n_out] += the products of the adapters that w and the step's rows have. */
void cpu_adapt(struct device *d, float *y, const float *x, const struct k_matrix *w, int n);

/* --- cpu_experts.c --- */
void cpu_mix_experts(struct device *d, void *out, const struct device_experts *e, int n);
int cpu_reserve_experts(struct device *d) ERR_CHECKED;

#endif
