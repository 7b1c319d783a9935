/* SPDX-License-Identifier: Apache-2.0
 *
 * The statistics page has one writer, so relaxed loads and stores are enough. A reader may see some
 * counters of a step and not yet others, as with every scrape of a running process. */
#include "engine/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1; our own mapping remains writable */
#endif

/* The seals come after our own writable mapping: from then on no process can map the page for
 * writing. */
int stats_open(struct stats *s)
{
    int fd = memfd_create("quire-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p = MAP_FAILED;

    if (fd != -1 && ftruncate(fd, sizeof(struct wire_page)) == 0)
        p = mmap(NULL, sizeof(struct wire_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == -1) {
        log_error("engine: the statistics page cannot be made: %s", strerror(errno));
        if (fd != -1)
            (void)close(fd);
        return ERR_IO;
    }
    s->page = &((struct wire_page *)p)->stats;
    s->held = &((struct wire_page *)p)->held;
    s->adapters = &((struct wire_page *)p)->adapters;
    s->fd = fd;
    s->page->magic = WIRE_MAGIC;
    s->page->layout = wire_layout();
    return ERR_OK;
}

/* There is one writer, so the counter needs no atomic addition. */
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

/* The text is complete before fronts map the page, and does not change afterwards. */
void stats_config(struct stats *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(s->page->cache_config, sizeof s->page->cache_config, format, args);
    va_end(args);
}

/* --- the process ---------------------------------------------------------------------------- */

#define STATS_PROCESS_US 1000000

/* /proc/self/stat is one line: "pid (name) state ppid ...". The name may contain spaces and
 * parentheses, so the fields are read from the last ')' on. */
static void stats_proc_stat(struct stats *s)
{
    unsigned long long user, system, start, vsize;
    long long rss;
    long ticks = sysconf(_SC_CLK_TCK);
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    const char *rest;
    ssize_t n;

    if (fd == -1)
        return;
    n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (n < 0)
        return;
    text[n] = '\0';
    rest = strrchr(text, ')');
    if (rest == NULL ||
        sscanf(rest,
               ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d "
               "%llu %llu %lld",
               &user, &system, &start, &vsize, &rss) != 5)
        return;
    stats_set(s, METRIC_process_cpu_ms, (user + system) * 1000u / (unsigned long long)ticks);
    stats_set(s, METRIC_process_vsize, vsize);
    stats_set(s, METRIC_process_rss, (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE));
    stats_set(s, METRIC_process_start,
              (uint64_t)clock_unix_s() - clock_boot_s() + start / (unsigned long long)ticks);
}

/* Count the entries of /proc/self/fd with the system call itself, because readdir() allocates. */
static uint64_t stats_n_fds(void)
{
    struct entry { /* the layout of linux_dirent64; `bytes` is at offset 16 */
        uint64_t inode, offset;
        uint16_t bytes;
        char rest[];
    };
    char entries[4096] __attribute__((aligned(8)));
    uint64_t n = 0;
    int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long len = 0;

    while (fd != -1 && (len = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
        for (long at = 0; at < len;) {
            uint16_t bytes;

            memcpy(&bytes, entries + at + offsetof(struct entry, bytes), sizeof bytes);
            at += bytes;
            n++;
        }
    }
    if (fd != -1)
        (void)close(fd);
    return n > 3 ? n - 3 : 0; /* ".", "..", and the descriptor of the folder itself */
}

/* Reading /proc takes some 20 us, so once per second is often enough. */
bool stats_process(struct stats *s, uint64_t now_us)
{
    struct rlimit most;

    if (now_us - s->process_us < STATS_PROCESS_US)
        return false;
    s->process_us = now_us;
    stats_proc_stat(s);
    stats_set(s, METRIC_process_fds, stats_n_fds());
    if (getrlimit(RLIMIT_NOFILE, &most) == 0)
        stats_set(s, METRIC_process_fds_max, most.rlim_cur);
    return true;
}

/* --- refusals and histograms ---------------------------------------------------------------- */

/* The metric of each reason for a refusal. */
static const enum wire_metric stats_refusals[WIRE_REFUSALS] = {
    [WIRE_REFUSED_REQUESTS] = METRIC_rejected_requests,
    [WIRE_REFUSED_TOKENS] = METRIC_rejected_tokens,
    [WIRE_REFUSED_TENANT] = METRIC_rejected_tenant,
    [WIRE_REFUSED_SLOTS] = METRIC_rejected_slots,
    [WIRE_REFUSED_WAIT] = METRIC_rejected_wait,
    [WIRE_REFUSED_TIMEOUT] = METRIC_rejected_timeout,
    [WIRE_REFUSED_DEADLINE] = METRIC_rejected_deadline,
};

/* Each reason has a row in the metric of refusals. */
void stats_refused(struct stats *s, enum wire_refusal why, uint64_t n)
{
    must(why > WIRE_NOT_REFUSED);
    must(why < WIRE_REFUSALS);
    stats_bump(&s->page->values[stats_refusals[why]], n);
}

/* The buckets are not cumulative here; fronts add them up when they write Prometheus' text. */
void stats_observe(struct stats *s, enum wire_histogram_id h, double value)
{
    struct wire_histogram *histogram = &s->page->histograms[h];
    int n;
    const double *bounds = wire_bucket_bounds(h, &n);
    int i = 0;

    while (i < n && value > bounds[i])
        i++;
    stats_bump(&histogram->buckets[i], 1);
    stats_bump(&histogram->count, 1);
    stats_bump(&histogram->sum_micro, (uint64_t)(value * 1e6));
}
