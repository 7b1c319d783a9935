/* SPDX-License-Identifier: Apache-2.0
 *
 * quire-engine: start, run, end.
 *
 * Exit codes: 0 stopped; 1 usage or configuration; 2 resources at start; 3 device error; 134 a bug
 * of ours (must()). systemd restarts it after all but 0 and 1, because a resource that another
 * process holds may be free soon. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/service.h"
#include "engine/engine.h"
#include "engine/replica.h"
#include "engine/trial.h"
#include "ipc/attach.h"

/* Some 20 GB of the most recently used pages are ready by then. */
#define MAIN_HOST_WAIT_US 1000000
/* Buffers for pages on their way to and from the disk. */
#define MAIN_STAGING_BYTES ((size_t)256 << 20)
#define MAIN_QUEUE_STEPS   128  /* the waiting prompts may fill this many full steps */
#define MAIN_QUEUE_PROMPTS 16   /* or be this many of the longest */
#define MAIN_SEAT_MS       10   /* between attempts to get a seat */
#define MAIN_AGAIN_MS      3000 /* between attempts to load a model: each may read all of it */

/* One of several models. What an engine with the same settings has used is still known. */
static int main_open_seats(struct engine *e)
{
    struct buf settings = {0};
    int rc = ERR_NO_MEMORY;

    e->seat_room =
        (struct seat_room){.n_max = e->settings.models_max, .bytes_max = e->settings.models_memory};
    settings_describe(&e->settings, 'E', &settings);
    if (!settings.failed)
        rc = seats_open(&e->seats, e->settings.models_run, e->settings.engine_socket,
                        hash_xxh3(settings.bytes, settings.len));
    buf_fini(&settings);
    return rc;
}

/* Others may wake beside this engine, as far as there is room. */
static void main_tell_use(struct engine *e)
{
    size_t bytes = e->shape->device_bytes;

    if (e->seats == NULL)
        return;
    if (e->drafter.model != NULL)
        bytes += e->drafter.shape->device_bytes;
    seats_tell(e->seats, bytes);
    log_info("engine: takes %.0f MiB while it is awake; models_memory is %.0f MiB",
             (double)bytes / 1048576.0, (double)e->settings.models_memory / 1048576.0);
}

/* An engine of several models takes a seat before it loads its own. ERR_DRAINING: a signal came, or
 * none was free for wake_timeout_s: then the requests that wait here are turned away, and the next
 * one starts the engine again. */
static int main_await_seat(struct engine *e)
{
    uint64_t end_us = clock_us() + (uint64_t)e->settings.wake_timeout_s * 1000000u;
    struct pollfd stop = {.fd = e->intake.signal_fd, .events = POLLIN};

    if (e->seats == NULL)
        return ERR_OK;
    service_status("waiting until another model sleeps");
    while (seats_take(e->seats, &e->seat_room, clock_us()) != ERR_OK) {
        if (poll(&stop, 1, MAIN_SEAT_MS) > 0)
            return ERR_DRAINING;
        if (clock_us() < end_us)
            continue;
        log_warn("engine: no seat is free: other models have been in use for %d s; raise "
                 "models_max, models_memory or wake_timeout_s",
                 e->settings.wake_timeout_s);
        attach_turn_away(e->intake.listener.fd, ERR_ASLEEP);
        return ERR_DRAINING;
    }
    return ERR_OK;
}

/* Bytes that the model may take beside its drafter: those of its seat. 0: no bound. */
static size_t main_bytes_max(const struct engine *e)
{
    size_t most = e->settings.models_memory, drafter = 0;

    if (e->seats == NULL || most == 0)
        return 0;
    if (seats_told(e->seats) > 0 && seats_told(e->seats) < most)
        most = seats_told(e->seats);
    if (e->drafter.model != NULL)
        drafter = e->drafter.shape->device_bytes;
    return drafter < most ? most - drafter : 1;
}

/* Load the model; if others have the memory of the device, ask them to sleep. */
static int main_load_model(struct engine *e, const struct model_options *o)
{
    struct model_options options = *o;
    int rc = main_await_seat(e);

    if (rc == ERR_OK)
        rc = drafter_open(e);
    options.beside_bytes = drafter_page_bytes(&e->drafter);
    options.n_taps = drafter_taps(&e->drafter, &options.taps);
    if (rc == ERR_OK)
        options.bytes_max = main_bytes_max(e);
    if (rc == ERR_OK)
        rc = model_open(&e->model, &options);
    /* Other weights than those of the last process need a seat for more. */
    if (rc == ERR_LIMIT)
        rc = seats_told(e->seats) > 0 ? ERR_NO_MEMORY : ERR_INVALID;
    if (rc == ERR_NO_MEMORY)
        drafter_close(&e->drafter);
    if (rc == ERR_NO_MEMORY && e->seats != NULL) {
        seats_tell(e->seats, 0);
        seats_press(e->seats, clock_us());
    }
    return rc;
}

/* An engine that sleeps shares the device with others, which may be awake when it starts; they fall
 * asleep when they have no requests. ERR_DRAINING: a signal to stop came meanwhile. */
static int main_await_model(struct engine *e, const struct model_options *o)
{
    uint64_t end_us = clock_us() + (uint64_t)e->settings.wake_timeout_s * 1000000u;
    struct pollfd stop = {.fd = e->intake.signal_fd, .events = POLLIN};
    int rc;

    while ((rc = main_load_model(e, o)) == ERR_NO_MEMORY && o->sleeps && clock_us() < end_us) {
        log_warn("engine: others may have the memory of the device and sleep soon: next attempt in "
                 "%d s, for %d s in all",
                 MAIN_AGAIN_MS / 1000, e->settings.wake_timeout_s);
        service_status("waiting for memory of the device");
        if (poll(&stop, 1, MAIN_AGAIN_MS) > 0)
            return ERR_DRAINING;
    }
    return rc;
}

/* Is it a model that pools, and what does its folder say of that? */
static int main_read_pooling(struct engine *e)
{
    struct pooling *p = &e->pooling;
    int rc = pooling_read(p, &e->settings);

    if (rc != ERR_OK || p->kind == POOLING_NONE)
        return rc;
    if (e->settings.speculative_config[0] != '\0') {
        log_error("engine: speculative_config is for models that generate, and this one pools");
        return ERR_INVALID;
    }
    log_info("engine: the model pools: %s of %s, use_activation %s",
             p->kind == POOLING_EMBED ? "vectors" : "scores", pooling_type_name(p->type),
             json_flag_text(p->activates));
    return pooling_find_tokens(p, e->settings.model);
}

/* vLLM's names of formats. The folder or file tells its format by itself. */
static bool main_is_format(const char *load_format)
{
    static const char *const formats[] = {"auto", "hf",           "safetensors",
                                          "pt",   "bitsandbytes", "gguf"};

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(load_format, formats[i]) == 0)
            return true;
    }
    return false;
}

static int main_open_model(struct engine *e)
{
    const struct settings *settings = &e->settings;
    struct model_options options = model_options_of(settings);
    int rc;

    if (settings->model[0] == '\0') {
        log_error("engine: no model: set model to a Hugging Face folder or a GGUF file");
        return ERR_INVALID;
    }
    options.first_gpu = replica_first_gpu(settings);
    options.sleeps = settings->sleep_after_s > 0 || e->seats != NULL;
    if (!options.dummy_weights && !main_is_format(settings->load_format)) {
        log_error("engine: load_format = \"%s\" must be auto, dummy, hf, safetensors, pt, "
                  "bitsandbytes or gguf",
                  settings->load_format);
        return ERR_INVALID;
    }
    if ((rc = main_read_pooling(e)) != ERR_OK)
        return rc;
    options.pooling = &e->pooling;
    if (options.max_model_len == 0)
        options.max_model_len = e->pooling.len_max;
    service_status("loading %s", settings->model);
    rc = main_await_model(e, &options);
    if (rc == ERR_OK)
        e->shape = model_shape(e->model);
    return rc;
}

/* Callbacks for the host tier and the store: page-locked memory is the device's to register. */
static int main_pin(void *engine, void *memory, size_t bytes)
{
    const struct engine *e = engine;

    return model_pin(e->model, memory, bytes);
}

/* A device that has failed may still copy from or to this memory, so it stays pinned; the end of
 * the process unpins it. */
static void main_unpin(void *engine, void *memory)
{
    const struct engine *e = engine;

    if (!e->tiers.device_failed)
        model_unpin(e->model, memory);
}

/* Staging buffers of the store: 4 to 64. */
static int main_n_buffers(size_t page_bytes)
{
    size_t n = MAIN_STAGING_BYTES / page_bytes;

    if (n < 4)
        return 4;
    if (n > 64)
        return 64;
    return (int)n;
}

/* The store is optional: without it the engine serves, and logs the reason. */
static int main_open_store(struct engine *e)
{
    struct store_options options = {
        .dir = e->settings.kv_store_dir,
        .max_bytes = e->settings.kv_store_bytes,
        .reserve_bytes = e->settings.kv_store_reserve_bytes,
        .page_bytes = e->shape->page_bytes,
        .page_tokens = e->shape->page_tokens,
        .kept_pct = e->settings.kv_retained_pct,
        .n_buffers = main_n_buffers(e->shape->page_bytes),
        .namespace_id = e->shape->fingerprint,
        .namespace_name = e->names.at[0],
        .pin = main_pin,
        .unpin = main_unpin,
        .context = e,
    };
    int rc;

    if (options.dir[0] == '\0')
        return ERR_OK;
    rc = store_open(&e->tiers.store, &options);
    if (rc != ERR_NO_MEMORY && rc != ERR_IO)
        return rc;
    log_error("engine: no pages are kept on disk");
    return ERR_OK;
}

/* Like the store, the host tier is optional: a machine with too little memory serves without it. */
static int main_open_host(struct engine *e)
{
    size_t bytes = e->settings.kv_host_bytes;
    struct host_options options = {
        .path = e->settings.kv_host_file,
        .page_bytes = e->shape->page_bytes,
        .page_tokens = e->shape->page_tokens,
        .kept_pct = e->settings.kv_retained_pct,
        .grows_idle = e->shape->is_gpu,
        .fingerprint = e->shape->fingerprint,
        .name = e->names.at[0],
        .pin = main_pin,
        .unpin = main_unpin,
        .context = e,
    };
    int rc;

    if (bytes == 0 && e->shape->is_gpu)
        bytes = mem_available() / 4 / (size_t)e->settings.data_parallel_size;
    options.max_bytes = bytes;
    if (options.path[0] == '\0' || bytes < e->shape->page_bytes ||
        e->shape->page_tokens > HOST_TOKENS_MAX)
        return ERR_OK;
    rc = host_open(&e->tiers.host, &options);
    if (rc != ERR_OK)
        log_warn("engine: no pages are kept in host memory");
    return ERR_OK;
}

/* The lanes themselves are created when fronts connect; here are only the arrays for them. */
static int main_open_lanes(struct engine *e)
{
    size_t n = (size_t)e->settings.max_lanes;
    size_t slots = (size_t)e->settings.lane_slots;

    e->lanes = mem_zalloc_array(n, sizeof *e->lanes);
    if (e->lanes == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        e->lanes[i].control_fd = -1;
        e->lanes[i].by_slot = mem_zalloc_array(slots, sizeof(struct seq *));
        if (e->lanes[i].by_slot == NULL || guide_lane_init(&e->lanes[i].guide) != ERR_OK)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

/* The default bound of the queue: some 30 s of a GPU's work, and enough where steps are small. */
static int64_t main_queued_tokens(const struct model_shape *shape)
{
    int64_t steps = (int64_t)shape->max_num_batched_tokens * MAIN_QUEUE_STEPS;
    int64_t prompts = (int64_t)shape->max_model_len * MAIN_QUEUE_PROMPTS;

    if (steps > prompts)
        return steps;
    return prompts;
}

/* Masks are written directly into the model's pinned memory. */
static int main_open_guide(struct engine *e)
{
    const struct model_shape *s = model_shape(e->model);
    struct guide_shape shape = {
        .n_vocab = s->n_vocab, .max_num_seqs = s->max_num_seqs, .n_eos = s->n_eos, .eos = s->eos};
    int n_words;

    /* A sequence with a late mask skips a step and computes its last token twice. A recurrent state
     * cannot take a token twice, so steps of such models wait for all masks. */
    for (int group = 0; group < s->n_groups; group++)
        shape.waits = shape.waits || s->groups[group].kind == CACHE_STATE;

    shape.masks = model_masks(e->model, &n_words);
    must(n_words == (s->n_vocab + 31) / 32);
    return guide_init(&e->guide, &shape);
}

static int main_read_drafts(struct engine *e)
{
    char why[160];

    if (draft_read_options(&e->drafts, e->settings.speculative_config, why, sizeof why) == ERR_OK)
        return ERR_OK;
    log_error("engine: speculative_config: %s", why);
    return ERR_INVALID;
}

/* The scheduler, the pool of sequences and everything whose size depends on the model. */
static int main_open_queues(struct engine *e)
{
    const struct model_shape *shape = e->shape;
    int threshold = e->settings.long_prefill_token_threshold;
    struct sched_limits limits = {
        .max_num_seqs = shape->max_num_seqs,
        .max_num_batched_tokens = shape->max_num_batched_tokens,
        .long_prefill_tokens = threshold > 0 ? threshold : (shape->max_num_batched_tokens + 1) / 2,
        .page_tokens = shape->page_tokens,
        .prefix_caching = e->settings.enable_prefix_caching,
        .n_groups = shape->n_groups,
        .n_stages = shape->n_stages,
        .groups = shape->groups,
        .drafts = e->drafts.method == DRAFT_NONE ? NULL : &e->drafts,
        .cost = &e->cost,
        .itl_target_ms = e->settings.itl_target_ms,
    };
    struct seq_pool_limits of_seqs = {
        .n_seqs = e->settings.max_num_queued_reqs + shape->max_num_seqs,
        .max_model_len = shape->max_model_len,
        .page_tokens = shape->page_tokens,
        .n_vocab = shape->n_vocab,
        .n_groups = shape->n_groups,
        .has_drafts = limits.drafts != NULL && !draft_is_model(limits.drafts) &&
                      limits.drafts->method != DRAFT_FORCED};
    int rc = pages_open(&e->pages, shape->n_pages, shape->page_tokens);

    e->admission.max_num_queued_tokens = e->settings.max_num_queued_tokens;
    if (e->admission.max_num_queued_tokens == 0)
        e->admission.max_num_queued_tokens = main_queued_tokens(shape);
    e->admission.n_places = shape->max_num_seqs;
    if (rc == ERR_OK)
        pages_bound_kept(e->pages,
                         (int)((int64_t)shape->n_pages * e->settings.kv_retained_pct / 100));
    if (rc == ERR_OK)
        rc = sched_init(&e->sched, &limits, e->pages);
    of_seqs.n_state_pages = e->sched.tables.n_state_pages;
    if (rc == ERR_OK)
        rc = seq_pool_init(&e->pool, &of_seqs);
    if (rc == ERR_OK)
        rc = main_open_guide(e);
    e->drafts.guide = &e->guide;
    if (rc == ERR_OK)
        rc = fill_init(e);
    if (rc == ERR_OK)
        rc = trial_run(e);
    if (rc == ERR_OK)
        rc = tiers_init(e);
    if (rc == ERR_OK)
        rc = cache_admin_init(e);
    return rc;
}

/* Which kinds of groups the model has, and how large its states are. */
static void main_show_groups(struct engine *e)
{
    uint32_t groups = 0;

    for (int group = 0; group < e->shape->n_groups; group++)
        groups |= 1u << e->shape->groups[group].kind;
    atomic_store_explicit(&e->stats.page->groups, groups, memory_order_relaxed);
    stats_set(&e->stats, METRIC_snapshot_bytes,
              (uint64_t)e->sched.tables.n_state_pages * e->shape->page_bytes);
}

/* The settings as labels that vLLM's dashboards read, as far as they apply. */
static void main_show_config(struct engine *e)
{
    const struct settings *settings = &e->settings;

    main_show_groups(e);
    stats_config(&e->stats,
                 "block_size=\"%d\",cache_dtype=\"%.16s\",enable_prefix_caching=\"%s\","
                 "gpu_memory_utilization=\"%g\",num_gpu_blocks=\"%d\",num_cpu_blocks=\"%d\","
                 "sliding_window=\"None\"",
                 e->shape->page_tokens, settings->kv_cache_dtype,
                 settings->enable_prefix_caching ? "True" : "False",
                 settings->gpu_memory_utilization, e->shape->n_pages,
                 e->tiers.host == NULL ? 0 : (int)host_n_slots(e->tiers.host));
}

/* The order matters: later parts need the model's shape, and the socket comes last. */
static int main_open(struct engine *e)
{
    int rc = service_signal_fd(&e->intake.signal_fd);

    e->now_us = clock_us();
    e->progress_us = e->now_us;
    if (rc == ERR_OK)
        rc = names_read(&e->names, e->settings.served_model_name, e->settings.model);
    e->epoch = (uint64_t)clock_unix_s() << 20 | ((uint64_t)getpid() & 0xfffff);
    /* The socket of an engine that is started by the first connection. */
    e->intake.listener.fd = service_listen_fd();
    if (rc == ERR_OK && e->intake.listener.fd != -1)
        rc = attach_adopt(e->intake.listener.fd);
    if (rc == ERR_OK && e->settings.models_run[0] != '\0')
        rc = main_open_seats(e);
    if (rc == ERR_OK)
        rc = main_read_drafts(e);
    if (rc == ERR_OK)
        rc = main_open_model(e);
    if (rc == ERR_OK)
        rc = drafter_join(e);
    if (rc == ERR_OK)
        main_tell_use(e);
    if (rc == ERR_OK)
        rc = main_open_store(e);
    if (rc == ERR_OK)
        rc = main_open_host(e);
    if (rc == ERR_OK)
        rc = main_open_queues(e);
    if (rc == ERR_OK)
        rc = main_open_lanes(e);
    if (rc == ERR_OK)
        rc = stats_open(&e->stats);
    if (rc == ERR_OK)
        rc = held_open(&e->held, e->stats.held);
    if (rc == ERR_OK)
        rc = lora_open(e, e->stats.adapters);
    if (rc == ERR_OK)
        main_show_config(e);
    if (rc == ERR_OK && e->tiers.host != NULL)
        host_wait(e->tiers.host, MAIN_HOST_WAIT_US);
    /* Last, so that a front that connects is answered at once. */
    if (rc == ERR_OK && e->intake.listener.fd == -1)
        rc = attach_listen(e->settings.engine_socket, &e->intake.listener.fd);
    if (rc == ERR_OK)
        rc = intake_init(e);
    return rc;
}

/* The exit code for an error at start; see the head of this file. */
static int main_status(int rc)
{
    switch (rc) {
    case ERR_GPU: return 3;
    case ERR_NO_MEMORY:
    case ERR_IO:
    case ERR_IN_USE:
    case ERR_AGAIN: return 2;
    default: return 1;
    }
}

/* Save the cache, then close from the top down. pages_check() proves that no page has leaked. */
static int main_close(struct engine *e)
{
    int rc = tiers_save_all(e);

    lora_close(e);
    cache_admin_save_rates(e);
    store_close(e->tiers.store);
    e->tiers.store = NULL;
    host_close(e->tiers.host);
    e->tiers.host = NULL;
    if (service_listen_fd() == -1) /* otherwise it belongs to the process that passed it */
        (void)unlink(e->settings.engine_socket);
    if (rc != ERR_OK)
        return rc; /* a device that has failed might never release the model */
    drafter_close(&e->drafter);
    model_close(e->model);
    e->model = NULL;
    pages_check(e->pages);
    pages_close(e->pages);
    e->pages = NULL;
    return ERR_OK;
}

/* Node 1 of two has no fronts, pages of its own or plan: it follows node 0. The exit code says that
 * it is to be started again, unless it was stopped. */
static int main_follow(struct engine *e)
{
    int rc = service_signal_fd(&e->intake.signal_fd);

    if (rc == ERR_OK)
        rc = main_open_model(e);
    if (rc != ERR_OK) {
        log_error("engine: cannot start: %s", err_sentence(rc));
        return main_status(rc);
    }
    mem_seal();
    service_ready();
    log_info("engine: ready as node %d on %s", e->settings.node_rank, e->shape->device);
    rc = model_follow(e->model, e->intake.signal_fd);
    if (rc == ERR_DRAINING) {
        log_info("engine: stopped");
        return 0;
    }
    return 3;
}

/* Signals are blocked before any thread starts, so that all threads inherit it and only the signal
 * descriptor receives them. */
int main(int argc, char **argv)
{
    static struct engine engine = {
        .intake = {.epoll_fd = -1, .signal_fd = -1, .listener = {.who = "engine", .fd = -1}}};
    bool exit_now = false;
    int rc;

    service_block_signals();
    fault_init();
    if (settings_read(&engine.settings, 'E', argc, argv, &exit_now) != ERR_OK)
        return 1;
    if (exit_now)
        return 0;
    rc = log_set_level_text(engine.settings.log_level);
    if (rc == ERR_OK)
        rc = replica_take(&engine.settings);
    if (rc == ERR_OK && engine.settings.nnodes > 1 && engine.settings.node_rank > 0)
        return main_follow(&engine);
    if (rc == ERR_OK)
        rc = main_open(&engine);
    if (rc == ERR_DRAINING)
        return 0; /* stopped while it waited for memory */
    if (rc != ERR_OK) {
        log_error("engine: cannot start: %s", err_sentence(rc));
        return main_status(rc);
    }
    mem_seal();
    service_ready();
    log_info("engine: ready on %s: %d pages of %d tokens, up to %d sequences and %d tokens a step",
             engine.shape->device, engine.shape->n_pages, engine.shape->page_tokens,
             engine.shape->max_num_seqs, engine.shape->max_num_batched_tokens);
    rc = engine_run(&engine);
    if (rc != ERR_OK)
        return 3; /* nothing is saved: the memory of a failed device cannot be trusted */
    if (main_close(&engine) != ERR_OK)
        return 3;
    log_info("engine: stopped");
    return 0;
}
