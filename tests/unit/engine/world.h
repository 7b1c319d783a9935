/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole engine in this process, with a small golden model on the cpu device, and fronts that the
 * test plays. A pass is that of engine_run() without its waits, and it leaves its step in flight:
 * what ends between two passes ends under a step. The clock can be put forward. */
#ifndef QUIRE_TESTS_UNIT_ENGINE_WORLD_H
#define QUIRE_TESTS_UNIT_ENGINE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "ipc/attach.h"
#include "tests/connect.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define WORLD_MODEL       "tests/golden/llama-gqa"
#define WORLD_VOCAB       320
#define WORLD_LEN         512
#define WORLD_PAGE_TOKENS 8
#define WORLD_SLOTS       16
#define WORLD_ARENA_BYTES 65536
#define WORLD_PASSES      4000 /* more than any test needs */
#define WORLD_OUT_MAX     (16 * WIRE_OUT_CAP)

struct world_options {
    int n_seqs;                                           /* at once; 0: 4 */
    int n_queued_reqs, n_queued_tokens, n_lanes, n_pages; /* 0: 8, no bound, 2, 400 */
    const char *drafts;                                   /* speculative_config; NULL: none */
    bool pools;                                           /* vectors, in place of tokens */
};

struct world {
    struct engine e;
    struct model_shape shape; /* the engine's; a test may change the ids that end a text */
    struct model *oracle;     /* the same model again, with pages of its own */
    struct run run;           /* of the oracle */
    char dir[40], path[64];
    uint64_t later_us; /* the engine's clock is ahead by this */
    struct world *next;
};

/* A front: its end of a lane. */
struct peer {
    struct world *w;
    struct lane lane;
    struct wire_welcome welcome;
    int control_fd;
    int fds[ATTACH_FDS];
    int rc; /* of the attempt to attach */
    _Atomic bool done;
};

/* What a slot's ring has brought. */
struct answer {
    struct wire_out out[WORLD_OUT_MAX]; /* all records in order */
    int n_out;
    int32_t tokens[WORLD_LEN];
    int n_tokens;
    bool ended; /* the last one is WIRE_FINISHED */
};

/* --- the engine ------------------------------------------------------------------------------- */

static struct model *world_model(const struct settings *s, const struct pooling *pooling)
{
    struct model_options options = {.dir = s->model,
                                    .device = "cpu",
                                    .cpu_threads = 1,
                                    .n_ranks = 1,
                                    .page_tokens = s->page_tokens,
                                    .max_num_seqs = s->max_num_seqs,
                                    .max_num_batched_tokens = s->max_num_batched_tokens,
                                    .num_pages = s->num_pages,
                                    .pooling = pooling};
    struct model *m = NULL;

    must_ok(model_open(&m, &options));
    return m;
}

static void world_open_queues(struct engine *e)
{
    const struct model_shape *s = e->shape;
    struct sched_limits limits = {.max_num_seqs = s->max_num_seqs,
                                  .max_num_batched_tokens = s->max_num_batched_tokens,
                                  .long_prefill_tokens = s->max_num_batched_tokens,
                                  .page_tokens = s->page_tokens,
                                  .prefix_caching = true,
                                  .n_groups = s->n_groups,
                                  .groups = s->groups,
                                  .drafts = e->drafts.method == DRAFT_NONE ? NULL : &e->drafts};
    struct seq_pool_limits of_seqs = {.n_seqs = e->settings.max_num_queued_reqs + s->max_num_seqs,
                                      .max_model_len = s->max_model_len,
                                      .page_tokens = s->page_tokens,
                                      .n_vocab = s->n_vocab,
                                      .n_groups = s->n_groups,
                                      .has_drafts = e->drafts.method != DRAFT_NONE};
    struct guide_shape guide = {.n_vocab = s->n_vocab, .max_num_seqs = s->max_num_seqs};
    int n_words;

    e->admission.max_num_queued_tokens = e->settings.max_num_queued_tokens;
    e->admission.n_places = s->max_num_seqs;
    must_ok(pages_open(&e->pages, s->n_pages, s->page_tokens));
    must_ok(sched_init(&e->sched, &limits, e->pages));
    must_ok(seq_pool_init(&e->pool, &of_seqs));
    guide.masks = model_masks(e->model, &n_words);
    must_ok(guide_init(&e->guide, &guide));
    must_ok(fill_init(e));
    must_ok(tiers_init(e));
    must_ok(cache_admin_init(e));
}

static void world_open_lanes(struct engine *e)
{
    e->lanes = mem_zalloc_array((size_t)e->settings.max_lanes, sizeof *e->lanes);
    must_ok(e->lanes == NULL);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        e->lanes[i].control_fd = -1;
        e->lanes[i].by_slot = mem_zalloc_array(WORLD_SLOTS, sizeof(struct seq *));
        must_ok(e->lanes[i].by_slot == NULL);
        must_ok(guide_lane_init(&e->lanes[i].guide));
    }
}

/* All worlds: what an engine allocates lives until its process ends. */
static struct world *worlds;

static inline int world_or(int value, int preset)
{
    return value > 0 ? value : preset;
}

static inline struct world *world_open(struct world_options o)
{
    struct world *w = mem_zalloc_array(1, sizeof *w);
    struct engine *e = &w->e;
    char program[] = "world", name[] = "--model", model[4096], why[160];
    char *argv[] = {program, name, model};
    bool exit_now;

    (void)snprintf(w->dir, sizeof w->dir, "/tmp/quire-world-XXXXXX");
    must_ok(mkdtemp(w->dir) == NULL);
    (void)snprintf(w->path, sizeof w->path, "%s/engine", w->dir);
    w->next = worlds;
    worlds = w;
    (void)snprintf(model, sizeof model, "%s", tap_path(WORLD_MODEL));
    must_ok(settings_read(&e->settings, 'E', 3, argv, &exit_now));
    e->settings.page_tokens = WORLD_PAGE_TOKENS;
    e->settings.lane_slots = WORLD_SLOTS;
    e->settings.lane_arena_bytes = WORLD_ARENA_BYTES;
    e->settings.max_num_seqs = world_or(o.n_seqs, 4);
    e->settings.max_num_batched_tokens = 256;
    e->settings.max_num_queued_reqs = world_or(o.n_queued_reqs, 8);
    e->settings.max_num_queued_tokens = world_or(o.n_queued_tokens, INT32_MAX);
    e->settings.max_lanes = world_or(o.n_lanes, 2);
    e->settings.num_pages = world_or(o.n_pages, 400);
    e->settings.queue_timeout_s = 300;
    e->now_us = clock_us();
    if (o.pools)
        e->pooling = (struct pooling){.kind = POOLING_EMBED, .sigma = 1.0};
    e->model = world_model(&e->settings, &e->pooling);
    w->oracle = world_model(&e->settings, &e->pooling);
    run_init(&w->run, w->oracle);
    w->shape = *model_shape(e->model);
    e->shape = &w->shape;
    must_ok(w->shape.n_words != WORLD_VOCAB || w->shape.max_model_len != WORLD_LEN);
    if (o.drafts != NULL)
        must_ok(draft_read_options(&e->drafts, o.drafts, why, sizeof why));
    world_open_queues(e);
    world_open_lanes(e);
    must_ok(stats_open(&e->stats));
    e->intake.signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->intake.listener = (struct listener){.who = "test", .fd = -1};
    must_ok(attach_listen(w->path, &e->intake.listener.fd));
    must_ok(intake_init(e));
    sleep_init(e);
    return w;
}

/* Plan a step and begin it. False: there is nothing to compute. */
static inline bool world_begin_step(struct engine *e)
{
    struct tables *tables = &e->sched.tables;
    const struct engine_step *step = &e->steps[e->n_begun % MODEL_STEPS_MAX];

    guide_pass(&e->guide, e->sched.running, e->sched.n_running);
    sched_plan(&e->sched);
    for (int i = 0; i < tables->n_copies; i++)
        must_ok(model_page_copy(e->model, tables->copies[i].to, tables->copies[i].from));
    tables_copied(tables);
    if (e->sched.n_planned == 0)
        return false;
    fill_batch(e);
    publish_admitted(e);
    must_ok(model_step_begin(e->model, &e->batch));
    if (!step->waits)
        must_ok(model_step_sample(e->model, &e->batch));
    e->n_begun++;
    sched_begin(&e->sched);
    return true;
}

static inline void world_end_step(struct engine *e)
{
    if (e->n_begun == e->n_ended)
        return;
    must_ok(model_step_end(e->model, e->row_tokens, e->logprobs));
    e->n_ended++;
    publish_step(e, &e->steps[(e->n_ended - 1) % MODEL_STEPS_MAX]);
}

/* Sample the step that was begun last, if it waits for the tokens of the one before. */
static inline void world_sample_step(struct engine *e)
{
    struct engine_step *step = &e->steps[(e->n_begun - 1) % MODEL_STEPS_MAX];

    if (!step->waits)
        return;
    fill_extras(e, step);
    must_ok(fill_rows(e, step));
    must_ok(model_step_sample(e->model, &e->batch));
}

/* As in the loop, the next step begins before the last one ends, where there are pages. */
static inline void world_steps(struct engine *e)
{
    bool ahead = e->n_begun != e->n_ended && sched_has_room(&e->sched);
    bool begins;

    if (!ahead)
        world_end_step(e);
    begins = world_begin_step(e);
    if (ahead)
        world_end_step(e);
    if (begins)
        world_sample_step(e);
}

static inline void world_intake(struct world *w)
{
    intake_events(&w->e, 0);
    w->e.now_us += w->later_us;
    intake_requests(&w->e);
    intake_cancellations(&w->e);
}

static inline void world_pass(struct world *w)
{
    world_intake(w);
    must_ok(sleep_pass(&w->e));
    cache_admin_pass(&w->e);
    world_steps(&w->e);
    publish_wake(&w->e);
}

static inline uint64_t world_metric(const struct world *w, enum wire_metric m)
{
    return atomic_load(&w->e.stats.page->values[m]);
}

/* Nothing runs: are all pages, sequences and places back? The invariants stop at must(). */
static inline bool world_is_empty(const struct world *w)
{
    const struct engine *e = &w->e;
    int n_free = 0;
    bool good = e->sched.n_running == 0 && sched_n_waiting(&e->sched) == 0;

    sched_check(&e->sched);
    pages_check(e->pages);
    for (const struct seq *s = e->pool.free; s != NULL && n_free <= e->pool.n; s = s->next)
        n_free++;
    for (int i = 0; i < e->settings.max_lanes; i++) {
        for (int slot = 0; slot < WORLD_SLOTS; slot++)
            good = good && e->lanes[i].by_slot[slot] == NULL;
    }
    return good && n_free == e->pool.n && pages_free(e->pages) == pages_count(e->pages);
}

static inline void world_close(struct world *w)
{
    world_end_step(&w->e);
    (void)unlink(w->path);
    (void)rmdir(w->dir);
    (void)close(w->e.intake.listener.fd);
    (void)close(w->e.intake.signal_fd);
    (void)close(w->e.intake.epoll_fd);
    (void)close(w->e.stats.fd);
    model_close(w->e.model);
    model_close(w->oracle);
    pages_close(w->e.pages);
    settings_fini(&w->e.settings);
}

/* --- fronts ----------------------------------------------------------------------------------- */

static void *peer_connect(void *context)
{
    struct peer *p = context;

    p->rc = attach_connect(p->w->path, 5000, &p->control_fd, &p->welcome, p->fds);
    atomic_store(&p->done, true);
    return NULL;
}

/* Attach to the engine, which makes its passes meanwhile. ERR_OK, or the welcome's error. */
static inline int peer_open(struct world *w, struct peer *p)
{
    pthread_t thread;

    *p = (struct peer){.w = w, .control_fd = -1};
    must_ok(pthread_create(&thread, NULL, peer_connect, p));
    while (!atomic_load(&p->done))
        world_pass(w);
    must_ok(pthread_join(thread, NULL));
    world_pass(w);
    if (p->rc != ERR_OK)
        return p->rc;
    must_ok(lane_attach(&p->lane, p->fds[ATTACH_LANE], p->welcome.lane_bytes));
    p->lane.wake_fd = p->control_fd;
    return ERR_OK;
}

static inline void peer_close(struct peer *p)
{
    lane_detach(&p->lane);
    for (int i = 0; i < ATTACH_FDS; i++)
        (void)close(p->fds[i]);
    (void)close(p->control_fd);
}

/* The engine's end of a front's lane: the lanes are taken in order. */
static inline struct engine_lane *peer_lane(const struct peer *p, int i)
{
    return &p->w->e.lanes[i];
}

/* A request for n tokens that no end-of-text ends. */
static inline struct wire_request peer_request(int n_tokens, int n)
{
    return (struct wire_request){.n_tokens = (uint32_t)n_tokens,
                                 .flags = WIRE_IGNORE_EOS,
                                 .arrival_us = clock_us(),
                                 .tenant = "t0",
                                 .generate = {.n_prompt = (uint32_t)n_tokens,
                                              .max_tokens = (uint32_t)n,
                                              .n_choices = 1,
                                              .sampling = sampling_greedy()}};
}

static inline void peer_submit(struct peer *p, uint32_t slot, struct wire_request r,
                               const int32_t *tokens, const int32_t *extra)
{
    must_ok(lane_submit(&p->lane, slot, r, tokens, extra));
    lane_publish(&p->lane);
}

/* Take at most `most` records of a slot. */
static inline void peer_read(struct peer *p, uint32_t slot, struct answer *a, int most)
{
    struct wire_out o;

    while (most-- > 0 && a->n_out < WORLD_OUT_MAX && lane_record(&p->lane, slot, &o)) {
        a->out[a->n_out++] = o;
        if (o.kind == WIRE_TOKEN && a->n_tokens < WORLD_LEN)
            a->tokens[a->n_tokens++] = o.value;
        a->ended = o.kind == WIRE_FINISHED;
    }
}

/* Passes until the slot's answer has ended. */
static inline void peer_await(struct peer *p, uint32_t slot, struct answer *a)
{
    for (int i = 0; i < WORLD_PASSES && !a->ended; i++) {
        peer_read(p, slot, a, WORLD_OUT_MAX);
        if (!a->ended)
            world_pass(p->w);
    }
}

/* The last record; kind 0: there is none yet, or it is no end. */
static inline struct wire_out answer_end(const struct answer *a)
{
    return a->ended ? a->out[a->n_out - 1] : (struct wire_out){0};
}

/* --- what is expected ------------------------------------------------------------------------- */

static inline void world_prompt(int32_t *tokens, int n, unsigned seed)
{
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)(random_next(&seed) % WORLD_VOCAB);
}

/* The n greedy tokens after a prompt, of the oracle alone. */
static inline void world_expect(struct world *w, const int32_t *prompt, int n_prompt, int32_t *out,
                                int n)
{
    static struct run_seq s;

    s = (struct run_seq){.n_tokens = n_prompt};
    memcpy(s.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    must_ok(run_greedy(&w->run, &s, 256, n));
    memcpy(out, s.tokens + n_prompt, (size_t)n * sizeof *out);
}

#endif
