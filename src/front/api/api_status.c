/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /version, /load, /is_sleeping and /metrics: the state of the server. */
#include <config.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "front/api/api.h"

/* Running and waiting requests of all engines, of all fronts. */
void api_load(struct front *f, struct exchange *x, const struct json *body)
{
    struct wire_stats *stats = arena_alloc(&x->arena, sizeof *stats);
    unsigned long long n = 0;
    char text[64];

    (void)body;
    for (int i = 0; i < f->n_links && stats != NULL; i++) {
        struct link_state state;

        link_read_state(f->links[i], &state, 0);
        /* An engine counts the requests of all fronts. */
        if (state.attached && link_copy_stats(f->links[i], stats))
            n += atomic_load(&stats->values[METRIC_running]) +
                 atomic_load(&stats->values[METRIC_waiting]);
    }
    (void)snprintf(text, sizeof text, "{\"server_load\":%llu}", n);
    exchange_reply(x, 200, "application/json", text, strlen(text));
}

/* Is one of several models' engines awake? One that does not run is not. */
static bool api_one_is_awake(const struct front *f)
{
    for (int i = 0; i < f->n_links; i++) {
        struct link_state state;

        link_read_state(f->links[i], &state, clock_us());
        if (state.attached && !state.asleep && !state.waking)
            return true;
    }
    return false;
}

/* As in vLLM. A model that is being woken still counts as asleep, because it does not answer
 * yet. */
void api_is_sleeping(struct front *f, struct exchange *x, const struct json *body)
{
    struct link_state state;
    const char *text;

    (void)body;
    engines_read_state(&x->served->engines, &state, clock_us());
    if (!state.attached && !x->served->on_demand) {
        exchange_reply_error(x, ERR_ENGINE_GONE, NULL, NULL, 1);
        return;
    }
    if (x->served->on_demand ? !api_one_is_awake(f) : state.asleep || state.waking)
        text = "{\"is_sleeping\":true}";
    else
        text = "{\"is_sleeping\":false}";
    exchange_reply(x, 200, "application/json", text, strlen(text));
}

/* The version of this build. */
void api_version(struct front *f, struct exchange *x, const struct json *body)
{
    static const char text[] = "{\"version\":\"" PACKAGE_VERSION "\"}";

    (void)f;
    (void)body;
    exchange_reply(x, 200, "application/json", text, sizeof text - 1);
}

/* One engine of the front, for the metrics. */
struct api_engine {
    const struct served *model;
    int idx; /* in engine_socket: vLLM's dashboards select by this number */
    struct link *link;
    bool attached;            /* now */
    struct wire_stats *stats; /* a copy; NULL: there has been no engine */
};

/* All engines, for the rows of one metric. */
struct api_engines {
    int n;
    struct api_engine *at; /* [n] */
};

/* The common labels. */
static void api_labels(const struct api_engine *engine, struct buf *b, const char *labels)
{
    const char *name = engine->model->model_name;

    buf_add_text(b, "{model_name=");
    buf_add_json_string(b, name, strlen(name));
    buf_printf(b, ",engine=\"%d\"", engine->idx);
    if (labels[0] != '\0')
        buf_printf(b, ",%s", labels);
}

/* HELP and TYPE, once per name; rows of one name are adjacent in metric.def. */
static void api_metric_head(struct buf *b, const char **last, const char *name, const char *type,
                            const char *help)
{
    if (strcmp(*last, name) == 0)
        return;
    *last = name;
    buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* One line per engine: name, labels, value. */
static void api_metric_value(const struct api_engines *all, struct buf *b, enum wire_metric id,
                             const char *name, const char *labels)
{
    for (int i = 0; i < all->n; i++) {
        const struct api_engine *engine = &all->at[i];
        unsigned long long v;

        if (engine->stats == NULL || !wire_stats_has(engine->stats, id))
            continue;
        v = atomic_load_explicit(&engine->stats->values[id], memory_order_relaxed);
        buf_add_text(b, name);
        api_labels(engine, b, labels);
        /* Shared memory has whole numbers only: these are in thousandths. */
        if (id == METRIC_kv_usage_permille || id == METRIC_kv_usage_old_permille ||
            id == METRIC_process_cpu_ms || id == METRIC_itl_target_ms)
            buf_printf(b, "} %.3f\n", (double)v / 1000.0);
        else
            buf_printf(b, "} %llu\n", v);
    }
}

/* The histogram of one engine. Prometheus' buckets are cumulative, the engine's are not. */
static void api_metric_buckets(struct buf *b, const struct api_engine *engine,
                               enum wire_histogram_id id, const char *name)
{
    const struct wire_histogram *histogram = &engine->stats->histograms[id];
    unsigned long long sum = 0;
    char le[64];
    int n;
    const double *bounds = wire_bucket_bounds(id, &n);

    /* The last bucket has no upper bound. */
    for (int i = 0; i <= n; i++) {
        sum += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        if (i < n)
            (void)snprintf(le, sizeof le, "le=\"%g\"", bounds[i]);
        else
            (void)snprintf(le, sizeof le, "le=\"+Inf\"");
        buf_printf(b, "%s_bucket", name);
        api_labels(engine, b, le);
        buf_printf(b, "} %llu\n", sum);
    }
    buf_printf(b, "%s_sum", name);
    api_labels(engine, b, "");
    buf_printf(b, "} %.6f\n%s_count", (double)atomic_load(&histogram->sum_micro) * 1e-6, name);
    api_labels(engine, b, "");
    buf_printf(b, "} %llu\n", sum);
}

static void api_metric_histogram(const struct api_engines *all, struct buf *b,
                                 enum wire_histogram_id id, const char *name)
{
    for (int i = 0; i < all->n; i++) {
        if (all->at[i].stats != NULL)
            api_metric_buckets(b, &all->at[i], id, name);
    }
}

/* All rows of metric.def. Each macro becomes the two calls for its row, so that this function is as
 * long as the table. */
static void api_metrics_engine(const struct api_engines *all, struct buf *b)
{
    const char *last = "";

#define COUNTER(id, name, labels, help)               \
    api_metric_head(b, &last, name, "counter", help); \
    api_metric_value(all, b, METRIC_##id, name, labels);
#define GAUGE(id, name, labels, help)               \
    api_metric_head(b, &last, name, "gauge", help); \
    api_metric_value(all, b, METRIC_##id, name, labels);
#define HISTOGRAM(id, name, help, ...)                  \
    api_metric_head(b, &last, name, "histogram", help); \
    api_metric_histogram(all, b, HISTOGRAM_##id, name);
#include "ipc/metric.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
}

/* A gauge of 1 whose labels are the engine's cache settings, which it wrote at its start. memchr():
 * the text comes from shared memory and might not end. */
static void api_metrics_config(const struct api_engines *all, struct buf *b)
{
    static const char name[] = "vllm:cache_config_info";
    const char *last = "";

    for (int i = 0; i < all->n; i++) {
        const struct wire_stats *stats = all->at[i].stats;

        if (stats == NULL || memchr(stats->cache_config, '\0', sizeof stats->cache_config) == NULL)
            continue;
        api_metric_head(b, &last, name, "gauge", "Information of the LLMEngine CacheConfig.");
        buf_add_text(b, name);
        api_labels(&all->at[i], b, stats->cache_config);
        buf_add_text(b, "} 1\n");
    }
}

/* A label of the names of those rows whose bits are set, separated by commas. */
static void api_label_adapters(struct buf *b, const char *label, struct link *link, uint64_t rows)
{
    struct wire_adapter_row row;
    struct buf names = {0};

    for (uint32_t i = 0; i < WIRE_ADAPTERS_MAX && link_adapter(link, i, &row); i++) {
        if ((rows >> i & 1) != 0)
            buf_printf(&names, "%s%s", names.len > 0 ? "," : "", row.name);
    }
    buf_printf(b, "%s=", label);
    buf_add_json_string(b, buf_text(&names), names.len);
    b->failed = b->failed || names.failed;
    buf_fini(&names);
}

/* vLLM's gauge of adapters, whose value is the time: of several lines the last one holds. */
static void api_metrics_adapters(const struct api_engines *all, struct buf *b)
{
    static const char name[] = "vllm:lora_requests_info";
    const char *last = "";

    for (int i = 0; i < all->n; i++) {
        const struct api_engine *engine = &all->at[i];
        uint64_t running = 0, waiting = 0;
        int n = engine->stats == NULL ? 0 : link_adapter_uses(engine->link, &running, &waiting);

        if (n == 0)
            continue;
        api_metric_head(b, &last, name, "gauge", "Running stats on lora requests.");
        buf_add_text(b, name);
        api_labels(engine, b, "");
        buf_printf(b, ",max_lora=\"%d\",", n);
        api_label_adapters(b, "running_lora_adapters", engine->link, running);
        buf_add_text(b, ",");
        api_label_adapters(b, "waiting_lora_adapters", engine->link, waiting);
        buf_printf(b, "} %lld\n", (long long)clock_unix_s());
    }
}

/* The metrics per tenant. */
enum api_tenant_column {
    TENANT_PROMPT,
    TENANT_GENERATION,
    TENANT_REFUSED,
    TENANT_RUNNING,
    TENANT_WAITING,
    TENANT_COLUMNS
};

/* The value of a column in a tenant's row. */
static unsigned long long api_tenant_value(const struct wire_tenant *t, enum api_tenant_column c)
{
    switch (c) {
    case TENANT_PROMPT: return atomic_load(&t->prompt_tokens);
    case TENANT_GENERATION: return atomic_load(&t->generation_tokens);
    case TENANT_REFUSED: return atomic_load(&t->n_refused);
    case TENANT_RUNNING: return atomic_load(&t->n_running);
    case TENANT_WAITING: return atomic_load(&t->n_waiting);
    case TENANT_COLUMNS: break;
    }
    return 0;
}

/* One column of the tenants of one engine, at most WIRE_TENANTS. The first row has an empty name:
 * requests without a tenant, and of tenants without a row of their own. */
static void api_metrics_column(struct buf *b, const struct api_engine *engine, const char *name,
                               enum api_tenant_column column)
{
    uint32_t n = atomic_load(&engine->stats->n_tenants);

    for (uint32_t i = 0; i < n && i < WIRE_TENANTS; i++) {
        const struct wire_tenant *tenant_row = &engine->stats->tenants[i];

        buf_add_text(b, name);
        api_labels(engine, b, "tenant=");
        buf_add_json_string(b, tenant_row->name,
                            strnlen(tenant_row->name, sizeof tenant_row->name));
        buf_printf(b, "} %llu\n", api_tenant_value(tenant_row, column));
    }
}

/* The rows of all tenants. */
static void api_metrics_tenants(const struct api_engines *all, struct buf *b)
{
    static const struct {
        const char *name, *type, *help;
    } columns[TENANT_COLUMNS] = {
        [TENANT_PROMPT] = {"quire:tenant_prompt_tokens_total", "counter",
                           "Prompt tokens of a tenant."},
        [TENANT_GENERATION] = {"quire:tenant_generation_tokens_total", "counter",
                               "Generated tokens of a tenant."},
        [TENANT_REFUSED] = {"quire:tenant_requests_rejected_total", "counter",
                            "Requests of a tenant that the engine refused."},
        [TENANT_RUNNING] = {"quire:tenant_requests_running", "gauge",
                            "Running requests of a tenant."},
        [TENANT_WAITING] = {"quire:tenant_requests_waiting", "gauge",
                            "Waiting requests of a tenant."},
    };

    for (int c = 0; c < TENANT_COLUMNS; c++) {
        const char *last = "";

        api_metric_head(b, &last, columns[c].name, columns[c].type, columns[c].help);
        for (int i = 0; i < all->n; i++) {
            if (all->at[i].stats != NULL)
                api_metrics_column(b, &all->at[i], columns[c].name, (enum api_tenant_column)c);
        }
    }
}

/* The metrics per rank of an engine with several GPUs. */
enum api_rank_column { RANK_BYTES, RANK_STEPS, RANK_BUSY, RANK_SUMS, RANK_COLUMNS };

/* The value of a column in a rank's row. */
static double api_rank_value(const struct wire_rank *r, enum api_rank_column c)
{
    switch (c) {
    case RANK_BYTES: return (double)atomic_load(&r->device_bytes);
    case RANK_STEPS: return (double)atomic_load(&r->n_steps);
    case RANK_BUSY: return (double)atomic_load(&r->busy_us) * 1e-6;
    case RANK_SUMS: return (double)atomic_load(&r->sum_us) * 1e-6;
    case RANK_COLUMNS: break;
    }
    return 0.0;
}

/* One column of the ranks of one engine. */
static void api_metrics_ranks_column(struct buf *b, const struct api_engine *engine,
                                     const char *name, enum api_rank_column column)
{
    uint32_t n = atomic_load(&engine->stats->n_ranks);

    for (uint32_t i = 0; n > 1 && i < n && i < WIRE_RANKS; i++) {
        const struct wire_rank *rank = &engine->stats->ranks[i];
        char labels[64];

        (void)snprintf(labels, sizeof labels, "stage=\"%u\",rank=\"%u\"", atomic_load(&rank->stage),
                       atomic_load(&rank->part));
        buf_add_text(b, name);
        api_labels(engine, b, labels);
        buf_printf(b, "} %.15g\n", api_rank_value(rank, column));
    }
}

/* The rows of all ranks. */
static void api_metrics_ranks(const struct api_engines *all, struct buf *b)
{
    static const struct {
        const char *name, *type, *help;
    } columns[RANK_COLUMNS] = {
        [RANK_BYTES] = {"quire:rank_device_bytes", "gauge", "Memory that a rank has taken."},
        [RANK_STEPS] = {"quire:rank_steps_total", "counter", "Steps of a rank."},
        [RANK_BUSY] = {"quire:rank_step_seconds_total", "counter", "Time of a rank in steps."},
        [RANK_SUMS] = {"quire:rank_sum_seconds_total", "counter",
                       "Time of a rank in sums over ranks."},
    };

    for (int c = 0; c < RANK_COLUMNS; c++) {
        const char *last = "";

        api_metric_head(b, &last, columns[c].name, columns[c].type, columns[c].help);
        for (int i = 0; i < all->n; i++) {
            if (all->at[i].stats != NULL)
                api_metrics_ranks_column(b, &all->at[i], columns[c].name, (enum api_rank_column)c);
        }
    }
}

/* The engines' numbers are copied first, because they change while we write. The numbers of a
 * single engine stay while it restarts; of several those of one that is gone are left out, because
 * it may stay away. True: there are numbers. */
static bool api_metrics_read(const struct front *f, struct exchange *x, struct api_engines *all)
{
    bool any = false;
    int n_served = f->n_served; /* before n_links, which is raised first */

    *all =
        (struct api_engines){.at = arena_zalloc(&x->arena, sizeof *all->at * (size_t)f->n_links)};
    for (int k = 0; k < n_served && all->at != NULL; k++) {
        struct engines *engines = &f->served[k].engines;

        for (int i = 0; i < engines->n; i++) {
            struct api_engine *engine = &all->at[all->n++];
            struct wire_stats *stats = arena_alloc(&x->arena, sizeof *stats);
            struct link_state state;

            link_read_state(&engines->links[i], &state, clock_us());
            if (!state.attached && !served_is_here(&f->served[k])) {
                all->n--;
                continue;
            }
            *engine = (struct api_engine){.model = &f->served[k],
                                          .idx = i,
                                          .link = &engines->links[i],
                                          .attached = state.attached};
            if (stats != NULL && (state.attached || engines->n == 1) &&
                link_copy_stats(&engines->links[i], stats))
                engine->stats = stats;
            any = any || engine->stats != NULL;
        }
    }
    return any;
}

/* GET /metrics. Before the first engine only engine_up is written. */
void api_metrics(struct front *f, struct exchange *x, const struct json *body)
{
    struct api_engines all;
    struct buf buf = {0};
    bool any = api_metrics_read(f, x, &all);

    (void)body;
    buf_add_text(&buf, "# HELP quire:engine_up Whether an engine is attached to this front.\n"
                       "# TYPE quire:engine_up gauge\n");
    for (int i = 0; i < all.n; i++) {
        buf_add_text(&buf, "quire:engine_up");
        api_labels(&all.at[i], &buf, "");
        buf_printf(&buf, "} %d\n", all.at[i].attached ? 1 : 0);
    }
    buf_add_text(&buf,
                 "# HELP quire:engine_wanted Whether an engine is to be attached: not if it is "
                 "started on demand, and no request waits for it.\n"
                 "# TYPE quire:engine_wanted gauge\n");
    for (int i = 0; i < all.n; i++) {
        const struct served *m = all.at[i].model;

        buf_add_text(&buf, "quire:engine_wanted");
        api_labels(&all.at[i], &buf, "");
        buf_printf(&buf, "} %d\n", !m->on_demand || m->wanted ? 1 : 0);
    }
    if (any) {
        api_metrics_engine(&all, &buf);
        api_metrics_config(&all, &buf);
        api_metrics_adapters(&all, &buf);
        api_metrics_tenants(&all, &buf);
        api_metrics_ranks(&all, &buf);
    }
    if (buf.failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", buf.bytes, buf.len);
    buf_fini(&buf);
}
