/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop. The device computes one step while the next one is planned, filled and begun: that one
 * takes the previous step's tokens directly on the device. An idle engine sleeps in epoll and wakes
 * once a second for its heartbeat; a busy one waits for nothing but the device. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "base/service.h"
#include "engine/engine.h"

#define LOOP_TICK_MS   1000 /* idle: heartbeat and watchdog */
#define LOOP_PAUSED_MS 2    /* every sequence waits for a slow client or the disk: look again */
/* Pages saved per step in the background: bounds the copies that a step is charged for */
#define LOOP_WRITE_BUSY 1
#define LOOP_WRITE_IDLE 8

/* The longest time that intake_events() may wait: 0 while the device computes or pages arrive, a
 * few milliseconds while something is expected that wakes no descriptor, else until the next
 * tick. */
static int loop_timeout_ms(const struct engine *e)
{
    if (!power_is_awake(&e->power)) {
        bool has_work = cache_admin_has_work(e) || e->power.n_orders > 0;

        return sleep_timeout_ms(e, has_work ? LOOP_PAUSED_MS : LOOP_TICK_MS);
    }
    if (e->n_begun != e->n_ended)
        return 0;
    if (e->tiers.n_loads_used > 0 && tiers_copy_in(e))
        return 0; /* some milliseconds at most, and a sequence waits for it */
    if (e->sched.n_running + sched_n_waiting(&e->sched) == 0) {
        if (tiers_have_work(e) || cache_admin_has_work(e))
            return LOOP_PAUSED_MS;
        if (e->draining)
            return 0;
        return sleep_timeout_ms(e, LOOP_TICK_MS);
    }
    if (e->sched.n_planned == 0)
        return LOOP_PAUSED_MS;
    return 0;
}

/* Sleep unless there is work. A front wakes the engine only if the lane's flag says that it sleeps.
 * So the flags are set on all lanes first, and then each lane is looked at once more: a request
 * that came between is seen here, a later one sees the flag. */
static void loop_wait(struct engine *e)
{
    int timeout_ms = loop_timeout_ms(e);

    for (int i = 0; i < e->settings.max_lanes && timeout_ms > 0; i++) {
        if (e->lanes[i].state == LANE_OPEN)
            lane_sleep_begin(&e->lanes[i].lane);
    }
    for (int i = 0; i < e->settings.max_lanes && timeout_ms > 0; i++) {
        if (e->lanes[i].state == LANE_OPEN && lane_has_work(&e->lanes[i].lane))
            timeout_ms = 0;
    }
    intake_events(e, timeout_ms);
    for (int i = 0; i < e->settings.max_lanes; i++) {
        if (e->lanes[i].state == LANE_OPEN)
            lane_sleep_end(&e->lanes[i].lane);
    }
}

/* Enqueue the plan's page copies, even if the plan has no step. Pages that a copy overwrites may
 * have been evicted for it, so their contents are saved first. */
static int loop_copy_pages(struct engine *e)
{
    struct tables *tables = &e->sched.tables;
    int rc = ERR_OK;

    if (tables->n_copies > 0)
        tiers_save_evicted(e);
    for (int i = 0; i < tables->n_copies && rc == ERR_OK; i++) {
        rc = model_page_copy(e->model, tables->copies[i].to, tables->copies[i].from);
        if (rc == ERR_OK)
            rc = drafter_copy_page(e, tables->copies[i].to, tables->copies[i].from);
    }
    tables_copied(tables);
    return rc;
}

/* Begin the planned step. The order matters: evicted pages are saved before the step overwrites
 * them; and a step whose rows need no further token is sampled at once, so that the device has both
 * in its queue. */
static int loop_begin_step(struct engine *e)
{
    int rc;

    must(!FAULT_HIT(engine_step));
    fill_batch(e);
    publish_admitted(e);
    tiers_save_evicted(e);
    rc = model_step_begin(e->model, &e->batch);
    if (rc == ERR_OK && !e->steps[e->n_begun % MODEL_STEPS_MAX].waits)
        rc = model_step_sample(e->model, &e->batch);
    if (rc != ERR_OK)
        return rc;
    e->n_begun++;
    sched_begin(&e->sched);
    publish_wake(e); /* the fronts send headers while the device computes */
    return ERR_OK;
}

/* Can any sequence be computed? Paused ones do not count: their clients do not read. */
static bool loop_has_work(struct engine *e)
{
    const struct seq *seq;

    for (int i = 0; i < e->sched.n_running; i++) {
        if (!e->sched.running[i]->paused)
            return true;
    }
    tenants_begin(&e->sched.tenants);
    while ((seq = tenants_next(&e->sched.tenants)) != NULL) {
        if (!seq->paused)
            return true;
    }
    return e->n_begun != e->n_ended;
}

/* The oldest step has ended: compare its time with the foretold one. It took the time since the
 * step before it ended, or since it began itself. A step without rows ends unseen by the host, and
 * its time would be counted to the next one. */
static void loop_learn(struct engine *e, const struct engine_step *step)
{
    uint64_t from_us = e->ended_us > step->begun_us ? e->ended_us : step->begun_us;
    double us = e->now_us > from_us ? (double)(e->now_us - from_us) : 0.0;

    if (step->n_rows > 0 && !e->end_is_unseen && us > 0.0) {
        log_debug("engine: step of %d tokens, %d sequences, %.0f keys, %.0f pairs: %.0f us, "
                  "foretold %.0f",
                  step->n_tokens, step->n_seqs, step->load.decode_keys, step->load.prompt_pairs, us,
                  cost_us(&e->cost, &step->load));
        stats_observe(&e->stats, HISTOGRAM_step_error, cost_learn(&e->cost, &step->load, us));
    }
    stats_add(&e->stats, METRIC_steps_limited, step->is_limited);
    e->end_is_unseen = step->n_rows == 0;
    e->ended_us = e->now_us;
}

/* Wait for the oldest step and publish its tokens. */
static int loop_end_step(struct engine *e)
{
    const struct engine_step *step = &e->steps[e->n_ended % MODEL_STEPS_MAX];
    int rc = model_step_end(e->model, e->row_tokens, e->logprobs);

    if (rc != ERR_OK)
        return rc;
    e->n_ended++;
    e->now_us = clock_us();
    loop_learn(e, step);
    publish_step(e, step);
    return ERR_OK;
}

/* Sample the step that was just begun, if its rows had to wait: now all tokens before it are
 * known. */
static int loop_sample_step(struct engine *e)
{
    struct engine_step *step = &e->steps[(e->n_begun - 1) % MODEL_STEPS_MAX];
    int rc;

    if (!step->waits)
        return ERR_OK;
    fill_extras(e, step);
    rc = fill_rows(e, step);
    if (rc != ERR_OK)
        return rc;
    return model_step_sample(e->model, &e->batch);
}

static int loop_n_under_way(const struct engine *e)
{
    return (int)(e->n_begun - e->n_ended);
}

/* End the oldest steps until n are in flight. */
static int loop_end_steps(struct engine *e, int n)
{
    int rc = ERR_OK;

    while (rc == ERR_OK && loop_n_under_way(e) > 0 && loop_n_under_way(e) > n)
        rc = loop_end_step(e);
    return rc;
}

/* The steps that stay in flight at the end of a pass: one for each stage. If none began, the oldest
 * is waited for; before a step that waits for tokens is sampled, all others. */
static int loop_n_stay(const struct engine *e, bool begins)
{
    if (!begins)
        return loop_n_under_way(e) - 1;
    if (e->steps[(e->n_begun - 1) % MODEL_STEPS_MAX].waits)
        return 1;
    return e->shape->n_stages;
}

/* One pass begins a step and ends the one before it, whose tokens the later step takes on the
 * device:
 *
 *       host     plan n+1 | fill, begin n+1 | end n, publish | masks, sample n+1 | plan n+2 ...
 *       device   ... step n ...............|  ... step n+1 ..................................
 *
 * Rows that depend on the tokens themselves (penalties, masks) are sampled after step n has ended,
 * while the device still computes their logits. If the next plan might lack pages, steps in flight
 * end first and the device is idle meanwhile: a sequence with a step in flight cannot be preempted.
 *
 * With a drafter (drafter.h) the step in flight ends first, too, if a sequence in it has drafts:
 * the next ones continue its tokens.
 *
 * With several stages, so many steps are in flight, and the one that ends is the oldest:
 *
 *       host     begin n+2 | end n | begin n+3 | end n+1 | ...
 *       stage 1  ... n+1 ....... | n+2 ............ | n+3 ...
 *       stage 2  ... n ......... | n+1 ............ | n+2 ... */
static int loop_steps(struct engine *e)
{
    bool begins;
    int rc = ERR_OK;

    while (rc == ERR_OK && loop_n_under_way(e) > 0 &&
           (!sched_has_room(&e->sched) || drafter_awaits_step(e)))
        rc = loop_end_step(e);
    if (rc == ERR_OK)
        rc = drafter_pass(e);
    if (rc != ERR_OK)
        return rc;
    /* From here on the plan is fixed. It may be empty, and still have pages to copy. */
    sched_plan(&e->sched);
    begins = e->sched.n_planned > 0 && !FAULT_HIT(engine_stall);
    rc = loop_copy_pages(e);
    drafter_admit(e);
    if (rc == ERR_OK && begins)
        rc = loop_begin_step(e);
    if (rc == ERR_OK)
        rc = loop_end_steps(e, loop_n_stay(e, begins));
    if (rc == ERR_OK && begins)
        rc = loop_sample_step(e);
    return rc;
}

/* The part of a pass that uses the device. Loads are started before the plan, so that the pages
 * they need are asked for while the step runs; saves come after it, because they may wait. */
static int loop_compute(struct engine *e)
{
    int rc;

    if (!e->sched.holds)
        tiers_prefetch(e);
    if ((rc = lora_prepare(e)) != ERR_OK)
        return rc;
    guide_pass(&e->guide, e->sched.running, e->sched.n_running);
    if ((rc = loop_steps(e)) != ERR_OK)
        return rc;
    tiers_save_evicted(e);
    tiers_write_behind(e, e->sched.n_running == 0 ? LOOP_WRITE_IDLE : LOOP_WRITE_BUSY);
    return ERR_OK;
}

/* One pass of the loop, from the outside in: clients first, then memory and the cache, then the
 * device. Everything is called on this thread, so no part needs a lock. */
int engine_run(struct engine *e)
{
    e->now_us = clock_us();
    sleep_init(e);
    while (!e->stop) {
        unsigned n_ended = e->n_ended;
        int rc;

        loop_wait(e);
        intake_requests(e);
        intake_cancellations(e);
        if ((rc = sleep_pass(e)) != ERR_OK)
            return rc;
        cache_admin_pass(e);
        lora_pass(e);
        held_pass(e);
        tiers_poll(e);
        if (e->tiers.device_failed || model_is_lost(e->model))
            return ERR_GPU;
        if (power_is_awake(&e->power) && (rc = loop_compute(e)) != ERR_OK)
            return rc;
        /* Progress is reported as long as steps end. With work and no step for a while, the fronts'
         * liveness check fails. */
        if (e->n_ended != n_ended || !loop_has_work(e))
            e->progress_us = e->now_us;
        rate_pass(&e->admission.rate, e->now_us,
                  power_is_awake(&e->power) && sched_n_waiting(&e->sched) > 0);
        publish_wake(e);
        service_watchdog(e->now_us);
        /* Drained: nothing runs, nothing waits, and the last step has been published. */
        e->stop = e->draining && e->sched.n_running + sched_n_waiting(&e->sched) == 0 &&
                  e->n_begun == e->n_ended;
    }
    return ERR_OK;
}
