/* SPDX-License-Identifier: Apache-2.0
 *
 * Sleep: an idle engine gives the device's memory back and takes it again when a request comes.
 * sleep.c has the states. The engine's thread alone. */
#ifndef QUIRE_ENGINE_SLEEP_H
#define QUIRE_ENGINE_SLEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ipc/wire.h"

struct engine;
struct engine_lane;

/* AWAKE -> SAVING -> FALLING -> ASLEEP -> WAKING -> AWAKE; a request ends SAVING and FALLING
 * early. */
enum power_state {
    POWER_AWAKE,
    POWER_SAVING,
    POWER_FALLING,
    POWER_ASLEEP, /* from here on the device cannot be used */
    POWER_WAKING,
};

/* A front that waits for the engine to be asleep, or awake. */
struct power_order {
    int lane_idx;
    uint32_t slot;
    enum wire_power_action action;
};

#define POWER_ORDERS 32

struct power {
    enum power_state state;
    uint64_t since_us;
    uint64_t used_us;   /* when a request ended last, or the engine began; probes do not count */
    uint64_t retry_us;  /* POWER_WAKING: when to ask for memory again */
    uint64_t told_us;   /* POWER_WAKING: when the lack of memory was logged last */
    uint64_t looked_us; /* when the model's file was looked for last */
    uint64_t gone_us;   /* since when it is missing; 0: it is not */
    struct power_order orders[POWER_ORDERS];
    int n_orders;
};

/* May steps and copies of pages begin? */
static inline bool power_is_awake(const struct power *p)
{
    return p->state < POWER_ASLEEP;
}

void sleep_init(struct engine *e); /* before the first pass */

/* Once per pass: fall asleep after sleep_after_s without requests, wake for a waiting request.
 * ERR_OK; ERR_GPU when the device failed. */
int sleep_pass(struct engine *e) ERR_CHECKED;

/* How long the loop may wait for events, if it would wait longest_ms otherwise. */
int sleep_timeout_ms(const struct engine *e, int longest_ms);

/* Begin to fall asleep. ERR_AGAIN while there is a request; ERR_UNSUPPORTED when the memory was not
 * allocated for it (sleep_after_s is 0, or the device cannot). No effect on an engine that
 * sleeps. */
int sleep_begin(struct engine *e) ERR_CHECKED;
void sleep_end(struct engine *e); /* wake without a request */

/* An operator's command to sleep or wake: the slot ends when that is done. Errors as for
 * sleep_begin(), but ERR_BUSY for ERR_AGAIN; ERR_OVERLOADED, ERR_INVALID. */
int sleep_ask(struct engine *e, const struct engine_lane *lane, uint32_t slot,
              const struct wire_power *p) ERR_CHECKED;
void sleep_forget_lane(struct engine *e, const struct engine_lane *lane);

#endif
