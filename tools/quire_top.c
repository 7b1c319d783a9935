/* SPDX-License-Identifier: Apache-2.0
 *
 * quire top: the engine's work, live, from its statistics page. The engine does nothing for it but
 * send the page's descriptor.
 *
 * Counters only grow, so a rate is the difference of two looks, divided by the time between
 * them. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <getopt.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "ipc/attach.h"
#include "ipc/seats.h"
#include "ipc/wire_lane.h"
#include "tools/quire.h"

#define TOP_TIMEOUT_MS 2000
#define TOP_LINES      12 /* lines other than those of namespaces, including the cursor's */
#define TOP_ENGINES    16
#define TOP_PATH       4096
#define TOP_ERROR      0.1 /* of a foretold time: a bound of the histogram's buckets */
#define TOP_SPACES     10  /* lines of namespaces, and one for all others */

struct top {
    const char *path;
    bool is_one_of_many;
    uint64_t epoch; /* of the engine that `before` belongs to */
    uint64_t before_us;
    struct wire_stats before;
    /* the statistics at the last look */
};

/* The value of a counter or gauge. */
static double top_value(const struct wire_stats *s, enum wire_metric m)
{
    return (double)atomic_load_explicit(&s->values[m], memory_order_relaxed);
}

/* The growth of a counter per second since the last look. */
static double top_rate(const struct top *t, const struct wire_stats *s, enum wire_metric m,
                       double passed_s)
{
    if (passed_s > 0.0)
        return (top_value(s, m) - top_value(&t->before, m)) / passed_s;
    return 0.0;
}

/* The mean of the values that a histogram got since the last look; 0: none. */
static double top_mean(const struct top *t, const struct wire_stats *s, enum wire_histogram_id h)
{
    uint64_t n = atomic_load(&s->histograms[h].count) - t->before.histograms[h].count;
    uint64_t sum = atomic_load(&s->histograms[h].sum_micro) - t->before.histograms[h].sum_micro;

    if (n == 0)
        return 0.0;
    return (double)sum / (double)n * 1e-6;
}

/* The share of one counter's growth in that of another since the last look, in percent. */
static double top_share(const struct top *t, const struct wire_stats *s, enum wire_metric part,
                        enum wire_metric all)
{
    double n = top_value(s, all) - top_value(&t->before, all);

    if (n <= 0.0)
        return 0.0;
    return (top_value(s, part) - top_value(&t->before, part)) / n * 100.0;
}

/* The share of steps since the last look whose time was foretold within 10%, in percent. */
static double top_foretold(const struct top *t, const struct wire_stats *s)
{
    const struct wire_histogram *now = &s->histograms[HISTOGRAM_step_error];
    const struct wire_histogram *before = &t->before.histograms[HISTOGRAM_step_error];
    uint64_t n = atomic_load(&now->count) - before->count, within = 0;
    int n_bounds;
    const double *bounds = wire_bucket_bounds(HISTOGRAM_step_error, &n_bounds);

    for (int i = 0; i < n_bounds && bounds[i] <= TOP_ERROR; i++)
        within += atomic_load(&now->buckets[i]) - before->buckets[i];
    if (n == 0)
        return 0.0;
    return 100.0 * (double)within / (double)n;
}

/* All refusals since the engine's start, for any reason. */
static double top_refused(const struct wire_stats *s)
{
    double n = 0.0;

    for (int m = METRIC_rejected_requests; m <= METRIC_rejected_deadline; m++)
        n += top_value(s, (enum wire_metric)m); /* rows of one name are adjacent in metric.def */
    return n;
}

/* Are there several kinds of groups, and so a line about them? */
static bool top_has_groups(const struct wire_stats *s)
{
    uint32_t groups = atomic_load(&s->groups);

    return (groups & (groups - 1)) != 0;
}

/* The shares of prompts' tokens that the layers of each kind could have served since the last
 * look. */
static void top_print_groups(const struct top *t, const struct wire_stats *s)
{
    static const char *const names[WIRE_GROUPS] = {"all tokens", "windows", "states"};
    uint32_t groups = atomic_load(&s->groups);
    const char *before = "by group: ";

    for (int group = 0; group < WIRE_GROUPS; group++) {
        if ((groups >> group & 1) == 0)
            continue;
        printf("%s%s %.1f%%", before, names[group],
               top_share(t, s, METRIC_found_full + group, METRIC_prefix_queries));
        before = "   ";
    }
    if (top_value(s, METRIC_snapshot_bytes) > 0.0)
        printf("   snapshots: %.0f of %.2f MiB taken", top_value(s, METRIC_snapshots),
               top_value(s, METRIC_snapshot_bytes) / 1048576.0);
    printf("\n");
}

/* The lines about the engine as a whole. TOP_LINES depends on their number. Rates and means are of
 * the time since the last look, the other numbers are of now. */
static void top_print(const struct top *t, const struct wire_stats *s, double passed_s)
{
    double steps = top_rate(t, s, METRIC_steps, passed_s);

    printf("running %6.0f   waiting %6.0f   fronts %3.0f   preempted %.0f   refused %.0f\n",
           top_value(s, METRIC_running), top_value(s, METRIC_waiting), top_value(s, METRIC_lanes),
           top_value(s, METRIC_preemptions), top_refused(s));
    printf("output %9.1f tok/s   prompts %9.1f tok/s   ended %.1f a second\n",
           top_rate(t, s, METRIC_generation_tokens, passed_s),
           top_rate(t, s, METRIC_prompt_tokens, passed_s),
           top_rate(t, s, METRIC_success_stop, passed_s) +
               top_rate(t, s, METRIC_success_length, passed_s));
    printf("steps %9.1f a second, %.1f tokens each   first token %.3f s   between tokens %.4f s\n",
           steps, top_mean(t, s, HISTOGRAM_iteration), top_mean(t, s, HISTOGRAM_ttft),
           top_mean(t, s, HISTOGRAM_itl));
    printf("between tokens at most %.0f ms: %.1f%% of steps limited; %.1f%% foretold within 10%%\n",
           top_value(s, METRIC_itl_target_ms), top_share(t, s, METRIC_steps_limited, METRIC_steps),
           top_foretold(t, s));
    printf("pages: device %.0f of %.0f in use, %.0f cached   host %.0f   disk %.0f\n",
           top_value(s, METRIC_kv_usage_permille) * top_value(s, METRIC_pages) / 1000.0,
           top_value(s, METRIC_pages), top_value(s, METRIC_pages_cached),
           top_value(s, METRIC_host_pages), top_value(s, METRIC_store_pages));
    printf("prefix hits: %.1f%% of prompts' tokens   from host memory %.0f tok/s, from disk %.0f "
           "tok/s\n",
           top_share(t, s, METRIC_prefix_hits, METRIC_prefix_queries),
           top_rate(t, s, METRIC_host_hits, passed_s), top_rate(t, s, METRIC_store_hits, passed_s));
    if (top_has_groups(s))
        top_print_groups(t, s);
    printf("retained: %.0f pages on the device, %.0f in host memory, %.0f on disk\n",
           top_value(s, METRIC_pages_kept), top_value(s, METRIC_host_kept),
           top_value(s, METRIC_store_kept));
    printf("device memory %.1f GiB%s   drafts: %.1f%% of %.1f tok/s right\n",
           top_value(s, METRIC_device_bytes) / 1073741824.0,
           top_value(s, METRIC_sleep_offloaded) > 0.0 ? "   asleep" : "",
           top_share(t, s, METRIC_draft_accepted, METRIC_draft_tokens),
           top_rate(t, s, METRIC_draft_tokens, passed_s));
}

/* One rank's memory, and its mean step since the last look. */
static void top_print_rank(const struct top *t, const struct wire_stats *s, int i)
{
    const struct wire_rank *now = &s->ranks[i], *before = &t->before.ranks[i];
    uint64_t n = atomic_load(&now->n_steps) - atomic_load(&before->n_steps);
    double busy = (double)(atomic_load(&now->busy_us) - atomic_load(&before->busy_us));
    double sums = (double)(atomic_load(&now->sum_us) - atomic_load(&before->sum_us));

    if (n > 0) {
        busy /= (double)n;
        sums /= (double)n;
    }
    printf("stage %u rank %u: %.1f GiB   step %.2f ms, %.2f ms of it in sums over ranks\n",
           atomic_load(&now->stage), atomic_load(&now->part),
           (double)atomic_load(&now->device_bytes) / 1073741824.0, busy * 1e-3, sums * 1e-3);
}

/* The rows of ranks; 0 if there is only one. */
static int top_n_ranks(const struct wire_stats *s)
{
    uint32_t n = atomic_load(&s->n_ranks);

    return n > 1 && n <= WIRE_RANKS ? (int)n : 0;
}

/* The number of rows of namespaces that fit on the screen; TOP_SPACES when it is not a terminal. */
static int top_room(void)
{
    struct winsize winsize;
    int n = TOP_SPACES;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &winsize) == 0 && winsize.ws_row > 0)
        n = (int)winsize.ws_row - TOP_LINES;
    if (n < TOP_SPACES)
        return n;
    return TOP_SPACES;
}

/* One row of wire_stats' spaces, read once, so that sorting sees values that do not change. */
struct top_space {
    uint64_t space, queries, hits;
};

/* Order by queries, most first; the row without an id (all others) is last. */
static int top_compare(const void *left, const void *right)
{
    const struct top_space *one = left, *other = right;

    if ((one->space == 0) != (other->space == 0))
        return one->space == 0 ? 1 : -1;
    return (one->queries < other->queries) - (one->queries > other->queries);
}

/* Print the row of a namespace that had queries. */
static void top_print_space(const struct top_space *s)
{
    char hex[2 * sizeof s->space + 1] = "others";

    if (s->queries == 0)
        return;
    if (s->space != 0)
        hash_hex((const uint8_t *)&s->space, sizeof s->space, hex);
    printf("%-16s  %13llu  %12llu  %6.1f%%\n", hex, (unsigned long long)s->queries,
           (unsigned long long)s->hits, 100.0 * (double)s->hits / (double)s->queries);
}

/* Print as many namespaces as there is room for, and the sum of the others. */
static void top_print_spaces(const struct wire_stats *s, int room)
{
    struct top_space rows[WIRE_SPACES], rest = {0};

    for (int i = 0; i < WIRE_SPACES; i++)
        rows[i] = (struct top_space){.space = atomic_load(&s->spaces[i].space),
                                     .queries = atomic_load(&s->spaces[i].queries),
                                     .hits = atomic_load(&s->spaces[i].hits)};
    /* Most of the rows may be unused; they sort to the end with 0 queries. */
    qsort(rows, WIRE_SPACES, sizeof rows[0], top_compare);
    if (room < 1 || rows[0].queries == 0)
        return;
    printf("\nnamespace, in all prompt tokens        cached    share\n");
    for (int i = 0; i < WIRE_SPACES; i++) {
        if (i < room && rows[i].space != 0) {
            top_print_space(&rows[i]);
            continue;
        }
        rest.queries += rows[i].queries;
        rest.hits += rows[i].hits;
    }
    top_print_space(&rest);
}

/* One of several models' engines is started by a connection: does it run already? Engines of other
 * kinds have no table beside their socket. */
static bool top_is_there(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct seats *seats = NULL;
    enum seat_state state;
    bool found, ready = false;
    char folder[TOP_PATH];

    (void)snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path),
                   slash == NULL ? "." : path);
    if (!seats_are_marked(folder))
        return true;
    if (seats_observe(&seats, folder) != ERR_OK)
        return false;
    found = seats_find(seats, path, &state, &ready);
    seats_close(seats);
    return found && ready;
}

/* Read the statistics once and show them, below a line with the socket if it is one of several.
 * ERR_OK, or the reason why there were none. */
static int top_look(struct top *t, bool shown)
{
    const struct wire_stats *stats;
    struct wire_welcome welcome;
    uint64_t now_us = clock_us();
    int rc;

    if (!top_is_there(t->path)) {
        if (shown)
            printf(
                "%s: the engine does not run, or is not ready; a request for its model starts it\n",
                t->path);
        return ERR_OK;
    }
    /* Each look makes a connection of its own, so a restarted engine is found by itself. */
    rc = attach_observe(t->path, TOP_TIMEOUT_MS, &welcome, &stats);
    if (rc != ERR_OK)
        return rc;
    if (welcome.epoch != t->epoch) /* another engine: its counters began at 0 */
        memset(&t->before, 0, sizeof t->before);
    if (shown) {
        if (t->is_one_of_many)
            printf("--- %s\n", t->path);
        top_print(t, stats, t->before_us == 0 ? 0.0 : (double)(now_us - t->before_us) * 1e-6);
        for (int i = 0; i < top_n_ranks(stats); i++)
            top_print_rank(t, stats, i);
        top_print_spaces(
            stats, t->is_one_of_many ? 0 : top_room() - top_n_ranks(stats) - top_has_groups(stats));
    }
    /* The page is copied for the next look's differences, then unmapped. */
    memcpy(&t->before, stats, sizeof t->before);
    t->before_us = now_us;
    t->epoch = welcome.epoch;
    (void)munmap((void *)(uintptr_t)stats, sizeof *stats);
    return ERR_OK;
}

/* Look at each engine in turn. ERR_OK, or the reason of the last one that could not be read. */
static int top_look_all(struct top *tops, int n, bool shown, bool clears)
{
    int rc = ERR_OK;

    if (clears)
        /* Cursor to the top left, clear the screen. */
        printf("\033[H\033[2J");
    for (int i = 0; i < n; i++) {
        int got = top_look(&tops[i], shown);

        if (got != ERR_OK)
            printf("%s: %s\n", tops[i].path, err_sentence(got));
        if (got != ERR_OK)
            rc = got;
    }
    (void)fflush(stdout);
    return rc;
}

/* The text of --help; docs/man is made from it. */
static const char top_usage[] =
    "usage: quire top [--engine-socket PATH[,PATH...]] [--seconds N] [--once]\n"
    "Shows the work of an engine, or of several one below the other, until interrupted, or once.\n"
    "Rates are averages over N seconds (1). The rates of namespaces, which are shown for a single\n"
    "engine, are totals since the store's creation, or since the engine's start when there is no\n"
    "store.\n";

int quire_top(int argc, char **argv)
{
    static const struct option options[] = {{"engine-socket", required_argument, NULL, 's'},
                                            {"seconds", required_argument, NULL, 'n'},
                                            {"once", no_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    static char preset[] = "/run/quire/engine.sock";
    static struct top tops[TOP_ENGINES];
    char *sockets = preset, *rest = NULL;
    double seconds = 1.0;
    bool once = false;
    int opt, n_tops = 0;

    log_set_level(LOG_LEVEL_ERROR);
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (opt) {
        case 's': sockets = optarg; break;
        case 'n': seconds = strtod(optarg, NULL); break;
        case 'o': once = true; break;
        case 'h': (void)fputs(top_usage, stdout); return 0;
        default: (void)fputs(top_usage, stderr); return 2;
        }
    }
    for (char *path = strtok_r(sockets, ",", &rest); path != NULL && n_tops < TOP_ENGINES;
         path = strtok_r(NULL, ",", &rest))
        tops[n_tops++].path = path;
    if (optind != argc || n_tops == 0 || !(seconds >= 0.05 && seconds <= 3600.0)) {
        (void)fputs(top_usage, stderr);
        return 2;
    }
    for (int i = 0; i < n_tops; i++)
        tops[i].is_one_of_many = n_tops > 1;
    /* The first look only reads the counters: rates need two. --once prints at the second. */
    for (int n = 0; !once || n < 2; n++) { /* without --once until interrupted */
        int rc = top_look_all(tops, n_tops, n > 0 || !once, !once);

        if (rc != ERR_OK && once)
            return 1;
        if (n == 0 || !once)
            (void)usleep((useconds_t)(seconds * 1e6));
    }
    return 0;
}
