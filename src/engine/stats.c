/* SPDX-License-Identifier: Apache-2.0
 *
 * One writer, so relaxed loads and stores are enough; readers may see counters of one step in
 * any mixture, as with every scrape of a running process. */
#include "engine/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1; our own mapping stays writable */
#endif

int stats_open(struct stats *s)
{
    int fd = memfd_create("quire-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p = MAP_FAILED;

    if (fd != -1 && ftruncate(fd, sizeof(struct wire_stats)) == 0)
        p = mmap(NULL, sizeof(struct wire_stats), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == -1) {
        log_error("engine: the statistics page cannot be made: %s", strerror(errno));
        if (fd != -1)
            (void)close(fd);
        return ERR_IO;
    }
    s->page = p;
    s->fd = fd;
    s->page->magic = WIRE_MAGIC;
    s->page->layout = wire_layout();
    return ERR_OK;
}

static void stats_bump(_Atomic uint64_t *v, uint64_t n)
{
    atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

void stats_add(struct stats *s, enum wire_metric m, uint64_t n)
{
    stats_bump(&s->page->values[m], n);
}

void stats_set(struct stats *s, enum wire_metric m, uint64_t value)
{
    atomic_store_explicit(&s->page->values[m], value, memory_order_relaxed);
}

/* The rows of wire.h's reasons, in their order. */
static const enum wire_metric stats_refusals[WIRE_REFUSALS] = {
    [WIRE_REFUSED_REQUESTS] = METRIC_rejected_requests,
    [WIRE_REFUSED_TOKENS] = METRIC_rejected_tokens,
    [WIRE_REFUSED_TENANT] = METRIC_rejected_tenant,
    [WIRE_REFUSED_SLOTS] = METRIC_rejected_slots,
    [WIRE_REFUSED_WAIT] = METRIC_rejected_wait,
    [WIRE_REFUSED_TIMEOUT] = METRIC_rejected_timeout,
    [WIRE_REFUSED_DEADLINE] = METRIC_rejected_deadline,
};

void stats_refused(struct stats *s, enum wire_refusal why, uint64_t n)
{
    stats_bump(&s->page->values[stats_refusals[why]], n);
}

void stats_observe(struct stats *s, enum wire_histogram_id h, double value)
{
    struct wire_histogram *w = &s->page->histograms[h];
    int n;
    const double *bounds = wire_bucket_bounds(h, &n);
    int i = 0;

    while (i < n && value > bounds[i])
        i++;
    stats_bump(&w->buckets[i], 1);
    stats_bump(&w->count, 1);
    stats_bump(&w->sum_micro, (uint64_t)(value * 1e6));
}
