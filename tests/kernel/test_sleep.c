/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a GPU's memory is given back for a sleep and taken again, equal, at the same addresses,
 * also when another process has had it meanwhile. Method: the driver's own count of free memory,
 * and a process that takes it all. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/device/sleep_checks.h"

#define SPARE ((size_t)300 << 20) /* less than what sleeps, more than the driver wants for itself */

static size_t sleep_held(struct device *d)
{
    size_t free_bytes = 0, total = 0;

    (void)d->ops->free(d, &free_bytes, &total);
    return total - free_bytes;
}

/* Another process: on the first byte it takes all memory but SPARE, on the second it ends. */
static _Noreturn void hog(int orders, int answers)
{
    struct device *d = NULL;
    size_t free_bytes = 0, total = 0;
    char byte = 'n';

    if (read(orders, &byte, 1) != 1 || device_cuda_open(&d, 0) != ERR_OK)
        _exit(1);
    (void)d->ops->free(d, &free_bytes, &total);
    byte = free_bytes > SPARE && d->ops->alloc(d, free_bytes - SPARE) != NULL ? 'y' : 'n';
    if (write(answers, &byte, 1) != 1 || read(orders, &byte, 1) != 1)
        _exit(1);
    device_close(d);
    _exit(0);
}

static void check_hog(struct sleep_arrays *a, int orders, int answers, pid_t pid)
{
    char byte = 'n';
    int calls, status = -1;

    is_int(sleep_through(a->d, a->d->ops->sleep, &calls), ERR_OK, "it sleeps");
    ok(write(orders, "x", 1) == 1 && read(answers, &byte, 1) == 1 && byte == 'y',
       "another process has the memory");
    is_int(sleep_through(a->d, a->d->ops->wake, &calls), ERR_NO_MEMORY, "so it cannot wake");
    is_int(sleep_through(a->d, a->d->ops->wake, &calls), ERR_NO_MEMORY, "and again not");
    ok(write(orders, "x", 1) == 1 && waitpid(pid, &status, 0) == pid && status == 0,
       "the other ends");
    is_int(sleep_through(a->d, a->d->ops->wake, &calls), ERR_OK, "and it wakes");
    ok(sleep_all_have(a, false), "whole");
}

int main(void)
{
    int orders[2], answers[2], calls;
    struct device *d = NULL;
    struct sleep_arrays a;
    pid_t pid;

    /* Before the driver is used: it does not survive a fork. */
    if (pipe(orders) != 0 || pipe(answers) != 0 || (pid = fork()) == -1)
        return 1;
    if (pid == 0)
        hog(orders[0], answers[1]);
    if (device_cuda_count() == 0) {
        (void)!write(orders[1], "xx", 2);
        tap_skip_all("NO GPU: its sleep is not tested");
    }
    if (device_cuda_open(&d, 0) != ERR_OK) {
        printf("Bail out! the GPU does not open\n");
        return 1;
    }
    sleep_open(&a, d);
    fault_arm(FAULT_device_sleep, 1, false);
    is_int(d->ops->sleep(d), ERR_NO_MEMORY, "the host has no room: it stays awake");
    ok(sleep_all_have(&a, true), "and whole");
    sleep_check_interrupted(&a);
    sleep_check_rounds(&a);
    sleep_check_failures(&a);
    check_hog(&a, orders[1], answers[0], pid);
    is_int(sleep_through(d, d->ops->sleep, &calls), ERR_OK, "asleep at the end");
    sleep_close(&a);
    return tap_done();
}
