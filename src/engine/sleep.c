/* SPDX-License-Identifier: Apache-2.0
 *
 * An idle engine gives the device's memory back, so that several models can share a machine; the
 * next request wakes it.
 *
 *   AWAKE -> SAVING -> FALLING -> ASLEEP -> WAKING -> AWAKE
 *
 * SAVING: pages that no lower tier has are saved by the usual passes of the loop. FALLING: weights
 * are copied to host memory, some milliseconds of work per pass. Until then a request is served at
 * once; afterwards it waits. While the engine wakes, the loop continues: requests are taken,
 * cancelled and time out, and the watchdog and /health are served.
 *
 * Pages of the device lose their names with their contents: later requests find their prefixes in
 * the host tier or on disk, or compute them. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "base/service.h"
#include "engine/engine.h"

#define SLEEP_SAVE_US  30000000u /* for pages to be saved; the rest is lost */
#define SLEEP_RETRY_US 100000u   /* between attempts to get the device's memory */
#define SLEEP_TELL_US  10000000u /* between two log lines about the lack of memory */
#define SLEEP_SEAT_US  10000u    /* between attempts to get a seat */
#define SLEEP_SEAT_MS  20        /* an awake engine looks so often whether its seat is wanted */
#define SLEEP_SPREAD   64        /* milliseconds between the attempts of different engines */
#define SLEEP_LOOK_US  500000u   /* between two looks for the model's file */
#define SLEEP_GONE_US  5000000u  /* fronts have noticed by then that it is gone */
#define SLEEP_OTHER_US 500000u   /* as long as fronts need to take it for another one */
#define MIB            (1.0 / 1048576.0)

/* When the engine is to fall asleep; 0: never. */
static uint64_t sleep_due_us(const struct engine *e)
{
    if (e->settings.sleep_after_s == 0)
        return 0;
    return e->power.used_us + (uint64_t)e->settings.sleep_after_s * 1000000u;
}

/* A pass is due at the next change of state that time alone causes; in FALLING every pass has
 * work. */
int sleep_timeout_ms(const struct engine *e, int longest_ms)
{
    uint64_t then_us = e->now_us;

    if (e->seats != NULL && e->power.state == POWER_AWAKE && longest_ms > SLEEP_SEAT_MS)
        longest_ms = SLEEP_SEAT_MS;
    switch (e->power.state) {
    case POWER_AWAKE: then_us = sleep_due_us(e); break;
    case POWER_SAVING:
    case POWER_ASLEEP: break;
    case POWER_FALLING: return 0;
    case POWER_WAKING:
        if (e->power.retry_us <= e->now_us)
            return 0;
        then_us = e->power.retry_us;
        break;
    }
    if (then_us <= e->now_us || then_us - e->now_us > (uint64_t)longest_ms * 1000)
        return longest_ms;
    return (int)((then_us - e->now_us) / 1000) + 1;
}

/* The time of the change is the base of all timeouts of the new state. */
static void sleep_enter(struct engine *e, enum power_state power)
{
    e->power.state = power;
    e->power.since_us = e->now_us;
}

/* Metrics and the service manager's status line. */
static void sleep_show(struct engine *e, bool asleep)
{
    size_t bytes = e->shape->device_bytes - (asleep ? e->shape->sleeping_bytes : 0);

    stats_set(&e->stats, METRIC_sleep_awake, asleep ? 0 : 1);
    stats_set(&e->stats, METRIC_sleep_offloaded, asleep ? 1 : 0);
    stats_set(&e->stats, METRIC_device_bytes, bytes);
    service_status(asleep ? "asleep: %s on %s" : "serving %s on %s", e->settings.model,
                   e->shape->device);
}

/* --- falling asleep ------------------------------------------------------------------------- */

/* Nothing refers to a page of the device. Requests that wait while the scheduler admits none have
 * no pages: they wait until the engine has a seat again. */
static bool sleep_is_idle(const struct engine *e)
{
    int n_waiting = e->sched.holds ? 0 : sched_n_waiting(&e->sched);

    return e->sched.n_running + n_waiting == 0 && e->n_begun == e->n_ended &&
           e->tiers.n_loads_used == 0 && !e->draining;
}

/* Asleep: other engines may have the seat. */
static void sleep_enter_asleep(struct engine *e)
{
    e->sched.holds = false;
    if (e->seats != NULL)
        seats_give(e->seats, SEAT_ASLEEP);
    sleep_enter(e, POWER_ASLEEP);
}

/* Another engine wants the seat: let the running requests end, admit no more, and sleep. */
static void sleep_yield(struct engine *e)
{
    int rc;

    if (e->seats == NULL)
        return;
    seats_note(e->seats, (uint32_t)(e->sched.n_running + sched_n_waiting(&e->sched)),
               e->power.used_us);
    e->sched.holds = power_is_awake(&e->power) && !e->draining && seats_asked(e->seats);
    if (!e->sched.holds || e->power.state != POWER_AWAKE)
        return;
    rc = sleep_begin(e);
    if (rc != ERR_OK && rc != ERR_AGAIN)
        seats_refuse(e->seats);
}

/* Only an idle engine may sleep: a sequence's pages would lose their content. */
int sleep_begin(struct engine *e)
{
    if (!e->shape->sleeps)
        return ERR_UNSUPPORTED;
    if (!sleep_is_idle(e))
        return ERR_AGAIN;
    if (e->power.state == POWER_AWAKE) {
        tiers_gather(e);
        sleep_enter(e, POWER_SAVING);
    }
    return ERR_OK;
}

/* Wait until everything is saved. Copies that were started write to memory that is given back next,
 * so they are waited for; a device that completes none has failed. */
static int sleep_save(struct engine *e)
{
    if (tiers_have_work(e)) {
        if (e->now_us - e->power.since_us > SLEEP_SAVE_US)
            tiers_give_up(e);
        if (tiers_are_stuck(e))
            return ERR_GPU;
        return ERR_OK;
    }
    must(pages_free(e->pages) == pages_count(e->pages));
    sleep_enter(e, POWER_FALLING);
    return ERR_OK;
}

/* Make every page free and nameless. All can be taken, because no sequence has one. */
static void sleep_forget_pages(struct engine *e)
{
    struct page_label label;
    bool evicted;
    int n = 0;

    while (pages_take(e->pages, &evicted, &label) >= 0)
        n++;
    must(n == pages_count(e->pages));
    for (int i = 0; i < n; i++)
        pages_unref(e->pages, i);
    must(pages_cached(e->pages) == 0);
    pages_check(e->pages);
}

/* One piece of copying the weights; ERR_AGAIN means that more remains. On a lack of host memory the
 * engine stays awake. */
static int sleep_fall(struct engine *e)
{
    int n_cached = pages_cached(e->pages);
    int rc = drafter_sleep(&e->drafter);

    if (rc == ERR_OK)
        rc = model_sleep(e->model);
    e->now_us = clock_us();
    if (rc == ERR_AGAIN)
        return ERR_OK;
    if (rc == ERR_NO_MEMORY) {
        log_warn("engine: cannot sleep; the next attempt is after %d s without requests",
                 e->settings.sleep_after_s);
        e->power.used_us = e->now_us;
        if (e->seats != NULL)
            seats_refuse(e->seats);
        sleep_enter(e, POWER_AWAKE);
        return ERR_OK;
    }
    if (rc != ERR_OK)
        return rc;
    sleep_forget_pages(e);
    log_info("engine: asleep: %.0f MiB of the device's memory are given back, %.0f MiB of weights "
             "are in host memory, %d pages left the device, in %.2f s",
             (double)e->shape->sleeping_bytes * MIB, (double)e->shape->constant_bytes * MIB,
             n_cached, (double)(e->now_us - e->power.since_us) * 1e-6);
    sleep_enter_asleep(e);
    sleep_show(e, true);
    return ERR_OK;
}

/* Refuse requests that have waited for wake_timeout_s, since their arrival or since waking
 * began. */
static void sleep_refuse(struct engine *e)
{
    uint64_t longest_us = (uint64_t)e->settings.wake_timeout_s * 1000000u;

    for (int i = 0; i < e->pool.n; i++) {
        struct seq *seq = &e->pool.seqs[i];
        uint64_t since_us = seq->request.arrival_us;

        if (since_us < e->power.since_us)
            since_us = e->power.since_us;
        if (seq->state != SEQ_FREE && e->now_us > since_us + longest_us)
            publish_refuse(e, seq, WIRE_REFUSED_TIMEOUT, ERR_ASLEEP);
    }
}

/* --- waking --------------------------------------------------------------------------------- */

/* Saved pages stay saved: a sleep that was cancelled costs nothing but the copies. */
void sleep_end(struct engine *e)
{
    if (e->power.state == POWER_SAVING || e->power.state == POWER_FALLING) {
        e->power.used_us = e->now_us;
        sleep_enter(e, POWER_AWAKE);
    }
    if (e->power.state != POWER_ASLEEP)
        return;
    e->power.retry_us = 0;
    e->power.told_us = 0;
    sleep_enter(e, POWER_WAKING);
}

/* Other processes have the memory. Everything that was obtained is given back, so that they are not
 * in each other's way, and each tries again after its own delay. */
static void sleep_wait(struct engine *e)
{
    uint64_t longest_us = (uint64_t)e->settings.wake_timeout_s * 1000000u;

    e->power.retry_us = e->now_us + SLEEP_RETRY_US + (uint64_t)(getpid() % SLEEP_SPREAD) * 1000;
    if (e->power.told_us == 0 || e->now_us - e->power.told_us > SLEEP_TELL_US) {
        log_warn("engine: cannot wake: %.0f MiB of the device's memory are not free; %d requests "
                 "wait, %d s each at most",
                 (double)e->shape->sleeping_bytes * MIB, sched_n_waiting(&e->sched),
                 e->settings.wake_timeout_s);
        e->power.told_us = e->now_us;
    }
    sleep_refuse(e);
    if (sched_n_waiting(&e->sched) == 0 && e->now_us - e->power.since_us > longest_us)
        sleep_enter_asleep(e);
}

/* Other engines have the seats: as sleep_wait(), but the wait is in turn, so attempts may be
 * frequent. */
static void sleep_wait_seat(struct engine *e)
{
    uint64_t longest_us = (uint64_t)e->settings.wake_timeout_s * 1000000u;

    e->power.retry_us = e->now_us + SLEEP_SEAT_US;
    e->progress_us = e->now_us; /* the engine is well */
    sleep_refuse(e);
    if (sched_n_waiting(&e->sched) == 0 &&
        (e->power.n_orders == 0 || e->now_us - e->power.since_us > longest_us))
        sleep_enter_asleep(e);
}

/* One piece of waking. The device's memory comes first, and then the weights in pieces
 * (ERR_AGAIN). */
static int sleep_rise(struct engine *e)
{
    double took_s;
    int rc;

    if (e->now_us < e->power.retry_us)
        return ERR_OK;
    if (e->seats != NULL && seats_take(e->seats, &e->seat_room, e->now_us) != ERR_OK) {
        sleep_wait_seat(e);
        return ERR_OK;
    }
    rc = drafter_wake(&e->drafter);
    if (rc == ERR_OK)
        rc = model_wake(e->model);
    e->now_us = clock_us();
    if (rc == ERR_NO_MEMORY) {
        if (e->seats != NULL)
            seats_press(e->seats, e->now_us);
        sleep_wait(e);
        return ERR_OK;
    }
    if (rc != ERR_OK && rc != ERR_AGAIN)
        return rc;
    e->progress_us = e->now_us;
    if (rc == ERR_AGAIN)
        return ERR_OK;
    took_s = (double)(e->now_us - e->power.since_us) * 1e-6;
    log_info("engine: awake after %.2f s; %d requests waited", took_s, sched_n_waiting(&e->sched));
    stats_observe(&e->stats, HISTOGRAM_wake, took_s);
    e->power.used_us = e->now_us;
    sleep_enter(e, POWER_AWAKE);
    sleep_show(e, false);
    return ERR_OK;
}

/* --- commands of operators -------------------------------------------------------------------- */

/* As a signal to stop does, but only without requests. Those that come meanwhile wait for the next
 * process, which the fronts' connections start. */
static int sleep_end_process(struct engine *e)
{
    if (e->seats == NULL)
        return ERR_UNSUPPORTED;
    if (!sleep_is_idle(e))
        return ERR_BUSY;
    log_info("engine: an operator unloads the model");
    intake_drain(e);
    return ERR_OK;
}

/* An order that is already fulfilled is answered in the next pass like any other. */
int sleep_ask(struct engine *e, const struct engine_lane *lane, uint32_t slot,
              const struct wire_power *p)
{
    int rc = ERR_OK;

    if (e->draining)
        return ERR_DRAINING;
    if (p->action > WIRE_END)
        return ERR_INVALID;
    if (e->power.n_orders == POWER_ORDERS)
        return ERR_OVERLOADED;
    for (int i = 0; i < e->power.n_orders; i++) {
        if (e->power.orders[i].lane_idx == (int)(lane - e->lanes) &&
            e->power.orders[i].slot == slot)
            return ERR_INVALID; /* a slot has one command at a time */
    }
    if (p->action == WIRE_END)
        return sleep_end_process(e);
    if (p->action == WIRE_WAKE)
        sleep_end(e);
    else if (e->power.state != POWER_ASLEEP)
        rc = sleep_begin(e);
    if (rc != ERR_OK)
        return rc == ERR_AGAIN ? ERR_BUSY : ERR_NO_SLEEP;
    e->power.orders[e->power.n_orders++] =
        (struct power_order){.lane_idx = (int)(lane - e->lanes),
                             .slot = slot,
                             .action = (enum wire_power_action)p->action};
    return ERR_OK;
}

/* Remove an order from the queue. */
static void sleep_end_order(struct engine *e, int i)
{
    e->power.n_orders--;
    memmove(&e->power.orders[i], &e->power.orders[i + 1],
            sizeof e->power.orders[0] * (size_t)(e->power.n_orders - i));
}

/* A front has gone: nothing is answered to it; a sleep or wake that it asked for goes on. */
void sleep_forget_lane(struct engine *e, const struct engine_lane *lane)
{
    for (int i = e->power.n_orders - 1; i >= 0; i--) {
        if (e->power.orders[i].lane_idx == lane - e->lanes)
            sleep_end_order(e, i);
    }
}

/* Answer the commands whose state was reached in an earlier pass, so that the lanes show it
 * already. */
static void sleep_answer(struct engine *e)
{
    if (e->power.state != POWER_AWAKE && e->power.state != POWER_ASLEEP)
        return;
    while (e->power.n_orders > 0) {
        const struct power_order *order = &e->power.orders[0];
        bool as_asked = (order->action == WIRE_SLEEP) == (e->power.state == POWER_ASLEEP);
        struct wire_out end = {
            .kind = WIRE_FINISHED, .finish = WIRE_FIN_STOP, .time_us = e->now_us};

        if (!as_asked) {
            end.finish = WIRE_FIN_ERROR;
            end.value = order->action == WIRE_SLEEP ? ERR_BUSY : ERR_ASLEEP;
        }
        lane_put(&e->lanes[order->lane_idx].lane, order->slot, end);
        sleep_end_order(e, 0);
    }
}

/* The engine of one of several models ends when the model's file, that of --config, is gone, or was
 * and is there again: fronts take that for another model. */
static void sleep_look(struct engine *e)
{
    bool is_gone;

    if (e->seats == NULL || e->settings.config[0] == '\0' || e->draining ||
        e->now_us - e->power.looked_us < SLEEP_LOOK_US)
        return;
    e->power.looked_us = e->now_us;
    is_gone = access(e->settings.config, F_OK) != 0 && errno == ENOENT;
    if (is_gone && e->power.gone_us == 0)
        e->power.gone_us = e->now_us;
    if (e->power.gone_us == 0 ||
        e->now_us - e->power.gone_us < (is_gone ? SLEEP_GONE_US : SLEEP_OTHER_US))
        return;
    log_info("engine: %s %s: the model is served no more", e->settings.config,
             is_gone ? "is gone" : "was replaced");
    intake_drain(e);
}

/* Each pass does a piece of the work of the current state. */
int sleep_pass(struct engine *e)
{
    uint64_t due_us = sleep_due_us(e);

    sleep_look(e);
    sleep_answer(e);
    sleep_yield(e);
    if (e->power.state == POWER_AWAKE && due_us > 0 && e->now_us >= due_us)
        (void)!sleep_begin(e); /* on error it is tried in the next pass */
    switch (e->power.state) {
    /* A request that came while the engine fell asleep ends that: nothing was given back yet. */
    case POWER_AWAKE: break;
    case POWER_SAVING:
    case POWER_FALLING:
        if (!sleep_is_idle(e))
            sleep_enter(e, POWER_AWAKE);
        else if (e->power.state == POWER_FALLING)
            return sleep_fall(e);
        else
            return sleep_save(e);
        break;
    case POWER_ASLEEP:
        if (sched_n_waiting(&e->sched) > 0)
            sleep_end(e);
        break;
    case POWER_WAKING: return sleep_rise(e);
    }
    return ERR_OK;
}

/* The first interval without requests begins with the engine. */
void sleep_init(struct engine *e)
{
    e->power.used_us = e->now_us;
    if (e->seats != NULL)
        seats_ready(e->seats);
    sleep_show(e, false);
}
