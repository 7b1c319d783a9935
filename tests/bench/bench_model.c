/* How fast the model is by itself: random weights in the shapes of a config.json, no engine.
 *
 *   bench_model FOLDER DEVICE [LIMIT_GBPS [QUANTIZATION [GEMM_TABLE]]]
 *
 * Prints one line a measurement: decode of one sequence at several contexts with the share of
 * LIMIT_GBPS (4650 if not given, an H200's read bandwidth) at which weights and KV were read; a
 * prefill of 8192 tokens; many sequences at once, 1024 tokens in and 1024 out, each step carrying
 * what a scheduler would give it: all decodes, then prefill up to the step's limit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "model/model.h"

#define SEQS_MAX 256

struct bench {
    struct model *m;
    const struct model_shape *shape;
    struct batch b;
    int32_t ids[SEQS_MAX];
    double limit_bytes_s;
    double weight_bytes;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_model: %s\n", what);
    exit(1);
}

static void step(struct bench *n)
{
    if (model_step_begin(n->m, &n->b) != ERR_OK || model_step_end(n->m, n->ids) != ERR_OK)
        die("a step failed");
}

static void clear(struct bench *n)
{
    n->b.n_tokens = n->b.n_seqs = n->b.n_rows = 0;
}

/* Add `count` tokens that follow the first `done` of sequence `seq`, sampling the last. Each
 * sequence has pages_each pages of its own. */
static void add(struct bench *n, int seq, int done, int count, int pages_each)
{
    struct batch *b = &n->b;
    int i = b->n_seqs++, bt = n->shape->block_tokens;

    for (int t = 0; t < count; t++)
        b->token_ids[b->n_tokens + t] = (done + t) * 31 % n->shape->n_vocab;
    b->seq_start[i] = b->n_tokens;
    b->n_tokens += count;
    b->seq_start[i + 1] = b->n_tokens;
    b->kv_len[i] = done + count;
    for (int p = 0; p * bt < done + count; p++)
        b->page_ids[(size_t)i * (size_t)b->pages_max + (size_t)p] = seq * pages_each + p;
    b->rows[b->n_rows++] =
        (struct batch_row){.token_idx = b->n_tokens - 1, .top_p = 1.0f, .repetition = 1.0f};
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void prefill(struct bench *n, int length)
{
    for (int done = 0; done < length; done += n->shape->max_num_batched_tokens) {
        clear(n);
        add(n, 0, done, least(length - done, n->shape->max_num_batched_tokens), 0);
        step(n);
    }
}

static void bench_decode(struct bench *n)
{
    uint64_t start = 0;
    int first = 128, last = least(1152, n->shape->max_model_len), mark = first;
    double kv_token = (double)n->shape->page_bytes / n->shape->block_tokens;

    prefill(n, first);
    for (int done = first; done < last; done++) {
        if (done == first + 8) { /* the first steps choose algorithms */
            start = clock_us();
            mark = done;
        }
        clear(n);
        add(n, 0, done, 1, 0);
        step(n);
    }
    if (last - mark > 8) {
        double us = (double)(clock_us() - start) / (last - mark);
        double bytes = n->weight_bytes + kv_token * (mark + last) / 2.0;

        printf("decode, 1 sequence, context %d..%d: %.1f tok/s, %.3f ms a token, %.1f%% of read "
               "bandwidth\n",
               mark, last, 1e6 / us, us * 1e-3, 100.0 * bytes / (us * 1e-6) / n->limit_bytes_s);
    }
}

static void bench_prefill(struct bench *n)
{
    int length = least(8192, n->shape->max_model_len);
    uint64_t start;

    prefill(n, length);
    start = clock_us();
    prefill(n, length);
    printf("prefill, %d tokens: %.1f ms\n", length, (double)(clock_us() - start) * 1e-3);
}

/* Many decodes at one context; the KV is whatever stands in the pages. */
static void bench_decodes(struct bench *n, int n_seqs, int context)
{
    int pages_each = context / n->shape->block_tokens + 1, n_steps = 20;
    uint64_t start = 0;
    double us;

    for (int i = -2; i < n_steps; i++) {
        if (i == 0)
            start = clock_us();
        clear(n);
        for (int s = 0; s < n_seqs; s++)
            add(n, s, context - 1, 1, pages_each);
        step(n);
    }
    us = (double)(clock_us() - start) / n_steps;
    printf("decode, %d sequences, context %d: %.2f ms a step, %.1f%% of read bandwidth\n", n_seqs,
           context, us * 1e-3,
           100.0 *
               (n->weight_bytes +
                (double)n->shape->page_bytes * n_seqs * context / n->shape->block_tokens) /
               (us * 1e-6) / n->limit_bytes_s);
}

/* Each sequence's done tokens; the prompt of half tokens, then half decodes. */
static void bench_crowd(struct bench *n, int n_seqs, int half)
{
    int done[SEQS_MAX] = {0}, limit = n->shape->max_num_batched_tokens, n_left = n_seqs;
    int bt = n->shape->block_tokens, pages_each = (2 * half + bt - 1) / bt, n_steps = 0;
    uint64_t start = clock_us();
    double s;

    while (n_left > 0) {
        clear(n);
        n_left = 0;
        for (int i = 0; i < n_seqs; i++) {
            if (done[i] >= half && done[i] < 2 * half)
                add(n, i, done[i]++, 1, pages_each);
        }
        for (int i = 0; i < n_seqs && n->b.n_tokens < limit; i++) {
            int count = least(half - done[i], limit - n->b.n_tokens);

            if (done[i] < half && n->b.n_seqs < n->shape->max_num_seqs) {
                add(n, i, done[i], count, pages_each);
                done[i] += count;
            }
        }
        for (int i = 0; i < n_seqs; i++)
            n_left += done[i] < 2 * half;
        step(n);
        n_steps++;
    }
    s = (double)(clock_us() - start) * 1e-6;
    printf("%d sequences, %d in, %d out: %.0f output tok/s, %.1f s, %d steps\n", n_seqs, half, half,
           (double)n_seqs * half / s, s, n_steps);
}

/* Bytes of weights that a decode reads: everything but the embedding's rows. */
static double weight_bytes(const struct model_shape *s, double elem_bytes, double head_elem_bytes)
{
    double q = (double)s->n_heads * s->head_dim, kv = (double)s->n_kv_heads * s->head_dim;
    double layer = (2.0 * q + 2.0 * kv) * s->dim + 3.0 * (double)s->ff_dim * s->dim;

    return layer * s->n_layers * elem_bytes + (double)s->n_vocab * s->dim * head_elem_bytes;
}

int main(int argc, char **argv)
{
    struct model_options o = {.dir = argc > 1 ? argv[1] : "",
                              .device = argc > 2 ? argv[2] : "auto",
                              .dummy_weights = true,
                              .block_tokens = 16,
                              .gpu_memory_utilization = 0.9,
                              .cpu_kv_bytes = (size_t)1 << 30,
                              .max_model_len = 0,
                              .quantization = argc > 4 ? argv[4] : "",
                              .gemm_table = argc > 5 ? argv[5] : ""};
    struct bench *n = calloc(1, sizeof *n);
    bool gpu, rounds = argc > 4 && argv[4][0] != '\0';

    n->limit_bytes_s = (argc > 3 ? atof(argv[3]) : 4650.0) * 1e9;
    if (model_open(&n->m, &o) != ERR_OK)
        die("the model does not open");
    n->shape = model_shape(n->m);
    gpu = strncmp(n->shape->device, "cpu", 3) != 0;
    n->weight_bytes = weight_bytes(n->shape, !gpu ? 4.0 : rounds ? 1.0 : 2.0, gpu ? 2.0 : 4.0);
    n->b.pages_max = n->shape->max_model_len / n->shape->block_tokens + 1;
    n->b.token_ids = calloc((size_t)n->shape->max_num_batched_tokens, 4);
    n->b.seq_start = calloc((size_t)n->shape->max_num_seqs + 1, 4);
    n->b.kv_len = calloc((size_t)n->shape->max_num_seqs, 4);
    n->b.page_ids = calloc((size_t)n->shape->max_num_seqs * (size_t)n->b.pages_max, 4);
    n->b.rows = calloc((size_t)n->shape->max_num_seqs, sizeof *n->b.rows);
    printf("%s on %s\n", o.dir, n->shape->device);
    bench_decode(n);
    bench_prefill(n);
    if (gpu)
        bench_decodes(n, SEQS_MAX, 1536);
    if (gpu)
        bench_crowd(n, SEQS_MAX, 1024);
    else
        bench_crowd(n, 32, 64);
    model_close(n->m);
    return 0;
}
