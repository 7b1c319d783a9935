/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of a model: devices that compute parts of it in parallel.
 *
 * A rank is a device with its part of the weights, its pages and a thread of its own; rank 0 runs
 * on the caller's thread. All ranks run the same steps at the same time, so a wait for another
 * rank's part of a sum (sum_ranks() of device/device.h) always ends. With one rank there are no
 * threads.
 *
 * Ranks form stages: the ranks of a stage have parts of its layers, and stages follow one another
 * in the order of the layers. Where a device's operations run when they are called, the steps of
 * stages are posted to a second thread of each rank, so that one stage computes while another one
 * does. */
#ifndef QUIRE_MODEL_RANK_H
#define QUIRE_MODEL_RANK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"
#include "model/cache.h"
#include "model/pass.h"
#include "model/weights.h"

#define RANKS_MAX 16

struct rank;

/* What a worker runs. */
struct rank_task {
    int (*fn)(struct rank *r, void *context);
    void *context;
};
#define RANK_TASKS_MAX (2 * DEVICE_STEPS_MAX) /* a step is begun and sampled */

struct rank {
    int idx;
    int stage_idx, part; /* the stage, and the rank's number in it */
    bool is_last;        /* of the stage with the output matrix */
    struct plan_stage stage;
    struct device *device;
    struct weights weights;
    struct activations act;
    struct cache cache; /* of the stage's layers */
    size_t host_at;     /* of the rank's part in a page in host memory */
    char *pages;        /* device */
    float *turns
        [HF_CONFIG_ROPES_MAX]; /* device, of each rope: float [max_model_len][head_dim / 2][2] */
    struct device_batch batch; /* of the step that began last */
    bool is_asleep, is_waking;
    int rc; /* result of the function that ran last */
    pthread_t thread;
    struct ranks *ranks;
    pthread_t worker;
    struct rank_task tasks[RANK_TASKS_MAX]; /* in a ring */
    uint64_t n_posted, n_done;
    int worker_rc;                                   /* the first error of a task */
    uint64_t tickets[DEVICE_WAYS][DEVICE_MARKS_MAX]; /* the device's tickets, in a ring by common
                                                      * mark */
};

struct ranks {
    int n;
    int n_stages, n_parts; /* of this process; n is their product */
    bool posts;            /* steps are posted to workers, n_workers of which have started */
    int n_workers;
    pthread_mutex_t post_lock; /* guards the tasks and their counts, and worker_rc */
    pthread_cond_t posted, done;
    bool has_post_lock, workers_stop;
    struct rank at[RANKS_MAX];
    int n_started;   /* threads */
    bool gives_back; /* a rank found no memory to wake with: the others are going back to sleep */
    uint64_t n_marks[DEVICE_WAYS], n_done[DEVICE_WAYS];
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t begins, ends;
    bool has_lock, stop;
    uint64_t n_runs;
    int n_busy;
    int (*fn)(struct rank *r, void *context);
    void *context;
};

struct ranks_options {
    const char *device; /* the kind */
    int first;          /* number of the first device */
    int n_stages, n_parts;
    /* This process has stages first_stage .. first_stage + n_own - 1 of n_stages, and, if has_head,
     * one behind all with the output matrix alone, on the devices of its first one. */
    int first_stage, n_own;
    bool has_head;
    int cpu_threads; /* divided among the ranks */
    enum device_links links;
};

/* Open the devices of all stages, join them, and start the threads.
 *
 * Errors as device_open(); ERR_UNSUPPORTED (logged) for several ranks on a device that cannot sum
 * them. ranks_close() must be called after an error too; it accepts {0}. */
int ranks_open(struct ranks *r, const struct ranks_options *o) ERR_CHECKED;
void ranks_close(struct ranks *r);

/* A rank's part of a task; runs on the rank's thread. */
typedef int rank_fn(struct rank *r, void *context);

/* Run fn for every rank, each on its own thread, and wait for all. Returns the error of the lowest
 * rank that has one; each rank's own result is in its rc. */
int rank_run(struct ranks *r, rank_fn *fn, void *context) ERR_CHECKED;

/* Only where ranks post: hand a task to the rank's worker, which runs tasks in order; returns its
 * ticket. rank_wait() waits until that task has run, and returns the first error of any.
 * ranks_settle() waits for all tasks of all ranks. */
uint64_t rank_post(struct rank *r, rank_fn *fn, void *context);
int rank_wait(struct rank *r, uint64_t ticket) ERR_CHECKED;
int ranks_settle(struct ranks *r) ERR_CHECKED;

/* The rank that samples. */
struct rank *ranks_sampler(struct ranks *r);

/* Sums over the ranks' devices. */
size_t ranks_allocated_bytes(const struct ranks *r);
size_t ranks_sleeping_bytes(const struct ranks *r);
size_t ranks_constant_bytes(const struct ranks *r);

/* sleep() and wake() of device/device.h for all ranks, as if they were one device. */
int ranks_sleep(struct ranks *r) ERR_CHECKED;
int ranks_wake(struct ranks *r) ERR_CHECKED;

/* copy_mark() and copy_done() for all ranks: done means done on every rank. */
int ranks_copy_mark(struct ranks *r, enum device_way way, uint64_t *ticket) ERR_CHECKED;
int ranks_copy_done(struct ranks *r, enum device_way way, uint64_t ticket) ERR_CHECKED;

#endif
