/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's statistics page: written by the engine's thread, mapped read-only by every front,
 * which formats it as metrics. Functions cost some nanoseconds, except stats_process(). */
#ifndef QUIRE_ENGINE_STATS_H
#define QUIRE_ENGINE_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/wire_held.h"
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

struct stats {
    struct wire_stats *page;
    struct wire_held *held;         /* in the same memory; held.h writes it */
    struct wire_adapters *adapters; /* likewise lora.h */
    int fd;              /* memfd that is sent to the fronts; they cannot map it for writing */
    uint64_t process_us; /* time of the last stats_process() */
};

int stats_open(struct stats *s) ERR_CHECKED;
void stats_add(struct stats *s, enum wire_metric m, uint64_t n);
void stats_set(struct stats *s, enum wire_metric m, uint64_t value);

/* Write the cache settings for vllm:cache_config_info: `name="value"` pairs, separated by
 * commas. */
void stats_config(struct stats *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* At most once per second: CPU time, memory and descriptors of this process. Some 20 us, reading
 * /proc. True if it was time. */
bool stats_process(struct stats *s, uint64_t now_us);

/* Count a row of quire:requests_rejected_total. */
void stats_refused(struct stats *s, enum wire_refusal why, uint64_t n);

/* Add a value (seconds, or a count of tokens) to a histogram. */
void stats_observe(struct stats *s, enum wire_histogram_id h, double value);

#endif
