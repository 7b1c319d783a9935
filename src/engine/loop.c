/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop. The device computes one step while the next is planned, filled and begun: that one
 * takes its tokens from the first on the device. An idle engine sleeps in epoll and wakes once a
 * second to show that it lives; a busy one never waits for anything but the device. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/must.h"
#include "base/service.h"
#include "engine/engine.h"

#define LOOP_TICK_MS    1000 /* idle: heartbeat and watchdog */
#define LOOP_PAUSED_MS  2    /* everybody waits for a slow client or the disk: look again */
#define LOOP_WRITE_BUSY 1    /* pages written behind per step: bounds the copies a step pays for */
#define LOOP_WRITE_IDLE 8

/* How long intake may sleep. */
static int loop_timeout_ms(const struct engine *e)
{
    if (!power_is_awake(&e->power))
        return sleep_timeout_ms(e, cache_admin_has_work(e) || e->power.n_orders > 0 ? LOOP_PAUSED_MS
                                                                                    : LOOP_TICK_MS);
    if (e->n_begun != e->n_ended)
        return 0;
    if (e->tiers.n_loads_used > 0 && tiers_copy_in(e))
        return 0; /* some milliseconds at most, and somebody waits for them */
    if (e->sched.n_running + sched_n_waiting(&e->sched) == 0)
        return tiers_have_work(e) || cache_admin_has_work(e) ? LOOP_PAUSED_MS
               : e->draining                                 ? 0
                                                             : sleep_timeout_ms(e, LOOP_TICK_MS);
    return e->sched.n_planned == 0 ? LOOP_PAUSED_MS : 0;
}

/* Sleep unless there is work. The flags are set on all lanes before the last look at any. */
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

/* The plan's copies, whether or not a step comes of it; a copy may go to a page that was evicted
 * for it. */
static int loop_copy_pages(struct engine *e)
{
    struct tables *tables = &e->sched.tables;
    int rc = ERR_OK;

    if (tables->n_copies > 0)
        tiers_save_evicted(e);
    for (int i = 0; i < tables->n_copies && rc == ERR_OK; i++)
        rc = model_page_copy(e->model, tables->copies[i].to, tables->copies[i].from);
    tables_copied(tables);
    return rc;
}

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

/* Is there a sequence that could be computed? Clients that do not take what they have are theirs to
 * mend. */
static bool loop_has_work(struct engine *e)
{
    const struct seq *q;

    for (int i = 0; i < e->sched.n_running; i++) {
        if (!e->sched.running[i]->paused)
            return true;
    }
    tenants_begin(&e->sched.tenants);
    while ((q = tenants_next(&e->sched.tenants)) != NULL) {
        if (!q->paused)
            return true;
    }
    return e->n_begun != e->n_ended;
}

/* Wait for the oldest step and tell everybody. */
static int loop_end_step(struct engine *e)
{
    const struct engine_step *step = &e->steps[e->n_ended % MODEL_STEPS_MAX];
    int rc = model_step_end(e->model, e->row_tokens, e->logprobs);

    if (rc != ERR_OK)
        return rc;
    e->n_ended++;
    e->now_us = clock_us();
    publish_step(e, step);
    return ERR_OK;
}

/* The step that begins, if rows of it wait for tokens: now all are known. */
static int loop_sample_step(struct engine *e)
{
    struct engine_step *step = &e->steps[(e->n_begun - 1) % MODEL_STEPS_MAX];
    int rc;

    if (!step->waits)
        return ERR_OK;
    fill_extras(e, step);
    rc = fill_rows(e, step);
    return rc == ERR_OK ? model_step_sample(e->model, &e->batch) : rc;
}

/* One step is begun and one ended in a pass: the one before, whose tokens the new one takes on the
 * device. Rows that wait for tokens (penalties, masks) are sampled behind that end, while the
 * device computes their logits. Where pages are short the old step ends first, and the device
 * stands still meanwhile. */
static int loop_steps(struct engine *e)
{
    bool ahead = e->n_begun != e->n_ended && sched_has_room(&e->sched);
    bool begins;
    int rc = ERR_OK;

    if (e->n_begun != e->n_ended && !ahead)
        rc = loop_end_step(e);
    if (rc != ERR_OK)
        return rc;
    sched_plan(&e->sched);
    begins = e->sched.n_planned > 0 && !FAULT_HIT(engine_stall);
    rc = loop_copy_pages(e);
    if (rc == ERR_OK && begins)
        rc = loop_begin_step(e);
    if (rc == ERR_OK && ahead)
        rc = loop_end_step(e);
    if (rc == ERR_OK && begins)
        rc = loop_sample_step(e);
    return rc;
}

/* What a pass does with the device. */
static int loop_compute(struct engine *e)
{
    int rc;

    tiers_prefetch(e);
    guide_pass(&e->guide, e->sched.running, e->sched.n_running);
    if ((rc = loop_steps(e)) != ERR_OK)
        return rc;
    tiers_save_evicted(e);
    tiers_write_behind(e, e->sched.n_running == 0 ? LOOP_WRITE_IDLE : LOOP_WRITE_BUSY);
    return ERR_OK;
}

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
        tiers_poll(e);
        if (e->tiers.device_failed)
            return ERR_GPU;
        if (power_is_awake(&e->power) && (rc = loop_compute(e)) != ERR_OK)
            return rc;
        if (e->n_ended != n_ended || !loop_has_work(e))
            e->progress_us = e->now_us;
        rate_pass(&e->admission.rate, e->now_us,
                  power_is_awake(&e->power) && sched_n_waiting(&e->sched) > 0);
        publish_wake(e);
        service_watchdog(e->now_us);
        e->stop = e->draining && e->sched.n_running + sched_n_waiting(&e->sched) == 0 &&
                  e->n_begun == e->n_ended;
    }
    return ERR_OK;
}
