/* SPDX-License-Identifier: Apache-2.0
 *
 * quire bench: the speed of a model by itself, without server and clients. Steps are those that the
 * engine's scheduler would plan: decodes first, then prompts up to max_num_batched_tokens. Each
 * step begins before the previous one has ended, and takes its tokens from it on the device. */
#include "tools/quire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/settings.h"
#include "device/device.h"
#include "model/hf_config.h"
#include "model/model.h"

#define GAPS_MAX    4096 /* steps whose gaps are kept for the median */
#define RANKS_SHOWN 32

/* The options of the command line that are not settings of the engine. */
struct bench_options {
    int num_prompts, max_concurrency, input_len, output_len, lora_adapters, lora_rank, drafts;
    double read_limit; /* bytes per second */
};

/* The model, and the step that is being made. */
struct bench {
    struct bench_options options;
    struct settings settings;
    struct model *m;
    struct model *mtp; /* its MTP layer; NULL: drafts of none are measured */
    const struct model_shape *shape;
    struct batch b;
    int32_t *ids;
    int32_t *adapters;     /* int32 [seqs]: slots of the step's sequences */
    int n_adapters;        /* that sequences have in turn; 0: none has any */
    int *first_page;       /* int [seqs]: first page of each sequence in the step */
    long *steps;           /* long [seqs]: the step that sampled each sequence last; -1: none */
    int *rows;             /* int [seqs]: its row in that step */
    int32_t *hidden;       /* int32 [seqs]: rows that a step of the MTP layer reads */
    int seqs;              /* maximum sequences */
    long n_begun, n_ended; /* steps */
    bool waits;            /* the step being made needs a token of one that must end first */
    float gaps[GAPS_MAX];
    int n_gaps;
    struct model_load loads[RANKS_SHOWN]; /* of the ranks, when the measurement began */
};

/* Print an error and exit. A benchmark has nothing to clean up. */
static void die(const char *what)
{
    fprintf(stderr, "quire bench: %s\n", what);
    exit(1);
}

/* --- steps --------------------------------------------------------------------------------
 *
 * clear(), then add() per sequence, then step(): this fills the same struct batch that the engine
 * fills, so that the measured code is that of the engine. */

/* Begin a step without sequences. */
static void clear(struct bench *n)
{
    n->b.n_tokens = n->b.n_seqs = n->b.n_rows = 0;
    n->b.adapters = n->n_adapters > 0 ? n->adapters : NULL;
    n->waits = false;
}

/* True if the next step can decode the sequence before the last one of it has ended: it takes the
 * token of the step that as many steps ago as there are stages. */
static bool is_ready(const struct bench *n, int seq)
{
    return n->steps[seq] < 0 || n->n_begun - n->steps[seq] >= n->shape->n_stages;
}

/* Add `count` tokens after the first `done` tokens of sequence `seq`; sampled: the last one is a
 * sampled row. Each sequence has pages_each pages of its own. A decode's token is -1 - row: the
 * token that an earlier step samples in that row, which is not known to the host yet. */
static void add(struct bench *n, int seq, int done, int count, int pages_each, bool sampled)
{
    struct batch *batch = &n->b;
    int i = batch->n_seqs++;

    /* The ids do not matter to the speed, but they should not all be the same row of the embedding:
     * multiples of a prime spread over the vocabulary. */
    for (int t = 0; t < count; t++)
        batch->token_ids[batch->n_tokens + t] = (int)((long)(done + t) * 7919 % n->shape->n_vocab);
    if (count == 1 && n->steps[seq] >= n->n_ended && is_ready(n, seq))
        batch->token_ids[batch->n_tokens] = -1 - n->rows[seq];
    n->waits = n->waits || !is_ready(n, seq);
    batch->seq_start[i] = batch->n_tokens;
    batch->n_tokens += count;
    batch->seq_start[i + 1] = batch->n_tokens;
    batch->kv_len[i] = done + count;
    n->first_page[i] = seq * pages_each;
    if (n->n_adapters > 0)
        n->adapters[i] = seq % n->n_adapters;
    /* A prompt that is computed in several steps samples only in its last one. */
    if (!sampled)
        return;
    n->steps[seq] = n->n_begun;
    n->rows[seq] = batch->n_rows;
    batch->rows[batch->n_rows++] =
        (struct batch_row){.token_idx = batch->n_tokens - 1, .sampling = sampling_greedy()};
}

/* Wait for the oldest steps until n_left are in flight, and note their gaps: the times that the
 * device was idle before them. */
static void end_steps(struct bench *n, int n_left)
{
    while (n->n_begun - n->n_ended > n_left) {
        if (model_step_end(n->m, n->ids, NULL) != ERR_OK)
            die("a step failed");
        n->n_ended++;
        if (n->n_gaps < GAPS_MAX)
            n->gaps[n->n_gaps++] = model_gap_us(n->m);
    }
}

/* Fill the page tables. All cache groups get the same page ids, and write over each other: times do
 * not depend on the numbers in pages. */
static void fill_tables(struct bench *n)
{
    struct batch *batch = &n->b;
    int32_t *row = batch->page_ids;

    for (int g = 0; g < n->shape->n_groups; g++) {
        for (int i = 0; i < batch->n_seqs; i++, row += batch->pages_max) {
            int n_pages = n->shape->groups[g].n_state_pages;

            /* Groups of keys and values need one page for page_tokens tokens; a state has a fixed
             * number of pages. */
            if (n->shape->groups[g].kind != CACHE_STATE)
                n_pages = (batch->kv_len[i] - 1) / n->shape->page_tokens + 1;
            for (int p = 0; p < n_pages; p++)
                row[p] = (n->first_page[i] + p) % n->shape->n_pages;
        }
    }
}

/* Begin the step that was added, then end the one before it, or with stages the one as many steps
 * before. */
static void step(struct bench *n)
{
    fill_tables(n);
    if (n->waits)
        end_steps(n, 0);
    if (model_step_begin(n->m, &n->b) != ERR_OK || model_step_sample(n->m, &n->b) != ERR_OK)
        die("a step failed");
    n->n_begun++;
    end_steps(n, n->shape->n_stages);
}

/* End the last steps and forget their rows, so that a measurement starts from nothing. */
static void settle(struct bench *n)
{
    end_steps(n, 0);
    for (int i = 0; i < n->seqs; i++)
        n->steps[i] = -1;
    n->n_gaps = 0;
}

/* For qsort(). */
static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    if (x < y)
        return -1;
    return x > y;
}

/* The median of the gaps in microseconds. A mean would be dominated by the few steps in which the
 * device waits for a graph to be recorded. */
static double median_gap(struct bench *n)
{
    if (n->n_gaps == 0)
        return 0.0;
    qsort(n->gaps, (size_t)n->n_gaps, sizeof n->gaps[0], by_size);
    return (double)n->gaps[n->n_gaps / 2];
}

/* Note the work of the ranks so far. */
static void begin_ranks(struct bench *n)
{
    for (int i = 0; i < model_n_ranks(n->m) && i < RANKS_SHOWN; i++)
        model_measure(n->m, i, &n->loads[i]);
}

/* A line per rank: its work since begin_ranks(). */
static void print_ranks(const struct bench *n)
{
    int n_ranks = model_n_ranks(n->m);

    for (int i = 0; i < n_ranks && i < RANKS_SHOWN && n_ranks > 1; i++) {
        const struct model_load *before = &n->loads[i];
        struct model_load now;
        double steps;

        model_measure(n->m, i, &now);
        steps = (double)(now.n_steps - before->n_steps);
        if (steps > 0.0)
            printf("  stage %d rank %d: %.1f GiB, %.3f ms a step, %.3f ms of it in sums\n",
                   now.stage, now.part, (double)now.device_bytes / 1073741824.0,
                   (double)(now.busy_us - before->busy_us) * 1e-3 / steps,
                   (double)(now.sum_us - before->sum_us) * 1e-3 / steps);
    }
}

/* The smaller of two numbers. */
static int least(int a, int b)
{
    if (a < b)
        return a;
    return b;
}

/* --- bytes --------------------------------------------------------------------------------
 *
 * The lower bound for the time of a decode: reading all weights and the keys and values once. */

/* Bytes of weights that a decode reads: all but the rows of tables and the experts that no token
 * uses. Tokens choose independently here, so an expert is left out by all of them with probability
 * (1 - used / all)^n_seqs. */
static double weight_bytes(const struct model_shape *shape, int n_seqs)
{
    double left_out = 1.0;

    if (shape->n_experts > 0)
        left_out = pow(1.0 - (double)shape->n_experts_used / shape->n_experts, n_seqs);
    return (double)(shape->weight_bytes - shape->expert_bytes - shape->table_bytes) +
           (double)shape->expert_bytes * (1.0 - left_out);
}

/* Bytes of keys and values that a decode reads for so many tokens of context. */
static double kv_bytes(const struct bench *n, double tokens)
{
    return (double)n->shape->page_bytes / n->shape->page_tokens * tokens;
}

/* Print the speed as a share of the bound, so that results of different models and devices can be
 * compared. */
static void print_share(const struct bench *n, double bytes, double us)
{
    printf(", %.1f%% of the time that reading these bytes takes at %.2f TB/s",
           100.0 * bytes / n->options.read_limit / (us * 1e-6), n->options.read_limit * 1e-12);
}

/* --- latency ------------------------------------------------------------------------------ */

/* Compute a prompt of one sequence, in as many steps as the engine would take. */
static void prefill(struct bench *n, int length)
{
    for (int done = 0; done < length; done += n->shape->max_num_batched_tokens) {
        int count = least(length - done, n->shape->max_num_batched_tokens);

        clear(n);
        add(n, 0, done, count, 0, done + count == length);
        step(n);
    }
}

/* Measure decodes of n_seqs sequences, while their context grows from `first` to `last`. Cases that
 * the model's limits do not allow are skipped without a message, so that one list of cases serves
 * all models. */
static void bench_decode(struct bench *n, int n_seqs, int first, int last)
{
    int pages_each = (last + n->shape->page_tokens) / n->shape->page_tokens;
    int warm = first + (last - first) / 16 + 4;
    uint64_t start = 0;
    double us;

    if (n_seqs > n->seqs || (long)n_seqs * pages_each > n->shape->n_pages || last <= warm ||
        last > n->shape->max_model_len)
        return;
    settle(n);
    for (int done = first; done < last; done++) {
        if (done == warm) { /* the first steps choose algorithms and record graphs */
            settle(n);
            begin_ranks(n);
            start = clock_us();
        }
        clear(n);
        for (int seq = 0; seq < n_seqs; seq++)
            add(n, seq, done, 1, pages_each, true);
        step(n);
    }
    end_steps(n, 0);
    us = (double)(clock_us() - start) / (last - warm);
    printf("decode, %d sequence%s, context %d to %d: %.3f ms a step, %.1f tok/s", n_seqs,
           n_seqs == 1 ? "" : "s", warm, last, us * 1e-3, n_seqs * 1e6 / us);
    print_share(
        n, weight_bytes(n->shape, n_seqs) + kv_bytes(n, (double)n_seqs * (warm + last) / 2.0), us);
    printf(", idle between steps %.1f us\n", median_gap(n));
    print_ranks(n);
    settle(n);
}

/* Measure the prefill of one prompt: the best of four runs, after one that is not counted. */
static void bench_prefill(struct bench *n, int length)
{
    uint64_t best = UINT64_MAX;

    if (length > n->shape->max_model_len || length / n->shape->page_tokens >= n->shape->n_pages)
        return;
    for (int i = 0; i < 5; i++) {
        uint64_t start;

        settle(n);
        start = clock_us();
        prefill(n, length);
        end_steps(n, 0);
        if (i > 0 && clock_us() - start < best)
            best = clock_us() - start;
    }
    printf("prefill, %d tokens: %.1f ms\n", length, (double)best * 1e-3);
    settle(n);
}

#define FIRST_TOKENS 128 /* of the first step, and before decodes of one sequence */

/* Decodes with adapters, each beside the same without: of a model whose slots may have any, and of
 * 1, 8 and all adapters in turn. */
static void bench_adapters(struct bench *n)
{
    static const int seqs[] = {1, 4, 64};

    for (int slot = 0; slot < n->options.lora_adapters; slot++) {
        if (model_adapter_place_noise(n->m, slot, n->options.lora_rank) != ERR_OK)
            die("no room for adapters");
    }
    for (size_t i = 0; i < sizeof seqs / sizeof seqs[0]; i++) {
        for (int j = 0; j < 4; j++) {
            int all = n->options.lora_adapters, most = j < 2 ? j : j == 2 ? 8 : all;

            if ((j == 2 && all <= 8) || most > seqs[i])
                continue;
            n->n_adapters = most;
            printf("adapters: %d, ", most);
            bench_decode(n, seqs[i], 1000, 1128);
        }
    }
    n->n_adapters = 0;
}

/* Steps that verify drafts: each sequence has as many sampled tokens more. The tokens are known to
 * the host, as those of drafts are. */
static void bench_verify(struct bench *n, int n_seqs, int n_drafts)
{
    int first = 1000, n_steps = 128, warm = 8, each = 1 + n_drafts;
    int pages_each = (first + each + n->shape->page_tokens) / n->shape->page_tokens;
    uint64_t start = 0;
    double us;

    if (n_seqs * each > n->seqs || (long)n_seqs * pages_each > n->shape->n_pages ||
        first + each > n->shape->max_model_len)
        return;
    settle(n);
    for (int i = 0; i < n_steps + warm; i++) {
        if (i == warm) {
            settle(n);
            start = clock_us();
        }
        clear(n);
        for (int seq = 0; seq < n_seqs; seq++) {
            add(n, seq, first, each, pages_each, false);
            for (int t = 0; t < each; t++)
                n->b.rows[n->b.n_rows++] = (struct batch_row){.token_idx = n->b.n_tokens - each + t,
                                                              .sampling = sampling_greedy()};
        }
        step(n);
    }
    end_steps(n, 0);
    us = (double)(clock_us() - start) / n_steps;
    printf("verify, %d sequence%s of %d drafts, context %d: %.3f ms a step\n", n_seqs,
           n_seqs == 1 ? "" : "s", n_drafts, first, us * 1e-3);
    settle(n);
}

/* A step of the MTP layer, for one draft of each sequence. */
static void step_mtp(struct bench *n, int n_seqs, int pages_each, bool of_target)
{
    clear(n);
    for (int seq = 0; seq < n_seqs; seq++) {
        add(n, seq, 1000, 1, pages_each, true);
        n->hidden[seq] = seq;
        for (int p = 0; p < pages_each; p++)
            n->b.page_ids[seq * n->b.pages_max + p] = seq * pages_each + p;
    }
    n->b.hidden = (struct batch_hidden){.of_target = of_target, .rows = n->hidden};
    if (model_step_begin(n->mtp, &n->b) != ERR_OK || model_step_sample(n->mtp, &n->b) != ERR_OK ||
        model_step_end(n->mtp, n->ids, NULL) != ERR_OK)
        die("a step of the MTP layer failed");
    n->b.hidden = (struct batch_hidden){.of_target = false};
}

/* Drafts of an MTP layer, each waited for: the first of a step reads rows of the model's last step,
 * further ones rows of their own. */
static void bench_mtp(struct bench *n, int n_seqs)
{
    int n_steps = 128, warm = 8, pages_each = 1001 / n->shape->page_tokens + 1;
    double us[2];

    if (n_seqs > n->seqs || (long)n_seqs * pages_each > n->shape->n_pages ||
        n->shape->max_model_len < 1001)
        return;
    settle(n);
    clear(n);
    for (int seq = 0; seq < n_seqs; seq++)
        add(n, seq, 1000, 1, pages_each, true);
    step(n);
    settle(n);
    for (int further = 0; further < 2; further++) {
        uint64_t start = 0;

        for (int i = 0; i < n_steps + warm; i++) {
            if (i == warm)
                start = clock_us();
            step_mtp(n, n_seqs, pages_each, further == 0);
        }
        us[further] = (double)(clock_us() - start) / n_steps;
    }
    settle(n);
    printf(
        "MTP layer, %d sequence%s, context 1000: %.3f ms the first draft, %.3f ms a further one\n",
        n_seqs, n_seqs == 1 ? "" : "s", us[0] * 1e-3, us[1] * 1e-3);
}

static void bench_drafts(struct bench *n)
{
    for (int seqs = 1; seqs <= 64; seqs *= 8) {
        bench_decode(n, seqs, 1000, 1128);
        bench_verify(n, seqs, 0);
        bench_verify(n, seqs, n->options.drafts);
        if (n->mtp != NULL)
            bench_mtp(n, seqs);
    }
}

/* All cases of "quire bench latency". A CPU gets fewer and smaller ones, because it would take
 * minutes for the others. */
static void bench_latency(struct bench *n)
{
    bool gpu = strncmp(n->shape->device, "cpu", 3) != 0;
    uint64_t start_us = clock_us();

    if (n->shape->max_model_len < FIRST_TOKENS)
        die("latency needs a max_model_len of at least 128");
    prefill(n, FIRST_TOKENS);
    end_steps(n, 0);
    printf("first step, 128 tokens: %.1f ms\n", (double)(clock_us() - start_us) * 1e-3);
    (void)fflush(stdout); /* useful while the rest is being measured */
    if (n->options.lora_adapters > 0) {
        bench_adapters(n);
        return;
    }
    if (n->options.drafts > 0) {
        bench_drafts(n);
        return;
    }
    bench_decode(n, 1, 128, 1152);
    for (int seqs = 2; seqs <= 64 && gpu; seqs *= 2)
        bench_decode(n, seqs, 1000, 1064);
    if (gpu)
        bench_decode(n, 256, 1504, 1568);
    bench_prefill(n, gpu ? 8192 : 512);
}

/* --- throughput --------------------------------------------------------------------------- */

/* The place of a running request. */
struct place {
    int done; /* tokens computed; -1: free */
};

/* Tokens of steps that have ended are at hand. */
static void forget_ended(struct bench *n)
{
    for (int i = 0; i < n->seqs; i++) {
        if (n->steps[i] < n->n_ended)
            n->steps[i] = -1;
    }
}

/* One token of each request whose prompt is computed; with stages, of so many that all steps in
 * flight get as many. */
static void add_decodes(struct bench *n, struct place *place, int places, int pages_each)
{
    int n_stages = n->shape->n_stages, left = n_stages - 1;

    for (int i = 0; i < places; i++)
        left += place[i].done >= n->options.input_len;
    left /= n_stages;
    for (int i = 0; i < places && left > 0; i++) {
        if (place[i].done < n->options.input_len || !is_ready(n, i))
            continue;
        add(n, i, place[i].done++, 1, pages_each, true);
        left--;
    }
}

/* Run num_prompts requests, at most `places` of them at once. A request that ends frees its place
 * for the next one. This is the order of the engine's scheduler without its waiting: decodes of all
 * running requests, then prompts while the step has room. */
static void bench_throughput(struct bench *n)
{
    const struct bench_options *options = &n->options;
    int total = options->input_len + options->output_len, bt = n->shape->page_tokens, n_steps = 0;
    int pages_each = (total + bt - 1) / bt, limit = n->shape->max_num_batched_tokens;
    int places = least(options->max_concurrency, n->shape->max_num_seqs), n_begun = 0, n_ended = 0;
    struct place *place;
    uint64_t start = clock_us();
    double seconds;

    /* All requests that run must fit in the pages, because nothing is preempted here. */
    if ((long)places * pages_each > n->shape->n_pages)
        places = n->shape->n_pages / pages_each;
    if (total > n->shape->max_model_len || places == 0)
        die("the model has no room for such requests");
    place = mem_zalloc_array((size_t)places, sizeof *place);
    for (int i = 0; i < places; i++)
        place[i].done = -1;
    settle(n);
    begin_ranks(n);
    while (n_ended < options->num_prompts) {
        clear(n);
        add_decodes(n, place, places, pages_each);
        /* Prompts, each as far as the step's room goes; free places take a new request. */
        for (int i = 0; i < places && n->b.n_tokens < limit; i++) {
            int count;

            if (place[i].done >= options->input_len ||
                (place[i].done < 0 && n_begun == options->num_prompts))
                continue;
            if (place[i].done < 0) {
                n_begun++;
                place[i].done = 0;
                n->steps[i] = -1;
            }
            count = least(options->input_len - place[i].done, limit - n->b.n_tokens);
            add(n, i, place[i].done, count, pages_each,
                place[i].done + count == options->input_len);
            place[i].done += count;
        }
        if (n->b.n_tokens > 0) {
            step(n);
            n_steps++;
        } else { /* all wait for tokens */
            end_steps(n, (int)(n->n_begun - n->n_ended) - 1);
            forget_ended(n);
        }
        for (int i = 0; i < places; i++) {
            if (place[i].done == total - 1) { /* its last token comes from the previous step */
                place[i].done = -1;
                n_ended++;
            }
        }
    }
    end_steps(n, 0);
    seconds = (double)(clock_us() - start) * 1e-6;
    printf("throughput, %d requests of %d in and %d out, %d at once: %.0f output tok/s, %.1f s, "
           "%d steps, idle between steps %.1f us\n",
           options->num_prompts, options->input_len, options->output_len, places,
           (double)options->num_prompts * options->output_len / seconds, seconds, n_steps,
           median_gap(n));
    print_ranks(n);
    settle(n);
    mem_free(place);
}

/* --- kernel ------------------------------------------------------------------------------- */

/* Maximum rows of a product, and the duration of a series of them. */
#define KERNEL_ROWS_MAX 8192
/* bytes of matrices used in turn: more than the caches hold */
#define KERNEL_COLD     ((size_t)256 << 20)
#define KERNEL_COPIES   64
#define KERNEL_SERIES_S 0.03

/* The memory and the settings of one product's measurement. */
struct product_bench {
    struct device *d;
    struct k_matrix w[KERNEL_COPIES];
    int n_copies;
    void *x, *y;
    struct k_quantised codes; /* the quantised rows of x */
    float *residual, *sums;
    bool is_float;
    enum k_product_kind kind;
};

/* Run one product, either the library's, which needs its input quantised first, or the fused one
 * for few rows. i chooses the copy of the matrix. */
static void run_product(const struct product_bench *p, int i, int n, bool few)
{
    const struct k_matrix *matrix = &p->w[i % p->n_copies];
    struct device_rows rows = {.data = p->x, .codes = p->codes};
    const struct k_product product = {.kind = p->kind,
                                      .x = p->x,
                                      .w = matrix,
                                      .y = p->y,
                                      .residual = p->residual,
                                      .norm = p->x,
                                      .normed = p->y,
                                      .sums_out = p->sums};

    if (few) {
        p->d->ops->product(p->d, &product, n);
        return;
    }
    p->d->ops->quantise(p->d, &rows, n, matrix);
    if (p->is_float)
        p->d->ops->matmul_float(p->d, p->y, &rows, matrix, n);
    else
        p->d->ops->matmul(p->d, p->y, &rows, matrix, NULL, n);
}

/* Microseconds per product, from a series long enough for the clock: the count is doubled until it
 * lasts KERNEL_SERIES_S. */
static double time_product(const struct product_bench *p, int n, bool few)
{
    double seconds = 0.0;
    float word;

    for (int count = 4; seconds < KERNEL_SERIES_S && count <= 1 << 16; count *= 2) {
        uint64_t start;

        run_product(p, 0, n, few);
        if (p->d->ops->download(p->d, &word, p->sums, sizeof word) != ERR_OK)
            die("a product failed");
        start = clock_us();
        for (int i = 0; i < count; i++)
            run_product(p, i, n, few);
        if (p->d->ops->download(p->d, &word, p->sums, sizeof word) != ERR_OK)
            die("a product failed");
        seconds = (double)(clock_us() - start) * 1e-6;
        if (seconds >= KERNEL_SERIES_S)
            return seconds * 1e6 / count;
    }
    return seconds * 1e6;
}

/* Measure the products with one matrix, for numbers of rows from a single decode to a large
 * prefill. The matrix is copied until the copies exceed all caches, and the copies are used in
 * turn: each product then reads its weights from memory, as it does in a model, where other
 * matrices come between. */
static void bench_matrix(struct bench *n, struct device *d, const char *name, int n_out, int n_in,
                         enum k_product_kind kind)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
    bool fp8 = n->settings.quantization[0] != '\0' && kind != K_PRODUCT_FLOAT;
    struct k_matrix shape = {.n_out = n_out, .n_in = n_in};
    size_t bytes = (size_t)n_out * (size_t)n_in * (fp8 ? 1 : d->elem_bytes);
    struct product_bench bench = {.d = d, .kind = kind, .is_float = kind == K_PRODUCT_FLOAT};
    float *ones = mem_zalloc_array((size_t)n_out, sizeof *ones);
    struct k_matrix x = {.n_out = KERNEL_ROWS_MAX, .n_in = n_in};

    if (fp8)
        shape.format = k_format_by_row(K_E4M3);
    for (int i = 0; ones != NULL && i < n_out; i++)
        ones[i] = 1.0f;
    /* The largest sizes that any row count below needs. The device frees them when it closes. */
    bench.x = d->ops->alloc(d, (size_t)KERNEL_ROWS_MAX * (size_t)n_in * 4);
    bench.y = d->ops->alloc(d, (size_t)KERNEL_ROWS_MAX * (size_t)n_out * 4);
    bench.residual = d->ops->alloc(d, (size_t)64 * (size_t)n_out * 4);
    bench.sums = d->ops->alloc(d, (size_t)64 * (size_t)n_out);
    bench.codes.data = d->ops->alloc(d, (size_t)KERNEL_ROWS_MAX * (size_t)n_in);
    bench.codes.scales = d->ops->alloc(d, (size_t)KERNEL_ROWS_MAX * (size_t)(n_in / 128 + 1) * 4);
    if (ones == NULL || bench.x == NULL || bench.y == NULL || bench.residual == NULL ||
        bench.sums == NULL || bench.codes.data == NULL || bench.codes.scales == NULL)
        die("no memory");
    x.data = bench.x;
    if (d->ops->fill_random(d, &x, 1.0f, 99) != ERR_OK)
        die("filling failed");
    for (size_t all = 0;
         bench.n_copies < KERNEL_COPIES && (all < KERNEL_COLD || bench.n_copies < 2);
         all += bytes) {
        struct k_matrix *matrix = &bench.w[bench.n_copies++];
        float *scales = fp8 ? d->ops->alloc(d, (size_t)n_out * sizeof *scales) : NULL;

        *matrix = shape;
        matrix->data = d->ops->alloc(d, bytes);
        matrix->scales = scales;
        if (matrix->data == NULL ||
            d->ops->fill_random(d, matrix, 0.02f, (uint64_t)bench.n_copies) != ERR_OK ||
            (fp8 && d->ops->upload(d, scales, ones, (size_t)n_out * sizeof *ones) != ERR_OK))
            die("no memory");
    }
    /* Where the device has a fused kernel for few rows, both are shown, and the share is that of
     * the faster one. */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool few = d->ops->few(d, &bench.w[0], rows[i]);
        double us = time_product(&bench, rows[i], false);
        double own_us = few ? time_product(&bench, rows[i], true) : us;
        double best = own_us < us ? own_us : us;

        /* The output matrix is only used for sampled rows, which are few. */
        if (bench.is_float && rows[i] > 512)
            break;
        printf("%-8s %4d rows: library %8.1f us", name, rows[i], us);
        if (few)
            printf(", fused with its neighbours %8.1f us", own_us);
        printf("; %4.1f%% of the time of a read, %4.0f TFLOP/s\n",
               100.0 * (double)bytes / n->options.read_limit / (best * 1e-6),
               2.0 * rows[i] * n_out * (double)n_in / best * 1e-6);
    }
    mem_free(ones);
}

/* The products of a layer and of the output matrix, one at a time, on random numbers. */
static void bench_kernel(struct bench *n)
{
    struct hf_config config;
    struct device *device;
    struct device_limits limits;

    if (hf_config_read(&config, n->settings.model, n->settings.hf_overrides) != ERR_OK ||
        device_choose_kernels(n->settings.kernels) != ERR_OK ||
        device_open(&device, n->settings.device, 0, n->settings.cpu_threads) != ERR_OK)
        die("cannot open the model");
    if (!device->is_gpu)
        die("kernel needs a GPU");
    limits = (struct device_limits){.n_tokens = KERNEL_ROWS_MAX,
                                    .n_seqs = 64,
                                    .pages_max = 64,
                                    .len_max = 1024,
                                    .page_tokens = 16,
                                    .n_tables = 1,
                                    .n_heads = config.n_heads,
                                    .head_dim = config.head_dim,
                                    .dim = config.dim,
                                    .ff_dim = config.ff_dim,
                                    .n_vocab = config.n_vocab,
                                    .codes = n->settings.quantization[0] != '\0'};
    if (device->ops->reserve(device, &limits) != ERR_OK)
        die("no memory");
    if (n->settings.gemm_table[0] != '\0')
        device->ops->read_products(device, n->settings.gemm_table, true);
    printf("%s on %s\n", n->settings.model, device->name);
    bench_matrix(n, device, "qkv", (config.n_heads + 2 * config.n_kv_heads) * config.head_dim,
                 config.dim, K_PRODUCT_PLAIN);
    bench_matrix(n, device, "o", config.dim, config.n_heads * config.head_dim, K_PRODUCT_RESIDUAL);
    bench_matrix(n, device, "gate_up", 2 * config.ff_dim, config.dim, K_PRODUCT_GATED);
    bench_matrix(n, device, "down", config.dim, config.ff_dim, K_PRODUCT_RESIDUAL);
    bench_matrix(n, device, "head", config.n_vocab, config.dim, K_PRODUCT_FLOAT);
    device_close(device);
}

/* --- the command -------------------------------------------------------------------------- */

/* The longest row of a table: a text's pages, or a state's, which can be more. */
static int most_pages(const struct model_shape *shape)
{
    int most = shape->max_model_len / shape->page_tokens + 1;

    for (int g = 0; g < shape->n_groups; g++) {
        if (most < shape->groups[g].n_state_pages)
            most = shape->groups[g].n_state_pages;
    }
    return most;
}

/* Allocate the batch and its tables, for the largest step that the model allows. */
static void allocate(struct bench *n)
{
    size_t tokens = (size_t)n->shape->max_num_batched_tokens;
    size_t seqs = (size_t)n->shape->max_num_seqs;

    n->seqs = (int)seqs;
    n->b.pages_max = most_pages(n->shape);
    n->b.token_ids = mem_zalloc_array(tokens, sizeof(int32_t));
    n->b.seq_start = mem_zalloc_array(seqs + 1, sizeof(int32_t));
    n->b.kv_len = mem_zalloc_array(seqs, sizeof(int32_t));
    n->b.page_ids = mem_zalloc_array((size_t)n->shape->n_groups * seqs * (size_t)n->b.pages_max,
                                     sizeof(int32_t));
    n->first_page = mem_zalloc_array(seqs, sizeof *n->first_page);
    n->adapters = mem_zalloc_array(seqs, sizeof *n->adapters);
    n->b.rows = mem_zalloc_array(seqs, sizeof *n->b.rows);
    n->ids = mem_zalloc_array(seqs, sizeof *n->ids);
    n->rows = mem_zalloc_array(seqs, sizeof *n->rows);
    n->steps = mem_zalloc_array(seqs, sizeof *n->steps);
    n->hidden = mem_zalloc_array(seqs, sizeof *n->hidden);
    if (n->b.token_ids == NULL || n->b.seq_start == NULL || n->b.kv_len == NULL ||
        n->b.page_ids == NULL || n->first_page == NULL || n->b.rows == NULL || n->ids == NULL ||
        n->rows == NULL || n->steps == NULL || n->hidden == NULL || n->adapters == NULL)
        die("no memory");
    for (int i = 0; i < n->seqs; i++)
        n->steps[i] = -1;
}

/* Take the bench's own options out of argv; the rest are the engine's settings. Returns their
 * number. */
static int take_options(struct bench_options *o, int argc, char **argv)
{
    static const struct {
        const char *name;
        size_t at;
    } numbers[] = {{"--num-prompts", offsetof(struct bench_options, num_prompts)},
                   {"--max-concurrency", offsetof(struct bench_options, max_concurrency)},
                   {"--input-len", offsetof(struct bench_options, input_len)},
                   {"--output-len", offsetof(struct bench_options, output_len)},
                   {"--lora-adapters", offsetof(struct bench_options, lora_adapters)},
                   {"--drafts", offsetof(struct bench_options, drafts)},
                   {"--lora-rank", offsetof(struct bench_options, lora_rank)}};
    int left = 1;

    for (int i = 1; i < argc; i++) {
        bool taken = false;

        /* Numbers are set by their offset in the options. */
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0] && !taken; k++) {
            if (strcmp(argv[i], numbers[k].name) != 0)
                continue;
            if (i + 1 == argc || atoi(argv[i + 1]) < 1)
                die("an option needs a number of at least 1");
            *(int *)((char *)o + numbers[k].at) = atoi(argv[++i]);
            taken = true;
        }
        if (!taken && strcmp(argv[i], "--read-limit") == 0 && i + 1 < argc) {
            o->read_limit = atof(argv[++i]) * 1e9;
            taken = true;
        }
        if (!taken)
            argv[left++] = argv[i];
    }
    if (o->read_limit <= 0.0)
        die("--read-limit needs GB/s");
    return left;
}

/* Is the method of speculative_config mtp? */
static bool wants_mtp(const struct settings *s)
{
    struct arena arena = {0};
    const struct json *o;
    char why[128];
    size_t len = strlen(s->speculative_config);
    bool wants = len > 0 &&
                 json_parse(&o, &arena, s->speculative_config, len, why, sizeof why) == ERR_OK &&
                 strcmp(json_get_text(o, "method", ""), "mtp") == 0;

    arena_reset(&arena);
    return wants;
}

/* The model, and its MTP layer before it, as the engine opens them. */
static void open_models(struct bench *n, struct model_options *o)
{
    struct model_options of_mtp = *o;

    of_mtp.is_mtp = of_mtp.pages_later = true;
    of_mtp.n_ranks = of_mtp.n_stages = of_mtp.n_nodes = 1;
    of_mtp.n_adapters = of_mtp.num_pages = 0;
    if (wants_mtp(&n->settings)) {
        if (model_open(&n->mtp, &of_mtp) != ERR_OK)
            die("cannot open the MTP layer");
        o->beside_bytes = model_shape(n->mtp)->page_bytes;
        o->n_taps = model_taps(n->mtp, &o->taps);
    }
    if (model_open(&n->m, o) != ERR_OK)
        die("cannot open the model");
    if (n->mtp != NULL && (model_join(n->mtp, n->m) != ERR_OK ||
                           model_add_pages(n->mtp, model_shape(n->m)->n_pages) != ERR_OK))
        die("cannot open the MTP layer");
}

/* The text of --help; docs/man is made from it. */
static void help(void)
{
    printf(
        "usage: quire bench latency|throughput|kernel --model FOLDER [options] [settings]\n"
        "       quire bench serve [--url URL] [options]; see quire bench serve --help\n\n"
        "latency     decodes of 1 to 256 sequences and the prefill of 8192 tokens\n"
        "throughput  many requests at once\n"
        "kernel      the matrix products of the model, one at a time\n"
        "serve       load on a running server, and the times that clients see\n\n"
        "  --num-prompts N      512    number of requests\n"
        "  --max-concurrency N  256    maximum concurrent requests\n"
        "  --input-len N        1024   tokens per prompt\n"
        "  --output-len N       1024   tokens per output\n"
        "  --drafts N           0      latency of steps that verify N drafts of each sequence,\n"
        "                              and with --speculative-config '{\"method\": \"mtp\"}' of\n"
        "                              those of the MTP layer\n"
        "  --lora-adapters N    0      latency with N adapters of noise on all layers, beside\n"
        "                              latency without: 1 and 64 sequences, in turn\n"
        "  --lora-rank N        16     their rank\n"
        "  --read-limit GB/s    4650   read bandwidth of the memory (an H200's)\n\n"
        "Settings are those of the engine (quire-engine --help). --load-format dummy needs only\n"
        "config.json, no weights; --quantization fp8 and --kv-cache-dtype fp8 choose formats.\n");
}

int quire_bench(int argc, char **argv)
{
    struct bench *bench = mem_zalloc_array(1, sizeof *bench);
    const char *what = argc > 1 ? argv[1] : "";
    bool exit_now = false;

    if (bench == NULL)
        die("no memory");
    if (strcmp(what, "serve") == 0) {
        mem_free(bench);
        return quire_bench_serve(argc - 1, argv + 1);
    }
    if (strcmp(what, "--help") == 0) {
        help();
        return 0;
    }
    if (strcmp(what, "latency") != 0 && strcmp(what, "throughput") != 0 &&
        strcmp(what, "kernel") != 0)
        die("the first argument must be latency, throughput, kernel or serve; see quire bench "
            "--help");
    bench->options = (struct bench_options){.num_prompts = 512,
                                            .max_concurrency = 256,
                                            .input_len = 1024,
                                            .output_len = 1024,
                                            .lora_rank = 16,
                                            .read_limit = 4.65e12};
    /* settings_read() gets the arguments without ours, and reads the others as quire-engine
     * does. */
    argc = take_options(&bench->options, argc - 1, argv + 1);
    if (settings_read(&bench->settings, 'E', argc, argv + 1, &exit_now) != ERR_OK ||
        log_set_level_text(bench->settings.log_level) != ERR_OK)
        return 2;
    if (!exit_now && bench->settings.model[0] == '\0')
        die("which model? --model FOLDER, a Hugging Face folder, or a GGUF file");
    if (!exit_now && strcmp(what, "kernel") == 0) {
        bench_kernel(bench);
    } else if (!exit_now) {
        struct model_options options = model_options_of(&bench->settings);

        options.n_adapters = bench->options.lora_adapters;
        options.adapter_rank = bench->options.lora_rank;
        open_models(bench, &options);
        bench->shape = model_shape(bench->m);
        bench->options.read_limit *= bench->settings.tensor_parallel_size; /* all GPUs read */
        allocate(bench);
        printf("%s, %s%s%s, KV %s, on %s\n", bench->settings.model,
               options.dummy_weights ? "random weights" : "weights of the folder",
               bench->settings.quantization[0] != '\0' ? ", " : "", bench->settings.quantization,
               bench->settings.kv_cache_dtype, bench->shape->device);
        if (strcmp(what, "latency") == 0)
            bench_latency(bench);
        else
            bench_throughput(bench);
        model_close(bench->mtp);
        model_close(bench->m);
    }
    settings_fini(&bench->settings);
    mem_free(bench);
    return 0;
}
