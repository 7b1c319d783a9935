/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of a model: devices that compute parts of it side by side.
 *
 * A rank is a device with its part of the weights, its pages and a thread of its own; rank 0's is
 * the caller's. All do the same steps at the same time, so what one waits for in another
 * (sum_ranks() of device/device.h) comes. With one rank there are no threads and nothing to wait
 * for. */
#ifndef QUIRE_MODEL_RANK_H
#define QUIRE_MODEL_RANK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"
#include "model/pass.h"
#include "model/weights.h"

#define RANKS_MAX 16

struct rank {
    int idx;
    struct device *device;
    struct weights weights;
    struct activations act;
    char *pages; /* device */
    float *turns
        [HF_CONFIG_ROPES_MAX]; /* device, of each rope: float [max_model_len][head_dim / 2][2] */
    struct device_batch batch; /* of the step that was last begun */
    bool is_asleep, is_waking;
    int rc; /* of the function that was last run */
    pthread_t thread;
    struct ranks *ranks;
    uint64_t tickets[DEVICE_WAYS][DEVICE_MARKS_MAX]; /* the device's, by the marks of all ranks */
};

struct ranks {
    int n;
    struct rank at[RANKS_MAX];
    int n_started;   /* threads */
    bool gives_back; /* a rank found no memory to wake with: the others sleep again */
    uint64_t n_marks[DEVICE_WAYS], n_done[DEVICE_WAYS];
    pthread_mutex_t lock; /* of what stands below */
    pthread_cond_t begins, ends;
    bool has_lock, stop;
    uint64_t n_runs;
    int n_busy;
    int (*fn)(struct rank *r, void *context);
    void *context;
};

/* Open n devices of a kind, and start the threads. cpu_threads are shared among the ranks.
 *
 * Errors as device_open(); ERR_UNSUPPORTED (logged) for several ranks on a device that has no way
 * to sum them. After an error too, ranks_close() is called; {0} is fine. */
int ranks_open(struct ranks *r, const char *device, int n, int cpu_threads) ERR_CHECKED;
void ranks_close(struct ranks *r);

/* A rank's part of a task, on its thread. */
typedef int rank_fn(struct rank *r, void *context);

/* Run fn for every rank, each on its own thread, and wait for all. Returns the first rank's error;
 * each rank's own is in its rc. */
int rank_run(struct ranks *r, rank_fn *fn, void *context) ERR_CHECKED;

/* Sums over the ranks' devices. */
size_t ranks_allocated_bytes(const struct ranks *r);
size_t ranks_sleeping_bytes(const struct ranks *r);
size_t ranks_constant_bytes(const struct ranks *r);

/* sleep() and wake() of device/device.h for all ranks as if they were one. */
int ranks_sleep(struct ranks *r) ERR_CHECKED;
int ranks_wake(struct ranks *r) ERR_CHECKED;

/* copy_mark() and copy_done() likewise: done is what all ranks have done. */
int ranks_copy_mark(struct ranks *r, enum device_way way, uint64_t *ticket) ERR_CHECKED;
int ranks_copy_done(struct ranks *r, enum device_way way, uint64_t ticket) ERR_CHECKED;

#endif
