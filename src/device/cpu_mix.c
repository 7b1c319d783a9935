/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixers of the cpu device: attention over pages, its gates, and recurrent states.
 *
 * A task is some tokens and one kv head, or some channels of one sequence. One thread computes it
 * alone, in an order that depends on its own inputs only (device_cpu.c), so results do not depend
 * on the number of threads. */
#include "config.h"

#include "device/parts_cpu.h"

#include <math.h>
#include <string.h>

#include "kernels/e4m3.h"
#include "kernels/latent.h"

#define CHANNELS_A_TASK 64
#define ATTN_TOKENS     4 /* of one sequence in a task */
#define ATTN_HEADS      8 /* of a group in a task */
#define ATTN_ROWS       8 /* of e4m3 that are widened at a time */

/* --- attention ------------------------------------------------------------------------- */

struct attn_job {
    struct cpu *c;
    float *out;
    const float *qkv;
    const struct k_kv *kv;
    struct k_tokens tokens; /* with the layer's table */
    int n_heads;
    int value_dim;
    int n_parts; /* tasks of a kv head's group */
    float scale;
    size_t row_len; /* of a query's scores in scratch memory */
};

/* The keys of a task: pages of the sequence, and the head. */
struct attn_place {
    const int32_t *pages;
    int kv_head;
};

static int cpu_least(int a, int b)
{
    return a < b ? a : b;
}

/* Rows of a page of e4m3 as numbers. */
struct attn_wide {
    float rows[ATTN_ROWS * (K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX)];
};

/* A page holds keys, then values, of all kv heads: [K|V][kv_head][page_tokens][head_dim]. This is
 * the address of one head's keys from key i of the sequence on, or with `values` elements more of
 * its values; *len of them, which becomes fewer where they are widened. */
static const float *cpu_page_rows(const struct k_kv *kv, const struct attn_place *at, int i,
                                  size_t values, int *len, struct attn_wide *wide)
{
    int bt = kv->page_tokens;
    size_t first = (size_t)at->pages[i / bt] * kv->page_elems + kv->layer_elems + values +
                   ((size_t)at->kv_head * bt + i % bt) * kv->head_dim;
    const k_e4m3 *from = (const k_e4m3 *)kv->pages + first;

    if (kv->type != K_E4M3)
        return (const float *)kv->pages + first;
    *len = cpu_least(*len, ATTN_ROWS);
    for (int e = 0; e < *len * kv->head_dim; e++)
        wide->rows[e] = k_e4m3_value(from[e]) * kv->k_scale;
    return wide->rows;
}

/* n scores become those under a cap. Returns the largest. */
static float cpu_cap_scores(float *scores, int n, float cap)
{
    float top = -INFINITY;

    for (int i = 0; i < n; i++) {
        scores[i] = cap * tanhf(scores[i] / cap);
        top = fmaxf(top, scores[i]);
    }
    return top;
}

/* A query of a tile: one head of one token. */
struct attn_query {
    const float *q;
    float *out;
    int first, end; /* its keys */
    int head;
};

/* Add the values of keys first .. end - 1, page by page, to the outputs of n queries, with weights
 * [n][row_len] that begin with key `from`. */
static void cpu_attn_mix(const struct attn_job *job, const struct attn_place *at, float *const *out,
                         int n, const float *weights, int from, int first, int end)
{
    const struct k_kv *kv = job->kv;
    int hd = kv->head_dim, bt = kv->page_tokens;
    size_t values = kv->value_dim > 0 ? 0 : (size_t)kv->n_kv_heads * bt * hd;
    struct attn_wide wide;

    for (int i = first, len; i < end; i += len) {
        const float *rows;

        len = cpu_least(end - i, bt - i % bt);
        rows = cpu_page_rows(kv, at, i, values, &len, &wide);
        job->c->math->mix(out, n, weights + (i - from), job->row_len, rows, len, job->value_dim,
                          hd);
    }
}

/* Attention of n queries whose tokens follow each other, so that nearly all of their keys are the
 * same: keys and values are read once for all of them. scores: [n][row_len]. What is computed for a
 * query does not depend on the others: scores and sums go key by key as in ref_attn(), and the
 * lanes of the weights' sum begin with the first key that it sees. */
static void cpu_attn_tile(const struct attn_job *job, const struct attn_place *at,
                          const struct attn_query *queries, int n, float *scores)
{
    const struct k_kv *kv = job->kv;
    const struct cpu_math *math = job->c->math;
    int hd = kv->head_dim, bt = kv->page_tokens;
    int from = queries[0].first, all_from = queries[n - 1].first, all_to = queries[0].end;
    const float *q[CPU_QUERIES];
    float *out[CPU_QUERIES], sums[CPU_QUERIES];
    struct attn_wide wide;

    for (int j = 0; j < n; j++) {
        q[j] = queries[j].q;
        out[j] = queries[j].out;
        memset(out[j], 0, (size_t)job->value_dim * sizeof *out[j]);
    }
    /* First loop: scores of all keys, and the largest, which keeps exp() in range. */
    for (int i = from, len; i < queries[n - 1].end; i += len) {
        const float *rows;

        len = cpu_least(queries[n - 1].end - i, bt - i % bt);
        rows = cpu_page_rows(kv, at, i, 0, &len, &wide);
        math->scores(scores + (i - from), job->row_len, q, n, rows, len, hd);
    }
    for (int j = 0; j < n; j++) {
        float *own = scores + (size_t)j * job->row_len + (queries[j].first - from);
        int len = queries[j].end - queries[j].first;
        float sink = kv->sinks != NULL ? kv->sinks[queries[j].head] : -INFINITY;
        float top = fmaxf(sink, math->scale(own, len, job->scale));

        if (kv->cap > 0.0f)
            top = fmaxf(sink, cpu_cap_scores(own, len, kv->cap));
        sums[j] = math->weights(own, len, top);
        if (kv->sinks != NULL)
            sums[j] += expf(sink - top);
    }
    /* Second loop: values, weighted by the scores: those that some see, that all see, that some
     * see. */
    if (all_from > all_to)
        all_from = all_to;
    for (int j = 0; j < n; j++)
        cpu_attn_mix(job, at, out + j, 1, scores + (size_t)j * job->row_len, from, queries[j].first,
                     all_from);
    cpu_attn_mix(job, at, out, n, scores, from, all_from, all_to);
    for (int j = 0; j < n; j++) {
        int begin = queries[j].first > all_to ? queries[j].first : all_to;

        cpu_attn_mix(job, at, out + j, 1, scores + (size_t)j * job->row_len, from, begin,
                     queries[j].end);
        for (int e = 0; e < job->value_dim; e++)
            out[j][e] /= sums[j];
    }
}

/* A task is one kv head, with all or some query heads of its group, of a block of tokens. */
static void cpu_attn_task(void *arg, int task, int worker)
{
    const struct attn_job *job = arg;
    const struct k_kv *kv = job->kv;
    const struct k_tokens *tokens = &job->tokens;
    int n_heads = job->n_heads, hd = kv->head_dim, group = n_heads / kv->n_kv_heads;
    int first = task % job->n_parts * ATTN_HEADS, n_own = group;
    int token = job->c->attn_blocks[task / job->n_parts / kv->n_kv_heads], seq = tokens->seq[token];
    int n_tokens = cpu_least(tokens->seq_start[seq + 1] - token, ATTN_TOKENS);
    struct attn_place at = {.pages = tokens->page_ids + (size_t)seq * tokens->pages_max,
                            .kv_head = task / job->n_parts % kv->n_kv_heads};
    float *scores = job->c->scratch + (size_t)worker * job->c->scratch_len;
    struct attn_query queries[CPU_QUERIES];
    int n = 0;

    if (job->n_parts > 1)
        n_own = cpu_least(group - first, ATTN_HEADS);
    for (int i = 0; i < n_tokens * n_own; i++) {
        int t = token + i / n_own, head = at.kv_head * group + first + i % n_own;
        int end = tokens->pos[t] + 1;

        queries[n++] =
            (struct attn_query){.q = job->qkv + ((size_t)t * k_qkv_heads(kv, n_heads) + head) * hd,
                                .out = job->out + ((size_t)t * n_heads + head) * job->value_dim,
                                .first = kv->window > 0 && end > kv->window ? end - kv->window : 0,
                                .end = end,
                                .head = head};
        if (n == CPU_QUERIES || i + 1 == n_tokens * n_own) {
            cpu_attn_tile(job, &at, queries, n, scores);
            n = 0;
        }
    }
}

/* Divides the tokens of each sequence into blocks. Returns their number. */
static int cpu_attn_divide(int *blocks, const struct k_tokens *tokens)
{
    int n = 0;

    for (int s = 0; s < tokens->n_seqs; s++) {
        for (int t = tokens->seq_start[s]; t < tokens->seq_start[s + 1]; t += ATTN_TOKENS)
            blocks[n++] = t;
    }
    return n;
}

/* Latent attention has one kv head for all queries, so its group is divided. */
static int cpu_attn_parts(const struct k_kv *kv, int n_heads)
{
    if (kv->value_dim == 0)
        return 1;
    return (n_heads / kv->n_kv_heads + ATTN_HEADS - 1) / ATTN_HEADS;
}

/* Little work is done by the caller alone, because waking threads costs more than it saves. */
void cpu_attn(struct device *d, void *out, const void *qkv, const struct k_kv *kv, int n_heads,
              float scale, const struct k_matrix *to)
{
    struct cpu *cpu = cpu_of(d);
    const struct k_tokens *tokens = &cpu->batch->tokens;
    struct attn_job job = {.c = cpu,
                           .out = out,
                           .qkv = qkv,
                           .kv = kv,
                           .tokens = k_tokens_of(tokens, kv->group),
                           .n_heads = n_heads,
                           .value_dim = kv->value_dim > 0 ? kv->value_dim : kv->head_dim,
                           .n_parts = cpu_attn_parts(kv, n_heads),
                           .scale = scale,
                           .row_len = cpu->scratch_len / CPU_QUERIES};
    int n_tasks = cpu_attn_divide(cpu->attn_blocks, tokens) * kv->n_kv_heads * job.n_parts;
    size_t work = 0;

    (void)to; /* all is float32 */
    for (int i = 0; i < tokens->n_tokens; i++)
        work += ((size_t)tokens->pos[i] + 1) * (size_t)n_heads * (size_t)kv->head_dim * 2;
    if (work >= CPU_INLINE_WORK) {
        pool_run(cpu->pool, cpu_attn_task, &job, n_tasks);
        return;
    }
    for (int i = 0; i < n_tasks; i++)
        cpu_attn_task(&job, i, 0);
}

/* --- states ---------------------------------------------------------------------------- */

struct state_job {
    float *out;
    const float *in;
    const struct k_state *state;
    struct k_tokens tokens; /* with the layer's table */
    int width, n_parts;     /* n_parts: tasks of a sequence */
};

/* Channels of a state are independent of each other; tokens are not, so a task takes all tokens of
 * its sequence in order. */
static void cpu_state_task(void *arg, int task, int worker)
{
    const struct state_job *job = arg;
    int first = task % job->n_parts * CHANNELS_A_TASK;

    (void)worker;
    ref_recurrent(job->out, job->in, job->state, &job->tokens, job->width, task / job->n_parts,
                  first, cpu_least(first + CHANNELS_A_TASK, job->width));
}

void cpu_recurrent(struct device *d, void *out, const void *in, const struct k_state *state,
                   int width, const struct k_matrix *to)
{
    struct cpu *cpu = cpu_of(d);
    struct state_job job = {.out = out,
                            .in = in,
                            .state = state,
                            .tokens = k_tokens_of(&cpu->batch->tokens, state->group),
                            .width = width,
                            .n_parts = (width + CHANNELS_A_TASK - 1) / CHANNELS_A_TASK};

    (void)to; /* all is float32 */
    pool_run(cpu->pool, cpu_state_task, &job, job.tokens.n_seqs * job.n_parts);
}

struct delta_job {
    float *out;
    const float *in, *gates;
    const struct k_delta *delta;
    const struct k_state *state;
    struct k_tokens tokens; /* with the layer's table */
};

/* Value heads of one key head share inputs of the convolution, so a task has all of them. */
static void cpu_delta_task(void *arg, int task, int worker)
{
    const struct delta_job *job = arg;
    int n_heads = job->delta->shape.n_k_heads;

    (void)worker;
    ref_delta_rule(job->out, job->in, job->gates, job->delta, job->state, &job->tokens,
                   task / n_heads, task % n_heads);
}

void cpu_delta(struct device *d, void *out, const void *in, const float *gates,
               const struct k_delta *delta, const struct k_state *state, const struct k_matrix *to)
{
    struct cpu *cpu = cpu_of(d);
    struct delta_job job = {.out = out,
                            .in = in,
                            .gates = gates,
                            .delta = delta,
                            .state = state,
                            .tokens = k_tokens_of(&cpu->batch->tokens, state->group)};

    (void)to; /* all is float32 */
    pool_run(cpu->pool, cpu_delta_task, &job, job.tokens.n_seqs * delta->shape.n_k_heads);
}

struct mamba_job {
    float *out;
    const float *in;
    const struct k_mamba *mamba;
    const struct k_state *state;
    struct k_tokens tokens; /* with the layer's table */
};

static void cpu_mamba_task(void *arg, int task, int worker)
{
    const struct mamba_job *job = arg;
    int n_heads = job->mamba->shape.n_heads;

    (void)worker;
    ref_mamba_scan(job->out, job->in, job->mamba, job->state, &job->tokens, task / n_heads,
                   task % n_heads);
}

static void cpu_mamba_keep_task(void *arg, int task, int worker)
{
    const struct mamba_job *job = arg;

    (void)worker;
    ref_mamba_keep(job->in, job->mamba, job->state, &job->tokens, task);
}

static void cpu_mamba_gate_task(void *arg, int task, int worker)
{
    const struct mamba_job *job = arg;

    (void)worker;
    ref_mamba_gate(job->out, job->in, job->mamba, task);
}

/* Heads read the inputs that the sequence keeps, and a norm reads several heads. */
void cpu_mamba(struct device *d, void *out, const void *in, const struct k_mamba *mamba,
               const struct k_state *state, const struct k_matrix *to)
{
    struct cpu *cpu = cpu_of(d);
    struct mamba_job job = {.out = out,
                            .in = in,
                            .mamba = mamba,
                            .state = state,
                            .tokens = k_tokens_of(&cpu->batch->tokens, state->group)};

    (void)to; /* all is float32 */
    pool_run(cpu->pool, cpu_mamba_task, &job, job.tokens.n_seqs * mamba->shape.n_heads);
    pool_run(cpu->pool, cpu_mamba_keep_task, &job, job.tokens.n_seqs);
    pool_run(cpu->pool, cpu_mamba_gate_task, &job, job.tokens.n_tokens);
}

struct conv_job {
    float *out;
    const float *in;
    const struct k_short_conv *conv;
    const struct k_state *state;
    struct k_tokens tokens; /* with the layer's table */
    int n_parts;            /* tasks of a sequence */
};

static void cpu_conv_task(void *arg, int task, int worker)
{
    const struct conv_job *job = arg;
    int first = task % job->n_parts * CHANNELS_A_TASK;

    (void)worker;
    ref_short_conv(job->out, job->in, job->conv, job->state, &job->tokens, task / job->n_parts,
                   first, cpu_least(first + CHANNELS_A_TASK, job->conv->width));
}

void cpu_short_conv(struct device *d, void *out, const void *in, const struct k_short_conv *conv,
                    const struct k_state *state, const struct k_matrix *to)
{
    struct cpu *cpu = cpu_of(d);
    struct conv_job job = {.out = out,
                           .in = in,
                           .conv = conv,
                           .state = state,
                           .tokens = k_tokens_of(&cpu->batch->tokens, state->group),
                           .n_parts = (conv->width + CHANNELS_A_TASK - 1) / CHANNELS_A_TASK};

    (void)to; /* all is float32 */
    pool_run(cpu->pool, cpu_conv_task, &job, job.tokens.n_seqs * job.n_parts);
}

/* --- gates ----------------------------------------------------------------------------- */

struct shut_job {
    float *x;
    const float *gate;
    size_t width;
};

static void cpu_shut_task(void *arg, int task, int worker)
{
    const struct shut_job *job = arg;

    (void)worker;
    ref_shut(job->x + (size_t)task * job->width, job->gate + (size_t)task * job->width, job->width);
}

/* A task is a token. */
void cpu_shut(struct device *d, void *x, const void *gate, int width, int n,
              const struct k_matrix *to)
{
    struct shut_job job = {x, gate, (size_t)width};

    (void)to; /* all is float32 */
    pool_run(cpu_of(d)->pool, cpu_shut_task, &job, n);
}

/* --- rows of families that no other device runs -------------------------------------------- */

struct curve_job {
    float *out;
    const float *in, *gate;
    const struct k_xielu *curve;
    const struct k_gating *how;
    float limit;
    int width;
};

static void cpu_xielu_task(void *arg, int task, int worker)
{
    const struct curve_job *job = arg;
    size_t at = (size_t)task * (size_t)job->width;

    (void)worker;
    ref_xielu(job->out + at, job->in + at, job->curve, (size_t)job->width);
}

/* A task is a token. */
void cpu_xielu(struct device *d, void *out, const void *in, const struct k_xielu *curve, int width,
               int n)
{
    struct curve_job job = {.out = out, .in = in, .curve = curve, .width = width};

    pool_run(cpu_of(d)->pool, cpu_xielu_task, &job, n);
}

static void cpu_limited_task(void *arg, int task, int worker)
{
    const struct curve_job *job = arg;
    size_t at = (size_t)task * (size_t)job->width;

    (void)worker;
    ref_gate_limited(job->out + at, job->in + 2 * at, job->limit, 1, job->width);
}

void cpu_gate_limited(struct device *d, struct device_rows *out, const void *in, float limit,
                      int ff_dim, int n)
{
    struct curve_job job = {.out = out->data, .in = in, .limit = limit, .width = ff_dim};

    pool_run(cpu_of(d)->pool, cpu_limited_task, &job, n);
}

static void cpu_shut_by_task(void *arg, int task, int worker)
{
    const struct curve_job *job = arg;
    size_t width = (size_t)job->width, gates = width / (size_t)job->how->width;

    (void)worker;
    ref_shut_by(job->out + (size_t)task * width, job->gate + (size_t)task * gates, job->how, width);
}

void cpu_shut_by(struct device *d, void *x, const void *gate, const struct k_gating *how, int width,
                 int n)
{
    struct curve_job job = {.out = x, .gate = gate, .how = how, .width = width};

    pool_run(cpu_of(d)->pool, cpu_shut_by_task, &job, n);
}
