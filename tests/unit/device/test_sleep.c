/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the cpu device gives memory back for a sleep and has it again, equal, at the same
 * addresses; a lack of memory is an answer. Method: the resident memory of this process, and a real
 * limit on it; tests/kernel/test_sleep does the same to a GPU. */
#include <sys/resource.h>
#include <unistd.h>

#define SLEEP_LARGEST ((size_t)40 << 20) /* several calls of sleep() on the cpu device */
#include "tests/unit/device/sleep_checks.h"

/* Of /proc/self/status, in bytes. */
static size_t status_of(const char *name)
{
    FILE *f = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[200];

    while (f != NULL && kib == 0 && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtoull(line + strlen(name), NULL, 10);
    }
    if (f != NULL)
        fclose(f);
    return (size_t)kib << 10;
}

static size_t sleep_held(struct device *d)
{
    (void)d;
    return status_of("RssAnon:");
}

static void open_cpu(struct sleep_arrays *a)
{
    struct device *d = NULL;

    if (device_cpu_open(&d, 1) != ERR_OK) {
        printf("Bail out! no cpu device\n");
        exit(1);
    }
    sleep_open(a, d);
}

/* Memory that really is not there. */
static void check_limit(struct sleep_arrays *a)
{
    struct rlimit old, low;
    int calls;

    is_int(sleep_through(a->d, a->d->ops->sleep, &calls), ERR_OK, "it sleeps");
    (void)getrlimit(RLIMIT_DATA, &old);
    low = old;
    low.rlim_cur = status_of("VmData:") + (20 << 20);
    (void)setrlimit(RLIMIT_DATA, &low);
    is_int(a->d->ops->wake(a->d), ERR_NO_MEMORY, "the process may have no more memory");
    is_int(a->d->ops->wake(a->d), ERR_NO_MEMORY, "still");
    (void)setrlimit(RLIMIT_DATA, &old);
    is_int(sleep_through(a->d, a->d->ops->wake, &calls), ERR_OK, "with the limit gone it wakes");
    ok(sleep_all_have(a, false), "and is whole");
}

static void check_unprepared(void)
{
    struct device *d = NULL;

    if (device_cpu_open(&d, 1) != ERR_OK)
        return;
    ok(d->ops->alloc_constant(d, 100) != NULL && d->ops->alloc_scratch(d, 100) != NULL,
       "a device that never sleeps allocates as ever");
    ok(d->sleeping_bytes == 0 && d->allocated_bytes == 200, "and gives nothing back");
    device_close(d);
}

int main(void)
{
    struct sleep_arrays a;
    int calls;

    open_cpu(&a);
    fault_arm(FAULT_device_sleep, 1, false);
    is_int(a.d->ops->sleep(a.d), ERR_NO_MEMORY, "the host has no room: it stays awake");
    ok(sleep_all_have(&a, true), "and whole");
    sleep_check_interrupted(&a);
    sleep_check_rounds(&a);
    sleep_check_failures(&a);
    check_limit(&a);
    is_int(sleep_through(a.d, a.d->ops->sleep, &calls), ERR_OK, "asleep at the end");
    sleep_close(&a);
    open_cpu(&a);
    is_int(sleep_through(a.d, a.d->ops->sleep, &calls), ERR_OK, "another sleeps");
    is_int(a.d->ops->wake(a.d), ERR_AGAIN, "and has begun to wake at the end");
    sleep_close(&a);
    open_cpu(&a);
    is_int(a.d->ops->sleep(a.d), ERR_AGAIN, "a third has begun to fall asleep");
    sleep_close(&a);
    check_unprepared();
    return tap_done();
}
