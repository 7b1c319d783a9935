/* SPDX-License-Identifier: Apache-2.0
 *
 * The statistics page: written by the engine alone, mapped read-only by all fronts and observers.
 *
 * Every counter is atomic, but there is no snapshot of a step: a reader may see some counters
 * before and others after it. metric.def lists the metrics. */
#ifndef QUIRE_IPC_WIRE_STATS_H
#define QUIRE_IPC_WIRE_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/wire.h"

#define WIRE_TENANTS 128 /* tenants with counters of their own; further ones share the first row */
#define WIRE_RANKS   32
#define WIRE_SPACES  256 /* namespaces with counters of their own: those used last */

/* Upper bounds of vLLM's buckets; the last bucket, +Inf, is implied. */
#define WIRE_BUCKETS_TTFT                                                                       \
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, \
        20.0, 40.0, 80.0, 160.0, 640.0, 2560.0
#define WIRE_BUCKETS_ITL                                                                           \
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, \
        40.0, 80.0
#define WIRE_BUCKETS_LONG                                                                    \
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, \
        240.0, 480.0, 960.0, 1920.0, 7680.0
#define WIRE_BUCKETS_TOKENS                                                                \
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, \
        20000.0, 50000.0, 100000.0, 200000.0
#define WIRE_BUCKETS_STEP \
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0

#define WIRE_BUCKETS_N     1.0, 2.0, 5.0, 10.0, 20.0

#define WIRE_BUCKETS_ERROR 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0

#define WIRE_BUCKETS_FIRST \
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0, 4096.0

#define WIRE_BUCKETS_MAX  24
#define WIRE_CONFIG_BYTES 512

enum wire_metric {
#define COUNTER(id, name, labels, help) METRIC_##id,
#define GAUGE(id, name, labels, help)   METRIC_##id,
#define HISTOGRAM(id, name, help, buckets)
#include "ipc/metric.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    METRIC_COUNT
};

enum wire_histogram_id {
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, buckets) HISTOGRAM_##id,
#include "ipc/metric.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    HISTOGRAM_COUNT
};

struct wire_histogram {
    _Atomic uint64_t buckets[WIRE_BUCKETS_MAX]; /* not cumulative; the last used one is +Inf */
    _Atomic uint64_t count;
    _Atomic uint64_t sum_micro; /* sum of the observed values, in millionths */
};

/* The counters of one tenant. */
struct wire_tenant {
    char name[WIRE_TENANT_BYTES];
    _Atomic uint64_t prompt_tokens; /* computed or found in a cache, since the tenant has this
                                     * row */
    _Atomic uint64_t generation_tokens;
    _Atomic uint64_t n_refused; /* by the engine */
    _Atomic uint32_t n_running;
    _Atomic uint32_t n_waiting;
};

/* Prompt tokens that were looked up in one namespace of the prefix cache, and those found. With a
 * store, the counters go back to the creation of the store. A reader may see a mixture of two
 * namespaces while the engine gives a row to another one. */
struct wire_space {
    _Atomic uint64_t space;         /* its id; 0 in the first row: the sum of all without a row */
    _Atomic uint64_t queries, hits; /* tokens; queries == 0: the row is free */
};

/* One of several GPUs, or of the parts of the cpu device. */
struct wire_rank {
    _Atomic uint32_t stage, part; /* the stage, and the rank's number in it */
    _Atomic uint64_t device_bytes;
    _Atomic uint64_t n_steps;         /* counters since the engine's start */
    _Atomic uint64_t busy_us, sum_us; /* in steps; of these, in sums over ranks */
};

struct wire_stats { /* [W: engine], all of it */
    uint64_t magic;
    uint64_t layout;
    _Atomic uint64_t values[METRIC_COUNT];
    struct wire_histogram histograms[HISTOGRAM_COUNT];
    char cache_config[WIRE_CONFIG_BYTES]; /* labels of vllm:cache_config_info; set at start */
    _Atomic uint32_t n_tenants;
    struct wire_tenant tenants[WIRE_TENANTS]; /* the first: requests without a tenant */
    struct wire_space spaces[WIRE_SPACES];    /* copied about once per second */
    _Atomic uint32_t n_ranks;                 /* of this process; 1: ranks is not written */
    struct wire_rank ranks[WIRE_RANKS];       /* copied about once per second */
    _Atomic uint32_t groups; /* bit i: the model has layers of enum wire_group i; others' metrics
                              * are not shown. Set at start */
};

/* Is this a metric that the model has? Not of groups that it lacks. */
static inline bool wire_stats_has(const struct wire_stats *s, enum wire_metric m)
{
    uint32_t groups = atomic_load_explicit(&s->groups, memory_order_relaxed);

    return m < METRIC_found_full || m > METRIC_found_state ||
           (groups >> (m - METRIC_found_full) & 1) != 0;
}

/* The bucket bounds of a histogram; sets *n to their number. */
const double *wire_bucket_bounds(enum wire_histogram_id id, int *n);

#endif
