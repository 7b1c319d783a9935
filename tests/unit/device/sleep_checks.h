/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sleep of a device must do, whichever device: memory really goes, addresses stay, constant
 * memory comes back as it was, scratch memory zero, plain memory never goes; and what fails leaves
 * a device that can be used, or woken later. */
#ifndef QUIRE_TESTS_UNIT_DEVICE_SLEEP_CHECKS_H
#define QUIRE_TESTS_UNIT_DEVICE_SLEEP_CHECKS_H

#include "base/fault.h"
#include "device/device.h"
#include "tests/tap.h"

#define SLEEP_ARRAYS 7
#define SLEEP_CALLS  100000 /* of sleep() or wake() until it is over: a bound, not a wish */

#ifndef SLEEP_LARGEST
#define SLEEP_LARGEST ((size_t)160 << 20) /* lies over several pieces of a GPU's memory */
#endif

/* Sizes with odd ends. */
static const size_t sleep_sizes[SLEEP_ARRAYS] = {1, 4, 4096, 5000003, 300, SLEEP_LARGEST, 77777};

struct sleep_arrays {
    struct device *d;
    unsigned char *constant[SLEEP_ARRAYS], *scratch[SLEEP_ARRAYS], *plain;
    unsigned char *host; /* of the largest size */
};

/* Bytes that the device has taken from the system: each test's own. */
static size_t sleep_held(struct device *d);

static inline void sleep_pattern(struct sleep_arrays *a, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        a->host[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 13);
}

static inline bool sleep_put(struct sleep_arrays *a, void *to, size_t n, unsigned seed)
{
    sleep_pattern(a, n, seed);
    return a->d->ops->upload(a->d, to, a->host, n) == ERR_OK;
}

/* Whether an array holds its pattern; seed 0: zeros. */
static inline bool sleep_has(struct sleep_arrays *a, const void *from, size_t n, unsigned seed)
{
    unsigned char *got = malloc(n);
    bool same;

    if (seed == 0)
        memset(a->host, 0, n);
    else
        sleep_pattern(a, n, seed);
    same = a->d->ops->download(a->d, got, from, n) == ERR_OK && memcmp(got, a->host, n) == 0;
    free(got);
    return same;
}

static inline bool sleep_all_have(struct sleep_arrays *a, bool scratch_too)
{
    bool good = sleep_has(a, a->plain, 999, 99);

    for (unsigned i = 0; i < SLEEP_ARRAYS; i++) {
        good = good && sleep_has(a, a->constant[i], sleep_sizes[i], i + 1) &&
               sleep_has(a, a->scratch[i], sleep_sizes[i], scratch_too ? i + 50 : 0);
    }
    return good;
}

static inline bool sleep_fill(struct sleep_arrays *a, bool all)
{
    bool good = true;

    for (unsigned i = 0; i < SLEEP_ARRAYS; i++) {
        good = good && (!all || sleep_put(a, a->constant[i], sleep_sizes[i], i + 1)) &&
               sleep_put(a, a->scratch[i], sleep_sizes[i], i + 50);
    }
    return good && (!all || sleep_put(a, a->plain, 999, 99));
}

/* sleep() or wake() to its end; *calls: how many it took. */
static inline int sleep_through(struct device *d, int (*step)(struct device *), int *calls)
{
    int rc = ERR_AGAIN;

    for (*calls = 0; rc == ERR_AGAIN && *calls < SLEEP_CALLS; ++*calls)
        rc = step(d);
    return rc;
}

static inline void sleep_open(struct sleep_arrays *a, struct device *d)
{
    size_t before = d->allocated_bytes;
    bool zero = true, aligned = true;

    a->d = d;
    a->host = malloc(sleep_sizes[5]);
    is_int(d->ops->may_sleep(d), ERR_OK, "%s: may sleep", d->name);
    for (int i = 0; i < SLEEP_ARRAYS; i++) {
        a->constant[i] = d->ops->alloc_constant(d, sleep_sizes[i]);
        a->scratch[i] = d->ops->alloc_scratch(d, sleep_sizes[i]);
        if (a->constant[i] == NULL || a->scratch[i] == NULL) {
            printf("Bail out! no memory\n");
            exit(1);
        }
        aligned =
            aligned && (uintptr_t)a->constant[i] % 64 == 0 && (uintptr_t)a->scratch[i] % 64 == 0;
        zero = zero && sleep_has(a, a->constant[i], sleep_sizes[i], 0) &&
               sleep_has(a, a->scratch[i], sleep_sizes[i], 0);
    }
    a->plain = d->ops->alloc(d, 999);
    ok(zero && aligned, "memory is zero and aligned");
    ok(d->sleeping_bytes == 2 * d->constant_bytes &&
           d->allocated_bytes == before + d->sleeping_bytes + 999,
       "it is counted");
    ok(sleep_fill(a, true) && sleep_all_have(a, true), "and holds what was put there");
}

static inline void sleep_check_rounds(struct sleep_arrays *a)
{
    struct device *d = a->d;

    for (int turn = 0; turn < 3; turn++) {
        bool filled = sleep_fill(a, false);
        size_t before = sleep_held(d), asleep;
        int calls;

        ok(filled && before > d->sleeping_bytes, "%zu MiB are held", before >> 20);
        is_int(sleep_through(d, d->ops->sleep, &calls), ERR_OK, "sleep %d ends", turn);
        asleep = sleep_held(d);
        ok(asleep + d->sleeping_bytes * 95 / 100 < before, "%zu of %zu MiB are given back",
           (before - asleep) >> 20, d->sleeping_bytes >> 20);
        ok(sleep_has(a, a->plain, 999, 99), "plain memory stays");
        is_int(sleep_through(d, d->ops->wake, &calls), ERR_OK, "it wakes");
        ok(sleep_held(d) > asleep + d->constant_bytes * 95 / 100, "memory is taken again");
        ok(sleep_all_have(a, false), "constant memory is as it was, scratch memory zero");
        ok(sleep_fill(a, false) && sleep_all_have(a, true), "and can be written");
        is_int(d->ops->wake(d), ERR_OK, "waking twice does nothing");
    }
}

static inline void sleep_check_failures(struct sleep_arrays *a)
{
    struct device *d = a->d;
    size_t asleep;
    int calls;

    fault_arm(FAULT_device_sleep, 1, true);
    (void)sleep_through(d, d->ops->sleep, &calls); /* a copy that is there already needs no room */
    fault_arm(FAULT_device_sleep, 0, false);
    is_int(sleep_through(d, d->ops->wake, &calls), ERR_OK, "awake whatever came of it");
    ok(sleep_fill(a, false) && sleep_all_have(a, true), "and whole");
    is_int(sleep_through(d, d->ops->sleep, &calls), ERR_OK, "it sleeps");
    asleep = sleep_held(d);
    for (int n = 1; n <= 2; n++) {
        fault_arm(FAULT_device_wake, n, true);
        is_int(sleep_through(d, d->ops->wake, &calls), ERR_NO_MEMORY, "others have the memory");
        ok(sleep_held(d) < asleep + (1 << 20), "none of it is held on to");
        if (n == 1 && fault_fired(FAULT_device_wake) == 1)
            is_int(d->ops->wake(d), ERR_NO_MEMORY, "they have it still");
        fault_arm(FAULT_device_wake, 0, false);
        if (!d->is_gpu)
            break; /* all of it is one piece */
    }
    is_int(sleep_through(d, d->ops->wake, &calls), ERR_OK, "when they leave, it wakes");
    ok(sleep_all_have(a, false), "and is whole");
}

/* A sleep that a request interrupts has done nothing that is seen. */
static inline void sleep_check_interrupted(struct sleep_arrays *a)
{
    struct device *d = a->d;
    int calls;

    ok(sleep_fill(a, false), "scratch memory is filled");
    is_int(d->ops->sleep(d), ERR_AGAIN, "falling asleep takes a while");
    ok(sleep_all_have(a, true), "everything is there meanwhile");
    is_int(d->ops->wake(d), ERR_OK, "it was awake all the time");
    ok(sleep_all_have(a, true), "and has lost nothing");
    is_int(sleep_through(d, d->ops->sleep, &calls), ERR_OK, "it goes on where it was");
    ok(d->is_gpu || calls > 1, "in %d calls", calls);
    is_int(sleep_through(d, d->ops->wake, &calls), ERR_OK, "and wakes");
    ok(d->is_gpu || calls > 1, "in %d calls", calls);
    ok(sleep_all_have(a, false), "whole");
}

static inline void sleep_close(struct sleep_arrays *a)
{
    device_close(a->d);
    free(a->host);
}

#endif
