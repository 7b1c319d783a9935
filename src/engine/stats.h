/* The engine's statistics page: written here, mapped read-only by every front. */
#ifndef QUIRE_ENGINE_STATS_H
#define QUIRE_ENGINE_STATS_H

#include <stdint.h>

#include "base/err.h"
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

struct stats {
    struct wire_stats *page;
    int fd;              /* memfd that travels to the fronts; they cannot map it for writing */
    uint64_t process_us; /* when the process was looked at last */
};

int stats_open(struct stats *s) ERR_CHECKED;
void stats_add(struct stats *s, enum wire_metric m, uint64_t n);
void stats_set(struct stats *s, enum wire_metric m, uint64_t value);

/* Write the engine's cache settings for vllm:cache_config_info: `name="value"` pairs, separated by
 * commas. */
void stats_config(struct stats *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Once a second: CPU time, memory and descriptors of this process. Some 20 us of reading /proc. */
void stats_process(struct stats *s, uint64_t now_us);

/* A row of quire:requests_rejected_total. */
void stats_refused(struct stats *s, enum wire_refusal why, uint64_t n);

/* Put a value (seconds, or a count of tokens) into a histogram. */
void stats_observe(struct stats *s, enum wire_histogram_id h, double value);

#endif
