/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run of quire bench serve says: times of requests as means and percentiles, rates, the
 * requests that failed, as a table and as JSON with the fields of vLLM's benchmark. */
#ifndef QUIRE_TOOLS_FIGURES_H
#define QUIRE_TOOLS_FIGURES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "tools/stream.h"

#define FIGURES_PERCENTILES 8

enum figures_time {
    FIGURES_TTFT, /* to the first part */
    FIGURES_TPOT, /* per token after the first: (E2E - TTFT) / (tokens - 1) */
    FIGURES_ITL,  /* between two parts */
    FIGURES_E2EL, /* to the last part */
    FIGURES_TIMES
};

struct figures_options {
    double percentiles[FIGURES_PERCENTILES];
    int n_percentiles;
    double goals_ms[FIGURES_TIMES]; /* of a good request; 0: any. FIGURES_ITL is not one */
    bool has_goals;
    bool detailed; /* each request's times are in the JSON too */
};

/* What the caller knows. Texts are borrowed. */
struct figures_run {
    const char *backend, *model, *label;
    double rate, burstiness;
    int max_concurrency; /* 0: no limit */
    double seconds;      /* from the first request to the last answer */
    double cpu_s;        /* of this process meanwhile */
    double late_ms;      /* the longest time from "readable" to read */
    int n_at_once;       /* the most streams that were open */
};

struct figures {
    double *times_ms[FIGURES_TIMES]; /* [n_times], sorted */
    int n_times[FIGURES_TIMES];
    int n, n_succeeded, n_good;
    long long n_input, n_output; /* tokens of the requests that succeeded */
    uint64_t begun_us;           /* the first request */
    int peak;                    /* most parts of answers in a second */
};

/* Compute; false: no memory. results: [n]; input_lens: their expected lengths, for servers without
 * usage. */
bool figures_make(struct figures *f, const struct figures_options *o,
                  const struct stream_result *results, const int *input_lens, int n);
void figures_fini(struct figures *f);

void figures_print(const struct figures *f, const struct figures_options *o,
                   const struct figures_run *run, const struct stream_result *results);

/* The JSON of vLLM's benchmark_serving, and fields of our own: max_itl_ms, client_cpu,
 * client_late_ms. */
void figures_write(struct buf *out, const struct figures *f, const struct figures_options *o,
                   const struct figures_run *run, const struct stream_result *results);

#endif
