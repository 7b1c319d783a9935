/* SPDX-License-Identifier: Apache-2.0
 *
 * Percentiles are interpolated between the two nearest values, as numpy does it and so vLLM's
 * benchmark. */
#include "tools/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/mem.h"

#define FIGURES_REASONS 8 /* that are printed */

static const char *const figures_names[FIGURES_TIMES] = {"ttft", "tpot", "itl", "e2el"};
static const char *const figures_titles[FIGURES_TIMES] = {"TTFT", "TPOT", "ITL", "E2E"};

/* --- computing ---------------------------------------------------------------------------- */

static int figures_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static int figures_n_output(const struct stream_result *r)
{
    return r->n_output >= 0 ? r->n_output : r->n_gaps + 1;
}

/* The time of one kind of a request, in ms; -1: it has none. */
static double figures_of(const struct stream_result *r, enum figures_time time)
{
    int n = figures_n_output(r);

    switch (time) {
    case FIGURES_TTFT: return (double)(r->first_us - r->sent_us) * 1e-3;
    case FIGURES_TPOT: return n > 1 ? (double)(r->last_us - r->first_us) * 1e-3 / (n - 1) : -1.0;
    case FIGURES_E2EL: return (double)(r->last_us - r->sent_us) * 1e-3;
    case FIGURES_ITL:
    case FIGURES_TIMES: break;
    }
    return -1.0;
}

static bool figures_is_good(const struct figures_options *o, const struct stream_result *r)
{
    for (int i = 0; i < FIGURES_TIMES; i++) {
        if (o->goals_ms[i] > 0.0 && figures_of(r, (enum figures_time)i) > o->goals_ms[i])
            return false;
    }
    return true;
}

static void figures_add(struct figures *f, const struct stream_result *r)
{
    for (int i = 0; i < FIGURES_TIMES; i++) {
        double ms = figures_of(r, (enum figures_time)i);

        if (ms >= 0.0)
            f->times_ms[i][f->n_times[i]++] = ms;
    }
    for (int i = 0; i < r->n_gaps; i++)
        f->times_ms[FIGURES_ITL][f->n_times[FIGURES_ITL]++] = (double)r->gaps_ms[i];
}

/* Count the parts of answers in each second of the run, for the fullest one. */
static bool figures_count(struct figures *f, const struct stream_result *results)
{
    uint64_t ended_us = 0;
    size_t n_seconds;
    int *counts;

    f->begun_us = UINT64_MAX;
    for (int i = 0; i < f->n; i++) {
        if (results[i].succeeded && results[i].sent_us < f->begun_us)
            f->begun_us = results[i].sent_us;
        if (results[i].succeeded && results[i].last_us > ended_us)
            ended_us = results[i].last_us;
    }
    if (f->n_succeeded == 0)
        return true;
    n_seconds = (size_t)((ended_us - f->begun_us) / 1000000u) + 2; /* sums of gaps are rounded */
    counts = mem_zalloc_array(n_seconds, sizeof *counts);
    for (int i = 0; i < f->n && counts != NULL; i++) {
        double at_ms = (double)(results[i].first_us - f->begun_us) * 1e-3;

        for (int k = 0; k <= results[i].n_gaps && results[i].succeeded; k++) {
            size_t second = (size_t)(at_ms * 1e-3);

            if (second < n_seconds && ++counts[second] > f->peak)
                f->peak = counts[second];
            at_ms += k < results[i].n_gaps ? (double)results[i].gaps_ms[k] : 0.0;
        }
    }
    mem_free(counts);
    return counts != NULL;
}

bool figures_make(struct figures *f, const struct figures_options *o,
                  const struct stream_result *results, const int *input_lens, int n)
{
    size_t n_gaps = 0;

    *f = (struct figures){.n = n};
    for (int i = 0; i < n; i++)
        n_gaps += (size_t)results[i].n_gaps;
    for (int i = 0; i < FIGURES_TIMES; i++) {
        f->times_ms[i] =
            mem_zalloc_array(i == FIGURES_ITL ? n_gaps + 1 : (size_t)n, sizeof *f->times_ms[i]);
        if (f->times_ms[i] == NULL)
            return false;
    }
    for (int i = 0; i < n; i++) {
        const struct stream_result *r = &results[i];

        if (!r->succeeded)
            continue;
        f->n_succeeded++;
        f->n_input += r->n_input >= 0 ? r->n_input : input_lens[i];
        f->n_output += figures_n_output(r);
        f->n_good += figures_is_good(o, r);
        figures_add(f, r);
    }
    for (int i = 0; i < FIGURES_TIMES; i++)
        qsort(f->times_ms[i], (size_t)f->n_times[i], sizeof(double), figures_compare);
    return figures_count(f, results);
}

void figures_fini(struct figures *f)
{
    for (int i = 0; i < FIGURES_TIMES; i++) {
        mem_free(f->times_ms[i]);
        f->times_ms[i] = NULL;
    }
}

static double figures_percentile(const struct figures *f, enum figures_time time, double percent)
{
    int n = f->n_times[time];
    double place = percent / 100.0 * (n - 1);
    int below = (int)floor(place);

    if (n == 0)
        return 0.0;
    if (below >= n - 1)
        return f->times_ms[time][n - 1];
    return f->times_ms[time][below] +
           (place - below) * (f->times_ms[time][below + 1] - f->times_ms[time][below]);
}

static double figures_mean(const struct figures *f, enum figures_time time)
{
    double sum = 0.0;

    for (int i = 0; i < f->n_times[time]; i++)
        sum += f->times_ms[time][i];
    return f->n_times[time] > 0 ? sum / f->n_times[time] : 0.0;
}

static double figures_deviation(const struct figures *f, enum figures_time time)
{
    double mean = figures_mean(f, time), sum = 0.0;

    for (int i = 0; i < f->n_times[time]; i++)
        sum += (f->times_ms[time][i] - mean) * (f->times_ms[time][i] - mean);
    return f->n_times[time] > 0 ? sqrt(sum / f->n_times[time]) : 0.0;
}

/* --- the table ---------------------------------------------------------------------------- */

static void figures_print_time(const struct figures *f, const struct figures_options *o,
                               enum figures_time time)
{
    printf("%-6s %9.2f %9.2f", figures_titles[time], figures_mean(f, time),
           figures_percentile(f, time, 50.0));
    for (int i = 0; i < o->n_percentiles; i++)
        printf(" %9.2f", figures_percentile(f, time, o->percentiles[i]));
    printf(" %9.2f\n", figures_percentile(f, time, 100.0));
}

/* The reasons of failed requests, each with the number of its requests. */
static void figures_print_failures(const struct stream_result *results, int n)
{
    const char *seen[FIGURES_REASONS];
    int n_seen = 0;

    for (int i = 0; i < n && n_seen < FIGURES_REASONS; i++) {
        int same = 0;
        bool known = results[i].succeeded;

        for (int k = 0; k < n_seen && !known; k++)
            known = strcmp(seen[k], results[i].why) == 0;
        if (known)
            continue;
        for (int k = i; k < n; k++)
            same += !results[k].succeeded && strcmp(results[k].why, results[i].why) == 0;
        printf("failed      %d: %s\n", same, results[i].why);
        seen[n_seen++] = results[i].why;
    }
}

static void figures_print_goals(const struct figures *f, const struct figures_options *o,
                                double seconds)
{
    printf("goodput     %.2f requests a second (", (double)f->n_good / seconds);
    for (int i = 0, n = 0; i < FIGURES_TIMES; i++) {
        if (o->goals_ms[i] > 0.0)
            printf("%s%s at most %g ms", n++ > 0 ? ", " : "", figures_titles[i], o->goals_ms[i]);
    }
    printf("), %.1f%% of all\n", 100.0 * f->n_good / (f->n > 0 ? f->n : 1));
}

void figures_print(const struct figures *f, const struct figures_options *o,
                   const struct figures_run *run, const struct stream_result *results)
{
    double s = run->seconds > 0.0 ? run->seconds : 1e-9;

    printf("requests    %d ended, %d failed, in %.2f s: %.2f a second, at most %d at once\n",
           f->n_succeeded, f->n - f->n_succeeded, run->seconds, f->n_succeeded / s, run->n_at_once);
    printf("tokens      %lld in, %lld out: output %.1f tok/s, total %.1f tok/s\n", f->n_input,
           f->n_output, (double)f->n_output / s, (double)(f->n_input + f->n_output) / s);
    if (o->has_goals)
        figures_print_goals(f, o, s);
    printf("%-6s %9s %9s", "ms", "mean", "median");
    for (int i = 0; i < o->n_percentiles; i++) {
        char title[16];

        (void)snprintf(title, sizeof title, "p%g", o->percentiles[i]);
        printf(" %9s", title);
    }
    printf(" %9s\n", "max");
    for (int i = 0; i < FIGURES_TIMES; i++)
        figures_print_time(f, o, (enum figures_time)i);
    printf("largest gap %.2f ms\n", figures_percentile(f, FIGURES_ITL, 100.0));
    printf("this client %.1f%% of a core; it read at most %.2f ms late\n", 100.0 * run->cpu_s / s,
           run->late_ms);
    figures_print_failures(results, f->n);
}

/* --- JSON --------------------------------------------------------------------------------- */

static void figures_real(struct buf *out, const char *name, double value)
{
    buf_printf(out, ", \"%s\": ", name);
    json_write_real(out, value);
}

static void figures_text(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, ", \"%s\": ", name);
    buf_add_json_string(out, value, strlen(value));
}

static void figures_write_time(struct buf *out, const struct figures *f,
                               const struct figures_options *o, enum figures_time time)
{
    char name[40];

    (void)snprintf(name, sizeof name, "mean_%s_ms", figures_names[time]);
    figures_real(out, name, figures_mean(f, time));
    (void)snprintf(name, sizeof name, "median_%s_ms", figures_names[time]);
    figures_real(out, name, figures_percentile(f, time, 50.0));
    (void)snprintf(name, sizeof name, "std_%s_ms", figures_names[time]);
    figures_real(out, name, figures_deviation(f, time));
    for (int i = 0; i < o->n_percentiles; i++) {
        (void)snprintf(name, sizeof name, "p%g_%s_ms", o->percentiles[i], figures_names[time]);
        figures_real(out, name, figures_percentile(f, time, o->percentiles[i]));
    }
}

/* One member of the details: a list with a value per request. */
static void figures_write_list(struct buf *out, const struct figures *f,
                               const struct stream_result *results, const char *name)
{
    buf_printf(out, ", \"%s\": [", name);
    for (int i = 0; i < f->n; i++) {
        const struct stream_result *r = &results[i];

        buf_add_text(out, i > 0 ? ", " : "");
        if (strcmp(name, "ttfts") == 0)
            json_write_real(out, r->succeeded ? figures_of(r, FIGURES_TTFT) * 1e-3 : 0.0);
        else if (strcmp(name, "start_times") == 0)
            json_write_real(out, (double)r->sent_us * 1e-6);
        else if (strcmp(name, "input_lens") == 0)
            buf_printf(out, "%d", r->n_input > 0 ? r->n_input : 0);
        else if (strcmp(name, "output_lens") == 0)
            buf_printf(out, "%d", r->succeeded ? figures_n_output(r) : 0);
        else if (strcmp(name, "errors") == 0)
            buf_add_json_string(out, r->why, strlen(r->why));
        else
            buf_add_byte(out, '[');
        for (int k = 0; k < r->n_gaps && strcmp(name, "itls") == 0; k++)
            buf_printf(out, "%s%.6f", k > 0 ? ", " : "", (double)r->gaps_ms[k] * 1e-3);
        buf_add_text(out, strcmp(name, "itls") == 0 ? "]" : "");
    }
    buf_add_byte(out, ']');
}

/* The fields that say what was run. */
static void figures_write_run(struct buf *out, const struct figures *f,
                              const struct figures_run *run)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm parts;

    if (localtime_r(&now, &parts) != NULL)
        (void)strftime(date, sizeof date, "%Y%m%d-%H%M%S", &parts);
    buf_printf(out, "{\"date\": \"%s\"", date);
    figures_text(out, "endpoint_type", run->backend);
    figures_text(out, "backend", run->backend);
    if (run->label != NULL)
        figures_text(out, "label", run->label);
    else
        buf_add_text(out, ", \"label\": null");
    figures_text(out, "model_id", run->model);
    figures_text(out, "tokenizer_id", run->model);
    buf_printf(out, ", \"num_prompts\": %d", f->n);
    if (isfinite(run->rate))
        figures_real(out, "request_rate", run->rate);
    else
        buf_add_text(out, ", \"request_rate\": \"inf\"");
    figures_real(out, "burstiness", run->burstiness);
    if (run->max_concurrency > 0)
        buf_printf(out, ", \"max_concurrency\": %d", run->max_concurrency);
    else
        buf_add_text(out, ", \"max_concurrency\": null");
}

void figures_write(struct buf *out, const struct figures *f, const struct figures_options *o,
                   const struct figures_run *run, const struct stream_result *results)
{
    static const char *const details[] = {"input_lens", "output_lens", "ttfts",
                                          "itls",       "start_times", "errors"};
    double s = run->seconds > 0.0 ? run->seconds : 1e-9;

    figures_write_run(out, f, run);
    figures_real(out, "duration", run->seconds);
    buf_printf(out, ", \"completed\": %d, \"failed\": %d", f->n_succeeded, f->n - f->n_succeeded);
    buf_printf(out, ", \"total_input_tokens\": %lld, \"total_output_tokens\": %lld", f->n_input,
               f->n_output);
    figures_real(out, "request_throughput", f->n_succeeded / s);
    if (o->has_goals)
        figures_real(out, "request_goodput", f->n_good / s);
    else
        buf_add_text(out, ", \"request_goodput\": null");
    figures_real(out, "output_throughput", (double)f->n_output / s);
    figures_real(out, "total_token_throughput", (double)(f->n_input + f->n_output) / s);
    buf_printf(out, ", \"max_output_tokens_per_s\": %d.0, \"max_concurrent_requests\": %d", f->peak,
               run->n_at_once);
    for (int i = 0; i < FIGURES_TIMES; i++)
        figures_write_time(out, f, o, (enum figures_time)i);
    figures_real(out, "max_itl_ms", figures_percentile(f, FIGURES_ITL, 100.0));
    figures_real(out, "client_cpu", run->cpu_s / s);
    figures_real(out, "client_late_ms", run->late_ms);
    for (size_t i = 0; i < sizeof details / sizeof details[0] && o->detailed; i++)
        figures_write_list(out, f, results, details[i]);
    buf_add_text(out, "}\n");
}
