/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: steps keep the time between tokens within itl_target_ms, prompts do not starve, and what
 * that costs in throughput is known. Method: the scheduler and the cost model over a simulated
 * H200 (steps.h) with noise, one step ahead as the engine is: the work of docs/benchmarks.md with
 * 256 requests at once, 256 prompts that come together, and hours of mixed traffic of three
 * tenants. HOURS=24 is a whole day; TARGETS=1 shows what each target costs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/must.h"
#include "engine/sched.h"
#include "tests/tap.h"
#include "tests/unit/engine/steps.h"

#define N_SEQS      1200
#define PAGE_TOKENS 16
#define LEN_MAX     65536
#define N_AT_ONCE   256

static const struct trial_limits limits = {.max_num_seqs = N_AT_ONCE,
                                           .max_num_batched_tokens = 8192,
                                           .max_model_len = LEN_MAX};

/* Values, of which percentiles are wanted. */
struct values {
    double *at;
    size_t n, cap;
};

struct flight {
    struct seq *seqs[N_AT_ONCE];
    int counts[N_AT_ONCE];
    bool samples[N_AT_ONCE];
    int n, n_decodes;
    struct cost_step load;
};

struct sim {
    struct seq_pool pool;
    struct pages *pages;
    struct sched sched;
    struct cost cost;
    struct steps_device device;
    double now_us;
    uint64_t arrivals, random;
    double arrived_us[N_SEQS], last_us[N_SEQS];
    struct flight flights[2];
    int n_steps, n_ended;
    int n_done, n_asked;
    uint64_t n_tokens;
    struct values itl_ms, ttft_ms, errors;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void values_add(struct values *v, double value)
{
    if (v->n == v->cap) {
        v->cap = v->cap > 0 ? 2 * v->cap : 1024;
        v->at = mem_realloc(v->at, v->cap * sizeof *v->at);
        if (v->at == NULL)
            exit(1);
    }
    v->at[v->n++] = value;
}

/* Sorts. */
static double values_at(struct values *v, double share)
{
    if (v->n == 0)
        return 0.0;
    qsort(v->at, v->n, sizeof *v->at, compare);
    return v->at[(size_t)((double)(v->n - 1) * share)];
}

static double values_share_above(const struct values *v, double limit)
{
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++)
        n += v->at[i] > limit;
    return v->n > 0 ? (double)n / (double)v->n : 0.0;
}

static void sim_open(struct sim *w, const struct steps_device *device, int target_ms)
{
    struct sched_limits of_sched = {.max_num_seqs = N_AT_ONCE,
                                    .max_num_batched_tokens = 8192,
                                    .long_prefill_tokens = 4096,
                                    .page_tokens = PAGE_TOKENS,
                                    .n_groups = 1,
                                    .groups = steps_groups,
                                    .cost = &w->cost,
                                    .itl_target_ms = target_ms};
    struct seq_pool_limits of_seqs = {.n_seqs = N_SEQS,
                                      .max_model_len = LEN_MAX,
                                      .page_tokens = PAGE_TOKENS,
                                      .n_vocab = 512,
                                      .n_groups = 1};

    memset(w, 0, sizeof *w);
    w->device = *device;
    w->random = 11;
    cost_init(&w->cost, &steps_shape);
    steps_try(&w->cost, &w->device, &limits);
    char names[2][WIRE_TENANT_BYTES] = {"a", "b"}; /* tenants 1 and 2; 0 is there */

    if (pages_open(&w->pages, 56000, PAGE_TOKENS) != ERR_OK ||
        sched_init(&w->sched, &of_sched, w->pages) != ERR_OK ||
        seq_pool_init(&w->pool, &of_seqs) != ERR_OK ||
        tenants_find(&w->sched.tenants, names[0]) != 1 ||
        tenants_find(&w->sched.tenants, names[1]) != 2)
        exit(1);
}

static void sim_close(struct sim *w)
{
    mem_free(w->sched.running);
    mem_free(w->sched.planned);
    tables_fini(&w->sched.tables);
    mem_free(w->pool.seqs);
    mem_free(w->itl_ms.at);
    mem_free(w->ttft_ms.at);
    mem_free(w->errors.at);
    pages_close(w->pages);
}

static bool sim_ask(struct sim *w, int tenant, int n, int n_new)
{
    struct seq *q = seq_claim(&w->pool);

    if (q == NULL)
        return false;
    for (int i = 0; i < n; i++)
        q->tokens[i] = i % 500;
    q->n_tokens = q->n_prompt = n;
    q->tokens_max = n + n_new;
    q->arrival = w->arrivals++;
    q->tenant_idx = tenant;
    w->arrived_us[q - w->pool.seqs] = w->now_us;
    sched_add(&w->sched, q);
    w->n_asked++;
    return true;
}

/* A step ends: its tokens are told. */
static void sim_end(struct sim *w, struct flight *f)
{
    for (int i = 0; i < f->n; i++) {
        struct seq *q = f->seqs[i];
        size_t at;

        if (q == NULL)
            continue;
        at = (size_t)(q - w->pool.seqs);
        sched_advance(&w->sched, q, f->counts[i], NULL, NULL);
        if (!f->samples[i])
            continue;
        q->n_pending--;
        if (q->n_tokens == q->n_prompt)
            values_add(&w->ttft_ms, (w->now_us - w->arrived_us[at]) * 1e-3);
        else
            values_add(&w->itl_ms, (w->now_us - w->last_us[at]) * 1e-3);
        w->last_us[at] = w->now_us;
        q->tokens[q->n_tokens++] = 1;
        w->n_tokens++;
        if (q->n_tokens < q->tokens_max)
            continue;
        for (int k = 0; k < 2; k++) {
            for (int r = 0; r < w->flights[k].n; r++)
                w->flights[k].seqs[r] = w->flights[k].seqs[r] == q ? NULL : w->flights[k].seqs[r];
        }
        sched_remove(&w->sched, q);
        seq_release(&w->pool, q);
        w->n_done++;
    }
    f->n = 0;
}

/* The device computes the oldest step to its end. */
static void sim_compute(struct sim *w)
{
    struct flight *f = &w->flights[w->n_ended++ % 2];
    double us = steps_us(&w->device, &f->load, w->now_us);

    w->now_us += us;
    values_add(&w->errors, cost_learn(&w->cost, &f->load, us));
    sim_end(w, f);
}

/* Plan and begin a step, and end the one before it. False: there is nothing to compute. */
static bool sim_step(struct sim *w)
{
    struct sched *s = &w->sched;
    struct flight *f = &w->flights[w->n_steps % 2];

    while (w->n_steps != w->n_ended && !sched_has_room(s))
        sim_compute(w);
    sched_plan(s);
    f->n = s->n_planned;
    f->load = s->load;
    for (int i = 0; i < s->n_planned; i++) {
        struct seq *q = s->planned[i];

        f->seqs[i] = q;
        f->counts[i] = q->n_planned;
        f->samples[i] = q->n_computed + q->n_ahead + q->n_planned == q->n_tokens + q->n_pending;
        q->n_pending += f->samples[i];
    }
    if (s->n_planned > 0)
        sched_begin(s);
    w->n_steps += s->n_planned > 0;
    if (s->n_planned == 0 && w->n_steps == w->n_ended)
        return false;
    while (w->n_steps - w->n_ended > (s->n_planned > 0))
        sim_compute(w);
    return true;
}

/* Lengths of requests. */
enum work { WORK_1024_256, WORK_CHATS };

static int skewed(uint64_t *state, double median, double deviation)
{
    double n = median * exp(deviation * steps_normal(state));

    return n < 4.0 ? 4 : n > 1024.0 ? 1024 : (int)n;
}

static void sim_ask_work(struct sim *w, enum work work)
{
    switch (work) {
    case WORK_1024_256: (void)sim_ask(w, 0, 1024, 256); break;
    case WORK_CHATS: {
        int n = skewed(&w->random, 100.0, 1.35);

        (void)sim_ask(w, 0, n, skewed(&w->random, 145.0, 0.95));
        break;
    }
    }
}

/* What a run of n requests, 256 at once, gives. */
struct outcome {
    double tok_s, p50, p90, p99, most, ttft50, ttft99, error90;
};

static struct outcome sim_closed(const struct steps_device *device, enum work work, int target_ms,
                                 int n)
{
    static struct sim w;
    struct outcome out;

    sim_open(&w, device, target_ms);
    while (w.n_done < n) {
        while (w.n_asked < n && w.n_asked - w.n_done < N_AT_ONCE)
            sim_ask_work(&w, work);
        (void)sim_step(&w);
    }
    out = (struct outcome){.tok_s = (double)w.n_tokens / (w.now_us * 1e-6),
                           .p50 = values_at(&w.itl_ms, 0.5),
                           .p90 = values_at(&w.itl_ms, 0.9),
                           .p99 = values_at(&w.itl_ms, 0.99),
                           .most = values_at(&w.itl_ms, 1.0),
                           .ttft50 = values_at(&w.ttft_ms, 0.5),
                           .ttft99 = values_at(&w.ttft_ms, 0.99),
                           .error90 = values_at(&w.errors, 0.9)};
    sim_close(&w);
    return out;
}

/* The table by which the default was chosen. */
static void show_targets(const char *name, const struct steps_device *device, enum work work, int n)
{
    static const int targets[] = {0, 10, 15, 20, 25, 30, 40, 60, 100, -1};

    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        struct outcome o = sim_closed(device, work, targets[i], n);

        printf("# %s, target %d ms: %.0f tok/s, ITL %.1f / %.1f / %.1f / %.1f ms (p50, p90, p99, "
               "most), TTFT %.0f / %.0f ms (p50, p99), 90%% of steps foretold within %.1f%%\n",
               name, targets[i], o.tok_s, o.p50, o.p90, o.p99, o.most, o.ttft50, o.ttft99,
               100.0 * o.error90);
    }
}

/* 256 at once, with the default and without a target. */
static void test_closed(const char *name, const struct steps_device *device, enum work work,
                        double target_ms)
{
    struct outcome free = sim_closed(device, work, 0, 2048);
    struct outcome even = sim_closed(device, work, -1, 2048);

    ok(even.p99 <= target_ms && even.most <= 1.25 * target_ms,
       "%s: ITL p99 %.1f ms, the largest gap %.1f; without a target %.1f and %.1f", name, even.p99,
       even.most, free.p99, free.most);
    ok(even.tok_s > 0.93 * free.tok_s, "at %.0f output tok/s; without a target %.0f (%+.1f%%)",
       even.tok_s, free.tok_s, 100.0 * (even.tok_s / free.tok_s - 1.0));
    ok(even.error90 < 0.10, "90%% of its steps are foretold within %.1f%%", 100.0 * even.error90);
}

/* With few prompts at a time their tokens are spread over the steps instead of filling some of them
 * up to the target, and that costs nothing. */
static void test_calm(const char *name, const struct steps_device *device)
{
    struct outcome free = sim_closed(device, WORK_CHATS, 0, 8192);
    struct outcome even = sim_closed(device, WORK_CHATS, -1, 8192);

    ok(even.p90 <= 20.0 && even.p99 <= 32.0,
       "%s: ITL p90 %.1f and p99 %.1f ms; without a target %.1f and %.1f", name, even.p90, even.p99,
       free.p90, free.p99);
    ok(even.tok_s > 0.99 * free.tok_s && even.ttft50 < 160.0,
       "at %.0f output tok/s, first tokens after %.0f ms (p50); without a target %.0f, %.0f",
       even.tok_s, even.ttft50, free.tok_s, free.ttft50);
}

/* 256 prompts that come together: the first decode at the target while the others are computed. */
static void test_burst(void)
{
    static struct sim w;
    double last_ms[2], even_ms = 0.0;

    for (int i = 0; i < 2; i++) {
        sim_open(&w, &steps_h200_bf16, i == 0 ? 0 : -1);
        for (int k = 0; k < N_AT_ONCE; k++)
            (void)sim_ask(&w, 0, 1024, 600);
        while (w.ttft_ms.n < N_AT_ONCE)
            (void)sim_step(&w);
        last_ms[i] = values_at(&w.ttft_ms, 1.0);
        even_ms = values_at(&w.itl_ms, 0.99);
        if (i == 1)
            ok(w.itl_ms.n > 10000 && even_ms < 41.0,
               "256 prompts at once: %zu tokens come before the last first one, p99 %.1f ms",
               w.itl_ms.n, even_ms);
        sim_close(&w);
    }
    ok(last_ms[1] < 1.6 * last_ms[0],
       "the last first token comes after %.1f s; without a target "
       "and with %.1f times fewer tokens meanwhile after %.1f",
       last_ms[1] * 1e-3, 200.0 / even_ms, last_ms[0] * 1e-3);
}

/* Decodes that take longer than the target by themselves leave prompts their share. */
static void test_share(void)
{
    static struct sim w;
    double from_us;
    uint64_t n_before;
    const struct seq *prompt;

    sim_open(&w, &steps_h200_bf16, 5);
    for (int k = 0; k < 100; k++)
        (void)sim_ask(&w, 0, 6000, 4000);
    while (w.ttft_ms.n < 100)
        (void)sim_step(&w);
    from_us = w.now_us;
    n_before = w.itl_ms.n;
    (void)sim_ask(&w, 0, 30000, 4);
    prompt = &w.pool.seqs[0];
    for (int i = 0; i < N_SEQS; i++) {
        if (w.pool.seqs[i].state != SEQ_FREE && w.pool.seqs[i].n_prompt == 30000)
            prompt = &w.pool.seqs[i];
    }
    while (prompt->n_tokens == prompt->n_prompt && w.now_us < from_us + 60e6)
        (void)sim_step(&w);
    ok(prompt->n_tokens > prompt->n_prompt,
       "decodes that are longer than the target: a prompt of 30000 tokens is computed in %.1f s, "
       "beside %.0f tok/s",
       (w.now_us - from_us) * 1e-6, (double)(w.itl_ms.n - n_before) / (w.now_us - from_us) * 1e6);
    sim_close(&w);
}

/* Long contexts: as many run as decode within the target with their prompts, the others wait, and
 * all are served. One of higher priority does not wait. */
static void test_admission(void)
{
    static struct sim w;
    struct seq *urgent = NULL;
    double late, limit_ms;
    int most = 0;

    sim_open(&w, &steps_h200_bf16, 20);
    for (int k = 0; k < 150; k++)
        (void)sim_ask(&w, 0, 3000, 3000);
    while (w.n_done < 20) {
        (void)sim_step(&w);
        most = w.sched.n_running > most ? w.sched.n_running : most;
    }
    ok(most > 50 && most < 120 && sched_n_waiting(&w.sched) > 0,
       "of 150 with 3000 to 6000 tokens each at most %d run at once", most);
    (void)sim_ask(&w, 0, 3000, 3000);
    for (int i = 0; i < N_SEQS; i++) {
        if (w.pool.seqs[i].state == SEQ_WAITING && w.pool.seqs[i].arrival + 1 == w.arrivals)
            urgent = &w.pool.seqs[i];
    }
    must(urgent != NULL);
    sched_remove(&w.sched, urgent);
    urgent->request.priority = -1;
    sched_add(&w.sched, urgent);
    for (int i = 0; i < 12; i++) /* some steps, until a prompt that has begun is computed */
        (void)sim_step(&w);
    ok(urgent->state == SEQ_RUNNING, "one of higher priority runs at once");
    while (w.n_done < 151 && w.now_us < 1e9)
        (void)sim_step(&w);
    limit_ms = 25.0; /* outputs grow after the admission */
    late = values_share_above(&w.itl_ms, limit_ms);
    ok(w.n_done == 151 && late < 0.02, "all end, and %.2f%% of tokens are later than %.0f ms",
       100.0 * late, limit_ms);
    sim_close(&w);
}

/* --- mixed traffic ------------------------------------------------------------------------ */

/* A request of the day: chats, documents with short answers, long answers; of three tenants. */
static void sim_ask_mixed(struct sim *w)
{
    double kind = steps_uniform(&w->random);
    int tenant = (int)(steps_uniform(&w->random) * 3.0);
    int n = skewed(&w->random, 150.0, 1.2), n_new = skewed(&w->random, 145.0, 0.95);

    if (kind < 0.04) {
        n = 4000 + (int)(steps_uniform(&w->random) * 36000.0);
        n_new = 20 + (int)(steps_uniform(&w->random) * 200.0);
    } else if (kind < 0.15) {
        n_new = 500 + (int)(steps_uniform(&w->random) * 1500.0);
    }
    (void)sim_ask(w, tenant, n, n_new);
}

/* Requests a second that a full server serves. */
static double mixed_capacity(void)
{
    static struct sim w;
    double from_us = 0.0, rate;
    int n_from = 0;

    sim_open(&w, &steps_h200_bf16, -1);
    while (w.n_done < 24000) {
        while (w.n_asked - w.n_done < N_AT_ONCE)
            sim_ask_mixed(&w);
        (void)sim_step(&w);
        if (w.n_done < 4000) {
            from_us = w.now_us;
            n_from = w.n_done;
        }
    }
    rate = (w.n_done - n_from) / (w.now_us - from_us) * 1e6;
    sim_close(&w);
    return rate;
}

/* Hours in which the rate goes up and down between a third and nine tenths of the capacity. */
static void test_mixed(void)
{
    static struct sim w;
    const char *hours = getenv("HOURS");
    double end_us = (hours != NULL ? strtod(hours, NULL) : 0.5) * 3600e6, next_us = 0.0;
    double capacity = mixed_capacity(), late, target_ms, longest, most;

    sim_open(&w, &steps_h200_bf16, -1);
    while (w.now_us < end_us) {
        while (next_us <= w.now_us) {
            double load = 0.62 + 0.27 * sin(next_us * 1e-6 / 200.0);

            sim_ask_mixed(&w);
            next_us -= log(1.0 - steps_uniform(&w.random)) / (capacity * load) * 1e6;
        }
        if (!sim_step(&w))
            w.now_us = next_us; /* idle until the next request */
    }
    target_ms =
        cost_target_us(&w.cost, -1, 1) * 1e-3 * (1.0 + 3.0 * w.cost.error); /* without the margin */
    late = values_share_above(&w.itl_ms, target_ms);
    longest = values_at(&w.ttft_ms, 1.0);
    most = values_at(&w.itl_ms, 1.0);
    ok(late < 0.01,
       "%.1f h of mixed traffic, 33%% to 89%% of %.1f requests a second: %.2f%% of "
       "%zu tokens later than %.1f ms (p50 %.1f, most %.1f)",
       end_us / 3600e6, capacity, 100.0 * late, w.itl_ms.n, target_ms, values_at(&w.itl_ms, 0.5),
       most);
    ok(longest < 30000.0,
       "no prompt starves: first tokens after %.0f / %.0f / %.0f ms (p50, p99, "
       "most)",
       values_at(&w.ttft_ms, 0.5), values_at(&w.ttft_ms, 0.99), longest);
    ok(w.n_asked - w.n_done < 300, "%d requests, %d of them still there", w.n_asked,
       w.n_asked - w.n_done);
    ok(values_at(&w.errors, 0.9) < 0.10, "90%% of steps foretold within %.1f%%",
       100.0 * values_at(&w.errors, 0.9));
    sim_close(&w);
}

int main(void)
{
    if (getenv("TARGETS") != NULL) {
        show_targets("bf16, 1024/256", &steps_h200_bf16, WORK_1024_256, 4096);
        show_targets("bf16, chats", &steps_h200_bf16, WORK_CHATS, 8192);
        show_targets("fp8, 1024/256", &steps_h200_fp8, WORK_1024_256, 4096);
        show_targets("fp8, chats", &steps_h200_fp8, WORK_CHATS, 8192);
    }
    test_closed("bf16, 1024 in and 256 out", &steps_h200_bf16, WORK_1024_256, 41.0);
    test_closed("bf16, chats", &steps_h200_bf16, WORK_CHATS, 41.0);
    test_closed("fp8, 1024 in and 256 out", &steps_h200_fp8, WORK_1024_256, 41.0);
    test_closed("fp8, chats", &steps_h200_fp8, WORK_CHATS, 41.0);
    test_calm("bf16, chats", &steps_h200_bf16);
    test_calm("fp8, chats", &steps_h200_fp8);
    test_burst();
    test_share();
    test_admission();
    test_mixed();
    return tap_done();
}
